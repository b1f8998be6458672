//! The rules once more, as plainly as they can be put: lists, searched from end to end.
//!
//! It follows the design, not the code, and knows nothing of encodings, indexes or windows: it
//! remembers every request for as long as its lease or its owner may ask.

use lowkey_core::{
    AcquireWith, Applied, Cause, Command, Event, GrantRef, Holder, LeaseId, LockName, MemberId, NodeInfo,
    OwnerId, Refusal, Reply, RequestId, Requester, Token, Ttl,
};

#[derive(Default)]
pub(crate) struct Model {
    pub(crate) last_token: u64,
    pub(crate) last_lease: u64,
    pub(crate) last_member: u64,
    pub(crate) leases: Vec<(LeaseId, OwnerId, Ttl)>,
    pub(crate) grants: Vec<ModelGrant>,
    pub(crate) members: Vec<(MemberId, NodeInfo)>,
    /// Every acquire that was answered with a grant, the first one and those that asked again.
    answered: Vec<(Token, RequestId)>,
    done: Vec<Done>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ModelGrant {
    pub(crate) lock: LockName,
    pub(crate) lease: LeaseId,
    pub(crate) token: Token,
    pub(crate) revision: u64,
    pub(crate) since_unix_ms: u64,
    pub(crate) request: RequestId,
}

/// A request that had its effect.
struct Done {
    scope: Scope,
    request: RequestId,
    command: Command,
    reply: Reply,
}

/// Within what a request id means one request.
#[derive(PartialEq)]
enum Scope {
    Owner(OwnerId),
    Lease(LeaseId),
}

/// The command as its retry may say it: only the clock may differ.
pub(crate) fn without_clock(command: &Command) -> Command {
    let mut command = command.clone();
    if let Command::Acquire { since_unix_ms, .. } = &mut command {
        *since_unix_ms = 0;
    }
    command
}

impl Model {
    pub(crate) fn apply(&mut self, revision: u64, term: u64, command: &Command) -> Applied {
        let mut events = Vec::new();
        let reply = match command {
            Command::CreateLease { owner, ttl, request } => {
                self.once(&Scope::Owner(owner.clone()), request, command, |model| {
                    let lease = model.make_lease(owner, *ttl, &mut events);
                    Ok(Reply::LeaseCreated { lease, ttl: *ttl })
                })
            }
            Command::RevokeLease { lease, owner, request } => {
                self.once(&Scope::Owner(owner.clone()), request, command, |model| {
                    model.owned(*lease, owner)?;
                    let released = model.end(*lease, Cause::Revoked, &mut events);
                    Ok(Reply::LeaseRevoked { released })
                })
            }
            Command::Acquire { lock, owner, with: AcquireWith::NewLease(ttl), since_unix_ms, request } => {
                self.once(&Scope::Owner(owner.clone()), request, command, |model| {
                    model.free_for(lock)?;
                    let lease = model.make_lease(owner, *ttl, &mut events);
                    Ok(model.grant(lock, lease, revision, *since_unix_ms, request, &mut events))
                })
            }
            Command::Acquire { lock, owner, with: AcquireWith::Lease(lease), since_unix_ms, request } => {
                self.acquire(lock, owner, *lease, revision, *since_unix_ms, request, command, &mut events)
            }
            Command::Release { .. } => self.release(command, &mut events),
            Command::Expire { leases, decided_term } => {
                let mut count = 0;
                for lease in leases {
                    if *decided_term == term && self.leases.iter().any(|(id, ..)| id == lease) {
                        self.end(*lease, Cause::Expired, &mut events);
                        count += 1;
                    }
                }
                Ok(Reply::Expired { count })
            }
            Command::AddMember { node } => self.add_member(node),
        };
        Applied { reply, events }
    }

    /// Carries out `operation` unless its request had its effect in this scope already.
    fn once(
        &mut self,
        scope: &Scope,
        request: &RequestId,
        command: &Command,
        operation: impl FnOnce(&mut Self) -> Result<Reply, Refusal>,
    ) -> Result<Reply, Refusal> {
        if let Some(answer) = self.before(scope, request, command) {
            return answer;
        }
        let reply = operation(self)?;
        let scope = match scope {
            Scope::Owner(owner) => Scope::Owner(owner.clone()),
            Scope::Lease(lease) => Scope::Lease(*lease),
        };
        let (request, command) = (request.clone(), without_clock(command));
        self.done.push(Done { scope, request, command, reply: reply.clone() });
        Ok(reply)
    }

    fn before(
        &self,
        scope: &Scope,
        request: &RequestId,
        command: &Command,
    ) -> Option<Result<Reply, Refusal>> {
        let done = self.done.iter().find(|done| done.scope == *scope && done.request == *request)?;
        if done.command == without_clock(command) {
            Some(Ok(done.reply.clone()))
        } else {
            Some(Err(Refusal::RequestReused { request: request.clone() }))
        }
    }

    #[expect(clippy::too_many_arguments, reason = "an acquire has that many words")]
    fn acquire(
        &mut self,
        lock: &LockName,
        owner: &OwnerId,
        lease: LeaseId,
        revision: u64,
        since_unix_ms: u64,
        request: &RequestId,
        command: &Command,
        events: &mut Vec<Event>,
    ) -> Result<Reply, Refusal> {
        let ttl = self.owned(lease, owner)?;
        self.once(&Scope::Lease(lease), request, command, |model| {
            let held = model.grants.iter().find(|grant| grant.lock == *lock && grant.lease == lease);
            if let Some(grant) = held {
                model.answered.push((grant.token, request.clone()));
                return Ok(Reply::Granted { token: grant.token, lease, ttl, revision: grant.revision });
            }
            model.free_for(lock)?;
            Ok(model.grant(lock, lease, revision, since_unix_ms, request, events))
        })
    }

    fn release(&mut self, command: &Command, events: &mut Vec<Event>) -> Result<Reply, Refusal> {
        let Command::Release { lock, grant: meant, token, request } = command else {
            panic!("not a release: {command:?}");
        };
        let (acquire_request, lease, owner) = match meant {
            GrantRef::Lease(lease) => (None, Some(*lease), None),
            GrantRef::Request(acquire, Requester::Lease(lease)) => (Some(acquire), Some(*lease), None),
            GrantRef::Request(acquire, Requester::Owner(owner)) => (Some(acquire), None, Some(owner)),
        };
        if let Some(lease) = lease
            && let Some(answer) = self.before(&Scope::Lease(lease), request, command)
        {
            return answer;
        }
        let Some(grant) = self.grants.iter().find(|grant| grant.lock == *lock).cloned() else {
            return Err(Refusal::LockNotFound { lock: lock.clone() });
        };
        let answered =
            |acquire: &RequestId| self.answered.iter().any(|known| *known == (grant.token, acquire.clone()));
        // An owner names what made its own lease; the ids of acquires on a lease are the lease's own.
        let made_for = |owner: &OwnerId| {
            self.done.iter().any(|done| {
                done.scope == Scope::Owner(owner.clone())
                    && Some(&done.request) == acquire_request
                    && matches!(done.reply, Reply::Granted { token, .. } if token == grant.token)
            })
        };
        if lease.is_some_and(|lease| lease != grant.lease)
            || owner.is_some_and(|owner| !made_for(owner))
            || acquire_request.is_some_and(|acquire| !answered(acquire))
        {
            return Err(Refusal::NotOwner { what: String::new() });
        }
        self.once(&Scope::Lease(grant.lease), request, command, |model| {
            match token {
                Some(given) if *given != grant.token => {
                    return Err(Refusal::StaleToken {
                        lock: lock.clone(),
                        given: *given,
                        current: grant.token,
                    });
                }
                _ => {}
            }
            model.grants.retain(|other| other.lock != *lock);
            events.push(Event::Freed { lock: lock.clone(), token: grant.token, cause: Cause::Released });
            Ok(Reply::Released)
        })
    }

    fn owned(&self, lease: LeaseId, owner: &OwnerId) -> Result<Ttl, Refusal> {
        match self.leases.iter().find(|(id, ..)| *id == lease) {
            None => Err(Refusal::LeaseNotFound { lease }),
            Some((_, other, _)) if other != owner => Err(Refusal::NotOwner { what: String::new() }),
            Some((.., ttl)) => Ok(*ttl),
        }
    }

    fn free_for(&self, lock: &LockName) -> Result<(), Refusal> {
        let Some(grant) = self.grants.iter().find(|grant| grant.lock == *lock) else {
            return Ok(());
        };
        let (_, owner, _) =
            self.leases.iter().find(|(id, ..)| *id == grant.lease).expect("the model's holders have leases");
        let holder = Holder {
            owner: owner.clone(),
            lease: grant.lease,
            token: grant.token,
            since_unix_ms: grant.since_unix_ms,
        };
        Err(Refusal::LockHeld { lock: lock.clone(), holder })
    }

    fn make_lease(&mut self, owner: &OwnerId, ttl: Ttl, events: &mut Vec<Event>) -> LeaseId {
        self.last_lease += 1;
        let lease = LeaseId(self.last_lease);
        self.leases.push((lease, owner.clone(), ttl));
        events.push(Event::LeaseCreated { lease, ttl });
        lease
    }

    fn grant(
        &mut self,
        lock: &LockName,
        lease: LeaseId,
        revision: u64,
        since_unix_ms: u64,
        request: &RequestId,
        events: &mut Vec<Event>,
    ) -> Reply {
        self.last_token += 1;
        let token = Token(self.last_token);
        let (.., ttl) = self.leases.iter().find(|(id, ..)| *id == lease).expect("the lease was checked");
        let (lock, request) = (lock.clone(), request.clone());
        self.answered.push((token, request.clone()));
        self.grants.push(ModelGrant { lock: lock.clone(), lease, token, revision, since_unix_ms, request });
        events.push(Event::Acquired { lock, lease, token });
        Reply::Granted { token, lease, ttl: *ttl, revision }
    }

    fn end(&mut self, lease: LeaseId, cause: Cause, events: &mut Vec<Event>) -> u64 {
        let mut freed: Vec<_> = self.grants.iter().filter(|grant| grant.lease == lease).cloned().collect();
        freed.sort_by(|a, b| a.lock.cmp(&b.lock));
        for grant in &freed {
            events.push(Event::Freed { lock: grant.lock.clone(), token: grant.token, cause });
        }
        events.push(Event::LeaseEnded { lease });
        self.grants.retain(|grant| grant.lease != lease);
        self.leases.retain(|(id, ..)| *id != lease);
        self.done.retain(|done| done.scope != Scope::Lease(lease));
        freed.len() as u64
    }

    fn add_member(&mut self, node: &NodeInfo) -> Result<Reply, Refusal> {
        let other = self.members.iter().find(|(_, m)| m.name == node.name && m.identity != node.identity);
        if let Some((_, other)) = other {
            return Err(Refusal::NodeNameTaken { name: node.name.clone(), by: other.identity });
        }
        if let Some((member, known)) = self.members.iter_mut().find(|(_, m)| m.identity == node.identity) {
            *known = node.clone();
            return Ok(Reply::MemberAdded { member: *member });
        }
        self.last_member += 1;
        self.members.push((MemberId(self.last_member), node.clone()));
        Ok(Reply::MemberAdded { member: MemberId(self.last_member) })
    }
}
