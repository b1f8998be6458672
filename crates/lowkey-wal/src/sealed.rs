//! Small files that are replaced whole and checked whole.
//!
//! For what is read once and must be right: a node's identity, a snapshot, the log's clean-stop
//! marker. A reader sees the old file or the new one, never a mixture, and any changed, missing or
//! added byte is found. The bytes are drawn in `docs/internals/log-format.md`.

use std::error::Error;
use std::fmt;
use std::io;

use crate::batch::{u32_at, u64_at};
use crate::disk::{Disk, is_full, lacks_descriptors};

/// `LKSF` as the file shows it.
const MAGIC: u32 = u32::from_le_bytes(*b"LKSF");
const VERSION: u16 = 1;
const HEADER_BYTES: usize = 28;
const HEADER_CRC_AT: usize = 24;
/// What a file is called until it is whole.
pub(crate) const TEMP_SUFFIX: &str = ".tmp";

/// Why a sealed file cannot be written or believed.
#[derive(Debug)]
#[non_exhaustive]
pub enum SealedError {
    /// The file does not check out.
    Corrupt {
        /// The damaged file.
        file: String,
        /// Where the damaged part begins.
        offset: u64,
        /// What is wrong there.
        what: String,
    },
    /// The file is whole, but of another kind.
    WrongKind {
        /// The file.
        file: String,
        /// The kind that was asked for.
        expected: [u8; 4],
        /// The kind it has.
        found: [u8; 4],
    },
    /// The file is whole, but in a format that this version does not know.
    Version {
        /// The file.
        file: String,
        /// Its format version.
        found: u16,
    },
    /// The operating system refused.
    Io {
        /// What was being done.
        doing: &'static str,
        /// To which file.
        file: String,
        /// The reason given.
        source: io::Error,
    },
    /// The process has as many files open as it may. The file is the old one or the new one, and whole.
    NoDescriptors {
        /// The file that was to be opened.
        file: String,
    },
    /// The disk is full; the old file, if any, is untouched.
    Full {
        /// The file that was to be written.
        file: String,
    },
}

impl SealedError {
    /// Whether something is gone that was on disk: no other start, nor another version, finds it there again.
    pub fn is_loss(&self) -> bool {
        matches!(self, SealedError::Corrupt { .. })
    }

    pub(crate) fn io(doing: &'static str, file: &str, source: io::Error) -> SealedError {
        let file = file.to_string();
        if is_full(&source) {
            return SealedError::Full { file };
        }
        if lacks_descriptors(&source) {
            return SealedError::NoDescriptors { file };
        }
        SealedError::Io { doing, file, source }
    }
}

impl fmt::Display for SealedError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SealedError::Corrupt { file, offset, what } => {
                write!(f, "{file} is damaged at offset {offset}: {what}")
            }
            SealedError::WrongKind { file, expected, found } => write!(
                f,
                "{file} is of kind {:?}, not {:?}: files were mixed up; put back the right one",
                String::from_utf8_lossy(found),
                String::from_utf8_lossy(expected)
            ),
            SealedError::Version { file, found } => write!(
                f,
                "{file} has format version {found}, which this version does not know: start the newer version that \
                 wrote it"
            ),
            SealedError::Io { doing, file, source } => {
                write!(f, "{doing} {file} failed: {source}; check the disk, then start again")
            }
            SealedError::NoDescriptors { file } => write!(
                f,
                "{file} cannot be opened: there are as many open files and connections as there may be; allow more \
                 (ulimit -n), or try again"
            ),
            SealedError::Full { file } => write!(
                f,
                "the disk is full: {file} was not written, what was there before is untouched; free some space and \
                 try again"
            ),
        }
    }
}

impl Error for SealedError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            SealedError::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}

/// Writes a file, in place of the one that has this name. When this returns, the new one is durable;
/// after a crash on the way either the old or the new one is there, whole.
pub fn write(disk: &dyn Disk, name: &str, kind: [u8; 4], payload: &[u8]) -> Result<(), SealedError> {
    write_parts(disk, name, kind, [payload])
}

/// The same with a payload in two parts, or however many: they are large, and so are put together only here.
pub(crate) fn write_parts<const PARTS: usize>(
    disk: &dyn Disk,
    name: &str,
    kind: [u8; 4],
    payload: [&[u8]; PARTS],
) -> Result<(), SealedError> {
    let temp = format!("{name}{TEMP_SUFFIX}");
    let bytes = encode(kind, &payload);
    if let Err((doing, source)) = write_temp(disk, &temp, &bytes) {
        // What is left over is worth nothing and may be the last space there was.
        let _ = disk.remove(&temp);
        return Err(SealedError::io(doing, name, source));
    }
    disk.rename(&temp, name).map_err(|source| SealedError::io("putting in place", name, source))?;
    disk.sync_dir().map_err(|source| SealedError::io("syncing the directory of", name, source))
}

fn write_temp(disk: &dyn Disk, temp: &str, bytes: &[u8]) -> Result<(), (&'static str, io::Error)> {
    let file = disk.create(temp).map_err(|source| ("making", source))?;
    file.write_at(0, bytes).map_err(|source| ("writing", source))?;
    file.sync_data().map_err(|source| ("syncing", source))
}

/// Reads a file and checks every byte of it. `None` if there is no such file.
///
/// What was read is durable when this returns, even if the process that wrote it was stopped half way.
pub fn read(disk: &dyn Disk, name: &str, kind: [u8; 4]) -> Result<Option<Vec<u8>>, SealedError> {
    let bytes = match disk.read(name) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(SealedError::io("reading", name, source)),
    };
    let payload = decode(name, kind, bytes)?;
    disk.sync_dir().map_err(|source| SealedError::io("syncing the directory of", name, source))?;
    Ok(Some(payload))
}

fn encode(kind: [u8; 4], payload: &[&[u8]]) -> Vec<u8> {
    let payload_bytes: usize = payload.iter().map(|part| part.len()).sum();
    let payload_crc = payload.iter().fold(0, |crc, part| crc32c::crc32c_append(crc, part));
    let mut bytes = Vec::with_capacity(HEADER_BYTES + payload_bytes);
    bytes.extend_from_slice(&MAGIC.to_le_bytes());
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    bytes.extend_from_slice(&[0, 0]);
    bytes.extend_from_slice(&kind);
    bytes.extend_from_slice(&(payload_bytes as u64).to_le_bytes());
    bytes.extend_from_slice(&payload_crc.to_le_bytes());
    let crc = crc32c::crc32c(&bytes);
    bytes.extend_from_slice(&crc.to_le_bytes());
    payload.iter().for_each(|part| bytes.extend_from_slice(part));
    bytes
}

fn decode(name: &str, kind: [u8; 4], mut bytes: Vec<u8>) -> Result<Vec<u8>, SealedError> {
    let corrupt = |offset: usize, what: String| SealedError::Corrupt {
        file: name.to_string(),
        offset: offset as u64,
        what,
    };
    let Some(head) = bytes.get(..HEADER_BYTES) else {
        let what = format!("it ends after {} bytes, inside its header", bytes.len());
        return Err(corrupt(bytes.len(), what));
    };
    if u32_at(head, 0) != MAGIC {
        return Err(corrupt(0, "it does not begin like such a file".to_string()));
    }
    if u32_at(head, HEADER_CRC_AT) != crc32c::crc32c(&head[..HEADER_CRC_AT]) {
        return Err(corrupt(0, "its header fails its checksum".to_string()));
    }
    let version = u16::from_le_bytes([head[4], head[5]]);
    if version != VERSION {
        return Err(SealedError::Version { file: name.to_string(), found: version });
    }
    if head[6..8] != [0, 0] {
        return Err(corrupt(6, "it has unknown flags".to_string()));
    }
    let found = [head[8], head[9], head[10], head[11]];
    if found != kind {
        return Err(SealedError::WrongKind { file: name.to_string(), expected: kind, found });
    }
    let expected_bytes = u64_at(head, 12);
    let payload_crc = u32_at(head, 20);
    // In place: a snapshot is large, and a second one would be as large.
    bytes.drain(..HEADER_BYTES);
    let payload = bytes;
    let payload_bytes = payload.len() as u64;
    if payload_bytes != expected_bytes {
        let offset = HEADER_BYTES + payload_bytes.min(expected_bytes) as usize;
        let what = format!("it holds {payload_bytes} bytes after its header, not {expected_bytes}");
        return Err(corrupt(offset, what));
    }
    if crc32c::crc32c(&payload) != payload_crc {
        return Err(corrupt(HEADER_BYTES, "its content fails its checksum".to_string()));
    }
    Ok(payload)
}
