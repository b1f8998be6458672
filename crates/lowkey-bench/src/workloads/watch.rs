//! `watch`: many streams are told of changes that come at a fixed rate.
//!
//! Some streams watch the same lock. The changes of one lock come one after the other, so that the third event of a
//! stream tells of the third change of its lock: that is how each is timed, from before the change was sent, and how
//! one that is missing, repeated or out of order is noticed.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use futures::TryStreamExt as _;
use lowkey_api::v1::{EventType, WatchEvent};
use lowkey_client::Watch;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::{Arena, Measuring, close, together};
use crate::lowkey::from_sdk;
use crate::pace::Pace;
use crate::recorder::Recorder;
use crate::referee::Referee;
use crate::system::{BenchProblem, LockClient};

/// Streams on one connection; it has others to carry, and nodes allow 100.
const STREAMS_A_CLIENT: usize = 50;
/// How long it is waited for events that are still to come.
const PATIENCE: Duration = Duration::from_secs(60);

/// One lock that is changed and watched.
struct Watched {
    referee: Referee,
    /// When each of its changes was sent: an acquire, a release, an acquire, and so on.
    sent: Mutex<Vec<Instant>>,
}

impl Watched {
    fn sent(&self) -> MutexGuard<'_, Vec<Instant>> {
        self.sent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self) {
        self.sent().push(Instant::now());
    }
}

/// How many changes of its lock a stream has seen.
type Seen = watch::Receiver<usize>;

pub(super) async fn perform(arena: &Arena<'_>) -> Result<(), BenchProblem> {
    tell(arena, arena.size).await
}

/// So many streams are told of changes.
pub(super) async fn tell(arena: &Arena<'_>, streams: usize) -> Result<(), BenchProblem> {
    let locks = streams.div_ceil(arena.sizes.fan_out.max(1));
    let watched: Vec<Arc<Watched>> = (0..locks)
        .map(|number| {
            let referee = Referee::new(format!("{}/watched-{number}", arena.prefix));
            Arc::new(Watched { referee, sent: Mutex::default() })
        })
        .collect();
    let (mut streams, seen) = open(arena, &watched, streams).await?;
    let changing = async {
        let mut clients = arena.clients(locks.min(arena.sizes.par_clients)).await?;
        // One change of each: whoever has seen it is there.
        for lock in &watched {
            pair(&mut clients[0], lock).await?;
        }
        wait_until_seen(&watched, &seen).await?;
        change(arena, &watched, clients, &seen).await
    };
    let clients = tokio::select! {
        clients = changing => clients?,
        ended = streams.join_next() => return Err(match ended {
            Some(Ok(Err(problem))) => problem,
            _ => BenchProblem::failed("a watch ended"),
        }),
    };
    close(clients).await
}

/// Opens the streams: each tells how many events it has seen.
async fn open(
    arena: &Arena<'_>,
    watched: &[Arc<Watched>],
    count: usize,
) -> Result<(JoinSet<Result<(), BenchProblem>>, Vec<Seen>), BenchProblem> {
    let lowkey = arena.lowkey()?;
    let (_, watch_from) = lowkey.sdk().locks(&arena.prefix).await.map_err(|error| from_sdk(&error))?;
    let (mut streams, mut seen) = (JoinSet::new(), Vec::with_capacity(count));
    let mut client = None;
    for number in 0..count {
        if number % STREAMS_A_CLIENT == 0 {
            arena.progress.done(number, count);
            client = Some(lowkey.new_sdk_client().await?);
        }
        let Some(client) = &client else { continue };
        let lock = Arc::clone(&watched[number % watched.len()]);
        let stream = client.watch(lock.referee.lock()).from(watch_from);
        let (sender, receiver) = watch::channel(0);
        streams.spawn(follow(stream, lock, sender, Arc::clone(arena.recorder)));
        seen.push(receiver);
    }
    Ok((streams, seen))
}

async fn follow(
    mut stream: Watch,
    lock: Arc<Watched>,
    seen: watch::Sender<usize>,
    recorder: Arc<Recorder>,
) -> Result<(), BenchProblem> {
    let mut last_token = 0;
    for number in 0.. {
        let event = stream.try_next().await.map_err(|error| from_sdk(&error))?;
        let event = event.ok_or_else(|| BenchProblem::failed("a watch ended"))?;
        let sent = lock.sent().get(number).copied();
        let Some(sent) = sent.filter(|_| is_expected(&event, number, last_token)) else {
            return Err(BenchProblem::wrong(format!(
                "event {} of {} is {:?} with token {} at revision {}, after token {last_token}: one is missing, \
                 repeated or made up",
                number + 1,
                event.name,
                event.r#type(),
                event.fencing_token,
                event.revision
            )));
        };
        recorder.took("delivery", sent.elapsed());
        last_token = event.fencing_token;
        seen.send_replace(number + 1);
    }
    Ok(())
}

fn is_expected(event: &WatchEvent, number: usize, last_token: u64) -> bool {
    match event.r#type() {
        EventType::Acquired => number.is_multiple_of(2) && event.fencing_token > last_token,
        EventType::Released => !number.is_multiple_of(2) && event.fencing_token == last_token,
        _ => false,
    }
}

async fn pair(client: &mut Box<dyn LockClient>, lock: &Watched) -> Result<(), BenchProblem> {
    lock.change();
    let token = client.acquire(lock.referee.lock(), Duration::ZERO).await?;
    lock.referee.granted(token)?;
    lock.referee.releasing();
    lock.change();
    client.release().await
}

/// Changes the locks in turn, at the rate. Each client has locks of its own.
async fn change(
    arena: &Arena<'_>,
    watched: &[Arc<Watched>],
    clients: Vec<Box<dyn LockClient>>,
    seen: &[Seen],
) -> Result<Vec<Box<dyn LockClient>>, BenchProblem> {
    // A pair is two changes.
    let pace = Pace::new(Some(arena.sizes.changes / 2.0));
    let count = clients.len();
    let mut crew = JoinSet::new();
    for (first, mut client) in clients.into_iter().enumerate() {
        let locks: Vec<_> = watched.iter().skip(first).step_by(count).map(Arc::clone).collect();
        let pace = Arc::clone(&pace);
        crew.spawn(async move {
            for lock in locks.iter().cycle() {
                if pace.turn().await.is_none() {
                    break;
                }
                pair(&mut client, lock).await?;
            }
            Ok(client)
        });
    }
    let clock = async {
        let measuring = Measuring::start(arena).await?;
        arena.progress.takes(arena.time);
        sleep(arena.time).await;
        pace.stop();
        Ok(measuring)
    };
    let (clients, measuring) = futures::future::try_join(together(crew), clock).await?;
    // The last deliveries count as well.
    wait_until_seen(watched, seen).await?;
    measuring.stop();
    Ok(clients)
}

/// Every stream has seen every change of its lock so far.
async fn wait_until_seen(watched: &[Arc<Watched>], seen: &[Seen]) -> Result<(), BenchProblem> {
    let streams = seen.len();
    for (number, seen) in seen.iter().enumerate() {
        let lock = &watched[number % watched.len()];
        let expected = lock.sent().len();
        let mut seen = seen.clone();
        let has_all = matches!(timeout(PATIENCE, seen.wait_for(|seen| *seen >= expected)).await, Ok(Ok(_)));
        if !has_all {
            let found = *seen.borrow();
            return Err(BenchProblem::wrong(format!(
                "stream {} of {} has seen {found} changes of {} in {PATIENCE:?}, and there were {expected}",
                number + 1,
                streams,
                lock.referee.lock()
            )));
        }
    }
    Ok(())
}
