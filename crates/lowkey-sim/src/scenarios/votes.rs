//! A machine is asked for its vote twice in one term, and loses power in between.
//!
//! Two stand for the same term. One has the voter's word; then the voter forgets all that is not on its disk,
//! and the other asks. Attacked: what must be on disk before a vote is told (the Raft paper, section 5.2). Must
//! be true: one vote a term, or both could lead it.

use lowkey_replica::MessageType;

use super::script::{N1, N2, N3, Script};
use crate::invariants::Check;

const N4: usize = 3;
const N5: usize = 4;

pub(super) fn asked_again_after_a_crash(script: &mut Script) -> Check {
    script.crash(N1, false);
    for node in [N4, N5] {
        for other in script.others(node) {
            script.hold_messages(node, other, MessageType::MsgRequestPreVote);
        }
    }
    for candidate in [N2, N3] {
        for voter in [N4, N5] {
            script.hold_messages(candidate, voter, MessageType::MsgRequestVote);
        }
    }
    // What one of them hears of the other's term would make it follow.
    for (one, other) in [(N2, N3), (N3, N2)] {
        script.hold_messages(one, other, MessageType::MsgRequestPreVote);
        script.hold_messages(one, other, MessageType::MsgRequestVote);
    }
    let term = script.term(N4);
    script.until("both stand for the next term", 2_000, |script| {
        script.term(N2) == term + 1 && script.term(N3) == term + 1
    })?;
    // Each has its own vote on disk, and asks.
    script.advance(20)?;
    script.deliver_messages_between(N2, N4);
    script.until("n4 knows of the term", 100, |script| script.term(N4) == term + 1)?;
    script.advance(20)?;
    script.crash(N4, true);
    script.restart(N4)?;
    script.deliver_messages_between(N3, N4);
    script.advance(20)?;
    script.end(2)
}
