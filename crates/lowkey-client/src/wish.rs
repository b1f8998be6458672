//! How a lock is wanted, for any kind of lease: the same options for sessions and for scripts.

use std::time::Duration;

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
}

impl LockWish {
    pub(crate) fn new(name: String) -> Self {
        Self { name, mode: Mode::Exclusive, scope: Scope::Name, value: String::new() }
    }

    pub(crate) fn way(&self) -> Way {
        Way { mode: self.mode, scope: self.scope }
    }

    /// The request, under an id of its own, with neither lease nor time to live yet.
    pub(crate) fn request(&self, owner: &str, wait: Duration) -> AcquireLockRequest {
        AcquireLockRequest {
            lock_name: self.name.clone(),
            owner_id: owner.to_owned(),
            wait_ms: i64::try_from(wait.as_millis()).unwrap_or(i64::MAX),
            mode: self.mode.into(),
            scope: self.scope.into(),
            value: self.value.clone(),
            request_id: random::request_id(),
            ..AcquireLockRequest::default()
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

        /// Shows a text with the grant: at most 4096 bytes.
        pub fn value(mut self, value: impl Into<String>) -> Self {
            self.wish.value = value.into();
            self
        }
    };
}
pub(crate) use wish_methods;
