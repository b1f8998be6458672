//! What breaks, when, and for how long.

use std::collections::BTreeSet;

use lowkey_replica::Input;

use crate::client::SimClient;
use crate::invariants::Check;
use crate::node::{Doom, Lane, StartProblem};
use crate::plan::{MILLISECOND, SECOND};
use crate::words::{cut_words, span_words};
use crate::world::{World, WorldEvent};

/// Something breaks, or is mended.
#[derive(Clone, Debug)]
pub(crate) enum Fault {
    Partition,
    Heal,
    Crash,
    CrashAll,
    Pause,
    ClientPause,
    ClientMute,
    ClientCrash,
    Stall,
    /// Machines get too little of their processors for a while.
    Starve,
    /// A sync of a machine's disk fails, and ends the process.
    SyncFailure,
    Transfer,
    /// Whoever runs the cluster adds or removes a machine, or names one to lead.
    Operator,
    /// A machine that is doomed meets its end.
    Strike(usize),
}

impl World {
    /// Sets every kind of fault that this world has on its way.
    pub(crate) fn begin_faults(&mut self) {
        for fault in [
            Fault::Partition,
            Fault::Crash,
            Fault::CrashAll,
            Fault::Pause,
            Fault::ClientPause,
            Fault::ClientMute,
            Fault::ClientCrash,
            Fault::Stall,
            Fault::SyncFailure,
            Fault::Transfer,
            Fault::Operator,
            Fault::Starve,
        ] {
            self.schedule_fault(fault);
        }
    }

    fn schedule_fault(&mut self, fault: Fault) {
        let mean = match fault {
            Fault::Partition => self.faults.partition_nanos,
            Fault::Crash => self.faults.crash_nanos,
            Fault::CrashAll => self.faults.crash_all_nanos,
            Fault::Pause => self.faults.pause_nanos,
            Fault::ClientPause => self.faults.client_pause_nanos,
            Fault::ClientCrash => self.faults.client_crash_nanos,
            Fault::Stall => self.faults.stall_nanos,
            Fault::Starve => self.faults.starve_nanos,
            Fault::SyncFailure => self.faults.sync_failure_nanos,
            Fault::Transfer => self.faults.transfer_nanos,
            Fault::ClientMute => self.faults.client_mute_nanos,
            // Members come and go in every group by itself: a machine would be gone from one, and vote in another.
            Fault::Operator if self.plan.groups > 1 => 0,
            Fault::Operator => self.faults.operator_nanos,
            Fault::Heal | Fault::Strike(_) => 0,
        };
        if mean > 0 {
            let at = self.now + self.random.span(mean);
            self.schedule(at, WorldEvent::Fault(fault));
        }
    }

    pub(crate) fn make_fault(&mut self, fault: Fault) -> Check {
        if self.quiet_since.is_some() {
            return Ok(());
        }
        self.schedule_fault(fault.clone());
        self.fault_count += 1;
        let node = self.random.next() as usize % self.nodes.len();
        let client = self.random.next() as usize % self.clients.len();
        match fault {
            Fault::Partition => self.partition(),
            Fault::Heal => {
                self.fault_count -= 1;
                self.cut.clear();
                self.client_cut.clear();
                self.trace.tell(self.now, || "the network is whole again".to_owned());
            }
            Fault::Crash => {
                let doomed = &mut self.nodes[node];
                let terms = doomed.terms();
                match self.random.between(0, 3) {
                    0 => return self.crash(node),
                    1 => doomed.doom = Some(Doom::Write),
                    _ => doomed.doom = Some(Doom::Term(terms)),
                }
            }
            Fault::Strike(node) => {
                self.fault_count -= 1;
                self.crash(node)?;
                // An election goes on without it: it may be back before that is over.
                if self.nodes[node].process.is_none() && !self.nodes[node].refused && self.random.one_in(2) {
                    return self.start_node(node);
                }
            }
            Fault::CrashAll => {
                for node in 0..self.nodes.len() {
                    self.crash(node)?;
                }
            }
            Fault::Pause => {
                let span = self.pause_span();
                self.nodes[node].paused_until = self.now + span;
                self.trace.tell(self.now, || format!("n{} is paused for {}", node + 1, span_words(span)));
            }
            Fault::ClientPause => {
                let span = self.pause_span();
                self.clients[client].paused_until = self.now + span;
                let owner = self.clients[client].owner.clone();
                self.trace.tell(self.now, || format!("{owner} is paused for {}", span_words(span)));
            }
            Fault::ClientMute => {
                let span = self.random.between(500, 8_000) * MILLISECOND;
                for client in 0..self.clients.len() {
                    if self.random.one_in(2) {
                        self.clients[client].muted_until = self.now + span;
                    }
                }
                self.trace.tell(self.now, || {
                    format!("what half of the clients send is lost for {} ms", span / MILLISECOND)
                });
            }
            Fault::ClientCrash => self.crash_client(client),
            Fault::Stall => {
                let span = self.random.between(10, 1_500) * MILLISECOND;
                self.nodes[node].stalled_until = self.now + span;
                self.trace
                    .tell(self.now, || format!("the disk of n{} stalls for {}", node + 1, span_words(span)));
            }
            Fault::Starve => self.starve(node),
            Fault::SyncFailure => {
                if self.nodes[node].process.is_some() {
                    let n = self.random.between(1, 3);
                    self.nodes[node].fail_sync(n);
                }
            }
            Fault::Operator => return self.operate(),
            Fault::Transfer => {
                self.trace.tell(self.now, || "the lead is asked to move".to_owned());
                for node in 0..self.nodes.len() {
                    self.plan.groups().for_each(|group| self.input(node, group, Input::HandOver));
                }
            }
        }
        Ok(())
    }

    /// One machine is starved, or all are, as if they were one.
    fn starve(&mut self, one: usize) {
        let span = self.random.between(1_000, 20_000) * MILLISECOND;
        let late_max = *self.random.pick(&[50, 150, 400]) * MILLISECOND;
        let all = self.random.one_in(2);
        for (number, node) in self.nodes.iter_mut().enumerate().filter(|(number, _)| all || *number == one) {
            (node.starved_until, node.starved_max_nanos) = (self.now + span, late_max);
            self.trace.tell(self.now, || {
                format!("n{} is late by up to {} for {}", number + 1, span_words(late_max), span_words(span))
            });
        }
    }

    /// Short, about a time to live, or several of them.
    fn pause_span(&mut self) -> u64 {
        let longest = *self.random.pick(&[10, 300, 2_000, 10_000]);
        self.random.between(1, longest) * MILLISECOND
    }

    fn partition(&mut self) {
        let count = self.nodes.len();
        self.cut.clear();
        self.client_cut.clear();
        let mut one = self.random.next() as usize % count;
        if self.random.one_in(2) {
            one = self.leader().unwrap_or(one);
        }
        let shape = *self.random.pick(&[
            "symmetric",
            "one-way out",
            "one-way in",
            "ring",
            "star",
            "partial",
            "clients",
            "zombie",
            "scattered",
        ]);
        let pairs =
            (0..count).flat_map(|from| (0..count).map(move |to| (from, to))).filter(|(from, to)| from != to);
        let side: BTreeSet<usize> = (0..count).filter(|_| self.random.one_in(2)).collect();
        self.cut = match shape {
            "symmetric" => pairs.filter(|(from, to)| side.contains(from) != side.contains(to)).collect(),
            "one-way out" => pairs.filter(|(from, _)| *from == one).collect(),
            "one-way in" => pairs.filter(|(_, to)| *to == one).collect(),
            "ring" => {
                pairs.filter(|(from, to)| (from + 1) % count != *to && (to + 1) % count != *from).collect()
            }
            "star" => pairs.filter(|(from, to)| *from != one && *to != one).collect(),
            "partial" => {
                let other = (one + 1) % count;
                pairs.filter(|pair| *pair == (one, other) || *pair == (other, one)).collect()
            }
            // Alone, and asleep while the others elect a leader: it wakes up and believes to lead.
            "zombie" => {
                self.nodes[one].paused_until = self.now + self.random.between(200, 1_500) * MILLISECOND;
                pairs.filter(|(from, to)| *from == one || *to == one).collect()
            }
            "scattered" => pairs.filter(|_| self.random.one_in(2)).collect(),
            _ => BTreeSet::new(),
        };
        if shape == "clients" || self.random.one_in(3) {
            self.client_cut = (0..self.clients.len())
                .filter(|_| self.random.one_in(2))
                .map(|client| (client, one))
                .collect();
        }
        let span = self.random.between(100, 8_000) * MILLISECOND;
        self.trace.tell(self.now, || {
            format!("the network breaks for {}: {}", span_words(span), cut_words(&self.cut))
        });
        let at = self.now + span;
        self.schedule(at, WorldEvent::Fault(Fault::Heal));
    }

    fn leader(&self) -> Option<usize> {
        let leads = |lane: &Lane| lane.replica.standing().2;
        self.nodes
            .iter()
            .position(|node| node.process.as_ref().is_some_and(|process| process.lanes.iter().any(leads)))
    }

    /// A machine writes: if it is doomed, it crashes before the disk is done, or soon after.
    pub(crate) fn strike_if_doomed(&mut self, node: usize, sync_nanos: u64) {
        let terms = self.nodes[node].terms();
        let strikes = match self.nodes[node].doom {
            None => false,
            Some(Doom::Write) => true,
            Some(Doom::Term(last)) => terms > last,
        };
        if strikes {
            self.nodes[node].doom = None;
            let longest = *self.random.pick(&[sync_nanos, 2 * sync_nanos, 50 * MILLISECOND]);
            let at = self.now + self.random.between(0, longest);
            self.schedule(at, WorldEvent::Fault(Fault::Strike(node)));
        }
    }

    /// The founder crashes while another node joins, at any moment or in the middle of a write.
    pub(crate) fn disturb_founder(&mut self, joins: u64) -> Check {
        for _ in 0..self.random.between(1, 4) {
            // The new one hears little at first, so that the founder is without it for a while.
            let span = self.random.between(1, 500) * MILLISECOND;
            self.nodes[joins as usize - 1].paused_until = self.now + span;
            self.ask_to_join(joins);
            let until = self.now + self.random.between(1, 300) * MILLISECOND;
            self.run_until(until)?;
            self.crash(0)?;
            if self.nodes[0].process.is_none() && !self.nodes[0].refused {
                self.start_node(0)?;
                self.nodes[0].doom = Some(Doom::Write);
            }
            let until = self.now + self.random.between(1, 300) * MILLISECOND;
            self.run_until(until)?;
        }
        Ok(())
    }

    fn crash(&mut self, node: usize) -> Check {
        if self.nodes[node].process.is_none() {
            return Ok(());
        }
        let power_is_lost = self.random.one_in(2);
        // A machine without power does not even close its connections.
        if !power_is_lost {
            self.reset_connections(node);
        }
        self.nodes[node].crash(power_is_lost);
        self.nodes[node].paused_until = 0;
        let span = if self.random.one_in(3) { 0 } else { self.random.between(0, 5 * SECOND) };
        self.trace.tell(self.now, || {
            let how = if power_is_lost { "loses power" } else { "is killed" };
            format!("n{} {how}, and is back in {}", node + 1, span_words(span))
        });
        let may_be_damaged = self.faults.damage && self.nodes.iter().all(|node| !node.refused);
        if may_be_damaged && self.random.one_in(4) {
            self.damage(node);
        }
        let at = self.now + span;
        self.schedule(at, WorldEvent::Restart { node });
        Ok(())
    }

    /// A process has ended because its disk failed a sync. The machine is up, and the next process reads from its page
    /// cache; sometimes that has forgotten, and sometimes the disk fails again.
    pub(crate) fn ended_by_failed_sync(&mut self, node: usize) {
        self.reset_connections(node);
        self.nodes[node].crash(false);
        if self.random.one_in(3) {
            self.nodes[node].disk.evict();
        }
        if self.quiet_since.is_none() && self.random.one_in(4) {
            let n = self.random.between(1, 3);
            self.nodes[node].fail_sync(n);
        }
        let span = self.random.between(0, 2 * SECOND);
        self.trace.tell(self.now, || {
            format!("a sync of n{} fails, its process ends, and is back in {}", node + 1, span_words(span))
        });
        let at = self.now + span;
        self.schedule(at, WorldEvent::Restart { node });
    }

    /// Flips a byte of a log that is not in use. Where the damage is in what is known to be synced,
    /// the node must refuse to start; it stays away then, as a machine with a broken disk does.
    fn damage(&mut self, node: usize) {
        let names = self.nodes[node].disk.as_disk().list().unwrap_or_default();
        let segments: Vec<String> = names.into_iter().filter(|name| name.starts_with("segment-")).collect();
        let Some(name) = segments.first() else { return };
        let used = self.nodes[node]
            .disk
            .content(name)
            .map_or(0, |bytes| bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1));
        if used == 0 {
            return;
        }
        let offset = self.random.next() % used as u64;
        let damaged = self.nodes[node].disk.fork();
        damaged.flip(name, offset, 1 << (self.random.next() % 8));
        let whole = std::mem::replace(&mut self.nodes[node].disk, damaged);
        match self.nodes[node].start(&self.plan, 0, self.now) {
            Err(StartProblem::Log(error)) => {
                self.trace.tell(self.now, || format!("n{} refuses its damaged log: {error}", node + 1));
                self.nodes[node].refused = true;
            }
            // The last batch, which cannot be told from a torn one: no machine is asked to.
            Ok(()) | Err(StartProblem::Other(_)) => {
                self.nodes[node].process = None;
                self.nodes[node].disk = whole;
            }
        }
    }

    fn crash_client(&mut self, client: usize) {
        let (life, clock) = (self.clients[client].life + 1, self.clients[client].clock);
        let owner = self.clients[client].owner.clone();
        self.trace.tell(self.now, || format!("{owner} crashes"));
        self.leave_all(client);
        self.clients[client] =
            SimClient::new(client, self.plan.group_of(client), life, clock, self.now, &mut self.random);
        self.wake_client(client);
    }
}
