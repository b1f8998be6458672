//! Renews leases whose renewals arrived together. If this node is the leader, they become one request to
//! its replica and are answered together.
//!
//! Invariant: at most [`TOGETHER_MAX`] leases are in such requests at a time. Renewals beyond that go one
//! by one, through the limits for single requests.

use std::sync::atomic::{AtomicUsize, Ordering};

use lowkey_api::ApiError;
use lowkey_api::v1::{RenewLeaseRequest, RenewLeaseResponse};
use lowkey_core::{LeaseId, Refusal};
use lowkey_replica::{Failure, Renewal, Request, Response};
use tokio::time::timeout;

use super::{ANSWER_WAIT, Parked, Service, check_standing, nobody_leads};
use crate::access::Permitted;
use crate::call::Call as _;
use crate::metrics::Timed;
use crate::operation::{failure, holds};

const TOGETHER_MAX: usize = 131_072;

/// The outcome of a renewal, or `None` if the renewal must be asked for alone.
type Settled = Option<Result<RenewLeaseResponse, ApiError>>;

impl Service {
    /// Renews leases together, as far as this node can do that at once.
    pub(crate) async fn renew_together(&self, asked: &Permitted<&[RenewLeaseRequest]>) -> Vec<Settled> {
        let requests = *asked.wanted();
        let alone = || requests.iter().map(|_| None).collect();
        let ids = requests.iter().map(|request| LeaseId(request.lease_id));
        let lane = self.lanes.of_all(ids).filter(|lane| lane.leads() && check_standing(lane).is_ok());
        let Some(lane) = lane.filter(|_| requests.iter().all(|request| request.lease_id != 0)) else {
            return alone();
        };
        let Some(_room) = Room::take(&self.renewed_together, requests.len()) else { return alone() };
        let timed = self.metrics.begin_many(RenewLeaseRequest::NAME, requests.len());
        let leases = requests.iter().map(|request| (LeaseId(request.lease_id), holds(request)));
        let mut parked = Parked::ask(&lane.inbox, asked.caller(), Request::RenewMany(leases.collect()));
        match timeout(ANSWER_WAIT, parked.answer()).await {
            Ok(Some(Ok(Response::RenewedMany(renewed)))) => settled(requests, renewed, timed),
            // Some of them may be denied. Each that is asked for alone learns whether it is.
            Ok(Some(Err(
                Failure::NotLeader { .. }
                | Failure::Denied(_)
                | Failure::Refused(Refusal::LeaseNotFound { .. }),
            )))
            | Ok(None) => {
                timed.leave();
                alone()
            }
            Ok(Some(other)) => {
                let error = other.err().and_then(|other| failure(other, ""));
                refused(requests, error.unwrap_or_else(|| nobody_leads(true)), timed)
            }
            Err(_elapsed) => refused(requests, nobody_leads(true), timed),
        }
    }
}

fn settled(
    requests: &[RenewLeaseRequest],
    renewed: Vec<(Renewal, bool)>,
    mut timed: Timed<'_>,
) -> Vec<Settled> {
    let settle = |(request, (renewal, holds_differ)): (&RenewLeaseRequest, _)| match renewal {
        Renewal::Renewed(ttl) => Some(Ok(RenewLeaseResponse { ttl_seconds: ttl.seconds(), holds_differ })),
        Renewal::Gone => {
            let lease = LeaseId(request.lease_id);
            failure(Failure::Refused(Refusal::LeaseNotFound { lease }), "").map(Err)
        }
        // R4: this renewal waits for the outcome of the expiry. The others do not wait with it.
        Renewal::Expiring => None,
    };
    let settled: Vec<Settled> = requests.iter().zip(renewed).map(settle).collect();
    // All successes are alike, and all failures are alike.
    for is_good in [true, false] {
        let mut alike = settled.iter().flatten().filter(|outcome| outcome.is_ok() == is_good);
        if let Some(outcome) = alike.next() {
            timed.end_some(1 + alike.count(), outcome);
        }
    }
    timed.leave();
    settled
}

fn refused(requests: &[RenewLeaseRequest], error: ApiError, timed: Timed<'_>) -> Vec<Settled> {
    let outcome = Err(error);
    timed.end(&outcome);
    requests.iter().map(|_| Some(outcome.clone())).collect()
}

/// A share of [`TOGETHER_MAX`], given back on drop.
struct Room<'a> {
    taken: &'a AtomicUsize,
    count: usize,
}

impl<'a> Room<'a> {
    fn take(taken: &'a AtomicUsize, count: usize) -> Option<Self> {
        let room = Self { taken, count };
        let before = taken.fetch_add(count, Ordering::Relaxed);
        (before + count <= TOGETHER_MAX).then_some(room)
    }
}

impl Drop for Room<'_> {
    fn drop(&mut self) {
        self.taken.fetch_sub(self.count, Ordering::Relaxed);
    }
}
