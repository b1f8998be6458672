//! The few numbers of a node that a look at the whole cluster needs, as plain counters: the registry can only be
//! written out whole.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use lowkey_api::v1::{AcquireLockRequest, Counters, RenewLeaseRequest};

use crate::call::Call;

/// The first bound of durations, each following one being twice as much.
const FIRST_BOUND_MICROS: u64 = 100;
/// 17 bounds, from 100 microseconds to 6.5 seconds, and all that took longer.
const DURATIONS: usize = 18;

pub(super) struct Tally {
    since: Instant,
    grants: AtomicU64,
    renewals: AtomicU64,
    ok: AtomicU64,
    failed: AtomicU64,
    /// Of calls that do not wait for a lock.
    durations: [AtomicU64; DURATIONS],
}

impl Tally {
    pub(super) fn new() -> Self {
        Self {
            since: Instant::now(),
            grants: AtomicU64::new(0),
            renewals: AtomicU64::new(0),
            ok: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            durations: Default::default(),
        }
    }

    /// So many calls of this kind ended, each after this time.
    pub(super) fn count(&self, rpc: &'static str, is_ok: bool, count: u64, took: Duration) {
        let add = |to: &AtomicU64| {
            to.fetch_add(count, Ordering::Relaxed);
        };
        add(if is_ok { &self.ok } else { &self.failed });
        let acquires = [AcquireLockRequest::NAME, AcquireLockRequest::NAME_WAITING];
        if is_ok && acquires.contains(&rpc) {
            add(&self.grants);
        } else if is_ok && rpc == RenewLeaseRequest::NAME {
            add(&self.renewals);
        }
        if rpc != AcquireLockRequest::NAME_WAITING {
            add(&self.durations[place(took)]);
        }
    }

    pub(super) fn counters(&self, leases_expired: u64) -> Counters {
        let read = |of: &AtomicU64| of.load(Ordering::Relaxed);
        Counters {
            up_ms: u64::try_from(self.since.elapsed().as_millis()).unwrap_or(u64::MAX),
            grants: read(&self.grants),
            renewals: read(&self.renewals),
            calls_ok: read(&self.ok),
            calls_failed: read(&self.failed),
            leases_expired,
            durations: self.durations.iter().map(read).collect(),
        }
    }
}

/// Where a duration is counted.
fn place(took: Duration) -> usize {
    let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
    // Beyond the largest power of two there is none, and it took long.
    let doublings = micros.div_ceil(FIRST_BOUND_MICROS).max(1).checked_next_power_of_two();
    doublings.map_or(DURATIONS - 1, |power| (power.trailing_zeros() as usize).min(DURATIONS - 1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_counted_under_the_bound_that_it_does_not_exceed() {
        for (micros, at) in [(0, 0), (100, 0), (101, 1), (200, 1), (201, 2), (6_553_600, 16), (6_553_601, 17)]
        {
            assert_eq!(place(Duration::from_micros(micros)), at, "{micros}");
        }
        assert_eq!(place(Duration::MAX), DURATIONS - 1);
    }

    #[test]
    fn what_waits_for_a_lock_is_no_slow_call() {
        let tally = Tally::new();
        tally.count(AcquireLockRequest::NAME_WAITING, true, 1, Duration::from_secs(60));
        tally.count(AcquireLockRequest::NAME, false, 1, Duration::ZERO);
        tally.count(RenewLeaseRequest::NAME, true, 5, Duration::from_millis(1));
        let counters = tally.counters(2);
        let told = (counters.grants, counters.renewals, counters.calls_ok, counters.calls_failed);
        assert_eq!((told, counters.leases_expired), ((1, 5, 6, 1), 2));
        assert_eq!((counters.durations[0], counters.durations.iter().sum::<u64>()), (1, 6));
    }
}
