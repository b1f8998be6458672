//! The HTTP port, as `curl` and its like see it.

use std::sync::atomic::Ordering;

use crate::fake::{CLUMSY_OWNER, CLUSTER_ID, EAGER_OWNER};
use crate::support::{Edge, exchange};

const LEASE: &str = r#"{"ownerId":"a","ttlSeconds":10}"#;

#[tokio::test]
async fn answers_are_exactly_as_documented() {
    let edge = Edge::start().await;
    let lease = edge.post("/v1/lease", LEASE).await;
    assert_eq!((lease.status, lease.text()), (200, r#"{"leaseId":"1","ttlSeconds":"10"}"#));
    assert_eq!(lease.header("content-type"), "application/json");

    let renewed = edge.post("/v1/lease/renew", r#"{"leaseId":"1"}"#).await;
    assert_eq!((renewed.status, renewed.text()), (200, r#"{"ttlSeconds":"10","holdsDiffer":false}"#));

    let grant = edge.post("/v1/lock/acquire", r#"{"lockName":"jobs","ownerId":"a","leaseId":1}"#).await;
    assert!(grant.body.starts_with(r#"{"fencingToken":"1","leaseTtlSeconds":"10""#), "{}", grant.body);

    let lock = edge.get("/v1/lock?name=jobs").await.json();
    assert_eq!(lock["holders"][0]["ownerId"], "a");
    assert_eq!(lock["holders"][0]["mode"], "EXCLUSIVE");

    let released = edge.post("/v1/lock/release", r#"{"lockName":"jobs","leaseId":1}"#).await;
    assert_eq!((released.status, released.text()), (200, r#"{"released":true}"#));

    let revoked = edge.post("/v1/lease/revoke", r#"{"leaseId":1,"ownerId":"a"}"#).await;
    assert_eq!((revoked.status, revoked.text()), (200, r#"{"released":"2"}"#));

    let status = edge.get("/v1/status").await.json();
    assert_eq!((status["nodeId"].as_str(), status["leaderAddress"].as_str()), (Some("node-1"), Some("")));

    let added = edge.post("/v1/cluster/peers", r#"{"nodeId":"node-2","raftAddress":"127.0.0.1:1"}"#).await;
    assert_eq!((added.status, added.json()["memberId"].as_str()), (200, Some("2")));
    let handed = edge.post("/v1/cluster/transfer", r#"{"nodeId":"node-2"}"#).await;
    assert_eq!((handed.status, handed.json()["leaderId"].as_str()), (200, Some("node-2")));
    let removed = edge.delete("/v1/cluster/peers/node%2D2").await;
    assert_eq!((removed.status, removed.text()), (200, r#"{"memberId":"2"}"#));
    let unknown = edge.delete("/v1/cluster/peers/node-3").await;
    assert_eq!((unknown.status, unknown.reason().as_str()), (404, "NODE_NOT_FOUND"));
}

#[tokio::test]
async fn a_body_is_json_in_either_casing_whatever_its_content_type() {
    let edge = Edge::start().await;
    for headers in ["", "content-type: application/x-www-form-urlencoded\r\n", "content-type: text/plain\r\n"]
    {
        for body in [LEASE, r#"{"owner_id":"a","ttl_seconds":"10","request_id":null}"#] {
            let lease = edge.post_with("/v1/lease", headers, body).await;
            assert_eq!(lease.text(), r#"{"leaseId":"1","ttlSeconds":"10"}"#, "{headers}{body}");
        }
    }
}

#[tokio::test]
async fn a_refusal_has_the_documented_form() {
    let edge = Edge::start().await;
    edge.post("/v1/lock/acquire", r#"{"lockName":"jobs","ownerId":"a","leaseId":1}"#).await;
    let refused = edge.post("/v1/lock/acquire", r#"{"lockName":"jobs","ownerId":"b","leaseId":2}"#).await;
    assert_eq!((refused.status, refused.reason().as_str()), (409, "LOCK_HELD"));
    assert!(refused.body.starts_with(r#"{"code":9,"reason":"LOCK_HELD","message":"held by a","details":[{"#));
    assert_eq!(refused.json()["details"][0]["metadata"]["owner_id"], "a");

    let refused = edge.post("/v1/lock/release", r#"{"lockName":"free","leaseId":1}"#).await;
    assert_eq!((refused.status, refused.reason().as_str()), (404, "LOCK_NOT_FOUND"));
}

#[tokio::test]
async fn who_comes_too_early_is_told_when_to_come_back() {
    let edge = Edge::start().await;
    let refused = edge.post("/v1/lease", format!(r#"{{"ownerId":"{EAGER_OWNER}","ttlSeconds":1}}"#)).await;
    assert_eq!((refused.status, refused.reason().as_str()), (429, "LIMIT_BUSY"));
    assert_eq!(refused.header("retry-after"), "2");
    assert_eq!(refused.json()["details"][1]["retryDelay"], "1.200s");
}

#[tokio::test]
async fn a_body_that_does_not_parse_is_refused_with_an_example() {
    let edge = Edge::start().await;
    let deep = "[".repeat(10_000);
    let bodies: [&[u8]; 7] =
        [b"", b"{", b"nonsense", b"[]", b"{\"ownerId\":\"\xff\xfe\"}", b"\xff\xfe\x00", deep.as_bytes()];
    for body in bodies {
        let refused = edge.post("/v1/lease", body).await;
        assert_eq!((refused.status, refused.reason().as_str()), (400, "INVALID_BODY"), "{body:.40?}");
        assert!(refused.json()["message"].as_str().unwrap().contains(LEASE_EXAMPLE), "{}", refused.body);
    }
}

const LEASE_EXAMPLE: &str = r#"{"ownerId":"worker-1","ttlSeconds":10}"#;

#[tokio::test]
async fn a_field_of_the_wrong_kind_is_named() {
    let edge = Edge::start().await;
    let refused = edge.post("/v1/lease", r#"{"ownerId":"a","ttl_seconds":9223372036854775808}"#).await;
    assert_eq!((refused.status, refused.reason().as_str()), (400, "INVALID_TTL_SECONDS"));
    assert!(refused.json()["message"].as_str().unwrap().contains("1 to 600"), "{}", refused.body);

    let refused = edge.post("/v1/lock/acquire", r#"{"lock_name":7,"owner_id":"a"}"#).await;
    assert_eq!((refused.status, refused.reason().as_str()), (400, "INVALID_LOCK_NAME"));
}

#[tokio::test]
async fn what_a_call_does_not_know_is_refused_before_the_node_sees_it() {
    let edge = Edge::start().await;
    edge.post("/v1/lock/acquire", r#"{"lockName":"jobs","ownerId":"a","leaseId":1}"#).await;
    for (path, body, field, nearest) in [
        (
            "/v1/lock/release",
            r#"{"lockName":"jobs","leaseId":1,"fencing_tokn":8}"#,
            "fencing_tokn",
            "fencing_token",
        ),
        (
            "/v1/lock/release",
            r#"{"lockName":"jobs","leaseId":1,"fencingTokn":8}"#,
            "fencingTokn",
            "fencingToken",
        ),
        ("/v1/lock/release?fencing_token=8", r#"{"lockName":"jobs","leaseId":1}"#, "fencing_token", ""),
        (
            "/v1/lock/acquire",
            r#"{"lockName":"b","ownerId":"a","leaseId":1,"modus":"SHARED"}"#,
            "modus",
            "mode",
        ),
        ("/v1/lease/renew", r#"{"leaseId":1,"holds":{"count":1,"digst":"7"}}"#, "holds.digst", "digest"),
    ] {
        let refused = edge.post(path, body).await;
        assert_eq!((refused.status, refused.reason().as_str()), (400, "UNKNOWN_FIELD"), "{path} {body}");
        let json = refused.json();
        let metadata = &json["details"][0]["metadata"];
        assert_eq!(metadata["field"], field, "{body}");
        assert_eq!(metadata["nearest"].as_str().unwrap_or_default(), nearest, "{body}");
        let message = json["message"].as_str().unwrap();
        assert!(message.contains(field) && message.contains(nearest), "{message}");
    }
    let refused = edge.post("/v1/lock/release", r#"{"lockName":"jobs","leaseId":1,"fencing_token":0}"#).await;
    assert_eq!((refused.status, refused.reason().as_str()), (400, "INVALID_FENCING_TOKEN"));
    for body in [
        r#"{"lockName":"jobs","leaseId":1,"fencingToken":8,"fencingToken":null}"#,
        r#"{"lockName":"jobs","leaseId":1,"fencingToken":null,"fencingToken":8}"#,
        r#"{"lockName":"jobs","leaseId":1,"fencing_token":8,"fencingToken":null}"#,
        r#"{"lockName":"jobs","leaseId":1,"fencing_token":8,"fencingToken":8}"#,
    ] {
        let refused = edge.post("/v1/lock/release", body).await;
        assert_eq!((refused.status, refused.reason().as_str()), (400, "INVALID_BODY"), "{body}");
    }
    let lock = edge.get("/v1/lock?name=jobs").await.json();
    assert_eq!(lock["holders"][0]["ownerId"], "a", "nothing was released");

    for target in
        ["/v1/lock?name=jobs&stael=1", "/v1/locks?perfix=jobs", "/v1/status?verbose", "/v1/watch?nam=jobs"]
    {
        let refused = edge.get(target).await;
        assert_eq!((refused.status, refused.reason().as_str()), (400, "UNKNOWN_FIELD"), "{target}");
    }
    let refused = edge.delete("/v1/cluster/peers/node-2?force=true").await;
    assert_eq!((refused.status, refused.reason().as_str()), (400, "UNKNOWN_FIELD"));
    // Probes and scrapes are not the API, and may say what they like.
    assert_eq!(edge.get("/healthz?from=monitoring").await.status, 200);
}

#[tokio::test]
async fn a_body_beyond_the_limit_is_refused_and_the_answer_arrives() {
    let edge = Edge::start().await;
    let body = format!(r#"{{"ownerId":"{}"}}"#, "a".repeat(1024 * 1024));
    let refused = edge.post("/v1/lease", &body).await;
    assert_eq!((refused.status, refused.reason().as_str()), (413, "BODY_TOO_LARGE"));

    // The same without an announced length.
    let head = "POST /v1/lease HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n";
    let chunked = format!("{head}{:x}\r\n{body}\r\n0\r\n\r\n", body.len());
    let refused = exchange(edge.http, &chunked).await;
    assert_eq!((refused.status, refused.reason().as_str()), (413, "BODY_TOO_LARGE"));

    // Who asks first is told before anything is sent.
    let head = "POST /v1/lease HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\nexpect: 100-continue\r\n";
    let refused = exchange(edge.http, format!("{head}content-length: 1048576\r\n\r\n")).await;
    assert_eq!((refused.status, refused.reason().as_str()), (413, "BODY_TOO_LARGE"));
}

#[tokio::test]
async fn a_body_at_the_limit_is_taken() {
    let edge = Edge::start().await;
    let rest = r#"{"ownerId":"a","ttlSeconds":10,"requestId":""}"#.len();
    let padding = " ".repeat(64 * 1024 - rest);
    let body = format!(r#"{{"ownerId":"a","ttlSeconds":10,"requestId":"{padding}"}}"#);
    assert_eq!(edge.post("/v1/lease", &body).await.status, 200);
    assert_eq!(edge.post("/v1/lease", format!("{body} ")).await.status, 413);
}

#[tokio::test]
async fn the_idempotency_key_names_the_request_where_the_body_does_not() {
    let edge = Edge::start().await;
    let named = r#"{"ownerId":"a","ttlSeconds":10,"requestId":"r-2"}"#;
    assert_eq!(edge.post_with("/v1/lease", "idempotency-key: r-1\r\n", LEASE).await.status, 200);
    assert_eq!(edge.post_with("/v1/lease", "Idempotency-Key: r-2\r\n", named).await.status, 200);
    assert_eq!(edge.post("/v1/lease", LEASE).await.status, 200);
    assert_eq!(*edge.node.request_ids.lock().unwrap(), ["r-1", "r-2", ""]);

    let refused = edge.post_with("/v1/lease", "idempotency-key: r-3\r\n", named).await;
    assert_eq!((refused.status, refused.reason().as_str()), (400, "INVALID_REQUEST_ID"));
    let empty = edge.post_with("/v1/lease", "idempotency-key: \r\n", LEASE).await;
    assert_eq!((empty.status, empty.reason().as_str()), (400, "INVALID_REQUEST_ID"));
    let twice = "idempotency-key: r-3\r\nidempotency-key: r-4\r\n";
    assert_eq!(edge.post_with("/v1/lease", twice, LEASE).await.reason(), "INVALID_REQUEST_ID");
}

#[tokio::test]
async fn a_lock_is_asked_for_by_its_escaped_name() {
    let edge = Edge::start().await;
    let lock = edge.get("/v1/lock?name=%2Fjobs%2Fn%C3%BC%20x").await;
    assert_eq!((lock.status, lock.json()["lockName"].as_str()), (200, Some("/jobs/nü x")));
    for target in ["/v1/lock", "/v1/lock?", "/v1/lock?stale=1", "/v1/lock?name=%ff", "/v1/lock?name=%2"] {
        let refused = edge.get(target).await;
        assert_eq!((refused.status, refused.reason().as_str()), (400, "INVALID_LOCK_NAME"), "{target}");
    }
}

#[tokio::test]
async fn every_answer_ends_its_last_line() {
    let edge = Edge::start().await;
    for target in ["/", "/healthz", "/readyz", "/v1/status", "/v1/lock?name=a", "/v1/lock", "/nowhere"] {
        let answer = edge.get(target).await;
        assert!(answer.body.ends_with('\n') && !answer.body.ends_with("\n\n"), "{answer:?}");
        assert_eq!(answer.header("content-length"), answer.body.len().to_string());
    }
    let refused = edge.post("/v1/lease", "{").await;
    assert!(refused.body.ends_with("}\n"), "{refused:?}");
}

#[tokio::test]
async fn the_root_says_what_this_is_and_where_to_look() {
    let edge = Edge::start().await;
    let answer = edge.get("/").await;
    assert_eq!((answer.status, answer.header("content-type")), (200, "application/json"));
    let told = answer.json();
    assert_eq!(told["service"], "lowkey");
    assert_eq!(told["version"], env!("CARGO_PKG_VERSION"));
    assert_eq!(told["grpc"], edge.grpc.to_string());
    assert_eq!(told["calls"]["GET /v1/lock"], "name=LOCK_NAME");
    // What goes on for ever is not among the calls, and is found all the same.
    for (stream, example) in told["streams"].as_object().unwrap() {
        let (method, path) = stream.split_once(' ').unwrap();
        let document = edge.get("/openapi.json").await.json();
        let operation = &document["paths"][path][method.to_lowercase()];
        let (parameter, _) = example.as_str().unwrap().split_once('=').unwrap();
        let parameters = operation["parameters"].as_array().unwrap();
        assert!(parameters.iter().any(|it| it["name"] == parameter), "{stream}: {operation}");
    }
    assert_eq!(told["streams"].as_object().unwrap().len(), 2);
    for link in told["links"].as_object().unwrap().values() {
        assert_eq!(edge.get(link.as_str().unwrap()).await.status, 200, "{link}");
    }
}

#[tokio::test]
async fn unknown_routes_and_methods_are_errors_of_the_usual_form() {
    let edge = Edge::start().await;
    for target in ["/v1", "/v1/lease/", "/v2/lease", "/v1/lock/nonsense", "/%ff"] {
        let refused = edge.get(target).await;
        assert_eq!((refused.status, refused.reason().as_str()), (404, "NO_SUCH_ROUTE"), "{target}");
    }
    let refused = edge.post("/v1/lock/aquire", "{}").await.json();
    assert_eq!(refused["message"], "there is no /v1/lock/aquire; did you mean POST /v1/lock/acquire?");
    assert_eq!(refused["details"][0]["metadata"]["nearest"], "POST /v1/lock/acquire");
    let refused = edge.get("/v1/lock/jobs/nightly").await.json();
    assert!(refused["message"].as_str().unwrap().contains("GET /v1/lock?name=jobs/nightly"), "{refused}");

    let refused = edge.post("/nonsense", "x".repeat(1024 * 1024)).await;
    assert_eq!((refused.status, refused.reason().as_str()), (404, "NO_SUCH_ROUTE"));

    let refused = edge.get("/v1/lease/renew").await;
    assert_eq!((refused.status, refused.reason().as_str()), (405, "METHOD_NOT_ALLOWED"));
    assert_eq!(refused.header("allow"), "POST");
    assert_eq!(refused.json()["message"], "/v1/lease/renew does not take GET; it takes POST");
    let refused = edge.post("/v1/status", "").await;
    assert_eq!((refused.status, refused.header("allow")), (405, "GET,HEAD"));
    assert!(refused.json()["message"].as_str().unwrap().ends_with("it takes GET or HEAD"));
}

#[tokio::test]
async fn targets_of_every_form_are_answered() {
    let edge = Edge::start().await;
    for (line, status) in [
        ("GET http://localhost/healthz HTTP/1.1", 200),
        ("HEAD /v1/status HTTP/1.1", 200),
        ("OPTIONS * HTTP/1.1", 404),
        ("OPTIONS /v1/lease HTTP/1.1", 405),
        ("CONNECT localhost:80 HTTP/1.1", 404),
        ("BREW /v1/lease HTTP/1.1", 405),
        ("GET //v1//status HTTP/1.1", 404),
        ("GET /v1/lock?name=%00&&=&name HTTP/1.1", 400),
    ] {
        let answer =
            exchange(edge.http, format!("{line}\r\nhost: localhost\r\nconnection: close\r\n\r\n")).await;
        assert_eq!(answer.status, status, "{line}");
    }
}

#[tokio::test]
async fn health_is_about_the_process_and_readiness_about_the_node() {
    let edge = Edge::start().await;
    for path in ["/healthz", "/readyz"] {
        let answer = edge.get(path).await;
        assert_eq!((answer.status, answer.body.trim()), (200, "ok"), "{path}");
    }
    edge.node.ready.store(false, Ordering::SeqCst);
    assert_eq!(edge.get("/healthz").await.status, 200);
    let answer = edge.get("/readyz").await;
    assert_eq!(answer.status, 503);
    assert!(answer.body.contains("there is no leader"), "{}", answer.body);
}

#[tokio::test]
async fn every_answer_names_the_cluster() {
    let edge = Edge::start().await;
    for target in ["/v1/status", "/v1/lock?name=a", "/v1/lock", "/healthz", "/nonsense", "/v1/lease"] {
        assert_eq!(edge.get(target).await.header("lowkey-cluster"), CLUSTER_ID, "{target}");
    }
    assert_eq!(edge.post("/v1/lease", "{").await.header("lowkey-cluster"), CLUSTER_ID);
}

#[tokio::test]
async fn a_panic_is_answered_and_harms_no_other_request() {
    let edge = Edge::start().await;
    let broken = edge.post("/v1/lease", format!(r#"{{"ownerId":"{CLUMSY_OWNER}"}}"#)).await;
    assert_eq!((broken.status, broken.reason().as_str()), (500, "INTERNAL"));
    assert_eq!(broken.header("lowkey-cluster"), CLUSTER_ID);
    assert_eq!(edge.post("/v1/lease", LEASE).await.status, 200);
}
