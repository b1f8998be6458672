//! The commands as people type them, against a node or a cluster.

use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::thread::JoinHandle;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::harness::{Cluster, Node, eventually};

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

    /// A command that is not started yet.
    pub(crate) fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lowkey"));
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
        assert_eq!((done.code, done.stderr.as_str()), (Some(0), ""), "{words:?}: {done:?}");
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
    stdout: Option<JoinHandle<String>>,
    stderr: Option<JoinHandle<String>>,
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
        assert_eq!(self.stderr.lines().count(), 1, "one line says why: {self:?}");
        assert!(self.stderr.starts_with("lowkey: "), "{self:?}");
        self.stderr.trim_end()
    }
}

impl Running {
    pub(crate) fn start(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let stdout = child.stdout.take().map(read);
        let stderr = child.stderr.take().map(read);
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
        let text = |reading: Option<JoinHandle<String>>| reading.unwrap().join().unwrap();
        Done { code: status.code(), stdout: text(self.stdout.take()), stderr: text(self.stderr.take()) }
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

fn read(mut pipe: impl Read + Send + 'static) -> JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        pipe.read_to_end(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

/// Whether a process lives: one that only waits to be reaped does not.
pub(crate) fn lives(pid: &str) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.trim())).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, state)| !state.starts_with('Z'))
}
