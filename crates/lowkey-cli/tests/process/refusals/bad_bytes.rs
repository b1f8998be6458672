//! Clients that speak no language of ours, the wrong one, or to the wrong port; and strangers among the
//! peers.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use bytes::{Buf, BufMut};
use lowkey_api::ApiError;
use lowkey_api::v1::GetStatusRequest;
use lowkey_api::v1::lock_service_client::LockServiceClient;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Endpoint;
use tonic::{Code, Request, Status};

use crate::cluster::encrypted::let_in;
use crate::harness::{Cluster, Node, eventually, http_with};
use crate::refusals::bad_input::{KIBIBYTE, Target, outcome};

/// Bytes as they are, where a message should be.
#[derive(Clone, Copy, Default)]
struct RawCodec;

impl Codec for RawCodec {
    type Encode = Vec<u8>;
    type Decode = Vec<u8>;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for RawCodec {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, item: Vec<u8>, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put_slice(&item);
        Ok(())
    }
}

impl Decoder for RawCodec {
    type Item = Vec<u8>;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Vec<u8>>, Status> {
        let mut item = vec![0; buffer.remaining()];
        buffer.copy_to_slice(&mut item);
        Ok(Some(item))
    }
}

/// One gRPC call with any bytes as its message.
pub(crate) async fn raw(
    port: u16,
    path: &'static str,
    metadata: &[(&'static str, &str)],
    message: Vec<u8>,
) -> Result<Vec<u8>, Status> {
    let endpoint = Endpoint::from_shared(format!("http://127.0.0.1:{port}")).unwrap();
    let channel = endpoint.timeout(Duration::from_secs(20)).connect().await.unwrap();
    let mut client = tonic::client::Grpc::new(channel);
    client.ready().await.unwrap();
    let mut request = Request::new(message);
    for (key, value) in metadata {
        request.metadata_mut().insert(*key, value.parse().unwrap());
    }
    let answer = client.unary(request, PathAndQuery::from_static(path), RawCodec).await;
    answer.map(tonic::Response::into_inner)
}

/// Where a node sends its messages to another.
const MESSAGES: &str = "/lowkey.peer.v1/messages";

fn hello(fields: &[(&'static str, &str)]) -> String {
    let fields: String = fields.iter().map(|(key, value)| format!("{key}: {value}\r\n")).collect();
    format!(
        "GET {MESSAGES} HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: lowkey-messages\r\n{fields}\r\n"
    )
}

/// Comes as a node with messages; once it is let in it sends these bytes, and nothing more.
fn messages(port: u16, fields: &[(&'static str, &str)], bytes: &[u8]) -> Result<(), Status> {
    let answer = shout(port, &[hello(fields).as_bytes(), bytes].concat());
    let answer = String::from_utf8(answer).unwrap();
    let mut lines = answer.lines();
    if lines.next().is_some_and(|status| status.contains(" 101 ")) {
        return Ok(());
    }
    let headers = lines.map_while(|line| line.split_once(": ")).map(|(key, value)| {
        let key: tonic::codegen::http::HeaderName = key.parse().unwrap();
        (key, value.parse::<tonic::codegen::http::HeaderValue>().unwrap())
    });
    Err(Status::from_header_map(&headers.collect()).unwrap_or_else(|| Status::unknown(answer)))
}

#[tokio::test(flavor = "multi_thread")]
async fn grpc_messages_that_cannot_be_read_get_the_librarys_status() {
    let mut target = Target::start();
    let port = target.node.ports.grpc;
    let create = "/lowkey.v1.LockService/CreateLease";
    for garbage in
        [&[0xff; 20][..], b"\x0a\x05ab", b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", b"\x0a\x02\xff\xfe"]
    {
        let status = raw(port, create, &[], garbage.to_vec()).await.unwrap_err();
        assert_eq!(status.code(), Code::Internal, "{garbage:?}: {status:?}");
    }
    // owner_id "o", ttl_seconds 600, and a field that nobody knows to fill it up.
    let padded = |bytes: usize| {
        let mut message = b"\x0a\x01o\x10\xd8\x04".to_vec();
        let filler = bytes - message.len() - 5;
        message.extend([
            0xa2,
            0x06,
            (filler as u8 & 0x7f) | 0x80,
            (filler >> 7) as u8 | 0x80,
            (filler >> 14) as u8,
        ]);
        message.resize(bytes, 0);
        message
    };
    assert!(raw(port, create, &[], padded(64 * KIBIBYTE)).await.is_ok());
    for bytes in [64 * KIBIBYTE + 1, KIBIBYTE * KIBIBYTE] {
        let status = raw(port, create, &[], padded(bytes)).await.unwrap_err();
        assert_eq!(status.code(), Code::OutOfRange, "{bytes}: {status:?}");
    }
    for path in ["/lowkey.v1.LockService/Nonsense", "/nonsense/Nonsense"] {
        let status = raw(port, path, &[], vec![]).await.unwrap_err();
        assert_eq!(status.code(), Code::Unimplemented, "{path}");
    }
    // An empty message is a request without anything in it.
    let status = raw(port, create, &[], vec![]).await.unwrap_err();
    assert_eq!(ApiError::from_status(&status).unwrap().reason.as_str(), "INVALID_OWNER_ID");
    target.assert_unharmed().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_comes_to_the_wrong_port_is_told_where_to_go() {
    let mut target = Target::start();
    let ports = target.node.ports;
    let endpoint = Endpoint::from_shared(format!("http://127.0.0.1:{}", ports.http)).unwrap();
    let mut lost = LockServiceClient::new(endpoint.connect_lazy());
    let status = lost.get_status(GetStatusRequest {}).await.unwrap_err();
    let error = ApiError::from_status(&status).unwrap();
    assert_eq!((status.code(), error.reason.as_str()), (Code::Unimplemented, "NO_SUCH_ROUTE"));
    assert_eq!(error.metadata["grpc_address"], format!("127.0.0.1:{}", ports.grpc));

    for (method, path) in [("GET", "/v1/status"), ("POST", "/v1/lease"), ("GET", "/")] {
        let answer = http_with(ports.grpc, method, path, "", b"{}").unwrap();
        assert_eq!(outcome(&answer), Err((404, "NO_SUCH_ROUTE".into())), "{method} {path}");
        let right = &answer.json()["details"][0]["metadata"]["http_address"];
        assert_eq!(*right, format!("127.0.0.1:{}", ports.http));
    }

    // The peers' port is for peers: it lets in nobody else, in any dialect.
    let answer = http_with(ports.raft, "GET", "/v1/status", "", b"").unwrap();
    assert_eq!((answer.status, answer.json()["reason"].as_str()), (404, Some("NO_SUCH_ROUTE")));
    assert!(answer.json()["message"].as_str().unwrap().contains("among themselves"), "{}", answer.json());
    let endpoint = Endpoint::from_shared(format!("http://127.0.0.1:{}", ports.raft)).unwrap();
    let mut lost = LockServiceClient::new(endpoint.connect_lazy());
    let status = lost.get_status(GetStatusRequest {}).await.unwrap_err();
    let error = ApiError::from_status(&status).unwrap();
    assert_eq!((status.code(), error.reason.as_str()), (Code::Unimplemented, "NO_SUCH_ROUTE"));
    assert_eq!(error.metadata["grpc_address"], format!("127.0.0.1:{}", ports.grpc));
    let peer = raw(ports.grpc, "/lowkey.peer.v1.Peer/Forward", &[], vec![]).await.unwrap_err();
    assert_eq!(peer.code(), Code::Unimplemented, "and clients' ports take no peers");
    target.assert_unharmed().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stranger_at_the_peers_port_gets_nothing_in() {
    let mut target = Target::start();
    let mut elsewhere = Target::start();
    let port = target.node.ports.raft;
    let cluster_of =
        |target: &Target| target.node.status().unwrap()["clusterId"].as_str().unwrap().to_owned();
    let (own, foreign) = (cluster_of(&target), cluster_of(&elsewhere));
    let identity = "00112233445566778899aabbccddeeff";
    let address = format!("127.0.0.1:{}", elsewhere.node.ports.raft);

    let right = [
        ("lowkey-cluster", own.as_str()),
        ("lowkey-from", "3"),
        ("lowkey-identity", identity),
        ("lowkey-raft-address", address.as_str()),
        ("lowkey-to", "1"),
    ];
    let with = |key: &str, value: &'static str| {
        let mut fields = right.to_vec();
        match value {
            "" => fields.retain(|(name, _)| *name != key),
            value => fields.iter_mut().filter(|(name, _)| *name == key).for_each(|field| field.1 = value),
        }
        fields
    };
    let mut wrong_cluster = right.to_vec();
    wrong_cluster[0].1 = &foreign;
    let before = target.node.status().unwrap();
    for call in [MESSAGES, "/lowkey.peer.v1.Peer/Snapshot", "/lowkey.peer.v1.Peer/Forward"] {
        let clusters = format!("this node belongs to cluster {own}, the caller to cluster {foreign}");
        for (fields, code, says) in [
            (vec![], Code::Unauthenticated, "this port is for nodes of a lowkey cluster"),
            (wrong_cluster.clone(), Code::FailedPrecondition, clusters.as_str()),
            (with("lowkey-cluster", ""), Code::Unauthenticated, "no lowkey-cluster was given"),
            (with("lowkey-cluster", "x"), Code::FailedPrecondition, "the caller to cluster x"),
            (with("lowkey-to", ""), Code::Unauthenticated, "no lowkey-to was given"),
            (with("lowkey-to", "2"), Code::FailedPrecondition, "this is member 1, not 2"),
            (with("lowkey-to", "one"), Code::Unauthenticated, "lowkey-to is not a number"),
            (with("lowkey-from", ""), Code::Unauthenticated, "no lowkey-from was given"),
            (with("lowkey-from", "-3"), Code::Unauthenticated, "lowkey-from is not a number"),
            (
                with("lowkey-from", "18446744073709551616"),
                Code::Unauthenticated,
                "lowkey-from is not a number",
            ),
            (
                with("lowkey-from", "1"),
                Code::PermissionDenied,
                "member 1 has another identity in this cluster",
            ),
            (with("lowkey-from", "0"), Code::PermissionDenied, "member 0 is not known here yet"),
            (with("lowkey-identity", ""), Code::Unauthenticated, "no lowkey-identity was given"),
            (with("lowkey-raft-address", ""), Code::Unauthenticated, "no lowkey-raft-address was given"),
            (with("lowkey-raft-address", "nowhere"), Code::InvalidArgument, "is not HOST:PORT"),
        ] {
            let status = match call {
                MESSAGES => messages(port, &fields, b"junk").unwrap_err(),
                call => raw(port, call, &fields, b"\x0a\x04junk".to_vec()).await.unwrap_err(),
            };
            assert_eq!(
                (status.code(), status.message().contains(says)),
                (code, true),
                "{fields:?}: {status:?}"
            );
        }
    }

    // While there is a leader, a member that this node has not heard of is refused whatever it says.
    for (number, message) in [&b"\x0a\x04junk"[..], b"\x0a\x00", &[0xff; 30]].into_iter().enumerate() {
        let status = messages(port, &right, message).unwrap_err();
        assert_eq!(status.code(), Code::PermissionDenied, "{number}: {status:?}");
    }

    let after = target.node.status().unwrap();
    for unchanged in ["term", "leaderId", "members", "clusterSize"] {
        assert_eq!(before[unchanged], after[unchanged], "{unchanged}");
    }
    target.assert_unharmed().await;
    elsewhere.assert_unharmed().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stranger_that_speaks_raft_is_not_followed() {
    let mut target = Target::start();
    let before = target.node.status().unwrap();
    let cluster = before["clusterId"].as_str().unwrap();
    let fields = [
        ("lowkey-cluster", cluster),
        ("lowkey-from", "3"),
        ("lowkey-identity", "00112233445566778899aabbccddeeff"),
        ("lowkey-raft-address", "127.0.0.1:1"),
        ("lowkey-to", "1"),
    ];
    // An append and a heartbeat of a leader whom nobody elected, in a later term and in the last one.
    for kind in [3, 8] {
        for term in [&[5][..], &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01]] {
            let message = [&[0x08, kind, 0x10, 1, 0x18, 3, 0x20][..], term, &[0x80, 0x01, 1]].concat();
            let frame = [&[message.len() as u8, 0, 0, 0][..], &message].concat();
            // Refused or ignored: either will do.
            let _ = messages(target.node.ports.raft, &fields, &frame);
        }
    }
    target.assert_unharmed().await;
    let after = target.node.status().unwrap();
    for unchanged in ["term", "leaderId"] {
        assert_eq!(before[unchanged], after[unchanged], "{unchanged}");
    }
}

/// The head of a request or an answer.
fn read_head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).unwrap();
        head.extend(byte);
    }
    String::from_utf8(head).unwrap()
}

#[test]
fn a_stranger_does_a_node_without_a_leader_no_harm() {
    let mut cluster = Cluster::start(3);
    cluster.wait_whole();
    let alone = cluster.nodes.swap_remove(0);
    cluster.nodes.iter_mut().for_each(Node::kill);
    let status = eventually("it has lost its leader", || {
        let status = alone.status()?;
        status["leaderId"].as_str().is_none_or(str::is_empty).then_some(status)
    });
    // A stranger is not believed, and not called back: it would hear this node's identity.
    let stranger = TcpListener::bind("127.0.0.1:0").unwrap();
    stranger.set_nonblocking(true).unwrap();
    let address = stranger.local_addr().unwrap().to_string();
    let fields = [
        ("lowkey-cluster", status["clusterId"].as_str().unwrap()),
        ("lowkey-from", "9"),
        ("lowkey-identity", "00112233445566778899aabbccddeeff"),
        ("lowkey-raft-address", address.as_str()),
        ("lowkey-to", "1"),
    ];
    for _ in 0..3 {
        let mut stream = TcpStream::connect(("127.0.0.1", alone.ports.raft)).unwrap();
        stream.write_all(hello(&fields).as_bytes()).unwrap();
        let answer = read_head(&mut stream);
        assert!(answer.contains("lowkey-unknown: true"), "{answer}");
    }
    assert!(stranger.accept().is_err());
    // Who has the key of a member is heard. If it comes again, it takes the place of the connection before.
    let mut first = let_in(&cluster.nodes[0], &alone);
    let mut second = let_in(&cluster.nodes[0], &alone);
    let ended = |stream: &mut (dyn Read + '_)| !matches!(stream.read(&mut [0]), Ok(1));
    assert!(ended(&mut first));
    // And who stops in the middle of a frame is not waited for.
    let started = Instant::now();
    second.write_all(&[100, 0, 0, 0, 1]).unwrap();
    assert!(ended(&mut second));
    assert!(started.elapsed() >= Duration::from_secs(9), "{:?}", started.elapsed());
    assert!(alone.status().is_some(), "{}", alone.log_text());
    assert!(!alone.log_text().contains("this node was removed"), "{}", alone.log_text());
}

/// Sends bytes, then nothing more; what comes back until the other side closes.
fn shout(port: u16, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    // The node may have heard enough before all is sent.
    let _ = stream.write_all(bytes);
    let _ = stream.shutdown(Shutdown::Write);
    let mut answer = Vec::new();
    let ended = stream.read_to_end(&mut answer);
    let is_late = ended.is_err_and(|error| {
        matches!(error.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut)
    });
    assert!(!is_late, "port {port} keeps a connection that said {:?}", &bytes[..bytes.len().min(60)]);
    answer
}

/// Numbers that look random and are the same in every run (xorshift).
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| self.next() as u8).collect()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn noise_on_every_port_ends_its_own_connection_only() {
    let mut target = Target::start();
    let ports = target.node.ports;
    let mut noise = Noise(0x10c4_e751_u64);
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let settings = b"\0\0\0\x04\0\0\0\0\0";
    let mut shouted = 0;
    for port in [ports.raft, ports.grpc, ports.http] {
        for (beginning, rounds) in [
            (vec![], 12),
            (b"GET /v1/status HTTP/1.1\r\n".to_vec(), 4),
            (b"POST /v1/lease HTTP/1.1\r\nhost: localhost\r\ncontent-length: 4000\r\n\r\n".to_vec(), 4),
            (b"POST /v1/lease HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n".to_vec(), 4),
            (preface[..10].to_vec(), 4),
            (preface.to_vec(), 12),
            ([&preface[..], settings].concat(), 12),
            // A whole header frame's head, then noise in place of its fields.
            ([&preface[..], settings, b"\0\0\x20\x01\x05\0\0\0\x01"].concat(), 6),
            // TLS, for who thinks that everything is encrypted by now.
            (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".to_vec(), 2),
        ] {
            for _ in 0..rounds {
                let count = noise.next() as usize % 3000;
                shout(port, &[&beginning[..], &noise.bytes(count)].concat());
                shouted += 1;
            }
        }
        let many_headers = "a: b\r\n".repeat(20_000);
        shout(port, format!("GET / HTTP/1.1\r\n{many_headers}\r\n").as_bytes());
        shout(port, &vec![b'a'; KIBIBYTE * KIBIBYTE]);
        shout(port, b"");
    }
    target.assert_unharmed().await;
    println!("{shouted} noisy connections");
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_that_stay_half_open_are_in_nobodys_way() {
    let mut target = Target::start();
    let ports = target.node.ports;
    let mut open = Vec::new();
    for port in [ports.raft, ports.grpc, ports.http] {
        for beginning in [
            &b""[..],
            b"G",
            b"GET /v1/status HTTP/1.1\r\nhost:",
            b"POST /v1/lease HTTP/1.1\r\nhost: localhost\r\ncontent-length: 34\r\n\r\n{\"owner_id\":",
            b"PRI * HTTP/2.0\r\n",
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0",
        ] {
            for _ in 0..25 {
                let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
                stream.write_all(beginning).unwrap();
                open.push(stream);
            }
        }
    }
    let started = Instant::now();
    target.assert_unharmed().await;
    println!("served in {} ms beside {} half-open connections", started.elapsed().as_millis(), open.len());
    drop(open);
    target.assert_unharmed().await;
}
