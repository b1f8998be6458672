//! The lowkey node: everything that touches the world.
//!
//! The path of a request: [`edge`] decodes it. `service` finds its group and that group's leader. `lane` is
//! that group on this node: an inbox, and a driver that takes the replica's turns and answers.
//!
//! The rest: `host` is what all groups share, above all the log. `peers` carries messages and forwarded
//! requests between nodes. `watch` tells watchers what happened, and `audit` those who ask later. `storage` is the data
//! directory. `forming` founds a cluster with others. `recover` makes a new cluster of one node, and `restore` of a
//! backup, which `backups` makes. `metrics` counts. [`start`] puts them together.
//!
//! Deliberately absent: any decision about leases and locks. The replica alone decides what is granted.

mod access;
mod audit;
mod backups;
mod call;
mod config;
mod dial;
pub mod edge;
mod error;
mod forming;
mod host;
mod invitation;
mod join;
mod lane;
mod metrics;
mod node;
mod node_key;
mod operation;
mod peers;
mod recover;
mod restore;
mod service;
mod storage;
mod watch;

pub use backups::BackupPlan;
pub use config::{AuditLimits, Config};
pub use error::StartError;
pub use forming::{ClusterOf, FormSecret};
pub use invitation::JoinToken;
pub use lowkey_replica::RaftTick;
pub use metrics::CONTENT_TYPE as METRICS_CONTENT_TYPE;
pub use node::{About, Ended, RunningNode, start};
pub use recover::{Anew, Inspected, Lost, LostCluster, Recovered, Unfinished, inspect};
pub use restore::{Restored, check_empty, restore};
pub use storage::belongs_to_cluster;

/// Random bytes from the operating system.
pub(crate) fn random_bytes<const N: usize>() -> Result<[u8; N], StartError> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|error| StartError::Io {
        doing: "cannot get random numbers from the operating system".into(),
        source: std::io::Error::other(error),
    })?;
    Ok(bytes)
}
