//! Who is in whose way, as a reader of `docs/internals/waiting.md` would put it: plain lists, names split at `/`.
//!
//! The checks judge by this and not by the state machine's own notion, which is one of the things that
//! are judged.

use lowkey_core::{LeaseId, LockName, Mode, Scope};

/// What a lease has or wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlainClaim {
    /// The name.
    pub lock: LockName,
    /// Nobody yet, if the lease is still to be made.
    pub lease: Option<LeaseId>,
    /// How.
    pub mode: Mode,
    /// How much.
    pub scope: Scope,
}

impl PlainClaim {
    /// True if it is a claim on this name, too.
    pub fn covers(&self, name: &LockName) -> bool {
        let mut segments = name.as_str().split('/');
        let is_at_or_above = self.lock.as_str().split('/').all(|segment| segments.next() == Some(segment));
        is_at_or_above && (self.scope == Scope::Subtree || segments.next().is_none())
    }

    /// True if the two cannot be held at the same time.
    pub fn excludes(&self, other: &Self) -> bool {
        let is_own = self.lease.is_some() && self.lease == other.lease;
        let both_share = self.mode == Mode::Shared && other.mode == Mode::Shared;
        !is_own && !both_share && (self.covers(&other.lock) || other.covers(&self.lock))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(lock: &str, lease: u64, mode: Mode, scope: Scope) -> PlainClaim {
        let lock = LockName::parse(lock).expect("a name");
        PlainClaim { lock, lease: Some(LeaseId(lease)), mode, scope }
    }

    #[test]
    fn a_subtree_covers_what_is_below_it_and_not_what_merely_begins_like_it() {
        let tree = claim("a", 1, Mode::Exclusive, Scope::Subtree);
        for (lock, excluded) in [("a", true), ("a/b", true), ("a/b/c", true), ("ab", false), ("b/a", false)] {
            let name = claim(lock, 2, Mode::Shared, Scope::Name);
            assert_eq!((tree.excludes(&name), name.excludes(&tree)), (excluded, excluded), "{lock}");
        }
    }

    #[test]
    fn sharers_and_what_one_lease_has_exclude_nothing() {
        let shared = claim("a", 1, Mode::Shared, Scope::Name);
        assert!(!shared.excludes(&claim("a", 2, Mode::Shared, Scope::Subtree)));
        assert!(shared.excludes(&claim("a", 2, Mode::Exclusive, Scope::Subtree)));
        assert!(!shared.excludes(&claim("a", 1, Mode::Exclusive, Scope::Subtree)));
    }
}
