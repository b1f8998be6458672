//! The leader is killed under load, again and again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use lowkey_api::ApiError;
use lowkey_api::v1::RenewLeaseRequest;
use lowkey_api::v1::lock_service_client::LockServiceClient;
use tonic::transport::Channel;

use crate::harness::{Cluster, acquire_somewhere, lease, long_acquire, rounds};

const RENEWED_LEASES: usize = 20;

/// Acquires a new lock all the time; gives every token with the time at which it was acknowledged.
async fn acquire_all_the_time(
    mut clients: Vec<LockServiceClient<Channel>>,
    stop: Arc<AtomicBool>,
) -> Vec<(Instant, u64)> {
    let mut grants = Vec::new();
    while !stop.load(Ordering::Relaxed) {
        let id = format!("request-{}", grants.len());
        let request = long_acquire(&format!("lock-{}", grants.len()), "worker", &id);
        let grant = acquire_somewhere(&mut clients, &request).await.unwrap();
        grants.push((Instant::now(), grant.fencing_token));
    }
    grants
}

/// Renews leases of 2 s every third of that, as a client must; gives those that were lost.
async fn renew_all_the_time(
    clients: Vec<LockServiceClient<Channel>>,
    leases: Vec<u64>,
    stop: Arc<AtomicBool>,
) -> Vec<(u64, ApiError)> {
    let renewals = leases.into_iter().map(|lease_id| {
        let (mut clients, stop) = (clients.clone(), Arc::clone(&stop));
        tokio::spawn(async move {
            while !stop.load(Ordering::Relaxed) {
                tokio::time::sleep(Duration::from_millis(650)).await;
                for turn in (0..clients.len()).cycle() {
                    let call = clients[turn].renew_lease(RenewLeaseRequest { lease_id, holds: None });
                    match tokio::time::timeout(Duration::from_millis(300), call).await {
                        Ok(Ok(_)) => break,
                        Ok(Err(status)) => {
                            let error = ApiError::from_status(&status);
                            if let Some(error) = error.filter(|error| !error.is_retryable()) {
                                return Some((lease_id, error));
                            }
                        }
                        Err(_) => {}
                    }
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            }
            None
        })
    });
    let mut lost = Vec::new();
    for renewal in renewals.collect::<Vec<_>>() {
        lost.extend(renewal.await.unwrap());
    }
    lost
}

/// The longest time without an acknowledged grant around a kill.
fn longest_gap(grants: &[(Instant, u64)], kill: Instant) -> Duration {
    let (from, to) = (kill - Duration::from_millis(100), kill + Duration::from_millis(500));
    let around = grants.windows(2).filter(|pair| pair[0].0 <= to && pair[1].0 >= from);
    let gaps = around.map(|pair| pair[1].0 - pair[0].0);
    gaps.max().expect("grants were acknowledged before the kill, and after it")
}

#[tokio::test(flavor = "multi_thread")]
async fn leases_live_and_tokens_rise_while_leader_after_leader_is_killed() {
    let rounds = rounds("LOWKEY_FAILOVER_ROUNDS", 3);
    let mut cluster = Cluster::start(3);
    let mut clients = cluster.clients();
    let mut leases = Vec::new();
    for number in 0..RENEWED_LEASES {
        leases.push(lease(&mut clients, &format!("holder-{number}"), 2).await);
    }
    let stop = Arc::new(AtomicBool::new(false));
    let renewals = tokio::spawn(renew_all_the_time(clients.clone(), leases, Arc::clone(&stop)));
    let acquires = tokio::spawn(acquire_all_the_time(clients, Arc::clone(&stop)));

    let mut kills = Vec::new();
    for _ in 0..rounds {
        let leader = cluster.wait_whole();
        // The others must have caught up, or the next kill would cost the quorum.
        tokio::time::sleep(Duration::from_millis(300)).await;
        kills.push(Instant::now());
        cluster.nodes[leader].kill();
        cluster.wait_leader(Some(leader));
        tokio::time::sleep(Duration::from_millis(300)).await;
        cluster.nodes[leader].start();
    }
    cluster.wait_whole();
    stop.store(true, Ordering::Relaxed);
    let grants = acquires.await.unwrap();
    let lost = renewals.await.unwrap();

    assert!(lost.is_empty(), "leases that were renewed all the time were lost: {lost:?}");
    assert!(grants.is_sorted_by(|(_, before), (_, after)| before < after), "tokens rise strictly");
    let mut outages: Vec<u128> = kills.iter().map(|kill| longest_gap(&grants, *kill).as_millis()).collect();
    outages.sort_unstable();
    let (median, worst) = (outages[outages.len() / 2], outages[outages.len() - 1]);
    println!(
        "{} grants, {rounds} kills; outages in ms: {outages:?}, median {median}, worst {worst}",
        grants.len()
    );
}
