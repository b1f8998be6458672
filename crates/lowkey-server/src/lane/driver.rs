//! Drives a lane: takes input from the inbox, takes a turn of the replica, carries out the result.
//! [`crate::lane::turns`] decides which thread does it, and when.
//!
//! One turn:
//!
//! 1. Drain the inbox.
//! 2. Step the replica.
//! 3. Send what may leave before the disk write.
//! 4. Write and sync once for the whole batch (group commit).
//! 5. Send the rest, and answer callers.
//!
//! While the disk syncs, the next batch gathers in the inbox.
//!
//! The node stops after an error that leaves the disk in doubt, and after a panic: a node that only half
//! works is worse than one that is gone.

mod telling;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use lowkey_core::GroupId;
use lowkey_replica::{CallId, DiskRoom, Fatal, Input, MILLISECOND, Nanos, Output, Persist, Replica, Turn};
use lowkey_wal::SealedError;

pub(crate) use telling::tell_the_end;
use telling::{tell_of_divergence, tell_of_members, tell_of_quarantine, tell_of_standing, tell_of_timing};

use crate::audit::Audit;
use crate::error::StartError;
use crate::host::Host;
use crate::host::log::{Shortage, Ticket};
use crate::lane::Lane;
use crate::lane::inbox::{Answer, Asked, Batch, Event};
use crate::lane::snapshot_maker::SnapshotJobs;
use crate::watch::HubFeed;

const TICK_NANOS: u64 = 10 * MILLISECOND;
/// A tick that comes this late is worth a line in the log.
const STALL_NANOS: u64 = 250 * MILLISECOND;

/// The longest time that requests gather while entries of this leader are on their way. If the other nodes
/// are further away than this, more than one batch is under way at a time.
const GATHER: Duration = Duration::from_millis(4);

/// Everything that is needed to drive a lane.
pub(crate) struct Driver {
    pub(crate) host: Arc<Host>,
    pub(crate) lane: Arc<Lane>,
    pub(crate) replica: Replica,
    pub(crate) snapshot_jobs: SnapshotJobs,
    pub(crate) feed: HubFeed,
    /// What is kept of grants that are over goes in here.
    pub(crate) audit: Option<Arc<Audit>>,
}

/// Where the driver runs.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// On the runtime, beside the connections, which must not wait long for the disk.
    Runtime,
    /// On a thread of its own, which may wait.
    Thread,
}

/// How far the driver got.
pub(crate) enum Progress {
    /// Nothing was due. Unless something new comes to the inbox, nothing will be due before the next tick,
    /// or before the requests there have gathered for long enough.
    Nothing { tick: Instant, gathered: Option<Instant> },
    /// A batch was taken in.
    Batch,
    /// The driver cannot go on in this place.
    ForThread,
    /// The node must stop.
    Stop,
}

pub(crate) struct Running {
    driver: Driver,
    calls: HashMap<CallId, Answer>,
    next_tick: Nanos,
    /// Until when the next requests may gather: for a while after the last ones were taken.
    gather_until: Option<Instant>,
    /// What the current turn must save before it goes on, if there was no time for it yet.
    unsaved: Option<Unsaved>,
    room: DiskRoom,
    /// Entries up to here were committed before this start. An earlier run applied them and told of them.
    told_before: u64,
}

/// What a turn must have on disk before it goes on.
enum Unsaved {
    /// All of it. The file of a snapshot must be there before a record says so.
    All(Persist),
    /// Records that were given to the log.
    Records(Ticket),
}

impl Running {
    pub(crate) fn new(driver: Driver) -> Self {
        let status = driver.lane.view.status();
        let told_before = status.committed;
        let running = Self {
            next_tick: driver.host.clock.now().after(TICK_NANOS),
            driver,
            calls: HashMap::new(),
            gather_until: None,
            unsaved: None,
            room: DiskRoom::Ample,
            told_before,
        };
        if running.is_root() {
            running.driver.host.links().follow(&status);
        }
        running
    }

    /// The root's lane also does what is done once per node. It keeps the connections to the members,
    /// because the members are in the root's state. It also ticks the log.
    fn is_root(&self) -> bool {
        self.driver.lane.group == GroupId::ROOT
    }

    /// Takes in what is due, and takes turns until the replica has no more to do.
    pub(crate) fn go_on(&mut self, place: Place) -> Result<Progress, StartError> {
        if place == Place::Runtime && (self.unsaved.is_some() || self.driver.host.log.is_slow()) {
            return Ok(Progress::ForThread);
        }
        let mut gathering = None;
        let mut is_batch = true;
        // In the middle of a turn the replica takes nothing in.
        if self.unsaved.is_none() {
            let gather_until = self.gather_until.filter(|_| self.driver.replica.is_committing());
            match self.driver.lane.inbox.take(gather_until) {
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
            // Heartbeats must not wait until everything is done.
            self.tick_if_due()?;
        }
        if is_batch {
            return Ok(Progress::Batch);
        }
        let tick = self.driver.host.clock.instant(self.next_tick);
        Ok(Progress::Nothing { tick, gathered: still_to_come(gathering, Instant::now()) })
    }

    /// Takes in a batch. Returns true if the node must stop.
    fn take_in(&mut self, batch: Batch) -> bool {
        for event in batch.events {
            match event {
                Event::Replica(input) => {
                    match input {
                        Input::SnapshotSaved { .. } => _ = self.driver.host.metrics.snapshots_saved.inc(),
                        Input::SnapshotFailed { .. } => _ = self.driver.host.metrics.snapshots_failed.inc(),
                        _ => {}
                    }
                    self.step(input);
                }
                Event::CallerGone(call) => {
                    if self.calls.remove(&call).is_some() {
                        self.step(Input::CallerGone(call));
                    }
                }
                Event::PeerSeen(caller) => {
                    let status = self.driver.lane.view.status();
                    self.driver.host.links().seen(caller, &status);
                }
                // Anyone can claim that. Believe it only from a node that was introduced to this one, as it
                // then was.
                Event::RemovedSays(by) => {
                    let status = self.driver.lane.view.status();
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
        let Asked { call, caller, request, answer } = asked;
        // If the caller left before its turn came, nothing is done for it.
        if answer.is_closed() {
            return;
        }
        self.calls.insert(call, answer);
        self.step(Input::Request(call, caller, request));
    }

    /// R2: read the clock for each input separately, after the input has left the inbox.
    fn step(&mut self, input: Input) {
        let now = self.driver.host.clock.now();
        self.driver.replica.step(now, input);
    }

    fn tick_if_due(&mut self) -> Result<(), StartError> {
        let now = self.driver.host.clock.now();
        if now < self.next_tick {
            return Ok(());
        }
        let late_nanos = now.since(self.next_tick);
        if late_nanos > STALL_NANOS {
            let stalled_ms = late_nanos / MILLISECOND;
            self.driver.host.metrics.stalled(Duration::from_nanos(late_nanos));
            tracing::warn!(stalled_ms, "this node stood still; if it leads, leases are given the time back");
        }
        // Missed ticks are not made up for.
        self.next_tick = now.after(TICK_NANOS);
        if self.is_root() {
            self.driver.host.links().flush();
        }
        self.step(Input::Tick);
        if self.is_root() {
            self.driver.host.log.tick()?;
        }
        self.publish();
        Ok(())
    }

    /// Tells the replica how much room the log has.
    fn watch_disk(&mut self) {
        if let Some(room) = self.driver.host.log.watch()
            && room != self.room
        {
            self.room = room;
            self.step(Input::Disk(room));
        }
    }

    /// Takes a turn, or finishes one. Returns false if the turn must be finished elsewhere.
    fn turn(&mut self, place: Place) -> Result<bool, StartError> {
        if self.unsaved.is_none() {
            let now = self.driver.host.clock.now();
            let Turn { output, persist } = self.driver.replica.begin_turn(now).map_err(fatal)?;
            self.carry_out(output);
            self.unsaved = (!persist.is_empty()).then_some(Unsaved::All(persist));
        }
        if !self.save(place)? {
            return Ok(false);
        }
        let now = self.driver.host.clock.now();
        let mut output = self.driver.replica.end_turn(now).map_err(fatal)?;
        // Send first: other nodes wait for this.
        self.send(&mut output);
        // Publish before the replies: a caller that was told of something must see it in the status.
        self.publish();
        self.carry_out(output);
        Ok(true)
    }

    /// Saves what a turn must save. Returns false, and leaves the rest, if that would take long and must
    /// not in this place.
    fn save(&mut self, place: Place) -> Result<bool, StartError> {
        let host = &self.driver.host;
        let ticket = match self.unsaved.take() {
            None => return Ok(true),
            Some(Unsaved::Records(ticket)) => ticket,
            Some(Unsaved::All(Persist { snapshot: None, records })) => host.log.put(records),
            Some(unsaved) if place == Place::Runtime => {
                self.unsaved = Some(unsaved);
                return Ok(false);
            }
            Some(Unsaved::All(Persist { snapshot: Some(file), records })) => {
                let mut told = None;
                while let Err(error) = self.driver.lane.snapshot_files.save(file.index, &file.payload) {
                    let shortage = match error {
                        SealedError::Full { .. } => Shortage::Space,
                        SealedError::NoDescriptors { .. } => Shortage::Descriptors,
                        error => return Err(error.into()),
                    };
                    shortage.wait(&mut told);
                }
                host.log.put(records)
            }
        };
        let is_saved = host.log.save(ticket, place)?;
        if !is_saved {
            self.unsaved = Some(Unsaved::Records(ticket));
        }
        Ok(is_saved)
    }

    fn send(&mut self, output: &mut Output) {
        let (messages, reports) = (&mut output.messages, &mut output.reports);
        if !messages.is_empty() || !reports.is_empty() {
            let (messages, reports) = (std::mem::take(messages), std::mem::take(reports));
            self.driver.host.links().send(&self.driver.lane, messages, reports);
        }
    }

    fn carry_out(&mut self, mut output: Output) {
        self.send(&mut output);
        if let Some(index) = output.history_lost {
            self.driver.feed.reset(index);
        }
        if let Some(audit) = &self.driver.audit {
            audit.applied(&mut output);
        }
        self.driver.host.metrics.late_renewals.inc_by(output.late_renewals);
        self.driver.host.metrics.applied_entries.inc_by(output.changes.len() as u64);
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
        let before = self.driver.lane.view.status();
        let status = self.driver.replica.status();
        if *before == status {
            return;
        }
        if (before.term, before.role, before.leader) != (status.term, status.role, status.leader) {
            self.driver.host.metrics.standing_changed(&before, &status);
            tell_of_standing(&status);
            if let Some(audit) = &self.driver.audit {
                audit.standing_changed(&before, &status);
            }
        }
        if before.timing_factor != status.timing_factor {
            tell_of_timing(&status);
        }
        if before.applied >= self.told_before {
            tell_of_members(&before, &status);
            if let Some(audit) = &self.driver.audit {
                audit.members_changed(&before, &status);
            }
        }
        tell_of_divergence(before.divergence, status.divergence);
        tell_of_quarantine(&before, &status);
        // The set of links depends on nothing but the leader and the members.
        if self.is_root() && (before.leader != status.leader || !status.has_same_members(&before)) {
            self.driver.host.links().follow(&status);
        }
        let is_removed = status.has_removed(status.member);
        self.driver.lane.view.publish(status);
        if is_removed {
            self.removed();
        }
    }

    fn removed(&mut self) {
        if !self.driver.lane.view.is_removed() {
            tracing::warn!(
                "this node was removed from its cluster: it answers NODE_REMOVED for a moment, then ends"
            );
            self.driver.lane.view.set_removed();
        }
    }
}

/// Drops deadlines that have passed: waiting for one would spin.
fn still_to_come(moment: Option<Instant>, now: Instant) -> Option<Instant> {
    moment.filter(|moment| *moment > now)
}

fn fatal(fatal: Fatal) -> StartError {
    StartError::Replica(fatal.to_string())
}

/// Ends the process if the thread that holds this panics. The text names that thread.
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

    #[test]
    fn nobody_waits_for_a_moment_that_is_over() {
        let now = Instant::now();
        let later = now + GATHER;
        assert_eq!(still_to_come(Some(later), now), Some(later));
        assert_eq!([Some(now), None].map(|moment| still_to_come(moment, later)), [None, None]);
    }
}
