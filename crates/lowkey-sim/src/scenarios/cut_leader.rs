//! A leader that part of the world does not reach.
//!
//! Attacked: R2. A leader that only believes it leads must acknowledge nothing: neither a renewal,
//! which needs no log entry, nor a read. Heartbeats that go out are not enough, answers that could
//! come in are not enough; it takes both.
//! Must be true: the cut leader says yes to nobody and stops of itself; the others serve; a holder
//! that finds the new leader in time keeps its lock, one that does not loses it before anybody else
//! gets it.

use lowkey_replica::Request;

use super::script::{ANN, BOB, N1, Script, ensure};
use crate::invariants::Check;

/// Ann and Bob both go on talking to `n1`, which no other machine reaches.
pub(super) fn from_peers(script: &mut Script) -> Check {
    let (lease, ann) = script.take_lock(ANN, N1, 2)?;
    script.isolate(N1);
    for asked in &script.talk_to_the_cut_off(N1, lease)? {
        let answers = script.answers(asked);
        ensure(answers.len() == 1 && answers[0].is_err(), || {
            format!("a leader without peers answered {answers:?}")
        })?;
    }
    ensure(!script.serves(N1), || "a leader without peers did not stop".into())?;
    let leader = script.leader_other_than(N1, 100)?;
    ensure(script.is_gone(lease) && !script.believes(ANN), || "Ann's lease did not end".into())?;
    let (_, bob) = script.take_lock(BOB, leader, 2)?;
    ensure(bob > ann, || format!("Bob's token {bob} is not above Ann's {ann}"))?;
    script.end(2)
}

/// The followers hear the leader; it does not hear them.
pub(super) fn no_answers_in(script: &mut Script) -> Check {
    one_way(script, false)
}

/// The leader hears its followers; they do not hear it.
pub(super) fn no_heartbeats_out(script: &mut Script) -> Check {
    one_way(script, true)
}

fn one_way(script: &mut Script, outward: bool) -> Check {
    let (lease, ann) = script.take_lock(ANN, N1, 2)?;
    for peer in script.others(N1) {
        if outward { script.cut(N1, peer) } else { script.cut(peer, N1) }
    }
    // What is under way when the link breaks still arrives.
    script.advance(5)?;
    let renewal = script.renew(ANN, N1, lease);
    let leader = script.leader_other_than(N1, 1_500)?;
    script.until("the old leader stops", 500, |script| !script.serves(N1))?;
    script.advance(5)?;
    ensure(!script.was_renewed(&renewal), || "half a connection was enough for a renewal".into())?;
    // Ann finds the new leader before her belief ends.
    ensure(script.believes(ANN), || "the change of leader took too long".into())?;
    let answer = script.answer_to(ANN, leader, Request::Renew { lease, holds: None })?;
    ensure(answer.is_ok(), || format!("the new leader answered {answer:?}"))?;
    ensure(script.believes(ANN), || "Ann lost her lock to a change of leader".into())?;
    let term = script.term(leader);
    for _ in 0..5 {
        script.advance(600)?;
        let renewal = script.renew(ANN, leader, lease);
        script.until("the renewal is answered", 50, |script| script.was_renewed(&renewal))?;
    }
    ensure(script.term(leader) == term, || "a machine that hears half of it all unseats a leader".into())?;
    ensure(script.write(ann)? && script.believes(ANN), || "Ann no longer holds".into())?;
    script.end(2)
}
