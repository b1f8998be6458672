//! Every rule that is switched off is missed: the worlds and the scenarios would find us out.
//!
//! The hunt needs the feature: `cargo test --release -p lowkey-sim --features mutants --test mutants`.

use lowkey_mutants::{ALL, Caught};

#[cfg(feature = "mutants")]
#[test]
fn every_mutant_is_caught() {
    use lowkey_sim::mutants::{hunt_all, hunted};

    /// The slowest mutant that seeds catch has needed 181 of them; the scenarios are played after the last.
    const SEEDS_MAX: u64 = 200;

    let hunts = hunt_all(&hunted(), SEEDS_MAX, |_| {});
    let survivors: Vec<&str> =
        hunts.iter().filter(|hunt| hunt.caught.is_none()).map(|hunt| hunt.mutant.name).collect();
    assert!(survivors.is_empty(), "no world and no scenario noticed: {survivors:?}");
}

#[test]
fn the_document_lists_every_mutant_and_no_other() {
    let document = include_str!("../../../docs/internals/simulator.md");
    let (_, section) = document.split_once("\n## Mutants\n").expect("a section about mutants");
    let section = section.split("\n## ").next().unwrap_or_default();
    let (table, equivalent) = section.split_once("\nEquivalent").expect("then those that are equivalent");

    let is_told = |caught: Caught, place: &str| match caught {
        Caught::BySeeds => place.parse::<u64>().is_ok(),
        Caught::ByScenario => place.starts_with("scenario `"),
        Caught::Never => false,
    };
    let rows = table.lines().filter_map(|line| line.strip_prefix("| ")).skip(1);
    let rows: Vec<Vec<&str>> = rows.map(|row| row.split(" | ").collect()).collect();
    let hunted: Vec<_> = ALL.iter().filter(|mutant| mutant.caught != Caught::Never).collect();
    assert_eq!(
        rows.iter().map(|row| row[0]).collect::<Vec<_>>(),
        hunted.iter().map(|mutant| mutant.name).collect::<Vec<_>>(),
        "the table of docs/internals/simulator.md, and what lowkey-mutants declares"
    );
    for (row, mutant) in rows.iter().zip(hunted) {
        let place = row[2].trim_end_matches(" |");
        assert!(is_told(mutant.caught, place), "{}: {:?}, but {place}", mutant.name, mutant.caught);
    }

    let told = equivalent.lines().filter_map(|line| line.strip_prefix("- **")?.split_once("**"));
    let told: Vec<&str> = told.map(|(name, _)| name).collect();
    let never = ALL.iter().filter(|mutant| mutant.caught == Caught::Never);
    assert_eq!(told, never.map(|mutant| mutant.name).collect::<Vec<_>>());
}
