//! A fixed set of worlds, and that a seed is a world.

use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, Ordering};

use lowkey_replica::RaftTick;
use lowkey_sim::{Violation, run, run_with_groups, run_with_raft_tick};

const SEEDS: u64 = 300;

#[test]
fn a_fixed_set_of_worlds_breaks_no_promise() {
    run_all(1..=SEEDS, "", |seed| run(seed, false).1);
}

#[test]
fn worlds_of_one_two_and_three_groups_break_no_promise() {
    for groups in 1..=3 {
        let seeds = SEEDS + 1..=SEEDS + 20;
        run_all(seeds, &format!(" --groups {groups}"), |seed| run_with_groups(seed, groups, false).1);
    }
}

#[test]
fn worlds_whose_nodes_are_more_patient_break_no_promise() {
    for ms in [20, 50, 100] {
        let raft_tick = RaftTick::from_millis(ms).expect("a possible tick");
        let seeds = SEEDS + 21..=SEEDS + 30;
        run_all(seeds, &format!(" --raft-tick {ms}"), |seed| run_with_raft_tick(seed, raft_tick, false).1);
    }
}

fn run_all(seeds: RangeInclusive<u64>, options: &str, run: impl Fn(u64) -> Result<(), Violation> + Sync) {
    let next = AtomicU64::new(*seeds.start());
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if !seeds.contains(&seed) {
                        return;
                    }
                    if let Err(violation) = run(seed) {
                        panic!(
                            "seed {seed} breaks `{}`: {}; repeat it with: cargo run --release -p lowkey-sim -- --seed {seed}{options} --trace",
                            violation.invariant, violation.what
                        );
                    }
                }
            });
        }
    });
}

#[test]
fn the_same_seed_gives_the_same_world_to_the_byte() {
    for seed in [7, 8, 9, 4711] {
        let groups = 1 + seed as usize % 3;
        let (one, _, first) = run_with_groups(seed, groups, true);
        let (two, _, second) = run_with_groups(seed, groups, true);
        assert_eq!(one, two, "seed {seed}");
        assert!(!first.is_empty());
        assert!(first == second, "the stories of seed {seed} differ");
    }
}
