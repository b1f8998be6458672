//! How long things took.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;
use serde::Serialize;

/// The longest time that is told apart from longer ones.
const LONGEST: Duration = Duration::from_secs(3600);
/// Times are kept to three digits.
const DIGITS: u8 = 3;

/// Times of operations, in histograms, and single figures. Shared by all clients of one contender.
#[derive(Debug, Default)]
pub struct Recorder {
    /// Nothing is recorded while a workload warms up.
    is_measuring: AtomicBool,
    kept: Mutex<Kept>,
}

#[derive(Debug, Default)]
struct Kept {
    operations: BTreeMap<&'static str, Histogram<u64>>,
    /// How many of the times are of operations that were never begun.
    never_begun: BTreeMap<&'static str, u64>,
    figures: Vec<Figure>,
    since: Option<Instant>,
    measured: Duration,
    /// Processor time of the leader while it was measured.
    processor: Option<Duration>,
}

/// A single figure.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Figure {
    /// What it is.
    pub name: &'static str,
    /// How much.
    pub value: f64,
    /// Of what.
    pub unit: &'static str,
}

/// What became of one operation.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct OperationSummary {
    /// Which.
    pub operation: &'static str,
    /// How often. Times are also of those that were due and never begun.
    pub count: u64,
    /// How often in a second.
    pub per_second: f64,
    /// The median, in milliseconds like those that follow.
    pub p50_ms: f64,
    /// Nine of ten were not slower.
    pub p90_ms: f64,
    /// 99 of 100.
    pub p99_ms: f64,
    /// 999 of 1,000.
    pub p999_ms: f64,
    /// The slowest.
    pub max_ms: f64,
    /// Shares of all (0 to 1) and the time, in milliseconds, that they did not exceed.
    #[serde(skip)]
    pub curve: Vec<(f64, f64)>,
}

impl Recorder {
    /// From now on it counts.
    pub(crate) fn start(&self) {
        self.kept().since = Some(Instant::now());
        self.is_measuring.store(true, Ordering::Release);
    }

    /// From now on nothing counts, until it is started again.
    pub(crate) fn stop(&self) {
        self.is_measuring.store(false, Ordering::Release);
        let mut kept = self.kept();
        if let Some(since) = kept.since.take() {
            kept.measured += since.elapsed();
        }
    }

    /// One operation took so long.
    pub(crate) fn took(&self, operation: &'static str, time: Duration) {
        if !self.is_measuring.load(Ordering::Acquire) {
            return;
        }
        record(self.kept().operations.entry(operation).or_insert_with(histogram), time);
    }

    /// Operations were due for so long and never begun while it counted: these are times, and no throughput.
    pub(crate) fn never_began(&self, operation: &'static str, times: impl Iterator<Item = Duration>) {
        let mut times = times.peekable();
        if times.peek().is_none() {
            return;
        }
        let kept = &mut *self.kept();
        let histogram = kept.operations.entry(operation).or_insert_with(histogram);
        let never_begun = kept.never_begun.entry(operation).or_default();
        for time in times {
            record(histogram, time);
            *never_begun += 1;
        }
    }

    /// Something beside times. What was said before under the same name is forgotten.
    pub(crate) fn figure(&self, name: &'static str, value: f64, unit: &'static str) {
        let mut kept = self.kept();
        kept.figures.retain(|figure| figure.name != name);
        kept.figures.push(Figure { name, value, unit });
    }

    /// The leader has computed for so long while it was measured.
    pub(crate) fn computed(&self, time: Duration) {
        *self.kept().processor.get_or_insert_default() += time;
    }

    /// What there is. If it was nothing but pairs, also what a pair costs the leader.
    pub(crate) fn summary(&self, is_pairs_alone: bool) -> (Vec<OperationSummary>, Vec<Figure>, Duration) {
        let kept = self.kept();
        let operations = kept.operations.iter();
        let never_begun = |name| kept.never_begun.get(name).copied().unwrap_or_default();
        let summaries = operations
            .map(|(name, histogram)| summary(name, histogram, never_begun(name), kept.measured))
            .collect();
        let mut figures = kept.figures.clone();
        let never_sent: u64 = kept.never_begun.values().sum();
        if never_sent > 0 {
            figures.push(Figure { name: "due and never sent", value: never_sent as f64, unit: "pairs" });
        }
        if let Some(processor) = kept.processor.filter(|_| !kept.measured.is_zero()) {
            let value = processor.as_secs_f64() / kept.measured.as_secs_f64();
            figures.push(Figure { name: "leader's load", value, unit: "cores" });
            let pairs = kept.operations.get("release").map_or(0, Histogram::len);
            if is_pairs_alone && pairs > 0 {
                let value = processor.as_secs_f64() * 1e6 / pairs as f64;
                figures.push(Figure { name: "leader's time a pair", value, unit: "µs" });
            }
        }
        (summaries, figures, kept.measured)
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn record(histogram: &mut Histogram<u64>, time: Duration) {
    histogram.saturating_record(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
}

fn histogram() -> Histogram<u64> {
    let longest = u64::try_from(LONGEST.as_nanos()).unwrap_or(u64::MAX);
    Histogram::new_with_bounds(1_000, longest, DIGITS).expect("the bounds are in order")
}

fn summary(
    operation: &'static str,
    histogram: &Histogram<u64>,
    never_begun: u64,
    measured: Duration,
) -> OperationSummary {
    let ms = |nanos: u64| nanos as f64 / 1e6;
    let at = |share: f64| ms(histogram.value_at_quantile(share));
    let curve =
        histogram.iter_quantiles(4).map(|value| (value.quantile(), ms(value.value_iterated_to()))).collect();
    let count = histogram.len() - never_begun;
    OperationSummary {
        operation,
        count,
        per_second: if measured.is_zero() { 0.0 } else { count as f64 / measured.as_secs_f64() },
        p50_ms: at(0.5),
        p90_ms: at(0.9),
        p99_ms: at(0.99),
        p999_ms: at(0.999),
        max_ms: ms(histogram.max()),
        curve,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_told_to_three_digits() {
        let recorder = Recorder::default();
        recorder.start();
        for number in 1..=1000 {
            recorder.took("acquire", Duration::from_micros(number * 10));
        }
        recorder.stop();
        let (summaries, _, _) = recorder.summary(false);
        let acquire = &summaries[0];
        assert_eq!((acquire.operation, acquire.count), ("acquire", 1000));
        for (found, expected) in
            [(acquire.p50_ms, 5.0), (acquire.p90_ms, 9.0), (acquire.p99_ms, 9.9), (acquire.max_ms, 10.0)]
        {
            assert!((found - expected).abs() < expected * 0.002, "{found} is not {expected}");
        }
    }

    #[test]
    fn what_was_never_sent_counts_as_waiting_and_not_as_done() {
        let recorder = Recorder::default();
        recorder.start();
        recorder.took("acquire", Duration::from_millis(1));
        recorder.stop();
        recorder.never_began("acquire", std::iter::repeat_n(Duration::from_secs(1), 9));
        let (summaries, figures, _) = recorder.summary(false);
        assert_eq!(summaries[0].count, 1);
        assert!(summaries[0].p50_ms > 900.0);
        assert_eq!((figures[0].name, figures[0].value), ("due and never sent", 9.0));
    }

    #[test]
    fn nothing_counts_while_it_warms_up() {
        let recorder = Recorder::default();
        recorder.never_began("acquire", std::iter::empty());
        recorder.took("acquire", Duration::from_millis(1));
        assert!(recorder.summary(false).0.is_empty());
    }
}
