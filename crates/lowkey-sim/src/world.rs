//! One world: machines, clients, a network and a protected resource, in one thread and in virtual time.
//!
//! Everything that happens is an event at a time; the earliest is next, and of two at the same time
//! the one that was made first. All chance comes from one generator. So the same seed gives the same
//! world, to the byte.

use std::collections::{BTreeMap, BTreeSet};

use lowkey_core::{Command, LockName, MemberId, Refusal, Reply, Token, mutants};
use lowkey_replica::{CallId, Failure, Input, MessageType, Output, Request, Response, Role, wire};

use crate::client::{Client, Outcome};
use crate::clock::Clock;
use crate::faults::Fault;
use crate::invariants::{
    Acknowledged, Agreement, Check, Expiry, Fencing, Liveness, Requests, Tokens, Violation, mutual_exclusion,
};
use crate::node::{Node, StartProblem, node_info, save_snapshot};
use crate::plan::{Faults, MILLISECOND, Plan, SECOND};
use crate::random::Random;
use crate::scenarios::Stage;
use crate::trace::Trace;
use crate::words;

const GROUP: u32 = 1;
/// How long a node may take to join, with all that happens to the founder.
const JOIN_SECONDS_MAX: u64 = 20;
const TICK_NANOS: u64 = 10 * MILLISECOND;

/// What is under way.
#[derive(Debug)]
pub(crate) enum Event {
    /// A machine looks at its inbox and its clock.
    NodeWakes { node: usize, incarnation: u64 },
    /// A machine's disk is done with a write.
    DiskSynced { node: usize, incarnation: u64 },
    /// A machine's snapshot is on its disk, or was lost with the process.
    SnapshotWritten { node: usize, incarnation: u64, index: u64, payload: Vec<u8> },
    /// A message of a replica arrives.
    Message { from: usize, to: usize, bytes: Vec<u8> },
    /// A replica learns what became of a snapshot that it sent.
    SnapshotSent { from: usize, incarnation: u64, to: u64, delivered: bool },
    /// A client's request arrives.
    Request { client: usize, life: u64, operation: u64, node: usize, request: Request },
    /// A client gets an answer.
    Answer { client: usize, life: u64, operation: u64, node: usize, answer: Box<Result<Response, Failure>> },
    /// A client does what is due.
    ClientWakes { client: usize, life: u64 },
    /// A write reaches the protected resource.
    Write { lock: LockName, token: Token },
    /// Something breaks, or is mended.
    Fault(Fault),
    /// A machine that is down comes back.
    Restart { node: usize },
    /// Faults end.
    Quiet,
}

/// What a world has to show at its end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    /// How long it lasted, in its own time.
    pub simulated_nanos: u64,
    /// Operations that were answered.
    pub operations: u64,
    /// Terms that had a leader.
    pub elections: u64,
    /// Leases that ran out.
    pub expiries: u64,
    /// Faults that were made.
    pub faults: u64,
    /// Writes that the resource refused because of their token.
    pub refused_writes: u64,
    /// A number that depends on everything that happened, in its order.
    pub fingerprint: u64,
}

pub(crate) struct World {
    pub(crate) plan: Plan,
    pub(crate) faults: Faults,
    pub(crate) now: u64,
    pub(crate) random: Random,
    /// What is to come, by time and then by number.
    queue: BTreeMap<(u64, u64), Event>,
    last_event: u64,
    pub(crate) nodes: Vec<Node>,
    pub(crate) clients: Vec<Client>,
    /// Links that are cut, in one direction each.
    pub(crate) cut: BTreeSet<(usize, usize)>,
    /// Clients that do not reach a machine.
    pub(crate) client_cut: BTreeSet<(usize, usize)>,
    pub(crate) quiet: bool,
    pub(crate) fault_count: u64,
    agreement: Agreement,
    tokens: Tokens,
    acknowledged: Acknowledged,
    expiry: Expiry,
    requests: Requests,
    fencing: Fencing,
    pub(crate) trace: Trace,
    fingerprint: u64,
    /// Set if a script says what happens, instead of chance.
    pub(crate) stage: Option<Stage>,
}

/// Runs the world of a seed to its end.
pub fn run(seed: u64, trace: bool) -> (Summary, Result<(), Violation>, Vec<String>) {
    let mut world = World::new(seed, trace);
    let outcome = world.run();
    (world.summary(), outcome, world.trace.take())
}

impl World {
    fn new(seed: u64, trace: bool) -> Self {
        Self::planned(Plan::draw(seed), seed, trace)
    }

    /// A world without faults, whose clients and troubles come from a script.
    pub(crate) fn staged(plan: Plan, trace: bool) -> Self {
        let mut world = Self::planned(plan, 1, trace);
        world.clients.iter_mut().for_each(Client::follow_script);
        world.stage = Some(Stage::default());
        world
    }

    fn planned(plan: Plan, seed: u64, trace: bool) -> Self {
        let mut random = Random::new(seed);
        let skew = plan.faults.clock_skew_permille;
        let mut clock = || {
            let drift =
                if skew == 0 { 0 } else { random.between(0, 2 * skew * 1000) as i64 - skew as i64 * 1000 };
            Clock::new(random.between(0, 1000 * SECOND), drift)
        };
        let clocks: Vec<Clock> = (0..plan.replicas + plan.clients).map(|_| clock()).collect();
        let nodes: Vec<Node> =
            (0..plan.replicas).map(|node| Node::new(node as u64 + 1, clocks[node], random.next())).collect();
        let clients = (0..plan.clients)
            .map(|client| Client::new(client, 0, clocks[plan.replicas + client], 0, &mut random))
            .collect();
        let mut founder = Node::new(1, Clock::new(0, 0), 0);
        founder.start(&plan, 0, 0).unwrap_or_else(|problem| panic!("a new cluster starts: {problem:?}"));
        let founded = founder.process.as_ref().expect("it has just started").replica.state().clone();
        Self {
            faults: Faults::none(),
            plan,
            now: 0,
            random,
            queue: BTreeMap::new(),
            last_event: 0,
            nodes,
            clients,
            cut: BTreeSet::new(),
            client_cut: BTreeSet::new(),
            quiet: false,
            fault_count: 0,
            agreement: Agreement::new(founded),
            tokens: Tokens::default(),
            acknowledged: Acknowledged::default(),
            expiry: Expiry::default(),
            requests: Requests::default(),
            fencing: Fencing::default(),
            trace: Trace::new(trace),
            fingerprint: seed,
            stage: None,
        }
    }

    pub(crate) fn summary(&self) -> Summary {
        Summary {
            simulated_nanos: self.now,
            operations: self.acknowledged.count,
            elections: self.agreement.elections(),
            expiries: self.expiry.count,
            faults: self.fault_count,
            refused_writes: self.fencing.refused,
            fingerprint: self.fingerprint,
        }
    }

    pub(crate) fn schedule(&mut self, at: u64, event: Event) {
        self.last_event += 1;
        self.queue.insert((at.max(self.now), self.last_event), event);
    }

    fn run(&mut self) -> Check {
        self.trace.tell(self.now, || words::plan_words(&self.plan));
        self.open()?;
        self.faults = self.plan.faults.clone();
        self.begin_faults();
        for client in 0..self.clients.len() {
            self.wake_client(client);
        }
        let quiet_at = self.now + self.plan.active_nanos;
        self.schedule(quiet_at, Event::Quiet);
        let end = quiet_at + self.plan.quiet_nanos;
        self.run_until(end)?;
        self.check_end()
    }

    /// All machines start and make one cluster, before anything breaks.
    pub(crate) fn open(&mut self) -> Check {
        for node in 0..self.nodes.len() {
            self.start_node(node)?;
        }
        self.gather()
    }

    /// Without faults: the other nodes join, until all vote.
    fn gather(&mut self) -> Check {
        for member in 1..=self.nodes.len() as u64 {
            // While the cluster grows the founder may crash: it must not lead one term twice, nor
            // come back with fewer members than were committed.
            if (2..4).contains(&member) && self.plan.faults.crash_nanos > 0 {
                self.disturb_founder(member)?;
            }
            let voters = member as usize;
            for _ in 0..JOIN_SECONDS_MAX {
                if self.voters() == voters {
                    break;
                }
                self.ask_to_join(member);
                self.run_until(self.now + SECOND)?;
            }
        }
        let voters = self.voters();
        if voters == self.nodes.len() {
            return Ok(());
        }
        crate::invariants::Check::Err(Violation {
            invariant: "liveness",
            what: format!("only {voters} nodes vote after all have joined"),
        })
    }

    /// Whoever leads takes the node in. Nobody waits for the answer: that all vote in the end counts.
    pub(crate) fn ask_to_join(&mut self, member: u64) {
        for node in 0..self.nodes.len() {
            let request = Request::Command(Command::AddMember { node: node_info(member) });
            let Some(process) = &mut self.nodes[node].process else { continue };
            process.last_call += 1;
            let call = CallId(process.last_call);
            self.input(node, Input::Request(call, request));
        }
    }

    /// How many vote, says the leader.
    fn voters(&self) -> usize {
        let processes = self.nodes.iter().filter_map(|node| node.process.as_ref());
        let leader = processes.map(|process| process.replica.status()).find(|status| status.serving);
        leader.map_or(0, |status| status.members.iter().filter(|member| member.voter).count())
    }

    pub(crate) fn run_until(&mut self, end: u64) -> Check {
        while let Some(next) = self.queue.first_entry()
            && next.key().0 <= end
        {
            let ((at, _), event) = next.remove_entry();
            self.now = at;
            self.handle(event)?;
        }
        self.now = end;
        Ok(())
    }

    fn mark(&mut self, what: u64) {
        let mixed = (self.fingerprint ^ what ^ self.now.rotate_left(17)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.fingerprint = mixed ^ (mixed >> 29);
    }

    fn handle(&mut self, event: Event) -> Check {
        match event {
            Event::NodeWakes { node, incarnation } => {
                self.mark(1 << 32 | node as u64);
                // An earlier wake-up may have taken this one's place.
                if self.nodes[node].incarnation == incarnation && self.nodes[node].wakes_at == Some(self.now)
                {
                    self.nodes[node].wakes_at = None;
                    self.run_node(node)?;
                }
            }
            Event::DiskSynced { node, incarnation } => {
                self.mark(2 << 32 | node as u64);
                if self.nodes[node].incarnation == incarnation && self.nodes[node].process.is_some() {
                    self.disk_synced(node)?;
                }
            }
            Event::SnapshotWritten { node, incarnation, index, payload } => {
                if self.nodes[node].incarnation == incarnation && self.nodes[node].process.is_some() {
                    let input = match save_snapshot(&self.nodes[node].disk, index, &payload) {
                        true => Input::SnapshotSaved { index },
                        false => Input::SnapshotFailed,
                    };
                    self.input(node, input);
                }
            }
            Event::Message { from, to, bytes } => self.message_arrives(from, to, &bytes),
            Event::SnapshotSent { from, incarnation, to, delivered } => {
                if self.nodes[from].incarnation == incarnation {
                    self.input(from, Input::SnapshotSent { to: MemberId(to), delivered });
                }
            }
            Event::Request { client, life, operation, node, request } => {
                self.request_arrives(client, life, operation, node, request);
            }
            Event::Answer { client, life, operation, node, answer } => {
                self.mark(3 << 32 | client as u64);
                self.answer_arrives(client, life, operation, node, *answer)?;
            }
            Event::ClientWakes { client, life } => {
                if self.clients[client].life == life && self.clients[client].wakes_at == Some(self.now) {
                    self.clients[client].wakes_at = None;
                    self.run_client(client)?;
                }
            }
            Event::Write { lock, token } => {
                if !self.fencing.write(&lock, token, &self.tokens)? {
                    self.trace.tell(self.now, || {
                        format!(
                            "a late write to {lock} with token {token} is refused: a higher one was there"
                        )
                    });
                }
            }
            Event::Fault(fault) => self.make_fault(fault)?,
            Event::Restart { node } => {
                if self.nodes[node].process.is_none() && !self.nodes[node].refused {
                    self.start_node(node)?;
                }
            }
            Event::Quiet => self.become_quiet()?,
        }
        Ok(())
    }

    // Machines.

    pub(crate) fn start_node(&mut self, node: usize) -> Check {
        let seed = self.random.next();
        let started = self.nodes[node].start(&self.plan, seed, self.now);
        let member = self.nodes[node].member;
        match started {
            Ok(()) => {
                self.trace.tell(self.now, || format!("n{member} starts"));
                self.wake_node(node, self.now);
                Ok(())
            }
            Err(problem) => {
                let what = match problem {
                    StartProblem::Log(error) => error.to_string(),
                    StartProblem::Other(what) => what,
                };
                Check::Err(Violation {
                    invariant: "recovery",
                    what: format!("n{member} does not start: {what}"),
                })
            }
        }
    }

    pub(crate) fn input(&mut self, node: usize, input: Input) {
        if let Some(process) = &mut self.nodes[node].process {
            process.inbox.push_back(input);
            self.wake_node(node, self.now);
        }
    }

    fn wake_node(&mut self, node: usize, at: u64) {
        let at = at.max(self.nodes[node].paused_until).max(self.now);
        if self.nodes[node].wakes_at.is_none_or(|wakes_at| wakes_at > at) {
            self.nodes[node].wakes_at = Some(at);
            let incarnation = self.nodes[node].incarnation;
            self.schedule(at, Event::NodeWakes { node, incarnation });
        }
    }

    fn run_node(&mut self, node: usize) -> Check {
        let machine = &mut self.nodes[node];
        if self.now < machine.paused_until {
            let until = machine.paused_until;
            self.wake_node(node, until);
            return Ok(());
        }
        let local = machine.now(self.now);
        let Some(process) = &mut machine.process else { return Ok(()) };
        // While the disk is busy the next batch gathers.
        if process.syncing {
            return Ok(());
        }
        process.take_in(local);
        if self.now >= process.next_tick {
            process.next_tick = self.now + machine.clock.true_span(TICK_NANOS);
            process.replica.step(local, Input::Tick);
        }
        self.take_turns(node)
    }

    /// Takes turns until there is nothing to do, or until one waits for the disk.
    fn take_turns(&mut self, node: usize) -> Check {
        loop {
            let machine = &mut self.nodes[node];
            let local = machine.now(self.now);
            let Some(process) = &mut machine.process else { return Ok(()) };
            if !process.replica.has_work() {
                let next_tick = process.next_tick;
                self.wake_node(node, next_tick);
                return Ok(());
            }
            let begun = process.begin_turn(&machine.disk, local);
            let (output, waits) = begun.map_err(|what| self.ended(node, what))?;
            self.observe(node)?;
            self.carry_out(node, output)?;
            if waits && mutants::is_active("reply before sync") {
                self.end_turn(node)?;
            }
            if waits {
                let took = self.random.between(50_000, 600_000);
                let done = (self.now + took).max(self.nodes[node].stalled_until);
                let incarnation = self.nodes[node].incarnation;
                self.schedule(done, Event::DiskSynced { node, incarnation });
                self.strike_if_doomed(node, took);
                return Ok(());
            }
            self.end_turn(node)?;
        }
    }

    fn disk_synced(&mut self, node: usize) -> Check {
        let paused_until = self.nodes[node].paused_until;
        if self.now < paused_until {
            let incarnation = self.nodes[node].incarnation;
            self.schedule(paused_until, Event::DiskSynced { node, incarnation });
            return Ok(());
        }
        let process = self.nodes[node].process.as_mut().expect("the caller looked");
        process.sync().map_err(|what| self.ended(node, what))?;
        self.end_turn(node)?;
        self.wake_node(node, self.now);
        Ok(())
    }

    fn end_turn(&mut self, node: usize) -> Check {
        let machine = &mut self.nodes[node];
        let local = machine.now(self.now);
        let process = machine.process.as_mut().expect("the caller looked");
        let output = process.end_turn(local).map_err(|what| self.ended(node, what))?;
        self.observe(node)?;
        self.carry_out(node, output)
    }

    fn ended(&self, node: usize, what: String) -> Violation {
        Violation { invariant: "recovery", what: format!("n{} had to end: {what}", self.nodes[node].member) }
    }

    /// Looks at what a replica did: whom it follows, what it applied.
    fn observe(&mut self, node: usize) -> Check {
        let member = self.nodes[node].member;
        let process = self.nodes[node].process.as_mut().expect("the caller looked");
        let standing = process.replica.standing();
        let before = std::mem::replace(&mut process.seen_standing, standing);
        if standing != before {
            if let (term, Role::Leader, _) = standing {
                self.agreement.leads(member, term)?;
            }
            if let Some(change) = words::standing_words(before, standing) {
                self.trace.tell(self.now, || format!("n{member} {change}"));
            }
        }
        let applied = process.replica.state().revision();
        let seen = std::mem::replace(&mut process.seen_applied, applied);
        if applied == seen {
            return Ok(());
        }
        let mut news = Vec::new();
        for index in seen + 1..=applied {
            // What a snapshot jumped over is not in the log; the state itself is compared below.
            let Some(payload) = process.entries.get(&index) else { continue };
            news.extend(self.agreement.applied(member, index, payload)?);
        }
        self.agreement.compare(member, process.replica.state())?;
        let (last, revision) = (process.replica.state().last_token(), process.replica.state().revision());
        for committed in news {
            self.trace.tell(self.now, || {
                let (what, came) = (
                    words::command_words(&committed.command),
                    words::outcome_words(&committed.applied.reply),
                );
                format!("entry {} is committed, says n{member}: {what}: {came}", committed.index)
            });
            self.tokens.committed(&committed)?;
            self.requests.committed(&committed)?;
            self.acknowledged.committed(&committed);
            self.expiry.committed(&committed, &self.clients, self.now)?;
            if let Some(stage) = &mut self.stage {
                stage.committed(&committed, self.now);
            }
        }
        self.tokens.compare(member, &self.agreement, last, revision)
    }

    fn carry_out(&mut self, node: usize, output: Output) -> Check {
        for message in output.messages {
            self.agreement.sent(self.nodes[node].incarnation, &message)?;
            let Some(to) = (message.to as usize).checked_sub(1).filter(|to| *to < self.nodes.len()) else {
                continue;
            };
            let is_snapshot = message.get_msg_type() == MessageType::MsgSnapshot;
            let bytes = wire::encode_message(GROUP, message);
            let arrives = self.send(node, to, bytes);
            if is_snapshot {
                let (incarnation, member) = (self.nodes[node].incarnation, to as u64 + 1);
                let at = self.now + 20 * MILLISECOND;
                self.schedule(
                    at,
                    Event::SnapshotSent { from: node, incarnation, to: member, delivered: arrives },
                );
            }
        }
        for (call, answer) in output.replies {
            let process = self.nodes[node].process.as_mut().expect("a process that answers is there");
            if let Some((client, operation)) = process.calls.remove(&call) {
                let life = self.clients[client].life;
                self.deliver_answer(client, life, operation, node, answer);
            }
        }
        if let Some(file) = output.snapshot {
            let at = self.now + self.random.between(1, 200) * MILLISECOND;
            let incarnation = self.nodes[node].incarnation;
            self.schedule(
                at,
                Event::SnapshotWritten { node, incarnation, index: file.index, payload: file.payload },
            );
        }
        Ok(())
    }

    // The network.

    fn delay(&mut self) -> u64 {
        if self.stage.is_some() {
            return MILLISECOND;
        }
        let usual = self.random.between(MILLISECOND / 10, self.faults.delay_max_nanos.max(MILLISECOND));
        let late = self.random.one_in(self.faults.late_one_in);
        if late { usual * self.random.between(2, 30) } else { usual }
    }

    /// Sends a message; true if it will arrive.
    fn send(&mut self, from: usize, to: usize, bytes: Vec<u8>) -> bool {
        if self.cut.contains(&(from, to)) || self.random.one_in(self.faults.loss_one_in) {
            return false;
        }
        if let Some(stage) = &mut self.stage
            && stage.keeps_back(from, to, &bytes)
        {
            return true;
        }
        if self.random.one_in(self.faults.duplicate_one_in) {
            let at = self.now + self.delay();
            self.schedule(at, Event::Message { from, to, bytes: bytes.clone() });
        }
        let at = self.now + self.delay();
        self.schedule(at, Event::Message { from, to, bytes });
        true
    }

    fn message_arrives(&mut self, from: usize, to: usize, bytes: &[u8]) {
        // A cut is also felt by what is under way.
        if self.cut.contains(&(from, to)) {
            return;
        }
        if let Ok((_, message)) = wire::decode_message(bytes) {
            self.input(to, Input::Message(Box::new(message)));
        }
    }

    fn request_arrives(&mut self, client: usize, life: u64, operation: u64, node: usize, request: Request) {
        if self.client_cut.contains(&(client, node)) || self.clients[client].life != life {
            return;
        }
        let Some(process) = &mut self.nodes[node].process else { return };
        process.last_call += 1;
        let call = CallId(process.last_call);
        process.calls.insert(call, (client, operation));
        self.input(node, Input::Request(call, request));
    }

    fn deliver_answer(
        &mut self,
        client: usize,
        life: u64,
        operation: u64,
        node: usize,
        answer: Result<Response, Failure>,
    ) {
        if self.client_cut.contains(&(client, node)) || self.random.one_in(self.faults.loss_one_in) {
            return;
        }
        let mut at = (self.now + self.delay()).max(self.clients[client].paused_until);
        if self.now < self.clients[client].muted_until {
            at += self.random.between(0, 2_000) * MILLISECOND;
        }
        let event = Event::Answer { client, life, operation, node, answer: Box::new(answer) };
        match &mut self.stage {
            Some(stage) if stage.keeps_answers_of(client) => stage.kept_answers.push(event),
            _ => self.schedule(at, event),
        }
    }

    // Clients.

    pub(crate) fn wake_client(&mut self, client: usize) {
        let it = &self.clients[client];
        let at = it.clock.when(it.next_wake()).max(it.paused_until).max(self.now + 1);
        if it.wakes_at.is_none_or(|wakes_at| wakes_at > at) {
            let life = it.life;
            self.clients[client].wakes_at = Some(at);
            self.schedule(at, Event::ClientWakes { client, life });
        }
    }

    fn run_client(&mut self, client: usize) -> Check {
        if self.now < self.clients[client].paused_until {
            self.wake_client(client);
            return Ok(());
        }
        if let Some(lease) = self.clients[client].lease
            && !self.clients[client].lapsed
            && !self.clients[client].counts_on(lease.id, self.now)
        {
            let owner = &self.clients[client].owner;
            self.trace.tell(self.now, || {
                format!("{owner} no longer counts on lease {}, by its own clock", lease.id)
            });
        }
        let sends = self.clients[client].act(self.now, &self.plan, &mut self.random);
        for send in sends {
            let node = send.node % self.nodes.len();
            if send.again {
                let owner = &self.clients[client].owner;
                let what = words::request_words;
                self.trace.tell(self.now, || {
                    format!("{owner} asks n{} again to {}", node + 1, what(&send.request))
                });
            }
            self.request_leaves(client, send.operation, node, send.request);
        }
        self.write_if_holding(client)?;
        self.wake_client(client);
        Ok(())
    }

    pub(crate) fn request_leaves(&mut self, client: usize, operation: u64, node: usize, request: Request) {
        if self.now < self.clients[client].muted_until || self.random.one_in(self.faults.loss_one_in) {
            return;
        }
        let life = self.clients[client].life;
        if self.random.one_in(self.faults.duplicate_one_in) {
            // A copy may come when all is forgotten.
            let (at, request) = (self.now + self.delay() * self.random.between(1, 100), request.clone());
            self.schedule(at, Event::Request { client, life, operation, node, request });
        }
        let at = self.now + self.delay();
        self.schedule(at, Event::Request { client, life, operation, node, request });
    }

    /// A holder uses what it holds: at once, or with a write that takes its time.
    fn write_if_holding(&mut self, client: usize) -> Check {
        if !self.clients[client].believes_at(self.now) {
            return Ok(());
        }
        let Some(hold) = self.clients[client].hold.clone() else { return Ok(()) };
        if self.random.one_in(2) {
            return self.fencing.write_in_belief(&hold.lock, hold.token, &self.tokens);
        }
        let at = self.now + self.delay() * self.random.between(1, 100);
        self.schedule(at, Event::Write { lock: hold.lock, token: hold.token });
        Ok(())
    }

    fn answer_arrives(
        &mut self,
        client: usize,
        life: u64,
        operation: u64,
        node: usize,
        answer: Result<Response, Failure>,
    ) -> Check {
        if self.client_cut.contains(&(client, node)) || self.clients[client].life != life {
            return Ok(());
        }
        if self.now < self.clients[client].paused_until {
            let at = self.clients[client].paused_until;
            self.schedule(at, Event::Answer { client, life, operation, node, answer: Box::new(answer) });
            return Ok(());
        }
        if let Some(stage) = &mut self.stage {
            stage.heard(client, operation, &answer);
        }
        if self.trace.is_wanted()
            && let Some(request) = self.clients[client].awaits(operation)
        {
            let owner = &self.clients[client].owner;
            self.trace.tell(self.now, || {
                let (what, told) = (words::request_words(&request), words::answer_words(&answer));
                format!("{owner} asked n{} to {what}, and is told: {told}", node + 1)
            });
        }
        let outcome = self.clients[client].answered(operation, answer, self.now, &mut self.random);
        let owner = self.clients[client].owner.clone();
        match outcome {
            Outcome::Nothing => {}
            Outcome::Renewed { lease } => {
                self.expiry.renewed(lease, self.now);
                self.acknowledged.count += 1;
                mutual_exclusion(&self.clients, client, self.now)?;
            }
            Outcome::LeaseLost { lease, believed } => {
                self.expiry.lost(&owner, lease, believed)?;
            }
            Outcome::Ended { operation, answer } => {
                if self.quiet {
                    self.clients[client].done_in_quiet += 1;
                }
                if let (
                    Ok(Response::Applied(Reply::Granted { token, .. })),
                    Request::Command(Command::Acquire { lock, .. }),
                ) = (&answer, &operation.request)
                {
                    self.tokens.told(lock, *token)?;
                }
                if !matches!(answer, Err(Failure::Refused(Refusal::LeaseNotFound { .. }))) {
                    self.acknowledged.answered(&operation, &answer, self.now)?;
                }
                mutual_exclusion(&self.clients, client, self.now)?;
            }
        }
        self.wake_client(client);
        Ok(())
    }

    // The end.

    fn become_quiet(&mut self) -> Check {
        self.trace.tell(self.now, || "faults end".to_owned());
        self.quiet = true;
        self.plan.think_nanos = self.plan.think_nanos.min(SECOND / 2);
        self.faults = Faults::none();
        self.cut.clear();
        self.client_cut.clear();
        for node in 0..self.nodes.len() {
            self.nodes[node].paused_until = self.now;
            self.nodes[node].stalled_until = self.now;
            if self.nodes[node].process.is_none() && !self.nodes[node].refused {
                self.start_node(node)?;
            }
            self.nodes[node].wakes_at = None;
            self.wake_node(node, self.now);
        }
        for client in 0..self.clients.len() {
            self.clients[client].become_quiet(self.now);
            self.wake_client(client);
        }
        Ok(())
    }

    /// A write reaches the protected resource now; true if it is accepted.
    pub(crate) fn write(&mut self, lock: &LockName, token: Token) -> Result<bool, Violation> {
        self.fencing.write(lock, token, &self.tokens)
    }

    /// True if a machine's snapshot is on its way to the disk.
    pub(crate) fn is_writing_snapshot(&self, of: usize) -> bool {
        let incarnation = self.nodes[of].incarnation;
        self.queue.values().any(|event| {
            matches!(event, Event::SnapshotWritten { node, incarnation: by, .. } if *node == of && *by == incarnation)
        })
    }

    pub(crate) fn check_end(&mut self) -> Check {
        // The last entries travel while nobody asks for anything new.
        self.clients.iter_mut().for_each(|client| client.paused_until = u64::MAX);
        let end = self.now + 500 * MILLISECOND;
        self.run_until(end)?;
        let mut leaders = 0;
        for node in &self.nodes {
            if let Some(process) = &node.process {
                leaders += usize::from(process.replica.standing().2);
                self.agreement.compare_at_end(node.member, process.replica.state())?;
            }
        }
        // Scripted clients do nothing by themselves; that they are served is the script's to show.
        let clients = if self.stage.is_some() { &[][..] } else { &self.clients[..] };
        Liveness::at_end(leaders, clients)?;
        self.expiry.at_end(self.agreement.state(), self.now)
    }
}
