//! Callers that wait for a lock, and until when: the leader's memory, and nobody else's.
//!
//! The state machine knows who waits, and in which order; only the leader knows for how long, and who
//! is still there to be told. The story of a wait, and the rule that each step keeps:
//!
//! - **R7** A wait's clock starts when its entry is applied, or when this leader begins
//!   ([`WaitTable::arm`]): what is told as waited is too small after a change of lead, never too large.
//! - **R10** A wait whose time ran out, or whose callers have been gone for 5 s, becomes `Cancelling`
//!   ([`WaitTable::take_due`]): only the applied entry ends it. If a grant was applied first, that is
//!   the answer.
//! - **R10** Whoever asks again with the same request id takes the place again ([`WaitTable::attach`]).
//!   Who comes back when the cancellation is under way is not told of a timeout: if it took the place,
//!   the request is made anew.
//! - A caller may leave before its wait begins, while it is still *on its way* ([`WaitTable::expect`]):
//!   then it leaves its place as soon as it has one. Whoever leaves after its answer is not known any
//!   more, and nothing is remembered of it.
//! - Losing the lead forgets all of it; the callers ask the new leader ([`WaitTable::disarm`]).

use std::collections::{BTreeMap, BTreeSet};

use lowkey_core::{Command, Ticket, WaitTime, mutants};

use crate::input::CallId;
use crate::time::{MILLISECOND, Nanos};

/// How long a place is kept for callers that are gone.
const RETURN_NANOS: u64 = 5_000 * MILLISECOND;

/// Invariants, while armed:
/// - `waits` has exactly the waits of the applied state.
/// - `by_deadline` has exactly those that are not `cancelling`, under their deadlines.
/// - `callers` has exactly the callers of all waits, and those that may become one: asked to wait, and
///   neither waiting nor answered yet.
#[derive(Debug, Default)]
pub(crate) struct WaitTable {
    waits: BTreeMap<Ticket, Parked>,
    by_deadline: BTreeSet<(Nanos, Ticket)>,
    callers: BTreeMap<CallId, Caller>,
}

/// Where a caller is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Caller {
    /// On its way: its request is under way, and may end in a wait.
    Expected,
    /// Left while it was on its way.
    Left,
    /// It waits.
    Waits(Ticket),
}

#[derive(Debug)]
struct Parked {
    since: Nanos,
    deadline: Nanos,
    cancelling: bool,
    /// Not those in `returned`.
    calls: BTreeSet<CallId>,
    /// Came back when the cancellation was under way; what they asked for.
    returned: Vec<Returned>,
}

/// A caller that came back, with what it asked for.
#[derive(Debug, PartialEq)]
pub(crate) struct Returned {
    pub(crate) call: CallId,
    pub(crate) command: Command,
    pub(crate) wait: WaitTime,
}

/// A wait that is over.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Ended {
    /// Those who waited.
    pub(crate) calls: BTreeSet<CallId>,
    /// Those who came back when its cancellation was under way.
    pub(crate) returned: Vec<Returned>,
    /// R7: how long, as far as this leader knows.
    pub(crate) waited_nanos: u64,
}

impl WaitTable {
    /// R7, R10: a new leader gives the callers of every wait time to come back.
    pub(crate) fn arm(&mut self, now: Nanos, tickets: impl Iterator<Item = Ticket>) {
        let since = if mutants::is_active("a new leader overstates waits") { Nanos(0) } else { now };
        for ticket in tickets {
            self.enqueued(now, ticket);
            self.waits.get_mut(&ticket).expect("it was just put there").since = since;
        }
    }

    /// The lead is lost: all callers have to ask elsewhere. Who is on its way will not wait here either.
    pub(crate) fn disarm(&mut self) -> Vec<CallId> {
        let callers = std::mem::take(self).callers.into_iter();
        let waits = |(call, caller)| matches!(caller, Caller::Waits(_)).then_some(call);
        callers.filter_map(waits).collect()
    }

    /// A caller asks to wait, and may have to.
    pub(crate) fn expect(&mut self, call: CallId) {
        self.callers.insert(call, Caller::Expected);
    }

    /// A caller was answered, whether it was on its way or never meant to wait.
    pub(crate) fn answered(&mut self, call: CallId) {
        if let Some(Caller::Expected | Caller::Left) = self.callers.get(&call) {
            self.callers.remove(&call);
        }
    }

    /// The wait's entry was applied. Its caller attaches in the same step, unless it has gone.
    pub(crate) fn enqueued(&mut self, now: Nanos, ticket: Ticket) {
        let has_time = !mutants::is_active("a new leader gives waiters no time");
        let deadline = if has_time { now.after(RETURN_NANOS) } else { now };
        let by_deadline = &mut self.by_deadline;
        self.waits.entry(ticket).or_insert_with(|| {
            by_deadline.insert((deadline, ticket));
            Parked { since: now, deadline, cancelling: false, calls: BTreeSet::new(), returned: Vec::new() }
        });
    }

    /// A caller waits, for the first time or again. The wait lasts as long as its longest caller wants.
    pub(crate) fn attach(&mut self, now: Nanos, ticket: Ticket, caller: Returned) {
        let parked = self.waits.get_mut(&ticket).expect("every wait of the state is in the table");
        let call = caller.call;
        let before = self.callers.insert(call, Caller::Waits(ticket));
        if parked.cancelling && !mutants::is_active("who comes back is told of the timeout") {
            parked.returned.push(caller);
        } else {
            let wanted = now.after(caller.wait.nanos());
            let deadline = if parked.calls.is_empty() { wanted } else { wanted.max(parked.deadline) };
            parked.calls.insert(call);
            self.by_deadline.remove(&(parked.deadline, ticket));
            parked.deadline = deadline;
            self.by_deadline.insert((deadline, ticket));
        }
        if before == Some(Caller::Left) {
            self.leave(now, call);
        }
    }

    /// A caller is gone. With the last one the wait has 5 s more, for one that comes back.
    pub(crate) fn leave(&mut self, now: Nanos, call: CallId) {
        let ticket = match self.callers.get_mut(&call) {
            // Answered before, or one that never waits.
            None => return,
            Some(on_its_way @ (Caller::Expected | Caller::Left)) => {
                *on_its_way = Caller::Left;
                return;
            }
            Some(Caller::Waits(ticket)) => *ticket,
        };
        self.callers.remove(&call);
        let parked = self.waits.get_mut(&ticket).expect("a caller waits for something");
        parked.calls.remove(&call);
        parked.returned.retain(|other| other.call != call);
        if parked.calls.is_empty() && !parked.cancelling {
            self.by_deadline.remove(&(parked.deadline, ticket));
            let return_nanos = match RETURN_NANOS {
                _ if mutants::is_active("the place of a gone caller is kept") => u64::MAX / 2,
                _ if mutants::is_active("the place of a gone caller is cancelled at once") => 0,
                usual => usual,
            };
            parked.deadline = parked.deadline.min(now.after(return_nanos));
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
    pub(crate) fn end(&mut self, now: Nanos, ticket: Ticket) -> Ended {
        let Some(parked) = self.waits.remove(&ticket) else { return Ended::default() };
        self.by_deadline.remove(&(parked.deadline, ticket));
        let returned = parked.returned.iter().map(|returned| &returned.call);
        for call in parked.calls.iter().chain(returned) {
            self.callers.remove(call);
        }
        let waited_nanos = now.since(parked.since);
        Ended { calls: parked.calls, returned: parked.returned, waited_nanos }
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
    /// The invariants of an armed table.
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
                let before = callers.insert(call, Caller::Waits(*ticket));
                assert!(before.is_none(), "call {call:?} waits in two places");
            }
        }
        assert_eq!(self.by_deadline, by_deadline);
        let waiting = self.callers.iter().filter(|(_, caller)| matches!(caller, Caller::Waits(_)));
        assert!(waiting.eq(callers.iter()), "other callers than the waits'");
    }

    /// Nobody waits, or is on the way to.
    pub(crate) fn has_no_callers(&self) -> bool {
        self.callers.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000 * MILLISECOND;

    fn caller(call: u64, wait_ms: i64) -> Returned {
        let command = Command::CancelWait { tickets: Vec::new(), since_unix_ms: 0 };
        Returned { call: CallId(call), command, wait: WaitTime::parse(wait_ms).unwrap() }
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
    fn who_leaves_on_the_way_leaves_its_place_as_soon_as_it_has_one() {
        let mut table = WaitTable::default();
        table.expect(CallId(1));
        table.leave(Nanos(0), CallId(1));
        table.leave(Nanos(0), CallId(1));
        table.enqueued(Nanos(SECOND), Ticket(1));
        table.attach(Nanos(SECOND), Ticket(1), caller(1, 60_000));
        table.check([Ticket(1)].into_iter());
        assert!(table.has_no_callers());
        assert_eq!(table.take_due(Nanos(6 * SECOND), 9), [Ticket(1)]);
    }

    #[test]
    fn who_leaves_after_the_answer_is_not_remembered() {
        let mut table = waiting(1, 60_000);
        table.end(Nanos(0), Ticket(1));
        table.leave(Nanos(0), CallId(1));
        table.expect(CallId(2));
        table.leave(Nanos(0), CallId(2));
        table.answered(CallId(2));
        table.leave(Nanos(0), CallId(2));
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
    fn a_lost_lead_interrupts_who_waits_and_forgets_who_is_on_the_way() {
        let mut table = waiting(1, 0);
        table.take_due(Nanos(0), 9);
        table.attach(Nanos(1), Ticket(1), caller(2, 5_000));
        table.expect(CallId(3));
        assert_eq!(table.disarm(), [CallId(1), CallId(2)]);
        table.leave(Nanos(1), CallId(3));
        assert!(table.has_no_callers());
        table.check(std::iter::empty());
    }

    #[test]
    fn a_new_leader_waits_for_the_callers_to_come() {
        let mut table = WaitTable::default();
        table.arm(Nanos(SECOND), [Ticket(4), Ticket(7)].into_iter());
        assert!(table.take_due(Nanos(6 * SECOND - 1), 9).is_empty());
        assert_eq!(table.take_due(Nanos(6 * SECOND), 1), [Ticket(4)]);
        assert_eq!(table.take_due(Nanos(6 * SECOND), 1), [Ticket(7)]);
    }
}
