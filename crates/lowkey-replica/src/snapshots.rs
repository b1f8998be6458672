//! When snapshots are made, which one a peer gets, and how the log before them goes.
//!
//! A snapshot of a large state is made from the one before it and the entries since then, never from the live state:
//! the replica hands out a [`SnapshotJob`], which needs nothing of it any more, and goes on. So making
//! one pauses nothing, and shows each time anew that snapshot and log give the state. A small state is
//! encoded at once instead: that takes a few milliseconds, where to apply all those entries a second time would be
//! a fifth of all that a busy node does. Only once a snapshot is known to be on disk is the log cut, a tail of it kept for peers that are behind. The record that
//! cuts the log always travels with a hard state whose commit is not behind it, or `raft` could not
//! start from them.
//!
//! A peer that is too far behind for the log gets the newest snapshot that is on disk; the log holds
//! every entry behind that one. `raft` names it in a message, and the server, which sends the message, adds the
//! file. On the other side it comes as a [`ReceivedSnapshot`], checked and decoded before it gets
//! here, and replaces log and state at once.
//!
//! If the file of the newest snapshot is found damaged or gone, the next one cannot be made from it. It is then made of
//! the live state, whatever its size: that pauses the replica, but without it the log would grow for ever.

mod job;
mod received;

use lowkey_core::{State, mutants};
use lowkey_record::Record;
use raft::eraftpb::{self, ConfState, SnapshotMetadata};
use raft::{ProgressState, RawNode, StateRole, Storage as _};

use self::job::Source;
pub(crate) use self::job::replay;
pub use self::job::{JobError, SnapshotJob};
pub use self::received::ReceivedSnapshot;
use crate::config::Config;
use crate::log::{LogStore, entry_bytes, records};
use crate::time::MILLISECOND;
use crate::wire::{self, SnapshotParts};

/// How long after a failure the next snapshot is tried: 3 s.
const FAILURE_TICKS: u32 = 300;

/// How a snapshot of a small state is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pace {
    /// Of the state, in this turn.
    AtOnce,
    /// As that of a large one: beside the turns. For one that is not due, and that nobody may wait for.
    Beside,
}

/// Invariants:
/// - At most one snapshot is being made at a time.
/// - The log holds every entry behind `saved`: the next snapshot is made from these.
#[derive(Debug)]
pub(crate) struct Snapshots {
    /// The index of the newest snapshot that is on disk; 0 if there is none, and then there is no log.
    saved: u64,
    /// Its size.
    saved_bytes: u64,
    being_made: Option<SnapshotMetadata>,
    /// After a failure: ticks until the next is made, or a full disk would have one made in every turn.
    pause_ticks: u32,
    /// The last that was begun could not be made.
    has_failed: bool,
    /// The file of the newest is damaged or gone: the next is made of the live state, and at once.
    is_lost: bool,
    /// Bytes of entries logged since the newest snapshot was begun.
    logged_bytes: u64,
    /// A snapshot that was saved and whose log can be cut.
    compaction_due: Option<u64>,
    /// Came from the leader; `raft` has taken it, and the turn that begins next installs it.
    received: Option<(Vec<u8>, State)>,
}

impl Snapshots {
    pub(crate) fn new(saved: u64, saved_bytes: u64) -> Self {
        Self {
            saved,
            saved_bytes,
            being_made: None,
            pause_ticks: 0,
            has_failed: false,
            is_lost: false,
            logged_bytes: 0,
            compaction_due: None,
            received: None,
        }
    }

    pub(crate) fn count_logged(&mut self, entries: &[eraftpb::Entry]) {
        self.logged_bytes += entries.iter().map(entry_bytes).sum::<u64>();
    }

    pub(crate) fn failed(&mut self, index: u64) {
        if self.being_made.take_if(|metadata| metadata.index == index).is_some() {
            self.pause_ticks = FAILURE_TICKS;
            self.has_failed = true;
        }
    }

    /// The file of this snapshot cannot be used; true if that is the newest. One that newer ones have replaced is not
    /// missed.
    pub(crate) fn lost(&mut self, index: u64) -> bool {
        let is_newest = index == self.saved;
        if is_newest {
            self.is_lost = true;
            self.pause_ticks = 0;
        }
        is_newest
    }

    pub(crate) fn tick(&mut self) {
        self.pause_ticks = self.pause_ticks.saturating_sub(1);
    }

    pub(crate) fn is_being_made(&self) -> bool {
        self.being_made.is_some()
    }

    pub(crate) fn compaction_due(&self) -> Option<u64> {
        self.compaction_due
    }

    /// True if the state is certainly small: it was at the last snapshot, and not enough was logged since then to make it
    /// large.
    fn is_small(&self, config: &Config) -> bool {
        let max = config.snapshot_at_once_bytes;
        !self.has_failed && self.saved_bytes <= max && self.logged_bytes <= max.saturating_mul(4)
    }

    /// Making one costs as much as the state is large, so the larger the last one was, the more entries
    /// it takes to the next: at any size, an entry bears about the same share.
    pub(crate) fn is_due(&self, applied: u64, config: &Config) -> bool {
        let entries = applied.saturating_sub(self.saved);
        self.is_lost
            || entries >= config.snapshot_entries.max(self.saved_bytes / config.snapshot_bytes_per_entry)
            || self.logged_bytes >= config.snapshot_bytes.max(2 * self.saved_bytes)
    }

    /// A snapshot of the applied state, unless one is being made already.
    pub(crate) fn make(
        &mut self,
        config: &Config,
        store: &LogStore,
        state: &State,
        conf_state: &ConfState,
        pace: Pace,
    ) -> Option<SnapshotJob> {
        let (base, applied) = (self.saved, state.revision());
        let is_new = applied > base || self.is_lost;
        if self.being_made.is_some() || self.pause_ticks > 0 || base == 0 || !is_new {
            return None;
        }
        let source = match self.is_lost || (pace == Pace::AtOnce && self.is_small(config)) {
            true => Source::State(state.encode_snapshot()),
            false => Source::Entries(store.between(base, applied)?),
        };
        let mut metadata = SnapshotMetadata { index: applied, ..Default::default() };
        metadata.term = store.term(applied).expect("an applied entry behind the last snapshot is in the log");
        metadata.set_conf_state(conf_state.clone());
        self.being_made = Some(metadata.clone());
        if mutants::LOG_CUT_BEFORE_ITS_SNAPSHOT_IS_ON_DISK.is_active() {
            self.compaction_due = Some(applied);
        }
        self.logged_bytes = 0;
        Some(SnapshotJob::new(base, metadata, source))
    }

    /// The snapshot of this index is on disk.
    pub(crate) fn saved(&mut self, index: u64, size_bytes: u64, store: &mut LogStore) {
        if let Some(metadata) = self.being_made.take_if(|metadata| metadata.index == index) {
            self.saved = index;
            self.saved_bytes = size_bytes;
            self.has_failed = false;
            self.is_lost = false;
            self.compaction_due = Some(index);
            store.set_saved(metadata);
        }
    }

    /// Cuts the log behind a snapshot that is on disk; gives the record that says so.
    pub(crate) fn compact(&mut self, config: &Config, node: &mut RawNode<LogStore>) -> Option<Record> {
        let index = cut_index(self.compaction_due.take()?, config, node);
        let store = node.mut_store();
        if index <= store.compacted_index() {
            return None;
        }
        let term = store.term(index).expect("an entry between two compactions is in the log");
        store.compact(index);
        Some(records::compaction(config.group, index, term))
    }

    /// A snapshot came from the leader, and `raft` has taken it.
    pub(crate) fn receive(&mut self, payload: Vec<u8>, state: State) {
        self.received = Some((payload, state));
    }

    /// What `raft` installs in this turn.
    pub(crate) fn take_received(&mut self, index: u64) -> (Vec<u8>, State) {
        let received = self.received.take();
        let (payload, state) = received.expect("a snapshot that `raft` has taken came with its state");
        assert_eq!(state.revision(), index, "`raft` has taken another snapshot than came last");
        (payload, state)
    }
}

/// How far the log can be cut behind a snapshot. A leader keeps more than the usual tail for a peer
/// that is slow, or that is just being sent an older snapshot, or it would be sent snapshots for
/// ever; but not without bounds.
fn cut_index(snapshot_index: u64, config: &Config, node: &RawNode<LogStore>) -> u64 {
    let usual = snapshot_index.saturating_sub(config.tail_entries);
    let raft = &node.raft;
    if raft.state != StateRole::Leader {
        return usual;
    }
    let peers = raft.prs().iter().filter(|(id, _)| **id != config.member.0);
    let kept_from = peers.filter_map(|(_, progress)| match progress.state {
        ProgressState::Replicate => Some(progress.matched),
        ProgressState::Snapshot => Some(progress.pending_snapshot),
        // One that does not answer is not slow but gone.
        ProgressState::Probe => progress.recent_active.then(|| progress.next_idx.saturating_sub(1)),
    });
    match kept_from.min() {
        Some(needed) if needed < usual => {
            let lowest = needed.max(usual.saturating_sub(config.slow_entries_max));
            node.store().lowest_cut(lowest, usual, config.slow_bytes_max)
        }
        _ => usual,
    }
}

/// How long a snapshot waits for what is kept of grants that are over: a recorder that is stuck must not have the log grow
/// for ever.
const AUDIT_WAIT_NANOS: u64 = 30_000 * MILLISECOND;

/// True if the file of a snapshot may be saved. What led to it is not applied again afterwards, so what is kept of the
/// grants that ended until then must be on disk before it: `audited` says up to where that is; nothing if nothing is kept.
/// It waits no longer than half a minute, and not at all where room is short. What is missing then is a declared gap.
pub fn may_save_snapshot(index: u64, audited: Option<u64>, waited_nanos: u64, room_is_short: bool) -> bool {
    audited.is_none_or(|audited| audited >= index)
        || waited_nanos >= AUDIT_WAIT_NANOS
        || room_is_short
        || mutants::A_SNAPSHOT_IS_SAVED_BEFORE_ITS_AUDIT.is_active()
}

/// The state of a snapshot, checked against its hash and its position.
pub(crate) fn read_state(parts: &SnapshotParts) -> Result<State, wire::WireError> {
    if State::hash_of_snapshot(&parts.state) != parts.state_hash {
        return Err(wire::WireError(
            "the snapshot's state does not have the hash that it should have".into(),
        ));
    }
    let state = State::decode_snapshot(&parts.state).map_err(|error| wire::WireError(error.to_string()))?;
    if state.revision() != parts.index {
        return Err(wire::WireError(format!(
            "the snapshot of index {} holds a state of index {}",
            parts.index,
            state.revision()
        )));
    }
    Ok(state)
}
