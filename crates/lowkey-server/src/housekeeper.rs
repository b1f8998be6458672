//! Work that must not hold up the replica: the next segment of the log, an eye on the space that is left, and memory that
//! goes back to the system.

use std::path::PathBuf;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use lowkey_wal::{SegmentJob, SegmentMade};

use crate::inbox::{Event, Inbox};

/// How often the space on the disk is looked at.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);
/// Less free space than this counts as a full disk: a snapshot must still fit.
const FREE_BYTES_MIN: u64 = 16 * 1024 * 1024;

/// Larger than what an allocator keeps for the next one who asks.
const NUDGE_BYTES: usize = 4 * 1024 * 1024;

/// Something that was done or seen.
pub(crate) enum Report {
    /// The segment was made, or could not be.
    Segment(std::io::Result<SegmentMade>),
    /// How much space is left, as far as the disk tells: enough or not.
    Space { enough: bool },
}

/// The thread's end of the line: jobs go in here.
pub(crate) type Jobs = mpsc::Sender<SegmentJob>;

/// Starts the thread. It ends when the last sender of jobs is gone.
pub(crate) fn start(directory: PathBuf, inbox: Arc<Inbox>) -> std::io::Result<Jobs> {
    let (jobs, receiver) = mpsc::channel();
    std::thread::Builder::new()
        .name("housekeeper".into())
        .spawn(move || run(&directory, &inbox, &receiver))?;
    Ok(jobs)
}

fn run(directory: &std::path::Path, inbox: &Inbox, jobs: &mpsc::Receiver<SegmentJob>) {
    let mut enough_before = true;
    loop {
        match jobs.recv_timeout(LOOK_INTERVAL) {
            Ok(job) => inbox.report(Event::Housekeeping(Report::Segment(job.run()))),
            Err(mpsc::RecvTimeoutError::Timeout) => {}
            Err(mpsc::RecvTimeoutError::Disconnected) => return,
        }
        give_back_memory();
        let enough = has_space(directory);
        if enough != enough_before {
            enough_before = enough;
            inbox.report(Event::Housekeeping(Report::Space { enough }));
        }
    }
}

/// The allocator gives memory back a while after it was freed, but looks whether that time has come only when something large
/// is freed. A node at rest would keep all that its last snapshot needed, a third of its memory and more.
fn give_back_memory() {
    drop(std::hint::black_box(Vec::<u8>::with_capacity(NUDGE_BYTES)));
}

fn has_space(directory: &std::path::Path) -> bool {
    match rustix::fs::statvfs(directory) {
        Ok(stat) => stat.f_bavail.saturating_mul(stat.f_frsize) >= FREE_BYTES_MIN,
        // A disk that does not tell is found full when it is.
        Err(_) => true,
    }
}
