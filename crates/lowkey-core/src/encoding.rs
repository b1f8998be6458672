//! The bytes of commands: versioned protobuf, one message a log entry.
//!
//! The structs here are the format and nothing else; they never leave this file. Numbers are never
//! reused. Decoding trusts nothing: whatever is not exactly a command of a known kind is an error,
//! and the caller must stop rather than skip it, or replicas would drift apart.

use std::fmt;

use prost::Message as _;

use crate::command::{AcquireWith, Command, GrantRef, NodeInfo, Requester};
use crate::name::{Invalid, LeaseId, LockName, NodeIdentity, NodeName, OwnerId, RequestId, Token, Ttl};

/// The version of the command set that this build understands. Raised with every new kind.
pub const COMMAND_VERSION: u32 = 1;

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

#[derive(Clone, PartialEq, prost::Message)]
struct CommandProto {
    #[prost(oneof = "Kind", tags = "1, 2, 3, 4, 5, 6")]
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
}

#[derive(Clone, PartialEq, prost::Message)]
struct ExpireProto {
    #[prost(uint64, repeated, tag = "1")]
    leases: Vec<u64>,
    #[prost(uint64, tag = "2")]
    decided_term: u64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct NodeInfoProto {
    #[prost(string, tag = "1")]
    name: String,
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
}

impl Command {
    /// The command as the data of a log entry. Never empty: an empty entry is Raft's own.
    pub fn encode(&self) -> Vec<u8> {
        CommandProto { kind: Some(self.to_proto()) }.encode_to_vec()
    }

    /// Reads what [`Command::encode`] wrote, of this or an earlier version.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let proto = CommandProto::decode(bytes).map_err(|error| DecodeError::Malformed(error.to_string()))?;
        let command = Self::from_proto(proto.kind.ok_or(DecodeError::UnknownKind)?)?;
        // Protobuf passes over what it does not know. A replica must not: it would carry out half of
        // what a newer one carries out whole.
        if command.encode() == bytes { Ok(command) } else { Err(DecodeError::UnknownKind) }
    }

    /// A number that tells two commands apart that share a request id. What may differ between a
    /// request and its honest retry, the proposer's wall clock, is left out.
    pub(crate) fn fingerprint(&self) -> u64 {
        let mut kind = self.to_proto();
        if let Kind::Acquire(acquire) = &mut kind {
            acquire.since_unix_ms = 0;
        }
        crate::snapshot::fnv1a(&CommandProto { kind: Some(kind) }.encode_to_vec())
    }

    fn to_proto(&self) -> Kind {
        match self {
            Self::CreateLease { owner, ttl, request } => Kind::CreateLease(CreateLeaseProto {
                owner: owner.to_string(),
                ttl_seconds: ttl.seconds(),
                request: request.to_string(),
            }),
            Self::RevokeLease { lease, owner, request } => Kind::RevokeLease(RevokeLeaseProto {
                lease: lease.0,
                owner: owner.to_string(),
                request: request.to_string(),
            }),
            Self::Acquire { lock, owner, with, since_unix_ms, request } => {
                let (lease, new_lease_ttl_seconds) = match with {
                    AcquireWith::Lease(lease) => (lease.0, 0),
                    AcquireWith::NewLease(ttl) => (0, ttl.seconds()),
                };
                Kind::Acquire(AcquireProto {
                    lock: lock.to_string(),
                    owner: owner.to_string(),
                    lease,
                    new_lease_ttl_seconds,
                    since_unix_ms: *since_unix_ms,
                    request: request.to_string(),
                })
            }
            Self::Release { lock, grant, token, request } => {
                let (lease, acquire_request, owner) = match grant {
                    GrantRef::Lease(lease) => (lease.0, String::new(), String::new()),
                    GrantRef::Request(acquire, Requester::Lease(lease)) => {
                        (lease.0, acquire.to_string(), String::new())
                    }
                    GrantRef::Request(acquire, Requester::Owner(owner)) => {
                        (0, acquire.to_string(), owner.to_string())
                    }
                };
                Kind::Release(ReleaseProto {
                    lock: lock.to_string(),
                    lease,
                    acquire_request,
                    token: token.map_or(0, |token| token.0),
                    request: request.to_string(),
                    owner,
                })
            }
            Self::Expire { leases, decided_term } => Kind::Expire(ExpireProto {
                leases: leases.iter().map(|lease| lease.0).collect(),
                decided_term: *decided_term,
            }),
            Self::AddMember { node } => Kind::AddMember(NodeInfoProto::from(node)),
        }
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
                request: RequestId::parse(&proto.request)?,
            },
            Kind::Acquire(proto) => Self::Acquire {
                lock: LockName::parse(&proto.lock)?,
                owner: OwnerId::parse(&proto.owner)?,
                with: match proto.lease {
                    0 => AcquireWith::NewLease(Ttl::parse(proto.new_lease_ttl_seconds)?),
                    lease => AcquireWith::Lease(LeaseId(lease)),
                },
                since_unix_ms: proto.since_unix_ms,
                request: RequestId::parse(&proto.request)?,
            },
            Kind::Release(proto) => {
                let grant = match (proto.lease, proto.acquire_request.as_str()) {
                    (0, "") => return Err(DecodeError::Malformed("a release that names no grant".into())),
                    (lease, "") => GrantRef::Lease(LeaseId(lease)),
                    (0, acquire) => {
                        let owner = Requester::Owner(OwnerId::parse(&proto.owner)?);
                        GrantRef::Request(RequestId::parse(acquire)?, owner)
                    }
                    (lease, acquire) => {
                        GrantRef::Request(RequestId::parse(acquire)?, Requester::Lease(LeaseId(lease)))
                    }
                };
                Self::Release {
                    lock: LockName::parse(&proto.lock)?,
                    grant,
                    token: (proto.token != 0).then_some(Token(proto.token)),
                    request: RequestId::parse(&proto.request)?,
                }
            }
            Kind::Expire(proto) => Self::Expire {
                leases: proto.leases.into_iter().map(LeaseId).collect(),
                decided_term: proto.decided_term,
            },
            Kind::AddMember(proto) => Self::AddMember { node: proto.try_into()? },
        })
    }
}

impl From<&NodeInfo> for NodeInfoProto {
    fn from(node: &NodeInfo) -> Self {
        Self {
            name: node.name.to_string(),
            identity: node.identity.0.to_vec(),
            raft_address: node.raft_address.clone(),
            grpc_address: node.grpc_address.clone(),
            http_address: node.http_address.clone(),
            command_version: node.command_version,
        }
    }
}

impl TryFrom<NodeInfoProto> for NodeInfo {
    type Error = DecodeError;

    fn try_from(proto: NodeInfoProto) -> Result<Self, DecodeError> {
        let identity = <[u8; 16]>::try_from(proto.identity.as_slice())
            .map_err(|_| DecodeError::Malformed("a node identity that is not 16 bytes".into()))?;
        Ok(Self {
            name: NodeName::parse(&proto.name)?,
            identity: NodeIdentity(identity),
            raft_address: proto.raft_address,
            grpc_address: proto.grpc_address,
            http_address: proto.http_address,
            command_version: proto.command_version,
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
