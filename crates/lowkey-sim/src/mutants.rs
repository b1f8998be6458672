//! The hunt for mutants: a suite that finds nothing wrong is worth something only if it would.
//!
//! Each mutant switches one rule off, in the very line that keeps it (`Mutant::is_active` in the real
//! code; `lowkey-mutants` declares them all). The worlds of seeds 1, 2, 3, … are run until one of them
//! breaks a promise; if none does, the scenarios are played, for schedules that chance finds slowly (or
//! first, where no seed ever did). The checker's own state machine is the mutated one too, as it would be
//! if the rule had been forgotten: a mutant is caught by what it does, not by being different.

use std::panic;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use lowkey_mutants::{ALL, Caught, Mutant, activate};

use crate::invariants::Violation;
use crate::scenarios;
use crate::world::{WorldSummary, run};

/// How a hunt ended.
#[derive(Clone, Debug)]
pub struct Hunt {
    /// The mutant.
    pub mutant: Mutant,
    /// Where a promise was broken first, and which; nothing if none was.
    pub caught: Option<(CaughtAt, Violation)>,
}

/// Where a mutant was caught.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaughtAt {
    /// In the world of this seed; those of all seeds before it, from 1 on, showed nothing.
    Seed(u64),
    /// In the scenario of this name; no seed showed anything.
    Scenario(&'static str),
}

impl std::fmt::Display for CaughtAt {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Seed(seed) => write!(f, "{seed}"),
            Self::Scenario(name) => write!(f, "scenario `{name}`"),
        }
    }
}

/// Every mutant that must be caught.
pub fn hunted() -> Vec<Mutant> {
    ALL.iter().copied().filter(|mutant| mutant.caught != Caught::Never).collect()
}

/// What a world has to show, how it ended, and its story.
type Run = (WorldSummary, Result<(), Violation>, Vec<String>);

/// Runs the world of a seed with a rule switched off.
pub fn run_mutated(mutant: Mutant, seed: u64, trace: bool) -> Run {
    mutated(mutant, || run(seed, trace))
}

fn mutated(mutant: Mutant, run: impl FnOnce() -> Run) -> Run {
    activate(Some(mutant));
    let run = run();
    activate(None);
    run
}

/// Runs seeds from 1 on until the mutant is caught, and if it is not, the scenarios; or the other way round.
pub fn hunt(mutant: Mutant, seeds_max: u64) -> Hunt {
    let caught = |place, run: Run| run.1.err().map(|violation| (place, violation));
    let by_seed =
        || (1..=seeds_max).find_map(|seed| caught(CaughtAt::Seed(seed), run_mutated(mutant, seed, false)));
    let by_scenario = || {
        scenarios::ALL
            .iter()
            .find_map(|story| caught(CaughtAt::Scenario(story.name), mutated(mutant, || story.play(false))))
    };
    let caught = match mutant.caught {
        Caught::ByScenario => by_scenario().or_else(by_seed),
        Caught::BySeeds | Caught::Never => by_seed().or_else(by_scenario),
    };
    Hunt { mutant, caught }
}

/// Hunts many mutants on all cores, and tells of each as soon as its hunt is over. The panics of
/// mutated processes are kept from standard error meanwhile.
pub fn hunt_all(mutants: &[Mutant], seeds_max: u64, tell: impl Fn(&Hunt) + Sync) -> Vec<Hunt> {
    let usual = panic::take_hook();
    panic::set_hook(Box::new(|_| {}));
    let next = AtomicUsize::new(0);
    let hunts = Mutex::new(Vec::new());
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                while let Some(mutant) = mutants.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let hunt = hunt(*mutant, seeds_max);
                    tell(&hunt);
                    if let Ok(mut hunts) = hunts.lock() {
                        hunts.push(hunt);
                    }
                }
            });
        }
    });
    panic::set_hook(usual);
    let mut hunts = hunts.into_inner().unwrap_or_default();
    hunts.sort_by_key(|hunt| mutants.iter().position(|mutant| *mutant == hunt.mutant));
    hunts
}
