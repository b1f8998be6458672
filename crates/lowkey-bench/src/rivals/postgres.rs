//! PostgreSQL: one server, its advisory locks. They are in memory and belong to a connection: nothing is written when one
//! is taken, nothing survives a restart, and there are no fencing tokens.

mod wire;

use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use rustix::process::Signal;
use tokio::time::timeout;

use self::wire::PostgresConnection;
use super::{PATIENCE, find_program, until_up};
use crate::process::{Cluster, Starter, free_ports};
use crate::system::{BenchProblem, Contender, HeldLock, LockClient, System, SystemAnswer};
use crate::workload::Workload;

const NAME: &str = "postgres";
/// Where Debian has its programs: one folder a version, and none of them in the search path.
const VERSIONS: &str = "/usr/lib/postgresql";
const USER: &str = "bench";
const DATABASE: &str = "postgres";

const TRY_LOCK: &str = "try";
const LOCK: &str = "lock";
const UNLOCK: &str = "unlock";
const STATEMENTS: [(&str, &str); 3] = [
    (TRY_LOCK, "SELECT pg_try_advisory_lock($1)"),
    (LOCK, "SELECT true FROM pg_advisory_lock($1)"),
    (UNLOCK, "SELECT pg_advisory_unlock($1)"),
];

pub(super) fn contenders() -> Option<Vec<Arc<dyn Contender>>> {
    let folders = folders();
    let (initdb, program) = (find_program("initdb", &folders)?, find_program(NAME, &folders)?);
    Some(vec![Arc::new(PostgresContender { initdb, program })])
}

/// The newest version first.
fn folders() -> Vec<PathBuf> {
    let versions = std::fs::read_dir(VERSIONS).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut versions: Vec<PathBuf> = versions.collect();
    let number = |path: &PathBuf| path.file_name()?.to_str()?.parse::<u32>().ok();
    versions.sort_by_key(|path| std::cmp::Reverse(number(path)));
    versions.into_iter().map(|path| path.join("bin")).collect()
}

struct PostgresContender {
    initdb: PathBuf,
    program: PathBuf,
}

/// It refuses to run as root, and its package has a user for it.
struct User {
    id: u32,
    group: u32,
}

impl User {
    /// Nobody else is needed unless this is root.
    fn needed() -> Result<Option<Self>, BenchProblem> {
        if !rustix::process::geteuid().is_root() {
            return Ok(None);
        }
        let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
        let user = users.lines().find_map(|line| {
            let mut fields = line.strip_prefix("postgres:")?.split(':').skip(1);
            Some(Self { id: fields.next()?.parse().ok()?, group: fields.next()?.parse().ok()? })
        });
        let none = || {
            BenchProblem::failed(
                "postgres refuses to run as root, and there is no user postgres; run the bench as another user",
            )
        };
        user.map(Some).ok_or_else(none)
    }

    fn own(&self, folder: &Path) -> Result<(), BenchProblem> {
        let cannot = |error| BenchProblem::failed(format!("cannot give {} away: {error}", folder.display()));
        chown(folder, Some(self.id), Some(self.group)).map_err(cannot)
    }
}

fn as_user(command: &mut Command, user: Option<&User>) {
    if let Some(user) = user {
        command.uid(user.id).gid(user.group);
    }
    // Where nobody may look it does not start.
    command.current_dir("/");
    // What is set for another server is not meant for this one.
    for (key, _) in std::env::vars_os().filter(|(key, _)| key.to_string_lossy().starts_with("PG")) {
        command.env_remove(key);
    }
}

impl PostgresContender {
    /// Makes the files of an empty database.
    fn init(&self, data: &Path, user: Option<&User>) -> Result<(), BenchProblem> {
        let mut initdb = Command::new(&self.initdb);
        initdb
            .args(["--username", USER, "--auth", "trust", "--no-locale", "--no-sync", "--pgdata"])
            .arg(data);
        initdb.stdin(Stdio::null());
        as_user(&mut initdb, user);
        let made =
            initdb.output().map_err(|error| BenchProblem::failed(format!("cannot run initdb: {error}")))?;
        if made.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&made.stderr);
        let last = said.lines().find(|line| line.contains("error:")).or(said.lines().last());
        Err(BenchProblem::failed(format!(
            "initdb failed ({}): {}",
            made.status,
            last.unwrap_or("it said nothing")
        )))
    }
}

impl Contender for PostgresContender {
    fn name(&self) -> String {
        NAME.to_owned()
    }

    fn sits_out(&self, workload: Workload, nodes: usize) -> Option<String> {
        let reason = match workload {
            Workload::Holders => "a lease is a connection, and each of them a process",
            _ if nodes > 1 => "its advisory locks are not replicated; it takes part with --nodes 1",
            Workload::Outage => "no server would be left",
            _ => return None,
        };
        Some(reason.to_owned())
    }

    fn start(&self, starter: &Starter, _nodes: usize) -> Result<Cluster, BenchProblem> {
        let mut cluster = Cluster::new(starter, NAME)?;
        let user = User::needed()?;
        if let Some(user) = &user {
            user.own(cluster.folder())?;
        }
        let data = cluster.folder().join("data");
        self.init(&data, user.as_ref())?;
        let [port] = free_ports()?;
        let mut command = (starter.command)(&self.program);
        command.arg("-D").arg(&data).args(["-h", "127.0.0.1", "-p", &port.to_string()]);
        // A connection for each client; and nothing is to be found outside of its folder.
        for setting in ["max_connections=1000", "unix_socket_directories=", "dynamic_shared_memory_type=mmap"]
        {
            command.args(["-c", setting]);
        }
        as_user(&mut command, user.as_ref());
        cluster.add(NAME, format!("127.0.0.1:{port}"), command)?;
        // Killed outright it would leave memory behind that it shares with its children.
        cluster.ask_to_end(NAME, Signal::QUIT);
        Ok(cluster)
    }

    fn connect(&self, cluster: Arc<Cluster>, _connections: usize) -> SystemAnswer<'_, Box<dyn System>> {
        async move {
            let postgres = Postgres { cluster };
            until_up(NAME, &postgres.cluster, || postgres.open()).await?;
            Ok(Box::new(postgres) as Box<dyn System>)
        }
        .boxed()
    }
}

struct Postgres {
    cluster: Arc<Cluster>,
}

impl Postgres {
    async fn open(&self) -> Result<PostgresConnection, BenchProblem> {
        let opening = PostgresConnection::open(&self.cluster.addresses()[0], USER, DATABASE);
        timeout(PATIENCE, opening).await.map_err(|_| silent())?
    }
}

impl System for Postgres {
    fn client(&self, _number: usize) -> SystemAnswer<'_, Box<dyn LockClient>> {
        async move {
            let mut connection = self.open().await?;
            for (name, statement) in STATEMENTS {
                connection.prepare(name, statement).await?;
            }
            Ok(Box::new(PostgresClient { connection, held: None }) as Box<dyn LockClient>)
        }
        .boxed()
    }

    fn count_held<'a>(&'a self, _prefix: &'a str) -> SystemAnswer<'a, usize> {
        async { Err(BenchProblem::failed("postgres: names of locks are numbers, which have no prefix")) }
            .boxed()
    }

    fn leader(&self) -> SystemAnswer<'_, Option<String>> {
        // What works is a process for each connection, and not the one that was started.
        async { Ok(None) }.boxed()
    }

    fn is_whole(&self) -> SystemAnswer<'_, bool> {
        async { Ok(true) }.boxed()
    }

    fn nodes(&self) -> usize {
        1
    }

    fn cluster(&self) -> &Arc<Cluster> {
        &self.cluster
    }
}

struct PostgresClient {
    connection: PostgresConnection,
    held: Option<i64>,
}

impl PostgresClient {
    async fn ask(&mut self, statement: &str, number: i64, wait: Duration) -> Result<bool, BenchProblem> {
        timeout(PATIENCE + wait, self.connection.ask(statement, number)).await.map_err(|_| silent())?
    }
}

impl LockClient for PostgresClient {
    fn acquire<'a>(&'a mut self, lock: &'a str, wait: Duration) -> SystemAnswer<'a, Option<u64>> {
        async move {
            let number = number(lock);
            let statement = if wait.is_zero() { TRY_LOCK } else { LOCK };
            if !self.ask(statement, number, wait).await? {
                return Err(BenchProblem::wrong(format!(
                    "postgres: {lock} is held, and was not taken or given back since"
                )));
            }
            self.held = Some(number);
            Ok(None)
        }
        .boxed()
    }

    fn release(&mut self) -> SystemAnswer<'_, ()> {
        async move {
            let Some(number) = self.held.take() else { return Ok(()) };
            match self.ask(UNLOCK, number, Duration::ZERO).await? {
                true => Ok(()),
                false => Err(BenchProblem::wrong("postgres: a lock was taken, and is gone")),
            }
        }
        .boxed()
    }

    fn hold<'a>(&'a mut self, _lock: &'a str, _ttl: Duration) -> SystemAnswer<'a, HeldLock> {
        async { Err(BenchProblem::failed("postgres: a lease is a connection")) }.boxed()
    }

    fn close(self: Box<Self>) -> SystemAnswer<'static, ()> {
        // The connection ends, and what it held with it.
        async { Ok(()) }.boxed()
    }
}

fn silent() -> BenchProblem {
    BenchProblem::failed("postgres does not answer")
}

/// Locks are numbers: the name's, by FNV-1a.
fn number(lock: &str) -> i64 {
    let hash = lock.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    i64::from_le_bytes(hash.to_le_bytes())
}
