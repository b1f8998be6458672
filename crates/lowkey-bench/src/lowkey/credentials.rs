//! What a client shows to nodes, and whom it trusts: files, as commands take them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use http::header::HeaderValue;
use lowkey_client::{Client, ClientBuilder, Tls};
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

use crate::caller::Shown;
use crate::system::BenchProblem;

/// What a client shows to nodes, and whom it trusts.
#[derive(Clone, Debug, Default)]
pub struct Credentials {
    /// The CAs that signed the nodes' certificates, as PEM; those of the system if there is none.
    pub ca: Option<PathBuf>,
    /// A certificate and its private key, as PEM.
    pub identity: Option<(PathBuf, PathBuf)>,
    /// A file with a token.
    pub token_file: Option<PathBuf>,
}

impl Credentials {
    /// Whether nodes may learn by it who the client is.
    pub(super) fn prove_somebody(&self) -> bool {
        self.identity.is_some() || self.token_file.is_some()
    }

    /// For the SDK.
    pub(super) fn builder(&self, addresses: &[String]) -> ClientBuilder {
        let mut tls = Tls::new();
        if let Some(ca) = &self.ca {
            tls = tls.ca(ca);
        }
        if let Some((certificate, key)) = &self.identity {
            tls = tls.identity(certificate, key);
        }
        let builder = Client::builder(addresses).tls(tls);
        match &self.token_file {
            Some(file) => builder.token_file(file),
            None => builder,
        }
    }

    /// For connections that are made here, to nodes at these addresses.
    pub(super) fn shown(&self, addresses: &[String]) -> Result<Shown, BenchProblem> {
        let has_tls = addresses.iter().any(|address| address.starts_with("https://"));
        let tls = if has_tls { Some(self.config()?) } else { None };
        let authorization = self.token_file.as_deref().map(authorization).transpose()?;
        Ok(Shown { tls, authorization })
    }

    fn config(&self) -> Result<Arc<ClientConfig>, BenchProblem> {
        let failed = |error: rustls::Error| BenchProblem::failed(format!("TLS cannot be set up: {error}"));
        let builder = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(failed)?
            .with_root_certificates(self.roots()?);
        let mut config = match &self.identity {
            None => builder.with_no_client_auth(),
            Some((certificate, key)) => {
                let read = PrivateKeyDer::from_pem_file(key).map_err(|error| unreadable(key, error))?;
                builder.with_client_auth_cert(certificates(certificate)?, read).map_err(failed)?
            }
        };
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(Arc::new(config))
    }

    fn roots(&self) -> Result<RootCertStore, BenchProblem> {
        let mut roots = RootCertStore::empty();
        match &self.ca {
            Some(file) => {
                for ca in certificates(file)? {
                    roots.add(ca).map_err(|error| unreadable(file, error))?;
                }
            }
            None => {
                roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            }
        }
        Ok(roots)
    }
}

fn certificates(file: &Path) -> Result<Vec<CertificateDer<'static>>, BenchProblem> {
    let read = CertificateDer::pem_file_iter(file).and_then(Iterator::collect);
    read.map_err(|error| unreadable(file, error))
}

fn authorization(file: &Path) -> Result<HeaderValue, BenchProblem> {
    let token = std::fs::read_to_string(file).map_err(|error| unreadable(file, error))?;
    let mut header =
        HeaderValue::try_from(format!("Bearer {}", token.trim())).map_err(|error| unreadable(file, error))?;
    header.set_sensitive(true);
    Ok(header)
}

fn unreadable(file: &Path, error: impl std::fmt::Display) -> BenchProblem {
    BenchProblem::failed(format!("{} cannot be used: {error}", file.display()))
}
