//! The two ports in front of a node in memory, and a plain HTTP/1 client.

use std::collections::BTreeMap;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use lowkey_api::v1::election_service_client::ElectionServiceClient;
use lowkey_api::v1::lock_service_client::LockServiceClient;
use lowkey_server::edge::budget::Budget;
use lowkey_server::edge::http::Gate;
use lowkey_server::edge::serve::{ServeLimits, serve};
use lowkey_server::edge::tls::Tls;
use lowkey_server::edge::{Node, grpc, http};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tonic::transport::{Channel, Endpoint};

use crate::fake::FakeNode;

/// A running edge: both ports, on addresses of their own.
pub(crate) struct Edge {
    pub(crate) node: Arc<FakeNode>,
    pub(crate) http: SocketAddr,
    pub(crate) grpc: SocketAddr,
    /// What is kept for clients of both ports.
    pub(crate) budget: Arc<Budget>,
    /// Both ports' accept loops.
    pub(crate) served: JoinHandle<()>,
}

impl Edge {
    pub(crate) async fn start() -> Self {
        Self::with_limits(ServeLimits::default()).await
    }

    pub(crate) async fn with_limits(limits: ServeLimits) -> Self {
        Self::with(limits, Gate::new([], [], []), None).await
    }

    pub(crate) async fn behind(gate: Gate) -> Self {
        Self::with(ServeLimits::default(), gate, None).await
    }

    pub(crate) async fn encrypted(limits: ServeLimits, tls: &Arc<Tls>) -> Self {
        Self::with(limits, Gate::new([], [], []), Some(Arc::clone(tls))).await
    }

    async fn with(limits: ServeLimits, gate: Gate, tls: Option<Arc<Tls>>) -> Self {
        let node = Arc::new(FakeNode::new());
        let http_listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let grpc_listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let http = http_listener.local_addr().unwrap();
        let grpc = grpc_listener.local_addr().unwrap();
        let http_router = http::router(Arc::clone(&node), grpc.to_string(), gate);
        let grpc_port = grpc::port(Arc::clone(&node), http.to_string()).unwrap();
        let (http_stop, grpc_stop) = (node.stopping(), node.stopping());
        let budget = Arc::new(Budget::new(limits.memory));
        let counted = Some(Arc::clone(&budget));
        let served = tokio::spawn(async move {
            tokio::join!(
                serve(http_listener, http_router, limits, counted.clone(), tls.clone(), http_stop),
                serve(grpc_listener, grpc_port, limits, counted.clone(), tls.clone(), grpc_stop),
            );
        });
        Self { node, http, grpc, budget, served }
    }

    pub(crate) async fn channel(&self) -> Channel {
        Endpoint::from_shared(format!("http://{}", self.grpc)).unwrap().connect().await.unwrap()
    }

    pub(crate) async fn client(&self) -> LockServiceClient<Channel> {
        LockServiceClient::new(self.channel().await)
    }

    pub(crate) async fn elections(&self) -> ElectionServiceClient<Channel> {
        ElectionServiceClient::new(self.channel().await)
    }

    pub(crate) async fn get(&self, target: &str) -> Answer {
        exchange(self.http, &format!("GET {target} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"))
            .await
    }

    pub(crate) async fn delete(&self, target: &str) -> Answer {
        exchange(
            self.http,
            &format!("DELETE {target} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"),
        )
        .await
    }

    pub(crate) async fn post(&self, path: &str, body: impl AsRef<[u8]>) -> Answer {
        self.post_with(path, "", body).await
    }

    /// Posts with further header lines, each of which ends with `\r\n`.
    pub(crate) async fn post_with(&self, path: &str, headers: &str, body: impl AsRef<[u8]>) -> Answer {
        let body = body.as_ref();
        let length = body.len();
        let mut request =
            format!("POST {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: {length}\r\n{headers}\r\n")
                .into_bytes();
        request.extend_from_slice(body);
        exchange(self.http, &request).await
    }
}

/// An HTTP/1 answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn parse(text: &str) -> Self {
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no HTTP answer: {text:?}"));
        let mut lines = head.lines();
        let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
        let headers = lines.map(|line| line.split_once(": ").unwrap());
        let headers = headers.map(|(name, value)| (name.to_ascii_lowercase(), value.to_owned())).collect();
        Self { status, headers, body: body.to_owned() }
    }

    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", String::as_str)
    }

    /// The body without the line break at its end, which every body has.
    pub(crate) fn text(&self) -> &str {
        self.body.strip_suffix('\n').unwrap_or_else(|| panic!("the last line does not end: {self:?}"))
    }

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(self.text()).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// The error's reason, once its form has been checked.
    pub(crate) fn reason(&self) -> String {
        let json = self.json();
        let reason = json["reason"].as_str().unwrap().to_owned();
        assert_eq!(self.header("content-type"), "application/json");
        assert_eq!(json["details"][0]["@type"], "type.googleapis.com/google.rpc.ErrorInfo");
        assert_eq!(json["details"][0]["reason"], reason);
        assert_eq!(json["details"][0]["domain"], "lowkey");
        assert!(json["code"].is_u64() && !json["message"].as_str().unwrap().is_empty());
        reason
    }
}

/// Sends `request` and reads the answer until the server closes the connection.
pub(crate) async fn exchange(address: SocketAddr, request: impl AsRef<[u8]>) -> Answer {
    let bytes = soon(async {
        let mut stream = TcpStream::connect(address).await.unwrap();
        // The server may answer and close before it has read everything.
        let _ = stream.write_all(request.as_ref()).await;
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes).await;
        bytes
    });
    Answer::parse(&String::from_utf8(bytes.await).unwrap())
}

/// A stream of server-sent events, read chunk by chunk over HTTP/1.1.
pub(crate) struct EventSource {
    pub(crate) head: Answer,
    stream: BufReader<TcpStream>,
}

impl EventSource {
    /// Asks for `target` with further header lines, and reads the answer's head.
    pub(crate) async fn open(address: SocketAddr, target: &str, headers: &str) -> Self {
        let mut stream = BufReader::new(TcpStream::connect(address).await.unwrap());
        let request = format!("GET {target} HTTP/1.1\r\nhost: localhost\r\n{headers}\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            assert_ne!(soon(stream.read_line(&mut head)).await.unwrap(), 0, "ended early: {head}");
        }
        Self { head: Answer::parse(&head), stream }
    }

    /// The next chunk of the body; an empty one is its end.
    pub(crate) async fn chunk(&mut self) -> String {
        let mut length = String::new();
        soon(self.stream.read_line(&mut length)).await.unwrap();
        let length = usize::from_str_radix(length.trim_end(), 16).unwrap();
        let mut chunk = vec![0; length + 2];
        soon(self.stream.read_exact(&mut chunk)).await.unwrap();
        let chunk = String::from_utf8(chunk).unwrap();
        chunk.strip_suffix("\r\n").unwrap().to_owned()
    }
}

/// Fails a test that hangs.
pub(crate) async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(20), future).await.expect("took too long")
}

/// Waits until `condition` holds.
pub(crate) async fn until(condition: impl Fn() -> bool) {
    soon(async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    })
    .await;
}
