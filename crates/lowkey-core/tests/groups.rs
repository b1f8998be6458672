//! Ranges of names and the map of groups, against plain rules: every name one by one, searched from end to end.
#![allow(clippy::unwrap_used, reason = "a test may")]

use lowkey_core::{Boundary, GroupId, LockName, NamePrefix, NameRange, ShardMap};
use proptest::collection::{btree_set, vec};
use proptest::prelude::*;

/// Few characters, those beside `/` among them, so that boundaries cut subtrees often.
fn text() -> impl Strategy<Value = String> {
    vec(prop::sample::select(vec!["a", "b", "/", "-", "0", "é"]), 1..6).prop_map(|parts| parts.concat())
}

fn name() -> impl Strategy<Value = LockName> {
    text().prop_filter_map("not a name", |text| LockName::parse(&text).ok())
}

fn boundary() -> impl Strategy<Value = Boundary> {
    text().prop_filter_map("not a boundary", |text| Boundary::parse(&text).ok())
}

fn prefix() -> impl Strategy<Value = NamePrefix> {
    prop_oneof![Just(String::new()), text()]
        .prop_filter_map("not a prefix", |text| NamePrefix::parse(&text).ok())
}

fn range() -> impl Strategy<Value = NameRange> {
    (prop::option::of(boundary()), prop::option::of(boundary()))
        .prop_filter_map("nothing between", |(from, to)| NameRange::between(from, to))
}

/// What a subtree claim on a name covers, said as documents say it.
fn is_covered(subtree: &LockName, name: &LockName) -> bool {
    name == subtree || name.as_str().starts_with(&format!("{subtree}/"))
}

/// Which of the parts between these boundaries a name is in, counted.
fn part_of(boundaries: &[Boundary], name: &LockName) -> usize {
    boundaries.iter().filter(|boundary| boundary.as_str().as_bytes() <= name.as_str().as_bytes()).count()
}

/// All names of up to four characters, of those that `text` uses.
fn all_names() -> Vec<LockName> {
    let mut texts = vec![String::new()];
    let mut names = Vec::new();
    for _ in 0..4 {
        let longer = |text: &String| ["a", "b", "/", "-", "0", "é"].map(|next| format!("{text}{next}"));
        texts = texts.iter().flat_map(longer).collect();
        names.extend(texts.iter().filter_map(|text| LockName::parse(text).ok()));
    }
    names
}

proptest! {
    #[test]
    fn a_range_has_the_names_between_its_boundaries(range in range(), name in name()) {
        let bytes = name.as_str().as_bytes();
        let is_in = range.from().as_str().as_bytes() <= bytes
            && range.to().is_none_or(|to| bytes < to.as_str().as_bytes());
        prop_assert_eq!(range.contains(&name), is_in);
        prop_assert_eq!(NameRange::whole().contains(&name), true);
    }

    /// A name below is in the same range, or the subtree is said to be cut.
    #[test]
    fn what_a_subtree_covers_is_together_or_it_is_cut(range in range(), subtree in name(), below in text()) {
        let names = [Some(subtree.clone()), LockName::parse(&format!("{subtree}/{below}")).ok()];
        let covered: Vec<LockName> = names.into_iter().flatten().collect();
        let is_cut = range.splits_subtree(&subtree).is_some();
        if covered.iter().any(|name| range.contains(name) != range.contains(&subtree)) {
            prop_assert!(is_cut, "{range} cuts {subtree}");
        }
        prop_assert_eq!(range.contains_subtree(&subtree), range.contains(&subtree) && !is_cut);
    }

    #[test]
    fn a_split_gives_every_name_to_one_part(range in range(), at in boundary(), name in name()) {
        let is_inside = range.from() < &at && range.to().is_none_or(|to| at < *to);
        let Some((first, second)) = range.split_at(&at) else {
            prop_assert!(!is_inside);
            return Ok(());
        };
        prop_assert!(is_inside);
        let parts = [first.contains(&name), second.contains(&name)];
        prop_assert_eq!(parts.iter().filter(|has_it| **has_it).count(), usize::from(range.contains(&name)));
        prop_assert_eq!(parts[1], range.contains(&name) && !at.is_behind(&name));
    }

    #[test]
    fn a_map_gives_every_name_to_the_part_that_it_is_in(boundaries in btree_set(boundary(), 0..6), name in name()) {
        let boundaries: Vec<Boundary> = boundaries.into_iter().collect();
        let map = ShardMap::of_boundaries(&boundaries).unwrap();
        let group = GroupId(part_of(&boundaries, &name) as u32 + 1);
        prop_assert_eq!(map.group_of(&name), group);
        prop_assert!(map.range_of(group).unwrap().contains(&name));
        prop_assert_eq!(map.shards().filter(|(_, range)| range.contains(&name)).count(), 1);
        prop_assert_eq!(map.group_count(), boundaries.len() + 1);
    }

    /// Groups come in the order of their names, and none is left out that has a name with the prefix.
    #[test]
    fn a_prefix_is_in_all_groups_that_have_a_name_with_it(
        boundaries in btree_set(boundary(), 0..6),
        prefix in prefix(),
        name in name(),
    ) {
        let boundaries: Vec<Boundary> = boundaries.into_iter().collect();
        let map = ShardMap::of_boundaries(&boundaries).unwrap();
        let found: Vec<(GroupId, NameRange)> = map.groups_with(&prefix).collect();
        prop_assert!(found.windows(2).all(|pair| pair[0].1.from() < pair[1].1.from()));
        // All texts with the prefix lie side by side, so no other group can come between.
        let numbers: Vec<u32> = found.iter().map(|(group, _)| group.0).collect();
        prop_assert!(numbers.windows(2).all(|pair| pair[1] == pair[0] + 1));
        if prefix.covers(&name) {
            prop_assert!(numbers.contains(&map.group_of(&name).0), "{name} with {prefix:?}");
        }
        // The prefix itself, or what comes right behind it, is in each of them.
        for (_, range) in &found {
            let first = range.from().as_str();
            prop_assert!(first <= prefix.as_str() || first.starts_with(prefix.as_str()), "{range}");
        }
    }
}

/// Nothing random: a boundary cuts a subtree exactly if some short name of the subtree is in front of it and
/// another behind.
#[test]
fn a_boundary_cuts_the_subtrees_that_have_names_on_both_sides() {
    let names = all_names();
    let short = |name: &&LockName| name.as_str().chars().count() <= 2;
    let mut cut = 0;
    for subtree in names.iter().filter(short) {
        let covered: Vec<&LockName> = names.iter().filter(|name| is_covered(subtree, name)).collect();
        let boundaries = names.iter().filter(short).flat_map(|name| [name.to_string(), format!("{name}/")]);
        for boundary in boundaries.map(|text| Boundary::parse(&text).unwrap()) {
            let in_front = covered.iter().filter(|name| boundary.is_behind(name)).count();
            let has_both = in_front > 0 && in_front < covered.len();
            assert_eq!(boundary.is_inside_subtree(subtree), has_both, "{boundary} in {subtree}");
            cut += usize::from(has_both);
        }
    }
    assert!(cut > 5, "{cut}");
}
