//! What a replica writes into the durable log.

use lowkey_record::{GroupId, Record, RecordKind};
use raft::eraftpb;

use crate::wire;

/// An entry: replaces the one at its index and all behind it.
pub(crate) fn entry(group: GroupId, entry: &eraftpb::Entry) -> Record {
    Record { group, kind: RecordKind::Entry, index: entry.index, payload: wire::encode_entry(entry) }
}

/// Term, vote and commit: the last one counts.
pub(crate) fn hard_state(group: GroupId, hard_state: &eraftpb::HardState) -> Record {
    Record { group, kind: RecordKind::HardState, index: 0, payload: wire::encode_hard_state(hard_state) }
}

/// The entries up to the index are gone.
pub(crate) fn compaction(group: GroupId, index: u64, term: u64) -> Record {
    Record { group, kind: RecordKind::Compaction, index, payload: wire::encode_compaction(term) }
}

/// All entries are gone, and the log goes on behind the index.
pub(crate) fn reset(group: GroupId, index: u64, term: u64) -> Record {
    Record { group, kind: RecordKind::Reset, index, payload: wire::encode_compaction(term) }
}
