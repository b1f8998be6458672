//! Putting a log in order after recovery has judged it, before anything new is written.
//!
//! Two things must hold from here on. What was read is durable. And behind the last batch there are only
//! zeros: bytes of a torn tail must never meet a later batch.
//!
//! A sync alone gives neither. A killed process leaves bytes that only the operating system knows, and
//! that a sync would write. But if a write to the disk failed, then or while nobody looked, the page cache
//! goes on showing the bytes and counts them as written: no sync ever writes them, and the next loss of
//! power takes them. So all that is not known to be on disk is written again, the same bytes to the same
//! place, and then synced:
//!
//! - **batches** that no later batch calls synced. Those that one does call synced are: the process that wrote it
//!   had seen the sync return, and a failed sync ends the process;
//! - **the zeros** from there to the end of the segment: the tail that was cut now, and one that an earlier
//!   start cut without getting its zeros to the disk;
//! - neither after a clean stop: its marker was written when all was synced.
//!
//! If the power goes on the way, a sector holds the old bytes or the new. Where the batch was on disk, they
//! are the same; where it was not, nobody has been told of it.
//!
//! Segments and sealed files appear under their names only after a sync of their content has succeeded, so
//! what can be seen there is on disk; only the names may not be, and a sync of the directory is enough for
//! them: see [`Disk`].

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use crate::chain::Chain;
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
    let mut files = BTreeMap::from([(chain.segment, Arc::clone(&active))]);
    if chain.last_segment != chain.segment {
        files.insert(chain.last_segment, open(disk, chain.last_segment)?);
    }
    let all_is_proven = findings.clean && findings.cut.is_none();
    if !all_is_proven && !lowkey_mutants::RECOVERY_BELIEVES_THE_PAGE_CACHE.is_active() {
        write_again(disk, &mut files, chain)?;
    }
    for (number, file) in &files {
        sync(file.as_ref(), *number)?;
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

/// Writes again all that may be in the page cache alone.
fn write_again(
    disk: &Arc<dyn Disk>,
    files: &mut BTreeMap<u64, Arc<dyn DiskFile>>,
    chain: &Chain,
) -> Result<(), WalError> {
    for batch in &chain.unproven {
        let file = match files.entry(batch.segment) {
            Entry::Occupied(there) => there.into_mut(),
            Entry::Vacant(missing) => missing.insert(open(disk, batch.segment)?),
        };
        let name = segment::file_name(batch.segment);
        file.write_at(batch.offset, &batch.bytes)
            .map_err(|source| WalError::io("writing again", &name, source))?;
    }
    if let Some(active) = files.get(&chain.segment) {
        write_zeros(active.as_ref(), chain.offset, chain.tail.len() as u64)
            .map_err(|source| WalError::io("wiping", &segment::file_name(chain.segment), source))?;
    }
    Ok(())
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
