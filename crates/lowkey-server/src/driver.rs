//! Drives the replica: takes in, takes a turn, carries out. [`crate::turns`] says who does it when.
//!
//! One turn: drain the inbox, step, send what may leave before the disk, write and sync once for the
//! whole batch, send the rest, answer. While the disk syncs, the next batch gathers in the inbox.
//!
//! Nobody goes on after an error that leaves the disk in doubt, nor after a panic: a node that only half works is worse
//! than one that is gone.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lowkey_core::limits::TTL_SECONDS_MAX;
use lowkey_replica::{
    CallId, DiskRoom, Divergence, Fatal, Input, LogRecord, MILLISECOND, Nanos, Output, Persist, RecordKind,
    Replica, Role, Status, Turn,
};
use lowkey_wal::{Record, SealedError, Wal, WalError};

use crate::clock::Clock;
use crate::error::StartError;
use crate::housekeeper::{Jobs, Report};
use crate::inbox::{Answer, Asked, Batch, Event, Inbox};
use crate::metrics::ReplicaMetrics;
use crate::peers::Links;
use crate::snapshot_maker::SnapshotJobs;
use crate::storage::{SnapshotFiles, wal_record};
use crate::view::View;
use crate::watch::HubFeed;

const TICK_NANOS: u64 = 10 * MILLISECOND;
/// A tick that comes so late is worth a line in the log.
const STALL_NANOS: u64 = 250 * MILLISECOND;
/// Once so little of the last segment is left, it is kept for what `raft` itself must write.
const RESERVE_BYTES: u64 = 4 * 1024 * 1024;
/// How long to wait before the next segment is tried again.
const SEGMENT_PAUSE_NANOS: u64 = 500 * MILLISECOND;
/// How long to wait before a full disk is tried again.
const FULL_PAUSE: Duration = Duration::from_millis(500);

/// How long requests gather at most while entries of this leader are on their way. Where the way to the other nodes
/// takes longer than this, more than one batch is under way at a time.
const GATHER: Duration = Duration::from_millis(4);

/// Bytes of entries in one batch of the log; a segment holds twice as many.
const BATCH_BYTES: usize = 8 * 1024 * 1024;
/// What a record takes beside its payload, at most.
const RECORD_BYTES: usize = 64;

/// A sync that takes longer than this holds up the connections, if it is the runtime that waits for it.
const SLOW_SYNC: Duration = Duration::from_millis(2);
/// So many of them one after the other, and it is the disk that is slow, not a moment in which all else was busy.
const SLOW_SYNCS: u32 = 16;

/// Everything that is needed for it.
pub(crate) struct Driver {
    pub(crate) replica: Replica,
    pub(crate) wal: Wal,
    pub(crate) snapshot_files: SnapshotFiles,
    pub(crate) clock: Clock,
    pub(crate) inbox: Arc<Inbox>,
    pub(crate) jobs: Jobs,
    pub(crate) snapshot_jobs: SnapshotJobs,
    pub(crate) links: Links,
    pub(crate) view: Arc<View>,
    pub(crate) feed: HubFeed,
    pub(crate) metrics: ReplicaMetrics,
}

/// Where it is done.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// Among the connections, which must not wait long for the disk.
    Runtime,
    /// On a thread of its own, which may.
    Thread,
}

/// How far it went.
pub(crate) enum Progress {
    /// Nothing was due. Unless something comes to the inbox, nothing will be before the next tick, or before what gathers
    /// there has gathered for long enough.
    Nothing { tick: Instant, gathered: Option<Instant> },
    /// A batch was taken in.
    Batch,
    /// It cannot go on in this place.
    ForThread,
    /// The node is to stop.
    Stop,
}

pub(crate) struct Running {
    driver: Driver,
    calls: HashMap<CallId, Answer>,
    next_tick: Nanos,
    /// Until when the next requests may gather: for a while after the last ones were taken.
    gather_until: Option<Instant>,
    /// What the turn that was begun must save before it goes on, if there was no time for it.
    unsaved: Option<Persist>,
    /// How many syncs in a row were slow.
    slow_syncs: u32,
    /// After the next segment could not be made, it is not tried again before this.
    next_segment_try: Nanos,
    /// As the housekeeper last saw it.
    space_enough: bool,
    room: DiskRoom,
    /// Nothing was written since the last tick: a good time to tell the log that it is synced.
    idle: bool,
    /// What was committed before this start happened to an earlier one, which told of it.
    told_before: u64,
}

impl Running {
    pub(crate) fn new(mut driver: Driver) -> Self {
        let status = driver.view.status();
        driver.links.follow(&status);
        let told_before = status.committed;
        Self {
            next_tick: driver.clock.now().after(TICK_NANOS),
            driver,
            calls: HashMap::new(),
            gather_until: None,
            unsaved: None,
            slow_syncs: 0,
            next_segment_try: Nanos(0),
            space_enough: true,
            room: DiskRoom::Ample,
            idle: false,
            told_before,
        }
    }

    /// Puts the log in order.
    pub(crate) fn close(self) -> Result<(), StartError> {
        Ok(self.driver.wal.close()?)
    }

    /// Takes in what is due, and takes turns until the replica has no more to do.
    pub(crate) fn go_on(&mut self, place: Place) -> Result<Progress, StartError> {
        if place == Place::Runtime && (self.unsaved.is_some() || self.slow_syncs >= SLOW_SYNCS) {
            return Ok(Progress::ForThread);
        }
        let mut gathering = None;
        let mut is_batch = true;
        // In the middle of a turn the replica takes nothing in.
        if self.unsaved.is_none() {
            let gather_until = self.gather_until.filter(|_| self.driver.replica.is_committing());
            match self.driver.inbox.take(gather_until) {
                Some(batch) => {
                    if !batch.requests.is_empty() {
                        self.gather_until = Some(Instant::now() + GATHER);
                    }
                    if self.take_in(batch) {
                        return Ok(Progress::Stop);
                    }
                }
                None => {
                    is_batch = false;
                    gathering = gather_until;
                }
            }
            self.tick_if_due()?;
            self.watch_disk();
        }
        while self.unsaved.is_some() || self.driver.replica.has_work() {
            if !self.turn(place)? {
                return Ok(Progress::ForThread);
            }
        }
        if is_batch {
            return Ok(Progress::Batch);
        }
        let tick = self.driver.clock.instant(self.next_tick);
        Ok(Progress::Nothing { tick, gathered: still_to_come(gathering, Instant::now()) })
    }

    /// Takes in a batch; true if the node is to stop.
    fn take_in(&mut self, batch: Batch) -> bool {
        for event in batch.events {
            match event {
                Event::Replica(input) => {
                    match input {
                        Input::SnapshotSaved { .. } => _ = self.driver.metrics.snapshots_saved.inc(),
                        Input::SnapshotFailed { .. } => _ = self.driver.metrics.snapshots_failed.inc(),
                        _ => {}
                    }
                    self.step(input);
                }
                Event::CallerGone(call) => {
                    if self.calls.remove(&call).is_some() {
                        self.step(Input::CallerGone(call));
                    }
                }
                Event::Housekeeping(Report::Segment(made)) => {
                    if let Err(error) = &made
                        && self.driver.wal.has_spare()
                    {
                        tracing::error!(%error, "the next segment of the log cannot be made: no new leases and locks until there is space");
                    }
                    if made.is_err() {
                        self.next_segment_try = self.driver.clock.now().after(SEGMENT_PAUSE_NANOS);
                    }
                    self.driver.wal.segment_made(made);
                }
                Event::Housekeeping(Report::Space { enough }) => self.space_enough = enough,
                Event::PeerSeen(caller) => self.driver.links.seen(caller, &self.driver.view.status()),
                // Anybody can say that. It is believed of a node that this one was introduced to, as it then was.
                Event::RemovedSays(by) => {
                    let status = self.driver.view.status();
                    if status.members.iter().any(|known| known.member == by && known.node.identity.is_some())
                    {
                        self.removed();
                    }
                }
                Event::Removed => self.removed(),
                Event::Stop => return true,
            }
        }
        for said in batch.messages {
            self.step(said.into());
        }
        for asked in batch.requests {
            self.ask(asked);
        }
        false
    }

    fn ask(&mut self, asked: Asked) {
        let Asked { call, request, answer } = asked;
        // A caller that has gone before its turn came gets nothing done.
        if answer.is_closed() {
            return;
        }
        self.calls.insert(call, answer);
        self.step(Input::Request(call, request));
    }

    /// R2: the clock is read for every input by itself, after it has left the inbox.
    fn step(&mut self, input: Input) {
        let now = self.driver.clock.now();
        self.driver.replica.step(now, input);
    }

    fn tick_if_due(&mut self) -> Result<(), StartError> {
        let now = self.driver.clock.now();
        if now < self.next_tick {
            return Ok(());
        }
        let late_nanos = now.since(self.next_tick);
        if late_nanos > STALL_NANOS {
            let stalled_ms = late_nanos / MILLISECOND;
            self.driver.metrics.stalled(Duration::from_nanos(late_nanos));
            tracing::warn!(stalled_ms, "this node stood still; if it leads, leases are given the time back");
        }
        // Missed ticks are not made up for.
        self.next_tick = now.after(TICK_NANOS);
        self.driver.links.flush();
        self.step(Input::Tick);
        if std::mem::replace(&mut self.idle, true) {
            self.driver.wal.mark_synced()?;
        }
        self.publish();
        Ok(())
    }

    /// Makes sure that the next segment is being made, and tells the replica how much room there is.
    fn watch_disk(&mut self) {
        if self.driver.clock.now() >= self.next_segment_try
            && let Some(job) = self.driver.wal.segment_job()
        {
            // The housekeeper lives as long as this sender does.
            let _ = self.driver.jobs.send(job);
        }
        let room =
            match (self.driver.wal.has_spare() && self.space_enough, self.driver.wal.active_remaining()) {
                (true, _) => DiskRoom::Ample,
                (false, RESERVE_BYTES..) => DiskRoom::Reserve,
                (false, _) if self.driver.wal.has_spare() => DiskRoom::Reserve,
                (false, _) => DiskRoom::Exhausted,
            };
        if room != self.room {
            self.room = room;
            self.driver.metrics.disk_room(room);
            match room {
                DiskRoom::Ample => {
                    tracing::info!("the disk has room again: new leases and locks are granted")
                }
                DiskRoom::Reserve => tracing::error!(
                    "the disk is full: new leases and locks are refused (LIMIT_DISK), renewals and releases go on; free some space"
                ),
                DiskRoom::Exhausted => tracing::error!(
                    "the disk is full and the reserve is used up: all changes are refused; free some space"
                ),
            }
            self.step(Input::Disk(room));
        }
    }

    /// Takes a turn, or ends one; false if it must be ended elsewhere.
    fn turn(&mut self, place: Place) -> Result<bool, StartError> {
        let mut persist = match self.unsaved.take() {
            Some(unsaved) => unsaved,
            None => {
                let now = self.driver.clock.now();
                let Turn { output, persist } = self.driver.replica.begin_turn(now).map_err(fatal)?;
                self.carry_out(output);
                persist
            }
        };
        if !persist.is_empty() {
            self.idle = false;
            if !self.persist(&mut persist, place)? {
                self.unsaved = Some(persist);
                return Ok(false);
            }
        }
        let now = self.driver.clock.now();
        let mut output = self.driver.replica.end_turn(now).map_err(fatal)?;
        // First what others wait for.
        self.send(&mut output);
        // Before the replies: who has been told of something can see it in the status.
        self.publish();
        self.carry_out(output);
        Ok(true)
    }

    /// Saves what a turn must; false, and the rest is left, if it would take long and must not in this place.
    fn persist(&mut self, persist: &mut Persist, place: Place) -> Result<bool, StartError> {
        let mut told = false;
        if let Some(file) = &persist.snapshot {
            if place == Place::Runtime {
                return Ok(false);
            }
            while let Err(error) = self.driver.snapshot_files.save(file.index, &file.payload) {
                match error {
                    SealedError::Full { .. } => wait_for_space(&mut told),
                    error => return Err(error.into()),
                }
            }
            persist.snapshot = None;
        }
        let started = Instant::now();
        let mut record_count = 0;
        while !persist.records.is_empty() {
            let batch = batch_len(&persist.records);
            let records: Vec<Record> = persist.records[..batch].iter().map(wal_record).collect();
            let wal = &self.driver.wal;
            if place == Place::Runtime
                && !wal.spare_is_ready()
                && Wal::batch_bytes(&records) > wal.active_remaining()
            {
                return Ok(false);
            }
            while let Err(error) = self.driver.wal.append(&records) {
                match error {
                    WalError::Full if place == Place::Runtime => return Ok(false),
                    WalError::Full => wait_for_space(&mut told),
                    error => return Err(error.into()),
                }
            }
            persist.records.drain(..batch);
            record_count += batch;
        }
        let written = Instant::now();
        self.driver.wal.sync()?;
        self.driver.metrics.log_sync_duration.observe(written.elapsed().as_secs_f64());
        // To end a segment is a sync, too.
        self.slow_syncs = if started.elapsed() > SLOW_SYNC { self.slow_syncs.saturating_add(1) } else { 0 };
        self.driver.metrics.log_batch_records.observe(record_count as f64);
        Ok(true)
    }

    fn send(&mut self, output: &mut Output) {
        let (messages, reports) = (&mut output.messages, &mut output.reports);
        if !messages.is_empty() || !reports.is_empty() {
            self.driver.links.send(std::mem::take(messages), std::mem::take(reports));
        }
    }

    fn carry_out(&mut self, mut output: Output) {
        self.send(&mut output);
        if let Some(index) = output.history_lost {
            self.driver.feed.reset(index);
        }
        self.driver.metrics.applied_entries.inc_by(output.changes.len() as u64);
        for (revision, changes) in output.changes {
            self.driver.feed.applied(revision, changes);
        }
        for (call, answer) in output.replies {
            if let Some(caller) = self.calls.remove(&call) {
                // A caller that has gone needs no answer.
                let _ = caller.send(answer);
            }
        }
        if let Some(job) = output.snapshot {
            // That thread, too, lives as long as this sender does.
            let _ = self.driver.snapshot_jobs.send(job);
        }
    }

    fn publish(&mut self) {
        let before = self.driver.view.status();
        let status = self.driver.replica.status();
        if *before == status {
            return;
        }
        if (before.term, before.role, before.leader) != (status.term, status.role, status.leader) {
            self.driver.metrics.standing_changed(&before, &status);
            match status.role {
                Role::Leader => tracing::info!(term = status.term, "this node leads"),
                Role::Follower => {
                    let leader = status.leader.map(|leader| leader.0);
                    tracing::info!(term = status.term, leader, "this node follows");
                }
                Role::Candidate => tracing::info!(term = status.term, "this node looks for a leader"),
            }
        }
        if before.applied >= self.told_before {
            tell_of_members(&before, &status);
        }
        tell_of_divergence(before.divergence, status.divergence);
        tell_of_quarantine(&before, &status);
        // Who is linked to depends on nothing else.
        if before.leader != status.leader || !status.has_same_members(&before) {
            self.driver.links.follow(&status);
        }
        let is_removed = status.has_removed(status.member);
        self.driver.view.publish(status);
        if is_removed {
            self.removed();
        }
    }

    fn removed(&mut self) {
        if !self.driver.view.is_removed() {
            tracing::warn!(
                "this node was removed from its cluster: it answers NODE_REMOVED for a moment, then ends"
            );
            self.driver.view.set_removed();
        }
    }
}

/// What is over is nothing to wait for: who did would not wait at all, again and again.
fn still_to_come(moment: Option<Instant>, now: Instant) -> Option<Instant> {
    moment.filter(|moment| *moment > now)
}

/// How many of these records go into the log's next batch. It must fit into a segment, and one is cut only between
/// entries: whatever else there is stays with the hard state behind it.
fn batch_len(records: &[LogRecord]) -> usize {
    let mut bytes = 0;
    let is_next = |record: &LogRecord| {
        bytes += record.payload.len() + RECORD_BYTES;
        bytes > BATCH_BYTES && record.kind == RecordKind::Entry
    };
    // A single record is never larger than that.
    records.iter().position(is_next).unwrap_or(records.len()).max(1)
}

/// Nothing was written, so nothing is lost by trying again; and nothing else can be done meanwhile,
/// since what must be on disk before anything else is not. It is said once: the log may well go to the same disk.
fn wait_for_space(told: &mut bool) {
    if !std::mem::replace(told, true) {
        tracing::error!("the disk is full to the last byte: this node waits for space");
    }
    std::thread::sleep(FULL_PAUSE);
}

/// Says who came, who votes now, and who is gone.
fn tell_of_members(before: &Status, status: &Status) {
    for member in &status.members {
        let (number, name) = (member.member.0, &member.node.name);
        match before.members.iter().find(|known| known.member == member.member) {
            None => tracing::info!(member = number, node = %name, "a node joined"),
            Some(known) if member.voter && !known.voter => {
                tracing::info!(member = number, node = %name, "a node has caught up, and votes from now on");
            }
            Some(_) => {}
        }
    }
    for gone in before.members.iter().filter(|known| !status.members.iter().any(|m| m.member == known.member))
    {
        tracing::info!(member = gone.member.0, node = %gone.node.name, "a node was removed");
    }
}

/// Says that this node's state is in doubt, what that means, and when it is over.
fn tell_of_divergence(before: Option<Divergence>, divergence: Option<Divergence>) {
    match divergence {
        _ if before == divergence => {}
        Some(Divergence::Minority { index }) => tracing::error!(
            index,
            "this node's state differs from that of the majority: it stops serving, and takes a snapshot from the leader"
        ),
        Some(Divergence::NoMajority { index }) => tracing::error!(
            index,
            "the nodes' states differ, and no majority has the same: this node stops serving until one has"
        ),
        None => tracing::warn!("this node's state is that of the majority again: it serves"),
    }
}

/// Says why the node ends by itself.
pub(crate) fn tell_the_end(error: &StartError) {
    match error {
        // Only the mark of an orderly stop did not fit.
        StartError::Log(WalError::Full) => {}
        StartError::Log(WalError::Io { .. }) | StartError::Sealed(SealedError::Io { .. }) => tracing::error!(
            %error,
            "this node ends at once: after a write or sync that failed nobody knows what is on its disk; what was \
             acknowledged is on the disks of a majority; check this disk, then start the node again"
        ),
        _ => tracing::error!(%error, "this node ends by itself: it cannot go on"),
    }
}

/// Says when nothing is granted, and when it is again.
fn tell_of_quarantine(before: &Status, status: &Status) {
    match status.quarantine_ends {
        Some(ends) if before.quarantine_ends != Some(ends) => tracing::warn!(
            seconds = TTL_SECONDS_MAX,
            "this cluster was recovered after it lost its quorum: no lock is granted (RECOVERING) until all clients of before have stopped believing that they hold one"
        ),
        _ if before.quarantine && !status.quarantine => {
            tracing::info!("the time after the recovery is over: locks are granted");
        }
        _ => {}
    }
}

fn fatal(fatal: Fatal) -> StartError {
    StartError::Replica(fatal.to_string())
}

/// Ends the process if the thread that holds this, and that it names, panics.
pub(crate) struct EndOnPanic(pub(crate) &'static str);

impl Drop for EndOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            tracing::error!("{} panicked: the process ends, since a zombie must not serve", self.0);
            std::process::exit(70);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(kind: RecordKind, bytes: usize) -> LogRecord {
        LogRecord { kind, index: 1, payload: vec![0; bytes] }
    }

    #[test]
    fn nobody_waits_for_a_moment_that_is_over() {
        let now = Instant::now();
        let later = now + GATHER;
        assert_eq!(still_to_come(Some(later), now), Some(later));
        assert_eq!([Some(now), None].map(|moment| still_to_come(moment, later)), [None, None]);
    }

    #[test]
    fn more_records_than_fit_are_written_in_several_batches_and_the_hard_state_last() {
        let entry = || record(RecordKind::Entry, BATCH_BYTES / 3 - RECORD_BYTES);
        let small = record(RecordKind::HardState, 20);
        assert_eq!(batch_len(&[entry(), entry(), entry(), small.clone()]), 4);
        assert_eq!(batch_len(&[entry(), entry(), entry(), entry(), entry(), small.clone()]), 3);
        assert_eq!(batch_len(&[entry(), entry(), small.clone()]), 3);
        assert_eq!(batch_len(&[record(RecordKind::Entry, BATCH_BYTES + 1), small]), 1);
        let cut = record(RecordKind::Compaction, 8);
        let full = record(RecordKind::Entry, BATCH_BYTES - RECORD_BYTES);
        assert_eq!(batch_len(&[full, cut.clone(), cut]), 3, "only entries are left for the next");
    }
}
