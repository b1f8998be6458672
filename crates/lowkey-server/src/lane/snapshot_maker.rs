//! The thread that makes and writes snapshots. That takes longer the larger the state is, and nothing else
//! waits for it.

use std::sync::{Arc, mpsc};
use std::time::Instant;

use lowkey_replica::{Input, SnapshotJob};

use crate::audit::Audit;
use crate::lane::Lane;
use crate::lane::driver::EndOnPanic;
use crate::lane::inbox::Event;
use crate::storage::SnapshotFiles;

/// Where jobs for the thread are sent.
pub(crate) type SnapshotJobs = mpsc::Sender<SnapshotJob>;

/// Starts the thread for a lane. It ends when the last sender of jobs is gone.
pub(crate) fn start(lane: Arc<Lane>, audit: Option<Arc<Audit>>) -> std::io::Result<SnapshotJobs> {
    let (jobs, receiver) = mpsc::channel::<SnapshotJob>();
    std::thread::Builder::new().name("snapshots".into()).spawn(move || {
        // A panic here ends the node. The same entries did not make the replica panic, so one of the two
        // states is wrong.
        let _end_on_panic = EndOnPanic("the thread that makes snapshots");
        for job in receiver {
            let (index, started) = (job.index(), Instant::now());
            let base = job.base();
            if let Some(audit) = &audit {
                audit.wait_for(index);
            }
            match make(&lane.snapshot_files, job) {
                Ok(size_bytes) => {
                    let took_ms = started.elapsed().as_millis() as u64;
                    tracing::debug!(index, size_bytes, took_ms, "made a snapshot");
                    lane.inbox.report(Event::Replica(Input::SnapshotSaved { index, size_bytes }));
                }
                Err(failed) => {
                    let cause = failed.to_string();
                    tracing::warn!(
                        index,
                        cause,
                        "a snapshot could not be made; the log goes on without it, and is not cut"
                    );
                    lane.inbox.report(Event::Replica(Input::SnapshotFailed { index }));
                    if matches!(failed, Failed::Base(_)) {
                        lost(&lane, base);
                    }
                }
            }
        }
    })?;
    Ok(jobs)
}

/// Tells the replica that a snapshot cannot be read. If that is its newest one, the replica makes another
/// from what it has in memory.
pub(crate) fn lost(lane: &Lane, index: u64) {
    lane.inbox.report(Event::Replica(Input::SnapshotLost { index }));
}

/// Why a snapshot could not be made.
enum Failed {
    /// The previous snapshot cannot be used.
    Base(String),
    /// The new snapshot cannot be written.
    Writing(String),
}

impl std::fmt::Display for Failed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Base(cause) => {
                write!(
                    f,
                    "the snapshot before it cannot be used ({cause}); another is made of the state in memory"
                )
            }
            Self::Writing(cause) => f.write_str(cause),
        }
    }
}

/// Makes and writes a snapshot, and returns its size.
fn make(files: &SnapshotFiles, job: SnapshotJob) -> Result<u64, Failed> {
    let base = match job.needs_base() {
        true => files.load(job.base()).map_err(|error| Failed::Base(error.to_string()))?,
        false => Vec::new(),
    };
    // A failure here comes from reading the base: the live state and the entries are in memory.
    let made = job.run(base).map_err(|error| Failed::Base(error.to_string()))?;
    files.save(made.index, &made.payload).map_err(|error| Failed::Writing(error.to_string()))?;
    Ok(made.payload.len() as u64)
}
