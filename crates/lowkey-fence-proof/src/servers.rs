//! Real servers for one experiment: each in a folder of its own, as an unprivileged user, gone when dropped.

mod databases;
mod lowkey;
mod objects;

use std::fmt;
use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, Uid, User};
use tempfile::TempDir;

use crate::Failure;

pub use databases::{mariadb, postgres, redis};
pub use lowkey::{Lowkey, lowkey};
pub use objects::{BUCKET, choose_crypto, s3};

/// How long a server may take to start on a busy machine.
const START_WAIT: Duration = Duration::from_secs(120);
/// How long it may take to end.
const STOP_WAIT: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(50);

/// A program that is not installed.
#[derive(Debug)]
pub struct Missing(pub &'static str);

/// Whether an experiment is to be skipped, for the lack of a server: it is told, and then nothing is done. Where
/// nothing may be skipped it is a failure like any other.
pub fn may_skip(error: &Failure) -> bool {
    let must = std::env::var("LOWKEY_REQUIRE_ALL").is_ok_and(|value| value == "1");
    let may = error.is::<Missing>() && !must;
    if may {
        // Past `println!`, of which nobody sees anything in a test that passes.
        let _ = std::io::stderr().write_all(format!("skipped: {error}\n").as_bytes());
    }
    may
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} is not installed; .ci/servers installs it", self.0)
    }
}

impl std::error::Error for Missing {}

/// A server that runs.
pub struct Server {
    /// Where clients find it: the path of a socket, or a URL.
    pub address: String,
    child: Child,
    /// How it is asked to end.
    end: Signal,
    folder: TempDir,
}

impl Server {
    /// The folder that is its own.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Waits until this succeeds, and fails with what the server said if it ends instead.
    pub async fn ready<T, F: Future<Output = Result<T, Failure>>>(
        &mut self,
        mut attempt: impl FnMut() -> F,
    ) -> Result<T, Failure> {
        let started = Instant::now();
        loop {
            let error = match attempt().await {
                Ok(done) => return Ok(done),
                Err(error) => error,
            };
            let has_ended = self.child.try_wait()?.is_some();
            if has_ended || started.elapsed() > START_WAIT {
                let said = fs::read_to_string(self.folder.path().join("log")).unwrap_or_default();
                return Err(format!("the server did not start: {error}\n{said}").into());
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let id = Pid::from_raw(self.child.id().cast_signed());
        let asked = Instant::now();
        let _ = kill(id, self.end);
        while asked.elapsed() < STOP_WAIT {
            if !matches!(self.child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(PAUSE);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A folder that a server may write to.
fn folder() -> Result<TempDir, Failure> {
    let folder = tempfile::Builder::new().prefix("lowkey-proof-").tempdir()?;
    if let Some((user, group)) = unprivileged() {
        chown(folder.path(), Some(user), Some(group))?;
    }
    Ok(folder)
}

/// Databases refuse to run as root: then somebody else does.
fn unprivileged() -> Option<(u32, u32)> {
    let nobody = User::from_name("nobody").ok().flatten();
    Uid::effective()
        .is_root()
        .then(|| nobody.map_or((65_534, 65_534), |user| (user.uid.as_raw(), user.gid.as_raw())))
}

/// A command that runs as the owner of the folder, in it, with its output in the file `log` there.
fn command(program: &Path, folder: &TempDir) -> Result<Command, Failure> {
    let log = File::options().create(true).append(true).open(folder.path().join("log"))?;
    let mut command = Command::new(program);
    command.current_dir(folder.path()).env("HOME", folder.path()).env("LC_ALL", "C.UTF-8");
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    if let Some((user, group)) = unprivileged() {
        command.uid(user).gid(group);
    }
    Ok(command)
}

/// Runs a command to its end.
fn carry_out(mut command: Command, folder: &TempDir) -> Result<(), Failure> {
    let status = command.status()?;
    if status.success() {
        return Ok(());
    }
    let said = fs::read_to_string(folder.path().join("log")).unwrap_or_default();
    Err(format!("{command:?} ended with {status}\n{said}").into())
}

fn start(mut command: Command, folder: TempDir, address: String, end: Signal) -> Result<Server, Failure> {
    Ok(Server { address, child: command.spawn()?, end, folder })
}

/// A program in the path, or in one of these folders.
fn find(program: &'static str, folders: &[PathBuf]) -> Result<PathBuf, Missing> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places = folders.iter().cloned().chain(std::env::split_paths(&path));
    places.map(|folder| folder.join(program)).find(|path| path.is_file()).ok_or(Missing(program))
}

/// A port that was free a moment ago.
fn free_port() -> Result<u16, Failure> {
    Ok(std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}
