//! Nodes as child processes, and ways to talk to them.

use std::fmt::Display;
use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use lowkey_api::ApiError;
use lowkey_api::v1::lock_service_client::LockServiceClient;
use lowkey_api::v1::{
    AcquireLockRequest, AcquireLockResponse, CreateLeaseRequest, GetLockRequest, LockHolder,
};
use rustix::process::{Pid, Signal, kill_process};
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, StreamOwned};
use serde_json::Value;
use tempfile::TempDir;
use tonic::transport::{Channel, Endpoint};

/// How long a condition may take to come true; far more than it ever should.
pub(crate) const PATIENCE: Duration = Duration::from_secs(90);

/// Says that something is skipped because of what this machine lacks; fails where nothing may be.
///
/// It writes to the stderr of the process: what `println!` says in a test that passes, nobody sees.
pub(crate) fn skip(why: impl Display) {
    let must = std::env::var("LOWKEY_REQUIRE_ALL").is_ok_and(|value| value == "1");
    assert!(!must, "LOWKEY_REQUIRE_ALL is set, and this would be skipped: {why}");
    say(format!("skipped: {why}"));
}

/// Says something that is seen also when the test passes.
pub(crate) fn say(what: impl Display) {
    // In one piece, or the words of several tests mix.
    std::io::stderr().write_all(format!("{what}\n").as_bytes()).unwrap();
}

/// Waits until a condition holds.
pub(crate) fn eventually<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = condition() {
            return found;
        }
        assert!(Instant::now() < deadline, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A free port below the range that the system gives to outgoing connections, so that it is still
/// free when a node comes back.
///
/// Other processes look for ports, too. Who has the UDP port of the same number, which no node uses, has both for as
/// long as its process lives.
pub(crate) fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    static RESERVED: Mutex<Vec<UdpSocket>> = Mutex::new(Vec::new());
    loop {
        let step = NEXT.fetch_add(1, Ordering::Relaxed);
        let start = (std::process::id() % 1000) as u16 * 20;
        let port = 11_000 + start.wrapping_add(step) % 20_000;
        let Ok(reservation) = UdpSocket::bind(("127.0.0.1", port)) else { continue };
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            RESERVED.lock().unwrap_or_else(PoisonError::into_inner).push(reservation);
            return port;
        }
    }
}

/// The three ports of a node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ports {
    pub(crate) raft: u16,
    pub(crate) grpc: u16,
    pub(crate) http: u16,
}

impl Ports {
    pub(crate) fn free() -> Self {
        Self { raft: free_port(), grpc: free_port(), http: free_port() }
    }
}

/// A node: its flags, and its process while it runs.
pub(crate) struct Node {
    pub(crate) name: String,
    pub(crate) ports: Ports,
    pub(crate) data_dir: PathBuf,
    pub(crate) log: PathBuf,
    /// Those beside the usual ones.
    pub(crate) flags: Vec<String>,
    /// The program; that of this version, unless the test is about another.
    binary: PathBuf,
    /// The command that starts the node's own: nothing, or one that gives it a world of its own.
    wrapper: Vec<String>,
    /// How to talk to its ports, if its flags encrypt them.
    pub(crate) tls: Option<Arc<ClientConfig>>,
    /// What to show it over HTTP, if it requires access.
    pub(crate) token: Option<String>,
    child: Option<Child>,
}

impl Node {
    /// A node in `folder` with `flags` beside the usual ones; not started yet.
    pub(crate) fn new(folder: &Path, name: &str, flags: &[&str]) -> Self {
        Self {
            name: name.to_owned(),
            ports: Ports::free(),
            data_dir: folder.join(name),
            log: folder.join(format!("{name}.log")),
            flags: flags.iter().map(|flag| (*flag).to_owned()).collect(),
            binary: PathBuf::from(env!("CARGO_BIN_EXE_lowkey")),
            wrapper: Vec::new(),
            tls: None,
            token: None,
            child: None,
        }
    }

    /// Gives it other flags beside the usual ones.
    pub(crate) fn set_flags(&mut self, flags: &[&str]) {
        self.flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
    }

    /// Gives it more flags.
    pub(crate) fn add_flags(&mut self, flags: &[&str]) {
        self.flags.extend(flags.iter().map(|flag| (*flag).to_owned()));
    }

    /// Has it run by another version of the program.
    pub(crate) fn set_binary(&mut self, binary: &Path) {
        self.binary = binary.to_owned();
    }

    /// Lets the process start inside another command, which must `exec` what follows it.
    pub(crate) fn wrap(&mut self, wrapper: Vec<String>) {
        self.wrapper = wrapper;
    }

    /// The command that starts it.
    pub(crate) fn command(&self) -> Command {
        let binary = &self.binary;
        let mut command = match self.wrapper.split_first() {
            Some((wrapper, arguments)) => {
                let mut command = Command::new(wrapper);
                command.args(arguments).arg(binary);
                command
            }
            None => Command::new(binary),
        };
        if !self.flags.iter().any(|flag| flag == "--raft-addr") {
            command.args(["--raft-addr", &format!("127.0.0.1:{}", self.ports.raft)]);
        }
        command
            .args(["--node-id", &self.name])
            .arg("--data-dir")
            .arg(&self.data_dir)
            .args(["--grpc-addr", &format!("127.0.0.1:{}", self.ports.grpc)])
            .args(["--http-addr", &format!("127.0.0.1:{}", self.ports.http)])
            .args(&self.flags)
            .stdin(Stdio::null());
        command
    }

    /// Starts the process, always with the very same flags.
    pub(crate) fn start(&mut self) {
        assert!(self.child.is_none(), "{} runs already", self.name);
        let log = File::options().create(true).append(true).open(&self.log).unwrap();
        let child = self.command().stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap();
        self.child = Some(child);
    }

    /// Starts the process and waits until it can serve.
    pub(crate) fn start_ready(&mut self) {
        self.start();
        self.wait_ready();
    }

    pub(crate) fn wait_ready(&self) {
        eventually(&format!("{} is ready: {}", self.name, self.log_text()), || {
            (self.http("GET", "/readyz", "")?.0 == 200).then_some(())
        });
    }

    pub(crate) fn runs(&self) -> bool {
        self.child.is_some()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.as_ref().expect("the node runs").id()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.pid()).unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// Stops the process, and waits until all its threads stand still: a signal is not heard at once.
    pub(crate) fn pause(&self) {
        self.signal(Signal::STOP);
        let tasks = format!("/proc/{}/task", self.child.as_ref().expect("the node runs").id());
        eventually(&format!("{} stands still", self.name), || {
            let mut tasks = std::fs::read_dir(&tasks).unwrap();
            let stands_still = tasks.all(|task| {
                let stat = std::fs::read_to_string(task.unwrap().path().join("stat")).unwrap_or_default();
                stat.rsplit_once(") ").is_some_and(|(_, state)| state.starts_with('T'))
            });
            stands_still.then_some(())
        });
    }

    /// Ends the process as a power cut would, as far as a process can tell.
    pub(crate) fn kill(&mut self) {
        self.signal(Signal::KILL);
        self.wait_exit();
    }

    /// Waits until the process has ended.
    pub(crate) fn wait_exit(&mut self) -> ExitStatus {
        assert!(self.runs(), "{} runs", self.name);
        eventually(&format!("{} ends", self.name.clone()), || self.has_ended())
    }

    /// How the process ended, if it has ended by itself.
    pub(crate) fn has_ended(&mut self) -> Option<ExitStatus> {
        let ended = self.child.as_mut()?.try_wait().unwrap();
        if ended.is_some() {
            self.child = None;
        }
        ended
    }

    pub(crate) fn log_text(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// One HTTP request; nothing if nobody answers.
    pub(crate) fn http(&self, method: &str, path: &str, body: &str) -> Option<(u16, String)> {
        let stream = dial(self.ports.http)?;
        let token = self.token.as_ref().map(|token| format!("authorization: Bearer {token}\r\n"));
        let headers = &format!("{FORM}{}", token.unwrap_or_default());
        let Some(tls) = &self.tls else {
            return exchange(stream, method, path, headers, body.as_bytes()).map(Answer::short);
        };
        let name = ServerName::try_from("127.0.0.1").unwrap();
        let connection = ClientConnection::new(Arc::clone(tls), name).unwrap();
        let stream = StreamOwned::new(connection, stream);
        exchange(stream, method, path, headers, body.as_bytes()).map(Answer::short)
    }

    /// One HTTP request that must be answered with 200.
    pub(crate) fn ok(&self, method: &str, path: &str, body: &str) -> Value {
        let (status, text) = self.http(method, path, body).expect("an answer");
        assert_eq!(status, 200, "{method} {path} {body}: {text}");
        serde_json::from_str(&text).unwrap()
    }

    pub(crate) fn status(&self) -> Option<Value> {
        let (status, text) = self.http("GET", "/v1/status", "")?;
        assert_eq!(status, 200, "the status is always told: {text}");
        Some(serde_json::from_str(&text).unwrap())
    }

    pub(crate) fn client(&self) -> LockServiceClient<Channel> {
        LockServiceClient::new(self.endpoint().timeout(Duration::from_secs(20)).connect_lazy())
    }

    /// A connection of its own, made when it is needed. Calls on it may take as long as they like.
    pub(crate) fn channel(&self) -> Channel {
        self.endpoint().connect_lazy()
    }

    pub(crate) fn endpoint(&self) -> Endpoint {
        let endpoint = Endpoint::from_shared(format!("http://127.0.0.1:{}", self.ports.grpc)).unwrap();
        endpoint.connect_timeout(Duration::from_millis(300))
    }

    /// The term, and how much of the log is applied, as this node sees it.
    pub(crate) fn log_position(&self) -> (u64, u64) {
        let status = self.status().expect("the node runs");
        let number = |field: &str| status[field].as_str().unwrap().parse().unwrap();
        (number("term"), number("appliedIndex"))
    }

    /// Waits until that much of the log is applied; asserts that it is not more.
    pub(crate) fn assert_applied(&self, index: u64, what: &str) {
        eventually(&format!("entry {index} is applied: {what}"), || {
            (self.log_position().1 >= index).then_some(())
        });
        assert_eq!(self.log_position().1, index, "{what}");
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        if std::thread::panicking() {
            eprintln!("--- log of {}\n{}", self.name, self.log_text());
        }
    }
}

/// One HTTP request on a connection of its own; nothing if there is no whole answer.
pub(crate) fn http(port: u16, method: &str, path: &str, body: &str) -> Option<(u16, String)> {
    http_with(port, method, path, FORM, body.as_bytes()).map(Answer::short)
}

/// What the harness says of the bodies that it sends.
const FORM: &str = "content-type: application/x-www-form-urlencoded\r\n";

fn dial(port: u16) -> Option<TcpStream> {
    let stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    Some(stream)
}

/// An answer to an HTTP request.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    /// The status line and the headers.
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Answer {
    fn short(self) -> (u16, String) {
        (self.status, self.body)
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

/// Like [`http`], with whole lines of headers and with any bytes as the body.
pub(crate) fn http_with(port: u16, method: &str, path: &str, headers: &str, body: &[u8]) -> Option<Answer> {
    exchange(dial(port)?, method, path, headers, body)
}

fn exchange(
    mut stream: impl Read + Write,
    method: &str,
    path: &str,
    headers: &str,
    body: &[u8],
) -> Option<Answer> {
    let length = body.len();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
         {headers}content-length: {length}\r\n\r\n"
    );
    // In one piece: a node that answers when it has read the head would close a connection whose body is still to come,
    // and that takes the answer away.
    stream.write_all(&[head.as_bytes(), body].concat()).ok()?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).ok()?;
    let answer = String::from_utf8(answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().unwrap();
    Some(Answer { status, head: head.to_owned(), body: body.to_owned() })
}

/// How a process ended that was not to live.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) code: Option<i32>,
    pub(crate) stderr: String,
    pub(crate) took: Duration,
}

impl Ended {
    /// The one line that tells the person who started it why it ended: the last one, and the only one
    /// that is not a log's.
    pub(crate) fn complaint(&self) -> &str {
        assert!(self.code.is_some_and(|code| code != 0), "it failed in an orderly way: {self:?}");
        for word in ["panicked", "backtrace"] {
            assert!(!self.stderr.contains(word), "{}", self.stderr);
        }
        let complaints = self.stderr.lines().filter(|line| line.starts_with("lowkey: ")).count();
        assert_eq!(complaints, 1, "one line says why: {self:?}");
        let last = self.stderr.lines().last().unwrap();
        assert!(last.starts_with("lowkey: "), "that line is the last one: {self:?}");
        last
    }

    /// Like [`Ended::complaint`], and nothing else was said.
    pub(crate) fn only_line(&self) -> &str {
        assert_eq!(self.stderr.lines().count(), 1, "only one line: {self:?}");
        self.complaint()
    }
}

/// Runs a command that must end by itself.
pub(crate) fn run_to_end(command: &mut Command) -> Ended {
    let started = Instant::now();
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut pipe = child.stderr.take().unwrap();
    let reading = std::thread::spawn(move || {
        let mut text = String::new();
        pipe.read_to_string(&mut text).unwrap();
        text
    });
    let deadline = started + 2 * PATIENCE;
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if Instant::now() >= deadline {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("it runs and was not to: {command:?}\n{}", reading.join().unwrap());
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    Ended { code: status.code(), stderr: reading.join().unwrap(), took: started.elapsed() }
}

/// Several nodes of one cluster.
pub(crate) struct Cluster {
    pub(crate) nodes: Vec<Node>,
    /// Removed with everything in it when the cluster is dropped.
    folder: TempDir,
}

impl Cluster {
    /// One node founds, the others join; gives them back when all vote.
    pub(crate) fn start(size: usize) -> Self {
        Self::start_equipped(size, |_, _| {})
    }

    /// The same with nodes that are given something before they start, such as a disk that can fail. It is told the
    /// folder in which the nodes keep what they have.
    pub(crate) fn start_equipped(size: usize, equip: impl FnMut(&Path, &mut Node)) -> Self {
        Self::start_told(size, equip, |_| {})
    }

    /// The same, and somebody is told of each process as soon as it runs.
    pub(crate) fn start_told(
        size: usize,
        mut equip: impl FnMut(&Path, &mut Node),
        mut tell: impl FnMut(&Node),
    ) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut founder = Node::new(folder.path(), "n1", &["--bootstrap"]);
        equip(folder.path(), &mut founder);
        founder.start();
        tell(&founder);
        let mut cluster = Self { nodes: vec![founder], folder };
        for _ in 1..size {
            cluster.add(&mut equip);
            tell(cluster.nodes.last().unwrap());
        }
        cluster.wait_whole();
        cluster
    }

    /// Nodes that are started empty with `--cluster-of`, and form a cluster.
    pub(crate) fn formed(size: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let secret = folder.path().join("secret");
        std::fs::write(&secret, "0123456789abcdef0123456789abcdef\n").unwrap();
        let mut nodes: Vec<Node> =
            (1..=size).map(|number| Node::new(folder.path(), &format!("n{number}"), &[])).collect();
        let join: Vec<String> = nodes.iter().map(|node| format!("127.0.0.1:{}", node.ports.grpc)).collect();
        let (join, of, secret) = (join.join(","), size.to_string(), secret.display().to_string());
        for node in &mut nodes {
            node.set_flags(&["--cluster-of", &of, "--join", &join, "--form-secret-file", &secret]);
            node.start();
        }
        let cluster = Self { nodes, folder };
        // Before there is a cluster, no status is told.
        cluster.nodes.iter().for_each(Node::wait_ready);
        cluster.wait_whole();
        cluster
    }

    /// One more node joins; it votes when this is done.
    pub(crate) fn join(&mut self) {
        self.add(|_, _| {});
        self.wait_whole();
    }

    /// Where its nodes keep what they have.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    fn add(&mut self, mut equip: impl FnMut(&Path, &mut Node)) {
        // Any member will do; each joins through the one before it.
        let last = self.nodes.last().unwrap();
        let join = format!("127.0.0.1:{}", last.ports.grpc);
        let name = format!("n{}", self.nodes.len() + 1);
        let mut node = Node::new(self.folder.path(), &name, &["--join", &join]);
        equip(self.folder.path(), &mut node);
        last.wait_ready();
        node.start();
        self.nodes.push(node);
    }

    /// Waits until all nodes run, vote, and agree on a leader.
    pub(crate) fn wait_whole(&self) -> usize {
        let size = self.nodes.len() as u64;
        eventually("all nodes vote and agree on the leader", || {
            let statuses: Option<Vec<Value>> = self.nodes.iter().map(Node::status).collect();
            let statuses = statuses?;
            let leader = statuses.iter().position(|status| status["isLeader"] == true)?;
            let agreed = statuses.iter().all(|status| {
                status["clusterSize"] == size && status["leaderAddress"] == statuses[leader]["leaderAddress"]
            });
            agreed.then_some(leader)
        })
    }

    /// The node that leads, as the nodes other than `except` see it.
    pub(crate) fn wait_leader(&self, except: Option<usize>) -> usize {
        eventually("somebody leads", || {
            self.nodes.iter().enumerate().find_map(|(number, node)| {
                let asked = Some(number) != except && node.runs();
                (asked && node.status()?["isLeader"] == true).then_some(number)
            })
        })
    }

    pub(crate) fn clients(&self) -> Vec<LockServiceClient<Channel>> {
        self.nodes.iter().map(Node::client).collect()
    }
}

/// A one-call acquire for a long time.
pub(crate) fn long_acquire(lock: &str, owner: &str, request_id: &str) -> AcquireLockRequest {
    AcquireLockRequest {
        lock_name: lock.to_owned(),
        owner_id: owner.to_owned(),
        ttl_seconds: 600,
        request_id: request_id.to_owned(),
        ..AcquireLockRequest::default()
    }
}

/// Acquires as a retrying client does: every node in turn, always with the same request id, until
/// there is an answer that retrying does not change.
pub(crate) async fn acquire_somewhere(
    clients: &mut [LockServiceClient<Channel>],
    request: &AcquireLockRequest,
) -> Result<AcquireLockResponse, ApiError> {
    let deadline = Instant::now() + PATIENCE;
    for turn in (0..clients.len()).cycle() {
        let client = &mut clients[turn];
        let attempt = tokio::time::timeout(Duration::from_secs(1), client.acquire_lock(request.clone()));
        match attempt.await {
            Ok(Ok(response)) => return Ok(response.into_inner()),
            Ok(Err(status)) => {
                let error = ApiError::from_status(&status);
                if let Some(error) = error.filter(|error| !error.is_retryable()) {
                    return Err(error);
                }
            }
            Err(_) => {}
        }
        assert!(Instant::now() < deadline, "no answer from anybody: {request:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    unreachable!("there are clients");
}

/// Who holds a lock, asked until somebody knows.
pub(crate) async fn holder(clients: &mut [LockServiceClient<Channel>], lock: &str) -> Option<LockHolder> {
    let deadline = Instant::now() + PATIENCE;
    for turn in (0..clients.len()).cycle() {
        let request = GetLockRequest { lock_name: lock.to_owned(), stale: false };
        let attempt = tokio::time::timeout(Duration::from_secs(1), clients[turn].get_lock(request));
        if let Ok(Ok(response)) = attempt.await {
            return response.into_inner().holders.pop();
        }
        assert!(Instant::now() < deadline, "nobody can say who holds {lock}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    unreachable!("there are clients");
}

/// A lease, made by the first node that answers.
pub(crate) async fn lease(clients: &mut [LockServiceClient<Channel>], owner: &str, ttl_seconds: i64) -> u64 {
    for client in clients {
        let request =
            CreateLeaseRequest { owner_id: owner.to_owned(), ttl_seconds, ..CreateLeaseRequest::default() };
        if let Ok(response) = client.create_lease(request).await {
            return response.into_inner().lease_id;
        }
    }
    panic!("no node makes a lease");
}

/// How often a test repeats itself: a few times, or as often as the environment says.
pub(crate) fn rounds(variable: &str, usual: usize) -> usize {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(usual)
}
