//! One call of a session: what it asks, and how it is answered.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures::future::{Abortable, join_all};
use futures::{FutureExt, Stream, StreamExt};
use lowkey_api::v1::session_answer::Answer;
use lowkey_api::v1::session_call::Call;
use lowkey_api::v1::{
    EventType, HeartbeatRequest, LeasesRenewed, RenewLeaseRequest, RenewLeases, WatchEvent,
};
use lowkey_api::{ApiError, Reason};
use lowkey_core::limits::REQUEST_BYTES_MAX;

use crate::edge::grpc::heartbeat;
use crate::edge::{EventStream, Node, fault};

/// Leases that one message may renew: as many as fit into a request, whatever their ids.
const LEASES_PER_RENEWAL_MAX: usize = 6_000;

/// The longest varint.
const LEASE_ID_BYTES_MAX: usize = 10;
const _: () = assert!(LEASES_PER_RENEWAL_MAX * LEASE_ID_BYTES_MAX + 64 <= REQUEST_BYTES_MAX);

/// What came of a call.
pub(super) enum Outcome {
    Answered(Answer),
    /// The answers follow.
    Watching(EventStream<WatchEvent>),
}

/// How many calls it counts for.
pub(super) fn weight(call: &Call) -> usize {
    match call {
        Call::RenewLeases(request) => request.lease_ids.len().max(1),
        _ => 1,
    }
}

/// Whether only the client can say how long it takes.
pub(super) fn waits(call: &Call) -> bool {
    match call {
        Call::AcquireLock(request) => request.wait_ms > 0,
        Call::Watch(_) => true,
        _ => false,
    }
}

/// Makes the call.
pub(super) async fn answer<N: Node>(node: Arc<N>, seq: u64, call: Call) -> (u64, Outcome) {
    // Whatever a panic left half done belongs to this call alone: it is dropped unseen.
    let outcome = match AssertUnwindSafe(ask(&*node, call)).catch_unwind().await {
        Ok(outcome) => outcome,
        Err(panic) => Err(fault("a call of a session", &*panic)),
    };
    (seq, outcome.unwrap_or_else(|error| Outcome::Answered(Answer::Error(error.into()))))
}

async fn ask<N: Node>(node: &N, call: Call) -> Result<Outcome, ApiError> {
    let answer = match call {
        Call::CreateLease(request) => Answer::CreateLease(node.create_lease(request).await?),
        Call::RenewLeases(request) => Answer::RenewLeases(renew_leases(node, request).await?),
        Call::RevokeLease(request) => Answer::RevokeLease(node.revoke_lease(request).await?),
        Call::AcquireLock(request) => Answer::AcquireLock(node.acquire_lock(request).await?),
        Call::ReleaseLock(request) => Answer::ReleaseLock(node.release_lock(request).await?),
        Call::GetLease(request) => Answer::GetLease(node.get_lease(request).await?),
        Call::GetLock(request) => Answer::GetLock(node.get_lock(request).await?),
        Call::Proclaim(request) => Answer::Proclaim(node.proclaim(request).await?),
        Call::Watch(request) => return Ok(Outcome::Watching(node.watch(request).await?.stream)),
        Call::Cancel(seq) => unreachable!("the cancellation of {seq} was made a call"),
    };
    Ok(Outcome::Answered(answer))
}

async fn renew_leases<N: Node>(node: &N, request: RenewLeases) -> Result<LeasesRenewed, ApiError> {
    let RenewLeases { lease_ids, holds } = request;
    if lease_ids.len() > LEASES_PER_RENEWAL_MAX {
        let problem =
            format!("at most {LEASES_PER_RENEWAL_MAX} may be renewed at once, not {}", lease_ids.len());
        return Err(ApiError::invalid("lease_id", problem));
    }
    if !holds.is_empty() && holds.len() != lease_ids.len() {
        let problem = format!("must be none, or one for each lease: {} of {}", holds.len(), lease_ids.len());
        return Err(ApiError::invalid("holds", problem));
    }
    let holds = holds.into_iter().map(Some).chain(std::iter::repeat(None));
    let renewals = lease_ids.into_iter().zip(holds).map(|(lease_id, holds)| async move {
        let renewed = node.renew_lease(RenewLeaseRequest { lease_id, holds }).await;
        heartbeat::response(HeartbeatRequest { lease_id, seq: 0, holds: None }, renewed)
    });
    Ok(LeasesRenewed { renewals: join_all(renewals).await })
}

/// The events of a watch, each with the watch's seq. Unless it is aborted, the last one says that it is:
/// see [`is_last`].
pub(super) struct Watch {
    seq: u64,
    events: Abortable<EventStream<WatchEvent>>,
    is_over: bool,
}

/// What a watch tells.
type Told = Result<WatchEvent, ApiError>;

/// Whether nothing follows.
pub(super) fn is_last(told: &Told) -> bool {
    told.as_ref().map_or(true, |event| event.r#type() == EventType::End)
}

impl Watch {
    pub(super) fn new(seq: u64, events: Abortable<EventStream<WatchEvent>>) -> Self {
        Self { seq, events, is_over: false }
    }
}

impl Stream for Watch {
    type Item = (u64, Told);

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.is_over {
            return Poll::Ready(None);
        }
        // Once it has panicked it is not asked again.
        let polled = catch_unwind(AssertUnwindSafe(|| self.events.poll_next_unpin(cx)));
        let told = match polled {
            Ok(event) => match ready!(event) {
                Some(told) => told,
                None if self.events.is_aborted() => return Poll::Ready(None),
                None => Err(ApiError::new(Reason::Internal, "the watch ended without saying why")),
            },
            Err(panic) => Err(fault("a watch of a session", &*panic)),
        };
        self.is_over = is_last(&told);
        Poll::Ready(Some((self.seq, told)))
    }
}
