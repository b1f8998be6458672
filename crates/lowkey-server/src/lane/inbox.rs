//! The queues of everything that waits for the replica.
//!
//! There are four queues, taken in this order at every turn:
//!
//! 1. reports of the node's own parts
//! 2. messages of peers
//! 3. requests that keep what exists (renewals, releases, reads)
//! 4. requests that want more (leases, locks)
//!
//! So under overload what exists is kept alive first. Every queue is bounded, which gives *backpressure*. A
//! caller whose queue is full is told so at once. A peer's message that does not fit is dropped, as on any
//! network. Reports are bounded by what there is to report: for example, a caller that goes away is
//! reported only if its request was taken in and not answered.
//!
//! While entries of this leader are on their way to the followers, requests *gather*. Once those entries
//! are committed, the gathered requests go into the log together. They cost one write, one sync and one
//! message in total. The taker says how long requests may gather at most. A request that comes alone does
//! not wait at all.
//!
//! The *taker* is the code that drains the inbox. It is woken only for what it waits for, because waking it
//! costs more than most requests.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use lowkey_core::MemberId;
use lowkey_replica::wire::Said;
use lowkey_replica::{CallId, Failure, Input, Request, Response};
use tokio::sync::{Notify, oneshot};

use crate::peers::hello::Caller;

/// Where the answer to a request goes.
pub(crate) type Answer = oneshot::Sender<Result<Response, Failure>>;

const MESSAGES_MAX: usize = 16_384;
const KEEPING_MAX: usize = 65_536;
const WANTING_MAX: usize = 16_384;
/// How many requests of a queue one turn takes, so that a turn stays short.
const REQUESTS_A_TURN: usize = 4_096;

/// This many requests are enough for a batch of their own, and need not gather any longer.
const GATHERED_ENOUGH: usize = 256;

/// A request, and where its answer goes.
pub(crate) struct Asked {
    pub(crate) call: CallId,
    pub(crate) caller: lowkey_core::Caller,
    pub(crate) request: Request,
    pub(crate) answer: Answer,
}

/// What one turn takes in.
#[derive(Default)]
pub(crate) struct Batch {
    pub(crate) events: Vec<Event>,
    pub(crate) messages: Vec<Said>,
    pub(crate) requests: Vec<Asked>,
}

/// What the node's own parts report to the replica.
pub(crate) enum Event {
    /// Given to the replica as it is.
    Replica(Input),
    /// A caller went away before it was answered.
    CallerGone(CallId),
    /// A peer was heard from, and let in.
    PeerSeen(Caller),
    /// The node that answers in this member's place says that this node was removed.
    RemovedSays(MemberId),
    /// The cluster says that this node was removed.
    Removed,
    /// Close the log in good order, and end.
    Stop,
}

#[derive(Default)]
struct Queues {
    events: VecDeque<Event>,
    messages: VecDeque<Said>,
    keeping: VecDeque<Asked>,
    wanting: VecDeque<Asked>,
    last_call: u64,
    waiting_for: WaitingFor,
}

/// What the taker waits for.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum WaitingFor {
    /// Nothing: something is due, and the taker was woken.
    #[default]
    Nothing,
    /// Any input.
    Anything,
    /// Events, messages, or enough requests. A few requests keep gathering.
    Enough,
}

impl Queues {
    fn request_count(&self) -> usize {
        self.keeping.len() + self.wanting.len()
    }

    fn take_requests(&mut self) -> Vec<Asked> {
        let keeping = self.keeping.len().min(REQUESTS_A_TURN);
        let wanting = self.wanting.len().min(REQUESTS_A_TURN);
        let mut requests: Vec<Asked> = Vec::with_capacity(keeping + wanting);
        requests.extend(self.keeping.drain(..keeping));
        requests.extend(self.wanting.drain(..wanting));
        requests
    }
}

#[derive(Default)]
pub(crate) struct Inbox {
    queues: Mutex<Queues>,
    filled: Notify,
}

impl Inbox {
    pub(crate) fn report(&self, event: Event) {
        let mut queues = self.queues();
        queues.events.push_back(event);
        self.call_taker(queues);
    }

    /// Takes in messages of a peer, as far as there is room.
    pub(crate) fn deliver(&self, messages: impl IntoIterator<Item = Said>) {
        let mut queues = self.queues();
        let room = MESSAGES_MAX.saturating_sub(queues.messages.len());
        queues.messages.extend(messages.into_iter().take(room));
        self.call_taker(queues);
    }

    /// Takes in a request, unless its queue is full. Returns the id that the request has from now on.
    pub(crate) fn ask(&self, caller: lowkey_core::Caller, request: Request, answer: Answer) -> CallId {
        let mut queues = self.queues();
        queues.last_call += 1;
        let call = CallId(queues.last_call);
        let (queue, room) = if wants_more(&request) {
            (&mut queues.wanting, WANTING_MAX)
        } else {
            (&mut queues.keeping, KEEPING_MAX)
        };
        if queue.len() >= room {
            drop(queues);
            // A caller that has gone needs no answer.
            let _ = answer.send(Err(Failure::Busy));
            return call;
        }
        queue.push_back(Asked { call, caller, request, answer });
        let is_enough =
            queues.waiting_for == WaitingFor::Anything || queues.request_count() >= GATHERED_ENOUGH;
        if is_enough {
            self.call_taker(queues);
        }
        call
    }

    /// Wakes the taker, unless it was woken before.
    fn call_taker(&self, mut queues: MutexGuard<'_, Queues>) {
        let waited_for = std::mem::take(&mut queues.waiting_for);
        drop(queues);
        if waited_for != WaitingFor::Nothing {
            self.filled.notify_one();
        }
    }

    /// Wakes the taker, no matter what it waits for.
    pub(crate) fn call(&self) {
        self.filled.notify_one();
    }

    /// Resolves when the taker was woken. It may resolve once more than that.
    pub(crate) async fn filled(&self) {
        self.filled.notified().await;
    }

    /// True if the taker was woken and has not come since then.
    pub(crate) fn is_due(&self) -> bool {
        self.queues().waiting_for == WaitingFor::Nothing
    }

    /// How much waits in each queue, by the queue's name.
    pub(crate) fn depths(&self) -> [(&'static str, usize); 4] {
        let queues = self.queues();
        [
            ("events", queues.events.len()),
            ("messages", queues.messages.len()),
            ("keeping", queues.keeping.len()),
            ("wanting", queues.wanting.len()),
        ]
    }

    /// Takes what is due now. If nothing is due, the taker is woken when something is. Until `gather_until`
    /// requests are left to gather, unless there are enough of them. The taker is not woken when that time
    /// is over: it must watch the time itself.
    pub(crate) fn take(&self, gather_until: Option<Instant>) -> Option<Batch> {
        let mut queues = self.queues();
        let gather = gather_until.is_some_and(|until| until > Instant::now());
        let are_due = match queues.request_count() {
            0 => false,
            1..GATHERED_ENOUGH => !gather,
            _ => true,
        };
        if !are_due && queues.events.is_empty() && queues.messages.is_empty() {
            queues.waiting_for = if gather { WaitingFor::Enough } else { WaitingFor::Anything };
            return None;
        }
        queues.waiting_for = WaitingFor::Nothing;
        Some(Batch {
            events: queues.events.drain(..).collect(),
            messages: queues.messages.drain(..).collect(),
            requests: if are_due { queues.take_requests() } else { Vec::new() },
        })
    }

    fn queues(&self) -> MutexGuard<'_, Queues> {
        // No code that could panic runs while the queues are locked.
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn wants_more(request: &Request) -> bool {
    match request {
        Request::Wait { .. } => true,
        Request::Command(command) => command.grows(),
        Request::Renew { .. }
        | Request::RenewMany(_)
        | Request::Read(_)
        | Request::ReadStale(_)
        | Request::Transfer { .. } => false,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures::FutureExt as _;
    use lowkey_core::{Command, LeaseId, OwnerId, RequestId, Ttl};

    use super::*;

    fn create_lease() -> Request {
        Request::Command(Command::CreateLease {
            owner: OwnerId::parse("o").unwrap(),
            ttl: Ttl::parse(1).unwrap(),
            request: RequestId::parse("r").unwrap(),
        })
    }

    #[test]
    fn renewals_go_before_requests_for_more() {
        let inbox = Inbox::default();
        inbox.ask(lowkey_core::Caller::Node, create_lease(), oneshot::channel().0);
        inbox.ask(
            lowkey_core::Caller::Node,
            Request::Renew { lease: LeaseId(1), holds: None },
            oneshot::channel().0,
        );
        let batch = inbox.take(None).unwrap();
        assert_eq!(batch.requests[0].request, Request::Renew { lease: LeaseId(1), holds: None });
        assert_eq!(batch.requests[1].request, create_lease());
    }

    #[test]
    fn a_full_queue_answers_busy_at_once_and_leaves_the_other_open() {
        let inbox = Inbox::default();
        for _ in 0..WANTING_MAX {
            inbox.ask(lowkey_core::Caller::Node, create_lease(), oneshot::channel().0);
        }
        let (sender, mut receiver) = oneshot::channel();
        inbox.ask(lowkey_core::Caller::Node, create_lease(), sender);
        assert_eq!(receiver.try_recv().unwrap(), Err(Failure::Busy));
        let (sender, mut receiver) = oneshot::channel();
        inbox.ask(lowkey_core::Caller::Node, Request::Renew { lease: LeaseId(1), holds: None }, sender);
        assert!(receiver.try_recv().is_err(), "the renewal waits for its turn");
    }

    /// A time far from now: anything taken before it was due.
    fn later() -> Option<Instant> {
        Some(Instant::now() + Duration::from_secs(60))
    }

    fn requests(batch: Option<Batch>) -> usize {
        batch.map_or(0, |batch| batch.requests.len())
    }

    #[test]
    fn requests_that_gather_are_taken_when_their_time_is_over_or_they_are_enough() {
        let inbox = Inbox::default();
        inbox.ask(lowkey_core::Caller::Node, create_lease(), oneshot::channel().0);
        assert_eq!(requests(inbox.take(later())), 0);
        assert_eq!(requests(inbox.take(Some(Instant::now()))), 1, "nobody gathers for ever");
        inbox.ask(lowkey_core::Caller::Node, create_lease(), oneshot::channel().0);
        assert_eq!(requests(inbox.take(None)), 1, "nor if it is not asked for");
        for _ in 0..GATHERED_ENOUGH {
            inbox.ask(lowkey_core::Caller::Node, create_lease(), oneshot::channel().0);
        }
        assert_eq!(requests(inbox.take(later())), GATHERED_ENOUGH);
    }

    #[test]
    fn what_is_reported_does_not_wait_for_requests_that_gather() {
        let inbox = Inbox::default();
        inbox.ask(lowkey_core::Caller::Node, create_lease(), oneshot::channel().0);
        inbox.report(Event::Removed);
        let batch = inbox.take(later()).unwrap();
        assert_eq!((batch.events.len(), batch.requests.len()), (1, 0));
    }

    /// Whether the taker was woken since the last check.
    fn was_called(inbox: &Inbox) -> bool {
        inbox.filled().now_or_never().is_some()
    }

    #[test]
    fn the_taker_is_called_once_and_for_what_it_waits_for() {
        let inbox = Inbox::default();
        assert!(inbox.take(None).is_none());
        assert!(!inbox.is_due() && !was_called(&inbox));
        inbox.ask(lowkey_core::Caller::Node, create_lease(), oneshot::channel().0);
        inbox.ask(lowkey_core::Caller::Node, create_lease(), oneshot::channel().0);
        assert!(inbox.is_due() && was_called(&inbox) && !was_called(&inbox));
        assert_eq!(requests(inbox.take(None)), 2);
        assert!(inbox.is_due(), "there may be more: the taker comes back until nothing is due");
        assert!(inbox.take(later()).is_none());
        inbox.ask(lowkey_core::Caller::Node, create_lease(), oneshot::channel().0);
        assert!(!inbox.is_due() && !was_called(&inbox), "a request gathers");
        inbox.report(Event::Removed);
        assert!(inbox.is_due() && was_called(&inbox));
    }
}
