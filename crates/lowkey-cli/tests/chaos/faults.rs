//! What is done to the nodes and their network, drawn from a seed.
//!
//! One or two faults at a time begin, last a while and end together. Then a probing client must get
//! through, and all nodes must serve, before the next begin. Beside that, in a lane of its own, connections are cut and messages are
//! late all the time.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::thread;
use std::time::Duration;

use lowkey_sim::judge::{Random, Violation};
use rustix::process::Signal;

use crate::cluster::Cluster;
use crate::harness::run_to_end;
use crate::history::{MILLISECOND, PATH_DELAY_MAX_MS, SECOND, now};
use crate::net::{Net, Place, Way};
use crate::probe::Probes;

/// An outage that fails the run. The promise is less; machines that run tests are loaded.
const OUTAGE_MAX_NANOS: u64 = 15 * SECOND;
/// What the table and the logs make a point of.
pub(crate) const PROMISED_NANOS: u64 = 2 * SECOND;
/// How long a run waits for service before it gives up.
const PATIENCE_NANOS: u64 = 90 * SECOND;
/// How a node ends that finds its files damaged.
const DAMAGED: i32 = 69;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    KillOne,
    KillLeader,
    KillMinority,
    KillAll,
    Restart,
    Pause,
    PauseLeader,
    Partition,
    Delay,
    Stall,
    FullDisk,
    FailedSync,
    BitFlip,
    ClockStep,
}

/// How likely each is, in so many of all.
const KINDS: &[(Kind, u64)] = &[
    (Kind::KillOne, 10),
    (Kind::KillLeader, 14),
    (Kind::KillMinority, 4),
    (Kind::KillAll, 3),
    (Kind::Restart, 3),
    (Kind::Pause, 5),
    (Kind::PauseLeader, 8),
    (Kind::Partition, 26),
    (Kind::Delay, 5),
    (Kind::Stall, 4),
    (Kind::FullDisk, 5),
    (Kind::FailedSync, 4),
    (Kind::BitFlip, 4),
    (Kind::ClockStep, 5),
];

/// What is left to do when a fault is to end.
enum Undo {
    Nothing,
    Start(Vec<usize>),
    Resume(usize),
    /// Heals the network; and ends the connections that were held up, if it is so.
    Calm {
        cut_off: bool,
    },
    MakeRoom,
    SetClock(usize),
}

/// What one step of the run did, and how the clients fared.
#[derive(Clone, Debug)]
pub(crate) struct Measured {
    pub(crate) faults: Vec<String>,
    /// From its end, or from its beginning where one node of a sound cluster was killed.
    pub(crate) outage_nanos: u64,
    /// A majority of the processes ran on; otherwise most had to start again first.
    pub(crate) majority_ran: bool,
    /// For how long the machine kept this very process waiting meanwhile.
    pub(crate) late_nanos: u64,
}

pub(crate) struct Faults<'a> {
    cluster: &'a mut Cluster,
    probes: &'a Probes,
    random: Random,
    pub(crate) counts: BTreeMap<String, u64>,
    pub(crate) measured: Vec<Measured>,
    pub(crate) found: Vec<(u64, Violation)>,
    /// While its disk was full a node may end at its start.
    disk_was_full: bool,
}

impl<'a> Faults<'a> {
    pub(crate) fn new(cluster: &'a mut Cluster, probes: &'a Probes, seed: u64) -> Self {
        Self {
            cluster,
            probes,
            random: Random::new(seed),
            counts: BTreeMap::new(),
            measured: Vec::new(),
            found: Vec::new(),
            disk_was_full: false,
        }
    }

    /// Breaks things until the time is up.
    pub(crate) fn run(&mut self, until: u64) {
        while now() < until && self.found.len() < 20 {
            self.step();
            self.sleep_ms(200, 900);
        }
    }

    fn sleep_ms(&mut self, from: u64, to: u64) {
        thread::sleep(Duration::from_millis(self.random.between(from, to)));
    }

    fn draw(&mut self) -> Kind {
        let sum = KINDS.iter().map(|(_, weight)| weight).sum();
        let mut drawn = self.random.between(0, sum);
        for (kind, weight) in KINDS {
            match drawn.checked_sub(*weight) {
                Some(rest) => drawn = rest,
                None => return *kind,
            }
        }
        unreachable!("the weights are the sum's own");
    }

    fn step(&mut self) {
        let count = if self.random.one_in(4) { 2 } else { 1 };
        let mut names = Vec::new();
        let mut undos = Vec::new();
        let mut from_start = None;
        for _ in 0..count {
            let kind = self.draw();
            if let Some((name, undo)) = self.begin(kind) {
                if matches!(kind, Kind::KillOne | Kind::KillLeader) && count == 1 {
                    from_start = Some(now());
                }
                *self.counts.entry(name.clone()).or_default() += 1;
                names.push(name);
                undos.push(undo);
            }
        }
        if names.is_empty() {
            return;
        }
        if self.random.one_in(8) {
            self.sleep_ms(2_000, 5_000)
        } else {
            self.sleep_ms(50, 1_500)
        }
        let said_before = self.cluster.logs();
        let running = self.cluster.nodes.iter().filter(|node| node.runs()).count();
        let majority_ran = 2 * running > self.cluster.size();
        for undo in undos {
            self.undo(undo);
        }
        self.all_run();
        let ended = now();
        let since = from_start.unwrap_or(ended);
        let measured = Measured { faults: names, outage_nanos: 0, majority_ran, late_nanos: 0 };
        self.wait_for_service(measured, since, ended, &said_before);
    }

    fn wait_for_service(&mut self, mut measured: Measured, since: u64, ended: u64, said_before: &[String]) {
        let faults = measured.faults.join(", with ");
        loop {
            if let Some(success) = self.probes.first_after(since) {
                measured.outage_nanos = success - since;
                measured.late_nanos = self.probes.longest_late(since, success);
                let outage_ms = measured.outage_nanos / MILLISECOND;
                println!("{outage_ms:>6} ms  {faults}");
                if measured.outage_nanos > PROMISED_NANOS {
                    self.tell_what_nodes_said(said_before);
                }
                if measured.outage_nanos > OUTAGE_MAX_NANOS {
                    let what = format!("{outage_ms} ms after {faults}");
                    self.found.push((since, Violation { invariant: "outage", what }));
                }
                self.measured.push(measured);
                return self.cluster.wait_ready();
            }
            if now() - ended > PATIENCE_NANOS {
                let what = format!("no service {} s after {faults}", PATIENCE_NANOS / SECOND);
                self.found.push((since, Violation { invariant: "outage", what }));
                return;
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Since a fault ended, in the order of their clocks.
    fn tell_what_nodes_said(&self, before: &[String]) {
        const LINES_MAX: usize = 60;
        let logs = self.cluster.logs();
        let mut lines: Vec<String> = Vec::new();
        for ((node, log), before) in self.cluster.nodes.iter().zip(&logs).zip(before) {
            let new = log.get(before.len()..).unwrap_or_default().lines();
            lines.extend(new.map(|line| {
                let (time, said) = line.split_once(' ').unwrap_or((line, ""));
                format!("{time} {} {said}", node.name)
            }));
        }
        lines.sort();
        for line in lines.iter().take(LINES_MAX) {
            println!("           {line}");
        }
    }

    /// A node that answers.
    fn any_live(&mut self) -> Option<usize> {
        let live = self.cluster.live();
        (!live.is_empty()).then(|| *self.random.pick(&live))
    }

    /// Some of the nodes that run.
    fn some_live(&mut self, count: usize) -> Vec<usize> {
        let mut live = self.cluster.live();
        while live.len() > count {
            let at = self.random.between(0, live.len() as u64) as usize;
            live.remove(at);
        }
        live
    }

    fn begin(&mut self, kind: Kind) -> Option<(String, Undo)> {
        let begun = match kind {
            Kind::KillOne => ("kill -9, one node".to_owned(), self.kill(1)?),
            Kind::KillLeader => {
                let leader = self.cluster.leader()?;
                self.cluster.kill(leader);
                ("kill -9, the leader".to_owned(), Undo::Start(vec![leader]))
            }
            Kind::KillMinority if self.cluster.size() > 3 => {
                ("kill -9, two of five".to_owned(), self.kill(2)?)
            }
            Kind::KillMinority => ("kill -9, two of three".to_owned(), self.kill(2)?),
            Kind::KillAll => ("kill -9, all nodes".to_owned(), self.kill(self.cluster.size())?),
            Kind::Restart => {
                let number = self.any_live()?;
                self.stop(number);
                ("stopped and started".to_owned(), Undo::Start(vec![number]))
            }
            Kind::Pause | Kind::PauseLeader => {
                let leader = if kind == Kind::PauseLeader { self.cluster.leader() } else { None };
                let number = leader.or_else(|| self.any_live())?;
                self.cluster.pause(number);
                let name = if leader.is_some() { "pause, the leader" } else { "pause, one node" };
                (name.to_owned(), Undo::Resume(number))
            }
            Kind::Partition => self.partition()?,
            Kind::Delay => {
                let ways = all_ways(self.cluster.size());
                let slow: Vec<(Way, Duration)> =
                    ways.map(|way| (way, Duration::from_millis(self.random.between(1, 80)))).collect();
                self.cluster.net.change(|weather| weather.delay.extend(slow));
                ("delay".to_owned(), Undo::Calm { cut_off: false })
            }
            Kind::Stall => {
                let chance = self.random.between(2, 5);
                let ways: Vec<Way> =
                    all_ways(self.cluster.size()).filter(|_| self.random.one_in(chance)).collect();
                self.cluster.net.change(|weather| weather.cut.extend(ways));
                ("stalled connections".to_owned(), Undo::Calm { cut_off: false })
            }
            Kind::FullDisk => {
                self.cluster.disk.as_ref()?.fill();
                self.disk_was_full = true;
                ("full disk".to_owned(), Undo::MakeRoom)
            }
            Kind::FailedSync => self.failed_sync()?,
            Kind::BitFlip => self.bit_flip()?,
            Kind::ClockStep => {
                let number = self.any_live()?;
                let hours = self.random.between(1, 2_000) as i64 - 1_000;
                self.cluster.controls.get(number)?.step_wall_clock(hours * 3_600);
                ("clock step".to_owned(), Undo::SetClock(number))
            }
        };
        Some(begun)
    }

    fn undo(&mut self, undo: Undo) {
        match undo {
            Undo::Nothing => {}
            Undo::Start(numbers) => {
                for number in numbers {
                    if !self.cluster.nodes[number].runs() {
                        self.cluster.start_node(number);
                    }
                }
            }
            Undo::Resume(number) => self.cluster.resume(number),
            Undo::Calm { cut_off } => {
                let net = &self.cluster.net;
                if cut_off {
                    net.reset(|way| matches!(way, (Place::Node(_), Place::Node(_))));
                }
                net.change(|weather| {
                    weather.cut.clear();
                    weather.delay.clear();
                });
            }
            Undo::MakeRoom => {
                if let Some(disk) = &self.cluster.disk {
                    disk.make_room();
                }
            }
            Undo::SetClock(number) => self.cluster.controls[number].step_wall_clock(0),
        }
    }

    fn kill(&mut self, count: usize) -> Option<Undo> {
        let numbers = self.some_live(count);
        for number in &numbers {
            self.cluster.kill(*number);
        }
        (!numbers.is_empty()).then_some(Undo::Start(numbers))
    }

    /// Ends a node as an operator would.
    fn stop(&mut self, number: usize) {
        self.cluster.nodes[number].signal(Signal::TERM);
        let status = self.cluster.nodes[number].wait_exit();
        self.cluster.net.set_pid(number, None);
        if !status.success() {
            self.ended_wrongly(number, status, "was stopped");
        }
    }

    fn ended_wrongly(&mut self, number: usize, status: ExitStatus, when: &str) {
        let node = &self.cluster.nodes[number];
        let log = node.log_text();
        let last: Vec<&str> = log.lines().rev().take(6).collect();
        let what = format!("{} {when} and ended with {status}: {last:#?}", node.name);
        self.found.push((now(), Violation { invariant: "processes", what }));
    }

    /// Nodes that ended by themselves had no reason to, unless there was no room on their disk.
    fn all_run(&mut self) {
        for number in 0..self.cluster.size() {
            if let Some(status) = self.cluster.nodes[number].has_ended() {
                self.cluster.net.set_pid(number, None);
                if number != 0 || !self.disk_was_full {
                    self.ended_wrongly(number, status, "was left alone");
                }
            }
            if !self.cluster.nodes[number].runs() {
                self.cluster.start_node(number);
            }
        }
        self.disk_was_full = false;
    }

    fn partition(&mut self) -> Option<(String, Undo)> {
        let size = self.cluster.size();
        let leader = self.cluster.leader();
        let one = self.random.between(0, size as u64) as usize;
        let mut order: Vec<usize> = (0..size).collect();
        for at in (1..size).rev() {
            order.swap(at, self.random.between(0, at as u64 + 1) as usize);
        }
        let minority = &order[..self.random.between(1, size as u64 / 2 + 1) as usize];
        let (shape, cut): (&str, Vec<Way>) = match self.random.between(0, 10) {
            0 => ("one node cut off", between(size, |a, b| a == one || b == one)),
            1 | 2 => {
                let leader = leader?;
                ("the leader cut off", between(size, |a, b| a == leader || b == leader))
            }
            3 => ("in two", between(size, |a, b| minority.contains(&a) != minority.contains(&b))),
            4 => {
                let mute = leader.unwrap_or(one);
                ("the leader is not heard", between(size, |from, _| from == mute))
            }
            5 => {
                let deaf = leader.unwrap_or(one);
                ("the leader does not hear", between(size, |_, to| to == deaf))
            }
            6 => {
                let (from, to) = (order[0], order[1]);
                ("one way between two", between(size, |a, b| (a, b) == (from, to)))
            }
            7 => {
                let bridge = order[size - 1];
                let is_left = |node: usize| order[..size / 2].contains(&node);
                let cut = |a: usize, b: usize| a != bridge && b != bridge && is_left(a) != is_left(b);
                ("a bridge", between(size, cut))
            }
            8 => ("all apart", between(size, |_, _| true)),
            _ => {
                let ring = |node: usize| order.iter().position(|each| *each == node).unwrap_or(0);
                let is_next = |a: usize, b: usize| (ring(a) + 1) % size == ring(b);
                ("one direction of a ring", between(size, is_next))
            }
        };
        self.cluster.net.change(|weather| weather.cut.extend(cut));
        Some((format!("partition: {shape}"), Undo::Calm { cut_off: self.random.one_in(2) }))
    }

    /// A node whose disk refuses to sync must end at once.
    fn failed_sync(&mut self) -> Option<(String, Undo)> {
        let number = self.any_live()?;
        self.cluster.controls.get(number)?.fail_syncs(true);
        let deadline = now() + 5 * SECOND;
        let status = loop {
            if let Some(status) = self.cluster.nodes[number].has_ended() {
                break Some(status);
            }
            if now() > deadline {
                break None;
            }
            thread::sleep(Duration::from_millis(2));
        };
        self.cluster.controls[number].fail_syncs(false);
        match status {
            Some(status) => {
                self.cluster.net.set_pid(number, None);
                if status.success() {
                    self.ended_wrongly(number, status, "could not sync");
                }
                Some(("fsync error".to_owned(), Undo::Start(vec![number])))
            }
            // It was cut off, and had nothing to write.
            None => Some(("fsync error that nobody met".to_owned(), Undo::Nothing)),
        }
    }

    /// A node whose files were damaged while it was down must refuse to start, and name the file.
    fn bit_flip(&mut self) -> Option<(String, Undo)> {
        let number = self.any_live()?;
        self.stop(number);
        let Some((path, at, bit)) = self.pick_bit(&self.cluster.data_dir(number)) else {
            return Some(("stopped and started".to_owned(), Undo::Start(vec![number])));
        };
        flip(&path, at, bit);
        let ended = run_to_end(&mut self.cluster.nodes[number].command());
        flip(&path, at, bit);
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if ended.code != Some(DAMAGED) || !ended.stderr.contains(&name) {
            let what =
                format!("bit {bit} of byte {at} of {name} was flipped, and the node ended so: {ended:?}");
            self.found.push((now(), Violation { invariant: "processes", what }));
        }
        Some(("bit flip".to_owned(), Undo::Start(vec![number])))
    }

    /// A bit of a batch of the log, or of the file that says who the node is.
    fn pick_bit(&mut self, directory: &Path) -> Option<(PathBuf, usize, u8)> {
        const HEADER_BYTES: usize = 72;
        let bit = self.random.between(0, 8) as u8;
        if self.random.one_in(6) {
            let path = directory.join("node");
            let length = fs::metadata(&path).ok()?.len();
            return Some((path, self.random.between(0, length) as usize, bit));
        }
        let entries = fs::read_dir(directory).ok()?.filter_map(|entry| Some(entry.ok()?.path()));
        let mut segments: Vec<(PathBuf, Vec<u8>)> = entries
            .filter(|path| {
                path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("segment-"))
            })
            .filter_map(|path| fs::read(&path).ok().map(|bytes| (path, bytes)))
            .filter(|(_, bytes)| bytes.starts_with(b"LKWB"))
            .collect();
        segments.sort();
        let chosen = self.random.between(0, segments.len().max(1) as u64) as usize;
        let (path, bytes) = segments.get(chosen)?;
        let mut batches = Vec::new();
        let mut at = 0;
        while bytes.get(at..).is_some_and(|rest| rest.starts_with(b"LKWB")) {
            let length = bytes.get(at + 60..at + 64)?.try_into().ok().map(u32::from_le_bytes)? as usize;
            batches.push((at, HEADER_BYTES + length));
            at = (at + HEADER_BYTES + length).next_multiple_of(8);
        }
        let (begin, length) = *self.random.pick(&batches);
        Some((path.clone(), begin + self.random.between(0, length as u64) as usize, bit))
    }
}

fn flip(path: &Path, at: usize, bit: u8) {
    use std::os::unix::fs::FileExt as _;
    let file = fs::File::options().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at as u64).unwrap();
    file.write_all_at(&[byte[0] ^ (1 << bit)], at as u64).unwrap();
}

fn all_ways(size: usize) -> impl Iterator<Item = Way> {
    (0..size).flat_map(move |from| {
        let others = (0..size).filter(move |to| *to != from);
        others.map(move |to| (Place::Node(from), Place::Node(to)))
    })
}

/// The ways between nodes that are so.
fn between(size: usize, so: impl Fn(usize, usize) -> bool) -> Vec<Way> {
    all_ways(size)
        .filter(|way| match way {
            (Place::Node(from), Place::Node(to)) => so(*from, *to),
            _ => false,
        })
        .collect()
}

/// Paths are late by more than a client waits, each on its own: of one client to one node, or back. What is
/// sent next arrives after the client asked elsewhere, or gave up. Gives back how often, when it is told to
/// stop.
pub(crate) async fn delay_paths(net: &Net, seed: u64, until: u64) -> BTreeMap<String, u64> {
    let mut random = Random::new(seed);
    let mut counts = BTreeMap::new();
    while now() < until {
        tokio::time::sleep(Duration::from_millis(random.between(30, 250))).await;
        let paths = net.paths_of_clients();
        if paths.is_empty() {
            continue;
        }
        let path = random.pick(&paths);
        let is_there = !random.one_in(4);
        path.hold_back(is_there, random.between(500, PATH_DELAY_MAX_MS));
        let name = if is_there { "one path late, to a node" } else { "one path late, from a node" };
        *counts.entry(name.to_owned()).or_default() += 1;
    }
    counts
}

/// The other lane: small things that go wrong all the time. Gives back how often, when it is told to stop.
pub(crate) async fn drizzle(net: &Net, size: usize, seed: u64, until: u64) -> BTreeMap<String, u64> {
    let mut random = Random::new(seed);
    let mut counts = BTreeMap::new();
    while now() < until {
        tokio::time::sleep(Duration::from_millis(random.between(300, 2_000))).await;
        let number = random.between(0, size as u64) as usize;
        let one = Place::Node(number);
        let other = match random.between(1, size as u64 + 1) as usize {
            further if further < size => Place::Node((number + further) % size),
            _ => Place::Clients,
        };
        let ways = [(one, other), (other, one)];
        let name = match random.between(0, 4) {
            0 | 1 => {
                net.reset(|way| ways.contains(&way));
                "connections cut"
            }
            2 => {
                net.change(|weather| weather.delay.extend(ways.map(|way| (way, Duration::from_millis(20)))));
                tokio::time::sleep(Duration::from_millis(random.between(50, 1_000))).await;
                net.change(|weather| weather.delay.retain(|way, _| !ways.contains(way)));
                "delay, one link"
            }
            _ => {
                let ways = [(one, Place::Clients), (Place::Clients, one)];
                net.change(|weather| weather.cut.extend(ways));
                tokio::time::sleep(Duration::from_millis(random.between(50, 1_000))).await;
                net.change(|weather| weather.cut.retain(|way| !ways.contains(way)));
                "clients cut off from a node"
            }
        };
        *counts.entry(name.to_owned()).or_default() += 1;
    }
    counts
}
