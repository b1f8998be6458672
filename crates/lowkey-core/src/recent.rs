//! Idempotency: requests that had their effect are remembered with their replies, so that a repetition has none.
//!
//! A table forgets its oldest request when it is full. Refusals are not kept: a refusal changed
//! nothing, so asking again may well be answered differently, and no harm is done.

mod index;

use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher as _};

use crate::command::Reply;
use crate::digest::{Digest, DigestPart};
use crate::limits::{LEASE_REQUESTS_KEPT, REQUESTS_PER_LEASE_KEPT};
use crate::name::{OwnerId, RequestId};

use self::index::{Index, SlotTable, Tree};

/// Up to this many are searched one by one. Most leases remember fewer, there are many leases, and the smallest index has
/// 32 slots.
const FEW: usize = 8;

/// A bounded memory of requests, in the order in which they took effect.
///
/// Invariants:
/// - No two have the same key.
/// - There are at most [`Key::KEPT_MAX`] of them.
/// - There is an index exactly if there are more than [`FEW`]. It has them all.
/// - `digest` is that of all of them.
#[derive(Clone, Debug)]
pub(crate) struct Recent<K: Key> {
    /// Oldest first.
    kept: VecDeque<(K, Remembered)>,
    index: Option<Box<K::Index>>,
    digest: Digest,
}

/// May differ from build to build: it changes how soon something is found, never what.
fn hash_of(key: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    hasher.finish()
}

/// What requests are remembered by.
pub(crate) trait Key: Eq + Hash + Clone {
    /// How many are remembered.
    const KEPT_MAX: usize;

    /// How they are found.
    type Index: Index;

    fn part<'a>(&'a self, remembered: &'a Remembered) -> DigestPart<'a>;
}

impl Key for RequestId {
    const KEPT_MAX: usize = REQUESTS_PER_LEASE_KEPT;
    type Index = SlotTable;

    fn part<'a>(&'a self, remembered: &'a Remembered) -> DigestPart<'a> {
        DigestPart::Request(None, self, remembered)
    }
}

impl Key for (OwnerId, RequestId) {
    const KEPT_MAX: usize = LEASE_REQUESTS_KEPT;
    type Index = Tree;

    fn part<'a>(&'a self, remembered: &'a Remembered) -> DigestPart<'a> {
        DigestPart::Request(Some(&self.0), &self.1, remembered)
    }
}

/// What is known of a request that had its effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Remembered {
    /// Tells a retry from another operation under the same id.
    pub(crate) fingerprint: u64,
    /// What was answered.
    pub(crate) reply: Reply,
}

// What was forgotten, and so how requests are numbered, is no part of what is remembered.
impl<K: Key> PartialEq for Recent<K> {
    fn eq(&self, other: &Self) -> bool {
        self.kept == other.kept
    }
}

impl<K: Key> Eq for Recent<K> {}

impl<K: Key> Default for Recent<K> {
    fn default() -> Self {
        Self { kept: VecDeque::new(), index: None, digest: Digest::default() }
    }
}

impl<K: Key> Recent<K> {
    pub(crate) fn get(&self, key: &K) -> Option<&Remembered> {
        self.find(key).map(|(_, remembered)| remembered)
    }

    /// The same key as it is kept here.
    pub(crate) fn known(&self, key: &K) -> Option<&K> {
        self.find(key).map(|(known, _)| known)
    }

    fn find(&self, key: &K) -> Option<&(K, Remembered)> {
        self.find_by(key, || hash_of(key))
    }

    fn find_by(&self, key: &K, hash: impl FnOnce() -> u64) -> Option<&(K, Remembered)> {
        let is_it = |(known, _): &&(K, Remembered)| known == key;
        match &self.index {
            None => self.kept.iter().find(is_it),
            Some(index) => index.places(hash()).find_map(|place| self.kept.get(place).filter(is_it)),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.kept.len()
    }

    /// Remembers a request that just had its effect. It must not be known yet.
    pub(crate) fn insert(&mut self, key: K, remembered: Remembered) {
        if self.kept.len() == K::KEPT_MAX {
            self.forget_oldest();
        }
        let hash = hash_of(&key);
        assert!(self.find_by(&key, || hash).is_none(), "a request had its effect twice");
        self.digest.add(key.part(&remembered));
        if let Some(index) = &mut self.index {
            index.push(hash);
        } else if self.kept.len() == self.kept.capacity() {
            // Exactly doubled from one on: left to itself it would begin with four.
            self.kept.reserve_exact(self.kept.len().max(1));
        }
        self.kept.push_back((key, remembered));
        if self.index.is_none() && self.kept.len() > FEW {
            let mut index = K::Index::default();
            self.kept.iter().for_each(|(key, _)| index.push(hash_of(key)));
            self.index = Some(Box::new(index));
        }
    }

    fn forget_oldest(&mut self) {
        let Some((key, forgotten)) = self.kept.pop_front() else { return };
        self.digest.take(key.part(&forgotten));
        if let Some(index) = &mut self.index {
            index.pop(hash_of(&key));
        }
    }

    /// Of all that are remembered, in no particular order.
    pub(crate) fn digest(&self) -> Digest {
        self.digest
    }

    /// Oldest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&K, &Remembered)> {
        self.kept.iter().map(|(key, remembered)| (key, remembered))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: usize) -> RequestId {
        RequestId::parse(&format!("request-{number}")).expect("a good id")
    }

    fn remembered(number: usize) -> Remembered {
        Remembered { fingerprint: number as u64, reply: Reply::Released }
    }

    #[test]
    fn the_oldest_request_is_forgotten_when_the_table_is_full() {
        let mut recent = Recent::default();
        for number in 0..REQUESTS_PER_LEASE_KEPT + 9 {
            recent.insert(key(number), remembered(number));
            let kept = (number + 1).saturating_sub(REQUESTS_PER_LEASE_KEPT)..number + 1;
            assert_eq!(recent.len(), kept.len());
            for asked in 0..=number + 1 {
                let expected = kept.contains(&asked).then(|| remembered(asked));
                assert_eq!(recent.get(&key(asked)), expected.as_ref(), "request {asked} after {number}");
            }
            assert!(recent.iter().map(|(key, _)| key.clone()).eq(kept.map(key)));
        }
    }

    #[test]
    fn a_table_is_what_it_remembers_whatever_it_has_forgotten() {
        let (mut old, mut new) = (Recent::default(), Recent::default());
        (0..REQUESTS_PER_LEASE_KEPT + 9).for_each(|number| old.insert(key(number), remembered(number)));
        (9..REQUESTS_PER_LEASE_KEPT + 9).for_each(|number| new.insert(key(number), remembered(number)));
        assert_eq!((&old, old.digest()), (&new, new.digest()));
    }
}
