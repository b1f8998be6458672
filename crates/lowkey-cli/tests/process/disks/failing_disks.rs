//! Three nodes, and disks that fail them: syncs that fail, and no room left.

use std::time::Instant;

use lowkey_api::v1::lock_service_client::LockServiceClient;
use serde_json::Value;
use tempfile::TempDir;
use tonic::transport::Channel;

use crate::cli::Service;
use crate::equipment::{Control, Shim, SmallDisk};
use crate::harness::{Cluster, Node, acquire_somewhere, eventually, holder, long_acquire, run_to_end, say};

/// How a node ends that cannot go on.
const FAILED: Option<i32> = Some(69);

/// Three nodes whose syncs can be made to fail.
struct FailingSyncs {
    cluster: Cluster,
    controls: Vec<Control>,
    /// Where the library is that every start loads.
    _shim: TempDir,
}

impl FailingSyncs {
    /// Nothing, and a word why, where that cannot be played.
    fn start() -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        let skipped = |why: &str| say(format!("skipped: syncs cannot be made to fail: {why}"));
        let shim = Shim::build(folder.path()).map_err(|why| skipped(&why)).ok()?;
        let mut controls = Vec::new();
        let cluster = Cluster::start_equipped(3, |folder, node| {
            let control = Control::new(folder.join(format!("{}.control", node.name)));
            node.wrap(shim.wrapper(control.path()));
            controls.push(control);
        });
        if !controls[0].is_loaded_by(cluster.nodes[0].pid()) {
            skipped("the binary does not load libraries");
            return None;
        }
        Some(Self { cluster, controls, _shim: folder })
    }

    /// Makes a node's syncs fail while clients ask for more, until it has ended.
    fn end_by_failed_sync(&mut self, number: usize, book: &mut Book) {
        self.controls[number].fail_syncs(true);
        let failing = Instant::now();
        let mut ended = None;
        while ended.is_none() {
            book.acquire(1);
            ended = self.cluster.nodes[number].has_ended();
            assert!(failing.elapsed() < crate::harness::PATIENCE, "it ends");
        }
        let node = &self.cluster.nodes[number];
        assert_eq!(ended.unwrap().code(), FAILED, "{}", node.log_text());
        let log = node.log_text();
        let line = log.lines().find(|line| line.contains("this node ends at once")).expect(&log);
        for word in ["ERROR", "syncing segment-", "error=", "acknowledged", "check this disk"] {
            assert!(line.contains(word), "{word} is not in: {line}");
        }
        assert!(!log.contains("panicked"), "{log}");
        println!(
            "{} ended, and others granted, {} ms after its syncs began to fail",
            node.name,
            failing.elapsed().as_millis()
        );
        // Started with a disk that still fails, it ends again, and says why.
        let again = run_to_end(&mut node.command());
        assert_eq!(again.code, FAILED);
        assert!(again.complaint().contains("check the disk"), "{again:?}");
        self.controls[number].fail_syncs(false);
    }
}

/// What clients were told, to be held against what the cluster says later.
struct Book {
    runtime: tokio::runtime::Runtime,
    clients: Vec<LockServiceClient<Channel>>,
    /// Lock and token of everything that was acknowledged.
    granted: Vec<(String, u64)>,
}

impl Book {
    fn of(cluster: &Cluster) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let clients = {
            let _inside = runtime.enter();
            cluster.clients()
        };
        Self { runtime, clients, granted: Vec::new() }
    }

    fn acquire(&mut self, count: usize) {
        for _ in 0..count {
            let lock = format!("kept/{}", self.granted.len());
            let request = long_acquire(&lock, "owner", &lock);
            let grant = self.runtime.block_on(acquire_somewhere(&mut self.clients, &request)).unwrap();
            self.granted.push((lock, grant.fencing_token));
        }
    }

    fn assert_all_there(&mut self) {
        assert!(self.granted.windows(2).all(|pair| pair[0].1 < pair[1].1), "tokens rise: {:?}", self.granted);
        for (lock, token) in &self.granted {
            let held = self
                .runtime
                .block_on(holder(&mut self.clients, lock))
                .expect("what was acknowledged is there");
            assert_eq!((held.fencing_token, held.owner_id.as_str()), (*token, "owner"), "{lock}");
        }
    }
}

#[test]
fn a_sync_that_fails_ends_the_node_and_the_others_go_on_with_all_that_was_acknowledged() {
    let Some(mut failing) = FailingSyncs::start() else { return };
    let mut book = Book::of(&failing.cluster);
    book.acquire(20);
    for who in ["the leader", "a follower"] {
        let leader = failing.cluster.wait_whole();
        let number = if who == "the leader" { leader } else { (leader + 1) % 3 };
        failing.end_by_failed_sync(number, &mut book);
        // Two of three are a majority.
        book.acquire(20);
        book.assert_all_there();
        failing.cluster.nodes[number].start_ready();
        failing.cluster.wait_whole();
        book.acquire(20);
        book.assert_all_there();
        let (_, applied) = failing.cluster.nodes[failing.cluster.wait_whole()].log_position();
        let node = &failing.cluster.nodes[number];
        eventually("it has all again", || (node.log_position().1 >= applied).then_some(()));
        println!("{who}: {} grants, all there", book.granted.len());
    }
}

/// Three nodes with a small disk each.
struct SmallDisks {
    cluster: Cluster,
    disks: Vec<SmallDisk>,
}

impl SmallDisks {
    /// Nothing, and a word why, where that cannot be played.
    fn start() -> Option<Self> {
        let probe = tempfile::tempdir().unwrap();
        if let Err(why) = SmallDisk::mount(probe.path(), "1m") {
            say(format!("skipped: {why}"));
            return None;
        }
        let mut disks = Vec::new();
        let cluster = Cluster::start_equipped(3, |_, node| {
            // Two segments of 16 MiB, and 24 MiB to spare.
            let disk = SmallDisk::mount(&node.data_dir, "56m").unwrap();
            node.wrap(disk.wrapper());
            disks.push(disk);
        });
        Some(Self { cluster, disks })
    }

    fn node(&self, number: usize) -> &Node {
        &self.cluster.nodes[number]
    }
}

/// Asks until there is an answer that does not depend on the moment: who leads may change on a loaded machine.
fn answer(node: &Node, path: &str, body: &str) -> (u16, Value) {
    eventually(&format!("{path} {body} is answered"), || {
        let (status, text) = node.http("POST", path, body)?;
        (status != 503).then(|| (status, serde_json::from_str(&text).unwrap()))
    })
}

fn acquire(node: &Node, lock: &str) -> (u16, Value) {
    let body = format!(r#"{{"lock_name":"{lock}","owner_id":"o","ttl_seconds":600,"request_id":"{lock}"}}"#);
    answer(node, "/v1/lock/acquire", &body)
}

/// Grants until a disk is found full, and the refusal must be for that.
fn wait_refused(node: &Node, what: &str) {
    let mut tried = 0;
    eventually("new grants are refused", || {
        tried += 1;
        let (status, answer) = acquire(node, &format!("{what}/tried/{tried}"));
        if status != 200 {
            assert_eq!((status, &answer["reason"]), (429, &"LIMIT_DISK".into()), "{answer}");
        }
        (status == 429).then_some(())
    });
}

/// While nothing new is granted, what is held is renewed and given back, through any node.
fn assert_keeps(disks: &SmallDisks, what: &str, lease: &str, locks: usize) {
    for number in 0..locks {
        let node = disks.node(number % 3);
        let (status, renewed) = answer(node, "/v1/lease/renew", &format!(r#"{{"lease_id":{lease}}}"#));
        assert_eq!(status, 200, "{renewed}");
        let name = format!("{what}/{number}");
        let release = format!(r#"{{"lock_name":"{name}","lease_id":{lease},"request_id":"back-{name}"}}"#);
        let (status, released) = answer(node, "/v1/lock/release", &release);
        assert_eq!(status, 200, "{released}");
        let (status, refused) = acquire(node, &format!("{what}/never/{number}"));
        assert_eq!((status, &refused["reason"]), (429, &"LIMIT_DISK".into()), "{refused}");
    }
}

#[test]
fn on_full_disks_grants_stop_what_is_held_goes_on_and_service_comes_back_by_itself() {
    const LOCKS: usize = 12;
    let Some(disks) = SmallDisks::start() else { return };
    let first = disks.cluster.wait_whole();
    let (status, grant) = acquire(disks.node(first), "held");
    assert_eq!(status, 200, "{grant}");
    let lease = grant["leaseId"].as_str().unwrap();
    for what in ["leader", "all", "handed over"] {
        for number in 0..LOCKS {
            let name = format!("{what}/{number}");
            let lock = format!(
                r#"{{"lock_name":"{name}","owner_id":"o","lease_id":{lease},"request_id":"{name}"}}"#
            );
            assert_eq!(answer(disks.node(0), "/v1/lock/acquire", &lock).0, 200);
        }
        let leader = disks.cluster.wait_leader(None);
        let full: Vec<usize> = if what == "all" { vec![0, 1, 2] } else { vec![leader] };
        full.iter().for_each(|number| disks.disks[*number].fill());
        wait_refused(disks.node(leader), what);
        // Every node finds its own disk full in its own time.
        eventually("all that are full know it", || {
            let room = |number: &usize| disk_room(disks.node(*number));
            full.iter().all(|number| room(number) == Some(1)).then_some(())
        });
        if disks.cluster.wait_leader(None) == leader || what == "all" {
            assert_keeps(&disks, what, lease, LOCKS);
        }
        if what == "handed over" {
            // What an operator can do at once: give the lead to a node that has room.
            let heir = &disks.node((leader + 1) % 3).name;
            Service::of(&disks.cluster.nodes).ok(&["member", "transfer", heir]);
            assert_eq!(acquire(disks.node(leader), "granted elsewhere").0, 200);
        }
        full.iter().for_each(|number| disks.disks[*number].make_room());
        let freed = Instant::now();
        let mut tried = 0;
        eventually("grants are back", || {
            tried += 1;
            (acquire(disks.node(leader), &format!("{what}/again/{tried}")).0 == 200).then_some(())
        });
        println!(
            "full disk, {what}: grants were back {} ms after there was room",
            freed.elapsed().as_millis()
        );
    }
    let held = disks.node(0).ok("GET", "/v1/lock?name=held", "");
    assert_eq!(held["holders"][0]["leaseId"], lease, "{held}");
    disks.cluster.wait_whole();
    for node in &disks.cluster.nodes {
        let log = node.log_text();
        assert!(log.contains("the disk is full: new leases and locks are refused"), "{log}");
        assert!(!log.contains("panicked"), "{log}");
        // Each finds the room in its own time, too.
        eventually("it has room again", || (disk_room(node) == Some(2)).then_some(()));
        assert!(node.log_text().contains("the disk has room again"), "{log}");
    }
}

#[test]
fn a_follower_whose_disk_is_full_holds_up_nobody_and_comes_back_by_itself() {
    let Some(disks) = SmallDisks::start() else { return };
    let leader = disks.cluster.wait_whole();
    let follower = (leader + 1) % 3;
    disks.disks[follower].fill();
    eventually("it knows", || (disk_room(disks.node(follower)) == Some(1)).then_some(()));
    for number in 0..20 {
        // Through the full one as well, unless it has come to lead.
        if disks.cluster.wait_leader(None) != follower {
            let (status, grant) = acquire(disks.node(number % 3), &format!("granted/{number}"));
            assert_eq!(status, 200, "{grant}");
        }
    }
    disks.disks[follower].make_room();
    eventually("it has room again", || (disk_room(disks.node(follower)) == Some(2)).then_some(()));
    disks.cluster.wait_whole();
}

/// `lowkey_disk_room`: 2 enough, 1 full.
fn disk_room(node: &Node) -> Option<u8> {
    let (_, text) = node.http("GET", "/metrics", "")?;
    text.lines().find_map(|line| line.strip_prefix("lowkey_disk_room "))?.parse().ok()
}
