//! The watch hub: tells every watcher of a lock what happened to it, in order, once.
//!
//! ```text
//! replica        ─► HubFeed ─(unbounded queue)─► task ─► Book { History, Live }
//!                                                          │ catching up: pages, by cursor
//!                                        stream ◄──────────┤
//!                                                          │ live: its own bounded queue
//! ```
//!
//! A stream first *catches up*: it reads pages of the history behind its cursor. The page that reaches the
//! end of the history also registers the stream as *live*, under the same lock. So nothing falls between
//! the two and nothing is told twice. From then on a change wakes exactly the streams whose filter matches
//! it.
//!
//! A stream whose queue overflows is unregistered. It tells what is still in the queue, and catches up
//! again from there. A stream that is half of the history behind is ended, with the position to continue
//! from (SLOW_READER).
//!
//! How it is used:
//!
//! - [`Hub::start`] gives the hub and its feed. The code that takes the replica's turns calls
//!   [`HubFeed::applied`] for *every* applied revision, including Raft's own entries, and
//!   [`HubFeed::reset`] when a snapshot was installed. The floor that the hub starts with is the state's
//!   revision before the first of these calls.
//! - The feed is a moment behind the replica. So before [`Hub::watch`] the service makes sure that what the
//!   position needs is there. If [`Start::needs`] is beyond [`Hub::applied`], it asks the leader how far
//!   the log is, and waits for that with [`Hub::wait_applied`]. A position that is still beyond is refused
//!   as INVALID_FROM or INVALID_AFTER.
//! - [`Hub::observe`] is given the holders of a lock as read at a revision, and waits for that revision by
//!   itself.
//!
//! Deliberately absent: a task or a timer for each stream beyond its heartbeat. A stream is a value that
//! works only when it is polled, and leaves nothing behind when it is dropped.

mod lease_news;
mod live;
mod observe;
#[cfg(test)]
mod tests;
mod watcher;
mod words;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::{BoxStream, unfold};
use lowkey_api::v1::{LockHolder, ObserveEvent, WatchEvent};
use lowkey_api::{ApiError, Reason};
use lowkey_core::limits::HISTORY_EVENTS_MAX;
use lowkey_core::{Change, LockName};
use lowkey_replica::{Compacted, Filter, History, Position};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::time::Instant;

use crate::edge::stopped;
use crate::lane::view::Leadership;

pub use lease_news::{LeaseListener, LeaseNews};
use live::Live;
use observe::Observer;
use watcher::Watcher;

/// How often a stream says that it is alive, and how far it is complete.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(5);
/// How many revisions are taken in at a time. Others can lock the book in between.
const FEED_REVISIONS_MAX: usize = 256;

/// A stream of events. An error is its last item.
pub(crate) type Events<E> = BoxStream<'static, Result<E, ApiError>>;

/// Where a watch begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Start {
    /// With the next change.
    Now,
    /// With this revision.
    From(u64),
    /// Behind this position.
    After(Position),
}

impl Start {
    /// The revision that must have been applied for this position to exist.
    pub(crate) fn needs(self) -> u64 {
        match self {
            Self::Now => 0,
            Self::From(revision) => revision.saturating_sub(1),
            Self::After(position) => position.revision,
        }
    }

    /// The position to read after, if it exists on this node.
    fn position(self, applied: u64) -> Result<Position, ApiError> {
        let newest = format!("this node's newest revision is {applied}");
        match self {
            Self::From(revision) if self.needs() > applied => Err(ApiError::invalid(
                "from",
                format!("must be at most {}, and is {revision}: {newest}", applied + 1),
            )),
            Self::After(position) if self.needs() > applied => {
                Err(ApiError::invalid("after", format!("{position} has not happened yet: {newest}")))
            }
            Self::Now => Ok(Position::end_of(applied)),
            Self::From(_) => Ok(Position::end_of(self.needs())),
            Self::After(position) => Ok(position),
        }
    }
}

/// All watchers of this node.
#[derive(Clone)]
pub(crate) struct Hub {
    shared: Arc<Shared>,
}

struct Shared {
    book: Mutex<Book>,
    lease_news: LeaseNews,
    /// The same as the `applied` of `Book::history`, for tasks that wait for it.
    applied: watch::Sender<u64>,
    streams: Arc<Semaphore>,
    streams_max: usize,
    leadership: watch::Receiver<Leadership>,
    stopping: watch::Receiver<bool>,
}

/// What is known, and who is told. Both are under one lock. A watcher in `live` was told, or has in its
/// queue, everything that it wants of `history`, except what it still reads from its last page.
struct Book {
    history: History,
    live: Live,
}

impl Shared {
    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Hub {
    /// Starts a hub that knows nothing up to and including revision `floor`, and may have `streams_max`
    /// streams at a time. Its task ends when the feed is dropped.
    pub(crate) fn start(
        floor: u64,
        streams_max: usize,
        leadership: watch::Receiver<Leadership>,
        stopping: watch::Receiver<bool>,
    ) -> (Self, HubFeed) {
        Self::with_events_max(floor, HISTORY_EVENTS_MAX, streams_max, leadership, stopping)
    }

    fn with_events_max(
        floor: u64,
        events_max: usize,
        streams_max: usize,
        leadership: watch::Receiver<Leadership>,
        stopping: watch::Receiver<bool>,
    ) -> (Self, HubFeed) {
        let streams_max = streams_max.min(Semaphore::MAX_PERMITS);
        let history = History::with_events_max(floor, events_max);
        let shared = Arc::new(Shared {
            book: Mutex::new(Book { history, live: Live::default() }),
            lease_news: LeaseNews::default(),
            applied: watch::Sender::new(floor),
            streams: Arc::new(Semaphore::new(streams_max)),
            streams_max,
            leadership,
            stopping,
        });
        let (sender, receiver) = mpsc::unbounded_channel();
        tokio::spawn(feed(Arc::clone(&shared), receiver));
        (Self { shared }, HubFeed { sender, applied: floor })
    }

    /// The last revision that the hub knows of.
    pub(crate) fn applied(&self) -> u64 {
        *self.shared.applied.borrow()
    }

    /// Waits until the hub knows of this revision. Only the end of the node ends this wait earlier.
    pub(crate) async fn wait_applied(&self, revision: u64) -> Result<(), ApiError> {
        let mut applied = self.shared.applied.subscribe();
        let reached = async { applied.wait_for(|applied| *applied >= revision).await.is_ok() };
        tokio::select! {
            biased;
            true = reached => Ok(()),
            () = stopped(self.shared.stopping.clone()) => {
                Err(ApiError::new(Reason::NodeStopping, "this node is about to end: ask another"))
            }
        }
    }

    /// Watches locks. A wrong position is refused at once. The stream begins with what happened since that
    /// position, and a heartbeat says when that is all.
    pub(crate) fn watch(&self, filter: Filter, start: Start) -> Result<Events<WatchEvent>, ApiError> {
        let watcher = Watcher::start(&self.shared, filter, start, Instant::now())?;
        let next = |mut watcher: Watcher| async move {
            let told = watcher.next().await?;
            Some((told.map(|told| words::watch_event(&told)), watcher))
        };
        Ok(unfold(watcher, next).fuse().boxed())
    }

    /// Watches who leads an election, beginning with all holders that it had at `revision`, in any order.
    pub(crate) async fn observe(
        &self,
        election: LockName,
        present: impl IntoIterator<Item = LockHolder>,
        revision: u64,
    ) -> Result<Events<ObserveEvent>, ApiError> {
        let observer = Observer::new(present, revision);
        self.wait_applied(revision).await?;
        let start = Start::After(Position::end_of(revision));
        let first_heartbeat = Instant::now() + HEARTBEAT_INTERVAL;
        let watcher = Watcher::start(&self.shared, Filter::Name(election), start, first_heartbeat)?;
        let next = |(mut observer, mut watcher): (Observer, Watcher)| async move {
            let event = observer.next(&mut watcher).await?;
            Some((event, (observer, watcher)))
        };
        Ok(unfold((observer, watcher), next).fuse().boxed())
    }
}

impl Hub {
    /// A listener for a stream that must hear what others do to its leases.
    pub(crate) fn lease_listener(&self) -> LeaseListener {
        self.shared.lease_news.listen()
    }

    /// Tells this node's streams that use a lease that something of it was ended. Does nothing if the id is
    /// 0.
    pub(crate) fn tell_streams(&self, lease_id: u64) {
        if lease_id != 0 {
            self.shared.lease_news.tell(lease_id);
        }
    }

    /// How many streams there are.
    pub(crate) fn open_streams(&self) -> usize {
        self.shared.streams_max.saturating_sub(self.shared.streams.available_permits())
    }
}

/// Where the replica's turns report what happened. It never waits.
pub(crate) struct HubFeed {
    sender: mpsc::UnboundedSender<Fed>,
    /// The last revision that was told.
    applied: u64,
}

enum Fed {
    Applied(u64, Vec<Change>),
    Reset(u64),
}

impl HubFeed {
    /// Tells what happened at the next revision: the `Event::Changed` of its entry, in order, or nothing.
    ///
    /// # Panics
    /// If it is not the next revision. A caller that left one out must not go on.
    pub(crate) fn applied(&mut self, revision: u64, changes: Vec<Change>) {
        assert_eq!(
            revision,
            self.applied + 1,
            "revision {revision} was told after {}: watches would miss something",
            self.applied
        );
        self.applied = revision;
        // Without a hub there are no watchers.
        let _ = self.sender.send(Fed::Applied(revision, changes));
    }

    /// Tells that a snapshot of this revision replaced the state. Streams end as COMPACTED.
    ///
    /// # Panics
    /// If the snapshot is older than what was told before.
    pub(crate) fn reset(&mut self, floor: u64) {
        assert!(floor >= self.applied, "a snapshot of revision {floor} came after revision {}", self.applied);
        self.applied = floor;
        let _ = self.sender.send(Fed::Reset(floor));
    }
}

/// Enters what is fed into the book. It takes the lock once for as much as there is.
async fn feed(shared: Arc<Shared>, mut receiver: mpsc::UnboundedReceiver<Fed>) {
    let mut batch = Vec::new();
    while receiver.recv_many(&mut batch, FEED_REVISIONS_MAX).await > 0 {
        let applied = shared.book().take_in(batch.drain(..), &shared.lease_news);
        shared.applied.send_replace(applied);
        // A task that was woken may run on this thread.
        tokio::task::yield_now().await;
    }
}

impl Book {
    fn take_in(&mut self, batch: impl Iterator<Item = Fed>, lease_news: &LeaseNews) -> u64 {
        for fed in batch {
            match fed {
                Fed::Applied(revision, changes) => {
                    for recorded in self.history.record(revision, changes) {
                        self.live.tell(&recorded);
                        lease_news.consider(&recorded.change);
                    }
                }
                Fed::Reset(floor) => {
                    self.history.reset(floor);
                    // The streams then look into the history, and find that it has moved away from them.
                    self.live.clear();
                }
            }
        }
        self.history.applied()
    }
}

fn compacted(Compacted { floor }: Compacted) -> ApiError {
    let message = format!(
        "what happened up to revision {floor} is no longer kept here: list the locks, then watch from the list's \
         watch_from (an election is simply observed again)"
    );
    ApiError::new(Reason::Compacted, message).with("floor", floor)
}

fn too_many_streams(streams_max: usize) -> ApiError {
    let message = format!("this node has {streams_max} watch streams, as many as it may: ask another");
    ApiError::new(Reason::LimitStreams, message)
}
