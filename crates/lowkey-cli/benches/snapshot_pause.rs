//! What an acquire costs while a snapshot of a large state is made, seen by a client of a real node.
//!
//! ```sh
//! cargo bench -p lowkey-cli --bench snapshot_pause
//! ```
//!
//! 50,000 leases hold a lock each. Some clients acquire and release all the time, so that snapshots are due again
//! and again; one of them measures. The node tells when each snapshot was made and how long that took: acquires that
//! were under way meanwhile count as *while*, all others as *between*. Both are under the same load.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a benchmark may")]

mod node;

use std::io::{BufRead as _, BufReader};
use std::process::{ChildStderr, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use lowkey_client::{Client, Session};

use crate::node::Node;

const HELD: usize = 50_000;
const PUMPS: usize = 8;
const SNAPSHOTS_WANTED: usize = 8;
const PATIENCE: Duration = Duration::from_secs(300);

/// When a snapshot was made.
#[derive(Clone, Copy)]
struct Made {
    from: Instant,
    to: Instant,
    size_bytes: u64,
}

#[tokio::main]
async fn main() {
    let folder = tempfile::tempdir().unwrap();
    let (mut command, endpoint) = node::command(folder.path());
    command.args(["--log", "warn,lowkey_server::snapshot_maker=debug"]);
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    let made = listen(child.stderr.take().unwrap());
    let _node = Node(child);
    let client = Client::connect([endpoint]).await.unwrap();
    hold_many(&client).await;
    let session = client.session(Duration::from_secs(600)).await.unwrap();

    let first = made.lock().unwrap().len();
    let stop = Arc::new(AtomicBool::new(false));
    let pumps: Vec<_> =
        (0..PUMPS).map(|pump| tokio::spawn(work(session.clone(), pump, Arc::clone(&stop)))).collect();
    let deadline = Instant::now() + PATIENCE;
    while made.lock().unwrap().len() < first + SNAPSHOTS_WANTED && Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    stop.store(true, Ordering::Relaxed);
    let mut acquires = Vec::new();
    for pump in pumps {
        acquires.extend(pump.await.unwrap());
    }
    let made: Vec<Made> = made.lock().unwrap()[first..].to_vec();
    assert!(!made.is_empty(), "no snapshot was made in {PATIENCE:?}");
    report(&made, &acquires);
}

fn report(made: &[Made], acquires: &[(Instant, Instant)]) {
    let is_while =
        |(from, to): &(Instant, Instant)| made.iter().any(|made| made.from < *to && *from < made.to);
    let (during, between): (Vec<_>, Vec<_>) = acquires.iter().partition(|acquire| is_while(acquire));
    let (during, between) = (sorted(&during), sorted(&between));
    let took: Duration = made.iter().map(|made| made.to - made.from).sum();
    let size_bytes = made.last().map_or(0, |made| made.size_bytes);
    println!(
        "{} snapshots of {HELD} leases and locks, {:.1} MB each, made in {:.0} ms each; {PUMPS} clients, one node",
        made.len(),
        size_bytes as f64 / 1e6,
        millis(took) / made.len() as f64
    );
    println!("acquire            while one is made     between");
    for (name, share) in [("p50", 0.5), ("p99", 0.99), ("p99.9", 0.999), ("max", 1.0)] {
        let (one, other) = (quantile(&during, share), quantile(&between, share));
        println!(
            "  {name:5} {:16.2} ms {:14.2} ms    ratio {:5.2}, difference {:6.2} ms",
            millis(one),
            millis(other),
            millis(one) / millis(other),
            millis(one) - millis(other)
        );
    }
    println!("  count {:16}    {:14}", during.len(), between.len());
}

fn sorted(acquires: &[&(Instant, Instant)]) -> Vec<Duration> {
    let mut times: Vec<Duration> = acquires.iter().map(|(from, to)| *to - *from).collect();
    times.sort_unstable();
    assert!(!times.is_empty(), "nothing was measured");
    times
}

fn quantile(sorted: &[Duration], share: f64) -> Duration {
    sorted[((sorted.len() - 1) as f64 * share) as usize]
}

fn millis(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e3
}

/// Reads what the node says about its snapshots.
fn listen(log: ChildStderr) -> Arc<Mutex<Vec<Made>>> {
    let made = Arc::new(Mutex::new(Vec::new()));
    let told = Arc::clone(&made);
    std::thread::spawn(move || {
        for line in BufReader::new(log).lines().map_while(Result::ok) {
            let to = Instant::now();
            let number = |key: &str| -> Option<u64> {
                let rest = line.split_once(&format!("{key}="))?.1;
                rest.split(' ').next()?.parse().ok()
            };
            match (line.contains("made a snapshot"), number("took_ms"), number("size_bytes")) {
                (true, Some(took_ms), Some(size_bytes)) => {
                    let from = to - Duration::from_millis(took_ms);
                    told.lock().unwrap().push(Made { from, to, size_bytes });
                }
                _ => eprintln!("{line}"),
            }
        }
    });
    made
}

async fn hold_many(client: &Client) {
    let acquire = |number: usize| {
        let lock =
            client.detached(format!("shop/orders/{}/held-{number}", number % 100), Duration::from_secs(600));
        async move { lock.try_acquire().await.unwrap() }
    };
    futures::stream::iter(0..HELD).map(acquire).buffer_unordered(64).for_each(|_| async {}).await;
}

/// Acquires and releases until told to stop; gives when each acquire began and ended.
async fn work(session: Session, pump: usize, stop: Arc<AtomicBool>) -> Vec<(Instant, Instant)> {
    let mut acquires = Vec::new();
    for number in 0.. {
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let lock = session.lock(format!("measured-{pump}-{}", number % 100));
        let from = Instant::now();
        let guard = lock.try_acquire().await.unwrap();
        acquires.push((from, Instant::now()));
        guard.release().await.unwrap();
    }
    acquires
}
