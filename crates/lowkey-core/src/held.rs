//! Which locks one lease holds.
//!
//! Most leases hold one lock, so that case takes no room of its own: a tree has room for eleven at least.

use std::collections::BTreeSet;
use std::ops::{Bound, RangeBounds};

use crate::name::{Holds, LockName, Token};

/// What a lease holds: the names, in their order, and the digest of their tokens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct HeldLocks {
    names: Names,
    /// Of exactly the grants of `names`: what a client's own belief is compared with.
    holds: Holds,
}

impl HeldLocks {
    /// False if it was there already.
    pub(crate) fn insert(&mut self, lock: LockName, token: Token) -> bool {
        let is_new = self.names.insert(lock);
        if is_new {
            self.holds.add(token);
        }
        is_new
    }

    /// Takes out a lock that is held with this token.
    pub(crate) fn remove(&mut self, lock: &LockName, token: Token) {
        if self.names.remove(lock) {
            self.holds.remove(token);
        }
    }

    pub(crate) fn contains(&self, lock: &LockName) -> bool {
        self.names.contains(lock)
    }

    pub(crate) fn len(&self) -> usize {
        self.names.len()
    }

    pub(crate) fn holds(&self) -> Holds {
        self.holds
    }

    /// The only one.
    pub(crate) fn only(&self) -> Option<&LockName> {
        match &self.names {
            Names::One(lock) => Some(lock),
            Names::Nothing | Names::Several(_) => None,
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &LockName> {
        self.names.within((Bound::Unbounded, Bound::Unbounded))
    }

    /// Those behind a name, or all.
    pub(crate) fn after(&self, lock: Option<&LockName>) -> impl Iterator<Item = &LockName> {
        let from = lock.map_or(Bound::Unbounded, |lock| Bound::Excluded(lock.as_str()));
        self.names.within((from, Bound::Unbounded))
    }

    /// Those below a name.
    pub(crate) fn below(&self, lock: &LockName) -> impl Iterator<Item = &LockName> {
        let (from, before) = lock.below();
        self.names.within((Bound::Included(&from), Bound::Excluded(&before)))
    }
}

/// Names in their order.
///
/// Invariant: `Several` has more than one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
enum Names {
    #[default]
    Nothing,
    One(LockName),
    Several(BTreeSet<LockName>),
}

impl Names {
    /// False if it was there already.
    fn insert(&mut self, lock: LockName) -> bool {
        match self {
            Self::Nothing => {
                *self = Self::One(lock);
                true
            }
            Self::One(first) if *first == lock => false,
            Self::One(first) => {
                *self = Self::Several(BTreeSet::from([first.clone(), lock]));
                true
            }
            Self::Several(locks) => locks.insert(lock),
        }
    }

    /// False if it was not there.
    fn remove(&mut self, lock: &LockName) -> bool {
        match self {
            Self::One(only) if only == lock => {
                *self = Self::Nothing;
                true
            }
            Self::Several(locks) => {
                let was_there = locks.remove(lock);
                if locks.len() == 1
                    && let Some(last) = locks.pop_first()
                {
                    *self = Self::One(last);
                }
                was_there
            }
            Self::Nothing | Self::One(_) => false,
        }
    }

    fn contains(&self, lock: &LockName) -> bool {
        match self {
            Self::Nothing => false,
            Self::One(only) => only == lock,
            Self::Several(locks) => locks.contains(lock),
        }
    }

    fn len(&self) -> usize {
        match self {
            Self::Nothing => 0,
            Self::One(_) => 1,
            Self::Several(locks) => locks.len(),
        }
    }

    fn within<'a>(
        &'a self,
        range: (Bound<&str>, Bound<&str>),
    ) -> impl Iterator<Item = &'a LockName> + use<'a> {
        let (one, several) = match self {
            Self::Nothing => (None, None),
            Self::One(only) => {
                (Some(only).filter(|only| RangeBounds::<str>::contains(&range, only.as_str())), None)
            }
            Self::Several(locks) => (None, Some(locks.range::<str, _>(range))),
        };
        one.into_iter().chain(several.into_iter().flatten())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> LockName {
        LockName::parse(text).expect("a good name")
    }

    fn below<'a>(held: &'a HeldLocks, lock: &str) -> Vec<&'a str> {
        held.below(&name(lock)).map(LockName::as_str).collect()
    }

    #[test]
    fn what_was_taken_and_given_back_leaves_nothing_however_many_there_were() {
        let names = ["a/c", "a", "b", "a/b"].map(name);
        let mut held = HeldLocks::default();
        for (count, lock) in (1..).zip(&names) {
            assert!(
                held.insert(lock.clone(), Token(count as u64))
                    && !held.insert(lock.clone(), Token(99))
                    && held.contains(lock)
            );
            assert_eq!(held.len(), count);
            assert_eq!(held.holds(), Holds::of((1..=count as u64).map(Token)));
        }
        assert_eq!(held.iter().map(LockName::as_str).collect::<Vec<_>>(), ["a", "a/b", "a/c", "b"]);
        assert_eq!(below(&held, "a"), ["a/b", "a/c"]);
        for (token, (left, lock)) in (1..).zip((0..names.len()).rev().zip(&names)) {
            held.remove(lock, Token(token));
            held.remove(lock, Token(token));
            assert_eq!((held.len(), held.contains(lock)), (left, false));
        }
        assert_eq!(held, HeldLocks::default());
    }

    #[test]
    fn one_lock_is_below_what_is_above_it_and_nothing_else() {
        let mut held = HeldLocks::default();
        held.insert(name("a/b"), Token(1));
        assert_eq!(
            (below(&held, "a"), below(&held, "a/b"), below(&held, "b")),
            (vec!["a/b"], vec![], vec![])
        );
    }
}
