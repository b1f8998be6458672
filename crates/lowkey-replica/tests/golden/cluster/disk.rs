//! A disk as the replica's caller would keep it: one snapshot file and one log.

use std::collections::VecDeque;

use lowkey_core::State;
use lowkey_replica::{Found, Persist, Record, RecordKind, SnapshotFile};
use prost::Message as _;

/// What survives a crash.
#[derive(Clone, Debug, Default)]
pub(crate) struct Disk {
    snapshot: Option<SnapshotFile>,
    hard_state: Option<Vec<u8>>,
    compaction: Option<(u64, Vec<u8>)>,
    entries: VecDeque<(u64, Vec<u8>)>,
}

impl Disk {
    pub(crate) fn persist(&mut self, persist: &Persist) {
        if let Some(snapshot) = &persist.snapshot {
            self.save_snapshot(snapshot);
        }
        persist.records.iter().for_each(|record| self.write(record));
    }

    /// Snapshot files are kept by index: the newest counts.
    pub(crate) fn save_snapshot(&mut self, snapshot: &SnapshotFile) {
        if self.snapshot.as_ref().is_none_or(|saved| saved.index <= snapshot.index) {
            self.snapshot = Some(snapshot.clone());
        }
    }

    /// The payload of the snapshot of an index.
    pub(crate) fn snapshot(&self, index: u64) -> Option<Vec<u8>> {
        self.snapshot.as_ref().filter(|file| file.index == index).map(|file| file.payload.clone())
    }

    /// Puts one text in the place of another, of the same length, in the state of the snapshot, and makes its
    /// hash fit: what no checksum finds.
    pub(crate) fn tamper(&mut self, from: &str, to: &str) -> Result<(), String> {
        let file = self.snapshot.as_mut().ok_or("there is no snapshot")?;
        let mut record =
            SnapshotRecord::decode(file.payload.as_slice()).map_err(|error| error.to_string())?;
        let place = record.state.windows(from.len()).position(|text| text == from.as_bytes());
        let place = place.filter(|_| from.len() == to.len()).ok_or("there is no such text")?;
        record.state[place..place + to.len()].copy_from_slice(to.as_bytes());
        record.state_hash = State::hash_of_snapshot(&record.state);
        file.payload = record.encode_to_vec();
        Ok(())
    }

    pub(crate) fn write(&mut self, record: &Record) {
        match record.kind {
            RecordKind::Entry => {
                self.entries.retain(|(index, _)| *index < record.index);
                self.entries.push_back((record.index, record.payload.clone()));
            }
            RecordKind::HardState => self.hard_state = Some(record.payload.clone()),
            RecordKind::Compaction => {
                self.entries.retain(|(index, _)| *index > record.index);
                self.compaction = Some((record.index, record.payload.clone()));
            }
            RecordKind::Reset => {
                self.entries.clear();
                self.compaction = Some((record.index, record.payload.clone()));
            }
            RecordKind::ConfState => unreachable!("a replica keeps its members in snapshots and entries"),
        }
    }

    /// What a start finds.
    pub(crate) fn found(&self) -> Found {
        Found {
            snapshot: self.snapshot.as_ref().map(|snapshot| snapshot.payload.clone()),
            hard_state: self.hard_state.clone(),
            compaction: self.compaction.clone(),
            entries: self.entries.clone(),
        }
    }

    pub(crate) fn words(&self) -> String {
        let snapshot = self.snapshot.as_ref().map_or("none".to_owned(), |file| file.index.to_string());
        let cut = self.compaction.as_ref().map_or(0, |(index, _)| *index);
        let entries: Vec<String> = self.entries.iter().map(|(_, payload)| entry_words(payload)).collect();
        let entries = if entries.is_empty() { "none".to_owned() } else { entries.join(" ") };
        let hard_state = self.hard_state.as_ref().map_or("none".to_owned(), |bytes| hard_state_words(bytes));
        format!("snapshot {snapshot}, log behind {cut}: {entries}, hard state {hard_state}")
    }
}

/// The records as their formats are written down, read without the code under test.
#[derive(Clone, PartialEq, prost::Message)]
struct EntryRecord {
    #[prost(uint32, tag = "1")]
    kind: u32,
    #[prost(uint64, tag = "2")]
    term: u64,
    #[prost(uint64, tag = "3")]
    index: u64,
    #[prost(bytes = "vec", tag = "4")]
    data: Vec<u8>,
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
struct HardStateRecord {
    #[prost(uint64, tag = "1")]
    term: u64,
    #[prost(uint64, tag = "2")]
    vote: u64,
    #[prost(uint64, tag = "3")]
    commit: u64,
}

#[derive(Clone, PartialEq, prost::Message)]
struct SnapshotRecord {
    #[prost(uint64, tag = "1")]
    index: u64,
    #[prost(uint64, tag = "2")]
    term: u64,
    #[prost(bytes = "vec", tag = "3")]
    conf_state: Vec<u8>,
    #[prost(bytes = "vec", tag = "4")]
    state: Vec<u8>,
    #[prost(fixed64, tag = "5")]
    state_hash: u64,
}

fn entry_words(payload: &[u8]) -> String {
    let entry = EntryRecord::decode(payload).expect("an entry record can be read");
    format!("{}@{}", entry.index, entry.term)
}

fn hard_state_words(payload: &[u8]) -> String {
    let HardStateRecord { term, vote, commit } =
        HardStateRecord::decode(payload).expect("a hard state record can be read");
    let vote = if vote == 0 { "none".to_owned() } else { format!("n{vote}") };
    format!("term {term} vote {vote} commit {commit}")
}

/// One batch of records, for people: `entries 3@2 4@2, hard state …`.
pub(crate) fn persist_words(persist: &Persist) -> String {
    let mut words = Vec::new();
    if let Some(snapshot) = &persist.snapshot {
        words.push(format!("snapshot {}", snapshot.index));
    }
    for record in &persist.records {
        words.push(match record.kind {
            RecordKind::Entry => format!("entry {}", entry_words(&record.payload)),
            RecordKind::HardState => format!("hard state {}", hard_state_words(&record.payload)),
            RecordKind::Compaction => format!("cut through {}", record.index),
            RecordKind::Reset => format!("begin behind {}", record.index),
            RecordKind::ConfState => unreachable!("a replica keeps its members in snapshots and entries"),
        });
    }
    words.join(", ")
}
