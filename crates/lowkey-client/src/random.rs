//! Randomness: unique ids, and pauses that differ between clients.

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

/// A short tag that distinguishes two processes of one name.
pub(crate) fn tag() -> String {
    format!("{:08x}", u32::from_ne_bytes(random_bytes()))
}

/// A random time between zero and this bound.
pub(crate) fn up_to(bound: Duration) -> Duration {
    let share = f64::from(u32::from_ne_bytes(random_bytes())) / f64::from(u32::MAX);
    bound.mul_f64(share)
}

/// Pauses between attempts: a random time between zero and a bound that doubles ("full jitter").
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
        let pause = up_to(self.bound);
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
