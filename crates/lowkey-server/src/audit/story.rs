//! What is known of a lock, as sentences: what is so, what happened, and what is odd.
//!
//! Nothing here asks anybody. Times are as the leaders' wall clocks told them, in UTC, and a clock that jumped shows.

use std::collections::BTreeMap;

use lowkey_api::v1::{GetLockResponse, LockHolder};
use lowkey_audit::{Cause, Happening, HappeningKind, Row};

const SECOND_MS: u64 = 1_000;
const DAY_MS: u64 = 24 * 3600 * SECOND_MS;
/// So many of the last grants are told.
const TOLD: usize = 5;
/// An owner that lost a lock to expiry so often is told as odd.
const EXPIRIES_ODD: usize = 3;
/// A queue that has not moved for so long is told as odd.
const STUCK_MS: u64 = 60 * SECOND_MS;

/// A holder, and its lease's time to live; 0 if that is not known.
pub(crate) struct StoryHolder {
    pub(crate) holder: LockHolder,
    pub(crate) ttl_seconds: i64,
}

/// What there is to tell of.
pub(crate) struct Story<'a> {
    pub(crate) now_unix_ms: u64,
    pub(crate) lock: &'a GetLockResponse,
    pub(crate) holders: &'a [StoryHolder],
    /// Grants that are over, the last first.
    pub(crate) rows: &'a [Row],
    pub(crate) happenings: &'a [Happening],
}

impl Story<'_> {
    /// Who holds it, who waits, and how the last holders lost it.
    pub(crate) fn sentences(&self) -> Vec<String> {
        let name = &self.lock.lock_name;
        let mut told = Vec::new();
        for StoryHolder { holder, .. } in self.holders {
            told.push(self.holds(holder));
        }
        if self.holders.is_empty() {
            told.push(match self.lock.covered_by.as_str() {
                "" => format!("Nobody holds {name}."),
                above => format!("Nobody holds {name} itself, but {above} is held with all below it."),
            });
        }
        let more = self.lock.holder_count as usize - self.holders.len().min(self.lock.holder_count as usize);
        if more > 0 {
            told.push(format!("{more} others share it."));
        }
        if let Some(first) = self.lock.waiters.first() {
            let others = match self.lock.waiter_count {
                0 | 1 => String::new(),
                count => format!(" {count} wait in all."),
            };
            let since = match unsigned(first.asked_unix_ms) {
                Some(asked) => format!(" and has waited {} (since {})", self.span_since(asked), time(asked)),
                None => String::new(),
            };
            told.push(format!("{} is the next in line{since}.{others}", first.owner_id));
        }
        if self.rows.is_empty() {
            told.push(format!("No grant of {name} that is over is on record."));
        }
        told.extend(self.rows.iter().take(TOLD).map(|row| ended(row, None)));
        told
    }

    fn holds(&self, holder: &LockHolder) -> String {
        let since = unsigned(holder.since_unix_ms).unwrap_or(0);
        let left = match holder.remaining_ms {
            Some(ms) => {
                format!("; its lease {} has {} left", holder.lease_id, span(unsigned(ms).unwrap_or(0)))
            }
            None => String::new(),
        };
        format!(
            "{} holds {} with token {} since {} ({}){left}.",
            holder.owner_id,
            self.lock.lock_name,
            holder.fencing_token,
            time(since),
            self.span_since(since),
        )
    }

    /// What is odd about the lock, and what may be the cause.
    pub(crate) fn oddities(&self) -> Vec<String> {
        let mut odd = self.expiries();
        for waiter in &self.lock.waiters {
            if let Some(own) = self.holders.iter().find(|it| it.holder.owner_id == waiter.owner_id) {
                odd.push(format!(
                    "{} waits for itself: it holds the lock with lease {}, and waits for it with lease {}.",
                    waiter.owner_id, own.holder.lease_id, waiter.lease_id
                ));
                break;
            }
        }
        for StoryHolder { holder, ttl_seconds } in self.holders {
            let ttl_ms = unsigned(*ttl_seconds).unwrap_or(0) * SECOND_MS;
            if let Some(left) = holder.remaining_ms.and_then(unsigned_or_zero)
                && left < ttl_ms / 3
            {
                odd.push(format!(
                    "The lease of {} is renewed late: for {} of its {} nothing was heard of it.",
                    holder.owner_id,
                    span(ttl_ms - left),
                    span(ttl_ms)
                ));
            }
        }
        odd.extend(self.stuck());
        let changes = self.happenings.iter().filter(|it| it.kind == HappeningKind::Leader).count();
        if changes > 5 {
            odd.push(format!("The cluster's leader changed {changes} times in the last 24 hours."));
        }
        odd
    }

    /// Owners that lose the lock to expiry again and again.
    fn expiries(&self) -> Vec<String> {
        let since = self.now_unix_ms.saturating_sub(DAY_MS);
        let recent = self.rows.iter().filter(|row| row.ended_unix_ms.is_some_and(|ended| ended >= since));
        let mut by_owner: BTreeMap<&str, Vec<&Row>> = BTreeMap::new();
        for row in recent.filter(|row| row.cause == Cause::Expired) {
            by_owner.entry(&row.owner).or_default().push(row);
        }
        let odd = by_owner.into_iter().filter(|(_, rows)| rows.len() >= EXPIRIES_ODD);
        odd.map(|(owner, rows)| {
            let silences = rows.iter().filter_map(|row| Some(row.silence?.silent_ms));
            let why = match silences.min() {
                Some(silent) => format!(
                    ", each time after {} of silence or more: its TTL ({} s) is shorter than its pauses",
                    span(silent),
                    rows[0].ttl_seconds
                ),
                None => ": its TTL may be shorter than its pauses".to_owned(),
            };
            format!("{owner} lost it {} times in the last 24 hours{why}.", rows.len())
        })
        .collect()
    }

    /// A queue that does not move.
    fn stuck(&self) -> Option<String> {
        let first = self.lock.waiters.first()?;
        let StoryHolder { holder, .. } = self.holders.first()?;
        let since = unsigned(holder.since_unix_ms)?;
        let asked = unsigned(first.asked_unix_ms).unwrap_or(since);
        let still = self.now_unix_ms.saturating_sub(since.max(asked));
        (still >= STUCK_MS).then(|| {
            format!(
                "{} has waited {}; the queue has not moved for {} because {} holds the lock since {} and renews its \
                 lease.",
                first.owner_id,
                self.span_since(asked),
                self.span_since(since),
                holder.owner_id,
                time(since)
            )
        })
    }

    /// The story of one grant and of the one after it; `rows` has what of the two is over.
    pub(crate) fn of_token(&self, token: u64, rows: &[Row]) -> Vec<String> {
        let name = &self.lock.lock_name;
        if let Some(now) = self.holders.iter().find(|it| it.holder.fencing_token == token) {
            return vec![
                self.holds(&now.holder),
                format!("Token {token} is current: nothing came after it."),
            ];
        }
        let Some(row) = rows.iter().find(|row| row.token == token) else {
            return vec![format!("No grant of {name} with token {token} is on record.")];
        };
        let mut told = vec![ended(row, Some(row.lock.as_str()))];
        let later = |ms: u64| match row.ended_unix_ms {
            Some(ended) => format!(" {} later", span(ms.saturating_sub(ended))),
            None => String::new(),
        };
        let successor = rows.iter().find(|row| row.token > token);
        let holder = self.holders.iter().find(|it| it.holder.fencing_token > token);
        told.push(match (successor, holder) {
            (Some(next), _) => {
                format!("Token {} went to {}{}.", next.token, next.owner, later(next.granted_unix_ms))
            }
            (None, Some(StoryHolder { holder, .. })) => format!(
                "Token {} went to {}{}, and is current.",
                holder.fencing_token,
                holder.owner_id,
                later(unsigned(holder.since_unix_ms).unwrap_or(0))
            ),
            (None, None) => "Nobody has held the lock since.".to_owned(),
        });
        told.push(format!("A resource that has seen a higher token refuses a write with token {token}."));
        told
    }

    fn span_since(&self, unix_ms: u64) -> String {
        span(self.now_unix_ms.saturating_sub(unix_ms))
    }
}

/// How a grant ended.
fn ended(row: &Row, lock: Option<&str>) -> String {
    let of = lock.map(|lock| format!(" of {lock}")).unwrap_or_default();
    let waited = row.waited_ms().filter(|ms| *ms >= SECOND_MS);
    let waited = waited.map(|ms| format!(" after a wait of {}", span(ms))).unwrap_or_default();
    let end = match row.cause {
        Cause::Released => "given back",
        Cause::Expired => "lost",
        Cause::Revoked => "taken away",
        Cause::HeldTooLong => "ended",
        Cause::ClusterRecovered => "dropped",
    };
    let at = row.ended_unix_ms.map(|ended| format!(" at {}", time(ended))).unwrap_or_default();
    let by = match row.cause {
        Cause::Released => "",
        Cause::Expired => " by expiry",
        Cause::Revoked => " by revoking its lease",
        Cause::HeldTooLong => " because it was held too long",
        Cause::ClusterRecovered => " when the cluster was recovered",
    };
    let detail = row.detail();
    let detail = if detail.is_empty() { detail } else { format!(" ({detail})") };
    format!(
        "Token {}{of} was {}'s: granted {}{waited}, {end}{at}{by}{detail}.",
        row.token,
        row.owner,
        time(row.granted_unix_ms)
    )
}

fn unsigned(number: i64) -> Option<u64> {
    u64::try_from(number).ok().filter(|number| *number > 0)
}

fn unsigned_or_zero(number: i64) -> Option<u64> {
    u64::try_from(number).ok()
}

/// A moment, in UTC to the millisecond.
pub(crate) fn time(unix_ms: u64) -> String {
    let (days, ms) = (unix_ms / DAY_MS, unix_ms % DAY_MS);
    let (year, month, day) = date(days);
    let seconds = ms / SECOND_MS;
    format!(
        "{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02}.{:03} UTC",
        seconds / 3600,
        seconds / 60 % 60,
        seconds % 60,
        ms % SECOND_MS
    )
}

/// The date so many days after 1970 began, in the calendar of today: eras of 400 years, each of 146,097 days.
fn date(days: u64) -> (u64, u64, u64) {
    // The year is taken to begin in March, so that a leap day is its last.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day_of_month = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (era * 400 + year + u64::from(month <= 2), month, day_of_month)
}

/// A length of time, as a person says it.
pub(crate) fn span(ms: u64) -> String {
    let seconds = ms / SECOND_MS;
    match seconds {
        0 => format!("{ms} ms"),
        1..=119 => format!("{seconds}.{:02} s", ms % SECOND_MS / 10),
        120..=7_199 => format!("{} min", seconds / 60),
        7_200..=172_799 => format!("{} h", seconds / 3600),
        _ => format!("{} days", seconds / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use lowkey_api::v1::LockWaiter;
    use lowkey_audit::Position;
    use lowkey_core::Silence;

    use super::*;

    /// 2026-03-01 03:00:00 UTC.
    const THREE: u64 = 1_772_334_000_000;

    fn row(token: u64, owner: &str, cause: Cause) -> Row {
        let silence = Silence { silent_ms: 30_020, stalled_ms: 0, leader_changed: false };
        Row {
            cluster: "c".into(),
            lock: "billing/nightly".into(),
            token,
            owner: owner.into(),
            lease: token,
            is_shared: false,
            is_subtree: false,
            ttl_seconds: 30,
            asked_unix_ms: None,
            granted_unix_ms: THREE + 2_000,
            granted_revision: 1,
            ended_unix_ms: Some(THREE + 32_050),
            ended: Position { revision: 2 * token, ordinal: 0 },
            term: 3,
            cause,
            actor: None,
            silence: (cause == Cause::Expired).then_some(silence),
            is_perhaps_uncommitted: false,
        }
    }

    fn holder(token: u64, owner: &str, since_ms: u64, remaining_ms: i64) -> StoryHolder {
        StoryHolder {
            holder: LockHolder {
                owner_id: owner.into(),
                lease_id: 9,
                fencing_token: token,
                since_unix_ms: (THREE + since_ms) as i64,
                remaining_ms: Some(remaining_ms),
                ..LockHolder::default()
            },
            ttl_seconds: 30,
        }
    }

    fn lock(waiters: &[(&str, u64)]) -> GetLockResponse {
        let waiter = |(owner, asked_ms): &(&str, u64)| LockWaiter {
            owner_id: (*owner).into(),
            lease_id: 12,
            asked_unix_ms: (THREE + asked_ms) as i64,
            ..LockWaiter::default()
        };
        GetLockResponse {
            lock_name: "billing/nightly".into(),
            waiter_count: waiters.len() as u32,
            waiters: waiters.iter().map(waiter).collect(),
            ..GetLockResponse::default()
        }
    }

    #[test]
    fn the_story_of_a_token_says_how_it_was_lost_and_who_came_next() {
        let next = Row { granted_unix_ms: THREE + 32_061, ..row(43, "worker-2", Cause::Released) };
        let rows = [row(42, "worker-1", Cause::Expired), next];
        let story =
            Story { now_unix_ms: THREE + 60_000, lock: &lock(&[]), holders: &[], rows: &[], happenings: &[] };
        assert_eq!(
            story.of_token(42, &rows),
            [
                "Token 42 of billing/nightly was worker-1's: granted 2026-03-01 03:00:02.000 UTC, lost at 2026-03-01 \
                 03:00:32.050 UTC by expiry (last renewal 30.02 s before, no leader change).",
                "Token 43 went to worker-2 11 ms later.",
                "A resource that has seen a higher token refuses a write with token 42.",
            ]
        );
        assert_eq!(story.of_token(7, &[]), ["No grant of billing/nightly with token 7 is on record."]);
    }

    #[test]
    fn what_is_odd_is_said_with_its_likely_cause() {
        let rows = [1, 2, 3].map(|token| row(token, "worker-7", Cause::Expired));
        let (lock, holders) = (lock(&[("worker-2", 10_000)]), [holder(9, "worker-1", 40_000, 5_000)]);
        let story = Story {
            now_unix_ms: THREE + 250_000,
            lock: &lock,
            holders: &holders,
            rows: &rows,
            happenings: &[],
        };
        assert_eq!(
            story.oddities(),
            [
                "worker-7 lost it 3 times in the last 24 hours, each time after 30.02 s of silence or more: its TTL (30 s) \
                 is shorter than its pauses.",
                "The lease of worker-1 is renewed late: for 25.00 s of its 30.00 s nothing was heard of it.",
                "worker-2 has waited 4 min; the queue has not moved for 3 min because worker-1 holds the lock since \
                 2026-03-01 03:00:40.000 UTC and renews its lease.",
            ]
        );
    }

    #[test]
    fn an_owner_that_waits_for_itself_is_told_so() {
        let (lock, holders) = (lock(&[("worker-1", 10_000)]), [holder(9, "worker-1", 0, 25_000)]);
        let story =
            Story { now_unix_ms: THREE + 20_000, lock: &lock, holders: &holders, rows: &[], happenings: &[] };
        assert_eq!(
            story.oddities(),
            ["worker-1 waits for itself: it holds the lock with lease 9, and waits for it with lease 12."]
        );
        assert_eq!(
            story.sentences(),
            [
                "worker-1 holds billing/nightly with token 9 since 2026-03-01 03:00:00.000 UTC (20.00 s); its lease 9 has \
                 25.00 s left.",
                "worker-1 is the next in line and has waited 10.00 s (since 2026-03-01 03:00:10.000 UTC).",
                "No grant of billing/nightly that is over is on record.",
            ]
        );
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (days, expected) in [
            (0, (1970, 1, 1)),
            (58, (1970, 2, 28)),
            (59, (1970, 3, 1)),
            (11_016, (2000, 2, 29)),
            (11_017, (2000, 3, 1)),
            (20_513, (2026, 3, 1)),
        ] {
            assert_eq!(date(days), expected, "{days}");
        }
        assert_eq!(time(THREE), "2026-03-01 03:00:00.000 UTC");
    }
}
