//! A fixed set of worlds, and that a seed is a world.

use std::sync::atomic::{AtomicU64, Ordering};

use lowkey_sim::run;

const SEEDS: u64 = 300;

#[test]
fn a_fixed_set_of_worlds_breaks_no_promise() {
    let next = AtomicU64::new(1);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                while let seed @ 1..=SEEDS = next.fetch_add(1, Ordering::Relaxed) {
                    if let (_, Err(violation), _) = run(seed, false) {
                        panic!(
                            "seed {seed} breaks `{}`: {}; repeat it with: cargo run --release -p lowkey-sim -- --seed {seed} --trace",
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
        let (one, _, first) = run(seed, true);
        let (two, _, second) = run(seed, true);
        assert_eq!(one, two, "seed {seed}");
        assert!(!first.is_empty());
        assert!(first == second, "the stories of seed {seed} differ");
    }
}
