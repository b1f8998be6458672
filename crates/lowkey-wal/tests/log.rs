//! What a log does on a disk that works: order, room, segments, marks, jobs.
#![allow(clippy::unwrap_used, reason = "a test may")]

mod common;

use std::io::ErrorKind;
use std::thread;

use common::{
    IDENTITY, Model, compaction, conf_state, create, entry, hard_state, names, open, run_job, segment_name,
    small,
};
use lowkey_wal::{GroupId, Options, SimDisk, Wal, WalError};

/// Appends and syncs entries of group 1, half a KiB each.
fn fill(wal: &mut Wal, indexes: std::ops::RangeInclusive<u64>) {
    for index in indexes {
        wal.append(&[entry(1, index, vec![index as u8; 500])]).unwrap();
        wal.sync().unwrap();
    }
}

fn segment_count(disk: &SimDisk) -> usize {
    let names = names(disk);
    names.iter().filter(|name| name.starts_with("segment-")).count()
}

#[test]
fn what_was_appended_comes_back() {
    let disk = SimDisk::new(1);
    let mut model = Model::default();
    let batches = [
        vec![conf_state(1, "a b c"), hard_state(1, "term 1")],
        vec![entry(1, 1, "x"), entry(1, 2, "y"), entry(7, 1, "")],
        vec![entry(1, 2, "y again"), hard_state(1, "term 2")],
        vec![compaction(7, 20), entry(7, 21, "after the gap")],
        vec![compaction(1, 1)],
    ];
    let mut wal = create(&disk, &batches[0]);
    model.apply(&batches[0]);
    for batch in &batches[1..] {
        wal.append(batch).unwrap();
        model.apply(batch);
    }
    wal.close().unwrap();
    let (wal, recovered) = open(&disk).unwrap();
    assert_eq!(recovered.groups, model.logs());
    assert!(recovered.clean);
    drop(wal);
    let (_, recovered) = open(&disk).unwrap();
    assert_eq!(recovered.groups, model.logs());
    assert!(!recovered.clean, "the marker holds for one start");
}

#[test]
fn a_log_is_founded_once_and_never_made_up() {
    let disk = SimDisk::new(1);
    assert!(!Wal::exists(&disk).unwrap());
    assert!(matches!(open(&disk), Err(WalError::Missing)));
    assert!(names(&disk).is_empty(), "a failed open leaves nothing");
    drop(create(&disk, &[]));
    assert!(Wal::exists(&disk).unwrap());
    let again = Wal::create(disk.as_disk(), IDENTITY, small(), &[]);
    assert!(matches!(again, Err(WalError::Exists { .. })));
    assert!(open(&disk).unwrap().1.groups.is_empty());
}

#[test]
fn records_that_do_not_continue_the_log_are_refused_and_change_nothing() {
    let disk = SimDisk::new(1);
    let mut wal = create(&disk, &[entry(1, 1, "1"), entry(1, 2, "2")]);
    wal.append(&[compaction(1, 1)]).unwrap();
    let writes = disk.counts().writes;
    for refused in [
        vec![entry(1, 4, "a gap")],
        vec![entry(1, 1, "compacted")],
        vec![compaction(1, 0)],
        vec![entry(2, 2, "not the first")],
        vec![entry(1, 3, "good"), entry(1, 5, "a gap")],
        vec![compaction(1, 9), entry(1, 9, "just compacted")],
        vec![compaction(1, 9), entry(1, 11, "a gap after a compaction")],
    ] {
        let result = wal.append(&refused);
        assert!(matches!(result, Err(WalError::OutOfOrder { .. })), "{refused:?}");
    }
    assert_eq!(disk.counts().writes, writes);
    wal.append(&[entry(1, 3, "3")]).unwrap();
}

#[test]
fn what_does_not_fit_a_fresh_segment_is_refused_before_anything_is_written() {
    let disk = SimDisk::new(1);
    let mut wal = create(&disk, &[]);
    let writes = disk.counts().writes;
    // 4096, less the batch's header, the record's header and the room for the end of the segment.
    let most = 4096 - 72 - 24 - 72;
    let result = wal.append(&[entry(1, 1, vec![1; most + 1])]);
    assert!(matches!(result, Err(WalError::TooLarge { .. })));
    // What every new segment begins with may not fill it.
    let result = wal.append(&[hard_state(1, &"x".repeat(2048))]);
    assert!(matches!(result, Err(WalError::TooLarge { .. })));
    assert_eq!(disk.counts().writes, writes);
    wal.append(&[entry(1, 1, vec![1; most])]).unwrap();
    assert_eq!(wal.active_remaining(), 0);
    wal.append(&[entry(1, 2, vec![2; most])]).unwrap();
    wal.sync().unwrap();
    let (_, recovered) = open(&disk.crash()).unwrap();
    assert_eq!(recovered.groups[&GroupId(1)].entries.len(), 2);
}

#[test]
fn segment_lengths_that_make_no_sense_are_refused() {
    for segment_bytes in [0, 8, 511, 513, u64::from(u32::MAX) + 1] {
        let options = Options { segment_bytes };
        let result = Wal::create(SimDisk::new(1).as_disk(), IDENTITY, options, &[]);
        assert!(matches!(result, Err(WalError::Options { .. })));
    }
}

#[test]
fn a_batch_is_one_write_and_a_sync_is_one_sync() {
    let disk = SimDisk::new(1);
    let mut wal = create(&disk, &[]);
    let before = disk.counts();
    let batch = [entry(1, 1, "a"), entry(2, 1, "b"), hard_state(1, "c")];
    let remaining = wal.active_remaining();
    wal.append(&batch).unwrap();
    assert_eq!(remaining - wal.active_remaining(), Wal::batch_bytes(&batch));
    wal.sync().unwrap();
    wal.sync().unwrap();
    let after = disk.counts();
    assert_eq!(after.writes - before.writes, 1);
    assert_eq!(after.syncs - before.syncs, 1);
    assert_eq!(after.directory, before.directory);
}

#[test]
fn segments_are_dropped_and_recycled_once_a_compaction_is_on_disk() {
    let disk = SimDisk::new(1);
    let mut wal = create(&disk, &[]);
    fill(&mut wal, 1..=30);
    let many = segment_count(&disk);
    assert!(many >= 5);
    run_job(&mut wal);
    wal.append(&[compaction(1, 30)]).unwrap();
    wal.sync().unwrap();
    run_job(&mut wal);
    assert_eq!(segment_count(&disk), many + 1, "nobody was told yet");
    fill(&mut wal, 31..=31);
    run_job(&mut wal);
    let few = segment_count(&disk);
    assert!(few <= 3, "the active one, the one before it, and a spare");
    // From now on the same few files go round.
    for round in 0..20 {
        let first = 32 + round * 10;
        fill(&mut wal, first..=first + 9);
        wal.append(&[compaction(1, first + 9)]).unwrap();
        wal.sync().unwrap();
        run_job(&mut wal);
        assert!(segment_count(&disk) <= 6);
    }
    let (_, recovered) = open(&disk.crash()).unwrap();
    assert_eq!(recovered.groups[&GroupId(1)].compacted_through(), 231);
    assert!(recovered.groups[&GroupId(1)].entries.is_empty());
}

#[test]
fn a_group_that_does_not_compact_keeps_its_segments() {
    let disk = SimDisk::new(1);
    let mut wal = create(&disk, &[entry(2, 1, "still needed")]);
    fill(&mut wal, 1..=30);
    for _ in 0..3 {
        wal.append(&[compaction(1, 30)]).unwrap();
        wal.sync().unwrap();
        run_job(&mut wal);
    }
    assert!(names(&disk).contains(&segment_name(1)));
    let (_, recovered) = open(&disk.crash()).unwrap();
    assert_eq!(recovered.groups[&GroupId(2)].entries.len(), 1);
}

#[test]
fn a_group_that_keeps_what_others_have_done_with_is_named_until_it_compacts() {
    let disk = SimDisk::new(1);
    let mut wal = create(&disk, &[entry(2, 1, "still needed")]);
    fill(&mut wal, 1..=30);
    assert_eq!(wal.pinned_by(0), None, "all of it is needed");
    wal.append(&[compaction(1, 30)]).unwrap();
    wal.sync().unwrap();
    assert_eq!((wal.pinned_by(10_000), wal.pinned_by(100_000)), (Some(GroupId(2)), None));
    let disk = disk.kill();
    let (mut wal, _) = open(&disk).unwrap();
    assert_eq!(wal.pinned_by(10_000), Some(GroupId(2)), "it is known after a start, too");
    for record in [compaction(2, 1), entry(1, 31, "more")] {
        wal.append(&[record]).unwrap();
        wal.sync().unwrap();
        run_job(&mut wal);
    }
    assert_eq!(wal.pinned_by(0), None);
    run_job(&mut wal);
    assert!(!names(&disk).contains(&segment_name(1)), "{:?}", names(&disk));
}

#[test]
fn the_next_segment_is_made_ahead_and_used() {
    let disk = SimDisk::new(1);
    let mut wal = create(&disk, &[]);
    let job = wal.segment_job().unwrap();
    assert!(wal.segment_job().is_none(), "one at a time");
    assert!(!wal.spare_is_ready());
    wal.segment_made(job.run());
    assert!(wal.spare_is_ready());
    assert!(wal.segment_job().is_none(), "nothing left to do");
    let before = disk.counts();
    fill(&mut wal, 1..=7);
    assert_eq!(disk.counts().directory, before.directory, "no file was made on the way");
    assert!(!wal.spare_is_ready());
    assert!(wal.segment_job().is_some());
}

#[test]
fn a_job_that_comes_too_late_is_taken_over() {
    let disk = SimDisk::new(1);
    let mut wal = create(&disk, &[]);
    let job = wal.segment_job().unwrap();
    fill(&mut wal, 1..=20);
    assert!(wal.segment_job().is_none(), "the old one is still out");
    wal.segment_made(job.run());
    assert!(wal.segment_job().is_some());
    let (_, recovered) = open(&disk.crash()).unwrap();
    assert_eq!(recovered.groups[&GroupId(1)].entries.len(), 20);
}

#[test]
fn a_job_of_a_log_that_is_gone_makes_nothing() {
    let disk = SimDisk::new(1);
    let mut wal = create(&disk, &[]);
    let job = wal.segment_job().unwrap();
    drop(wal);
    let before = names(&disk);
    let _ = job.run().unwrap();
    assert_eq!(names(&disk), before);
}

#[test]
fn a_job_that_ran_but_was_not_handed_back_is_used() {
    let disk = SimDisk::new(1);
    let mut wal = create(&disk, &[]);
    let result = wal.segment_job().unwrap().run();
    let before = disk.counts();
    fill(&mut wal, 1..=7);
    assert_eq!(disk.counts().directory, before.directory);
    wal.segment_made(result);
    assert!(!wal.spare_is_ready(), "it is in use already");
    fill(&mut wal, 8..=20);
    let (_, recovered) = open(&disk.crash()).unwrap();
    assert_eq!(recovered.groups[&GroupId(1)].entries.len(), 20);
}

#[test]
fn jobs_may_run_on_another_thread_while_the_log_is_written() {
    let disk = SimDisk::new(1);
    let mut wal = create(&disk, &[]);
    let mut running = None;
    for index in 1..=300 {
        if let Some(job) = wal.segment_job() {
            running = Some(thread::spawn(move || job.run()));
        }
        fill(&mut wal, index..=index);
        if index % 5 == 0
            && let Some(thread) = running.take()
        {
            wal.segment_made(thread.join().unwrap());
        }
        if index % 50 == 0 {
            wal.append(&[compaction(1, index - 5)]).unwrap();
        }
    }
    if let Some(thread) = running {
        wal.segment_made(thread.join().unwrap());
    }
    let (_, recovered) = open(&disk.crash()).unwrap();
    assert_eq!(recovered.groups[&GroupId(1)].last_index(), 300);
}

#[test]
fn a_failed_sync_poisons_the_log() {
    let disk = SimDisk::new(1);
    let mut wal = create(&disk, &[]);
    fill(&mut wal, 1..=2);
    wal.append(&[entry(1, 3, "lost or not")]).unwrap();
    disk.fail_sync(1, ErrorKind::Other);
    assert!(matches!(wal.sync(), Err(WalError::Io { doing: "syncing", .. })));
    let syncs = disk.counts().syncs;
    assert!(matches!(wal.sync(), Err(WalError::Poisoned)));
    assert!(matches!(wal.append(&[entry(1, 4, "no")]), Err(WalError::Poisoned)));
    assert!(matches!(wal.mark_synced(), Err(WalError::Poisoned)));
    assert!(wal.segment_job().is_none());
    assert!(matches!(wal.close(), Err(WalError::Poisoned)));
    assert_eq!(disk.counts().syncs, syncs, "a sync is never tried again");
    let (_, recovered) = open(&disk.crash()).unwrap();
    assert!((2..=3).contains(&recovered.groups[&GroupId(1)].entries.len()));
}

#[test]
fn a_failed_write_poisons_the_log() {
    let disk = SimDisk::new(1);
    let mut wal = create(&disk, &[]);
    fill(&mut wal, 1..=2);
    disk.fail_write(1, ErrorKind::Other);
    assert!(matches!(wal.append(&[entry(1, 3, vec![3; 100])]), Err(WalError::Io { doing: "writing", .. })));
    assert!(matches!(wal.sync(), Err(WalError::Poisoned)));
    let (_, recovered) = open(&disk.kill()).unwrap();
    assert_eq!(recovered.groups[&GroupId(1)].entries.len(), 2);
    assert!(recovered.cut.is_some());
}

#[test]
fn a_failed_sync_while_going_over_to_the_next_segment_poisons_the_log() {
    let disk = SimDisk::new(1);
    let mut wal = create(&disk, &[]);
    run_job(&mut wal);
    fill(&mut wal, 1..=6);
    disk.fail_sync(1, ErrorKind::Other);
    assert!(wal.append(&[entry(1, 7, vec![7; 900])]).is_err());
    assert!(matches!(wal.sync(), Err(WalError::Poisoned)));
    let (_, recovered) = open(&disk.crash()).unwrap();
    assert_eq!(recovered.groups[&GroupId(1)].entries.len(), 6);
}

#[test]
fn segments_may_change_their_length_from_start_to_start() {
    let disk = SimDisk::new(1);
    let mut wal = create(&disk, &[]);
    let mut next = 1;
    for segment_bytes in [4096, 8192, 2048, 4096] {
        fill(&mut wal, next..=next + 19);
        next += 20;
        run_job(&mut wal);
        drop(wal);
        let opened = Wal::open(disk.as_disk(), IDENTITY, Options { segment_bytes });
        let (reopened, recovered) = opened.unwrap();
        assert_eq!(recovered.groups[&GroupId(1)].last_index(), next - 1);
        wal = reopened;
    }
}

#[test]
fn a_crash_between_two_segments_leaves_a_log_that_goes_on() {
    let disk = SimDisk::new(1);
    let mut wal = create(&disk, &[hard_state(1, "term 4")]);
    run_job(&mut wal);
    fill(&mut wal, 1..=6);
    // The end of the old segment is written and synced; the first write into the new one fails.
    disk.crash_at_operation(3);
    assert!(wal.append(&[entry(1, 7, vec![7; 900])]).is_err());
    for seed in 0..20 {
        let copy = SimDisk::new(seed);
        let after = disk.crash();
        for name in names(&after) {
            copy.set_content(&name, after.content(&name).unwrap());
        }
        let (mut wal, recovered) = open(&copy).unwrap();
        let last = recovered.groups[&GroupId(1)].last_index();
        assert!((6..=7).contains(&last));
        // Nothing to say but what the new segment has to begin with.
        wal.mark_synced().unwrap();
        fill(&mut wal, last + 1..=last + 20);
        let (_, recovered) = open(&copy.crash()).unwrap();
        assert_eq!(recovered.groups[&GroupId(1)].last_index(), last + 20);
        let hard_state = recovered.groups[&GroupId(1)].hard_state.as_deref();
        assert_eq!(hard_state, Some(b"term 4".as_slice()));
    }
}

/// All of the first segment is compacted, and the process ends before anything is in the second.
#[test]
fn a_segment_without_a_batch_on_disk_is_not_called_the_first_one_needed() {
    for seed in 0..100 {
        let disk = SimDisk::new(seed);
        let mut wal = create(&disk, &[]);
        run_job(&mut wal);
        wal.append(&[entry(1, 1, vec![1; 3000])]).unwrap();
        wal.append(&[compaction(1, 1)]).unwrap();
        wal.sync().unwrap();
        // The end of the first segment is written, what should follow is not.
        disk.fail_write(2, ErrorKind::Other);
        wal.append(&[entry(1, 2, vec![2; 1000])]).unwrap_err();
        drop(wal);

        let disk = disk.kill();
        let (mut wal, recovered) = open(&disk).unwrap();
        assert_eq!(recovered.groups[&GroupId(1)].last_index(), 1);
        wal.append(&[entry(1, 2, vec![2; 1000])]).unwrap();
        wal.append(&[entry(1, 3, vec![3; 100])]).unwrap();
        drop(wal);

        // Of the two, the disk may have kept the second alone.
        let (_, recovered) = open(&disk.crash()).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        assert!(recovered.groups[&GroupId(1)].last_index() >= 1);
    }
}
