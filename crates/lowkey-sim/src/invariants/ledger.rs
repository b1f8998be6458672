//! What the committed log says, in plain lists: who held and who waited when. No invariant by itself, but
//! what the others judge by.
//!
//! It follows the *changes* that an entry made, not the state that came of them. Then the state is compared
//! with the lists.

use std::collections::BTreeMap;
use std::ops::Deref;

use lowkey_core::{Change, ChangeKind, Command, Event, LeaseId, RequestId, State, Ticket, WaitEnd};

use super::chronicle::{Chronicle, HoldSeen, WaitSeen};
use super::{Check, Committed, broken, queue_order};

/// What a place in a queue is for.
pub(crate) struct QueuePlace {
    pub(crate) request: RequestId,
    /// When it was taken, in true time.
    pub(crate) since: u64,
}

#[derive(Default)]
pub(crate) struct Ledger {
    chronicle: Chronicle,
    /// Of those who wait.
    places: BTreeMap<Ticket, QueuePlace>,
    /// At which revision a lease began and ended. One that a wait makes begins with the wait.
    pub(crate) leases: BTreeMap<LeaseId, (u64, Option<u64>)>,
    /// The last revision that is known to be committed.
    pub(crate) committed: u64,
}

/// The lists are to be read by all and written by the ledger alone.
impl Deref for Ledger {
    type Target = Chronicle;

    fn deref(&self) -> &Chronicle {
        &self.chronicle
    }
}

impl Ledger {
    /// The log is known up to here; Raft's own entries have no changes.
    pub(crate) fn reach(&mut self, revision: u64) {
        self.committed = revision;
    }

    /// What somebody who waits has asked for, and since when.
    pub(crate) fn place(&self, ticket: Ticket) -> Option<&QueuePlace> {
        self.places.get(&ticket)
    }

    /// Follows an entry, and checks each step of it.
    pub(crate) fn follow(&mut self, committed: &Committed, state: &State, now: u64) -> Check {
        for event in &committed.applied.events {
            match event {
                Event::LeaseStarted { lease, .. } => {
                    self.leases.entry(*lease).or_insert((committed.index, None));
                }
                Event::LeaseEnded { lease } => {
                    self.leases.entry(*lease).or_insert((committed.index, None)).1 = Some(committed.index);
                }
                // The changes beside them say the same.
                Event::HoldStarted { .. } | Event::HoldEnded { .. } => {}
                Event::Changed(change) => self.change(committed, change, now)?,
                Event::WaitEnded { ticket, end } => {
                    self.places.remove(ticket);
                    let Some(ended) = self.chronicle.left(*ticket) else {
                        return broken(queue_order::NAME, format!("the wait {ticket} ended twice"));
                    };
                    queue_order::may_end(self, committed, &ended, matches!(end, WaitEnd::Granted(_)))?;
                }
            }
        }
        if self.chronicle.settled(committed.index)? {
            queue_order::has_leases(self)?;
            self.compare(state)?;
        }
        queue_order::has_done(self, committed)
    }

    fn change(&mut self, committed: &Committed, change: &Change, now: u64) -> Check {
        let Change { lock, owner, lease, mode, scope, value, .. } = change.clone();
        let known = self.holders.iter().find(|held| Some(held.token) == change.token);
        match (change.kind, change.token, known) {
            (ChangeKind::Acquired, Some(token), None) => {
                let held = HoldSeen { lock, owner, lease, token, mode, scope, value };
                queue_order::has_lease(self, &held)?;
                self.chronicle.granted(held)?;
            }
            (ChangeKind::Freed(_), Some(token), Some(held)) => {
                queue_order::may_be_freed(committed, held)?;
                self.chronicle.freed(token);
            }
            (ChangeKind::ValueSet, Some(token), Some(_)) => {
                self.chronicle.value_set(token, value);
            }
            (ChangeKind::Waiting, None, None) => {
                let Command::Acquire { request, .. } = &committed.command else {
                    return broken(queue_order::NAME, format!("{lock} is waited for, and nobody asked"));
                };
                let ticket = Ticket(committed.index);
                self.leases.entry(lease).or_insert((committed.index, None));
                self.places.insert(ticket, QueuePlace { request: request.clone(), since: now });
                self.chronicle.waits(WaitSeen { ticket, lock, owner, lease, mode, scope });
            }
            // The wait's own end follows.
            (ChangeKind::Cancelled, None, None) => {}
            (kind, token, _) => {
                let what = format!("entry {} tells of {kind:?} of {lock}, token {token:?}", committed.index);
                return broken(queue_order::NAME, format!("{what}, which cannot be"));
            }
        }
        Ok(())
    }

    /// The state has exactly the holders and waiters that its changes told of.
    fn compare(&self, state: &State) -> Check {
        let mut told: Vec<_> =
            self.holders.iter().map(|held| (held.token, &held.lock, &held.value)).collect();
        let mut held: Vec<_> =
            state.grants().map(|(lock, grant)| (grant.token, lock, &grant.value)).collect();
        told.sort_by_key(|(token, ..)| *token);
        held.sort_by_key(|(token, ..)| *token);
        if told != held {
            return broken(queue_order::NAME, format!("held is {held:?}, and told was {told:?}"));
        }
        // R7: a lease whose time has not begun is there for a wait.
        let waits = |lease: LeaseId| self.waiters.iter().any(|waiting| waiting.lease == lease);
        if let Some((lease, _)) = state.leases().find(|(id, lease)| lease.is_waiting && !waits(*id)) {
            return broken(queue_order::NAME, format!("lease {lease} waits to begin, for nothing"));
        }
        if !self.waiters.iter().map(|waiting| waiting.ticket).eq(state.waits()) {
            let told: Vec<Ticket> = self.waiters.iter().map(|waiting| waiting.ticket).collect();
            let waits: Vec<Ticket> = state.waits().collect();
            return broken(queue_order::NAME, format!("those who wait are {waits:?}, and told was {told:?}"));
        }
        Ok(())
    }
}
