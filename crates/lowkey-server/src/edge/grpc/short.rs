//! The short path of a call: one message in, one message out, nothing in between.
//!
//! Most calls arrive complete: one message, not compressed, in the first bytes of the body. They are
//! decoded, answered and encoded here. The general path has streams, buffers and boxes around each of these
//! steps, which cost more than the steps. A call of any other form goes the general path, together with
//! what was read of it, and is answered or refused there.

use std::pin::Pin;
use std::task::{Context, Poll};

use ::http::{HeaderMap, HeaderName, HeaderValue, header};
use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http_body_util::BodyExt as _;
use hyper::body::{Body as HttpBody, Frame, Incoming};
use lowkey_api::ApiError;
use lowkey_api::framing::{framed, unframed};
use lowkey_core::limits::REQUEST_BYTES_MAX;
use prost::Message;

use super::call_body::CallBody;
use crate::edge::Dialect;

/// What the body of a call contained.
pub(super) enum Taken<Q> {
    /// One message.
    Message(Q),
    /// Something else.
    Other(Box<CallBody>),
}

/// True if messages of a call may be compressed.
pub(super) fn is_compressed(headers: &HeaderMap) -> bool {
    headers.get("grpc-encoding").is_some_and(|encoding| encoding != "identity")
}

/// Takes the message out of a body.
pub(super) async fn take<Q: Message + Default>(body: Incoming) -> Taken<Q> {
    let mut body = CallBody::message(body);
    let Some(first) = body.frame().await else { return Taken::Other(Box::new(body)) };
    let message = first.as_ref().ok().and_then(|part| only_message(part.data_ref()?));
    let second = match message {
        // If something comes behind the message, the general path judges it.
        Some(message) if body.is_end_stream() => return Taken::Message(message),
        Some(message) => match body.frame().await {
            None => return Taken::Message(message),
            second => second,
        },
        None => None,
    };
    body.put_back([Some(first), second]);
    Taken::Other(Box::new(body))
}

/// The message, if these bytes are exactly one message that may be taken.
fn only_message<Q: Message + Default>(bytes: &[u8]) -> Option<Q> {
    let message = unframed(bytes).filter(|message| message.len() <= REQUEST_BYTES_MAX)?;
    Q::decode(message).ok()
}

/// The answer to a call.
pub(super) fn answer<A: Message>(answer: Result<A, ApiError>) -> Response {
    let message = match answer {
        Ok(message) => message,
        Err(error) => return Dialect::Grpc.error(error),
    };
    let mut response =
        Response::new(Body::new(Answer { message: Some(framed(&message).into()), is_over: false }));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    response
}

/// The body of a successful answer: a message, then the status OK.
struct Answer {
    message: Option<Bytes>,
    is_over: bool,
}

impl HttpBody for Answer {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if let Some(message) = self.message.take() {
            return Poll::Ready(Some(Ok(Frame::data(message))));
        }
        if std::mem::replace(&mut self.is_over, true) {
            return Poll::Ready(None);
        }
        let mut trailers = HeaderMap::with_capacity(1);
        trailers.insert(HeaderName::from_static("grpc-status"), HeaderValue::from_static("0"));
        Poll::Ready(Some(Ok(Frame::trailers(trailers))))
    }

    fn is_end_stream(&self) -> bool {
        self.is_over
    }
}

#[cfg(test)]
mod tests {
    use lowkey_api::v1::RenewLeaseRequest;

    use super::*;

    #[test]
    fn only_a_message_that_may_be_taken_takes_the_short_way() {
        let taken = |bytes: &[u8]| only_message::<RenewLeaseRequest>(bytes);
        let message = RenewLeaseRequest { lease_id: 300, holds: None };
        assert_eq!(taken(&framed(&message)), Some(message));
        assert_eq!(taken(&[0, 0, 0, 0, 3, 8, 0xac, 0xff]), None, "not a message");
        let long = vec![0; REQUEST_BYTES_MAX + 1];
        let prefix = u32::try_from(long.len()).unwrap().to_be_bytes();
        assert_eq!(taken(&[&[0], &prefix[..], &long].concat()), None, "too long");
    }
}
