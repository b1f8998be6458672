//! No two clients believe at a time to hold what excludes each other, counting shared modes and subtrees
//! (design, section 8, point 1; R6, R7, R9).
//!
//! Belief is what a client may act on: from the answer until its own count of the validity ends, or
//! until it sends the release. A client that is paused believes on by its clock, no longer.

use super::{Check, broken};
use crate::client::Client;

/// A client has just begun to believe: nobody whom that excludes may.
pub(crate) fn mutual_exclusion(clients: &[Client], begun: usize, now: u64) -> Check {
    for (hold, claim) in clients[begun].beliefs_at(now) {
        for rival in clients.iter().filter(|client| client.number != begun) {
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
