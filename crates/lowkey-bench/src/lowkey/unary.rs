//! A client of lowkey by single gRPC calls, as one writes it without the SDK: each call has a request id, and is made
//! again at another node when there was no answer.

use std::time::Duration;

use futures::FutureExt as _;
use lowkey_api::v1::{
    AcquireLockRequest, AcquireLockResponse, CreateLeaseRequest, CreateLeaseResponse, ReleaseLockRequest,
    ReleaseLockResponse, RevokeLeaseRequest, RevokeLeaseResponse,
};
use lowkey_api::{ApiError, Reason};
use prost::Message;
use tokio::time::{Instant, sleep, timeout};
use tonic::Status;

use super::PATIENCE;
use crate::caller::UnaryCaller;
use crate::system::{BenchProblem, HeldLock, LockClient, SystemAnswer};

/// How long to wait before a call is made again.
const AGAIN: Duration = Duration::from_millis(20);

pub(super) struct UnaryClient {
    calls: Calls,
    owner: String,
    /// Its own, then those that it made in order to hold something.
    leases: Vec<u64>,
    held: Option<(String, u64)>,
    made: u64,
}

/// Makes calls at one node until it does not answer, then at the next.
struct Calls {
    nodes: Vec<UnaryCaller>,
    at: usize,
}

const CREATE_LEASE: &str = "/lowkey.v1.LockService/CreateLease";
const REVOKE_LEASE: &str = "/lowkey.v1.LockService/RevokeLease";
const ACQUIRE_LOCK: &str = "/lowkey.v1.LockService/AcquireLock";
const RELEASE_LOCK: &str = "/lowkey.v1.LockService/ReleaseLock";

impl Calls {
    async fn call<A>(
        &mut self,
        path: &'static str,
        request: impl Message,
        wait: Duration,
    ) -> Result<A, BenchProblem>
    where
        A: Message + Default,
    {
        let deadline = Instant::now() + PATIENCE + wait;
        loop {
            let status = match timeout(PATIENCE + wait, self.nodes[self.at].call(path, &request)).await {
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(status)) => status,
                Err(_) => Status::unavailable("no answer in time"),
            };
            let error = ApiError::from_status(&status);
            // What is not a refusal of the service is a trouble of the connection.
            let is_retryable = error.as_ref().is_none_or(ApiError::is_retryable);
            if !is_retryable || Instant::now() >= deadline {
                return Err(judged(error.as_ref(), &status));
            }
            self.at = (self.at + 1) % self.nodes.len();
            sleep(AGAIN).await;
        }
    }
}

impl UnaryClient {
    pub(super) async fn new(
        nodes: Vec<UnaryCaller>,
        owner: String,
        ttl: Duration,
    ) -> Result<Self, BenchProblem> {
        let mut client =
            Self { calls: Calls { nodes, at: 0 }, owner, leases: Vec::new(), held: None, made: 0 };
        let request = CreateLeaseRequest {
            owner_id: client.owner.clone(),
            ttl_seconds: seconds(ttl),
            request_id: client.request_id(),
        };
        let made: CreateLeaseResponse = client.calls.call(CREATE_LEASE, request, Duration::ZERO).await?;
        client.leases.push(made.lease_id);
        Ok(client)
    }

    fn request_id(&mut self) -> String {
        self.made += 1;
        format!("{}-{}", self.owner, self.made)
    }
}

impl LockClient for UnaryClient {
    fn acquire<'a>(&'a mut self, lock: &'a str, wait: Duration) -> SystemAnswer<'a, Option<u64>> {
        async move {
            let request = AcquireLockRequest {
                lock_name: lock.to_owned(),
                owner_id: self.owner.clone(),
                lease_id: self.leases[0],
                wait_ms: i64::try_from(wait.as_millis()).unwrap_or(i64::MAX),
                request_id: self.request_id(),
                ..AcquireLockRequest::default()
            };
            let granted: AcquireLockResponse = self.calls.call(ACQUIRE_LOCK, request, wait).await?;
            self.held = Some((lock.to_owned(), granted.fencing_token));
            Ok(Some(granted.fencing_token))
        }
        .boxed()
    }

    fn release(&mut self) -> SystemAnswer<'_, ()> {
        async move {
            let Some((lock_name, fencing_token)) = self.held.take() else { return Ok(()) };
            let request = ReleaseLockRequest {
                lock_name,
                lease_id: self.leases[0],
                fencing_token,
                request_id: self.request_id(),
                ..ReleaseLockRequest::default()
            };
            let _: ReleaseLockResponse = self.calls.call(RELEASE_LOCK, request, Duration::ZERO).await?;
            Ok(())
        }
        .boxed()
    }

    fn hold<'a>(&'a mut self, lock: &'a str, ttl: Duration) -> SystemAnswer<'a, HeldLock> {
        async move {
            let request = AcquireLockRequest {
                lock_name: lock.to_owned(),
                owner_id: self.owner.clone(),
                ttl_seconds: seconds(ttl),
                request_id: self.request_id(),
                ..AcquireLockRequest::default()
            };
            let granted: AcquireLockResponse = self.calls.call(ACQUIRE_LOCK, request, Duration::ZERO).await?;
            self.leases.push(granted.lease_id);
            Ok(HeldLock { token: Some(granted.fencing_token), lease: Some(granted.lease_id) })
        }
        .boxed()
    }

    fn close(mut self: Box<Self>) -> SystemAnswer<'static, ()> {
        async move {
            for lease_id in std::mem::take(&mut self.leases) {
                let (owner_id, request_id) = (self.owner.clone(), self.request_id());
                let request =
                    RevokeLeaseRequest { lease_id, owner_id, request_id, ..RevokeLeaseRequest::default() };
                let _: RevokeLeaseResponse = self.calls.call(REVOKE_LEASE, request, Duration::ZERO).await?;
            }
            Ok(())
        }
        .boxed()
    }
}

/// Nobody else uses these locks, and their leases are far from their end: if one is said to be gone, then what was
/// acknowledged has been lost.
fn judged(error: Option<&ApiError>, status: &Status) -> BenchProblem {
    match error {
        Some(error) if means_loss(error.reason) || error.reason == Reason::LockHeld => {
            BenchProblem::wrong(format!("lowkey: {}", error.message))
        }
        _ => BenchProblem::failed(format!("lowkey: {}", status.message())),
    }
}

pub(super) fn means_loss(reason: Reason) -> bool {
    matches!(
        reason,
        Reason::LeaseNotFound
            | Reason::LockNotFound
            | Reason::NotOwner
            | Reason::StaleToken
            | Reason::AlreadyHeld
    )
}

fn seconds(ttl: Duration) -> i64 {
    i64::try_from(ttl.as_secs()).unwrap_or(i64::MAX)
}

/// Something that nobody else is called.
pub(crate) fn tag() -> String {
    let mut bytes = [0; 8];
    // Without chance there is still the process: good enough for a name.
    if getrandom::fill(&mut bytes).is_err() {
        bytes = u64::from(std::process::id()).to_le_bytes();
    }
    format!("{:016x}", u64::from_le_bytes(bytes))
}
