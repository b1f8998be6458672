//! A whole run: who takes part in what, and in which order.
//!
//! Each workload begins with fresh processes, so that nothing of the one before is in the way, and has a runtime of its
//! own, so that no client of it lives on. Contenders take turns within a workload: a machine that gets slower or faster
//! meanwhile does so for all of them. Where there are no turns they come one after the other, each alone.

use std::sync::Arc;
use std::thread;

use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::lowkey::{LowkeyAt, LowkeyContender, Setup, Through, tag};
use crate::process::{Cluster, Starter};
use crate::progress::BenchProgress;
use crate::recorder::Recorder;
use crate::report::BenchReport;
use crate::system::{BenchProblem, Contender, System};
use crate::workload::{Sizes, Workload};
use crate::workloads::{Arena, perform};

/// A port that was free may be taken before a node has it: then all are started again.
const START_ATTEMPTS: usize = 3;

/// What is to be run.
pub struct BenchPlan {
    /// What is done.
    pub workloads: Vec<Workload>,
    /// How much of it.
    pub sizes: Sizes,
    /// On how many nodes, once for each number; of no meaning for what is running already.
    pub nodes: Vec<usize>,
    /// Where lowkey is.
    pub place: LowkeyAt,
    /// The ways that requests take to it.
    pub through: Vec<Through>,
    /// How else nodes are set up, to be measured beside those that are as they come.
    pub setups: Vec<Setup>,
    /// The same in `seq` alone, to see that they work.
    pub setups_of_seq: Vec<Setup>,
    /// Who else takes part.
    pub others: Vec<Arc<dyn Contender>>,
    /// How many connections the clients have in all, if not one each.
    pub connections: Option<usize>,
    /// How processes are started.
    pub starter: Starter,
}

/// One workload on so many nodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    /// What is done.
    pub workload: Workload,
    /// With how many clients, leases or streams.
    pub size: usize,
    /// On how many nodes.
    pub nodes: usize,
}

/// Somebody had no part in a workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skipped {
    /// Who.
    pub system: String,
    /// In what.
    pub workload: Workload,
    /// Why.
    pub reason: String,
}

impl BenchPlan {
    /// All that is to be done, in order.
    fn cases(&self) -> Vec<Case> {
        let mut cases = Vec::new();
        for workload in &self.workloads {
            for nodes in &self.nodes {
                for size in self.sizes_of(*workload) {
                    cases.push(Case { workload: *workload, size, nodes: *nodes });
                }
            }
        }
        cases
    }

    fn sizes_of(&self, workload: Workload) -> Vec<usize> {
        match workload {
            Workload::Seq | Workload::Outage => vec![1],
            Workload::Par => vec![self.sizes.par_clients],
            Workload::Hot => self.sizes.hot_clients.clone(),
            Workload::Holders | Workload::Renew | Workload::Expire => vec![self.sizes.leases],
            Workload::Watch => vec![self.sizes.streams],
            Workload::Capacity => vec![self.sizes.capacity_leases],
            Workload::Scale => self.sizes.held.clone(),
            Workload::Churn => vec![self.sizes.names],
        }
    }

    fn contenders(&self, case: &Case, skipped: &mut Vec<Skipped>) -> Vec<Arc<dyn Contender>> {
        let of_seq = self.setups_of_seq.iter().filter(|_| case.workload == Workload::Seq);
        let setups = self.setups.iter().chain(of_seq.filter(|setup| !self.setups.contains(setup)));
        let setups: Vec<Setup> = [Setup::Plain].into_iter().chain(setups.copied()).collect();
        let ways = if case.workload.has_one_way() { 1 } else { self.through.len() };
        let lowkey = self.through.iter().take(ways).flat_map(|through| {
            setups.iter().map(|setup| {
                let (place, through, setup) = (self.place.clone(), *through, *setup);
                Arc::new(LowkeyContender { place, through, setup }) as Arc<dyn Contender>
            })
        });
        let others = self.others.iter().map(Arc::clone).filter(|_| !case.workload.is_for_lowkey_alone());
        let mut contenders: Vec<Arc<dyn Contender>> = lowkey.chain(others).collect();
        contenders.retain(|contender| match contender.sits_out(case.workload, case.nodes) {
            None => true,
            Some(reason) => {
                skipped.push(Skipped { system: contender.name(), workload: case.workload, reason });
                false
            }
        });
        contenders
    }

    fn connections(&self, case: &Case, contender: &dyn Contender) -> usize {
        let clients = match case.workload {
            Workload::Seq | Workload::Par | Workload::Hot | Workload::Outage => case.size,
            Workload::Holders
            | Workload::Renew
            | Workload::Expire
            | Workload::Watch
            | Workload::Capacity
            | Workload::Scale
            | Workload::Churn => self.sizes.par_clients,
        };
        self.connections.unwrap_or_else(|| contender.connections(clients))
    }
}

/// Runs the plan, and hands over each workload's reports as they are done. To be called on a thread that lives as long
/// as the processes that are started.
pub async fn run(
    plan: &BenchPlan,
    progress: &Arc<BenchProgress>,
    mut done: impl FnMut(Vec<BenchReport>, Vec<Skipped>),
) -> Result<(), BenchProblem> {
    for case in plan.cases() {
        let mut skipped = Vec::new();
        let contenders = plan.contenders(&case, &mut skipped);
        let mut reports = Vec::new();
        for group in groups(&case, contenders) {
            let outcome = run_case(plan, case, group, progress).await;
            reports.extend(outcome.map_err(|problem| problem.at(case.workload))?);
        }
        done(reports, skipped);
    }
    Ok(())
}

/// Who is up at the same time.
fn groups(case: &Case, contenders: Vec<Arc<dyn Contender>>) -> Vec<Vec<Arc<dyn Contender>>> {
    match case.workload.is_interleaved() && !contenders.is_empty() {
        true => vec![contenders],
        false => contenders.into_iter().map(|contender| vec![contender]).collect(),
    }
}

/// A runtime for one workload, on a thread of its own: whatever still runs in it ends with it.
struct Load {
    runtime: Handle,
    /// The thread ends when this is gone.
    _is_needed: oneshot::Sender<()>,
}

impl Load {
    fn new() -> Result<Self, BenchProblem> {
        // One thread makes more load than anybody here bears, and leaves the rest of the machine to who is measured.
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime =
            runtime.map_err(|error| BenchProblem::failed(format!("cannot start the runtime: {error}")))?;
        let handle = runtime.handle().clone();
        let (is_needed, is_over) = oneshot::channel();
        let run = move || {
            // An error is what it waits for.
            let _ = runtime.block_on(is_over);
            runtime.shutdown_background();
        };
        let spawned = thread::Builder::new().name("load".into()).spawn(run);
        spawned.map_err(|error| BenchProblem::failed(format!("cannot start a thread: {error}")))?;
        Ok(Self { runtime: handle, _is_needed: is_needed })
    }

    async fn carry_out<T: Send + 'static>(
        &self,
        work: impl Future<Output = Result<T, BenchProblem>> + Send + 'static,
    ) -> Result<T, BenchProblem> {
        let outcome = self.runtime.spawn(work).await;
        outcome.map_err(|error| BenchProblem::failed(format!("the workload broke: {error}")))?
    }
}

/// Ends the processes of a workload, also when nobody waits for its end.
#[derive(Default)]
struct Started(Vec<Arc<Cluster>>);

impl Drop for Started {
    fn drop(&mut self) {
        self.0.iter().for_each(|cluster| cluster.end());
    }
}

/// Somebody who is up and takes part.
struct Present {
    name: String,
    system: Box<dyn System>,
    recorder: Arc<Recorder>,
}

async fn run_case(
    plan: &BenchPlan,
    case: Case,
    contenders: Vec<Arc<dyn Contender>>,
    progress: &Arc<BenchProgress>,
) -> Result<Vec<BenchReport>, BenchProblem> {
    let (load, mut started) = (Load::new()?, Started::default());
    let mut present = Vec::new();
    for contender in contenders {
        progress.stage(format!("{}: {} starts", case.workload, contender.name()));
        present.push(start(plan, &case, &contender, &load, &mut started).await?);
    }
    let (sizes, progress) = (plan.sizes.clone(), Arc::clone(progress));
    load.carry_out(async move {
        take_turns(&case, &sizes, &present, &progress).await?;
        let report = |present: &Present| {
            let (name, system) = (present.name.clone(), &present.system);
            BenchReport::new(name, system.lowkey().is_some(), system.nodes(), &case, &present.recorder)
        };
        Ok(present.iter().map(report).collect())
    })
    .await
}

async fn start(
    plan: &BenchPlan,
    case: &Case,
    contender: &Arc<dyn Contender>,
    load: &Load,
    started: &mut Started,
) -> Result<Present, BenchProblem> {
    let mut attempt = 1;
    loop {
        let cluster = Arc::new(contender.start(&plan.starter, case.nodes)?);
        started.0.push(Arc::clone(&cluster));
        let (connecting, connections) = (Arc::clone(contender), plan.connections(case, &**contender));
        let its_cluster = Arc::clone(&cluster);
        let connected =
            load.carry_out(async move { connecting.connect(its_cluster, connections).await }).await;
        match connected {
            Ok(system) => {
                return Ok(Present { name: contender.name(), system, recorder: Arc::default() });
            }
            Err(_) if cluster.check().is_err() && attempt < START_ATTEMPTS => attempt += 1,
            Err(problem) => return Err(problem.at(contender.name())),
        }
    }
}

async fn take_turns(
    case: &Case,
    sizes: &Sizes,
    present: &[Present],
    progress: &BenchProgress,
) -> Result<(), BenchProblem> {
    // Who is alone has nobody to take turns with.
    let turns = if case.workload.is_interleaved() && present.len() > 1 { sizes.turns.max(1) } else { 1 };
    for turn in 1..=turns {
        for Present { name, system, recorder } in present {
            let of = if turns > 1 { format!(", turn {turn} of {turns}") } else { String::new() };
            progress.stage(format!("{} {}, {name}{of}", case.workload, case.size));
            let arena = Arena {
                system: &**system,
                workload: case.workload,
                sizes,
                size: case.size,
                time: sizes.measured / turns,
                prefix: format!("bench/{}", tag()),
                recorder,
                progress,
            };
            perform(&arena).await.map_err(|problem| problem.at(name))?;
            // Nobody has ended unnoticed.
            system.cluster().check().map_err(|problem| problem.at(name))?;
        }
    }
    Ok(())
}
