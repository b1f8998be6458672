//! Bytes: what is written comes back, and what was never written is refused without a panic.

use std::collections::BTreeSet;

use lowkey_core::{
    AcquireWith, Command, DecodeError, GrantRef, LeaseId, LockName, NodeIdentity, NodeInfo, NodeName,
    OwnerId, RequestId, Requester, State, Token, Ttl,
};
use proptest::prelude::{Just, ProptestConfig, Strategy, any, prop_assert, prop_assert_eq, proptest};
use proptest::sample::Index;
use proptest::test_runner::FileFailurePersistence;
use proptest::{collection, option, prop_oneof};

mod history;

use history::{log_of, new_state, steps};

fn config() -> ProptestConfig {
    ProptestConfig {
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        ..ProptestConfig::default()
    }
}

fn owner() -> impl Strategy<Value = OwnerId> {
    "\\PC{1,20}".prop_filter_map("not an owner id", |text| OwnerId::parse(&text).ok())
}

fn request() -> impl Strategy<Value = RequestId> {
    "\\PC{1,16}".prop_filter_map("not a request id", |text| RequestId::parse(&text).ok())
}

fn lock() -> impl Strategy<Value = LockName> {
    "/?[^/\\pC]{1,8}(/[^/\\pC]{1,8}){0,3}"
        .prop_filter_map("not a lock name", |text| LockName::parse(&text).ok())
}

fn ttl() -> impl Strategy<Value = Ttl> {
    (1..=600i64).prop_map(|seconds| Ttl::parse(seconds).expect("within the limits"))
}

/// Leases and tokens count from 1; 0 stands for absence in the bytes.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![1..300u64, 1..=u64::MAX, Just(u64::MAX)]
}

fn node() -> impl Strategy<Value = NodeInfo> {
    let name = "\\PC{1,20}".prop_filter_map("not a node name", |text| NodeName::parse(&text).ok());
    (name, any::<[u8; 16]>(), ".{0,20}", ".{0,20}", ".{0,20}", any::<u32>()).prop_map(
        |(name, identity, raft_address, grpc_address, http_address, command_version)| NodeInfo {
            name,
            identity: NodeIdentity(identity),
            raft_address,
            grpc_address,
            http_address,
            command_version,
        },
    )
}

fn command() -> impl Strategy<Value = Command> {
    let lease = || number().prop_map(LeaseId);
    let with = prop_oneof![lease().prop_map(AcquireWith::Lease), ttl().prop_map(AcquireWith::NewLease)];
    let requester = prop_oneof![lease().prop_map(Requester::Lease), owner().prop_map(Requester::Owner)];
    let grant = prop_oneof![
        lease().prop_map(GrantRef::Lease),
        (request(), requester).prop_map(|(request, requester)| GrantRef::Request(request, requester)),
    ];
    prop_oneof![
        (owner(), ttl(), request()).prop_map(|(owner, ttl, request)| Command::CreateLease {
            owner,
            ttl,
            request
        }),
        (lease(), owner(), request()).prop_map(|(lease, owner, request)| Command::RevokeLease {
            lease,
            owner,
            request
        }),
        (lock(), owner(), with, any::<u64>(), request()).prop_map(
            |(lock, owner, with, since_unix_ms, request)| Command::Acquire {
                lock,
                owner,
                with,
                since_unix_ms,
                request
            }
        ),
        (lock(), grant, option::of(number().prop_map(Token)), request())
            .prop_map(|(lock, grant, token, request)| Command::Release { lock, grant, token, request }),
        (collection::vec(any::<u64>().prop_map(LeaseId), 0..20), any::<u64>())
            .prop_map(|(leases, decided_term)| Command::Expire { leases, decided_term }),
        node().prop_map(|node| Command::AddMember { node }),
    ]
}

/// The type and the value of a protobuf field: a number, 8 bytes, a text, 4 bytes. Also where the value is
/// the one that is usually left out.
fn part() -> impl Strategy<Value = (u8, Vec<u8>)> {
    prop_oneof![
        (0..128u8).prop_map(|number| (0, vec![number])),
        any::<[u8; 8]>().prop_map(|bytes| (1, bytes.to_vec())),
        collection::vec(any::<u8>(), 0..20).prop_map(|text| (2, [vec![text.len() as u8], text].concat())),
        any::<[u8; 4]>().prop_map(|bytes| (5, bytes.to_vec())),
    ]
}

/// What stands behind a command's kind and length.
fn body(mut bytes: &[u8]) -> &[u8] {
    bytes = &bytes[1..];
    let length = prost::encoding::decode_varint(&mut bytes).expect("a length");
    assert_eq!(length, bytes.len() as u64, "a command is one message");
    bytes
}

/// A way in which bytes go wrong.
#[derive(Clone, Debug)]
enum Damage {
    Change(Index, u8),
    Cut(Index),
    Insert(Index, u8),
    Remove(Index),
    Repeat(Index, Index),
}

fn damages() -> impl Strategy<Value = Vec<Damage>> {
    let damage = prop_oneof![
        4 => (any::<Index>(), any::<u8>()).prop_map(|(at, byte)| Damage::Change(at, byte)),
        1 => any::<Index>().prop_map(Damage::Cut),
        1 => (any::<Index>(), any::<u8>()).prop_map(|(at, byte)| Damage::Insert(at, byte)),
        1 => any::<Index>().prop_map(Damage::Remove),
        1 => (any::<Index>(), any::<Index>()).prop_map(|(from, to)| Damage::Repeat(from, to)),
    ];
    collection::vec(damage, 1..4)
}

fn damaged(mut bytes: Vec<u8>, damages: &[Damage]) -> Vec<u8> {
    for damage in damages {
        if bytes.is_empty() {
            break;
        }
        match damage {
            Damage::Change(at, byte) => *at.get_mut(&mut bytes) = *byte,
            Damage::Cut(at) => bytes.truncate(at.index(bytes.len())),
            Damage::Insert(at, byte) => bytes.insert(at.index(bytes.len()), *byte),
            Damage::Remove(at) => {
                bytes.remove(at.index(bytes.len()));
            }
            Damage::Repeat(from, to) => {
                let (from, to) = (from.index(bytes.len()), to.index(bytes.len()));
                let part = bytes[from.min(to)..from.max(to)].to_vec();
                bytes.extend(part);
            }
        }
    }
    bytes
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn every_command_comes_back_from_its_bytes(command in command()) {
        let bytes = command.encode();
        prop_assert!(!bytes.is_empty(), "an empty entry is Raft's own");
        prop_assert_eq!(Command::decode(&bytes), Ok(command));
    }

    #[test]
    fn random_bytes_never_panic(bytes in collection::vec(any::<u8>(), 0..200)) {
        if let Ok(command) = Command::decode(&bytes) {
            prop_assert_eq!(command.encode(), bytes.clone());
        }
        let _ = State::decode_snapshot(&bytes);
    }

    /// A command has one spelling: what is read is all that was there.
    #[test]
    fn a_damaged_command_is_refused_or_is_wholly_a_command(command in command(), damages in damages()) {
        let bytes = damaged(command.encode(), &damages);
        if let Ok(command) = Command::decode(&bytes) {
            prop_assert_eq!(command.encode(), bytes);
        }
    }

    /// A later version may add a field, of whatever type, to a command that this one knows.
    #[test]
    fn a_command_with_a_part_that_is_not_known_is_refused(
        command in command(),
        number in 7..16u8,
        (wire_type, value) in part(),
        inside in any::<bool>(),
    ) {
        let mut part = vec![number << 3 | wire_type];
        part.extend(value);
        let bytes = command.encode();
        let (kind, body) = (bytes[0], body(&bytes));
        let later = if inside {
            let body = [body, &part].concat();
            let mut later = vec![kind];
            prost::encoding::encode_varint(body.len() as u64, &mut later);
            [later, body].concat()
        } else {
            [bytes, part].concat()
        };
        prop_assert_eq!(Command::decode(&later), Err(DecodeError::UnknownKind));
    }

    /// The file's checksum finds damage; this is about what the state machine itself relies on.
    #[test]
    fn a_damaged_snapshot_is_refused_or_is_sound(steps in steps(), damages in damages()) {
        let mut state = new_state();
        for entry in log_of(&steps) {
            entry.apply(&mut state);
        }
        let Ok(mut state) = State::decode_snapshot(&damaged(state.encode_snapshot(), &damages)) else {
            return Ok(());
        };
        prop_assert_eq!(State::decode_snapshot(&state.encode_snapshot()), Ok(state.clone()));
        for (lock, grant) in state.locks() {
            prop_assert!(state.lease(grant.lease).is_some(), "{lock} hangs on no lease");
            prop_assert!(grant.token <= state.last_token());
            prop_assert!(grant.revision <= state.revision());
        }
        let tokens: BTreeSet<_> = state.locks().map(|(_, grant)| grant.token).collect();
        prop_assert_eq!(tokens.len(), state.lock_count());
        let identities: BTreeSet<_> = state.members().map(|(_, node)| node.identity).collect();
        prop_assert_eq!(identities.len(), state.members().len());
        // Leases and locks fit together: with the leases the locks are gone.
        let leases = state.leases().map(|(id, _)| id).collect();
        if let Some(revision) = state.revision().checked_add(1) {
            state.apply(revision, 1, &Command::Expire { leases, decided_term: 1 }).reply.unwrap();
            prop_assert_eq!((state.leases().len(), state.lock_count()), (0, 0));
        }
    }
}
