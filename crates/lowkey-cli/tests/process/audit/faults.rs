//! The audit of three nodes under load, while they are killed, stopped and cut off, and one loses its files. After it
//! every grant is told on every node, whole and once.
//!
//! Longer: `LOWKEY_AUDIT_CHAOS_SECONDS=600`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use lowkey_audit::{Gap, Position, Query, Reader, Row};
use rustix::process::Signal;
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;

use crate::audit::audit;
use crate::harness::{Cluster, Node, eventually, http, rounds};
use crate::net::{Net, Place};

/// Long enough for the other nodes to elect somebody else.
const FAULT: Duration = Duration::from_secs(2);
const WORKERS: usize = 6;
/// Each has several, so that one whose release is not known does not stop it.
const LOCKS_OF_A_WORKER: usize = 4;

#[derive(Clone, Copy, Debug)]
enum Fault {
    Kill,
    /// While it is dead, its audit is deleted.
    KillAndForget,
    Pause,
    /// It hears nothing of the others, and they nothing of it.
    CutOff,
}

/// Nodes whose connections among each other can be cut.
struct Stage {
    cluster: Cluster,
    net: Arc<Net>,
    /// Where the proxies run.
    _runtime: Runtime,
}

impl Stage {
    fn start(size: usize) -> Self {
        let runtime = Runtime::new().unwrap();
        let net = Net::new(size);
        let (mut equipped, mut started) = (0, 0);
        let equip = |_: &std::path::Path, node: &mut Node| {
            let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
            let proxied = listener.local_addr().unwrap().to_string();
            node.add_flags(&["--advertise-raft-addr", &proxied]);
            runtime.spawn(Arc::clone(&net).serve(listener, equipped, node.ports.raft, true));
            equipped += 1;
        };
        let tell = |node: &Node| {
            net.set_pid(started, Some(node.pid()));
            started += 1;
        };
        let cluster = Cluster::start_told(size, equip, tell);
        Self { cluster, net, _runtime: runtime }
    }

    /// Breaks a node for a while, and waits until it is well.
    fn inflict(&mut self, fault: Fault, place: usize) {
        let node = &mut self.cluster.nodes[place];
        match fault {
            Fault::Kill | Fault::KillAndForget => {
                self.net.set_pid(place, None);
                node.kill();
                if matches!(fault, Fault::KillAndForget) {
                    fs::remove_dir_all(node.data_dir.join("audit")).unwrap();
                }
                node.start();
                self.net.set_pid(place, Some(node.pid()));
            }
            Fault::Pause => {
                node.pause();
                thread::sleep(FAULT);
                node.signal(Signal::CONT);
            }
            Fault::CutOff => {
                let others = (0..self.cluster.nodes.len()).filter(|other| *other != place).map(Place::Node);
                let here = Place::Node(place);
                let ways: Vec<_> = others.flat_map(|other| [(here, other), (other, here)]).collect();
                self.net.change(|weather| weather.cut.extend(ways));
                thread::sleep(FAULT);
                self.net.change(|weather| weather.cut.clear());
            }
        }
        self.cluster.nodes[place].wait_ready();
        self.cluster.wait_whole();
    }
}

/// What a worker was told.
#[derive(Default)]
struct Told {
    granted: BTreeSet<String>,
    released: BTreeSet<String>,
}

/// Takes and gives back locks until told to stop. Stays with a node until that one fails.
fn work(ports: &[u16], worker: usize, stop: &AtomicBool, told: &Mutex<Told>) {
    let mut port = worker;
    let mut turn = 0;
    while !stop.load(Ordering::Relaxed) {
        turn += 1;
        let node = ports[port % ports.len()];
        let lock = format!("jobs/{worker}/{}", turn % LOCKS_OF_A_WORKER);
        let body = format!(r#"{{"lock_name":"{lock}","owner_id":"w","ttl_seconds":5}}"#);
        let answer = http(node, "POST", "/v1/lock/acquire", &body);
        let Some((200, text)) = answer else {
            port += usize::from(answer.is_none_or(|(status, _)| status != 409));
            thread::sleep(Duration::from_millis(20));
            continue;
        };
        let grant: Value = serde_json::from_str(&text).unwrap();
        let token = grant["fencingToken"].as_str().unwrap().to_owned();
        told.lock().unwrap_or_else(PoisonError::into_inner).granted.insert(token.clone());
        let lease = &grant["leaseId"];
        let body = format!(r#"{{"lock_name":"{lock}","lease_id":{lease},"fencing_token":{token}}}"#);
        if let Some((200, _)) = http(node, "POST", "/v1/lock/release", &body) {
            told.lock().unwrap_or_else(PoisonError::into_inner).released.insert(token);
        }
    }
}

/// All that a node has in its own files, by token, and what it says that it does not have.
fn own_audit(node: &Node) -> (BTreeMap<u64, Row>, Vec<Gap>) {
    let reader = Reader::new(&node.data_dir.join("audit"));
    let (mut rows, mut gaps) = (BTreeMap::new(), Vec::new());
    let mut after = Position::default();
    loop {
        let query = Query { after, count_max: 1_000, ..Query::default() };
        let page = reader.find(&query).unwrap();
        let is_last = page.rows.len() < query.count_max;
        for row in page.rows {
            let before = rows.insert(row.token, row);
            assert!(before.is_none(), "{} has two ends of one grant: {before:?}", node.name);
        }
        gaps.extend(page.gaps);
        after = page.through;
        if is_last {
            return (rows, gaps);
        }
    }
}

/// A node has every row as the others have it, or says that it may have none there.
fn assert_rows_agree(nodes: &[Node]) {
    let all: Vec<_> = nodes.iter().map(own_audit).collect();
    let mut union: BTreeMap<u64, &Row> = BTreeMap::new();
    for (rows, _) in &all {
        for (token, row) in rows {
            let known = union.entry(*token).or_insert(row);
            assert_eq!(*known, row, "two nodes tell of token {token}");
        }
    }
    for (node, (rows, gaps)) in nodes.iter().zip(&all) {
        let missing: Vec<_> = union.values().filter(|row| !rows.contains_key(&row.token)).collect();
        for row in &missing {
            let at = row.ended.revision;
            let is_declared = gaps.iter().any(|gap| gap.after < at && at <= gap.through);
            assert!(is_declared, "{} has not {row:?}, and declares {gaps:?}", node.name);
        }
        println!("{}: {} rows of its own, {} in declared gaps", node.name, rows.len(), missing.len());
    }
}

#[test]
fn every_acknowledged_grant_is_told_by_every_node_after_faults_under_load() {
    let length = Duration::from_secs(rounds("LOWKEY_AUDIT_CHAOS_SECONDS", 0) as u64);
    let mut stage = Stage::start(3);
    let ports: Vec<u16> = stage.cluster.nodes.iter().map(|node| node.ports.http).collect();
    let (stop, told) = (Arc::new(AtomicBool::new(false)), Arc::new(Mutex::new(Told::default())));
    let workers: Vec<_> = (0..WORKERS)
        .map(|worker| {
            let (ports, stop, told) = (ports.clone(), Arc::clone(&stop), Arc::clone(&told));
            thread::spawn(move || work(&ports, worker, &stop, &told))
        })
        .collect();
    // Each to a leader and to another. Files are lost once: what two nodes lose may be lost to all.
    let usual = [Fault::Pause, Fault::Kill, Fault::CutOff];
    let first = [Fault::Pause, Fault::KillAndForget, Fault::CutOff, Fault::Kill];
    let faults = first.into_iter().chain(usual.into_iter().cycle());
    let (began, mut done) = (Instant::now(), 0);
    for fault in faults {
        if done >= first.len() && began.elapsed() >= length {
            break;
        }
        let leader = stage.cluster.wait_leader(None);
        let released = || told.lock().unwrap_or_else(PoisonError::into_inner).released.len();
        let before = released();
        eventually("there is load", || (released() > before + 50).then_some(()));
        let place = match fault {
            // Not the founder: what was before the others joined, nobody else has.
            Fault::KillAndForget => 1 + usize::from(leader == 1),
            // Every other one strikes a follower, and every node has its turn.
            _ if done % 2 == 0 => leader,
            _ => (leader + 1 + done / 2 % 2) % 3,
        };
        stage.inflict(fault, place);
        done += 1;
    }
    stop.store(true, Ordering::Relaxed);
    workers.into_iter().for_each(|worker| worker.join().unwrap());
    let nodes = &stage.cluster.nodes;
    stage.cluster.wait_whole();
    // What is still held runs out.
    eventually("nobody holds anything", || {
        let locks = nodes[0].http("GET", "/v1/locks", "")?;
        (locks.0 == 200 && serde_json::from_str::<Value>(&locks.1).unwrap()["locks"] == Value::Array(vec![]))
            .then_some(())
    });
    let told = told.lock().unwrap_or_else(PoisonError::into_inner);
    let all: Vec<_> = nodes.iter().map(audit).collect();
    for (node, (rows, gaps)) in nodes.iter().zip(&all) {
        // A gap of one node is filled by others: none is left.
        assert!(gaps.is_empty(), "{}: {gaps:?}", node.name);
        for token in &told.granted {
            assert!(rows.contains_key(token), "{} knows nothing of token {token}", node.name);
        }
        for token in &told.released {
            assert_eq!(rows[token]["cause"], "released", "{}", rows[token]);
        }
        assert_eq!(rows, &all[0].0, "all nodes tell the same");
    }
    // Every node has answered, so that every recorder has written all.
    assert_rows_agree(nodes);
    println!(
        "{done} faults in {} s; {} grants were told, {} releases",
        began.elapsed().as_secs(),
        told.granted.len(),
        told.released.len()
    );
}
