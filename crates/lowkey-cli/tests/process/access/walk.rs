//! Every way in, walked by who may not: nobody, somebody without grants, a neighbour.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{Closed, acquire, by, reason_of};
use crate::cli::lowkey;

/// What anybody may ask, over HTTP.
const OPEN_ROUTES: [&str; 6] = ["/", "/openapi.json", "/healthz", "/readyz", "/ui/", "/v1/access/whoami"];
/// What a principal without any grant may ask: what is its own, and how the cluster is.
const FOR_SOMEBODY: [&str; 8] = [
    "/metrics",
    "/v1/cluster/status",
    "/v1/status",
    "/v1/lease",
    "/v1/leases",
    "/v1/lease/revoke",
    "/v1/lock/release",
    "/v1/election/resign",
];

/// An example of each route, as the document of the API has it.
fn routes(closed: &Closed) -> Vec<(String, String, Value)> {
    let document = closed.http(0, "GET", "/openapi.json", None, "").json();
    let mut routes = Vec::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            let example = operation["requestBody"]["content"]["application/json"]["example"].clone();
            routes.push((method.to_uppercase(), path.clone(), example));
        }
    }
    assert!(routes.len() > 30, "{routes:?}");
    routes
}

/// The route with its parameters, and a body that parses.
fn asked((method, path, example): &(String, String, Value)) -> (String, Value) {
    let path = path.replace("{node_id}", "node-9").replace("{token_id}", "0011223344556677");
    let query = match (method.as_str(), path.as_str()) {
        ("GET", "/v1/lock" | "/v1/explain") => "?name=billing/a",
        ("GET", "/v1/locks") => "?prefix=billing/",
        ("GET", "/v1/lease") => "?lease_id=7",
        ("GET", "/v1/watch") => "?name=billing/a",
        ("GET", "/v1/election/observe" | "/v1/election/leader") => "?election=billing/a",
        ("GET", "/v1/access/check") => "?principal=ops&verb=admin&name=/",
        _ => "",
    };
    (format!("{path}{query}"), if example.is_null() { json!({}) } else { example.clone() })
}

#[test]
fn nobody_is_let_in_by_any_route() {
    let closed = Closed::start(1);
    let mut open = Vec::new();
    for route in routes(&closed) {
        let (path, body) = asked(&route);
        let answer = closed.http(0, &route.0, &path, None, &body.to_string());
        match answer.status {
            401 => assert_eq!(answer.json()["reason"], "UNAUTHENTICATED", "{path}"),
            200 => open.push(route.1),
            other => panic!("{} {path} is answered with {other}: {}", route.0, answer.json()),
        }
    }
    open.sort();
    let mut expected = OPEN_ROUTES.map(str::to_owned).to_vec();
    expected.sort();
    assert_eq!(open, expected, "what nobody may ask");
}

#[test]
fn who_has_no_grant_may_see_itself_and_nothing_else_by_any_route() {
    let closed = Closed::start(1);
    let mut passed = BTreeMap::new();
    for route in routes(&closed) {
        let (path, body) = asked(&route);
        let answer = closed.http(0, &route.0, &path, Some(&closed.idle), &body.to_string());
        let reason = match answer.status {
            200 => "OK".to_owned(),
            _ => answer.json()["reason"].as_str().unwrap_or_default().to_owned(),
        };
        if reason != "PERMISSION_DENIED" {
            passed.insert(route.1, reason);
        }
    }
    for (path, reason) in passed {
        let is_open = OPEN_ROUTES.contains(&path.as_str());
        let is_own = FOR_SOMEBODY.contains(&path.as_str());
        // Its own, and there is nothing that is its own.
        let found_nothing = reason == "LEASE_NOT_FOUND";
        let tells_of_the_node =
            ["/v1/status", "/v1/cluster/status", "/metrics"].contains(&path.as_str()) && reason == "OK";
        assert!(is_open || is_own && (found_nothing || tells_of_the_node), "{path}: {reason}");
    }
}

#[test]
fn a_neighbour_gets_nothing_of_what_is_not_its_own() {
    let closed = Closed::start(3);
    let body = json!({ "lockName": "billing/a", "ownerId": "billing/host", "ttlSeconds": 60 });
    let held = closed.http(0, "POST", "/v1/lock/acquire", Some(&closed.billing), &body.to_string());
    assert_eq!(held.status, 200, "{}", held.json());
    let lease: u64 = held.json()["leaseId"].as_str().unwrap().parse().unwrap();
    // Also by way of nodes that do not lead: the leader knows whose lease it is.
    for node in 0..3 {
        let web = |method: &str, path: &str, body: Value| {
            closed.reason(node, method, path, Some(&closed.web), &body)
        };
        let denied = [
            ("POST", "/v1/lock/acquire", json!({"lockName": "billing/b", "ownerId": "web", "ttlSeconds": 5})),
            ("POST", "/v1/lock/acquire", json!({"lockName": "web2", "ownerId": "web", "ttlSeconds": 5})),
            ("POST", "/v1/lock/acquire", json!({"lockName": "web/a", "ownerId": "billing", "ttlSeconds": 5})),
            ("POST", "/v1/lock/acquire", json!({"lockName": "web/a", "ownerId": "web2", "ttlSeconds": 5})),
            (
                "POST",
                "/v1/lock/acquire",
                json!({"lockName": "web/a", "ownerId": "billing/host", "leaseId": lease}),
            ),
            ("POST", "/v1/lease", json!({"ownerId": "billing/host", "ttlSeconds": 5})),
            ("POST", "/v1/lease/renew", json!({"leaseId": lease})),
            ("POST", "/v1/lease/revoke", json!({"leaseId": lease, "ownerId": "billing/host"})),
            ("POST", "/v1/lock/release", json!({"lockName": "billing/a", "leaseId": lease})),
            (
                "POST",
                "/v1/lock/release",
                json!({"lockName": "billing/a", "ownerId": "billing/host", "acquireRequestId": "x"}),
            ),
            ("POST", "/v1/election/resign", json!({"election": "billing/a", "leaseId": lease})),
            (
                "POST",
                "/v1/election/proclaim",
                json!({"election": "billing/a", "ownerId": "billing/host", "leaseId": lease, "value": "x"}),
            ),
            ("GET", "/v1/lock?name=billing/a", json!({})),
            ("GET", "/v1/lock?name=billing/a&stale=true", json!({})),
            ("GET", "/v1/locks", json!({})),
            ("GET", "/v1/locks?prefix=web", json!({})),
            ("GET", "/v1/locks?prefix=w", json!({})),
            ("GET", "/v1/watch?prefix=web", json!({})),
            ("GET", "/v1/watch?prefix=", json!({})),
            ("GET", "/v1/watch?name=billing/a", json!({})),
            ("GET", "/v1/election/observe?election=billing/a", json!({})),
            ("GET", "/v1/leases", json!({})),
            ("GET", "/v1/leases?owner_id=billing/host", json!({})),
            ("POST", "/v1/access/tokens", json!({"principal": "ops"})),
            ("POST", "/v1/cluster/transfer", json!({"nodeId": "node-1"})),
        ];
        for (method, path, body) in denied {
            assert_eq!(web(method, path, body.clone()), "PERMISSION_DENIED", "{method} {path} {body}");
        }
        let lease_of_another = format!("/v1/lease?lease_id={lease}");
        assert_eq!(web("GET", &lease_of_another, json!({})), "PERMISSION_DENIED");
        // A lease revoked in the neighbour's own name is not the neighbour's.
        let own_name = json!({"leaseId": lease, "ownerId": "web"});
        assert_eq!(web("POST", "/v1/lease/revoke", own_name), "NOT_OWNER");
        // What is its own.
        assert_eq!(web("GET", "/v1/locks?prefix=web/", json!({})), "OK");
        assert_eq!(web("GET", "/v1/leases?owner_id=web/host", json!({})), "OK");
    }
    // Nothing of that had an effect, and its owner goes on.
    let billing =
        |method: &str, path: &str, body: Value| closed.reason(1, method, path, Some(&closed.billing), &body);
    assert_eq!(billing("POST", "/v1/lease/renew", json!({"leaseId": lease})), "OK");
    assert_eq!(billing("GET", "/v1/lock?name=billing/a", json!({})), "OK");
    // An admin may end what others hold.
    let end = json!({"leaseId": lease, "ownerId": "billing/host"});
    assert_eq!(closed.reason(2, "POST", "/v1/lease/revoke", Some(&closed.ops), &end), "OK");
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_and_the_calls_on_them_are_for_somebody_only() {
    use tokio_stream::StreamExt as _;

    use lowkey_api::v1::session_answer::Answer;
    use lowkey_api::v1::session_call::Call;
    use lowkey_api::v1::{GetStatusRequest, HeartbeatRequest, RenewLeases, SessionCall, WatchRequest};
    let closed = tokio::task::spawn_blocking(|| Closed::start(1)).await.unwrap();
    let mut client = closed.grpc(0);
    let calls = || {
        let call = |seq, call| SessionCall { seq, call: Some(call) };
        tokio_stream::iter([
            call(1, Call::AcquireLock(acquire("billing/a", "billing/host", 0))),
            call(2, Call::AcquireLock(acquire("web/a", "web", 0))),
            call(3, Call::Watch(WatchRequest { name: "billing/a".into(), ..Default::default() })),
            call(4, Call::RenewLeases(RenewLeases { lease_ids: vec![1], holds: vec![] })),
        ])
        // Its end would end what is under way.
        .chain(tokio_stream::pending())
    };
    let beats = || tokio_stream::iter([HeartbeatRequest { lease_id: 1, seq: 1, holds: None }]);
    assert_eq!(reason_of(&client.session(calls()).await.unwrap_err()), "UNAUTHENTICATED");
    assert_eq!(reason_of(&client.heartbeat(beats()).await.unwrap_err()), "UNAUTHENTICATED");
    assert_eq!(reason_of(&client.get_status(GetStatusRequest {}).await.unwrap_err()), "UNAUTHENTICATED");
    assert!(client.get_status(by(&closed.idle, GetStatusRequest {})).await.is_ok());

    let mut answers = client.session(by(&closed.web, calls())).await.unwrap().into_inner();
    let mut told = std::collections::BTreeMap::new();
    while told.len() < 4 {
        let answer = answers.message().await.unwrap().expect("each call is answered");
        let said = match answer.answer.unwrap() {
            Answer::Error(error) => error.reason,
            Answer::AcquireLock(_) => "acquired".to_owned(),
            Answer::RenewLeases(renewed) => renewed.renewals[0].error_reason.clone(),
            other => format!("{other:?}"),
        };
        told.insert(answer.seq, said);
    }
    assert_eq!(told[&1], "PERMISSION_DENIED");
    assert_eq!(told[&2], "acquired");
    assert_eq!(told[&3], "PERMISSION_DENIED");
    // By chance it may be the one that was just made; or there is none yet.
    assert!(["", "LEASE_NOT_FOUND", "PERMISSION_DENIED"].contains(&told[&4].as_str()), "{told:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn every_method_of_every_service_is_closed_to_nobody() {
    use prost::Message as _;
    let closed = tokio::task::spawn_blocking(|| Closed::start(1)).await.unwrap();
    let set = prost_types::FileDescriptorSet::decode(lowkey_api::FILE_DESCRIPTOR_SET).unwrap();
    let mut channel = closed.cluster.nodes[0].channel();
    let mut open = Vec::new();
    let mut methods = 0;
    for file in set.file.iter().filter(|file| file.package() == "lowkey.v1") {
        for service in &file.service {
            for method in &service.method {
                methods += 1;
                let path = format!("/lowkey.v1.{}/{}", service.name(), method.name());
                let status = refusal(&mut channel, &path).await;
                match status {
                    Some(status) => assert_eq!(reason_of(&status), "UNAUTHENTICATED", "{path}"),
                    None => open.push(path),
                }
            }
        }
    }
    assert!(methods > 30);
    assert_eq!(open, ["/lowkey.v1.AccessService/WhoAmI"]);
}

/// How a method refuses an empty message; nothing if it does not.
async fn refusal(channel: &mut tonic::transport::Channel, path: &str) -> Option<tonic::Status> {
    use tonic::client::Grpc;
    let mut grpc = Grpc::new(channel.clone());
    grpc.ready().await.unwrap();
    let codec = tonic_prost::ProstCodec::<(), ()>::default();
    let request = tonic::Request::new(tokio_stream::iter([()]));
    match grpc.streaming(request, path.parse().unwrap(), codec).await {
        Err(status) => Some(status),
        Ok(answers) => answers.into_inner().message().await.err(),
    }
}

#[test]
fn it_is_not_required_without_an_admin_and_can_be_opened_again_by_the_socket() {
    let closed = Closed::start(1);
    let by_ops = |words: &[&str]| {
        let node = &closed.cluster.nodes[0];
        let file = closed.cluster.folder().join("ops.token");
        std::fs::write(&file, &closed.ops).unwrap();
        let mut command = lowkey();
        command.arg("access").args(words);
        command.env("LOWKEY_ENDPOINTS", format!("http://127.0.0.1:{}", node.ports.grpc));
        command.env("LOWKEY_AUTH_FILE", &file).output().unwrap()
    };
    let refused = closed.admin_output(&["principal", "remove", "ops"]);
    let words = String::from_utf8(refused.stderr).unwrap();
    assert!(!refused.status.success() && words.contains("no principal would be left"), "{words}");
    assert!(by_ops(&["principal", "list"]).status.success());
    let why = closed.admin(&["check", "billing", "acquire", "billing/nightly"]);
    assert!(why.contains("yes") && why.contains("on billing"), "{why}");
    let no = closed.admin_output(&["check", "billing", "acquire", "web"]);
    assert_eq!(no.status.code(), Some(1));
    closed.admin(&["require", "--off"]);
    assert_eq!(closed.http(0, "GET", "/v1/locks", None, "").status, 200);
    // Who may do what is not everybody's to say, also while the cluster is open.
    let body = json!({ "principal": "me" });
    for path in ["/v1/access/principals", "/v1/access/tokens"] {
        assert_eq!(closed.reason(0, "POST", path, None, &body), "UNAUTHENTICATED");
        assert_eq!(closed.reason(0, "POST", path, Some(&closed.web), &body), "PERMISSION_DENIED");
    }
}
