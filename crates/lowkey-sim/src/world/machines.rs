//! How the machines of a world run: as the server's own loop does, with the disk in between.

use lowkey_core::{MemberId, mutants};
use lowkey_replica::{Input, MessageType, Output, Role, wire};
use lowkey_wal::SimDisk;

use super::{Event, GROUP, TICK_NANOS, World};
use crate::invariants::{
    Check, Committed, Violation, is_right, no_leader_drops_itself, only_the_drifted_stop,
};
use crate::node::{StartProblem, load_snapshot};
use crate::plan::{MILLISECOND, SECOND};
use crate::words;

impl World {
    pub(crate) fn start_node(&mut self, node: usize) -> Check {
        let seed = self.random.next();
        let started = self.nodes[node].start(&self.plan, seed, self.now);
        let member = self.nodes[node].member;
        match started {
            Ok(()) => {
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

    pub(crate) fn input(&mut self, node: usize, input: Input) {
        if let Some(process) = &mut self.nodes[node].process {
            process.inbox.push_back(input);
            self.wake_node(node, self.now);
        }
    }

    pub(super) fn wake_node(&mut self, node: usize, at: u64) {
        let at = at.max(self.nodes[node].paused_until).max(self.now);
        if self.nodes[node].wakes_at.is_none_or(|wakes_at| wakes_at > at) {
            self.nodes[node].wakes_at = Some(at);
            let incarnation = self.nodes[node].incarnation;
            self.schedule(at, Event::NodeWakes { node, incarnation });
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
        // While the disk is busy the next batch gathers.
        if process.syncing {
            return Ok(());
        }
        process.take_in(local);
        if self.now >= process.next_tick {
            process.next_tick = self.now + machine.clock.true_span(TICK_NANOS);
            process.replica.step(local, Input::Tick);
        }
        self.take_turns(node)
    }

    /// Takes turns until there is nothing to do, or until one waits for the disk.
    pub(super) fn take_turns(&mut self, node: usize) -> Check {
        loop {
            let machine = &mut self.nodes[node];
            let local = machine.now(self.now);
            let Some(process) = &mut machine.process else { return Ok(()) };
            if !process.replica.has_work() {
                let next_tick = process.next_tick;
                self.wake_node(node, next_tick);
                return Ok(());
            }
            let (output, waits) = match process.begin_turn(&machine.disk, local) {
                Ok(begun) => begun,
                Err(what) => return self.disk_failed(node, what),
            };
            self.observe(node)?;
            self.carry_out(node, output)?;
            if waits && mutants::is_active("reply before sync") {
                self.end_turn(node)?;
            }
            if waits {
                let took = self.random.between(50_000, 600_000);
                let done = (self.now + took).max(self.nodes[node].stalled_until);
                let incarnation = self.nodes[node].incarnation;
                self.schedule(done, Event::DiskSynced { node, incarnation });
                self.strike_if_doomed(node, took);
                return Ok(());
            }
            self.end_turn(node)?;
        }
    }

    pub(super) fn disk_synced(&mut self, node: usize) -> Check {
        let paused_until = self.nodes[node].paused_until;
        if self.now < paused_until {
            let incarnation = self.nodes[node].incarnation;
            self.schedule(paused_until, Event::DiskSynced { node, incarnation });
            return Ok(());
        }
        let process = self.nodes[node].process.as_mut().expect("the caller looked");
        if let Err(what) = process.sync() {
            return self.disk_failed(node, what);
        }
        self.end_turn(node)?;
        self.wake_node(node, self.now);
        Ok(())
    }

    pub(super) fn end_turn(&mut self, node: usize) -> Check {
        let machine = &mut self.nodes[node];
        let local = machine.now(self.now);
        let process = machine.process.as_mut().expect("the caller looked");
        let output = process.end_turn(local).map_err(|what| self.ended(node, what))?;
        self.observe(node)?;
        self.carry_out(node, output)
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
    pub(super) fn observe(&mut self, node: usize) -> Check {
        let member = self.nodes[node].member;
        let process = self.nodes[node].process.as_mut().expect("the caller looked");
        let divergence = process.replica.divergence();
        // Whoever stopped with cause goes on when it has heard that there is none any more.
        if std::mem::replace(&mut process.seen_divergence, divergence) != divergence {
            only_the_drifted_stop(&self.nodes, node)?;
        }
        let process = self.nodes[node].process.as_mut().expect("the caller looked");
        let standing = process.replica.standing();
        let before = std::mem::replace(&mut process.seen_standing, standing);
        if standing != before {
            if let (term, Role::Leader, _) = standing {
                self.agreement.leads(member, term)?;
            }
            if let Some(change) = words::standing_words(before, standing) {
                self.trace.tell(self.now, || format!("n{member} {change}"));
            }
        }
        let applied = process.replica.state().revision();
        let seen = std::mem::replace(&mut process.seen_applied, applied);
        if self.nodes[node].drifted {
            self.nodes[node].drifted = !is_right(&self.nodes[node], &self.agreement);
        }
        if applied == seen {
            return Ok(());
        }
        // What a snapshot jumped over is not in the log; the state itself is compared below.
        let process = self.nodes[node].process.as_ref().expect("the caller looked");
        let indexes: Vec<u64> = process.entries.range(seen + 1..=applied).map(|(index, _)| *index).collect();
        for index in indexes {
            let process = self.nodes[node].process.as_ref().expect("the caller looked");
            let payload = &process.entries[&index];
            let committed = self.agreement.applied(member, index, payload)?;
            self.ledger.reach(self.agreement.state().revision());
            if let Some(committed) = committed {
                self.entry_committed(member, &committed)?;
            }
        }
        let replica = &self.nodes[node].process.as_ref().expect("the caller looked").replica;
        if replica.has_removed(MemberId(member)) {
            self.tell_removed(node);
        }
        let state = self.nodes[node].process.as_ref().expect("the caller looked").replica.state();
        if self.nodes[node].drifted {
            return Ok(());
        }
        self.agreement.compare(member, state)?;
        self.tokens.compare(member, &self.agreement, state.last_token(), state.revision())
    }

    /// An entry was applied that nobody had applied before.
    fn entry_committed(&mut self, member: u64, committed: &Committed) -> Check {
        self.trace.tell(self.now, || {
            let what = words::command_words(&committed.command);
            let came = words::outcome_words(&committed.applied.reply);
            format!("entry {} is committed, says n{member}: {what}: {came}", committed.index)
        });
        for handed in words::handed_over(committed) {
            self.trace.tell(self.now, || handed);
        }
        self.tokens.committed(committed)?;
        self.requests.committed(committed)?;
        self.acknowledged.committed(committed, &self.ledger);
        self.ledger.follow(committed, self.agreement.state(), self.now)?;
        self.waits.committed(committed, &self.ledger, self.now);
        self.elections.committed(committed, &self.ledger, &self.plan)?;
        self.watches.committed(committed);
        self.expiry.committed(committed, &self.clients, self.now)?;
        if let Some(stage) = &mut self.stage {
            stage.committed(committed, self.now);
        }
        Ok(())
    }

    pub(super) fn carry_out(&mut self, node: usize, mut output: Output) -> Check {
        let process = self.nodes[node].process.as_mut().expect("the caller looked");
        process.remember(&mut output);
        for message in output.messages {
            self.agreement.sent(self.nodes[node].incarnation, &message)?;
            let process = self.nodes[node].process.as_ref().expect("the caller looked");
            no_leader_drops_itself(&process.replica, &message)?;
            let Some(to) = (message.to as usize).checked_sub(1).filter(|to| *to < self.nodes.len()) else {
                continue;
            };
            let is_snapshot = message.get_msg_type() == MessageType::MsgSnapshot;
            let index = message.get_snapshot().get_metadata().index;
            let snapshot = is_snapshot.then(|| load_snapshot(&self.nodes[node].disk, index)).transpose();
            let snapshot = snapshot.map_err(|what| self.ended(node, what))?;
            let bytes = wire::encode_message(GROUP, message);
            let arrives = self.send(node, to, bytes, snapshot);
            if is_snapshot {
                let (incarnation, member) = (self.nodes[node].incarnation, to as u64 + 1);
                let at = self.now + 20 * MILLISECOND;
                self.schedule(
                    at,
                    Event::SnapshotSent { from: node, incarnation, to: member, delivered: arrives },
                );
            }
        }
        for report in output.reports {
            let Some(to) = (report.to.0 as usize).checked_sub(1).filter(|to| *to < self.nodes.len()) else {
                continue;
            };
            self.send(node, to, wire::encode_report(GROUP, report), None);
        }
        for (call, answer) in output.replies {
            let process = self.nodes[node].process.as_mut().expect("a process that answers is there");
            let Some(call) = process.calls.remove(&call) else {
                // Nobody's but the operator's.
                self.operator_heard.push((node, answer));
                continue;
            };
            if let Some(request) = &call.request {
                self.waits.answered(request, &answer, self.now)?;
            }
            self.deliver_answer(&call, node, answer);
        }
        if self.quiet_since.is_some_and(|since| self.now > since + 3 * SECOND) {
            let process = self.nodes[node].process.as_ref().expect("a process that answers is there");
            for call in process.calls.values() {
                let Some(request) = &call.request else { continue };
                self.waits.is_told(request, call.asked_at, self.now)?;
            }
        }
        if let Some(job) = output.snapshot {
            let at = self.now + self.random.between(1, 200) * MILLISECOND;
            let incarnation = self.nodes[node].incarnation;
            self.schedule(at, Event::SnapshotWritten { node, incarnation, job });
        }
        Ok(())
    }
}
