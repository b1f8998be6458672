//! The node as its clients see it: every request, on whichever node it arrives.
//!
//! A request is answered by this node's replica if it leads, and passed on to the leader once
//! otherwise. While there is no leader it waits a little for one: most elections are over before a
//! client would notice. As long as nothing was proposed or forwarded the request may be tried
//! again, and the error that ends it says that nothing was done; afterwards it may not.

use std::sync::Arc;
use std::time::Duration;

use lowkey_api::v1::{
    AcquireLockRequest, AcquireLockResponse, AddPeerRequest, AddPeerResponse, CreateLeaseRequest,
    CreateLeaseResponse, GetLockRequest, GetLockResponse, GetStatusResponse, Member, ReleaseLockRequest,
    ReleaseLockResponse, RenewLeaseRequest, RenewLeaseResponse, RevokeLeaseRequest, RevokeLeaseResponse,
    Stats,
};
use lowkey_api::{ApiError, ErrorDetail, Reason};
use lowkey_core::MemberId;
use lowkey_replica::{Failure, Role, Status};
use prost::Message as _;
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, sleep, timeout, timeout_at};

use crate::edge::Node;
use crate::inbox::Inbox;
use crate::operation::{Operation, failure, outcome_unknown};
use crate::peers::proto::forward_reply::Outcome;
use crate::peers::{ForwardError, Forwarded, Forwarders, Hello};
use crate::view::View;

/// How long a request waits for a leader before it is refused; nothing was done for it then.
const LEADER_WAIT: Duration = Duration::from_millis(800);
/// How long a request that was sent to a leader is kept waiting once that one no longer leads.
const DOUBT_WAIT: Duration = Duration::from_millis(300);
/// No request waits longer than this for an answer, whatever happens.
const ANSWER_WAIT: Duration = Duration::from_secs(10);
/// How long to wait before asking again a leader that was not ready.
const RETRY_PAUSE: Duration = Duration::from_millis(10);
/// What a client is told to wait when there is no leader.
const RETRY_HINT_MS: u64 = 200;

/// The node, as its edge and its peers see it.
pub(crate) struct Service {
    pub(crate) node_name: String,
    pub(crate) hello: Arc<Hello>,
    pub(crate) view: Arc<View>,
    pub(crate) inbox: Arc<Inbox>,
    pub(crate) forwarders: Forwarders,
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
}

impl Service {
    async fn call<O: Operation>(&self, mut operation: O) -> Result<O::Response, ApiError> {
        operation.name_request(new_request_id);
        // Whatever is wrong with it is found here, before anyone else is bothered.
        operation.parse().map_err(|invalid| ApiError::invalid(invalid.field, invalid.problem))?;
        let deadline = Instant::now() + LEADER_WAIT;
        let mut leadership = self.view.leadership();
        loop {
            let leader = leadership.borrow_and_update().leader;
            let attempt = match leader {
                Some(leader) if leader == self.view.own() => self.ask_replica(&operation).await,
                Some(leader) => self.forward(&operation, leader, leadership.clone()).await,
                None => Attempt::Again,
            };
            if let Attempt::Done(answer) = attempt {
                return answer;
            }
            if Instant::now() >= deadline {
                return Err(nobody_leads(leader == Some(self.view.own())));
            }
            // Either somebody else leads in a moment, or the same leader is ready then.
            let pause = if leader.is_some() { Instant::now() + RETRY_PAUSE } else { deadline };
            let _ = timeout_at(pause.min(deadline), leadership.changed()).await;
        }
    }

    /// Asks this node's own replica.
    async fn ask_replica<O: Operation>(&self, operation: &O) -> Attempt<O::Response> {
        let request = match operation.parse() {
            Ok(request) => request,
            Err(invalid) => return Attempt::Done(Err(ApiError::invalid(invalid.field, invalid.problem))),
        };
        let (sender, receiver) = oneshot::channel();
        self.inbox.ask(request, sender);
        match timeout(ANSWER_WAIT, receiver).await {
            Ok(Ok(Ok(response))) => Attempt::Done(operation.respond(response)),
            Ok(Ok(Err(Failure::NotLeader { .. }))) => Attempt::Again,
            Ok(Ok(Err(other))) => Attempt::Done(Err(
                failure(other, operation.request_id()).unwrap_or_else(|| nobody_leads(true))
            )),
            // The replica thread is gone, or does not get through.
            Ok(Err(_)) | Err(_) => silence(operation),
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
        let (answer, receiver) = oneshot::channel();
        let forwarded = Forwarded { operation: O::NUMBER, request: operation.encode_to_vec(), answer };
        if forwarder.try_send(forwarded).is_err() {
            return Attempt::Again;
        }
        let outcome = tokio::select! {
            outcome = receiver => outcome.unwrap_or(Err(ForwardError::Lost)),
            () = no_longer_leads(leader, leadership) => Err(ForwardError::Lost),
            () = sleep(ANSWER_WAIT) => Err(ForwardError::Lost),
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
        match self.ask_replica(&operation).await {
            Attempt::Done(Ok(response)) => Outcome::Response(response.encode_to_vec()),
            Attempt::Done(Err(error)) => refusal(error),
            Attempt::Again => Outcome::NotLeader(true),
        }
    }
}

fn refusal(error: ApiError) -> Outcome {
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

impl Node for Service {
    async fn create_lease(&self, request: CreateLeaseRequest) -> Result<CreateLeaseResponse, ApiError> {
        self.call(request).await
    }

    async fn renew_lease(&self, request: RenewLeaseRequest) -> Result<RenewLeaseResponse, ApiError> {
        self.call(request).await
    }

    async fn revoke_lease(&self, request: RevokeLeaseRequest) -> Result<RevokeLeaseResponse, ApiError> {
        self.call(request).await
    }

    async fn acquire_lock(&self, request: AcquireLockRequest) -> Result<AcquireLockResponse, ApiError> {
        self.call(request).await
    }

    async fn release_lock(&self, request: ReleaseLockRequest) -> Result<ReleaseLockResponse, ApiError> {
        self.call(request).await
    }

    async fn get_lock(&self, request: GetLockRequest) -> Result<GetLockResponse, ApiError> {
        self.call(request).await
    }

    async fn add_peer(&self, request: AddPeerRequest) -> Result<AddPeerResponse, ApiError> {
        let response = self.call(request).await?;
        Ok(AddPeerResponse {
            cluster_id: self.hello.cluster.to_string(),
            members: members(&self.view.status()),
            ..response
        })
    }

    fn get_status(&self) -> GetStatusResponse {
        let status = self.view.status();
        let leader = status.members.iter().find(|member| Some(member.member) == status.leader);
        GetStatusResponse {
            node_id: self.node_name.clone(),
            is_leader: status.role == Role::Leader,
            leader_address: leader.map(|leader| leader.node.grpc_address.clone()).unwrap_or_default(),
            cluster_size: count(status.members.iter().filter(|member| member.voter).count()),
            state: state_name(&status).to_owned(),
            stats: Some(Stats {
                leases: count(status.leases),
                locks: count(status.locks),
                fencing_counter: status.last_token.0,
            }),
            cluster_id: self.hello.cluster.to_string(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            term: status.term,
            applied_index: status.applied,
            commit_index: status.committed,
            members: members(&status),
            leader_id: leader.map(|leader| leader.node.name.to_string()).unwrap_or_default(),
            leader_http_address: leader.map(|leader| leader.node.http_address.clone()).unwrap_or_default(),
        }
    }

    fn ready(&self) -> Result<(), String> {
        let status = self.view.status();
        match (status.role, status.leader) {
            _ if *self.stopping.borrow() => Err("the node is stopping".into()),
            (Role::Leader, _) if !status.serving => Err("this node was elected and is catching up".into()),
            (_, Some(_)) => Ok(()),
            (_, None) => Err("no leader is known".into()),
        }
    }

    fn cluster_id(&self) -> Option<String> {
        Some(self.hello.cluster.to_string())
    }

    fn stopping(&self) -> watch::Receiver<bool> {
        self.stopping.subscribe()
    }
}

fn state_name(status: &Status) -> &'static str {
    let own = status.members.iter().find(|member| member.member == status.member);
    match status.role {
        Role::Leader => "leader",
        Role::Candidate => "candidate",
        Role::Follower if own.is_some_and(|own| own.voter) => "follower",
        Role::Follower => "learner",
    }
}

fn members(status: &Status) -> Vec<Member> {
    let member = |member: &lowkey_replica::MemberStatus| {
        let (lag, reachable) = member.progress.unwrap_or_default();
        Member {
            node_id: member.node.name.to_string(),
            member_id: member.member.0,
            raft_address: member.node.raft_address.clone(),
            grpc_address: member.node.grpc_address.clone(),
            http_address: member.node.http_address.clone(),
            voter: member.voter,
            leader: Some(member.member) == status.leader,
            lag,
            reachable,
        }
    };
    status.members.iter().map(member).collect()
}

fn count(number: usize) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}
