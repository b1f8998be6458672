//! The few calls of etcd that are needed: their messages, by their public field numbers, and their paths.

use prost::Message;

#[derive(Clone, PartialEq, Message)]
pub(super) struct EtcdHeader {
    #[prost(uint64, tag = "2")]
    pub(super) member_id: u64,
    #[prost(int64, tag = "3")]
    pub(super) revision: i64,
}

/// What must be so for a transaction to succeed: here, that a key does not exist.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Compare {
    #[prost(int32, tag = "1")]
    pub(super) result: i32,
    #[prost(int32, tag = "2")]
    pub(super) target: i32,
    #[prost(bytes = "vec", tag = "3")]
    pub(super) key: Vec<u8>,
    #[prost(int64, optional, tag = "5")]
    pub(super) create_revision: Option<i64>,
}

const EQUAL: i32 = 0;
const TARGET_CREATE: i32 = 1;

#[derive(Clone, PartialEq, Message)]
pub(super) struct Put {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub(super) value: Vec<u8>,
    #[prost(int64, tag = "3")]
    pub(super) lease: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct RequestOp {
    #[prost(message, optional, tag = "2")]
    pub(super) put: Option<Put>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Txn {
    #[prost(message, repeated, tag = "1")]
    pub(super) compare: Vec<Compare>,
    #[prost(message, repeated, tag = "2")]
    pub(super) success: Vec<RequestOp>,
}

impl Txn {
    /// Creates a key with a lease, unless it exists.
    pub(super) fn create(key: &[u8], lease: i64) -> Self {
        let compare =
            Compare { result: EQUAL, target: TARGET_CREATE, key: key.to_vec(), create_revision: Some(0) };
        let put = Put { key: key.to_vec(), value: Vec::new(), lease };
        Self { compare: vec![compare], success: vec![RequestOp { put: Some(put) }] }
    }
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct TxnDone {
    #[prost(message, optional, tag = "1")]
    pub(super) header: Option<EtcdHeader>,
    #[prost(bool, tag = "2")]
    pub(super) succeeded: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Range {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) key: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    pub(super) range_end: Vec<u8>,
    #[prost(bool, tag = "9")]
    pub(super) count_only: bool,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct EtcdFound {
    #[prost(int64, tag = "4")]
    pub(super) count: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Delete {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) key: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Deleted {
    #[prost(int64, tag = "2")]
    pub(super) deleted: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct LeaseGrant {
    #[prost(int64, tag = "1")]
    pub(super) ttl: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct LeaseGranted {
    #[prost(int64, tag = "2")]
    pub(super) id: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct LeaseRevoke {
    #[prost(int64, tag = "1")]
    pub(super) id: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Nothing {}

#[derive(Clone, PartialEq, Message)]
pub(super) struct EtcdLock {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) name: Vec<u8>,
    #[prost(int64, tag = "2")]
    pub(super) lease: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Locked {
    #[prost(message, optional, tag = "1")]
    pub(super) header: Option<EtcdHeader>,
    #[prost(bytes = "vec", tag = "2")]
    pub(super) key: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct NodeStatus {
    #[prost(message, optional, tag = "1")]
    pub(super) header: Option<EtcdHeader>,
    #[prost(uint64, tag = "4")]
    pub(super) leader: u64,
    #[prost(uint64, tag = "5")]
    pub(super) raft_index: u64,
}

pub(super) const TXN: &str = "/etcdserverpb.KV/Txn";
pub(super) const RANGE: &str = "/etcdserverpb.KV/Range";
pub(super) const DELETE: &str = "/etcdserverpb.KV/DeleteRange";
pub(super) const LEASE_GRANT: &str = "/etcdserverpb.Lease/LeaseGrant";
pub(super) const LEASE_REVOKE: &str = "/etcdserverpb.Lease/LeaseRevoke";
pub(super) const LOCK: &str = "/v3lockpb.Lock/Lock";
pub(super) const UNLOCK: &str = "/v3lockpb.Lock/Unlock";
pub(super) const STATUS: &str = "/etcdserverpb.Maintenance/Status";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_created_only_if_its_revision_is_none() {
        // A zero that is said must be on the wire: one that is left out would compare with nothing.
        let bytes = Txn::create(b"a", 7).encode_to_vec();
        assert_eq!(
            bytes,
            [0x0a, 7, 0x10, 1, 0x1a, 1, b'a', 0x28, 0, 0x12, 7, 0x12, 5, 0x0a, 1, b'a', 0x18, 7]
        );
    }
}
