//! What would become of a command: read-only, and the same for a leader that asks and for `apply`.

use std::sync::Arc;

use super::waiting::LAST;
use super::{Lease, State, Wait};
use crate::claim::{Claim, Mode, Scope};
use crate::command::{AcquireWith, Command, GrantRef, NodeInfo, Refusal, Reply, Requester};
use crate::holders::Grant;
use crate::limits::{LOCKS_PER_LEASE_MAX, WAITERS_PER_LOCK_MAX};
use crate::mutants;
use crate::name::{LeaseId, LockName, MaxHold, MemberId, NodeName, OwnerId, RequestId, Ticket, Token};
use crate::recent::{Key, Recent, Remembered};

/// What a release means.
pub(super) enum Released {
    /// A grant of this lease.
    Grant(LeaseId),
    /// A wait.
    Wait(Ticket),
}

/// How a lease has a name, or is to have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Claimed {
    mode: Mode,
    scope: Scope,
    max_hold: Option<MaxHold>,
}

impl Claimed {
    /// True if the same grant may answer another request. One with a limit may not: a client counts the limit from its
    /// own request, and that of the second came later than the grant.
    pub(crate) fn may_be_asked_for_again(self, wanted: Self) -> bool {
        self == wanted && (self.max_hold.is_none() || mutants::A_LIMITED_GRANT_IS_GIVEN_AGAIN.is_active())
    }

    /// How a wait is to have it.
    pub(crate) fn by(wait: &Wait) -> Self {
        Self { mode: wait.mode, scope: wait.scope, max_hold: wait.max_hold }
    }
}

impl State {
    /// What would become of a command now: refused, answered as before because its request is known
    /// (`Some`), or carried out (`None`).
    pub fn check(&self, command: &Command) -> Result<Option<Reply>, Refusal> {
        match self.elsewhere(command) {
            None => self.check_here(command),
            Some(refusal) => self.known_from_before(command)?.map_or(Err(refusal), |reply| Ok(Some(reply))),
        }
    }

    /// The same, for what is about names and leases of this group.
    fn check_here(&self, command: &Command) -> Result<Option<Reply>, Refusal> {
        match command {
            Command::CreateLease { owner, request, .. } => self.known_lease_request(owner, request, command),
            Command::RevokeLease { lease, owner, request, .. } => {
                if let Some(reply) = self.known_lease_request(owner, request, command)? {
                    return Ok(Some(reply));
                }
                self.owned_lease(*lease, owner)?;
                Ok(None)
            }
            Command::Acquire { .. } => self.check_acquire(command),
            Command::Release { .. } => self.check_release(command),
            Command::SetValue { lock, owner, lease, token, request, .. } => {
                let holder = self.running_lease(*lease, owner)?;
                if let Some(reply) = self.known_request(holder, request, command)? {
                    return Ok(Some(reply));
                }
                check_token(lock, self.grant_of(lock, *lease)?, *token)?;
                Ok(None)
            }
            Command::Expire { .. }
            | Command::EndHolds { .. }
            | Command::CancelWait { .. }
            | Command::EndQuarantine
            | Command::SetBackupSchedule(_) => Ok(None),
            Command::AddMember { node, invitation } => {
                let place = self.place_of(node);
                self.check_node_name(node, place)?;
                self.check_key(node, place)?;
                if let Some(invitation) = invitation {
                    self.check_invitation(*invitation, node)?;
                }
                Ok(None)
            }
            Command::UpdateMember { member, node } => {
                let known = self.members.get(member);
                if known.is_none_or(|known| known.identity.is_none() || known.identity != node.identity) {
                    return Err(Refusal::NodeNotFound { name: node.name.clone() });
                }
                self.check_node_name(node, Some(*member))?;
                self.check_key(node, Some(*member))?;
                Ok(None)
            }
            Command::Access(change) => self.access.outcome(change).map(|_| None),
            Command::Groups(change) => self.check_groups(change),
            // Asked again, it is the same invitation.
            Command::Invite { invitation, .. } => Ok(self
                .invitation(*invitation)
                .map(|known| Reply::Invited { expires_unix_ms: known.expires_unix_ms })),
            Command::RemoveMember { name, member } => match self.member_named(name) {
                Some(found) if member.is_none_or(|member| member == found) => {
                    if self.members.len() == 1 {
                        return Err(Refusal::LastNode { name: name.clone() });
                    }
                    Ok(None)
                }
                _ => Err(Refusal::NodeNotFound { name: name.clone() }),
            },
        }
    }

    /// The registered node that this one is, or whose place it takes.
    pub(super) fn place_of(&self, node: &NodeInfo) -> Option<MemberId> {
        let own = |(_, known): &(&MemberId, &Arc<NodeInfo>)| {
            known.identity.is_some() && known.identity == node.identity
        };
        let expected =
            |(_, known): &(&MemberId, &Arc<NodeInfo>)| known.identity.is_none() && known.name == node.name;
        self.members
            .iter()
            .find(own)
            .or_else(|| self.members.iter().find(expected))
            .map(|(member, _)| *member)
    }

    /// The registered node of this name.
    pub fn member_named(&self, name: &NodeName) -> Option<MemberId> {
        self.members.iter().find(|(_, known)| known.name == *name).map(|(member, _)| *member)
    }

    fn check_node_name(&self, node: &NodeInfo, place: Option<MemberId>) -> Result<(), Refusal> {
        match self.member_named(&node.name).filter(|named| Some(*named) != place) {
            Some(named) => {
                Err(Refusal::NodeNameTaken { name: node.name.clone(), by: self.members[&named].identity })
            }
            None => Ok(()),
        }
    }

    /// A key that is registered stays: an identity alone, which others may have heard, must not suffice to change it.
    fn check_key(&self, node: &NodeInfo, place: Option<MemberId>) -> Result<(), Refusal> {
        let known = place.and_then(|place| self.members[&place].key_hash);
        if known.is_some() && known != node.key_hash && !mutants::A_NODES_KEY_CAN_BE_CHANGED.is_active() {
            return Err(Refusal::NodeKeyDiffers { name: node.name.clone() });
        }
        Ok(())
    }

    fn check_acquire(&self, command: &Command) -> Result<Option<Reply>, Refusal> {
        let Command::Acquire { lock, owner, with, mode, scope, wait, max_hold, request, .. } = command else {
            unreachable!("only an acquire is checked as one")
        };
        // First: in quarantine nothing is granted or enqueued, so no request here can be a repetition.
        if self.quarantine && !mutants::A_LOCK_IS_GRANTED_IN_QUARANTINE.is_active() {
            return Err(Refusal::Quarantine);
        }
        let lease_id = match *with {
            AcquireWith::NewLease(_) => {
                if let Some(reply) = self.known_lease_request(owner, request, command)? {
                    return Ok(Some(reply));
                }
                None
            }
            AcquireWith::Lease(lease_id) => match self.running_lease(lease_id, owner) {
                Ok(lease) => {
                    if let Some(reply) = self.known_request(lease, request, command)? {
                        return Ok(Some(reply));
                    }
                    Some((lease_id, lease))
                }
                Err(Refusal::LeaseNotFound { .. }) if mutants::GRANT_WITHOUT_A_LEASE_CHECK.is_active() => {
                    None
                }
                Err(refusal) => return Err(refusal),
            },
        };
        if let Some((lease_id, lease)) = lease_id {
            let wanted = Claimed { mode: *mode, scope: *scope, max_hold: *max_hold };
            if let Some(own) = self.claimed(lease_id, lock).filter(|own| !own.may_be_asked_for_again(wanted))
            {
                let Claimed { mode, scope, max_hold } = own;
                return Err(Refusal::AlreadyHeld {
                    lock: lock.clone(),
                    lease: lease_id,
                    mode,
                    scope,
                    max_hold,
                });
            }
            // The same lease asks again: the same grant. It is carried out all the same, because the
            // request must be remembered: a late copy of it may arrive when the lock is free.
            if lease.held.contains(lock) {
                return Ok(None);
            }
            if lease.lock_count() >= LOCKS_PER_LEASE_MAX {
                return Err(Refusal::TooManyLocks { lease: lease_id });
            }
        }
        if let Some(refusal) = self.draining(lock, *scope) {
            return Err(refusal);
        }
        let lease = lease_id.map(|(lease_id, _)| lease_id);
        let claim = Claim { lock: lock.clone(), lease, mode: *mode, scope: *scope };
        if !self.is_blocked(&claim) {
            return Ok(None);
        }
        if !wait {
            let in_the_way =
                self.in_the_way(&claim, LAST).expect("whoever is blocked, is blocked by a holder");
            return Err(Refusal::LockHeld { lock: lock.clone(), in_the_way });
        }
        if self.waiter_count(lock) >= WAITERS_PER_LOCK_MAX {
            return Err(Refusal::TooManyWaiters { lock: lock.clone() });
        }
        Ok(None)
    }

    fn check_release(&self, command: &Command) -> Result<Option<Reply>, Refusal> {
        let Command::Release { lock, grant, token, request, .. } = command else {
            unreachable!("only a release is checked as one")
        };
        let known = match grant {
            GrantRef::Lease(lease)
            | GrantRef::Request(_, Requester::Lease(lease))
            | GrantRef::GivenUp(_, Requester::Lease(lease)) => {
                let lease = self.leases.get(lease);
                lease.map_or(Ok(None), |lease| self.known_request(lease, request, command))?
            }
            // What it ended may have taken the lease with it, and was the owner's to name.
            GrantRef::Request(_, Requester::Owner(owner)) | GrantRef::GivenUp(_, Requester::Owner(owner)) => {
                self.known_lease_request(owner, request, command)?
            }
        };
        if known.is_some() {
            return Ok(known);
        }
        match (self.released(lock, grant, *token), grant) {
            (Ok(Released::Grant(lease)), _) => {
                check_token(lock, self.grant_of(lock, lease)?, *token)?;
                Ok(None)
            }
            (Ok(Released::Wait(_)), _) => Ok(None),
            // Who knows a token saw the answer, and gives nothing up.
            (Err(refusal), GrantRef::GivenUp(acquire, requester)) if token.is_none() => {
                match self.wait_of(acquire, requester) {
                    // Under another name than the one that was given.
                    Some(_) => Err(refusal),
                    // It had its effect, and that is over; or it can have none any more.
                    None if !self.can_give_up(acquire, requester) => Ok(Some(Reply::Released)),
                    None => Ok(None),
                }
            }
            (Err(refusal), _) => Err(refusal),
        }
    }

    /// True if nothing is known of an acquire, and it could still come. Once there is a wait with its id, or a grant,
    /// that is its effect: an id that waits and is remembered would have two.
    pub(super) fn can_give_up(&self, acquire: &RequestId, requester: &Requester) -> bool {
        if self.wait_of(acquire, requester).is_some() {
            return false;
        }
        match requester {
            Requester::Lease(lease) => {
                self.leases.get(lease).is_some_and(|lease| lease.requests.get(acquire).is_none())
            }
            Requester::Owner(owner) => self.lease_requests.get(&(owner.clone(), acquire.clone())).is_none(),
        }
    }

    /// True if a release would only be remembered: it adds to the state, and frees nothing.
    pub fn would_only_give_up(&self, command: &Command) -> bool {
        match command {
            Command::Release { lock, grant: grant @ GrantRef::GivenUp(..), token, .. } => {
                self.released(lock, grant, *token).is_err()
            }
            _ => false,
        }
    }

    /// Which grant or wait a release means.
    pub(super) fn released(
        &self,
        lock: &LockName,
        grant_ref: &GrantRef,
        token: Option<Token>,
    ) -> Result<Released, Refusal> {
        match grant_ref {
            GrantRef::Lease(lease) => self.grant_of(lock, *lease).map(|grant| Released::Grant(grant.lease)),
            GrantRef::Request(acquire, requester) | GrantRef::GivenUp(acquire, requester) => {
                // Who knows a token does not mean a wait.
                let waiting =
                    self.wait_of(acquire, requester).filter(|ticket| self.waits[ticket].lock == *lock);
                if let Some(ticket) = waiting.filter(|_| token.is_none()) {
                    return Ok(Released::Wait(ticket));
                }
                let Some(held) = self.locks.get(lock) else {
                    return Err(Refusal::LockNotFound { lock: lock.clone() });
                };
                let meant = held.holders.iter().find(|grant| self.answers(grant, acquire, requester));
                match (meant, held.holders.iter().next()) {
                    (Some(grant), _) => Ok(Released::Grant(grant.lease)),
                    (None, None) => Err(Refusal::LockNotFound { lock: lock.clone() }),
                    (None, Some(other)) => Err(held_by_another(lock, other)),
                }
            }
        }
    }

    /// What the lease holds under that name.
    pub(super) fn grant_of(&self, lock: &LockName, lease: LeaseId) -> Result<&Grant, Refusal> {
        let Some(held) = self.locks.get(lock) else {
            return Err(Refusal::LockNotFound { lock: lock.clone() });
        };
        match (held.holders.get(lease), held.holders.iter().next()) {
            (Some(grant), _) => Ok(grant),
            (None, None) => Err(Refusal::LockNotFound { lock: lock.clone() }),
            (None, Some(other)) => Err(held_by_another(lock, other)),
        }
    }

    /// How a lease has this name, or is to have it. Invariant: in one way only.
    pub(crate) fn claimed(&self, lease_id: LeaseId, lock: &LockName) -> Option<Claimed> {
        let lease = self.leases.get(&lease_id)?;
        if lease.held.contains(lock) {
            let grant = self.locks[lock].holders.get(lease_id).expect("a lease holds what it lists");
            let Grant { mode, scope, max_hold, .. } = *grant;
            return Some(Claimed { mode, scope, max_hold });
        }
        let ticket = lease.waits_for(lock).next()?;
        self.waits.get(&ticket).map(Claimed::by)
    }

    fn wait_of(&self, acquire: &RequestId, requester: &Requester) -> Option<Ticket> {
        match requester {
            Requester::Lease(lease) => {
                self.leases.get(lease)?.waits.as_ref()?.by_request.get(acquire).copied()
            }
            Requester::Owner(owner) => {
                self.lease_making_waits.get(&(owner.clone(), acquire.clone())).copied()
            }
        }
    }

    /// True if this grant was the answer to that acquire, the first time or again.
    fn answers(&self, grant: &Grant, acquire: &RequestId, requester: &Requester) -> bool {
        let remembered = match requester {
            Requester::Lease(lease) if *lease != grant.lease => return false,
            Requester::Lease(_) if grant.request == *acquire => return true,
            Requester::Lease(lease) => self.leases[lease].requests.get(acquire),
            // Only what made its own lease is the owner's to name: the ids of acquires on a lease are
            // that lease's own, and another lease of the same owner may have used the same.
            Requester::Owner(owner) => self.lease_requests.get(&(owner.clone(), acquire.clone())),
        };
        let reply = remembered.map(|remembered| &remembered.reply);
        matches!(reply, Some(Reply::Granted { token, .. }) if *token == grant.token)
    }

    fn owned_lease(&self, lease_id: LeaseId, owner: &OwnerId) -> Result<&Lease, Refusal> {
        let lease = self.leases.get(&lease_id).ok_or(Refusal::LeaseNotFound { lease: lease_id })?;
        if lease.owner != *owner {
            let what = format!("lease {lease_id} belongs to another owner than {owner}");
            return Err(Refusal::NotOwner { what });
        }
        Ok(lease)
    }

    /// R7: nothing more can be hung on a lease that is itself still waiting to begin.
    fn running_lease(&self, lease_id: LeaseId, owner: &OwnerId) -> Result<&Lease, Refusal> {
        let lease = self.owned_lease(lease_id, owner)?;
        if lease.is_waiting { Err(Refusal::LeaseNotFound { lease: lease_id }) } else { Ok(lease) }
    }

    /// What is known of a request that makes or ends a lease: it had its effect, or waits to have it.
    pub(crate) fn known_lease_request(
        &self,
        owner: &OwnerId,
        request: &RequestId,
        command: &Command,
    ) -> Result<Option<Reply>, Refusal> {
        let key = (owner.clone(), request.clone());
        match self.lease_making_waits.get(&key).filter(|_| !mutants::A_RETRY_TAKES_A_SECOND_PLACE.is_active())
        {
            Some(ticket) => self.still_waiting(*ticket, command).map(Some),
            None => known(&self.lease_requests, &key, request, command),
        }
    }

    /// What is known of a request on a lease: it had its effect, or waits to have it.
    pub(crate) fn known_request(
        &self,
        lease: &Lease,
        request: &RequestId,
        command: &Command,
    ) -> Result<Option<Reply>, Refusal> {
        // The wait that is to make the lease is its owner's request.
        let waits = lease.waits.as_ref().filter(|_| !lease.is_waiting);
        let waits = waits.filter(|_| !mutants::A_RETRY_TAKES_A_SECOND_PLACE.is_active());
        match waits.and_then(|waits| waits.by_request.get(request)) {
            Some(ticket) => self.still_waiting(*ticket, command).map(Some),
            None => known(&lease.requests, request, request, command),
        }
    }

    fn still_waiting(&self, ticket: Ticket, command: &Command) -> Result<Reply, Refusal> {
        let wait = &self.waits[&ticket];
        if wait.fingerprint != command.fingerprint() {
            return Err(Refusal::RequestReused { request: wait.request.clone() });
        }
        Ok(Reply::Waiting { ticket })
    }
}

fn held_by_another(lock: &LockName, other: &Grant) -> Refusal {
    let what = format!(
        "lock {lock} is held by lease {}, with another grant than the one that was named",
        other.lease
    );
    Refusal::NotOwner { what }
}

fn check_token(lock: &LockName, grant: &Grant, token: Option<Token>) -> Result<(), Refusal> {
    match token {
        Some(given) if given != grant.token && !mutants::RELEASE_WITHOUT_TOKEN_CHECK.is_active() => {
            Err(Refusal::StaleToken { lock: lock.clone(), given, current: grant.token })
        }
        _ => Ok(()),
    }
}

/// The reply to a request that had its effect already; a refusal if that was another operation.
fn known<K: Key>(
    table: &Recent<K>,
    key: &K,
    request: &RequestId,
    command: &Command,
) -> Result<Option<Reply>, Refusal> {
    match table.get(key) {
        None => Ok(None),
        // R10: it was given up, for any lock.
        Some(Remembered { reply: Reply::GivenUp, .. }) => match command {
            // A release may have the id of the acquire that it gives up.
            Command::Release { grant: GrantRef::GivenUp(acquire, _), .. } if acquire == request => {
                Ok(Some(Reply::Released))
            }
            _ => Err(Refusal::GivenUp { request: request.clone() }),
        },
        Some(remembered) if remembered.fingerprint == command.fingerprint() => {
            Ok(Some(remembered.reply.clone()))
        }
        Some(_) => Err(Refusal::RequestReused { request: request.clone() }),
    }
}
