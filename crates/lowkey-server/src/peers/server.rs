//! What a node receives from its peers.

use std::collections::HashMap;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, PoisonError};

use axum::Router;
use bytes::BytesMut;
use futures::FutureExt as _;
use lowkey_core::GroupId;
use lowkey_replica::Input;
use lowkey_replica::wire::{self, Said};
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;
use tonic::metadata::MetadataMap;
use tonic::{Request, Response, Status, Streaming};

use super::callers;
use super::complaints::Rarely;
use super::hello::{Caller, is_of_unknown};
use super::known;
use super::link::CALL_BYTES_MAX;
use super::messages;
use super::proto::peer_server::{Peer, PeerServer};
use super::proto::{
    ForwardReply, ForwardRequest, JoinRequest, JoinResponse, MembersRequest, MembersResponse, SnapshotChunk,
    SnapshotOffer, SnapshotTaken, SnapshotWanted,
};
use super::seats::Seats;
use super::snapshots::Incoming;
use super::tls::Proof;
use super::vouching::Vouching;
use crate::edge::grpc::{HttpElsewhere, grpc_only, peers_only};
use crate::edge::{Node as _, fault};
use crate::lane::inbox::Event;
use crate::node_key::sha256;
use crate::service::{Service, refusal};

/// How many replies may wait for a slow peer.
const REPLIES_MAX: usize = 1024;

/// The peers' port. A client that comes here is told where this node serves clients.
pub(crate) fn router(service: Arc<Service>, grpc_address: &str, http_address: &str) -> Router {
    let peers = Arc::new(Peers {
        service,
        complaints: Mutex::default(),
        incoming: Incoming::default(),
        seats: Seats::default(),
        vouching: Vouching::default(),
    });
    let server = PeerServer::from_arc(Arc::clone(&peers))
        .max_decoding_message_size(CALL_BYTES_MAX)
        .max_encoding_message_size(CALL_BYTES_MAX);
    let http_elsewhere = HttpElsewhere::of_peer_port(http_address);
    let grpc_address: Arc<str> = grpc_address.into();
    tonic::service::Routes::new(server)
        .into_axum_router()
        .fallback(async move || peers_only(&grpc_address))
        .layer(axum::middleware::from_fn_with_state(http_elsewhere, grpc_only))
        .route(messages::PATH, axum::routing::get(messages::answer).with_state(peers))
}

pub(super) struct Peers {
    pub(super) service: Arc<Service>,
    complaints: Mutex<Rarely>,
    incoming: Incoming,
    pub(super) seats: Seats,
    vouching: Vouching,
}

impl Peers {
    pub(super) fn let_in(&self, metadata: &MetadataMap, proof: Proof) -> Result<Caller, Status> {
        let root = self.service.lanes.root();
        let checked = self.service.hello.check(metadata, proof, &root.view.status());
        let caller = checked.inspect_err(|status| {
            if is_of_unknown(status) {
                self.vouching.ask(&self.service);
            }
            self.complain(status);
        })?;
        root.inbox.report(Event::PeerSeen(caller.clone()));
        Ok(caller)
    }

    /// Logs, once in a while, why a node was refused or is not listened to any more.
    pub(super) fn complain(&self, refusal: &Status) {
        let mut complaints = self.complaints.lock().unwrap_or_else(PoisonError::into_inner);
        if complaints.is_news(refusal.message()) {
            tracing::warn!(cause = refusal.message(), "refused a peer");
        }
    }

    /// Hands encoded messages to the replicas of their groups, if they are from the sender that they name.
    pub(super) fn deliver(
        &self,
        caller: &Caller,
        mut next: impl FnMut() -> Result<Option<BytesMut>, Status>,
    ) -> Result<(), Status> {
        let (mut of, mut said) = (GroupId::ROOT, Vec::new());
        while let Some(bytes) = next()? {
            let (group, one) = read(caller, &bytes)?;
            if group != of {
                self.hand_on(of, std::mem::take(&mut said));
                of = group;
            }
            said.push(one);
        }
        self.hand_on(of, said);
        Ok(())
    }

    fn hand_on(&self, group: GroupId, said: Vec<Said>) {
        // A part of a frame is no message yet, and waking the replica for nothing would cost it a turn. A
        // message never creates a group that this node does not know.
        if !said.is_empty()
            && let Some(lane) = self.service.lanes.get(group)
        {
            lane.inbox.deliver(said);
        }
    }
}

/// The key that the caller of a request has proven to have.
fn proof<T>(request: &Request<T>) -> Proof {
    request.extensions().get::<Proof>().copied().unwrap_or_default()
}

fn read(caller: &Caller, bytes: &[u8]) -> Result<(GroupId, Said), Status> {
    let (group, said) = wire::decode(bytes).map_err(|error| Status::invalid_argument(error.to_string()))?;
    if said.from() != caller.member {
        return Err(Status::invalid_argument("a message of another sender"));
    }
    Ok((group, said))
}

#[tonic::async_trait]
impl Peer for Peers {
    async fn offer_snapshot(
        &self,
        request: Request<SnapshotOffer>,
    ) -> Result<Response<SnapshotWanted>, Status> {
        let caller = self.let_in(request.metadata(), proof(&request))?;
        let SnapshotOffer { id, message } = request.into_inner();
        let id = id.ok_or_else(|| Status::invalid_argument("an offer of nothing"))?;
        let (group, Said::Message(message)) = read(&caller, &message)? else {
            return Err(Status::invalid_argument("a report where a message is due"));
        };
        if group != GroupId::told(id.group) || self.service.lanes.get(group).is_none() {
            return Err(Status::invalid_argument("a snapshot of another group"));
        }
        let from_byte = self.incoming.offer(id, message)?;
        Ok(Response::new(SnapshotWanted { from_byte }))
    }

    async fn snapshot(
        &self,
        request: Request<Streaming<SnapshotChunk>>,
    ) -> Result<Response<SnapshotTaken>, Status> {
        self.let_in(request.metadata(), proof(&request))?;
        let mut chunks = request.into_inner();
        let mut id = None;
        while let Some(chunk) = chunks.next().await {
            id = Some(self.incoming.append(&chunk?)?);
        }
        let id = id.ok_or_else(|| Status::invalid_argument("a snapshot without a chunk"))?;
        let received = self.incoming.finish(id).await.inspect_err(|status| {
            tracing::warn!(index = id.index, cause = status.message(), "refused a snapshot");
        })?;
        if let Some(lane) = self.service.lanes.get(GroupId::told(id.group)) {
            lane.inbox.report(Event::Replica(Input::Snapshot(Box::new(received))));
        }
        Ok(Response::new(SnapshotTaken {}))
    }

    async fn members(&self, request: Request<MembersRequest>) -> Result<Response<MembersResponse>, Status> {
        self.let_in(request.metadata(), proof(&request))?;
        let members = known::registered(&self.service.lanes.root().view.status()).map(Into::into).collect();
        Ok(Response::new(MembersResponse { members }))
    }

    async fn join(&self, request: Request<JoinRequest>) -> Result<Response<JoinResponse>, Status> {
        let proof = proof(&request);
        let mut request = request.into_inner();
        if proof.0.is_none_or(|key| key.0 != *request.key_hash) {
            let status =
                Status::unauthenticated("a node that joins must prove that it has the key that it names");
            self.complain(&status);
            return Err(status);
        }
        request.invitation = sha256(&std::mem::take(&mut request.secret)).to_vec();
        // The secret of the invitation is its permission, and the leader compares it.
        let request = self.service.guard().for_node(request);
        let answer = self.service.call(request).await;
        Ok(Response::new(
            answer.inspect_err(|error| self.complain(&Status::permission_denied(&error.message)))?,
        ))
    }

    type ForwardStream = ReceiverStream<Result<ForwardReply, Status>>;

    async fn forward(
        &self,
        request: Request<Streaming<ForwardRequest>>,
    ) -> Result<Response<Self::ForwardStream>, Status> {
        self.let_in(request.metadata(), proof(&request))?;
        let (replies, receiver) = mpsc::channel(REPLIES_MAX);
        let forwards = Forwards {
            service: Arc::clone(&self.service),
            replies,
            under_way: JoinSet::new(),
            by_number: HashMap::new(),
        };
        tokio::spawn(forwards.run(request.into_inner()));
        Ok(Response::new(ReceiverStream::new(receiver)))
    }
}

/// The requests that one peer has forwarded and that are under way. They end with the stream, and the peer
/// tells their callers so.
struct Forwards {
    service: Arc<Service>,
    replies: mpsc::Sender<Result<ForwardReply, Status>>,
    /// Each task returns its number when it ends.
    under_way: JoinSet<u64>,
    by_number: HashMap<u64, AbortHandle>,
}

impl Forwards {
    async fn run(mut self, mut requests: Streaming<ForwardRequest>) {
        let mut parting = self.service.parting.subscribe();
        loop {
            let next = tokio::select! {
                next = requests.next() => next,
                Some(ended) = self.under_way.join_next() => {
                    if let Ok(number) = ended {
                        self.by_number.remove(&number);
                    }
                    continue;
                }
                _ = parting.wait_for(|parting| *parting) => None,
            };
            match next {
                Some(Ok(request)) if request.abandon => {
                    if let Some(task) = self.by_number.remove(&request.number) {
                        task.abort();
                    }
                }
                Some(Ok(request)) => self.begin(request),
                _ => return,
            }
        }
    }

    fn begin(&mut self, request: ForwardRequest) {
        let ForwardRequest { number, operation, request, group, caller, .. } = request;
        let caller = callers::heard(caller);
        let group = GroupId::told(group);
        let (service, replies) = (Arc::clone(&self.service), self.replies.clone());
        let task = self.under_way.spawn(async move {
            // What a panic left half done belongs to this request alone. It is dropped unseen.
            let answer = AssertUnwindSafe(service.answer_forwarded(group, operation, &request, &caller))
                .catch_unwind();
            let outcome = answer
                .await
                .unwrap_or_else(|panic| refusal(fault("a request that a peer passed on", &*panic)));
            // If the stream is gone, so is the caller.
            let _ = replies.send(Ok(ForwardReply { number, outcome: Some(outcome) })).await;
            number
        });
        self.by_number.insert(number, task);
    }
}
