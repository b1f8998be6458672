//! The pure state machine of lowkey: leases, locks and fencing tokens.
//!
//! [`State::apply`] takes one committed [`Command`] and gives the answer and what changed. It is the
//! same function on every replica and on every replay, so everything in this crate is a value and a
//! function of values.
//!
//! Deliberately absent: clocks (R5), randomness, I/O, async, threads, and any collection whose order
//! of iteration is not defined. `clippy.toml` beside the manifest keeps it so.

mod command;
mod encoding;
pub mod limits;
pub mod mutants;
mod name;
mod recent;
mod snapshot;
mod state;

pub use command::{
    AcquireWith, Applied, Cause, Command, Event, GrantRef, Holder, NodeInfo, Refusal, Reply, Requester,
};
pub use encoding::{COMMAND_VERSION, DecodeError};
pub use name::{
    ClusterId, Invalid, LeaseId, LockName, MemberId, NodeIdentity, NodeName, OwnerId, RequestId, Token, Ttl,
};
pub use snapshot::{SNAPSHOT_VERSION, SnapshotError};
pub use state::{Grant, Lease, State};
