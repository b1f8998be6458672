//! A client that behaves as an SDK must: it counts its own validity (R6), retries with the same
//! request id, renews at a third of the time to live, and begins anew after it lost its lease. Some
//! are rude: they never release, or stop renewing.
//!
//! A client decides; the world carries its requests and brings the answers.

use std::collections::BTreeMap;

use lowkey_api::validity::Validity;
use lowkey_core::{
    AcquireWith, Command, GrantRef, LeaseId, LockName, OwnerId, Refusal, Reply, RequestId, Token, Ttl,
    mutants,
};
use lowkey_replica::{Failure, Request, Response};

use crate::clock::Clock;
use crate::plan::{MILLISECOND, Plan, SECOND};
use crate::random::Random;

/// How long a client waits for an answer before it asks again.
const ANSWER_WAIT_NANOS: u64 = 600 * MILLISECOND;
/// How often it asks before it gives up on a read or a renewal.
const ATTEMPTS_MAX: u32 = 20;
/// A time that no world reaches.
const NEVER: u64 = u64::MAX / 4;

pub(crate) struct Client {
    pub(crate) number: usize,
    /// Counts lives: after a crash it is another client.
    pub(crate) life: u64,
    pub(crate) owner: OwnerId,
    pub(crate) clock: Clock,
    pub(crate) paused_until: u64,
    /// Until then its requests are lost, and the answers to earlier ones are slow.
    pub(crate) muted_until: u64,
    pub(crate) rude: bool,
    /// It does not give a lease up when its count ran out, but believes again if it is renewed.
    pub(crate) patient: bool,
    /// It renews when the time to live is just about to end, or has just ended.
    pub(crate) lazy: bool,
    /// Its count ran out, and it has not been told yet what became of the lease.
    pub(crate) lapsed: bool,
    pub(crate) lease: Option<LeaseHeld>,
    pub(crate) hold: Option<Hold>,
    pub(crate) operation: Option<Operation>,
    /// Renewals under way: which send an answer answers.
    renewals: BTreeMap<u64, u64>,
    /// What it gave back last: a careless client gives it back once more.
    last_release: Option<(LeaseId, LockName, Token)>,
    next_renewal: u64,
    /// In the client's own time.
    next_idea: u64,
    last_operation: u64,
    node: usize,
    pub(crate) wakes_at: Option<u64>,
    pub(crate) done_in_quiet: u64,
    /// A script says what it does: it has no ideas, renewals or retries of its own. It counts its
    /// validity and takes in answers as any other.
    scripted: bool,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct LeaseHeld {
    pub(crate) id: LeaseId,
    pub(crate) ttl: Ttl,
    pub(crate) validity: Validity,
}

/// A lock that the client believes to hold, within its lease's validity.
#[derive(Clone, Debug)]
pub(crate) struct Hold {
    pub(crate) lock: LockName,
    pub(crate) token: Token,
    release_at: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct Operation {
    pub(crate) id: u64,
    pub(crate) request: Request,
    /// R6: in the client's own time, before the first send; a retry keeps it.
    pub(crate) first_sent: u64,
    /// In true time: for the checks alone.
    pub(crate) invoked_at: u64,
    ask_again_at: u64,
    attempts: u32,
}

/// What a client wants sent.
pub(crate) struct Send {
    pub(crate) node: usize,
    pub(crate) operation: u64,
    pub(crate) request: Request,
    /// It was sent before, and is still not answered.
    pub(crate) again: bool,
}

/// What came of an answer, for the checks.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// Nothing to judge.
    Nothing,
    /// The operation ended with this answer.
    Ended { operation: Box<Operation>, answer: Result<Response, Failure> },
    /// A renewal was acknowledged.
    Renewed { lease: LeaseId },
    /// A renewal was refused: there is no such lease.
    LeaseLost { lease: LeaseId, believed: bool },
}

impl Operation {
    /// It goes on its way once more; what it is worth still counts from the first time.
    pub(crate) fn ask_again(&mut self, now: u64) {
        self.attempts += 1;
        self.ask_again_at = now + ANSWER_WAIT_NANOS;
        if mutants::is_active("validity counted from the retry") {
            self.first_sent = now;
        }
    }
}

impl Client {
    pub(crate) fn new(number: usize, life: u64, clock: Clock, now: u64, random: &mut Random) -> Self {
        Self {
            number,
            life,
            owner: OwnerId::parse(&format!("c{number}-{life}")).expect("a short name is an owner"),
            paused_until: 0,
            muted_until: 0,
            rude: random.one_in(6),
            patient: random.one_in(2),
            lazy: random.one_in(6),
            lapsed: false,
            last_release: None,
            lease: None,
            hold: None,
            operation: None,
            renewals: BTreeMap::new(),
            next_renewal: 0,
            next_idea: clock.read(now) + random.between(1, SECOND),
            last_operation: 0,
            node: number,
            clock,
            wakes_at: None,
            done_in_quiet: 0,
            scripted: false,
        }
    }

    /// From now on it does what a script says.
    pub(crate) fn follow_script(&mut self) {
        self.scripted = true;
        self.rude = false;
        self.patient = false;
        self.lazy = false;
    }

    /// Begins what a script says: an operation whose belief counts from now. What was under way
    /// before is given up.
    pub(crate) fn begin(&mut self, request: Request, true_nanos: u64) -> u64 {
        self.last_operation += 1;
        match &request {
            Request::Renew { .. } => {
                self.renewals.insert(self.last_operation, self.clock.read(true_nanos));
                return self.last_operation;
            }
            // R9: belief ends before these are sent.
            Request::Command(Command::Release { .. }) => self.hold = None,
            Request::Command(Command::RevokeLease { .. }) => self.forget_lease(),
            _ => {}
        }
        self.operation = Some(Operation {
            id: self.last_operation,
            request,
            first_sent: self.clock.read(true_nanos),
            invoked_at: true_nanos,
            ask_again_at: NEVER,
            attempts: 1,
        });
        self.last_operation
    }

    /// A request id that it has not used yet.
    pub(crate) fn next_request_id(&self) -> RequestId {
        let id = self.last_operation + 1;
        RequestId::parse(&format!("{}-{id}", self.owner)).expect("a short id is an id")
    }

    /// True if it may act as holder at this true time.
    pub(crate) fn believes_at(&self, true_nanos: u64) -> bool {
        let now = self.clock.read(true_nanos);
        self.hold.is_some() && self.lease.is_some_and(|lease| lease.validity.holds_at(now))
    }

    /// True if its lease is valid by its own count.
    pub(crate) fn counts_on(&self, lease: LeaseId, true_nanos: u64) -> bool {
        let now = self.clock.read(true_nanos);
        self.lease.is_some_and(|held| held.id == lease && held.validity.holds_at(now))
    }

    /// Does what is due, and says what is to be sent.
    pub(crate) fn act(&mut self, true_nanos: u64, plan: &Plan, random: &mut Random) -> Vec<Send> {
        let now = self.clock.read(true_nanos);
        let mut sends = Vec::new();
        // What is no longer valid is lost, whatever the servers would say.
        if self.lease.is_some_and(|lease| !lease.validity.holds_at(now)) {
            match self.patient && !self.rude {
                true => self.lapsed = true,
                false => self.forget_lease(),
            }
        }
        if self.scripted {
            return sends;
        }
        if let Some(lease) = self.lease
            && now >= self.next_renewal
        {
            // A rude client does not care for every second of its leases.
            self.next_renewal = now + lease.ttl.nanos() / 3;
            if self.lazy {
                let early = 20 * MILLISECOND;
                self.next_renewal = now + lease.ttl.nanos() - early + random.between(0, 80) * MILLISECOND;
            } else if self.lapsed {
                // It must know, and whom it asked before may be down.
                self.next_renewal = now + 100 * MILLISECOND;
                self.node += random.between(1, 3) as usize;
            }
            if !(self.rude && lease.id.0.is_multiple_of(2)) {
                self.last_operation += 1;
                self.renewals.insert(self.last_operation, now);
                let request = Request::Renew { lease: lease.id };
                sends.push(Send { node: self.node, operation: self.last_operation, request, again: false });
            }
        }
        if let Some(operation) = &mut self.operation
            && now >= operation.ask_again_at
        {
            operation.ask_again(now);
            self.node += 1;
            let request = operation.request.clone();
            sends.push(Send { node: self.node, operation: operation.id, request, again: true });
            let is_read = matches!(operation.request, Request::GetLock { .. });
            if is_read && operation.attempts > ATTEMPTS_MAX {
                self.operation = None;
            }
        }
        if self.operation.is_none() && now >= self.next_idea {
            sends.extend(self.have_an_idea(now, true_nanos, plan, random));
        }
        sends
    }

    /// Begins something new.
    fn have_an_idea(&mut self, now: u64, true_nanos: u64, plan: &Plan, random: &mut Random) -> Option<Send> {
        self.next_idea = now + random.span(plan.think_nanos);
        self.last_operation += 1;
        let id = self.last_operation;
        let request_id = RequestId::parse(&format!("{}-{id}", self.owner)).expect("a short id is an id");
        let lock = lock_name(random.next() as usize % plan.locks);
        let ttl = Ttl::parse(*random.pick(&[1, 2, 3, 5])).expect("a usual time to live");
        let request = match (&self.hold, self.lease) {
            (_, Some(_)) if self.lapsed => return None,
            // A holder looks at locks, too.
            (Some(_), Some(_)) if random.one_in(3) => Request::GetLock { lock },
            (Some(hold), Some(lease))
                if random.one_in(4)
                    && let Some((of, lock, token)) = &self.last_release
                    && *lock == hold.lock
                    && *of == lease.id =>
            {
                let grant = GrantRef::Lease(lease.id);
                let (lock, token) = (lock.clone(), Some(*token));
                Request::Command(Command::Release { lock, grant, token, request: request_id })
            }
            (Some(hold), Some(lease)) => {
                if now < hold.release_at || self.rude {
                    return None;
                }
                self.last_release = Some((lease.id, hold.lock.clone(), hold.token));
                let (lock, token) = (hold.lock.clone(), Some(hold.token));
                // R9: belief ends before the release is sent.
                if !mutants::is_active("belief ends when the release is answered") {
                    self.hold = None;
                }
                let grant = GrantRef::Lease(lease.id);
                Request::Command(Command::Release { lock, grant, token, request: request_id })
            }
            (_, None) if random.one_in(3) => Request::Command(Command::Acquire {
                lock,
                owner: self.owner.clone(),
                with: AcquireWith::NewLease(ttl),
                since_unix_ms: 0,
                request: request_id,
            }),
            (_, None) => {
                Request::Command(Command::CreateLease { owner: self.owner.clone(), ttl, request: request_id })
            }
            (None, Some(lease)) => match random.between(0, 20) {
                0 => {
                    self.forget_lease();
                    let owner = self.owner.clone();
                    Request::Command(Command::RevokeLease { lease: lease.id, owner, request: request_id })
                }
                1..4 => Request::GetLock { lock },
                _ => Request::Command(Command::Acquire {
                    lock,
                    owner: self.owner.clone(),
                    with: AcquireWith::Lease(lease.id),
                    since_unix_ms: 0,
                    request: request_id,
                }),
            },
        };
        let ask_again_at = now + ANSWER_WAIT_NANOS;
        let operation = Operation {
            id,
            request: request.clone(),
            first_sent: now,
            invoked_at: true_nanos,
            ask_again_at,
            attempts: 1,
        };
        self.operation = Some(operation);
        Some(Send { node: self.node, operation: id, request, again: false })
    }

    /// What it asked for in an operation whose answer it still waits for.
    pub(crate) fn awaits(&self, id: u64) -> Option<Request> {
        match (&self.operation, self.lease) {
            (Some(operation), _) if operation.id == id => Some(operation.request.clone()),
            (_, Some(lease)) if self.renewals.contains_key(&id) => Some(Request::Renew { lease: lease.id }),
            _ => None,
        }
    }

    /// Takes in an answer.
    pub(crate) fn answered(
        &mut self,
        id: u64,
        answer: Result<Response, Failure>,
        true_nanos: u64,
        random: &mut Random,
    ) -> Outcome {
        let now = self.clock.read(true_nanos);
        if let Some(mut sent) = self.renewals.remove(&id) {
            if mutants::is_active("an answer is credited to the latest send") {
                sent = self.renewals.values().copied().fold(sent, u64::max);
            }
            if mutants::is_active("renewal counted from the reply") {
                sent = now;
            }
            return self.renewal_answered(sent, &answer, now);
        }
        let Some(operation) = self.operation.take_if(|operation| operation.id == id) else {
            return Outcome::Nothing;
        };
        match &answer {
            // Nothing was done, or it is not known what: the same request again, elsewhere.
            Err(Failure::NotLeader { .. } | Failure::OutcomeUnknown | Failure::Busy) => {
                let ask_again_at = now + random.between(5, 50) * MILLISECOND;
                self.operation = Some(Operation { ask_again_at, ..operation });
                return Outcome::Nothing;
            }
            Ok(Response::Applied(reply)) => self.succeeded(&operation, reply, now, random),
            Err(Failure::Refused(Refusal::LeaseNotFound { lease })) => {
                let lease = *lease;
                let believed = self.counts_on(lease, true_nanos);
                if self.lease.is_some_and(|held| held.id == lease) {
                    self.forget_lease();
                    return Outcome::LeaseLost { lease, believed };
                }
            }
            _ => {}
        }
        Outcome::Ended { operation: Box::new(operation), answer }
    }

    fn succeeded(&mut self, operation: &Operation, reply: &Reply, now: u64, random: &mut Random) {
        match (reply, &operation.request) {
            // R9: its belief ended before the release was sent.
            (Reply::Released, _) => self.hold = None,
            (Reply::LeaseCreated { lease, ttl }, _) => self.begin_lease(*lease, *ttl, operation, now),
            (
                Reply::Granted { token, lease, ttl, .. },
                Request::Command(Command::Acquire { lock, with, .. }),
            ) => {
                if matches!(with, AcquireWith::NewLease(_)) {
                    self.begin_lease(*lease, *ttl, operation, now);
                }
                // A grant is usable only within the validity of its lease, which it does not extend.
                if self.lease.is_some_and(|held| held.id == *lease && held.validity.holds_at(now)) {
                    let release_at = now + random.between(10, 3_000) * MILLISECOND;
                    self.hold = Some(Hold { lock: lock.clone(), token: *token, release_at });
                }
            }
            _ => {}
        }
    }

    fn begin_lease(&mut self, id: LeaseId, ttl: Ttl, operation: &Operation, now: u64) {
        let first_sent = match mutants::is_active("validity counted from the reply") {
            false => operation.first_sent,
            true => now,
        };
        let validity = Validity::made(first_sent, ttl.seconds());
        if validity.holds_at(now) {
            self.lease = Some(LeaseHeld { id, ttl, validity });
            self.lapsed = false;
            self.next_renewal = now + ttl.nanos() / 3;
            self.renewals.clear();
        }
    }

    fn renewal_answered(&mut self, sent: u64, answer: &Result<Response, Failure>, now: u64) -> Outcome {
        let Some(lease) = &mut self.lease else { return Outcome::Nothing };
        let (id, believed) = (lease.id, lease.validity.holds_at(now));
        match answer {
            // What has run out does not come back, unless its client waited for it.
            Ok(Response::Renewed { .. }) if believed || self.lapsed => {
                lease.validity.renewed(sent);
                self.lapsed = !lease.validity.holds_at(now);
                Outcome::Renewed { lease: id }
            }
            Err(Failure::Refused(Refusal::LeaseNotFound { lease: refused })) if *refused == id => {
                self.forget_lease();
                Outcome::LeaseLost { lease: id, believed }
            }
            Err(_) => {
                self.node += 1;
                self.next_renewal = self.next_renewal.min(now + 50 * MILLISECOND);
                Outcome::Nothing
            }
            Ok(_) => Outcome::Nothing,
        }
    }

    fn forget_lease(&mut self) {
        self.lease = None;
        self.lapsed = false;
        self.hold = None;
        self.renewals.clear();
    }

    /// Faults have ended: it goes to work at once, and behaves.
    pub(crate) fn become_quiet(&mut self, true_nanos: u64) {
        self.paused_until = true_nanos;
        self.muted_until = true_nanos;
        self.rude = false;
        self.lazy = false;
        self.next_idea = self.next_idea.min(self.clock.read(true_nanos));
        self.wakes_at = None;
    }

    /// When it next has something to do, in its own time.
    pub(crate) fn next_wake(&self) -> u64 {
        if self.scripted {
            return self.lease.map_or(NEVER, |lease| lease.validity.until_nanos());
        }
        let mut next = match &self.operation {
            Some(operation) => operation.ask_again_at,
            None => self.next_idea,
        };
        if let Some(lease) = &self.lease {
            next = next.min(self.next_renewal);
            if !self.lapsed {
                next = next.min(lease.validity.until_nanos());
            }
        }
        next
    }
}

pub(crate) fn lock_name(number: usize) -> LockName {
    LockName::parse(&format!("lock-{number}")).expect("a short name is a name")
}
