//! One request id, one effect, and one place in a queue at a time (`docs/internals/invariants.md`, point 9; R10).
//!
//! A wait that was cancelled had no effect: who comes back with the same id may take a new place. What was
//! granted is granted once, whether at once or after any number of places.

use std::collections::{BTreeMap, BTreeSet};

use lowkey_core::{Change, ChangeKind, Command, Event, GrantRef, RequestId, Ticket, WaitEnd};

use super::{Check, Committed, broken};

#[derive(Default)]
pub(crate) struct Requests {
    /// The simulated clients never use an id twice, so that ids alone tell operations apart.
    effective: BTreeSet<RequestId>,
    waiting: BTreeMap<RequestId, Ticket>,
    /// R10: acquires that a committed release gave up: they have no effect any more.
    given_up: BTreeSet<RequestId>,
}

impl Requests {
    pub(crate) fn committed(&mut self, committed: &Committed) -> Check {
        for event in &committed.applied.events {
            let Event::WaitEnded { ticket, end } = event else { continue };
            let request =
                self.waiting.iter().find(|(_, waiting)| *waiting == ticket).map(|(id, _)| id.clone());
            let Some(request) = request else { continue };
            self.waiting.remove(&request);
            if matches!(end, WaitEnd::Granted(_)) {
                self.has_effect(&request, committed)?;
            }
        }
        let request = match &committed.command {
            Command::CreateLease { request, .. }
            | Command::RevokeLease { request, .. }
            | Command::Acquire { request, .. }
            | Command::Release { request, .. }
            | Command::SetValue { request, .. } => request,
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
            | Command::SetBackupSchedule(_) => return Ok(()),
        };
        if let Command::Release { grant: GrantRef::GivenUp(acquire, _), .. } = &committed.command
            && committed.applied.reply.is_ok()
        {
            self.given_up.insert(acquire.clone());
        }
        if committed.applied.events.is_empty() {
            return Ok(());
        }
        let takes_place = committed
            .applied
            .events
            .iter()
            .any(|event| matches!(event, Event::Changed(Change { kind: ChangeKind::Waiting, .. })));
        if !takes_place {
            return self.has_effect(request, committed);
        }
        if self.effective.contains(request) {
            return broken(
                "requests",
                format!("request {request} was granted and waits at {}", committed.index),
            );
        }
        if self.given_up.contains(request) {
            return broken("requests", format!("request {request} waits at {}, given up", committed.index));
        }
        match self.waiting.insert(request.clone(), Ticket(committed.index)) {
            Some(first) => broken(
                "requests",
                format!("request {request} has the places {first} and {}", committed.index),
            ),
            None => Ok(()),
        }
    }

    fn has_effect(&mut self, request: &RequestId, committed: &Committed) -> Check {
        if self.given_up.contains(request) {
            return broken(
                "requests",
                format!("request {request} had its effect at {}, given up before", committed.index),
            );
        }
        match self.effective.insert(request.clone()) {
            true => Ok(()),
            false => {
                broken("requests", format!("request {request} had a second effect at {}", committed.index))
            }
        }
    }
}
