//! How groups come to be: the first state of a group, made of the state of the one that had its names before.

use lowkey_record::GroupId;

use super::map::{ShardMap, check_boundaries};
use super::place::Place;
use super::range::{Boundary, NameRange};
use crate::mutants;
use crate::name::Invalid;
use crate::state::State;

impl State {
    /// The first states of a cluster that is founded with several groups, by group: this one is what the cluster would
    /// begin with as one group. The boundaries rise.
    pub fn found_groups(mut self, boundaries: &[Boundary]) -> Result<Vec<Self>, Invalid> {
        check_boundaries(boundaries)?;
        let map = ShardMap::of_boundaries(boundaries)?;
        let mut states = Vec::new();
        let mut shards = map.shards();
        let root = shards.next().map(|(_, range)| range);
        for (group, range) in shards {
            states.push(self.first_of(group, range));
        }
        if let Some(range) = root.filter(|range| !range.is_whole()) {
            let lease_boundary = self.last_lease;
            self.change_place(|place| {
                (place.range, place.lease_boundary, place.map) = (range, Some(lease_boundary), Some(map));
            });
        }
        states.insert(0, self);
        Ok(states)
    }

    /// The first state of a group that has names which were this one's until now.
    ///
    /// - Its tokens go on above all of this group's: those of one lock rise for ever.
    /// - It begins at this group's revision: positions of a name never go back.
    /// - It knows the requests that made leases. They do not say for which lock, and may be asked again.
    /// - Its own leases are made above the boundary, on its stripe. It has none yet, and holds nothing.
    /// - Members, access and invitations are the root's alone.
    pub(super) fn first_of(&self, group: GroupId, range: NameRange) -> Self {
        let boundary = self.place.as_ref().and_then(|place| place.lease_boundary);
        let boundary = boundary.unwrap_or(self.last_lease);
        let mut child = Self::new(self.cluster);
        child.revision = self.revision;
        if !mutants::A_NEW_GROUP_FORGETS_THE_COUNTER.is_active() {
            child.last_token = self.last_token;
        }
        child.last_lease = boundary;
        if !mutants::A_NEW_GROUP_KNOWS_NO_REQUESTS.is_active() {
            child.lease_requests = self.lease_requests.clone();
        }
        child.epoch = self.epoch;
        child.place = Some(Box::new(Place {
            group,
            range,
            lease_boundary: Some(boundary),
            map: None,
            ..Place::default()
        }));
        child
    }
}
