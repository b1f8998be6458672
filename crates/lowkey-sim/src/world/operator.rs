//! Whoever runs the cluster: machines are added, removed and given the lead while everything else goes on.
//!
//! A new machine is given the next number, and asks to be let in until the log says that it is. A machine
//! that was removed ends when it learns of it: by what it applies itself, or from whoever it talks to. Some
//! are started again, with the disk that they had, and learn it once more.

use lowkey_core::{Caller, Command, MemberId, State};
use lowkey_replica::{CallId, Input, Request};

use super::{World, WorldEvent};
use crate::clock::SimClock;
use crate::invariants::Check;
use crate::node::{SimNode, node_info};
use crate::plan::{MILLISECOND, SECOND};

/// Machines that a world may ever have.
const MACHINES_MAX: usize = 12;
/// How often nodes look whether those who are connected are still members.
const KNOCK_INTERVAL: u64 = 500 * MILLISECOND;
/// How often a new machine asks to be let in.
const JOIN_INTERVAL: u64 = 300 * MILLISECOND;

impl World {
    /// Asks every machine for something, in every group; whoever leads does it. The answers are noted, and nobody waits.
    pub(crate) fn ask_all(&mut self, request: &Request) {
        for node in 0..self.nodes.len() {
            self.plan.groups().for_each(|group| self.ask_as_operator(node, group, request.clone()));
        }
    }

    pub(crate) fn ask_as_operator(&mut self, node: usize, group: usize, request: Request) {
        self.ask_by(node, group, Caller::Node, request);
    }

    /// Somebody asks a machine for something; its answer is noted.
    pub(crate) fn ask_by(&mut self, node: usize, group: usize, caller: Caller, request: Request) {
        let Some(process) = &mut self.nodes[node].process else { return };
        let lane = &mut process.lanes[group];
        lane.last_call += 1;
        let call = CallId(lane.last_call);
        self.groups[group].elections.asked(&request);
        self.input(node, group, Input::Request(call, caller, request));
    }

    /// The members as the first group has them. In worlds with more groups they are the same in all: nobody is added
    /// or removed once all have joined.
    fn register(&self) -> &State {
        self.groups[0].agreement.state()
    }

    pub(crate) fn remove_member(&mut self, member: u64) {
        self.trace.tell(self.now, || format!("n{member} is to be removed"));
        let request = Request::Command(Command::RemoveMember {
            name: node_info(member).name,
            member: Some(MemberId(member)),
        });
        self.ask_all(&request);
    }

    /// One wish of the operator.
    pub(crate) fn operate(&mut self) -> Check {
        let members: Vec<u64> = self.register().members().map(|(member, _)| member.0).collect();
        let member = *self.random.pick(&members);
        match self.random.between(0, 4) {
            // A cluster that only shrinks, or only grows, would soon have nothing left to show.
            0 | 1 if members.len() <= self.plan.replicas && self.nodes.len() < MACHINES_MAX => {
                self.add_machine()?
            }
            0 | 1 => self.remove_member(member),
            2 => self.remove_member(member),
            _ => {
                self.trace.tell(self.now, || format!("n{member} is to lead"));
                self.ask_all(&Request::Transfer { to: node_info(member).name });
            }
        }
        Ok(())
    }

    /// A new machine joins. One after the other: its number is the next that the log gives.
    fn add_machine(&mut self) -> Check {
        let (next, last) = (self.nodes.len() as u64 + 1, self.register().last_member().0);
        if last + 1 != next {
            return Ok(());
        }
        let skew = self.plan.faults.clock_skew_permille;
        let drift =
            if skew == 0 { 0 } else { self.random.between(0, 2 * skew * 1000) as i64 - skew as i64 * 1000 };
        let clock = SimClock::new(self.random.between(0, 1000 * SECOND), drift);
        let disk_seed = self.random.next();
        self.nodes.push(SimNode::new(&self.plan, next, clock, disk_seed));
        self.start_node(next as usize - 1)?;
        self.schedule(self.now, WorldEvent::Joins { member: next });
        Ok(())
    }

    /// A machine asks to be let in, until it is.
    pub(super) fn joins(&mut self, member: u64) {
        if self.register().last_member().0 >= member {
            return;
        }
        self.ask_to_join(member);
        let at = self.now + JOIN_INTERVAL;
        self.schedule(at, WorldEvent::Joins { member });
    }

    /// Machines that are members no longer are told so at whatever door they still stand, also if they have
    /// nothing to say: a learner is silent for as long as nobody speaks to it.
    pub(super) fn knock(&mut self) {
        let state = self.register();
        let is_gone = |node: &usize| {
            let member = MemberId(self.nodes[*node].member);
            member <= state.last_member() && state.member(member).is_none()
        };
        let gone: Vec<usize> = (0..self.nodes.len()).filter(is_gone).collect();
        for node in gone {
            let member = MemberId(self.nodes[node].member);
            let is_told = (0..self.nodes.len()).any(|door| {
                let is_open = !self.cut.contains(&(node, door)) && !self.cut.contains(&(door, node));
                let lane = self.nodes[door].running(0);
                door != node && is_open && lane.is_some_and(|lane| lane.replica.has_removed(member))
            });
            if is_told {
                self.tell_removed(node);
            }
        }
        let at = self.now + KNOCK_INTERVAL;
        self.schedule(at, WorldEvent::Knock);
    }

    /// A machine learns that it was removed; it answers for a moment, and ends.
    pub(super) fn tell_removed(&mut self, node: usize) {
        let machine = &mut self.nodes[node];
        if machine.process.is_none() || machine.told_removed == Some(machine.incarnation) {
            return;
        }
        machine.told_removed = Some(machine.incarnation);
        let (member, incarnation) = (machine.member, machine.incarnation);
        self.trace.tell(self.now, || format!("n{member} learns that it was removed"));
        let at = self.now + self.random.between(1, 500) * MILLISECOND;
        self.schedule(at, WorldEvent::Removed { node, incarnation });
    }

    /// A machine that was removed ends.
    pub(super) fn removed(&mut self, node: usize, incarnation: u64) {
        if self.nodes[node].incarnation != incarnation || self.nodes[node].process.is_none() {
            return;
        }
        self.reset_connections(node);
        self.nodes[node].crash(false);
        self.nodes[node].removed = true;
        // Somebody does not know, and starts it again.
        if self.quiet_since.is_none() && self.stage.is_none() && self.random.one_in(2) {
            let at = self.now + self.random.between(0, 5 * SECOND);
            self.schedule(at, WorldEvent::Restart { node });
        }
    }
}
