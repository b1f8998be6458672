//! A sync that failed leaves bytes that can be read and are not on disk. The next start reads them, and must
//! not believe the page cache: what a log has given back once is there after every later loss of power.
#![allow(clippy::unwrap_used, reason = "a test may")]

mod common;

use std::io::ErrorKind;

use common::{create, entry, hard_state, open, segment_name};
use lowkey_wal::{GroupId, SimDisk, snapshots};

/// A vote is written, its sync fails, the process ends; the next one reads the vote and acts on it.
#[test]
fn what_was_read_after_a_failed_sync_survives_the_next_loss_of_power() {
    for seed in 0..50 {
        let disk = SimDisk::new(seed);
        let mut wal = create(&disk, &[]);
        wal.append(&[entry(1, 1, "known to be on disk")]).unwrap();
        wal.sync().unwrap();
        disk.fail_sync(1, ErrorKind::Other);
        wal.append(&[hard_state(1, "voted for n2"), entry(1, 2, "x".repeat(2000))]).unwrap();
        wal.sync().unwrap_err();
        drop(wal);

        let disk = disk.kill();
        let (wal, recovered) = open(&disk).unwrap();
        assert_eq!(recovered.groups[&GroupId(1)].last_index(), 2, "the page cache has it");
        drop(wal);

        let (_, again) = open(&disk.crash()).unwrap();
        assert_eq!(again.groups[&GroupId(1)].last_index(), 2, "seed {seed}");
        assert!(again.groups == recovered.groups, "seed {seed}");
    }
}

/// A tail is cut, but the zeros that take its place do not reach the disk. The next start sees the zeros.
#[test]
fn a_tail_that_was_cut_does_not_come_back_behind_a_later_batch() {
    let same_length = |word: &str| word.repeat(100);
    let mut was_cut = 0;
    for seed in 0..200 {
        let disk = SimDisk::new(seed);
        let mut wal = create(&disk, &[]);
        wal.append(&[entry(1, 1, "known to be on disk")]).unwrap();
        wal.sync().unwrap();
        wal.append(&[entry(1, 2, same_length("lost"))]).unwrap();
        wal.append(&[entry(1, 3, same_length("kept"))]).unwrap();
        drop(wal);

        let disk = disk.crash();
        disk.fail_sync(1, ErrorKind::Other);
        open(&disk).unwrap_err();

        let disk = disk.kill();
        let (mut wal, recovered) = open(&disk).unwrap();
        if recovered.groups[&GroupId(1)].last_index() > 1 {
            continue;
        }
        was_cut += 1;
        wal.append(&[entry(1, 2, same_length("anew"))]).unwrap();
        wal.sync().unwrap();
        drop(wal);

        let (_, again) = open(&disk.crash()).unwrap();
        let entries = &again.groups[&GroupId(1)].entries;
        assert_eq!(entries.len(), 2, "seed {seed}: an entry that was cut is back");
        assert_eq!(entries[1].1, same_length("anew").into_bytes());
    }
    assert!(was_cut > 100, "{was_cut}");
}

/// The same for a log that goes over to its next segment: the batch that says so is written, its sync fails.
#[test]
fn the_end_of_a_segment_that_was_read_after_a_failed_sync_stays() {
    for seed in 0..50 {
        let disk = SimDisk::new(seed);
        let mut wal = create(&disk, &[]);
        wal.append(&[entry(1, 1, "x".repeat(3000))]).unwrap();
        wal.sync().unwrap();
        wal.append(&[entry(1, 2, "x".repeat(500))]).unwrap();
        // The first sync is that of the next segment's zeros.
        disk.fail_sync(2, ErrorKind::Other);
        wal.append(&[entry(1, 3, "x".repeat(1000))]).unwrap_err();
        drop(wal);

        let disk = disk.kill();
        let (mut wal, recovered) = open(&disk).unwrap();
        assert_eq!(recovered.groups[&GroupId(1)].last_index(), 2, "the page cache has it");
        wal.append(&[entry(1, 3, "x".repeat(1000))]).unwrap();
        wal.sync().unwrap();
        assert!(disk.content(&segment_name(2)).unwrap()[0] != 0, "the log went over to the next segment");
        drop(wal);

        let (_, again) = open(&disk.crash()).unwrap();
        assert_eq!(again.groups[&GroupId(1)].last_index(), 3, "seed {seed}");
    }
}

/// Sealed files appear under their names only when they are synced, and are made from nothing after a failure.
#[test]
fn a_sealed_file_that_can_be_seen_is_on_disk_whatever_failed_before() {
    for seed in 0..50 {
        let disk = SimDisk::new(seed);
        snapshots::save(&disk, GroupId::ROOT, 1, b"old").unwrap();
        disk.fail_sync(1, ErrorKind::Other);
        snapshots::save(&disk, GroupId::ROOT, 2, &[7; 3000]).unwrap_err();
        let disk = disk.kill();
        assert_eq!(snapshots::load_newest(&disk, GroupId::ROOT).unwrap().unwrap().0, 1);
        snapshots::save(&disk, GroupId::ROOT, 2, &[7; 3000]).unwrap();
        assert_eq!(snapshots::load_newest(&disk.crash(), GroupId::ROOT).unwrap(), Some((2, vec![7; 3000])));
    }
}

/// A log that was closed is known to be on disk: nothing is written again.
#[test]
fn after_a_clean_stop_nothing_is_written_again() {
    let disk = SimDisk::new(1);
    let mut wal = create(&disk, &[]);
    wal.append(&[entry(1, 1, "x")]).unwrap();
    wal.close().unwrap();
    let disk = disk.kill();
    let (wal, recovered) = open(&disk).unwrap();
    assert!(recovered.clean);
    assert_eq!(disk.counts().writes, 0);
    drop(wal);
    let disk = disk.kill();
    open(&disk).unwrap();
    assert!(disk.counts().writes > 0, "after a kill it is");
}
