//! Rounds: how a leader makes sure that a quorum still follows it, once for many callers.
//!
//! A renewal (R2), a read, and a command that must be refused all need the same certainty: that no
//! other leader had been elected when they arrived. One ReadIndex round of `raft` gives it to all
//! that wait. Requests that arrive while a round is under way wait for the next: a round proves nothing
//! about what came after it began.
//!
//! `raft` may drop a round without a word, and a round that finished may outlive a step-down. So
//! every round has a context of its own, and the rounds of a lead end with it.
//!
//! Who waits for a round to begin is among the arrivals: see `arrivals.rs`.

use std::collections::VecDeque;

use lowkey_core::{Command, Holds, LeaseId, WaitTime};

use crate::input::CallId;
use crate::reads::Query;
use crate::time::Nanos;

/// Someone who takes part in a round.
#[derive(Debug, PartialEq)]
pub(crate) struct Participant {
    pub(crate) call: CallId,
    pub(crate) wish: Wish,
}

/// What will be done for a participant once the round is confirmed and its index applied.
#[derive(Debug, PartialEq)]
pub(crate) enum Wish {
    /// R2: renew the lease as of the request's arrival.
    Renew { lease: LeaseId, holds: Option<Holds>, arrival: Nanos },
    /// R2: renew these leases, likewise.
    RenewMany { leases: Vec<(LeaseId, Option<Holds>)>, arrival: Nanos },
    /// Answer from the applied state.
    Read(Query),
    /// The command would be refused, or answered as before: if it still would, say so without an
    /// entry; if not, propose it.
    Check { command: Command, wait: WaitTime },
}

/// Invariant: a participant is in exactly one place, and moves only forward: running → confirmed.
#[derive(Debug, Default)]
pub(crate) struct Rounds {
    running: Option<(Vec<u8>, Vec<Participant>)>,
    /// Confirmed, waiting for the index to be applied.
    confirmed: VecDeque<(u64, VecDeque<Participant>)>,
}

impl Rounds {
    pub(crate) fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// Begins a round, where none is under way; gives its context.
    pub(super) fn begin(
        &mut self,
        member: u64,
        term: u64,
        (sequence, participants): (u64, Vec<Participant>),
    ) -> Vec<u8> {
        let context: Vec<u8> = [member, term, sequence].into_iter().flat_map(u64::to_be_bytes).collect();
        self.running = Some((context.clone(), participants));
        context
    }

    /// `raft` confirmed a round. A context that is not the running one's is an echo of a round of an earlier lead, and
    /// proves nothing to anyone.
    pub(super) fn confirm(&mut self, context: &[u8], index: u64) {
        if let Some((_, participants)) = self.running.take_if(|(running, _)| running == context) {
            self.confirmed.push_back((index, participants.into()));
        }
    }

    /// True if there is somebody whose round is confirmed and whose index is applied.
    pub(super) fn has_served(&self, applied: u64) -> bool {
        self.confirmed.front().is_some_and(|(index, _)| *index <= applied)
    }

    /// The next one whose round is confirmed and whose index is applied.
    pub(super) fn next_served(&mut self, applied: u64) -> Option<Participant> {
        while self.has_served(applied) {
            let (_, participants) = self.confirmed.front_mut()?;
            if let Some(participant) = participants.pop_front() {
                if participants.is_empty() {
                    self.confirmed.pop_front();
                }
                return Some(participant);
            }
            self.confirmed.pop_front();
        }
        None
    }

    /// The lead is over: no round proves anything any more.
    pub(super) fn into_calls(self) -> impl Iterator<Item = CallId> {
        let running = self.running.into_iter().flat_map(|(_, participants)| participants);
        let confirmed = self.confirmed.into_iter().flat_map(|(_, participants)| participants);
        confirmed.chain(running).map(|participant| participant.call)
    }
}

/// What only mutants do: see `mutants.rs`.
impl Rounds {
    /// Takes part in the round that is under way, if there is one.
    pub(crate) fn join_late(&mut self, participant: Participant) {
        if let Some((_, participants)) = &mut self.running {
            participants.push(participant);
        }
    }

    /// Takes it for certain.
    pub(crate) fn take_for_confirmed(&mut self, participant: Participant) {
        self.confirmed.push_back((0, VecDeque::from([participant])));
    }

    /// Takes all for certain.
    pub(crate) fn take_all_for_confirmed(&mut self) {
        self.confirmed.extend(self.running.take().map(|(_, participants)| (0, participants.into())));
        self.confirmed.iter_mut().for_each(|(index, _)| *index = 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(call: u64) -> Vec<Participant> {
        vec![Participant { call: CallId(call), wish: Wish::Read(Query::Revision) }]
    }

    #[test]
    fn a_confirmed_round_waits_until_its_index_is_applied() {
        let mut rounds = Rounds::default();
        let context = rounds.begin(1, 1, (1, read(1)));
        rounds.confirm(&context, 7);
        assert!(!rounds.is_running());
        assert!(!rounds.has_served(6) && rounds.next_served(6).is_none());
        assert_eq!(rounds.next_served(7), read(1).pop());
        assert!(!rounds.has_served(7) && rounds.next_served(7).is_none());
    }

    #[test]
    fn an_echo_of_a_round_of_an_earlier_lead_confirms_nobody() {
        let mut rounds = Rounds::default();
        let stale = rounds.begin(1, 1, (1, read(1)));
        assert!(rounds.into_calls().eq([CallId(1)]));
        let mut rounds = Rounds::default();
        rounds.begin(1, 1, (2, read(2)));
        rounds.confirm(&stale, 9);
        assert!(rounds.is_running() && rounds.next_served(9).is_none());
    }
}
