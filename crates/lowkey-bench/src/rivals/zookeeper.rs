//! ZooKeeper: one server or three, as it comes.
//!
//! A lock for which nobody waits is an ephemeral node. Where somebody waits it is the recipe of ZooKeeper's own
//! documentation: an ephemeral node with a number for each client, and each watches the one before its own. A session is
//! a lease; it outlives its connection, which is how many of them are made without as many connections.

mod wire;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::join_all;
use tokio::time::{Instant, sleep, timeout};

use self::wire::{
    Kind, NO_NODE, NODE_EXISTS, ZooKeeperConnection, ZooKeeperReply, ZooKeeperRequest, ZooKeeperSession,
    describe, refused,
};
use super::{LONG_TTL, PATIENCE, find_program, until_whole};
use crate::process::{Cluster, Starter, free_ports};
use crate::system::{BenchProblem, Contender, HeldLock, LockClient, System, SystemAnswer};
use crate::workload::Workload;

const NAME: &str = "zookeeper";
/// Where Debian has it. It names itself what else it needs, but for somebody who writes down what is wrong.
const JAR: &str = "/usr/share/java/zookeeper.jar";
const LOGGER: &str = "/usr/share/java/slf4j-simple.jar";
const MAIN: &str = "org.apache.zookeeper.server.quorum.QuorumPeerMain";
/// How long a server may take to answer before a client that goes on asks another one.
const TRY: Duration = Duration::from_secs(1);
const AGAIN: Duration = Duration::from_millis(10);

pub(super) fn contenders() -> Option<Vec<Arc<dyn Contender>>> {
    let java = find_program("java", &[])?;
    Path::new(JAR).is_file().then(|| vec![Arc::new(ZookeeperContender { java }) as Arc<dyn Contender>])
}

struct ZookeeperContender {
    java: PathBuf,
}

/// Where one server listens: for clients, for the leader's proposals, for elections.
struct Ports {
    number: usize,
    client: u16,
    quorum: u16,
    election: u16,
}

/// The settings of the package, and what has to be said for several servers on one machine. Sessions may be as long as
/// leases of the others, and clients as many.
fn settings(folder: &Path, own: &Ports, all: &[Ports]) -> String {
    let mut lines = vec![
        "tickTime=2000".to_owned(),
        "initLimit=10".to_owned(),
        "syncLimit=5".to_owned(),
        format!("dataDir={}", folder.display()),
        "clientPortAddress=127.0.0.1".to_owned(),
        format!("clientPort={}", own.client),
        "maxClientCnxns=0".to_owned(),
        format!("maxSessionTimeout={}", LONG_TTL.as_millis()),
        "admin.enableServer=false".to_owned(),
    ];
    if all.len() > 1 {
        lines.extend(all.iter().map(|Ports { number, quorum, election, .. }| {
            format!("server.{number}=127.0.0.1:{quorum}:{election}")
        }));
    }
    lines.join("\n") + "\n"
}

impl Contender for ZookeeperContender {
    fn name(&self) -> String {
        NAME.to_owned()
    }

    fn sits_out(&self, workload: Workload, nodes: usize) -> Option<String> {
        (workload == Workload::Outage && nodes < 3).then(|| "no server would be left".to_owned())
    }

    fn start(&self, starter: &Starter, nodes: usize) -> Result<Cluster, BenchProblem> {
        let mut cluster = Cluster::new(starter, NAME)?;
        let mut all = Vec::new();
        for number in 1..=nodes {
            let [client, quorum, election] = free_ports()?;
            all.push(Ports { number, client, quorum, election });
        }
        for own in &all {
            let name = format!("{NAME}-{}", own.number);
            let folder = cluster.folder().join(&name);
            let file = folder.join("zoo.cfg");
            fs::create_dir(&folder)
                .and_then(|()| fs::write(folder.join("myid"), format!("{}\n", own.number)))
                .and_then(|()| fs::write(&file, settings(&folder, own, &all)))
                .map_err(|error| BenchProblem::failed(format!("cannot write {}: {error}", file.display())))?;
            let mut command = (starter.command)(&self.java);
            command.args(["-cp", &format!("{JAR}:{LOGGER}")]);
            command.args(["-Dorg.slf4j.simpleLogger.defaultLogLevel=error", MAIN]).arg(&file);
            cluster.add(&name, format!("127.0.0.1:{}", own.client), command)?;
        }
        Ok(cluster)
    }

    fn connect(&self, cluster: Arc<Cluster>, _connections: usize) -> SystemAnswer<'_, Box<dyn System>> {
        async move {
            let zookeeper = Zookeeper { cluster };
            until_whole(NAME, &zookeeper).await?;
            Ok(Box::new(zookeeper) as Box<dyn System>)
        }
        .boxed()
    }
}

struct Zookeeper {
    cluster: Arc<Cluster>,
}

impl Zookeeper {
    /// What each server is, if it says so.
    async fn modes(&self) -> Vec<Option<String>> {
        let ask = |address: &String| {
            let address = address.clone();
            async move {
                let said = timeout(TRY, describe(&address)).await.ok()?.ok()?;
                said.lines().find_map(|line| line.strip_prefix("Mode: ")).map(str::to_owned)
            }
        };
        join_all(self.cluster.addresses().iter().map(ask)).await
    }

    async fn leader_number(&self) -> Option<usize> {
        self.modes().await.iter().position(|mode| matches!(mode.as_deref(), Some("leader" | "standalone")))
    }

    async fn new_client(&self, goes_on: bool) -> Result<ZookeeperClient, BenchProblem> {
        let mut addresses = self.cluster.addresses().to_vec();
        addresses.rotate_left(self.leader_number().await.unwrap_or_default());
        let mut client = ZookeeperClient {
            addresses,
            at: 0,
            connection: None,
            session: ZooKeeperSession::default(),
            goes_on,
            is_in_doubt: false,
            lines: BTreeSet::new(),
            held: None,
            made: Vec::new(),
        };
        client.connected().await?;
        Ok(client)
    }
}

impl System for Zookeeper {
    fn client(&self, _number: usize) -> SystemAnswer<'_, Box<dyn LockClient>> {
        async move { Ok(Box::new(self.new_client(false).await?) as Box<dyn LockClient>) }.boxed()
    }

    fn persistent_client(&self) -> SystemAnswer<'_, Box<dyn LockClient>> {
        async move { Ok(Box::new(self.new_client(true).await?) as Box<dyn LockClient>) }.boxed()
    }

    fn count_held<'a>(&'a self, prefix: &'a str) -> SystemAnswer<'a, usize> {
        async move {
            let mut client = self.new_client(false).await?;
            let names = client.children("/").await?;
            let prefix = path(prefix);
            let count = names.iter().filter(|name| name.starts_with(&prefix[1..])).count();
            Box::new(client).close().await?;
            Ok(count)
        }
        .boxed()
    }

    fn leader(&self) -> SystemAnswer<'_, Option<String>> {
        async move { Ok(self.leader_number().await.map(|number| format!("{NAME}-{}", number + 1))) }.boxed()
    }

    fn is_whole(&self) -> SystemAnswer<'_, bool> {
        async move {
            let modes: Option<Vec<String>> = self.modes().await.into_iter().collect();
            // One that follows has all that was decided before.
            Ok(modes.is_some_and(|modes| modes.iter().any(|mode| mode == "leader" || mode == "standalone")))
        }
        .boxed()
    }

    fn nodes(&self) -> usize {
        self.cluster.addresses().len()
    }

    fn cluster(&self) -> &Arc<Cluster> {
        &self.cluster
    }
}

/// The node that stands for a lock. All are below the root, which is there.
fn path(lock: &str) -> String {
    format!("/{}", lock.replace('/', "-"))
}

struct ZookeeperClient {
    /// The leader's first.
    addresses: Vec<String>,
    at: usize,
    connection: Option<ZooKeeperConnection>,
    session: ZooKeeperSession,
    /// Whatever happens: with the next server, when there is no answer.
    goes_on: bool,
    /// Some try was not answered: it may have been carried out.
    is_in_doubt: bool,
    /// Locks that can be waited for: their nodes exist.
    lines: BTreeSet<String>,
    /// The node that stands for what it holds.
    held: Option<String>,
    /// Sessions that it made in order to hold something.
    made: Vec<ZooKeeperSession>,
}

impl ZookeeperClient {
    async fn connected(&mut self) -> Result<&mut ZooKeeperConnection, BenchProblem> {
        let connection = match self.connection.take() {
            Some(connection) => connection,
            None => {
                let (connection, session) =
                    ZooKeeperConnection::open(&self.addresses[self.at], LONG_TTL, &self.session).await?;
                self.session = session;
                connection
            }
        };
        Ok(self.connection.insert(connection))
    }

    async fn ask_once(&mut self, request: &ZooKeeperRequest) -> Result<ZooKeeperReply, BenchProblem> {
        self.connected().await?.ask(request).await
    }

    async fn ask(&mut self, request: &ZooKeeperRequest) -> Result<ZooKeeperReply, BenchProblem> {
        let deadline = Instant::now() + PATIENCE;
        let patience = if self.goes_on { TRY } else { PATIENCE };
        loop {
            let problem = match timeout(patience, self.ask_once(request)).await {
                Ok(Ok(reply)) => return Ok(reply),
                Ok(Err(problem @ BenchProblem::Wrong(_))) => return Err(problem),
                Ok(Err(problem)) => problem,
                Err(_) => BenchProblem::failed("zookeeper does not answer"),
            };
            if !self.goes_on || Instant::now() >= deadline {
                return Err(problem);
            }
            self.is_in_doubt = true;
            self.connection = None;
            self.at = (self.at + 1) % self.addresses.len();
            sleep(AGAIN).await;
        }
    }

    /// Gives the transaction that created it.
    async fn create(&mut self, path: &str) -> Result<Option<u64>, BenchProblem> {
        let ZooKeeperReply { zxid, outcome } =
            self.ask(&ZooKeeperRequest::create(path, Kind::Ephemeral)).await?;
        match outcome {
            Ok(_) => Ok(token(zxid)),
            // A try without an answer may have created it: nobody else uses the name.
            Err(NODE_EXISTS) if self.is_in_doubt => Ok(token(zxid)),
            Err(NODE_EXISTS) => Err(BenchProblem::wrong(format!(
                "zookeeper: {path} exists, and was not created or deleted since"
            ))),
            Err(code) => Err(refused(code)),
        }
    }

    async fn children(&mut self, path: &str) -> Result<Vec<String>, BenchProblem> {
        match self.ask(&ZooKeeperRequest::children(path)).await?.outcome {
            Ok(mut names) => names.texts(),
            Err(code) => Err(refused(code)),
        }
    }

    /// Gets in line, and waits until nobody is before.
    async fn line_up(&mut self, line: &str, wait: Duration) -> Result<Option<u64>, BenchProblem> {
        if !self.lines.contains(line) {
            match self.ask(&ZooKeeperRequest::create(line, Kind::Persistent)).await?.outcome {
                Ok(_) | Err(NODE_EXISTS) => _ = self.lines.insert(line.to_owned()),
                Err(code) => return Err(refused(code)),
            }
        }
        let place = ZooKeeperRequest::create(&format!("{line}/n-"), Kind::EphemeralSequential);
        let ZooKeeperReply { zxid, outcome } = self.ask(&place).await?;
        let own = outcome.map_err(refused)?.text()?;
        self.held = Some(own.clone());
        let deadline = Instant::now() + wait;
        loop {
            // Numbers have as many digits as the largest, so that their order is that of the texts.
            let names = self.children(line).await?;
            let before = names.iter().filter(|name| format!("{line}/{name}") < own).max();
            let Some(before) = before.map(|name| format!("{line}/{name}")) else { return Ok(token(zxid)) };
            match self.ask(&ZooKeeperRequest::watch(&before)).await?.outcome {
                Ok(_) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    self.connected().await?.told_of(&before, left).await?;
                }
                // It was deleted meanwhile.
                Err(NO_NODE) => {}
                Err(code) => return Err(refused(code)),
            }
        }
    }
}

impl LockClient for ZookeeperClient {
    fn acquire<'a>(&'a mut self, lock: &'a str, wait: Duration) -> SystemAnswer<'a, Option<u64>> {
        async move {
            let path = path(lock);
            if !wait.is_zero() {
                return self.line_up(&path, wait).await;
            }
            let token = self.create(&path).await?;
            self.held = Some(path);
            Ok(token)
        }
        .boxed()
    }

    fn release(&mut self) -> SystemAnswer<'_, ()> {
        async move {
            let Some(path) = self.held.take() else { return Ok(()) };
            match self.ask(&ZooKeeperRequest::delete(&path)).await?.outcome {
                Ok(_) => Ok(()),
                Err(NO_NODE) if self.is_in_doubt => Ok(()),
                Err(NO_NODE) => {
                    Err(BenchProblem::wrong(format!("zookeeper: {path} was created, and is gone")))
                }
                Err(code) => Err(refused(code)),
            }
        }
        .boxed()
    }

    fn hold<'a>(&'a mut self, lock: &'a str, ttl: Duration) -> SystemAnswer<'a, HeldLock> {
        async move {
            let path = path(lock);
            let holding = async {
                let address = &self.addresses[self.at];
                let (mut connection, session) =
                    ZooKeeperConnection::open(address, ttl, &ZooKeeperSession::default()).await?;
                let reply = connection.ask(&ZooKeeperRequest::create(&path, Kind::Ephemeral)).await?;
                Ok((session, reply))
            };
            let (session, ZooKeeperReply { zxid, outcome }) = timeout(PATIENCE, holding)
                .await
                .map_err(|_| BenchProblem::failed("zookeeper does not answer"))??;
            self.made.push(session);
            outcome.map_err(refused)?;
            Ok(HeldLock { token: token(zxid), lease: None })
        }
        .boxed()
    }

    fn close(mut self: Box<Self>) -> SystemAnswer<'static, ()> {
        async move {
            self.ask(&ZooKeeperRequest::close()).await?;
            for session in &self.made {
                let address = &self.addresses[self.at];
                let (mut connection, _) = ZooKeeperConnection::open(address, LONG_TTL, session).await?;
                connection.ask(&ZooKeeperRequest::close()).await?;
            }
            Ok(())
        }
        .boxed()
    }
}

/// The number of a transaction rises with every change.
fn token(zxid: i64) -> Option<u64> {
    u64::try_from(zxid).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_servers_know_of_each_other_and_one_is_alone() {
        let ports = |number| Ports { number, client: 1, quorum: 2, election: 3 };
        let one = settings(Path::new("/data"), &ports(1), &[ports(1)]);
        assert!(one.contains("clientPort=1\n") && !one.contains("server."));
        let two = settings(Path::new("/data"), &ports(1), &[ports(1), ports(2)]);
        assert!(two.ends_with("server.1=127.0.0.1:2:3\nserver.2=127.0.0.1:2:3\n"), "{two}");
    }
}
