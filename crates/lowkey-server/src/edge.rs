//! The node's interface to clients: gRPC on one port, HTTP/JSON on another, with the same meaning on both.
//!
//! The edge decodes a request, asks the [`Node`] behind it, and encodes the answer. It decides nothing
//! about locks. It checks only what it needs for decoding: for example, the node decides whether a TTL is
//! too long.
//!
//! - [`grpc::port`] and [`http::router`] make the two services. [`serve::serve`] runs either of them, and
//!   the one for peers, on a listener.
//! - Every answer on either port carries the cluster's id ([`CLUSTER_HEADER`]). So a client notices when it
//!   has reached a node of another cluster.
//! - A client that speaks to the wrong port is told so in the protocol that it speaks.
//!
//! - What a client may ask is judged before it reaches the node ([`Guard`]): the node takes nothing but a
//!   [`Permitted`] call.
//!
//! These invariants hold for any input of a client:
//!
//! - Everything that is kept for a client stays within its budget (`budget`): calls under way, and answers
//!   that it does not take.
//! - No request is read beyond [`lowkey_core::limits::REQUEST_BYTES_MAX`]. A request of one message does
//!   not wait for its bytes for ever.
//! - A request that panics is answered with INTERNAL and harms no other. A stream that panics after its
//!   beginning ends, and harms no other.
//! - Nothing here ends a call or a stream that waits. When its client goes away it is dropped, which is how
//!   the node behind learns of it. (Over HTTP/1 this is not noticed while there are unread bytes that the
//!   client sent behind its request. So a client that pipelines keeps its place in a queue until its wait
//!   is over.)

pub mod admin;
pub mod budget;
mod certificate;
mod charged;
pub mod grpc;
pub mod http;
mod node;
pub mod serve;
pub mod tls;

use std::any::Any;
use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use ::http::{HeaderMap, HeaderName, HeaderValue, Uri, header};
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use futures::FutureExt;
use lowkey_api::{ApiError, Reason};
use tokio::sync::watch;

pub use self::certificate::CertificateNames;
pub use self::node::{EventStream, Events, Node};
pub use crate::access::{Guard, Permitted, Rule, Ruled, Shown};
pub use crate::call::{Call, Place};

pub use crate::watch::{LeaseListener, LeaseNews};

/// How many characters of a refused value are shown back.
const SHOWN_CHARS_MAX: usize = 64;
/// How long a body may take to arrive.
const READ_TIMEOUT: Duration = Duration::from_secs(10);

/// The header, or gRPC metadata key, with the id of the cluster that answers.
pub const CLUSTER_HEADER: HeaderName = HeaderName::from_static("lowkey-cluster");

/// The header, or gRPC metadata key, of an answer that is a stream: up to which revision the stream
/// was complete when it began.
pub const REVISION_HEADER: &str = "lowkey-revision";

/// Resolves when `stopping` becomes true, or when its sender is gone.
pub(crate) async fn stopped(mut stopping: watch::Receiver<bool>) {
    // An error means that the sender is gone, and with it the node.
    let _ = stopping.wait_for(|stopping| *stopping).await;
}

/// The protocol that an answer must use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dialect {
    Grpc,
    Json,
}

impl Dialect {
    /// The protocol that the sender of these headers understands.
    fn of(headers: &HeaderMap) -> Self {
        const GRPC: &[u8] = b"application/grpc";
        let content_type = headers.get(header::CONTENT_TYPE).map_or(&[][..], HeaderValue::as_bytes);
        // Not gRPC-Web: `application/grpc-web` is another protocol, which no port speaks.
        match content_type.strip_prefix(GRPC) {
            Some([] | [b'+' | b';' | b' ', ..]) => Self::Grpc,
            _ => Self::Json,
        }
    }

    /// The error as an answer.
    fn error(self, error: ApiError) -> Response {
        match self {
            // A status in the headers, HTTP 200, no body: what gRPC calls trailers-only.
            Self::Grpc => tonic::Status::from(error).into_http(),
            Self::Json => http::error_response(&error),
        }
    }
}

/// Wraps every request that a router answers.
async fn envelope<N: Node>(State(node): State<Arc<N>>, request: Request, next: Next) -> Response {
    let (mut head, body) = request.into_parts();
    node.guard().look_at(&head.headers, &mut head.extensions);
    let request = Request::from_parts(head, body);
    let (uri, dialect) = (request.uri().clone(), Dialect::of(request.headers()));
    enclosed(&*node, uri, dialect, next.run(request)).await
}

/// Wraps every request of either port. It names the cluster in the answer, and turns a panic into an
/// answer.
async fn enclosed<N: Node>(
    node: &N,
    uri: Uri,
    dialect: Dialect,
    answer: impl Future<Output = Response>,
) -> Response {
    // What a panic left half done belongs to this request alone. It is dropped unseen.
    let answer = AssertUnwindSafe(answer).catch_unwind().await;
    let mut response = answer
        .unwrap_or_else(|panic| dialect.error(fault(format_args!("a request for {}", uri.path()), &*panic)));
    if let Some(id) = node.cluster_header() {
        response.headers_mut().insert(CLUSTER_HEADER, id);
    }
    response
}

/// The beginning of `text`. The size of an answer must not grow with the size of a wrong value.
fn shown(text: &str) -> String {
    match text.char_indices().nth(SHOWN_CHARS_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// The error for a body that was not complete in time.
fn late() -> ApiError {
    ApiError::invalid("body", format_args!("did not arrive within {} s", READ_TIMEOUT.as_secs()))
}

/// The answer after a panic, which is also logged.
pub(crate) fn fault(what: impl fmt::Display, panic: &(dyn Any + Send)) -> ApiError {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message");
    tracing::error!(panic = text, "{what} panicked");
    ApiError::new(Reason::Internal, "the request met a fault of the service")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_dialect_follows_from_the_content_type() {
        for (content_type, dialect) in [
            ("application/grpc", Dialect::Grpc),
            ("application/grpc+proto", Dialect::Grpc),
            ("application/grpc; charset=utf-8", Dialect::Grpc),
            ("application/grpc-web", Dialect::Json),
            ("application/json", Dialect::Json),
            ("", Dialect::Json),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
            assert_eq!(Dialect::of(&headers), dialect, "{content_type}");
        }
        assert_eq!(Dialect::of(&HeaderMap::new()), Dialect::Json);
    }
}
