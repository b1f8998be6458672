//! Watches that continue after reconnects, and observers of elections.
//!
//! A watch has a stream of its own, not a part of the link's stream: a slow reader must not hold up
//! renewals. It does not use the link's connection either (`watch_connections.rs`). If a node refuses a
//! watch because there are too many, the client retries for as long as a call may take, and then reports
//! it.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::Stream;
use futures::stream::{BoxStream, StreamExt as _, unfold};
use lowkey_api::v1::election_service_client::ElectionServiceClient;
use lowkey_api::v1::lock_service_client::LockServiceClient;
use lowkey_api::v1::{EventType, LockHolder, ObserveEvent, ObserveRequest, WatchEvent, WatchRequest};
use lowkey_api::{Position, Reason};
use tokio::runtime::Handle;
use tokio::sync::watch::Receiver;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use tonic::{Response, Status, Streaming};

use crate::client::{Inner, connected, from_status};
use crate::error::{Error, ErrorKind};
use crate::link::LinkState;
use crate::random::Backoff;
use crate::watch_connections::{WatchConnections, WatchSeat};
use crate::wire::Wire;

/// Nodes send a heartbeat every 5 s. A node that is silent for longer than this is not trusted.
const SILENCE_MAX: Duration = Duration::from_secs(12);
/// How long a connection may take before another is looked for. Also how long a stream may take to begin
/// before its connection counts as full.
const CONNECT_TIME: Duration = Duration::from_secs(5);

/// Events of one lock, or of many. A `Stream`; see [`crate::Client::watch`].
///
/// After a lost connection it continues by itself where it stopped, on any node that answers. An error ends
/// it: `COMPACTED`, if what happened meanwhile is no longer kept, or a refusal of the request.
///
/// ```no_run
/// # async fn example(client: lowkey_client::Client) -> Result<(), lowkey_client::Error> {
/// use futures::StreamExt as _;
/// use lowkey_client::Position;
///
/// // Where an earlier watch stopped: nothing is told twice, and nothing is left out.
/// let seen = Position { revision: 812, ordinal: 0 };
/// let mut watch = client.watch_prefix("billing/").after(seen);
/// while let Some(event) = watch.next().await {
///     let event = event?;
///     println!("{:?} {} by {}", event.r#type(), event.name, event.owner);
/// }
/// # Ok(())
/// # }
/// ```
pub struct Watch {
    inner: Arc<Inner>,
    request: WatchRequest,
    /// Under way since the watch was made. `None` if it begins at a known position.
    opening: Option<Opening>,
    events: Option<BoxStream<'static, Result<WatchEvent, Error>>>,
}

impl Watch {
    pub(crate) fn of_name(inner: Arc<Inner>, name: String) -> Self {
        Self::new(inner, WatchRequest { name, ..WatchRequest::default() })
    }

    pub(crate) fn of_prefix(inner: Arc<Inner>, prefix: String) -> Self {
        Self::new(inner, WatchRequest { prefix, ..WatchRequest::default() })
    }

    fn new(inner: Arc<Inner>, request: WatchRequest) -> Self {
        let opening = Some(Opening::start(&inner, request.clone()));
        Self { inner, request, opening, events: None }
    }

    /// Begins with this revision, instead of now.
    #[must_use]
    pub fn from(mut self, revision: u64) -> Self {
        self.opening = None;
        self.request.from = revision;
        self
    }

    /// Begins after a position that was seen before.
    #[must_use]
    pub fn after(mut self, position: Position) -> Self {
        self.opening = None;
        self.request.from = 0;
        self.request.after = position.to_string();
        self
    }
}

/// A watch that is being opened, on the client's own thread. So it begins even before it is read. It is
/// given up when this is dropped.
struct Opening {
    opened: JoinHandle<Result<Opened, Error>>,
}

struct Opened {
    stream: Streaming<WatchEvent>,
    seat: WatchSeat,
    /// The revision up to which it was complete when it began.
    begun_at: Option<u64>,
}

impl Opening {
    fn start(inner: &Inner, request: WatchRequest) -> Self {
        let way = Way::of(inner);
        // Changes that this client makes from now on must come after the watch has begun.
        let begins_now = request.after.is_empty() && request.from == 0;
        let mut changes = begins_now.then(|| inner.link.hold_back());
        let mut surplus = Surplus::new(inner.call_timeout);
        let opened = inner.engine.runtime().spawn(async move {
            let mut backoff = Backoff::new();
            loop {
                let outcome = open(&way, request.clone()).await;
                match outcome {
                    Err(error) if !is_for_good(&error) && !surplus.is_for_good(&error) => {
                        tracing::debug!(%error, "a watch cannot begin yet");
                        changes = None;
                        sleep(backoff.pause()).await;
                    }
                    outcome => {
                        drop(changes);
                        return outcome;
                    }
                }
            }
        });
        Self { opened }
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        self.opened.abort();
    }
}

/// How a watch reaches a node.
struct Way {
    link: Receiver<LinkState>,
    connections: WatchConnections,
    runtime: Handle,
}

impl Way {
    fn of(inner: &Inner) -> Self {
        let runtime = inner.engine.runtime().clone();
        Self { link: inner.link.state(), connections: inner.watch_connections.clone(), runtime }
    }

    /// Opens a stream to the node that the link is connected to, on a connection with room for it.
    async fn open<S, F>(&self, ask: impl FnOnce(Wire) -> F) -> Result<(Response<S>, WatchSeat), Error>
    where
        F: Future<Output = Result<Response<S>, Status>>,
    {
        let state = connected(self.link.clone(), Instant::now() + CONNECT_TIME).await?;
        let seat = self.connections.seat(&state.endpoint, &self.runtime)?;
        let Ok(opened) = timeout(CONNECT_TIME, ask(seat.channel())).await else {
            seat.is_stuck();
            return Err(Error::unavailable("the node does not take another stream", false));
        };
        let response = opened.map_err(|status| from_status(&status))?;
        // Every answer names its cluster, and a new connection may lead to another one.
        let found = response.metadata().get("lowkey-cluster").and_then(|id| id.to_str().ok());
        match found.filter(|found| *found != state.cluster_id) {
            Some(found) => Err(Error::new(ErrorKind::WrongCluster {
                endpoint: state.endpoint,
                expected: state.cluster_id,
                found: found.to_owned(),
            })),
            None => Ok((response, seat)),
        }
    }
}

async fn open(way: &Way, request: WatchRequest) -> Result<Opened, Error> {
    let ask = |channel| async move { LockServiceClient::new(channel).watch(request).await };
    let (response, seat) = way.open(ask).await?;
    let begun_at = begun_at(response.metadata());
    Ok(Opened { begun_at, stream: response.into_inner(), seat })
}

/// Since when a node refuses a stream because there are too many. That may last only a moment, while others
/// move away. If it lasts, it is reported.
struct Surplus {
    patience: Duration,
    since: Option<Instant>,
}

impl Surplus {
    fn new(patience: Duration) -> Self {
        Self { patience, since: None }
    }

    fn is_for_good(&mut self, error: &Error) -> bool {
        if !matches!(error.reason(), Some(Reason::LimitStreams | Reason::LimitMemory)) {
            return false;
        }
        self.since.get_or_insert_with(Instant::now).elapsed() >= self.patience
    }
}

impl Stream for Watch {
    type Item = Result<WatchEvent, Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        let events = this.events.get_or_insert_with(|| {
            let watching = Watching {
                inner: Arc::clone(&this.inner),
                request: this.request.clone(),
                opening: this.opening.take(),
                stream: None,
                backoff: Backoff::new(),
                has_ended: false,
            };
            unfold(watching, |mut watching| async move {
                let event = watching.next().await?;
                Some((event, watching))
            })
            .boxed()
        });
        events.poll_next_unpin(context)
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch").field("request", &self.request).finish_non_exhaustive()
    }
}

struct Watching {
    inner: Arc<Inner>,
    /// Where to continue. It moves along with what was seen.
    request: WatchRequest,
    opening: Option<Opening>,
    stream: Option<(Streaming<WatchEvent>, WatchSeat)>,
    backoff: Backoff,
    has_ended: bool,
}

impl Watching {
    async fn next(&mut self) -> Option<Result<WatchEvent, Error>> {
        while !self.has_ended {
            match self.advance().await {
                Ok(Some(event)) => return Some(Ok(event)),
                Ok(None) => {}
                // Opening a stream already retries for as long as that makes sense.
                Err(error) if is_for_good(&error) || self.stream.is_none() => {
                    self.has_ended = true;
                    return Some(Err(error));
                }
                Err(error) => {
                    tracing::debug!(%error, "a watch is interrupted, and will go on");
                    self.stream = None;
                    sleep(self.backoff.pause()).await;
                }
            }
        }
        None
    }

    /// One step: connects, or reads one message. Heartbeats are not passed on.
    async fn advance(&mut self) -> Result<Option<WatchEvent>, Error> {
        let Some((stream, _)) = &mut self.stream else {
            let opening = match &mut self.opening {
                Some(opening) => opening,
                none => none.insert(Opening::start(&self.inner, self.request.clone())),
            };
            let opened = (&mut opening.opened).await;
            self.opening = None;
            let opened = opened.map_err(|_| Error::unavailable("the client has ended", false))??;
            if let Some(revision) = opened.begun_at
                && self.request.after.is_empty()
                && self.request.from == 0
            {
                self.request.after = Position::whole(revision).to_string();
            }
            self.stream = Some((opened.stream, opened.seat));
            return Ok(None);
        };
        let event = read(stream.message()).await?;
        self.backoff = Backoff::new();
        self.request.from = 0;
        self.request.after = Position { revision: event.revision, ordinal: event.ordinal }.to_string();
        match event.r#type() {
            EventType::Heartbeat => Ok(None),
            EventType::End => Err(Error::unavailable(event.end_reason, false)),
            _ => Ok(Some(event)),
        }
    }
}

/// The revision up to which a stream was complete when it began.
fn begun_at(metadata: &tonic::metadata::MetadataMap) -> Option<u64> {
    metadata.get("lowkey-revision")?.to_str().ok()?.parse().ok()
}

async fn read<T>(message: impl Future<Output = Result<Option<T>, Status>>) -> Result<T, Error> {
    match timeout(SILENCE_MAX, message).await {
        Ok(Ok(Some(message))) => Ok(message),
        Ok(Ok(None)) => Err(Error::unavailable("the node ended the stream", false)),
        Ok(Err(status)) => Err(from_status(&status)),
        Err(_) => Err(Error::unavailable("the node has been silent for too long", false)),
    }
}

fn is_for_good(error: &Error) -> bool {
    // A foreign node among the endpoints is skipped. A node of our own cluster may come back.
    let is_foreign = matches!(error.kind(), ErrorKind::WrongCluster { .. });
    !(error.is_retryable() || is_foreign) || error.reason() == Some(Reason::Compacted)
}

/// Who leads an election, from some moment on.
///
/// ```
/// use lowkey_client::Observation;
///
/// fn address(observation: &Observation) -> Option<&str> {
///     observation.leader.as_ref().map(|leader| leader.value.as_str())
/// }
///
/// assert_eq!(address(&Observation { leader: None, revision: 7 }), None);
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Observation {
    /// The leader, or `None` if there is none.
    pub leader: Option<LockHolder>,
    /// The revision at which that became known.
    pub revision: u64,
}

/// Who leads an election: the present, then every change. A `Stream`; see [`crate::Client::observe`].
///
/// ```no_run
/// # async fn example(client: lowkey_client::Client) -> Result<(), lowkey_client::Error> {
/// use futures::StreamExt as _;
/// use lowkey_client::Observations;
///
/// struct Follower {
///     observations: Observations,
/// }
///
/// let mut follower = Follower { observations: client.observe("scheduler") };
/// while let Some(seen) = follower.observations.next().await {
///     println!("{:?}", seen?.leader);
/// }
/// # Ok(())
/// # }
/// ```
pub struct Observations {
    election: String,
    observations: BoxStream<'static, Result<Observation, Error>>,
}

impl Observations {
    pub(crate) fn new(inner: Arc<Inner>, election: String) -> Self {
        let observing = Observing {
            way: Way::of(&inner),
            surplus: Surplus::new(inner.call_timeout),
            _inner: inner,
            election: election.clone(),
            stream: None,
            backoff: Backoff::new(),
            last: None,
            has_ended: false,
        };
        let observations = unfold(observing, |mut observing| async move {
            let observation = observing.next().await?;
            Some((observation, observing))
        });
        Self { election, observations: observations.boxed() }
    }
}

impl Stream for Observations {
    type Item = Result<Observation, Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.observations.poll_next_unpin(context)
    }
}

impl fmt::Debug for Observations {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Observations").field("election", &self.election).finish_non_exhaustive()
    }
}

struct Observing {
    way: Way,
    surplus: Surplus,
    /// Keeps the client alive for as long as it is used to observe.
    _inner: Arc<Inner>,
    election: String,
    stream: Option<(Streaming<ObserveEvent>, WatchSeat)>,
    backoff: Backoff,
    /// What was told last. After a reconnect the present is not told again if it has not changed.
    last: Option<Option<LockHolder>>,
    has_ended: bool,
}

impl Observing {
    async fn next(&mut self) -> Option<Result<Observation, Error>> {
        while !self.has_ended {
            match self.advance().await {
                Ok(Some(observation)) => return Some(Ok(observation)),
                Ok(None) => {}
                // An observer needs no position: it begins again with the present.
                Err(error)
                    if self.surplus.is_for_good(&error)
                        || is_for_good(&error) && error.reason() != Some(Reason::Compacted) =>
                {
                    self.has_ended = true;
                    return Some(Err(error));
                }
                Err(_) => {
                    self.stream = None;
                    sleep(self.backoff.pause()).await;
                }
            }
        }
        None
    }

    async fn advance(&mut self) -> Result<Option<Observation>, Error> {
        let Some((stream, _)) = &mut self.stream else {
            let request = ObserveRequest { election: self.election.clone() };
            let ask = |channel| async move { ElectionServiceClient::new(channel).observe(request).await };
            let (response, seat) = self.way.open(ask).await?;
            self.stream = Some((response.into_inner(), seat));
            self.surplus.since = None;
            return Ok(None);
        };
        let event = read(stream.message()).await?;
        self.backoff = Backoff::new();
        if event.r#type() == EventType::End {
            return Err(Error::unavailable(event.end_reason, false));
        }
        if self.last.as_ref() == Some(&event.leader) {
            return Ok(None);
        }
        self.last = Some(event.leader.clone());
        Ok(Some(Observation { leader: event.leader, revision: event.revision }))
    }
}
