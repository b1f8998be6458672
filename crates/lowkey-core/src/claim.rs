//! Who may hold what beside whom.
//!
//! A *claim* is a hold or a wait: a lease wants, or has, a name in a mode and a scope. Two claims are
//! rivals if they are of different leases, at least one of them is exclusive, and they cover a name in
//! common. Names are covered by path: a subtree covers its own name and all below it, `a` covers
//! `a/b` and not `ab`.

use std::collections::BTreeMap;

use crate::mutants;
use crate::name::{LeaseId, LockName, Ticket};

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

/// How many holds leases have somewhere, by mode. Below most paths one lease holds something, and there are
/// many paths: that case takes no room of its own.
///
/// Invariants: no count is 0; `Several` has more than one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Holds {
    #[default]
    None,
    One {
        lease: LeaseId,
        mode: Mode,
        count: u32,
    },
    Several(Box<Counts>),
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Counts {
    exclusive: BTreeMap<LeaseId, u32>,
    shared: BTreeMap<LeaseId, u32>,
}

impl Counts {
    fn of(&mut self, mode: Mode) -> &mut BTreeMap<LeaseId, u32> {
        match mode {
            Mode::Exclusive => &mut self.exclusive,
            Mode::Shared => &mut self.shared,
        }
    }

    fn add(&mut self, lease: LeaseId, mode: Mode, count: u32) {
        *self.of(mode).entry(lease).or_default() += count;
    }

    /// The only one that there is.
    fn only(&self) -> Option<Holds> {
        let (of_mode, mode) = match (self.exclusive.len(), self.shared.len()) {
            (1, 0) => (&self.exclusive, Mode::Exclusive),
            (0, 1) => (&self.shared, Mode::Shared),
            _ => return None,
        };
        of_mode.first_key_value().map(|(lease, count)| Holds::One { lease: *lease, mode, count: *count })
    }
}

impl Holds {
    fn add(&mut self, lease: LeaseId, mode: Mode) {
        match self {
            Self::None => *self = Self::One { lease, mode, count: 1 },
            Self::One { lease: one, mode: its_mode, count } if (*one, *its_mode) == (lease, mode) => {
                *count += 1;
            }
            Self::One { lease: one, mode: its_mode, count } => {
                let mut counts = Box::<Counts>::default();
                counts.add(*one, *its_mode, *count);
                counts.add(lease, mode, 1);
                *self = Self::Several(counts);
            }
            Self::Several(counts) => counts.add(lease, mode, 1),
        }
    }

    /// Takes off one that was added.
    fn take(&mut self, lease: LeaseId, mode: Mode) {
        match self {
            Self::One { lease: one, mode: its_mode, count } if (*one, *its_mode) == (lease, mode) => {
                *count -= 1;
                if *count == 0 {
                    *self = Self::None;
                }
            }
            Self::Several(counts) => {
                let of_mode = counts.of(mode);
                let count = of_mode.get_mut(&lease).expect("a hold that ends was counted");
                *count -= 1;
                if *count == 0 {
                    of_mode.remove(&lease);
                    if let Some(only) = counts.only() {
                        *self = only;
                    }
                }
            }
            Self::None | Self::One { .. } => unreachable!("a hold that ends was counted"),
        }
    }

    fn is_none(&self) -> bool {
        *self == Self::None
    }

    /// A lease whose hold conflicts with the claim.
    fn rival(&self, claim: &Claim) -> Option<LeaseId> {
        let other = |of_mode: &BTreeMap<LeaseId, u32>| {
            of_mode.keys().copied().find(|lease| claim.lease != Some(*lease))
        };
        match self {
            Self::None => None,
            Self::One { lease, mode, .. } => Some(*lease).filter(|lease| claim.conflicts_with(*lease, *mode)),
            Self::Several(counts) => other(&counts.exclusive).or_else(|| match claim.mode {
                Mode::Exclusive => other(&counts.shared),
                Mode::Shared => None,
            }),
        }
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
    holds_below: Holds,
    /// Nothing for most places.
    rare: Option<Box<RareClaims>>,
}

/// What few places have. Invariant: something.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct RareClaims {
    subtree_holds: Holds,
    subtree_waits: Waits,
    waits_below: Waits,
}

impl Place {
    fn is_empty(&self) -> bool {
        self.holds_below.is_none() && self.rare.is_none()
    }

    fn change_rare(&mut self, change: impl FnOnce(&mut RareClaims)) {
        let rare = self.rare.get_or_insert_default();
        change(rare);
        let RareClaims { subtree_holds, subtree_waits, waits_below } = &**rare;
        if subtree_holds.is_none() && subtree_waits.is_empty() && waits_below.is_empty() {
            self.rare = None;
        }
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
    pub(crate) fn hold(&mut self, lock: &LockName, lease: LeaseId, mode: Mode, scope: Scope) {
        self.change(lock, scope, |place, is_above| match is_above {
            true => place.holds_below.add(lease, mode),
            false => place.change_rare(|rare| rare.subtree_holds.add(lease, mode)),
        });
    }

    pub(crate) fn free(&mut self, lock: &LockName, lease: LeaseId, mode: Mode, scope: Scope) {
        self.change(lock, scope, |place, is_above| match is_above {
            true => place.holds_below.take(lease, mode),
            false => place.change_rare(|rare| rare.subtree_holds.take(lease, mode)),
        });
    }

    pub(crate) fn wait(&mut self, lock: &LockName, lease: LeaseId, ticket: Ticket, mode: Mode, scope: Scope) {
        self.change_waits(lock, scope, |waits| waits.insert(ticket, lease, mode));
    }

    pub(crate) fn leave(&mut self, lock: &LockName, ticket: Ticket, mode: Mode, scope: Scope) {
        self.change_waits(lock, scope, |waits| waits.remove(ticket, mode));
    }

    fn change_waits(&mut self, lock: &LockName, scope: Scope, change: impl Fn(&mut Waits)) {
        self.change(lock, scope, |place, is_above| {
            place.change_rare(|rare| match is_above {
                true => change(&mut rare.waits_below),
                false => change(&mut rare.subtree_waits),
            });
        });
    }

    /// Changes every place that a claim on the lock shows up in: with `true` those above it, with
    /// `false` its own, if it is a subtree.
    fn change(&mut self, lock: &LockName, scope: Scope, change: impl Fn(&mut Place, bool)) {
        if scope == Scope::Subtree {
            self.change_place(lock.as_str(), |place| change(place, false));
        }
        for ancestor in lock.ancestors() {
            self.change_place(ancestor, |place| change(place, true));
        }
    }

    fn change_place(&mut self, path: &str, change: impl FnOnce(&mut Place)) {
        let Some(place) = self.places.get_mut(path) else {
            let mut place = Place::default();
            change(&mut place);
            self.places.insert(LockName::from_ancestor(path), place);
            return;
        };
        change(place);
        if place.is_empty() {
            self.places.remove(path);
        }
    }

    fn rare(&self, path: &str) -> Option<&RareClaims> {
        self.places.get(path)?.rare.as_deref()
    }

    /// A hold at another name that is a rival of the claim.
    pub(crate) fn rival_hold<'a>(&self, claim: &'a Claim) -> Option<Found<'a, LeaseId>> {
        let above = claim.lock.ancestors().find_map(|path| {
            let lease = self.rare(path)?.subtree_holds.rival(claim)?;
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
            let ticket = self.rare(path)?.subtree_waits.rival(claim, before)?;
            Some(Found::Above(path, ticket))
        });
        above.or_else(|| match claim.scope {
            Scope::Name => None,
            Scope::Subtree => {
                self.rare(claim.lock.as_str())?.waits_below.rival(claim, before).map(Found::Below)
            }
        })
    }

    /// How many wait for this very path as a subtree.
    pub(crate) fn subtree_waiter_count(&self, path: &str) -> usize {
        self.rare(path).map_or(0, |rare| rare.subtree_waits.len())
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
        for (number, lock) in (1..).zip(["a", "a/b", "a/b/c", "ab"]) {
            paths.hold(&name(lock), LeaseId(number % 2), Mode::Shared, Scope::Subtree);
            paths.wait(&name(lock), LeaseId(1), Ticket(number), Mode::Exclusive, Scope::Subtree);
        }
        for (number, lock) in [2, 4, 1, 3].into_iter().zip(["a/b", "ab", "a", "a/b/c"]) {
            paths.free(&name(lock), LeaseId(number % 2), Mode::Shared, Scope::Subtree);
            paths.leave(&name(lock), Ticket(number), Mode::Exclusive, Scope::Subtree);
        }
        assert_eq!(paths, Paths::default());
    }

    #[test]
    fn holds_are_the_same_whatever_came_and_went_between() {
        let mut holds = Holds::default();
        holds.add(LeaseId(2), Mode::Shared);
        let before = holds.clone();
        for (lease, mode) in [(2, Mode::Exclusive), (1, Mode::Shared), (2, Mode::Shared), (3, Mode::Shared)] {
            holds.add(LeaseId(lease), mode);
        }
        let claim =
            |lease, mode| Claim { lock: name("a"), lease: Some(LeaseId(lease)), mode, scope: Scope::Name };
        assert_eq!(holds.rival(&claim(2, Mode::Shared)), None);
        assert_eq!(holds.rival(&claim(1, Mode::Shared)), Some(LeaseId(2)));
        assert_eq!(holds.rival(&claim(2, Mode::Exclusive)), Some(LeaseId(1)));
        for (lease, mode) in [(3, Mode::Shared), (2, Mode::Shared), (2, Mode::Exclusive), (1, Mode::Shared)] {
            holds.take(LeaseId(lease), mode);
        }
        assert_eq!(holds, before);
        holds.take(LeaseId(2), Mode::Shared);
        assert!(holds.is_none());
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
