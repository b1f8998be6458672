//! A node whose state is not what the log says: its snapshot is changed while it is down, and every checksum
//! with it. Nothing but the other nodes can notice.

use std::time::Instant;

use lowkey_wal::{GroupId, RealDisk, snapshots};
use rustix::process::Signal;

use crate::harness::{Cluster, Node, eventually};

const LOOK: &str = "/v1/lock?name=a&stale=true";

/// Three nodes; in the snapshot that the later two were sent, alice holds `a`.
fn cluster() -> Cluster {
    let mut cluster = Cluster::start(1);
    cluster.nodes[0].wait_ready();
    let body = r#"{"lock_name":"a","owner_id":"alice","ttl_seconds":600}"#;
    cluster.nodes[0].ok("POST", "/v1/lock/acquire", body);
    cluster.join();
    cluster.join();
    cluster.wait_whole();
    cluster
}

fn write_something(node: &Node, owner: &str) {
    node.ok("POST", "/v1/lease", &format!(r#"{{"owner_id":"{owner}","ttl_seconds":600}}"#));
}

/// Stops a node, has somebody else hold `a` in its snapshot, and starts it again.
fn make_drift(node: &mut Node, holder: &str) {
    node.signal(Signal::TERM);
    assert_eq!(node.wait_exit().code(), Some(0));
    let disk = RealDisk::open(&node.data_dir).unwrap();
    let (index, payload) = snapshots::load_newest(&disk, GroupId::ROOT).unwrap().unwrap();
    let changed = lowkey_sim::tamper(&payload, "alice", holder).expect("alice is in the snapshot");
    snapshots::save(&disk, GroupId::ROOT, index, &changed).unwrap();
    node.start_ready();
}

fn state(node: &Node) -> String {
    node.status().map(|status| status["state"].as_str().unwrap_or_default().to_owned()).unwrap_or_default()
}

#[test]
fn a_node_that_drifted_stops_serving_and_takes_a_snapshot() {
    let mut cluster = cluster();
    // A follower that joined: the founder has no snapshot with alice in it.
    let drifted = if cluster.wait_leader(None) == 1 { 2 } else { 1 };
    make_drift(&mut cluster.nodes[drifted], "mallo");
    let leader = cluster.wait_leader(None);
    let written = Instant::now();
    write_something(&cluster.nodes[leader], "bob");
    // It may be right again sooner than it can be asked: its log has both.
    let node = &cluster.nodes[drifted];
    let stopped = eventually("it has stopped", || {
        node.log_text()
            .contains("this node's state differs from that of the majority")
            .then(|| written.elapsed())
    });
    let mended = eventually("it serves again", || {
        let (_, ready) = node.http("GET", "/readyz", "")?;
        let is_over = node.log_text().contains("this node's state is that of the majority again");
        (is_over && ready == "ok\n").then(|| written.elapsed())
    });
    println!(
        "a follower that drifted: stopped {} ms after the next entry, right after {} ms",
        stopped.as_millis(),
        mended.as_millis()
    );
    let lock = node.ok("GET", LOOK, "");
    assert_eq!(lock["holders"][0]["ownerId"], "alice", "{lock}");
    // The file is right, too: it stays right after a start.
    let node = &mut cluster.nodes[drifted];
    node.kill();
    node.start_ready();
    assert_eq!(node.ok("GET", LOOK, "")["holders"][0]["ownerId"], "alice");
    cluster.wait_whole();
}

#[test]
fn without_a_majority_no_node_serves() {
    let mut cluster = cluster();
    make_drift(&mut cluster.nodes[1], "mallo");
    make_drift(&mut cluster.nodes[2], "trudy");
    // They may have noticed before the next entry: then it is refused.
    let leader = cluster.wait_leader(None);
    let body = r#"{"owner_id":"bob","ttl_seconds":600}"#;
    let (status, answer) = cluster.nodes[leader].http("POST", "/v1/lease", body).unwrap();
    assert!(status == 200 || answer.contains("NODE_DIVERGED"), "{status} {answer}");
    eventually("all have stopped", || {
        cluster.nodes.iter().all(|node| state(node) == "diverged").then_some(())
    });
    for node in &cluster.nodes {
        let (status, body) = node.http("GET", LOOK, "").unwrap();
        assert_eq!(status, 503, "{body}");
        assert!(body.contains("NODE_DIVERGED"), "{body}");
        let (status, body) =
            node.http("POST", "/v1/lease", r#"{"owner_id":"eve","ttl_seconds":10}"#).unwrap();
        assert!(status == 503 && body.contains("NODE_DIVERGED"), "{status} {body}");
        let (status, body) = node.http("GET", "/readyz", "").unwrap();
        assert!(status == 503 && body.contains("no majority has the same"), "{status} {body}");
        assert!(node.log_text().contains("the nodes' states differ"), "the log says so");
        let metrics = node.http("GET", "/metrics", "").unwrap().1;
        assert!(metrics.contains("\nlowkey_is_diverged 1\n"), "{metrics}");
    }
    // One is made what it was: two are a majority, and the third begins anew from the leader's snapshot.
    let node = &mut cluster.nodes[1];
    node.kill();
    let disk = RealDisk::open(&node.data_dir).unwrap();
    let (index, payload) = snapshots::load_newest(&disk, GroupId::ROOT).unwrap().unwrap();
    let mended = lowkey_sim::tamper(&payload, "mallo", "alice").expect("mallo is in the snapshot");
    snapshots::save(&disk, GroupId::ROOT, index, &mended).unwrap();
    node.start();
    eventually("all serve again, and say the same", || {
        cluster
            .nodes
            .iter()
            .all(|node| {
                let answer = node.http("GET", LOOK, "");
                answer.is_some_and(|(status, body)| status == 200 && body.contains("alice"))
            })
            .then_some(())
    });
    cluster.wait_whole();
}
