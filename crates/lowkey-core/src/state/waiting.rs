//! Conflicts, and how a freed lock is handed over (`docs/internals/waiting.md`).
//!
//! One test decides for new requests and for waiters: a claim is granted if it conflicts with no holder and
//! with no *earlier* waiter. So nobody overtakes, and claims that conflict with much (an exclusive lock among
//! sharers, a subtree among names) do not starve. One exception prevents a deadlock of a lease with itself: what
//! its own subtree covers it is granted at once.
//!
//! Granting a waiter blocks nobody new: it already blocked the same claims as an earlier waiter. So all that can
//! be granted is found first, and then granted in the order of enqueueing.

use std::collections::BTreeSet;
use std::ops::Bound;

use super::effects::Shown;
use super::{Lease, LockState, State, Wait};
use crate::claim::{Claim, Mode, Scope};
use crate::command::{Change, ChangeKind, Command, Event, InTheWay, Reply, WaitEnd};
use crate::mutants;
use crate::name::{LeaseId, LockName, Ticket, Token, Value};
use crate::paths::RivalAt;

/// After every place.
pub(super) const LAST: Ticket = Ticket(u64::MAX);

/// What stands in the way of a claim.
pub(super) struct Rival {
    lease: LeaseId,
    mode: Mode,
    /// It covers all of the claim's name, and so stands in the way of others there too.
    covers: bool,
}

/// Where something was freed: waiters around it may have their turn.
#[derive(Default)]
pub(super) struct Freed {
    names: BTreeSet<LockName>,
}

impl State {
    /// True if a command would only take a place in a queue, as things are now.
    pub fn would_wait(&self, command: &Command) -> bool {
        let Command::Acquire { lock, with, mode, scope, wait: true, .. } = command else { return false };
        let lease = with.lease();
        // What a lease holds already it is granted again.
        let holds =
            lease.and_then(|lease| self.leases.get(&lease)).is_some_and(|lease| lease.held.contains(lock));
        !holds && self.is_blocked(&Claim { lock: lock.clone(), lease, mode: *mode, scope: *scope })
    }

    /// True if a new request would have to wait.
    pub(super) fn is_blocked(&self, claim: &Claim) -> bool {
        self.rival(claim, LAST).is_some()
            && !self.is_covered_by_own(claim)
            && !mutants::A_HELD_LOCK_IS_GRANTED_AGAIN.is_active()
            && (!mutants::A_NEWCOMER_OVERTAKES.is_active() || self.has_rival_holder(claim))
    }

    /// True if the lease holds a subtree that covers the claim, in a mode that is enough for it. Others
    /// that wait there wait for this lease: to wait behind them would be a deadlock.
    fn is_covered_by_own(&self, claim: &Claim) -> bool {
        claim.lease.is_some_and(|lease| {
            self.paths.held_above(&claim.lock).any(|path| {
                let own = self.locks.get(path).and_then(|lock| lock.holders.get(lease));
                own.is_some_and(|own| {
                    let is_enough = own.mode == Mode::Exclusive || claim.mode == Mode::Shared;
                    own.scope == Scope::Subtree && is_enough
                })
            })
        })
    }

    fn rival(&self, claim: &Claim, before: Ticket) -> Option<Rival> {
        let lock = self.lock_at(&claim.lock);
        self.rival_holder(claim, lock).map(|(_, rival)| rival).or_else(|| {
            let (ticket, covers) = self.rival_waiter(claim, lock, before)?;
            let Wait { lease, mode, .. } = self.waits[&ticket];
            Some(Rival { lease, mode, covers })
        })
    }

    pub(super) fn lock_at(&self, name: &LockName) -> Option<&LockState> {
        self.locks.get(name).map(Box::as_ref)
    }

    /// A holder that conflicts with the claim, and what it holds. `lock` is the claim's.
    pub(super) fn rival_holder(&self, claim: &Claim, lock: Option<&LockState>) -> Option<(LockName, Rival)> {
        let here = lock.and_then(|lock| lock.holders.rival(claim));
        let here = here.filter(|grant| {
            grant.mode == Mode::Exclusive || !mutants::SHARERS_ADMIT_AN_EXCLUSIVE_HOLDER.is_active()
        });
        if let Some(grant) = here {
            let rival = Rival { lease: grant.lease, mode: grant.mode, covers: true };
            return Some((claim.lock.clone(), rival));
        }
        let (held, lease, covers) = match self.paths.rival_hold(claim)? {
            RivalAt::Above(path, lease) => (LockName::from_ancestor(path), lease, true),
            RivalAt::Below(lease) => (self.held_below(claim, lease), lease, false),
        };
        let mode = self.locks[&held].holders.get(lease).expect("a hold by path is a hold").mode;
        Some((held, Rival { lease, mode, covers }))
    }

    /// Which of a lease's locks below the claim's name is in its way.
    fn held_below(&self, claim: &Claim, lease: LeaseId) -> LockName {
        let mut names = self.leases[&lease].held.below(&claim.lock);
        let in_the_way = names.find(|name| {
            let grant = self.locks[*name].holders.get(lease).expect("a lease holds what it lists");
            claim.conflicts_with(lease, grant.mode)
        });
        in_the_way.expect("a hold by path is a hold").clone()
    }

    /// A waiter before that place that conflicts with the claim, and whether it covers all of it. `lock`
    /// is the claim's.
    fn rival_waiter(
        &self,
        claim: &Claim,
        lock: Option<&LockState>,
        before: Ticket,
    ) -> Option<(Ticket, bool)> {
        let queue = lock.and_then(|lock| lock.queue.as_ref());
        if let Some(ticket) = queue.and_then(|queue| queue.rival(claim, before)) {
            return Some((ticket, true));
        }
        Some(match self.paths.rival_wait(claim, before)? {
            RivalAt::Above(_, ticket) => (ticket, true),
            RivalAt::Below(ticket) => (ticket, false),
        })
    }

    /// Who holds what a claim at that place waits for, if need be by way of those who wait before it.
    pub(super) fn in_the_way(&self, claim: &Claim, place: Ticket) -> Option<InTheWay> {
        let waiters = self.waiter_count(&claim.lock);
        let (mut claim, mut before) = (claim.clone(), place);
        loop {
            let lock = self.lock_at(&claim.lock);
            if let Some((held, rival)) = self.rival_holder(&claim, lock) {
                let grant = self.locks[&held].holders.get(rival.lease).expect("a rival holder holds");
                return Some(InTheWay { holder: self.holder_of(grant), held, waiters });
            }
            // Places only get earlier, so this ends.
            before = self.rival_waiter(&claim, lock, before)?.0;
            claim = self.waits[&before].claim();
        }
    }

    pub(super) fn waiter_count(&self, lock: &LockName) -> usize {
        let queue = self.locks.get(lock).and_then(|lock| lock.queue.as_ref());
        queue.map_or(0, |queue| queue.len())
    }

    /// Takes a place behind all others. The lock is held or waited for, by the claim's rivals at least.
    pub(crate) fn enqueue(&mut self, ticket: Ticket, wait: Wait, events: &mut Vec<Event>) {
        let Wait { lock, lease, mode, scope, .. } = wait.clone();
        let holder = self.leases.get_mut(&lease).expect("a wait hangs on a lease that exists");
        let waits = holder.waits.get_or_insert_default();
        waits.by_lock.insert((lock.clone(), ticket));
        let before = waits.by_request.insert(wait.request.clone(), ticket);
        assert!(before.is_none(), "request {} waits twice", wait.request);
        if wait.makes_lease {
            self.lease_making_waits.insert((holder.owner.clone(), wait.request.clone()), ticket);
        }
        let queue = self.locks.entry(lock.clone()).or_default().queue.get_or_insert_default();
        queue.insert(ticket, lease, mode);
        self.queued.insert(lock.clone());
        self.paths.wait(&lock, lease, ticket, mode, scope);
        let before = self.put_wait(ticket, wait);
        assert!(before.is_none(), "place {ticket} was given twice");
        events.push(Event::Changed(self.change_of_wait(ChangeKind::Waiting, ticket)));
    }

    /// Takes a wait out of the queue.
    pub(super) fn remove_wait(&mut self, ticket: Ticket) -> Wait {
        let wait = self.take_wait(ticket).expect("a wait that ends exists");
        let lock = self.locks.get_mut(&wait.lock).expect("a lock that is waited for exists");
        let queue = lock.queue.as_mut().expect("a lock that is waited for has a queue");
        queue.remove(ticket, wait.mode);
        if queue.is_empty() {
            lock.queue = None;
            self.queued.remove(&wait.lock);
        }
        self.paths.leave(&wait.lock, ticket, wait.mode, wait.scope);
        self.forget_if_unused(&wait.lock);
        // The lease may have ended just now.
        if let Some(lease) = self.leases.get_mut(&wait.lease)
            && let Some(waits) = &mut lease.waits
        {
            waits.by_lock.remove(&(wait.lock.clone(), ticket));
            waits.by_request.remove(&wait.request);
            if waits.by_lock.is_empty() {
                lease.waits = None;
            }
        }
        wait
    }

    pub(super) fn forget_if_unused(&mut self, name: &LockName) {
        if let Some(LockState { holders, queue: None }) = self.lock_at(name)
            && holders.len() == 0
        {
            self.locks.remove(name);
        }
    }

    /// Remembers whose turn it may be now that a claim on this name is gone.
    pub(super) fn note_freed(&self, freed: &mut Freed, lock: &LockName, scope: Scope) {
        if self.queued.contains(lock) {
            freed.names.insert(lock.clone());
        }
        freed.names.extend(self.paths.awaited_above(lock).map(LockName::from_ancestor));
        if scope == Scope::Subtree {
            let (from, before) = lock.below();
            let below = (Bound::Included(from.as_str()), Bound::Excluded(before.as_str()));
            freed.names.extend(self.queued.range::<str, _>(below).cloned());
        }
    }

    /// Grants everything that became free, to all whose turn it is, in the order of enqueueing.
    pub(super) fn hand_over(&mut self, freed: Freed, since_unix_ms: u64, events: &mut Vec<Event>) {
        let mut turns = Vec::new();
        for name in &freed.names {
            match mutants::THE_LAST_IN_LINE_GOES_FIRST.is_active() {
                false => self.find_turns(name, &mut turns),
                true => turns.extend(self.last_in_line(name)),
            }
        }
        turns.sort_unstable();
        for ticket in turns.into_iter().filter(|_| !mutants::A_FREED_LOCK_IS_NOT_HANDED_OVER.is_active()) {
            self.grant_wait(ticket, since_unix_ms, events);
        }
    }

    /// Those who wait for this name and are in nobody's way any more.
    fn find_turns(&self, name: &LockName, turns: &mut Vec<Ticket>) {
        // Something noted earlier may have left the queue since.
        let Some(queue) = self.locks.get(name).and_then(|lock| lock.queue.as_ref()) else { return };
        let are_all_subtrees = self.paths.subtree_waiter_count(name) == queue.len();
        for ticket in queue.in_order() {
            let wait = &self.waits[&ticket];
            let Some(rival) = self.rival(&wait.claim(), ticket) else {
                turns.push(ticket);
                continue;
            };
            match (wait.mode, rival) {
                // It stands in the way of everyone behind it. Most queues end here.
                (Mode::Exclusive, _) => return,
                // Its rival does, but for that lease's own waits: at this name, or below it if everyone
                // wants all that is below.
                (Mode::Shared, Rival { lease, mode: Mode::Exclusive, covers })
                    if covers || are_all_subtrees =>
                {
                    let own = self.leases[&lease].waits_for(name).filter(|other| *other > ticket);
                    turns.extend(own.filter(|own| self.rival(&self.waits[own].claim(), *own).is_none()));
                    return;
                }
                (Mode::Shared, _) => {}
            }
        }
    }

    fn grant_wait(&mut self, ticket: Ticket, since_unix_ms: u64, events: &mut Vec<Event>) {
        let wait = self.remove_wait(ticket);
        if wait.makes_lease {
            let owner = self.leases[&wait.lease].owner.clone();
            self.lease_making_waits.remove(&(owner, wait.request.clone()));
        }
        let Lease { ttl, is_waiting, .. } = *self.leases[&wait.lease];
        if is_waiting {
            self.change_lease(wait.lease, |lease| lease.is_waiting = false);
            // R7: only now does its time begin.
            events.push(Event::LeaseStarted { lease: wait.lease, ttl });
        }
        // Two requests of one lease may have waited for the same name: they share the grant.
        let reply = match self.ask_again(&wait.lock, wait.lease, &wait.value, events) {
            Some(reply) => reply,
            None => {
                let shown = Shown { value: wait.value.clone(), since_unix_ms, max_hold: wait.max_hold };
                self.grant(&wait.claim(), shown, &wait.request, events)
            }
        };
        match wait.makes_lease {
            false => self.remember(wait.lease, &wait.request, wait.fingerprint, &reply),
            true => {
                let owner = self.leases[&wait.lease].owner.clone();
                self.remember_lease_request(&owner, &wait.request, wait.fingerprint, &reply);
            }
        }
        events.push(Event::WaitEnded { ticket, end: WaitEnd::Granted(reply) });
    }

    /// Ends a wait without the lock; a lease that was made by it ends with it.
    pub(super) fn end_wait(
        &mut self,
        ticket: Ticket,
        end: WaitEnd,
        freed: &mut Freed,
        events: &mut Vec<Event>,
    ) {
        events.push(Event::Changed(self.change_of_wait(ChangeKind::Cancelled, ticket)));
        let wait = self.remove_wait(ticket);
        if wait.makes_lease && !mutants::A_LEASE_OUTLIVES_THE_WAIT_THAT_MADE_IT.is_active() {
            let lease = self.take_lease(wait.lease).expect("a waiter's lease exists");
            self.lease_making_waits.remove(&(lease.owner, wait.request.clone()));
            events.push(Event::LeaseEnded { lease: wait.lease });
        }
        self.note_freed(freed, &wait.lock, wait.scope);
        events.push(Event::WaitEnded { ticket, end });
    }

    /// What cannot be: two holders in each other's way, or a waiter in nobody's. For states that come
    /// from elsewhere.
    pub(crate) fn contradiction(&self) -> Option<String> {
        let mut rivals = self.grants().filter_map(|(lock, grant)| {
            let (lease, mode, scope) = (Some(grant.lease), grant.mode, grant.scope);
            let claim = Claim { lock: lock.clone(), lease, mode, scope };
            let (held, _) = self.rival_holder(&claim, self.lock_at(lock))?;
            Some(format!("{lock} is held by lease {} beside {held}, which it excludes", grant.lease))
        });
        let mut idle = self.waits.iter().filter_map(|(ticket, wait)| {
            let waits = self.rival(&wait.claim(), *ticket).is_some();
            (!waits).then(|| format!("lease {} waits for {}, which it could have", wait.lease, wait.lock))
        });
        rivals.next().or_else(|| idle.next())
    }

    fn change_of_wait(&self, kind: ChangeKind, ticket: Ticket) -> Change {
        let wait = &self.waits[&ticket];
        Change {
            kind,
            lock: wait.lock.clone(),
            owner: self.leases[&wait.lease].owner.clone(),
            lease: wait.lease,
            token: None,
            mode: wait.mode,
            scope: wait.scope,
            value: Value::default(),
            since_unix_ms: 0,
            at_unix_ms: 0,
            actor: None,
        }
    }

    pub(super) fn granted(&self, grant: &crate::holders::Grant) -> Reply {
        Reply::Granted {
            token: grant.token,
            lease: grant.lease,
            ttl: self.leases[&grant.lease].ttl,
            revision: grant.revision,
        }
    }

    pub(super) fn next_token(&mut self) -> Token {
        self.last_token = match mutants::TOKEN_FROM_MEMORY_INSTEAD_OF_STATE.is_active() {
            false => Token(self.last_token.0 + 1),
            true => Token(mutants::count_in_memory()),
        };
        self.last_token
    }
}
