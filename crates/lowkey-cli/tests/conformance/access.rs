//! Clusters that are closed, and the file with the token that opens them.

use std::cell::OnceCell;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::harness::{Cluster, eventually};

/// Not the name in the certificate: it is the token that opens.
pub(crate) const PRINCIPAL: &str = "sdks";

/// What the drivers of one story show. It opens the first cluster of the story alone.
pub(crate) struct Pass {
    folder: TempDir,
    file: OnceCell<PathBuf>,
}

impl Pass {
    pub(crate) fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap(), file: OnceCell::new() }
    }

    /// The file with the token of the first cluster.
    pub(crate) fn file(&self) -> &Path {
        self.file.get().expect("a story starts its cluster before its drivers")
    }

    /// From now on every call to a cluster needs a token; the harness has one, too.
    pub(crate) fn close(&self, cluster: &mut Cluster) {
        let data_dir = cluster.nodes[0].data_dir.clone();
        access(&data_dir, &["principal", "add", PRINCIPAL]);
        access(&data_dir, &["grant", PRINCIPAL, "/", "acquire,read,watch"]);
        let token = access(&data_dir, &["token", "new", PRINCIPAL]);
        // Nothing else can be closed without an admin.
        access(&data_dir, &["principal", "add", "ops"]);
        access(&data_dir, &["grant", "ops", "/", "admin"]);
        access(&data_dir, &["token", "new", "ops"]);
        access(&data_dir, &["require"]);
        for node in &mut cluster.nodes {
            eventually("access is required", || (node.http("GET", "/v1/locks", "")?.0 == 401).then_some(()));
            node.token = Some(token.trim().to_owned());
        }
        self.file.get_or_init(|| {
            let file = self.folder.path().join("token");
            std::fs::write(&file, &token).unwrap();
            file
        });
    }
}

/// `lowkey access` by the socket of a node.
fn access(data_dir: &Path, words: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lowkey"));
    let output = command.arg("access").args(words).arg("--data-dir").arg(data_dir).output().unwrap();
    assert!(output.status.success(), "lowkey access {words:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}
