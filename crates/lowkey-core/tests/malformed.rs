//! Snapshots and entries come from a disk or from another machine: one that contradicts itself is refused.

use lowkey_core::limits::{LEASE_REQUESTS_KEPT, REQUESTS_PER_LEASE_KEPT};
use lowkey_core::{
    AcquireWith, COMMAND_VERSION, ClusterId, Command, DecodeError, LeaseId, LockName, Mode, NodeIdentity,
    NodeInfo, NodeName, OwnerId, RequestId, SNAPSHOT_VERSION, Scope, SnapshotError, State, Ttl, Value,
};
use prost::Message as _;

mod wire;

use wire::{LeaseWire, LockWire, RequestWire, StateWire, WaitWire};

/// A snapshot with something of everything: two leases that hold a lock each, two waits of which one is to
/// make its lease, two members, remembered requests.
fn sound() -> StateWire {
    let owner = OwnerId::parse("alice").expect("an owner id");
    let ttl = Ttl::parse(10).expect("a ttl");
    let lock = |name| LockName::parse(name).expect("a lock name");
    let request = |id| RequestId::parse(id).expect("a request id");
    let acquire = |name, with, id, mode, scope| Command::Acquire {
        lock: lock(name),
        owner: owner.clone(),
        with,
        mode,
        scope,
        value: Value::parse(&format!("value of {id}")).expect("a value"),
        wait: true,
        max_hold: None,
        since_unix_ms: 5,
        keeps_asked: false,
        request: request(id),
    };
    let member = |name: &str, identity| Command::AddMember {
        node: Box::new(NodeInfo {
            name: NodeName::parse(name).expect("a node name"),
            identity: Some(NodeIdentity([identity; 16])),
            raft_address: "host:7000".to_owned(),
            grpc_address: "host:9000".to_owned(),
            http_address: "host:8080".to_owned(),
            command_version: COMMAND_VERSION,
            key_hash: None,
        }),
        invitation: None,
    };
    let commands = [
        Command::CreateLease { owner: owner.clone(), ttl, request: request("r1") },
        acquire("a", AcquireWith::Lease(LeaseId(1)), "r2", Mode::Exclusive, Scope::Name),
        acquire("b", AcquireWith::NewLease(ttl), "r3", Mode::Shared, Scope::Subtree),
        member("n1", 1),
        member("n2", 2),
        acquire("b/c", AcquireWith::Lease(LeaseId(1)), "r4", Mode::Exclusive, Scope::Subtree),
        acquire("a", AcquireWith::NewLease(ttl), "r5", Mode::Shared, Scope::Name),
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
    // Version 3 is only for a state in quarantine, which has no locks.
    assert_eq!((snapshot.version, snapshot.quarantine), (2, false));
    assert_eq!(snapshot.cluster, [7; 16]);
    assert_eq!((snapshot.revision, snapshot.last_token), (7, 2));
    assert_eq!((snapshot.last_lease, snapshot.last_member), (3, 2));

    let lease = &snapshot.leases[0];
    assert_eq!((lease.id, lease.owner.as_str(), lease.ttl_seconds), (1, "alice", 10));
    let granted = lease.requests[0].granted.unwrap();
    assert_eq!((granted.token, granted.lease, granted.ttl_seconds, granted.revision), (1, 1, 10, 2));
    assert_eq!(lease.requests[0].owner, "");
    assert_eq!(
        snapshot.leases.iter().map(|lease| lease.is_waiting).collect::<Vec<_>>(),
        [false, false, true]
    );

    let LockWire {
        name,
        lease,
        token,
        revision,
        since_unix_ms,
        request,
        mode,
        scope,
        value,
        max_hold_seconds,
        asked_unix_ms: _,
    } = snapshot.locks[0].clone();
    assert_eq!(max_hold_seconds, 0);
    assert_eq!((name.as_str(), lease, token), ("a", 1, 1));
    assert_eq!((revision, since_unix_ms, request.as_str()), (2, 5, "r2"));
    assert_eq!((mode, scope, value.as_str()), (0, 0, "value of r2"));
    assert_eq!((snapshot.locks[1].mode, snapshot.locks[1].scope), (1, 1));

    let WaitWire {
        ticket,
        lock,
        lease,
        mode,
        scope,
        value,
        request,
        fingerprint: _,
        makes_lease,
        max_hold_seconds,
        asked_unix_ms: _,
    } = snapshot.waits[0].clone();
    assert_eq!(max_hold_seconds, 0);
    assert_eq!((ticket, lock.as_str(), lease), (6, "b/c", 1));
    assert_eq!((mode, scope, makes_lease), (0, 1, false));
    assert_eq!((value.as_str(), request.as_str()), ("value of r4", "r4"));
    let other = &snapshot.waits[1];
    assert_eq!((other.ticket, other.lock.as_str(), other.lease), (7, "a", 3));
    assert_eq!((other.mode, other.scope, other.makes_lease), (1, 0, true));

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
fn locks_in_quarantine_are_refused() {
    assert_eq!(refused(|snapshot| snapshot.quarantine = true), "it is in quarantine, and locks are held");
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
    assert!(refused(|s| s.last_lease = 2).contains("lease 3 is beyond the counter 2"));
    assert!(refused(|s| s.leases[0].id = 0).contains("lease 0 is beyond the counter"));
    assert!(refused(|s| s.leases[0].id = 4).contains("lease 4 is beyond the counter"));
    assert!(refused(|s| s.leases[1] = s.leases[0].clone()).contains("lease 1 is there twice"));
    assert!(refused(|s| s.leases[0].owner.clear()).contains("owner_id"));
    assert!(refused(|s| s.leases[0].ttl_seconds = 0).contains("ttl_seconds"));
    assert!(refused(|s| s.leases[0].ttl_seconds = 601).contains("ttl_seconds"));
}

#[test]
fn locks_that_cannot_be_are_refused() {
    assert!(refused(|s| s.last_token = 1).contains("the token 2 of lock b is beyond the counter"));
    assert!(refused(|s| s.locks[0].token = 0).contains("the token 0 of lock a is beyond the counter"));
    assert!(refused(|s| s.locks[0].lease = 4).contains("held by lease 4, which does not exist"));
    assert!(refused(|s| s.locks[0].lease = 3).contains("held by lease 3, which cannot be"));
    assert!(refused(|s| s.locks[0].lease = 0).contains("held by lease 0, which does not exist"));
    assert!(refused(|s| s.leases.truncate(1)).contains("lock b is held by lease 2, which does not exist"));
    assert!(
        refused(|s| s.locks[1] = s.locks[0].clone()).contains("lock a is held by lease 1, which cannot be")
    );
    assert!(
        refused(|s| s.locks[1].name = "a".to_owned())
            .contains("a is held by leases 1 and 2, which exclude each other")
    );
    assert!(refused(|s| s.locks[0].name = "a//b".to_owned()).contains("lock_name"));
    assert!(refused(|s| s.locks[0].request.clear()).contains("request_id"));
    assert!(refused(|s| s.locks[0].token = 2).contains("two grants have the same token"));
    let yet_to_come = "lock a was granted at revision 8, which is yet to come";
    assert!(refused(|s| s.locks[0].revision = 8).contains(yet_to_come));
    let yet_to_come = "lock b was granted at revision 3, which is yet to come";
    assert!(refused(|s| s.revision = 2).contains(yet_to_come));
}

#[test]
fn holders_that_exclude_each_other_are_refused() {
    // Lock b is held as a shared subtree.
    assert!(refused(|s| s.locks[0].name = "b/x".to_owned()).contains("which it excludes"));
    assert!(refused(|s| s.locks[0].name = "b/x/y".to_owned()).contains("which it excludes"));
    assert!(refused(|s| s.locks[0].name = "b".to_owned()).contains("which exclude each other"));
    assert!(refused(|s| s.locks[1].name = "a".to_owned()).contains("which exclude each other"));

    // Two that share it bear each other, wherever they are.
    for name in ["b", "b/x"] {
        let mut snapshot = sound();
        snapshot.waits.truncate(1);
        snapshot.leases.truncate(2);
        (snapshot.locks[0].name, snapshot.locks[0].mode) = (name.to_owned(), 1);
        let state = State::decode_snapshot(&snapshot.encode_to_vec()).expect("both share it");
        assert_eq!(state.grants().count(), 2);
    }
}

#[test]
fn waits_for_nothing_are_refused() {
    // Lease 1 waits for b/c, which lease 2 holds as a part of b; lease 3 for a, which lease 1 holds.
    assert!(refused(|s| s.locks.truncate(1)).contains("lease 1 waits for b/c, which it could have"));
    assert!(refused(|s| _ = s.locks.remove(0)).contains("lease 3 waits for a, which it could have"));
    assert!(refused(|s| s.locks[1].scope = 0).contains("lease 1 waits for b/c, which it could have"));
    assert!(refused(|s| s.waits[0].mode = 1).contains("lease 1 waits for b/c, which it could have"));
    assert!(refused(|s| s.locks[0].mode = 1).contains("lease 3 waits for a, which it could have"));
    assert!(
        refused(|s| s.waits[0].lock = "bc".to_owned()).contains("lease 1 waits for bc, which it could have")
    );
    assert!(refused(|s| s.waits.truncate(1)).contains("lease 3 waits for nothing"));
}

#[test]
fn waits_that_cannot_be_are_refused() {
    assert!(refused(|s| s.waits[0].ticket = 0).contains("place 0 is there twice, or is yet to come"));
    assert!(refused(|s| s.waits[0].ticket = 7).contains("place 7 is there twice"));
    assert!(refused(|s| s.waits[0].ticket = 8).contains("place 8 is there twice, or is yet to come"));
    assert!(refused(|s| s.waits[0].lease = 4).contains("lease 4 waits, and does not exist"));
    assert!(refused(|s| s.waits[0].lock = "b//c".to_owned()).contains("lock_name"));
    assert!(refused(|s| s.waits[0].value = "v".repeat(4097)).contains("value"));
    assert!(refused(|s| s.waits[0].request.clear()).contains("request_id"));

    // A wait makes its lease, or hangs on one that runs.
    let cannot_be = |change: fn(&mut StateWire)| assert!(refused(change).contains("which cannot be"));
    cannot_be(|s| s.waits[0].makes_lease = true);
    cannot_be(|s| s.waits[1].makes_lease = false);
    cannot_be(|s| s.leases[2].is_waiting = false);
    cannot_be(|s| s.waits[0].lease = 3);
    // One request waits once, and is not one that had its effect.
    cannot_be(|s| s.waits[0].request = "r2".to_owned());
    cannot_be(|s| s.waits[1].request = "r3".to_owned());
    cannot_be(|s| s.waits.insert(1, WaitWire { ticket: 5, ..s.waits[0].clone() }));

    // A lease has a name, or waits for it, in one way only.
    let otherwise = |change: fn(&mut StateWire)| assert!(refused(change).contains("otherwise than it has"));
    otherwise(|s| s.waits[0].lock = "a".to_owned());
    otherwise(|s| {
        let other = WaitWire { ticket: 5, request: "r6".to_owned(), mode: 1, ..s.waits[0].clone() };
        s.waits.insert(1, other);
    });

    let unknown = |change: fn(&mut StateWire)| {
        assert!(refused(change).contains("a part that this version does not know"))
    };
    unknown(|s| s.waits[0].mode = 2);
    unknown(|s| s.waits[0].scope = 2);
    unknown(|s| s.locks[0].mode = 2);
}

#[test]
fn a_grant_of_the_very_last_entry_is_sound() {
    let mut snapshot = sound();
    snapshot.revision = 3;
    snapshot.waits.clear();
    snapshot.leases.truncate(2);
    let state = State::decode_snapshot(&snapshot.encode_to_vec()).unwrap();
    assert_eq!(state.grants().map(|(_, grant)| grant.revision).max(), Some(state.revision()));
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
fn principals_are_checked() {
    let token = |byte: u8| wire::TokenWire { id: vec![byte; 8], hash: vec![byte; 32] };
    let principal = |name: &str, byte: u8| wire::PrincipalWire {
        name: name.into(),
        names: vec![format!("{name}.example")],
        tokens: vec![token(byte)],
        grants: vec![wire::GrantWire { path: "/".into(), verbs: 16 }],
    };
    let mut snapshot = sound();
    snapshot.principals = vec![principal("a", 1), principal("b", 2)];
    (snapshot.version, snapshot.access_required) = (5, true);
    let state = State::decode_snapshot(&snapshot.encode_to_vec()).unwrap();
    assert_eq!(state.encode_snapshot(), snapshot.encode_to_vec());
    assert!(state.access().is_required());
    let bad = |change: &dyn Fn(&mut wire::PrincipalWire)| {
        let mut changed = principal("a", 1);
        change(&mut changed);
        refused(|s| s.principals = vec![changed])
    };
    assert!(bad(&|p| p.name = "a/b".into()).contains("must have no '/'"));
    assert!(bad(&|p| p.names = vec!["x".into(); 2]).contains("something twice"));
    assert!(bad(&|p| p.tokens[0].id = vec![1; 7]).contains("not 8 bytes"));
    assert!(bad(&|p| p.tokens[0].hash = vec![1; 31]).contains("not 32 bytes"));
    assert!(bad(&|p| p.tokens[0].hash = vec![]).contains("without its hash"));
    assert!(bad(&|p| p.tokens = vec![token(1); 2]).contains("something twice"));
    assert!(bad(&|p| p.tokens = (0..33).map(token).collect()).contains("more than 32 tokens"));
    assert!(bad(&|p| p.grants[0].path = "a/".into()).contains("path"));
    assert!(bad(&|p| p.grants[0].verbs = 0).contains("a grant of nothing"));
    assert!(bad(&|p| p.grants[0].verbs = 32).contains("a part that this version does not know"));
    let twice = |s: &mut StateWire| s.principals = vec![principal("a", 1), principal("a", 2)];
    assert!(refused(twice).contains("principal a is there twice"));
    let shared = |s: &mut StateWire| s.principals = vec![principal("a", 1), principal("b", 1)];
    assert!(refused(shared).contains("the proof of another one"));
    let nameless = |n: u32| wire::PrincipalWire { name: format!("p{n}"), ..Default::default() };
    assert!(
        refused(|s| s.principals = (0..1001).map(nameless).collect())
            .contains("more principals than are kept")
    );
}

#[test]
fn invitations_are_checked() {
    let invitation = || wire::InvitationWire { hash: vec![7; 32], expires_unix_ms: 5, used_by: vec![1; 16] };
    let mut snapshot = sound();
    snapshot.invitations.push(invitation());
    snapshot.version = 4;
    let state = State::decode_snapshot(&snapshot.encode_to_vec()).unwrap();
    assert_eq!(state.encode_snapshot(), snapshot.encode_to_vec());
    assert!(refused(|s| s.invitations = vec![invitation(), invitation()]).contains("is there twice"));
    let bad = |hash: usize, used_by: usize| {
        let invitation =
            wire::InvitationWire { hash: vec![7; hash], used_by: vec![1; used_by], ..invitation() };
        refused(|s| s.invitations = vec![invitation])
    };
    assert!(bad(31, 16).contains("not 32 bytes") && bad(0, 16).contains("no hash"));
    assert!(bad(32, 15).contains("not 16 bytes"));
    let many = (0..65).map(|byte| wire::InvitationWire { hash: vec![byte; 32], ..invitation() }).collect();
    assert!(refused(|s| s.invitations = many).contains("more invitations than are kept"));
    let node = |s: &mut StateWire| s.members[0].node.take().unwrap_or_default();
    assert!(
        refused(|s| s.members[0].node = Some(wire::NodeWire { key_hash: vec![1; 31], ..node(s) }))
            .contains("not 32 bytes")
    );
}

#[test]
fn members_that_are_expected_have_no_identity_and_are_no_rivals() {
    let mut snapshot = sound();
    for member in &mut snapshot.members {
        let node = member.node.take().unwrap_or_default();
        member.node = Some(wire::NodeWire { identity: Vec::new(), ..node });
    }
    let state = State::decode_snapshot(&snapshot.encode_to_vec()).expect("two nodes that are expected");
    assert!(state.members().all(|(_, node)| node.identity.is_none()));
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
        let owner = "alice".to_owned();
        let leases = vec![LeaseWire { id: 1, owner, ttl_seconds: 10, requests, is_waiting: false }];
        let (locks, waits) = (Vec::new(), Vec::new());
        let sound = StateWire { locks, waits, leases, lease_requests, ..sound() };
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
    let unknown: [(&str, &[u8]); 11] = [
        ("a field 10 in the release", &[0x22, 0x0a, 0x0a, 1, b'a', 0x10, 1, 0x2a, 1, b'r', 0x50, 1]),
        ("a final release of no acquire", &[0x22, 0x0a, 0x0a, 1, b'a', 0x10, 1, 0x2a, 1, b'r', 0x48, 1]),
        ("a field 15 beside the release", &[0x22, 0x08, 0x0a, 1, b'a', 0x10, 1, 0x2a, 1, b'r', 0x78, 1]),
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
        ("a mode 2", &[0x1a, 0x0d, 0x0a, 1, b'a', 0x12, 1, b'o', 0x18, 1, 0x32, 1, b'r', 0x38, 2]),
        ("a scope 2", &[0x1a, 0x0d, 0x0a, 1, b'a', 0x12, 1, b'o', 0x18, 1, 0x32, 1, b'r', 0x40, 2]),
        ("a wait that is 2", &[0x1a, 0x0d, 0x0a, 1, b'a', 0x12, 1, b'o', 0x18, 1, 0x32, 1, b'r', 0x50, 2]),
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

#[test]
fn schedules_of_backups_that_cannot_be_are_refused() {
    let on = wire::BackupScheduleWire { to: "s3://b".into(), every_seconds: 600, keep: 48, is_off: false };
    let mut snapshot = sound();
    (snapshot.version, snapshot.backup_schedule) = (6, vec![on.clone()]);
    let state = State::decode_snapshot(&snapshot.encode_to_vec()).unwrap();
    assert_eq!(state.encode_snapshot(), snapshot.encode_to_vec());
    let bad = |schedules: Vec<wire::BackupScheduleWire>| {
        refused(|snapshot| snapshot.backup_schedule = schedules.clone())
    };
    assert!(bad(vec![on.clone(), on.clone()]).contains("there twice"));
    assert!(bad(vec![wire::BackupScheduleWire::default()]).contains("is empty"));
    assert!(bad(vec![wire::BackupScheduleWire { is_off: true, ..on.clone() }]).contains("off and on"));
    assert!(
        bad(vec![wire::BackupScheduleWire { to: "s3://key:secret@b".into(), ..on }]).contains("credentials")
    );
}
