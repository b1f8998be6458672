//! Work on the disk that must not hold up the replica thread: the next segment of the log, snapshot
//! files, and an eye on the space that is left.

use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use lowkey_replica::{Input, SnapshotFile};
use lowkey_wal::{SegmentJob, SegmentMade};

use crate::inbox::{Event, Inbox};
use crate::storage::SnapshotFiles;

/// How often the space on the disk is looked at.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);
/// Less free space than this counts as a full disk: a snapshot must still fit.
const FREE_BYTES_MIN: u64 = 16 * 1024 * 1024;

/// Something to do.
pub(crate) enum Job {
    /// Make the next segment of the log ahead of need.
    Segment(SegmentJob),
    /// Write a snapshot.
    Snapshot(SnapshotFile),
}

/// Something that was done or seen.
pub(crate) enum Report {
    /// The segment was made, or could not be.
    Segment(std::io::Result<SegmentMade>),
    /// How much space is left, as far as the disk tells: enough or not.
    Space { enough: bool },
}

/// The thread's end of the line: jobs go in here.
pub(crate) type Jobs = mpsc::Sender<Job>;

/// Starts the thread. It ends when the last sender of jobs is gone.
pub(crate) fn start(
    directory: PathBuf,
    snapshot_files: SnapshotFiles,
    inbox: Arc<Inbox>,
) -> std::io::Result<Jobs> {
    let (jobs, receiver) = mpsc::channel();
    std::thread::Builder::new()
        .name("housekeeper".into())
        .spawn(move || run(&directory, &snapshot_files, &inbox, &receiver))?;
    Ok(jobs)
}

fn run(
    directory: &std::path::Path,
    snapshot_files: &SnapshotFiles,
    inbox: &Inbox,
    jobs: &mpsc::Receiver<Job>,
) {
    let mut enough_before = true;
    loop {
        match jobs.recv_timeout(LOOK_INTERVAL) {
            Ok(Job::Segment(job)) => inbox.report(Event::Housekeeping(Report::Segment(job.run()))),
            Ok(Job::Snapshot(file)) => {
                let outcome = match snapshot_files.save(file.index, &file.payload) {
                    Ok(()) => Input::SnapshotSaved { index: file.index },
                    Err(error) => {
                        tracing::warn!(%error, index = file.index, "a snapshot could not be written; the log goes on without it");
                        Input::SnapshotFailed
                    }
                };
                inbox.report(Event::Replica(outcome));
            }
            Err(mpsc::RecvTimeoutError::Timeout) => {}
            Err(mpsc::RecvTimeoutError::Disconnected) => return,
        }
        let enough = has_space(directory);
        if enough != enough_before {
            enough_before = enough;
            inbox.report(Event::Housekeeping(Report::Space { enough }));
        }
    }
}

fn has_space(directory: &std::path::Path) -> bool {
    match rustix::fs::statvfs(directory) {
        Ok(stat) => stat.f_bavail.saturating_mul(stat.f_frsize) >= FREE_BYTES_MIN,
        // A disk that does not tell is found full when it is.
        Err(_) => true,
    }
}
