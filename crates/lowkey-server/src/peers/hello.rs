//! The sender and the receiver of a call between nodes, checked on every call before anything else is read.
//!
//! These must not get a single message into this node's replica: a node of another cluster, a stranger, a
//! node that came back with another identity, one that says an identity and does not have its key.
//!
//! A member that is registered with a key must have proven that it has it: on every connection (`tls.rs`). Only a
//! member that has no key yet may come without encryption. That ends when all nodes are upgraded.

use std::sync::Arc;

use http::HeaderMap;
use lowkey_core::{ClusterId, KeyHash, MemberId, NodeIdentity};
use lowkey_replica::{RaftTick, Status};
use tonic::metadata::{MetadataMap, MetadataValue};
use tonic::{Code, Request, Status as GrpcStatus};

use super::known::Known;
use super::tls::{PeerTls, Proof};
use crate::operation::{parse_address, parse_hex};

const CLUSTER: &str = "lowkey-cluster";
const FROM: &str = "lowkey-from";
const IDENTITY: &str = "lowkey-identity";
const ADDRESS: &str = "lowkey-raft-address";
const TO: &str = "lowkey-to";
/// In milliseconds; left out by nodes of before, whose tick was the shortest.
const RAFT_TICK: &str = "lowkey-raft-tick-ms";
/// On a refusal: the caller was a member once and is none any more. It will never be let in again.
const REMOVED: &str = "lowkey-removed";
/// On a refusal: the caller has a key, and must use it.
const KEY_NEEDED: &str = "lowkey-key-needed";
/// On a refusal: the caller may be a member that this node has not heard of.
const UNKNOWN: &str = "lowkey-unknown";
/// How many characters of a caller's value are quoted.
const QUOTED_CHARS_MAX: usize = 40;
/// How many characters of another node's reason are told.
const CAUSE_CHARS_MAX: usize = 200;

/// The refusal of a member that was removed.
pub(crate) fn refuse_removed(member: MemberId) -> GrpcStatus {
    refuse(REMOVED, format!("member {member} was removed from this cluster"))
}

/// A refusal with a mark for programs.
fn refuse(mark: &'static str, cause: String) -> GrpcStatus {
    let mut metadata = MetadataMap::new();
    metadata.insert(mark, MetadataValue::from_static("true"));
    GrpcStatus::with_metadata(Code::PermissionDenied, cause, metadata)
}

/// True if a refusal says that this node must prove itself with its key.
pub(super) fn says_key_needed(status: &GrpcStatus) -> bool {
    status.code() == Code::PermissionDenied && status.metadata().contains_key(KEY_NEEDED)
}

/// True if a refusal of this node says that it does not know the caller, and might ask others.
pub(super) fn is_of_unknown(status: &GrpcStatus) -> bool {
    status.metadata().contains_key(UNKNOWN)
}

/// True if a refusal says that this node was removed.
pub(crate) fn says_removed(status: &GrpcStatus) -> bool {
    status.code() == Code::PermissionDenied && status.metadata().contains_key(REMOVED)
}

/// The refusal in an answer's headers, if there is one. `tonic` has such a function too, but it panics on
/// details that it cannot read, and the refusal may come from anyone.
pub(super) fn read_refusal(headers: &HeaderMap) -> Option<GrpcStatus> {
    let code = Code::from_bytes(headers.get("grpc-status")?.as_bytes());
    let cause = headers.get("grpc-message").map(|cause| unescaped(cause.as_bytes())).unwrap_or_default();
    let mut refusal = GrpcStatus::new(code, cut(&cause, CAUSE_CHARS_MAX));
    for mark in [REMOVED, KEY_NEEDED] {
        if headers.contains_key(mark) {
            refusal.metadata_mut().insert(mark, MetadataValue::from_static("true"));
        }
    }
    Some(refusal)
}

/// Decodes `%20` and the like.
fn unescaped(mut text: &[u8]) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    while let [first, rest @ ..] = text {
        let escaped = rest.first_chunk::<2>().filter(|_| *first == b'%');
        let byte = escaped.and_then(|digits| u8::from_str_radix(str::from_utf8(digits).ok()?, 16).ok());
        bytes.push(byte.unwrap_or(*first));
        text = if byte.is_some() { &rest[2..] } else { rest };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Limits how much is quoted of what others say.
fn cut(text: &str, chars_max: usize) -> String {
    text.chars().take(chars_max).collect()
}

/// This node's identity, as it tells its peers.
#[derive(Clone, Debug)]
pub(crate) struct Hello {
    pub(crate) cluster: ClusterId,
    pub(crate) own: MemberId,
    pub(crate) identity: NodeIdentity,
    pub(crate) raft_address: String,
    /// The base of its timing. It never changes while the node runs: to compare it once for a connection is enough.
    pub(crate) raft_tick: RaftTick,
    /// How it proves that.
    pub(crate) tls: Arc<PeerTls>,
    /// What it knows of the others' keys.
    pub(crate) known: Known,
}

/// A caller, as it describes itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Caller {
    pub(crate) member: MemberId,
    pub(crate) identity: NodeIdentity,
    pub(crate) raft_address: String,
    /// The key that it has proven to have.
    pub(crate) proof: Proof,
}

impl Caller {
    /// Lets the caller in, or says why not, according to what is applied here now. Ask again for as long as
    /// it is heard.
    pub(crate) fn check(&self, status: &Status, known: &Known) -> Result<(), GrpcStatus> {
        let member = self.member;
        if status.has_removed(member) {
            return Err(refuse_removed(member));
        }
        let registered = status.members.iter().find(|known| known.member == member);
        match registered.map(|registered| registered.node.identity) {
            Some(Some(identity)) if identity != self.identity => {
                let cause = format!("member {member} has another identity in this cluster");
                Err(GrpcStatus::permission_denied(cause))
            }
            Some(Some(_)) => self.check_key(known.key(member, status).flatten()),
            // Its identity went with its entry in the register, but it is still part of the quorum. Its key is
            // remembered.
            None if status.leaving.contains(&member) => match known.key(member, status) {
                Some(key) => self.check_key(key),
                None if !known.has_keys(status) => Ok(()),
                None => {
                    Err(refuse(UNKNOWN, format!("the key of member {member}, which leaves, is not known")))
                }
            },
            // A higher number may belong to a member that is newer than what this node has applied, and a
            // member that was expected may have come. It is heard only where that matters: by a node that
            // knows no members yet, during an election, or if it won one. While another node leads, a
            // newcomer has nothing to say to a node that has not heard of it.
            Some(None) | None
                if !status.members.is_empty() && status.leader.is_some_and(|leader| leader != member) =>
            {
                let cause = format!("member {member} is not known here yet");
                Err(GrpcStatus::permission_denied(cause))
            }
            Some(None) | None => match known.key(member, status) {
                Some(key) => self.check_key(key),
                // In a cluster of before nobody could prove anything.
                None if !known.has_keys(status) => Ok(()),
                None => {
                    let cause = format!("member {member} is not known here; asking those that are");
                    Err(refuse(UNKNOWN, cause))
                }
            },
        }
    }

    /// The caller must have proven that it has this key, if the member has one.
    fn check_key(&self, key: Option<KeyHash>) -> Result<(), GrpcStatus> {
        let member = self.member;
        match (key, self.proof.0) {
            (None, _) => Ok(()),
            (Some(key), Some(proven)) if key == proven => Ok(()),
            (Some(_), Some(_)) => Err(GrpcStatus::permission_denied(format!(
                "the caller says that it is member {member}, and has another key"
            ))),
            (Some(_), None) => Err(refuse(
                KEY_NEEDED,
                format!(
                    "member {member} has a key and must use it: nothing is taken from it without encryption"
                ),
            )),
        }
    }

    /// True if the caller has the identity that the member was registered with. No other node can have said
    /// this.
    pub(crate) fn is_registered(&self, status: &Status) -> bool {
        let known = status.members.iter().find(|known| known.member == self.member);
        known.is_some_and(|known| known.node.identity == Some(self.identity))
    }
}

/// True for a number that may belong to a member that is newer than what this node has applied, at a time
/// when that matters: see [`Caller::check`].
pub(super) fn may_be_newer(member: MemberId, status: &Status) -> bool {
    member > status.last_member && status.leader.is_none_or(|leader| leader == member)
}

impl Hello {
    /// Signs a call to a member.
    pub(crate) fn sign<T>(&self, to: MemberId, message: T) -> Request<T> {
        let mut request = Request::new(message);
        let fields = [
            (CLUSTER, self.cluster.to_string()),
            (FROM, self.own.to_string()),
            (IDENTITY, self.identity.to_string()),
            (ADDRESS, self.raft_address.clone()),
            (TO, to.to_string()),
            (RAFT_TICK, self.raft_tick.tell().to_string()),
        ];
        for (key, value) in fields {
            // Numbers, hexadecimal digits and a checked address are all plain ASCII.
            if let Ok(value) = MetadataValue::try_from(value) {
                request.metadata_mut().insert(key, value);
            }
        }
        request
    }

    /// Reads the caller's identity, and lets it in, or says why not.
    pub(crate) fn check(
        &self,
        metadata: &MetadataMap,
        proof: Proof,
        status: &Status,
    ) -> Result<Caller, GrpcStatus> {
        let field = |key: &'static str| {
            let value = metadata.get(key).and_then(|value| value.to_str().ok());
            value.ok_or_else(|| {
                GrpcStatus::unauthenticated(format!(
                    "this port is for nodes of a lowkey cluster: no {key} was given"
                ))
            })
        };
        let number = |key: &'static str| {
            let parsed = field(key)?.parse().map(MemberId);
            parsed.map_err(|_| GrpcStatus::unauthenticated(format!("{key} is not a number")))
        };
        let cluster = field(CLUSTER)?;
        if cluster != self.cluster.to_string() {
            let cluster = cut(cluster, QUOTED_CHARS_MAX);
            let cause =
                format!("this node belongs to cluster {}, the caller to cluster {cluster}", self.cluster);
            return Err(GrpcStatus::failed_precondition(cause));
        }
        let (member, to) = (number(FROM)?, number(TO)?);
        if to != self.own {
            let cause = format!("this is member {}, not {to}: another node is at this address now", self.own);
            return Err(GrpcStatus::failed_precondition(cause));
        }
        let identity = parse_hex(field(IDENTITY)?).map(NodeIdentity);
        let identity =
            identity.ok_or_else(|| GrpcStatus::unauthenticated(format!("{IDENTITY} is no identity")))?;
        let raft_address = field(ADDRESS)?;
        let raft_address = parse_address(ADDRESS, raft_address).map_err(|_| {
            let quoted = cut(raft_address, QUOTED_CHARS_MAX);
            GrpcStatus::invalid_argument(format!("{ADDRESS} is not HOST:PORT, but {quoted:?}"))
        })?;
        let caller = Caller { member, identity, raft_address, proof };
        caller.check(status, &self.known)?;
        self.check_tick(metadata, member)?;
        Ok(caller)
    }

    /// Nodes with different timing do not hear each other, in neither direction: the less patient would unseat leaders
    /// that the others still wait for. Who is no member any more was told so before.
    fn check_tick(&self, metadata: &MetadataMap, member: MemberId) -> Result<(), GrpcStatus> {
        let told = metadata.get(RAFT_TICK).map(|told| told.to_str().ok()?.parse::<u32>().ok());
        let told = told.unwrap_or(Some(0)).and_then(RaftTick::told);
        let tick = told.ok_or_else(|| GrpcStatus::unauthenticated(format!("{RAFT_TICK} is no tick")))?;
        if tick == self.raft_tick {
            return Ok(());
        }
        let (own, own_tick) = (self.own, self.raft_tick);
        Err(GrpcStatus::failed_precondition(format!(
            "member {own} runs with --raft-tick {own_tick} and member {member} with {tick}: they do not hear each other until \
             all nodes run with the same value"
        )))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use lowkey_core::{NodeInfo, NodeName, Token};
    use lowkey_replica::{MemberStatus, Role};

    use super::super::known::KnownMember;
    use super::super::tls::tests::any_tls;
    use super::*;

    pub(crate) fn hello(own: u64) -> Hello {
        Hello {
            cluster: ClusterId([7; 16]),
            own: MemberId(own),
            identity: NodeIdentity([own as u8; 16]),
            raft_address: "127.0.0.1:7000".to_owned(),
            raft_tick: RaftTick::SHORTEST,
            tls: Arc::new(any_tls()),
            known: Known::default(),
        }
    }

    /// The same member with a key.
    pub(crate) fn with_key(member: MemberStatus, byte: u8) -> MemberStatus {
        let node = NodeInfo { key_hash: Some(KeyHash([byte; 32])), ..(*member.node).clone() };
        MemberStatus { node: Arc::new(node), ..member }
    }

    pub(crate) fn member(number: u64, identity: Option<u8>) -> MemberStatus {
        MemberStatus {
            member: MemberId(number),
            node: Arc::new(NodeInfo {
                name: NodeName::parse(&format!("n{number}")).unwrap(),
                identity: identity.map(|byte| NodeIdentity([byte; 16])),
                raft_address: "127.0.0.1:7000".to_owned(),
                grpc_address: String::new(),
                http_address: String::new(),
                command_version: 0,
                key_hash: None,
            }),
            voter: true,
            progress: None,
        }
    }

    /// The status of member 1 in a cluster that has a leader and has given out this many numbers.
    pub(crate) fn status(members: Vec<MemberStatus>, leaving: &[u64], last_member: u64) -> Status {
        Status {
            expired_leases: 0,
            member: MemberId(1),
            term: 2,
            role: Role::Follower,
            leader: Some(MemberId(2)),
            serving: false,
            divergence: None,
            applied: 9,
            committed: 9,
            leases: 0,
            locks: 0,
            waiters: 0,
            last_token: Token(0),
            access: Arc::default(),
            voters: members.len(),
            members,
            leaving: leaving.iter().copied().map(MemberId).collect(),
            last_member: MemberId(last_member),
            epoch: None,
            backup_schedule: None,
            quarantine: false,
            quarantine_ends: None,
            timing_factor: 1,
            raft_tick: RaftTick::SHORTEST,
        }
    }

    fn check(caller: u64, status: &Status) -> Result<Caller, GrpcStatus> {
        check_with(caller, None, status)
    }

    /// The same, by a caller that has proven to have a key.
    fn check_with(caller: u64, key: Option<u8>, status: &Status) -> Result<Caller, GrpcStatus> {
        let proof = Proof(key.map(|byte| KeyHash([byte; 32])));
        hello(1).check(hello(caller).sign(MemberId(1), ()).metadata(), proof, status)
    }

    #[test]
    fn a_member_with_a_key_must_prove_it_and_one_without_may_come_as_it_always_did() {
        let members =
            || vec![with_key(member(1, Some(1)), 1), with_key(member(2, Some(2)), 2), member(3, Some(3))];
        let status = status(members(), &[], 3);
        assert!(check_with(2, Some(2), &status).is_ok());
        let other = check_with(2, Some(9), &status).unwrap_err();
        assert!(other.message().contains("another key") && !says_key_needed(&other), "{other:?}");
        let plain = check_with(2, None, &status).unwrap_err();
        assert!(says_key_needed(&plain) && plain.message().contains("encryption"), "{plain:?}");
        assert!(check_with(3, None, &status).is_ok() && check_with(3, Some(9), &status).is_ok());
    }

    #[test]
    fn who_is_not_known_is_heard_when_a_known_member_has_vouched_for_it() {
        let members = vec![with_key(member(1, Some(1)), 1), with_key(member(2, Some(2)), 2)];
        let electing = Status { leader: None, ..status(members, &[], 2) };
        let unknown = check_with(3, Some(3), &electing).unwrap_err();
        assert!(is_of_unknown(&unknown) && !says_removed(&unknown), "{unknown:?}");
        let caller = Caller {
            member: MemberId(3),
            identity: NodeIdentity([3; 16]),
            raft_address: "127.0.0.1:3".to_owned(),
            proof: Proof(Some(KeyHash([3; 32]))),
        };
        let vouched = |byte: u8| {
            let raft_address = "127.0.0.1:3".to_owned();
            Known::new([KnownMember { member: MemberId(3), key: Some(KeyHash([byte; 32])), raft_address }])
        };
        assert!(caller.check(&electing, &vouched(3)).is_ok());
        assert!(caller.check(&electing, &vouched(9)).unwrap_err().message().contains("another key"));
        // One that leaves is known by what was remembered.
        let leaving = Status { leaving: [MemberId(3)].into(), last_member: MemberId(3), ..electing };
        assert!(
            caller.check(&leaving, &vouched(3)).is_ok() && caller.check(&leaving, &Known::default()).is_err()
        );
    }

    #[test]
    fn a_member_that_was_removed_is_told_so_also_if_it_was_the_last_to_come() {
        let both = || vec![member(1, Some(1)), member(2, Some(2))];
        assert!(check(2, &status(both(), &[], 3)).is_ok());
        assert!(says_removed(&check(3, &status(both(), &[], 3)).unwrap_err()));
        // Its acknowledgement may be what its own removal needs.
        assert!(check(3, &status(both(), &[3], 3)).is_ok());
    }

    #[test]
    fn who_is_not_known_is_no_member_that_was_removed() {
        let both = vec![member(1, Some(1)), member(2, Some(2))];
        let unknown = check(4, &status(both, &[], 3)).unwrap_err();
        assert!(!says_removed(&unknown) && unknown.message().contains("not known here yet"), "{unknown:?}");
        // A node that knows no members yet lets everyone in.
        assert!(check(4, &status(Vec::new(), &[], 0)).is_ok());
    }

    #[test]
    fn who_comes_where_a_node_is_expected_is_heard_once_that_is_known() {
        let expected = vec![member(1, Some(1)), member(2, Some(2)), member(3, None)];
        let early = check(3, &status(expected, &[], 3)).unwrap_err();
        assert!(!says_removed(&early), "{early:?}");
        let come = vec![member(1, Some(1)), member(2, Some(2)), member(3, Some(3))];
        assert!(check(3, &status(come, &[], 3)).is_ok());
    }

    #[test]
    fn who_was_heard_in_an_election_is_not_once_another_leads_or_the_number_is_anothers() {
        let both = || vec![member(1, Some(1)), member(2, Some(2))];
        let electing = Status { leader: None, ..status(both(), &[], 2) };
        let caller = check(3, &electing).unwrap();
        assert!(!caller.is_registered(&electing));
        let known = Known::default();
        let early = caller.check(&status(both(), &[], 2), &known).unwrap_err();
        assert!(early.message().contains("not known here yet"), "{early:?}");
        let won = Status { leader: Some(MemberId(3)), ..status(both(), &[], 2) };
        caller.check(&won, &known).unwrap();
        let registered = |identity| [both(), vec![member(3, Some(identity))]].concat();
        let other = Status { leader: None, ..status(registered(9), &[], 3) };
        assert!(caller.check(&other, &known).unwrap_err().message().contains("another identity"));
        let same = status(registered(3), &[], 3);
        assert!(caller.check(&same, &known).is_ok() && caller.is_registered(&same));
    }

    #[test]
    fn another_identity_under_a_known_number_is_refused_and_not_told_of_a_removal() {
        let others = vec![member(1, Some(1)), member(2, Some(9))];
        let refused = check(2, &status(others, &[], 3)).unwrap_err();
        assert!(!says_removed(&refused) && refused.message().contains("another identity"), "{refused:?}");
    }

    #[test]
    fn a_refusal_is_read_as_it_was_written() {
        for refusal in [refuse_removed(MemberId(3)), GrpcStatus::failed_precondition("100 % of “this”\n")]
        {
            let read = read_refusal(refusal.clone().into_http::<()>().headers()).unwrap();
            assert_eq!((read.code(), read.message()), (refusal.code(), refusal.message()));
            assert_eq!(says_removed(&read), says_removed(&refusal));
        }
        assert!(read_refusal(&HeaderMap::new()).is_none());
    }

    #[test]
    fn of_a_refusal_nothing_is_believed_that_need_not_be() {
        let long = format!("%{}", "x".repeat(10_000));
        for (code, cause) in [("7", "%"), ("no code", "%f"), ("99", "%ff%zz"), ("7", &long)] {
            let mut headers = HeaderMap::new();
            headers.insert("grpc-status", code.parse().unwrap());
            headers.insert("grpc-message", cause.parse().unwrap());
            headers.insert("grpc-status-details-bin", "%%%".parse().unwrap());
            let read = read_refusal(&headers).unwrap();
            assert!(read.message().chars().count() <= CAUSE_CHARS_MAX);
        }
    }

    #[test]
    fn nodes_with_different_ticks_do_not_hear_each_other_and_a_node_of_before_has_the_shortest() {
        let members = vec![member(1, Some(1)), member(2, Some(2))];
        let status = status(members, &[], 3);
        let with_tick = |own, ms| Hello { raft_tick: RaftTick::from_millis(ms).unwrap(), ..hello(own) };
        for (ours, theirs) in [(10, None), (10, Some("10")), (50, Some("50"))] {
            let hears = with_tick(1, ours).check(call(theirs).metadata(), Proof(None), &status);
            assert!(hears.is_ok(), "{ours} {theirs:?}: {hears:?}");
        }
        for (ours, theirs, told) in [(50, None, "10ms"), (10, Some("50"), "50ms"), (20, Some("100"), "100ms")]
        {
            let hears = with_tick(1, ours).check(call(theirs).metadata(), Proof(None), &status);
            let refused = hears.unwrap_err();
            let both = format!("member 1 runs with --raft-tick {ours}ms and member 2 with {told}: ");
            assert!(refused.message().starts_with(&both), "{}", refused.message());
            let read = read_refusal(refused.clone().into_http::<()>().headers()).unwrap();
            assert_eq!(read.message(), refused.message(), "it is told whole");
        }
        for theirs in ["15", "110", "-10", "10ms", ""] {
            let hears = hello(1).check(call(Some(theirs)).metadata(), Proof(None), &status);
            assert_eq!(hears.unwrap_err().code(), Code::Unauthenticated, "{theirs}");
        }
        assert_eq!(with_tick(2, 50).sign(MemberId(1), ()).metadata().get(RAFT_TICK).unwrap(), "50");
    }

    /// A call of member 2 to member 1 that tells this tick, or none.
    fn call(raft_tick: Option<&str>) -> Request<()> {
        let mut call = hello(2).sign(MemberId(1), ());
        call.metadata_mut().remove(RAFT_TICK);
        if let Some(tick) = raft_tick {
            call.metadata_mut().insert(RAFT_TICK, tick.parse().unwrap());
        }
        call
    }

    #[test]
    fn what_a_caller_makes_up_is_refused_and_not_quoted_at_length() {
        let long = "x".repeat(10_000);
        for (key, code) in [(CLUSTER, Code::FailedPrecondition), (ADDRESS, Code::InvalidArgument)] {
            for made_up in ["nowhere", long.as_str()] {
                let mut call = hello(2).sign(MemberId(1), ());
                call.metadata_mut().insert(key, made_up.parse().unwrap());
                let both = vec![member(1, Some(1)), member(2, Some(2))];
                let refused =
                    hello(1).check(call.metadata(), Proof(None), &status(both, &[], 3)).unwrap_err();
                assert_eq!(refused.code(), code, "{key}");
                let text = refused.message();
                assert!(text.len() < 200 && text.contains(cut(made_up, 40).as_str()), "{text}");
            }
        }
    }
}
