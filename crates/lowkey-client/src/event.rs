//! What a client tells to a program's metrics.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::error::Error;
use crate::session::LossCause;

/// Something that a client did or noticed, for the program's own metrics and logs. Given to the hook of
/// [`ClientBuilder::on_event`](crate::ClientBuilder::on_event).
///
/// New kinds may come with any version.
///
/// ```
/// use lowkey_client::ClientEvent;
///
/// fn metric(event: &ClientEvent<'_>) -> Option<&'static str> {
///     match event {
///         ClientEvent::Acquired { .. } => Some("locks_acquired_total"),
///         ClientEvent::LockLost { .. } | ClientEvent::SessionLost { .. } => Some("locks_lost_total"),
///         ClientEvent::Disconnected { .. } => Some("lock_service_disconnects_total"),
///         _ => None,
///     }
/// }
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum ClientEvent<'a> {
    /// There is a connection to this node: the first one, or another after that.
    Connected {
        /// Its URL.
        endpoint: &'a str,
    },
    /// The connection is gone. The client looks for another one by itself.
    Disconnected {
        /// The node that it was to.
        endpoint: &'a str,
        /// What went wrong.
        problem: &'a str,
    },
    /// A lock was acquired, or an election won.
    Acquired {
        /// The lock.
        name: &'a str,
        /// From the call to the guard.
        took: Duration,
    },
    /// A lock was not acquired: another holds it, or the call failed.
    NotAcquired {
        /// The lock.
        name: &'a str,
        /// From the call to the error.
        took: Duration,
        /// Why; [`Error::is_busy`] tells the two apart.
        error: &'a Error,
    },
    /// The caller went away before the answer came.
    GivenUp {
        /// The lock.
        name: &'a str,
        /// For how long it was asked for.
        took: Duration,
    },
    /// A guard was released or dropped, and was the last one of its grant.
    Released {
        /// The lock.
        name: &'a str,
        /// From the grant to the release.
        held_for: Duration,
    },
    /// A message of renewals was answered.
    Renewed {
        /// How many leases it renewed.
        leases: usize,
        /// From its first send to its answer.
        took: Duration,
    },
    /// A message of renewals was not answered in time. The client tries again.
    NotRenewed {
        /// How many leases it was for.
        leases: usize,
    },
    /// A session is lost, and with it all that it held. Not told of sessions that this client closed.
    SessionLost {
        /// Its lease.
        lease_id: u64,
        /// Why.
        cause: LossCause,
    },
    /// One lock is lost, while its session goes on.
    LockLost {
        /// The lease that held it.
        lease_id: u64,
        /// The token with which it was held.
        token: u64,
        /// Why.
        cause: LossCause,
    },
}

/// A program's hook, or none.
#[derive(Clone, Default)]
pub(crate) struct Hook(Option<Arc<Listen>>);

type Listen = dyn Fn(&ClientEvent<'_>) + Send + Sync;

impl Hook {
    pub(crate) fn new(hook: impl Fn(&ClientEvent<'_>) + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(hook)))
    }

    /// A hook that panics must not end the thread that renews leases.
    pub(crate) fn tell(&self, event: &ClientEvent<'_>) {
        let Some(hook) = &self.0 else { return };
        if catch_unwind(AssertUnwindSafe(|| hook(event))).is_err() {
            tracing::error!(?event, "the program's hook for events of this client panicked");
        }
    }
}

impl fmt::Debug for Hook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_some() { "a hook" } else { "no hook" })
    }
}

/// An acquire under way. If it is dropped before it has ended, its caller went away.
pub(crate) struct Asking<'a> {
    hook: &'a Hook,
    name: &'a str,
    since: Instant,
    has_ended: bool,
}

impl<'a> Asking<'a> {
    pub(crate) fn begin(hook: &'a Hook, name: &'a str) -> Self {
        Self { hook, name, since: Instant::now(), has_ended: false }
    }

    pub(crate) fn end<T>(mut self, outcome: Result<T, Error>) -> Result<T, Error> {
        self.has_ended = true;
        let (name, took) = (self.name, self.since.elapsed());
        match &outcome {
            Ok(_) => self.hook.tell(&ClientEvent::Acquired { name, took }),
            Err(error) => self.hook.tell(&ClientEvent::NotAcquired { name, took, error }),
        }
        outcome
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        if !self.has_ended {
            self.hook.tell(&ClientEvent::GivenUp { name: self.name, took: self.since.elapsed() });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    #[test]
    fn every_acquire_ends_in_one_event_and_a_hook_may_panic() {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let told = Arc::clone(&seen);
        let hook = Hook::new(move |event| {
            told.lock().expect("nobody panics while writing").push(match event {
                ClientEvent::Acquired { .. } => "acquired",
                ClientEvent::NotAcquired { .. } => "not acquired",
                ClientEvent::GivenUp { .. } => "given up",
                _ => "another",
            });
            assert!(!matches!(event, ClientEvent::Acquired { .. }), "a hook that is wrong");
        });
        Asking::begin(&hook, "a").end(Ok(())).expect("it is what it was");
        Asking::begin(&hook, "a").end::<()>(Err(Error::invalid("a"))).expect_err("it is what it was");
        drop(Asking::begin(&hook, "a"));
        assert_eq!(
            *seen.lock().expect("nobody panics while writing"),
            ["acquired", "not acquired", "given up"]
        );
    }
}
