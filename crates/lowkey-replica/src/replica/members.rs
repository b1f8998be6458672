//! Who belongs to the group: the leader brings the configuration of `raft` in step with the
//! registered nodes.
//!
//! Registering a node and taking it off the register are commands; making it a member of the quorum, and
//! letting it go, is not the caller's business. On every tick the leader compares the register with the
//! configuration. A registered node that is missing comes in as a learner. A learner that has caught up and
//! answers becomes a voter, and a voter that is not registered any more goes: by joint consensus, both in
//! one change if both are due. So a node that cannot be reached never costs quorum, and a new leader goes on
//! where the last one stopped, without remembering anything. Changes go one at a time.
//!
//! What may never break:
//! - A leader proposes no change after which it would not vote: one that is to go hands the lead over first.
//!   `raft` would let it lead on, and answer rounds alone. That is also why joint configurations are left by
//!   a proposal of ours and never by `raft` itself: it would have a leader leave that is on its way out.
//! - A leader is in its own applied configuration. One that came to lead while it is on its way out, and
//!   finds in its log that the way out is decided, does not apply that before it has handed the lead over:
//!   `raft` panics otherwise, and those who stay might never learn what was decided.
//! - No change leaves voters behind of which a majority does not answer.
//! - A node counts as removed only when it is neither registered nor in the applied configuration: until
//!   then its acknowledgements may be what the very change needs.

use std::collections::BTreeSet;

use lowkey_core::{MemberId, NodeName, mutants};
use raft::eraftpb::{self, ConfChangeTransition, ConfChangeType};
use raft::{ProgressState, StateRole};

use super::contact::ANSWERS_NANOS;
use super::{Fatal, Replica};
use crate::input::DiskRoom;
use crate::output::Failure;
use crate::time::Nanos;
use crate::wire;

/// A learner that is at most this many entries behind has caught up.
const CAUGHT_UP_ENTRIES: u64 = 100;

/// One change of the configuration.
struct Change {
    singles: Vec<(MemberId, ConfChangeType)>,
    transition: ConfChangeTransition,
}

impl Change {
    /// Learners come and go without a vote being touched.
    fn of_learner(member: MemberId, kind: ConfChangeType) -> Self {
        Self { singles: vec![(member, kind)], transition: ConfChangeTransition::Auto }
    }

    /// Out of a joint configuration.
    fn leave() -> Self {
        Self { singles: Vec::new(), transition: ConfChangeTransition::Auto }
    }
}

impl Replica {
    /// R1 is the caller's duty: only a leader that may touch leases may change the members.
    pub(super) fn reconcile_members(&mut self) {
        if self.node.raft.has_pending_conf()
            || self.node.raft.lead_transferee.is_some()
            || self.removal_is_under_way()
        {
            return;
        }
        // Never its own removal, and never a change that drops it: the next leader does that.
        if !self.is_to_stay() && !mutants::A_LEADER_PROPOSES_ITS_OWN_REMOVAL.is_active() {
            return self.hand_over();
        }
        let is_joint = !self.conf_state.voters_outgoing.is_empty();
        let change = match self.durability.room {
            DiskRoom::Exhausted => None,
            _ if is_joint => Some(Change::leave()),
            DiskRoom::Ample => self.next_change(),
            // The reserve is kept for releases and for ends of leases.
            DiskRoom::Reserve => None,
        };
        let Some(Change { singles, transition }) = change else { return };
        let mut changes = eraftpb::ConfChangeV2::default();
        changes.set_transition(transition);
        for (member, kind) in singles {
            let mut single = eraftpb::ConfChangeSingle::default();
            single.set_change_type(kind);
            single.node_id = member.0;
            changes.mut_changes().push(single);
        }
        // A refused proposal is made again at the next tick.
        let _ = self.node.propose_conf_change(Vec::new(), changes);
    }

    fn next_change(&self) -> Option<Change> {
        let (voters, learners) = (members(&self.conf_state.voters), members(&self.conf_state.learners));
        let is_registered = |member: &MemberId| self.state.member(*member).is_some();
        let registered = self.state.members().map(|(member, _)| member);
        let outside =
            registered.into_iter().find(|member| !voters.contains(member) && !learners.contains(member));
        if let Some(member) = outside {
            return Some(Change::of_learner(member, ConfChangeType::AddLearnerNode));
        }
        if let Some(member) = learners.iter().find(|member| !is_registered(member)) {
            return Some(Change::of_learner(*member, ConfChangeType::RemoveNode));
        }
        let ready: Vec<MemberId> =
            learners.into_iter().filter(|learner| self.has_caught_up(*learner)).collect();
        let going: Vec<MemberId> = voters.iter().copied().filter(|voter| !is_registered(voter)).collect();
        // Those that do not answer are no loss, even where the others are needed for now.
        let silent = going.iter().copied().filter(|member| !self.answers(*member)).collect();
        [going, silent].into_iter().find_map(|going| self.change_of_voters(&voters, &ready, &going))
    }

    fn change_of_voters(
        &self,
        voters: &BTreeSet<MemberId>,
        ready: &[MemberId],
        going: &[MemberId],
    ) -> Option<Change> {
        let staying = voters.iter().filter(|voter| !going.contains(voter));
        let after: Vec<MemberId> = staying.chain(ready).copied().collect();
        if (ready.is_empty() && going.is_empty()) || self.at_risk(&after).is_some() {
            return None;
        }
        let ready = ready.iter().map(|member| (*member, ConfChangeType::AddNode));
        let going = going.iter().map(|member| (*member, ConfChangeType::RemoveNode));
        Some(Change { singles: ready.chain(going).collect(), transition: ConfChangeTransition::Explicit })
    }

    fn has_caught_up(&self, learner: MemberId) -> bool {
        let raft = &self.node.raft;
        let last = raft.raft_log.last_index();
        let progress = raft.prs().get(learner.0);
        // What it has in its log it said itself.
        self.answers(learner)
            && progress
                .is_some_and(|progress| progress.matched > 0 && progress.matched + CAUGHT_UP_ENTRIES >= last)
    }

    /// Nothing if a majority of these voters answers, else how many do.
    fn at_risk(&self, voters: &[MemberId]) -> Option<usize> {
        let answering = voters.iter().filter(|voter| self.answers(**voter)).count();
        let at_risk = answering * 2 <= voters.len() && !mutants::A_REMOVAL_MAY_COST_THE_QUORUM.is_active();
        at_risk.then_some(answering)
    }

    /// As a leader, at a tick: which members take entries.
    pub(super) fn look_at_progress(&mut self, now: Nanos) {
        let raft = &self.node.raft;
        let last = raft.raft_log.last_index();
        for (member, progress) in raft.prs().iter() {
            // A snapshot is on its way to it, for as long as it takes.
            let lacks_some = progress.matched < last && progress.state != ProgressState::Snapshot;
            self.contact.has_taken(now, MemberId(*member), progress.matched, lacks_some);
        }
    }

    /// When this leader had last heard from as many others as make a quorum with it; nothing if it needs nobody.
    pub(super) fn quorum_heard(&self) -> Option<Nanos> {
        let voters = &self.conf_state.voters;
        let others = voters.iter().filter(|voter| **voter != self.config.member.0);
        let mut heard: Vec<Nanos> = others.map(|other| self.contact.last_heard(MemberId(*other))).collect();
        heard.sort_unstable_by(|one, other| other.cmp(one));
        heard.get((voters.len() / 2).checked_sub(1)?).copied()
    }

    /// True if a member answers and takes the entries that it lacks: what people are told.
    pub(super) fn is_reachable(&self, member: MemberId) -> bool {
        self.answers(member)
            && (member == self.config.member || self.contact.takes_entries(member, self.timing.stretch()))
    }

    /// As far as this leader can tell.
    pub(super) fn answers(&self, member: MemberId) -> bool {
        member == self.config.member || self.contact.answers(member, self.timing.stretch())
    }

    /// It is registered, and votes in the configuration that is to be.
    fn is_to_stay(&self) -> bool {
        let own = self.config.member;
        self.state.member(own).is_some() && self.conf_state.voters.contains(&own.0)
    }

    /// A removal is in the log and not applied yet. What it leads to is not known before: two removals that
    /// are each without danger may not be together.
    fn removal_is_under_way(&self) -> bool {
        self.standing.last_removal > self.state.revision()
    }

    /// Before a removal is proposed: it must not cost the quorum, and not be this leader's own.
    pub(super) fn may_remove(&mut self, now: Nanos, name: &NodeName) -> Result<(), Failure> {
        let Some(going) = self.state.member_named(name) else { return Ok(()) };
        // Nothing was done: the caller may ask again in a moment.
        if self.removal_is_under_way() {
            return Err(Failure::NotLeader { leader: self.leader() });
        }
        let voters = members(&self.conf_state.voters);
        if !voters.contains(&going) {
            return Ok(());
        }
        let stays = |voter: &MemberId| *voter != going && self.state.member(*voter).is_some();
        let staying: Vec<MemberId> = voters.into_iter().filter(stays).collect();
        if let Some(answering) = self.at_risk(&staying) {
            // A new leader has not heard from all that would answer it.
            let answers_nanos = ANSWERS_NANOS * u64::from(self.timing.stretch());
            if !staying.is_empty() && now.since(self.standing.since) < answers_nanos {
                return Err(Failure::NotLeader { leader: self.leader() });
            }
            return Err(Failure::QuorumAtRisk { answering, voters: staying.len() });
        }
        if going == self.config.member && !mutants::A_LEADER_PROPOSES_ITS_OWN_REMOVAL.is_active() {
            self.hand_over();
            return Err(Failure::NotLeader { leader: None });
        }
        Ok(())
    }

    pub(super) fn apply_conf_change(&mut self, entry: &eraftpb::Entry) -> Result<(), Fatal> {
        let fatal = |problem: String| Fatal { index: entry.index, problem };
        let change = wire::decode_conf_change(&entry.data).map_err(|error| fatal(error.to_string()))?;
        self.conf_state = self.node.apply_conf_change(&change).map_err(|error| fatal(error.to_string()))?;
        Ok(())
    }

    /// True if this entry would take a leader out of its own configuration. Only leaving a joint
    /// configuration can: learners do not lead, and a node that enters one stays for as long as it lasts.
    pub(super) fn drops_leader(&self, entry: &eraftpb::Entry) -> bool {
        let own = self.config.member.0;
        self.node.raft.state == StateRole::Leader
            && self.conf_state.voters_outgoing.contains(&own)
            && !self.conf_state.voters.contains(&own)
            && wire::decode_conf_change(&entry.data).is_ok_and(|change| change.changes.is_empty())
            && !mutants::A_LEADER_APPLIES_THAT_IT_IS_GONE.is_active()
    }

    /// This leader's way out is decided, and it has to hand the lead over before it may apply that.
    pub(super) fn must_hand_over_to_leave(&self) -> bool {
        self.applying.unapplied.front().is_some_and(|entry| self.drops_leader(entry))
    }
}

pub(super) fn members(ids: &[u64]) -> BTreeSet<MemberId> {
    ids.iter().copied().map(MemberId).collect()
}
