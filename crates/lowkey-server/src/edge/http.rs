//! The HTTP port: the calls of the gRPC API as JSON, for `curl` and for languages without gRPC.
//!
//! A body is read as JSON no matter what its content type says, so that a plain `curl -d` works. But a web
//! page must declare the JSON content type, and most web pages are refused (`gate`). A body with an unknown
//! field, or with a field that occurs twice, is refused (`strict`). Errors have one form on every path,
//! including unknown paths. A gRPC stream becomes server-sent events.

pub(super) mod body;
mod events;
mod gate;
mod given;
mod json;
mod openapi;
mod query;
mod routes;
mod strict;
mod ui;

use std::collections::BTreeMap;
use std::sync::Arc;

use ::http::{HeaderValue, Method, StatusCode, header};
use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::handler::Handler;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{self, MethodRouter};
use lowkey_api::{ApiError, Reason};
use serde::Serialize;

pub use self::gate::{Gate, HttpHost, HttpOrigin};
use super::{Dialect, Node, Shown, envelope, shown};
use crate::access::MetricsRead;

/// The routes of the HTTP port, behind their [`Gate`]. `grpc_address` is where this node serves gRPC. A
/// client that comes here with gRPC is told that address.
pub fn router<N: Node>(node: Arc<N>, grpc_address: impl Into<Arc<str>>, gate: Gate) -> Router {
    let grpc_address: Arc<str> = grpc_address.into();
    let welcome = welcome(&grpc_address);
    routes::routes()
        .merge(ui::routes())
        .route("/", get(async move || json_response(StatusCode::OK, &welcome)))
        .route("/openapi.json", get(async || json_bytes(StatusCode::OK, openapi::bytes())))
        .route("/v1/watch", get(watch::<N>))
        .route("/v1/election/observe", get(observe::<N>))
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(readyz::<N>))
        .route("/metrics", get(metrics::<N>))
        .fallback(no_such_route)
        .layer(middleware::from_fn_with_state((Arc::new(gate), Arc::clone(&node)), gate::gate::<N>))
        .layer(middleware::from_fn_with_state(grpc_address, no_grpc))
        .layer(middleware::from_fn_with_state(Arc::clone(&node), envelope::<N>))
        .with_state(node)
}

/// What a person sees who opens the port with a browser or with `curl`.
fn welcome(grpc_address: &str) -> serde_json::Value {
    serde_json::json!({
        "service": "lowkey",
        "version": env!("CARGO_PKG_VERSION"),
        "about": "a distributed lock and leader-election service",
        "grpc": grpc_address,
        "links": {
            "dashboard": "/ui/",
            "status": "/v1/status",
            "locks": "/v1/locks",
            "alive": "/healthz",
            "ready": "/readyz",
            "metrics": "/metrics",
            "openapi": "/openapi.json",
        },
        "example": "curl -d '{\"lockName\":\"jobs/nightly\",\"ownerId\":\"worker-1\",\"ttlSeconds\":30}' \
                    http://HOST:PORT/v1/lock/acquire",
        "calls": routes::all().collect::<BTreeMap<_, _>>(),
        // Answered with server-sent events, for as long as the client listens.
        "streams": {
            "GET /v1/watch": "prefix=PREFIX",
            "GET /v1/election/observe": "election=NAME",
        },
        "documentation": "`lowkey --help` for the commands; /openapi.json for every call, and docs/reference/api.md in \
                          lowkey's sources; the gRPC port offers reflection",
    })
}

async fn watch<N: Node>(State(node): State<Arc<N>>, request: Request) -> Response {
    let shown = Shown::of(request.extensions());
    let asked = query::watch(request.uri(), request.headers());
    let answer = match asked.and_then(|watch| node.guard().permit(&shown, watch)) {
        Ok(watch) => node.watch(watch).await,
        Err(error) => Err(error),
    };
    events::respond(answer)
}

async fn observe<N: Node>(State(node): State<Arc<N>>, request: Request) -> Response {
    let shown = Shown::of(request.extensions());
    let asked = query::observe(request.uri());
    let answer = match asked.and_then(|observe| node.guard().permit(&shown, observe)) {
        Ok(observe) => node.observe(observe).await,
        Err(error) => Err(error),
    };
    events::respond(answer)
}

async fn readyz<N: Node>(State(node): State<Arc<N>>) -> Response {
    match node.ready() {
        // The node does serve: leases, reads, and nodes that join. A caller that waits for readiness must
        // not wait for locks.
        Ok(()) => match node.get_status().recovering_seconds {
            0 => "ok\n".into_response(),
            left => format!("ok\nrecovering: no lock is granted for {left} s at most\n").into_response(),
        },
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("not ready: {why}\n")).into_response(),
    }
}

async fn metrics<N: Node>(State(node): State<Arc<N>>, request: Request) -> Response {
    let (guard, shown) = (node.guard(), Shown::of(request.extensions()));
    if !guard.metrics_are_open()
        && let Err(error) = guard.permit(&shown, MetricsRead)
    {
        return error_response(&error);
    }
    ([(header::CONTENT_TYPE, crate::METRICS_CONTENT_TYPE)], node.metrics()).into_response()
}

async fn no_such_route(request: Request) -> Response {
    let path = request.uri().path();
    let there_is_none = format!("there is no {}", shown(path));
    let error = match routes::nearest(path).map(|nearest| shown(&nearest)) {
        Some(nearest) => {
            ApiError::new(Reason::NoSuchRoute, format!("{there_is_none}; did you mean {nearest}?"))
                .with("nearest", nearest)
        }
        None => ApiError::new(Reason::NoSuchRoute, format!("{there_is_none}; GET / says where to look")),
    };
    body::drain(request.into_body()).await;
    error_response(&error)
}

fn get<H: Handler<T, S>, T: 'static, S: Clone + Send + Sync + 'static>(handler: H) -> MethodRouter<S> {
    taking("GET or HEAD", routing::get(handler))
}

/// Tells a client that uses another method which ones a route takes. The router adds the header Allow.
fn taking<S: Clone + Send + Sync + 'static>(
    allowed: &'static str,
    routes: MethodRouter<S>,
) -> MethodRouter<S> {
    routes.fallback(move |method, request| method_not_allowed(method, request, allowed))
}

async fn method_not_allowed(method: Method, request: Request, allowed: &'static str) -> Response {
    let path = shown(request.uri().path());
    let message = format!("{path} does not take {method}; it takes {allowed}");
    body::drain(request.into_body()).await;
    error_response(&ApiError::new(Reason::MethodNotAllowed, message))
}

/// Answers clients that speak gRPC, in gRPC, before any route sees the request.
async fn no_grpc(State(grpc_address): State<Arc<str>>, request: Request, next: Next) -> Response {
    if Dialect::of(request.headers()) == Dialect::Json {
        return next.run(request).await;
    }
    let message = format!("this port speaks HTTP/JSON only; gRPC is served at {grpc_address}");
    Dialect::Grpc.error(ApiError::new(Reason::NoSuchRoute, message).with("grpc_address", grpc_address))
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
    if error.reason == Reason::Unauthenticated {
        response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
    }
    if let Some(retry_after_ms) = error.retry_after_ms {
        let seconds = retry_after_ms.div_ceil(1000).max(1);
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(seconds));
    }
    response
}

fn json_response(status: StatusCode, body: &impl Serialize) -> Response {
    match serde_json::to_vec(body) {
        Ok(mut bytes) => {
            // So that a terminal's prompt begins on a new line.
            bytes.push(b'\n');
            json_bytes(status, bytes)
        }
        // Every message of the API can be expressed in JSON, so this does not happen.
        Err(error) => {
            tracing::error!(%error, "an answer could not be encoded");
            StatusCode::INTERNAL_SERVER_ERROR.into_response()
        }
    }
}

fn json_bytes(status: StatusCode, bytes: impl Into<Body>) -> Response {
    let content_type = HeaderValue::from_static("application/json");
    (status, [(header::CONTENT_TYPE, content_type)], bytes.into()).into_response()
}
