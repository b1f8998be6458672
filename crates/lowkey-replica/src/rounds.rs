//! Rounds: how a leader makes sure that a quorum still follows it, once for many callers.
//!
//! A renewal (R2), a read, and a command that must be refused all need the same certainty: that no
//! other leader had been elected when they arrived. One ReadIndex round of `raft` gives it to all
//! that wait. Whoever arrives while a round is under way waits for the next: a round proves nothing
//! about what came after it began.
//!
//! `raft` may drop a round without a word, and a round that finished may outlive a step-down. So
//! every round has a context of its own, and every change of term or role fails all of them.
//!
//! A leader whose first entry is not committed begins no round, and may not get there for long: its followers' disks are
//! full, say. So there is an end to how many may gather, and whoever goes away leaves nothing behind.

use std::collections::{BTreeMap, VecDeque};

use lowkey_core::{Command, Holds, LeaseId, WaitTime, mutants};

use crate::input::CallId;
use crate::reads::Query;
use crate::time::Nanos;

/// How many may wait for a round to begin.
const GATHERING_MAX: usize = 65_536;

/// Someone who waits for a round.
#[derive(Debug, PartialEq)]
pub(crate) struct Waiter {
    pub(crate) call: CallId,
    pub(crate) wish: Wish,
}

/// What will be done for a waiter once the round is confirmed and its index applied.
#[derive(Debug, PartialEq)]
pub(crate) enum Wish {
    /// R2: renew the lease as of the request's arrival.
    Renew { lease: LeaseId, holds: Option<Holds>, arrival: Nanos },
    /// Answer from the applied state.
    Read(Query),
    /// The command would be refused, or answered as before: if it still would, say so without an
    /// entry; if not, propose it.
    Check { command: Command, wait: WaitTime },
}

/// Invariant: a waiter is in exactly one place, and moves only forward: gathering → running →
/// confirmed.
#[derive(Debug, Default)]
pub(crate) struct Rounds {
    gathering: BTreeMap<CallId, Wish>,
    running: Option<(Vec<u8>, Vec<Waiter>)>,
    /// Confirmed, waiting for the index to be applied.
    confirmed: VecDeque<(u64, Vec<Waiter>)>,
    /// Rises with every round, so that no context is ever used twice by one process.
    sequence: u64,
}

impl Rounds {
    /// Takes part in the next round to begin; false if too many do already.
    pub(crate) fn join(&mut self, call: CallId, wish: Wish) -> bool {
        if crate::mutants::needs_no_round(&wish) {
            self.confirmed.push_back((0, vec![Waiter { call, wish }]));
            return true;
        }
        match &mut self.running {
            Some((_, waiters)) if mutants::is_active("a round is joined late") => {
                waiters.push(Waiter { call, wish });
            }
            _ if self.gathering.len() >= GATHERING_MAX => return false,
            _ => _ = self.gathering.insert(call, wish),
        }
        true
    }

    /// A caller is gone; true if it waited for a round to begin, as it does no more.
    pub(crate) fn leave(&mut self, call: CallId) -> bool {
        self.gathering.remove(&call).is_some()
    }

    /// True if someone waits for a round that could begin now.
    pub(crate) fn is_due(&self) -> bool {
        self.running.is_none() && !self.gathering.is_empty()
    }

    /// Begins a round for all that gathered, unless one is under way; gives its context.
    pub(crate) fn begin(&mut self, member: u64, term: u64) -> Option<Vec<u8>> {
        if !self.is_due() {
            return None;
        }
        if !mutants::is_active("reused ReadIndex context") {
            self.sequence += 1;
        }
        let context: Vec<u8> = [member, term, self.sequence].into_iter().flat_map(u64::to_be_bytes).collect();
        let gathered = std::mem::take(&mut self.gathering).into_iter();
        let waiters = gathered.map(|(call, wish)| Waiter { call, wish }).collect();
        self.running = Some((context.clone(), waiters));
        Some(context)
    }

    /// `raft` confirmed a round. A context that is not the running one's is an echo of a round that
    /// was failed before, and proves nothing to anyone.
    pub(crate) fn confirm(&mut self, context: &[u8], index: u64) {
        if let Some((_, waiters)) = self.running.take_if(|(running, _)| running == context) {
            self.confirmed.push_back((index, waiters));
        }
    }

    /// Those whose round is confirmed and whose index is applied.
    pub(crate) fn take_served(&mut self, applied: u64) -> Vec<Waiter> {
        let mut served = Vec::new();
        while let Some((_, waiters)) = self.confirmed.pop_front_if(|(index, _)| *index <= applied) {
            served.extend(waiters);
        }
        served
    }

    /// The lead or the term changed: nobody is certain of anything any more.
    pub(crate) fn fail_all(&mut self) -> Vec<CallId> {
        let running = self.running.take().map(|(_, waiters)| waiters).unwrap_or_default();
        let confirmed = std::mem::take(&mut self.confirmed).into_iter().flat_map(|(_, waiters)| waiters);
        let gathering = std::mem::take(&mut self.gathering).into_keys();
        confirmed.chain(running).map(|waiter| waiter.call).chain(gathering).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read() -> Wish {
        Wish::Read(Query::Revision)
    }

    #[test]
    fn who_arrives_during_a_round_waits_for_the_next() {
        let mut rounds = Rounds::default();
        rounds.join(CallId(1), read());
        let first = rounds.begin(1, 1).unwrap();
        rounds.join(CallId(2), read());
        assert_eq!(rounds.begin(1, 1), None);
        rounds.confirm(&first, 5);
        assert_eq!(rounds.take_served(5).iter().map(|waiter| waiter.call).collect::<Vec<_>>(), [CallId(1)]);
        let second = rounds.begin(1, 1).unwrap();
        assert_ne!(first, second);
    }

    #[test]
    fn who_goes_away_before_a_round_begins_makes_room_for_another() {
        let mut rounds = Rounds::default();
        for call in 0..GATHERING_MAX as u64 {
            assert!(rounds.join(CallId(call), read()));
        }
        assert!(!rounds.join(CallId(u64::MAX), read()));
        assert!(rounds.leave(CallId(7)) && !rounds.leave(CallId(7)));
        assert!(rounds.join(CallId(u64::MAX), read()));
        let context = rounds.begin(1, 1).unwrap();
        rounds.confirm(&context, 1);
        let served = rounds.take_served(1);
        assert_eq!(served.len(), GATHERING_MAX);
        assert!(served.iter().all(|waiter| waiter.call != CallId(7)));
    }

    #[test]
    fn a_confirmed_round_waits_until_its_index_is_applied() {
        let mut rounds = Rounds::default();
        rounds.join(CallId(1), read());
        let context = rounds.begin(1, 1).unwrap();
        rounds.confirm(&context, 7);
        assert!(rounds.take_served(6).is_empty());
        assert_eq!(rounds.take_served(7).len(), 1);
    }

    #[test]
    fn an_echo_of_a_failed_round_confirms_nobody() {
        let mut rounds = Rounds::default();
        rounds.join(CallId(1), read());
        let stale = rounds.begin(1, 1).unwrap();
        assert_eq!(rounds.fail_all(), [CallId(1)]);
        rounds.join(CallId(2), read());
        rounds.begin(1, 2).unwrap();
        rounds.confirm(&stale, 9);
        assert!(rounds.take_served(9).is_empty());
    }
}
