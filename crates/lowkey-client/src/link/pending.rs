//! Calls that are not answered yet.

use std::collections::{BTreeMap, BTreeSet};
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

/// Who gets the answer.
pub(super) enum Reply {
    To(oneshot::Sender<Result<Answer, Error>>),
    Nobody {
        /// Dropped when the call is answered.
        _keep: Box<dyn Send>,
    },
}

impl Reply {
    fn give(self, outcome: Result<Answer, Error>) {
        if let Self::To(caller) = self {
            // A caller that has gone needs no answer.
            let _ = caller.send(outcome);
        }
    }
}

/// A call, and who waits for its answer.
pub(super) struct Waiting {
    call: Call,
    deadline: Instant,
    /// A wait for a lock, until then: what is left of it is sent.
    wait_until: Option<Instant>,
    reply: Reply,
    /// When it was sent last, if it was.
    sent_at: Option<Instant>,
    /// Not to be sent again before this.
    retry_at: Option<Instant>,
    backoff: Backoff,
    /// Why it is not answered yet, as far as is known.
    problem: Option<Error>,
}

impl Waiting {
    pub(super) fn new(call: Call, deadline: Instant, reply: Reply) -> Self {
        let wait_until = match &call {
            Call::AcquireLock(acquire) if acquire.wait_ms > 0 => {
                Some(Instant::now() + Duration::from_millis(acquire.wait_ms.unsigned_abs()))
            }
            _ => None,
        };
        let backoff = Backoff::new();
        Self { call, deadline, wait_until, reply, sent_at: None, retry_at: None, backoff, problem: None }
    }
}

/// A call whose time is up.
#[derive(Debug)]
pub(super) struct Overdue {
    pub(super) number: u64,
    /// When it was sent last, if it was.
    pub(super) sent_at: Option<Instant>,
}

/// Invariants:
/// - `deadlines` has exactly the calls, under their deadlines.
/// - `retries` has exactly those that have a `retry_at`.
#[derive(Default)]
pub(super) struct Pending {
    calls: BTreeMap<u64, Waiting>,
    deadlines: BTreeSet<(Instant, u64)>,
    retries: BTreeSet<(Instant, u64)>,
}

impl Pending {
    pub(super) fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    pub(super) fn insert(&mut self, number: u64, waiting: Waiting) {
        self.deadlines.insert((waiting.deadline, number));
        self.calls.insert(number, waiting);
    }

    pub(super) fn remove(&mut self, number: u64) -> Option<Waiting> {
        let waiting = self.calls.remove(&number)?;
        self.deadlines.remove(&(waiting.deadline, number));
        if let Some(retry_at) = waiting.retry_at {
            self.retries.remove(&(retry_at, number));
        }
        Some(waiting)
    }

    /// The call as it is to be sent now, if it is not to wait.
    pub(super) fn call_to_send(&mut self, number: u64, now: Instant) -> Option<Call> {
        let waiting = self.calls.get_mut(&number).filter(|waiting| waiting.retry_at.is_none())?;
        waiting.sent_at = Some(now);
        let mut call = waiting.call.clone();
        if let (Call::AcquireLock(acquire), Some(until)) = (&mut call, waiting.wait_until) {
            let left = until.saturating_duration_since(now).as_millis();
            // Not 0: that would be another question.
            acquire.wait_ms = i64::try_from(left).unwrap_or(i64::MAX).max(1);
        }
        Some(call)
    }

    /// All that a new stream has to carry.
    pub(super) fn unanswered(&self) -> Vec<u64> {
        self.calls.keys().copied().collect()
    }

    pub(super) fn answer(&mut self, number: u64, outcome: Result<Answer, Error>) {
        if let Some(waiting) = self.remove(number) {
            waiting.reply.give(outcome);
        }
    }

    /// Puts a call off after a refusal for the moment; false if there is no such call.
    pub(super) fn retry(&mut self, number: u64, error: &ApiError, now: Instant) -> bool {
        let Some(waiting) = self.calls.get_mut(&number) else { return false };
        if let Some(before) = waiting.retry_at.take() {
            self.retries.remove(&(before, number));
        }
        let hint =
            Duration::from_millis(error.retry_after_ms.unwrap_or_default()).min(Duration::from_secs(1));
        let retry_at = now + waiting.backoff.pause() + hint / 4;
        waiting.retry_at = Some(retry_at);
        waiting.problem = Some(error.clone().into());
        self.retries.insert((retry_at, number));
        true
    }

    /// There is no connection, and this is why.
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

    /// When something is due; some time far off if nothing is.
    pub(super) fn next_time(&self) -> Instant {
        let first = |times: &BTreeSet<(Instant, u64)>| times.first().map(|(time, _)| *time);
        let next = [first(&self.deadlines), first(&self.retries)].into_iter().flatten().min();
        next.unwrap_or_else(|| Instant::now() + LONG)
    }

    /// Answers those whose time is up, and tells of them.
    pub(super) fn take_overdue(&mut self, now: Instant) -> Vec<Overdue> {
        let mut overdue = Vec::new();
        while let Some((deadline, number)) = self.deadlines.first().copied()
            && deadline <= now
        {
            let Some(waiting) = self.remove(number) else { break };
            let problem = match waiting.problem {
                Some(error) => error,
                None => Error::unavailable("no answer in time", waiting.sent_at.is_some()),
            };
            waiting.reply.give(Err(problem));
            overdue.push(Overdue { number, sent_at: waiting.sent_at });
        }
        overdue
    }

    /// Those whose pause is over.
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

    fn acquire(wait_ms: i64) -> Call {
        Call::AcquireLock(AcquireLockRequest { wait_ms, ..AcquireLockRequest::default() })
    }

    fn nobody() -> Reply {
        Reply::Nobody { _keep: Box::new(()) }
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_left_of_a_wait_is_sent() {
        let mut pending = Pending::default();
        let now = Instant::now();
        pending.insert(1, Waiting::new(acquire(1000), now + LONG, nobody()));
        let later = now + Duration::from_millis(400);
        let Some(Call::AcquireLock(sent)) = pending.call_to_send(1, later) else { panic!("it is sent") };
        assert_eq!(sent.wait_ms, 600);
        let Some(Call::AcquireLock(sent)) = pending.call_to_send(1, now + LONG) else { panic!("it is sent") };
        assert_eq!(sent.wait_ms, 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_is_put_off_is_sent_when_its_pause_is_over() {
        let mut pending = Pending::default();
        let now = Instant::now();
        pending.insert(1, Waiting::new(acquire(0), now + LONG, nobody()));
        assert!(pending.retry(1, &ApiError::new(Reason::NoLeader, "none"), now));
        assert!(pending.call_to_send(1, now).is_none());
        assert_eq!(pending.take_retries(now + LONG), [1]);
        assert!(pending.call_to_send(1, now).is_some());
        assert!(pending.take_retries(now + LONG).is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn whoever_waits_too_long_is_told_the_last_problem() {
        let mut pending = Pending::default();
        let (answer, mut receiver) = oneshot::channel();
        let now = Instant::now();
        pending.insert(1, Waiting::new(acquire(0), now + Duration::from_secs(1), Reply::To(answer)));
        pending.retry(1, &ApiError::new(Reason::NoQuorum, "no majority"), now);
        let overdue = pending.take_overdue(now + Duration::from_secs(1));
        assert!(matches!(overdue[..], [Overdue { number: 1, sent_at: None }]), "{overdue:?}");
        let error = receiver.try_recv().unwrap().unwrap_err();
        assert_eq!(error.reason(), Some(Reason::NoQuorum));
        assert!(pending.is_empty() && pending.retries.is_empty());
    }
}
