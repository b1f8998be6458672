//! A node in memory, the two ports in front of it, and a plain HTTP/1 client.

use std::collections::BTreeMap;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lowkey_api::v1::lock_service_client::LockServiceClient;
use lowkey_api::v1::{
    AcquireLockRequest, AcquireLockResponse, AddPeerRequest, AddPeerResponse, CreateLeaseRequest,
    CreateLeaseResponse, GetLockRequest, GetLockResponse, GetStatusResponse, LockHolder, ReleaseLockRequest,
    ReleaseLockResponse, RenewLeaseRequest, RenewLeaseResponse, RevokeLeaseRequest, RevokeLeaseResponse,
};
use lowkey_api::{ApiError, Reason};
use lowkey_server::edge::serve::{ServeLimits, serve};
use lowkey_server::edge::{Node, grpc, http};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinHandle;
use tonic::transport::{Channel, Endpoint};

pub(crate) const CLUSTER_ID: &str = "00112233445566778899aabbccddeeff";

/// The lease whose renewals wait for a permit of [`FakeNode::slow`].
pub(crate) const SLOW_LEASE: u64 = 1_000;
/// The owner whose requests panic.
pub(crate) const CLUMSY_OWNER: &str = "clumsy";
/// The owner who is told to come back later.
pub(crate) const EAGER_OWNER: &str = "eager";

/// One lease lives: number 1, with 10 seconds. Locks are held by whom they were given to.
pub(crate) struct FakeNode {
    pub(crate) ready: AtomicBool,
    pub(crate) stopping: watch::Sender<bool>,
    pub(crate) slow: Semaphore,
    /// Renewals of [`SLOW_LEASE`] that have begun.
    pub(crate) slow_begun: AtomicUsize,
    /// The last request of each kind that had a request id.
    pub(crate) request_ids: Mutex<Vec<String>>,
    locks: Mutex<BTreeMap<String, LockHolder>>,
}

impl FakeNode {
    fn new() -> Self {
        Self {
            ready: AtomicBool::new(true),
            stopping: watch::Sender::new(false),
            slow: Semaphore::new(0),
            slow_begun: AtomicUsize::new(0),
            request_ids: Mutex::default(),
            locks: Mutex::default(),
        }
    }
}

impl Node for FakeNode {
    async fn create_lease(&self, request: CreateLeaseRequest) -> Result<CreateLeaseResponse, ApiError> {
        assert_ne!(request.owner_id, CLUMSY_OWNER, "dropped everything");
        if request.owner_id == EAGER_OWNER {
            return Err(ApiError::new(Reason::LimitBusy, "too much to do").retry_after_ms(1_200));
        }
        self.request_ids.lock().unwrap().push(request.request_id);
        Ok(CreateLeaseResponse { lease_id: 1, ttl_seconds: request.ttl_seconds })
    }

    async fn renew_lease(&self, request: RenewLeaseRequest) -> Result<RenewLeaseResponse, ApiError> {
        match request.lease_id {
            1 => Ok(RenewLeaseResponse { ttl_seconds: 10 }),
            SLOW_LEASE => {
                self.slow_begun.fetch_add(1, Ordering::SeqCst);
                self.slow.acquire().await.unwrap().forget();
                Ok(RenewLeaseResponse { ttl_seconds: 20 })
            }
            other => Err(ApiError::new(Reason::LeaseNotFound, format!("there is no lease {other}"))),
        }
    }

    async fn revoke_lease(&self, _request: RevokeLeaseRequest) -> Result<RevokeLeaseResponse, ApiError> {
        Ok(RevokeLeaseResponse { released: 2 })
    }

    async fn acquire_lock(&self, request: AcquireLockRequest) -> Result<AcquireLockResponse, ApiError> {
        let mut locks = self.locks.lock().unwrap();
        let fencing_token = locks.len() as u64 + 1;
        let holder = locks.entry(request.lock_name).or_insert_with(|| LockHolder {
            owner_id: request.owner_id.clone(),
            lease_id: request.lease_id,
            fencing_token,
            ..LockHolder::default()
        });
        if holder.owner_id != request.owner_id {
            let message = format!("held by {}", holder.owner_id);
            return Err(ApiError::new(Reason::LockHeld, message).with("owner_id", &holder.owner_id));
        }
        let fencing_token = holder.fencing_token;
        Ok(AcquireLockResponse { fencing_token, lease_ttl_seconds: 10, lease_id: 1, ..Default::default() })
    }

    async fn release_lock(&self, request: ReleaseLockRequest) -> Result<ReleaseLockResponse, ApiError> {
        match self.locks.lock().unwrap().remove(&request.lock_name) {
            Some(_) => Ok(ReleaseLockResponse { released: true }),
            None => Err(ApiError::new(Reason::LockNotFound, "nobody holds it")),
        }
    }

    async fn get_lock(&self, request: GetLockRequest) -> Result<GetLockResponse, ApiError> {
        let holders = self.locks.lock().unwrap().get(&request.lock_name).cloned().into_iter().collect();
        Ok(GetLockResponse { lock_name: request.lock_name, holders, ..GetLockResponse::default() })
    }

    async fn add_peer(&self, _request: AddPeerRequest) -> Result<AddPeerResponse, ApiError> {
        Ok(AddPeerResponse { member_id: 2, cluster_id: CLUSTER_ID.into(), members: vec![] })
    }

    fn get_status(&self) -> GetStatusResponse {
        GetStatusResponse { node_id: "node-1".into(), is_leader: true, ..GetStatusResponse::default() }
    }

    fn ready(&self) -> Result<(), String> {
        if self.ready.load(Ordering::SeqCst) { Ok(()) } else { Err("there is no leader".into()) }
    }

    fn cluster_id(&self) -> Option<String> {
        Some(CLUSTER_ID.into())
    }

    fn stopping(&self) -> watch::Receiver<bool> {
        self.stopping.subscribe()
    }
}

/// A running edge: both ports, on addresses of their own.
pub(crate) struct Edge {
    pub(crate) node: Arc<FakeNode>,
    pub(crate) http: SocketAddr,
    pub(crate) grpc: SocketAddr,
    /// Both ports' accept loops.
    pub(crate) served: JoinHandle<()>,
}

impl Edge {
    pub(crate) async fn start() -> Self {
        Self::with_limits(ServeLimits::default()).await
    }

    pub(crate) async fn with_limits(limits: ServeLimits) -> Self {
        let node = Arc::new(FakeNode::new());
        let http_listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let grpc_listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let http = http_listener.local_addr().unwrap();
        let grpc = grpc_listener.local_addr().unwrap();
        let http_router = http::router(Arc::clone(&node), grpc.to_string());
        let grpc_router = grpc::router(Arc::clone(&node), http.to_string()).unwrap();
        let (http_stop, grpc_stop) = (node.stopping(), node.stopping());
        let served = tokio::spawn(async move {
            tokio::join!(
                serve(http_listener, http_router, limits, http_stop),
                serve(grpc_listener, grpc_router, limits, grpc_stop),
            );
        });
        Self { node, http, grpc, served }
    }

    pub(crate) async fn channel(&self) -> Channel {
        Endpoint::from_shared(format!("http://{}", self.grpc)).unwrap().connect().await.unwrap()
    }

    pub(crate) async fn client(&self) -> LockServiceClient<Channel> {
        LockServiceClient::new(self.channel().await)
    }

    pub(crate) async fn get(&self, target: &str) -> Answer {
        exchange(self.http, &format!("GET {target} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")).await
    }

    pub(crate) async fn post(&self, path: &str, body: impl AsRef<[u8]>) -> Answer {
        self.post_with(path, "", body).await
    }

    /// Posts with further header lines, each of which ends with `\r\n`.
    pub(crate) async fn post_with(&self, path: &str, headers: &str, body: impl AsRef<[u8]>) -> Answer {
        let body = body.as_ref();
        let length = body.len();
        let mut request =
            format!("POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {length}\r\n{headers}\r\n")
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
    fn parse(text: &str) -> Self {
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

    pub(crate) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
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
