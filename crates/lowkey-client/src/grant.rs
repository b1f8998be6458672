//! A grant, held by one guard or shared by several.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use lowkey_api::v1::session_call::Call;
use lowkey_api::v1::{AcquireLockResponse, ReleaseLockRequest};
use lowkey_token::Mode;
use tokio_util::sync::CancellationToken;

use crate::clock::now_nanos;
use crate::door::{DoorTurn, Way};
use crate::event::ClientEvent;
use crate::keeper::Presence;
use crate::random;
use crate::session::{LossCause, Session, SessionStatus};

/// A grant that is released when the last guard that shares it is gone.
///
/// Whether it is held follows from the clock and from `held`. Nothing else is remembered.
pub(crate) struct GuardedGrant {
    pub(crate) name: String,
    pub(crate) token: u64,
    pub(crate) revision: u64,
    pub(crate) waited: Duration,
    pub(crate) mode: Mode,
    pub(crate) session: Session,
    held: Arc<GrantBelief>,
    since: Instant,
    /// Its release was sent, and another part of the client sees to it.
    is_released: AtomicBool,
}

/// What the keeper may know of a grant. It must not keep the session alive.
pub(crate) struct GrantBelief {
    /// Cancelled when belief ends: by release, with the session, or for this grant alone.
    ended: CancellationToken,
    /// Why this grant alone was lost, if it was.
    lost: OnceLock<LossCause>,
    /// R6: belief in a grant that has a limit ends here, by this client's own clock. Nothing moves it.
    until: Option<u64>,
    /// The service said that it does not have it any more.
    is_gone: AtomicBool,
    /// Keeps other tasks of the session from the name.
    turn: Mutex<Option<DoorTurn<GuardedGrant>>>,
}

impl GrantBelief {
    pub(crate) fn new(ended: CancellationToken, until: Option<u64>) -> Self {
        Self { ended, lost: OnceLock::new(), until, is_gone: AtomicBool::new(false), turn: Mutex::default() }
    }

    /// True if it had a limit, and that is over.
    fn is_outlived(&self) -> bool {
        self.until.is_some_and(|until| now_nanos() >= until)
    }

    /// Its own time is over: belief ends, although its lease goes on. The service has it still, for a tenth of its time,
    /// so other tasks of the session wait for the name until it is released or ended there.
    pub(crate) fn outlive(&self) {
        if self.ended.is_cancelled() {
            return;
        }
        self.turn.lock().unwrap_or_else(PoisonError::into_inner).iter().for_each(DoorTurn::leaving);
        let _ = self.lost.set(LossCause::HeldTooLong);
        self.ended.cancel();
    }

    /// The service no longer has the grant, although its lease goes on.
    pub(crate) fn lose(&self, cause: LossCause) {
        // A task that asks for the name from now on waits until it is free, instead of finding a holder.
        let turn = self.take_turn().inspect(DoorTurn::leaving);
        // Only the first cause counts; and the clock may have been first, if nobody has looked at it.
        let _ = self.lost.set(if self.is_outlived() { LossCause::HeldTooLong } else { cause });
        self.is_gone.store(true, Ordering::Release);
        self.ended.cancel();
        // Free the name for other tasks only after belief has ended: then there is no grant that they could
        // be given by mistake.
        drop(turn);
    }

    fn take_turn(&self) -> Option<DoorTurn<GuardedGrant>> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl GuardedGrant {
    /// Makes a grant that is believed to be held from now on.
    pub(crate) fn new(
        session: Session,
        name: String,
        granted: &AcquireLockResponse,
        turn: Option<DoorTurn<Self>>,
        way: Way,
        until: Option<u64>,
    ) -> Arc<Self> {
        let presence = &session.shared.presence;
        let held = Arc::new(GrantBelief::new(presence.lost().child_token(), until));
        if let Some(until) = until {
            session.shared.client.keeper.limit(until, &held);
        }
        presence.beliefs.add(granted.fencing_token, Arc::clone(&held));
        let grant = Arc::new(Self {
            name,
            token: granted.fencing_token,
            revision: granted.revision,
            waited: Duration::from_millis(granted.waited_ms.unsigned_abs()),
            mode: fence_mode(way.mode),
            held,
            since: Instant::now(),
            is_released: AtomicBool::new(false),
            session,
        });
        if let Some(turn) = turn {
            turn.held(way, &grant);
            *grant.held.turn.lock().unwrap_or_else(PoisonError::into_inner) = Some(turn);
        }
        grant
    }

    pub(crate) fn presence(&self) -> &Presence {
        &self.session.shared.presence
    }

    pub(crate) fn is_held(&self) -> bool {
        !self.ended().is_cancelled() && !self.held.is_outlived() && self.presence().is_valid()
    }

    /// How much is left of its own time, if that is limited.
    pub(crate) fn limit_remaining(&self) -> Option<Duration> {
        self.held.until.map(|until| Duration::from_nanos(until.saturating_sub(now_nanos())))
    }

    pub(crate) fn ended(&self) -> &CancellationToken {
        &self.held.ended
    }

    /// Why it is no longer held.
    pub(crate) fn cause(&self) -> LossCause {
        // The clock counts, not who has noticed.
        if self.held.is_outlived() {
            self.held.outlive();
        }
        self.held.lost.get().copied().unwrap_or_else(|| self.presence().cause())
    }

    /// R9: belief ends. Returns the call to send then, and the turn that other tasks wait for until that
    /// call is answered.
    pub(crate) fn end(&self) -> (Call, Option<DoorTurn<Self>>) {
        self.ended().cancel();
        self.presence().beliefs.remove(self.token);
        self.is_released.store(true, Ordering::Release);
        let turn = self.held.take_turn().inspect(DoorTurn::leaving);
        let released = ClientEvent::Released { name: &self.name, held_for: self.since.elapsed() };
        self.session.shared.client.hook.tell(&released);
        (release_by_token(self.name.clone(), self.presence().lease_id, self.token), turn)
    }

    /// True if it is certain that the service no longer has the grant.
    fn is_gone(&self) -> bool {
        let with_session =
            matches!(self.presence().status(), SessionStatus::Lost(LossCause::Gone | LossCause::Closed));
        self.held.is_gone.load(Ordering::Acquire) || with_session
    }
}

/// The mode of a request, as a resource knows it. The service takes what it does not name as exclusive.
pub(crate) fn fence_mode(mode: lowkey_api::v1::Mode) -> Mode {
    match mode {
        lowkey_api::v1::Mode::Shared => Mode::Shared,
        _ => Mode::Exclusive,
    }
}

/// R9: a release always carries the token.
pub(crate) fn release_by_token(lock_name: String, lease_id: u64, fencing_token: u64) -> Call {
    Call::ReleaseLock(ReleaseLockRequest {
        lock_name,
        lease_id,
        fencing_token,
        request_id: random::request_id(),
        ..ReleaseLockRequest::default()
    })
}

impl Drop for GuardedGrant {
    fn drop(&mut self) {
        if self.is_released.load(Ordering::Acquire) {
            return;
        }
        let is_gone = self.is_gone();
        let (release, turn) = self.end();
        if !is_gone {
            self.session.shared.client.link.tell(release, turn);
        }
    }
}
