//! The hunt for mutants: a suite that finds nothing wrong is worth something only if it would.
//!
//! Each mutant switches one rule off, in the very line that keeps it (`mutants::is_active` in the
//! real code), and the worlds of seeds 1, 2, 3, … are run until one of them breaks a promise; if none
//! does, the scenarios are played, for schedules that chance finds slowly (or first, where no seed ever
//! did). The checker's own state machine is the mutated one too, as it would be if the rule had been
//! forgotten: a mutant is caught by what it does, not by being different.

use std::panic;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use lowkey_core::mutants::activate;

use crate::invariants::Violation;
use crate::scenarios;
use crate::world::{Summary, run};

/// Every mutant that must be caught, by the rule that it breaks.
pub const MUTANTS: &[&str] = &[
    // R1 to R4: the leader's memory of deadlines.
    "renewal without a quorum round",
    "a round is joined late",
    "reused ReadIndex context",
    "rounds survive a change of lead",
    "arrival taken from the tick",
    "no re-arm on election",
    "re-arm before the no-op",
    "an expiring lease is renewed",
    // R6 and R9: what a client believes.
    "validity counted from the reply",
    "renewal counted from the reply",
    "validity counted from the retry",
    "an answer is credited to the latest send",
    "belief ends when the release is answered",
    "an acquire under way is released",
    // R5 and the state machine.
    "a clock in apply",
    "token from memory instead of state",
    "grant without a lease check",
    "a held lock is granted again",
    "release without token check",
    "requests of a lease are not remembered",
    "requests that make leases are not remembered",
    "snapshot without the counter",
    "snapshot without the requests of leases",
    "snapshot without requests that made leases",
    "snapshot without waits",
    "snapshot without values",
    // Queues: who is in whose way, and whose turn it is.
    "a newcomer overtakes",
    "sharers admit an exclusive holder",
    "a freed lock is not handed over",
    "the last in line goes first",
    "a subtree above is not seen",
    "a subtree does not see what is below",
    "a prefix counts as a parent",
    "a retry takes a second place",
    "waiters outlive their lease",
    "a lock is handed to who ends in the same entry",
    // R7 and R10: waiting.
    "the whole wait is counted",
    "a grant extends its lease",
    "a new leader overstates waits",
    "the time of a waiting lease runs",
    "a lease outlives the wait that made it",
    "a cancellation ends a grant",
    "a given-up acquire is granted later",
    "a timeout is told before its entry",
    "who comes back is told of the timeout",
    "the place of a gone caller is kept",
    "the place of a gone caller is cancelled at once",
    "a new leader gives waiters no time",
    "a change of lead is not told to waiters",
    "a waiter is not told that its lease is gone",
    // Watches.
    "a resumed watch repeats an event",
    "a watch skips the rest of a revision",
    "a compacted position is not refused",
    // What a caller may be told, and when.
    "reply before commit",
    "reply before sync",
    "a refused proposal is answered as done",
    "another entry's outcome is answered",
    "read without ReadIndex",
    "refusal without ReadIndex",
    // What must be on disk.
    "vote not persisted",
    "log sync skipped",
    "recovery believes the page cache",
    "log cut before its snapshot is on disk",
    "an entry is left out of a snapshot's making",
    "a lone voter speaks before its vote is on disk",
    // Who belongs to the cluster.
    "a leader proposes its own removal",
    "a leader applies that it is gone",
    "a removal may cost the quorum",
    "removed before the configuration changed",
    // Replicas that drift apart.
    "a minority goes on",
    "a minority takes no snapshot",
    "without a majority all go on",
    "one other digest is a majority",
    // A cluster that began anew.
    "a lock is granted in quarantine",
    "quarantine ends at once",
];

/// Those that no seed of the first 200 has caught: a scenario does, and is asked first.
const BY_SCENARIO: &[&str] = &[
    "a round is joined late",
    "reused ReadIndex context",
    "who comes back is told of the timeout",
    "the place of a gone caller is kept",
    "the place of a gone caller is cancelled at once",
    "a new leader gives waiters no time",
    "vote not persisted",
    "a leader applies that it is gone",
    "a removal may cost the quorum",
    "a minority goes on",
    "a minority takes no snapshot",
    "without a majority all go on",
    "one other digest is a majority",
    "a lock is granted in quarantine",
    "quarantine ends at once",
];

/// Mutants that break no promise as things are: see `docs/simulation.md` for why.
pub const EQUIVALENT: &[&str] = &[
    "expiry without the term check",
    "ends of an earlier lead are proposed",
    "a stall is not given back",
    "members change before the commit is durable",
];

/// How a hunt ended.
#[derive(Clone, Debug)]
pub struct Hunt {
    /// The mutant.
    pub name: &'static str,
    /// Where a promise was broken first, and which; nothing if none was.
    pub caught: Option<(Place, Violation)>,
}

/// Where a mutant was caught.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In the world of this seed; those of all seeds before it, from 1 on, showed nothing.
    Seed(u64),
    /// In the scenario of this name; no seed showed anything.
    Scenario(&'static str),
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Seed(seed) => write!(f, "{seed}"),
            Self::Scenario(name) => write!(f, "scenario `{name}`"),
        }
    }
}

/// The mutant of this name.
pub fn named(name: &str) -> Option<&'static str> {
    MUTANTS.iter().chain(EQUIVALENT).copied().find(|known| *known == name)
}

/// What a world has to show, how it ended, and its story.
type Run = (Summary, Result<(), Violation>, Vec<String>);

/// Runs the world of a seed with a rule switched off.
pub fn run_mutated(name: &'static str, seed: u64, trace: bool) -> Run {
    mutated(name, || run(seed, trace))
}

fn mutated(name: &'static str, run: impl FnOnce() -> Run) -> Run {
    activate(Some(name));
    lowkey_wal::mutants::activate(Some(name));
    let run = run();
    activate(None);
    lowkey_wal::mutants::activate(None);
    run
}

/// Runs seeds from 1 on until the mutant is caught, and if it is not, the scenarios; or the other way round.
pub fn hunt(name: &'static str, seeds_max: u64) -> Hunt {
    let caught = |place, run: Run| run.1.err().map(|violation| (place, violation));
    let by_seed =
        || (1..=seeds_max).find_map(|seed| caught(Place::Seed(seed), run_mutated(name, seed, false)));
    let by_scenario = || {
        scenarios::ALL
            .iter()
            .find_map(|story| caught(Place::Scenario(story.name), mutated(name, || story.play(false))))
    };
    let caught = match BY_SCENARIO.contains(&name) {
        true => by_scenario().or_else(by_seed),
        false => by_seed().or_else(by_scenario),
    };
    Hunt { name, caught }
}

/// Hunts many mutants on all cores, and tells of each as soon as its hunt is over. The panics of
/// mutated processes are kept from standard error meanwhile.
pub fn hunt_all(names: &[&'static str], seeds_max: u64, tell: impl Fn(&Hunt) + Sync) -> Vec<Hunt> {
    let usual = panic::take_hook();
    panic::set_hook(Box::new(|_| {}));
    let next = AtomicUsize::new(0);
    let hunts = Mutex::new(Vec::new());
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                while let Some(name) = names.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let hunt = hunt(name, seeds_max);
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
    hunts.sort_by_key(|hunt| names.iter().position(|name| *name == hunt.name));
    hunts
}
