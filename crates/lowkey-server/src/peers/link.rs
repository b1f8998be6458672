//! One node's link to one other.
//!
//! One task keeps a connection for messages (`outlet.rs`); two share another one, that tonic makes and remakes: for
//! snapshots and for forwarded requests. They end when the link is dropped.

use std::sync::Arc;
use std::time::Duration;

use lowkey_core::MemberId;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tonic::transport::{Channel, Endpoint};

use super::Hello;
use super::complaints::OfMember;
use super::forward::{Forward, forward_requests};
use super::outlet::{Outlet, keep_connected};
use super::proto::peer_client::PeerClient;
use super::snapshots::{Outgoing, send_snapshots};
use crate::inbox::Inbox;
use crate::storage::SnapshotFiles;

/// How long making a connection may take.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_millis(500);
/// How long to wait before a broken link is made again.
pub(super) const RETRY_PAUSE: Duration = Duration::from_millis(50);
/// Requests that may wait for a slow leader.
const FORWARDS_MAX: usize = 16_384;
/// The largest message: an append of the largest size.
pub(super) const FRAME_BYTES_MAX: usize = 64 * 1024 * 1024;

/// The near end of a link. Dropping it ends the link.
pub(crate) struct Link {
    pub(super) address: String,
    pub(super) outlet: Outlet,
    /// What is to be sent at the end of this turn.
    pub(super) frames: Vec<u8>,
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
        let outlet = Outlet::default();
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
                tasks.spawn(keep_connected(wire.clone(), address.clone(), outlet.clone()));
                tasks.spawn(send_snapshots(wire.clone(), snapshot_files, snapshot_queue));
                tasks.spawn(forward_requests(wire, forwards));
            }
            Err(error) => {
                tracing::error!(member = to.0, address, %error, "a member's address cannot be used");
            }
        }
        Self { address, outlet, frames: Vec::new(), snapshots, forwarder, _tasks: tasks }
    }
}
