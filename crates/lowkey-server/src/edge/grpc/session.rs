//! Many calls of one client over one stream.
//!
//! The stream is a value that does something only when it is polled: the calls of a client run side by
//! side within it, without a task for each. Answers that are ready at the same time leave together.
//!
//! Invariants, whatever a client sends:
//!
//! - Every call is answered once, with its `seq`; a watch until it ends. Whatever was cancelled is dropped
//!   before anything is begun that came later, and is not answered any more.
//! - At most [`IN_FLIGHT_MAX`] calls are under way, each lease of a renewal counted: beyond that the stream
//!   is not read, and the client feels the back-pressure.
//! - Neither side starves the other: after [`TURN`] answers the stream is read, and after as many messages
//!   the answers have their turn.
//! - A call that panics is answered with INTERNAL and harms no other.
//! - When the stream is dropped, all that hangs on it is dropped, which is how the node learns of it.
//!
//! One call is the business of `call.rs`.

mod call;

use std::collections::{HashMap, VecDeque};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::{AbortHandle, Abortable, Aborted};
use futures::stream::{FuturesUnordered, SelectAll, poll_fn};
use futures::{FutureExt, Stream, StreamExt};
use lowkey_api::v1::session_answer::Answer;
use lowkey_api::v1::session_call::Call;
use lowkey_api::v1::{SessionAnswer, SessionCall};
use lowkey_api::{ApiError, Reason};
use tokio::time::{Sleep, sleep};
use tonic::Status;

use self::call::{Outcome, Watch};
use crate::edge::{Node, stopped};

/// Calls of one stream that may be under way at a time. As large as it is for heartbeats, and for the
/// same reason: an HTTP/2 connection that is not read is cut off before long.
const IN_FLIGHT_MAX: usize = 16_384;

/// How many answers, or messages of the client, are handled before the others have their turn.
const TURN: usize = 256;

/// How long a call that is under way may still take once the node stops.
const STOPPING_GRACE: Duration = Duration::from_secs(1);

/// The answers to `calls`, until these end or the node stops.
pub(super) fn answers<N: Node>(
    node: Arc<N>,
    calls: impl Stream<Item = Result<SessionCall, Status>> + Send + Unpin,
) -> impl Stream<Item = Result<SessionAnswer, Status>> + Send {
    let mut session = Session {
        stop: Stop::Awaited(Box::pin(stopped(node.stopping()))),
        begin: move |seq, call| call::answer(Arc::clone(&node), seq, call),
        calls,
        reading: true,
        under_way: FuturesUnordered::new(),
        watches: SelectAll::new(),
        open: HashMap::new(),
        in_flight: 0,
        refusals: VecDeque::new(),
        turn: 0,
    };
    poll_fn(move |cx| session.poll_next(cx))
}

struct Session<C, B, F> {
    stop: Stop,
    /// Makes a call.
    begin: B,
    /// What the client sends.
    calls: C,
    /// False once the client has no more to say, or is no longer listened to.
    reading: bool,
    under_way: FuturesUnordered<Abortable<F>>,
    watches: SelectAll<Watch>,
    /// By seq: what is in `under_way` or `watches` and was not cancelled.
    open: HashMap<u64, Open>,
    /// The sum of all `weight`s in `open`.
    in_flight: usize,
    /// Answers to what was never made a call.
    refusals: VecDeque<SessionAnswer>,
    /// Answers since the stream was last read; `<= TURN`.
    turn: usize,
}

/// What is to be answered yet.
struct Open {
    abort: AbortHandle,
    /// How many calls it counts for; 0 once it is a watch that has begun.
    weight: usize,
    /// It may wait for as long as it likes.
    waits: bool,
}

enum Stop {
    /// The node goes on.
    Awaited(Pin<Box<dyn Future<Output = ()> + Send>>),
    /// The node stops: what is under way may end in this time.
    Grace(Pin<Box<Sleep>>),
    /// Nothing more is said.
    Over,
}

impl<C, B, F> Session<C, B, F>
where
    C: Stream<Item = Result<SessionCall, Status>> + Unpin,
    B: FnMut(u64, Call) -> F,
    F: Future<Output = (u64, Outcome)>,
{
    fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<SessionAnswer, Status>>> {
        loop {
            if matches!(self.stop, Stop::Over) {
                return Poll::Ready(None);
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

    /// Drops whatever there is, and says in which state it was.
    fn end(&mut self) -> Stop {
        self.give_up_all();
        std::mem::replace(&mut self.stop, Stop::Over)
    }

    fn give_up_all(&mut self) {
        self.reading = false;
        self.under_way.clear();
        self.watches.clear();
        self.open.clear();
        self.refusals.clear();
        self.in_flight = 0;
    }

    /// The next answer, if there is one: those that somebody waits for before events, which go on for ever.
    fn poll_answer(&mut self, cx: &mut Context<'_>) -> Option<SessionAnswer> {
        if let Some(refusal) = self.refusals.pop_front() {
            return Some(refusal);
        }
        while let Poll::Ready(Some(ended)) = self.under_way.poll_next_unpin(cx) {
            match ended {
                Ok((seq, Outcome::Answered(answer))) => {
                    self.close(seq);
                    return Some(SessionAnswer { seq, answer: Some(answer) });
                }
                Ok((seq, Outcome::Watching(events))) => {
                    let (abort, registration) = AbortHandle::new_pair();
                    if let Some(open) = self.open.get_mut(&seq) {
                        self.in_flight -= std::mem::take(&mut open.weight);
                        open.abort = abort;
                        self.watches.push(Watch::new(seq, Abortable::new(events, registration)));
                    }
                }
                Err(Aborted) => {}
            }
        }
        let Poll::Ready(Some((seq, told))) = self.watches.poll_next_unpin(cx) else { return None };
        if call::is_last(&told) {
            self.close(seq);
        }
        let answer = told.map_or_else(|error| Answer::Error(error.into()), Answer::Watch);
        Some(SessionAnswer { seq, answer: Some(answer) })
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
                // What is dropped here may have happened: no answer is the only true one.
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
            if !self.reading || self.in_flight + self.refusals.len() >= IN_FLIGHT_MAX {
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
            // Otherwise its answer is on its way already.
            if let Some(open) = self.close(cancelled) {
                open.abort.abort();
            }
            return;
        }
        let problem = match call {
            _ if seq == 0 => ApiError::invalid("seq", "must not be 0"),
            _ if self.open.contains_key(&seq) => {
                ApiError::invalid("seq", format!("{seq} is still under way"))
            }
            None => ApiError::invalid("body", "has no call"),
            Some(call) => return self.open(seq, call),
        };
        self.refusals.push_back(refusal(seq, problem));
    }

    fn open(&mut self, seq: u64, call: Call) {
        let (abort, registration) = AbortHandle::new_pair();
        let (weight, waits) = (call::weight(&call), call::waits(&call));
        self.in_flight += weight;
        self.open.insert(seq, Open { abort, weight, waits });
        self.under_way.push(Abortable::new((self.begin)(seq, call), registration));
    }

    fn close(&mut self, seq: u64) -> Option<Open> {
        let open = self.open.remove(&seq)?;
        self.in_flight -= open.weight;
        Some(open)
    }

    /// The client has no more to say: what ends by itself is answered, and nothing else is kept.
    fn give_up_waits(&mut self) {
        for (_, open) in self.open.extract_if(|_, open| open.waits) {
            open.abort.abort();
            self.in_flight -= open.weight;
        }
    }
}

fn refusal(seq: u64, error: ApiError) -> SessionAnswer {
    SessionAnswer { seq, answer: Some(Answer::Error(error.into())) }
}
