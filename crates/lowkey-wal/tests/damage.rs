//! Damage to a log that was safe on disk: found and named, or harmless; never wrong data, never a panic.
#![allow(clippy::unwrap_used, reason = "a test may")]

mod common;

use common::{
    IDENTITY, Model, Random, compaction, conf_state, entry, hard_state, names, run_job, segment_name,
};
use lowkey_wal::{Cut, GroupId, GroupLog, Options, Record, Recovered, SimDisk, Wal, WalError};
use std::collections::BTreeMap;

const SEGMENT_BYTES: u64 = 1024;
type Groups = BTreeMap<GroupId, GroupLog>;

const MASKS: [u8; 3] = [0x01, 0x80, 0xff];

fn options() -> Options {
    Options { segment_bytes: SEGMENT_BYTES }
}

fn open(disk: &SimDisk) -> Result<(Wal, Recovered), WalError> {
    Wal::open(disk.as_disk(), IDENTITY, options())
}

/// A log whose every batch was synced, over several segments, of which the first were dropped.
struct Built {
    disk: SimDisk,
    wal: Wal,
    /// The log after 0, 1, 2… batches.
    models: Vec<Model>,
    /// Where the last batch begins, and in which segment.
    last: (String, u64),
}

fn batch_of(index: u64) -> Vec<Record> {
    let mut records = vec![
        entry(1, index, format!("entry {index} of one").repeat(3)),
        hard_state(1, &format!("term {index}")),
    ];
    if index.is_multiple_of(3) {
        records.push(entry(2, index / 3, vec![0xa5; 40 + index as usize]));
        records.push(hard_state(2, "vote"));
    }
    if index.is_multiple_of(8) {
        records.push(compaction(1, index - 6));
        records.push(compaction(2, index / 3));
    }
    records
}

fn build(batches: u64) -> Built {
    let disk = SimDisk::new(11);
    let opening = [conf_state(1, "one"), conf_state(2, "two")];
    let mut wal = Wal::create(disk.as_disk(), IDENTITY, options(), &opening).unwrap();
    let mut model = Model::default();
    let mut models = vec![model.clone()];
    model.apply(&opening);
    models.push(model.clone());
    let mut last = (segment_name(1), 0);
    for index in 1..=batches {
        run_job(&mut wal);
        let records = batch_of(index);
        let before = wal.active_remaining();
        wal.append(&records).unwrap();
        wal.sync().unwrap();
        model.apply(&records);
        models.push(model.clone());
        let has_rolled = wal.active_remaining() > before;
        let offset = if has_rolled { 0 } else { SEGMENT_BYTES - 72 - before };
        last = (active_name(&disk), offset);
    }
    run_job(&mut wal);
    Built { disk, wal, models, last }
}

fn used_bytes(disk: &SimDisk, name: &str) -> u64 {
    let content = disk.content(name).unwrap();
    let last = content.iter().rposition(|byte| *byte != 0);
    last.map_or(0, |last| (last as u64 + 1).next_multiple_of(8))
}

fn segments(disk: &SimDisk) -> Vec<String> {
    let mut segments = names(disk);
    segments.retain(|name| name.starts_with("segment-"));
    segments
}

fn used_segments(disk: &SimDisk) -> Vec<String> {
    let mut used = segments(disk);
    used.retain(|name| used_bytes(disk, name) > 0);
    used
}

fn active_name(disk: &SimDisk) -> String {
    used_segments(disk).pop().unwrap()
}

/// The damage at `at` is refused, under the name of its file and the offset of its batch.
fn assert_named(result: Result<(Wal, Recovered), WalError>, name: &str, at: u64) {
    match result {
        Err(WalError::Corrupt { file, offset, .. }) => {
            assert_eq!(file, name, "damage at {at}");
            assert!(offset <= at && at < offset + 400, "{offset} for {at}");
        }
        other => panic!("{name} changed at {at}: {other:?}"),
    }
}

fn logs(result: Result<(Wal, Recovered), WalError>) -> (Groups, Option<Cut>) {
    let (_, recovered) = result.unwrap();
    (recovered.groups, recovered.cut)
}

#[test]
fn the_log_under_test_has_seen_everything() {
    let built = build(30);
    let used = used_segments(&built.disk);
    assert!(used.len() >= 3, "{used:?}");
    assert!(used[0] > segment_name(1), "no segment was dropped");
    assert_eq!(segments(&built.disk).len(), used.len() + 1, "one is prepared");
}

#[test]
fn after_a_clean_stop_every_changed_byte_is_named_or_harmless() {
    let built = build(30);
    built.wal.close().unwrap();
    let whole = built.models.last().unwrap().logs();
    for name in names(&built.disk) {
        let len = built.disk.content(&name).unwrap().len() as u64;
        let is_marker = name == "clean-stop";
        let used = if is_marker { len } else { used_bytes(&built.disk, &name) };
        for at in 0..len {
            for mask in MASKS {
                let disk = built.disk.fork();
                assert!(disk.flip(&name, at, mask));
                if at < used {
                    assert_named(open(&disk), &name, at);
                } else {
                    assert_eq!(logs(open(&disk)).0, whole, "{name} {at}");
                }
            }
        }
    }
}

#[test]
fn after_a_kill_every_changed_byte_before_the_last_batch_is_named() {
    for batches in [1, 2, 5, 6, 7, 8, 9, 10, 15, 16, 17, 18, 19, 20, 24, 25, 26, 30] {
        let built = build(batches);
        drop(built.wal);
        let (last_name, last_offset) = &built.last;
        let whole = built.models.last().unwrap().logs();
        let before = built.models[built.models.len() - 2].logs();
        for name in segments(&built.disk) {
            let used = used_bytes(&built.disk, &name);
            // All bytes of the last log; of the others a sample that moves.
            let step = if batches == 30 { 1 } else { 5 };
            for at in (batches % step..SEGMENT_BYTES).step_by(step as usize) {
                let disk = built.disk.fork();
                disk.flip(&name, at, MASKS[at as usize % 3]);
                let result = open(&disk);
                if at >= used {
                    assert_eq!(logs(result).0, whole, "{name} {at}");
                } else if name == *last_name && at >= *last_offset {
                    // Cut as if torn, or refused because segments were dropped on its word.
                    if result.is_err() {
                        assert_named(result, &name, at);
                    } else {
                        let (found, cut) = logs(result);
                        assert_eq!(found, before, "{name} {at}");
                        assert_eq!(cut.unwrap().offset, *last_offset);
                    }
                } else {
                    assert_named(result, &name, at);
                }
            }
        }
    }
}

#[test]
fn a_mark_leaves_only_itself_in_doubt() {
    let mut built = build(30);
    let writes_before = built.disk.counts();
    built.wal.mark_synced().unwrap();
    built.wal.mark_synced().unwrap();
    let writes_after = built.disk.counts();
    assert_eq!(writes_after.writes, writes_before.writes + 1);
    assert_eq!(writes_after.syncs, writes_before.syncs);
    let name = active_name(&built.disk);
    let mark = SEGMENT_BYTES - 72 - built.wal.active_remaining() - 72;
    drop(built.wal);
    let whole = built.models.last().unwrap().logs();
    for at in 0..used_bytes(&built.disk, &name) {
        let disk = built.disk.fork();
        disk.flip(&name, at, 0x10);
        if at < mark {
            assert_named(open(&disk), &name, at);
        } else {
            assert_eq!(logs(open(&disk)).0, whole, "{at}");
        }
    }
}

#[test]
fn every_missing_segment_is_named() {
    for is_clean in [true, false] {
        let built = build(30);
        if is_clean {
            built.wal.close().unwrap();
        }
        for name in segments(&built.disk) {
            let disk = built.disk.fork();
            assert!(disk.lose(&name));
            let result = open(&disk);
            if used_bytes(&built.disk, &name) == 0 {
                let whole = built.models.last().unwrap().logs();
                assert_eq!(logs(result).0, whole);
                continue;
            }
            match result {
                Err(WalError::MissingSegment { file }) => assert_eq!(file, name),
                other => panic!("without {name}: {other:?}"),
            }
        }
    }
}

#[test]
fn a_directory_without_segments_is_a_missing_log() {
    let built = build(30);
    built.wal.close().unwrap();
    for name in segments(&built.disk) {
        built.disk.lose(&name);
    }
    assert!(Wal::exists(&built.disk).unwrap(), "the marker is there");
    assert!(matches!(open(&built.disk), Err(WalError::Missing)));
    let again = Wal::create(built.disk.as_disk(), IDENTITY, options(), &[]);
    assert!(matches!(again, Err(WalError::Exists { .. })));
}

#[test]
fn a_prepared_segment_alone_is_not_a_log() {
    let built = build(3);
    drop(built.wal);
    let prepared = segments(&built.disk).pop().unwrap();
    for name in used_segments(&built.disk) {
        built.disk.lose(&name);
    }
    assert_eq!(segments(&built.disk), [prepared]);
    assert!(matches!(open(&built.disk), Err(WalError::MissingSegment { .. })));
}

#[test]
fn a_segment_of_another_node_is_refused() {
    let theirs = build(30).disk;
    let disk = SimDisk::new(5);
    let other = *b"some-other-node!";
    let mut wal = Wal::create(disk.as_disk(), other, options(), &[]).unwrap();
    for index in 1..=20 {
        wal.append(&[entry(1, index, vec![7; 100])]).unwrap();
        wal.sync().unwrap();
    }
    drop(wal);
    assert!(matches!(open(&disk), Err(WalError::Foreign { .. })));
    for name in segments(&theirs) {
        let mixed = theirs.fork();
        mixed.set_content(&name, disk.content(&segment_name(1)).unwrap());
        match open(&mixed) {
            Err(WalError::Foreign { file, found, .. }) => {
                assert_eq!((file, found), (name, other));
            }
            result => panic!("{name}: {result:?}"),
        }
    }
}

#[test]
fn a_segment_in_the_place_of_another_is_refused() {
    let built = build(30);
    drop(built.wal);
    let used = used_segments(&built.disk);
    for to in &used {
        for from in used.iter().filter(|from| *from != to) {
            let disk = built.disk.fork();
            disk.set_content(to, built.disk.content(from).unwrap());
            match open(&disk) {
                Err(WalError::Corrupt { file, offset, .. }) => {
                    assert_eq!((&file, offset), (to, 0));
                }
                // The last segment: as if a crash had come before its first batch, were it not full of another.
                other => panic!("{from} as {to}: {other:?}"),
            }
        }
    }
}

#[test]
fn a_segment_that_is_too_short_or_too_long_is_refused() {
    let built = build(30);
    drop(built.wal);
    for name in used_segments(&built.disk) {
        let content = built.disk.content(&name).unwrap();
        let lengths = (0..content.len()).step_by(8).chain([1, 71, 1023]);
        for len in lengths.chain([1025, 1032, 4096]) {
            let disk = built.disk.fork();
            let mut changed = content.clone();
            changed.resize(len, 0);
            disk.set_content(&name, changed);
            match open(&disk) {
                Err(WalError::Corrupt { file, .. }) => assert_eq!(file, name, "{len}"),
                other => panic!("{name} with {len} bytes: {other:?}"),
            }
        }
    }
}

#[test]
fn whatever_happens_to_the_bytes_the_log_is_refused_or_right() {
    let mut random = Random(0x1234_5678_9abc_def1);
    let built = build(30);
    drop(built.wal);
    let right: Vec<_> = built.models.iter().map(Model::logs).collect();
    for round in 0..3000 {
        let disk = built.disk.fork();
        let segments = segments(&disk);
        for _ in 0..=random.below(3) {
            let name = &segments[random.below(segments.len() as u64) as usize];
            let mut content = disk.content(name).unwrap();
            let from = random.below(content.len() as u64) as usize;
            let scale = random.below(11);
            let len = 1 + random.below(1 << scale) as usize;
            let to = content.len().min(from + len);
            let how = random.below(4);
            for at in from..to {
                content[at] = match how {
                    0 => 0,
                    1 => random.next() as u8,
                    2 => 0xff,
                    _ => content[(at * 7) % 1024],
                };
            }
            disk.set_content(name, content);
        }
        if let Ok((_, recovered)) = open(&disk) {
            assert!(right.contains(&recovered.groups), "round {round}");
        }
    }
}

#[test]
fn noise_in_unused_space_is_wiped_before_the_log_goes_on() {
    let built = build(30);
    drop(built.wal);
    for name in segments(&built.disk) {
        // Behind the end of the log only; behind the end of an older segment nobody looks.
        if name < built.last.0 {
            continue;
        }
        for at in (used_bytes(&built.disk, &name)..SEGMENT_BYTES).step_by(37) {
            let disk = built.disk.fork();
            disk.flip(&name, at, 0x55);
            let mut model = built.models.last().unwrap().clone();
            let (mut wal, _) = open(&disk).unwrap();
            for index in 31..=45 {
                wal.append(&batch_of(index)).unwrap();
                wal.sync().unwrap();
                model.apply(&batch_of(index));
                assert_eq!(logs(open(&disk.fork())), (model.logs(), None), "{name} {at}");
            }
        }
    }
}

#[test]
fn what_is_left_over_is_not_read_and_goes() {
    let built = build(30);
    drop(built.wal);
    let expected = segments(&built.disk);
    assert!(expected[0] > segment_name(2));
    // A dropped segment whose removal was undone, one that was being wiped, one being made.
    built.disk.set_content(&segment_name(1), vec![0xab; SEGMENT_BYTES as usize]);
    built.disk.set_content(&segment_name(2), vec![0; 100]);
    built.disk.set_content(&format!("{}.tmp", segment_name(99)), vec![1; 100]);
    assert_eq!(logs(open(&built.disk)), (built.models.last().unwrap().logs(), None));
    assert_eq!(names(&built.disk), expected);
}

#[test]
fn files_of_noise_never_make_a_panic() {
    let mut random = Random(99);
    for _ in 0..300 {
        let disk = SimDisk::new(1);
        for number in 1..=1 + random.below(4) {
            let len = [0, 8, 100, 1024, 1024, 1024, 2000][random.below(7) as usize];
            let mut content: Vec<u8> = (0..len).map(|_| random.next() as u8).collect();
            if random.below(2) == 0 && len > 8 {
                content[..4].copy_from_slice(b"LKWB");
            }
            disk.set_content(&segment_name(number), content);
        }
        assert!(open(&disk).is_err());
    }
}

#[test]
fn a_marker_that_does_not_fit_the_log_is_refused() {
    let built = build(10);
    built.wal.close().unwrap();
    let old_marker = built.disk.content("clean-stop").unwrap();
    let (mut wal, recovered) = open(&built.disk).unwrap();
    assert!(recovered.clean);
    assert!(!names(&built.disk).contains(&"clean-stop".to_string()));
    wal.append(&batch_of(11)).unwrap();
    wal.sync().unwrap();
    drop(wal);
    built.disk.set_content("clean-stop", old_marker);
    match open(&built.disk) {
        Err(WalError::Corrupt { file, .. }) => assert_eq!(file, "clean-stop"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn errors_are_one_clear_line() {
    let built = build(30);
    drop(built.wal);
    let name = used_segments(&built.disk).remove(1);
    built.disk.flip(&name, 100, 1);
    let line = open(&built.disk).unwrap_err().to_string();
    assert!(line.contains(&name) && line.contains("offset"), "{line}");
    assert!(!line.contains('\n'));
}
