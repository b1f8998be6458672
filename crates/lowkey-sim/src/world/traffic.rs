//! What travels between machines and clients, and what the clients of a world do.

use std::collections::BTreeMap;

use lowkey_core::{Caller, Command, Reply, RequestId, Token};
use lowkey_replica::{
    CallId, Failure, Input, ReceivedSnapshot, Request, Response,
    wire::{self, Said},
};

use super::{World, WorldEvent};
use crate::client::{ClientOutcome, Send, command_of, wait_of};
use crate::invariants::{Check, Violation, Write, mutual_exclusion, one_leader};
use crate::node::{SimCall, group_number};
use crate::plan::MILLISECOND;
use crate::words;

impl World {
    pub(super) fn delay(&mut self) -> u64 {
        if self.stage.is_some() {
            return MILLISECOND;
        }
        let usual = self.random.between(MILLISECOND / 10, self.faults.delay_max_nanos.max(MILLISECOND));
        let late = self.random.one_in(self.faults.late_one_in);
        if late { usual * self.random.between(2, 30) } else { usual }
    }

    /// Sends a message; true if it will arrive.
    pub(super) fn send(&mut self, from: usize, to: usize, bytes: Vec<u8>, snapshot: Option<Vec<u8>>) -> bool {
        if self.cut.contains(&(from, to)) || self.random.one_in(self.faults.loss_one_in) {
            return false;
        }
        if let Some(stage) = &mut self.stage
            && stage.keeps_back(from, to, &bytes, snapshot.as_deref())
        {
            return true;
        }
        if self.random.one_in(self.faults.duplicate_one_in) {
            let at = self.now + self.delay();
            self.schedule(
                at,
                WorldEvent::Message { from, to, bytes: bytes.clone(), snapshot: snapshot.clone() },
            );
        }
        let at = self.now + self.delay();
        self.schedule(at, WorldEvent::Message { from, to, bytes, snapshot });
        true
    }

    pub(super) fn message_arrives(
        &mut self,
        from: usize,
        to: usize,
        bytes: &[u8],
        snapshot: Option<Vec<u8>>,
    ) {
        // A cut is also felt by what is under way.
        if self.cut.contains(&(from, to)) {
            return;
        }
        let Ok((group, said)) = wire::decode(bytes) else { return };
        // A message for a group that is not there makes none.
        let Some(group) = group_number(group).filter(|group| *group < self.plan.groups) else { return };
        let addressee = self.nodes[to].running(group);
        // As at a real node's door: who was removed is told so, and nothing else, if the way back is open.
        if addressee.is_some_and(|lane| lane.replica.has_removed(said.from())) {
            if !self.cut.contains(&(to, from)) {
                self.tell_removed(from);
            }
            return;
        }
        match (said, snapshot) {
            (Said::Message(message), Some(payload)) => {
                if let Ok(received) = ReceivedSnapshot::read(message, payload) {
                    self.input(to, group, Input::Snapshot(Box::new(received)));
                }
            }
            (said, _) => self.input(to, group, said.into()),
        }
    }

    pub(super) fn request_arrives(
        &mut self,
        client: usize,
        life: u64,
        operation: u64,
        node: usize,
        request: Request,
    ) {
        if self.client_cut.contains(&(client, node)) || self.clients[client].life != life {
            return;
        }
        let wait_nanos = wait_of(&request).map_or(0, |wait| wait.nanos());
        let (request_id, asked_at) = (id_of(&request), self.now);
        let caller = SimCall { client, life, operation, request: request_id, asked_at, wait_nanos };
        let Some(process) = &mut self.nodes[node].process else {
            // Nobody listens where a machine was removed: that is noticed at once.
            if self.nodes[node].removed {
                self.deliver_answer(&caller, node, Err(Failure::NotLeader { leader: None }));
            }
            return;
        };
        let group = self.clients[client].group;
        let lane = &mut process.lanes[group];
        lane.last_call += 1;
        let call = CallId(lane.last_call);
        lane.calls.insert(call, caller);
        self.input(node, group, Input::Request(call, Caller::Node, request));
    }

    pub(super) fn deliver_answer(&mut self, call: &SimCall, node: usize, answer: Result<Response, Failure>) {
        let SimCall { client, life, operation, .. } = *call;
        if self.client_cut.contains(&(client, node)) || self.random.one_in(self.faults.loss_one_in) {
            return;
        }
        let mut at = (self.now + self.delay()).max(self.clients[client].paused_until);
        if self.now < self.clients[client].muted_until {
            at += self.random.between(0, 2_000) * MILLISECOND;
        }
        let event = WorldEvent::Answer { client, life, operation, node, answer: Box::new(answer) };
        match &mut self.stage {
            Some(stage) if stage.keeps_answers_of(client) => stage.kept_answers.push(event),
            _ => self.schedule(at, event),
        }
    }

    pub(crate) fn wake_client(&mut self, client: usize) {
        let it = &self.clients[client];
        let at = it.clock.when(it.next_wake()).max(it.paused_until).max(self.now + 1);
        if it.wakes_at.is_none_or(|wakes_at| wakes_at > at) {
            let life = it.life;
            self.clients[client].wakes_at = Some(at);
            self.schedule(at, WorldEvent::ClientWakes { client, life });
        }
    }

    pub(super) fn run_client(&mut self, client: usize) -> Check {
        if self.now < self.clients[client].paused_until {
            self.wake_client(client);
            return Ok(());
        }
        if let Some(lease) = self.clients[client].lease
            && !self.clients[client].lapsed
            && !self.clients[client].counts_on(lease.id, self.now)
        {
            let owner = &self.clients[client].owner;
            self.trace.tell(self.now, || {
                format!("{owner} no longer counts on lease {}, by its own clock", lease.id)
            });
        }
        let sends = self.clients[client].act(self.now, &self.plan, &mut self.random);
        for send in sends {
            let (node, operation, request, again) = match send {
                Send::Leave { node, operation } => {
                    self.leave(client, operation, node % self.nodes.len());
                    continue;
                }
                Send::Request { node, operation, request, again } => {
                    (node % self.nodes.len(), operation, request, again)
                }
            };
            if again {
                let owner = &self.clients[client].owner;
                let what = words::request_words;
                self.trace
                    .tell(self.now, || format!("{owner} asks n{} again to {}", node + 1, what(&request)));
            }
            self.request_leaves(client, operation, node, request);
        }
        self.write_if_holding(client)?;
        self.wake_client(client);
        Ok(())
    }

    pub(crate) fn request_leaves(&mut self, client: usize, operation: u64, node: usize, request: Request) {
        self.groups[self.clients[client].group].elections.asked(&request);
        if self.now < self.clients[client].muted_until || self.random.one_in(self.faults.loss_one_in) {
            return;
        }
        let life = self.clients[client].life;
        if self.random.one_in(self.faults.duplicate_one_in) {
            // A copy may come when all is forgotten.
            let (at, request) = (self.now + self.delay() * self.random.between(1, 100), request.clone());
            self.schedule(at, WorldEvent::Request { client, life, operation, node, request, is_copy: true });
        }
        let at = self.now + self.delay();
        self.schedule(at, WorldEvent::Request { client, life, operation, node, request, is_copy: false });
    }

    /// A client drops a call: the node notices, unless nothing gets through.
    pub(crate) fn leave(&mut self, client: usize, operation: u64, node: usize) {
        let (life, at) = (self.clients[client].life, self.now + self.delay());
        self.schedule(at, WorldEvent::Leave { client, life, operation, node });
    }

    pub(super) fn caller_leaves(&mut self, client: usize, life: u64, operation: u64, node: usize) {
        if self.client_cut.contains(&(client, node)) {
            return;
        }
        let Some(process) = &mut self.nodes[node].process else { return };
        let is_it = |call: &SimCall| (call.client, call.life, call.operation) == (client, life, operation);
        let group = self.clients[client].group;
        let calls = &mut process.lanes[group].calls;
        let gone: Vec<CallId> = calls.extract_if(.., |_, call| is_it(call)).map(|(id, _)| id).collect();
        for call in gone {
            self.input(node, group, Input::CallerGone(call));
        }
    }

    /// A client is gone, and with it all its connections.
    pub(crate) fn leave_all(&mut self, client: usize) {
        let life = self.clients[client].life;
        for node in 0..self.nodes.len() {
            let Some(lane) = self.nodes[node].running(self.clients[client].group) else { continue };
            let calls = lane.calls.values().filter(|call| (call.client, call.life) == (client, life));
            for operation in calls.map(|call| call.operation).collect::<Vec<_>>() {
                self.leave(client, operation, node);
            }
        }
    }

    /// A process is gone, and those who waited for it notice that their connections are.
    pub(crate) fn reset_connections(&mut self, node: usize) {
        let Some(process) = &mut self.nodes[node].process else { return };
        let calls = process.lanes.iter_mut().map(|lane| std::mem::take(&mut lane.calls));
        for call in calls.flat_map(BTreeMap::into_values).collect::<Vec<_>>() {
            self.deliver_answer(&call, node, Err(Failure::OutcomeUnknown));
        }
    }

    /// A holder uses what it holds: at once, or with a write that takes its time.
    pub(super) fn write_if_holding(&mut self, client: usize) -> Check {
        if !self.clients[client].believes_at(self.now) {
            return Ok(());
        }
        let holds: Vec<_> = self.clients[client].beliefs_at(self.now).collect();
        let (hold, claim) = self.random.pick(&holds);
        let covered: Vec<_> = self.plan.names.iter().filter(|name| claim.covers(name)).collect();
        let to = if covered.is_empty() { hold.lock.clone() } else { (*self.random.pick(&covered)).clone() };
        let lease = claim.lease.expect("whoever believes has a lease");
        let write = Write { to, lock: hold.lock.clone(), lease, token: hold.token, mode: hold.mode };
        let group = self.clients[client].group;
        if self.random.one_in(2) {
            let checks = &mut self.groups[group];
            checks.tokens.told(&write.lock, write.token)?;
            return checks.fencing.write_in_belief(&write);
        }
        let at = self.now + self.delay() * self.random.between(1, 100);
        self.schedule(at, WorldEvent::Write { group, write });
        Ok(())
    }

    pub(super) fn answer_arrives(
        &mut self,
        client: usize,
        life: u64,
        operation: u64,
        node: usize,
        answer: Result<Response, Failure>,
    ) -> Check {
        if self.client_cut.contains(&(client, node)) || self.clients[client].life != life {
            return Ok(());
        }
        if self.now < self.clients[client].paused_until {
            let at = self.clients[client].paused_until;
            self.schedule(at, WorldEvent::Answer { client, life, operation, node, answer: Box::new(answer) });
            return Ok(());
        }
        if let Some(stage) = &mut self.stage {
            stage.heard(client, operation, &answer);
        }
        if self.trace.is_wanted()
            && let Some(request) = self.clients[client].awaits(operation)
        {
            let owner = &self.clients[client].owner;
            self.trace.tell(self.now, || {
                let (what, told) = (words::request_words(&request), words::answer_words(&answer));
                format!("{owner} asked n{} to {what}, and is told: {told}", node + 1)
            });
        }
        let outcome = self.clients[client].answered(operation, answer, self.now, &mut self.random);
        let (owner, group) = (self.clients[client].owner.clone(), self.clients[client].group);
        let checks = &mut self.groups[group];
        match outcome {
            ClientOutcome::Nothing => {}
            ClientOutcome::Renewed { lease } => {
                checks.expiry.renewed(lease, self.now);
                checks.acknowledged.count += 1;
                mutual_exclusion(&self.clients, client, self.now)?;
            }
            ClientOutcome::HoldsLost { tokens } => {
                let is_held =
                    |token: &&Token| checks.ledger.holders().iter().any(|held| held.token == **token);
                if let Some(token) = tokens.iter().find(is_held) {
                    let what = format!("{owner} was told that it lost token {token}, and holds it");
                    return Err(Violation { invariant: "beliefs", what });
                }
            }
            ClientOutcome::LeaseLost { lease, believed } => {
                checks.expiry.lost(&owner, lease, believed)?;
            }
            ClientOutcome::Ended { operation, answer } => {
                if self.quiet_since.is_some() {
                    self.clients[client].done_in_quiet += 1;
                }
                if let (
                    Ok(
                        Response::Applied(Reply::Granted { token, .. })
                        | Response::GrantedAfter { reply: Reply::Granted { token, .. }, .. },
                    ),
                    Some(Command::Acquire { lock, .. }),
                ) = (&answer, command_of(&operation.request))
                {
                    checks.tokens.told(lock, *token)?;
                }
                if let Ok(response) = &answer {
                    checks.elections.told(response)?;
                }
                checks.acknowledged.answered(&operation, &answer, &checks.ledger, self.now)?;
                mutual_exclusion(&self.clients, client, self.now)?;
                one_leader(self.clients.iter().filter(|client| client.group == group), &self.plan, self.now)?;
            }
        }
        self.wake_client(client);
        Ok(())
    }
}

/// The id of a request, if it has one.
fn id_of(request: &Request) -> Option<RequestId> {
    match command_of(request)? {
        Command::CreateLease { request, .. }
        | Command::RevokeLease { request, .. }
        | Command::Acquire { request, .. }
        | Command::Release { request, .. }
        | Command::SetValue { request, .. } => Some(request.clone()),
        Command::CancelWait { .. }
        | Command::Expire { .. }
        | Command::EndHolds { .. }
        | Command::AddMember { .. }
        | Command::UpdateMember { .. }
        | Command::RemoveMember { .. }
        | Command::EndQuarantine
        | Command::Invite { .. }
        | Command::Access(_)
        | Command::Groups(_)
        | Command::SetBackupSchedule(_) => None,
    }
}
