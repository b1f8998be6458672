//! A small world for replicas: disks, a network of queues, clocks moved by hand, and callers.
//!
//! It keeps what every script relies on: a call is answered at most once, all replicas hash alike at
//! the same index, and messages travel as bytes, through the same encoding as on a real network.

mod disk;
mod network;
mod requests;
mod words;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::error::Error;
use std::fmt::Write as _;

use lowkey_core::{
    COMMAND_VERSION, Caller, ClusterId, FirstNumbers, GroupId, LeaseId, MemberId, NewBeginning, NodeIdentity,
    NodeInfo, NodeName,
};
use lowkey_replica::{
    CallId, Config, Input, MILLISECOND, Nanos, Output, Persist, Replica, Report, Request, SnapshotFile,
    SnapshotJob, Survivor, found,
};

pub(crate) use disk::Disk;
use network::Letter;
pub(crate) use requests::Words;
pub(crate) use words::message_words;

pub(crate) type Done = Result<(), Box<dyn Error>>;

pub(crate) const CLUSTER: ClusterId = ClusterId([7; 16]);
const GROUP: GroupId = GroupId::ROOT;
const TICK_NANOS: u64 = 10 * MILLISECOND;

/// Where a turn ends early.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Crash {
    BeforePersist,
    AfterSnapshot,
    AfterPersist,
}

pub(crate) struct Cluster {
    nodes: BTreeMap<u64, Node>,
    network: BTreeMap<(u64, u64), VecDeque<Letter>>,
    cut: BTreeSet<(u64, u64)>,
    calls: BTreeMap<CallId, Call>,
    last_call: u64,
    /// What replicas say of their states, under way.
    said: VecDeque<Report>,
    /// Nodes whose state was tampered with.
    drifted: BTreeSet<u64>,
    /// What a node is told once its turn is over.
    reports: VecDeque<(u64, Input)>,
    /// Nodes that were told that they are no members any more.
    told_removed: BTreeSet<u64>,
    /// What the replicas' states hashed to, by revision.
    hashes: BTreeMap<u64, u64>,
    pub(crate) settings: Settings,
    /// What happened since the last command.
    pub(crate) log: String,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    pub(crate) snapshot_entries: u64,
    pub(crate) snapshot_bytes: u64,
    pub(crate) snapshot_bytes_per_entry: u64,
    pub(crate) tail_entries: u64,
    pub(crate) slow_entries_max: u64,
    pub(crate) slow_bytes_max: u64,
    pub(crate) leases_max: usize,
    pub(crate) command_version: u32,
    pub(crate) checkpoints: bool,
    pub(crate) seed: u64,
    /// Snapshots stay unwritten until a script says so.
    pub(crate) hold_snapshots: bool,
    pub(crate) show_messages: bool,
    pub(crate) show_changes: bool,
    pub(crate) show_disk: bool,
}

struct Call {
    node: u64,
    words: String,
    /// What a script calls it.
    name: Option<String>,
    answered: bool,
    /// Nobody is there any more to hear the answer.
    gone: bool,
}

struct Node {
    replica: Option<Replica>,
    disk: Disk,
    clock: Nanos,
    held_snapshot: Option<SnapshotFile>,
    /// What was last told about it.
    standing: String,
    voters: String,
    leases: BTreeSet<LeaseId>,
}

impl Node {
    fn new(disk: Disk) -> Self {
        Self {
            replica: None,
            disk,
            clock: Nanos(0),
            held_snapshot: None,
            standing: String::new(),
            voters: String::new(),
            leases: BTreeSet::new(),
        }
    }
}

pub(crate) fn node_info(id: u64) -> NodeInfo {
    NodeInfo {
        name: NodeName::parse(&format!("n{id}")).expect("a short name is a node's name"),
        identity: Some(NodeIdentity([id as u8; 16])),
        raft_address: format!("n{id}:7000"),
        grpc_address: format!("n{id}:9000"),
        http_address: format!("n{id}:8080"),
        command_version: COMMAND_VERSION,
        key_hash: None,
    }
}

impl Cluster {
    pub(crate) fn new() -> Self {
        Self {
            nodes: BTreeMap::new(),
            network: BTreeMap::new(),
            cut: BTreeSet::new(),
            calls: BTreeMap::new(),
            last_call: 0,
            said: VecDeque::new(),
            drifted: BTreeSet::new(),
            reports: VecDeque::new(),
            told_removed: BTreeSet::new(),
            hashes: BTreeMap::new(),
            settings: Settings {
                snapshot_entries: 10_000,
                snapshot_bytes: 64 * 1024 * 1024,
                snapshot_bytes_per_entry: 64 * 1024,
                tail_entries: 1_000,
                slow_entries_max: 100_000,
                slow_bytes_max: 64 * 1024 * 1024,
                leases_max: 1_000_000,
                command_version: COMMAND_VERSION,
                checkpoints: false,
                seed: 1,
                hold_snapshots: false,
                show_messages: false,
                show_changes: false,
                show_disk: false,
            },
            log: String::new(),
        }
    }

    fn tell(&mut self, line: impl AsRef<str>) {
        writeln!(self.log, "{}", line.as_ref()).expect("a string takes all");
    }

    fn node(&mut self, id: u64) -> Result<&mut Node, String> {
        self.nodes.get_mut(&id).ok_or_else(|| format!("there is no n{id}"))
    }

    pub(crate) fn replica(&mut self, id: u64) -> Result<&mut Replica, String> {
        self.node(id)?.replica.as_mut().ok_or_else(|| format!("n{id} is down"))
    }

    pub(crate) fn clock(&mut self, id: u64) -> Result<Nanos, String> {
        Ok(self.node(id)?.clock)
    }

    pub(crate) fn live(&self) -> Vec<u64> {
        self.nodes.iter().filter(|(_, node)| node.replica.is_some()).map(|(id, _)| *id).collect()
    }

    // How nodes come and go.

    /// Founds a cluster with n1, and starts it.
    pub(crate) fn found(&mut self) -> Done {
        let command_version = self.settings.command_version;
        let founding = found(GroupId::ROOT, CLUSTER, NodeInfo { command_version, ..node_info(1) });
        assert_eq!(founding.member, MemberId(1));
        let mut disk = Disk::default();
        disk.persist(&Persist { snapshot: Some(founding.snapshot), records: founding.records });
        self.nodes.insert(1, Node::new(disk));
        self.start(1)
    }

    /// Begins a new cluster with what the disk of a node holds that is down. Its only node has the next number.
    pub(crate) fn begin_anew(&mut self, id: u64, quarantine: bool) -> Done {
        let node = self.node(id)?;
        let survivor = Survivor::read(CLUSTER, MemberId(id), &node.disk.found())?;
        let new_id = survivor.state().last_member().0 + 1;
        let beginning = NewBeginning {
            cluster: CLUSTER,
            node: node_info(new_id),
            numbers: FirstNumbers::Unclaimed { unix_minutes: 0, spread: 0 },
            keep_tokens: true,
            quarantine,
        };
        let founding = survivor.begin_anew(beginning).map_err(|spent| format!("{spent:?}"))?;
        assert_eq!(founding.member, MemberId(new_id));
        self.tell(format!(
            "n{new_id} begins behind {}; n{id} knew {} entries, {} of them committed",
            founding.snapshot.index,
            survivor.state().revision(),
            survivor.committed()
        ));
        let mut disk = Disk::default();
        disk.persist(&Persist { snapshot: Some(founding.snapshot), records: founding.records });
        self.nodes.insert(new_id, Node::new(disk));
        self.start(new_id)
    }

    /// Starts a node from what its disk holds; a new one's holds nothing.
    pub(crate) fn start(&mut self, id: u64) -> Done {
        let Settings { snapshot_entries, snapshot_bytes, tail_entries, leases_max, seed, .. } = self.settings;
        let mut config = Config::new(GROUP, MemberId(id), seed);
        // Scripts speak of deadlines as they are.
        config.expiry_grace_nanos = 0;
        config.snapshot_entries = snapshot_entries;
        config.snapshot_bytes = snapshot_bytes;
        config.snapshot_bytes_per_entry = self.settings.snapshot_bytes_per_entry;
        config.snapshot_at_once_bytes = 0;
        config.tail_entries = tail_entries;
        config.slow_entries_max = self.settings.slow_entries_max;
        config.slow_bytes_max = self.settings.slow_bytes_max;
        config.leases_max = leases_max;
        config.command_version = self.settings.command_version;
        // Most scripts count entries, and speak of other things.
        if !self.settings.checkpoints {
            (config.checkpoint_entries, config.checkpoint_nanos) = (u64::MAX, u64::MAX);
        }
        let node = self.nodes.entry(id).or_insert_with(|| Node::new(Disk::default()));
        if node.replica.is_some() {
            return Err(format!("n{id} is up").into());
        }
        node.replica = Some(Replica::recover(config, CLUSTER, node.disk.found())?);
        self.observe(id);
        Ok(())
    }

    /// Takes from a node all that is not on its disk.
    pub(crate) fn crash(&mut self, id: u64) -> Done {
        let node = self.node(id)?;
        node.replica.take().ok_or_else(|| format!("n{id} is down"))?;
        node.held_snapshot = None;
        node.standing.clear();
        node.voters.clear();
        node.leases.clear();
        let lost: Vec<String> = self
            .calls
            .values_mut()
            .filter(|call| call.node == id && !call.answered && !call.gone)
            .map(|call| {
                call.answered = true;
                call.words.clone()
            })
            .collect();
        self.tell(format!("n{id} is down"));
        lost.into_iter().for_each(|words| self.tell(format!("n{id} {words} → never answered")));
        Ok(())
    }

    // How a node is driven.

    pub(crate) fn step(&mut self, id: u64, input: Input) -> Done {
        let now = self.clock(id)?;
        self.replica(id)?.step(now, input);
        Ok(())
    }

    pub(crate) fn call(&mut self, id: u64, words: String, name: Option<String>, request: Request) -> Done {
        self.last_call += 1;
        let call = CallId(self.last_call);
        self.calls.insert(call, Call { node: id, words, name, answered: false, gone: false });
        self.step(id, Input::Request(call, Caller::Node, request))
    }

    /// A caller leaves; the node that it asked is told, and named.
    pub(crate) fn gone(&mut self, name: &str) -> Result<u64, Box<dyn Error>> {
        let mut calls = self.calls.iter_mut().filter(|(_, call)| call.name.as_deref() == Some(name));
        let (call_id, call) = calls.next_back().ok_or_else(|| format!("there is no call {name}"))?;
        call.gone = true;
        let (call_id, node) = (*call_id, call.node);
        self.step(node, Input::CallerGone(call_id))?;
        Ok(node)
    }

    /// Takes turns until there is nothing to do.
    pub(crate) fn run(&mut self, id: u64) -> Done {
        while self.nodes.get(&id).and_then(|node| node.replica.as_ref()).is_some_and(Replica::has_work) {
            self.turn(id, None)?;
        }
        Ok(())
    }

    /// One turn: what may leave at once, then the disk, then the rest.
    pub(crate) fn turn(&mut self, id: u64, crash: Option<Crash>) -> Done {
        let now = self.clock(id)?;
        let turn = self.replica(id)?.begin_turn(now)?;
        self.carry_out(id, turn.output)?;
        if crash == Some(Crash::BeforePersist) {
            return self.crash(id);
        }
        if self.settings.show_disk && !turn.persist.is_empty() {
            self.tell(format!("n{id} writes {}", disk::persist_words(&turn.persist)));
        }
        if crash == Some(Crash::AfterSnapshot) {
            let snapshot = turn.persist.snapshot.ok_or("no snapshot is written in this turn")?;
            self.node(id)?.disk.save_snapshot(&snapshot);
            return self.crash(id);
        }
        self.node(id)?.disk.persist(&turn.persist);
        if crash == Some(Crash::AfterPersist) {
            return self.crash(id);
        }
        let output = self.replica(id)?.end_turn(now)?;
        self.carry_out(id, output)?;
        while let Some((to, input)) = self.reports.pop_front() {
            self.step(to, input)?;
        }
        self.observe(id);
        Ok(())
    }

    fn carry_out(&mut self, id: u64, output: Output) -> Done {
        for message in output.messages {
            self.send(message)?;
        }
        self.said.extend(output.reports);
        for (call_id, answer) in output.replies {
            let call = self.calls.get_mut(&call_id).ok_or("an answer to nobody's question")?;
            assert_eq!(call.node, id, "call {call_id:?} is answered by another node");
            assert!(!call.answered, "call {call_id:?} is answered twice");
            call.answered = true;
            let to_nobody = if call.gone { ", to nobody" } else { "" };
            let line = format!("n{id} {} → {}{to_nobody}", call.words, words::answer_words(&answer));
            self.tell(line);
        }
        if self.settings.show_changes {
            if let Some(index) = output.history_lost {
                self.tell(format!("n{id} watch: what happened up to {index} is lost"));
            }
            for (revision, changes) in &output.changes {
                for change in changes {
                    self.tell(format!("n{id} watch {revision}: {}", words::change_words(change)));
                }
            }
        }
        if let Some(job) = output.snapshot {
            self.tell(format!("n{id} makes a snapshot of {} from that of {}", job.index(), job.base()));
            let snapshot = self.make_snapshot(id, job)?;
            self.node(id)?.held_snapshot = Some(snapshot);
            if !self.settings.hold_snapshots {
                self.save_snapshot(id)?;
                let saved = self.take_saved(id)?;
                self.reports.push_back((id, saved));
            }
        }
        Ok(())
    }

    /// Makes a snapshot from what is on disk, and compares it with the live state.
    fn make_snapshot(&mut self, id: u64, job: SnapshotJob) -> Result<SnapshotFile, Box<dyn Error>> {
        let base = self.node(id)?.disk.snapshot(job.base()).ok_or("the base is not on disk")?;
        let snapshot = job.run(&base)?;
        let state = self.replica(id)?.state();
        if state.revision() == snapshot.index {
            let live = state.encode_snapshot();
            let is_there = snapshot.payload.windows(live.len()).any(|window| window == live);
            assert!(is_there, "n{id}: snapshot and log give another state than the live one");
        }
        Ok(snapshot)
    }

    /// Writes the snapshot that was made to its file; the replica does not know yet.
    pub(crate) fn save_snapshot(&mut self, id: u64) -> Done {
        let node = self.node(id)?;
        let snapshot = node.held_snapshot.as_ref().ok_or("no snapshot waits to be written")?;
        node.disk.save_snapshot(snapshot);
        Ok(())
    }

    pub(crate) fn snapshot_saved(&mut self, id: u64) -> Done {
        let saved = self.take_saved(id)?;
        self.step(id, saved)
    }

    fn take_saved(&mut self, id: u64) -> Result<Input, Box<dyn Error>> {
        let snapshot = self.node(id)?.held_snapshot.take().ok_or("no snapshot waits to be written")?;
        Ok(Input::SnapshotSaved { index: snapshot.index, size_bytes: snapshot.payload.len() as u64 })
    }

    pub(crate) fn snapshot_failed(&mut self, id: u64) -> Done {
        let snapshot = self.node(id)?.held_snapshot.take().ok_or("no snapshot waits to be written")?;
        self.step(id, Input::SnapshotFailed { index: snapshot.index })
    }

    /// Tells what changed in a node, and compares its state with the others'.
    fn observe(&mut self, id: u64) {
        let node = self.nodes.get_mut(&id).expect("a node that took a turn is there");
        let replica = node.replica.as_ref().expect("a node that took a turn is up");
        let status = replica.status();
        let mut lines = Vec::new();
        let standing = words::standing_words(&status);
        if standing != node.standing {
            lines.push(format!("n{id} {standing}"));
            node.standing = standing;
        }
        let voters = words::voters_words(&status);
        if voters != node.voters {
            lines.push(format!("n{id} sees voters {voters}"));
            node.voters = voters;
        }
        let leases: BTreeSet<LeaseId> = replica.state().leases().map(|(lease, _)| lease).collect();
        if status.serving {
            for lease in node.leases.difference(&leases) {
                lines.push(format!("n{id} lease {lease} ends at {}", node.clock));
            }
        }
        node.leases = leases;
        let (revision, hash) = (replica.state().revision(), replica.state().hash());
        if self.drifted.contains(&id) {
            if self.hashes.get(&revision) == Some(&hash) {
                self.drifted.remove(&id);
                lines.push(format!("n{id} is right again"));
            }
            lines.into_iter().for_each(|line| self.tell(line));
            return;
        }
        let known = *self.hashes.entry(revision).or_insert(hash);
        assert_eq!(known, hash, "n{id} differs from the others at revision {revision}");
        lines.into_iter().for_each(|line| self.tell(line));
    }

    /// Makes the snapshot on the disk of a node that is down another one, as no checksum would notice.
    pub(crate) fn tamper(&mut self, id: u64, from: &str, to: &str) -> Done {
        self.node(id)?.disk.tamper(from, to)?;
        self.drifted.insert(id);
        Ok(())
    }

    pub(crate) fn known(&self) -> Vec<u64> {
        self.nodes.keys().copied().collect()
    }

    // Time.

    /// Lets time pass on some nodes, tick by tick, with or without messages arriving in between.
    pub(crate) fn advance(&mut self, ids: &[u64], millis: u64, deliver: bool) -> Done {
        for _ in 0..millis / 10 {
            for id in ids {
                self.tick(*id)?;
                self.run(*id)?;
            }
            if deliver {
                self.stabilize()?;
            }
        }
        Ok(())
    }

    /// One tick, and no turn.
    pub(crate) fn tick(&mut self, id: u64) -> Done {
        let node = self.node(id)?;
        node.clock = node.clock.after(TICK_NANOS);
        if node.replica.is_some() { self.step(id, Input::Tick) } else { Ok(()) }
    }

    /// Lets time pass on some nodes while nothing runs there.
    pub(crate) fn pause(&mut self, ids: &[u64], millis: u64) -> Done {
        for id in ids {
            let node = self.node(*id)?;
            node.clock = node.clock.after(millis * MILLISECOND);
        }
        Ok(())
    }

    // What can be asked.

    pub(crate) fn status(&mut self) {
        for id in self.known() {
            let node = &self.nodes[&id];
            let line = match &node.replica {
                None => format!("n{id} is down"),
                Some(replica) => {
                    let status = replica.status();
                    let waiters = match status.waiters {
                        0 => String::new(),
                        count => format!(", waiters {count}"),
                    };
                    let factor = match status.timing_factor {
                        1 => String::new(),
                        factor => format!(", factor {factor}"),
                    };
                    format!(
                        "n{id} {}, applied {}, committed {}, voters {}, leases {}, locks {}{waiters}, last token {}{factor}",
                        words::standing_words(&status),
                        status.applied,
                        status.committed,
                        words::voters_words(&status),
                        status.leases,
                        status.locks,
                        status.last_token
                    )
                }
            };
            self.tell(line);
        }
    }

    pub(crate) fn hash(&mut self) {
        for id in self.live() {
            let state = self.nodes[&id].replica.as_ref().expect("a live node is up").state();
            let line = format!("n{id} {:016x} at {}", state.hash(), state.revision());
            self.tell(line);
        }
    }

    pub(crate) fn dump(&mut self, id: u64) -> Done {
        let words = self.node(id)?.disk.words();
        self.tell(format!("n{id} has {words}"));
        Ok(())
    }

    pub(crate) fn waiting(&mut self) {
        let lines: Vec<String> = self
            .calls
            .values()
            .filter(|call| !call.answered && !call.gone)
            .map(|call| format!("n{} {} waits", call.node, call.words))
            .collect();
        if lines.is_empty() {
            self.tell("nobody waits");
        }
        lines.into_iter().for_each(|line| self.tell(line));
    }
}
