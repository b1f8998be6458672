//! Requests that this node passes on to the leader, on one stream for all.
//!
//! A forwarder never sends a request twice. What was not sent was not done; what was sent and not
//! answered may have been, and the two are told apart.

use std::collections::HashMap;
use std::sync::Arc;

use lowkey_core::MemberId;
use tokio::sync::{Mutex, mpsc, oneshot};
use tokio::time::{Instant, sleep};
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;

use super::complaints::OfMember;
use super::link::Wire;
use super::proto::forward_reply::Outcome;
use super::proto::{ForwardReply, ForwardRequest};

/// What is passed on.
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
    pub(crate) operation: u32,
    pub(crate) request: Vec<u8>,
    pub(crate) answer: oneshot::Sender<Result<Outcome, ForwardError>>,
}

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ForwardError {
    /// It was never sent: nothing was done.
    NotSent,
    /// It was sent, and then the link broke: it may have been done.
    Lost,
}

/// Requests that may be on the stream's way out.
const OUTGOING_MAX: usize = 1024;
const RETRY_PAUSE: std::time::Duration = std::time::Duration::from_millis(20);

/// Opens the stream when the first request comes, and anew after it broke.
pub(super) async fn forward_requests(mut wire: Wire, forwards: Arc<Mutex<mpsc::Receiver<Forward>>>) {
    let mut forwards = forwards.lock().await;
    while let Some(first) = forwards.recv().await {
        // What no stream carries needs not be taken back.
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
    /// Runs until the stream breaks or the link ends. Whoever waits then is told.
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
        let Forwarded { number, operation, request, answer } = forwarded;
        self.waiting.insert(number, answer);
        let message = ForwardRequest { number, operation, request, abandon: false };
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
            // A stream that is gone has told the leader already.
            let _ = self.sender.send(message).await;
        }
    }

    fn answer(&mut self, reply: ForwardReply) {
        if let Some(caller) = self.waiting.remove(&reply.number) {
            let _ = caller.send(reply.outcome.ok_or(ForwardError::Lost));
        }
    }
}
