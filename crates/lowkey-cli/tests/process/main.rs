//! Real processes: the binary as people run it, on a real disk, with real signals.
//!
//! Every test starts nodes of its own, on ports of its own, in a folder of its own. Tests wait for
//! conditions; where a duration is part of a promise it is measured and printed, and only checked
//! against a bound that a loaded machine keeps too.
//!
//! The SDK's tests against real nodes are here too, in `sdk`: cargo builds the binary for the tests of its own crate
//! alone. Tests in another crate would find no binary, or an old one.
#![allow(clippy::unwrap_used, reason = "a test may")]

mod access;
mod audit;
mod backups;
mod cli;
mod clients;
mod cluster;
mod disks;
mod documents;
#[allow(dead_code, reason = "chaos needs more of it")]
#[path = "../chaos/equipment.rs"]
mod equipment;
#[allow(dead_code, reason = "the browser's tests need more of it")]
mod harness;
#[allow(dead_code, reason = "chaos needs more of it")]
#[path = "../chaos/net.rs"]
mod net;
#[path = "../conformance/papers.rs"]
mod papers;
mod refusals;
mod sdk;
mod secure;
