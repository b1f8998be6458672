//! `renew`: many sessions of the SDK are kept alive, beside pairs at a fixed rate. None may be lost.

use std::sync::Arc;
use std::time::Duration;

use futures::{StreamExt as _, TryStreamExt as _};
use lowkey_client::{Client, LockGuard, Session, SessionStatus};
use tokio::time::sleep;

use super::pairs::Beside;
use super::{Arena, Measuring};
use crate::lowkey::from_sdk;
use crate::system::BenchProblem;

/// How many sessions one client of the SDK has.
const SESSIONS_A_CLIENT: usize = 1_000;
/// Renewals are due at a third of the time to live.
pub(super) const RENEWED_AT: u32 = 3;

pub(super) struct LeaseRenewer {
    session: Session,
    guard: LockGuard,
}

pub(super) async fn perform(arena: &Arena<'_>) -> Result<(), BenchProblem> {
    let prefix = format!("{}/kept-", arena.prefix);
    let holders = make(arena, &prefix).await?;
    let beside = Beside::start(arena).await?;
    // Before it is measured all are renewed once, and then once more at least.
    let round = arena.sizes.kept_ttl / RENEWED_AT;
    sleep(round).await;
    let measuring = Measuring::start(arena).await?;
    let time = arena.time.max(round);
    arena.progress.takes(time);
    sleep(time).await;
    measuring.stop();
    beside.stop().await?;
    finish(arena, &prefix, holders).await
}

/// Sees that none was lost, and ends them.
pub(super) async fn finish(
    arena: &Arena<'_>,
    prefix: &str,
    holders: Vec<LeaseRenewer>,
) -> Result<(), BenchProblem> {
    check(arena, prefix, &holders).await?;
    if arena.system.cluster().is_foreign() {
        for LeaseRenewer { session, guard } in holders {
            drop(guard);
            session.close().await.map_err(|error| from_sdk(&error))?;
        }
    }
    Ok(())
}

pub(super) async fn make(arena: &Arena<'_>, prefix: &str) -> Result<Vec<LeaseRenewer>, BenchProblem> {
    let lowkey = arena.lowkey()?;
    let mut clients = Vec::new();
    for _ in 0..arena.size.div_ceil(SESSIONS_A_CLIENT) {
        clients.push(lowkey.new_sdk_client().await?);
    }
    let clients = Arc::new(clients);
    let one = |number: usize| {
        let client = clients[number / SESSIONS_A_CLIENT].clone();
        let (name, ttl) = (format!("{prefix}{number}"), arena.sizes.kept_ttl);
        hold(client, name, ttl)
    };
    let mut making = futures::stream::iter(0..arena.size).map(one).buffer_unordered(arena.sizes.par_clients);
    let mut holders = Vec::with_capacity(arena.size);
    while let Some(holder) = making.try_next().await? {
        holders.push(holder);
        arena.progress.done(holders.len(), arena.size);
    }
    Ok(holders)
}

async fn hold(client: Client, name: String, ttl: Duration) -> Result<LeaseRenewer, BenchProblem> {
    let session = client.session(ttl).await.map_err(|error| from_sdk(&error))?;
    let guard = session.lock(name).try_acquire().await.map_err(|error| from_sdk(&error))?;
    Ok(LeaseRenewer { session, guard })
}

/// By the clients' own clocks none was lost, and the service agrees.
async fn check(arena: &Arena<'_>, prefix: &str, holders: &[LeaseRenewer]) -> Result<(), BenchProblem> {
    let is_lost = |holder: &&LeaseRenewer| matches!(holder.session.status(), SessionStatus::Lost(_));
    let lost: Vec<&LeaseRenewer> = holders.iter().filter(is_lost).collect();
    arena.recorder.figure("leases lost", lost.len() as f64, "");
    if let Some(first) = lost.first() {
        return Err(BenchProblem::wrong(format!(
            "{} of {} leases were lost, the first is {}: {:?}",
            lost.len(),
            holders.len(),
            first.session.lease_id(),
            first.session.status()
        )));
    }
    let (locks, _) = arena.lowkey()?.sdk().locks(prefix).await.map_err(|error| from_sdk(&error))?;
    let held = locks.iter().flat_map(|lock| lock.holders.iter().map(|holder| (&*lock.lock_name, holder)));
    let mut found: Vec<(&str, u64)> = held.map(|(name, holder)| (name, holder.fencing_token)).collect();
    let mut expected: Vec<(&str, u64)> =
        holders.iter().map(|holder| (holder.guard.name(), holder.guard.token())).collect();
    found.sort_unstable();
    expected.sort_unstable();
    match found == expected {
        true => Ok(()),
        false => Err(BenchProblem::wrong(format!(
            "{} locks are kept, and the service says that {} are held, or with other tokens",
            expected.len(),
            found.len()
        ))),
    }
}
