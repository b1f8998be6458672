//! When each member was last heard from: which of them are reachable.

use std::collections::BTreeMap;

use lowkey_core::MemberId;

use crate::time::{MILLISECOND, Nanos};

/// A member that was heard from no longer ago than this answers: a few heartbeats, and less than it takes to
/// be elected. The timing factor stretches it.
pub(super) const ANSWERS_NANOS: u64 = 250 * MILLISECOND;

#[derive(Debug, Default)]
pub(super) struct Contact {
    last_tick: Option<Nanos>,
    /// When members were last heard from.
    heard: BTreeMap<MemberId, Nanos>,
}

impl Contact {
    /// A tick; gives the time since the last.
    pub(super) fn tick(&mut self, now: Nanos) -> u64 {
        self.last_tick.replace(now).map(|last| now.since(last)).unwrap_or_default()
    }

    pub(super) fn last_tick(&self) -> Option<Nanos> {
        self.last_tick
    }

    /// R8: a stall before the first tick is one too.
    pub(super) fn begin(&mut self, now: Nanos) {
        self.last_tick.get_or_insert(now);
    }

    pub(super) fn heard_from(&mut self, member: MemberId, now: Nanos) {
        self.heard.insert(member, now);
    }

    /// True if another member was heard from not long ago. `raft` has a mark of its own for this, but wipes it at
    /// every check of the quorum, and sets it for members that were never heard of.
    pub(super) fn answers(&self, member: MemberId, timing_factor: u32) -> bool {
        let now = self.last_tick.unwrap_or_default();
        let answers_nanos = ANSWERS_NANOS * u64::from(timing_factor);
        self.heard.get(&member).is_some_and(|heard| now.since(*heard) <= answers_nanos)
    }

    /// When a member was last heard from.
    pub(super) fn last_heard(&self, member: MemberId) -> Nanos {
        self.heard.get(&member).copied().unwrap_or_default()
    }
}
