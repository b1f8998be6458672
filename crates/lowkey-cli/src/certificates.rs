//! Makes certificates, for people without a public key infrastructure of their own.
//!
//! - Keys are files that only their owner can read (mode 0600), and are never shown.
//! - Nothing is overwritten unless that is wished. A file appears whole or not at all, so that a node which
//!   reads it meanwhile never sees half of it.

use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::net::IpAddr;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, SanType,
};

/// A certificate is valid from this long ago: clocks differ.
const BACKDATED: Duration = Duration::from_secs(3600);
const DAY: Duration = Duration::from_secs(24 * 3600);

/// What a certificate is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Use {
    /// A node shows it to its clients, and to nodes that it joins.
    Node,
    /// A client shows it to nodes.
    Client,
}

/// Where files are, and how they may be written.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) folder: PathBuf,
    /// Replace what is there.
    pub(crate) may_overwrite: bool,
}

/// A certificate and its key that were written.
#[derive(Clone, Debug)]
pub(crate) struct Written {
    pub(crate) certificate: PathBuf,
    pub(crate) key: PathBuf,
    pub(crate) names: Vec<String>,
    /// In seconds since 1970.
    pub(crate) expires_unix: i64,
}

/// The file of the CA's certificate in a folder.
pub(crate) fn ca_file(folder: &Path) -> PathBuf {
    folder.join("ca.pem")
}

/// Makes a CA: `ca.pem` and `ca-key.pem`.
pub(crate) fn make_ca(place: &Place, days: u32) -> Result<Written, String> {
    let key = KeyPair::generate().map_err(|error| format!("cannot make a key: {error}"))?;
    let mut params = params(days)?;
    // Two CAs must not have one name, or their certificates are taken for each other's.
    let tag: [u8; 4] = random()?;
    let name = format!("lowkey CA {:08x}", u32::from_be_bytes(tag));
    params.distinguished_name.push(DnType::CommonName, &name);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let certificate =
        params.self_signed(&key).map_err(|error| format!("cannot make the certificate: {error}"))?;
    let expires_unix = params.not_after.unix_timestamp();
    let (certificate, key) = write_pair(place, "ca", &certificate.pem(), &key.serialize_pem())?;
    Ok(Written { certificate, key, names: vec![name], expires_unix })
}

/// Makes a certificate that the CA of the same folder signs: `FILE.pem` and `FILE-key.pem`.
pub(crate) fn make(
    place: &Place,
    file: &str,
    of: Use,
    names: &[String],
    days: u32,
) -> Result<Written, String> {
    let (issuer, ca) = read_ca(&place.folder)?;
    let key = KeyPair::generate().map_err(|error| format!("cannot make a key: {error}"))?;
    let mut params = params(days)?;
    params.distinguished_name.push(DnType::CommonName, names.first().map_or(file, String::as_str));
    params.subject_alt_names = names.iter().map(|name| san(name)).collect::<Result<_, _>>()?;
    params.use_authority_key_identifier_extension = true;
    params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
    params.extended_key_usages = match of {
        Use::Node => vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth],
        Use::Client => vec![ExtendedKeyUsagePurpose::ClientAuth],
    };
    let certificate =
        params.signed_by(&key, &issuer).map_err(|error| format!("cannot make the certificate: {error}"))?;
    let chain = match of {
        // A node trusts the CA of its own certificate when it joins others.
        Use::Node => format!("{}{ca}", certificate.pem()),
        Use::Client => certificate.pem(),
    };
    let (certificate, key) = write_pair(place, file, &chain, &key.serialize_pem())?;
    let (names, expires_unix) = (names.to_vec(), params.not_after.unix_timestamp());
    Ok(Written { certificate, key, names, expires_unix })
}

fn random<const N: usize>() -> Result<[u8; N], String> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|error| format!("the system has no random numbers: {error}"))?;
    Ok(bytes)
}

fn params(days: u32) -> Result<CertificateParams, String> {
    let now = SystemTime::now();
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::OrganizationName, "lowkey");
    params.not_before = (now - BACKDATED).into();
    params.not_after = (now + days * DAY).into();
    // Positive, and different for each certificate of a CA.
    let mut serial: [u8; 16] = random()?;
    serial[0] &= 0x7f;
    params.serial_number = Some(serial.to_vec().into());
    Ok(params)
}

/// An IP address, a URI, an e-mail address, or else a name.
fn san(name: &str) -> Result<SanType, String> {
    let invalid = |_| format!("{name} is no name that a certificate can have");
    if let Ok(address) = name.parse::<IpAddr>() {
        return Ok(SanType::IpAddress(address));
    }
    Ok(match name {
        _ if name.contains("://") => SanType::URI(name.try_into().map_err(invalid)?),
        _ if name.contains('@') => SanType::Rfc822Name(name.try_into().map_err(invalid)?),
        _ => SanType::DnsName(name.try_into().map_err(invalid)?),
    })
}

fn read_ca(folder: &Path) -> Result<(Issuer<'static, KeyPair>, String), String> {
    let read = |name: &str| {
        let path = folder.join(name);
        fs::read_to_string(&path).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => {
                format!("there is no {}: make a CA first, with `lowkey cert ca`", path.display())
            }
            _ => format!("{} cannot be read: {error}", path.display()),
        })
    };
    let (certificate, key) = (read("ca.pem")?, read("ca-key.pem")?);
    // Whatever is wrong with a key, its text is not for the screen.
    let key =
        KeyPair::from_pem(&key).map_err(|_| format!("{} has no key", folder.join("ca-key.pem").display()))?;
    let issuer = Issuer::from_ca_cert_pem(&certificate, key)
        .map_err(|error| format!("{} is no CA: {error}", ca_file(folder).display()))?;
    Ok((issuer, certificate))
}

fn write_pair(place: &Place, file: &str, certificate: &str, key: &str) -> Result<(PathBuf, PathBuf), String> {
    let (certificate_path, key_path) =
        (place.folder.join(format!("{file}.pem")), place.folder.join(format!("{file}-key.pem")));
    fs::create_dir_all(&place.folder)
        .map_err(|error| format!("cannot make {}: {error}", place.folder.display()))?;
    if !place.may_overwrite
        && let Some(there) = [&certificate_path, &key_path].into_iter().find(|path| path.exists())
    {
        return Err(already_there(there));
    }
    // Both are on disk before either takes its place: who reads meanwhile finds a pair, but for an instant.
    let new_key = NewFile::write(&key_path, key, 0o600)?;
    let new_certificate = NewFile::write(&certificate_path, certificate, 0o644)?;
    new_key.put(place)?;
    new_certificate.put(place)?;
    Ok((certificate_path, key_path))
}

fn already_there(path: &Path) -> String {
    format!("{} is there already, and was left as it is; --force replaces it", path.display())
}

/// A file that is whole, beside the place that it is to take. It is gone if it does not take that place.
struct NewFile {
    new: PathBuf,
    path: PathBuf,
}

impl NewFile {
    fn write(path: &Path, text: &str, mode: u32) -> Result<Self, String> {
        let new = path.with_extension(format!("new-{}", std::process::id()));
        let file = Self { new, path: path.to_owned() };
        write_new(&file.new, text, mode).map_err(|error| file.failed(&error))?;
        Ok(file)
    }

    fn put(self, place: &Place) -> Result<(), String> {
        let outcome = match place.may_overwrite {
            true => fs::rename(&self.new, &self.path),
            // Unlike a rename this fails if there is such a file.
            false => fs::hard_link(&self.new, &self.path),
        };
        outcome.map_err(|error| self.failed(&error))
    }

    fn failed(&self, error: &io::Error) -> String {
        match error.kind() {
            io::ErrorKind::AlreadyExists => already_there(&self.path),
            _ => format!("cannot write {}: {error}", self.path.display()),
        }
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        // After a rename there is nothing to remove.
        let _ = fs::remove_file(&self.new);
    }
}

fn write_new(path: &Path, text: &str, mode: u32) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}
