//! `holders`: many leases with one lock each are made, as fast as some clients can.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use super::{Arena, BYTES_PER_MB, Measuring, close, rested_leader_memory, together};
use crate::recorder::Recorder;
use crate::system::{BenchProblem, HeldLock, LockClient};

/// Nobody renews them, and none must run out before the end.
const TTL: Duration = Duration::from_secs(600);

/// Which is the next to be made.
struct Making {
    next: AtomicUsize,
    count: usize,
    prefix: String,
}

type Made = (Box<dyn LockClient>, Vec<HeldLock>);

pub(super) async fn perform(arena: &Arena<'_>) -> Result<(), BenchProblem> {
    let clients = arena.clients(arena.sizes.par_clients).await?;
    let prefix = format!("{}/held-", arena.prefix);
    let making = Arc::new(Making { next: AtomicUsize::new(0), count: arena.size, prefix: prefix.clone() });
    let measuring = Measuring::start(arena).await?;
    let started = Instant::now();
    let mut crew = JoinSet::new();
    for client in clients {
        crew.spawn(make(client, Arc::clone(&making), Arc::clone(arena.recorder)));
    }
    let watching = async {
        loop {
            arena.progress.done(making.next.load(Ordering::Relaxed), making.count);
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    let made: Vec<Made> = tokio::select! {
        made = together(crew) => made?,
        () = watching => Vec::new(),
    };
    arena.recorder.figure("time to make them", started.elapsed().as_secs_f64(), "s");
    measuring.stop();
    let (clients, held): (Vec<_>, Vec<_>) = made.into_iter().unzip();
    check(arena, &prefix, held.into_iter().flatten()).await?;
    if let Some(bytes) = rested_leader_memory(arena).await? {
        arena.recorder.figure("leader's memory", bytes as f64 / BYTES_PER_MB, "MB");
    }
    // What was started here is thrown away as a whole.
    if arena.system.cluster().is_foreign() { close(clients).await } else { Ok(()) }
}

async fn make(
    mut client: Box<dyn LockClient>,
    making: Arc<Making>,
    recorder: Arc<Recorder>,
) -> Result<Made, BenchProblem> {
    let mut held = Vec::new();
    loop {
        let number = making.next.fetch_add(1, Ordering::Relaxed);
        if number >= making.count {
            return Ok((client, held));
        }
        let lock = format!("{}{number}", making.prefix);
        let sent = Instant::now();
        held.push(client.hold(&lock, TTL).await?);
        recorder.took("hold", sent.elapsed());
    }
}

/// All are there, and no two have the same token.
async fn check(
    arena: &Arena<'_>,
    prefix: &str,
    held: impl Iterator<Item = HeldLock>,
) -> Result<(), BenchProblem> {
    let mut tokens: Vec<u64> = held.filter_map(|held| held.token).collect();
    tokens.sort_unstable();
    if let Some(twice) = tokens.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(BenchProblem::wrong(format!("two locks were granted with token {}", twice[0])));
    }
    let (found, made) = (arena.system.count_held(prefix).await?, arena.size);
    if found != made {
        return Err(BenchProblem::wrong(format!("{made} locks were taken, and {found} are held")));
    }
    Ok(())
}
