//! The bytes of commands: versioned protobuf, one message a log entry.
//!
//! The structs here are the format and nothing else; they never leave this file. They are for reading; commands are written
//! straight from their fields (`fields.rs`). Numbers are never reused. Decoding trusts nothing: bytes that are not exactly
//! a command of a known kind are an error, and the caller must stop rather than skip it, or replicas would diverge.

use std::fmt;
use std::sync::Arc;

use prost::Message as _;

use crate::access::{ACCESS_KINDS, AccessChange, AccessKind, AccessProto};
use crate::claim::{Mode, Scope};
use crate::command::{AcquireWith, Command, GrantRef, HoldRef, NodeInfo, Requester, Silence};
use crate::fields::{Fields, Fnv, MessagePart, Same, Sink};
use crate::groups::{GROUP_KINDS, GROUPS_VERSION, GroupChange, GroupKind, GroupProto};
use crate::limits::INVITATION_SECONDS_MAX;
use crate::name::{
    Invalid, InvitationHash, KeyHash, LeaseId, LockName, MaxHold, MemberId, NodeIdentity, NodeName, OwnerId,
    RequestId, Ticket, Token, Ttl, Value, max_hold_seconds,
};
use crate::schedule::{BackupScheduleProto, write_schedule};

/// The version of the command set that this build understands. Raised with every new kind.
///
/// 1: leases, exclusive locks, members. 2: waiting, modes, scopes, values. 3: members that are expected, renewed,
/// removed. 4: the end of a quarantine; and nodes that compare their states at checkpoints. 5: giving up an acquire is
/// final; who released or revoked, and when a value was set. 6: nodes have keys, and come
/// with invitations. 7: who may do what; grants that last for a limited time; when a lock was asked for is kept, and
/// what a leader knew of a lease that ran out. 8: the schedule of backups.
///
/// 9 are groups: see [`GROUPS_VERSION`]. This build reads its commands, and does not say that it understands them: a
/// group that is split off must be born on every node, and no node can do that yet.
pub const COMMAND_VERSION: u32 = 8;

impl Command {
    /// The command set that a node must understand to carry it out. It is proposed only when every member
    /// does: see [`crate::State::command_version`].
    pub fn version(&self) -> u32 {
        match self {
            Self::Groups(_) => GROUPS_VERSION,
            Self::SetBackupSchedule(_) => 8,
            Self::Access(_) => 7,
            // A limit is never left out: who asked for it counts on it.
            Self::Acquire { max_hold: Some(_), .. } | Self::EndHolds { .. } => 7,
            Self::Acquire { keeps_asked: true, .. } => 7,
            Self::Expire { silences, .. } if !silences.is_empty() => 7,
            Self::AddMember { invitation: Some(_), .. } | Self::Invite { .. } => 6,
            Self::AddMember { node, .. } | Self::UpdateMember { node, .. } if node.key_hash.is_some() => 6,
            Self::Release { grant: GrantRef::GivenUp(..), .. }
            | Self::Release { actor: Some(_), .. }
            | Self::RevokeLease { actor: Some(_), .. }
            | Self::SetValue { since_unix_ms: 1.., .. } => 5,
            Self::CreateLease { .. }
            | Self::RevokeLease { .. }
            | Self::Release { .. }
            | Self::Expire { .. } => 1,
            Self::Acquire { mode: Mode::Exclusive, scope: Scope::Name, value, wait: false, .. }
                if value.as_str().is_empty() =>
            {
                1
            }
            Self::AddMember { node, .. } if node.identity.is_some() => 1,
            Self::Acquire { .. } | Self::SetValue { .. } | Self::CancelWait { .. } => 2,
            Self::AddMember { .. } | Self::UpdateMember { .. } | Self::RemoveMember { .. } => 3,
            Self::EndQuarantine => 4,
        }
    }
}

/// Bytes that are not a command of a kind that this build knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DecodeError {
    /// A command of a kind, or with parts, that are not known: written by a newer version.
    UnknownKind,
    /// Not a command, or one with a value that is out of bounds.
    Malformed(String),
}

impl fmt::Display for DecodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownKind => write!(
                f,
                "the log holds a command that this version (command set {COMMAND_VERSION}) does not wholly \
                 know; start this node with the newer version that wrote it"
            ),
            Self::Malformed(what) => write!(f, "the log holds a malformed command: {what}"),
        }
    }
}

impl std::error::Error for DecodeError {}

impl From<Invalid> for DecodeError {
    fn from(invalid: Invalid) -> Self {
        Self::Malformed(invalid.to_string())
    }
}

/// What stands before the content of a command: its kind and length.
const HEAD_BYTES_MAX: usize = 11;

#[derive(Clone, PartialEq, prost::Message)]
struct CommandProto {
    #[prost(
        oneof = "Kind",
        tags = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 20, 24, 25, 26, 27, 28, 29, 30, 31, 32, 40, 41, 42, 43, 56"
    )]
    kind: Option<Kind>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
enum Kind {
    #[prost(message, tag = "1")]
    CreateLease(CreateLeaseProto),
    #[prost(message, tag = "2")]
    RevokeLease(RevokeLeaseProto),
    #[prost(message, tag = "3")]
    Acquire(AcquireProto),
    #[prost(message, tag = "4")]
    Release(ReleaseProto),
    #[prost(message, tag = "5")]
    Expire(ExpireProto),
    #[prost(message, tag = "6")]
    AddMember(NodeInfoProto),
    #[prost(message, tag = "7")]
    SetValue(SetValueProto),
    #[prost(message, tag = "8")]
    CancelWait(CancelWaitProto),
    #[prost(message, tag = "9")]
    RemoveMember(RemoveMemberProto),
    #[prost(message, tag = "10")]
    UpdateMember(UpdateMemberProto),
    #[prost(message, tag = "12")]
    EndQuarantine(EndQuarantineProto),
    #[prost(message, tag = "20")]
    Invite(InviteProto),
    #[prost(message, tag = "24")]
    AddPrincipal(AccessProto),
    #[prost(message, tag = "25")]
    RemovePrincipal(AccessProto),
    #[prost(message, tag = "26")]
    RemoveName(AccessProto),
    #[prost(message, tag = "27")]
    AddToken(AccessProto),
    #[prost(message, tag = "28")]
    RevokeToken(AccessProto),
    #[prost(message, tag = "29")]
    Grant(AccessProto),
    #[prost(message, tag = "30")]
    Revoke(AccessProto),
    #[prost(message, tag = "31")]
    Require(AccessProto),
    #[prost(message, tag = "32")]
    EndHolds(EndHoldsProto),
    #[prost(message, tag = "40")]
    PlanGroup(GroupProto),
    #[prost(message, tag = "41")]
    Split(GroupProto),
    #[prost(message, tag = "42")]
    RecordGroup(GroupProto),
    #[prost(message, tag = "43")]
    Drain(GroupProto),
    #[prost(message, tag = "56")]
    SetBackupSchedule(BackupScheduleProto),
}

#[derive(Clone, PartialEq, prost::Message)]
struct CreateLeaseProto {
    #[prost(string, tag = "1")]
    owner: String,
    #[prost(int64, tag = "2")]
    ttl_seconds: i64,
    #[prost(string, tag = "3")]
    request: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct RevokeLeaseProto {
    #[prost(uint64, tag = "1")]
    lease: u64,
    #[prost(string, tag = "2")]
    owner: String,
    #[prost(string, tag = "3")]
    request: String,
    #[prost(uint64, tag = "4")]
    since_unix_ms: u64,
    /// Empty when nobody else was named.
    #[prost(string, tag = "5")]
    actor: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct AcquireProto {
    #[prost(string, tag = "1")]
    lock: String,
    #[prost(string, tag = "2")]
    owner: String,
    /// 0 when the acquire makes its own lease.
    #[prost(uint64, tag = "3")]
    lease: u64,
    #[prost(int64, tag = "4")]
    new_lease_ttl_seconds: i64,
    #[prost(uint64, tag = "5")]
    since_unix_ms: u64,
    #[prost(string, tag = "6")]
    request: String,
    #[prost(uint32, tag = "7")]
    mode: u32,
    #[prost(uint32, tag = "8")]
    scope: u32,
    #[prost(string, tag = "9")]
    value: String,
    #[prost(bool, tag = "10")]
    wait: bool,
    #[prost(bool, tag = "20")]
    keeps_asked: bool,
    /// 0 for no limit.
    #[prost(uint32, tag = "24")]
    max_hold_seconds: u32,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ReleaseProto {
    #[prost(string, tag = "1")]
    lock: String,
    /// 0 when the grant is named by its request and owner.
    #[prost(uint64, tag = "2")]
    lease: u64,
    /// Empty when the grant is named by its lease alone.
    #[prost(string, tag = "3")]
    acquire_request: String,
    /// 0 when no token was given: tokens start at 1.
    #[prost(uint64, tag = "4")]
    token: u64,
    #[prost(string, tag = "5")]
    request: String,
    /// Empty when the lease is given.
    #[prost(string, tag = "6")]
    owner: String,
    #[prost(uint64, tag = "7")]
    since_unix_ms: u64,
    /// Empty when nobody else was named.
    #[prost(string, tag = "8")]
    actor: String,
    /// The acquire that is named is refused if it comes later.
    #[prost(bool, tag = "9")]
    is_final: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
struct SetValueProto {
    #[prost(string, tag = "1")]
    lock: String,
    #[prost(string, tag = "2")]
    owner: String,
    #[prost(uint64, tag = "3")]
    lease: u64,
    /// 0 when no token was given: tokens start at 1.
    #[prost(uint64, tag = "4")]
    token: u64,
    #[prost(string, tag = "5")]
    value: String,
    #[prost(string, tag = "6")]
    request: String,
    #[prost(uint64, tag = "7")]
    since_unix_ms: u64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct CancelWaitProto {
    #[prost(uint64, repeated, tag = "1")]
    tickets: Vec<u64>,
    #[prost(uint64, tag = "2")]
    since_unix_ms: u64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ExpireProto {
    #[prost(uint64, repeated, tag = "1")]
    leases: Vec<u64>,
    #[prost(uint64, tag = "2")]
    decided_term: u64,
    #[prost(uint64, tag = "3")]
    since_unix_ms: u64,
    /// One for each lease, or none.
    #[prost(uint64, repeated, tag = "20")]
    silent_ms: Vec<u64>,
    /// One for each lease, or none: then all are 0.
    #[prost(uint64, repeated, tag = "21")]
    stalled_ms: Vec<u64>,
    /// One for each lease, 0 or 1, or none: then all are 0.
    #[prost(uint64, repeated, tag = "22")]
    leader_changed: Vec<u64>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct EndHoldsProto {
    #[prost(message, repeated, tag = "1")]
    holds: Vec<HoldProto>,
    #[prost(uint64, tag = "2")]
    decided_term: u64,
    #[prost(uint64, tag = "3")]
    since_unix_ms: u64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct HoldProto {
    #[prost(string, tag = "1")]
    lock: String,
    #[prost(uint64, tag = "2")]
    lease: u64,
    #[prost(uint64, tag = "3")]
    token: u64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct RemoveMemberProto {
    #[prost(string, tag = "1")]
    name: String,
    /// 0 when no id was given: ids start at 1.
    #[prost(uint64, tag = "2")]
    member: u64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct UpdateMemberProto {
    #[prost(uint64, tag = "1")]
    member: u64,
    #[prost(message, optional, tag = "2")]
    node: Option<NodeInfoProto>,
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
struct EndQuarantineProto {}

#[derive(Clone, PartialEq, prost::Message)]
struct InviteProto {
    #[prost(bytes = "vec", tag = "1")]
    invitation: Vec<u8>,
    #[prost(uint64, tag = "2")]
    lifetime_seconds: u64,
    #[prost(uint64, tag = "3")]
    since_unix_ms: u64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct NodeInfoProto {
    #[prost(string, tag = "1")]
    name: String,
    /// Empty when the node is expected and has none yet.
    #[prost(bytes = "vec", tag = "2")]
    identity: Vec<u8>,
    #[prost(string, tag = "3")]
    raft_address: String,
    #[prost(string, tag = "4")]
    grpc_address: String,
    #[prost(string, tag = "5")]
    http_address: String,
    #[prost(uint32, tag = "6")]
    command_version: u32,
    /// Empty when the node has no key yet.
    #[prost(bytes = "vec", tag = "20")]
    key_hash: Vec<u8>,
    /// Only where a node is added, and came with one.
    #[prost(bytes = "vec", tag = "21")]
    invitation: Vec<u8>,
}

impl Command {
    /// The command as the data of a log entry. Never empty: an empty entry is Raft's own.
    pub fn encode(&self) -> Vec<u8> {
        let (number, content) = (self.number(), Content::whole(self));
        let mut bytes = Vec::with_capacity(content.len() + HEAD_BYTES_MAX);
        Fields(&mut bytes).message(number, &content);
        bytes
    }

    /// Reads what [`Command::encode`] wrote, of this or an earlier version.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let proto = CommandProto::decode(bytes).map_err(|error| DecodeError::Malformed(error.to_string()))?;
        let command = Self::from_proto(proto.kind.ok_or(DecodeError::UnknownKind)?)?;
        // Protobuf passes over what it does not know. A replica must not: it would carry out half of
        // what a newer one carries out whole.
        let mut same = Same::new(bytes);
        Fields(&mut same).message(command.number(), &Content::whole(&command));
        if same.finish() { Ok(command) } else { Err(DecodeError::UnknownKind) }
    }

    /// A number that tells two commands apart that share a request id. What may differ between a
    /// request and its honest retry is left out: the proposer's wall clock, whether to wait, and what
    /// depends on the command set that all members understand.
    pub(crate) fn fingerprint(&self) -> u64 {
        let mut hash = Fnv::new();
        let content = Content { command: self, as_asked_first: true };
        Fields(&mut hash).message(self.number(), &content);
        hash.finish()
    }

    /// The number of its kind: see [`Kind`].
    fn number(&self) -> u32 {
        match self {
            Self::CreateLease { .. } => 1,
            Self::RevokeLease { .. } => 2,
            Self::Acquire { .. } => 3,
            Self::Release { .. } => 4,
            Self::Expire { .. } => 5,
            Self::AddMember { .. } => 6,
            Self::SetValue { .. } => 7,
            Self::CancelWait { .. } => 8,
            Self::RemoveMember { .. } => 9,
            Self::UpdateMember { .. } => 10,
            Self::EndQuarantine => 12,
            Self::Invite { .. } => 20,
            Self::Access(change) => change.number(),
            Self::EndHolds { .. } => 32,
            Self::Groups(change) => change.number(),
            Self::SetBackupSchedule(_) => 56,
        }
    }

    fn access(kind: u32, proto: AccessProto) -> Result<Self, DecodeError> {
        debug_assert!(ACCESS_KINDS.contains(&kind), "a change of the access table");
        Ok(Self::Access(Box::new(AccessChange::try_from(AccessKind(kind, proto))?)))
    }

    fn group_change(kind: u32, proto: GroupProto) -> Result<Self, DecodeError> {
        debug_assert!(GROUP_KINDS.contains(&kind), "a change of groups");
        Ok(Self::groups(GroupChange::try_from(GroupKind(kind, proto))?))
    }

    fn from_proto(kind: Kind) -> Result<Self, DecodeError> {
        Ok(match kind {
            Kind::CreateLease(proto) => Self::CreateLease {
                owner: OwnerId::parse(&proto.owner)?,
                ttl: Ttl::parse(proto.ttl_seconds)?,
                request: RequestId::parse(&proto.request)?,
            },
            Kind::RevokeLease(proto) => Self::RevokeLease {
                lease: LeaseId(proto.lease),
                owner: OwnerId::parse(&proto.owner)?,
                actor: decode_actor(&proto.actor)?,
                since_unix_ms: proto.since_unix_ms,
                request: RequestId::parse(&proto.request)?,
            },
            Kind::Acquire(proto) => Self::Acquire {
                lock: LockName::parse(&proto.lock)?,
                owner: OwnerId::parse(&proto.owner)?,
                with: match proto.lease {
                    0 => AcquireWith::NewLease(Ttl::parse(proto.new_lease_ttl_seconds)?),
                    lease => AcquireWith::Lease(LeaseId(lease)),
                },
                mode: decode_mode(proto.mode)?,
                scope: decode_scope(proto.scope)?,
                value: Value::parse(&proto.value)?,
                wait: proto.wait,
                max_hold: MaxHold::parse(proto.max_hold_seconds.into())?,
                since_unix_ms: proto.since_unix_ms,
                keeps_asked: proto.keeps_asked,
                request: RequestId::parse(&proto.request)?,
            },
            Kind::Release(proto) => {
                let requester = match proto.lease {
                    0 if proto.acquire_request.is_empty() => {
                        return Err(DecodeError::Malformed("a release that names no grant".into()));
                    }
                    0 => Requester::Owner(OwnerId::parse(&proto.owner)?),
                    lease => Requester::Lease(LeaseId(lease)),
                };
                let grant = match (proto.acquire_request.as_str(), proto.is_final) {
                    ("", _) => GrantRef::Lease(LeaseId(proto.lease)),
                    (acquire, false) => GrantRef::Request(RequestId::parse(acquire)?, requester),
                    (acquire, true) => GrantRef::GivenUp(RequestId::parse(acquire)?, requester),
                };
                Self::Release {
                    lock: LockName::parse(&proto.lock)?,
                    grant,
                    token: (proto.token != 0).then_some(Token(proto.token)),
                    actor: decode_actor(&proto.actor)?,
                    since_unix_ms: proto.since_unix_ms,
                    request: RequestId::parse(&proto.request)?,
                }
            }
            Kind::SetValue(proto) => Self::SetValue {
                lock: LockName::parse(&proto.lock)?,
                owner: OwnerId::parse(&proto.owner)?,
                lease: LeaseId(proto.lease),
                token: (proto.token != 0).then_some(Token(proto.token)),
                value: Value::parse(&proto.value)?,
                since_unix_ms: proto.since_unix_ms,
                request: RequestId::parse(&proto.request)?,
            },
            Kind::CancelWait(proto) => Self::CancelWait {
                tickets: proto.tickets.into_iter().map(Ticket).collect(),
                since_unix_ms: proto.since_unix_ms,
            },
            Kind::Expire(proto) => Self::Expire {
                silences: decode_silences(&proto)?,
                leases: proto.leases.into_iter().map(LeaseId).collect(),
                decided_term: proto.decided_term,
                since_unix_ms: proto.since_unix_ms,
            },
            Kind::EndHolds(proto) => {
                let hold = |hold: HoldProto| {
                    let HoldProto { lock, lease, token } = hold;
                    let lock = LockName::parse(&lock)?;
                    Ok::<_, Invalid>(HoldRef { lock, lease: LeaseId(lease), token: Token(token) })
                };
                let EndHoldsProto { holds, decided_term, since_unix_ms } = proto;
                let holds = holds.into_iter().map(hold).collect::<Result<_, _>>()?;
                Self::EndHolds { holds, decided_term, since_unix_ms }
            }
            Kind::AddMember(proto) => {
                let invitation = decode_hash(&proto.invitation)?.map(InvitationHash);
                if invitation.is_some() && proto.identity.is_empty() {
                    return Err(DecodeError::Malformed("an invitation that nobody came with".into()));
                }
                Self::AddMember { node: Box::new(proto.try_into()?), invitation }
            }
            Kind::UpdateMember(proto) => {
                let node = proto
                    .node
                    .ok_or_else(|| DecodeError::Malformed("a renewal that describes no node".into()))?;
                Self::UpdateMember { member: MemberId(proto.member), node: Box::new(node.try_into()?) }
            }
            Kind::RemoveMember(proto) => Self::RemoveMember {
                name: NodeName::parse(&proto.name)?,
                member: (proto.member != 0).then_some(MemberId(proto.member)),
            },
            Kind::EndQuarantine(EndQuarantineProto {}) => Self::EndQuarantine,
            Kind::Invite(proto) => {
                let invitation = decode_hash(&proto.invitation)?.map(InvitationHash);
                let invitation = invitation
                    .ok_or_else(|| DecodeError::Malformed("an invitation without its hash".into()))?;
                if !(1..=INVITATION_SECONDS_MAX).contains(&proto.lifetime_seconds) {
                    return Err(DecodeError::Malformed("an invitation for no time, or for too long".into()));
                }
                let InviteProto { lifetime_seconds, since_unix_ms, .. } = proto;
                Self::Invite { invitation, lifetime_seconds, since_unix_ms }
            }
            Kind::AddPrincipal(proto) => Self::access(24, proto)?,
            Kind::RemovePrincipal(proto) => Self::access(25, proto)?,
            Kind::RemoveName(proto) => Self::access(26, proto)?,
            Kind::AddToken(proto) => Self::access(27, proto)?,
            Kind::RevokeToken(proto) => Self::access(28, proto)?,
            Kind::Grant(proto) => Self::access(29, proto)?,
            Kind::Revoke(proto) => Self::access(30, proto)?,
            Kind::Require(proto) => Self::access(31, proto)?,
            Kind::PlanGroup(proto) => Self::group_change(40, proto)?,
            Kind::Split(proto) => Self::group_change(41, proto)?,
            Kind::RecordGroup(proto) => Self::group_change(42, proto)?,
            Kind::Drain(proto) => Self::group_change(43, proto)?,
            Kind::SetBackupSchedule(proto) => Self::SetBackupSchedule(proto.decode()?.map(Arc::new)),
        })
    }
}

/// What a command consists of.
struct Content<'a> {
    command: &'a Command,
    /// Without what may be different when the same is asked again.
    as_asked_first: bool,
}

impl<'a> Content<'a> {
    fn whole(command: &'a Command) -> Self {
        Self { command, as_asked_first: false }
    }
}

impl<'a> MessagePart for Content<'a> {
    // Field by field what the structs above say, which read it.
    fn write<S: Sink>(&self, fields: &mut Fields<'_, S>) {
        let since = |since_unix_ms: &u64| if self.as_asked_first { 0 } else { *since_unix_ms };
        let actor = |actor: &'a Option<OwnerId>| match actor {
            Some(actor) if !self.as_asked_first => actor.as_str(),
            _ => "",
        };
        match self.command {
            Command::CreateLease { owner, ttl, request } => {
                fields.text(1, owner.as_str());
                fields.number(2, ttl.seconds().cast_unsigned());
                fields.text(3, request.as_str());
            }
            Command::RevokeLease { lease, owner, actor: by, since_unix_ms, request } => {
                fields.number(1, lease.0);
                fields.text(2, owner.as_str());
                fields.text(3, request.as_str());
                fields.number(4, since(since_unix_ms));
                fields.text(5, actor(by));
            }
            Command::Acquire {
                lock,
                owner,
                with,
                mode,
                scope,
                value,
                wait,
                max_hold,
                since_unix_ms,
                keeps_asked,
                request,
            } => {
                let (lease, ttl) = match with {
                    AcquireWith::Lease(lease) => (lease.0, 0),
                    AcquireWith::NewLease(ttl) => (0, ttl.seconds()),
                };
                fields.text(1, lock.as_str());
                fields.text(2, owner.as_str());
                fields.number(3, lease);
                fields.number(4, ttl.cast_unsigned());
                fields.number(5, since(since_unix_ms));
                fields.text(6, request.as_str());
                fields.number(7, encode_mode(*mode).into());
                fields.number(8, encode_scope(*scope).into());
                fields.text(9, value.as_str());
                fields.number(10, (*wait && !self.as_asked_first).into());
                fields.number(20, (*keeps_asked && !self.as_asked_first).into());
                fields.number(24, max_hold_seconds(*max_hold).into());
            }
            Command::Release { lock, grant, token, actor: by, since_unix_ms, request } => {
                let is_final = matches!(grant, GrantRef::GivenUp(..));
                let (lease, acquire_request, owner) = match grant {
                    GrantRef::Lease(lease) => (lease.0, "", ""),
                    GrantRef::Request(acquire, requester) | GrantRef::GivenUp(acquire, requester) => {
                        match requester {
                            Requester::Lease(lease) => (lease.0, acquire.as_str(), ""),
                            Requester::Owner(owner) => (0, acquire.as_str(), owner.as_str()),
                        }
                    }
                };
                fields.text(1, lock.as_str());
                fields.number(2, lease);
                fields.text(3, acquire_request);
                fields.number(4, token.map_or(0, |token| token.0));
                fields.text(5, request.as_str());
                fields.text(6, owner);
                fields.number(7, since(since_unix_ms));
                fields.text(8, actor(by));
                fields.number(9, (is_final && !self.as_asked_first).into());
            }
            Command::SetValue { lock, owner, lease, token, value, since_unix_ms, request } => {
                fields.text(1, lock.as_str());
                fields.text(2, owner.as_str());
                fields.number(3, lease.0);
                fields.number(4, token.map_or(0, |token| token.0));
                fields.text(5, value.as_str());
                fields.text(6, request.as_str());
                fields.number(7, since(since_unix_ms));
            }
            Command::CancelWait { tickets, since_unix_ms } => {
                fields.numbers(1, tickets.iter().map(|ticket| ticket.0));
                fields.number(2, *since_unix_ms);
            }
            Command::Expire { leases, decided_term, since_unix_ms, silences } => {
                fields.numbers(1, leases.iter().map(|lease| lease.0));
                fields.number(2, *decided_term);
                fields.number(3, *since_unix_ms);
                fields.numbers(20, silences.iter().map(|silence| silence.silent_ms));
                if silences.iter().any(|silence| silence.stalled_ms > 0) {
                    fields.numbers(21, silences.iter().map(|silence| silence.stalled_ms));
                }
                if silences.iter().any(|silence| silence.leader_changed) {
                    fields.numbers(22, silences.iter().map(|silence| silence.leader_changed.into()));
                }
            }
            Command::EndHolds { holds, decided_term, since_unix_ms } => {
                holds.iter().for_each(|hold| fields.message(1, hold));
                fields.number(2, *decided_term);
                fields.number(3, *since_unix_ms);
            }
            Command::AddMember { node, invitation } => {
                node.write(fields);
                fields.bytes(21, invitation.as_ref().map_or(&[], |hash| &hash.0));
            }
            Command::UpdateMember { member, node } => {
                fields.number(1, member.0);
                fields.message(2, node.as_ref());
            }
            Command::RemoveMember { name, member } => {
                fields.text(1, name.as_str());
                fields.number(2, member.map_or(0, |member| member.0));
            }
            Command::EndQuarantine => {}
            Command::Access(change) => change.write(fields),
            Command::Groups(change) => change.write(fields),
            Command::SetBackupSchedule(schedule) => write_schedule(schedule.as_deref(), fields),
            Command::Invite { invitation, lifetime_seconds, since_unix_ms } => {
                fields.bytes(1, &invitation.0);
                fields.number(2, *lifetime_seconds);
                fields.number(3, *since_unix_ms);
            }
        }
    }
}

impl MessagePart for HoldRef {
    fn write<S: Sink>(&self, fields: &mut Fields<'_, S>) {
        fields.text(1, self.lock.as_str());
        fields.number(2, self.lease.0);
        fields.number(3, self.token.0);
    }
}

impl MessagePart for NodeInfo {
    fn write<S: Sink>(&self, fields: &mut Fields<'_, S>) {
        let Self { name, identity, raft_address, grpc_address, http_address, command_version, key_hash } =
            self;
        fields.text(1, name.as_str());
        fields.bytes(2, identity.as_ref().map_or(&[], |identity| &identity.0));
        fields.text(3, raft_address);
        fields.text(4, grpc_address);
        fields.text(5, http_address);
        fields.number(6, (*command_version).into());
        fields.bytes(20, key_hash.as_ref().map_or(&[], |hash| &hash.0));
    }
}

/// What is told of each lease that ran out; nothing if nothing is told of any.
fn decode_silences(proto: &ExpireProto) -> Result<Vec<Silence>, DecodeError> {
    let count = proto.silent_ms.len();
    let fits = |parts: &[u64]| parts.is_empty() || parts.len() == count;
    let is_whole = (count == 0 || count == proto.leases.len())
        && fits(&proto.stalled_ms)
        && fits(&proto.leader_changed)
        && proto.leader_changed.iter().all(|flag| *flag <= 1);
    if !is_whole {
        return Err(DecodeError::Malformed("an expiry that tells of other leases than it ends".into()));
    }
    let told = |parts: &[u64], place: usize| parts.get(place).copied().unwrap_or(0);
    let silence = |(place, silent_ms): (usize, &u64)| Silence {
        silent_ms: *silent_ms,
        stalled_ms: told(&proto.stalled_ms, place),
        leader_changed: told(&proto.leader_changed, place) == 1,
    };
    Ok(proto.silent_ms.iter().enumerate().map(silence).collect())
}

/// A hash, or nothing.
pub(crate) fn decode_hash(bytes: &[u8]) -> Result<Option<[u8; 32]>, DecodeError> {
    if bytes.is_empty() {
        return Ok(None);
    }
    let bytes = <[u8; 32]>::try_from(bytes);
    bytes.map(Some).map_err(|_| DecodeError::Malformed("a hash that is not 32 bytes".into()))
}

fn decode_actor(actor: &str) -> Result<Option<OwnerId>, Invalid> {
    if actor.is_empty() { Ok(None) } else { OwnerId::parse(actor).map(Some) }
}

pub(crate) fn encode_mode(mode: Mode) -> u32 {
    match mode {
        Mode::Exclusive => 0,
        Mode::Shared => 1,
    }
}

/// A number that is not known was written by a later version.
pub(crate) fn decode_mode(number: u32) -> Result<Mode, DecodeError> {
    match number {
        0 => Ok(Mode::Exclusive),
        1 => Ok(Mode::Shared),
        _ => Err(DecodeError::UnknownKind),
    }
}

pub(crate) fn encode_scope(scope: Scope) -> u32 {
    match scope {
        Scope::Name => 0,
        Scope::Subtree => 1,
    }
}

/// A number that is not known was written by a later version.
pub(crate) fn decode_scope(number: u32) -> Result<Scope, DecodeError> {
    match number {
        0 => Ok(Scope::Name),
        1 => Ok(Scope::Subtree),
        _ => Err(DecodeError::UnknownKind),
    }
}

impl From<&NodeInfo> for NodeInfoProto {
    fn from(node: &NodeInfo) -> Self {
        Self {
            name: node.name.to_string(),
            identity: node.identity.map(|identity| identity.0.to_vec()).unwrap_or_default(),
            raft_address: node.raft_address.clone(),
            grpc_address: node.grpc_address.clone(),
            http_address: node.http_address.clone(),
            command_version: node.command_version,
            key_hash: node.key_hash.map(|hash| hash.0.to_vec()).unwrap_or_default(),
            invitation: Vec::new(),
        }
    }
}

impl TryFrom<NodeInfoProto> for NodeInfo {
    type Error = DecodeError;

    fn try_from(proto: NodeInfoProto) -> Result<Self, DecodeError> {
        let identity = match proto.identity.as_slice() {
            [] => None,
            bytes => {
                let bytes = <[u8; 16]>::try_from(bytes)
                    .map_err(|_| DecodeError::Malformed("a node identity that is not 16 bytes".into()))?;
                Some(NodeIdentity(bytes))
            }
        };
        let key_hash = decode_hash(&proto.key_hash)?.map(KeyHash);
        Ok(Self {
            name: NodeName::parse(&proto.name)?,
            identity,
            raft_address: proto.raft_address,
            grpc_address: proto.grpc_address,
            http_address: proto.http_address,
            command_version: proto.command_version,
            key_hash,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_of_an_unknown_kind_is_told_from_a_broken_one() {
        // Field 99, length-delimited, empty: a kind that only a later version knows.
        assert_eq!(Command::decode(&[0x9a, 0x06, 0x00]), Err(DecodeError::UnknownKind));
        assert!(matches!(Command::decode(&[0xff]), Err(DecodeError::Malformed(_))));
    }

    #[test]
    fn values_out_of_bounds_do_not_come_in_through_the_log() {
        let proto = CreateLeaseProto { owner: "o".into(), ttl_seconds: 601, request: "r".into() };
        let bytes = CommandProto { kind: Some(Kind::CreateLease(proto)) }.encode_to_vec();
        assert!(matches!(Command::decode(&bytes), Err(DecodeError::Malformed(_))));
    }
}
