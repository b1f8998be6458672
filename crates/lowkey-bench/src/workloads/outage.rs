//! `outage`: the leader is killed, and a client goes on trying. What counts is the longest time without a pair.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tokio::time::sleep;

use super::{Arena, close, together};
use crate::pace::Pace;
use crate::referee::Referee;
use crate::system::{BenchProblem, LockClient};

const LOOK_INTERVAL: Duration = Duration::from_millis(20);
const PATIENCE: Duration = Duration::from_secs(60);

/// When pairs were done.
#[derive(Debug)]
struct Gaps {
    last: Instant,
    longest: Duration,
    pairs: u64,
}

impl Gaps {
    fn now() -> Self {
        Self { last: Instant::now(), longest: Duration::ZERO, pairs: 0 }
    }

    /// Forgets what was, but not when the last pair was done.
    fn begin(&mut self) {
        (self.longest, self.pairs) = (Duration::ZERO, 0);
    }

    fn pair_done(&mut self) {
        let now = Instant::now();
        self.longest = self.longest.max(now - self.last);
        self.last = now;
        self.pairs += 1;
    }
}

type Shared = Arc<Mutex<Gaps>>;

pub(super) async fn perform(arena: &Arena<'_>) -> Result<(), BenchProblem> {
    let client = arena.system.persistent_client().await?;
    let gaps: Shared = Arc::new(Mutex::new(Gaps::now()));
    let pace = Pace::new(None);
    let mut crew = JoinSet::new();
    let referee = Referee::new(format!("{}/outage", arena.prefix));
    crew.spawn(go_on(client, referee, Arc::clone(&pace), Arc::clone(&gaps)));
    let killing = async {
        arena.recorder.start();
        for kill in 0..arena.sizes.kills {
            arena.progress.done(kill, arena.sizes.kills);
            let gap = kill_the_leader(arena, &gaps).await?;
            arena.recorder.took("gap", gap);
        }
        arena.recorder.stop();
        pace.stop();
        Ok(())
    };
    let (clients, ()) = futures::future::try_join(together(crew), killing).await?;
    close(clients).await
}

async fn go_on(
    mut client: Box<dyn LockClient>,
    referee: Referee,
    pace: Arc<Pace>,
    gaps: Shared,
) -> Result<Box<dyn LockClient>, BenchProblem> {
    while pace.turn().await.is_some() {
        let token = client.acquire(referee.lock(), Duration::ZERO).await?;
        referee.granted(token)?;
        referee.releasing();
        client.release().await?;
        lock(&gaps).pair_done();
    }
    Ok(client)
}

async fn kill_the_leader(arena: &Arena<'_>, gaps: &Shared) -> Result<Duration, BenchProblem> {
    let cluster = arena.system.cluster();
    let deadline = Instant::now() + PATIENCE;
    while !arena.system.is_whole().await? {
        wait_a_little(deadline, "the nodes did not come together again").await?;
    }
    sleep(arena.sizes.quiet).await;
    let leader = arena.system.leader().await?.ok_or_else(|| BenchProblem::failed("nobody leads"))?;
    // From here on: what is under way at the kill counts.
    lock(gaps).begin();
    cluster.kill(&leader);
    let killed = lock(gaps).pairs;
    let deadline = Instant::now() + PATIENCE;
    // One pair may have been answered before the kill and be counted after it.
    while lock(gaps).pairs <= killed + 1 {
        cluster.check()?;
        wait_a_little(deadline, "no node took over from the leader").await?;
    }
    sleep(arena.sizes.quiet).await;
    let longest = lock(gaps).longest;
    cluster.restart(&leader)?;
    Ok(longest)
}

async fn wait_a_little(deadline: Instant, otherwise: &str) -> Result<(), BenchProblem> {
    if Instant::now() >= deadline {
        return Err(BenchProblem::failed(format!("{otherwise} in {PATIENCE:?}")));
    }
    sleep(LOOK_INTERVAL).await;
    Ok(())
}

fn lock(gaps: &Shared) -> MutexGuard<'_, Gaps> {
    gaps.lock().unwrap_or_else(PoisonError::into_inner)
}
