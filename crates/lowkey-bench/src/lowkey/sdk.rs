//! A client of lowkey by way of the SDK: its session stream, its retries.

use std::time::Duration;

use futures::FutureExt as _;
use lowkey_client::{Client, Detached, ErrorKind, LockGuard, Reason, Session};

use super::from_sdk;
use crate::system::{BenchProblem, HeldLock, LockClient, SystemAnswer};

pub(super) struct SdkClient {
    client: Client,
    session: Session,
    guard: Option<LockGuard>,
    held: Vec<Detached>,
}

impl SdkClient {
    pub(super) async fn new(client: Client, ttl: Duration) -> Result<Self, BenchProblem> {
        let session = client.session(ttl).await.map_err(|error| judged(&error))?;
        Ok(Self { client, session, guard: None, held: Vec::new() })
    }
}

impl LockClient for SdkClient {
    fn acquire<'a>(&'a mut self, lock: &'a str, wait: Duration) -> SystemAnswer<'a, Option<u64>> {
        async move {
            let lock = self.session.lock(lock);
            let guard = if wait.is_zero() { lock.try_acquire().await } else { lock.wait(wait).await };
            let guard = guard.map_err(|error| judged(&error))?;
            let token = guard.token();
            self.guard = Some(guard);
            Ok(Some(token))
        }
        .boxed()
    }

    fn release(&mut self) -> SystemAnswer<'_, ()> {
        async move {
            match self.guard.take() {
                Some(guard) => guard.release().await.map_err(|error| judged(&error)),
                None => Ok(()),
            }
        }
        .boxed()
    }

    fn hold<'a>(&'a mut self, lock: &'a str, ttl: Duration) -> SystemAnswer<'a, HeldLock> {
        async move {
            let held = self.client.detached(lock, ttl).try_acquire().await.map_err(|error| judged(&error))?;
            self.held.push(held.clone());
            Ok(HeldLock { token: Some(held.token), lease: Some(held.lease_id) })
        }
        .boxed()
    }

    fn close(self: Box<Self>) -> SystemAnswer<'static, ()> {
        async move {
            for held in &self.held {
                // The lease that is left without a lock runs out by itself.
                let released = self.client.release_lock(held.name.clone(), held.lease_id, held.token).await;
                released.map_err(|error| judged(&error))?;
            }
            self.session.close().await.map_err(|error| judged(&error))
        }
        .boxed()
    }
}

/// Nobody else uses these locks, and their leases are far from their end: if one is said to be gone or somebody
/// else's, then what was acknowledged has been lost.
fn judged(error: &lowkey_client::Error) -> BenchProblem {
    let lost = matches!(error.kind(), ErrorKind::SessionLost(_))
        || error.reason().is_some_and(super::unary::means_loss)
        || error.reason() == Some(Reason::LockHeld);
    if lost { BenchProblem::wrong(error.to_string()) } else { from_sdk(error) }
}
