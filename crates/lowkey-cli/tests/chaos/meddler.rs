//! Somebody who takes locks from those who hold them: what `lowkey release NAME --lease --token` and a
//! revocation from elsewhere do.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use lowkey_api::v1::lock_service_client::LockServiceClient;
use lowkey_api::v1::{ListLocksRequest, LockHolder, ReleaseLockRequest, RevokeLeaseRequest};
use lowkey_core::{LeaseId, Token};
use lowkey_sim::judge::Random;
use tokio::time::sleep;
use tonic::transport::Channel;

use crate::history::{Answer, Asked, Call, Outcome, lock_name, now};
use crate::stage::{ATTEMPT, Links, Stage, Told};

/// Whose locks are left alone: those that must be there at the end, and those that measure outages.
const SPARED: &[&str] = &["keeper", "probe-", "last"];
const PATIENCE: Duration = Duration::from_secs(3);

/// Takes one lock after another until the run is over.
pub(crate) async fn meddle(stage: Arc<Stage>, seed: u64) {
    let mut random = Random::new(seed);
    let mut links = stage.links(0);
    for number in 0_u64.. {
        sleep(Duration::from_millis(random.between(200, 2_000))).await;
        if stage.is_over() {
            return;
        }
        links.move_anywhere(&mut random);
        let Some((lock, holder)) = pick(&mut links, &mut random).await else { continue };
        let request = format!("meddler-{number}");
        let invoked = now();
        let (asked, outcome) = match random.one_in(4) {
            false => release(&mut links, &lock, &holder, &request).await,
            true => revoke(&mut links, &holder, &request).await,
        };
        stage.record(Call::ended_now("meddler", request, asked, invoked, outcome));
    }
}

/// One that holds something: of a name drawn first, so that those held by many are not drawn more often.
async fn pick(links: &mut Links, random: &mut Random) -> Option<(String, LockHolder)> {
    let call = |mut client: LockServiceClient<Channel>| async move {
        client.list_locks(ListLocksRequest { page_size: 1_000, ..ListLocksRequest::default() }).await
    };
    let Told::Yes(list) = links.insist(PATIENCE, ATTEMPT, call).await else { return None };
    let mut by_name: BTreeMap<String, Vec<LockHolder>> = BTreeMap::new();
    for lock in list.locks {
        let mut holders = lock.holders;
        holders.retain(|holder| !SPARED.iter().any(|spared| holder.owner_id.starts_with(spared)));
        if !holders.is_empty() {
            by_name.insert(lock.lock_name, holders);
        }
    }
    let names: Vec<&String> = by_name.keys().collect();
    let name = (!names.is_empty()).then(|| (*random.pick(&names)).clone())?;
    let holder = random.pick(&by_name[&name]).clone();
    Some((name, holder))
}

async fn release(links: &mut Links, lock: &str, holder: &LockHolder, request: &str) -> (Asked, Outcome) {
    let asked = Asked::ForceRelease { lock: lock_name(lock), token: Token(holder.fencing_token) };
    let request = ReleaseLockRequest {
        lock_name: lock.to_owned(),
        lease_id: holder.lease_id,
        fencing_token: holder.fencing_token,
        request_id: request.to_owned(),
        ..ReleaseLockRequest::default()
    };
    let call = |mut client: LockServiceClient<Channel>| {
        let request = request.clone();
        async move { client.release_lock(request).await }
    };
    let told = links.insist(PATIENCE, ATTEMPT, call).await;
    (asked, outcome(told, links.attempts))
}

async fn revoke(links: &mut Links, holder: &LockHolder, request: &str) -> (Asked, Outcome) {
    let asked = Asked::ForceRevoke { lease: LeaseId(holder.lease_id) };
    let request = RevokeLeaseRequest {
        lease_id: holder.lease_id,
        owner_id: holder.owner_id.clone(),
        request_id: request.to_owned(),
        ..RevokeLeaseRequest::default()
    };
    let call = |mut client: LockServiceClient<Channel>| {
        let request = request.clone();
        async move { client.revoke_lease(request).await }
    };
    let told = links.insist(PATIENCE, ATTEMPT, call).await;
    (asked, outcome(told, links.attempts))
}

fn outcome<T>(told: Told<T>, attempts: u32) -> Outcome {
    match told {
        // An attempt before it may have had the effect, and ended what would remember it.
        Told::No(error) if attempts > 1 => Outcome::Unknown(error.reason.to_string()),
        told => told.outcome(|_| Answer::Done),
    }
}
