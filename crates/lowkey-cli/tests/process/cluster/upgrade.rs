//! A cluster of the version before becomes encrypted node by node, under load.
//!
//! The program of the version before is named by `LOWKEY_PREVIOUS_BINARY`. Without it the test says that it did
//! nothing. There is no version before the first, so `LOWKEY_REQUIRE_ALL=1` does not insist on it yet.

use std::path::PathBuf;
use std::time::Duration;

use lowkey_client::Client;
use serde_json::Value;
use tempfile::TempDir;

use crate::clients::in_time;
use crate::harness::{Node, eventually, say};

fn previous() -> Option<PathBuf> {
    let binary = std::env::var_os("LOWKEY_PREVIOUS_BINARY").map(PathBuf::from);
    if binary.is_none() {
        say("skipped: an upgrade: LOWKEY_PREVIOUS_BINARY names no program of the version before");
    }
    binary
}

fn keys(node: &Node) -> usize {
    let status = node.status().unwrap_or_default();
    let members: Vec<Value> = status["members"].as_array().cloned().unwrap_or_default();
    members.iter().filter(|member| member["keyHash"].as_str().is_some_and(|hash| hash.len() == 64)).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_of_the_version_before_is_encrypted_when_its_last_node_is_upgraded() {
    let Some(previous) = previous() else { return };
    let folder = TempDir::new().unwrap();
    let mut nodes = vec![Node::new(folder.path(), "n1", &["--bootstrap"])];
    nodes[0].set_binary(&previous);
    nodes[0].start_ready();
    let join = format!("127.0.0.1:{}", nodes[0].ports.grpc);
    for name in ["n2", "n3"] {
        let mut node = Node::new(folder.path(), name, &["--join", &join]);
        node.set_binary(&previous);
        node.start_ready();
        nodes.push(node);
    }
    eventually("all vote", || (nodes[0].status()?["clusterSize"] == 3).then_some(()));

    let endpoints: Vec<String> =
        nodes.iter().map(|node| format!("http://127.0.0.1:{}", node.ports.grpc)).collect();
    let client = Client::builder(endpoints).call_timeout(Duration::from_secs(30)).connect().await.unwrap();
    let session = client.session(Duration::from_secs(10)).await.unwrap();
    let kept = session.lock("kept").acquire().await.unwrap();
    let (stop, mut stopped) = tokio::sync::watch::channel(false);
    let working = session.clone();
    let load = tokio::spawn(async move {
        let (mut last, mut done) = (0, 0_u64);
        while !*stopped.borrow_and_update() {
            let guard = working.lock("busy").acquire().await.expect("an acquire");
            assert!(guard.token() > last, "tokens rise");
            last = guard.token();
            guard.release().await.expect("a release");
            done += 1;
        }
        done
    });

    let this_version = PathBuf::from(env!("CARGO_BIN_EXE_lowkey"));
    for number in 0..nodes.len() {
        assert_eq!(keys(&nodes[(number + 1) % 3]), 0, "keys are told when all nodes understand them");
        nodes[number].signal(rustix::process::Signal::TERM);
        assert!(nodes[number].wait_exit().success());
        nodes[number].set_binary(&this_version);
        nodes[number].start_ready();
        let index = nodes[(number + 1) % 3].log_position().1;
        eventually("it catches up", || (nodes[number].log_position().1 >= index).then_some(()));
    }
    eventually("every node's key is registered, and known to all", || {
        nodes.iter().all(|node| keys(node) == 3).then_some(())
    });
    let index = nodes[0].log_position().1;
    for node in &nodes {
        eventually("all go on, encrypted", || (node.log_position().1 > index + 20).then_some(()));
    }
    stop.send(true).unwrap();
    let done = in_time("the end of the load", load).await.unwrap();
    assert!(kept.is_held(), "the lease is lost");
    println!("upgraded node by node: {done} acquires and releases, none failed");
    // Plaintext is over.
    let refused = super::encrypted::plain_hello(&nodes[1], &nodes[0]);
    assert!(refused.contains("lowkey-key-needed: true"), "{refused}");
}
