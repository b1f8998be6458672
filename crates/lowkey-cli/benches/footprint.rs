//! What a lease with a lock costs a node in memory and on disk.
//!
//! ```sh
//! cargo bench -p lowkey-cli --bench footprint
//! ```
//!
//! Leases with one lock each are made, in steps; after each step the resident memory of the node and the bytes of its
//! directory are read. Then a few clients acquire and release without end: that is what a node that is busy needs
//! beside its state, since the log that no snapshot covers yet is kept in memory, too. At last the node is started
//! again, which shows what the state alone takes.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a benchmark may")]

mod node;

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use lowkey_api::v1::lock_service_client::LockServiceClient;
use lowkey_api::v1::{AcquireLockRequest, CreateLeaseRequest, GetStatusRequest, ReleaseLockRequest};
use tonic::transport::{Channel, Endpoint};

use crate::node::Node;

/// How many leases there are after each step.
const STEPS: [usize; 3] = [50_000, 100_000, 200_000];
const AT_A_TIME: usize = 64;
const BUSY: Duration = Duration::from_secs(10);
const PATIENCE: Duration = Duration::from_secs(60);

type Service = LockServiceClient<Channel>;

#[tokio::main]
async fn main() {
    let folder = tempfile::tempdir().unwrap();
    let (mut command, endpoint) = node::command(folder.path());
    let mut node = start(&mut command);
    let service = LockServiceClient::new(Endpoint::from_shared(endpoint).unwrap().connect_lazy());
    wait_answering(&service).await;
    println!("leases with one lock each     resident memory      log files      newest snapshot");
    tell("none", &node, folder.path());
    let mut held = 0;
    for step in STEPS {
        let acquire = |number: usize| hold(service.clone(), number);
        futures::stream::iter(held..step)
            .map(acquire)
            .buffer_unordered(AT_A_TIME)
            .for_each(|()| async {})
            .await;
        held = step;
        tell(&step.to_string(), &node, folder.path());
    }
    let busy = (0..AT_A_TIME).map(|number| tokio::spawn(take_and_give_back(service.clone(), number)));
    let mut changes = 0;
    for worker in busy.collect::<Vec<_>>() {
        changes += worker.await.unwrap();
    }
    tell(&format!("… and {changes} changes more"), &node, folder.path());
    node.0.kill().unwrap();
    node.0.wait().unwrap();
    node = start(&mut command);
    wait_answering(&service).await;
    tell("… started again", &node, folder.path());
}

fn start(command: &mut Command) -> Node {
    Node(command.stderr(Stdio::null()).spawn().unwrap())
}

async fn wait_answering(service: &Service) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let status = service.clone().get_status(GetStatusRequest {}).await;
        if status.is_ok_and(|status| status.into_inner().is_leader) {
            return;
        }
        assert!(Instant::now() < deadline, "the node leads");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

async fn hold(mut service: Service, number: usize) {
    let request = AcquireLockRequest {
        lock_name: format!("shop/orders/{number:08}"),
        owner_id: format!("worker-{number:08}"),
        ttl_seconds: 600,
        ..AcquireLockRequest::default()
    };
    service.acquire_lock(request).await.unwrap();
}

/// Gives how many entries it made.
async fn take_and_give_back(mut service: Service, number: usize) -> usize {
    let owner_id = format!("busy-{number}");
    let create =
        CreateLeaseRequest { owner_id: owner_id.clone(), ttl_seconds: 600, ..CreateLeaseRequest::default() };
    let lease_id = service.create_lease(create).await.unwrap().into_inner().lease_id;
    let lock_name = format!("busy/{number}");
    let started = Instant::now();
    let mut changes = 0;
    while started.elapsed() < BUSY {
        let (owner_id, lock_name) = (owner_id.clone(), lock_name.clone());
        let acquire = AcquireLockRequest {
            lock_name: lock_name.clone(),
            owner_id,
            lease_id,
            ..AcquireLockRequest::default()
        };
        service.acquire_lock(acquire).await.unwrap();
        let release = ReleaseLockRequest { lock_name, lease_id, ..ReleaseLockRequest::default() };
        service.release_lock(release).await.unwrap();
        changes += 2;
    }
    changes
}

fn tell(what: &str, node: &Node, folder: &Path) {
    let mib = |bytes: u64| format!("{:.0} MiB", bytes as f64 / (1024.0 * 1024.0));
    let status = std::fs::read_to_string(format!("/proc/{}/status", node.0.id())).unwrap();
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    let resident_kib: u64 = resident.trim().trim_end_matches(" kB").parse().unwrap();
    let sizes = |prefix: &str| {
        let mut files: Vec<(String, u64)> = std::fs::read_dir(folder)
            .unwrap()
            .filter_map(|file| {
                let file = file.unwrap();
                Some((file.file_name().into_string().unwrap(), file.metadata().ok()?.len()))
            })
            .filter(|(name, _)| name.starts_with(prefix))
            .collect();
        files.sort();
        files
    };
    let log: u64 = sizes("segment-").iter().map(|(_, bytes)| bytes).sum();
    let snapshot = sizes("snapshot-").last().map_or(0, |(_, bytes)| *bytes);
    println!("{what:<28}{:>17}{:>15}{:>21}", mib(resident_kib * 1024), mib(log), mib(snapshot));
}
