//! A grant: what one guard holds, or several that share it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use lowkey_api::v1::session_call::Call;
use lowkey_api::v1::{AcquireLockResponse, ReleaseLockRequest};
use tokio_util::sync::CancellationToken;

use crate::door::{Turn, Way};
use crate::keeper::Presence;
use crate::random;
use crate::session::{LossCause, Session, SessionStatus};

/// Released when the last guard that shares it is gone.
///
/// Held is a question to the clock and to `held`; nothing else is remembered.
pub(crate) struct Grant {
    pub(crate) name: String,
    pub(crate) token: u64,
    pub(crate) revision: u64,
    pub(crate) waited: Duration,
    pub(crate) session: Session,
    held: Arc<Held>,
    /// Its release was sent, and is somebody's business.
    is_released: AtomicBool,
}

/// What the keeper may know of a grant: it must not keep its session alive.
pub(crate) struct Held {
    /// Cancelled when belief ends: by release, with the session, or by itself.
    ended: CancellationToken,
    /// Why this grant alone was lost, if it was.
    lost: OnceLock<LossCause>,
    /// Keeps other tasks of the session from the name.
    turn: Mutex<Option<Turn<Grant>>>,
}

impl Held {
    pub(crate) fn new(ended: CancellationToken) -> Self {
        Self { ended, lost: OnceLock::new(), turn: Mutex::default() }
    }

    /// The service has it no longer, although its lease goes on.
    pub(crate) fn lose(&self, cause: LossCause) {
        // Who asks for the name from now on waits until it is free, and does not meet a holder.
        let turn = self.take_turn().inspect(Turn::leaving);
        // Only the first cause counts.
        let _ = self.lost.set(cause);
        self.ended.cancel();
        // Free for other tasks after belief has ended: there is no grant that they could be given by mistake.
        drop(turn);
    }

    fn take_turn(&self) -> Option<Turn<Grant>> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl Grant {
    /// From now on it is believed to be held.
    pub(crate) fn new(
        session: Session,
        name: String,
        granted: &AcquireLockResponse,
        turn: Option<Turn<Self>>,
        way: Way,
    ) -> Arc<Self> {
        let presence = &session.shared.presence;
        let held = Arc::new(Held::new(presence.lost().child_token()));
        presence.beliefs.add(granted.fencing_token, Arc::clone(&held));
        let grant = Arc::new(Self {
            name,
            token: granted.fencing_token,
            revision: granted.revision,
            waited: Duration::from_millis(granted.waited_ms.unsigned_abs()),
            held,
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
        !self.ended().is_cancelled() && self.presence().is_valid()
    }

    pub(crate) fn ended(&self) -> &CancellationToken {
        &self.held.ended
    }

    /// Why it is no longer held.
    pub(crate) fn cause(&self) -> LossCause {
        self.held.lost.get().copied().unwrap_or_else(|| self.presence().cause())
    }

    /// R9: belief ends. Gives what to send then, with the place that other tasks wait for until it is answered.
    pub(crate) fn end(&self) -> (Call, Option<Turn<Self>>) {
        self.ended().cancel();
        self.presence().beliefs.remove(self.token);
        self.is_released.store(true, Ordering::Release);
        let turn = self.held.take_turn().inspect(Turn::leaving);
        (release_by_token(self.name.clone(), self.presence().lease_id, self.token), turn)
    }

    /// True if the service has it no longer, for certain.
    fn is_gone(&self) -> bool {
        let with_session =
            matches!(self.presence().status(), SessionStatus::Lost(LossCause::Gone | LossCause::Closed));
        self.held.lost.get().is_some() || with_session
    }
}

/// R9: the token always goes along.
pub(crate) fn release_by_token(lock_name: String, lease_id: u64, fencing_token: u64) -> Call {
    Call::ReleaseLock(ReleaseLockRequest {
        lock_name,
        lease_id,
        fencing_token,
        request_id: random::request_id(),
        ..ReleaseLockRequest::default()
    })
}

impl Drop for Grant {
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
