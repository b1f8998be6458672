//! The durable log of one node.
//!
//! A node keeps one log for all its groups. It is written in *batches*: one batch, one write, one
//! `fdatasync`. What `sync` has confirmed is there after every crash; what was damaged on the disk
//! afterwards is found and refused, never skipped. The second half is why this log exists: a log
//! that quietly forgets a synced record makes a node vote twice or forget a grant.
//!
//! What must always be true:
//!
//! - After a crash the log holds a prefix of the batches written, and at least all that were synced.
//! - What was given back once is there from then on, even if it was read from the page cache after a
//!   sync that failed.
//! - No byte is given back that was not written: everything is behind a CRC32C.
//! - Damage to anything that a later batch, or the clean-stop marker, calls synced stops the start,
//!   with the file and the offset. Only the very last batch after a crash cannot be told from a torn one.
//! - A log is founded once, with [`Wal::create`]. [`Wal::open`] never makes one up.
//! - An error while writing or syncing is final: the log takes nothing more, and the process must end.
//!
//! Where to go next: [`Wal`] is the write-ahead log; `recovery.rs` decides between a torn tail and
//! corruption, and `repair.rs` makes what it found durable; `batch.rs` knows the bytes, which
//! `docs/internals/log-format.md` draws. [`Disk`] is all that is asked of the world, with [`RealDisk`] and
//! the failing, forgetting [`SimDisk`] behind it. [`sealed`] keeps small whole files, [`snapshots`] uses it.
//!
//! What is deliberately absent: this crate reads no clock, starts no thread, and does not know what
//! its records mean.

mod batch;
mod chain;
mod clean_stop;
mod disk;
mod error;
mod group;
mod needs;
mod real_disk;
mod record;
mod recovery;
mod repair;
pub mod sealed;
mod segment;
mod sim_disk;
pub mod snapshots;
mod spare;
mod wal;

pub use disk::{Disk, DiskFile, lacks_descriptors};
pub use error::WalError;
pub use lowkey_record::{GroupId, Record, RecordKind, RecordKind as Kind};
pub use real_disk::RealDisk;
pub use record::GroupLog;
pub use recovery::{Cut, Recovered};
pub use sealed::SealedError;
pub use sim_disk::{Counts, Latency, SimDisk};
pub use spare::{SegmentJob, SegmentMade};
pub use wal::{Options, Wal};

/// True if a file of this name is the work of this crate: a segment, a snapshot, the clean-stop mark,
/// or one of them while it was being made. Sealed files of others' choosing do not count.
pub fn owns(name: &str) -> bool {
    let whole = name.strip_suffix(sealed::TEMP_SUFFIX).unwrap_or(name);
    segment::parse_name(whole).is_some() || whole == segment::CLEAN_STOP || snapshots::is_name(whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_of_the_log_and_snapshots_are_ours() {
        for ours in ["segment-0000000000000001.log", "segment-0000000000000002.log.tmp", "clean-stop"] {
            assert!(owns(ours), "{ours}");
        }
        assert!(owns(&snapshots::file_name(GroupId::ROOT, 7)));
        for not_ours in ["thesis.txt", "node", "segment-1.log", "notes.tmp", "snapshot-old.snap"] {
            assert!(!owns(not_ours), "{not_ours}");
        }
    }
}
