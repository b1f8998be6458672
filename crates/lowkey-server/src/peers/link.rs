//! One node's link to one other.
//!
//! Three tasks share a connection that tonic makes and remakes: one for messages, one for snapshots,
//! one for forwarded requests. They end when the link is dropped.

use std::sync::Arc;
use std::time::Duration;

use lowkey_core::MemberId;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Endpoint};

use super::complaints::OfMember;
use super::forward::{Forward, forward_requests};
use super::hello::says_removed;
use super::proto::MessageFrame;
use super::proto::peer_client::PeerClient;
use super::snapshots::{Outgoing, send_snapshots};
use super::{FRAMES_MAX, Hello, unreachable};
use crate::inbox::{Event, Inbox};
use crate::storage::SnapshotFiles;

/// How long making a connection may take.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(500);
/// How long to wait before a broken link is made again.
const RETRY_PAUSE: Duration = Duration::from_millis(50);
/// Requests that may wait for a slow leader.
const FORWARDS_MAX: usize = 16_384;
/// The largest frame: an append of the largest size and what is batched with it.
pub(super) const FRAME_BYTES_MAX: usize = 64 * 1024 * 1024;

/// The near end of a link. Dropping it ends the link.
pub(crate) struct Link {
    pub(super) address: String,
    pub(super) messages: mpsc::Sender<Vec<Vec<u8>>>,
    pub(super) snapshots: mpsc::Sender<Outgoing>,
    pub(super) forwarder: mpsc::Sender<Forward>,
    _tasks: JoinSet<()>,
}

/// What the tasks of a link have in common.
#[derive(Clone)]
pub(super) struct Wire {
    pub(super) hello: Arc<Hello>,
    pub(super) inbox: Arc<Inbox>,
    pub(super) to: MemberId,
    pub(super) client: PeerClient<Channel>,
    pub(super) told: OfMember,
}

impl Link {
    /// Must be called within the runtime.
    pub(super) fn new(
        hello: Arc<Hello>,
        inbox: Arc<Inbox>,
        snapshot_files: SnapshotFiles,
        to: MemberId,
        address: String,
    ) -> Self {
        let (messages, frames) = mpsc::channel(FRAMES_MAX);
        let (snapshots, snapshot_queue) = mpsc::channel(1);
        let (forwarder, forwards) = mpsc::channel(FORWARDS_MAX);
        let mut tasks = JoinSet::new();
        match Endpoint::from_shared(format!("http://{address}")) {
            Ok(endpoint) => {
                let channel = endpoint
                    .connect_timeout(CONNECT_TIMEOUT)
                    .tcp_nodelay(true)
                    .http2_keep_alive_interval(Duration::from_secs(1))
                    .keep_alive_timeout(Duration::from_secs(2))
                    .keep_alive_while_idle(true)
                    .connect_lazy();
                let client = PeerClient::new(channel)
                    .max_decoding_message_size(FRAME_BYTES_MAX)
                    .max_encoding_message_size(FRAME_BYTES_MAX);
                let wire = Wire { hello, inbox, to, client, told: OfMember::default() };
                tasks.spawn(send_messages(wire.clone(), frames));
                tasks.spawn(send_snapshots(wire.clone(), snapshot_files, snapshot_queue));
                tasks.spawn(forward_requests(wire, forwards));
            }
            Err(error) => {
                tracing::error!(member = to.0, address, %error, "a member's address cannot be used");
            }
        }
        Self { address, messages, snapshots, forwarder, _tasks: tasks }
    }
}

/// Keeps a stream of messages open for as long as the link lives.
async fn send_messages(mut wire: Wire, mut frames: mpsc::Receiver<Vec<Vec<u8>>>) {
    loop {
        let since = Instant::now();
        let (sender, receiver) = mpsc::channel::<MessageFrame>(FRAMES_MAX);
        let request = wire.hello.sign(wire.to, ReceiverStream::new(receiver));
        let mut call = Box::pin(wire.client.messages(request));
        let ended = loop {
            tokio::select! {
                biased;
                ended = &mut call => break ended,
                frame = frames.recv() => {
                    let Some(messages) = frame else { return };
                    if sender.try_send(MessageFrame { messages }).is_err() {
                        wire.inbox.report(unreachable(wire.to));
                    }
                }
            }
        };
        drop(call);
        if ended.as_ref().is_err_and(says_removed) {
            wire.inbox.report(Event::Removed);
        }
        wire.told.failed(wire.to, "messages", since, ended.err());
        wire.inbox.report(unreachable(wire.to));
        // What waited is old by now; Raft sends what is still needed anew.
        while frames.try_recv().is_ok() {}
        sleep(RETRY_PAUSE).await;
    }
}
