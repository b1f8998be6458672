//! Access on real clusters: the first admin, what is refused to whom on every way in, and what ends when it is
//! taken away.

mod taken_away;
mod walk;

use std::process::Output;

use lowkey_api::v1::AcquireLockRequest;
use lowkey_api::v1::lock_service_client::LockServiceClient;
use serde_json::Value;
use tonic::Request;
use tonic::metadata::MetadataValue;
use tonic::transport::Channel;

use crate::cli::lowkey;
use crate::harness::{Answer, Cluster, eventually, http_with};

/// A cluster that is closed but for an admin, and two tenants.
pub(crate) struct Closed {
    cluster: Cluster,
    ops: String,
    /// May acquire, read and watch `billing`.
    billing: String,
    /// May do the same with `web`.
    web: String,
    /// May do nothing.
    idle: String,
}

impl Closed {
    fn start(size: usize) -> Self {
        let mut cluster = Cluster::start(size);
        if size > 1 {
            cluster.wait_whole();
        }
        let mut closed = Self {
            ops: String::new(),
            billing: String::new(),
            web: String::new(),
            idle: String::new(),
            cluster,
        };
        for principal in ["ops", "billing", "web", "idle"] {
            closed.admin(&["principal", "add", principal]);
        }
        closed.admin(&["grant", "ops", "/", "admin"]);
        for tenant in ["billing", "web"] {
            closed.admin(&["grant", tenant, tenant, "acquire,read,watch"]);
        }
        closed.ops = closed.token("ops");
        closed.billing = closed.token("billing");
        closed.web = closed.token("web");
        closed.idle = closed.token("idle");
        closed.admin(&["require"]);
        closed.everywhere("access is required", |closed, node| {
            (closed.http(node, "GET", "/v1/status", None, "").status == 401).then_some(())
        });
        closed
    }

    /// Waits for something on every node.
    fn everywhere<T>(&self, what: &str, condition: impl Fn(&Self, usize) -> Option<T>) {
        for node in 0..self.cluster.nodes.len() {
            eventually(what, || condition(self, node));
        }
    }

    /// `lowkey access` by the socket of the first node.
    fn admin_output(&self, words: &[&str]) -> Output {
        let directory = self.cluster.nodes[0].data_dir.clone();
        lowkey().arg("access").args(words).arg("--data-dir").arg(directory).output().unwrap()
    }

    fn admin(&self, words: &[&str]) -> String {
        let output = self.admin_output(words);
        assert!(output.status.success(), "{words:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn token(&self, principal: &str) -> String {
        self.admin(&["token", "new", principal]).trim().to_owned()
    }

    fn http(&self, node: usize, method: &str, path: &str, token: Option<&str>, body: &str) -> Answer {
        let headers = token.map(|token| format!("Authorization: Bearer {token}\r\n")).unwrap_or_default();
        let port = self.cluster.nodes[node].ports.http;
        http_with(port, method, path, &headers, body.as_bytes()).expect("the node answers")
    }

    fn grpc(&self, node: usize) -> LockServiceClient<Channel> {
        self.cluster.nodes[node].client()
    }

    /// The reason of a refusal over HTTP.
    fn reason(&self, node: usize, method: &str, path: &str, token: Option<&str>, body: &Value) -> String {
        let answer = self.http(node, method, path, token, &body.to_string());
        match answer.status {
            200 => "OK".to_owned(),
            _ => answer.json()["reason"].as_str().unwrap_or_default().to_owned(),
        }
    }
}

/// The same request, by the holder of a token.
fn by<T>(token: &str, message: T) -> Request<T> {
    let mut request = Request::new(message);
    let value: MetadataValue<_> = format!("Bearer {token}").parse().unwrap();
    request.metadata_mut().insert("authorization", value);
    request
}

/// The reason in a gRPC refusal.
fn reason_of(status: &tonic::Status) -> String {
    lowkey_api::ApiError::from_status(status)
        .map_or_else(|| format!("{status:?}"), |error| error.reason.to_string())
}

fn acquire(lock: &str, owner: &str, wait_ms: i64) -> AcquireLockRequest {
    AcquireLockRequest {
        lock_name: lock.into(),
        owner_id: owner.into(),
        ttl_seconds: 30,
        wait_ms,
        ..AcquireLockRequest::default()
    }
}
