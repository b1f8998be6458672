//! Who is let in: from what a client shows to the permission without which no call can be answered.
//!
//! ```text
//!  connection ─► Shown (who it is) ─► Guard::permit ─► Permitted<call> ─► the node behind the edge
//!                                                          │ forwarded with its caller
//!                                                          └─► the leader's replica judges again
//! ```
//!
//! - A [`Permitted`] is made here and nowhere else, and the node behind the edge takes nothing else. A call
//!   says in the table what it needs; one that does not say it does not compile.
//! - The table of principals is part of the replicated state. The [`Guard`] has that of this node's root
//!   group, and decides by it. The leader decides once more: see `permitting.rs` of the replica.
//! - What lasts is looked at again when the table changes: waits, watches, and sessions (`lasting.rs`).
//! - A node that has heard of no leader for [`BELIEF_TIME`] does not know what was revoked since. It refuses.
//! - While access is not required, all of this costs a call one look at an atomic number. Once there are
//!   principals, what would be refused is noted (`rehearsal.rs`).
//!
//! Nothing here logs or returns a token: `shown.rs` reads it, and keeps its hash for as long as it compares.

mod complaints;
mod lasting;
mod logins;
mod permitted;
mod rehearsal;
mod shown;

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use lowkey_api::{ApiError, Reason};
use lowkey_core::{Access, Caller, Denied, OwnerId};
use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval};

pub(crate) use self::complaints::Cause;
use self::complaints::Complaints;
pub(crate) use self::lasting::ending_with;
use self::logins::Logins;
pub(crate) use self::permitted::{MetricsRead, granted, rule_of};
pub use self::permitted::{Permitted, Rule, Ruled};
use self::rehearsal::Rehearsal;
pub(crate) use self::rehearsal::WouldBeRefused;
pub use self::shown::Shown;
pub(crate) use self::shown::{ClientAddress, LocalAdmin, new_token, wants_addresses};
use crate::edge::stopped;

/// For how long a node believes its table without hearing of a leader.
pub(crate) const BELIEF_TIME: Duration = Duration::from_secs(30);
/// How often it looks whether that is over.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// No principal exists, and nothing is required.
const OPEN: u8 = 0;
/// There are principals: what would be refused is noted.
const REHEARSING: u8 = 1;
/// Nobody may do anything without a proof and a grant.
const REQUIRED: u8 = 2;

/// Stands before everything that a client may ask of this node.
pub struct Guard {
    /// What follows from the table, for those who only need that.
    mode: AtomicU8,
    table: RwLock<Arc<Access>>,
    /// Changes with the table, and when this node stops or begins to believe it.
    changes: watch::Sender<u64>,
    /// When the last leader was lost, in ms since `began`, and 1 more; 0 while there is one.
    leaderless_since_ms: AtomicU64,
    /// False until the first leader since the start is known: what the disk had may be of any age.
    has_heard: AtomicBool,
    began: Instant,
    /// Whether anybody may read the metrics.
    metrics_are_open: AtomicBool,
    logins: Logins,
    rehearsal: Rehearsal,
    complaints: Complaints,
}

impl Guard {
    /// A guard of a node that knows no principals.
    pub fn open() -> Self {
        Self {
            mode: AtomicU8::new(OPEN),
            table: RwLock::default(),
            changes: watch::Sender::new(0),
            leaderless_since_ms: AtomicU64::new(0),
            has_heard: AtomicBool::new(true),
            began: Instant::now(),
            metrics_are_open: AtomicBool::new(false),
            logins: Logins::default(),
            rehearsal: Rehearsal::default(),
            complaints: Complaints::default(),
        }
    }

    /// Lets anybody read the metrics, also when access is required.
    pub(crate) fn open_metrics(&self) {
        self.metrics_are_open.store(true, Ordering::Relaxed);
    }

    pub(crate) fn metrics_are_open(&self) -> bool {
        self.metrics_are_open.load(Ordering::Relaxed)
    }

    /// Takes over the table that the replica has applied. Whoever is answered after that is judged by it.
    pub(crate) fn publish(&self, access: &Arc<Access>) {
        if Arc::ptr_eq(&self.table(), access) {
            return;
        }
        let mode = match (access.is_required(), access.is_empty()) {
            (true, _) => REQUIRED,
            (false, false) => REHEARSING,
            (false, true) => OPEN,
        };
        *self.table.write().unwrap_or_else(PoisonError::into_inner) = Arc::clone(access);
        self.mode.store(mode, Ordering::Release);
        if mode != OPEN {
            shown::want_addresses();
        }
        self.changes.send_modify(|change| *change += 1);
    }

    /// A guard of a node that starts, and has heard of no leader yet.
    pub(crate) fn of_start() -> Self {
        let guard = Self::open();
        guard.has_heard.store(false, Ordering::Relaxed);
        guard
    }

    /// Notes whether this node knows of a leader.
    pub(crate) fn in_touch(&self, is_in_touch: bool) {
        if is_in_touch {
            self.has_heard.store(true, Ordering::Release);
            self.leaderless_since_ms.store(0, Ordering::Release);
        } else if self.leaderless_since_ms.load(Ordering::Acquire) == 0 {
            let ms = u64::try_from(self.began.elapsed().as_millis()).unwrap_or(u64::MAX - 1);
            self.leaderless_since_ms.store(ms + 1, Ordering::Release);
        }
    }

    /// The table, as of now.
    pub(crate) fn table(&self) -> Arc<Access> {
        Arc::clone(&self.table.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// True if nobody may do anything without a proof and a grant.
    pub(crate) fn is_required(&self) -> bool {
        self.mode.load(Ordering::Acquire) == REQUIRED
    }

    fn is_open(&self) -> bool {
        self.mode.load(Ordering::Acquire) == OPEN
    }

    /// True if this node does not know any more who may do what.
    fn is_behind(&self) -> bool {
        match self.leaderless_since_ms.load(Ordering::Acquire) {
            0 => false,
            _ if !self.has_heard.load(Ordering::Acquire) => true,
            since => self.began.elapsed() > BELIEF_TIME + Duration::from_millis(since - 1),
        }
    }

    /// What a client asked for, if it may have it.
    pub fn permit<T: Ruled>(&self, shown: &Shown, wanted: T) -> Result<Permitted<T>, ApiError> {
        if T::ALSO_WHILE_OPEN || !self.is_open() {
            self.judge(shown, rule_of(&wanted), T::ALSO_WHILE_OPEN)?;
            if !self.is_required() {
                self.rehearse_owner(shown, &wanted);
            }
        }
        Ok(Permitted::new(wanted, shown.caller().clone()))
    }

    /// What a client asked another node for, and that one asks this for, if the client may have it.
    pub(crate) fn permit_forwarded<T: Ruled>(
        &self,
        caller: &Caller,
        wanted: T,
    ) -> Result<Permitted<T>, ApiError> {
        self.judge_again(caller, rule_of(&wanted))?;
        Ok(Permitted::new(wanted, caller.clone()))
    }

    /// What this node asks in its own name.
    pub(crate) fn for_node<T>(&self, wanted: T) -> Permitted<T> {
        Permitted::new(wanted, Caller::Node)
    }

    /// Judges a client that asks for something now.
    fn judge(&self, shown: &Shown, rule: Rule<'_>, also_while_open: bool) -> Result<(), ApiError> {
        let verdict = rule.judge(&self.table(), shown.caller());
        if !self.is_required() && !also_while_open {
            if let Err(denied) = verdict {
                self.rehearsal.note(shown, rule, &denied);
            }
            return Ok(());
        }
        if rule == Rule::Anybody || *shown.caller() == Caller::LocalAdmin {
            return Ok(());
        }
        let is_behind = self.is_required() && self.is_behind();
        let refused = match (is_behind, shown.failure(), verdict) {
            (true, ..) => behind(),
            (false, Some(failure), _) => failure.clone(),
            (false, None, Ok(())) => return Ok(()),
            (false, None, Err(denied)) => told(&denied),
        };
        self.complaints.refused(Cause::of(refused.reason), shown.address());
        Err(refused)
    }

    /// Notes a client that would be refused by the leader, for the owner that it names.
    fn rehearse_owner<T: Ruled>(&self, shown: &Shown, wanted: &T) {
        let Some(Ok(owner)) = wanted.owner().map(OwnerId::parse) else { return };
        let (table, rule) = (self.table(), rule_of(wanted));
        if rule.judge(&table, shown.caller()).is_ok()
            && let Err(denied) = table.judge_owner(shown.caller(), &owner)
        {
            self.rehearsal.note(shown, rule, &denied);
        }
    }

    /// Judges again a client that was let in before. It is not a new refusal.
    fn judge_again(&self, caller: &Caller, rule: Rule<'_>) -> Result<(), ApiError> {
        if !self.is_required() || *caller == Caller::LocalAdmin || *caller == Caller::Node {
            return Ok(());
        }
        if self.is_behind() {
            return Err(behind());
        }
        rule.judge(&self.table(), caller).map_err(|denied| told(&denied))
    }

    /// What would have been refused in the last hour.
    pub(crate) fn would_be_refused(&self) -> Vec<WouldBeRefused> {
        self.rehearsal.told()
    }

    /// How often clients were refused, by cause.
    pub(crate) fn refusals(&self) -> [(&'static str, u64); 4] {
        self.complaints.counts()
    }

    /// Has lasting things looked at again when this node stops believing its table, until `stopping` becomes
    /// true.
    pub(crate) async fn keep(self: Arc<Self>, stopping: watch::Receiver<bool>) {
        let mut looks = interval(LOOK_INTERVAL);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut was_behind = false;
        let mut stop = std::pin::pin!(stopped(stopping));
        loop {
            tokio::select! {
                _ = looks.tick() => {}
                () = &mut stop => return,
            }
            let is_behind = self.is_behind();
            if is_behind && !was_behind {
                if self.is_required() {
                    tracing::warn!(
                        "this node has heard of no leader for {} s: what was revoked since is not known here, and clients \
                         are refused (ACCESS_UNKNOWN)",
                        BELIEF_TIME.as_secs()
                    );
                }
                self.changes.send_modify(|change| *change += 1);
            }
            was_behind = is_behind;
        }
    }
}

/// This node does not know who may do what.
fn behind() -> ApiError {
    ApiError::new(
        Reason::AccessUnknown,
        format!(
            "this node has heard of no leader for {} s, and does not know any more who may do what; nothing was done, ask \
             another node",
            BELIEF_TIME.as_secs()
        ),
    )
    .retry_after_ms(1000)
}

/// Why a caller may not, as it is told.
pub(crate) fn told(denied: &Denied) -> ApiError {
    match denied {
        Denied::Unproven => ApiError::new(
            Reason::Unauthenticated,
            "this cluster wants to know who asks: show a token (LOWKEY_AUTH_FILE, or the header Authorization: Bearer \
             lk_…) or a certificate that a principal has; one that was shown before may have been taken away. On the machine \
             of a node, `lowkey access … --data-dir DIR` makes you an admin",
        ),
        Denied::NotGranted { principal, verb, place } => ApiError::new(
            Reason::PermissionDenied,
            format!(
                "principal {principal} may not {verb} {place}; an admin can allow it: lowkey access grant {principal} PATH \
                 {verb}"
            ),
        )
        .with("principal", principal)
        .with("verb", verb),
        Denied::NotOwn { principal, what } => {
            ApiError::new(Reason::PermissionDenied, format!("{what}, which is what principal {principal} may be"))
                .with("principal", principal)
        }
    }
}

#[cfg(test)]
mod tests;
