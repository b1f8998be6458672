//! Drawings as SVG: latency by percentile, a panel for each workload, a line for each system; and for `scale`, what
//! things cost by the number of locks that are held.
//!
//! With latencies, the further to the right, the rarer: each of 90, 99, 99.9 % is as far from the last as the last from
//! the one before.

mod panel;

use std::fmt::Write as _;

use self::panel::{HEIGHT, Panel, PlotLine, Vertical, WIDTH};
use crate::report::BenchReport;
use crate::workload::Workload;

/// How many powers of ten the percentiles have: up to 99.99 %.
const NINES: f64 = 4.0;

/// Draws the main operation of each workload. Systems on different numbers of nodes are different lines.
pub fn plot(reports: &[BenchReport]) -> String {
    let panels: Vec<Panel> = latencies(reports).into_iter().chain(costs(reports)).collect();
    let height = HEIGHT * panels.len() as f64;
    let mut svg = String::new();
    let _ = writeln!(
        svg,
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" font-family="sans-serif" font-size="12">"#
    );
    let _ = writeln!(svg, r#"<rect width="{WIDTH}" height="{height}" fill="white"/>"#);
    for (number, panel) in panels.iter().enumerate() {
        panel.draw(&mut svg, HEIGHT * number as f64);
    }
    svg.push_str("</svg>\n");
    svg
}

fn latencies(reports: &[BenchReport]) -> Vec<Panel> {
    let mut panels: Vec<Panel> = Vec::new();
    for report in reports {
        let Some(workload) = Workload::parse(report.workload) else { continue };
        let Some(summary) = report.operation(workload.main_operation()) else { continue };
        let title = format!("{} {}: {}", report.workload, report.size, workload.main_operation());
        let points = summary.curve.iter().map(|(share, ms)| (rarity(*share), *ms)).collect();
        let line = PlotLine { system: report.system.clone(), nodes: report.nodes, points };
        match panels.iter_mut().find(|panel| panel.title == title) {
            Some(panel) => panel.lines.push(line),
            None => panels.push(Panel {
                title,
                marks: percentiles(),
                vertical: Vertical::Tens,
                unit: "ms",
                lines: vec![line],
            }),
        }
    }
    panels
}

fn percentiles() -> Vec<(f64, String)> {
    [(0.0, "0"), (0.5, "50"), (0.9, "90"), (0.99, "99"), (0.999, "99.9"), (0.9999, "99.99 %")]
        .map(|(share, label)| (rarity(share), label.to_owned()))
        .into()
}

/// Where a share of all is on the horizontal axis.
fn rarity(share: f64) -> f64 {
    -(1.0 - share).max(10_f64.powf(-NINES)).log10() / NINES
}

/// What is told of `scale`, by the number of locks that are held.
type Cost = (&'static str, &'static str, fn(&BenchReport) -> Option<f64>);

const COSTS: [Cost; 3] = [
    ("scale: leader's time a pair", "µs", |report| report.figure("leader's time a pair")),
    ("scale: acquire p50", "ms", |report| Some(report.operation("acquire")?.p50_ms)),
    ("scale: leader's memory", "MB", |report| report.figure("leader's memory")),
];

fn costs(reports: &[BenchReport]) -> Vec<Panel> {
    let of_scale = |report: &&BenchReport| report.workload == Workload::Scale.name();
    let mut sizes: Vec<usize> = reports.iter().filter(of_scale).map(|report| report.size).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let ([least, .., most], true) = (&sizes[..], sizes.len() > 1) else { return Vec::new() };
    let place = |size: usize| (size as f64 / *least as f64).ln() / (*most as f64 / *least as f64).ln();
    let marks: Vec<(f64, String)> = sizes.iter().map(|size| (place(*size), format!("{size} held"))).collect();
    let panel = |(title, unit, figure): Cost| {
        let mut lines: Vec<PlotLine> = Vec::new();
        for report in reports.iter().filter(of_scale) {
            let Some(value) = figure(report) else { continue };
            let point = (place(report.size), value);
            let is_its = |line: &&mut PlotLine| line.system == report.system && line.nodes == report.nodes;
            match lines.iter_mut().find(is_its) {
                Some(line) => line.points.push(point),
                None => lines.push(PlotLine {
                    system: report.system.clone(),
                    nodes: report.nodes,
                    points: vec![point],
                }),
            }
        }
        Panel { title: title.to_owned(), marks: marks.clone(), vertical: Vertical::Even, unit, lines }
    };
    COSTS.into_iter().map(panel).collect()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::recorder::Recorder;
    use crate::run::Case;

    fn report(system: &str, case: Case, ms: u64) -> BenchReport {
        let recorder = Recorder::default();
        recorder.start();
        (1..=100).for_each(|number| recorder.took("acquire", Duration::from_millis(ms * number)));
        recorder.stop();
        BenchReport::new(system.to_owned(), true, case.nodes, &case, &recorder)
    }

    fn seq(nodes: usize) -> Case {
        Case { workload: Workload::Seq, size: 1, nodes }
    }

    #[test]
    fn there_is_a_panel_for_a_workload_and_a_line_for_a_system() {
        let svg = plot(&[report("lowkey", seq(3), 1), report("a < b", seq(1), 2)]);
        assert_eq!(svg.matches("<polyline").count(), 2);
        assert_eq!(svg.matches("seq 1: acquire").count(), 1);
        assert!(svg.contains("lowkey, 3 nodes") && svg.contains("a &lt; b, 1 node<"));
        assert!(!svg.contains("NaN") && !svg.contains("inf"));
    }

    #[test]
    fn what_is_rarer_is_further_to_the_right() {
        assert!(rarity(0.5) < rarity(0.9) && rarity(0.999) < rarity(1.0));
        assert!((rarity(1.0) - 1.0).abs() < 0.01);
    }

    #[test]
    fn what_things_cost_is_drawn_by_the_number_of_locks_held() {
        let held = |size| report("lowkey", Case { workload: Workload::Scale, size, nodes: 3 }, 1);
        let svg = plot(&[held(1_000), held(100_000), held(10_000)]);
        assert_eq!(svg.matches("scale: acquire p50").count(), 1);
        assert!(svg.contains("1000 held") && svg.contains("100000 held"));
        assert!(!svg.contains("NaN") && !svg.contains("inf"));
        assert!(!plot(&[held(1_000)]).contains("acquire p50"));
    }
}
