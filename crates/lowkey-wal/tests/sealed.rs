//! Sealed files and snapshots: whole or refused, old or new, never between.
#![allow(clippy::unwrap_used, reason = "a test may")]

mod common;

use common::{Random, names};
use lowkey_wal::{GroupId, SealedError, SimDisk, sealed, snapshots};

const KIND: [u8; 4] = *b"TEST";

#[test]
fn a_file_comes_back_as_it_was_written() {
    let disk = SimDisk::new(1);
    assert_eq!(sealed::read(&disk, "id", KIND).unwrap(), None);
    for payload in [&b""[..], b"x", &[0; 5000]] {
        sealed::write(&disk, "id", KIND, payload).unwrap();
        assert_eq!(sealed::read(&disk, "id", KIND).unwrap().unwrap(), payload);
    }
    assert_eq!(names(&disk), ["id"], "no temporary file stays");
}

#[test]
fn every_changed_byte_is_found_and_named() {
    let disk = SimDisk::new(1);
    sealed::write(&disk, "id", KIND, b"some payload, not too long").unwrap();
    let len = disk.content("id").unwrap().len() as u64;
    for at in 0..len {
        for mask in 1..=255 {
            disk.flip("id", at, mask);
            match sealed::read(&disk, "id", KIND) {
                Err(SealedError::Corrupt { file, offset, .. }) => {
                    assert_eq!(file, "id");
                    assert!(offset <= at);
                }
                other => panic!("byte {at} changed by {mask:#x}: {other:?}"),
            }
            disk.flip("id", at, mask);
        }
    }
    assert!(sealed::read(&disk, "id", KIND).is_ok());
}

#[test]
fn every_cut_and_every_added_byte_is_found() {
    let disk = SimDisk::new(1);
    sealed::write(&disk, "id", KIND, b"some payload").unwrap();
    let whole = disk.content("id").unwrap();
    let mut wrong: Vec<Vec<u8>> = (0..whole.len()).map(|len| whole[..len].to_vec()).collect();
    wrong.push([&whole[..], &[0]].concat());
    wrong.push([&whole[..], &whole[..]].concat());
    for content in wrong {
        disk.set_content("id", content.clone());
        match sealed::read(&disk, "id", KIND) {
            Err(SealedError::Corrupt { offset, .. }) => {
                assert_eq!(offset, content.len().min(whole.len()) as u64);
            }
            other => panic!("{} bytes: {other:?}", content.len()),
        }
    }
}

#[test]
fn noise_is_no_sealed_file() {
    let disk = SimDisk::new(1);
    let mut random = Random(3);
    for len in 0..200 {
        let mut content: Vec<u8> = (0..len).map(|_| random.next() as u8).collect();
        if len > 4 {
            content[..4].copy_from_slice(b"LKSF");
        }
        disk.set_content("id", content);
        assert!(sealed::read(&disk, "id", KIND).is_err());
    }
}

#[test]
fn a_file_of_another_kind_is_refused() {
    let disk = SimDisk::new(1);
    sealed::write(&disk, "id", *b"ELSE", b"").unwrap();
    assert!(matches!(sealed::read(&disk, "id", KIND), Err(SealedError::WrongKind { .. })));
}

#[test]
fn a_crash_at_any_operation_leaves_the_old_file_or_the_new_one() {
    for seed in 0..50 {
        for crash_at in 1.. {
            let disk = SimDisk::new(seed);
            sealed::write(&disk, "id", KIND, &[1; 2000]).unwrap();
            disk.crash_at_operation(crash_at);
            let is_done = sealed::write(&disk, "id", KIND, &[2; 3000]).is_ok();
            let disk = disk.crash();
            let found = sealed::read(&disk, "id", KIND).unwrap().unwrap();
            let is_new = found == [2; 3000];
            assert!(is_new || (!is_done && found == [1; 2000]));
            // What was read once stays, and what is left over is no obstacle.
            let disk = disk.crash();
            let again = sealed::read(&disk, "id", KIND).unwrap().unwrap();
            assert_eq!(again, found);
            sealed::write(&disk, "id", KIND, b"later").unwrap();
            assert_eq!(names(&disk), ["id"]);
            if is_done {
                break;
            }
        }
    }
}

#[test]
fn what_a_killed_writer_left_is_durable_once_it_was_read() {
    for seed in 0..50 {
        let disk = SimDisk::new(seed);
        // Created, written, synced and renamed, but the directory is not synced.
        disk.crash_at_operation(5);
        assert!(sealed::write(&disk, "id", KIND, b"me").is_err());
        let disk = disk.kill();
        assert_eq!(sealed::read(&disk, "id", KIND).unwrap().unwrap(), b"me");
        let disk = disk.crash();
        assert_eq!(sealed::read(&disk, "id", KIND).unwrap().unwrap(), b"me");
    }
}

#[test]
fn a_full_disk_leaves_the_old_file_and_no_remains() {
    let disk = SimDisk::new(1);
    sealed::write(&disk, "id", KIND, b"old").unwrap();
    disk.set_capacity(Some(100));
    assert!(matches!(sealed::write(&disk, "id", KIND, &[2; 3000]), Err(SealedError::Full { .. })));
    assert_eq!(names(&disk), ["id"]);
    assert_eq!(sealed::read(&disk, "id", KIND).unwrap().unwrap(), b"old");
}

#[test]
fn the_newest_two_snapshots_are_kept() {
    let disk = SimDisk::new(1);
    assert_eq!(snapshots::load_newest(&disk, GroupId::ROOT).unwrap(), None);
    for index in [3, 7, 8, 100, u64::MAX] {
        snapshots::save(&disk, GroupId::ROOT, index, &index.to_le_bytes()).unwrap();
        let newest = snapshots::load_newest(&disk, GroupId::ROOT).unwrap();
        assert_eq!(newest, Some((index, index.to_le_bytes().to_vec())));
    }
    assert_eq!(snapshots::list(&disk, GroupId::ROOT).unwrap(), [100, u64::MAX]);
    assert_eq!(names(&disk), ["snapshot-00000000000000000100.snap", "snapshot-18446744073709551615.snap"]);
    let second = snapshots::load(&disk, GroupId::ROOT, 100).unwrap();
    assert_eq!(second, Some(100u64.to_le_bytes().to_vec()));
    assert_eq!(snapshots::load(&disk, GroupId::ROOT, 7).unwrap(), None);
}

#[test]
fn the_snapshots_of_one_group_are_none_of_anothers() {
    let disk = SimDisk::new(1);
    let other = GroupId(2);
    for index in 1..=3 {
        snapshots::save(&disk, GroupId::ROOT, index, b"root").unwrap();
        snapshots::save(&disk, other, index + 10, b"other").unwrap();
    }
    assert_eq!(snapshots::list(&disk, GroupId::ROOT).unwrap(), [2, 3]);
    assert_eq!(snapshots::list(&disk, other).unwrap(), [12, 13]);
    assert_eq!(snapshots::load_newest(&disk, other).unwrap(), Some((13, b"other".to_vec())));
    assert_eq!(snapshots::load_newest(&disk, GroupId(3)).unwrap(), None);
    // One group's file is not believed under another's name, whichever way they were mixed up.
    let [roots, others] =
        [GroupId::ROOT, other].map(|group| snapshots::file_name(group, if group == other { 13 } else { 3 }));
    let (root, foreign) = (disk.content(&roots).unwrap(), disk.content(&others).unwrap());
    disk.set_content(&roots, foreign.clone());
    disk.set_content(&others, root);
    assert!(snapshots::load(&disk, GroupId::ROOT, 3).is_err() && snapshots::load(&disk, other, 13).is_err());
    disk.set_content(&snapshots::file_name(GroupId(3), 13), foreign);
    assert!(snapshots::load(&disk, GroupId(3), 13).is_err());
}

#[test]
fn a_damaged_newest_snapshot_is_an_error_and_not_a_step_back() {
    let disk = SimDisk::new(1);
    snapshots::save(&disk, GroupId::ROOT, 1, b"old").unwrap();
    snapshots::save(&disk, GroupId::ROOT, 2, b"new").unwrap();
    let name = snapshots::file_name(GroupId::ROOT, 2);
    for at in 0..disk.content(&name).unwrap().len() as u64 {
        disk.flip(&name, at, 4);
        match snapshots::load_newest(&disk, GroupId::ROOT) {
            Err(SealedError::Corrupt { file, .. }) => assert_eq!(file, name),
            other => panic!("{other:?}"),
        }
        disk.flip(&name, at, 4);
    }
    // Nor is a snapshot believed under another's name.
    let older = disk.content(&snapshots::file_name(GroupId::ROOT, 1)).unwrap();
    disk.set_content(&name, older);
    assert!(snapshots::load_newest(&disk, GroupId::ROOT).is_err());
}

#[test]
fn a_crash_while_a_snapshot_is_saved_leaves_a_good_newest_one() {
    for seed in 0..30 {
        for crash_at in 1.. {
            let disk = SimDisk::new(seed);
            snapshots::save(&disk, GroupId::ROOT, 1, &[1; 700]).unwrap();
            snapshots::save(&disk, GroupId::ROOT, 2, &[2; 700]).unwrap();
            disk.crash_at_operation(crash_at);
            let is_done = snapshots::save(&disk, GroupId::ROOT, 3, &[3; 700]).is_ok();
            let disk = disk.crash();
            let (index, payload) = snapshots::load_newest(&disk, GroupId::ROOT).unwrap().unwrap();
            assert!(index == 3 || (index == 2 && !is_done));
            assert_eq!(payload, [index as u8; 700]);
            snapshots::save(&disk, GroupId::ROOT, 4, b"four").unwrap();
            assert_eq!(names(&disk).len(), 2, "{:?}", names(&disk));
            if is_done {
                break;
            }
        }
    }
}
