//! The log while it runs.
//!
//! ```text
//! append ─► check order and size ─► [roll: END batch, sync, next segment] ─► one write
//! sync   ─► one fdatasync ─► what the compactions on disk made needless is dropped
//! ```
//!
//! A batch's `first_live` is judged only by compactions that are already on disk, so it stays true
//! even if the batch before it is lost. The price: a compaction frees its segments one sync later.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::Arc;

use crate::batch::{self, END_BYTES, Header};
use crate::clean_stop::CleanStop;
use crate::disk::{Disk, DiskFile};
use crate::error::WalError;
use crate::group::{self, Group};
use crate::record::{Kind, Record};
use crate::recovery::{self, Recovered};
use crate::repair;
use crate::segment::{self, FIRST};
use crate::spare::{SegmentJob, SegmentMade, Spares};

const MIN_SEGMENT_BYTES: u64 = 512;

/// How a log is laid out.
#[derive(Clone, Debug)]
pub struct Options {
    /// The length of new segments: a multiple of 8, from 512 bytes to just under 4 GiB. Segments
    /// that are there keep their length, so it may change from start to start.
    pub segment_bytes: u64,
}

impl Default for Options {
    fn default() -> Options {
        Options { segment_bytes: 16 * 1024 * 1024 }
    }
}

impl Options {
    fn check(&self) -> Result<(), WalError> {
        let is_fit = (MIN_SEGMENT_BYTES..=u64::from(u32::MAX)).contains(&self.segment_bytes)
            && self.segment_bytes.is_multiple_of(batch::ALIGN_BYTES as u64);
        if is_fit {
            return Ok(());
        }
        Err(WalError::Options {
            what: format!(
                "segment_bytes is {}, but must be a multiple of 8 from {MIN_SEGMENT_BYTES} to {}",
                self.segment_bytes,
                u32::MAX
            ),
        })
    }
}

/// The segment that is being written.
struct Active {
    number: u64,
    file: Arc<dyn DiskFile>,
    /// Where the next batch goes; 0 if the segment has none. Behind it are only zeros, at least
    /// enough of them for the batch that ends the segment.
    offset: u64,
    segment_bytes: u64,
}

impl Active {
    fn remaining(&self) -> u64 {
        self.segment_bytes - self.offset - END_BYTES
    }
}

/// The durable log of one node.
///
/// One thread owns it. `append` and `sync` block for as long as the disk takes. After an error that
/// leaves the disk in doubt every later call fails with [`WalError::Poisoned`]: end the process.
pub struct Wal {
    disk: Arc<dyn Disk>,
    identity: [u8; 16],
    options: Options,
    groups: BTreeMap<u32, Group>,
    /// Per segment still needed, up to the active one: each group's highest entry index in it.
    segments: BTreeMap<u64, BTreeMap<u32, u64>>,
    active: Active,
    spares: Spares,
    /// The last batch written; > `synced_through` if anything waits for a sync.
    sequence: u64,
    /// The last batch known to be on disk.
    synced_through: u64,
    /// The highest `synced_through` that a written batch carries.
    claimed: u64,
    /// The last batch that is more than a mark.
    last_data_sequence: u64,
    /// The lowest segment needed, judged by what was on disk after the last sync. It is in every
    /// batch written since, so the next sync makes it true for recovery too.
    first_live: u64,
    /// The bytes of all batches since the lowest segment needed at the start.
    written_bytes: u64,
    buffer: Vec<u8>,
    /// A write or sync has failed: nothing is known about the disk any more.
    is_poisoned: bool,
}

impl Wal {
    /// Founds a log in a directory that has none, with its first batch in place: after a crash
    /// either both are there or neither.
    pub fn create(
        disk: Arc<dyn Disk>,
        identity: [u8; 16],
        options: Options,
        opening: &[Record],
    ) -> Result<Wal, WalError> {
        options.check()?;
        let names = list(disk.as_ref())?;
        if let Some(file) = names.into_iter().find(|name| segment::proves_a_log(name)) {
            return Err(WalError::Exists { file });
        }
        let groups = BTreeMap::new();
        let opening_bytes = group::check(&groups, opening)?;
        check_size(&options, records_bytes(opening), opening_bytes)?;
        let header = Header {
            is_end: false,
            identity,
            segment: FIRST,
            sequence: 1,
            synced_through: 0,
            first_live: FIRST,
            segment_bytes: options.segment_bytes as u32,
        };
        let mut buffer = Vec::new();
        batch::encode(&mut buffer, &header, opening.iter().map(Record::view));
        let file = segment::make(disk.as_ref(), FIRST, options.segment_bytes, None, &buffer)
            .map_err(|source| WalError::io_or_full("making", &segment::file_name(FIRST), source))?;
        let mut wal = Wal {
            identity,
            groups,
            segments: BTreeMap::from([(FIRST, BTreeMap::new())]),
            active: Active {
                number: FIRST,
                file,
                offset: buffer.len() as u64,
                segment_bytes: options.segment_bytes,
            },
            spares: Spares::new(Arc::clone(&disk), options.segment_bytes, Default::default()),
            disk,
            options,
            sequence: 1,
            synced_through: 1,
            claimed: 0,
            last_data_sequence: 1,
            first_live: FIRST,
            written_bytes: buffer.len() as u64,
            buffer,
            is_poisoned: false,
        };
        wal.absorb(opening);
        Ok(wal)
    }

    /// Opens the log that is there, and gives back all it holds; that is durable, whatever happened
    /// before. Never makes a log: a node that lost its own must not come back under its identity.
    pub fn open(
        disk: Arc<dyn Disk>,
        identity: [u8; 16],
        options: Options,
    ) -> Result<(Wal, Recovered), WalError> {
        options.check()?;
        let findings = recovery::recover(&disk, identity, options.segment_bytes)?;
        let ready = repair::repair(&disk, &findings, options.segment_bytes)?;
        let chain = findings.chain;
        let groups = chain.groups.iter().map(|(number, log)| {
            let at_bytes = chain.compactions_at_bytes.get(number).copied();
            (*number, Group::recovered(log, at_bytes.unwrap_or(0)))
        });
        let mut segments = chain.highest;
        segments.entry(chain.segment).or_default();
        let mut wal = Wal {
            identity,
            groups: groups.collect(),
            segments,
            active: Active {
                number: chain.segment,
                file: ready.active,
                offset: chain.offset,
                segment_bytes: ready.active_bytes,
            },
            spares: Spares::new(Arc::clone(&disk), options.segment_bytes, ready.spares),
            disk,
            options,
            sequence: chain.sequence,
            synced_through: chain.sequence,
            claimed: chain.claimed,
            last_data_sequence: chain.last_data_sequence,
            first_live: chain.start,
            written_bytes: chain.written_bytes,
            buffer: Vec::new(),
            is_poisoned: false,
        };
        wal.find_first_live();
        let recovered = Recovered { groups: chain.groups, clean: findings.clean, cut: findings.cut };
        Ok((wal, recovered))
    }

    /// Reads a log with all the checks of [`Wal::open`], and changes nothing.
    pub fn read(disk: &Arc<dyn Disk>, identity: [u8; 16], options: Options) -> Result<Recovered, WalError> {
        options.check()?;
        let findings = recovery::recover(disk, identity, options.segment_bytes)?;
        Ok(Recovered { groups: findings.chain.groups, clean: findings.clean, cut: findings.cut })
    }

    /// True if the directory holds any file of a log, whole or not.
    pub fn exists(disk: &dyn Disk) -> io::Result<bool> {
        Ok(disk.list()?.iter().any(|name| segment::proves_a_log(name)))
    }

    /// Writes one batch, with one write. It is durable only when [`Wal::sync`] has returned.
    ///
    /// [`WalError::OutOfOrder`], [`WalError::TooLarge`] and [`WalError::Full`] come before anything is
    /// written, and the log can go on. So does an [`WalError::Io`] about making the next segment.
    pub fn append(&mut self, records: &[Record]) -> Result<(), WalError> {
        self.check_usable()?;
        if records.is_empty() {
            return Ok(());
        }
        let opening_bytes_after = group::check(&self.groups, records)?;
        let records_bytes = records_bytes(records);
        let opening_bytes = group::opening_bytes(&self.groups);
        check_size(&self.options, opening_bytes + records_bytes, opening_bytes_after)?;
        if records_bytes > self.active_room() {
            self.roll()?;
        }
        self.write_batch(records, false)?;
        self.absorb(records);
        Ok(())
    }

    /// Makes all that was appended durable, with one fdatasync (none if there is nothing new).
    pub fn sync(&mut self) -> Result<(), WalError> {
        self.check_usable()?;
        if self.synced_through == self.sequence {
            return Ok(());
        }
        if let Err(source) = self.active.file.sync_data() {
            self.is_poisoned = true;
            let file = segment::file_name(self.active.number);
            return Err(WalError::io("syncing", &file, source));
        }
        self.synced_through = self.sequence;
        // The batches that are on disk now say that nothing below is needed.
        while let Some(lowest) = self.segments.first_entry()
            && *lowest.key() < self.first_live
        {
            let (number, _) = lowest.remove_entry();
            self.spares.drop_segment(number);
        }
        self.find_first_live();
        Ok(())
    }

    /// Writes an empty batch that tells recovery that all before it is on disk; no sync. For idle
    /// moments: it leaves only the mark itself as the batch that cannot be told from a torn one.
    /// Does nothing if there is nothing new to say, or no room to say it.
    pub fn mark_synced(&mut self) -> Result<(), WalError> {
        self.check_usable()?;
        let has_news = self.claimed < self.synced_through.min(self.last_data_sequence);
        if !has_news || self.active.remaining() < batch::batch_bytes(0) {
            return Ok(());
        }
        self.write_batch(&[], false)
    }

    /// Work to be done on another thread: making the next segment ahead of need, or removing old
    /// ones. `None` when there is nothing to do, or a job is still out.
    pub fn segment_job(&mut self) -> Option<SegmentJob> {
        if self.is_poisoned {
            return None;
        }
        self.spares.job(self.next_number())
    }

    /// Hands back what a job gave. After an error the job is offered again.
    pub fn segment_made(&mut self, result: Result<SegmentMade, io::Error>) {
        self.spares.hand_back(result, self.next_number());
    }

    /// False while the next segment could not be made: the last attempt failed, as on a full disk,
    /// and none is prepared. While it has only not been made yet, this is true.
    pub fn has_spare(&self) -> bool {
        !self.spares.has_failed()
    }

    /// True if the next segment is prepared.
    pub fn spare_is_ready(&self) -> bool {
        self.spares.is_ready()
    }

    /// The bytes that batches can still take without a new segment.
    pub fn active_remaining(&self) -> u64 {
        self.active.remaining()
    }

    /// What a batch of these records takes in the active segment.
    pub fn batch_bytes(records: &[Record]) -> u64 {
        batch::batch_bytes(records_bytes(records))
    }

    /// Roughly the bytes of log that a compaction of the groups would free: those written since the
    /// newest compaction of the group whose is oldest.
    pub fn live_bytes(&self) -> u64 {
        self.groups.values().map(|group| group.live_bytes(self.written_bytes)).max().unwrap_or(0)
    }

    /// Stops cleanly: syncs, then says on disk where the log ends.
    pub fn close(mut self) -> Result<(), WalError> {
        self.sync()?;
        let clean_stop = CleanStop {
            identity: self.identity,
            sequence: self.sequence,
            segment: self.active.number,
            offset: self.active.offset,
        };
        clean_stop.write(self.disk.as_ref())
    }

    fn check_usable(&self) -> Result<(), WalError> {
        if self.is_poisoned {
            return Err(WalError::Poisoned);
        }
        Ok(())
    }

    /// The number of the segment after the last one prepared.
    fn next_number(&self) -> u64 {
        self.active.number + self.spares.ready_count() + 1
    }

    /// What records may take to fit into the active segment.
    fn active_room(&self) -> u64 {
        let mut taken_bytes = batch::batch_bytes(0);
        if self.active.offset == 0 {
            taken_bytes += group::opening_bytes(&self.groups);
        }
        self.active.remaining().saturating_sub(taken_bytes)
    }

    /// Goes over to the next segment. Until that is known to be there, nothing is written.
    fn roll(&mut self) -> Result<(), WalError> {
        let next = self.active.number + 1;
        self.spares
            .ensure(next)
            .map_err(|source| WalError::io_or_full("making", &segment::file_name(next), source))?;
        // The next segment is written only when this one, with its end, is on disk.
        self.write_batch(&[], true)?;
        self.sync()?;
        let Some(spare) = self.spares.take() else {
            return Err(WalError::Full);
        };
        self.active = Active {
            number: spare.number,
            file: spare.file,
            offset: 0,
            segment_bytes: self.options.segment_bytes,
        };
        self.segments.insert(spare.number, BTreeMap::new());
        Ok(())
    }

    /// Writes a batch at the end of the active segment, where it fits. The first one of a segment
    /// also carries what makes the segments before it needless.
    fn write_batch(&mut self, records: &[Record], is_end: bool) -> Result<(), WalError> {
        let header = Header {
            is_end,
            identity: self.identity,
            segment: self.active.number,
            sequence: self.sequence + 1,
            synced_through: self.synced_through,
            first_live: self.first_live,
            segment_bytes: self.active.segment_bytes as u32,
        };
        let records = records.iter().map(Record::view);
        if self.active.offset == 0 {
            let opening = group::opening(&self.groups);
            batch::encode(&mut self.buffer, &header, opening.chain(records));
        } else {
            batch::encode(&mut self.buffer, &header, records);
        }
        let is_mark = !is_end && self.buffer.len() as u64 == batch::batch_bytes(0);
        if let Err(source) = self.active.file.write_at(self.active.offset, &self.buffer) {
            self.is_poisoned = true;
            let file = segment::file_name(self.active.number);
            return Err(WalError::io("writing", &file, source));
        }
        let batch_bytes = self.buffer.len() as u64;
        self.active.offset += batch_bytes;
        self.written_bytes += batch_bytes;
        self.sequence = header.sequence;
        self.claimed = header.synced_through;
        if !is_mark {
            self.last_data_sequence = header.sequence;
        }
        Ok(())
    }

    fn absorb(&mut self, records: &[Record]) {
        let highest = self.segments.entry(self.active.number).or_default();
        for record in records {
            let group = self.groups.entry(record.group).or_default();
            group.absorb(record.view(), self.written_bytes);
            if record.kind == Kind::Entry {
                let highest = highest.entry(record.group).or_default();
                *highest = record.index.max(*highest);
            }
        }
    }

    /// Moves `first_live` over all segments whose entries are compacted. Only when all is on disk: the segment that it
    /// comes to must have its first batch there, or a crash that loses that batch alone would look like damage.
    fn find_first_live(&mut self) {
        let is_begun = self.active.offset > 0;
        let last_begun = if is_begun { self.active.number } else { self.active.number - 1 };
        for (number, highest) in &self.segments {
            let is_needed = highest.iter().any(|(group, index)| {
                let group = self.groups.get(group);
                *index > group.map_or(0, Group::compacted_through)
            });
            if is_needed || *number >= last_begun {
                self.first_live = self.first_live.max(*number);
                return;
            }
        }
    }
}

impl fmt::Debug for Wal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Wal")
            .field("segment", &self.active.number)
            .field("offset", &self.active.offset)
            .field("sequence", &self.sequence)
            .field("synced_through", &self.synced_through)
            .field("is_poisoned", &self.is_poisoned)
            .finish_non_exhaustive()
    }
}

fn list(disk: &dyn Disk) -> Result<Vec<String>, WalError> {
    disk.list().map_err(|source| WalError::io("listing", "the data directory", source))
}

fn records_bytes(records: &[Record]) -> u64 {
    records.iter().map(|record| batch::record_bytes(record.payload.len())).sum()
}

/// A batch must fit into a fresh segment, opening included; and what the next segment has to begin
/// with may take up to half of it, or there would be no room left for the log.
fn check_size(options: &Options, records_bytes: u64, opening_bytes_after: u64) -> Result<(), WalError> {
    let limit_bytes = options.segment_bytes - END_BYTES;
    let bytes = batch::batch_bytes(records_bytes);
    if bytes > limit_bytes {
        return Err(WalError::TooLarge { bytes, limit_bytes });
    }
    let limit_bytes = options.segment_bytes / 2;
    let bytes = batch::batch_bytes(opening_bytes_after);
    if bytes > limit_bytes {
        return Err(WalError::TooLarge { bytes, limit_bytes });
    }
    Ok(())
}
