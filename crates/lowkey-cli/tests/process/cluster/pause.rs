//! Processes that stand still: a leader that comes back after its time, and a minority.

use std::time::{Duration, Instant};

use lowkey_api::ApiError;
use lowkey_api::v1::RenewLeaseRequest;
use rustix::process::Signal;
use serde_json::Value;

use crate::harness::{Cluster, acquire_somewhere, eventually, holder, lease, long_acquire};

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_was_paused_acknowledges_nothing_on_its_old_authority() {
    let cluster = Cluster::start(3);
    let old = cluster.wait_whole();
    let mut old_client = cluster.nodes[old].client();
    let doomed = lease(std::slice::from_mut(&mut old_client), "doomed", 2).await;
    let contested = long_acquire("contested", "first", "the-first");

    cluster.nodes[old].pause();
    // These reach the paused leader's sockets and wait there.
    let mut renewing = old_client.clone();
    let renewal = tokio::spawn(async move {
        renewing.renew_lease(RenewLeaseRequest { lease_id: doomed, holds: None }).await
    });
    let mut acquiring = old_client.clone();
    let stale = contested.clone();
    let acquire = tokio::spawn(async move { acquiring.acquire_lock(stale).await });

    let new = cluster.wait_leader(Some(old));
    let mut others: Vec<_> = cluster
        .nodes
        .iter()
        .enumerate()
        .filter(|(number, _)| *number != old)
        .map(|(_, node)| node.client())
        .collect();
    let rival =
        acquire_somewhere(&mut others, &long_acquire("contested", "second", "the-second")).await.unwrap();
    // The new leader gave the lease one whole time to live, and nobody renews it.
    eventually("the lease is gone", || {
        let status = cluster.nodes[new].status()?;
        (status["stats"]["leases"] == 1).then_some(())
    });
    cluster.nodes[old].signal(Signal::CONT);

    match renewal.await.unwrap() {
        Ok(renewed) => panic!("the old leader let a dead lease live: {renewed:?}"),
        Err(status) => {
            let reason = ApiError::from_status(&status).unwrap().reason.as_str();
            assert!(["LEASE_NOT_FOUND", "NO_QUORUM", "NO_LEADER"].contains(&reason), "{reason}");
        }
    }
    match acquire.await.unwrap() {
        Ok(grant) => panic!("the old leader granted what was held: {grant:?}"),
        Err(status) => {
            let reason = ApiError::from_status(&status).unwrap().reason.as_str();
            assert!(["LOCK_HELD", "OUTCOME_UNKNOWN", "NO_LEADER"].contains(&reason), "{reason}");
        }
    }
    cluster.wait_whole();
    let mut clients = cluster.clients();
    assert_eq!(holder(&mut clients, "contested").await.unwrap().fencing_token, rival.fencing_token);
}

#[test]
fn a_minority_says_so_and_never_hangs() {
    let cluster = Cluster::start(3);
    let alone = cluster.wait_whole();
    // The leader is left alone, so that it has to find out for itself.
    for (number, node) in cluster.nodes.iter().enumerate() {
        if number != alone {
            node.pause();
        }
    }
    let node = &cluster.nodes[alone];
    let mut slowest = Duration::ZERO;
    for number in 0..3 {
        for (path, body, proposes) in [
            ("/v1/lease", r#"{"owner_id":"o","ttl_seconds":10}"#.to_owned(), true),
            ("/v1/lease/renew", r#"{"lease_id":1}"#.to_owned(), false),
            (
                "/v1/lock/acquire",
                format!(r#"{{"lock_name":"l{number}","owner_id":"o","ttl_seconds":9}}"#),
                true,
            ),
        ] {
            let asked = Instant::now();
            let (status, text) = node.http("POST", path, &body).expect("an answer");
            slowest = slowest.max(asked.elapsed());
            let answer: Value = serde_json::from_str(&text).unwrap();
            assert_eq!(status, 503, "{path}: {text}");
            let reason = answer["reason"].as_str().unwrap();
            let honest =
                ["NO_LEADER", "NO_QUORUM"].contains(&reason) || (proposes && reason == "OUTCOME_UNKNOWN");
            assert!(honest, "{path}: {text}");
            assert!(answer["details"].to_string().contains("retryDelay"), "{text}");
        }
    }
    assert_eq!(node.status().unwrap()["leaderAddress"], "", "the status is told without a leader");
    assert_eq!(node.http("GET", "/readyz", "").unwrap().0, 503);
    assert_eq!(node.http("GET", "/healthz", "").unwrap().0, 200);
    println!("slowest answer of a minority: {} ms", slowest.as_millis());
    assert!(slowest < Duration::from_secs(5), "an answer took {slowest:?}");
    for (number, node) in cluster.nodes.iter().enumerate() {
        if number != alone {
            node.signal(Signal::CONT);
        }
    }
    cluster.wait_whole();
}
