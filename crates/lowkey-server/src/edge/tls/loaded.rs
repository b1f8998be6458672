//! What the TLS files contain, once it is known to be usable.

use std::path::Path;
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier, danger::ClientCertVerifier};
use rustls::{ClientConfig, InconsistentKeys, RootCertStore, ServerConfig, SupportedProtocolVersion};
use tokio_rustls::TlsAcceptor;
use x509_parser::prelude::{FromDer as _, X509Certificate};

use super::{TlsFiles, TlsProblem, WARN_BEFORE_SECONDS, unix_seconds};

const CERTIFICATE_FLAG: &str = "--tls-cert";
const KEY_FLAG: &str = "--tls-key";
const CLIENT_CA_FLAG: &str = "--tls-client-ca";

/// Nothing older: TLS 1.1 and SSL are broken.
const VERSIONS: &[&SupportedProtocolVersion] = &[&rustls::version::TLS13, &rustls::version::TLS12];
const DAY_SECONDS: i64 = 24 * 3600;
/// A file of this kind is a few kilobytes. More is a mistake, such as a device.
const FILE_BYTES_MAX: u64 = 1024 * 1024;

/// The files, as they are on disk. They have a key: never shown.
#[derive(PartialEq, Eq)]
pub(super) struct Contents {
    certificate: Vec<u8>,
    key: Vec<u8>,
    client_ca: Option<Vec<u8>>,
}

impl Contents {
    pub(super) fn read(files: &TlsFiles) -> Result<Self, TlsProblem> {
        let client_ca = files.client_ca.as_deref().map(|path| read(CLIENT_CA_FLAG, path)).transpose()?;
        Ok(Self {
            certificate: read(CERTIFICATE_FLAG, &files.certificate)?,
            key: read(KEY_FLAG, &files.key)?,
            client_ca,
        })
    }
}

fn read(flag: &'static str, path: &Path) -> Result<Vec<u8>, TlsProblem> {
    use std::io::Read as _;
    let problem =
        |error: std::io::Error| TlsProblem::new(flag, path, format_args!("cannot be read: {error}"));
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).map_err(problem)?;
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(problem)?;
    match bytes.len() as u64 {
        0..=FILE_BYTES_MAX => Ok(bytes),
        _ => Err(TlsProblem::new(flag, path, "has more than 1 MiB, and is no such PEM file")),
    }
}

/// Files that can be used.
pub(super) struct Loaded {
    pub(super) contents: Contents,
    pub(super) acceptor: TlsAcceptor,
    /// How the node connects to others, with its own certificate.
    pub(super) as_client: Arc<ClientConfig>,
    clients: Option<Arc<dyn ClientCertVerifier>>,
    /// When the certificate ends, in seconds since 1970.
    pub(super) ends_unix: i64,
}

impl Loaded {
    pub(super) fn from(contents: Contents, files: &TlsFiles) -> Result<Self, TlsProblem> {
        let chain = certificates(CERTIFICATE_FLAG, &files.certificate, &contents.certificate)?;
        let no_key = |_| {
            let wanted = "has no private key; PEM with BEGIN PRIVATE KEY is needed, without a password";
            TlsProblem::new(KEY_FLAG, &files.key, wanted)
        };
        let key = PrivateKeyDer::from_pem_slice(&contents.key).map_err(no_key)?;
        let (_, leaf) = X509Certificate::from_der(&chain[0]).map_err(|error| {
            TlsProblem::new(CERTIFICATE_FLAG, &files.certificate, format_args!("is no certificate: {error}"))
        })?;
        let ends_unix = leaf.validity().not_after.timestamp();
        let client_cas = match (&files.client_ca, &contents.client_ca) {
            (Some(path), Some(bytes)) => Some((path, certificates(CLIENT_CA_FLAG, path, bytes)?)),
            _ => None,
        };
        let clients = client_cas.as_ref().map(|(path, cas)| verifier(path, cas)).transpose()?;
        let server = ServerConfig::builder_with_provider(provider())
            .with_protocol_versions(VERSIONS)
            .map_err(|error| TlsProblem::new(CERTIFICATE_FLAG, &files.certificate, error))?;
        let server = match &clients {
            Some(clients) => server.with_client_cert_verifier(Arc::clone(clients)),
            None => server.with_no_client_auth(),
        };
        let mut server = server
            .with_single_cert(chain.clone(), key.clone_key())
            .map_err(|error| not_a_pair(files, &error))?;
        server.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        server.send_tls13_tickets = 0;
        server.session_storage = Arc::new(NoServerSessionStorage {});
        let trusted = client_cas.into_iter().flat_map(|(_, cas)| cas);
        let as_client = client_config(files, trusted, chain, key)?;
        let acceptor = TlsAcceptor::from(Arc::new(server));
        Ok(Self { contents, acceptor, as_client: Arc::new(as_client), clients, ends_unix })
    }

    /// Whether a client with this certificate may connect.
    pub(super) fn covers(&self, chain: &[CertificateDer<'static>]) -> bool {
        match (&self.clients, chain.split_first()) {
            (Some(clients), Some((leaf, between))) => {
                clients.verify_client_cert(leaf, between, UnixTime::now()).is_ok()
            }
            (Some(_), None) => false,
            (None, _) => true,
        }
    }

    /// A certificate that has ended does not replace one that has not.
    pub(super) fn must_not_end_before(&self, before: &Self, files: &TlsFiles) -> Result<(), TlsProblem> {
        let now = unix_seconds();
        if self.ends_unix <= now && before.ends_unix > now {
            return Err(TlsProblem::new(CERTIFICATE_FLAG, &files.certificate, "has expired"));
        }
        Ok(())
    }

    /// Logs that the certificate ends soon, or has ended.
    pub(super) fn warn_of_end(&self) {
        let left = self.ends_unix - unix_seconds();
        if left <= 0 {
            tracing::error!(
                expired_unix = self.ends_unix,
                "the certificate of --tls-cert has expired: clients refuse it; replace certificate and key, for example \
                 with lowkey cert node --force"
            );
        } else if left < WARN_BEFORE_SECONDS {
            tracing::warn!(
                days = left / DAY_SECONDS,
                "the certificate of --tls-cert expires soon; replace certificate and key, for example with lowkey cert \
                 node --force"
            );
        }
    }
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

/// The certificates in a PEM file: at least one.
fn certificates(
    flag: &'static str,
    path: &Path,
    bytes: &[u8],
) -> Result<Vec<CertificateDer<'static>>, TlsProblem> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(bytes).collect();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        _ => Err(TlsProblem::new(flag, path, "has no certificate; PEM with BEGIN CERTIFICATE is needed")),
    }
}

fn verifier(path: &Path, cas: &[CertificateDer<'static>]) -> Result<Arc<dyn ClientCertVerifier>, TlsProblem> {
    let mut roots = RootCertStore::empty();
    for ca in cas {
        let problem =
            |error| TlsProblem::new(CLIENT_CA_FLAG, path, format_args!("is no CA certificate: {error}"));
        roots.add(ca.clone()).map_err(problem)?;
    }
    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider())
        .build()
        .map_err(|error| TlsProblem::new(CLIENT_CA_FLAG, path, error))
}

fn not_a_pair(files: &TlsFiles, error: &rustls::Error) -> TlsProblem {
    let certificate = files.certificate.display();
    match error {
        rustls::Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => TlsProblem::new(
            KEY_FLAG,
            &files.key,
            format_args!("is not the key of the certificate in {certificate}"),
        ),
        error => TlsProblem::new(
            KEY_FLAG,
            &files.key,
            format_args!("cannot be used with the certificate in {certificate}: {error}"),
        ),
    }
}

/// A node that joins trusts the CA of its clients and the one that signed its own certificate, and shows
/// that certificate.
fn client_config(
    files: &TlsFiles,
    client_cas: impl Iterator<Item = CertificateDer<'static>>,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<ClientConfig, TlsProblem> {
    let mut roots = RootCertStore::empty();
    // What is no CA is of no use here, and no fault either.
    roots.add_parsable_certificates(client_cas.chain(chain.iter().cloned()));
    let problem =
        |error: &dyn std::fmt::Display| TlsProblem::new(CERTIFICATE_FLAG, &files.certificate, error);
    let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider())
        .build()
        .map_err(|error| problem(&error))?;
    let mut config = ClientConfig::builder_with_provider(provider())
        .with_protocol_versions(VERSIONS)
        .map_err(|error| problem(&error))?
        .with_webpki_verifier(verifier)
        .with_client_auth_cert(chain, key)
        .map_err(|error| not_a_pair(files, &error))?;
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(config)
}
