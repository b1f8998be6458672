//! A terminal: a folder, an environment, and a shell that is given what a reader would type.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::process::{Signal, kill_process_group};
use tempfile::TempDir;

use crate::cli::{Done, Running, with_default_signals};
use crate::harness::{Ports, eventually, http};

/// Which `curl` answers to that name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Curl {
    /// Ours, which every machine has.
    Ours,
    /// The real one, where it is installed.
    Installed,
}

impl Curl {
    /// All that this machine has.
    pub(crate) fn all() -> Vec<Self> {
        let look = Command::new("sh").args(["-c", "command -v curl"]).stdout(Stdio::null()).status();
        let is_installed = look.unwrap().success();
        if is_installed { vec![Self::Ours, Self::Installed] } else { vec![Self::Ours] }
    }

    /// Ours, unless there is a real one.
    pub(crate) fn best() -> Self {
        Self::all().pop().unwrap()
    }
}

/// Where `lowkey` is the binary under test, and `localhost:8080` may be somewhere else.
pub(crate) struct Terminal {
    folder: TempDir,
    environment: Vec<(&'static str, String)>,
}

impl Terminal {
    pub(crate) fn new(curl: Curl) -> Self {
        let terminal = Self { folder: tempfile::tempdir().unwrap(), environment: Vec::new() };
        for folder in ["bin", "work", "tmp"] {
            fs::create_dir(terminal.path(folder)).unwrap();
        }
        symlink(env!("CARGO_BIN_EXE_lowkey"), terminal.path("bin/lowkey")).unwrap();
        if curl == Curl::Ours {
            terminal.write_program("bin/curl", include_str!("curl.sh"));
        }
        fs::write(terminal.path(".curlrc"), "silent\nshow-error\nnoproxy = \"*\"\n").unwrap();
        terminal
    }

    /// A place in the terminal's folder: commands are typed in `work`.
    pub(crate) fn path(&self, inside: &str) -> PathBuf {
        self.folder.path().join(inside)
    }

    pub(crate) fn write_program(&self, inside: &str, text: &str) {
        fs::write(self.path(inside), text).unwrap();
        fs::set_permissions(self.path(inside), Permissions::from_mode(0o755)).unwrap();
    }

    pub(crate) fn set(&mut self, variable: &'static str, value: impl Into<String>) {
        self.environment.push((variable, value.into()));
    }

    /// Leads curl elsewhere when it wants to go to this port of `localhost`.
    pub(crate) fn redirect(&self, port: u16, to: u16) {
        let settings = fs::read_to_string(self.path(".curlrc")).unwrap();
        let redirected = format!("{settings}connect-to = \"localhost:{port}:127.0.0.1:{to}\"\n");
        fs::write(self.path(".curlrc"), redirected).unwrap();
    }

    /// Types something that may go on for long.
    pub(crate) fn start(&self, text: &str) -> Job {
        let path = std::env::var("PATH").unwrap();
        // Ctrl-C ends what was typed, and not the shell: its status is that of what was typed.
        let script = format!("trap : INT\n{text}");
        let mut shell = with_default_signals("sh");
        shell
            .args(["-ec", &script])
            .current_dir(self.path("work"))
            .env_remove("LOWKEY_ENDPOINTS")
            .env("PATH", format!("{}:{path}", self.path("bin").display()))
            .env("CURL_HOME", self.folder.path())
            .env("TMPDIR", self.path("tmp"))
            .envs(self.environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .process_group(0);
        Job { typed: text.to_owned(), running: Some(Running::start(&mut shell)) }
    }

    /// Types something that ends by itself.
    pub(crate) fn run(&self, text: &str) -> Done {
        self.start(text).done()
    }

    /// Types something that ends by itself, and well; gives what it printed.
    pub(crate) fn ok(&self, text: &str) -> String {
        let done = self.run(text);
        assert_eq!((done.code, done.said().len()), (Some(0), 0), "{text}: {done:?}");
        done.stdout
    }

    /// Waits until somebody holds a lock.
    pub(crate) fn wait_until_held(&self, lock: &str) {
        eventually(&format!("{lock} is held"), || {
            self.ok(&format!("lowkey get {lock}")).starts_with("holder\t").then_some(())
        });
    }
}

/// What was typed, while it goes on. All that it started ends with it.
pub(crate) struct Job {
    typed: String,
    /// Nothing once it was waited for.
    running: Option<Running>,
}

impl Job {
    fn running(&self) -> &Running {
        self.running.as_ref().expect("nobody waited for it yet")
    }

    /// What it has printed so far.
    pub(crate) fn printed(&self) -> String {
        self.running().printed()
    }

    /// Waits until it has printed something like this; `act` is done meanwhile, again and again.
    pub(crate) fn wait_until_printed(&self, part: &str, mut act: impl FnMut()) -> String {
        eventually(&format!("{} prints {part}", self.typed), || {
            act();
            Some(self.printed()).filter(|printed| printed.contains(part))
        })
    }

    pub(crate) fn done(mut self) -> Done {
        let typed = self.typed.clone();
        let running = self.running.as_mut().unwrap();
        eventually(&format!("it ends: {typed}"), || running.has_ended().then_some(()));
        self.running.take().unwrap().done()
    }

    /// Ends it as a person does who has seen enough.
    pub(crate) fn ctrl_c(self) -> Done {
        kill_process_group(self.running().pid(), Signal::INT).unwrap();
        self.done()
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        if let Some(running) = &self.running {
            let _ = kill_process_group(running.pid(), Signal::KILL);
            if std::thread::panicking() {
                eprintln!("--- {}\n{}{}", self.typed, running.printed(), running.complained());
            }
        }
    }
}

/// A text with some of its parts replaced: addresses of a page by those of a test, say.
pub(crate) fn replaced(text: &str, parts: &[(String, String)]) -> String {
    parts.iter().fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
}

/// A path as a shell takes it.
pub(crate) fn shown(path: &Path) -> String {
    path.to_str().unwrap().to_owned()
}

/// Has nodes that are started here listen at these ports, unless a flag says otherwise.
pub(crate) fn listen_elsewhere(terminal: &mut Terminal, ports: Ports) {
    terminal.set("LOWKEY_RAFT_ADDR", format!("127.0.0.1:{}", ports.raft));
    terminal.set("LOWKEY_GRPC_ADDR", format!("127.0.0.1:{}", ports.grpc));
    terminal.set("LOWKEY_HTTP_ADDR", format!("127.0.0.1:{}", ports.http));
}

/// Waits until the node at these ports serves.
pub(crate) fn wait_ready(ports: Ports) {
    eventually("the node is ready", || (http(ports.http, "GET", "/readyz", "")?.0 == 200).then_some(()));
}
