//! The nodes, each behind its proxies, with what is needed to break them.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use rustix::process::Signal;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::runtime::Handle;

use crate::equipment::{Control, Shim, SmallDisk, leash};
use crate::harness::{Node, eventually};
use crate::net::Net;

/// Room for the segments of a log that is in use, and for snapshots.
const SMALL_DISK: &str = "120m";

pub(crate) struct Cluster {
    pub(crate) nodes: Vec<Node>,
    pub(crate) net: Arc<Net>,
    /// What each node's shim is told; nothing without a shim.
    pub(crate) controls: Vec<Control>,
    /// The disk of the first node, if it can be made a small one.
    pub(crate) disk: Option<SmallDisk>,
    /// Those that stand still.
    pub(crate) paused: BTreeSet<usize>,
    /// The gRPC ports of the proxies that clients may use.
    pub(crate) proxied: Vec<u16>,
    /// Faults that cannot be played here, and why.
    pub(crate) missing: Vec<String>,
    /// Removed with everything in it when the cluster is dropped.
    pub(crate) folder: TempDir,
}

impl Cluster {
    /// One node founds, the others join; gives them back when all vote.
    pub(crate) fn start(size: usize, runtime: &Handle) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut missing = Vec::new();
        let shim = Shim::build(folder.path());
        let disk = SmallDisk::mount(&folder.path().join("n1"), SMALL_DISK);
        if let Err(why) = &shim {
            missing.push(format!("fsync errors and clock steps: {why}"));
        }
        if let Err(why) = &disk {
            missing.push(format!("full disks: {why}"));
        }
        let (shim, disk) = (shim.ok(), disk.ok());
        let net = Net::new(size);
        let mut nodes: Vec<Node> = Vec::new();
        let (mut controls, mut proxied) = (Vec::new(), Vec::new());
        for number in 0..size {
            let (raft, raft_port) = listen(runtime);
            let (grpc, grpc_port) = listen(runtime);
            let begin = match nodes.last() {
                None => ["--bootstrap".to_owned(), "--log=info".to_owned()],
                Some(last) => ["--join".to_owned(), format!("127.0.0.1:{}", last.ports.grpc)],
            };
            let advertise = [
                "--advertise-raft-addr".to_owned(),
                format!("127.0.0.1:{raft_port}"),
                "--advertise-grpc-addr".to_owned(),
                format!("127.0.0.1:{grpc_port}"),
            ];
            let flags: Vec<&str> = begin.iter().chain(&advertise).map(String::as_str).collect();
            let mut node = Node::new(folder.path(), &format!("n{}", number + 1), &flags);
            let mut wrapper = leash();
            if let Some(disk) = disk.as_ref().filter(|_| number == 0) {
                wrapper.extend(disk.wrapper());
            }
            if let Some(shim) = &shim {
                let control = Control::new(folder.path().join(format!("n{}.control", number + 1)));
                wrapper.extend(shim.wrapper(control.path()));
                controls.push(control);
            }
            node.wrap(wrapper);
            runtime.spawn(Arc::clone(&net).serve(raft, number, node.ports.raft, true));
            runtime.spawn(Arc::clone(&net).serve(grpc, number, node.ports.grpc, false));
            proxied.push(grpc_port);
            nodes.push(node);
        }
        let mut cluster =
            Self { nodes, net, controls, disk, paused: BTreeSet::new(), proxied, missing, folder };
        for number in 0..size {
            cluster.start_node(number);
            // Each joins through the one before it.
            cluster.nodes[number].wait_ready();
        }
        cluster.wait_whole();
        if shim.is_some() && !cluster.controls[0].is_loaded_by(cluster.nodes[0].pid()) {
            cluster
                .missing
                .push("fsync errors and clock steps: the binary does not load libraries".to_owned());
            cluster.controls.clear();
        }
        cluster
    }

    pub(crate) fn size(&self) -> usize {
        self.nodes.len()
    }

    pub(crate) fn start_node(&mut self, number: usize) {
        self.nodes[number].start();
        self.net.set_pid(number, Some(self.nodes[number].pid()));
    }

    pub(crate) fn kill(&mut self, number: usize) {
        self.net.set_pid(number, None);
        self.paused.remove(&number);
        self.nodes[number].kill();
    }

    pub(crate) fn pause(&mut self, number: usize) {
        self.nodes[number].pause();
        self.paused.insert(number);
    }

    pub(crate) fn resume(&mut self, number: usize) {
        if self.paused.remove(&number) {
            self.nodes[number].signal(Signal::CONT);
        }
    }

    /// Those that run and answer.
    pub(crate) fn live(&self) -> Vec<usize> {
        (0..self.size())
            .filter(|number| self.nodes[*number].runs() && !self.paused.contains(number))
            .collect()
    }

    /// Who leads, as the one with the newest term says.
    pub(crate) fn leader(&self) -> Option<usize> {
        let claims = self.live().into_iter().filter_map(|number| {
            let status = self.nodes[number].status()?;
            let term: u64 = status["term"].as_str()?.parse().ok()?;
            (status["isLeader"] == true).then_some((term, number))
        });
        claims.max().map(|(_, number)| number)
    }

    /// Waits until all nodes vote and agree on a leader.
    pub(crate) fn wait_whole(&self) {
        let size = self.size() as u64;
        eventually("all nodes vote and agree on the leader", || {
            let statuses: Option<Vec<_>> = self.nodes.iter().map(Node::status).collect();
            let statuses = statuses?;
            let leader = statuses.iter().find(|status| status["isLeader"] == true)?;
            let agreed = statuses.iter().all(|status| {
                status["clusterSize"] == size && status["leaderAddress"] == leader["leaderAddress"]
            });
            agreed.then_some(())
        });
    }

    /// Waits until every node serves: otherwise the next fault would meet a cluster that is not sound.
    pub(crate) fn wait_ready(&self) {
        for node in &self.nodes {
            node.wait_ready();
        }
    }

    /// All that the nodes have logged.
    pub(crate) fn logs(&self) -> Vec<String> {
        self.nodes.iter().map(Node::log_text).collect()
    }

    /// Where a node's files can be read from here.
    pub(crate) fn data_dir(&self, number: usize) -> PathBuf {
        match &self.disk {
            Some(disk) if number == 0 => disk.inside(""),
            _ => self.nodes[number].data_dir.clone(),
        }
    }
}

fn listen(runtime: &Handle) -> (TcpListener, u16) {
    let listener = runtime.block_on(TcpListener::bind("127.0.0.1:0")).unwrap();
    let port = listener.local_addr().unwrap().port();
    (listener, port)
}
