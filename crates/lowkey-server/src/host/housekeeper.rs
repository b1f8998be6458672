//! Work that must not hold up the replica: it makes the next segment of the log, watches the free disk
//! space, and returns memory to the system.

use std::path::PathBuf;
use std::sync::{Weak, mpsc};
use std::time::Duration;

use lowkey_wal::SegmentJob;

use crate::host::Host;

/// How often the free disk space is checked.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);
/// Less free space than this counts as a full disk, because a snapshot must still fit.
const FREE_BYTES_MIN: u64 = 16 * 1024 * 1024;

/// Larger than any block that an allocator keeps for the next request.
const NUDGE_BYTES: usize = 4 * 1024 * 1024;

/// Where jobs for the thread are sent.
pub(crate) type Jobs = mpsc::Sender<SegmentJob>;

/// A sender of jobs that no thread takes yet, and the receiver that [`start`] needs to take them.
pub(crate) fn jobs() -> (Jobs, mpsc::Receiver<SegmentJob>) {
    mpsc::channel()
}

/// Starts the thread. It ends with the host, which has the only sender of jobs.
pub(crate) fn start(
    directory: PathBuf,
    host: Weak<Host>,
    jobs: mpsc::Receiver<SegmentJob>,
) -> std::io::Result<()> {
    let run = move || run(&directory, &host, &jobs);
    std::thread::Builder::new().name("housekeeper".into()).spawn(run).map(drop)
}

fn run(directory: &std::path::Path, host: &Weak<Host>, jobs: &mpsc::Receiver<SegmentJob>) {
    let mut enough_before = true;
    loop {
        let made = match jobs.recv_timeout(LOOK_INTERVAL) {
            Ok(job) => Some(job.run()),
            Err(mpsc::RecvTimeoutError::Timeout) => None,
            Err(mpsc::RecvTimeoutError::Disconnected) => return,
        };
        give_back_memory();
        let space = space(directory);
        let Some(host) = host.upgrade() else { return };
        if let Some((free, size)) = space {
            host.metrics.disk_bytes(free, size);
        }
        let enough = is_enough(space);
        if let Some(made) = made {
            host.log.segment_made(made);
        }
        if std::mem::replace(&mut enough_before, enough) != enough {
            host.log.space_seen(enough);
        }
    }
}

/// Makes the allocator return freed memory to the system. The allocator does that only some time after
/// memory was freed, and checks the time only when something large is freed. Without this nudge an idle
/// node would keep everything that its last snapshot needed, a third of its memory and more.
fn give_back_memory() {
    drop(std::hint::black_box(Vec::<u8>::with_capacity(NUDGE_BYTES)));
}

/// What is free where the data is, and how much there is at all, in bytes.
fn space(directory: &std::path::Path) -> Option<(u64, u64)> {
    let stat = rustix::fs::statvfs(directory).ok()?;
    Some((stat.f_bavail.saturating_mul(stat.f_frsize), stat.f_blocks.saturating_mul(stat.f_frsize)))
}

/// If the disk does not report its free space, a full disk is noticed when a write fails.
fn is_enough(space: Option<(u64, u64)>) -> bool {
    space.is_none_or(|(free, _)| free >= FREE_BYTES_MIN)
}

/// Whether a snapshot still fits where the data is.
pub(crate) fn has_space(directory: &std::path::Path) -> bool {
    is_enough(space(directory))
}
