//! Nodes that are too far behind for the log: back by a snapshot, also over connections that break.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use lowkey_api::v1::lock_service_client::LockServiceClient;
use lowkey_api::v1::{AcquireLockRequest, CreateLeaseRequest, ReleaseLockRequest};
use lowkey_wal::{GroupId, RealDisk, snapshots};
use rustix::process::Signal;
use tonic::transport::Channel;

use crate::harness::{Cluster, Node, eventually, long_acquire, rounds};

/// Puts so many entries into the log, many at a time: locks taken and given back.
#[tokio::main(flavor = "current_thread")]
async fn write_entries(node: &Node, entries: usize) {
    const WORKERS: usize = 64;
    let channel = node.channel();
    let workers = (0..WORKERS).map(|worker| {
        let client = LockServiceClient::new(channel.clone());
        tokio::spawn(take_and_give_back(client, worker, entries.div_ceil(2 * WORKERS)))
    });
    for worker in workers.collect::<Vec<_>>() {
        worker.await.unwrap();
    }
}

async fn take_and_give_back(mut client: LockServiceClient<Channel>, worker: usize, pairs: usize) {
    let owner = format!("worker-{worker}");
    let create = CreateLeaseRequest {
        owner_id: owner.clone(),
        ttl_seconds: 600,
        request_id: format!("lease-of-{owner}"),
    };
    // On a loaded machine the lead may change meanwhile: the same request id has one effect.
    let lease = loop {
        match client.create_lease(create.clone()).await {
            Ok(made) => break made.into_inner().lease_id,
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    };
    for pair in 0..pairs {
        let lock_name = format!("work/{worker}");
        let acquire = AcquireLockRequest {
            lock_name: lock_name.clone(),
            owner_id: owner.clone(),
            lease_id: lease,
            request_id: format!("acquire-{pair}"),
            ..AcquireLockRequest::default()
        };
        while client.acquire_lock(acquire.clone()).await.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let request_id = format!("release-{pair}");
        let release =
            ReleaseLockRequest { lock_name, lease_id: lease, request_id, ..ReleaseLockRequest::default() };
        while client.release_lock(release.clone()).await.is_err() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// Makes the state large: locks with long values, held for a long time.
#[tokio::main(flavor = "current_thread")]
pub(crate) async fn hold_large(node: &Node, locks: usize) {
    let channel = node.channel();
    let acquire = |number: usize| {
        let mut client = LockServiceClient::new(channel.clone());
        async move {
            let value = format!("{number:0>4000}");
            let request = long_acquire(&format!("large/{number}"), "holder", "");
            client.acquire_lock(AcquireLockRequest { value, ..request }).await.unwrap();
        }
    };
    futures::stream::iter(0..locks).map(acquire).buffer_unordered(32).for_each(|()| async {}).await;
}

fn snapshots_sent(cluster: &Cluster) -> usize {
    cluster.nodes.iter().map(|node| node.log_text().matches("sent a snapshot").count()).sum()
}

/// The time from its start until a node that was away is needed, and there, for a majority.
#[test]
fn a_node_that_was_away_comes_back_and_votes() {
    let entries = rounds("LOWKEY_AWAY_ENTRIES", 13_000);
    let mut cluster = Cluster::start(3);
    let leader = cluster.wait_whole();
    let away = (leader + 1) % 3;
    cluster.nodes[away].kill();
    let writing = Instant::now();
    write_entries(&cluster.nodes[leader], entries);
    let wrote_for = writing.elapsed();

    let sent_before = snapshots_sent(&cluster);
    // From now on there is no majority without the one that comes back.
    let leader = cluster.wait_leader(Some(away));
    let other = 3 - leader - away;
    cluster.nodes[other].kill();
    let started = Instant::now();
    cluster.nodes[away].start();
    // The same request however often it is asked: the first may be in the log, its answer lost with the lead.
    let acquire = r#"{"lock_name":"back","owner_id":"o","ttl_seconds":600,"request_id":"once"}"#;
    eventually("a majority with the node that was away", || {
        let (status, _) = cluster.nodes[leader].http("POST", "/v1/lock/acquire", acquire)?;
        (status == 200).then_some(())
    });
    let took = started.elapsed();
    assert!(snapshots_sent(&cluster) > sent_before, "it came back by a snapshot");
    let applied = cluster.nodes[leader].log_position().1;
    eventually("it has all", || (cluster.nodes[away].log_position().1 >= applied).then_some(()));
    println!(
        "away for {entries} entries (written in {} ms): back, and voting, in {} ms",
        wrote_for.as_millis(),
        took.as_millis()
    );
}

/// A segment of the log holds 16 MiB, and the whole of what it lacks comes in a few messages.
#[test]
fn a_follower_that_stood_still_for_more_than_a_segment_catches_up() {
    const LOCKS: usize = 4_600;
    let mut cluster = Cluster::start(3);
    let leader = cluster.wait_whole();
    let behind = (leader + 1) % 3;
    let sent_before = snapshots_sent(&cluster);
    cluster.nodes[behind].pause();
    hold_large(&cluster.nodes[leader], LOCKS);
    cluster.nodes[behind].signal(Signal::CONT);
    let applied = cluster.nodes[leader].log_position().1;
    eventually("it has all", || {
        assert_eq!(cluster.nodes[behind].has_ended(), None, "{}", cluster.nodes[behind].log_text());
        (cluster.nodes[behind].log_position().1 >= applied).then_some(())
    });
    assert_eq!(snapshots_sent(&cluster), sent_before, "it came back by the log");
}

/// Stands between two nodes; ends connections after so many bytes, or lets nothing pass any more.
struct Proxy {
    port: u16,
    /// Bytes that went to the node behind it.
    passed: Arc<AtomicU64>,
    cuts_left: Arc<AtomicUsize>,
    /// Nothing passes once so many bytes went to the node behind it.
    hold_at: Arc<AtomicU64>,
}

impl Proxy {
    fn new() -> (Self, TcpListener) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let hold_at = Arc::new(AtomicU64::new(u64::MAX));
        (Self { port, passed: Arc::default(), cuts_left: Arc::default(), hold_at }, listener)
    }

    /// Passes everything on, and cuts as many connections as it is told to once so much went through each.
    fn run(&self, listener: TcpListener, target: u16, cut_after: u64) {
        let (passed, cuts_left) = (Arc::clone(&self.passed), Arc::clone(&self.cuts_left));
        let hold_at = Arc::clone(&self.hold_at);
        std::thread::spawn(move || {
            for near in listener.incoming().map_while(Result::ok) {
                let Ok(far) = TcpStream::connect(("127.0.0.1", target)) else { continue };
                let (near_back, far_back) = (near.try_clone().unwrap(), far.try_clone().unwrap());
                let (passed, cuts_left) = (Arc::clone(&passed), Arc::clone(&cuts_left));
                let hold_at = Arc::clone(&hold_at);
                std::thread::spawn(move || {
                    let mut own = 0;
                    pass(near, far, |bytes| {
                        passed.fetch_add(bytes, Ordering::Relaxed);
                        own += bytes;
                        while passed.load(Ordering::Relaxed) >= hold_at.load(Ordering::Relaxed) {
                            std::thread::sleep(Duration::from_millis(5));
                        }
                        let one_less = |left: usize| left.checked_sub(1);
                        own < cut_after
                            || cuts_left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_err()
                    });
                });
                std::thread::spawn(move || pass(far_back, near_back, |_| true));
            }
        });
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, mut go_on: impl FnMut(u64) -> bool) {
    let mut bytes = vec![0; 16 * 1024];
    while let Ok(count @ 1..) = from.read(&mut bytes) {
        if to.write_all(&bytes[..count]).is_err() || !go_on(count as u64) {
            break;
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}

fn size_of_newest_snapshot(directory: &Path) -> u64 {
    let disk = RealDisk::open(directory).unwrap();
    let newest = snapshots::load_newest(&disk, GroupId::ROOT).unwrap();
    newest.map_or(0, |(_, payload)| payload.len() as u64)
}

/// A lone node with a large state, and one that is about to join it through a proxy.
fn large_and_joiner(folder: &Path, proxy: &Proxy) -> (Node, Node) {
    let mut founder = Node::new(folder, "n1", &["--bootstrap"]);
    founder.start_ready();
    hold_large(&founder, 1_500);
    let join = format!("127.0.0.1:{}", founder.ports.grpc);
    let address = format!("127.0.0.1:{}", proxy.port);
    (founder, Node::new(folder, "n2", &["--join", &join, "--advertise-raft-addr", &address]))
}

fn wait_voting(founder: &Node, joiner: &Node) {
    eventually("the node that joined votes", || {
        let both = [founder.status()?, joiner.status()?];
        both.iter().all(|status| status["clusterSize"] == 2).then_some(())
    });
    assert_eq!(joiner.status().unwrap()["stats"]["locks"], 1_500);
}

#[test]
fn a_snapshot_whose_connection_breaks_goes_on_where_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let (proxy, listener) = Proxy::new();
    let (founder, mut joiner) = large_and_joiner(folder.path(), &proxy);
    proxy.cuts_left.store(3, Ordering::Relaxed);
    proxy.run(listener, joiner.ports.raft, 1_300_000);
    joiner.start();
    wait_voting(&founder, &joiner);

    let (size, passed) = (size_of_newest_snapshot(&joiner.data_dir), proxy.passed.load(Ordering::Relaxed));
    assert_eq!(proxy.cuts_left.load(Ordering::Relaxed), 0, "the connection was cut three times");
    assert!(size > 3 * 1_300_000, "the snapshot is larger than what passed before the cuts: {size}");
    assert!(passed < size + size / 2, "{passed} bytes were sent for {size}: it began anew");
    println!("{size} bytes of snapshot over a connection that broke three times: {passed} bytes sent");
}

#[test]
fn a_snapshot_whose_receiver_is_killed_in_the_middle_is_sent_anew() {
    let folder = tempfile::tempdir().unwrap();
    let (proxy, listener) = Proxy::new();
    let (founder, mut joiner) = large_and_joiner(folder.path(), &proxy);
    let half = 3_000_000;
    proxy.hold_at.store(half, Ordering::Relaxed);
    proxy.run(listener, joiner.ports.raft, u64::MAX);
    joiner.start();
    eventually("half of the snapshot is there", || {
        (proxy.passed.load(Ordering::Relaxed) >= half).then_some(())
    });
    joiner.kill();
    proxy.hold_at.store(u64::MAX, Ordering::Relaxed);
    joiner.start();
    wait_voting(&founder, &joiner);
}

/// No snapshot can be made from it, and none can be sent: a node that joins needs another one.
#[test]
fn a_snapshot_file_that_is_lost_while_a_node_runs_is_made_anew() {
    let mut cluster = Cluster::start(1);
    hold_large(&cluster.nodes[0], 1_500);
    write_entries(&cluster.nodes[0], 13_000);
    let directory = cluster.nodes[0].data_dir.clone();
    eventually("a snapshot of the load", || (size_of_newest_snapshot(&directory) > 4_000_000).then_some(()));
    for entry in std::fs::read_dir(&directory).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "snap") {
            std::fs::remove_file(path).unwrap();
        }
    }
    cluster.join();
    assert!(size_of_newest_snapshot(&directory) > 4_000_000);
    assert!(cluster.nodes[0].log_text().contains("is not there any more"));
}
