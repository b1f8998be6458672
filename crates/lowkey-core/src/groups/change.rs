//! How groups change: what is refused, and what is known already.
//!
//! Three groups may have a hand in one split, so it goes in steps, each an entry of one group's log, each harmless if it
//! comes twice or late:
//!
//! 1. The root gives an id for the next split of a group, the *parent*. It keeps giving the same id until that split is
//!    recorded.
//! 2. The parent splits, if nothing is in use there. This alone decides: from this entry on the names are the child's.
//! 3. The root records it. Until then its map is old, which is harmless.
//!
//! Which split it was, the parent knows best: it may have been asked with another boundary in between. Its last child and
//! its end say so for as long as it has made no other, and the root gives no other id before it has recorded this one.

use std::ops::Bound;

use lowkey_record::GroupId;

use super::map::ShardMap;
use super::place::Place;
use super::range::{Boundary, NameRange};
use crate::claim::Scope;
use crate::command::{Command, Refusal, Reply};
use crate::limits::GROUPS_MAX;
use crate::mutants;
use crate::name::{LeaseId, LockName, OwnerId};
use crate::state::State;

/// The command set that knows of groups: see [`crate::COMMAND_VERSION`].
pub const GROUPS_VERSION: u32 = 9;

/// One change of the groups of a cluster, or of one of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GroupChange {
    /// The root gives an id for the next split of a group.
    Plan {
        /// The group that is to be split.
        parent: GroupId,
    },
    /// A group gives all names from a boundary on to a new one. Proposed by its own leader, with the id from the root.
    Split {
        /// The first of the names that go.
        at: Boundary,
        /// The new group.
        child: GroupId,
    },
    /// The root takes into its map what a group did.
    Record {
        /// The group that was split.
        parent: GroupId,
        /// The first of the names that went.
        at: Boundary,
        /// The new group.
        child: GroupId,
    },
    /// No new claims are taken on the names from a boundary on, so that they come to rest before a split; or on all names
    /// again.
    Drain {
        /// The first of these names. None ends it.
        from: Option<Boundary>,
    },
}

/// Why groups stay as they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SplitRefusal {
    /// Only the root gives ids, and has the map.
    NotRoot,
    /// There is no such group, or the root does not know of it yet.
    NoSuchGroup {
        /// The group that was named.
        group: GroupId,
    },
    /// There are as many groups as there may be, those that are planned included.
    TooManyGroups,
    /// The root gave no such id for a split of this group, or this group used it for another split.
    NoSuchPlan {
        /// The id that was named.
        child: GroupId,
    },
    /// The boundary does not lie inside the range: a group would be left without names.
    Outside {
        /// The boundary that was named.
        at: Boundary,
        /// The names of the group.
        range: NameRange,
    },
    /// Something is held or waited for that would move, or a subtree that would be cut.
    InUse {
        /// The lock.
        lock: LockName,
        /// The holder's name for itself, or that of the first who waits.
        owner: OwnerId,
        /// Its lease.
        lease: LeaseId,
        /// What it covers, or is to.
        scope: Scope,
        /// It is held; if not, somebody waits for it.
        is_held: bool,
    },
}

impl State {
    /// What would become of a change of groups now.
    pub(crate) fn check_groups(&self, change: &GroupChange) -> Result<Option<Reply>, Refusal> {
        let alone = Place::default();
        let place = self.place.as_deref().unwrap_or(&alone);
        let outcome = match change {
            GroupChange::Plan { parent } => root_of(place).and_then(|map| map.check_plan(*parent)),
            GroupChange::Split { at, child } => {
                if self.quarantine {
                    return Err(Refusal::Quarantine);
                }
                self.check_split(place, at, *child)
            }
            GroupChange::Record { parent, at, child } => {
                root_of(place).and_then(|map| map.check_record(*parent, at, *child))
            }
            GroupChange::Drain { from } if *from == place.drain => Ok(Some(Reply::GroupsChanged)),
            GroupChange::Drain { from: Some(from) } => split_range(place, from).map(|_| None),
            GroupChange::Drain { from: None } => Ok(None),
        };
        outcome.map_err(Refusal::Split)
    }

    fn check_split(
        &self,
        place: &Place,
        at: &Boundary,
        child: GroupId,
    ) -> Result<Option<Reply>, SplitRefusal> {
        // The same split, asked again. It never makes a second child.
        if place.last_child == Some(child) && place.range.to() == Some(at) {
            return Ok(Some(Reply::GroupSplit { child }));
        }
        // Ids rise: one that was used here, or was given before this group was born, is none of the root's any more.
        let is_known = place.last_child.is_some_and(|last| child <= last) || child <= place.group;
        let is_planned = place.map.as_ref().is_none_or(|map| map.planned(place.group) == Some(child));
        if is_known || !is_planned || child.0 as usize > GROUPS_MAX {
            return Err(SplitRefusal::NoSuchPlan { child });
        }
        split_range(place, at)?;
        match self.in_use_behind(at) {
            Some(refusal) if !mutants::A_SPLIT_MOVES_WHAT_IS_HELD.is_active() => Err(refusal),
            _ => Ok(None),
        }
    }

    /// Who holds or awaits a name from the boundary on, or a subtree that it cuts.
    fn in_use_behind(&self, at: &Boundary) -> Option<SplitRefusal> {
        let behind = (Bound::Included(at.as_str()), Bound::Unbounded);
        let moving = self.locks.range::<str, _>(behind).next().map(|(lock, _)| lock);
        let cut = at.subtrees_around().filter_map(|path| self.locks.get_key_value(path));
        let in_use = moving.and_then(|lock| self.user_of(lock, None));
        in_use.or_else(|| cut.into_iter().find_map(|(lock, _)| self.user_of(lock, Some(Scope::Subtree))))
    }

    /// Who holds a lock, or is the first to wait for it; with this scope only, if one is given.
    fn user_of(&self, lock: &LockName, wanted: Option<Scope>) -> Option<SplitRefusal> {
        let known = self.locks.get(lock)?;
        let holders = known.holders.iter().map(|grant| (grant.lease, grant.scope, true));
        let queue = known.queue.iter().flat_map(|queue| queue.in_order());
        let waits = queue.map(|ticket| &self.waits[&ticket]).map(|wait| (wait.lease, wait.scope, false));
        let mut users =
            holders.chain(waits).filter(|(_, scope, _)| wanted.is_none_or(|wanted| *scope == wanted));
        let (lease, scope, is_held) = users.next()?;
        let owner = self.leases[&lease].owner.clone();
        Some(SplitRefusal::InUse { lock: lock.clone(), owner, lease, scope, is_held })
    }

    /// Why a new claim is not taken now: its part of the range is to come to rest.
    pub(crate) fn draining(&self, lock: &LockName, scope: Scope) -> Option<Refusal> {
        let from = self.place.as_ref()?.drain.as_ref()?;
        let reaches = !from.is_behind(lock) || scope == Scope::Subtree && from.is_inside_subtree(lock);
        reaches.then(|| Refusal::Draining { lock: lock.clone(), from: from.clone() })
    }

    /// Carries out a change that passed the check. A split gives the first state of the new group, too: the same one
    /// whenever the entry is applied.
    pub(crate) fn change_groups(&mut self, change: &GroupChange) -> (Reply, Option<Box<Self>>) {
        match change {
            GroupChange::Plan { parent } => {
                let plan = |place: &mut Place| place.map.as_mut().map(|map| map.plan(*parent));
                let group = self.change_place(plan).expect("only the root plans");
                (Reply::GroupPlanned { group }, None)
            }
            GroupChange::Split { at, child } => {
                let (first, second) = self.range().split_at(at).expect("a boundary that is inside");
                let born = self.first_of(*child, second);
                let lease_boundary = born.place.as_ref().and_then(|place| place.lease_boundary);
                self.change_place(|place| {
                    place.range = first;
                    place.lease_boundary = lease_boundary;
                    place.last_child = Some(*child);
                    place.drain = None;
                    if let Some(map) = &mut place.map {
                        map.record(place.group, at, *child);
                    }
                });
                (Reply::GroupSplit { child: *child }, Some(Box::new(born)))
            }
            GroupChange::Record { parent, at, child } => {
                self.change_place(|place| {
                    let map = place.map.as_mut().expect("only the root records");
                    map.record(*parent, at, *child);
                });
                (Reply::GroupsChanged, None)
            }
            GroupChange::Drain { from } => {
                self.change_place(|place| place.drain.clone_from(from));
                (Reply::GroupsChanged, None)
            }
        }
    }

    /// The last split of this group: what the root is to record, for as long as it has not.
    pub fn last_split(&self) -> Option<GroupChange> {
        let place = self.place.as_ref()?;
        let (at, child) = (place.range.to()?.clone(), place.last_child?);
        Some(GroupChange::Record { parent: place.group, at, child })
    }

    /// From which name on no new claims are taken.
    pub fn drained_from(&self) -> Option<&Boundary> {
        self.place.as_ref()?.drain.as_ref()
    }
}

fn root_of(place: &Place) -> Result<&ShardMap, SplitRefusal> {
    place.map.as_ref().ok_or(SplitRefusal::NotRoot)
}

fn split_range(place: &Place, at: &Boundary) -> Result<(NameRange, NameRange), SplitRefusal> {
    let outside = || SplitRefusal::Outside { at: at.clone(), range: place.range.clone() };
    place.range.split_at(at).ok_or_else(outside)
}

impl ShardMap {
    fn check_plan(&self, parent: GroupId) -> Result<Option<Reply>, SplitRefusal> {
        if let Some(group) = self.planned(parent) {
            return Ok(Some(Reply::GroupPlanned { group }));
        }
        if self.range_of(parent).is_none() {
            return Err(SplitRefusal::NoSuchGroup { group: parent });
        }
        match self.last_group.0 as usize >= GROUPS_MAX {
            true => Err(SplitRefusal::TooManyGroups),
            false => Ok(None),
        }
    }

    fn plan(&mut self, parent: GroupId) -> GroupId {
        self.last_group = GroupId(self.last_group.0 + 1);
        self.planned.insert(parent, self.last_group);
        self.last_group
    }

    fn check_record(
        &self,
        parent: GroupId,
        at: &Boundary,
        child: GroupId,
    ) -> Result<Option<Reply>, SplitRefusal> {
        // It may have been split itself by now.
        if self.range_of(child).is_some() {
            return Ok(Some(Reply::GroupsChanged));
        }
        // Its own splits the root records as they happen.
        if parent == GroupId::ROOT || self.planned(parent) != Some(child) {
            return Err(SplitRefusal::NoSuchPlan { child });
        }
        let range = self.range_of(parent).ok_or(SplitRefusal::NoSuchGroup { group: parent })?;
        match range.split_at(at) {
            Some(_) => Ok(None),
            None => Err(SplitRefusal::Outside { at: at.clone(), range }),
        }
    }

    fn record(&mut self, parent: GroupId, at: &Boundary, child: GroupId) {
        self.planned.remove(&parent);
        let before = self.by_start.insert(at.clone(), child);
        assert!(before.is_none(), "group {child} begins where another one does");
    }
}

/// The kinds of command that are a change of groups.
pub(crate) const GROUP_KINDS: std::ops::RangeInclusive<u32> = 40..=43;

impl Command {
    /// A change of groups as a command.
    pub fn groups(change: GroupChange) -> Self {
        Self::Groups(Box::new(change))
    }
}
