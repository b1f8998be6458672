//! What lasts ends when it is taken away, on every node, within a second. And nothing secret is ever seen.

use std::time::{Duration, Instant};

use lowkey_api::v1::{HeartbeatRequest, RenewLeaseRequest, SessionCall, WatchRequest};

use super::{Closed, acquire, by, reason_of};

/// How soon. Loaded machines get more: what is measured is printed.
const SOON: Duration = Duration::from_secs(1);
const LOADED: u32 = 5;

#[tokio::test(flavor = "multi_thread")]
async fn a_revoked_token_ends_its_streams_within_a_second_on_every_node() {
    let closed = tokio::task::spawn_blocking(|| Closed::start(3)).await.unwrap();
    let held = closed.grpc(0).acquire_lock(by(&closed.billing, acquire("billing/a", "billing/x", 0))).await;
    let lease_id = held.unwrap().into_inner().lease_id;
    let mut ends = tokio::task::JoinSet::new();
    for node in 0..3 {
        let token = closed.billing.clone();
        let watch = WatchRequest { name: "billing/a".into(), ..WatchRequest::default() };
        let mut events = closed.grpc(node).watch(by(&token, watch)).await.unwrap().into_inner();
        events.message().await.unwrap().expect("a first heartbeat");
        ends.spawn(async move {
            loop {
                match events.message().await {
                    Ok(Some(_)) => {}
                    Ok(None) => return ("watch", node, "it ended without a word".to_owned()),
                    Err(status) => return ("watch", node, reason_of(&status)),
                }
            }
        });
        let (silent, calls) = tokio::sync::mpsc::channel::<SessionCall>(1);
        let calls = tokio_stream::wrappers::ReceiverStream::new(calls);
        let mut answers = closed.grpc(node).session(by(&token, calls)).await.unwrap().into_inner();
        ends.spawn(async move {
            let outcome = answers.message().await;
            drop(silent);
            ("session", node, outcome.err().map_or_else(String::new, |status| reason_of(&status)))
        });
        let (beat, beats) = tokio::sync::mpsc::channel::<HeartbeatRequest>(1);
        let beats = tokio_stream::wrappers::ReceiverStream::new(beats);
        let mut answers = closed.grpc(node).heartbeat(by(&token, beats)).await.unwrap().into_inner();
        beat.send(HeartbeatRequest { lease_id, seq: 1, holds: None }).await.unwrap();
        assert_eq!(answers.message().await.unwrap().unwrap().error_reason, "");
        ends.spawn(async move {
            let outcome = answers.message().await;
            drop(beat);
            ("heartbeat", node, outcome.err().map_or_else(String::new, |status| reason_of(&status)))
        });
        let mut client = closed.grpc(node);
        let wait = by(&token, acquire("billing/a", &format!("billing/{node}"), 60_000));
        ends.spawn(async move {
            let outcome = client.acquire_lock(wait).await;
            ("wait", node, outcome.err().map_or_else(String::new, |status| reason_of(&status)))
        });
    }
    // All of them wait.
    let mut client = closed.grpc(0);
    loop {
        let get = lowkey_api::v1::GetLockRequest { lock_name: "billing/a".into(), stale: false };
        if client.get_lock(by(&closed.billing, get)).await.unwrap().into_inner().waiter_count == 3 {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let id = closed.billing.split('_').nth(1).unwrap().to_owned();
    let closed = tokio::task::spawn_blocking(move || {
        closed.admin(&["token", "revoke", &id]);
        closed
    })
    .await
    .unwrap();
    let revoked = Instant::now();
    let mut count = 0;
    while let Some(ended) = ends.join_next().await {
        let (what, node, reason) = ended.unwrap();
        count += 1;
        println!("{what} on node {node} ended after {:?}: {reason}", revoked.elapsed());
        assert_eq!(reason, "UNAUTHENTICATED", "{what} on node {node}");
        assert!(revoked.elapsed() < SOON * LOADED, "{what} on node {node}");
    }
    assert_eq!(count, 12);
    for node in 0..3 {
        let renew = by(&closed.billing, RenewLeaseRequest { lease_id, holds: None });
        let refused = closed.grpc(node).renew_lease(renew).await.unwrap_err();
        assert_eq!(reason_of(&refused), "UNAUTHENTICATED");
    }
}

#[test]
fn a_grant_that_is_taken_away_ends_renewals_of_what_was_held_with_it() {
    let closed = Closed::start(1);
    closed.admin(&["grant", "billing", "other", "acquire"]);
    let body = r#"{"lockName":"billing/a","ownerId":"billing/x","ttlSeconds":60}"#;
    let held = closed.http(0, "POST", "/v1/lock/acquire", Some(&closed.billing), body).json();
    let renew = format!(r#"{{"leaseId":{}}}"#, held["leaseId"]);
    let renewed = || closed.http(0, "POST", "/v1/lease/renew", Some(&closed.billing), &renew);
    assert_eq!(renewed().status, 200);
    closed.admin(&["revoke", "billing", "billing", "acquire"]);
    // It may still acquire elsewhere; but not what this lease holds.
    assert_eq!(renewed().json()["reason"], "PERMISSION_DENIED");
    closed.admin(&["grant", "billing", "billing/a", "acquire"]);
    assert_eq!(renewed().status, 200);
}

#[test]
fn no_secret_is_in_logs_errors_files_or_answers() {
    let closed = Closed::start(3);
    let secret = |token: &str| token.rsplit('_').next().unwrap().to_owned();
    let wrong = format!("lk_0011223344556677_{}", "ab".repeat(32));
    for node in 0..3 {
        let answer = closed.http(node, "GET", "/v1/locks", Some(&wrong), "");
        assert_eq!(answer.json()["reason"], "UNAUTHENTICATED");
        assert!(!answer.json().to_string().contains(&secret(&wrong)));
    }
    let listed = closed.admin(&["principal", "list", "--json"]);
    let secrets = [&closed.ops, &closed.billing, &wrong].map(|token| secret(token));
    for (node, secret) in
        closed.cluster.nodes.iter().flat_map(|node| secrets.iter().map(move |it| (node, it)))
    {
        assert!(!node.log_text().contains(secret) && !listed.contains(secret));
        for file in files(&node.data_dir) {
            let bytes = std::fs::read(&file).unwrap_or_default();
            let is_there = bytes.windows(secret.len()).any(|window| window == secret.as_bytes());
            assert!(!is_there, "a secret is in {}", file.display());
        }
    }
}

fn files(directory: &std::path::Path) -> Vec<std::path::PathBuf> {
    let entries = std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path());
    let (folders, files): (Vec<_>, Vec<_>) = entries.partition(|path| path.is_dir());
    files
        .into_iter()
        .filter(|path| path.is_file())
        .chain(folders.iter().flat_map(|folder| files_of(folder)))
        .collect()
}

fn files_of(directory: &std::path::Path) -> Vec<std::path::PathBuf> {
    files(directory)
}
