//! A hostile client beside a good one: the good one is served as before, nobody loses the lead, and the node's memory stays
//! within bounds and comes back.
//!
//! Each lasts 3 s, or `LOWKEY_HOSTILE_SECONDS`, and prints what was measured. How long calls take, and whether the lead
//! was lost, is judged only in the longer runs, which are made on a machine that does nothing else.
//!
//! `attacks` is what hostile clients do, to ports that are encrypted and to ports that are not; `encrypted` is what they
//! do to encrypted ports alone.

mod attacks;
mod encrypted;

use std::net::TcpStream;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use hyper_util::rt::TokioIo;
use lowkey_api::v1::lock_service_client::LockServiceClient;
use lowkey_api::v1::{AcquireLockRequest, Mode};
use lowkey_client::{Client, Tls};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio_rustls::TlsConnector;
use tonic::transport::{Channel, Endpoint};

use crate::clients::in_time;
use crate::harness::{Cluster, Node, PATIENCE, Ports, eventually, rounds};
use crate::papers::Papers;

const MEBIBYTE: u64 = 1024 * 1024;
/// How much more memory a node may need.
const MORE_MAX: u64 = 256 * MEBIBYTE;
/// What it may keep of that afterwards, for the next time.
const KEPT_MAX: u64 = 64 * MEBIBYTE;
/// What a call may take beside a hostile client: so much, or so many times what it takes alone.
const SLOW: Duration = Duration::from_millis(20);
const TIMES_SLOWER: u32 = 5;
/// Runs that last this long are judged in full.
const LONG_SECONDS: usize = 10;

/// The resident memory of a node, in bytes.
fn resident(node: &Node) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", node.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").trim().parse::<u64>().unwrap() * 1024
}

fn term(node: &Node) -> u64 {
    node.log_position().0
}

/// Takes and releases a lock again and again; gives what the slowest of a hundred took, and how many there were.
async fn good_client(client: &Client, time: Duration) -> (Duration, usize) {
    let session = in_time("a session", client.session(Duration::from_secs(10))).await.unwrap();
    let (started, mut took) = (Instant::now(), Vec::new());
    while started.elapsed() < time {
        let begun = Instant::now();
        let guard = in_time("a lock", session.lock("good").acquire()).await.unwrap();
        in_time("its release", guard.release()).await.unwrap();
        took.push(begun.elapsed());
    }
    took.sort_unstable();
    (took[took.len() * 99 / 100], took.len())
}

/// What a hostile client does. It goes on until what this gives is dropped, or it is told that it is over.
type Attack = Pin<Box<dyn Future<Output = Box<dyn Send>> + Send>>;

/// Three nodes with a popular lock, and a good client.
struct Scene {
    cluster: Cluster,
    client: Client,
    /// What the good client measured before anybody was hostile: the 99th percentile, and the pairs.
    alone: (Duration, usize),
    time: Duration,
    /// The certificates, if the ports are encrypted.
    papers: Option<Papers>,
}

impl Scene {
    async fn plain() -> Self {
        Self::with(Cluster::start(3), Tls::new()).await
    }

    /// All ports for clients are encrypted, and want certificates.
    async fn encrypted() -> Self {
        let papers = Papers::new();
        let cluster = Cluster::start_equipped(3, |_, node| papers.equip(node));
        let of_client = papers.of_client();
        let file = |name: &str| of_client[name].as_str().unwrap().to_owned();
        let tls = Tls::new().ca(file("ca")).identity(file("cert"), file("key"));
        let scene = Self::with(cluster, tls).await;
        Self { papers: Some(papers), ..scene }
    }

    /// Nodes that may have this many files open.
    async fn with_descriptors(count: usize) -> Self {
        let limited = |_: &std::path::Path, node: &mut Node| {
            let line = format!("ulimit -n {count} && exec \"$@\"");
            node.wrap(["sh", "-c", &line, "sh"].map(str::to_owned).to_vec());
        };
        Self::with(Cluster::start_equipped(3, limited), Tls::new()).await
    }

    async fn with(cluster: Cluster, tls: Tls) -> Self {
        let time = Duration::from_secs(rounds("LOWKEY_HOSTILE_SECONDS", 3) as u64);
        let leader = &cluster.nodes[cluster.wait_whole()];
        let scheme = if leader.tls.is_some() { "https" } else { "http" };
        let endpoint = format!("{scheme}://127.0.0.1:{}", leader.ports.grpc);
        fill(&Victim::of(&cluster, leader, &Arc::default())).await;
        // A machine that is busy with something else is slow, and no victim.
        let builder = Client::builder([endpoint]).tls(tls).call_timeout(PATIENCE).connect_timeout(PATIENCE);
        let client = in_time("a connection", builder.connect()).await.unwrap();
        let alone = good_client(&client, time).await;
        Self { cluster, client, alone, time, papers: None }
    }

    /// Runs a hostile client beside the good one, and judges what came of it.
    async fn beside(&self, name: &str, attack: impl FnOnce(Victim) -> Attack) {
        let Self { cluster, client, alone: (alone, alone_count), time, .. } = self;
        let leader = &cluster.nodes[cluster.wait_leader(None)];
        let (term_before, before) = (term(leader), resident(leader));
        let is_over = Arc::new(AtomicBool::new(false));
        // With a runtime of its own, which takes its connections along when it ends.
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let runtime = runtime.unwrap();
        let hostile = runtime.spawn(attack(Victim::of(cluster, leader, &is_over))).await.unwrap();
        let mut peak = before;
        let beside = {
            let mut good = std::pin::pin!(good_client(client, *time));
            loop {
                tokio::select! {
                    measured = &mut good => break measured,
                    () = tokio::time::sleep(Duration::from_millis(20)) => peak = peak.max(resident(leader)),
                }
            }
        };
        peak = peak.max(resident(leader));
        is_over.store(true, Ordering::Relaxed);
        drop(hostile);
        runtime.shutdown_background();
        let kept = || {
            let (_, metrics) = leader.http("GET", "/metrics", "")?;
            let line = metrics.lines().find_map(|line| line.strip_prefix("lowkey_client_memory_bytes "))?;
            line.parse::<u64>().ok()
        };
        // What asks is a client, too.
        eventually("nothing is kept for anybody", || kept().filter(|bytes| *bytes < MEBIBYTE));
        let mut after = resident(leader);
        let freed = Instant::now();
        while after > before + KEPT_MAX && freed.elapsed() < Duration::from_secs(20) {
            tokio::time::sleep(Duration::from_millis(100)).await;
            after = resident(leader);
        }
        println!(
            "{name}: p99 {alone:?} alone ({alone_count} pairs), {:?} beside ({} pairs); memory {} MiB before, {} at most, \
             {} after; term {term_before} before, {} after",
            beside.0,
            beside.1,
            before / MEBIBYTE,
            peak / MEBIBYTE,
            after / MEBIBYTE,
            term(leader),
        );
        assert!(peak < before + MORE_MAX, "{name}: {} MiB more", (peak - before) / MEBIBYTE);
        if *time >= Duration::from_secs(LONG_SECONDS as u64) {
            assert_eq!(term(leader), term_before, "{name}: the leader changed");
            assert!(
                beside.0 <= SLOW.max(*alone * TIMES_SLOWER),
                "{name}: p99 {:?}, {alone:?} alone",
                beside.0
            );
        }
    }
}

/// What a hostile client knows.
#[derive(Clone)]
struct Victim {
    /// Of the leader.
    ports: Ports,
    /// Of all nodes.
    all_ports: Vec<Ports>,
    /// What the client shows, and whom it trusts, if the ports are encrypted.
    tls: Option<Arc<ClientConfig>>,
    is_over: Arc<AtomicBool>,
}

impl Victim {
    fn of(cluster: &Cluster, leader: &Node, is_over: &Arc<AtomicBool>) -> Self {
        let all_ports = cluster.nodes.iter().map(|node| node.ports).collect();
        let tls = leader.tls.as_deref().map(|config| {
            let mut config = config.clone();
            config.alpn_protocols = vec![b"h2".to_vec()];
            Arc::new(config)
        });
        Self { ports: leader.ports, all_ports, tls, is_over: Arc::clone(is_over) }
    }

    fn is_over(&self) -> bool {
        self.is_over.load(Ordering::Relaxed)
    }

    /// A connection of which nothing is said yet.
    fn dial(&self, port: u16) -> std::io::Result<TcpStream> {
        TcpStream::connect(("127.0.0.1", port))
    }

    async fn channel(&self, endpoint: Endpoint) -> Channel {
        match self.tls.clone() {
            None => endpoint.connect().await.unwrap(),
            Some(config) => {
                let port = self.ports.grpc;
                let encrypted = tower::service_fn(move |_| {
                    let (connector, name) = (TlsConnector::from(Arc::clone(&config)), "127.0.0.1");
                    async move {
                        let stream = tokio::net::TcpStream::connect((name, port)).await?;
                        let name = ServerName::try_from(name).map_err(std::io::Error::other)?;
                        connector.connect(name, stream).await.map(TokioIo::new)
                    }
                });
                endpoint.connect_with_connector(encrypted).await.unwrap()
            }
        }
    }

    fn endpoint(&self) -> Endpoint {
        Endpoint::from_shared(format!("http://127.0.0.1:{}", self.ports.grpc)).unwrap()
    }

    /// A connection whose client takes what it is sent.
    async fn open(&self) -> Channel {
        self.channel(self.endpoint()).await
    }

    /// A connection whose client takes next to nothing.
    async fn deaf(&self) -> LockServiceClient<Channel> {
        let endpoint = self.endpoint().initial_stream_window_size(1024);
        LockServiceClient::new(self.channel(endpoint.initial_connection_window_size(65_535)).await)
    }
}

/// A lock that a thousand hold, and a thousand locks.
async fn fill(victim: &Victim) {
    let client = LockServiceClient::new(victim.open().await);
    let workers = (0..50).map(|worker| {
        let mut client = client.clone();
        tokio::spawn(async move {
            for number in (worker..1000).step_by(50) {
                let one = |name: String, mode: Mode| AcquireLockRequest {
                    lock_name: name,
                    owner_id: format!("somebody with quite a long name, number {number}"),
                    ttl_seconds: 600,
                    mode: mode.into(),
                    value: "v".repeat(200),
                    ..AcquireLockRequest::default()
                };
                client.acquire_lock(one("crowded".into(), Mode::Shared)).await.unwrap();
                client.acquire_lock(one(format!("many/{number}"), Mode::Exclusive)).await.unwrap();
            }
        })
    });
    for worker in workers.collect::<Vec<_>>() {
        worker.await.unwrap();
    }
}

/// One test for each attack.
macro_rules! tests {
    ($($name:ident: $what:literal, $attack:ident)*) => {
        $(#[tokio::test(flavor = "multi_thread")]
        async fn $name() {
            Scene::plain().await.beside($what, |victim| Box::pin(attacks::$attack(victim))).await;
        })*

        /// The same attacks on encrypted ports, one after the other.
        #[tokio::test(flavor = "multi_thread")]
        async fn all_of_it_on_encrypted_ports() {
            let scene = Scene::encrypted().await;
            $(
                let what = concat!($what, ", encrypted");
                scene.beside(what, |victim| Box::pin(attacks::$attack(victim))).await;
            )*
        }
    };
}

tests! {
    sessions_that_ask_for_much_and_read_nothing:
        "8 deaf sessions that read a lock with 1,000 holders", much_asked
    sessions_that_ask_very_often_and_read_nothing:
        "100 deaf sessions with 16,384 calls each", often_asked
    lists_that_nobody_reads: "2,000 deaf lists", lists
    connections_on_which_nothing_is_said: "10,000 idle connections", silence
    watches_that_nobody_reads: "5,000 deaf watches", watches
    a_popular_lock_that_is_polled: "64 polls at a time of a lock with 1,000 holders", polls
    dials_to_the_port_of_the_nodes: "4,000 connections to the nodes' own port, and more all the time", dials
}

/// Members that do not exist: with the three nodes as many as there may be.
const STRANGERS: usize = 12;
/// A node that is away is called so often at first, and then so often in a second; twice, for messages and for calls.
const FIRST_CALLS: usize = 2 * 100;
const CALLS_A_SECOND: usize = 2 * 3;

#[tokio::test(flavor = "multi_thread")]
async fn members_that_do_not_exist() {
    for is_encrypted in [false, true] {
        let scene = if is_encrypted { Scene::encrypted().await } else { Scene::plain().await };
        let name = if is_encrypted { ", encrypted" } else { "" };
        let (called, begun) = (attacks::Called::default(), Instant::now());
        let attack = |victim| -> Attack { Box::pin(attacks::strangers(victim, called.clone())) };
        scene.beside(&format!("as many members as there may be, and more{name}"), attack).await;
        let members = scene.cluster.nodes[0].status().unwrap()["members"].as_array().unwrap().len();
        let (times, seconds) = (called.times(), begun.elapsed().as_secs() as usize + 1);
        println!("{members} members; those that do not exist were called {times} times in {seconds} s");
        assert_eq!(members, STRANGERS + 3);
        let callers = STRANGERS * 3;
        assert!(times <= callers * (FIRST_CALLS + CALLS_A_SECOND * seconds), "{times} calls");
    }
}

/// Files that a node may have open here.
const DESCRIPTORS: usize = 600;

#[tokio::test(flavor = "multi_thread")]
async fn descriptors_that_are_used_up() {
    let scene = Scene::with_descriptors(DESCRIPTORS).await;
    scene
        .beside("5,400 connections to nodes with 600 descriptors", |victim| {
            Box::pin(attacks::descriptors(victim))
        })
        .await;
}
