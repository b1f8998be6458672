//! The metrics of a node, in the form that Prometheus reads.
//!
//! Some are counted where they happen: requests by the service, turns of the log by the replica thread. The
//! rest is looked up when metrics are requested ([`Observed`]), and costs nothing until then. No label has
//! values that grow with the data: there is one for each kind of request, of answer, and of member.
//!
//! `tally.rs`: the few numbers that nodes tell each other, for a look at the whole cluster.

mod tally;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use lowkey_api::ApiError;
use lowkey_api::v1::NodeReport;
use lowkey_replica::{DiskRoom, Role, Status};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{
    DescriptorEncoder, EncodeGaugeValue, EncodeLabelSet, EncodeMetric as _, text,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::metrics::info::Info;
use prometheus_client::registry::{Registry, Unit};

use self::tally::Tally;
use crate::audit::Audit;
use crate::backups::Told;
use crate::edge::budget::Budget;
use crate::edge::tls::Tls;
use crate::host::clock::Clock;
use crate::lane::Lanes;
use crate::service::recovering_seconds;

/// The content type of `/metrics`.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Everything that a node counts.
pub(crate) struct Metrics {
    registry: Registry,
    requests: Family<RequestLabels, Counter>,
    request_duration: Family<RpcLabel, Histogram, fn() -> Histogram>,
    /// Requests that this node forwarded to the leader.
    pub(crate) passed_on: Counter,
    replica: ReplicaMetrics,
    tally: Tally,
}

/// What is counted where turns are taken.
#[derive(Clone)]
pub(crate) struct ReplicaMetrics {
    pub(crate) applied_entries: Counter,
    pub(crate) log_sync_duration: Histogram,
    pub(crate) log_batch_records: Histogram,
    pub(crate) snapshots_saved: Counter,
    pub(crate) snapshots_failed: Counter,
    pub(crate) late_renewals: Counter,
    elections_won: Counter,
    leader_changes: Counter,
    stalls: Counter,
    stalled_seconds: Counter<f64, std::sync::atomic::AtomicU64>,
    disk_room: Gauge,
    /// What is free where the data is, and how much there is at all; 0 while that is not known.
    disk_bytes: [Gauge; 2],
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    rpc: &'static str,
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RpcLabel {
    rpc: &'static str,
}

/// From a tenth of a millisecond to some seconds.
fn durations() -> Histogram {
    Histogram::new(exponential_buckets(0.000_1, 2.0, 17))
}

impl ReplicaMetrics {
    pub(crate) fn new() -> Self {
        let metrics = Self {
            applied_entries: Counter::default(),
            log_sync_duration: durations(),
            log_batch_records: Histogram::new(exponential_buckets(1.0, 2.0, 13)),
            snapshots_saved: Counter::default(),
            snapshots_failed: Counter::default(),
            late_renewals: Counter::default(),
            elections_won: Counter::default(),
            leader_changes: Counter::default(),
            stalls: Counter::default(),
            stalled_seconds: Counter::default(),
            disk_room: Gauge::default(),
            disk_bytes: Default::default(),
        };
        metrics.disk_room(DiskRoom::Ample);
        metrics
    }

    /// The thread came back after it could not run for this time.
    pub(crate) fn stalled(&self, time: Duration) {
        self.stalls.inc();
        self.stalled_seconds.inc_by(time.as_secs_f64());
    }

    pub(crate) fn standing_changed(&self, before: &Status, now: &Status) {
        if now.role == Role::Leader && before.role != Role::Leader {
            self.elections_won.inc();
        }
        if now.leader.is_some() && (before.leader, before.term) != (now.leader, now.term) {
            self.leader_changes.inc();
        }
    }

    pub(crate) fn disk_room(&self, room: DiskRoom) {
        self.disk_room.set(match room {
            DiskRoom::Exhausted => 0,
            DiskRoom::Reserve => 1,
            DiskRoom::Ample => 2,
        });
    }

    /// What is free on the file system of the data, and how large it is.
    pub(crate) fn disk_bytes(&self, free: u64, size: u64) {
        for (gauge, bytes) in self.disk_bytes.iter().zip([free, size]) {
            gauge.set(i64::try_from(bytes).unwrap_or(i64::MAX));
        }
    }

    fn register(&self, registry: &mut Registry) {
        registry.register(
            "applied_entries",
            "Entries of the log that were applied since the start",
            self.applied_entries.clone(),
        );
        registry.register_with_unit(
            "log_sync_duration",
            "How long it took until a batch of the log was on disk",
            Unit::Seconds,
            self.log_sync_duration.clone(),
        );
        registry.register(
            "log_batch_records",
            "Records that were written to the log together",
            self.log_batch_records.clone(),
        );
        registry.register("snapshots_saved", "Snapshots that were written", self.snapshots_saved.clone());
        registry.register(
            "snapshots_failed",
            "Snapshots that could not be written",
            self.snapshots_failed.clone(),
        );
        registry.register(
            "late_renewals",
            "Renewals that came more than two thirds of the TTL after the one before, at the leader",
            self.late_renewals.clone(),
        );
        registry.register(
            "elections_won",
            "How often this node became leader since the start",
            self.elections_won.clone(),
        );
        registry.register(
            "leader_changes",
            "How often another leader, or the same in another term, became known",
            self.leader_changes.clone(),
        );
        registry.register(
            "stalls",
            "How often the replica could not run for more than 250 ms",
            self.stalls.clone(),
        );
        registry.register_with_unit(
            "stalled",
            "How long that was in all",
            Unit::Seconds,
            self.stalled_seconds.clone(),
        );
        registry.register(
            "disk_room",
            "Room for the log: 2 enough, 1 full (no new leases and locks), 0 full to the last byte",
            self.disk_room.clone(),
        );
    }
}

impl Metrics {
    pub(crate) fn new(replica: &ReplicaMetrics, observed: Observed) -> Self {
        let mut registry = Registry::with_prefix("lowkey");
        let requests = Family::default();
        registry.register(
            "requests",
            "Requests of clients, by kind and by what came of them",
            requests.clone(),
        );
        let request_duration = Family::new_with_constructor(durations as fn() -> Histogram);
        registry.register_with_unit(
            "request_duration",
            "How long requests of clients took; those that may wait for a lock are kinds of their own",
            Unit::Seconds,
            request_duration.clone(),
        );
        let passed_on = Counter::default();
        registry.register("requests_passed_on", "Requests that went on to the leader", passed_on.clone());
        registry.register("build", "The version", Info::new([("version", env!("CARGO_PKG_VERSION"))]));
        replica.register(&mut registry);
        registry.register_collector(Box::new(observed));
        let (replica, tally) = (replica.clone(), Tally::new());
        Self { registry, requests, request_duration, passed_on, replica, tally }
    }

    /// Adds to a report what this node has counted and measured.
    pub(crate) fn report(&self, leases_expired: u64, report: &mut NodeReport) {
        let [disk_free_bytes, disk_size_bytes] =
            self.replica.disk_bytes.each_ref().map(|gauge| u64::try_from(gauge.get()).unwrap_or(0));
        let disk_room = match self.replica.disk_room.get() {
            0 => lowkey_api::v1::DiskRoom::Exhausted,
            1 => lowkey_api::v1::DiskRoom::Reserve,
            _ => lowkey_api::v1::DiskRoom::Ample,
        };
        report.disk_room = disk_room.into();
        (report.disk_free_bytes, report.disk_size_bytes) = (disk_free_bytes, disk_size_bytes);
        report.memory_bytes = resident_bytes().unwrap_or(0);
        report.counters = Some(self.tally.counters(leases_expired));
    }

    /// Begins to time a request.
    pub(crate) fn begin(&self, rpc: &'static str) -> Timed<'_> {
        self.begin_many(rpc, 1)
    }

    /// Begins to time requests that came together.
    pub(crate) fn begin_many(&self, rpc: &'static str, count: usize) -> Timed<'_> {
        Timed { metrics: self, rpc, started: Instant::now(), count }
    }

    /// All of it, as text.
    pub(crate) fn encode(&self) -> String {
        let mut text = String::new();
        match text::encode(&mut text, &self.registry) {
            Ok(()) => text,
            // Writing to a text cannot fail, and nothing else here can.
            Err(fmt::Error) => String::new(),
        }
    }
}

/// Requests that are being timed. If some have not ended when this is dropped, their callers are gone.
pub(crate) struct Timed<'a> {
    metrics: &'a Metrics,
    rpc: &'static str,
    started: Instant,
    /// How many have not ended.
    count: usize,
}

impl Timed<'_> {
    /// All of them ended like this.
    pub(crate) fn end<T>(mut self, outcome: &Result<T, ApiError>) {
        self.end_some(self.count, outcome);
    }

    /// Some of them ended like this.
    pub(crate) fn end_some<T>(&mut self, count: usize, outcome: &Result<T, ApiError>) {
        self.count_some(count, outcome.as_ref().map_or_else(|error| error.reason.as_str(), |_| "OK"));
    }

    /// The rest is counted elsewhere.
    pub(crate) fn leave(mut self) {
        self.count = 0;
    }

    fn count_some(&mut self, count: usize, result: &'static str) {
        if count == 0 {
            return;
        }
        self.count -= count;
        let rpc = self.rpc;
        self.metrics.tally.count(rpc, result == "OK", count as u64, self.started.elapsed());
        self.metrics.requests.get_or_create(&RequestLabels { rpc, result }).inc_by(count as u64);
        let duration = self.metrics.request_duration.get_or_create(&RpcLabel { rpc });
        let seconds = self.started.elapsed().as_secs_f64();
        (0..count).for_each(|_| duration.observe(seconds));
    }
}

impl Drop for Timed<'_> {
    fn drop(&mut self) {
        self.count_some(self.count, "CALLER_GONE");
    }
}

/// What is looked up when metrics are requested.
pub(crate) struct Observed {
    pub(crate) lanes: Lanes,
    pub(crate) budget: Arc<Budget>,
    pub(crate) tls: Option<Arc<Tls>>,
    pub(crate) audit: Option<Arc<Audit>>,
    pub(crate) backups: Arc<Told>,
    pub(crate) clock: Clock,
}

impl fmt::Debug for Observed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Observed").finish_non_exhaustive()
    }
}

impl Collector for Observed {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let encoder = &mut encoder;
        let lane = self.lanes.root();
        let status = lane.view.status();
        let leads = status.role == Role::Leader;
        gauge(encoder, "is_leader", "1 if this node leads", i64::from(leads))?;
        gauge(encoder, "has_leader", "1 if this node knows a leader", i64::from(status.leader.is_some()))?;
        gauge(encoder, "is_serving", "1 if this node leads and may touch leases", i64::from(status.serving))?;
        let diverged = i64::from(status.divergence.is_some());
        gauge(
            encoder,
            "is_diverged",
            "1 if the state differs from other nodes\', and this node does not serve",
            diverged,
        )?;
        gauge(encoder, "term", "The present term; each new one is an election", status.term)?;
        let factor = u64::from(status.timing_factor);
        gauge(encoder, "timing_factor", "How much longer than usual nodes wait for a sign of life", factor)?;
        let tick = Duration::from_millis(status.raft_tick.millis()).as_secs_f64();
        gauge(encoder, "raft_tick_seconds", "The base of Raft's timing, as the node was started", tick)?;
        gauge(encoder, "applied_index", "The last entry that is applied here", status.applied)?;
        gauge(encoder, "committed_index", "The last entry known to be committed", status.committed)?;
        gauge(encoder, "leases", "Leases that exist", status.leases as u64)?;
        gauge(encoder, "locks", "Locks that are held or waited for", status.locks as u64)?;
        gauge(encoder, "waiters", "Places in queues of locks", status.waiters as u64)?;
        gauge(encoder, "fencing_token", "The highest token that was granted", status.last_token.0)?;
        counter(encoder, "leases_expired", "Leases that ran out since the start", status.expired_leases)?;
        gauge(encoder, "members", "Nodes that belong to the cluster", status.members.len() as u64)?;
        let voters = status.members.iter().filter(|member| member.voter).count();
        gauge(encoder, "voters", "Nodes that count for the majority", voters as u64)?;
        gauge(encoder, "watch_streams", "Watches and observed elections", lane.hub.open_streams() as u64)?;
        gauge(
            encoder,
            "client_memory_bytes",
            "What is kept for clients: calls under way, and answers that they have not taken",
            self.budget.used_bytes() as u64,
        )?;
        let recovering = recovering_seconds(&status, self.clock);
        let help = "For how many seconds more at most nothing is granted after a recovery or a restore";
        gauge(encoder, "recovering_seconds", help, recovering)?;
        gauge(encoder, "epoch", "The epoch that tokens began with; 0 if none was taken", lane.view.epoch())?;
        self.encode_backups(encoder)?;
        self.encode_tls(encoder)?;
        self.encode_audit(encoder)?;
        self.encode_access(encoder)?;
        self.encode_members(encoder, &status)?;
        self.encode_inbox(encoder)?;
        encode_process(encoder)
    }
}

impl Observed {
    /// The TLS of the clients' ports; nothing without it.
    fn encode_tls(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let Some(tls) = &self.tls else { return Ok(()) };
        gauge(
            encoder,
            "tls_certificate_expires_timestamp_seconds",
            "When the certificate of the clients' ports expires, in seconds since 1970",
            tls.ends_unix(),
        )?;
        let failed = tls.failed_handshakes();
        counter(
            encoder,
            "tls_handshakes_failed",
            "TLS handshakes of clients that failed since the start",
            failed,
        )
    }

    /// What is kept of grants that are over; nothing if nothing is.
    fn encode_audit(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let Some(audit) = &self.audit else { return Ok(()) };
        let standing = audit.standing();
        counter(encoder, "audit_rows", "Grants that were recorded when they ended", standing.rows)?;
        counter(
            encoder,
            "audit_rows_dropped",
            "Grants that were not recorded: there was no room in the queue",
            standing.dropped_rows,
        )?;
        counter(
            encoder,
            "audit_gaps",
            "Gaps in the audit that were declared since the start",
            standing.gaps,
        )?;
        counter(encoder, "audit_failures", "How often the audit became unwritable", standing.failures)?;
        gauge(
            encoder,
            "audit_writable",
            "1 if the audit can be written, 0 if not; locks go on in both cases",
            i64::from(standing.failure.is_none()),
        )?;
        gauge(encoder, "audit_recorded_index", "The last entry that the audit covers", standing.recorded)?;
        gauge(encoder, "audit_bytes", "What the audit's files take", standing.bytes)
    }

    /// Backups that this node made; and, where it leads and keeps to a plan, how often, and the age of the newest.
    fn encode_backups(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let (made, failed) = (&self.backups.made, &self.backups.failed);
        counter(
            encoder,
            "backups_made",
            "Backups that were made and read back",
            made.load(Ordering::Relaxed),
        )?;
        counter(encoder, "backups_failed", "Backups that could not be made", failed.load(Ordering::Relaxed))?;
        if let Some(every) = self.backups.every_seconds() {
            gauge(encoder, "backup_every_seconds", "The time from one backup to the next", every)?;
        }
        match self.backups.newest_age_seconds() {
            Some(age) => gauge(encoder, "backup_age_seconds", "The age of the newest good backup", age),
            None => Ok(()),
        }
    }

    /// Who is let in.
    fn encode_access(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let guard = &self.lanes.root().view.guard;
        let required = i64::from(guard.is_required());
        gauge(
            encoder,
            "access_required",
            "1 if nobody may do anything without a proof and a grant",
            required,
        )?;
        let help = "Requests of clients that were refused for who they are, by cause";
        let mut metric = encoder.encode_descriptor("access_refused", help, None, MetricType::Counter)?;
        for (cause, count) in guard.refusals() {
            ConstCounter::new(count).encode(metric.encode_family(&[("cause", cause)])?)?;
        }
        Ok(())
    }

    /// The members as the leader sees them; nothing on other nodes.
    fn encode_members(&self, encoder: &mut DescriptorEncoder<'_>, status: &Status) -> fmt::Result {
        let seen = || {
            let members = status.members.iter().filter(|member| member.member != status.member);
            members.filter_map(|member| {
                let labels = [("member", member.member.to_string()), ("node", member.node.name.to_string())];
                Some((labels, member.progress?))
            })
        };
        if seen().next().is_none() {
            return Ok(());
        }
        let lag = seen().map(|(labels, (lag, _))| (labels, lag));
        family(encoder, ("member_lag_entries", "Entries that a member lacks"), lag)?;
        let reachable = seen().map(|(labels, (_, reachable))| (labels, u64::from(reachable)));
        family(encoder, ("member_reachable", "1 if a member answers"), reachable)
    }

    fn encode_inbox(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let depths =
            self.lanes.root().inbox.depths().map(|(lane, depth)| ([("lane", lane.to_owned())], depth as u64));
        family(encoder, ("inbox_depth", "What waits for the replica"), depths.into_iter())
    }
}

fn gauge(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    value: impl EncodeGaugeValue,
) -> fmt::Result {
    let gauge = ConstGauge::new(value);
    gauge.encode(encoder.encode_descriptor(name, help, None, gauge.metric_type())?)
}

fn counter(encoder: &mut DescriptorEncoder<'_>, name: &str, help: &str, value: u64) -> fmt::Result {
    let counter = ConstCounter::new(value);
    counter.encode(encoder.encode_descriptor(name, help, None, counter.metric_type())?)
}

/// Gauges that differ by their labels.
fn family<const N: usize>(
    encoder: &mut DescriptorEncoder<'_>,
    (name, help): (&str, &str),
    values: impl Iterator<Item = ([(&'static str, String); N], u64)>,
) -> fmt::Result {
    let mut metric = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
    for (labels, value) in values {
        ConstGauge::new(value).encode(metric.encode_family(&labels)?)?;
    }
    Ok(())
}

/// The process, as far as the system reports it. Values that it does not report are left out.
fn encode_process(encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
    if let Some(bytes) = resident_bytes() {
        gauge(encoder, "process_resident_memory_bytes", "Memory of the process", bytes)?;
    }
    if let Ok(files) = std::fs::read_dir("/proc/self/fd") {
        let help = "Files and connections that the process has open";
        gauge(encoder, "process_open_fds", help, files.count() as u64)?;
    }
    Ok(())
}

fn resident_bytes() -> Option<u64> {
    let statm = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = statm.split_whitespace().nth(1)?.parse().ok()?;
    Some(pages * rustix::param::page_size() as u64)
}
