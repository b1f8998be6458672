//! Refusals, counted by cause, and each cause logged once a minute.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use lowkey_api::Reason;
use tokio::time::Instant;

const TOLD_INTERVAL: Duration = Duration::from_secs(60);

/// Why a client was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cause {
    /// It proved nothing.
    Unproven,
    /// It has no grant.
    NotGranted,
    /// It showed too many tokens that are not valid.
    TooManyLogins,
    /// This node does not know who may do what.
    Unknown,
}

const CAUSES: [(Cause, &str); 4] = [
    (Cause::Unproven, "unauthenticated"),
    (Cause::NotGranted, "permission_denied"),
    (Cause::TooManyLogins, "limit_logins"),
    (Cause::Unknown, "access_unknown"),
];

impl Cause {
    pub(crate) fn of(reason: Reason) -> Self {
        match reason {
            Reason::Unauthenticated => Self::Unproven,
            Reason::LimitLogins => Self::TooManyLogins,
            Reason::AccessUnknown => Self::Unknown,
            _ => Self::NotGranted,
        }
    }

    fn place(self) -> usize {
        CAUSES.iter().position(|(cause, _)| *cause == self).unwrap_or_default()
    }
}

#[derive(Default)]
pub(super) struct Complaints {
    counts: [AtomicU64; CAUSES.len()],
    told: Mutex<[Option<Instant>; CAUSES.len()]>,
}

impl Complaints {
    pub(super) fn count(&self, cause: Cause) {
        self.counts[cause.place()].fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a refusal, and logs it unless its cause was logged a short while ago.
    pub(super) fn refused(&self, cause: Cause, address: Option<IpAddr>) {
        self.count(cause);
        let now = Instant::now();
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let last = &mut told[cause.place()];
        if last.is_some_and(|at| now - at < TOLD_INTERVAL) {
            return;
        }
        *last = Some(now);
        drop(told);
        let client = address.map(|address| address.to_string()).unwrap_or_default();
        let why = CAUSES[cause.place()].1;
        tracing::warn!(client, "a client was refused: {why} (told once a minute)");
    }

    pub(super) fn counts(&self) -> [(&'static str, u64); CAUSES.len()] {
        CAUSES.map(|(cause, name)| (name, self.counts[cause.place()].load(Ordering::Relaxed)))
    }
}
