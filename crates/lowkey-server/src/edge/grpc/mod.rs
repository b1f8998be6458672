//! The gRPC port: [`LockService`], health and reflection.

mod health;
mod heartbeat;

use std::pin::Pin;
use std::sync::Arc;

use ::http::Version;
use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{self, Next};
use axum::response::Response as HttpResponse;
use futures::Stream;
use lowkey_api::v1::lock_service_server::{LockService, LockServiceServer};
use lowkey_api::v1::{
    AcquireLockRequest, AcquireLockResponse, AddPeerRequest, AddPeerResponse, CreateLeaseRequest,
    CreateLeaseResponse, GetLockRequest, GetLockResponse, GetStatusRequest, GetStatusResponse,
    HeartbeatRequest, HeartbeatResponse, ReleaseLockRequest, ReleaseLockResponse, RenewLeaseRequest,
    RenewLeaseResponse, RevokeLeaseRequest, RevokeLeaseResponse,
};
use lowkey_api::{ApiError, FILE_DESCRIPTOR_SET, Reason};
use lowkey_core::limits::REQUEST_BYTES_MAX;
use tonic::service::Routes;
use tonic::{Request as GrpcRequest, Response, Status, Streaming};
use tonic_health::pb::health_server::HealthServer;

use super::{Dialect, Node, envelope};

/// The services of the gRPC port. `http_address` is where this node serves HTTP/JSON: told to
/// those who come here with it.
///
/// # Errors
///
/// If the descriptors that reflection is to serve cannot be read, which a build of ours never sees.
pub fn router<N: Node>(
    node: Arc<N>,
    http_address: impl Into<Arc<str>>,
) -> Result<Router, tonic_reflection::server::Error> {
    let lock_service =
        LockServiceServer::new(Grpc { node: Arc::clone(&node) }).max_decoding_message_size(REQUEST_BYTES_MAX);
    let health_service = HealthServer::new(health::Health { node: Arc::clone(&node) })
        .max_decoding_message_size(REQUEST_BYTES_MAX);
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };

    let routes = Routes::new(lock_service)
        .add_service(health_service)
        .add_service(reflection().build_v1()?)
        .add_service(reflection().build_v1alpha()?);
    Ok(routes
        .into_axum_router()
        .fallback(unknown_method)
        .layer(middleware::from_fn_with_state(http_address.into(), grpc_only))
        .layer(middleware::from_fn_with_state(node, envelope::<N>)))
}

/// Answers whoever does not speak gRPC before any service sees the request; it is told where HTTP/JSON
/// is served.
pub(crate) async fn grpc_only(
    State(http_address): State<Arc<str>>,
    request: Request,
    next: Next,
) -> HttpResponse {
    if request.version() == Version::HTTP_2 && Dialect::of(request.headers()) == Dialect::Grpc {
        return next.run(request).await;
    }
    super::http::body::drain(request.into_body()).await;
    let message = format!("this port speaks gRPC only; HTTP/JSON is served at {http_address}");
    Dialect::Json.error(ApiError::new(Reason::NoSuchRoute, message).with("http_address", http_address))
}

async fn unknown_method(request: Request) -> HttpResponse {
    let message = format!("there is no gRPC method {}", request.uri().path());
    Dialect::Grpc.error(ApiError::new(Reason::NoSuchRoute, message))
}

/// [`LockService`] as the node behind it answers.
struct Grpc<N> {
    node: Arc<N>,
}

/// The node's answer, in gRPC's types.
fn reply<T>(answer: Result<T, ApiError>) -> Result<Response<T>, Status> {
    answer.map(Response::new).map_err(Status::from)
}

#[tonic::async_trait]
impl<N: Node> LockService for Grpc<N> {
    type HeartbeatStream = Pin<Box<dyn Stream<Item = Result<HeartbeatResponse, Status>> + Send>>;

    async fn create_lease(
        &self,
        request: GrpcRequest<CreateLeaseRequest>,
    ) -> Result<Response<CreateLeaseResponse>, Status> {
        reply(self.node.create_lease(request.into_inner()).await)
    }

    async fn renew_lease(
        &self,
        request: GrpcRequest<RenewLeaseRequest>,
    ) -> Result<Response<RenewLeaseResponse>, Status> {
        reply(self.node.renew_lease(request.into_inner()).await)
    }

    async fn revoke_lease(
        &self,
        request: GrpcRequest<RevokeLeaseRequest>,
    ) -> Result<Response<RevokeLeaseResponse>, Status> {
        reply(self.node.revoke_lease(request.into_inner()).await)
    }

    async fn heartbeat(
        &self,
        request: GrpcRequest<Streaming<HeartbeatRequest>>,
    ) -> Result<Response<Self::HeartbeatStream>, Status> {
        let answers = heartbeat::answers(Arc::clone(&self.node), request.into_inner());
        Ok(Response::new(Box::pin(answers)))
    }

    async fn acquire_lock(
        &self,
        request: GrpcRequest<AcquireLockRequest>,
    ) -> Result<Response<AcquireLockResponse>, Status> {
        reply(self.node.acquire_lock(request.into_inner()).await)
    }

    async fn release_lock(
        &self,
        request: GrpcRequest<ReleaseLockRequest>,
    ) -> Result<Response<ReleaseLockResponse>, Status> {
        reply(self.node.release_lock(request.into_inner()).await)
    }

    async fn get_lock(
        &self,
        request: GrpcRequest<GetLockRequest>,
    ) -> Result<Response<GetLockResponse>, Status> {
        reply(self.node.get_lock(request.into_inner()).await)
    }

    async fn get_status(
        &self,
        _request: GrpcRequest<GetStatusRequest>,
    ) -> Result<Response<GetStatusResponse>, Status> {
        Ok(Response::new(self.node.get_status()))
    }

    async fn add_peer(
        &self,
        request: GrpcRequest<AddPeerRequest>,
    ) -> Result<Response<AddPeerResponse>, Status> {
        reply(self.node.add_peer(request.into_inner()).await)
    }
}
