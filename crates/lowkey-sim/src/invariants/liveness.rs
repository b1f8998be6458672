//! When faults stop, a leader emerges, service resumes, every live waiter progresses, and no caller is left
//! without an answer (`docs/internals/invariants.md`, point 11).

use super::chronicle::WaitSeen;
use super::{Check, Ledger, broken};
use crate::client::SimClient;
use crate::node::SimNode;
use crate::plan::{MILLISECOND, SECOND};

const NAME: &str = "liveness";
/// How long an answer may take, beside the wait that was asked for; a wait that is taken up again lasts
/// until its last caller's time is over.
const ANSWER_NANOS: u64 = 3 * SECOND;
/// The longest a place is kept: the longest wait of any client, and what a caller that came back wants.
const PLACE_NANOS: u64 = 11 * SECOND;

/// What the quiet phase must have brought.
pub(crate) struct Liveness;

impl Liveness {
    pub(crate) fn at_end<'a>(leaders: usize, mut clients: impl Iterator<Item = &'a SimClient>) -> Check {
        if leaders != 1 {
            return broken(NAME, format!("{leaders} replicas serve when all is quiet"));
        }
        match clients.find(|client| client.done_in_quiet == 0) {
            Some(client) => broken(NAME, format!("{} got nothing done when all was quiet", client.owner)),
            None => Ok(()),
        }
    }

    /// Nobody waits for ever: neither in a queue nor for an answer.
    pub(crate) fn nobody_is_forgotten(nodes: &[SimNode], group: usize, ledger: &Ledger, now: u64) -> Check {
        let since = |waiting: &WaitSeen| ledger.place(waiting.ticket).map_or(now, |place| place.since);
        if let Some(waiting) = ledger.waiters().iter().find(|waiting| now - since(waiting) > PLACE_NANOS) {
            let ms = (now - since(waiting)) / MILLISECOND;
            return broken(NAME, format!("{} has waited for {} for {ms} ms", waiting.owner, waiting.lock));
        }
        for (node, lane) in nodes.iter().filter_map(|node| Some((node, node.running(group)?))) {
            let late = lane
                .calls
                .values()
                .find(|call| now.saturating_sub(call.asked_at) > ANSWER_NANOS + 2 * call.wait_nanos);
            if let Some(call) = late {
                let ms = (now - call.asked_at) / MILLISECOND;
                return broken(NAME, format!("a caller of n{} has had no answer for {ms} ms", node.member));
            }
        }
        Ok(())
    }
}
