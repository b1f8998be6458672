//! What a node keeps of grants that are over, for those who ask afterwards: who held it, when, why did it end?
//!
//! A *row* is one grant, written once, when it ends; what is held now is in the replicated state. Rows are in SQLite
//! files in the data directory, written by a [`Recorder`] on a thread of its own. What must always be true:
//!
//! - **No lock waits for it.** The replica's driver puts what it applied into a bounded queue, and goes on. If the disk is
//!   full, the files are deleted or the thread is slow, rows are lost, and nothing else.
//! - **No hole is hidden.** Every file says up to which revision it has everything. What is not there is a declared
//!   [`Gap`], written in the transaction of what comes behind it.
//! - **No row is there twice.** A node that starts applies again what its newest snapshot does not cover. What a file
//!   has already is passed over, by the revision up to which it has everything.
//! - **No hole by a crash.** A snapshot file is saved only when the rows up to its index are on disk: see
//!   `lowkey_replica::may_save_snapshot`. The entries behind it are applied again.
//!
//! Files are of some 64 MiB, and are deleted whole, by age and by their total size.
//!
//! - `row.rs`: what is kept of a grant, and what is not known
//! - `file.rs`: one SQLite file
//! - `recorder.rs`: the queue and the thread
//! - `shelf.rs`: all files of a node: which there are, and which are too old
//! - `reader.rs`: questions
//!
//! Deliberately absent: Raft, the network, and every decision about locks.

mod file;
mod reader;
mod recorder;
mod row;
mod shelf;

pub use file::AuditError;
pub use reader::{Page, Query, Reader};
pub use recorder::{Feed, Options, Recorder, Standing};
pub use row::{Cause, Gap, GapCause, Happening, HappeningKind, Position, Row};
pub use shelf::append_recovered;
