//! The snapshot before, and the entries since, give the live state byte for byte, wherever the line is
//! drawn between the two; and so does the state itself, however much happens before it is written.

use std::collections::BTreeMap;

use lowkey_core::{
    AcquireWith, Caller, ClusterId, Command, GrantRef, GroupId, LeaseId, LockName, MaxHold, Mode,
    NodeIdentity, NodeInfo, NodeName, OwnerId, RequestId, Scope, State, Ttl, Value, WaitTime,
};
use lowkey_replica::{
    CallId, Config, Found, Input, MILLISECOND, Nanos, Replica, Request, SnapshotJob, found,
};
use proptest::prelude::*;
use prost::Message as _;

const CLUSTER: ClusterId = ClusterId([7; 16]);

/// A snapshot's payload as its format is written down, read without the code under test.
#[derive(Clone, PartialEq, prost::Message)]
struct SnapshotRecord {
    #[prost(uint64, tag = "1")]
    index: u64,
    #[prost(uint64, tag = "2")]
    term: u64,
    #[prost(bytes = "vec", tag = "4")]
    state: Vec<u8>,
    #[prost(fixed64, tag = "5")]
    state_hash: u64,
}

#[derive(Clone, Debug)]
enum Action {
    CreateLease,
    Acquire { lock: usize, lease: u64, shared: bool, subtree: bool, waits: bool },
    AcquireWithNewLease { lock: usize, waits: bool },
    Release { lock: usize, lease: u64 },
    Revoke { lease: u64 },
    SetValue { lock: usize, lease: u64, value: u8 },
    Pass { ticks: u64 },
}

fn action() -> impl Strategy<Value = Action> {
    let (lock, lease) = (0..4_usize, 1..12_u64);
    prop_oneof![
        2 => Just(Action::CreateLease),
        4 => (lock.clone(), lease.clone(), any::<bool>(), any::<bool>(), any::<bool>()).prop_map(
            |(lock, lease, shared, subtree, waits)| Action::Acquire { lock, lease, shared, subtree, waits }
        ),
        2 => (lock.clone(), any::<bool>())
            .prop_map(|(lock, waits)| Action::AcquireWithNewLease { lock, waits }),
        4 => (lock.clone(), lease.clone()).prop_map(|(lock, lease)| Action::Release { lock, lease }),
        1 => lease.clone().prop_map(|lease| Action::Revoke { lease }),
        1 => (lock, lease, any::<u8>())
            .prop_map(|(lock, lease, value)| Action::SetValue { lock, lease, value }),
        1 => (1..200_u64).prop_map(|ticks| Action::Pass { ticks }),
    ]
}

fn owner() -> OwnerId {
    OwnerId::parse("alice").expect("a good owner")
}

fn lock_name(number: usize) -> LockName {
    LockName::parse(["a", "a/b", "a/b/c", "d"][number]).expect("a good name")
}

/// A lone node that remembers its snapshots.
struct Node {
    replica: Replica,
    now: Nanos,
    calls: u64,
    files: BTreeMap<u64, Vec<u8>>,
    /// Under way, with the live state as of its index.
    job: Option<(SnapshotJob, Vec<u8>)>,
    made: usize,
}

impl Node {
    fn new(snapshot_entries: u64, at_once: bool) -> Self {
        let info = NodeInfo {
            name: NodeName::parse("n1").expect("a good name"),
            identity: Some(NodeIdentity([1; 16])),
            raft_address: "n1:7000".into(),
            grpc_address: "n1:9000".into(),
            http_address: "n1:8080".into(),
            command_version: 1,
            key_hash: None,
        };
        let founding = found(GroupId::ROOT, CLUSTER, info);
        let on_disk = Found {
            snapshot: Some(founding.snapshot.payload.clone()),
            hard_state: Some(founding.records[0].payload.clone()),
            compaction: Some((founding.records[1].index, founding.records[1].payload.clone())),
            ..Found::default()
        };
        let config = Config {
            snapshot_entries,
            snapshot_bytes_per_entry: 64 * 1024,
            snapshot_at_once_bytes: if at_once { u64::MAX } else { 0 },
            tail_entries: 3,
            ..Config::new(GroupId::ROOT, founding.member, 1)
        };
        let mut node = Self {
            replica: Replica::recover(config, CLUSTER, on_disk).expect("a founder's disk is whole"),
            now: Nanos(0),
            calls: 0,
            files: BTreeMap::from([(founding.snapshot.index, founding.snapshot.payload)]),
            job: None,
            made: 0,
        };
        node.run();
        node
    }

    fn step(&mut self, input: Input) {
        self.replica.step(self.now, input);
        self.run();
    }

    fn run(&mut self) {
        while self.replica.has_work() {
            let turn = self.replica.begin_turn(self.now).expect("a turn begins");
            let end = self.replica.end_turn(self.now).expect("a turn ends");
            if let Some(job) = turn.output.snapshot.or(end.snapshot) {
                let state = self.replica.state();
                assert_eq!(state.revision(), job.index());
                assert!(self.job.is_none(), "one at a time");
                self.job = Some((job, state.encode_snapshot()));
            }
        }
    }

    /// Makes the snapshot that is under way.
    fn make(&mut self) {
        let Some((job, live)) = self.job.take() else { return };
        let base = &self.files[&job.base()];
        let made = job.run(base).expect("a snapshot can be made");
        let record = SnapshotRecord::decode(made.payload.as_slice()).expect("a snapshot can be read");
        assert_eq!(record.index, made.index);
        assert!(record.term > 0);
        assert!(record.state == live, "snapshot and log do not give the live state at {}", made.index);
        assert_eq!(record.state_hash, State::hash_of_snapshot(&live));
        let size_bytes = made.payload.len() as u64;
        self.files.insert(made.index, made.payload);
        self.made += 1;
        self.step(Input::SnapshotSaved { index: made.index, size_bytes });
    }

    fn act(&mut self, action: &Action) {
        self.calls += 1;
        let request = RequestId::parse(&format!("request-{}", self.calls)).expect("a good id");
        let ttl = Ttl::parse(1).expect("a good ttl");
        let acquire = |lock: usize, with, mode, scope, waits: bool| Command::Acquire {
            lock: lock_name(lock),
            owner: owner(),
            with,
            mode,
            scope,
            value: Value::default(),
            wait: waits,
            max_hold: MaxHold::parse(i64::try_from(lock).unwrap_or(0) % 3).expect("a good limit"),
            since_unix_ms: 0,
            request: request.clone(),
        };
        let command = match *action {
            Action::CreateLease => Command::CreateLease { owner: owner(), ttl, request },
            Action::Acquire { lock, lease, shared, subtree, waits } => {
                let mode = if shared { Mode::Shared } else { Mode::Exclusive };
                let scope = if subtree { Scope::Subtree } else { Scope::Name };
                acquire(lock, AcquireWith::Lease(LeaseId(lease)), mode, scope, waits)
            }
            Action::AcquireWithNewLease { lock, waits } => {
                acquire(lock, AcquireWith::NewLease(ttl), Mode::Exclusive, Scope::Name, waits)
            }
            Action::Release { lock, lease } => Command::Release {
                lock: lock_name(lock),
                grant: GrantRef::Lease(LeaseId(lease)),
                token: None,
                actor: None,
                since_unix_ms: 0,
                request,
            },
            Action::Revoke { lease } => Command::RevokeLease {
                lease: LeaseId(lease),
                owner: owner(),
                actor: None,
                since_unix_ms: 0,
                request,
            },
            Action::SetValue { lock, lease, value } => Command::SetValue {
                lock: lock_name(lock),
                owner: owner(),
                lease: LeaseId(lease),
                token: None,
                value: Value::parse(&value.to_string()).expect("a good value"),
                since_unix_ms: 0,
                request,
            },
            Action::Pass { ticks } => {
                for _ in 0..ticks {
                    self.now = self.now.after(10 * MILLISECOND);
                    self.step(Input::Tick);
                }
                return;
            }
        };
        let waits = matches!(command, Command::Acquire { wait: true, .. });
        let request = match waits {
            true => Request::Wait { command, wait: WaitTime::parse(500).expect("a good time") },
            false => Request::Command(command),
        };
        self.step(Input::Request(CallId(self.calls), Caller::Node, request));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn snapshot_and_log_give_the_live_state(
        snapshot_entries in 1..30_u64,
        at_once in any::<bool>(),
        // How many actions the making of a snapshot takes.
        takes in 0..20_usize,
        actions in prop::collection::vec(action(), 100..300),
    ) {
        let mut node = Node::new(snapshot_entries, at_once);
        let mut begun = 0;
        for (number, action) in actions.iter().enumerate() {
            let under_way = node.job.is_some();
            node.act(action);
            if !under_way {
                begun = number;
            }
            if number - begun >= takes {
                node.make();
            }
        }
        // Whatever the actions were, enough of them come that cannot be refused.
        for _ in 0..=snapshot_entries {
            node.act(&Action::CreateLease);
        }
        node.make();
        prop_assert!(node.made > 0, "no snapshot was ever due");
    }
}

#[test]
fn a_snapshot_whose_file_is_lost_is_made_anew_of_the_live_state() {
    let mut node = Node::new(5, false);
    let until_due = |node: &mut Node| {
        while node.job.is_none() {
            node.act(&Action::CreateLease);
        }
    };
    until_due(&mut node);
    node.make();
    until_due(&mut node);
    let (job, _) = node.job.take().unwrap();
    let (index, base) = (job.index(), job.base());
    assert!(job.needs_base());
    node.step(Input::SnapshotFailed { index });
    node.step(Input::SnapshotLost { index: base - 1 });
    assert!(node.job.is_none(), "an older one is not missed");
    node.step(Input::SnapshotLost { index: base });
    let (job, live) = node.job.take().expect("another one is made at once");
    assert!(!job.needs_base());
    node.files.remove(&base);
    node.files.insert(base, Vec::new());
    node.job = Some((job, live));
    node.make();
    until_due(&mut node);
    assert!(node.job.as_ref().unwrap().0.needs_base(), "from then on as always");
    node.make();
}

#[test]
fn a_lost_snapshot_is_made_anew_also_where_nothing_has_happened_since() {
    let mut node = Node::new(5, false);
    while node.job.is_none() {
        node.act(&Action::CreateLease);
    }
    node.make();
    let newest = *node.files.keys().last().unwrap();
    node.step(Input::SnapshotLost { index: newest });
    let (job, _) = node.job.as_ref().expect("another one is made at once");
    assert!(!job.needs_base() && job.index() >= newest);
    node.make();
}
