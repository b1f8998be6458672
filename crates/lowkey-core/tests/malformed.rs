//! Snapshots and entries come from a disk or from another machine: one that contradicts itself is refused.

use lowkey_core::limits::{LEASE_REQUESTS_KEPT, REQUESTS_PER_LEASE_KEPT};
use lowkey_core::{
    AcquireWith, COMMAND_VERSION, ClusterId, Command, DecodeError, LeaseId, LockName, NodeIdentity, NodeInfo,
    NodeName, OwnerId, RequestId, SNAPSHOT_VERSION, SnapshotError, State, Ttl,
};
use prost::Message as _;

mod wire;

use wire::{LeaseWire, LockWire, RequestWire, StateWire};

/// A snapshot with something of everything: two leases, two locks, two members, remembered requests.
fn sound() -> StateWire {
    let owner = OwnerId::parse("alice").expect("an owner id");
    let ttl = Ttl::parse(10).expect("a ttl");
    let lock = |name| LockName::parse(name).expect("a lock name");
    let request = |id| RequestId::parse(id).expect("a request id");
    let acquire = |name, with, id| Command::Acquire {
        lock: lock(name),
        owner: owner.clone(),
        with,
        since_unix_ms: 5,
        request: request(id),
    };
    let member = |name: &str, identity| Command::AddMember {
        node: NodeInfo {
            name: NodeName::parse(name).expect("a node name"),
            identity: NodeIdentity([identity; 16]),
            raft_address: "host:7000".to_owned(),
            grpc_address: "host:9000".to_owned(),
            http_address: "host:8080".to_owned(),
            command_version: COMMAND_VERSION,
        },
    };
    let commands = [
        Command::CreateLease { owner: owner.clone(), ttl, request: request("r1") },
        acquire("a", AcquireWith::Lease(LeaseId(1)), "r2"),
        acquire("b", AcquireWith::NewLease(ttl), "r3"),
        member("n1", 1),
        member("n2", 2),
    ];
    let mut state = State::new(ClusterId([7; 16]));
    for (revision, command) in (1..).zip(&commands) {
        assert!(state.apply(revision, 1, command).reply.is_ok(), "{command:?}");
    }
    StateWire::decode(state.encode_snapshot().as_slice()).expect("the format is as written down in the tests")
}

/// Reads a sound snapshot after a change, and says what was found wrong with it.
fn refused(change: impl FnOnce(&mut StateWire)) -> String {
    let mut snapshot = sound();
    change(&mut snapshot);
    match State::decode_snapshot(&snapshot.encode_to_vec()) {
        Err(SnapshotError::Malformed(what)) => what,
        other => panic!("not refused as malformed: {other:?}"),
    }
}

#[test]
fn the_format_is_as_written_down_in_the_tests() {
    let snapshot = sound();
    assert_eq!(snapshot.version, SNAPSHOT_VERSION);
    assert_eq!(snapshot.cluster, [7; 16]);
    assert_eq!((snapshot.revision, snapshot.last_token), (5, 2));
    assert_eq!((snapshot.last_lease, snapshot.last_member), (2, 2));

    let lease = &snapshot.leases[0];
    assert_eq!((lease.id, lease.owner.as_str(), lease.ttl_seconds), (1, "alice", 10));
    let granted = lease.requests[0].granted.unwrap();
    assert_eq!((granted.token, granted.lease, granted.ttl_seconds, granted.revision), (1, 1, 10, 2));
    assert_eq!(lease.requests[0].owner, "");

    let LockWire { name, lease, token, revision, since_unix_ms, request } = snapshot.locks[0].clone();
    assert_eq!((name.as_str(), lease, token), ("a", 1, 1));
    assert_eq!((revision, since_unix_ms, request.as_str()), (2, 5, "r2"));

    let node = snapshot.members[1].node.clone().unwrap();
    assert_eq!((snapshot.members[1].id, node.name.as_str(), node.identity), (2, "n2", vec![2; 16]));
    assert_eq!((node.raft_address.as_str(), node.grpc_address.as_str()), ("host:7000", "host:9000"));
    assert_eq!((node.http_address.as_str(), node.command_version), ("host:8080", COMMAND_VERSION));

    let made = &snapshot.lease_requests[0];
    assert_eq!((made.owner.as_str(), made.request.as_str()), ("alice", "r1"));
    let created = made.lease_created.unwrap();
    assert_eq!((created.lease, created.ttl_seconds), (1, 10));

    // Nothing is left over that the tests do not know of.
    let state = State::decode_snapshot(&snapshot.encode_to_vec()).unwrap();
    assert_eq!(state.encode_snapshot(), snapshot.encode_to_vec());
}

#[test]
fn a_snapshot_of_another_version_is_refused() {
    let mut later = sound();
    later.version = SNAPSHOT_VERSION + 1;
    assert_eq!(
        State::decode_snapshot(&later.encode_to_vec()),
        Err(SnapshotError::UnknownVersion(SNAPSHOT_VERSION + 1))
    );
    assert_eq!(refused(|snapshot| snapshot.version = 0), "it has no version");
}

#[test]
fn bytes_that_are_no_snapshot_are_refused() {
    assert!(matches!(State::decode_snapshot(&[]), Err(SnapshotError::Malformed(_))));
    assert!(matches!(State::decode_snapshot(&[0xff; 32]), Err(SnapshotError::Malformed(_))));
    let bytes = sound().encode_to_vec();
    assert!(State::decode_snapshot(&bytes[..bytes.len() - 1]).is_err());
}

#[test]
fn a_cluster_id_of_another_length_is_refused() {
    for length in [0, 15, 17] {
        assert_eq!(refused(|snapshot| snapshot.cluster = vec![7; length]), "its cluster id is not 16 bytes");
    }
}

#[test]
fn leases_that_cannot_be_are_refused() {
    assert!(refused(|s| s.last_lease = 1).contains("lease 2 is beyond the counter 1"));
    assert!(refused(|s| s.leases[0].id = 0).contains("lease 0 is beyond the counter"));
    assert!(refused(|s| s.leases[0].id = 3).contains("lease 3 is beyond the counter"));
    assert!(refused(|s| s.leases[1] = s.leases[0].clone()).contains("lease 1 is there twice"));
    assert!(refused(|s| s.leases[0].owner.clear()).contains("owner_id"));
    assert!(refused(|s| s.leases[0].ttl_seconds = 0).contains("ttl_seconds"));
    assert!(refused(|s| s.leases[0].ttl_seconds = 601).contains("ttl_seconds"));
}

#[test]
fn locks_that_cannot_be_are_refused() {
    assert!(refused(|s| s.last_token = 1).contains("the token 2 of lock b is beyond the counter"));
    assert!(refused(|s| s.locks[0].token = 0).contains("the token 0 of lock a is beyond the counter"));
    assert!(refused(|s| s.locks[0].lease = 3).contains("held by lease 3, which does not exist"));
    assert!(refused(|s| s.locks[0].lease = 0).contains("held by lease 0, which does not exist"));
    assert!(refused(|s| s.leases.truncate(1)).contains("lock b is held by lease 2, which does not exist"));
    assert!(refused(|s| s.locks[1] = s.locks[0].clone()).contains("lock a is held twice"));
    assert!(refused(|s| s.locks[1].name = "a".to_owned()).contains("lock a is held twice"));
    assert!(refused(|s| s.locks[0].name = "a//b".to_owned()).contains("lock_name"));
    assert!(refused(|s| s.locks[0].request.clear()).contains("request_id"));
    assert!(refused(|s| s.locks[0].token = 2).contains("two grants have the same token"));
    let yet_to_come = "lock a was granted at revision 6, which is yet to come";
    assert!(refused(|s| s.locks[0].revision = 6).contains(yet_to_come));
    let yet_to_come = "lock b was granted at revision 3, which is yet to come";
    assert!(refused(|s| s.revision = 2).contains(yet_to_come));
}

#[test]
fn a_grant_of_the_very_last_entry_is_sound() {
    let mut snapshot = sound();
    snapshot.revision = 3;
    let state = State::decode_snapshot(&snapshot.encode_to_vec()).unwrap();
    assert_eq!(state.locks().map(|(_, grant)| grant.revision).max(), Some(state.revision()));
}

#[test]
fn members_that_cannot_be_are_refused() {
    assert!(refused(|s| s.last_member = 1).contains("member 2 is beyond the counter 1"));
    assert!(refused(|s| s.members[0].id = 0).contains("member 0 is beyond the counter"));
    assert!(refused(|s| s.members[1].id = 1).contains("member 1 is there twice"));
    assert!(refused(|s| s.members[0].node = None).contains("member 1 is not described"));
    let node = |s: &mut StateWire| s.members[0].node.take().unwrap_or_default();
    assert!(
        refused(|s| s.members[0].node = Some(wire::NodeWire { identity: vec![1; 15], ..node(s) }))
            .contains("not 16 bytes")
    );
    assert!(
        refused(|s| s.members[0].node = Some(wire::NodeWire { name: String::new(), ..node(s) }))
            .contains("node_id")
    );
    // Also under another name: the identity is the node.
    assert!(
        refused(|s| s.members[0].node = Some(wire::NodeWire { identity: vec![2; 16], ..node(s) }))
            .contains("two members have the same identity")
    );
}

#[test]
fn remembered_requests_that_cannot_be_are_refused() {
    let bare = |s: &mut StateWire| s.leases[0].requests[0].granted = None;
    assert!(refused(bare).contains("request r2 is remembered without its reply"));
    let bare = |s: &mut StateWire| s.lease_requests[0].lease_created = None;
    assert!(refused(bare).contains("request r1 is remembered without its reply"));

    let twice = |s: &mut StateWire| {
        let request = s.leases[0].requests[0].clone();
        s.leases[0].requests.push(request);
    };
    assert!(refused(twice).contains("lease 1 remembers request r2 twice"));
    let twice = |s: &mut StateWire| s.lease_requests.push(s.lease_requests[0].clone());
    assert!(refused(twice).contains("it remembers request r1 twice"));

    assert!(refused(|s| s.leases[0].requests[0].request.clear()).contains("request_id"));
    assert!(refused(|s| s.lease_requests[0].request = "r".repeat(65)).contains("request_id"));
    assert!(refused(|s| s.lease_requests[0].owner.clear()).contains("owner_id"));

    let ttl =
        |s: &mut StateWire| s.lease_requests[0].lease_created.iter_mut().for_each(|c| c.ttl_seconds = 0);
    assert!(refused(ttl).contains("ttl_seconds"));
    let ttl = |s: &mut StateWire| s.leases[0].requests[0].granted.iter_mut().for_each(|g| g.ttl_seconds = 0);
    assert!(refused(ttl).contains("ttl_seconds"));
}

#[test]
fn more_remembered_requests_than_are_kept_are_refused() {
    let many = |count: usize, owner: &str| -> Vec<RequestWire> {
        let request = |id: usize| RequestWire {
            request: id.to_string(),
            owner: owner.to_owned(),
            released: Some(true),
            ..RequestWire::default()
        };
        (0..count).map(request).collect()
    };
    let with = |requests: Vec<RequestWire>, lease_requests: Vec<RequestWire>| {
        let lease = LeaseWire { id: 1, owner: "alice".to_owned(), ttl_seconds: 10, requests };
        let sound = StateWire { locks: Vec::new(), leases: vec![lease], lease_requests, ..sound() };
        State::decode_snapshot(&sound.encode_to_vec())
    };
    assert!(with(many(REQUESTS_PER_LEASE_KEPT, ""), many(LEASE_REQUESTS_KEPT, "alice")).is_ok());
    assert!(with(many(REQUESTS_PER_LEASE_KEPT + 1, ""), Vec::new()).is_err());
    assert!(with(Vec::new(), many(LEASE_REQUESTS_KEPT + 1, "alice")).is_err());
}

#[test]
fn a_release_that_names_no_grant_does_not_come_in_through_the_log() {
    // Lock "a", request "r", and neither a lease nor an acquire's request.
    let bytes = [0x22, 0x06, 0x0a, 0x01, b'a', 0x2a, 0x01, b'r'];
    assert!(matches!(Command::decode(&bytes), Err(DecodeError::Malformed(_))));
}

#[test]
fn a_release_by_request_of_nobody_does_not_come_in_through_the_log() {
    // Lock "a", the acquire's request "q", request "r", and neither a lease nor an owner.
    let bytes = [0x22, 0x09, 0x0a, 0x01, b'a', 0x1a, 0x01, b'q', 0x2a, 0x01, b'r'];
    assert!(matches!(Command::decode(&bytes), Err(DecodeError::Malformed(_))));
}

#[test]
fn a_command_that_says_more_than_is_understood_does_not_come_in_through_the_log() {
    let known = [0x22, 0x08, 0x0a, 0x01, b'a', 0x10, 0x01, 0x2a, 0x01, b'r'];
    assert!(Command::decode(&known).is_ok());
    let unknown: [(&str, &[u8]); 7] = [
        ("a field 7 in the release", &[0x22, 0x0a, 0x0a, 1, b'a', 0x10, 1, 0x2a, 1, b'r', 0x38, 1]),
        ("a field 7 beside the release", &[0x22, 0x08, 0x0a, 1, b'a', 0x10, 1, 0x2a, 1, b'r', 0x38, 1]),
        (
            "a lease and an owner of the acquire's request",
            &[0x22, 0x0e, 0x0a, 1, b'a', 0x10, 1, 0x1a, 1, b'q', 0x2a, 1, b'r', 0x32, 1, b'o'],
        ),
        (
            "an owner beside the lease alone",
            &[0x22, 0x0b, 0x0a, 1, b'a', 0x10, 1, 0x2a, 1, b'r', 0x32, 1, b'o'],
        ),
        ("a token that is 0", &[0x22, 0x0a, 0x0a, 1, b'a', 0x10, 1, 0x20, 0, 0x2a, 1, b'r']),
        ("a lease that is there twice", &[0x22, 0x0a, 0x0a, 1, b'a', 0x10, 2, 0x10, 1, 0x2a, 1, b'r']),
        (
            "a lease and a ttl for a new one",
            &[0x1a, 0x0d, 0x0a, 1, b'a', 0x12, 1, b'o', 0x18, 1, 0x20, 10, 0x32, 1, b'r'],
        ),
    ];
    for (what, bytes) in unknown {
        assert_eq!(Command::decode(bytes), Err(DecodeError::UnknownKind), "{what}");
    }
}

#[test]
fn an_acquire_with_neither_lease_nor_ttl_does_not_come_in_through_the_log() {
    let bytes = [0x1a, 0x09, 0x0a, 0x01, b'a', 0x12, 0x01, b'o', 0x32, 0x01, b'r'];
    assert!(matches!(Command::decode(&bytes), Err(DecodeError::Malformed(_))));
}

#[test]
fn an_empty_entry_is_no_command() {
    assert_eq!(Command::decode(&[]), Err(DecodeError::UnknownKind));
}
