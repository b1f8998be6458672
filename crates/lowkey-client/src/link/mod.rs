//! The link: one stream to one node, over which everything of a client travels.
//!
//! A task owns the stream. Callers hand it calls and wait; it numbers them, sends them, and gives each
//! answer to its caller. It also does what every caller would otherwise have to do by itself:
//!
//! - It finds a node that answers, prefers the one that leads, and moves to the next leader when there is
//!   one. It refuses nodes of another cluster than the one that it began with.
//! - When the stream breaks, or moves, it sends again whatever is not answered. That is safe: every call that
//!   changes something carries a request id, and a wait keeps its place by it.
//! - It asks again what was refused for the moment only (no leader, too busy), after a pause that is not the
//!   same for everyone.
//! - No call waits beyond its deadline, whatever the network does. A node that does not say a word is left for
//!   another, and so is one that knows no leader while another does.
//!
//! - `connect.rs`: how a stream comes about
//! - `unary.rs`: the same over single calls, for servers that have no such stream

mod connect;
mod pending;
mod unary;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt as _};
use lowkey_api::v1::session_answer::Answer;
use lowkey_api::v1::session_call::Call;
use lowkey_api::v1::{SessionAnswer, SessionCall};
use lowkey_api::{ApiError, Reason};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep_until};
use tokio_stream::StreamExt as _;
use tonic::transport::Channel;

use self::connect::{Connected, Directory, Failed, Surroundings};
use self::pending::{Pending, Reply, Waiting};
use crate::error::Error;
use crate::random::Backoff;

/// How often it is looked whether another node leads now.
const LEADER_CHECK_INTERVAL: Duration = Duration::from_secs(3);
/// How long what nobody waits for, such as a release of a dropped guard, is tried.
const TELL_TIME: Duration = Duration::from_secs(3600);
/// The same when the client itself has gone.
const FAREWELL: Duration = Duration::from_secs(5);
/// A node that says nothing for so long after it was asked something is left for another.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long changes wait for a watch that was made before them to begin.
const HOLD_BACK_MAX: Duration = Duration::from_secs(1);
/// What the service takes in one message, less a little for what is around the call.
pub(crate) const CALL_BYTES_MAX: usize = 64 * 1024 - 64;

/// A caller's end of the link. Clones share it; the link ends with the last one.
#[derive(Clone)]
pub(crate) struct Link {
    orders: mpsc::UnboundedSender<Order>,
    last_number: Arc<AtomicU64>,
    state: watch::Receiver<LinkState>,
}

/// What callers may know of the link.
#[derive(Clone, Debug, Default)]
pub(crate) struct LinkState {
    /// The connection, while there is one: for calls that are not the link's.
    pub(crate) channel: Option<Channel>,
    /// Where it goes to.
    pub(crate) endpoint: String,
    /// The cluster that it began with.
    pub(crate) cluster_id: String,
    /// Why there is no connection.
    pub(crate) problem: Option<Error>,
    /// Time does not change it.
    pub(crate) is_hopeless: bool,
}

enum Order {
    Call(u64, Box<Waiting>),
    GiveUp(u64),
    /// To be answered when nothing is left to be told.
    Flush(oneshot::Sender<()>),
    HoldBack,
    LetGo,
}

impl Link {
    /// A link to one of these endpoints, and the task that makes it: it ends when the last caller's end is
    /// gone and nothing is left to be told.
    pub(crate) fn new(
        endpoints: Vec<String>,
        cluster_id: Option<String>,
    ) -> (Self, impl Future<Output = ()> + Send + use<>) {
        let (orders, receiver) = mpsc::unbounded_channel();
        let (state, state_receiver) = watch::channel(LinkState::default());
        let task = Task {
            orders: receiver,
            directory: Directory::new(endpoints, cluster_id),
            pending: Pending::default(),
            state,
            connection: Connection::None,
            heard_at: Instant::now(),
            has_answered: false,
            latency: Duration::ZERO,
            backoff: Backoff::new(),
            check: None,
            flushes: Vec::new(),
            holding_back: 0,
            held_back: Vec::new(),
        };
        (Self { orders, last_number: Arc::default(), state: state_receiver }, task.run())
    }

    /// Makes a call, and waits for its answer until the time is up. If the caller goes away, so does the
    /// call.
    pub(crate) async fn call(&self, call: Call, time: Duration) -> Result<Answer, Error> {
        self.call_patiently(call, time, PATIENCE).await
    }

    /// The same; the node is doubted if it says nothing for longer than `patience`.
    pub(crate) async fn call_patiently(
        &self,
        call: Call,
        time: Duration,
        patience: Duration,
    ) -> Result<Answer, Error> {
        let size = call.encoded_len();
        if size > CALL_BYTES_MAX {
            let problem = format!(
                "the request has {size} bytes, more than the {CALL_BYTES_MAX} that a request may have: a name has 512 \
                 at most, a value 4096"
            );
            return Err(Error::invalid(problem));
        }
        let (answer, receiver) = oneshot::channel();
        let number = self.order(call, time, patience, Reply::To(answer));
        let _give_up = GiveUp { link: self, number };
        match receiver.await {
            Ok(outcome) => outcome,
            Err(_) => Err(Error::unavailable("the client has ended", true)),
        }
    }

    /// Makes a call whose answer nobody waits for. What is to be kept is dropped when it is answered.
    pub(crate) fn tell(&self, call: Call, keep: impl Send + 'static) {
        self.order(call, TELL_TIME, PATIENCE, Reply::Nobody { _keep: Box::new(keep) });
    }

    /// Makes a call that must be made: if its caller goes away, or its time is up, it goes on in the
    /// background. What is to be kept is dropped when it is answered.
    pub(crate) async fn see_through<K: Send + 'static>(
        &self,
        call: Call,
        time: Duration,
        keep: K,
    ) -> Result<Answer, Error> {
        let mut unanswered = Unanswered { link: self, call: Some(call.clone()), keep: Some(keep) };
        let outcome = self.call(call, time).await;
        if outcome.as_ref().map_or_else(|error| !error.is_retryable(), |_| true) {
            unanswered.call = None;
        }
        outcome
    }

    /// Changes that are asked for from now on are sent when what this gives is dropped, or after a while.
    pub(crate) fn hold_back(&self) -> HoldBack {
        let _ = self.orders.send(Order::HoldBack);
        HoldBack { orders: self.orders.downgrade() }
    }

    /// Waits until all that was told before has been answered.
    pub(crate) async fn flush(&self) {
        let (done, is_done) = oneshot::channel();
        let _ = self.orders.send(Order::Flush(done));
        // An error means that the link has ended, and it ends with nothing left.
        let _ = is_done.await;
    }

    fn order(&self, call: Call, time: Duration, patience: Duration, reply: Reply) -> u64 {
        let number = self.last_number.fetch_add(1, Ordering::Relaxed) + 1;
        let waiting = Box::new(Waiting::new(call, deadline_in(time), patience, reply));
        // A link that has ended drops the answer's sender, which tells the caller.
        let _ = self.orders.send(Order::Call(number, waiting));
        number
    }

    /// What is known of the link; changes with it.
    pub(crate) fn state(&self) -> watch::Receiver<LinkState> {
        self.state.clone()
    }
}

/// Longer than any program runs. `Instant` cannot count to `Duration::MAX`.
const FAR_FUTURE: Duration = Duration::from_secs(30 * 365 * 24 * 3600);

/// The moment after this time; one in the far future if that is more than can be counted.
pub(crate) fn deadline_in(time: Duration) -> Instant {
    Instant::now() + time.min(FAR_FUTURE)
}

/// Changes that come after it wait while this is there: what comes first is about to begin. Does not keep the link
/// alive.
pub(crate) struct HoldBack {
    orders: mpsc::WeakUnboundedSender<Order>,
}

impl Drop for HoldBack {
    fn drop(&mut self) {
        if let Some(orders) = self.orders.upgrade() {
            let _ = orders.send(Order::LetGo);
        }
    }
}

/// A call that must be made, and is not answered yet.
struct Unanswered<'a, K: Send + 'static> {
    link: &'a Link,
    /// Nothing once it was answered.
    call: Option<Call>,
    keep: Option<K>,
}

impl<K: Send + 'static> Drop for Unanswered<'_, K> {
    fn drop(&mut self) {
        if let Some(call) = self.call.take() {
            self.link.tell(call, self.keep.take());
        }
    }
}

/// Tells the link that a caller is gone.
struct GiveUp<'a> {
    link: &'a Link,
    number: u64,
}

impl Drop for GiveUp<'_> {
    fn drop(&mut self) {
        // Of a call that was answered the link knows nothing any more.
        let _ = self.link.orders.send(Order::GiveUp(self.number));
    }
}

/// The task that owns the stream.
struct Task {
    orders: mpsc::UnboundedReceiver<Order>,
    directory: Directory,
    pending: Pending,
    state: watch::Sender<LinkState>,
    connection: Connection,
    /// When the node said something last, or was connected to.
    heard_at: Instant,
    /// The node has said something on the present stream.
    has_answered: bool,
    /// How long answers take on this stream, the slower ones counted.
    latency: Duration,
    backoff: Backoff,
    /// Under way: a look at who the members are, whether another node leads, and the way to it.
    check: Option<BoxFuture<'static, Surroundings>>,
    /// Who waits until nothing is left to be told.
    flushes: Vec<oneshot::Sender<()>>,
    /// How many hold changes back, and which those are.
    holding_back: usize,
    held_back: Vec<u64>,
}

enum Connection {
    None,
    Connecting(BoxFuture<'static, Result<Connected, Failed>>),
    /// After a failed attempt: not before this.
    Pausing(Instant),
    Open(Box<Connected>),
}

/// What woke the task.
enum News {
    Order(Option<Order>),
    Connected(Result<Connected, Failed>),
    Answer(Option<Result<SessionAnswer, tonic::Status>>),
    Checked(Surroundings),
    Time,
}

impl Task {
    async fn run(mut self) {
        let mut next_check = Instant::now() + LEADER_CHECK_INTERVAL;
        let mut is_open = true;
        while is_open || !self.pending.is_empty() {
            if let Connection::None = self.connection {
                self.connection = Connection::Connecting(self.directory.connect().boxed());
            }
            if self.check.is_none()
                && Instant::now() >= next_check
                && let Connection::Open(connected) = &self.connection
            {
                next_check = Instant::now() + LEADER_CHECK_INTERVAL;
                self.check = Some(self.directory.look_around(connected).boxed());
            }
            match self.wait(is_open, next_check).await {
                News::Order(Some(order)) => self.take(order),
                News::Order(None) => {
                    is_open = false;
                    self.pending.limit(Instant::now() + FAREWELL);
                }
                News::Connected(outcome) => self.connected(outcome),
                News::Answer(Some(Ok(answer))) => self.answered(answer),
                News::Answer(Some(Err(status))) => self.broken(status.message()),
                News::Answer(None) => self.broken("the node ended the stream"),
                News::Checked(Surroundings { members, leader }) => {
                    self.check = None;
                    if let Connection::Open(connected) = &self.connection
                        && !members.is_empty()
                    {
                        self.directory.learn(&members, &connected.endpoint);
                    }
                    if let Some(leader) = leader {
                        self.connected(Ok(leader));
                    }
                }
                News::Time => {}
            }
            self.keep_time();
        }
    }

    /// Waits until something happens. Nothing is lost if it does not.
    async fn wait(&mut self, is_open: bool, next_check: Instant) -> News {
        let mut wake_at = self.pending.next_time();
        if let Connection::Open(_) = self.connection {
            wake_at = wake_at.min(next_check);
        }
        if let Connection::Pausing(until) = self.connection {
            wake_at = wake_at.min(until);
        }
        let connection = async {
            match &mut self.connection {
                Connection::Connecting(attempt) => News::Connected(attempt.await),
                Connection::Open(connected) => News::Answer(connected.answers.next().await),
                Connection::None | Connection::Pausing(_) => std::future::pending().await,
            }
        };
        let check = async {
            match &mut self.check {
                Some(check) => News::Checked(check.await),
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            order = self.orders.recv(), if is_open => News::Order(order),
            news = connection => news,
            news = check => news,
            () = sleep_until(wake_at) => News::Time,
        }
    }

    fn take(&mut self, order: Order) {
        match order {
            Order::Call(number, waiting) => {
                self.pending.insert(number, *waiting);
                if self.holding_back > 0 && self.pending.hold_back(number, Instant::now() + HOLD_BACK_MAX) {
                    self.held_back.push(number);
                }
                self.send(number);
            }
            Order::GiveUp(number) => {
                if self.pending.remove(number).is_some() {
                    self.cancel(number);
                }
            }
            Order::Flush(done) => self.flushes.push(done),
            Order::HoldBack => self.holding_back += 1,
            Order::LetGo => {
                self.holding_back -= 1;
                if self.holding_back == 0 {
                    for number in std::mem::take(&mut self.held_back) {
                        self.pending.let_go(number);
                        self.send(number);
                    }
                }
            }
        }
    }

    fn send(&mut self, number: u64) {
        let Connection::Open(connected) = &self.connection else { return };
        let Some(call) = self.pending.call_to_send(number, Instant::now(), self.latency) else { return };
        // A stream that is gone is noticed by its answers.
        let _ = connected.calls.send(SessionCall { seq: number, call: Some(call) });
    }

    fn cancel(&self, number: u64) {
        if let Connection::Open(connected) = &self.connection {
            let _ = connected.calls.send(SessionCall { seq: 0, call: Some(Call::Cancel(number)) });
        }
    }

    fn connected(&mut self, outcome: Result<Connected, Failed>) {
        match outcome {
            Ok(connected) => {
                tracing::debug!(endpoint = connected.endpoint, "connected");
                self.directory.met(&connected);
                self.state.send_replace(LinkState {
                    channel: Some(connected.channel.clone()),
                    endpoint: connected.endpoint.clone(),
                    cluster_id: connected.cluster_id.clone(),
                    problem: None,
                    is_hopeless: false,
                });
                self.heard_at = Instant::now();
                self.latency = Duration::ZERO;
                self.has_answered = false;
                self.pending.stream_left();
                self.connection = Connection::Open(Box::new(connected));
                for number in self.pending.unanswered() {
                    self.send(number);
                }
            }
            Err(Failed { error, is_hopeless }) => {
                self.pending.note_problem(&error);
                self.state.send_modify(|state| {
                    state.problem = Some(error);
                    state.is_hopeless = is_hopeless;
                });
                self.connection = Connection::Pausing(Instant::now() + self.backoff.pause());
            }
        }
    }

    fn broken(&mut self, problem: &str) {
        tracing::debug!(problem, "the connection is gone");
        self.directory.avoid_current();
        let error = Error::unavailable(problem, true);
        self.state.send_modify(|state| {
            state.channel = None;
            state.problem = Some(error);
        });
        self.check = None;
        self.pending.stream_left();
        // A node that has not said anything may do the same again.
        self.connection = match self.has_answered {
            true => Connection::None,
            false => Connection::Pausing(Instant::now() + self.backoff.pause()),
        };
    }

    fn answered(&mut self, answer: SessionAnswer) {
        self.heard_at = Instant::now();
        self.has_answered = true;
        let SessionAnswer { seq, answer } = answer;
        let Some(answer) = answer else { return };
        let Answer::Error(error) = answer else {
            self.backoff = Backoff::new();
            let took = self.pending.answer(seq, Ok(answer)).unwrap_or_default();
            self.latency = took.max(self.latency * 7 / 8);
            return;
        };
        let error = ApiError::from(error);
        match error.reason {
            // The node is about to end, or may not answer: what it has not answered is asked elsewhere.
            Reason::NodeStopping | Reason::NodeRemoved | Reason::NodeDiverged => {
                if seq == 0 || !self.pending.retry(seq, &error, Instant::now()) {
                    self.broken(&error.message);
                }
            }
            _ if error.is_retryable() && self.pending.retry(seq, &error, Instant::now()) => {
                if let Reason::NoLeader | Reason::NoQuorum = error.reason {
                    self.look_elsewhere();
                }
            }
            _ => _ = self.pending.answer(seq, Err(error.into())),
        }
    }

    /// The node may be cut off from others that have a leader.
    fn look_elsewhere(&mut self) {
        if let (Connection::Open(connected), None) = (&self.connection, &self.check) {
            self.check = Some(self.directory.find_elsewhere(connected).boxed());
        }
    }

    /// Does what is due by now.
    fn keep_time(&mut self) {
        let now = Instant::now();
        if matches!(self.connection, Connection::Pausing(until) if until <= now) {
            self.connection = Connection::None;
        }
        for number in self.pending.take_overdue(now) {
            self.cancel(number);
        }
        // A process that stands still keeps its connections open; others may lead by now.
        if self.pending.is_doubtful(now, self.heard_at) && matches!(self.connection, Connection::Open(_)) {
            self.broken("the node does not answer");
        }
        for number in self.pending.take_retries(now) {
            self.send(number);
        }
        if !self.flushes.is_empty() && !self.pending.has_told() {
            self.flushes.drain(..).for_each(|done| _ = done.send(()));
        }
    }
}

#[cfg(test)]
impl Link {
    /// A link that goes nowhere, and the calls that were made on it.
    pub(crate) fn to_nowhere() -> (Self, impl FnMut() -> Option<Call>) {
        let (orders, mut receiver) = mpsc::unbounded_channel();
        let (_, state) = watch::channel(LinkState::default());
        let next_call = move || {
            std::iter::from_fn(|| receiver.try_recv().ok()).find_map(|order| match order {
                Order::Call(_, waiting) => Some(waiting.call().clone()),
                _ => None,
            })
        };
        (Self { orders, last_number: Arc::default(), state }, next_call)
    }
}
