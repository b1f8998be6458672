//! Locks that outlive the process that acquired them: for scripts, which are many short processes.
//!
//! Nothing is renewed here, and nothing ends with the client. Any process that has the numbers of a
//! [`Detached`] grant can renew and release it, from anywhere. Otherwise the lease expires by itself.

use std::sync::Arc;
use std::time::Duration;

use lowkey_api::limits::WAIT_MAX;
use lowkey_api::v1::session_answer::Answer;
use lowkey_api::v1::session_call::Call;
use lowkey_api::v1::{AcquireLockRequest, HeartbeatResponse, ReleaseLockRequest, RenewLeases};
use lowkey_api::{ApiError, Reason};
use lowkey_token::{Fence, Mode, Token};
use tokio::time::{Instant, sleep_until};

use crate::client::{Client, Inner, whole_seconds};
use crate::error::Error;
use crate::grant::fence_mode;
use crate::link::deadline_in;
use crate::random::{self, Backoff};
use crate::wish::{LockWish, is_over, wish_methods};

/// A lock to acquire with a lease of its own that is not renewed. Made by [`Client::detached`].
///
/// ```no_run
/// # async fn example(client: lowkey_client::Client) -> Result<(), lowkey_client::Error> {
/// use std::time::Duration;
///
/// let grant = client.detached("deploy", Duration::from_secs(60)).try_acquire().await?;
/// println!("lease {} token {}", grant.lease_id, grant.token);
/// // Later, perhaps in another process:
/// client.renew_lease(grant.lease_id).await?;
/// client.release_lock("deploy", grant.lease_id, grant.token).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "nothing is acquired before acquire(), try_acquire() or wait() is awaited"]
pub struct DetachedLock {
    client: Client,
    wish: LockWish,
    ttl: Duration,
}

/// What was granted, and to which lease.
///
/// ```no_run
/// # async fn example(client: lowkey_client::Client) -> Result<(), lowkey_client::Error> {
/// use std::time::Duration;
///
/// let grant = client.detached("deploy", Duration::from_secs(60)).acquire().await?;
/// println!("{} {} {}", grant.name, grant.lease_id, grant.token);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Detached {
    /// The lock.
    pub name: String,
    /// The lease that holds it.
    pub lease_id: u64,
    /// The fencing token of the grant.
    pub token: u64,
    /// How long the lease lives without renewal.
    pub ttl: Duration,
    /// The revision at which it was granted.
    pub revision: u64,
    /// How long it was waited for, as the service reports it.
    pub waited: Duration,
    /// How it is held.
    pub mode: Mode,
}

impl Detached {
    /// What a resource checks before it takes a write; see [`crate::LockGuard::fence`].
    pub fn fence(&self) -> Fence {
        Fence::new(&self.name, Token(self.token), self.mode)
    }
}

impl Client {
    /// A lock held by a lease of its own, which this client neither renews nor ends.
    pub fn detached(&self, name: impl Into<String>, ttl: Duration) -> DetachedLock {
        DetachedLock { client: self.clone(), wish: LockWish::new(name.into()), ttl }
    }

    /// Renews a lease once, and returns its time to live. A [`crate::Session`] does so automatically.
    pub async fn renew_lease(&self, lease_id: u64) -> Result<Duration, Error> {
        let deadline = deadline_in(self.inner.call_timeout);
        let (mut backoff, mut refused) = (Backoff::new(), None);
        loop {
            let error = match self.renew_once(lease_id, deadline).await {
                Ok(renewal) if renewal.error_reason.is_empty() => {
                    return Ok(Duration::from_secs(renewal.ttl_seconds.unsigned_abs()));
                }
                Ok(renewal) => {
                    let reason = Reason::parse(&renewal.error_reason).unwrap_or(Reason::Internal);
                    Error::from(ApiError::new(reason, renewal.error_message))
                }
                // A node's own error says more than the fact that there was no time to ask again.
                Err(error) if error.is_retryable() => return Err(refused.unwrap_or(error)),
                Err(error) => return Err(error),
            };
            // Each lease of a renewal is refused separately, so the link does not retry.
            let again_at = Instant::now() + backoff.pause();
            if !error.is_retryable() || again_at >= deadline {
                return Err(error);
            }
            refused = Some(error);
            sleep_until(again_at).await;
        }
    }

    async fn renew_once(&self, lease_id: u64, deadline: Instant) -> Result<HeartbeatResponse, Error> {
        let call = Call::RenewLeases(RenewLeases { lease_ids: vec![lease_id], holds: Vec::new() });
        let time = deadline.saturating_duration_since(Instant::now());
        let Answer::RenewLeases(answer) = self.inner.link.call(call, time).await? else {
            return Err(Error::unavailable("an answer to another question", true));
        };
        let renewal = answer.renewals.into_iter().next();
        renewal.ok_or_else(|| Error::unavailable("an answer without a renewal", true))
    }
}

impl DetachedLock {
    wish_methods!();

    /// Acquires the lock, and waits as long as needed. Dropping the future gives up the place in the queue.
    pub async fn acquire(&self) -> Result<Detached, Error> {
        loop {
            let waited = self.wait(WAIT_MAX).await;
            if !is_over(&waited) {
                return waited;
            }
        }
    }

    /// Acquires it if it is free now.
    pub async fn try_acquire(&self) -> Result<Detached, Error> {
        self.ask(Duration::ZERO).await
    }

    /// Acquires it within this time.
    pub async fn wait(&self, time: Duration) -> Result<Detached, Error> {
        self.ask(time.clamp(Duration::from_millis(1), WAIT_MAX)).await
    }

    async fn ask(&self, wait: Duration) -> Result<Detached, Error> {
        let inner = &self.client.inner;
        let ttl_seconds = whole_seconds(self.ttl)?;
        let request = AcquireLockRequest { ttl_seconds, ..self.wish.request(&inner.owner, wait)? };
        let mut asked = Asked { inner, name: &self.wish.name, request_id: Some(request.request_id.clone()) };
        match inner.link.call(Call::AcquireLock(request), inner.call_timeout.saturating_add(wait)).await {
            Ok(Answer::AcquireLock(granted)) => {
                asked.request_id = None;
                Ok(Detached {
                    name: self.wish.name.clone(),
                    lease_id: granted.lease_id,
                    token: granted.fencing_token,
                    ttl: Duration::from_secs(granted.lease_ttl_seconds.unsigned_abs()),
                    revision: granted.revision,
                    waited: Duration::from_millis(granted.waited_ms.unsigned_abs()),
                    mode: fence_mode(self.wish.mode),
                })
            }
            Ok(_) => Err(Error::unavailable("an answer to another question", true)),
            Err(error) => {
                if !error.may_have_been_done() {
                    asked.request_id = None;
                }
                Err(error)
            }
        }
    }
}

/// An acquire whose outcome is not known. If its caller goes away, the grant that it may have led to is
/// released.
struct Asked<'a> {
    inner: &'a Arc<Inner>,
    name: &'a str,
    request_id: Option<String>,
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        if let Some(acquire_request_id) = self.request_id.take() {
            let release = ReleaseLockRequest {
                lock_name: self.name.to_owned(),
                owner_id: self.inner.owner.clone(),
                acquire_request_id,
                request_id: random::request_id(),
                ..ReleaseLockRequest::default()
            };
            self.inner.link.tell(Call::ReleaseLock(release), ());
        }
    }
}
