//! What a replica tells about itself.

use std::collections::BTreeSet;
use std::sync::Arc;

use lowkey_core::{MemberId, NodeInfo, State, Token, mutants};
use raft::StateRole;

use crate::guard::Divergence;
use crate::replica::Replica;
use crate::time::Nanos;

/// A replica's standing, for people and for the service around it.
#[derive(Clone, Debug, PartialEq)]
pub struct Status {
    /// This node's id in the group.
    pub member: MemberId,
    /// The present term.
    pub term: u64,
    /// What it is in that term.
    pub role: Role,
    /// Who leads, if that is known.
    pub leader: Option<MemberId>,
    /// R1: it leads, and may touch leases.
    pub serving: bool,
    /// Its state differs from the others', and it does not serve.
    pub divergence: Option<Divergence>,
    /// The last index that is applied.
    pub applied: u64,
    /// The last index that is known to be committed.
    pub committed: u64,
    /// How many leases there are.
    pub leases: usize,
    /// How many locks are held or waited for.
    pub locks: usize,
    /// How many places in queues there are.
    pub waiters: usize,
    /// How many leases have run out since this replica came to life.
    pub expired_leases: u64,
    /// The highest token granted.
    pub last_token: Token,
    /// How many vote, in the applied configuration.
    pub voters: usize,
    /// The registered nodes, by id.
    pub members: Vec<MemberStatus>,
    /// Members that are registered no longer, and still in the applied configuration.
    pub leaving: Vec<MemberId>,
    /// The highest id that a node was ever registered with.
    pub last_member: MemberId,
    /// The cluster began anew, and grants nothing for a while.
    pub quarantine: bool,
    /// Until when, if this node leads.
    pub quarantine_ends: Option<Nanos>,
}

impl Status {
    /// True if the same nodes are registered, as they describe themselves, and the same are leaving.
    pub fn has_same_members(&self, other: &Self) -> bool {
        let nodes = self.members.iter().map(|known| (known.member, &known.node));
        nodes.eq(other.members.iter().map(|known| (known.member, &known.node)))
            && (&self.leaving, self.last_member) == (&other.leaving, other.last_member)
    }

    /// True if this one has been a member and is none any more, by what is applied here: neither registered
    /// nor in the configuration. It never will be again: ids are not reused.
    pub fn has_removed(&self, member: MemberId) -> bool {
        let is_registered = self.members.iter().any(|registered| registered.member == member);
        has_removed(member, self.last_member, is_registered, || self.leaving.contains(&member))
    }
}

fn has_removed(
    member: MemberId,
    last_member: MemberId,
    is_registered: bool,
    is_leaving: impl FnOnce() -> bool,
) -> bool {
    // Until the configuration is changed a voter's acknowledgement may be what that change needs.
    (MemberId(1)..=last_member).contains(&member)
        && !is_registered
        && (mutants::is_active("removed before the configuration changed") || !is_leaving())
}

/// What a replica is in its term.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// It leads.
    Leader,
    /// It follows.
    Follower,
    /// It stands for election.
    Candidate,
}

/// One registered node.
#[derive(Clone, Debug, PartialEq)]
pub struct MemberStatus {
    /// Its id in the group.
    pub member: MemberId,
    /// How it described itself.
    pub node: Arc<NodeInfo>,
    /// It counts for the quorum.
    pub voter: bool,
    /// As the leader sees it: entries that it lacks, and whether it answers. Nothing elsewhere.
    pub progress: Option<(u64, bool)>,
}

impl Replica {
    /// Its standing now.
    pub fn status(&self) -> Status {
        let raft = &self.node.raft;
        let leads = raft.state == StateRole::Leader;
        let last = raft.raft_log.last_index();
        let members = self.state.members().map(|(member, node)| MemberStatus {
            member,
            node: Arc::clone(node),
            voter: self.counts(member.0),
            progress: raft
                .prs()
                .get(member.0)
                .filter(|_| leads)
                .map(|progress| (last.saturating_sub(progress.matched), self.answers(member))),
        });
        Status {
            member: self.config.member,
            term: raft.term,
            role: role(raft.state),
            leader: self.leader(),
            serving: self.leases.is_armed(),
            divergence: self.divergence(),
            applied: self.state.revision(),
            committed: raft.raft_log.committed,
            leases: self.state.leases().len(),
            locks: self.state.lock_count(),
            waiters: self.state.waits().len(),
            expired_leases: self.expired_leases,
            last_token: self.state.last_token(),
            voters: self.conf_state.voters.iter().filter(|voter| self.counts(**voter)).count(),
            members: members.collect(),
            leaving: self.leaving().collect(),
            last_member: self.state.last_member(),
            quarantine: self.state.is_in_quarantine(),
            quarantine_ends: self.quarantine_ends,
        }
    }

    /// True for a voter of the old and the new configuration alike. While they are joint, whoever is only in
    /// one of them does not help against the loss of another: a majority of the old one is still needed.
    fn counts(&self, member: u64) -> bool {
        let (voters, outgoing) = (&self.conf_state.voters, &self.conf_state.voters_outgoing);
        voters.contains(&member) && (outgoing.is_empty() || outgoing.contains(&member))
    }

    fn leaving(&self) -> impl Iterator<Item = MemberId> {
        let conf_state = &self.conf_state;
        let voters = conf_state.voters.iter().chain(&conf_state.voters_outgoing);
        let configured: BTreeSet<MemberId> = voters
            .chain(&conf_state.learners)
            .chain(&conf_state.learners_next)
            .copied()
            .map(MemberId)
            .collect();
        configured.into_iter().filter(|member| self.state.member(*member).is_none())
    }

    /// [`Status::has_removed`] without the rest.
    pub fn has_removed(&self, member: MemberId) -> bool {
        let is_registered = self.state.member(member).is_some();
        has_removed(member, self.state.last_member(), is_registered, || {
            self.leaving().any(|leaving| leaving == member)
        })
    }

    /// The members of the applied configuration that vote in the one that is to be: while two are joint, in
    /// the later.
    pub fn voters(&self) -> &[u64] {
        &self.conf_state.voters
    }

    /// Term, role, and whether it may touch leases (R1): the short form of [`Replica::status`].
    pub fn standing(&self) -> (u64, Role, bool) {
        (self.node.raft.term, role(self.node.raft.state), self.leases.is_armed())
    }

    /// The applied state.
    pub fn state(&self) -> &State {
        &self.state
    }
}

fn role(state: StateRole) -> Role {
    match state {
        StateRole::Leader => Role::Leader,
        StateRole::Follower => Role::Follower,
        StateRole::Candidate | StateRole::PreCandidate => Role::Candidate,
    }
}
