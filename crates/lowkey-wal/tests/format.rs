//! The format is frozen: files of every version are kept under `data/`, read back, and written alike.
//!
//! If a test here fails, the format has changed. Then it needs a new version number, a reader that
//! still knows the old one, and files of its own; those that are there are never written again.
#![allow(clippy::unwrap_used, reason = "a test may")]

mod common;

use std::fs;
use std::path::PathBuf;

use common::{compaction, conf_state, entry, hard_state, names, record, run_job, segment_name};
use lowkey_wal::{GroupId, Kind, Options, Record, SimDisk, Wal, sealed, snapshots};

const IDENTITY: [u8; 16] =
    [0x00, 0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0x99, 0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xff];
const OPTIONS: Options = Options { segment_bytes: 768 };

fn data_dir() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data/v1")
}

fn batches() -> Vec<Vec<Record>> {
    vec![
        vec![entry(1, 1, "first"), hard_state(1, "term 1, commit 1")],
        vec![entry(1, 2, "second"), entry(2, 1, "")],
        vec![entry(1, 2, "second, again"), hard_state(2, "term 3")],
        vec![entry(1, 3, vec![0xee; 100])],
        vec![compaction(1, 2), compaction(2, 40)],
        vec![entry(1, 4, "fourth"), entry(2, 41, "forty-first")],
        vec![entry(3, 1, "given up"), record(3, Kind::Reset, 7, "begun anew"), entry(3, 8, "eighth")],
    ]
}

/// The files of version 1, written anew by this code.
fn write_all() -> SimDisk {
    let disk = SimDisk::new(1);
    let opening = [conf_state(1, "a, b, c")];
    let mut wal = Wal::create(disk.as_disk(), IDENTITY, OPTIONS, &opening).unwrap();
    for batch in batches() {
        wal.append(&batch).unwrap();
        wal.sync().unwrap();
    }
    wal.mark_synced().unwrap();
    run_job(&mut wal);
    wal.close().unwrap();
    sealed::write(&disk, "identity", *b"NODE", &IDENTITY).unwrap();
    snapshots::save(&disk, GroupId::ROOT, 40, b"the state at forty").unwrap();
    disk
}

fn read_kept() -> SimDisk {
    let disk = SimDisk::new(1);
    for file in fs::read_dir(data_dir()).unwrap() {
        let file = file.unwrap();
        let name = file.file_name().into_string().unwrap();
        disk.set_content(&name, fs::read(file.path()).unwrap());
    }
    disk
}

#[test]
fn files_of_version_1_are_read() {
    let disk = read_kept();
    let (_, recovered) = Wal::open(disk.as_disk(), IDENTITY, OPTIONS).unwrap();
    assert!(recovered.clean);
    assert_eq!(recovered.cut, None);
    assert_eq!(recovered.groups.len(), 3);

    let one = &recovered.groups[&GroupId(1)];
    assert_eq!(one.hard_state.as_deref(), Some(&b"term 1, commit 1"[..]));
    assert_eq!(one.conf_state.as_deref(), Some(&b"a, b, c"[..]));
    assert_eq!(one.compaction, Some((2, b"compacted 2".to_vec())));
    assert_eq!(one.entries, [(3, vec![0xee; 100]), (4, b"fourth".to_vec())]);

    let two = &recovered.groups[&GroupId(2)];
    assert_eq!(two.hard_state.as_deref(), Some(&b"term 3"[..]));
    assert_eq!(two.conf_state, None);
    assert_eq!(two.compaction, Some((40, b"compacted 40".to_vec())));
    assert_eq!(two.entries, [(41, b"forty-first".to_vec())]);

    let three = &recovered.groups[&GroupId(3)];
    assert_eq!(three.compaction, Some((7, b"begun anew".to_vec())));
    assert_eq!(three.entries, [(8, b"eighth".to_vec())]);

    let identity = sealed::read(&disk, "identity", *b"NODE").unwrap();
    assert_eq!(identity, Some(IDENTITY.to_vec()));
    let snapshot = snapshots::load_newest(&disk, GroupId::ROOT).unwrap();
    assert_eq!(snapshot, Some((40, b"the state at forty".to_vec())));
}

/// The difference, if there is one, is written beside the kept files: that is also how the files of a
/// new version are made.
#[test]
fn version_1_is_what_is_written_to_the_byte() {
    let (written, kept) = (write_all(), read_kept());
    if names(&written).iter().any(|name| written.content(name) != kept.content(name)) {
        let beside = std::env::temp_dir().join("lowkey-format-as-written-now");
        fs::create_dir_all(&beside).unwrap();
        for name in names(&written) {
            fs::write(beside.join(&name), written.content(&name).unwrap()).unwrap();
        }
        eprintln!("what is written now is in {}", beside.display());
    }
    assert_eq!(names(&written), names(&kept));
    for name in names(&kept) {
        assert!(written.content(&name) == kept.content(&name), "{name}");
    }
}

#[test]
fn the_first_bytes_are_where_the_drawing_has_them() {
    let disk = SimDisk::new(1);
    let opening = [conf_state(1, "a, b, c")];
    let mut wal = Wal::create(disk.as_disk(), IDENTITY, OPTIONS, &opening).unwrap();
    wal.append(&batches()[0]).unwrap();
    let segment = disk.content(&segment_name(1)).unwrap();
    assert_eq!(&segment[..4], b"LKWB");
    assert_eq!(segment[4..8], [1, 0, 0, 0], "version and flags");
    assert_eq!(segment[8..24], IDENTITY);
    assert_eq!(segment[24..32], 1u64.to_le_bytes(), "segment");
    assert_eq!(segment[32..40], 1u64.to_le_bytes(), "sequence");
    assert_eq!(segment[40..48], 0u64.to_le_bytes(), "synced through");
    assert_eq!(segment[48..56], 1u64.to_le_bytes(), "first live");
    assert_eq!(segment[56..60], 768u32.to_le_bytes(), "segment length");
    assert_eq!(segment[60..64], (24u32 + 7).to_le_bytes(), "payload");
    assert_eq!(segment[64..68], 1u32.to_le_bytes(), "records");
    assert_eq!(segment[72..80], [1, 0, 0, 0, 4, 0, 0, 0], "group, kind");
    assert_eq!(&segment[96..103], b"a, b, c");
    assert_eq!(segment[103], 0, "padding");
    assert_eq!(&segment[104..108], b"LKWB");
    assert_eq!(segment[136..144], 2u64.to_le_bytes(), "sequence");
    assert_eq!(segment[144..152], 1u64.to_le_bytes(), "synced through");
}
