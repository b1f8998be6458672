//! SIGTERM: in good order, within its time.

use std::time::{Duration, Instant};

use lowkey_api::v1::HeartbeatRequest;
use rustix::process::Signal;
use tokio::sync::mpsc;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;

use crate::harness::{Cluster, acquire_somewhere, lease, long_acquire};

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_hands_over_and_ends_its_streams_cleanly() {
    let mut cluster = Cluster::start(3);
    let leader = cluster.wait_whole();
    let mut client = cluster.nodes[leader].client();
    let lease_id = lease(std::slice::from_mut(&mut client), "streamer", 60).await;
    let (sender, receiver) = mpsc::channel(16);
    let mut answers = client.heartbeat(ReceiverStream::new(receiver)).await.unwrap().into_inner();
    sender.send(HeartbeatRequest { lease_id, seq: 7, holds: None }).await.unwrap();
    let answer = answers.next().await.unwrap().unwrap();
    assert_eq!((answer.lease_id, answer.seq, answer.ttl_seconds), (lease_id, 7, 60));

    let told = Instant::now();
    cluster.nodes[leader].signal(Signal::TERM);
    let farewell = answers.next().await.unwrap().expect("the stream ends with a reason");
    assert_eq!(farewell.error_reason, "NODE_STOPPING");
    assert!(answers.next().await.is_none(), "and then with success");
    let exit = cluster.nodes[leader].wait_exit();
    let took = told.elapsed();
    assert_eq!(exit.code(), Some(0), "{}", cluster.nodes[leader].log_text());
    assert!(took < Duration::from_secs(5), "it took {took:?}");
    assert!(cluster.nodes[leader].log_text().contains("handed over the lead"));

    let mut clients: Vec<_> =
        cluster.nodes.iter().filter(|node| node.runs()).map(|node| node.client()).collect();
    acquire_somewhere(&mut clients, &long_acquire("after", "o", "after")).await.unwrap();
    println!("stopped in {} ms", took.as_millis());
}
