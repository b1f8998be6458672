//! Processes that are started to be measured. They end with their [`Cluster`].

use std::fs::{self, File};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::system::BenchProblem;

/// How long a process that is asked to end may take.
const FAREWELL: Duration = Duration::from_secs(5);

/// How processes are started, and where they keep their data.
#[derive(Clone)]
pub struct Starter {
    /// Makes the command that runs a program: in such a way, for example, that it does not outlive this process.
    pub command: Arc<dyn Fn(&Path) -> Command + Send + Sync>,
    /// Where folders for their data are made.
    pub folder: PathBuf,
}

/// The processes of one system, and their folder. Both are gone when this is ended, or dropped.
pub struct Cluster {
    owned: Mutex<Owned>,
    /// Where the processes keep their data; nothing if the system was running already.
    folder: Option<PathBuf>,
    /// Where they listen for clients.
    addresses: Vec<String>,
}

/// Invariant: without a folder there are no processes, and none is started any more.
#[derive(Default)]
struct Owned {
    processes: Vec<Process>,
    folder: Option<TempDir>,
}

struct Process {
    name: String,
    command: Command,
    child: Option<Child>,
    log: PathBuf,
    /// How it is asked to end at the end of all, if it has to put something away.
    farewell: Option<Signal>,
}

impl Process {
    fn start(&mut self) -> Result<(), BenchProblem> {
        let cannot = |error| BenchProblem::failed(format!("cannot start {}: {error}", self.name));
        let log = File::options().create(true).append(true).open(&self.log).map_err(cannot)?;
        let output = log.try_clone().map_err(cannot)?;
        self.command.stdin(Stdio::null()).stdout(output).stderr(log);
        // In a group of its own: a ctrl-C is for us, and we end it.
        self.command.process_group(0);
        self.child = Some(self.command.spawn().map_err(cannot)?);
        Ok(())
    }

    fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            // It may have ended by itself.
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Ends it for good.
    fn end(&mut self) {
        if let (Some(signal), Some(child)) = (self.farewell, &mut self.child)
            && kill_process(Pid::from_child(child), signal).is_ok()
        {
            let deadline = Instant::now() + FAREWELL;
            while matches!(child.try_wait(), Ok(None)) && Instant::now() < deadline {
                thread::sleep(Duration::from_millis(5));
            }
        }
        self.kill();
    }

    fn last_words(&self) -> String {
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        log.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it said nothing").to_owned()
    }
}

impl Cluster {
    /// A folder, and no processes yet.
    pub fn new(starter: &Starter, name: &str) -> Result<Self, BenchProblem> {
        let prefix = format!("lowkey-bench-{name}-");
        let folder =
            tempfile::Builder::new().prefix(&prefix).tempdir_in(&starter.folder).map_err(|error| {
                BenchProblem::failed(format!("cannot make a folder in {}: {error}", starter.folder.display()))
            })?;
        let path = folder.path().to_owned();
        let owned = Mutex::new(Owned { processes: Vec::new(), folder: Some(folder) });
        Ok(Self { owned, folder: Some(path), addresses: Vec::new() })
    }

    /// A system that is running already at these addresses.
    pub fn running(addresses: Vec<String>) -> Self {
        Self { owned: Mutex::default(), folder: None, addresses }
    }

    /// The system was running before, and goes on after.
    pub fn is_foreign(&self) -> bool {
        self.folder.is_none()
    }

    /// Where the processes keep their data.
    pub fn folder(&self) -> &Path {
        self.folder.as_deref().unwrap_or(Path::new("."))
    }

    /// Where to reach the nodes.
    pub fn addresses(&self) -> &[String] {
        &self.addresses
    }

    /// Starts one more process, which is reached at this address.
    pub fn add(&mut self, name: &str, address: String, command: Command) -> Result<(), BenchProblem> {
        let log = self.folder().join(format!("{name}.log"));
        let mut process = Process { name: name.to_owned(), command, child: None, log, farewell: None };
        process.start()?;
        self.owned().processes.push(process);
        self.addresses.push(address);
        Ok(())
    }

    /// At the end of all a process is sent this signal, and killed only if that does not help.
    #[cfg_attr(not(feature = "rivals"), expect(dead_code, reason = "lowkey needs no farewell"))]
    pub(crate) fn ask_to_end(&self, name: &str, signal: Signal) {
        let mut owned = self.owned();
        let processes = owned.processes.iter_mut().filter(|process| process.name == name);
        processes.for_each(|process| process.farewell = Some(signal));
    }

    /// Kills a process, as a power failure would.
    pub fn kill(&self, name: &str) {
        let mut owned = self.owned();
        owned.processes.iter_mut().filter(|process| process.name == name).for_each(Process::kill);
    }

    /// Starts one again that was killed.
    pub fn restart(&self, name: &str) -> Result<(), BenchProblem> {
        let mut owned = self.owned();
        owned.processes.iter_mut().filter(|process| process.name == name).try_for_each(Process::start)
    }

    /// An error if a process ended that was not killed here.
    pub fn check(&self) -> Result<(), BenchProblem> {
        for process in &mut self.owned().processes {
            let ended = process.child.as_mut().and_then(|child| child.try_wait().ok().flatten());
            if let Some(status) = ended {
                let (name, last_words) = (&process.name, process.last_words());
                return Err(BenchProblem::failed(format!("{name} ended by itself ({status}): {last_words}")));
            }
        }
        Ok(())
    }

    /// The memory that a process has, in bytes.
    pub(crate) fn resident_bytes(&self, name: &str) -> Option<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.id(name)?)).ok()?;
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
        resident.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok().map(|kib| kib * 1024)
    }

    /// The time that a process has computed so far.
    pub(crate) fn processor_time(&self, name: &str) -> Option<Duration> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.id(name)?)).ok()?;
        // The name, in parentheses, may have spaces. Fields 14 and 15 of all are its time in user and in system mode.
        let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
        let ticks: u64 = fields.next()?.parse::<u64>().ok()? + fields.next()?.parse::<u64>().ok()?;
        Some(Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64))
    }

    fn id(&self, name: &str) -> Option<u32> {
        let owned = self.owned();
        owned.processes.iter().find(|process| process.name == name)?.child.as_ref().map(Child::id)
    }

    /// Kills all processes, and removes what they have written. Nobody needs it any more.
    pub(crate) fn end(&self) {
        let Owned { mut processes, folder } = std::mem::take(&mut *self.owned());
        processes.iter_mut().for_each(Process::end);
        drop(folder);
    }

    fn owned(&self) -> MutexGuard<'_, Owned> {
        self.owned.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.end();
    }
}

/// What is set for others of this kind on this machine is not meant for the one that is started.
pub(crate) fn forget_settings(command: &mut Command, prefix: &str) {
    for (key, _) in std::env::vars_os().filter(|(key, _)| key.to_string_lossy().starts_with(prefix)) {
        command.env_remove(key);
    }
}

/// Ports on loopback that nobody has at the moment.
pub(crate) fn free_ports<const COUNT: usize>() -> Result<[u16; COUNT], BenchProblem> {
    let none = |error| BenchProblem::failed(format!("no port is free on loopback: {error}"));
    // All at a time, so that no two are the same.
    let mut listeners = Vec::new();
    let mut ports = [0; COUNT];
    for port in &mut ports {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(none)?;
        *port = listener.local_addr().map_err(none)?.port();
        listeners.push(listener);
    }
    Ok(ports)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn starter(folder: &Path) -> Starter {
        Starter { command: Arc::new(|program| Command::new(program)), folder: folder.to_owned() }
    }

    #[test]
    fn processes_end_with_their_cluster_and_leave_nothing_behind() {
        let folder = tempfile::tempdir().unwrap();
        let mut cluster = Cluster::new(&starter(folder.path()), "test").unwrap();
        let mut command = Command::new("sleep");
        command.arg("600");
        cluster.add("one", "nowhere".into(), command).unwrap();
        let id = cluster.id("one").unwrap();
        assert!(cluster.resident_bytes("one").is_some_and(|bytes| bytes > 0));
        assert!(cluster.processor_time("one").is_some());
        cluster.check().unwrap();
        cluster.kill("one");
        cluster.check().unwrap();
        cluster.restart("one").unwrap();
        assert_ne!(cluster.id("one"), Some(id));
        let id = cluster.id("one").unwrap();
        drop(cluster);
        assert!(!Path::new(&format!("/proc/{id}")).exists());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_process_that_ends_by_itself_is_told_with_its_last_words() {
        let folder = tempfile::tempdir().unwrap();
        let mut cluster = Cluster::new(&starter(folder.path()), "test").unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", "echo the disk is full >&2; exit 3"]);
        cluster.add("one", "nowhere".into(), command).unwrap();
        let problem = loop {
            if let Err(problem) = cluster.check() {
                break problem.to_string();
            }
            std::thread::sleep(Duration::from_millis(5));
        };
        assert_eq!(problem, "one ended by itself (exit status: 3): the disk is full");
    }
}
