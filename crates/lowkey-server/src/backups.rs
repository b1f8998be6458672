//! Backups: made on a thread of their own, beside everything else.
//!
//! The leader keeps to the plan: `--backup-to`, every so often. Any node makes one when it is asked. A backup is made
//! of a snapshot that is made for it, beside the replica's turns; it is written, read back with all checks of a
//! start, and only then does it count. Only then do older ones go.
//!
//! Nothing here is in the way of a request: the thread has a runtime of its own, and what is slow or away is the
//! store's alone. A plan that fails is tried again, soon, and says so in the log and in the metrics.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use lowkey_backup::{BackupError, BackupId, GroupSnapshot, Manifest, Store, StoreUrl, Verified, no_progress};
use lowkey_core::{ClusterId, GroupId};
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

/// What is told of backups.
#[derive(Debug, Default)]
pub(crate) struct Told {
    /// When the newest good one was made, in seconds since 1970. 0 while none is known, and where this node does not lead.
    newest_unix_seconds: AtomicI64,
    pub(crate) made: AtomicU64,
    pub(crate) failed: AtomicU64,
}

impl Told {
    /// The age of the newest good backup, where this node leads and keeps to a plan.
    pub(crate) fn newest_age_seconds(&self) -> Option<i64> {
        let newest = self.newest_unix_seconds.load(Ordering::Relaxed);
        (newest != 0).then(|| (unix_seconds() - newest).max(0))
    }

    fn newest_is(&self, unix_seconds: Option<i64>) {
        self.newest_unix_seconds.store(unix_seconds.unwrap_or(0), Ordering::Relaxed);
    }
}

/// The thread that makes backups, as everybody else sees it.
pub(crate) struct Backups {
    pub(crate) plan: Option<BackupPlan>,
    pub(crate) told: Arc<Told>,
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
        plan: Option<BackupPlan>,
        (cluster, node_name): (ClusterId, String),
        lanes: Lanes,
        stopping: watch::Receiver<bool>,
    ) -> std::io::Result<Self> {
        let (orders, received) = mpsc::unbounded_channel();
        let told = Arc::new(Told::default());
        let maker = Maker { plan: plan.clone(), cluster, node_name, lanes, told: Arc::clone(&told) };
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
        Ok(Self { plan, told, orders })
    }

    /// Makes a backup of all that is committed up to a revision.
    pub(crate) async fn make(&self, to: StoreUrl, revision: u64) -> Result<Made, NotMade> {
        let (answer, made) = oneshot::channel();
        let gone = || NotMade::Snapshot("this node is stopping".into());
        self.orders.send(Order { to, revision, answer }).map_err(|_| gone())?;
        made.await.unwrap_or_else(|_| Err(gone()))
    }
}

struct Maker {
    plan: Option<BackupPlan>,
    cluster: ClusterId,
    node_name: String,
    lanes: Lanes,
    told: Arc<Told>,
}

impl Maker {
    async fn work(&self, mut orders: mpsc::UnboundedReceiver<Order>) {
        // When the next one is due, once this node leads.
        let mut due = None;
        loop {
            tokio::select! {
                order = orders.recv() => match order {
                    Some(order) => self.carry_out(order).await,
                    None => return,
                },
                () = sleep(LOOK_INTERVAL), if self.plan.is_some() => self.keep_to_plan(&mut due).await,
            }
        }
    }

    async fn carry_out(&self, Order { to, revision, answer }: Order) {
        let made = self.make(&to, revision).await;
        self.count(&made);
        if let Ok(made) = &made
            && self.plan.as_ref().is_some_and(|plan| plan.to == to)
            && self.lanes.root().leads()
        {
            self.told.newest_is(Some(made.id.made_seconds()));
        }
        // A caller that has gone needs no answer.
        let _ = answer.send(made);
    }

    async fn keep_to_plan(&self, due: &mut Option<Instant>) {
        let Some(plan) = &self.plan else { return };
        let root = self.lanes.root();
        if !root.view.status().serving || !root.view.is_sound() {
            *due = None;
            return self.told.newest_is(None);
        }
        let next = match *due {
            Some(due) if due > Instant::now() => return,
            Some(_) => self.make_planned(plan).await,
            // It begins to lead: another leader may have made one just now.
            None => self.first_due(plan).await,
        };
        *due = Some(Instant::now() + next);
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
                tracing::warn!(
                    store = %plan.to, %cause, retry_seconds = retry.as_secs(),
                    "a backup could not be made; it is tried again"
                );
                return retry;
            }
        };
        self.told.newest_is(Some(made.id.made_seconds()));
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
