//! The node as its clients see it: every request, on whichever node it arrives.
//!
//! A request is answered by this node's replica if it leads, and passed on to the leader once
//! otherwise. While there is no leader it waits a little for one: most elections are over before a
//! client would notice. As long as nothing was proposed or forwarded the request may be tried
//! again, and the error that ends it says that nothing was done; afterwards it may not.
//!
//! Whoever waits for a lock is interrupted by a change of lead, and taken to the next leader, which
//! keeps its place (R10). A caller that goes away is dropped where it waits, and whoever keeps
//! something for it is told.
//!
//! - `answers.rs`: the calls, one by one
//! - `watching.rs`: watches and observers

mod answers;
mod watching;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use http::HeaderValue;
use lowkey_api::v1::{
    AcquireLockRequest, AddPeerRequest, CheckTokenRequest, CreateLeaseRequest, GetLeaseRequest,
    GetLockRequest, ListLeasesRequest, ListLocksRequest, ProclaimRequest, ReleaseLockRequest,
    RemovePeerRequest, RenewLeaseRequest, RevokeLeaseRequest, TransferLeaderRequest,
};
use lowkey_api::{ApiError, ErrorDetail, Reason};
use lowkey_core::MemberId;
use lowkey_replica::{CallId, Failure, Request, Response};
use prost::Message as _;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::clock::Clock;
use crate::edge::stopped;
use crate::inbox::{Event, Inbox};
use crate::metrics::Metrics;
use crate::operation::{Operation, diverged, failure, outcome_unknown, place_kept};
use crate::peers::proto::ReadRevisionRequest;
use crate::peers::proto::forward_reply::Outcome;
use crate::peers::{Forward, ForwardError, Forwarded, Forwarders, Hello};
use crate::view::View;
use crate::watch::Hub;

/// How long a request waits for a leader before it is refused; nothing was done for it then.
const LEADER_WAIT: Duration = Duration::from_millis(800);
/// How long a request that was sent to a leader is kept waiting once that one no longer leads.
const DOUBT_WAIT: Duration = Duration::from_millis(300);
/// No request waits longer than this for an answer, and for its turn, whatever happens.
const ANSWER_WAIT: Duration = Duration::from_secs(10);
/// How long to wait before asking again a leader that was not ready.
const RETRY_PAUSE: Duration = Duration::from_millis(10);
/// What a client is told to wait when there is no leader.
const RETRY_HINT_MS: u64 = 200;

/// The node, as its edge and its peers see it.
pub(crate) struct Service {
    pub(crate) node_name: String,
    pub(crate) hello: Arc<Hello>,
    /// The cluster's id, for every answer.
    pub(crate) cluster_header: HeaderValue,
    pub(crate) view: Arc<View>,
    pub(crate) inbox: Arc<Inbox>,
    pub(crate) forwarders: Forwarders,
    pub(crate) hub: Hub,
    pub(crate) metrics: Metrics,
    pub(crate) clock: Clock,
    /// True once the node was told to stop: streams of clients end.
    pub(crate) stopping: watch::Sender<bool>,
    /// True once nothing is under way for clients any more: streams of peers end.
    pub(crate) parting: watch::Sender<bool>,
}

/// What came of one attempt.
enum Attempt<R> {
    Done(Result<R, ApiError>),
    /// Nothing was done: it may be tried again.
    Again,
    /// It waits for a lock, and the next leader keeps its place: it may be asked there.
    Interrupted,
}

impl Service {
    /// There may be very many of these at a time: what they keep is lent from one step to the next, not moved, and steps that
    /// are seldom taken are put elsewhere.
    async fn call<O: Operation>(&self, mut operation: O) -> Result<O::Response, ApiError> {
        let rpc = if operation.wait().is_zero() { O::NAME } else { O::NAME_WAITING };
        let timed = self.metrics.begin(rpc);
        let outcome = self.answer_client(&mut operation).await;
        timed.end(&outcome);
        outcome
    }

    async fn answer_client<O: Operation>(&self, operation: &mut O) -> Result<O::Response, ApiError> {
        self.check_standing()?;
        operation.name_request(new_request_id);
        // Whatever is wrong with it is found here, before anyone else is bothered.
        let request =
            operation.parse().map_err(|invalid| ApiError::invalid(invalid.field, invalid.problem))?;
        if let Request::ReadStale(_) = request {
            return Box::pin(self.call_here(operation, request)).await;
        }
        let mut request = Some(request);
        if operation.wait().is_zero() {
            return self.call_leader(operation, &mut request).await;
        }
        // A node that stops does not keep those who wait: they have their place elsewhere.
        let request_id = operation.request_id().to_owned();
        tokio::select! {
            answer = Box::pin(self.call_leader(operation, &mut request)) => answer,
            () = stopped(self.stopping.subscribe()) => Err(place_kept(&request_id)),
        }
    }

    /// A node that was removed, or whose state is in doubt, answers nothing.
    fn check_standing(&self) -> Result<(), ApiError> {
        if self.view.is_sound() {
            return Ok(());
        }
        if self.view.is_removed() {
            let message =
                "this node was removed from its cluster and is about to end; nothing was done, ask another";
            return Err(ApiError::new(Reason::NodeRemoved, message));
        }
        match self.view.status().divergence {
            None => Ok(()),
            Some(divergence) => Err(diverged(Some(divergence))),
        }
    }

    /// Has the leader answer, whoever that is. `request` is what the operation asks, and is taken.
    async fn call_leader<O: Operation>(
        &self,
        operation: &mut O,
        request: &mut Option<Request>,
    ) -> Result<O::Response, ApiError> {
        let (started, wait) = (Instant::now(), operation.wait());
        let mut deadline = started + LEADER_WAIT;
        let mut interrupted = false;
        let mut leadership = self.view.leadership();
        loop {
            let leader = leadership.borrow_and_update().leader;
            let attempt = match leader {
                Some(leader) if leader == self.view.own() => match request.take() {
                    Some(request) => self.ask_replica(operation, request).await,
                    None => Box::pin(self.ask_replica_anew(operation)).await,
                },
                Some(leader) => Box::pin(self.forward(operation, leader, leadership.clone())).await,
                None => Attempt::Again,
            };
            match attempt {
                Attempt::Done(answer) => return answer,
                Attempt::Again => {}
                Attempt::Interrupted => {
                    interrupted = true;
                    // It asks for the whole wait.
                    *request = None;
                    deadline = Instant::now() + LEADER_WAIT;
                    operation.wait_on(wait.saturating_sub(started.elapsed()));
                }
            }
            if Instant::now() >= deadline {
                return Err(match interrupted {
                    true => place_kept(operation.request_id()),
                    false => nobody_leads(leader == Some(self.view.own())),
                });
            }
            // Either somebody else leads in a moment, or the same leader is ready then.
            let pause = if leader.is_some() { Instant::now() + RETRY_PAUSE } else { deadline };
            let _ = timeout_at(pause.min(deadline), leadership.changed()).await;
        }
    }

    /// Answers from what this node knows.
    async fn call_here<O: Operation>(
        &self,
        operation: &O,
        request: Request,
    ) -> Result<O::Response, ApiError> {
        match self.ask_replica(operation, request).await {
            Attempt::Done(answer) => answer,
            Attempt::Again | Attempt::Interrupted => {
                Err(ApiError::new(Reason::NodeStopping, "this node does not answer any more"))
            }
        }
    }

    /// Asks this node's own replica what the operation asks.
    async fn ask_replica_anew<O: Operation>(&self, operation: &O) -> Attempt<O::Response> {
        match operation.parse() {
            Ok(request) => self.ask_replica(operation, request).await,
            Err(invalid) => Attempt::Done(Err(ApiError::invalid(invalid.field, invalid.problem))),
        }
    }

    /// The request is in the inbox when this returns; what is to be awaited is the answer.
    fn ask_replica<O: Operation>(
        &self,
        operation: &O,
        request: Request,
    ) -> impl Future<Output = Attempt<O::Response>> {
        let mut parked = Parked::ask(&self.inbox, request);
        async move {
            match timeout(ANSWER_WAIT + operation.wait(), parked.answer()).await {
                Ok(Some(Ok(response))) => Attempt::Done(operation.respond(response)),
                Ok(Some(Err(Failure::NotLeader { .. }))) => Attempt::Again,
                Ok(Some(Err(Failure::Interrupted { .. }))) => Attempt::Interrupted,
                Ok(Some(Err(other))) => Attempt::Done(Err(
                    failure(other, operation.request_id()).unwrap_or_else(|| nobody_leads(true))
                )),
                // The replica is gone, or does not get through.
                Ok(None) | Err(_) => silence(operation),
            }
        }
    }

    /// Passes the request on to the leader, once.
    async fn forward<O: Operation>(
        &self,
        operation: &O,
        leader: MemberId,
        leadership: watch::Receiver<crate::view::Leadership>,
    ) -> Attempt<O::Response> {
        let Some(forwarder) = self.forwarders.get(leader) else { return Attempt::Again };
        let Some(mut passed_on) = PassedOn::send(forwarder, O::NUMBER, operation.encode_to_vec()) else {
            return Attempt::Again;
        };
        self.metrics.passed_on.inc();
        let outcome = tokio::select! {
            outcome = passed_on.answer() => outcome,
            () = no_longer_leads(leader, leadership) => Err(ForwardError::Lost),
            () = sleep(ANSWER_WAIT + operation.wait()) => Err(ForwardError::Lost),
        };
        match outcome {
            Ok(Outcome::Response(bytes)) => match O::Response::decode(bytes.as_slice()) {
                Ok(response) => Attempt::Done(Ok(response)),
                Err(_) => silence(operation),
            },
            Ok(Outcome::Error(bytes)) => match ErrorDetail::decode(bytes.as_slice()) {
                Ok(detail) => Attempt::Done(Err(detail.into())),
                Err(_) => silence(operation),
            },
            Ok(Outcome::NotLeader(_)) | Err(ForwardError::NotSent) => Attempt::Again,
            Ok(Outcome::Interrupted(_)) => Attempt::Interrupted,
            Err(ForwardError::Lost) => silence(operation),
        }
    }

    /// Answers a request that another node passed on; it is not passed on again.
    pub(crate) async fn answer_forwarded(&self, operation: u32, request: &[u8]) -> Outcome {
        match operation {
            CreateLeaseRequest::NUMBER => self.answer::<CreateLeaseRequest>(request).await,
            RenewLeaseRequest::NUMBER => self.answer::<RenewLeaseRequest>(request).await,
            RevokeLeaseRequest::NUMBER => self.answer::<RevokeLeaseRequest>(request).await,
            AcquireLockRequest::NUMBER => self.answer::<AcquireLockRequest>(request).await,
            ReleaseLockRequest::NUMBER => self.answer::<ReleaseLockRequest>(request).await,
            GetLockRequest::NUMBER => self.answer::<GetLockRequest>(request).await,
            AddPeerRequest::NUMBER => self.answer::<AddPeerRequest>(request).await,
            ListLocksRequest::NUMBER => self.answer::<ListLocksRequest>(request).await,
            CheckTokenRequest::NUMBER => self.answer::<CheckTokenRequest>(request).await,
            ProclaimRequest::NUMBER => self.answer::<ProclaimRequest>(request).await,
            ReadRevisionRequest::NUMBER => self.answer::<ReadRevisionRequest>(request).await,
            GetLeaseRequest::NUMBER => self.answer::<GetLeaseRequest>(request).await,
            ListLeasesRequest::NUMBER => self.answer::<ListLeasesRequest>(request).await,
            RemovePeerRequest::NUMBER => self.answer::<RemovePeerRequest>(request).await,
            TransferLeaderRequest::NUMBER => self.answer::<TransferLeaderRequest>(request).await,
            _ => refusal(ApiError::new(
                Reason::Internal,
                format!("the leader's version does not know operation {operation}"),
            )),
        }
    }

    async fn answer<O: Operation>(&self, request: &[u8]) -> Outcome {
        let operation = match O::decode(request) {
            Ok(operation) => operation,
            Err(error) => return refusal(ApiError::new(Reason::Internal, error.to_string())),
        };
        match self.ask_replica_anew(&operation).await {
            Attempt::Done(Ok(response)) => Outcome::Response(response.encode_to_vec()),
            Attempt::Done(Err(error)) => refusal(error),
            Attempt::Again => Outcome::NotLeader(true),
            Attempt::Interrupted => Outcome::Interrupted(true),
        }
    }
}

/// A request that the replica has not answered yet. If it is dropped before, the replica is told that
/// nobody waits for the answer any more.
struct Parked<'a> {
    inbox: &'a Inbox,
    call: CallId,
    /// Nothing once it was answered.
    answer: Option<oneshot::Receiver<Result<Response, Failure>>>,
}

impl<'a> Parked<'a> {
    fn ask(inbox: &'a Inbox, request: Request) -> Self {
        let (sender, receiver) = oneshot::channel();
        Self { call: inbox.ask(request, sender), inbox, answer: Some(receiver) }
    }

    /// The answer; nothing if the replica is gone.
    async fn answer(&mut self) -> Option<Result<Response, Failure>> {
        let answer = self.answer.as_mut()?.await.ok();
        self.answer = None;
        answer
    }
}

impl Drop for Parked<'_> {
    fn drop(&mut self) {
        if let Some(mut answer) = self.answer.take() {
            // Closed first: a request that is still in the inbox is then passed over.
            answer.close();
            if answer.try_recv().is_err() {
                self.inbox.report(Event::CallerGone(self.call));
            }
        }
    }
}

/// A request that was passed on and is not answered yet. If it is dropped before, the leader is told that
/// nobody waits for the answer any more.
struct PassedOn {
    forwarder: mpsc::Sender<Forward>,
    number: u64,
    /// Nothing once it was answered.
    answer: Option<oneshot::Receiver<Result<Outcome, ForwardError>>>,
}

impl PassedOn {
    /// Nothing if there is no room for it; then nothing was done.
    fn send(forwarder: mpsc::Sender<Forward>, operation: u32, request: Vec<u8>) -> Option<Self> {
        static LAST_NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = LAST_NUMBER.fetch_add(1, Ordering::Relaxed) + 1;
        let (answer, receiver) = oneshot::channel();
        forwarder.try_send(Forward::Request(Forwarded { number, operation, request, answer })).ok()?;
        Some(Self { forwarder, number, answer: Some(receiver) })
    }

    async fn answer(&mut self) -> Result<Outcome, ForwardError> {
        let Some(receiver) = &mut self.answer else { return Err(ForwardError::Lost) };
        let outcome = receiver.await.unwrap_or(Err(ForwardError::Lost));
        self.answer = None;
        outcome
    }
}

impl Drop for PassedOn {
    fn drop(&mut self) {
        if self.answer.take().is_none() {
            return;
        }
        if let Err(mpsc::error::TrySendError::Full(abandon)) =
            self.forwarder.try_send(Forward::Abandon(self.number))
        {
            let forwarder = self.forwarder.clone();
            // A link that has gone has told the leader already.
            tokio::spawn(async move { forwarder.send(abandon).await });
        }
    }
}

pub(crate) fn refusal(error: ApiError) -> Outcome {
    Outcome::Error(ErrorDetail::from(error).encode_to_vec())
}

/// Resolves a little after the leader has changed: what it was asked may still be answered.
async fn no_longer_leads(leader: MemberId, mut leadership: watch::Receiver<crate::view::Leadership>) {
    // An error means that the node is about to end.
    let _ = leadership.wait_for(|leadership| leadership.leader != Some(leader)).await;
    sleep(DOUBT_WAIT).await;
}

/// It was proposed or forwarded, and then there was silence. What changes nothing may be tried again.
fn silence<O: Operation, R>(operation: &O) -> Attempt<R> {
    if O::CHANGES { Attempt::Done(Err(outcome_unknown(operation.request_id()))) } else { Attempt::Again }
}

fn nobody_leads(this_node_should: bool) -> ApiError {
    let error = if this_node_should {
        ApiError::new(
            Reason::NoQuorum,
            "this node leads, but does not hear from a majority; nothing was done",
        )
    } else {
        ApiError::new(
            Reason::NoLeader,
            "no leader is known: an election is under way, or a majority of the nodes cannot be reached; nothing was done",
        )
    };
    error.retry_after_ms(RETRY_HINT_MS)
}

/// An id for a request that came without one, so that its caller can ask again if need be.
fn new_request_id() -> String {
    // Without randomness the machine is beyond help; an empty id is refused, and nothing is done.
    crate::random_bytes().map(|bytes| lowkey_core::NodeIdentity(bytes).to_string()).unwrap_or_default()
}
