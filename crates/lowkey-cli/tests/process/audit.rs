//! What is kept of grants that are over, on real nodes: told on any node, whole after all that may happen to nodes
//! (`faults.rs`), and in nobody's way (`full_disk.rs`).

mod faults;
mod full_disk;

use std::collections::BTreeMap;
use std::fs;
use std::process::Stdio;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::cli::{Service, lowkey};
use crate::harness::{Cluster, Node, eventually};

fn acquire(node: &Node, lock: &str, owner: &str, ttl: u64) -> Value {
    let body = format!(r#"{{"lock_name":"{lock}","owner_id":"{owner}","ttl_seconds":{ttl}}}"#);
    node.ok("POST", "/v1/lock/acquire", &body)
}

fn release(node: &Node, lock: &str, grant: &Value) {
    let body = format!(
        r#"{{"lock_name":"{lock}","lease_id":{},"fencing_token":{}}}"#,
        grant["leaseId"], grant["fencingToken"]
    );
    node.ok("POST", "/v1/lock/release", &body);
}

/// All that a node tells of grants that are over: by token, and the gaps.
fn audit(node: &Node) -> (BTreeMap<String, Value>, Vec<Value>) {
    let (mut rows, mut gaps, mut after) = (BTreeMap::new(), Vec::new(), String::new());
    loop {
        let path = format!("/v1/audit?page_size=1000&after={after}");
        let path = if after.is_empty() { "/v1/audit?page_size=1000".to_owned() } else { path };
        let page = eventually("the audit answers", || {
            let (status, text) = node.http("GET", &path, "")?;
            (status == 200).then(|| serde_json::from_str::<Value>(&text).unwrap())
        });
        for row in page["grants"].as_array().unwrap() {
            let token = row["fencingToken"].as_str().unwrap().to_owned();
            let before = rows.insert(token.clone(), row.clone());
            assert!(before.is_none(), "token {token} ended twice");
        }
        gaps.extend(page["gaps"].as_array().unwrap().iter().cloned());
        after = page["through"].as_str().unwrap().to_owned();
        if page["more"] == false {
            return (rows, gaps);
        }
    }
}

/// What `explain` says.
fn sentences(told: &Value) -> Vec<&str> {
    told["sentences"].as_array().unwrap().iter().map(|line| line.as_str().unwrap()).collect()
}

#[test]
fn what_happened_to_a_lock_is_told_on_any_node() {
    let cluster = Cluster::start(3);
    let leader = cluster.wait_whole();
    let node = &cluster.nodes[leader];
    let grant = acquire(node, "billing/nightly", "worker-1", 60);
    release(node, "billing/nightly", &grant);
    acquire(node, "billing/nightly", "worker-2", 1);
    eventually("the lease has run out", || {
        let lock = node.ok("GET", "/v1/lock?name=billing/nightly", "");
        lock["holders"].as_array().unwrap().is_empty().then_some(())
    });
    acquire(node, "billing/nightly", "worker-3", 600);
    for node in &cluster.nodes {
        let told = node.ok("GET", "/v1/explain?name=billing/nightly", "");
        let sentences = sentences(&told);
        assert_eq!(sentences.len(), 3, "{sentences:?}");
        assert!(
            sentences[0].starts_with("worker-3 holds billing/nightly with token 3 since "),
            "{sentences:?}"
        );
        assert!(sentences[1].starts_with("Token 2 was worker-2's: granted "), "{sentences:?}");
        assert!(sentences[1].contains("by expiry (last renewal 1."), "{sentences:?}");
        assert!(sentences[1].ends_with("before, no leader change)."), "{sentences:?}");
        assert!(sentences[2].contains("given back at "), "{sentences:?}");
        let told = node.ok("GET", "/v1/explain?name=billing/nightly&fencing_token=1", "");
        assert!(told["sentences"][1].as_str().unwrap().starts_with("Token 2 went to worker-2 "), "{told}");
    }
    let all: Vec<_> = cluster.nodes.iter().map(audit).collect();
    assert_eq!(all[0].0.len(), 2);
    assert!(all.iter().all(|one| one.0 == all[0].0), "all nodes tell the same: {all:?}");
    let row = &all[0].0["2"];
    assert_eq!((row["cause"].as_str(), row["ownerId"].as_str()), (Some("expired"), Some("worker-2")));
    assert_ne!(row["askedUnixMs"], "0");

    let service = Service::of(&cluster.nodes);
    let text = service.ok(&["explain", "billing/nightly", "--token", "2"]);
    assert!(text.contains("Token 3 went to worker-3 "), "{text}");
    let lines = service.ok(&["audit", "query", "--cause", "expired", "--json"]);
    let line: Value = serde_json::from_str(lines.trim()).unwrap();
    assert_eq!((&line["lockName"], &line["fencingToken"]), (&row["lockName"], &row["fencingToken"]));
    assert_eq!(service.ok(&["audit", "query", "--owner", "worker-1"]).lines().count(), 1);
    let csv = service.ok(&["audit", "export", "--format", "csv"]);
    assert_eq!(csv.lines().count(), 3, "{csv}");
    let wrong = node.http("GET", "/v1/audit?cause=boredom", "").unwrap();
    assert!(wrong.0 == 400 && wrong.1.contains("must be one of released, expired"), "{wrong:?}");
}

/// What was before a node joined is a gap of its audit, which others fill.
#[test]
fn a_node_that_joined_late_tells_what_was_before_it() {
    let mut cluster = Cluster::start(1);
    let founder = &cluster.nodes[0];
    for owner in ["worker-1", "worker-2"] {
        let grant = acquire(founder, "billing/nightly", owner, 60);
        release(founder, "billing/nightly", &grant);
    }
    acquire(founder, "billing/nightly", "worker-3", 1);
    eventually("the lease has run out", || {
        let lock = founder.ok("GET", "/v1/lock?name=billing/nightly", "");
        lock["holders"].as_array().unwrap().is_empty().then_some(())
    });
    cluster.join();
    cluster.join();
    let ways = ["", "&fencing_token=1", "&fencing_token=2", "&fencing_token=3"];
    let path = |way: &str| format!("/v1/explain?name=billing/nightly{way}");
    for way in ways {
        let known = cluster.nodes[0].ok("GET", &path(way), "");
        for joiner in &cluster.nodes[1..] {
            let told = joiner.ok("GET", &path(way), "");
            for part in ["sentences", "oddities", "grants", "gaps"] {
                assert_eq!(told[part], known[part], "{}: {part} of {way:?}", joiner.name);
            }
        }
    }
    let told = cluster.nodes[2].ok("GET", &path("&fencing_token=2"), "");
    assert!(sentences(&told)[1].starts_with("Token 3 went to worker-3 "), "{told}");
    let told = cluster.nodes[2].ok("GET", &path(""), "");
    assert!(sentences(&told)[1].contains("by expiry (last renewal 1."), "as the node that has it: {told}");

    // Nobody is left who knows. That is not the same as nothing to know.
    cluster.nodes[0].kill();
    cluster.wait_leader(Some(0));
    for joiner in &cluster.nodes[1..] {
        for way in ways {
            let told = eventually("it is told without the founder", || {
                let (status, text) = joiner.http("GET", &path(way), "")?;
                (status == 200).then(|| serde_json::from_str::<Value>(&text).unwrap())
            });
            assert_eq!(told["gaps"].as_array().unwrap().len(), 1, "{told}");
            let last = *sentences(&told).last().unwrap();
            assert!(last.starts_with("Not everything is on record at the nodes that answered: "), "{told}");
        }
    }
}

#[test]
fn an_audit_that_cannot_be_written_stops_no_lock_and_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let mut node = Node::new(folder.path(), "n1", &["--bootstrap"]);
    node.start_ready();
    let pair = |lock: &str| {
        let grant = acquire(&node, lock, "worker", 60);
        release(&node, lock, &grant);
        grant["fencingToken"].as_str().unwrap().to_owned()
    };
    let first = pair("a");
    assert!(audit(&node).0.contains_key(&first));
    // Somebody deletes it, and a file is in the way of another.
    let directory = node.data_dir.join("audit");
    fs::remove_dir_all(&directory).unwrap();
    fs::write(&directory, "in the way").unwrap();
    let began = Instant::now();
    let second = pair("b");
    assert!(began.elapsed() < Duration::from_secs(10));
    eventually("it says so", || node.log_text().contains("the audit cannot be written").then_some(()));
    let metrics = node.http("GET", "/metrics", "").unwrap().1;
    assert!(metrics.contains("\nlowkey_audit_writable 0\n"), "{metrics}");
    let (status, text) = node.http("GET", "/v1/audit", "").unwrap();
    assert!(status == 503 && text.contains("AUDIT_BEHIND"), "{text}");
    pair("c");
    // The way is free again.
    fs::remove_file(&directory).unwrap();
    eventually("it is written again", || {
        node.log_text().contains("the audit is written again").then_some(())
    });
    let third = pair("d");
    let (rows, gaps) = audit(&node);
    assert!(rows.contains_key(&second) && rows.contains_key(&third), "{rows:?}");
    assert!(!rows.contains_key(&first) && !gaps.is_empty(), "what was deleted is a declared gap: {gaps:?}");
}

#[test]
fn nothing_is_kept_where_nothing_is_to_be() {
    let folder = tempfile::tempdir().unwrap();
    let mut node = Node::new(folder.path(), "n1", &["--bootstrap", "--audit", "off"]);
    node.start_ready();
    let grant = acquire(&node, "a", "worker", 60);
    release(&node, "a", &grant);
    let (status, text) = node.http("GET", "/v1/audit", "").unwrap();
    assert!(status == 409 && text.contains("AUDIT_OFF"), "{text}");
    assert!(!node.data_dir.join("audit").exists());
}

#[test]
fn who_follows_is_told_of_each_end_and_can_go_on_later() {
    let folder = tempfile::tempdir().unwrap();
    let mut node = Node::new(folder.path(), "n1", &["--bootstrap"]);
    node.start_ready();
    let service = Service::of(std::slice::from_ref(&node));
    let end = |lock: &str| {
        let grant = acquire(&node, lock, "worker", 60);
        release(&node, lock, &grant);
    };
    end("before");
    let position = audit(&node).0["1"]["position"].as_str().unwrap().to_owned();
    let out = folder.path().join("followed");
    let mut command = lowkey();
    command
        .args(["audit", "follow", "--json", "--after", &position])
        .args(["--endpoints", &format!("http://127.0.0.1:{}", node.ports.grpc)]);
    let mut child = command.stdout(fs::File::create(&out).unwrap()).stderr(Stdio::null()).spawn().unwrap();
    end("after/1");
    end("after/2");
    let locks = || -> Vec<String> {
        let text = fs::read_to_string(&out).unwrap();
        let lines = text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
        lines.map(|line| line["lockName"].as_str().unwrap_or("a gap").to_owned()).collect()
    };
    eventually("both are told", || (locks() == ["after/1", "after/2"]).then_some(()));
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(service.ok(&["audit", "query", "--lock", "before"]).starts_with("before\t1\tworker\t"));
}
