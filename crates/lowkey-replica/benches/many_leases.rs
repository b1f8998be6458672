//! What very many leases cost a leader in one step: when it begins to lead, when it stalled (R8), when its lead ends.
//!
//! Nothing leaves a node while a step lasts, not even a heartbeat. So no step may take long, however many leases there are.
//!
//! `cargo bench -p lowkey-replica --bench many_leases`

use std::collections::{BTreeMap, VecDeque};

use lowkey_core::{
    COMMAND_VERSION, Caller, ClusterId, Command, GroupId, MemberId, NodeIdentity, NodeInfo, NodeName,
    OwnerId, RequestId, Ttl,
};
use lowkey_replica::{
    CallId, Config, Found, Input, MILLISECOND, Message, MessageType, Nanos, Output, ReceivedSnapshot, Record,
    RecordKind, Replica, Request, found,
};

const CLUSTER: ClusterId = ClusterId([7; 16]);
/// Leases that are asked for in one turn.
const BATCH: u64 = 1_000;

fn main() {
    // Without that word it is not a benchmark that is run, but a test of it.
    let is_measured = std::env::args().any(|argument| argument == "--bench");
    let leases = if is_measured { 1_000_000 } else { 10_000 };
    let mut pair = Pair::new();
    pair.create_leases(leases);
    println!("{:<56}{:>16}{:>12}", format!("{leases} leases"), "longest step, ms", "ticks");
    pair.report("the lead is handed over, and the other leads", |pair| {
        pair.step(0, Input::HandOver);
        pair.tick_until(|pair| pair.replicas[1].status().serving)
    });
    pair.report("a second under the new leader", |pair| pair.tick(100));
    pair.report("it stalls for 300 ms, and goes on", |pair| {
        pair.now = pair.now.after(300 * MILLISECOND);
        pair.tick(20)
    });
    pair.report("it stalls for 300 ms every 400 ms", |pair| {
        for _ in 0..5 {
            pair.now = pair.now.after(300 * MILLISECOND);
            pair.tick(10);
        }
        50
    });
}

/// Two nodes without disks, in one thread.
struct Pair {
    replicas: Vec<Replica>,
    network: VecDeque<Message>,
    snapshots: BTreeMap<u64, Vec<u8>>,
    now: Nanos,
    calls: u64,
    /// The longest step since this was last looked at, in nanoseconds on the processor.
    longest: f64,
    is_timed: bool,
}

impl Pair {
    fn new() -> Self {
        let founding = found(GroupId::ROOT, CLUSTER, node(1));
        let mut records = founding.records.into_iter();
        let mut payload = |kind| records.find(|record: &Record| record.kind == kind).expect("a founder's");
        let hard_state = Some(payload(RecordKind::HardState).payload);
        let reset = payload(RecordKind::Reset);
        let snapshots = BTreeMap::from([(founding.snapshot.index, founding.snapshot.payload.clone())]);
        let first = Found {
            snapshot: Some(founding.snapshot.payload),
            hard_state,
            compaction: Some((reset.index, reset.payload)),
            entries: VecDeque::new(),
        };
        let second = Found { snapshot: None, hard_state: None, compaction: None, entries: VecDeque::new() };
        let recover = |(number, disk)| {
            let config = Config {
                snapshot_entries: u64::MAX,
                snapshot_bytes: u64::MAX / 4,
                ..Config::new(GroupId::ROOT, MemberId(number), 1)
            };
            Replica::recover(config, CLUSTER, disk).expect("a whole disk")
        };
        let replicas = (1..).zip([first, second]).map(recover).collect();
        let mut pair = Self {
            replicas,
            network: VecDeque::new(),
            snapshots,
            now: Nanos(0),
            calls: 0,
            longest: 0.0,
            is_timed: false,
        };
        pair.tick(5);
        pair.ask(Command::AddMember { node: Box::new(node(2)), invitation: None });
        pair.tick(100);
        assert_eq!(pair.replicas[0].voters().len(), 2);
        pair
    }

    fn create_leases(&mut self, count: u64) {
        for number in 0..count {
            self.ask(Command::CreateLease {
                owner: OwnerId::parse("owner").expect("an owner id"),
                ttl: Ttl::parse(600).expect("a ttl"),
                request: RequestId::parse(&format!("request-{number}")).expect("a request id"),
            });
            if number % BATCH == 0 {
                self.deliver();
            }
        }
        self.tick(10);
        assert_eq!(self.replicas[1].state().leases().len() as u64, count);
    }

    fn ask(&mut self, command: Command) {
        self.calls += 1;
        self.step(0, Input::Request(CallId(self.calls), Caller::Node, Request::Command(command)));
    }

    /// Time passes; gives the number of ticks.
    fn tick(&mut self, ticks: u64) -> u64 {
        for _ in 0..ticks {
            self.now = self.now.after(10 * MILLISECOND);
            (0..2).for_each(|node| self.step(node, Input::Tick));
            self.deliver();
        }
        ticks
    }

    fn tick_until(&mut self, so: impl Fn(&Self) -> bool) -> u64 {
        let mut ticks = 0;
        while !so(self) {
            ticks += self.tick(1);
            assert!(ticks < 1_000, "not within 10 s");
        }
        ticks
    }

    fn step(&mut self, node: usize, input: Input) {
        let now = self.now;
        self.timed(|pair| pair.replicas[node].step(now, input));
    }

    fn deliver(&mut self) {
        loop {
            (0..2).for_each(|node| self.run(node));
            let under_way = std::mem::take(&mut self.network);
            if under_way.is_empty() {
                return;
            }
            for message in under_way {
                let to = message.to as usize - 1;
                let input = match message.get_msg_type() {
                    MessageType::MsgSnapshot => {
                        let index = message.get_snapshot().get_metadata().index;
                        let received = ReceivedSnapshot::read(message, self.snapshots[&index].clone());
                        Input::Snapshot(Box::new(received.expect("what was made can be read")))
                    }
                    _ => Input::Message(Box::new(message)),
                };
                self.step(to, input);
            }
        }
    }

    fn run(&mut self, node: usize) {
        while self.replicas[node].has_work() {
            let now = self.now;
            let turn =
                self.timed(|pair| pair.replicas[node].begin_turn(now)).expect("entries can be applied");
            self.carry_out(node, turn.output);
            let output =
                self.timed(|pair| pair.replicas[node].end_turn(now)).expect("entries can be applied");
            self.carry_out(node, output);
        }
    }

    fn carry_out(&mut self, node: usize, output: Output) {
        self.network.extend(output.messages);
        if let Some(job) = output.snapshot {
            let base = self.snapshots[&job.base()].clone();
            let made = job.run(&base).expect("a snapshot can be made");
            let (index, size_bytes) = (made.index, made.payload.len() as u64);
            self.snapshots.insert(index, made.payload);
            self.step(node, Input::SnapshotSaved { index, size_bytes });
        }
    }

    fn timed<T>(&mut self, step: impl FnOnce(&mut Self) -> T) -> T {
        if !self.is_timed {
            return step(self);
        }
        let start = time_on_processor();
        let done = step(self);
        self.longest = self.longest.max(time_on_processor() - start);
        done
    }

    fn report(&mut self, what: &str, act: impl FnOnce(&mut Self) -> u64) {
        (self.longest, self.is_timed) = (0.0, true);
        let ticks = act(self);
        self.is_timed = false;
        println!("{what:<56}{:>16.1}{ticks:>12}", self.longest / 1_000_000.0);
    }
}

fn node(number: u64) -> NodeInfo {
    NodeInfo {
        name: NodeName::parse(&format!("n{number}")).expect("a name"),
        identity: Some(NodeIdentity([number as u8; 16])),
        raft_address: format!("n{number}:7000"),
        grpc_address: format!("n{number}:9000"),
        http_address: format!("n{number}:8080"),
        command_version: COMMAND_VERSION,
        key_hash: None,
    }
}

/// Nanoseconds that this thread has had of a processor, 0 where that cannot be read: a busy machine would stretch
/// any other clock.
fn time_on_processor() -> f64 {
    // The count is brought up to date where threads change.
    std::thread::yield_now();
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split_ascii_whitespace().next().and_then(|number| number.parse().ok()).unwrap_or_default()
}
