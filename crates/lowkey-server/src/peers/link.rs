//! The link of one node to one other node.
//!
//! One task keeps a connection for messages (`outlet.rs`). Two tasks share another connection, which tonic
//! makes and remakes: one for snapshots, one for forwarded requests. The tasks end when the link is
//! dropped.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use lowkey_core::{KeyHash, MemberId};
use tokio::sync::{Mutex, mpsc};
use tokio::task::JoinSet;
use tokio::time::sleep;
use tonic::Status;
use tonic::transport::Channel;

use super::Hello;
use super::complaints::{OfMember, Rarely, name_of};
use super::dial::Dial;
use super::forward::{Forward, forward_requests};
use super::hello::says_key_needed;
use super::outlet::{Outlet, keep_connected};
use super::proto::peer_client::PeerClient;
use super::snapshots::{Outgoing, send_snapshots};
use crate::lane::Lanes;

/// How long connecting may take.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_millis(500);
/// The pause before a broken link is made again.
pub(super) const RETRY_PAUSE: Duration = Duration::from_millis(50);
/// The pause before a task that panicked starts again.
const PANIC_PAUSE: Duration = Duration::from_secs(1);
/// How many requests may wait for a slow leader.
const FORWARDS_MAX: usize = 16_384;
/// The largest message of a call: a list of locks that was forwarded.
pub(super) const CALL_BYTES_MAX: usize = 64 * 1024 * 1024;

/// The near end of a link. Dropping it ends the link.
pub(crate) struct Link {
    pub(super) address: String,
    /// The key that the member must have; none for one that has none yet.
    pub(super) key: Option<KeyHash>,
    pub(super) outlet: Outlet,
    /// What is sent at the end of this turn.
    pub(super) frames: Vec<u8>,
    pub(super) snapshots: mpsc::Sender<Outgoing>,
    pub(super) forwarder: mpsc::Sender<Forward>,
    _tasks: JoinSet<()>,
}

/// What the tasks of a link have in common.
#[derive(Clone)]
pub(super) struct Wire {
    pub(super) hello: Arc<Hello>,
    pub(super) lanes: Lanes,
    pub(super) to: MemberId,
    pub(super) client: PeerClient<Channel>,
    pub(super) dial: Dial,
    pub(super) told: OfMember,
}

impl Wire {
    /// A call was refused. If the member wants to be called encrypted, the next call is.
    pub(super) fn heed(&mut self, refusal: &Status) {
        if says_key_needed(refusal) && self.dial.encrypt() {
            self.client = client(&self.dial);
        }
    }
}

/// The node that a link leads to.
pub(super) struct Goal {
    pub(super) member: MemberId,
    pub(super) address: String,
    pub(super) key: Option<KeyHash>,
}

impl Link {
    /// Must be called within the runtime.
    pub(super) fn new(hello: Arc<Hello>, lanes: Lanes, goal: Goal, complaints: &mut Rarely) -> Self {
        let Goal { member: to, address, key } = goal;
        let outlet = Outlet::default();
        let (snapshots, snapshot_queue) = mpsc::channel(1);
        let (forwarder, forwards) = mpsc::channel(FORWARDS_MAX);
        let mut tasks = JoinSet::new();
        match Dial::new(Arc::clone(&hello.tls), address.clone(), key) {
            Ok(dial) => {
                let client = client(&dial);
                let told = OfMember::new(lanes.clone());
                let wire = Wire { hello, lanes: lanes.clone(), to, client, dial, told };
                let goal = (to, lanes);
                let (near, messages) = (wire.clone(), outlet.clone());
                tasks.spawn(keep_up(goal.clone(), "messages", move || {
                    keep_connected(near.clone(), messages.clone())
                }));
                let (near, queue) = (wire.clone(), Arc::new(Mutex::new(snapshot_queue)));
                tasks.spawn(keep_up(goal.clone(), "snapshots", move || {
                    send_snapshots(near.clone(), Arc::clone(&queue))
                }));
                let forwards = Arc::new(Mutex::new(forwards));
                tasks.spawn(keep_up(goal, "requests", move || {
                    forward_requests(wire.clone(), Arc::clone(&forwards))
                }));
            }
            Err(error) if !complaints.is_news(&address) => drop(error),
            Err(error) => {
                let node = name_of(to, &lanes);
                tracing::error!(member = to.0, node, address, %error, "a member's address cannot be used");
            }
        }
        Self { address, key, outlet, frames: Vec::new(), snapshots, forwarder, _tasks: tasks }
    }
}

/// A client for calls, which connects when it is first used.
pub(super) fn client(dial: &Dial) -> PeerClient<Channel> {
    PeerClient::new(dial.channel())
        .max_decoding_message_size(CALL_BYTES_MAX)
        .max_encoding_message_size(CALL_BYTES_MAX)
}

/// Runs a task of a link, and starts it again if it panics. Input from another node must not end a link for
/// ever while the node seems well.
async fn keep_up<F: Future<Output = ()>>((to, lanes): (MemberId, Lanes), what: &str, begin: impl Fn() -> F) {
    while AssertUnwindSafe(begin()).catch_unwind().await.is_err() {
        tracing::error!(
            member = to.0,
            node = name_of(to, &lanes),
            "a link to a member panicked ({what}); it begins again"
        );
        sleep(PANIC_PAUSE).await;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;
    use crate::peers::hello::tests::status;

    #[tokio::test(start_paused = true)]
    async fn a_task_that_panics_begins_again_and_one_that_ends_does_not() {
        let begun = AtomicU32::new(0);
        let lanes = crate::lane::tests::lanes(status(vec![], &[], 1));
        keep_up((MemberId(2), lanes), "tests", async || {
            assert!(begun.fetch_add(1, Ordering::Relaxed) > 1, "as it is meant to");
        })
        .await;
        assert_eq!(begun.into_inner(), 3);
    }
}
