//! What the rest of the node may know of its replica without asking it.
//!
//! The thread that takes the replica's turns publishes here. Everyone else reads, and never waits.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use lowkey_core::{Epoch, MemberId};
use lowkey_replica::Status;
use tokio::sync::watch;

use crate::access::Guard;

/// The leader, as this node sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Leadership {
    pub(crate) term: u64,
    pub(crate) leader: Option<MemberId>,
}

pub(crate) struct View {
    own: MemberId,
    status: RwLock<Arc<Status>>,
    leadership: watch::Sender<Leadership>,
    /// Becomes true when this node learns that it was removed, and never false again.
    removed: watch::Sender<bool>,
    /// True if the node is neither removed nor in doubt. Every call asks for this, so reading it must cost
    /// nothing.
    sound: AtomicBool,
    /// Who is let in: it has the state's table.
    pub(crate) guard: Arc<Guard>,
    /// The cluster's epoch, 0 for none: for every grant, so reading it must cost nothing.
    epoch: AtomicU64,
}

impl View {
    pub(crate) fn new(status: Status) -> Self {
        let leadership = watch::Sender::new(leadership(&status));
        let guard = Guard::of_start();
        guard.in_touch(status.leader.is_some());
        guard.publish(&status.access);
        Self {
            own: status.member,
            sound: AtomicBool::new(status.divergence.is_none()),
            epoch: AtomicU64::new(epoch(&status)),
            status: RwLock::new(Arc::new(status)),
            leadership,
            removed: watch::Sender::new(false),
            guard: Arc::new(guard),
        }
    }

    pub(crate) fn publish(&self, status: Status) {
        let leadership = leadership(&status);
        self.guard.in_touch(status.leader.is_some());
        self.guard.publish(&status.access);
        self.sound.store(status.divergence.is_none() && !self.is_removed(), Ordering::Release);
        self.epoch.store(epoch(&status), Ordering::Release);
        *self.status.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(status);
        self.leadership.send_if_modified(|before| {
            let changed = *before != leadership;
            *before = leadership;
            changed
        });
    }

    pub(crate) fn epoch(&self) -> u64 {
        self.epoch.load(Ordering::Acquire)
    }

    pub(crate) fn status(&self) -> Arc<Status> {
        Arc::clone(&self.status.read().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn leadership(&self) -> watch::Receiver<Leadership> {
        self.leadership.subscribe()
    }

    /// Marks this node as no longer a member.
    pub(crate) fn set_removed(&self) {
        self.removed.send_replace(true);
        self.sound.store(false, Ordering::Release);
    }

    pub(crate) fn is_removed(&self) -> bool {
        *self.removed.borrow()
    }

    /// True while this node is a member and its state is not in doubt.
    pub(crate) fn is_sound(&self) -> bool {
        self.sound.load(Ordering::Acquire)
    }

    pub(crate) fn removed(&self) -> watch::Receiver<bool> {
        self.removed.subscribe()
    }

    /// True if this node leads, as far as it knows.
    pub(crate) fn leads(&self) -> bool {
        self.leadership.borrow().leader == Some(self.own)
    }

    pub(crate) fn own(&self) -> MemberId {
        self.own
    }
}

fn epoch(status: &Status) -> u64 {
    status.epoch.map_or(0, Epoch::number)
}

fn leadership(status: &Status) -> Leadership {
    Leadership { term: status.term, leader: status.leader }
}
