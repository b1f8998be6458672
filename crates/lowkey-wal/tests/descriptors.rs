//! A process that has as many files open as it may: the log says so, and not that the disk is full; it loses nothing, and
//! goes on when some are closed.
#![allow(clippy::unwrap_used, reason = "a test may")]

mod common;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use common::{IDENTITY, entry, open, run_job, small};
use lowkey_wal::{Disk, DiskFile, GroupId, SealedError, SimDisk, Wal, WalError, sealed};

/// EMFILE.
const TOO_MANY_OPEN_FILES: i32 = 24;

struct FewDescriptors {
    disk: SimDisk,
    is_exhausted: AtomicBool,
}

impl FewDescriptors {
    fn check(&self) -> io::Result<()> {
        match self.is_exhausted.load(Ordering::Relaxed) {
            true => Err(io::Error::from_raw_os_error(TOO_MANY_OPEN_FILES)),
            false => Ok(()),
        }
    }
}

impl Disk for FewDescriptors {
    fn list(&self) -> io::Result<Vec<String>> {
        self.check()?;
        self.disk.list()
    }

    fn create(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        self.check()?;
        self.disk.create(name)
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn DiskFile>> {
        self.check()?;
        self.disk.open(name)
    }

    fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        self.check()?;
        self.disk.read(name)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.disk.rename(from, to)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.disk.remove(name)
    }

    fn sync_dir(&self) -> io::Result<()> {
        self.check()?;
        self.disk.sync_dir()
    }
}

#[test]
fn a_log_without_descriptors_goes_on_when_some_are_closed() {
    let sim = SimDisk::new(1);
    let disk = Arc::new(FewDescriptors { disk: sim.clone(), is_exhausted: AtomicBool::new(false) });
    let mut wal = Wal::create(Arc::clone(&disk) as Arc<dyn Disk>, IDENTITY, small(), &[]).unwrap();
    disk.is_exhausted.store(true, Ordering::Relaxed);
    let one = |index: u64| [entry(1, index, vec![index as u8; 400])];
    let mut index = 1;
    while wal.active_remaining() >= Wal::batch_bytes(&one(index)) {
        wal.append(&one(index)).unwrap();
        index += 1;
    }
    for _ in 0..3 {
        run_job(&mut wal);
        assert!(wal.has_spare(), "nothing is known of the disk: new grants are not refused");
        let error = wal.append(&one(index)).unwrap_err();
        assert!(matches!(error, WalError::NoDescriptors), "{error}");
        assert!(error.to_string().contains("ulimit -n"), "{error}");
    }
    disk.is_exhausted.store(false, Ordering::Relaxed);
    wal.append(&one(index)).unwrap();
    wal.sync().unwrap();
    let (_, recovered) = open(&sim.fork().crash()).unwrap();
    assert_eq!(recovered.groups[&GroupId(1)].last_index(), index);
}

#[test]
fn a_sealed_file_that_cannot_be_opened_is_not_told_as_a_full_disk() {
    let disk = FewDescriptors { disk: SimDisk::new(1), is_exhausted: AtomicBool::new(true) };
    let error = sealed::write(&disk, "id", *b"TEST", b"abc").unwrap_err();
    assert!(matches!(error, SealedError::NoDescriptors { .. }), "{error}");
    disk.is_exhausted.store(false, Ordering::Relaxed);
    sealed::write(&disk, "id", *b"TEST", b"abc").unwrap();
}
