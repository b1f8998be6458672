//! A node from its start to its end.

#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::HeaderValue;
use lowkey_api::v1::AddPeerRequest;
use lowkey_core::{
    COMMAND_VERSION, ClusterId, Epoch, FirstNumbers, GroupId, MemberId, NewBeginning, NodeInfo, State,
};
use lowkey_replica::forming::{Belongs, Memory};
use lowkey_replica::{Found, Founding, Replica, Status, begin_anew, found};
use lowkey_wal::WalError;
use tokio::net::TcpListener;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use crate::audit::Audit;
use crate::backups::{Backups, Bounds};
use crate::config::Config;
use crate::dial::Dialer;
use crate::edge::budget::Budget;
use crate::edge::http::Gate;
use crate::edge::serve::{ServeLimits, serve, serve_peers};
use crate::edge::tls::Tls;
use crate::edge::{self, Node as _};
use crate::error::StartError;
use crate::forming::{self, Voice};
use crate::host::Host;
use crate::host::clock::Clock;
use crate::join::{self, Problem};
use crate::lane::driver::Driver;
use crate::lane::inbox::{Event, Inbox};
use crate::lane::view::View;
use crate::lane::{Lane, Lanes, snapshot_maker, turns};
use crate::metrics::{Metrics, Observed, ReplicaMetrics};
use crate::node_key::NodeKey;
use crate::operation::parse_address;
use crate::peers::known::Known;
use crate::peers::tls::PeerTls;
use crate::peers::{self, Forwarders, Hello, Links};
use crate::random_bytes;
use crate::service::Service;
use crate::storage::{DataDirectory, Opened, SnapshotFiles};
use crate::watch::{Hub, HubFeed};

/// How long a stopping leader may take to hand over the lead. This, the ports' own time to end
/// ([`ServeLimits::shutdown_timeout`]) and the next two add up to less than 5 s.
const HAND_OVER_WAIT: Duration = Duration::from_millis(1000);
/// How long streams between nodes may take to end.
const PART_WAIT: Duration = Duration::from_millis(300);
/// How long the log may take to be closed.
const CLOSE_WAIT: Duration = Duration::from_millis(1000);
/// How long the audit may take to write its last rows.
const AUDIT_WAIT: Duration = Duration::from_millis(1000);
/// How long a removed node stays up to tell its callers that it was removed.
const REMOVED_WAIT: Duration = Duration::from_secs(1);
/// How often a node checks whether the others know where it can be reached.
const ANNOUNCE_INTERVAL: Duration = Duration::from_millis(500);

/// How often a node that was told of others looks before it says that it hears from none.
const ALONE_ROUNDS: u32 = 10;
/// The command set that keys of nodes are part of.
const KEYS_VERSION: u32 = 6;

/// The revision of a cluster in which nothing has happened yet.
const FOUNDING_REVISION: u64 = 1;

/// The term of what is on disk before the first election.
const FOUNDING_TERM: u64 = 1;

/// A running node.
pub struct RunningNode {
    service: Arc<Service>,
    host: Arc<Host>,
    open: OpenPorts,
    ended: turns::Ended,
    about: About,
    tls: Option<Arc<Tls>>,
    /// The directory's lock is held for as long as the node runs.
    _directory: DataDirectory,
}

/// What a person who started a node wants to see.
#[derive(Clone, Debug)]
pub struct About {
    /// The node's name.
    pub node_name: String,
    /// The cluster's id.
    pub cluster_id: String,
    /// What the start did, for example `founded a new cluster`.
    pub how: &'static str,
    /// Where it listens for peers.
    pub raft: SocketAddr,
    /// Where it listens for gRPC.
    pub grpc: SocketAddr,
    /// Where it listens for HTTP.
    pub http: SocketAddr,
    /// Whether both of these are encrypted.
    pub has_tls: bool,
}

/// Why a node ends by itself.
#[derive(Debug)]
pub enum Ended {
    /// Something failed.
    Failed(StartError),
    /// The node was removed from its cluster. It can only stop.
    Removed,
}

/// The three ports, bound before anything else: a port that is already in use is found at once.
struct Ports {
    raft: TcpListener,
    grpc: TcpListener,
    http: TcpListener,
}

/// The same ports, once they are served.
struct OpenPorts {
    clients: [JoinHandle<()>; 2],
    peers: JoinHandle<()>,
    /// Stops the clients' ports. This comes later than `Service::stopping`, which ends their streams.
    stop_clients: watch::Sender<bool>,
}

/// Starts a node, and returns it once it serves.
pub async fn start(config: Config) -> Result<RunningNode, StartError> {
    if config.bootstrap && config.join_token.is_some() {
        let problem =
            "an invitation is for a node that joins, and --bootstrap founds: leave one of them away".into();
        return Err(StartError::Flag { flag: "--join-token-file", problem });
    }
    if config.cluster_of.is_some() && (config.bootstrap || config.join.is_empty()) {
        let problem =
            "with it, --join names all nodes that found the cluster, and --bootstrap is left away".into();
        return Err(StartError::Flag { flag: "--cluster-of", problem });
    }
    if config.after_total_loss && !config.bootstrap {
        let problem = "is about the cluster that --bootstrap founds: add that, or leave this away".into();
        return Err(StartError::Flag { flag: "--after-total-loss", problem });
    }
    for address in &config.join {
        parse_address("join", address)
            .map_err(|invalid| StartError::Flag { flag: "--join", problem: invalid.problem })?;
    }
    let tls = config.tls.clone().map(Tls::read).transpose()?.map(Arc::new);
    let ports = Ports {
        raft: listen("--raft-addr", config.raft_listen).await?,
        grpc: listen("--grpc-addr", config.grpc_listen).await?,
        http: listen("--http-addr", config.http_listen).await?,
    };
    let directory = DataDirectory::open(&config.data_dir, config.node_name.as_ref())?;
    start_in(config, tls, ports, directory).await
}

async fn start_in(
    config: Config,
    tls: Option<Arc<Tls>>,
    ports: Ports,
    mut directory: DataDirectory,
) -> Result<RunningNode, StartError> {
    let mut ports = ports;
    let mut key = NodeKey::open(&directory.path)?;
    let info = describe(&config, &ports, &directory, &key)?;
    let dialer = Dialer::new(tls.clone());
    let world = World { config: &config, dialer: &dialer, tls: &tls, ports: &mut ports };
    let how = settle_membership(world, &mut directory, &mut key, &info).await?;
    let Some((cluster, member)) = directory.node.membership else {
        return Err(StartError::NothingToDo { path: directory.path });
    };
    run(config, tls, ports, directory, Own { info, key, cluster, member }, how)
}

async fn listen(flag: &'static str, address: SocketAddr) -> Result<TcpListener, StartError> {
    TcpListener::bind(address)
        .await
        .map_err(|source| StartError::Io { doing: format!("{flag}: cannot listen on {address}"), source })
}

fn local(listener: &TcpListener) -> Result<SocketAddr, StartError> {
    listener
        .local_addr()
        .map_err(|source| StartError::Io { doing: "cannot read a port's own address".into(), source })
}

/// The node as it describes itself to others.
fn describe(
    config: &Config,
    ports: &Ports,
    directory: &DataDirectory,
    key: &NodeKey,
) -> Result<NodeInfo, StartError> {
    let address =
        |flag: &'static str, field, wished: &Option<String>, listener| -> Result<String, StartError> {
            let address = match wished {
                Some(address) => address.clone(),
                None => reachable(local(listener)?),
            };
            parse_address(field, &address)
                .map_err(|invalid| StartError::Flag { flag, problem: invalid.problem })
        };
    Ok(NodeInfo {
        name: directory.node.name.clone(),
        identity: Some(directory.node.identity),
        raft_address: address("--advertise-raft-addr", "raft_address", &config.raft_advertise, &ports.raft)?,
        grpc_address: address("--advertise-grpc-addr", "grpc_address", &config.grpc_advertise, &ports.grpc)?,
        http_address: address("--advertise-http-addr", "http_address", &config.http_advertise, &ports.http)?,
        command_version: COMMAND_VERSION,
        key_hash: Some(key.hash),
    })
}

/// An address that others can dial. "All interfaces" is not one, so the host's name is used instead.
fn reachable(listening: SocketAddr) -> String {
    if !listening.ip().is_unspecified() {
        return listening.to_string();
    }
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let address = format!("{host}:{}", listening.port());
    tracing::warn!(
        %listening, %address,
        "listening on all interfaces and telling others the host's name; if they cannot resolve it, use --advertise-…"
    );
    address
}

/// What a node without a cluster has to find one with.
struct World<'a> {
    config: &'a Config,
    dialer: &'a Dialer,
    tls: &'a Option<Arc<Tls>>,
    ports: &'a mut Ports,
}

/// Founds or joins a cluster if the directory does not belong to one yet.
async fn settle_membership(
    world: World<'_>,
    directory: &mut DataDirectory,
    key: &mut NodeKey,
    info: &NodeInfo,
) -> Result<&'static str, StartError> {
    let World { config, dialer, tls, ports } = world;
    if directory.node.membership.is_some() {
        return Ok("came back");
    }
    if let Belongs::Founded(plan) = directory.node.forming.belongs.clone() {
        // It was decided, and the node ended before all of it was on disk.
        forming::found(directory, &plan)?;
        return Ok("founded a new cluster with the others");
    }
    if config.bootstrap && directory.node.forming != Memory::default() {
        return Err(StartError::MayHaveCluster { path: directory.path.clone() });
    }
    if !config.bootstrap && config.join.is_empty() && config.join_token.is_none() {
        return Err(StartError::NothingToDo { path: directory.path.clone() });
    }
    directory.keep_identity()?;
    key.keep()?;
    let asking = (info, config.raft_tick);
    if let Some(form) = &config.cluster_of {
        let listeners = [&mut ports.grpc, &mut ports.http];
        let join = async |directory: &mut DataDirectory| {
            let joined = match &config.join_token {
                Some(token) => join::join_invited(token, asking, &Arc::new(PeerTls::new(key)?)).await?,
                None => join::join(dialer, &config.join, asking).await?,
            };
            directory.join(joined)
        };
        return forming::form(
            (form, config.raft_tick),
            (&config.join, dialer),
            (listeners, tls.clone()),
            (directory, info),
            join,
        )
        .await;
    }
    if let Some(token) = &config.join_token {
        let tls = Arc::new(PeerTls::new(key)?);
        directory.join(join::join_invited(token, asking, &tls).await?)?;
        return Ok("joined the cluster");
    }
    if config.bootstrap && !join::any_has_cluster(dialer, &config.join).await? {
        let cluster = ClusterId(random_bytes()?);
        if config.after_total_loss {
            directory.found(cluster, &found_after_total_loss(cluster, info)?)?;
            return Ok("founded a new cluster after a total loss");
        }
        directory.found(cluster, &found(GroupId::ROOT, cluster, info.clone()))?;
        return Ok("founded a new cluster");
    }
    directory.join(join::join(dialer, &config.join, asking).await?)?;
    Ok("joined the cluster")
}

/// The first things on disk of a cluster in place of one of which nothing is left: above its tokens, by the clock.
fn found_after_total_loss(cluster: ClusterId, info: &NodeInfo) -> Result<Founding, StartError> {
    let flag = |problem: String| StartError::Flag { flag: "--after-total-loss", problem };
    let epoch = Epoch::after_total_loss(unix_ms() / 60_000).map_err(|spent| flag(spent.to_string()))?;
    tracing::warn!(
        %epoch,
        "this cluster begins after a total loss: its tokens begin at its epoch, by the clock of this machine alone; if that \
         is wrong, or if another cluster is founded like this within 17 hours, the tokens of the two may be the same"
    );
    let beginning = NewBeginning {
        cluster,
        node: info.clone(),
        numbers: FirstNumbers::Claimed(epoch),
        keep_tokens: false,
        quarantine: true,
    };
    begin_anew(&State::new(cluster), FOUNDING_TERM, beginning)
        .map_err(|_| flag("the clock of this machine is wrong: set it right, and try again".into()))
}

/// Who this node is, and where it belongs.
struct Own {
    info: NodeInfo,
    key: NodeKey,
    cluster: ClusterId,
    member: MemberId,
}

fn run(
    config: Config,
    tls: Option<Arc<Tls>>,
    ports: Ports,
    directory: DataDirectory,
    own: Own,
    how: &'static str,
) -> Result<RunningNode, StartError> {
    let Own { info, mut key, cluster, member } = own;
    let about = About {
        node_name: info.name.to_string(),
        cluster_id: cluster.to_string(),
        how,
        raft: local(&ports.raft)?,
        grpc: local(&ports.grpc)?,
        http: local(&ports.http)?,
        has_tls: tls.is_some(),
    };
    let hello = Arc::new(Hello {
        cluster,
        own: member,
        identity: directory.node.identity,
        raft_address: info.raft_address.clone(),
        raft_tick: config.raft_tick,
        tls: Arc::new(PeerTls::new(&key)?),
        known: Known::new(directory.node.known.iter().cloned()),
    });
    let stopping = watch::Sender::new(false);
    let Opened { wal, found } = directory.open_log()?;
    let clock = Clock::new();
    let (root, replica, feed) = root_lane(&config, &directory, (cluster, member), found, &stopping)?;
    let applied = replica.state().revision();
    check_own_key(&root.view.status(), &hello, &directory)?;
    // A node of the version before has none yet.
    key.keep()?;
    let lanes = Lanes::new(Arc::clone(&root));
    let forwarders = Forwarders::default();
    let runtime = tokio::runtime::Handle::current();
    let links = Links::new(Arc::clone(&hello), lanes.clone(), runtime, forwarders.clone());
    let replica_metrics = ReplicaMetrics::new();
    // Memory that is kept for clients is counted together, on every port.
    let budget = Arc::new(Budget::new(config.limits.memory));
    let audit = Audit::start(config.audit, &directory.path, cluster, applied).map_err(no_thread)?;
    let identity = (cluster, info.name.to_string());
    let trusts_network = config.insecure || listens_on_loopback(&config);
    let bounds = Bounds { flags: config.backup.clone(), trusts_network };
    let backups = Backups::start(bounds, identity, lanes.clone(), stopping.subscribe());
    let backups = backups.map_err(no_thread)?;
    let observed = Observed {
        lanes: lanes.clone(),
        budget: Arc::clone(&budget),
        tls: tls.clone(),
        audit: audit.clone(),
        backups: Arc::clone(&backups.told),
        clock,
    };
    let metrics = Metrics::new(&replica_metrics, observed);
    let host = Host::start(clock, wal, links, replica_metrics, directory.path.clone()).map_err(no_thread)?;
    let snapshot_jobs = snapshot_maker::start(Arc::clone(&root), audit.clone()).map_err(no_thread)?;
    let driver =
        Driver { host: Arc::clone(&host), lane: root, replica, snapshot_jobs, feed, audit: audit.clone() };
    let ended = turns::start(driver)?;
    let service = Arc::new(Service {
        node_name: info.name.to_string(),
        cluster_header: HeaderValue::try_from(cluster.to_string())
            .map_err(|error| StartError::Replica(format!("the cluster's id fits no header: {error}")))?,
        hello,
        lanes,
        forwarders,
        metrics,
        backups,
        clock,
        audit,
        stopping,
        parting: watch::Sender::new(false),
        renewed_together: AtomicUsize::new(0),
        trusts_network,
    });
    let join = config.join.clone();
    let memory = &directory.node.forming;
    let voice = |form| Voice::of_member(form, config.raft_tick, info.clone(), cluster, memory);
    let voice = config.cluster_of.as_ref().map(voice);
    let open = open_ports(config, ports, &info, &service, (budget, tls.clone(), voice))?;
    tokio::spawn(announce(Arc::clone(&service), info, join, Dialer::new(tls.clone())));
    Ok(RunningNode { service, host, open, ended, about, tls, _directory: directory })
}

/// A node whose key is not the one that it is registered with would be believed by nobody.
fn check_own_key(status: &Status, hello: &Hello, directory: &DataDirectory) -> Result<(), StartError> {
    let own = status.members.iter().find(|member| member.member == hello.own);
    match own.and_then(|own| own.node.key_hash) {
        Some(registered) if registered != hello.tls.own => Err(StartError::OtherKey {
            path: directory.path.clone(),
            node_name: directory.node.name.to_string(),
        }),
        _ => Ok(()),
    }
}

/// True if only this machine can reach the node.
fn listens_on_loopback(config: &Config) -> bool {
    [config.raft_listen, config.grpc_listen, config.http_listen]
        .iter()
        .all(|address| address.ip().is_loopback())
}

fn no_thread(source: std::io::Error) -> StartError {
    StartError::Io { doing: "cannot start a thread".into(), source }
}

/// The root group, as it is on disk.
fn root_lane(
    config: &Config,
    directory: &DataDirectory,
    (cluster, member): (ClusterId, MemberId),
    found: Found,
    stopping: &watch::Sender<bool>,
) -> Result<(Arc<Lane>, Replica, HubFeed), StartError> {
    let seed = u64::from_le_bytes(random_bytes()?);
    let usual = lowkey_replica::Config::new(GroupId::ROOT, member, seed);
    let quarantine = config.quarantine.map(|time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
    let replica_config = lowkey_replica::Config {
        unix_ms_at_zero: unix_ms(),
        leases_max: config.leases_max,
        raft_tick: config.raft_tick,
        quarantine_nanos: quarantine.unwrap_or(usual.quarantine_nanos),
        ..usual
    };
    let replica =
        Replica::recover(replica_config, cluster, found).map_err(|error| directory.unusable(error))?;
    let view = View::new(replica.status());
    let applied = replica.state().revision();
    let (hub, feed) = watch_hub(applied, config.watch_streams_max, view.leadership(), stopping.subscribe());
    let lane = Lane {
        group: GroupId::ROOT,
        inbox: Inbox::default(),
        view,
        hub,
        snapshot_files: SnapshotFiles::new(GroupId::ROOT, Arc::clone(&directory.disk)),
    };
    Ok((Arc::new(lane), replica, feed))
}

/// Begins to serve on all ports.
fn open_ports(
    config: Config,
    ports: Ports,
    info: &NodeInfo,
    service: &Arc<Service>,
    (budget, tls, voice): (Arc<Budget>, Option<Arc<Tls>>, Option<Voice>),
) -> Result<OpenPorts, StartError> {
    let stop_clients = watch::Sender::new(false);
    // Between nodes, one connection carries everything.
    let peer_limits = ServeLimits {
        max_streams_per_connection: 1000,
        shutdown_timeout: PART_WAIT,
        ..ServeLimits::default()
    };
    let peer_router = peers::router(Arc::clone(service), &info.grpc_address, &info.http_address);
    let peer_tls = Arc::clone(&service.hello.tls);
    let peers = tokio::spawn(serve_peers(
        peer_tls,
        ports.raft,
        peer_router,
        peer_limits,
        service.parting.subscribe(),
    ));
    let grpc_port = edge::grpc::port(Arc::clone(service), info.http_address.as_str())
        .map_err(|error| StartError::Replica(format!("gRPC reflection cannot be set up: {error}")))?
        .with(voice);
    let addresses = [&info.http_address, &info.grpc_address, &info.raft_address];
    let gate = Gate::new(addresses.map(String::as_str), config.http_hosts, config.http_origins);
    let http_router = edge::http::router(Arc::clone(service), info.grpc_address.as_str(), gate);
    tokio::spawn(Arc::clone(service.guard()).keep(service.stopping.subscribe()));
    if config.metrics_open {
        service.guard().open_metrics();
    }
    match edge::admin::bind(&config.data_dir) {
        Ok(socket) => {
            tokio::spawn(edge::admin::serve(socket, grpc_port.clone(), service.stopping.subscribe()));
        }
        Err(error) => tracing::warn!(
            %error,
            "there is no admin.sock in the data directory: lowkey access needs a token or a certificate here"
        ),
    }
    if let Some(tls) = &tls {
        tokio::spawn(Arc::clone(tls).keep(service.stopping.subscribe()));
    }
    let (limits, budget, stop) = (config.limits, Some(budget), || stop_clients.subscribe());
    let clients = [
        tokio::spawn(serve(ports.grpc, grpc_port, limits, budget.clone(), tls.clone(), stop())),
        tokio::spawn(serve(ports.http, http_router, limits, budget, tls, stop())),
    ];
    Ok(OpenPorts { clients, peers, stop_clients })
}

/// The hub of a node whose state is at this revision. What happened before will never be known here.
fn watch_hub(
    applied: u64,
    streams_max: usize,
    leadership: watch::Receiver<crate::lane::view::Leadership>,
    stopping: watch::Receiver<bool>,
) -> (Hub, HubFeed) {
    // The founding entry is the exception: every node has heard of it, and nothing happened in it.
    if applied == FOUNDING_REVISION {
        let (hub, mut feed) = Hub::start(0, streams_max, leadership, stopping);
        feed.applied(applied, Vec::new());
        return (hub, feed);
    }
    Hub::start(applied, streams_max, leadership, stopping)
}

/// The wall clock. It is used for display, and for the first values of the counters of a new beginning.
pub(crate) fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// The node as all members can understand it: keys are told when the last one is upgraded.
fn as_understood(info: &NodeInfo, status: &Status) -> NodeInfo {
    let come = status.members.iter().filter(|member| member.node.identity.is_some());
    let oldest = come.map(|member| member.node.command_version).min();
    let key_hash = info.key_hash.filter(|_| oldest.is_none_or(|oldest| oldest >= KEYS_VERSION));
    NodeInfo { key_hash, ..info.clone() }
}

/// Makes sure that the cluster knows this node, and where it can be reached now. That may change: when all nodes of a
/// cluster are upgraded, each tells its key.
async fn announce(service: Arc<Service>, info: NodeInfo, join: Vec<String>, dialer: Dialer) {
    let (mut rounds_alone, mut told_refused) = (0_u32, false);
    loop {
        sleep(ANNOUNCE_INTERVAL).await;
        let root = service.lanes.root();
        let status = root.view.status();
        let is_alone = status.members.is_empty() && join.is_empty();
        rounds_alone = if is_alone { rounds_alone.saturating_add(1) } else { 0 };
        // Those whose keys it was told when it joined are likely to call.
        let patience = if service.hello.known.has_keys(&status) { ALONE_ROUNDS } else { 1 };
        if rounds_alone == patience {
            tracing::warn!(
                "this node has joined, but knows no other node yet, and waits until one speaks to it; give it --join, so \
                 that it can ask"
            );
        }
        let known = status.members.iter().find(|member| member.member == root.view.own());
        let info = as_understood(&info, &status);
        if known.is_some_and(|known| *known.node == info) {
            continue;
        }
        // With its number: a removed node must not join again by announcing its address.
        let request = AddPeerRequest {
            member_id: root.view.own().0,
            ..join::request((&info, service.hello.raft_tick))
        };
        let outcome = if status.leader.is_some() {
            let request = service.guard().for_node(request);
            service.call(request).await.map(|_| ()).map_err(|error| Problem::of(&error, ""))
        } else {
            join::ask_any(&dialer, &join, &request).await.map(|_| ())
        };
        match outcome {
            Ok(()) => {}
            Err(Problem::Removed(_)) => return root.inbox.report(Event::Removed),
            Err(Problem::Final(problem)) => {
                if !std::mem::replace(&mut told_refused, true) {
                    tracing::warn!(problem, "the cluster does not take this node as it now says it is");
                }
            }
            Err(Problem::Passing(problem)) => {
                tracing::debug!(problem, "the cluster could not be told where this node is; trying again");
            }
        }
    }
}

impl RunningNode {
    /// What a person who started it wants to see.
    pub fn about(&self) -> &About {
        &self.about
    }

    /// Has the TLS files read again, if there are any.
    pub fn reload(&self) {
        if let Some(tls) = self.tls.clone() {
            // A disk that does not answer must not hold up the node.
            tokio::task::spawn_blocking(move || tls.reload());
        }
    }

    /// Resolves when the node ends by itself, with the reason.
    pub async fn ended(&mut self) -> Ended {
        let mut removed = self.service.lanes.root().view.removed();
        let failed = tokio::select! {
            failed = &mut self.ended => failed,
            _ = removed.wait_for(|removed| *removed) => {
                // Streams end, and their clients continue on other nodes. A client that calls at this
                // moment is told why.
                self.service.stopping.send_replace(true);
                sleep(REMOVED_WAIT).await;
                return Ended::Removed;
            }
        };
        Ended::Failed(match failed {
            Ok(Err(error)) => error,
            Ok(Ok(())) => StartError::Replica("the replica ended".into()),
            Err(_) => StartError::Replica("the replica is gone".into()),
        })
    }

    /// Hands over the lead, ends what is under way, closes the log.
    pub async fn stop(self) -> Result<(), StartError> {
        tracing::info!("stopping: handing over, ending what is under way");
        self.service.stopping.send_replace(true);
        self.hand_over().await;
        self.open.stop_clients.send_replace(true);
        for port in self.open.clients {
            // A port whose task failed is closed as well.
            let _ = port.await;
        }
        self.service.parting.send_replace(true);
        let _ = self.open.peers.await;
        self.service.lanes.report_all(|| Event::Stop);
        let closed = timeout(CLOSE_WAIT, close(self.ended, self.host)).await;
        if let Some(audit) = self.service.audit.clone() {
            end(audit).await;
        }
        match closed {
            // Everything is synced. Only the mark that says so does not fit.
            Ok(Err(StartError::Log(WalError::Full))) => {
                tracing::warn!(
                    "the disk is full: the log could not be marked as closed, and the next start will check it"
                );
                Ok(())
            }
            Ok(outcome) => outcome,
            Err(_) => Err(StartError::Replica(
                "the log could not be closed in time; the next start will check it".into(),
            )),
        }
    }

    async fn hand_over(&self) {
        for lane in self.service.lanes.all() {
            hand_over(lane).await;
        }
    }
}

/// Waits for the last turn, then closes the log in good order.
async fn close(ended: turns::Ended, host: Arc<Host>) -> Result<(), StartError> {
    let gone = || StartError::Replica("the replica is gone".into());
    ended.await.map_err(|_| gone())??;
    tokio::task::spawn_blocking(move || host.log.close()).await.map_err(|_| gone())??;
    Ok(())
}

/// Writes the rest of the audit, if that does not take long: what is missing is written again at the next start. On
/// a thread of its own, which the end of the process does not wait for.
async fn end(audit: Arc<Audit>) {
    let (told, ended) = oneshot::channel();
    let write = move || {
        audit.end();
        let _ = told.send(());
    };
    if std::thread::Builder::new().name("audit end".into()).spawn(write).is_ok() {
        let _ = timeout(AUDIT_WAIT, ended).await;
    }
}

/// Hands over the lead of a group, if this node has it.
async fn hand_over(lane: &Lane) {
    let own = lane.view.own();
    if !lane.leads() || lane.view.status().voters < 2 {
        return;
    }
    let mut leadership = lane.view.leadership();
    let started = Instant::now();
    lane.inbox.report(Event::Replica(lowkey_replica::Input::HandOver));
    let handed = leadership.wait_for(|leadership| leadership.leader.is_some_and(|leader| leader != own));
    match timeout(HAND_OVER_WAIT, handed).await {
        Ok(_) => tracing::info!(took = ?started.elapsed(), "handed over the lead"),
        Err(_) => tracing::warn!("nobody took over the lead in time; the others will elect a leader"),
    };
}
