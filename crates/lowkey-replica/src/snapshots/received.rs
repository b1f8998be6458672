//! A snapshot on its way in.

use lowkey_core::State;
use raft::eraftpb::{Message, MessageType};

use super::read_state;
use crate::wire::{self, WireError};

/// A leader's message that names a snapshot, and that snapshot, whole and decoded. Reading it takes as
/// long as the state is large, so it is done before the replica sees it, on any thread.
pub struct ReceivedSnapshot {
    pub(crate) message: Message,
    /// As it goes into its file.
    pub(crate) payload: Vec<u8>,
    pub(crate) state: State,
}

impl ReceivedSnapshot {
    /// Reads a snapshot's payload; what is not a whole and readable state, or not the one that the message
    /// names, never reaches the log.
    pub fn read(message: Message, payload: Vec<u8>) -> Result<Self, WireError> {
        if message.get_msg_type() != MessageType::MsgSnapshot {
            return Err(WireError("a snapshot with a message of another kind".into()));
        }
        let parts = wire::decode_snapshot(&payload)?;
        let metadata = message.get_snapshot().get_metadata();
        if (parts.index, parts.term) != (metadata.index, metadata.term)
            || parts.conf_state != *metadata.get_conf_state()
        {
            return Err(WireError(format!(
                "the snapshot of index {} came with a message about another",
                parts.index
            )));
        }
        let state = read_state(&parts)?;
        Ok(Self { message, payload, state })
    }
}

impl std::fmt::Debug for ReceivedSnapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let index = self.state.revision();
        write!(f, "ReceivedSnapshot {{ index: {index}, size_bytes: {} }}", self.payload.len())
    }
}
