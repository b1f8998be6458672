//! Who leads where disks are full.
//!
//! A leader without room refuses all that makes the state grow, for the whole cluster, however much room the others
//! have. So a node without room stands for election after all others, takes no lead that it is given, and gives away
//! the one it has. Whether another has room it cannot know: it tries one after the other, and those without keep silent,
//! which stops what is proposed for the time of an election. So it does not try often.

use lowkey_core::MemberId;
use raft::StateRole;

use crate::input::DiskRoom;
use crate::replica::Replica;
use crate::time::{MILLISECOND, Nanos};

/// How long a leader is without room before it gives the lead away: space may be freed.
const FIRST_TRY_NANOS: u64 = 1_000 * MILLISECOND;
/// How long it waits after each try.
const TRY_NANOS: u64 = 10_000 * MILLISECOND;

/// Where a leader without room stands with giving the lead away.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Yielding {
    next_try: Nanos,
    asked: Option<MemberId>,
}

impl Replica {
    pub(crate) fn has_room(&self) -> bool {
        self.disk == DiskRoom::Ample
    }

    /// Gives the lead away, if this leader has no room.
    pub(crate) fn yield_if_full(&mut self, now: Nanos) {
        if self.has_room() || self.node.raft.state != StateRole::Leader {
            self.yielding = None;
            return;
        }
        let first = Yielding { next_try: now.after(FIRST_TRY_NANOS), asked: None };
        let Yielding { next_try, asked } = *self.yielding.get_or_insert(first);
        if now < next_try || self.node.raft.lead_transferee.is_some() {
            return;
        }
        let next = self.successor_behind(asked);
        self.yielding = Some(Yielding { next_try: now.after(TRY_NANOS), asked: next });
        if let Some(next) = next {
            self.node.transfer_leader(next.0);
        }
    }

    /// The next voter that could lead, and after the last the first.
    fn successor_behind(&self, asked: Option<MemberId>) -> Option<MemberId> {
        let able = || self.successors().filter(|voter| self.can_lead(*voter).is_ok());
        able().find(|voter| Some(*voter) > asked).or_else(|| able().next())
    }
}
