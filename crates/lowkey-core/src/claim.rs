//! Which claims conflict.
//!
//! A *claim* is a hold or a wait: a lease wants, or has, a name in a mode and a scope. Two claims are
//! rivals if they are of different leases, at least one of them is exclusive, and they cover a name in
//! common. Names are covered by path: a subtree covers its own name and all below it, `a` covers
//! `a/b` and not `ab`.

use std::collections::BTreeMap;

pub use lowkey_token::Mode;

use crate::name::{LeaseId, LockName, Ticket};

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
pub(crate) enum HoldClaims {
    #[default]
    None,
    One {
        lease: LeaseId,
        mode: Mode,
        count: u32,
    },
    Several(Box<HoldCounts>),
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct HoldCounts {
    exclusive: BTreeMap<LeaseId, u32>,
    shared: BTreeMap<LeaseId, u32>,
}

impl HoldCounts {
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
    fn only(&self) -> Option<HoldClaims> {
        let (of_mode, mode) = match (self.exclusive.len(), self.shared.len()) {
            (1, 0) => (&self.exclusive, Mode::Exclusive),
            (0, 1) => (&self.shared, Mode::Shared),
            _ => return None,
        };
        of_mode.first_key_value().map(|(lease, count)| HoldClaims::One { lease: *lease, mode, count: *count })
    }
}

impl HoldClaims {
    pub(crate) fn add(&mut self, lease: LeaseId, mode: Mode) {
        match self {
            Self::None => *self = Self::One { lease, mode, count: 1 },
            Self::One { lease: one, mode: its_mode, count } if (*one, *its_mode) == (lease, mode) => {
                *count += 1;
            }
            Self::One { lease: one, mode: its_mode, count } => {
                let mut counts = Box::<HoldCounts>::default();
                counts.add(*one, *its_mode, *count);
                counts.add(lease, mode, 1);
                *self = Self::Several(counts);
            }
            Self::Several(counts) => counts.add(lease, mode, 1),
        }
    }

    /// Takes off one that was added.
    pub(crate) fn take(&mut self, lease: LeaseId, mode: Mode) {
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

    pub(crate) fn is_none(&self) -> bool {
        *self == Self::None
    }

    /// How many entries there are, each with its count.
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::None => 0,
            Self::One { .. } => 1,
            Self::Several(counts) => counts.exclusive.len() + counts.shared.len(),
        }
    }

    /// A lease whose hold conflicts with the claim.
    pub(crate) fn rival(&self, claim: &Claim) -> Option<LeaseId> {
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
pub(crate) struct WaitClaims {
    exclusive: BTreeMap<Ticket, LeaseId>,
    shared: BTreeMap<Ticket, LeaseId>,
}

impl WaitClaims {
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

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> LockName {
        LockName::parse(text).unwrap()
    }

    #[test]
    fn holds_are_the_same_whatever_came_and_went_between() {
        let mut holds = HoldClaims::default();
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
        let mut waits = WaitClaims::default();
        for (ticket, mode) in
            [(5, Mode::Shared), (3, Mode::Exclusive), (9, Mode::Exclusive), (7, Mode::Shared)]
        {
            waits.insert(Ticket(ticket), LeaseId(ticket), mode);
        }
        assert_eq!(waits.in_order().map(|ticket| ticket.0).collect::<Vec<_>>(), [3, 5, 7, 9]);
    }
}
