//! What this node knows of the others' keys beyond the register that it has applied.
//!
//! A node that is behind may be called by a member that it has never heard of: one that joined since, and may lead. It
//! must not believe the caller, and cannot do without it either. So it asks a member whose key it knows (`vouching.rs`),
//! and keeps the answer here. Members that left the register are remembered too: until the configuration has changed
//! they still count. A node that has just joined begins with what it was told then.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lowkey_core::{KeyHash, MemberId};
use lowkey_replica::Status;

/// How many are remembered: all members of a cluster, and those that came in their place, some times over.
const KNOWN_MAX: usize = 64;

/// What is known of one member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KnownMember {
    pub(crate) member: MemberId,
    /// None for a member that has none yet.
    pub(crate) key: Option<KeyHash>,
    pub(crate) raft_address: String,
}

/// Members, by number. The newest are kept.
#[derive(Clone, Debug, Default)]
pub(crate) struct Known(Arc<Mutex<BTreeMap<MemberId, KnownMember>>>);

impl Known {
    pub(crate) fn new(members: impl IntoIterator<Item = KnownMember>) -> Self {
        let known = Self::default();
        known.learn(members);
        known
    }

    /// Takes in what a member says that is itself known, or what the register says.
    pub(crate) fn learn(&self, members: impl IntoIterator<Item = KnownMember>) {
        let mut known = self.lock();
        for member in members {
            // A key never changes, and is never taken back.
            let is_news = known.get(&member.member).is_none_or(|known| known.key.is_none());
            if is_news {
                known.insert(member.member, member);
            }
        }
        while known.len() > KNOWN_MAX {
            known.pop_first();
        }
    }

    /// Remembers who is registered.
    pub(crate) fn learn_register(&self, status: &Status) {
        self.learn(registered(status));
    }

    /// The key that a member has, by the register or by what was learned. `None` for a member of which nothing is known;
    /// `Some(None)` for one that has no key yet.
    pub(crate) fn key(&self, member: MemberId, status: &Status) -> Option<Option<KeyHash>> {
        let is_meant =
            |known: &&lowkey_replica::MemberStatus| known.member == member && known.node.identity.is_some();
        match status.members.iter().find(is_meant).map(|known| known.node.key_hash) {
            Some(key) => Some(key),
            None => self.lock().get(&member).map(|known| known.key),
        }
    }

    /// True if some member has a key, as far as this node knows. Until then the cluster is one of before.
    pub(crate) fn has_keys(&self, status: &Status) -> bool {
        status.members.iter().any(|member| member.node.key_hash.is_some())
            || self.lock().values().any(|member| member.key.is_some())
    }

    /// Members that can be asked about others: those whose key is known. Those that are registered come first.
    pub(crate) fn witnesses(&self, status: &Status, own: MemberId) -> Vec<KnownMember> {
        let mut witnesses: Vec<KnownMember> = registered(status).collect();
        let known = self.lock();
        let others = known.values().rev().filter(|known| {
            !status.has_removed(known.member) && !witnesses.iter().any(|it| it.member == known.member)
        });
        let others: Vec<KnownMember> = others.cloned().collect();
        witnesses.extend(others);
        witnesses.retain(|witness| witness.member != own && witness.key.is_some());
        witnesses
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<MemberId, KnownMember>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The members that have come, as they are registered.
pub(crate) fn registered(status: &Status) -> impl Iterator<Item = KnownMember> {
    let come = status.members.iter().filter(|member| member.node.identity.is_some());
    come.map(|member| KnownMember {
        member: member.member,
        key: member.node.key_hash,
        raft_address: member.node.raft_address.clone(),
    })
}

#[cfg(test)]
mod tests {
    use super::super::hello::tests::{member, status, with_key};
    use super::*;

    fn known(member: u64, key: Option<u8>) -> KnownMember {
        let key = key.map(|byte| KeyHash([byte; 32]));
        KnownMember { member: MemberId(member), key, raft_address: "127.0.0.1:7000".to_owned() }
    }

    #[test]
    fn the_register_goes_before_what_was_heard_and_a_key_that_is_known_stays() {
        let memory = Known::new([known(2, Some(9)), known(3, None)]);
        let both = status(vec![member(1, Some(1)), with_key(member(2, Some(2)), 2)], &[], 3);
        assert_eq!(memory.key(MemberId(2), &both), Some(Some(KeyHash([2; 32]))));
        assert_eq!(memory.key(MemberId(3), &both), Some(None));
        assert_eq!(memory.key(MemberId(4), &both), None);
        memory.learn([known(3, Some(3)), known(3, Some(8))]);
        assert_eq!(memory.key(MemberId(3), &both), Some(Some(KeyHash([3; 32]))));
    }

    #[test]
    fn only_those_with_keys_are_asked_and_not_for_ever_more_of_them() {
        let memory = Known::new((2..200).map(|number| known(number, Some(7))));
        assert_eq!(memory.lock().len(), KNOWN_MAX);
        let status = status(vec![member(1, Some(1)), with_key(member(199, Some(2)), 2)], &[], 199);
        let witnesses = memory.witnesses(&status, MemberId(1));
        assert_eq!(witnesses.len(), 1, "all others were removed: {witnesses:?}");
        assert!(Known::default().witnesses(&status, MemberId(199)).is_empty());
        assert!(
            memory.has_keys(&status)
                && !Known::new([known(2, None)]).has_keys(&super::super::hello::tests::status(
                    vec![],
                    &[],
                    1
                ))
        );
    }
}
