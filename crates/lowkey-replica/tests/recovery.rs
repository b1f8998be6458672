//! A disk that no crash can explain is refused, and the message says what is wrong.

use std::collections::VecDeque;

use lowkey_core::{
    Caller, ClusterId, Command, GroupId, MemberId, NodeIdentity, NodeInfo, NodeName, OwnerId, RequestId, Ttl,
};
use lowkey_replica::{
    CallId, Config, Found, Input, Nanos, Persist, Record, RecordKind, Replica, Request, SnapshotFile, found,
};

const CLUSTER: ClusterId = ClusterId([7; 16]);

/// A lone node's disk after some entries: a snapshot at 5, the log cut behind 3, entries 4 to 8.
struct Disk {
    snapshots: Vec<SnapshotFile>,
    records: Vec<Record>,
}

impl Disk {
    fn new() -> Self {
        let node = NodeInfo {
            name: NodeName::parse("n1").expect("a good name"),
            identity: Some(NodeIdentity([1; 16])),
            raft_address: "n1:7000".into(),
            grpc_address: "n1:9000".into(),
            http_address: "n1:8080".into(),
            command_version: 1,
            key_hash: None,
        };
        let founding = found(GroupId::ROOT, CLUSTER, node);
        let mut disk = Self { snapshots: vec![founding.snapshot], records: founding.records };
        let mut replica = recover(disk.found()).expect("a founder's disk is whole");
        disk.run(&mut replica);
        for call in 1..=6 {
            let request = Request::Command(Command::CreateLease {
                owner: OwnerId::parse("alice").expect("a good owner"),
                ttl: Ttl::parse(10).expect("a good ttl"),
                request: RequestId::parse(&format!("request-{call}")).expect("a good id"),
            });
            replica.step(Nanos(0), Input::Request(CallId(call), Caller::Node, request));
            disk.run(&mut replica);
        }
        disk
    }

    fn run(&mut self, replica: &mut Replica) {
        while replica.has_work() {
            let Persist { snapshot, records } = replica.begin_turn(Nanos(0)).expect("a turn begins").persist;
            self.snapshots.extend(snapshot);
            self.records.extend(records);
            if let Some(job) = replica.end_turn(Nanos(0)).expect("a turn ends").snapshot {
                let base = self.snapshots.iter().find(|file| file.index == job.base());
                let made = job.run(&base.expect("the base is on disk").payload).expect("it can be made");
                let size_bytes = made.payload.len() as u64;
                replica.step(Nanos(0), Input::SnapshotSaved { index: made.index, size_bytes });
                self.snapshots.push(made);
            }
        }
    }

    /// What a start finds; the records are read as the log would.
    fn found(&self) -> Found {
        let mut found =
            Found { snapshot: self.snapshots.last().map(|file| file.payload.clone()), ..Found::default() };
        for Record { kind, index, payload, .. } in self.records.iter().cloned() {
            match kind {
                RecordKind::Entry => {
                    found.entries.retain(|(at, _)| *at < index);
                    found.entries.push_back((index, payload));
                }
                RecordKind::HardState => found.hard_state = Some(payload),
                RecordKind::Compaction => {
                    found.entries.retain(|(at, _)| *at > index);
                    found.compaction = Some((index, payload));
                }
                RecordKind::Reset => {
                    found.entries.clear();
                    found.compaction = Some((index, payload));
                }
                RecordKind::ConfState => unreachable!("a replica keeps its members in snapshots and entries"),
            }
        }
        found
    }
}

fn recover(found: Found) -> Result<Replica, String> {
    let mut config = Config::new(GroupId::ROOT, MemberId(1), 1);
    config.snapshot_entries = 4;
    config.snapshot_bytes_per_entry = 64 * 1024;
    config.tail_entries = 2;
    Replica::recover(config, CLUSTER, found).map_err(|error| error.to_string())
}

fn refusal(found: Found) -> String {
    match recover(found) {
        Ok(_) => panic!("a disk that cannot be was taken"),
        Err(problem) => problem,
    }
}

fn hard_state(term: u8, commit: u8) -> Option<Vec<u8>> {
    Some(vec![0x08, term, 0x18, commit])
}

#[test]
fn a_whole_disk_is_taken() {
    let found = Disk::new().found();
    assert_eq!(found.compaction.as_ref().map(|(index, _)| *index), Some(3));
    assert_eq!(found.entries.iter().map(|(index, _)| *index).collect::<Vec<_>>(), [4, 5, 6, 7, 8]);
    let replica = recover(found).unwrap();
    assert_eq!(replica.state().revision(), 5);
}

#[test]
fn an_empty_disk_is_a_joiners() {
    let replica = recover(Found::default()).unwrap();
    assert_eq!(replica.status().leader, None);
    assert_eq!(replica.state().revision(), 0);
}

#[test]
fn a_missing_snapshot_is_refused() {
    let found = Found { snapshot: None, ..Disk::new().found() };
    assert_eq!(refusal(found), "the log begins behind index 3, but there is no snapshot of what came before");
    // A joiner's first entry comes behind a snapshot, too.
    let found = Disk::new().found();
    let (_, entry) = found.entries[0].clone();
    let mut as_first = entry;
    let at = as_first.iter().position(|byte| *byte == 0x18).unwrap() + 1;
    as_first[at] = 1;
    let found = Found { entries: VecDeque::from([(1, as_first)]), ..Found::default() };
    assert_eq!(refusal(found), "the log begins behind index 0, but there is no snapshot of what came before");
}

#[test]
fn an_older_snapshot_than_the_log_needs_is_refused() {
    let disk = Disk::new();
    let found = Found { snapshot: Some(disk.snapshots[0].payload.clone()), ..disk.found() };
    assert_eq!(
        refusal(found),
        "the log begins behind index 3, but the newest snapshot is of index 1: a snapshot file is missing"
    );
}

#[test]
fn a_commit_beyond_the_log_is_refused() {
    let found = Found { hard_state: hard_state(2, 9), ..Disk::new().found() };
    assert_eq!(
        refusal(found),
        "the log ends at index 8, but entries up to 9 were committed: entries are missing"
    );
    // Also where there is no snapshot.
    let found = Found { hard_state: hard_state(2, 1), ..Found::default() };
    assert_eq!(
        refusal(found),
        "the log ends at index 0, but entries up to 1 were committed: entries are missing"
    );
}

#[test]
fn a_log_that_disagrees_with_the_snapshot_about_what_was_committed_is_refused() {
    // The log ends before the snapshot, and yet more than that was committed.
    let mut found = Disk::new().found();
    found.entries.truncate(1);
    found.hard_state = hard_state(2, 5);
    assert_eq!(refusal(found), "the log and the snapshot of index 5 disagree about what was committed");
}

#[test]
fn a_log_that_ends_before_the_snapshot_begins_anew_behind_it() {
    let mut found = Disk::new().found();
    found.entries.truncate(1);
    found.hard_state = hard_state(2, 4);
    let mut replica = recover(found).unwrap();
    let records = replica.begin_turn(Nanos(0)).unwrap().persist.records;
    assert_eq!((records[0].kind, records[0].index), (RecordKind::Reset, 5));
}

#[test]
fn a_gap_in_the_log_is_refused() {
    let mut found = Disk::new().found();
    found.entries.remove(1);
    assert_eq!(refusal(found), "the log holds entry 6 where 5 belongs");
    let mut found = Disk::new().found();
    found.entries.pop_front();
    assert_eq!(refusal(found), "the log holds entry 5 where 4 belongs");
}

#[test]
fn another_clusters_snapshot_is_refused() {
    let other = ClusterId([8; 16]);
    let Err(error) = Replica::recover(Config::new(GroupId::ROOT, MemberId(1), 1), other, Disk::new().found())
    else {
        panic!("another cluster's snapshot was taken");
    };
    assert_eq!(
        error.to_string(),
        format!("the snapshot is of cluster {CLUSTER}, but this node belongs to cluster {other}")
    );
}

#[test]
fn damaged_bytes_are_refused() {
    let whole = Disk::new().found();
    let damaged = |bytes: &[u8]| {
        let mut bytes = bytes.to_vec();
        *bytes.last_mut().unwrap() ^= 1;
        bytes
    };
    let snapshot = whole.snapshot.clone().unwrap();
    assert_eq!(
        refusal(Found { snapshot: Some(damaged(&snapshot)), ..Disk::new().found() }),
        "the snapshot's state does not have the hash that it should have"
    );
    refusal(Found { snapshot: Some(snapshot[..snapshot.len() - 1].to_vec()), ..Disk::new().found() });
    refusal(Found { hard_state: Some(vec![0xff]), ..Disk::new().found() });
    refusal(Found { compaction: Some((3, vec![0xff])), ..Disk::new().found() });
    let mut found = Disk::new().found();
    found.entries[0].1 = vec![0xff];
    refusal(found);
}

/// Any single flipped bit is either refused or harmless: it never panics.
#[test]
fn flipped_bits_never_panic_while_reading() {
    let whole = Disk::new().found();
    let length = whole.snapshot.as_ref().unwrap().len();
    for bit in 0..length * 8 {
        let mut found = Disk::new().found();
        found.snapshot.as_mut().unwrap()[bit / 8] ^= 1 << (bit % 8);
        let _ = recover(found);
    }
    for (at, (_, entry)) in whole.entries.iter().enumerate() {
        for bit in 0..entry.len() * 8 {
            let mut found = Disk::new().found();
            found.entries[at].1[bit / 8] ^= 1 << (bit % 8);
            let _ = recover(found);
        }
    }
}
