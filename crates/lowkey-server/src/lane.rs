//! What a node has of each group, and which group a request belongs to.
//!
//! A node has a replica of every group. Everything that belongs to one group is its *lane*. `driver.rs`
//! drives the replica and answers its callers. The rest of the node uses the parts that are here: an inbox,
//! a view, a hub for watches, snapshot files. Things that exist once per node are not in a lane but in
//! `host.rs`.
//!
//! [`Lanes`] finds the lane of a request by what the request is about ([`Place`]). Today there is one
//! group, the root, and everything belongs to it.
//!
//! - `inbox.rs`: what waits for the replica, and in which order it is taken
//! - `driver.rs`: one turn of the replica; `turns.rs`: which thread takes it
//! - `view.rs`: what others may know without asking the replica
//! - `snapshot_maker.rs`: makes and writes snapshots beside the turns

pub(crate) mod driver;
pub(crate) mod inbox;
pub(crate) mod snapshot_maker;
pub(crate) mod turns;
pub(crate) mod view;

use std::sync::Arc;

use lowkey_core::{GroupId, LeaseId};

use self::inbox::{Event, Inbox};
use self::view::View;
use crate::call::Place;
use crate::storage::SnapshotFiles;
use crate::watch::Hub;

/// One group on this node, as every component except its driver sees it.
pub(crate) struct Lane {
    pub(crate) group: GroupId,
    pub(crate) inbox: Inbox,
    pub(crate) view: View,
    pub(crate) hub: Hub,
    pub(crate) snapshot_files: SnapshotFiles,
}

impl Lane {
    /// True if this node leads the group, as far as it knows.
    pub(crate) fn leads(&self) -> bool {
        self.view.leads()
    }
}

/// The lanes of a node.
#[derive(Clone)]
pub(crate) struct Lanes {
    /// The group that every cluster has. Its state contains the members and everything else that exists
    /// once per cluster.
    root: Arc<Lane>,
}

impl Lanes {
    pub(crate) fn new(root: Arc<Lane>) -> Self {
        assert_eq!(root.group, GroupId::ROOT, "the root is the first lane of every node");
        Self { root }
    }

    /// The lane of the root group.
    pub(crate) fn root(&self) -> &Arc<Lane> {
        &self.root
    }

    /// The lane of a group, if this node has one. An unknown group is never created.
    pub(crate) fn get(&self, group: GroupId) -> Option<&Arc<Lane>> {
        self.all().find(|lane| lane.group == group)
    }

    /// The lane that a request belongs to.
    pub(crate) fn of(&self, place: Place<'_>) -> &Arc<Lane> {
        match place {
            Place::Name(_) | Place::Lease(_) | Place::Prefix(_) | Place::Root => &self.root,
        }
    }

    /// The lane that all of these leases belong to, or `None` if they belong to different ones.
    pub(crate) fn of_all(&self, mut leases: impl Iterator<Item = LeaseId>) -> Option<&Arc<Lane>> {
        let lane = self.of(Place::Lease(leases.next()?));
        leases.all(|lease| self.of(Place::Lease(lease)).group == lane.group).then_some(lane)
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Arc<Lane>> {
        std::iter::once(&self.root)
    }

    /// Tells this node's streams that use a lease that something of it was ended. Does nothing if the id is
    /// 0.
    pub(crate) fn tell_streams(&self, lease_id: u64) {
        self.of(Place::Lease(LeaseId(lease_id))).hub.tell_streams(lease_id);
    }

    /// Reports the same event to every lane.
    pub(crate) fn report_all(&self, event: impl Fn() -> Event) {
        self.all().for_each(|lane| lane.inbox.report(event()));
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use lowkey_replica::Status;
    use tokio::sync::watch;

    use super::*;

    /// The lanes of a node that has no driver.
    pub(crate) fn lanes(status: Status) -> Lanes {
        let view = View::new(status);
        let (hub, _feed) = Hub::start(0, 10, view.leadership(), watch::channel(false).1);
        let disk = Arc::new(lowkey_wal::SimDisk::new(1));
        Lanes::new(Arc::new(Lane {
            group: GroupId::ROOT,
            inbox: Inbox::default(),
            view,
            hub,
            snapshot_files: SnapshotFiles::new(GroupId::ROOT, disk),
        }))
    }

    #[tokio::test]
    async fn with_one_group_everything_is_the_roots() {
        let lanes = lanes(crate::peers::hello::tests::status(vec![], &[], 1));
        let places = [Place::Name("a"), Place::Lease(LeaseId(7)), Place::Prefix(""), Place::Root];
        assert!(places.iter().all(|place| lanes.of(*place).group == GroupId::ROOT));
        assert!(lanes.get(GroupId::ROOT).is_some() && lanes.get(GroupId(2)).is_none());
        assert!(lanes.of_all([LeaseId(1), LeaseId(2)].into_iter()).is_some());
        assert!(lanes.of_all(std::iter::empty()).is_none());
    }
}
