//! Tells session streams when another client ends a grant of a lease that they use.
//!
//! A holder learns of a forced release with its next renewal at the latest. Its stream tells it at once. So
//! the time in which two clients believe that they hold the lock is a round trip, not a third of the TTL.
//!
//! - A request that comes over a stream of the holder's own and names no `actor` costs nothing here. That
//!   happens thousands of times a second. For every other request the node that asked the replica tells its
//!   streams. If the request names an `actor`, every node does.
//! - News may be lost (a full queue, a snapshot, a stream that moved), because renewals tell the same.
//! - Bounded: at most [`STREAMS_PER_LEASE_MAX`] streams for a lease, and a stream forgets leases whose time
//!   is over.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use lowkey_core::{Change, ChangeKind};
use tokio::sync::mpsc;
use tokio::time::Instant;

/// How many streams are told of one lease: the present one of its client, and those that it has just left.
const STREAMS_PER_LEASE_MAX: usize = 4;
/// How many notices a stream may leave unread. More are lost.
const QUEUE_MAX: usize = 1024;
/// A stream with fewer leases does not look for ended ones.
const SWEEP_MIN: usize = 1024;

/// The streams of a node, by the leases that they use. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct LeaseNews {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    last_stream: AtomicU64,
    /// In the order of arrival. No list is empty.
    listeners: Mutex<HashMap<u64, Vec<Listener>>>,
}

#[derive(Debug)]
struct Listener {
    stream: u64,
    queue: mpsc::Sender<u64>,
}

impl Shared {
    fn listeners(&self) -> MutexGuard<'_, HashMap<u64, Vec<Listener>>> {
        self.listeners.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn remove(listeners: &mut HashMap<u64, Vec<Listener>>, lease_id: u64, stream: u64) {
        if let Entry::Occupied(mut entry) = listeners.entry(lease_id) {
            entry.get_mut().retain(|listener| listener.stream != stream);
            if entry.get().is_empty() {
                entry.remove();
            }
        }
    }
}

impl LeaseNews {
    /// A stream that uses no lease yet.
    pub fn listen(&self) -> LeaseListener {
        let (queue, news) = mpsc::channel(QUEUE_MAX);
        LeaseListener {
            stream: self.shared.last_stream.fetch_add(1, Ordering::Relaxed),
            shared: Arc::clone(&self.shared),
            queue,
            news,
            used_until: HashMap::new(),
            sweep_at: SWEEP_MIN,
        }
    }

    /// Tells the streams that this change concerns.
    pub(super) fn consider(&self, change: &Change) {
        if change.actor.is_some() && matches!(change.kind, ChangeKind::Freed(_)) {
            self.tell(change.lease.0);
        }
    }

    /// Tells the streams that use this lease.
    pub fn tell(&self, lease_id: u64) {
        for listener in self.shared.listeners().get(&lease_id).into_iter().flatten() {
            // A stream that does not read gets no more.
            let _ = listener.queue.try_send(lease_id);
        }
    }
}

/// One stream's end. It hears of the leases that it uses until it is dropped.
#[derive(Debug)]
pub struct LeaseListener {
    shared: Arc<Shared>,
    stream: u64,
    queue: mpsc::Sender<u64>,
    news: mpsc::Receiver<u64>,
    /// The leases that it uses, and when each ends unless it is renewed.
    used_until: HashMap<u64, Instant>,
    /// When there are this many, those whose time is over are forgotten.
    sweep_at: usize,
}

impl LeaseListener {
    /// The stream uses this lease, for as long as it lives from now on.
    pub fn uses(&mut self, lease_id: u64, ttl_seconds: i64) {
        let until = Instant::now() + Duration::from_secs(u64::try_from(ttl_seconds).unwrap_or_default());
        if self.used_until.insert(lease_id, until).is_some() {
            return;
        }
        {
            let mut listeners = self.shared.listeners();
            let of_lease = listeners.entry(lease_id).or_default();
            if of_lease.len() == STREAMS_PER_LEASE_MAX {
                of_lease.remove(0);
            }
            of_lease.push(Listener { stream: self.stream, queue: self.queue.clone() });
        }
        if self.used_until.len() >= self.sweep_at {
            self.sweep();
        }
    }

    /// The lease is gone, or about to be ended by this stream itself.
    pub fn has_done_with(&mut self, lease_id: u64) {
        if self.used_until.remove(&lease_id).is_some() {
            Shared::remove(&mut self.shared.listeners(), lease_id, self.stream);
        }
    }

    /// The next lease that has changed.
    pub fn poll_changed(&mut self, cx: &mut Context<'_>) -> Poll<u64> {
        // The listener has a sender of its own, so the channel never ends.
        self.news.poll_recv(cx).map(Option::unwrap_or_default)
    }

    fn sweep(&mut self) {
        let now = Instant::now();
        let mut listeners = self.shared.listeners();
        for (lease_id, _) in self.used_until.extract_if(|_, until| *until < now) {
            Shared::remove(&mut listeners, lease_id, self.stream);
        }
        self.sweep_at = SWEEP_MIN.max(self.used_until.len() * 2);
    }
}

impl Drop for LeaseListener {
    fn drop(&mut self) {
        let mut listeners = self.shared.listeners();
        for lease_id in self.used_until.keys() {
            Shared::remove(&mut listeners, *lease_id, self.stream);
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    fn heard(listener: &mut LeaseListener) -> Vec<u64> {
        std::iter::from_fn(|| std::future::poll_fn(|cx| listener.poll_changed(cx)).now_or_never()).collect()
    }

    fn known(news: &LeaseNews) -> usize {
        news.shared.listeners().values().map(Vec::len).sum()
    }

    #[test]
    fn a_stream_hears_of_the_leases_that_it_uses_and_of_no_other() {
        let news = LeaseNews::default();
        let (mut one, mut two) = (news.listen(), news.listen());
        one.uses(1, 10);
        one.uses(1, 10);
        two.uses(2, 10);
        two.uses(3, 10);
        two.has_done_with(3);
        (1..=4).for_each(|lease_id| news.tell(lease_id));
        assert_eq!((heard(&mut one), heard(&mut two)), (vec![1], vec![2]));
        drop(one);
        drop(two);
        assert_eq!(known(&news), 0);
    }

    #[test]
    fn the_latest_streams_of_a_lease_are_told() {
        let news = LeaseNews::default();
        let mut streams: Vec<LeaseListener> = (0..=STREAMS_PER_LEASE_MAX).map(|_| news.listen()).collect();
        streams.iter_mut().for_each(|stream| stream.uses(1, 10));
        news.tell(1);
        let told: Vec<usize> = streams.iter_mut().map(|stream| heard(stream).len()).collect();
        assert_eq!(told, [0, 1, 1, 1, 1]);
    }

    #[tokio::test(start_paused = true)]
    async fn what_has_ended_is_forgotten_however_many_leases_a_stream_makes() {
        let news = LeaseNews::default();
        let mut stream = news.listen();
        for lease_id in 0..20_000 {
            stream.uses(lease_id, 1);
            tokio::time::advance(Duration::from_millis(2)).await;
        }
        assert!(known(&news) <= SWEEP_MIN, "{} are kept", known(&news));
        assert_eq!(known(&news), stream.used_until.len());
        // The oldest is not told, the latest is.
        news.tell(0);
        news.tell(19_999);
        assert_eq!(heard(&mut stream), [19_999]);
    }

    #[test]
    fn a_stream_that_does_not_read_costs_no_more_than_its_queue() {
        let news = LeaseNews::default();
        let mut stream = news.listen();
        stream.uses(1, 10);
        (0..QUEUE_MAX * 2).for_each(|_| news.tell(1));
        assert_eq!(heard(&mut stream).len(), QUEUE_MAX);
    }
}
