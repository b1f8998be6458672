//! A hostile client beside a good one: the good one is served as before, nobody loses the lead, and the node's memory stays
//! within bounds and comes back.
//!
//! Each lasts 3 s, or `LOWKEY_HOSTILE_SECONDS`, and prints what was measured. How long calls take, and whether the lead
//! was lost, is judged only in the longer runs, which are made on a machine that does nothing else.

use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use futures::FutureExt as _;
use lowkey_api::v1::lock_service_client::LockServiceClient;
use lowkey_api::v1::session_call::Call;
use lowkey_api::v1::{AcquireLockRequest, GetLockRequest, ListLocksRequest, Mode, SessionCall, WatchRequest};
use lowkey_client::Client;
use tokio::task::JoinSet;
use tonic::transport::Channel;

use crate::clients::in_time;
use crate::harness::{Cluster, Node, eventually, rounds};

const MEBIBYTE: u64 = 1024 * 1024;
/// How much more memory a node may need.
const MORE_MAX: u64 = 256 * MEBIBYTE;
/// What it may keep of that afterwards, for the next time.
const KEPT_MAX: u64 = 64 * MEBIBYTE;
/// What a call may take beside a hostile client: so much, or so many times what it takes alone.
const SLOW: Duration = Duration::from_millis(20);
const TIMES_SLOWER: u32 = 5;

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

/// Runs a hostile client beside a good one, and judges what came of it.
async fn beside<F>(name: &str, hostile: impl FnOnce(Victim) -> F)
where
    F: Future<Output: Send + 'static> + Send + 'static,
{
    let seconds = rounds("LOWKEY_HOSTILE_SECONDS", 3);
    let time = Duration::from_secs(seconds as u64);
    let cluster = Cluster::start(3);
    let leader = &cluster.nodes[cluster.wait_whole()];
    let endpoint = format!("http://127.0.0.1:{}", leader.ports.grpc);
    fill(leader).await;
    let client = in_time("a connection", Client::connect([endpoint])).await.unwrap();
    let (alone, alone_count) = good_client(&client, time).await;

    let (term_before, before) = (term(leader), resident(leader));
    let is_over = Arc::new(AtomicBool::new(false));
    // With a runtime of its own, which takes its connections along when it ends.
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let victim = Victim { grpc: leader.ports.grpc, is_over: Arc::clone(&is_over) };
    let hostile = runtime.spawn(hostile(victim)).await.unwrap();
    let mut peak = before;
    let beside = {
        let mut good = std::pin::pin!(good_client(&client, time));
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
        "{name}: p99 {alone:?} alone ({alone_count} pairs), {:?} beside ({} pairs); memory {} MiB before, {} at most, {} \
         after; term {term_before} before, {} after",
        beside.0,
        beside.1,
        before / MEBIBYTE,
        peak / MEBIBYTE,
        after / MEBIBYTE,
        term(leader),
    );
    assert!(peak < before + MORE_MAX, "{name}: {} MiB more", (peak - before) / MEBIBYTE);
    if seconds >= 10 {
        assert_eq!(term(leader), term_before, "{name}: the leader changed");
        assert!(beside.0 <= SLOW.max(alone * TIMES_SLOWER), "{name}: p99 {:?}, {alone:?} alone", beside.0);
    }
}

/// What a hostile client knows.
struct Victim {
    grpc: u16,
    is_over: Arc<AtomicBool>,
}

impl Victim {
    /// A connection whose client takes next to nothing.
    async fn deaf(&self) -> LockServiceClient<Channel> {
        let endpoint =
            tonic::transport::Endpoint::from_shared(format!("http://127.0.0.1:{}", self.grpc)).unwrap();
        let endpoint = endpoint.initial_stream_window_size(1024).initial_connection_window_size(65_535);
        LockServiceClient::new(endpoint.connect().await.unwrap())
    }
}

/// A lock that a thousand hold, and a thousand locks.
async fn fill(node: &Node) {
    let client = node.client();
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

/// Sessions that each ask this 16,384 times, and never read an answer.
async fn deaf_sessions(node: &Victim, count: usize, call: Call) -> Vec<impl Send + use<>> {
    let mut sessions = Vec::new();
    for _ in 0..count {
        let call = call.clone();
        let asked = (1..=16_384).map(move |seq| SessionCall { seq, call: Some(call.clone()) });
        // Without an end, so that it stays open.
        let asked = futures::StreamExt::chain(futures::stream::iter(asked), futures::stream::pending());
        let mut client = node.deaf().await;
        let answers = client.session(asked).await.unwrap();
        sessions.push((client, answers));
    }
    sessions
}

fn get(name: &str) -> Call {
    Call::GetLock(GetLockRequest { lock_name: name.into(), stale: false })
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_that_ask_for_much_and_read_nothing() {
    beside("8 deaf sessions that read a lock with 1,000 holders", |node| async move {
        deaf_sessions(&node, 8, get("crowded")).await
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_that_ask_very_often_and_read_nothing() {
    beside("100 deaf sessions with 16,384 calls each", |node| async move {
        deaf_sessions(&node, 100, get("nobody's")).await
    })
    .await;
}

/// Asks for a list, and takes no more of it than its beginning. Who is refused asks again.
async fn deaf_list(client: LockServiceClient<Channel>, is_over: Arc<AtomicBool>) {
    let pause = Duration::from_millis(20);
    while !is_over.load(Ordering::Relaxed) {
        let mut client = client.clone();
        let request = ListLocksRequest { page_size: 1000, ..ListLocksRequest::default() };
        let mut list = Box::pin(async move { client.list_locks(request).await });
        let mut is_answered = false;
        // What nobody polls does not read.
        for _ in 0..10 {
            is_answered = is_answered || list.as_mut().now_or_never().is_some();
            tokio::time::sleep(pause).await;
        }
        while !is_answered && !is_over.load(Ordering::Relaxed) {
            tokio::time::sleep(pause).await;
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn lists_that_nobody_reads() {
    beside("2,000 deaf lists", |node| async move {
        let mut lists = JoinSet::new();
        for _ in 0..20 {
            let client = node.deaf().await;
            for _ in 0..100 {
                lists.spawn(deaf_list(client.clone(), Arc::clone(&node.is_over)));
            }
        }
        lists
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_on_which_nothing_is_said() {
    beside("10,000 idle connections", |node| async move {
        let connect = |_| TcpStream::connect(("127.0.0.1", node.grpc));
        (0..10_000).map_while(|number| connect(number).ok()).collect::<Vec<_>>()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn watches_that_nobody_reads() {
    beside("5,000 deaf watches", |node| async move {
        let mut watches = Vec::new();
        for _ in 0..56 {
            let mut client = node.deaf().await;
            for _ in 0..90 {
                let request = WatchRequest { name: "good".into(), ..WatchRequest::default() };
                watches.push(in_time("a watch", client.watch(request)).await.unwrap());
            }
        }
        watches
    })
    .await;
}
