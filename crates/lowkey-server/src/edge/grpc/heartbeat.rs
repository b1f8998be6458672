//! Many renewals over one stream.
//!
//! - Every message is answered by one message that echoes its `seq`. A renewal that fails is an
//!   answer too, and ends nothing.
//! - Renewals of one stream run side by side, at most [`IN_FLIGHT_MAX`]: beyond that, the stream is
//!   not read, and the client feels the back-pressure.
//! - A node that stops answers what it has read, says NODE_STOPPING once, and ends the stream with
//!   status OK, so that the client knows to go on elsewhere.

use std::sync::Arc;
use std::time::Duration;

use futures::{Stream, StreamExt, future, stream};
use lowkey_api::v1::{HeartbeatRequest, HeartbeatResponse, RenewLeaseRequest, RenewLeaseResponse};
use lowkey_api::{ApiError, Reason};
use tonic::Status;

use crate::edge::{Node, stopped};

/// Renewals of one stream that may be under way at a time. Large on purpose: while there is no leader
/// renewals wait, and a connection with some two thousand unread messages is cut off by the HTTP/2
/// layer, just when the client needs it.
const IN_FLIGHT_MAX: usize = 16_384;

/// How long a renewal that is under way may still take once the node stops.
const STOPPING_GRACE: Duration = Duration::from_secs(1);

/// The answers to `requests`, until they end or the node stops.
pub(super) fn answers<N: Node>(
    node: Arc<N>,
    requests: impl Stream<Item = Result<HeartbeatRequest, Status>> + Send,
) -> impl Stream<Item = Result<HeartbeatResponse, Status>> + Send {
    let stopping = node.stopping();
    let farewell = stream::once(future::lazy(move |_| {
        let error = ApiError::new(Reason::NodeStopping, "this node is stopping; go on with another one");
        stopping.borrow().then(|| Ok(refused(HeartbeatRequest::default(), error)))
    }));

    requests
        .take_until(stopped(node.stopping()))
        .map(move |request| {
            let node = Arc::clone(&node);
            async move { Ok(answer(&*node, request?).await) }
        })
        .buffer_unordered(IN_FLIGHT_MAX)
        .chain(farewell.filter_map(future::ready))
}

async fn answer<N: Node>(node: &N, request: HeartbeatRequest) -> HeartbeatResponse {
    let out_of_time = async {
        stopped(node.stopping()).await;
        tokio::time::sleep(STOPPING_GRACE).await;
    };
    let renewed = tokio::select! {
        biased;
        renewed = node.renew_lease(RenewLeaseRequest { lease_id: request.lease_id, holds: request.holds }) => renewed,
        () = out_of_time => Err(ApiError::new(Reason::NodeStopping, "the node stopped before it could renew")),
    };
    response(request, renewed)
}

/// What came of a renewal.
pub(super) fn response(
    request: HeartbeatRequest,
    renewed: Result<RenewLeaseResponse, ApiError>,
) -> HeartbeatResponse {
    let HeartbeatRequest { lease_id, seq, .. } = request;
    match renewed {
        Ok(RenewLeaseResponse { ttl_seconds, holds_differ }) => {
            HeartbeatResponse { lease_id, ttl_seconds, seq, holds_differ, ..HeartbeatResponse::default() }
        }
        Err(error) => refused(request, error),
    }
}

fn refused(request: HeartbeatRequest, error: ApiError) -> HeartbeatResponse {
    HeartbeatResponse {
        lease_id: request.lease_id,
        ttl_seconds: 0,
        seq: request.seq,
        error_reason: error.reason.as_str().to_owned(),
        error_message: error.message,
        holds_differ: false,
    }
}
