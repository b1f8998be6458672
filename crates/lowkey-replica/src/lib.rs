//! The sans-I/O replica of lowkey: `raft`, the state machine, and the leader's lease table.
//!
//! Input in, output out, one step at a time, on one thread. The server runs it on real disks, sockets
//! and clocks, the simulator on made-up ones: it is the same code.
//!
//! Where to look: [`Replica`] for how it is driven; `lease_table` for the rules of time (R1–R4, R8) and
//! `wait_table` for those of waiting (R7, R10); `rounds` for how a quorum is asked once for many;
//! `proposals` for what a caller may be told; `reads` for what may be asked; `members` for how nodes come and go;
//! `snapshots` for how the log stays short; `recovery` for what a crash may leave behind; `survivor` and
//! `quarantine` for how a cluster begins anew that lost its quorum for good; `history` for what watches resume from.
//!
//! Deliberately absent: sockets, files, async, clocks and random numbers. Time and the seed come in
//! as values, and `clippy.toml` beside the manifest keeps it so.

mod appends;
mod applying;
mod config;
mod elections;
mod entries;
mod guard;
mod history;
mod input;
mod lease_table;
mod log_store;
mod members;
mod mix;
mod mutants;
mod output;
mod proposals;
mod proposing;
mod quarantine;
mod reads;
mod recovery;
mod replica;
mod rounds;
mod snapshots;
mod status;
mod survivor;
mod time;
mod transfer;
mod wait_table;
mod waiting;
pub mod wire;

pub use config::Config;
pub use guard::{Divergence, Report};
pub use history::{Compacted, Filter, History, Page, Position, Recorded};
pub use input::{CallId, DiskRoom, Input, Request};
pub use output::{CannotLead, Failure, LogRecord, Output, Persist, RecordKind, Response, SnapshotFile, Turn};
pub use raft::eraftpb::{Entry, EntryType, Message, MessageType};
pub use reads::{Query, Remaining};
pub use recovery::{Found, Founding, RecoverError, found};
pub use replica::{Fatal, Replica};
pub use snapshots::{JobError, ReceivedSnapshot, SnapshotJob};
pub use status::{MemberStatus, Role, Status};
pub use survivor::{Survivor, begin_anew};
pub use time::{MILLISECOND, Nanos};
