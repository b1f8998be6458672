//! What the log keeps: records, and what they add up to for each group.
//!
//! The meaning of a payload is the caller's. The log knows just enough to forget: which entries a
//! later entry replaces, and which ones a compaction makes needless.

use std::collections::VecDeque;

use lowkey_record::GroupId;
pub(crate) use lowkey_record::{Record, RecordKind as Kind};

/// A record whose payload lies elsewhere: in a caller's record, in the log's memory or in a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RecordRef<'a> {
    pub(crate) group: GroupId,
    pub(crate) kind: Kind,
    pub(crate) index: u64,
    pub(crate) payload: &'a [u8],
}

impl<'a> From<&'a Record> for RecordRef<'a> {
    fn from(record: &'a Record) -> Self {
        let index = match record.kind {
            Kind::Entry | Kind::Compaction | Kind::Reset => record.index,
            Kind::HardState | Kind::ConfState => 0,
        };
        Self { group: record.group, kind: record.kind, index, payload: &record.payload }
    }
}

/// All that the log holds for one group.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct GroupLog {
    /// The last hard state.
    pub hard_state: Option<Vec<u8>>,
    /// The last membership.
    pub conf_state: Option<Vec<u8>>,
    /// The last compaction: everything up to this index is gone; and its payload.
    pub compaction: Option<(u64, Vec<u8>)>,
    /// The entries: index and payload, without gaps, beginning right after the compaction (or at 1).
    pub entries: VecDeque<(u64, Vec<u8>)>,
}

impl GroupLog {
    /// The last index that is gone; 0 when nothing was ever compacted.
    pub fn compacted_through(&self) -> u64 {
        self.compaction.as_ref().map_or(0, |(index, _)| *index)
    }

    /// The index of the last entry, or of the compaction if there is no entry after it.
    pub fn last_index(&self) -> u64 {
        self.entries.back().map_or_else(|| self.compacted_through(), |(index, _)| *index)
    }

    /// Adds a record read back from the disk.
    ///
    /// `has_forgotten` says that segments in front were dropped. Then the first entry seen may lie
    /// beyond the compaction seen so far, because a later compaction, the one that let the segments
    /// go, will cover what is missing; [`GroupLog::check_whole`] makes sure of it at the end.
    pub(crate) fn replay(&mut self, record: RecordRef<'_>, has_forgotten: bool) -> Result<(), String> {
        let compacted = self.compacted_through();
        match record.kind {
            Kind::HardState => self.hard_state = Some(record.payload.to_vec()),
            Kind::ConfState => self.conf_state = Some(record.payload.to_vec()),
            Kind::Compaction | Kind::Reset => {
                if record.index < compacted {
                    return Err(format!("a compaction at {} follows one at {compacted}", record.index));
                }
                self.compaction = Some((record.index, record.payload.to_vec()));
                if record.kind == Kind::Reset {
                    self.entries.clear();
                }
                while matches!(self.entries.front(), Some((index, _)) if *index <= record.index) {
                    self.entries.pop_front();
                }
            }
            Kind::Entry => {
                let next = self.last_index() + 1;
                let may_jump = has_forgotten && self.entries.is_empty();
                if record.index <= compacted || (record.index > next && !may_jump) {
                    return Err(format!(
                        "entry {} follows entry {} (compacted through {compacted})",
                        record.index,
                        next - 1
                    ));
                }
                while matches!(self.entries.back(), Some((index, _)) if *index >= record.index) {
                    self.entries.pop_back();
                }
                self.entries.push_back((record.index, record.payload.to_vec()));
            }
        }
        Ok(())
    }

    /// After the last record: the entries begin right after the compaction.
    pub(crate) fn check_whole(&self) -> Result<(), String> {
        let compacted = self.compacted_through();
        match self.entries.front() {
            Some((first, _)) if *first != compacted + 1 => {
                Err(format!("its entries begin at {first}, but only those through {compacted} are compacted"))
            }
            _ => Ok(()),
        }
    }
}
