//! Which locks one lease holds.
//!
//! Most leases hold one lock, so that case takes no room of its own: a tree has room for eleven at least.

use std::collections::BTreeSet;
use std::ops::{Bound, RangeBounds};

use crate::name::LockName;

/// The names of the locks that a lease holds, in their order.
///
/// Invariant: `Several` has more than one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Held {
    #[default]
    Nothing,
    One(LockName),
    Several(BTreeSet<LockName>),
}

impl Held {
    /// False if it was there already.
    pub(crate) fn insert(&mut self, lock: LockName) -> bool {
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

    pub(crate) fn remove(&mut self, lock: &LockName) {
        match self {
            Self::One(only) if only == lock => *self = Self::Nothing,
            Self::Several(locks) => {
                locks.remove(lock);
                if locks.len() == 1
                    && let Some(last) = locks.pop_first()
                {
                    *self = Self::One(last);
                }
            }
            Self::Nothing | Self::One(_) => {}
        }
    }

    pub(crate) fn contains(&self, lock: &LockName) -> bool {
        match self {
            Self::Nothing => false,
            Self::One(only) => only == lock,
            Self::Several(locks) => locks.contains(lock),
        }
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Nothing => 0,
            Self::One(_) => 1,
            Self::Several(locks) => locks.len(),
        }
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &LockName> {
        self.within((Bound::Unbounded, Bound::Unbounded))
    }

    /// Those below a name.
    pub(crate) fn below(&self, lock: &LockName) -> impl Iterator<Item = &LockName> {
        let (from, before) = lock.below();
        self.within((Bound::Included(&from), Bound::Excluded(&before)))
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

    fn below<'a>(held: &'a Held, lock: &str) -> Vec<&'a str> {
        held.below(&name(lock)).map(LockName::as_str).collect()
    }

    #[test]
    fn what_was_taken_and_given_back_leaves_nothing_however_many_there_were() {
        let names = ["a/c", "a", "b", "a/b"].map(name);
        let mut held = Held::default();
        for (count, lock) in (1..).zip(&names) {
            assert!(held.insert(lock.clone()) && !held.insert(lock.clone()) && held.contains(lock));
            assert_eq!(held.len(), count);
        }
        assert_eq!(held.iter().map(LockName::as_str).collect::<Vec<_>>(), ["a", "a/b", "a/c", "b"]);
        assert_eq!(below(&held, "a"), ["a/b", "a/c"]);
        for (left, lock) in (0..names.len()).rev().zip(&names) {
            held.remove(lock);
            held.remove(lock);
            assert_eq!((held.len(), held.contains(lock)), (left, false));
        }
        assert_eq!(held, Held::Nothing);
    }

    #[test]
    fn one_lock_is_below_what_is_above_it_and_nothing_else() {
        let mut held = Held::default();
        held.insert(name("a/b"));
        assert_eq!(
            (below(&held, "a"), below(&held, "a/b"), below(&held, "b")),
            (vec!["a/b"], vec![], vec![])
        );
    }
}
