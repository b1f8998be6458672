//! Raft messages between two nodes, on a connection of their own for each direction.
//!
//! Every commit waits for a message there and one back. So the thread that takes the replica's turn writes
//! to the socket itself: everything for one member in one system call, without waking another thread. On
//! the receiving side there is one task between the socket and the inbox. All other traffic between nodes
//! is gRPC. The near end is in `outlet.rs`, the far end here.
//!
//! ```text
//! caller ─► TLS handshake: each end proves its key (`tls.rs`)
//! caller ─► GET /lowkey.peer.v1/messages, with its hello in the headers, to be upgraded
//! callee ─► 101, or a refusal as gRPC has it, in the headers
//! caller ─► frames: length (4 bytes, little endian), one message of `wire`
//! ```
//!
//! Invariants:
//! - A frame is sent completely, unless its connection ends. What a full socket does not take now is sent
//!   first later.
//! - What does not fit into the buffer for a slow member is dropped, frame by frame, and reported. Raft
//!   repeats it.
//! - A node is heard on one connection at a time, the last that it made, and for as long as it may be
//!   (`seats.rs`).
//! - The callee says nothing after the 101. Anything that is heard from it is the end of the connection.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::Response;
use bytes::BytesMut;
use http::{HeaderValue, StatusCode, header};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::time::Instant;
use tonic::Status;
use tonic::metadata::MetadataMap;

use super::frames::take_frame;
use super::hello::Caller;
use super::server::Peers;
use super::tls::Proof;

/// The path that messages are sent to.
pub(super) const PATH: &str = "/lowkey.peer.v1/messages";
pub(super) const PROTOCOL: HeaderValue = HeaderValue::from_static("lowkey-messages");
pub(super) const UPGRADE: HeaderValue = HeaderValue::from_static("upgrade");
/// How often a silent caller is checked for still being a member.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);
/// The longest pause in the middle of a frame.
const FRAME_PAUSE_MAX: Duration = Duration::from_secs(10);
const READ_BYTES: usize = 64 * 1024;

/// Lets in a caller that wants to send messages, or says why not.
pub(super) async fn answer(State(peers): State<Arc<Peers>>, mut request: Request) -> Response {
    let proof = request.extensions().get::<Proof>().copied().unwrap_or_default();
    let metadata = MetadataMap::from_headers(std::mem::take(request.headers_mut()));
    let is_upgrade = metadata.get(header::UPGRADE.as_str()).is_some_and(|value| value == "lowkey-messages");
    let caller = match peers.let_in(&metadata, proof) {
        Ok(_) if !is_upgrade => return Status::invalid_argument("messages need an upgrade").into_http(),
        Ok(caller) => caller,
        Err(status) => return status.into_http(),
    };
    let mut seat = peers.seats.take(&caller, caller.is_registered(&peers.service.lanes.root().view.status()));
    let upgrading = hyper::upgrade::on(request);
    tokio::spawn(async move {
        let heard = async {
            match upgrading.await {
                Ok(upgraded) => take_in(&peers, &caller, TokioIo::new(upgraded)).await,
                // A caller that goes away before it begins has nothing to say.
                Err(_) => Ok(()),
            }
        };
        let ended = tokio::select! {
            ended = heard => ended,
            () = seat.lost() => Ok(()),
        };
        if let Err(refusal) = ended {
            peers.complain(&refusal);
        }
    });
    let mut response = Response::new(Body::empty());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    response.headers_mut().insert(header::CONNECTION, UPGRADE);
    response.headers_mut().insert(header::UPGRADE, PROTOCOL);
    response
}

/// Delivers what a member says until it ends. An error if the member is not listened to any more.
async fn take_in(peers: &Peers, caller: &Caller, mut stream: impl AsyncRead + Unpin) -> Result<(), Status> {
    let mut parting = peers.service.parting.subscribe();
    // A learner says nothing for as long as no other node speaks to it.
    let mut look_again = tokio::time::interval(LOOK_INTERVAL);
    let (mut received, mut heard) = (BytesMut::new(), Instant::now());
    loop {
        // The caller may have been removed since it was let in, or be another node after all. It is told so
        // when it calls again.
        caller.check(&peers.service.lanes.root().view.status(), &peers.service.hello.known)?;
        if !received.is_empty() && heard.elapsed() >= FRAME_PAUSE_MAX {
            return Err(Status::deadline_exceeded(format!("member {} stopped in a frame", caller.member)));
        }
        received.reserve(READ_BYTES);
        tokio::select! {
            count = stream.read_buf(&mut received) => match count {
                // The member calls again.
                Ok(0) | Err(_) => return Ok(()),
                Ok(_) => {
                    heard = Instant::now();
                    peers.deliver(caller, || take_frame(&mut received))?;
                }
            },
            _ = look_again.tick() => {}
            _ = parting.wait_for(|parting| *parting) => return Ok(()),
        }
    }
}
