//! The lowkey node: everything that touches the world.
//!
//! A request's way: [`edge`] decodes it, `service` finds the leader, `inbox` takes it to the one
//! thread of `driver`, which drives the replica, the log and the answers; `peers` carries messages
//! and forwarded requests between nodes; `watch` tells whoever watches what happened; `storage` is the
//! data directory, `recover` makes a new cluster of one, `housekeeper` and `snapshot_maker` do slow work on it; `metrics` counts; [`start`] puts
//! them together.
//!
//! Deliberately absent: any decision about leases and locks. What is granted is the replica's to say.

mod clock;
mod config;
mod driver;
pub mod edge;
mod error;
mod housekeeper;
mod inbox;
mod join;
mod metrics;
mod node;
mod operation;
mod peers;
mod recover;
mod service;
mod snapshot_maker;
mod storage;
mod turns;
mod view;
mod watch;

pub use config::Config;
pub use error::StartError;
pub use metrics::CONTENT_TYPE as METRICS_CONTENT_TYPE;
pub use node::{About, Ended, RunningNode, start};
pub use recover::{Inspected, Lost, LostCluster, Recovered, Unfinished, inspect};

/// Random bytes from the operating system.
pub(crate) fn random_bytes<const N: usize>() -> Result<[u8; N], StartError> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|error| StartError::Io {
        doing: "cannot get random numbers from the operating system".into(),
        source: std::io::Error::other(error),
    })?;
    Ok(bytes)
}
