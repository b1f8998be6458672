//! Where everything waits that the replica thread has to take in.
//!
//! Four lanes, taken in this order at every turn: what the node's own parts report, messages of
//! peers, requests that keep what exists (renewals, releases, reads), requests that want more
//! (leases, locks). Under overload what exists is kept alive first. Every lane is bounded: a caller
//! that finds its lane full is told so at once, and a peer's message is dropped, as on any network.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use lowkey_replica::wire::Said;
use lowkey_replica::{CallId, Failure, Input, Request, Response};
use tokio::sync::oneshot;

use crate::housekeeper::Report;

/// Where the answer to a request goes.
pub(crate) type Answer = oneshot::Sender<Result<Response, Failure>>;

const MESSAGES_MAX: usize = 16_384;
const KEEPING_MAX: usize = 65_536;
const WANTING_MAX: usize = 16_384;
/// How many requests of a lane are taken in one turn, so that a turn stays short.
const REQUESTS_A_TURN: usize = 4_096;

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

/// What the node's own parts report to the replica thread.
pub(crate) enum Event {
    /// Passed on to the replica as it is.
    Replica(Input),
    /// A caller went away before it was answered.
    CallerGone(CallId),
    /// The housekeeper is done with something.
    Housekeeping(Report),
    /// A peer was heard from: where it can be reached, in its own words.
    PeerSeen { member: lowkey_core::MemberId, raft_address: String },
    /// A peer says that this node was removed.
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
}

impl Lanes {
    fn is_empty(&self) -> bool {
        self.events.is_empty()
            && self.messages.is_empty()
            && self.keeping.is_empty()
            && self.wanting.is_empty()
    }
}

#[derive(Default)]
pub(crate) struct Inbox {
    lanes: Mutex<Lanes>,
    filled: Condvar,
}

impl Inbox {
    pub(crate) fn report(&self, event: Event) {
        self.lanes().events.push_back(event);
        self.filled.notify_one();
    }

    /// Takes in messages of a peer, as far as there is room.
    pub(crate) fn deliver(&self, messages: impl IntoIterator<Item = Said>) {
        let mut lanes = self.lanes();
        let room = MESSAGES_MAX.saturating_sub(lanes.messages.len());
        lanes.messages.extend(messages.into_iter().take(room));
        drop(lanes);
        self.filled.notify_one();
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
        drop(lanes);
        self.filled.notify_one();
        call
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

    /// Waits until there is something to take in, or until the deadline.
    pub(crate) fn take(&self, deadline: Instant) -> Batch {
        let mut lanes = self.lanes();
        while lanes.is_empty() {
            let now = Instant::now();
            if now >= deadline {
                return Batch::default();
            }
            let waited = self.filled.wait_timeout(lanes, deadline - now);
            lanes = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        let keeping = lanes.keeping.len().min(REQUESTS_A_TURN);
        let wanting = lanes.wanting.len().min(REQUESTS_A_TURN);
        let mut requests: Vec<Asked> = lanes.keeping.drain(..keeping).collect();
        requests.extend(lanes.wanting.drain(..wanting));
        Batch {
            events: lanes.events.drain(..).collect(),
            messages: lanes.messages.drain(..).collect(),
            requests,
        }
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
        inbox.ask(Request::Renew { lease: LeaseId(1) }, oneshot::channel().0);
        let batch = inbox.take(Instant::now());
        assert_eq!(batch.requests[0].request, Request::Renew { lease: LeaseId(1) });
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
        inbox.ask(Request::Renew { lease: LeaseId(1) }, sender);
        assert!(receiver.try_recv().is_err(), "the renewal waits for its turn");
    }
}
