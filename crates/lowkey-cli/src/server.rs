//! `lowkey server`: runs a node until it is told to stop.

use std::io::IsTerminal;
use std::num::NonZero;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use clap::builder::BoolishValueParser;
use lowkey_backup::StoreUrl;
use lowkey_core::NodeName;
use lowkey_server::edge::budget::MemoryLimits;
use lowkey_server::edge::http::{HttpHost, HttpOrigin};
use lowkey_server::edge::serve::ServeLimits;
use lowkey_server::edge::tls::TlsFiles;
use lowkey_server::{
    About, AuditLimits, BackupPlan, ClusterOf, Config, Ended, FormSecret, JoinToken, RaftTick, RunningNode,
    StartError,
};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tracing_subscriber::EnvFilter;

use crate::address::{Listen, parse_listen};
use crate::duration::parse_duration;
use crate::exit::{CommandFailure, NO_SERVICE as EXIT_FAILED, USAGE as EXIT_USAGE};
use crate::output::say;

const MEBIBYTE: usize = 1024 * 1024;

/// How many leases, and how many watches and observed elections, a node has at most if nothing else is said.
pub(crate) const LEASES_MAX: usize = 1_000_000;
pub(crate) const WATCH_STREAMS_MAX: usize = 20_000;

#[derive(Debug, Args)]
pub(crate) struct ServerArgs {
    /// Found a new cluster if the data directory is empty; give it to exactly one node of a cluster
    #[arg(long, env = "LOWKEY_BOOTSTRAP", value_parser = BoolishValueParser::new(), help_heading = "The cluster")]
    bootstrap: bool,

    /// Join the cluster of these nodes if the data directory is empty (their gRPC addresses); tries for 30 s
    #[arg(
        long,
        value_name = "HOST:GRPC_PORT,…",
        value_delimiter = ',',
        env = "LOWKEY_JOIN",
        help_heading = "The cluster"
    )]
    join: Vec<String>,

    /// Found a cluster of so many nodes together with those that --join names, this one among them, once all of them see
    /// each other; if there is a cluster already, join it
    #[arg(
        long,
        value_name = "N",
        env = "LOWKEY_CLUSTER_OF",
        requires = "join",
        conflicts_with = "bootstrap",
        value_parser = parse_cluster_size,
        help_heading = "The cluster"
    )]
    cluster_of: Option<usize>,

    /// The secret that all nodes of --cluster-of share, by which they know each other until they have keys
    #[arg(long, value_name = "FILE", env = "LOWKEY_FORM_SECRET_FILE", help_heading = "The cluster")]
    form_secret_file: Option<PathBuf>,

    /// Join with the invitation in this file if the data directory is empty: see `lowkey member invite`
    #[arg(long, value_name = "FILE", env = "LOWKEY_JOIN_TOKEN_FILE", help_heading = "The cluster")]
    join_token_file: Option<PathBuf>,

    /// With --bootstrap, when all nodes and all backups of the cluster before are lost: tokens begin above those that it can have
    /// granted, by this machine's clock, and nothing is granted for the longest TTL
    #[arg(long, env = "LOWKEY_AFTER_TOTAL_LOSS", value_parser = BoolishValueParser::new(), help_heading = "The cluster")]
    after_total_loss: bool,

    /// Where the node keeps its data; made if it is missing
    #[arg(
        long,
        value_name = "DIR",
        default_value = "./data",
        env = "LOWKEY_DATA_DIR",
        help_heading = "The cluster"
    )]
    data_dir: PathBuf,

    /// The node's name in the cluster [default: made once, and kept in the data directory]
    #[arg(long, value_name = "NAME", env = "LOWKEY_NODE_ID", value_parser = parse_node_name, help_heading = "The cluster")]
    node_id: Option<NodeName>,

    /// The base of Raft's timing, 10ms to 100ms in steps of 10ms, the same on all nodes: longer for zones that are far apart,
    /// and a leader that died is replaced so many times later
    #[arg(long, value_name = "TIME", default_value = "10ms", env = "LOWKEY_RAFT_TICK", value_parser = parse_raft_tick, help_heading = "The cluster")]
    raft_tick: RaftTick,

    /// Where to listen for the other nodes
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:7000", env = "LOWKEY_RAFT_ADDR", value_parser = parse_listen, help_heading = "Addresses")]
    raft_addr: Listen,

    /// Where to listen for gRPC; `:9000` means all interfaces
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:9000", env = "LOWKEY_GRPC_ADDR", value_parser = parse_listen, help_heading = "Addresses")]
    grpc_addr: Listen,

    /// Where to listen for HTTP/JSON
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:8080", env = "LOWKEY_HTTP_ADDR", value_parser = parse_listen, help_heading = "Addresses")]
    http_addr: Listen,

    /// Where other nodes reach this one, if not where it listens
    #[arg(long, value_name = "HOST:PORT", env = "LOWKEY_ADVERTISE_RAFT_ADDR", help_heading = "Addresses")]
    advertise_raft_addr: Option<String>,

    /// Where gRPC clients reach this node, if not where it listens
    #[arg(long, value_name = "HOST:PORT", env = "LOWKEY_ADVERTISE_GRPC_ADDR", help_heading = "Addresses")]
    advertise_grpc_addr: Option<String>,

    /// Where HTTP clients reach this node, if not where it listens
    #[arg(long, value_name = "HOST:PORT", env = "LOWKEY_ADVERTISE_HTTP_ADDR", help_heading = "Addresses")]
    advertise_http_addr: Option<String>,

    /// Further names by which clients may reach the HTTP port, or `*` for any; IP addresses, localhost, this machine's name and the
    /// names of the cluster's nodes are known
    #[arg(
        long,
        value_name = "NAME,…",
        value_delimiter = ',',
        env = "LOWKEY_HTTP_HOST",
        help_heading = "Web pages"
    )]
    http_host: Vec<HttpHost>,

    /// Other origins whose web pages may use the HTTP port, such as `https://dash.example.com`
    #[arg(
        long,
        value_name = "ORIGIN,…",
        value_delimiter = ',',
        env = "LOWKEY_HTTP_ORIGIN",
        help_heading = "Web pages"
    )]
    http_origin: Vec<HttpOrigin>,

    /// Let anybody read /metrics, also when access is required; otherwise a principal without any grant is enough
    #[arg(long, env = "LOWKEY_METRICS_OPEN", value_parser = BoolishValueParser::new(), help_heading = "Access")]
    metrics_open: bool,

    /// The certificate of the gRPC and HTTP ports, as PEM, followed by those between it and its CA; from then on both
    /// speak TLS only
    #[arg(
        long,
        value_name = "FILE",
        env = "LOWKEY_TLS_CERT",
        requires = "tls_key",
        help_heading = "Encryption"
    )]
    tls_cert: Option<PathBuf>,

    /// Its private key, as PEM without a password; certificate and key are read again when they change, and on SIGHUP
    #[arg(
        long,
        value_name = "FILE",
        env = "LOWKEY_TLS_KEY",
        requires = "tls_cert",
        help_heading = "Encryption"
    )]
    tls_key: Option<PathBuf>,

    /// The CA that signs clients' certificates, as PEM: then each client needs one; read again when it changes
    #[arg(
        long,
        value_name = "FILE",
        env = "LOWKEY_TLS_CLIENT_CA",
        requires = "tls_cert",
        help_heading = "Encryption"
    )]
    tls_client_ca: Option<PathBuf>,

    /// Trust the network: allow client ports beyond loopback without TLS, and nodes that join without an invitation
    #[arg(long, env = "LOWKEY_INSECURE", value_parser = BoolishValueParser::new(), help_heading = "Addresses")]
    insecure: bool,

    /// Leases that may exist at a time
    #[arg(long, value_name = "N", default_value_t = LEASES_MAX, env = "LOWKEY_MAX_LEASES", value_parser = parse_positive, help_heading = "Limits")]
    max_leases: usize,

    /// Connections that each of the gRPC and HTTP ports may have at a time
    #[arg(long, value_name = "N", default_value_t = 10_000, env = "LOWKEY_MAX_CONNECTIONS", value_parser = parse_positive, help_heading = "Limits")]
    max_connections: usize,

    /// Requests and streams that one gRPC connection may have at a time
    #[arg(long, value_name = "N", default_value_t = 100, env = "LOWKEY_MAX_STREAMS", value_parser = clap::value_parser!(u32).range(1..), help_heading = "Limits")]
    max_streams: u32,

    /// Watches and observed elections that this node may have at a time
    #[arg(long, value_name = "N", default_value_t = WATCH_STREAMS_MAX, env = "LOWKEY_MAX_WATCH_STREAMS", value_parser = parse_positive, help_heading = "Limits")]
    max_watch_streams: usize,

    /// Memory for calls under way and answers that were not taken, of all clients, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 256, env = "LOWKEY_MAX_MEMORY_MIB", value_parser = parse_positive, help_heading = "Limits")]
    max_memory_mib: usize,

    /// The same for all connections of one address
    #[arg(long, value_name = "MIB", default_value_t = 128, env = "LOWKEY_MAX_MEMORY_PER_ADDRESS_MIB", value_parser = parse_positive, help_heading = "Limits")]
    max_memory_per_address_mib: usize,

    /// The same for one connection
    #[arg(long, value_name = "MIB", default_value_t = 64, env = "LOWKEY_MAX_MEMORY_PER_CONNECTION_MIB", value_parser = parse_positive, help_heading = "Limits")]
    max_memory_per_connection_mib: usize,

    /// Whether to record grants when they end: see `lowkey explain` and `lowkey audit`
    #[arg(
        long,
        value_name = "WHETHER",
        default_value = "on",
        env = "LOWKEY_AUDIT",
        help_heading = "The audit"
    )]
    audit: OnOff,

    /// For how long the audit is kept
    #[arg(long, value_name = "TIME", default_value = "30d", env = "LOWKEY_AUDIT_KEEP", value_parser = parse_keep, help_heading = "The audit")]
    audit_keep: Duration,

    /// How large the audit's files may be together: the oldest are deleted first
    #[arg(long, value_name = "SIZE", default_value = "1GiB", env = "LOWKEY_AUDIT_MAX_SIZE", value_parser = parse_size, help_heading = "The audit")]
    audit_max_size: u64,
    /// Where the leader makes backups: s3://BUCKET/FOLDER, gs://…, az://… or file:///FOLDER; give it to every node
    #[arg(long, value_name = "URL", env = "LOWKEY_BACKUP_TO", help_heading = "Backups")]
    backup_to: Option<StoreUrl>,

    /// How often
    #[arg(long, value_name = "TIME", default_value = "10m", env = "LOWKEY_BACKUP_EVERY", value_parser = parse_backup_every, help_heading = "Backups")]
    backup_every: Duration,

    /// How many of this cluster are kept; the newest one that could be read back is never deleted
    #[arg(long, value_name = "N", default_value_t = 48, env = "LOWKEY_BACKUP_KEEP", value_parser = parse_positive, help_heading = "Backups")]
    backup_keep: usize,

    /// Write logs as JSON, one object a line
    #[arg(long, env = "LOWKEY_LOG_JSON", value_parser = BoolishValueParser::new(), help_heading = "Logs")]
    log_json: bool,

    /// What to log: `info`, `debug`, or a filter such as `lowkey_server=debug`
    #[arg(long, value_name = "FILTER", default_value = "info", env = "LOWKEY_LOG", help_heading = "Logs")]
    log: String,
}

/// Whether something is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum OnOff {
    On,
    Off,
}

/// A time such as 30d, from an hour.
fn parse_keep(text: &str) -> Result<Duration, String> {
    let allowed = || "must be a whole number with a unit, such as 12h or 30d, from 1h to 3650d".to_owned();
    let hours = match text.strip_suffix('d') {
        Some(days) => days.parse::<u64>().ok().and_then(|days| days.checked_mul(24)),
        None => text.strip_suffix('h').and_then(|hours| hours.parse().ok()),
    };
    let hours = hours.filter(|hours| (1..=3650 * 24).contains(hours)).ok_or_else(allowed)?;
    Ok(Duration::from_secs(hours * 3600))
}

/// A size such as 1GiB, from 16 MiB.
fn parse_size(text: &str) -> Result<u64, String> {
    let allowed = || "must be a whole number with a unit, such as 256MiB or 1GiB, from 16MiB".to_owned();
    let (number, unit) = match (text.strip_suffix("MiB"), text.strip_suffix("GiB")) {
        (Some(number), _) => (number, 1 << 20),
        (_, Some(number)) => (number, 1 << 30),
        _ => return Err(allowed()),
    };
    let bytes = number.parse::<u64>().ok().and_then(|number| number.checked_mul(unit));
    bytes.filter(|bytes| *bytes >= 16 << 20 && *bytes <= 1 << 50).ok_or_else(allowed)
}

fn parse_positive(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|number| *number > 0).ok_or_else(|| "must be a whole number above 0".into())
}

fn parse_cluster_size(text: &str) -> Result<usize, String> {
    let max = lowkey_core::limits::MEMBERS_MAX;
    text.parse()
        .ok()
        .filter(|size| (1..=max).contains(size))
        .ok_or_else(|| format!("must be a whole number from 1 to {max}; 3 or 5 is usual"))
}

/// More often than that would be one after the other.
pub(crate) fn parse_backup_every(text: &str) -> Result<Duration, String> {
    let every = parse_duration(text)?;
    (every >= Duration::from_secs(1)).then_some(every).ok_or_else(|| "must be at least 1s".to_owned())
}

fn parse_raft_tick(text: &str) -> Result<RaftTick, String> {
    let ms = u64::try_from(parse_duration(text)?.as_millis()).unwrap_or(u64::MAX);
    RaftTick::from_millis(ms).ok_or_else(|| "must be 10ms to 100ms, in steps of 10ms".to_owned())
}

fn parse_node_name(text: &str) -> Result<NodeName, String> {
    NodeName::parse(text).map_err(|invalid| invalid.problem)
}

/// Runs a node; the exit status says how it ended.
pub(crate) fn run(args: ServerArgs) -> ExitCode {
    if let Err(problem) = start_logging(&args) {
        return complain(&format!("--log: {problem}"), EXIT_USAGE);
    }
    if let Err(problem) = check_exposure(&args) {
        return complain(&problem, EXIT_USAGE);
    }
    let descriptors = raise_file_limit();
    // One core is left for the replica's thread and whatever makes snapshots. Were there as many workers as cores, they
    // would wake each other for work that one of them could do.
    let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
    let workers = cores.saturating_sub(1).max(1);
    let runtime = match workers {
        // One worker has nobody to share with; and it takes up tasks in the order in which they were woken, so that what
        // a connection has to say leaves with one write.
        1 => tokio::runtime::Builder::new_current_thread().enable_all().build(),
        _ => tokio::runtime::Builder::new_multi_thread().worker_threads(workers).enable_all().build(),
    };
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => return complain(&format!("cannot start the runtime: {error}"), EXIT_FAILED),
    };
    let outcome = runtime.block_on(serve(args, descriptors));
    // Whatever still runs has nothing to say any more.
    runtime.shutdown_background();
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error @ (StartError::Flag { .. } | StartError::NothingToDo { .. })) => {
            complain(&error.to_string(), EXIT_USAGE)
        }
        Err(error) => complain(&error.to_string(), EXIT_FAILED),
    }
}

/// File descriptors that clients do not get: the log, snapshots and the other nodes need some.
const DESCRIPTORS_KEPT: usize = 256;

/// How many connections each of the two public ports may have, if there are so many descriptors.
fn connections_within(descriptors: Option<usize>, wanted: usize) -> usize {
    let Some(descriptors) = descriptors else { return wanted };
    let for_clients = descriptors - DESCRIPTORS_KEPT.min(descriptors / 2);
    (for_clients / 2).max(1).min(wanted)
}

/// Said once the node runs: whoever reads why it did not start has other worries.
fn tell_of_connections(descriptors: Option<usize>, wanted: usize) {
    let connections = connections_within(descriptors, wanted);
    if connections < wanted {
        tracing::info!(
            open_files = descriptors,
            wanted,
            connections,
            "the limit of open files allows fewer connections of each port than --max-connections"
        );
    }
}

/// Takes as many file descriptors as the system allows: every connection needs one, and the log too. Tells how many that
/// are; nothing if there is no limit.
pub(crate) fn raise_file_limit() -> Option<usize> {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum {
        let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
        if let Err(error) = setrlimit(Resource::Nofile, raised) {
            tracing::warn!(%error, limit = ?limit.current, "the limit of open files could not be raised");
        }
    }
    getrlimit(Resource::Nofile).current.map(|limit| usize::try_from(limit).unwrap_or(usize::MAX))
}

/// One line, for the person who started it.
fn complain(problem: &str, code: u8) -> ExitCode {
    CommandFailure::new(code, problem).report(false)
}

fn start_logging(args: &ServerArgs) -> Result<(), String> {
    let filter = EnvFilter::try_new(&args.log).map_err(|error| error.to_string())?;
    // A line that cannot be written is lost: to say so with `eprintln!`, as is done otherwise, would panic.
    let logs = tracing_subscriber::fmt().log_internal_errors(false);
    let logs = logs.with_env_filter(filter).with_writer(std::io::stderr);
    if args.log_json {
        logs.json().flatten_event(true).init();
    } else {
        logs.with_target(false).with_ansi(std::io::stderr().is_terminal()).init();
    }
    Ok(())
}

/// A port that others can reach without encryption is opened only by someone who means it. The nodes' own port is not
/// among them: what is said there is always encrypted, and both ends prove who they are.
fn check_exposure(args: &ServerArgs) -> Result<(), String> {
    let ports = [("--grpc-addr", &args.grpc_addr), ("--http-addr", &args.http_addr)];
    let mut exposed = ports.iter().filter(|(_, listen)| !listen.address.ip().is_loopback());
    match exposed.next() {
        Some((flag, listen)) if args.tls_cert.is_none() && !args.insecure => Err(format!(
            "{flag} {} can be reached from other machines, and clients' connections are not encrypted; add --tls-cert and \
             --tls-key, or --insecure if that network is trusted",
            listen.address
        )),
        _ => Ok(()),
    }
}

/// Without a secret anybody could be one of the nodes, so that takes a network that is trusted.
fn cluster_of(args: &ServerArgs) -> Result<Option<ClusterOf>, StartError> {
    let Some(size) = args.cluster_of else { return Ok(None) };
    let ports = [&args.raft_addr, &args.grpc_addr, &args.http_addr];
    let is_exposed = !ports.iter().all(|listen| listen.address.ip().is_loopback());
    let secret = match &args.form_secret_file {
        Some(path) => FormSecret::read(path)?,
        None if is_exposed && !args.insecure => {
            let problem = "it is needed where other machines can reach the node: a file with a secret that all nodes of \
                           the cluster share (`openssl rand -hex 32` makes one), or --insecure if that network is trusted"
                .into();
            return Err(StartError::Flag { flag: "--form-secret-file", problem });
        }
        None => FormSecret::none(),
    };
    Ok(Some(ClusterOf { size, secret }))
}

fn tls_files(
    certificate: Option<PathBuf>,
    key: Option<PathBuf>,
    client_ca: Option<PathBuf>,
) -> Option<TlsFiles> {
    Some(TlsFiles { certificate: certificate?, key: key?, client_ca })
}

/// Tests do not wait for the longest TTL; only an unoptimised build has this.
fn quarantine() -> Option<Duration> {
    #[cfg(debug_assertions)]
    if let Some(ms) = std::env::var("LOWKEY_TEST_QUARANTINE_MS").ok().and_then(|text| text.parse().ok()) {
        return Some(Duration::from_millis(ms));
    }
    None
}

async fn serve(args: ServerArgs, descriptors: Option<usize>) -> Result<(), StartError> {
    let no_signals = |source| StartError::Io { doing: "cannot listen for signals".into(), source };
    let mut terminate = signal(SignalKind::terminate()).map_err(no_signals)?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(no_signals)?;
    let join_token = join_token(&args)?;
    let cluster_of = cluster_of(&args)?;
    let listened = [args.raft_addr.name, args.grpc_addr.name, args.http_addr.name];
    let config = Config {
        node_name: args.node_id,
        data_dir: args.data_dir,
        bootstrap: args.bootstrap,
        after_total_loss: args.after_total_loss,
        backup: args.backup_to.map(|to| BackupPlan { to, every: args.backup_every, keep: args.backup_keep }),
        quarantine: quarantine(),
        join: args.join,
        join_token,
        cluster_of,
        insecure: args.insecure,
        raft_tick: args.raft_tick,
        raft_listen: args.raft_addr.address,
        grpc_listen: args.grpc_addr.address,
        http_listen: args.http_addr.address,
        raft_advertise: args.advertise_raft_addr,
        grpc_advertise: args.advertise_grpc_addr,
        http_advertise: args.advertise_http_addr,
        http_hosts: args.http_host.into_iter().chain(listened.into_iter().flatten()).collect(),
        http_origins: args.http_origin,
        metrics_open: args.metrics_open,
        tls: tls_files(args.tls_cert, args.tls_key, args.tls_client_ca),
        leases_max: args.max_leases,
        watch_streams_max: args.max_watch_streams,
        limits: ServeLimits {
            max_connections: connections_within(descriptors, args.max_connections),
            max_streams_per_connection: args.max_streams,
            memory: MemoryLimits {
                connection_bytes: args.max_memory_per_connection_mib.saturating_mul(MEBIBYTE),
                address_bytes: args.max_memory_per_address_mib.saturating_mul(MEBIBYTE),
                node_bytes: args.max_memory_mib.saturating_mul(MEBIBYTE),
            },
            ..ServeLimits::default()
        },
        audit: (args.audit == OnOff::On)
            .then_some(AuditLimits { keep: args.audit_keep, bytes_max: args.audit_max_size }),
    };
    let mut node = tokio::select! {
        node = lowkey_server::start(config) => node?,
        () = told_to_stop(&mut terminate, &mut interrupt) => return Ok(()),
    };
    banner(node.about(), args.log_json);
    tell_of_connections(descriptors, args.max_connections);
    // Only with files to read again: without them a node that was started in a terminal ends with it.
    let mut hangup =
        node.about().has_tls.then(|| signal(SignalKind::hangup())).transpose().map_err(no_signals)?;
    let ended = loop {
        tokio::select! {
            ended = node.ended() => break Some(ended),
            () = told_to_stop(&mut terminate, &mut interrupt) => break None,
            () = hung_up(&mut hangup) => {}
        }
        node.reload();
    };
    match ended {
        Some(Ended::Failed(error)) => Err(error),
        // Nothing is left to do for a node that was removed: that is a good end.
        Some(Ended::Removed) | None => stop(node, &mut terminate, &mut interrupt).await,
    }
}

/// Resolves when somebody wants the files to be read again.
async fn hung_up(hangup: &mut Option<Signal>) {
    match hangup {
        Some(hangup) => drop(hangup.recv().await),
        None => std::future::pending().await,
    }
}

/// The invitation, if the node has to join yet: a restart with the same flags needs no such file any more.
fn join_token(args: &ServerArgs) -> Result<Option<JoinToken>, StartError> {
    match &args.join_token_file {
        Some(path) if !lowkey_server::belongs_to_cluster(&args.data_dir) => JoinToken::read(path).map(Some),
        _ => Ok(None),
    }
}

async fn told_to_stop(terminate: &mut Signal, interrupt: &mut Signal) {
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
}

/// The first signal stops the node in good order, the second at once.
async fn stop(node: RunningNode, terminate: &mut Signal, interrupt: &mut Signal) -> Result<(), StartError> {
    tokio::select! {
        outcome = node.stop() => outcome,
        () = told_to_stop(terminate, interrupt) => {
            Err(StartError::Io {
                doing: "stopped at once by a second signal".into(),
                source: std::io::ErrorKind::Interrupted.into(),
            })
        }
    }
}

fn banner(about: &About, as_json: bool) {
    tracing::info!(
        node = about.node_name, cluster = about.cluster_id,
        raft = %about.raft, grpc = %about.grpc, http = %about.http,
        "{}", about.how
    );
    if as_json || !std::io::stderr().is_terminal() {
        return;
    }
    say(&format!(
        r#"
  lowkey {version} · node {node} {how} ({cluster})

    HTTP/JSON  {scheme}://{http}
    gRPC       {scheme}://{grpc}
    peers      {raft}

  Try:
    curl{ca} {scheme}://{http}/v1/lock/acquire -d '{{"lock_name":"my-job","owner_id":"me","ttl_seconds":30}}'
    curl{ca} '{scheme}://{http}/v1/lock?name=my-job'
    curl{ca} {scheme}://{http}/v1/status
"#,
        version = env!("CARGO_PKG_VERSION"),
        scheme = if about.has_tls { "https" } else { "http" },
        ca = if about.has_tls { " --cacert CA.pem" } else { "" },
        node = about.node_name,
        how = about.how,
        cluster = about.cluster_id,
        http = about.http,
        grpc = about.grpc,
        raft = about.raft,
    ));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_much_is_kept_has_a_number_and_a_unit() {
        assert_eq!(parse_keep("30d"), Ok(Duration::from_secs(30 * 86_400)));
        assert_eq!(parse_keep("12h"), Ok(Duration::from_secs(12 * 3600)));
        assert_eq!(parse_size("1GiB"), Ok(1 << 30));
        assert_eq!(parse_size("16MiB"), Ok(16 << 20));
        for text in ["", "30", "0h", "d", "99999999d", "1.5d", "18446744073709551615d"] {
            assert!(parse_keep(text).is_err(), "{text}");
        }
        for text in ["", "1", "15MiB", "1GB", "GiB", "18446744073709551615GiB"] {
            assert!(parse_size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_tick_has_a_unit_and_is_one_of_ten() {
        assert_eq!(parse_raft_tick("10ms"), Ok(RaftTick::SHORTEST));
        assert_eq!(parse_raft_tick("50ms").unwrap().millis(), 50);
        for text in ["", "50", "0ms", "15ms", "110ms", "1s", "365d"] {
            assert!(parse_raft_tick(text).is_err(), "{text}");
        }
    }

    #[test]
    fn clients_do_not_get_all_file_descriptors() {
        for (descriptors, wanted, connections) in [
            (None, 10_000, 10_000),
            (Some(1_048_576), 10_000, 10_000),
            (Some(20_256), 10_000, 10_000),
            (Some(4096), 10_000, 1920),
            (Some(4096), 100, 100),
            (Some(60), 100, 15),
            (Some(1), 100, 1),
        ] {
            assert_eq!(connections_within(descriptors, wanted), connections, "{descriptors:?}");
        }
    }
}
