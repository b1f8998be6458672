//! The rules once more, as plainly as they can be put: lists, searched from end to end.
//!
//! It follows `docs/internals`, not the code, and knows nothing of encodings, indexes or windows: it
//! remembers every request for as long as its lease or its owner may ask. Who holds is one list, who waits
//! is another, in order; after every entry the first waiter is granted that conflicts with no holder and
//! with no waiter before it, and then the next, until there is none.

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use lowkey_core::{
    AcquireWith, Applied, BackupSchedule, Cause, Change, ChangeKind, Command, Event, GrantRef, HoldRef,
    Holder, InTheWay, InvitationHash, LeaseId, LockName, MaxHold, MemberId, Mode, NodeIdentity, NodeInfo,
    NodeName, OwnerId, Refusal, Reply, RequestId, Requester, Scope, Ticket, Token, Ttl, Value, WaitEnd,
};

#[derive(Default)]
pub(crate) struct Model {
    pub(crate) last_token: u64,
    pub(crate) last_lease: u64,
    pub(crate) last_member: u64,
    pub(crate) leases: Vec<ModelLease>,
    pub(crate) grants: Vec<ModelGrant>,
    /// First come first.
    pub(crate) waits: Vec<ModelWait>,
    pub(crate) members: Vec<(MemberId, NodeInfo)>,
    /// Until when each is good, and who came with it.
    pub(crate) invitations: Vec<(InvitationHash, u64, Option<NodeIdentity>)>,
    /// The one that was set last.
    pub(crate) backup_schedule: Option<Arc<BackupSchedule>>,
    /// Every acquire that was answered with a grant, the first one and those that asked again.
    answered: Vec<(Token, RequestId)>,
    done: Vec<Done>,
    /// The entry that is being applied, and its proposer's clock.
    revision: u64,
    since_unix_ms: u64,
    events: Vec<Event>,
    told: VecDeque<Option<InTheWay>>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ModelLease {
    pub(crate) id: LeaseId,
    pub(crate) owner: OwnerId,
    pub(crate) ttl: Ttl,
    pub(crate) is_waiting: bool,
}

/// What a lease wants, or has.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ModelClaim {
    pub(crate) lock: LockName,
    /// None if the lease is still to be made.
    pub(crate) lease: Option<LeaseId>,
    pub(crate) mode: Mode,
    pub(crate) scope: Scope,
}

impl ModelClaim {
    pub(crate) fn conflicts_with(&self, other: &Self) -> bool {
        let of_others = self.lease.is_none() || self.lease != other.lease;
        let alone = self.mode == Mode::Exclusive || other.mode == Mode::Exclusive;
        of_others && alone && (self.covers(&other.lock) || other.covers(&self.lock))
    }

    /// A hold of the same lease that covers all of the other, in no weaker mode.
    fn is_enough_for(&self, other: &Self) -> bool {
        let is_strong = self.mode == Mode::Exclusive || other.mode == Mode::Shared;
        let is_above = self.scope == Scope::Subtree && self.lock != other.lock && self.covers(&other.lock);
        other.lease.is_some() && self.lease == other.lease && is_strong && is_above
    }

    fn covers(&self, name: &LockName) -> bool {
        let own: Vec<_> = self.lock.as_str().split('/').collect();
        let other: Vec<_> = name.as_str().split('/').collect();
        match self.scope {
            Scope::Name => own == other,
            Scope::Subtree => other.starts_with(&own),
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ModelGrant {
    pub(crate) claim: ModelClaim,
    pub(crate) token: Token,
    pub(crate) value: Value,
    pub(crate) revision: u64,
    pub(crate) since_unix_ms: u64,
    pub(crate) request: RequestId,
    pub(crate) max_hold: Option<MaxHold>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ModelWait {
    pub(crate) ticket: Ticket,
    pub(crate) claim: ModelClaim,
    pub(crate) value: Value,
    pub(crate) request: RequestId,
    pub(crate) owner: OwnerId,
    pub(crate) max_hold: Option<MaxHold>,
    within: Within,
    command: Command,
}

impl ModelWait {
    fn lease(&self) -> LeaseId {
        self.claim.lease.expect("whoever waits has a lease")
    }

    pub(crate) fn makes_lease(&self) -> bool {
        matches!(self.within, Within::Owner(_))
    }
}

/// A request that had its effect.
struct Done {
    within: Within,
    request: RequestId,
    command: Command,
    reply: Reply,
}

/// Within what a request id means one request.
#[derive(Clone, Debug, PartialEq)]
enum Within {
    Owner(OwnerId),
    Lease(LeaseId),
}

/// The command as its retry may say it: only the clock, whether to wait, who asks, and whether it is final may
/// differ.
pub(crate) fn as_retried(command: &Command) -> Command {
    let mut command = command.clone();
    command.stamp(0);
    command.limit_to(4);
    if let Command::Acquire { wait, .. } = &mut command {
        *wait = false;
    }
    command
}

fn since(command: &Command) -> u64 {
    match command {
        Command::RevokeLease { since_unix_ms, .. }
        | Command::Acquire { since_unix_ms, .. }
        | Command::Release { since_unix_ms, .. }
        | Command::SetValue { since_unix_ms, .. }
        | Command::CancelWait { since_unix_ms, .. }
        | Command::Expire { since_unix_ms, .. }
        | Command::EndHolds { since_unix_ms, .. }
        | Command::Invite { since_unix_ms, .. } => *since_unix_ms,
        Command::CreateLease { .. }
        | Command::AddMember { .. }
        | Command::UpdateMember { .. }
        | Command::RemoveMember { .. }
        | Command::EndQuarantine
        | Command::Access(_)
        | Command::Groups(_)
        | Command::SetBackupSchedule(_) => 0,
    }
}

impl Model {
    /// Where several are in somebody's way, the state machine may tell of any: `told` is whom it told of,
    /// one after the other. The model says the same if that is right.
    pub(crate) fn apply(
        &mut self,
        revision: u64,
        term: u64,
        command: &Command,
        told: VecDeque<Option<InTheWay>>,
    ) -> Applied {
        (self.revision, self.since_unix_ms, self.told) = (revision, since(command), told);
        let reply = match command {
            Command::CreateLease { owner, ttl, request } => {
                self.once(&Within::Owner(owner.clone()), request, command, |model| {
                    let lease = model.make_lease(owner, *ttl, false);
                    Ok(Reply::LeaseCreated { lease, ttl: *ttl })
                })
            }
            Command::RevokeLease { lease, owner, request, .. } => {
                self.once(&Within::Owner(owner.clone()), request, command, |model| {
                    model.owned(*lease, owner)?;
                    let released = model.end_lease(*lease, Cause::Revoked);
                    Ok(Reply::LeaseRevoked { released })
                })
            }
            Command::Acquire { .. } => self.acquire(command),
            Command::Release { .. } => self.release(command),
            Command::SetValue { .. } => self.set_value(command),
            Command::CancelWait { tickets, .. } => {
                let mut count = 0;
                for ticket in tickets {
                    let Some(wait) = self.waits.iter().find(|wait| wait.ticket == *ticket) else { continue };
                    let claim = wait.claim.clone();
                    let in_the_way = self.in_the_way(&claim, Some(*ticket), count == 0);
                    self.end_wait(*ticket, WaitEnd::Cancelled { lock: claim.lock, in_the_way });
                    count += 1;
                }
                Ok(Reply::WaitsCancelled { count })
            }
            Command::Expire { leases, decided_term, .. } => {
                let mut count = 0;
                for lease in leases {
                    if *decided_term == term && self.leases.iter().any(|known| known.id == *lease) {
                        self.end_lease(*lease, Cause::Expired);
                        count += 1;
                    }
                }
                Ok(Reply::Expired { count })
            }
            Command::EndHolds { holds, decided_term, .. } => {
                let mut count = 0;
                for HoldRef { lock, lease, token } in holds {
                    let is_meant = |grant: &ModelGrant| {
                        grant.claim.lock == *lock
                            && grant.claim.lease == Some(*lease)
                            && grant.token == *token
                    };
                    let Some(at) = self.grants.iter().position(is_meant) else { continue };
                    if *decided_term == term {
                        let grant = self.grants.remove(at);
                        self.tell_of_end(Cause::HeldTooLong, &grant);
                        count += 1;
                    }
                }
                Ok(Reply::HoldsEnded { count })
            }
            Command::AddMember { node, invitation } => self.add_member(node, *invitation),
            Command::UpdateMember { member, node } => self.update_member(*member, node),
            Command::RemoveMember { name, member } => self.remove_member(name, *member),
            // No history of this model begins anew: there is nothing to end.
            Command::EndQuarantine => Ok(Reply::QuarantineEnded),
            Command::Invite { invitation, lifetime_seconds, since_unix_ms } => {
                self.invite(*invitation, *lifetime_seconds, *since_unix_ms)
            }
            Command::SetBackupSchedule(schedule) => {
                self.backup_schedule.clone_from(schedule);
                Ok(Reply::BackupScheduleSet)
            }
            // Who may do what has a model of its own: see `tests/access.rs`.
            Command::Access(change) => unreachable!("{change:?} is in no history of this model"),
            // Nor are groups: see `tests/split.rs`.
            Command::Groups(change) => unreachable!("{change:?} is in no history of this model"),
        };
        self.grant_whose_turn_it_is();
        let mut events = std::mem::take(&mut self.events);
        for event in &mut events {
            let Event::Changed(change) = event else { continue };
            change.at_unix_ms = since(command);
            change.actor = match (change.kind, command) {
                (
                    ChangeKind::Freed(_),
                    Command::Release { actor, .. } | Command::RevokeLease { actor, .. },
                ) => actor.clone(),
                _ => None,
            };
        }
        Applied { reply, events, born: None }
    }

    fn grant_whose_turn_it_is(&mut self) {
        while let Some(at) = (0..self.waits.len()).find(|at| self.is_free(&self.waits[*at].claim, *at)) {
            let wait = self.waits.remove(at);
            let lease = wait.lease();
            let known = self.leases.iter_mut().find(|known| known.id == lease).expect("waiters have leases");
            if std::mem::take(&mut known.is_waiting) {
                self.events.push(Event::LeaseStarted { lease, ttl: known.ttl });
            }
            let reply = self.grant(&wait.claim, &wait.value, wait.max_hold, &wait.request);
            let (within, request, command) = (wait.within, wait.request, wait.command);
            self.done.push(Done { within, request, command, reply: reply.clone() });
            self.events.push(Event::WaitEnded { ticket: wait.ticket, end: WaitEnd::Granted(reply) });
        }
    }

    /// True if a claim conflicts with no holder, and with none of the first so many waiters.
    fn is_free(&self, claim: &ModelClaim, waiters_before: usize) -> bool {
        self.grants.iter().all(|grant| !grant.claim.conflicts_with(claim))
            && self.waits[..waiters_before].iter().all(|wait| !wait.claim.conflicts_with(claim))
    }

    /// Carries out `operation` unless its request had its effect already, or waits for it.
    fn once(
        &mut self,
        within: &Within,
        request: &RequestId,
        command: &Command,
        operation: impl FnOnce(&mut Self) -> Result<Reply, Refusal>,
    ) -> Result<Reply, Refusal> {
        if let Some(answer) = self.before(within, request, command) {
            return answer;
        }
        let reply = operation(self)?;
        if !matches!(reply, Reply::Waiting { .. }) {
            let (within, request, command) = (within.clone(), request.clone(), as_retried(command));
            self.done.push(Done { within, request, command, reply: reply.clone() });
        }
        Ok(reply)
    }

    fn before(
        &self,
        within: &Within,
        request: &RequestId,
        command: &Command,
    ) -> Option<Result<Reply, Refusal>> {
        let done = self.done.iter().find(|done| done.within == *within && done.request == *request);
        let wait = self.waits.iter().find(|wait| wait.within == *within && wait.request == *request);
        let done = done.map(|done| (&done.command, done.reply.clone()));
        let wait = wait.map(|wait| (&wait.command, Reply::Waiting { ticket: wait.ticket }));
        let (before, reply) = done.or(wait)?;
        if reply == Reply::GivenUp {
            return Some(match command {
                Command::Release { grant: GrantRef::GivenUp(acquire, _), .. } if acquire == request => {
                    Ok(Reply::Released)
                }
                _ => Err(Refusal::GivenUp { request: request.clone() }),
            });
        }
        match *before == as_retried(command) {
            true => Some(Ok(reply)),
            false => Some(Err(Refusal::RequestReused { request: request.clone() })),
        }
    }

    fn acquire(&mut self, command: &Command) -> Result<Reply, Refusal> {
        let Command::Acquire { lock, owner, with, mode, scope, value, wait, max_hold, request, .. } = command
        else {
            panic!("not an acquire: {command:?}");
        };
        let (within, lease) = match *with {
            AcquireWith::NewLease(_) => (Within::Owner(owner.clone()), None),
            AcquireWith::Lease(lease) => {
                self.running(lease, owner)?;
                (Within::Lease(lease), Some(lease))
            }
        };
        let claim = ModelClaim { lock: lock.clone(), lease, mode: *mode, scope: *scope };
        self.once(&within, request, command, |model| {
            let held = model.grants.iter().map(|grant| (&grant.claim, grant.max_hold));
            let awaited = model.waits.iter().map(|wait| (&wait.claim, wait.max_hold));
            let mut own = held.chain(awaited).filter(|(own, _)| own.lock == *lock && own.lease == lease);
            // What has a limit is given once.
            let is_other = |(own, limit): &(&ModelClaim, Option<MaxHold>)| {
                **own != claim || limit.is_some() || max_hold.is_some()
            };
            if let Some((own, limit)) = own.find(|_| lease.is_some()).filter(is_other) {
                let (lock, lease) = (lock.clone(), own.lease.expect("a lease's own"));
                let (mode, scope) = (own.mode, own.scope);
                return Err(Refusal::AlreadyHeld { lock, lease, mode, scope, max_hold: limit });
            }
            let is_held = lease.is_some() && model.grants.iter().any(|grant| grant.claim == claim);
            let is_covered = model.grants.iter().any(|grant| grant.claim.is_enough_for(&claim));
            let is_free = is_held || is_covered || model.is_free(&claim, model.waits.len());
            if !is_free && !wait {
                let in_the_way = model.in_the_way(&claim, None, true).expect("somebody is in the way");
                return Err(Refusal::LockHeld { lock: lock.clone(), in_the_way });
            }
            let lease = match *with {
                AcquireWith::Lease(lease) => lease,
                AcquireWith::NewLease(ttl) => model.make_lease(owner, ttl, !is_free),
            };
            let claim = ModelClaim { lease: Some(lease), ..claim };
            if is_free {
                return Ok(model.grant(&claim, value, *max_hold, request));
            }
            let ticket = Ticket(model.revision);
            model.tell_of_wait(ChangeKind::Waiting, &claim);
            model.waits.push(ModelWait {
                ticket,
                claim,
                value: value.clone(),
                request: request.clone(),
                owner: owner.clone(),
                max_hold: *max_hold,
                within: within.clone(),
                command: as_retried(command),
            });
            Ok(Reply::Waiting { ticket })
        })
    }

    fn release(&mut self, command: &Command) -> Result<Reply, Refusal> {
        let Command::Release { lock, grant: meant, token, request, .. } = command else {
            panic!("not a release: {command:?}");
        };
        let (acquire, within) = match meant {
            GrantRef::Lease(lease) => (None, Within::Lease(*lease)),
            GrantRef::Request(acquire, requester) | GrantRef::GivenUp(acquire, requester) => {
                let within = match requester {
                    Requester::Lease(lease) => Within::Lease(*lease),
                    Requester::Owner(owner) => Within::Owner(owner.clone()),
                };
                (Some(acquire), within)
            }
        };
        let given_up = acquire.filter(|_| matches!(meant, GrantRef::GivenUp(..)) && token.is_none());
        if let Some(answer) = self.before(&within, request, command) {
            return answer;
        }
        let is_meant = |wait: &&ModelWait| {
            acquire == Some(&wait.request)
                && match &within {
                    Within::Lease(lease) => wait.lease() == *lease,
                    Within::Owner(_) => wait.within == within,
                }
        };
        let waits_elsewhere = self.waits.iter().any(|wait| is_meant(&wait) && wait.claim.lock != *lock);
        let waiting = self.waits.iter().filter(is_meant).find(|wait| wait.claim.lock == *lock);
        if let Some(wait) = waiting.filter(|_| token.is_none()).cloned() {
            self.end_wait(wait.ticket, WaitEnd::GivenUp { lock: lock.clone() });
            if let Some(acquire) = given_up {
                self.give_up(&within, acquire, command);
                return Ok(Reply::Released);
            }
            // A lease that ended with its wait remembers nothing.
            if wait.makes_lease() && matches!(within, Within::Lease(_)) {
                return Ok(Reply::Released);
            }
            return self.once(&within, request, command, |_| Ok(Reply::Released));
        }
        let grant = self.grant_that(lock, |model, grant| match (acquire, &within) {
            (None, within) => grant.claim.lease.map(Within::Lease).as_ref() == Some(within),
            (Some(acquire), Within::Lease(lease)) => {
                grant.claim.lease == Some(*lease) && model.answered.contains(&(grant.token, acquire.clone()))
            }
            // An owner names what made its own lease; the ids of acquires on a lease are the lease's own.
            (Some(acquire), Within::Owner(_)) => model.done.iter().any(|done| {
                done.within == within
                    && done.request == *acquire
                    && matches!(done.reply, Reply::Granted { token, .. } if token == grant.token)
            }),
        });
        let grant = match (grant, given_up) {
            (Err(refusal), Some(_)) if waits_elsewhere => return Err(refusal),
            (Err(_), Some(acquire)) => {
                self.give_up(&within, acquire, command);
                return Ok(Reply::Released);
            }
            (Err(refusal), None) => return Err(refusal),
            (Ok(grant), _) => grant,
        };
        if let Some(acquire) = given_up {
            self.grants.retain(|other| other.token != grant.token);
            self.tell_of_end(Cause::Released, &grant);
            self.give_up(&within, acquire, command);
            return Ok(Reply::Released);
        }
        self.once(&within, request, command, |model| {
            check_token(&grant, *token)?;
            model.grants.retain(|other| other.token != grant.token);
            model.tell_of_end(Cause::Released, &grant);
            Ok(Reply::Released)
        })
    }

    /// An acquire that had no effect has none any more; a lease that is gone needs no such word.
    fn give_up(&mut self, within: &Within, acquire: &RequestId, command: &Command) {
        let is_known = self.done.iter().any(|done| done.within == *within && done.request == *acquire);
        let is_gone = match within {
            Within::Lease(lease) => self.leases.iter().all(|known| known.id != *lease),
            Within::Owner(_) => false,
        };
        if !is_known && !is_gone {
            let (within, request, command) = (within.clone(), acquire.clone(), command.clone());
            self.done.push(Done { within, request, command, reply: Reply::GivenUp });
        }
    }

    fn set_value(&mut self, command: &Command) -> Result<Reply, Refusal> {
        let Command::SetValue { lock, owner, lease, token, value, request, .. } = command else {
            panic!("not a set value: {command:?}");
        };
        self.running(*lease, owner)?;
        self.once(&Within::Lease(*lease), request, command, |model| {
            let grant = model.grant_that(lock, |_, grant| grant.claim.lease == Some(*lease))?;
            check_token(&grant, *token)?;
            model.show(grant.token, value);
            Ok(Reply::ValueSet { revision: model.revision })
        })
    }

    /// The one grant of the lock that is meant.
    fn grant_that(
        &self,
        lock: &LockName,
        is_meant: impl Fn(&Self, &ModelGrant) -> bool,
    ) -> Result<ModelGrant, Refusal> {
        let held: Vec<_> = self.grants.iter().filter(|grant| grant.claim.lock == *lock).collect();
        match held.iter().find(|grant| is_meant(self, grant)) {
            Some(grant) => Ok((*grant).clone()),
            None if held.is_empty() => Err(Refusal::LockNotFound { lock: lock.clone() }),
            None => Err(Refusal::NotOwner { what: String::new() }),
        }
    }

    fn owned(&self, lease: LeaseId, owner: &OwnerId) -> Result<&ModelLease, Refusal> {
        match self.leases.iter().find(|known| known.id == lease) {
            None => Err(Refusal::LeaseNotFound { lease }),
            Some(known) if known.owner != *owner => Err(Refusal::NotOwner { what: String::new() }),
            Some(known) => Ok(known),
        }
    }

    /// R7: a lease that waits to begin cannot be used.
    fn running(&self, lease: LeaseId, owner: &OwnerId) -> Result<(), Refusal> {
        match self.owned(lease, owner)?.is_waiting {
            true => Err(Refusal::LeaseNotFound { lease }),
            false => Ok(()),
        }
    }

    /// Who holds what a claim waits for: whoever conflicts with it, or with a waiter before it that
    /// conflicts with it, and so on. There is somebody, unless the entry itself ended waits already.
    fn in_the_way(&mut self, claim: &ModelClaim, ticket: Option<Ticket>, must_be: bool) -> Option<InTheWay> {
        let mut claims = vec![(claim.clone(), ticket.unwrap_or(Ticket(u64::MAX)))];
        let mut seen = BTreeSet::new();
        let mut right = Vec::new();
        while let Some((claim, before)) = claims.pop() {
            for grant in self.grants.iter().filter(|grant| grant.claim.conflicts_with(&claim)) {
                right.push(grant.clone());
            }
            for wait in self.waits.iter().filter(|wait| wait.ticket < before) {
                if wait.claim.conflicts_with(&claim) && seen.insert(wait.ticket) {
                    claims.push((wait.claim.clone(), wait.ticket));
                }
            }
        }
        // Of those who wait, whoever is told is not counted.
        let others = self.waits.iter().filter(|wait| Some(wait.ticket) != ticket);
        let waiters = others.filter(|wait| wait.claim.lock == claim.lock).count();
        let right: Vec<_> = right
            .iter()
            .map(|grant| InTheWay { held: grant.claim.lock.clone(), holder: self.holder(grant), waiters })
            .collect();
        match self.told.pop_front() {
            Some(None) if !must_be => None,
            Some(Some(told)) if right.contains(&told) => Some(told),
            _ => right.first().cloned(),
        }
    }

    fn holder(&self, grant: &ModelGrant) -> Holder {
        let lease = grant.claim.lease.expect("whoever holds has a lease");
        let known = self.leases.iter().find(|known| known.id == lease).expect("holders have leases");
        Holder {
            owner: known.owner.clone(),
            lease,
            token: grant.token,
            mode: grant.claim.mode,
            scope: grant.claim.scope,
            value: grant.value.clone(),
            since_unix_ms: grant.since_unix_ms,
            max_hold: grant.max_hold,
        }
    }

    fn make_lease(&mut self, owner: &OwnerId, ttl: Ttl, is_waiting: bool) -> LeaseId {
        self.last_lease += 1;
        let id = LeaseId(self.last_lease);
        self.leases.push(ModelLease { id, owner: owner.clone(), ttl, is_waiting });
        if !is_waiting {
            self.events.push(Event::LeaseStarted { lease: id, ttl });
        }
        id
    }

    /// A new grant, or the one that the lease has.
    fn grant(
        &mut self,
        claim: &ModelClaim,
        value: &Value,
        max_hold: Option<MaxHold>,
        request: &RequestId,
    ) -> Reply {
        let lease = claim.lease.expect("a grant hangs on a lease");
        let ttl = self.leases.iter().find(|known| known.id == lease).expect("the lease was checked").ttl;
        if let Some(held) = self.grants.iter().find(|grant| grant.claim == *claim).cloned() {
            self.answered.push((held.token, request.clone()));
            if !value.is_empty() {
                self.show(held.token, value);
            }
            return Reply::Granted { token: held.token, lease, ttl, revision: held.revision };
        }
        self.last_token += 1;
        let grant = ModelGrant {
            claim: claim.clone(),
            token: Token(self.last_token),
            value: value.clone(),
            revision: self.revision,
            since_unix_ms: self.since_unix_ms,
            request: request.clone(),
            max_hold,
        };
        self.answered.push((grant.token, request.clone()));
        self.tell_of_grant(ChangeKind::Acquired, &grant);
        if let Some(max_hold) = max_hold {
            let hold = HoldRef { lock: claim.lock.clone(), lease, token: grant.token };
            self.events.push(Event::HoldStarted { hold, max_hold });
        }
        let reply = Reply::Granted { token: grant.token, lease, ttl, revision: grant.revision };
        self.grants.push(grant);
        reply
    }

    fn show(&mut self, token: Token, value: &Value) {
        let grant = self.grants.iter_mut().find(|grant| grant.token == token).expect("it is held");
        if grant.value != *value {
            grant.value = value.clone();
            let grant = grant.clone();
            self.tell_of_grant(ChangeKind::ValueSet, &grant);
        }
    }

    fn end_wait(&mut self, ticket: Ticket, end: WaitEnd) {
        let at = self.waits.iter().position(|wait| wait.ticket == ticket).expect("it waits");
        let wait = self.waits.remove(at);
        self.tell_of_wait(ChangeKind::Cancelled, &wait.claim);
        if wait.makes_lease() {
            let lease = wait.lease();
            self.leases.retain(|known| known.id != lease);
            self.events.push(Event::LeaseEnded { lease });
        }
        self.events.push(Event::WaitEnded { ticket, end });
    }

    /// Its locks by name, then its waits by name and place, then the lease itself.
    fn end_lease(&mut self, lease: LeaseId, cause: Cause) -> u64 {
        let (mut freed, kept): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.grants).into_iter().partition(|grant| grant.claim.lease == Some(lease));
        self.grants = kept;
        freed.sort_by(|a, b| a.claim.lock.cmp(&b.claim.lock));
        for grant in &freed {
            self.tell_of_end(cause, grant);
        }
        let mut waits: Vec<_> = self.waits.iter().filter(|wait| wait.lease() == lease).cloned().collect();
        waits.sort_by(|a, b| (&a.claim.lock, a.ticket).cmp(&(&b.claim.lock, b.ticket)));
        for wait in &waits {
            self.end_wait(wait.ticket, WaitEnd::LeaseGone { lease });
        }
        if !waits.iter().any(ModelWait::makes_lease) {
            self.leases.retain(|known| known.id != lease);
            self.events.push(Event::LeaseEnded { lease });
        }
        self.done.retain(|done| done.within != Within::Lease(lease));
        freed.len() as u64
    }

    fn tell_of_end(&mut self, cause: Cause, grant: &ModelGrant) {
        self.tell_of_grant(ChangeKind::Freed(cause), grant);
        if grant.max_hold.is_some() {
            self.events.push(Event::HoldEnded { token: grant.token });
        }
    }

    fn tell_of_grant(&mut self, kind: ChangeKind, grant: &ModelGrant) {
        let Holder { owner, lease, token, mode, scope, value, since_unix_ms, max_hold: _ } =
            self.holder(grant);
        let value = if matches!(kind, ChangeKind::Freed(_)) { Value::default() } else { value };
        let (lock, token) = (grant.claim.lock.clone(), Some(token));
        self.events.push(Event::Changed(Change {
            kind,
            lock,
            owner,
            lease,
            token,
            mode,
            scope,
            value,
            since_unix_ms,
            at_unix_ms: 0,
            actor: None,
        }));
    }

    fn tell_of_wait(&mut self, kind: ChangeKind, claim: &ModelClaim) {
        let lease = claim.lease.expect("whoever waits has a lease");
        let known = self.leases.iter().find(|known| known.id == lease).expect("waiters have leases");
        self.events.push(Event::Changed(Change {
            kind,
            lock: claim.lock.clone(),
            owner: known.owner.clone(),
            lease,
            token: None,
            mode: claim.mode,
            scope: claim.scope,
            value: Value::default(),
            since_unix_ms: 0,
            at_unix_ms: 0,
            actor: None,
        }));
    }

    fn add_member(&mut self, node: &NodeInfo, invitation: Option<InvitationHash>) -> Result<Reply, Refusal> {
        let known = self.members.iter().find(|(_, m)| m.identity.is_some() && m.identity == node.identity);
        let named = self.members.iter().find(|(_, m)| m.name == node.name);
        let place = match (known, named) {
            (Some((member, _)), Some((other, by))) if member != other => Err(by.identity),
            (Some((member, _)), _) => Ok(Some(*member)),
            (None, Some((expected, by))) if by.identity.is_none() => Ok(Some(*expected)),
            (None, Some((_, by))) => Err(by.identity),
            (None, None) => Ok(None),
        };
        let (is_known, place) = (known.is_some(), place);
        let key = |place: &MemberId| self.members.iter().find(|(m, _)| m == place)?.1.key_hash;
        if let Ok(Some(member)) = &place
            && key(member).is_some_and(|key| node.key_hash != Some(key))
        {
            return Err(Refusal::NodeKeyDiffers { name: node.name.clone() });
        }
        let shown = |(hash, ..): &&mut (InvitationHash, u64, Option<NodeIdentity>)| Some(*hash) == invitation;
        if place.is_ok() && !is_known && invitation.is_some() {
            match self.invitations.iter_mut().find(shown) {
                None => return Err(Refusal::InvitationNotFound),
                Some((_, _, Some(_))) => return Err(Refusal::InvitationUsed),
                Some((_, _, used_by)) => *used_by = node.identity,
            }
        }
        match place {
            Err(by) => return Err(Refusal::NodeNameTaken { name: node.name.clone(), by }),
            Ok(Some(member)) => {
                self.members.iter_mut().filter(|(m, _)| *m == member).for_each(|(_, m)| *m = node.clone());
                return Ok(Reply::MemberAdded { member });
            }
            Ok(None) => {}
        }
        self.last_member += 1;
        self.members.push((MemberId(self.last_member), node.clone()));
        Ok(Reply::MemberAdded { member: MemberId(self.last_member) })
    }
}

impl Model {
    fn update_member(&mut self, member: MemberId, node: &NodeInfo) -> Result<Reply, Refusal> {
        let is_meant = |(m, known): &(MemberId, NodeInfo)| {
            *m == member && known.identity.is_some() && known.identity == node.identity
        };
        if !self.members.iter().any(is_meant) {
            return Err(Refusal::NodeNotFound { name: node.name.clone() });
        }
        self.add_member(node, None)
    }

    fn invite(&mut self, invitation: InvitationHash, seconds: u64, now: u64) -> Result<Reply, Refusal> {
        if let Some((_, expires_unix_ms, _)) = self.invitations.iter().find(|(hash, ..)| *hash == invitation)
        {
            return Ok(Reply::Invited { expires_unix_ms: *expires_unix_ms });
        }
        self.invitations.retain(|(_, expires, _)| *expires > now);
        let expires_unix_ms = now.saturating_add(seconds * 1000);
        self.invitations.push((invitation, expires_unix_ms, None));
        self.invitations.sort_by_key(|(hash, ..)| *hash);
        Ok(Reply::Invited { expires_unix_ms })
    }

    fn remove_member(&mut self, name: &NodeName, member: Option<MemberId>) -> Result<Reply, Refusal> {
        let found = self
            .members
            .iter()
            .position(|(m, known)| known.name == *name && member.is_none_or(|member| member == *m));
        match found {
            None => Err(Refusal::NodeNotFound { name: name.clone() }),
            Some(_) if self.members.len() == 1 => Err(Refusal::LastNode { name: name.clone() }),
            Some(at) => Ok(Reply::MemberRemoved { member: self.members.remove(at).0 }),
        }
    }
}

fn check_token(grant: &ModelGrant, token: Option<Token>) -> Result<(), Refusal> {
    match token {
        Some(given) if given != grant.token => {
            Err(Refusal::StaleToken { lock: grant.claim.lock.clone(), given, current: grant.token })
        }
        _ => Ok(()),
    }
}
