//! The certificates of a cluster that is measured with TLS, and how clients use them.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use lowkey_client::Tls;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};

use crate::process::forget_settings;
use crate::system::BenchProblem;

/// The files, as `lowkey cert` makes them.
#[derive(Clone, Debug)]
pub(crate) struct Papers {
    folder: PathBuf,
}

impl Papers {
    /// What the client is called in its certificate.
    const CLIENT: &str = "bench";

    /// The files in the folder of a cluster, whether they are there or not.
    pub(super) fn of(cluster: &Path) -> Self {
        Self { folder: cluster.join("certs") }
    }

    /// Makes a CA, and certificates for nodes and a client.
    pub(super) fn make(&self, program: &Path) -> Result<(), BenchProblem> {
        for words in [&["ca"][..], &["node"], &["client", Self::CLIENT]] {
            let mut command = Command::new(program);
            command.arg("cert").args(words).arg("--dir").arg(&self.folder);
            forget_settings(&mut command, "LOWKEY_");
            let output = command.output();
            let output =
                output.map_err(|error| BenchProblem::failed(format!("lowkey cert cannot run: {error}")))?;
            if !output.status.success() {
                return Err(BenchProblem::failed(String::from_utf8_lossy(&output.stderr).trim().to_owned()));
            }
        }
        Ok(())
    }

    /// Has a node encrypt, and demand certificates of its clients.
    pub(super) fn arm(&self, node: &mut Command) {
        node.arg("--tls-cert").arg(self.file("node")).arg("--tls-key").arg(self.file("node-key"));
        node.arg("--tls-client-ca").arg(self.file("ca"));
    }

    /// For the SDK.
    pub(super) fn sdk(&self) -> Tls {
        let key = format!("{}-key", Self::CLIENT);
        Tls::new().ca(self.file("ca")).identity(self.file(Self::CLIENT), self.file(&key))
    }

    /// For connections that are made here.
    pub(super) fn config(&self) -> Result<Arc<ClientConfig>, BenchProblem> {
        let failed =
            |error: &dyn std::fmt::Display| BenchProblem::failed(format!("the certificates: {error}"));
        let certificate =
            |name: &str| CertificateDer::from_pem_file(self.file(name)).map_err(|error| failed(&error));
        let mut roots = RootCertStore::empty();
        roots.add(certificate("ca")?).map_err(|error| failed(&error))?;
        let key = PrivateKeyDer::from_pem_file(self.file(&format!("{}-key", Self::CLIENT)));
        let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| failed(&error))?
            .with_root_certificates(roots)
            .with_client_auth_cert(vec![certificate(Self::CLIENT)?], key.map_err(|error| failed(&error))?)
            .map_err(|error| failed(&error))?;
        config.alpn_protocols = vec![b"h2".to_vec()];
        Ok(Arc::new(config))
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.join(format!("{name}.pem"))
    }
}
