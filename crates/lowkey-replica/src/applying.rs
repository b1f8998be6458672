//! What becomes of entries that are committed: the state takes them in, and whoever proposed them, waits for them or
//! watches is told.

use lowkey_core::{Command, DecodeError, Event, LeaseId, Refusal, Reply, mutants};
use raft::eraftpb;

use crate::output::{Failure, Response};
use crate::proposals::Proposal;
use crate::replica::{Fatal, Replica};
use crate::time::Nanos;
use crate::wait_table::Returned;

impl Replica {
    /// Applies what is committed, up to a change of members that the disk does not know of yet.
    pub(crate) fn apply(&mut self, now: Nanos) -> Result<(), Fatal> {
        while let Some(entry) = self.unapplied.pop_front() {
            let (index, term) = (entry.index, entry.term);
            let reply = match entry.get_entry_type() {
                eraftpb::EntryType::EntryNormal if entry.data.is_empty() => {
                    self.pass_over(index);
                    None
                }
                eraftpb::EntryType::EntryNormal => Some(self.apply_command(now, &entry)?),
                eraftpb::EntryType::EntryConfChange | eraftpb::EntryType::EntryConfChangeV2 => {
                    let is_durable = index <= self.durable_commit
                        || mutants::is_active("members change before the commit is durable");
                    if !is_durable || self.drops_leader(&entry) {
                        self.unapplied.push_front(entry);
                        return Ok(());
                    }
                    self.pass_over(index);
                    self.apply_conf_change(&entry)?;
                    None
                }
            };
            self.applied_term = term;
            self.arm_if_leading(now, term);
            self.checkpoint(now, index, &entry.context);
            if let Some(proposal) = self.proposals.take(index) {
                let answer = match reply {
                    // What this state makes of it is worth nothing; what became of it others know.
                    Some(_) if self.divergence().is_some() => Err(Failure::OutcomeUnknown),
                    Some((command, Ok(Reply::Waiting { ticket }))) if proposal.term == term => {
                        let Proposal { call, wait, .. } = proposal;
                        self.park(now, ticket, Returned { call, command, wait });
                        continue;
                    }
                    Some((_, reply))
                        if proposal.term == term
                            || mutants::is_active("another entry's outcome is answered") =>
                    {
                        reply.map_err(|refusal| self.refused(now, refusal)).map(Response::Applied)
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
        if let Command::Acquire { since_unix_ms, .. } = &mut command
            && mutants::is_active("a clock in apply")
        {
            *since_unix_ms = now.0;
        }
        let applied = self.state.apply(entry.index, entry.term, &command);
        if let Ok(Reply::Waiting { ticket }) = applied.reply
            && self.leases.is_armed()
        {
            self.waits.enqueued(now, ticket);
        }
        let mut changes = Vec::new();
        for event in applied.events {
            match event {
                Event::LeaseStarted { lease, ttl } if self.leases.is_armed() => {
                    self.leases.insert(now, lease, ttl);
                }
                Event::LeaseStarted { .. } => {}
                Event::LeaseEnded { lease } => {
                    self.expired_leases += u64::from(matches!(command, Command::Expire { .. }));
                    self.lease_ended(lease);
                }
                Event::Changed(change) => changes.push(change),
                Event::WaitEnded { ticket, end } => self.wait_ended(now, ticket, end),
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

    /// What a state that is in doubt went through is shown to nobody.
    fn tell_changes(&mut self, index: u64, changes: Vec<lowkey_core::Change>) {
        if self.divergence().is_none() {
            self.output.changes.push((index, changes));
        }
    }

    fn lease_ended(&mut self, lease: LeaseId) {
        self.leases.remove(lease);
        for call in self.renewals_in_doubt.remove(&lease).unwrap_or_default() {
            self.output.reply(call, Err(Failure::Refused(Refusal::LeaseNotFound { lease })));
        }
    }
}
