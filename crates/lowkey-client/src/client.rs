//! The client: the entry point of the SDK.

use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use lowkey_api::v1::lock_service_client::LockServiceClient;
use lowkey_api::v1::session_answer::Answer;
use lowkey_api::v1::session_call::Call;
use lowkey_api::v1::{
    CheckTokenRequest, CheckTokenResponse, CreateLeaseRequest, CreateLeaseResponse, GetLockRequest,
    GetLockResponse, GetStatusRequest, GetStatusResponse, ListLocksRequest,
};
use lowkey_api::validity::valid_until;
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, sleep_until, timeout};

use crate::clock::now_nanos;
use crate::elect::Elect;
use crate::engine::Engine;
use crate::error::Error;
use crate::event::{ClientEvent, Hook};
use crate::keeper::{Keeper, Presence};
use crate::link::{Link, LinkState, deadline_in};
use crate::random::{self, Backoff};
use crate::session::{Session, Shared, revocation};
use crate::tls::Tls;
use crate::token_file::TokenFile;
use crate::watch::{Observations, Watch};
use crate::watch_connections::WatchConnections;
use crate::wire::{Dialer, Wire};

const CALL_TIMEOUT: Duration = Duration::from_secs(10);

/// A connection to a cluster. Cheap to clone; clones share it.
///
/// It needs one node that answers, and finds the others from there. It prefers the leader, and reconnects
/// by itself.
///
/// ```no_run
/// # async fn example() -> Result<(), lowkey_client::Error> {
/// use lowkey_client::Client;
///
/// let client = Client::connect(["http://127.0.0.1:9000", "http://127.0.0.1:9001"]).await?;
/// println!("{}", client.status().await?.leader_id);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Client {
    pub(crate) inner: Arc<Inner>,
}

/// What all handles share. The link and the keeper are dropped before the engine, which then waits for
/// messages that are still to be sent.
pub(crate) struct Inner {
    pub(crate) link: Link,
    pub(crate) keeper: Keeper,
    pub(crate) owner: String,
    pub(crate) call_timeout: Duration,
    sessions: Mutex<HashMap<u64, Weak<Shared>>>,
    pub(crate) watch_connections: WatchConnections,
    pub(crate) hook: Hook,
    pub(crate) engine: Engine,
}

/// The configuration of a client. Made by [`Client::builder`].
///
/// ```no_run
/// # async fn example() -> Result<(), lowkey_client::Error> {
/// use std::time::Duration;
///
/// let client = lowkey_client::Client::builder(["http://127.0.0.1:9000"])
///     .owner("billing-worker-7")
///     .call_timeout(Duration::from_secs(3))
///     .connect()
///     .await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct ClientBuilder {
    endpoints: Vec<String>,
    owner: Option<String>,
    local_owner: Option<String>,
    call_timeout: Duration,
    connect_timeout: Duration,
    cluster_id: Option<String>,
    tls: Tls,
    token_file: Option<PathBuf>,
    hook: Hook,
}

impl ClientBuilder {
    /// The name of this client in lists of locks. By default it is made from host and process.
    pub fn owner(mut self, owner: impl Into<String>) -> Self {
        self.owner = Some(owner.into());
        self
    }

    /// The name of this client if no owner is given. If the client proves to be a principal, it stands below that
    /// one's name: `billing/host-7`. By default it is made from host and process.
    pub fn local_owner(mut self, owner: impl Into<String>) -> Self {
        self.local_owner = Some(owner.into());
        self
    }

    /// How long a call may take, including all retries: 10 s by default. A wait for a lock comes on top.
    pub fn call_timeout(mut self, time: Duration) -> Self {
        self.call_timeout = time;
        self
    }

    /// How long the first connection may take: 10 s by default.
    pub fn connect_timeout(mut self, time: Duration) -> Self {
        self.connect_timeout = time;
        self
    }

    /// The id of the expected cluster, as [`Client::cluster_id`] or `lowkey status` shows it. Nodes of any
    /// other cluster are refused from the beginning. Without this the client stays with the cluster of the
    /// node that answers first.
    ///
    /// Use this in programs that keep tokens beyond their end: the tokens of two clusters cannot be
    /// compared.
    pub fn cluster_id(mut self, id: impl Into<String>) -> Self {
        self.cluster_id = Some(id.into());
        self
    }

    /// How to connect to endpoints that begin with `https://`. Without this, a CA of the operating system
    /// must have signed the nodes' certificates.
    pub fn tls(mut self, tls: Tls) -> Self {
        self.tls = tls;
        self
    }

    /// A file with a bearer token, `lk_…`, that is sent with every call. It is read again when it changes.
    /// To other machines the token is sent over `https://` only.
    pub fn token_file(mut self, file: impl Into<PathBuf>) -> Self {
        self.token_file = Some(file.into());
        self
    }

    /// A hook for metrics: it is told what the client does and notices. It is called where that happens, also
    /// on the thread that renews leases, so it must not block: count, and return.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), lowkey_client::Error> {
    /// use std::sync::atomic::{AtomicU64, Ordering};
    ///
    /// use lowkey_client::{Client, ClientEvent};
    ///
    /// static LOST: AtomicU64 = AtomicU64::new(0);
    ///
    /// let client = Client::builder(["http://127.0.0.1:9000"]).on_event(|event| {
    ///     if let ClientEvent::SessionLost { .. } | ClientEvent::LockLost { .. } = event {
    ///         LOST.fetch_add(1, Ordering::Relaxed);
    ///     }
    /// });
    /// let client = client.connect().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn on_event(mut self, hook: impl Fn(&ClientEvent<'_>) + Send + Sync + 'static) -> Self {
        self.hook = Hook::new(hook);
        self
    }

    /// What a question to single nodes needs: where, how, with which token, and for how long.
    pub(crate) fn into_probe(self) -> (Vec<String>, Tls, Option<PathBuf>, Duration) {
        (self.endpoints, self.tls, self.token_file, self.connect_timeout)
    }

    /// Connects. Fails if no node answers in time.
    pub async fn connect(self) -> Result<Client, Error> {
        if self.endpoints.is_empty() {
            return Err(Error::invalid("no endpoint was given: one such as http://127.0.0.1:9000 is needed"));
        }
        // Owners are below the principal's name. Without a credential there is none to ask for.
        let wants_principal = self.owner.is_none() && (self.token_file.is_some() || self.tls.has_identity());
        let local_owner = self.local_owner.unwrap_or_else(default_owner);
        let dialer = Dialer::new(self.tls, self.token_file.map(TokenFile::read).transpose()?);
        dialer.check_all(&self.endpoints).await?;
        let (link, lease_news, link_task) =
            Link::new(self.endpoints, self.cluster_id, dialer.clone(), self.hook.clone());
        let (keeper, keeper_task) = Keeper::new(link.clone(), lease_news, self.hook.clone());
        let engine = Engine::start(move || async move {
            tokio::spawn(keeper_task);
            // The keeper uses the link, so the link must end last.
            link_task.await;
        })?;
        let inner = Inner {
            link,
            keeper,
            owner: self.owner.unwrap_or(local_owner),
            call_timeout: self.call_timeout,
            sessions: Mutex::default(),
            watch_connections: WatchConnections::new(dialer),
            hook: self.hook,
            engine,
        };
        let mut state = inner.link.state();
        let ready = state.wait_for(|state| state.channel.is_some() || state.is_hopeless);
        let is_connected = timeout(self.connect_timeout, ready)
            .await
            .is_ok_and(|state| state.is_ok_and(|state| state.channel.is_some()));
        if !is_connected {
            let problem = inner.link.state().borrow().problem.clone();
            return Err(problem.unwrap_or_else(|| Error::unavailable("no node answers", false)));
        }
        let mut client = Client { inner: Arc::new(inner) };
        if wants_principal {
            client.stand_below_principal().await;
        }
        Ok(client)
    }
}

fn default_owner() -> String {
    let host = rustix_host();
    format!("{host}-{}-{}", std::process::id(), random::tag())
}

fn rustix_host() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname")
        .map(|host| host.trim().to_owned())
        .ok()
        .filter(|host| !host.is_empty())
        .unwrap_or_else(|| "client".to_owned())
}

impl Client {
    /// Puts the principal that this client proves to be before its owner. A node of before does not know of any.
    async fn stand_below_principal(&mut self) {
        if let Ok(who) = self.who_am_i().await
            && !who.principal.is_empty()
            && let Some(inner) = Arc::get_mut(&mut self.inner)
        {
            inner.owner = format!("{}/{}", who.principal, inner.owner);
        }
    }

    /// Connects to the cluster that these endpoints belong to: gRPC URLs of some of its nodes.
    pub async fn connect<E: Into<String>>(endpoints: impl IntoIterator<Item = E>) -> Result<Self, Error> {
        Self::builder(endpoints).connect().await
    }

    /// The same, with more options.
    pub fn builder<E: Into<String>>(endpoints: impl IntoIterator<Item = E>) -> ClientBuilder {
        ClientBuilder {
            endpoints: endpoints.into_iter().map(Into::into).collect(),
            owner: None,
            local_owner: None,
            call_timeout: CALL_TIMEOUT,
            connect_timeout: CALL_TIMEOUT,
            cluster_id: None,
            tls: Tls::new(),
            token_file: None,
            hook: Hook::default(),
        }
    }

    /// The name of this client in lists of locks.
    pub fn owner(&self) -> &str {
        &self.inner.owner
    }

    /// The id of the cluster that this client is bound to.
    pub fn cluster_id(&self) -> String {
        self.inner.link.state().borrow().cluster_id.clone()
    }

    /// The node that the client is connected to now; empty while it is not connected.
    pub fn endpoint(&self) -> String {
        let state = self.inner.link.state();
        let state = state.borrow();
        state.channel.as_ref().map(|_| state.endpoint.clone()).unwrap_or_default()
    }

    /// Creates a session: a lease with this time to live (1 to 600 whole seconds), which is renewed
    /// automatically.
    pub async fn session(&self, ttl: Duration) -> Result<Session, Error> {
        let request = CreateLeaseRequest {
            owner_id: self.inner.owner.clone(),
            ttl_seconds: whole_seconds(ttl)?,
            request_id: random::request_id(),
        };
        // R6: validity counts from before the first send; retries keep this time.
        let first_sent = now_nanos();
        let (made, is_made) = oneshot::channel();
        // Not in this future: if the caller drops it, another task must still end the lease.
        self.inner.engine.runtime().spawn(make_lease(
            self.inner.link.clone(),
            request,
            self.inner.call_timeout,
            made,
        ));
        let mut made = is_made.await.map_err(|_| Error::unavailable("the client has ended", true))??;
        let until = valid_until(first_sent, made.ttl_seconds);
        let presence = Presence::new(made.lease_id, made.ttl_seconds, until, self.inner.hook.clone());
        made.revoke = None;
        Ok(Session::new(Arc::clone(&self.inner), presence))
    }

    /// A candidate of an election that stands again whenever it lost.
    pub fn elect(&self, name: impl Into<String>) -> Elect {
        Elect::new(self.clone(), name.into())
    }

    /// Ends all sessions of this client and of its clones. Waits until the service has heard of that, and
    /// of all releases that are under way. Belief ends first (R9): from the moment of this call no guard
    /// holds anything.
    ///
    /// Call this where a program ends. Without it the drop of the client's last handle waits too, but it
    /// blocks the thread, and only for 200 ms. An error says that no node answered in time. The client
    /// keeps trying in the background as long as the program runs.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), lowkey_client::Error> {
    /// use std::time::Duration;
    ///
    /// let client = lowkey_client::Client::connect(["http://127.0.0.1:9000"]).await?;
    /// let session = client.session(Duration::from_secs(10)).await?;
    /// drop(session.lock("billing/job").acquire().await?);
    /// // Others can have the lock when this returns.
    /// client.close().await?;
    /// # Ok(())
    /// # }
    /// ```
    pub async fn close(self) -> Result<(), Error> {
        let inner = &self.inner;
        for session in inner.sessions().values().filter_map(Weak::upgrade).collect::<Vec<_>>() {
            if let Some(revoke) = session.end() {
                inner.link.tell(revoke, ());
            }
        }
        timeout(inner.call_timeout, inner.link.flush()).await.map_err(|_| {
            let problem = inner.link.state().borrow().problem.clone();
            problem.unwrap_or_else(|| Error::unavailable("no answer in time", true))
        })
    }

    /// Who holds a lock, and who waits for it.
    ///
    /// ```no_run
    /// # async fn example(client: lowkey_client::Client) -> Result<(), lowkey_client::Error> {
    /// for holder in client.get("billing/nightly").await?.holders {
    ///     println!("{} holds it with token {}", holder.owner_id, holder.fencing_token);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn get(&self, name: impl Into<String>) -> Result<GetLockResponse, Error> {
        let request = GetLockRequest { lock_name: name.into(), stale: false };
        match self.inner.link.call(Call::GetLock(request), self.inner.call_timeout).await? {
            Answer::GetLock(lock) => Ok(lock),
            _ => Err(Error::unavailable("an answer to another question", false)),
        }
    }

    /// All locks whose names begin with a prefix, by name. Also returns the revision to watch from in order
    /// to miss nothing after this.
    ///
    /// ```no_run
    /// # async fn example(client: lowkey_client::Client) -> Result<(), lowkey_client::Error> {
    /// let (locks, watch_from) = client.locks("billing/").await?;
    /// println!("{} locks", locks.len());
    /// let changes_since_then = client.watch_prefix("billing/").from(watch_from);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn locks(&self, prefix: impl Into<String>) -> Result<(Vec<GetLockResponse>, u64), Error> {
        let mut request = ListLocksRequest { prefix: prefix.into(), page_size: 1000, ..Default::default() };
        let (mut locks, mut watch_from) = (Vec::new(), None);
        loop {
            let page = self.inner.unary(Effect::None, &request, |mut client, request| async move {
                client.list_locks(request).await
            });
            let page = page.await?;
            watch_from.get_or_insert(page.watch_from);
            locks.extend(page.locks);
            if page.next_page_token.is_empty() {
                return Ok((locks, watch_from.unwrap_or_default()));
            }
            request.page_token = page.next_page_token;
        }
    }

    /// Whether a token is a current one of a lock.
    ///
    /// ```no_run
    /// # async fn example(client: lowkey_client::Client, token: u64) -> Result<(), lowkey_client::Error> {
    /// if !client.check_token("billing/nightly", token).await?.current {
    ///     println!("a later holder was here");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn check_token(
        &self,
        name: impl Into<String>,
        fencing_token: u64,
    ) -> Result<CheckTokenResponse, Error> {
        let request = CheckTokenRequest { lock_name: name.into(), fencing_token };
        self.inner
            .unary(
                Effect::None,
                &request,
                |mut client, request| async move { client.check_token(request).await },
            )
            .await
    }

    /// The cluster's status, as the node that this client is connected to sees it.
    pub async fn status(&self) -> Result<GetStatusResponse, Error> {
        let ask =
            |mut client: LockServiceClient<Wire>, request| async move { client.get_status(request).await };
        self.inner.unary(Effect::None, &GetStatusRequest {}, ask).await
    }

    /// Watches one lock. Events come in order, without gaps or repeats, also across reconnects.
    ///
    /// The watch begins now, not when it is first read: it tells everything that this client does from here
    /// on. If there is no connection it begins as soon as there is one.
    ///
    /// ```no_run
    /// # async fn example(client: lowkey_client::Client) -> Result<(), lowkey_client::Error> {
    /// use futures::StreamExt as _;
    ///
    /// let mut watch = client.watch("billing/job");
    /// while let Some(event) = watch.next().await {
    ///     println!("{:?}", event?.r#type());
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn watch(&self, name: impl Into<String>) -> Watch {
        Watch::of_name(Arc::clone(&self.inner), name.into())
    }

    /// Watches all locks whose names begin with a prefix; an empty one means all.
    pub fn watch_prefix(&self, prefix: impl Into<String>) -> Watch {
        Watch::of_prefix(Arc::clone(&self.inner), prefix.into())
    }

    /// Tells who leads an election: first the present leader, then every change, including that there is
    /// none.
    ///
    /// ```no_run
    /// # async fn example(client: lowkey_client::Client) -> Result<(), lowkey_client::Error> {
    /// use futures::StreamExt as _;
    ///
    /// let mut observations = client.observe("scheduler");
    /// while let Some(observation) = observations.next().await {
    ///     match observation?.leader {
    ///         Some(leader) => println!("{} leads, at {}", leader.owner_id, leader.value),
    ///         None => println!("nobody leads"),
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn observe(&self, election: &str) -> Observations {
        Observations::new(Arc::clone(&self.inner), election.to_owned())
    }
}

/// A lease that was created and has no session yet.
struct MadeLease {
    lease_id: u64,
    ttl_seconds: i64,
    link: Link,
    /// What to send if the lease is not taken by a session.
    revoke: Option<Call>,
}

impl MadeLease {
    fn new(made: &CreateLeaseResponse, owner_id: String, link: &Link) -> Self {
        let CreateLeaseResponse { lease_id, ttl_seconds, .. } = *made;
        Self { lease_id, ttl_seconds, link: link.clone(), revoke: Some(revocation(lease_id, owner_id)) }
    }
}

impl Drop for MadeLease {
    fn drop(&mut self) {
        if let Some(revoke) = self.revoke.take() {
            self.link.tell(revoke, ());
        }
    }
}

/// How long the client tries to find and end a lease that may have been created although its caller was
/// told otherwise. After that the lease expires by itself, because it is not renewed.
const IN_DOUBT_TIME: Duration = Duration::from_secs(30);

async fn make_lease(
    link: Link,
    request: CreateLeaseRequest,
    time: Duration,
    made: oneshot::Sender<Result<MadeLease, Error>>,
) {
    let owner_id = request.owner_id.clone();
    let call = Call::CreateLease(request);
    let ask = async |time| match link.call(call.clone(), time).await? {
        Answer::CreateLease(made) => Ok(MadeLease::new(&made, owner_id.clone(), &link)),
        _ => Err(Error::unavailable("an answer to another question", true)),
    };
    let outcome = ask(time).await;
    let is_in_doubt = outcome.as_ref().is_err_and(Error::may_have_been_done);
    // A caller that has gone drops the lease, which ends it.
    let _ = made.send(outcome);
    if is_in_doubt {
        // The same request id makes this idempotent: a lease that was created is told again, and then
        // ended.
        drop(ask(time.min(IN_DOUBT_TIME)).await);
    }
}

/// What a call does to the service.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Effect {
    None,
    Change,
}

impl Effect {
    /// The error of a call that came to nothing. If a copy of a change was left unanswered, the change may
    /// have been made, no matter what was seen since.
    fn of_last(self, error: Error, unanswered: bool) -> Error {
        if self == Self::Change && unanswered { error.of_one_copy() } else { error }
    }
}

impl Inner {
    fn sessions(&self) -> MutexGuard<'_, HashMap<u64, Weak<Shared>>> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a session, so that it is ended with the client.
    pub(crate) fn register(&self, session: &Arc<Shared>) {
        self.sessions().insert(session.presence.lease_id, Arc::downgrade(session));
    }

    pub(crate) fn unregister(&self, lease_id: u64) {
        self.sessions().remove(&lease_id);
    }

    /// The connection, as soon as there is one.
    pub(crate) async fn channel(&self, deadline: Instant) -> Result<Wire, Error> {
        connected(self.link.state(), deadline).await?.channel.ok_or_else(no_node)
    }

    /// Makes a single call that is idempotent, again and again until it succeeds or its time is up.
    pub(crate) async fn unary<Q, R, F>(
        &self,
        effect: Effect,
        request: &Q,
        ask: impl Fn(LockServiceClient<Wire>, Q) -> F,
    ) -> Result<R, Error>
    where
        Q: Clone,
        F: Future<Output = Result<tonic::Response<R>, tonic::Status>>,
    {
        self.unary_within(self.call_timeout, effect, request, ask).await
    }

    /// The same for a call that may take longer than others.
    pub(crate) async fn unary_within<Q, R, F>(
        &self,
        time: Duration,
        effect: Effect,
        request: &Q,
        ask: impl Fn(LockServiceClient<Wire>, Q) -> F,
    ) -> Result<R, Error>
    where
        Q: Clone,
        F: Future<Output = Result<tonic::Response<R>, tonic::Status>>,
    {
        let ask = |wire, request| ask(LockServiceClient::new(wire), request);
        self.wire_within(time, effect, request, ask).await
    }

    /// Like [`Inner::unary`], for a call of any service.
    pub(crate) async fn unary_by<Q, R, F>(
        &self,
        effect: Effect,
        request: &Q,
        ask: impl Fn(Wire, Q) -> F,
    ) -> Result<R, Error>
    where
        Q: Clone,
        F: Future<Output = Result<tonic::Response<R>, tonic::Status>>,
    {
        self.wire_within(self.call_timeout, effect, request, ask).await
    }

    async fn wire_within<Q, R, F>(
        &self,
        time: Duration,
        effect: Effect,
        request: &Q,
        ask: impl Fn(Wire, Q) -> F,
    ) -> Result<R, Error>
    where
        Q: Clone,
        F: Future<Output = Result<tonic::Response<R>, tonic::Status>>,
    {
        let deadline = deadline_in(time);
        let mut backoff = Backoff::new();
        // The last error, which is a node's if a node said anything; and whether a copy of the call was
        // left without a clear answer.
        let (mut last_word, mut unanswered) = (None, false);
        loop {
            let channel = match self.channel(deadline).await {
                Ok(channel) => channel,
                Err(error) => return Err(effect.of_last(error, unanswered)),
            };
            let asked_at = Instant::now();
            let attempt = ask(channel, request.clone());
            let error = match tokio::time::timeout_at(deadline, attempt).await {
                Ok(Ok(response)) => return Ok(response.into_inner()),
                Ok(Err(status)) => from_status(&status),
                Err(_) => Error::unavailable("no answer in time", false),
            };
            let is_clear = error.reason().is_some();
            unanswered |= !is_clear || error.outcome_unknown();
            if !error.is_retryable() {
                return Err(error);
            }
            let last_word = match &mut last_word {
                Some(word) if !is_clear => word,
                word => word.insert(error),
            };
            // So far the outcome is certain. Another copy without enough time for an answer would make it
            // doubtful.
            let is_certain = effect == Effect::Change && !unanswered;
            let needed = if is_certain { asked_at.elapsed() } else { Duration::ZERO };
            sleep_until(deadline.min(Instant::now() + backoff.pause())).await;
            if Instant::now() + needed >= deadline {
                return Err(effect.of_last(last_word.clone(), unanswered));
            }
        }
    }
}

/// The state of the link, as soon as it is connected.
pub(crate) async fn connected(
    mut link: watch::Receiver<LinkState>,
    deadline: Instant,
) -> Result<LinkState, Error> {
    let connected = tokio::time::timeout_at(deadline, link.wait_for(|state| state.channel.is_some())).await;
    let state = connected.ok().and_then(|state| Some(state.ok()?.clone()));
    state.ok_or_else(|| {
        let problem = link.borrow().problem.clone();
        problem.unwrap_or_else(no_node)
    })
}

fn no_node() -> Error {
    Error::unavailable("no node answers", false)
}

/// A time to live as the service counts it.
pub(crate) fn whole_seconds(ttl: Duration) -> Result<i64, Error> {
    if ttl.subsec_nanos() != 0 {
        return Err(Error::invalid(format!("a time to live has whole seconds, 1 to 600, and not {ttl:?}")));
    }
    Ok(i64::try_from(ttl.as_secs()).unwrap_or(i64::MAX))
}

/// What a gRPC status means for the caller.
pub(crate) fn from_status(status: &tonic::Status) -> Error {
    match lowkey_api::ApiError::from_status(status) {
        Some(error) => error.into(),
        None => Error::unavailable(status.message(), false),
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("owner", &self.owner())
            .field("endpoint", &self.endpoint())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn a_change_that_was_left_unanswered_is_in_doubt_whatever_is_seen_later() {
        let wrong_cluster = || {
            let (endpoint, expected, found) = ("http://n2".into(), "one".into(), "another".into());
            Error::new(ErrorKind::WrongCluster { endpoint, expected, found })
        };
        let told = Effect::Change.of_last(wrong_cluster(), true);
        assert!(told.outcome_unknown(), "{told}");
        assert!(told.to_string().contains("another"), "{told}");
        for (effect, unanswered) in [(Effect::Change, false), (Effect::None, true)] {
            let told = effect.of_last(wrong_cluster(), unanswered);
            assert!(matches!(told.kind(), ErrorKind::WrongCluster { .. }), "{told}");
        }
    }
}
