//! Nodes with a longer tick of Raft, and nodes that do not have the same.

use crate::cli::Service;
use crate::harness::{Cluster, Node, eventually, run_to_end};

const LOCK: &str = r#"{"lock_name":"a","owner_id":"o","ttl_seconds":60}"#;

#[test]
fn nodes_with_a_longer_tick_fail_over_and_one_that_comes_back_with_another_is_not_heard() {
    let mut cluster = Cluster::start_equipped(3, |_, node| node.add_flags(&["--raft-tick", "50ms"]));
    for node in &cluster.nodes {
        assert_eq!(node.status().unwrap()["raftTickMs"], 50);
        let (_, metrics) = node.http("GET", "/metrics", "").unwrap();
        assert!(metrics.lines().any(|line| line == "lowkey_raft_tick_seconds 0.05"), "{metrics}");
    }
    let old = cluster.wait_whole();
    cluster.nodes[old].kill();
    let new = cluster.wait_leader(Some(old));
    cluster.nodes[new].ok("POST", "/v1/lock/acquire", LOCK);

    let flags = cluster.nodes[old].flags.clone();
    cluster.nodes[old].set_flags(&["--raft-tick", "10ms"]);
    cluster.nodes[old].start();
    let number = old + 1;
    for (other, told) in [(old, "a member refuses this node"), (new, "refused a peer")] {
        eventually(&format!("n{} says why n{number} is not heard", other + 1), || {
            let log = cluster.nodes[other].log_text();
            let theirs = format!(
                "member {} runs with --raft-tick 50ms and member {number} with 10ms: they do not hear each other",
                new + 1
            );
            log.lines().any(|line| line.contains(told) && line.contains(&theirs)).then_some(())
        });
    }
    let odd = &cluster.nodes[old];
    eventually("the odd one refuses the leader", || {
        let log = odd.log_text();
        let theirs = format!("member {number} runs with --raft-tick 10ms and member {} with 50ms", new + 1);
        log.lines().any(|line| line.contains("refused a peer") && line.contains(&theirs)).then_some(())
    });
    assert_eq!(odd.status().unwrap()["leaderAddress"], "", "it hears of no leader");
    assert_eq!(odd.http("GET", "/readyz", "").unwrap().0, 503);
    let held = cluster.nodes[new].ok("GET", "/v1/lock?name=a", "");
    assert_eq!(held["holders"][0]["ownerId"], "o", "the others serve: {held}");

    // With the cluster's value it belongs to it again.
    cluster.nodes[old].kill();
    cluster.nodes[old].flags = flags;
    cluster.nodes[old].start();
    cluster.wait_whole();
}

#[test]
fn a_node_with_another_tick_does_not_join_and_is_told_the_clusters() {
    let cluster = Cluster::start_equipped(1, |_, node| node.add_flags(&["--raft-tick", "20ms"]));
    let founder = &cluster.nodes[0];
    founder.wait_ready();
    let join = format!("127.0.0.1:{}", founder.ports.grpc);
    let invitation = cluster.folder().join("invitation");
    let token = Service::of(&cluster.nodes).ok(&["member", "invite"]);
    std::fs::write(&invitation, token).unwrap();
    let invitation = invitation.display().to_string();
    let told = "the nodes of this cluster run with --raft-tick 20ms, and the one that asks with 50ms: start it with \
                --raft-tick 20ms";
    for (name, way) in
        [("asks", ["--join", join.as_str()]), ("is-invited", ["--join-token-file", invitation.as_str()])]
    {
        let mut node = Node::new(cluster.folder(), name, &way);
        node.add_flags(&["--raft-tick", "50ms"]);
        let ended = run_to_end(&mut node.command());
        assert!(ended.complaint().contains(told), "{ended:?}");
        assert_eq!(ended.code, Some(69), "{ended:?}");
        assert_eq!(founder.status().unwrap()["members"].as_array().unwrap().len(), 1, "{name} is no member");
    }
    // The invitation is not used up.
    let mut node = Node::new(cluster.folder(), "is-invited", &["--join-token-file", &invitation]);
    node.add_flags(&["--raft-tick", "20ms"]);
    node.start_ready();
    assert_eq!(founder.status().unwrap()["members"].as_array().unwrap().len(), 2);
}
