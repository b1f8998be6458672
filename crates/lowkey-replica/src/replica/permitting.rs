//! Who may have what it asks for, as of the applied state.
//!
//! The node that was asked has looked already, at its own table. A leader looks again before it proposes,
//! because only here are the owners of leases, and because the other node may be behind: the stricter
//! answer counts. What is judged is the request itself, not what somebody said of it.
//!
//! While access is not required nothing is looked at.

use std::collections::BTreeSet;
use std::sync::Arc;

use lowkey_core::{
    Access, AcquireWith, Caller, Command, Denied, GrantRef, LeaseId, LockName, On, OwnerId, Refusal,
    Requester, State, Verb, mutants,
};

use crate::input::Request;
use crate::output::Failure;
use crate::reads::Query;

/// Leases whose grants were compared with what their owner may have, under one table of access.
#[derive(Debug, Default)]
pub(super) struct Vetted {
    access: Arc<Access>,
    leases: BTreeSet<LeaseId>,
}

/// A replica's state, as one that judges by it.
struct Judge<'a> {
    state: &'a State,
    /// True if it may touch leases, and so knows all that were acknowledged.
    leads: bool,
}

/// It is pruned when it has so many more leases than there are.
const PRUNE_SLACK: usize = 1_024;

impl Vetted {
    /// True if it must be looked at; it is not a second time.
    fn is_new(&mut self, lease: LeaseId, state: &State) -> bool {
        if !Arc::ptr_eq(&self.access, state.access()) {
            *self = Self { access: Arc::clone(state.access()), leases: BTreeSet::new() };
        }
        if self.leases.len() > 2 * state.leases().len() + PRUNE_SLACK {
            self.leases.retain(|lease| state.lease(*lease).is_some());
        }
        !self.leases.contains(&lease)
    }
}

impl Vetted {
    /// Whether the caller may have this, by the state of a replica that `leads` or does not.
    pub(super) fn permit(
        &mut self,
        state: &State,
        leads: bool,
        caller: &Caller,
        request: &Request,
    ) -> Result<(), Failure> {
        if !state.access().is_required() || mutants::THE_LEADER_BELIEVES_WHO_FORWARDS.is_active() {
            return Ok(());
        }
        // What nodes do for themselves names leases of anybody.
        if matches!(caller, Caller::Node | Caller::LocalAdmin) {
            return Ok(());
        }
        let judge = Judge { state, leads };
        match request {
            Request::Command(command) | Request::Wait { command, .. } => {
                judge.permit_command(caller, command)
            }
            Request::Renew { lease, .. } => self.permit_renewal(&judge, caller, *lease),
            Request::RenewMany(leases) => {
                leases.iter().try_for_each(|(lease, _)| self.permit_renewal(&judge, caller, *lease))
            }
            Request::Read(query) | Request::ReadStale(query) => judge.permit_query(caller, query),
            Request::Transfer { .. } => judge.may(caller, Verb::Admin, On::Everything),
        }
    }

    /// A lease lives on for as long as its owner may have all that it holds. Once for each lease and each table:
    /// what is acquired later was permitted then.
    fn permit_renewal(&mut self, judge: &Judge<'_>, caller: &Caller, lease: LeaseId) -> Result<(), Failure> {
        judge.owns_lease(caller, lease)?;
        judge.may(caller, Verb::Acquire, On::Anywhere)?;
        if self.is_new(lease, judge.state) {
            for grant in judge.state.grants_of(lease, None) {
                judge.may(caller, Verb::Acquire, On::Name(grant.lock.as_str()))?;
            }
            self.leases.insert(lease);
        }
        Ok(())
    }
}

impl Judge<'_> {
    fn may(&self, caller: &Caller, verb: Verb, on: On<'_>) -> Result<(), Failure> {
        self.state.access().judge(caller, verb, on).map_err(Failure::Denied)
    }

    fn owns(&self, caller: &Caller, owner: &OwnerId) -> Result<(), Failure> {
        self.state.access().judge_owner(caller, owner).map_err(Failure::Denied)
    }

    fn permit_command(&self, caller: &Caller, command: &Command) -> Result<(), Failure> {
        match command {
            Command::CreateLease { owner, .. } => {
                self.owns(caller, owner)?;
                self.may(caller, Verb::Acquire, On::Anywhere)
            }
            // The state compares the owner with that of the lease.
            Command::Acquire {
                lock, owner, with: AcquireWith::Lease(_) | AcquireWith::NewLease(_), ..
            }
            | Command::SetValue { lock, owner, .. } => {
                self.owns(caller, owner)?;
                self.may(caller, Verb::Acquire, On::Name(lock.as_str()))
            }
            // To give back what is one's own needs no grant, and to end what others have needs that of an admin.
            Command::RevokeLease { owner, actor, .. } => {
                self.speaks_for(caller, actor.as_ref())?;
                self.or_admin(caller, On::Everything, self.owns(caller, owner))
            }
            Command::Release { lock, grant, actor, .. } => {
                self.speaks_for(caller, actor.as_ref())?;
                self.permit_release(caller, lock, grant)
            }
            Command::AddMember { .. }
            | Command::UpdateMember { .. }
            | Command::RemoveMember { .. }
            | Command::Invite { .. }
            | Command::Access(_)
            | Command::Groups(_)
            | Command::SetBackupSchedule(_) => self.may(caller, Verb::Admin, On::Everything),
            // Only a leader proposes these, and asks nobody.
            Command::CancelWait { .. }
            | Command::Expire { .. }
            | Command::EndHolds { .. }
            | Command::EndQuarantine => Err(Failure::Denied(Denied::Unproven)),
        }
    }

    fn permit_release(&self, caller: &Caller, lock: &LockName, grant: &GrantRef) -> Result<(), Failure> {
        let own = match grant {
            GrantRef::Lease(lease)
            | GrantRef::Request(_, Requester::Lease(lease))
            | GrantRef::GivenUp(_, Requester::Lease(lease)) => self.owns_lease(caller, *lease),
            GrantRef::Request(_, Requester::Owner(owner)) | GrantRef::GivenUp(_, Requester::Owner(owner)) => {
                self.owns(caller, owner)
            }
        };
        self.or_admin(caller, On::Name(lock.as_str()), own)
    }

    /// Who asks in another's name must be that other.
    fn speaks_for(&self, caller: &Caller, actor: Option<&OwnerId>) -> Result<(), Failure> {
        actor.map_or(Ok(()), |actor| self.owns(caller, actor))
    }

    /// An admin may what others may only with what is their own.
    fn or_admin(&self, caller: &Caller, on: On<'_>, own: Result<(), Failure>) -> Result<(), Failure> {
        match own {
            Err(Failure::Denied(Denied::NotOwn { .. })) if self.may(caller, Verb::Admin, on).is_ok() => {
                Ok(())
            }
            own => own,
        }
    }

    /// The lease must be the caller's. One that this leader does not know is nobody's: what was acknowledged is
    /// applied here once it may touch leases, so the number was not given to anybody who is still told of it.
    fn owns_lease(&self, caller: &Caller, lease: LeaseId) -> Result<(), Failure> {
        match self.state.lease(lease) {
            Some(known) => self.owns(caller, &known.owner),
            None if self.leads => {
                self.state.access().knows(caller).map_err(Failure::Denied)?;
                Err(Failure::Refused(Refusal::LeaseNotFound { lease }))
            }
            None => Err(Failure::NotLeader { leader: None }),
        }
    }

    fn permit_query(&self, caller: &Caller, query: &Query) -> Result<(), Failure> {
        match query {
            Query::Lock { lock } | Query::Token { lock, .. } => {
                self.may(caller, Verb::Read, On::Name(lock.as_str()))
            }
            Query::Locks { prefix, .. } => self.may(caller, Verb::Read, On::Prefix(prefix.as_str())),
            Query::Lease { lease, .. } => {
                let may_read_all = self.may(caller, Verb::Read, On::Everything);
                match (may_read_all, self.state.lease(*lease)) {
                    (Ok(()), _) => Ok(()),
                    (Err(_), Some(known)) => self.owns(caller, &known.owner),
                    (Err(_), None) => {
                        self.state.access().knows(caller).map_err(Failure::Denied)?;
                        Err(Failure::Refused(Refusal::LeaseNotFound { lease: *lease }))
                    }
                }
            }
            Query::Leases { owner, .. } => {
                let own = owner.as_ref().map(|owner| self.owns(caller, owner));
                match own {
                    Some(Ok(())) => Ok(()),
                    _ => self.may(caller, Verb::Read, On::Everything),
                }
            }
            Query::Revision => self.state.access().knows(caller).map_err(Failure::Denied),
            Query::Access | Query::BackupSchedule => self.may(caller, Verb::Admin, On::Everything),
        }
    }
}
