//! Which group has which range of names, and which ids groups have had.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Bound;

use lowkey_record::GroupId;

use super::range::{Boundary, NameRange};
use crate::limits::GROUPS_MAX;
use crate::name::{Invalid, LockName, NamePrefix};

/// The groups of a cluster, by the names that they have. The root group keeps it; every node has a copy of that.
///
/// It may be older than what a group itself knows of its range, and is harmless then: a group refuses what is not its
/// own, and nothing was done.
///
/// Invariants:
/// - Every name belongs to exactly one group. Ranges are kept by where they begin, and each goes up to the next, so
///   there are no gaps and no overlaps.
/// - The first range is the root's.
/// - A group is there once; no id is above `last_group`, and no id is ever given to a second group.
/// - Groups and planned groups are [`GROUPS_MAX`] together at most.
#[derive(Clone, PartialEq, Eq)]
pub struct ShardMap {
    pub(super) by_start: BTreeMap<Boundary, GroupId>,
    pub(super) last_group: GroupId, // >= every id ever given
    /// The id that was given for the next split of a group, which may or may not have happened.
    pub(super) planned: BTreeMap<GroupId, GroupId>,
}

impl Default for ShardMap {
    /// One group, with all names.
    fn default() -> Self {
        Self {
            by_start: BTreeMap::from([(Boundary::lowest(), GroupId::ROOT)]),
            last_group: GroupId::ROOT,
            planned: BTreeMap::new(),
        }
    }
}

impl ShardMap {
    /// The groups between these boundaries, which rise: the root has the first names, group 2 those behind the first
    /// boundary, and so on.
    pub fn of_boundaries(boundaries: &[Boundary]) -> Result<Self, Invalid> {
        check_boundaries(boundaries)?;
        let mut map = Self::default();
        for (boundary, number) in boundaries.iter().zip(GroupId::ROOT.0 + 1..) {
            map.last_group = GroupId(number);
            map.by_start.insert(boundary.clone(), map.last_group);
        }
        Ok(map)
    }

    /// The group that has this name.
    pub fn group_of(&self, name: &LockName) -> GroupId {
        let up_to_it = (Bound::Unbounded, Bound::Included(name.as_str()));
        self.by_start.range::<str, _>(up_to_it).next_back().map_or(GroupId::ROOT, |(_, group)| *group)
    }

    /// The names that a group has; nothing if there is no such group.
    pub fn range_of(&self, group: GroupId) -> Option<NameRange> {
        self.shards().find(|(known, _)| *known == group).map(|(_, range)| range)
    }

    /// All groups, by name.
    pub fn shards(&self) -> impl Iterator<Item = (GroupId, NameRange)> {
        let ends = self.by_start.keys().skip(1).cloned().map(Some).chain([None]);
        let shards = self.by_start.iter().zip(ends);
        shards.filter_map(|((from, group), to)| Some((*group, NameRange::between(Some(from.clone()), to)?)))
    }

    /// The groups that have names with this prefix, by name: lists of theirs, one behind the other, are one list.
    pub fn groups_with<'a>(
        &'a self,
        prefix: &'a NamePrefix,
    ) -> impl Iterator<Item = (GroupId, NameRange)> + 'a {
        self.shards().filter(|(_, range)| range.overlaps(prefix))
    }

    /// How many groups there are.
    pub fn group_count(&self) -> usize {
        self.by_start.len()
    }

    /// At least the highest id that a group ever had.
    pub fn last_group(&self) -> GroupId {
        self.last_group
    }

    /// The id that was given for the next split of a group.
    pub fn planned(&self, parent: GroupId) -> Option<GroupId> {
        self.planned.get(&parent).copied()
    }
}

impl fmt::Debug for ShardMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut map = f.debug_map();
        map.entries(self.shards());
        map.entries(self.planned.iter().map(|(parent, child)| (format!("planned from {parent}"), child)));
        map.finish()
    }
}

/// Parses the boundaries of a cluster that is to be founded with several groups: `B1,B2,…`, or says what is allowed.
/// A boundary with a comma in it can only come later, by a split.
pub fn parse_boundaries(text: &str) -> Result<Vec<Boundary>, Invalid> {
    let boundaries = text.split(',').map(Boundary::parse).collect::<Result<Vec<_>, _>>()?;
    check_boundaries(&boundaries)?;
    Ok(boundaries)
}

pub(super) fn check_boundaries(boundaries: &[Boundary]) -> Result<(), Invalid> {
    if boundaries.len() >= GROUPS_MAX {
        let problem = format!("there may be at most {}, for {GROUPS_MAX} groups", GROUPS_MAX - 1);
        return Err(Invalid::new("boundary", problem));
    }
    if let Some(pair) = boundaries.windows(2).find(|pair| pair[0] >= pair[1]) {
        let problem = format!(
            "must rise, in the order of their bytes, and {} does not come after {}",
            pair[1], pair[0]
        );
        return Err(Invalid::new("boundary", problem));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> LockName {
        LockName::parse(text).unwrap()
    }

    fn map(boundaries: &str) -> ShardMap {
        ShardMap::of_boundaries(&parse_boundaries(boundaries).unwrap()).unwrap()
    }

    #[test]
    fn names_go_to_the_group_whose_range_they_are_in() {
        let map = map("g,m/,t");
        for (text, group) in
            [("a", 1), ("fz", 1), ("g", 2), ("m", 2), ("m-", 2), ("m/a", 3), ("s", 3), ("t", 4), ("é", 4)]
        {
            assert_eq!(map.group_of(&name(text)), GroupId(group), "{text}");
        }
        assert_eq!(map.range_of(GroupId(3)).unwrap().to_string(), r#"["m/", "t")"#);
        assert_eq!(map.range_of(GroupId(5)), None);
        assert_eq!((map.group_count(), map.last_group()), (4, GroupId(4)));
        assert_eq!(format!("{:?}", ShardMap::default()), r#"{1: ["", …)}"#);
    }

    #[test]
    fn a_prefix_belongs_to_all_groups_that_have_names_with_it() {
        let map = map("g,m/,t");
        let groups = |prefix: &str| -> Vec<u32> {
            let prefix = NamePrefix::parse(prefix).unwrap();
            map.groups_with(&prefix).map(|(group, _)| group.0).collect()
        };
        assert_eq!(groups(""), [1, 2, 3, 4]);
        assert_eq!(groups("f"), [1]);
        assert_eq!(groups("g"), [2]);
        assert_eq!(groups("m"), [2, 3]);
        assert_eq!(groups("m/"), [3]);
        assert_eq!(groups("m0"), [3]);
        assert_eq!(groups("z"), [4]);
    }

    #[test]
    fn boundaries_of_a_new_cluster_rise_and_are_few() {
        assert_eq!(parse_boundaries("g,m/").unwrap().len(), 2);
        for (bad, problem) in [
            ("", "must not be empty"),
            ("g,", "must not be empty"),
            ("m,g", "must rise"),
            ("m,m", "must rise"),
            ("a//b", "no empty segment"),
        ] {
            let refused = parse_boundaries(bad).unwrap_err();
            assert!(refused.problem.contains(problem), "{bad:?}: {refused}");
        }
        let many = |count: usize| (0..count).map(|at| format!("{at:03}")).collect::<Vec<_>>().join(",");
        assert_eq!(map(&many(63)).group_count(), 64);
        assert!(parse_boundaries(&many(64)).unwrap_err().problem.contains("at most 63"));
    }
}
