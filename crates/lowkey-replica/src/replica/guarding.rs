//! What a replica does for the guard: it takes the digests, tells the others, and acts on the verdict. Why, and how that
//! is judged, is in `guard.rs`.

use std::collections::BTreeSet;

use lowkey_core::{MemberId, mutants};
use raft::StateRole;
use raft::eraftpb::ConfState;

use super::Replica;
use super::mix::mix;
use crate::guard::{Divergence, GUARD_VERSION, Report};
use crate::time::Nanos;
use crate::wire::{self, Mark};

impl Replica {
    /// Nothing while it serves, or may.
    pub fn divergence(&self) -> Option<Divergence> {
        self.guard.divergence()
    }

    /// What the next proposal carries, if a checkpoint is due.
    pub(super) fn mark_if_due(&mut self, now: Nanos) -> Vec<u8> {
        let (index, at) = self.standing.marked;
        let next = self.node.raft.raft_log.last_index() + 1;
        let is_due = next.saturating_sub(index) >= self.config.checkpoint_entries
            || now.since(at) >= self.config.checkpoint_nanos;
        match is_due && self.has_whom_to_compare_with() {
            true => wire::encode_mark(Mark { previous: self.guard.last_marked() }),
            false => Vec::new(),
        }
    }

    /// A proposal was taken into the log.
    pub(super) fn marked(&mut self, now: Nanos, mark: &[u8]) {
        if !mark.is_empty() {
            self.standing.marked = (self.node.raft.raft_log.last_index(), now);
        }
    }

    fn has_whom_to_compare_with(&self) -> bool {
        let members = self.conf_state.voters.len() + self.conf_state.learners.len();
        let understood =
            self.state.oldest_member().is_some_and(|oldest| oldest.command_version >= GUARD_VERSION);
        members > 1 && understood
    }

    /// An entry was applied: if it is a checkpoint, this is the state to compare.
    pub(super) fn checkpoint(&mut self, now: Nanos, index: u64, context: &[u8]) {
        let Some(Mark { previous }) = wire::decode_mark(context) else { return };
        if let Some(previous) = previous {
            self.guard.hear_witness(now, previous);
        }
        self.take_checkpoint(now, index, false);
        self.guard.newest_is_marked();
    }

    fn take_checkpoint(&mut self, now: Nanos, index: u64, wants_answer: bool) {
        let digest = self.comparable();
        self.guard.note_own(now, index, digest);
        for to in self.others() {
            self.report(to, index, digest, wants_answer);
        }
        self.judge(now);
    }

    /// Where this replica rests is a checkpoint too, and where another does that stands at the same index.
    fn checkpoint_at_rest(&mut self, now: Nanos) {
        let index = self.state.revision();
        let rests = self.guard.rests(now, index, self.config.checkpoint_nanos);
        if self.guard.has_own_at_or_behind(index) || !self.has_whom_to_compare_with() {
            return;
        }
        if rests || self.guard.is_asked_about(index) {
            self.take_checkpoint(now, index, rests);
        }
    }

    /// The state, and who belongs to the group: what replicas at the same index have in common.
    fn comparable(&self) -> u64 {
        let ConfState { voters, learners, voters_outgoing, learners_next, .. } = &self.conf_state;
        let mut digest = self.state.digest();
        for members in [voters, learners, voters_outgoing, learners_next] {
            let mut members = members.clone();
            members.sort_unstable();
            // No member has this id: it ends the list.
            digest = members.into_iter().chain([u64::MAX]).fold(digest, mix);
        }
        digest
    }

    fn others(&self) -> Vec<MemberId> {
        let ConfState { voters, learners, voters_outgoing, .. } = &self.conf_state;
        let all = voters.iter().chain(learners).chain(voters_outgoing).copied().map(MemberId);
        let others: BTreeSet<MemberId> = all.filter(|member| *member != self.config.member).collect();
        others.into_iter().collect()
    }

    fn report(&mut self, to: MemberId, index: u64, digest: u64, wants_answer: bool) {
        let understands = self.state.member(to).is_some_and(|node| node.command_version >= GUARD_VERSION);
        if understands {
            self.output.reports.push(Report { from: self.config.member, to, index, digest, wants_answer });
        }
    }

    /// Another replica says what its state came to.
    pub(super) fn receive_report(&mut self, now: Nanos, report: Report) {
        let Report { from, to, index, digest, wants_answer } = report;
        if to != self.config.member || !self.others().contains(&from) {
            return;
        }
        self.guard.note_report(from, index, digest);
        self.checkpoint_at_rest(now);
        if wants_answer && let Some(own) = self.guard.own_at(index) {
            self.report(from, index, own, false);
        }
        self.judge(now);
    }

    fn judge(&mut self, now: Nanos) {
        let verdict = self.guard.judge(now, self.config.member, &self.conf_state.voters);
        if let Some(divergence) = verdict
            && !mutants::A_MINORITY_GOES_ON.is_active()
        {
            self.diverged(now, divergence);
        }
    }

    /// It stops serving, or begins to again.
    fn diverged(&mut self, now: Nanos, divergence: Option<Divergence>) {
        self.guard.set_divergence(divergence);
        // What was certain is not any more; and what watchers were shown, or were not, is in doubt.
        self.standing.forget(now);
        self.lose_certainty(now);
        self.output.changes.clear();
        self.output.history_lost = Some(self.state.revision());
        self.begin_to_lead(now, self.applying.term);
    }

    /// Asks those that were not heard, and sees to it that a replica that is wrong becomes right.
    pub(super) fn tick_guard(&mut self, now: Nanos) {
        self.checkpoint_at_rest(now);
        if let Some((index, digest)) = self.guard.take_question(now) {
            let voters: Vec<MemberId> = self.conf_state.voters.iter().copied().map(MemberId).collect();
            for to in voters {
                if to != self.config.member && self.guard.has_not_heard(to, index) {
                    self.report(to, index, digest, true);
                }
            }
        }
        self.judge(now);
        if let Some(Divergence::Minority { .. }) = self.guard.divergence() {
            match self.node.raft.state {
                StateRole::Leader => self.hand_over(),
                // The file of its own snapshot would come after that of the leader's, in the same place.
                _ if self.snapshots.is_being_made() => {}
                _ if !mutants::A_MINORITY_TAKES_NO_SNAPSHOT.is_active() => {
                    self.guard.ask_for_snapshot(now, &mut self.node);
                }
                _ => {}
            }
        }
    }
}
