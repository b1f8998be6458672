//! The sans-I/O replica of lowkey: `raft`, the state machine, and the leader's lease table.
//!
//! Input in, output out, one step at a time, on one thread. The server runs it on real disks, sockets
//! and clocks, the simulator on made-up ones: it is the same code.
//!
//! Where to look:
//! - [`Replica`] for how it is driven, and its folder for how commands come into the log and out of it, and how nodes
//!   come, go and lead;
//! - `lead` for what only a leader has: deadlines (R1–R4, R8), waits (R7, R10), and rounds, in which a quorum is
//!   asked once for many;
//! - `log` for the log in memory, `snapshots` for how it stays short, `recovery` for what a crash may leave behind, and
//!   how a cluster that lost its quorum begins anew;
//! - `forming` for how several empty nodes found one cluster together, and never a second one;
//! - `guard` for whether all replicas have the same state;
//! - `reads` for what may be asked, `history` for what watches resume from, `wire` for the bytes.
//!
//! `docs/internals/request.md` follows one request through all of this, and `docs/internals/time.md` has rules R1 to R10.
//!
//! Deliberately absent: sockets, files, async, clocks and random numbers. Time and the seed come in
//! as values, and `clippy.toml` beside the manifest keeps it so.

mod config;
pub mod forming;
mod guard;
mod history;
mod input;
mod lead;
mod log;
mod mutants;
mod output;
mod raft_tick;
mod reads;
mod recovery;
mod replica;
mod snapshots;
mod time;
pub mod wire;

pub use config::Config;
pub use guard::{Divergence, Report};
pub use history::{Compacted, Filter, History, Page, Position, Recorded};
pub use input::{CallId, DiskRoom, Input, Request};
pub use lowkey_record::{Record, RecordKind};
pub use output::{CannotLead, Failure, Output, Persist, Renewal, Response, SnapshotFile, Turn};
pub use raft::eraftpb::{Entry, EntryType, Message, MessageType};
pub use raft_tick::RaftTick;
pub use reads::{Query, Remaining};
pub use recovery::{Found, Founding, RecoverError, SavedState, Survivor, begin_anew, found, found_together};
pub use replica::{Fatal, MemberStatus, Replica, Role, Status};
pub use snapshots::{JobError, ReceivedSnapshot, SnapshotJob, may_save_snapshot};
pub use time::{MILLISECOND, Nanos};
