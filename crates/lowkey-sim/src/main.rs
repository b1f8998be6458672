//! `lowkey-sim`: runs worlds until the time is up, or one of them again.

use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use clap::Parser;
use lowkey_replica::RaftTick;
use lowkey_sim::{Violation, WorldSummary, run, run_with_groups, run_with_raft_tick};

/// Simulates lowkey clusters under faults, faster than real time, and checks what must always be true.
#[derive(Debug, Parser)]
#[command(name = "lowkey-sim", version)]
struct Args {
    /// Run for so many minutes on all cores
    #[arg(long, default_value_t = 1.0, conflicts_with = "seed")]
    minutes: f64,
    /// Run this one seed
    #[arg(long)]
    seed: Option<u64>,
    /// With --seed: print its story, and nothing else, on standard output
    #[arg(long, requires = "seed")]
    trace: bool,
    /// The first seed of a run; by default drawn from the clock
    #[arg(long, conflicts_with = "seed")]
    from: Option<u64>,
    /// Have so many groups in every world, instead of one in most and more in some
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u8).range(1..=16))]
    groups: Option<u8>,
    /// Run every world with this base of Raft's timing in milliseconds, 10 to 100 in steps of 10
    #[arg(long, value_name = "MS", value_parser = raft_tick, conflicts_with = "groups")]
    raft_tick: Option<RaftTick>,
    /// Switch this rule off, and run seeds from 1 on until a broken promise shows it; with --seed,
    /// only that one
    #[cfg(feature = "mutants")]
    #[arg(long, value_name = "NAME", conflicts_with = "from")]
    mutant: Option<String>,
    /// Do so with every rule, one at a time, and print a table
    #[cfg(feature = "mutants")]
    #[arg(long, conflicts_with_all = ["from", "seed", "mutant"])]
    mutants: bool,
    /// With --mutant or --mutants: how many seeds to run before a mutant counts as a survivor
    #[cfg(feature = "mutants")]
    #[arg(long, default_value_t = 200)]
    seeds: u64,
}

fn main() -> ExitCode {
    let args = Args::parse();
    #[cfg(feature = "mutants")]
    if args.mutants || args.mutant.is_some() {
        return hunt::run(&args);
    }
    match args.seed {
        Some(seed) => run_one(seed, args.options(), args.trace),
        None => run_many(args.minutes, args.options(), args.from.unwrap_or_else(fresh_seed)),
    }
}

fn raft_tick(text: &str) -> Result<RaftTick, String> {
    let tick = text.parse().ok().and_then(RaftTick::from_millis);
    tick.ok_or_else(|| "must be 10 to 100, in steps of 10".to_owned())
}

/// What every world is to be like, whatever its seed says.
#[derive(Clone, Copy)]
struct Options {
    groups: Option<u8>,
    raft_tick: Option<RaftTick>,
}

impl Args {
    fn options(&self) -> Options {
        Options { groups: self.groups, raft_tick: self.raft_tick }
    }
}

fn run_world(seed: u64, options: Options, trace: bool) -> (WorldSummary, Result<(), Violation>, Vec<String>) {
    match options {
        Options { raft_tick: Some(tick), .. } => run_with_raft_tick(seed, tick, trace),
        Options { groups: Some(groups), .. } => run_with_groups(seed, usize::from(groups), trace),
        Options { groups: None, raft_tick: None } => run(seed, trace),
    }
}

/// The runner may look at the clock; a world may not.
fn fresh_seed() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    since.as_nanos() as u64 >> 8 << 16
}

fn run_one(seed: u64, options: Options, trace: bool) -> ExitCode {
    let (summary, outcome, story) = run_world(seed, options, trace);
    if trace {
        story.iter().for_each(|line| println!("{line}"));
    } else {
        println!("seed {seed}: {summary:?}");
    }
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(violation) => {
            report(seed, options, &violation);
            ExitCode::FAILURE
        }
    }
}

fn report(seed: u64, options: Options, violation: &Violation) {
    let groups = options.groups.map_or_else(String::new, |groups| format!(" --groups {groups}"));
    let tick = options.raft_tick.map_or_else(String::new, |tick| format!(" --raft-tick {}", tick.millis()));
    eprintln!("seed {seed} breaks `{}`: {}", violation.invariant, violation.what);
    eprintln!("repeat it with: cargo run --release -p lowkey-sim -- --seed {seed}{groups}{tick} --trace");
}

#[derive(Default)]
struct Total {
    seeds: u64,
    sum: WorldSummary,
}

fn run_many(minutes: f64, options: Options, from: u64) -> ExitCode {
    let deadline = Instant::now() + Duration::from_secs_f64(minutes * 60.0);
    let (next, failed) = (AtomicU64::new(from), AtomicBool::new(false));
    let total = Mutex::new(Total::default());
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                while Instant::now() < deadline && !failed.load(Ordering::Relaxed) {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if let Err(violation) = run_and_count(seed, options, &total) {
                        failed.store(true, Ordering::Relaxed);
                        tell_failure(seed, options, &violation);
                    }
                }
            });
        }
        while Instant::now() < deadline && !failed.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_secs(1));
            if let Ok(total) = total.lock() {
                eprint!("\r{}", words(&total));
            }
        }
    });
    eprintln!();
    if let Ok(total) = total.lock() {
        println!("{}", words(&total));
    }
    if failed.load(Ordering::Relaxed) { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn run_and_count(seed: u64, options: Options, total: &Mutex<Total>) -> Result<(), Violation> {
    let (summary, outcome, _) = run_world(seed, options, false);
    if let Ok(mut total) = total.lock() {
        total.seeds += 1;
        total.sum.simulated_nanos += summary.simulated_nanos;
        total.sum.operations += summary.operations;
        total.sum.elections += summary.elections;
        total.sum.expiries += summary.expiries;
        total.sum.faults += summary.faults;
        total.sum.waits_granted += summary.waits_granted;
        total.sum.wait_timeouts += summary.wait_timeouts;
        total.sum.watched += summary.watched;
        total.sum.compacted += summary.compacted;
        total.sum.refused_writes += summary.refused_writes;
    }
    outcome
}

/// The broken promise, the last events before it, and how to see it again.
fn tell_failure(seed: u64, options: Options, violation: &Violation) {
    eprintln!();
    let (_, _, story) = run_world(seed, options, true);
    let last = story.len().saturating_sub(30);
    story[last..].iter().for_each(|line| eprintln!("{line}"));
    report(seed, options, violation);
}

fn words(total: &Total) -> String {
    let Total { seeds, sum } = total;
    let hours = sum.simulated_nanos as f64 / 3.6e12;
    let waits = format!("{} waits granted, {} timed out", sum.waits_granted, sum.wait_timeouts);
    let watched = format!("{} changes watched, {} refused", sum.watched, sum.compacted);
    format!(
        "{seeds} seeds, {hours:.2} simulated hours, {} operations, {waits}, {} elections, {} expiries, {} faults, {} refused writes, {watched}",
        sum.operations, sum.elections, sum.expiries, sum.faults, sum.refused_writes
    )
}

#[cfg(feature = "mutants")]
mod hunt {
    use std::process::ExitCode;

    use lowkey_mutants::{ALL, Mutant, named};
    use lowkey_sim::Violation;
    use lowkey_sim::mutants::{CaughtAt, Hunt, hunt_all, hunted, run_mutated};

    use super::Args;

    pub(super) fn run(args: &Args) -> ExitCode {
        let mutants = match args.mutant.as_deref().map(named) {
            None => hunted(),
            Some(Some(mutant)) => vec![mutant],
            Some(None) => {
                eprintln!("there is no such mutant; these are:");
                ALL.iter().for_each(|mutant| eprintln!("  {}", mutant.name));
                return ExitCode::FAILURE;
            }
        };
        if let ([mutant], Some(seed)) = (mutants.as_slice(), args.seed) {
            return run_one(*mutant, seed, args.trace);
        }
        let hunts = hunt_all(&mutants, args.seeds, |hunt| eprintln!("{}", words(hunt)));
        if args.mutants {
            println!("| mutant | caught by | seeds needed |\n|---|---|---|");
            hunts.iter().for_each(|hunt| println!("{}", row(hunt)));
        }
        let all_caught = hunts.iter().all(|hunt| hunt.caught.is_some());
        if all_caught { ExitCode::SUCCESS } else { ExitCode::FAILURE }
    }

    fn run_one(mutant: Mutant, seed: u64, trace: bool) -> ExitCode {
        let (summary, outcome, story) = run_mutated(mutant, seed, trace);
        let name = mutant.name;
        story.iter().for_each(|line| println!("{line}"));
        match outcome {
            Ok(()) => eprintln!("`{name}` survives seed {seed}: {summary:?}"),
            Err(violation) => eprintln!("`{name}` breaks `{}`: {}", violation.invariant, violation.what),
        }
        ExitCode::SUCCESS
    }

    fn words(hunt: &Hunt) -> String {
        match &hunt.caught {
            Some((place, Violation { invariant, what })) => {
                let place = match place {
                    CaughtAt::Seed(seed) => format!("after {seed} seeds"),
                    scenario => format!("by {scenario}"),
                };
                format!("`{}` is caught {place}, by `{invariant}`: {what}", hunt.mutant.name)
            }
            None => format!("`{}` survives", hunt.mutant.name),
        }
    }

    fn row(hunt: &Hunt) -> String {
        match &hunt.caught {
            Some((place, violation)) => {
                format!("| {} | {} | {place} |", hunt.mutant.name, violation.invariant)
            }
            None => format!("| {} | **nothing** | – |", hunt.mutant.name),
        }
    }
}
