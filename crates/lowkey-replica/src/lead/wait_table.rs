//! Callers that wait for a lock, and until when: the leader's memory, and nobody else's.
//!
//! The state machine knows who waits, and in which order; only the leader knows for how long, and who
//! is still there to be told. The story of a wait, and the rule that each step keeps:
//!
//! - **R7** A wait's clock starts when its entry is applied, or when this leader begins
//!   ([`WaitTable::begin`]): what is told as waited is too small after a change of lead, never too large.
//! - **R10** A wait whose time ran out, or whose callers have been gone for 5 s, becomes `Cancelling`
//!   ([`WaitTable::take_due`]): only the applied entry ends it. If a grant was applied first, that is
//!   the answer.
//! - **R10** A caller that asks again with the same request id takes its place again ([`WaitTable::attach`]).
//!   One that comes back when the cancellation is under way is not told of a timeout: if the cancellation took
//!   the place, the request is made anew.
//! - A caller that leaves after its answer is not known any more, and nothing is remembered of it. One that leaves
//!   before its wait begins is among the arrivals: see `arrivals.rs`.
//! - The table ends with its lead; the callers ask the new leader ([`WaitTable::into_calls`]).

use std::collections::{BTreeMap, BTreeSet};

use lowkey_core::{Ticket, mutants};

use crate::input::CallId;
use crate::lead::arrivals::PendingCommand;
use crate::mutants::or_another_time;
use crate::time::{MILLISECOND, Nanos};

/// How long a place is kept for callers that are gone.
const RETURN_NANOS: u64 = 5_000 * MILLISECOND;

/// Invariants:
/// - `waits` has exactly the waits of the applied state.
/// - `by_deadline` has exactly those that are not `cancelling`, under their deadlines.
/// - `callers` has exactly the callers of all waits.
#[derive(Debug, Default)]
pub(crate) struct WaitTable {
    waits: BTreeMap<Ticket, TimedWait>,
    by_deadline: BTreeSet<(Nanos, Ticket)>,
    callers: BTreeMap<CallId, Ticket>,
}

#[derive(Debug)]
struct TimedWait {
    since: Nanos,
    deadline: Nanos,
    cancelling: bool,
    /// Not those in `returned`.
    calls: BTreeSet<CallId>,
    /// Came back when the cancellation was under way; what they asked for.
    returned: Vec<PendingCommand>,
}

/// A wait that is over.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct EndedWait {
    /// Those who waited.
    pub(crate) calls: BTreeSet<CallId>,
    /// Those who came back when its cancellation was under way.
    pub(crate) returned: Vec<PendingCommand>,
    /// R7: how long, as far as this leader knows.
    pub(crate) waited_nanos: u64,
}

impl WaitTable {
    /// R7, R10: a new leader gives the callers of every wait time to come back.
    pub(crate) fn begin(now: Nanos, tickets: impl Iterator<Item = Ticket>) -> Self {
        let mut table = Self::default();
        let since = if !mutants::A_NEW_LEADER_OVERSTATES_WAITS.is_active() { now } else { Nanos(0) };
        for ticket in tickets {
            table.enqueued(now, ticket);
            table.waits.get_mut(&ticket).expect("it was just put there").since = since;
        }
        table
    }

    /// The lead is over: all callers have to ask elsewhere.
    pub(crate) fn into_calls(self) -> impl Iterator<Item = CallId> {
        self.callers.into_keys()
    }

    /// The wait's entry was applied. Its caller attaches in the same step, unless it has gone.
    pub(crate) fn enqueued(&mut self, now: Nanos, ticket: Ticket) {
        let has_time = !mutants::A_NEW_LEADER_GIVES_WAITERS_NO_TIME.is_active();
        let deadline = if has_time { now.after(RETURN_NANOS) } else { now };
        let by_deadline = &mut self.by_deadline;
        self.waits.entry(ticket).or_insert_with(|| {
            by_deadline.insert((deadline, ticket));
            TimedWait {
                since: now,
                deadline,
                cancelling: false,
                calls: BTreeSet::new(),
                returned: Vec::new(),
            }
        });
    }

    /// A caller waits, for the first time or again. The wait lasts as long as its longest caller wants.
    pub(crate) fn attach(&mut self, now: Nanos, ticket: Ticket, caller: PendingCommand) {
        let parked = self.waits.get_mut(&ticket).expect("every wait of the state is in the table");
        let call = caller.call;
        self.callers.insert(call, ticket);
        if parked.cancelling && !mutants::WHO_COMES_BACK_IS_TOLD_OF_THE_TIMEOUT.is_active() {
            parked.returned.push(caller);
        } else {
            let wanted = now.after(caller.wait.nanos());
            let deadline = if parked.calls.is_empty() { wanted } else { wanted.max(parked.deadline) };
            parked.calls.insert(call);
            self.by_deadline.remove(&(parked.deadline, ticket));
            parked.deadline = deadline;
            self.by_deadline.insert((deadline, ticket));
        }
    }

    /// A caller is gone. With the last one the wait has 5 s more, for one that comes back.
    pub(crate) fn leave(&mut self, now: Nanos, call: CallId) {
        // Answered before, or one that never waits.
        let Some(ticket) = self.callers.remove(&call) else { return };
        let parked = self.waits.get_mut(&ticket).expect("a caller waits for something");
        parked.calls.remove(&call);
        parked.returned.retain(|other| other.call != call);
        if parked.calls.is_empty() && !parked.cancelling {
            self.by_deadline.remove(&(parked.deadline, ticket));
            parked.deadline = parked.deadline.min(now.after(or_another_time(RETURN_NANOS)));
            self.by_deadline.insert((parked.deadline, ticket));
        }
    }

    /// R10: up to `count_max` waits whose time has run out; from now on only their entry ends them.
    pub(crate) fn take_due(&mut self, now: Nanos, count_max: usize) -> Vec<Ticket> {
        let mut due = Vec::new();
        while due.len() < count_max
            && let Some((_, ticket)) = self.by_deadline.pop_first_if(|(deadline, _)| *deadline <= now)
        {
            self.waits.get_mut(&ticket).expect("a wait with a deadline is in the table").cancelling = true;
            due.push(ticket);
        }
        due
    }

    /// The wait is over, one way or the other.
    pub(crate) fn end(&mut self, now: Nanos, ticket: Ticket) -> EndedWait {
        let Some(parked) = self.waits.remove(&ticket) else { return EndedWait::default() };
        self.by_deadline.remove(&(parked.deadline, ticket));
        let returned = parked.returned.iter().map(|returned| &returned.call);
        for call in parked.calls.iter().chain(returned) {
            self.callers.remove(call);
        }
        let waited_nanos = now.since(parked.since);
        EndedWait { calls: parked.calls, returned: parked.returned, waited_nanos }
    }

    /// Who waits for it now.
    pub(crate) fn callers(&self, ticket: Ticket) -> impl Iterator<Item = CallId> {
        self.waits.get(&ticket).into_iter().flat_map(|parked| parked.calls.iter().copied())
    }
}

/// `BTreeSet` has no such call.
trait PopFirstIf<T> {
    fn pop_first_if(&mut self, wanted: impl FnOnce(&T) -> bool) -> Option<T>;
}

impl<T: Ord> PopFirstIf<T> for BTreeSet<T> {
    fn pop_first_if(&mut self, wanted: impl FnOnce(&T) -> bool) -> Option<T> {
        if wanted(self.first()?) { self.pop_first() } else { None }
    }
}

#[cfg(test)]
impl WaitTable {
    /// The invariants.
    pub(crate) fn check(&self, tickets: impl Iterator<Item = Ticket>) {
        assert!(self.waits.keys().copied().eq(tickets), "other waits than the state's");
        let mut by_deadline = BTreeSet::new();
        let mut callers = BTreeMap::new();
        for (ticket, parked) in &self.waits {
            if !parked.cancelling {
                by_deadline.insert((parked.deadline, *ticket));
                assert!(parked.returned.is_empty(), "only who comes late is told apart");
            }
            let returned = parked.returned.iter().map(|returned| returned.call);
            for call in parked.calls.iter().copied().chain(returned) {
                let before = callers.insert(call, *ticket);
                assert!(before.is_none(), "call {call:?} waits in two places");
            }
        }
        assert_eq!(self.by_deadline, by_deadline);
        assert_eq!(self.callers, callers, "other callers than the waits'");
    }

    /// Nobody waits.
    pub(crate) fn has_no_callers(&self) -> bool {
        self.callers.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use lowkey_core::{Command, WaitTime};

    use super::*;

    const SECOND: u64 = 1_000 * MILLISECOND;

    fn caller(call: u64, wait_ms: i64) -> PendingCommand {
        let command = Command::CancelWait { tickets: Vec::new(), since_unix_ms: 0 };
        PendingCommand { call: CallId(call), command, wait: WaitTime::parse(wait_ms).unwrap() }
    }

    fn waiting(call: u64, wait_ms: i64) -> WaitTable {
        let mut table = WaitTable::default();
        table.enqueued(Nanos(0), Ticket(1));
        table.attach(Nanos(0), Ticket(1), caller(call, wait_ms));
        table
    }

    #[test]
    fn a_wait_is_due_when_its_time_has_run_out_and_not_before() {
        let mut table = waiting(1, 10_000);
        assert!(table.take_due(Nanos(10 * SECOND - 1), 9).is_empty());
        assert_eq!(table.take_due(Nanos(10 * SECOND), 9), [Ticket(1)]);
        assert!(table.take_due(Nanos(11 * SECOND), 9).is_empty(), "its end is under way");
    }

    #[test]
    fn a_place_is_kept_for_five_seconds_after_its_last_caller_left() {
        let mut table = waiting(1, 60_000);
        table.attach(Nanos(SECOND), Ticket(1), caller(2, 60_000));
        table.leave(Nanos(2 * SECOND), CallId(1));
        table.leave(Nanos(3 * SECOND), CallId(2));
        assert!(table.take_due(Nanos(8 * SECOND - 1), 9).is_empty());
        assert_eq!(table.take_due(Nanos(8 * SECOND), 9), [Ticket(1)]);
    }

    #[test]
    fn leaving_does_not_make_a_wait_longer() {
        let mut table = waiting(1, 1_000);
        table.leave(Nanos(0), CallId(1));
        assert_eq!(table.take_due(Nanos(SECOND), 9), [Ticket(1)]);
    }

    #[test]
    fn whoever_comes_back_waits_for_as_long_as_it_says() {
        let mut table = waiting(1, 60_000);
        table.leave(Nanos(0), CallId(1));
        table.attach(Nanos(4 * SECOND), Ticket(1), caller(2, 20_000));
        assert!(table.take_due(Nanos(24 * SECOND - 1), 9).is_empty());
        let ended = table.end(Nanos(24 * SECOND - 1), Ticket(1));
        assert_eq!((ended.calls, ended.waited_nanos), (BTreeSet::from([CallId(2)]), 24 * SECOND - 1));
        table.check(std::iter::empty());
        assert!(table.callers.is_empty());
    }

    #[test]
    fn whoever_comes_back_to_a_wait_that_is_being_cancelled_is_told_apart() {
        let mut table = waiting(1, 0);
        assert_eq!(table.take_due(Nanos(0), 9), [Ticket(1)]);
        table.attach(Nanos(1), Ticket(1), caller(2, 5_000));
        let ended = table.end(Nanos(2), Ticket(1));
        assert_eq!(ended.calls, BTreeSet::from([CallId(1)]));
        assert_eq!(ended.returned, [caller(2, 5_000)]);
    }

    #[test]
    fn who_leaves_after_the_answer_is_not_remembered() {
        let mut table = waiting(1, 60_000);
        table.end(Nanos(0), Ticket(1));
        table.leave(Nanos(0), CallId(1));
        assert!(table.has_no_callers());
    }

    #[test]
    fn who_comes_back_during_the_cancellation_may_leave_again() {
        let mut table = waiting(1, 0);
        table.take_due(Nanos(0), 9);
        table.attach(Nanos(1), Ticket(1), caller(2, 5_000));
        table.leave(Nanos(1), CallId(2));
        table.leave(Nanos(1), CallId(1));
        table.check([Ticket(1)].into_iter());
        let ended = table.end(Nanos(2), Ticket(1));
        assert!(ended.calls.is_empty() && ended.returned.is_empty());
    }

    #[test]
    fn a_lost_lead_interrupts_who_waits() {
        let mut table = waiting(1, 0);
        table.take_due(Nanos(0), 9);
        table.attach(Nanos(1), Ticket(1), caller(2, 5_000));
        assert!(table.into_calls().eq([CallId(1), CallId(2)]));
    }

    #[test]
    fn a_new_leader_waits_for_the_callers_to_come() {
        let mut table = WaitTable::begin(Nanos(SECOND), [Ticket(4), Ticket(7)].into_iter());
        assert!(table.take_due(Nanos(6 * SECOND - 1), 9).is_empty());
        assert_eq!(table.take_due(Nanos(6 * SECOND), 1), [Ticket(4)]);
        assert_eq!(table.take_due(Nanos(6 * SECOND), 1), [Ticket(7)]);
    }
}
