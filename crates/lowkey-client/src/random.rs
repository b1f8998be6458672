//! Chance: ids that nobody else has, and pauses that nobody else makes at the same time.

use std::time::Duration;

fn random_bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).expect("the operating system has randomness");
    bytes
}

/// An id for one operation.
pub(crate) fn request_id() -> String {
    format!("{:032x}", u128::from_ne_bytes(random_bytes()))
}

/// A short tag that tells two processes of one name apart.
pub(crate) fn tag() -> String {
    format!("{:08x}", u32::from_ne_bytes(random_bytes()))
}

/// Pauses between attempts: anywhere between nothing and a bound that doubles ("full jitter").
#[derive(Clone, Copy, Debug)]
pub(crate) struct Backoff {
    bound: Duration,
}

const FIRST_BOUND: Duration = Duration::from_millis(20);
const LAST_BOUND: Duration = Duration::from_millis(500);

impl Backoff {
    pub(crate) const fn new() -> Self {
        Self { bound: FIRST_BOUND }
    }

    /// The next pause.
    pub(crate) fn pause(&mut self) -> Duration {
        let share = f64::from(u32::from_ne_bytes(random_bytes())) / f64::from(u32::MAX);
        let pause = self.bound.mul_f64(share);
        self.bound = (self.bound * 2).min(LAST_BOUND);
        pause
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_stay_within_a_bound_that_grows_to_half_a_second() {
        let mut backoff = Backoff::new();
        for _ in 0..1000 {
            let bound = backoff.bound;
            assert!(backoff.pause() <= bound);
        }
        assert_eq!(backoff.bound, LAST_BOUND);
    }

    #[test]
    fn ids_differ() {
        assert_ne!(request_id(), request_id());
        assert_eq!(request_id().len(), 32);
    }
}
