//! What must always be true, one file each; `docs/internals/invariants.md` says where they come from.
//!
//! The checks see what no node sees: true time, every disk, every client's belief. They compare the
//! replicas with one another and all answers with the one log that was committed.

mod acknowledged;
mod agreement;
mod chronicle;
mod elections;
mod expiry;
mod fencing;
mod guard;
mod holds;
mod ledger;
mod liveness;
mod members;
mod mutual_exclusion;
mod queue_order;
mod reads;
mod requests;
mod tokens;
mod waits;
mod watches;

pub(crate) use acknowledged::Acknowledged;
pub(crate) use agreement::{Agreement, Committed};
pub use chronicle::{Chronicle, HoldSeen, LockAt, WaitSeen};
pub(crate) use elections::{Elections, one_leader};
pub(crate) use expiry::Expiry;
pub use fencing::{Fencing, Write};
pub(crate) use guard::{is_right, only_the_drifted_stop};
pub(crate) use holds::LimitedHolds;
pub(crate) use ledger::Ledger;
pub(crate) use liveness::Liveness;
pub(crate) use members::{as_registered, no_leader_drops_itself};
pub(crate) use mutual_exclusion::mutual_exclusion;
pub(crate) use requests::Requests;
pub use tokens::Tokens;
pub(crate) use waits::WaitRecords;
pub(crate) use watches::Watches;

/// A promise that was broken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Which.
    pub invariant: &'static str,
    /// How.
    pub what: String,
}

/// Ok, or what was broken.
pub type Check = Result<(), Violation>;

pub(crate) fn broken(invariant: &'static str, what: impl Into<String>) -> Check {
    Err(Violation { invariant, what: what.into() })
}
