//! The gRPC port: locks, elections, health and reflection.

mod access_service;
mod call_body;
mod election_service;
mod health;
mod heartbeat;
mod lock_service;
mod session;
mod short;

use std::convert::Infallible;
use std::sync::Arc;
use std::task::{Context, Poll};

use ::http::{Version, request};
use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::middleware::{self, Next};
use axum::response::Response as HttpResponse;
use futures::future::BoxFuture;
use futures::stream::MapErr;
use futures::{FutureExt, TryStreamExt};
use hyper::body::Incoming;
use lowkey_api::v1::access_service_server::AccessServiceServer;
use lowkey_api::v1::election_service_server::ElectionServiceServer;
use lowkey_api::v1::lock_service_server::LockServiceServer;
use lowkey_api::{ApiError, FILE_DESCRIPTOR_SET, Reason, v1};
use lowkey_core::limits::REQUEST_BYTES_MAX;
use tonic::codegen::Service;
use tonic::service::Routes;
use tonic::{Response, Status};
use tonic_health::pb::health_server::HealthServer;

use self::call_body::CallBody;
use self::short::Taken;
use super::{
    Call, Dialect, EventStream, Events, Node, Permitted, REVISION_HEADER, Ruled, Shown, enclosed, envelope,
    shown,
};
use crate::call::calls;

/// The services of the gRPC port.
///
/// Most requests are about locks. Their calls bypass the router, whose layers would cost more than decoding
/// and encoding a call together. The most frequent calls take an even shorter path (`short.rs`).
pub struct Port<N> {
    node: Arc<N>,
    locks: LockServiceServer<Grpc<N>>,
    others: Router,
}

impl<N> Clone for Port<N> {
    fn clone(&self) -> Self {
        Self { node: Arc::clone(&self.node), locks: self.locks.clone(), others: self.others.clone() }
    }
}

/// `http_address` is where this node serves HTTP/JSON. A client that comes here with HTTP/JSON is told that
/// address.
///
/// # Errors
///
/// If the descriptors for reflection cannot be read, which never happens in our builds.
pub fn port<N: Node>(
    node: Arc<N>,
    http_address: impl Into<Arc<str>>,
) -> Result<Port<N>, tonic_reflection::server::Error> {
    let locks =
        LockServiceServer::new(Grpc { node: Arc::clone(&node) }).max_decoding_message_size(REQUEST_BYTES_MAX);
    let election_service = ElectionServiceServer::new(Grpc { node: Arc::clone(&node) })
        .max_decoding_message_size(REQUEST_BYTES_MAX);
    let access_service = AccessServiceServer::new(Grpc { node: Arc::clone(&node) })
        .max_decoding_message_size(REQUEST_BYTES_MAX);
    let health_service = HealthServer::new(health::Health { node: Arc::clone(&node) })
        .max_decoding_message_size(REQUEST_BYTES_MAX);
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(FILE_DESCRIPTOR_SET)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
            // The types in the details of a refusal.
            .register_encoded_file_descriptor_set(tonic_types::pb::FILE_DESCRIPTOR_SET)
    };

    let routes = Routes::new(locks.clone())
        .add_service(election_service)
        .add_service(access_service)
        .add_service(health_service)
        .add_service(reflection().build_v1()?.max_decoding_message_size(REQUEST_BYTES_MAX))
        .add_service(reflection().build_v1alpha()?.max_decoding_message_size(REQUEST_BYTES_MAX));
    let others = routes
        .into_axum_router()
        .fallback(unknown_method)
        .layer(middleware::from_fn_with_state(HttpElsewhere::of_grpc_port(http_address), grpc_only))
        .layer(middleware::from_fn_with_state(Arc::clone(&node), envelope::<N>));
    Ok(Port { node, locks, others })
}

impl<N: Node> Service<::http::Request<Incoming>> for Port<N> {
    type Response = HttpResponse;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<HttpResponse, Infallible>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: ::http::Request<Incoming>) -> Self::Future {
        if !is_lock_call(&request) {
            let body = call_body(request.uri().path());
            return self.others.call(request.map(body)).boxed();
        }
        let (node, uri, mut locks) = (Arc::clone(&self.node), request.uri().clone(), self.locks.clone());
        let (mut head, body) = request.into_parts();
        node.guard().look_at(&head.headers, &mut head.extensions);
        let is_plain = !short::is_compressed(&head.headers);
        /// The most frequent calls take the short path, or the general one if they do not fit into it.
        macro_rules! answered {
            (LockService { $(
                $_name:ident($Request:ty) -> $_response:ty {
                    node: $_node:tt grpc: { $_method:ident $($short:ident)? } $($_other:tt)*
                }
            )* } $($_services:tt)*) => {
                match uri.path().strip_prefix(LOCK_SERVICE).filter(|_| is_plain) {
                    $($(
                        Some(<$Request>::NAME) => {
                            let answer = async {
                                match $short::take::<$Request>(body).await {
                                    Taken::Message(message) => {
                                        let permitted = node.guard().permit(&Shown::of(&head.extensions), message);
                                        short::answer(match permitted {
                                            Ok(call) => node.call(call).await,
                                            Err(error) => Err(error),
                                        })
                                    }
                                    Taken::Other(body) => in_general(&mut locks, head, *body).await,
                                }
                            };
                            enclosed(&*node, uri, Dialect::Grpc, answer).await
                        }
                    )?)*
                    _ => {
                        let body = call_body(uri.path())(body);
                        enclosed(&*node, uri, Dialect::Grpc, in_general(&mut locks, head, body)).await
                    }
                }
            };
        }
        async move { Ok(calls!(answered)) }.boxed()
    }
}

async fn in_general<N: Node>(
    locks: &mut LockServiceServer<Grpc<N>>,
    head: request::Parts,
    body: CallBody,
) -> HttpResponse {
    let Ok(answer) = locks.call(::http::Request::from_parts(head, body)).await;
    answer.map(Body::new)
}

/// The prefix of the names of the `LockService`'s methods.
const LOCK_SERVICE: &str = "/lowkey.v1.LockService/";

/// How to read the body of a call: as one message, or as a stream of messages.
fn call_body(path: &str) -> fn(Incoming) -> CallBody {
    match path.strip_prefix(LOCK_SERVICE) {
        Some("Session" | "Heartbeat") => CallBody::stream,
        None if path.starts_with("/grpc.reflection.") => CallBody::stream,
        _ => CallBody::message,
    }
}

/// True if a request is a call of the `LockService` in every respect, whether or not its method is known.
fn is_lock_call(request: &::http::Request<Incoming>) -> bool {
    request.uri().path().starts_with(LOCK_SERVICE) && is_grpc(request)
}

fn is_grpc<B>(request: &::http::Request<B>) -> bool {
    request.version() == Version::HTTP_2 && Dialect::of(request.headers()) == Dialect::Grpc
}

/// What a client is told that comes to a gRPC port with HTTP/JSON.
#[derive(Clone)]
pub(crate) struct HttpElsewhere {
    /// What this port is for.
    here: &'static str,
    http_address: Arc<str>,
}

impl HttpElsewhere {
    fn of_grpc_port(http_address: impl Into<Arc<str>>) -> Self {
        Self { here: "this port speaks gRPC only", http_address: http_address.into() }
    }

    pub(crate) fn of_peer_port(http_address: impl Into<Arc<str>>) -> Self {
        Self { here: PEERS_ONLY, http_address: http_address.into() }
    }
}

const PEERS_ONLY: &str = "this port is for the nodes of the cluster among themselves";

/// Answers clients that do not speak gRPC, before any service sees the request. They are told where
/// HTTP/JSON is served.
pub(crate) async fn grpc_only(
    State(HttpElsewhere { here, http_address }): State<HttpElsewhere>,
    request: Request,
    next: Next,
) -> HttpResponse {
    if is_grpc(&request) {
        return next.run(request).await;
    }
    super::http::body::drain(request.into_body()).await;
    let message = format!("{here}; HTTP/JSON is served at {http_address}");
    Dialect::Json.error(ApiError::new(Reason::NoSuchRoute, message).with("http_address", http_address))
}

/// What a client is told that comes to the peers' port with gRPC.
pub(crate) fn peers_only(grpc_address: &str) -> HttpResponse {
    let message = format!("{PEERS_ONLY}; gRPC for clients is served at {grpc_address}");
    Dialect::Grpc.error(ApiError::new(Reason::NoSuchRoute, message).with("grpc_address", grpc_address))
}

async fn unknown_method(request: Request) -> HttpResponse {
    let message = format!("there is no gRPC method {}", shown(request.uri().path()));
    Dialect::Grpc.error(ApiError::new(Reason::NoSuchRoute, message))
}

/// A gRPC service, answered by the node behind it.
struct Grpc<N> {
    node: Arc<N>,
}

impl<N: Node> Grpc<N> {
    /// What a request asks for, if its sender may have it.
    fn permit<T: Ruled>(&self, request: tonic::Request<T>) -> Result<Permitted<T>, Status> {
        let shown = Shown::of(request.extensions());
        Ok(self.node.guard().permit(&shown, request.into_inner())?)
    }
}

/// The node's answer, in gRPC's types.
fn reply<T>(answer: Result<T, ApiError>) -> Result<Response<T>, Status> {
    answer.map(Response::new).map_err(Status::from)
}

/// The node's events, in gRPC's types. It is the same stream, so dropping one drops the other.
type StatusEvents<T> = MapErr<EventStream<T>, fn(ApiError) -> Status>;

/// The node's answer to a watch, in gRPC's types.
fn reply_events<T>(answer: Result<Events<T>, ApiError>) -> Result<Response<StatusEvents<T>>, Status> {
    let Events { stream, revision } = answer?;
    let mut response = Response::new(stream.map_err(Status::from as fn(ApiError) -> Status));
    response.metadata_mut().insert(REVISION_HEADER, revision.into());
    Ok(response)
}

#[cfg(test)]
mod tests {
    use lowkey_api::v1::lock_service_server::SERVICE_NAME;

    use super::*;

    #[test]
    fn the_lock_service_is_found_by_its_name() {
        assert_eq!(LOCK_SERVICE, format!("/{SERVICE_NAME}/"));
    }
}
