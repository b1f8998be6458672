//! Locks and their guards.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use lowkey_api::Reason;
use lowkey_api::v1::session_answer::Answer;
use lowkey_api::v1::session_call::Call;
use lowkey_api::v1::{AcquireLockRequest, AcquireLockResponse, ReleaseLockRequest};
use tokio::sync::OwnedMutexGuard;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::client::Inner;
use crate::error::{Error, ErrorKind, HeldBy, Lost};
use crate::keeper::Presence;
use crate::random;
use crate::session::{LossCause, Session, SessionStatus, lost};
use crate::wish::{WAIT_MAX, Wish, is_over, wish_methods};

/// A lock that is to be acquired. Made by [`Session::lock`].
///
/// ```no_run
/// # async fn example(session: lowkey_client::Session) -> Result<(), lowkey_client::Error> {
/// use std::time::Duration;
///
/// // A name alone, for as long as it takes.
/// let nightly = session.lock("billing/nightly").acquire().await?;
/// // The name and all below it, together with other readers, within five seconds.
/// let reports = session.lock("reports").shared().subtree().wait(Duration::from_secs(5)).await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[must_use = "nothing is acquired before acquire(), try_acquire() or wait() is awaited"]
pub struct Lock {
    session: Session,
    wish: Wish,
}

impl Lock {
    pub(crate) fn new(session: Session, name: String) -> Self {
        Self { session, wish: Wish::new(name) }
    }

    wish_methods!();

    /// Acquires it, however long that takes: as long as the session lives.
    ///
    /// Dropping the future gives up the place in line, and the lock if it was granted just now.
    pub async fn acquire(&self) -> Result<LockGuard, Error> {
        loop {
            let waited = self.wait(WAIT_MAX).await;
            if !is_over(&waited) {
                return waited;
            }
        }
    }

    /// Acquires it if it is free now; otherwise an error for which [`Error::is_busy`] is true, and which
    /// says who holds it.
    ///
    /// ```no_run
    /// # async fn example(session: lowkey_client::Session) -> Result<(), lowkey_client::Error> {
    /// match session.lock("billing/nightly").try_acquire().await {
    ///     Ok(guard) => println!("mine, with token {}", guard.token()),
    ///     Err(error) if error.is_busy() => println!("not now: {error}"),
    ///     Err(error) => return Err(error),
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn try_acquire(&self) -> Result<LockGuard, Error> {
        self.session.check()?;
        let Some(turn) = self.session.try_enter(&self.wish.name) else {
            // Another task of this very session holds it, or is about to.
            let held_by = HeldBy {
                name: self.wish.name.clone(),
                owner: self.session.shared.client.owner.clone(),
                lease_id: self.session.lease_id(),
                ..HeldBy::default()
            };
            return Err(Error::new(ErrorKind::LockHeld(held_by)));
        };
        self.ask(turn, Duration::ZERO).await
    }

    /// Acquires it within this time; otherwise an error for which [`Error::is_busy`] is true.
    pub async fn wait(&self, time: Duration) -> Result<LockGuard, Error> {
        let started = Instant::now();
        self.session.check()?;
        let entered = tokio::select! {
            entered = timeout(time, self.session.enter(&self.wish.name)) => entered,
            cause = self.session.lost() => return Err(Error::new(ErrorKind::SessionLost(cause))),
        };
        let Ok(turn) = entered else {
            return Err(Error::new(ErrorKind::WaitTimeout(None)));
        };
        // At least a moment: whoever wants to wait gets in line.
        let left = time.saturating_sub(started.elapsed()).max(Duration::from_millis(1)).min(WAIT_MAX);
        self.ask(turn, left).await
    }

    async fn ask(&self, turn: OwnedMutexGuard<()>, wait: Duration) -> Result<LockGuard, Error> {
        let shared = &self.session.shared;
        let lease_id = shared.presence.lease_id;
        let request = AcquireLockRequest { lease_id, ..self.wish.request(&shared.client.owner, wait) };
        let request_id = request.request_id.clone();
        let mut asked = Asked { lock: self, request_id: Some(request_id), turn: Some(turn) };
        let call = shared.client.link.call(Call::AcquireLock(request), shared.client.call_timeout + wait);
        let outcome = tokio::select! {
            biased;
            outcome = call => outcome,
            cause = self.session.lost() => Err(Error::new(ErrorKind::SessionLost(cause))),
        };
        let granted = match outcome {
            Ok(Answer::AcquireLock(granted)) => granted,
            Ok(_) => return Err(Error::unavailable("an answer to another question", true)),
            Err(error) => return Err(self.refused(error, &mut asked)),
        };
        // From here on the guard gives the grant back, by its token.
        let guard = LockGuard::new(self, &granted, asked.settled());
        // R7: a grant is worth something only within the validity of its lease.
        self.session.check()?;
        Ok(guard)
    }

    fn refused(&self, error: Error, asked: &mut Asked<'_>) -> Error {
        if !error.may_have_been_done() && !matches!(error.kind(), ErrorKind::SessionLost(_)) {
            drop(asked.settled());
        }
        match error.reason() {
            Some(Reason::LeaseNotFound) => {
                self.session.shared.presence.lose(LossCause::Gone);
                Error::new(ErrorKind::SessionLost(LossCause::Gone))
            }
            _ => error,
        }
    }
}

/// An acquire whose outcome is not known. If nobody waits for it any more, whatever it led to is given back;
/// and until that is certain no other task of the session may ask for the name: the same lease would be
/// given the same grant, and lose it by this very release.
struct Asked<'a> {
    lock: &'a Lock,
    /// Nothing once the outcome is known.
    request_id: Option<String>,
    turn: Option<OwnedMutexGuard<()>>,
}

impl Asked<'_> {
    /// The outcome is known.
    fn settled(&mut self) -> Option<OwnedMutexGuard<()>> {
        self.request_id = None;
        self.turn.take()
    }
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        if let Some(acquire_request_id) = self.request_id.take() {
            let shared = &self.lock.session.shared;
            let release = ReleaseLockRequest {
                lock_name: self.lock.wish.name.clone(),
                lease_id: shared.presence.lease_id,
                acquire_request_id,
                request_id: random::request_id(),
                ..ReleaseLockRequest::default()
            };
            shared.client.link.tell(Call::ReleaseLock(release), self.turn.take());
        }
    }
}

/// A lock that is held.
///
/// It is held until it is released, dropped, or lost: look at [`LockGuard::is_held`] before every step that
/// matters, have the work done under [`LockGuard::run`], and send [`LockGuard::token`] along with every write,
/// so that whatever is protected can refuse one that comes too late.
///
/// Dropping the guard releases the lock in the background.
///
/// ```no_run
/// # async fn example(guard: lowkey_client::LockGuard) -> Result<(), lowkey_client::Error> {
/// for page in 1..=3 {
///     if !guard.is_held() {
///         break;
///     }
///     println!("writing page {page} with token {}", guard.token());
/// }
/// guard.release().await?;
/// # Ok(())
/// # }
/// ```
#[must_use = "the lock is released when the guard is dropped"]
pub struct LockGuard {
    client: Arc<Inner>,
    presence: Arc<Presence>,
    name: String,
    token: u64,
    revision: u64,
    waited: Duration,
    /// Keeps other tasks of the session from the same name; nothing once the guard was released.
    turn: Option<OwnedMutexGuard<()>>,
    /// The session lives as long as the guard.
    _session: Session,
}

impl LockGuard {
    fn new(lock: &Lock, granted: &AcquireLockResponse, turn: Option<OwnedMutexGuard<()>>) -> Self {
        let shared = &lock.session.shared;
        Self {
            client: Arc::clone(&shared.client),
            presence: Arc::clone(&shared.presence),
            name: lock.wish.name.clone(),
            token: granted.fencing_token,
            revision: granted.revision,
            waited: Duration::from_millis(granted.waited_ms.unsigned_abs()),
            turn,
            _session: lock.session.clone(),
        }
    }

    /// The lock's name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The fencing token: it rises with every grant, and goes along with every write that the lock protects.
    pub fn token(&self) -> u64 {
        self.token
    }

    /// The revision at which it was granted.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// The lease that holds it.
    pub fn lease_id(&self) -> u64 {
        self.presence.lease_id
    }

    /// How long it was waited for, as the service tells.
    pub fn waited(&self) -> Duration {
        self.waited
    }

    /// Whether you may act as holder now. Looks at the clock: a process that was paused for too long gets
    /// `false` from the first call on.
    pub fn is_held(&self) -> bool {
        self.presence.is_valid()
    }

    /// How long it is held for certain if no renewal is acknowledged any more.
    pub fn remaining(&self) -> Duration {
        self.presence.remaining()
    }

    /// Resolves when the lock is lost, with the cause. Never resolves while it is held.
    pub async fn lost(&self) -> LossCause {
        lost(&self.presence).await
    }

    /// A token that is cancelled when the lock is lost, to be passed on to whoever works under it.
    ///
    /// ```no_run
    /// # async fn example(guard: lowkey_client::LockGuard) {
    /// let is_lost = guard.cancellation_token();
    /// tokio::spawn(async move {
    ///     is_lost.cancelled().await;
    ///     println!("whatever is not written yet stays unwritten");
    /// });
    /// # }
    /// ```
    pub fn cancellation_token(&self) -> CancellationToken {
        self.presence.lost().child_token()
    }

    /// Does the work for as long as the lock is held. If it is lost first, the work is dropped where it waits,
    /// and is not polled once more: not even after a pause of the whole process.
    ///
    /// ```no_run
    /// # async fn example(guard: lowkey_client::LockGuard) -> Result<(), Box<dyn std::error::Error>> {
    /// let report = guard.run(async { "the nightly report" }).await?;
    /// println!("{report}");
    /// # Ok(())
    /// # }
    /// ```
    pub async fn run<W: Future>(&self, work: W) -> Result<W::Output, Lost> {
        let mut work = pin!(work);
        let mut is_lost = pin!(self.presence.lost().cancelled());
        poll_fn(|context| {
            if !self.is_held() || is_lost.as_mut().poll(context).is_ready() {
                let (name, fencing_token) = (self.name.clone(), self.token);
                return Poll::Ready(Err(Lost { name, fencing_token, cause: self.presence.cause() }));
            }
            work.as_mut().poll(context).map(Ok)
        })
        .await
    }

    /// Gives it back, and waits until that is done. If no node answers in time, or nobody waits for it, it is
    /// tried on in the background.
    ///
    /// An error may also say that it was not held any more: then somebody else ended it, or the session is
    /// lost, and the work since then was not protected.
    pub async fn release(mut self) -> Result<(), Error> {
        // R9: belief ended when the guard was given away.
        let (call, turn) = (self.release_call(), self.turn.take());
        let outcome = self.client.link.see_through(call, self.client.call_timeout, turn).await;
        match outcome {
            Ok(_) => Ok(()),
            // Perhaps a copy of this very release was there before, or the session was closed on purpose.
            Err(error) if is_not_held(&error) && (error.may_have_been_done() || self.is_closed()) => Ok(()),
            Err(error) if error.reason() == Some(Reason::LeaseNotFound) => {
                self.presence.lose(LossCause::Gone);
                Err(Error::new(ErrorKind::SessionLost(self.presence.cause())))
            }
            Err(error) => Err(error),
        }
    }

    fn is_closed(&self) -> bool {
        self.presence.status() == SessionStatus::Lost(LossCause::Closed)
    }

    /// R9: the token always goes along.
    fn release_call(&self) -> Call {
        Call::ReleaseLock(ReleaseLockRequest {
            lock_name: self.name.clone(),
            lease_id: self.presence.lease_id,
            fencing_token: self.token,
            request_id: random::request_id(),
            ..ReleaseLockRequest::default()
        })
    }
}

/// True if the lock is not, or no longer, held by whoever asked.
fn is_not_held(error: &Error) -> bool {
    matches!(
        error.reason(),
        Some(Reason::LockNotFound | Reason::NotOwner | Reason::StaleToken | Reason::LeaseNotFound)
    )
}

impl Drop for LockGuard {
    fn drop(&mut self) {
        // Nobody of this session may ask for the name before the release is certain: it would be given the
        // same grant, and lose it by this very release.
        if let Some(turn) = self.turn.take()
            && !self.presence.lost().is_cancelled()
        {
            self.client.link.tell(self.release_call(), Some(turn));
        }
    }
}

impl fmt::Debug for LockGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockGuard")
            .field("name", &self.name)
            .field("token", &self.token)
            .field("is_held", &self.is_held())
            .finish_non_exhaustive()
    }
}
