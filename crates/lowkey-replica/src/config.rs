//! What a replica is told once.

use lowkey_core::{COMMAND_VERSION, GroupId, MemberId};

use crate::lead::QUARANTINE_NANOS;
use crate::raft_tick::RaftTick;
use crate::time::MILLISECOND;

/// What a replica is told once, when it is made.
#[derive(Clone, Debug)]
pub struct Config {
    /// The group's id, on every message.
    pub group: GroupId,
    /// This node's id in the group.
    pub member: MemberId,
    /// Where all randomness comes from.
    pub seed: u64,
    /// The wall clock, in milliseconds since 1970, at the beginning of the clock whose readings come with
    /// the inputs. For display only.
    pub unix_ms_at_zero: u64,
    /// The command set that this node understands.
    pub command_version: u32,
    /// How far apart `raft` sees ticks while all is calm; the same on all nodes.
    pub raft_tick: RaftTick,
    /// Leases that may exist at a time.
    pub leases_max: usize,
    /// How long after its deadline a lease is ended; later is always safe.
    pub expiry_grace_nanos: u64,
    /// How long a cluster that began anew grants nothing; shorter than the longest time to live is not safe.
    pub quarantine_nanos: u64,
    /// Entries after which a snapshot is made; more if the last one was large.
    pub snapshot_entries: u64,
    /// For each so many bytes that the last snapshot had, the next is made an entry later.
    pub snapshot_bytes_per_entry: u64,
    /// Bytes of entries after which a snapshot is made; more if the last one had more than half of that.
    pub snapshot_bytes: u64,
    /// A snapshot that was not larger than this, with not much logged since, is made of the state itself the next time, at
    /// once; a larger one of the snapshot before it and the log.
    pub snapshot_at_once_bytes: u64,
    /// Entries that stay in the log behind a snapshot, for peers that are a little behind.
    pub tail_entries: u64,
    /// Entries before these that a leader keeps for a peer that is slow but not gone.
    pub slow_entries_max: u64,
    /// Bytes of such entries that it keeps.
    pub slow_bytes_max: u64,
    /// Entries after which the replicas compare their states.
    pub checkpoint_entries: u64,
    /// And the time after which they do, if there were any.
    pub checkpoint_nanos: u64,
}

impl Config {
    /// The usual settings of a node.
    pub fn new(group: GroupId, member: MemberId, seed: u64) -> Self {
        Self {
            group,
            member,
            seed,
            unix_ms_at_zero: 0,
            command_version: COMMAND_VERSION,
            raft_tick: RaftTick::default(),
            leases_max: 1_000_000,
            expiry_grace_nanos: 20 * MILLISECOND,
            quarantine_nanos: QUARANTINE_NANOS,
            snapshot_entries: 10_000,
            snapshot_bytes_per_entry: 64,
            snapshot_bytes: 64 * 1024 * 1024,
            snapshot_at_once_bytes: 1536 * 1024,
            tail_entries: 1_000,
            slow_entries_max: 100_000,
            slow_bytes_max: 64 * 1024 * 1024,
            checkpoint_entries: 1_000,
            checkpoint_nanos: 1_000 * MILLISECOND,
        }
    }
}
