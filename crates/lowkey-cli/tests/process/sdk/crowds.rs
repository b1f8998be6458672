//! One client with very much of something: more than a connection, or a session stream, takes at once.

use std::time::Duration;

use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use lowkey_client::{Client, ErrorKind, Reason, SessionStatus};

use super::connect;
use crate::clients::in_time;
use crate::harness::{Cluster, Node, eventually};

/// One node, with these flags beside the usual ones.
fn node(folder: &std::path::Path, flags: &[&str]) -> Node {
    let mut node = Node::new(folder, "n1", &[&["--bootstrap"], flags].concat());
    node.start_ready();
    node
}

async fn client_of(node: &Node) -> Client {
    in_time("a connection", Client::connect([format!("http://127.0.0.1:{}", node.ports.grpc)])).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn three_hundred_watches_keep_nothing_else_from_the_service() {
    const WATCHES: usize = 150;
    let mut cluster = Cluster::start(3);
    let client = connect(&cluster).await;
    let session = client.session(Duration::from_secs(5)).await.unwrap();
    let mut watches: Vec<_> = (0..WATCHES).map(|number| client.watch(format!("lock-{number}"))).collect();
    let mut observed: Vec<_> = (0..WATCHES).map(|number| client.observe(&format!("e-{number}"))).collect();
    for observation in &mut observed {
        let first = in_time("who leads", observation.next()).await.unwrap().unwrap();
        assert!(first.leader.is_none());
    }
    in_time("the status", client.status()).await.unwrap();
    in_time("the locks", client.locks("")).await.unwrap();
    for (number, watch) in watches.iter_mut().enumerate() {
        let name = format!("lock-{number}");
        let guard = in_time("a lock", session.lock(name.as_str()).acquire()).await.unwrap();
        let event = in_time("its event", watch.next()).await.unwrap().unwrap();
        assert_eq!((event.name, event.fencing_token), (name, guard.token()));
    }

    // It follows the leader, too, and its watches go on.
    let leader = cluster.wait_whole();
    cluster.nodes[leader].kill();
    let guard = in_time("a lock of the next leader", session.lock("after").acquire()).await.unwrap();
    in_time("its release", guard.release()).await.unwrap();
    let last = in_time("the last lock", session.lock("lock-7").acquire()).await.unwrap();
    let told = async {
        loop {
            let event = watches[7].next().await.unwrap().unwrap();
            if event.fencing_token == last.token() {
                break;
            }
        }
    };
    in_time("the last event", told).await;
    assert_eq!(session.status(), SessionStatus::Held);
}

#[tokio::test(flavor = "multi_thread")]
async fn watches_beyond_what_a_node_takes_are_told_so_and_fewer_streams_a_connection_are_no_matter() {
    let folder = tempfile::tempdir().unwrap();
    let node = node(folder.path(), &["--max-watch-streams", "60", "--max-streams", "40"]);
    let endpoint = format!("http://127.0.0.1:{}", node.ports.grpc);
    let builder = Client::builder([endpoint]).call_timeout(Duration::from_secs(7));
    let client = in_time("a connection", builder.connect()).await.unwrap();
    let session = client.session(Duration::from_secs(60)).await.unwrap();
    let mut watches: Vec<_> = (0..61).map(|_| client.watch("popular")).collect();
    let streams = || {
        let (_, metrics) = node.http("GET", "/metrics", "")?;
        let line = metrics.lines().find(|line| line.starts_with("lowkey_watch_streams "))?.to_owned();
        (line == "lowkey_watch_streams 60").then_some(())
    };
    eventually("sixty watches have begun", streams);
    let _guard = in_time("a lock", session.lock("popular").acquire()).await.unwrap();
    let (mut told, mut refused) = (0, 0);
    let mut events: FuturesUnordered<_> = watches.iter_mut().map(|watch| watch.next()).collect();
    while let Some(event) = in_time("each watch says something", events.next()).await {
        match event.unwrap() {
            Ok(_) => told += 1,
            Err(error) => {
                assert_eq!(error.reason(), Some(Reason::LimitStreams), "{error}");
                assert!(matches!(error.kind(), ErrorKind::Refused(_)), "{error}");
                refused += 1;
            }
        }
    }
    assert_eq!((told, refused), (60, 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn twenty_thousand_waits_of_one_client_cost_none_of_its_sessions() {
    const SESSIONS: usize = 170;
    const WAITS_EACH: usize = 120;
    let folder = tempfile::tempdir().unwrap();
    let node = node(folder.path(), &[]);
    let (holder, client) = (client_of(&node).await, client_of(&node).await);
    let holding = holder.session(Duration::from_secs(60)).await.unwrap();
    let mut held = Vec::new();
    for number in 0..WAITS_EACH {
        held.push(in_time("a lock", holding.lock(format!("busy-{number}")).acquire()).await.unwrap());
    }
    let mut sessions = Vec::new();
    for _ in 0..SESSIONS {
        sessions.push(in_time("a session", client.session(Duration::from_secs(20))).await.unwrap());
    }
    let mut waiting = tokio::task::JoinSet::new();
    for session in &sessions {
        for number in 0..WAITS_EACH {
            let lock = session.lock(format!("busy-{number}"));
            waiting.spawn(async move { lock.acquire().await });
        }
    }
    let waiters = || node.status().unwrap()["stats"]["waiters"].as_u64().unwrap();
    eventually("as many wait as are sent at a time", || (waiters() >= 8000).then_some(()));
    // Longer than a lease lives without renewal.
    tokio::time::sleep(Duration::from_secs(22)).await;
    let lost = sessions.iter().filter(|session| session.status() != SessionStatus::Held).count();
    assert_eq!((lost, waiting.try_join_next().is_none()), (0, true), "sessions lost, and nobody is answered");
    let guard = in_time("another lock", sessions[0].lock("free").try_acquire()).await.unwrap();
    in_time("its release", guard.release()).await.unwrap();
    // Those who give up make room for the rest, which finds the locks free.
    drop(held);
    drop(in_time("somebody's turn", waiting.join_next()).await.unwrap().unwrap().unwrap());
    waiting.shutdown().await;
    drop(sessions);
    eventually("nobody waits any more", || (waiters() == 0).then_some(()));
}
