//! Decides which thread drives a lane's replica: the first that comes to it.
//!
//! A task of the runtime takes most turns. It runs where the connections run. So no request, answer or
//! peer's message has to wake another thread, which costs more than most requests. The task first lets
//! every connection that is ready ask, and then takes in everything at once.
//!
//! A thread keeps the time. It ticks, and takes in what the runtime was too busy for. So the replica makes
//! progress no matter how busy the edge is. The thread also does all slow disk work, because the task would
//! hold up the connections. It takes over while syncs are slow, and it finishes a turn that needs a large
//! file or waits for disk space.
//!
//! Invariants:
//! - Neither of the two waits for the replica: if the other has it, it goes away.
//! - No input is lost. The one that finds nothing due in the inbox says so there, under the inbox's lock.
//!   From then on the task is woken for anything that comes. The task may find that the thread has the
//!   replica, and go away. So the thread checks the inbox again after it has released the replica.

use std::sync::{Arc, Mutex, PoisonError, TryLockError};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use lowkey_core::GroupId;
use tokio::sync::oneshot;
use tokio::time::timeout_at;

use crate::error::StartError;
use crate::lane::Lane;
use crate::lane::driver::{Driver, EndOnPanic, Place, Progress, Running, tell_the_end};

/// How long the thread waits for a task that has the replica before it checks again whether it must tick.
const TAKEN_PAUSE: Duration = Duration::from_millis(1);

/// How the node ended. Nothing is sent if it panicked.
pub(crate) type Ended = oneshot::Receiver<Result<(), StartError>>;

struct Turns {
    lane: Arc<Lane>,
    /// `None` once the replica has ended.
    running: Mutex<Option<Running>>,
    /// Gets the reason for the end.
    ended: Mutex<Option<oneshot::Sender<Result<(), StartError>>>>,
}

/// The outcome of one attempt to drive the replica.
enum Taken {
    /// Nothing was due. Nothing will be due without a wake-up before the next tick, and before the
    /// gathering requests have gathered.
    Nothing { tick: Instant, gathered: Option<Instant> },
    /// The other one has the replica.
    Elsewhere,
    /// A batch was taken in. There may be more.
    Batch,
    /// There is work that only the thread may do.
    ForThread,
    /// Nothing will ever be due again. When the thread gets this, it ends.
    Ended,
}

/// Starts to drive a replica, on this runtime and on a thread of its own.
pub(crate) fn start(driver: Driver) -> Result<Ended, StartError> {
    let (sender, ended) = oneshot::channel();
    let turns = Arc::new(Turns {
        lane: Arc::clone(&driver.lane),
        running: Mutex::new(Some(Running::new(driver))),
        ended: Mutex::new(Some(sender)),
    });
    let on_thread = Arc::clone(&turns);
    let name = match on_thread.lane.group {
        GroupId::ROOT => "replica".to_owned(),
        group => format!("replica-{group}"),
    };
    let spawned = thread::Builder::new().name(name).spawn(move || on_thread.keep_time());
    let thread = spawned
        .map_err(|source| StartError::Io { doing: "cannot start the replica thread".into(), source })?;
    let thread = thread.thread().clone();
    tokio::spawn(async move { turns.serve(&thread).await });
    Ok(ended)
}

impl Turns {
    /// The loop of the task.
    async fn serve(&self, thread: &Thread) {
        let mut gathered: Option<Instant> = None;
        loop {
            match gathered.take() {
                // It makes no difference which of the two came first.
                Some(gathered) => _ = timeout_at(gathered.into(), self.lane.inbox.filled()).await,
                None => self.lane.inbox.filled().await,
            }
            loop {
                // Let every connection that is ready ask first.
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

    /// The loop of the thread.
    fn keep_time(&self) {
        loop {
            match self.take(Place::Thread) {
                Taken::Ended => return self.lane.inbox.call(),
                Taken::Batch | Taken::ForThread => {}
                Taken::Elsewhere => thread::park_timeout(TAKEN_PAUSE),
                // The task was woken, but may have come just before the replica was released, and gone
                // away.
                Taken::Nothing { .. } if self.lane.inbox.is_due() => {}
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
            Ok(Progress::Stop) => Ok(()),
            Err(error) => Err(error),
        };
        *guard = None;
        if let Err(error) = &outcome {
            tell_the_end(error);
        }
        let ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner).take();
        // There is no listener any more when the process is about to exit.
        let _ = ended.map(|ended| ended.send(outcome));
        Taken::Ended
    }
}
