//! What can happen to a replica, and what can be asked of it.

use lowkey_core::{Caller, Command, Holds, LeaseId, MemberId, NodeName, WaitTime};
use raft::eraftpb;

use crate::guard::Report;
use crate::reads::Query;
use crate::snapshots::ReceivedSnapshot;

/// A caller that waits for an answer; the caller's side chooses the number and never reuses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId(pub u64);

/// Something that happened.
#[derive(Debug)]
pub enum Input {
    /// A tick of 10 ms passed; missed ones are not made up for, since a burst of ticks would look
    /// like a lost quorum.
    Tick,
    /// A message from another replica of the group, as decoded by [`crate::wire::decode_message`].
    Message(Box<eraftpb::Message>),
    /// What another replica says of its state.
    Report(Report),
    /// A message that names a snapshot, and the snapshot.
    Snapshot(Box<ReceivedSnapshot>),
    /// A caller asks for something: who it is, as far as that is proven.
    Request(CallId, Caller, Request),
    /// A caller is gone. If it waits for a lock, or is about to, its place is kept for a while (R10), and
    /// it gets no answer any more. If it was answered already, nothing happens.
    CallerGone(CallId),
    /// A message could not be sent.
    Unreachable(MemberId),
    /// A snapshot was handed to a peer, or could not be.
    SnapshotSent {
        /// The peer.
        to: MemberId,
        /// Whether it took the snapshot.
        delivered: bool,
    },
    /// The snapshot of this index is on disk: the log before it may go.
    SnapshotSaved {
        /// The snapshot's index.
        index: u64,
        /// The size of its payload.
        size_bytes: u64,
    },
    /// The snapshot of this index could not be made or written; the next one is tried in due course.
    SnapshotFailed {
        /// The snapshot's index.
        index: u64,
    },
    /// The file of the snapshot of this index is damaged or gone. If it is the newest, another one is made.
    SnapshotLost {
        /// The snapshot's index.
        index: u64,
    },
    /// Somebody wants a snapshot of what is applied now: for a backup. It is made beside the turns, also of a small state.
    /// While another one is being made, or after a failure, nothing happens: ask again.
    MakeSnapshot,
    /// How much room the log has on its disk.
    Disk(DiskRoom),
    /// Hand the lead to another voter, if there is one and this is the leader.
    HandOver,
}

/// How much room the log has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskRoom {
    /// Enough.
    Ample,
    /// The disk is full: what is left is kept for releases and for ends of leases.
    Reserve,
    /// Not even that is left: nothing more is written.
    Exhausted,
}

/// What a caller may ask for.
#[derive(Clone, Debug, PartialEq)]
pub enum Request {
    /// A change of the state.
    Command(Command),
    /// An acquire that waits for its turn, for so long.
    Wait {
        /// The acquire.
        command: Command,
        /// How long.
        wait: WaitTime,
    },
    /// R2: a longer life for a lease.
    Renew {
        /// Which.
        lease: LeaseId,
        /// What its client believes that it holds, if that was told.
        holds: Option<Holds>,
    },
    /// R2: longer lives for many leases, which are asked for and answered together. Those whose end is under way are
    /// not waited for.
    RenewMany(Vec<(LeaseId, Option<Holds>)>),
    /// A look at the state, as it is when the question arrives or later.
    Read(Query),
    /// A look at the state as this replica knows it, which may be old.
    ReadStale(Query),
    /// Give the lead to a node.
    Transfer {
        /// Its name.
        to: NodeName,
    },
}
