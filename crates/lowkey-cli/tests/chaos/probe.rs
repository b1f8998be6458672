//! Clients that do nothing but take a lock that nobody else wants and give it back: when one of them gets
//! through, there is service.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lowkey_api::v1::{AcquireLockRequest, ReleaseLockRequest};
use lowkey_core::{Mode, Scope, Token};
use lowkey_sim::judge::Claim;
use tokio::time::sleep;

use crate::history::{Answer, Asked, Call, Outcome, granted, lock_name, now};
use crate::stage::{Links, Stage, Told};

const ATTEMPT: Duration = Duration::from_millis(300);
const PAUSE: Duration = Duration::from_millis(40);

/// When probes began that succeeded, and when they were through.
#[derive(Default)]
pub(crate) struct Probes(Mutex<Vec<(u64, u64)>>);

impl Probes {
    /// When the first probe was through that began at this time or later.
    pub(crate) fn first_after(&self, time: u64) -> Option<u64> {
        let probes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        probes
            .iter()
            .rev()
            .take_while(|(_, ended)| *ended >= time)
            .filter(|(begun, _)| *begun >= time)
            .map(|(_, ended)| *ended)
            .min()
    }
}

/// Probes until the run is over, at each node in turn.
pub(crate) async fn probe(stage: Arc<Stage>, probes: Arc<Probes>, number: usize) {
    let mut links = stage.links(number);
    for turn in 0_u64.. {
        if stage.is_over() {
            return;
        }
        let begun = now();
        let owner = format!("probe-{number}-{turn}");
        if once(&stage, &mut links, &owner).await.is_some() {
            probes.0.lock().unwrap_or_else(PoisonError::into_inner).push((begun, now()));
        }
        sleep(PAUSE).await;
    }
}

async fn once(stage: &Stage, links: &mut Links, owner: &str) -> Option<()> {
    let claim = Claim { lock: lock_name(owner), lease: None, mode: Mode::Exclusive, scope: Scope::Name };
    let acquire = AcquireLockRequest {
        lock_name: owner.to_owned(),
        owner_id: owner.to_owned(),
        ttl_seconds: 1,
        value: owner.to_owned(),
        request_id: owner.to_owned(),
        ..AcquireLockRequest::default()
    };
    let call = |asked: Asked, request: &str, invoked: u64, outcome: Outcome| Call {
        owner: owner.to_owned(),
        request: request.to_owned(),
        asked,
        invoked,
        ended: now(),
        outcome,
        again: false,
        counted_on_until: None,
    };
    let invoked = now();
    let mut client = links.client();
    let told = links.once(ATTEMPT, client.acquire_lock(acquire)).await;
    let (outcome, grant) = match told {
        Told::Yes(grant) => (Outcome::Yes(granted(&grant)), Some(grant)),
        Told::No(error) => (Outcome::No(error), None),
        Told::Nothing(why) => (Outcome::Unknown(why), None),
    };
    stage.record(call(Asked::Acquire { claim: claim.clone() }, owner, invoked, outcome));
    let grant = grant?;
    let request = format!("{owner}-r");
    let release = ReleaseLockRequest {
        lock_name: owner.to_owned(),
        lease_id: grant.lease_id,
        fencing_token: grant.fencing_token,
        request_id: request.clone(),
        ..ReleaseLockRequest::default()
    };
    let invoked = now();
    let mut client = links.client();
    let told = links.once(ATTEMPT, client.release_lock(release)).await;
    let is_done = matches!(told, Told::Yes(_));
    let outcome = match told {
        Told::Yes(_) => Outcome::Yes(Answer::Done),
        Told::No(error) => Outcome::No(error),
        Told::Nothing(why) => Outcome::Unknown(why),
    };
    let (lock, token) = (claim.lock, Token(grant.fencing_token));
    stage.record(call(Asked::Release { lock, token }, &request, invoked, outcome));
    is_done.then_some(())
}
