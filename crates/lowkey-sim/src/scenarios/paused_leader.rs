//! A leader that stops for a while and does not know it.
//!
//! While `n1` sleeps, the others elect a leader, which gives every lease its whole time (R3), ends
//! Ann's, and grants the lock to Bob. Then `n1` wakes and finds in its inbox what Ann had asked of it
//! long ago. It still takes itself for the leader.
//!
//! Attacked: R2 (a renewal needs a round that began after it arrived), R6 (belief counts from the
//! first send), R8 (a stalled leader is lenient, and leniency must not become a second holder).
//! Must be true: Ann is never told that she still holds while Bob does; whatever she is told, she does
//! not believe; the resource refuses her token once it has seen Bob's.

use lowkey_core::{AcquireWith, LeaseId, Token};
use lowkey_replica::{Failure, MessageType, Query, Request};

use super::script::{ANN, BOB, N1, Script, ScriptRequest, ensure, lock, ttl};
use crate::invariants::{Check, Violation};
use crate::plan::{MILLISECOND, SECOND};

/// Renewals lie in the inbox of a leader that is paused for two and a half times to live.
pub(super) fn beyond_the_ttl(script: &mut Script) -> Check {
    renewals_in_the_inbox(script, false)
}

/// The same, and when it wakes it hears nobody: only its own doubt can stop it.
pub(super) fn beyond_the_ttl_and_deaf(script: &mut Script) -> Check {
    renewals_in_the_inbox(script, true)
}

fn renewals_in_the_inbox(script: &mut Script, deaf: bool) -> Check {
    let (lease, ann) = script.take_lock(ANN, N1, 2)?;
    let wakes_at = script.world.now + 5 * SECOND;
    script.pause(N1, 5_000);
    if deaf {
        script.others(N1).into_iter().for_each(|peer| script.cut(peer, N1));
    }
    let mut renewals = Vec::new();
    for _ in 0..3 {
        script.advance(60)?;
        renewals.push(script.renew(ANN, N1, lease));
    }
    let bob = bob_takes_over(script, lease, ann)?;
    script.advance_to(wakes_at + SECOND)?;
    for renewal in &renewals {
        expect_not_leader(script, renewal)?;
    }
    bob_alone_holds(script, ann, bob)?;
    script.end(10)
}

/// Ann's lease has ended elsewhere while it slept. When it wakes it finds questions in its inbox to which it has an
/// answer, and nothing tells it that this is of the past.
pub(super) fn asked_what_it_cannot_know(script: &mut Script) -> Check {
    let (lease, _) = script.take_lock(ANN, N1, 2)?;
    let wakes_at = script.world.now + 5 * SECOND;
    script.pause(N1, 5_000);
    script.others(N1).into_iter().for_each(|peer| script.cut(peer, N1));
    script.leader_other_than(N1, 2_000)?;
    script.until("Ann's lease ends", 2_200, |script| script.is_gone(lease))?;
    let attempt = script.acquire(BOB, AcquireWith::NewLease(ttl(2)));
    let questions = [
        script.ask(BOB, N1, attempt),
        script.ask(BOB, N1, Request::Read(Query::Lock { lock: lock() })),
        script.renew(ANN, N1, lease),
    ];
    script.advance_to(wakes_at + SECOND)?;
    for asked in &questions {
        expect_not_leader(script, asked)?;
    }
    script.end(2)
}

/// A quorum has confirmed the renewal; before the leader reads their answers it is paused.
pub(super) fn before_acknowledging(script: &mut Script) -> Check {
    let (lease, ann, renewal) = confirmed_and_paused(script)?;
    let bob = bob_takes_over(script, lease, ann)?;
    script.advance(2_000)?;
    // The round was of a term that had ended when it was read: it proves nothing any more.
    expect_not_leader(script, &renewal)?;
    bob_alone_holds(script, ann, bob)?;
    script.end(10)
}

/// The same, and nothing tells the leader of its successor: it acknowledges, in vain.
pub(super) fn before_acknowledging_and_deaf(script: &mut Script) -> Check {
    let (lease, ann, renewal) = confirmed_and_paused(script)?;
    script.others(N1).into_iter().for_each(|peer| script.cut(peer, N1));
    let bob = bob_takes_over(script, lease, ann)?;
    script.advance(2_000)?;
    // R6 is what saves the day: the answer counts from when Ann asked, and that is long ago.
    ensure(script.was_renewed(&renewal), || {
        "the story needs a leader that acknowledges what was confirmed".into()
    })?;
    bob_alone_holds(script, ann, bob)?;
    script.end(10)
}

fn confirmed_and_paused(script: &mut Script) -> Result<(LeaseId, Token, ScriptRequest), Violation> {
    let (lease, ann) = script.take_lock(ANN, N1, 2)?;
    script.advance(300)?;
    for peer in script.others(N1) {
        script.hold_messages(peer, N1, MessageType::MsgHeartbeatResponse);
    }
    let renewal = script.renew(ANN, N1, lease);
    script.advance(10)?;
    ensure(script.held_messages() >= 2, || "the followers did not answer the round".into())?;
    script.pause(N1, 3_000);
    script.deliver_messages();
    script.advance(1)?;
    ensure(!script.is_answered(&renewal), || "it was answered before the pause".into())?;
    Ok((lease, ann, renewal))
}

/// The machine ticks, then stalls, too shortly for R8 or for an election, and only then looks into its
/// inbox. The renewal's arrival is when it was taken from there, not what the clock had shown before:
/// else the lease would end while Ann counts on it.
pub(super) fn between_clock_and_inbox(script: &mut Script) -> Check {
    let (lease, _) = script.take_lock(ANN, N1, 1)?;
    script.advance(400)?;
    script.pause(N1, 140);
    script.advance(130)?;
    let sent = script.world.now;
    let renewal = script.renew(ANN, N1, lease);
    script.until("the renewal is answered", 100, |script| script.is_answered(&renewal))?;
    ensure(script.was_renewed(&renewal), || "the renewal was not acknowledged".into())?;
    script.advance_to(sent + 899 * MILLISECOND)?;
    ensure(script.believes(ANN), || "Ann should count on the renewal for 900 ms".into())?;
    let lived = script.end_of(lease, sent, 300)?;
    ensure(lived >= SECOND, || format!("the lease ended {} ms after the renewal", lived / MILLISECOND))?;
    script.end(1)
}

/// Another leader serves, ends Ann's lease, and grants the lock to Bob.
fn bob_takes_over(script: &mut Script, lease: LeaseId, ann: Token) -> Result<Token, Violation> {
    let leader = script.leader_other_than(N1, 2_000)?;
    script.until("Ann's lease ends", 2_200, |script| script.is_gone(lease))?;
    ensure(!script.believes(ANN), || "Ann believes beyond the end of her lease".into())?;
    let (_, bob) = script.take_lock(BOB, leader, 10)?;
    ensure(bob > ann, || format!("Bob's token {bob} is not above Ann's {ann}"))?;
    Ok(bob)
}

fn expect_not_leader(script: &Script, asked: &ScriptRequest) -> Check {
    let answers = script.answers(asked);
    ensure(matches!(answers, [Err(Failure::NotLeader { .. })]), || {
        format!("a leader of the past answered {answers:?}")
    })
}

fn bob_alone_holds(script: &mut Script, ann: Token, bob: Token) -> Check {
    ensure(script.believes(BOB), || "Bob no longer believes".into())?;
    ensure(!script.believes(ANN), || "Ann believes again".into())?;
    ensure(script.write(bob)?, || "Bob's write was refused".into())?;
    ensure(!script.write(ann)?, || "Ann's late write was accepted".into())
}
