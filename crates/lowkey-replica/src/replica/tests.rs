//! Whatever happens, every caller gets one answer, and nothing is kept of callers that are gone.
//!
//! Small clusters without disks are driven at random: requests old and new, callers that leave in time,
//! too late or twice, lost messages, cut-off nodes, changes of lead, full disks, stalls. A failure names
//! its seed.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use lowkey_core::{
    AcquireWith, COMMAND_VERSION, Caller, ClusterId, Command, GrantRef, GroupId, LeaseId, LockName, MaxHold,
    MemberId, Mode, NodeIdentity, NodeInfo, NodeName, OwnerId, RequestId, Requester, Scope, Ttl, Value,
    WaitTime,
};

use crate::lead::UNITS_A_TURN;
use crate::{
    CallId, Config, DiskRoom, Failure, Found, Input, MILLISECOND, Message, MessageType, Nanos, Output, Query,
    ReceivedSnapshot, Record, RecordKind, Replica, Request, Response, Role, found,
};

const CLUSTER: ClusterId = ClusterId([7; 16]);
const TICK_NANOS: u64 = 10 * MILLISECOND;

/// SplitMix64.
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// True once in so many times.
    fn once_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }
}

#[derive(Default)]
struct Call {
    node: usize,
    answers: usize,
    gone: bool,
}

/// What was seen in a run: a test that never parks anybody shows nothing.
#[derive(Debug, Default)]
struct Seen {
    granted: usize,
    timeouts: usize,
    given_up: usize,
    interrupted: usize,
    lease_gone: usize,
    left: usize,
}

struct World {
    replicas: Vec<Replica>,
    network: VecDeque<Message>,
    /// By index; replicas that make one of the same index make the same.
    snapshots: BTreeMap<u64, Vec<u8>>,
    /// What a node is told once its turn is over.
    reports: VecDeque<(usize, Input)>,
    cut_off: Option<usize>,
    now: Nanos,
    calls: BTreeMap<CallId, Call>,
    waits: Vec<Request>,
    dice: Dice,
    seen: Seen,
}

impl World {
    fn new(size: u64, seed: u64) -> Self {
        let founding = found(GroupId::ROOT, CLUSTER, node(1));
        let mut records = founding.records.into_iter();
        let mut payload = |kind| records.find(|record: &Record| record.kind == kind).expect("a founder's");
        let hard_state = payload(RecordKind::HardState).payload;
        let reset = payload(RecordKind::Reset);
        let snapshots = BTreeMap::from([(founding.snapshot.index, founding.snapshot.payload.clone())]);
        let mut disk = Some(Found {
            snapshot: Some(founding.snapshot.payload),
            hard_state: Some(hard_state),
            compaction: Some((reset.index, reset.payload)),
            entries: VecDeque::new(),
        });
        let empty = || Found { snapshot: None, hard_state: None, compaction: None, entries: VecDeque::new() };
        let replicas = (1..=size).map(|id| {
            let found = disk.take().unwrap_or_else(empty);
            Replica::recover(Config::new(GroupId::ROOT, MemberId(id), seed), CLUSTER, found)
                .expect("a whole disk")
        });
        let mut world = Self {
            replicas: replicas.collect(),
            network: VecDeque::new(),
            snapshots,
            reports: VecDeque::new(),
            cut_off: None,
            now: Nanos(0),
            calls: BTreeMap::new(),
            waits: Vec::new(),
            dice: Dice(seed),
            seen: Seen::default(),
        };
        world.tick(5);
        for id in 2..=size {
            world.ask(0, Request::Command(Command::AddMember { node: Box::new(node(id)), invitation: None }));
            world.tick(40);
        }
        world
    }

    /// Time passes, and messages arrive.
    fn tick(&mut self, ticks: usize) {
        for _ in 0..ticks {
            self.now = self.now.after(TICK_NANOS);
            for node in 0..self.replicas.len() {
                self.step(node, Input::Tick);
            }
            self.deliver();
        }
    }

    fn deliver(&mut self) {
        for _ in 0..10 {
            (0..self.replicas.len()).for_each(|node| self.run(node));
            let under_way = std::mem::take(&mut self.network);
            if under_way.is_empty() {
                return;
            }
            for message in under_way {
                let (from, to) = (message.from as usize - 1, message.to as usize - 1);
                if self.cut_off.is_none_or(|node| node != from && node != to) {
                    self.hand(to, message);
                }
            }
        }
    }

    fn hand(&mut self, to: usize, message: Message) {
        if message.get_msg_type() != MessageType::MsgSnapshot {
            return self.step(to, Input::Message(Box::new(message)));
        }
        let payload = self.snapshots[&message.get_snapshot().get_metadata().index].clone();
        let received = ReceivedSnapshot::read(message, payload).expect("what was made can be read");
        self.step(to, Input::Snapshot(Box::new(received)));
    }

    fn step(&mut self, node: usize, input: Input) {
        self.replicas[node].step(self.now, input);
    }

    fn run(&mut self, node: usize) {
        while self.replicas[node].has_work() {
            let turn = self.replicas[node].begin_turn(self.now).expect("entries can be applied");
            self.carry_out(node, turn.output);
            let output = self.replicas[node].end_turn(self.now).expect("entries can be applied");
            self.carry_out(node, output);
            while let Some((node, input)) = self.reports.pop_front() {
                self.step(node, input);
            }
        }
        let replica = &self.replicas[node];
        if let Some(lead) = replica.lead.get() {
            lead.check(&replica.state);
        }
    }

    fn carry_out(&mut self, node: usize, output: Output) {
        self.network.extend(output.messages);
        if let Some(job) = output.snapshot {
            let base = &self.snapshots[&job.base()];
            let made = job.run(base).expect("a snapshot can be made");
            let size_bytes = made.payload.len() as u64;
            self.snapshots.insert(made.index, made.payload);
            self.reports.push_back((node, Input::SnapshotSaved { index: made.index, size_bytes }));
        }
        for (call_id, answer) in output.replies {
            let call = self.calls.get_mut(&call_id).expect("an answer to somebody's question");
            assert_eq!((call.node, call.answers), (node, 0), "{call_id:?} is told {answer:?} as well");
            call.answers += 1;
            match answer {
                Ok(Response::GrantedAfter { .. }) => self.seen.granted += 1,
                Err(Failure::WaitTimeout { .. }) => self.seen.timeouts += 1,
                Err(Failure::WaitGivenUp { .. }) => self.seen.given_up += 1,
                Err(Failure::Interrupted { .. }) => self.seen.interrupted += 1,
                Err(Failure::Refused(lowkey_core::Refusal::LeaseNotFound { .. })) => {
                    self.seen.lease_gone += 1
                }
                _ => {}
            }
        }
    }

    fn ask(&mut self, node: usize, request: Request) {
        let call = CallId(self.calls.len() as u64 + 1);
        self.calls.insert(call, Call { node, ..Call::default() });
        self.step(node, Input::Request(call, Caller::Node, request));
    }

    /// Mostly the leader.
    fn some_node(&mut self) -> usize {
        let leader = self.replicas.iter().position(|replica| replica.status().role == Role::Leader);
        match leader {
            Some(leader) if !self.dice.once_in(10) => leader,
            _ => self.dice.below(self.replicas.len() as u64) as usize,
        }
    }

    fn some_lock(&mut self) -> LockName {
        let names = ["a", "a/b", "a/c", "d"];
        LockName::parse(names[self.dice.below(4) as usize]).expect("a good name")
    }

    fn some_lease(&mut self, node: usize) -> LeaseId {
        let leases: Vec<LeaseId> = self.replicas[node].state().leases().map(|(lease, _)| lease).collect();
        match leases.len() as u64 {
            0 => LeaseId(99),
            count => leases[self.dice.below(count) as usize],
        }
    }

    fn some_request(&mut self, node: usize) -> Request {
        let request = RequestId::parse(&format!("{}", self.dice.next())).expect("a good id");
        let lease = self.some_lease(node);
        let owner = owner_of(&self.replicas[node], lease);
        let (lock, since_unix_ms) = (self.some_lock(), 0);
        Request::Command(match self.dice.below(12) {
            // Again what was asked before, by a caller that came back or a copy that was late.
            0 | 1 if !self.waits.is_empty() => {
                return self.waits[self.dice.below(self.waits.len() as u64) as usize].clone();
            }
            0..=5 => return self.some_wait(lock, owner, lease, request),
            6 | 7 => Command::Release {
                lock,
                grant: GrantRef::Lease(lease),
                token: None,
                actor: None,
                since_unix_ms,
                request,
            },
            8 => match self.waits.last().cloned() {
                Some(Request::Wait {
                    command: Command::Acquire { lock, owner, with, request: acquire, .. },
                    ..
                }) => {
                    let requester = match with {
                        AcquireWith::Lease(lease) => Requester::Lease(lease),
                        AcquireWith::NewLease(_) => Requester::Owner(owner),
                    };
                    let grant = GrantRef::Request(acquire, requester);
                    Command::Release { lock, grant, token: None, actor: None, since_unix_ms, request }
                }
                _ => return Request::Read(Query::Revision),
            },
            9 => return Request::Renew { lease, holds: None },
            10 => Command::RevokeLease { lease, owner, actor: None, since_unix_ms, request },
            _ => {
                let owner = OwnerId::parse("somebody").expect("a good owner");
                Command::CreateLease { owner, ttl: Ttl::parse(2).expect("a good ttl"), request }
            }
        })
    }

    fn some_wait(&mut self, lock: LockName, owner: OwnerId, lease: LeaseId, request: RequestId) -> Request {
        let command = Command::Acquire {
            lock,
            owner,
            with: match self.dice.once_in(2) {
                true => AcquireWith::Lease(lease),
                false => AcquireWith::NewLease(Ttl::parse(1).expect("a good ttl")),
            },
            mode: if self.dice.once_in(3) { Mode::Shared } else { Mode::Exclusive },
            scope: if self.dice.once_in(4) { Scope::Subtree } else { Scope::Name },
            value: Value::default(),
            wait: !self.dice.once_in(8),
            max_hold: MaxHold::parse(if self.dice.once_in(4) { 1 } else { 0 }).expect("a good limit"),
            since_unix_ms: 0,
            request,
        };
        let wait = WaitTime::parse(self.dice.below(1_500) as i64).expect("a good wait");
        let request = Request::Wait { command, wait };
        self.waits.push(request.clone());
        request
    }

    /// Tells a node that some caller left: often one that waits, sometimes one that was answered.
    fn somebody_leaves(&mut self) {
        if self.calls.is_empty() {
            return;
        }
        let recent = (self.calls.len() as u64).min(8);
        let call_id = CallId(self.calls.len() as u64 - self.dice.below(recent));
        let call = self.calls.get_mut(&call_id).expect("it was made");
        if call.answers == 0 {
            call.gone = true;
            self.seen.left += 1;
        }
        let node = call.node;
        self.step(node, Input::CallerGone(call_id));
    }

    fn something_happens(&mut self) {
        match self.dice.below(40) {
            0..=17 => {
                let node = self.some_node();
                let request = self.some_request(node);
                self.ask(node, request);
            }
            18..=22 => self.somebody_leaves(),
            23..=30 => {
                let ticks = self.dice.below(20) as usize;
                self.tick(ticks);
            }
            31..=34 => self.deliver(),
            35 => self.network.clear(),
            36 => {
                let node = self.some_node();
                let room =
                    [DiskRoom::Ample, DiskRoom::Reserve, DiskRoom::Exhausted][self.dice.below(3) as usize];
                self.step(node, Input::Disk(room));
            }
            37 => {
                let node = self.some_node();
                self.step(node, Input::HandOver);
            }
            38 => self.cut_off = self.dice.once_in(2).then(|| self.some_node()),
            _ => self.now = self.now.after(self.dice.below(400) * MILLISECOND),
        }
    }

    /// All is well again, and nobody asks any more: in time every wait and every lease ends.
    fn rest(&mut self) {
        self.cut_off = None;
        for node in 0..self.replicas.len() {
            self.step(node, Input::Disk(DiskRoom::Ample));
        }
        self.tick(1_500);
        for (call_id, call) in &self.calls {
            assert!(call.gone || call.answers == 1, "{call_id:?} was never answered");
        }
        for replica in &self.replicas {
            assert_eq!((replica.state.waits().len(), replica.state.leases().len()), (0, 0));
            assert!(replica.arrivals.is_empty(), "{:?}", replica.arrivals);
            if let Some(lead) = replica.lead.get() {
                assert!(lead.has_nothing_to_do(), "{lead:?}");
            }
        }
    }
}

fn node(id: u64) -> NodeInfo {
    NodeInfo {
        name: NodeName::parse(&format!("n{id}")).expect("a good name"),
        identity: Some(NodeIdentity([id as u8; 16])),
        raft_address: format!("n{id}:7000"),
        grpc_address: format!("n{id}:9000"),
        http_address: format!("n{id}:8080"),
        command_version: COMMAND_VERSION,
        key_hash: None,
    }
}

fn owner_of(replica: &Replica, lease: LeaseId) -> OwnerId {
    let owner = replica.state().lease(lease).map(|lease| lease.owner.clone());
    owner.unwrap_or_else(|| OwnerId::parse("somebody").expect("a good owner"))
}

fn every_call_gets_one_answer(size: u64, seeds: u64, steps: usize) {
    let mut all = Seen::default();
    for seed in 1..=seeds {
        let run = std::panic::catch_unwind(|| {
            let mut world = World::new(size, seed);
            (0..steps).for_each(|_| world.something_happens());
            world.rest();
            world.seen
        });
        let seen = run.unwrap_or_else(|_| panic!("with {size} nodes and seed {seed}"));
        all.granted += seen.granted;
        all.timeouts += seen.timeouts;
        all.given_up += seen.given_up;
        all.interrupted += seen.interrupted;
        all.lease_gone += seen.lease_gone;
        all.left += seen.left;
    }
    let Seen { granted, timeouts, given_up, interrupted, lease_gone, left } = all;
    let kinds = BTreeSet::from([granted, timeouts, given_up, lease_gone, left]);
    assert!(!kinds.contains(&0) && (interrupted > 0 || size == 1), "not everything was seen: {all:?}");
}

#[test]
fn one_node_answers_every_call_once() {
    every_call_gets_one_answer(1, 60, 400);
}

#[test]
fn three_nodes_answer_every_call_once() {
    every_call_gets_one_answer(3, 40, 600);
}

#[test]
fn a_turn_does_no_more_than_it_has_time_for_and_the_next_goes_on() {
    let mut world = World::new(1, 1);
    let count = 2 * UNITS_A_TURN + 10;
    let before = world.calls.len();
    for _ in 0..count {
        world.ask(0, Request::Read(Query::Revision));
        world.ask(0, Request::ReadStale(Query::Revision));
    }
    while world.replicas[0].has_work() {
        let turn = world.replicas[0].begin_turn(world.now).expect("entries can be applied");
        assert!(turn.output.replies.len() <= 2 * UNITS_A_TURN, "{} in one turn", turn.output.replies.len());
        world.carry_out(0, turn.output);
        let output = world.replicas[0].end_turn(world.now).expect("entries can be applied");
        assert!(output.replies.len() <= UNITS_A_TURN);
        world.carry_out(0, output);
    }
    let answered = world.calls.values().skip(before).filter(|call| call.answers == 1).count();
    assert_eq!(answered, 2 * count);
}
