//! The bytes that travel between replicas and that lie in the log, and their way to and from the
//! types of the `raft` crate.
//!
//! These are our own prost messages: the old protobuf crate inside `raft` never parses a byte that
//! came from a network or a disk (RUSTSEC-2024-0437). Decoding trusts nothing and never panics.

use std::collections::BTreeSet;
use std::fmt;

use lowkey_core::{DIGEST_VERSION, GroupId, MemberId};
use prost::Message as _;
use raft::eraftpb;

use crate::guard::Report;
use crate::input::Input;
use crate::replica::FACTOR_MAX;

/// A higher term is not the work of elections, at ten a second in three billion years, but of an
/// error; `raft` would follow it, and could not count beyond the last one.
const TERM_MAX: u64 = u64::MAX / 2;

/// Bytes that could not be understood.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WireError(pub String);

impl fmt::Display for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for WireError {}

impl From<prost::DecodeError> for WireError {
    fn from(error: prost::DecodeError) -> Self {
        Self(error.to_string())
    }
}

#[derive(Clone, PartialEq, prost::Message)]
struct MessageProto {
    #[prost(uint32, tag = "1")]
    kind: u32,
    #[prost(uint64, tag = "2")]
    to: u64,
    #[prost(uint64, tag = "3")]
    from: u64,
    #[prost(uint64, tag = "4")]
    term: u64,
    #[prost(uint64, tag = "5")]
    log_term: u64,
    #[prost(uint64, tag = "6")]
    index: u64,
    #[prost(message, repeated, tag = "7")]
    entries: Vec<EntryProto>,
    #[prost(uint64, tag = "8")]
    commit: u64,
    #[prost(uint64, tag = "9")]
    commit_term: u64,
    #[prost(message, optional, tag = "10")]
    snapshot: Option<SnapshotHeadProto>,
    #[prost(uint64, tag = "11")]
    request_snapshot: u64,
    #[prost(bool, tag = "12")]
    reject: bool,
    #[prost(uint64, tag = "13")]
    reject_hint: u64,
    #[prost(bytes = "vec", tag = "14")]
    context: Vec<u8>,
    #[prost(int64, tag = "15")]
    priority: i64,
    /// The group that the message belongs to.
    #[prost(uint32, tag = "16")]
    group: u32,
    /// Not one of `raft`'s messages, but what a replica says of its state.
    #[prost(message, optional, tag = "17")]
    report: Option<ReportProto>,
    /// Of a heartbeat: how patient all are to be. Absent means 1, also to nodes of versions that know of none.
    #[prost(uint32, tag = "18")]
    timing_factor: u32,
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
struct ReportProto {
    #[prost(uint64, tag = "1")]
    index: u64,
    #[prost(fixed64, tag = "2")]
    digest: u64,
    #[prost(bool, tag = "3")]
    wants_answer: bool,
}

/// What makes an entry a checkpoint: its context.
#[derive(Clone, Copy, PartialEq, prost::Message)]
struct MarkProto {
    /// How states are digested.
    #[prost(uint32, tag = "1")]
    digest_version: u32,
    #[prost(uint64, tag = "2")]
    previous_index: u64,
    #[prost(fixed64, tag = "3")]
    previous_digest: u64,
}

/// An entry's mark as a checkpoint, and the proposer's digest at the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    pub(crate) previous: Option<(u64, u64)>,
}

/// What one replica says to another.
#[derive(Clone, Debug, PartialEq)]
pub enum Said {
    /// A message of `raft`'s.
    Message(eraftpb::Message),
    /// What the other's state came to.
    Report(Report),
}

impl Said {
    /// Who says it.
    pub fn from(&self) -> MemberId {
        match self {
            Self::Message(message) => MemberId(message.from),
            Self::Report(report) => report.from,
        }
    }
}

impl From<Said> for Input {
    fn from(said: Said) -> Self {
        match said {
            Said::Message(message) => Self::Message(Box::new(message)),
            Said::Report(report) => Self::Report(report),
        }
    }
}

#[derive(Clone, PartialEq, prost::Message)]
struct EntryProto {
    #[prost(uint32, tag = "1")]
    kind: u32,
    #[prost(uint64, tag = "2")]
    term: u64,
    #[prost(uint64, tag = "3")]
    index: u64,
    #[prost(bytes = "vec", tag = "4")]
    data: Vec<u8>,
    #[prost(bytes = "vec", tag = "5")]
    context: Vec<u8>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct HardStateProto {
    #[prost(uint64, tag = "1")]
    term: u64,
    #[prost(uint64, tag = "2")]
    vote: u64,
    #[prost(uint64, tag = "3")]
    commit: u64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ConfStateProto {
    #[prost(uint64, repeated, tag = "1")]
    voters: Vec<u64>,
    #[prost(uint64, repeated, tag = "2")]
    learners: Vec<u64>,
    #[prost(uint64, repeated, tag = "3")]
    voters_outgoing: Vec<u64>,
    #[prost(uint64, repeated, tag = "4")]
    learners_next: Vec<u64>,
    #[prost(bool, tag = "5")]
    auto_leave: bool,
}

/// What a message says of the snapshot that comes with it: the beginning of [`SnapshotProto`].
#[derive(Clone, PartialEq, prost::Message)]
struct SnapshotHeadProto {
    #[prost(uint64, tag = "1")]
    index: u64,
    #[prost(uint64, tag = "2")]
    term: u64,
    #[prost(message, optional, tag = "3")]
    conf_state: Option<ConfStateProto>,
}

/// A snapshot, as in its file and on the wire.
#[derive(Clone, PartialEq, prost::Message)]
struct SnapshotProto {
    #[prost(uint64, tag = "1")]
    index: u64,
    #[prost(uint64, tag = "2")]
    term: u64,
    #[prost(message, optional, tag = "3")]
    conf_state: Option<ConfStateProto>,
    #[prost(bytes = "vec", tag = "4")]
    state: Vec<u8>,
    /// The state's hash, computed where the snapshot was made.
    #[prost(fixed64, tag = "5")]
    state_hash: u64,
}

/// The same numbers as in `raft`'s own message: its leader code reads what it proposed itself.
#[derive(Clone, PartialEq, prost::Message)]
struct ConfChangeProto {
    #[prost(uint32, tag = "1")]
    transition: u32,
    #[prost(message, repeated, tag = "2")]
    changes: Vec<ConfChangeSingleProto>,
    #[prost(bytes = "vec", tag = "3")]
    context: Vec<u8>,
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
struct ConfChangeSingleProto {
    #[prost(uint32, tag = "1")]
    kind: u32,
    #[prost(uint64, tag = "2")]
    node_id: u64,
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
struct CompactionProto {
    #[prost(uint64, tag = "1")]
    term: u64,
}

/// A snapshot whose parts have been read but whose state has not.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SnapshotParts {
    pub(crate) index: u64,
    pub(crate) term: u64,
    pub(crate) conf_state: eraftpb::ConfState,
    pub(crate) state: Vec<u8>,
    pub(crate) state_hash: u64,
}

impl SnapshotParts {
    pub(crate) fn into_metadata(self) -> eraftpb::SnapshotMetadata {
        let mut metadata =
            eraftpb::SnapshotMetadata { index: self.index, term: self.term, ..Default::default() };
        metadata.set_conf_state(self.conf_state);
        metadata
    }
}

/// A message for another replica of the group. Of a snapshot it only says which; see
/// [`crate::ReceivedSnapshot`].
pub fn encode_message(group: GroupId, message: eraftpb::Message) -> Vec<u8> {
    let snapshot = (message.get_msg_type() == eraftpb::MessageType::MsgSnapshot)
        .then(|| to_snapshot_head(message.get_snapshot().get_metadata()));
    let timing_factor = timing_factor(&message);
    let mut message = message;
    MessageProto {
        kind: message_kind(message.get_msg_type()),
        to: message.to,
        from: message.from,
        term: message.term,
        log_term: message.log_term,
        index: message.index,
        entries: message.take_entries().into_iter().map(to_entry).collect(),
        commit: message.commit,
        commit_term: message.commit_term,
        snapshot,
        request_snapshot: message.request_snapshot,
        reject: message.reject,
        reject_hint: message.reject_hint,
        context: message.context.to_vec(),
        priority: message.priority,
        group: group.0,
        report: None,
        timing_factor: match timing_factor {
            1 => 0,
            stretched => stretched,
        },
    }
    .encode_to_vec()
}

/// How patient all are to be, says a heartbeat: from 1 to 4, and 1 where nothing is said.
///
/// In memory the factor stands in a field of `raft`'s message that `raft` reads in no heartbeat, and that is never on
/// the wire.
pub fn timing_factor(message: &eraftpb::Message) -> u32 {
    match message.get_msg_type() {
        eraftpb::MessageType::MsgHeartbeat => {
            u32::try_from(message.deprecated_priority).unwrap_or(FACTOR_MAX).clamp(1, FACTOR_MAX)
        }
        _ => 1,
    }
}

/// Has a heartbeat say it; other messages stay as they are.
pub(crate) fn tell_timing_factor(message: &mut eraftpb::Message, factor: u32) {
    if message.get_msg_type() == eraftpb::MessageType::MsgHeartbeat {
        message.deprecated_priority = if factor > 1 { factor.into() } else { 0 };
    }
}

/// What a replica says of its state, for another replica of the group.
pub fn encode_report(group: GroupId, report: Report) -> Vec<u8> {
    let Report { from, to, index, digest, wants_answer } = report;
    MessageProto {
        to: to.0,
        from: from.0,
        group: group.0,
        report: Some(ReportProto { index, digest, wants_answer }),
        ..Default::default()
    }
    .encode_to_vec()
}

/// Reads what another replica says, and the group that it is for.
pub fn decode(bytes: &[u8]) -> Result<(GroupId, Said), WireError> {
    let proto = MessageProto::decode(bytes)?;
    let group = GroupId::told(proto.group);
    let said = match proto.report {
        None => Said::Message(from_message(proto)?),
        Some(_) if proto.from == 0 => return Err(WireError("a report without a sender".into())),
        Some(ReportProto { index, digest, wants_answer }) => {
            let (from, to) = (MemberId(proto.from), MemberId(proto.to));
            Said::Report(Report { from, to, index, digest, wants_answer })
        }
    };
    Ok((group, said))
}

/// Reads a message of `raft`'s, and nothing else, and the group that it is for.
pub fn decode_message(bytes: &[u8]) -> Result<(GroupId, eraftpb::Message), WireError> {
    match decode(bytes)? {
        (group, Said::Message(message)) => Ok((group, message)),
        (_, Said::Report(_)) => Err(WireError("a report where a message is due".into())),
    }
}

/// Kinds that only a node may send to itself are refused: `raft` would act on them as if they were its own.
fn from_message(proto: MessageProto) -> Result<eraftpb::Message, WireError> {
    // `raft` takes a message without a term for one of its own.
    if proto.term == 0 || proto.from == 0 {
        return Err(WireError("a message without term or sender".into()));
    }
    if proto.term > TERM_MAX {
        return Err(WireError(format!("a message of term {}, which no election leads to", proto.term)));
    }
    // No node has one. By it `raft` may turn a vote down where it counts on granting it, and panic.
    if proto.priority != 0 {
        return Err(WireError(format!("a message of priority {}, which no node has", proto.priority)));
    }
    let mut message = eraftpb::Message::default();
    message.set_msg_type(message_type(proto.kind)?);
    message.to = proto.to;
    message.from = proto.from;
    message.term = proto.term;
    message.log_term = proto.log_term;
    message.index = proto.index;
    let entries = proto.entries.into_iter().map(from_entry).collect::<Result<Vec<_>, _>>()?;
    check_consecutive(proto.index, &entries)?;
    message.set_entries(entries.into());
    message.commit = proto.commit;
    message.commit_term = proto.commit_term;
    message.request_snapshot = proto.request_snapshot;
    message.reject = proto.reject;
    message.reject_hint = proto.reject_hint;
    message.context = proto.context.into();
    tell_timing_factor(&mut message, proto.timing_factor.min(FACTOR_MAX));
    match (message.get_msg_type(), proto.snapshot) {
        (eraftpb::MessageType::MsgSnapshot, Some(snapshot)) => {
            message.mut_snapshot().set_metadata(from_snapshot_head(snapshot)?);
        }
        (eraftpb::MessageType::MsgSnapshot, None) => {
            return Err(WireError("a snapshot message without a snapshot".into()));
        }
        (_, Some(_)) => return Err(WireError("a snapshot in a message of another kind".into())),
        (_, None) => {}
    }
    Ok(message)
}

pub(crate) fn encode_mark(mark: Mark) -> Vec<u8> {
    let (previous_index, previous_digest) = mark.previous.unwrap_or_default();
    MarkProto { digest_version: DIGEST_VERSION, previous_index, previous_digest }.encode_to_vec()
}

/// Nothing for an entry that is no checkpoint, or one of a version that digests states in another way.
pub(crate) fn decode_mark(context: &[u8]) -> Option<Mark> {
    let MarkProto { digest_version, previous_index, previous_digest } = MarkProto::decode(context).ok()?;
    let previous = (previous_index > 0).then_some((previous_index, previous_digest));
    (digest_version == DIGEST_VERSION).then_some(Mark { previous })
}

/// `raft` panics on an append whose entries do not follow one another.
fn check_consecutive(index: u64, entries: &[eraftpb::Entry]) -> Result<(), WireError> {
    let expected = (1..).map(|step| index.checked_add(step));
    match entries.iter().zip(expected).find(|(entry, expected)| Some(entry.index) != *expected) {
        Some((entry, _)) => Err(WireError(format!("entry {} is out of order", entry.index))),
        None => Ok(()),
    }
}

fn message_kind(kind: eraftpb::MessageType) -> u32 {
    kind as u32
}

fn message_type(kind: u32) -> Result<eraftpb::MessageType, WireError> {
    use eraftpb::MessageType as Type;
    [
        Type::MsgAppend,
        Type::MsgAppendResponse,
        Type::MsgRequestVote,
        Type::MsgRequestVoteResponse,
        Type::MsgSnapshot,
        Type::MsgHeartbeat,
        Type::MsgHeartbeatResponse,
        Type::MsgTimeoutNow,
        Type::MsgRequestPreVote,
        Type::MsgRequestPreVoteResponse,
    ]
    .into_iter()
    .find(|known| message_kind(*known) == kind)
    .ok_or_else(|| WireError(format!("a message of kind {kind}, which no peer may send")))
}

fn entry_type(kind: u32) -> Result<eraftpb::EntryType, WireError> {
    use eraftpb::EntryType as Type;
    [Type::EntryNormal, Type::EntryConfChangeV2]
        .into_iter()
        .find(|known| *known as u32 == kind)
        .ok_or_else(|| WireError(format!("an entry of kind {kind}, which is not known")))
}

fn to_entry(entry: eraftpb::Entry) -> EntryProto {
    EntryProto {
        kind: entry.get_entry_type() as u32,
        term: entry.term,
        index: entry.index,
        data: entry.data.to_vec(),
        context: entry.context.to_vec(),
    }
}

fn from_entry(proto: EntryProto) -> Result<eraftpb::Entry, WireError> {
    let mut entry = eraftpb::Entry::default();
    entry.set_entry_type(entry_type(proto.kind)?);
    entry.term = proto.term;
    entry.index = proto.index;
    entry.data = proto.data.into();
    entry.context = proto.context.into();
    Ok(entry)
}

/// An entry as the payload of a log record.
pub(crate) fn encode_entry(entry: &eraftpb::Entry) -> Vec<u8> {
    to_entry(entry.clone()).encode_to_vec()
}

/// Reads the payload of a log record that holds an entry.
pub fn decode_entry(bytes: &[u8]) -> Result<eraftpb::Entry, WireError> {
    from_entry(EntryProto::decode(bytes)?)
}

pub(crate) fn encode_hard_state(hard_state: &eraftpb::HardState) -> Vec<u8> {
    HardStateProto { term: hard_state.term, vote: hard_state.vote, commit: hard_state.commit }.encode_to_vec()
}

pub(crate) fn decode_hard_state(bytes: &[u8]) -> Result<eraftpb::HardState, WireError> {
    let proto = HardStateProto::decode(bytes)?;
    Ok(eraftpb::HardState { term: proto.term, vote: proto.vote, commit: proto.commit, ..Default::default() })
}

fn to_conf_state(conf_state: &eraftpb::ConfState) -> ConfStateProto {
    ConfStateProto {
        voters: conf_state.voters.clone(),
        learners: conf_state.learners.clone(),
        voters_outgoing: conf_state.voters_outgoing.clone(),
        learners_next: conf_state.learners_next.clone(),
        auto_leave: conf_state.auto_leave,
    }
}

fn from_conf_state(proto: ConfStateProto) -> eraftpb::ConfState {
    eraftpb::ConfState {
        voters: proto.voters,
        learners: proto.learners,
        voters_outgoing: proto.voters_outgoing,
        learners_next: proto.learners_next,
        auto_leave: proto.auto_leave,
        ..Default::default()
    }
}

pub(crate) fn encode_compaction(term: u64) -> Vec<u8> {
    CompactionProto { term }.encode_to_vec()
}

pub(crate) fn decode_compaction(bytes: &[u8]) -> Result<u64, WireError> {
    Ok(CompactionProto::decode(bytes)?.term)
}

/// Reads a change of members out of an entry of that type.
pub fn decode_conf_change(bytes: &[u8]) -> Result<eraftpb::ConfChangeV2, WireError> {
    use eraftpb::ConfChangeTransition as Transition;
    use eraftpb::ConfChangeType as Type;
    let proto = ConfChangeProto::decode(bytes)?;
    let transition = [Transition::Auto, Transition::Implicit, Transition::Explicit]
        .into_iter()
        .find(|known| *known as u32 == proto.transition)
        .ok_or_else(|| WireError(format!("a transition {}, which is not known", proto.transition)))?;
    let mut conf_change = eraftpb::ConfChangeV2::default();
    conf_change.set_transition(transition);
    for single in proto.changes {
        let kind = [Type::AddNode, Type::RemoveNode, Type::AddLearnerNode]
            .into_iter()
            .find(|known| *known as u32 == single.kind)
            .ok_or_else(|| WireError(format!("a membership change {}, which is not known", single.kind)))?;
        let mut change = eraftpb::ConfChangeSingle::default();
        change.set_change_type(kind);
        change.node_id = single.node_id;
        conf_change.mut_changes().push(change);
    }
    conf_change.context = proto.context.into();
    Ok(conf_change)
}

/// Only what the snapshot is: its bytes travel by themselves.
fn to_snapshot_head(metadata: &eraftpb::SnapshotMetadata) -> SnapshotHeadProto {
    SnapshotHeadProto {
        index: metadata.index,
        term: metadata.term,
        conf_state: Some(to_conf_state(metadata.get_conf_state())),
    }
}

fn from_snapshot_head(proto: SnapshotHeadProto) -> Result<eraftpb::SnapshotMetadata, WireError> {
    let conf_state =
        proto.conf_state.ok_or_else(|| WireError("a snapshot without the members of the group".into()))?;
    if proto.index == 0 || proto.term == 0 || conf_state.voters.is_empty() {
        return Err(WireError("a snapshot without position or voters".into()));
    }
    check_members(&conf_state)?;
    let mut metadata =
        eraftpb::SnapshotMetadata { index: proto.index, term: proto.term, ..Default::default() };
    metadata.set_conf_state(from_conf_state(conf_state));
    Ok(metadata)
}

fn from_snapshot(proto: SnapshotProto) -> Result<SnapshotParts, WireError> {
    let SnapshotProto { index, term, conf_state, state, state_hash } = proto;
    let mut metadata = from_snapshot_head(SnapshotHeadProto { index, term, conf_state })?;
    Ok(SnapshotParts { index, term, conf_state: metadata.take_conf_state(), state, state_hash })
}

/// `raft` panics on a configuration that names a member twice or as both voter and learner.
fn check_members(conf_state: &ConfStateProto) -> Result<(), WireError> {
    let set = |members: &[u64]| members.iter().copied().collect::<BTreeSet<u64>>();
    let (voters, learners) = (set(&conf_state.voters), set(&conf_state.learners));
    let (outgoing, next) = (set(&conf_state.voters_outgoing), set(&conf_state.learners_next));
    let each_once = voters.len() == conf_state.voters.len()
        && learners.len() == conf_state.learners.len()
        && outgoing.len() == conf_state.voters_outgoing.len()
        && next.len() == conf_state.learners_next.len();
    let apart = voters.is_disjoint(&learners)
        && outgoing.is_disjoint(&learners)
        && voters.is_disjoint(&next)
        && next.is_subset(&outgoing);
    let numbered = [&voters, &learners, &outgoing].iter().all(|members| !members.contains(&0));
    if each_once && apart && numbered {
        Ok(())
    } else {
        Err(WireError("a snapshot whose members contradict each other".into()))
    }
}

/// A snapshot as the payload of its file.
pub(crate) fn encode_snapshot(parts: SnapshotParts) -> Vec<u8> {
    SnapshotProto {
        index: parts.index,
        term: parts.term,
        conf_state: Some(to_conf_state(&parts.conf_state)),
        state: parts.state,
        state_hash: parts.state_hash,
    }
    .encode_to_vec()
}

pub(crate) fn decode_snapshot(bytes: &[u8]) -> Result<SnapshotParts, WireError> {
    from_snapshot(SnapshotProto::decode(bytes)?)
}
