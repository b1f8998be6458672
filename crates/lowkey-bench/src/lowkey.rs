//! lowkey as a contender: a cluster that is started here or was running before, asked by single gRPC calls or by way
//! of the SDK.

mod conversation;
mod credentials;
mod node_channel;
mod sdk;
mod setup;
mod unary;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use lowkey_api::v1::GetStatusResponse;
use lowkey_client::Client;
use tokio::time::{Instant, sleep};

use crate::caller::UnaryCaller;
use crate::process::{Cluster, Starter, forget_settings, free_ports};
use crate::slots::Slots;
use crate::system::{BenchProblem, Contender, LockClient, System, SystemAnswer};
use crate::workload::Workload;

pub(crate) use conversation::{Conversation, renew_all};
pub use credentials::Credentials;
pub(crate) use node_channel::NodeChannel;
pub use setup::Setup;
pub(crate) use unary::tag;

/// How long nodes may take to come together, and calls to be answered.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long a cluster that was not started here may take to answer.
const FOREIGN_PATIENCE: Duration = Duration::from_secs(3);
const LOOK_INTERVAL: Duration = Duration::from_millis(20);
/// A lease that nobody renews and that outlives every turn: the longest there is.
const LONG_TTL: Duration = Duration::from_secs(600);
/// A node that is not further behind than this has caught up.
const LAG_MAX: u64 = 100;

/// The way that requests take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Through {
    /// A gRPC call for each.
    Unary,
    /// The SDK, by its session stream.
    Session,
}

impl Through {
    /// What it is called.
    pub fn name(self) -> &'static str {
        match self {
            Self::Unary => "unary",
            Self::Session => "session",
        }
    }
}

/// Where lowkey is to be found.
#[derive(Clone, Debug)]
pub enum LowkeyAt {
    /// It is running, and reached by these gRPC URLs by who shows this.
    Running(Vec<String>, Credentials),
    /// It is to be started: the program.
    Own(PathBuf),
}

/// lowkey, to be started and connected to.
#[derive(Clone, Debug)]
pub(crate) struct LowkeyContender {
    pub(crate) place: LowkeyAt,
    pub(crate) through: Through,
    /// How its nodes are set up, if they are started here.
    pub(crate) setup: Setup,
}

impl Contender for LowkeyContender {
    fn name(&self) -> String {
        let name = match self.through {
            Through::Unary => "lowkey",
            Through::Session => "lowkey session",
        };
        format!("{name}{}", self.setup.suffix())
    }

    fn sits_out(&self, workload: Workload, nodes: usize) -> Option<String> {
        match (workload, &self.place) {
            (Workload::Outage, LowkeyAt::Running(..)) => {
                Some("it kills a node, and only those that it started itself".to_owned())
            }
            (Workload::Scale | Workload::Churn, LowkeyAt::Running(..)) => {
                Some("it looks at the memory of a node, and only of those that it started itself".to_owned())
            }
            (Workload::Outage, LowkeyAt::Own(_)) if nodes < 3 => {
                Some(format!("{nodes} of {nodes} nodes would be gone; it needs --nodes 3"))
            }
            _ => None,
        }
    }

    fn start(&self, starter: &Starter, nodes: usize) -> Result<Cluster, BenchProblem> {
        let program = match &self.place {
            LowkeyAt::Running(endpoints, _) => return Ok(Cluster::running(endpoints.clone())),
            LowkeyAt::Own(program) => program,
        };
        let mut cluster = Cluster::new(starter, "lowkey")?;
        self.setup.prepare(program, cluster.folder())?;
        let scheme = if self.setup.has_tls() { "https" } else { "http" };
        let mut first_node: Option<String> = None;
        for number in 1..=nodes {
            let name = format!("node-{number}");
            let [raft, grpc, http] = free_ports()?.map(|port| format!("127.0.0.1:{port}"));
            let mut command = (starter.command)(program);
            command.args(["server", "--log", "warn", "--node-id", &name]);
            command.arg("--data-dir").arg(cluster.folder().join(&name));
            command.args(["--raft-addr", &raft, "--grpc-addr", &grpc, "--http-addr", &http]);
            match &first_node {
                None => command.arg("--bootstrap"),
                Some(first) => command.args(["--join", first.as_str()]),
            };
            self.setup.arm(&mut command, cluster.folder());
            // What is set for other nodes of this machine is not meant for these.
            forget_settings(&mut command, "LOWKEY_");
            cluster.add(&name, format!("{scheme}://{grpc}"), command)?;
            first_node.get_or_insert(grpc);
        }
        Ok(cluster)
    }

    /// Sessions of one program share its stream.
    fn connections(&self, clients: usize) -> usize {
        match self.through {
            Through::Unary => clients,
            Through::Session => 1,
        }
    }

    fn connect(&self, cluster: Arc<Cluster>, connections: usize) -> SystemAnswer<'_, Box<dyn System>> {
        async move {
            let mut credentials = match &self.place {
                LowkeyAt::Running(_, credentials) => credentials.clone(),
                LowkeyAt::Own(_) => self.setup.credentials(cluster.folder()),
            };
            if self.setup == Setup::Access {
                let open = Lowkey::connect(Arc::clone(&cluster), self.through, credentials, connections);
                drop(open.await?);
                credentials = self.setup.require_access(&cluster).await?;
            }
            let system = Lowkey::connect(cluster, self.through, credentials, connections).await?;
            Ok(Box::new(system) as Box<dyn System>)
        }
        .boxed()
    }
}

/// A cluster of lowkey that is up.
pub struct Lowkey {
    cluster: Arc<Cluster>,
    through: Through,
    credentials: Credentials,
    /// Who the clients prove to be; nobody if it is empty.
    principal: String,
    nodes: usize,
    /// For questions about the cluster.
    client: Client,
    callers: Slots<Vec<UnaryCaller>>,
    channels: Slots<NodeChannel>,
    clients: Slots<Client>,
}

impl Lowkey {
    async fn connect(
        cluster: Arc<Cluster>,
        through: Through,
        credentials: Credentials,
        connections: usize,
    ) -> Result<Self, BenchProblem> {
        // Nodes that were just started may take a while; one that is said to be running answers, or is not there.
        let patience = if cluster.is_foreign() { FOREIGN_PATIENCE } else { PATIENCE };
        let builder = credentials.builder(cluster.addresses());
        let client = tokio::select! {
            connected = builder.connect_timeout(patience).connect() => {
                connected.map_err(|error| from_sdk(&error))?
            }
            problem = ended(&cluster) => return Err(problem),
        };
        let slots = (Slots::new(connections), Slots::new(connections), Slots::new(connections));
        let (callers, channels, clients) = slots;
        let (principal, nodes) = (String::new(), 0);
        let mut lowkey =
            Self { cluster, through, credentials, principal, nodes, client, callers, channels, clients };
        lowkey.wait_whole(patience).await?;
        if lowkey.credentials.prove_somebody() {
            lowkey.principal = lowkey.client.who_am_i().await.map_err(|error| from_sdk(&error))?.principal;
        }
        lowkey.nodes = usize::try_from(lowkey.status().await?.cluster_size).unwrap_or_default();
        Ok(lowkey)
    }

    async fn wait_whole(&self, patience: Duration) -> Result<(), BenchProblem> {
        let deadline = Instant::now() + patience;
        while !self.is_whole().await? {
            self.cluster.check()?;
            if Instant::now() >= deadline {
                return Err(BenchProblem::failed(match self.cluster.is_foreign() {
                    true => {
                        format!("the cluster has had no leader for {patience:?}: are most of its nodes up?")
                    }
                    false => format!(
                        "the nodes of lowkey did not come together in {patience:?}; is the machine very busy?"
                    ),
                }));
            }
            sleep(LOOK_INTERVAL).await;
        }
        Ok(())
    }

    /// How the cluster sees itself.
    pub(crate) async fn status(&self) -> Result<GetStatusResponse, BenchProblem> {
        self.client.status().await.map_err(|error| from_sdk(&error))
    }

    /// For questions about the cluster.
    pub(crate) fn sdk(&self) -> &Client {
        &self.client
    }

    /// A new client of the SDK, with a connection of its own.
    pub(crate) async fn new_sdk_client(&self) -> Result<Client, BenchProblem> {
        let builder = self.credentials.builder(self.cluster.addresses()).connect_timeout(PATIENCE);
        builder.call_timeout(PATIENCE).connect().await.map_err(|error| from_sdk(&error))
    }

    /// The addresses of all nodes, the leader's first.
    async fn addresses(&self) -> Result<Vec<String>, BenchProblem> {
        let leader = self.status().await?.leader_address;
        let mut addresses = self.cluster.addresses().to_vec();
        addresses.sort_by_key(|address| !address.ends_with(&format!("//{leader}")));
        Ok(addresses)
    }

    /// One of the connections that clients share, to each node, the leader's first.
    async fn callers(&self, number: usize) -> Result<Vec<UnaryCaller>, BenchProblem> {
        let make = async {
            let shown = self.credentials.shown(self.cluster.addresses())?;
            self.addresses().await?.iter().map(|address| UnaryCaller::new(address, shown.clone())).collect()
        };
        self.callers.get(number, make).await
    }

    /// The same for streams, to the leader.
    pub(crate) async fn channel(&self, number: usize) -> Result<NodeChannel, BenchProblem> {
        let make = async {
            let shown = self.credentials.shown(self.cluster.addresses())?;
            NodeChannel::new(&self.addresses().await?[0], shown, self.owner())
        };
        self.channels.get(number, make).await
    }

    /// A new name for an owner of leases.
    fn owner(&self) -> String {
        let name = format!("bench-{}", tag());
        if self.principal.is_empty() { name } else { format!("{}/{name}", self.principal) }
    }

    async fn shared_sdk_client(&self, number: usize) -> Result<Client, BenchProblem> {
        self.clients.get(number, self.new_sdk_client()).await
    }
}

impl System for Lowkey {
    fn client(&self, number: usize) -> SystemAnswer<'_, Box<dyn LockClient>> {
        async move {
            let client: Box<dyn LockClient> = match self.through {
                Through::Unary => {
                    let callers = self.callers(number).await?;
                    Box::new(unary::UnaryClient::new(callers, self.owner(), LONG_TTL).await?)
                }
                Through::Session => {
                    Box::new(sdk::SdkClient::new(self.shared_sdk_client(number).await?, LONG_TTL).await?)
                }
            };
            Ok(client)
        }
        .boxed()
    }

    fn persistent_client(&self) -> SystemAnswer<'_, Box<dyn LockClient>> {
        async move {
            let client = sdk::SdkClient::new(self.new_sdk_client().await?, LONG_TTL).await?;
            Ok(Box::new(client) as Box<dyn LockClient>)
        }
        .boxed()
    }

    fn count_held<'a>(&'a self, prefix: &'a str) -> SystemAnswer<'a, usize> {
        async move {
            let (locks, _) = self.client.locks(prefix).await.map_err(|error| from_sdk(&error))?;
            Ok(locks.iter().filter(|lock| !lock.holders.is_empty()).count())
        }
        .boxed()
    }

    fn leader(&self) -> SystemAnswer<'_, Option<String>> {
        async move {
            if self.cluster.is_foreign() {
                return Ok(None);
            }
            Ok(Some(self.status().await?.leader_id).filter(|leader| !leader.is_empty()))
        }
        .boxed()
    }

    fn is_whole(&self) -> SystemAnswer<'_, bool> {
        async move {
            let status = self.status().await?;
            if self.cluster.is_foreign() {
                return Ok(!status.leader_id.is_empty());
            }
            let nodes = self.cluster.addresses().len();
            let is_up_to_date = status.members.iter().all(|member| member.reachable && member.lag <= LAG_MAX);
            let size = usize::try_from(status.cluster_size).unwrap_or_default();
            Ok(status.is_leader && size == nodes && (nodes == 1 || is_up_to_date))
        }
        .boxed()
    }

    fn nodes(&self) -> usize {
        self.nodes
    }

    fn cluster(&self) -> &Arc<Cluster> {
        &self.cluster
    }

    fn lowkey(&self) -> Option<&Lowkey> {
        Some(self)
    }
}

/// Resolves when a process ended that should not have.
async fn ended(cluster: &Cluster) -> BenchProblem {
    loop {
        if let Err(problem) = cluster.check() {
            return problem;
        }
        sleep(LOOK_INTERVAL).await;
    }
}

/// What an error of the SDK means for a run.
pub(crate) fn from_sdk(error: &lowkey_client::Error) -> BenchProblem {
    BenchProblem::failed(error.to_string())
}
