//! Applies committed entries to the state, and tells the callers that proposed them, the waiters and the watches.

use std::collections::VecDeque;

use lowkey_core::{Command, DecodeError, Event, Refusal, Reply, Ticket, mutants};
use raft::eraftpb;

use super::proposals::Proposal;
use super::{Fatal, Replica};
use crate::guard::Guard;
use crate::lead::{Lead, PendingCommand, refused};
use crate::log::records;
use crate::output::{Failure, Persist, Response, SnapshotFile};
use crate::snapshots::Snapshots;
use crate::time::Nanos;

/// How far that has come.
#[derive(Debug, Default)]
pub(super) struct Applying {
    /// Committed and on disk, not applied yet; mostly empty.
    pub(super) unapplied: VecDeque<eraftpb::Entry>,
    /// The term of the last applied entry.
    pub(super) term: u64,
    /// Since the replica came to life.
    pub(super) expired_leases: u64,
}

impl Replica {
    /// Applies what is committed, up to a change of members that the disk does not know of yet.
    pub(super) fn apply(&mut self, now: Nanos) -> Result<(), Fatal> {
        while let Some(entry) = self.applying.unapplied.pop_front() {
            let (index, term) = (entry.index, entry.term);
            let reply = match entry.get_entry_type() {
                eraftpb::EntryType::EntryNormal if entry.data.is_empty() => {
                    self.pass_over(index);
                    None
                }
                eraftpb::EntryType::EntryNormal => Some(self.apply_command(now, &entry)?),
                eraftpb::EntryType::EntryConfChange | eraftpb::EntryType::EntryConfChangeV2 => {
                    let is_durable = self.durability.knows_committed(index)
                        || mutants::MEMBERS_CHANGE_BEFORE_THE_COMMIT_IS_DURABLE.is_active();
                    if !is_durable || self.drops_leader(&entry) {
                        self.applying.unapplied.push_front(entry);
                        return Ok(());
                    }
                    self.pass_over(index);
                    self.apply_conf_change(&entry)?;
                    None
                }
            };
            self.applying.term = term;
            self.begin_to_lead(now, term);
            self.checkpoint(now, index, &entry.context);
            if let Some(proposal) = self.proposals.take(index) {
                let answer = match reply {
                    // This state is in doubt, so its answer is worth nothing; other nodes know the true outcome.
                    Some(_) if self.divergence().is_some() => Err(Failure::OutcomeUnknown),
                    Some((command, Ok(Reply::Waiting { ticket }))) if proposal.term == term => {
                        let Proposal { call, wait, .. } = proposal;
                        self.park(now, ticket, PendingCommand { call, command, wait });
                        continue;
                    }
                    Some((_, reply))
                        if proposal.term == term
                            || mutants::ANOTHER_ENTRYS_OUTCOME_IS_ANSWERED.is_active() =>
                    {
                        let quarantine_ends = self.lead.get().and_then(Lead::quarantine_ends);
                        reply.map_err(|refusal| refused(now, refusal, quarantine_ends)).map(Response::Applied)
                    }
                    // Another entry stands where the proposal was: it never happened.
                    _ => Err(Failure::NotLeader { leader: self.leader() }),
                };
                self.output.reply(proposal.call, answer);
            }
        }
        Ok(())
    }

    fn apply_command(
        &mut self,
        now: Nanos,
        entry: &eraftpb::Entry,
    ) -> Result<(Command, Result<Reply, Refusal>), Fatal> {
        let mut command = Command::decode(&entry.data)
            .and_then(|command| match command.version() {
                newer if newer > self.config.command_version => Err(DecodeError::UnknownKind),
                _ => Ok(command),
            })
            .map_err(|error| Fatal { index: entry.index, problem: error.to_string() })?;
        if mutants::A_CLOCK_IN_APPLY.is_active() {
            crate::mutants::stamp(&mut command, now);
        }
        let applied = self.state.apply(entry.index, entry.term, &command);
        let mut lead = self.lead.get_mut();
        if let Ok(Reply::Waiting { ticket }) = applied.reply
            && let Some(lead) = &mut lead
        {
            lead.wait_began(now, ticket);
        }
        let mut changes = Vec::new();
        for event in applied.events {
            if let Event::LeaseEnded { .. } = event {
                self.applying.expired_leases += u64::from(matches!(command, Command::Expire { .. }));
            }
            match (event, &mut lead) {
                (Event::Changed(change), _) => changes.push(change),
                // The rest is a leader's business: only it knows of time and callers.
                (_, None) => {}
                (Event::LeaseStarted { lease, ttl }, Some(lead)) => lead.lease_started(now, lease, ttl),
                (Event::LeaseEnded { lease }, Some(lead)) => lead.lease_ended(lease, &mut self.output),
                (Event::HoldStarted { hold, max_hold }, Some(lead)) => lead.hold_started(now, hold, max_hold),
                (Event::HoldEnded { token }, Some(lead)) => lead.hold_ended(token),
                (Event::WaitEnded { ticket, end }, Some(lead)) => {
                    lead.wait_ended(now, ticket, end, &mut self.arrivals, &mut self.output);
                }
            }
        }
        self.tell_changes(entry.index, changes);
        Ok((command, applied.reply))
    }

    /// Counts one of `raft`'s own entries.
    fn pass_over(&mut self, index: u64) {
        self.state.advance(index);
        self.tell_changes(index, Vec::new());
    }

    /// Changes of a state that is in doubt are shown to nobody.
    fn tell_changes(&mut self, index: u64, changes: Vec<lowkey_core::Change>) {
        if self.divergence().is_none() {
            self.output.changes.push((index, changes));
        }
    }

    /// Keeps a caller until its wait is over. A node that does not lead has no clock for it.
    fn park(&mut self, now: Nanos, ticket: Ticket, caller: PendingCommand) {
        match self.lead.get_mut() {
            Some(lead) => lead.park(now, ticket, caller, &mut self.arrivals),
            None => {
                let leader = self.leader();
                self.output.reply(caller.call, Err(Failure::Interrupted { leader }));
            }
        }
    }
    /// Begins anew from a snapshot that came from the leader, if there is one.
    pub(super) fn install(&mut self, snapshot: &eraftpb::Snapshot, persist: &mut Persist) {
        let metadata = snapshot.get_metadata();
        let (index, term) = (metadata.index, metadata.term);
        if index == 0 {
            return;
        }
        let (payload, state) = self.snapshots.take_received(index);
        // What still waited to be applied is committed, and so within the snapshot.
        self.applying.unapplied.clear();
        self.node.mut_store().reset(index, term);
        self.node.mut_store().set_saved(metadata.clone());
        for proposal in self.proposals.take_through(index) {
            self.output.reply(proposal.call, Err(Failure::OutcomeUnknown));
        }
        self.state = state;
        self.applying.term = term;
        // What was known of the state before does not matter any more.
        self.guard = Guard::new(index);
        // What was applied before is part of what is lost.
        self.output.changes.clear();
        self.output.history_lost = Some(index);
        self.conf_state = metadata.get_conf_state().clone();
        self.snapshots = Snapshots::new(index, payload.len() as u64);
        persist.records.push(records::reset(self.config.group, index, term));
        persist.snapshot = Some(SnapshotFile { index, payload });
    }
}
