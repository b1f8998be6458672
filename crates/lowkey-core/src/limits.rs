//! Every limit of the service, in one file.
//!
//! The edge refuses what is beyond them, so that inside a value of the right type is a value within
//! its limit. Changing one of these changes what replicas decide, unless it says otherwise: treat it as
//! a change of format.

/// Longest lock name, in bytes of UTF-8.
pub const LOCK_NAME_BYTES_MAX: usize = 512;
/// Most segments of a name that somebody asks to lock. Only the edge knows this limit: names with more
/// may stand in older logs and snapshots, and are applied, read and released like any other.
pub const LOCK_NAME_SEGMENTS_MAX: usize = 32;
/// Longest owner id, in bytes of UTF-8.
pub const OWNER_ID_BYTES_MAX: usize = 256;
/// Longest request id, in bytes of UTF-8.
pub const REQUEST_ID_BYTES_MAX: usize = 64;
/// Shortest time to live of a lease.
pub const TTL_SECONDS_MIN: i64 = 1;
/// Longest time to live of a lease.
pub const TTL_SECONDS_MAX: i64 = 600;
/// Longest wait for a lock: 24 hours.
pub const WAIT_MS_MAX: i64 = 86_400_000;
/// Shortest limit of how long a grant may last, where it has one.
pub const MAX_HOLD_SECONDS_MIN: i64 = 1;
/// Longest limit of how long a grant may last: a week. It ends what hangs, so it must not be shorter than the longest
/// job that works.
pub const MAX_HOLD_SECONDS_MAX: i64 = 604_800;
/// Longest value that travels with a grant, in bytes.
pub const VALUE_BYTES_MAX: usize = 4096;
/// Largest request that any port accepts, in bytes.
pub const REQUEST_BYTES_MAX: usize = 64 * 1024;
/// Longest node name, in bytes of UTF-8.
pub const NODE_NAME_BYTES_MAX: usize = 128;
/// Nodes that one cluster may have, those that are only expected included: each costs every other one a connection.
pub const MEMBERS_MAX: usize = 15;
/// Groups that one cluster may have, those that are only planned included: each costs every node a replica.
pub const GROUPS_MAX: usize = 64;
/// Invitations that are kept at a time, used ones included.
pub const INVITATIONS_MAX: usize = 64;
/// Longest time for which an invitation is good: a day.
pub const INVITATION_SECONDS_MAX: u64 = 86_400;
/// Principals that the access table may have.
pub const PRINCIPALS_MAX: usize = 1_000;
/// Tokens that one principal may have at a time.
pub const TOKENS_PER_PRINCIPAL_MAX: usize = 32;
/// Names in certificates that may be one principal's.
pub const NAMES_PER_PRINCIPAL_MAX: usize = 32;
/// Paths on which one principal may have grants.
pub const GRANTS_PER_PRINCIPAL_MAX: usize = 256;
/// Longest name of a principal, in bytes of UTF-8.
pub const PRINCIPAL_NAME_BYTES_MAX: usize = 128;
/// Longest name in a certificate that may be a principal's, in bytes of UTF-8.
pub const CERTIFICATE_NAME_BYTES_MAX: usize = 256;
/// Longest `host:port` that a node may advertise, in bytes.
pub const ADDRESS_BYTES_MAX: usize = 256;
/// Longest URL of a store for backups, in bytes.
pub const BACKUP_URL_BYTES_MAX: usize = 1024;
/// Longest time from one backup to the next: 31 days.
pub const BACKUP_EVERY_SECONDS_MAX: u32 = 2_678_400;
/// Backups of a cluster that may be kept.
pub const BACKUP_KEEP_MAX: u32 = 100_000;
/// Waiters that one lock may have at a time.
pub const WAITERS_PER_LOCK_MAX: usize = 10_000;
/// Waits that one `CancelWait` entry may name, so that no log entry grows without bound.
pub const WAITS_PER_CANCEL_MAX: usize = 4096;
/// Locks that one lease may hold or wait for at a time.
pub const LOCKS_PER_LEASE_MAX: usize = 10_000;
/// Operations of one lease that may be under way at a time. Half of [`REQUESTS_PER_LEASE_KEPT`], so
/// that what may still be retried is still remembered.
pub const IN_FLIGHT_PER_LEASE_MAX: usize = 128;
/// Request ids that each lease remembers, with their replies.
pub const REQUESTS_PER_LEASE_KEPT: usize = 256;
/// Request ids that made or ended leases and are remembered, with their replies.
pub const LEASE_REQUESTS_KEPT: usize = 100_000;
/// Leases that one `Expire` entry may name, so that no log entry grows without bound.
pub const LEASES_PER_EXPIRE_MAX: usize = 4096;
/// Grants that one `EndHolds` entry may name. Each comes with its lock's name, so that an entry has 140 KB at most.
pub const HOLDS_PER_END_MAX: usize = 256;
/// Changes that a node remembers for watches to resume from. Each node has its own memory of them:
/// this one decides nothing.
pub const HISTORY_EVENTS_MAX: usize = 100_000;
