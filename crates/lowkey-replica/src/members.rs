//! Who belongs to the group: the leader brings the configuration of `raft` in step with the
//! registered nodes.
//!
//! Registering a node is a command; making it a member of the quorum is not the caller's business.
//! On every tick the leader looks for a registered node that is not in the configuration, and brings
//! it in as a learner; and for a learner that has caught up and answers, and makes it a voter. So a
//! node that cannot be reached never costs quorum, and a new leader goes on where the last one
//! stopped, without remembering anything. Changes go one at a time.

use lowkey_core::MemberId;
use raft::eraftpb::{self, ConfChangeType};

use crate::input::DiskRoom;
use crate::replica::{Fatal, Replica};
use crate::wire;

/// A learner that is at most this many entries behind has caught up.
const CAUGHT_UP_ENTRIES: u64 = 100;

impl Replica {
    /// R1 is the caller's duty: only a leader that may touch leases may change the members.
    pub(crate) fn reconcile_members(&mut self) {
        if self.node.raft.has_pending_conf() || self.node.raft.lead_transferee.is_some() {
            return;
        }
        // The reserve is kept for releases and for ends of leases.
        if self.disk != DiskRoom::Ample {
            return;
        }
        let Some((member, kind)) = self.next_change() else { return };
        let mut change = eraftpb::ConfChangeSingle::default();
        change.set_change_type(kind);
        change.node_id = member.0;
        let mut changes = eraftpb::ConfChangeV2::default();
        changes.mut_changes().push(change);
        // A refused proposal is made again at the next tick.
        let _ = self.node.propose_conf_change(Vec::new(), changes);
    }

    fn next_change(&self) -> Option<(MemberId, ConfChangeType)> {
        let raft = &self.node.raft;
        let conf = raft.prs().conf();
        let outside = self
            .state
            .members()
            .map(|(member, _)| member)
            .find(|member| !conf.voters().contains(member.0) && !conf.learners().contains(&member.0));
        if let Some(member) = outside {
            return Some((member, ConfChangeType::AddLearnerNode));
        }
        let mut learners: Vec<u64> = conf.learners().iter().copied().collect();
        learners.sort_unstable();
        let last = raft.raft_log.last_index();
        learners
            .into_iter()
            .find(|learner| {
                raft.prs().get(*learner).is_some_and(|progress| {
                    // `raft` takes a new member for active before it was heard of; what it has in
                    // its log it said itself.
                    progress.matched > 0
                        && progress.recent_active
                        && progress.matched + CAUGHT_UP_ENTRIES >= last
                })
            })
            .map(|learner| (MemberId(learner), ConfChangeType::AddNode))
    }

    pub(crate) fn apply_conf_change(&mut self, entry: &eraftpb::Entry) -> Result<(), Fatal> {
        let fatal = |problem: String| Fatal { index: entry.index, problem };
        let change = wire::decode_conf_change(&entry.data).map_err(|error| fatal(error.to_string()))?;
        self.conf_state = self.node.apply_conf_change(&change).map_err(|error| fatal(error.to_string()))?;
        Ok(())
    }

    /// The voter that is nearest to this leader's log, among those that answer.
    pub(crate) fn best_successor(&self) -> Option<MemberId> {
        let raft = &self.node.raft;
        self.conf_state
            .voters
            .iter()
            .filter(|voter| **voter != self.config.member.0)
            .filter_map(|voter| raft.prs().get(*voter).map(|progress| (progress, *voter)))
            .filter(|(progress, _)| progress.recent_active)
            .max_by_key(|(progress, voter)| (progress.matched, std::cmp::Reverse(*voter)))
            .map(|(_, voter)| MemberId(voter))
    }
}
