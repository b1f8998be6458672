//! `seq`, `par`: clients with a lock each, pair after pair. And the same at a fixed rate, beside something else.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;

use super::{Arena, BYTES_PER_MB, Clients, close, leader_memory, together};
use crate::pace::Pace;
use crate::recorder::Recorder;
use crate::referee::Referee;
use crate::system::{BenchProblem, LockClient};

pub(super) async fn perform(arena: &Arena<'_>) -> Result<(), BenchProblem> {
    let clients = arena.clients(arena.size).await?;
    let pace = Pace::new(arena.sizes.rate);
    let crew = crew(arena, clients, &pace);
    let clients = arena.timed(&pace, crew).await?;
    if let Some(bytes) = leader_memory(arena).await? {
        arena.recorder.figure("leader's memory", bytes as f64 / BYTES_PER_MB, "MB");
    }
    close(clients).await
}

pub(super) fn crew(
    arena: &Arena<'_>,
    clients: Clients,
    pace: &Arc<Pace>,
) -> JoinSet<Result<Box<dyn LockClient>, BenchProblem>> {
    let mut crew = JoinSet::new();
    for (number, client) in clients.into_iter().enumerate() {
        let referee = Referee::new(format!("{}/own-{number}", arena.prefix));
        crew.spawn(pairs(client, referee, Arc::clone(pace), Arc::clone(arena.recorder)));
    }
    crew
}

async fn pairs(
    mut client: Box<dyn LockClient>,
    referee: Referee,
    pace: Arc<Pace>,
    recorder: Arc<Recorder>,
) -> Result<Box<dyn LockClient>, BenchProblem> {
    while let Some(due) = pace.turn().await {
        let token = client.acquire(referee.lock(), Duration::ZERO).await?;
        recorder.took("acquire", due.elapsed());
        referee.granted(token)?;
        referee.releasing();
        let sent = Instant::now();
        client.release().await?;
        recorder.took("release", sent.elapsed());
    }
    Ok(client)
}

/// Pairs at a fixed rate while something else is done.
pub(super) struct Beside {
    pace: Arc<Pace>,
    crew: JoinSet<Result<Box<dyn LockClient>, BenchProblem>>,
}

impl Beside {
    pub(super) async fn start(arena: &Arena<'_>) -> Result<Self, BenchProblem> {
        let clients = arena.clients(arena.sizes.par_clients).await?;
        let pace = Pace::new(Some(arena.sizes.pairs_beside));
        let crew = crew(arena, clients, &pace);
        Ok(Self { pace, crew })
    }

    /// Ends it; an error if anything was wrong.
    pub(super) async fn stop(self) -> Result<(), BenchProblem> {
        self.pace.stop();
        close(together(self.crew).await?).await
    }
}
