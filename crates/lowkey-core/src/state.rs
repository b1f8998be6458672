//! The replicated state, and the one function that changes it.
//!
//! Every command is first *checked*: [`State::check`] says what would be refused, and reads only. A
//! leader uses it to refuse without a log entry; `apply` uses the same check, so that the two can
//! never disagree. What passes the check cannot fail any more: it is carried out.
//!
//! Time is absent (R5). A lease exists until an entry ends it; that its time ran out is decided by
//! the leader and comes in as [`Command::Expire`].

use std::collections::{BTreeMap, BTreeSet};

use crate::command::{
    AcquireWith, Applied, Cause, Command, Event, GrantRef, Holder, NodeInfo, Refusal, Reply, Requester,
};
use crate::limits::{LEASE_REQUESTS_KEPT, LOCKS_PER_LEASE_MAX, REQUESTS_PER_LEASE_KEPT};
use crate::mutants;
use crate::name::{ClusterId, LeaseId, LockName, MemberId, OwnerId, RequestId, Token, Ttl};
use crate::recent::{Recent, Remembered};

/// Everything that the replicas of a group agree on.
///
/// Invariants:
/// - A lock is in `locks` exactly while it is held, and then by a lease in `leases` that lists it.
/// - No two grants ever have the same token; a later grant has the higher one.
/// - No lease id and no member id is ever given twice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    pub(crate) cluster: ClusterId,
    /// The index of the last entry that was applied; the revision of the state.
    pub(crate) revision: u64,
    pub(crate) last_token: Token,     // >= every token ever granted
    pub(crate) last_lease: LeaseId,   // >= every lease ever made
    pub(crate) last_member: MemberId, // >= every member ever registered
    pub(crate) leases: BTreeMap<LeaseId, Lease>,
    pub(crate) locks: BTreeMap<LockName, Grant>,
    pub(crate) members: BTreeMap<MemberId, NodeInfo>,
    /// Requests that made or ended a lease, and so cannot be remembered by one.
    pub(crate) lease_requests: Recent<(OwnerId, RequestId)>,
}

/// A client's presence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// Whom it belongs to.
    pub owner: OwnerId,
    /// How long it lives without renewal.
    pub ttl: Ttl,
    pub(crate) held: BTreeSet<LockName>,
    pub(crate) requests: Recent<RequestId>,
}

impl Lease {
    pub(crate) fn new(owner: OwnerId, ttl: Ttl) -> Self {
        Self { owner, ttl, held: BTreeSet::new(), requests: Recent::new(REQUESTS_PER_LEASE_KEPT) }
    }
}

/// One lease holding one lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The holder.
    pub lease: LeaseId,
    /// The proof.
    pub token: Token,
    /// The revision at which it was granted.
    pub revision: u64,
    /// The proposer's wall clock then, for display only.
    pub since_unix_ms: u64,
    /// The request that it answered.
    pub request: RequestId,
}

impl State {
    /// The state of a cluster in which nothing has happened yet.
    pub fn new(cluster: ClusterId) -> Self {
        Self {
            cluster,
            revision: 0,
            last_token: Token(0),
            last_lease: LeaseId(0),
            last_member: MemberId(0),
            leases: BTreeMap::new(),
            locks: BTreeMap::new(),
            members: BTreeMap::new(),
            lease_requests: Recent::new(LEASE_REQUESTS_KEPT),
        }
    }

    /// Carries out one committed entry of the log, at its index and in its term.
    ///
    /// # Panics
    /// If the entry is not later than all that were applied: a replica that replays out of order
    /// must stop.
    pub fn apply(&mut self, revision: u64, term: u64, command: &Command) -> Applied {
        self.advance(revision);
        match self.check(command) {
            Err(refusal) => Applied { reply: Err(refusal), events: Vec::new() },
            Ok(Some(reply)) => Applied { reply: Ok(reply), events: Vec::new() },
            Ok(None) => {
                let mut events = Vec::new();
                let reply = self.carry_out(term, command, &mut events);
                Applied { reply: Ok(reply), events }
            }
        }
    }

    /// Passes over an entry that holds no command: Raft's own entries have revisions too.
    ///
    /// # Panics
    /// If the entry is not later than all that were applied.
    pub fn advance(&mut self, revision: u64) {
        assert!(
            revision > self.revision,
            "entry {revision} was applied after entry {}: the log is out of order",
            self.revision
        );
        self.revision = revision;
    }

    /// What would become of a command now: refused, answered as before because its request is known
    /// (`Some`), or carried out (`None`).
    pub fn check(&self, command: &Command) -> Result<Option<Reply>, Refusal> {
        match command {
            Command::CreateLease { owner, request, .. } => self.known_lease_request(owner, request, command),
            Command::RevokeLease { lease, owner, request } => {
                if let Some(reply) = self.known_lease_request(owner, request, command)? {
                    return Ok(Some(reply));
                }
                self.owned_lease(*lease, owner)?;
                Ok(None)
            }
            Command::Acquire { lock, owner, with, request, .. } => {
                self.check_acquire(lock, owner, *with, request, command)
            }
            Command::Release { lock, grant, token, request } => {
                self.check_release(lock, grant, *token, request, command)
            }
            Command::Expire { .. } => Ok(None),
            Command::AddMember { node } => {
                let taken = self
                    .members
                    .values()
                    .find(|member| member.name == node.name && member.identity != node.identity);
                match taken {
                    Some(member) => {
                        Err(Refusal::NodeNameTaken { name: node.name.clone(), by: member.identity })
                    }
                    None => Ok(None),
                }
            }
        }
    }

    fn check_acquire(
        &self,
        lock: &LockName,
        owner: &OwnerId,
        with: AcquireWith,
        request: &RequestId,
        command: &Command,
    ) -> Result<Option<Reply>, Refusal> {
        let lease_id = match with {
            AcquireWith::NewLease(_) => {
                if let Some(reply) = self.known_lease_request(owner, request, command)? {
                    return Ok(Some(reply));
                }
                None
            }
            AcquireWith::Lease(lease_id)
                if !self.leases.contains_key(&lease_id)
                    && mutants::is_active("grant without a lease check") =>
            {
                None
            }
            AcquireWith::Lease(lease_id) => {
                let lease = self.owned_lease(lease_id, owner)?;
                if let Some(reply) = known(&lease.requests, request, request, command)? {
                    return Ok(Some(reply));
                }
                Some(lease_id)
            }
        };
        match self.locks.get(lock) {
            // The same lease asks again: the same grant. It is carried out all the same, because the
            // request must be remembered: a late copy of it may arrive when the lock is free.
            Some(grant) if Some(grant.lease) == lease_id => Ok(None),
            Some(_) if mutants::is_active("a held lock is granted again") => Ok(None),
            Some(grant) => Err(Refusal::LockHeld { lock: lock.clone(), holder: self.holder_of(grant) }),
            None => match lease_id {
                Some(lease_id) if self.leases[&lease_id].held.len() >= LOCKS_PER_LEASE_MAX => {
                    Err(Refusal::TooManyLocks { lease: lease_id })
                }
                _ => Ok(None),
            },
        }
    }

    fn check_release(
        &self,
        lock: &LockName,
        grant_ref: &GrantRef,
        token: Option<Token>,
        request: &RequestId,
        command: &Command,
    ) -> Result<Option<Reply>, Refusal> {
        if let GrantRef::Lease(lease) | GrantRef::Request(_, Requester::Lease(lease)) = grant_ref
            && let Some(lease) = self.leases.get(lease)
            && let Some(reply) = known(&lease.requests, request, request, command)?
        {
            return Ok(Some(reply));
        }
        let Some(grant) = self.locks.get(lock) else {
            return Err(Refusal::LockNotFound { lock: lock.clone() });
        };
        let meant = match grant_ref {
            GrantRef::Lease(lease) => grant.lease == *lease,
            GrantRef::Request(acquire, requester) => self.answers(grant, acquire, requester),
        };
        if !meant {
            let what = format!(
                "lock {lock} is held by lease {}, with another grant than the one that was named",
                grant.lease
            );
            return Err(Refusal::NotOwner { what });
        }
        // A release that names no lease is remembered by the lease that held the grant.
        if let Some(reply) = known(&self.leases[&grant.lease].requests, request, request, command)? {
            return Ok(Some(reply));
        }
        match token {
            Some(given) if given != grant.token && !mutants::is_active("release without token check") => {
                Err(Refusal::StaleToken { lock: lock.clone(), given, current: grant.token })
            }
            _ => Ok(None),
        }
    }

    /// Carries out what passed the check and is not a repetition.
    fn carry_out(&mut self, term: u64, command: &Command, events: &mut Vec<Event>) -> Reply {
        match command {
            Command::CreateLease { owner, ttl, request } => {
                let lease = self.create_lease(owner, *ttl, events);
                let reply = Reply::LeaseCreated { lease, ttl: *ttl };
                self.remember_lease_request(owner, request, command, &reply);
                reply
            }
            Command::RevokeLease { lease, owner, request } => {
                let released = self.end_lease(*lease, Cause::Revoked, events);
                let reply = Reply::LeaseRevoked { released };
                self.remember_lease_request(owner, request, command, &reply);
                reply
            }
            Command::Acquire { lock, owner, with, since_unix_ms, request } => {
                let lease_id = match with {
                    AcquireWith::Lease(lease_id) => *lease_id,
                    AcquireWith::NewLease(ttl) => self.create_lease(owner, *ttl, events),
                };
                let reply = match self.locks.get(lock) {
                    Some(grant) => self.granted(grant.lease, grant.token, grant.revision),
                    None => self.grant(lock, lease_id, *since_unix_ms, request, events),
                };
                match with {
                    AcquireWith::Lease(lease_id) => self.remember(*lease_id, request, command, &reply),
                    AcquireWith::NewLease(_) => self.remember_lease_request(owner, request, command, &reply),
                }
                reply
            }
            Command::Release { lock, request, .. } => {
                let lease_id = self.free(lock, Cause::Released, events);
                let lease = self.leases.get_mut(&lease_id).expect("a holder's lease exists");
                lease.held.remove(lock);
                self.remember(lease_id, request, command, &Reply::Released);
                Reply::Released
            }
            Command::Expire { leases, decided_term } => {
                // R4: a decision counts only in the term in which it was made. A later leader may
                // have re-armed the lease (R3) and acknowledged renewals since.
                if *decided_term != term && !mutants::is_active("expiry without the term check") {
                    return Reply::Expired { count: 0 };
                }
                let mut count = 0;
                for lease in leases {
                    // It may have been revoked between decision and entry.
                    if self.leases.contains_key(lease) {
                        self.end_lease(*lease, Cause::Expired, events);
                        count += 1;
                    }
                }
                Reply::Expired { count }
            }
            Command::AddMember { node } => Reply::MemberAdded { member: self.add_member(node) },
        }
    }

    fn create_lease(&mut self, owner: &OwnerId, ttl: Ttl, events: &mut Vec<Event>) -> LeaseId {
        self.last_lease = LeaseId(self.last_lease.0 + 1);
        let lease = self.last_lease;
        self.leases.insert(lease, Lease::new(owner.clone(), ttl));
        events.push(Event::LeaseCreated { lease, ttl });
        lease
    }

    fn grant(
        &mut self,
        lock: &LockName,
        lease_id: LeaseId,
        since_unix_ms: u64,
        request: &RequestId,
        events: &mut Vec<Event>,
    ) -> Reply {
        self.last_token = match mutants::is_active("token from memory instead of state") {
            false => Token(self.last_token.0 + 1),
            true => Token(mutants::count_in_memory()),
        };
        let token = self.last_token;
        let lease = self.leases.get_mut(&lease_id).expect("a grant hangs on a lease that exists");
        lease.held.insert(lock.clone());
        let grant = Grant {
            lease: lease_id,
            token,
            revision: self.revision,
            since_unix_ms,
            request: request.clone(),
        };
        let before = self.locks.insert(lock.clone(), grant);
        assert!(before.is_none(), "lock {lock} was granted while it was held");
        events.push(Event::Acquired { lock: lock.clone(), lease: lease_id, token });
        self.granted(lease_id, token, self.revision)
    }

    /// Ends a lease with all that hangs on it, and says how many locks that were.
    fn end_lease(&mut self, lease_id: LeaseId, cause: Cause, events: &mut Vec<Event>) -> u64 {
        let lease = self.leases.remove(&lease_id).expect("a lease that ends exists");
        for lock in &lease.held {
            self.free(lock, cause, events);
        }
        events.push(Event::LeaseEnded { lease: lease_id });
        lease.held.len() as u64
    }

    /// Takes a lock from its holder, and says whose lease that was.
    fn free(&mut self, lock: &LockName, cause: Cause, events: &mut Vec<Event>) -> LeaseId {
        let grant = self.locks.remove(lock).expect("a lock that is freed was held");
        events.push(Event::Freed { lock: lock.clone(), token: grant.token, cause });
        grant.lease
    }

    fn add_member(&mut self, node: &NodeInfo) -> MemberId {
        let known = self.members.iter().find(|(_, member)| member.identity == node.identity);
        let member = match known {
            Some((member, _)) => *member,
            None => {
                self.last_member = MemberId(self.last_member.0 + 1);
                self.last_member
            }
        };
        self.members.insert(member, node.clone());
        member
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

    fn granted(&self, lease: LeaseId, token: Token, revision: u64) -> Reply {
        Reply::Granted { token, lease, ttl: self.leases[&lease].ttl, revision }
    }

    fn owned_lease(&self, lease_id: LeaseId, owner: &OwnerId) -> Result<&Lease, Refusal> {
        let lease = self.leases.get(&lease_id).ok_or(Refusal::LeaseNotFound { lease: lease_id })?;
        if lease.owner != *owner {
            let what = format!("lease {lease_id} belongs to another owner than {owner}");
            return Err(Refusal::NotOwner { what });
        }
        Ok(lease)
    }

    fn known_lease_request(
        &self,
        owner: &OwnerId,
        request: &RequestId,
        command: &Command,
    ) -> Result<Option<Reply>, Refusal> {
        known(&self.lease_requests, &(owner.clone(), request.clone()), request, command)
    }

    fn remember(&mut self, lease: LeaseId, request: &RequestId, command: &Command, reply: &Reply) {
        if mutants::is_active("requests of a lease are not remembered") {
            return;
        }
        let lease = self.leases.get_mut(&lease).expect("a request is remembered by a lease that exists");
        let remembered = Remembered { fingerprint: command.fingerprint(), reply: reply.clone() };
        lease.requests.insert(request.clone(), remembered);
    }

    fn remember_lease_request(
        &mut self,
        owner: &OwnerId,
        request: &RequestId,
        command: &Command,
        reply: &Reply,
    ) {
        if mutants::is_active("requests that make leases are not remembered") {
            return;
        }
        let remembered = Remembered { fingerprint: command.fingerprint(), reply: reply.clone() };
        self.lease_requests.insert((owner.clone(), request.clone()), remembered);
    }

    fn holder_of(&self, grant: &Grant) -> Holder {
        Holder {
            owner: self.leases[&grant.lease].owner.clone(),
            lease: grant.lease,
            token: grant.token,
            since_unix_ms: grant.since_unix_ms,
        }
    }
}

/// The reply to a request that had its effect already; a refusal if that was another operation.
fn known<K: Ord + Clone>(
    table: &Recent<K>,
    key: &K,
    request: &RequestId,
    command: &Command,
) -> Result<Option<Reply>, Refusal> {
    match table.get(key) {
        None => Ok(None),
        Some(remembered) if remembered.fingerprint == command.fingerprint() => {
            Ok(Some(remembered.reply.clone()))
        }
        Some(_) => Err(Refusal::RequestReused { request: request.clone() }),
    }
}

/// What may be read.
impl State {
    /// The cluster's id.
    pub fn cluster(&self) -> ClusterId {
        self.cluster
    }

    /// The index of the last entry that was applied.
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// The highest token ever granted; 0 before the first.
    pub fn last_token(&self) -> Token {
        self.last_token
    }

    /// A lease that exists.
    pub fn lease(&self, lease: LeaseId) -> Option<&Lease> {
        self.leases.get(&lease)
    }

    /// Every lease, by id.
    pub fn leases(&self) -> impl ExactSizeIterator<Item = (LeaseId, &Lease)> {
        self.leases.iter().map(|(id, lease)| (*id, lease))
    }

    /// How many locks are held.
    pub fn lock_count(&self) -> usize {
        self.locks.len()
    }

    /// Who holds a lock.
    pub fn holder(&self, lock: &LockName) -> Option<Holder> {
        self.locks.get(lock).map(|grant| self.holder_of(grant))
    }

    /// Every held lock with its grant, by name.
    pub fn locks(&self) -> impl ExactSizeIterator<Item = (&LockName, &Grant)> {
        self.locks.iter()
    }

    /// Every registered node, by id.
    pub fn members(&self) -> impl ExactSizeIterator<Item = (MemberId, &NodeInfo)> {
        self.members.iter().map(|(id, node)| (*id, node))
    }

    /// A registered node.
    pub fn member(&self, member: MemberId) -> Option<&NodeInfo> {
        self.members.get(&member)
    }
}
