//! At most one client believes to hold a lock at a time (design, section 8, point 1; R6, R9).
//!
//! Belief is what a client may act on: from the answer until its own count of the validity ends, or
//! until it sends the release. A client that is paused believes on by its clock, no longer.

use super::{Check, broken};
use crate::client::Client;

/// A client has just begun to believe: nobody else may.
pub(crate) fn mutual_exclusion(clients: &[Client], begun: usize, now: u64) -> Check {
    let Some(hold) = clients[begun].hold.as_ref().filter(|_| clients[begun].believes_at(now)) else {
        return Ok(());
    };
    let rival = clients.iter().find(|client| {
        client.number != begun
            && client.believes_at(now)
            && client.hold.as_ref().is_some_and(|other| other.lock == hold.lock)
    });
    match rival.and_then(|rival| rival.hold.as_ref().map(|other| (rival, other))) {
        None => Ok(()),
        Some((rival, other)) => broken(
            "mutual exclusion",
            format!(
                "{} believes to hold {} with token {} while {} does with token {}",
                clients[begun].owner, hold.lock, hold.token, rival.owner, other.token
            ),
        ),
    }
}
