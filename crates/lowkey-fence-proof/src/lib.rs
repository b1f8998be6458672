//! Whether `lowkey-fence` keeps late writes out, on real servers.
//!
//! A resource here keeps a log of who wrote to it. From that log, and from what the writers were told, every
//! experiment judges whether a write came late:
//!
//! - `rounds`: two holders; the first stops between its check and its write while the second claims and writes
//! - `storm`: many writers with random tokens and modes, some of which crash
//! - `lockset`: a set that is read, and written back under a lock, by clients that are paused
//! - `cost`: what a fenced transaction costs more than another
//!
//! Each also runs against a naive version, which checks the token in one step and writes in the next, and must be
//! found to lose: an experiment that cannot fail shows nothing.
//!
//! ```sh
//! cargo run -p lowkey-fence-proof --features servers -- rounds postgres --rounds 1000
//! ```
#![cfg(feature = "servers")]

pub mod cost;
pub mod lockset;
pub mod rounds;
pub mod servers;
pub mod stores;
pub mod storm;

/// Whatever goes wrong in an experiment. It is told to a person, and ends it.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;
