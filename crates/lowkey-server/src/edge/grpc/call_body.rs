//! The body of a call. Some of it may have been read already, and it must be complete in time.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use hyper::body::{Body, Frame, Incoming};
use tokio::time::{Sleep, sleep};
use tonic::Status;
use tonic::codegen::StdError;

use crate::edge::{READ_TIMEOUT, late};

/// A part of a body, or why there is none.
pub(super) type Part = Result<Frame<Bytes>, StdError>;

pub(super) struct CallBody<B = Incoming> {
    /// Parts that were read before, and are read again.
    read: [Option<Part>; 2],
    rest: B,
    patience: Patience,
}

/// How long to wait for more.
enum Patience {
    /// For as long as the caller likes: the body is a stream of messages.
    Endless,
    /// For [`READ_TIMEOUT`] in total. The timer starts only if it must wait.
    Short(Option<Pin<Box<Sleep>>>),
}

impl<B> CallBody<B> {
    /// A body with one message, which comes at once.
    pub(super) fn message(rest: B) -> Self {
        Self { read: [None, None], rest, patience: Patience::Short(None) }
    }

    /// A body with messages that may come at any time.
    pub(super) fn stream(rest: B) -> Self {
        Self { read: [None, None], rest, patience: Patience::Endless }
    }

    /// Puts these parts back, to be read again.
    pub(super) fn put_back(&mut self, read: [Option<Part>; 2]) {
        self.read = read;
    }
}

impl<B> Body for CallBody<B>
where
    B: Body<Data = Bytes, Error: Into<StdError>> + Unpin,
{
    type Data = Bytes;
    type Error = StdError;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Part>> {
        if let Some(part) = self.read.iter_mut().find_map(Option::take) {
            return Poll::Ready(Some(part));
        }
        if let Poll::Ready(part) = Pin::new(&mut self.rest).poll_frame(cx) {
            return Poll::Ready(part.map(|part| part.map_err(Into::into)));
        }
        let Patience::Short(timer) = &mut self.patience else { return Poll::Pending };
        ready!(timer.get_or_insert_with(|| Box::pin(sleep(READ_TIMEOUT))).as_mut().poll(cx));
        Poll::Ready(Some(Err(Status::from(late()).into())))
    }

    fn is_end_stream(&self) -> bool {
        self.read.iter().all(Option::is_none) && self.rest.is_end_stream()
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures::{FutureExt as _, StreamExt as _, stream};
    use http_body_util::{BodyExt as _, StreamBody};
    use lowkey_api::ApiError;
    use tokio::time::{Duration, Instant, advance};

    use super::*;

    /// A part every six seconds, and no end.
    fn slow() -> impl Body<Data = Bytes, Error = Infallible> + Unpin {
        let parts = stream::repeat(()).then(|()| async {
            sleep(Duration::from_secs(6)).await;
            Ok(Frame::data(Bytes::from_static(b"a")))
        });
        StreamBody::new(parts.boxed())
    }

    #[tokio::test(start_paused = true)]
    async fn a_message_that_does_not_come_to_its_end_is_given_up() {
        let (mut body, begun) = (CallBody::message(slow()), Instant::now());
        assert!(body.frame().await.unwrap().is_ok());
        let error = body.frame().await.unwrap().unwrap_err();
        assert_eq!(begun.elapsed().as_secs(), READ_TIMEOUT.as_secs());
        let refusal = ApiError::from_status(&Status::from_error(error)).unwrap();
        assert_eq!(refusal.reason, late().reason);
        assert!(refusal.message.contains("did not arrive within 10 s"), "{}", refusal.message);
    }

    #[tokio::test(start_paused = true)]
    async fn a_stream_may_take_its_time_and_what_was_read_is_read_again() {
        let mut body = CallBody::stream(slow());
        body.put_back([Some(Ok(Frame::data(Bytes::from_static(b"b")))), None]);
        assert_eq!(body.frame().now_or_never().unwrap().unwrap().unwrap().into_data().unwrap(), "b");
        for _ in 0..5 {
            assert_eq!(body.frame().await.unwrap().unwrap().into_data().unwrap(), "a");
        }
        advance(READ_TIMEOUT).await;
        assert!(body.frame().await.unwrap().is_ok());
    }
}
