//! When leases end: the leader's memory of deadlines, and nobody else's.
//!
//! The state machine knows which leases exist; only the leader knows until when. The story of a
//! deadline, and the rule that each step keeps:
//!
//! - **R1** Deadlines exist only in a table that is *armed*, and only a leader that has applied an
//!   entry of its own term, and votes in its applied configuration, arms it ([`LeaseTable::arm`]).
//! - **R3** Losing the lead forgets them all ([`LeaseTable::disarm`]); arming gives every lease its
//!   whole time to live from now. A lease made later starts when its entry is applied
//!   ([`LeaseTable::insert`]).
//! - **R2** A renewal moves a deadline, never backwards, and only of an `Active` lease
//!   ([`LeaseTable::renew`]). That a quorum still follows the leader was established before by a
//!   round: see `rounds.rs`.
//! - **R8** A leader that was itself stalled gives the time back, at most one time to live in all
//!   since a lease's last renewal ([`LeaseTable::forgive`]).
//! - **R4** A deadline that passed makes its lease `Expiring` ([`LeaseTable::take_due`]); from there
//!   only the applied entry ends it, or a new leader begins anew. There is no way back to `Active`.

use std::collections::{BTreeMap, BTreeSet};

use lowkey_core::{LeaseId, Ttl, mutants};

use crate::time::Nanos;

/// Invariants, while armed:
/// - `leases` has exactly the leases of the applied state.
/// - `by_deadline` has exactly the `Active` ones, under their deadlines.
#[derive(Debug)]
pub(crate) struct LeaseTable {
    armed: bool,
    /// How long after its deadline a lease is ended. A client that counts from when it *heard* of a
    /// renewal, a little after the renewal arrived here, must not see its lease end before its time.
    grace_nanos: u64,
    leases: BTreeMap<LeaseId, Timing>,
    by_deadline: BTreeSet<(Nanos, LeaseId)>,
}

#[derive(Debug)]
struct Timing {
    ttl: Ttl,
    status: Status,
    /// R8: what was given back since the last renewal; at most one time to live.
    forgiven_nanos: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Status {
    Active { deadline: Nanos },
    Expiring,
}

/// What became of a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Renewal {
    /// The lease lives on.
    Renewed(Ttl),
    /// Its end was proposed: the caller learns the outcome when the entry is applied.
    Expiring,
    /// There is no such lease.
    Gone,
}

impl LeaseTable {
    pub(crate) fn new(grace_nanos: u64) -> Self {
        Self { armed: false, grace_nanos, leases: BTreeMap::new(), by_deadline: BTreeSet::new() }
    }

    pub(crate) fn is_armed(&self) -> bool {
        self.armed
    }

    /// R1, R3: gives every lease its whole time to live from now.
    pub(crate) fn arm(&mut self, now: Nanos, leases: impl Iterator<Item = (LeaseId, Ttl)>) {
        assert!(!self.armed, "a table is armed once a term");
        self.armed = true;
        for (lease, ttl) in leases {
            if mutants::is_active("no re-arm on election") && self.leases.contains_key(&lease) {
                continue;
            }
            self.insert(now, lease, ttl);
        }
    }

    /// R3: forgets every deadline.
    pub(crate) fn disarm(&mut self) {
        if mutants::is_active("no re-arm on election") {
            self.armed = false;
            return;
        }
        *self = Self::new(self.grace_nanos);
    }

    /// R3: a lease made in this term starts when its entry is applied.
    pub(crate) fn insert(&mut self, now: Nanos, lease: LeaseId, ttl: Ttl) {
        assert!(self.armed, "R1: a deadline outside of the lead");
        let deadline = now.after(ttl.nanos());
        let timing = Timing { ttl, status: Status::Active { deadline }, forgiven_nanos: 0 };
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
        let Status::Active { deadline } = &mut timing.status else {
            return match mutants::is_active("an expiring lease is renewed") {
                false => Renewal::Expiring,
                true => Renewal::Renewed(timing.ttl),
            };
        };
        let before = *deadline;
        *deadline = before.max(arrival.after(timing.ttl.nanos()));
        timing.forgiven_nanos = 0;
        if *deadline != before {
            self.by_deadline.remove(&(before, lease));
            self.by_deadline.insert((*deadline, lease));
        }
        Renewal::Renewed(timing.ttl)
    }

    /// How long an `Active` lease lives if it is not renewed; 0 where its time is over and nobody ended it yet.
    pub(crate) fn remaining_ms(&self, now: Nanos, lease: LeaseId) -> Option<u64> {
        match self.leases.get(&lease)?.status {
            Status::Active { deadline } => Some(deadline.0.saturating_sub(now.0) / 1_000_000),
            Status::Expiring => Some(0),
        }
    }

    /// R8: adds a gap in which the leader itself was stalled to every deadline.
    pub(crate) fn forgive(&mut self, gap_nanos: u64) {
        self.by_deadline.clear();
        for (lease, timing) in &mut self.leases {
            let Status::Active { deadline } = &mut timing.status else { continue };
            let given = gap_nanos.min(timing.ttl.nanos() - timing.forgiven_nanos);
            timing.forgiven_nanos += given;
            *deadline = deadline.after(given);
            self.by_deadline.insert((*deadline, *lease));
        }
    }

    /// R4: marks up to `count_max` leases whose deadline has passed as `Expiring`, and gives them.
    pub(crate) fn take_due(&mut self, now: Nanos, count_max: usize) -> Vec<LeaseId> {
        let mut due = Vec::new();
        while due.len() < count_max
            && let Some((deadline, lease)) = self.by_deadline.first().copied()
            && deadline.after(self.grace_nanos) <= now
        {
            self.by_deadline.remove(&(deadline, lease));
            let timing = self.leases.get_mut(&lease).expect("a lease with a deadline is in the table");
            timing.status = Status::Expiring;
            due.push(lease);
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn table(ttl_seconds: i64) -> LeaseTable {
        let mut table = LeaseTable::new(0);
        table.arm(Nanos(0), std::iter::once((LeaseId(1), Ttl::parse(ttl_seconds).unwrap())));
        table
    }

    #[test]
    fn a_lease_is_due_at_its_deadline_and_not_before() {
        let mut table = table(2);
        assert!(table.take_due(Nanos(2 * SECOND - 1), 10).is_empty());
        assert_eq!(table.take_due(Nanos(2 * SECOND), 10), [LeaseId(1)]);
    }

    #[test]
    fn a_lease_with_grace_is_due_that_much_later_and_can_still_be_renewed() {
        let mut table = LeaseTable::new(5);
        table.arm(Nanos(0), std::iter::once((LeaseId(1), Ttl::parse(1).unwrap())));
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
        let mut table = LeaseTable::new(0);
        table.arm(Nanos(0), (1..=5).map(|id| (LeaseId(id), Ttl::parse(1).unwrap())));
        assert_eq!(table.take_due(Nanos(SECOND), 3).len(), 3);
        assert_eq!(table.take_due(Nanos(SECOND), 3).len(), 2);
        assert!(table.take_due(Nanos(SECOND), 3).is_empty());
    }
}
