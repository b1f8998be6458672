//! A disk without room: the log says so, loses nothing, and goes on when there is room again.
#![allow(clippy::unwrap_used, reason = "a test may")]

mod common;

use common::{IDENTITY, create, entry, open, run_job, small};
use lowkey_wal::{GroupId, SimDisk, Wal, WalError};

fn one(index: u64) -> [lowkey_wal::Record; 1] {
    [entry(1, index, vec![index as u8; 400])]
}

#[test]
fn a_log_cannot_be_founded_on_a_full_disk_but_later_it_can() {
    for capacity in [0, 100, 4095] {
        let disk = SimDisk::new(1);
        disk.set_capacity(Some(capacity));
        let result = Wal::create(disk.as_disk(), IDENTITY, small(), &[]);
        assert!(matches!(result, Err(WalError::Full)));
        assert!(!Wal::exists(&disk).unwrap());
        assert_eq!(disk.used_bytes(), 0, "nothing is left over");
        disk.set_capacity(None);
        create(&disk, &[]).close().unwrap();
    }
}

#[test]
fn the_log_goes_on_in_the_active_segment_until_it_is_full_and_again_when_there_is_room() {
    let disk = SimDisk::new(1);
    disk.set_capacity(Some(4096 + 1000));
    let mut wal = create(&disk, &[]);
    assert!(wal.has_spare(), "nobody has tried yet");
    run_job(&mut wal);
    assert!(!wal.has_spare());
    assert_eq!(disk.used_bytes(), 4096, "no half-made segment stays");

    let mut index = 1;
    while wal.active_remaining() >= Wal::batch_bytes(&one(index)) {
        wal.append(&one(index)).unwrap();
        wal.sync().unwrap();
        index += 1;
        let (_, recovered) = open(&disk.fork().crash()).unwrap();
        assert_eq!(recovered.groups[&GroupId(1)].last_index(), index - 1);
    }
    for _ in 0..3 {
        let before = disk.content(&common::segment_name(1));
        assert!(matches!(wal.append(&one(index)), Err(WalError::Full)));
        assert_eq!(disk.content(&common::segment_name(1)), before);
        assert!(!wal.has_spare());
        wal.sync().unwrap();
        wal.mark_synced().unwrap();
        run_job(&mut wal);
        let (_, recovered) = open(&disk.fork().crash()).unwrap();
        assert_eq!(recovered.groups[&GroupId(1)].last_index(), index - 1);
    }
    // What still fits goes on being taken.
    let small_one = [entry(1, index, "x")];
    assert!(wal.active_remaining() >= Wal::batch_bytes(&small_one));
    wal.append(&small_one).unwrap();
    wal.sync().unwrap();
    index += 1;

    disk.set_capacity(None);
    run_job(&mut wal);
    assert!(wal.has_spare() && wal.spare_is_ready());
    for _ in 0..30 {
        wal.append(&one(index)).unwrap();
        wal.sync().unwrap();
        index += 1;
    }
    let (_, recovered) = open(&disk.crash()).unwrap();
    assert_eq!(recovered.groups[&GroupId(1)].last_index(), index - 1);
}

#[test]
fn room_that_comes_back_is_used_without_a_job() {
    let disk = SimDisk::new(1);
    disk.set_capacity(Some(5000));
    let mut wal = create(&disk, &[]);
    let mut index = 1;
    while wal.append(&one(index)).is_ok() {
        index += 1;
    }
    disk.set_capacity(Some(10_000));
    wal.append(&one(index)).unwrap();
    wal.sync().unwrap();
    let (_, recovered) = open(&disk.crash()).unwrap();
    assert_eq!(recovered.groups[&GroupId(1)].last_index(), index);
}

#[test]
fn a_full_disk_does_not_stop_a_log_that_compacts() {
    let disk = SimDisk::new(1);
    let mut wal = create(&disk, &[]);
    let mut index = 1;
    for _ in 0..20 {
        wal.append(&one(index)).unwrap();
        wal.sync().unwrap();
        index += 1;
    }
    run_job(&mut wal);
    disk.set_capacity(Some(disk.used_bytes()));
    // Recycled files need no room.
    for _ in 0..200 {
        wal.append(&[one(index)[0].clone(), common::compaction(1, index)]).unwrap();
        wal.sync().unwrap();
        run_job(&mut wal);
        assert!(wal.has_spare());
        index += 1;
    }
    let (_, recovered) = open(&disk.crash()).unwrap();
    assert_eq!(recovered.groups[&GroupId(1)].compacted_through(), index - 1);
}

#[test]
fn a_log_can_be_opened_and_closed_on_a_full_disk() {
    let disk = SimDisk::new(1);
    let mut wal = create(&disk, &[]);
    for index in 1..=20 {
        wal.append(&one(index)).unwrap();
    }
    wal.sync().unwrap();
    let disk = disk.crash();
    disk.set_capacity(Some(disk.used_bytes()));
    let (wal, recovered) = open(&disk).unwrap();
    assert_eq!(recovered.groups[&GroupId(1)].last_index(), 20);
    // There is no room for the marker; the next start is as after a crash.
    assert!(matches!(wal.close(), Err(WalError::Full)));
    let (_, recovered) = open(&disk.kill()).unwrap();
    assert_eq!(recovered.groups[&GroupId(1)].last_index(), 20);
    assert!(!recovered.clean);
}

/// A copy-on-write disk: a segment that was filled with zeros long ago still needs room to be written to.
#[test]
fn a_prepared_segment_that_meets_a_full_disk_is_written_to_later() {
    let disk = SimDisk::new(1);
    let mut wal = create(&disk, &[]);
    wal.append(&one(1)).unwrap();
    wal.sync().unwrap();
    disk.fail_write(1, std::io::ErrorKind::StorageFull);
    assert!(matches!(wal.append(&one(2)), Err(WalError::Full)));
    let (_, recovered) = open(&disk.fork().crash()).unwrap();
    assert_eq!(recovered.groups[&GroupId(1)].last_index(), 1, "what is half written is not believed");
    disk.fail_write(1, std::io::ErrorKind::StorageFull);
    wal.mark_synced().unwrap();
    disk.stop_failing();
    for index in 2..40 {
        run_job(&mut wal);
        wal.append(&one(index)).unwrap();
        wal.sync().unwrap();
    }
    // The end of a segment, too.
    for index in 40..60 {
        run_job(&mut wal);
        disk.fail_write(1, std::io::ErrorKind::StorageFull);
        assert!(matches!(wal.append(&one(index)), Err(WalError::Full)));
        wal.append(&one(index)).unwrap();
        wal.sync().unwrap();
    }
    let (_, recovered) = open(&disk.crash()).unwrap();
    assert_eq!(recovered.groups[&GroupId(1)].last_index(), 59);
}
