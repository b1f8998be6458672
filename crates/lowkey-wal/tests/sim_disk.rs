//! The simulated disk keeps what was synced, and may do anything with the rest.
#![allow(clippy::unwrap_used, reason = "a test may")]

mod common;

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::time::Duration;

use common::names;
use lowkey_wal::{Disk, Latency, SimDisk};

/// A disk with a synced file of 2000 ones.
fn with_file(seed: u64) -> SimDisk {
    let disk = SimDisk::new(seed);
    let file = disk.create("a").unwrap();
    file.write_at(0, &[1; 2000]).unwrap();
    file.sync_data().unwrap();
    disk.sync_dir().unwrap();
    disk
}

#[test]
fn what_was_synced_survives_and_what_was_not_meets_every_fate() {
    let mut fates = BTreeSet::new();
    for seed in 0..200 {
        let disk = with_file(seed);
        disk.open("a").unwrap().write_at(100, &[2; 1500]).unwrap();
        let content = disk.crash().content("a").unwrap();
        assert_eq!(content.len(), 2000);
        assert!(content[..100].iter().chain(&content[1600..]).all(|b| *b == 1));
        let kept = content.iter().filter(|byte| **byte == 2).count();
        fates.insert(match kept {
            0 => "lost",
            1500 => "kept",
            _ if content[100..100 + kept].iter().all(|byte| *byte == 2) => "a first part",
            _ => "some sectors",
        });
    }
    assert_eq!(fates.len(), 4, "{fates:?}");
}

#[test]
fn names_that_were_not_synced_may_be_undone_the_later_ones_first() {
    let mut fates = BTreeSet::new();
    for seed in 0..100 {
        let disk = with_file(seed);
        disk.create("b").unwrap();
        disk.rename("a", "c").unwrap();
        disk.remove("b").unwrap();
        fates.insert(names(&disk.crash()).join(" "));
    }
    let all = ["a", "a b", "b c", "c"].map(str::to_string);
    assert_eq!(fates, BTreeSet::from(all));
}

#[test]
fn a_kill_loses_nothing_but_makes_nothing_durable() {
    let mut lost = 0;
    for seed in 0..100 {
        let disk = with_file(seed);
        let file = disk.open("a").unwrap();
        file.write_at(0, &[2; 2000]).unwrap();
        let disk = disk.kill();
        assert!(file.write_at(0, &[3]).is_err(), "the old process is gone");
        assert_eq!(disk.content("a").unwrap(), [2; 2000]);
        lost += usize::from(disk.crash().content("a").unwrap() != [2; 2000]);
    }
    assert!(lost > 10, "{lost}");
}

#[test]
fn the_power_goes_at_the_operation_that_was_named() {
    let disk = with_file(1);
    let file = disk.open("a").unwrap();
    disk.crash_at_operation(2);
    file.write_at(0, &[2; 10]).unwrap();
    assert!(file.sync_data().is_err());
    assert!(file.sync_data().is_err() && disk.list().is_err() && disk.read("a").is_err());
    assert!(disk.crash().read("a").is_ok());
}

#[test]
fn writes_and_syncs_fail_when_told_to() {
    let disk = with_file(1);
    let file = disk.open("a").unwrap();
    disk.fail_write(2, ErrorKind::Other);
    disk.fail_sync(1, ErrorKind::Interrupted);
    file.write_at(0, &[2; 4]).unwrap();
    assert_eq!(file.write_at(4, &[2; 4]).unwrap_err().kind(), ErrorKind::Other);
    assert_eq!(file.sync_data().unwrap_err().kind(), ErrorKind::Interrupted);
    assert_eq!(disk.content("a").unwrap()[..8], [2, 2, 2, 2, 2, 2, 1, 1], "half written");
    file.sync_data().unwrap();
}

#[test]
fn what_a_failed_sync_left_is_readable_and_written_by_no_later_sync() {
    let mut lost = 0;
    for seed in 0..100 {
        let disk = with_file(seed);
        let file = disk.open("a").unwrap();
        disk.fail_sync(1, ErrorKind::Other);
        file.write_at(0, &[2; 1000]).unwrap();
        file.sync_data().unwrap_err();
        let disk = disk.kill();
        let file = disk.open("a").unwrap();
        file.write_at(1000, &[3; 1000]).unwrap();
        file.sync_data().unwrap();
        let seen = disk.content("a").unwrap();
        assert!(seen[..1000].iter().all(|byte| *byte == 2) && seen[1000..].iter().all(|byte| *byte == 3));
        let after = disk.fork().crash().content("a").unwrap();
        assert!(after[1000..].iter().all(|byte| *byte == 3));
        lost += usize::from(after[..1000].contains(&1));
        // Written again, it is a write like any other.
        file.write_at(0, &[2; 1000]).unwrap();
        file.sync_data().unwrap();
        assert_eq!(disk.crash().content("a").unwrap(), seen);
    }
    assert!(lost > 30, "{lost}");
}

#[test]
fn a_page_cache_that_forgets_shows_the_medium_and_keeps_what_is_to_be_written() {
    let mut seen = BTreeSet::new();
    for seed in 0..100 {
        let disk = with_file(seed);
        let file = disk.open("a").unwrap();
        disk.fail_sync(1, ErrorKind::Other);
        file.write_at(0, &[2; 512]).unwrap();
        file.sync_data().unwrap_err();
        file.write_at(512, &[3; 512]).unwrap();
        disk.evict();
        let content = disk.content("a").unwrap();
        assert!(content[512..1024].iter().all(|byte| *byte == 3), "not written yet");
        seen.insert(content[511]);
    }
    assert_eq!(seen, BTreeSet::from([1, 2]));
}

#[test]
fn a_full_disk_refuses_growth_and_nothing_else() {
    let disk = with_file(1);
    disk.set_capacity(Some(2100));
    let file = disk.open("a").unwrap();
    file.write_at(0, &[2; 2000]).unwrap();
    assert_eq!(file.write_at(1999, &[3; 200]).unwrap_err().kind(), ErrorKind::StorageFull);
    let other = disk.create("b").unwrap();
    assert_eq!(other.set_len(101).unwrap_err().kind(), ErrorKind::StorageFull);
    other.set_len(100).unwrap();
    assert_eq!(disk.used_bytes(), 2100);
    disk.remove("a").unwrap();
    other.write_at(0, &[1; 2000]).unwrap();
}

#[test]
fn time_passes_as_told_and_is_taken_once() {
    let disk = with_file(1);
    let ms = Duration::from_millis;
    disk.set_latency(Latency { write: ms(1), sync: ms(10), directory: ms(100) });
    disk.stall_next_sync(ms(5000));
    let file = disk.open("a").unwrap();
    file.write_at(0, &[1]).unwrap();
    file.sync_data().unwrap();
    file.sync_data().unwrap();
    disk.sync_dir().unwrap();
    assert_eq!(disk.take_latency(), ms(1 + 10 + 5000 + 10 + 100));
    assert_eq!(disk.take_latency(), Duration::ZERO);
}
