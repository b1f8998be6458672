//! The thread that makes snapshots and writes them: it takes as long as the state is large, and nothing
//! else waits for it.

use std::sync::{Arc, mpsc};
use std::time::Instant;

use lowkey_replica::{Input, SnapshotJob};

use crate::driver::EndOnPanic;
use crate::inbox::{Event, Inbox};
use crate::storage::SnapshotFiles;

/// The thread's end of the line: jobs go in here.
pub(crate) type SnapshotJobs = mpsc::Sender<SnapshotJob>;

/// Starts the thread. It ends when the last sender of jobs is gone.
pub(crate) fn start(snapshot_files: SnapshotFiles, inbox: Arc<Inbox>) -> std::io::Result<SnapshotJobs> {
    let (jobs, receiver) = mpsc::channel::<SnapshotJob>();
    std::thread::Builder::new().name("snapshots".into()).spawn(move || {
        // The same entries did not make the replica panic: one of the two states is wrong.
        let _end_on_panic = EndOnPanic("the thread that makes snapshots");
        for job in receiver {
            let (index, started) = (job.index(), Instant::now());
            let outcome = match make(&snapshot_files, job) {
                Ok(size_bytes) => {
                    let took_ms = started.elapsed().as_millis() as u64;
                    tracing::debug!(index, size_bytes, took_ms, "made a snapshot");
                    Input::SnapshotSaved { index, size_bytes }
                }
                Err(cause) => {
                    tracing::warn!(
                        index,
                        cause,
                        "a snapshot could not be made; the log goes on without it, and is not cut"
                    );
                    Input::SnapshotFailed { index }
                }
            };
            inbox.report(Event::Replica(outcome));
        }
    })?;
    Ok(jobs)
}

/// Makes and writes a snapshot, and gives its size.
fn make(files: &SnapshotFiles, job: SnapshotJob) -> Result<u64, String> {
    let base = match job.needs_base() {
        true => files.load(job.base()).map_err(|error| error.to_string())?,
        false => Vec::new(),
    };
    let made = job.run(base).map_err(|error| error.to_string())?;
    files.save(made.index, &made.payload).map_err(|error| error.to_string())?;
    Ok(made.payload.len() as u64)
}
