//! Who drives the replica: whoever comes to it first.
//!
//! A task of the runtime takes most turns. It runs where the connections run, so that neither a request nor an answer
//! nor a peer's message has to wake another thread, which costs more than most requests. It lets everybody who is ready
//! ask first, and then takes in all of it at once.
//!
//! A thread keeps the time. It ticks, and takes in what the runtime was too busy to come to; so however much there is to
//! do at the edge, the replica is heard. It also does all that takes long on a disk, since the task would hold up the
//! connections: it takes over while syncs are slow, and finishes a turn that needs a large file or waits for space.
//!
//! What holds it together:
//! - Nobody waits for the replica: who finds it taken goes away.
//! - Nothing is left lying: who comes to an inbox in which nothing is due says so there, under its lock, and from then on
//!   the task is called for whatever comes. The task may find the replica taken by the thread, and goes away; so the
//!   thread, when it has let go, looks whether something came meanwhile.

use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use tokio::sync::oneshot;
use tokio::time::timeout_at;

use crate::driver::{Driver, EndOnPanic, Place, Progress, Running, tell_the_end};
use crate::error::StartError;
use crate::inbox::Inbox;

/// How long the thread waits for a task that has the replica, before it looks again whether it must tick.
const TAKEN_PAUSE: Duration = Duration::from_millis(1);

/// What comes of the node: nothing at all if it panicked.
pub(crate) type Ended = oneshot::Receiver<Result<(), StartError>>;

struct Turns {
    inbox: Arc<Inbox>,
    /// Nothing once the replica has ended.
    running: Mutex<Option<Running>>,
    /// Gets the reason for the end.
    ended: Mutex<Option<oneshot::Sender<Result<(), StartError>>>>,
}

/// How it went.
enum Taken {
    /// Nothing was due; before the next tick, and before what gathers has gathered, nothing will be that nobody is called for.
    Nothing { tick: Instant, gathered: Option<Instant> },
    /// Somebody else was at it.
    Elsewhere,
    /// A batch was taken in; there may be more.
    Batch,
    /// There is something to do that only the thread may.
    ForThread,
    /// Nothing will ever be due again. When the thread hears this, it ends.
    Ended,
}

/// Starts to drive a replica, on this runtime and on a thread of its own.
pub(crate) fn start(driver: Driver) -> Result<Ended, StartError> {
    let (sender, ended) = oneshot::channel();
    let turns = Arc::new(Turns {
        inbox: Arc::clone(&driver.inbox),
        running: Mutex::new(Some(Running::new(driver))),
        ended: Mutex::new(Some(sender)),
    });
    let on_thread = Arc::clone(&turns);
    let spawned = thread::Builder::new().name("replica".into()).spawn(move || on_thread.keep_time());
    let thread = spawned
        .map_err(|source| StartError::Io { doing: "cannot start the replica thread".into(), source })?;
    let thread = thread.thread().clone();
    tokio::spawn(async move { turns.serve(&thread).await });
    Ok(ended)
}

impl Turns {
    /// The task.
    async fn serve(&self, thread: &Thread) {
        let mut gathered: Option<Instant> = None;
        loop {
            match gathered.take() {
                // It makes no difference which of the two it was.
                Some(gathered) => _ = timeout_at(gathered.into(), self.inbox.filled()).await,
                None => self.inbox.filled().await,
            }
            loop {
                // Everybody who is ready asks first.
                tokio::task::yield_now().await;
                match self.take(Place::Runtime) {
                    Taken::Batch => continue,
                    Taken::Nothing { gathered: until, .. } => gathered = until,
                    Taken::Elsewhere => {}
                    Taken::ForThread => thread.unpark(),
                    Taken::Ended => return thread.unpark(),
                }
                break;
            }
        }
    }

    /// The thread.
    fn keep_time(&self) {
        loop {
            match self.take(Place::Thread) {
                Taken::Ended => return self.inbox.call(),
                Taken::Batch | Taken::ForThread => {}
                Taken::Elsewhere => thread::park_timeout(TAKEN_PAUSE),
                // The task was called, may have come just before the replica was let go, and went away.
                Taken::Nothing { .. } if self.inbox.is_due() => {}
                Taken::Nothing { tick, gathered } => {
                    let until = gathered.map_or(tick, |gathered| gathered.min(tick));
                    thread::park_timeout(until.saturating_duration_since(Instant::now()));
                }
            }
        }
    }

    fn take(&self, place: Place) -> Taken {
        let _end_on_panic = EndOnPanic("the replica");
        let mut guard = match self.running.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::WouldBlock) => return Taken::Elsewhere,
            // The process is about to end.
            Err(TryLockError::Poisoned(_)) => return Taken::Ended,
        };
        let Some(running) = guard.as_mut() else { return Taken::Ended };
        let outcome = match running.go_on(place) {
            Ok(Progress::Nothing { tick, gathered }) => return Taken::Nothing { tick, gathered },
            Ok(Progress::Batch) => return Taken::Batch,
            Ok(Progress::ForThread) => return Taken::ForThread,
            Ok(Progress::Stop) => guard.take().map_or(Ok(()), Running::close),
            Err(error) => Err(error),
        };
        *guard = None;
        if let Err(error) = &outcome {
            tell_the_end(error);
        }
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner).take();
        // Nobody listens any more when the process is on its way out.
        let _ = ended.map(|ended| ended.send(outcome));
        Taken::Ended
    }
}
