//! Requests that had their effect, remembered with their replies, so that asking again has none.
//!
//! A table forgets its oldest request when it is full. Refusals are not kept: a refusal changed
//! nothing, so asking again may well be answered differently, and no harm is done.

use std::collections::{BTreeMap, VecDeque};

use crate::command::Reply;
use crate::digest::{Digest, Part};
use crate::name::{OwnerId, RequestId};

/// A bounded memory of requests, in the order in which they took effect.
///
/// Invariants:
/// - `order` and `replies` hold the same keys, each once.
/// - There are at most `kept_max` of them.
/// - `digest` is that of all of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Recent<K: Key> {
    order: VecDeque<K>,
    replies: BTreeMap<K, Remembered>,
    kept_max: usize,
    digest: Digest,
}

/// What requests are remembered by.
pub(crate) trait Key: Ord + Clone {
    fn part<'a>(&'a self, remembered: &'a Remembered) -> Part<'a>;
}

impl Key for RequestId {
    fn part<'a>(&'a self, remembered: &'a Remembered) -> Part<'a> {
        Part::Request(None, self, remembered)
    }
}

impl Key for (OwnerId, RequestId) {
    fn part<'a>(&'a self, remembered: &'a Remembered) -> Part<'a> {
        Part::Request(Some(&self.0), &self.1, remembered)
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

impl<K: Key> Recent<K> {
    pub(crate) fn new(kept_max: usize) -> Self {
        Self { order: VecDeque::new(), replies: BTreeMap::new(), kept_max, digest: Digest::default() }
    }

    pub(crate) fn get(&self, key: &K) -> Option<&Remembered> {
        self.replies.get(key)
    }

    /// Remembers a request that just had its effect. It must not be known yet.
    pub(crate) fn insert(&mut self, key: K, remembered: Remembered) {
        self.digest.add(key.part(&remembered));
        let known = self.replies.insert(key.clone(), remembered);
        assert!(known.is_none(), "a request had its effect twice");
        self.order.push_back(key);
        if self.order.len() > self.kept_max {
            let oldest = self.order.pop_front().expect("the table is not empty");
            if let Some(forgotten) = self.replies.remove(&oldest) {
                self.digest.take(oldest.part(&forgotten));
            }
        }
    }

    /// Of all that are remembered, in whatever order.
    pub(crate) fn digest(&self) -> Digest {
        self.digest
    }

    /// Oldest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&K, &Remembered)> {
        self.order.iter().map(|key| (key, &self.replies[key]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_request_is_forgotten_when_the_table_is_full() {
        let mut recent = Recent::new(2);
        let keys = ["one", "two", "three"].map(|key| RequestId::parse(key).expect("a good id"));
        for key in &keys {
            recent.insert(key.clone(), Remembered { fingerprint: 1, reply: Reply::Released });
        }
        assert!(recent.get(&keys[0]).is_none());
        assert_eq!(recent.iter().map(|(key, _)| key).collect::<Vec<_>>(), [&keys[1], &keys[2]]);
    }
}
