//! Durations as people type them: `200ms`, `3s`, `5m`, `1h`.

use std::time::Duration;

/// The longest limit that the service takes.
const MAX_HOLD_MAX: Duration = Duration::from_secs(7 * 24 * 3600);

/// The longest wait that the service takes.
const WAIT_MAX: Duration = Duration::from_secs(24 * 3600);

/// A number and a unit.
pub(crate) fn parse_duration(text: &str) -> Result<Duration, String> {
    let allowed = || "must be a whole number with a unit, such as 200ms, 3s, 5m or 1h".to_owned();
    let unit_at = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(allowed)?;
    let (number, unit) = text.split_at(unit_at);
    let number: u64 = number.parse().map_err(|_| allowed())?;
    let unit_ms = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return Err(allowed()),
    };
    let ms = number.checked_mul(unit_ms).filter(|ms| *ms <= 365 * 24 * 3_600_000);
    ms.map(Duration::from_millis).ok_or_else(|| "must be less than a year".to_owned())
}

/// How long something is tried: it takes some time.
pub(crate) fn parse_timeout(text: &str) -> Result<Duration, String> {
    let timeout = parse_duration(text)?;
    (!timeout.is_zero()).then_some(timeout).ok_or_else(|| "must be above 0".to_owned())
}

/// A lease's time to live.
pub(crate) fn parse_ttl(text: &str) -> Result<Duration, String> {
    let ttl = parse_duration(text)?;
    let is_allowed = ttl.subsec_nanos() == 0 && (1..=600).contains(&ttl.as_secs());
    is_allowed.then_some(ttl).ok_or_else(|| "must be whole seconds, 1s to 10m".to_owned())
}

/// How long a lock is held at most.
pub(crate) fn parse_limit(text: &str) -> Result<Duration, String> {
    let limit = parse_duration(text)?;
    let is_allowed = limit.subsec_nanos() == 0 && (Duration::from_secs(1)..=MAX_HOLD_MAX).contains(&limit);
    is_allowed.then_some(limit).ok_or_else(|| "must be whole seconds, 1s to 168h, which is a week".to_owned())
}

/// How long to wait for a lock.
pub(crate) fn parse_wait(text: &str) -> Result<Duration, String> {
    let wait = parse_duration(text)?;
    let is_allowed = wait <= WAIT_MAX;
    is_allowed
        .then_some(wait)
        .ok_or_else(|| "must be at most 24h; leave --wait out to wait as long as it takes".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_have_a_number_and_a_unit() {
        for (text, ms) in [("200ms", 200), ("3s", 3_000), ("5m", 300_000), ("1h", 3_600_000), ("0s", 0)] {
            assert_eq!(parse_duration(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for text in ["", "3", "s", "3 s", "-3s", "+3s", "1.5s", "3d", "99999999999999999999s", "1000000h"] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_lease_lives_for_whole_seconds_up_to_ten_minutes() {
        assert_eq!(parse_ttl("2000ms"), Ok(Duration::from_secs(2)));
        assert_eq!(parse_ttl("10m"), Ok(Duration::from_secs(600)));
        for text in ["0s", "1500ms", "601s", "1h"] {
            assert!(parse_ttl(text).is_err(), "{text}");
        }
    }

    #[test]
    fn what_is_tried_takes_some_time() {
        assert_eq!(parse_timeout("1ms"), Ok(Duration::from_millis(1)));
        assert!(parse_timeout("0s").is_err());
    }

    #[test]
    fn nobody_waits_for_more_than_a_day_in_so_many_words() {
        assert!(parse_wait("24h").is_ok());
        assert!(parse_wait("25h").unwrap_err().contains("leave --wait out"));
    }
}
