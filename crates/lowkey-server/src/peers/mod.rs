//! How the nodes of a cluster reach each other.
//!
//! Every node keeps one link to every other: a connection for Raft messages ([`messages`]), and one for a
//! stream of forwarded requests and, when one is due, a snapshot. Links come and go with the members; a
//! broken one is made again for as long as the member is there. Queues are bounded, and what does not fit
//! is dropped and reported: Raft lives with that.
//!
//! Each call says who it is from and whom it is for, and the receiving side checks it before it
//! reads anything ([`hello`]).

mod complaints;
mod forward;
mod frames;
pub(crate) mod hello;
mod link;
mod messages;
mod outlet;
mod server;
mod snapshots;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use lowkey_core::MemberId;
use lowkey_replica::{Message, MessageType, Report, Status, wire};
use tokio::sync::mpsc;

pub(crate) use forward::{Forward, ForwardError, Forwarded};
use frames::add_frame;
pub(crate) use hello::Hello;
use link::Link;
pub(crate) use server::router;
use snapshots::{Delivery, Outgoing};

use crate::inbox::Inbox;
use crate::storage::{GROUP, SnapshotFiles};

/// Generated from `proto/lowkey/peer/v1/peer.proto`.
#[allow(missing_docs, unreachable_pub, clippy::all, reason = "generated code; documented in the proto file")]
pub(crate) mod proto {
    tonic::include_proto!("lowkey.peer.v1");
}

/// Bytes of memory that a link keeps for its messages between turns.
const FRAMES_KEPT_BYTES: usize = 64 * 1024;

/// The links of the replica: where its messages go.
pub(crate) struct Links {
    hello: Arc<Hello>,
    inbox: Arc<Inbox>,
    runtime: tokio::runtime::Handle,
    snapshot_files: SnapshotFiles,
    links: HashMap<MemberId, Link>,
    /// Where a member was last heard from, in its own words; newer than what the members agreed on.
    seen: HashMap<MemberId, String>,
    forwarders: Forwarders,
}

/// The forwarding side of all links, shared with the service.
#[derive(Clone, Default)]
pub(crate) struct Forwarders(Arc<Mutex<HashMap<MemberId, mpsc::Sender<Forward>>>>);

impl Forwarders {
    pub(crate) fn get(&self, member: MemberId) -> Option<mpsc::Sender<Forward>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get(&member).cloned()
    }

    fn set(&self, member: MemberId, forwarder: mpsc::Sender<Forward>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(member, forwarder);
    }

    fn remove(&self, member: MemberId) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(&member);
    }
}

impl Links {
    pub(crate) fn new(
        hello: Arc<Hello>,
        inbox: Arc<Inbox>,
        runtime: tokio::runtime::Handle,
        forwarders: Forwarders,
        snapshot_files: SnapshotFiles,
    ) -> Self {
        let (links, seen) = (HashMap::new(), HashMap::new());
        Self { hello, inbox, runtime, snapshot_files, links, seen, forwarders }
    }

    /// Keeps links to exactly the members, at their addresses, and to who was heard from before this
    /// node has learned of any members. A link outlives its member's name in the register until the
    /// configuration has changed: that change may need the member's own acknowledgement.
    pub(crate) fn follow(&mut self, status: &Status) {
        for member in &status.members {
            if member.member != self.hello.own {
                let address = self.seen.get(&member.member).unwrap_or(&member.node.raft_address).clone();
                self.keep(member.member, address);
            }
        }
        if !status.members.is_empty() {
            let gone = |member: &MemberId| {
                !status.members.iter().any(|known| known.member == *member)
                    && !status.leaving.contains(member)
            };
            for member in self.links.keys().copied().filter(gone).collect::<Vec<_>>() {
                self.links.remove(&member);
                self.forwarders.remove(member);
            }
        }
    }

    /// A member was heard from, and says where it can be reached.
    pub(crate) fn seen(&mut self, member: MemberId, raft_address: String) {
        if member != self.hello.own {
            self.seen.insert(member, raft_address.clone());
            self.keep(member, raft_address);
        }
    }

    fn keep(&mut self, member: MemberId, address: String) {
        if self.links.get(&member).is_some_and(|link| link.address == address) {
            return;
        }
        tracing::debug!(member = member.0, address, "linking to a member");
        let _guard = self.runtime.enter();
        let (hello, inbox) = (Arc::clone(&self.hello), Arc::clone(&self.inbox));
        let link = Link::new(hello, inbox, self.snapshot_files.clone(), member, address);
        self.forwarders.set(member, link.forwarder.clone());
        self.links.insert(member, link);
    }

    /// Sends what the replica says, all that is for one member at once.
    pub(crate) fn send(&mut self, messages: Vec<Message>, reports: Vec<Report>) {
        for message in messages {
            let to = MemberId(message.to);
            if message.get_msg_type() == MessageType::MsgSnapshot {
                self.send_snapshot(to, message);
            } else {
                self.add(to, &wire::encode_message(GROUP, message));
            }
        }
        for report in reports {
            self.add(report.to, &wire::encode_report(GROUP, report));
        }
        for (to, link) in &mut self.links {
            if !link.frames.is_empty() && !link.outlet.send(&link.frames) {
                self.inbox.report(unreachable(*to));
            }
            link.frames.clear();
            // What one large message needed is not kept for all the small ones.
            link.frames.shrink_to(FRAMES_KEPT_BYTES);
        }
    }

    /// Sends what members were too slow to take. To be called now and then.
    pub(crate) fn flush(&self) {
        self.links.values().for_each(|link| link.outlet.flush());
    }

    fn add(&mut self, to: MemberId, message: &[u8]) {
        match self.links.get_mut(&to) {
            Some(link) => add_frame(&mut link.frames, message),
            None => self.inbox.report(unreachable(to)),
        }
    }

    fn send_snapshot(&self, to: MemberId, message: Message) {
        let outgoing = Outgoing { message, delivery: Delivery::new(Arc::clone(&self.inbox), to) };
        if let Some(link) = self.links.get(&to) {
            // What cannot be sent reports itself.
            let _ = link.snapshots.try_send(outgoing);
        }
    }
}

fn unreachable(member: MemberId) -> crate::inbox::Event {
    crate::inbox::Event::Replica(lowkey_replica::Input::Unreachable(member))
}
