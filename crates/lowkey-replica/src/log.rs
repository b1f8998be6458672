//! The log: how `raft` reads it, what of it leaves for a peer, and what of it reaches the disk.
//!
//! `store.rs` is the log as `raft` sees it, in memory; `entries.rs` how it is kept there; `appends.rs` how entries leave
//! for a peer; `records.rs` what the durable log gets.

mod appends;
mod entries;
pub(crate) mod records;
mod store;

pub(crate) use self::appends::Appends;
pub(crate) use self::entries::SharedEntries;
pub(crate) use self::store::{LogStore, entry_bytes};
