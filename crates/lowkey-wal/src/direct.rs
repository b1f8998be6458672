//! Writes that go to the device past the page cache.
//!
//! A log is written once and read at the next start: the cache has nothing to gain from it, and takes longer to put a
//! page on disk than a write that goes there at once. The price: such writes are whole blocks, from memory that is
//! aligned like them. So the last block, mostly full in part, is kept and written again with what follows; the cache
//! would write the same block again, too.
//!
//! Where a file system has no such writes, or a file does not end with a block, all goes through the cache.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::fs::OFlags;

/// A multiple of what any device asks for.
const BLOCK_BYTES: usize = 4096;

/// A file's way past the cache, if it has one.
pub(crate) struct Direct(Mutex<Option<Writer>>);

struct Writer {
    file: File,
    /// The last block that was written, if it is known.
    tail: Option<Tail>,
    buffer: Vec<u8>,
}

struct Tail {
    /// Where the block begins.
    offset: u64,
    block: [u8; BLOCK_BYTES],
}

impl Direct {
    /// The way of the file at `path`.
    pub(crate) fn open(path: &Path) -> Self {
        let flags = OFlags::DIRECT.bits().cast_signed();
        let file = OpenOptions::new().read(true).write(true).custom_flags(flags).open(path);
        Self(Mutex::new(file.ok().map(|file| Writer { file, tail: None, buffer: Vec::new() })))
    }

    /// The file was changed in another way.
    pub(crate) fn forget(&self) {
        if let Some(writer) = self.writer().as_mut() {
            writer.tail = None;
        }
    }

    /// Writes bytes behind which there are only zeros. False if there is no such way: nothing was written then.
    pub(crate) fn append_at(&self, offset: u64, bytes: &[u8]) -> io::Result<bool> {
        let mut writer = self.writer();
        let Some(way) = writer.as_mut() else { return Ok(false) };
        match way.append_at(offset, bytes) {
            // What this file system, or this file, does not do.
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                *writer = None;
                Ok(false)
            }
            outcome => outcome.map(|()| true),
        }
    }

    fn writer(&self) -> MutexGuard<'_, Option<Writer>> {
        // What a panic left half done is not looked at again: the process ends.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Writer {
    fn append_at(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let begin = offset - offset % BLOCK_BYTES as u64;
        let kept = (offset - begin) as usize;
        let len = (kept + bytes.len()).next_multiple_of(BLOCK_BYTES);
        if begin + len as u64 > self.file.metadata()?.len() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        self.buffer.clear();
        self.buffer.resize(len + BLOCK_BYTES, 0);
        let aligned = self.buffer.as_ptr().align_offset(BLOCK_BYTES);
        let blocks = &mut self.buffer[aligned..aligned + len];
        match &self.tail {
            _ if kept == 0 => {}
            Some(tail) if tail.offset == begin => blocks[..kept].copy_from_slice(&tail.block[..kept]),
            _ => {
                self.file.read_exact_at(&mut blocks[..BLOCK_BYTES], begin)?;
                blocks[kept..BLOCK_BYTES].fill(0);
            }
        }
        blocks[kept..kept + bytes.len()].copy_from_slice(bytes);
        self.file.write_all_at(blocks, begin)?;
        let mut block = [0; BLOCK_BYTES];
        block.copy_from_slice(&blocks[len - BLOCK_BYTES..]);
        self.tail = Some(Tail { offset: begin + (len - BLOCK_BYTES) as u64, block });
        // A large batch is rare, and its memory is not kept for the next.
        self.buffer.shrink_to(64 * BLOCK_BYTES);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// A file of zeros, and what it is to hold.
    fn file(len: usize) -> (tempfile::TempDir, std::path::PathBuf, Vec<u8>) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("segment");
        fs::write(&path, vec![0; len]).unwrap();
        (folder, path, vec![0; len])
    }

    /// Appends as much as there is a way for, and tells whether there was.
    fn append(direct: &Direct, path: &Path, expected: &mut [u8], offset: usize, bytes: &[u8]) -> bool {
        let is_written = direct.append_at(offset as u64, bytes).unwrap();
        if is_written {
            expected[offset..offset + bytes.len()].copy_from_slice(bytes);
        }
        assert!(fs::read(path).unwrap() == expected, "{offset} and {} bytes", bytes.len());
        is_written
    }

    #[test]
    fn what_is_appended_is_there_whatever_its_length_and_who_went_before() {
        let (_folder, path, mut expected) = file(16 * BLOCK_BYTES);
        let mut direct = Direct::open(&path);
        let mut offset = 0;
        for (number, len) in [1, 8, 4087, 4096, 4095, 1, 9000, 24, 8192, 100].into_iter().enumerate() {
            if number % 3 == 2 {
                // Somebody who has just opened the file does not know its last block.
                direct = Direct::open(&path);
            }
            if !append(&direct, &path, &mut expected, offset, &vec![number as u8 + 1; len]) {
                println!("SKIPPED: the file system of {} has no writes past its cache", path.display());
                return;
            }
            offset += len;
        }
    }

    #[test]
    fn a_file_that_was_changed_otherwise_is_read_again() {
        let (_folder, path, mut expected) = file(2 * BLOCK_BYTES);
        let direct = Direct::open(&path);
        append(&direct, &path, &mut expected, 0, &[1; 10]);
        expected[3] = 9;
        fs::write(&path, &expected).unwrap();
        direct.forget();
        append(&direct, &path, &mut expected, 10, &[2; 10]);
    }

    #[test]
    fn a_file_that_does_not_end_with_a_block_does_not_grow() {
        let (_folder, path, mut expected) = file(BLOCK_BYTES + 512);
        let direct = Direct::open(&path);
        assert!(!append(&direct, &path, &mut expected, BLOCK_BYTES, &[1; 10]));
        assert!(
            !append(&direct, &path, &mut expected, 0, &[1; 10]),
            "from then on all goes through the cache"
        );
    }
}
