//! Requests that this node forwards to the leader, all on one stream.
//!
//! A forwarder never sends a request twice. A request that was not sent was not done. A request that was
//! sent but not answered may have been done. Callers are told which of the two it is.

use std::collections::HashMap;
use std::sync::Arc;

use lowkey_core::{Caller, GroupId, MemberId};
use tokio::sync::{Mutex, mpsc, oneshot};
use tokio::time::{Instant, sleep};
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;

use super::complaints::OfMember;
use super::link::Wire;
use super::proto::forward_reply::Outcome;
use super::proto::{ForwardReply, ForwardRequest};

/// A message of the forwarder.
pub(crate) enum Forward {
    /// A request.
    Request(Forwarded),
    /// The caller of this request is gone.
    Abandon(u64),
}

/// A request on its way, and where its answer goes.
pub(crate) struct Forwarded {
    /// Unique among all requests of this process.
    pub(crate) number: u64,
    pub(crate) group: GroupId,
    pub(crate) operation: u32,
    pub(crate) request: Vec<u8>,
    pub(crate) caller: Caller,
    pub(crate) answer: oneshot::Sender<Result<Outcome, ForwardError>>,
}

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ForwardError {
    /// It was never sent, so nothing was done.
    NotSent,
    /// It was sent, and then the link broke. It may have been done.
    Lost,
}

/// How many requests may wait in the stream to be sent.
const OUTGOING_MAX: usize = 1024;
const RETRY_PAUSE: std::time::Duration = std::time::Duration::from_millis(20);

/// Opens the stream when the first request comes, and again after it broke.
pub(super) async fn forward_requests(mut wire: Wire, forwards: Arc<Mutex<mpsc::Receiver<Forward>>>) {
    let mut forwards = forwards.lock().await;
    while let Some(first) = forwards.recv().await {
        // An abandoned request that no stream carries need not be taken back.
        let Forward::Request(first) = first else { continue };
        let (sender, receiver) = mpsc::channel::<ForwardRequest>(OUTGOING_MAX);
        let call = wire.hello.sign(wire.to, ReceiverStream::new(receiver));
        let since = Instant::now();
        match wire.client.forward(call).await {
            Ok(response) => {
                wire.told.reached();
                let mut stream = Stream { to: wire.to, sender, waiting: HashMap::new() };
                stream.run(first, &mut forwards, response.into_inner(), &wire.told).await;
            }
            Err(status) => {
                wire.heed(&status);
                wire.told.failed(wire.to, "requests", since, Some(status));
                refuse(first);
                while let Ok(waiting) = forwards.try_recv() {
                    if let Forward::Request(waiting) = waiting {
                        refuse(waiting);
                    }
                }
                sleep(RETRY_PAUSE).await;
            }
        }
    }
}

fn refuse(forwarded: Forwarded) {
    // A caller that has gone needs no answer.
    let _ = forwarded.answer.send(Err(ForwardError::NotSent));
}

/// A stream that is open.
struct Stream {
    to: MemberId,
    sender: mpsc::Sender<ForwardRequest>,
    waiting: HashMap<u64, oneshot::Sender<Result<Outcome, ForwardError>>>,
}

impl Stream {
    /// Runs until the stream breaks or the link ends. Callers that still wait then are told.
    async fn run(
        &mut self,
        first: Forwarded,
        forwards: &mut mpsc::Receiver<Forward>,
        mut replies: tonic::Streaming<ForwardReply>,
        told: &OfMember,
    ) {
        let since = Instant::now();
        self.send(first).await;
        loop {
            tokio::select! {
                reply = replies.next() => match reply {
                    Some(Ok(reply)) => self.answer(reply),
                    Some(Err(status)) => {
                        told.failed(self.to, "requests", since, Some(status));
                        break;
                    }
                    None => break,
                },
                forwarded = forwards.recv() => match forwarded {
                    Some(Forward::Request(forwarded)) => self.send(forwarded).await,
                    Some(Forward::Abandon(number)) => self.abandon(number).await,
                    None => break,
                },
            }
        }
        for (_, caller) in self.waiting.drain() {
            let _ = caller.send(Err(ForwardError::Lost));
        }
    }

    async fn send(&mut self, forwarded: Forwarded) {
        let Forwarded { number, group, operation, request, caller, answer } = forwarded;
        self.waiting.insert(number, answer);
        let group = group.number_to_tell();
        let message = ForwardRequest {
            number,
            operation,
            request,
            abandon: false,
            group,
            caller: Some((&caller).into()),
        };
        if self.sender.send(message).await.is_err()
            && let Some(caller) = self.waiting.remove(&number)
        {
            let _ = caller.send(Err(ForwardError::NotSent));
        }
    }

    /// The caller has gone: the leader need not keep anything for it.
    async fn abandon(&mut self, number: u64) {
        if self.waiting.remove(&number).is_some() {
            let message = ForwardRequest { number, abandon: true, ..ForwardRequest::default() };
            // If the stream is gone, the leader has noticed that already.
            let _ = self.sender.send(message).await;
        }
    }

    fn answer(&mut self, reply: ForwardReply) {
        if let Some(caller) = self.waiting.remove(&reply.number) {
            let _ = caller.send(reply.outcome.ok_or(ForwardError::Lost));
        }
    }
}
