//! What hostile clients do. Each gives what it must keep for as long as it goes on.

use std::io::Write as _;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use futures::FutureExt as _;
use lowkey_api::v1::lock_service_client::LockServiceClient;
use lowkey_api::v1::session_call::Call;
use lowkey_api::v1::{AddPeerRequest, GetLockRequest, ListLocksRequest, SessionCall, WatchRequest};
use tokio::task::JoinSet;
use tonic::Request;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::Channel;

use super::{Ports, Victim};
use crate::clients::in_time;

/// What keeps an attack going.
type Kept = Box<dyn Send>;

/// Who is refused asks again after this.
const PAUSE: Duration = Duration::from_millis(20);

pub(super) async fn much_asked(victim: Victim) -> Kept {
    deaf_sessions(&victim, 8, get("crowded")).await
}

pub(super) async fn often_asked(victim: Victim) -> Kept {
    deaf_sessions(&victim, 100, get("nobody's")).await
}

/// Sessions that each ask this 16,384 times, and never read an answer.
async fn deaf_sessions(victim: &Victim, count: usize, call: Call) -> Kept {
    let mut sessions = Vec::new();
    for _ in 0..count {
        let call = call.clone();
        let asked = (1..=16_384).map(move |seq| SessionCall { seq, call: Some(call.clone()) });
        // Without an end, so that it stays open.
        let asked = futures::StreamExt::chain(futures::stream::iter(asked), futures::stream::pending());
        let mut client = victim.deaf().await;
        let answers = client.session(asked).await.unwrap();
        sessions.push((client, answers));
    }
    Box::new(sessions)
}

fn get(name: &str) -> Call {
    Call::GetLock(GetLockRequest { lock_name: name.into(), stale: false })
}

pub(super) async fn lists(victim: Victim) -> Kept {
    let mut lists = JoinSet::new();
    for _ in 0..20 {
        let client = victim.deaf().await;
        for _ in 0..100 {
            lists.spawn(deaf_list(client.clone(), victim.clone()));
        }
    }
    Box::new(lists)
}

/// Asks for a list, and takes no more of it than its beginning. Who is refused asks again.
async fn deaf_list(client: LockServiceClient<Channel>, victim: Victim) {
    while !victim.is_over() {
        let mut client = client.clone();
        let request = ListLocksRequest { page_size: 1000, ..ListLocksRequest::default() };
        let mut list = Box::pin(async move { client.list_locks(request).await });
        let mut is_answered = false;
        // What nobody polls does not read.
        for _ in 0..10 {
            is_answered = is_answered || list.as_mut().now_or_never().is_some();
            tokio::time::sleep(PAUSE).await;
        }
        while !is_answered && !victim.is_over() {
            tokio::time::sleep(PAUSE).await;
        }
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
}

pub(super) async fn silence(victim: Victim) -> Kept {
    crowd(10_000, |_| victim.dial(victim.ports.grpc).ok()).await
}

/// Very many connections: as many as are wanted, and half of what this process may have open at most.
///
/// One test has them at a time. All tests of this program share its descriptors, and the others need some.
pub(super) async fn crowd(wanted: usize, connect: impl FnMut(usize) -> Option<TcpStream>) -> Kept {
    static TURN: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());
    let turn = TURN.lock().await;
    let open_max = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    let wanted = open_max.map_or(wanted, |open_max| wanted.min(open_max as usize / 2));
    let connections: Vec<_> = (0..wanted).map_while(connect).collect();
    Box::new((connections, turn))
}

pub(super) async fn watches(victim: Victim) -> Kept {
    let mut watches = Vec::new();
    for _ in 0..56 {
        let mut client = victim.deaf().await;
        for _ in 0..90 {
            let request = WatchRequest { name: "good".into(), ..WatchRequest::default() };
            // A connection that is read so little ends early now and then, by its own client's hand.
            let Ok(watch) = in_time("a watch", client.watch(request)).await else { break };
            watches.push(watch);
        }
    }
    assert!(watches.len() > 2_500, "most are there: {}", watches.len());
    Box::new(watches)
}

/// Polls that are under way at a time, on so many connections.
const POLLS: usize = 64;
const POLLING_CONNECTIONS: usize = 4;

/// Reads a lock with a thousand holders again and again, and takes every answer.
pub(super) async fn polls(victim: Victim) -> Kept {
    let mut polls = JoinSet::new();
    for _ in 0..POLLING_CONNECTIONS {
        let channel = victim.open().await;
        in_time("the first answer", poll(&channel)).await.unwrap();
        for _ in 0..POLLS / POLLING_CONNECTIONS {
            let (channel, victim) = (channel.clone(), victim.clone());
            polls.spawn(async move {
                while !victim.is_over() {
                    if poll(&channel).await.is_err() {
                        tokio::time::sleep(PAUSE).await;
                    }
                }
            });
        }
    }
    Box::new(polls)
}

/// One of them. What it says is skipped: the client shares the machine with its victim.
async fn poll(channel: &Channel) -> Result<(), tonic::Status> {
    let mut grpc = Grpc::new(channel.clone());
    grpc.ready().await.map_err(|error| tonic::Status::unavailable(error.to_string()))?;
    let codec = tonic_prost::ProstCodec::<GetLockRequest, ()>::default();
    let path = PathAndQuery::from_static("/lowkey.v1.LockService/GetLock");
    let request = GetLockRequest { lock_name: "crowded".into(), stale: false };
    grpc.unary(Request::new(request), path, codec).await.map(drop)
}

/// Idle connections to the port of the nodes among themselves.
const SILENT_PEERS: usize = 4_000;

/// The port of the nodes among themselves has as many silent callers as it takes, and others that call without a pause.
pub(super) async fn dials(victim: Victim) -> Kept {
    let mut taken = 0;
    let silent = crowd(SILENT_PEERS, |number| {
        let ports = victim.all_ports[number % victim.all_ports.len()];
        let stream = victim.dial(ports.raft).ok()?;
        taken += 1;
        Some(stream)
    });
    let silent = silent.await;
    assert!(taken > 100, "the port takes some: {taken}");
    spawn_dialling(&victim, |ports, _| ports.raft, &[22, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3]);
    silent
}

/// Begins connections without a pause, says this on each, and keeps the last few.
fn spawn_dialling(
    victim: &Victim,
    port: impl Fn(&Ports, usize) -> u16 + Send + 'static,
    words: &'static [u8],
) {
    let victim = victim.clone();
    thread::spawn(move || {
        let mut kept = std::collections::VecDeque::new();
        for number in 0.. {
            if victim.is_over() {
                return;
            }
            let ports = &victim.all_ports[number % victim.all_ports.len()];
            let Ok(mut stream) = victim.dial(port(ports, number)) else {
                thread::sleep(PAUSE);
                continue;
            };
            // A node that turns it away has closed it by now.
            let _ = stream.write_all(words);
            kept.push_back(stream);
            if kept.len() > 64 {
                kept.pop_front();
            }
            thread::sleep(Duration::from_millis(1));
        }
    });
}

/// Connections to each node by which its descriptors are to be used up: on each of its ports.
const CONNECTIONS_A_PORT: usize = 600;

/// As many connections to all ports of all nodes as they take, and more all the time.
pub(super) async fn descriptors(victim: Victim) -> Kept {
    let mut open = Vec::new();
    for Ports { raft, grpc, http } in victim.all_ports.iter().copied() {
        for port in [raft, grpc, http] {
            open.extend((0..CONNECTIONS_A_PORT).map_while(|_| dial_briefly(port)));
        }
    }
    spawn_dialling(&victim, |ports, number| [ports.raft, ports.grpc, ports.http][number / 3 % 3], b"GET");
    Box::new(open)
}

/// A connection, unless the port has as many that wait for it as it may have.
fn dial_briefly(port: u16) -> Option<TcpStream> {
    TcpStream::connect_timeout(&(Ipv4Addr::LOCALHOST, port).into(), Duration::from_millis(200)).ok()
}

/// Who is called by nodes that take a stranger for a member: it counts the calls, and answers none.
#[derive(Clone, Default)]
pub(super) struct Called {
    count: Arc<AtomicUsize>,
}

impl Called {
    /// A port on which calls are counted.
    fn listen(&self, victim: &Victim) -> u16 {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        listener.set_nonblocking(true).unwrap();
        let (count, victim) = (Arc::clone(&self.count), victim.clone());
        thread::spawn(move || {
            while !victim.is_over() {
                match listener.accept() {
                    Ok((stream, _)) => {
                        count.fetch_add(1, Ordering::Relaxed);
                        drop::<TcpStream>(stream);
                    }
                    Err(_) => thread::sleep(Duration::from_millis(1)),
                }
            }
        });
        port
    }

    pub(super) fn times(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }
}

/// Adds members that do not exist, as many as can be, and goes on when no more are taken.
pub(super) async fn strangers(victim: Victim, called: Called) -> Kept {
    let mut adding = JoinSet::new();
    // The first of them are taken, and called by every node.
    for number in 0..super::STRANGERS {
        let port = called.listen(&victim);
        let mut client = LockServiceClient::new(victim.open().await);
        in_time("a stranger", client.add_peer(stranger(number, port))).await.unwrap();
    }
    for worker in 1..=8 {
        let (mut client, victim) = (LockServiceClient::new(victim.open().await), victim.clone());
        adding.spawn(async move {
            for number in 0.. {
                if victim.is_over() {
                    break;
                }
                let refused = client.add_peer(stranger(worker * 1_000_000 + number, 9)).await;
                assert!(refused.is_err(), "there are as many members as there may be");
            }
        });
    }
    Box::new(adding)
}

fn stranger(number: usize, port: u16) -> AddPeerRequest {
    AddPeerRequest {
        node_id: format!("stranger-{number}"),
        raft_address: format!("127.0.0.1:{port}"),
        request_id: format!("stranger-{number}"),
        ..AddPeerRequest::default()
    }
}
