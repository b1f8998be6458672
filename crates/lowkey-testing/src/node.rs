//! One node: a process, its ports, and the proxies in front of them.

use std::fs::File;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::error::Error;
use crate::http;
use crate::net::{Dialler, Net};

/// The three ports of a node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ports {
    pub(crate) raft: u16,
    pub(crate) grpc: u16,
    pub(crate) http: u16,
}

#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) number: usize,
    pub(crate) ports: Ports,
    /// What others are told, and where its proxies are.
    pub(crate) proxied: Ports,
    pub(crate) log: PathBuf,
    program: PathBuf,
    arguments: Vec<String>,
    child: Option<Child>,
    is_paused: bool,
}

impl Node {
    pub(crate) fn new(
        program: &Path,
        folder: &Path,
        number: usize,
        join: Option<String>,
        flags: &[String],
        net: &Arc<Net>,
    ) -> Result<Self, Error> {
        let ports = Ports { raft: free_port()?, grpc: free_port()?, http: free_port()? };
        let proxied = Ports {
            raft: net.serve(number, ports.raft, Dialler::Nodes)?,
            grpc: net.serve(number, ports.grpc, Dialler::Clients)?,
            http: net.serve(number, ports.http, Dialler::Clients)?,
        };
        let name = format!("node-{number}");
        let data = folder.join(&name);
        let mut arguments = vec!["server".to_owned(), "--node-id".to_owned(), name.clone()];
        arguments.extend(["--data-dir".to_owned(), data.display().to_string()]);
        for (flag, own, told) in [
            ("raft", ports.raft, proxied.raft),
            ("grpc", ports.grpc, proxied.grpc),
            ("http", ports.http, proxied.http),
        ] {
            arguments.extend([format!("--{flag}-addr"), format!("127.0.0.1:{own}")]);
            arguments.extend([format!("--advertise-{flag}-addr"), format!("127.0.0.1:{told}")]);
        }
        match join {
            Some(address) => arguments.extend(["--join".to_owned(), address]),
            None => arguments.push("--bootstrap".to_owned()),
        }
        arguments.extend_from_slice(flags);
        let log = folder.join(format!("{name}.log"));
        let program = program.to_owned();
        Ok(Self { number, ports, proxied, log, program, arguments, child: None, is_paused: false })
    }

    pub(crate) fn grpc_address(&self) -> String {
        format!("127.0.0.1:{}", self.ports.grpc)
    }

    /// Starts the process, always with the very same flags. Gives its id.
    pub(crate) fn start(&mut self) -> Result<u32, Error> {
        if self.child.is_some() {
            return Err(Error::new(format!("node {} runs already", self.number)));
        }
        let cannot = |error| Error::new(format!("{} cannot be started: {error}", self.program.display()));
        let log = File::options().create(true).append(true).open(&self.log).map_err(cannot)?;
        let mut command = Command::new(&self.program);
        // What a developer has set for commands is not meant for these nodes.
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("LOWKEY_"))
        {
            command.env_remove(name);
        }
        command.args(&self.arguments).stdin(Stdio::null());
        let errors = log.try_clone().map_err(cannot)?;
        let child = command.stdout(log).stderr(errors).spawn().map_err(cannot)?;
        let id = child.id();
        (self.child, self.is_paused) = (Some(child), false);
        Ok(id)
    }

    /// True if it runs, and is not paused.
    pub(crate) fn is_awake(&self) -> bool {
        self.child.is_some() && !self.is_paused
    }

    pub(crate) fn is_ready(&self) -> bool {
        http::ask(self.ports.http, "GET", "/readyz", "").is_some_and(|(status, _)| status == 200)
    }

    pub(crate) fn status(&self) -> Option<Value> {
        let (_, text) = http::ask(self.ports.http, "GET", "/v1/status", "")?;
        serde_json::from_str(&text).ok()
    }

    pub(crate) fn kill(&mut self) -> Result<(), Error> {
        let mut child = self.child.take().ok_or_else(|| self.does_not_run())?;
        self.is_paused = false;
        let killed = child.kill().and_then(|()| child.wait());
        killed
            .map(drop)
            .map_err(|error| Error::new(format!("node {} cannot be killed: {error}", self.number)))
    }

    pub(crate) fn pause(&mut self) -> Result<(), Error> {
        self.signal(Signal::STOP)?;
        self.is_paused = true;
        Ok(())
    }

    pub(crate) fn resume(&mut self) -> Result<(), Error> {
        self.signal(Signal::CONT)?;
        self.is_paused = false;
        Ok(())
    }

    fn signal(&self, signal: Signal) -> Result<(), Error> {
        let child = self.child.as_ref().ok_or_else(|| self.does_not_run())?;
        let pid =
            i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or_else(|| self.does_not_run())?;
        kill_process(pid, signal).map_err(|error| Error::new(format!("node {}: {error}", self.number)))
    }

    fn does_not_run(&self) -> Error {
        Error::new(format!("node {} does not run", self.number))
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // It is an error only if it has ended already.
        let _ = self.kill();
    }
}

/// A free port below the range that the system gives to outgoing connections, so that it is still free when
/// a node comes back.
fn free_port() -> Result<u16, Error> {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    const FIRST: u16 = 11_000;
    const COUNT: u16 = 20_000;
    for _ in 0..COUNT {
        let step = NEXT.fetch_add(1, Ordering::Relaxed);
        // Processes that run side by side begin at different places.
        let start = u16::try_from(std::process::id() % 1_000).unwrap_or_default() * 20;
        let port = FIRST + start.wrapping_add(step) % COUNT;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return Ok(port);
        }
    }
    Err(Error::new("no port is free on this machine"))
}

/// The program `lowkey`: named by the environment, in cargo's target folder, or in the path.
pub(crate) fn find_program() -> Result<PathBuf, Error> {
    if let Some(named) = std::env::var_os("LOWKEY_BIN") {
        let named = PathBuf::from(named);
        let why = format!("LOWKEY_BIN names {}, and there is no such file", named.display());
        return if named.is_file() { Ok(named) } else { Err(Error::missing(why)) };
    }
    // A test is in `target/debug/deps`, an example in `target/debug/examples`.
    let own = std::env::current_exe().ok();
    let built = own.as_deref().and_then(|test| Some(test.parent()?.parent()?.join("lowkey")));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let in_path = std::env::split_paths(&path).map(|folder| folder.join("lowkey"));
    built.into_iter().chain(in_path).find(|program| program.is_file()).ok_or_else(|| {
        Error::missing(
            "there is no program lowkey: set LOWKEY_BIN to it, build it with cargo build -p lowkey-cli, or put it in \
             the path",
        )
    })
}
