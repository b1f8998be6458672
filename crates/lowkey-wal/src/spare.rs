//! The next segment, made ahead of need and on another thread.
//!
//! Filling 16 MiB with zeros takes longer than a lease renewal may wait, so the log's owner asks for
//! a [`SegmentJob`], runs it elsewhere and hands the result back. If the log needs the segment
//! earlier, it takes the job over: one that has not begun is done on the spot, one that is running
//! is waited for. So no two threads ever make the same file.
//!
//! Removing segments that are no longer needed goes the same way, since that too can take long.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::mem;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::disk::{Disk, DiskFile, lacks_descriptors};
use crate::segment;

/// A prepared segment: zeros throughout, durable under its name.
#[derive(Clone)]
pub(crate) struct Spare {
    pub(crate) number: u64,
    pub(crate) file: Arc<dyn DiskFile>,
}

/// What is to be done.
struct Work {
    disk: Arc<dyn Disk>,
    segment_bytes: u64,
    make: Option<Make>,
    /// Segments no longer needed.
    remove: Vec<u64>,
}

struct Make {
    number: u64,
    recycle: Option<u64>,
}

impl Work {
    fn run(self) -> io::Result<Option<Spare>> {
        for number in self.remove {
            // One that stays is found and removed at the next start.
            let _ = self.disk.remove(&segment::file_name(number));
        }
        let Some(Make { number, recycle }) = self.make else {
            return Ok(None);
        };
        let file = segment::make(self.disk.as_ref(), number, self.segment_bytes, recycle, &[])?;
        Ok(Some(Spare { number, file }))
    }
}

/// How far a job has come; shared by the job and the log.
struct Progress {
    stage: Mutex<Stage>,
    changed: Condvar,
}

enum Stage {
    Waiting(Work),
    Running,
    /// With what it made, until the log takes it.
    Finished(Option<Spare>),
}

impl Progress {
    fn lock(&self) -> MutexGuard<'_, Stage> {
        self.stage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the job over: its work if it has not begun, its result when it is done.
    fn take_over(&self) -> (Option<Work>, Option<Spare>) {
        let mut stage = self.lock();
        while matches!(*stage, Stage::Running) {
            stage = self.changed.wait(stage).unwrap_or_else(PoisonError::into_inner);
        }
        match mem::replace(&mut *stage, Stage::Finished(None)) {
            Stage::Waiting(work) => (Some(work), None),
            Stage::Finished(spare) => (None, spare),
            Stage::Running => (None, None),
        }
    }
}

/// Ends the running stage in any case, so that nobody waits for a thread that is gone.
struct Finish<'a> {
    progress: &'a Progress,
    spare: Option<Spare>,
}

impl Drop for Finish<'_> {
    fn drop(&mut self) {
        *self.progress.lock() = Stage::Finished(self.spare.take());
        self.progress.changed.notify_all();
    }
}

/// Makes the next segment, or removes old ones. To be run on any thread; hand the result to
/// [`Wal::segment_made`](crate::Wal::segment_made).
#[must_use = "nothing is made until the job runs"]
pub struct SegmentJob {
    progress: Arc<Progress>,
}

impl SegmentJob {
    /// Does the work. It blocks for as long as the disk takes.
    pub fn run(self) -> Result<SegmentMade, io::Error> {
        let work = {
            let mut stage = self.progress.lock();
            match mem::replace(&mut *stage, Stage::Running) {
                Stage::Waiting(work) => work,
                other => {
                    *stage = other;
                    return Ok(SegmentMade { spare: None });
                }
            }
        };
        let mut finish = Finish { progress: &self.progress, spare: None };
        let spare = work.run()?;
        finish.spare.clone_from(&spare);
        drop(finish);
        Ok(SegmentMade { spare })
    }
}

/// What a [`SegmentJob`] has made.
#[must_use = "the log uses the segment only when it is handed over"]
pub struct SegmentMade {
    spare: Option<Spare>,
}

impl fmt::Debug for SegmentMade {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = self.spare.as_ref().map(|spare| spare.number);
        f.debug_struct("SegmentMade").field("segment", &number).finish()
    }
}

/// The log's side: the prepared segments, and the one job that may be under way.
pub(crate) struct Spares {
    disk: Arc<dyn Disk>,
    segment_bytes: u64,
    /// Prepared segments; the first is the one right after the active segment.
    ready: VecDeque<Spare>,
    /// The job whose result was not handed back yet; while there is one, no other is given out.
    job: Option<Arc<Progress>>,
    /// The last attempt to make a segment failed.
    has_failed: bool,
    /// Segments no longer needed, still on disk.
    dropped: Vec<u64>,
}

impl Spares {
    pub(crate) fn new(disk: Arc<dyn Disk>, segment_bytes: u64, ready: VecDeque<Spare>) -> Spares {
        Spares { disk, segment_bytes, ready, job: None, has_failed: false, dropped: Vec::new() }
    }

    pub(crate) fn is_ready(&self) -> bool {
        !self.ready.is_empty()
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.has_failed && self.ready.is_empty()
    }

    pub(crate) fn drop_segment(&mut self, number: u64) {
        self.dropped.push(number);
    }

    pub(crate) fn job(&mut self, next: u64) -> Option<SegmentJob> {
        if self.job.is_some() || (self.is_ready() && self.dropped.is_empty()) {
            return None;
        }
        let work = self.work(next);
        let progress =
            Arc::new(Progress { stage: Mutex::new(Stage::Waiting(work)), changed: Condvar::new() });
        self.job = Some(Arc::clone(&progress));
        Some(SegmentJob { progress })
    }

    fn work(&mut self, next: u64) -> Work {
        let make =
            if self.is_ready() { None } else { Some(Make { number: next, recycle: self.dropped.pop() }) };
        Work {
            disk: Arc::clone(&self.disk),
            segment_bytes: self.segment_bytes,
            make,
            remove: mem::take(&mut self.dropped),
        }
    }

    /// Takes the result of a job; `next` is the number of the segment after the last one prepared.
    pub(crate) fn hand_back(&mut self, result: Result<SegmentMade, io::Error>, next: u64) {
        self.job = None;
        match result {
            Ok(SegmentMade { spare }) => self.keep(spare, next),
            // That passes: it says nothing of the disk, and the job is offered again.
            Err(error) if lacks_descriptors(&error) => {}
            Err(_) => self.has_failed = !self.is_ready(),
        }
    }

    /// A spare with another number was taken over earlier and is in use already.
    fn keep(&mut self, spare: Option<Spare>, next: u64) {
        if let Some(spare) = spare.filter(|spare| spare.number == next) {
            self.ready.push_back(spare);
            self.has_failed = false;
        }
    }

    /// Makes sure that segment `next` is prepared, here and now if need be.
    pub(crate) fn ensure(&mut self, next: u64) -> io::Result<()> {
        if self.is_ready() {
            return Ok(());
        }
        let (work, spare) = match &self.job {
            Some(progress) => progress.take_over(),
            None => (None, None),
        };
        self.keep(spare, next);
        if let Some(work) = work {
            self.make(work, next)?;
        }
        if !self.is_ready() {
            let work = self.work(next);
            self.make(work, next)?;
        }
        Ok(())
    }

    fn make(&mut self, work: Work, next: u64) -> io::Result<()> {
        match work.run() {
            Ok(spare) => {
                self.keep(spare, next);
                Ok(())
            }
            Err(error) => {
                self.has_failed |= !lacks_descriptors(&error);
                Err(error)
            }
        }
    }

    pub(crate) fn take(&mut self) -> Option<Spare> {
        self.ready.pop_front()
    }

    /// How many are prepared.
    pub(crate) fn ready_count(&self) -> u64 {
        self.ready.len() as u64
    }
}

impl Drop for Spares {
    /// A log that is gone makes no more files: the next one to open the directory may.
    fn drop(&mut self) {
        if let Some(progress) = &self.job {
            let _ = progress.take_over();
        }
    }
}
