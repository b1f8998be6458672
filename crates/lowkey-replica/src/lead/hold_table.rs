//! When grants end that are held for a limited time, however well their leases are renewed.
//!
//! The state machine knows which grants have a limit; only the leader knows since when. It times them as it times leases
//! (`lease_table.rs`), with one difference: nothing that a client says moves such a deadline.
//!
//! - **R1** The table is part of a lead.
//! - **R3** It ends with the lead. The next one gives each of them its whole time anew, in portions ([`HoldTable::arm`]):
//!   to end later is safe. A grant of this term starts when its entry is applied ([`HoldTable::insert`]). So a client's
//!   belief, which counts from before its request was sent, ends before.
//! - **R8** A leader that was itself stalled gives the time back, at most one limit in all ([`HoldTable::forgive`]).
//! - **R4** A deadline that passed makes the grant `Ending` ([`HoldTable::take_due`]); from there only an applied entry
//!   ends it, or a new leader begins anew.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use lowkey_core::{HoldRef, LeaseId, LockName, MaxHold, State, Token, mutants};

use crate::time::Nanos;

/// R8: so many grants take what they were given in one look for those that are due.
const MOVED_MAX: usize = 4_096;

/// Invariants:
/// - `holds` has exactly the grants of the applied state that have a limit, but for those that are to be armed.
/// - `by_deadline` has exactly those that are not `Ending`, under the deadlines that stand in `holds`. A grant ends no
///   earlier than that, and later if it has not taken its part of `given_nanos` yet.
#[derive(Debug)]
pub(crate) struct HoldTable {
    /// How long after its deadline a grant is ended: as for leases.
    grace_nanos: u64,
    holds: BTreeMap<Token, Timing>,
    by_deadline: BTreeSet<(Nanos, Token)>,
    /// R8: what was given back in all.
    given_nanos: u64,
    /// R3: of the grants that there were when the lead began, those with these tokens are to be armed.
    unarmed: Range<u64>,
}

#[derive(Debug)]
struct Timing {
    lock: LockName,
    lease: LeaseId,
    /// Nothing for one that is `Ending`.
    deadline: Option<Nanos>,
    /// R8: what may still be given back to it.
    allowed_nanos: u64,
    /// Of what was given back in all, so much came before, or is in its deadline already.
    taken_nanos: u64,
}

impl HoldTable {
    /// R1: of a lead that begins with grants up to this token. None of them is armed yet.
    pub(crate) fn begin(grace_nanos: u64, last: Token) -> Self {
        let unarmed = match mutants::A_NEW_LEADER_TIMES_NO_HOLDS.is_active() {
            false => 1..last.0.saturating_add(1),
            true => 0..0,
        };
        let (holds, by_deadline) = (BTreeMap::new(), BTreeSet::new());
        Self { grace_nanos, holds, by_deadline, given_nanos: 0, unarmed }
    }

    /// R3: gives the next grants, up to `count_max`, their whole time from now.
    pub(crate) fn arm(&mut self, now: Nanos, count_max: usize, state: &State) {
        if self.unarmed.is_empty() {
            return;
        }
        let Range { start, end } = std::mem::take(&mut self.unarmed);
        let holds = state.limited_from(Token(start)).take_while(|(hold, _)| hold.token.0 < end);
        for (count, (hold, max_hold)) in holds.enumerate() {
            if count == count_max {
                self.unarmed = hold.token.0..end;
                return;
            }
            self.insert(now, hold, max_hold);
        }
    }

    /// R3: a grant that is made in this term starts when its entry is applied.
    pub(crate) fn insert(&mut self, now: Nanos, hold: HoldRef, max_hold: MaxHold) {
        let HoldRef { lock, lease, token } = hold;
        let length = match mutants::A_HOLD_IS_ENDED_EARLY.is_active() {
            false => max_hold.nanos(),
            true => max_hold.nanos() / 2,
        };
        let deadline = now.after(length);
        let timing = Timing {
            lock,
            lease,
            deadline: Some(deadline),
            allowed_nanos: max_hold.nanos(),
            taken_nanos: self.given_nanos,
        };
        let before = self.holds.insert(token, timing);
        assert!(before.is_none(), "token {token} was granted twice");
        self.by_deadline.insert((deadline, token));
    }

    /// The grant is over, in whatever way. One that is not armed yet is not in the state any more either.
    pub(crate) fn remove(&mut self, token: Token) {
        if let Some(Timing { deadline: Some(deadline), .. }) = self.holds.remove(&token) {
            self.by_deadline.remove(&(deadline, token));
        }
    }

    /// R8: adds a gap in which the leader itself was stalled to every deadline.
    pub(crate) fn forgive(&mut self, gap_nanos: u64) {
        self.given_nanos = self.given_nanos.saturating_add(gap_nanos);
    }

    /// Forgets up to `count_max` grants of a table that nobody reads any more; true if none is left.
    pub(crate) fn free_some(&mut self, count_max: usize) -> bool {
        for _ in 0..count_max {
            self.by_deadline.pop_first();
            if self.holds.pop_first().is_none() {
                return true;
            }
        }
        false
    }

    /// R4: marks up to `count_max` grants whose deadline has passed as `Ending`, and gives them.
    pub(crate) fn take_due(&mut self, now: Nanos, count_max: usize) -> Vec<HoldRef> {
        let mut due = Vec::new();
        let mut moved = 0;
        while due.len() < count_max
            && moved < MOVED_MAX
            && let Some((deadline, token)) = self.by_deadline.first().copied()
            && deadline.after(self.grace_nanos) <= now
        {
            self.by_deadline.remove(&(deadline, token));
            let timing = self.holds.get_mut(&token).expect("a grant with a deadline is in the table");
            let part = (self.given_nanos - timing.taken_nanos).min(timing.allowed_nanos);
            if part > 0 {
                // R8: it takes what it was given, and is looked at again when that is over.
                let later = deadline.after(part);
                timing.deadline = Some(later);
                timing.allowed_nanos -= part;
                timing.taken_nanos = self.given_nanos;
                self.by_deadline.insert((later, token));
                moved += 1;
            } else {
                timing.deadline = None;
                due.push(HoldRef { lock: timing.lock.clone(), lease: timing.lease, token });
            }
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use lowkey_core::{AcquireWith, ClusterId, Command, Mode, OwnerId, RequestId, Scope, Ttl, Value};

    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn limit(seconds: i64) -> MaxHold {
        MaxHold::parse(seconds).unwrap().unwrap()
    }

    fn hold(token: u64) -> HoldRef {
        let lock = LockName::parse(&format!("lock-{token}")).unwrap();
        HoldRef { lock, lease: LeaseId(token), token: Token(token) }
    }

    fn tokens(due: &[HoldRef]) -> Vec<u64> {
        due.iter().map(|hold| hold.token.0).collect()
    }

    fn table(seconds: &[i64]) -> HoldTable {
        let mut table = HoldTable::begin(0, Token(0));
        for (token, seconds) in (1..).zip(seconds) {
            table.insert(Nanos(0), hold(token), limit(*seconds));
        }
        table
    }

    #[test]
    fn a_grant_is_due_at_its_deadline_and_once() {
        let mut table = table(&[2, 3]);
        assert!(table.take_due(Nanos(2 * SECOND - 1), 10).is_empty());
        assert_eq!(table.take_due(Nanos(2 * SECOND), 10), [hold(1)]);
        assert!(table.take_due(Nanos(3 * SECOND - 1), 10).is_empty());
        table.remove(Token(2));
        assert!(table.take_due(Nanos(9 * SECOND), 10).is_empty(), "one is ending, the other one is over");
    }

    #[test]
    fn grace_and_portions() {
        let mut table = HoldTable::begin(5, Token(0));
        (1..=3).for_each(|token| table.insert(Nanos(0), hold(token), limit(1)));
        assert!(table.take_due(Nanos(SECOND + 4), 10).is_empty());
        assert_eq!(tokens(&table.take_due(Nanos(SECOND + 5), 2)), [1, 2]);
        assert_eq!(tokens(&table.take_due(Nanos(SECOND + 5), 2)), [3]);
    }

    #[test]
    fn stalls_are_given_back_up_to_one_limit_in_all() {
        let mut table = table(&[2]);
        table.forgive(SECOND);
        assert!(table.take_due(Nanos(3 * SECOND - 1), 10).is_empty());
        table.forgive(9 * SECOND);
        assert!(table.take_due(Nanos(4 * SECOND - 1), 10).is_empty());
        // A grant that came after the stalls has no part in them.
        table.insert(Nanos(2 * SECOND), hold(2), limit(1));
        assert_eq!(tokens(&table.take_due(Nanos(4 * SECOND), 10)), [2, 1]);
    }

    #[test]
    fn a_new_leader_gives_each_its_whole_time_in_portions() {
        let mut state = State::new(ClusterId([7; 16]));
        for index in 1..=4 {
            let command = Command::Acquire {
                lock: LockName::parse(&format!("lock-{index}")).unwrap(),
                owner: OwnerId::parse("alice").unwrap(),
                with: AcquireWith::NewLease(Ttl::parse(10).unwrap()),
                mode: Mode::Exclusive,
                scope: Scope::Name,
                value: Value::default(),
                wait: false,
                // One of them has none.
                max_hold: (index != 2).then(|| limit(2)),
                since_unix_ms: 0,
                request: RequestId::parse(&format!("request-{index}")).unwrap(),
            };
            state.apply(index, 1, &command).reply.unwrap();
        }
        let mut table = HoldTable::begin(0, state.last_token());
        table.arm(Nanos(0), 2, &state);
        // Made in this term, before all that were there are armed.
        table.insert(Nanos(SECOND), hold(5), limit(9));
        table.arm(Nanos(SECOND), 2, &state);
        table.arm(Nanos(SECOND), 2, &state);
        assert_eq!(tokens(&table.take_due(Nanos(3 * SECOND - 1), 10)), [1, 3]);
        assert_eq!(tokens(&table.take_due(Nanos(3 * SECOND), 10)), [4]);
    }
}
