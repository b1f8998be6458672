//! What can go wrong with the log, said so that the reader knows what to do.

use std::error::Error;
use std::fmt;
use std::io;

use lowkey_record::GroupId;

use crate::disk::{is_full, lacks_descriptors};
use crate::sealed::SealedError;

/// Why the log cannot do what it was asked.
#[derive(Debug)]
#[non_exhaustive]
pub enum WalError {
    /// There is no log to open.
    Missing,
    /// There is a log already where one was to be founded.
    Exists {
        /// A file of that log.
        file: String,
    },
    /// A segment that the log needs is not there.
    MissingSegment {
        /// The segment's file name.
        file: String,
    },
    /// Something that was durable does not check out.
    Corrupt {
        /// The damaged file.
        file: String,
        /// Where the damaged part begins.
        offset: u64,
        /// What is wrong there.
        what: String,
    },
    /// A file belongs to another node.
    Foreign {
        /// The file.
        file: String,
        /// Where the other node's batch lies.
        offset: u64,
        /// The identity it was written under.
        found: [u8; 16],
    },
    /// A file was written in a format that this version does not know.
    Version {
        /// The file.
        file: String,
        /// Where the unknown part begins.
        offset: u64,
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
    /// The disk is full. Nothing was written, and the log can go on when there is space.
    Full,
    /// The process has as many files open as it may. Nothing was written, and the log can go on when some are closed.
    NoDescriptors,
    /// The records do not fit into one segment. Nothing was written.
    TooLarge {
        /// What they would take.
        bytes: u64,
        /// What there is at most.
        limit_bytes: u64,
    },
    /// A record does not continue its group's log. Nothing was written.
    OutOfOrder {
        /// The group.
        group: GroupId,
        /// The index of the record.
        index: u64,
        /// What the index had to be.
        what: String,
    },
    /// The options make no sense. Nothing was written.
    Options {
        /// Which, and what is allowed.
        what: String,
    },
    /// An earlier write or sync failed; nothing is known about what is on disk.
    Poisoned,
}

impl WalError {
    pub(crate) fn io(doing: &'static str, file: &str, source: io::Error) -> WalError {
        WalError::Io { doing, file: file.to_string(), source }
    }

    /// Like [`WalError::io`], for what may fail for want of space before anything was written.
    pub(crate) fn io_or_full(doing: &'static str, file: &str, source: io::Error) -> WalError {
        match source {
            source if is_full(&source) => WalError::Full,
            source if lacks_descriptors(&source) => WalError::NoDescriptors,
            source => WalError::io(doing, file, source),
        }
    }

    /// Whether something is gone that was on disk: no other start, nor another version, finds it there again.
    pub fn is_loss(&self) -> bool {
        matches!(self, WalError::Missing | WalError::MissingSegment { .. } | WalError::Corrupt { .. })
    }

    pub(crate) fn corrupt(file: &str, offset: u64, what: impl Into<String>) -> WalError {
        WalError::Corrupt { file: file.to_string(), offset, what: what.into() }
    }
}

impl From<SealedError> for WalError {
    fn from(error: SealedError) -> WalError {
        match error {
            SealedError::Corrupt { file, offset, what } => WalError::Corrupt { file, offset, what },
            SealedError::WrongKind { file, .. } => {
                WalError::Corrupt { file, offset: 0, what: "it is a file of another kind".to_string() }
            }
            SealedError::Version { file, found } => WalError::Version { file, offset: 0, found },
            SealedError::Io { doing, file, source } => WalError::Io { doing, file, source },
            SealedError::Full { .. } => WalError::Full,
            SealedError::NoDescriptors { .. } => WalError::NoDescriptors,
        }
    }
}

impl fmt::Display for WalError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WalError::Missing => write!(f, "there is no log: if this node had one it is lost"),
            WalError::Exists { file } => write!(
                f,
                "{file} is there already: a new log is founded only in a directory without one; start without \
                 founding, or choose an empty directory"
            ),
            WalError::MissingSegment { file } => write!(
                f,
                "log segment {file} is missing: records that were synced are gone; bring the file back if somebody \
                 moved it"
            ),
            WalError::Corrupt { file, offset, what } => write!(
                f,
                "{file} is damaged at offset {offset}: {what}; this was on disk and may not be skipped"
            ),
            WalError::Foreign { file, offset, found } => {
                write!(f, "{file} belongs to another node (identity ")?;
                for byte in found {
                    write!(f, "{byte:02x}")?;
                }
                write!(
                    f,
                    ", at offset {offset}): data directories were mixed up; give each node back its own files"
                )
            }
            WalError::Version { file, offset, found } => write!(
                f,
                "{file} has format version {found} at offset {offset}, which this version does not know: start the \
                 newer version that wrote it"
            ),
            WalError::Io { doing, file, source } => {
                write!(f, "{doing} {file} failed: {source}; check the disk, then start again")
            }
            WalError::Full => write!(
                f,
                "the disk is full: the next log segment could not be made, nothing was written; free some space and \
                 it goes on"
            ),
            WalError::NoDescriptors => write!(
                f,
                "the next log segment could not be made: there are as many open files and connections as there may \
                 be; nothing was written; allow more (ulimit -n), or it goes on when some are closed"
            ),
            WalError::TooLarge { bytes, limit_bytes } => write!(
                f,
                "a batch of {bytes} bytes does not fit into a log segment (at most {limit_bytes}): nothing was \
                 written; use smaller records or larger segments"
            ),
            WalError::OutOfOrder { group, index, what } => write!(
                f,
                "index {index} does not continue the log of group {group}: {what}; nothing was written, this is a \
                 defect of the program"
            ),
            WalError::Options { what } => write!(f, "the log's options are wrong: {what}"),
            WalError::Poisoned => write!(
                f,
                "an earlier write or sync of the log failed, so nothing is known about the disk: end the process \
                 and start it again"
            ),
        }
    }
}

impl Error for WalError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        match self {
            WalError::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}
