//! What the log and the replicas above it both name.
//!
//! The log keeps records of many groups and does not know what a group does. A replica belongs to one group and
//! knows nothing of the log. The id of a group, and the records that one hands to the other, are what they have in
//! common. This crate has no dependencies.

use std::fmt;

/// The id of a group: one Raft group, with a replica on every node and a place in every node's log.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupId(pub u32);

impl GroupId {
    /// The group that every cluster begins with.
    pub const ROOT: Self = Self(1);

    /// The group that a message is for. Nodes that know only one group leave it out, which reads as 0: the root.
    pub const fn told(number: u32) -> Self {
        if number == 0 { Self::ROOT } else { Self(number) }
    }

    /// What [`GroupId::told`] reads. The root is left out, so that what is said about it stays what it always was.
    pub const fn number_to_tell(self) -> u32 {
        if self.0 == Self::ROOT.0 { 0 } else { self.0 }
    }
}

impl fmt::Display for GroupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for GroupId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What a record is.
///
/// The numbers are those of the log's format: none is ever used again for something else.
#[derive(Clone, Copy, PartialEq, Eq, Debug, PartialOrd, Ord)]
pub enum RecordKind {
    /// One entry of the group's log. It removes all entries of the group at its index and above.
    Entry = 1,
    /// The group's hard state: term, vote and commit. The last one wins. Its index is 0.
    HardState = 2,
    /// Entries up to and including the index are gone. Beyond the last entry it empties the log,
    /// and the next entry must be the one right after it.
    Compaction = 3,
    /// The group's membership; the last one wins. Its index is 0.
    ConfState = 4,
    /// All entries are gone, those beyond the index too; the next one must be the one right after it.
    /// From then on it counts as the group's compaction.
    Reset = 5,
}

impl RecordKind {
    /// The kind of this number, if there is one.
    pub const fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            1 => Some(Self::Entry),
            2 => Some(Self::HardState),
            3 => Some(Self::Compaction),
            4 => Some(Self::ConfState),
            5 => Some(Self::Reset),
            _ => None,
        }
    }
}

/// One record of one group.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Record {
    /// The group it belongs to.
    pub group: GroupId,
    /// What it is.
    pub kind: RecordKind,
    /// The entry's index, or the last index that is gone; ignored (kept as 0) for the other kinds.
    pub index: u64,
    /// The replica's bytes, which mean nothing to the log.
    pub payload: Vec<u8>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_root_is_left_out_and_everybody_else_named() {
        assert_eq!([GroupId::ROOT, GroupId(2)].map(GroupId::number_to_tell), [0, 2]);
        assert_eq!([0, 1, 2].map(GroupId::told), [GroupId::ROOT, GroupId::ROOT, GroupId(2)]);
    }
}
