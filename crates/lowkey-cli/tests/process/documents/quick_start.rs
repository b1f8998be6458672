//! The first minute with lowkey: one node, plain HTTP.

use serde_json::Value;

use crate::harness::Node;

#[test]
fn the_three_calls_of_the_quick_start_are_answered_to_the_letter() {
    let folder = tempfile::tempdir().unwrap();
    let mut node = Node::new(folder.path(), "n1", &["--bootstrap"]);
    node.start_ready();
    // The harness sends a form's content type, as plain `curl -d` does.
    let lease = node.http("POST", "/v1/lease", r#"{"owner_id":"client-1","ttl_seconds":10}"#).unwrap();
    assert_eq!(lease, (200, "{\"leaseId\":\"1\",\"ttlSeconds\":\"10\"}\n".to_owned()));
    let acquire = r#"{"lock_name":"my-job","owner_id":"client-1","lease_id":1}"#;
    let (status, grant) = node.http("POST", "/v1/lock/acquire", acquire).unwrap();
    assert_eq!(status, 200);
    assert!(grant.starts_with(r#"{"fencingToken":"1","leaseTtlSeconds":"10""#), "{grant}");
    let release = node.http("POST", "/v1/lock/release", r#"{"lock_name":"my-job","lease_id":1}"#).unwrap();
    assert_eq!(release, (200, "{\"released\":true}\n".to_owned()));
}

#[test]
fn requests_may_be_in_either_casing_with_numbers_or_strings() {
    let folder = tempfile::tempdir().unwrap();
    let mut node = Node::new(folder.path(), "n1", &["--bootstrap"]);
    node.start_ready();
    for (number, body) in [
        r#"{"owner_id":"o","ttl_seconds":10}"#,
        r#"{"owner_id":"o","ttl_seconds":"10"}"#,
        r#"{"ownerId":"o","ttlSeconds":10}"#,
        r#"{"ownerId":"o","ttlSeconds":"10"}"#,
    ]
    .into_iter()
    .enumerate()
    {
        let lease = node.ok("POST", "/v1/lease", body);
        assert_eq!(lease["leaseId"], (number + 1).to_string(), "{body}");
    }
}

#[test]
fn a_restart_with_the_same_flags_goes_on_where_it_stopped() {
    let folder = tempfile::tempdir().unwrap();
    let mut node = Node::new(folder.path(), "n1", &["--bootstrap"]);
    node.start_ready();
    let before = node.status().unwrap();
    node.ok("POST", "/v1/lock/acquire", r#"{"lock_name":"a","owner_id":"o","ttl_seconds":600}"#);
    node.signal(rustix::process::Signal::TERM);
    assert_eq!(node.wait_exit().code(), Some(0));
    node.start_ready();
    let after = node.status().unwrap();
    for unchanged in ["nodeId", "clusterId"] {
        assert_eq!(before[unchanged], after[unchanged], "{unchanged}");
    }
    let lock = node.ok("GET", "/v1/lock?name=a", "");
    assert_eq!(lock["holders"][0]["fencingToken"], "1");
    let next = node.ok("POST", "/v1/lock/acquire", r#"{"lock_name":"b","owner_id":"o","ttl_seconds":600}"#);
    assert_eq!((&next["fencingToken"], &next["leaseId"]), (&Value::from("2"), &Value::from("2")));
}

#[test]
fn founding_leaves_files_of_others_alone() {
    let folder = tempfile::tempdir().unwrap();
    let mut node = Node::new(folder.path(), "n1", &["--bootstrap"]);
    std::fs::create_dir(&node.data_dir).unwrap();
    let thesis = node.data_dir.join("thesis.txt");
    std::fs::write(&thesis, "precious").unwrap();
    node.start_ready();
    assert_eq!(std::fs::read_to_string(thesis).unwrap(), "precious");
}

#[test]
fn a_start_with_nothing_to_do_leaves_no_trace_of_a_name() {
    let folder = tempfile::tempdir().unwrap();
    let mut idle = Node::new(folder.path(), "n1", &[]);
    idle.name = "too-early".to_owned();
    idle.start();
    assert_eq!(idle.wait_exit().code(), Some(64));
    let mut node = Node::new(folder.path(), "n1", &["--bootstrap"]);
    node.start_ready();
    assert_eq!(node.status().unwrap()["nodeId"], "n1");
}
