//! Pauses that nobody else makes at the same time.

use std::time::Duration;

const FIRST_BOUND: Duration = Duration::from_millis(100);
const LAST_BOUND: Duration = Duration::from_secs(5);

/// Pauses between attempts: anywhere between nothing and a bound that doubles ("full jitter").
#[derive(Clone, Copy, Debug)]
pub(super) struct RestartPause {
    bound: Duration,
}

impl RestartPause {
    pub(super) const fn new() -> Self {
        Self { bound: FIRST_BOUND }
    }

    /// The next pause.
    pub(super) fn pause(&mut self) -> Duration {
        let random = getrandom::u32().expect("the operating system has randomness");
        let pause = self.bound.mul_f64(f64::from(random) / f64::from(u32::MAX));
        self.bound = (self.bound * 2).min(LAST_BOUND);
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_stay_within_a_bound_that_grows_to_five_seconds() {
        let mut backoff = RestartPause::new();
        for _ in 0..1000 {
            let bound = backoff.bound;
            assert!(backoff.pause() <= bound);
        }
        assert_eq!(backoff.bound, LAST_BOUND);
    }
}
