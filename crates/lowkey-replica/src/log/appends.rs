//! Entries on their way to a peer. `raft` puts all that a peer lacks into one message, however much it is. A message that
//! is too large to receive, or that keeps the leader busy for long, must be cut into pieces.

use raft::eraftpb;

use super::store::entry_bytes;

/// Bytes of entries in one message to a peer.
const APPEND_BYTES_MAX: u64 = 1024 * 1024;

/// What leaves for peers.
#[derive(Debug, Default)]
pub(crate) struct Appends {
    told_commit: u64,
}

impl Appends {
    /// The highest commit index that others were told in an append.
    pub(crate) fn told_commit(&self) -> u64 {
        self.told_commit
    }

    /// The same messages, none of them too large for anybody. Notes also what they tell of commits.
    pub(crate) fn in_parts(&mut self, messages: Vec<eraftpb::Message>) -> Vec<eraftpb::Message> {
        let mut parts = Vec::with_capacity(messages.len());
        for message in messages {
            if message.get_msg_type() != eraftpb::MessageType::MsgAppend {
                parts.push(message);
                continue;
            }
            self.told_commit = self.told_commit.max(message.commit);
            split_append(message, &mut parts);
        }
        parts
    }
}

/// Makes of an append as many as it takes for each to have at most so many bytes of entries, and one entry at least.
fn split_append(mut message: eraftpb::Message, parts: &mut Vec<eraftpb::Message>) {
    loop {
        let mut bytes = 0;
        let mut is_too_much = |entry: &eraftpb::Entry| {
            bytes += entry_bytes(entry);
            bytes > APPEND_BYTES_MAX
        };
        let count = message.entries.iter().position(&mut is_too_much).map(|count| count.max(1));
        let Some(count) = count.filter(|count| *count < message.entries.len()) else {
            return parts.push(message);
        };
        let mut entries: Vec<eraftpb::Entry> = message.take_entries().into();
        let mut next = message.clone();
        next.set_entries(entries.split_off(count).into());
        let last = &entries[count - 1];
        (next.index, next.log_term) = (last.index, last.term);
        message.set_entries(entries.into());
        parts.push(std::mem::replace(&mut message, next));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An append behind index 1 of term 1, with entries of term 2 of so many bytes.
    fn append(sizes: &[u64]) -> eraftpb::Message {
        let mut message = eraftpb::Message { index: 1, log_term: 1, commit: 9, ..Default::default() };
        let entry = |(offset, size): (usize, &u64)| eraftpb::Entry {
            index: 2 + offset as u64,
            term: 2,
            data: vec![0; *size as usize].into(),
            ..Default::default()
        };
        message.set_entries(sizes.iter().enumerate().map(entry).collect());
        message
    }

    /// Where each part begins, the term before it, and how many entries it has.
    fn parts(sizes: &[u64]) -> Vec<(u64, u64, usize)> {
        let mut parts = Vec::new();
        split_append(append(sizes), &mut parts);
        assert!(parts.iter().all(|part| part.commit == 9));
        parts.iter().map(|part| (part.index, part.log_term, part.entries.len())).collect()
    }

    #[test]
    fn a_large_append_leaves_in_parts_that_follow_each_other() {
        let half = APPEND_BYTES_MAX / 2;
        assert_eq!(parts(&[]), [(1, 1, 0)]);
        assert_eq!(parts(&[10, 20]), [(1, 1, 2)]);
        assert_eq!(parts(&[10, half, half, half, 10]), [(1, 1, 2), (3, 2, 1), (4, 2, 2)]);
        assert_eq!(parts(&[10, 3 * half, 10]), [(1, 1, 1), (2, 2, 1), (3, 2, 1)], "one entry always goes");
    }
}
