//! Web pages at a real node: what the flags let in, and nothing else.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::{Node, eventually};

/// Sends a request with exactly these headers; the answer's status and body.
fn send(node: &Node, line: &str, headers: &str, body: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(("127.0.0.1", node.ports.http)).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let length = body.len();
    let request =
        format!("{line} HTTP/1.1\r\nconnection: close\r\ncontent-length: {length}\r\n{headers}\r\n{body}");
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
}

/// The status with which a request for a host is answered.
fn asked_as(node: &Node, host: &str) -> u16 {
    let (status, body) = send(node, "GET /v1/status", &format!("host: {host}\r\n"), "");
    if status != 200 {
        let reason: Value = serde_json::from_str(&body).unwrap();
        assert_eq!((status, &reason["reason"]), (403, &json!("FOREIGN_HOST")));
    }
    status
}

#[test]
fn a_web_page_cannot_end_a_lease() {
    let folder = tempfile::tempdir().unwrap();
    let mut node = Node::new(folder.path(), "n1", &["--bootstrap"]);
    node.start_ready();
    let port = node.ports.http;
    let lease = node.ok("POST", "/v1/lease", r#"{"owner_id":"o","ttl_seconds":600}"#);
    let revoke = format!(r#"{{"lease_id":{},"owner_id":"o"}}"#, lease["leaseId"].as_str().unwrap());
    for (headers, reason) in [
        // Any page, with what a form or a script may send without asking first.
        (
            format!("host: 127.0.0.1:{port}\r\norigin: https://evil.example\r\ncontent-type: text/plain\r\n"),
            "FOREIGN_ORIGIN",
        ),
        (format!("host: 127.0.0.1:{port}\r\nsec-fetch-site: cross-site\r\n"), "FOREIGN_ORIGIN"),
        // A page whose name now leads to this node: to the browser, all is of one origin.
        (
            format!(
                "host: evil.example:{port}\r\norigin: http://evil.example:{port}\r\nsec-fetch-site: same-origin\r\n\
                 content-type: application/json\r\n"
            ),
            "FOREIGN_HOST",
        ),
    ] {
        let (status, body) = send(&node, "POST /v1/lease/revoke", &headers, &revoke);
        let body: Value = serde_json::from_str(&body).unwrap();
        assert_eq!((status, &body["reason"]), (403, &json!(reason)), "{headers}");
    }
    // It lives, and curl can end it.
    let renew = format!(r#"{{"lease_id":{}}}"#, lease["leaseId"].as_str().unwrap());
    node.ok("POST", "/v1/lease/renew", &renew);
    let curl = format!("host: localhost:{port}\r\ncontent-type: application/x-www-form-urlencoded\r\n");
    assert_eq!(send(&node, "POST /v1/lease/revoke", &curl, &revoke).0, 200);
}

#[test]
fn flags_and_members_name_the_hosts_that_reach_a_node() {
    let folder = tempfile::tempdir().unwrap();
    let flags = [
        "--bootstrap",
        "--http-host",
        "locks.example,alias.example",
        "--http-host",
        "third.example",
        "--http-origin",
        "https://dash.example",
        "--advertise-http-addr",
        "advertised.example:8080",
    ];
    let mut node = Node::new(folder.path(), "n1", &flags);
    node.start_ready();
    for host in ["locks.example", "ALIAS.example:80", "third.example", "advertised.example", "localhost"] {
        assert_eq!(asked_as(&node, host), 200, "{host}");
    }
    for host in ["evil.example", "two.example", "dash.example"] {
        assert_eq!(asked_as(&node, host), 403, "{host}");
    }
    let page = "host: locks.example\r\norigin: https://dash.example\r\n";
    assert_eq!(send(&node, "GET /v1/status", page, "").0, 200);

    node.ok("POST", "/v1/cluster/peers", r#"{"node_id":"n2","raft_address":"two.example:7000"}"#);
    eventually("the new member's name is known", || (asked_as(&node, "two.example") == 200).then_some(()));
    node.ok("DELETE", "/v1/cluster/peers/n2", "");
    eventually("the old member's name is forgotten", || {
        (asked_as(&node, "two.example") == 403).then_some(())
    });
}
