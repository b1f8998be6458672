//! Logins that failed, by address. A secret of 256 random bits is not guessed; what is limited is the noise.
//!
//! A valid token is served whatever else comes from its address: others behind the same one must not lock
//! it out.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::edge::budget::one_client;

/// So many failures of one address are answered in full in each [`SPAN`].
const FAILURES_MAX: u32 = 20;
const SPAN: Duration = Duration::from_secs(60);
/// So many addresses are remembered. Beyond that all of the others count as one.
const ADDRESSES_MAX: usize = 10_000;

#[derive(Default)]
pub(super) struct Logins {
    failures: Mutex<HashMap<Option<IpAddr>, (Instant, u32)>>,
}

impl Logins {
    /// Counts a failure. If there are too many: how long to wait, in ms.
    pub(super) fn failed(&self, address: Option<IpAddr>) -> Result<(), u64> {
        let (now, mut address) = (Instant::now(), address.map(one_client));
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        if failures.len() >= ADDRESSES_MAX && !failures.contains_key(&address) {
            failures.retain(|_, (began, _)| now - *began < SPAN);
            if failures.len() >= ADDRESSES_MAX {
                address = None;
            }
        }
        let (began, count) = failures.entry(address).or_insert((now, 0));
        if now - *began >= SPAN {
            (*began, *count) = (now, 0);
        }
        *count = count.saturating_add(1);
        match *count {
            ..=FAILURES_MAX => Ok(()),
            _ => Err(u64::try_from((SPAN - (now - *began)).as_millis()).unwrap_or(u64::MAX).max(1)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn an_address_may_fail_so_often_in_a_minute() {
        let logins = Logins::default();
        let [one, other] = ["10.0.0.1", "10.0.0.2"].map(|address| Some(address.parse().unwrap()));
        assert!((0..FAILURES_MAX).all(|_| logins.failed(one).is_ok()));
        tokio::time::advance(Duration::from_secs(20)).await;
        assert_eq!(logins.failed(one), Err(40_000));
        assert_eq!(logins.failed(other), Ok(()));
        tokio::time::advance(Duration::from_secs(40)).await;
        assert_eq!(logins.failed(one), Ok(()));
    }

    #[test]
    fn addresses_without_end_take_bounded_room() {
        let logins = Logins::default();
        for number in 0..(2 * ADDRESSES_MAX as u32) {
            let _ = logins.failed(Some(IpAddr::from(number.to_be_bytes())));
        }
        assert!(logins.failures.lock().unwrap().len() <= ADDRESSES_MAX + 1);
    }
}
