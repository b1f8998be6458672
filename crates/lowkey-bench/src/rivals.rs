//! Others who can keep a lock, for comparison: each as its users would have it for locks, durable, on loopback, with the
//! fastest way of locking that it has.
//!
//! What they do not have they are not measured at: a service that can only be polled has no place in a line.

mod etcd;
mod postgres;
mod redis;
mod zookeeper;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::process::Cluster;
use crate::system::{BenchProblem, Contender, System};

/// How long a rival may take to come up, and calls to be answered.
const PATIENCE: Duration = Duration::from_secs(60);
const LOOK_INTERVAL: Duration = Duration::from_millis(50);
/// A lease that nobody renews and that outlives every turn.
const LONG_TTL: Duration = Duration::from_secs(600);

/// Who can be measured against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RivalService {
    /// etcd, by a transaction that creates a key with a lease, and by its Lock call.
    Etcd,
    /// ZooKeeper, by an ephemeral node, and by its recipe for locks where somebody waits.
    Zookeeper,
    /// Redis, by `SET NX PX` and a script that deletes, with every change synced.
    Redis,
    /// PostgreSQL, by advisory locks.
    Postgres,
}

impl RivalService {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Etcd, Self::Zookeeper, Self::Redis, Self::Postgres];

    /// What it is called.
    pub fn name(self) -> &'static str {
        match self {
            Self::Etcd => "etcd",
            Self::Zookeeper => "zookeeper",
            Self::Redis => "redis",
            Self::Postgres => "postgres",
        }
    }

    /// Debian's package for it.
    pub fn package(self) -> &'static str {
        match self {
            Self::Etcd => "etcd-server",
            Self::Zookeeper => "zookeeper",
            Self::Redis => "redis-server",
            Self::Postgres => "postgresql",
        }
    }

    /// The rival of this name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|rival| rival.name() == name)
    }

    /// It, in each of the ways in which it can lock; nothing if it is not installed.
    pub fn contenders(self) -> Option<Vec<Arc<dyn Contender>>> {
        match self {
            Self::Etcd => etcd::contenders(),
            Self::Zookeeper => zookeeper::contenders(),
            Self::Redis => redis::contenders(),
            Self::Postgres => postgres::contenders(),
        }
    }
}

/// Where a program is: in the search path, or in places where packages put it that are in nobody's.
fn find_program(name: &str, beside: &[PathBuf]) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(beside.iter().cloned());
    folders.map(|folder| folder.join(name)).find(|program| program.is_file())
}

/// Asks until there is an answer.
async fn until_up<T, F>(name: &str, cluster: &Cluster, mut ask: impl FnMut() -> F) -> Result<T, BenchProblem>
where
    F: Future<Output = Result<T, BenchProblem>>,
{
    let deadline = Instant::now() + PATIENCE;
    loop {
        match ask().await {
            Ok(answer) => return Ok(answer),
            Err(problem) if Instant::now() >= deadline => {
                return Err(BenchProblem::failed(format!(
                    "{name} did not come up in {PATIENCE:?}: {problem}"
                )));
            }
            Err(_) => {}
        }
        cluster.check()?;
        sleep(LOOK_INTERVAL).await;
    }
}

/// Asks until all its nodes have come together.
async fn until_whole(name: &str, system: &dyn System) -> Result<(), BenchProblem> {
    until_up(name, system.cluster(), || async {
        match system.is_whole().await? {
            true => Ok(()),
            false => Err(BenchProblem::failed("its nodes have not come together")),
        }
    })
    .await
}
