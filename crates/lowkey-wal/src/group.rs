//! What the log remembers of each group while it runs.
//!
//! Two uses: to refuse a record that does not continue its group's log before anything is written,
//! and to repeat at the head of every new segment what makes the old ones needless.

use std::collections::BTreeMap;

use lowkey_record::GroupId;

use crate::batch;
use crate::error::WalError;
use crate::record::{GroupLog, Kind, Record, RecordRef};

/// One group, without its entries.
#[derive(Debug, Default)]
pub(crate) struct Group {
    hard_state: Option<Vec<u8>>,
    conf_state: Option<Vec<u8>>,
    compaction: Option<(u64, Vec<u8>)>,
    /// The last entry, or the compaction if no entry follows it; >= the compaction.
    last_index: u64,
}

impl Group {
    /// A group as it was read back; all of it is on disk.
    pub(crate) fn recovered(log: &GroupLog) -> Group {
        Group {
            hard_state: log.hard_state.clone(),
            conf_state: log.conf_state.clone(),
            compaction: log.compaction.clone(),
            last_index: log.last_index(),
        }
    }

    pub(crate) fn compacted_through(&self) -> u64 {
        self.compaction.as_ref().map_or(0, |(index, _)| *index)
    }

    /// Takes over a record that was written and passed [`check`].
    pub(crate) fn absorb(&mut self, record: RecordRef<'_>) {
        match record.kind {
            Kind::HardState => replace(&mut self.hard_state, record.payload),
            Kind::ConfState => replace(&mut self.conf_state, record.payload),
            Kind::Entry => self.last_index = record.index,
            Kind::Compaction | Kind::Reset => {
                self.compaction = Some((record.index, record.payload.to_vec()));
                self.last_index = last_after(record, self.last_index);
            }
        }
    }

    /// The records that say all but the entries.
    fn opening(&self, group: GroupId) -> impl Iterator<Item = RecordRef<'_>> {
        let view = move |kind, index, payload| RecordRef { group, kind, index, payload };
        let hard_state = self.hard_state.as_deref();
        let conf_state = self.conf_state.as_deref();
        let compaction = self.compaction.as_ref();
        let hard_state = hard_state.map(move |payload| view(Kind::HardState, 0, payload));
        let conf_state = conf_state.map(move |payload| view(Kind::ConfState, 0, payload));
        let compaction = compaction.map(move |(index, payload)| view(Kind::Compaction, *index, payload));
        hard_state.into_iter().chain(conf_state).chain(compaction)
    }
}

/// The last index after a record that cuts the log: a new beginning leaves no entry.
fn last_after(cut: RecordRef<'_>, last_index: u64) -> u64 {
    if cut.kind == Kind::Reset { cut.index } else { last_index.max(cut.index) }
}

/// Reuses the old allocation: hard states change with every batch.
fn replace(slot: &mut Option<Vec<u8>>, payload: &[u8]) {
    let kept = slot.get_or_insert_default();
    kept.clear();
    kept.extend_from_slice(payload);
}

/// What a new segment begins with.
pub(crate) fn opening(groups: &BTreeMap<GroupId, Group>) -> impl Iterator<Item = RecordRef<'_>> {
    groups.iter().flat_map(|(number, group)| group.opening(*number))
}

/// What [`opening`] takes inside a batch.
pub(crate) fn opening_bytes(groups: &BTreeMap<GroupId, Group>) -> u64 {
    opening(groups).map(|record| batch::record_bytes(record.payload.len())).sum()
}

/// How a group would stand after some of the records that are being checked.
struct Outlook {
    compacted: u64,
    last: u64,
    /// What hard state, membership and compaction would take in an opening.
    state_bytes: [u64; 3],
}

impl Outlook {
    fn of(group: Option<&Group>) -> Outlook {
        let Some(group) = group else {
            return Outlook { compacted: 0, last: 0, state_bytes: [0; 3] };
        };
        let bytes =
            |payload: Option<&Vec<u8>>| payload.map_or(0, |payload| batch::record_bytes(payload.len()));
        Outlook {
            compacted: group.compacted_through(),
            last: group.last_index,
            state_bytes: [
                bytes(group.hard_state.as_ref()),
                bytes(group.conf_state.as_ref()),
                bytes(group.compaction.as_ref().map(|(_, payload)| payload)),
            ],
        }
    }

    fn step(&mut self, record: RecordRef<'_>) -> Result<(), WalError> {
        let refuse = |what| WalError::OutOfOrder { group: record.group, index: record.index, what };
        let bytes = batch::record_bytes(record.payload.len());
        match record.kind {
            Kind::HardState => self.state_bytes[0] = bytes,
            Kind::ConfState => self.state_bytes[1] = bytes,
            Kind::Entry => {
                let (first, next) = (self.compacted + 1, self.last + 1);
                if record.index < first || record.index > next {
                    return Err(refuse(format!("an entry must be in {first}..={next}")));
                }
                self.last = record.index;
            }
            Kind::Compaction | Kind::Reset => {
                if record.index < self.compacted {
                    let what = format!("a compaction must be at {} or above", self.compacted);
                    return Err(refuse(what));
                }
                self.compacted = record.index;
                self.last = last_after(record, self.last);
                self.state_bytes[2] = bytes;
            }
        }
        Ok(())
    }
}

/// Checks that the records continue the groups' logs. Gives back what an opening would take after them.
pub(crate) fn check(groups: &BTreeMap<GroupId, Group>, records: &[Record]) -> Result<u64, WalError> {
    let mut outlooks: BTreeMap<GroupId, Outlook> = BTreeMap::new();
    for record in records {
        outlooks
            .entry(record.group)
            .or_insert_with(|| Outlook::of(groups.get(&record.group)))
            .step(record.into())?;
    }
    let mut bytes = opening_bytes(groups);
    for (number, outlook) in &outlooks {
        bytes -= Outlook::of(groups.get(number)).state_bytes.iter().sum::<u64>();
        bytes += outlook.state_bytes.iter().sum::<u64>();
    }
    Ok(bytes)
}
