//! Who may hold what beside whom.
//!
//! A *claim* is a hold or a wait: a lease wants, or has, a name in a mode and a scope. Two claims are
//! rivals if they are of different leases, at least one of them is exclusive, and they cover a name in
//! common. Names are covered by path: a subtree covers its own name and all below it, `a` covers
//! `a/b` and not `ab`.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;

use crate::mutants;
use crate::name::{LeaseId, LockName, Ticket, Token};

/// How a lock is held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Mode {
    /// By one lease alone.
    #[default]
    Exclusive,
    /// Together with others that hold it as shared.
    Shared,
}

/// What a claim covers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Scope {
    /// The name alone.
    #[default]
    Name,
    /// The name and everything below it.
    Subtree,
}

/// What a lease wants, or has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Claim {
    pub(crate) lock: LockName,
    /// Nobody yet, if the lease is still to be made: then everybody else is a possible rival.
    pub(crate) lease: Option<LeaseId>,
    pub(crate) mode: Mode,
    pub(crate) scope: Scope,
}

impl Claim {
    /// True if a claim of this lease in that mode is a rival wherever the two overlap.
    pub(crate) fn conflicts_with(&self, lease: LeaseId, mode: Mode) -> bool {
        let both_share = self.mode == Mode::Shared && mode == Mode::Shared;
        self.lease != Some(lease) && !both_share
    }
}

/// Holds of several leases, each known by its token.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Holds {
    exclusive: BTreeSet<(LeaseId, Token)>,
    shared: BTreeSet<(LeaseId, Token)>,
}

impl Holds {
    fn of(&mut self, mode: Mode) -> &mut BTreeSet<(LeaseId, Token)> {
        match mode {
            Mode::Exclusive => &mut self.exclusive,
            Mode::Shared => &mut self.shared,
        }
    }

    fn is_empty(&self) -> bool {
        self.exclusive.is_empty() && self.shared.is_empty()
    }

    /// A lease whose hold conflicts with the claim.
    fn rival(&self, claim: &Claim) -> Option<LeaseId> {
        let other = |holds: &BTreeSet<(LeaseId, Token)>| {
            let (first, _) = holds.first()?;
            match claim.lease {
                Some(own) if own == *first => {
                    let behind = (Bound::Excluded((own, Token(u64::MAX))), Bound::Unbounded);
                    holds.range(behind).next().map(|(lease, _)| *lease)
                }
                _ => Some(*first),
            }
        };
        other(&self.exclusive).or_else(|| match claim.mode {
            Mode::Exclusive => other(&self.shared),
            Mode::Shared => None,
        })
    }
}

/// Waits of several leases, in the order of enqueueing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Waits {
    exclusive: BTreeMap<Ticket, LeaseId>,
    shared: BTreeMap<Ticket, LeaseId>,
}

impl Waits {
    pub(crate) fn insert(&mut self, ticket: Ticket, lease: LeaseId, mode: Mode) {
        self.of(mode).insert(ticket, lease);
    }

    pub(crate) fn remove(&mut self, ticket: Ticket, mode: Mode) {
        self.of(mode).remove(&ticket);
    }

    fn of(&mut self, mode: Mode) -> &mut BTreeMap<Ticket, LeaseId> {
        match mode {
            Mode::Exclusive => &mut self.exclusive,
            Mode::Shared => &mut self.shared,
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.exclusive.is_empty() && self.shared.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.exclusive.len() + self.shared.len()
    }

    /// First come first.
    pub(crate) fn in_order(&self) -> impl Iterator<Item = Ticket> {
        let (mut exclusive, mut shared) =
            (self.exclusive.keys().copied().peekable(), self.shared.keys().copied().peekable());
        std::iter::from_fn(move || match (exclusive.peek(), shared.peek()) {
            (Some(one), Some(other)) if one < other => exclusive.next(),
            (_, Some(_)) => shared.next(),
            (_, None) => exclusive.next(),
        })
    }

    /// The first wait before that place which conflicts with the claim.
    pub(crate) fn rival(&self, claim: &Claim, before: Ticket) -> Option<Ticket> {
        let other = |waits: &BTreeMap<Ticket, LeaseId>| {
            waits.range(..before).find(|(_, lease)| claim.lease != Some(**lease)).map(|(ticket, _)| *ticket)
        };
        let exclusive = other(&self.exclusive);
        match claim.mode {
            Mode::Shared => exclusive,
            Mode::Exclusive => [exclusive, other(&self.shared)].into_iter().flatten().min(),
        }
    }
}

/// Claims by path: what is claimed as a subtree at a path, and what is claimed below it. With this, a
/// look-up costs as much as the name is deep, however many locks there are.
///
/// Invariant: a path has a place exactly while something is claimed as a subtree at it, or anyhow
/// below it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Paths {
    places: BTreeMap<LockName, Place>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Place {
    subtree_holds: Holds,
    subtree_waits: Waits,
    holds_below: Holds,
    waits_below: Waits,
}

impl Place {
    fn is_empty(&self) -> bool {
        self.subtree_holds.is_empty()
            && self.subtree_waits.is_empty()
            && self.holds_below.is_empty()
            && self.waits_below.is_empty()
    }
}

/// Where a rival was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Found<'a, T> {
    /// It claims this very path as a subtree, and so covers all of the claim's name.
    Above(&'a str, T),
    /// It claims something below the claim's name.
    Below(T),
}

impl Paths {
    pub(crate) fn hold(&mut self, lock: &LockName, lease: LeaseId, token: Token, mode: Mode, scope: Scope) {
        self.change(lock, scope, |place, below| {
            let holds = if below { &mut place.holds_below } else { &mut place.subtree_holds };
            holds.of(mode).insert((lease, token));
        });
    }

    pub(crate) fn free(&mut self, lock: &LockName, lease: LeaseId, token: Token, mode: Mode, scope: Scope) {
        self.change(lock, scope, |place, below| {
            let holds = if below { &mut place.holds_below } else { &mut place.subtree_holds };
            holds.of(mode).remove(&(lease, token));
        });
    }

    pub(crate) fn wait(&mut self, lock: &LockName, lease: LeaseId, ticket: Ticket, mode: Mode, scope: Scope) {
        self.change(lock, scope, |place, below| {
            let waits = if below { &mut place.waits_below } else { &mut place.subtree_waits };
            waits.insert(ticket, lease, mode);
        });
    }

    pub(crate) fn leave(&mut self, lock: &LockName, ticket: Ticket, mode: Mode, scope: Scope) {
        self.change(lock, scope, |place, below| {
            let waits = if below { &mut place.waits_below } else { &mut place.subtree_waits };
            waits.remove(ticket, mode);
        });
    }

    /// Changes every place that a claim on the lock shows up in: with `true` those above it, with
    /// `false` its own, if it is a subtree.
    fn change(&mut self, lock: &LockName, scope: Scope, change: impl Fn(&mut Place, bool)) {
        if scope == Scope::Subtree {
            self.change_place(lock.clone(), |place| change(place, false));
        }
        for ancestor in lock.ancestors() {
            self.change_place(LockName::from_ancestor(ancestor), |place| change(place, true));
        }
    }

    fn change_place(&mut self, path: LockName, change: impl FnOnce(&mut Place)) {
        let place = self.places.entry(path.clone()).or_default();
        change(place);
        if place.is_empty() {
            self.places.remove(&path);
        }
    }

    /// A hold at another name that is a rival of the claim.
    pub(crate) fn rival_hold<'a>(&self, claim: &'a Claim) -> Option<Found<'a, LeaseId>> {
        let above = claim.lock.ancestors().find_map(|path| {
            let lease = self.places.get(path)?.subtree_holds.rival(claim)?;
            Some(Found::Above(path, lease))
        });
        let above = above.filter(|_| !mutants::is_active("a subtree above is not seen"));
        above.or_else(|| {
            if claim.scope == Scope::Name || mutants::is_active("a subtree does not see what is below") {
                return None;
            }
            self.places.get(&claim.lock)?.holds_below.rival(claim).map(Found::Below)
        })
    }

    /// A wait at another name, before that place in the order, that is a rival of the claim.
    pub(crate) fn rival_wait<'a>(&self, claim: &'a Claim, before: Ticket) -> Option<Found<'a, Ticket>> {
        let above = claim.lock.ancestors().find_map(|path| {
            let ticket = self.places.get(path)?.subtree_waits.rival(claim, before)?;
            Some(Found::Above(path, ticket))
        });
        above.or_else(|| match claim.scope {
            Scope::Name => None,
            Scope::Subtree => {
                self.places.get(&claim.lock)?.waits_below.rival(claim, before).map(Found::Below)
            }
        })
    }

    /// How many wait for this very path as a subtree.
    pub(crate) fn subtree_waiter_count(&self, path: &str) -> usize {
        self.places.get(path).map_or(0, |place| place.subtree_waits.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> LockName {
        LockName::parse(text).unwrap()
    }

    #[test]
    fn nothing_is_left_of_claims_that_ended() {
        let mut paths = Paths::default();
        for (token, lock) in ["a", "a/b", "a/b/c", "ab"].into_iter().enumerate() {
            let token = Token(token as u64 + 1);
            paths.hold(&name(lock), LeaseId(1), token, Mode::Shared, Scope::Subtree);
            paths.wait(&name(lock), LeaseId(1), Ticket(token.0), Mode::Exclusive, Scope::Subtree);
        }
        for (token, lock) in ["a/b", "ab", "a", "a/b/c"].into_iter().zip([2, 4, 1, 3]).map(|(l, t)| (t, l)) {
            paths.free(&name(lock), LeaseId(1), Token(token), Mode::Shared, Scope::Subtree);
            paths.leave(&name(lock), Ticket(token), Mode::Exclusive, Scope::Subtree);
        }
        assert_eq!(paths, Paths::default());
    }

    #[test]
    fn waits_are_in_the_order_of_their_tickets_whatever_their_mode() {
        let mut waits = Waits::default();
        for (ticket, mode) in
            [(5, Mode::Shared), (3, Mode::Exclusive), (9, Mode::Exclusive), (7, Mode::Shared)]
        {
            waits.insert(Ticket(ticket), LeaseId(ticket), mode);
        }
        assert_eq!(waits.in_order().map(|ticket| ticket.0).collect::<Vec<_>>(), [3, 5, 7, 9]);
    }
}
