//! Encrypted connections: which nodes are trusted, and the certificate that this client shows.
//!
//! The files are read when a connection is made, so that a new certificate is used from the next connection
//! on. Files that cannot be used do not replace those that can.

use std::error::Error as StdError;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{AlertDescription, CertificateError, ClientConfig, RootCertStore};

use crate::error::Error;

/// How to connect to nodes that speak TLS: given to [`ClientBuilder::tls`](crate::ClientBuilder::tls).
///
/// Nothing of it is needed where a CA of the operating system signed the nodes' certificates, and the nodes
/// want none of their clients.
///
/// ```no_run
/// # async fn example() -> Result<(), lowkey_client::Error> {
/// use lowkey_client::{Client, Tls};
///
/// let tls = Tls::new().ca("ca.pem").identity("billing.pem", "billing-key.pem");
/// let client = Client::builder(["https://127.0.0.1:9000"]).tls(tls).connect().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tls {
    ca: Option<PathBuf>,
    identity: Option<(PathBuf, PathBuf)>,
}

impl Tls {
    /// Trusts the CAs of the operating system, and shows no certificate.
    pub fn new() -> Self {
        Self::default()
    }

    /// Trusts the CAs in this PEM file, and no others.
    pub fn ca(mut self, file: impl Into<PathBuf>) -> Self {
        self.ca = Some(file.into());
        self
    }

    /// Shows this certificate to nodes that ask for one: PEM files of the certificate, followed by those
    /// between it and its CA, and of its private key.
    pub fn identity(mut self, certificate: impl Into<PathBuf>, key: impl Into<PathBuf>) -> Self {
        self.identity = Some((certificate.into(), key.into()));
        self
    }
}

impl Tls {
    /// True if it shows a certificate.
    pub(crate) fn has_identity(&self) -> bool {
        self.identity.is_some()
    }
}

/// The files as they are on disk. They have a key: never shown.
#[derive(PartialEq, Eq)]
struct Contents {
    ca: Option<Vec<u8>>,
    identity: Option<(Vec<u8>, Vec<u8>)>,
}

/// What was read last, and its files.
#[derive(Default)]
pub(crate) struct Configs {
    tls: Tls,
    last: Mutex<Option<(Contents, Arc<ClientConfig>)>>,
}

impl Configs {
    pub(crate) fn new(tls: Tls) -> Self {
        Self { tls, last: Mutex::default() }
    }

    /// Whether there is a pair of files, which may be replaced one after the other.
    pub(crate) fn has_identity(&self) -> bool {
        self.tls.identity.is_some()
    }

    /// The configuration for a connection that is made now.
    pub(crate) fn now(&self) -> Result<Arc<ClientConfig>, Error> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let read = read(&self.tls).and_then(|contents| {
            let config = match &*last {
                Some((same, config)) if *same == contents => Arc::clone(config),
                _ => Arc::new(configured(&self.tls, &contents)?),
            };
            Ok((contents, config))
        });
        match (read, &*last) {
            (Ok((contents, config)), _) => {
                *last = Some((contents, Arc::clone(&config)));
                Ok(config)
            }
            (Err(error), Some((_, config))) => {
                tracing::warn!(%error, "the TLS files that were read before stay in use");
                Ok(Arc::clone(config))
            }
            (Err(error), None) => Err(error),
        }
    }

    /// What a failed connection means, if TLS is the cause: one sentence, with what to do.
    pub(crate) fn words_of(&self, error: &(dyn StdError + 'static)) -> Option<String> {
        let mut next = Some(error);
        while let Some(error) = next {
            let inner = error.downcast_ref::<io::Error>().and_then(|error| error.get_ref());
            let inner = inner.map(|inner| inner as &(dyn StdError + 'static)).unwrap_or(error);
            if let Some(tls) = inner.downcast_ref::<rustls::Error>() {
                return Some(self.words(tls));
            }
            // Behind HTTP/2 only the text is left.
            if let Some(alert) = alert_in(&error.to_string()) {
                return Some(self.words(&rustls::Error::AlertReceived(alert)));
            }
            next = error.source();
        }
        None
    }

    fn words(&self, error: &rustls::Error) -> String {
        use AlertDescription as Alert;
        use CertificateError as Certificate;
        match error {
            rustls::Error::InvalidCertificate(Certificate::UnknownIssuer | Certificate::BadSignature) => match &self.tls.ca {
                Some(ca) => format!(
                    "its certificate is not signed by the CA in {}; give the CA that signed it (--ca, LOWKEY_CA)",
                    ca.display()
                ),
                None => "its certificate is not signed by a CA that this system trusts; give the CA that signed it (--ca, \
                         LOWKEY_CA)"
                    .to_owned(),
            },
            rustls::Error::InvalidCertificate(Certificate::Expired | Certificate::ExpiredContext { .. }) => {
                "its certificate has expired; it must be replaced on the node (--tls-cert)".to_owned()
            }
            rustls::Error::InvalidCertificate(Certificate::NotValidForNameContext { presented, .. }) => format!(
                "its certificate is not for this name but for {}; use such a name, or make a certificate with both (`lowkey \
                 cert node --host`)",
                presented.join(", ")
            ),
            rustls::Error::InvalidCertificate(_) => {
                format!("its certificate cannot be used: {error}; it must be replaced on the node (--tls-cert)")
            }
            rustls::Error::InvalidMessage(_) => {
                "it does not speak TLS; use http:// if that is meant, or give the node --tls-cert".to_owned()
            }
            rustls::Error::AlertReceived(Alert::CertificateRequired) => {
                "it wants a certificate of its clients; give one (--cert and --key, LOWKEY_CERT and LOWKEY_KEY)".to_owned()
            }
            rustls::Error::AlertReceived(Alert::CertificateExpired) => {
                "it refuses the certificate of this client, which has expired; make a new one (`lowkey cert client`)"
                    .to_owned()
            }
            rustls::Error::AlertReceived(Alert::UnknownCA | Alert::BadCertificate | Alert::CertificateUnknown | Alert::DecryptError,
            ) => {
                "it refuses the certificate of this client, which no CA of its --tls-client-ca signed; give another one \
                 (--cert and --key)"
                    .to_owned()
            }
            error => format!("the TLS handshake failed: {error}"),
        }
    }
}

impl fmt::Debug for Configs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.tls.fmt(f)
    }
}

/// The alerts that a client can do something about.
fn alert_in(text: &str) -> Option<AlertDescription> {
    use AlertDescription as Alert;
    [
        Alert::CertificateRequired,
        Alert::CertificateExpired,
        Alert::UnknownCA,
        Alert::BadCertificate,
        Alert::CertificateUnknown,
        Alert::DecryptError,
    ]
    .into_iter()
    .find(|alert| text.contains(&format!("received fatal alert: {alert:?}")))
}

fn read(tls: &Tls) -> Result<Contents, Error> {
    let bytes = |path: &Path| {
        std::fs::read(path)
            .map_err(|error| Error::invalid(format!("{} cannot be read: {error}", path.display())))
    };
    let identity = match &tls.identity {
        Some((certificate, key)) => Some((bytes(certificate)?, bytes(key)?)),
        None => None,
    };
    Ok(Contents { ca: tls.ca.as_deref().map(bytes).transpose()?, identity })
}

fn configured(tls: &Tls, contents: &Contents) -> Result<ClientConfig, Error> {
    let roots = match (&tls.ca, &contents.ca) {
        (Some(path), Some(bytes)) => given_roots(path, bytes)?,
        _ => system_roots()?,
    };
    let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_protocol_versions(&[&rustls::version::TLS13, &rustls::version::TLS12])
        .map_err(|error| Error::invalid(format!("TLS cannot be set up: {error}")))?
        .with_root_certificates(roots);
    let mut config = match (&tls.identity, &contents.identity) {
        (Some((certificate, key)), Some((certificate_bytes, key_bytes))) => {
            let chain = certificates(certificate, certificate_bytes)?;
            let no_key = |_| {
                let path = key.display();
                Error::invalid(format!(
                    "{path} has no private key; PEM with BEGIN PRIVATE KEY is needed, without a password"
                ))
            };
            let not_a_pair = |_| {
                let (certificate, key) = (certificate.display(), key.display());
                Error::invalid(format!("{key} is not the key of the certificate in {certificate}"))
            };
            let key = PrivateKeyDer::from_pem_slice(key_bytes).map_err(no_key)?;
            builder.with_client_auth_cert(chain, key).map_err(not_a_pair)?
        }
        _ => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![b"h2".to_vec()];
    Ok(config)
}

fn certificates(path: &Path, bytes: &[u8]) -> Result<Vec<CertificateDer<'static>>, Error> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(bytes).collect();
    found.ok().filter(|found| !found.is_empty()).ok_or_else(|| {
        Error::invalid(format!("{} has no certificate; PEM with BEGIN CERTIFICATE is needed", path.display()))
    })
}

fn given_roots(path: &Path, bytes: &[u8]) -> Result<RootCertStore, Error> {
    let mut roots = RootCertStore::empty();
    for ca in certificates(path, bytes)? {
        roots
            .add(ca)
            .map_err(|error| Error::invalid(format!("{} is no CA certificate: {error}", path.display())))?;
    }
    Ok(roots)
}

fn system_roots() -> Result<RootCertStore, Error> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() {
        return Err(Error::invalid(
            "this system has no CA certificates; give the CA that signed the nodes' certificates (--ca, LOWKEY_CA)",
        ));
    }
    Ok(roots)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is said about an error of TLS below an error of I/O.
    fn said(error: rustls::Error) -> String {
        let error = io::Error::new(io::ErrorKind::InvalidData, error);
        Configs::new(Tls::new().ca("ca.pem")).words_of(&error).expect("it is about TLS")
    }

    #[test]
    fn each_problem_is_told_with_what_to_do() {
        let certificate = |error| said(rustls::Error::InvalidCertificate(error));
        let alert = |alert| said(rustls::Error::AlertReceived(alert));
        let no_tls = rustls::Error::InvalidMessage(rustls::InvalidMessage::InvalidContentType);
        let wrong_name = CertificateError::NotValidForNameContext {
            expected: rustls::pki_types::ServerName::try_from("a.example.com").unwrap(),
            presented: vec!["b.example.com".into(), "c.example.com".into()],
        };
        for (said, words) in [
            (certificate(CertificateError::UnknownIssuer), "not signed by the CA in ca.pem"),
            (certificate(CertificateError::BadSignature), "--ca"),
            (certificate(CertificateError::Expired), "has expired"),
            (certificate(wrong_name), "but for b.example.com, c.example.com"),
            (certificate(CertificateError::Revoked), "cannot be used"),
            (said(no_tls), "use http://"),
            (alert(AlertDescription::CertificateRequired), "--cert and --key"),
            (alert(AlertDescription::CertificateExpired), "lowkey cert client"),
            (alert(AlertDescription::UnknownCA), "--tls-client-ca"),
            (alert(AlertDescription::InternalError), "handshake failed"),
        ] {
            assert!(said.contains(words), "{said}");
        }
    }

    #[test]
    fn an_alert_is_found_where_only_its_text_is_left() {
        let configs = Configs::default();
        let behind_http = io::Error::other("connection error: received fatal alert: CertificateRequired");
        assert!(configs.words_of(&behind_http).unwrap().contains("--cert and --key"));
        assert_eq!(configs.words_of(&io::Error::from(io::ErrorKind::ConnectionRefused)), None);
    }
}
