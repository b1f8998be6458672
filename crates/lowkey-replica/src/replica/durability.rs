//! What of a replica is on disk, and what waits for that.
//!
//! - A change of members takes effect only when the disk knows that it is committed: a node that restarted with the
//!   members of before could win an election among too few.
//! - A leader's messages leave before its own sync, but not those of a term that is not on disk yet. A lone voter
//!   leads in the very step in which it votes for itself; if its messages left before that vote is on disk, a crash
//!   would let it lead the same term twice.

use lowkey_core::mutants;
use lowkey_record::Record;
use raft::eraftpb::{HardState, Message};

use crate::input::DiskRoom;

#[derive(Debug)]
pub(super) struct Durability {
    /// The term that is on disk.
    term: u64,
    /// The commit index that is on disk.
    commit: u64,
    /// What term and commit on disk will be once this turn's records are there.
    saving: Option<(u64, u64)>,
    /// Records that bring the disk in step with what recovery made of it; written in the first turn.
    repairs: Vec<Record>,
    /// A leader's messages of a term that is not on disk yet.
    held_messages: Vec<Message>,
    /// How much room the disk has left, as it was last told.
    pub(super) room: DiskRoom,
}

impl Durability {
    pub(super) fn new(term: u64, commit: u64, repairs: Vec<Record>) -> Self {
        Self { term, commit, saving: None, repairs, held_messages: Vec::new(), room: DiskRoom::Ample }
    }

    pub(super) fn has_repairs(&self) -> bool {
        !self.repairs.is_empty()
    }

    pub(super) fn take_repairs(&mut self) -> Vec<Record> {
        std::mem::take(&mut self.repairs)
    }

    /// True if the disk knows that the entry of this index is committed.
    pub(super) fn knows_committed(&self, index: u64) -> bool {
        index <= self.commit
    }

    /// Lets a leader's messages of this term leave, or holds them back until the term is on disk.
    pub(super) fn send(&mut self, term: u64, messages: Vec<Message>, sent: &mut Vec<Message>) {
        if term == self.term || mutants::A_LONE_VOTER_SPEAKS_BEFORE_ITS_VOTE_IS_ON_DISK.is_active() {
            sent.extend(messages);
        } else {
            self.held_messages = messages;
        }
    }

    /// This turn's records have this hard state.
    pub(super) fn save(&mut self, hard_state: &HardState) {
        self.saving = Some((hard_state.term, hard_state.commit));
    }

    /// This turn's records are on disk: what waited for them may leave.
    pub(super) fn saved(&mut self, sent: &mut Vec<Message>) {
        if let Some((term, commit)) = self.saving.take() {
            (self.term, self.commit) = (term, commit);
        }
        sent.append(&mut self.held_messages);
    }
}
