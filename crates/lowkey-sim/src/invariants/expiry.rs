//! No lease ends before its client's own validity does, and none that nobody renews lives for ever
//! (`docs/internals/invariants.md`, point 6; R2, R3, R4, R6, R7, R8).

use std::collections::BTreeMap;

use lowkey_core::{Command, Event, LeaseId, State};

use super::{Check, Committed, broken};
use crate::client::SimClient;
use crate::plan::SECOND;

const NAME: &str = "expiry";

#[derive(Default)]
pub(crate) struct Expiry {
    pub(crate) count: u64,
    /// When a renewal of the lease, or the lease itself, was last acknowledged, in true time.
    last_sign: BTreeMap<LeaseId, u64>,
}

impl Expiry {
    /// An entry that ends leases was committed: their clients must have stopped counting on them.
    pub(crate) fn committed<'a>(
        &mut self,
        committed: &Committed,
        clients: impl Iterator<Item = &'a SimClient> + Clone,
        now: u64,
    ) -> Check {
        for event in &committed.applied.events {
            match event {
                Event::LeaseStarted { lease, .. } => {
                    self.last_sign.insert(*lease, now);
                }
                // Only its owner ends a lease that its client counts on.
                Event::LeaseEnded { lease } => {
                    self.count += u64::from(matches!(committed.command, Command::Expire { .. }));
                    if matches!(committed.command, Command::RevokeLease { .. }) {
                        continue;
                    }
                    if let Some(client) = clients.clone().find(|client| client.counts_on(*lease, now)) {
                        return broken(
                            NAME,
                            format!("lease {lease} was ended while {} still counts on it", client.owner),
                        );
                    }
                }
                _ => {}
            }
        }
        Ok(())
    }

    pub(crate) fn renewed(&mut self, lease: LeaseId, now: u64) {
        self.last_sign.insert(lease, now);
    }

    /// A client was told that its lease is gone.
    pub(crate) fn lost(&self, owner: &dyn std::fmt::Display, lease: LeaseId, believed: bool) -> Check {
        if believed {
            return broken(
                NAME,
                format!("{owner} was told that lease {lease} is gone while it still counts on it"),
            );
        }
        Ok(())
    }

    /// When all has been quiet for long, only leases that are renewed are left.
    pub(crate) fn at_end(&self, state: &State, now: u64) -> Check {
        // R7: the time of a lease that waits for its grant has not begun.
        for (lease, held) in state.leases().filter(|(_, held)| !held.is_waiting) {
            let silent = now.saturating_sub(self.last_sign.get(&lease).copied().unwrap_or(0));
            // Twice the time to live, for a leader that was elected meanwhile, and clocks that drift.
            let allowed = held.ttl.nanos() / 10 * 22 + SECOND;
            if silent > allowed {
                return broken(
                    NAME,
                    format!(
                        "lease {lease} of {} was not renewed for {} ms and still lives",
                        held.owner,
                        silent / 1_000_000
                    ),
                );
            }
        }
        Ok(())
    }
}
