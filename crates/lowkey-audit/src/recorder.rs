//! The queue and the thread that writes.
//!
//! The driver of a replica feeds it, and never waits: [`Feed::applied`] puts into a queue that is bounded by bytes, and what
//! does not fit is dropped. That needs no bookkeeping: each batch says behind which revision it begins, so that what is
//! missing shows when the next one is written, and is declared as a gap in the same transaction.
//!
//! What cannot be written stays in the queue and is tried again every second; meanwhile the queue fills, and drops.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use lowkey_core::EndedGrant;

use crate::file::{AuditError, AuditFile};
use crate::row::{Gap, GapCause, Happening, Position, Row};
use crate::shelf::Shelf;

/// How long rows gather before they are written, if nobody asks for them.
const GATHER: Duration = Duration::from_millis(50);
/// How often it is tried again after a failure.
const RETRY: Duration = Duration::from_secs(1);
/// How often files are looked at that may be too old.
const RETIRE: Duration = Duration::from_secs(60);
/// So many rows are written in one transaction.
const ROWS_PER_WRITE: usize = 8_192;
/// About what a row takes in the queue, beside its texts.
const ROW_BYTES: usize = 240;
/// What a batch takes in the queue, with rows or without: batches without rows would otherwise gather without bound
/// while those with rows are dropped between them.
const BATCH_BYTES: usize = 128;
/// So many happenings wait at most.
const HAPPENINGS_MAX: usize = 1_024;

/// How a recorder works.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where the files are; made if it is missing.
    pub directory: PathBuf,
    /// The cluster's id.
    pub cluster: String,
    /// For how long rows are kept.
    pub keep: Duration,
    /// What all files may take.
    pub bytes_max: u64,
    /// From which size on a file is full.
    pub file_bytes: u64,
    /// What the queue may take in memory.
    pub queue_bytes: usize,
}

impl Options {
    /// The usual sizes.
    pub fn new(directory: PathBuf, cluster: String) -> Self {
        Self {
            directory,
            cluster,
            keep: Duration::from_secs(30 * 24 * 3600),
            bytes_max: 1 << 30,
            file_bytes: 64 << 20,
            queue_bytes: 8 << 20,
        }
    }
}

/// How a recorder is doing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// Everything through this revision is written, or declared as missing.
    pub recorded: u64,
    /// Everything through this revision survives a loss of power.
    pub durable: u64,
    /// Rows written since the start.
    pub rows: u64,
    /// Rows that were dropped since the start.
    pub dropped_rows: u64,
    /// Gaps that were declared since the start.
    pub gaps: u64,
    /// What the files took when they were last looked at.
    pub bytes: u64,
    /// Why nothing can be written, if that is so.
    pub failure: Option<String>,
    /// How often writing began to fail since the start.
    pub failures: u64,
}

/// What was applied together.
struct Batch {
    /// It begins behind this revision.
    after: u64,
    through: u64,
    rows: Vec<(u64, u64, Box<EndedGrant>)>,
    bytes: usize,
    /// Why there may be nothing before it.
    cause: GapCause,
}

impl Batch {
    /// Nothing is known up to this revision, and from there on all.
    fn mark(index: u64, cause: GapCause) -> Self {
        Self { after: index, through: index, rows: Vec::new(), bytes: BATCH_BYTES, cause }
    }

    fn is_mark(&self) -> bool {
        self.after == self.through && self.rows.is_empty()
    }
}

#[derive(Default)]
struct Queue {
    batches: VecDeque<Batch>,
    bytes: usize,
    /// What ended through this revision was dropped, if nothing was taken in since.
    dropped_through: Option<u64>,
    happenings: Vec<Happening>,
    wants_sync: bool,
    /// Somebody waits for what is in the queue.
    is_urgent: bool,
    ends: bool,
    standing: Standing,
}

struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
    queue_bytes: usize,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where what is applied goes in. It never waits for the disk.
#[derive(Clone)]
pub struct Feed(Arc<Shared>);

impl Feed {
    /// Everything behind one revision through another was applied, and these grants ended: with the revision and the term
    /// of each, in order.
    pub fn applied(&self, after: u64, through: u64, ended: Vec<(u64, u64, Box<EndedGrant>)>) {
        let mut queue = self.0.lock();
        let goes_on = queue
            .batches
            .back()
            .is_some_and(|last| last.through == after && last.rows.len() + ended.len() <= ROWS_PER_WRITE);
        let bytes = ended.iter().map(|(_, _, grant)| bytes_of(grant)).sum::<usize>();
        let bytes = if goes_on { bytes } else { bytes + BATCH_BYTES };
        if bytes > 0 && queue.bytes + bytes > self.0.queue_bytes {
            // A gap shows behind the next batch that fits.
            queue.standing.dropped_rows += ended.len() as u64;
            queue.dropped_through = Some(through);
            return;
        }
        queue.bytes += bytes;
        queue.dropped_through = None;
        match queue.batches.back_mut().filter(|_| goes_on) {
            Some(last) => {
                last.through = through;
                last.rows.extend(ended);
                last.bytes += bytes;
            }
            None => {
                let cause = GapCause::Lost;
                queue.batches.push_back(Batch { after, through, rows: ended, bytes, cause });
            }
        }
    }

    /// What was applied next begins behind this revision: a snapshot took the place of what led to it.
    pub fn reset(&self, index: u64) {
        let mut queue = self.0.lock();
        queue.dropped_through = None;
        match queue.batches.back_mut().filter(|last| last.is_mark()) {
            Some(last) => *last = Batch { bytes: last.bytes, ..Batch::mark(index, GapCause::Snapshot) },
            None => {
                queue.bytes += BATCH_BYTES;
                queue.batches.push_back(Batch::mark(index, GapCause::Snapshot));
            }
        }
    }

    /// Something happened to the cluster. If too much does, it is dropped.
    pub fn happened(&self, happening: Happening) {
        let mut queue = self.0.lock();
        if queue.happenings.len() < HAPPENINGS_MAX {
            queue.happenings.push(happening);
        }
    }

    /// How the recorder is doing.
    pub fn standing(&self) -> Standing {
        self.0.lock().standing.clone()
    }

    /// Asks the thread to write what is in the queue now.
    pub fn hurry(&self) {
        self.0.lock().is_urgent = true;
        self.0.changed.notify_all();
    }

    /// Asks the thread to have everything survive a loss of power.
    pub fn sync(&self) {
        {
            let mut queue = self.0.lock();
            (queue.wants_sync, queue.is_urgent) = (true, true);
        }
        self.0.changed.notify_all();
    }
}

fn bytes_of(grant: &EndedGrant) -> usize {
    let actor = grant.actor.as_ref().map_or(0, |actor| actor.as_str().len());
    ROW_BYTES + grant.lock.as_str().len() + grant.owner.as_str().len() + actor
}

/// The thread. It ends when this is dropped, and writes what it was given before.
pub struct Recorder {
    feed: Feed,
    thread: Option<JoinHandle<()>>,
}

impl Recorder {
    /// Starts it for a replica that has applied everything through `applied`. `tell` is told when writing begins to fail,
    /// why, and when it works again.
    pub fn start(
        options: Options,
        applied: u64,
        tell: impl Fn(Result<(), &AuditError>) + Send + 'static,
    ) -> std::io::Result<Self> {
        let first = Batch::mark(applied, GapCause::Unrecorded);
        let queue = Queue { bytes: first.bytes, batches: VecDeque::from([first]), ..Queue::default() };
        let shared = Arc::new(Shared {
            queue: Mutex::new(queue),
            changed: Condvar::new(),
            queue_bytes: options.queue_bytes,
        });
        let feed = Feed(Arc::clone(&shared));
        let writer = Writer {
            shelf: Shelf::new(&options.directory),
            options,
            shared,
            file: None,
            written: 0,
            covered: 0,
            retired: None,
            tell: Box::new(tell),
        };
        let thread = std::thread::Builder::new().name("audit".into()).spawn(move || writer.run())?;
        Ok(Self { feed, thread: Some(thread) })
    }

    /// Where what is applied goes in.
    pub fn feed(&self) -> Feed {
        self.feed.clone()
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        self.feed.0.lock().ends = true;
        self.feed.0.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has nothing left to write.
            let _ = thread.join();
        }
    }
}

/// Hears whether the audit could be written.
type Tell = dyn Fn(Result<(), &AuditError>) + Send;

struct Writer {
    options: Options,
    shelf: Shelf,
    shared: Arc<Shared>,
    file: Option<AuditFile>,
    /// What the file said of itself after the last write of this run: everything through this revision is in it.
    written: u64,
    /// Everything through this revision was taken in by this run. Where nothing happened since the last write, this
    /// is more than what was written.
    covered: u64,
    retired: Option<Instant>,
    tell: Box<Tell>,
}

/// What the thread took out of the queue.
struct Taken {
    batches: Vec<Batch>,
    happenings: Vec<Happening>,
    wants_sync: bool,
    ends: bool,
}

impl Writer {
    fn run(mut self) {
        let mut has_failed = false;
        loop {
            let taken = self.take(if has_failed { RETRY } else { GATHER }, has_failed);
            let ends = taken.ends;
            let outcome = self.carry_out(&taken);
            let failed = outcome.as_ref().err().map(ToString::to_string);
            if has_failed != failed.is_some() {
                (self.tell)(outcome.as_ref().map(|_| ()));
            }
            has_failed = failed.is_some();
            {
                let mut queue = self.shared.lock();
                queue.standing.failures += u64::from(failed.is_some() && queue.standing.failure.is_none());
                queue.standing.failure = failed;
                if outcome.is_err() {
                    self.file = None;
                    // The oldest first, again.
                    for batch in taken.batches.into_iter().rev() {
                        queue.bytes += batch.bytes;
                        queue.batches.push_front(batch);
                    }
                    queue.happenings.splice(0..0, taken.happenings);
                    queue.happenings.truncate(HAPPENINGS_MAX);
                    queue.wants_sync |= taken.wants_sync;
                }
            }
            if ends {
                if let Some(file) = self.file.take() {
                    // What cannot be folded in stays in the write-ahead log beside the file.
                    let _ = file.sync().and_then(|()| file.finish());
                }
                return;
            }
        }
    }

    /// Waits until there is something to do.
    fn take(&self, wait: Duration, insists: bool) -> Taken {
        let deadline = Instant::now() + wait;
        let mut queue = self.shared.lock();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let is_urgent = queue.is_urgent && !insists;
            if queue.ends || is_urgent || left.is_zero() {
                break;
            }
            queue = self.shared.changed.wait_timeout(queue, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        queue.is_urgent = false;
        let (mut batches, mut rows) = (Vec::new(), 0);
        while rows < ROWS_PER_WRITE
            && let Some(batch) = queue.batches.pop_front()
        {
            queue.bytes -= batch.bytes;
            rows += batch.rows.len();
            batches.push(batch);
        }
        if let Some(through) = queue.dropped_through.filter(|_| queue.batches.is_empty()) {
            // Nothing that fits came behind it: the gap is declared all the same, or what waits for the recorder would
            // wait for the next grant.
            queue.dropped_through = None;
            match batches.last_mut().filter(|last| last.is_mark()) {
                Some(last) => (last.after, last.through) = (through, through),
                None => batches.push(Batch::mark(through, GapCause::Lost)),
            }
        }
        // The rest at once.
        queue.is_urgent = !queue.batches.is_empty();
        Taken {
            ends: queue.ends && (queue.batches.is_empty() || insists),
            wants_sync: std::mem::take(&mut queue.wants_sync),
            happenings: std::mem::take(&mut queue.happenings),
            batches,
        }
    }

    fn carry_out(&mut self, taken: &Taken) -> Result<(), AuditError> {
        let now = unix_ms();
        let first = taken.batches.first().map_or(self.covered, |batch| batch.after);
        if self.file.is_none() {
            self.file = Some(self.shelf.open_newest(&self.options.cluster, first, now)?);
        }
        let file = self.file.as_mut().expect("it was opened just now");
        let mut known = file.about.through;
        let (mut gaps, mut rows) = (Vec::new(), Vec::new());
        // What this run has written, and the file does not have, was deleted.
        if known < self.written {
            gaps.push(Gap { after: known, through: self.written, cause: GapCause::Deleted });
        }
        known = known.max(self.covered);
        for batch in &taken.batches {
            if known < batch.after {
                gaps.push(Gap { after: known, through: batch.after, cause: batch.cause });
                known = batch.after;
            }
            let mut at = Position::default();
            for (revision, term, grant) in &batch.rows {
                let ordinal = if at.revision == *revision { at.ordinal + 1 } else { 0 };
                at = Position { revision: *revision, ordinal };
                if *revision > known {
                    rows.push(Row::new(&self.options.cluster, EndedGrant::clone(grant), at, *term));
                }
            }
            known = known.max(batch.through);
        }
        // Where nothing happened there is nothing to write: only somebody who wants it on disk gets it there.
        let has_news = !(rows.is_empty() && gaps.is_empty() && taken.happenings.is_empty());
        if has_news || ((taken.wants_sync || taken.ends) && known > file.about.through) {
            file.write(&gaps, &rows, &taken.happenings, known)?;
            self.written = self.written.max(known);
        }
        if taken.wants_sync {
            file.sync()?;
        }
        self.covered = self.covered.max(known);
        let is_full = file.bytes() >= self.options.file_bytes;
        let turn = self.options.keep / 8;
        let is_old = !rows.is_empty()
            && now.saturating_sub(file.about.begun_unix_ms) > turn.as_millis().try_into().unwrap_or(u64::MAX);
        {
            let mut queue = self.shared.lock();
            let standing = &mut queue.standing;
            standing.recorded = standing.recorded.max(known);
            standing.rows += rows.len() as u64;
            standing.gaps += gaps.len() as u64;
            if taken.wants_sync {
                standing.durable = standing.durable.max(known);
            }
        }
        if is_full || is_old {
            self.next_file(now)?;
        }
        self.retire(now, is_full || is_old)
    }

    fn next_file(&mut self, now: u64) -> Result<(), AuditError> {
        if let Some(file) = self.file.take() {
            let through = file.about.through;
            file.sync()?;
            file.finish()?;
            self.file = Some(self.shelf.open_next(&self.options.cluster, through, now)?);
        }
        Ok(())
    }

    /// Deletes what is too old, now and then.
    fn retire(&mut self, now: u64, at_once: bool) -> Result<(), AuditError> {
        if !at_once && self.retired.is_some_and(|last| last.elapsed() < RETIRE) {
            return Ok(());
        }
        self.retired = Some(Instant::now());
        let gaps = self.shelf.retire(now, self.options.keep, self.options.bytes_max)?;
        let gaps: Vec<Gap> = gaps
            .into_iter()
            .filter(|(cluster, _)| *cluster == self.options.cluster)
            .map(|(_, gap)| gap)
            .collect();
        if let Some(file) = self.file.as_mut().filter(|_| !gaps.is_empty()) {
            let through = file.about.through;
            // One says it for all: the last goes furthest.
            file.write(&gaps[gaps.len() - 1..], &[], &[], through)?;
        }
        self.shared.lock().standing.bytes = self.shelf.bytes()?;
        Ok(())
    }
}

fn unix_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}
