//! What a group knows of its place among others, and what it answers to those who are wrong here.

use lowkey_record::GroupId;

use super::map::ShardMap;
use super::range::{Boundary, NameRange};
use crate::claim::Scope;
use crate::command::{AcquireWith, Command, GrantRef, Refusal, Reply, Requester};
use crate::limits::GROUPS_MAX;
use crate::mutants;
use crate::name::{LeaseId, LockName, OwnerId, RequestId};
use crate::state::State;

/// How many stripes of lease ids there are: more than groups, so that there can be more groups one day.
const STRIPES: u64 = 1024;

/// The place of a group among others. A state that has none is that of the only group.
///
/// Invariants, for the state that has it:
/// - All its locks are in `range`, with all that is held or awaited as a subtree.
/// - All its leases are of its own stripe.
/// - Only the root has a map. The range of the root there is its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) group: GroupId,
    pub(crate) range: NameRange,
    /// Once there is more than one group, lease ids above this one tell whose they are. The others are the root's.
    pub(crate) lease_boundary: Option<LeaseId>,
    pub(crate) map: Option<ShardMap>,
    /// The group that has the names which this one had last, before they moved. Its id is above all that were given
    /// before.
    pub(crate) last_child: Option<GroupId>,
    /// No new claims are taken on names from this one on.
    pub(crate) drain: Option<Boundary>, // inside the range
}

impl Default for Place {
    /// That of the only group.
    fn default() -> Self {
        Self {
            group: GroupId::ROOT,
            range: NameRange::whole(),
            lease_boundary: None,
            map: Some(ShardMap::default()),
            last_child: None,
            drain: None,
        }
    }
}

impl Place {
    /// The lease id that comes next. Ids of a group are one stripe: above the boundary, each group has every 1024th.
    pub(crate) fn next_lease(&self, last: LeaseId) -> LeaseId {
        let Some(boundary) = self.lease_boundary else { return LeaseId(last.0 + 1) };
        let lowest = last.max(boundary).0 + 1;
        if mutants::LEASE_IDS_OF_TWO_GROUPS_COLLIDE.is_active() {
            return LeaseId(lowest);
        }
        LeaseId(lowest + (stripe(self.group) + STRIPES - lowest % STRIPES) % STRIPES)
    }

    /// The group that makes, or made, leases with this id. None if no group ever can.
    pub(crate) fn group_of_lease(&self, lease: LeaseId) -> Option<GroupId> {
        match self.lease_boundary {
            Some(boundary) if lease > boundary => {
                let number = u32::try_from(lease.0 % STRIPES + 1).expect("there are few stripes");
                (number as usize <= GROUPS_MAX).then_some(GroupId(number))
            }
            _ => Some(GroupId::ROOT),
        }
    }

    fn is_of_another(&self, lease: LeaseId) -> Option<GroupId> {
        self.group_of_lease(lease).filter(|group| *group != self.group)
    }
}

fn stripe(group: GroupId) -> u64 {
    u64::from(group.0 - 1) % STRIPES
}

impl State {
    /// The group that this is the state of.
    pub fn group(&self) -> GroupId {
        self.place.as_ref().map_or(GroupId::ROOT, |place| place.group)
    }

    /// The names that are this group's.
    pub fn range(&self) -> NameRange {
        self.place.as_ref().map_or_else(NameRange::whole, |place| place.range.clone())
    }

    /// The groups of the cluster, as the root knows them; nothing in any other group.
    pub fn shard_map(&self) -> Option<ShardMap> {
        self.place.as_ref().map_or_else(|| Some(ShardMap::default()), |place| place.map.clone())
    }

    /// The group that makes leases with this id. None if no group ever can.
    pub fn group_of_lease(&self, lease: LeaseId) -> Option<GroupId> {
        self.place.as_ref().map_or(Some(GroupId::ROOT), |place| place.group_of_lease(lease))
    }

    /// Changes what is known of the place. The only group has none, so that it is written as it always was.
    pub(crate) fn change_place<T>(&mut self, change: impl FnOnce(&mut Place) -> T) -> T {
        let mut place = self.place.take().unwrap_or_default();
        let outcome = change(&mut place);
        self.place = (*place != Place::default()).then_some(place);
        outcome
    }

    /// Why a command is wrong here, whatever there is: its name or its lease is of another group, or it would cover
    /// names of two.
    pub(crate) fn elsewhere(&self, command: &Command) -> Option<Refusal> {
        let place = self.place.as_ref()?;
        let lock = lock_of(command);
        // The name first: it says where to ask. That group judges the lease.
        if lock.is_some_and(|lock| !place.range.contains(lock))
            && !mutants::A_NAME_THAT_MOVED_IS_GRANTED.is_active()
        {
            return Some(Refusal::NotHere { group: place.group });
        }
        let lease = command.lease();
        if let Some((lease, group)) = lease.and_then(|lease| Some((lease, place.is_of_another(lease)?))) {
            return Some(match lock {
                Some(_) => Refusal::LeaseElsewhere { lease, group },
                None => Refusal::NotHere { group: place.group },
            });
        }
        match command {
            Command::Acquire { lock, scope: Scope::Subtree, .. }
                if !mutants::A_SUBTREE_ACROSS_A_BOUNDARY_IS_GRANTED.is_active() =>
            {
                let boundary = place.range.splits_subtree(lock)?.clone();
                Some(Refusal::SubtreeSplit { lock: lock.clone(), boundary })
            }
            _ => None,
        }
    }

    /// What is known of a command that is wrong here: it may have been right once, before names moved, and had its
    /// effect then. To ask again is answered as before.
    pub(crate) fn known_from_before(&self, command: &Command) -> Result<Option<Reply>, Refusal> {
        match request_of(command) {
            Some((Within::Owner(owner), request)) => self.known_lease_request(owner, request, command),
            Some((Within::Lease(lease, owner), request)) => {
                let lease = self.lease(lease).filter(|lease| owner.is_none_or(|owner| lease.owner == *owner));
                lease.map_or(Ok(None), |lease| self.known_request(lease, request, command))
            }
            None => Ok(None),
        }
    }
}

/// The lock that a client's command is about.
fn lock_of(command: &Command) -> Option<&LockName> {
    match command {
        Command::Acquire { lock, .. } | Command::Release { lock, .. } | Command::SetValue { lock, .. } => {
            Some(lock)
        }
        _ => None,
    }
}

/// Within what a request id means one request.
enum Within<'a> {
    Owner(&'a OwnerId),
    /// With the owner that was named.
    Lease(LeaseId, Option<&'a OwnerId>),
}

/// Where a client's command is remembered once it had its effect.
fn request_of(command: &Command) -> Option<(Within<'_>, &RequestId)> {
    match command {
        Command::CreateLease { owner, request, .. }
        | Command::RevokeLease { owner, request, .. }
        | Command::Acquire { owner, with: AcquireWith::NewLease(_), request, .. } => {
            Some((Within::Owner(owner), request))
        }
        Command::Acquire { owner, with: AcquireWith::Lease(lease), request, .. }
        | Command::SetValue { owner, lease, request, .. } => {
            Some((Within::Lease(*lease, Some(owner)), request))
        }
        Command::Release { grant, request, .. } => Some(match grant {
            GrantRef::Lease(lease)
            | GrantRef::Request(_, Requester::Lease(lease))
            | GrantRef::GivenUp(_, Requester::Lease(lease)) => (Within::Lease(*lease, None), request),
            GrantRef::Request(_, Requester::Owner(owner)) | GrantRef::GivenUp(_, Requester::Owner(owner)) => {
                (Within::Owner(owner), request)
            }
        }),
        Command::CancelWait { .. }
        | Command::Expire { .. }
        | Command::EndHolds { .. }
        | Command::AddMember { .. }
        | Command::UpdateMember { .. }
        | Command::RemoveMember { .. }
        | Command::EndQuarantine
        | Command::Invite { .. }
        | Command::Access(_)
        | Command::SetBackupSchedule(_)
        | Command::Groups(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(group: u32, boundary: u64) -> Place {
        Place { group: GroupId(group), lease_boundary: Some(LeaseId(boundary)), ..Place::default() }
    }

    #[test]
    fn lease_ids_above_the_boundary_tell_whose_they_are() {
        for boundary in [0, 5, 1023, 1024, 1025, 30_000_000 << 32] {
            for group in [1, 2, 3, 64] {
                let place = place(group, boundary);
                let mut last = LeaseId(0);
                for _ in 0..3 {
                    let next = place.next_lease(last);
                    assert!(next > last && next.0 > boundary, "{next} after {last}");
                    assert!(last.0 <= boundary || next.0 == last.0 + STRIPES);
                    assert!(next.0 <= last.0.max(boundary) + STRIPES, "none is left out");
                    assert_eq!(next.0 % STRIPES, u64::from(group - 1));
                    assert_eq!(place.group_of_lease(next), Some(GroupId(group)));
                    last = next;
                }
            }
        }
    }

    #[test]
    fn lease_ids_up_to_the_boundary_are_the_roots_and_some_are_nobodys() {
        let place = place(3, 5000);
        assert_eq!(place.group_of_lease(LeaseId(5000)), Some(GroupId::ROOT));
        assert_eq!(place.group_of_lease(LeaseId(1)), Some(GroupId::ROOT));
        assert_eq!(place.group_of_lease(LeaseId(5 * 1024 + 2)), Some(GroupId(3)));
        assert_eq!(place.group_of_lease(LeaseId(5 * 1024 + 64)), None);
        // While there is one group there are no stripes.
        let alone = Place::default();
        assert_eq!(alone.next_lease(LeaseId(7)), LeaseId(8));
        assert_eq!(alone.group_of_lease(LeaseId(2)), Some(GroupId::ROOT));
    }
}
