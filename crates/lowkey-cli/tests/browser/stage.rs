//! A real cluster, a real browser that looks at it, and people who hold and want locks.

use std::net::TcpStream;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::driver::Browser;
use crate::harness::{Cluster, Node, http_with};

/// Long enough that nothing runs out while a slow machine looks.
const TTL_SECONDS: u64 = 600;

pub(crate) struct Stage {
    pub(crate) cluster: Cluster,
    pub(crate) browser: Browser,
}

impl Stage {
    /// Nothing where there is no browser.
    pub(crate) fn set(nodes: usize) -> Option<Self> {
        let browser = Browser::start()?;
        let cluster = Cluster::start(nodes);
        Some(Self { cluster, browser })
    }

    /// Beside a cluster that its nodes have formed: its revisions, tokens and leases begin near 2^57.
    pub(crate) fn formed(nodes: usize) -> Option<Self> {
        let browser = Browser::start()?;
        Some(Self { cluster: Cluster::formed(nodes), browser })
    }

    pub(crate) fn node(&self) -> &Node {
        &self.cluster.nodes[0]
    }

    /// Where a view is, at a node.
    pub(crate) fn url_at(&self, node: usize, view: &str) -> String {
        format!("http://127.0.0.1:{}/ui/#/{view}", self.cluster.nodes[node].ports.http)
    }

    /// Shows a view of the first node.
    pub(crate) fn show(&self, view: &str) {
        self.browser.go(&self.url_at(0, view));
    }

    /// A lease.
    pub(crate) fn lease(&self, owner: &str) -> u64 {
        let body = json!({ "ownerId": owner, "ttlSeconds": TTL_SECONDS });
        number(&self.node().ok("POST", "/v1/lease", &body.to_string())["leaseId"])
    }

    /// A lock held with a lease; its token.
    pub(crate) fn hold(&self, lock: &str, owner: &str, lease: u64, value: &str) -> u64 {
        let body = json!({ "lockName": lock, "ownerId": owner, "leaseId": lease, "value": value });
        number(&self.node().ok("POST", "/v1/lock/acquire", &body.to_string())["fencingToken"])
    }

    /// Stands in a lock's queue for as long as what is returned lives.
    pub(crate) fn queue(&self, lock: &str, owner: &str) -> TcpStream {
        use std::io::Write as _;
        let lease = self.lease(owner);
        let body =
            json!({ "lockName": lock, "ownerId": owner, "leaseId": lease, "waitMs": 600_000 }).to_string();
        let mut stream = TcpStream::connect(("127.0.0.1", self.node().ports.http)).unwrap();
        let length = body.len();
        write!(
            stream,
            "POST /v1/lock/acquire HTTP/1.1\r\nhost: localhost\r\ncontent-length: {length}\r\n\r\n{body}"
        )
        .unwrap();
        stream
    }

    /// A lock held and given back by somebody who shows a token.
    pub(crate) fn hold_as(&self, bearer: &str, lock: &str, owner: &str) {
        let ask = |path: &str, body: Value| {
            let headers = format!("authorization: Bearer {bearer}\r\ncontent-type: application/json\r\n");
            let answer =
                http_with(self.node().ports.http, "POST", path, &headers, body.to_string().as_bytes())
                    .unwrap();
            assert_eq!(answer.status, 200, "{path}: {}", answer.json());
            answer.json()
        };
        let held = ask("/v1/lock/acquire", json!({ "lockName": lock, "ownerId": owner, "ttlSeconds": 60 }));
        ask("/v1/lock/release", json!({ "lockName": lock, "leaseId": held["leaseId"] }));
    }

    pub(crate) fn release(&self, lock: &str, lease: u64) {
        let body = json!({ "lockName": lock, "leaseId": lease });
        self.node().ok("POST", "/v1/lock/release", &body.to_string());
    }

    /// How long after something was done the page shows it.
    pub(crate) fn delay(&self, what: &str, done: impl FnOnce(), script: &str, arguments: Value) -> Duration {
        done();
        let since = Instant::now();
        self.browser.wait(what, script, arguments);
        let delay = since.elapsed();
        println!("{what}: shown after {} ms", delay.as_millis());
        delay
    }

    /// The page has broken none of its own rules.
    pub(crate) fn assert_no_complaints(&self) {
        let complaints = self.browser.complaints();
        assert!(complaints.is_empty(), "{complaints:#?}");
    }
}

/// A 64-bit integer, which JSON has as a text.
pub(crate) fn number(value: &Value) -> u64 {
    value.as_str().unwrap_or_default().parse().unwrap_or_else(|_| panic!("{value} is a number"))
}
