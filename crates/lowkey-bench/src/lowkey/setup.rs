//! How the nodes that are started are set up, and how clients of such nodes show who they are.

use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use lowkey_client::Client;

use super::credentials::Credentials;
use super::from_sdk;
use crate::process::{Cluster, forget_settings};
use crate::system::BenchProblem;

/// How nodes are set up that are started here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Setup {
    /// As they come: their ports are not encrypted, everybody may do everything, and they record what ends.
    Plain,
    /// Their ports are encrypted, and want certificates of clients.
    Tls,
    /// The same, and access is required: clients also show the token of a principal that may do this.
    Access,
    /// As they come, but they record nothing.
    NoAudit,
}

/// What the principal is called, and the client in its certificate. All names of locks are below it.
const CLIENT: &str = "bench";
/// The folder of the certificates in that of a cluster.
const CERTIFICATES: &str = "certs";
const TOKEN: &str = "token";

impl Setup {
    /// What follows the name of a system that is set up like this.
    pub(crate) fn suffix(self) -> &'static str {
        match self {
            Self::Plain => "",
            Self::Tls => " tls",
            Self::Access => " access",
            Self::NoAudit => " no audit",
        }
    }

    /// What begins with a name that this setup ends, without the end of it.
    pub(crate) fn bare_name(self, name: &str) -> Option<&str> {
        name.strip_suffix(self.suffix())
    }

    pub(super) fn has_tls(self) -> bool {
        matches!(self, Self::Tls | Self::Access)
    }

    /// What a client needs for nodes that were just started: access is not required yet.
    pub(super) fn credentials(self, cluster: &Path) -> Credentials {
        if !self.has_tls() {
            return Credentials::default();
        }
        let file = |name: &str| certificate(cluster, name);
        let identity = Some((file(CLIENT), file(&format!("{CLIENT}-key"))));
        Credentials { ca: Some(file("ca")), identity, token_file: None }
    }

    /// Makes what the nodes will read.
    pub(super) fn prepare(self, program: &Path, cluster: &Path) -> Result<(), BenchProblem> {
        if !self.has_tls() {
            return Ok(());
        }
        for words in [&["ca"][..], &["node"], &["client", CLIENT]] {
            let mut command = Command::new(program);
            command.arg("cert").args(words).arg("--dir").arg(cluster.join(CERTIFICATES));
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

    /// Tells a node how it is set up.
    pub(super) fn arm(self, node: &mut Command, cluster: &Path) {
        if self.has_tls() {
            node.arg("--tls-cert").arg(certificate(cluster, "node"));
            node.arg("--tls-key").arg(certificate(cluster, "node-key"));
            node.arg("--tls-client-ca").arg(certificate(cluster, "ca"));
        }
        if self == Self::NoAudit {
            node.args(["--audit", "off"]);
        }
    }

    /// Makes a principal, and has nobody without a token do anything any more. All nodes have joined: once access is
    /// required, that would need invitations.
    pub(super) async fn require_access(self, cluster: &Cluster) -> Result<Credentials, BenchProblem> {
        let folder = cluster.folder();
        let admin = Client::builder([format!("unix://{}", folder.join("node-1/admin.sock").display())]);
        let admin = admin.connect().await.map_err(|error| from_sdk(&error))?;
        let made = async {
            admin.add_principal(CLIENT, [""; 0]).await?;
            admin.grant_access(CLIENT, CLIENT, ["acquire", "read", "watch"]).await?;
            // Nothing can be required while there is no admin.
            admin.grant_access(CLIENT, "/", ["admin"]).await?;
            let made = admin.new_token(CLIENT).await?;
            admin.require_access(true).await?;
            Ok(made.token)
        };
        let token = made.await.map_err(|error| from_sdk(&error))?;
        let path = folder.join(TOKEN);
        write_secret(&path, &token).map_err(|error| {
            BenchProblem::failed(format!("{} cannot be written: {error}", path.display()))
        })?;
        Ok(Credentials { token_file: Some(path), ..self.credentials(folder) })
    }
}

fn write_secret(path: &Path, secret: &str) -> std::io::Result<()> {
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create_new(true).mode(0o600).open(path)?.write_all(secret.as_bytes())
}

fn certificate(cluster: &Path, name: &str) -> PathBuf {
    cluster.join(CERTIFICATES).join(format!("{name}.pem"))
}
