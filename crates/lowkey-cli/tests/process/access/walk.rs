//! Every way in, walked by who may not: nobody, somebody without grants, a neighbour.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::{Closed, acquire, by, reason_of};
use crate::cli::lowkey;
use crate::harness::eventually;

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

/// What tells a principal how the node is, whatever it was granted.
const OF_THE_NODE: [&str; 3] = ["/metrics", "/v1/cluster/status", "/v1/status"];

/// What a field is in a request that is about what the tenant `billing` has. All calls name these things alike.
fn of_billing(field: &str, lease: u64) -> Option<Value> {
    match field {
        "name" | "lock_name" | "lockName" | "election" => Some("billing/a".into()),
        "prefix" => Some("billing/".into()),
        "owner_id" | "ownerId" => Some("billing/host".into()),
        "lease_id" | "leaseId" => Some(lease.into()),
        "principal" | "path" => Some("billing".into()),
        // What is not complete may be refused for that, before it comes to who asks.
        "ttl_seconds" | "ttlSeconds" => Some(5.into()),
        _ => None,
    }
}

/// `billing` holds `billing/a`; gives its lease.
fn hold(closed: &Closed) -> u64 {
    let body = json!({ "lockName": "billing/a", "ownerId": "billing/host", "ttlSeconds": 600 });
    let held = closed.http(0, "POST", "/v1/lock/acquire", Some(&closed.billing), &body.to_string());
    assert_eq!(held.status, 200, "{}", held.json());
    held.json()["leaseId"].as_str().unwrap().parse().unwrap()
}

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
        let tells_of_the_node = OF_THE_NODE.contains(&path.as_str()) && reason == "OK";
        assert!(is_open || is_own && (found_nothing || tells_of_the_node), "{path}: {reason}");
    }
}

/// Each route of the table of calls, asked for what is another tenant's: a route that is added is walked as well.
#[test]
fn a_neighbour_is_refused_by_every_route() {
    let closed = Closed::start(1);
    let lease = hold(&closed);
    let document = closed.http(0, "GET", "/openapi.json", None, "").json();
    let mut answered = Vec::new();
    let mut refused = 0;
    for (method, path, mut body) in routes(&closed) {
        if let Some(fields) = body.as_object_mut() {
            for (field, value) in fields {
                *value = of_billing(field, lease).unwrap_or_else(|| value.clone());
            }
        }
        let operation = &document["paths"][&path][method.to_lowercase()];
        let parameters = operation["parameters"].as_array().cloned().unwrap_or_default();
        let mut query: Vec<(String, String)> = Vec::new();
        for name in parameters.iter().filter(|it| it["in"] == "query").filter_map(|it| it["name"].as_str()) {
            // A watch takes one of the two.
            if let Some(value) = of_billing(name, lease).filter(|_| name != "prefix" || query.is_empty()) {
                let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
                query.push((name.to_owned(), text));
            }
        }
        query.extend(path.ends_with("/check").then(|| ("verb".to_owned(), "read".to_owned())));
        let query: Vec<String> = query.into_iter().map(|(name, value)| format!("{name}={value}")).collect();
        let filled = path.replace("{node_id}", "node-9").replace("{token_id}", "0011223344556677");
        let filled = match method.as_str() {
            "GET" if !query.is_empty() => format!("{filled}?{}", query.join("&")),
            _ => filled,
        };
        let body = if body.is_null() { json!({}) } else { body };
        match closed.reason(0, &method, &filled, Some(&closed.web), &body).as_str() {
            "PERMISSION_DENIED" => refused += 1,
            "OK" => answered.push(path),
            other => panic!("{method} {filled} {body}: {other}"),
        }
    }
    answered.sort();
    let mut expected: Vec<&str> = OPEN_ROUTES.into_iter().chain(OF_THE_NODE).collect();
    expected.sort_unstable();
    assert_eq!(answered, expected, "what a neighbour may ask");
    assert!(refused > 25, "{refused}");
    let renewed = json!({ "leaseId": lease });
    assert_eq!(closed.reason(0, "POST", "/v1/lease/renew", Some(&closed.billing), &renewed), "OK");
}

#[test]
fn a_subtree_above_the_grant_is_not_granted() {
    let closed = Closed::start(1);
    closed.admin(&["principal", "add", "leaf"]);
    closed.admin(&["grant", "leaf", "web/jobs", "acquire,read,watch"]);
    let leaf = closed.token("leaf");
    let acquire = |lock: &str, scope: &str| {
        let body = json!({"lockName": lock, "ownerId": "leaf", "ttlSeconds": 5, "scope": scope});
        closed.reason(0, "POST", "/v1/lock/acquire", Some(&leaf), &body)
    };
    for (lock, scope) in [
        ("web", "SUBTREE"),
        ("web", "NAME"),
        ("web/jobs2", "SUBTREE"),
        ("web/job", "SUBTREE"),
        ("web/jobs2/a", "NAME"),
    ] {
        assert_eq!(acquire(lock, scope), "PERMISSION_DENIED", "{lock} {scope}");
    }
    for path in ["/v1/locks?prefix=web/", "/v1/locks?prefix=web/jobs", "/v1/watch?prefix=web/jobs"] {
        assert_eq!(closed.reason(0, "GET", path, Some(&leaf), &json!({})), "PERMISSION_DENIED", "{path}");
    }
    assert_eq!(acquire("web/jobs/a", "NAME"), "OK");
    assert_eq!(acquire("web/jobs/b", "SUBTREE"), "OK");
    assert_eq!(closed.reason(0, "GET", "/v1/locks?prefix=web/jobs/", Some(&leaf), &json!({})), "OK");
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

#[test]
fn an_auditor_needs_the_verb_audit_and_nothing_else() {
    let closed = Closed::start(3);
    closed.admin(&["principal", "add", "auditor"]);
    closed.admin(&["grant", "auditor", "billing", "audit"]);
    let auditor = closed.token("auditor");
    closed.everywhere("the auditor is known", |closed, node| {
        let told = closed.http(node, "GET", "/v1/access/whoami", Some(&auditor), "").json();
        (told["principal"] == "auditor").then_some(())
    });
    let body = json!({ "lockName": "billing", "ownerId": "billing", "ttlSeconds": 12 });
    let held = closed.http(0, "POST", "/v1/lock/acquire", Some(&closed.billing), &body.to_string());
    assert_eq!(held.status, 200, "{}", held.json());
    let asked = |node: usize, path: &str| closed.reason(node, "GET", path, Some(&auditor), &json!({}));
    for node in 0..3 {
        for path in [
            "/v1/audit?name=billing",
            "/v1/audit?lock_name=billing/a",
            "/v1/explain?name=billing",
            "/v1/explain?name=billing/a",
            "/v1/explain?name=billing&fencing_token=1",
        ] {
            assert_eq!(asked(node, path), "OK", "{path}");
        }
        for path in ["/v1/audit", "/v1/audit?name=billing2", "/v1/audit?name=web", "/v1/explain?name=web"] {
            assert_eq!(asked(node, path), "PERMISSION_DENIED", "{path}");
        }
        // The story has the holder. The lock itself and its lease are for those who may read it.
        assert_eq!(asked(node, "/v1/lock?name=billing"), "PERMISSION_DENIED");
    }
    eventually("it is told on each node that the lease is renewed late", || {
        let told = [0, 1, 2].map(|node| {
            closed.http(node, "GET", "/v1/explain?name=billing", Some(&auditor), "").json().to_string()
        });
        told.iter().all(|told| told.contains("is renewed late")).then_some(())
    });
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
                let status = refusal(&mut channel, &path, None, Filled::default()).await;
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

/// Each method asked for what a tenant has, by who was granted nothing and by another tenant.
#[tokio::test(flavor = "multi_thread")]
async fn every_method_of_every_service_keeps_what_is_a_tenants_from_others() {
    use prost::Message as _;
    let closed = tokio::task::spawn_blocking(|| Closed::start(1)).await.unwrap();
    let lease = hold(&closed);
    let set = prost_types::FileDescriptorSet::decode(lowkey_api::FILE_DESCRIPTOR_SET).unwrap();
    let files: Vec<_> = set.file.iter().filter(|file| file.package() == "lowkey.v1").collect();
    let message = |name: &str| {
        let is_it =
            |message: &&prost_types::DescriptorProto| format!(".lowkey.v1.{}", message.name()) == name;
        files.iter().flat_map(|file| &file.message_type).find(is_it).unwrap_or_else(|| panic!("{name}"))
    };
    let mut channel = closed.cluster.nodes[0].channel();
    for token in [&closed.idle, &closed.web] {
        let (mut answered, mut refused) = (Vec::new(), 0);
        for service in files.iter().flat_map(|file| &file.service) {
            // The calls on streams have a test of their own.
            for method in service.method.iter().filter(|method| !method.client_streaming()) {
                let mut filled = Filled::default();
                for field in &message(method.input_type()).field {
                    let number = u32::try_from(field.number()).unwrap();
                    match of_billing(field.name(), lease) {
                        // A watch takes one of the two.
                        Some(_) if field.name() == "prefix" && !filled.0.is_empty() => {}
                        Some(Value::String(text)) => {
                            prost::encoding::string::encode(number, &text, &mut filled.0)
                        }
                        Some(value) => {
                            prost::encoding::uint64::encode(number, &value.as_u64().unwrap(), &mut filled.0);
                        }
                        None => {}
                    }
                }
                let path = format!("/lowkey.v1.{}/{}", service.name(), method.name());
                match refusal(&mut channel, &path, Some(token), filled).await {
                    Some(status) => {
                        assert_eq!(reason_of(&status), "PERMISSION_DENIED", "{path}");
                        refused += 1;
                    }
                    None => answered.push(path),
                }
            }
        }
        answered.sort();
        let expected = [
            "/lowkey.v1.AccessService/WhoAmI",
            "/lowkey.v1.LockService/GetClusterStatus",
            "/lowkey.v1.LockService/GetStatus",
        ];
        assert_eq!(answered, expected);
        assert!(refused > 25, "{refused}");
    }
}

/// A message whose fields are encoded already.
#[derive(Clone, Debug, Default)]
struct Filled(Vec<u8>);

impl prost::Message for Filled {
    fn encode_raw(&self, buffer: &mut impl prost::bytes::BufMut) {
        buffer.put_slice(&self.0);
    }

    fn merge_field(
        &mut self,
        tag: u32,
        wire_type: prost::encoding::WireType,
        buffer: &mut impl prost::bytes::Buf,
        context: prost::encoding::DecodeContext,
    ) -> Result<(), prost::DecodeError> {
        prost::encoding::skip_field(wire_type, tag, buffer, context)
    }

    fn encoded_len(&self) -> usize {
        self.0.len()
    }

    fn clear(&mut self) {
        self.0.clear();
    }
}

/// How a method refuses a message; nothing if it does not.
async fn refusal(
    channel: &mut tonic::transport::Channel,
    path: &str,
    token: Option<&str>,
    message: Filled,
) -> Option<tonic::Status> {
    use tonic::client::Grpc;
    let mut grpc = Grpc::new(channel.clone());
    grpc.ready().await.unwrap();
    let codec = tonic_prost::ProstCodec::<Filled, ()>::default();
    let messages = tokio_stream::iter([message]);
    let request = match token {
        Some(token) => by(token, messages),
        None => tonic::Request::new(messages),
    };
    match grpc.streaming(request, path.parse().unwrap(), codec).await {
        Err(status) => Some(status),
        Ok(answers) => answers.into_inner().message().await.err(),
    }
}

#[test]
fn an_admin_is_found_by_the_environment_or_by_the_directory_and_otherwise_told_how() {
    let closed = Closed::start(1);
    let node = &closed.cluster.nodes[0];
    let folder = closed.cluster.folder().join("elsewhere");
    std::fs::create_dir_all(folder.join("data")).unwrap();
    let list = |prepare: &dyn Fn(&mut std::process::Command)| {
        let mut command = lowkey();
        command.args(["access", "principal", "list"]).current_dir(&folder);
        command.env_remove("LOWKEY_ENDPOINTS");
        prepare(&mut command);
        let output = command.output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned())
    };
    let (code, told) = list(&|_| ());
    assert_eq!((code, told.lines().count()), (Some(64), 1), "{told}");
    assert!(told.contains("--data-dir") && told.contains("LOWKEY_AUTH_FILE"), "{told}");
    let (code, told) = list(&|command| {
        command.env("LOWKEY_DATA_DIR", &node.data_dir);
    });
    assert!(code == Some(0) && told.contains("billing"), "{told}");
    // What proves somebody goes before the environment's directory: it may be of another cluster.
    let file = folder.join("idle.token");
    std::fs::write(&file, &closed.idle).unwrap();
    let endpoint = format!("http://127.0.0.1:{}", node.ports.grpc);
    let (code, told) = list(&|command| {
        command.env("LOWKEY_DATA_DIR", &node.data_dir).env("LOWKEY_AUTH_FILE", &file);
        command.env("LOWKEY_ENDPOINTS", &endpoint);
    });
    assert!(code != Some(0) && told.contains("idle may not admin"), "{told}");
    let (code, told) = list(&|command| {
        command.env("LOWKEY_DATA_DIR", &node.data_dir).args(["--endpoints", &endpoint]);
    });
    assert!(code != Some(0) && told.contains("wants to know who asks"), "{told}");
    std::fs::remove_dir(folder.join("data")).unwrap();
    std::os::unix::fs::symlink(&node.data_dir, folder.join("data")).unwrap();
    let (code, told) = list(&|_| ());
    assert!(code == Some(0) && told.contains("billing"), "{told}");
}

#[test]
fn what_would_be_refused_is_gathered_from_all_nodes() {
    let mut closed = Closed::start(3);
    closed.admin(&["require", "--off"]);
    closed.everywhere("the cluster is open", |closed, node| {
        (closed.http(node, "GET", "/v1/locks", None, "").status == 200).then_some(())
    });
    for (node, owner) in ["web", "worker-1", "worker-2"].into_iter().enumerate() {
        let body = json!({ "lockName": format!("web/{node}"), "ownerId": owner, "ttlSeconds": 60 });
        assert_eq!(closed.reason(node, "POST", "/v1/lock/acquire", Some(&closed.web), &body), "OK");
        let path = format!("/v1/lock?name=billing/{node}");
        assert_eq!(closed.reason(node, "GET", &path, Some(&closed.web), &json!({})), "OK");
    }
    let dry_run = |closed: &Closed| {
        let told: Value = serde_json::from_str(&closed.admin(&["require", "--dry-run", "--json"])).unwrap();
        told["wouldBeRefused"].as_array().unwrap().clone()
    };
    let count = |told: &[Value], why: &str| {
        let of_web = told.iter().filter(|one| one["client"] == "web");
        let found = of_web.filter(|one| one["why"].as_str().unwrap().contains(why));
        found.map(|one| one["count"].as_str().unwrap().parse::<u64>().unwrap()).sum::<u64>()
    };
    let told = dry_run(&closed);
    assert_eq!(count(&told, "it names owners that are not web"), 2, "{told:?}");
    assert_eq!(count(&told, "it has no read on billing/"), 3, "{told:?}");
    assert!(told.iter().all(|one| one["client"] != "unknown"), "{told:?}");
    closed.cluster.nodes[2].kill();
    let told = dry_run(&closed);
    let silent = told.iter().find(|one| one["client"] == "unknown").expect("a node does not answer");
    assert!(silent["why"].as_str().unwrap().contains("node n3 knows more"), "{silent}");
}

#[test]
fn who_may_list_some_names_only_is_told_what_to_ask_for() {
    let closed = Closed::start(1);
    let file = closed.cluster.folder().join("billing.token");
    std::fs::write(&file, &closed.billing).unwrap();
    let by_billing = |words: &[&str]| {
        let mut command = lowkey();
        let endpoint = format!("http://127.0.0.1:{}", closed.cluster.nodes[0].ports.grpc);
        command.args(words).env("LOWKEY_ENDPOINTS", endpoint).env("LOWKEY_AUTH_FILE", &file);
        command.output().unwrap()
    };
    assert!(by_billing(&["ls", "billing/"]).status.success());
    for words in [&["ls"][..], &["ls", "billing"], &["ls", "bill"]] {
        let output = by_billing(words);
        let line = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{line}");
        assert!(line.contains("ask for `lowkey ls billing/`") && !line.contains("access grant"), "{line}");
    }
    let line = String::from_utf8(by_billing(&["ls", "web/"]).stderr).unwrap();
    assert!(line.contains("access grant") && !line.contains("lowkey ls"), "{line}");
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
