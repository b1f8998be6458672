//! The interface between the edge and the node behind it.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use futures::Stream;
use http::HeaderValue;
use lowkey_api::ApiError;
use lowkey_api::v1::{GetStatusResponse, ObserveEvent, ObserveRequest, WatchEvent, WatchRequest};
use tokio::sync::watch;

use crate::access::{Guard, Permitted};
use crate::call::Call;
use crate::watch::LeaseListener;

/// Events as they happen. An error is the last item, and ends the stream.
pub type EventStream<T> = Pin<Box<dyn Stream<Item = Result<T, ApiError>> + Send>>;

/// The answer to a watch: where it begins, and what follows.
///
/// Heartbeats and the last message of a stopping node are events like any other: the node makes them. A
/// stream whose client goes away is dropped.
pub struct Events<T> {
    /// What follows.
    pub stream: EventStream<T>,
    /// Nothing up to this revision is missing: a client that gets nothing has seen this much.
    pub revision: u64,
}

impl<T> Events<T> {
    /// The events of `stream`, which continues behind `revision`.
    pub fn new(revision: u64, stream: impl Stream<Item = Result<T, ApiError>> + Send + 'static) -> Self {
        Self { stream: Box::pin(stream), revision }
    }
}

impl<T> fmt::Debug for Events<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Events").field("revision", &self.revision).finish_non_exhaustive()
    }
}

/// What the edge asks of the node behind it.
///
/// A call or a stream whose client goes away is dropped where it waits. So anything that must happen
/// nevertheless must not depend on being polled. Acquiring and campaigning may wait for a day; the edge
/// ends neither.
pub trait Node: Send + Sync + 'static {
    /// Answers a call that came by itself. If it ends something of a lease, the streams that use that lease
    /// are told.
    fn call<C: Call>(&self, call: Permitted<C>)
    -> impl Future<Output = Result<C::Response, ApiError>> + Send;

    /// Answers a call of a session stream. Its client already knows what the call ends.
    fn call_on_stream<C: Call>(
        &self,
        call: Permitted<C>,
    ) -> impl Future<Output = Result<C::Response, ApiError>> + Send {
        self.call(call)
    }

    /// Tells every change of one lock or of many.
    fn watch(
        &self,
        request: Permitted<WatchRequest>,
    ) -> impl Future<Output = Result<Events<WatchEvent>, ApiError>> + Send;

    /// Tells who leads, now and at every change.
    fn observe(
        &self,
        request: Permitted<ObserveRequest>,
    ) -> impl Future<Output = Result<Events<ObserveEvent>, ApiError>> + Send;

    /// Who is let in. Nothing that is asked above can be asked without it.
    fn guard(&self) -> &Arc<Guard>;

    /// A listener for a stream that must hear what others do to the leases that it uses. Never blocks.
    fn lease_listener(&self) -> LeaseListener;

    /// How this node sees the cluster. Never blocks.
    fn get_status(&self) -> GetStatusResponse;

    /// Whether the node can serve requests, or why not. Never blocks.
    fn ready(&self) -> Result<(), String>;

    /// What the node counts about itself: [`crate::METRICS_CONTENT_TYPE`] says in which form. Never blocks.
    fn metrics(&self) -> String;

    /// The cluster's id as a header's value, once the node is in one.
    fn cluster_header(&self) -> Option<HeaderValue>;

    /// Becomes true when the node has been told to stop.
    fn stopping(&self) -> watch::Receiver<bool>;
}
