//! Conformance of the SDKs: one harness drives the same stories through every language, against real
//! clusters with fault proxies between: plain, encrypted, and encrypted where access is required.
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
//! driver and a node, `papers` are certificates, `access` closes clusters, `stories` are what every SDK has
//! to live through, and `crowds` is the same many times over, with figures. `beliefs` has programs in all
//! languages contend with each other, and what they believed judged by the judge of the chaos tests.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test may")]

mod access;
mod beliefs;
mod crowds;
mod driver;
#[allow(dead_code, reason = "the tests of single processes need more of it")]
#[path = "../process/harness.rs"]
mod harness;
#[allow(dead_code, reason = "the chaos tests need more of it")]
#[path = "../chaos/history.rs"]
mod history;
#[allow(dead_code, reason = "the chaos tests need more of it")]
#[path = "../chaos/judge.rs"]
mod judge;
mod languages;
mod papers;
mod proxy;
mod stories;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::access::Pass;
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

/// What the stories are played on.
#[derive(Clone, Copy)]
struct Scenery<'a> {
    name: &'static str,
    papers: Option<&'a Papers>,
    requires_access: bool,
}

/// Stories in all languages that are there, and a table of how they ended.
fn play_all(scenery: Scenery<'_>, rounds: usize, is_played: impl Fn(&Story) -> bool) {
    let languages = languages();
    let mut failed = Vec::new();
    let mut table = format!("{}, rounds that went well\n", scenery.name);
    let began = Instant::now();
    for story in STORIES.iter().filter(|story| is_played(story)) {
        table.push_str(&format!("{:<44}", story.name));
        for (language, start) in languages.iter() {
            let mut good = 0;
            for _ in 0..rounds {
                let pass = scenery.requires_access.then(Pass::new);
                let stage = Stage { language, start, papers: scenery.papers, pass: pass.as_ref() };
                match catch_unwind(AssertUnwindSafe(|| (story.play)(&stage))) {
                    Ok(()) => good += 1,
                    Err(_) => failed.push(format!("{} in {}, {}", story.name, language.name, scenery.name)),
                }
            }
            table.push_str(&format!("  {} {good}/{rounds}", language.name));
        }
        table.push('\n');
    }
    println!("{table}in {} s", began.elapsed().as_secs());
    assert!(failed.is_empty(), "{failed:#?}");
}

#[test]
fn every_sdk_keeps_the_same_promises() {
    let scenery = Scenery { name: "plain", papers: None, requires_access: false };
    play_all(scenery, rounds("LOWKEY_CONFORMANCE_ROUNDS", 1), |_| true);
}

#[test]
fn every_sdk_keeps_the_same_promises_over_encrypted_connections() {
    let papers = Papers::new();
    let scenery = Scenery { name: "encrypted", papers: Some(&papers), requires_access: false };
    play_all(scenery, rounds("LOWKEY_CONFORMANCE_ROUNDS", 1), |_| true);
}

/// All stories where a number of rounds is given; otherwise those that wait for no time to pass.
#[test]
fn every_sdk_keeps_the_same_promises_where_access_is_required() {
    let papers = Papers::new();
    let scenery =
        Scenery { name: "encrypted, access required", papers: Some(&papers), requires_access: true };
    let rounds = rounds("LOWKEY_CONFORMANCE_ROUNDS", 0);
    play_all(scenery, rounds.max(1), |story| rounds > 0 || story.is_quick);
}
