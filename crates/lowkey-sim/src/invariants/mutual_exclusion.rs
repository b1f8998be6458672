//! No two clients believe at a time to hold what excludes each other, counting shared modes and subtrees
//! (`docs/internals/invariants.md`, point 1; R6, R7, R9).
//!
//! Belief is what a client may act on: from the answer until its own count of the validity ends, or
//! until it sends the release. A client that is paused believes on by its clock, no longer. A lock of one group has
//! nothing to do with one of the same name in another.

use super::{Check, broken};
use crate::client::SimClient;

/// A client has just begun to believe: nobody whom that excludes may.
pub(crate) fn mutual_exclusion(clients: &[SimClient], begun: usize, now: u64) -> Check {
    for (hold, claim) in clients[begun].beliefs_at(now) {
        let is_rival = |client: &&SimClient| client.number != begun && client.group == clients[begun].group;
        for rival in clients.iter().filter(is_rival) {
            let Some((other, _)) = rival.beliefs_at(now).find(|(_, other)| other.excludes(&claim)) else {
                continue;
            };
            return broken(
                "mutual exclusion",
                format!(
                    "{} believes to hold {} with token {} while {} does {} with token {}",
                    clients[begun].owner, hold.lock, hold.token, rival.owner, other.lock, other.token
                ),
            );
        }
    }
    Ok(())
}
