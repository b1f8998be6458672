//! How commands come into the log: what is checked before a proposal, and what must not be proposed.

use lowkey_core::limits::{IN_FLIGHT_PER_LEASE_MAX, LEASES_PER_EXPIRE_MAX, MEMBERS_MAX};
use lowkey_core::{AcquireWith, Command, GrantRef, LeaseId, Requester, WaitTime, mutants};

use super::Replica;
use crate::input::{CallId, DiskRoom};
use crate::lead::{Lead, PendingCommand, Wish};
use crate::mutants::{answer_unapplied, tell_of_timeouts};
use crate::output::Failure;
use crate::time::{MILLISECOND, Nanos};

/// How many leases are ended in a tick: 50,000 of them in a third of a second.
const ENDS_A_TICK: usize = 1_536;
const _: () = assert!(ENDS_A_TICK <= LEASES_PER_EXPIRE_MAX);

impl Replica {
    /// Takes in a command. It goes into the log if it would change something, now or after what is under way; otherwise
    /// its caller joins the next round.
    pub(super) fn command(&mut self, now: Nanos, call: CallId, mut command: Command, wait: WaitTime) {
        command.limit_to(self.state.command_version());
        match self.state.check(&command) {
            Ok(None) => {
                let pending = PendingCommand { call, command, wait };
                match self.patient_lead(&pending.command) {
                    Some(lead) => lead.be_patient(pending),
                    None => self.propose(now, pending),
                }
            }
            // What it names may be under way in the log: only an entry behind that finds it for certain.
            Err(_) if self.proposals.may_name_later(&command, self.lead.get()) => {
                self.propose(now, PendingCommand { call, command, wait });
            }
            // A refusal needs no entry, only the certainty that this is still the leader.
            Err(_) | Ok(Some(_)) => self.join_round(call, Wish::Check { command, wait }),
        }
    }

    /// The lead, if nothing is under way and a command could only take a place in a queue: then it has time.
    fn patient_lead(&mut self, command: &Command) -> Option<&mut Lead> {
        let nothing_is_under_way = self.node.raft.raft_log.last_index() == self.state.revision();
        let lead = self.lead.get_mut().filter(|lead| nothing_is_under_way && lead.has_room_for_patient())?;
        self.state.would_wait(command).then_some(lead)
    }

    fn unix_ms(&self, now: Nanos) -> u64 {
        self.config.unix_ms_at_zero.saturating_add(now.0 / MILLISECOND)
    }

    /// Puts a command into the log, behind all that came before it.
    pub(super) fn propose(&mut self, now: Nanos, pending: PendingCommand) {
        self.propose_patient(now);
        self.put_into_log(now, pending);
    }

    /// Puts the patient commands into the log, in the order in which they came.
    pub(super) fn propose_patient(&mut self, now: Nanos) {
        for pending in self.lead.get_mut().map(Lead::take_patient).unwrap_or_default() {
            self.put_into_log(now, pending);
        }
    }

    /// Puts those into the log that a round showed to be feasible.
    pub(super) fn propose_feasible(&mut self, now: Nanos) {
        for pending in self.lead.get_mut().map(Lead::take_feasible).unwrap_or_default() {
            self.propose(now, pending);
        }
    }

    /// Puts a command into the log, or says why not; nothing has happened then.
    fn put_into_log(&mut self, now: Nanos, pending: PendingCommand) {
        let PendingCommand { call, mut command, wait } = pending;
        let lease = lease_of(&command);
        let allowed = self.may_propose(now, &command, lease).and_then(|()| match &command {
            Command::RemoveMember { name, .. } => self.may_remove(now, name),
            _ => Ok(()),
        });
        if let Err(failure) = allowed {
            return self.output.reply(call, Err(failure));
        }
        command.stamp(self.unix_ms(now));
        command.limit_to(self.state.command_version());
        let command = &command;
        let mark = self.mark_if_due(now);
        if self.node.propose(mark.clone(), command.encode()).is_err() {
            let failure = match self.node.raft.lead_transferee {
                Some(_) => Failure::NotLeader { leader: None },
                None => Failure::Busy,
            };
            return match mutants::A_REFUSED_PROPOSAL_IS_ANSWERED_AS_DONE.is_active() {
                false => self.output.reply(call, Err(failure)),
                true => answer_unapplied(&self.node, &self.state, call, command, &mut self.output),
            };
        }
        if mutants::REPLY_BEFORE_COMMIT.is_active() {
            answer_unapplied(&self.node, &self.state, call, command, &mut self.output);
        }
        self.marked(now, &mark);
        let (index, term) = (self.node.raft.raft_log.last_index(), self.node.raft.term);
        if let Command::RemoveMember { .. } = command {
            self.standing.last_removal = index;
        }
        if let Command::AddMember { .. } = command {
            self.standing.last_addition = index;
        }
        if let Some(overwritten) = self.proposals.insert(index, term, call, lease, wait) {
            // Overwritten here; another node may still have it, and lead one day.
            self.output.reply(overwritten.call, Err(Failure::OutcomeUnknown));
        }
    }

    fn may_propose(&self, now: Nanos, command: &Command, lease: Option<LeaseId>) -> Result<(), Failure> {
        self.is_understood(command)?;
        let grows = command.grows() || self.state.would_only_give_up(command);
        match self.durability.room {
            DiskRoom::Ample => {}
            DiskRoom::Reserve if !grows => {}
            DiskRoom::Reserve | DiskRoom::Exhausted => return Err(Failure::DiskFull),
        }
        let makes_lease = matches!(
            command,
            Command::CreateLease { .. } | Command::Acquire { with: AcquireWith::NewLease(_), .. }
        );
        if makes_lease && self.state.leases().len() >= self.config.leases_max {
            return Err(Failure::TooManyLeases { leases_max: self.config.leases_max });
        }
        if let Command::AddMember { node, invitation: Some(invitation) } = command
            && !self.state.is_registered(node)
            && self.state.invitation(*invitation).is_some_and(|it| it.expires_unix_ms <= self.unix_ms(now))
        {
            return Err(Failure::InvitationExpired);
        }
        if let Command::AddMember { node, .. } = command
            && self.state.member_named(&node.name).is_none()
        {
            // One after the other, or many at once would pass the limit together. The caller may ask again in a moment.
            if self.standing.last_addition > self.state.revision() {
                return Err(Failure::NotLeader { leader: self.leader() });
            }
            if self.state.members().count() >= MEMBERS_MAX {
                return Err(Failure::TooManyMembers);
            }
        }
        match lease {
            Some(lease) if self.proposals.in_flight(lease) >= IN_FLIGHT_PER_LEASE_MAX => {
                Err(Failure::TooManyInFlight { lease })
            }
            _ => Ok(()),
        }
    }

    /// A member that does not understand a command would stop: the command is refused until all members do. And a node
    /// that understands less than all members is not taken in.
    fn is_understood(&self, command: &Command) -> Result<(), Failure> {
        if let Command::AddMember { node, .. } | Command::UpdateMember { node, .. } = command {
            let (speaks, needs) = (node.command_version, self.state.command_version());
            if node.identity.is_some() && speaks < needs {
                return Err(Failure::NodeTooOld { speaks, needs });
            }
        }
        match self.state.oldest_member() {
            Some(oldest) if oldest.command_version < command.version() => {
                Err(Failure::NotUnderstood { by: oldest.name.clone() })
            }
            _ => Ok(()),
        }
    }

    /// R4: proposes the end of leases whose deadline has passed, in one entry. Where there are very many, the rest waits
    /// for the next tick: later is always safe, and everybody else is served meanwhile.
    pub(super) fn expire_due(&mut self, now: Nanos) {
        let Some(lead) = self.lead.get_mut() else { return };
        let leases = lead.take_ends(now, ENDS_A_TICK);
        if leases.is_empty() {
            return;
        }
        let silences = lead.silences(now, &leases);
        let (decided_term, since_unix_ms) = (self.node.raft.term, self.unix_ms(now));
        let mut command = Command::Expire { leases, decided_term, since_unix_ms, silences };
        command.limit_to(self.state.command_version());
        if let Err(Command::Expire { leases, .. }) = self.propose_end(now, command)
            && let Some(lead) = self.lead.get_mut()
        {
            lead.ends_refused(leases);
        }
    }

    /// R4: proposes the end of grants that were held for as long as they may be, in one entry. Where there are very many,
    /// the rest waits for the next tick.
    pub(super) fn end_holds_due(&mut self, now: Nanos) {
        let Some(lead) = self.lead.get_mut() else { return };
        let holds = lead.take_hold_ends(now);
        if holds.is_empty() {
            return;
        }
        let (decided_term, since_unix_ms) = (self.node.raft.term, self.unix_ms(now));
        let command = Command::EndHolds { holds, decided_term, since_unix_ms };
        if let Err(Command::EndHolds { holds, .. }) = self.propose_end(now, command)
            && let Some(lead) = self.lead.get_mut()
        {
            lead.hold_ends_refused(holds);
        }
    }

    /// R10: proposes the end of every wait whose time has run out, many in one entry.
    pub(super) fn cancel_due(&mut self, now: Nanos) {
        while let Some(lead) = self.lead.get_mut() {
            let tickets = lead.take_cancels(now);
            if tickets.is_empty() {
                return;
            }
            if mutants::A_TIMEOUT_IS_TOLD_BEFORE_ITS_ENTRY.is_active() {
                tell_of_timeouts(lead, &tickets, &mut self.output);
            }
            let command = Command::CancelWait { tickets, since_unix_ms: self.unix_ms(now) };
            if let Err(Command::CancelWait { tickets, .. }) = self.propose_end(now, command)
                && let Some(lead) = self.lead.get_mut()
            {
                return lead.cancels_refused(tickets);
            }
        }
    }

    /// Proposes the end of the quarantine when its time is over. What is refused is proposed again at the next tick.
    pub(super) fn end_quarantine_if_due(&mut self, now: Nanos) {
        if self.lead.get().is_some_and(|lead| lead.is_quarantine_over(now))
            && self.propose_end(now, Command::EndQuarantine).is_ok()
            && let Some(lead) = self.lead.get_mut()
        {
            lead.quarantine_ended();
        }
    }

    /// Proposes a command of the leader's own. If it is refused it is returned, to be proposed again at the next tick
    /// of this term; a later term begins anew.
    fn propose_end(&mut self, now: Nanos, command: Command) -> Result<(), Command> {
        self.propose_patient(now);
        let mark = self.mark_if_due(now);
        if self.durability.room == DiskRoom::Exhausted
            || self.node.propose(mark.clone(), command.encode()).is_err()
        {
            return Err(command);
        }
        self.marked(now, &mark);
        Ok(())
    }
}

/// The lease that a command's operation counts against.
pub(crate) fn lease_of(command: &Command) -> Option<LeaseId> {
    match command {
        Command::RevokeLease { lease, .. }
        | Command::SetValue { lease, .. }
        | Command::Acquire { with: AcquireWith::Lease(lease), .. }
        | Command::Release {
            grant:
                GrantRef::Lease(lease)
                | GrantRef::Request(_, Requester::Lease(lease))
                | GrantRef::GivenUp(_, Requester::Lease(lease)),
            ..
        } => Some(*lease),
        _ => None,
    }
}

/// True for a release that names an acquire whose answer its caller never saw.
pub(crate) fn names_request(command: &Command) -> bool {
    matches!(command, Command::Release { grant: GrantRef::Request(..) | GrantRef::GivenUp(..), .. })
}
