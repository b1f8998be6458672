//! The log as `raft` reads it: in memory, whole, from the compaction point on.
//!
//! The disk is read only at start; afterwards this is the log, and the records that the replica
//! hands out keep the disk in step. A snapshot for a peer that is too far behind is made when it is
//! asked for: `raft` asks in the middle of a step, gets *not yet*, and asks again.

use std::cell::Cell;
use std::collections::VecDeque;

use raft::eraftpb::{ConfState, Entry, HardState, Snapshot};
use raft::{GetEntriesContext, RaftState, Storage, StorageError};

/// Invariants:
/// - `entries[i]` has index `compacted_index + 1 + i`: no gaps.
/// - `compacted_index <= hard_state.commit <= last_index()`.
pub(crate) struct LogStore {
    hard_state: HardState,
    /// The members as of the state that the replica starts from; `raft` reads it once.
    conf_state: ConfState,
    compacted_index: u64,
    compacted_term: u64,
    entries: VecDeque<Entry>,
    /// What a peer that is too far behind will be sent.
    snapshot: Option<Snapshot>,
    snapshot_wanted: Cell<bool>,
}

impl LogStore {
    pub(crate) fn new(
        hard_state: HardState,
        conf_state: ConfState,
        (compacted_index, compacted_term): (u64, u64),
        entries: VecDeque<Entry>,
    ) -> Self {
        let store = Self {
            hard_state,
            conf_state,
            compacted_index,
            compacted_term,
            entries,
            snapshot: None,
            snapshot_wanted: Cell::new(false),
        };
        assert!(store.compacted_index <= store.hard_state.commit, "the log was compacted beyond its commit");
        assert!(store.hard_state.commit <= store.last(), "the commit is beyond the end of the log");
        store
    }

    pub(crate) fn last(&self) -> u64 {
        self.compacted_index + self.entries.len() as u64
    }

    pub(crate) fn compacted_index(&self) -> u64 {
        self.compacted_index
    }

    /// Adds entries behind the one before the first of them; what stood there is overwritten.
    pub(crate) fn append(&mut self, entries: &[Entry]) {
        let Some(first) = entries.first() else { return };
        assert!(first.index > self.compacted_index, "entry {} is compacted already", first.index);
        assert!(first.index <= self.last() + 1, "entry {} would leave a gap", first.index);
        self.entries.truncate((first.index - self.compacted_index - 1) as usize);
        self.entries.extend(entries.iter().cloned());
    }

    /// Forgets the entries up to an index that a snapshot covers.
    pub(crate) fn compact(&mut self, index: u64) {
        if index <= self.compacted_index {
            return;
        }
        assert!(index <= self.last(), "entry {index} cannot be compacted: it is not there yet");
        self.compacted_term = self.entries[(index - self.compacted_index - 1) as usize].term;
        self.entries.drain(..(index - self.compacted_index) as usize);
        self.compacted_index = index;
    }

    /// Begins anew behind a snapshot that came from the leader.
    pub(crate) fn reset(&mut self, index: u64, term: u64) {
        assert!(index > self.compacted_index, "a snapshot never goes back");
        self.entries.clear();
        self.compacted_index = index;
        self.compacted_term = term;
    }

    /// True once after `raft` asked for a snapshot that was not there.
    pub(crate) fn take_snapshot_wanted(&self) -> bool {
        self.snapshot_wanted.take()
    }

    pub(crate) fn set_snapshot(&mut self, snapshot: Option<Snapshot>) {
        self.snapshot = snapshot;
    }
}

impl Storage for LogStore {
    fn initial_state(&self) -> raft::Result<RaftState> {
        Ok(RaftState::new(self.hard_state.clone(), self.conf_state.clone()))
    }

    fn entries(
        &self,
        low: u64,
        high: u64,
        max_size: impl Into<Option<u64>>,
        _context: GetEntriesContext,
    ) -> raft::Result<Vec<Entry>> {
        if low <= self.compacted_index {
            return Err(raft::Error::Store(StorageError::Compacted));
        }
        if high > self.last() + 1 {
            return Err(raft::Error::Store(StorageError::Unavailable));
        }
        let from = (low - self.compacted_index - 1) as usize;
        let to = (high - self.compacted_index - 1) as usize;
        let bytes_max = max_size.into().unwrap_or(u64::MAX);
        let mut bytes = 0;
        let within = self.entries.range(from..to).take_while(|entry| {
            let first = bytes == 0;
            bytes += entry_bytes(entry);
            first || bytes <= bytes_max
        });
        Ok(within.cloned().collect())
    }

    fn term(&self, index: u64) -> raft::Result<u64> {
        if index == self.compacted_index {
            return Ok(self.compacted_term);
        }
        let offset =
            index.checked_sub(self.compacted_index + 1).ok_or(raft::Error::Store(StorageError::Compacted))?;
        let entry = self.entries.get(offset as usize).ok_or(raft::Error::Store(StorageError::Unavailable))?;
        Ok(entry.term)
    }

    fn first_index(&self) -> raft::Result<u64> {
        Ok(self.compacted_index + 1)
    }

    fn last_index(&self) -> raft::Result<u64> {
        Ok(self.last())
    }

    fn snapshot(&self, request_index: u64, _to: u64) -> raft::Result<Snapshot> {
        match &self.snapshot {
            Some(snapshot) if snapshot.get_metadata().index >= request_index.max(self.compacted_index) => {
                Ok(snapshot.clone())
            }
            _ => {
                self.snapshot_wanted.set(true);
                Err(raft::Error::Store(StorageError::SnapshotTemporarilyUnavailable))
            }
        }
    }
}

/// What an entry counts for against a limit: its data and a little for the rest.
pub(crate) fn entry_bytes(entry: &Entry) -> u64 {
    (entry.data.len() + entry.context.len() + 32) as u64
}
