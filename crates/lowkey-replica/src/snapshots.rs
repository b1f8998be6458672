//! When snapshots are taken, what they hold, and how the log before them goes.
//!
//! A snapshot of this replica's own is taken every so many entries or bytes, written by the caller
//! at leisure, and only once it is known to be on disk is the log cut, a tail of it kept for peers
//! that are a little behind. The record that cuts the log always travels with a hard state whose
//! commit is not behind it, or `raft` could not start from them.
//!
//! A snapshot from the leader is checked before `raft` sees it and replaces the log at once.

use lowkey_core::{MemberId, State, mutants};
use raft::eraftpb;
use raft::{SnapshotStatus, Storage as _};

use crate::log_store::entry_bytes;
use crate::output::{LogRecord, Persist, SnapshotFile};
use crate::replica::{Fatal, Replica};
use crate::wire::{self, SnapshotParts};

/// Invariant: at most one snapshot is being written at a time.
#[derive(Debug)]
pub(crate) struct Snapshots {
    /// The index of the newest snapshot that is on disk.
    saved: u64,
    being_written: Option<u64>,
    /// After a failure: the index before which none is taken, or a full disk would have the whole
    /// state encoded in every turn.
    not_before: u64,
    /// Bytes of entries logged since the newest snapshot was taken.
    logged_bytes: u64,
    /// A snapshot that was saved and whose log can be cut.
    compaction_due: Option<u64>,
}

impl Snapshots {
    pub(crate) fn new(saved: u64) -> Self {
        Self { saved, being_written: None, not_before: 0, logged_bytes: 0, compaction_due: None }
    }

    pub(crate) fn count_logged(&mut self, entries: &[eraftpb::Entry]) {
        self.logged_bytes += entries.iter().map(entry_bytes).sum::<u64>();
    }

    pub(crate) fn failed(&mut self, retry_entries: u64) {
        if let Some(index) = self.being_written.take() {
            self.not_before = index + retry_entries;
        }
    }

    pub(crate) fn compaction_due(&self) -> Option<u64> {
        self.compaction_due
    }
}

impl Replica {
    /// Takes a snapshot of the applied state when enough has happened since the last.
    pub(crate) fn snapshot_if_due(&mut self) {
        let applied = self.state.revision();
        let snapshots = &mut self.snapshots;
        let due = applied >= snapshots.saved + self.config.snapshot_entries
            || (snapshots.logged_bytes >= self.config.snapshot_bytes && applied > snapshots.saved);
        if !due || snapshots.being_written.is_some() || applied < snapshots.not_before {
            return;
        }
        snapshots.being_written = Some(applied);
        if mutants::is_active("log cut before its snapshot is on disk") {
            snapshots.compaction_due = Some(applied);
        }
        snapshots.logged_bytes = 0;
        let payload = wire::encode_snapshot(self.current_parts());
        self.output.snapshot = Some(SnapshotFile { index: applied, payload });
    }

    fn current_parts(&self) -> SnapshotParts {
        let index = self.state.revision();
        let term = self
            .node
            .store()
            .term(index)
            .expect("the last applied entry, or the one before the log, is known");
        let state = self.state.encode_snapshot();
        let state_hash = State::hash_of_snapshot(&state);
        SnapshotParts { index, term, conf_state: self.conf_state.clone(), state, state_hash }
    }

    pub(crate) fn snapshot_saved(&mut self, index: u64) {
        let snapshots = &mut self.snapshots;
        if snapshots.being_written == Some(index) {
            snapshots.being_written = None;
            snapshots.saved = snapshots.saved.max(index);
            snapshots.compaction_due = Some(index);
        }
    }

    /// Cuts the log behind a snapshot that is on disk.
    pub(crate) fn compact(&mut self, persist: &mut Persist) {
        let Some(snapshot_index) = self.snapshots.compaction_due.take() else { return };
        let index = snapshot_index.saturating_sub(self.config.tail_entries);
        let store = self.node.mut_store();
        if index <= store.compacted_index() {
            return;
        }
        let term = store.term(index).expect("an entry between two compactions is in the log");
        store.compact(index);
        persist.records.push(LogRecord::compaction(index, term));
    }

    /// Makes the snapshot that a peer needs which is too far behind for the log.
    pub(crate) fn offer_snapshot(&mut self) {
        let snapshot = wire::raft_snapshot(self.current_parts());
        self.node.mut_store().set_snapshot(Some(snapshot));
    }

    pub(crate) fn snapshot_sent(&mut self, to: MemberId, delivered: bool) {
        let status = if delivered { SnapshotStatus::Finish } else { SnapshotStatus::Failure };
        // `raft` pauses a peer until it hears of this.
        self.node.report_snapshot(to.0, status);
        // The next peer in need gets a fresh one: this one ages, and is large.
        self.node.mut_store().set_snapshot(None);
    }

    /// True if a snapshot from the leader is a whole state of this very cluster.
    pub(crate) fn can_restore(&self, snapshot: &eraftpb::Snapshot) -> bool {
        restored(snapshot).is_ok_and(|(_, state)| state.cluster() == self.state.cluster())
    }

    /// Begins anew from a snapshot that came from the leader, if there is one.
    pub(crate) fn install(
        &mut self,
        snapshot: &eraftpb::Snapshot,
        persist: &mut Persist,
    ) -> Result<(), Fatal> {
        let index = snapshot.get_metadata().index;
        if index == 0 {
            return Ok(());
        }
        let (parts, state) =
            restored(snapshot).map_err(|problem| Fatal { index, problem: problem.to_string() })?;
        // Whatever still waited to be applied is committed, and so within the snapshot.
        self.unapplied.clear();
        self.node.mut_store().reset(index, parts.term);
        for proposal in self.proposals.take_through(index) {
            self.output.reply(proposal.call, Err(crate::output::Failure::OutcomeUnknown));
        }
        self.state = state;
        // What was applied before is part of what is lost.
        self.output.changes.clear();
        self.output.history_lost = Some(index);
        self.conf_state = parts.conf_state.clone();
        self.snapshots = Snapshots::new(index);
        persist.records.push(LogRecord::reset(index, parts.term));
        persist.snapshot = Some(SnapshotFile { index, payload: wire::encode_snapshot(parts) });
        Ok(())
    }
}

fn restored(snapshot: &eraftpb::Snapshot) -> Result<(SnapshotParts, State), wire::WireError> {
    let parts = wire::snapshot_parts(snapshot)?;
    let state = read_state(&parts)?;
    Ok((parts, state))
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
