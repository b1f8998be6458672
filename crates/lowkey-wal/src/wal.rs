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

use lowkey_record::GroupId;

use crate::batch::{self, END_BYTES, Header};
use crate::clean_stop::CleanStop;
use crate::disk::{Disk, DiskFile, is_full};
use crate::error::WalError;
use crate::group::{self, Group};
use crate::needs::Needs;
use crate::record::{Kind, Record, RecordRef};
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
    groups: BTreeMap<GroupId, Group>,
    /// The segments up to the active one, and who needs them.
    needs: Needs,
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
        batch::encode(&mut buffer, &header, opening.iter().map(RecordRef::from));
        let file = segment::make(disk.as_ref(), FIRST, options.segment_bytes, None, &buffer)
            .map_err(|source| WalError::io_or_full("making", &segment::file_name(FIRST), source))?;
        let mut wal = Wal {
            identity,
            groups,
            needs: Needs::default(),
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
            buffer,
            is_poisoned: false,
        };
        wal.absorb(opening);
        Ok(wal)
    }

    /// Opens the log that is there, and gives back all it holds; that is durable, even after a failed
    /// sync. Never makes a log: a node that lost its own must not come back under its identity.
    pub fn open(
        disk: Arc<dyn Disk>,
        identity: [u8; 16],
        options: Options,
    ) -> Result<(Wal, Recovered), WalError> {
        options.check()?;
        let findings = recovery::recover(&disk, identity, options.segment_bytes)?;
        let ready = repair::repair(&disk, &findings, options.segment_bytes)?;
        let chain = findings.chain;
        let groups = chain.groups.iter().map(|(number, log)| (*number, Group::recovered(log)));
        let mut wal = Wal {
            identity,
            groups: groups.collect(),
            needs: chain.needs,
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
    /// [`WalError::OutOfOrder`] and [`WalError::TooLarge`] come before anything is written, and the log
    /// can go on. So does an [`WalError::Io`] about making the next segment. After [`WalError::Full`] nothing
    /// of the batch counts as written, and the same batch can be tried again.
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
        while let Some(number) = self.needs.forget_below(self.first_live) {
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
        match self.write_batch(&[], false) {
            Err(WalError::Full) => Ok(()),
            outcome => outcome,
        }
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

    /// The group that should make a snapshot for the sake of the others: more than so many bytes of theirs, which they
    /// have done with, are kept because of an entry of its own that it has not compacted. Nobody if there is one group.
    pub fn pinned_by(&self, bytes_max: u64) -> Option<GroupId> {
        self.needs.pinned_by(bytes_max, |group| self.compacted_through(group))
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
        self.needs.begin(spare.number);
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
        let records = records.iter().map(RecordRef::from);
        if self.active.offset == 0 {
            let opening = group::opening(&self.groups);
            batch::encode(&mut self.buffer, &header, opening.chain(records));
        } else {
            batch::encode(&mut self.buffer, &header, records);
        }
        let is_mark = !is_end && self.buffer.len() as u64 == batch::batch_bytes(0);
        if let Err(source) = self.active.file.write_at(self.active.offset, &self.buffer) {
            // Where writing in place takes new room (copy-on-write disks), a prepared segment can meet a full disk. What
            // was written of the batch is the torn end of the log, and the next try writes over it.
            if is_full(&source) {
                return Err(WalError::Full);
            }
            self.is_poisoned = true;
            let file = segment::file_name(self.active.number);
            return Err(WalError::io("writing", &file, source));
        }
        let batch_bytes = self.buffer.len() as u64;
        self.active.offset += batch_bytes;
        self.sequence = header.sequence;
        self.claimed = header.synced_through;
        if !is_mark {
            self.last_data_sequence = header.sequence;
        }
        Ok(())
    }

    fn absorb(&mut self, records: &[Record]) {
        self.needs.begin(self.active.number);
        for record in records {
            let group = self.groups.entry(record.group).or_default();
            group.absorb(record.into());
            if record.kind == Kind::Entry {
                let bytes = batch::record_bytes(record.payload.len());
                self.needs.add(self.active.number, record.group, record.index, bytes);
            }
        }
    }

    /// Moves `first_live` over all segments whose entries are compacted. Only when all is on disk: the segment that it
    /// comes to must have its first batch there, or a crash that loses that batch alone would look like damage.
    fn find_first_live(&mut self) {
        let is_begun = self.active.offset > 0;
        let last_begun = if is_begun { self.active.number } else { self.active.number - 1 };
        let first = self.needs.first_needed(last_begun, |group| self.compacted_through(group));
        self.first_live = self.first_live.max(first);
    }

    fn compacted_through(&self, group: GroupId) -> u64 {
        self.groups.get(&group).map_or(0, Group::compacted_through)
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
