//! What a world keeps for its script: messages and answers held back, and what was seen to happen.

use std::collections::{BTreeMap, BTreeSet};

use lowkey_core::{Command, Event as Change, LeaseId};
use lowkey_replica::{Failure, MessageType, Response, wire};

use crate::invariants::Committed;
use crate::world::WorldEvent;

/// A message on its way: sender, receiver, bytes, and the snapshot that comes with it.
pub(crate) type Letter = (usize, usize, Vec<u8>, Option<Vec<u8>>);

/// The script's hands and eyes in a world.
#[derive(Debug, Default)]
pub(crate) struct Stage {
    /// Links whose messages are held back: all of them, or those of one kind.
    held_links: Vec<(usize, usize, Option<MessageType>)>,
    /// Messages that are held back, in the order in which they were sent.
    pub(crate) kept_messages: Vec<Letter>,
    /// Clients whose answers are held back.
    held_clients: BTreeSet<usize>,
    /// Answers that are held back, in the order in which they were given.
    pub(crate) kept_answers: Vec<WorldEvent>,
    /// What each client was told, by operation.
    pub(crate) answers: BTreeMap<(usize, u64), Vec<Result<Response, Failure>>>,
    /// When each lease began and ended, in true time.
    pub(crate) begun: BTreeMap<LeaseId, u64>,
    pub(crate) ended: BTreeMap<LeaseId, u64>,
    /// Entries that end leases because their time ran out.
    pub(crate) expire_entries: u64,
    /// Entries that end grants because they were held for as long as they may be.
    pub(crate) hold_entries: u64,
}

impl Stage {
    pub(crate) fn hold_link(&mut self, from: usize, to: usize, kind: Option<MessageType>) {
        self.held_links.push((from, to, kind));
    }

    pub(crate) fn hold_answers(&mut self, client: usize) {
        self.held_clients.insert(client);
    }

    /// Holds no message back any more, and gives those that were.
    pub(crate) fn let_messages_go(&mut self) -> Vec<Letter> {
        self.held_links.clear();
        std::mem::take(&mut self.kept_messages)
    }

    /// Gives the messages that were held back on one link, which goes on being held.
    pub(crate) fn let_messages_between_go(&mut self, from: usize, to: usize) -> Vec<Letter> {
        self.kept_messages.extract_if(.., |letter| (letter.0, letter.1) == (from, to)).collect()
    }

    /// Holds no answer back any more, and gives those that were.
    pub(crate) fn let_answers_go(&mut self) -> Vec<WorldEvent> {
        self.held_clients.clear();
        std::mem::take(&mut self.kept_answers)
    }

    /// True if the message was held back.
    pub(crate) fn keeps_back(
        &mut self,
        from: usize,
        to: usize,
        bytes: &[u8],
        snapshot: Option<&[u8]>,
    ) -> bool {
        if self.held_links.is_empty() {
            return false;
        }
        let kind = wire::decode_message(bytes).ok().map(|(_, message)| message.get_msg_type());
        let held = self
            .held_links
            .iter()
            .any(|(a, b, only)| (*a, *b) == (from, to) && (only.is_none() || *only == kind));
        if held {
            self.kept_messages.push((from, to, bytes.to_vec(), snapshot.map(<[u8]>::to_vec)));
        }
        held
    }

    pub(crate) fn keeps_answers_of(&self, client: usize) -> bool {
        self.held_clients.contains(&client)
    }

    pub(crate) fn heard(&mut self, client: usize, operation: u64, answer: &Result<Response, Failure>) {
        self.answers.entry((client, operation)).or_default().push(answer.clone());
    }

    pub(crate) fn committed(&mut self, committed: &Committed, now: u64) {
        self.hold_entries += u64::from(matches!(committed.command, Command::EndHolds { .. }));
        self.expire_entries += u64::from(matches!(committed.command, Command::Expire { .. }));
        for event in &committed.applied.events {
            match event {
                Change::LeaseStarted { lease, .. } => {
                    self.begun.insert(*lease, now);
                }
                Change::LeaseEnded { lease } => {
                    self.ended.insert(*lease, now);
                }
                Change::HoldStarted { .. }
                | Change::HoldEnded { .. }
                | Change::Changed(_)
                | Change::WaitEnded { .. } => {}
            }
        }
    }
}
