//! Clients that wait and watch, and come back whatever happens to the nodes.

mod electing;
mod expiry;
mod scopes;
mod waiting;
mod watching;

use std::time::{Duration, Instant};

use lowkey_api::v1::lock_service_client::LockServiceClient;
use lowkey_api::v1::{
    AcquireLockRequest, AcquireLockResponse, CreateLeaseRequest, EventType, GetLockRequest, GetLockResponse,
    ReleaseLockRequest, RevokeLeaseRequest, WatchEvent, WatchRequest,
};
use lowkey_api::{ApiError, Position};
use tokio_stream::StreamExt as _;
use tonic::transport::Channel;
use tonic::{Response, Status, Streaming};

use crate::harness::{Cluster, Node, PATIENCE};

/// Calls that share a connection: less than the 100 that a node allows by default.
const CALLS_PER_CONNECTION: usize = 90;

/// An answer that is not waited for in vain.
pub(crate) async fn in_time<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(4 * PATIENCE, future).await.unwrap_or_else(|_| panic!("waited in vain: {what}"))
}

/// A client's connections, one to each node that it may ask.
#[derive(Clone)]
pub(crate) struct Links {
    /// In the order in which it asks them.
    channels: Vec<Channel>,
    /// How long it takes a breath before it asks again.
    pause: Duration,
}

/// The connections of many clients: few clients share one, and all nodes have about as many.
pub(crate) struct Crowd(Vec<Vec<Channel>>);

impl Crowd {
    pub(crate) fn new(cluster: &Cluster, clients: usize) -> Self {
        let groups = clients.div_ceil(CALLS_PER_CONNECTION);
        Self((0..groups).map(|_| cluster.nodes.iter().map(Node::channel).collect()).collect())
    }

    /// The connections of a client, which asks the node `client % nodes` first.
    pub(crate) fn links(&self, client: usize) -> Links {
        let mut channels = self.0[client / CALLS_PER_CONNECTION].clone();
        let nodes = channels.len();
        channels.rotate_left(client % nodes);
        Links::new(channels)
    }
}

/// What a client was told before it was told for good.
#[derive(Clone, Debug)]
pub(crate) struct Setback {
    pub(crate) at: Instant,
    /// Nothing if it was the connection that broke.
    pub(crate) error: Option<ApiError>,
}

/// The outcome of a call, and what came before it.
pub(crate) struct Told<T> {
    pub(crate) outcome: Result<T, ApiError>,
    pub(crate) at: Instant,
    pub(crate) setbacks: Vec<Setback>,
}

impl<T> Told<T> {
    /// The answer that there must be.
    pub(crate) fn answer(self) -> T {
        self.outcome.unwrap_or_else(|error| panic!("{error} after {:?}", self.setbacks))
    }
}

impl Links {
    /// Connections to all of these nodes.
    pub(crate) fn to<'a>(nodes: impl IntoIterator<Item = &'a Node>) -> Self {
        Self::new(nodes.into_iter().map(Node::channel).collect())
    }

    fn new(channels: Vec<Channel>) -> Self {
        Self { channels, pause: Duration::from_millis(10) }
    }

    /// A client that is slow to come back.
    pub(crate) fn with_pause(self, pause: Duration) -> Self {
        Self { pause, ..self }
    }

    /// The connection to the node that is asked first.
    pub(crate) fn first(&self) -> Channel {
        self.channels[0].clone()
    }

    /// Calls until there is an answer that asking again would not change, each time at the next node.
    pub(crate) async fn insist<T, Answer>(
        &self,
        call: impl Fn(LockServiceClient<Channel>) -> Answer,
    ) -> Told<T>
    where
        Answer: Future<Output = Result<Response<T>, Status>>,
    {
        let mut setbacks = Vec::new();
        for channel in self.channels.iter().cycle() {
            let outcome = call(LockServiceClient::new(channel.clone())).await;
            let (at, error) = match outcome {
                Ok(response) => {
                    return Told { outcome: Ok(response.into_inner()), at: Instant::now(), setbacks };
                }
                Err(status) => (Instant::now(), ApiError::from_status(&status)),
            };
            if let Some(error) = error.clone().filter(|error| !error.is_retryable()) {
                return Told { outcome: Err(error), at, setbacks };
            }
            setbacks.push(Setback { at, error });
            tokio::time::sleep(self.pause).await;
        }
        unreachable!("there are nodes to ask");
    }

    /// Acquires, always with the same request id: whoever waits keeps its place.
    pub(crate) async fn acquire(&self, request: &AcquireLockRequest) -> Told<AcquireLockResponse> {
        assert!(!request.request_id.is_empty(), "who may ask again needs an id");
        self.insist(|mut client| async move { client.acquire_lock(request.clone()).await }).await
    }

    /// Releases a grant, once.
    pub(crate) async fn release(&self, lock: &str, grant: &AcquireLockResponse) {
        let request = ReleaseLockRequest {
            lock_name: lock.to_owned(),
            lease_id: grant.lease_id,
            fencing_token: grant.fencing_token,
            request_id: format!("release-{}", grant.fencing_token),
            ..ReleaseLockRequest::default()
        };
        let call = |mut client: LockServiceClient<Channel>| {
            let request = request.clone();
            async move { client.release_lock(request).await }
        };
        in_time("a release", self.insist(call)).await.answer();
    }

    /// A long lease, made once.
    pub(crate) async fn lease(&self, owner: &str, request_id: &str) -> u64 {
        let request = CreateLeaseRequest {
            owner_id: owner.to_owned(),
            ttl_seconds: 600,
            request_id: request_id.to_owned(),
        };
        let call = |mut client: LockServiceClient<Channel>| {
            let request = request.clone();
            async move { client.create_lease(request).await }
        };
        in_time("a lease", self.insist(call)).await.answer().lease_id
    }

    /// Ends a lease, once.
    pub(crate) async fn revoke(&self, owner: &str, lease_id: u64) {
        let request = RevokeLeaseRequest {
            lease_id,
            owner_id: owner.to_owned(),
            request_id: format!("revoke-{lease_id}"),
            ..RevokeLeaseRequest::default()
        };
        let call = |mut client: LockServiceClient<Channel>| {
            let request = request.clone();
            async move { client.revoke_lease(request).await }
        };
        in_time("the end of a lease", self.insist(call)).await.answer();
    }

    pub(crate) async fn get(&self, lock: &str) -> GetLockResponse {
        let request = GetLockRequest { lock_name: lock.to_owned(), stale: false };
        let call = |mut client: LockServiceClient<Channel>| {
            let request = request.clone();
            async move { client.get_lock(request).await }
        };
        in_time("a look at a lock", self.insist(call)).await.answer()
    }

    /// Watches what happens to a lock from now on, at the first node.
    pub(crate) async fn watch(&self, lock: &str) -> Watching {
        let request = WatchRequest { name: lock.to_owned(), ..WatchRequest::default() };
        Watching::start(&self.first(), request).await.unwrap()
    }

    /// The same for all locks whose names begin so.
    pub(crate) async fn watch_below(&self, prefix: &str) -> Watching {
        let request = WatchRequest { prefix: prefix.to_owned(), ..WatchRequest::default() };
        Watching::start(&self.first(), request).await.unwrap()
    }
}

/// A wait of ten minutes for a lock, with a lease that is made with the grant.
pub(crate) fn long_wait(lock: &str, owner: &str) -> AcquireLockRequest {
    AcquireLockRequest {
        lock_name: lock.to_owned(),
        owner_id: owner.to_owned(),
        ttl_seconds: 600,
        wait_ms: 600_000,
        request_id: format!("{owner} waits for {lock}"),
        ..AcquireLockRequest::default()
    }
}

/// A stream of changes.
pub(crate) struct Watching {
    stream: Streaming<WatchEvent>,
    /// Where to go on after what was read.
    pub(crate) position: Option<Position>,
}

impl Watching {
    /// Begins to watch at a node, or says why it cannot be.
    pub(crate) async fn start(channel: &Channel, request: WatchRequest) -> Result<Self, Status> {
        let stream = LockServiceClient::new(channel.clone()).watch(request).await?;
        Ok(Self { stream: stream.into_inner(), position: None })
    }

    /// The next event of any kind; nothing if the stream is over or broken.
    pub(crate) async fn event(&mut self) -> Option<WatchEvent> {
        let event = in_time("an event, or a sign of life", self.stream.next()).await?.ok()?;
        self.position = Some(Position { revision: event.revision, ordinal: event.ordinal });
        Some(event)
    }

    /// The next change; the stream must not end before it.
    pub(crate) async fn change(&mut self) -> WatchEvent {
        let next = async {
            loop {
                let event = self.event().await.expect("the stream goes on");
                assert_ne!(event.r#type(), EventType::End, "the stream goes on: {event:?}");
                if event.r#type() != EventType::Heartbeat {
                    return event;
                }
            }
        };
        in_time("a change", next).await
    }

    /// The next so many changes, all of one kind: their owners.
    pub(crate) async fn owners(&mut self, kind: EventType, count: usize) -> Vec<String> {
        let mut owners = Vec::new();
        while owners.len() < count {
            let event = self.change().await;
            assert_eq!(event.r#type(), kind, "after {} such events: {event:?}", owners.len());
            owners.push(event.owner);
        }
        owners
    }
}

/// What most have, and what the slowest have, of some durations.
pub(crate) fn percentiles(mut durations: Vec<Duration>) -> String {
    durations.sort_unstable();
    let share = |percent: usize| durations[(durations.len() - 1) * percent / 100].as_secs_f64() * 1000.0;
    format!("p50 {:.2} ms, p99 {:.2} ms, slowest {:.2} ms", share(50), share(99), share(100))
}
