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
use tokio::time::{Instant, sleep, timeout};
use tonic::{Status, Streaming};

use crate::client::{Inner, from_status};
use crate::error::{Error, ErrorKind};
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
    events: Option<BoxStream<'static, Result<WatchEvent, Error>>>,
}

impl Watch {
    pub(crate) fn of_name(inner: Arc<Inner>, name: String) -> Self {
        Self { inner, request: WatchRequest { name, ..WatchRequest::default() }, events: None }
    }

    pub(crate) fn of_prefix(inner: Arc<Inner>, prefix: String) -> Self {
        Self { inner, request: WatchRequest { prefix, ..WatchRequest::default() }, events: None }
    }

    /// Begins with this revision, instead of now.
    #[must_use]
    pub fn from(mut self, revision: u64) -> Self {
        self.request.from = revision;
        self
    }

    /// Begins behind a position that was seen before.
    #[must_use]
    pub fn after(mut self, position: Position) -> Self {
        self.request.from = 0;
        self.request.after = position.to_string();
        self
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
            let channel = self.inner.channel(Instant::now() + CONNECT_TIME).await?;
            let opened = LockServiceClient::new(channel).watch(self.request.clone()).await;
            let response = opened.map_err(|status| from_status(&status))?;
            if let Some(revision) = begun_at(response.metadata())
                && self.request.after.is_empty()
                && self.request.from == 0
            {
                self.request.after = Position::whole(revision).to_string();
            }
            self.stream = Some(response.into_inner());
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

/// Who leads: the present, then every change.
pub(crate) fn observe(
    inner: Arc<Inner>,
    election: String,
) -> impl Stream<Item = Result<Observation, Error>> + Send + use<> {
    let observing =
        Observing { inner, election, stream: None, backoff: Backoff::new(), last: None, has_ended: false };
    unfold(observing, |mut observing| async move {
        let observation = observing.next().await?;
        Some((observation, observing))
    })
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
