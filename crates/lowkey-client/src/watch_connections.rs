//! The connections of watches: as many as the watches need.
//!
//! A node takes a limited number of streams on one connection, 100 by default. Further streams wait
//! silently. Watches last long, so they would soon take all streams, and nothing else of the client would
//! get through. So watches have connections of their own, each with fewer watches than a node takes.
//!
//! - All connections lead to the node that the link uses, or has used.
//! - A connection ends with its last watch.
//! - If a watch does not begin on a connection, that connection is full: the next watches get another one.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::runtime::Handle;

use crate::error::Error;
use crate::wire::{Dialer, Wire};

/// The most watches on one connection: a little less than a node takes by default.
const WATCHES_MAX: usize = 90;

/// All of them.
#[derive(Clone, Default)]
pub(crate) struct WatchConnections {
    dialer: Dialer,
    connections: Arc<Mutex<Vec<Arc<Connection>>>>,
}

struct Connection {
    endpoint: String,
    channel: Wire,
    /// How many watches it has; changed only under the lock.
    watches: AtomicUsize,
    /// How many it may have.
    watches_max: AtomicUsize,
}

/// A watch's place on a connection.
pub(crate) struct WatchSeat {
    connections: WatchConnections,
    connection: Arc<Connection>,
}

impl WatchConnections {
    pub(crate) fn new(dialer: Dialer) -> Self {
        Self { dialer, ..Self::default() }
    }

    /// A place on a connection to this endpoint. If no connection has a free place, a new one is made. It
    /// connects by itself, on `runtime`.
    pub(crate) fn seat(&self, endpoint: &str, runtime: &Handle) -> Result<WatchSeat, Error> {
        let mut connections = self.lock();
        let with_place = connections.iter().find(|connection| {
            connection.endpoint == endpoint
                && connection.watches.load(Ordering::Relaxed) < connection.watches_max.load(Ordering::Relaxed)
        });
        let connection = match with_place {
            Some(connection) => Arc::clone(connection),
            None => {
                let _context = runtime.enter();
                let connection = Arc::new(Connection {
                    endpoint: endpoint.to_owned(),
                    channel: self.dialer.connect_lazy(endpoint)?,
                    watches: AtomicUsize::new(0),
                    watches_max: AtomicUsize::new(WATCHES_MAX),
                });
                connections.push(Arc::clone(&connection));
                connection
            }
        };
        connection.watches.fetch_add(1, Ordering::Relaxed);
        drop(connections);
        Ok(WatchSeat { connections: self.clone(), connection })
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<Connection>>> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl WatchSeat {
    pub(crate) fn channel(&self) -> Wire {
        self.connection.channel.clone()
    }

    /// Marks the connection as full, because nothing begins on it any more. The next watch gets another
    /// one.
    pub(crate) fn is_stuck(&self) {
        let watches = self.connection.watches.load(Ordering::Relaxed);
        self.connection.watches_max.fetch_min(watches.saturating_sub(1), Ordering::Relaxed);
    }
}

impl Drop for WatchSeat {
    fn drop(&mut self) {
        let mut connections = self.connections.lock();
        if self.connection.watches.fetch_sub(1, Ordering::Relaxed) == 1 {
            connections.retain(|connection| !Arc::ptr_eq(connection, &self.connection));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn each_connection_has_its_share_of_watches_and_ends_with_the_last() {
        let connections = WatchConnections::default();
        let runtime = Handle::current();
        let seat = |endpoint| connections.seat(endpoint, &runtime).ok().unwrap();
        let watches = |connections: &WatchConnections| -> Vec<usize> {
            connections.lock().iter().map(|connection| connection.watches.load(Ordering::Relaxed)).collect()
        };
        let mut seats: Vec<_> = (0..WATCHES_MAX + 1).map(|_| seat("http://a:1")).collect();
        seats.push(seat("http://b:1"));
        assert_eq!(watches(&connections), [WATCHES_MAX, 1, 1]);
        drop(seats.swap_remove(0));
        let again = seat("http://a:1");
        assert_eq!(watches(&connections), [WATCHES_MAX, 1, 1], "a free place is used again");
        // A node that takes fewer.
        again.is_stuck();
        drop(again);
        let elsewhere = seat("http://a:1");
        assert_eq!(watches(&connections), [WATCHES_MAX - 1, 2, 1]);
        drop((seats, elsewhere));
        assert!(watches(&connections).is_empty());
        assert!(connections.seat("no url", &runtime).is_err());
    }
}
