//! What a run was like, as one table.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::faults::{Measured, PROMISED_NANOS};
use crate::history::{History, MILLISECOND, Outcome};
use crate::judge::{Finding, around};

/// How many findings are told in full.
const TOLD_IN_FULL: usize = 8;

pub(crate) struct Summary {
    seed: u64,
    seconds: u64,
    faults: BTreeMap<String, u64>,
    measured: Vec<Measured>,
    /// By kind of call and by what came of it.
    operations: BTreeMap<(&'static str, String), u64>,
    writes: BTreeMap<&'static str, u64>,
    beliefs: u64,
    /// Written below `lowkey run`.
    lines: u64,
    events: u64,
    streams: u64,
    compacted: u64,
    observed: u64,
    findings: BTreeMap<&'static str, u64>,
    stories: Vec<String>,
    /// Faults that could not be played, and why.
    pub(crate) missing: BTreeSet<String>,
}

impl Summary {
    pub(crate) fn new(seed: u64, seconds: u64) -> Self {
        Self {
            seed,
            seconds,
            faults: BTreeMap::new(),
            measured: Vec::new(),
            operations: BTreeMap::new(),
            writes: BTreeMap::new(),
            beliefs: 0,
            lines: 0,
            events: 0,
            streams: 0,
            compacted: 0,
            observed: 0,
            findings: BTreeMap::new(),
            stories: Vec::new(),
            missing: BTreeSet::new(),
        }
    }

    pub(crate) fn violations(&self) -> u64 {
        self.findings.values().sum()
    }

    pub(crate) fn add_faults(&mut self, counts: BTreeMap<String, u64>, measured: Vec<Measured>) {
        for (name, count) in counts {
            *self.faults.entry(name).or_default() += count;
        }
        self.measured.extend(measured);
    }

    pub(crate) fn add_history(&mut self, history: &History, findings: &[Finding]) {
        for call in &history.calls {
            let result = match &call.outcome {
                Outcome::Yes(_) => "yes".to_owned(),
                Outcome::No(error) => error.reason.to_string(),
                Outcome::Unknown(why) => format!("no answer ({why})"),
            };
            *self.operations.entry((call.asked.kind(), result)).or_default() += 1;
        }
        for (name, count) in &history.harmed {
            *self.faults.entry((*name).to_owned()).or_default() += count;
        }
        for (name, count) in &history.writes {
            *self.writes.entry(name).or_default() += count;
        }
        self.beliefs += history.beliefs.len() as u64;
        self.lines += history.written.iter().map(|written| written.lines.len() as u64).sum::<u64>();
        self.observed += history.observed.len() as u64;
        for watched in &history.watched {
            self.events += watched.events.len() as u64;
            self.streams += watched.streams;
            self.compacted += watched.compacted;
        }
        for finding in findings {
            println!("VIOLATION {}: {}", finding.violation.invariant, finding.violation.what);
            *self.findings.entry(finding.violation.invariant).or_default() += 1;
            if self.stories.len() < TOLD_IN_FULL {
                let mut story = format!("{}: {}", finding.violation.invariant, finding.violation.what);
                for line in around(history, finding) {
                    story.push_str("\n      ");
                    story.push_str(&line);
                }
                self.stories.push(story);
            }
        }
    }

    fn tell_outages(&self, f: &mut fmt::Formatter<'_>, when: &str, majority_ran: bool) -> fmt::Result {
        let mut outages: Vec<&Measured> =
            self.measured.iter().filter(|measured| measured.majority_ran == majority_ran).collect();
        outages.sort_by_key(|measured| std::cmp::Reverse(measured.outage_nanos));
        let ms = |at: usize| outages.get(at).map_or(0, |measured| measured.outage_nanos / MILLISECOND);
        let late = outages.iter().filter(|measured| measured.outage_nanos > PROMISED_NANOS).count();
        writeln!(f, "  {:>9}  {when}", outages.len())?;
        writeln!(
            f,
            "  {:>6} ms  the longest; median {} ms, p99 {} ms",
            ms(0),
            ms(outages.len() / 2),
            ms(outages.len() / 100)
        )?;
        writeln!(f, "  {late:>9}  longer than the 2 s that are promised")?;
        for Measured { faults, outage_nanos, late_nanos, .. } in outages.iter().take(4) {
            let (outage, late) = (outage_nanos / MILLISECOND, late_nanos / MILLISECOND);
            writeln!(
                f,
                "    {outage:>6} ms  {} (the machine itself was {late} ms late)",
                faults.join(", with ")
            )?;
        }
        Ok(())
    }

    /// The sum of all faults whose names begin so.
    fn faults_like(&self, beginning: &str) -> u64 {
        self.faults.iter().filter(|(name, _)| name.starts_with(beginning)).map(|(_, count)| count).sum()
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\nchaos on real processes: {} s, LOWKEY_CHAOS_SEED={}", self.seconds, self.seed)?;
        writeln!(f, "\n  faults")?;
        for (name, count) in &self.faults {
            writeln!(f, "  {count:>9}  {name}")?;
        }
        for missing in &self.missing {
            writeln!(f, "    SKIPPED  {missing}")?;
        }
        let (kills, partitions, pauses) =
            (self.faults_like("kill"), self.faults_like("partition"), self.faults_like("pause"));
        writeln!(f, "  in short: {kills} kills, {partitions} partitions, {pauses} pauses")?;

        writeln!(f, "\n  operations")?;
        for ((kind, result), count) in &self.operations {
            writeln!(f, "  {count:>9}  {kind}: {result}")?;
        }
        for (result, count) in &self.writes {
            writeln!(f, "  {count:>9}  writes to protected resources: {result}")?;
        }
        writeln!(f, "  {:>9}  lines written below lowkey run", self.lines)?;
        writeln!(f, "  {:>9}  beliefs", self.beliefs)?;
        writeln!(
            f,
            "  {:>9}  events watched, over {} streams, {} compacted",
            self.events, self.streams, self.compacted
        )?;
        writeln!(f, "  {:>9}  leaders observed", self.observed)?;

        writeln!(f, "\n  outages after the end of a fault (after the kill, where it was one node's alone)")?;
        self.tell_outages(f, "while a majority of the nodes ran on", true)?;
        self.tell_outages(f, "after most nodes had to start again", false)?;

        writeln!(f, "\n  {} violations", self.violations())?;
        for (invariant, count) in &self.findings {
            writeln!(f, "  {count:>9}  {invariant}")?;
        }
        for story in &self.stories {
            writeln!(f, "\n    {story}")?;
        }
        Ok(())
    }
}
