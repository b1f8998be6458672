//! Time as a value. A replica never reads a clock: every input carries its own reading.

use std::fmt;

/// A point on one machine's monotonic clock, in nanoseconds since some fixed moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Nanos(pub u64);

impl Nanos {
    /// The point that lies `nanos` later.
    #[must_use]
    pub fn after(self, nanos: u64) -> Self {
        Self(self.0.saturating_add(nanos))
    }

    /// How long ago `earlier` was; nothing if it was not earlier.
    pub fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl fmt::Display for Nanos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:03}s", self.0 / 1_000_000_000, self.0 / 1_000_000 % 1000)
    }
}

/// A millisecond in nanoseconds.
pub const MILLISECOND: u64 = 1_000_000;
