//! What only mutants do: see [`crate::mutants`]. Nothing here is reached in what is built for use.

use super::State;
use super::waiting::Freed;
use crate::claim::Claim;
use crate::command::{Cause, Event};
use crate::name::{LockName, Ticket};

impl State {
    /// Ends the first grant since a wait began.
    pub(super) fn free_since(&mut self, ticket: Ticket, freed: &mut Freed, events: &mut Vec<Event>) {
        let since = self.grants().find(|(_, grant)| grant.revision > ticket.0);
        if let Some((lock, lease)) = since.map(|(lock, grant)| (lock.clone(), grant.lease)) {
            let token = self.free(&lock, lease, Cause::Released, freed, events);
            self.leases.get_mut(&lease).expect("a holder's lease exists").held.remove(&lock, token);
        }
    }

    /// Who came last, if no holder is in its way.
    pub(super) fn last_in_line(&self, name: &LockName) -> Option<Ticket> {
        let queue = self.locks.get(name)?.queue.as_ref()?;
        queue.in_order().last().filter(|last| !self.has_rival_holder(&self.waits[last].claim()))
    }

    /// True if somebody who holds is in the way, not only those who wait.
    pub(super) fn has_rival_holder(&self, claim: &Claim) -> bool {
        self.rival_holder(claim, self.lock_at(&claim.lock)).is_some()
    }
}
