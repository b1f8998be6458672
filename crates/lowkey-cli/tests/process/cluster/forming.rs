//! Nodes with `--cluster-of`, started empty in any order: one cluster, and never a second one.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::cli::Service;
use crate::harness::{Node, eventually, rounds, run_to_end};

/// Chance that can be repeated: SplitMix64.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % end
    }
}

fn nodes(folder: &std::path::Path, size: usize) -> Vec<Node> {
    let secret = folder.join("secret");
    std::fs::write(&secret, "0123456789abcdef0123456789abcdef\n").unwrap();
    let mut nodes: Vec<Node> =
        (1..=size).map(|number| Node::new(folder, &format!("n{number}"), &[])).collect();
    let join: Vec<String> = nodes.iter().map(|node| format!("127.0.0.1:{}", node.ports.grpc)).collect();
    let (join, of, secret) = (join.join(","), size.to_string(), secret.display().to_string());
    for node in &mut nodes {
        node.set_flags(&["--cluster-of", &of, "--join", &join, "--form-secret-file", &secret]);
    }
    nodes
}

fn wipe(node: &mut Node) {
    if node.runs() {
        node.kill();
    }
    std::fs::remove_dir_all(&node.data_dir).unwrap_or_default();
}

/// The clusters that have a leader, as these nodes see it.
fn led(nodes: &[Node]) -> BTreeSet<String> {
    let statuses = nodes.iter().filter(|node| node.runs()).filter_map(led_by);
    statuses.collect()
}

/// A node that is not ready answers otherwise, or not at all.
fn led_by(node: &Node) -> Option<String> {
    let (200, text) = node.http("GET", "/v1/status", "")? else { return None };
    let status: serde_json::Value = serde_json::from_str(&text).ok()?;
    let leader = status["leaderAddress"].as_str()?;
    (!leader.is_empty()).then(|| status["clusterId"].as_str().unwrap().to_owned())
}

/// Starts those that do not run, brings in those that were wiped too late, and waits until all serve in one cluster.
fn settle(nodes: &mut [Node]) -> BTreeSet<String> {
    let mut seen = BTreeSet::new();
    for node in nodes.iter_mut().filter(|node| !node.runs()) {
        node.start();
    }
    eventually("all nodes are in one cluster", || {
        seen.extend(led(nodes));
        for number in 0..nodes.len() {
            if nodes[number].has_ended().is_some() {
                // Wiped after the cluster was founded: it says what to do, and that is done.
                let log = nodes[number].log_text();
                let told = log.lines().last().unwrap_or_default();
                let name = nodes[number].name.clone();
                assert!(told.contains(&format!("lowkey member remove {name}")), "{told}");
                let others = nodes.iter().enumerate().filter(|(other, _)| *other != number);
                let leader = others.map(|(_, node)| node).find(|node| led_by(node).is_some())?;
                Service::of(std::slice::from_ref(leader)).run(&["member", "remove", &name]);
                nodes[number].start();
            }
        }
        let size = nodes.len() as u64;
        let whole = nodes.iter().all(|node| {
            let status = node.http("GET", "/v1/status", "");
            let Some((200, text)) = status else { return false };
            let status: serde_json::Value = serde_json::from_str(&text).unwrap();
            status["clusterSize"] == size && status["leaderAddress"] != ""
        });
        whole.then_some(())
    });
    seen.extend(led(nodes));
    seen
}

#[test]
fn nodes_that_start_in_any_order_and_are_killed_and_wiped_form_one_cluster() {
    let first = rounds("LOWKEY_FORMING_FROM", 1);
    for round in first..first + rounds("LOWKEY_FORMING_ROUNDS", 3) {
        let mut random = Random(round as u64);
        let folder = tempfile::tempdir().unwrap();
        let size = 3 + random.below(3) as usize;
        let mut nodes = nodes(folder.path(), size);
        // Fewer than a majority can do without, so that what is left can always go on.
        let mut wipes_left = random.below((size as u64 - 1) / 2 + 1);
        let mut seen = BTreeSet::new();
        for _ in 0..size * 4 {
            let number = random.below(size as u64) as usize;
            let node = &mut nodes[number];
            match (node.runs() && node.has_ended().is_none(), random.below(6)) {
                (true, 0) if wipes_left > 0 => {
                    wipes_left -= 1;
                    wipe(node);
                }
                (true, 1) => node.kill(),
                (true, _) => {}
                (false, _) => node.start(),
            }
            std::thread::sleep(Duration::from_millis(random.below(250)));
            seen.extend(led(&nodes));
        }
        seen.extend(settle(&mut nodes));
        println!("round {round}: {size} nodes, cluster {seen:?}");
        assert_eq!(seen.len(), 1, "round {round}: exactly one cluster was ever led");
        let lock = r#"{"lock_name":"a","owner_id":"o","ttl_seconds":60}"#;
        let token = nodes[0].ok("POST", "/v1/lock/acquire", lock)["fencingToken"].clone();
        let token: u64 = token.as_str().unwrap().parse().unwrap();
        assert!(token > 29_000_000 << 32, "tokens begin at the clock's floor, not at {token}");
    }
}

#[test]
fn a_node_that_waits_for_others_says_for_whom_and_is_alive_but_not_ready() {
    let folder = tempfile::tempdir().unwrap();
    let mut nodes = nodes(folder.path(), 3);
    nodes[1].start();
    eventually("it lives", || (nodes[1].http("GET", "/healthz", "")?.0 == 200).then_some(()));
    for path in ["/readyz", "/v1/status"] {
        assert_eq!(nodes[1].http("GET", path, "").unwrap().0, 503, "{path}");
    }
    let probe = Service::of(std::slice::from_ref(&nodes[1]));
    assert!(probe.ok(&["health"]).contains("answers, and is not ready: this node waits for others"));
    assert!(
        probe.run(&["health", "--ready"]).complaint(1).contains("is not ready: this node waits for others")
    );
    eventually("it says whom it waits for", || {
        let log = nodes[1].log_text();
        let mut lines = log.lines().filter(|line| line.contains("so far there are n2"));
        lines.any(|line| line.contains("nobody answers")).then_some(())
    });
    // A node with another secret is nobody.
    std::fs::write(folder.path().join("other"), "fedcba9876543210fedcba9876543210").unwrap();
    let join = format!("127.0.0.1:{}", nodes[1].ports.grpc);
    nodes[0].set_flags(&[
        "--cluster-of",
        "3",
        "--join",
        &join,
        "--form-secret-file",
        &folder.path().join("other").display().to_string(),
    ]);
    nodes[0].start();
    eventually("it is told that its secret is another one", || {
        nodes[0].log_text().contains("another --form-secret-file").then_some(())
    });
}

#[test]
fn nodes_with_different_ticks_found_nothing_until_they_have_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let mut nodes = nodes(folder.path(), 3);
    let flags = nodes[2].flags.clone();
    nodes[2].add_flags(&["--raft-tick", "20ms"]);
    for node in &mut nodes {
        node.start();
    }
    eventually("it says what is different", || {
        let told =
            "no cluster is founded: --raft-tick is 10ms here and 20ms at n3: give all nodes the same value";
        nodes[0].log_text().contains(told).then_some(())
    });
    assert!(led(&nodes).is_empty());
    nodes[2].kill();
    nodes[2].flags = flags;
    assert_eq!(settle(&mut nodes).len(), 1);
}

#[test]
fn a_node_that_was_wiped_is_told_what_to_do_and_one_that_knows_of_a_cluster_founds_none_by_itself() {
    let folder = tempfile::tempdir().unwrap();
    let mut nodes = nodes(folder.path(), 3);
    let clusters = settle(&mut nodes);
    wipe(&mut nodes[2]);
    let ended = run_to_end(&mut nodes[2].command());
    assert!(ended.complaint().contains("lowkey member remove n3"), "{ended:?}");
    // The others are gone, and are wiped too: it still knows, and tells them before anything is founded.
    let mut bootstrap = Node::new(folder.path(), "n3", &["--bootstrap"]);
    bootstrap.data_dir.clone_from(&nodes[2].data_dir);
    let ended = run_to_end(&mut bootstrap.command());
    assert!(ended.complaint().contains("start it with --cluster-of"), "{ended:?}");
    wipe(&mut nodes[0]);
    wipe(&mut nodes[1]);
    for node in &mut nodes {
        node.start();
    }
    for node in &nodes {
        eventually(&format!("{} hears of the cluster", node.name), || {
            let told = node.log_text().lines().any(|line| {
                line.contains("there is a cluster already")
                    && clusters.iter().all(|it| line.contains(it.as_str()))
            });
            told.then_some(())
        });
        assert_eq!(node.log_text().matches("founded a new cluster").count(), 1, "the first time");
    }
}
