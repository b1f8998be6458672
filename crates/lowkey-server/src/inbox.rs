//! Where everything waits that the replica has to take in.
//!
//! Four lanes, taken in this order at every turn: what the node's own parts report, messages of
//! peers, requests that keep what exists (renewals, releases, reads), requests that want more
//! (leases, locks). Under overload what exists is kept alive first. Every lane is bounded: a caller
//! that finds its lane full is told so at once, and a peer's message is dropped, as on any network.
//! What the node's own parts report is bounded by what there is to report of: a caller that goes away,
//! say, is told of only if its request was taken in and not answered.
//!
//! While entries of this leader are on their way to the others, requests *gather*: what comes meanwhile goes into the
//! log together once those are committed, and costs one write, one sync and one message for all. For how long at most is
//! for the taker to say; a request that comes alone does not wait at all.
//!
//! The taker is called for what it waits for and for nothing less: to be called costs more than most requests.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use lowkey_core::MemberId;
use lowkey_replica::wire::Said;
use lowkey_replica::{CallId, Failure, Input, Request, Response};
use tokio::sync::{Notify, oneshot};

use crate::housekeeper::Report;
use crate::peers::hello::Caller;

/// Where the answer to a request goes.
pub(crate) type Answer = oneshot::Sender<Result<Response, Failure>>;

const MESSAGES_MAX: usize = 16_384;
const KEEPING_MAX: usize = 65_536;
const WANTING_MAX: usize = 16_384;
/// How many requests of a lane are taken in one turn, so that a turn stays short.
const REQUESTS_A_TURN: usize = 4_096;

/// So many are enough for a batch of their own.
const GATHERED_ENOUGH: usize = 256;

/// A request, and where its answer goes.
pub(crate) struct Asked {
    pub(crate) call: CallId,
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
    /// Passed on to the replica as it is.
    Replica(Input),
    /// A caller went away before it was answered.
    CallerGone(CallId),
    /// The housekeeper is done with something.
    Housekeeping(Report),
    /// A peer was heard from, and let in.
    PeerSeen(Caller),
    /// Whoever answers in this member's place says that this node was removed.
    RemovedSays(MemberId),
    /// The cluster says that this node was removed.
    Removed,
    /// Put the log in order and end.
    Stop,
}

#[derive(Default)]
struct Lanes {
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
    /// Nothing: something is due, and it was called.
    #[default]
    Nothing,
    /// Whatever comes.
    Anything,
    /// Events, messages, or requests enough: a few of them gather.
    Enough,
}

impl Lanes {
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
    lanes: Mutex<Lanes>,
    filled: Notify,
}

impl Inbox {
    pub(crate) fn report(&self, event: Event) {
        let mut lanes = self.lanes();
        lanes.events.push_back(event);
        self.call_taker(lanes);
    }

    /// Takes in messages of a peer, as far as there is room.
    pub(crate) fn deliver(&self, messages: impl IntoIterator<Item = Said>) {
        let mut lanes = self.lanes();
        let room = MESSAGES_MAX.saturating_sub(lanes.messages.len());
        lanes.messages.extend(messages.into_iter().take(room));
        self.call_taker(lanes);
    }

    /// Takes in a request, unless its lane is full, and says how it is known from now on.
    pub(crate) fn ask(&self, request: Request, answer: Answer) -> CallId {
        let mut lanes = self.lanes();
        lanes.last_call += 1;
        let call = CallId(lanes.last_call);
        let (lane, room) = if wants_more(&request) {
            (&mut lanes.wanting, WANTING_MAX)
        } else {
            (&mut lanes.keeping, KEEPING_MAX)
        };
        if lane.len() >= room {
            drop(lanes);
            // A caller that has gone needs no answer.
            let _ = answer.send(Err(Failure::Busy));
            return call;
        }
        lane.push_back(Asked { call, request, answer });
        let is_enough = lanes.waiting_for == WaitingFor::Anything || lanes.request_count() >= GATHERED_ENOUGH;
        if is_enough {
            self.call_taker(lanes);
        }
        call
    }

    /// Calls the taker, unless it was called before.
    fn call_taker(&self, mut lanes: MutexGuard<'_, Lanes>) {
        let waited_for = std::mem::take(&mut lanes.waiting_for);
        drop(lanes);
        if waited_for != WaitingFor::Nothing {
            self.filled.notify_one();
        }
    }

    /// Calls the taker, whatever it waits for.
    pub(crate) fn call(&self) {
        self.filled.notify_one();
    }

    /// Resolves when the taker was called, and perhaps once more.
    pub(crate) async fn filled(&self) {
        self.filled.notified().await;
    }

    /// True if the taker was called and has not been there since then.
    pub(crate) fn is_due(&self) -> bool {
        self.lanes().waiting_for == WaitingFor::Nothing
    }

    /// How much waits in each lane, by its name.
    pub(crate) fn depths(&self) -> [(&'static str, usize); 4] {
        let lanes = self.lanes();
        [
            ("events", lanes.events.len()),
            ("messages", lanes.messages.len()),
            ("keeping", lanes.keeping.len()),
            ("wanting", lanes.wanting.len()),
        ]
    }

    /// What is due now; if nothing is, the taker is called when something is. Until `gather_until` requests are left to
    /// gather, unless there are enough of them; that this time is over, nobody is called for.
    pub(crate) fn take(&self, gather_until: Option<Instant>) -> Option<Batch> {
        let mut lanes = self.lanes();
        let gather = gather_until.is_some_and(|until| until > Instant::now());
        let are_due = match lanes.request_count() {
            0 => false,
            1..GATHERED_ENOUGH => !gather,
            _ => true,
        };
        if !are_due && lanes.events.is_empty() && lanes.messages.is_empty() {
            lanes.waiting_for = if gather { WaitingFor::Enough } else { WaitingFor::Anything };
            return None;
        }
        lanes.waiting_for = WaitingFor::Nothing;
        Some(Batch {
            events: lanes.events.drain(..).collect(),
            messages: lanes.messages.drain(..).collect(),
            requests: if are_due { lanes.take_requests() } else { Vec::new() },
        })
    }

    fn lanes(&self) -> MutexGuard<'_, Lanes> {
        // No code that could panic runs while the lanes are held.
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn wants_more(request: &Request) -> bool {
    use lowkey_core::Command;
    match request {
        Request::Wait { .. } => true,
        Request::Command(command) => matches!(
            command,
            Command::CreateLease { .. }
                | Command::Acquire { .. }
                | Command::SetValue { .. }
                | Command::AddMember { .. }
        ),
        Request::Renew { .. } | Request::Read(_) | Request::ReadStale(_) | Request::Transfer { .. } => false,
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
        inbox.ask(create_lease(), oneshot::channel().0);
        inbox.ask(Request::Renew { lease: LeaseId(1), holds: None }, oneshot::channel().0);
        let batch = inbox.take(None).unwrap();
        assert_eq!(batch.requests[0].request, Request::Renew { lease: LeaseId(1), holds: None });
        assert_eq!(batch.requests[1].request, create_lease());
    }

    #[test]
    fn a_full_lane_answers_busy_at_once_and_leaves_the_other_lane_open() {
        let inbox = Inbox::default();
        for _ in 0..WANTING_MAX {
            inbox.ask(create_lease(), oneshot::channel().0);
        }
        let (sender, mut receiver) = oneshot::channel();
        inbox.ask(create_lease(), sender);
        assert_eq!(receiver.try_recv().unwrap(), Err(Failure::Busy));
        let (sender, mut receiver) = oneshot::channel();
        inbox.ask(Request::Renew { lease: LeaseId(1), holds: None }, sender);
        assert!(receiver.try_recv().is_err(), "the renewal waits for its turn");
    }

    /// Far from now: what is taken before was due.
    fn later() -> Option<Instant> {
        Some(Instant::now() + Duration::from_secs(60))
    }

    fn requests(batch: Option<Batch>) -> usize {
        batch.map_or(0, |batch| batch.requests.len())
    }

    #[test]
    fn requests_that_gather_are_taken_when_their_time_is_over_or_they_are_enough() {
        let inbox = Inbox::default();
        inbox.ask(create_lease(), oneshot::channel().0);
        assert_eq!(requests(inbox.take(later())), 0);
        assert_eq!(requests(inbox.take(Some(Instant::now()))), 1, "nobody gathers for ever");
        inbox.ask(create_lease(), oneshot::channel().0);
        assert_eq!(requests(inbox.take(None)), 1, "nor if it is not asked for");
        for _ in 0..GATHERED_ENOUGH {
            inbox.ask(create_lease(), oneshot::channel().0);
        }
        assert_eq!(requests(inbox.take(later())), GATHERED_ENOUGH);
    }

    #[test]
    fn what_is_reported_does_not_wait_for_requests_that_gather() {
        let inbox = Inbox::default();
        inbox.ask(create_lease(), oneshot::channel().0);
        inbox.report(Event::Removed);
        let batch = inbox.take(later()).unwrap();
        assert_eq!((batch.events.len(), batch.requests.len()), (1, 0));
    }

    /// Whether the taker was called since the last look.
    fn was_called(inbox: &Inbox) -> bool {
        inbox.filled().now_or_never().is_some()
    }

    #[test]
    fn the_taker_is_called_once_and_for_what_it_waits_for() {
        let inbox = Inbox::default();
        assert!(inbox.take(None).is_none());
        assert!(!inbox.is_due() && !was_called(&inbox));
        inbox.ask(create_lease(), oneshot::channel().0);
        inbox.ask(create_lease(), oneshot::channel().0);
        assert!(inbox.is_due() && was_called(&inbox) && !was_called(&inbox));
        assert_eq!(requests(inbox.take(None)), 2);
        assert!(inbox.is_due(), "there may be more: the taker comes back until nothing is due");
        assert!(inbox.take(later()).is_none());
        inbox.ask(create_lease(), oneshot::channel().0);
        assert!(!inbox.is_due() && !was_called(&inbox), "a request gathers");
        inbox.report(Event::Removed);
        assert!(inbox.is_due() && was_called(&inbox));
    }
}
