//! A lease that nobody renews ends on time, and never before, while many others are renewed.

use std::time::{Duration, Instant};

use lowkey_api::v1::lock_service_client::LockServiceClient;
use lowkey_api::v1::{AcquireLockRequest, HeartbeatRequest, RenewLeaseRequest};
use tokio::sync::mpsc;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;

use crate::harness::{Cluster, lease, rounds};

/// Renews leases on one stream until the sender of the stop is gone.
async fn heartbeat(
    mut client: LockServiceClient<Channel>,
    leases: Vec<u64>,
    mut stop: mpsc::Receiver<()>,
) -> usize {
    let (sender, receiver) = mpsc::channel(256);
    let mut answers = client.heartbeat(ReceiverStream::new(receiver)).await.unwrap().into_inner();
    let sending = tokio::spawn(async move {
        for seq in 1.. {
            for lease_id in &leases {
                if sender.send(HeartbeatRequest { lease_id: *lease_id, seq, holds: None }).await.is_err() {
                    return;
                }
            }
            let pause = tokio::time::timeout(Duration::from_secs(1), stop.recv()).await;
            if pause.is_ok() {
                return;
            }
        }
    });
    let mut failures = 0;
    while let Some(Ok(answer)) = answers.next().await {
        failures += usize::from(!answer.error_reason.is_empty());
    }
    sending.await.unwrap();
    failures
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unrenewed_lease_frees_its_lock_on_time_while_many_are_renewed() {
    let many = rounds("LOWKEY_RENEWED_LEASES", 1000);
    let cluster = Cluster::start(3);
    let leader = cluster.wait_whole();
    let mut client = cluster.nodes[leader].client();
    let mut making = Vec::new();
    for number in 0..many {
        let mut clients = [client.clone()];
        making.push(tokio::spawn(async move { lease(&mut clients, &format!("keeper-{number}"), 4).await }));
    }
    let mut leases = Vec::new();
    for made in making {
        leases.push(made.await.unwrap());
    }
    let (stop, stopped) = mpsc::channel(1);
    let renewing = tokio::spawn(heartbeat(client.clone(), leases, stopped));

    let mut freed_after = Vec::new();
    for round in 0..3 {
        let dying = lease(std::slice::from_mut(&mut client), "dying", 2).await;
        let lock = format!("soon-free-{round}");
        let acquire = |owner: &str, lease_id, ttl_seconds| AcquireLockRequest {
            lock_name: lock.clone(),
            owner_id: owner.to_owned(),
            lease_id,
            ttl_seconds,
            ..AcquireLockRequest::default()
        };
        client.acquire_lock(acquire("dying", dying, 0)).await.unwrap();
        tokio::time::sleep(Duration::from_millis(700)).await;
        let renewal_sent = Instant::now();
        client.renew_lease(RenewLeaseRequest { lease_id: dying, holds: None }).await.unwrap();
        let renewal_acknowledged = Instant::now();
        while client.acquire_lock(acquire("next", 0, 60)).await.is_err() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        let early = renewal_sent.elapsed();
        assert!(early >= Duration::from_secs(2), "the lock was free {early:?} after the renewal was sent");
        freed_after.push(renewal_acknowledged.elapsed().as_millis());
    }
    drop(stop);
    let failures = renewing.await.unwrap();
    assert_eq!(failures, 0, "leases that were renewed were lost");
    println!("{many} leases renewed; the unrenewed ones freed their lock after (ms): {freed_after:?}");
}
