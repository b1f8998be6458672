//! R6, R7: until when a client may act as holder (`docs/internals/time.md`).
//!
//! Used by every client, simulated or real: the arithmetic of belief stands here alone. All times are
//! readings of the *client's own* clock, one that also runs while the machine is suspended, in
//! nanoseconds.
//!
//! Belief never outlives the lease: the server starts a lease's time when the request arrives, which
//! is after the client first sent it, and ends it no earlier than the whole time to live after that.
//! A client stops at 90 % of it, counted from before the first send. So beliefs of two clients do not
//! overlap while clock *rates* differ by less than about 5 %, no matter how late the reply is.

/// What a client may count on after a lease was made or renewed: 90 % of the time to live, from
/// before the request was first sent. A retry with the same request id keeps the first time.
///
/// ```
/// use lowkey_api::validity::valid_until;
/// const SECOND: u64 = 1_000_000_000;
/// assert_eq!(valid_until(5 * SECOND, 10), 14 * SECOND);
/// ```
pub fn valid_until(first_sent_nanos: u64, ttl_seconds: i64) -> u64 {
    let ttl_nanos = u64::try_from(ttl_seconds).unwrap_or(0).saturating_mul(1_000_000_000);
    first_sent_nanos.saturating_add(ttl_nanos / 10 * 9)
}

/// R7: the same for a lease that was made by an acquire which waited: the time to live began when the
/// wait ended, and the wait is counted by the server.
///
/// ```
/// use lowkey_api::validity::valid_until_after_wait;
/// const SECOND: u64 = 1_000_000_000;
/// assert_eq!(valid_until_after_wait(0, 10_000, 10), 18 * SECOND);
/// ```
pub fn valid_until_after_wait(first_sent_nanos: u64, waited_ms: i64, ttl_seconds: i64) -> u64 {
    let waited_nanos = u64::try_from(waited_ms).unwrap_or(0).saturating_mul(1_000_000);
    valid_until(first_sent_nanos.saturating_add(waited_nanos / 10 * 9), ttl_seconds)
}

/// The same for a grant that is held for a limited time: that began when the grant was made, after a wait that the server
/// counts. The grant is believed in until then or until its lease's validity ends, whichever comes first. Nothing extends it.
///
/// ```
/// use lowkey_api::validity::held_until;
/// const SECOND: u64 = 1_000_000_000;
/// assert_eq!(held_until(5 * SECOND, 10_000, 60), 68 * SECOND);
/// ```
pub fn held_until(first_sent_nanos: u64, waited_ms: i64, max_hold_seconds: i64) -> u64 {
    valid_until_after_wait(first_sent_nanos, waited_ms, max_hold_seconds)
}

/// The validity of one lease: it only ever grows, and only by making and renewing the lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Validity {
    until_nanos: u64,
    ttl_seconds: i64,
}

impl Validity {
    /// The lease was made by a request that was first sent at this time.
    pub fn made(first_sent_nanos: u64, ttl_seconds: i64) -> Self {
        Self { until_nanos: valid_until(first_sent_nanos, ttl_seconds), ttl_seconds }
    }

    /// A renewal that was first sent at this time was acknowledged. Answers may overtake each other:
    /// each must be credited to its own send, and a late one takes nothing away.
    pub fn renewed(&mut self, first_sent_nanos: u64) {
        self.until_nanos = self.until_nanos.max(valid_until(first_sent_nanos, self.ttl_seconds));
    }

    /// Until when.
    pub fn until_nanos(&self) -> u64 {
        self.until_nanos
    }

    /// Whether the client may act as holder at this time.
    pub fn holds_at(&self, now_nanos: u64) -> bool {
        now_nanos < self.until_nanos
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn an_answer_counts_for_the_send_that_it_answers() {
        let mut validity = Validity::made(0, 10);
        validity.renewed(6 * SECOND);
        validity.renewed(3 * SECOND);
        assert_eq!(validity.until_nanos(), 15 * SECOND);
    }

    #[test]
    fn belief_ends_at_nine_tenths_and_not_later() {
        let validity = Validity::made(SECOND, 10);
        assert!(validity.holds_at(10 * SECOND - 1));
        assert!(!validity.holds_at(10 * SECOND));
    }
}
