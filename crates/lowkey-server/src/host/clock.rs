//! The one clock of the process, used for all measured time.

use std::time::Instant;

use lowkey_replica::Nanos;

/// A monotonic clock. It does not follow the wall clock, so setting the wall clock has no effect on it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    started: Instant,
}

impl Clock {
    pub(crate) fn new() -> Self {
        Self { started: Instant::now() }
    }

    pub(crate) fn now(self) -> Nanos {
        Nanos(u64::try_from(self.started.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// The `Instant` of a reading.
    pub(crate) fn instant(self, at: Nanos) -> Instant {
        self.started + std::time::Duration::from_nanos(at.0)
    }
}
