//! Locks that outlive the process that took them: for scripts, which are many short processes.
//!
//! Nothing is renewed here, and nothing ends with the client. Whoever has the numbers of a [`Detached`] grant
//! renews it and gives it back, from wherever they like; otherwise the lease ends by itself.

use std::sync::Arc;
use std::time::Duration;

use lowkey_api::v1::session_answer::Answer;
use lowkey_api::v1::session_call::Call;
use lowkey_api::v1::{AcquireLockRequest, HeartbeatResponse, ReleaseLockRequest, RenewLeases};
use lowkey_api::{ApiError, Reason};
use tokio::time::{Instant, sleep_until};

use crate::client::{Client, Inner, whole_seconds};
use crate::error::Error;
use crate::link::deadline_in;
use crate::random::{self, Backoff};
use crate::wish::{WAIT_MAX, Wish, is_over, wish_methods};

/// A lock to be acquired with a lease of its own that nobody renews. Made by [`Client::detached`].
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
    wish: Wish,
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
    /// How long it was waited for, as the service tells.
    pub waited: Duration,
}

impl Client {
    /// A lock that is to be held by a lease of its own, which is neither renewed nor ended by this client.
    pub fn detached(&self, name: impl Into<String>, ttl: Duration) -> DetachedLock {
        DetachedLock { client: self.clone(), wish: Wish::new(name.into()), ttl }
    }

    /// Starts the time of a lease anew, once; gives its time to live. A [`crate::Session`] does so by itself.
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
                // What a node said says more than that there was no time for it to say so again.
                Err(error) if error.is_retryable() => return Err(refused.unwrap_or(error)),
                Err(error) => return Err(error),
            };
            // Each lease of a renewal is refused by itself, and so the link does not ask again.
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

    /// Acquires it, however long that takes. Dropping the future gives up the place in line.
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
        let request = AcquireLockRequest { ttl_seconds, ..self.wish.request(&inner.owner, wait) };
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

/// An acquire whose outcome is not known: if nobody waits for it any more, whatever it led to is given back.
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
