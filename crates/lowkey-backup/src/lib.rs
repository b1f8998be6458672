//! Backups in object storage, and the epochs by which a restore never repeats a token.
//!
//! ```text
//! {url}/{cluster}/{time}-{revision}/g{group}.snap      a snapshot of each group, as a node has it on disk
//! {url}/{cluster}/{time}-{revision}/manifest.json      written last: without it, there is no backup
//! {url}/epochs/{epoch}.json                            who took that epoch: one series for all clusters
//! ```
//!
//! What must always be true:
//!
//! - **Every byte counts.** The manifest seals itself, and names size and SHA-256 of each file. [`Store::fetch`] is the
//!   only way to what a backup holds, and it makes all checks of a node's start.
//! - **An epoch is claimed once**, by a conditional create ([`Store::claim`]). A store that ignores the condition is
//!   refused before anything is claimed there.
//! - **Only a verified backup lets older ones go.** [`Store::retain`] wants a [`Verified`], which nothing but
//!   [`Store::fetch`] makes.
//!
//! Where to look: `store.rs` for URLs and requests, `manifest.rs` for the one format, `catalog.rs` for what there is,
//! `write.rs`, `fetch.rs` and `retain.rs` for backups, `claim.rs` for epochs.
//!
//! Deliberately absent: when backups are made, and what becomes of a state that was fetched. That is for the server.

mod catalog;
mod claim;
mod error;
mod fetch;
mod manifest;
mod retain;
mod store;
mod write;

pub use catalog::{Backup, BackupId, Catalog};
pub use claim::{ClaimFor, Claimed};
pub use error::BackupError;
pub use fetch::{Fetched, Verified};
pub use manifest::{GroupFile, Manifest, MemberAddress};
pub use retain::Retained;
pub use store::{Store, StoreUrl};
pub use write::{GroupSnapshot, Written};

/// How far something is: bytes done, and bytes in all.
pub type Progress<'a> = &'a (dyn Fn(u64, u64) + Send + Sync);

/// For those who do not want to know.
pub fn no_progress(_done: u64, _all: u64) {}
