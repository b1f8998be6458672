//! Who held and who waited when, in plain lists, from changes that are told one by one. No invariant by
//! itself, but what the others judge by.
//!
//! It knows nothing of a simulated world: what is told may come from a committed log or from a watch. At
//! every step it asks `queue_order` whether the change was right.

use std::collections::{BTreeMap, BTreeSet};

use lowkey_core::{Holder, LeaseId, LockName, LockView, Mode, OwnerId, Scope, Ticket, Token, Value};

use super::{Check, queue_order};
use crate::claim::PlainClaim;

/// Somebody who holds a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HoldSeen {
    /// What.
    pub lock: LockName,
    /// Who, as it names itself.
    pub owner: OwnerId,
    /// With which lease.
    pub lease: LeaseId,
    /// The grant's fencing token.
    pub token: Token,
    /// How.
    pub mode: Mode,
    /// How much.
    pub scope: Scope,
    /// What the grant shows.
    pub value: Value,
}

impl HoldSeen {
    /// What it keeps others from.
    pub fn claim(&self) -> PlainClaim {
        let (lock, lease) = (self.lock.clone(), Some(self.lease));
        PlainClaim { lock, lease, mode: self.mode, scope: self.scope }
    }
}

/// Somebody who waits for a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitSeen {
    /// The revision at which the place was taken.
    pub ticket: Ticket,
    /// What is waited for.
    pub lock: LockName,
    /// Who, as it names itself.
    pub owner: OwnerId,
    /// The lease that is to hold the lock.
    pub lease: LeaseId,
    /// How it is to be held.
    pub mode: Mode,
    /// How much is to be held.
    pub scope: Scope,
}

impl WaitSeen {
    /// What it keeps those behind it from.
    pub fn claim(&self) -> PlainClaim {
        let (lock, lease) = (self.lock.clone(), Some(self.lease));
        PlainClaim { lock, lease, mode: self.mode, scope: self.scope }
    }
}

/// One lock at one revision.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LockAt {
    /// By lease.
    pub holders: Vec<HoldSeen>,
    /// First come first.
    pub waiters: Vec<WaitSeen>,
}

impl LockAt {
    /// True if this is what a read told, which shows at most so many holders and waiters.
    pub fn is_told_as(&self, view: &LockView, shown_max: usize) -> bool {
        let holders = view.holders.len() == self.holders.len().min(shown_max)
            && view.holders.iter().zip(&self.holders).all(|(told, known)| is_holder(told, known));
        let waiters = view.waiters.len() == self.waiters.len().min(shown_max)
            && view.waiters.iter().zip(&self.waiters).all(|(told, known)| {
                (&told.owner, told.lease, told.mode, told.scope)
                    == (&known.owner, known.lease, known.mode, known.scope)
            });
        holders
            && waiters
            && view.holder_count == self.holders.len()
            && view.waiter_count == self.waiters.len()
    }
}

pub(super) fn is_holder(told: &Holder, known: &HoldSeen) -> bool {
    (&told.owner, told.lease, told.token, told.mode, told.scope, &told.value)
        == (&known.owner, known.lease, known.token, known.mode, known.scope, &known.value)
}

/// The lists.
#[derive(Default)]
pub struct Chronicle {
    /// In no order.
    pub(super) holders: Vec<HoldSeen>,
    /// First come first.
    pub(super) waiters: Vec<WaitSeen>,
    /// How each lock was from which revision on.
    locks: BTreeMap<LockName, Vec<(u64, LockAt)>>,
    /// What has changed since the last entry was settled.
    touched: BTreeSet<LockName>,
    /// A lock that nobody holds or waits for.
    unused: LockAt,
    /// Revisions at which some lock changed.
    changed: Vec<u64>,
}

impl Chronicle {
    /// Who holds something now, in no order.
    pub fn holders(&self) -> &[HoldSeen] {
        &self.holders
    }

    /// Who waits now, first come first.
    pub fn waiters(&self) -> &[WaitSeen] {
        &self.waiters
    }

    /// A lock is granted.
    pub fn granted(&mut self, held: HoldSeen) -> Check {
        queue_order::may_be_granted(self, &held)?;
        self.touched.insert(held.lock.clone());
        self.holders.push(held);
        Ok(())
    }

    /// The grant with a token ends; nothing if there is none.
    pub fn freed(&mut self, token: Token) -> Option<HoldSeen> {
        let at = self.holders.iter().position(|held| held.token == token)?;
        let held = self.holders.swap_remove(at);
        self.touched.insert(held.lock.clone());
        Some(held)
    }

    /// The grant with a token shows something else; false if there is none.
    pub fn value_set(&mut self, token: Token, value: Value) -> bool {
        let held = self.holders.iter_mut().find(|held| held.token == token);
        held.is_some_and(|held| {
            held.value = value;
            self.touched.insert(held.lock.clone());
            true
        })
    }

    /// A place in a queue is taken, behind all others.
    pub fn waits(&mut self, waiting: WaitSeen) {
        self.touched.insert(waiting.lock.clone());
        self.waiters.push(waiting);
    }

    /// A place is given up, or its wait has ended with the grant; nothing if there is none.
    pub fn left(&mut self, ticket: Ticket) -> Option<WaitSeen> {
        let at = self.waiters.iter().position(|waiting| waiting.ticket == ticket)?;
        let waiting = self.waiters.remove(at);
        self.touched.insert(waiting.lock.clone());
        Some(waiting)
    }

    /// All changes of a revision were told: whoever still waits has to. True if there were any.
    pub fn settled(&mut self, revision: u64) -> Result<bool, super::Violation> {
        if self.touched.is_empty() {
            return Ok(false);
        }
        queue_order::is_settled(self, revision)?;
        self.changed.push(revision);
        for lock in std::mem::take(&mut self.touched) {
            let now = self.now(&lock);
            self.locks.entry(lock).or_default().push((revision, now));
        }
        Ok(true)
    }

    fn now(&self, lock: &LockName) -> LockAt {
        let mut holders: Vec<HoldSeen> =
            self.holders.iter().filter(|held| held.lock == *lock).cloned().collect();
        holders.sort_by_key(|held| held.lease);
        let waiters = self.waiters.iter().filter(|waiting| waiting.lock == *lock).cloned().collect();
        LockAt { holders, waiters }
    }

    /// How a lock was at a revision.
    pub fn at(&self, lock: &LockName, revision: u64) -> &LockAt {
        let Some(history) = self.locks.get(lock) else { return &self.unused };
        let later = history.partition_point(|(from, _)| *from <= revision);
        later.checked_sub(1).map_or(&self.unused, |at| &history[at].1)
    }

    /// All locks that were held or waited for at a revision, by name.
    pub fn all_at(&self, revision: u64) -> impl Iterator<Item = (&LockName, &LockAt)> {
        let at = move |lock| (lock, self.at(lock, revision));
        self.locks.keys().map(at).filter(|(_, at)| **at != self.unused)
    }

    /// True if something was so at a revision from this one on.
    pub fn was_ever(&self, from: u64, so: impl Fn(u64) -> bool) -> bool {
        self.was_between(from, u64::MAX, so)
    }

    /// True if something was so at a revision of these, both included.
    pub fn was_between(&self, from: u64, to: u64, so: impl Fn(u64) -> bool) -> bool {
        let later = self.changed.partition_point(|revision| *revision <= from);
        so(from) || self.changed[later..].iter().take_while(|revision| **revision <= to).any(|at| so(*at))
    }

    /// True if a claim could not have been granted at a revision.
    pub fn is_blocked(&self, claim: &PlainClaim, revision: u64) -> bool {
        self.all_at(revision).any(|(_, at)| {
            at.holders.iter().any(|held| held.claim().excludes(claim))
                || at.waiters.iter().any(|waiting| waiting.claim().excludes(claim))
        })
    }
}
