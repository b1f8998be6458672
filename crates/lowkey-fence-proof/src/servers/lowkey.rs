//! The lock service itself: three nodes, as `lowkey dev` starts them.

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use lowkey_client::Client;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::Failure;

/// A cluster that runs until this is dropped.
pub struct Lowkey {
    /// The gRPC URLs of its nodes.
    pub endpoints: Vec<String>,
    child: Child,
}

impl Drop for Lowkey {
    fn drop(&mut self) {
        // It removes its folder when it is asked to end.
        let _ = kill(Pid::from_raw(self.child.id().cast_signed()), Signal::SIGTERM);
        let _ = self.child.wait();
    }
}

impl Lowkey {
    /// A client of the cluster.
    pub async fn client(&self) -> Result<Client, Failure> {
        Ok(Client::connect(self.endpoints.clone()).await?)
    }
}

/// Starts a cluster of three nodes.
pub fn lowkey() -> Result<Lowkey, Failure> {
    let mut child = Command::new(program()?)
        .args(["dev", "--json"])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut line = String::new();
    let output = child.stdout.take().ok_or("lowkey dev has no output")?;
    BufReader::new(output).read_line(&mut line)?;
    let mut cluster = Lowkey { endpoints: Vec::new(), child };
    let said: serde_json::Value =
        serde_json::from_str(&line).map_err(|error| format!("{line:?}: {error}"))?;
    let endpoints = said["endpoints"].as_array().into_iter().flatten();
    cluster.endpoints = endpoints.filter_map(|url| url.as_str().map(str::to_owned)).collect();
    Ok(cluster)
}

/// The binary of this workspace, built if need be; or the one that `LOWKEY_BIN` names.
fn program() -> Result<PathBuf, Failure> {
    if let Some(named) = std::env::var_os("LOWKEY_BIN") {
        return Ok(named.into());
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let built = Command::new(cargo)
        .args(["build", "--quiet", "-p", "lowkey-cli", "--message-format=json"])
        .current_dir(root)
        .stderr(Stdio::inherit())
        .output()?;
    let lines = built.stdout.split(|byte| *byte == b'\n');
    let mut messages = lines.filter_map(|line| serde_json::from_slice::<serde_json::Value>(line).ok());
    let found = messages.find_map(|message| message["executable"].as_str().map(PathBuf::from));
    found.ok_or_else(|| "cargo built no binary of lowkey-cli".into())
}
