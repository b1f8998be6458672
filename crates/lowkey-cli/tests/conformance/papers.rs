//! Certificates for nodes and clients, as `lowkey cert` makes them.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use serde_json::{Map, Value, json};
use tempfile::TempDir;

use crate::harness::Node;

/// One CA, the certificate of all nodes, and that of all clients.
pub(crate) struct Papers {
    folder: TempDir,
    /// For the harness itself.
    tls: Arc<ClientConfig>,
}

impl Papers {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        for words in [&["ca"][..], &["node"], &["client", "conformance"]] {
            let made = Command::new(env!("CARGO_BIN_EXE_lowkey"))
                .arg("cert")
                .args(words)
                .arg("--dir")
                .arg(folder.path())
                .stdout(Stdio::null())
                .status();
            assert!(made.unwrap().success(), "lowkey cert {words:?}");
        }
        let tls = Arc::new(config(folder.path()));
        Self { folder, tls }
    }

    fn file(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().unwrap().to_owned()
    }

    /// Has a node speak TLS only, to clients with a certificate only.
    pub(crate) fn equip(&self, node: &mut Node) {
        for (flag, file) in
            [("--tls-cert", "node.pem"), ("--tls-key", "node-key.pem"), ("--tls-client-ca", "ca.pem")]
        {
            node.flags.extend([flag.to_owned(), self.file(file)]);
        }
        node.tls = Some(Arc::clone(&self.tls));
    }

    /// What a driver is told to trust and to show.
    pub(crate) fn of_client(&self) -> Map<String, Value> {
        let files = [("ca", "ca.pem"), ("cert", "conformance.pem"), ("key", "conformance-key.pem")];
        files.map(|(field, file)| (field.to_owned(), json!(self.file(file)))).into_iter().collect()
    }
}

fn config(folder: &Path) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(folder.join("ca.pem")).unwrap()).unwrap();
    let chain = CertificateDer::pem_file_iter(folder.join("conformance.pem")).unwrap();
    let chain = chain.map(Result::unwrap).collect();
    let key = PrivateKeyDer::from_pem_file(folder.join("conformance-key.pem")).unwrap();
    ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, key)
        .unwrap()
}
