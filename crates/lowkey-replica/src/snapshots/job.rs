//! The making of a snapshot: the one before it, and the entries since; or what the state was, where that is little.
//!
//! A plain function of its inputs, so that it can run on any thread, at any time, and gives the same
//! bytes everywhere: replicas that make a snapshot of the same index make the same one.

use std::fmt;

use lowkey_core::{Command, State, mutants};
use raft::eraftpb::{Entry, EntryType, SnapshotMetadata};

use super::read_state;
use crate::log::SharedEntries;
use crate::output::SnapshotFile;
use crate::wire::{self, SnapshotParts};

/// A snapshot to be made.
#[derive(Debug)]
pub struct SnapshotJob {
    base: u64,
    metadata: SnapshotMetadata,
    source: Source,
}

/// What it is made of.
#[derive(Debug)]
pub(super) enum Source {
    /// The base, and the entries from behind it to the snapshot's own index, without gaps.
    Entries(SharedEntries),
    /// The state, encoded.
    State(Vec<u8>),
}

/// Why a snapshot could not be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobError(String);

impl fmt::Display for JobError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for JobError {}

impl From<wire::WireError> for JobError {
    fn from(error: wire::WireError) -> Self {
        Self(error.to_string())
    }
}

impl SnapshotJob {
    pub(super) fn new(base: u64, metadata: SnapshotMetadata, source: Source) -> Self {
        Self { base, metadata, source }
    }

    /// The index of the snapshot that this one is made from: the newest that is on disk.
    pub fn base(&self) -> u64 {
        self.base
    }

    /// True if it is made from the base; if not, anything will do in its place.
    pub fn needs_base(&self) -> bool {
        matches!(self.source, Source::Entries(_))
    }

    /// The index of the snapshot to be made.
    pub fn index(&self) -> u64 {
        self.metadata.index
    }

    /// Makes it, from the payload of the base's file.
    pub fn run(mut self, base: impl AsRef<[u8]>) -> Result<SnapshotFile, JobError> {
        let (index, term) = (self.metadata.index, self.metadata.term);
        let state = match std::mem::replace(&mut self.source, Source::State(Vec::new())) {
            Source::State(encoded) => encoded,
            Source::Entries(entries) => self.replayed(base, &entries)?,
        };
        let state_hash = State::hash_of_snapshot(&state);
        let conf_state = self.metadata.take_conf_state();
        let parts = SnapshotParts { index, term, conf_state, state, state_hash };
        Ok(SnapshotFile { index, payload: wire::encode_snapshot(parts) })
    }

    /// What the state must be, encoded.
    fn replayed(&self, base: impl AsRef<[u8]>, entries: &SharedEntries) -> Result<Vec<u8>, JobError> {
        let parts = wire::decode_snapshot(base.as_ref())?;
        // Of what is as large as the state, no more is kept at a time than is needed.
        drop(base);
        if parts.index != self.base {
            return Err(JobError(format!("it begins at index {}, not at {}", parts.index, self.base)));
        }
        let mut state = read_state(&parts)?;
        drop(parts);
        for entry in entries.iter() {
            replay(&mut state, &entry)?;
        }
        let index = self.metadata.index;
        if state.revision() != index {
            return Err(JobError(format!("it ends at index {}, not at {index}", state.revision())));
        }
        Ok(state.encode_snapshot())
    }
}

/// What applying the entry did to the live state. Changes of members are not part of it.
pub(crate) fn replay(state: &mut State, entry: &Entry) -> Result<(), JobError> {
    let expected = state.revision() + 1;
    if entry.index != expected {
        return Err(JobError(format!("entry {} stands where {expected} belongs", entry.index)));
    }
    let is_command = entry.get_entry_type() == EntryType::EntryNormal && !entry.data.is_empty();
    if !is_command || left_out(entry) {
        state.advance(entry.index);
        return Ok(());
    }
    let command = Command::decode(&entry.data)
        .map_err(|error| JobError(format!("entry {} cannot be read: {error}", entry.index)))?;
    state.apply(entry.index, entry.term, &command);
    Ok(())
}

fn left_out(entry: &Entry) -> bool {
    mutants::AN_ENTRY_IS_LEFT_OUT_OF_A_SNAPSHOTS_MAKING.is_active() && entry.index.is_multiple_of(10)
}
