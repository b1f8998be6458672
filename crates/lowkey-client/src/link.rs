//! The link: one stream to one node, which carries everything of a client.
//!
//! A task owns the stream. Callers hand it calls and wait. The task numbers the calls, sends them, and
//! gives each answer to its caller. It also does what every caller would otherwise have to do by itself:
//!
//! - It finds a node that answers, prefers the leader, and moves to the next leader when there is one. It
//!   refuses nodes of another cluster than the one that it began with.
//! - When the stream breaks, or moves, it sends everything again that is not answered. That is safe: every
//!   call that changes something is idempotent by its request id, and a wait keeps its place by the same
//!   id.
//! - It retries calls that were refused only for the moment (no leader, too busy). The pause before a retry
//!   is random, so that clients do not all retry at once.
//! - No call waits beyond its deadline, no matter what the network does. It leaves a node that says nothing
//!   for another one. It also leaves a node that knows no leader while another does.
//!
//! - `connect.rs`: how a stream is opened
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
use lowkey_api::v1::{LeaseChanged, SessionAnswer, SessionCall};
use lowkey_api::{ApiError, Reason};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{Instant, sleep_until};
use tokio_stream::StreamExt as _;

pub(crate) use self::connect::{CONNECT_TIME, no_status, root_cause, wrong_port};
use self::connect::{Connected, Directory, Failed, Surroundings};
use self::pending::{Pending, PendingCall, ReplyTo};
use crate::error::Error;
use crate::event::{ClientEvent, Hook};
use crate::random::Backoff;
use crate::wire::{Dialer, Wire};

/// How often the link checks whether another node leads now.
const LEADER_CHECK_INTERVAL: Duration = Duration::from_secs(3);
/// How long a call is tried whose answer nobody waits for, such as the release of a dropped guard.
const TELL_TIME: Duration = Duration::from_secs(3600);
/// The same when the client itself has gone.
const FAREWELL: Duration = Duration::from_secs(5);
/// A node that says nothing for this long after a call is left for another one.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long changes wait for a watch that was made before them to begin.
const HOLD_BACK_MAX: Duration = Duration::from_secs(1);
/// How many news are handled before the time is checked.
const NEWS_AT_ONCE: usize = 256;
/// The largest message that the service takes, less a little for what is around the call.
pub(crate) const CALL_BYTES_MAX: usize = 64 * 1024 - 64;

/// A caller's end of the link. Clones share it. The link ends with the last one.
#[derive(Clone)]
pub(crate) struct Link {
    orders: mpsc::UnboundedSender<Order>,
    last_number: Arc<AtomicU64>,
    state: watch::Receiver<LinkState>,
}

/// What callers may know of the link.
#[derive(Clone, Debug, Default)]
pub(crate) struct LinkState {
    /// The connection, while there is one. For calls that do not use the link's stream.
    pub(crate) channel: Option<Wire>,
    /// The node that it is connected to.
    pub(crate) endpoint: String,
    /// The cluster that it began with.
    pub(crate) cluster_id: String,
    /// Why there is no connection.
    pub(crate) problem: Option<Error>,
    /// True if waiting will not help.
    pub(crate) is_hopeless: bool,
}

/// What the link hears about the leases of its client.
pub(crate) enum LeaseNotice {
    /// Another client has ended a grant of this lease.
    Changed(u64),
    /// There is a new stream, and its node does not know yet which leases are used on it.
    NewStream,
}

enum Order {
    Call(u64, Box<PendingCall>),
    GiveUp(u64),
    /// Answered when no told call is left.
    Flush(oneshot::Sender<()>),
    HoldBack,
    LetGo,
}

impl Link {
    /// Makes a link to one of these endpoints, the receiver of news about the client's leases, and the task
    /// that runs the link. The task ends when the last caller's end is gone and nothing is left to tell.
    pub(crate) fn new(
        endpoints: Vec<String>,
        cluster_id: Option<String>,
        dialer: Dialer,
        hook: Hook,
    ) -> (Self, mpsc::UnboundedReceiver<LeaseNotice>, impl Future<Output = ()> + Send + use<>) {
        let (orders, receiver) = mpsc::unbounded_channel();
        let (lease_news, news) = mpsc::unbounded_channel();
        let (state, state_receiver) = watch::channel(LinkState::default());
        let task = Task {
            orders: receiver,
            directory: Directory::new(endpoints, cluster_id, dialer),
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
            lease_news,
            hook,
        };
        (Self { orders, last_number: Arc::default(), state: state_receiver }, news, task.run())
    }

    /// Makes a call, and waits for its answer until the time is up. If the caller goes away, the call is
    /// given up.
    pub(crate) async fn call(&self, call: Call, time: Duration) -> Result<Answer, Error> {
        self.call_patiently(call, time, PATIENCE).await
    }

    /// The same. The node is doubted if it says nothing for longer than `patience`.
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
        let number = self.order(call, time, patience, ReplyTo::To(answer));
        let give_up = GiveUp { link: self, number };
        let outcome = receiver.await;
        // The link has already forgotten this call. Telling it again would wake the link's thread for
        // nothing.
        std::mem::forget(give_up);
        match outcome {
            Ok(outcome) => outcome,
            Err(_) => Err(Error::unavailable("the client has ended", true)),
        }
    }

    /// Makes a call whose answer nobody waits for. `keep` is dropped when the call is answered.
    pub(crate) fn tell(&self, call: Call, keep: impl Send + 'static) {
        self.order(call, TELL_TIME, PATIENCE, ReplyTo::Nobody { _keep: Box::new(keep) });
    }

    /// Makes a call that must be made. If its caller goes away, or its time is up, it goes on in the
    /// background. The value to keep is dropped when the call is answered.
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

    /// Holds back changes that are asked for from now on. They are sent when the returned value is dropped,
    /// or after a while.
    pub(crate) fn hold_back(&self) -> HoldBack {
        let _ = self.orders.send(Order::HoldBack);
        HoldBack { orders: self.orders.downgrade() }
    }

    /// Waits until everything that was told before has been answered.
    pub(crate) async fn flush(&self) {
        let (done, is_done) = oneshot::channel();
        let _ = self.orders.send(Order::Flush(done));
        // An error means that the link has ended, and it ends with nothing left.
        let _ = is_done.await;
    }

    fn order(&self, call: Call, time: Duration, patience: Duration, reply: ReplyTo) -> u64 {
        let number = self.last_number.fetch_add(1, Ordering::Relaxed) + 1;
        let waiting = Box::new(PendingCall::new(call, deadline_in(time), patience, reply));
        // A link that has ended drops the answer's sender, which tells the caller.
        let _ = self.orders.send(Order::Call(number, waiting));
        number
    }

    /// The state of the link, and its changes.
    pub(crate) fn state(&self) -> watch::Receiver<LinkState> {
        self.state.clone()
    }
}

/// Longer than any program runs. `Instant` cannot count to `Duration::MAX`.
const FAR_FUTURE: Duration = Duration::from_secs(30 * 365 * 24 * 3600);

/// The moment after this time, or one in the far future if that is more than can be counted.
pub(crate) fn deadline_in(time: Duration) -> Instant {
    Instant::now() + time.min(FAR_FUTURE)
}

/// While this exists, later changes wait, because a watch that came before them is about to begin. It does
/// not keep the link alive.
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
    /// `None` once it was answered.
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

/// Tells the link that a caller left before its answer came.
struct GiveUp<'a> {
    link: &'a Link,
    number: u64,
}

impl Drop for GiveUp<'_> {
    fn drop(&mut self) {
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
    /// When the node last said something, or was connected to.
    heard_at: Instant,
    /// The node has said something on the present stream.
    has_answered: bool,
    /// How long answers take on this stream, with more weight on the slower ones.
    latency: Duration,
    backoff: Backoff,
    /// A check that is under way: who the members are, whether another node leads, and a connection to it.
    check: Option<BoxFuture<'static, Surroundings>>,
    /// Callers that wait until nothing is left to tell.
    flushes: Vec<oneshot::Sender<()>>,
    /// How many callers hold changes back, and which changes those are.
    holding_back: usize,
    held_back: Vec<u64>,
    lease_news: mpsc::UnboundedSender<LeaseNotice>,
    hook: Hook,
}

enum Connection {
    None,
    Connecting(BoxFuture<'static, Result<Connected, Failed>>),
    /// After a failed attempt: the earliest time for the next one.
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
            let news = self.wait(is_open, next_check).await;
            is_open &= !matches!(news, News::Order(None));
            self.hear(news);
            // Under load much has arrived meanwhile, and waiting for each item would cost more than
            // handling it.
            for _ in 0..NEWS_AT_ONCE {
                let Some(news) = self.more_news() else { break };
                self.hear(news);
            }
            self.keep_time();
        }
    }

    fn hear(&mut self, news: News) {
        match news {
            News::Order(Some(order)) => self.take(order),
            News::Order(None) => self.pending.limit(Instant::now() + FAREWELL),
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
    }

    /// What is there already, without waiting.
    fn more_news(&mut self) -> Option<News> {
        if let Ok(order) = self.orders.try_recv() {
            return Some(News::Order(Some(order)));
        }
        let Connection::Open(connected) = &mut self.connection else { return None };
        connected.answers.next().now_or_never().map(News::Answer)
    }

    /// Waits until something happens. Nothing is lost if this is dropped while it waits.
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
        // A stream that is gone is noticed when its answers end.
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
                self.hook.tell(&ClientEvent::Connected { endpoint: &connected.endpoint });
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
                let _ = self.lease_news.send(LeaseNotice::NewStream);
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
        let endpoint = &self.state.borrow().endpoint.clone();
        self.hook.tell(&ClientEvent::Disconnected { endpoint, problem });
        self.directory.avoid_current();
        let error = Error::unavailable(problem, true);
        self.state.send_modify(|state| {
            state.channel = None;
            state.problem = Some(error);
        });
        self.check = None;
        self.pending.stream_left();
        // A node that has not said anything may do the same again, so pause first.
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
        if let Answer::LeaseChanged(LeaseChanged { lease_id }) = answer {
            // The keeper may have ended. Nothing is held then.
            let _ = self.lease_news.send(LeaseNotice::Changed(lease_id));
            return;
        }
        let Answer::Error(error) = answer else {
            self.backoff = Backoff::new();
            let took = self.pending.answer(seq, Ok(answer)).unwrap_or_default();
            self.latency = took.max(self.latency * 7 / 8);
            return;
        };
        let error = ApiError::from(error);
        match error.reason {
            // The node is about to end, or may not answer. Ask another node what it has not answered.
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

    /// Looks for another node: this one may be cut off from others that have a leader.
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
        // A stopped process keeps its connections open, and another node may lead by now.
        if self.pending.is_doubtful(now, self.heard_at) && matches!(self.connection, Connection::Open(_)) {
            self.broken("the node does not answer");
        }
        for number in self.pending.take_retries(now) {
            self.send(number);
        }
        while let Some(number) = self.pending.next_with_room() {
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
