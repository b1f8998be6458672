//! One machine: the real replicas of all groups on one real log on a simulated disk, driven as the server drives them.
//!
//! What belongs to a group is a [`Lane`]: its replica, what waits for it, who waits for its answers. What belongs to the
//! machine is not: the disk, the log with its sync, the clock, and whether it is up at all.
//!
//! A turn is cut in two where the server waits for its disk, so that a crash, a pause or a stall can
//! come between the write and the sync, and between the sync and the answers. While the disk is busy with some lanes'
//! records, the others go on; what they have to save waits, and is then written as one batch and synced once.

use std::collections::{BTreeMap, VecDeque};
use std::io;

use lowkey_core::{
    COMMAND_VERSION, ClusterId, FirstNumbers, GroupId, KeyHash, MemberId, NewBeginning, NodeIdentity,
    NodeInfo, NodeName, RequestId, State, mutants,
};
use lowkey_replica::{
    CallId, Config, Divergence, Found, Founding, History, Input, Nanos, Output, Replica, Role, SnapshotJob,
    begin_anew, found,
};
use lowkey_wal::{Disk, Options, Record, RecordKind, Recovered, SimDisk, Wal, WalError, snapshots};

use crate::audit::{AuditQueue, SimAudit};
use crate::clock::SimClock;
use crate::plan::{SECOND, WorldPlan};

const CLUSTER: ClusterId = ClusterId(*b"simulated world.");
/// Small segments, so that logs roll over often.
const SEGMENT_BYTES: u64 = 64 * 1024;
/// Times to live are short in simulated worlds, and so is the time in which a cluster that began anew grants nothing.
pub(crate) const QUARANTINE_NANOS: u64 = 20 * SECOND;

/// A machine, up or down.
pub(crate) struct SimNode {
    pub(crate) member: u64,
    pub(crate) clock: SimClock,
    pub(crate) disk: SimDisk,
    pub(crate) process: Option<Process>,
    /// Counts starts: what was meant for an earlier process does not reach a later one.
    pub(crate) incarnation: u64,
    pub(crate) paused_until: u64,
    pub(crate) stalled_until: u64,
    /// Until then it gets too little of its processor: whenever it has something to do, it is late by up to so much.
    pub(crate) starved_until: u64,
    pub(crate) starved_max_nanos: u64,
    /// It will crash about when it writes the next time.
    pub(crate) doom: Option<Doom>,
    /// Its log was damaged, and it rightly refused to start.
    pub(crate) refused: bool,
    /// Its state was tampered with, and is not what the log says.
    pub(crate) drifted: bool,
    /// It learned that it was removed, and ended.
    pub(crate) removed: bool,
    /// What it keeps of grants that are over, of each group.
    pub(crate) audits: Vec<SimAudit>,
    /// Which process has learned of it.
    pub(crate) told_removed: Option<u64>,
    /// A wake-up is under way for this true time.
    pub(crate) wakes_at: Option<u64>,
}

/// Which write a machine does not survive.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Doom {
    /// The next one.
    Write,
    /// The next one in later terms than this, all groups' together: mostly a vote.
    Term(u64),
}

/// What is gone after a crash.
pub(crate) struct Process {
    pub(crate) wal: Wal,
    /// One of each group, by its number in this world.
    pub(crate) lanes: Vec<Lane>,
    /// Something was written and is not synced.
    pub(crate) syncing: bool,
}

/// How far a lane is with what its turn has to save.
#[derive(Debug, PartialEq)]
pub(crate) enum Saving {
    Nothing,
    /// It waits until the disk has done with what others save.
    Waits(Vec<Record>),
    /// Written, not synced: the turn goes on when the disk is done.
    Written,
}

/// What belongs to one group.
pub(crate) struct Lane {
    pub(crate) replica: Replica,
    pub(crate) saving: Saving,
    /// In true time.
    pub(crate) next_tick: u64,
    pub(crate) inbox: VecDeque<Input>,
    /// Who waits for an answer.
    pub(crate) calls: BTreeMap<CallId, SimCall>,
    pub(crate) last_call: u64,
    /// The entries of its log, by index, as they were handed to the disk.
    pub(crate) entries: BTreeMap<u64, Vec<u8>>,
    /// The last index whose application was looked at.
    pub(crate) seen_applied: u64,
    /// What it remembers for those who watch.
    pub(crate) history: History,
    /// It remembers only what happened after this revision.
    pub(crate) knows_after: u64,
    /// What is not written into the audit yet.
    pub(crate) audit: AuditQueue,
    /// Term, role, and whether it may touch leases, as last looked at.
    pub(crate) seen_divergence: Option<Divergence>,
    pub(crate) seen_standing: (u64, Role, bool),
}

/// A caller: a client that crashed meanwhile is another one, and its answers are not for it.
#[derive(Clone, Debug)]
pub(crate) struct SimCall {
    pub(crate) client: usize,
    pub(crate) life: u64,
    pub(crate) operation: u64,
    /// The id of the request, if it has one.
    pub(crate) request: Option<RequestId>,
    /// When it arrived, in true time.
    pub(crate) asked_at: u64,
    /// How long it would wait for a lock.
    pub(crate) wait_nanos: u64,
}

/// Why a process did not start.
#[derive(Debug)]
pub(crate) enum StartProblem {
    Log(WalError),
    Other(String),
}

pub(crate) fn node_info(member: u64) -> NodeInfo {
    NodeInfo {
        name: NodeName::parse(&format!("n{member}")).expect("a short name is a name"),
        identity: Some(identity(member)),
        raft_address: format!("n{member}:7000"),
        grpc_address: format!("n{member}:9000"),
        http_address: format!("n{member}:8080"),
        command_version: COMMAND_VERSION,
        key_hash: Some(KeyHash([member as u8; 32])),
    }
}

/// What the first machine begins a group with. A cluster that begins anew has one.
fn founding(plan: &WorldPlan, group: usize) -> Founding {
    if !plan.recovered {
        return found(group_id(group), CLUSTER, node_info(1));
    }
    let beginning = NewBeginning {
        cluster: CLUSTER,
        node: node_info(1),
        numbers: FirstNumbers::Unclaimed { unix_minutes: 1_000, spread: 0 },
        keep_tokens: true,
        quarantine: true,
    };
    begin_anew(&State::new(CLUSTER), 7, beginning).expect("counters go that far")
}

fn identity(member: u64) -> NodeIdentity {
    NodeIdentity([member as u8; 16])
}

impl SimNode {
    /// A machine whose disk holds a new cluster (the founder) or an empty log (one that joins).
    pub(crate) fn new(plan: &WorldPlan, member: u64, clock: SimClock, disk_seed: u64) -> Self {
        let disk = SimDisk::new(disk_seed);
        let mut records = Vec::new();
        // The machine that founds the cluster founds all its groups.
        for group in plan.groups().filter(|_| member == 1) {
            let Founding { snapshot, records: first, .. } = founding(plan, group);
            snapshots::save(&*disk.as_disk(), group_id(group), snapshot.index, &snapshot.payload)
                .expect("a new disk takes a snapshot");
            records.extend(first);
        }
        let wal = Wal::create(disk.as_disk(), identity(member).0, options(), &records);
        wal.and_then(Wal::close).expect("a new disk takes a log");
        Self {
            member,
            clock,
            disk,
            process: None,
            incarnation: 0,
            paused_until: 0,
            stalled_until: 0,
            starved_until: 0,
            starved_max_nanos: 0,
            doom: None,
            refused: false,
            drifted: false,
            removed: false,
            audits: plan.groups().map(|_| SimAudit::default()).collect(),
            told_removed: None,
            wakes_at: None,
        }
    }

    /// Starts a process from what the disk holds.
    pub(crate) fn start(&mut self, plan: &WorldPlan, seed: u64, now: u64) -> Result<(), StartProblem> {
        let (wal, recovered) =
            Wal::open(self.disk.as_disk(), identity(self.member).0, options()).map_err(StartProblem::Log)?;
        let lanes = plan.groups().map(|group| self.recover(plan, seed, group, &recovered, now));
        let lanes = lanes.collect::<Result<_, _>>()?;
        self.incarnation += 1;
        self.process = Some(Process { wal, lanes, syncing: false });
        Ok(())
    }

    /// A group as the disk has it.
    fn recover(
        &self,
        plan: &WorldPlan,
        seed: u64,
        group: usize,
        recovered: &Recovered,
        now: u64,
    ) -> Result<Lane, StartProblem> {
        let other = |error: &dyn std::fmt::Display| StartProblem::Other(error.to_string());
        let (disk, id) = (self.disk.as_disk(), group_id(group));
        let snapshot = snapshots::load_newest(&*disk, id).map_err(|error| other(&error))?;
        let log = recovered.groups.get(&id).cloned().unwrap_or_default();
        // Groups must not elect their leaders in step.
        let seed = seed ^ (group as u64) << 32;
        let entries = log.entries.iter().cloned().collect();
        let found = Found {
            snapshot: snapshot.map(|(_, payload)| payload),
            hard_state: log.hard_state,
            compaction: log.compaction,
            entries: log.entries,
        };
        let config = Config {
            snapshot_entries: plan.snapshot_entries,
            // However large the state is: many snapshots are wanted here.
            snapshot_bytes_per_entry: 1024 * 1024,
            // Some nodes make them in one way, some in the other, and all must make the same.
            snapshot_at_once_bytes: if (seed ^ self.member).is_multiple_of(2) { u64::MAX } else { 0 },
            tail_entries: plan.tail_entries,
            slow_entries_max: 4 * plan.tail_entries,
            quarantine_nanos: QUARANTINE_NANOS,
            raft_tick: plan.raft_tick,
            ..Config::new(id, MemberId(self.member), seed)
        };
        let replica = Replica::recover(config, CLUSTER, found).map_err(|error| other(&error))?;
        Ok(Lane {
            seen_applied: replica.state().revision(),
            history: History::with_events_max(replica.state().revision(), plan.history_events),
            knows_after: replica.state().revision(),
            replica,
            audit: AuditQueue::default(),
            saving: Saving::Nothing,
            next_tick: now,
            inbox: VecDeque::new(),
            calls: BTreeMap::new(),
            last_call: 0,
            entries,
            seen_divergence: None,
            seen_standing: (0, Role::Follower, false),
        })
    }

    /// The lane of a group, if the machine is up.
    pub(crate) fn running(&self, group: usize) -> Option<&Lane> {
        self.process.as_ref().map(|process| &process.lanes[group])
    }

    /// The lane of a group of a machine that is up.
    pub(crate) fn lane(&self, group: usize) -> &Lane {
        self.running(group).expect("the caller looked")
    }

    pub(crate) fn lane_mut(&mut self, group: usize) -> &mut Lane {
        &mut self.process.as_mut().expect("the caller looked").lanes[group]
    }

    /// The sum of the terms of all groups: it rises when any of them does.
    pub(crate) fn terms(&self) -> u64 {
        let lanes = self.process.iter().flat_map(|process| &process.lanes);
        lanes.map(|lane| lane.replica.standing().0).sum()
    }

    /// Ends the process. After a loss of power the disk keeps what was synced, and what it likes of
    /// the rest; after a kill it keeps all that was written.
    pub(crate) fn crash(&mut self, power_is_lost: bool) {
        self.process = None;
        self.doom = None;
        self.disk = if power_is_lost { self.disk.crash() } else { self.disk.kill() };
        if power_is_lost {
            self.audits.iter_mut().for_each(SimAudit::lose_power);
        }
        self.wakes_at = None;
    }

    /// The n-th sync from now fails: of the log or of a leader's snapshot, which ends the process, or of a file that is
    /// made again.
    pub(crate) fn fail_sync(&self, n: u64) {
        self.disk.fail_sync(n, io::ErrorKind::Other);
    }

    pub(crate) fn now(&self, true_nanos: u64) -> Nanos {
        Nanos(self.clock.read(true_nanos))
    }
}

impl Process {
    /// Writes what the lanes have to save as one batch, unless the disk is busy; true if it has something to sync now.
    pub(crate) fn write(&mut self) -> Result<bool, String> {
        if self.syncing {
            return Ok(false);
        }
        let mut records = Vec::new();
        for lane in &mut self.lanes {
            if let Saving::Waits(waiting) = &mut lane.saving {
                records.append(waiting);
                lane.saving = Saving::Written;
                self.syncing = true;
            }
        }
        self.wal.append(&records).map_err(|error| error.to_string())?;
        Ok(self.syncing)
    }

    /// The disk is done: gives the groups whose turns go on.
    pub(crate) fn sync(&mut self) -> Result<Vec<usize>, String> {
        if !mutants::LOG_SYNC_SKIPPED.is_active() {
            self.wal.sync().map_err(|error| error.to_string())?;
        }
        self.syncing = false;
        if let Some(job) = self.wal.segment_job() {
            self.wal.segment_made(job.run());
        }
        let mut synced = Vec::new();
        for (group, lane) in self.lanes.iter_mut().enumerate() {
            if lane.saving == Saving::Written {
                lane.saving = Saving::Nothing;
                synced.push(group);
            }
        }
        Ok(synced)
    }
}

impl Lane {
    /// Takes in everything that waits, each input with its own reading of the clock.
    pub(crate) fn take_in(&mut self, now: Nanos) {
        while let Some(input) = self.inbox.pop_front() {
            self.replica.step(now, input);
        }
    }

    /// Begins a turn. What it has to save waits for the disk then; a snapshot is there already.
    pub(crate) fn begin_turn(
        &mut self,
        group: usize,
        disk: &SimDisk,
        audit: &mut SimAudit,
        now: Nanos,
    ) -> Result<Output, String> {
        let turn = self.replica.begin_turn(now).map_err(|error| error.to_string())?;
        if turn.persist.is_empty() {
            return Ok(turn.output);
        }
        if let Some(file) = &turn.persist.snapshot {
            snapshots::save(&*disk.as_disk(), group_id(group), file.index, &file.payload)
                .map_err(|error| error.to_string())?;
            audit.installed(file.index);
        }
        turn.persist.records.iter().for_each(|record| self.follow(record));
        self.saving = Saving::Waits(turn.persist.records);
        Ok(turn.output)
    }

    pub(crate) fn end_turn(&mut self, now: Nanos) -> Result<Output, String> {
        self.replica.end_turn(now).map_err(|error| error.to_string())
    }

    /// Remembers what was applied, for those who watch: every revision, also those without changes.
    pub(crate) fn remember(&mut self, output: &mut Output) {
        if let Some(index) = output.history_lost {
            self.history.reset(index);
            self.knows_after = index;
        }
        if let Some(index) = output.history_lost {
            self.audit.reset(index);
        }
        let ended = std::mem::take(&mut output.ended);
        if let (Some((first, _)), Some((last, _))) = (output.changes.first(), output.changes.last()) {
            self.audit.applied(first - 1, *last, ended);
        }
        for (revision, changes) in std::mem::take(&mut output.changes) {
            self.pass_over(revision - 1);
            self.history.record(revision, changes);
        }
        self.pass_over(self.replica.state().revision());
    }

    fn pass_over(&mut self, through: u64) {
        while self.history.applied() < through {
            self.history.record(self.history.applied() + 1, []);
        }
    }

    /// Keeps a copy of the log's entries, to compare them with the other replicas'.
    fn follow(&mut self, record: &Record) {
        match record.kind {
            RecordKind::Entry => {
                self.entries.split_off(&record.index);
                self.entries.insert(record.index, record.payload.clone());
            }
            RecordKind::Compaction => self.entries = self.entries.split_off(&(record.index + 1)),
            RecordKind::Reset => self.entries.clear(),
            RecordKind::HardState | RecordKind::ConfState => {}
        }
    }
}

fn options() -> Options {
    Options { segment_bytes: SEGMENT_BYTES }
}

/// The id of a group that has this number in a world.
pub(crate) fn group_id(group: usize) -> GroupId {
    GroupId(group as u32 + GroupId::ROOT.0)
}

/// The number of a group in a world; there may be none.
pub(crate) fn group_number(id: GroupId) -> Option<usize> {
    Some(id.0.checked_sub(GroupId::ROOT.0)? as usize)
}

/// Makes a snapshot from the one before it, which is on the disk, and writes it there; then the replica is
/// told.
pub(crate) fn write_snapshot(disk: &SimDisk, group: usize, job: SnapshotJob) -> Result<Input, String> {
    let (disk, group, index) = (disk.as_disk(), group_id(group), job.index());
    let found = snapshots::load(&*disk, group, job.base()).map_err(|error| error.to_string())?;
    let base = match found {
        Some(base) => base,
        // Snapshots of the leader have come since, and only the newest two are kept: nobody waits for this one any more.
        None if has_newer(&*disk, group, job.base())? => return Ok(Input::SnapshotFailed { index }),
        None => return Err(missing(job.base())),
    };
    let made = job.run(&base).map_err(|error| format!("snapshot {index} cannot be made: {error}"))?;
    let size_bytes = made.payload.len() as u64;
    Ok(match snapshots::save(&*disk, group, index, &made.payload) {
        Ok(()) => Input::SnapshotSaved { index, size_bytes },
        Err(_) => Input::SnapshotFailed { index },
    })
}

/// The snapshot that a replica wants sent.
pub(crate) fn load_snapshot(disk: &SimDisk, group: usize, index: u64) -> Result<Vec<u8>, String> {
    let loaded =
        snapshots::load(&*disk.as_disk(), group_id(group), index).map_err(|error| error.to_string())?;
    loaded.ok_or_else(|| missing(index))
}

fn missing(index: u64) -> String {
    format!("snapshot {index} is not on the disk")
}

fn has_newer(disk: &dyn Disk, group: GroupId, index: u64) -> Result<bool, String> {
    let newest = snapshots::load_newest(disk, group).map_err(|error| error.to_string())?;
    Ok(newest.is_some_and(|(newest, _)| newest > index))
}
