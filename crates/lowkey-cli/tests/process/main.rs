//! Real processes: the binary as people run it, on a real disk, with real signals.
//!
//! Every test starts nodes of its own, on ports of its own, in a folder of its own. Tests wait for
//! conditions; where a duration is part of a promise it is measured and printed, and only checked
//! against a bound that a loaded machine keeps too.
#![allow(clippy::unwrap_used, reason = "a test may")]

mod bad_bytes;
mod bad_input;
mod bench;
mod broken_output;
mod browsers;
mod cli;
mod clients;
mod commands;
mod damage;
mod damaged_follower;
mod drift;
mod ease;
mod electing;
#[allow(dead_code, reason = "chaos needs more of it")]
#[path = "../chaos/equipment.rs"]
mod equipment;
mod expiry;
mod failing_disks;
mod failover;
mod guarding;
mod guards;
mod harness;
mod kill_and_restart;
mod limits;
mod log_lines;
mod members;
mod metrics;
mod pause;
mod quick_start;
mod readme;
mod recover;
mod running;
mod scopes;
mod sdk;
mod snapshots;
mod start_errors;
mod stop;
mod three_nodes;
mod waiting;
mod watching;
