//! The whole state as bytes, and as one number.
//!
//! Versioned protobuf, written in the order of the state's own collections, so equal states give
//! equal bytes. Reading checks every invariant that it relies on: a snapshot comes from a disk or
//! from another machine. The caller adds the checksum; the hash here says whether two *states* are
//! the same.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use prost::{Message, encoding};

use crate::access::{PrincipalProto, principal_proto, restored};
use crate::claim::{Mode, Scope};
use crate::command::{NodeInfo, Reply};
use crate::encoding::{
    DecodeError, NodeInfoProto, decode_hash, decode_mode, decode_scope, encode_mode, encode_scope,
};
use crate::epoch::Epoch;
use crate::fields::{Fnv, Sink as _};
use crate::groups::{Place, PlaceProto};
use crate::holders::Grant;
use crate::invitation::Invitation;
use crate::limits::{INVITATIONS_MAX, LEASE_REQUESTS_KEPT, PRINCIPALS_MAX, REQUESTS_PER_LEASE_KEPT};
use crate::mutants;
use crate::name::{
    ClusterId, Invalid, InvitationHash, LeaseId, LockName, MaxHold, MemberId, NodeIdentity, NodeName,
    OwnerId, RequestId, Ticket, Token, Ttl, Value, max_hold_seconds,
};
use crate::recent::Remembered;
use crate::schedule::BackupScheduleProto;
use crate::state::{Claimed, Lease, State, Wait};

/// The version of the snapshot's format. Raised when an older reader would misread it.
///
/// 2: waits, and grants with modes, scopes and values; a snapshot of version 1 has none of these. 3: quarantine. 4: keys
/// of nodes, and invitations. 5: who may do what; grants that last for a limited time; when locks were asked for; the epoch. 6:
/// the schedule of backups. 7: the group's place among others.
pub const SNAPSHOT_VERSION: u32 = 7;

/// What a snapshot is written as. A reader that does not know of quarantine would grant, and one that does not know of
/// keys, invitations, limits and schedules would lose them: only with these is it of a newer version. All other snapshots stay as they were, so that nodes
/// of before can read them while a cluster is upgraded, and replicas of both hash alike.
fn version_of(state: &State) -> u32 {
    let keeps_asked = state.grants().any(|(_, grant)| grant.asked_unix_ms != 0)
        || state.waits.values().any(|wait| wait.asked_unix_ms != 0);
    let has_limits = !state.limited.is_empty() || state.waits.values().any(|wait| wait.max_hold.is_some());
    if state.place.is_some() {
        SNAPSHOT_VERSION
    } else if state.backup_schedule().is_some() {
        6
    } else if keeps_asked || has_limits || state.epoch.is_some() || !state.access().is_empty() {
        5
    } else if state.members.values().any(|node| node.key_hash.is_some()) || !state.invitations.is_empty() {
        4
    } else if state.quarantine {
        3
    } else {
        2
    }
}

/// Bytes that are not a snapshot that this build can use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SnapshotError {
    /// Written by a later version.
    UnknownVersion(u32),
    /// Not a snapshot, or one that contradicts itself.
    Malformed(String),
}

impl fmt::Display for SnapshotError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownVersion(version) => write!(
                f,
                "the snapshot has format version {version}, and this build reads up to {SNAPSHOT_VERSION}; start \
                 this node with the newer version that wrote it"
            ),
            Self::Malformed(what) => write!(f, "the snapshot is malformed: {what}"),
        }
    }
}

impl std::error::Error for SnapshotError {}

impl From<Invalid> for SnapshotError {
    fn from(invalid: Invalid) -> Self {
        Self::Malformed(invalid.to_string())
    }
}

impl From<prost::DecodeError> for SnapshotError {
    fn from(error: prost::DecodeError) -> Self {
        Self::Malformed(error.to_string())
    }
}

impl From<DecodeError> for SnapshotError {
    fn from(error: DecodeError) -> Self {
        match error {
            DecodeError::UnknownKind => {
                Self::Malformed("it has a part that this version does not know".into())
            }
            DecodeError::Malformed(what) => Self::Malformed(what),
        }
    }
}

fn malformed<T>(what: impl Into<String>) -> Result<T, SnapshotError> {
    Err(SnapshotError::Malformed(what.into()))
}

/// What there is once. The parts of the state follow, each kind under its number, so that they can be written
/// and read one by one: all of them at once would take more room than the state itself.
#[derive(Clone, PartialEq, prost::Message)]
struct HeadProto {
    #[prost(uint32, tag = "1")]
    version: u32,
    #[prost(bytes = "vec", tag = "2")]
    cluster: Vec<u8>,
    #[prost(uint64, tag = "3")]
    revision: u64,
    #[prost(uint64, tag = "4")]
    last_token: u64,
    #[prost(uint64, tag = "5")]
    last_lease: u64,
    #[prost(uint64, tag = "6")]
    last_member: u64,
    /// Behind all parts.
    #[prost(bool, tag = "12")]
    quarantine: bool,
    /// Behind the principals.
    #[prost(bool, tag = "25")]
    access_required: bool,
    /// With it. 0 if there is none.
    #[prost(uint64, tag = "55")]
    epoch: u64,
    /// At the very end. None if there is one group.
    #[prost(message, optional, tag = "40")]
    place: Option<PlaceProto>,
}

const LEASES: u32 = 7;
const LOCKS: u32 = 8;
const MEMBERS: u32 = 9;
const LEASE_REQUESTS: u32 = 10;
/// In the order of waiting.
const WAITS: u32 = 11;
/// Behind `quarantine`.
const INVITATIONS: u32 = 20;
/// Behind the invitations.
const PRINCIPALS: u32 = 24;
/// Behind `access_required`, and only if there is one.
const BACKUP_SCHEDULE: u32 = 56;

fn write_parts<M: Message>(bytes: &mut Vec<u8>, kind: u32, parts: impl Iterator<Item = M>) {
    parts.for_each(|part| encoding::message::encode(kind, &part, bytes));
}

/// Reads all parts of one kind, wherever they are.
fn read_parts<M: Message + Default>(
    mut bytes: &[u8],
    kind: u32,
    mut take: impl FnMut(M) -> Result<(), SnapshotError>,
) -> Result<(), SnapshotError> {
    while !bytes.is_empty() {
        let (found, wire_type) = encoding::decode_key(&mut bytes)?;
        if found == kind {
            let mut part = M::default();
            encoding::message::merge(wire_type, &mut part, &mut bytes, encoding::DecodeContext::default())?;
            take(part)?;
        } else {
            encoding::skip_field(wire_type, found, &mut bytes, encoding::DecodeContext::default())?;
        }
    }
    Ok(())
}

#[derive(Clone, PartialEq, prost::Message)]
struct LeaseProto {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(string, tag = "2")]
    owner: String,
    #[prost(int64, tag = "3")]
    ttl_seconds: i64,
    #[prost(message, repeated, tag = "4")]
    requests: Vec<RequestProto>,
    #[prost(bool, tag = "5")]
    is_waiting: bool,
}

/// One grant of a lock.
#[derive(Clone, PartialEq, prost::Message)]
struct LockProto {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(uint64, tag = "2")]
    lease: u64,
    #[prost(uint64, tag = "3")]
    token: u64,
    #[prost(uint64, tag = "4")]
    revision: u64,
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
    #[prost(uint64, tag = "20")]
    asked_unix_ms: u64,
    /// 0 for no limit.
    #[prost(uint32, tag = "24")]
    max_hold_seconds: u32,
}

#[derive(Clone, PartialEq, prost::Message)]
struct WaitProto {
    #[prost(uint64, tag = "1")]
    ticket: u64,
    #[prost(string, tag = "2")]
    lock: String,
    #[prost(uint64, tag = "3")]
    lease: u64,
    #[prost(uint32, tag = "4")]
    mode: u32,
    #[prost(uint32, tag = "5")]
    scope: u32,
    #[prost(string, tag = "6")]
    value: String,
    #[prost(string, tag = "7")]
    request: String,
    #[prost(fixed64, tag = "8")]
    fingerprint: u64,
    #[prost(bool, tag = "9")]
    makes_lease: bool,
    #[prost(uint64, tag = "20")]
    asked_unix_ms: u64,
    /// 0 for no limit.
    #[prost(uint32, tag = "24")]
    max_hold_seconds: u32,
}

#[derive(Clone, PartialEq, prost::Message)]
struct MemberProto {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(message, optional, tag = "2")]
    node: Option<NodeInfoProto>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct InvitationProto {
    #[prost(bytes = "vec", tag = "1")]
    hash: Vec<u8>,
    #[prost(uint64, tag = "2")]
    expires_unix_ms: u64,
    /// Empty while nobody came with it.
    #[prost(bytes = "vec", tag = "3")]
    used_by: Vec<u8>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct RequestProto {
    #[prost(string, tag = "1")]
    request: String,
    /// Only where the request made or ended a lease.
    #[prost(string, tag = "2")]
    owner: String,
    #[prost(fixed64, tag = "3")]
    fingerprint: u64,
    #[prost(oneof = "ReplyProto", tags = "4, 5, 6, 7, 8")]
    reply: Option<ReplyProto>,
}

#[derive(Clone, PartialEq, prost::Oneof)]
enum ReplyProto {
    #[prost(message, tag = "4")]
    LeaseCreated(LeaseCreatedProto),
    #[prost(uint64, tag = "5")]
    LeaseRevoked(u64),
    #[prost(message, tag = "6")]
    Granted(GrantedProto),
    /// False for an acquire that was given up.
    #[prost(bool, tag = "7")]
    Released(bool),
    #[prost(uint64, tag = "8")]
    ValueSet(u64),
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
struct LeaseCreatedProto {
    #[prost(uint64, tag = "1")]
    lease: u64,
    #[prost(int64, tag = "2")]
    ttl_seconds: i64,
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
struct GrantedProto {
    #[prost(uint64, tag = "1")]
    token: u64,
    #[prost(uint64, tag = "2")]
    lease: u64,
    #[prost(int64, tag = "3")]
    ttl_seconds: i64,
    #[prost(uint64, tag = "4")]
    revision: u64,
}

impl State {
    /// The state as bytes; equal states give equal bytes.
    pub fn encode_snapshot(&self) -> Vec<u8> {
        let head = HeadProto {
            version: version_of(self),
            cluster: self.cluster.0.to_vec(),
            revision: self.revision,
            last_token: self.last_token.0,
            last_lease: self.last_lease.0,
            last_member: self.last_member.0,
            quarantine: false,
            access_required: false,
            epoch: 0,
            place: None,
        };
        let mut bytes = head.encode_to_vec();
        write_parts(&mut bytes, LEASES, self.leases().map(|(id, lease)| lease_proto(id, lease)));
        write_parts(&mut bytes, LOCKS, self.grants().map(|(name, grant)| lock_proto(name, grant)));
        let members = self.members.iter();
        let members = members.map(|(id, node)| MemberProto { id: id.0, node: Some(node.as_ref().into()) });
        write_parts(&mut bytes, MEMBERS, members);
        let requests = self
            .lease_requests
            .iter()
            .filter(|_| !mutants::SNAPSHOT_WITHOUT_REQUESTS_THAT_MADE_LEASES.is_active())
            .map(|((owner, request), remembered)| request_proto(Some(owner), request, remembered));
        write_parts(&mut bytes, LEASE_REQUESTS, requests);
        write_parts(&mut bytes, WAITS, self.waits.iter().map(|(ticket, wait)| wait_proto(*ticket, wait)));
        let epoch = self.epoch.map_or(0, Epoch::number);
        let tail = HeadProto { quarantine: self.quarantine, epoch, ..HeadProto::default() };
        bytes.extend(tail.encode_to_vec());
        let invitations = self.invitations.iter();
        write_parts(&mut bytes, INVITATIONS, invitations.map(|(hash, known)| invitation_proto(*hash, known)));
        let principals = self.access().principals();
        write_parts(&mut bytes, PRINCIPALS, principals.map(|(name, known)| principal_proto(name, known)));
        let place = self.place.as_ref().map(|place| PlaceProto::from(&**place));
        let tail = HeadProto { access_required: self.access().is_required(), place, ..HeadProto::default() };
        bytes.extend(tail.encode_to_vec());
        let schedule = self.backup_schedule().into_iter();
        write_parts(&mut bytes, BACKUP_SCHEDULE, schedule.map(|known| BackupScheduleProto::from(&**known)));
        bytes
    }

    /// Reads what [`State::encode_snapshot`] wrote, of this or an earlier version.
    pub fn decode_snapshot(bytes: &[u8]) -> Result<Self, SnapshotError> {
        let head = HeadProto::decode(bytes)?;
        match head.version {
            0 => return malformed("it has no version"),
            1..=SNAPSHOT_VERSION => {}
            later => return Err(SnapshotError::UnknownVersion(later)),
        }
        let Ok(cluster) = <[u8; 16]>::try_from(head.cluster.as_slice()) else {
            return malformed("its cluster id is not 16 bytes");
        };
        let mut state = Self::new(ClusterId(cluster));
        state.revision = head.revision;
        state.last_token = Token(head.last_token);
        state.last_lease = LeaseId(head.last_lease);
        state.last_member = MemberId(head.last_member);
        read_parts(bytes, LEASES, |lease| state.restore_lease(lease))?;
        read_parts(bytes, LOCKS, |lock| state.restore_grant(lock))?;
        let tokens: BTreeSet<Token> = state.grants().map(|(_, grant)| grant.token).collect();
        if tokens.len() != state.grants().count() {
            return malformed("two grants have the same token");
        }
        if mutants::SNAPSHOT_WITHOUT_THE_COUNTER.is_active() {
            state.last_token = tokens.last().copied().unwrap_or(Token(0));
        }
        read_parts(bytes, MEMBERS, |member| state.restore_member(member))?;
        let known = || state.members.values().filter_map(|node| node.identity);
        let identities: BTreeSet<NodeIdentity> = known().collect();
        if identities.len() != known().count() {
            return malformed("two members have the same identity");
        }
        let names: BTreeSet<&NodeName> = state.members.values().map(|node| &node.name).collect();
        if names.len() != state.members.len() {
            return malformed("two members have the same name");
        }
        read_parts(bytes, LEASE_REQUESTS, |request| state.restore_lease_request(&request))?;
        read_parts(bytes, WAITS, |wait| state.restore_wait(wait))?;
        state.quarantine = head.quarantine;
        state.epoch = decode_epoch(head.epoch, &state)?;
        if state.quarantine && !state.locks.is_empty() {
            return malformed("it is in quarantine, and locks are held");
        }
        read_parts(bytes, INVITATIONS, |invitation| state.restore_invitation(&invitation))?;
        read_parts(bytes, PRINCIPALS, |principal| state.restore_principal(&principal))?;
        state.require_access(head.access_required && !mutants::SNAPSHOT_WITHOUT_THE_SWITCH.is_active());
        read_parts(bytes, BACKUP_SCHEDULE, |schedule| state.restore_backup_schedule(schedule))?;
        state.check_queues()?;
        if let Some(place) = &head.place {
            state.restore_place(place)?;
        }
        Ok(state)
    }

    /// One number for the whole state: replicas that applied the same entries have the same.
    pub fn hash(&self) -> u64 {
        Self::hash_of_snapshot(&self.encode_snapshot())
    }

    /// The hash of the state that these bytes encode, without decoding them.
    pub fn hash_of_snapshot(bytes: &[u8]) -> u64 {
        let mut hash = Fnv::new();
        hash.put(bytes);
        hash.finish()
    }

    fn restore_lease(&mut self, proto: LeaseProto) -> Result<(), SnapshotError> {
        let id = LeaseId(proto.id);
        if id.0 == 0 || id > self.last_lease {
            return malformed(format!("lease {id} is beyond the counter {}", self.last_lease));
        }
        let mut lease = Lease::new(OwnerId::parse(&proto.owner)?, Ttl::parse(proto.ttl_seconds)?);
        lease.is_waiting = proto.is_waiting;
        if proto.requests.len() > REQUESTS_PER_LEASE_KEPT {
            return malformed(format!("lease {id} remembers more requests than are kept"));
        }
        for request in proto.requests {
            let key = RequestId::parse(&request.request)?;
            if lease.requests.get(&key).is_some() {
                return malformed(format!("lease {id} remembers request {key} twice"));
            }
            lease.requests.insert(key, remembered(&request)?);
        }
        match self.put_lease(id, lease) {
            Some(_) => malformed(format!("lease {id} is there twice")),
            None => Ok(()),
        }
    }

    fn restore_lease_request(&mut self, proto: &RequestProto) -> Result<(), SnapshotError> {
        if self.lease_requests.len() == LEASE_REQUESTS_KEPT {
            return malformed("it remembers more requests than are kept");
        }
        let (owner, request) = (OwnerId::parse(&proto.owner)?, RequestId::parse(&proto.request)?);
        let remembered = remembered(proto)?;
        // Texts that the lease has, too, are kept once: as they were before the snapshot.
        let lease = match remembered.reply {
            Reply::LeaseCreated { lease, .. } | Reply::Granted { lease, .. } => self.leases.get(&lease),
            _ => None,
        };
        let granted = lease.and_then(|lease| {
            let lock = lease.held.only()?;
            self.locks.get(lock)?.holders.iter().find(|grant| grant.request == request)
        });
        let key = (
            lease.map(|lease| &lease.owner).filter(|known| **known == owner).unwrap_or(&owner).clone(),
            granted.map_or(&request, |grant| &grant.request).clone(),
        );
        if self.lease_requests.get(&key).is_some() {
            return malformed(format!("it remembers request {request} twice"));
        }
        self.lease_requests.insert(key, remembered);
        Ok(())
    }

    fn restore_grant(&mut self, proto: LockProto) -> Result<(), SnapshotError> {
        let name = LockName::parse(&proto.name)?;
        let token = Token(proto.token);
        if token.0 == 0 || token > self.last_token {
            return malformed(format!("the token {token} of lock {name} is beyond the counter"));
        }
        if proto.revision > self.revision {
            return malformed(format!(
                "lock {name} was granted at revision {}, which is yet to come",
                proto.revision
            ));
        }
        let lease_id = LeaseId(proto.lease);
        let Some(lease) = self.leases.get_mut(&lease_id) else {
            return malformed(format!("lock {name} is held by lease {lease_id}, which does not exist"));
        };
        if !lease.held.insert(name.clone(), token) || lease.is_waiting {
            return malformed(format!("lock {name} is held by lease {lease_id}, which cannot be"));
        }
        // As in the lease's memory of requests: one text, kept once.
        let request = RequestId::parse(&proto.request)?;
        let request = lease.requests.known(&request).cloned().unwrap_or(request);
        let value = match mutants::SNAPSHOT_WITHOUT_VALUES.is_active() {
            false => Value::parse(&proto.value)?,
            true => Value::default(),
        };
        let grant = Grant {
            lease: lease_id,
            token,
            mode: decode_mode(proto.mode)?,
            scope: decode_scope(proto.scope)?,
            value,
            revision: proto.revision,
            since_unix_ms: proto.since_unix_ms,
            asked_unix_ms: proto.asked_unix_ms,
            request,
            max_hold: match mutants::SNAPSHOT_WITHOUT_LIMITS.is_active() {
                false => MaxHold::parse(proto.max_hold_seconds.into())?,
                true => None,
            },
        };
        self.paths.hold(&name, lease_id, grant.mode, grant.scope);
        // One stands for all who share it.
        if let Some(other) = self.locks.get(&name).and_then(|lock| lock.holders.iter().next())
            && [other.mode, grant.mode] != [Mode::Shared; 2]
        {
            let other = other.lease;
            return malformed(format!(
                "{name} is held by leases {other} and {lease_id}, which exclude each other"
            ));
        }
        self.put_grant(&name, grant);
        Ok(())
    }

    fn restore_wait(&mut self, proto: WaitProto) -> Result<(), SnapshotError> {
        let ticket = Ticket(proto.ticket);
        if ticket.0 == 0 || ticket.0 > self.revision || self.waits.contains_key(&ticket) {
            return malformed(format!("place {ticket} is there twice, or is yet to come"));
        }
        let lease_id = LeaseId(proto.lease);
        let request = RequestId::parse(&proto.request)?;
        let Some(lease) = self.leases.get(&lease_id) else {
            return malformed(format!("lease {lease_id} waits, and does not exist"));
        };
        let key = (lease.owner.clone(), request.clone());
        let known = match proto.makes_lease {
            true => self.lease_making_waits.contains_key(&key) || self.lease_requests.get(&key).is_some(),
            false => lease.requests.get(&request).is_some(),
        };
        let waits = lease.waits.as_ref();
        let waits_already = match proto.makes_lease {
            true => waits.is_some(),
            false => waits.is_some_and(|waits| waits.by_request.contains_key(&request)),
        };
        if known || waits_already || lease.is_waiting != proto.makes_lease {
            return malformed(format!("lease {lease_id} waits with request {request}, which cannot be"));
        }
        let wait = Wait {
            lock: LockName::parse(&proto.lock)?,
            lease: lease_id,
            mode: decode_mode(proto.mode)?,
            scope: decode_scope(proto.scope)?,
            value: Value::parse(&proto.value)?,
            request,
            asked_unix_ms: proto.asked_unix_ms,
            fingerprint: proto.fingerprint,
            makes_lease: proto.makes_lease,
            max_hold: MaxHold::parse(proto.max_hold_seconds.into())?,
        };
        if let Some(own) = self.claimed(lease_id, &wait.lock)
            && !own.may_be_asked_for_again(Claimed::by(&wait))
        {
            let lock = wait.lock;
            return malformed(format!(
                "lease {lease_id} waits for {lock} otherwise than it has or awaits it"
            ));
        }
        if !mutants::SNAPSHOT_WITHOUT_WAITS.is_active() {
            self.enqueue(ticket, wait, &mut Vec::new());
        }
        Ok(())
    }

    /// A lease that waits to begin has the wait that made it; holders bear each other; nobody waits
    /// for nothing.
    fn check_queues(&self) -> Result<(), SnapshotError> {
        if let Some((id, _)) = self.leases().find(|(_, lease)| lease.is_waiting && lease.waits.is_none())
            && !mutants::SNAPSHOT_WITHOUT_WAITS.is_active()
        {
            return malformed(format!("lease {id} waits for nothing"));
        }
        match self.contradiction() {
            Some(what) => malformed(what),
            None => Ok(()),
        }
    }

    fn restore_member(&mut self, proto: MemberProto) -> Result<(), SnapshotError> {
        let id = MemberId(proto.id);
        if id.0 == 0 || id > self.last_member {
            return malformed(format!("member {id} is beyond the counter {}", self.last_member));
        }
        let Some(node) = proto.node else {
            return malformed(format!("member {id} is not described"));
        };
        match self.put_member(id, NodeInfo::try_from(node)?) {
            Some(_) => malformed(format!("member {id} is there twice")),
            None => Ok(()),
        }
    }

    fn restore_principal(&mut self, proto: &PrincipalProto) -> Result<(), SnapshotError> {
        let (name, principal) = restored(proto)?;
        let access = self.access();
        if access.principal(&name).is_some() {
            return malformed(format!("principal {name} is there twice"));
        }
        if access.shares_a_proof(&principal) {
            return malformed(format!("principal {name} has the proof of another one"));
        }
        if access.principals().len() == PRINCIPALS_MAX {
            return malformed("it has more principals than are kept");
        }
        self.put_principal(&name, Some(principal));
        Ok(())
    }

    /// What the group has is its own.
    fn restore_place(&mut self, proto: &PlaceProto) -> Result<(), SnapshotError> {
        let place = Place::try_from(proto)?;
        let is_own = |id: &LeaseId| place.group_of_lease(*id) == Some(place.group);
        if let Some((id, _)) = self.leases().find(|(id, _)| !is_own(id)) {
            return malformed(format!("lease {id} is not of group {}", place.group));
        }
        let claims = self.grants().map(|(lock, grant)| (lock, grant.scope));
        let mut claims = claims.chain(self.waits.values().map(|wait| (&wait.lock, wait.scope)));
        let is_outside = |(lock, scope): &(&LockName, Scope)| match scope {
            Scope::Name => !place.range.contains(lock),
            Scope::Subtree => !place.range.contains_subtree(lock),
        };
        if let Some((lock, _)) = claims.find(is_outside) {
            return malformed(format!("lock {lock} is not in the range {}", place.range));
        }
        drop(claims);
        self.change_place(|own| *own = place);
        Ok(())
    }

    fn restore_backup_schedule(&mut self, proto: BackupScheduleProto) -> Result<(), SnapshotError> {
        if self.backup_schedule().is_some() {
            return malformed("the schedule of backups is there twice");
        }
        let Some(schedule) = proto.decode()? else {
            return malformed("the schedule of backups is empty");
        };
        if !mutants::SNAPSHOT_WITHOUT_THE_SCHEDULE.is_active() {
            self.set_backup_schedule(Some(Arc::new(schedule)));
        }
        Ok(())
    }

    fn restore_invitation(&mut self, proto: &InvitationProto) -> Result<(), SnapshotError> {
        let Some(hash) = decode_hash(&proto.hash)?.map(InvitationHash) else {
            return malformed("an invitation has no hash");
        };
        let used_by = match proto.used_by.as_slice() {
            [] => None,
            bytes => match <[u8; 16]>::try_from(bytes) {
                Ok(identity) => Some(NodeIdentity(identity)),
                Err(_) => return malformed("an invitation was used by an identity that is not 16 bytes"),
            },
        };
        if self.invitation(hash).is_some() {
            return malformed("an invitation is there twice");
        }
        if self.invitations.len() == INVITATIONS_MAX {
            return malformed("it has more invitations than are kept");
        }
        self.put_invitation(hash, Invitation { expires_unix_ms: proto.expires_unix_ms, used_by });
        Ok(())
    }
}

fn decode_epoch(number: u64, state: &State) -> Result<Option<Epoch>, SnapshotError> {
    if number == 0 {
        return Ok(None);
    }
    let Some(epoch) = Epoch::new(number) else { return malformed(format!("{number} is no epoch")) };
    let lowest = state.last_token.0.min(state.last_lease.0).min(state.revision);
    if lowest < epoch.first_counter() {
        return malformed(format!("a counter stands at {lowest}, below the first number of epoch {epoch}"));
    }
    Ok(Some(epoch))
}

fn invitation_proto(hash: InvitationHash, known: &Invitation) -> InvitationProto {
    InvitationProto {
        hash: hash.0.to_vec(),
        expires_unix_ms: known.expires_unix_ms,
        used_by: known.used_by.map(|identity| identity.0.to_vec()).unwrap_or_default(),
    }
}

fn lease_proto(id: LeaseId, lease: &Lease) -> LeaseProto {
    LeaseProto {
        id: id.0,
        owner: lease.owner.to_string(),
        ttl_seconds: lease.ttl.seconds(),
        requests: lease
            .requests
            .iter()
            .filter(|_| !mutants::SNAPSHOT_WITHOUT_THE_REQUESTS_OF_LEASES.is_active())
            .map(|(request, remembered)| request_proto(None, request, remembered))
            .collect(),
        is_waiting: lease.is_waiting,
    }
}

fn wait_proto(ticket: Ticket, wait: &Wait) -> WaitProto {
    WaitProto {
        ticket: ticket.0,
        lock: wait.lock.to_string(),
        lease: wait.lease.0,
        mode: encode_mode(wait.mode),
        scope: encode_scope(wait.scope),
        value: wait.value.as_str().to_owned(),
        request: wait.request.to_string(),
        fingerprint: wait.fingerprint,
        makes_lease: wait.makes_lease,
        asked_unix_ms: wait.asked_unix_ms,
        max_hold_seconds: max_hold_seconds(wait.max_hold),
    }
}

fn lock_proto(name: &LockName, grant: &Grant) -> LockProto {
    LockProto {
        name: name.to_string(),
        lease: grant.lease.0,
        token: grant.token.0,
        revision: grant.revision,
        since_unix_ms: grant.since_unix_ms,
        request: grant.request.to_string(),
        mode: encode_mode(grant.mode),
        scope: encode_scope(grant.scope),
        value: grant.value.as_str().to_owned(),
        asked_unix_ms: grant.asked_unix_ms,
        max_hold_seconds: max_hold_seconds(grant.max_hold),
    }
}

fn request_proto(owner: Option<&OwnerId>, request: &RequestId, remembered: &Remembered) -> RequestProto {
    let reply = match &remembered.reply {
        Reply::LeaseCreated { lease, ttl } => {
            ReplyProto::LeaseCreated(LeaseCreatedProto { lease: lease.0, ttl_seconds: ttl.seconds() })
        }
        Reply::LeaseRevoked { released } => ReplyProto::LeaseRevoked(*released),
        Reply::Granted { token, lease, ttl, revision } => ReplyProto::Granted(GrantedProto {
            token: token.0,
            lease: lease.0,
            ttl_seconds: ttl.seconds(),
            revision: *revision,
        }),
        Reply::Released => ReplyProto::Released(true),
        Reply::GivenUp => ReplyProto::Released(false),
        Reply::ValueSet { revision } => ReplyProto::ValueSet(*revision),
        Reply::Waiting { .. }
        | Reply::WaitsCancelled { .. }
        | Reply::Expired { .. }
        | Reply::HoldsEnded { .. }
        | Reply::MemberAdded { .. }
        | Reply::MemberRemoved { .. }
        | Reply::QuarantineEnded
        | Reply::Invited { .. }
        | Reply::AccessChanged
        | Reply::GroupPlanned { .. }
        | Reply::GroupSplit { .. }
        | Reply::GroupsChanged
        | Reply::BackupScheduleSet => {
            unreachable!("only requests of clients that had their effect are remembered")
        }
    };
    RequestProto {
        request: request.to_string(),
        owner: owner.map(ToString::to_string).unwrap_or_default(),
        fingerprint: remembered.fingerprint,
        reply: Some(reply),
    }
}

fn remembered(proto: &RequestProto) -> Result<Remembered, SnapshotError> {
    let reply = match &proto.reply {
        Some(ReplyProto::LeaseCreated(created)) => {
            Reply::LeaseCreated { lease: LeaseId(created.lease), ttl: Ttl::parse(created.ttl_seconds)? }
        }
        Some(ReplyProto::LeaseRevoked(released)) => Reply::LeaseRevoked { released: *released },
        Some(ReplyProto::Granted(granted)) => Reply::Granted {
            token: Token(granted.token),
            lease: LeaseId(granted.lease),
            ttl: Ttl::parse(granted.ttl_seconds)?,
            revision: granted.revision,
        },
        Some(ReplyProto::Released(true)) => Reply::Released,
        Some(ReplyProto::Released(false)) => Reply::GivenUp,
        Some(ReplyProto::ValueSet(revision)) => Reply::ValueSet { revision: *revision },
        None => return malformed(format!("request {} is remembered without its reply", proto.request)),
    };
    Ok(Remembered { fingerprint: proto.fingerprint, reply })
}
