//! The one clock of the process that time is measured with.

use std::time::Instant;

use lowkey_replica::Nanos;

/// A monotonic clock. It does not follow the wall clock, and so does not care how that is set.
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

    /// The instant that a reading stands for.
    pub(crate) fn instant(self, at: Nanos) -> Instant {
        self.started + std::time::Duration::from_nanos(at.0)
    }
}
