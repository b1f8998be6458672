//! How the machines of a world run: as the server's own loop does, with the disk in between.

use lowkey_core::{MemberId, mutants};
use lowkey_replica::{Input, MessageType, Output, Role, SnapshotJob, may_save_snapshot, wire};
use lowkey_wal::SimDisk;

use super::{Checks, TICK_NANOS, World, WorldEvent};
use crate::invariants::{
    Check, Committed, Violation, audit, broken, is_right, no_leader_drops_itself, only_the_drifted_stop,
};
use crate::node::{Saving, StartProblem, group_id, load_snapshot, write_snapshot};
use crate::plan::{MILLISECOND, SECOND, WorldPlan};
use crate::words;

impl World {
    pub(crate) fn start_node(&mut self, node: usize) -> Check {
        let seed = self.random.next();
        let started = self.nodes[node].start(&self.plan, seed, self.now);
        let member = self.nodes[node].member;
        match started {
            Ok(()) => {
                self.begin_audits(node)?;
                self.trace.tell(self.now, || format!("n{member} starts"));
                self.wake_node(node, self.now);
                Ok(())
            }
            Err(problem) => {
                let what = match problem {
                    StartProblem::Log(error) => error.to_string(),
                    StartProblem::Other(what) => what,
                };
                if what.contains(SimDisk::TOLD_TO_FAIL) {
                    self.ended_by_failed_sync(node);
                    return Ok(());
                }
                Check::Err(Violation {
                    invariant: "recovery",
                    what: format!("n{member} does not start: {what}"),
                })
            }
        }
    }

    /// What was applied before a start is in the audit, or a snapshot of the leader took its place.
    fn begin_audits(&mut self, node: usize) -> Check {
        for group in self.plan.groups() {
            let revision = self.nodes[node].lane(group).replica.state().revision();
            if let Some((after, through)) = self.nodes[node].audits[group].begin(revision) {
                let member = self.nodes[node].member;
                return broken(
                    audit::NAME,
                    format!("after a crash n{member} knows nothing of what ended in {after}..={through}"),
                );
            }
        }
        Ok(())
    }

    /// Has all that was applied recorded.
    pub(super) fn write_audits(&mut self, node: usize) {
        let machine = &mut self.nodes[node];
        let lanes = machine.process.iter_mut().flat_map(|process| &mut process.lanes);
        for (lane, audit) in lanes.zip(&mut machine.audits) {
            audit.write(&mut lane.audit);
        }
    }

    /// A snapshot was made. It is saved when the audit is durable through its index; until then it waits.
    pub(super) fn snapshot_written(&mut self, node: usize, group: usize, job: SnapshotJob) -> Check {
        let machine = &mut self.nodes[node];
        let process = machine.process.as_mut().expect("the caller looked");
        let (audit, queue) = (&mut machine.audits[group], &mut process.lanes[group].audit);
        // The recorder is a thread of its own: a disk that is busy with the log does not hold it up.
        if queue.wants_sync {
            audit.write(queue);
        }
        if !may_save_snapshot(job.index(), Some(audit.durable()), 0, false) {
            queue.wants_sync = true;
            let incarnation = machine.incarnation;
            let at = self.now + 20 * MILLISECOND;
            self.schedule(at, WorldEvent::SnapshotWritten { node, incarnation, group, job });
            return Ok(());
        }
        let written = write_snapshot(&machine.disk, group, job);
        let input = written.map_err(|what| self.ended(node, what))?;
        self.input(node, group, input);
        Ok(())
    }

    pub(crate) fn input(&mut self, node: usize, group: usize, input: Input) {
        if let Some(process) = &mut self.nodes[node].process {
            process.lanes[group].inbox.push_back(input);
            self.wake_node(node, self.now);
        }
    }

    pub(super) fn wake_node(&mut self, node: usize, at: u64) {
        let mut at = at.max(self.nodes[node].paused_until).max(self.now);
        if at < self.nodes[node].starved_until {
            // Who waits for its processor already waits no shorter for having more to do.
            if self.nodes[node].wakes_at.is_some() {
                return;
            }
            at += self.random.between(0, self.nodes[node].starved_max_nanos);
        }
        if self.nodes[node].wakes_at.is_none_or(|wakes_at| wakes_at > at) {
            self.nodes[node].wakes_at = Some(at);
            let incarnation = self.nodes[node].incarnation;
            self.schedule(at, WorldEvent::NodeWakes { node, incarnation });
        }
    }

    pub(super) fn run_node(&mut self, node: usize) -> Check {
        let machine = &mut self.nodes[node];
        if self.now < machine.paused_until {
            let until = machine.paused_until;
            self.wake_node(node, until);
            return Ok(());
        }
        let local = machine.now(self.now);
        let Some(process) = &mut machine.process else { return Ok(()) };
        // While the disk is busy with what a lane saves, its next batch gathers.
        let lanes = process.lanes.iter_mut().zip(&mut machine.audits);
        for (lane, audit) in lanes.filter(|(lane, _)| lane.saving == Saving::Nothing) {
            lane.take_in(local);
            if self.now >= lane.next_tick {
                lane.next_tick = self.now + machine.clock.true_span(TICK_NANOS);
                lane.replica.step(local, Input::Tick);
                if lane.audit.ticks() {
                    audit.write(&mut lane.audit);
                }
            }
        }
        for group in self.plan.groups() {
            self.take_turns(node, group)?;
        }
        self.write_log(node)?;
        let lanes = self.nodes[node].process.iter().flat_map(|process| &process.lanes);
        let free = lanes.filter(|lane| lane.saving == Saving::Nothing);
        if let Some(next_tick) = free.map(|lane| lane.next_tick).min() {
            self.wake_node(node, next_tick);
        }
        Ok(())
    }

    /// Takes turns of a group until there is nothing to do, or until one waits for the disk.
    fn take_turns(&mut self, node: usize, group: usize) -> Check {
        loop {
            let machine = &mut self.nodes[node];
            let local = machine.now(self.now);
            let Some(process) = &mut machine.process else { return Ok(()) };
            let lane = &mut process.lanes[group];
            if lane.saving != Saving::Nothing || !lane.replica.has_work() {
                return Ok(());
            }
            let output = match lane.begin_turn(group, &machine.disk, &mut machine.audits[group], local) {
                Ok(begun) => begun,
                Err(what) => return self.disk_failed(node, what),
            };
            let waits = lane.saving != Saving::Nothing;
            self.observe(node, group)?;
            self.carry_out(node, group, output)?;
            if !waits || mutants::REPLY_BEFORE_SYNC.is_active() {
                self.end_turn(node, group)?;
            }
        }
    }

    /// Writes what waits to be saved, if the disk is free; what comes meanwhile waits for the next time.
    fn write_log(&mut self, node: usize) -> Check {
        let Some(process) = &mut self.nodes[node].process else { return Ok(()) };
        let has_written = match process.write() {
            Ok(has_written) => has_written,
            Err(what) => return self.disk_failed(node, what),
        };
        if has_written {
            let took = self.random.between(50_000, 600_000);
            let done = (self.now + took).max(self.nodes[node].stalled_until);
            let incarnation = self.nodes[node].incarnation;
            self.schedule(done, WorldEvent::DiskSynced { node, incarnation });
            self.strike_if_doomed(node, took);
        }
        Ok(())
    }

    pub(super) fn disk_synced(&mut self, node: usize) -> Check {
        let paused_until = self.nodes[node].paused_until;
        if self.now < paused_until {
            let incarnation = self.nodes[node].incarnation;
            self.schedule(paused_until, WorldEvent::DiskSynced { node, incarnation });
            return Ok(());
        }
        let process = self.nodes[node].process.as_mut().expect("the caller looked");
        let synced = match process.sync() {
            Ok(synced) => synced,
            Err(what) => return self.disk_failed(node, what),
        };
        for group in synced {
            self.end_turn(node, group)?;
        }
        self.write_log(node)?;
        self.wake_node(node, self.now);
        Ok(())
    }

    fn end_turn(&mut self, node: usize, group: usize) -> Check {
        let machine = &mut self.nodes[node];
        let local = machine.now(self.now);
        let process = machine.process.as_mut().expect("the caller looked");
        let output = process.lanes[group].end_turn(local).map_err(|what| self.ended(node, what))?;
        self.observe(node, group)?;
        self.carry_out(node, group, output)
    }

    /// A process could not write, and ended. It may, if a sync was told to fail.
    fn disk_failed(&mut self, node: usize, what: String) -> Check {
        if !what.contains(SimDisk::TOLD_TO_FAIL) {
            return Err(self.ended(node, what));
        }
        self.ended_by_failed_sync(node);
        Ok(())
    }

    pub(super) fn ended(&self, node: usize, what: String) -> Violation {
        Violation { invariant: "recovery", what: format!("n{} had to end: {what}", self.nodes[node].member) }
    }

    /// Looks at what a replica did: whom it follows, what it applied.
    fn observe(&mut self, node: usize, group: usize) -> Check {
        let member = self.nodes[node].member;
        let lane = self.nodes[node].lane_mut(group);
        let divergence = lane.replica.divergence();
        // Whoever stopped with cause goes on when it has heard that there is none any more.
        if std::mem::replace(&mut lane.seen_divergence, divergence) != divergence {
            only_the_drifted_stop(&self.nodes, node, group)?;
        }
        let lane = self.nodes[node].lane_mut(group);
        let standing = lane.replica.standing();
        let before = std::mem::replace(&mut lane.seen_standing, standing);
        if standing != before {
            if let (term, Role::Leader, _) = standing {
                self.groups[group].agreement.leads(member, term)?;
            }
            if let Some(change) = words::standing_words(before, standing) {
                let of_group = of_group(&self.plan, group);
                self.trace.tell(self.now, || format!("{of_group}n{member} {change}"));
            }
        }
        let applied = lane.replica.state().revision();
        let seen = std::mem::replace(&mut lane.seen_applied, applied);
        if self.nodes[node].drifted {
            self.nodes[node].drifted = !is_right(&self.nodes[node], group, &self.groups[group].agreement);
        }
        if applied == seen {
            return Ok(());
        }
        // What a snapshot jumped over is not in the log; the state itself is compared below.
        let lane = self.nodes[node].lane(group);
        let indexes: Vec<u64> = lane.entries.range(seen + 1..=applied).map(|(index, _)| *index).collect();
        for index in indexes {
            let Checks { agreement, ledger, .. } = &mut self.groups[group];
            let committed =
                agreement.applied(member, index, &self.nodes[node].lane(group).entries[&index])?;
            ledger.reach(agreement.state().revision());
            if let Some(committed) = committed {
                self.entry_committed(member, group, &committed)?;
            }
        }
        let replica = &self.nodes[node].lane(group).replica;
        if replica.has_removed(MemberId(member)) {
            self.tell_removed(node);
        }
        let state = self.nodes[node].lane(group).replica.state();
        if self.nodes[node].drifted {
            return Ok(());
        }
        let Checks { agreement, tokens, .. } = &self.groups[group];
        agreement.compare(member, state)?;
        tokens.compare(member, agreement, state.last_token(), state.revision())
    }

    /// An entry was applied that nobody had applied before.
    fn entry_committed(&mut self, member: u64, group: usize, committed: &Committed) -> Check {
        let of_group = of_group(&self.plan, group);
        self.trace.tell(self.now, || {
            let what = words::command_words(&committed.command);
            let came = words::outcome_words(&committed.applied.reply);
            format!("{of_group}entry {} is committed, says n{member}: {what}: {came}", committed.index)
        });
        for handed in words::handed_over(committed) {
            self.trace.tell(self.now, || format!("{of_group}{handed}"));
        }
        let checks = &mut self.groups[group];
        checks.tokens.committed(committed)?;
        checks.audit.committed(committed)?;
        checks.requests.committed(committed)?;
        checks.acknowledged.committed(committed, &checks.ledger);
        checks.ledger.follow(committed, checks.agreement.state(), self.now)?;
        checks.waits.committed(committed, &checks.ledger, self.now);
        checks.elections.committed(committed, &checks.ledger, &self.plan)?;
        checks.watches.committed(committed);
        let clients = self.clients.iter().filter(|client| client.group == group);
        checks.expiry.committed(committed, clients.clone(), self.now)?;
        checks.holds.committed(committed, clients, self.now)?;
        if let Some(stage) = &mut self.stage {
            stage.committed(committed, self.now);
        }
        Ok(())
    }

    fn carry_out(&mut self, node: usize, group: usize, mut output: Output) -> Check {
        if self.nodes[node].drifted {
            self.nodes[node].audits[group].is_tainted = true;
        }
        self.nodes[node].lane_mut(group).remember(&mut output);
        for message in output.messages {
            self.groups[group].agreement.sent(self.nodes[node].incarnation, &message)?;
            no_leader_drops_itself(&self.nodes[node].lane(group).replica, &message)?;
            let Some(to) = (message.to as usize).checked_sub(1).filter(|to| *to < self.nodes.len()) else {
                continue;
            };
            let is_snapshot = message.get_msg_type() == MessageType::MsgSnapshot;
            let index = message.get_snapshot().get_metadata().index;
            let snapshot =
                is_snapshot.then(|| load_snapshot(&self.nodes[node].disk, group, index)).transpose();
            let snapshot = snapshot.map_err(|what| self.ended(node, what))?;
            let bytes = wire::encode_message(group_id(group), message);
            let arrives = self.send(node, to, bytes, snapshot);
            if is_snapshot {
                let (incarnation, member) = (self.nodes[node].incarnation, to as u64 + 1);
                let at = self.now + 20 * MILLISECOND;
                let (from, to, delivered) = (node, member, arrives);
                self.schedule(at, WorldEvent::SnapshotSent { from, incarnation, group, to, delivered });
            }
        }
        for report in output.reports {
            let Some(to) = (report.to.0 as usize).checked_sub(1).filter(|to| *to < self.nodes.len()) else {
                continue;
            };
            self.send(node, to, wire::encode_report(group_id(group), report), None);
        }
        for (call, answer) in output.replies {
            let Some(call) = self.nodes[node].lane_mut(group).calls.remove(&call) else {
                // Nobody's but the operator's.
                self.operator_heard.push((node, answer));
                continue;
            };
            if let Some(request) = &call.request {
                self.groups[group].waits.answered(request, &answer, self.now)?;
            }
            self.deliver_answer(&call, node, answer);
        }
        if self.quiet_since.is_some_and(|since| self.now > since + 3 * self.plan.patience() * SECOND) {
            for call in self.nodes[node].lane(group).calls.values() {
                let Some(request) = &call.request else { continue };
                self.groups[group].waits.is_told(request, call.asked_at, self.now)?;
            }
        }
        if let Some(job) = output.snapshot {
            let at = self.now + self.random.between(1, 200) * MILLISECOND;
            let incarnation = self.nodes[node].incarnation;
            self.schedule(at, WorldEvent::SnapshotWritten { node, incarnation, group, job });
        }
        Ok(())
    }
}

/// How a line of the story begins, where there is more than one group.
fn of_group(plan: &WorldPlan, group: usize) -> String {
    if plan.groups > 1 { format!("group {}: ", group_id(group)) } else { String::new() }
}
