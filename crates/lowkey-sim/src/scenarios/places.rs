//! A place in a queue, and who it is kept for.
//!
//! Attacked: R10 (a closed connection has 5 s before its wait is cancelled; the same request id takes its
//! place again, also after a change of leader) and R7 (the time of a lease that a wait makes begins with the
//! grant). Must be true: who comes back in time has not lost its place; who does not is gone after 5 s and not
//! before; whoever waits on a lease learns at once that it is gone; a wait may be longer than the time to
//! live that it is for, and is believed for what is left of both.

use lowkey_core::{AcquireWith, Command, Refusal};
use lowkey_replica::{Failure, Request, Response};

use super::script::{ANN, BOB, CAROL, N1, Script, ensure, granted, ttl};
use crate::invariants::Check;
use crate::plan::{MILLISECOND, SECOND};

/// Bob comes back to his leader, and then, after Carol, to another one.
pub(super) fn kept_for_who_comes_back(script: &mut Script) -> Check {
    let (lease, ann) = script.take_lock(ANN, N1, 30)?;
    let bobs = script.take_lease(BOB, N1, 30)?;
    let bob = script.wait_in_line(BOB, N1, AcquireWith::Lease(bobs), 20_000)?;
    let carol = script.wait_in_line(CAROL, N1, AcquireWith::NewLease(ttl(2)), 20_000)?;
    script.leave(&bob, N1);
    script.advance(4_500)?;
    script.retry(&bob, N1);
    script.advance(2_000)?;
    ensure(script.waiters() == ["bob", "carol"], || format!("in line are {:?}", script.waiters()))?;
    let leader = script.hand_over(N1)?;
    for asked in [&bob, &carol] {
        let told = script.answers(asked);
        ensure(matches!(told, [Err(Failure::Interrupted { .. })]), || format!("told was {told:?}"))?;
    }
    script.retry(&carol, leader);
    script.advance(4_000)?;
    script.retry(&bob, leader);
    script.advance(2_000)?;
    let request = script.release(ANN, lease, ann);
    script.ask(ANN, leader, request);
    script.until("Bob has it", 50, |script| script.answers(&bob).len() == 2)?;
    let told = script.answers(&bob)[1].clone();
    let (_, token) = granted(&told)?;
    // The new leader cannot know of the time before it led.
    let waited = match told {
        Ok(Response::GrantedAfter { waited_ms, .. }) => waited_ms,
        _ => u64::MAX,
    };
    ensure((5_000..7_500).contains(&waited), || format!("Bob is told that he waited {waited} ms"))?;
    ensure(script.believes(BOB) && script.write(token)?, || "Bob does not believe".into())?;
    let request = script.release(BOB, bobs, token);
    script.ask(BOB, leader, request);
    script.until("Carol has it", 50, |script| script.answers(&carol).len() == 2)?;
    granted(&script.answers(&carol)[1])?;
    script.end(30)
}

/// Bob's connection closes, and he does not come back.
pub(super) fn kept_for_five_seconds(script: &mut Script) -> Check {
    script.take_lock(ANN, N1, 30)?;
    let bob = script.wait_in_line(BOB, N1, AcquireWith::NewLease(ttl(2)), 60_000)?;
    script.advance(1_000)?;
    script.leave(&bob, N1);
    script.advance(4_900)?;
    ensure(script.waiters() == ["bob"], || "Bob's place was not kept for him".into())?;
    script.advance(300)?;
    ensure(script.waiters().is_empty(), || "the place of one who is gone is kept for ever".into())?;
    ensure(!script.is_answered(&bob), || "one who is gone was answered".into())?;
    script.end(30)
}

/// Bob waits on a lease, and revokes it.
pub(super) fn lost_with_its_lease(script: &mut Script) -> Check {
    script.take_lock(ANN, N1, 10)?;
    let lease = script.take_lease(BOB, N1, 10)?;
    let bob = script.wait_in_line(BOB, N1, AcquireWith::Lease(lease), 8_000)?;
    let owner = script.world.clients[BOB].owner.clone();
    let request = script.world.clients[BOB].next_request_id();
    let revoke = Command::RevokeLease { lease, owner, actor: None, since_unix_ms: 0, request };
    let revoked = script.ask(BOB, N1, Request::Command(revoke));
    script.until("the lease is revoked", 50, |script| script.is_answered(&revoked))?;
    script.advance(1)?;
    let told = script.answers(&bob);
    ensure(
        matches!(told, [Err(Failure::Refused(Refusal::LeaseNotFound { lease: gone }))] if *gone == lease),
        || format!("Bob waits on a lease that is gone, and was told {told:?}"),
    )?;
    ensure(script.waiters().is_empty(), || "a dead waiter is in line".into())?;
    script.end(10)
}

/// Bob asks for a lease of 1 s with the lock, and waits for 3 s.
pub(super) fn longer_than_its_ttl(script: &mut Script) -> Check {
    let (lease, ann) = script.take_lock(ANN, N1, 10)?;
    let first_sent = script.world.now;
    let bob = script.wait_in_line(BOB, N1, AcquireWith::NewLease(ttl(1)), 5_000)?;
    script.advance_to(first_sent + 3 * SECOND)?;
    let request = script.release(ANN, lease, ann);
    script.ask(ANN, N1, request);
    script.until("Bob has it", 50, |script| script.is_answered(&bob))?;
    let (bobs, token) = granted(&script.answers(&bob)[0])?;
    ensure(script.believes(BOB) && script.write(token)?, || "Bob does not believe".into())?;
    script.advance_to(first_sent + 3_550 * MILLISECOND)?;
    ensure(script.believes(BOB), || "Bob may act for nine tenths of wait and time to live".into())?;
    script.advance_to(first_sent + 3_650 * MILLISECOND)?;
    ensure(!script.believes(BOB) && !script.is_gone(bobs), || "belief must end first".into())?;
    let lived = script.end_of(bobs, script.began_at(bobs), 1_000)?;
    ensure((SECOND..SECOND + 100 * MILLISECOND).contains(&lived), || {
        format!("a lease of 1 s lived for {} ms", lived / MILLISECOND)
    })?;
    script.end(10)
}
