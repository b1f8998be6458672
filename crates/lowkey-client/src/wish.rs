//! How a lock is wanted, for any kind of lease: the same options for sessions and for scripts.

use std::time::Duration;

use lowkey_api::limits::MAX_HOLD_MAX;
use lowkey_api::v1::{AcquireLockRequest, Mode, Scope};

use crate::door::Way;
use crate::error::{Error, ErrorKind};
use crate::random;

#[derive(Clone, Debug)]
pub(crate) struct LockWish {
    pub(crate) name: String,
    pub(crate) mode: Mode,
    pub(crate) scope: Scope,
    pub(crate) value: String,
    /// For how long it is to be held at most.
    pub(crate) at_most: Option<Duration>,
}

impl LockWish {
    pub(crate) fn new(name: String) -> Self {
        Self { name, mode: Mode::Exclusive, scope: Scope::Name, value: String::new(), at_most: None }
    }

    pub(crate) fn way(&self) -> Way {
        Way { mode: self.mode, scope: self.scope, is_limited: self.at_most.is_some() }
    }

    /// The request, under an id of its own, with neither lease nor time to live yet.
    ///
    /// An error if the limit is none that the service takes: one that was left out would end nothing.
    pub(crate) fn request(&self, owner: &str, wait: Duration) -> Result<AcquireLockRequest, Error> {
        Ok(AcquireLockRequest {
            lock_name: self.name.clone(),
            owner_id: owner.to_owned(),
            wait_ms: i64::try_from(wait.as_millis()).unwrap_or(i64::MAX),
            mode: self.mode.into(),
            scope: self.scope.into(),
            value: self.value.clone(),
            request_id: random::request_id(),
            max_hold_seconds: self.at_most.map_or(Ok(0), limit_seconds)?,
            ..AcquireLockRequest::default()
        })
    }
}

/// A limit as the service takes it.
fn limit_seconds(limit: Duration) -> Result<i64, Error> {
    let is_allowed = limit.subsec_nanos() == 0 && (Duration::from_secs(1)..=MAX_HOLD_MAX).contains(&limit);
    match i64::try_from(limit.as_secs()) {
        Ok(seconds) if is_allowed => Ok(seconds),
        _ => {
            let longest = MAX_HOLD_MAX.as_secs();
            Err(Error::invalid(format!("at_most takes whole seconds, 1 to {longest}, and not {limit:?}")))
        }
    }
}

/// True if a wait ended before its lock was granted. A caller without a time limit then waits again.
pub(crate) fn is_over<T>(wait: &Result<T, Error>) -> bool {
    wait.as_ref().is_err_and(|error| matches!(error.kind(), ErrorKind::WaitTimeout(_)))
}

/// The methods that say how a lock is to be held, for every type that has a [`LockWish`].
macro_rules! wish_methods {
    () => {
        /// Holds it together with others that do the same.
        pub fn shared(mut self) -> Self {
            self.wish.mode = lowkey_api::v1::Mode::Shared;
            self
        }

        /// Holds the name and everything below it.
        pub fn subtree(mut self) -> Self {
            self.wish.scope = lowkey_api::v1::Scope::Subtree;
            self
        }

        /// Holds it for this long at most, however well its lease is renewed: whole seconds, up to a week. It ends a job
        /// that hangs. The time counts from the grant; this client stops believing at 90 % of it, counted from before it
        /// asked, and the session lives on.
        pub fn at_most(mut self, limit: std::time::Duration) -> Self {
            self.wish.at_most = Some(limit);
            self
        }

        /// Shows a text with the grant: at most 4096 bytes.
        pub fn value(mut self, value: impl Into<String>) -> Self {
            self.wish.value = value.into();
            self
        }
    };
}
pub(crate) use wish_methods;
