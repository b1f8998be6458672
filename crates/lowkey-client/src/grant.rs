//! A grant: what one guard holds, or several that share it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use lowkey_api::v1::session_call::Call;
use lowkey_api::v1::{AcquireLockResponse, ReleaseLockRequest};
use tokio_util::sync::CancellationToken;

use crate::door::Turn;
use crate::keeper::Presence;
use crate::random;
use crate::session::{LossCause, Session, SessionStatus};

/// Released when the last guard that shares it is gone.
///
/// Held is a question to the clock and to `ended`; nothing else is remembered.
pub(crate) struct Grant {
    pub(crate) name: String,
    pub(crate) token: u64,
    pub(crate) revision: u64,
    pub(crate) waited: Duration,
    pub(crate) session: Session,
    /// Cancelled when belief ends: by release, with the session, or by itself.
    ended: CancellationToken,
    /// Why this grant alone was lost, if it was.
    lost: OnceLock<LossCause>,
    /// Its release was sent, and is somebody's business.
    is_released: AtomicBool,
    /// Keeps other tasks of the session from the name.
    turn: Mutex<Option<Turn<Grant>>>,
}

impl Grant {
    pub(crate) fn new(session: Session, name: String, granted: &AcquireLockResponse) -> Arc<Self> {
        Arc::new(Self {
            name,
            token: granted.fencing_token,
            revision: granted.revision,
            waited: Duration::from_millis(granted.waited_ms.unsigned_abs()),
            ended: session.shared.presence.lost().child_token(),
            lost: OnceLock::new(),
            is_released: AtomicBool::new(false),
            turn: Mutex::default(),
            session,
        })
    }

    /// Holds the name in the session.
    pub(crate) fn keep(&self, turn: Turn<Self>) {
        *self.turn.lock().unwrap_or_else(PoisonError::into_inner) = Some(turn);
    }

    fn take_turn(&self) -> Option<Turn<Self>> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    pub(crate) fn presence(&self) -> &Presence {
        &self.session.shared.presence
    }

    pub(crate) fn is_held(&self) -> bool {
        !self.ended.is_cancelled() && self.presence().is_valid()
    }

    pub(crate) fn ended(&self) -> &CancellationToken {
        &self.ended
    }

    /// Why it is no longer held.
    pub(crate) fn cause(&self) -> LossCause {
        self.lost.get().copied().unwrap_or_else(|| self.presence().cause())
    }

    /// R9: belief ends. Gives what to send then, with the place that other tasks wait for until it is answered.
    pub(crate) fn end(&self) -> (Call, Option<Turn<Self>>) {
        self.ended.cancel();
        self.is_released.store(true, Ordering::Release);
        let turn = self.take_turn();
        if let Some(turn) = &turn {
            turn.leaving();
        }
        // R9: the token always goes along.
        let release = ReleaseLockRequest {
            lock_name: self.name.clone(),
            lease_id: self.presence().lease_id,
            fencing_token: self.token,
            request_id: random::request_id(),
            ..ReleaseLockRequest::default()
        };
        (Call::ReleaseLock(release), turn)
    }

    /// True if the service has it no longer, for certain.
    fn is_gone(&self) -> bool {
        let with_session =
            |status| matches!(status, SessionStatus::Lost(LossCause::Gone | LossCause::Closed));
        self.lost.get().is_some() || with_session(self.presence().status())
    }
}

impl Drop for Grant {
    fn drop(&mut self) {
        if !self.is_released.load(Ordering::Acquire) && !self.is_gone() {
            let (release, turn) = self.end();
            self.session.shared.client.link.tell(release, turn);
        }
    }
}
