//! What travels between replicas: read back as it was written, and never trusted.

use lowkey_core::{ClusterId, GroupId, MemberId, NodeIdentity, NodeInfo, NodeName};
use lowkey_replica::{Config, Input, Message, MessageType, Nanos, Replica, found, wire};

const PEER_KINDS: [MessageType; 10] = [
    MessageType::MsgAppend,
    MessageType::MsgAppendResponse,
    MessageType::MsgRequestVote,
    MessageType::MsgRequestVoteResponse,
    MessageType::MsgSnapshot,
    MessageType::MsgHeartbeat,
    MessageType::MsgHeartbeatResponse,
    MessageType::MsgTimeoutNow,
    MessageType::MsgRequestPreVote,
    MessageType::MsgRequestPreVoteResponse,
];

const OTHER_KINDS: [MessageType; 9] = [
    MessageType::MsgHup,
    MessageType::MsgBeat,
    MessageType::MsgPropose,
    MessageType::MsgUnreachable,
    MessageType::MsgSnapStatus,
    MessageType::MsgCheckQuorum,
    MessageType::MsgTransferLeader,
    MessageType::MsgReadIndex,
    MessageType::MsgReadIndexResp,
];

/// A message of the kind with every field set that the kind may carry.
fn message(kind: MessageType) -> Message {
    let mut message = Message::default();
    message.set_msg_type(kind);
    message.to = 1;
    message.from = 2;
    message.term = 3;
    message.log_term = 2;
    message.index = 7;
    message.commit = 6;
    message.commit_term = 2;
    message.request_snapshot = 5;
    message.reject = true;
    message.reject_hint = 4;
    message.context = vec![1, 2, 3].into();
    if kind == MessageType::MsgAppend {
        for index in [8, 9] {
            let entry = message.mut_entries().push_default();
            entry.index = index;
            entry.term = 3;
            entry.data = vec![index as u8; 5].into();
            entry.context = vec![9].into();
        }
    }
    if kind == MessageType::MsgSnapshot {
        let snapshot = message.mut_snapshot();
        let metadata = snapshot.mut_metadata();
        metadata.index = 7;
        metadata.term = 2;
        metadata.mut_conf_state().voters = vec![1, 2];
        metadata.mut_conf_state().learners = vec![3];
    }
    message
}

/// A small generator of its own, so that a failure repeats.
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }
}

#[test]
fn every_kind_of_a_peers_message_is_read_back_as_it_was_written() {
    for kind in PEER_KINDS {
        let message = message(kind);
        let bytes = wire::encode_message(GroupId(11), message.clone());
        assert_eq!(wire::decode_message(&bytes), Ok((GroupId(11), message)), "{kind:?}");
    }
}

#[test]
fn kinds_that_a_node_only_sends_to_itself_are_refused() {
    for kind in OTHER_KINDS {
        let bytes = wire::encode_message(GroupId::ROOT, message(kind));
        let error = wire::decode_message(&bytes).expect_err("a local message came from the network");
        assert!(error.to_string().contains("which no peer may send"), "{kind:?}: {error}");
    }
}

#[test]
fn a_message_without_term_or_sender_is_refused() {
    let mut without_term = message(MessageType::MsgHeartbeat);
    without_term.term = 0;
    let mut without_sender = message(MessageType::MsgHeartbeat);
    without_sender.from = 0;
    for message in [without_term, without_sender] {
        assert!(wire::decode_message(&wire::encode_message(GroupId::ROOT, message)).is_err());
    }
}

#[test]
fn a_message_with_a_priority_is_refused() {
    for priority in [-1, 1, i64::MAX] {
        let mut message = message(MessageType::MsgRequestPreVote);
        message.priority = priority;
        assert!(wire::decode_message(&wire::encode_message(GroupId::ROOT, message)).is_err());
    }
}

#[test]
fn entries_out_of_order_are_refused() {
    for (at, index) in [(0, 7), (0, 9), (1, 8), (1, 10)] {
        let mut message = message(MessageType::MsgAppend);
        message.mut_entries()[at].index = index;
        assert!(
            wire::decode_message(&wire::encode_message(GroupId::ROOT, message)).is_err(),
            "{at} is {index}"
        );
    }
    let mut message = message(MessageType::MsgAppend);
    message.index = u64::MAX;
    assert!(wire::decode_message(&wire::encode_message(GroupId::ROOT, message)).is_err());
}

#[test]
fn a_snapshot_without_position_or_voters_is_refused() {
    let whole = message(MessageType::MsgSnapshot);
    let mut without_index = whole.clone();
    without_index.mut_snapshot().mut_metadata().index = 0;
    let mut without_term = whole.clone();
    without_term.mut_snapshot().mut_metadata().term = 0;
    let mut without_voters = whole;
    without_voters.mut_snapshot().mut_metadata().mut_conf_state().voters.clear();
    for message in [without_index, without_term, without_voters] {
        assert!(wire::decode_message(&wire::encode_message(GroupId::ROOT, message)).is_err());
    }
}

#[test]
fn random_bytes_never_panic() {
    let mut numbers = Numbers(0x9e37_79b9);
    for _ in 0..50_000 {
        let length = numbers.below(80);
        let bytes: Vec<u8> = (0..length).map(|_| numbers.next() as u8).collect();
        let _ = wire::decode_message(&bytes);
    }
}

#[test]
fn mutated_messages_never_panic() {
    let mut numbers = Numbers(4711);
    let originals: Vec<Vec<u8>> =
        PEER_KINDS.iter().map(|kind| wire::encode_message(GroupId::ROOT, message(*kind))).collect();
    for round in 0..50_000 {
        let mut bytes = originals[round % originals.len()].clone();
        for _ in 0..=numbers.below(3) {
            let at = numbers.below(bytes.len());
            match numbers.below(3) {
                0 => bytes[at] ^= 1 << numbers.below(8),
                1 => bytes.truncate(at + 1),
                _ => bytes.insert(at, numbers.next() as u8),
            }
        }
        // What can be read can be written again, and is the same then.
        if let Ok((group, message)) = wire::decode_message(&bytes) {
            let again = wire::encode_message(group, message.clone());
            assert_eq!(wire::decode_message(&again), Ok((group, message)));
        }
    }
}

const CLUSTER: ClusterId = ClusterId([7; 16]);

fn take_turns(replica: &mut Replica) {
    while replica.has_work() {
        replica.begin_turn(Nanos(0)).expect("a turn begins");
        replica.end_turn(Nanos(0)).expect("and ends");
    }
}

/// Leads in term 2, alone.
fn leader() -> Replica {
    let node = NodeInfo {
        name: NodeName::parse("n1").expect("a good name"),
        identity: Some(NodeIdentity([1; 16])),
        raft_address: String::new(),
        grpc_address: String::new(),
        http_address: String::new(),
        command_version: 1,
        key_hash: None,
    };
    let founding = found(GroupId::ROOT, CLUSTER, node);
    let hard_state = founding.records[0].payload.clone();
    let on_disk = lowkey_replica::Found {
        snapshot: Some(founding.snapshot.payload),
        hard_state: Some(hard_state),
        compaction: Some((founding.records[1].index, founding.records[1].payload.clone())),
        ..Default::default()
    };
    let config = Config::new(GroupId::ROOT, founding.member, 1);
    let mut replica = Replica::recover(config, CLUSTER, on_disk).expect("a founded cluster");
    take_turns(&mut replica);
    replica
}

/// Has joined, and knows neither a term nor a member.
fn joiner() -> Replica {
    let config = Config::new(GroupId::ROOT, MemberId(1), 1);
    Replica::recover(config, CLUSTER, lowkey_replica::Found::default()).expect("an empty disk")
}

fn take_in(replica: &mut Replica, message: Message) {
    replica.step(Nanos(0), Input::Message(Box::new(message)));
    take_turns(replica);
}

/// Answers and votes may say anything: a leader may be wrong about a peer then, but goes on.
#[test]
fn a_replica_survives_any_answer_from_a_stranger() {
    let mut replica = leader();
    for kind in PEER_KINDS {
        take_in(&mut replica, Message { term: 2, ..message(kind) });
    }
    assert!(replica.status().serving);
}

#[test]
fn a_joiner_survives_whatever_a_stranger_says_first() {
    for kind in PEER_KINDS {
        for priority in [0, -1] {
            for index in [0, 7] {
                let entries = Vec::new().into();
                let said = Message { term: 1, priority, index, log_term: index, entries, ..message(kind) };
                take_in(&mut joiner(), said);
            }
        }
    }
}

#[test]
fn a_term_that_no_election_leads_to_is_not_followed() {
    for kind in PEER_KINDS {
        let mut replica = joiner();
        take_in(&mut replica, Message { term: (1 << 32) + 1, ..message(kind) });
        assert_eq!(replica.status().term, 0, "{kind:?}");
    }
}

/// A heartbeat of a leader that has all be patient, by this factor.
fn heartbeat(factor: u64) -> Message {
    let mut heartbeat = message(MessageType::MsgHeartbeat);
    heartbeat.deprecated_priority = factor;
    heartbeat
}

#[test]
fn a_heartbeat_says_how_patient_all_are_to_be() {
    for factor in 1..=4 {
        let bytes = wire::encode_message(GroupId::ROOT, heartbeat(factor));
        let (_, read) = wire::decode_message(&bytes).unwrap();
        assert_eq!(u64::from(wire::timing_factor(&read)), factor);
    }
    let plain = wire::encode_message(GroupId::ROOT, heartbeat(0));
    assert_eq!(wire::encode_message(GroupId::ROOT, heartbeat(1)), plain, "a factor of 1 is not said");
    // To nodes that know of no factor it is an unknown field behind all others.
    let told = wire::encode_message(GroupId::ROOT, heartbeat(3));
    assert_eq!(told, [plain.as_slice(), &[0x90, 0x01, 3]].concat());
    // No other message says one, and more than there is counts as the most.
    let absurd = [plain.as_slice(), &[0x90, 0x01, 0xff, 0xff, 0x03]].concat();
    assert_eq!(wire::timing_factor(&wire::decode_message(&absurd).unwrap().1), 4);
    let answer = wire::encode_message(GroupId::ROOT, message(MessageType::MsgHeartbeatResponse));
    let with_factor = [answer.as_slice(), &[0x90, 0x01, 3]].concat();
    assert_eq!(wire::decode_message(&with_factor).unwrap().1, wire::decode_message(&answer).unwrap().1);
}
