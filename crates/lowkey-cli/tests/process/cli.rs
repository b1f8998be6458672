//! The commands as people type them, against a node or a cluster.

mod bench;
mod broken_output;
mod commands;
mod ease;
mod guarding;
mod running;

use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::harness::{Cluster, Node, eventually};

/// The binary.
pub(crate) fn lowkey() -> Command {
    with_default_signals(env!("CARGO_BIN_EXE_lowkey"))
}

/// A program with every signal as it is by default: tests that run in the background have been told to
/// ignore interrupts, and would pass that on.
pub(crate) fn with_default_signals(program: &str) -> Command {
    let mut command = Command::new("env");
    command.args(["--default-signal", program]);
    command
}

/// Where commands find the service.
#[derive(Clone)]
pub(crate) struct Service {
    endpoints: String,
}

impl Service {
    pub(crate) fn of(nodes: &[Node]) -> Self {
        let urls: Vec<String> =
            nodes.iter().map(|node| format!("http://127.0.0.1:{}", node.ports.grpc)).collect();
        Self { endpoints: urls.join(",") }
    }

    pub(crate) fn of_cluster(cluster: &Cluster) -> Self {
        Self::of(&cluster.nodes)
    }

    pub(crate) fn at(endpoints: impl Into<String>) -> Self {
        Self { endpoints: endpoints.into() }
    }

    pub(crate) fn endpoints(&self) -> &str {
        &self.endpoints
    }

    /// A command that is not started yet.
    pub(crate) fn command(&self, words: &[&str]) -> Command {
        let mut command = lowkey();
        command.args(words).env("LOWKEY_ENDPOINTS", &self.endpoints).stdin(Stdio::null());
        command
    }

    /// Starts a command, which goes on.
    pub(crate) fn start(&self, words: &[&str]) -> Running {
        Running::start(&mut self.command(words))
    }

    /// Runs a command to its end.
    pub(crate) fn run(&self, words: &[&str]) -> Done {
        self.start(words).done()
    }

    /// Runs a command that must succeed; gives what it printed.
    pub(crate) fn ok(&self, words: &[&str]) -> String {
        let done = self.run(words);
        assert_eq!((done.code, done.said().len()), (Some(0), 0), "{words:?}: {done:?}");
        done.stdout
    }

    /// The same with `--json`.
    pub(crate) fn json(&self, words: &[&str]) -> Value {
        let words: Vec<&str> = words.iter().copied().chain(["--json"]).collect();
        let text = self.ok(&words);
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{words:?}: {error}: {text}"))
    }

    /// Waits until so many wait for a lock.
    pub(crate) fn wait_for_queue(&self, lock: &str, waiters: u64) {
        eventually(&format!("{waiters} wait for {lock}"), || {
            (self.json(&["get", lock])["waiterCount"] == waiters).then_some(())
        });
    }

    /// Waits until somebody holds a lock.
    pub(crate) fn wait_until_held(&self, lock: &str) {
        eventually(&format!("{lock} is held"), || {
            (self.json(&["get", lock])["holderCount"] == 1).then_some(())
        });
    }

    /// Waits until nobody holds a lock.
    pub(crate) fn wait_for_free(&self, lock: &str) {
        eventually(&format!("{lock} is free"), || {
            (self.json(&["get", lock])["holderCount"] == 0).then_some(())
        });
    }
}

/// A command that runs.
pub(crate) struct Running {
    pub(crate) child: Child,
    stdout: Reading,
    stderr: Reading,
}

/// What is read from a pipe, while it is.
struct Reading {
    so_far: Arc<Mutex<Vec<u8>>>,
    thread: Option<JoinHandle<()>>,
}

/// How it ended.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Done {
    /// The one line that says why it failed.
    pub(crate) fn complaint(&self, code: i32) -> &str {
        assert_eq!(self.code, Some(code), "{self:?}");
        let [line] = self.said()[..] else { panic!("one line says why: {self:?}") };
        assert!(line.starts_with("lowkey: "), "{self:?}");
        line
    }

    /// What it said on standard error, but for that it takes long: on a machine with much to do anything may.
    pub(crate) fn said(&self) -> Vec<&str> {
        self.stderr.lines().filter(|line| !line.starts_with("lowkey: still trying to ")).collect()
    }
}

impl Running {
    pub(crate) fn start(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let stdout = Reading::start(child.stdout.take().unwrap());
        let stderr = Reading::start(child.stderr.take().unwrap());
        Self { child, stdout, stderr }
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(self.pid(), signal).unwrap();
    }

    pub(crate) fn has_ended(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Waits for its end.
    pub(crate) fn done(mut self) -> Done {
        let status = eventually("the command ends", || self.child.try_wait().unwrap());
        Done { code: status.code(), stdout: self.stdout.finish(), stderr: self.stderr.finish() }
    }

    /// What it has printed so far.
    pub(crate) fn printed(&self) -> String {
        self.stdout.text()
    }

    /// What it has written to standard error so far.
    pub(crate) fn complained(&self) -> String {
        self.stderr.text()
    }

    /// Waits until it has printed so many lines.
    pub(crate) fn wait_for_lines(&self, count: usize) {
        eventually(&format!("{count} lines are printed"), || {
            (self.stdout.text().lines().count() >= count).then_some(())
        });
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.has_ended() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

impl Reading {
    fn start(mut pipe: impl Read + Send + 'static) -> Self {
        let so_far = Arc::new(Mutex::new(Vec::new()));
        let written = Arc::clone(&so_far);
        let read = move || {
            let mut buffer = [0; 4096];
            loop {
                match pipe.read(&mut buffer).unwrap() {
                    0 => return,
                    length => written.lock().unwrap().extend_from_slice(&buffer[..length]),
                }
            }
        };
        Self { so_far, thread: Some(std::thread::spawn(read)) }
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.so_far.lock().unwrap()).into_owned()
    }

    fn finish(&mut self) -> String {
        self.thread.take().unwrap().join().unwrap();
        self.text()
    }
}

/// Whether a process lives: one that only waits to be reaped does not.
pub(crate) fn lives(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, state)| !state.starts_with('Z'))
}
