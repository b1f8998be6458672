//! Answers that come late, or not at all, or to another question.
//!
//! A server's time for a lease begins when a request arrives; the client learns of it later, perhaps
//! much later. Attacked: R6. Belief counts from before the *first* send of the request that was
//! answered: not from the answer, not from a retry, not from another renewal. Must be true: each of
//! these answers is believed for what is left of 90 % of the time to live, which may be nothing, and
//! belief ends before anyone else is granted the lock.

use lowkey_core::AcquireWith;
use lowkey_replica::Request;

use super::script::{ANN, BOB, N1, Script, ensure, granted, ttl};
use crate::invariants::Check;
use crate::plan::{MILLISECOND, SECOND};

/// The answer to an acquire, and then to a renewal, is under way for longer than the lease lives.
pub(super) fn beyond_the_ttl(script: &mut Script) -> Check {
    script.hold_answers(ANN);
    let request = script.acquire(ANN, AcquireWith::NewLease(ttl(2)));
    let asked = script.ask(ANN, N1, request);
    script.advance(2_200)?;
    let (_, bob) = script.take_lock(BOB, N1, 10)?;
    script.deliver_answers();
    script.until("Ann's answer arrives", 10, |script| script.is_answered(&asked))?;
    let (lease, ann) = granted(&script.answers(&asked)[0])?;
    ensure(script.is_gone(lease), || "the story needs a lease that has ended".into())?;
    ensure(!script.believes(ANN), || "Ann believes an answer that is older than her lease".into())?;
    ensure(script.write(bob)? && !script.write(ann)?, || "the resource took the wrong write".into())?;

    let lease = script.take_lease(ANN, N1, 1)?;
    script.hold_answers(ANN);
    let renewal = script.renew(ANN, N1, lease);
    script.advance(1_200)?;
    ensure(script.held_answers() == 1, || "the renewal was not answered".into())?;
    script.deliver_answers();
    script.advance(1)?;
    ensure(script.was_renewed(&renewal), || "the renewal was not acknowledged".into())?;
    ensure(!script.counts_on(ANN, lease), || "a late answer brought a lease back".into())?;
    script.end(10)
}

/// The reply to a one-call acquire is lost; the retry, with the same request id, is answered from
/// memory, late. The lease is as old as the first send.
pub(super) fn retry_answered_late(script: &mut Script) -> Check {
    let first_sent = script.world.now;
    script.hold_answers(ANN);
    let request = script.acquire(ANN, AcquireWith::NewLease(ttl(2)));
    let asked = script.ask(ANN, N1, request);
    script.advance(1_000)?;
    ensure(script.held_answers() == 1, || "the acquire was not answered".into())?;
    script.lose_answers();
    script.hold_answers(ANN);
    script.retry(&asked, N1);
    script.advance_to(first_sent + 1_700 * MILLISECOND)?;
    script.deliver_answers();
    script.advance(1)?;
    let (lease, ann) = granted(&script.answers(&asked)[0])?;
    ensure(script.believes(ANN), || "Ann may act until 1.8 s after her first send".into())?;
    script.advance_to(first_sent + 1_800 * MILLISECOND)?;
    ensure(!script.believes(ANN), || "Ann counts from her retry".into())?;
    script.until("the lease ends", 300, |script| script.is_gone(lease))?;
    ensure(script.began_at(lease) < first_sent + 10 * MILLISECOND, || "the retry made a lease".into())?;
    let (_, bob) = script.take_lock(BOB, N1, 2)?;
    ensure(bob.0 == ann.0 + 1, || format!("between Ann's token {ann} and Bob's {bob} there was another"))?;
    ensure(!script.believes(ANN), || "Ann believes while Bob does".into())?;
    script.end(2)
}

/// Two renewals are under way. The second is lost; the answer to the first arrives after the second
/// was sent, and counts for the first.
pub(super) fn answer_to_the_first(script: &mut Script) -> Check {
    let (lease, ann) = script.take_lock(ANN, N1, 2)?;
    script.advance(300)?;
    let first_sent = script.world.now;
    script.hold_answers(ANN);
    let first = script.renew(ANN, N1, lease);
    script.advance(1_200)?;
    script.world.client_cut.insert((ANN, N1));
    let second = script.renew(ANN, N1, lease);
    script.advance(5)?;
    script.world.client_cut.clear();
    script.deliver_answers();
    script.advance(1)?;
    ensure(script.was_renewed(&first) && script.answers(&second).is_empty(), || {
        "the story needs the first answer and not the second".into()
    })?;
    script.advance_to(first_sent + 1_799 * MILLISECOND)?;
    ensure(script.believes(ANN), || "Ann may act until 1.8 s after the first renewal was sent".into())?;
    script.advance_to(first_sent + 1_800 * MILLISECOND)?;
    ensure(!script.believes(ANN), || "the answer to the first counted for the second".into())?;
    let lived = script.end_of(lease, first_sent, 400)?;
    ensure((2 * SECOND..2 * SECOND + 100 * MILLISECOND).contains(&lived), || {
        format!("the lease ended {} ms after the renewal that arrived", lived / MILLISECOND)
    })?;
    let (_, bob) = script.take_lock(BOB, N1, 2)?;
    ensure(bob > ann, || format!("Bob's token {bob} is not above Ann's {ann}"))?;
    let answer = script.answer_to(ANN, N1, Request::Renew { lease, holds: None })?;
    ensure(answer.is_err(), || "a lease that ended was renewed".into())?;
    script.end(2)
}
