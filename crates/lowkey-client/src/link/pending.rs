//! Calls that are not answered yet.

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::time::Duration;

use lowkey_api::ApiError;
use lowkey_api::v1::session_answer::Answer;
use lowkey_api::v1::session_call::Call;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::error::Error;
use crate::random::Backoff;

/// Longer than any call waits.
const LONG: Duration = Duration::from_secs(3600);

/// How many releases of one lease are on the way at once. Only those that nobody waits for are counted. The
/// service takes 128 operations of a lease at a time and refuses more. A program that drops thousands of
/// guards must leave room for other calls, and above all for the end of the session, which makes the other
/// releases needless.
const RELEASES_ON_THE_WAY: usize = 64;

/// How many waits for locks, and other calls, are on the way at once. The rest is sent when some of them
/// are answered. A node refuses a connection that has more than some 15,000 under way. Renewals, releases
/// and revocations are always sent: the node has a reserve for them.
const WAITS_ON_THE_WAY: usize = 8192;
const OTHERS_ON_THE_WAY: usize = 4096;

/// The classes of calls whose number on the way is limited.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    Wait,
    Other,
}

/// Calls of one class.
#[derive(Default)]
struct Window {
    on_the_way: usize,
    /// Calls to send when there is room, in order. It may contain numbers of calls that are gone.
    queue: VecDeque<u64>,
}

impl Class {
    fn max(self) -> usize {
        match self {
            Self::Wait => WAITS_ON_THE_WAY,
            Self::Other => OTHERS_ON_THE_WAY,
        }
    }
}

/// Where the answer goes.
pub(super) enum ReplyTo {
    To(oneshot::Sender<Result<Answer, Error>>),
    Nobody {
        /// Dropped when the call is answered.
        _keep: Box<dyn Send>,
    },
}

impl ReplyTo {
    fn give(self, outcome: Result<Answer, Error>) {
        if let Self::To(caller) = self {
            // A caller that has gone needs no answer.
            let _ = caller.send(outcome);
        }
    }
}

/// A call, and where its answer goes.
pub(super) struct PendingCall {
    call: Call,
    deadline: Instant,
    /// The end of a wait for a lock. Only the time that is left is sent.
    wait_until: Option<Instant>,
    /// A node that says nothing for this long after the call was sent is doubted. `None` if it may be
    /// silent.
    patience: Option<Duration>,
    reply: ReplyTo,
    /// Since when it is on the present stream.
    sent_at: Option<Instant>,
    /// The time in `doubts` of the last copy that was sent.
    doubted_at: Option<Instant>,
    /// A copy of it was not answered, or not clearly. That copy may be carried out, or may have been.
    in_doubt: bool,
    /// The earliest time to send it again.
    retry_at: Option<Instant>,
    /// It waits until fewer releases of its lease are on the way.
    is_parked: bool,
    backoff: Backoff,
    /// Why it is not answered yet, as far as is known.
    problem: Option<Error>,
}

impl PendingCall {
    pub(super) fn new(call: Call, deadline: Instant, patience: Duration, reply: ReplyTo) -> Self {
        let wait_until = match &call {
            Call::AcquireLock(acquire) if acquire.wait_ms > 0 => {
                Some(Instant::now() + Duration::from_millis(acquire.wait_ms.unsigned_abs()))
            }
            _ => None,
        };
        Self {
            call,
            deadline,
            wait_until,
            patience: wait_until.is_none().then_some(patience),
            reply,
            sent_at: None,
            doubted_at: None,
            in_doubt: false,
            retry_at: None,
            is_parked: false,
            backoff: Backoff::new(),
            problem: None,
        }
    }

    /// The lease, if this releases one of its locks and nobody waits for that.
    fn told_release_of(&self) -> Option<u64> {
        match &self.call {
            Call::ReleaseLock(release) if self.is_told() => Some(release.lease_id),
            _ => None,
        }
    }

    fn class(&self) -> Option<Class> {
        match &self.call {
            Call::RenewLeases(_) | Call::ReleaseLock(_) | Call::RevokeLease(_) => None,
            _ if self.wait_until.is_some() => Some(Class::Wait),
            _ => Some(Class::Other),
        }
    }

    #[cfg(test)]
    pub(super) fn call(&self) -> &Call {
        &self.call
    }

    fn is_told(&self) -> bool {
        matches!(self.reply, ReplyTo::Nobody { .. })
    }

    /// It is not on any stream any more.
    fn taken_off(&mut self) {
        self.in_doubt |= self.sent_at.take().is_some() && changes_something(&self.call);
    }

    /// What the caller is told when the time is up.
    fn overdue(&mut self) -> Error {
        self.taken_off();
        match self.problem.take() {
            None => Error::unavailable("no answer in time", self.in_doubt),
            // The last answer was that nothing was done. The fate of an earlier copy is unknown.
            Some(problem) if self.in_doubt => problem.of_one_copy(),
            Some(problem) => problem,
        }
    }
}

fn changes_something(call: &Call) -> bool {
    !matches!(call, Call::GetLock(_) | Call::GetLease(_) | Call::RenewLeases(_))
}

/// Invariants:
/// - `deadlines` has exactly the calls, under their deadlines.
/// - `retries` has exactly the calls that have a `retry_at`.
/// - `told` is the number of calls whose answer nobody waits for.
/// - `releases` counts the releases that nobody waits for and that are not parked. It has all parked ones
///   in order, and may contain numbers of calls that are gone.
/// - `doubts` has the calls on the present stream that want an answer at once. It may contain others.
/// - `waits` and `others` count the calls of their class that have a `sent_at`.
#[derive(Default)]
pub(super) struct Pending {
    calls: BTreeMap<u64, PendingCall>,
    deadlines: BTreeSet<(Instant, u64)>,
    retries: BTreeSet<(Instant, u64)>,
    doubts: BTreeSet<(Instant, u64)>,
    told: usize,
    releases: HashMap<u64, Releases>,
    waits: Window,
    others: Window,
}

/// Releases of one lease that nobody waits for.
#[derive(Default)]
struct Releases {
    on_the_way: usize,
    parked: VecDeque<u64>,
}

impl Pending {
    pub(super) fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// True if there are calls whose answer nobody waits for.
    pub(super) fn has_told(&self) -> bool {
        self.told > 0
    }

    pub(super) fn insert(&mut self, number: u64, mut waiting: PendingCall) {
        if let Some(lease_id) = waiting.told_release_of() {
            let releases = self.releases.entry(lease_id).or_default();
            if releases.on_the_way < RELEASES_ON_THE_WAY {
                releases.on_the_way += 1;
            } else {
                releases.parked.push_back(number);
                waiting.is_parked = true;
                waiting.retry_at = Some(waiting.deadline);
                self.retries.insert((waiting.deadline, number));
            }
        }
        if let Call::RevokeLease(revoke) = &waiting.call {
            self.drop_parked(revoke.lease_id);
        }
        self.deadlines.insert((waiting.deadline, number));
        self.told += usize::from(waiting.is_told());
        self.calls.insert(number, waiting);
    }

    pub(super) fn remove(&mut self, number: u64) -> Option<PendingCall> {
        let waiting = self.calls.remove(&number)?;
        if let Some(class) = waiting.class().filter(|_| waiting.sent_at.is_some()) {
            self.window(class).on_the_way -= 1;
        }
        self.told -= usize::from(waiting.is_told());
        self.deadlines.remove(&(waiting.deadline, number));
        if let Some(retry_at) = waiting.retry_at {
            self.retries.remove(&(retry_at, number));
        }
        if let Some(lease_id) = waiting.told_release_of().filter(|_| !waiting.is_parked) {
            self.release_ended(lease_id);
        }
        Some(waiting)
    }

    /// A release is no longer on the way: the next may go.
    fn release_ended(&mut self, lease_id: u64) {
        let Some(releases) = self.releases.get_mut(&lease_id) else { return };
        while let Some(number) = releases.parked.pop_front() {
            let Some(waiting) = self.calls.get_mut(&number) else { continue };
            waiting.is_parked = false;
            if let Some(before) = waiting.retry_at.take() {
                self.retries.remove(&(before, number));
            }
            // Due at once.
            let now = Instant::now();
            waiting.retry_at = Some(now);
            self.retries.insert((now, number));
            return;
        }
        releases.on_the_way -= 1;
        if releases.on_the_way == 0 {
            self.releases.remove(&lease_id);
        }
    }

    /// The lease is being ended, with everything that it holds: releases that were not sent yet need not
    /// be.
    fn drop_parked(&mut self, lease_id: u64) {
        let Some(releases) = self.releases.get_mut(&lease_id) else { return };
        for number in std::mem::take(&mut releases.parked) {
            self.remove(number);
        }
    }

    /// Postpones a new call if it changes something. Returns whether it does.
    pub(super) fn hold_back(&mut self, number: u64, until: Instant) -> bool {
        let is_new =
            |waiting: &&mut PendingCall| waiting.retry_at.is_none() && changes_something(&waiting.call);
        let Some(waiting) = self.calls.get_mut(&number).filter(is_new) else {
            return false;
        };
        waiting.retry_at = Some(until);
        self.retries.insert((until, number))
    }

    /// A call that was held back may be sent.
    pub(super) fn let_go(&mut self, number: u64) {
        let held_back = self.calls.get_mut(&number).filter(|waiting| waiting.sent_at.is_none());
        if let Some(retry_at) = held_back.and_then(|waiting| waiting.retry_at.take()) {
            self.retries.remove(&(retry_at, number));
        }
    }

    /// The call as it must be sent now, unless it must wait. On a slow connection with this latency,
    /// patience is longer.
    pub(super) fn call_to_send(&mut self, number: u64, now: Instant, latency: Duration) -> Option<Call> {
        let waiting = self.calls.get_mut(&number).filter(|waiting| waiting.retry_at.is_none())?;
        if let Some(class) = waiting.class().filter(|_| waiting.sent_at.is_none()) {
            let window = match class {
                Class::Wait => &mut self.waits,
                Class::Other => &mut self.others,
            };
            if window.on_the_way >= class.max() {
                window.queue.push_back(number);
                return None;
            }
            window.on_the_way += 1;
        }
        waiting.sent_at = Some(now);
        if let Some(patience) = waiting.patience {
            let doubted_at = now + patience.max(latency * 3);
            waiting.doubted_at = Some(doubted_at);
            self.doubts.insert((doubted_at, number));
        }
        let mut call = waiting.call.clone();
        if let (Call::AcquireLock(acquire), Some(until)) = (&mut call, waiting.wait_until) {
            let left = until.saturating_duration_since(now).as_millis();
            // Not 0: that would mean "do not wait".
            acquire.wait_ms = i64::try_from(left).unwrap_or(i64::MAX).max(1);
        }
        Some(call)
    }

    fn window(&mut self, class: Class) -> &mut Window {
        match class {
            Class::Wait => &mut self.waits,
            Class::Other => &mut self.others,
        }
    }

    /// The next call that waits for room, if there is room.
    pub(super) fn next_with_room(&mut self) -> Option<u64> {
        [Class::Other, Class::Wait].into_iter().find_map(|class| {
            let window = self.window(class);
            if window.on_the_way < class.max() { window.queue.pop_front() } else { None }
        })
    }

    /// All calls that a new stream must carry.
    pub(super) fn unanswered(&self) -> Vec<u64> {
        self.calls.keys().copied().collect()
    }

    /// The stream is gone, or left. The calls that it carried may have been carried out.
    pub(super) fn stream_left(&mut self) {
        self.doubts.clear();
        (self.waits, self.others) = Default::default();
        self.calls.values_mut().for_each(PendingCall::taken_off);
    }

    /// Gives the answer to its caller. Returns how long it took if it was wanted at once.
    pub(super) fn answer(&mut self, number: u64, outcome: Result<Answer, Error>) -> Option<Duration> {
        let waiting = self.remove(number)?;
        let took = waiting.patience.and(waiting.sent_at).map(|sent_at| sent_at.elapsed());
        let in_doubt = waiting.in_doubt;
        waiting.reply.give(outcome.map_err(|error| error.with_doubt(in_doubt)));
        took
    }

    /// Postpones a call after a temporary refusal. Returns false if there is no such call.
    pub(super) fn retry(&mut self, number: u64, error: &ApiError, now: Instant) -> bool {
        let Some(waiting) = self.calls.get_mut(&number) else { return false };
        if let Some(before) = waiting.retry_at.take() {
            self.retries.remove(&(before, number));
        }
        let hint =
            Duration::from_millis(error.retry_after_ms.unwrap_or_default()).min(Duration::from_secs(1));
        let retry_at = now + waiting.backoff.pause() + hint / 4;
        let sent_at = waiting.sent_at.take();
        let took = sent_at.map_or(Duration::ZERO, |sent_at| now.saturating_duration_since(sent_at));
        let left = sent_at.and(waiting.class());
        waiting.in_doubt |= error.outcome_unknown();
        // So far the outcome is certain. Another copy without enough time for an answer would make it
        // doubtful. The duration of a wait says nothing about that, and a call that nobody waits for is
        // sent in any case.
        let is_certain = changes_something(&waiting.call) && !waiting.in_doubt;
        let is_awaited = waiting.wait_until.is_none() && !waiting.is_told();
        let is_too_late = is_certain && is_awaited && retry_at + took >= waiting.deadline;
        let retry_at = if is_too_late { waiting.deadline } else { retry_at };
        waiting.retry_at = Some(retry_at);
        waiting.problem = Some(error.clone().into());
        self.retries.insert((retry_at, number));
        if let Some(class) = left {
            self.window(class).on_the_way -= 1;
        }
        true
    }

    /// Notes why there is no connection.
    pub(super) fn note_problem(&mut self, error: &Error) {
        for waiting in self.calls.values_mut() {
            waiting.problem = Some(error.clone());
        }
    }

    /// From now on nothing is tried for longer than this.
    pub(super) fn limit(&mut self, deadline: Instant) {
        for waiting in self.calls.values_mut() {
            waiting.deadline = waiting.deadline.min(deadline);
        }
        self.deadlines = self.calls.iter().map(|(number, waiting)| (waiting.deadline, *number)).collect();
    }

    /// When something is due next, or a time far off if nothing is.
    pub(super) fn next_time(&self) -> Instant {
        let first = |times: &BTreeSet<(Instant, u64)>| times.first().map(|(time, _)| *time);
        let next = [&self.deadlines, &self.retries, &self.doubts].into_iter().filter_map(first).min();
        next.unwrap_or_else(|| Instant::now() + LONG)
    }

    /// Answers the calls whose time is up, and returns their numbers.
    pub(super) fn take_overdue(&mut self, now: Instant) -> Vec<u64> {
        let mut overdue = Vec::new();
        while let Some((deadline, number)) = self.deadlines.first().copied()
            && deadline <= now
        {
            let Some(mut waiting) = self.remove(number) else { break };
            let problem = waiting.overdue();
            waiting.reply.give(Err(problem));
            overdue.push(number);
        }
        overdue
    }

    /// True if a call that wants an answer at once was sent, and the node has been silent since: no answer
    /// to it, nor anything else after `heard_at`.
    pub(super) fn is_doubtful(&mut self, now: Instant, heard_at: Instant) -> bool {
        let mut is_doubtful = false;
        while let Some((at, number)) = self.doubts.first().copied()
            && at <= now
        {
            self.doubts.pop_first();
            // An earlier copy that was refused says nothing about one that was just sent.
            let waiting = self.calls.get(&number).filter(|waiting| waiting.doubted_at == Some(at));
            let sent_at = waiting.and_then(|waiting| waiting.sent_at);
            is_doubtful |= sent_at.is_some_and(|sent_at| sent_at > heard_at);
        }
        is_doubtful
    }

    /// The calls whose pause is over.
    pub(super) fn take_retries(&mut self, now: Instant) -> Vec<u64> {
        let mut due = Vec::new();
        while let Some((retry_at, number)) = self.retries.first().copied()
            && retry_at <= now
        {
            self.retries.remove(&(retry_at, number));
            if let Some(waiting) = self.calls.get_mut(&number) {
                waiting.retry_at = None;
            }
            due.push(number);
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use lowkey_api::Reason;
    use lowkey_api::v1::AcquireLockRequest;

    use super::*;

    const SHORT: Duration = Duration::from_millis(200);

    fn acquire(wait_ms: i64) -> Call {
        Call::AcquireLock(AcquireLockRequest { wait_ms, ..AcquireLockRequest::default() })
    }

    fn nobody() -> ReplyTo {
        ReplyTo::Nobody { _keep: Box::new(()) }
    }

    #[tokio::test(start_paused = true)]
    async fn only_so_many_waits_are_on_the_way_and_the_rest_follows() {
        let mut pending = Pending::default();
        let (now, total) = (Instant::now(), WAITS_ON_THE_WAY as u64 + 3);
        for number in 1..=total {
            pending.insert(number, PendingCall::new(acquire(60_000), now + LONG, SHORT, nobody()));
        }
        let send_all = |pending: &mut Pending| {
            let numbers = pending.unanswered().into_iter();
            numbers.filter(|number| pending.call_to_send(*number, now, SHORT).is_some()).count()
        };
        assert_eq!(send_all(&mut pending), WAITS_ON_THE_WAY);
        assert_eq!(pending.next_with_room(), None);
        // Others do not wait for them.
        pending.insert(total + 1, PendingCall::new(acquire(0), now + LONG, SHORT, nobody()));
        assert!(pending.call_to_send(total + 1, now, SHORT).is_some());

        // One is answered, one put off, one given up before it was sent: there is room for two.
        pending.remove(1);
        assert!(pending.retry(2, &ApiError::new(Reason::LimitMemory, "full"), now));
        pending.remove(total - 2);
        let mut sent = Vec::new();
        while let Some(number) = pending.next_with_room() {
            if pending.call_to_send(number, now, SHORT).is_some() {
                sent.push(number);
            }
        }
        assert_eq!(sent, [total - 1, total]);

        // A new stream begins with none.
        pending.stream_left();
        assert_eq!(send_all(&mut pending), WAITS_ON_THE_WAY + 1, "all but the one that is put off");
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_left_of_a_wait_is_sent() {
        let mut pending = Pending::default();
        let now = Instant::now();
        pending.insert(1, PendingCall::new(acquire(1000), now + LONG, SHORT, nobody()));
        let later = now + Duration::from_millis(400);
        let Some(Call::AcquireLock(sent)) = pending.call_to_send(1, later, Duration::ZERO) else {
            panic!("it is sent")
        };
        assert_eq!(sent.wait_ms, 600);
        let Some(Call::AcquireLock(sent)) = pending.call_to_send(1, now + LONG, Duration::ZERO) else {
            panic!("it is sent")
        };
        assert_eq!(sent.wait_ms, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn of_many_releases_some_are_on_the_way_and_the_end_of_the_lease_makes_the_others_needless() {
        use lowkey_api::v1::{ReleaseLockRequest, RevokeLeaseRequest};
        let mut pending = Pending::default();
        let now = Instant::now();
        let release = |lease_id| {
            let release = ReleaseLockRequest { lease_id, ..ReleaseLockRequest::default() };
            PendingCall::new(Call::ReleaseLock(release), now + LONG, SHORT, nobody())
        };
        let mut sent = 0;
        for number in 1..=100 {
            pending.insert(number, release(7));
            sent += usize::from(pending.call_to_send(number, now, Duration::ZERO).is_some());
        }
        assert_eq!(sent, RELEASES_ON_THE_WAY);
        pending.insert(200, release(8));
        assert!(pending.call_to_send(200, now, Duration::ZERO).is_some(), "another lease has its own");
        // One is answered: the next goes.
        pending.answer(1, Ok(Answer::ReleaseLock(Default::default())));
        assert_eq!(pending.take_retries(now), [65]);
        assert!(pending.call_to_send(65, now, Duration::ZERO).is_some());
        let revoke = RevokeLeaseRequest { lease_id: 7, ..RevokeLeaseRequest::default() };
        pending.insert(300, PendingCall::new(Call::RevokeLease(revoke), now + LONG, SHORT, nobody()));
        assert!(pending.call_to_send(300, now, Duration::ZERO).is_some());
        assert_eq!(pending.calls.len(), 64 + 2);
        assert_eq!(pending.told, 64 + 2);
        for number in (2..=65).chain([200, 300]) {
            pending.answer(number, Ok(Answer::ReleaseLock(Default::default())));
        }
        assert!(pending.is_empty() && pending.releases.is_empty() && pending.retries.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_is_put_off_is_sent_when_its_pause_is_over() {
        let mut pending = Pending::default();
        let now = Instant::now();
        pending.insert(1, PendingCall::new(acquire(0), now + LONG, SHORT, nobody()));
        assert!(pending.retry(1, &ApiError::new(Reason::NoLeader, "none"), now));
        assert!(pending.call_to_send(1, now, Duration::ZERO).is_none());
        assert_eq!(pending.take_retries(now + LONG), [1]);
        assert!(pending.call_to_send(1, now, Duration::ZERO).is_some());
        assert!(pending.take_retries(now + LONG).is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_waits_too_long_is_told_the_last_problem() {
        let mut pending = Pending::default();
        let (answer, mut receiver) = oneshot::channel();
        let now = Instant::now();
        pending.insert(
            1,
            PendingCall::new(acquire(0), now + Duration::from_secs(1), SHORT, ReplyTo::To(answer)),
        );
        pending.retry(1, &ApiError::new(Reason::NoQuorum, "no majority"), now);
        assert_eq!(pending.take_overdue(now + Duration::from_secs(1)), [1]);
        let error = receiver.try_recv().unwrap().unwrap_err();
        assert_eq!(error.reason(), Some(Reason::NoQuorum));
        assert!(pending.is_empty() && pending.retries.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_clear_refusal_is_not_put_in_doubt_by_a_copy_that_has_no_time() {
        let mut pending = Pending::default();
        let (answer, mut receiver) = oneshot::channel();
        let (now, ms) = (Instant::now(), Duration::from_millis);
        pending.insert(1, PendingCall::new(acquire(0), now + ms(1000), SHORT, ReplyTo::To(answer)));
        pending.call_to_send(1, now, Duration::ZERO).unwrap();
        let no_leader = ApiError::new(Reason::NoLeader, "none");
        // Refused after 100 ms there is time for another; after 800 more there is none.
        pending.retry(1, &no_leader, now + ms(100));
        assert_eq!(pending.take_retries(now + ms(900)), [1]);
        pending.call_to_send(1, now + ms(100), Duration::ZERO).unwrap();
        pending.retry(1, &no_leader, now + ms(900));
        assert!(pending.take_retries(now + ms(999)).is_empty());
        pending.take_overdue(now + ms(1000));
        let told = receiver.try_recv().unwrap().unwrap_err();
        assert!(told.reason() == Some(Reason::NoLeader) && !told.may_have_been_done(), "{told}");
    }

    /// What is told after a copy was sent, and then `happens`.
    fn told_after_a_lost_copy(happens: impl FnOnce(&mut Pending, Instant)) -> Error {
        let mut pending = Pending::default();
        let (answer, mut receiver) = oneshot::channel();
        let now = Instant::now();
        pending.insert(1, PendingCall::new(acquire(0), now + LONG, SHORT, ReplyTo::To(answer)));
        pending.call_to_send(1, now, Duration::ZERO).unwrap();
        pending.stream_left();
        happens(&mut pending, now);
        pending.take_overdue(now + LONG);
        receiver.try_recv().unwrap().unwrap_err()
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_sent_once_may_have_been_done_whatever_happens_later() {
        let refused = Error::unavailable("connection refused", false);
        let told = told_after_a_lost_copy(|pending, _| pending.note_problem(&refused));
        assert!(told.outcome_unknown() && told.to_string().contains("refused"), "{told}");
        let no_leader = ApiError::new(Reason::NoLeader, "no leader; nothing was done");
        let told = told_after_a_lost_copy(|pending, now| assert!(pending.retry(1, &no_leader, now)));
        assert!(told.outcome_unknown(), "{told}");
        assert_eq!(told.to_string(), "no leader; the request may have been carried out all the same");
        // A clear answer is one. Only the code that cleans up behind it needs to know of the copy.
        let held = ApiError::new(Reason::AlreadyHeld, "held");
        let told = told_after_a_lost_copy(|pending, _| _ = pending.answer(1, Err(held.into())));
        assert!(!told.outcome_unknown() && told.may_have_been_done(), "{told}");
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_never_sent_was_not_done() {
        let mut pending = Pending::default();
        let (answer, mut receiver) = oneshot::channel();
        let now = Instant::now();
        pending.insert(1, PendingCall::new(acquire(0), now + LONG, SHORT, ReplyTo::To(answer)));
        pending.stream_left();
        pending.take_overdue(now + LONG);
        assert!(!receiver.try_recv().unwrap().unwrap_err().may_have_been_done());
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_is_doubted_when_it_has_said_nothing_since() {
        let now = Instant::now();
        let sent = |wait_ms, latency| {
            let mut pending = Pending::default();
            pending.insert(1, PendingCall::new(acquire(wait_ms), now + LONG, SHORT, nobody()));
            pending.call_to_send(1, now, latency).unwrap();
            pending
        };
        let (before, after) = (now - SHORT, now + Duration::from_millis(1));
        assert!(!sent(0, Duration::ZERO).is_doubtful(now + SHORT / 2, before));
        assert!(sent(0, Duration::ZERO).is_doubtful(now + SHORT, before));
        assert!(!sent(0, Duration::ZERO).is_doubtful(now + SHORT, after), "it said something else");
        // What it refused it is asked again, and has as long as before to answer that.
        let mut again = sent(0, Duration::ZERO);
        let (refused_at, again_at) = (now + SHORT * 8 / 10, now + SHORT * 9 / 10);
        again.retry(1, &ApiError::new(Reason::NoLeader, "none"), refused_at);
        again.take_retries(now + LONG);
        again.call_to_send(1, again_at, Duration::ZERO).unwrap();
        assert!(!again.is_doubtful(now + SHORT, refused_at));
        assert!(again.is_doubtful(again_at + SHORT, refused_at));
        assert!(!sent(0, SHORT).is_doubtful(now + SHORT, before), "the way is slow");
        assert!(!sent(1000, Duration::ZERO).is_doubtful(now + SHORT, before), "a wait takes its time");
    }
}
