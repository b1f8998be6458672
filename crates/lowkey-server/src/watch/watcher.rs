//! One stream: its cursor, and how it gets from one event to the next.
//!
//! Invariants:
//!
//! - Everything up to the cursor that the filter matches was told, and nothing behind it was.
//! - While there is a queue, every change that has happened was told, or is in the page or in the queue. If
//!   the queue is closed, the rest is in the history.

use std::sync::Arc;
use std::vec;

use lowkey_api::ApiError;
use lowkey_replica::{Compacted, Filter, Page, Position, Recorded};
use tokio::sync::{OwnedSemaphorePermit, mpsc, watch};
use tokio::time::{Instant, Interval, MissedTickBehavior, interval_at};

use super::live::LiveId;
use super::{HEARTBEAT_INTERVAL, Shared, Start, compacted, too_many_streams};
use crate::lane::view::Leadership;

/// How many changes a stream takes from the history at a time.
const PAGE_EVENTS_MAX: usize = 256;
/// How many changes of the history it looks at for that. The book is locked meanwhile.
const PAGE_SCAN_MAX: usize = 4096;

/// What a stream tells next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Told {
    pub(super) what: What,
    /// Whether the node is in touch with a leader.
    pub(super) in_touch: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum What {
    /// Something happened.
    Change(Arc<Recorded>),
    /// All up to here was told.
    Heartbeat(Position),
    /// All up to here was told, and nothing more comes.
    End(EndReason, Position),
}

/// Why a stream ends in good order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EndReason {
    SlowReader,
    NodeStopping,
}

/// Why a stream cannot go on.
enum Stuck {
    Slow,
    Compacted(Compacted),
}

impl From<Compacted> for Stuck {
    fn from(compacted: Compacted) -> Self {
        Self::Compacted(compacted)
    }
}

/// The state of one stream.
pub(super) struct Watcher {
    shared: Arc<Shared>,
    filter: Filter,
    /// See the module. It only ever rises.
    cursor: Position,
    /// Changes that were read from the history and not told yet.
    page: vec::IntoIter<Arc<Recorded>>,
    /// Where the cursor is once the page is told; `>= cursor`.
    page_through: Position,
    /// `Some` while live, `None` while catching up.
    queue: Option<Queue>,
    /// It has caught up before. If it must catch up again, the reader is slow.
    was_live: bool,
    /// As last told.
    in_touch: bool,
    leadership: watch::Receiver<Leadership>,
    stopping: watch::Receiver<bool>,
    heartbeat: Interval,
    ended: bool,
    _counted: OwnedSemaphorePermit,
}

impl Watcher {
    /// Begins to watch. A refusal is returned here, not in the stream.
    pub(super) fn start(
        shared: &Arc<Shared>,
        filter: Filter,
        start: Start,
        first_heartbeat: Instant,
    ) -> Result<Self, ApiError> {
        let counted = Arc::clone(&shared.streams)
            .try_acquire_owned()
            .map_err(|_| too_many_streams(shared.streams_max))?;
        let cursor = start.position(shared.book().history.applied())?;
        let mut heartbeat = interval_at(first_heartbeat, HEARTBEAT_INTERVAL);
        heartbeat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let in_touch = shared.leadership.borrow().leader.is_some();
        let mut watcher = Self {
            shared: Arc::clone(shared),
            filter,
            cursor,
            page: Vec::new().into_iter(),
            page_through: cursor,
            queue: None,
            was_live: false,
            in_touch,
            leadership: shared.leadership.clone(),
            stopping: shared.stopping.clone(),
            heartbeat,
            ended: false,
            _counted: counted,
        };
        match watcher.read_on() {
            Ok(()) => Ok(watcher),
            Err(Stuck::Slow) => unreachable!("only who was live before can be slow"),
            Err(Stuck::Compacted(gone)) => Err(compacted(gone)),
        }
    }

    pub(super) fn in_touch(&self) -> bool {
        self.in_touch
    }

    /// What to tell next; `None` after the end. May be dropped while it waits, without loss.
    pub(super) async fn next(&mut self) -> Option<Result<Told, ApiError>> {
        if self.ended {
            return None;
        }
        loop {
            if *self.stopping.borrow() {
                return Some(Ok(self.end(EndReason::NodeStopping)));
            }
            let in_touch = self.leadership.borrow().leader.is_some();
            if in_touch != self.in_touch {
                self.in_touch = in_touch;
                return Some(Ok(self.heartbeat()));
            }
            if let Some(recorded) = self.page.next() {
                return Some(Ok(self.change(recorded)));
            }
            self.cursor = self.cursor.max(self.page_through);
            if self.queue.is_some() {
                match self.wait().await {
                    Awaited::Change(recorded) => return Some(Ok(self.change(recorded))),
                    Awaited::Heartbeat => return Some(Ok(self.heartbeat())),
                    Awaited::NodeGone => return Some(Ok(self.end(EndReason::NodeStopping))),
                    Awaited::News => continue,
                    Awaited::QueueClosed => self.queue = None,
                }
            }
            match self.read_on() {
                Ok(()) => {}
                Err(Stuck::Slow) => return Some(Ok(self.end(EndReason::SlowReader))),
                Err(Stuck::Compacted(gone)) => {
                    self.ended = true;
                    return Some(Err(compacted(gone)));
                }
            }
            // A long stretch may contain nothing that matches: let others have their turn.
            tokio::task::yield_now().await;
        }
    }

    /// Waits for something to tell.
    async fn wait(&mut self) -> Awaited {
        let Some(queue) = &mut self.queue else { return Awaited::QueueClosed };
        let in_touch = self.in_touch;
        // An error means that the sender is gone, and with it the node.
        let stops = async { self.stopping.wait_for(|stopping| *stopping).await.is_ok() };
        let touch_changes = async {
            self.leadership.wait_for(|leadership| leadership.leader.is_some() != in_touch).await.is_ok()
        };
        tokio::select! {
            biased;
            _ = stops => Awaited::NodeGone,
            is_known = touch_changes => if is_known { Awaited::News } else { Awaited::NodeGone },
            recorded = queue.receiver.recv() => recorded.map_or(Awaited::QueueClosed, Awaited::Change),
            // Last, because a heartbeat says that everything was told.
            _ = self.heartbeat.tick() => Awaited::Heartbeat,
        }
    }

    /// Reads the next page of the history. If it is the last page, the watcher becomes live before anything
    /// else can happen.
    fn read_on(&mut self) -> Result<(), Stuck> {
        debug_assert!(self.queue.is_none() && self.page.as_slice().is_empty(), "there is something to tell");
        let mut book = self.shared.book();
        if self.was_live && book.history.count_after(self.cursor) > book.history.events_max() / 2 {
            return Err(Stuck::Slow);
        }
        let Page { events, through } =
            book.history.read(self.cursor, &self.filter, PAGE_EVENTS_MAX, PAGE_SCAN_MAX)?;
        if through >= Position::end_of(book.history.applied()) {
            let (id, receiver) = book.live.add(&self.filter);
            let (shared, filter) = (Arc::clone(&self.shared), self.filter.clone());
            self.queue = Some(Queue { shared, filter, id, receiver });
            self.was_live = true;
        }
        self.page = events.into_iter();
        self.page_through = through;
        Ok(())
    }

    fn change(&mut self, recorded: Arc<Recorded>) -> Told {
        debug_assert!(recorded.position > self.cursor, "{} after {}", recorded.position, self.cursor);
        self.cursor = recorded.position;
        Told { what: What::Change(recorded), in_touch: self.in_touch }
    }

    /// A heartbeat. If nothing is left to tell, everything that has happened was told.
    fn heartbeat(&mut self) -> Told {
        let book = self.shared.book();
        // A closed queue may be empty because the next change did not fit.
        let is_told = |queue: &Queue| queue.receiver.is_empty() && !queue.receiver.is_closed();
        if self.page.as_slice().is_empty() && self.queue.as_ref().is_some_and(is_told) {
            self.cursor = Position::end_of(book.history.applied());
        }
        Told { what: What::Heartbeat(self.cursor), in_touch: self.in_touch }
    }

    fn end(&mut self, reason: EndReason) -> Told {
        self.ended = true;
        self.queue = None;
        Told { what: What::End(reason, self.cursor), in_touch: self.in_touch }
    }
}

/// What a live stream has waited for.
enum Awaited {
    Change(Arc<Recorded>),
    Heartbeat,
    /// Something that is checked before waiting has changed.
    News,
    /// The queue overflowed, or the history was replaced.
    QueueClosed,
    NodeGone,
}

/// The queue of a live watcher, registered for as long as this exists.
struct Queue {
    shared: Arc<Shared>,
    filter: Filter,
    id: LiveId,
    receiver: mpsc::Receiver<Arc<Recorded>>,
}

impl Drop for Queue {
    fn drop(&mut self) {
        self.shared.book().live.remove(&self.filter, self.id);
    }
}
