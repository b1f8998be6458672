//! The snapshot's format as a stranger would read it: written down a second time, so that a change of
//! the real one shows. The tests read counters with it, and make snapshots that contradict themselves.

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct StateWire {
    #[prost(uint32, tag = "1")]
    pub(crate) version: u32,
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) cluster: Vec<u8>,
    #[prost(uint64, tag = "3")]
    pub(crate) revision: u64,
    #[prost(uint64, tag = "4")]
    pub(crate) last_token: u64,
    #[prost(uint64, tag = "5")]
    pub(crate) last_lease: u64,
    #[prost(uint64, tag = "6")]
    pub(crate) last_member: u64,
    #[prost(message, repeated, tag = "7")]
    pub(crate) leases: Vec<LeaseWire>,
    #[prost(message, repeated, tag = "8")]
    pub(crate) locks: Vec<LockWire>,
    #[prost(message, repeated, tag = "9")]
    pub(crate) members: Vec<MemberWire>,
    #[prost(message, repeated, tag = "10")]
    pub(crate) lease_requests: Vec<RequestWire>,
    #[prost(message, repeated, tag = "11")]
    pub(crate) waits: Vec<WaitWire>,
    #[prost(bool, tag = "12")]
    pub(crate) quarantine: bool,
    #[prost(message, repeated, tag = "20")]
    pub(crate) invitations: Vec<InvitationWire>,
    #[prost(message, repeated, tag = "24")]
    pub(crate) principals: Vec<PrincipalWire>,
    #[prost(bool, tag = "25")]
    pub(crate) access_required: bool,
    #[prost(uint64, tag = "55")]
    pub(crate) epoch: u64,
    #[prost(message, repeated, tag = "56")]
    pub(crate) backup_schedule: Vec<BackupScheduleWire>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct BackupScheduleWire {
    #[prost(string, tag = "1")]
    pub(crate) to: String,
    #[prost(uint32, tag = "2")]
    pub(crate) every_seconds: u32,
    #[prost(uint32, tag = "3")]
    pub(crate) keep: u32,
    #[prost(bool, tag = "4")]
    pub(crate) is_off: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct LeaseWire {
    #[prost(uint64, tag = "1")]
    pub(crate) id: u64,
    #[prost(string, tag = "2")]
    pub(crate) owner: String,
    #[prost(int64, tag = "3")]
    pub(crate) ttl_seconds: i64,
    #[prost(message, repeated, tag = "4")]
    pub(crate) requests: Vec<RequestWire>,
    #[prost(bool, tag = "5")]
    pub(crate) is_waiting: bool,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct LockWire {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(uint64, tag = "2")]
    pub(crate) lease: u64,
    #[prost(uint64, tag = "3")]
    pub(crate) token: u64,
    #[prost(uint64, tag = "4")]
    pub(crate) revision: u64,
    #[prost(uint64, tag = "5")]
    pub(crate) since_unix_ms: u64,
    #[prost(string, tag = "6")]
    pub(crate) request: String,
    #[prost(uint32, tag = "7")]
    pub(crate) mode: u32,
    #[prost(uint32, tag = "8")]
    pub(crate) scope: u32,
    #[prost(string, tag = "9")]
    pub(crate) value: String,
    #[prost(uint64, tag = "20")]
    pub(crate) asked_unix_ms: u64,
    #[prost(uint32, tag = "24")]
    pub(crate) max_hold_seconds: u32,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct WaitWire {
    #[prost(uint64, tag = "1")]
    pub(crate) ticket: u64,
    #[prost(string, tag = "2")]
    pub(crate) lock: String,
    #[prost(uint64, tag = "3")]
    pub(crate) lease: u64,
    #[prost(uint32, tag = "4")]
    pub(crate) mode: u32,
    #[prost(uint32, tag = "5")]
    pub(crate) scope: u32,
    #[prost(string, tag = "6")]
    pub(crate) value: String,
    #[prost(string, tag = "7")]
    pub(crate) request: String,
    #[prost(fixed64, tag = "8")]
    pub(crate) fingerprint: u64,
    #[prost(bool, tag = "9")]
    pub(crate) makes_lease: bool,
    #[prost(uint64, tag = "20")]
    pub(crate) asked_unix_ms: u64,
    #[prost(uint32, tag = "24")]
    pub(crate) max_hold_seconds: u32,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct MemberWire {
    #[prost(uint64, tag = "1")]
    pub(crate) id: u64,
    #[prost(message, optional, tag = "2")]
    pub(crate) node: Option<NodeWire>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct NodeWire {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) identity: Vec<u8>,
    #[prost(string, tag = "3")]
    pub(crate) raft_address: String,
    #[prost(string, tag = "4")]
    pub(crate) grpc_address: String,
    #[prost(string, tag = "5")]
    pub(crate) http_address: String,
    #[prost(uint32, tag = "6")]
    pub(crate) command_version: u32,
    #[prost(bytes = "vec", tag = "20")]
    pub(crate) key_hash: Vec<u8>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct InvitationWire {
    #[prost(bytes = "vec", tag = "1")]
    pub(crate) hash: Vec<u8>,
    #[prost(uint64, tag = "2")]
    pub(crate) expires_unix_ms: u64,
    #[prost(bytes = "vec", tag = "3")]
    pub(crate) used_by: Vec<u8>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct PrincipalWire {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(string, repeated, tag = "2")]
    pub(crate) names: Vec<String>,
    #[prost(message, repeated, tag = "3")]
    pub(crate) tokens: Vec<TokenWire>,
    #[prost(message, repeated, tag = "4")]
    pub(crate) grants: Vec<GrantWire>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct TokenWire {
    #[prost(bytes = "vec", tag = "1")]
    pub(crate) id: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) hash: Vec<u8>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct GrantWire {
    #[prost(string, tag = "1")]
    pub(crate) path: String,
    #[prost(uint32, tag = "2")]
    pub(crate) verbs: u32,
}

/// A remembered request. Of the last five fields, the replies, one is set.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct RequestWire {
    #[prost(string, tag = "1")]
    pub(crate) request: String,
    #[prost(string, tag = "2")]
    pub(crate) owner: String,
    #[prost(fixed64, tag = "3")]
    pub(crate) fingerprint: u64,
    #[prost(message, optional, tag = "4")]
    pub(crate) lease_created: Option<LeaseCreatedWire>,
    #[prost(uint64, optional, tag = "5")]
    pub(crate) lease_revoked: Option<u64>,
    #[prost(message, optional, tag = "6")]
    pub(crate) granted: Option<GrantedWire>,
    #[prost(bool, optional, tag = "7")]
    pub(crate) released: Option<bool>,
    #[prost(uint64, optional, tag = "8")]
    pub(crate) value_set: Option<u64>,
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
pub(crate) struct LeaseCreatedWire {
    #[prost(uint64, tag = "1")]
    pub(crate) lease: u64,
    #[prost(int64, tag = "2")]
    pub(crate) ttl_seconds: i64,
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
pub(crate) struct GrantedWire {
    #[prost(uint64, tag = "1")]
    pub(crate) token: u64,
    #[prost(uint64, tag = "2")]
    pub(crate) lease: u64,
    #[prost(int64, tag = "3")]
    pub(crate) ttl_seconds: i64,
    #[prost(uint64, tag = "4")]
    pub(crate) revision: u64,
}
