//! `churn`: locks of ever new names are taken and given back. A lock that nobody holds costs nothing, so the leader's
//! memory must be as much at the end as it was when all that is of limited size had filled up.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::sleep;

use super::scale::wait_for_locks;
use super::{Arena, BYTES_PER_MB, Measuring, leader_memory, together};
use crate::lowkey::{Conversation, NodeChannel};
use crate::recorder::Recorder;
use crate::system::BenchProblem;

/// Conversations side by side.
const CONVERSATIONS: usize = 8;
/// Names for which one lease is used.
const NAMES_A_LEASE: usize = 1_000;
const TTL: Duration = Duration::from_secs(600);
const LOOK_INTERVAL: Duration = Duration::from_millis(50);
/// At which tenths of all names memory is looked at: the log that is kept, its snapshots and the events for watches are
/// of limited size, and take their time to reach it.
const LOOKED_AT: [(usize, &str); 3] =
    [(1, "memory after a tenth"), (5, "memory after half"), (10, "memory at the end")];

struct Names {
    next: AtomicUsize,
    done: AtomicUsize,
    count: usize,
    prefix: String,
}

pub(super) async fn perform(arena: &Arena<'_>) -> Result<(), BenchProblem> {
    let names = Arc::new(Names {
        next: AtomicUsize::new(0),
        done: AtomicUsize::new(0),
        count: arena.size,
        prefix: arena.prefix.clone(),
    });
    let measuring = Measuring::start(arena).await?;
    let mut crew = JoinSet::new();
    for number in 0..CONVERSATIONS {
        let channel = arena.lowkey()?.channel(number).await?;
        crew.spawn(pass_through(channel, Arc::clone(&names), Arc::clone(arena.recorder)));
    }
    let (_, ()) = futures::future::try_join(together(crew), look(arena, &names)).await?;
    measuring.stop();
    wait_for_locks(arena, 0).await
}

async fn pass_through(
    channel: NodeChannel,
    names: Arc<Names>,
    recorder: Arc<Recorder>,
) -> Result<(), BenchProblem> {
    let mut conversation = Conversation::open(channel).await?;
    loop {
        let first = names.next.fetch_add(NAMES_A_LEASE, Ordering::Relaxed);
        if first >= names.count {
            return Ok(());
        }
        let lease = conversation.create_lease(TTL).await?;
        let numbers = first..names.count.min(first + NAMES_A_LEASE);
        let locks = numbers.map(|number| format!("{}/passing-{number}", names.prefix));
        let took = |time| {
            recorder.took("pair", time);
            names.done.fetch_add(1, Ordering::Relaxed);
        };
        conversation.pass_through(lease, locks, took).await?;
        conversation.revoke_lease(lease).await?;
    }
}

/// Looks at the leader's memory now and then, until all is done.
async fn look(arena: &Arena<'_>, names: &Names) -> Result<(), BenchProblem> {
    let mut found = Vec::new();
    for (tenths, what) in LOOKED_AT {
        while names.done.load(Ordering::Relaxed) < names.count * tenths / 10 {
            arena.progress.done(names.done.load(Ordering::Relaxed), names.count);
            sleep(LOOK_INTERVAL).await;
        }
        if let Some(bytes) = leader_memory(arena).await? {
            arena.recorder.figure(what, bytes as f64 / BYTES_PER_MB, "MB");
            found.push(bytes as f64);
        }
    }
    if let [_, half, end] = found[..] {
        let each = (end - half) / (names.count as f64 / 2.0);
        arena.recorder.figure("growth a name, second half", each, "bytes");
    }
    Ok(())
}
