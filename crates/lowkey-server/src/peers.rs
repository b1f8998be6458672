//! How the nodes of a cluster reach each other.
//!
//! Every node keeps one link to every other node. A link has two connections: one for Raft messages
//! ([`messages`]), and one for a stream of forwarded requests and, when one is due, a snapshot. Links come
//! and go with the members. A broken link is made again for as long as its member is there. Queues are
//! bounded. What does not fit is dropped and reported, which Raft tolerates.
//!
//! Each call names its sender and its receiver. The receiving side checks both before it reads anything
//! else ([`hello`]). Both ends of a connection prove with their keys who they are ([`tls`]).

mod callers;
mod complaints;
mod dial;
mod forward;
mod frames;
pub(crate) mod hello;
pub(crate) mod known;
mod link;
mod messages;
mod outlet;
mod seats;
mod server;
mod snapshots;
pub(crate) mod tls;
mod vouching;

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use lowkey_core::MemberId;
use lowkey_replica::{Message, MessageType, Report, Status, wire};
use tokio::sync::mpsc;

use complaints::Rarely;
pub(crate) use forward::{Forward, ForwardError, Forwarded};
use frames::add_frame;
pub(crate) use hello::Hello;
use hello::{Caller, may_be_newer};
use link::{Goal, Link};
pub(crate) use server::router;
use snapshots::{Delivery, Outgoing};
pub(crate) use vouching::ask_to_join;

use crate::lane::{Lane, Lanes};

/// Generated from `proto/lowkey/peer/v1/peer.proto`.
#[allow(missing_docs, unreachable_pub, clippy::all, reason = "generated code; documented in the proto file")]
pub(crate) mod proto {
    tonic::include_proto!("lowkey.peer.v1");
}

/// How many unregistered nodes are called, or heard, at most. A real cluster never has a crowd of them.
const STRANGERS_MAX: usize = 16;
/// How many bytes of memory a link keeps for its messages between turns.
const FRAMES_KEPT_BYTES: usize = 64 * 1024;

/// The links of a node. The messages of all its replicas leave here.
pub(crate) struct Links {
    hello: Arc<Hello>,
    lanes: Lanes,
    runtime: tokio::runtime::Handle,
    links: HashMap<MemberId, Link>,
    /// Where each node was last heard from, as it said itself. This is newer than the address that the
    /// members agreed on. The node that was heard most recently is last.
    ///
    /// Invariant: each entry is a registered member with its own identity, or one of at most
    /// [`STRANGERS_MAX`] others.
    seen: VecDeque<(MemberId, String)>,
    forwarders: Forwarders,
    complaints: Rarely,
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
        lanes: Lanes,
        runtime: tokio::runtime::Handle,
        forwarders: Forwarders,
    ) -> Self {
        let (links, seen) = (HashMap::new(), VecDeque::new());
        let complaints = Rarely::default();
        Self { hello, lanes, runtime, links, seen, forwarders, complaints }
    }

    /// Keeps links to exactly the members, at their addresses, and to nodes that were heard from and may be
    /// members that this node has not learned of yet. When a member leaves the register, its link stays
    /// until the configuration has changed: that change may need the member's own acknowledgement.
    pub(crate) fn follow(&mut self, status: &Status) {
        self.hello.known.learn_register(status);
        self.seen.retain(|(member, _)| is_registered(*member, status) || is_welcome(*member, status));
        for member in &status.members {
            // A member that is only expected has not proved its identity. It must call first. Until then
            // this node does not reveal its own identity to an address that it knows only by hearsay.
            if member.member != self.hello.own && member.node.identity.is_some() {
                let seen = self.seen.iter().find(|(seen, _)| *seen == member.member);
                let address = seen.map_or(&member.node.raft_address, |(_, address)| address).clone();
                self.keep(member.member, address, status);
            }
        }
        let is_gone = |member: &MemberId| {
            !is_registered(*member, status)
                && !status.leaving.contains(member)
                && !self.seen.iter().any(|(seen, _)| seen == member)
        };
        for member in self.links.keys().copied().filter(is_gone).collect::<Vec<_>>() {
            self.unlink(member);
        }
    }

    /// A node was heard from, and says where it can be reached. A node with a false identity is not called:
    /// it would hear from this node what only members may know.
    pub(crate) fn seen(&mut self, caller: Caller, status: &Status) {
        let is_itself = caller.is_registered(status);
        let Caller { member, raft_address, .. } = caller;
        if member == self.hello.own || !(is_itself || is_welcome(member, status)) {
            return;
        }
        self.seen.retain(|(seen, _)| *seen != member);
        self.seen.push_back((member, raft_address.clone()));
        self.keep(member, raft_address, status);
        let is_strange = |seen: &(MemberId, String)| !is_registered(seen.0, status);
        if self.seen.iter().filter(|seen| is_strange(seen)).count() > STRANGERS_MAX
            && let Some(oldest) = self.seen.iter().position(is_strange)
            && let Some((member, _)) = self.seen.remove(oldest)
        {
            self.unlink(member);
        }
    }

    fn unlink(&mut self, member: MemberId) {
        self.links.remove(&member);
        self.forwarders.remove(member);
    }

    fn keep(&mut self, member: MemberId, address: String, status: &Status) {
        // A member that gets its key is called anew, and encrypted from then on.
        let key = self.hello.known.key(member, status).flatten();
        if self.links.get(&member).is_some_and(|link| link.address == address && link.key == key) {
            return;
        }
        tracing::debug!(member = member.0, address, "linking to a member");
        let _guard = self.runtime.enter();
        let (hello, lanes) = (Arc::clone(&self.hello), self.lanes.clone());
        let link = Link::new(hello, lanes, Goal { member, address, key }, &mut self.complaints);
        self.forwarders.set(member, link.forwarder.clone());
        self.links.insert(member, link);
    }

    /// Sends the messages of a lane's replica, all that are for one member at once.
    pub(crate) fn send(&mut self, lane: &Arc<Lane>, messages: Vec<Message>, reports: Vec<Report>) {
        for message in messages {
            let to = MemberId(message.to);
            if message.get_msg_type() == MessageType::MsgSnapshot {
                self.send_snapshot(lane, to, message);
            } else {
                self.add(lane, to, &wire::encode_message(lane.group, message));
            }
        }
        for report in reports {
            self.add(lane, report.to, &wire::encode_report(lane.group, report));
        }
        for (to, link) in &mut self.links {
            if !link.frames.is_empty() && !link.outlet.send(&link.frames) {
                lane.inbox.report(unreachable(*to));
            }
            link.frames.clear();
            // Do not keep the memory of one large message for all the small ones.
            link.frames.shrink_to(FRAMES_KEPT_BYTES);
        }
    }

    /// Sends what members were too slow to take. Call this regularly.
    pub(crate) fn flush(&self) {
        self.links.values().for_each(|link| link.outlet.flush());
    }

    fn add(&mut self, lane: &Lane, to: MemberId, message: &[u8]) {
        match self.links.get_mut(&to) {
            Some(link) => add_frame(&mut link.frames, message),
            None => lane.inbox.report(unreachable(to)),
        }
    }

    fn send_snapshot(&self, lane: &Arc<Lane>, to: MemberId, message: Message) {
        let outgoing = Outgoing { message, delivery: Delivery::new(Arc::clone(lane), to) };
        if let Some(link) = self.links.get(&to) {
            // A snapshot that cannot be sent reports that itself.
            let _ = link.snapshots.try_send(outgoing);
        }
    }
}

fn is_registered(member: MemberId, status: &Status) -> bool {
    status.members.iter().any(|known| known.member == member)
}

/// True for a node that is not registered, but may be a member nevertheless.
fn is_welcome(member: MemberId, status: &Status) -> bool {
    !is_registered(member, status) && (status.members.is_empty() || may_be_newer(member, status))
}

fn unreachable(member: MemberId) -> crate::lane::inbox::Event {
    crate::lane::inbox::Event::Replica(lowkey_replica::Input::Unreachable(member))
}

#[cfg(test)]
mod tests {
    use super::hello::tests::{hello, member, status};
    use super::*;

    fn links() -> Links {
        let lanes = crate::lane::tests::lanes(status(vec![], &[], 1));
        Links::new(Arc::new(hello(1)), lanes, tokio::runtime::Handle::current(), Forwarders::default())
    }

    fn caller(member: u64, identity: u8, raft_address: &str) -> Caller {
        Caller {
            member: MemberId(member),
            identity: lowkey_core::NodeIdentity([identity; 16]),
            raft_address: raft_address.to_owned(),
            proof: tls::Proof(None),
        }
    }

    fn address(links: &Links, member: u64) -> Option<&str> {
        links.links.get(&MemberId(member)).map(|link| link.address.as_str())
    }

    #[tokio::test]
    async fn a_member_is_called_where_it_says_and_nobody_else_in_its_place() {
        let members = vec![member(1, Some(1)), member(2, Some(2)), member(3, None)];
        let electing = Status { leader: None, ..status(members, &[4], 5) };
        let mut links = links();
        links.follow(&electing);
        for (number, identity) in [(2, 9), (3, 3), (4, 4), (5, 5)] {
            links.seen(caller(number, identity, "127.0.0.1:1"), &electing);
        }
        assert_eq!(
            [2, 3, 4, 5].map(|number| address(&links, number)),
            [Some("127.0.0.1:7000"), None, None, None],
            "nobody calls one that is only expected"
        );
        links.seen(caller(2, 2, "127.0.0.1:2"), &electing);
        assert_eq!(address(&links, 2), Some("127.0.0.1:2"));
        links.follow(&electing);
        assert_eq!(address(&links, 2), Some("127.0.0.1:2"));
    }

    #[tokio::test]
    async fn who_may_be_newer_is_called_for_as_long_as_nobody_else_leads() {
        let both = || vec![member(1, Some(1)), member(2, Some(2))];
        let electing = Status { leader: None, ..status(both(), &[], 2) };
        let mut links = links();
        links.seen(caller(3, 3, "127.0.0.1:3"), &electing);
        links.follow(&Status { term: 3, ..electing });
        assert_eq!(address(&links, 3), Some("127.0.0.1:3"), "it waits for an answer");
        links.follow(&Status { leader: Some(MemberId(3)), ..status(both(), &[], 2) });
        assert_eq!(address(&links, 3), Some("127.0.0.1:3"), "it leads");
        links.follow(&status(both(), &[], 2));
        assert_eq!(address(&links, 3), None);
        assert!(links.seen.is_empty());
    }

    #[tokio::test]
    async fn a_crowd_of_strangers_is_not_called() {
        for members in [vec![], vec![member(1, Some(1)), member(2, Some(2))]] {
            let electing = Status { leader: None, ..status(members, &[], 2) };
            let mut links = links();
            links.follow(&electing);
            let known = links.links.len();
            for number in 10..1_000 {
                links.seen(caller(number, 7, "127.0.0.1:1"), &electing);
            }
            assert_eq!((links.links.len(), links.seen.len()), (known + STRANGERS_MAX, STRANGERS_MAX));
            assert!(address(&links, 999).is_some(), "the last to come");
        }
    }
}
