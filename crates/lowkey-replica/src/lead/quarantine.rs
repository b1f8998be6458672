//! How long a cluster that was recovered after a lost majority grants nothing.
//!
//! That it is in quarantine is replicated; since when, only the leader knows, as with leases. The time is the longest
//! time to live that a lease may have: a holder of the old cluster believes in its lock for nine tenths of that at
//! most (R6), since before the old cluster ended.
//!
//! - **R1** The time begins with a lead.
//! - **R3** It ends with the lead: a new leader waits for all of it again, which is always safe.
//! - **R4** Its end is a proposal like the end of a lease. It needs no term: that so much time has passed is as true in
//!   the next one.

use lowkey_core::limits::TTL_SECONDS_MAX;
use lowkey_core::{Refusal, State, mutants};

use super::Lead;
use crate::config::Config;
use crate::output::Failure;
use crate::time::{MILLISECOND, Nanos};

/// The longest that anybody may believe, and a tenth more.
pub(crate) const QUARANTINE_NANOS: u64 = TTL_SECONDS_MAX.unsigned_abs() * 1_000 * MILLISECOND;

/// R1: a lead that begins now waits for all of the time.
pub(super) fn end(now: Nanos, config: &Config, state: &State) -> Option<Nanos> {
    let length_nanos =
        if !mutants::QUARANTINE_ENDS_AT_ONCE.is_active() { config.quarantine_nanos } else { 0 };
    state.is_in_quarantine().then(|| now.after(length_nanos))
}

impl Lead {
    /// When the end of the quarantine is proposed, if it is not yet.
    pub(crate) fn quarantine_ends(&self) -> Option<Nanos> {
        self.quarantine_ends
    }

    pub(crate) fn is_quarantine_over(&self, now: Nanos) -> bool {
        self.quarantine_ends.is_some_and(|ends| ends <= now)
    }

    /// The end of the quarantine is proposed.
    pub(crate) fn quarantine_ended(&mut self) {
        self.quarantine_ends = None;
    }
}

/// A refusal as its caller is told it: one for the time of the quarantine comes with how long that is.
pub(crate) fn refused(now: Nanos, refusal: Refusal, quarantine_ends: Option<Nanos>) -> Failure {
    match refusal {
        Refusal::Quarantine => {
            let left_nanos = quarantine_ends.map_or(0, |ends| ends.since(now));
            Failure::Quarantine { left_ms: left_nanos.div_ceil(MILLISECOND) }
        }
        other => Failure::Refused(other),
    }
}
