//! All that the log asks of the world: a flat directory of files.
//!
//! Nothing else in this crate touches a file, so that the very same code runs on a real directory
//! and on a simulated disk that loses power at every single operation.

use std::io;
use std::sync::Arc;

/// A flat directory of files. Shared as `Arc<dyn Disk>`.
///
/// What a disk must keep, and what it need not:
///
/// - a write is on disk only after [`DiskFile::sync_data`] of that file has returned;
/// - after a sync of a file that failed, the bytes may still be readable and yet never be written by any
///   later sync, as kernels do it: only writing them again helps;
/// - a created, renamed or removed name is on disk only after [`Disk::sync_dir`] has returned; after one that
///   failed, the next that succeeds is enough (names cannot be written again from here, and need not: file
///   systems keep them in a journal, and stop when they cannot write that);
/// - a rename replaces its target in one step: after a crash either the old file is there or the new.
///
/// A full disk is an error of kind [`io::ErrorKind::StorageFull`].
pub trait Disk: Send + Sync + 'static {
    /// The names of all files, in order.
    fn list(&self) -> io::Result<Vec<String>>;

    /// Makes an empty file, or empties the one that has this name.
    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>>;

    /// Opens a file that exists, for writing.
    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>>;

    /// The whole content of a file; [`io::ErrorKind::NotFound`] if there is none.
    fn read(&self, name: &str) -> io::Result<Vec<u8>>;

    /// Gives a file another name, in place of a file that had that name. Open handles stay good.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Removes a file.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Makes all creations, renames and removals so far durable.
    fn sync_dir(&self) -> io::Result<()>;
}

/// An open file of a [`Disk`]; it stays the same file when its name changes.
pub trait DiskFile: Send + Sync + 'static {
    /// Writes all bytes at an offset, beyond the present end too.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Cuts the file, or extends it with zeros.
    fn set_len(&self, len_bytes: u64) -> io::Result<()>;

    /// Makes all writes so far durable (`fdatasync`). After an error nothing is known about any of
    /// them; it must not be tried again, not even by the next process, unless they are written again.
    fn sync_data(&self) -> io::Result<()>;
}

const ZEROS_BYTES: usize = 256 * 1024;
static ZEROS: [u8; ZEROS_BYTES] = [0; ZEROS_BYTES];

/// Writes zeros over `from..to`: real writes, not a hole, so that later writes there need neither
/// space nor a change of the file's layout.
pub(crate) fn write_zeros(file: &dyn DiskFile, from: u64, to: u64) -> io::Result<()> {
    let mut offset = from;
    while offset < to {
        let chunk_bytes = (to - offset).min(ZEROS_BYTES as u64);
        file.write_at(offset, &ZEROS[..chunk_bytes as usize])?;
        offset += chunk_bytes;
    }
    Ok(())
}

/// True if an error says that the process, or the machine, has as many files and connections open as it may. That passes.
pub fn lacks_descriptors(error: &io::Error) -> bool {
    /// The numbers of ENFILE and EMFILE, which std has no names for.
    const NUMBERS: [i32; 2] = [23, 24];
    error.raw_os_error().is_some_and(|number| NUMBERS.contains(&number))
}

/// True if an error says that there is no room left.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}
