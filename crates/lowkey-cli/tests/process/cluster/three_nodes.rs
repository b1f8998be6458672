//! Three nodes: joined, agreeing, and back by themselves after all of them were killed.

use serde_json::Value;

use crate::harness::Cluster;

#[test]
fn every_node_answers_every_request() {
    let cluster = Cluster::start(3);
    for (number, node) in cluster.nodes.iter().enumerate() {
        let owner = format!(r#""owner_id":"client-{number}""#);
        let lease = node.ok("POST", "/v1/lease", &format!(r#"{{{owner},"ttl_seconds":60}}"#));
        let lease = lease["leaseId"].as_str().unwrap();
        node.ok("POST", "/v1/lease/renew", &format!(r#"{{"lease_id":{lease}}}"#));
        let lock = format!(r#""lock_name":"job-{number}""#);
        let grant = node.ok("POST", "/v1/lock/acquire", &format!(r#"{{{lock},{owner},"lease_id":{lease}}}"#));
        assert_eq!(grant["fencingToken"], (number + 1).to_string());
        for other in &cluster.nodes {
            let seen = other.ok("GET", &format!("/v1/lock?name=job-{number}"), "");
            assert_eq!(seen["holders"][0]["fencingToken"], grant["fencingToken"]);
        }
        // The leader's refusals come through as they are, too.
        let (status, refusal) = node
            .http("POST", "/v1/lock/acquire", &format!(r#"{{{lock},"owner_id":"x","ttl_seconds":9}}"#))
            .unwrap();
        let refusal: Value = serde_json::from_str(&refusal).unwrap();
        assert_eq!((status, refusal["reason"].as_str()), (409, Some("LOCK_HELD")));
        node.ok("POST", "/v1/lock/release", &format!(r#"{{{lock},"lease_id":{lease}}}"#));
        node.ok("POST", "/v1/lease/revoke", &format!(r#"{{"lease_id":{lease},{owner}}}"#));
    }
}

#[test]
fn all_nodes_tell_the_same_leader_at_an_address_that_clients_can_dial() {
    let cluster = Cluster::start(3);
    let leader = cluster.wait_whole();
    let address = format!("127.0.0.1:{}", cluster.nodes[leader].ports.grpc);
    for node in &cluster.nodes {
        let status = node.status().unwrap();
        assert_eq!(status["leaderAddress"], address);
        assert_eq!(status["leaderId"], cluster.nodes[leader].name);
        assert_eq!(status["members"].as_array().unwrap().len(), 3);
    }
}

#[test]
fn all_killed_and_started_again_in_another_order_they_go_on() {
    let mut cluster = Cluster::start(3);
    let acquire = |lock: &str| format!(r#"{{"lock_name":"{lock}","owner_id":"o","ttl_seconds":600}}"#);
    cluster.nodes[1].ok("POST", "/v1/lock/acquire", &acquire("before"));
    let cluster_id = cluster.nodes[0].status().unwrap()["clusterId"].clone();
    for order in [[2, 1, 0], [1, 2, 0]] {
        cluster.nodes.iter_mut().for_each(|node| node.kill());
        for number in order {
            cluster.nodes[number].start();
        }
        cluster.wait_whole();
        let held = cluster.nodes[2].ok("GET", "/v1/lock?name=before", "");
        assert_eq!(held["holders"][0]["fencingToken"], "1");
        assert_eq!(cluster.nodes[0].status().unwrap()["clusterId"], cluster_id);
    }
    let next = cluster.nodes[0].ok("POST", "/v1/lock/acquire", &acquire("after"));
    assert_eq!(next["fencingToken"], "2");
}
