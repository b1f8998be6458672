//! Clients that speak without encryption to a port with it, or the reverse: what they are told.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::future::{Ready, ready};
use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::response::Response;
use http::Request;
use hyper::body::Incoming;
use lowkey_api::{ApiError, Reason};
use tokio::time::Instant;
use tonic::codegen::Service;

use crate::edge::Dialect;

/// How often the same cause is logged.
const TOLD_INTERVAL: Duration = Duration::from_secs(60);

/// Answers every request that came without encryption.
#[derive(Clone)]
pub(super) struct SpeakTls {
    /// The address that the client connected to.
    pub(super) address: Option<SocketAddr>,
}

impl Service<Request<Incoming>> for SpeakTls {
    type Response = Response;
    type Error = Infallible;
    type Future = Ready<Result<Response, Infallible>>;

    fn poll_ready(&mut self, _cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Incoming>) -> Self::Future {
        let place = self.address.map_or_else(|| "HOST:PORT".to_owned(), |address| address.to_string());
        let message =
            format!("this port speaks TLS: use https://{place}, with the CA of its certificate (--ca)");
        let error = ApiError::new(Reason::TlsRequired, message);
        ready(Ok(Dialect::of(request.headers()).error(error)))
    }
}

/// What is logged about clients of a port, each cause once a minute.
#[derive(Default)]
pub(super) struct Complaints {
    told: Mutex<BTreeMap<&'static str, Instant>>,
}

impl Complaints {
    /// Logs that a client was not served.
    pub(super) fn tell(&self, client: SocketAddr, cause: &'static str) {
        let (mut told, now) = (self.told.lock().unwrap_or_else(PoisonError::into_inner), Instant::now());
        if told.get(cause).is_some_and(|at| now - *at < TOLD_INTERVAL) {
            return;
        }
        told.insert(cause, now);
        tracing::warn!(%client, "a client was not served: {cause} (told once a minute)");
    }
}
