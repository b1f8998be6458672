//! A snapshot that is read outside of the node that made it: a backup.

use lowkey_core::State;
use raft::eraftpb::ConfState;

use super::RecoverError;
use crate::snapshots::read_state;
use crate::wire::{self, SnapshotParts};

/// What a snapshot holds, after all the checks that a node makes when it starts from one.
#[derive(Debug)]
pub struct SavedState {
    /// The state.
    pub state: State,
    /// The term of the last entry in it.
    pub term: u64,
    /// The hash of the state, as it is in the snapshot and as it was found to be.
    pub hash: u64,
}

impl SavedState {
    /// Reads the payload of a snapshot's file.
    pub fn read(payload: &[u8]) -> Result<Self, RecoverError> {
        let parts = wire::decode_snapshot(payload)?;
        let state = read_state(&parts)?;
        Ok(Self { state, term: parts.term, hash: parts.state_hash })
    }

    /// The payload of a snapshot of this state, with its members as voters: what [`SavedState::read`] reads. A node makes
    /// its own with a [`crate::SnapshotJob`]; this is for those who have a state and no node.
    pub fn payload_of(state: &State, term: u64) -> Vec<u8> {
        let voters = state.members().map(|(member, _)| member.0).collect();
        let conf_state = ConfState { voters, ..ConfState::default() };
        let (index, state) = (state.revision(), state.encode_snapshot());
        let state_hash = State::hash_of_snapshot(&state);
        wire::encode_snapshot(SnapshotParts { index, term, conf_state, state, state_hash })
    }

    /// The highest number of all that are never given twice: tokens, leases, revisions.
    pub fn highest_counter(&self) -> u64 {
        self.state.last_token().0.max(self.state.last_lease().0).max(self.state.revision())
    }
}
