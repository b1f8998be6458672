//! The log as `raft` reads it: in memory, whole, from the compaction point on.
//!
//! The disk is read only at start; afterwards this is the log, and the records that the replica
//! hands out keep the disk in step. A peer that is too far behind gets the newest snapshot that is on
//! disk. Where that will not do, `raft`, which asks in the middle of a step, is told *not yet*, another
//! one is made, and `raft` asks again.

use std::cell::Cell;

use raft::eraftpb::{ConfState, Entry, HardState, Snapshot, SnapshotMetadata};
use raft::{GetEntriesContext, RaftState, Storage, StorageError};

use super::entries::{Entries, SharedEntries};

/// Invariants:
/// - `entries` holds those from `compacted_index + 1` to `last`, without gaps.
/// - `compacted_index <= hard_state.commit <= last_index()`.
/// - `compacted_index <= saved.index`, if anything is saved: a peer can go on behind it.
pub(crate) struct LogStore {
    hard_state: HardState,
    /// The members as of the state that the replica starts from; `raft` reads it once.
    conf_state: ConfState,
    compacted_index: u64,
    compacted_term: u64,
    /// The index of the last entry, or of the one before the log if it is empty.
    last: u64,
    entries: Entries,
    /// The newest snapshot that is on disk; its index is 0 if there is none.
    saved: SnapshotMetadata,
    snapshot_wanted: Cell<bool>,
}

impl LogStore {
    pub(crate) fn new(
        hard_state: HardState,
        conf_state: ConfState,
        (compacted_index, compacted_term): (u64, u64),
        entries: impl IntoIterator<Item = Entry>,
    ) -> Self {
        let mut store = Self {
            hard_state,
            conf_state,
            compacted_index,
            compacted_term,
            last: compacted_index,
            entries: Entries::default(),
            saved: SnapshotMetadata::default(),
            snapshot_wanted: Cell::new(false),
        };
        entries.into_iter().for_each(|entry| store.push(entry));
        assert!(store.compacted_index <= store.hard_state.commit, "the log was compacted beyond its commit");
        assert!(store.hard_state.commit <= store.last(), "the commit is beyond the end of the log");
        store
    }

    pub(crate) fn last(&self) -> u64 {
        self.last
    }

    fn push(&mut self, entry: Entry) {
        self.last = entry.index;
        self.entries.push(entry);
    }

    pub(crate) fn compacted_index(&self) -> u64 {
        self.compacted_index
    }

    /// Adds entries behind the one before the first of them; what stood there is overwritten.
    pub(crate) fn append(&mut self, entries: &[Entry]) {
        let Some(first) = entries.first() else { return };
        assert!(first.index > self.compacted_index, "entry {} is compacted already", first.index);
        assert!(first.index <= self.last() + 1, "entry {} would leave a gap", first.index);
        self.entries.truncate(first.index - 1);
        entries.iter().for_each(|entry| self.push(entry.clone()));
    }

    /// Forgets the entries up to an index that a snapshot covers.
    pub(crate) fn compact(&mut self, index: u64) {
        if index <= self.compacted_index {
            return;
        }
        assert!(index <= self.last(), "entry {index} cannot be compacted: it is not there yet");
        self.compacted_term = self.entries.term(index).expect("the log has no gaps");
        self.entries.cut(index);
        self.compacted_index = index;
    }

    /// Begins anew behind a snapshot that came from the leader.
    pub(crate) fn reset(&mut self, index: u64, term: u64) {
        assert!(index >= self.compacted_index, "a snapshot never goes back");
        self.entries.clear();
        self.compacted_index = index;
        self.compacted_term = term;
        self.last = index;
    }

    /// The entries behind one index up to another; nothing if some of them are gone.
    pub(crate) fn between(&self, after: u64, through: u64) -> Option<SharedEntries> {
        let is_there = self.compacted_index <= after && after <= through && through <= self.last;
        is_there.then(|| self.entries.share(after, through))
    }

    /// Frees some of what was cut off.
    pub(crate) fn free_some(&mut self) {
        self.entries.free_some();
    }

    /// The lowest index, from `lowest` to `highest`, behind which there are at most so many bytes up to
    /// `highest`.
    pub(crate) fn lowest_cut(&self, lowest: u64, highest: u64, bytes_max: u64) -> u64 {
        let lowest = lowest.max(self.compacted_index);
        if lowest >= highest {
            return highest;
        }
        let kept = self.entries.content_bytes_backwards(lowest, highest).scan(0, |bytes, content| {
            *bytes += counted_bytes(content);
            (*bytes <= bytes_max).then_some(())
        });
        highest - kept.count() as u64
    }

    /// True once after `raft` asked for a snapshot that was not there.
    pub(crate) fn take_snapshot_wanted(&self) -> bool {
        self.snapshot_wanted.take()
    }

    pub(crate) fn set_saved(&mut self, saved: SnapshotMetadata) {
        self.saved = saved;
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
        if low >= high {
            return Ok(Vec::new());
        }
        let bytes_max = max_size.into().unwrap_or(u64::MAX);
        let mut bytes = 0;
        let within = self.entries.range(low - 1, high - 1).take_while(|entry| {
            let first = bytes == 0;
            bytes += entry_bytes(entry);
            first || bytes <= bytes_max
        });
        Ok(within.collect())
    }

    fn term(&self, index: u64) -> raft::Result<u64> {
        if index == self.compacted_index {
            return Ok(self.compacted_term);
        }
        if index < self.compacted_index {
            return Err(raft::Error::Store(StorageError::Compacted));
        }
        self.entries.term(index).ok_or(raft::Error::Store(StorageError::Unavailable))
    }

    fn first_index(&self) -> raft::Result<u64> {
        Ok(self.compacted_index + 1)
    }

    fn last_index(&self) -> raft::Result<u64> {
        Ok(self.last())
    }

    fn snapshot(&self, request_index: u64, to: u64) -> raft::Result<Snapshot> {
        // A peer throws away a snapshot of a time in which it was no member: one that has just joined
        // needs one that knows of it.
        if self.saved.index >= request_index.max(1) && is_member(self.saved.get_conf_state(), to) {
            let mut snapshot = Snapshot::default();
            snapshot.set_metadata(self.saved.clone());
            return Ok(snapshot);
        }
        self.snapshot_wanted.set(true);
        Err(raft::Error::Store(StorageError::SnapshotTemporarilyUnavailable))
    }
}

fn is_member(conf_state: &ConfState, member: u64) -> bool {
    [&conf_state.voters, &conf_state.learners, &conf_state.voters_outgoing]
        .iter()
        .any(|members| members.contains(&member))
}

/// What an entry counts for against a limit: its data and a little for the rest.
pub(crate) fn entry_bytes(entry: &Entry) -> u64 {
    counted_bytes(entry.data.len() + entry.context.len())
}

fn counted_bytes(content: usize) -> u64 {
    content as u64 + 32
}
