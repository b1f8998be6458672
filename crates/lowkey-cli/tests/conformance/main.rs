//! Conformance of the SDKs: one harness drives the same stories through every language, against real
//! clusters with fault proxies between, plain and encrypted.
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
//! driver and a node, `papers` are certificates, `stories` are what every SDK has to live through, and
//! `crowds` is the same many times over, with figures.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test may")]

mod crowds;
mod driver;
#[allow(dead_code, reason = "the tests of single processes need more of it")]
#[path = "../process/harness.rs"]
mod harness;
mod languages;
mod papers;
mod proxy;
mod stories;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use crate::harness::{rounds, skip};
use crate::languages::{LANGUAGES, Language};
use crate::papers::Papers;
use crate::stories::{STORIES, Stage, Story};

/// A language, and the command that starts its driver.
type Ready = Vec<(&'static Language, Vec<String>)>;

/// All languages that are there. One test has them at a time: they measure how soon something is known.
fn languages() -> MutexGuard<'static, Ready> {
    static READY: LazyLock<Mutex<Ready>> = LazyLock::new(|| Mutex::new(prepare()));
    // A test that failed has broken nothing here.
    READY.lock().unwrap_or_else(PoisonError::into_inner)
}

fn prepare() -> Ready {
    let only = std::env::var("LOWKEY_CONFORMANCE_ONLY").unwrap_or_default();
    let wanted = |language: &&Language| only.is_empty() || only.split(',').any(|name| name == language.name);
    let mut ready = Vec::new();
    for language in LANGUAGES.iter().filter(wanted) {
        match language.prepare() {
            Ok(start) => ready.push((language, start)),
            Err(why) => skip(format!("the stories in {}: {why}", language.name)),
        }
    }
    ready
}

/// All stories in all languages that are there, and a table of how they ended.
fn play_all(papers: Option<&Papers>, rounds: usize) {
    let languages = languages();
    let mut failed = Vec::new();
    let how = if papers.is_some() { "encrypted" } else { "plain" };
    let mut table = format!("{how}, rounds that went well\n");
    for Story { name, play } in STORIES {
        table.push_str(&format!("{name:<44}"));
        for (language, start) in languages.iter() {
            let mut good = 0;
            for _ in 0..rounds {
                let stage = Stage { language, start, papers };
                match catch_unwind(AssertUnwindSafe(|| play(&stage))) {
                    Ok(()) => good += 1,
                    Err(_) => failed.push(format!("{name} in {}, {how}", language.name)),
                }
            }
            table.push_str(&format!("  {} {good}/{rounds}", language.name));
        }
        table.push('\n');
    }
    println!("{table}");
    assert!(failed.is_empty(), "{failed:#?}");
}

#[test]
fn every_sdk_keeps_the_same_promises() {
    play_all(None, rounds("LOWKEY_CONFORMANCE_ROUNDS", 1));
}

#[test]
fn every_sdk_keeps_the_same_promises_over_encrypted_connections() {
    play_all(Some(&Papers::new()), rounds("LOWKEY_CONFORMANCE_ROUNDS", 1));
}
