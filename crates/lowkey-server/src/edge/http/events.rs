//! Events as a browser's `EventSource` reads them: `text/event-stream`.
//!
//! ```text
//! id: 12.0                       a change, for onmessage; its position
//! data: {"type":"ACQUIRED",…}
//!
//! event: heartbeat               nothing happened; all of revision 15 has been told
//! id: 15
//! data: {"type":"HEARTBEAT",…}
//!
//! event: end                     the node ends the stream, and says why
//! id: 15.1
//! data: {"type":"END",…}
//!
//! event: error                   the stream broke; the body of the error as in any other answer
//! data: {"code":11,"reason":"COMPACTED",…}
//! ```
//!
//! - Each `id` is a position to continue after, in the header Last-Event-ID or the parameter `after`. An
//!   error has no `id`, so the last one counts.
//! - Every event is one chunk of the body, sent as soon as the node tells it.
//! - The node's stream is dropped with the body, that is, as soon as the client is gone.

use std::convert::Infallible;
use std::io::Write;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use ::http::{HeaderName, HeaderValue, header};
use axum::body::Body;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures::Stream;
use lowkey_api::v1::{EventType, ObserveEvent, WatchEvent};
use lowkey_api::{ApiError, Position, Reason};
use serde::Serialize;

use super::error_response;
use crate::edge::{EventStream, Events, REVISION_HEADER};

/// Room for an event with names and values of usual length.
const FRAME_BYTES: usize = 512;

/// Asks reverse proxies such as nginx not to buffer events that should be told at once.
const ACCEL_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");

/// A message of the API that tells of something that happened.
pub(super) trait Event: Serialize + Send + 'static {
    /// What happened.
    fn kind(&self) -> EventType;

    /// Where it happened.
    fn position(&self) -> Position;
}

impl Event for WatchEvent {
    fn kind(&self) -> EventType {
        self.r#type()
    }

    fn position(&self) -> Position {
        Position { revision: self.revision, ordinal: self.ordinal }
    }
}

impl Event for ObserveEvent {
    fn kind(&self) -> EventType {
        self.r#type()
    }

    fn position(&self) -> Position {
        Position { revision: self.revision, ordinal: self.ordinal }
    }
}

/// The node's answer to a watch: a stream, or an ordinary error.
pub(super) fn respond<T: Event>(answer: Result<Events<T>, ApiError>) -> Response {
    let Events { stream, revision } = match answer {
        Ok(events) => events,
        Err(error) => return error_response(&error),
    };
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream")),
        (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
        (ACCEL_BUFFERING, HeaderValue::from_static("no")),
        (HeaderName::from_static(REVISION_HEADER), HeaderValue::from(revision)),
    ];
    (headers, Body::from_stream(Frames { events: Some(stream) })).into_response()
}

/// The node's events as the bytes of a body.
struct Frames<T> {
    /// `None` once the stream has ended.
    events: Option<EventStream<T>>,
}

impl<T: Event> Stream for Frames<T> {
    type Item = Result<Bytes, Infallible>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Some(events) = &mut self.events else { return Poll::Ready(None) };
        let next = ready!(events.as_mut().poll_next(context));
        let frame = next.map(|event| event.and_then(|event| frame(&event)));
        Poll::Ready(match frame {
            Some(Ok(frame)) => Some(Ok(frame)),
            Some(Err(error)) => {
                self.events = None;
                Some(Ok(error_frame(&error)))
            }
            None => {
                self.events = None;
                None
            }
        })
    }
}

/// One event.
fn frame(event: &impl Event) -> Result<Bytes, ApiError> {
    let position = event.position();
    let kind = match event.kind() {
        EventType::Heartbeat => "event: heartbeat\n",
        EventType::End => "event: end\n",
        _ => "",
    };
    let mut frame = Vec::with_capacity(FRAME_BYTES);
    let _ = writeln!(frame, "{kind}id: {position}"); // memory always takes it
    write_data(&mut frame, event).map_err(|error| {
        // Every message that a node makes can be expressed in JSON, so this does not happen.
        tracing::error!(%error, "an event could not be encoded");
        ApiError::new(Reason::Internal, "an event could not be encoded")
    })?;
    Ok(frame.into())
}

/// The event that ends a stream with an error.
fn error_frame(error: &ApiError) -> Bytes {
    let mut frame = b"event: error\n".to_vec();
    // Strings and numbers under string keys: nothing that could fail to be JSON.
    let _ = write_data(&mut frame, error);
    frame.into()
}

/// The data of an event, and its end. JSON is one line: the breaks in its texts are escaped.
fn write_data(frame: &mut Vec<u8>, data: &impl Serialize) -> serde_json::Result<()> {
    frame.extend_from_slice(b"data: ");
    serde_json::to_writer(&mut *frame, data)?;
    frame.extend_from_slice(b"\n\n");
    Ok(())
}

#[cfg(test)]
mod tests {
    use futures::StreamExt;

    use super::*;

    fn watch_event(kind: EventType, revision: u64, ordinal: u32) -> WatchEvent {
        WatchEvent { r#type: kind.into(), revision, ordinal, ..WatchEvent::default() }
    }

    /// The lines of an event's frame before its data.
    fn head(event: &impl Event) -> String {
        let frame = String::from_utf8(frame(event).unwrap().to_vec()).unwrap();
        let (head, data) = frame.split_once("data: ").unwrap();
        assert!(data.ends_with("}\n\n") && !data.trim_end().contains('\n'), "{data:?}");
        head.to_owned()
    }

    #[test]
    fn every_kind_of_event_has_its_head() {
        assert_eq!(head(&watch_event(EventType::Acquired, 12, 3)), "id: 12.3\n");
        assert_eq!(head(&watch_event(EventType::Heartbeat, 15, u32::MAX)), "event: heartbeat\nid: 15\n");
        // Between two changes of a revision: a client that continues after it must still be told the
        // second.
        assert_eq!(head(&watch_event(EventType::Heartbeat, 15, 0)), "event: heartbeat\nid: 15.0\n");
        assert_eq!(head(&watch_event(EventType::End, 15, 1)), "event: end\nid: 15.1\n");
        assert_eq!(head(&watch_event(EventType::End, 15, u32::MAX)), "event: end\nid: 15\n");
        let elected = ObserveEvent { r#type: EventType::Acquired.into(), revision: 7, ..Default::default() };
        assert_eq!(head(&elected), "id: 7.0\n");
    }

    #[test]
    fn line_breaks_in_texts_do_not_break_the_frame() {
        let value = "a\nb\r\n\ndata: {}\u{2028}".to_owned();
        let event = WatchEvent { value: value.clone(), ..watch_event(EventType::Value, 1, 0) };
        let frame = String::from_utf8(frame(&event).unwrap().to_vec()).unwrap();
        assert_eq!(frame.matches(['\n', '\r']).count(), 3, "{frame:?}");
        let data = frame.lines().nth(1).unwrap().strip_prefix("data: ").unwrap();
        assert_eq!(serde_json::from_str::<WatchEvent>(data).unwrap().value, value);
    }

    #[tokio::test]
    async fn nothing_follows_an_error() {
        let compacted = || Err(ApiError::new(Reason::Compacted, "that is gone"));
        let events =
            futures::stream::iter([Ok(watch_event(EventType::Released, 1, 0)), compacted(), compacted()]);
        let frames = Frames { events: Some(Box::pin(events)) };
        let frames: Vec<_> = frames.map(Result::unwrap).collect().await;
        assert_eq!(frames.len(), 2);
        assert!(frames[1].starts_with(b"event: error\ndata: {"), "{frames:?}");
    }

    #[test]
    fn what_json_cannot_say_ends_the_stream_with_an_error() {
        let unheard_of = WatchEvent { r#type: 99, ..WatchEvent::default() };
        assert_eq!(frame(&unheard_of).unwrap_err().reason, Reason::Internal);
    }
}
