//! The replicas agree: one leader a term, the same entry at the same index everywhere, committed
//! entries never lost, equal states at equal index (`docs/internals/invariants.md`, points 4 and 10; the Raft
//! paper's election safety, log matching and state machine safety).

use std::collections::BTreeMap;

use lowkey_core::{Applied, Command, State};
use lowkey_replica::{EntryType, Message, MessageType, wire};

use super::{Check, broken};

const NAME: &str = "agreement";
/// Hashing a state costs more than applying an entry: it is done at every so many.
const HASH_INTERVAL: u64 = 50;

/// The log that was committed, and a state machine of the checker's own that follows it.
pub(crate) struct Agreement {
    leaders: BTreeMap<u64, u64>,
    /// Which process of a leader spoke for its term, by member and term.
    speakers: BTreeMap<(u64, u64), u64>,
    /// For whom a node voted, by node and term.
    votes: BTreeMap<(u64, u64), u64>,
    entries: BTreeMap<u64, Vec<u8>>,
    hashes: BTreeMap<u64, u64>,
    state: State,
}

/// An entry that was just seen to be committed.
pub(crate) struct Committed {
    pub(crate) index: u64,
    pub(crate) term: u64,
    pub(crate) command: Command,
    pub(crate) applied: Applied,
}

impl Agreement {
    /// Follows from the state that the cluster was founded with.
    pub(crate) fn new(founded: State) -> Self {
        Self {
            leaders: BTreeMap::new(),
            speakers: BTreeMap::new(),
            votes: BTreeMap::new(),
            entries: BTreeMap::new(),
            hashes: BTreeMap::new(),
            state: founded,
        }
    }

    pub(crate) fn state(&self) -> &State {
        &self.state
    }

    /// A replica leads a term.
    pub(crate) fn leads(&mut self, member: u64, term: u64) -> Check {
        let known = *self.leaders.entry(term).or_insert(member);
        if known == member {
            return Ok(());
        }
        broken(NAME, format!("n{known} and n{member} both lead term {term}"))
    }

    /// A message leaves a process: a node votes once a term, and a term has one leading process. A
    /// second one would not know what the first had said.
    pub(crate) fn sent(&mut self, incarnation: u64, message: &Message) -> Check {
        let key = (message.from, message.term);
        match message.get_msg_type() {
            MessageType::MsgAppend | MessageType::MsgHeartbeat
                if *self.speakers.entry(key).or_insert(incarnation) != incarnation =>
            {
                return broken(NAME, format!("n{} leads term {} a second time", key.0, key.1));
            }
            // A candidate votes for itself.
            MessageType::MsgRequestVote => return self.votes_for(key, message.from),
            MessageType::MsgRequestVoteResponse if !message.reject => return self.votes_for(key, message.to),
            _ => {}
        }
        Ok(())
    }

    fn votes_for(&mut self, (member, term): (u64, u64), candidate: u64) -> Check {
        let known = *self.votes.entry((member, term)).or_insert(candidate);
        if known == candidate {
            return Ok(());
        }
        broken(NAME, format!("n{member} votes for n{known} and for n{candidate} in term {term}"))
    }

    pub(crate) fn elections(&self) -> u64 {
        self.leaders.len() as u64
    }

    /// A replica applied an entry that its log holds; gives it back if nobody had before.
    pub(crate) fn applied(
        &mut self,
        member: u64,
        index: u64,
        payload: &[u8],
    ) -> Result<Option<Committed>, super::Violation> {
        if let Some(known) = self.entries.get(&index) {
            return match known == payload {
                true => Ok(None),
                false => {
                    Err(violation(format!("n{member} applied another entry {index} than was committed")))
                }
            };
        }
        if index != self.state.revision() + 1 {
            return Err(violation(format!(
                "n{member} applied entry {index}, but nobody applied entry {}",
                self.state.revision() + 1
            )));
        }
        self.entries.insert(index, payload.to_vec());
        let entry = wire::decode_entry(payload)
            .map_err(|error| violation(format!("entry {index} cannot be read: {error}")))?;
        if entry.get_entry_type() != EntryType::EntryNormal || entry.data.is_empty() {
            self.state.advance(index);
            self.note_hash();
            return Ok(None);
        }
        let command = Command::decode(&entry.data)
            .map_err(|error| violation(format!("entry {index} holds no command: {error}")))?;
        let applied = self.state.apply(index, entry.term, &command);
        self.note_hash();
        Ok(Some(Committed { index, term: entry.term, command, applied }))
    }

    fn note_hash(&mut self) {
        if self.state.revision().is_multiple_of(HASH_INTERVAL) {
            self.hashes.insert(self.state.revision(), self.state.hash());
        }
    }

    /// Compares a replica's state where the checker knows what it must be.
    pub(crate) fn compare(&self, member: u64, state: &State) -> Check {
        let revision = state.revision();
        let expected = match self.hashes.get(&revision) {
            Some(hash) => *hash,
            None => return Ok(()),
        };
        if state.hash() == expected {
            return Ok(());
        }
        broken(NAME, format!("n{member} has another state at {revision} than follows from the log"))
    }

    /// At the end, all replicas that are up must have the very state of the log.
    pub(crate) fn compare_at_end(&self, member: u64, state: &State) -> Check {
        if state.revision() != self.state.revision() {
            let (at, end) = (state.revision(), self.state.revision());
            return broken(
                NAME,
                format!("n{member} is at {at} when all is quiet, and the log ends at {end}"),
            );
        }
        if *state == self.state {
            return Ok(());
        }
        broken(NAME, format!("n{member} has another state at the end than follows from the log"))
    }
}

fn violation(what: String) -> super::Violation {
    super::Violation { invariant: NAME, what }
}
