//! What the committed log says, in plain lists: who held and who waited when. No invariant by itself, but
//! what the others judge by.
//!
//! It follows the *changes* that an entry made, not the state that came of them, and asks `queue_order`
//! at every step whether the change was right. Then the state is compared with the lists.

use std::collections::{BTreeMap, BTreeSet};

use lowkey_core::{
    Change, ChangeKind, Command, Event, LeaseId, LockName, Mode, OwnerId, RequestId, Scope, State, Ticket,
    Token, Value, WaitEnd,
};

use super::{Check, Committed, broken, queue_order};
use crate::claim::Claim;

/// Somebody who holds a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) lock: LockName,
    pub(crate) owner: OwnerId,
    pub(crate) lease: LeaseId,
    pub(crate) token: Token,
    pub(crate) mode: Mode,
    pub(crate) scope: Scope,
    pub(crate) value: Value,
}

impl Held {
    pub(crate) fn claim(&self) -> Claim {
        let (lock, lease) = (self.lock.clone(), Some(self.lease));
        Claim { lock, lease, mode: self.mode, scope: self.scope }
    }
}

/// Somebody who waits for a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Waiting {
    pub(crate) ticket: Ticket,
    pub(crate) lock: LockName,
    pub(crate) owner: OwnerId,
    pub(crate) lease: LeaseId,
    pub(crate) mode: Mode,
    pub(crate) scope: Scope,
    pub(crate) request: RequestId,
    /// When the place was taken, in true time.
    pub(crate) since: u64,
}

impl Waiting {
    pub(crate) fn claim(&self) -> Claim {
        let (lock, lease) = (self.lock.clone(), Some(self.lease));
        Claim { lock, lease, mode: self.mode, scope: self.scope }
    }
}

/// One lock at one revision.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LockAt {
    /// By lease.
    pub(crate) holders: Vec<Held>,
    /// First come first.
    pub(crate) waiters: Vec<Waiting>,
}

#[derive(Default)]
pub(crate) struct Ledger {
    /// In no order.
    pub(crate) holders: Vec<Held>,
    /// First come first.
    pub(crate) waiters: Vec<Waiting>,
    /// How each lock was from which revision on.
    locks: BTreeMap<LockName, Vec<(u64, LockAt)>>,
    /// At which revision a lease began and ended. One that a wait makes begins with the wait.
    pub(crate) leases: BTreeMap<LeaseId, (u64, Option<u64>)>,
    /// A lock that nobody holds or waits for.
    unused: LockAt,
    /// Revisions at which some lock changed.
    changed: Vec<u64>,
    /// The last revision that is known to be committed.
    pub(crate) committed: u64,
}

impl Ledger {
    /// The log is known up to here; Raft's own entries have no changes.
    pub(crate) fn reach(&mut self, revision: u64) {
        self.committed = revision;
    }

    /// Follows an entry, and checks each step of it.
    pub(crate) fn follow(&mut self, committed: &Committed, state: &State, now: u64) -> Check {
        let mut touched = BTreeSet::new();
        for event in &committed.applied.events {
            match event {
                Event::LeaseStarted { lease, .. } => {
                    self.leases.entry(*lease).or_insert((committed.index, None));
                }
                Event::LeaseEnded { lease } => {
                    self.leases.entry(*lease).or_insert((committed.index, None)).1 = Some(committed.index);
                }
                Event::Changed(change) => {
                    touched.insert(change.lock.clone());
                    self.change(committed, change, now)?;
                }
                Event::WaitEnded { ticket, end } => {
                    let ended = self.waiters.iter().position(|waiting| waiting.ticket == *ticket);
                    let Some(ended) = ended else {
                        return broken(queue_order::NAME, format!("the wait {ticket} ended twice"));
                    };
                    let ended = self.waiters.remove(ended);
                    queue_order::may_end(self, committed, &ended, matches!(end, WaitEnd::Granted(_)))?;
                    touched.insert(ended.lock);
                }
            }
        }
        if !touched.is_empty() {
            queue_order::is_settled(self, committed)?;
            self.compare(state)?;
            self.changed.push(committed.index);
        }
        for lock in touched {
            let now = self.now(&lock);
            self.locks.entry(lock).or_default().push((committed.index, now));
        }
        queue_order::has_done(self, committed)
    }

    fn change(&mut self, committed: &Committed, change: &Change, now: u64) -> Check {
        let Change { lock, owner, lease, mode, scope, value, .. } = change.clone();
        let at = self.holders.iter().position(|held| Some(held.token) == change.token);
        match (change.kind, change.token, at) {
            (ChangeKind::Acquired, Some(token), None) => {
                let held = Held { lock, owner, lease, token, mode, scope, value };
                queue_order::may_be_granted(self, &held)?;
                self.holders.push(held);
            }
            (ChangeKind::Freed(_), Some(_), Some(at)) => {
                queue_order::may_be_freed(committed, &self.holders[at])?;
                self.holders.remove(at);
            }
            (ChangeKind::ValueSet, Some(_), Some(at)) => self.holders[at].value = value,
            (ChangeKind::Waiting, None, None) => {
                let Command::Acquire { request, .. } = &committed.command else {
                    return broken(queue_order::NAME, format!("{lock} is waited for, and nobody asked"));
                };
                let (ticket, request) = (Ticket(committed.index), request.clone());
                self.leases.entry(lease).or_insert((committed.index, None));
                self.waiters.push(Waiting { ticket, lock, owner, lease, mode, scope, request, since: now });
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

    fn now(&self, lock: &LockName) -> LockAt {
        let mut holders: Vec<Held> = self.holders.iter().filter(|held| held.lock == *lock).cloned().collect();
        holders.sort_by_key(|held| held.lease);
        let waiters = self.waiters.iter().filter(|waiting| waiting.lock == *lock).cloned().collect();
        LockAt { holders, waiters }
    }

    /// How a lock was at a revision.
    pub(crate) fn at(&self, lock: &LockName, revision: u64) -> &LockAt {
        let Some(history) = self.locks.get(lock) else { return &self.unused };
        let later = history.partition_point(|(from, _)| *from <= revision);
        later.checked_sub(1).map_or(&self.unused, |at| &history[at].1)
    }

    /// All locks that were held or waited for at a revision, by name.
    pub(crate) fn all_at(&self, revision: u64) -> impl Iterator<Item = (&LockName, &LockAt)> {
        let at = move |lock| (lock, self.at(lock, revision));
        self.locks.keys().map(at).filter(|(_, at)| **at != self.unused)
    }

    /// True if something was so at a revision from this one on.
    pub(crate) fn was_ever(&self, from: u64, so: impl Fn(u64) -> bool) -> bool {
        let later = self.changed.partition_point(|revision| *revision <= from);
        so(from) || self.changed[later..].iter().any(|revision| so(*revision))
    }
}
