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
//! every entry behind that one. `raft` names it in a message, and whoever sends the message adds the
//! file. On the other side it comes as a [`ReceivedSnapshot`], checked and decoded before it gets
//! here, and replaces log and state at once.

mod job;
mod received;

use lowkey_core::{MemberId, State, mutants};
use raft::eraftpb::{self, SnapshotMetadata};
use raft::{ProgressState, SnapshotStatus, StateRole, Storage as _};

use self::job::Source;
pub(crate) use self::job::replay;
pub use self::job::{JobError, SnapshotJob};
pub use self::received::ReceivedSnapshot;
use crate::config::Config;
use crate::input::DiskRoom;
use crate::log_store::entry_bytes;
use crate::output::{LogRecord, Persist, SnapshotFile};
use crate::replica::Replica;
use crate::wire::{self, SnapshotParts};

/// How long after a failure the next snapshot is tried: 3 s.
const FAILURE_TICKS: u32 = 300;

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
    /// it takes to the next: whatever the size, an entry bears about the same share.
    fn is_due(&self, applied: u64, config: &Config) -> bool {
        let entries = applied.saturating_sub(self.saved);
        entries >= config.snapshot_entries.max(self.saved_bytes / config.snapshot_bytes_per_entry)
            || self.logged_bytes >= config.snapshot_bytes.max(2 * self.saved_bytes)
    }
}

impl Replica {
    /// Has a snapshot of the applied state made when enough has happened since the last.
    pub(crate) fn snapshot_if_due(&mut self) {
        if self.snapshots.is_due(self.state.revision(), &self.config) {
            self.make_snapshot();
        }
    }

    /// Has a snapshot of the applied state made, unless one is being made already.
    pub(crate) fn make_snapshot(&mut self) {
        // Nobody is to begin from a state that is in doubt.
        if self.divergence().is_some() {
            return;
        }
        let applied = self.state.revision();
        let snapshots = &mut self.snapshots;
        let base = snapshots.saved;
        if snapshots.being_made.is_some() || snapshots.pause_ticks > 0 || base == 0 || applied <= base {
            return;
        }
        let store = self.node.store();
        let source = if snapshots.is_small(&self.config) {
            Source::State(self.state.encode_snapshot())
        } else {
            let Some(entries) = store.between(base, applied) else { return };
            Source::Entries(entries)
        };
        let mut metadata = SnapshotMetadata { index: applied, ..Default::default() };
        metadata.term = store.term(applied).expect("an applied entry behind the last snapshot is in the log");
        metadata.set_conf_state(self.conf_state.clone());
        snapshots.being_made = Some(metadata.clone());
        if mutants::is_active("log cut before its snapshot is on disk") {
            snapshots.compaction_due = Some(applied);
        }
        snapshots.logged_bytes = 0;
        self.output.snapshot = Some(SnapshotJob::new(base, metadata, source));
    }

    pub(crate) fn snapshot_saved(&mut self, index: u64, size_bytes: u64) {
        let snapshots = &mut self.snapshots;
        if let Some(metadata) = snapshots.being_made.take_if(|metadata| metadata.index == index) {
            snapshots.saved = index;
            snapshots.saved_bytes = size_bytes;
            snapshots.has_failed = false;
            snapshots.compaction_due = Some(index);
            self.node.mut_store().set_saved(metadata);
        }
    }

    /// Cuts the log behind a snapshot that is on disk.
    pub(crate) fn compact(&mut self, persist: &mut Persist) {
        let Some(snapshot_index) = self.snapshots.compaction_due.take() else { return };
        let index = self.cut_index(snapshot_index);
        let store = self.node.mut_store();
        if index <= store.compacted_index() {
            return;
        }
        let term = store.term(index).expect("an entry between two compactions is in the log");
        store.compact(index);
        persist.records.push(LogRecord::compaction(index, term));
    }

    /// How far the log can be cut behind a snapshot. A leader keeps more than the usual tail for a peer
    /// that is slow, or that is just being sent an older snapshot, or it would be sent snapshots for
    /// ever; but not without bounds.
    fn cut_index(&self, snapshot_index: u64) -> u64 {
        let usual = snapshot_index.saturating_sub(self.config.tail_entries);
        let raft = &self.node.raft;
        if raft.state != StateRole::Leader {
            return usual;
        }
        let peers = raft.prs().iter().filter(|(id, _)| **id != self.config.member.0);
        let kept_from = peers.filter_map(|(_, progress)| match progress.state {
            ProgressState::Replicate => Some(progress.matched),
            ProgressState::Snapshot => Some(progress.pending_snapshot),
            // One that does not answer is not slow but gone.
            ProgressState::Probe => progress.recent_active.then(|| progress.next_idx.saturating_sub(1)),
        });
        match kept_from.min() {
            Some(needed) if needed < usual => {
                let lowest = needed.max(usual.saturating_sub(self.config.slow_entries_max));
                self.node.store().lowest_cut(lowest, usual, self.config.slow_bytes_max)
            }
            _ => usual,
        }
    }

    pub(crate) fn snapshot_sent(&mut self, to: MemberId, delivered: bool) {
        let status = if delivered { SnapshotStatus::Finish } else { SnapshotStatus::Failure };
        // `raft` pauses a peer until it hears of this.
        self.node.report_snapshot(to.0, status);
    }

    /// Takes in a snapshot from the leader, unless `raft` has no use for it.
    pub(crate) fn receive_snapshot(&mut self, received: ReceivedSnapshot) {
        let ReceivedSnapshot { message, payload, state } = received;
        // A disk without room cannot take it; the leader will send it again.
        if !self.is_for_this(&message)
            || self.disk == DiskRoom::Exhausted
            || state.cluster() != self.state.cluster()
        {
            return;
        }
        let offered = position(message.get_snapshot());
        let _ = self.node.step(message);
        if self.node.raft.snap().map(position) == Some(offered) {
            self.snapshots.received = Some((payload, state));
        }
    }

    /// Begins anew from a snapshot that came from the leader, if there is one.
    pub(crate) fn install(&mut self, snapshot: &eraftpb::Snapshot, persist: &mut Persist) {
        let metadata = snapshot.get_metadata();
        let (index, term) = (metadata.index, metadata.term);
        if index == 0 {
            return;
        }
        let received = self.snapshots.received.take();
        let (payload, state) = received.expect("a snapshot that `raft` has taken came with its state");
        assert_eq!(state.revision(), index, "`raft` has taken another snapshot than came last");
        // Whatever still waited to be applied is committed, and so within the snapshot.
        self.unapplied.clear();
        self.node.mut_store().reset(index, term);
        self.node.mut_store().set_saved(metadata.clone());
        for proposal in self.proposals.take_through(index) {
            self.output.reply(proposal.call, Err(crate::output::Failure::OutcomeUnknown));
        }
        self.state = state;
        self.applied_term = term;
        self.begin_anew(index);
        // What was applied before is part of what is lost.
        self.output.changes.clear();
        self.output.history_lost = Some(index);
        self.conf_state = metadata.get_conf_state().clone();
        self.snapshots = Snapshots::new(index, payload.len() as u64);
        persist.records.push(LogRecord::reset(index, term));
        persist.snapshot = Some(SnapshotFile { index, payload });
    }
}

fn position(snapshot: &eraftpb::Snapshot) -> (u64, u64) {
    (snapshot.get_metadata().index, snapshot.get_metadata().term)
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
