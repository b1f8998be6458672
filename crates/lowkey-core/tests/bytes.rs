//! Bytes: what is written comes back, and what was never written is refused without a panic.
#![allow(clippy::unwrap_used, reason = "a test may")]

use std::collections::BTreeSet;
use std::sync::Arc;

use lowkey_core::{
    AcquireWith, BackupRule, BackupSchedule, Command, DIGEST_VERSION, DecodeError, GrantRef, HoldRef,
    InvitationHash, KeyHash, LeaseId, LockName, MaxHold, MemberId, Mode, NodeIdentity, NodeInfo, NodeName,
    OwnerId, RequestId, Requester, Scope, Silence, State, Ticket, Token, Ttl, Value,
};
use proptest::prelude::{Just, ProptestConfig, Strategy, any, prop_assert, prop_assert_eq, proptest};
use proptest::sample::Index;
use proptest::test_runner::FileFailurePersistence;
use proptest::{collection, option, prop_oneof, sample};

mod history;

use history::{log_of, new_state, steps};

const MODES: [Mode; 2] = [Mode::Exclusive, Mode::Shared];
const SCOPES: [Scope; 2] = [Scope::Name, Scope::Subtree];

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

fn silence() -> impl Strategy<Value = Silence> {
    let parts = (any::<u64>(), prop_oneof![Just(0), any::<u64>()], any::<bool>());
    parts.prop_map(|(silent_ms, stalled_ms, leader_changed)| Silence {
        silent_ms,
        stalled_ms,
        leader_changed,
    })
}

fn ttl() -> impl Strategy<Value = Ttl> {
    (1..=600i64).prop_map(|seconds| Ttl::parse(seconds).expect("within the limits"))
}

fn value() -> impl Strategy<Value = Value> {
    prop_oneof![Just(String::new()), ".{0,20}"].prop_map(|text| Value::parse(&text).expect("a short text"))
}

/// Leases and tokens count from 1; 0 stands for absence in the bytes.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![1..300u64, 1..=u64::MAX, Just(u64::MAX)]
}

fn node() -> impl Strategy<Value = NodeInfo> {
    let name = "\\PC{1,20}".prop_filter_map("not a node name", |text| NodeName::parse(&text).ok());
    let addresses = (".{0,20}", ".{0,20}", ".{0,20}");
    let key_hash = option::of(any::<[u8; 32]>());
    (name, option::of(any::<[u8; 16]>()), addresses, any::<u32>(), key_hash).prop_map(
        |(name, identity, (raft_address, grpc_address, http_address), command_version, key_hash)| NodeInfo {
            name,
            identity: identity.map(NodeIdentity),
            raft_address,
            grpc_address,
            http_address,
            command_version,
            key_hash: key_hash.map(KeyHash),
        },
    )
}

fn backup_schedule() -> impl Strategy<Value = BackupSchedule> {
    let rule = ("(s3|gs|az)://[a-z]{1,8}(/[!-~]{1,8}){0,2}", 1..=2_678_400i64, 1..=100_000i64);
    prop_oneof![
        Just(BackupSchedule::Off),
        rule.prop_map(|(to, every, keep)| BackupSchedule::On(BackupRule::parse(&to, every, keep).unwrap())),
    ]
}

fn command() -> impl Strategy<Value = Command> {
    let lease = || number().prop_map(LeaseId);
    let with = prop_oneof![lease().prop_map(AcquireWith::Lease), ttl().prop_map(AcquireWith::NewLease)];
    let requester = prop_oneof![lease().prop_map(Requester::Lease), owner().prop_map(Requester::Owner)];
    let grant = prop_oneof![
        lease().prop_map(GrantRef::Lease),
        (request(), requester.clone()).prop_map(|(request, requester)| GrantRef::Request(request, requester)),
        (request(), requester).prop_map(|(request, requester)| GrantRef::GivenUp(request, requester)),
    ];
    let max_hold = prop_oneof![Just(0), 1..=604_800i64].prop_map(|seconds| MaxHold::parse(seconds).unwrap());
    let how = (sample::select(&MODES[..]), sample::select(&SCOPES[..]), value(), any::<bool>(), max_hold);
    prop_oneof![
        (owner(), ttl(), request()).prop_map(|(owner, ttl, request)| Command::CreateLease {
            owner,
            ttl,
            request
        }),
        (lease(), owner(), option::of(owner()), any::<u64>(), request()).prop_map(
            |(lease, owner, actor, since_unix_ms, request)| {
                Command::RevokeLease { lease, owner, actor, since_unix_ms, request }
            }
        ),
        (lock(), owner(), with, how, any::<(u64, bool)>(), request()).prop_map(
            |(
                lock,
                owner,
                with,
                (mode, scope, value, wait, max_hold),
                (since_unix_ms, keeps_asked),
                request,
            )| {
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
                }
            }
        ),
        (lock(), grant, option::of(number().prop_map(Token)), option::of(owner()), any::<u64>(), request())
            .prop_map(|(lock, grant, token, actor, since_unix_ms, request)| Command::Release {
                lock,
                grant,
                token,
                actor,
                since_unix_ms,
                request
            }),
        (lock(), owner(), lease(), option::of(number().prop_map(Token)), value(), any::<u64>(), request())
            .prop_map(|(lock, owner, lease, token, value, since_unix_ms, request)| Command::SetValue {
                lock,
                owner,
                lease,
                token,
                value,
                since_unix_ms,
                request
            }),
        (collection::vec(any::<u64>().prop_map(Ticket), 0..20), any::<u64>())
            .prop_map(|(tickets, since_unix_ms)| Command::CancelWait { tickets, since_unix_ms }),
        (collection::vec((any::<u64>(), silence()), 0..20), any::<bool>(), any::<u64>(), any::<u64>())
            .prop_map(|(ended, tells, decided_term, since_unix_ms)| Command::Expire {
                leases: ended.iter().map(|(lease, _)| LeaseId(*lease)).collect(),
                decided_term,
                since_unix_ms,
                silences: ended.into_iter().filter(|_| tells).map(|(_, silence)| silence).collect(),
            }),
        (collection::vec((lock(), any::<u64>(), any::<u64>()), 0..20), any::<u64>(), any::<u64>()).prop_map(
            |(holds, decided_term, since_unix_ms)| Command::EndHolds {
                holds: holds
                    .into_iter()
                    .map(|(lock, lease, token)| HoldRef { lock, lease: LeaseId(lease), token: Token(token) })
                    .collect(),
                decided_term,
                since_unix_ms
            }
        ),
        (node(), option::of(any::<[u8; 32]>())).prop_map(|(node, invitation)| Command::AddMember {
            // Nobody who is only expected has come with one.
            invitation: invitation.filter(|_| node.identity.is_some()).map(InvitationHash),
            node: Box::new(node),
        }),
        (any::<[u8; 32]>(), 1..=86_400u64, any::<u64>()).prop_map(
            |(invitation, lifetime_seconds, since_unix_ms)| Command::Invite {
                invitation: InvitationHash(invitation),
                lifetime_seconds,
                since_unix_ms
            }
        ),
        (any::<u64>(), node()).prop_map(|(member, node)| Command::UpdateMember {
            member: MemberId(member),
            node: Box::new(node)
        }),
        (node(), option::of(number().prop_map(MemberId)))
            .prop_map(|(node, member)| Command::RemoveMember { name: node.name, member }),
        Just(Command::EndQuarantine),
        option::of(backup_schedule()).prop_map(|schedule| Command::SetBackupSchedule(schedule.map(Arc::new))),
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

/// A command's kind, and what stands behind its length.
fn kind_and_body(bytes: &[u8]) -> (&[u8], &[u8]) {
    let mut rest = bytes;
    prost::encoding::decode_varint(&mut rest).expect("a kind");
    let kind = &bytes[..bytes.len() - rest.len()];
    let length = prost::encoding::decode_varint(&mut rest).expect("a length");
    assert_eq!(length, rest.len() as u64, "a command is one message");
    (kind, rest)
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
        number in 13..16u8,
        (wire_type, value) in part(),
        inside in any::<bool>(),
    ) {
        let mut part = vec![number << 3 | wire_type];
        part.extend(value);
        let bytes = command.encode();
        let (kind, body) = kind_and_body(&bytes);
        let later = if inside {
            let body = [body, &part].concat();
            let mut later = kind.to_vec();
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
        for (lock, grant) in state.grants() {
            prop_assert!(state.lease(grant.lease).is_some(), "{lock} hangs on no lease");
            prop_assert!(grant.token <= state.last_token());
            prop_assert!(grant.revision <= state.revision());
        }
        let tokens: BTreeSet<_> = state.grants().map(|(_, grant)| grant.token).collect();
        prop_assert_eq!(tokens.len(), state.grants().count());
        let known = || state.members().filter_map(|(_, node)| node.identity);
        prop_assert_eq!(known().collect::<BTreeSet<_>>().len(), known().count());
        // Leases, locks and queues fit together: one by one the leases end, and with them all the rest.
        let leases: Vec<_> = state.leases().map(|(id, _)| id).collect();
        // A counter at its very end has nothing left to give.
        let is_spent = u64::MAX - state.last_token().0 < state.waits().len() as u64;
        for lease in leases.into_iter().filter(|_| !is_spent) {
            let Some(revision) = state.revision().checked_add(1) else { return Ok(()) };
            let silences = Vec::new();
            let expire = Command::Expire { leases: vec![lease], decided_term: 1, since_unix_ms: 0, silences };
            state.apply(revision, 1, &expire).reply.unwrap();
            prop_assert_eq!(State::decode_snapshot(&state.encode_snapshot()), Ok(state.clone()));
        }
        if !is_spent {
            prop_assert_eq!((state.leases().len(), state.lock_count(), state.waits().len()), (0, 0, 0));
        }
    }
}

fn from_hex(text: &str) -> Vec<u8> {
    let digit = |at| u8::from_str_radix(&text[at..at + 2], 16).expect("two hexadecimal digits");
    (0..text.len()).step_by(2).map(digit).collect()
}

/// The log and the snapshot of it that a version wrote.
struct Written {
    commands: Vec<Vec<u8>>,
    snapshot: Vec<u8>,
}

fn written(text: &str) -> Written {
    let mut lines: Vec<_> =
        text.lines().filter(|line| !line.starts_with('#')).map(|line| from_hex(line.trim())).collect();
    let snapshot = lines.pop().expect("the snapshot is the last line");
    Written { commands: lines, snapshot }
}

/// What was ever written is read for ever: a change of these files is a mistake. A version adds its own.
fn is_read_as_it_was_written(Written { commands, snapshot }: Written) -> State {
    let mut state = new_state();
    for (revision, bytes) in (1..).zip(&commands) {
        let command = Command::decode(bytes).expect("a command of a version that was");
        assert_eq!(command.encode(), *bytes, "{command:?}");
        let applied = state.apply(revision, 1, &command);
        assert!(applied.reply.is_ok(), "{command:?}: {applied:?}");
    }
    assert_eq!(State::decode_snapshot(&snapshot).as_ref(), Ok(&state));
    state
}

#[test]
fn version_1_is_read_as_it_was_written() {
    let state = is_read_as_it_was_written(written(include_str!("formats/version-1")));
    assert_eq!((state.leases().len(), state.lock_count(), state.members().len()), (2, 2, 2));
    let plain = state.grants().all(|(_, grant)| {
        (grant.mode, grant.scope, grant.value.as_str()) == (Mode::Exclusive, Scope::Name, "")
    });
    assert!(plain, "version 1 knew no modes, scopes and values");
    assert_eq!(state.waits().len(), 0);
}

#[test]
fn version_2_is_read_as_it_was_written() {
    let version_2 = written(include_str!("formats/version-2"));
    let snapshot = version_2.snapshot.clone();
    let state = is_read_as_it_was_written(version_2);
    assert_eq!(state.encode_snapshot(), snapshot, "this is the version that is written");
    assert_eq!((state.leases().len(), state.lock_count(), state.waits().len()), (5, 4, 3));
    assert_eq!(
        (DIGEST_VERSION, state.digest()),
        (1, 11_659_296_376_954_502_602),
        "replicas of other builds compare this"
    );
}

#[test]
fn version_3_is_read_as_it_was_written() {
    let version_3 = written(include_str!("formats/version-3"));
    let snapshot = version_3.snapshot.clone();
    let state = is_read_as_it_was_written(version_3);
    assert_eq!(state.encode_snapshot(), snapshot, "this is the version that is written");
    let members: Vec<_> = state
        .members()
        .map(|(member, node)| (member.0, node.name.as_str(), node.identity.is_some()))
        .collect();
    assert_eq!(members, [(1, "n1", true), (3, "n3", true), (4, "n4", false), (5, "n2", true)]);
    assert_eq!(
        (DIGEST_VERSION, state.digest()),
        (1, 9_806_878_821_486_656_847),
        "replicas of other builds compare this"
    );
}

#[test]
fn quarantine_of_version_4_is_read_as_it_was_written() {
    let Written { commands, snapshot } = written(include_str!("formats/version-4-quarantine"));
    let mut state = State::decode_snapshot(&snapshot).unwrap();
    assert_eq!(state.encode_snapshot(), snapshot, "this is the version that is written");
    assert!(state.is_in_quarantine());
    assert_eq!((state.revision(), state.last_token()), (30_000_000 << 32, Token(30_000_000 << 32)));
    let end = Command::decode(&commands[0]).unwrap();
    assert_eq!((&end, end.encode()), (&Command::EndQuarantine, commands[0].clone()));
    state.apply(state.revision() + 1, 1, &end).reply.unwrap();
    assert!(!state.is_in_quarantine());
}

#[test]
fn schedules_of_version_8_are_read_as_they_were_written() {
    let version_8 = written(include_str!("formats/version-8-schedule"));
    let snapshot = version_8.snapshot.clone();
    let state = is_read_as_it_was_written(version_8);
    assert_eq!(state.encode_snapshot(), snapshot, "this is the version that is written");
    let rule = BackupRule::parse("s3://backups/lowkey", 600, 48).unwrap();
    assert_eq!(state.backup_schedule(), Some(&Arc::new(BackupSchedule::On(rule))));
    assert_eq!(
        (DIGEST_VERSION, state.digest()),
        (1, 4_864_941_970_007_442_831),
        "replicas of other builds compare this"
    );
}
