//! Empty nodes that found a cluster together: the hands of [`lowkey_replica::forming`], which decides.
//!
//! While a node waits for the others it serves no clients. Its gRPC port answers what other nodes ask, and its HTTP port
//! says that it lives. It asks all addresses of `--join`, every few hundred milliseconds, for as long as it takes.
//!
//! A node that runs answers too ([`Voice`]), so that one that was wiped learns that there is a cluster.

mod ask;
mod secret;
mod wire;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::Router;
use lowkey_core::{ClusterId, GroupId, NodeInfo};
use lowkey_replica::forming::{Belongs, Chance, Forming, Memory, Plan, Statement, Step, Waiting};
use lowkey_replica::{RaftTick, found_together};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tonic::{Request, Response, Status};

use self::ask::Asking;
use self::proto::forming_server::{Forming as Service, FormingServer};
pub use self::secret::FormSecret;
use crate::dial::Dialer;
use crate::edge::grpc::{forming_http, not_formed};
use crate::edge::serve::{ServeLimits, serve};
use crate::edge::tls::Tls;
use crate::error::StartError;
use crate::node::unix_ms;
use crate::random_bytes;
use crate::storage::DataDirectory;

/// Generated from `proto/lowkey/forming/v1/forming.proto`.
#[allow(missing_docs, unreachable_pub, clippy::all, reason = "generated code; documented in the proto file")]
pub(crate) mod proto {
    tonic::include_proto!("lowkey.forming.v1");
}

/// How often the others are asked.
const PAUSE: Duration = Duration::from_millis(250);
/// How long the ports may take to end what is under way, before they are opened to clients.
const CLOSE_WAIT: Duration = Duration::from_millis(300);
/// The longest thing that one node may say to another.
const MESSAGE_BYTES_MAX: usize = 64 * 1024;

/// A cluster that several nodes found together.
#[derive(Clone, Debug)]
pub struct ClusterOf {
    /// How many there are to be.
    pub size: usize,
    /// What they know each other by.
    pub secret: FormSecret,
}

/// What a node tells other nodes that ask whether there is a cluster.
#[derive(Clone)]
pub(crate) struct Voice {
    secret: FormSecret,
    statement: Arc<Mutex<Statement>>,
}

impl Voice {
    fn new(secret: FormSecret, statement: Statement) -> Self {
        Self { secret, statement: Arc::new(Mutex::new(statement)) }
    }

    /// The voice of a member.
    pub(crate) fn of_member(
        form: &ClusterOf,
        raft_tick: RaftTick,
        node: NodeInfo,
        cluster: ClusterId,
        memory: &Memory,
    ) -> Self {
        let belongs = match &memory.belongs {
            Belongs::Founded(plan) if plan.cluster == cluster => Belongs::Founded(plan.clone()),
            _ => Belongs::Cluster(cluster),
        };
        let memory = Memory { belongs, ..memory.clone() };
        let (size, unix_minutes) = (form.size, unix_ms() / 60_000);
        let statement = Statement { node, size, raft_tick, unix_minutes, memory, plan: None };
        Self::new(form.secret.clone(), statement)
    }

    fn say(&self, statement: Statement) {
        *self.statement.lock().unwrap_or_else(PoisonError::into_inner) = statement;
    }

    fn said(&self) -> Statement {
        self.statement.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The gRPC service.
    pub(crate) fn service(self) -> FormingServer<Self> {
        FormingServer::new(self).max_decoding_message_size(MESSAGE_BYTES_MAX)
    }
}

#[tonic::async_trait]
impl Service for Voice {
    async fn ask(&self, request: Request<proto::Sealed>) -> Result<Response<proto::Sealed>, Status> {
        let key = self.secret.key();
        let number = wire::open_question(&key, request.get_ref()).map_err(|_| {
            Status::unauthenticated("the caller has another --form-secret-file than this node")
        })?;
        Ok(Response::new(wire::seal_answer(&key, number, &self.said())))
    }
}

/// The ports of a node that has no cluster yet, served until it has one.
pub(crate) struct Waitroom {
    stop: watch::Sender<bool>,
    ports: [JoinHandle<()>; 2],
}

impl Waitroom {
    /// Serves copies of these listeners. The originals take over when this is closed.
    fn open(
        listeners: [&mut TcpListener; 2],
        voice: Voice,
        tls: Option<Arc<Tls>>,
    ) -> Result<Self, StartError> {
        let [grpc, http] = listeners;
        let limits =
            ServeLimits { max_connections: 256, shutdown_timeout: CLOSE_WAIT, ..ServeLimits::default() };
        let stop = watch::Sender::new(false);
        let grpc_router: Router =
            tonic::service::Routes::new(voice.service()).into_axum_router().fallback(not_formed);
        let ports = [(twin(grpc)?, grpc_router), (twin(http)?, forming_http())].map(|(listener, router)| {
            tokio::spawn(serve(listener, router, limits, None, tls.clone(), stop.subscribe()))
        });
        Ok(Self { stop, ports })
    }

    async fn close(self) {
        self.stop.send_replace(true);
        for port in self.ports {
            // A port whose task failed is closed as well.
            let _ = port.await;
        }
    }
}

/// A second handle of the same listening socket.
fn twin(listener: &mut TcpListener) -> Result<TcpListener, StartError> {
    use std::os::fd::AsFd as _;
    let failed = |source| StartError::Io { doing: "cannot prepare a port".into(), source };
    let copy = listener.as_fd().try_clone_to_owned().map_err(failed)?;
    TcpListener::from_std(copy.into()).map_err(failed)
}

/// Founds a cluster with the others, or finds that there is one. The directory belongs to the cluster if one was founded;
/// if not, the node is to join it by `join`, and the ports answer until it has.
pub(crate) async fn form(
    (form, raft_tick): (&ClusterOf, RaftTick),
    asked: (&[String], &Dialer),
    ports: ([&mut TcpListener; 2], Option<Arc<Tls>>),
    own: (&mut DataDirectory, &NodeInfo),
    join: impl AsyncFnOnce(&mut DataDirectory) -> Result<(), StartError>,
) -> Result<&'static str, StartError> {
    let (addresses, dialer) = asked;
    let (directory, info) = own;
    let memory = directory.node.forming.clone();
    let mut forming = Forming::new(directory.node.identity, info.clone(), (form.size, raft_tick), memory);
    let voice = Voice::new(form.secret.clone(), forming.statement(unix_ms() / 60_000));
    let (listeners, tls) = ports;
    let waitroom = Waitroom::open(listeners, voice.clone(), tls)?;
    let mut asking = Asking::new(dialer.clone(), addresses, form.secret.clone());
    let outcome = match settle(&mut forming, directory, &voice, &mut asking).await? {
        Outcome::Founded => Ok("founded a new cluster with the others"),
        Outcome::There(cluster) => {
            tracing::info!(%cluster, "there is a cluster already: this node joins it, and founds none");
            join(directory).await.map(|()| "joined the cluster")
        }
    };
    waitroom.close().await;
    outcome
}

enum Outcome {
    Founded,
    There(ClusterId),
}

async fn settle(
    forming: &mut Forming,
    directory: &mut DataDirectory,
    voice: &Voice,
    asking: &mut Asking,
) -> Result<Outcome, StartError> {
    let mut heard = Vec::new();
    let mut told = None;
    loop {
        let unix_minutes = unix_ms() / 60_000;
        voice.say(forming.statement(unix_minutes));
        let cluster = ClusterId(random_bytes()?);
        let chance = Chance { cluster, spread: u32::from_le_bytes(random_bytes()?), unix_minutes };
        match forming.look(&heard, chance) {
            Step::Keep(memory) => {
                directory.keep_forming(&memory)?;
                forming.kept(memory);
            }
            Step::Found(plan) => {
                found(directory, &plan)?;
                return Ok(Outcome::Founded);
            }
            Step::Join(cluster) => return Ok(Outcome::There(cluster)),
            Step::Wait(waiting) => {
                tell(&waiting, &asking.problems(), &mut told);
                sleep(PAUSE).await;
                heard = asking.ask_all().await;
            }
        }
    }
}

/// Puts this node's part of a new cluster on its disk.
pub(crate) fn found(directory: &mut DataDirectory, plan: &Plan) -> Result<(), StartError> {
    let impossible = |problem: &str| StartError::Replica(format!("the cluster cannot be founded: {problem}"));
    let member = plan
        .member(directory.node.identity)
        .ok_or_else(|| impossible("its plan does not name this node; empty the data directory"))?;
    let founding = found_together(GroupId::ROOT, plan.first_members(), member).map_err(|_| {
        impossible("a node's clock is thousands of years ahead: set it right, and empty the data directories")
    })?;
    directory.found(plan.cluster, &founding)
}

/// Says what is waited for, each time that it changes.
fn tell(waiting: &Waiting, problems: &str, told: &mut Option<(Waiting, String)>) {
    let news = (waiting.clone(), problems.to_owned());
    if told.as_ref() == Some(&news) {
        return;
    }
    match waiting.needs_a_person() {
        true => tracing::error!(problems, "no cluster is founded: {waiting}"),
        false => tracing::info!(problems, "no cluster is founded yet: {waiting}"),
    }
    *told = Some(news);
}
