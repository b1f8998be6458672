//! lowkey's session stream without the SDK: many calls under way at a time. For what is done to very many leases or locks
//! at once, where one call after the other would take too long.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use lowkey_api::v1::lock_service_client::LockServiceClient;
use lowkey_api::v1::session_answer::Answer;
use lowkey_api::v1::session_call::Call;
use lowkey_api::v1::{
    AcquireLockRequest, AcquireLockResponse, CreateLeaseRequest, ReleaseLockRequest, RenewLeases,
    RevokeLeaseRequest, SessionAnswer, SessionCall,
};
use tokio::sync::mpsc;
use tokio::time::{sleep, timeout};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Status, Streaming};

use super::PATIENCE;
use super::node_channel::NodeChannel;
use super::unary::tag;
use crate::system::BenchProblem;

/// Leases that one message renews.
const LEASES_A_MESSAGE: usize = 6_000;
/// A lease may have 128 operations under way.
const UNDER_WAY: usize = 100;

/// Invariant: each call in `open` was sent, and its answer has not come.
pub(crate) struct Conversation {
    calls: mpsc::Sender<SessionCall>,
    answers: Streaming<SessionAnswer>,
    open: HashMap<u64, Call>,
    seq: u64,
    owner: String,
}

impl Conversation {
    pub(crate) async fn open(node_channel: NodeChannel) -> Result<Self, BenchProblem> {
        let (calls, receiver) = mpsc::channel(UNDER_WAY);
        let mut node = LockServiceClient::new(node_channel.channel.clone());
        let request = node_channel.request(ReceiverStream::new(receiver));
        let answers = node.session(request).await.map_err(broken)?.into_inner();
        // Each has a name of its own: request ids are told apart by it.
        let owner = format!("{}-{}", node_channel.owner, tag());
        Ok(Self { calls, answers, open: HashMap::new(), seq: 0, owner })
    }

    async fn send(&mut self, call: Call) -> Result<(), BenchProblem> {
        self.seq += 1;
        self.open.insert(self.seq, call.clone());
        let sent = self.calls.send(SessionCall { seq: self.seq, call: Some(call) }).await;
        sent.map_err(|_| ended())
    }

    /// The next answer, and the call to which it belongs. Whoever is asked to come again later does so.
    async fn next(&mut self) -> Result<(Call, Answer), BenchProblem> {
        loop {
            let told = timeout(PATIENCE, self.answers.next()).await;
            let told =
                told.map_err(|_| BenchProblem::failed(format!("lowkey: no answer in {PATIENCE:?}")))?;
            let SessionAnswer { seq, answer } = told.transpose().map_err(broken)?.ok_or_else(ended)?;
            let (Some(call), Some(answer)) = (self.open.remove(&seq), answer) else { return Err(ended()) };
            match answer {
                Answer::Error(error) if error.retry_after_ms > 0 => {
                    sleep(Duration::from_millis(error.retry_after_ms)).await;
                    self.send(call).await?;
                }
                Answer::Error(error) => {
                    return Err(BenchProblem::failed(format!("lowkey: {}", error.message)));
                }
                answer => return Ok((call, answer)),
            }
        }
    }

    /// One call alone.
    async fn ask(&mut self, call: Call) -> Result<Answer, BenchProblem> {
        self.send(call).await?;
        Ok(self.next().await?.1)
    }

    fn request_id(&self) -> String {
        format!("{}-{}", self.owner, self.seq)
    }

    fn acquire(&self, lock_name: String, lease_id: u64) -> Call {
        Call::AcquireLock(AcquireLockRequest {
            lock_name,
            owner_id: self.owner.clone(),
            lease_id,
            request_id: self.request_id(),
            ..AcquireLockRequest::default()
        })
    }

    fn release(&self, lock_name: String, granted: &AcquireLockResponse) -> Call {
        Call::ReleaseLock(ReleaseLockRequest {
            lock_name,
            lease_id: granted.lease_id,
            fencing_token: granted.fencing_token,
            request_id: self.request_id(),
            ..ReleaseLockRequest::default()
        })
    }

    pub(crate) async fn create_lease(&mut self, ttl: Duration) -> Result<u64, BenchProblem> {
        let (owner_id, request_id) = (self.owner.clone(), self.request_id());
        let ttl_seconds = i64::try_from(ttl.as_secs()).unwrap_or(i64::MAX);
        let call = Call::CreateLease(CreateLeaseRequest { owner_id, ttl_seconds, request_id });
        match self.ask(call).await? {
            Answer::CreateLease(lease) => Ok(lease.lease_id),
            _ => Err(astray()),
        }
    }

    /// Ends a lease of this conversation, and all that it holds.
    pub(crate) async fn revoke_lease(&mut self, lease_id: u64) -> Result<(), BenchProblem> {
        let (owner_id, request_id) = (self.owner.clone(), self.request_id());
        self.ask(Call::RevokeLease(RevokeLeaseRequest {
            lease_id,
            owner_id,
            request_id,
            ..RevokeLeaseRequest::default()
        }))
        .await
        .map(|_| ())
    }

    /// Takes all these locks with one lease.
    pub(crate) async fn hold_all(
        &mut self,
        lease: u64,
        names: impl IntoIterator<Item = String>,
    ) -> Result<(), BenchProblem> {
        let mut names = names.into_iter();
        for name in names.by_ref().take(UNDER_WAY) {
            self.send(self.acquire(name, lease)).await?;
        }
        while !self.open.is_empty() {
            let (_, Answer::AcquireLock(_)) = self.next().await? else { return Err(astray()) };
            if let Some(name) = names.next() {
                self.send(self.acquire(name, lease)).await?;
            }
        }
        Ok(())
    }

    /// Takes each of these locks, and gives it back at once. Tells how long each took.
    pub(crate) async fn pass_through(
        &mut self,
        lease: u64,
        names: impl IntoIterator<Item = String>,
        mut took: impl FnMut(Duration),
    ) -> Result<(), BenchProblem> {
        let mut names = names.into_iter();
        let mut begun = HashMap::new();
        for name in names.by_ref().take(UNDER_WAY) {
            begun.insert(name.clone(), Instant::now());
            self.send(self.acquire(name, lease)).await?;
        }
        while !self.open.is_empty() {
            match self.next().await? {
                (Call::AcquireLock(asked), Answer::AcquireLock(granted)) => {
                    self.send(self.release(asked.lock_name, &granted)).await?;
                }
                (Call::ReleaseLock(asked), Answer::ReleaseLock(_)) => {
                    if let Some(begun) = begun.remove(&asked.lock_name) {
                        took(begun.elapsed());
                    }
                    if let Some(name) = names.next() {
                        begun.insert(name.clone(), Instant::now());
                        self.send(self.acquire(name, lease)).await?;
                    }
                }
                _ => return Err(astray()),
            }
        }
        Ok(())
    }
}

/// Renews leases, thousands with one message, one message after the other. Gives for each lease the moment before its
/// renewal was sent.
pub(crate) async fn renew_all(
    node_channel: NodeChannel,
    leases: &[u64],
) -> Result<Vec<(u64, Instant)>, BenchProblem> {
    let mut conversation = Conversation::open(node_channel).await?;
    let mut renewed = Vec::with_capacity(leases.len());
    for lease_ids in leases.chunks(LEASES_A_MESSAGE) {
        let sent = Instant::now();
        let call = Call::RenewLeases(RenewLeases { lease_ids: lease_ids.to_vec(), holds: Vec::new() });
        let Answer::RenewLeases(answer) = conversation.ask(call).await? else { return Err(astray()) };
        for renewal in answer.renewals {
            if !renewal.error_reason.is_empty() {
                let problem =
                    format!("lowkey: lease {} is lost: {}", renewal.lease_id, renewal.error_message);
                return Err(BenchProblem::wrong(problem));
            }
            renewed.push((renewal.lease_id, sent));
        }
    }
    Ok(renewed)
}

fn broken(status: Status) -> BenchProblem {
    BenchProblem::failed(format!("lowkey: the session stream broke: {}", status.message()))
}

fn ended() -> BenchProblem {
    BenchProblem::failed("lowkey: the node ended the session stream")
}

fn astray() -> BenchProblem {
    BenchProblem::wrong("lowkey: an answer to another question")
}
