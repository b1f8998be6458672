//! What a replica tells about itself.

use std::collections::BTreeSet;
use std::sync::Arc;

use lowkey_core::{Access, BackupSchedule, Epoch, MemberId, NodeInfo, State, Token, mutants};
use raft::StateRole;
use raft::eraftpb::ConfState;

use super::Replica;
use crate::guard::Divergence;
use crate::lead::Lead;
use crate::raft_tick::RaftTick;
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
    /// Who may do what.
    pub access: Arc<Access>,
    /// The registered nodes, by id.
    pub members: Vec<MemberStatus>,
    /// Members that are registered no longer, and still in the applied configuration.
    pub leaving: Vec<MemberId>,
    /// The highest id that a node was ever registered with.
    pub last_member: MemberId,
    /// The epoch that the counters began with, if one was claimed for them.
    pub epoch: Option<Epoch>,
    /// What the cluster says of its backups; nothing if the flags of its nodes decide.
    pub backup_schedule: Option<Arc<BackupSchedule>>,
    /// The cluster began anew, and grants nothing for a while.
    pub quarantine: bool,
    /// Until when, if this node leads.
    pub quarantine_ends: Option<Nanos>,
    /// By how much all that waits for a sign of life is stretched, from 1 to 4: what the leader tells, as last heard here.
    pub timing_factor: u32,
    /// What the factor multiplies: this node was started with it.
    pub raft_tick: RaftTick,
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
        && (!is_leaving() || mutants::REMOVED_BEFORE_THE_CONFIGURATION_CHANGED.is_active())
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
    /// As the leader sees it: entries that it lacks, and whether it answers and takes them. Nothing elsewhere.
    pub progress: Option<(u64, bool)>,
}

/// The standing of a replica now.
pub(super) fn status(replica: &Replica) -> Status {
    let Replica { state, conf_state, .. } = replica;
    let raft = &replica.node.raft;
    let leads = raft.state == StateRole::Leader;
    let last = raft.raft_log.last_index();
    let members = state.members().map(|(member, node)| MemberStatus {
        member,
        node: Arc::clone(node),
        voter: counts(conf_state, member.0),
        progress: raft
            .prs()
            .get(member.0)
            .filter(|_| leads)
            .map(|progress| (last.saturating_sub(progress.matched), replica.is_reachable(member))),
    });
    Status {
        member: replica.config.member,
        term: raft.term,
        role: role(raft.state),
        leader: replica.leader(),
        serving: replica.lead.is_some(),
        divergence: replica.divergence(),
        applied: state.revision(),
        committed: raft.raft_log.committed,
        leases: state.leases().len(),
        locks: state.lock_count(),
        waiters: state.waits().len(),
        expired_leases: replica.applying.expired_leases,
        last_token: state.last_token(),
        voters: conf_state.voters.iter().filter(|voter| counts(conf_state, **voter)).count(),
        access: Arc::clone(state.access()),
        members: members.collect(),
        leaving: leaving(state, conf_state).collect(),
        last_member: state.last_member(),
        epoch: state.epoch(),
        backup_schedule: state.backup_schedule().cloned(),
        quarantine: state.is_in_quarantine(),
        quarantine_ends: replica.lead.get().and_then(Lead::quarantine_ends),
        timing_factor: replica.timing.factor(),
        raft_tick: replica.config.raft_tick,
    }
}

/// True for a voter of the old and the new configuration alike. While they are joint, a voter that is only in
/// one of them does not help against the loss of another: a majority of the old one is still needed.
fn counts(conf_state: &ConfState, member: u64) -> bool {
    let (voters, outgoing) = (&conf_state.voters, &conf_state.voters_outgoing);
    voters.contains(&member) && (outgoing.is_empty() || outgoing.contains(&member))
}

fn leaving(state: &State, conf_state: &ConfState) -> impl Iterator<Item = MemberId> {
    let voters = conf_state.voters.iter().chain(&conf_state.voters_outgoing);
    let configured: BTreeSet<MemberId> =
        voters.chain(&conf_state.learners).chain(&conf_state.learners_next).copied().map(MemberId).collect();
    configured.into_iter().filter(|member| state.member(*member).is_none())
}

/// [`Status::has_removed`] without the rest.
pub(super) fn is_removed(member: MemberId, state: &State, conf_state: &ConfState) -> bool {
    let is_registered = state.member(member).is_some();
    has_removed(member, state.last_member(), is_registered, || {
        leaving(state, conf_state).any(|leaving| leaving == member)
    })
}

pub(super) fn role(state: StateRole) -> Role {
    match state {
        StateRole::Leader => Role::Leader,
        StateRole::Follower => Role::Follower,
        StateRole::Candidate | StateRole::PreCandidate => Role::Candidate,
    }
}
