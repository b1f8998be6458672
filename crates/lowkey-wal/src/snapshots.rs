//! Snapshot files, sealed, the newest two of each group kept.
//!
//! ```text
//! snapshot-{index}.snap            of the root group: kind SNAP, then index, payload
//! snapshot-{group}-{index}.snap    of every other:    kind SNPG, then group, index, payload
//! ```
//!
//! The second newest is kept for a person to fall back on. The program never does so by itself: the
//! log after the newest snapshot does not reach back to the one before it, so a damaged newest one is
//! an error with its name, never a reason to start from an older state.
//!
//! Groups do not touch each other's files: two of them may be written at a time.

use lowkey_record::GroupId;

use crate::disk::Disk;
use crate::sealed::{self, SealedError, TEMP_SUFFIX};

const KIND: [u8; 4] = *b"SNAP";
const KIND_OF_GROUP: [u8; 4] = *b"SNPG";
const KEPT: usize = 2;
const PREFIX: &str = "snapshot-";
const SUFFIX: &str = ".snap";
const GROUP_DIGITS: usize = 10;
const INDEX_DIGITS: usize = 20;

/// The name of the snapshot file of a group and an index.
pub fn file_name(group: GroupId, index: u64) -> String {
    if group == GroupId::ROOT {
        return format!("{PREFIX}{index:0INDEX_DIGITS$}{SUFFIX}");
    }
    format!("{PREFIX}{:0GROUP_DIGITS$}-{index:0INDEX_DIGITS$}{SUFFIX}", group.0)
}

pub(crate) fn is_name(name: &str) -> bool {
    parse_name(name).is_some()
}

/// Writes a snapshot; durable when this returns. Then removes all of its group but the newest two.
pub fn save(disk: &dyn Disk, group: GroupId, index: u64, payload: &[u8]) -> Result<(), SealedError> {
    remove_temps(disk, group)?;
    let (kind, head) = head(group, index);
    sealed::write_parts(disk, &file_name(group, index), kind, [&head, payload])?;
    let indexes = list(disk, group)?;
    for old in indexes.iter().rev().skip(KEPT).filter(|old| **old != index) {
        let name = file_name(group, *old);
        disk.remove(&name).map_err(|source| SealedError::io("removing", &name, source))?;
    }
    Ok(())
}

/// The indexes of all snapshot files of a group, rising.
pub fn list(disk: &dyn Disk, group: GroupId) -> Result<Vec<u64>, SealedError> {
    let found = names(disk)?;
    let of_group = found.iter().filter_map(|name| parse_name(name)).filter(|(of, _)| *of == group);
    let mut indexes: Vec<u64> = of_group.map(|(_, index)| index).collect();
    indexes.sort_unstable();
    Ok(indexes)
}

/// True if there is a snapshot of any group.
pub fn exist(disk: &dyn Disk) -> Result<bool, SealedError> {
    Ok(names(disk)?.iter().any(|name| is_name(name)))
}

/// The newest snapshot of a group, index and payload; `None` if there is none at all.
pub fn load_newest(disk: &dyn Disk, group: GroupId) -> Result<Option<(u64, Vec<u8>)>, SealedError> {
    let Some(index) = list(disk, group)?.pop() else {
        return Ok(None);
    };
    Ok(load(disk, group, index)?.map(|payload| (index, payload)))
}

/// The snapshot of a group and an index; `None` if there is none.
pub fn load(disk: &dyn Disk, group: GroupId, index: u64) -> Result<Option<Vec<u8>>, SealedError> {
    let name = file_name(group, index);
    let (kind, head) = head(group, index);
    let Some(mut content) = sealed::read(disk, &name, kind)? else {
        return Ok(None);
    };
    if !content.starts_with(&head) {
        return Err(SealedError::Corrupt {
            file: name,
            offset: 0,
            what: "it is the snapshot of another index".to_string(),
        });
    }
    content.drain(..head.len());
    Ok(Some(content))
}

/// What a file says of itself before the payload.
fn head(group: GroupId, index: u64) -> ([u8; 4], Vec<u8>) {
    let index = index.to_le_bytes();
    if group == GroupId::ROOT {
        return (KIND, index.to_vec());
    }
    (KIND_OF_GROUP, [&group.0.to_le_bytes()[..], &index].concat())
}

/// The group and the index that a name says, if it is just what [`file_name`] gives for them.
fn parse_name(name: &str) -> Option<(GroupId, u64)> {
    let numbers = name.strip_prefix(PREFIX)?.strip_suffix(SUFFIX)?;
    let (group, index) = match numbers.split_once('-') {
        None => (GroupId::ROOT, numbers.parse().ok()?),
        Some((group, index)) => (GroupId(group.parse().ok()?), index.parse().ok()?),
    };
    (file_name(group, index) == name).then_some((group, index))
}

/// Removes what a crash left of a group's snapshots that were never finished.
fn remove_temps(disk: &dyn Disk, group: GroupId) -> Result<(), SealedError> {
    for name in names(disk)? {
        let named = name.strip_suffix(TEMP_SUFFIX).and_then(parse_name);
        if named.is_some_and(|(of, _)| of == group) {
            disk.remove(&name).map_err(|source| SealedError::io("removing", &name, source))?;
        }
    }
    Ok(())
}

fn names(disk: &dyn Disk) -> Result<Vec<String>, SealedError> {
    disk.list().map_err(|source| SealedError::io("listing", "the directory of snapshots", source))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_read_back_only_as_it_is_written() {
        for (group, index, name) in [
            (GroupId::ROOT, 7, "snapshot-00000000000000000007.snap"),
            (GroupId(2), 7, "snapshot-0000000002-00000000000000000007.snap"),
            (GroupId(u32::MAX), u64::MAX, "snapshot-4294967295-18446744073709551615.snap"),
        ] {
            assert_eq!(file_name(group, index), name);
            assert_eq!(parse_name(name), Some((group, index)));
        }
        for other in [
            "snapshot-0000000001-00000000000000000007.snap",
            "snapshot-2-00000000000000000007.snap",
            "snapshot-+0000000000000000007.snap",
            "snapshot-7.snap",
            "snapshot-00000000000000000007.snap.tmp",
        ] {
            assert_eq!(parse_name(other), None, "{other}");
        }
    }
}
