//! What is left of a cluster that lost its quorum for good, and how a new one begins with it.
//!
//! The survivor's disk is read with all the checks of a start. Its log is then applied *to its end*, beyond what it
//! knows to be committed. Of that tail nobody can say any more which entries the lost majority had committed: some may
//! have been acknowledged, others were overwritten. It does not matter which. Of the state that they lead to only the
//! counters are kept ([`State::begin_anew`]), and an entry, committed or not, can only raise them: to apply one too
//! many wastes a number, to leave one out could give a number again. The same goes for what the majority had committed
//! and this node never heard of: that is what the counters jump for.

use lowkey_core::{ClusterId, CountersSpent, GroupId, MemberId, NewBeginning, State};
use raft::eraftpb::EntryType;

use super::{Checked, Found, Founding, RecoverError, begin_with, check};
use crate::snapshots::replay;

/// One node's knowledge of a cluster, read from its disk.
#[derive(Debug)]
pub struct Survivor {
    state: State,
    term: u64,
    committed: u64,
    is_alone: bool,
}

impl Survivor {
    /// Reads what the disk of this member holds of this cluster.
    pub fn read(cluster: ClusterId, member: MemberId, found: &Found) -> Result<Self, RecoverError> {
        let Checked { log, mut state, saved, .. } = check(cluster, found)?;
        if saved.index == 0 {
            return Err(RecoverError(
                "this node had joined the cluster, but has nothing of its log yet: recover another node"
                    .into(),
            ));
        }
        let behind = || log.entries.iter().filter(|entry| entry.index > saved.index);
        for entry in behind() {
            replay(&mut state, entry).map_err(|error| RecoverError(error.to_string()))?;
        }
        // Where the members changed since the snapshot, it is not known who votes.
        let has_changes = behind().any(|entry| entry.get_entry_type() != EntryType::EntryNormal);
        let conf_state = saved.get_conf_state();
        let votes_alone = conf_state.voters == [member.0] && conf_state.voters_outgoing.is_empty();
        Ok(Self {
            is_alone: votes_alone && !has_changes && state.members().len() == 1,
            term: log.hard_state.term,
            committed: log.hard_state.commit,
            state,
        })
    }

    /// The state at the end of the log.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// The last term that it knows.
    pub fn term(&self) -> u64 {
        self.term
    }

    /// The last index that it knows to be committed.
    pub fn committed(&self) -> u64 {
        self.committed
    }

    /// True if it is certain that it needs nobody else: it lost no quorum.
    pub fn is_alone(&self) -> bool {
        self.is_alone
    }

    /// What is to be on disk for a new cluster that begins where this one ended.
    pub fn begin_anew(&self, beginning: NewBeginning) -> Result<Founding, CountersSpent> {
        begin_anew(&self.state, self.term, beginning)
    }
}

/// What is to be on disk for a new cluster that begins behind this state and this term.
pub fn begin_anew(state: &State, term: u64, beginning: NewBeginning) -> Result<Founding, CountersSpent> {
    let (state, member) = state.begin_anew(beginning)?;
    Ok(begin_with(GroupId::ROOT, &state, &[member], member, term))
}
