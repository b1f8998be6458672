//! Whether a node lives, and whether it is ready: for probes.
//!
//! Every node tells this to anybody, also where access is required, and also while it waits for the others to found a
//! cluster with. So a probe asks the node itself, and never by way of the leader.

use lowkey_api::v1::access_service_client::AccessServiceClient;
use lowkey_api::v1::lock_service_client::LockServiceClient;
use lowkey_api::v1::{GetStatusRequest, GetStatusResponse, WhoAmIRequest};
use lowkey_api::{ApiError, Reason};
use tokio::time::{Instant, sleep_until, timeout, timeout_at};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;

use crate::client::ClientBuilder;
use crate::error::{Error, ErrorKind};
use crate::link::{CONNECT_TIME, deadline_in, no_status, wrong_port};
use crate::random::Backoff;
use crate::token_file::TokenFile;
use crate::wire::{Dialer, Wire};

/// What a node says of itself to anybody who asks. Made by [`ClientBuilder::health`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct NodeHealth {
    /// The endpoint that answered.
    pub endpoint: String,
    /// Whether the node serves: it leads, or knows the leader.
    pub is_ready: bool,
    /// Why it is not ready, if it says so.
    pub problem: Option<String>,
    /// Its status, if this client may have it.
    pub status: Option<GetStatusResponse>,
}

impl ClientBuilder {
    /// Asks the nodes for their health, one after the other, instead of connecting to a cluster. The answer is that
    /// of the first node that is ready, or else of the first that answers at all. Fails if none answers in time.
    ///
    /// This needs no token. Where nodes demand client certificates, it needs one.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), lowkey_client::Error> {
    /// let health = lowkey_client::Client::builder(["http://127.0.0.1:9000"]).health().await?;
    /// println!("alive, and {}", if health.is_ready { "ready" } else { "not ready" });
    /// # Ok(())
    /// # }
    /// ```
    pub async fn health(self) -> Result<NodeHealth, Error> {
        let (endpoints, tls, token_file, time) = self.into_probe();
        if endpoints.is_empty() {
            return Err(Error::invalid("no endpoint was given: one such as http://127.0.0.1:9000 is needed"));
        }
        let dialer = Dialer::new(tls, None);
        dialer.check_all(&endpoints).await?;
        // The token is for the node's name and its leader only. A probe must not fail by it.
        let token = token_file.and_then(|file| TokenFile::read(file).ok());
        let asking = Asking { with_token: dialer.with_token(token), dialer };
        asking.until(&endpoints, deadline_in(time)).await
    }
}

struct Asking {
    dialer: Dialer,
    with_token: Dialer,
}

impl Asking {
    async fn until(&self, endpoints: &[String], deadline: Instant) -> Result<NodeHealth, Error> {
        let (mut backoff, mut problem) = (Backoff::new(), None);
        loop {
            match timeout_at(deadline, self.all(endpoints)).await {
                Ok(Ok(health)) => return Ok(health),
                // Waiting does not change a wrong port, nor a certificate.
                Ok(Err(error)) if matches!(error.kind(), ErrorKind::Invalid(_)) => return Err(error),
                Ok(Err(error)) => problem = Some(error),
                Err(_) => {}
            }
            let next = Instant::now() + backoff.pause();
            if next >= deadline {
                return Err(problem.unwrap_or_else(|| Error::unavailable("no node answers", false)));
            }
            sleep_until(next).await;
        }
    }

    /// Asks each once, until one is ready.
    async fn all(&self, endpoints: &[String]) -> Result<NodeHealth, Error> {
        let (mut alive, mut problem) = (None, None);
        for endpoint in endpoints {
            match self.one(endpoint).await {
                Ok(health) if health.is_ready => return Ok(health),
                Ok(health) => drop(alive.get_or_insert(health)),
                Err(error) => drop(problem.get_or_insert(error)),
            }
        }
        alive.ok_or_else(|| problem.unwrap_or_else(|| Error::unavailable("no node answers", false)))
    }

    async fn one(&self, endpoint: &String) -> Result<NodeHealth, Error> {
        // A token is not sent to everywhere.
        let dialer = if self.with_token.check(endpoint).is_ok() { &self.with_token } else { &self.dialer };
        let wire = dialer.connect(endpoint).await?;
        let mut client = HealthClient::new(wire.clone());
        let (is_ready, problem) = match in_time(client.check(HealthCheckRequest::default())).await {
            Some(Ok(answer)) => (answer.into_inner().status() == ServingStatus::Serving, None),
            // Every answer of a node shows that it lives.
            Some(Err(status)) => match ApiError::from_status(&status) {
                Some(error) if !matches!(error.reason, Reason::NoSuchRoute | Reason::TlsRequired) => {
                    (false, Some(error.message))
                }
                _ => {
                    let error = no_status(dialer, endpoint, &status);
                    return Err(wrong_port(&error).map(Error::invalid).unwrap_or(error));
                }
            },
            None => return Err(Error::unavailable(format!("{endpoint} does not answer"), false)),
        };
        let status = if problem.is_none() { status_of(wire).await } else { None };
        Ok(NodeHealth { endpoint: endpoint.clone(), is_ready, problem, status })
    }
}

/// The status, if this client may have it. Who may not does not ask: the node would count and log a refusal.
async fn status_of(wire: Wire) -> Option<GetStatusResponse> {
    let mut client = AccessServiceClient::new(wire.clone());
    let who = in_time(client.who_am_i(WhoAmIRequest {})).await?;
    if who.is_ok_and(|who| who.get_ref().required && who.get_ref().principal.is_empty()) {
        return None;
    }
    let mut client = LockServiceClient::new(wire);
    let status = in_time(client.get_status(GetStatusRequest {})).await?;
    status.ok().map(tonic::Response::into_inner)
}

/// The answer to a call, unless the node is silent.
async fn in_time<T>(call: impl Future<Output = T>) -> Option<T> {
    timeout(CONNECT_TIME, call).await.ok()
}
