//! The gRPC port: locks, elections, health and reflection.

mod election_service;
mod health;
mod heartbeat;
mod lock_service;
mod session;

use std::sync::Arc;

use ::http::Version;
use axum::Router;
use axum::extract::{Request, State};
use axum::middleware::{self, Next};
use axum::response::Response as HttpResponse;
use futures::TryStreamExt;
use futures::stream::MapErr;
use lowkey_api::v1::election_service_server::ElectionServiceServer;
use lowkey_api::v1::lock_service_server::LockServiceServer;
use lowkey_api::{ApiError, FILE_DESCRIPTOR_SET, Reason};
use lowkey_core::limits::REQUEST_BYTES_MAX;
use tonic::service::Routes;
use tonic::{Response, Status};
use tonic_health::pb::health_server::HealthServer;

use super::{Dialect, EventStream, Events, Node, REVISION_HEADER, envelope};

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
    let election_service = ElectionServiceServer::new(Grpc { node: Arc::clone(&node) })
        .max_decoding_message_size(REQUEST_BYTES_MAX);
    let health_service = HealthServer::new(health::Health { node: Arc::clone(&node) })
        .max_decoding_message_size(REQUEST_BYTES_MAX);
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
    };

    let routes = Routes::new(lock_service)
        .add_service(election_service)
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

/// A service as the node behind it answers.
struct Grpc<N> {
    node: Arc<N>,
}

/// The node's answer, in gRPC's types.
fn reply<T>(answer: Result<T, ApiError>) -> Result<Response<T>, Status> {
    answer.map(Response::new).map_err(Status::from)
}

/// The node's events, in gRPC's types: the very stream, so that the one is dropped with the other.
type StatusEvents<T> = MapErr<EventStream<T>, fn(ApiError) -> Status>;

/// The node's answer to a watch, in gRPC's types.
fn reply_events<T>(answer: Result<Events<T>, ApiError>) -> Result<Response<StatusEvents<T>>, Status> {
    let Events { stream, revision } = answer?;
    let mut response = Response::new(stream.map_err(Status::from as fn(ApiError) -> Status));
    response.metadata_mut().insert(REVISION_HEADER, revision.into());
    Ok(response)
}
