//! Every rule that is switched off is missed: the worlds and the scenarios would find us out.
//!
//! It needs the feature: `cargo test --release -p lowkey-sim --features mutants --test mutants`.
#![cfg(feature = "mutants")]

use lowkey_sim::mutants::{MUTANTS, hunt_all};

/// The slowest mutant that seeds catch has needed 102 of them; the scenarios are played after the last.
const SEEDS_MAX: u64 = 200;

#[test]
fn every_mutant_is_caught() {
    assert!(MUTANTS.len() >= 20);
    let hunts = hunt_all(MUTANTS, SEEDS_MAX, |_| {});
    let survivors: Vec<&str> =
        hunts.iter().filter(|hunt| hunt.caught.is_none()).map(|hunt| hunt.name).collect();
    assert!(survivors.is_empty(), "no world and no scenario noticed: {survivors:?}");
}
