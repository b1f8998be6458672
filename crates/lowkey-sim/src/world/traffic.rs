//! What travels between machines and clients, and what the clients of a world do.

use lowkey_core::{Command, Refusal, Reply};
use lowkey_replica::{CallId, Failure, Input, Request, Response, wire};

use super::{Event, World};
use crate::client::Outcome;
use crate::invariants::{Check, mutual_exclusion};
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
    pub(super) fn send(&mut self, from: usize, to: usize, bytes: Vec<u8>) -> bool {
        if self.cut.contains(&(from, to)) || self.random.one_in(self.faults.loss_one_in) {
            return false;
        }
        if let Some(stage) = &mut self.stage
            && stage.keeps_back(from, to, &bytes)
        {
            return true;
        }
        if self.random.one_in(self.faults.duplicate_one_in) {
            let at = self.now + self.delay();
            self.schedule(at, Event::Message { from, to, bytes: bytes.clone() });
        }
        let at = self.now + self.delay();
        self.schedule(at, Event::Message { from, to, bytes });
        true
    }

    pub(super) fn message_arrives(&mut self, from: usize, to: usize, bytes: &[u8]) {
        // A cut is also felt by what is under way.
        if self.cut.contains(&(from, to)) {
            return;
        }
        if let Ok((_, message)) = wire::decode_message(bytes) {
            self.input(to, Input::Message(Box::new(message)));
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
        let Some(process) = &mut self.nodes[node].process else { return };
        process.last_call += 1;
        let call = CallId(process.last_call);
        process.calls.insert(call, (client, life, operation));
        self.input(node, Input::Request(call, request));
    }

    pub(super) fn deliver_answer(
        &mut self,
        client: usize,
        life: u64,
        operation: u64,
        node: usize,
        answer: Result<Response, Failure>,
    ) {
        if self.client_cut.contains(&(client, node)) || self.random.one_in(self.faults.loss_one_in) {
            return;
        }
        let mut at = (self.now + self.delay()).max(self.clients[client].paused_until);
        if self.now < self.clients[client].muted_until {
            at += self.random.between(0, 2_000) * MILLISECOND;
        }
        let event = Event::Answer { client, life, operation, node, answer: Box::new(answer) };
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
            self.schedule(at, Event::ClientWakes { client, life });
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
            let node = send.node % self.nodes.len();
            if send.again {
                let owner = &self.clients[client].owner;
                let what = words::request_words;
                self.trace.tell(self.now, || {
                    format!("{owner} asks n{} again to {}", node + 1, what(&send.request))
                });
            }
            self.request_leaves(client, send.operation, node, send.request);
        }
        self.write_if_holding(client)?;
        self.wake_client(client);
        Ok(())
    }

    pub(crate) fn request_leaves(&mut self, client: usize, operation: u64, node: usize, request: Request) {
        if self.now < self.clients[client].muted_until || self.random.one_in(self.faults.loss_one_in) {
            return;
        }
        let life = self.clients[client].life;
        if self.random.one_in(self.faults.duplicate_one_in) {
            // A copy may come when all is forgotten.
            let (at, request) = (self.now + self.delay() * self.random.between(1, 100), request.clone());
            self.schedule(at, Event::Request { client, life, operation, node, request });
        }
        let at = self.now + self.delay();
        self.schedule(at, Event::Request { client, life, operation, node, request });
    }

    /// A holder uses what it holds: at once, or with a write that takes its time.
    pub(super) fn write_if_holding(&mut self, client: usize) -> Check {
        if !self.clients[client].believes_at(self.now) {
            return Ok(());
        }
        let Some(hold) = self.clients[client].hold.clone() else { return Ok(()) };
        if self.random.one_in(2) {
            return self.fencing.write_in_belief(&hold.lock, hold.token, &self.tokens);
        }
        let at = self.now + self.delay() * self.random.between(1, 100);
        self.schedule(at, Event::Write { lock: hold.lock, token: hold.token });
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
            self.schedule(at, Event::Answer { client, life, operation, node, answer: Box::new(answer) });
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
        let owner = self.clients[client].owner.clone();
        match outcome {
            Outcome::Nothing => {}
            Outcome::Renewed { lease } => {
                self.expiry.renewed(lease, self.now);
                self.acknowledged.count += 1;
                mutual_exclusion(&self.clients, client, self.now)?;
            }
            Outcome::LeaseLost { lease, believed } => {
                self.expiry.lost(&owner, lease, believed)?;
            }
            Outcome::Ended { operation, answer } => {
                if self.quiet {
                    self.clients[client].done_in_quiet += 1;
                }
                if let (
                    Ok(Response::Applied(Reply::Granted { token, .. })),
                    Request::Command(Command::Acquire { lock, .. }),
                ) = (&answer, &operation.request)
                {
                    self.tokens.told(lock, *token)?;
                }
                if !matches!(answer, Err(Failure::Refused(Refusal::LeaseNotFound { .. }))) {
                    self.acknowledged.answered(&operation, &answer, self.now)?;
                }
                mutual_exclusion(&self.clients, client, self.now)?;
            }
        }
        self.wake_client(client);
        Ok(())
    }
}
