//! etcd: one node or three, as it comes.
//!
//! Two ways of locking. The faster one is a transaction that creates a key with a lease unless it exists; nobody can
//! wait for it. Its Lock call can be waited for.

mod wire;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use tokio::time::{Instant, sleep, timeout};
use tonic::{Code, Status};

use super::{LONG_TTL, PATIENCE, find_program, until_whole};
use crate::caller::{Shown, UnaryCaller};
use crate::process::{Cluster, Starter, forget_settings, free_ports};
use crate::slots::Slots;
use crate::system::{BenchProblem, Contender, HeldLock, LockClient, System, SystemAnswer};
use crate::workload::Workload;

/// How long a node may take to answer before a client that goes on asks another one.
const TRY: Duration = Duration::from_millis(300);
const AGAIN: Duration = Duration::from_millis(10);
/// A node that is not further behind than this has caught up.
const LAG_MAX: u64 = 100;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Transaction,
    LockCall,
}

pub(super) fn contenders() -> Option<Vec<Arc<dyn Contender>>> {
    let program = find_program("etcd", &[])?;
    let contender = |way| Arc::new(EtcdContender { program: program.clone(), way }) as Arc<dyn Contender>;
    Some([Way::Transaction, Way::LockCall].map(contender).into())
}

struct EtcdContender {
    program: PathBuf,
    way: Way,
}

impl Contender for EtcdContender {
    fn name(&self) -> String {
        match self.way {
            Way::Transaction => "etcd txn".to_owned(),
            Way::LockCall => "etcd lock".to_owned(),
        }
    }

    fn sits_out(&self, workload: Workload, nodes: usize) -> Option<String> {
        let reason = match (workload, self.way) {
            (Workload::Hot, Way::Transaction) => "nobody can wait for a transaction",
            (Workload::Holders | Workload::Outage, Way::LockCall) => "the transaction is its faster way",
            (Workload::Outage, _) if nodes < 3 => "no node would be left",
            _ => return None,
        };
        Some(reason.to_owned())
    }

    fn start(&self, starter: &Starter, nodes: usize) -> Result<Cluster, BenchProblem> {
        let mut cluster = Cluster::new(starter, "etcd")?;
        let mut ports = Vec::new();
        for number in 1..=nodes {
            let [client, peer] = free_ports()?.map(|port| format!("http://127.0.0.1:{port}"));
            ports.push((format!("etcd-{number}"), client, peer));
        }
        let all: Vec<String> = ports.iter().map(|(name, _, peer)| format!("{name}={peer}")).collect();
        for (name, client, peer) in &ports {
            let mut command = (starter.command)(&self.program);
            command.args(["--name", name, "--initial-cluster", &all.join(","), "--log-level", "error"]);
            command.args(["--listen-client-urls", client, "--advertise-client-urls", client]);
            command.args(["--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer]);
            command.arg("--data-dir").arg(cluster.folder().join(name));
            // What is set for another etcd of this machine is not meant for this one.
            forget_settings(&mut command, "ETCD_");
            cluster.add(name, client.clone(), command)?;
        }
        Ok(cluster)
    }

    fn connect(&self, cluster: Arc<Cluster>, connections: usize) -> SystemAnswer<'_, Box<dyn System>> {
        let way = self.way;
        async move {
            let nodes = callers(cluster.addresses())?;
            let etcd = Etcd { cluster, way, nodes, callers: Slots::new(connections) };
            until_whole("etcd", &etcd).await?;
            Ok(Box::new(etcd) as Box<dyn System>)
        }
        .boxed()
    }
}

fn callers(addresses: &[String]) -> Result<Vec<UnaryCaller>, BenchProblem> {
    addresses.iter().map(|address| UnaryCaller::new(address, Shown::default())).collect()
}

struct Etcd {
    cluster: Arc<Cluster>,
    way: Way,
    /// For questions about the cluster, by node.
    nodes: Vec<UnaryCaller>,
    callers: Slots<Vec<UnaryCaller>>,
}

impl Etcd {
    /// What each node says, if it does.
    async fn statuses(&self) -> Vec<Option<wire::NodeStatus>> {
        let ask = async |node: &UnaryCaller| {
            let status = node.call(wire::STATUS, &wire::Nothing {});
            timeout(TRY, status).await.ok().and_then(Result::ok)
        };
        futures::future::join_all(self.nodes.iter().map(ask)).await
    }

    async fn leader_number(&self) -> Option<usize> {
        let statuses = self.statuses().await;
        statuses.iter().position(|status| {
            let member = |status: &wire::NodeStatus| status.header.as_ref().map(|header| header.member_id);
            status.as_ref().is_some_and(|status| status.leader != 0 && member(status) == Some(status.leader))
        })
    }

    /// One of the connections that clients share, to each node, the leader's first.
    async fn callers(&self, number: usize) -> Result<Vec<UnaryCaller>, BenchProblem> {
        let make = async {
            let mut callers = callers(self.cluster.addresses())?;
            callers.rotate_left(self.leader_number().await.unwrap_or_default());
            Ok(callers)
        };
        self.callers.get(number, make).await
    }

    async fn new_client(&self, number: usize, goes_on: bool) -> Result<EtcdClient, BenchProblem> {
        let calls = Calls { nodes: self.callers(number).await?, at: 0, goes_on, is_in_doubt: false };
        let mut client = EtcdClient { calls, way: self.way, leases: Vec::new(), held: None };
        client.add_lease(LONG_TTL).await?;
        Ok(client)
    }
}

impl System for Etcd {
    fn client(&self, number: usize) -> SystemAnswer<'_, Box<dyn LockClient>> {
        async move { Ok(Box::new(self.new_client(number, false).await?) as Box<dyn LockClient>) }.boxed()
    }

    fn persistent_client(&self) -> SystemAnswer<'_, Box<dyn LockClient>> {
        async move { Ok(Box::new(self.new_client(0, true).await?) as Box<dyn LockClient>) }.boxed()
    }

    fn count_held<'a>(&'a self, prefix: &'a str) -> SystemAnswer<'a, usize> {
        async move {
            let mut range_end = prefix.as_bytes().to_vec();
            range_end.push(0xff);
            let range = wire::Range { key: prefix.into(), range_end, count_only: true };
            let leader = self.leader_number().await.unwrap_or_default();
            let found: Result<wire::EtcdFound, Status> = self.nodes[leader].call(wire::RANGE, &range).await;
            let count = found.map_err(|status| failed(&status))?.count;
            Ok(usize::try_from(count).unwrap_or_default())
        }
        .boxed()
    }

    fn leader(&self) -> SystemAnswer<'_, Option<String>> {
        async move { Ok(self.leader_number().await.map(|number| format!("etcd-{}", number + 1))) }.boxed()
    }

    fn is_whole(&self) -> SystemAnswer<'_, bool> {
        async move {
            let statuses: Option<Vec<wire::NodeStatus>> = self.statuses().await.into_iter().collect();
            let Some(statuses) = statuses else { return Ok(false) };
            let first = statuses.iter().map(|status| status.raft_index).max().unwrap_or_default();
            let has_leader = statuses.iter().all(|status| status.leader != 0);
            Ok(has_leader && statuses.iter().all(|status| status.raft_index + LAG_MAX >= first))
        }
        .boxed()
    }

    fn nodes(&self) -> usize {
        self.nodes.len()
    }

    fn cluster(&self) -> &Arc<Cluster> {
        &self.cluster
    }
}

/// Makes calls at one node; if it is to go on whatever happens, at the next when there is no answer.
struct Calls {
    nodes: Vec<UnaryCaller>,
    at: usize,
    goes_on: bool,
    /// Some try was not answered. There are no request ids: it may still be carried out, at any time.
    is_in_doubt: bool,
}

impl Calls {
    /// Gives also whether an earlier try may have been carried out, or may yet be.
    async fn call<A>(
        &mut self,
        path: &'static str,
        request: impl prost::Message,
        wait: Duration,
    ) -> Result<(A, bool), BenchProblem>
    where
        A: prost::Message + Default,
    {
        let deadline = Instant::now() + PATIENCE + wait;
        let patience = if self.goes_on { TRY } else { PATIENCE + wait };
        loop {
            let answer = timeout(patience, self.nodes[self.at].call(path, &request)).await;
            let status = match answer {
                Ok(Ok(answer)) => return Ok((answer, self.is_in_doubt)),
                Ok(Err(status)) => status,
                Err(_) => Status::deadline_exceeded("no answer in time"),
            };
            let is_passing =
                matches!(status.code(), Code::Unavailable | Code::DeadlineExceeded | Code::Unknown);
            if !self.goes_on || !is_passing || Instant::now() >= deadline {
                return Err(failed(&status));
            }
            self.is_in_doubt = true;
            self.at = (self.at + 1) % self.nodes.len();
            sleep(AGAIN).await;
        }
    }
}

struct EtcdClient {
    calls: Calls,
    way: Way,
    /// Its own, then those that it made in order to hold something.
    leases: Vec<i64>,
    /// The key that stands for what it holds.
    held: Option<Vec<u8>>,
}

impl EtcdClient {
    async fn add_lease(&mut self, ttl: Duration) -> Result<i64, BenchProblem> {
        let ttl = i64::try_from(ttl.as_secs()).unwrap_or(i64::MAX);
        let (made, _): (wire::LeaseGranted, _) =
            self.calls.call(wire::LEASE_GRANT, wire::LeaseGrant { ttl }, Duration::ZERO).await?;
        self.leases.push(made.id);
        Ok(made.id)
    }

    async fn create(&mut self, key: &[u8], lease: i64) -> Result<Option<u64>, BenchProblem> {
        let (done, is_in_doubt): (wire::TxnDone, _) =
            self.calls.call(wire::TXN, wire::Txn::create(key, lease), Duration::ZERO).await?;
        // A try without an answer may have created it: nobody else uses the name.
        if !done.succeeded && !is_in_doubt {
            let name = String::from_utf8_lossy(key);
            return Err(BenchProblem::wrong(format!(
                "etcd: {name} exists, and was not created or deleted since"
            )));
        }
        Ok(revision(done.header.as_ref()))
    }

    async fn lock(&mut self, name: &[u8], wait: Duration) -> Result<Option<u64>, BenchProblem> {
        let request = wire::EtcdLock { name: name.to_vec(), lease: self.leases[0] };
        let (locked, _): (wire::Locked, _) = self.calls.call(wire::LOCK, request, wait).await?;
        self.held = Some(locked.key);
        Ok(revision(locked.header.as_ref()))
    }
}

impl LockClient for EtcdClient {
    fn acquire<'a>(&'a mut self, lock: &'a str, wait: Duration) -> SystemAnswer<'a, Option<u64>> {
        async move {
            match self.way {
                Way::LockCall => self.lock(lock.as_bytes(), wait).await,
                Way::Transaction => {
                    let token = self.create(lock.as_bytes(), self.leases[0]).await?;
                    self.held = Some(lock.as_bytes().to_vec());
                    Ok(token)
                }
            }
        }
        .boxed()
    }

    fn release(&mut self) -> SystemAnswer<'_, ()> {
        async move {
            let Some(key) = self.held.take() else { return Ok(()) };
            if self.way == Way::LockCall {
                let unlocked = self.calls.call(wire::UNLOCK, wire::Delete { key }, Duration::ZERO);
                let _: (wire::Nothing, _) = unlocked.await?;
                return Ok(());
            }
            let deleted = self.calls.call(wire::DELETE, wire::Delete { key: key.clone() }, Duration::ZERO);
            let (done, is_in_doubt): (wire::Deleted, _) = deleted.await?;
            if done.deleted != 1 && !is_in_doubt {
                let name = String::from_utf8_lossy(&key);
                return Err(BenchProblem::wrong(format!("etcd: {name} was created, and is gone")));
            }
            Ok(())
        }
        .boxed()
    }

    fn hold<'a>(&'a mut self, lock: &'a str, ttl: Duration) -> SystemAnswer<'a, HeldLock> {
        async move {
            let lease = self.add_lease(ttl).await?;
            let token = self.create(lock.as_bytes(), lease).await?;
            Ok(HeldLock { token, lease: u64::try_from(lease).ok() })
        }
        .boxed()
    }

    fn close(mut self: Box<Self>) -> SystemAnswer<'static, ()> {
        async move {
            for id in std::mem::take(&mut self.leases) {
                let revoked = self.calls.call(wire::LEASE_REVOKE, wire::LeaseRevoke { id }, Duration::ZERO);
                let _: (wire::Nothing, _) = revoked.await?;
            }
            Ok(())
        }
        .boxed()
    }
}

/// A revision rises with every change of the store: whoever creates a key later has a higher one.
fn revision(header: Option<&wire::EtcdHeader>) -> Option<u64> {
    u64::try_from(header?.revision).ok()
}

fn failed(status: &Status) -> BenchProblem {
    BenchProblem::failed(format!("etcd: {}", status.message()))
}
