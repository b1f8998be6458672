//! A node from its start to its end.

#[cfg(test)]
mod tests;

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::HeaderValue;
use lowkey_api::v1::AddPeerRequest;
use lowkey_core::{COMMAND_VERSION, ClusterId, MemberId, NodeInfo};
use lowkey_replica::{Replica, found};
use lowkey_wal::WalError;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};

use crate::clock::Clock;
use crate::config::Config;
use crate::driver::Driver;
use crate::edge::http::Gate;
use crate::edge::{self, Node as _, serve::ServeLimits, serve::serve};
use crate::error::StartError;
use crate::inbox::{Event, Inbox};
use crate::join::{self, Problem};
use crate::metrics::{Metrics, Observed, ReplicaMetrics};
use crate::operation::parse_address;
use crate::peers::{self, Forwarders, Hello, Links};
use crate::service::Service;
use crate::storage::{DataDirectory, GROUP, SnapshotFiles};
use crate::view::View;
use crate::watch::{Hub, HubFeed};
use crate::{housekeeper, random_bytes, snapshot_maker, turns};

/// How long a leader that stops may take to hand over. This, the ports' own time to end
/// ([`ServeLimits::shutdown_timeout`]) and the next two add up to less than 5 s.
const HAND_OVER_WAIT: Duration = Duration::from_millis(1000);
/// How long streams between nodes may take to end.
const PART_WAIT: Duration = Duration::from_millis(300);
/// How long the log may take to be closed.
const CLOSE_WAIT: Duration = Duration::from_millis(1000);
/// How long a node that was removed tells so to whoever calls.
const REMOVED_WAIT: Duration = Duration::from_millis(500);
/// How often a node looks whether the others know where it can be reached.
const ANNOUNCE_INTERVAL: Duration = Duration::from_millis(500);

/// The revision of a cluster in which nothing has happened yet.
const FOUNDING_REVISION: u64 = 1;

/// A node that runs.
pub struct RunningNode {
    service: Arc<Service>,
    client_ports: [JoinHandle<()>; 2],
    peer_port: JoinHandle<()>,
    ended: turns::Ended,
    /// Stops the clients' ports; later than `Service::stopping`, which ends their streams.
    stop_client_ports: watch::Sender<bool>,
    about: About,
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
    /// What the start did: `founded a new cluster`, say.
    pub how: &'static str,
    /// Where it listens for peers.
    pub raft: SocketAddr,
    /// Where it listens for gRPC.
    pub grpc: SocketAddr,
    /// Where it listens for HTTP.
    pub http: SocketAddr,
}

/// Why a node ends by itself.
#[derive(Debug)]
pub enum Ended {
    /// Something failed.
    Failed(StartError),
    /// It was removed from its cluster: there is nothing left to do but to stop.
    Removed,
}

/// The three ports, taken before anything else: a port that is taken is found at once.
struct Ports {
    raft: TcpListener,
    grpc: TcpListener,
    http: TcpListener,
}

/// Starts a node, and gives it back once it serves.
pub async fn start(config: Config) -> Result<RunningNode, StartError> {
    for address in &config.join {
        parse_address("join", address)
            .map_err(|invalid| StartError::Flag { flag: "--join", problem: invalid.problem })?;
    }
    let ports = Ports {
        raft: listen("--raft-addr", config.raft_listen).await?,
        grpc: listen("--grpc-addr", config.grpc_listen).await?,
        http: listen("--http-addr", config.http_listen).await?,
    };
    let directory = DataDirectory::open(&config.data_dir, config.node_name.as_ref())?;
    start_in(config, ports, directory).await
}

async fn start_in(
    config: Config,
    ports: Ports,
    mut directory: DataDirectory,
) -> Result<RunningNode, StartError> {
    let info = describe(&config, &ports, &directory)?;
    let how = settle_membership(&config, &mut directory, &info).await?;
    let Some((cluster, member)) = directory.node.membership else {
        return Err(StartError::NothingToDo { path: directory.path });
    };
    run(config, ports, directory, info, (cluster, member), how)
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
fn describe(config: &Config, ports: &Ports, directory: &DataDirectory) -> Result<NodeInfo, StartError> {
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
    })
}

/// An address that others can dial: all interfaces are not one, so the host's name stands in.
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

/// Founds or joins a cluster if the directory does not belong to one yet.
async fn settle_membership(
    config: &Config,
    directory: &mut DataDirectory,
    info: &NodeInfo,
) -> Result<&'static str, StartError> {
    if directory.node.membership.is_some() {
        return Ok("came back");
    }
    if !config.bootstrap && config.join.is_empty() {
        return Err(StartError::NothingToDo { path: directory.path.clone() });
    }
    directory.keep_identity()?;
    if config.bootstrap && !join::any_has_cluster(&config.join).await? {
        let cluster = ClusterId(random_bytes()?);
        directory.found(cluster, &found(cluster, info.clone()))?;
        return Ok("founded a new cluster");
    }
    let (cluster, member) = join::join(&config.join, info).await?;
    directory.join(cluster, member)?;
    Ok("joined the cluster")
}

fn run(
    config: Config,
    ports: Ports,
    directory: DataDirectory,
    info: NodeInfo,
    (cluster, member): (ClusterId, MemberId),
    how: &'static str,
) -> Result<RunningNode, StartError> {
    let opened = directory.open_log()?;
    let seed = u64::from_le_bytes(random_bytes()?);
    let clock = Clock::new();
    let replica_config = lowkey_replica::Config {
        unix_ms_at_zero: unix_ms(),
        leases_max: config.leases_max,
        ..lowkey_replica::Config::new(GROUP, member, seed)
    };
    let replica =
        Replica::recover(replica_config, cluster, opened.found).map_err(|error| directory.unusable(error))?;
    let hello = Arc::new(Hello {
        cluster,
        own: member,
        identity: directory.node.identity,
        raft_address: info.raft_address.clone(),
    });
    let inbox = Arc::new(Inbox::default());
    let view = Arc::new(View::new(replica.status()));
    let forwarders = Forwarders::default();
    let stopping = watch::Sender::new(false);
    let applied = replica.state().revision();
    let (hub, feed) = watch_hub(applied, config.watch_streams_max, view.leadership(), stopping.subscribe());
    let runtime = tokio::runtime::Handle::current();
    let snapshot_files = SnapshotFiles::new(Arc::clone(&directory.disk));
    let no_thread = |source| StartError::Io { doing: "cannot start a thread".into(), source };
    let jobs = housekeeper::start(directory.path.clone(), Arc::clone(&inbox)).map_err(no_thread)?;
    let snapshot_jobs =
        snapshot_maker::start(snapshot_files.clone(), Arc::clone(&inbox)).map_err(no_thread)?;
    let links = Links::new(
        Arc::clone(&hello),
        Arc::clone(&inbox),
        runtime,
        forwarders.clone(),
        snapshot_files.clone(),
    );
    let replica_metrics = ReplicaMetrics::new();
    let observed = Observed { view: Arc::clone(&view), inbox: Arc::clone(&inbox), hub: hub.clone() };
    let metrics = Metrics::new(&replica_metrics, observed);
    let ended = turns::start(Driver {
        replica,
        wal: opened.wal,
        snapshot_files,
        clock,
        feed,
        inbox: Arc::clone(&inbox),
        jobs,
        snapshot_jobs,
        links,
        view: Arc::clone(&view),
        metrics: replica_metrics,
    })?;
    let service = Arc::new(Service {
        node_name: info.name.to_string(),
        cluster_header: HeaderValue::try_from(cluster.to_string())
            .map_err(|error| StartError::Replica(format!("the cluster's id fits no header: {error}")))?,
        hello,
        view,
        inbox,
        forwarders,
        hub,
        metrics,
        clock,
        stopping,
        parting: watch::Sender::new(false),
    });
    let about = About {
        node_name: info.name.to_string(),
        cluster_id: cluster.to_string(),
        how,
        raft: local(&ports.raft)?,
        grpc: local(&ports.grpc)?,
        http: local(&ports.http)?,
    };
    let stop_client_ports = watch::Sender::new(false);
    // Between nodes, one connection carries everything.
    let peer_limits = ServeLimits {
        max_streams_per_connection: 1000,
        shutdown_timeout: PART_WAIT,
        ..ServeLimits::default()
    };
    let peer_router = peers::router(Arc::clone(&service), &info.http_address);
    let peer_port = tokio::spawn(serve(ports.raft, peer_router, peer_limits, service.parting.subscribe()));
    let grpc_port = edge::grpc::port(Arc::clone(&service), info.http_address.as_str())
        .map_err(|error| StartError::Replica(format!("gRPC reflection cannot be set up: {error}")))?;
    let addresses = [&info.http_address, &info.grpc_address, &info.raft_address];
    let gate = Gate::new(addresses.map(String::as_str), config.http_hosts, config.http_origins);
    let http_router = edge::http::router(Arc::clone(&service), info.grpc_address.as_str(), gate);
    let client_ports = [
        tokio::spawn(serve(ports.grpc, grpc_port, config.limits, stop_client_ports.subscribe())),
        tokio::spawn(serve(ports.http, http_router, config.limits, stop_client_ports.subscribe())),
    ];
    tokio::spawn(announce(Arc::clone(&service), info, config.join));
    Ok(RunningNode {
        service,
        client_ports,
        peer_port,
        ended,
        stop_client_ports,
        about,
        _directory: directory,
    })
}

/// The hub of a node whose state is at this revision: what happened before will never be known here.
fn watch_hub(
    applied: u64,
    streams_max: usize,
    leadership: watch::Receiver<crate::view::Leadership>,
    stopping: watch::Receiver<bool>,
) -> (Hub, HubFeed) {
    // The founding entry, of which every node has heard, is the exception: nothing happened in it.
    if applied == FOUNDING_REVISION {
        let (hub, mut feed) = Hub::start(0, streams_max, leadership, stopping);
        feed.applied(applied, Vec::new());
        return (hub, feed);
    }
    Hub::start(applied, streams_max, leadership, stopping)
}

/// The wall clock: for display, and for where the counters of a new beginning begin.
pub(crate) fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Sees to it that the cluster knows this node, and where it can be reached now.
async fn announce(service: Arc<Service>, info: NodeInfo, join: Vec<String>) {
    let (mut told_alone, mut told_refused) = (false, false);
    loop {
        sleep(ANNOUNCE_INTERVAL).await;
        let status = service.view.status();
        if status.members.is_empty() && join.is_empty() && !std::mem::replace(&mut told_alone, true) {
            tracing::warn!(
                "this node has joined, but knows no other node yet, and waits until one speaks to it; give it --join, so \
                 that it can ask"
            );
        }
        let known = status.members.iter().find(|member| member.member == service.view.own());
        if known.is_some_and(|known| *known.node == info) {
            return;
        }
        // With its number: a node that was removed must not come in again by telling where it is.
        let request = AddPeerRequest { member_id: service.view.own().0, ..join::request(&info) };
        let outcome = if status.leader.is_some() {
            service.add_peer(request).await.map(|_| ()).map_err(|error| Problem::of(&error, ""))
        } else {
            join::ask_any(&join, &request).await.map(|_| ())
        };
        match outcome {
            Ok(()) => {}
            Err(Problem::Removed(_)) => return service.inbox.report(Event::Removed),
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

    /// Resolves when the node ends by itself, with the reason.
    pub async fn ended(&mut self) -> Ended {
        let mut removed = self.service.view.removed();
        let failed = tokio::select! {
            failed = &mut self.ended => failed,
            _ = removed.wait_for(|removed| *removed) => {
                // Streams end, and their clients go on elsewhere; who calls in this moment is told why.
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
        self.stop_client_ports.send_replace(true);
        for port in self.client_ports {
            // A port whose task failed is closed as well.
            let _ = port.await;
        }
        self.service.parting.send_replace(true);
        let _ = self.peer_port.await;
        self.service.inbox.report(Event::Stop);
        match timeout(CLOSE_WAIT, self.ended).await {
            // Everything is synced; only the mark that says so does not fit.
            Ok(Ok(Err(StartError::Log(WalError::Full)))) => {
                tracing::warn!(
                    "the disk is full: the log could not be marked as closed, and the next start will check it"
                );
                Ok(())
            }
            Ok(Ok(outcome)) => outcome,
            Ok(Err(_)) => Err(StartError::Replica("the replica is gone".into())),
            Err(_) => Err(StartError::Replica(
                "the log could not be closed in time; the next start will check it".into(),
            )),
        }
    }

    async fn hand_over(&self) {
        let own = self.service.view.own();
        let mut leadership = self.service.view.leadership();
        if leadership.borrow().leader != Some(own) || self.service.view.status().voters < 2 {
            return;
        }
        let started = Instant::now();
        self.service.inbox.report(Event::Replica(lowkey_replica::Input::HandOver));
        let handed = leadership.wait_for(|leadership| leadership.leader.is_some_and(|leader| leader != own));
        match timeout(HAND_OVER_WAIT, handed).await {
            Ok(_) => tracing::info!(took = ?started.elapsed(), "handed over the lead"),
            Err(_) => tracing::warn!("nobody took over the lead in time; the others will elect a leader"),
        };
    }
}
