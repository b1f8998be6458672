//! When each member was last heard from, and whether it takes entries: which of them are reachable.

use std::collections::BTreeMap;

use lowkey_core::MemberId;

use crate::time::{MILLISECOND, Nanos};

/// A member that was heard from no longer ago than this answers: a few heartbeats, and less than it takes to
/// be elected. `timing.rs` stretches it.
pub(super) const ANSWERS_NANOS: u64 = 250 * MILLISECOND;

/// A member that lacks entries and took none for this long takes none, though it may answer heartbeats.
/// `timing.rs` stretches it.
const TAKES_NANOS: u64 = 2_000 * MILLISECOND;

#[derive(Debug, Default)]
pub(super) struct Contact {
    last_tick: Option<Nanos>,
    /// When members were last heard from.
    heard: BTreeMap<MemberId, Nanos>,
    /// As a leader: how far each member's log is known to go, and when it last went further or lacked nothing.
    taken: BTreeMap<MemberId, (u64, Nanos)>,
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
    pub(super) fn answers(&self, member: MemberId, stretch: u32) -> bool {
        let now = self.last_tick.unwrap_or_default();
        let answers_nanos = ANSWERS_NANOS * u64::from(stretch);
        self.heard.get(&member).is_some_and(|heard| now.since(*heard) <= answers_nanos)
    }

    /// As a leader, at a tick: a member's log goes this far, and it lacks entries or not.
    pub(super) fn has_taken(&mut self, now: Nanos, member: MemberId, matched: u64, lacks_some: bool) {
        let (before, at) = self.taken.entry(member).or_insert((matched, now));
        if !lacks_some || matched != *before {
            (*before, *at) = (matched, now);
        }
    }

    /// A new term or role: what was taken before is nothing to wait for.
    pub(super) fn forget_what_was_taken(&mut self) {
        self.taken.clear();
    }

    /// False if a member answers, but has taken none of the entries that it lacks for a while.
    pub(super) fn takes_entries(&self, member: MemberId, stretch: u32) -> bool {
        let now = self.last_tick.unwrap_or_default();
        let takes_nanos = TAKES_NANOS * u64::from(stretch);
        self.taken.get(&member).is_none_or(|(_, at)| now.since(*at) <= takes_nanos)
    }

    /// When a member was last heard from.
    pub(super) fn last_heard(&self, member: MemberId) -> Nanos {
        self.heard.get(&member).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_lacks_entries_and_takes_none_for_long_is_found_though_it_answers() {
        let (mut contact, member) = (Contact::default(), MemberId(2));
        let at = |ms: u64| Nanos(ms * MILLISECOND);
        let mut see = |ms: u64, matched: u64, lacks_some: bool| {
            contact.tick(at(ms));
            contact.heard_from(member, at(ms));
            contact.has_taken(at(ms), member, matched, lacks_some);
            assert!(contact.answers(member, 1));
            contact.takes_entries(member, 1)
        };
        assert!(see(0, 7, false), "it has everything");
        assert!(see(60_000, 7, false), "nothing new came for a minute");
        assert!(see(61_000, 7, true) && see(62_000, 7, true), "it is a little behind");
        assert!(!see(62_001, 7, true));
        assert!(see(62_002, 8, true), "it goes on");
        assert!(see(64_002, 8, true) && !see(64_003, 8, true));
        assert!(contact.takes_entries(member, 2), "all are patient under load");
        contact.forget_what_was_taken();
        assert!(contact.takes_entries(member, 1));
    }
}
