//! The accept loop: limits, deadlines and the way out.

use std::time::Duration;

use lowkey_api::v1::lock_service_client::LockServiceClient;
use lowkey_api::v1::{GetLockRequest, WatchEvent, WatchRequest};
use lowkey_api::{ApiError, Reason};
use lowkey_server::edge::budget::MemoryLimits;
use lowkey_server::edge::serve::ServeLimits;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tonic::transport::Endpoint;

use crate::fake::{CROWDED_LOCK, SLOW_LEASE};
use crate::support::{Edge, EventSource, soon, until};

/// Reads until the server closes the connection.
async fn read_to_end(stream: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    // A reset is an end as well.
    let _ = soon(stream.read_to_end(&mut bytes)).await;
    bytes
}

/// Two connections at a time.
fn two() -> ServeLimits {
    ServeLimits { max_connections: 2, ..ServeLimits::default() }
}

const ALIVE: &[u8] = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n";

#[tokio::test]
async fn a_connection_beyond_the_limit_is_told_why_and_a_free_place_is_used_again() {
    let edge = Edge::with_limits(two()).await;
    let mut kept = Vec::new();
    for _ in 0..2 {
        kept.push(EventSource::open(edge.http, "/v1/watch", "").await);
    }
    let mut refused = TcpStream::connect(edge.http).await.unwrap();
    refused.write_all(ALIVE).await.unwrap();
    let told = String::from_utf8(read_to_end(&mut refused).await).unwrap();
    assert!(told.starts_with("HTTP/1.1 429 "), "{told}");
    assert!(told.contains("LIMIT_CONNECTIONS") && told.contains("--max-connections"), "{told}");

    drop(kept);
    soon(async {
        loop {
            let mut stream = TcpStream::connect(edge.http).await.unwrap();
            let _ = stream
                .write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
                .await;
            if read_to_end(&mut stream).await.starts_with(b"HTTP/1.1 200") {
                break;
            }
        }
    })
    .await;
}

#[tokio::test]
async fn a_grpc_client_for_whom_there_is_no_place_is_told_why() {
    let edge = Edge::with_limits(two()).await;
    let mut watches = Vec::new();
    for _ in 0..2 {
        watches.push(edge.client().await.watch(WatchRequest::default()).await.unwrap());
    }
    let mut stream = TcpStream::connect(edge.grpc).await.unwrap();
    stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
    let told = read_to_end(&mut stream).await;
    let told = String::from_utf8_lossy(&told);
    assert!(told.contains("LIMIT_CONNECTIONS") && told.contains("--max-connections"), "{told}");
}

#[tokio::test]
async fn a_newcomer_takes_the_place_of_a_connection_that_is_idle() {
    let edge = Edge::with_limits(two()).await;
    let mut busy = EventSource::open(edge.http, "/v1/watch", "").await;
    let mut idle = TcpStream::connect(edge.http).await.unwrap();
    idle.write_all(ALIVE).await.unwrap();
    assert_eq!(soon(idle.read_u8()).await.unwrap(), b'H');
    until(|| edge.budget.used_bytes() < 8 * 1024).await;
    for _ in 0..3 {
        let mut newcomer = TcpStream::connect(edge.http).await.unwrap();
        newcomer.write_all(ALIVE).await.unwrap();
        assert_eq!(soon(newcomer.read_u8()).await.unwrap(), b'H');
        until(|| edge.budget.used_bytes() < 8 * 1024).await;
        read_to_end(&mut idle).await;
        idle = newcomer;
    }
    edge.node.watch_sender().send(Ok(WatchEvent::default())).unwrap();
    assert!(busy.chunk().await.contains("data:"), "who uses its place keeps it");
}

#[tokio::test]
async fn a_connection_on_which_nothing_is_asked_is_closed() {
    let limits = ServeLimits { header_read_timeout: Duration::from_millis(50), ..ServeLimits::default() };
    let edge = Edge::with_limits(limits).await;
    let mut silent = TcpStream::connect(edge.grpc).await.unwrap();
    // All that HTTP/2 wants for a beginning, and no request.
    silent.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0").await.unwrap();
    read_to_end(&mut silent).await;
}

#[tokio::test]
async fn answers_that_nobody_takes_are_within_the_budget_of_their_connection() {
    let memory = MemoryLimits { connection_bytes: 1024 * 1024, ..MemoryLimits::default() };
    let edge = Edge::with_limits(ServeLimits { memory, ..ServeLimits::default() }).await;
    let endpoint = Endpoint::from_shared(format!("http://{}", edge.grpc)).unwrap();
    // As much as nothing.
    let channel = endpoint.initial_stream_window_size(1).connect().await.unwrap();
    let mut asked = JoinSet::new();
    for _ in 0..90 {
        let mut client = LockServiceClient::new(channel.clone());
        let request = GetLockRequest { lock_name: CROWDED_LOCK.into(), ..GetLockRequest::default() };
        asked.spawn(async move { client.get_lock(request).await });
    }
    let refused = soon(asked.join_next()).await.unwrap().unwrap().unwrap_err();
    let refused = ApiError::from_status(&refused).unwrap();
    assert_eq!(refused.reason, Reason::LimitMemory);
    assert!(edge.budget.used_bytes() < 2 * 1024 * 1024);
    // Others are not concerned.
    let other = edge.client().await.get_lock(GetLockRequest::default()).await;
    other.unwrap();
    drop((asked, channel));
    until(|| edge.budget.used_bytes() == 0).await;
}

#[tokio::test]
async fn whoever_says_nothing_or_half_of_something_is_closed() {
    let limits = ServeLimits { header_read_timeout: Duration::from_millis(50), ..ServeLimits::default() };
    let edge = Edge::with_limits(limits).await;
    for address in [edge.http, edge.grpc] {
        for beginning in
            [&b""[..], b"P", b"PRI * HTTP", b"GET / HT", b"GET / HTTP/1.1\r\nhost: localhost\r\n"]
        {
            let mut stream = TcpStream::connect(address).await.unwrap();
            stream.write_all(beginning).await.unwrap();
            read_to_end(&mut stream).await;
        }
    }
}

#[tokio::test]
async fn a_preface_that_comes_in_pieces_is_understood_and_streams_are_limited() {
    let edge = Edge::start().await;
    let mut stream = TcpStream::connect(edge.http).await.unwrap();
    stream.set_nodelay(true).unwrap();
    for piece in [&b"PRI"[..], b" * HTTP/2.0\r\n\r\nSM", b"\r\n\r\n\0\0\0\x04\0\0\0\0\0"] {
        stream.write_all(piece).await.unwrap();
        tokio::task::yield_now().await;
    }
    assert!(read_settings(&mut stream).await.contains(&(MAX_CONCURRENT_STREAMS, 100)));
}

/// The number of HTTP/2's setting for requests at a time on one connection.
const MAX_CONCURRENT_STREAMS: u16 = 3;

/// The settings that the server begins with: a frame of type 4 on stream 0, six bytes each.
async fn read_settings(stream: &mut TcpStream) -> Vec<(u16, u32)> {
    let mut head = [0; 9];
    soon(stream.read_exact(&mut head)).await.unwrap();
    assert_eq!((head[3], &head[5..]), (4, &[0; 4][..]));
    let mut payload = vec![0; usize::from(head[2])];
    soon(stream.read_exact(&mut payload)).await.unwrap();
    let settings = payload.chunks_exact(6);
    settings
        .map(|bytes| {
            let id = u16::from_be_bytes([bytes[0], bytes[1]]);
            (id, u32::from_be_bytes([bytes[2], bytes[3], bytes[4], bytes[5]]))
        })
        .collect()
}

#[tokio::test]
async fn one_connection_serves_many_requests() {
    let edge = Edge::start().await;
    let mut stream = TcpStream::connect(edge.http).await.unwrap();
    let request = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n";
    stream.write_all(&request.repeat(3)).await.unwrap();
    stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n").await.unwrap();
    let answers = String::from_utf8(read_to_end(&mut stream).await).unwrap();
    assert_eq!(answers.matches("HTTP/1.1 200 OK").count(), 4, "{answers}");
}

#[tokio::test]
async fn on_stop_idle_connections_end_and_what_is_under_way_is_answered() {
    let edge = Edge::start().await;
    let mut idle = TcpStream::connect(edge.http).await.unwrap();
    let mut silent = TcpStream::connect(edge.grpc).await.unwrap();
    idle.write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
    assert_eq!(soon(idle.read_u8()).await.unwrap(), b'H');
    let mut busy = TcpStream::connect(edge.http).await.unwrap();
    let body = format!(r#"{{"leaseId":{SLOW_LEASE}}}"#);
    let head =
        format!("POST /v1/lease/renew HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n", body.len());
    busy.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
    until(|| edge.node.slow_begun.load(std::sync::atomic::Ordering::SeqCst) == 1).await;

    edge.node.stopping.send_replace(true);
    read_to_end(&mut idle).await;
    read_to_end(&mut silent).await;
    until(|| std::net::TcpStream::connect(edge.http).is_err()).await;
    edge.node.slow.add_permits(1);
    let answer = String::from_utf8(read_to_end(&mut busy).await).unwrap();
    assert!(answer.ends_with("{\"ttlSeconds\":\"20\",\"holdsDiffer\":false}\n"), "{answer}");
    soon(edge.served).await.unwrap();
}

#[tokio::test]
async fn on_stop_what_never_ends_is_cut_off() {
    let limits = ServeLimits { shutdown_timeout: Duration::from_millis(50), ..ServeLimits::default() };
    let edge = Edge::with_limits(limits).await;
    let mut busy = TcpStream::connect(edge.http).await.unwrap();
    let body = format!(r#"{{"leaseId":{SLOW_LEASE}}}"#);
    let head =
        format!("POST /v1/lease/renew HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n", body.len());
    busy.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
    until(|| edge.node.slow_begun.load(std::sync::atomic::Ordering::SeqCst) == 1).await;

    edge.node.stopping.send_replace(true);
    soon(edge.served).await.unwrap();
    assert!(read_to_end(&mut busy).await.is_empty());
}
