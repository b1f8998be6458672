//! A real cluster inside a test.
//!
//! Programs that use locks go wrong when a leader dies, a network is cut or a lock is lost, and rarely before. This
//! crate plays that: it starts nodes of the real service as processes, each behind proxies, and stops, kills
//! and cuts them off on command.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use std::time::Duration;
//!
//! use lowkey_client::Client;
//! use lowkey_testing::Cluster;
//!
//! let mut cluster = Cluster::start(3)?;
//! let client = Client::connect(cluster.endpoints()).await?;
//! let session = client.session(Duration::from_secs(5)).await?;
//! let guard = session.lock("report").acquire().await?;
//!
//! let leader = cluster.leader()?;
//! cluster.kill(leader)?;
//! assert!(guard.is_held(), "a failover takes no lock away");
//!
//! cluster.restart(leader)?;
//! cluster.release_by_force("report")?;
//! println!("and what does the program do now? {}", guard.lost().await);
//! # Ok(())
//! # }
//! ```
//!
//! - The nodes are those of the program `lowkey`: the one that [`Builder::binary`] names, or the environment variable
//!   `LOWKEY_BIN`, or one in cargo's target folder, or the one in the path.
//! - Calls block the thread until what they ask for is so, for a minute at most. They need no async runtime, and may
//!   be made inside one.
//! - There is no clock to turn: every process reads the system's. A lease of one second, and a node that is paused
//!   for longer, is the real thing.
//! - [`Cluster::isolate`] finds out which node is at an end of a connection by reading `/proc`, so that works on Linux
//!   alone. Everything else works on any Unix.
#![cfg(unix)]

mod error;
mod http;
mod net;
mod node;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

pub use crate::error::Error;
use crate::net::Net;
use crate::node::{Node, find_program};

/// How long something may take to become so; far more than it ever should.
const PATIENCE: Duration = Duration::from_secs(60);

/// How a cluster is started. Made by [`Cluster::builder`].
#[derive(Clone, Debug, Default)]
#[must_use = "nothing runs before start() is called"]
pub struct Builder {
    binary: Option<PathBuf>,
    flags: Vec<String>,
}

impl Builder {
    /// The program `lowkey`, instead of the one that is found.
    pub fn binary(mut self, program: impl Into<PathBuf>) -> Self {
        self.binary = Some(program.into());
        self
    }

    /// A flag for every node, such as `--log=debug`.
    pub fn flag(mut self, flag: impl Into<String>) -> Self {
        self.flags.push(flag.into());
        self
    }

    /// Starts so many nodes, and waits until all of them vote and agree on a leader.
    pub fn start(self, size: usize) -> Result<Cluster, Error> {
        if !(1..=7).contains(&size) {
            return Err(Error::new(format!("a cluster for a test has 1 to 7 nodes, and not {size}")));
        }
        let program = self.binary.map_or_else(find_program, Ok)?;
        let folder = tempfile::Builder::new()
            .prefix("lowkey-testing-")
            .tempdir()
            .map_err(|error| Error::new(format!("there is no folder for the nodes: {error}")))?;
        let net = Net::new(size);
        let mut cluster = Cluster { nodes: Vec::new(), net, folder };
        for number in 0..size {
            let join = cluster.nodes.first().map(Node::grpc_address);
            let net = Arc::clone(&cluster.net);
            let node = Node::new(&program, cluster.folder.path(), number, join, &self.flags, &net)?;
            cluster.nodes.push(node);
            cluster.restart(number)?;
        }
        cluster.leader()?;
        Ok(cluster)
    }
}

/// Some nodes that belong together. They end, and their data goes, when this is dropped.
///
/// Nodes have numbers, from 0 on.
#[derive(Debug)]
pub struct Cluster {
    nodes: Vec<Node>,
    net: Arc<Net>,
    /// Removed last.
    folder: TempDir,
}

impl Cluster {
    /// Starts so many nodes, and waits until all of them vote and agree on a leader.
    ///
    /// In a test that may be skipped where the program is missing, ask the error:
    ///
    /// ```no_run
    /// # fn example() {
    /// let cluster = match lowkey_testing::Cluster::start(1) {
    ///     Err(error) if error.is_missing() => return println!("skipped: {error}"),
    ///     outcome => outcome.expect("a cluster"),
    /// };
    /// # }
    /// ```
    pub fn start(size: usize) -> Result<Self, Error> {
        Self::builder().start(size)
    }

    /// The same, with more options.
    pub fn builder() -> Builder {
        Builder::default()
    }

    /// How many nodes there are.
    pub fn size(&self) -> usize {
        self.nodes.len()
    }

    /// The gRPC URLs of all nodes, for `lowkey-client`.
    pub fn endpoints(&self) -> Vec<String> {
        self.nodes.iter().map(|node| format!("http://127.0.0.1:{}", node.proxied.grpc)).collect()
    }

    /// The HTTP URLs of all nodes, for curl and the SDKs that speak HTTP.
    pub fn http_endpoints(&self) -> Vec<String> {
        self.nodes.iter().map(|node| format!("http://127.0.0.1:{}", node.proxied.http)).collect()
    }

    /// What a node has logged so far.
    pub fn log(&self, node: usize) -> Result<String, Error> {
        Ok(std::fs::read_to_string(&self.node(node)?.log).unwrap_or_default())
    }

    /// The node that leads. Waits until one does, and all nodes that run and are not cut off or paused agree.
    pub fn leader(&self) -> Result<usize, Error> {
        let awake = |node: &&Node| node.is_awake() && !self.net.is_isolated(node.number);
        eventually("a leader that all nodes know, with all nodes voting", || {
            let asked: Vec<&Node> = self.nodes.iter().filter(awake).collect();
            let statuses: Option<Vec<Value>> = asked.iter().map(|node| node.status()).collect();
            let statuses = statuses?;
            let leader = statuses.iter().position(|status| status["isLeader"] == true)?;
            let is_known = |status: &Value| {
                status["leaderAddress"] == statuses[leader]["leaderAddress"]
                    && status["clusterSize"] == self.nodes.len()
            };
            statuses.iter().all(is_known).then(|| asked[leader].number)
        })
    }

    /// Ends a node as a power cut would: at once, and it says goodbye to nobody. Its data stays.
    pub fn kill(&mut self, node: usize) -> Result<(), Error> {
        self.net.set_pid(node, None);
        self.node_mut(node)?.kill()
    }

    /// Starts a node that does not run, with the data that it has. Waits until it serves.
    pub fn restart(&mut self, node: usize) -> Result<(), Error> {
        let pid = self.node_mut(node)?.start()?;
        self.net.set_pid(node, Some(pid));
        let node = &self.nodes[node];
        let what = format!("node {} serves; its log is {}", node.number, node.log.display());
        eventually(&what, || node.is_ready().then_some(()))
    }

    /// Stops a node in its tracks, as a long pause of its machine would. Its connections stay open.
    pub fn pause(&mut self, node: usize) -> Result<(), Error> {
        self.node_mut(node)?.pause()
    }

    /// Lets a paused node go on.
    pub fn resume(&mut self, node: usize) -> Result<(), Error> {
        self.node_mut(node)?.resume()
    }

    /// Cuts a node off from all other nodes, in both directions. Clients still reach it.
    pub fn isolate(&self, node: usize) -> Result<(), Error> {
        self.node(node)?;
        if !cfg!(target_os = "linux") {
            return Err(Error::new(
                "only on Linux can it be found out which node is at an end of a connection",
            ));
        }
        self.net.isolate(node);
        Ok(())
    }

    /// Cuts all clients off from a node. Other nodes still reach it.
    pub fn cut_clients(&self, node: usize) -> Result<(), Error> {
        self.node(node)?;
        self.net.cut_clients(node);
        Ok(())
    }

    /// Ends what [`Cluster::isolate`] and [`Cluster::cut_clients`] did. What was held back is delivered, as TCP
    /// would.
    pub fn heal(&self) {
        self.net.heal();
    }

    /// Takes a lock away from all who hold it, as an operator would. Their sessions go on.
    pub fn release_by_force(&self, lock: &str) -> Result<(), Error> {
        let found = self.call("GET", &format!("/v1/lock?name={}", http::escaped(lock)), &Value::Null)?;
        for holder in found["holders"].as_array().into_iter().flatten() {
            let release = json!({
                "lock_name": lock, "lease_id": holder["leaseId"], "fencing_token": holder["fencingToken"]
            });
            self.call("POST", "/v1/lock/release", &release)?;
        }
        Ok(())
    }

    /// Ends a lease, and with it all that it holds and waits for. Its session learns of it with its next renewal.
    pub fn revoke(&self, lease_id: u64) -> Result<(), Error> {
        let lease = self.call("GET", &format!("/v1/lease?lease_id={lease_id}"), &Value::Null)?;
        let owner_id = lease["lease"]["ownerId"].clone();
        let revoke = json!({"lease_id": lease_id.to_string(), "owner_id": owner_id});
        self.call("POST", "/v1/lease/revoke", &revoke).map(drop)
    }

    /// A call that some node must answer.
    fn call(&self, method: &str, path: &str, body: &Value) -> Result<Value, Error> {
        let body = if body.is_null() { String::new() } else { body.to_string() };
        eventually(&format!("{method} {path} is answered"), || {
            let awake = self.nodes.iter().filter(|node| node.is_awake());
            let mut answers = awake.filter_map(|node| http::ask(node.ports.http, method, path, &body));
            // 503: nothing was done, or it may be asked again.
            answers.find(|answer| answer.0 != 503)
        })
        .and_then(|(status, text)| match status {
            200 => serde_json::from_str(&text).map_err(|error| Error::new(format!("{error}: {text}"))),
            _ => Err(Error::new(format!("{method} {path} was refused with {status}: {text}"))),
        })
    }

    fn node(&self, number: usize) -> Result<&Node, Error> {
        let size = self.nodes.len();
        self.nodes.get(number).ok_or_else(|| Error::new(no_such(number, size)))
    }

    fn node_mut(&mut self, number: usize) -> Result<&mut Node, Error> {
        let size = self.nodes.len();
        self.nodes.get_mut(number).ok_or_else(|| Error::new(no_such(number, size)))
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.net.end();
    }
}

fn no_such(number: usize, size: usize) -> String {
    format!("there is no node {number}: they are 0 to {}", size - 1)
}

/// Waits until something is so.
fn eventually<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> Result<T, Error> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = condition() {
            return Ok(found);
        }
        if Instant::now() >= deadline {
            return Err(Error::new(format!(
                "this did not come true within {} s: {what}",
                PATIENCE.as_secs()
            )));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}
