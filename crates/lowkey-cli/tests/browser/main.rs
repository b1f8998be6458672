//! The dashboard in a real browser, at real clusters.
//!
//! ```sh
//! cargo test -p lowkey-cli --test browser -- --nocapture
//! LOWKEY_SCREENSHOTS=docs/images cargo test -p lowkey-cli --test browser pictures
//! LOWKEY_BROWSER_LOCKS=100000 cargo test --release -p lowkey-cli --test browser many -- --nocapture
//! ```
//!
//! They need Chromium and chromedriver, which `.ci/browser` installs. Without them they are skipped with a word,
//! unless `LOWKEY_REQUIRE_ALL=1` insists. Tests wait for what the page shows; how long that took is printed, and
//! asserted with much to spare, since nobody knows how busy the machine is.
//!
//! - `driver.rs`: the browser; `stage.rs`: the cluster beside it
//! - `views.rs`: each view shows what the API says, and soon
//! - `access.rs`: who may see and do what
//! - `harm.rs`: hostile names, other origins, the page's policy
//! - `people.rs`: keyboard, labels, contrast, and the pictures in the documents
//! - `many.rs`: very many locks
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test may")]

mod access;
mod driver;
mod harm;
#[allow(dead_code, reason = "the tests of single processes need more of it")]
#[path = "../process/harness.rs"]
mod harness;
mod many;
mod people;
mod stage;
mod views;
