//! How lowkey compares with others that did the same work in the same run.
//!
//! Figures of two machines, or of two days, say little about each other. A ratio of the same run does.

use serde::Serialize;

use crate::lowkey::Setup;
use crate::report::BenchReport;
use crate::workload::Workload;

/// What is compared in one workload.
struct Measure {
    /// What it is called in tables.
    what: &'static str,
    unit: &'static str,
    is_more_better: bool,
    of: fn(&BenchReport) -> Option<f64>,
}

/// One figure of lowkey, the same of another, and their quotient.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Ratio {
    /// Which way of asking lowkey.
    pub system: String,
    /// With whom it is compared.
    pub against: String,
    /// In what: the workload's name.
    pub workload: &'static str,
    /// On how many nodes.
    pub nodes: usize,
    /// With how many clients, leases or streams.
    pub size: usize,
    /// What is compared.
    pub what: &'static str,
    /// lowkey's figure.
    pub ours: f64,
    /// The other's.
    pub theirs: f64,
    /// Of both.
    pub unit: &'static str,
    /// Ours divided by theirs.
    pub ratio: f64,
    /// Whether a ratio above 1 speaks for lowkey.
    pub is_more_better: bool,
}

/// Every report of lowkey beside those of others in the same case, in the order of the reports.
pub fn ratios(reports: &[BenchReport]) -> Vec<Ratio> {
    let case = |report: &BenchReport| (report.workload, report.nodes, report.size);
    let mut ratios = Vec::new();
    for ours in reports.iter().filter(|report| report.is_lowkey) {
        let rivals = reports.iter().filter(|report| case(report) == case(ours));
        let rivals = rivals.filter(|report| !report.is_lowkey || is_measured_against(ours, report));
        for theirs in rivals {
            ratios.extend(measures(ours.workload).iter().filter_map(|measure| ratio(measure, ours, theirs)));
        }
    }
    ratios
}

/// lowkey is compared with itself: with more than it comes with to as it comes, and as it comes to without the audit.
fn is_measured_against(ours: &BenchReport, theirs: &BenchReport) -> bool {
    let (ours, theirs) = (&*ours.system, &*theirs.system);
    let has_more = |setup: Setup| setup.bare_name(ours) == Some(theirs);
    has_more(Setup::Tls) || has_more(Setup::Access) || Setup::NoAudit.bare_name(theirs) == Some(ours)
}

fn ratio(measure: &Measure, ours: &BenchReport, theirs: &BenchReport) -> Option<Ratio> {
    let figure = |report| (measure.of)(report).filter(|figure| *figure > 0.0);
    let (our_figure, their_figure) = (figure(ours)?, figure(theirs)?);
    Some(Ratio {
        system: ours.system.clone(),
        against: theirs.system.clone(),
        workload: ours.workload,
        nodes: ours.nodes,
        size: ours.size,
        what: measure.what,
        ours: our_figure,
        theirs: their_figure,
        unit: measure.unit,
        ratio: our_figure / their_figure,
        is_more_better: measure.is_more_better,
    })
}

const ACQUIRE_P50: Measure = Measure {
    what: "acquire p50",
    unit: "ms",
    is_more_better: false,
    of: |report| Some(report.operation("acquire")?.p50_ms),
};
const ACQUIRE_P99: Measure = Measure {
    what: "acquire p99",
    unit: "ms",
    is_more_better: false,
    of: |report| Some(report.operation("acquire")?.p99_ms),
};
const PAIRS: Measure = Measure {
    what: "pairs",
    unit: "/s",
    is_more_better: true,
    of: |report| Some(report.operation("release")?.per_second),
};
const HAND_OVERS: Measure = Measure {
    what: "hand-overs",
    unit: "/s",
    is_more_better: true,
    of: |report| Some(report.operation("hand-over")?.per_second),
};
const HAND_OVER_P50: Measure = Measure {
    what: "hand-over p50",
    unit: "ms",
    is_more_better: false,
    of: |report| Some(report.operation("hand-over")?.p50_ms),
};
const GAP_P50: Measure = Measure {
    what: "gap p50",
    unit: "ms",
    is_more_better: false,
    of: |report| Some(report.operation("gap")?.p50_ms),
};
const GAP_MAX: Measure = Measure {
    what: "gap max",
    unit: "ms",
    is_more_better: false,
    of: |report| Some(report.operation("gap")?.max_ms),
};
const TIME_TO_MAKE: Measure = Measure {
    what: "time to make them",
    unit: "s",
    is_more_better: false,
    of: |report| report.figure("time to make them"),
};
const MEMORY: Measure = Measure {
    what: "leader's memory",
    unit: "MB",
    is_more_better: false,
    of: |report| report.figure("leader's memory"),
};

fn measures(workload: &str) -> &'static [Measure] {
    match Workload::parse(workload) {
        Some(Workload::Seq) => &[ACQUIRE_P50, ACQUIRE_P99],
        Some(Workload::Par) => &[PAIRS, ACQUIRE_P50, ACQUIRE_P99, MEMORY],
        Some(Workload::Hot) => &[HAND_OVERS, HAND_OVER_P50],
        Some(Workload::Outage) => &[GAP_P50, GAP_MAX],
        Some(Workload::Holders) => &[TIME_TO_MAKE, MEMORY],
        _ => &[],
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::recorder::Recorder;
    use crate::run::Case;

    fn report(system: &str, is_lowkey: bool, nodes: usize, ms: u64) -> BenchReport {
        let recorder = Recorder::default();
        recorder.start();
        recorder.took("acquire", Duration::from_millis(ms));
        recorder.stop();
        let case = Case { workload: Workload::Seq, size: 1, nodes };
        BenchReport::new(system.to_owned(), is_lowkey, nodes, &case, &recorder)
    }

    #[test]
    fn only_the_same_work_on_as_many_nodes_is_compared() {
        let reports = [
            report("lowkey", true, 1, 10),
            report("lowkey session", true, 1, 5),
            report("etcd", false, 1, 20),
            report("lowkey tls", true, 1, 12),
            report("lowkey session access", true, 1, 10),
            report("lowkey no audit", true, 1, 8),
            report("etcd", false, 3, 40),
        ];
        let found: Vec<(String, String, f64)> = ratios(&reports)
            .into_iter()
            .filter(|ratio| ratio.what == "acquire p50")
            .map(|ratio| (ratio.system, ratio.against, (ratio.ratio * 100.0).round() / 100.0))
            .collect();
        assert_eq!(
            found,
            [
                ("lowkey".into(), "etcd".into(), 0.5),
                ("lowkey".into(), "lowkey no audit".into(), 1.25),
                ("lowkey session".into(), "etcd".into(), 0.25),
                ("lowkey tls".into(), "lowkey".into(), 1.2),
                ("lowkey tls".into(), "etcd".into(), 0.6),
                ("lowkey session access".into(), "lowkey session".into(), 2.0),
                ("lowkey session access".into(), "etcd".into(), 0.5),
                ("lowkey no audit".into(), "etcd".into(), 0.4),
            ]
        );
    }
}
