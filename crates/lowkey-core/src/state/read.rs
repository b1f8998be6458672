//! What may be read of the state.

use std::ops::Bound;
use std::sync::Arc;

use super::{Lease, LockState, State, Wait};
use crate::claim::{Mode, Scope};
use crate::command::{HoldRef, Holder, NodeInfo, Waiter};
use crate::epoch::Epoch;
use crate::holders::Grant;
use crate::name::{
    ClusterId, Holds, LeaseId, LockName, MaxHold, MemberId, NamePrefix, OwnerId, RequestId, Ticket, Token,
    Ttl,
};

/// A lock as it is told to others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockView {
    /// Its name.
    pub lock: LockName,
    /// Who holds it, by lease; as many as were asked for.
    pub holders: Vec<Holder>,
    /// How many hold it.
    pub holder_count: usize,
    /// Who waits for it, first come first; as many as were asked for.
    pub waiters: Vec<Waiter>,
    /// How many wait for it.
    pub waiter_count: usize,
    /// If nobody holds it: the name above it that is held with its subtree, and so covers it.
    pub covered_by: Option<LockName>,
}

/// A lease as it is told to others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseView {
    /// Which.
    pub lease: LeaseId,
    /// Whom it belongs to.
    pub owner: OwnerId,
    /// How long it lives without renewal.
    pub ttl: Ttl,
    /// R7: the acquire that is to make it still waits; its time has not begun.
    pub is_waiting: bool,
    /// How many locks it holds.
    pub grant_count: usize,
    /// How many it waits for.
    pub wait_count: usize,
}

/// What a lease holds, as it is told to others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrantView {
    /// The lock.
    pub lock: LockName,
    /// The grant's fencing token.
    pub token: Token,
    /// How it is held.
    pub mode: Mode,
    /// What it covers.
    pub scope: Scope,
    /// The acquire that it was granted to.
    pub request: RequestId,
    /// The proposer's wall clock when it was granted, for display only.
    pub since_unix_ms: u64,
}

/// What a lease waits for, as it is told to others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitView {
    /// The lock.
    pub lock: LockName,
    /// How it is to be held.
    pub mode: Mode,
    /// What it is to cover.
    pub scope: Scope,
    /// The acquire that waits.
    pub request: RequestId,
}

impl State {
    /// The cluster's id.
    pub fn cluster(&self) -> ClusterId {
        self.cluster
    }

    /// The epoch that the counters began with; none if the cluster was founded at 1, or recovered without a place
    /// where epochs are claimed.
    pub fn epoch(&self) -> Option<Epoch> {
        self.epoch
    }

    /// The index of the last entry that was applied.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// At least the highest token ever granted; 0 before the first.
    pub fn last_token(&self) -> Token {
        self.last_token
    }

    /// A lease that exists.
    pub fn lease(&self, lease: LeaseId) -> Option<&Lease> {
        self.leases.get(&lease).map(Box::as_ref)
    }

    /// Every lease, by id.
    pub fn leases(&self) -> impl ExactSizeIterator<Item = (LeaseId, &Lease)> {
        self.leases.iter().map(|(id, lease)| (*id, &**lease))
    }

    /// The leases with this id and higher ones, by id.
    pub fn leases_from(&self, first: LeaseId) -> impl Iterator<Item = (LeaseId, &Lease)> {
        self.leases.range(first..).map(|(id, lease)| (*id, &**lease))
    }

    /// At least the id of the last lease that was made; 0 before the first.
    pub fn last_lease(&self) -> LeaseId {
        self.last_lease
    }

    /// The leases behind one, by id.
    pub fn leases_after(&self, after: Option<LeaseId>) -> impl Iterator<Item = LeaseView> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let views = self.leases.range((from, Bound::Unbounded));
        views.map(|(id, lease)| LeaseView {
            lease: *id,
            owner: lease.owner.clone(),
            ttl: lease.ttl,
            is_waiting: lease.is_waiting,
            grant_count: lease.held.len(),
            wait_count: lease.lock_count() - lease.held.len(),
        })
    }

    /// A lease as it is told to others.
    pub fn lease_view(&self, lease: LeaseId) -> Option<LeaseView> {
        let before = LeaseId(lease.0.checked_sub(1)?);
        self.leases_after(Some(before)).next().filter(|view| view.lease == lease)
    }

    /// How many locks a lease holds, and the digest of their tokens.
    pub fn holds_of(&self, lease: LeaseId) -> Option<Holds> {
        self.leases.get(&lease).map(|lease| lease.held.holds())
    }

    /// What a lease holds behind a name, by name.
    pub fn grants_of(&self, lease: LeaseId, after: Option<&LockName>) -> impl Iterator<Item = GrantView> {
        let held = self.leases.get(&lease).into_iter().flat_map(move |lease| lease.held.after(after));
        held.filter_map(move |lock| {
            let grant = self.locks.get(lock)?.holders.get(lease)?;
            Some(GrantView {
                lock: lock.clone(),
                token: grant.token,
                mode: grant.mode,
                scope: grant.scope,
                request: grant.request.clone(),
                since_unix_ms: grant.since_unix_ms,
            })
        })
    }

    /// What a lease waits for, by name.
    pub fn waits_of(&self, lease: LeaseId) -> impl Iterator<Item = WaitView> {
        let waits = self.leases.get(&lease).and_then(|lease| lease.waits.as_ref());
        waits.into_iter().flat_map(|waits| &waits.by_lock).filter_map(|(lock, ticket)| {
            let wait = self.waits.get(ticket)?;
            Some(WaitView {
                lock: lock.clone(),
                mode: wait.mode,
                scope: wait.scope,
                request: wait.request.clone(),
            })
        })
    }

    /// How many locks are held or waited for.
    pub fn lock_count(&self) -> usize {
        self.locks.len()
    }

    /// Every wait, first come first.
    pub fn waits(&self) -> impl ExactSizeIterator<Item = Ticket> {
        self.waits.keys().copied()
    }

    /// A lock, held or not, with at most so many of its holders and waiters.
    pub fn lock(&self, name: &LockName, shown_max: usize) -> LockView {
        match self.locks.get(name) {
            Some(lock) => self.view(name, lock, shown_max),
            None => LockView {
                lock: name.clone(),
                holders: Vec::new(),
                holder_count: 0,
                waiters: Vec::new(),
                waiter_count: 0,
                covered_by: self.covered_by(name),
            },
        }
    }

    /// The locks whose names begin with a prefix and come after a name, by name, each with at most so
    /// many of its holders and waiters.
    pub fn locks_with(
        &self,
        prefix: &NamePrefix,
        after: Option<&LockName>,
        shown_max: usize,
    ) -> impl Iterator<Item = LockView> {
        let from = match after {
            Some(after) if after.as_str() >= prefix.as_str() => Bound::Excluded(after.as_str()),
            _ => Bound::Included(prefix.as_str()),
        };
        self.locks
            .range::<str, _>((from, Bound::Unbounded))
            .take_while(|(name, _)| prefix.covers(name))
            .map(move |(name, lock)| self.view(name, lock, shown_max))
    }

    /// Who holds a lock with this token.
    pub fn holder_with(&self, name: &LockName, token: Token) -> Option<Holder> {
        let grant = self.locks.get(name)?.holders.iter().find(|grant| grant.token == token)?;
        Some(self.holder_of(grant))
    }

    /// Every grant of every lock, by name and lease.
    pub fn grants(&self) -> impl Iterator<Item = (&LockName, &Grant)> {
        self.locks.iter().flat_map(|(name, lock)| lock.holders.iter().map(move |grant| (name, grant)))
    }

    /// The grants with this token and higher ones that are held for a limited time, by token.
    pub fn limited_from(&self, first: Token) -> impl Iterator<Item = (HoldRef, MaxHold)> {
        self.limited.range(first..).filter_map(|(token, (lock, lease))| {
            let max_hold = self.locks.get(lock)?.holders.get(*lease)?.max_hold?;
            Some((HoldRef { lock: lock.clone(), lease: *lease, token: *token }, max_hold))
        })
    }

    /// Every registered node, by id.
    pub fn members(&self) -> impl ExactSizeIterator<Item = (MemberId, &Arc<NodeInfo>)> {
        self.members.iter().map(|(id, node)| (*id, node))
    }

    /// The command set that every member understands. A node that is expected has not said yet.
    pub fn command_version(&self) -> u32 {
        self.oldest_member().map_or(u32::MAX, |node| node.command_version)
    }

    /// The member that understands least.
    pub fn oldest_member(&self) -> Option<&NodeInfo> {
        let known = self.members.values().filter(|node| node.identity.is_some());
        known.min_by_key(|node| node.command_version).map(Arc::as_ref)
    }

    /// A registered node.
    pub fn member(&self, member: MemberId) -> Option<&NodeInfo> {
        self.members.get(&member).map(Arc::as_ref)
    }

    /// The highest id that a node was ever registered with.
    pub fn last_member(&self) -> MemberId {
        self.last_member
    }

    /// True while nothing is granted: see [`crate::NewBeginning`].
    pub fn is_in_quarantine(&self) -> bool {
        self.quarantine
    }

    fn view(&self, name: &LockName, lock: &LockState, shown_max: usize) -> LockView {
        let tickets = lock.queue.iter().flat_map(|queue| queue.in_order());
        LockView {
            lock: name.clone(),
            holders: lock.holders.iter().take(shown_max).map(|grant| self.holder_of(grant)).collect(),
            holder_count: lock.holders.len(),
            waiters: tickets.take(shown_max).map(|ticket| self.waiter_of(&self.waits[&ticket])).collect(),
            waiter_count: self.waiter_count(name),
            covered_by: (lock.holders.len() == 0).then(|| self.covered_by(name)).flatten(),
        }
    }

    fn covered_by(&self, name: &LockName) -> Option<LockName> {
        self.paths.held_above(name).next().map(LockName::from_ancestor)
    }

    pub(super) fn holder_of(&self, grant: &Grant) -> Holder {
        Holder {
            owner: self.leases[&grant.lease].owner.clone(),
            lease: grant.lease,
            token: grant.token,
            mode: grant.mode,
            scope: grant.scope,
            value: grant.value.clone(),
            since_unix_ms: grant.since_unix_ms,
            max_hold: grant.max_hold,
        }
    }

    fn waiter_of(&self, wait: &Wait) -> Waiter {
        Waiter {
            owner: self.leases[&wait.lease].owner.clone(),
            lease: wait.lease,
            mode: wait.mode,
            scope: wait.scope,
            asked_unix_ms: wait.asked_unix_ms,
        }
    }
}
