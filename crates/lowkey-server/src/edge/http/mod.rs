//! The HTTP port: the calls of the gRPC API as JSON, for `curl` and for languages without gRPC.
//!
//! A body is read as JSON whatever its content type says, so that a plain `curl -d` works; but a web page
//! must say that it is, and most pages are not heard at all (`gate`). A body with a field that is not known, or
//! that is there twice, is refused (`strict`). Errors have one form on every path, the unknown ones included.
//! What gRPC tells as a stream is told as server-sent events.

pub(super) mod body;
mod events;
mod gate;
mod json;
mod query;
mod strict;

use std::future::Future;
use std::sync::Arc;

use ::http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode, Uri, header};
use axum::Router;
use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::handler::Handler;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{self, MethodRouter};
use lowkey_api::v1::{
    AcquireLockRequest, AddPeerRequest, CampaignRequest, CheckTokenRequest, CreateLeaseRequest,
    ProclaimRequest, ReleaseLockRequest, RemovePeerRequest, RenewLeaseRequest, ResignRequest,
    RevokeLeaseRequest, TransferLeaderRequest,
};
use lowkey_api::{ApiError, Reason};
use serde::Serialize;

pub use self::gate::{Gate, HttpHost, HttpOrigin};
use self::json::JsonRequest;
use super::{Dialect, Node, envelope, shown};

/// The header that may carry a request's id instead of its body.
const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// The routes of the HTTP port, behind their [`Gate`]. `grpc_address` is where this node serves gRPC:
/// told to those who come here with it.
pub fn router<N: Node>(node: Arc<N>, grpc_address: impl Into<Arc<str>>, gate: Gate) -> Router {
    let grpc_address: Arc<str> = grpc_address.into();
    let welcome = welcome(&grpc_address);
    Router::new()
        .route("/", get(async move || json_response(StatusCode::OK, &welcome)))
        .route("/v1/lease", post(create_lease::<N>).get(get_lease::<N>))
        .route("/v1/leases", get(list_leases::<N>))
        .route("/v1/lease/renew", post(renew_lease::<N>))
        .route("/v1/lease/revoke", post(revoke_lease::<N>))
        .route("/v1/lock/acquire", post(acquire_lock::<N>))
        .route("/v1/lock/release", post(release_lock::<N>))
        .route("/v1/lock/check", post(check_token::<N>))
        .route("/v1/lock", get(get_lock::<N>))
        .route("/v1/locks", get(list_locks::<N>))
        .route("/v1/watch", get(watch::<N>))
        .route("/v1/election/campaign", post(campaign::<N>))
        .route("/v1/election/proclaim", post(proclaim::<N>))
        .route("/v1/election/resign", post(resign::<N>))
        .route("/v1/election/leader", get(leader::<N>))
        .route("/v1/election/observe", get(observe::<N>))
        .route("/v1/status", get(get_status::<N>))
        .route("/v1/cluster/peers", post(add_peer::<N>))
        .route("/v1/cluster/peers/{node_id}", delete(remove_peer::<N>))
        .route("/v1/cluster/transfer", post(transfer_leader::<N>))
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(readyz::<N>))
        .route("/metrics", get(metrics::<N>))
        .fallback(no_such_route)
        .layer(middleware::from_fn_with_state((Arc::new(gate), Arc::clone(&node)), gate::gate::<N>))
        .layer(middleware::from_fn_with_state(grpc_address, no_grpc))
        .layer(middleware::from_fn_with_state(Arc::clone(&node), envelope::<N>))
        .with_state(node)
}

/// What a person is told who looks at the port with a browser or with `curl`.
fn welcome(grpc_address: &str) -> serde_json::Value {
    serde_json::json!({
        "service": "lowkey",
        "version": env!("CARGO_PKG_VERSION"),
        "about": "a distributed lock and leader-election service",
        "grpc": grpc_address,
        "links": {
            "status": "/v1/status",
            "locks": "/v1/locks",
            "alive": "/healthz",
            "ready": "/readyz",
            "metrics": "/metrics",
        },
        "example": "curl -d '{\"lockName\":\"jobs/nightly\",\"ownerId\":\"worker-1\",\"ttlSeconds\":30}' \
                    http://HOST:PORT/v1/lock/acquire",
        "documentation": "docs/api.md, docs/operations.md and docs/cli.md, which come with lowkey; `lowkey --help`",
    })
}

async fn create_lease<N: Node>(State(node): State<Arc<N>>, request: Request) -> Response {
    call(request, |body: CreateLeaseRequest| node.create_lease(body)).await
}

async fn renew_lease<N: Node>(State(node): State<Arc<N>>, request: Request) -> Response {
    call(request, |body: RenewLeaseRequest| node.renew_lease(body)).await
}

async fn revoke_lease<N: Node>(State(node): State<Arc<N>>, request: Request) -> Response {
    call(request, |body: RevokeLeaseRequest| node.revoke_lease(body)).await
}

async fn acquire_lock<N: Node>(State(node): State<Arc<N>>, request: Request) -> Response {
    call(request, |body: AcquireLockRequest| node.acquire_lock(body)).await
}

async fn release_lock<N: Node>(State(node): State<Arc<N>>, request: Request) -> Response {
    call(request, |body: ReleaseLockRequest| node.release_lock(body)).await
}

async fn add_peer<N: Node>(State(node): State<Arc<N>>, request: Request) -> Response {
    call(request, |body: AddPeerRequest| node.add_peer(body)).await
}

async fn remove_peer<N: Node>(
    State(node): State<Arc<N>>,
    node_id: Result<Path<String>, PathRejection>,
    request: Request,
) -> Response {
    let (head, body) = request.into_parts();
    // The path says all there is to say.
    body::drain(body).await;
    let named = || {
        query::none(&head.uri)?;
        let Path(node_id) = node_id.map_err(|_| ApiError::invalid("node_id", "must be UTF-8"))?;
        let mut request = RemovePeerRequest { node_id, ..RemovePeerRequest::default() };
        name_by_header(&head.headers, &mut request.request_id)?;
        Ok(request)
    };
    match named() {
        Ok(request) => respond(node.remove_peer(request).await),
        Err(error) => error_response(&error),
    }
}

async fn transfer_leader<N: Node>(State(node): State<Arc<N>>, request: Request) -> Response {
    call(request, |body: TransferLeaderRequest| node.transfer_leader(body)).await
}

async fn check_token<N: Node>(State(node): State<Arc<N>>, request: Request) -> Response {
    call(request, |body: CheckTokenRequest| node.check_token(body)).await
}

async fn campaign<N: Node>(State(node): State<Arc<N>>, request: Request) -> Response {
    call(request, |body: CampaignRequest| node.campaign(body)).await
}

async fn proclaim<N: Node>(State(node): State<Arc<N>>, request: Request) -> Response {
    call(request, |body: ProclaimRequest| node.proclaim(body)).await
}

async fn resign<N: Node>(State(node): State<Arc<N>>, request: Request) -> Response {
    call(request, |body: ResignRequest| node.resign(body)).await
}

async fn get_lock<N: Node>(State(node): State<Arc<N>>, uri: Uri) -> Response {
    respond(async { node.get_lock(query::get_lock(&uri)?).await }.await)
}

async fn get_lease<N: Node>(State(node): State<Arc<N>>, uri: Uri) -> Response {
    respond(async { node.get_lease(query::get_lease(&uri)?).await }.await)
}

async fn list_leases<N: Node>(State(node): State<Arc<N>>, uri: Uri) -> Response {
    respond(async { node.list_leases(query::list_leases(&uri)?).await }.await)
}

async fn list_locks<N: Node>(State(node): State<Arc<N>>, uri: Uri) -> Response {
    respond(async { node.list_locks(query::list_locks(&uri)?).await }.await)
}

async fn leader<N: Node>(State(node): State<Arc<N>>, uri: Uri) -> Response {
    respond(async { node.leader(query::leader(&uri)?).await }.await)
}

async fn watch<N: Node>(State(node): State<Arc<N>>, uri: Uri, headers: HeaderMap) -> Response {
    events::respond(async { node.watch(query::watch(&uri, &headers)?).await }.await)
}

async fn observe<N: Node>(State(node): State<Arc<N>>, uri: Uri) -> Response {
    events::respond(async { node.observe(query::observe(&uri)?).await }.await)
}

async fn get_status<N: Node>(State(node): State<Arc<N>>, uri: Uri) -> Response {
    respond(query::none(&uri).map(|()| node.get_status()))
}

async fn readyz<N: Node>(State(node): State<Arc<N>>) -> Response {
    match node.ready() {
        // It serves: leases, reads, and nodes that join. Who waits for that must not wait for locks.
        Ok(()) => match node.get_status().recovering_seconds {
            0 => "ok\n".into_response(),
            left => format!("ok\nrecovering: no lock is granted for {left} s at most\n").into_response(),
        },
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("not ready: {why}\n")).into_response(),
    }
}

async fn metrics<N: Node>(State(node): State<Arc<N>>) -> Response {
    ([(header::CONTENT_TYPE, crate::METRICS_CONTENT_TYPE)], node.metrics()).into_response()
}

async fn no_such_route(request: Request) -> Response {
    let message = format!("there is no {}", shown(request.uri().path()));
    body::drain(request.into_body()).await;
    error_response(&ApiError::new(Reason::NoSuchRoute, message))
}

// Routes that take one method, and say so to whoever comes with another; the router adds the header Allow.

fn get<H: Handler<T, S>, T: 'static, S: Clone + Send + Sync + 'static>(handler: H) -> MethodRouter<S> {
    routing::get(handler).fallback(|method, request| method_not_allowed(method, request, "GET or HEAD"))
}

fn post<H: Handler<T, S>, T: 'static, S: Clone + Send + Sync + 'static>(handler: H) -> MethodRouter<S> {
    routing::post(handler).fallback(|method, request| method_not_allowed(method, request, "POST"))
}

fn delete<H: Handler<T, S>, T: 'static, S: Clone + Send + Sync + 'static>(handler: H) -> MethodRouter<S> {
    routing::delete(handler).fallback(|method, request| method_not_allowed(method, request, "DELETE"))
}

async fn method_not_allowed(method: Method, request: Request, allowed: &'static str) -> Response {
    let path = shown(request.uri().path());
    let message = format!("{path} does not take {method}; it takes {allowed}");
    body::drain(request.into_body()).await;
    error_response(&ApiError::new(Reason::MethodNotAllowed, message))
}

/// Answers whoever speaks gRPC, in gRPC, before any route sees the request.
async fn no_grpc(State(grpc_address): State<Arc<str>>, request: Request, next: Next) -> Response {
    if Dialect::of(request.headers()) == Dialect::Json {
        return next.run(request).await;
    }
    let message = format!("this port speaks HTTP/JSON only; gRPC is served at {grpc_address}");
    Dialect::Grpc.error(ApiError::new(Reason::NoSuchRoute, message).with("grpc_address", grpc_address))
}

/// Decodes a request, has it answered, and encodes the answer.
async fn call<Req, Res, Answer>(request: Request, answer: impl FnOnce(Req) -> Answer) -> Response
where
    Req: JsonRequest,
    Res: Serialize,
    Answer: Future<Output = Result<Res, ApiError>>,
{
    let (head, body) = request.into_parts();
    let decoded = async {
        let bytes = body::read(&head.headers, body).await?;
        query::none(&head.uri)?;
        let mut message: Req = json::parse(&bytes)?;
        take_idempotency_key(&head.headers, &mut message)?;
        Ok(message)
    };
    match decoded.await {
        Ok(message) => respond(answer(message).await),
        Err(error) => error_response(&error),
    }
}

/// Lets the header name the request where the body does not.
fn take_idempotency_key(headers: &HeaderMap, message: &mut impl JsonRequest) -> Result<(), ApiError> {
    match message.request_id() {
        Some(request_id) => name_by_header(headers, request_id),
        None => Ok(()),
    }
}

fn name_by_header(headers: &HeaderMap, request_id: &mut String) -> Result<(), ApiError> {
    const FIELD: &str = "request_id";
    let mut keys = headers.get_all(IDEMPOTENCY_KEY).iter();
    let Some(key) = keys.next() else { return Ok(()) };
    if keys.next().is_some() {
        return Err(ApiError::invalid(FIELD, "the header Idempotency-Key must be given once"));
    }
    let Ok(key) = std::str::from_utf8(key.as_bytes()) else {
        return Err(ApiError::invalid(FIELD, "the header Idempotency-Key must be UTF-8"));
    };
    if request_id.is_empty() {
        key.clone_into(request_id);
    } else if request_id.as_str() != key {
        let problem = "the body and the header Idempotency-Key differ: give one, or the same";
        return Err(ApiError::invalid(FIELD, problem));
    }
    Ok(())
}

/// The node's answer, as JSON.
fn respond<T: Serialize>(answer: Result<T, ApiError>) -> Response {
    match answer {
        Ok(message) => json_response(StatusCode::OK, &message),
        Err(error) => error_response(&error),
    }
}

/// The documented form of every HTTP error.
pub(super) fn error_response(error: &ApiError) -> Response {
    let status =
        StatusCode::from_u16(error.reason.http_status()).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let mut response = json_response(status, error);
    if let Some(retry_after_ms) = error.retry_after_ms {
        let seconds = retry_after_ms.div_ceil(1000).max(1);
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}

fn json_response(status: StatusCode, body: &impl Serialize) -> Response {
    match serde_json::to_vec(body) {
        Ok(mut bytes) => {
            // So that a terminal's prompt begins a line of its own.
            bytes.push(b'\n');
            let content_type = HeaderValue::from_static("application/json");
            (status, [(header::CONTENT_TYPE, content_type)], Body::from(bytes)).into_response()
        }
        // No message of the API has anything that JSON cannot say.
        Err(error) => {
            tracing::error!(%error, "an answer could not be encoded");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}
