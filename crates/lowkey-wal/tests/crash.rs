//! Power loss at every single operation of random histories, twice in a row; and syncs that fail.
//!
//! The promise: what comes back is the log after some number of whole batches, at least all that were
//! synced, at most all that were written; and the log goes on from there as if nothing had happened.
#![allow(clippy::unwrap_used, reason = "a test may")]

mod common;

use std::io::ErrorKind;

use common::{IDENTITY, Model, compaction, entry, open, record, run_job, small};
use lowkey_wal::{Disk, Kind, Record, SimDisk, Wal, WalError};
use proptest::collection::vec;
use proptest::prelude::{Just, Strategy, any, prop_oneof};
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};

/// A record to be, once it is known how its group's log stands.
#[derive(Clone, Debug)]
struct Draw {
    group: u32,
    what: u8,
    pick: u16,
    payload_bytes: usize,
}

#[derive(Clone, Debug)]
enum Step {
    Append(Vec<Draw>),
    Sync,
    Mark,
    Job,
    /// The process is killed and starts again.
    Kill,
    /// The process stops cleanly and starts again.
    Stop,
    /// The n-th sync from here fails, or the n-th change of the directory, and with it the process, unless it is about
    /// the next segment. The next start may fail in the same way, and find that the page cache has forgotten.
    Fail {
        n: u64,
        failure: Failure,
    },
}

#[derive(Clone, Copy, Debug)]
struct Failure {
    is_directory: bool,
    /// Where the next start fails, too; 0 if it does not.
    fails_again_at: u64,
    evicts: bool,
}

impl Failure {
    fn strike(self, disk: &SimDisk, n: u64) {
        if self.is_directory {
            disk.fail_directory(n, ErrorKind::Other);
        } else {
            disk.fail_sync(n, ErrorKind::Other);
        }
    }
}

fn failure() -> impl Strategy<Value = Failure> {
    (any::<bool>(), 0..6u64, any::<bool>()).prop_map(|(is_directory, fails_again_at, evicts)| Failure {
        is_directory,
        fails_again_at,
        evicts,
    })
}

fn draw() -> impl Strategy<Value = Draw> {
    (0..3u32, 0..21u8, any::<u16>(), 0..260usize).prop_map(|(group, what, pick, payload_bytes)| Draw {
        group,
        what,
        pick,
        payload_bytes,
    })
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => vec(draw(), 1..6).prop_map(Step::Append),
        5 => Just(Step::Sync),
        1 => Just(Step::Mark),
        2 => Just(Step::Job),
        1 => Just(Step::Kill),
        1 => Just(Step::Stop),
        1 => (1..4u64, failure()).prop_map(|(n, failure)| Step::Fail { n, failure }),
    ]
}

/// Turns draws into records that continue the log as it stands.
fn records_of(draws: &[Draw], model: &Model, serial: &mut u64) -> Vec<Record> {
    let mut model = model.clone();
    let mut records = Vec::new();
    for draw in draws {
        *serial += 1;
        let mut payload = serial.to_le_bytes().to_vec();
        payload.resize(8 + draw.payload_bytes, *serial as u8);
        let group = model.group(draw.group);
        let (compacted, last) = (group.compacted(), group.last());
        let pick = u64::from(draw.pick);
        let made = match draw.what {
            0..11 => entry(draw.group, last + 1, payload),
            // In place of an entry that is there, or the next one.
            11..13 => entry(draw.group, compacted + 1 + pick % (last - compacted + 1), payload),
            13..15 => record(draw.group, Kind::HardState, 0, payload),
            15 => record(draw.group, Kind::ConfState, 0, payload),
            16..19 => compaction(draw.group, compacted + pick % (last - compacted + 1)),
            19 => {
                record(draw.group, Kind::Reset, compacted + pick % (last - compacted + 5), b"anew".to_vec())
            }
            _ => compaction(draw.group, last + pick % 5),
        };
        model.apply(std::slice::from_ref(&made));
        records.push(made);
    }
    records
}

/// A log under test, and what it has been told.
struct World {
    disk: SimDisk,
    wal: Option<Wal>,
    /// The log after 0, 1, 2… batches since the last recovery.
    models: Vec<Model>,
    /// How many of them were synced.
    synced: usize,
    serial: u64,
    /// Operations on disks that are gone.
    operations: u64,
    crash_at: Option<u64>,
    /// What was told to fail.
    failure: Option<Failure>,
}

impl World {
    fn new(seed: u64, crash_at: Option<u64>) -> World {
        let world = World {
            disk: SimDisk::new(seed),
            wal: None,
            models: vec![Model::default()],
            synced: 0,
            serial: 0,
            operations: 0,
            crash_at,
            failure: None,
        };
        world.arm();
        world
    }

    /// Tells the present disk when to lose its power.
    fn arm(&self) {
        if let Some(crash_at) = self.crash_at {
            self.disk.crash_at_operation(crash_at - self.operations);
        }
    }

    fn total_operations(&self) -> u64 {
        self.operations + self.disk.counts().operations()
    }

    /// Goes on with another state of the disk.
    fn switch(&mut self, disk: SimDisk) {
        self.operations = self.total_operations();
        self.disk = disk;
        self.arm();
    }

    fn run(&mut self, steps: &[Step]) -> Result<(), WalError> {
        if self.wal.is_none() {
            let opening = [record(0, Kind::ConfState, 0, "founded")];
            let mut model = Model::default();
            model.apply(&opening);
            self.models.push(model);
            self.wal = Some(Wal::create(self.disk.as_disk(), IDENTITY, small(), &opening)?);
            self.synced = 1;
        }
        for step in steps {
            match (self.step(step), self.failure.take()) {
                // Only one operation has failed: the machine is up.
                (Err(_), Some(failure)) if self.disk.list().is_ok() => self.go_on_after_failure(failure)?,
                (done, failure) => {
                    done?;
                    self.failure = failure;
                }
            }
        }
        Ok(())
    }

    /// The next process starts from what the page cache shows; that is safe once it has been given back.
    fn go_on_after_failure(&mut self, failure: Failure) -> Result<(), WalError> {
        self.forget(failure);
        let mut given_back = None;
        if failure.fails_again_at > 0 {
            failure.strike(&self.disk, failure.fails_again_at);
            given_back = open(&self.disk).ok().map(|(_, recovered)| recovered.groups);
            self.forget(failure);
        }
        self.come_back()?;
        let found = self.models[0].logs();
        assert!(given_back.is_none_or(|given_back| given_back == found), "it was given back once");
        Ok(())
    }

    /// The process ends, and its page cache may forget.
    fn forget(&mut self, failure: Failure) {
        self.switch(self.disk.kill());
        if failure.evicts {
            self.disk.evict();
        }
    }

    fn step(&mut self, step: &Step) -> Result<(), WalError> {
        let mut wal = self.wal.take().unwrap();
        match step {
            Step::Append(draws) => {
                let mut model = self.models.last().unwrap().clone();
                let records = records_of(draws, &model, &mut self.serial);
                model.apply(&records);
                self.models.push(model);
                wal.append(&records)?;
            }
            Step::Sync => {
                wal.sync()?;
                self.synced = self.models.len() - 1;
            }
            Step::Mark => wal.mark_synced()?,
            Step::Job => run_job(&mut wal),
            Step::Kill => {
                drop(wal);
                self.switch(self.disk.kill());
                return self.reopen(false);
            }
            Step::Fail { n, failure } => {
                failure.strike(&self.disk, *n);
                self.failure = Some(*failure);
            }
            Step::Stop => {
                wal.close()?;
                self.synced = self.models.len() - 1;
                self.switch(self.disk.kill());
                return self.reopen(true);
            }
        }
        self.wal = Some(wal);
        Ok(())
    }

    /// Opens a log that lost nothing.
    fn reopen(&mut self, is_clean: bool) -> Result<(), WalError> {
        let (wal, recovered) = open(&self.disk)?;
        assert_eq!(recovered.groups, self.models.last().unwrap().logs());
        assert_eq!(recovered.clean, is_clean);
        assert_eq!(recovered.cut, None);
        self.wal = Some(wal);
        self.synced = self.models.len() - 1;
        Ok(())
    }

    /// The process ends, and the power with it or not. The log must come back with all that was
    /// synced and nothing made up; and from then on that, too, is safe.
    fn restart(&mut self, loses_power: bool, crash_at: Option<u64>) -> Result<(), WalError> {
        self.wal = None;
        self.disk = if loses_power { self.disk.crash() } else { self.disk.kill() };
        self.operations = 0;
        self.crash_at = crash_at;
        self.arm();
        if self.synced == 0 && !Wal::exists(&self.disk).unwrap() {
            assert_eq!(self.models[0], Model::default(), "a log has vanished");
            self.models.truncate(1);
            return Ok(());
        }
        self.failure = None;
        self.come_back()
    }

    /// Opens a log that may have lost what was not synced.
    fn come_back(&mut self) -> Result<(), WalError> {
        let (wal, recovered) = match open(&self.disk) {
            Ok(opened) => opened,
            // The next crash came while this one was being repaired.
            Err(error) if self.disk.list().is_err() => return Err(error),
            Err(error) => panic!("after a crash: {error}"),
        };
        let range = self.synced..self.models.len();
        let Some(found) = range.clone().rev().find(|p| self.models[*p].logs() == recovered.groups) else {
            panic!("{:?} is not the log after {range:?} batches", recovered.groups);
        };
        self.models = vec![self.models[found].clone()];
        self.synced = 0;
        self.wal = Some(wal);
        Ok(())
    }
}

/// Runs a history that ends at each of its operations, goes on, and loses power again.
fn survives_every_crash(steps: &[Step], seed: u64) {
    let mut whole = World::new(seed, None);
    whole.run(steps).unwrap();
    let operations = whole.total_operations();
    for (crash_at, loses_power) in (1..=operations).flat_map(|n| [(n, true), (n, false)]) {
        let mut world = World::new(seed ^ crash_at, Some(crash_at));
        let _ = world.run(steps);
        if world.disk.list().is_ok() {
            // What a failed sync leaves is up to the seed, and so is what is done after it.
            assert!(steps.iter().any(|step| matches!(step, Step::Fail { .. })), "no crash at {crash_at}");
            continue;
        }
        // A second one soon after, often while the first is still being repaired.
        let again_at = 1 + (seed ^ crash_at.wrapping_mul(0x9e37_79b9)) % 23;
        let begun = world.restart(loses_power, Some(again_at));
        let _ = begun.and_then(|()| world.run(steps));
        world.restart(true, None).unwrap();
        // And one with nothing in between: what was read once is safe.
        world.restart(true, None).unwrap();
        world.run(&steps[..steps.len().min(8)]).unwrap();
        world.run(&[Step::Stop]).unwrap();
    }
}

#[test]
fn after_a_crash_at_any_operation_nothing_synced_is_lost_and_nothing_is_made_up() {
    let cases = std::env::var("LOWKEY_WAL_CASES");
    let config = Config {
        cases: cases.map_or(20, |cases| cases.parse().unwrap()),
        failure_persistence: None,
        ..Config::default()
    };
    let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
    let mut runner = TestRunner::new_with_rng(config, rng);
    let histories = (vec(step(), 1..50), any::<u64>());
    runner
        .run(&histories, |(steps, seed)| {
            survives_every_crash(&steps, seed);
            Ok(())
        })
        .unwrap();
}

#[test]
fn the_same_seed_gives_the_same_disk_after_the_same_crash() {
    let content = || {
        let disk = SimDisk::new(7);
        let mut wal = common::create(&disk, &[]);
        for index in 1..40 {
            wal.append(&[entry(1, index, vec![index as u8; 300])]).unwrap();
        }
        let disk = disk.crash();
        let names = disk.list().unwrap();
        names.into_iter().map(|name| (disk.content(&name), name)).collect::<Vec<_>>()
    };
    assert_eq!(content(), content());
}
