//! Watches that go on after reconnects, and observers of elections.
//!
//! A watch has a stream of its own on the client's connection, and not a part of the link's: a reader that is
//! slow must not hold up renewals.

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
use tokio::sync::watch::Receiver;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use tonic::{Status, Streaming};

use crate::client::{Inner, channel, from_status};
use crate::error::{Error, ErrorKind};
use crate::link::LinkState;
use crate::random::Backoff;

/// Nodes send a sign of life every 5 s: one that is silent for longer is not trusted.
const SILENCE_MAX: Duration = Duration::from_secs(12);
/// How long a connection may take before it is looked for anew.
const CONNECT_TIME: Duration = Duration::from_secs(5);

/// Events of one lock, or of many. A `Stream`; see [`crate::Client::watch`].
///
/// It goes on by itself after a lost connection, at whichever node answers, where it stopped. An error ends
/// it: `COMPACTED`, if what happened meanwhile is no longer kept, or a refusal of what was asked for.
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
    /// Under way since it was made; nothing if it begins at a position that is known.
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

    /// Begins behind a position that was seen before.
    #[must_use]
    pub fn after(mut self, position: Position) -> Self {
        self.opening = None;
        self.request.from = 0;
        self.request.after = position.to_string();
        self
    }
}

/// A watch that is being opened, on the client's own thread: it begins although nobody reads it yet. Given up when
/// this is dropped.
struct Opening {
    opened: JoinHandle<Result<Opened, Error>>,
}

struct Opened {
    stream: Streaming<WatchEvent>,
    /// Up to which revision it was complete when it began.
    begun_at: Option<u64>,
}

impl Opening {
    fn start(inner: &Inner, request: WatchRequest) -> Self {
        let link = inner.link.state();
        // What this client changes from now on, it changes after a watch that begins now has begun.
        let begins_now = request.after.is_empty() && request.from == 0;
        let mut changes = begins_now.then(|| inner.link.hold_back());
        let opened = inner.engine.runtime().spawn(async move {
            let mut backoff = Backoff::new();
            loop {
                let outcome = open(link.clone(), request.clone()).await;
                match outcome {
                    Err(error) if !is_for_good(&error) => {
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

async fn open(link: Receiver<LinkState>, request: WatchRequest) -> Result<Opened, Error> {
    let channel = channel(link, Instant::now() + CONNECT_TIME).await?;
    let opened = LockServiceClient::new(channel).watch(request).await;
    let response = opened.map_err(|status| from_status(&status))?;
    let begun_at = begun_at(response.metadata());
    Ok(Opened { begun_at, stream: response.into_inner() })
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
    /// Where to go on: moved along with what was seen.
    request: WatchRequest,
    opening: Option<Opening>,
    stream: Option<Streaming<WatchEvent>>,
    backoff: Backoff,
    has_ended: bool,
}

impl Watching {
    async fn next(&mut self) -> Option<Result<WatchEvent, Error>> {
        while !self.has_ended {
            match self.advance().await {
                Ok(Some(event)) => return Some(Ok(event)),
                Ok(None) => {}
                Err(error) if is_for_good(&error) => {
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

    /// One step: connects, or reads one message. Signs of life are not told.
    async fn advance(&mut self) -> Result<Option<WatchEvent>, Error> {
        let Some(stream) = &mut self.stream else {
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
            self.stream = Some(opened.stream);
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

/// Up to which revision a stream was complete when it began.
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
    // A foreign node among the endpoints is passed over; one of the own cluster may come back.
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
    /// Who leads; nobody if it is not there.
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
            inner,
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
    inner: Arc<Inner>,
    election: String,
    stream: Option<Streaming<ObserveEvent>>,
    backoff: Backoff,
    /// What was told last: after a reconnect the present is not told again if it has not changed.
    last: Option<Option<LockHolder>>,
    has_ended: bool,
}

impl Observing {
    async fn next(&mut self) -> Option<Result<Observation, Error>> {
        while !self.has_ended {
            match self.advance().await {
                Ok(Some(observation)) => return Some(Ok(observation)),
                Ok(None) => {}
                // An observer needs no position: it begins anew with the present.
                Err(error) if is_for_good(&error) && error.reason() != Some(Reason::Compacted) => {
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
        let Some(stream) = &mut self.stream else {
            let channel = self.inner.channel(Instant::now() + CONNECT_TIME).await?;
            let request = ObserveRequest { election: self.election.clone() };
            let opened = ElectionServiceClient::new(channel).observe(request).await;
            self.stream = Some(opened.map_err(|status| from_status(&status))?.into_inner());
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
