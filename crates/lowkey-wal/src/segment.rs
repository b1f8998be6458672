//! Segment files: their names, and how a new one comes to be.
//!
//! A segment appears under its name only when it is whole: its full length of zeros, synced. So a
//! segment that is too short, or that holds old bytes, is never the work of a crash.

use std::io;
use std::sync::Arc;

use crate::disk::{Disk, DiskFile, write_zeros};
use crate::sealed::TEMP_SUFFIX;

const PREFIX: &str = "segment-";
const SUFFIX: &str = ".log";
const NUMBER_DIGITS: usize = 16;
/// The number of the segment that a log is founded with.
pub(crate) const FIRST: u64 = 1;
/// The file that says where a log ended that was closed.
pub(crate) const CLEAN_STOP: &str = "clean-stop";

/// The name of a segment's file.
pub(crate) fn file_name(number: u64) -> String {
    format!("{PREFIX}{number:016}{SUFFIX}")
}

/// What a segment is called while it is being made.
pub(crate) fn temp_name(number: u64) -> String {
    format!("{PREFIX}{number:016}{SUFFIX}{TEMP_SUFFIX}")
}

/// The number of a segment, from its file's name.
pub(crate) fn parse_name(name: &str) -> Option<u64> {
    let digits = name.strip_prefix(PREFIX)?.strip_suffix(SUFFIX)?;
    if digits.len() != NUMBER_DIGITS || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    digits.parse().ok().filter(|number| *number >= FIRST)
}

/// The number of a segment that was being made, from its file's name.
pub(crate) fn parse_temp_name(name: &str) -> Option<u64> {
    parse_name(name.strip_suffix(TEMP_SUFFIX)?)
}

/// A file that proves that a log is, or was, here. The first segment under its temporary name is
/// only a founding that never happened.
pub(crate) fn proves_a_log(name: &str) -> bool {
    let is_marker = name.strip_suffix(TEMP_SUFFIX).unwrap_or(name) == CLEAN_STOP;
    let is_later_temp = parse_temp_name(name).is_some_and(|number| number > FIRST);
    parse_name(name).is_some() || is_later_temp || is_marker
}

/// Makes a segment: zeros throughout but for `beginning`, synced, then put under its name, durably.
/// `recycle` names a segment that is no longer needed and whose file can be used.
pub(crate) fn make(
    disk: &dyn Disk,
    number: u64,
    segment_bytes: u64,
    recycle: Option<u64>,
    beginning: &[u8],
) -> io::Result<Arc<dyn DiskFile>> {
    let temp = temp_name(number);
    let made = fill(disk, &temp, segment_bytes, recycle, beginning);
    let file = match made {
        Ok(file) => file,
        Err(error) => {
            // What is left over is worth nothing and may be the last space there was.
            let _ = disk.remove(&temp);
            return Err(error);
        }
    };
    disk.rename(&temp, &file_name(number))?;
    disk.sync_dir()?;
    Ok(file)
}

fn fill(
    disk: &dyn Disk,
    temp: &str,
    segment_bytes: u64,
    recycle: Option<u64>,
    beginning: &[u8],
) -> io::Result<Arc<dyn DiskFile>> {
    let file = match recycle {
        Some(old) => {
            disk.rename(&file_name(old), temp)?;
            let file = disk.open(temp)?;
            file.set_len(segment_bytes)?;
            file
        }
        None => disk.create(temp)?,
    };
    write_zeros(file.as_ref(), 0, segment_bytes)?;
    if !beginning.is_empty() {
        file.write_at(0, beginning)?;
    }
    file.sync_data()?;
    Ok(file)
}
