//! `expire`: many leases run out at the same moment, beside pairs at a fixed rate.
//!
//! While they are made they are renewed, and once more together when all are there; then nobody says anything. A watch
//! tells when each is gone. It may not be gone before its time, counted from before its last renewal was sent, and
//! how late it is counts from the same moment: a little more than is fair.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures::TryStreamExt as _;
use lowkey_api::v1::EventType;
use lowkey_client::Watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::pairs::Beside;
use super::{Arena, Measuring, together};
use crate::lowkey::{NodeChannel, from_sdk, renew_all};
use crate::system::{BenchProblem, LockClient};

/// Pairs are measured from so long before the end of the leases until so long after.
const BEFORE: Duration = Duration::from_millis(500);
const AFTER: Duration = Duration::from_millis(500);
/// How long it is waited for leases that should be gone.
const PATIENCE: Duration = Duration::from_secs(60);

/// The leases that exist so far.
type Leases = Arc<Mutex<Vec<u64>>>;

pub(super) async fn perform(arena: &Arena<'_>) -> Result<(), BenchProblem> {
    let lowkey = arena.lowkey()?;
    let prefix = format!("{}/mortal-", arena.prefix);
    let channel = lowkey.channel(0).await?;
    let leases = make(arena, &prefix, &channel).await?;
    let (_, watch_from) = lowkey.sdk().locks(&prefix).await.map_err(|error| from_sdk(&error))?;
    let watch = lowkey.sdk().watch_prefix(&prefix).from(watch_from);
    let beside = Beside::start(arena).await?;
    let renewed: HashMap<u64, Instant> = renew_all(channel, &leases).await?.into_iter().collect();
    arena.progress.takes(arena.sizes.mortal_ttl);
    sleep(arena.sizes.mortal_ttl.saturating_sub(BEFORE)).await;
    let measuring = Measuring::start(arena).await?;
    let last = see_them_go(arena, watch, renewed).await?;
    arena.recorder.figure("all gone after their time", last.as_secs_f64() * 1e3, "ms");
    sleep(AFTER).await;
    measuring.stop();
    beside.stop().await?;
    let left = arena.system.count_held(&prefix).await?;
    if left > 0 {
        return Err(BenchProblem::wrong(format!("{left} locks are held by leases that are said to be gone")));
    }
    Ok(())
}

/// Makes the leases. They do not run out meanwhile.
async fn make(arena: &Arena<'_>, prefix: &str, channel: &NodeChannel) -> Result<Vec<u64>, BenchProblem> {
    let leases: Leases = Arc::default();
    let all_made = Arc::new(AtomicBool::new(false));
    let mut crew = JoinSet::new();
    let clients = arena.clients(arena.sizes.par_clients).await?;
    let (count, share) = (arena.size, clients.len());
    for (first, client) in clients.into_iter().enumerate() {
        let numbers = (first..count).step_by(share);
        crew.spawn(hold_some(
            client,
            prefix.to_owned(),
            numbers,
            arena.sizes.mortal_ttl,
            Arc::clone(&leases),
        ));
    }
    let making = async {
        let made = together(crew).await;
        all_made.store(true, Ordering::Release);
        made
    };
    let renewing = async {
        while !all_made.load(Ordering::Acquire) {
            let so_far = leases.lock().unwrap_or_else(PoisonError::into_inner).clone();
            arena.progress.done(so_far.len(), count);
            renew_all(channel.clone(), &so_far).await?;
            sleep(arena.sizes.mortal_ttl / 10).await;
        }
        Ok(())
    };
    futures::future::try_join(making, renewing).await?;
    Ok(leases.lock().unwrap_or_else(PoisonError::into_inner).clone())
}

async fn hold_some(
    mut client: Box<dyn LockClient>,
    prefix: String,
    numbers: impl Iterator<Item = usize>,
    ttl: Duration,
    leases: Leases,
) -> Result<(), BenchProblem> {
    for number in numbers {
        let held = client.hold(&format!("{prefix}{number}"), ttl).await?;
        leases.lock().unwrap_or_else(PoisonError::into_inner).extend(held.lease);
    }
    Ok(())
}

/// Waits until each lease is gone; gives how late the last one was.
async fn see_them_go(
    arena: &Arena<'_>,
    mut watch: Watch,
    mut renewed: HashMap<u64, Instant>,
) -> Result<Duration, BenchProblem> {
    let mut latest = Duration::ZERO;
    let deadline = Instant::now() + arena.sizes.mortal_ttl + PATIENCE;
    while !renewed.is_empty() {
        let left = deadline.saturating_duration_since(Instant::now());
        let Ok(event) = timeout(left, watch.try_next()).await else {
            let count = renewed.len();
            return Err(BenchProblem::wrong(format!(
                "{count} leases are not told to be gone {PATIENCE:?} after their time"
            )));
        };
        let event = event
            .map_err(|error| from_sdk(&error))?
            .ok_or_else(|| BenchProblem::failed("the watch ended"))?;
        if event.r#type() != EventType::Expired {
            continue;
        }
        let (lease, name) = (event.lease_id, &event.name);
        let Some(sent) = renewed.remove(&lease) else {
            return Err(BenchProblem::wrong(format!("lease {lease} of {name} is told to be gone twice")));
        };
        match sent.elapsed().checked_sub(arena.sizes.mortal_ttl) {
            Some(late) => {
                arena.recorder.took("late", late);
                latest = latest.max(late);
            }
            None => {
                let age = sent.elapsed();
                return Err(BenchProblem::wrong(format!(
                    "lease {lease} of {name} was gone {age:?} after it was renewed, too early"
                )));
            }
        }
    }
    Ok(latest)
}
