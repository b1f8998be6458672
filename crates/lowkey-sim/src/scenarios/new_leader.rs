//! What a leader may know of leases when its term begins.
//!
//! Attacked: R1 and R3. A leader that leads again must have forgotten the deadlines of its last time:
//! meanwhile another leader acknowledged renewals. And a leader that has not applied an entry of its
//! own term does not know yet what the leader before it committed: the end of a lease, perhaps.
//! Must be true: no lease ends by a deadline of an earlier term, and no renewal is acknowledged by a
//! state that is older than its lead.

use lowkey_core::Refusal;
use lowkey_replica::{Failure, MessageType, Request};

use super::script::{ANN, BOB, N1, N2, N3, Script, ensure};
use crate::invariants::Check;
use crate::plan::{MILLISECOND, SECOND};

/// `n1` leads, then `n2`, which renews, then `n1` again, whose old deadline passes soon.
pub(super) fn stale_deadlines(script: &mut Script) -> Check {
    let (lease, _) = script.take_lock(ANN, N1, 3)?;
    script.advance(2_400)?;
    let second = script.hand_over(N1)?;
    let sent = script.world.now;
    let answer = script.answer_to(ANN, second, Request::Renew { lease, holds: None })?;
    ensure(answer.is_ok(), || format!("the new leader answered {answer:?}"))?;
    let third = script.hand_over(second)?;
    ensure(third == N1, || format!("the story needs n1 to lead again, not n{}", third + 1))?;
    let armed = script.world.now;
    ensure(armed < script.began_at(lease) + 3 * SECOND, || "the old deadline has passed already".into())?;
    script.advance_to(sent + 2_699 * MILLISECOND)?;
    ensure(script.believes(ANN), || "Ann should count on her renewal for 2.7 s".into())?;
    ensure(!script.is_gone(lease), || "a deadline of an earlier term ended the lease".into())?;
    let lived = script.end_of(lease, armed, 1_000)?;
    ensure(lived <= 3 * SECOND + 100 * MILLISECOND, || {
        format!("the lease ended {} ms after the lead changed", lived / MILLISECOND)
    })?;
    script.end(3)
}

/// The end of Ann's lease is committed, and only `n1` knows; it loses power. The next leader has the
/// entry and does not know that it counts. A renewal comes before its own first entry is committed.
pub(super) fn before_the_no_op(script: &mut Script) -> Check {
    let (lease, ann) = script.take_lock(ANN, N1, 1)?;
    script.advance_to(script.began_at(lease) + SECOND)?;
    let before = script.log_bounds(N1).1;
    for peer in [N2, N3] {
        script.hold_messages(peer, N1, MessageType::MsgAppendResponse);
    }
    script.until("the followers have the entry", 100, |script| {
        script.log_bounds(N2).1 > before && script.log_bounds(N3).1 > before
    })?;
    script.advance(2)?;
    script.cut(N1, N2);
    script.cut(N1, N3);
    script.deliver_messages();
    script.until("the lease ends", 20, |script| script.is_gone(lease))?;
    script.crash(N1, true);
    script.heal();
    script.hold_messages(N2, N3, MessageType::MsgAppend);
    script.hold_messages(N3, N2, MessageType::MsgAppend);
    script.until("a new leader", 2_000, |script| script.leads(N2) || script.leads(N3))?;
    let leader = if script.leads(N2) { N2 } else { N3 };
    let renewal = script.renew(ANN, leader, lease);
    script.advance(120)?;
    ensure(script.leads(leader) && !script.serves(leader), || {
        "the story needs a leader that has applied nothing of its term".into()
    })?;
    ensure(script.answers(&renewal).is_empty(), || {
        format!("before its first entry a leader answered {:?}", script.answers(&renewal))
    })?;
    script.deliver_messages();
    script.until("the renewal is answered", 100, |script| script.is_answered(&renewal))?;
    let answers = script.answers(&renewal);
    ensure(matches!(answers, [Err(Failure::Refused(Refusal::LeaseNotFound { .. }))]), || {
        format!("the renewal of a lease that had ended was answered {answers:?}")
    })?;
    let (_, bob) = script.take_lock(BOB, leader, 1)?;
    ensure(bob > ann, || format!("Bob's token {bob} is not above Ann's {ann}"))?;
    script.end(1)
}
