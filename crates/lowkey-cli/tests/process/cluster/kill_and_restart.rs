//! What was acknowledged is true after every `kill -9`.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use lowkey_api::v1::ReleaseLockRequest;
use lowkey_api::v1::lock_service_client::LockServiceClient;
use tonic::transport::Channel;

use crate::harness::{Node, holder, long_acquire, rounds};

const WORKERS: usize = 8;

/// What a worker knows of its own lock.
#[derive(Clone, Debug)]
enum Belief {
    Free,
    Held {
        lease: u64,
        token: u64,
    },
    /// The last request was not answered: either is possible.
    Unknown,
}

#[derive(Default)]
struct Report {
    beliefs: BTreeMap<String, Belief>,
    tokens: Vec<u64>,
}

/// Acquires and releases one lock until told to stop or until the node is gone.
async fn work(
    mut client: LockServiceClient<Channel>,
    lock: String,
    stop: Arc<AtomicBool>,
) -> (String, Belief, Vec<u64>) {
    let mut tokens = Vec::new();
    let mut belief = Belief::Free;
    while !stop.load(Ordering::Relaxed) {
        let Ok(grant) = client.acquire_lock(long_acquire(&lock, "worker", "")).await else {
            return (lock, Belief::Unknown, tokens);
        };
        let grant = grant.into_inner();
        tokens.push(grant.fencing_token);
        belief = Belief::Held { lease: grant.lease_id, token: grant.fencing_token };
        if stop.load(Ordering::Relaxed) {
            break;
        }
        let release = ReleaseLockRequest {
            lock_name: lock.clone(),
            lease_id: grant.lease_id,
            fencing_token: grant.fencing_token,
            ..ReleaseLockRequest::default()
        };
        if client.release_lock(release).await.is_err() {
            return (lock, Belief::Unknown, tokens);
        }
        belief = Belief::Free;
    }
    (lock, belief, tokens)
}

async fn one_round(node: &mut Node, round: usize) -> Report {
    let stop = Arc::new(AtomicBool::new(false));
    let workers: Vec<_> = (0..WORKERS)
        .map(|worker| tokio::spawn(work(node.client(), format!("round-{round}/{worker}"), Arc::clone(&stop))))
        .collect();
    tokio::time::sleep(Duration::from_millis(100)).await;
    // Some workers are stopped first, so that there is something certain to check.
    if round.is_multiple_of(2) {
        stop.store(true, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    node.kill();
    let mut report = Report::default();
    for worker in workers {
        let (lock, belief, tokens) = worker.await.unwrap();
        report.beliefs.insert(lock, belief);
        report.tokens.extend(tokens);
    }
    report
}

#[tokio::test(flavor = "multi_thread")]
async fn what_was_acknowledged_is_true_after_every_kill() {
    let rounds = rounds("LOWKEY_KILL_ROUNDS", 6);
    let folder = tempfile::tempdir().unwrap();
    let mut node = Node::new(folder.path(), "n1", &["--bootstrap"]);
    let (mut highest, mut certain, mut acknowledged) = (0, 0, 0);
    let mut kept: BTreeMap<String, Belief> = BTreeMap::new();
    for round in 0..rounds {
        node.start_ready();
        let report = one_round(&mut node, round).await;
        let mut tokens = report.tokens.clone();
        tokens.sort_unstable();
        tokens.dedup();
        assert_eq!(tokens.len(), report.tokens.len(), "a token was given twice");
        assert!(tokens.first().is_none_or(|lowest| *lowest > highest), "a token fell after a restart");
        highest = tokens.last().copied().unwrap_or(highest);
        acknowledged += tokens.len();
        kept.extend(report.beliefs);

        node.start_ready();
        let mut clients = [node.client()];
        for (lock, belief) in &kept {
            let holder = holder(&mut clients, lock).await;
            match belief {
                Belief::Unknown => continue,
                Belief::Free => assert!(holder.is_none(), "{lock} was released, and is held by {holder:?}"),
                Belief::Held { lease, token } => {
                    let holder = holder.unwrap_or_else(|| panic!("{lock} was granted, and nobody holds it"));
                    assert_eq!((holder.lease_id, holder.fencing_token), (*lease, *token), "{lock}");
                }
            }
            certain += 1;
        }
        node.kill();
    }
    assert!(certain > 0, "nothing could be checked");
    println!(
        "{rounds} rounds, {acknowledged} acknowledged grants, {certain} checks of certain locks, highest token {highest}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_was_killed_is_back_at_once() {
    let folder = tempfile::tempdir().unwrap();
    let mut node = Node::new(folder.path(), "n1", &["--bootstrap"]);
    node.start_ready();
    node.kill();
    let started = Instant::now();
    node.start_ready();
    println!("ready {} ms after the start", started.elapsed().as_millis());
}
