//! Serves every request of a client, on any node that it arrives at.
//!
//! A request belongs to one group. What the request is about decides which one. If this node is the leader
//! of that group, its own replica answers. If this node is a follower, it forwards the request to the
//! leader, once. While there is no leader the request waits a little for one: most elections are over
//! before a client would notice.
//!
//! As long as nothing was proposed or forwarded, the request may be tried again, and the error that ends it
//! says that nothing was done. Afterwards it may not be tried again, unless it changes nothing.
//!
//! A change of leader interrupts a caller that waits for a lock. The caller is taken to the next leader,
//! which keeps its place in the queue (R10). A caller that goes away is dropped where it waits, and every
//! component that keeps something for it is told.
//!
//! - `auditing.rs`: grants that are over, asked of this node and of others
//! - `gathering.rs`: how all nodes are
//! - `renewing.rs`: renewals that arrived together
//! - `status.rs`: what this node knows without asking another node
//! - `watching.rs`: watches and observers

mod auditing;
mod gathering;
mod renewing;
mod status;
mod watching;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use http::HeaderValue;
use lowkey_api::{ApiError, ErrorDetail, Reason, v1};
use lowkey_core::{Caller, GroupId, MemberId};
use lowkey_replica::{CallId, Failure, Request, Response};
use prost::Message as _;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::access::Permitted;
use crate::audit::Audit;
use crate::backups::Backups;
use crate::call::{REHEARSED, REPORT, calls};
use crate::edge::stopped;
use crate::host::clock::Clock;
use crate::lane::inbox::{Event, Inbox};
use crate::lane::{Lane, Lanes};
use crate::metrics::Metrics;
use crate::operation::{Operation, diverged, failure, outcome_unknown, place_kept};
use crate::peers::proto::forward_reply::Outcome;
use crate::peers::{Forward, ForwardError, Forwarded, Forwarders, Hello, proto};

use self::auditing::READ_AUDIT;
pub(crate) use status::{members, recovering_seconds};

/// How long a request waits for a leader before it is refused. Nothing was done for it then.
const LEADER_WAIT: Duration = Duration::from_millis(800);
/// How long a forwarded request still waits for its answer after the node it was sent to has lost the lead.
const DOUBT_WAIT: Duration = Duration::from_millis(300);
/// The longest that any request waits for an answer, and for its turn.
const ANSWER_WAIT: Duration = Duration::from_secs(10);
/// The pause before a leader that was not ready is asked again.
const RETRY_PAUSE: Duration = Duration::from_millis(10);
/// How long a client is told to wait before it retries when there is no leader.
const RETRY_HINT_MS: u64 = 200;

/// The node, as its edge and its peers see it.
pub struct Service {
    pub(crate) node_name: String,
    pub(crate) hello: Arc<Hello>,
    /// The cluster's id, sent with every answer.
    pub(crate) cluster_header: HeaderValue,
    pub(crate) lanes: Lanes,
    pub(crate) forwarders: Forwarders,
    pub(crate) metrics: Metrics,
    pub(crate) backups: Backups,
    pub(crate) clock: Clock,
    /// What is kept of grants that are over; nothing if nothing is to be.
    pub(crate) audit: Option<Arc<Audit>>,
    /// True once the node was told to stop. The streams of clients end then.
    pub(crate) stopping: watch::Sender<bool>,
    /// True once nothing is under way for clients any more. The streams of peers end then.
    pub(crate) parting: watch::Sender<bool>,
    /// How many leases are in requests that renew many at once.
    pub(crate) renewed_together: AtomicUsize,
    /// This node serves loopback only, or was told to trust its network.
    pub(crate) trusts_network: bool,
}

/// The outcome of one attempt.
enum Attempt<R> {
    Done(Result<R, ApiError>),
    /// Nothing was done. The request may be tried again.
    Again,
    /// The request waits for a lock, and the next leader keeps its place. It may be sent there.
    Interrupted,
}

impl Service {
    /// True if a node may join here without an invitation.
    pub(crate) fn lets_anybody_join(&self) -> bool {
        self.trusts_network
    }

    /// Answers an operation of a client.
    ///
    /// Many of these futures exist at once: borrow arguments and box rare branches to keep them small. This
    /// is not an `async fn`, because that would store its argument twice.
    pub(crate) fn operate<O: Operation>(
        &self,
        permitted: Permitted<O>,
    ) -> impl Future<Output = Result<O::Response, ApiError>> + Send {
        let (mut operation, caller) = permitted.into_parts();
        let rpc = if operation.wait().is_zero() { O::NAME } else { O::NAME_WAITING };
        let timed = self.metrics.begin(rpc);
        async move {
            let outcome = self.answer_client(&mut operation, &caller).await;
            if let (Some(audit), Err(error)) = (&self.audit, &outcome) {
                audit.refused(rpc, error);
            }
            timed.end(&outcome);
            operation.complete(self, outcome)
        }
    }

    async fn answer_client<O: Operation>(
        &self,
        operation: &mut O,
        caller: &Caller,
    ) -> Result<O::Response, ApiError> {
        let lane = &**self.lanes.of(operation.place());
        check_standing(lane)?;
        if let Some(request_id) = operation.request_id_mut().filter(|id| id.is_empty()) {
            *request_id = new_request_id();
        }
        operation.permit(self)?;
        // Validate here, before another component is involved.
        let request =
            operation.parse().map_err(|invalid| ApiError::invalid(invalid.field, invalid.problem))?;
        if let Request::ReadStale(_) = request {
            return Box::pin(call_here(lane, operation, caller, request)).await;
        }
        let parked = lane.leads().then(|| Parked::ask(&lane.inbox, caller, request));
        if operation.wait().is_zero() {
            return self.call_leader(lane, operation, caller, parked).await;
        }
        // A node that stops does not keep its waiters: the next leader keeps their place.
        let request_id = operation.request_id().to_owned();
        // Nor does a wait go on that its caller may not have any more.
        let awaited = Box::new(operation.clone());
        let guard = &lane.view.guard;
        tokio::select! {
            answer = Box::pin(self.call_leader(lane, operation, caller, parked)) => answer,
            error = Box::pin(guard.taken_away(caller, &*awaited)) => Err(error),
            () = stopped(self.stopping.subscribe()) => Err(place_kept(&request_id)),
        }
    }

    /// Gets the answer from the leader, on this node or another. If this node leads, its replica was
    /// already asked: see `parked`.
    async fn call_leader<O: Operation>(
        &self,
        lane: &Lane,
        operation: &mut O,
        caller: &Caller,
        mut parked: Option<Parked<'_>>,
    ) -> Result<O::Response, ApiError> {
        let (started, wait) = (Instant::now(), operation.wait());
        let mut deadline = started + LEADER_WAIT;
        let mut interrupted = false;
        let mut leadership = lane.view.leadership();
        loop {
            let leader = leadership.borrow_and_update().leader;
            let attempt = match (parked.take(), leader) {
                (Some(parked), _) => parked.outcome(operation).await,
                (None, Some(leader)) if leader == lane.view.own() => {
                    Box::pin(ask_replica_anew(lane, operation, caller)).await
                }
                (None, Some(leader)) => {
                    Box::pin(self.forward(lane, operation, caller, leader, leadership.clone())).await
                }
                (None, None) => Attempt::Again,
            };
            match attempt {
                Attempt::Done(answer) => return answer,
                Attempt::Again => {}
                Attempt::Interrupted => {
                    interrupted = true;
                    deadline = Instant::now() + LEADER_WAIT;
                    operation.wait_on(wait.saturating_sub(started.elapsed()));
                }
            }
            if Instant::now() >= deadline {
                return Err(match interrupted {
                    true => place_kept(operation.request_id()),
                    false => nobody_leads(leader == Some(lane.view.own())),
                });
            }
            // Retry soon: either another node leads by then, or the same leader is ready.
            let pause = if leader.is_some() { Instant::now() + RETRY_PAUSE } else { deadline };
            let _ = Box::pin(timeout_at(pause.min(deadline), leadership.changed())).await;
        }
    }

    /// Forwards the request to the leader, once.
    async fn forward<O: Operation>(
        &self,
        lane: &Lane,
        operation: &O,
        caller: &Caller,
        leader: MemberId,
        leadership: watch::Receiver<crate::lane::view::Leadership>,
    ) -> Attempt<O::Response> {
        let Some(forwarder) = self.forwarders.get(leader) else { return Attempt::Again };
        let request = operation.encode_to_vec();
        let Some(mut passed_on) = PassedOn::send(forwarder, lane.group, O::NUMBER, request, caller) else {
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

    /// Answers a request that another node forwarded. It is not forwarded again.
    ///
    /// `caller` is who asked that node. The leader judges it again, by its own table.
    pub(crate) async fn answer_forwarded(
        &self,
        group: GroupId,
        operation: u32,
        request: &[u8],
        caller: &Caller,
    ) -> Outcome {
        // A node without a replica of this group cannot be its leader.
        let Some(lane) = self.lanes.get(group) else { return Outcome::NotLeader(true) };
        if operation == READ_AUDIT {
            return self.answer_audit(lane, request, caller).await;
        }
        macro_rules! answered {
            ($($_service:ident { $(
                $_name:ident($Request:ty) -> $_response:ty {
                    node: { $(number: $number:literal,)? changes: $($_node:tt)* }
                    $($_dialects:tt)*
                }
            )* })*) => {
                match operation {
                    // Of this node itself, in any state. The node that asks has judged who asked it.
                    REPORT => Outcome::Response(self.report().encode_to_vec()),
                    REHEARSED => Outcome::Response(self.rehearsed().encode_to_vec()),
                    $($($( $number => self.answer::<$Request>(lane, request, caller).await, )?)*)*
                    _ => refusal(ApiError::new(
                        Reason::Internal,
                        format!("the leader's version does not know operation {operation}"),
                    )),
                }
            };
        }
        calls!(answered)
    }

    async fn answer<O: Operation>(&self, lane: &Lane, request: &[u8], caller: &Caller) -> Outcome {
        let operation = match O::decode(request) {
            Ok(operation) => operation,
            Err(error) => return refusal(ApiError::new(Reason::Internal, error.to_string())),
        };
        match ask_replica_anew(lane, &operation, caller).await {
            Attempt::Done(Ok(response)) => {
                // If the client asked on a session stream, that stream is on the other node, not on this
                // one.
                self.lanes.tell_streams(operation.ended_lease());
                Outcome::Response(response.encode_to_vec())
            }
            Attempt::Done(Err(error)) => refusal(error),
            Attempt::Again => Outcome::NotLeader(true),
            Attempt::Interrupted => Outcome::Interrupted(true),
        }
    }
}

/// Refuses if this node was removed, or if its state is in doubt. Such a node answers nothing.
fn check_standing(lane: &Lane) -> Result<(), ApiError> {
    if lane.view.is_sound() {
        return Ok(());
    }
    if lane.view.is_removed() {
        let message =
            "this node was removed from its cluster and is about to end; nothing was done, ask another";
        return Err(ApiError::new(Reason::NodeRemoved, message));
    }
    match lane.view.status().divergence {
        None => Ok(()),
        Some(divergence) => Err(diverged(Some(divergence))),
    }
}

/// Answers a stale read from what this node has applied.
async fn call_here<O: Operation>(
    lane: &Lane,
    operation: &O,
    caller: &Caller,
    request: Request,
) -> Result<O::Response, ApiError> {
    match Parked::ask(&lane.inbox, caller, request).outcome(operation).await {
        Attempt::Done(answer) => answer,
        Attempt::Again | Attempt::Interrupted => {
            Err(ApiError::new(Reason::NodeStopping, "this node does not answer any more"))
        }
    }
}

/// Sends the operation to this node's own replica.
async fn ask_replica_anew<O: Operation>(lane: &Lane, operation: &O, caller: &Caller) -> Attempt<O::Response> {
    match operation.parse() {
        Ok(request) => Parked::ask(&lane.inbox, caller, request).outcome(operation).await,
        Err(invalid) => Attempt::Done(Err(ApiError::invalid(invalid.field, invalid.problem))),
    }
}

/// A request that the replica has not answered yet. If it is dropped before the answer, the replica is told
/// that the caller no longer waits.
struct Parked<'a> {
    inbox: &'a Inbox,
    call: CallId,
    /// `None` once it was answered.
    answer: Option<oneshot::Receiver<Result<Response, Failure>>>,
}

impl<'a> Parked<'a> {
    fn ask(inbox: &'a Inbox, caller: &Caller, request: Request) -> Self {
        let (sender, receiver) = oneshot::channel();
        Self { call: inbox.ask(caller.clone(), request, sender), inbox, answer: Some(receiver) }
    }

    /// The answer, or `None` if the replica is gone.
    async fn answer(&mut self) -> Option<Result<Response, Failure>> {
        let answer = self.answer.as_mut()?.await.ok();
        self.answer = None;
        answer
    }

    /// The outcome of the operation that asked.
    #[expect(clippy::manual_async_fn, reason = "an async fn would keep `self` twice")]
    fn outcome<O: Operation>(mut self, operation: &O) -> impl Future<Output = Attempt<O::Response>> + Send {
        async move {
            match timeout(ANSWER_WAIT + operation.wait(), self.answer()).await {
                Ok(Some(Ok(response))) => Attempt::Done(operation.respond(response)),
                Ok(Some(Err(Failure::NotLeader { .. }))) => Attempt::Again,
                Ok(Some(Err(Failure::Interrupted { .. }))) => Attempt::Interrupted,
                Ok(Some(Err(other))) => Attempt::Done(Err(
                    failure(other, operation.request_id()).unwrap_or_else(|| nobody_leads(true))
                )),
                // The replica is gone, or makes no progress.
                Ok(None) | Err(_) => silence(operation),
            }
        }
    }
}

impl Drop for Parked<'_> {
    fn drop(&mut self) {
        if let Some(mut answer) = self.answer.take() {
            // Close first: the replica then skips a request that is still in the inbox.
            answer.close();
            if answer.try_recv().is_err() {
                self.inbox.report(Event::CallerGone(self.call));
            }
        }
    }
}

/// A forwarded request that is not answered yet. If it is dropped before the answer, the leader is told
/// that the caller no longer waits.
struct PassedOn {
    forwarder: mpsc::Sender<Forward>,
    number: u64,
    /// `None` once it was answered.
    answer: Option<oneshot::Receiver<Result<Outcome, ForwardError>>>,
}

impl PassedOn {
    /// `None` if there is no room for it. Nothing was done then.
    fn send(
        forwarder: mpsc::Sender<Forward>,
        group: GroupId,
        operation: u32,
        request: Vec<u8>,
        caller: &Caller,
    ) -> Option<Self> {
        static LAST_NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = LAST_NUMBER.fetch_add(1, Ordering::Relaxed) + 1;
        let (answer, receiver) = oneshot::channel();
        let caller = caller.clone();
        let forwarded = Forwarded { number, group, operation, request, caller, answer };
        forwarder.try_send(Forward::Request(forwarded)).ok()?;
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
            // If the link is gone, the leader has noticed that already.
            tokio::spawn(async move { forwarder.send(abandon).await });
        }
    }
}

pub(crate) fn refusal(error: ApiError) -> Outcome {
    Outcome::Error(ErrorDetail::from(error).encode_to_vec())
}

/// Resolves a little after the leader has changed. The delay leaves time for an answer that is still on its
/// way.
async fn no_longer_leads(leader: MemberId, mut leadership: watch::Receiver<crate::lane::view::Leadership>) {
    // An error means that the node is about to end.
    let _ = leadership.wait_for(|leadership| leadership.leader != Some(leader)).await;
    sleep(DOUBT_WAIT).await;
}

/// Called when a request was proposed or forwarded and no answer came. A request that changes nothing may
/// be tried again. For any other the outcome is unknown.
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

/// An id for a request that came without one. The caller can use it to ask again.
fn new_request_id() -> String {
    // Without randomness the machine is beyond help. An empty id is refused, and nothing is done.
    crate::random_bytes().map(|bytes| lowkey_core::NodeIdentity(bytes).to_string()).unwrap_or_default()
}
