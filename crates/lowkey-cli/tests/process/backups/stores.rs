//! Places for backups: a folder of this machine, and an S3 server that is not ours.

use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use crate::harness::{eventually, free_port, http, skip};

/// Bucket, key and secret of the S3 server.
const NAME: &str = "lowkey";

/// A place for backups, which is gone with this.
pub(crate) struct Place {
    pub(crate) url: String,
    /// What a process must know to use it.
    pub(crate) environment: Vec<(&'static str, String)>,
    /// Where the files are in the end.
    pub(crate) folder: PathBuf,
    /// Where the S3 server listens.
    pub(crate) port: u16,
    server: Option<Child>,
    _folder: TempDir,
}

impl Place {
    /// A folder of this machine.
    pub(crate) fn folder() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("backups");
        let url = format!("file://{}", path.display());
        Self { url, environment: Vec::new(), folder: path, port: 0, server: None, _folder: folder }
    }

    /// An S3 server with an empty bucket; nothing where none is installed.
    pub(crate) fn s3() -> Option<Self> {
        let built = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/servers"));
        let folders =
            std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()).collect::<Vec<_>>();
        let program = [built]
            .into_iter()
            .chain(folders)
            .map(|folder| folder.join("versitygw"))
            .find(|path| path.exists());
        let Some(program) = program else {
            skip("backups in S3: versitygw is not installed; .ci/servers installs it");
            return None;
        };
        let folder = tempfile::tempdir().unwrap();
        let bucket = folder.path().join("data").join(NAME);
        std::fs::create_dir_all(&bucket).unwrap();
        let port = free_port();
        let server = Command::new(program)
            .current_dir(folder.path())
            .env("ROOT_ACCESS_KEY", NAME)
            .env("ROOT_SECRET_KEY", NAME)
            .args(["--quiet", "--port", &format!("127.0.0.1:{port}"), "posix", "data"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let place = Self {
            url: format!("s3://{NAME}/backups"),
            environment: environment(port),
            folder: bucket.join("backups"),
            port,
            server: Some(server),
            _folder: folder,
        };
        // Any answer will do: it refuses who does not sign.
        eventually("the S3 server answers", || http(port, "GET", "/", ""));
        Some(place)
    }

    /// The same S3 server, behind another port.
    pub(crate) fn behind(&self, port: u16) -> Self {
        Self {
            url: self.url.clone(),
            environment: environment(port),
            folder: self.folder.clone(),
            port,
            server: None,
            _folder: tempfile::tempdir().unwrap(),
        }
    }

    /// Both, as far as there are.
    pub(crate) fn all() -> Vec<Self> {
        [Some(Self::folder()), Self::s3()].into_iter().flatten().collect()
    }

    /// The command that gives another one what it must know.
    pub(crate) fn wrapper(&self, more: &[(&str, &str)]) -> Vec<String> {
        let known = self.environment.iter().map(|(name, value)| format!("{name}={value}"));
        let more = more.iter().map(|(name, value)| format!("{name}={value}"));
        std::iter::once("env".to_owned()).chain(known).chain(more).collect()
    }
}

/// What a process must know to use the S3 server on a port.
pub(crate) fn environment(port: u16) -> Vec<(&'static str, String)> {
    vec![
        ("AWS_ACCESS_KEY_ID", NAME.to_owned()),
        ("AWS_SECRET_ACCESS_KEY", NAME.to_owned()),
        ("AWS_REGION", "us-east-1".to_owned()),
        ("AWS_ENDPOINT", format!("http://127.0.0.1:{port}")),
        ("AWS_ALLOW_HTTP", "true".to_owned()),
    ]
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(mut server) = self.server.take() {
            let _ = server.kill();
            let _ = server.wait();
        }
    }
}
