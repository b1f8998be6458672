//! The accept loop: limits, deadlines and the way out.

use std::time::Duration;

use lowkey_server::edge::serve::ServeLimits;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::fake::SLOW_LEASE;
use crate::support::{Edge, soon, until};

/// Reads until the server closes the connection.
async fn read_to_end(stream: &mut TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    // A reset is an end as well.
    let _ = soon(stream.read_to_end(&mut bytes)).await;
    bytes
}

#[tokio::test]
async fn connections_beyond_the_limit_are_closed_at_once_and_a_free_place_is_used_again() {
    let edge = Edge::with_limits(ServeLimits { max_connections: 2, ..ServeLimits::default() }).await;
    let mut kept = Vec::new();
    for _ in 0..2 {
        let mut stream = TcpStream::connect(edge.http).await.unwrap();
        stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n").await.unwrap();
        assert_eq!(soon(stream.read_u8()).await.unwrap(), b'H');
        kept.push(stream);
    }
    let mut refused = TcpStream::connect(edge.http).await.unwrap();
    assert!(read_to_end(&mut refused).await.is_empty());

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
