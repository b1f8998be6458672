//! Clients that do nothing but take a lock that nobody else wants and give it back: when one of them gets
//! through, there is service.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lowkey_api::v1::{AcquireLockRequest, ReleaseLockRequest};
use lowkey_core::{Mode, Scope, Token};
use lowkey_sim::judge::PlainClaim;
use tokio::time::sleep;

use crate::history::{Answer, Asked, Call, MILLISECOND, granted, lock_name, now};
use crate::stage::{Links, Stage, Told};

const ATTEMPT: Duration = Duration::from_millis(300);

/// How late is worth a note.
const LATE_NANOS: u64 = 50 * MILLISECOND;

#[derive(Default)]
pub(crate) struct Probes {
    /// When probes began that succeeded, and when they were through.
    successes: Mutex<Vec<(u64, u64)>>,
    /// When this process was late to wake from a short sleep, or its disk to sync a few bytes, and by how
    /// much: a busy machine is no fault of the service.
    lates: Mutex<Vec<(u64, u64)>>,
}

impl Probes {
    /// The longest that the machine kept this process waiting between two times.
    pub(crate) fn longest_late(&self, from: u64, to: u64) -> u64 {
        let lates = self.lates.lock().unwrap_or_else(PoisonError::into_inner);
        let within = lates.iter().filter(|(at, _)| (from..=to).contains(at));
        within.map(|(_, late)| *late).max().unwrap_or(0)
    }

    /// Sleeps, syncs and looks at the clock until the run is over.
    pub(crate) fn feel_the_load(&self, stage: &Stage, scratch: &Path) {
        const NAP: Duration = Duration::from_millis(20);
        let file = File::create(scratch).unwrap();
        while !stage.is_over() {
            let begun = now();
            std::thread::sleep(NAP);
            file.write_all_at(&begun.to_le_bytes(), 0).and_then(|()| file.sync_data()).unwrap();
            let (woken, nap) = (now(), NAP.as_nanos() as u64);
            let late = (woken - begun).saturating_sub(nap);
            if late > LATE_NANOS {
                self.lates.lock().unwrap_or_else(PoisonError::into_inner).push((woken, late));
            }
        }
    }

    /// When the first probe was through that began at this time or later.
    pub(crate) fn first_after(&self, time: u64) -> Option<u64> {
        let probes = self.successes.lock().unwrap_or_else(PoisonError::into_inner);
        probes
            .iter()
            .rev()
            .take_while(|(_, ended)| *ended >= time)
            .filter(|(begun, _)| *begun >= time)
            .map(|(_, ended)| *ended)
            .min()
    }
}

/// Probes until the run is over: at one node, and at the next when that does not answer.
pub(crate) async fn probe(stage: Arc<Stage>, probes: Arc<Probes>, number: usize, pause: Duration) {
    let mut links = stage.links(number);
    for turn in 0_u64.. {
        if stage.is_over() {
            return;
        }
        let begun = now();
        let owner = format!("probe-{number}-{turn}");
        if once(&stage, &mut links, &owner).await.is_some() {
            probes.successes.lock().unwrap_or_else(PoisonError::into_inner).push((begun, now()));
        }
        sleep(pause).await;
    }
}

async fn once(stage: &Stage, links: &mut Links, owner: &str) -> Option<()> {
    let claim = PlainClaim { lock: lock_name(owner), lease: None, mode: Mode::Exclusive, scope: Scope::Name };
    let acquire = AcquireLockRequest {
        lock_name: owner.to_owned(),
        owner_id: owner.to_owned(),
        ttl_seconds: 1,
        value: owner.to_owned(),
        request_id: owner.to_owned(),
        ..AcquireLockRequest::default()
    };
    let invoked = now();
    let mut client = links.client();
    let told = links.once(ATTEMPT, client.acquire_lock(acquire)).await;
    let mut grant = None;
    let outcome = told.outcome(|told| granted(grant.insert(told)));
    stage.record(Call::ended_now(owner, owner, Asked::Acquire { claim: claim.clone() }, invoked, outcome));
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
    let outcome = told.outcome(|_| Answer::Done);
    let (lock, token) = (claim.lock, Token(grant.fencing_token));
    stage.record(Call::ended_now(owner, request, Asked::Release { lock, token }, invoked, outcome));
    is_done.then_some(())
}
