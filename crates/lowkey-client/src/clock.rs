//! The clock that validity is counted by (R6): one that also runs while the machine is suspended.

use rustix::time::{ClockId, clock_gettime};

#[cfg(any(target_os = "linux", target_os = "android"))]
const CLOCK: ClockId = ClockId::Boottime;
/// On other systems the monotonic clock is the nearest choice. If it stands still during suspend, a client
/// that was suspended for longer than its lease lived learns of the loss only when a server answers.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
const CLOCK: ClockId = ClockId::Monotonic;

/// Nanoseconds since some fixed moment.
pub(crate) fn now_nanos() -> u64 {
    let time = clock_gettime(CLOCK);
    let seconds = u64::try_from(time.tv_sec).unwrap_or_default();
    seconds.saturating_mul(1_000_000_000).saturating_add(u64::try_from(time.tv_nsec).unwrap_or_default())
}
