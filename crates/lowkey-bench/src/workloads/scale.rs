//! `scale`: pairs while very many other locks are held. What a pair costs must not depend on how many there are, and what
//! is given back must leave nothing behind.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tokio::time::sleep;

use super::pairs::crew;
use super::{Arena, BYTES_PER_MB, Clients, close, leader_memory, rested_leader_memory, together};
use crate::lowkey::{Conversation, NodeChannel, renew_all};
use crate::pace::Pace;
use crate::system::BenchProblem;

/// Conversations that take the locks to be held, side by side.
const FILLERS: usize = 8;
const LOCKS_A_LEASE: usize = 1_000;
const TTL: Duration = Duration::from_secs(600);
const RENEWED_EVERY: Duration = Duration::from_secs(60);
/// How often to look whether the node has as much memory as work as such needs: history, remembered requests, log.
const SETTLING: Duration = Duration::from_secs(1);
/// It has when it grew by less than this beyond what it ever had.
const SETTLED_BYTES: u64 = 512 * 1024;
/// How often it is looked at most.
const SETTLINGS_MAX: u32 = 30;
/// How long the leader may take to know of what it has acknowledged.
const PATIENCE: Duration = Duration::from_secs(30);
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// The leases that hold the locks; whoever made one ends it.
#[derive(Default)]
struct Fill {
    next: AtomicUsize,
    held: AtomicUsize,
    leases: Mutex<Vec<u64>>,
}

type Filler = (Conversation, Vec<u64>);

pub(super) async fn perform(arena: &Arena<'_>) -> Result<(), BenchProblem> {
    let fill = Arc::new(Fill::default());
    let channel = arena.lowkey()?.channel(0).await?;
    let fillers = tokio::select! {
        fillers = measure(arena, &fill) => fillers?,
        problem = keep(channel, &fill) => return Err(problem),
    };
    release_all(fillers).await?;
    wait_for_locks(arena, 0).await?;
    if let Some(bytes) = rested_leader_memory(arena).await? {
        arena.recorder.figure("memory, all released", bytes as f64 / BYTES_PER_MB, "MB");
    }
    Ok(())
}

async fn measure(arena: &Arena<'_>, fill: &Arc<Fill>) -> Result<Vec<Filler>, BenchProblem> {
    let clients = settle(arena, arena.clients(arena.sizes.par_clients).await?).await?;
    let before = rested_leader_memory(arena).await?;

    let begun = Instant::now();
    let fillers = hold_many(arena, fill).await?;
    arena.recorder.figure("time to take them", begun.elapsed().as_secs_f64(), "s");
    wait_for_locks(arena, arena.size).await?;
    if let (Some(before), Some(after)) = (before, rested_leader_memory(arena).await?) {
        arena.recorder.figure("leader's memory", after as f64 / BYTES_PER_MB, "MB");
        let each = after.saturating_sub(before) as f64 / arena.size as f64;
        arena.recorder.figure("memory a held lock", each, "bytes");
    }

    let pace = Pace::new(arena.sizes.rate);
    let crew = crew(arena, clients, &pace);
    close(arena.timed(&pace, crew).await?).await?;
    Ok(fillers)
}

/// Pairs before anything is held, until the leader grows no more: what it needs for work as such is not memory for locks.
async fn settle(arena: &Arena<'_>, clients: Clients) -> Result<Clients, BenchProblem> {
    let pace = Pace::new(None);
    let crew = crew(arena, clients, &pace);
    let mut most = 0;
    for _ in 0..SETTLINGS_MAX {
        sleep(SETTLING.min(arena.time)).await;
        let now = leader_memory(arena).await?.unwrap_or_default();
        if now < most + SETTLED_BYTES {
            break;
        }
        most = now;
    }
    pace.stop();
    together(crew).await
}

/// As many locks as are to be held, by many leases, as fast as some conversations can.
async fn hold_many(arena: &Arena<'_>, fill: &Arc<Fill>) -> Result<Vec<Filler>, BenchProblem> {
    let mut crew = JoinSet::new();
    for number in 0..FILLERS {
        let channel = arena.lowkey()?.channel(number).await?;
        crew.spawn(hold_some(channel, Arc::clone(fill), arena.prefix.clone(), arena.size));
    }
    let watching = async {
        loop {
            arena.progress.done(fill.held.load(Ordering::Relaxed), arena.size);
            sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::select! {
        fillers = together(crew) => fillers,
        () = watching => Ok(Vec::new()),
    }
}

async fn hold_some(
    channel: NodeChannel,
    fill: Arc<Fill>,
    prefix: String,
    count: usize,
) -> Result<Filler, BenchProblem> {
    let mut conversation = Conversation::open(channel).await?;
    let mut own = Vec::new();
    loop {
        let first = fill.next.fetch_add(LOCKS_A_LEASE, Ordering::Relaxed);
        if first >= count {
            return Ok((conversation, own));
        }
        let lease = conversation.create_lease(TTL).await?;
        own.push(lease);
        fill.leases.lock().unwrap_or_else(PoisonError::into_inner).push(lease);
        let numbers = first..count.min(first + LOCKS_A_LEASE);
        let held = numbers.len();
        conversation.hold_all(lease, numbers.map(|number| format!("{prefix}/held-{number}"))).await?;
        fill.held.fetch_add(held, Ordering::Relaxed);
    }
}

/// Ends the leases, which nobody renews any more.
async fn release_all(fillers: Vec<Filler>) -> Result<(), BenchProblem> {
    for (mut conversation, leases) in fillers {
        for lease in leases {
            conversation.revoke_lease(lease).await?;
        }
    }
    Ok(())
}

/// Renews the leases that there are; gives why that went wrong.
async fn keep(channel: NodeChannel, fill: &Fill) -> BenchProblem {
    loop {
        sleep(RENEWED_EVERY).await;
        let leases = fill.leases.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Err(problem) = renew_all(channel.clone(), &leases).await {
            return problem;
        }
    }
}

/// The leader says that so many locks are held, and no other.
pub(super) async fn wait_for_locks(arena: &Arena<'_>, expected: usize) -> Result<(), BenchProblem> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let stats = arena.lowkey()?.status().await?.stats.unwrap_or_default();
        let found = usize::try_from(stats.locks).unwrap_or_default();
        if found == expected {
            return Ok(());
        }
        if Instant::now() >= deadline {
            return Err(BenchProblem::wrong(format!("{expected} locks should be held, and {found} are")));
        }
        sleep(LOOK_INTERVAL).await;
    }
}
