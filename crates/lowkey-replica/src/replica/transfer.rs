//! How the lead is given to another node: to one that somebody names, or to the best that there is.
//!
//! Who asks for a named one is answered when the node leads, as far as this one can see, or when it is certain that it
//! did not come to that. While a transfer is under way nothing is proposed: it lasts no longer than `raft`
//! lets it, one shortest election timeout, and only a node is asked that can take over at once.

use lowkey_core::{MemberId, NodeName, Refusal};
use raft::StateRole;

use super::Replica;
use super::members::members;
use crate::input::CallId;
use crate::output::{CannotLead, Failure, Response};
use crate::time::{MILLISECOND, Nanos};

/// How long a leader that gave its lead away waits to hear who has it, with the shortest tick: longer than `raft` tries,
/// whatever the timing factor.
const OUTCOME_NANOS: u64 = 1000 * MILLISECOND;
/// A node that lacks more entries would take too long to get them while nothing is proposed.
const BEHIND_ENTRIES_MAX: u64 = 1000;

/// A transfer that somebody waits for.
#[derive(Debug)]
pub(super) struct Transfer {
    to: MemberId,
    calls: Vec<CallId>,
    /// When those who wait are told that it failed.
    until: Nanos,
}

impl Replica {
    /// A caller wants this node to lead. Only a leader is asked.
    pub(super) fn transfer(&mut self, now: Nanos, call: CallId, name: &NodeName) {
        let Some(to) = self.state.member_named(name) else {
            let refusal = Refusal::NodeNotFound { name: name.clone() };
            return self.output.reply(call, Err(Failure::Refused(refusal)));
        };
        if to == self.config.member {
            return self.output.reply(call, Ok(Response::Leads { member: to }));
        }
        if let Err(why) = self.can_lead(to) {
            return self.output.reply(call, Err(Failure::CannotLead { name: name.clone(), why }));
        }
        match &mut self.transfer {
            Some(transfer) if transfer.to == to => transfer.calls.push(call),
            _ if self.node.raft.lead_transferee.is_some() => {
                // Another node is about to lead, and can be asked then.
                self.output.reply(call, Err(Failure::NotLeader { leader: None }));
            }
            _ => {
                self.node.transfer_leader(to.0);
                let outcome_nanos = OUTCOME_NANOS * u64::from(self.config.raft_tick.steps());
                self.transfer = Some(Transfer { to, calls: vec![call], until: now.after(outcome_nanos) });
            }
        }
    }

    fn can_lead(&self, member: MemberId) -> Result<(), CannotLead> {
        let raft = &self.node.raft;
        let behind = |matched: u64| raft.raft_log.last_index().saturating_sub(matched);
        match raft.prs().get(member.0) {
            _ if !self.conf_state.voters.contains(&member.0) => Err(CannotLead::NoVoter),
            _ if !self.answers(member) => Err(CannotLead::Silent),
            Some(progress) if behind(progress.matched) > BEHIND_ENTRIES_MAX => {
                Err(CannotLead::Behind { entries: behind(progress.matched) })
            }
            _ => Ok(()),
        }
    }

    /// Tells those who wait for a transfer what became of it, once that is known.
    pub(super) fn settle_transfer(&mut self, now: Nanos) {
        let Some(Transfer { to, until, .. }) = &self.transfer else { return };
        let (to, leads_still) = (*to, self.node.raft.state == StateRole::Leader);
        let given_up = leads_still && self.node.raft.lead_transferee.is_none();
        let outcome = match self.leader() {
            Some(leader) if leader == to => Ok(Response::Leads { member: to }),
            Some(_) if !leads_still => Err(()),
            _ if given_up || now >= *until => Err(()),
            _ => return,
        };
        let Some(Transfer { calls, .. }) = self.transfer.take() else { return };
        let name = self.state.member(to).map(|node| node.name.clone());
        for call in calls {
            let answer = match (&outcome, &name) {
                (Ok(response), _) => Ok(response.clone()),
                (Err(()), Some(name)) => {
                    Err(Failure::CannotLead { name: name.clone(), why: CannotLead::NotInTime })
                }
                (Err(()), None) => Err(Failure::NotLeader { leader: self.leader() }),
            };
            self.output.reply(call, answer);
        }
    }

    /// Gives the lead to the best that there is, now or as soon as there is one.
    pub(super) fn hand_over(&mut self) {
        self.standing.hand_over_wanted = self.node.raft.state == StateRole::Leader;
        if self.standing.hand_over_wanted
            && self.node.raft.lead_transferee.is_none()
            && let Some(successor) = self.best_successor()
        {
            self.standing.hand_over_wanted = false;
            self.node.transfer_leader(successor.0);
        }
    }

    /// The voter that is nearest to this leader's log, among those that answer and are to stay.
    fn best_successor(&self) -> Option<MemberId> {
        let raft = &self.node.raft;
        members(&self.conf_state.voters)
            .into_iter()
            .filter(|voter| *voter != self.config.member && self.state.member(*voter).is_some())
            .filter(|voter| self.answers(*voter) && !self.guard.is_suspect(*voter))
            .filter_map(|voter| raft.prs().get(voter.0).map(|progress| (progress.matched, voter)))
            .max_by_key(|(matched, voter)| (*matched, std::cmp::Reverse(*voter)))
            .map(|(_, voter)| voter)
    }
}
