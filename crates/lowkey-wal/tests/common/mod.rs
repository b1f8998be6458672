//! What the tests share: a model of what a log must hold, and short ways to write records.
#![allow(dead_code, reason = "each test file uses its own part")]
#![allow(unreachable_pub, reason = "a module of tests")]

use std::collections::BTreeMap;

use lowkey_wal::{GroupId, GroupLog, Kind, Options, Record, Recovered, SimDisk, Wal, WalError};

pub const IDENTITY: [u8; 16] = *b"node-one-of-many";

pub fn small() -> Options {
    Options { segment_bytes: 4096 }
}

pub fn record(group: u32, kind: Kind, index: u64, payload: impl Into<Vec<u8>>) -> Record {
    let group = GroupId(group);
    Record { group, kind, index, payload: payload.into() }
}

pub fn entry(group: u32, index: u64, payload: impl Into<Vec<u8>>) -> Record {
    record(group, Kind::Entry, index, payload)
}

pub fn compaction(group: u32, index: u64) -> Record {
    record(group, Kind::Compaction, index, format!("compacted {index}").into_bytes())
}

pub fn hard_state(group: u32, payload: &str) -> Record {
    record(group, Kind::HardState, 0, payload)
}

pub fn conf_state(group: u32, payload: &str) -> Record {
    record(group, Kind::ConfState, 0, payload)
}

pub fn create(disk: &SimDisk, opening: &[Record]) -> Wal {
    Wal::create(disk.as_disk(), IDENTITY, small(), opening).unwrap()
}

pub fn open(disk: &SimDisk) -> Result<(Wal, Recovered), WalError> {
    Wal::open(disk.as_disk(), IDENTITY, small())
}

/// Does whatever the log wants done in the background, here and now.
pub fn run_job(wal: &mut Wal) {
    if let Some(job) = wal.segment_job() {
        let result = job.run();
        wal.segment_made(result);
    }
}

pub fn segment_name(number: u64) -> String {
    format!("segment-{number:016}.log")
}

pub fn names(disk: &SimDisk) -> Vec<String> {
    use lowkey_wal::Disk;
    disk.list().unwrap()
}

/// What a log must hold after some records; written without a look at how the log does it.
#[derive(Clone, Default, PartialEq, Debug)]
pub struct Model {
    groups: BTreeMap<GroupId, ModelGroup>,
}

#[derive(Clone, Default, PartialEq, Debug)]
pub struct ModelGroup {
    hard_state: Option<Vec<u8>>,
    conf_state: Option<Vec<u8>>,
    compaction: Option<(u64, Vec<u8>)>,
    entries: BTreeMap<u64, Vec<u8>>,
}

impl ModelGroup {
    pub fn compacted(&self) -> u64 {
        self.compaction.as_ref().map_or(0, |c| c.0)
    }

    pub fn last(&self) -> u64 {
        let last = self.entries.last_key_value();
        last.map_or_else(|| self.compacted(), |(index, _)| *index)
    }
}

impl Model {
    pub fn group(&self, group: u32) -> ModelGroup {
        self.groups.get(&GroupId(group)).cloned().unwrap_or_default()
    }

    pub fn apply(&mut self, records: &[Record]) {
        for record in records {
            let group = self.groups.entry(record.group).or_default();
            let payload = record.payload.clone();
            match record.kind {
                Kind::HardState => group.hard_state = Some(payload),
                Kind::ConfState => group.conf_state = Some(payload),
                Kind::Compaction => {
                    group.entries.retain(|index, _| *index > record.index);
                    group.compaction = Some((record.index, payload));
                }
                Kind::Reset => {
                    group.entries.clear();
                    group.compaction = Some((record.index, payload));
                }
                Kind::Entry => {
                    group.entries.retain(|index, _| *index < record.index);
                    group.entries.insert(record.index, payload);
                }
            }
        }
    }

    pub fn logs(&self) -> BTreeMap<GroupId, GroupLog> {
        let logs = self.groups.iter().map(|(number, group)| {
            let log = GroupLog {
                hard_state: group.hard_state.clone(),
                conf_state: group.conf_state.clone(),
                compaction: group.compaction.clone(),
                entries: group.entries.clone().into_iter().collect(),
            };
            (*number, log)
        });
        logs.collect()
    }
}

/// A small generator for tests that want many cases without a framework.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }
}
