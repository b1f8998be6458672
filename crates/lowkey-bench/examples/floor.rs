//! The floor: what a lock service could reach on this machine if it did nothing but what all of them must.
//!
//! ```sh
//! cargo run --release -p lowkey-bench --example floor -- 3        # or 1: so many processes
//! lowkey bench seq par hot --server http://127.0.0.1:17100        # beside it
//! ```
//!
//! It takes calls as lowkey does, by HTTP/2. What gathers meanwhile is written to a file of each process with one write
//! and one sync, and is answered once this process and one other have it. That is all: no elections, no leases, no
//! repetitions, no checks, nothing that is kept. It is no lock service. Who answers calls of
//! HTTP/2 in one thread, and only for what a majority has on disk, is hardly faster.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::error::Error;
use std::fs::File;
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;
use std::process::{Child, Command};
use std::rc::Rc;

use bytes::{Bytes, BytesMut};
use h2::RecvStream;
use h2::server::SendResponse;
use http::{HeaderMap, HeaderValue, Request, Response};
use lowkey_api::framing::{framed, unframed};
use lowkey_api::v1::{
    AcquireLockRequest, AcquireLockResponse, CreateLeaseResponse, GetStatusResponse, ReleaseLockRequest,
    ReleaseLockResponse, RevokeLeaseResponse,
};
use prost::Message;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, oneshot};
use tokio::task::{LocalSet, spawn_local};

/// As in lowkey.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

type Outcome<T> = Result<T, Box<dyn Error>>;

const FIRST_PORT: u16 = 17_100;
const LOG_BYTES: usize = 16 * 1024 * 1024;
const CLUSTER: &str = "00000000000000000000000000000001";
const TTL_SECONDS: i64 = 600;

fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let work = LocalSet::new();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["follow", port] => work.block_on(&runtime, follow(port.parse()?)),
        [processes @ ("1" | "3")] => work.block_on(&runtime, lead(processes.parse()?)),
        _ => Err("how many processes? 1 or 3".into()),
    }
}

/// A file that was written before, as a log is that is made ahead of need. It begins again when it is full.
struct Log {
    file: File,
    at: usize,
}

impl Log {
    fn new() -> Outcome<Self> {
        let file = tempfile::tempfile()?;
        file.write_all_at(&vec![0; LOG_BYTES], 0)?;
        file.sync_all()?;
        Ok(Self { file, at: 0 })
    }

    fn append(&mut self, bytes: &[u8]) -> Outcome<()> {
        if self.at + bytes.len() > LOG_BYTES {
            self.at = 0;
        }
        self.file.write_all_at(bytes, self.at as u64)?;
        self.at += bytes.len();
        Ok(self.file.sync_data()?)
    }
}

/// Writes what comes, and says how many batches it has.
async fn follow(port: u16) -> Outcome<()> {
    let mut log = Log::new()?;
    let (mut leader, _) = TcpListener::bind(("127.0.0.1", port)).await?.accept().await?;
    leader.set_nodelay(true)?;
    let (mut received, mut batches) = (BytesMut::new(), 0_u64);
    while leader.read_buf(&mut received).await? > 0 {
        let mut whole = 0;
        while let Some((len, _)) = received[whole..].split_first_chunk()
            && let end = whole + 4 + u32::from_le_bytes(*len) as usize
            && end <= received.len()
        {
            (whole, batches) = (end, batches + 1);
        }
        if whole > 0 {
            log.append(&received.split_to(whole))?;
            leader.write_all(&batches.to_le_bytes()).await?;
        }
        received.reserve(64 * 1024);
    }
    Ok(())
}

/// Ends with whoever started it.
struct Follower(Child);

impl Drop for Follower {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill().and_then(|()| self.0.wait());
    }
}

#[derive(Default)]
struct Hub {
    /// What waits for the next batch.
    gathered: RefCell<Vec<(Bytes, oneshot::Sender<()>)>>,
    has_gathered: Notify,
    /// Batches that another process has.
    acknowledged: Cell<u64>,
    has_acknowledged: Notify,
    /// Who waits for a lock that is held.
    locks: RefCell<HashMap<String, VecDeque<oneshot::Sender<()>>>>,
    last_number: Cell<u64>,
}

async fn lead(processes: u16) -> Outcome<()> {
    let (hub, mut followers, mut links) = (Rc::new(Hub::default()), Vec::new(), Vec::new());
    for port in FIRST_PORT + 1..FIRST_PORT + processes {
        let program = Command::new(std::env::current_exe()?).args(["follow", &port.to_string()]).spawn()?;
        followers.push(Follower(program));
        let link = loop {
            match std::net::TcpStream::connect(("127.0.0.1", port)) {
                Ok(link) => break link,
                // It makes its file first.
                Err(_) => tokio::time::sleep(std::time::Duration::from_millis(50)).await,
            }
        };
        link.set_nodelay(true)?;
        let answers = link.try_clone()?;
        // Of both: what is sent never fills the buffer between two that wait for each other.
        answers.set_nonblocking(true)?;
        spawn_local(hear(Rc::clone(&hub), TcpStream::from_std(answers)?));
        links.push(link);
    }
    let listener = TcpListener::bind(("127.0.0.1", FIRST_PORT)).await?;
    println!("http://127.0.0.1:{FIRST_PORT}");
    let log = Log::new()?;
    let batches = spawn_local({
        let hub = Rc::clone(&hub);
        async move { commit_batches(&hub, log, links).await.map_err(|error| error.to_string()) }
    });
    let connections = async {
        loop {
            let (stream, _) = listener.accept().await?;
            stream.set_nodelay(true)?;
            spawn_local(serve(Rc::clone(&hub), stream, processes));
        }
    };
    tokio::select! {
        ended = connections => ended,
        ended = batches => Ok(ended??),
        told = tokio::signal::ctrl_c() => Ok(told?),
    }
}

async fn hear(hub: Rc<Hub>, mut follower: TcpStream) {
    let mut batches = [0; 8];
    while follower.read_exact(&mut batches).await.is_ok() {
        hub.acknowledged.set(hub.acknowledged.get().max(u64::from_le_bytes(batches)));
        hub.has_acknowledged.notify_one();
    }
}

async fn commit_batches(hub: &Hub, mut log: Log, mut links: Vec<std::net::TcpStream>) -> Outcome<()> {
    let mut batches = 0;
    loop {
        // Everybody who is ready asks first.
        tokio::task::yield_now().await;
        let gathered = hub.gathered.take();
        if gathered.is_empty() {
            hub.has_gathered.notified().await;
            continue;
        }
        let commands: Vec<u8> = gathered.iter().flat_map(|(command, _)| command.iter().copied()).collect();
        let batch = [&u32::try_from(commands.len())?.to_le_bytes()[..], &commands].concat();
        for link in &mut links {
            link.write_all(&batch)?;
        }
        log.append(&batch)?;
        batches += 1;
        while !links.is_empty() && hub.acknowledged.get() < batches {
            hub.has_acknowledged.notified().await;
        }
        // Who has gone needs no answer.
        gathered.into_iter().for_each(|(_, done)| _ = done.send(()));
    }
}

impl Hub {
    async fn commit(&self, command: Bytes) {
        let (done, is_done) = oneshot::channel();
        self.gathered.borrow_mut().push((command, done));
        self.has_gathered.notify_one();
        // Where nothing is committed any more the process ends.
        let _ = is_done.await;
    }

    fn next_number(&self) -> u64 {
        self.last_number.update(|number| number + 1);
        self.last_number.get()
    }

    /// A place in the queue, if the lock is held.
    fn take_or_wait(&self, lock: &str) -> Option<oneshot::Receiver<()>> {
        let mut locks = self.locks.borrow_mut();
        let Some(queue) = locks.get_mut(lock) else {
            locks.insert(lock.to_owned(), VecDeque::new());
            return None;
        };
        let (granted, is_granted) = oneshot::channel();
        queue.push_back(granted);
        Some(is_granted)
    }

    fn hand_over(&self, lock: &str) {
        let mut locks = self.locks.borrow_mut();
        let Some(queue) = locks.get_mut(lock) else { return };
        while let Some(next) = queue.pop_front() {
            if next.send(()).is_ok() {
                return;
            }
        }
        locks.remove(lock);
    }

    /// The answer, with what stands before it; nothing to what is not known here.
    async fn answer(&self, method: &str, command: Bytes, processes: u16) -> Option<Vec<u8>> {
        Some(match method {
            "AcquireLock" => {
                let AcquireLockRequest { lock_name, lease_id, .. } = message(&command)?;
                match self.take_or_wait(&lock_name) {
                    Some(is_granted) => is_granted.await.ok()?,
                    None => self.commit(command).await,
                }
                let (fencing_token, lease_ttl_seconds) = (self.next_number(), TTL_SECONDS);
                framed(&AcquireLockResponse {
                    fencing_token,
                    lease_ttl_seconds,
                    lease_id,
                    ..Default::default()
                })
            }
            "ReleaseLock" => {
                let ReleaseLockRequest { lock_name, .. } = message(&command)?;
                self.commit(command).await;
                self.hand_over(&lock_name);
                framed(&ReleaseLockResponse { released: true })
            }
            "CreateLease" => {
                self.commit(command).await;
                framed(&CreateLeaseResponse { lease_id: self.next_number(), ttl_seconds: TTL_SECONDS })
            }
            "RevokeLease" => {
                self.commit(command).await;
                framed(&RevokeLeaseResponse::default())
            }
            "GetStatus" => framed(&GetStatusResponse {
                is_leader: true,
                leader_id: "floor".into(),
                leader_address: format!("127.0.0.1:{FIRST_PORT}"),
                cluster_size: i32::from(processes),
                cluster_id: CLUSTER.into(),
                ..Default::default()
            }),
            _ => return None,
        })
    }
}

fn message<Q: Message + Default>(command: &Bytes) -> Option<Q> {
    Q::decode(unframed(command)?).ok()
}

async fn serve(hub: Rc<Hub>, stream: TcpStream, processes: u16) {
    let Ok(mut connection) = h2::server::handshake(stream).await else { return };
    while let Some(Ok((request, respond))) = connection.accept().await {
        let hub = Rc::clone(&hub);
        spawn_local(async move {
            // A caller that goes away needs no answer.
            let _ = call(&hub, request, respond, processes).await;
        });
    }
}

async fn call(
    hub: &Hub,
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
    processes: u16,
) -> Result<(), h2::Error> {
    let (head, mut body) = request.into_parts();
    let method = head.uri.path().rsplit('/').next().unwrap_or_default();
    let mut response = Response::new(());
    response.headers_mut().insert("content-type", HeaderValue::from_static("application/grpc"));
    response.headers_mut().insert("lowkey-cluster", HeaderValue::from_static(CLUSTER));
    let mut received = Bytes::new();
    // What is no single call ends here: its stream would not.
    if !matches!(method, "Session" | "Watch") {
        while let Some(part) = body.data().await {
            let part = part?;
            body.flow_control().release_capacity(part.len())?;
            received = if received.is_empty() { part } else { [received, part].concat().into() };
        }
        if let Some(answer) = hub.answer(method, received, processes).await {
            let mut stream = respond.send_response(response, false)?;
            stream.send_data(answer.into(), false)?;
            let mut trailers = HeaderMap::new();
            trailers.insert("grpc-status", HeaderValue::from_static("0"));
            return stream.send_trailers(trailers);
        }
    }
    // UNIMPLEMENTED
    response.headers_mut().insert("grpc-status", HeaderValue::from_static("12"));
    respond.send_response(response, true).map(|_| ())
}
