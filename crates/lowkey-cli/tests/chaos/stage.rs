//! What all clients of a run share: the way to the nodes, the protected resources, and the record.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lowkey_api::ApiError;
use lowkey_api::v1::lock_service_client::LockServiceClient;
use lowkey_core::{LeaseId, LockName, Token};
use lowkey_sim::judge::{Fencing, PlainClaim, Random, Write};
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tonic::transport::{Channel, Endpoint};
use tonic::{Response, Status};

use crate::cluster::Cluster;
use crate::history::{Answer, Belief, Call, History, LetGo, Outcome, Refused, Renewal, lock_name, now};

/// The names that clients contend for: some below others, some that only look so.
pub(crate) const NAMES: &[&str] = &["jobs/1", "jobs/2", "tree", "tree/a", "tree/a/b", "tree/ab", "shared"];
/// What candidates stand for.
pub(crate) const ELECTION: &str = "election";
/// How long an answer that nobody has to wait for may take, before another node is asked.
pub(crate) const ATTEMPT: Duration = Duration::from_millis(700);

pub(crate) struct Stage {
    ports: Vec<u16>,
    pub(crate) proxied: Vec<u16>,
    history: Mutex<History>,
    register: Mutex<Fencing>,
    names: Vec<LockName>,
    is_over: AtomicBool,
}

/// What came of asking until there was an answer.
pub(crate) enum Told<T> {
    Yes(T),
    No(ApiError),
    /// The client lost patience; this was the last that it heard.
    Nothing(String),
}

impl<T> Told<T> {
    /// The same for the record.
    pub(crate) fn outcome(self, answer: impl FnOnce(T) -> Answer) -> Outcome {
        match self {
            Self::Yes(told) => Outcome::Yes(answer(told)),
            Self::No(error) => Outcome::No(error),
            Self::Nothing(why) => Outcome::Unknown(why),
        }
    }
}

impl Stage {
    pub(crate) fn new(cluster: &Cluster) -> Arc<Self> {
        let history = History { election: Some(lock_name(ELECTION)), ..History::default() };
        Arc::new(Self {
            ports: cluster.nodes.iter().map(|node| node.ports.grpc).collect(),
            proxied: cluster.proxied.clone(),
            history: Mutex::new(history),
            register: Mutex::default(),
            names: NAMES.iter().chain([&ELECTION]).map(|name| lock_name(name)).collect(),
            is_over: AtomicBool::new(false),
        })
    }

    /// No client begins anything new.
    pub(crate) fn end(&self) {
        self.is_over.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    pub(crate) fn history(&self) -> MutexGuard<'_, History> {
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn record(&self, call: Call) {
        self.history().calls.push(call);
    }

    pub(crate) fn believed(&self, belief: Belief) {
        self.history().beliefs.push(belief);
    }

    pub(crate) fn renewed(&self, lease: LeaseId, renewal: Renewal) {
        self.history().renewals.entry(lease).or_default().push(renewal);
    }

    pub(crate) fn let_go(&self, let_go: LetGo) {
        self.history().let_go.push(let_go);
    }

    /// Connections of one client, straight to the nodes, in an order of its own.
    pub(crate) fn links(&self, first: usize) -> Links {
        Self::links_to(&self.ports, first)
    }

    /// The same by the proxies, where a path may be late or cut.
    pub(crate) fn proxied_links(&self, first: usize) -> Links {
        Self::links_to(&self.proxied, first)
    }

    fn links_to(ports: &[u16], first: usize) -> Links {
        let mut channels: Vec<Channel> = ports.iter().map(|port| channel(*port)).collect();
        let nodes = channels.len();
        channels.rotate_left(first % nodes);
        Links { channels, next: 0, attempts: 0 }
    }

    /// Writes to something that the claim covers, if the writer still believes when the resource looks.
    pub(crate) fn write(
        &self,
        claim: &PlainClaim,
        token: Token,
        random: &mut Random,
        believes: impl Fn() -> bool,
    ) {
        let covered: Vec<&LockName> = self.names.iter().filter(|name| claim.covers(name)).collect();
        let to = if covered.is_empty() { claim.lock.clone() } else { (*random.pick(&covered)).clone() };
        let lease = claim.lease.expect("whoever believes has a lease");
        let write = Write { to, lock: claim.lock.clone(), lease, token, mode: claim.mode };
        let mut register = self.register.lock().unwrap_or_else(PoisonError::into_inner);
        let outcome = match believes() {
            true => register.write_in_belief(&write),
            // It comes too late, as that of a paused process would; the token decides.
            false => {
                register.write(&write);
                Ok(())
            }
        };
        drop(register);
        if let Err(violation) = outcome {
            self.history().refused.push(Refused { at: now(), token, violation });
        }
    }

    /// Accepted and refused writes.
    pub(crate) fn writes(&self) -> (u64, u64) {
        let register = self.register.lock().unwrap_or_else(PoisonError::into_inner);
        (register.accepted, register.refused)
    }
}

pub(crate) fn channel(port: u16) -> Channel {
    let endpoint = Endpoint::from_shared(format!("http://127.0.0.1:{port}")).unwrap();
    endpoint.connect_timeout(Duration::from_millis(300)).connect_lazy()
}

/// A client's connections.
#[derive(Clone)]
pub(crate) struct Links {
    channels: Vec<Channel>,
    next: usize,
    /// How often the last call was sent.
    pub(crate) attempts: u32,
}

impl Links {
    /// The node to ask now.
    pub(crate) fn client(&self) -> LockServiceClient<Channel> {
        LockServiceClient::new(self.channels[self.next].clone())
    }

    pub(crate) fn move_on(&mut self) {
        self.next = (self.next + 1) % self.channels.len();
    }

    pub(crate) fn move_anywhere(&mut self, random: &mut Random) {
        self.next = random.between(0, self.channels.len() as u64) as usize;
    }

    /// Calls, at one node after the other, until there is an answer that asking again would not change.
    pub(crate) async fn insist<T, Answer>(
        &mut self,
        patience: Duration,
        attempt: Duration,
        call: impl Fn(LockServiceClient<Channel>) -> Answer,
    ) -> Told<T>
    where
        Answer: Future<Output = Result<Response<T>, Status>>,
    {
        let deadline = Instant::now() + patience;
        let mut last = "nobody was asked".to_owned();
        self.attempts = 0;
        while Instant::now() < deadline {
            self.attempts += 1;
            let attempt_ends = (Instant::now() + attempt).min(deadline);
            match timeout_at(attempt_ends, call(self.client())).await {
                Ok(Ok(response)) => return Told::Yes(response.into_inner()),
                Ok(Err(status)) => match ApiError::from_status(&status) {
                    Some(error) if !error.is_retryable() => return Told::No(error),
                    Some(error) => last = error.reason.to_string(),
                    None => last = "CONNECTION".to_owned(),
                },
                Err(_) => last = "SILENCE".to_owned(),
            }
            self.move_on();
            sleep(Duration::from_millis(10)).await;
        }
        Told::Nothing(last)
    }

    /// One attempt at the node that is asked now; the next one is asked after a failure.
    pub(crate) async fn once<T>(
        &mut self,
        attempt: Duration,
        call: impl Future<Output = Result<Response<T>, Status>>,
    ) -> Told<T> {
        let told = match timeout(attempt, call).await {
            Ok(Ok(response)) => return Told::Yes(response.into_inner()),
            Ok(Err(status)) => match ApiError::from_status(&status) {
                Some(error) if !error.is_retryable() => return Told::No(error),
                Some(error) => Told::Nothing(error.reason.to_string()),
                None => Told::Nothing("CONNECTION".to_owned()),
            },
            Err(_) => Told::Nothing("SILENCE".to_owned()),
        };
        self.move_on();
        told
    }
}
