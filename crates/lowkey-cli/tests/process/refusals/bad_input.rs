//! Clients that do everything wrong: each is told what, exactly, and harms nobody but itself.
//!
//! What JSON and gRPC can both say is said in both and must be refused alike.

use std::io::{Read, Write};
use std::net::TcpStream;

use lowkey_api::ApiError;
use lowkey_api::v1::election_service_client::ElectionServiceClient;
use lowkey_api::v1::lock_service_client::LockServiceClient;
use lowkey_api::v1::{
    AcquireLockRequest, AddPeerRequest, CampaignRequest, CheckTokenRequest, CreateLeaseRequest,
    GetLockRequest, HeartbeatRequest, ListLocksRequest, ProclaimRequest, ReleaseLockRequest,
    RenewLeaseRequest, ResignRequest, RevokeLeaseRequest, WatchRequest,
};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio_stream::StreamExt as _;
use tonic::Code;
use tonic::transport::Channel;

use crate::harness::{Answer, Node, http_with};
use crate::refusals::bad_bytes::raw;

pub(crate) const KIBIBYTE: usize = 1024;

/// A node that has to survive everything.
pub(crate) struct Target {
    pub(crate) node: Node,
    pub(crate) client: LockServiceClient<Channel>,
    _folder: TempDir,
}

/// A refusal as the table has it: the HTTP status and the reason.
pub(crate) type Refusal = (u16, String);

impl Target {
    pub(crate) fn start() -> Self {
        Self::start_with(&[])
    }

    pub(crate) fn start_with(flags: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut node = Node::new(folder.path(), "n1", &[&["--bootstrap"], flags].concat());
        node.start_ready();
        let client = node.client();
        Self { node, client, _folder: folder }
    }

    /// One request in both dialects, which must give the same outcome. What an outcome holds beside
    /// that, ids and tokens, is the first one's.
    async fn ask(&mut self, path: &str, body: &Value) -> Result<Value, Refusal> {
        let over_http = self.http(path, body.to_string().as_bytes());
        let over_grpc = self.grpc(path, body).await;
        match (&over_http, &over_grpc) {
            (Ok(_), Ok(_)) => {}
            (Err((status, reason)), Err((code, grpc_reason))) => {
                assert_eq!((grpc_code(*status), reason), (*code, grpc_reason), "{path} {body:.200}");
            }
            _ => panic!("{path} {body:.200}: {over_http:?} over HTTP, {over_grpc:?} over gRPC"),
        }
        over_http
    }

    async fn grpc(&mut self, path: &str, body: &Value) -> Result<Value, (Code, String)> {
        macro_rules! call {
            ($method:ident, $request:ty) => {
                call!(self.client, $method, $request)
            };
            ($client:expr, $method:ident, $request:ty) => {{
                let request: $request = serde_json::from_value(body.clone()).unwrap();
                let answer = $client.$method(request).await;
                answer.map(|response| serde_json::to_value(response.into_inner()).unwrap())
            }};
        }
        let mut elections = ElectionServiceClient::new(self.node.channel());
        let answer = match path {
            "/v1/lease" => call!(create_lease, CreateLeaseRequest),
            "/v1/lease/renew" => call!(renew_lease, RenewLeaseRequest),
            "/v1/lease/revoke" => call!(revoke_lease, RevokeLeaseRequest),
            "/v1/lock/acquire" => call!(acquire_lock, AcquireLockRequest),
            "/v1/lock/release" => call!(release_lock, ReleaseLockRequest),
            "/v1/lock/check" => call!(check_token, CheckTokenRequest),
            "/v1/election/campaign" => call!(elections, campaign, CampaignRequest),
            "/v1/election/proclaim" => call!(elections, proclaim, ProclaimRequest),
            "/v1/election/resign" => call!(elections, resign, ResignRequest),
            "/v1/cluster/peers" => call!(add_peer, AddPeerRequest),
            other => panic!("no such call: {other}"),
        };
        answer.map_err(|status| {
            let reason = ApiError::from_status(&status).unwrap_or_else(|| panic!("no reason: {status:?}"));
            (status.code(), reason.reason.as_str().to_owned())
        })
    }

    /// Sends any bytes as a body.
    fn http(&self, path: &str, body: &[u8]) -> Result<Value, Refusal> {
        outcome(&http_with(self.node.ports.http, "POST", path, "", body).expect("an answer"))
    }

    pub(crate) async fn assert_refused(&mut self, path: &str, body: Value, status: u16, reason: &str) {
        let refusal = self.ask(path, &body).await.expect_err(&format!("{path} {body:.200}"));
        assert_eq!(refusal, (status, reason.to_owned()), "{path} {body:.200}");
    }

    pub(crate) async fn assert_ok(&mut self, path: &str, body: Value) -> Value {
        self.ask(path, &body).await.unwrap_or_else(|refusal| panic!("{path} {body:.200}: {refusal:?}"))
    }

    fn assert_http_refused(&self, path: &str, body: impl AsRef<[u8]>, status: u16, reason: &str) {
        let body = body.as_ref();
        let shown = String::from_utf8_lossy(&body[..body.len().min(200)]);
        assert_eq!(self.http(path, body), Err((status, reason.to_owned())), "{path} {shown}");
    }

    /// A lease that outlives the test; its id.
    pub(crate) async fn lease(&mut self, owner: &str) -> u64 {
        let request = CreateLeaseRequest {
            owner_id: owner.to_owned(),
            ttl_seconds: 600,
            ..CreateLeaseRequest::default()
        };
        self.client.create_lease(request).await.unwrap().into_inner().lease_id
    }

    /// The node still does all that it should, on every port, and nothing in it panicked.
    pub(crate) async fn assert_unharmed(&mut self) {
        let lease = self.lease("a well-behaved client").await;
        let request = AcquireLockRequest {
            lock_name: "still/served".into(),
            owner_id: "a well-behaved client".into(),
            lease_id: lease,
            ..AcquireLockRequest::default()
        };
        self.client.acquire_lock(request).await.unwrap();
        self.node.ok("POST", "/v1/lease/renew", &format!(r#"{{"lease_id":{lease}}}"#));
        let release = format!(r#"{{"lock_name":"still/served","lease_id":{lease}}}"#);
        self.node.ok("POST", "/v1/lock/release", &release);
        assert_eq!(self.node.http("GET", "/healthz", "").unwrap().0, 200);
        let status =
            raw(self.node.ports.raft, "/lowkey.peer.v1.Peer/Forward", &[], vec![]).await.unwrap_err();
        assert_eq!(status.code(), Code::Unauthenticated, "the peers' port answers");
        let log = self.node.log_text();
        assert!(!log.contains("panic"), "{log}");
    }
}

/// The gRPC code that goes with an HTTP status, as docs/reference/errors.md has it.
fn grpc_code(status: u16) -> Code {
    match status {
        400 => Code::InvalidArgument,
        403 => Code::PermissionDenied,
        404 => Code::NotFound,
        409 => Code::FailedPrecondition,
        429 => Code::ResourceExhausted,
        other => panic!("no code goes with {other}"),
    }
}

/// Reads an answer, and checks that an error has the documented form.
pub(crate) fn outcome(answer: &Answer) -> Result<Value, Refusal> {
    assert!(answer.head.contains("\r\nlowkey-cluster: "), "{answer:?}");
    let body = answer.json();
    if answer.status == 200 {
        return Ok(body);
    }
    let reason = body["reason"].as_str().unwrap_or_else(|| panic!("no reason: {answer:?}"));
    let info = &body["details"][0];
    assert_eq!((&info["reason"], &info["domain"]), (&json!(reason), &json!("lowkey")), "{answer:?}");
    assert!(body["code"].is_number() && body["message"].as_str().is_some_and(|text| !text.is_empty()));
    if let Some(field) = reason.strip_prefix("INVALID_") {
        assert_eq!(info["metadata"]["field"], field.to_lowercase(), "{answer:?}");
    }
    Err((answer.status, reason.to_owned()))
}

#[tokio::test(flavor = "multi_thread")]
async fn lock_names_are_kept_within_their_limits() {
    let mut target = Target::start();
    let lease = target.lease("o").await;
    let acquire = |lock: &str| json!({"lock_name": lock, "owner_id": "o", "lease_id": lease});

    // Acquiring by the same lease again gives the same grant, so it can be asked in both dialects.
    let long = "x".repeat(512);
    let wide = "é".repeat(256);
    let segments = vec!["a"; 32].join("/");
    for good in ["x", "/x", "a/b", "a b", "...", "a/..b", "ключ/鍵/🔑", &long, &wide, &segments] {
        target.assert_ok("/v1/lock/acquire", acquire(good)).await;
    }
    for bad in [
        "",
        &"x".repeat(513),
        &format!("{}x", "é".repeat(256)),
        &"🔑".repeat(129),
        &"x".repeat(60_000),
        "/",
        "//",
        "//a",
        "a//b",
        "a/",
        ".",
        "..",
        "a/./b",
        "../a",
        "a/..",
        "a\0b",
        "a\nb",
        "\u{1b}[31m",
        "a\u{7f}",
        "a\u{85}b",
    ] {
        target.assert_refused("/v1/lock/acquire", acquire(bad), 400, "INVALID_LOCK_NAME").await;
        let release = json!({"lock_name": bad, "lease_id": lease});
        target.assert_refused("/v1/lock/release", release, 400, "INVALID_LOCK_NAME").await;
        let read = target
            .client
            .get_lock(GetLockRequest { lock_name: bad.to_owned(), stale: false })
            .await
            .unwrap_err();
        assert_eq!(ApiError::from_status(&read).unwrap().reason.as_str(), "INVALID_LOCK_NAME", "{bad:.20}");
    }

    target.assert_unharmed().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn owners_and_request_ids_are_kept_within_their_limits() {
    let mut target = Target::start();
    let lease = target.lease("o").await;
    let acquire = |lock: &str| json!({"lock_name": lock, "owner_id": "o", "lease_id": lease});

    for good in ["o", &"o".repeat(256), &"é".repeat(128), "a/b c", " "] {
        target.assert_ok("/v1/lease", json!({"owner_id": good, "ttl_seconds": 600})).await;
    }
    for bad in ["", &"o".repeat(257), &format!("o{}", "é".repeat(128)), "a\tb", "\u{7f}"] {
        let create = json!({"owner_id": bad, "ttl_seconds": 600});
        target.assert_refused("/v1/lease", create, 400, "INVALID_OWNER_ID").await;
        let one_call = json!({"lock_name": "a", "owner_id": bad, "ttl_seconds": 600});
        target.assert_refused("/v1/lock/acquire", one_call, 400, "INVALID_OWNER_ID").await;
        let revoke = json!({"lease_id": lease, "owner_id": bad});
        target.assert_refused("/v1/lease/revoke", revoke, 400, "INVALID_OWNER_ID").await;
    }

    for good in ["r", &"r".repeat(64), &"é".repeat(32)] {
        target.assert_ok("/v1/lease", json!({"owner_id": "o", "ttl_seconds": 600, "request_id": good})).await;
    }
    for bad in ["r".repeat(65), format!("r{}", "é".repeat(32)), "a\nb".into()] {
        let create = json!({"owner_id": "o", "ttl_seconds": 600, "request_id": bad});
        target.assert_refused("/v1/lease", create, 400, "INVALID_REQUEST_ID").await;
        let mut named = acquire("x");
        named["request_id"] = json!(bad);
        target.assert_refused("/v1/lock/acquire", named, 400, "INVALID_REQUEST_ID").await;
        let release = json!({"lock_name": "x", "owner_id": "o", "acquire_request_id": bad});
        target.assert_refused("/v1/lock/release", release, 400, "INVALID_ACQUIRE_REQUEST_ID").await;
    }

    target.assert_unharmed().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn times_are_kept_within_their_limits_and_nothing_is_done_by_halves() {
    let mut target = Target::start();
    let lease = target.lease("o").await;
    let acquire = |lock: &str| json!({"lock_name": lock, "owner_id": "o", "lease_id": lease});

    for good in [1, 600] {
        target.assert_ok("/v1/lease", json!({"owner_id": "o", "ttl_seconds": good})).await;
    }
    for bad in [0, -1, 601, 65_537, i64::from(i32::MAX), i64::MAX, i64::MIN] {
        let create = json!({"owner_id": "o", "ttl_seconds": bad});
        target.assert_refused("/v1/lease", create, 400, "INVALID_TTL_SECONDS").await;
        if bad != 0 {
            let one_call = json!({"lock_name": "a", "owner_id": "o", "ttl_seconds": bad});
            target.assert_refused("/v1/lock/acquire", one_call, 400, "INVALID_TTL_SECONDS").await;
        }
    }

    for good in
        [json!({"wait_ms": 86_400_000}), json!({"value": "v".repeat(4096)}), json!({"mode": "EXCLUSIVE"})]
    {
        let mut request = acquire("free");
        request.as_object_mut().unwrap().extend(good.as_object().unwrap().clone());
        target.assert_ok("/v1/lock/acquire", request).await;
    }
    for (field, value, reason) in [
        ("wait_ms", json!(-1), "INVALID_WAIT_MS"),
        ("wait_ms", json!(86_400_001), "INVALID_WAIT_MS"),
        ("wait_ms", json!(i64::MAX), "INVALID_WAIT_MS"),
        ("wait_ms", json!(i64::MIN), "INVALID_WAIT_MS"),
        ("value", json!("v".repeat(4097)), "INVALID_VALUE"),
        ("value", json!("é".repeat(2049)), "INVALID_VALUE"),
        ("value", json!("v".repeat(50_000)), "INVALID_VALUE"),
        ("ttl_seconds", json!(10), "INVALID_TTL_SECONDS"), // beside a lease
        ("lease_id", json!(0), "INVALID_LEASE_ID"),
    ] {
        let mut request = acquire("not/there/yet");
        request[field] = value;
        target.assert_refused("/v1/lock/acquire", request, 400, reason).await;
    }
    assert!(
        target.node.ok("GET", "/v1/lock?name=not/there/yet", "")["holders"].as_array().unwrap().is_empty()
    );
    // Numbers that no version has a word for, which JSON cannot say.
    for (mode, scope, reason) in [(99, 0, "INVALID_MODE"), (-1, 0, "INVALID_MODE"), (0, 99, "INVALID_SCOPE")]
    {
        let request = AcquireLockRequest {
            lock_name: "a".into(),
            owner_id: "o".into(),
            lease_id: lease,
            mode,
            scope,
            ..AcquireLockRequest::default()
        };
        let status = target.client.acquire_lock(request).await.unwrap_err();
        assert_eq!(ApiError::from_status(&status).unwrap().reason.as_str(), reason);
    }

    target.assert_unharmed().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_describes_itself_badly_is_not_registered() {
    let mut target = Target::start();
    let peer = |field: &str, value: &str| {
        let mut request = json!({
            "node_id": "n9", "raft_address": "127.0.0.1:1", "grpc_address": "127.0.0.1:2",
            "http_address": "127.0.0.1:3", "identity": "00112233445566778899aabbccddeeff", "command_version": 1
        });
        request[field] = json!(value);
        request
    };
    let long_address = format!("{}:1", "h".repeat(255));
    for (field, value, reason) in [
        ("node_id", "", "INVALID_NODE_ID"),
        ("node_id", &"n".repeat(129), "INVALID_NODE_ID"),
        ("node_id", "a\nb", "INVALID_NODE_ID"),
        ("identity", "", "INVALID_IDENTITY"),
        ("identity", "00112233445566778899aabbccddeefg", "INVALID_IDENTITY"),
        ("identity", "00112233445566778899aabbccddeeff0", "INVALID_IDENTITY"),
        ("raft_address", "", "INVALID_RAFT_ADDRESS"),
        ("raft_address", "127.0.0.1", "INVALID_RAFT_ADDRESS"),
        ("raft_address", "127.0.0.1:0", "INVALID_RAFT_ADDRESS"),
        ("raft_address", "a b:1", "INVALID_RAFT_ADDRESS"),
        ("grpc_address", "127.0.0.1:65536", "INVALID_GRPC_ADDRESS"),
        ("http_address", &long_address, "INVALID_HTTP_ADDRESS"),
    ] {
        target.assert_refused("/v1/cluster/peers", peer(field, value), 400, reason).await;
    }
    target.assert_refused("/v1/cluster/peers", peer("node_id", "n1"), 409, "NODE_NAME_TAKEN").await;
    assert_eq!(target.node.status().unwrap()["members"].as_array().unwrap().len(), 1, "nobody was let in");
    target.assert_unharmed().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_anothers_or_gone_is_refused_and_left_alone() {
    let mut target = Target::start();
    let (mine, other) = (target.lease("me").await, target.lease("other").await);
    let acquire = json!({"lock_name": "l", "owner_id": "me", "lease_id": mine});
    let grant = target.assert_ok("/v1/lock/acquire", acquire).await;
    let token: u64 = grant["fencingToken"].as_str().unwrap().parse().unwrap();

    for unknown in [other + 1_000, u64::MAX] {
        let (renew, acquire, revoke) = (
            json!({"lease_id": unknown}),
            json!({"lock_name": "free", "owner_id": "me", "lease_id": unknown}),
            json!({"lease_id": unknown, "owner_id": "me"}),
        );
        target.assert_refused("/v1/lease/renew", renew, 404, "LEASE_NOT_FOUND").await;
        target.assert_refused("/v1/lock/acquire", acquire, 404, "LEASE_NOT_FOUND").await;
        target.assert_refused("/v1/lease/revoke", revoke, 404, "LEASE_NOT_FOUND").await;
        let release = json!({"lock_name": "l", "lease_id": unknown});
        target.assert_refused("/v1/lock/release", release, 403, "NOT_OWNER").await;
    }
    target.assert_refused("/v1/lease/renew", json!({"lease_id": 0}), 400, "INVALID_LEASE_ID").await;
    let nobody = json!({"lease_id": 0, "owner_id": "me"});
    target.assert_refused("/v1/lease/revoke", nobody, 400, "INVALID_LEASE_ID").await;
    let nothing = json!({"lock_name": "l"});
    target.assert_refused("/v1/lock/release", nothing, 400, "INVALID_LEASE_ID").await;
    let no_owner = json!({"lock_name": "l", "acquire_request_id": "r"});
    target.assert_refused("/v1/lock/release", no_owner, 400, "INVALID_OWNER_ID").await;

    let held = json!({"lock_name": "l", "owner_id": "other", "lease_id": other});
    target.assert_refused("/v1/lock/acquire", held, 409, "LOCK_HELD").await;
    let not_mine = json!({"lock_name": "free", "owner_id": "me", "lease_id": other});
    target.assert_refused("/v1/lock/acquire", not_mine, 403, "NOT_OWNER").await;
    let revoke = json!({"lease_id": mine, "owner_id": "other"});
    target.assert_refused("/v1/lease/revoke", revoke, 403, "NOT_OWNER").await;
    for stale in [token - 1, token + 1, u64::MAX].into_iter().filter(|stale| *stale != 0) {
        let release = json!({"lock_name": "l", "lease_id": mine, "fencing_token": stale});
        target.assert_refused("/v1/lock/release", release, 409, "STALE_TOKEN").await;
    }
    let others = json!({"lock_name": "l", "lease_id": other});
    target.assert_refused("/v1/lock/release", others, 403, "NOT_OWNER").await;
    // R10: giving up what never came is no error, touches nobody's lock, and is final.
    let never = json!({"lock_name": "l", "acquire_request_id": "never", "owner_id": "me"});
    for _ in 0..2 {
        assert_eq!(target.assert_ok("/v1/lock/release", never.clone()).await, json!({"released": true}));
    }
    for lock in ["l", "free"] {
        let late = json!({"lock_name": lock, "owner_id": "me", "ttl_seconds": 60, "request_id": "never"});
        target.assert_refused("/v1/lock/acquire", late, 409, "WAIT_CANCELLED").await;
    }
    let free = json!({"lock_name": "free", "lease_id": mine});
    target.assert_refused("/v1/lock/release", free, 404, "LOCK_NOT_FOUND").await;

    // The stream of renewals answers each by itself, and goes on.
    let beats = [0, u64::MAX, mine].map(|lease_id| HeartbeatRequest { lease_id, seq: lease_id, holds: None });
    let mut answers = target.client.heartbeat(tokio_stream::iter(beats)).await.unwrap().into_inner();
    let mut reasons = Vec::new();
    while let Some(answer) = answers.next().await {
        let answer = answer.unwrap();
        assert_eq!(answer.seq, answer.lease_id);
        reasons.push((answer.lease_id, answer.error_reason));
    }
    reasons.sort();
    assert_eq!(
        reasons,
        [(0, "INVALID_LEASE_ID".to_owned()), (mine, String::new()), (u64::MAX, "LEASE_NOT_FOUND".to_owned())]
    );

    let holder = target.node.ok("GET", "/v1/lock?name=l", "");
    assert_eq!(holder["holders"][0]["fencingToken"], token.to_string(), "nothing was touched");
    target.assert_unharmed().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_id_is_for_one_thing() {
    let mut target = Target::start();
    let create = |ttl: i64, id: &str| json!({"owner_id": "o", "ttl_seconds": ttl, "request_id": id});
    let first = target.assert_ok("/v1/lease", create(600, "one")).await;
    assert_eq!(target.assert_ok("/v1/lease", create(600, "one")).await, first, "the first answer again");
    target.assert_refused("/v1/lease", create(599, "one"), 400, "INVALID_REQUEST_ID").await;
    let as_acquire = json!({"lock_name": "l", "owner_id": "o", "ttl_seconds": 600, "request_id": "one"});
    target.assert_refused("/v1/lock/acquire", as_acquire, 400, "INVALID_REQUEST_ID").await;
    let lease: u64 = first["leaseId"].as_str().unwrap().parse().unwrap();
    let acquire =
        |lock: &str| json!({"lock_name": lock, "owner_id": "o", "lease_id": lease, "request_id": "a"});
    target.assert_ok("/v1/lock/acquire", acquire("l")).await;
    target.assert_refused("/v1/lock/acquire", acquire("k"), 400, "INVALID_REQUEST_ID").await;
    let release = json!({"lock_name": "l", "lease_id": lease, "request_id": "a"});
    target.assert_refused("/v1/lock/release", release, 400, "INVALID_REQUEST_ID").await;

    let keyed = |headers: &str, body: &Value| {
        let port = target.node.ports.http;
        outcome(&http_with(port, "POST", "/v1/lease", headers, body.to_string().as_bytes()).unwrap())
    };
    let refused = Err((400, "INVALID_REQUEST_ID".to_owned()));
    let plain = json!({"owner_id": "o", "ttl_seconds": 600});
    let by_header = keyed("idempotency-key: two\r\n", &plain).unwrap();
    assert_eq!(keyed("Idempotency-Key: two\r\n", &plain), Ok(by_header.clone()));
    assert_eq!(keyed("idempotency-key: two\r\n", &create(600, "two")), Ok(by_header.clone()));
    assert_eq!(keyed("", &create(600, "two")), Ok(by_header), "header and body are one");
    assert_eq!(keyed("idempotency-key: two\r\n", &create(600, "three")), refused);
    assert_eq!(keyed("idempotency-key: two\r\nidempotency-key: two\r\n", &plain), refused);
    assert_eq!(keyed(&format!("idempotency-key: {}\r\n", "k".repeat(65)), &plain), refused);
    assert_eq!(keyed("idempotency-key: a\tb\r\n", &plain), refused);
    let longest = format!("idempotency-key: {}\r\n", "k".repeat(64));
    assert_eq!(keyed(&longest, &plain).unwrap(), keyed(&longest, &plain).unwrap());
    target.assert_unharmed().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn values_of_the_wrong_kind_are_told_by_their_field() {
    let mut target = Target::start();
    for (value, reason) in [
        ("9223372036854775808", "INVALID_TTL_SECONDS"),
        ("\"9223372036854775808\"", "INVALID_TTL_SECONDS"),
        ("-9223372036854775809", "INVALID_TTL_SECONDS"),
        ("\"abc\"", "INVALID_TTL_SECONDS"),
        ("\"\"", "INVALID_TTL_SECONDS"),
        ("1.5", "INVALID_TTL_SECONDS"),
        ("true", "INVALID_TTL_SECONDS"),
        ("[10]", "INVALID_TTL_SECONDS"),
        ("{}", "INVALID_TTL_SECONDS"),
        ("null", "INVALID_TTL_SECONDS"),
        ("1e999", "INVALID_BODY"),
        ("0x10", "INVALID_BODY"),
        ("NaN", "INVALID_BODY"),
    ] {
        let body = format!(r#"{{"owner_id":"o","ttl_seconds":{value}}}"#);
        target.assert_http_refused("/v1/lease", body, 400, reason);
    }
    for (path, body, reason) in [
        ("/v1/lease/renew", r#"{"lease_id":18446744073709551616}"#, "INVALID_LEASE_ID"),
        ("/v1/lease/renew", r#"{"lease_id":-1}"#, "INVALID_LEASE_ID"),
        ("/v1/lease/renew", r#"{"lease_id":"one"}"#, "INVALID_LEASE_ID"),
        ("/v1/lock/acquire", r#"{"lock_name":7}"#, "INVALID_LOCK_NAME"),
        ("/v1/lock/acquire", r#"{"owner_id":{"a":1}}"#, "INVALID_OWNER_ID"),
        ("/v1/lock/acquire", r#"{"mode":"EVERYBODY"}"#, "INVALID_MODE"),
        ("/v1/lock/acquire", r#"{"mode":"shared"}"#, "INVALID_MODE"),
        ("/v1/lock/acquire", r#"{"mode":true}"#, "INVALID_MODE"),
        ("/v1/lock/acquire", r#"{"scope":"TREE"}"#, "INVALID_SCOPE"),
        ("/v1/lock/acquire", r#"{"scope":true}"#, "INVALID_SCOPE"),
        ("/v1/lock/acquire", r#"{"wait_ms":"soon"}"#, "INVALID_WAIT_MS"),
        ("/v1/lock/acquire", r#"{"value":1}"#, "INVALID_VALUE"),
        ("/v1/lock/acquire", r#"{"lock_name":"\ud800"}"#, "INVALID_BODY"),
        ("/v1/lock/release", r#"{"fencing_token":18446744073709551616}"#, "INVALID_FENCING_TOKEN"),
        ("/v1/cluster/peers", r#"{"command_version":4294967296}"#, "INVALID_COMMAND_VERSION"),
    ] {
        target.assert_http_refused(path, body, 400, reason);
    }

    target.assert_unharmed().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_field_that_no_call_has_changes_nothing() {
    let mut target = Target::start();
    let lease = target.lease("o").await;
    let grant = target
        .assert_ok("/v1/lock/acquire", json!({"lock_name": "guarded", "owner_id": "o", "lease_id": lease}))
        .await;
    let token: u64 = grant["fencingToken"].as_str().unwrap().parse().unwrap();
    let wrong = token + 1;
    for (body, reason) in [
        (format!(r#"{{"lock_name":"guarded","lease_id":{lease},"fencing_tokn":{wrong}}}"#), "UNKNOWN_FIELD"),
        (
            format!(
                r#"{{"lock_name":"guarded","lease_id":{lease},"fencingToken":{wrong},"fencingToken":null}}"#
            ),
            "INVALID_BODY",
        ),
        (
            format!(
                r#"{{"lock_name":"guarded","lease_id":{lease},"fencing_token":null,"fencingToken":{wrong}}}"#
            ),
            "INVALID_BODY",
        ),
    ] {
        target.assert_http_refused("/v1/lock/release", body, 400, reason);
    }
    let asked = format!("/v1/lock/release?fencing_token={wrong}");
    let body = format!(r#"{{"lock_name":"guarded","lease_id":{lease}}}"#);
    target.assert_http_refused(&asked, body, 400, "UNKNOWN_FIELD");
    let shared = format!(r#"{{"lock_name":"new","owner_id":"o","lease_id":{lease},"modus":"SHARED"}}"#);
    target.assert_http_refused("/v1/lock/acquire", shared, 400, "UNKNOWN_FIELD");

    let held = target.node.ok("GET", "/v1/lock?name=guarded", "");
    assert_eq!(held["holders"][0]["fencingToken"], json!(token.to_string()), "nothing released it");
    let free = target.node.ok("GET", "/v1/lock?name=new", "");
    assert_eq!(free["holders"], json!([]), "nobody was granted anything");
    target.assert_unharmed().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_is_no_json_object_is_refused() {
    let mut target = Target::start();
    let deep =
        ["[".repeat(10_000), r#"{"a":"#.repeat(10_000), format!("{{\"owner_id\":{}", "[".repeat(10_000))];
    let closed = format!("{}{}", "[".repeat(10_000), "]".repeat(10_000));
    let not_bodies: [&[u8]; 23] = [
        b"",
        b" \r\n\t",
        b"{",
        b"}",
        b"{]",
        b"[]",
        b"[{}]",
        b"\"text\"",
        b"7",
        b"true",
        b"null",
        b"{}{}",
        b"{'owner_id':'o'}",
        b"owner_id=o&ttl_seconds=10",
        b"{\"owner_id\":\"\xff\xfe\",\"ttl_seconds\":10}",
        b"\xef\xbb\xbf{}",
        b"{\"owner_id\":\"a\",\"owner_id\":\"b\",\"ttl_seconds\":10}",
        b"{\"owner_id\":\"a\",\"ownerId\":\"a\",\"ttl_seconds\":10}",
        b"{\"owner_id\":\"a\",\"owner_id\":null,\"ttl_seconds\":10}",
        b"{\"owner_id\":null,\"ownerId\":\"a\",\"ttl_seconds\":10}",
        b"{\"owner_id\":\"a\",\"ttl_seconds\":10,\"request_id\":null,\"request_id\":null}",
        b"{\"owner_id\":\"a\nb\",\"ttl_seconds\":10}",
        b"\0\0\0\0",
    ];
    for path in ["/v1/lease", "/v1/lease/renew", "/v1/lease/revoke", "/v1/lock/acquire", "/v1/lock/release"] {
        for body in &not_bodies[..14] {
            target.assert_http_refused(path, body, 400, "INVALID_BODY");
        }
        for body in &deep {
            target.assert_http_refused(path, body, 400, "INVALID_BODY");
        }
        target.assert_http_refused(path, &closed, 400, "INVALID_BODY");
    }
    for body in &not_bodies[14..] {
        target.assert_http_refused("/v1/lease", body, 400, "INVALID_BODY");
    }

    target.assert_unharmed().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_may_have_64_kibibytes_and_not_one_more() {
    let mut target = Target::start();
    let padded = |bytes: usize| {
        let mut body = br#"{"owner_id":"o","ttl_seconds":600}"#.to_vec();
        body.resize(bytes, b' ');
        body
    };
    assert!(target.http("/v1/lease", &padded(64 * KIBIBYTE)).is_ok());
    for bytes in [64 * KIBIBYTE + 1, KIBIBYTE * KIBIBYTE] {
        target.assert_http_refused("/v1/lease", padded(bytes), 413, "BODY_TOO_LARGE");
    }
    let mut chunked = format!("{:x}\r\n", 65 * KIBIBYTE).into_bytes();
    chunked.extend(padded(65 * KIBIBYTE));
    chunked.extend(b"\r\n0\r\n\r\n");
    let head = "POST /v1/lease HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n";
    let mut stream = TcpStream::connect(("127.0.0.1", target.node.ports.http)).unwrap();
    stream.write_all(&[head.as_bytes(), &chunked].concat()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 413 ") && answer.contains("BODY_TOO_LARGE"), "{answer}");

    target.assert_unharmed().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn urls_that_lead_nowhere_are_answered_like_everything_else() {
    let mut target = Target::start();
    for query in [
        "",
        "?",
        "?stale=1",
        "?name",
        "?name=",
        "?name=%FF",
        "?name=%C3",
        "?name=%",
        "?name=%zz",
        "?name=a&name=b",
        "?name=a&lock_name=a",
        "?name=%00",
        "?name=a%2F%2Fb",
        "?name=..",
        &format!("?name={}", "x".repeat(513)),
    ] {
        let answer = http_with(target.node.ports.http, "GET", &format!("/v1/lock{query}"), "", b"").unwrap();
        assert_eq!(outcome(&answer), Err((400, "INVALID_LOCK_NAME".into())), "{query}");
    }

    for query in ["?lock=a", "?name=a&stael=1", "?=", &format!("?{}=1", "x".repeat(5000))] {
        let answer = http_with(target.node.ports.http, "GET", &format!("/v1/lock{query}"), "", b"").unwrap();
        assert_eq!(outcome(&answer), Err((400, "UNKNOWN_FIELD".into())), "{query}");
        assert!(answer.body.len() < 1000, "{answer:?}");
    }

    for (method, path, status, reason, allow) in [
        ("GET", "/v1", 404, "NO_SUCH_ROUTE", None),
        ("POST", "/v1/lock/acquire/", 404, "NO_SUCH_ROUTE", None),
        ("POST", "/V1/LEASE", 404, "NO_SUCH_ROUTE", None),
        ("GET", "/v1/../../etc/passwd", 404, "NO_SUCH_ROUTE", None),
        ("GET", "/%2e%2e/%00", 404, "NO_SUCH_ROUTE", None),
        ("DELETE", "/v1/cluster/peers/n1", 409, "QUORUM_AT_RISK", None),
        ("DELETE", "/v1/cluster/peers/n2", 404, "NODE_NOT_FOUND", None),
        ("DELETE", "/v1/cluster/peers/a%0Ab", 400, "INVALID_NODE_ID", None),
        ("DELETE", "/v1/cluster/peers/%ff", 400, "INVALID_NODE_ID", None),
        ("GET", "/v1/cluster/peers/n1", 405, "METHOD_NOT_ALLOWED", Some("DELETE")),
        ("GET", "/v1/lease/renew", 405, "METHOD_NOT_ALLOWED", Some("POST")),
        ("DELETE", "/v1/lock/release", 405, "METHOD_NOT_ALLOWED", Some("POST")),
        ("POST", "/v1/status", 405, "METHOD_NOT_ALLOWED", Some("GET,HEAD")),
        ("BREW", "/v1/lock", 405, "METHOD_NOT_ALLOWED", Some("GET,HEAD")),
    ] {
        let answer = http_with(target.node.ports.http, method, path, "", b"{}").unwrap();
        assert_eq!(outcome(&answer), Err((status, reason.to_owned())), "{method} {path}");
        if let Some(allow) = allow {
            assert!(answer.head.contains(&format!("\r\nallow: {allow}")), "{answer:?}");
        }
    }
    target.assert_unharmed().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn elections_and_checks_are_kept_within_the_limits_of_locks() {
    let mut target = Target::start();
    let lease = target.lease("o").await;
    let campaign = json!({"election": "e", "owner_id": "o", "lease_id": lease, "wait_ms": 0});
    target.assert_ok("/v1/election/campaign", campaign.clone()).await;
    for (field, value, reason) in [
        ("election", json!(""), "INVALID_ELECTION"),
        ("election", json!("a//b"), "INVALID_ELECTION"),
        ("election", json!("x".repeat(513)), "INVALID_ELECTION"),
        ("owner_id", json!(""), "INVALID_OWNER_ID"),
        ("lease_id", json!(0), "INVALID_LEASE_ID"),
        ("value", json!("v".repeat(4097)), "INVALID_VALUE"),
        ("request_id", json!("r".repeat(65)), "INVALID_REQUEST_ID"),
    ] {
        let mut request = campaign.clone();
        request[field] = value;
        for path in ["/v1/election/campaign", "/v1/election/proclaim", "/v1/election/resign"] {
            let asked = match path {
                "/v1/election/resign" => !["owner_id", "value"].contains(&field),
                _ => true,
            };
            if asked {
                let mut request = request.clone();
                // Only a campaign waits.
                if path != "/v1/election/campaign" {
                    request.as_object_mut().unwrap().remove("wait_ms");
                }
                target.assert_refused(path, request, 400, reason).await;
            }
        }
    }
    for wait_ms in [-1, 86_400_001, i64::MAX] {
        let mut request = campaign.clone();
        request["wait_ms"] = json!(wait_ms);
        target.assert_refused("/v1/election/campaign", request, 400, "INVALID_WAIT_MS").await;
    }
    let unnamed = json!({"election": "e", "lease_id": lease, "campaign_request_id": "r".repeat(65)});
    target.assert_refused("/v1/election/resign", unnamed, 400, "INVALID_CAMPAIGN_REQUEST_ID").await;
    let stranger = json!({"election": "e", "owner_id": "x", "lease_id": lease, "value": "v"});
    target.assert_refused("/v1/election/proclaim", stranger, 403, "NOT_OWNER").await;
    for (lock, token, reason) in [("a//b", 1, "INVALID_LOCK_NAME"), ("a", 0, "INVALID_FENCING_TOKEN")] {
        let check = json!({"lock_name": lock, "fencing_token": token});
        target.assert_refused("/v1/lock/check", check, 400, reason).await;
    }
    let leader = target.node.ok("GET", "/v1/election/leader?election=e", "");
    assert_eq!((&leader["leader"]["ownerId"], &leader["leader"]["value"]), (&json!("o"), &json!("")));
    target.assert_unharmed().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_listed_or_watched_is_told_by_its_field() {
    let mut target = Target::start();
    let long = "x".repeat(513);
    for (path, reason) in [
        ("/v1/locks?prefix=//", "INVALID_PREFIX"),
        ("/v1/locks?prefix=a//b", "INVALID_PREFIX"),
        ("/v1/locks?prefix=a/../b", "INVALID_PREFIX"),
        ("/v1/locks?prefix=a%00b", "INVALID_PREFIX"),
        ("/v1/locks?prefix=a%0Ab", "INVALID_PREFIX"),
        ("/v1/locks?prefix=%", "INVALID_PREFIX"),
        ("/v1/locks?prefix=%zz", "INVALID_PREFIX"),
        ("/v1/locks?prefix=%FF", "INVALID_PREFIX"),
        ("/v1/locks?prefix=a&prefix=a", "INVALID_PREFIX"),
        (&format!("/v1/locks?prefix={long}"), "INVALID_PREFIX"),
        ("/v1/locks?page_size=1001", "INVALID_PAGE_SIZE"),
        ("/v1/locks?page_size=-1", "INVALID_PAGE_SIZE"),
        ("/v1/locks?page_token=//", "INVALID_PAGE_TOKEN"),
        ("/v1/locks?stale=maybe", "INVALID_STALE"),
        ("/v1/watch?prefix=//", "INVALID_PREFIX"),
        ("/v1/watch?prefix=%7F", "INVALID_PREFIX"),
        ("/v1/watch?prefix=%4", "INVALID_PREFIX"),
        ("/v1/watch?name=a&prefix=a", "INVALID_PREFIX"),
        ("/v1/watch?name=", "INVALID_NAME"),
        ("/v1/watch?name=a//b", "INVALID_NAME"),
        ("/v1/watch?name=%", "INVALID_NAME"),
        ("/v1/watch?from=0", "INVALID_FROM"),
        ("/v1/watch?from=now", "INVALID_FROM"),
        ("/v1/watch?from=1000000", "INVALID_FROM"),
        ("/v1/watch?from=18446744073709551615", "INVALID_FROM"),
        ("/v1/watch?from=18446744073709551616", "INVALID_FROM"),
        ("/v1/watch?after=yesterday", "INVALID_AFTER"),
        ("/v1/watch?after=1000000.0", "INVALID_AFTER"),
        ("/v1/watch?after=18446744073709551615", "INVALID_AFTER"),
        ("/v1/watch?from=1&after=1.0", "INVALID_AFTER"),
        ("/v1/election/leader", "INVALID_ELECTION"),
        ("/v1/election/leader?election=//", "INVALID_ELECTION"),
        ("/v1/election/observe?election=%00", "INVALID_ELECTION"),
    ] {
        let answer = http_with(target.node.ports.http, "GET", path, "", b"").unwrap();
        assert_eq!(outcome(&answer), Err((400, reason.to_owned())), "{path}");
    }
    let port = target.node.ports.http;
    let answer = http_with(port, "GET", "/v1/watch?name=a", "last-event-id: x\r\n", b"").unwrap();
    assert_eq!(outcome(&answer), Err((400, "INVALID_AFTER".to_owned())));

    let watch = |name: &str, prefix: &str, from: u64, after: &str| WatchRequest {
        name: name.to_owned(),
        prefix: prefix.to_owned(),
        from,
        after: after.to_owned(),
    };
    for (request, reason) in [
        (watch("a//b", "", 0, ""), "INVALID_NAME"),
        (watch("a", "a", 0, ""), "INVALID_PREFIX"),
        (watch("", "//", 0, ""), "INVALID_PREFIX"),
        (watch("", "a\nb", 0, ""), "INVALID_PREFIX"),
        (watch("", &long, 0, ""), "INVALID_PREFIX"),
        (watch("", "", u64::MAX, ""), "INVALID_FROM"),
        (watch("", "", 0, "1.2.3"), "INVALID_AFTER"),
        (watch("", "", 1, "1.0"), "INVALID_AFTER"),
    ] {
        let status = target.client.watch(request.clone()).await.err().unwrap();
        assert_eq!(ApiError::from_status(&status).unwrap().reason.as_str(), reason, "{request:?}");
    }
    let list = ListLocksRequest { page_size: u32::MAX, ..ListLocksRequest::default() };
    let status = target.client.list_locks(list).await.unwrap_err();
    assert_eq!(ApiError::from_status(&status).unwrap().reason.as_str(), "INVALID_PAGE_SIZE");
    target.assert_unharmed().await;
}
