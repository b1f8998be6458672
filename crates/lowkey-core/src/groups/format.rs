//! The bytes of changes in the log, and of a group's place in snapshots. Numbers are never reused.

use std::collections::BTreeMap;

use lowkey_record::GroupId;

use super::change::GroupChange;
use super::map::ShardMap;
use super::place::Place;
use super::range::{Boundary, NameRange};
use crate::encoding::DecodeError;
use crate::fields::{Fields, MessagePart, Sink};
use crate::limits::GROUPS_MAX;
use crate::name::{Invalid, LeaseId};

/// All changes have the same fields. What a kind has no use for is empty.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct GroupProto {
    #[prost(uint32, tag = "1")]
    parent: u32,
    #[prost(uint32, tag = "2")]
    child: u32,
    #[prost(string, tag = "3")]
    at: String,
}

/// A change with the number of its kind.
pub(crate) struct GroupKind(pub(crate) u32, pub(crate) GroupProto);

impl GroupChange {
    /// The number of its kind.
    pub(crate) fn number(&self) -> u32 {
        match self {
            Self::Plan { .. } => 40,
            Self::Split { .. } => 41,
            Self::Record { .. } => 42,
            Self::Drain { .. } => 43,
        }
    }
}

impl TryFrom<GroupKind> for GroupChange {
    type Error = DecodeError;

    fn try_from(GroupKind(kind, proto): GroupKind) -> Result<Self, DecodeError> {
        let group = |number| match number {
            0 => malformed("a change of no group"),
            number => Ok(GroupId(number)),
        };
        Ok(match kind {
            40 => Self::Plan { parent: group(proto.parent)? },
            41 => Self::Split { at: Boundary::parse(&proto.at)?, child: group(proto.child)? },
            42 => Self::Record {
                parent: group(proto.parent)?,
                at: Boundary::parse(&proto.at)?,
                child: group(proto.child)?,
            },
            43 => Self::Drain { from: boundary(&proto.at)? },
            _ => return Err(DecodeError::UnknownKind),
        })
    }
}

impl MessagePart for GroupChange {
    fn write<S: Sink>(&self, fields: &mut Fields<'_, S>) {
        match self {
            Self::Plan { parent } => fields.number(1, parent.0.into()),
            Self::Split { at, child } => {
                fields.number(2, child.0.into());
                fields.text(3, at.as_str());
            }
            Self::Record { parent, at, child } => {
                fields.number(1, parent.0.into());
                fields.number(2, child.0.into());
                fields.text(3, at.as_str());
            }
            Self::Drain { from } => fields.text(3, from.as_ref().map_or("", Boundary::as_str)),
        }
    }
}

/// Where a group stands among others. The only group has none.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct PlaceProto {
    #[prost(uint32, tag = "1")]
    group: u32,
    /// Empty for the first name.
    #[prost(string, tag = "2")]
    from: String,
    /// Empty for the last one.
    #[prost(string, tag = "3")]
    to: String,
    /// There are several groups, and the boundary counts.
    #[prost(bool, tag = "4")]
    has_stripes: bool,
    #[prost(uint64, tag = "5")]
    lease_boundary: u64,
    /// Only in the root, by where they begin.
    #[prost(message, repeated, tag = "6")]
    shards: Vec<ShardProto>,
    #[prost(uint32, tag = "7")]
    last_group: u32,
    /// Ids that were given for splits, by the group that is to be split.
    #[prost(message, repeated, tag = "8")]
    planned: Vec<PlannedProto>,
    /// 0 for none.
    #[prost(uint32, tag = "9")]
    last_child: u32,
    /// Empty for none.
    #[prost(string, tag = "10")]
    drain: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ShardProto {
    #[prost(string, tag = "1")]
    from: String,
    #[prost(uint32, tag = "2")]
    group: u32,
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
struct PlannedProto {
    #[prost(uint32, tag = "1")]
    parent: u32,
    #[prost(uint32, tag = "2")]
    child: u32,
}

impl From<&Place> for PlaceProto {
    fn from(place: &Place) -> Self {
        let Place { group, range, lease_boundary, map, last_child, drain } = place;
        let shards = map.iter().flat_map(|map| &map.by_start);
        let planned = map.iter().flat_map(|map| &map.planned);
        Self {
            group: group.0,
            from: range.from().to_string(),
            to: range.to().map(ToString::to_string).unwrap_or_default(),
            has_stripes: lease_boundary.is_some(),
            lease_boundary: lease_boundary.map_or(0, |boundary| boundary.0),
            shards: shards
                .map(|(from, group)| ShardProto { from: from.to_string(), group: group.0 })
                .collect(),
            last_group: map.as_ref().map_or(0, |map| map.last_group.0),
            last_child: last_child.map_or(0, |child| child.0),
            drain: drain.as_ref().map(ToString::to_string).unwrap_or_default(),
            planned: planned
                .map(|(parent, child)| PlannedProto { parent: parent.0, child: child.0 })
                .collect(),
        }
    }
}

impl TryFrom<&PlaceProto> for Place {
    type Error = DecodeError;

    fn try_from(proto: &PlaceProto) -> Result<Self, DecodeError> {
        let group = GroupId(proto.group);
        if !is_group(group) {
            return malformed(format!("there is no group {group}"));
        }
        let Some(range) = NameRange::between(boundary(&proto.from)?, boundary(&proto.to)?) else {
            return malformed("a range without names");
        };
        if !proto.has_stripes && (proto.lease_boundary != 0 || group != GroupId::ROOT || !range.is_whole()) {
            return malformed("one group of several, and no boundary of lease ids");
        }
        let lease_boundary = proto.has_stripes.then_some(LeaseId(proto.lease_boundary));
        let map = match group {
            GroupId::ROOT => Some(map(proto)?),
            _ if !proto.shards.is_empty() || !proto.planned.is_empty() || proto.last_group != 0 => {
                return malformed("a map in a group that is not the root");
            }
            _ => None,
        };
        if map.as_ref().is_some_and(|map| map.range_of(GroupId::ROOT).as_ref() != Some(&range)) {
            return malformed("the root has another range than its own map says");
        }
        let last_child = (proto.last_child != 0).then_some(GroupId(proto.last_child));
        if last_child.is_some_and(|child| !is_group(child) || child <= group || range.to().is_none()) {
            return malformed("a group that cannot have been split from this one");
        }
        let drain = boundary(&proto.drain)?;
        if drain.as_ref().is_some_and(|from| range.split_at(from).is_none()) {
            return malformed("a drain outside of the range");
        }
        Ok(Self { group, range, lease_boundary, map, last_child, drain })
    }
}

/// The map of a snapshot. Reading checks every invariant of it.
fn map(proto: &PlaceProto) -> Result<ShardMap, DecodeError> {
    let mut map = ShardMap {
        by_start: BTreeMap::new(),
        last_group: GroupId(proto.last_group),
        planned: BTreeMap::new(),
    };
    let mut ids = Vec::new();
    for shard in &proto.shards {
        let from = boundary(&shard.from)?.unwrap_or_else(Boundary::lowest);
        ids.push(GroupId(shard.group));
        map.by_start.insert(from, GroupId(shard.group));
    }
    for planned in &proto.planned {
        if !ids.contains(&GroupId(planned.parent)) {
            return malformed(format!("group {} is to be split, and is not there", planned.parent));
        }
        map.planned.insert(GroupId(planned.parent), GroupId(planned.child));
    }
    ids.extend(map.planned.values());
    let count = ids.len();
    if ids.iter().any(|id| !is_group(*id) || *id > map.last_group) || map.last_group.0 as usize != count {
        return malformed("a map whose groups are not counted");
    }
    ids.sort_unstable();
    ids.dedup();
    if ids.len() != count || map.by_start.len() + map.planned.len() != count {
        return malformed("a map with something twice");
    }
    if map.by_start.first_key_value() != Some((&Boundary::lowest(), &GroupId::ROOT)) {
        return malformed("a map in which the root does not have the first names");
    }
    Ok(map)
}

fn is_group(group: GroupId) -> bool {
    (1..=GROUPS_MAX).contains(&(group.0 as usize))
}

/// A boundary, or none where the text is empty.
fn boundary(text: &str) -> Result<Option<Boundary>, Invalid> {
    if text.is_empty() { Ok(None) } else { Boundary::parse(text).map(Some) }
}

fn malformed<T>(what: impl Into<String>) -> Result<T, DecodeError> {
    Err(DecodeError::Malformed(what.into()))
}

#[cfg(test)]
mod tests {
    use super::super::map::parse_boundaries;
    use super::*;

    /// The place of the root among three groups, with an id that was given for the next split of group 2.
    fn root() -> PlaceProto {
        let mut map = ShardMap::of_boundaries(&parse_boundaries("g,m").unwrap()).unwrap();
        map.last_group = GroupId(4);
        map.planned.insert(GroupId(2), GroupId(4));
        let range = map.range_of(GroupId::ROOT).unwrap();
        let lease_boundary = Some(LeaseId(70));
        let (last_child, drain) = (Some(GroupId(2)), Some(Boundary::parse("c").unwrap()));
        let place = Place { group: GroupId::ROOT, range, lease_boundary, map: Some(map), last_child, drain };
        let proto = PlaceProto::from(&place);
        assert_eq!(Place::try_from(&proto).unwrap(), place);
        proto
    }

    #[test]
    fn a_place_that_cannot_be_is_refused() {
        let refused = |change: &dyn Fn(&mut PlaceProto), problem: &str| {
            let mut proto = root();
            change(&mut proto);
            match Place::try_from(&proto) {
                Err(DecodeError::Malformed(what)) => assert!(what.contains(problem), "{what}"),
                other => panic!("{problem}: {other:?}"),
            }
        };
        refused(&|it| it.group = 0, "there is no group 0");
        refused(&|it| it.group = 65, "there is no group 65");
        refused(&|it| it.group = 2, "a map in a group that is not the root");
        refused(&|it| it.from = "g".into(), "a range without names");
        refused(&|it| it.to = "a//".into(), "boundary");
        refused(&|it| it.to = "f".into(), "another range");
        refused(&|it| it.has_stripes = false, "no boundary of lease ids");
        refused(&|it| it.last_child = 1, "cannot have been split");
        refused(&|it| it.last_child = 65, "cannot have been split");
        refused(&|it| it.drain = "g".into(), "outside of the range");
        refused(&|it| it.last_group = 3, "not counted");
        refused(&|it| it.last_group = 5, "not counted");
        refused(&|it| it.shards[0].group = 3, "something twice");
        refused(&|it| it.shards[2].from = "g".into(), "something twice");
        refused(&|it| it.shards[0].from = "a".into(), "the first names");
        refused(&|it| (it.shards[0].group, it.shards[1].group) = (2, 1), "the first names");
        refused(&|it| it.planned[0].parent = 4, "is not there");
        refused(&|it| it.planned[0].child = 3, "something twice");
    }
}
