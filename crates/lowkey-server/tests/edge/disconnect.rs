//! Calls and streams that stay open for long: nothing cuts them but their client, or the node's stop.

use std::net::{Shutdown, SocketAddr};
use std::time::Duration;

use bytes::Bytes;
use http::Request;
use http_body_util::Full;
use hyper::client::conn::http2::SendRequest;
use hyper_util::rt::{TokioExecutor, TokioIo};
use lowkey_api::v1::{
    AcquireLockRequest, CampaignRequest, EventType, GetStatusRequest, ObserveRequest, WatchEvent,
    WatchRequest,
};
use lowkey_server::edge::serve::ServeLimits;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::{Edge, EventSource, soon, until};

const ACQUIRE: (&str, &str) = ("/v1/lock/acquire", r#"{"lockName":"a","ownerId":"o","waitMs":86400000}"#);
const CAMPAIGN: (&str, &str) = ("/v1/election/campaign", r#"{"election":"e","ownerId":"o"}"#);

fn acquire() -> AcquireLockRequest {
    AcquireLockRequest { lock_name: "a".into(), wait_ms: 86_400_000, ..AcquireLockRequest::default() }
}

fn campaign() -> CampaignRequest {
    CampaignRequest { election: "e".into(), ..CampaignRequest::default() }
}

/// Sends a request that waits, over HTTP/1, and returns when the node has it.
async fn post_and_wait(edge: &Edge, (path, body): (&str, &str)) -> TcpStream {
    let before = edge.node.present();
    let mut stream = TcpStream::connect(edge.http).await.unwrap();
    let length = body.len();
    let request =
        format!("POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {length}\r\n\r\n{body}");
    stream.write_all(request.as_bytes()).await.unwrap();
    until(|| edge.node.present() == before + 1).await;
    stream
}

#[tokio::test]
async fn over_http_1_a_closed_connection_ends_what_waited_for_it() {
    let edge = Edge::start().await;
    for request in [ACQUIRE, CAMPAIGN] {
        let stream = post_and_wait(&edge, request).await;
        drop(stream);
        until(|| edge.node.present() == 0).await;
    }
    for target in ["/v1/watch?name=a", "/v1/election/observe?election=e"] {
        let source = EventSource::open(edge.http, target, "").await;
        assert_eq!(edge.node.present(), 1, "{target}");
        drop(source);
        until(|| edge.node.present() == 0).await;
    }
}

/// An HTTP/2 connection, and its socket to close it by.
async fn http_2(address: SocketAddr) -> (SendRequest<Full<Bytes>>, std::net::TcpStream) {
    let stream = TcpStream::connect(address).await.unwrap().into_std().unwrap();
    let socket = stream.try_clone().unwrap();
    let io = TokioIo::new(TcpStream::from_std(stream).unwrap());
    let (sender, connection) = hyper::client::conn::http2::handshake(TokioExecutor::new(), io).await.unwrap();
    tokio::spawn(connection);
    (sender, socket)
}

fn post_request((path, body): (&'static str, &'static str)) -> Request<Full<Bytes>> {
    Request::post(format!("http://localhost{path}")).body(Full::from(body)).unwrap()
}

fn get_request(target: &str) -> Request<Full<Bytes>> {
    Request::get(format!("http://localhost{target}")).body(Full::default()).unwrap()
}

#[tokio::test]
async fn over_http_2_a_reset_ends_one_call_and_leaves_the_others() {
    let edge = Edge::start().await;
    let (mut sender, _socket) = http_2(edge.http).await;
    let kept = tokio::spawn(sender.send_request(post_request(ACQUIRE)));
    until(|| edge.node.present() == 1).await;

    for request in [ACQUIRE, CAMPAIGN] {
        // Whoever stops waiting for the answer sends RST_STREAM.
        let call = tokio::spawn(sender.send_request(post_request(request)));
        until(|| edge.node.present() == 2).await;
        call.abort();
        until(|| edge.node.present() == 1).await;
    }
    for target in ["/v1/watch?name=a", "/v1/election/observe?election=e"] {
        let response = soon(sender.send_request(get_request(target))).await.unwrap();
        assert_eq!(edge.node.present(), 2, "{target}");
        drop(response);
        until(|| edge.node.present() == 1).await;
    }

    edge.node.slow.add_permits(1);
    assert_eq!(soon(kept).await.unwrap().unwrap().status(), 200);
}

#[tokio::test]
async fn over_http_2_a_closed_connection_ends_all_that_waited_for_it() {
    let edge = Edge::start().await;
    let (mut sender, socket) = http_2(edge.http).await;
    let calls = [ACQUIRE, CAMPAIGN].map(|request| tokio::spawn(sender.send_request(post_request(request))));
    let stream = soon(sender.send_request(get_request("/v1/watch?name=a"))).await.unwrap();
    until(|| edge.node.present() == 3).await;
    socket.shutdown(Shutdown::Both).unwrap();
    until(|| edge.node.present() == 0).await;
    drop((calls, stream));
}

#[tokio::test]
async fn over_grpc_a_cancelled_call_is_dropped() {
    let edge = Edge::start().await;
    let (mut locks, mut elections) = (edge.client().await, edge.elections().await);
    let call = tokio::spawn(async move { locks.acquire_lock(acquire()).await.map(drop) });
    until(|| edge.node.present() == 1).await;
    call.abort();
    until(|| edge.node.present() == 0).await;

    let call = tokio::spawn(async move { elections.campaign(campaign()).await.map(drop) });
    until(|| edge.node.present() == 1).await;
    call.abort();
    until(|| edge.node.present() == 0).await;

    // The same on connections that live on.
    let (mut locks, mut elections) = (edge.client().await, edge.elections().await);
    let watch = locks.watch(WatchRequest::default()).await.unwrap();
    let observation = elections.observe(ObserveRequest::default()).await.unwrap();
    assert_eq!(edge.node.present(), 2);
    drop(watch);
    until(|| edge.node.present() == 1).await;
    drop(observation);
    until(|| edge.node.present() == 0).await;
    assert!(locks.get_status(GetStatusRequest {}).await.is_ok());
}

#[tokio::test]
async fn over_grpc_a_deadline_of_the_client_ends_the_wait() {
    let edge = Edge::start().await;
    let mut request = tonic::Request::new(acquire());
    request.set_timeout(Duration::from_millis(100));
    assert!(edge.client().await.acquire_lock(request).await.is_err());
    until(|| edge.node.present() == 0).await;
}

#[tokio::test]
async fn a_wait_outlasts_every_deadline_of_the_port() {
    let limits = ServeLimits {
        header_read_timeout: Duration::from_millis(50),
        keep_alive_interval: Duration::from_millis(50),
        ..ServeLimits::default()
    };
    let edge = Edge::with_limits(limits).await;
    let mut waiting = post_and_wait(&edge, CAMPAIGN).await;
    let mut locks = edge.client().await;
    let call = tokio::spawn(async move { locks.acquire_lock(acquire()).await });
    let mut source = EventSource::open(edge.http, "/v1/watch?name=a", "").await;
    until(|| edge.node.present() == 3).await;

    // Whoever came later and said nothing is closed, again and again; these are not.
    for _ in 0..5 {
        let mut silent = TcpStream::connect(edge.http).await.unwrap();
        let _ = soon(silent.read_to_end(&mut Vec::new())).await;
    }
    assert_eq!(edge.node.present(), 3);
    edge.node.slow.add_permits(2);
    let mut answer = [0; 15];
    soon(waiting.read_exact(&mut answer)).await.unwrap();
    assert_eq!(&answer, b"HTTP/1.1 200 OK");
    assert!(soon(call).await.unwrap().is_ok());
    edge.node.watch_sender().send(Ok(WatchEvent::default())).unwrap();
    assert!(source.chunk().await.starts_with("event: heartbeat\n"));
}

#[tokio::test]
async fn on_stop_streams_that_end_are_told_to_their_end() {
    // What ends by itself is not cut off: this test does not outlast the limit.
    let limits = ServeLimits { shutdown_timeout: Duration::from_secs(3600), ..ServeLimits::default() };
    let edge = Edge::with_limits(limits).await;
    let mut source = EventSource::open(edge.http, "/v1/watch?name=a", "").await;
    let http_sender = edge.node.watch_sender();
    let mut events = edge.client().await.watch(WatchRequest::default()).await.unwrap().into_inner();
    let grpc_sender = edge.node.watch_sender();

    edge.node.stopping.send_replace(true);
    let end = WatchEvent { r#type: EventType::End.into(), revision: 42, ..WatchEvent::default() };
    for sender in [http_sender, grpc_sender] {
        sender.send(Ok(end.clone())).unwrap();
    }
    assert!(source.chunk().await.starts_with("event: end\nid: 42.0\n"));
    assert_eq!(source.chunk().await, "");
    assert_eq!(soon(events.message()).await.unwrap(), Some(end));
    assert_eq!(soon(events.message()).await.unwrap(), None);
    soon(edge.served).await.unwrap();
}

#[tokio::test]
async fn on_stop_streams_and_waits_that_never_end_are_cut_off() {
    let limits = ServeLimits { shutdown_timeout: Duration::from_millis(50), ..ServeLimits::default() };
    let edge = Edge::with_limits(limits).await;
    let _source = EventSource::open(edge.http, "/v1/watch?name=a", "").await;
    let _waiting = post_and_wait(&edge, ACQUIRE).await;
    let mut client = edge.client().await;
    let _events = client.watch(WatchRequest::default()).await.unwrap();
    let _call = tokio::spawn(async move { client.acquire_lock(acquire()).await });
    until(|| edge.node.present() == 4).await;

    edge.node.stopping.send_replace(true);
    soon(edge.served).await.unwrap();
    until(|| edge.node.present() == 0).await;
}
