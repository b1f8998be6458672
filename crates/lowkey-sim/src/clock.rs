//! A machine's clock: it runs at its own rate, and nobody knows the true time.

/// A clock that shows `offset + true time · rate`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SimClock {
    offset_nanos: u64,
    /// Parts in a million by which it runs fast (or slow, below zero).
    drift_ppm: i64,
}

impl SimClock {
    pub(crate) fn new(offset_nanos: u64, drift_ppm: i64) -> Self {
        Self { offset_nanos, drift_ppm }
    }

    /// What the clock shows at a true time.
    pub(crate) fn read(self, true_nanos: u64) -> u64 {
        self.offset_nanos + scale(true_nanos, 1_000_000 + self.drift_ppm, 1_000_000)
    }

    /// The true time at which the clock shows this; rounded up.
    pub(crate) fn when(self, shown_nanos: u64) -> u64 {
        let shown = shown_nanos.saturating_sub(self.offset_nanos);
        scale(shown, 1_000_000, 1_000_000 + self.drift_ppm) + 1
    }

    /// How long it takes in true time until the clock has moved on by this much.
    pub(crate) fn true_span(self, shown_nanos: u64) -> u64 {
        scale(shown_nanos, 1_000_000, 1_000_000 + self.drift_ppm)
    }
}

fn scale(nanos: u64, by: i64, of: i64) -> u64 {
    (u128::from(nanos) * by as u128 / of as u128) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fast_clock_shows_more_and_is_read_back() {
        let clock = SimClock::new(500, 40_000);
        assert_eq!(clock.read(1_000_000_000), 1_040_000_500);
        let when = clock.when(clock.read(123_456_789));
        assert!((123_456_789..=123_456_791).contains(&when), "{when}");
    }
}
