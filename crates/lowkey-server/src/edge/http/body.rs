//! Reading request bodies within limits of size and time.

use std::time::Duration;

use ::http::{HeaderMap, header};
use axum::body::Body;
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use lowkey_api::{ApiError, Reason};
use lowkey_core::limits::REQUEST_BYTES_MAX;
use tokio::time::timeout;

use crate::edge::{READ_TIMEOUT, late};

/// How long an unwanted body is read.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);
/// How much of an unwanted body is read, in bytes.
const DRAIN_BYTES_MAX: usize = 8 * 1024 * 1024;

/// The whole body.
pub(super) async fn read(headers: &HeaderMap, mut body: Body) -> Result<Bytes, ApiError> {
    let announced = headers.get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
    if announced.is_some_and(|length: u64| length > REQUEST_BYTES_MAX as u64) {
        // A client that waits for permission to send (`Expect`) sends nothing when it gets an answer
        // instead.
        if !headers.contains_key(header::EXPECT) {
            drain(body).await;
        }
        return Err(too_large());
    }

    match timeout(READ_TIMEOUT, collect(&mut body)).await {
        Ok(Ok(Some(bytes))) => Ok(bytes),
        Ok(Ok(None)) => {
            drain(body).await;
            Err(too_large())
        }
        Ok(Err(error)) => Err(ApiError::invalid("body", format_args!("could not be read: {error}"))),
        Err(_elapsed) => Err(late()),
    }
}

/// The body's bytes, or `None` as soon as there are too many.
async fn collect(body: &mut Body) -> Result<Option<Bytes>, axum::Error> {
    let mut collected = BytesMut::new();
    while let Some(frame) = body.frame().await {
        // A frame that is not data is a trailer, and does not matter here.
        let Ok(data) = frame?.into_data() else { continue };
        if collected.len() + data.len() > REQUEST_BYTES_MAX {
            return Ok(None);
        }
        collected.extend_from_slice(&data);
    }
    Ok(Some(collected.freeze()))
}

fn too_large() -> ApiError {
    let message = format!("a request may have {REQUEST_BYTES_MAX} bytes, and this one has more");
    ApiError::new(Reason::BodyTooLarge, message)
}

/// Reads and discards what the client still sends, within limits. A connection that is closed with unread
/// bytes in it is reset, and the client then often never sees the answer.
pub(in crate::edge) async fn drain(mut body: Body) {
    let read = async {
        let mut bytes_left = DRAIN_BYTES_MAX;
        while let Some(Ok(frame)) = body.frame().await {
            let length = frame.data_ref().map_or(0, Bytes::len);
            match bytes_left.checked_sub(length) {
                Some(left) => bytes_left = left,
                None => return,
            }
        }
    };
    // A timeout is as good as done: the client gets its answer either way.
    let _ = timeout(DRAIN_TIMEOUT, read).await;
}
