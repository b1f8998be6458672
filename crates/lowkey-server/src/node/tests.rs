use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};
use std::thread::{self, ThreadId};

use lowkey_api::v1::CreateLeaseRequest;
use lowkey_wal::{Disk, DiskFile};
use tokio::time::timeout;

use super::*;

/// For what takes no time unless it never comes.
const PATIENCE: Duration = Duration::from_secs(60);

/// So many operations one after the other, and whoever is to do the syncs does them: several times what it takes.
const MANY: usize = 60;

/// What is told of the syncs of a disk, and whether they are slow.
#[derive(Default)]
struct Syncs {
    are_slow: AtomicBool,
    done_by: Mutex<Vec<ThreadId>>,
}

impl Syncs {
    fn done_by(&self) -> MutexGuard<'_, Vec<ThreadId>> {
        self.done_by.lock().unwrap()
    }
}

/// A disk whose syncs are as slow as is wished. They do nothing else: whatever machine this runs on, they are fast then.
struct Watched<T: ?Sized> {
    syncs: Arc<Syncs>,
    inner: Arc<T>,
}

impl Watched<dyn Disk> {
    fn file(&self, file: io::Result<Arc<dyn DiskFile>>) -> io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(Watched { syncs: Arc::clone(&self.syncs), inner: file? }))
    }
}

impl Disk for Watched<dyn Disk> {
    fn list(&self) -> io::Result<Vec<String>> {
        self.inner.list()
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        self.file(self.inner.create(name))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        self.file(self.inner.open(name))
    }

    fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        self.inner.read(name)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.inner.rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.inner.remove(name)
    }

    fn sync_dir(&self) -> io::Result<()> {
        self.inner.sync_dir()
    }
}

impl DiskFile for Watched<dyn DiskFile> {
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.inner.write_at(offset, bytes)
    }

    fn set_len(&self, len_bytes: u64) -> io::Result<()> {
        self.inner.set_len(len_bytes)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.syncs.done_by().push(thread::current().id());
        if self.syncs.are_slow.load(Ordering::SeqCst) {
            thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }
}

async fn node_on(data_dir: &std::path::Path, syncs: &Arc<Syncs>) -> RunningNode {
    let any_port = SocketAddr::from(([127, 0, 0, 1], 0));
    let config = Config {
        node_name: None,
        data_dir: data_dir.to_owned(),
        cluster_of: None,
        bootstrap: true,
        after_total_loss: false,
        backup: None,
        quarantine: None,
        join: Vec::new(),
        raft_listen: any_port,
        grpc_listen: any_port,
        http_listen: any_port,
        raft_advertise: None,
        grpc_advertise: None,
        http_advertise: None,
        http_hosts: vec![],
        http_origins: vec![],
        metrics_open: false,
        tls: None,
        join_token: None,
        insecure: false,
        raft_tick: lowkey_replica::RaftTick::SHORTEST,
        leases_max: 1_000_000,
        watch_streams_max: 10,
        limits: ServeLimits::default(),
        audit: None,
    };
    let ports = Ports {
        raft: listen("raft", any_port).await.unwrap(),
        grpc: listen("grpc", any_port).await.unwrap(),
        http: listen("http", any_port).await.unwrap(),
    };
    let mut directory = DataDirectory::open(data_dir, None).unwrap();
    directory.disk = Arc::new(Watched { syncs: Arc::clone(syncs), inner: Arc::clone(&directory.disk) });
    start_in(config, None, ports, directory).await.unwrap()
}

async fn make_lease(node: &RunningNode) {
    let request = CreateLeaseRequest { owner_id: "me".into(), ttl_seconds: 600, ..Default::default() };
    node.service.call(node.service.guard().for_node(request)).await.unwrap();
}

/// The runtime has one thread here, the test's own: what it waits for, everybody waits for.
#[tokio::test]
async fn where_syncs_are_slow_the_runtime_does_not_wait_for_them() {
    let here = thread::current().id();
    let data_dir = tempfile::tempdir().unwrap();
    let syncs = Arc::new(Syncs::default());
    let node = node_on(data_dir.path(), &syncs).await;

    syncs.are_slow.store(true, Ordering::SeqCst);
    for _ in 0..MANY {
        make_lease(&node).await;
    }
    syncs.done_by().clear();
    for _ in 0..MANY {
        make_lease(&node).await;
    }
    let elsewhere = std::mem::take(&mut *syncs.done_by());
    assert!(elsewhere.len() >= MANY, "every lease is synced: {}", elsewhere.len());
    assert!(!elsewhere.contains(&here), "the runtime waited for a slow disk");

    // Once they are fast it does them again: that saves everybody two wake-ups.
    syncs.are_slow.store(false, Ordering::SeqCst);
    let given_back = async {
        while !syncs.done_by().contains(&here) {
            make_lease(&node).await;
        }
    };
    timeout(PATIENCE, given_back).await.expect("the runtime syncs again");
    node.stop().await.unwrap();
}
