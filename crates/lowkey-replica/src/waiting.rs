//! What a replica does for callers that wait for a lock: it parks them, and tells them how their waits
//! ended. Who waits until when is in `wait_table.rs`.
//!
//! Whoever asks for what is held has time: nothing becomes of it before the holder lets go. So it goes into the log with
//! the next thing that comes, in front of it, or with the next tick. An entry of its own would be under way when the
//! release comes that it waits for, and that would have to wait for it.

#[cfg(test)]
mod tests;

use lowkey_core::limits::{IN_FLIGHT_PER_LEASE_MAX, WAITS_PER_CANCEL_MAX};
use lowkey_core::{Command, Refusal, Ticket, WaitEnd, mutants};

use crate::output::{Failure, Response};
use crate::replica::Replica;
use crate::time::{MILLISECOND, Nanos};
use crate::wait_table::{Ended, Returned};

/// So many do not wait for company any longer. All may be of one lease, and they are under way at the same time then: others
/// of that lease must still have room.
const PATIENT_MAX: usize = 64;
const _: () = assert!(PATIENT_MAX <= IN_FLIGHT_PER_LEASE_MAX / 2);

impl Replica {
    /// True if a command would only take a place in a queue, whatever is under way.
    pub(crate) fn can_be_patient(&self, command: &Command) -> bool {
        let nothing_is_under_way = self.node.raft.raft_log.last_index() == self.state.revision();
        nothing_is_under_way
            && self.leases.is_armed()
            && self.patient.len() < PATIENT_MAX
            && self.state.would_wait(command)
    }

    /// Puts those into the log that had time, in the order in which they came.
    pub(crate) fn propose_patient(&mut self, now: Nanos) {
        for (call, command, wait) in std::mem::take(&mut self.patient) {
            self.put_into_log(now, call, command, wait);
        }
    }

    /// Keeps a caller until its wait is over.
    pub(crate) fn park(&mut self, now: Nanos, ticket: Ticket, caller: Returned) {
        if !self.leases.is_armed() {
            let leader = self.leader();
            return self.output.reply(caller.call, Err(Failure::Interrupted { leader }));
        }
        self.waits.attach(now, ticket, caller);
    }

    pub(crate) fn wait_ended(&mut self, now: Nanos, ticket: Ticket, end: WaitEnd) {
        let Ended { calls, returned, waited_nanos } = self.waits.end(now, ticket);
        let answer = match end {
            WaitEnd::Granted(reply) => {
                Ok(Response::GrantedAfter { reply, waited_ms: waited_nanos / MILLISECOND })
            }
            WaitEnd::Cancelled { lock, in_the_way } => {
                // R10: who came back meanwhile wants to wait, not to hear of a timeout.
                for Returned { call, command, wait } in returned {
                    self.waits.expect(call);
                    self.feasible.push((call, command, wait));
                }
                let answer = Err(Failure::WaitTimeout { lock, in_the_way });
                return calls.into_iter().for_each(|call| self.output.reply(call, answer.clone()));
            }
            WaitEnd::GivenUp { lock } => Err(Failure::WaitGivenUp { lock }),
            WaitEnd::LeaseGone { .. }
                if mutants::is_active("a waiter is not told that its lease is gone") =>
            {
                return;
            }
            WaitEnd::LeaseGone { lease } => Err(Failure::Refused(Refusal::LeaseNotFound { lease })),
        };
        for call in calls.into_iter().chain(returned.into_iter().map(|returned| returned.call)) {
            self.output.reply(call, answer.clone());
        }
    }

    /// R10: proposes the end of every wait whose time has run out, many in one entry.
    pub(crate) fn cancel_due(&mut self, now: Nanos) {
        loop {
            let mut tickets = std::mem::take(&mut self.unproposed_cancels);
            if tickets.is_empty() {
                tickets = self.waits.take_due(now, WAITS_PER_CANCEL_MAX);
            }
            if tickets.is_empty() {
                return;
            }
            crate::mutants::answer_timeouts_early(&self.waits, &tickets, &mut self.output);
            let command = Command::CancelWait { tickets, since_unix_ms: self.unix_ms(now) };
            if let Err(Command::CancelWait { tickets, .. }) = self.propose_end(now, command) {
                self.unproposed_cancels = tickets;
                return;
            }
        }
    }
}
