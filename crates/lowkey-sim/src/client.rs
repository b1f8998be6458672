//! A client that behaves as an SDK must: it counts its own validity (R6, R7), retries with the same
//! request id, renews at a third of the time to live, and begins anew after it lost its lease. Some
//! are rude: they hold for long, or stop renewing.
//!
//! A client decides; the world carries its requests and brings the answers. Here stands what it knows
//! and how it takes answers in; `client/ideas.rs` says what it asks for.

mod ideas;

use std::collections::BTreeMap;

use lowkey_api::validity::{Validity, held_until, valid_until_after_wait};
use lowkey_core::{
    AcquireWith, Command, LeaseId, LockName, MaxHold, Mode, OwnerId, Refusal, Reply, RequestId, Scope, Token,
    Ttl, WaitTime, mutants,
};
use lowkey_replica::{Failure, Request, Response};

use crate::claim::PlainClaim;
use crate::clock::SimClock;
use crate::plan::{MILLISECOND, SECOND};
use crate::random::Random;

/// How long a client waits for an answer before it asks again; where it waits for a lock, this much longer
/// than that.
const ANSWER_WAIT_NANOS: u64 = 600 * MILLISECOND;
/// A time that no world reaches.
const NEVER: u64 = u64::MAX / 4;

pub(crate) struct SimClient {
    pub(crate) number: usize,
    /// The group whose locks it uses.
    pub(crate) group: usize,
    /// Counts lives: after a crash it is another client.
    pub(crate) life: u64,
    pub(crate) owner: OwnerId,
    pub(crate) clock: SimClock,
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
    /// All faults have ended: it waits for nothing very long.
    quiet: bool,
    pub(crate) lease: Option<LeaseHeld>,
    /// What it believes to hold, within its lease's validity.
    pub(crate) holds: Vec<Hold>,
    pub(crate) operation: Option<ClientOperation>,
    /// Renewals under way: which send an answer answers.
    renewals: BTreeMap<u64, u64>,
    /// A renewal was told that its lease holds something else than it believes: it reads the lease.
    wants_reading: bool,
    /// The reading under way.
    reading: Option<Reading>,
    /// Acquires that it gave up.
    given_up: Vec<RequestId>,
    /// Grants of its lease that it does not want, found by reading it.
    orphans: Vec<(LockName, Token)>,
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
    pub(crate) mode: Mode,
    pub(crate) scope: Scope,
    /// In its own time: where the grant has a limit, it believes no longer, whatever becomes of its lease.
    until: Option<u64>,
    release_at: u64,
}

/// A look at what its lease holds.
#[derive(Clone, Debug)]
struct Reading {
    id: u64,
    lease: LeaseId,
    /// What it believed in before it asked.
    believed: Vec<Token>,
}

#[derive(Clone, Debug)]
pub(crate) struct ClientOperation {
    pub(crate) id: u64,
    pub(crate) request: Request,
    /// R6: in the client's own time, before the first send; a retry keeps it.
    pub(crate) first_sent: u64,
    /// In true time: for the checks alone.
    pub(crate) invoked_at: u64,
    ask_again_at: u64,
    /// When it loses patience with a wait.
    gives_up_at: u64,
    attempts: u32,
}

/// What a client wants done.
pub(crate) enum Send {
    /// A request is to be sent.
    Request {
        node: usize,
        operation: u64,
        request: Request,
        /// It was sent before, and is still not answered.
        again: bool,
    },
    /// A call is dropped: what the client asked this node is not waited for any more.
    Leave { node: usize, operation: u64 },
}

/// What came of an answer, for the checks.
#[derive(Debug)]
pub(crate) enum ClientOutcome {
    /// Nothing to judge.
    Nothing,
    /// The operation ended with this answer.
    Ended { operation: Box<ClientOperation>, answer: Result<Response, Failure> },
    /// A renewal was acknowledged.
    Renewed { lease: LeaseId },
    /// A renewal was refused: there is no such lease.
    LeaseLost { lease: LeaseId, believed: bool },
    /// Its lease does not hold these any more, and it believed that it did.
    HoldsLost { tokens: Vec<Token> },
}

impl ClientOperation {
    /// Something begins now; what it is worth counts from now.
    fn new(id: u64, request: Request, first_sent: u64, invoked_at: u64) -> Self {
        let wait = wait_of(&request).map_or(0, WaitTime::nanos);
        let ask_again_at = first_sent + wait + ANSWER_WAIT_NANOS;
        Self { id, request, first_sent, invoked_at, ask_again_at, gives_up_at: NEVER, attempts: 1 }
    }

    /// It goes on its way once more; what it is worth still counts from the first time.
    pub(crate) fn ask_again(&mut self, now: u64) {
        self.attempts += 1;
        self.ask_again_at = now + wait_of(&self.request).map_or(0, WaitTime::nanos) + ANSWER_WAIT_NANOS;
        if mutants::VALIDITY_COUNTED_FROM_THE_RETRY.is_active() {
            self.first_sent = now;
        }
    }
}

/// Until when a grant with a limit is believed in: as R7 counts the time of a lease that a wait made.
fn hold_until(limit: MaxHold, operation: &ClientOperation, waited_ms: u64, now: u64) -> u64 {
    let first_sent = match mutants::A_HOLD_COUNTS_FROM_THE_REPLY.is_active() {
        false => operation.first_sent,
        true => now,
    };
    let waited_ms = i64::try_from(waited_ms).unwrap_or(i64::MAX);
    held_until(first_sent, waited_ms, limit.seconds().into())
}

/// How long a request would wait for a lock, if it would.
pub(crate) fn wait_of(request: &Request) -> Option<WaitTime> {
    match request {
        Request::Wait { wait, .. } => Some(*wait),
        _ => None,
    }
}

/// What a request asks to have changed.
pub(crate) fn command_of(request: &Request) -> Option<&Command> {
    match request {
        Request::Command(command) | Request::Wait { command, .. } => Some(command),
        Request::Renew { .. }
        | Request::RenewMany(_)
        | Request::Read(_)
        | Request::ReadStale(_)
        | Request::Transfer { .. } => None,
    }
}

impl SimClient {
    pub(crate) fn new(
        number: usize,
        group: usize,
        life: u64,
        clock: SimClock,
        now: u64,
        random: &mut Random,
    ) -> Self {
        Self {
            number,
            group,
            life,
            owner: OwnerId::parse(&format!("c{number}-{life}")).expect("a short name is an owner"),
            paused_until: 0,
            muted_until: 0,
            rude: random.one_in(6),
            patient: random.one_in(2),
            lazy: random.one_in(6),
            lapsed: false,
            quiet: false,
            last_release: None,
            lease: None,
            holds: Vec::new(),
            operation: None,
            renewals: BTreeMap::new(),
            wants_reading: false,
            reading: None,
            given_up: Vec::new(),
            orphans: Vec::new(),
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
        let now = self.clock.read(true_nanos);
        match &request {
            Request::Renew { .. } => {
                self.renewals.insert(self.last_operation, now);
                return self.last_operation;
            }
            // R9: belief ends before these are sent.
            Request::Command(Command::Release { lock, .. }) => self.stop_believing_in(&lock.clone()),
            Request::Command(Command::RevokeLease { .. }) => self.forget_lease(),
            _ => {}
        }
        let operation = ClientOperation::new(self.last_operation, request, now, true_nanos);
        self.operation = Some(ClientOperation { ask_again_at: NEVER, ..operation });
        self.last_operation
    }

    /// A request id that it has not used yet.
    pub(crate) fn next_request_id(&self) -> RequestId {
        let id = self.last_operation + 1;
        RequestId::parse(&format!("{}-{id}", self.owner)).expect("a short id is an id")
    }

    /// True if it may act as holder of something at this true time.
    pub(crate) fn believes_at(&self, true_nanos: u64) -> bool {
        self.beliefs_at(true_nanos).next().is_some()
    }

    /// What it may act on at this true time.
    pub(crate) fn beliefs_at(&self, true_nanos: u64) -> impl Iterator<Item = (&Hold, PlainClaim)> {
        let lease = self.lease.filter(|lease| self.counts_on(lease.id, true_nanos)).map(|lease| lease.id);
        let now = self.clock.read(true_nanos);
        let is_in_time = move |hold: &&Hold| hold.until.is_none_or(|until| now < until);
        self.holds.iter().filter(move |_| lease.is_some()).filter(is_in_time).map(move |hold| {
            (hold, PlainClaim { lock: hold.lock.clone(), lease, mode: hold.mode, scope: hold.scope })
        })
    }

    /// True if its lease is valid by its own count.
    pub(crate) fn counts_on(&self, lease: LeaseId, true_nanos: u64) -> bool {
        let now = self.clock.read(true_nanos);
        self.lease.is_some_and(|held| held.id == lease && held.validity.holds_at(now))
    }

    /// What it asked for in an operation whose answer it still waits for.
    pub(crate) fn awaits(&self, id: u64) -> Option<Request> {
        match (&self.operation, self.lease) {
            (Some(operation), _) if operation.id == id => Some(operation.request.clone()),
            (_, Some(lease)) if self.renewals.contains_key(&id) => {
                Some(Request::Renew { lease: lease.id, holds: None })
            }
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
    ) -> ClientOutcome {
        let now = self.clock.read(true_nanos);
        if let Some(sent) = self.renewals.remove(&id) {
            let sent = match mutants::AN_ANSWER_IS_CREDITED_TO_THE_LATEST_SEND.is_active() {
                false => sent,
                true => self.renewals.values().copied().fold(sent, u64::max),
            };
            let sent = if mutants::RENEWAL_COUNTED_FROM_THE_REPLY.is_active() { now } else { sent };
            return self.renewal_answered(sent, &answer, now);
        }
        if let Some(reading) = self.reading.take_if(|reading| reading.id == id) {
            return self.lease_read(&reading, &answer);
        }
        let Some(operation) = self.operation.take_if(|operation| operation.id == id) else {
            return ClientOutcome::Nothing;
        };
        match &answer {
            // Nothing was done, or it is not known what, or the place is kept: the same request again,
            // elsewhere.
            Err(
                Failure::NotLeader { .. }
                | Failure::Interrupted { .. }
                | Failure::OutcomeUnknown
                | Failure::Busy,
            ) => {
                let ask_again_at = now + random.between(5, 50) * MILLISECOND;
                self.operation = Some(ClientOperation { ask_again_at, ..operation });
                return ClientOutcome::Nothing;
            }
            Ok(Response::Applied(reply)) => self.succeeded(&operation, reply, 0, now, random),
            Ok(Response::GrantedAfter { reply, waited_ms }) => {
                self.succeeded(&operation, reply, *waited_ms, now, random);
            }
            Err(Failure::Refused(Refusal::LeaseNotFound { lease })) => {
                let lease = *lease;
                let believed = self.counts_on(lease, true_nanos);
                if self.lease.is_some_and(|held| held.id == lease) {
                    self.forget_lease();
                    return ClientOutcome::LeaseLost { lease, believed };
                }
            }
            _ => {}
        }
        ClientOutcome::Ended { operation: Box::new(operation), answer }
    }

    /// Compares what its lease holds with what it believes: as the SDK's `beliefs.rs` does. What it believed in
    /// before it asked, and is not there, is lost. What is there and nobody believes in may be granted by an answer
    /// that is under way: only what was granted to an acquire that it gave up is given back.
    fn lease_read(&mut self, reading: &Reading, answer: &Result<Response, Failure>) -> ClientOutcome {
        let Ok(Response::Lease { grants, .. }) = answer else { return ClientOutcome::Nothing };
        if self.lease.is_none_or(|lease| lease.id != reading.lease) {
            return ClientOutcome::Nothing;
        }
        let is_there = |token: Token| grants.iter().any(|grant| grant.token == token);
        let is_lost = |hold: &Hold| reading.believed.contains(&hold.token) && !is_there(hold.token);
        let tokens = self.holds.iter().filter(|hold| is_lost(hold)).map(|hold| hold.token).collect();
        self.holds.retain(|hold| !is_lost(hold));
        let asks_for = match self.operation.as_ref().and_then(|operation| command_of(&operation.request)) {
            Some(Command::Acquire { lock, .. }) => Some(lock),
            _ => None,
        };
        let orphans = grants.iter().filter(|grant| {
            let is_unknown = self.holds.iter().all(|hold| hold.token != grant.token);
            let is_given_up = self.given_up.contains(&grant.request) && asks_for != Some(&grant.lock);
            is_unknown && (is_given_up || mutants::AN_ACQUIRE_UNDER_WAY_IS_RELEASED.is_active())
        });
        let orphans: Vec<_> = orphans.map(|grant| (grant.lock.clone(), grant.token)).collect();
        self.orphans.extend(orphans);
        ClientOutcome::HoldsLost { tokens }
    }

    fn succeeded(
        &mut self,
        operation: &ClientOperation,
        reply: &Reply,
        waited_ms: u64,
        now: u64,
        random: &mut Random,
    ) {
        match (reply, command_of(&operation.request)) {
            // R9: its belief ended before the release was sent.
            (Reply::Released, Some(Command::Release { lock, .. })) => self.stop_believing_in(lock),
            (Reply::LeaseCreated { lease, ttl }, _) => self.begin_lease(*lease, *ttl, operation, 0, now),
            (
                Reply::Granted { token, lease, ttl, .. },
                Some(Command::Acquire { lock, with, mode, scope, max_hold, .. }),
            ) => {
                let until = max_hold.map(|limit| hold_until(limit, operation, waited_ms, now));
                if matches!(with, AcquireWith::NewLease(_)) {
                    self.begin_lease(*lease, *ttl, operation, waited_ms, now);
                }
                let Some(held) = self.lease.as_mut().filter(|held| held.id == *lease) else { return };
                if mutants::A_GRANT_EXTENDS_ITS_LEASE.is_active() {
                    held.validity.renewed(operation.first_sent);
                }
                // R6, R7: a grant is usable only within the validity of its lease, which it does not
                // extend. A client whose count ran out meanwhile renews first.
                // An earlier grant of the same lock is over, or there would be no other.
                self.holds.retain(|hold| hold.lock != *lock || hold.token == *token);
                let known = self.holds.iter_mut().find(|hold| hold.lock == *lock);
                let is_new = known.is_none();
                // A client that knows no better counts from whatever request was answered.
                if let Some(known) = known {
                    known.until = until;
                }
                if is_new && (self.lapsed || held.validity.holds_at(now)) {
                    let longest = *random.pick(&[60, 500, 3_000]);
                    let patience = if self.rude { 10 } else { 1 };
                    let release_at = now + random.between(10, longest) * patience * MILLISECOND;
                    let (lock, token, mode, scope) = (lock.clone(), *token, *mode, *scope);
                    self.holds.push(Hold { lock, token, mode, scope, until, release_at });
                }
            }
            _ => {}
        }
    }

    fn begin_lease(&mut self, id: LeaseId, ttl: Ttl, operation: &ClientOperation, waited_ms: u64, now: u64) {
        let first_sent = match mutants::VALIDITY_COUNTED_FROM_THE_REPLY.is_active() {
            false => operation.first_sent,
            true => now,
        };
        let waited_ms = i64::try_from(waited_ms).unwrap_or(i64::MAX);
        // R7: the time to live began when the wait ended: what a lease of no length would be worth.
        let begun = match mutants::THE_WHOLE_WAIT_IS_COUNTED.is_active() {
            false => valid_until_after_wait(first_sent, waited_ms, 0),
            true => first_sent + waited_ms as u64 * MILLISECOND,
        };
        let validity = Validity::made(begun, ttl.seconds());
        let is_valid = validity.holds_at(now);
        if is_valid || (self.patient && !self.rude) {
            self.lease = Some(LeaseHeld { id, ttl, validity });
            self.holds.clear();
            self.reading = None;
            self.orphans.clear();
            self.lapsed = !is_valid;
            self.next_renewal = if is_valid { now + ttl.nanos() / 3 } else { now };
            self.renewals.clear();
        }
    }

    fn renewal_answered(&mut self, sent: u64, answer: &Result<Response, Failure>, now: u64) -> ClientOutcome {
        let Some(lease) = &mut self.lease else { return ClientOutcome::Nothing };
        let (id, believed) = (lease.id, lease.validity.holds_at(now));
        match answer {
            // What has run out does not come back, unless its client waited for it.
            Ok(Response::Renewed { holds_differ, .. }) if believed || self.lapsed => {
                self.wants_reading |= *holds_differ;
                lease.validity.renewed(sent);
                self.lapsed = !lease.validity.holds_at(now);
                ClientOutcome::Renewed { lease: id }
            }
            Err(Failure::Refused(Refusal::LeaseNotFound { lease: refused })) if *refused == id => {
                self.forget_lease();
                ClientOutcome::LeaseLost { lease: id, believed }
            }
            Err(_) => {
                self.node += 1;
                self.next_renewal = self.next_renewal.min(now + 50 * MILLISECOND);
                ClientOutcome::Nothing
            }
            Ok(_) => ClientOutcome::Nothing,
        }
    }

    fn stop_believing_in(&mut self, lock: &LockName) {
        self.holds.retain(|hold| hold.lock != *lock);
    }

    fn forget_lease(&mut self) {
        self.lease = None;
        self.lapsed = false;
        self.holds.clear();
        self.renewals.clear();
        self.wants_reading = false;
        self.reading = None;
        self.orphans.clear();
    }

    /// Faults have ended: it goes to work at once, and behaves.
    pub(crate) fn become_quiet(&mut self, true_nanos: u64) {
        self.paused_until = true_nanos;
        self.muted_until = true_nanos;
        self.rude = false;
        self.lazy = false;
        self.quiet = true;
        self.next_idea = self.next_idea.min(self.clock.read(true_nanos));
        self.wakes_at = None;
    }

    /// When it next has something to do, in its own time.
    pub(crate) fn next_wake(&self) -> u64 {
        if self.scripted {
            return self.lease.map_or(NEVER, |lease| lease.validity.until_nanos());
        }
        let mut next = match &self.operation {
            Some(operation) => operation.ask_again_at.min(operation.gives_up_at),
            None => self.next_idea,
        };
        if self.wants_reading || !self.orphans.is_empty() {
            return 0;
        }
        if let Some(lease) = &self.lease {
            next = next.min(self.next_renewal);
            if !self.lapsed {
                next = next.min(lease.validity.until_nanos());
            }
        }
        next
    }
}
