//! The same log on a real directory.
#![allow(clippy::unwrap_used, reason = "a test may")]

mod common;

use std::fs;
use std::sync::Arc;

use common::{IDENTITY, Model, compaction, conf_state, entry, hard_state, run_job, small};
use lowkey_wal::{Disk, GroupId, RealDisk, Wal, WalError, sealed, snapshots};

#[test]
fn a_log_in_a_real_directory_comes_back_after_every_stop() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("made/on/demand");
    let disk: Arc<dyn Disk> = Arc::new(RealDisk::open(&dir).unwrap());
    let opening = [conf_state(1, "founded")];
    let mut model = Model::default();
    model.apply(&opening);
    let mut wal = Wal::create(Arc::clone(&disk), IDENTITY, small(), &opening).unwrap();
    for index in 1..=120 {
        let mut records =
            vec![entry(1, index, vec![index as u8; 300]), hard_state(1, &format!("term {index}"))];
        if index % 25 == 0 {
            records.push(compaction(1, index - 3));
        }
        wal.append(&records).unwrap();
        wal.sync().unwrap();
        model.apply(&records);
        run_job(&mut wal);
        if index % 40 == 0 {
            let is_clean = index == 80;
            if is_clean {
                wal.close().unwrap();
            } else {
                wal.mark_synced().unwrap();
                drop(wal);
            }
            let opened = Wal::open(Arc::clone(&disk), IDENTITY, small()).unwrap();
            assert_eq!(opened.1.groups, model.logs());
            assert_eq!(opened.1.clean, is_clean);
            wal = opened.0;
        }
    }
    let files = disk.list().unwrap();
    assert!(files.len() < 12, "old segments are gone: {files:?}");
    for name in files {
        assert_eq!(fs::metadata(dir.join(name)).unwrap().len(), 4096);
    }
}

#[test]
fn damage_on_a_real_disk_is_named() {
    let temp = tempfile::tempdir().unwrap();
    let disk: Arc<dyn Disk> = Arc::new(RealDisk::open(temp.path()).unwrap());
    let mut wal = Wal::create(Arc::clone(&disk), IDENTITY, small(), &[]).unwrap();
    for index in 1..=3 {
        wal.append(&[entry(1, index, "entry")]).unwrap();
        wal.sync().unwrap();
    }
    wal.close().unwrap();
    let path = temp.path().join(common::segment_name(1));
    let mut content = fs::read(&path).unwrap();
    content[100] ^= 1;
    fs::write(&path, content).unwrap();
    match Wal::open(disk, IDENTITY, small()) {
        Err(WalError::Corrupt { file, offset, .. }) => {
            assert_eq!((file, offset), (common::segment_name(1), 72));
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn sealed_files_and_snapshots_live_in_a_real_directory() {
    let temp = tempfile::tempdir().unwrap();
    let disk = RealDisk::open(temp.path()).unwrap();
    sealed::write(&disk, "identity", *b"NODE", b"me").unwrap();
    for index in 1..=4 {
        snapshots::save(&disk, GroupId::ROOT, index, &[index as u8; 100]).unwrap();
    }
    let disk = RealDisk::open(temp.path()).unwrap();
    let identity = sealed::read(&disk, "identity", *b"NODE").unwrap();
    assert_eq!(identity, Some(b"me".to_vec()));
    assert_eq!(snapshots::list(&disk, GroupId::ROOT).unwrap(), [3, 4]);
    let newest = snapshots::load_newest(&disk, GroupId::ROOT).unwrap();
    assert_eq!(newest, Some((4, vec![4; 100])));
}

#[test]
fn names_that_leave_the_directory_are_refused() {
    let temp = tempfile::tempdir().unwrap();
    let disk = RealDisk::open(temp.path()).unwrap();
    for name in ["", ".", "..", "a/b", "../escape"] {
        assert!(disk.create(name).is_err(), "{name:?}");
    }
}
