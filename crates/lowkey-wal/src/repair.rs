//! Putting a log in order after recovery has judged it, before anything new is written.
//!
//! Two things must hold from here on. What was read is durable: a killed process leaves batches that
//! only the operating system knows, and the next power loss would take them after all. And behind the
//! last batch there are only zeros: bytes of a torn tail must never meet a later batch.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::clean_stop::CleanStop;
use crate::disk::{Disk, DiskFile, write_zeros};
use crate::error::WalError;
use crate::recovery::Findings;
use crate::segment;
use crate::spare::Spare;

/// The files that the log goes on with.
pub(crate) struct Ready {
    pub(crate) active: Arc<dyn DiskFile>,
    /// The length of the active segment.
    pub(crate) active_bytes: u64,
    pub(crate) spares: VecDeque<Spare>,
}

/// Makes what was found durable, wipes what was cut, removes what is not needed.
pub(crate) fn repair(
    disk: &Arc<dyn Disk>,
    findings: &Findings,
    segment_bytes: u64,
) -> Result<Ready, WalError> {
    let chain = &findings.chain;
    sync_dir(disk)?;
    let name = segment::file_name(chain.segment);
    let mut active = open(disk, chain.segment)?;
    if let Some(cut) = &findings.cut {
        write_zeros(active.as_ref(), cut.offset, cut.offset + cut.bytes)
            .map_err(|source| WalError::io("wiping", &name, source))?;
    }
    sync(active.as_ref(), chain.segment)?;
    if chain.last_segment != chain.segment {
        let last = open(disk, chain.last_segment)?;
        sync(last.as_ref(), chain.last_segment)?;
    }

    // From the highest down, so that a crash on the way leaves no gap.
    for number in findings.unfit.iter().rev() {
        remove(disk, &segment::file_name(*number))?;
    }
    for name in &findings.leftovers {
        remove(disk, name)?;
    }
    let mut active_bytes = chain.tail.len() as u64;
    if chain.offset == 0 && active_bytes != segment_bytes {
        // Unused, and prepared under other options.
        active = segment::make(disk.as_ref(), chain.segment, segment_bytes, None, &[])
            .map_err(|source| WalError::io_or_full("making", &name, source))?;
        active_bytes = segment_bytes;
    }
    sync_dir(disk)?;
    if findings.clean {
        CleanStop::remove(disk.as_ref())?;
    }

    let spares =
        findings.spares.iter().map(|number| Ok(Spare { number: *number, file: open(disk, *number)? }));
    Ok(Ready { active, active_bytes, spares: spares.collect::<Result<_, WalError>>()? })
}

fn open(disk: &Arc<dyn Disk>, number: u64) -> Result<Arc<dyn DiskFile>, WalError> {
    let name = segment::file_name(number);
    disk.open(&name).map_err(|source| WalError::io("opening", &name, source))
}

fn sync(file: &dyn DiskFile, number: u64) -> Result<(), WalError> {
    file.sync_data().map_err(|source| WalError::io("syncing", &segment::file_name(number), source))
}

fn remove(disk: &Arc<dyn Disk>, name: &str) -> Result<(), WalError> {
    disk.remove(name).map_err(|source| WalError::io("removing", name, source))
}

fn sync_dir(disk: &Arc<dyn Disk>) -> Result<(), WalError> {
    disk.sync_dir().map_err(|source| WalError::io("syncing", "the data directory", source))
}
