//! A lock service as its clients see it, and as whoever starts it does.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures::future::BoxFuture;

use crate::lowkey::Lowkey;
use crate::process::{Cluster, Starter};
use crate::workload::Workload;

/// What a service answers, some time.
pub type SystemAnswer<'a, T> = BoxFuture<'a, Result<T, BenchProblem>>;

/// Why a run ends without figures.
#[derive(Clone, Debug)]
pub enum BenchProblem {
    /// The service did what it must never do.
    Wrong(String),
    /// The service could not be started or asked, or refused.
    Failed(String),
}

impl BenchProblem {
    pub(crate) fn wrong(what: impl Into<String>) -> Self {
        Self::Wrong(what.into())
    }

    pub(crate) fn failed(what: impl Into<String>) -> Self {
        Self::Failed(what.into())
    }

    /// The same, with where it happened in front.
    pub(crate) fn at(self, place: impl fmt::Display) -> Self {
        match self {
            Self::Wrong(what) => Self::Wrong(format!("{place}: {what}")),
            Self::Failed(what) => Self::Failed(format!("{place}: {what}")),
        }
    }
}

impl fmt::Display for BenchProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Wrong(what) => write!(f, "wrong result: {what}"),
            Self::Failed(what) => f.write_str(what),
        }
    }
}

impl std::error::Error for BenchProblem {}

/// Something that can be started and measured.
pub trait Contender: Send + Sync {
    /// What it is called in tables.
    fn name(&self) -> String;

    /// Why it has no part in a workload, if it has none.
    fn sits_out(&self, workload: Workload, nodes: usize) -> Option<String>;

    /// Starts its processes, if it has to. Called on a thread that lives as long as they are to.
    fn start(&self, starter: &Starter, nodes: usize) -> Result<Cluster, BenchProblem>;

    /// How many connections so many clients use, if nothing else is asked for.
    fn connections(&self, clients: usize) -> usize {
        clients
    }

    /// Waits until all nodes are up. Clients use at most so many connections.
    fn connect(&self, cluster: Arc<Cluster>, connections: usize) -> SystemAnswer<'_, Box<dyn System>>;
}

/// A lock service that is up.
pub trait System: Send + Sync {
    /// A client with a lease of its own. Clients share connections if there are more of them.
    fn client(&self, number: usize) -> SystemAnswer<'_, Box<dyn LockClient>>;

    /// A client that finds another node, and asks again, when its own is gone.
    fn persistent_client(&self) -> SystemAnswer<'_, Box<dyn LockClient>> {
        self.client(0)
    }

    /// How many locks with this prefix are held.
    fn count_held<'a>(&'a self, prefix: &'a str) -> SystemAnswer<'a, usize>;

    /// The process that leads, if it was started here.
    fn leader(&self) -> SystemAnswer<'_, Option<String>>;

    /// Whether all nodes are there and up to date.
    fn is_whole(&self) -> SystemAnswer<'_, bool>;

    /// How many nodes it has.
    fn nodes(&self) -> usize;

    /// Its processes.
    fn cluster(&self) -> &Arc<Cluster>;

    /// For what only lowkey is asked for.
    fn lowkey(&self) -> Option<&Lowkey> {
        None
    }
}

/// A client, which holds one lock at a time.
pub trait LockClient: Send {
    /// Takes a lock, waiting so long for it at most, and gives the fencing token if the service has such. A wait of
    /// nothing means now or not at all.
    fn acquire<'a>(&'a mut self, lock: &'a str, wait: Duration) -> SystemAnswer<'a, Option<u64>>;

    /// Gives back what it holds.
    fn release(&mut self) -> SystemAnswer<'_, ()>;

    /// Makes one more lease, of this time to live, and takes a lock with it; nobody renews it.
    fn hold<'a>(&'a mut self, lock: &'a str, ttl: Duration) -> SystemAnswer<'a, HeldLock>;

    /// Ends its leases.
    fn close(self: Box<Self>) -> SystemAnswer<'static, ()>;
}

/// A lock that is held by a lease of its own.
#[derive(Clone, Copy, Debug)]
pub struct HeldLock {
    /// The fencing token, if the service has such.
    pub token: Option<u64>,
    /// The lease, if it has a number.
    pub lease: Option<u64>,
}
