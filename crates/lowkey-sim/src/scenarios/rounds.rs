//! A renewal that arrives while a round is under way.
//!
//! A round asks the followers once, for all who wait. Bob's renewal arrives after the question went
//! out and before the answers came in. The answers prove that `n1` led when the question was asked:
//! before Bob. Then `n1`'s messages no longer get out.
//!
//! Attacked: R2 (a round *started after* the arrival). Must be true: the answers serve Ann, who came
//! before the round, and not Bob; he is served only by a round of his own, and only answers to that
//! very round count for it.

use lowkey_replica::MessageType;

use super::script::{ANN, BOB, N1, N3, Script, ensure};
use crate::invariants::Check;

/// Bob comes while Ann's round is under way.
pub(super) fn begun_before(script: &mut Script) -> Check {
    let anns = script.take_lease(ANN, N1, 2)?;
    let bobs = script.take_lease(BOB, N1, 2)?;
    for peer in script.others(N1) {
        script.hold_messages(peer, N1, MessageType::MsgHeartbeatResponse);
    }
    let early = script.renew(ANN, N1, anns);
    script.advance(10)?;
    let late = script.renew(BOB, N1, bobs);
    script.advance(10)?;
    script.others(N1).into_iter().for_each(|peer| script.cut(N1, peer));
    script.deliver_messages();
    script.until("Ann's renewal is acknowledged", 50, |script| script.was_renewed(&early))?;
    script.advance(50)?;
    ensure(script.answers(&late).is_empty(), || {
        format!("a round that began before the renewal served it: {:?}", script.answers(&late))
    })?;
    script.heal();
    script.until("Bob's renewal is acknowledged", 300, |script| script.was_renewed(&late))?;
    script.end(2)
}

/// One follower was enough to confirm Ann's round. The other one's answer comes when Bob's round is
/// under way, whose question reached nobody.
pub(super) fn answered_late(script: &mut Script) -> Check {
    let anns = script.take_lease(ANN, N1, 2)?;
    let bobs = script.take_lease(BOB, N1, 2)?;
    script.hold_messages(N3, N1, MessageType::MsgHeartbeatResponse);
    let first = script.renew(ANN, N1, anns);
    script.until("Ann's renewal is acknowledged", 50, |script| script.was_renewed(&first))?;
    ensure(script.held_messages() > 0, || "the story needs an answer that is late".into())?;
    script.others(N1).into_iter().for_each(|peer| script.cut(N1, peer));
    let second = script.renew(BOB, N1, bobs);
    script.advance(10)?;
    script.deliver_messages();
    script.advance(50)?;
    ensure(!script.is_answered(&second), || {
        format!("an answer to an old round confirmed a new one: {:?}", script.answers(&second))
    })?;
    script.heal();
    script.until("Bob's renewal is acknowledged", 300, |script| script.was_renewed(&second))?;
    script.end(2)
}
