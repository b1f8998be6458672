//! The live watchers, found by what changed, never by asking all of them.
//!
//! A name is looked up as it is, and once for every *length* that a watched prefix has. So the cost of a
//! change depends on how many watchers it wakes, and not on how many there are.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use lowkey_core::{LockName, NamePrefix};
use lowkey_replica::{Filter, Recorded};
use tokio::sync::mpsc;

/// How many changes a live stream may leave unread before it must catch up from the history.
pub(super) const QUEUE_EVENTS_MAX: usize = 256;

/// The id of a live watcher; never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct LiveId(u64);

/// In the order of arrival. A watcher whose queue overflowed is no longer here.
type Watchers = BTreeMap<LiveId, mpsc::Sender<Arc<Recorded>>>;

/// The queues of all live watchers, by what they watch.
#[derive(Default)]
pub(super) struct Live {
    by_name: HashMap<LockName, Watchers>,
    by_prefix: HashMap<NamePrefix, Watchers>,
    /// How many keys of `by_prefix` have each length in bytes; never 0.
    prefix_lengths: BTreeMap<usize, usize>,
    /// >= every id that was ever given.
    last_id: u64,
}

impl Live {
    /// Registers a watcher, and returns its end of the queue. Every added watcher must be removed.
    pub(super) fn add(&mut self, filter: &Filter) -> (LiveId, mpsc::Receiver<Arc<Recorded>>) {
        let (sender, receiver) = mpsc::channel(QUEUE_EVENTS_MAX);
        self.last_id += 1;
        let id = LiveId(self.last_id);
        let watchers = match filter {
            Filter::Name(name) => self.by_name.entry(name.clone()).or_default(),
            Filter::Prefix(prefix) => self.by_prefix.entry(prefix.clone()).or_insert_with(|| {
                *self.prefix_lengths.entry(prefix.as_str().len()).or_default() += 1;
                Watchers::new()
            }),
        };
        watchers.insert(id, sender);
        (id, receiver)
    }

    /// Closes all queues.
    pub(super) fn clear(&mut self) {
        *self = Self { last_id: self.last_id, ..Self::default() };
    }

    /// Forgets a watcher, if it is still there.
    pub(super) fn remove(&mut self, filter: &Filter, id: LiveId) {
        match filter {
            Filter::Name(name) => {
                if let Some(watchers) = self.by_name.get_mut(name) {
                    watchers.remove(&id);
                    if watchers.is_empty() {
                        self.by_name.remove(name);
                    }
                }
            }
            Filter::Prefix(prefix) => {
                if let Some(watchers) = self.by_prefix.get_mut(prefix) {
                    watchers.remove(&id);
                    if watchers.is_empty() {
                        self.by_prefix.remove(prefix);
                        self.forget_length(prefix.as_str().len());
                    }
                }
            }
        }
    }

    fn forget_length(&mut self, length: usize) {
        if let Some(count) = self.prefix_lengths.get_mut(&length) {
            *count -= 1;
            if *count == 0 {
                self.prefix_lengths.remove(&length);
            }
        }
    }

    /// Puts a change into the queues of the watchers whose filter matches it.
    pub(super) fn tell(&mut self, recorded: &Arc<Recorded>) {
        let name = recorded.change.lock.as_str();
        if let Some(watchers) = self.by_name.get_mut(name) {
            tell_all(watchers, recorded);
        }
        for (length, _) in self.prefix_lengths.range(..=name.len()) {
            // A prefix never ends in the middle of a character.
            let watchers = name.get(..*length).and_then(|prefix| self.by_prefix.get_mut(prefix));
            if let Some(watchers) = watchers {
                tell_all(watchers, recorded);
            }
        }
    }
}

/// Closes a queue that overflows. Its watcher notices once it has read what is in the queue.
fn tell_all(watchers: &mut Watchers, recorded: &Arc<Recorded>) {
    watchers.retain(|_, queue| queue.try_send(Arc::clone(recorded)).is_ok());
}

#[cfg(test)]
impl Live {
    /// How many names and prefixes are watched, and by how many watchers in all.
    pub(super) fn counts(&self) -> (usize, usize, usize) {
        let watchers = self.by_name.values().chain(self.by_prefix.values()).map(Watchers::len).sum();
        (self.by_name.len(), self.by_prefix.len(), watchers)
    }

    pub(super) fn has_no_lengths(&self) -> bool {
        self.prefix_lengths.is_empty()
    }
}
