//! When leases end: the leader's memory of deadlines, and nobody else's.
//!
//! The state machine knows which leases exist; only the leader knows until when. The story of a
//! deadline, and the rule that each step keeps:
//!
//! - **R1** The table is part of a lead: it exists only while a leader that has applied an entry of its own
//!   term, and votes in its applied configuration, leads.
//! - **R3** It ends with the lead, and the next one begins with another: every lease has its whole time to
//!   live from when it is armed ([`LeaseTable::arm`]). A million of them are armed in portions, one a tick, so that
//!   a new leader is not silent meanwhile. One that is not armed yet ends later, and is armed when it is renewed. A lease
//!   made later starts when its entry is applied ([`LeaseTable::insert`]).
//! - **R2** A renewal moves a deadline, never backwards, and only of an `Active` lease
//!   ([`LeaseTable::renew`]). That a quorum still follows the leader was established before by a
//!   round: see `rounds.rs`.
//! - **R8** A leader that was itself stalled gives the time back, at most one time to live in all
//!   since a lease's last renewal ([`LeaseTable::forgive`]). What was given is added up once for all leases, and each
//!   takes its part of it when it is looked at.
//! - **R4** A deadline that passed makes its lease `Expiring` ([`LeaseTable::take_due`]); from there
//!   only the applied entry ends it, or a new leader begins anew. There is no way back to `Active`.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use lowkey_core::{Lease, LeaseId, Silence, State, Ttl, mutants};

use crate::output::Renewal;
use crate::time::{MILLISECOND, Nanos};

/// R8: so many leases take what they were given in one look for those that are due.
const MOVED_MAX: usize = 4_096;

/// Invariants:
/// - `leases` has exactly the leases of the applied state whose time runs, but for those that are to be armed.
/// - `by_deadline` has exactly the `Active` ones, under the deadlines that stand in `leases`. A lease ends no earlier
///   than that, and later if it has not taken its part of `given_nanos` yet.
#[derive(Debug)]
pub(crate) struct LeaseTable {
    /// How long after its deadline a lease is ended. A client that counts from when it *heard* of a
    /// renewal, a little after the renewal arrived here, must not see its lease end before its time.
    grace_nanos: u64,
    leases: BTreeMap<LeaseId, Timing>,
    by_deadline: BTreeSet<(Nanos, LeaseId)>,
    /// R8: what was given back in all.
    given_nanos: u64,
    /// R3: of the leases that there were when the lead began, those with these ids are to be armed.
    unarmed: Range<u64>,
    late_renewals: u64,
}

#[derive(Debug)]
struct Timing {
    ttl: Ttl,
    status: Status,
    /// R8: what was given back to it since the last renewal; at most one time to live.
    forgiven_nanos: u64,
    /// Of what was given back in all, so much came before, or is in its deadline already.
    taken_nanos: u64,
    /// When its time was last counted anew: it began, was armed, or was renewed. For display only.
    heard: Nanos,
    /// It was armed (R3), and not renewed since. For display only.
    is_inherited: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Status {
    Active { deadline: Nanos },
    Expiring,
}

impl Timing {
    /// R8: its deadline once it has taken its part of what was given back, and how large that is.
    fn lenient(&self, deadline: Nanos, given_nanos: u64) -> (Nanos, u64) {
        let part = (given_nanos - self.taken_nanos).min(self.ttl.nanos() - self.forgiven_nanos);
        (deadline.after(part), part)
    }
}

impl LeaseTable {
    /// R1: of a lead that begins with leases up to this id. None of them is armed yet.
    pub(crate) fn begin(grace_nanos: u64, last: LeaseId) -> Self {
        Self {
            grace_nanos,
            leases: BTreeMap::new(),
            by_deadline: BTreeSet::new(),
            given_nanos: 0,
            unarmed: 1..last.0.saturating_add(1),
            late_renewals: 0,
        }
    }

    /// R3: gives the next leases, up to `count_max`, their whole time to live from now.
    pub(crate) fn arm(&mut self, now: Nanos, count_max: usize, state: &State) {
        if self.unarmed.is_empty() {
            return;
        }
        let from = if !mutants::NO_RE_ARM_ON_ELECTION.is_active() { now } else { Nanos(0) };
        let Range { start, end } = std::mem::take(&mut self.unarmed);
        let leases = state.leases_from(LeaseId(start)).take_while(|(id, _)| id.0 < end);
        for (count, (id, lease)) in leases.enumerate() {
            if count == count_max {
                self.unarmed = id.0..end;
                return;
            }
            self.arm_one(from, id, lease);
        }
    }

    /// R3: arms a lease that is asked about before its turn.
    pub(crate) fn arm_early(&mut self, now: Nanos, id: LeaseId, state: &State) {
        if self.unarmed.contains(&id.0)
            && let Some(lease) = state.lease(id)
        {
            self.arm_one(now, id, lease);
        }
    }

    fn arm_one(&mut self, now: Nanos, id: LeaseId, lease: &Lease) {
        // R7: the time of a lease that waits for its grant has not begun. Another may have begun meanwhile.
        if !lease.is_waiting && !self.leases.contains_key(&id) {
            self.begin_time(now, id, lease.ttl, true);
        }
    }

    /// R3: a lease made in this term starts when its entry is applied.
    pub(crate) fn insert(&mut self, now: Nanos, lease: LeaseId, ttl: Ttl) {
        self.begin_time(now, lease, ttl, false);
    }

    fn begin_time(&mut self, now: Nanos, lease: LeaseId, ttl: Ttl, is_inherited: bool) {
        let deadline = now.after(ttl.nanos());
        let status = Status::Active { deadline };
        let timing = Timing {
            ttl,
            status,
            forgiven_nanos: 0,
            taken_nanos: self.given_nanos,
            heard: now,
            is_inherited,
        };
        let before = self.leases.insert(lease, timing);
        assert!(before.is_none(), "lease {lease} was made twice");
        self.by_deadline.insert((deadline, lease));
    }

    /// The lease's entry was applied: it is gone.
    pub(crate) fn remove(&mut self, lease: LeaseId) {
        if let Some(Timing { status: Status::Active { deadline }, .. }) = self.leases.remove(&lease) {
            self.by_deadline.remove(&(deadline, lease));
        }
    }

    /// R2: moves the deadline of an `Active` lease to its time to live after the renewal's arrival.
    pub(crate) fn renew(&mut self, lease: LeaseId, arrival: Nanos) -> Renewal {
        let Some(timing) = self.leases.get_mut(&lease) else { return Renewal::Gone };
        let Status::Active { deadline: before } = timing.status else {
            return match mutants::AN_EXPIRING_LEASE_IS_RENEWED.is_active() {
                false => Renewal::Expiring,
                true => Renewal::Renewed(timing.ttl),
            };
        };
        let (lenient, _) = timing.lenient(before, self.given_nanos);
        let renewed = lenient.max(arrival.after(timing.ttl.nanos()));
        timing.status = Status::Active { deadline: renewed };
        (timing.forgiven_nanos, timing.taken_nanos) = (0, self.given_nanos);
        let silent_nanos = arrival.0.saturating_sub(timing.heard.0);
        self.late_renewals += u64::from(silent_nanos > timing.ttl.nanos() / 3 * 2);
        (timing.heard, timing.is_inherited) = (timing.heard.max(arrival), false);
        if renewed != before {
            self.by_deadline.remove(&(before, lease));
            self.by_deadline.insert((renewed, lease));
        }
        Renewal::Renewed(timing.ttl)
    }

    /// What is known of a lease whose time ran out, or runs. For display only.
    pub(crate) fn silence(&self, now: Nanos, id: LeaseId) -> Silence {
        let Some(timing) = self.leases.get(&id) else { return Silence::default() };
        Silence {
            silent_ms: now.since(timing.heard) / MILLISECOND,
            stalled_ms: timing.forgiven_nanos / MILLISECOND,
            leader_changed: timing.is_inherited,
        }
    }

    /// How many renewals came late since this was last asked: more than two thirds of the time to live after the one
    /// before. A client that renews every third has missed two by then.
    pub(crate) fn take_late_renewals(&mut self) -> u64 {
        std::mem::take(&mut self.late_renewals)
    }

    /// How long an `Active` lease lives if it is not renewed; 0 where its time is over and nobody ended it yet.
    pub(crate) fn remaining_ms(&self, now: Nanos, id: LeaseId, state: &State) -> Option<u64> {
        match self.leases.get(&id) {
            Some(Timing { status: Status::Expiring, .. }) => Some(0),
            Some(timing @ Timing { status: Status::Active { deadline }, .. }) => {
                let (lenient, _) = timing.lenient(*deadline, self.given_nanos);
                Some(lenient.0.saturating_sub(now.0) / MILLISECOND)
            }
            // R3: it is about to be armed.
            None if self.unarmed.contains(&id.0) => {
                let lease = state.lease(id).filter(|lease| !lease.is_waiting);
                lease.map(|lease| lease.ttl.nanos() / MILLISECOND)
            }
            None => None,
        }
    }

    /// R8: adds a gap in which the leader itself was stalled to every deadline.
    pub(crate) fn forgive(&mut self, gap_nanos: u64) {
        self.given_nanos = self.given_nanos.saturating_add(gap_nanos);
    }

    /// Forgets up to `count_max` leases of a table that nobody reads any more; true if none is left.
    pub(crate) fn free_some(&mut self, count_max: usize) -> bool {
        for _ in 0..count_max {
            self.by_deadline.pop_first();
            if self.leases.pop_first().is_none() {
                return true;
            }
        }
        false
    }

    /// R4: marks up to `count_max` leases whose deadline has passed as `Expiring`, and gives them.
    pub(crate) fn take_due(&mut self, now: Nanos, count_max: usize) -> Vec<LeaseId> {
        let mut due = Vec::new();
        let mut moved = 0;
        while due.len() < count_max
            && moved < MOVED_MAX
            && let Some((deadline, lease)) = self.by_deadline.first().copied()
            && deadline.after(self.grace_nanos) <= now
        {
            self.by_deadline.remove(&(deadline, lease));
            let timing = self.leases.get_mut(&lease).expect("a lease with a deadline is in the table");
            let (lenient, part) = timing.lenient(deadline, self.given_nanos);
            if part > 0 {
                // R8: it takes what it was given, and is looked at again when that is over.
                timing.status = Status::Active { deadline: lenient };
                timing.forgiven_nanos += part;
                timing.taken_nanos = self.given_nanos;
                self.by_deadline.insert((lenient, lease));
                moved += 1;
            } else {
                timing.status = Status::Expiring;
                due.push(lease);
            }
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use lowkey_core::{ClusterId, Command, OwnerId, RequestId};

    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn table(ttl_seconds: i64) -> LeaseTable {
        with_grace(0, ttl_seconds)
    }

    fn with_grace(grace_nanos: u64, ttl_seconds: i64) -> LeaseTable {
        let mut table = LeaseTable::begin(grace_nanos, LeaseId(0));
        table.insert(Nanos(0), LeaseId(1), Ttl::parse(ttl_seconds).unwrap());
        table
    }

    /// A state with so many leases.
    fn state_with(count: u64) -> State {
        let mut state = State::new(ClusterId([7; 16]));
        for index in 1..=count {
            let command = Command::CreateLease {
                owner: OwnerId::parse("alice").unwrap(),
                ttl: Ttl::parse(2).unwrap(),
                request: RequestId::parse(&format!("request-{index}")).unwrap(),
            };
            state.apply(index, 1, &command).reply.unwrap();
        }
        state
    }

    #[test]
    fn a_lease_is_due_at_its_deadline_and_not_before() {
        let mut table = table(2);
        assert!(table.take_due(Nanos(2 * SECOND - 1), 10).is_empty());
        assert_eq!(table.take_due(Nanos(2 * SECOND), 10), [LeaseId(1)]);
    }

    #[test]
    fn a_lease_with_grace_is_due_that_much_later_and_can_still_be_renewed() {
        let mut table = with_grace(5, 1);
        assert!(table.take_due(Nanos(SECOND + 4), 10).is_empty());
        assert_eq!(table.renew(LeaseId(1), Nanos(SECOND + 4)), Renewal::Renewed(Ttl::parse(1).unwrap()));
        assert_eq!(table.take_due(Nanos(2 * SECOND + 9), 10), [LeaseId(1)]);
    }

    #[test]
    fn a_renewal_never_moves_a_deadline_backwards() {
        let mut table = table(2);
        table.renew(LeaseId(1), Nanos(SECOND));
        table.renew(LeaseId(1), Nanos(SECOND / 2));
        assert!(table.take_due(Nanos(3 * SECOND - 1), 10).is_empty());
    }

    #[test]
    fn the_table_knows_how_long_a_lease_was_silent_and_which_renewals_came_late() {
        let mut table = table(3);
        table.renew(LeaseId(1), Nanos(2 * SECOND));
        assert_eq!(table.take_late_renewals(), 0);
        table.renew(LeaseId(1), Nanos(4 * SECOND + 1));
        assert_eq!((table.take_late_renewals(), table.take_late_renewals()), (1, 0));
        table.forgive(SECOND);
        assert!(table.take_due(Nanos(8 * SECOND), 10).is_empty());
        assert_eq!(table.take_due(Nanos(8 * SECOND + 1), 10), [LeaseId(1)]);
        let silence = Silence { silent_ms: 4_000, stalled_ms: 1_000, leader_changed: false };
        assert_eq!(table.silence(Nanos(8 * SECOND + 1), LeaseId(1)), silence);
        let state = state_with(1);
        let mut inherited = LeaseTable::begin(0, LeaseId(1));
        inherited.arm(Nanos(SECOND), 10, &state);
        assert!(inherited.silence(Nanos(2 * SECOND), LeaseId(1)).leader_changed);
        inherited.renew(LeaseId(1), Nanos(2 * SECOND));
        assert!(!inherited.silence(Nanos(2 * SECOND), LeaseId(1)).leader_changed);
    }

    #[test]
    fn an_expiring_lease_cannot_be_renewed() {
        let mut table = table(2);
        table.take_due(Nanos(2 * SECOND), 10);
        assert_eq!(table.renew(LeaseId(1), Nanos(2 * SECOND)), Renewal::Expiring);
        table.remove(LeaseId(1));
        assert_eq!(table.renew(LeaseId(1), Nanos(2 * SECOND)), Renewal::Gone);
    }

    #[test]
    fn stalls_are_forgiven_up_to_one_time_to_live_since_the_last_renewal() {
        let mut table = table(2);
        table.forgive(SECOND);
        table.forgive(5 * SECOND);
        assert!(table.take_due(Nanos(4 * SECOND - 1), 10).is_empty());
        table.renew(LeaseId(1), Nanos(3 * SECOND)); // deadline 5 s, and a new allowance
        table.forgive(9 * SECOND);
        assert!(table.take_due(Nanos(7 * SECOND - 1), 10).is_empty());
        assert_eq!(table.take_due(Nanos(7 * SECOND), 10), [LeaseId(1)]);
    }

    #[test]
    fn many_due_leases_are_taken_in_portions() {
        let mut table = LeaseTable::begin(0, LeaseId(0));
        (1..=5).for_each(|id| table.insert(Nanos(0), LeaseId(id), Ttl::parse(1).unwrap()));
        assert_eq!(table.take_due(Nanos(SECOND), 3).len(), 3);
        assert_eq!(table.take_due(Nanos(SECOND), 3).len(), 2);
        assert!(table.take_due(Nanos(SECOND), 3).is_empty());
    }

    #[test]
    fn leases_are_armed_in_portions_and_each_has_its_whole_time_from_then() {
        let state = state_with(5);
        let mut table = LeaseTable::begin(0, LeaseId(5));
        let arm = |table: &mut LeaseTable, now| table.arm(now, 2, &state);
        arm(&mut table, Nanos(0));
        arm(&mut table, Nanos(SECOND));
        assert!(table.take_due(Nanos(2 * SECOND - 1), 10).is_empty());
        assert_eq!(table.take_due(Nanos(3 * SECOND - 1), 10), [LeaseId(1), LeaseId(2)]);
        arm(&mut table, Nanos(3 * SECOND));
        arm(&mut table, Nanos(4 * SECOND));
        assert_eq!(table.take_due(Nanos(5 * SECOND - 1), 10), [LeaseId(3), LeaseId(4)]);
        assert_eq!(table.take_due(Nanos(5 * SECOND), 10), [LeaseId(5)], "it was armed once");
    }

    #[test]
    fn a_lease_that_is_renewed_before_its_turn_is_armed_with_that() {
        let state = state_with(3);
        let mut table = LeaseTable::begin(0, LeaseId(3));
        assert_eq!(table.remaining_ms(Nanos(SECOND), LeaseId(3), &state), Some(2_000));
        table.arm_early(Nanos(SECOND), LeaseId(3), &state);
        // It arrived before this node led: the lease has its whole time from now all the same.
        assert!(matches!(table.renew(LeaseId(3), Nanos(SECOND / 2)), Renewal::Renewed(_)));
        table.arm(Nanos(2 * SECOND), 10, &state);
        assert_eq!(table.take_due(Nanos(3 * SECOND), 10), [LeaseId(3)]);
        // A lease of this term, or one that is not there, is nothing to arm.
        table.arm_early(Nanos(SECOND), LeaseId(4), &state);
        assert_eq!(table.renew(LeaseId(4), Nanos(SECOND)), Renewal::Gone);
    }

    #[test]
    fn what_is_forgiven_to_many_moves_few_at_a_time() {
        let mut table = LeaseTable::begin(0, LeaseId(0));
        let count = MOVED_MAX as u64 + 10;
        (1..=count).for_each(|id| table.insert(Nanos(0), LeaseId(id), Ttl::parse(1).unwrap()));
        table.forgive(SECOND / 2);
        for _ in 0..3 {
            assert!(table.take_due(Nanos(SECOND), 10).is_empty(), "all have been given half a second");
        }
        assert_eq!(table.take_due(Nanos(SECOND * 3 / 2), usize::MAX).len() as u64, count);
    }

    /// The same as a table that adds every gap to every lease at once.
    #[test]
    fn a_lease_lives_as_long_as_if_each_gap_were_added_to_each_deadline() {
        let mut dice = 1_u64;
        let mut roll = |below: u64| {
            dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (dice >> 33) % below
        };
        for _ in 0..200 {
            let mut table = LeaseTable::begin(0, LeaseId(0));
            // Deadline, time to live, and what was given since the last renewal.
            let mut plain: BTreeMap<LeaseId, (u64, u64, u64)> = BTreeMap::new();
            let mut now = 0;
            for id in 1..=60 {
                now += roll(SECOND);
                match roll(4) {
                    0 => {
                        let gap = roll(2 * SECOND);
                        table.forgive(gap);
                        for (deadline, ttl, given) in plain.values_mut() {
                            let part = gap.min(*ttl - *given);
                            (*deadline, *given) = (*deadline + part, *given + part);
                        }
                    }
                    1 => {
                        let lease = LeaseId(1 + roll(id));
                        table.renew(lease, Nanos(now));
                        if let Some((deadline, ttl, given)) = plain.get_mut(&lease) {
                            (*deadline, *given) = ((*deadline).max(now + *ttl), 0);
                        }
                    }
                    _ => {
                        let ttl = Ttl::parse(1 + roll(3) as i64).unwrap();
                        table.insert(Nanos(now), LeaseId(id), ttl);
                        plain.insert(LeaseId(id), (now + ttl.nanos(), ttl.nanos(), 0));
                    }
                }
                let mut due = table.take_due(Nanos(now), usize::MAX);
                due.sort_unstable();
                let expected: Vec<LeaseId> =
                    plain.extract_if(.., |_, (deadline, ..)| *deadline <= now).map(|(id, _)| id).collect();
                assert_eq!(due, expected);
            }
        }
    }
}
