//! The node's term and role, and what is true only as long as they last.

use raft::StateRole;

use crate::time::Nanos;

/// As of the last step; a change of term or role is acted on at once.
#[derive(Debug)]
pub(super) struct Standing {
    term: u64,
    role: StateRole,
    /// When term or role last changed.
    pub(super) since: Nanos,
    /// The lead is to be handed over, and nobody could take it yet.
    pub(super) hand_over_wanted: bool,
    /// Where the last removal that this leader proposed stands in the log. What an earlier lead proposed is applied
    /// before this node touches anything again (R1), or gone.
    pub(super) last_removal: u64,
    /// The same of the last node that it proposed to register.
    pub(super) last_addition: u64,
    /// Where and when this leader last marked an entry as a checkpoint.
    pub(super) marked: (u64, Nanos),
}

impl Standing {
    pub(super) fn new(now: Nanos, term: u64, role: StateRole) -> Self {
        Self {
            term,
            role,
            since: now,
            hand_over_wanted: false,
            last_removal: 0,
            last_addition: 0,
            marked: (0, now),
        }
    }

    pub(super) fn is(&self, term: u64, role: StateRole) -> bool {
        (self.term, self.role) == (term, role)
    }

    /// Begins anew in the same term and role.
    pub(super) fn forget(&mut self, now: Nanos) {
        *self = Self { since: self.since, ..Self::new(now, self.term, self.role) };
    }
}
