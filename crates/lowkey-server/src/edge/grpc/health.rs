//! The standard gRPC health service: it reports serving if, and only if, the node is ready.
//!
//! Each check asks the node itself, so an answer is never older than its question.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures::{Stream, StreamExt, stream};
use lowkey_api::v1::{election_service_server, lock_service_server};
use tokio::time::{Interval, MissedTickBehavior};
use tonic::{Request, Response, Status};
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::{HealthCheckRequest, HealthCheckResponse, health_server};

use crate::edge::{Node, stopped};

/// How often a watch checks whether something changed.
const WATCH_INTERVAL: Duration = Duration::from_millis(200);

pub(super) struct Health<N> {
    pub(super) node: Arc<N>,
}

/// The empty name means the whole node.
fn is_known(service: &str) -> bool {
    const SERVICES: [&str; 2] = [lock_service_server::SERVICE_NAME, election_service_server::SERVICE_NAME];
    service.is_empty() || SERVICES.contains(&service)
}

fn status_of<N: Node>(node: &N, service: &str) -> ServingStatus {
    if !is_known(service) {
        ServingStatus::ServiceUnknown
    } else if node.ready().is_ok() && !*node.stopping().borrow() {
        ServingStatus::Serving
    } else {
        ServingStatus::NotServing
    }
}

fn response(status: ServingStatus) -> HealthCheckResponse {
    HealthCheckResponse { status: status.into() }
}

#[tonic::async_trait]
impl<N: Node> health_server::Health for Health<N> {
    type WatchStream = Pin<Box<dyn Stream<Item = Result<HealthCheckResponse, Status>> + Send>>;

    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        let service = request.into_inner().service;
        match status_of(&*self.node, &service) {
            ServingStatus::ServiceUnknown => {
                Err(Status::not_found(format!("there is no service {service:?}")))
            }
            status => Ok(Response::new(response(status))),
        }
    }

    async fn watch(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<Self::WatchStream>, Status> {
        let watch = Watch::new(Arc::clone(&self.node), request.into_inner().service);
        let changes = stream::unfold(watch, |mut watch| async move {
            let status = watch.changed().await;
            Some((Ok(response(status)), watch))
        });
        Ok(Response::new(Box::pin(changes.take_until(stopped(self.node.stopping())))))
    }
}

/// One client's watch.
struct Watch<N> {
    node: Arc<N>,
    service: String,
    interval: Interval,
    told: Option<ServingStatus>,
}

impl<N: Node> Watch<N> {
    fn new(node: Arc<N>, service: String) -> Self {
        let mut interval = tokio::time::interval(WATCH_INTERVAL);
        interval.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self { node, service, interval, told: None }
    }

    /// The first status at once, then each that differs from the one before.
    async fn changed(&mut self) -> ServingStatus {
        loop {
            self.interval.tick().await;
            let status = status_of(&*self.node, &self.service);
            if self.told.replace(status) != Some(status) {
                return status;
            }
        }
    }
}
