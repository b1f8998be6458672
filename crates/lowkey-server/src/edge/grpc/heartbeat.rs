//! Many renewals over one stream.
//!
//! - Every message is answered by one message that echoes its `seq`. A renewal that fails is answered too,
//!   and does not end the stream.
//! - Renewals of one stream run side by side. Each is charged to the connection, and those beyond its
//!   budget are refused. At most [`IN_FLIGHT_MAX`] are under way. Beyond that the stream is not read, and
//!   the client feels backpressure.
//! - A node that stops answers what it has read, says NODE_STOPPING once, and ends the stream with status
//!   OK. So the client knows that it should continue on another node.

use std::sync::Arc;
use std::time::Duration;

use futures::{FutureExt as _, Stream, StreamExt, future, stream};
use lowkey_api::v1::{HeartbeatRequest, HeartbeatResponse, RenewLeaseRequest};
use lowkey_api::{ApiError, Reason};
use tonic::Status;

use crate::access::ending_with;
use crate::edge::budget::{Account, CALL_BYTES, Urgency};
use crate::edge::{Node, Shown, stopped};
use crate::operation::renewed;

/// How many renewals of one stream may be under way at a time. Large on purpose. Renewals wait while there
/// is no leader, and the HTTP/2 layer cuts off a connection with some two thousand unread messages, just
/// when the client needs it.
const IN_FLIGHT_MAX: usize = 16_384;

/// How long a renewal that is under way may still take once the node stops.
const STOPPING_GRACE: Duration = Duration::from_secs(1);

/// The answers to `requests`, until they end or the node stops.
pub(super) fn answers<N: Node>(
    node: Arc<N>,
    account: Arc<Account>,
    shown: Shown,
    requests: impl Stream<Item = Result<HeartbeatRequest, Status>> + Send,
) -> impl Stream<Item = Result<HeartbeatResponse, Status>> + Send {
    let stopping = node.stopping();
    let expelled = Arc::clone(node.guard()).expelled(shown.caller().clone());
    let farewell = stream::once(future::lazy(move |_| {
        let error = ApiError::new(Reason::NodeStopping, "this node is stopping; go on with another one");
        stopping.borrow().then(|| Ok(renewed(0, 0, Err(error))))
    }));

    let answers = requests
        .take_until(stopped(node.stopping()))
        .map(move |request| {
            let (node, shown) = (Arc::clone(&node), shown.clone());
            let charged = account.charge(CALL_BYTES, Urgency::Urgent);
            async move {
                let request = request?;
                match charged {
                    Ok(_charge) => Ok(answer(&*node, &shown, request).await),
                    Err(full) => Ok(renewed(request.lease_id, request.seq, Err(full))),
                }
            }
        })
        .buffer_unordered(IN_FLIGHT_MAX)
        .chain(farewell.filter_map(future::ready));
    // A client that is nobody any more is told so, and nothing else.
    ending_with(Box::pin(answers), expelled.map(Status::from).boxed())
}

async fn answer<N: Node>(node: &N, shown: &Shown, request: HeartbeatRequest) -> HeartbeatResponse {
    let out_of_time = async {
        stopped(node.stopping()).await;
        tokio::time::sleep(STOPPING_GRACE).await;
    };
    let renewal = RenewLeaseRequest { lease_id: request.lease_id, holds: request.holds };
    let renewal = match node.guard().permit(shown, renewal) {
        Ok(renewal) => renewal,
        Err(error) => return renewed(request.lease_id, request.seq, Err(error)),
    };
    let outcome = tokio::select! {
        biased;
        outcome = node.call(renewal) => outcome,
        () = out_of_time => Err(ApiError::new(Reason::NodeStopping, "the node stopped before it could renew")),
    };
    renewed(request.lease_id, request.seq, outcome)
}
