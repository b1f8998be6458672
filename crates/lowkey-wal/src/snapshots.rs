//! Snapshot files: `snapshot-{index}.snap`, sealed, the newest two kept.
//!
//! The second newest is kept for a person to fall back on. The program never does so by itself: the
//! log after the newest snapshot does not reach back to the one before it, so a damaged newest one is
//! an error with its name, never a reason to start from an older state.

use crate::batch::u64_at;
use crate::disk::Disk;
use crate::sealed::{self, SealedError, TEMP_SUFFIX};

const KIND: [u8; 4] = *b"SNAP";
const KEPT: usize = 2;
const PREFIX: &str = "snapshot-";
const SUFFIX: &str = ".snap";
const INDEX_DIGITS: usize = 20;
const INDEX_BYTES: usize = 8;

/// The name of the snapshot file of an index.
pub fn file_name(index: u64) -> String {
    format!("{PREFIX}{index:020}{SUFFIX}")
}

pub(crate) fn is_name(name: &str) -> bool {
    parse_name(name).is_some()
}

/// Writes a snapshot; durable when this returns. Then removes all but the newest two.
pub fn save(disk: &dyn Disk, index: u64, payload: &[u8]) -> Result<(), SealedError> {
    remove_temps(disk)?;
    sealed::write_parts(disk, &file_name(index), KIND, [&index.to_le_bytes(), payload])?;
    let indexes = list(disk)?;
    for old in indexes.iter().rev().skip(KEPT).filter(|old| **old != index) {
        let name = file_name(*old);
        disk.remove(&name).map_err(|source| SealedError::io("removing", &name, source))?;
    }
    Ok(())
}

/// The indexes of all snapshot files, rising.
pub fn list(disk: &dyn Disk) -> Result<Vec<u64>, SealedError> {
    let mut indexes: Vec<u64> = names(disk)?.iter().filter_map(|name| parse_name(name)).collect();
    indexes.sort_unstable();
    Ok(indexes)
}

/// The newest snapshot, index and payload; `None` if there is none at all.
pub fn load_newest(disk: &dyn Disk) -> Result<Option<(u64, Vec<u8>)>, SealedError> {
    let Some(index) = list(disk)?.pop() else {
        return Ok(None);
    };
    Ok(load(disk, index)?.map(|payload| (index, payload)))
}

/// The snapshot of one index; `None` if there is none.
pub fn load(disk: &dyn Disk, index: u64) -> Result<Option<Vec<u8>>, SealedError> {
    let name = file_name(index);
    let Some(mut content) = sealed::read(disk, &name, KIND)? else {
        return Ok(None);
    };
    if content.len() < INDEX_BYTES || u64_at(&content, 0) != index {
        return Err(SealedError::Corrupt {
            file: name,
            offset: 0,
            what: "it is the snapshot of another index".to_string(),
        });
    }
    content.drain(..INDEX_BYTES);
    Ok(Some(content))
}

fn parse_name(name: &str) -> Option<u64> {
    let digits = name.strip_prefix(PREFIX)?.strip_suffix(SUFFIX)?;
    let is_number = digits.len() == INDEX_DIGITS && digits.bytes().all(|b| b.is_ascii_digit());
    if is_number { digits.parse().ok() } else { None }
}

/// Removes what a crash left of snapshots that were never finished.
fn remove_temps(disk: &dyn Disk) -> Result<(), SealedError> {
    for name in names(disk)? {
        let is_temp = name.strip_suffix(TEMP_SUFFIX).is_some_and(|whole| parse_name(whole).is_some());
        if is_temp {
            disk.remove(&name).map_err(|source| SealedError::io("removing", &name, source))?;
        }
    }
    Ok(())
}

fn names(disk: &dyn Disk) -> Result<Vec<String>, SealedError> {
    disk.list().map_err(|source| SealedError::io("listing", "the directory of snapshots", source))
}
