//! Locks and their guards.

use std::fmt;
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use lowkey_api::Reason;
use lowkey_api::limits::WAIT_MAX;
use lowkey_api::v1::session_answer::Answer;
use lowkey_api::v1::session_call::Call;
use lowkey_api::v1::{AcquireLockRequest, ReleaseLockRequest};
use lowkey_api::validity::held_until;
use lowkey_token::{Fence, Token};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::clock::now_nanos;
use crate::door::{DoorTurn, Entering, Entry};
use crate::error::{Error, ErrorKind, HeldBy, Lost};
use crate::event::Asking;
use crate::grant::GuardedGrant;
use crate::keeper::Presence;
use crate::random;
use crate::session::{LossCause, Session, SessionStatus};
use crate::wish::{LockWish, is_over, wish_methods};

/// A lock to acquire. Made by [`Session::lock`].
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
    wish: LockWish,
}

impl Lock {
    pub(crate) fn new(session: Session, name: String) -> Self {
        Self { session, wish: LockWish::new(name) }
    }

    wish_methods!();

    /// Acquires the lock, and waits as long as needed while the session lives.
    ///
    /// Dropping the future gives up the place in the queue, and the lock if it was just granted.
    pub async fn acquire(&self) -> Result<LockGuard, Error> {
        loop {
            let waited = self.wait(WAIT_MAX).await;
            if !is_over(&waited) {
                return waited;
            }
        }
    }

    /// Acquires the lock if it is free now. Otherwise returns an error for which [`Error::is_busy`] is
    /// true, and which names the holder.
    ///
    /// A release of this same session that is under way, as after a guard was dropped, does not count as a
    /// holder: the call waits for it.
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
        let asking = Asking::begin(&self.session.shared.client.hook, &self.wish.name);
        asking.end(self.try_now().await)
    }

    async fn try_now(&self) -> Result<LockGuard, Error> {
        self.session.check()?;
        let door = self.session.shared.presence.doors.of(&self.wish.name);
        let entry = match door.enter(self.wish.way(), true) {
            Entering::Now(entry) => entry,
            Entering::Busy(grant) => return Err(self.held_by_another_task(grant.map(|grant| grant.token))),
            Entering::Later(entry) => {
                let decided = timeout(self.session.shared.client.call_timeout, entry);
                match self.unless_lost(decided).await? {
                    Ok(Ok(entry)) => entry,
                    _ => return Err(self.held_by_another_task(None)),
                }
            }
        };
        self.go_in(entry, Duration::ZERO).await
    }

    /// The error if another task of this same session holds the lock, or is about to.
    fn held_by_another_task(&self, token: Option<u64>) -> Error {
        let held_by = HeldBy {
            name: self.wish.name.clone(),
            owner: self.session.shared.client.owner.clone(),
            lease_id: self.session.lease_id(),
            fencing_token: token.unwrap_or_default(),
            ..HeldBy::default()
        };
        Error::new(ErrorKind::LockHeld(held_by))
    }

    /// Acquires the lock within this time. Otherwise returns an error for which [`Error::is_busy`] is true.
    pub async fn wait(&self, time: Duration) -> Result<LockGuard, Error> {
        let asking = Asking::begin(&self.session.shared.client.hook, &self.wish.name);
        asking.end(self.wait_in_line(time).await)
    }

    async fn wait_in_line(&self, time: Duration) -> Result<LockGuard, Error> {
        let started = Instant::now();
        self.session.check()?;
        let door = self.session.shared.presence.doors.of(&self.wish.name);
        let entry = match door.enter(self.wish.way(), false) {
            Entering::Now(entry) => Some(entry),
            Entering::Later(entry) => self.unless_lost(timeout(time, entry)).await?.ok().and_then(Result::ok),
            Entering::Busy(_) => None,
        };
        let Some(entry) = entry else {
            return Err(Error::new(ErrorKind::WaitTimeout(None)));
        };
        // At least a moment: a caller that wants to wait always gets into the queue.
        let left = time.saturating_sub(started.elapsed()).max(Duration::from_millis(1)).min(WAIT_MAX);
        self.go_in(entry, left).await
    }

    async fn unless_lost<T>(&self, wait: impl Future<Output = T>) -> Result<T, Error> {
        tokio::select! {
            outcome = wait => Ok(outcome),
            cause = self.session.lost() => Err(Error::new(ErrorKind::SessionLost(cause))),
        }
    }

    async fn go_in(&self, entry: Entry<GuardedGrant>, wait: Duration) -> Result<LockGuard, Error> {
        let guard = match entry {
            Entry::Turn(turn) => self.ask(turn, wait).await?,
            Entry::Share(grant) => LockGuard::new(grant),
        };
        // R7: a grant is valid only within the validity of its lease.
        self.session.check()?;
        // Nor is one whose own time was over before its answer came.
        if !guard.is_held() {
            return Err(Error::unavailable(
                "the lock was granted, and its time was over before the answer came",
                true,
            ));
        }
        Ok(guard)
    }

    async fn ask(&self, turn: DoorTurn<GuardedGrant>, wait: Duration) -> Result<LockGuard, Error> {
        let shared = &self.session.shared;
        let lease_id = shared.presence.lease_id;
        let request = AcquireLockRequest { lease_id, ..self.wish.request(&shared.client.owner, wait)? };
        let (max_hold_seconds, first_sent) = (request.max_hold_seconds, now_nanos());
        let request_id = request.request_id.clone();
        let mut asked = Asked { lock: self, request_id: Some(request_id), turn: Some(turn) };
        let time = shared.client.call_timeout.saturating_add(wait);
        let call = shared.client.link.call(Call::AcquireLock(request), time);
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
        // From here on the grant is released by its token.
        let (name, way) = (self.wish.name.clone(), self.wish.way());
        // R6: from before the first send; every attempt has the same request id.
        let until = way.is_limited.then(|| held_until(first_sent, granted.waited_ms, max_hold_seconds));
        let turn = asked.settled();
        Ok(LockGuard::new(GuardedGrant::new(self.session.clone(), name, &granted, turn, way, until)))
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

/// An acquire whose outcome is not known. If its caller goes away, the grant that it may have led to is
/// released. Until that is certain, no other task of the session may ask for the name: the same lease would
/// be given the same grant, and would lose it by this release.
struct Asked<'a> {
    lock: &'a Lock,
    /// `None` once the outcome is known.
    request_id: Option<String>,
    turn: Option<DoorTurn<GuardedGrant>>,
}

impl Asked<'_> {
    /// The outcome is known.
    fn settled(&mut self) -> Option<DoorTurn<GuardedGrant>> {
        self.request_id = None;
        self.turn.take()
    }
}

impl Drop for Asked<'_> {
    fn drop(&mut self) {
        if let Some(acquire_request_id) = self.request_id.take() {
            let shared = &self.lock.session.shared;
            shared.presence.beliefs.give_up(acquire_request_id.clone());
            let release = ReleaseLockRequest {
                lock_name: self.lock.wish.name.clone(),
                lease_id: shared.presence.lease_id,
                acquire_request_id,
                request_id: random::request_id(),
                ..ReleaseLockRequest::default()
            };
            let turn = self.turn.take().inspect(DoorTurn::leaving);
            shared.client.link.tell(Call::ReleaseLock(release), turn);
        }
    }
}

/// A lock that is held.
///
/// It is held until it is released, dropped, or lost. Check [`LockGuard::is_held`] before every step that
/// matters, run the work under [`LockGuard::run`], and send [`LockGuard::token`] along with every write.
/// The protected resource can then refuse a write that comes too late.
///
/// Dropping the guard releases the lock in the background, also at the end of the program: the drop of the
/// last handle of a client waits up to 200 ms until the service has heard of it.
///
/// Guards of one session that hold one name in shared mode share one grant and its token. The grant is
/// released with the last of them.
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
    /// Dropped first (R9).
    belief: Belief,
    grant: Arc<GuardedGrant>,
}

/// The signal for work under this guard. It ends with the guard.
struct Belief(CancellationToken);

impl Drop for Belief {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

impl LockGuard {
    fn new(grant: Arc<GuardedGrant>) -> Self {
        Self { belief: Belief(grant.ended().child_token()), grant }
    }

    /// The lock's name.
    pub fn name(&self) -> &str {
        &self.grant.name
    }

    /// The fencing token. It rises with every grant. Send it along with every write that the lock protects.
    pub fn token(&self) -> u64 {
        self.grant.token
    }

    /// The token for a signed database column, such as `BIGINT`. The service never gives a token above
    /// `i64::MAX`, so this is the same number, and compares in the same way.
    ///
    /// ```no_run
    /// # fn example(guard: &lowkey_client::LockGuard) {
    /// let update = "UPDATE account SET balance = $1, token = $2 WHERE id = 7 AND token <= $2";
    /// println!("{update} with {}", guard.token_i64());
    /// # }
    /// ```
    pub fn token_i64(&self) -> i64 {
        // Never negative: that would be below all others.
        i64::try_from(self.grant.token).unwrap_or(i64::MAX)
    }

    /// Lock, token and mode together: what a resource checks before it takes a write. Crate `lowkey-fence` has
    /// the checks, for databases, object stores and services.
    ///
    /// ```no_run
    /// # fn example(guard: &lowkey_client::LockGuard) {
    /// println!("writing with {}", guard.fence());
    /// # }
    /// ```
    pub fn fence(&self) -> Fence {
        Fence::new(&self.grant.name, Token(self.grant.token), self.grant.mode)
    }

    /// The revision at which it was granted.
    pub fn revision(&self) -> u64 {
        self.grant.revision
    }

    /// The lease that holds it.
    pub fn lease_id(&self) -> u64 {
        self.grant.presence().lease_id
    }

    /// How long the lock was waited for, as the service reports it.
    pub fn waited(&self) -> Duration {
        self.grant.waited
    }

    /// Whether you may act as holder now. Reads the clock: a process that was paused for too long gets
    /// `false` from the first call on.
    pub fn is_held(&self) -> bool {
        self.grant.is_held()
    }

    /// How long the lock is held for certain if no further renewal is acknowledged.
    pub fn remaining(&self) -> Duration {
        let lease = self.grant.presence().remaining();
        match self.grant.ended().is_cancelled() {
            true => Duration::ZERO,
            false => self.limit_remaining().map_or(lease, |limit| limit.min(lease)),
        }
    }

    /// How much is left of the time that [`Lock::at_most`] gave it, by this client's own count; `None` without such a
    /// limit. No renewal extends it.
    pub fn limit_remaining(&self) -> Option<Duration> {
        self.grant.limit_remaining()
    }

    /// Resolves when the lock is lost, with the cause. Never resolves while it is held.
    ///
    /// The client's own thread watches the clock. So this works without a connection, and also after the
    /// runtime that the client was made in is gone.
    pub async fn lost(&self) -> LossCause {
        // Check the clock first: the loss may not have been noticed yet.
        if self.is_held() {
            self.grant.ended().cancelled().await;
        }
        self.grant.cause()
    }

    /// A token for work under this guard. It is cancelled when the lock is lost, and when the guard is
    /// released or dropped, before the service hears of that. Work that goes on after it may run beside the
    /// next holder.
    ///
    /// ```no_run
    /// # async fn example(guard: lowkey_client::LockGuard) {
    /// let is_over = guard.cancellation_token();
    /// tokio::spawn(async move {
    ///     is_over.cancelled().await;
    ///     println!("what is not written yet stays unwritten");
    /// });
    /// # }
    /// ```
    pub fn cancellation_token(&self) -> CancellationToken {
        self.belief.0.child_token()
    }

    /// Runs the work for as long as the lock is held. If the lock is lost first, the work is dropped where
    /// it waits, and is not polled again: not even after a pause of the whole process.
    ///
    /// The clock is checked before each step of the work, and once more at its end. `Ok` means that the
    /// lock was held until then.
    ///
    /// `Err(Lost)` does *not* mean that nothing was written. The work may have written at any time before.
    /// Work that blocks its thread continues past the loss until it yields. Only the token, checked by the
    /// resource that is written to, keeps such writes out.
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
        let mut is_lost = pin!(self.grant.ended().cancelled());
        poll_fn(|context| {
            if !self.is_held() || is_lost.as_mut().poll(context).is_ready() {
                return Poll::Ready(Err(self.loss()));
            }
            let done = work.as_mut().poll(context);
            // The work may have blocked its thread for longer than the lease lived.
            done.map(|output| if self.is_held() { Ok(output) } else { Err(self.loss()) })
        })
        .await
    }

    fn loss(&self) -> Lost {
        Lost { name: self.grant.name.clone(), fencing_token: self.grant.token, cause: self.grant.cause() }
    }

    /// Releases the lock, and waits until that is done. If no node answers in time, or this future is
    /// dropped, the client keeps trying in the background. If other guards share the grant, they keep it.
    ///
    /// An error may also say that the lock was not held any more. Then another client ended it, or the
    /// session is lost, and the work since then was not protected.
    pub async fn release(self) -> Result<(), Error> {
        let Self { belief, grant } = self;
        // R9: belief ends first.
        drop(belief);
        let Some(grant) = Arc::into_inner(grant) else { return Ok(()) };
        let (release, turn) = grant.end();
        let client = &grant.session.shared.client;
        let presence = grant.presence();
        match client.link.see_through(release, client.call_timeout, turn).await {
            Ok(_) => Ok(()),
            // Perhaps a copy of this same release arrived before, or the session was closed on purpose.
            Err(error) if is_not_held(&error) && (error.may_have_been_done() || is_closed(presence)) => {
                Ok(())
            }
            Err(error) if error.reason() == Some(Reason::LeaseNotFound) => {
                presence.lose(LossCause::Gone);
                Err(Error::new(ErrorKind::SessionLost(presence.cause())))
            }
            Err(error) => Err(error),
        }
    }
}

fn is_closed(presence: &Presence) -> bool {
    presence.status() == SessionStatus::Lost(LossCause::Closed)
}

/// True if the caller does not, or no longer, hold the lock.
fn is_not_held(error: &Error) -> bool {
    matches!(
        error.reason(),
        Some(Reason::LockNotFound | Reason::NotOwner | Reason::StaleToken | Reason::LeaseNotFound)
    )
}

impl fmt::Debug for LockGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockGuard")
            .field("name", &self.name())
            .field("token", &self.token())
            .field("is_held", &self.is_held())
            .finish_non_exhaustive()
    }
}
