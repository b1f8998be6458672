//! A deterministic simulator: whole clusters of the real replica and the real log, with simulated
//! network, disks, clocks and clients, in one thread, from one seed.
//!
//! `world` is the loop of events; `node` drives the replicas of one machine, one a group, as the server does; `client` behaves as an
//! SDK must and `watcher` as a watch does; `plan` draws what a seed's world is like and `faults` breaks it; `invariants` says what
//! must always be true, one file each; `scenarios` are schedules played on purpose, and `words` tell it
//! all as a story. `audit` is what a machine keeps of grants that are over.
//!
//! Deliberately absent from a world: the wall clock, threads, and any chance but its own generator.

mod audit;
mod claim;
mod client;
mod clock;
mod faults;
mod forming;
mod invariants;
#[cfg(feature = "mutants")]
pub mod mutants;
mod node;
pub mod plan;
mod random;
pub mod scenarios;
mod tamper;
mod trace;
mod watcher;
mod words;
mod world;

/// The checks that need nothing of a simulated world: tests of real processes judge their histories by
/// these, too.
pub mod judge {
    pub use crate::claim::PlainClaim;
    pub use crate::invariants::{
        Check, Chronicle, Fencing, HoldSeen, LockAt, Tokens, Violation, WaitSeen, Write,
    };
    pub use crate::random::Random;
}

pub use invariants::Violation;
pub use tamper::tamper;
pub use world::{WorldSummary, run, run_with_groups, run_with_raft_tick};
