//! How commands come into the log: what is checked first, and what must not come in.

use lowkey_core::limits::{IN_FLIGHT_PER_LEASE_MAX, LEASES_PER_EXPIRE_MAX};
use lowkey_core::{AcquireWith, Command, GrantRef, LeaseId, Requester, WaitTime, mutants};

use crate::input::{CallId, DiskRoom};
use crate::output::Failure;
use crate::replica::Replica;
use crate::rounds::Wish;
use crate::time::{MILLISECOND, Nanos};

/// How many leases are ended in a tick: 50,000 of them in a third of a second.
const ENDS_A_TICK: usize = 1_536;
const _: () = assert!(ENDS_A_TICK <= LEASES_PER_EXPIRE_MAX);

impl Replica {
    /// Takes in what somebody asks for: it goes into the log if it would change something, now or behind what is under way.
    pub(crate) fn command(&mut self, now: Nanos, call: CallId, mut command: Command, wait: WaitTime) {
        command.limit_to(self.state.command_version());
        match self.state.check(&command) {
            Ok(None) if self.can_be_patient(&command) => self.patient.push((call, command, wait)),
            Ok(None) => self.propose(now, call, command, wait),
            // What it names may be under way in the log: only behind that is it certain what it finds.
            Err(_) if self.may_name_later(&command) => self.propose(now, call, command, wait),
            // A refusal needs no entry, only the certainty that this is still the leader.
            Err(_) | Ok(Some(_)) => self.join_round(call, Wish::Check { command, wait }),
        }
    }

    /// True if what a command names may be on its way into the state.
    pub(crate) fn may_name_later(&self, command: &Command) -> bool {
        let has_some_to_propose = !self.patient.is_empty() || !self.feasible.is_empty();
        names_request(command) && (has_some_to_propose || self.proposals.may_hold(lease_of(command)))
    }

    pub(crate) fn unix_ms(&self, now: Nanos) -> u64 {
        self.config.unix_ms_at_zero.saturating_add(now.0 / MILLISECOND)
    }

    /// Puts a command into the log, behind all that came before it.
    pub(crate) fn propose(&mut self, now: Nanos, call: CallId, command: Command, wait: WaitTime) {
        self.propose_patient(now);
        self.put_into_log(now, call, command, wait);
    }

    /// Puts a command into the log, or says why not; nothing has happened then.
    pub(crate) fn put_into_log(&mut self, now: Nanos, call: CallId, mut command: Command, wait: WaitTime) {
        let lease = lease_of(&command);
        let allowed = self.may_propose(&command, lease).and_then(|()| match &command {
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
            if mutants::is_active("a refused proposal is answered as done") {
                return self.answer_unapplied(call, command);
            }
            let failure = match self.node.raft.lead_transferee {
                Some(_) => Failure::NotLeader { leader: None },
                None => Failure::Busy,
            };
            return self.output.reply(call, Err(failure));
        }
        if mutants::is_active("reply before commit") {
            self.answer_unapplied(call, command);
        }
        self.marked(now, &mark);
        let (index, term) = (self.node.raft.raft_log.last_index(), self.node.raft.term);
        if let Command::RemoveMember { .. } = command {
            self.last_removal = index;
        }
        if let Some(overwritten) = self.proposals.insert(index, term, call, lease, wait) {
            // Overwritten here; another node may still have it, and lead one day.
            self.output.reply(overwritten.call, Err(Failure::OutcomeUnknown));
        }
    }

    fn may_propose(&self, command: &Command, lease: Option<LeaseId>) -> Result<(), Failure> {
        self.is_understood(command)?;
        let grows = matches!(
            command,
            Command::CreateLease { .. }
                | Command::Acquire { .. }
                | Command::SetValue { .. }
                | Command::AddMember { .. }
        );
        let grows = grows || self.state.would_only_give_up(command);
        match self.disk {
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
        match lease {
            Some(lease) if self.proposals.in_flight(lease) >= IN_FLIGHT_PER_LEASE_MAX => {
                Err(Failure::TooManyInFlight { lease })
            }
            _ => Ok(()),
        }
    }

    /// A command that some member does not understand would stop it: it waits until all do. And nobody comes
    /// in who does not understand what all others do.
    fn is_understood(&self, command: &Command) -> Result<(), Failure> {
        if let Command::AddMember { node } | Command::UpdateMember { node, .. } = command {
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
    pub(crate) fn expire_due(&mut self, now: Nanos) {
        let mut leases = std::mem::take(&mut self.unproposed_ends);
        if leases.is_empty() {
            leases = self.leases.take_due(now, ENDS_A_TICK);
        }
        if leases.is_empty() {
            return;
        }
        let (decided_term, since_unix_ms) = (self.node.raft.term, self.unix_ms(now));
        let command = Command::Expire { leases, decided_term, since_unix_ms };
        if let Err(Command::Expire { leases, .. }) = self.propose_end(now, command) {
            self.unproposed_ends = leases;
        }
    }

    /// Proposes what nobody asked for. What is refused is given back: it is proposed again at the next
    /// tick, in this term; a later one begins anew.
    pub(crate) fn propose_end(&mut self, now: Nanos, command: Command) -> Result<(), Command> {
        self.propose_patient(now);
        let mark = self.mark_if_due(now);
        if self.disk == DiskRoom::Exhausted || self.node.propose(mark.clone(), command.encode()).is_err() {
            return Err(command);
        }
        self.marked(now, &mark);
        Ok(())
    }
}

/// The lease that a command's operation counts against.
fn lease_of(command: &Command) -> Option<LeaseId> {
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
fn names_request(command: &Command) -> bool {
    matches!(command, Command::Release { grant: GrantRef::Request(..) | GrantRef::GivenUp(..), .. })
}
