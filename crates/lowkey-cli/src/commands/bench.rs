//! `bench`: load for a cluster, measured and checked. What is done, and how, is in crate `lowkey-bench`; here is what
//! it looks like.

use std::io::{self, IsTerminal as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
#[cfg(feature = "rivals")]
use lowkey_bench::RivalService;
use lowkey_bench::{
    BenchPlan, BenchProblem, BenchProgress, BenchReport, Contender, Credentials, Figure, LowkeyAt,
    OperationSummary, Ratio, Setup, Sizes, Skipped, Starter, Through, Workload, plot, ratios,
};
use tokio::time::interval;

use super::interrupts::Interrupts;
use super::{parse_endpoint, printed, run};
use crate::exit::{self, CommandFailure};
use crate::output::{Feed, TextTable, print_json, say};
use crate::server::raise_file_limit;

/// Turns are not longer than the longest lease.
const SECONDS_MAX: u64 = 300;
/// Far more than any system does here.
const RATE_MAX: i64 = 1_000_000;
const DRAW_INTERVAL: Duration = Duration::from_millis(100);
const BAR_WIDTH: usize = 24;

/// How nodes can be set up beside as they come, in the order of the flags for it.
const SETUPS: [Setup; 3] = [Setup::Tls, Setup::Access, Setup::NoAudit];

const COLUMNS: &[(&str, usize)] = &[
    ("SYSTEM", 14),
    ("WORKLOAD", 8),
    ("NODES", 5),
    ("SIZE", 6),
    ("WHAT", 25),
    ("COUNT", 10),
    ("PER SECOND", 10),
    ("P50 MS", 9),
    ("P90 MS", 9),
    ("P99 MS", 9),
    ("P99.9 MS", 9),
    ("MAX MS", 9),
];

const RATIO_COLUMNS: &[&str] =
    &["SYSTEM", "AGAINST", "WORKLOAD", "NODES", "SIZE", "WHAT", "OURS", "THEIRS", "RATIO", "BETTER"];

#[derive(Debug, Args)]
pub(crate) struct BenchArgs {
    /// What to do: seq, par, hot, outage, holders, renew, expire, watch [default: all of these]; capacity, scale, churn
    #[arg(value_name = "WORKLOAD", value_parser = parse_workload)]
    workloads: Vec<Workload>,

    /// Measure this cluster (gRPC URLs of some of its nodes) instead of one that is started for it
    #[arg(long, value_name = "URL,…", value_delimiter = ',', value_parser = parse_bench_endpoint, conflicts_with_all = ["nodes", "dir"], help_heading = "What to measure")]
    server: Vec<String>,

    /// How many nodes to start, 1 or 3; 1,3 for one after the other
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "3", value_parser = parse_nodes, help_heading = "What to measure")]
    nodes: Vec<usize>,

    /// Measure these beside it, in turns, and print the ratios: etcd, zookeeper, redis, postgres
    #[cfg(feature = "rivals")]
    #[arg(long, value_name = "SYSTEM,…", value_delimiter = ',', value_parser = parse_rival, conflicts_with = "server", help_heading = "What to measure")]
    against: Vec<RivalService>,

    /// The way that requests take: unary gRPC calls, or the SDK's session stream; unary,session for both
    #[arg(long, value_name = "WAY,…", value_delimiter = ',', default_value = "unary", value_parser = parse_through, help_heading = "What to measure")]
    through: Vec<Through>,

    /// Measure it with TLS, too, beside itself without, in turns, and print the ratios
    #[arg(long, conflicts_with = "server", help_heading = "What to measure")]
    tls: bool,

    /// The same with TLS, access required, and a token that the load shows
    #[arg(long, conflicts_with = "server", help_heading = "What to measure")]
    access: bool,

    /// The same without the audit; the ratio is that of nodes with it to these
    #[arg(long, conflicts_with = "server", help_heading = "What to measure")]
    audit_off: bool,

    /// With --server: the CA that signed the nodes' certificates, as PEM, for URLs with https:// [default: the system's CAs]
    #[arg(long, value_name = "FILE", env = "LOWKEY_CA", help_heading = "How to get in")]
    ca: Option<PathBuf>,

    /// The same: the certificate to show to nodes that want one, as PEM
    #[arg(long, value_name = "FILE", env = "LOWKEY_CERT", requires = "key", help_heading = "How to get in")]
    cert: Option<PathBuf>,

    /// The same: its private key, as PEM
    #[arg(long, value_name = "FILE", env = "LOWKEY_KEY", requires = "cert", help_heading = "How to get in")]
    key: Option<PathBuf>,

    /// The same: a file with the token to show to nodes, lk_…, of a principal that may acquire, read and watch below bench
    #[arg(long, value_name = "FILE", env = "LOWKEY_AUTH_FILE", help_heading = "How to get in")]
    auth_file: Option<PathBuf>,

    /// How many seconds to measure each system in each workload [default: 10]
    #[arg(long, value_name = "N", value_parser = parse_seconds, allow_negative_numbers = true, help_heading = "How long, and how much")]
    seconds: Option<u64>,

    /// Begin so many pairs a second, each an acquire and a release, also while others are late, and count from when each was
    /// due (seq, par, hot, scale)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=RATE_MAX), help_heading = "How long, and how much")]
    rate: Option<u32>,

    /// Clients of par and scale, and those that make what other workloads need [default: 64]
    #[arg(long, value_name = "N", value_parser = parse_count, help_heading = "How long, and how much")]
    clients: Option<usize>,

    /// Connections that all clients share [default: one for each client; one for all sessions]
    #[arg(long, value_name = "N", value_parser = parse_count, help_heading = "How long, and how much")]
    connections: Option<usize>,

    /// How often outage kills the leader [default: 5]
    #[arg(long, value_name = "N", value_parser = parse_count, help_heading = "How long, and how much")]
    kills: Option<usize>,

    /// Leases of holders, renew and expire [default: 50000], and of capacity [default: 150000]
    #[arg(long, value_name = "N", value_parser = parse_count, help_heading = "How long, and how much")]
    leases: Option<usize>,

    /// Streams of watch [default: 5000], and of capacity [default: 15000]
    #[arg(long, value_name = "N", value_parser = parse_count, help_heading = "How long, and how much")]
    streams: Option<usize>,

    /// How many of these streams watch the same lock [default: 50]
    #[arg(long, value_name = "N", value_parser = parse_count, help_heading = "How long, and how much")]
    fan_out: Option<usize>,

    /// Locks that are held in scale, once for each number [default: 1000,10000,100000,1000000]
    #[arg(long, value_name = "N,…", value_delimiter = ',', value_parser = parse_count, help_heading = "How long, and how much")]
    held: Vec<usize>,

    /// Locks that are taken and given back in churn [default: 1000000]
    #[arg(long, value_name = "N", value_parser = parse_count, help_heading = "How long, and how much")]
    names: Option<usize>,

    /// Do a little of everything, to see that it works; the figures mean nothing
    #[arg(long, help_heading = "How long, and how much")]
    smoke: bool,

    /// Where the nodes keep their data while it lasts: on the disk that is to be measured [default: TMPDIR]
    #[arg(long, value_name = "DIR", help_heading = "Data and output")]
    dir: Option<PathBuf>,

    /// Draw latency by percentile, one line a system
    #[arg(long, value_name = "FILE.svg", value_parser = parse_plot, help_heading = "Data and output")]
    plot: Option<PathBuf>,

    /// Print JSON: one object a line for each system in each workload; errors, too
    #[arg(long, help_heading = "Data and output")]
    json: bool,
}

fn parse_workload(text: &str) -> Result<Workload, String> {
    let names: Vec<&str> = Workload::ALL.iter().map(|workload| workload.name()).collect();
    Workload::parse(text).ok_or_else(|| match text.contains(',') {
        true => "several are separated by spaces".to_owned(),
        false => format!("must be one of {}", names.join(", ")),
    })
}

fn parse_bench_endpoint(text: &str) -> Result<String, String> {
    let endpoint = parse_endpoint(text)?;
    match endpoint.starts_with("unix://") {
        true => Err("must be a URL of a port: http:// or https://".to_owned()),
        false => Ok(endpoint),
    }
}

fn parse_seconds(text: &str) -> Result<u64, String> {
    let seconds = text.parse().ok().filter(|seconds| (1..=SECONDS_MAX).contains(seconds));
    seconds.ok_or_else(|| format!("must be whole seconds, 1 to {SECONDS_MAX}, without a unit"))
}

/// Before anything is measured: it would be a pity afterwards.
fn parse_plot(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    if path.extension().is_none_or(|extension| extension != "svg") {
        return Err("must end in .svg, which is what it is".to_owned());
    }
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() && !folder.is_dir() => {
            Err(format!("there is no folder {}", folder.display()))
        }
        _ => Ok(path),
    }
}

fn parse_nodes(text: &str) -> Result<usize, String> {
    match text {
        "1" => Ok(1),
        "3" => Ok(3),
        _ => Err("must be 1 or 3".to_owned()),
    }
}

fn parse_through(text: &str) -> Result<Through, String> {
    [Through::Unary, Through::Session]
        .into_iter()
        .find(|through| through.name() == text)
        .ok_or_else(|| "must be unary or session".to_owned())
}

#[cfg(feature = "rivals")]
fn parse_rival(text: &str) -> Result<RivalService, String> {
    RivalService::parse(text)
        .ok_or_else(|| format!("must be one of {}", RivalService::ALL.map(RivalService::name).join(", ")))
}

fn parse_count(text: &str) -> Result<usize, String> {
    text.parse().ok().filter(|count| *count > 0).ok_or_else(|| "must be a whole number above 0".to_owned())
}

pub(crate) fn bench(args: &BenchArgs) -> ExitCode {
    // Its clients are many.
    raise_file_limit();
    // One thread, and the main one: processes that are started end with the thread that started them.
    let outcome = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| CommandFailure::new(exit::NO_SERVICE, format!("cannot start the runtime: {error}")))
        .and_then(|runtime| runtime.block_on(measure(args)));
    match outcome {
        Ok(code) => ExitCode::from(code),
        Err(failure) => failure.report(args.json),
    }
}

async fn measure(args: &BenchArgs) -> Result<u8, CommandFailure> {
    // Before there is anything to leave behind.
    let mut interrupts = Interrupts::listen()?;
    let (plan, progress) = (args.plan()?, Arc::new(BenchProgress::default()));
    let mut output = Output::start(args)?;
    let bar = Bar::new(&progress);
    let outcome = tokio::select! {
        outcome = lowkey_bench::run(&plan, &progress, |reports, skipped| output.take(&bar, reports, skipped)) => outcome,
        () = bar.draw() => Ok(()),
        code = interrupts.next() => {
            bar.clear();
            if !args.server.is_empty() {
                say("lowkey: what was held in the cluster ends with its leases, in 10 minutes at most");
            }
            return Ok(code);
        }
    };
    bar.clear();
    outcome.map_err(|problem| failure(&problem))?;
    output.end(args)
}

fn failure(problem: &BenchProblem) -> CommandFailure {
    match problem {
        BenchProblem::Wrong(_) => {
            CommandFailure::new(exit::NO, format!("{problem}; please report this, with the command line"))
        }
        BenchProblem::Failed(_) => CommandFailure::new(exit::NO_SERVICE, problem.to_string()),
    }
}

impl BenchArgs {
    fn plan(&self) -> Result<BenchPlan, CommandFailure> {
        let workloads =
            if self.workloads.is_empty() { Workload::by_default() } else { self.workloads.clone() };
        self.check_options(&workloads)?;
        let place = if self.server.is_empty() {
            LowkeyAt::Own(std::env::current_exe().map_err(|error| {
                CommandFailure::new(
                    exit::NO_SERVICE,
                    format!("cannot find the program to start nodes with: {error}"),
                )
            })?)
        } else {
            LowkeyAt::Running(self.server.clone(), self.credentials())
        };
        // What is running has as many nodes as it has.
        let nodes = if self.server.is_empty() { self.nodes.clone() } else { vec![self.server.len()] };
        Ok(BenchPlan {
            workloads,
            sizes: self.sizes(),
            nodes,
            place,
            through: self.through.clone(),
            setups: self.setups(),
            setups_of_seq: if self.smoke && self.server.is_empty() { SETUPS.to_vec() } else { Vec::new() },
            others: self.others(),
            connections: self.connections,
            starter: starter(self.dir.clone().unwrap_or_else(std::env::temp_dir)),
        })
    }

    fn setups(&self) -> Vec<Setup> {
        let wanted = [self.tls, self.access, self.audit_off];
        SETUPS.into_iter().zip(wanted).filter(|(_, is_wanted)| *is_wanted).map(|(setup, _)| setup).collect()
    }

    fn credentials(&self) -> Credentials {
        let identity = self.cert.clone().zip(self.key.clone());
        Credentials { ca: self.ca.clone(), identity, token_file: self.auth_file.clone() }
    }

    /// An option that none of the workloads heeds is a mistake: whoever gave it expects another run than this.
    fn check_options(&self, workloads: &[Workload]) -> Result<(), CommandFailure> {
        use Workload::{Capacity, Churn, Expire, Holders, Hot, Outage, Par, Renew, Scale, Seq, Watch};
        let options: [(&str, bool, &[Workload]); 8] = [
            ("--rate", self.rate.is_some(), &[Seq, Par, Hot, Scale]),
            (
                "--clients",
                self.clients.is_some(),
                &[Par, Holders, Renew, Expire, Watch, Capacity, Scale, Churn],
            ),
            ("--kills", self.kills.is_some(), &[Outage]),
            ("--leases", self.leases.is_some(), &[Holders, Renew, Expire, Capacity]),
            ("--streams", self.streams.is_some(), &[Watch, Capacity]),
            ("--fan-out", self.fan_out.is_some(), &[Watch, Capacity]),
            ("--held", !self.held.is_empty(), &[Scale]),
            ("--names", self.names.is_some(), &[Churn]),
        ];
        for (option, is_given, users) in options {
            if is_given && !users.iter().any(|user| workloads.contains(user)) {
                let users: Vec<&str> = users.iter().map(|user| user.name()).collect();
                let users = users.join(", ");
                return Err(CommandFailure::new(
                    exit::USAGE,
                    format!("{option} makes no difference here: it is for {users}"),
                ));
            }
        }
        Ok(())
    }

    /// Those to be measured beside lowkey that are installed.
    #[cfg(feature = "rivals")]
    fn others(&self) -> Vec<Arc<dyn Contender>> {
        let mut others = Vec::new();
        for rival in &self.against {
            match rival.contenders() {
                Some(contenders) => others.extend(contenders),
                None => {
                    let (name, package) = (rival.name(), rival.package());
                    say(&format!(
                        "lowkey: {name} sits out: it is not installed; Debian's package is {package}"
                    ));
                }
            }
        }
        others
    }

    #[cfg(not(feature = "rivals"))]
    fn others(&self) -> Vec<Arc<dyn Contender>> {
        Vec::new()
    }

    fn sizes(&self) -> Sizes {
        let mut sizes = if self.smoke { Sizes::smoke() } else { Sizes::full() };
        if let Some(seconds) = self.seconds {
            sizes.measured = Duration::from_secs(seconds);
        }
        sizes.rate = self.rate.map(f64::from);
        if let Some(clients) = self.clients {
            sizes.par_clients = clients;
        }
        sizes.kills = self.kills.unwrap_or(sizes.kills);
        sizes.leases = self.leases.unwrap_or(sizes.leases);
        sizes.capacity_leases = self.leases.unwrap_or(sizes.capacity_leases);
        sizes.streams = self.streams.unwrap_or(sizes.streams);
        sizes.capacity_streams = self.streams.unwrap_or(sizes.capacity_streams);
        if !self.held.is_empty() {
            sizes.held = self.held.clone();
        }
        sizes.names = self.names.unwrap_or(sizes.names);
        sizes.fan_out = self.fan_out.unwrap_or(sizes.fan_out);
        sizes
    }
}

/// Starts processes in such a way that they do not outlive this one, whatever ends it.
fn starter(folder: PathBuf) -> Starter {
    let command = |program: &Path| {
        let mut command = Command::new("/proc/self/exe");
        command.arg0("lowkey").args(run::launcher_args(false)).arg(program);
        command
    };
    Starter { command: Arc::new(command), folder }
}

/// What is printed while it goes on, and at the end.
struct Output {
    feed: Option<Feed>,
    reports: Vec<BenchReport>,
    skipped: Vec<Skipped>,
    outcome: io::Result<()>,
}

impl Output {
    fn start(args: &BenchArgs) -> Result<Self, CommandFailure> {
        let feed = match args.json {
            true => None,
            false => Some(Feed::start(COLUMNS, true).map_err(|error| {
                CommandFailure::new(exit::NO, format!("cannot write the output: {error}"))
            })?),
        };
        Ok(Self { feed, reports: Vec::new(), skipped: Vec::new(), outcome: Ok(()) })
    }

    fn take(&mut self, bar: &Bar<'_>, reports: Vec<BenchReport>, skipped: Vec<Skipped>) {
        bar.clear();
        for skipped in skipped {
            // What holds for several sizes is said once.
            if !self.skipped.contains(&skipped) {
                let Skipped { system, workload, reason } = &skipped;
                say(&format!("lowkey: {workload}: {system} sits out: {reason}"));
                self.skipped.push(skipped);
            }
        }
        for report in &reports {
            if self.outcome.is_ok() {
                self.outcome = match &self.feed {
                    Some(feed) => print_report(feed, report),
                    None => print_json(report),
                };
            }
        }
        self.reports.extend(reports);
    }

    fn end(mut self, args: &BenchArgs) -> Result<u8, CommandFailure> {
        if self.reports.is_empty() {
            return Err(CommandFailure::new(exit::NO_SERVICE, "nothing was measured"));
        }
        if self.outcome.is_ok() {
            self.outcome = print_ratios(&ratios(&self.reports), args.json);
        }
        if let Some(path) = &args.plot {
            std::fs::write(path, plot(&self.reports)).map_err(|error| {
                CommandFailure::new(exit::NO, format!("cannot write {}: {error}", path.display()))
            })?;
        }
        printed(self.outcome)
    }
}

fn print_report(feed: &Feed, report: &BenchReport) -> io::Result<()> {
    let begin = |what: &str| {
        [
            report.system.clone(),
            report.workload.to_owned(),
            report.nodes.to_string(),
            report.size.to_string(),
            what.to_owned(),
        ]
    };
    for OperationSummary { operation, count, per_second, p50_ms, p90_ms, p99_ms, p999_ms, max_ms, .. } in
        &report.operations
    {
        let rest = [
            count.to_string(),
            format!("{per_second:.0}"),
            format!("{p50_ms:.3}"),
            format!("{p90_ms:.3}"),
            format!("{p99_ms:.3}"),
            format!("{p999_ms:.3}"),
            format!("{max_ms:.3}"),
        ];
        feed.row(begin(operation).into_iter().chain(rest))?;
    }
    for Figure { name, value, unit } in &report.figures {
        let digits = if value.fract() == 0.0 { 0 } else { 2 };
        feed.row(begin(name).into_iter().chain([format!("{value:.digits$} {unit}").trim_end().to_owned()]))?;
    }
    Ok(())
}

/// How lowkey compares with others of the same run: each ratio is its figure divided by theirs.
fn print_ratios(ratios: &[Ratio], as_json: bool) -> io::Result<()> {
    if as_json {
        return ratios.iter().try_for_each(print_json);
    }
    if ratios.is_empty() {
        return Ok(());
    }
    let mut table = TextTable::new(RATIO_COLUMNS);
    for ratio in ratios {
        let figure = |value: f64| format!("{} {}", rounded(value), ratio.unit);
        table.row([
            ratio.system.clone(),
            ratio.against.clone(),
            ratio.workload.to_owned(),
            ratio.nodes.to_string(),
            ratio.size.to_string(),
            ratio.what.to_owned(),
            figure(ratio.ours),
            figure(ratio.theirs),
            format!("{:.2}", ratio.ratio),
            if ratio.is_more_better { "more" } else { "less" }.to_owned(),
        ]);
    }
    if io::stdout().is_terminal() {
        writeln!(io::stdout())?;
    }
    table.print(true)
}

/// To about three digits.
fn rounded(value: f64) -> String {
    let digits = if value >= 100.0 {
        0
    } else if value >= 10.0 {
        1
    } else {
        3
    };
    format!("{value:.digits$}")
}

/// How far it has come, in one line of a terminal that is drawn over and over.
struct Bar<'a> {
    progress: &'a BenchProgress,
    is_terminal: bool,
}

impl<'a> Bar<'a> {
    fn new(progress: &'a BenchProgress) -> Self {
        Self { progress, is_terminal: io::stderr().is_terminal() }
    }

    /// Never resolves.
    async fn draw(&self) {
        let mut ticks = interval(DRAW_INTERVAL);
        loop {
            ticks.tick().await;
            let glance = self.progress.glance();
            let share = glance.share.unwrap_or_default();
            let done = (share * BAR_WIDTH as f64).round() as usize;
            let bar = format!("{}{}", "█".repeat(done), "░".repeat(BAR_WIDTH - done));
            self.write(&format!("\r\x1b[2K{bar} {:3.0} %  {}", share * 100.0, glance.stage));
        }
    }

    fn clear(&self) {
        self.write("\r\x1b[2K");
    }

    fn write(&self, text: &str) {
        if self.is_terminal {
            // Nobody misses it.
            let _ = io::stderr().lock().write_all(text.as_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(feature = "rivals")]
    fn whom_to_measure_against_is_told_by_name() {
        assert_eq!(parse_rival("etcd"), Ok(RivalService::Etcd));
        assert_eq!(parse_rival("consul").unwrap_err(), "must be one of etcd, zookeeper, redis, postgres");
    }

    #[test]
    fn an_option_that_makes_no_difference_is_refused() {
        use clap::Parser as _;

        #[derive(Debug, clap::Parser)]
        struct Line {
            #[command(flatten)]
            bench: BenchArgs,
        }
        let refusal = |line: &str| {
            let Line { bench } = Line::parse_from(line.split(' '));
            bench.plan().err().map(|failure| (failure.code, failure.line))
        };
        let for_leases = "--leases makes no difference here: it is for holders, renew, expire, capacity";
        assert_eq!(refusal("bench seq par --leases 5"), Some((exit::USAGE, for_leases.to_owned())));
        let for_scale = "--held makes no difference here: it is for scale";
        assert_eq!(refusal("bench --held 5"), Some((exit::USAGE, for_scale.to_owned())));
        assert_eq!(refusal("bench seq renew --leases 5"), None);
        assert_eq!(refusal("bench --leases 5 --rate 5 --clients 5 --streams 5 --fan-out 5"), None);
    }

    #[test]
    fn workloads_are_told_by_name() {
        assert_eq!(parse_workload("par"), Ok(Workload::Par));
        assert_eq!(
            parse_workload("fast").unwrap_err(),
            "must be one of seq, par, hot, outage, holders, renew, expire, watch, capacity, scale, churn"
        );
    }
}
