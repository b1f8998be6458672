//! What web pages can and cannot do at the HTTP port: raw requests, as browsers and attackers send them.

use lowkey_api::v1::Member;
use lowkey_server::edge::http::Gate;

use crate::support::{Answer, Edge, exchange};

const REVOKE: &str = r#"{"leaseId":1,"ownerId":"a"}"#;

/// Sends a request whose headers are all given, each with `\r\n`.
async fn send(edge: &Edge, line: &str, headers: &str, body: &str) -> Answer {
    let length = body.len();
    exchange(
        edge.http,
        format!("{line} HTTP/1.1\r\nconnection: close\r\ncontent-length: {length}\r\n{headers}\r\n{body}"),
    )
    .await
}

async fn revoke(edge: &Edge, headers: &str) -> Answer {
    send(edge, "POST /v1/lease/revoke", headers, REVOKE).await
}

fn told(answer: &Answer) -> (u16, String) {
    match answer.status {
        200 => (200, String::new()),
        status => (status, answer.reason()),
    }
}

fn refused(reason: &str) -> (u16, String) {
    (403, reason.to_owned())
}

fn passed() -> (u16, String) {
    (200, String::new())
}

#[tokio::test]
async fn pages_of_other_origins_change_nothing_and_read_nothing() {
    let edge = Edge::start().await;
    let port = edge.http.port();
    for origin in [
        "https://evil.example",
        "http://evil.example:8080",
        "http://localhost",
        "http://localhost:1",
        "http://localhost.evil.example:8080",
        "null",
        "",
        "file://",
        "localhost",
        "http://",
        "http:///",
        "http://localhost:8080/",
        "http://x@localhost:8080",
        "http://localhost:8080 https://evil.example",
        "http://localhost:8080\thttps://evil.example",
        "chrome-extension://localhost:8080",
        "javascript://localhost:8080",
        "http://\u{17f}localhost:8080",
    ] {
        for rest in ["content-type: text/plain\r\n", "content-type: application/json\r\n", ""] {
            let origin = origin.replace(":8080", &format!(":{port}"));
            // Whatever looks like the port's own origin is made by nobody but the port's own pages.
            let headers = format!("host: localhost:{port}\r\norigin: {origin}\r\n{rest}");
            let answer = revoke(&edge, &headers).await;
            assert_eq!(told(&answer), refused("FOREIGN_ORIGIN"), "{origin:?} {rest}");
            assert!(!answer.headers.keys().any(|name| name.starts_with("access-control")), "{answer:?}");
        }
    }
    for target in ["/v1/status", "/v1/locks", "/v1/watch?prefix=", "/metrics", "/healthz", "/", "/nowhere"] {
        let headers = "host: localhost\r\norigin: https://evil.example\r\n";
        let answer = send(&edge, &format!("GET {target}"), headers, "").await;
        assert_eq!(told(&answer), refused("FOREIGN_ORIGIN"), "{target}");
    }
    let preflight =
        "host: localhost\r\norigin: https://evil.example\r\naccess-control-request-method: POST\r\n";
    let answer = send(&edge, "OPTIONS /v1/lease/revoke", preflight, "").await;
    assert_eq!(told(&answer), refused("FOREIGN_ORIGIN"));
    assert!(!answer.headers.keys().any(|name| name.starts_with("access-control")), "{answer:?}");
    let two = "host: localhost\r\norigin: http://localhost\r\norigin: http://localhost\r\n";
    assert_eq!(told(&revoke(&edge, two).await), refused("FOREIGN_ORIGIN"));
    assert!(edge.node.revoked.lock().unwrap().is_empty(), "nothing reached the node");
}

#[tokio::test]
async fn a_refusal_says_what_to_do() {
    let edge = Edge::start().await;
    let answer = revoke(&edge, "host: localhost\r\norigin: https://Dash.example:443\r\n").await;
    let message = answer.json()["message"].as_str().unwrap().to_owned();
    assert!(message.contains("--http-origin https://dash.example"), "{message}");
    let answer = send(&edge, "GET /v1/status", "host: Locks.example:8080\r\n", "").await;
    let message = answer.json()["message"].as_str().unwrap().to_owned();
    assert!(message.contains("--http-host locks.example if this name is meant to reach it"), "{message}");

    let long = "x".repeat(8000);
    for headers in [
        format!("host: {long}\r\n"),
        format!("host: localhost\r\norigin: http://{long}\r\n"),
        format!("host: localhost\r\norigin: {long}://{long}\r\n"),
        format!("host: localhost\r\nsec-fetch-site: {long}\r\n"),
    ] {
        let answer = revoke(&edge, &headers).await;
        assert_eq!(answer.status, 403);
        assert!(answer.body.len() < 1500, "an answer does not grow with what was wrong: {answer:?}");
    }
}

#[tokio::test]
async fn a_page_of_the_node_itself_may_do_everything_in_json() {
    let edge = Edge::start().await;
    for (host, origin) in [
        ("localhost:8080", "http://localhost:8080"),
        ("LOCALHOST:8080", "HTTP://LocalHost:8080"),
        ("localhost.:8080", "http://localhost:8080"),
        ("127.0.0.1:8080", "http://127.0.0.1:8080"),
        ("[::1]:8080", "http://[0:0::1]:8080"),
        ("localhost", "http://localhost:80"),
        ("localhost:80", "http://localhost"),
        ("localhost", "https://localhost"),
        ("10.1.2.3:443", "https://10.1.2.3"),
    ] {
        let headers = format!("host: {host}\r\norigin: {origin}\r\nsec-fetch-site: same-origin\r\n");
        for content_type in ["application/json", "Application/JSON; charset=utf-8", "application/json ;x=y"] {
            let headers = format!("{headers}content-type: {content_type}\r\n");
            assert_eq!(told(&revoke(&edge, &headers).await), passed(), "{host} {origin} {content_type}");
        }
        for content_type in [
            "text/plain",
            "application/x-www-form-urlencoded",
            "text/json",
            "",
            "application/jsonx",
            "application/json\r\ncontent-type: text/plain",
        ] {
            let headers = format!("{headers}content-type: {content_type}\r\n");
            let answer = revoke(&edge, &headers).await;
            assert_eq!(told(&answer), (400, "INVALID_BODY".to_owned()), "{host} {content_type}");
            assert!(answer.body.contains("Content-Type: application/json"), "{}", answer.body);
        }
        assert_eq!(told(&revoke(&edge, &headers).await), (400, "INVALID_BODY".to_owned()));
        assert_eq!(told(&send(&edge, "GET /v1/status", &headers, "").await), passed());
        assert_eq!(told(&send(&edge, "DELETE /v1/cluster/peers/node-2", &headers, "").await), passed());
    }
    let answer = revoke(&edge, "origin: http://localhost\r\ncontent-type: application/json\r\n").await;
    assert_eq!(told(&answer), refused("FOREIGN_ORIGIN"), "a page with no host to compare it to");
}

#[tokio::test]
async fn what_the_browser_says_about_the_site_counts() {
    let edge = Edge::start().await;
    for (site, expected) in [
        ("none", passed()),
        ("same-origin", passed()),
        ("same-site", refused("FOREIGN_ORIGIN")),
        ("cross-site", refused("FOREIGN_ORIGIN")),
        ("", refused("FOREIGN_ORIGIN")),
        ("Same-Origin", refused("FOREIGN_ORIGIN")),
        ("none\r\nsec-fetch-site: cross-site", refused("FOREIGN_ORIGIN")),
    ] {
        let headers = format!("host: localhost\r\nsec-fetch-site: {site}\r\n");
        assert_eq!(told(&revoke(&edge, &headers).await), expected, "{site}");
        assert_eq!(told(&send(&edge, "GET /v1/status", &headers, "").await), expected, "{site}");
        let own = format!("{headers}origin: http://localhost\r\ncontent-type: application/json\r\n");
        assert_eq!(told(&revoke(&edge, &own).await), expected, "{site}");
    }
    // A link from anywhere may lead to the first page, and nowhere else.
    let followed = "host: localhost\r\nsec-fetch-site: cross-site\r\nsec-fetch-mode: navigate\r\n";
    assert_eq!(told(&send(&edge, "GET /", followed, "").await), passed());
    assert_eq!(told(&send(&edge, "GET /v1/status", followed, "").await), refused("FOREIGN_ORIGIN"));
    assert_eq!(told(&revoke(&edge, followed).await), refused("FOREIGN_ORIGIN"));
    let embedded = "host: localhost\r\nsec-fetch-site: cross-site\r\nsec-fetch-mode: no-cors\r\n";
    assert_eq!(told(&send(&edge, "GET /", embedded, "").await), refused("FOREIGN_ORIGIN"));
}

#[tokio::test]
async fn only_the_nodes_own_names_reach_it() {
    let edge = Edge::behind(Gate::new(
        ["node-1.example:8080", "10.0.0.1:9000"],
        ["Locks.example.".parse().unwrap()],
        [],
    ))
    .await;
    let machine = rustix::system::uname().nodename().to_string_lossy().into_owned();
    for host in [
        "localhost",
        "localhost:8080",
        "LocalHost.:8080",
        "localhost:",
        "127.0.0.1:8080",
        "10.9.8.7",
        "[::1]",
        "[::1]:8080",
        "[fe80::1%25eth0]:8080",
        "node-1.example",
        "NODE-1.example.:1",
        "locks.example:80",
        &machine,
    ] {
        assert_eq!(told(&revoke(&edge, &format!("host: {host}\r\n")).await), passed(), "{host}");
    }
    for host in [
        "evil.example",
        "evil.example:8080",
        "localhost.evil.example",
        "localhost..",
        "evil.localhost",
        "localhost@evil.example",
        "user@localhost",
        "localhost:8080@evil.example",
        "evil.example#localhost",
        "localhost:80a",
        "localhost:99999",
        "local host",
        "localhost,evil.example",
        "::1",
        "[::1",
        "[evil.example]",
        "[::1]evil.example",
        "127.0.0.1.evil.example",
        "127.1",
        "0x7f.0.0.1",
        "2130706433",
        "node-2.example",
        "http://localhost",
        "localhost/",
        "\u{ff4c}ocalhost",
        "*",
    ] {
        let answer = revoke(&edge, &format!("host: {host}\r\n")).await;
        assert_eq!(told(&answer), refused("FOREIGN_HOST"), "{host}");
        for target in ["/healthz", "/readyz", "/metrics"] {
            let answer = send(&edge, &format!("GET {target}"), &format!("host: {host}\r\n"), "").await;
            assert_eq!(answer.status, 200, "{target} for {host}");
        }
        let answer = send(&edge, "GET /%68ealthz", &format!("host: {host}\r\n"), "").await;
        assert_eq!(told(&answer), refused("FOREIGN_HOST"), "{host}");
    }
    for two in ["host: localhost\r\nhost: localhost\r\n", "host: localhost\r\nHost: evil.example\r\n"] {
        assert_eq!(told(&revoke(&edge, two).await), refused("FOREIGN_HOST"), "{two}");
    }
}

#[tokio::test]
async fn the_target_of_a_request_counts_as_its_host() {
    let edge = Edge::start().await;
    let revoke = |target: &str| format!("POST {target}/v1/lease/revoke");
    for (target, host, expected) in [
        ("http://localhost:8080", "localhost:8080", passed()),
        ("http://evil.example", "localhost", refused("FOREIGN_HOST")),
        ("http://localhost", "evil.example", refused("FOREIGN_HOST")),
        ("http://localhost@evil.example", "localhost", refused("FOREIGN_HOST")),
    ] {
        let answer = send(&edge, &revoke(target), &format!("host: {host}\r\n"), REVOKE).await;
        assert_eq!(told(&answer), expected, "{target} for {host}");
    }
    // A browser never leaves the host out, so who does is no browser.
    for line in ["POST /v1/lease/revoke", "POST http://localhost/v1/lease/revoke"] {
        for headers in ["", "host:\r\n"] {
            assert_eq!(told(&send(&edge, line, headers, REVOKE).await), passed(), "{line} {headers}");
        }
    }
    let answer = exchange(edge.http, "GET /v1/status HTTP/1.0\r\n\r\n").await;
    assert_eq!(answer.status, 200);
    let answer = exchange(edge.http, "GET /v1/status HTTP/1.0\r\nhost: evil.example\r\n\r\n").await;
    assert_eq!(told(&answer), refused("FOREIGN_HOST"));
    let upgrade = "host: evil.example\r\nconnection: upgrade, http2-settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAARAAAAAAAIAAAAA\r\n";
    assert_eq!(told(&send(&edge, "GET /v1/status", upgrade, "").await), refused("FOREIGN_HOST"));
}

#[tokio::test]
async fn http_2_names_its_host_in_the_authority() {
    use http::Request;
    use http_body_util::{BodyExt, Empty};
    use hyper_util::rt::{TokioExecutor, TokioIo};

    let edge = Edge::start().await;
    let stream = tokio::net::TcpStream::connect(edge.http).await.unwrap();
    let handshake = hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream));
    let (mut sender, connection) = handshake.await.unwrap();
    tokio::spawn(connection);
    for (authority, extra, expected) in [
        ("localhost:8080", None, 200),
        ("127.0.0.1", None, 200),
        ("evil.example", None, 403),
        ("evil.example", Some("localhost"), 403),
        ("localhost", Some("evil.example"), 403),
    ] {
        let mut request = Request::get(format!("http://{authority}/v1/status"));
        if let Some(host) = extra {
            request = request.header("host", host);
        }
        let answer = sender.send_request(request.body(Empty::<bytes::Bytes>::new()).unwrap()).await.unwrap();
        assert_eq!(answer.status(), expected, "{authority} {extra:?}");
        answer.into_body().collect().await.unwrap();
    }
}

#[tokio::test]
async fn the_names_of_members_are_known_as_they_come_and_go() {
    let edge = Edge::start().await;
    let asked = async |host: &str| told(&revoke(&edge, &format!("host: {host}\r\n")).await);
    let foreign = refused("FOREIGN_HOST");
    assert_eq!(asked("two.example:8080").await, foreign);
    let member = |http: &str, grpc: &str, raft: &str| Member {
        http_address: http.to_owned(),
        grpc_address: grpc.to_owned(),
        raft_address: raft.to_owned(),
        ..Member::default()
    };
    *edge.node.members.lock().unwrap() =
        vec![member("10.0.0.1:8080", "", ""), member("Two.example:8080", "grpc.two:9000", "raft.two:7000")];
    for host in ["two.example", "TWO.EXAMPLE.:1", "grpc.two", "raft.two"] {
        assert_eq!(asked(host).await, passed(), "{host}");
    }
    assert_eq!(asked("three.example").await, foreign);
    // Said twice, as some proxies do.
    let line = "POST http://two.example:8080/v1/lease/revoke";
    assert_eq!(told(&send(&edge, line, "host: two.example:8080\r\n", REVOKE).await), passed());
    edge.node.members.lock().unwrap().clear();
    assert_eq!(asked("two.example").await, foreign);
}

#[tokio::test]
async fn any_host_will_do_if_the_operator_says_so() {
    let edge = Edge::behind(Gate::new([], ["*".parse().unwrap()], [])).await;
    for host in ["evil.example", "local host", "a@b", "evil.example\r\nhost: another"] {
        assert_eq!(told(&revoke(&edge, &format!("host: {host}\r\n")).await), passed(), "{host}");
    }
    let headers = "host: evil.example\r\norigin: https://other.example\r\n";
    assert_eq!(told(&revoke(&edge, headers).await), refused("FOREIGN_ORIGIN"), "but not any origin");
}

#[tokio::test]
async fn pages_of_named_origins_may_ask_and_read() {
    let origins = ["https://dash.example", "http://Other.example:8081"].map(|origin| origin.parse().unwrap());
    let edge = Edge::behind(Gate::new([], [], origins)).await;
    for origin in ["https://dash.example", "http://other.example:8081"] {
        let page = format!("host: localhost:8080\r\norigin: {origin}\r\nsec-fetch-site: cross-site\r\n");
        let preflight = format!(
            "{page}access-control-request-method: POST\r\naccess-control-request-headers: content-type\r\n"
        );
        let answer = send(&edge, "OPTIONS /v1/lease/revoke", &preflight, "").await;
        assert_eq!((answer.status, answer.body.as_str()), (204, ""));
        assert_eq!(answer.header("access-control-allow-origin"), origin);
        assert_eq!(answer.header("access-control-allow-methods"), "GET, POST, DELETE");
        let allowed = answer.header("access-control-allow-headers");
        let allowed: Vec<&str> = allowed.split(", ").collect();
        for sent in ["authorization", "content-type", "idempotency-key", "last-event-id"] {
            assert!(allowed.contains(&sent), "{sent}: {allowed:?}");
        }
        assert_eq!(answer.header("access-control-allow-credentials"), "");

        for answer in [
            revoke(&edge, &format!("{page}content-type: application/json\r\n")).await,
            send(&edge, "GET /v1/status", &page, "").await,
            send(&edge, "GET /nowhere", &page, "").await,
        ] {
            assert!(matches!(answer.status, 200 | 404), "{answer:?}");
            assert_eq!(answer.header("access-control-allow-origin"), origin);
            assert_eq!(answer.header("vary"), "Origin");
            assert!(answer.header("access-control-expose-headers").contains("lowkey-cluster"));
        }
        let simple = revoke(&edge, &format!("{page}content-type: text/plain\r\n")).await;
        assert_eq!(told(&simple), (400, "INVALID_BODY".to_owned()), "no browser asked before");
    }
    for origin in ["http://dash.example", "https://dash.example:8443", "https://x.dash.example", "null"] {
        let page = format!("host: localhost\r\norigin: {origin}\r\naccess-control-request-method: POST\r\n");
        let answer = send(&edge, "OPTIONS /v1/lease/revoke", &page, "").await;
        assert_eq!(told(&answer), refused("FOREIGN_ORIGIN"), "{origin}");
        assert_eq!(answer.header("access-control-allow-origin"), "");
        assert_eq!(answer.header("vary"), "Origin");
    }
    // Who is no page sees no difference.
    let answer = revoke(&edge, "host: localhost\r\n").await;
    assert_eq!((answer.status, answer.header("access-control-allow-origin")), (200, ""));
    assert_eq!(send(&edge, "OPTIONS /v1/lease", "host: localhost\r\n", "").await.status, 405);
}

#[tokio::test]
async fn programs_go_on_as_before() {
    let edge = Edge::start().await;
    for headers in [
        "host: localhost:8080\r\n",
        "host: localhost:8080\r\ncontent-type: application/x-www-form-urlencoded\r\n",
        "host: localhost:8080\r\ncontent-type: text/plain\r\nuser-agent: curl/8\r\naccept: */*\r\n",
    ] {
        assert_eq!(told(&revoke(&edge, headers).await), passed(), "{headers}");
    }
    let body = format!("{:x}\r\n{REVOKE}\r\n0\r\n\r\n", REVOKE.len());
    let head = "POST /v1/lease/revoke HTTP/1.1\r\nconnection: close\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n";
    assert_eq!(told(&exchange(edge.http, format!("{head}\r\n{body}")).await), passed());
    let foreign = format!("{head}origin: https://evil.example\r\n\r\n{body}");
    assert_eq!(told(&exchange(edge.http, foreign).await), refused("FOREIGN_ORIGIN"));
}
