//! How a scenario is written: a cluster without chance, and the hands to break it.
//!
//! A message and an answer take 1 ms each way; clocks run at one rate; nothing is lost unless the
//! script says so. Everything else is a world as any other: the same replicas, logs and clients, and
//! the same invariants at every step. The first machine, `n1`, leads at the beginning.

use lowkey_core::{
    AcquireWith, Command, GrantRef, LeaseId, LockName, MaxHold, Mode, OwnerId, Reply, RequestId, Requester,
    Scope, Token, Ttl, Value, WaitTime,
};
use lowkey_replica::{Failure, Input, MessageType, Query, RaftTick, Request, Response, Role};
use lowkey_wal::{GroupId, snapshots};

use super::Scenario;
use super::stage::{Letter, Stage};
use crate::invariants::{Check, Violation, Write};
use crate::node::Lane;
use crate::plan::{Faults, MILLISECOND, SECOND, WorldPlan};
use crate::world::{World, WorldEvent};

/// The machines of a small cluster, by their numbers.
pub(super) const N1: usize = 0;
pub(super) const N2: usize = 1;
pub(super) const N3: usize = 2;
/// Clients, by their numbers: Ann is first in most stories, and Bob wants what Ann has.
pub(super) const ANN: usize = 0;
pub(super) const BOB: usize = 1;
/// Carol comes after Bob, where there are three.
pub(super) const CAROL: usize = 2;

const NAMES: [&str; 6] = ["ann", "bob", "carol", "dave", "erin", "frank"];

/// How finely a script looks while it waits for something.
const LOOK_NANOS: u64 = MILLISECOND / 10;

pub(super) type ScriptAnswer = Result<Response, Failure>;

/// A request that was sent, to ask about its answer and to send it again.
#[derive(Clone, Debug)]
pub(super) struct ScriptRequest {
    client: usize,
    operation: u64,
    request: Request,
}

impl ScriptRequest {
    /// The same request, to be waited for so long from now on.
    pub(super) fn for_longer(&self, ms: i64) -> Self {
        let mut longer = self.clone();
        if let Request::Wait { wait, .. } = &mut longer.request {
            *wait = wait_time(ms);
        }
        longer
    }
}

/// A world that does what a scenario says.
pub(super) struct Script {
    pub(super) world: World,
}

impl Script {
    /// A cluster as the scenario wants it, before anything has happened.
    pub(super) fn new(scenario: &Scenario, trace: bool) -> Self {
        let Scenario { replicas, clients, snapshot_entries, recovered, raft_tick_ms, .. } = *scenario;
        let plan = WorldPlan {
            replicas,
            clients,
            recovered,
            raft_tick: RaftTick::from_millis(raft_tick_ms).expect("a story's tick is possible"),
            groups: 1,
            has_idle_group: false,
            names: vec![lock()],
            shared_one_in: 0,
            subtree_one_in: 0,
            wait_one_in: 1,
            watchers: 0,
            history_events: 1_000,
            active_nanos: 0,
            quiet_nanos: 0,
            snapshot_entries,
            tail_entries: 5,
            think_nanos: SECOND,
            faults: Faults::none(),
        };
        let mut world = World::staged(plan, trace);
        for (client, name) in world.clients.iter_mut().zip(NAMES) {
            client.owner = OwnerId::parse(name).expect("a short name is an owner");
        }
        Self { world }
    }

    pub(super) fn stage(&self) -> &Stage {
        self.world.stage.as_ref().expect("a script has a stage")
    }

    fn stage_mut(&mut self) -> &mut Stage {
        self.world.stage.as_mut().expect("a script has a stage")
    }

    // Time.

    pub(super) fn advance(&mut self, ms: u64) -> Check {
        self.advance_to(self.world.now + ms * MILLISECOND)
    }

    pub(super) fn advance_to(&mut self, nanos: u64) -> Check {
        self.world.run_until(nanos)
    }

    /// Lets time pass until something is so; it must be within so many milliseconds.
    pub(super) fn until(&mut self, what: &str, ms_max: u64, so: impl Fn(&Self) -> bool) -> Check {
        let deadline = self.world.now + ms_max * MILLISECOND;
        while !so(self) {
            ensure(self.world.now < deadline, || format!("not within {ms_max} ms: {what}"))?;
            self.advance_to(self.world.now + LOOK_NANOS)?;
        }
        Ok(())
    }

    /// A line of the story.
    pub(super) fn tell(&mut self, line: &str) {
        self.world.trace.tell(self.world.now, || line.to_owned());
    }

    // Machines.

    /// The one group of all stories, as a machine has it.
    pub(super) fn lane(&self, node: usize) -> Option<&Lane> {
        self.world.nodes[node].running(0)
    }

    /// Who leads and may touch leases; of two that think so, the one with the later term.
    pub(super) fn leader(&self) -> Option<usize> {
        (0..self.world.nodes.len()).filter(|node| self.serves(*node)).max_by_key(|node| self.term(*node))
    }

    /// R1: it leads, and may touch leases.
    pub(super) fn serves(&self, node: usize) -> bool {
        self.lane(node).is_some_and(|lane| lane.replica.standing().2)
    }

    /// True if it leads a term, also before it may touch leases.
    pub(super) fn leads(&self, node: usize) -> bool {
        self.lane(node).is_some_and(|lane| lane.replica.standing().1 == Role::Leader)
    }

    pub(super) fn term(&self, node: usize) -> u64 {
        self.lane(node).map_or(0, |lane| lane.replica.standing().0)
    }

    /// The first and the last entry in the log of a machine, as far as it was handed to its disk.
    pub(super) fn log_bounds(&self, node: usize) -> (u64, u64) {
        let bound = |index: Option<&u64>| index.copied().unwrap_or_default();
        self.lane(node)
            .map(|lane| (bound(lane.entries.keys().next()), bound(lane.entries.keys().next_back())))
            .unwrap_or_default()
    }

    /// The newest snapshot on the disk of a machine.
    pub(super) fn newest_snapshot(&self, node: usize) -> u64 {
        let newest = snapshots::load_newest(&*self.world.nodes[node].disk.as_disk(), GroupId::ROOT);
        newest.ok().flatten().map_or(0, |(index, _)| index)
    }

    /// Waits until another machine serves, and says which.
    pub(super) fn leader_other_than(&mut self, old: usize, ms_max: u64) -> Result<usize, Violation> {
        self.until("another leader serves", ms_max, |script| {
            script.leader().is_some_and(|leader| leader != old)
        })?;
        Ok(self.leader().unwrap_or(old))
    }

    pub(super) fn pause(&mut self, node: usize, ms: u64) {
        self.tell(&format!("n{} is paused for {ms} ms", node + 1));
        self.world.nodes[node].paused_until = self.world.now + ms * MILLISECOND;
    }

    pub(super) fn crash(&mut self, node: usize, power_is_lost: bool) {
        let how = if power_is_lost { "loses power" } else { "is killed" };
        self.tell(&format!("n{} {how}", node + 1));
        self.world.nodes[node].crash(power_is_lost);
        self.world.nodes[node].paused_until = 0;
    }

    pub(super) fn restart(&mut self, node: usize) -> Check {
        self.world.start_node(node)
    }

    /// Something comes into a machine's inbox now.
    pub(super) fn input(&mut self, node: usize, input: Input) {
        self.world.input(node, 0, input);
    }

    /// Asks a leader to hand over, and waits until another one serves. A leader that has just begun to
    /// ask who still follows knows of no successor, and lets the wish pass: so it is asked again.
    pub(super) fn hand_over(&mut self, node: usize) -> Result<usize, Violation> {
        self.tell(&format!("n{} is asked to hand over", node + 1));
        let asked_at = self.world.now;
        while self.leader().is_none_or(|leader| leader == node) {
            ensure(self.world.now < asked_at + SECOND, || format!("n{} does not hand over", node + 1))?;
            self.input(node, Input::HandOver);
            self.advance(20)?;
        }
        Ok(self.leader().unwrap_or(node))
    }

    // The network.

    /// What one machine sends no longer reaches another.
    pub(super) fn cut(&mut self, from: usize, to: usize) {
        self.tell(&format!("what n{} sends no longer reaches n{}", from + 1, to + 1));
        self.world.cut.insert((from, to));
    }

    pub(super) fn cut_both(&mut self, one: usize, other: usize) {
        self.tell(&format!("n{} and n{} are cut from each other", one + 1, other + 1));
        self.world.cut.extend([(one, other), (other, one)]);
    }

    pub(super) fn isolate(&mut self, node: usize) {
        for other in self.others(node) {
            self.cut_both(node, other);
        }
    }

    pub(super) fn heal(&mut self) {
        self.tell("the network is whole again");
        self.world.cut.clear();
    }

    pub(super) fn others(&self, node: usize) -> Vec<usize> {
        (0..self.world.nodes.len()).filter(|other| *other != node).collect()
    }

    /// From now on messages of a kind on a link are held back.
    pub(super) fn hold_messages(&mut self, from: usize, to: usize, kind: MessageType) {
        self.tell(&format!("some messages from n{} to n{} are held back", from + 1, to + 1));
        self.stage_mut().hold_link(from, to, Some(kind));
    }

    pub(super) fn held_messages(&self) -> usize {
        self.stage().kept_messages.len()
    }

    /// What was held back arrives now, in its order; nothing is held back any more.
    pub(super) fn deliver_messages(&mut self) {
        let letters = self.stage_mut().let_messages_go();
        self.deliver(letters);
    }

    /// What was held back on one link arrives now; what follows is held back as before.
    pub(super) fn deliver_messages_between(&mut self, from: usize, to: usize) {
        let letters = self.stage_mut().let_messages_between_go(from, to);
        self.deliver(letters);
    }

    fn deliver(&mut self, letters: Vec<Letter>) {
        for (from, to, bytes, snapshot) in letters {
            self.tell(&format!("a message that was held back reaches n{} from n{}", to + 1, from + 1));
            self.world.schedule(self.world.now, WorldEvent::Message { from, to, bytes, snapshot });
        }
    }

    /// From now on answers to a client are held back.
    pub(super) fn hold_answers(&mut self, client: usize) {
        self.tell(&format!("answers to {} are held back", self.world.clients[client].owner));
        self.stage_mut().hold_answers(client);
    }

    pub(super) fn held_answers(&self) -> usize {
        self.stage().kept_answers.len()
    }

    /// The answers that were held back arrive now.
    pub(super) fn deliver_answers(&mut self) {
        for event in self.stage_mut().let_answers_go() {
            self.tell("an answer that was held back arrives");
            self.world.schedule(self.world.now, event);
        }
    }

    /// The answers that were held back never arrive.
    pub(super) fn lose_answers(&mut self) {
        self.tell("the answers that were held back are lost");
        self.stage_mut().let_answers_go();
    }

    // Clients.

    /// A client begins something: its belief counts from now.
    pub(super) fn ask(&mut self, client: usize, node: usize, request: Request) -> ScriptRequest {
        let operation = self.world.clients[client].begin(request.clone(), self.world.now);
        let asked = ScriptRequest { client, operation, request };
        self.send(&asked, node);
        asked
    }

    /// A client asks once more for what it still waits for, with the same request id.
    pub(super) fn retry(&mut self, asked: &ScriptRequest, node: usize) {
        let client = &mut self.world.clients[asked.client];
        let now = client.clock.read(self.world.now);
        if let Some(operation) = client.operation.as_mut().filter(|waiting| waiting.id == asked.operation) {
            operation.ask_again(now);
        }
        self.send(asked, node);
    }

    /// The same request on its way once more: a copy that the network made.
    pub(super) fn send(&mut self, asked: &ScriptRequest, node: usize) {
        let ScriptRequest { client, operation, request } = asked.clone();
        self.world.request_leaves(client, operation, node, request);
    }

    pub(super) fn renew(&mut self, client: usize, node: usize, lease: LeaseId) -> ScriptRequest {
        self.ask(client, node, Request::Renew { lease, holds: None })
    }

    /// Bob reads the lock, and Ann renews her lease again and again, at a machine that no other reaches.
    pub(super) fn talk_to_the_cut_off(
        &mut self,
        node: usize,
        lease: LeaseId,
    ) -> Result<Vec<ScriptRequest>, Violation> {
        let mut asked = vec![self.ask(BOB, node, Request::Read(Query::Lock { lock: lock() }))];
        for _ in 0..20 {
            asked.push(self.renew(ANN, node, lease));
            self.advance(200)?;
        }
        Ok(asked)
    }

    pub(super) fn acquire(&self, client: usize, with: AcquireWith) -> Request {
        Request::Command(Command::Acquire {
            lock: lock(),
            owner: self.world.clients[client].owner.clone(),
            with,
            mode: Mode::Exclusive,
            scope: Scope::Name,
            value: Value::default(),
            wait: false,
            max_hold: None,
            since_unix_ms: 0,
            keeps_asked: false,
            request: self.request_id(client),
        })
    }

    /// The same with a limit of how long it is held.
    pub(super) fn acquire_limited(&self, client: usize, with: AcquireWith, seconds: i64) -> Request {
        let Request::Command(mut command) = self.acquire(client, with) else {
            unreachable!("it is a command")
        };
        if let Command::Acquire { max_hold, .. } = &mut command {
            *max_hold = MaxHold::parse(seconds).expect("a usual limit");
        }
        Request::Command(command)
    }

    /// The same with a wait, and with something to show.
    pub(super) fn acquire_waiting(&self, client: usize, with: AcquireWith, ms: i64) -> Request {
        let Request::Command(mut command) = self.acquire(client, with) else {
            unreachable!("it is a command")
        };
        if let Command::Acquire { wait, value, owner, .. } = &mut command {
            *wait = true;
            *value = Value::parse(&format!("{owner} leads")).expect("a short text is a value");
        }
        Request::Wait { command, wait: wait_time(ms) }
    }

    /// Asks for the lock and is let wait.
    pub(super) fn wait_in_line(
        &mut self,
        client: usize,
        node: usize,
        with: AcquireWith,
        ms: i64,
    ) -> Result<ScriptRequest, Violation> {
        let request = self.acquire_waiting(client, with, ms);
        let (asked, before) = (self.ask(client, node, request), self.waiters().len());
        self.until("a place in line", 50, |script| script.waiters().len() > before)?;
        Ok(asked)
    }

    /// A client drops a call that it waits for.
    pub(super) fn leave(&mut self, asked: &ScriptRequest, node: usize) {
        self.tell(&format!("{} drops its call to n{}", self.world.clients[asked.client].owner, node + 1));
        self.world.leave(asked.client, asked.operation, node);
    }

    /// Gives up what another request was to have, whatever became of it.
    pub(super) fn give_up(&self, asked: &ScriptRequest) -> Request {
        let Request::Wait { command: Command::Acquire { lock, owner, with, request, .. }, .. } =
            &asked.request
        else {
            unreachable!("only a wait is given up")
        };
        let requester = match with {
            AcquireWith::Lease(lease) => Requester::Lease(*lease),
            AcquireWith::NewLease(_) => Requester::Owner(owner.clone()),
        };
        let (lock, grant) = (lock.clone(), GrantRef::GivenUp(request.clone(), requester));
        let request = self.request_id(asked.client);
        Request::Command(Command::Release {
            lock,
            grant,
            token: None,
            actor: None,
            since_unix_ms: 0,
            request,
        })
    }

    /// Who waits for the lock, by the log, first come first.
    pub(super) fn waiters(&self) -> Vec<&str> {
        self.world.groups[0].ledger.waiters().iter().map(|waiting| waiting.owner.as_str()).collect()
    }

    /// Who holds the lock, by the log, and what it shows.
    pub(super) fn holder(&self) -> Option<(&str, &str, Token)> {
        let held = self.world.groups[0].ledger.holders().first()?;
        Some((held.owner.as_str(), held.value.as_str(), held.token))
    }

    pub(super) fn release(&self, client: usize, lease: LeaseId, token: Token) -> Request {
        let (grant, token) = (GrantRef::Lease(lease), Some(token));
        Request::Command(Command::Release {
            lock: lock(),
            grant,
            token,
            actor: None,
            since_unix_ms: 0,
            request: self.request_id(client),
        })
    }

    pub(super) fn create_lease(&self, client: usize, ttl_seconds: i64) -> Request {
        let (owner, ttl) = (self.world.clients[client].owner.clone(), ttl(ttl_seconds));
        Request::Command(Command::CreateLease { owner, ttl, request: self.request_id(client) })
    }

    fn request_id(&self, client: usize) -> RequestId {
        self.world.clients[client].next_request_id()
    }

    /// All that a request was answered, in order.
    pub(super) fn answers(&self, asked: &ScriptRequest) -> &[ScriptAnswer] {
        self.stage().answers.get(&(asked.client, asked.operation)).map_or(&[], Vec::as_slice)
    }

    pub(super) fn is_answered(&self, asked: &ScriptRequest) -> bool {
        !self.answers(asked).is_empty()
    }

    pub(super) fn was_renewed(&self, asked: &ScriptRequest) -> bool {
        self.answers(asked).iter().any(|answer| matches!(answer, Ok(Response::Renewed { .. })))
    }

    /// Asks, and waits for the answer.
    pub(super) fn answer_to(
        &mut self,
        client: usize,
        node: usize,
        request: Request,
    ) -> Result<ScriptAnswer, Violation> {
        let asked = self.ask(client, node, request);
        self.until("an answer", 2_000, |script| script.is_answered(&asked))?;
        Ok(self.answers(&asked)[0].clone())
    }

    /// Takes the lock with a new lease in one call; it must be free.
    pub(super) fn take_lock(
        &mut self,
        client: usize,
        node: usize,
        ttl_seconds: i64,
    ) -> Result<(LeaseId, Token), Violation> {
        let request = self.acquire(client, AcquireWith::NewLease(ttl(ttl_seconds)));
        granted(&self.answer_to(client, node, request)?)
    }

    /// Makes a lease.
    pub(super) fn take_lease(
        &mut self,
        client: usize,
        node: usize,
        ttl_seconds: i64,
    ) -> Result<LeaseId, Violation> {
        let request = self.create_lease(client, ttl_seconds);
        match self.answer_to(client, node, request)? {
            Ok(Response::Applied(Reply::LeaseCreated { lease, .. })) => Ok(lease),
            other => Err(failed(format!("no lease was made: {other:?}"))),
        }
    }

    /// True if a client may act as holder now, by its own count.
    pub(super) fn believes(&self, client: usize) -> bool {
        self.world.clients[client].believes_at(self.world.now)
    }

    /// True if a client counts on its lease now.
    pub(super) fn counts_on(&self, client: usize, lease: LeaseId) -> bool {
        self.world.clients[client].counts_on(lease, self.world.now)
    }

    /// A write with this token reaches the protected resource; true if it is accepted.
    pub(super) fn write(&mut self, token: Token) -> Result<bool, Violation> {
        let write = Write { to: lock(), lock: lock(), lease: LeaseId(0), token, mode: Mode::Exclusive };
        let accepted = self.world.write(0, &write)?;
        let how = if accepted { "is accepted" } else { "is refused: a higher one was there" };
        self.tell(&format!("a write with token {token} reaches what {} protects, and {how}", lock()));
        Ok(accepted)
    }

    // Leases.

    /// When a lease began, in true time.
    pub(super) fn began_at(&self, lease: LeaseId) -> u64 {
        self.stage().begun.get(&lease).copied().unwrap_or_default()
    }

    pub(super) fn is_gone(&self, lease: LeaseId) -> bool {
        self.stage().ended.contains_key(&lease)
    }

    /// Waits until a lease has ended, and says how long after a moment that was.
    pub(super) fn end_of(&mut self, lease: LeaseId, since: u64, ms_max: u64) -> Result<u64, Violation> {
        self.until("the lease ends", ms_max, |script| script.is_gone(lease))?;
        Ok(self.stage().ended[&lease].saturating_sub(since))
    }

    /// Mends everything, shows that the cluster serves, and that nothing is left behind.
    pub(super) fn end(&mut self, longest_ttl_seconds: u64) -> Check {
        self.tell("everything is mended");
        self.world.cut.clear();
        self.world.client_cut.clear();
        self.deliver_messages();
        self.deliver_answers();
        for node in 0..self.world.nodes.len() {
            self.world.nodes[node].stalled_until = 0;
            if self.world.nodes[node].process.is_none() && !self.world.nodes[node].removed {
                self.restart(node)?;
            }
        }
        self.until("all pauses are over and a leader serves", 20_000, |script| {
            script.leader().is_some()
                && script.world.nodes.iter().all(|node| node.paused_until <= script.world.now)
        })?;
        self.advance(1_000)?;
        let leader = self.leader().unwrap_or(N1);
        self.take_lease(ANN, leader, 1)?;
        // Nobody renews any more: every lease must go, by invariant 6 with one change of leader.
        self.advance(longest_ttl_seconds * 2_200 + 2_000)?;
        let left = self.lane(leader).map_or(0, |lane| lane.replica.state().leases().len());
        ensure(left == 0, || format!("{left} leases live on without renewals"))?;
        self.world.check_end()
    }
}

pub(super) fn ensure(so: bool, otherwise: impl FnOnce() -> String) -> Check {
    if so { Ok(()) } else { Err(failed(otherwise())) }
}

fn failed(what: String) -> Violation {
    Violation { invariant: "scenario", what }
}

pub(super) fn granted(answer: &ScriptAnswer) -> Result<(LeaseId, Token), Violation> {
    match answer {
        Ok(
            Response::Applied(Reply::Granted { lease, token, .. })
            | Response::GrantedAfter { reply: Reply::Granted { lease, token, .. }, .. },
        ) => Ok((*lease, *token)),
        other => Err(failed(format!("the lock was not granted: {other:?}"))),
    }
}

/// The one lock of all stories.
pub(super) fn lock() -> LockName {
    LockName::parse("lock-0").expect("a short name is a name")
}

pub(super) fn ttl(seconds: i64) -> Ttl {
    Ttl::parse(seconds).expect("a usual time to live")
}

pub(super) fn wait_time(ms: i64) -> WaitTime {
    WaitTime::parse(ms).expect("a usual wait")
}
