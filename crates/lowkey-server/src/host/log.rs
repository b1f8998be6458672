//! The node's log. All lanes write to it, with *group commit*: one sync makes the records of many lanes
//! durable.
//!
//! A lane puts the records that it must save on the *pile*, then takes the log. The lane that gets the log
//! writes the whole pile as one batch and syncs once, for every lane that waits:
//!
//! ```text
//! lane 1 ─► put ─┐                                        ┌─► on disk: its turn goes on
//! lane 2 ─► put ─┼─► pile ─► one write ─► one fdatasync ──┼─► on disk
//! lane 3 ─► put ─┘                                        └─► on disk
//! ```
//!
//! The free space on the disk, the next segment and the mark that everything is synced belong to the log
//! too. There is one of each per node, no matter how many lanes it has.
//!
//! Invariants:
//! - A lane's records are in the pile, in `rest` or in the log, never in two of them, and they keep their
//!   order.
//! - `saved` rises only after a sync, and only to what was taken from the pile before the write.
//! - After an error that leaves the disk in doubt every lane gets an error: no lane goes on.
//! - The pile is locked only for moments. It may be locked while the log is held, never the other way
//!   round.

use std::io;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use lowkey_replica::{DiskRoom, MILLISECOND, Nanos};
use lowkey_wal::{Record, RecordKind, SegmentMade, Wal, WalError, lacks_descriptors};

use crate::host::clock::Clock;
use crate::host::housekeeper::Jobs;
use crate::lane::driver::Place;
use crate::metrics::ReplicaMetrics;

/// When only this much of the last segment is left, the rest is reserved for what `raft` itself must write.
const RESERVE_BYTES: u64 = 4 * 1024 * 1024;
/// The pause before making the next segment is tried again.
const SEGMENT_PAUSE_NANOS: u64 = 500 * MILLISECOND;
/// The pause before a write to a full disk is tried again.
const FULL_PAUSE: Duration = Duration::from_millis(500);
/// The most bytes of entries in one batch of the log. A segment holds twice as many.
const BATCH_BYTES: usize = 8 * 1024 * 1024;
/// The most bytes that a record takes beside its payload.
const RECORD_BYTES: usize = 64;
/// A sync that takes longer than this is slow: it would hold up the connections if the runtime waited for
/// it.
const SLOW_SYNC: Duration = Duration::from_millis(2);
/// After this many slow syncs in a row the disk counts as slow. Fewer may only mean that the machine was
/// busy for a moment.
const SLOW_SYNCS: u32 = 16;

/// What a lane waits for: that this many saves are on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ticket(u64);

pub(crate) struct NodeLog {
    pile: Mutex<Pile>,
    log: Mutex<Log>,
    mail: Mutex<Mail>,
    /// How many syncs in a row were slow.
    slow_syncs: AtomicU32,
    clock: Clock,
    metrics: ReplicaMetrics,
}

/// Records that wait to be written.
#[derive(Default)]
struct Pile {
    records: Vec<Record>,
    /// How often something was put here.
    saves: u64,
}

struct Log {
    /// `None` once it is closed.
    wal: Option<Wal>,
    /// Taken from the pile, and not written yet.
    rest: Vec<Record>,
    /// The number of saves that were taken from the pile.
    taken: u64,
    /// The number of saves that are on disk; ≤ `taken`.
    saved: u64,
    jobs: Jobs,
    /// After a failure to make the next segment, the earliest time to try again.
    next_segment_try: Nanos,
    room: DiskRoom,
    /// Whether the disk has enough space, as the housekeeper last saw it.
    space_enough: bool,
    /// True if nothing was written since the last tick: a good time to mark the log as synced.
    idle: bool,
}

/// Messages of the housekeeper, kept until a thread takes the log. The housekeeper itself never waits for
/// the log.
#[derive(Default)]
struct Mail {
    made: Option<io::Result<SegmentMade>>,
    space_enough: Option<bool>,
}

impl NodeLog {
    pub(crate) fn new(wal: Wal, jobs: Jobs, clock: Clock, metrics: ReplicaMetrics) -> Self {
        let log = Log {
            wal: Some(wal),
            rest: Vec::new(),
            taken: 0,
            saved: 0,
            jobs,
            next_segment_try: Nanos(0),
            room: DiskRoom::Ample,
            space_enough: true,
            idle: false,
        };
        Self {
            pile: Mutex::default(),
            log: Mutex::new(log),
            mail: Mutex::default(),
            slow_syncs: AtomicU32::new(0),
            clock,
            metrics,
        }
    }

    /// Puts records on the pile. They are on disk when [`NodeLog::save`] says so for this ticket.
    pub(crate) fn put(&self, records: Vec<Record>) -> Ticket {
        let mut pile = lock(&self.pile);
        move_to(&mut pile.records, records);
        pile.saves += 1;
        Ticket(pile.saves)
    }

    /// Brings the records of this ticket to disk, together with everything else that waits. Returns false
    /// if that would take long and must not in this place.
    pub(crate) fn save(&self, ticket: Ticket, place: Place) -> Result<bool, WalError> {
        let mut told = None;
        loop {
            let mut log = match (place, self.log.try_lock()) {
                (_, Ok(log)) => log,
                (_, Err(TryLockError::Poisoned(poisoned))) => poisoned.into_inner(),
                // Another lane has the log, perhaps for long.
                (Place::Runtime, Err(TryLockError::WouldBlock)) => return Ok(false),
                (Place::Thread, Err(TryLockError::WouldBlock)) => lock(&self.log),
            };
            if log.saved >= ticket.0 {
                return Ok(true);
            }
            {
                let mut pile = lock(&self.pile);
                let records = std::mem::take(&mut pile.records);
                move_to(&mut log.rest, records);
                log.taken = pile.saves;
            }
            let shortage = match self.write(&mut log, place) {
                Err(WalError::Full) => Shortage::Space,
                Err(WalError::NoDescriptors) => Shortage::Descriptors,
                outcome => return outcome,
            };
            if place == Place::Runtime {
                return Ok(false);
            }
            // Nothing was written, so trying again loses nothing. Nothing else can be done meanwhile:
            // these records must be on disk before anything else happens.
            drop(log);
            shortage.wait(&mut told);
        }
    }

    /// Writes what is left, and syncs. Returns false if that would take long and must not in this place.
    fn write(&self, log: &mut Log, place: Place) -> Result<bool, WalError> {
        let Log { wal, rest, taken, saved, idle, .. } = log;
        let wal = wal.as_mut().ok_or(WalError::Poisoned)?;
        let started = Instant::now();
        let mut record_count = 0;
        *idle = false;
        while !rest.is_empty() {
            let batch = batch_len(rest);
            let records = &rest[..batch];
            let must_make_segment =
                !wal.spare_is_ready() && Wal::batch_bytes(records) > wal.active_remaining();
            if place == Place::Runtime && must_make_segment {
                return Ok(false);
            }
            wal.append(records)?;
            rest.drain(..batch);
            record_count += batch;
        }
        let written = Instant::now();
        wal.sync()?;
        *saved = *taken;
        self.metrics.log_sync_duration.observe(written.elapsed().as_secs_f64());
        // Measure from the start: ending a segment is a sync, too.
        if started.elapsed() > SLOW_SYNC {
            self.slow_syncs.fetch_add(1, Ordering::Relaxed);
        } else {
            self.slow_syncs.store(0, Ordering::Relaxed);
        }
        self.metrics.log_batch_records.observe(record_count as f64);
        Ok(true)
    }

    /// True while the disk is so slow that connections must not wait for it.
    pub(crate) fn is_slow(&self) -> bool {
        self.slow_syncs.load(Ordering::Relaxed) >= SLOW_SYNCS
    }

    /// Makes sure that the next segment is being made, and tells how much room there is. `None` if another
    /// thread has the log.
    pub(crate) fn watch(&self) -> Option<DiskRoom> {
        let mut log = self.log.try_lock().ok()?;
        self.read_mail(&mut log);
        let now = self.clock.now();
        let Log { wal, jobs, next_segment_try, room, space_enough, .. } = &mut *log;
        let wal = wal.as_mut()?;
        if now >= *next_segment_try
            && let Some(job) = wal.segment_job()
        {
            // The housekeeper lives as long as this sender does.
            let _ = jobs.send(job);
        }
        let found = match (wal.has_spare() && *space_enough, wal.active_remaining()) {
            (true, _) => DiskRoom::Ample,
            (false, RESERVE_BYTES..) => DiskRoom::Reserve,
            (false, _) if wal.has_spare() => DiskRoom::Reserve,
            (false, _) => DiskRoom::Exhausted,
        };
        if *room != found {
            *room = found;
            self.metrics.disk_room(found);
            tell_of_room(found);
        }
        Some(found)
    }

    fn read_mail(&self, log: &mut Log) {
        let Mail { made, space_enough } = std::mem::take(&mut *lock(&self.mail));
        if let Some(enough) = space_enough {
            log.space_enough = enough;
        }
        let (Some(made), Some(wal)) = (made, log.wal.as_mut()) else { return };
        if let Err(error) = &made {
            if lacks_descriptors(error) {
                tracing::warn!(%error, "the next segment of the log cannot be made for want of file descriptors: will try again");
            } else if wal.has_spare() {
                tracing::error!(%error, "the next segment of the log cannot be made: no new leases and locks until there is space");
            }
            log.next_segment_try = self.clock.now().after(SEGMENT_PAUSE_NANOS);
        }
        wal.segment_made(made);
    }

    /// Call this regularly. When the log is idle, it writes a mark that everything before is on disk.
    pub(crate) fn tick(&self) -> Result<(), WalError> {
        let Ok(mut log) = self.log.try_lock() else { return Ok(()) };
        let Log { wal: Some(wal), idle, .. } = &mut *log else { return Ok(()) };
        if std::mem::replace(idle, true) {
            wal.mark_synced()?;
        }
        Ok(())
    }

    /// The housekeeper made a segment, or could not.
    pub(crate) fn segment_made(&self, made: io::Result<SegmentMade>) {
        lock(&self.mail).made = Some(made);
    }

    /// The housekeeper checked how much space is left.
    pub(crate) fn space_seen(&self, enough: bool) {
        lock(&self.mail).space_enough = Some(enough);
    }

    /// Closes the log in good order. Nothing can be written afterwards.
    pub(crate) fn close(&self) -> Result<(), WalError> {
        lock(&self.log).wal.take().map_or(Ok(()), Wal::close)
    }
}

/// Ignores poisoning: a thread that panicked while it held the log has ended the process.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Adds records at the end. Mostly the list is still empty.
fn move_to(records: &mut Vec<Record>, mut more: Vec<Record>) {
    if records.is_empty() {
        *records = more;
    } else {
        records.append(&mut more);
    }
}

/// How many of these records go into the log's next batch. A batch must fit into a segment. It is cut only
/// between entries: everything else that a lane saves stays together with the hard state behind it.
fn batch_len(records: &[Record]) -> usize {
    let mut bytes = 0;
    let is_next = |record: &Record| {
        bytes += record.payload.len() + RECORD_BYTES;
        bytes > BATCH_BYTES && record.kind == RecordKind::Entry
    };
    // A single record is never larger than a batch.
    records.iter().position(is_next).unwrap_or(records.len()).max(1)
}

/// What a node does not have enough of to write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shortage {
    /// Of the disk.
    Space,
    /// Of files.
    Descriptors,
}

impl Shortage {
    /// Waits a moment, in which there may be enough again. Says so only if that is news (`told` is what was said last),
    /// because the log messages may go to the same disk.
    pub(crate) fn wait(self, told: &mut Option<Self>) {
        if told.replace(self) != Some(self) {
            match self {
                Self::Space => {
                    tracing::error!("the disk is full to the last byte: this node waits for space")
                }
                Self::Descriptors => tracing::error!(
                    "no file descriptor is left for the log: this node waits until some are closed; raise LimitNOFILE"
                ),
            }
        }
        std::thread::sleep(FULL_PAUSE);
    }
}

fn tell_of_room(room: DiskRoom) {
    match room {
        DiskRoom::Ample => tracing::info!("the disk has room again: new leases and locks are granted"),
        DiskRoom::Reserve => tracing::error!(
            "the disk is full: new leases and locks are refused (LIMIT_DISK), renewals and releases go on; free some space"
        ),
        DiskRoom::Exhausted => tracing::error!(
            "the disk is full and the reserve is used up: all changes are refused; free some space"
        ),
    }
}

#[cfg(test)]
mod tests {
    use lowkey_core::GroupId;
    use lowkey_wal::{Options, SimDisk};

    use super::*;

    /// A new log on a disk that counts.
    fn log(disk: &SimDisk) -> NodeLog {
        let wal = Wal::create(disk.as_disk(), [1; 16], Options::default(), &[]).unwrap();
        NodeLog::new(wal, crate::host::housekeeper::jobs().0, Clock::new(), ReplicaMetrics::new())
    }

    /// An entry of a group.
    fn entry(group: u32, index: u64) -> Vec<Record> {
        vec![Record { group: GroupId(group), kind: RecordKind::Entry, index, payload: vec![7; 100] }]
    }

    #[test]
    fn what_several_lanes_put_is_one_write_and_one_sync() {
        let disk = SimDisk::new(1);
        let log = log(&disk);
        let before = disk.counts();
        let tickets = [1, 2, 3].map(|group| log.put(entry(group, 1)));
        for ticket in tickets {
            assert!(log.save(ticket, Place::Runtime).unwrap());
        }
        let after = disk.counts();
        assert_eq!((after.writes - before.writes, after.syncs - before.syncs), (1, 1));
        // What comes later is not taken for saved.
        let late = log.put(entry(2, 2));
        assert!(log.save(late, Place::Runtime).unwrap());
        assert_eq!(disk.counts().syncs - after.syncs, 1);
        log.close().unwrap();
        let groups = Wal::read(&disk.as_disk(), [1; 16], Options::default()).unwrap().groups;
        let counts: Vec<usize> = groups.values().map(|group| group.entries.len()).collect();
        assert_eq!(counts, [1, 2, 1]);
    }

    #[test]
    fn the_runtime_does_not_wait_while_another_lane_is_at_the_log() {
        let disk = SimDisk::new(1);
        let log = log(&disk);
        let ticket = log.put(entry(1, 1));
        let held = log.log.lock().unwrap();
        assert!(!log.save(ticket, Place::Runtime).unwrap());
        assert_eq!(log.watch(), None);
        drop(held);
        assert!(log.save(ticket, Place::Runtime).unwrap());
    }

    #[test]
    fn after_a_failed_sync_every_lane_gets_an_error() {
        let disk = SimDisk::new(1);
        let log = log(&disk);
        let tickets = [1, 2].map(|group| log.put(entry(group, 1)));
        disk.fail_sync(1, io::ErrorKind::Other);
        assert!(matches!(log.save(tickets[0], Place::Thread), Err(WalError::Io { .. })));
        assert!(matches!(log.save(tickets[1], Place::Thread), Err(WalError::Poisoned)));
    }

    fn record(kind: RecordKind, bytes: usize) -> Record {
        Record { group: GroupId::ROOT, kind, index: 1, payload: vec![0; bytes] }
    }

    #[test]
    fn more_records_than_fit_are_written_in_several_batches_and_the_hard_state_last() {
        let entry = || record(RecordKind::Entry, BATCH_BYTES / 3 - RECORD_BYTES);
        let small = record(RecordKind::HardState, 20);
        assert_eq!(batch_len(&[entry(), entry(), entry(), small.clone()]), 4);
        assert_eq!(batch_len(&[entry(), entry(), entry(), entry(), entry(), small.clone()]), 3);
        assert_eq!(batch_len(&[entry(), entry(), small.clone()]), 3);
        assert_eq!(batch_len(&[record(RecordKind::Entry, BATCH_BYTES + 1), small]), 1);
        let cut = record(RecordKind::Compaction, 8);
        let full = record(RecordKind::Entry, BATCH_BYTES - RECORD_BYTES);
        assert_eq!(batch_len(&[full, cut.clone(), cut]), 3, "only entries are left for the next");
    }
}
