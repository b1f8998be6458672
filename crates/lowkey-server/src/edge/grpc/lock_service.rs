//! `LockService`.

use std::pin::Pin;
use std::sync::Arc;

use futures::Stream;
use lowkey_api::v1::lock_service_server::LockService;
use lowkey_api::v1::{
    AcquireLockRequest, AcquireLockResponse, AddPeerRequest, AddPeerResponse, CheckTokenRequest,
    CheckTokenResponse, CreateLeaseRequest, CreateLeaseResponse, GetLeaseRequest, GetLeaseResponse,
    GetLockRequest, GetLockResponse, GetStatusRequest, GetStatusResponse, HeartbeatRequest,
    HeartbeatResponse, ListLeasesRequest, ListLeasesResponse, ListLocksRequest, ListLocksResponse,
    ReleaseLockRequest, ReleaseLockResponse, RemovePeerRequest, RemovePeerResponse, RenewLeaseRequest,
    RenewLeaseResponse, RevokeLeaseRequest, RevokeLeaseResponse, SessionAnswer, SessionCall,
    TransferLeaderRequest, TransferLeaderResponse, WatchEvent, WatchRequest,
};
use tonic::{Request, Response, Status, Streaming};

use super::{Grpc, StatusEvents, heartbeat, reply, reply_events, session};
use crate::edge::Node;

#[tonic::async_trait]
impl<N: Node> LockService for Grpc<N> {
    type HeartbeatStream = Pin<Box<dyn Stream<Item = Result<HeartbeatResponse, Status>> + Send>>;
    type SessionStream = Pin<Box<dyn Stream<Item = Result<SessionAnswer, Status>> + Send>>;
    type WatchStream = StatusEvents<WatchEvent>;

    async fn create_lease(
        &self,
        request: Request<CreateLeaseRequest>,
    ) -> Result<Response<CreateLeaseResponse>, Status> {
        reply(self.node.create_lease(request.into_inner()).await)
    }

    async fn renew_lease(
        &self,
        request: Request<RenewLeaseRequest>,
    ) -> Result<Response<RenewLeaseResponse>, Status> {
        reply(self.node.renew_lease(request.into_inner()).await)
    }

    async fn revoke_lease(
        &self,
        request: Request<RevokeLeaseRequest>,
    ) -> Result<Response<RevokeLeaseResponse>, Status> {
        reply(self.node.revoke_lease(request.into_inner()).await)
    }

    async fn heartbeat(
        &self,
        request: Request<Streaming<HeartbeatRequest>>,
    ) -> Result<Response<Self::HeartbeatStream>, Status> {
        let answers = heartbeat::answers(Arc::clone(&self.node), request.into_inner());
        Ok(Response::new(Box::pin(answers)))
    }

    async fn session(
        &self,
        request: Request<Streaming<SessionCall>>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        let answers = session::answers(Arc::clone(&self.node), request.into_inner());
        Ok(Response::new(Box::pin(answers)))
    }

    async fn acquire_lock(
        &self,
        request: Request<AcquireLockRequest>,
    ) -> Result<Response<AcquireLockResponse>, Status> {
        reply(self.node.acquire_lock(request.into_inner()).await)
    }

    async fn release_lock(
        &self,
        request: Request<ReleaseLockRequest>,
    ) -> Result<Response<ReleaseLockResponse>, Status> {
        reply(self.node.release_lock(request.into_inner()).await)
    }

    async fn get_lock(&self, request: Request<GetLockRequest>) -> Result<Response<GetLockResponse>, Status> {
        reply(self.node.get_lock(request.into_inner()).await)
    }

    async fn get_lease(
        &self,
        request: Request<GetLeaseRequest>,
    ) -> Result<Response<GetLeaseResponse>, Status> {
        reply(self.node.get_lease(request.into_inner()).await)
    }

    async fn list_leases(
        &self,
        request: Request<ListLeasesRequest>,
    ) -> Result<Response<ListLeasesResponse>, Status> {
        reply(self.node.list_leases(request.into_inner()).await)
    }

    async fn list_locks(
        &self,
        request: Request<ListLocksRequest>,
    ) -> Result<Response<ListLocksResponse>, Status> {
        reply(self.node.list_locks(request.into_inner()).await)
    }

    async fn check_token(
        &self,
        request: Request<CheckTokenRequest>,
    ) -> Result<Response<CheckTokenResponse>, Status> {
        reply(self.node.check_token(request.into_inner()).await)
    }

    async fn watch(&self, request: Request<WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        reply_events(self.node.watch(request.into_inner()).await)
    }

    async fn get_status(
        &self,
        _request: Request<GetStatusRequest>,
    ) -> Result<Response<GetStatusResponse>, Status> {
        Ok(Response::new(self.node.get_status()))
    }

    async fn add_peer(&self, request: Request<AddPeerRequest>) -> Result<Response<AddPeerResponse>, Status> {
        reply(self.node.add_peer(request.into_inner()).await)
    }

    async fn remove_peer(
        &self,
        request: Request<RemovePeerRequest>,
    ) -> Result<Response<RemovePeerResponse>, Status> {
        reply(self.node.remove_peer(request.into_inner()).await)
    }

    async fn transfer_leader(
        &self,
        request: Request<TransferLeaderRequest>,
    ) -> Result<Response<TransferLeaderResponse>, Status> {
        reply(self.node.transfer_leader(request.into_inner()).await)
    }
}
