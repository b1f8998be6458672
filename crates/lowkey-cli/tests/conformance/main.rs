//! Conformance of the SDKs: one harness drives the same stories through every language, against real
//! clusters with fault proxies between.
//!
//! ```sh
//! cargo test -p lowkey-cli --test conformance -- --nocapture
//! LOWKEY_CONFORMANCE_ROUNDS=20 cargo test -p lowkey-cli --test conformance -- --nocapture
//! LOWKEY_CONFORMANCE_ONLY=python cargo test -p lowkey-cli --test conformance -- --nocapture
//! ```
//!
//! Each SDK ships a *driver*, a small program that does what it is told in JSON lines
//! (`conformance/DRIVER.md` at the root of the repository). Nothing here knows how an SDK works inside.
//!
//! A language whose tools are missing is skipped with a word, unless `LOWKEY_REQUIRE_ALL=1` insists.
//!
//! `languages` builds and starts the drivers, `driver` talks to one, `proxy` breaks what is between a
//! driver and a node, `stories` are what every SDK has to live through.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test may")]

mod driver;
#[allow(dead_code, reason = "the tests of single processes need more of it")]
#[path = "../process/harness.rs"]
mod harness;
mod languages;
mod proxy;
mod stories;

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::languages::{LANGUAGES, Language};
use crate::stories::{STORIES, Stage, Story};

fn rounds() -> usize {
    std::env::var("LOWKEY_CONFORMANCE_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(1)
}

/// All stories in all languages that are there, and a table of how they ended.
#[test]
fn every_sdk_keeps_the_same_promises() {
    let only = std::env::var("LOWKEY_CONFORMANCE_ONLY").unwrap_or_default();
    let wanted = |language: &&Language| only.is_empty() || only.split(',').any(|name| name == language.name);
    let mut ready = Vec::new();
    for language in LANGUAGES.iter().filter(wanted) {
        match language.prepare() {
            Ok(start) => ready.push((language, start)),
            Err(why) => {
                assert!(!languages::all_are_required(), "{}: {why}", language.name);
                eprintln!("skipped: the stories in {}: {why}", language.name);
            }
        }
    }
    let rounds = rounds();
    let mut failed = Vec::new();
    let mut table = String::new();
    for Story { name, play } in STORIES {
        table.push_str(&format!("{name:<44}"));
        for (language, start) in &ready {
            let mut good = 0;
            for _ in 0..rounds {
                let stage = Stage { language, start };
                match catch_unwind(AssertUnwindSafe(|| play(&stage))) {
                    Ok(()) => good += 1,
                    Err(_) => failed.push(format!("{name} in {}", language.name)),
                }
            }
            table.push_str(&format!("  {} {good}/{rounds}", language.name));
        }
        table.push('\n');
    }
    println!("{table}");
    assert!(failed.is_empty(), "{failed:#?}");
}
