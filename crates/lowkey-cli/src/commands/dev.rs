//! `dev`: a cluster of three nodes in one process, for trying things out. Nothing of it is kept.

mod demo;

use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use futures::future::{join_all, select_all};
use lowkey_client::{Client, Tls};
use lowkey_core::NodeName;
use lowkey_server::edge::serve::ServeLimits;
use lowkey_server::edge::tls::TlsFiles;
use lowkey_server::{AuditLimits, Config, Ended, RaftTick, RunningNode, StartError};
use serde_json::json;
use tempfile::TempDir;
use tokio::time::{Instant, sleep, timeout};
use tracing_subscriber::EnvFilter;

use super::interrupts::Interrupts;
use super::printed;
use crate::certificates::{self, Place, Use, Written, ca_file};
use crate::exit::{self, CommandFailure};
use crate::output::{print_json, say};
use crate::server::{LEASES_MAX, WATCH_STREAMS_MAX};

const NODES: u16 = 3;
/// The first ports of raft, gRPC and HTTP: the server's own defaults.
const FIRST_PORTS: [u16; 3] = [7000, 9000, 8080];
/// How long it may take until all nodes vote.
const START_WAIT: Duration = Duration::from_secs(20);
/// How long the nodes may take to end. Nothing that they have is kept anyway.
const STOP_WAIT: Duration = Duration::from_secs(3);

/// How often, and how far apart, it is tried to remove the folder.
const REMOVE_ATTEMPTS: usize = 50;
const REMOVE_PAUSE: Duration = Duration::from_millis(20);

#[derive(Debug, Args)]
pub(crate) struct DevArgs {
    /// Encrypt: with a CA, and certificates of nodes and of a client, that last as long as the cluster
    #[arg(long, help_heading = "Encryption")]
    secure: bool,

    /// Fill it: workers that compete, a leader that changes, and one whose lease runs out again and again
    #[arg(long, help_heading = "The playground")]
    demo: bool,

    /// What to log: `warn`, `info`, or a filter such as `lowkey_server=debug`
    #[arg(long, value_name = "FILTER", default_value = "error", env = "LOWKEY_LOG", help_heading = "Output")]
    log: String,

    /// Print one JSON object instead of what to try
    #[arg(long, help_heading = "Output")]
    json: bool,
}

pub(crate) fn dev(args: &DevArgs) -> ExitCode {
    let filter = match EnvFilter::try_new(&args.log) {
        Ok(filter) => filter,
        Err(error) => return CommandFailure::new(exit::USAGE, format!("--log: {error}")).report(args.json),
    };
    // A line that cannot be written is lost: to say so with `eprintln!`, as is done otherwise, would panic.
    let logs = tracing_subscriber::fmt().log_internal_errors(false);
    logs.with_env_filter(filter).with_writer(std::io::stderr).with_target(false).init();
    let outcome = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| CommandFailure::new(exit::NO_SERVICE, format!("cannot start the runtime: {error}")))
        .and_then(|runtime| {
            let mut folder = None;
            let outcome = runtime.block_on(serve(args, &mut folder));
            // Whatever still starts, or ends, may write into it.
            runtime.shutdown_timeout(STOP_WAIT);
            folder.map_or(Ok(()), remove).and(outcome)
        });
    match outcome {
        Ok(code) => ExitCode::from(code),
        Err(failure) => failure.report(args.json),
    }
}

/// The folder is left where the caller finds it.
async fn serve(args: &DevArgs, folder: &mut Option<TempDir>) -> Result<u8, CommandFailure> {
    // Before there is anything to leave behind.
    let mut interrupts = Interrupts::listen()?;
    let made = tempfile::Builder::new().prefix("lowkey-dev-").tempdir().map_err(|error| {
        CommandFailure::new(
            exit::NO_SERVICE,
            format!("cannot make a temporary folder: {error}; is TMPDIR right?"),
        )
    })?;
    let folder = folder.insert(made);
    let mut nodes = Vec::new();
    let code = tokio::select! {
        outcome = start_and_tell(args, folder.path(), &mut nodes) => Err(outcome?),
        _ = interrupts.next() => Ok(0),
    };
    let _ = timeout(STOP_WAIT, join_all(nodes.into_iter().map(RunningNode::stop))).await;
    code
}

/// Removes the folder, in the face of a thread that may still write its last.
fn remove(folder: TempDir) -> Result<(), CommandFailure> {
    let path = folder.keep();
    for _ in 0..REMOVE_ATTEMPTS {
        if std::fs::remove_dir_all(&path).is_ok() || !path.exists() {
            return Ok(());
        }
        std::thread::sleep(REMOVE_PAUSE);
    }
    Err(CommandFailure::new(exit::NO, format!("{} could not be removed; please do so", path.display())))
}

/// Resolves only when something goes wrong: at the start, or later, with the reason.
async fn start_and_tell(
    args: &DevArgs,
    folder: &Path,
    nodes: &mut Vec<RunningNode>,
) -> Result<CommandFailure, CommandFailure> {
    let papers = args.secure.then(|| Papers::make(folder)).transpose()?;
    let tls = papers.as_ref().map(|papers| papers.node.clone());
    start(folder, nodes, tls.as_ref()).await.map_err(failed)?;
    let scheme = if args.secure { "https" } else { "http" };
    let url = |address: SocketAddr| format!("{scheme}://{address}");
    let cluster = Addresses {
        grpc: nodes.iter().map(|node| url(node.about().grpc)).collect(),
        http: nodes.iter().map(|node| url(node.about().http)).collect(),
    };
    wait_whole(&cluster.grpc, papers.as_ref()).await?;
    let people = args.demo.then(|| demo::start(&cluster.grpc, tls_of(papers.as_ref())));
    tell(args.json, folder, &cluster, papers.as_ref())?;
    let failure = outlast(args.json, nodes).await;
    drop(people);
    failure
}

/// Resolves when a node fails, or none is left.
async fn outlast(as_json: bool, nodes: &mut Vec<RunningNode>) -> Result<CommandFailure, CommandFailure> {
    while !nodes.is_empty() {
        let (ended, number, _) = select_all(nodes.iter_mut().map(|node| Box::pin(node.ended()))).await;
        match ended {
            Ended::Failed(error) => return Ok(failed(error)),
            Ended::Removed => {
                let node = nodes.remove(number);
                tell_removed(as_json, &node.about().node_name);
                // Whatever it fails at now, nobody misses it.
                let _ = timeout(STOP_WAIT, node.stop()).await;
            }
        }
    }
    Ok(CommandFailure::new(exit::NO_SERVICE, "every node of the development cluster was removed"))
}

/// A node is gone because somebody wished it; the others go on.
fn tell_removed(as_json: bool, node: &str) {
    let line = format!("{node} was removed from the development cluster and has ended; the others go on");
    if as_json {
        return say(&json!({ "message": line, "nodeId": node }).to_string());
    }
    say(&format!("lowkey: {line}"));
}

fn failed(error: StartError) -> CommandFailure {
    CommandFailure::new(exit::NO_SERVICE, format!("a node of the development cluster ended: {error}"))
}

/// The certificates of a cluster that is encrypted.
struct Papers {
    node: TlsFiles,
    ca: PathBuf,
    client: Written,
}

impl Papers {
    /// The client's name in its certificate.
    const CLIENT: &str = "dev";
    /// Nobody lets it run for longer.
    const DAYS: u32 = 365;

    fn make(folder: &Path) -> Result<Self, CommandFailure> {
        let place = Place { folder: folder.join("certs"), may_overwrite: false };
        let failed = |problem| CommandFailure::new(exit::NO_SERVICE, problem);
        certificates::make_ca(&place, Self::DAYS).map_err(failed)?;
        let hosts = ["localhost", "127.0.0.1", "::1"].map(str::to_owned);
        let node = certificates::make(&place, "node", Use::Node, &hosts, Self::DAYS).map_err(failed)?;
        let name = [Self::CLIENT.to_owned()];
        let client =
            certificates::make(&place, Self::CLIENT, Use::Client, &name, Self::DAYS).map_err(failed)?;
        let ca = ca_file(&place.folder);
        let node = TlsFiles { certificate: node.certificate, key: node.key, client_ca: Some(ca.clone()) };
        Ok(Self { node, ca, client })
    }

    /// What clients need, as environment variables.
    fn exports(&self, endpoints: &str) -> String {
        format!(
            "    export LOWKEY_ENDPOINTS={endpoints}\n    export LOWKEY_CA={}\n    export LOWKEY_CERT={}\n    \
             export LOWKEY_KEY={}\n",
            self.ca.display(),
            self.client.certificate.display(),
            self.client.key.display()
        )
    }
}

/// Where the nodes can be reached.
struct Addresses {
    grpc: Vec<String>,
    http: Vec<String>,
}

async fn start(
    folder: &Path,
    nodes: &mut Vec<RunningNode>,
    tls: Option<&TlsFiles>,
) -> Result<(), StartError> {
    if default_ports_are_free() {
        match start_at(FIRST_PORTS, folder, nodes, tls).await {
            // Somebody was faster: another `lowkey dev`, say, that looked at the same moment.
            Err(StartError::Io { source, .. }) if source.kind() == ErrorKind::AddrInUse => {
                let _ = timeout(STOP_WAIT, join_all(nodes.drain(..).map(RunningNode::stop))).await;
                for number in 0..NODES {
                    let _ = std::fs::remove_dir_all(folder.join(node_name(number)));
                }
            }
            outcome => return outcome,
        }
    }
    start_at([0; 3], folder, nodes, tls).await
}

/// Starts the nodes at these ports and the ones that follow; at any that are free where they are 0.
async fn start_at(
    first_ports: [u16; 3],
    folder: &Path,
    nodes: &mut Vec<RunningNode>,
    tls: Option<&TlsFiles>,
) -> Result<(), StartError> {
    for number in 0..NODES {
        let listen = first_ports
            .map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, if port == 0 { 0 } else { port + number })));
        let name = node_name(number);
        let config = Config {
            data_dir: folder.join(&name),
            node_name: NodeName::parse(&name).ok(),
            after_total_loss: false,
            backup: None,
            quarantine: None,
            bootstrap: number == 0,
            join: nodes.iter().map(|node: &RunningNode| node.about().grpc.to_string()).collect(),
            join_token: None,
            cluster_of: None,
            insecure: false,
            raft_tick: RaftTick::SHORTEST,
            raft_listen: listen[0],
            grpc_listen: listen[1],
            http_listen: listen[2],
            raft_advertise: None,
            grpc_advertise: None,
            http_advertise: None,
            http_hosts: vec![],
            http_origins: vec![],
            metrics_open: false,
            tls: tls.cloned(),
            leases_max: LEASES_MAX,
            watch_streams_max: WATCH_STREAMS_MAX,
            limits: ServeLimits::default(),
            audit: Some(AuditLimits::default()),
        };
        nodes.push(lowkey_server::start(config).await?);
    }
    Ok(())
}

fn node_name(number: u16) -> String {
    format!("dev-{}", number + 1)
}

/// All or none: addresses that are half as expected help nobody.
fn default_ports_are_free() -> bool {
    let ports = FIRST_PORTS.iter().flat_map(|first| (0..NODES).map(move |number| first + number));
    let taken: Vec<TcpListener> =
        ports.filter_map(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, port)).ok()).collect();
    taken.len() == FIRST_PORTS.len() * usize::from(NODES)
}

/// Waits until all nodes vote.
async fn wait_whole(endpoints: &[String], papers: Option<&Papers>) -> Result<(), CommandFailure> {
    let deadline = Instant::now() + START_WAIT;
    let unanswered = |error: lowkey_client::Error| CommandFailure::of(&error, endpoints, "NAME");
    let client =
        Client::builder(endpoints.to_vec()).tls(tls_of(papers)).connect().await.map_err(unanswered)?;
    loop {
        let status = client.status().await.map_err(unanswered)?;
        if status.cluster_size == i32::from(NODES) {
            return Ok(());
        }
        if Instant::now() >= deadline {
            return Err(CommandFailure::new(
                exit::NO_SERVICE,
                "the three nodes did not come together in time; is the machine very busy?",
            ));
        }
        sleep(Duration::from_millis(20)).await;
    }
}

/// What a client of the cluster needs.
fn tls_of(papers: Option<&Papers>) -> Tls {
    papers.map_or_else(Tls::new, |papers| {
        Tls::new().ca(&papers.ca).identity(&papers.client.certificate, &papers.client.key)
    })
}

fn tell(
    as_json: bool,
    folder: &Path,
    Addresses { grpc: endpoints, http }: &Addresses,
    papers: Option<&Papers>,
) -> Result<u8, CommandFailure> {
    if as_json {
        let folder = folder.to_string_lossy();
        let mut told = json!({ "endpoints": endpoints, "http": http, "folder": folder, "dashboard": format!("{}/ui/", http[0]) });
        if let Some(papers) = papers {
            told["ca"] = papers.ca.to_string_lossy().into();
            told["cert"] = papers.client.certificate.to_string_lossy().into();
            told["key"] = papers.client.key.to_string_lossy().into();
        }
        return printed(print_json(&told));
    }
    let all = endpoints.join(",");
    // The first node's port is where commands look by themselves.
    let is_found = papers.is_some() || endpoints[0].ends_with(":9000");
    let flag = if is_found { String::new() } else { format!(" --endpoints {all}") };
    let exports = papers.map(|papers| papers.exports(&all)).unwrap_or_default();
    let curl =
        if papers.is_some() { " --cacert $LOWKEY_CA --cert $LOWKEY_CERT --key $LOWKEY_KEY" } else { "" };
    let text = format!(
        r#"
  lowkey {version} · three nodes in {folder}, gone when this ends (ctrl-C)

    gRPC       {all}
    HTTP/JSON  {http}
    dashboard  {first}/ui/

  Try, in another terminal:
{exports}    lowkey run nightly{flag} -- sleep 30
    lowkey run nightly --try{flag} -- echo mine
    lowkey ls{flag}
    lowkey watch{flag}
    lowkey acquire deploy --ttl 60s{flag}
    lowkey elect scheduler --value http://10.0.0.1:4000{flag} -- sleep 30
    lowkey leader scheduler{flag}
    lowkey status{flag}
    curl{curl} {first}/v1/locks
"#,
        version = env!("CARGO_PKG_VERSION"),
        folder = folder.display(),
        http = http.join(","),
        first = http[0],
    );
    use std::io::Write as _;
    let mut out = std::io::stdout().lock();
    printed(writeln!(out, "{text}").and_then(|()| out.flush()))
}
