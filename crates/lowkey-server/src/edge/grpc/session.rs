//! Many calls of one client over one stream.
//!
//! The stream is a value that works only when it is polled. The calls of a client run side by side within
//! it, without a task for each. Answers that are ready at the same time leave together.
//!
//! These invariants hold for any input of a client:
//!
//! - Every call is answered once, with its `seq`; a watch is answered until it ends. A cancelled call is
//!   dropped before any later call begins, and is not answered any more.
//! - Everything under way is charged to the connection ([`Allowance`]). A call beyond its budget is
//!   refused. The stream is still read: an HTTP/2 connection that is not read is cut off before long, and
//!   with it all leases that are renewed there.
//! - Large answers are charged before the client takes them, and refused if the client does not take enough
//!   of them.
//! - Neither side starves the other: after [`TURN`] answers the stream is read, and after as many messages
//!   the answers have their turn.
//! - If another client ends something of a lease that the stream uses, the stream tells it with `seq` 0.
//! - A call that panics is answered with INTERNAL and harms no other.
//! - When the stream is dropped, everything that hangs on it is dropped, which is how the node learns of
//!   it. It is dropped in portions, so that others get their turn in between (`under_way.rs`).
//!
//! `call.rs` handles one call.

mod call;
mod under_way;

use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::BoxFuture;
use futures::future::{AbortHandle, Abortable};
use futures::stream::{SelectAll, poll_fn};
use futures::{FutureExt, Stream, StreamExt};
use lowkey_api::v1::session_answer::Answer;
use lowkey_api::v1::session_call::Call;
use lowkey_api::v1::{LeaseChanged, SessionAnswer, SessionCall};
use lowkey_api::{ApiError, Reason};
use tokio::time::{Sleep, sleep};
use tonic::Status;

use self::call::{Outcome, Watch};
use self::under_way::{Open, UnderWay};
use crate::edge::budget::{Account, Allowance};
use crate::edge::{LeaseListener, Node, Shown, stopped};

/// How many answers, or messages of the client, are handled before the other side has its turn.
const TURN: usize = 256;

/// How long a call that is under way may still take once the node stops.
const STOPPING_GRACE: Duration = Duration::from_secs(1);

/// The answers to `calls`, until these end or the node stops.
pub(super) fn answers<N: Node>(
    node: Arc<N>,
    account: Arc<Account>,
    shown: Shown,
    calls: impl Stream<Item = Result<SessionCall, Status>> + Send + Unpin,
) -> impl Stream<Item = Result<SessionAnswer, Status>> + Send {
    let mut session = Session {
        stop: Stop::Awaited(Box::pin(stopped(node.stopping()))),
        leases: node.lease_listener(),
        expelled: Arc::clone(node.guard()).expelled(shown.caller().clone()).boxed(),
        begin: {
            let account = Arc::clone(&account);
            move |seq, call| call::answer(&node, &account, &shown, seq, call)
        },
        calls,
        reading: true,
        under_way: UnderWay::new(),
        watches: SelectAll::new(),
        allowance: Allowance::new(account),
        refusals: VecDeque::new(),
        turn: 0,
    };
    poll_fn(move |cx| session.poll_next(cx))
}

struct Session<C, B, F: Future + Send + 'static> {
    stop: Stop,
    /// Hears what others do to the leases that this stream uses.
    leases: LeaseListener,
    /// Resolves when the client is nobody any more, who may ask nothing.
    expelled: BoxFuture<'static, ApiError>,
    /// Starts a call.
    begin: B,
    /// What the client sends.
    calls: C,
    /// False once the client has no more to say, or is no longer read.
    reading: bool,
    /// The calls that are not answered yet, and the watches that have begun.
    under_way: UnderWay<F>,
    watches: SelectAll<Watch>,
    /// Charged with everything that is open.
    allowance: Allowance,
    /// Answers to messages that never became a call.
    refusals: VecDeque<SessionAnswer>,
    /// Answers since the stream was last read; `<= TURN`.
    turn: usize,
}

enum Stop {
    /// The node goes on.
    Awaited(Pin<Box<dyn Future<Output = ()> + Send>>),
    /// The node stops. Calls under way may end within this time.
    Grace(Pin<Box<Sleep>>),
    /// Nothing more is said.
    Over,
}

impl<C, B, F> Session<C, B, F>
where
    C: Stream<Item = Result<SessionCall, Status>> + Unpin,
    B: FnMut(u64, Call) -> F,
    F: Future<Output = (u64, Outcome)> + Send + 'static,
{
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<SessionAnswer, Status>>> {
        loop {
            if matches!(self.stop, Stop::Over) {
                return Poll::Ready(None);
            }
            if let Poll::Ready(error) = self.expelled.poll_unpin(cx) {
                self.end();
                return Poll::Ready(Some(Err(error.into())));
            }
            let is_drained = self.turn < TURN;
            if is_drained && let Some(answer) = self.poll_answer(cx) {
                self.turn += 1;
                return Poll::Ready(Some(Ok(answer)));
            }
            self.turn = 0;
            let has_news = self.poll_stop(cx)
                || match self.poll_calls(cx) {
                    Ok(has_news) => has_news,
                    Err(status) => {
                        self.end();
                        return Poll::Ready(Some(Err(status)));
                    }
                };
            if has_news || !is_drained {
                continue;
            }
            if self.reading || !self.is_idle() {
                return Poll::Pending;
            }
            if let Stop::Grace(_) = self.end() {
                let error =
                    ApiError::new(Reason::NodeStopping, "this node is stopping; go on with another one");
                return Poll::Ready(Some(Ok(refusal(0, error))));
            }
        }
    }

    fn is_idle(&self) -> bool {
        self.under_way.is_empty() && self.watches.is_empty() && self.refusals.is_empty()
    }

    /// Drops everything, and returns the state that the stream was in.
    fn end(&mut self) -> Stop {
        self.give_up_all();
        std::mem::replace(&mut self.stop, Stop::Over)
    }

    fn give_up_all(&mut self) {
        self.reading = false;
        self.watches.clear();
        self.refusals.clear();
        let bytes = self.under_way.give_up();
        self.allowance.give_back(bytes);
    }

    /// The next answer, if there is one. Answers to calls come before events, because events go on for
    /// ever.
    fn poll_answer(&mut self, cx: &mut Context<'_>) -> Option<SessionAnswer> {
        if let Some(refusal) = self.refusals.pop_front() {
            return Some(refusal);
        }
        while let Poll::Ready(Some((seq, outcome))) = self.under_way.poll_next(cx) {
            match outcome {
                Outcome::Answered(answer, _charge) => {
                    self.close(seq);
                    self.note_leases(&answer);
                    return Some(SessionAnswer { seq, answer: Some(answer) });
                }
                Outcome::Watching(events) => {
                    let (abort, registration) = AbortHandle::new_pair();
                    if self.under_way.goes_on(seq, abort) {
                        self.watches.push(Watch::new(seq, Abortable::new(events, registration)));
                    }
                }
            }
        }
        if let Poll::Ready(lease_id) = self.leases.poll_changed(cx) {
            let answer = Answer::LeaseChanged(LeaseChanged { lease_id });
            return Some(SessionAnswer { seq: 0, answer: Some(answer) });
        }
        let Poll::Ready(Some((seq, told))) = self.watches.poll_next_unpin(cx) else { return None };
        if call::is_last(&told) {
            self.close(seq);
        }
        let answer = told.map_or_else(|error| Answer::Error(error.into()), Answer::Watch);
        Some(SessionAnswer { seq, answer: Some(answer) })
    }

    /// Notes the leases that the stream uses: those that it acquires with, and those that it renews.
    fn note_leases(&mut self, answer: &Answer) {
        match answer {
            Answer::AcquireLock(granted) => self.leases.uses(granted.lease_id, granted.lease_ttl_seconds),
            Answer::RenewLeases(renewed) => {
                for renewal in &renewed.renewals {
                    match renewal.ttl_seconds {
                        0 => self.leases.has_done_with(renewal.lease_id),
                        ttl_seconds => self.leases.uses(renewal.lease_id, ttl_seconds),
                    }
                }
            }
            _ => {}
        }
    }

    /// True if the node has begun to stop, or its time is up.
    fn poll_stop(&mut self, cx: &mut Context<'_>) -> bool {
        let is_idle = self.is_idle();
        match &mut self.stop {
            Stop::Awaited(stopped) => {
                let is_stopping = stopped.poll_unpin(cx).is_ready();
                if is_stopping {
                    self.reading = false;
                    self.stop = Stop::Grace(Box::pin(sleep(STOPPING_GRACE)));
                }
                is_stopping
            }
            Stop::Grace(sleep) => {
                // A call that is dropped here may have happened, so no answer is the only true one.
                let is_up = !is_idle && sleep.poll_unpin(cx).is_ready();
                if is_up {
                    self.give_up_all();
                }
                is_up
            }
            Stop::Over => false,
        }
    }

    /// Takes in what the client has sent. True if there was anything.
    fn poll_calls(&mut self, cx: &mut Context<'_>) -> Result<bool, Status> {
        let mut has_news = false;
        for _ in 0..TURN {
            if !self.reading {
                break;
            }
            match self.calls.poll_next_unpin(cx) {
                Poll::Pending => break,
                Poll::Ready(Some(call)) => self.take_in(call?),
                Poll::Ready(None) => {
                    self.reading = false;
                    self.give_up_waits();
                }
            }
            has_news = true;
        }
        Ok(has_news)
    }

    fn take_in(&mut self, SessionCall { seq, call }: SessionCall) {
        if let Some(Call::Cancel(cancelled)) = call {
            // If it is not open, its answer is already on its way.
            if let Some(open) = self.close(cancelled) {
                open.abort.abort();
            }
            return;
        }
        let problem = match call {
            _ if seq == 0 => ApiError::invalid("seq", "must not be 0"),
            _ if self.under_way.has(seq) => ApiError::invalid("seq", format!("{seq} is still under way")),
            None => ApiError::invalid("body", "has no call"),
            Some(call) => match self.open(seq, call) {
                Ok(()) => return,
                Err(full) => full,
            },
        };
        self.refusals.push_back(refusal(seq, problem));
    }

    fn open(&mut self, seq: u64, call: Call) -> Result<(), ApiError> {
        let (bytes, waits) = (call::bytes(&call), call::waits(&call));
        self.allowance.spend(bytes, call::urgency(&call))?;
        if let Call::RevokeLease(revoke) = &call {
            self.leases.has_done_with(revoke.lease_id);
        }
        let (abort, registration) = AbortHandle::new_pair();
        let call = Abortable::new((self.begin)(seq, call), registration);
        self.under_way.push(seq, call, Open { abort, bytes, waits });
        Ok(())
    }

    fn close(&mut self, seq: u64) -> Option<Open> {
        let open = self.under_way.close(seq)?;
        self.allowance.give_back(open.bytes);
        Some(open)
    }

    /// The client has no more to say. Calls that end by themselves are still answered. Nothing else is
    /// kept.
    fn give_up_waits(&mut self) {
        let bytes = self.under_way.give_up_waits();
        self.allowance.give_back(bytes);
    }
}

fn refusal(seq: u64, error: ApiError) -> SessionAnswer {
    SessionAnswer { seq, answer: Some(Answer::Error(error.into())) }
}
