//! How a replica comes to life: founded, joined, or found again on disk.
//!
//! The snapshot and the log are two files that a crash may leave out of step: a snapshot is written
//! before the log is cut, and a leader's snapshot before the log begins anew behind it. Here they
//! are brought in step by the same rule that `raft` uses on the wire: where the log agrees with the
//! snapshot it goes on, where it does not it is given up. What cannot be explained by a crash is
//! refused.

mod saved;
mod survivor;

use std::collections::VecDeque;
use std::fmt;

use lowkey_core::{
    ClusterId, Command, CountersSpent, FirstMembers, GroupId, MemberId, NodeInfo, Reply, State,
};
use lowkey_record::Record;
use raft::RawNode;
use raft::eraftpb;

pub use self::saved::SavedState;
pub use self::survivor::{Survivor, begin_anew};
use crate::config::Config;
use crate::log::{LogStore, records};
use crate::output::SnapshotFile;
use crate::replica::{ELECTION_TICKS, HEARTBEAT_TICKS};
use crate::snapshots::read_state;
use crate::wire::{self, SnapshotParts};

/// What was found on disk for the group. All empty for a node that has just joined.
#[derive(Debug, Default)]
pub struct Found {
    /// The newest snapshot's payload.
    pub snapshot: Option<Vec<u8>>,
    /// The last hard state.
    pub hard_state: Option<Vec<u8>>,
    /// The last compaction: the index up to which entries are gone, and its payload.
    pub compaction: Option<(u64, Vec<u8>)>,
    /// The entries that follow, without gaps.
    pub entries: VecDeque<(u64, Vec<u8>)>,
}

/// What was found on disk cannot be a replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecoverError(pub String);

impl fmt::Display for RecoverError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for RecoverError {}

impl From<wire::WireError> for RecoverError {
    fn from(error: wire::WireError) -> Self {
        Self(error.to_string())
    }
}

/// What a founder puts on disk before it starts: a snapshot at index 1, so that a node that joins learns
/// the first voter from it, and the log's first records.
#[derive(Debug)]
pub struct Founding {
    /// The founder's id in the group.
    pub member: MemberId,
    /// The first snapshot.
    pub snapshot: SnapshotFile,
    /// The first records of the log.
    pub records: Vec<Record>,
}

/// Founds a group of a cluster with one node.
pub fn found(group: GroupId, cluster: ClusterId, node: NodeInfo) -> Founding {
    const FIRST: u64 = 1;
    let mut state = State::new(cluster);
    let applied = state.apply(FIRST, FIRST, &Command::AddMember { node: Box::new(node), invitation: None });
    let Ok(Reply::MemberAdded { member }) = applied.reply else {
        unreachable!("the first node of a cluster has no rivals");
    };
    begin_with(group, &state, &[member], member, FIRST)
}

/// Founds a group of a cluster with several nodes, all of them voters from the beginning: what this member of it puts
/// on disk. Each of them puts down the same snapshot.
pub fn found_together(
    group: GroupId,
    first: FirstMembers,
    member: MemberId,
) -> Result<Founding, CountersSpent> {
    const FIRST_TERM: u64 = 1;
    let state = State::begin_together(first)?;
    let voters: Vec<MemberId> = state.members().map(|(member, _)| member).collect();
    Ok(begin_with(group, &state, &voters, member, FIRST_TERM))
}

/// The first things on disk of a cluster with these voters, whose log begins behind this state.
pub(crate) fn begin_with(
    group: GroupId,
    state: &State,
    voters: &[MemberId],
    member: MemberId,
    term: u64,
) -> Founding {
    let index = state.revision();
    let voters = voters.iter().map(|voter| voter.0).collect();
    let conf_state = eraftpb::ConfState { voters, ..Default::default() };
    let hard_state = eraftpb::HardState { term, commit: index, ..Default::default() };
    let records = vec![records::hard_state(group, &hard_state), records::reset(group, index, term)];
    let state = state.encode_snapshot();
    let state_hash = State::hash_of_snapshot(&state);
    let parts = SnapshotParts { index, term, conf_state, state, state_hash };
    Founding { member, snapshot: SnapshotFile { index, payload: wire::encode_snapshot(parts) }, records }
}

/// What was found on disk, after all checks.
pub(crate) struct Checked {
    pub(crate) log: Log,
    /// As of the snapshot.
    pub(crate) state: State,
    /// Of the snapshot; nothing in it if there is none.
    pub(crate) saved: eraftpb::SnapshotMetadata,
    saved_bytes: u64,
}

/// Checks that log and snapshot belong together and are of this cluster, and brings them in step.
pub(crate) fn check(cluster: ClusterId, found: &Found) -> Result<Checked, RecoverError> {
    let mut log = Log::read(found)?;
    let (state, saved, saved_bytes) = match &found.snapshot {
        // A founder starts with a snapshot, and a joiner's first entry comes behind one.
        None if log.last() > 0 => {
            return Err(RecoverError(format!(
                "the log begins behind index {}, but there is no snapshot of what came before",
                log.compacted_index
            )));
        }
        None => (State::new(cluster), eraftpb::SnapshotMetadata::default(), 0),
        Some(payload) => {
            let parts = wire::decode_snapshot(payload)?;
            let state = read_state(&parts)?;
            log.agree_with(&parts)?;
            (state, parts.into_metadata(), payload.len() as u64)
        }
    };
    if state.cluster() != cluster {
        return Err(RecoverError(format!(
            "the snapshot is of cluster {}, but this node belongs to cluster {cluster}",
            state.cluster()
        )));
    }
    if log.hard_state.commit > log.last() {
        return Err(RecoverError(format!(
            "the log ends at index {}, but entries up to {} were committed: entries are missing",
            log.last(),
            log.hard_state.commit
        )));
    }
    Ok(Checked { log, state, saved, saved_bytes })
}

impl Checked {
    /// `raft` on the log, the state that it goes on from, and a record for a log that was given up: the disk still
    /// has it, and what follows would leave a gap behind it.
    pub(crate) fn start(self, config: &Config) -> Result<Started, RecoverError> {
        let Self { log, state, saved, saved_bytes } = self;
        let compaction = (log.compacted_index, log.compacted_term);
        let mut store =
            LogStore::new(log.hard_state, saved.get_conf_state().clone(), compaction, log.entries);
        store.set_saved(saved.clone());
        let logger = slog::Logger::root(slog::Discard, slog::o!());
        let node = RawNode::new(&raft_config(config.member, saved.index), store, &logger)
            .map_err(|error| RecoverError(format!("the log cannot be used: {error}")))?;
        let repair = log.given_up.then(|| records::reset(config.group, compaction.0, compaction.1));
        Ok(Started { node, state, saved, saved_bytes, repairs: repair.into_iter().collect() })
    }
}

/// What a replica begins with.
pub(crate) struct Started {
    pub(crate) node: RawNode<LogStore>,
    /// As of the snapshot.
    pub(crate) state: State,
    /// Of the snapshot; nothing in it if there is none.
    pub(crate) saved: eraftpb::SnapshotMetadata,
    pub(crate) saved_bytes: u64,
    /// Records that bring the disk in step.
    pub(crate) repairs: Vec<Record>,
}

fn raft_config(member: MemberId, applied: u64) -> raft::Config {
    raft::Config {
        id: member.0,
        election_tick: ELECTION_TICKS,
        heartbeat_tick: HEARTBEAT_TICKS,
        applied,
        check_quorum: true,
        pre_vote: true,
        read_only_option: raft::ReadOnlyOption::Safe,
        // A peer that is behind gets so much at a time: 8 MiB, and more when it has answered.
        max_size_per_msg: 32 * 1024,
        max_inflight_msgs: 256,
        max_uncommitted_size: 32 * 1024 * 1024,
        max_committed_size_per_ready: 4 * 1024 * 1024,
        batch_append: true,
        // The next entries tell it, or the next tick: see `tell_commit`.
        skip_bcast_commit: true,
        ..raft::Config::default()
    }
}

/// The log as it was read, on its way to being usable.
pub(crate) struct Log {
    pub(crate) hard_state: eraftpb::HardState,
    compacted_index: u64,
    compacted_term: u64,
    pub(crate) entries: VecDeque<eraftpb::Entry>,
    /// It did not agree with the snapshot, and begins anew behind it.
    given_up: bool,
}

impl Log {
    fn read(found: &Found) -> Result<Self, RecoverError> {
        let hard_state = match &found.hard_state {
            Some(bytes) => wire::decode_hard_state(bytes)?,
            None => eraftpb::HardState::default(),
        };
        let (compacted_index, compacted_term) = match &found.compaction {
            Some((index, payload)) => (*index, wire::decode_compaction(payload)?),
            None => (0, 0),
        };
        let mut entries = VecDeque::with_capacity(found.entries.len());
        for (index, bytes) in &found.entries {
            let entry = wire::decode_entry(bytes)?;
            let expected = compacted_index + 1 + entries.len() as u64;
            if entry.index != *index || entry.index != expected {
                return Err(RecoverError(format!("the log holds entry {index} where {expected} belongs")));
            }
            entries.push_back(entry);
        }
        Ok(Self { hard_state, compacted_index, compacted_term, entries, given_up: false })
    }

    pub(crate) fn last(&self) -> u64 {
        self.compacted_index + self.entries.len() as u64
    }

    fn term(&self, index: u64) -> Option<u64> {
        match index.checked_sub(self.compacted_index)? {
            0 => Some(self.compacted_term),
            offset => self.entries.get(offset as usize - 1).map(|entry| entry.term),
        }
    }

    /// Brings the log in step with a snapshot that may be newer than all it knows.
    fn agree_with(&mut self, snapshot: &SnapshotParts) -> Result<(), RecoverError> {
        if snapshot.index < self.compacted_index {
            return Err(RecoverError(format!(
                "the log begins behind index {}, but the newest snapshot is of index {}: a snapshot file is \
                 missing",
                self.compacted_index, snapshot.index
            )));
        }
        if self.term(snapshot.index) != Some(snapshot.term) {
            // A snapshot from the leader was saved, and the crash came before the log began anew.
            // That explains only entries that were not committed.
            if snapshot.index <= self.hard_state.commit {
                return Err(RecoverError(format!(
                    "the log and the snapshot of index {} disagree about what was committed",
                    snapshot.index
                )));
            }
            self.entries.clear();
            self.compacted_index = snapshot.index;
            self.compacted_term = snapshot.term;
            self.given_up = true;
        }
        // What a snapshot covers is committed, in a term that has begun. No vote of that term can be
        // lost: a vote is on disk before it is cast, and then the hard state would know the term.
        if self.hard_state.term < snapshot.term {
            self.hard_state.term = snapshot.term;
            self.hard_state.vote = 0;
        }
        self.hard_state.commit = self.hard_state.commit.max(snapshot.index);
        Ok(())
    }
}
