//! What can be done to a lock service, and how much of it.

use std::fmt;
use std::time::Duration;

/// What is done. A *pair* is one acquire and one release.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Workload {
    /// One client, one lock, pair after pair.
    Seq,
    /// Many clients, each with a lock of its own.
    Par,
    /// Many clients after one lock, each waiting for its turn.
    Hot,
    /// The leader is killed while a client goes on trying.
    Outage,
    /// Many leases with one lock each are made.
    Holders,
    /// Many leases are kept alive, beside pairs at a fixed rate.
    Renew,
    /// Many leases run out at the same moment, beside pairs at a fixed rate.
    Expire,
    /// Many streams are told of changes at a fixed rate.
    Watch,
    /// Very many leases are kept alive and very many streams are told of changes, at once and beside pairs.
    Capacity,
    /// Many clients with a lock each, as in [`Workload::Par`], while very many other locks are held.
    Scale,
    /// Very many locks are taken and given back, each of them once.
    Churn,
}

impl Workload {
    /// All of them.
    pub const ALL: [Self; 11] = [
        Self::Seq,
        Self::Par,
        Self::Hot,
        Self::Outage,
        Self::Holders,
        Self::Renew,
        Self::Expire,
        Self::Watch,
        Self::Capacity,
        Self::Scale,
        Self::Churn,
    ];

    /// Those that are run if none is named, in that order: all that take no longer than some seconds each.
    pub fn by_default() -> Vec<Self> {
        let takes_long = |workload: &Self| matches!(workload, Self::Capacity | Self::Scale | Self::Churn);
        Self::ALL.into_iter().filter(|workload| !takes_long(workload)).collect()
    }

    /// What it is called.
    pub fn name(self) -> &'static str {
        match self {
            Self::Seq => "seq",
            Self::Par => "par",
            Self::Hot => "hot",
            Self::Outage => "outage",
            Self::Holders => "holders",
            Self::Renew => "renew",
            Self::Expire => "expire",
            Self::Watch => "watch",
            Self::Capacity => "capacity",
            Self::Scale => "scale",
            Self::Churn => "churn",
        }
    }

    /// The workload of this name.
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|workload| workload.name() == name)
    }

    /// The one figure that stands for the whole: an operation that is timed.
    pub fn main_operation(self) -> &'static str {
        match self {
            Self::Seq | Self::Par | Self::Renew | Self::Capacity | Self::Scale => "acquire",
            Self::Hot => "hand-over",
            Self::Outage => "gap",
            Self::Holders => "hold",
            Self::Expire => "late",
            Self::Watch => "delivery",
            Self::Churn => "pair",
        }
    }

    /// It is made of requests alike, so that contenders can take turns at it.
    pub(crate) fn is_interleaved(self) -> bool {
        matches!(self, Self::Seq | Self::Par | Self::Hot)
    }

    /// It says nothing about the way that single requests take, so that one way is enough.
    pub(crate) fn has_one_way(self) -> bool {
        self == Self::Outage || self.is_for_lowkey_alone()
    }

    /// It asks for what only lowkey is asked for.
    pub(crate) fn is_for_lowkey_alone(self) -> bool {
        matches!(self, Self::Renew | Self::Expire | Self::Watch | Self::Capacity | Self::Scale | Self::Churn)
    }

    /// While it is measured there is nothing but pairs, so that one pair has its share of everything.
    pub(crate) fn is_pairs_alone(self) -> bool {
        matches!(self, Self::Seq | Self::Par | Self::Scale)
    }
}

impl fmt::Display for Workload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How much of everything.
#[derive(Clone, Debug)]
pub struct Sizes {
    /// How long each contender is measured in all, where a workload does not say that by itself.
    pub measured: Duration,
    /// Into how many turns that is divided.
    pub turns: u32,
    /// Pairs a second, whatever becomes of them; otherwise each client sends the next when the last is answered.
    pub rate: Option<f64>,
    /// Clients of `par`.
    pub par_clients: usize,
    /// Clients of `hot`, once for each number.
    pub hot_clients: Vec<usize>,
    /// How often the leader is killed.
    pub kills: usize,
    /// All is quiet for so long before a kill, and watched for so long after: a second gap counts as well.
    pub quiet: Duration,
    /// Leases of `holders`, `renew` and `expire`.
    pub leases: usize,
    /// Time to live of leases that are kept alive.
    pub kept_ttl: Duration,
    /// Time to live of leases that run out.
    pub mortal_ttl: Duration,
    /// Pairs a second beside `renew` and `expire`.
    pub pairs_beside: f64,
    /// Streams of `watch`.
    pub streams: usize,
    /// Leases of `capacity`.
    pub capacity_leases: usize,
    /// Streams of `capacity`.
    pub capacity_streams: usize,
    /// How many streams watch the same lock.
    pub fan_out: usize,
    /// Changes a second that they are told of.
    pub changes: f64,
    /// Locks that are held in `scale`, once for each number.
    pub held: Vec<usize>,
    /// Locks that are taken and given back in `churn`.
    pub names: usize,
}

impl Sizes {
    /// What figures are made with.
    pub fn full() -> Self {
        Self {
            measured: Duration::from_secs(10),
            turns: 3,
            rate: None,
            par_clients: 64,
            hot_clients: vec![16, 256],
            kills: 5,
            quiet: Duration::from_secs(1),
            leases: 50_000,
            kept_ttl: Duration::from_secs(10),
            mortal_ttl: Duration::from_secs(10),
            pairs_beside: 1_000.0,
            streams: 5_000,
            capacity_leases: 150_000,
            capacity_streams: 15_000,
            fan_out: 50,
            changes: 100.0,
            held: vec![1_000, 10_000, 100_000, 1_000_000],
            names: 1_000_000,
        }
    }

    /// What shows in a few seconds that everything works and nothing is wrong. The figures mean nothing.
    ///
    /// Leases that are kept live long enough for a machine that is busy with something else: it must not look as if
    /// they were lost.
    pub fn smoke() -> Self {
        Self {
            measured: Duration::from_millis(500),
            turns: 1,
            par_clients: 8,
            hot_clients: vec![8],
            kills: 1,
            quiet: Duration::from_millis(300),
            leases: 200,
            kept_ttl: Duration::from_secs(5),
            mortal_ttl: Duration::from_secs(3),
            pairs_beside: 100.0,
            streams: 100,
            capacity_leases: 200,
            capacity_streams: 100,
            fan_out: 10,
            held: vec![500, 2_500],
            names: 2_000,
            ..Self::full()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_workload_is_found_by_its_name() {
        for workload in Workload::ALL {
            assert_eq!(Workload::parse(workload.name()), Some(workload));
        }
        assert_eq!(Workload::parse("none"), None);
    }
}
