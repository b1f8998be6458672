//! What a client asks for, when, and where: all that chance decides about it.

use lowkey_core::{
    AcquireWith, Command, GrantRef, Holds, LockName, MaxHold, Mode, NamePrefix, Requester, Scope, Token, Ttl,
    Value, WaitTime, mutants,
};
use lowkey_replica::{Query, Request};

use super::{ClientOperation, Reading, Send, SimClient};
use crate::plan::{MILLISECOND, WorldPlan};
use crate::random::Random;

/// How often it asks before it gives up on a read.
const ATTEMPTS_MAX: u32 = 20;
/// Locks that it holds at a time.
const HOLDS_MAX: usize = 2;
/// How long it waits for a lock, in milliseconds: from hardly at all to longer than its lease lives.
const WAITS_MS: [i64; 7] = [1, 15, 200, 700, 1_500, 3_000, 8_000];
/// The longest wait of a client when all is quiet.
pub(crate) const QUIET_WAIT_MS: i64 = 1_500;

impl SimClient {
    /// Does what is due, and says what is to be sent.
    pub(crate) fn act(&mut self, true_nanos: u64, plan: &WorldPlan, random: &mut Random) -> Vec<Send> {
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
        sends.extend(self.renew_if_due(now, random));
        self.compare_holds(&mut sends);
        if self.operation.as_ref().is_some_and(|operation| now >= operation.gives_up_at) {
            self.give_up(now, true_nanos, random, &mut sends);
        }
        if self.operation.as_ref().is_some_and(|operation| now >= operation.ask_again_at) {
            self.ask_again(now, random, &mut sends);
        }
        if self.operation.is_none() && now >= self.next_idea {
            sends.extend(self.have_an_idea(now, true_nanos, plan, random));
        }
        sends
    }

    fn renew_if_due(&mut self, now: u64, random: &mut Random) -> Option<Send> {
        let lease = self.lease.filter(|_| now >= self.next_renewal)?;
        self.next_renewal = now + lease.ttl.nanos() / 3;
        if self.lazy {
            let early = 20 * MILLISECOND;
            self.next_renewal = now + lease.ttl.nanos() - early + random.between(0, 80) * MILLISECOND;
        } else if self.lapsed {
            // It must know, and whom it asked before may be down.
            self.next_renewal = now + 100 * MILLISECOND;
            self.node += random.between(1, 3) as usize;
        }
        // A rude client does not care for every second of its leases.
        if self.rude && lease.id.0.is_multiple_of(2) {
            return None;
        }
        self.last_operation += 1;
        self.renewals.insert(self.last_operation, now);
        let holds = Some(Holds::of(self.holds.iter().map(|hold| hold.token)));
        let request = Request::Renew { lease: lease.id, holds };
        Some(Send::Request { node: self.node, operation: self.last_operation, request, again: false })
    }

    /// Reads its lease if that holds something else than it believes, and gives back what it found and does not want.
    fn compare_holds(&mut self, sends: &mut Vec<Send>) {
        let Some(lease) = self.lease.map(|lease| lease.id) else {
            self.wants_reading = false;
            return self.orphans.clear();
        };
        for (lock, token) in std::mem::take(&mut self.orphans) {
            let request = self.release(lock, GrantRef::Lease(lease), Some(token));
            self.last_operation += 1;
            sends.push(Send::Request {
                node: self.node,
                operation: self.last_operation,
                request,
                again: false,
            });
        }
        // One that is under way is given up: its answer may be lost.
        if std::mem::take(&mut self.wants_reading) {
            self.last_operation += 1;
            let (id, believed) = (self.last_operation, self.holds.iter().map(|hold| hold.token).collect());
            self.reading = Some(Reading { id, lease, believed });
            let request = Request::Read(Query::Lease { lease, after: None, count_max: 100 });
            sends.push(Send::Request { node: self.node, operation: id, request, again: false });
        }
    }

    /// The same request once more, at another node: a wait keeps its place.
    fn ask_again(&mut self, now: u64, random: &mut Random, sends: &mut Vec<Send>) {
        let Some(operation) = &mut self.operation else { return };
        let is_read = matches!(operation.request, Request::Read(_) | Request::ReadStale(_));
        if is_read && operation.attempts > ATTEMPTS_MAX {
            self.operation = None;
            return;
        }
        if random.one_in(2) {
            sends.push(Send::Leave { node: self.node, operation: operation.id });
        }
        if let Request::Wait { wait, .. } = &mut operation.request {
            let spent_ms = (now.saturating_sub(operation.first_sent) / MILLISECOND) as i64;
            let left = (wait.milliseconds() - spent_ms).max(random.between(0, 300) as i64);
            let ms = if self.quiet { left.min(QUIET_WAIT_MS) } else { left };
            *wait = WaitTime::parse(ms).expect("a part of a wait is a wait");
        }
        operation.ask_again(now);
        self.node += 1;
        let (id, request) = (operation.id, operation.request.clone());
        sends.push(Send::Request { node: self.node, operation: id, request, again: true });
    }

    /// Loses patience with a wait: it tells the servers so, or just leaves.
    fn give_up(&mut self, now: u64, true_nanos: u64, random: &mut Random, sends: &mut Vec<Send>) {
        let Some(ClientOperation { id, request, .. }) = self.operation.take() else { return };
        let Some(Command::Acquire { lock, owner, with, request, .. }) = super::command_of(&request) else {
            return;
        };
        if random.one_in(2) {
            sends.push(Send::Leave { node: self.node, operation: id });
        }
        match random.between(0, 6) {
            // It is gone for good, and so is its lease.
            0 => return self.forget_lease(),
            // It forgets what it asked for. Its lease may wait for several locks then, and may hold one
            // that it does not know of.
            1 => return,
            _ => {}
        }
        // R9: what is given up is not believed in, whatever it was.
        self.stop_believing_in(lock);
        self.given_up.push(request.clone());
        let requester = match with {
            AcquireWith::Lease(lease) => Requester::Lease(*lease),
            AcquireWith::NewLease(_) => Requester::Owner(owner.clone()),
        };
        let release = Request::Command(Command::Release {
            lock: lock.clone(),
            grant: GrantRef::GivenUp(request.clone(), requester),
            token: None,
            actor: None,
            since_unix_ms: 0,
            request: self.next_request_id(),
        });
        sends.push(self.ask(release, now, true_nanos));
    }

    /// Begins an operation.
    fn ask(&mut self, request: Request, now: u64, true_nanos: u64) -> Send {
        self.last_operation += 1;
        let id = self.last_operation;
        self.operation = Some(ClientOperation::new(id, request.clone(), now, true_nanos));
        Send::Request { node: self.node, operation: id, request, again: false }
    }

    /// Begins something new.
    fn have_an_idea(
        &mut self,
        now: u64,
        true_nanos: u64,
        plan: &WorldPlan,
        random: &mut Random,
    ) -> Option<Send> {
        self.next_idea = now + random.span(plan.think_nanos);
        let request = self.next_wish(now, plan, random)?;
        let send = self.ask(request, now, true_nanos);
        if let Some(operation) = &mut self.operation
            && let Request::Wait { wait, .. } = &operation.request
        {
            let soon = now + random.between(0, wait.nanos() + 200 * MILLISECOND);
            match random.between(0, 10) {
                0 => operation.gives_up_at = soon,
                // Restless: it asks elsewhere though nobody failed it.
                1 | 2 => operation.ask_again_at = soon,
                _ => {}
            }
        }
        Some(send)
    }

    fn next_wish(&mut self, now: u64, plan: &WorldPlan, random: &mut Random) -> Option<Request> {
        let Some(lease) = self.lease else {
            let ttl = Ttl::parse(*random.pick(&[1, 2, 3, 5])).expect("a usual time to live");
            if random.one_in(2) {
                return Some(self.acquire(AcquireWith::NewLease(ttl), plan, random));
            }
            let (owner, request) = (self.owner.clone(), self.next_request_id());
            return Some(Request::Command(Command::CreateLease { owner, ttl, request }));
        };
        if self.lapsed {
            return None;
        }
        if self.holds.is_empty() {
            return Some(match random.between(0, 20) {
                0 => {
                    // R9: belief ends before the lease is given back.
                    self.forget_lease();
                    let (owner, request) = (self.owner.clone(), self.next_request_id());
                    Request::Command(Command::RevokeLease {
                        lease: lease.id,
                        owner,
                        actor: None,
                        since_unix_ms: 0,
                        request,
                    })
                }
                1..4 => self.question(plan, random),
                _ => self.acquire(AcquireWith::Lease(lease.id), plan, random),
            });
        }
        match random.between(0, 12) {
            0..3 => return Some(self.question(plan, random)),
            3 if self.holds.len() < HOLDS_MAX => {
                return Some(self.acquire(AcquireWith::Lease(lease.id), plan, random));
            }
            4 | 5 => return Some(self.proclaim(random)),
            6 | 7 => {
                if let Some((of, lock, token)) = self.last_release.clone()
                    && of == lease.id
                    && self.holds.iter().any(|hold| hold.lock == lock)
                {
                    return Some(self.release(lock, GrantRef::Lease(lease.id), Some(token)));
                }
            }
            _ => {}
        }
        let due = self.holds.iter().find(|hold| now >= hold.release_at)?.clone();
        self.last_release = Some((lease.id, due.lock.clone(), due.token));
        // R9: belief ends before the release is sent.
        if !mutants::BELIEF_ENDS_WHEN_THE_RELEASE_IS_ANSWERED.is_active() {
            self.stop_believing_in(&due.lock);
        }
        Some(self.release(due.lock, GrantRef::Lease(lease.id), Some(due.token)))
    }

    fn release(&self, lock: LockName, grant: GrantRef, token: Option<Token>) -> Request {
        let request = self.next_request_id();
        Request::Command(Command::Release { lock, grant, token, actor: None, since_unix_ms: 0, request })
    }

    /// A holder shows something else.
    fn proclaim(&self, random: &mut Random) -> Request {
        let hold = random.pick(&self.holds);
        let lease = self.lease.expect("a holder has a lease").id;
        Request::Command(Command::SetValue {
            lock: hold.lock.clone(),
            owner: self.owner.clone(),
            lease,
            token: random.one_in(2).then_some(hold.token),
            value: self.next_value(),
            since_unix_ms: 0,
            request: self.next_request_id(),
        })
    }

    /// A value that nobody has shown yet.
    fn next_value(&self) -> Value {
        Value::parse(&format!("{} {}", self.owner, self.last_operation + 1)).expect("a short text is a value")
    }

    fn question(&self, plan: &WorldPlan, random: &mut Random) -> Request {
        let lock = random.pick(&plan.names).clone();
        let prefix = *random.pick(&["", "a", "a/", "e"]);
        let query = match (random.between(0, 8), self.holds.first()) {
            (0 | 1, _) => Query::Locks {
                prefix: NamePrefix::parse(prefix).expect("a prefix"),
                after: random.one_in(3).then(|| lock.clone()),
                count_max: random.between(1, 8) as usize,
            },
            (2, Some(hold)) => Query::Token { lock: hold.lock.clone(), token: hold.token },
            (3, _) => Query::Token { lock, token: Token(random.between(1, 50)) },
            (4, _) => Query::Revision,
            _ => Query::Lock { lock },
        };
        if random.one_in(6) { Request::ReadStale(query) } else { Request::Read(query) }
    }

    /// Wants a lock, at once or in its turn. Whoever wants an election has something to say.
    fn acquire(&self, with: AcquireWith, plan: &WorldPlan, random: &mut Random) -> Request {
        let lock = random.pick(&plan.names).clone();
        let is_election = plan.is_election(&lock);
        let mode = match !is_election && random.one_in(plan.shared_one_in) {
            true => Mode::Shared,
            false => Mode::Exclusive,
        };
        let scope = match !is_election && random.one_in(plan.subtree_one_in) {
            true => Scope::Subtree,
            false => Scope::Name,
        };
        let value = if is_election || random.one_in(4) { self.next_value() } else { Value::default() };
        let wait = is_election || random.one_in(plan.wait_one_in);
        // Some limit how long they may hold it, and then hold it for longer.
        let limit = if random.one_in(4) { *random.pick(&[1, 1, 2]) } else { 0 };
        let max_hold = MaxHold::parse(limit).expect("a usual limit");
        let (owner, request) = (self.owner.clone(), self.next_request_id());
        let since_unix_ms = 0;
        let command = Command::Acquire {
            lock,
            owner,
            with,
            mode,
            scope,
            value,
            wait,
            max_hold,
            since_unix_ms,
            request,
        };
        if !wait {
            return Request::Command(command);
        }
        let ms = *random.pick(&WAITS_MS);
        let ms = if self.quiet { ms.min(QUIET_WAIT_MS) } else { ms };
        Request::Wait { command, wait: WaitTime::parse(ms).expect("a usual wait") }
    }
}
