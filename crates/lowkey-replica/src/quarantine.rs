//! How long a cluster that began anew grants nothing.
//!
//! That it is in quarantine is replicated; since when, only the leader knows, as with leases. The time is the longest
//! time to live that a lease may have: whoever held a lock of the old cluster counts on it for nine tenths of that at
//! most (R6), since before the old cluster ended.
//!
//! - **R1** The time begins when a leader may touch leases.
//! - **R3** A change of term or role forgets it: a new leader waits for all of it again, which is always safe.
//! - **R4** Its end is a proposal like the end of a lease. It needs no term: that so much time has passed is as true in
//!   the next one.

use lowkey_core::limits::TTL_SECONDS_MAX;
use lowkey_core::{Command, Refusal, mutants};

use crate::output::Failure;
use crate::replica::Replica;
use crate::time::{MILLISECOND, Nanos};

/// The longest that anybody may believe, and a tenth more.
pub(crate) const QUARANTINE_NANOS: u64 = TTL_SECONDS_MAX.unsigned_abs() * 1_000 * MILLISECOND;

impl Replica {
    /// R1: a leader that may touch leases from now on waits for all of the time.
    pub(crate) fn begin_quarantine(&mut self, now: Nanos) {
        let length_nanos =
            if mutants::is_active("quarantine ends at once") { 0 } else { self.config.quarantine_nanos };
        self.quarantine_ends = self.state.is_in_quarantine().then(|| now.after(length_nanos));
    }

    /// Proposes the end when the time is over. What is refused is proposed again at the next tick.
    pub(crate) fn end_quarantine_if_due(&mut self, now: Nanos) {
        if self.quarantine_ends.is_some_and(|ends| ends <= now)
            && self.propose_end(now, Command::EndQuarantine).is_ok()
        {
            self.quarantine_ends = None;
        }
    }

    /// A refusal as its caller is told it: one for the time of the quarantine comes with how long that is.
    pub(crate) fn refused(&self, now: Nanos, refusal: Refusal) -> Failure {
        match refusal {
            Refusal::Quarantine => {
                let left_nanos = self.quarantine_ends.map_or(0, |ends| ends.since(now));
                Failure::Quarantine { left_ms: left_nanos.div_ceil(MILLISECOND) }
            }
            other => Failure::Refused(other),
        }
    }
}
