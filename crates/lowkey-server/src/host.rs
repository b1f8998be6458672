//! What exists once per node, no matter how many groups the node has: the log with its sync and the free
//! space on its disk (`log.rs`), the connections to other nodes, the clock, and the thread for slow disk
//! work (`housekeeper.rs`).

pub(crate) mod clock;
pub(crate) mod housekeeper;
pub(crate) mod log;

use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lowkey_wal::Wal;

use self::clock::Clock;
use self::log::NodeLog;
use crate::metrics::ReplicaMetrics;
use crate::peers::Links;

/// What all lanes of a node share.
pub(crate) struct Host {
    pub(crate) clock: Clock,
    pub(crate) log: NodeLog,
    links: Mutex<Links>,
    pub(crate) metrics: ReplicaMetrics,
}

impl Host {
    /// Takes over a log and the connections, and starts the thread that does slow work in this directory.
    pub(crate) fn start(
        clock: Clock,
        wal: Wal,
        links: Links,
        metrics: ReplicaMetrics,
        directory: PathBuf,
    ) -> io::Result<Arc<Self>> {
        let (jobs, jobs_taken) = housekeeper::jobs();
        let log = NodeLog::new(wal, jobs, clock, metrics.clone());
        let host = Arc::new(Self { clock, log, links: Mutex::new(links), metrics });
        housekeeper::start(directory, Arc::downgrade(&host), jobs_taken)?;
        Ok(host)
    }

    /// The connections to other nodes. Hold the lock only for a moment.
    pub(crate) fn links(&self) -> MutexGuard<'_, Links> {
        // A thread that panics while it holds them ends the process.
        self.links.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
