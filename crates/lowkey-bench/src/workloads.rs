//! What is done to a service, one file for each kind. All of them end with an error if anything they are told is
//! wrong.

mod capacity;
mod churn;
mod expire;
mod holders;
mod hot;
mod outage;
mod pairs;
mod renew;
mod scale;
mod watch;

use std::sync::Arc;
use std::time::Duration;

use futures::future::{try_join, try_join_all};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::lowkey::Lowkey;
use crate::pace::Pace;
use crate::progress::BenchProgress;
use crate::recorder::Recorder;
use crate::system::{BenchProblem, LockClient, System};
use crate::workload::{Sizes, Workload};

/// Before anything counts, connections are made and code is warm: this share of the time, but not longer.
const WARM_UP_SHARE: u32 = 10;
const WARM_UP_MAX: Duration = Duration::from_secs(1);

/// One turn of one contender.
pub(crate) struct Arena<'a> {
    pub(crate) system: &'a dyn System,
    pub(crate) workload: Workload,
    pub(crate) sizes: &'a Sizes,
    /// How many clients, leases or streams.
    pub(crate) size: usize,
    /// How long this turn is measured.
    pub(crate) time: Duration,
    /// Of all locks that are used: nobody else has any with it.
    pub(crate) prefix: String,
    pub(crate) recorder: &'a Arc<Recorder>,
    pub(crate) progress: &'a BenchProgress,
}

/// Has the contender do it.
pub(crate) async fn perform(arena: &Arena<'_>) -> Result<(), BenchProblem> {
    match arena.workload {
        Workload::Seq | Workload::Par => pairs::perform(arena).await,
        Workload::Hot => hot::perform(arena).await,
        Workload::Outage => outage::perform(arena).await,
        Workload::Holders => holders::perform(arena).await,
        Workload::Renew => renew::perform(arena).await,
        Workload::Expire => expire::perform(arena).await,
        Workload::Watch => watch::perform(arena).await,
        Workload::Capacity => capacity::perform(arena).await,
        Workload::Scale => scale::perform(arena).await,
        Workload::Churn => churn::perform(arena).await,
    }
}

type Clients = Vec<Box<dyn LockClient>>;

impl Arena<'_> {
    async fn clients(&self, count: usize) -> Result<Clients, BenchProblem> {
        try_join_all((0..count).map(|number| self.system.client(number))).await
    }

    /// Only lowkey is asked for some things; whoever plans a run sees to that.
    fn lowkey(&self) -> Result<&Lowkey, BenchProblem> {
        self.system
            .lowkey()
            .ok_or_else(|| BenchProblem::failed(format!("{} is for lowkey alone", self.workload)))
    }

    /// Lets a crew work until the turn is over, and gives its clients back.
    async fn timed(
        &self,
        pace: &Pace,
        crew: JoinSet<Result<Box<dyn LockClient>, BenchProblem>>,
    ) -> Result<Clients, BenchProblem> {
        let clock = async {
            sleep((self.time / WARM_UP_SHARE).min(WARM_UP_MAX)).await;
            let measuring = Measuring::start(self).await?;
            self.progress.takes(self.time);
            sleep(self.time).await;
            pace.stop();
            Ok(measuring)
        };
        let (clients, measuring) = try_join(together(crew), clock).await?;
        measuring.stop();
        self.recorder.never_began(self.workload.main_operation(), pace.never_sent());
        Ok(clients)
    }
}

/// In units of which memory is told.
const BYTES_PER_MB: f64 = 1e6;

/// The memory that the leader has, in bytes, if it was started here.
async fn leader_memory(arena: &Arena<'_>) -> Result<Option<u64>, BenchProblem> {
    let leader = arena.system.leader().await?;
    Ok(leader.and_then(|leader| arena.system.cluster().resident_bytes(&leader)))
}

/// How long a leader rests before its memory is looked at.
const REST: Duration = Duration::from_secs(3);

/// The same after a rest: what it needs to make a snapshot of all this, say, is not what it takes to hold it.
async fn rested_leader_memory(arena: &Arena<'_>) -> Result<Option<u64>, BenchProblem> {
    tokio::time::sleep(REST.min(arena.time)).await;
    leader_memory(arena).await
}

/// The time in which it counts, and what the leader computes in it.
struct Measuring<'a> {
    arena: &'a Arena<'a>,
    leader: Option<String>,
    computed_before: Option<Duration>,
}

impl<'a> Measuring<'a> {
    async fn start(arena: &'a Arena<'a>) -> Result<Self, BenchProblem> {
        let leader = arena.system.leader().await?;
        let computed_before = processor_time(arena, leader.as_deref());
        arena.recorder.start();
        Ok(Self { arena, leader, computed_before })
    }

    fn stop(self) {
        self.arena.recorder.stop();
        let after = processor_time(self.arena, self.leader.as_deref());
        if let (Some(before), Some(after)) = (self.computed_before, after) {
            self.arena.recorder.computed(after.saturating_sub(before));
        }
    }
}

fn processor_time(arena: &Arena<'_>, process: Option<&str>) -> Option<Duration> {
    arena.system.cluster().processor_time(process?)
}

/// What all of a crew give; the first problem ends the work of the others.
async fn together<T: 'static>(mut crew: JoinSet<Result<T, BenchProblem>>) -> Result<Vec<T>, BenchProblem> {
    let mut all = Vec::with_capacity(crew.len());
    while let Some(ended) = crew.join_next().await {
        all.push(ended.map_err(|error| BenchProblem::failed(format!("a client broke: {error}")))??);
    }
    Ok(all)
}

async fn close(clients: Clients) -> Result<(), BenchProblem> {
    try_join_all(clients.into_iter().map(|client| client.close())).await.map(|_| ())
}
