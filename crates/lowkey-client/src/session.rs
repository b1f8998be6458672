//! Sessions: a client's presence, renewed automatically.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lowkey_api::v1::RevokeLeaseRequest;
use lowkey_api::v1::session_call::Call;
use tokio::sync::watch;

use crate::client::Inner;
use crate::election::Election;
use crate::error::{Error, ErrorKind};
use crate::keeper::Presence;
use crate::lock::Lock;
use crate::lock_all::LockAll;
use crate::random;

/// How a session stands, by this client's own clock.
///
/// ```no_run
/// # fn example(session: lowkey_client::Session) {
/// use lowkey_client::SessionStatus;
///
/// match session.status() {
///     SessionStatus::Held => println!("all is well"),
///     SessionStatus::InJeopardy => println!("to be lost in {:?}", session.remaining()),
///     SessionStatus::Lost(cause) => println!("lost: {cause}"),
/// }
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionStatus {
    /// All is well.
    Held,
    /// Renewals are not being acknowledged. If that goes on, the session will be lost.
    InJeopardy,
    /// The session is over. Nothing that it held is held any more.
    Lost(LossCause),
}

/// Why a session or a lock was lost.
///
/// ```
/// use lowkey_client::LossCause;
///
/// assert_eq!(LossCause::Expired.to_string(), "no renewal was acknowledged in time");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LossCause {
    /// No renewal was acknowledged in time, by this client's own clock.
    Expired,
    /// The service said that the lease is gone: it expired there, or was revoked.
    Gone,
    /// This client closed it.
    Closed,
    /// Only for a lock whose session goes on: another client released it.
    ReleasedElsewhere,
    /// Only for a lock whose session goes on: it was held for as long as [`Lock::at_most`] allows.
    HeldTooLong,
}

impl fmt::Display for LossCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Expired => "no renewal was acknowledged in time",
            Self::Gone => "the lease is gone: it ran out, or was revoked",
            Self::Closed => "it was closed",
            Self::ReleasedElsewhere => "somebody else released it",
            Self::HeldTooLong => "it was held for as long as it may be",
        })
    }
}

/// A client's presence: a lease that is renewed automatically until the session is closed or dropped.
///
/// Locks and elections depend on it, and end with it. Clones share it.
///
/// ```no_run
/// # async fn example() -> Result<(), lowkey_client::Error> {
/// use std::time::Duration;
///
/// let client = lowkey_client::Client::connect(["http://127.0.0.1:9000"]).await?;
/// let session = client.session(Duration::from_secs(10)).await?;
/// let guard = session.lock("billing/job").acquire().await?;
/// println!("holding it with token {}", guard.token());
/// guard.release().await?;
/// session.close().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Session {
    pub(crate) shared: Arc<Shared>,
}

pub(crate) struct Shared {
    pub(crate) client: Arc<Inner>,
    pub(crate) presence: Arc<Presence>,
    /// The end was told to the service, or there is nothing to tell.
    has_ended: AtomicBool,
}

impl Shared {
    /// R9: belief ends. Returns the revocation to send then: `None` if the lease is gone, or was ended
    /// before.
    ///
    /// An expired session is revoked too. Belief is over, but the service may not have noticed, and until
    /// it does the locks are free for no one.
    pub(crate) fn end(&self) -> Option<Call> {
        let is_gone = self.presence.status() == SessionStatus::Lost(LossCause::Gone);
        self.presence.lose(LossCause::Closed);
        self.client.keeper.forget(self.presence.lease_id);
        let is_told = self.has_ended.swap(true, Ordering::AcqRel) || is_gone;
        (!is_told).then(|| revocation(self.presence.lease_id, self.client.owner.clone()))
    }
}

impl Session {
    pub(crate) fn new(client: Arc<Inner>, presence: Arc<Presence>) -> Self {
        client.keeper.keep(Arc::clone(&presence));
        let shared = Arc::new(Shared { client, presence, has_ended: AtomicBool::new(false) });
        shared.client.register(&shared);
        Self { shared }
    }

    /// The lease's number.
    pub fn lease_id(&self) -> u64 {
        self.shared.presence.lease_id
    }

    /// How long the lease lives without renewal.
    pub fn ttl(&self) -> Duration {
        Duration::from_secs(self.shared.presence.ttl_seconds.unsigned_abs())
    }

    /// The status now. Reads the clock, so that a process that was paused knows at once.
    pub fn status(&self) -> SessionStatus {
        self.shared.presence.status()
    }

    /// The status, as a cell that can be watched.
    ///
    /// ```no_run
    /// # async fn example(session: lowkey_client::Session) {
    /// let mut status = session.watch_status();
    /// while status.changed().await.is_ok() {
    ///     println!("{:?}", *status.borrow());
    /// }
    /// # }
    /// ```
    pub fn watch_status(&self) -> watch::Receiver<SessionStatus> {
        self.shared.presence.watch()
    }

    /// How long the session is valid if no further renewal is acknowledged.
    pub fn remaining(&self) -> Duration {
        self.shared.presence.remaining()
    }

    /// Resolves when the session is lost, with the cause.
    ///
    /// ```no_run
    /// # async fn example(session: lowkey_client::Session) {
    /// println!("stop everything: {}", session.lost().await);
    /// # }
    /// ```
    pub async fn lost(&self) -> LossCause {
        lost(&self.shared.presence).await
    }

    /// A lock of this session, not yet acquired.
    pub fn lock(&self, name: impl Into<String>) -> Lock {
        Lock::new(self.clone(), name.into())
    }

    /// Several locks of this session, to be acquired together and without deadlocks.
    pub fn lock_all<N: Into<String>>(&self, names: impl IntoIterator<Item = N>) -> LockAll {
        LockAll::new(self.clone(), names.into_iter().map(Into::into).collect())
    }

    /// An election of this session, to stand for.
    pub fn election(&self, name: impl Into<String>) -> Election {
        Election::new(self.clone(), name.into())
    }

    /// Ends the session: everything that it holds is released.
    ///
    /// Belief ends first (R9): from the moment of this call no guard of the session holds anything. If no
    /// node answers in time, or this future is dropped, the client keeps trying in the background.
    ///
    /// A session that has expired by this client's clock is revoked too: the service may not have noticed
    /// yet.
    pub async fn close(self) -> Result<(), Error> {
        let Some(revoke) = self.shared.end() else { return Ok(()) };
        let client = &self.shared.client;
        match client.link.see_through(revoke, client.call_timeout, ()).await {
            Ok(_) => Ok(()),
            Err(error) if error.reason() == Some(lowkey_api::Reason::LeaseNotFound) => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// An error if the session is lost.
    pub(crate) fn check(&self) -> Result<(), Error> {
        match self.status() {
            SessionStatus::Lost(cause) => Err(Error::new(ErrorKind::SessionLost(cause))),
            SessionStatus::Held | SessionStatus::InJeopardy => Ok(()),
        }
    }
}

/// Resolves when a lease is lost, with the cause.
pub(crate) async fn lost(presence: &Presence) -> LossCause {
    // Check the clock first: the loss may not have been noticed yet.
    if presence.is_valid() {
        presence.lost().cancelled().await;
    }
    presence.cause()
}

/// The call that ends a lease that this client made.
pub(crate) fn revocation(lease_id: u64, owner_id: String) -> Call {
    let request_id = random::request_id();
    Call::RevokeLease(RevokeLeaseRequest { lease_id, owner_id, request_id, ..RevokeLeaseRequest::default() })
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.client.unregister(self.presence.lease_id);
        if let Some(revoke) = self.end() {
            self.client.link.tell(revoke, ());
        }
    }
}

impl fmt::Debug for Session {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Session")
            .field("lease_id", &self.lease_id())
            .field("status", &self.status())
            .finish_non_exhaustive()
    }
}
