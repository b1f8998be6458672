//! Backups: made on a thread of their own, beside everything else.
//!
//! The leader keeps to the plan: the cluster's schedule if one was set, and its own flags otherwise. It looks at both all
//! the time, so a change needs no restart. Any node makes a backup when it is asked. A backup is made
//! of a snapshot that is made for it, beside the replica's turns; it is written, read back with all checks of a
//! start, and only then does it count. Only then do older ones go.
//!
//! Nothing here is in the way of a request: the thread has a runtime of its own, and what is slow or away is the
//! store's alone. A plan that fails is tried again, soon, and says so in the log and in the metrics.
//!
//! A node writes with its own rights. So it judges by its own flags whether it may write to where the cluster's schedule
//! says: another node, with other flags, may have let that in. See [`Bounds`].

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lowkey_api::v1::GetBackupScheduleResponse;
use lowkey_backup::{BackupError, BackupId, GroupSnapshot, Manifest, Store, StoreUrl, Verified, no_progress};
use lowkey_core::{BackupSchedule, ClusterId, GroupId};
use lowkey_replica::Input;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep};

use crate::edge::stopped;
use crate::lane::inbox::Event;
use crate::lane::{Lane, Lanes, snapshot_maker};
use crate::node::unix_ms;
use crate::storage::LoadError;

/// How often it is looked whether a backup is due.
const LOOK_INTERVAL: Duration = Duration::from_millis(250);
/// How often it is looked whether a snapshot is there.
const SNAPSHOT_INTERVAL: Duration = Duration::from_millis(20);
/// How long a snapshot may take to be made: a second or two is usual for the largest states.
const SNAPSHOT_WAIT: Duration = Duration::from_secs(120);
/// The longest pause after a failure.
const RETRY_PAUSE: Duration = Duration::from_secs(60);

/// Where backups go, how often, and how many are kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackupPlan {
    /// The store.
    pub to: StoreUrl,
    /// The time from one to the next.
    pub every: Duration,
    /// How many of this cluster are kept.
    pub keep: usize,
}

/// A backup that was made and read back.
#[derive(Debug)]
pub(crate) struct Made {
    pub(crate) id: BackupId,
    pub(crate) manifest: Manifest,
    pub(crate) took: Duration,
    verified: Verified,
}

/// Why a backup could not be made.
#[derive(Debug)]
pub(crate) enum NotMade {
    Store(BackupError),
    /// There is no snapshot to make it of.
    Snapshot(String),
}

impl std::fmt::Display for NotMade {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Store(error) => error.fmt(f),
            Self::Snapshot(cause) => write!(f, "no snapshot could be made for it: {cause}"),
        }
    }
}

impl From<BackupError> for NotMade {
    fn from(error: BackupError) -> Self {
        Self::Store(error)
    }
}

/// What the flags of this node say of backups: what it does on its own, and where it may write for others.
#[derive(Clone, Debug)]
pub(crate) struct Bounds {
    /// Where backups go if the cluster says nothing. At a client's wish they may go there, and below.
    pub(crate) flags: Option<BackupPlan>,
    /// Only this machine can reach the node, or its network is trusted: who asks could as well write by itself.
    pub(crate) trusts_network: bool,
}

impl Bounds {
    /// Whether this node may write there at somebody's wish; if not, why.
    pub(crate) fn permit(&self, to: &StoreUrl) -> Result<(), String> {
        let flags = self.flags.as_ref().map(|plan| &plan.to);
        if self.trusts_network || flags.is_some_and(|flags| to.is_within(flags)) {
            return Ok(());
        }
        let place = flags
            .map_or_else(|| "nowhere, without --backup-to".to_owned(), |flags| format!("within {flags}"));
        Err(format!(
            "this node makes backups at a client's wish {place}; start it with --backup-to to name another place"
        ))
    }

    /// What a leader with these flags keeps to: a plan, none, or a schedule that it may not keep to, and why.
    fn in_force(&self, schedule: Option<&BackupSchedule>) -> InForce {
        let rule = match schedule {
            None => return Ok(self.flags.clone()),
            Some(BackupSchedule::Off) => return Ok(None),
            Some(BackupSchedule::On(rule)) => rule,
        };
        // A later version may know other stores.
        let to: StoreUrl = rule.to().parse().map_err(|error: BackupError| error.to_string())?;
        self.permit(&to)?;
        Ok(Some(BackupPlan {
            to,
            every: Duration::from_secs(rule.every_seconds().into()),
            keep: usize::try_from(rule.keep()).unwrap_or(usize::MAX),
        }))
    }
}

type InForce = Result<Option<BackupPlan>, String>;

/// What is told of backups.
#[derive(Debug, Default)]
pub(crate) struct Told {
    /// When the newest good one was made, in seconds since 1970. 0 while none is known, and where this node does not lead.
    newest_unix_seconds: AtomicI64,
    /// The time from one to the next. 0 where this node does not lead, or keeps to no plan.
    every_seconds: AtomicU64,
    /// Why the last one could not be made.
    problem: Mutex<String>,
    pub(crate) made: AtomicU64,
    pub(crate) failed: AtomicU64,
}

impl Told {
    /// The age of the newest good backup, where this node leads and keeps to a plan.
    pub(crate) fn newest_age_seconds(&self) -> Option<i64> {
        let newest = self.newest_unix_seconds.load(Ordering::Relaxed);
        (newest != 0).then(|| (unix_seconds() - newest).max(0))
    }

    /// The time from one to the next, where this node leads and keeps to a plan.
    pub(crate) fn every_seconds(&self) -> Option<u64> {
        Some(self.every_seconds.load(Ordering::Relaxed)).filter(|every| *every != 0)
    }

    fn newest_is(&self, unix_seconds: Option<i64>) {
        self.newest_unix_seconds.store(unix_seconds.unwrap_or(0), Ordering::Relaxed);
    }

    fn problem_is(&self, problem: String) {
        *self.problem.lock().unwrap_or_else(PoisonError::into_inner) = problem;
    }

    fn problem(&self) -> String {
        self.problem.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// It keeps to this from now on, and nothing is known of it yet.
    fn begins(&self, plan: Option<&BackupPlan>) {
        self.newest_is(None);
        self.problem_is(String::new());
        self.every_seconds.store(plan.map_or(0, |plan| plan.every.as_secs()), Ordering::Relaxed);
    }
}

/// The thread that makes backups, as everybody else sees it.
pub(crate) struct Backups {
    pub(crate) bounds: Bounds,
    pub(crate) told: Arc<Told>,
    lanes: Lanes,
    orders: mpsc::UnboundedSender<Order>,
}

/// A backup that somebody asked for.
struct Order {
    to: StoreUrl,
    /// What must be in it.
    revision: u64,
    answer: oneshot::Sender<Result<Made, NotMade>>,
}

impl Backups {
    /// Starts the thread. It ends when the node stops, with whatever it is at: what is not finished is no backup.
    pub(crate) fn start(
        bounds: Bounds,
        (cluster, node_name): (ClusterId, String),
        lanes: Lanes,
        stopping: watch::Receiver<bool>,
    ) -> std::io::Result<Self> {
        let (orders, received) = mpsc::unbounded_channel();
        let told = Arc::new(Told::default());
        let maker = Maker {
            bounds: bounds.clone(),
            cluster,
            node_name,
            lanes: lanes.clone(),
            told: Arc::clone(&told),
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        std::thread::Builder::new().name("backups".into()).spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    () = stopped(stopping) => {}
                    () = maker.work(received) => {}
                }
            });
            // A store that does not answer must not hold up the node.
            runtime.shutdown_background();
        })?;
        Ok(Self { bounds, told, lanes, orders })
    }

    /// Makes a backup of all that is committed up to a revision.
    pub(crate) async fn make(&self, to: StoreUrl, revision: u64) -> Result<Made, NotMade> {
        let (answer, made) = oneshot::channel();
        let gone = || NotMade::Snapshot("this node is stopping".into());
        self.orders.send(Order { to, revision, answer }).map_err(|_| gone())?;
        made.await.unwrap_or_else(|_| Err(gone()))
    }

    /// What this node would keep to if it led, by what is applied here.
    pub(crate) fn in_force(&self) -> InForce {
        self.bounds.in_force(self.lanes.root().view.status().backup_schedule.as_deref())
    }

    /// What this node, which leads, makes of the schedule.
    pub(crate) fn report(&self) -> GetBackupScheduleResponse {
        let schedule = self.lanes.root().view.status().backup_schedule.clone();
        let mut report = described(schedule.as_deref());
        match self.bounds.in_force(schedule.as_deref()) {
            Ok(None) => {}
            Ok(Some(BackupPlan { to, every, keep })) => {
                report.to = to.to_string();
                report.every_seconds = i64::try_from(every.as_secs()).unwrap_or(i64::MAX);
                report.keep = i32::try_from(keep).unwrap_or(i32::MAX);
                let newest = self.told.newest_unix_seconds.load(Ordering::Relaxed);
                report.newest_unix_ms = u64::try_from(newest).unwrap_or(0).saturating_mul(1000);
                report.problem = self.told.problem();
            }
            Err(problem) => report.problem = problem,
        }
        report
    }
}

/// What the cluster says of its backups, as clients are told of it.
pub(crate) fn described(schedule: Option<&BackupSchedule>) -> GetBackupScheduleResponse {
    let told = GetBackupScheduleResponse::default();
    match schedule {
        None => GetBackupScheduleResponse { from_flags: true, ..told },
        Some(BackupSchedule::Off) => GetBackupScheduleResponse { off: true, ..told },
        Some(BackupSchedule::On(rule)) => GetBackupScheduleResponse {
            to: rule.to().to_owned(),
            every_seconds: rule.every_seconds().into(),
            keep: i32::try_from(rule.keep()).unwrap_or(i32::MAX),
            ..told
        },
    }
}

struct Maker {
    bounds: Bounds,
    cluster: ClusterId,
    node_name: String,
    lanes: Lanes,
    told: Arc<Told>,
}

/// What a leader keeps to, and when it has something to do.
struct Kept {
    in_force: InForce,
    /// When the next backup is due. Nothing before the store was asked for the newest.
    due: Option<Instant>,
}

impl Maker {
    async fn work(&self, mut orders: mpsc::UnboundedReceiver<Order>) {
        // Nothing while this node does not lead.
        let mut kept = None;
        loop {
            tokio::select! {
                order = orders.recv() => match order {
                    Some(order) => self.carry_out(order).await,
                    None => return,
                },
                () = sleep(LOOK_INTERVAL) => self.look(&mut kept).await,
            }
        }
    }

    async fn carry_out(&self, Order { to, revision, answer }: Order) {
        let made = self.make(&to, revision).await;
        self.count(&made);
        if let Ok(made) = &made
            && matches!(self.in_force(), Some(Ok(Some(plan))) if plan.to == to)
        {
            self.told.newest_is(Some(made.id.made_seconds()));
        }
        // A caller that has gone needs no answer.
        let _ = answer.send(made);
    }

    /// What this node keeps to now; nothing if it does not lead.
    fn in_force(&self) -> Option<InForce> {
        let root = self.lanes.root();
        let status = root.view.status();
        let leads = status.serving && root.view.is_sound();
        leads.then(|| self.bounds.in_force(status.backup_schedule.as_deref()))
    }

    async fn look(&self, kept: &mut Option<Kept>) {
        let Some(in_force) = self.in_force() else {
            if kept.take().is_some() {
                self.told.begins(None);
            }
            return;
        };
        let kept = match kept {
            Some(same) if same.in_force == in_force => same,
            before => {
                if before.is_some() {
                    tracing::info!("backups are made by another schedule from now on");
                }
                self.told.begins(in_force.as_ref().ok().and_then(Option::as_ref));
                before.insert(Kept { in_force: in_force.clone(), due: None })
            }
        };
        if kept.due.is_some_and(|due| due > Instant::now()) {
            return;
        }
        let next = match in_force {
            Ok(None) => return,
            Ok(Some(plan)) => tokio::select! {
                next = self.keep_to(&plan, kept.due.is_some()) => next,
                // A store that does not answer must not hold up a change of the store. What is not finished is no backup.
                () = self.changed(&kept.in_force) => return,
            },
            Err(cause) => {
                self.told.failed.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(%cause, "this leader may not make backups by the cluster's schedule");
                RETRY_PAUSE
            }
        };
        kept.due = Some(Instant::now() + next);
    }

    /// Resolves when this node leads no more, or keeps to something else.
    async fn changed(&self, from: &InForce) {
        while self.in_force().as_ref() == Some(from) {
            sleep(LOOK_INTERVAL).await;
        }
    }

    /// The time until there is something to do again.
    async fn keep_to(&self, plan: &BackupPlan, is_due: bool) -> Duration {
        match is_due {
            true => self.make_planned(plan).await,
            // It begins to lead, or to keep to this: another leader may have made one just now.
            false => self.first_due(plan).await,
        }
    }

    /// The time until the first backup of a new leader.
    async fn first_due(&self, plan: &BackupPlan) -> Duration {
        let newest = async { Store::open(&plan.to)?.newest_of(self.cluster).await };
        match newest.await {
            Ok(newest) => {
                self.told.newest_is(newest);
                let age = newest.map_or(plan.every, |newest| {
                    Duration::from_secs(u64::try_from(unix_seconds() - newest).unwrap_or(0))
                });
                plan.every.saturating_sub(age)
            }
            Err(error) => {
                tracing::warn!(store = %plan.to, cause = %error, "the store for backups does not answer; a backup is tried all the same");
                Duration::ZERO
            }
        }
    }

    /// The time until the next one.
    async fn make_planned(&self, plan: &BackupPlan) -> Duration {
        let revision = self.lanes.root().view.status().applied;
        let made = self.make(&plan.to, revision).await;
        self.count(&made);
        let made = match made {
            Ok(made) => made,
            Err(cause) => {
                let retry = plan.every.min(RETRY_PAUSE);
                self.told.problem_is(cause.to_string());
                tracing::warn!(
                    store = %plan.to, %cause, retry_seconds = retry.as_secs(),
                    "a backup could not be made; it is tried again"
                );
                return retry;
            }
        };
        self.told.newest_is(Some(made.id.made_seconds()));
        self.told.problem_is(String::new());
        let retained = async { Store::open(&plan.to)?.retain(plan.keep, &made.verified).await };
        match retained.await {
            Ok(retained) if retained.deleted.is_empty() => {}
            Ok(retained) => {
                tracing::info!(
                    deleted = retained.deleted.len(),
                    kept = retained.kept,
                    "old backups were deleted"
                );
            }
            Err(error) => {
                tracing::warn!(store = %plan.to, cause = %error, "old backups could not be deleted; it is tried again after the next one");
            }
        }
        plan.every
    }

    fn count(&self, made: &Result<Made, NotMade>) {
        match made {
            Ok(made) => {
                self.told.made.fetch_add(1, Ordering::Relaxed);
                let took_ms = u64::try_from(made.took.as_millis()).unwrap_or(u64::MAX);
                let size_bytes = made.manifest.size_bytes();
                tracing::info!(backup = %made.id, size_bytes, took_ms, "a backup was made, and read back");
            }
            Err(_) => drop(self.told.failed.fetch_add(1, Ordering::Relaxed)),
        }
    }

    /// Makes a backup, and reads it back.
    async fn make(&self, to: &StoreUrl, revision: u64) -> Result<Made, NotMade> {
        let started = Instant::now();
        let store = Store::open(to)?;
        let made_unix_ms = unix_ms();
        let mut groups = Vec::new();
        for lane in self.lanes.all() {
            let at_least = if lane.group == GroupId::ROOT { revision } else { lane.view.status().applied };
            let payload = fresh_snapshot(lane, at_least).await.map_err(NotMade::Snapshot)?;
            groups.push(GroupSnapshot { group: lane.group, payload });
        }
        let written = store.write(made_unix_ms, &self.node_name, groups, &no_progress).await?;
        let verified = store.fetch(&written.id, &no_progress).await?.verified();
        Ok(Made { id: written.id, manifest: written.manifest, took: started.elapsed(), verified })
    }
}

/// A snapshot of a group with everything up to an index, as it is in its file.
async fn fresh_snapshot(lane: &Lane, at_least: u64) -> Result<Vec<u8>, String> {
    let deadline = Instant::now() + SNAPSHOT_WAIT;
    loop {
        let newest = lane.snapshot_files.newest().map_err(|error| error.to_string())?;
        let problem = match newest {
            Some(newest) if newest >= at_least => match lane.snapshot_files.load(newest) {
                Ok(payload) => return Ok(payload),
                // Newer ones have replaced it.
                Err(error @ LoadError::Gone { .. }) => error.to_string(),
                Err(error) => {
                    snapshot_maker::lost(lane, newest);
                    error.to_string()
                }
            },
            _ if lane.view.status().applied < at_least => format!("entry {at_least} has not arrived here"),
            _ => {
                lane.inbox.report(Event::Replica(Input::MakeSnapshot));
                "it takes too long".to_owned()
            }
        };
        if Instant::now() >= deadline {
            return Err(problem);
        }
        sleep(SNAPSHOT_INTERVAL).await;
    }
}

fn unix_seconds() -> i64 {
    i64::try_from(unix_ms() / 1000).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use lowkey_core::BackupRule;

    use super::*;

    fn url(text: &str) -> StoreUrl {
        text.parse().unwrap()
    }

    fn plan(to: &str, every_seconds: u64, keep: usize) -> BackupPlan {
        BackupPlan { to: url(to), every: Duration::from_secs(every_seconds), keep }
    }

    fn on(to: &str) -> BackupSchedule {
        BackupSchedule::On(BackupRule::parse(to, 60, 5).unwrap())
    }

    #[test]
    fn the_clusters_schedule_comes_before_the_flags() {
        let flags = plan("s3://backups/lowkey", 600, 48);
        let bounds = Bounds { flags: Some(flags.clone()), trusts_network: false };
        assert_eq!(bounds.in_force(None), Ok(Some(flags)));
        assert_eq!(bounds.in_force(Some(&BackupSchedule::Off)), Ok(None));
        let within = plan("s3://backups/lowkey/a", 60, 5);
        assert_eq!(bounds.in_force(Some(&on("s3://backups/lowkey/a"))), Ok(Some(within)));
        let without = Bounds { flags: None, trusts_network: true };
        assert_eq!(without.in_force(None), Ok(None));
    }

    /// Another node may have other flags, and have let a place in that this one must not write to.
    #[test]
    fn a_leader_judges_the_place_by_its_own_flags() {
        let flags = Some(plan("s3://backups/lowkey", 600, 48));
        let elsewhere = ["s3://backups", "s3://backups/lowkey2", "s3://other", "file:///etc"];
        for to in elsewhere {
            let narrow = Bounds { flags: flags.clone(), trusts_network: false };
            let cause = narrow.in_force(Some(&on(to))).unwrap_err();
            assert!(cause.contains("within s3://backups/lowkey"), "{to}: {cause}");
            let none = Bounds { flags: None, trusts_network: false };
            let cause = none.in_force(Some(&on(to))).unwrap_err();
            assert!(cause.contains("nowhere, without --backup-to"), "{to}: {cause}");
            let trusting = Bounds { flags: flags.clone(), trusts_network: true };
            assert_eq!(trusting.in_force(Some(&on(to))), Ok(Some(plan(to, 60, 5))));
        }
    }

    #[test]
    fn a_store_that_this_version_does_not_know_is_no_plan() {
        let bounds = Bounds { flags: None, trusts_network: true };
        let cause = bounds.in_force(Some(&on("later://bucket"))).unwrap_err();
        assert!(cause.contains("none of them"), "{cause}");
    }
}
