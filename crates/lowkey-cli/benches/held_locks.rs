//! What an acquire costs while many locks are held, seen by a client of a real node.
//!
//! ```sh
//! cargo bench -p lowkey-cli --bench held_locks
//! ```
//!
//! Pairs of acquire and release, one after the other, are measured with few locks held, with 100,000, and with few
//! again: the ratio is to the mean of the two, so that a machine that gets slower or faster meanwhile does not count.
//! Half of the pairs are on flat names, half on names below a path that many of the held ones share.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a benchmark may")]

mod node;

use std::process::Stdio;
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use lowkey_client::{Client, LockGuard, Session};

use crate::node::Node;

const HELD: usize = 100_000;
const HELD_BY_ONE: usize = 1_000;
const PAIRS: usize = 3_000;

#[tokio::main]
async fn main() {
    let folder = tempfile::tempdir().unwrap();
    let (mut command, endpoint) = node::command(folder.path());
    command.stderr(Stdio::null());
    let _node = Node(command.spawn().unwrap());
    let client = Client::connect([endpoint]).await.unwrap();
    let session = client.session(Duration::from_secs(600)).await.unwrap();

    pairs(&session).await; // warms up
    let before = pairs(&session).await;
    let holders = hold_many(&client).await;
    let with_many = pairs(&session).await;
    let count: usize = holders.iter().map(|(_, guards)| guards.len()).sum();
    for (session, guards) in holders {
        // The end of the session frees them all, by one entry.
        guards.into_iter().for_each(std::mem::forget);
        session.close().await.unwrap();
    }
    let after = pairs(&session).await;
    let few = (before + after) / 2;
    println!("pair of acquire and release, p50, one node, one client:");
    println!("  few locks held      {:7.1} µs (before) {:7.1} µs (after)", micros(before), micros(after));
    println!("  {count} locks held {:7.1} µs", micros(with_many));
    println!("  ratio               {:7.2}", with_many.as_secs_f64() / few.as_secs_f64());
}

fn micros(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e6
}

async fn pairs(session: &Session) -> Duration {
    let mut times = Vec::with_capacity(PAIRS);
    for pair in 0..PAIRS {
        let name = match pair % 2 {
            0 => format!("measured-{pair}"),
            _ => format!("shop/orders/{}/measured-{pair}", pair % 100),
        };
        let started = Instant::now();
        let guard = session.lock(name).try_acquire().await.unwrap();
        guard.release().await.unwrap();
        times.push(started.elapsed());
    }
    times.sort_unstable();
    times[times.len() / 2]
}

async fn hold_many(client: &Client) -> Vec<(Session, Vec<LockGuard>)> {
    let mut holders = Vec::new();
    for holder in 0..HELD / HELD_BY_ONE {
        let session = client.session(Duration::from_secs(600)).await.unwrap();
        let acquire = |lock: usize| {
            let name = match lock % 2 {
                0 => format!("held-{holder}-{lock}"),
                _ => format!("shop/orders/{}/held-{holder}-{lock}", lock % 100),
            };
            let lock = session.lock(name);
            async move { lock.try_acquire().await.unwrap() }
        };
        let guards = futures::stream::iter(0..HELD_BY_ONE).map(acquire).buffer_unordered(64).collect().await;
        holders.push((session, guards));
    }
    holders
}
