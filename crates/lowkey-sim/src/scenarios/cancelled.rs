//! The end of a wait is on its way into the log, and something else is, too.
//!
//! Bob's time is over: `CancelWait` is proposed and not committed yet. Attacked: R10. Must be true: of a grant
//! and a cancellation the first entry wins, and Bob is told of that one alone; who comes back meanwhile waits
//! on, and hears of no timeout; who gives up has nothing afterwards, whichever came first, and is told so as
//! often as it asks.

use lowkey_core::{AcquireWith, Refusal, Reply, Token};
use lowkey_replica::{Failure, MessageType, Response};

use super::script::{ANN, BOB, CAROL, N1, Script, ScriptRequest, ensure, granted, ttl};
use crate::invariants::{Check, Violation};

/// Ann holds, Bob waits for 500 ms, and 450 of them are over; nothing is committed any more.
fn almost_over(script: &mut Script) -> Result<(lowkey_core::LeaseId, Token, ScriptRequest), Violation> {
    let (lease, ann) = script.take_lock(ANN, N1, 20)?;
    let bob = script.wait_in_line(BOB, N1, AcquireWith::NewLease(ttl(2)), 500)?;
    script.advance(450)?;
    for peer in script.others(N1) {
        script.hold_messages(peer, N1, MessageType::MsgAppendResponse);
    }
    Ok((lease, ann, bob))
}

/// The release is in the log before the cancellation.
pub(super) fn after_the_grant(script: &mut Script) -> Check {
    let (lease, ann, bob) = almost_over(script)?;
    let request = script.release(ANN, lease, ann);
    script.ask(ANN, N1, request);
    let before = script.log_bounds(N1).1;
    script.until("the cancellation is in the log", 100, |script| script.log_bounds(N1).1 > before + 1)?;
    ensure(!script.is_answered(&bob), || "Bob was told something before it was so".into())?;
    script.deliver_messages();
    script.until("Bob is told", 50, |script| script.is_answered(&bob))?;
    script.advance(100)?;
    let told = script.answers(&bob);
    ensure(matches!(told, [Ok(Response::GrantedAfter { .. })]), || format!("Bob was told {told:?}"))?;
    ensure(script.believes(BOB), || "Bob does not believe".into())?;
    script.end(20)
}

/// The cancellation is in the log before the release.
pub(super) fn before_the_grant(script: &mut Script) -> Check {
    let (lease, ann, bob) = almost_over(script)?;
    let before = script.log_bounds(N1).1;
    script.until("the cancellation is in the log", 100, |script| script.log_bounds(N1).1 > before)?;
    let request = script.release(ANN, lease, ann);
    script.ask(ANN, N1, request);
    script.advance(20)?;
    ensure(!script.is_answered(&bob), || "Bob was told something before it was so".into())?;
    script.deliver_messages();
    script.advance(100)?;
    let told = script.answers(&bob);
    ensure(
        matches!(told, [Err(Failure::WaitTimeout { in_the_way: Some(by), .. })] if by.holder.token == ann),
        || format!("Bob was told {told:?}"),
    )?;
    let (_, carol) = script.take_lock(CAROL, N1, 2)?;
    ensure(carol.0 == ann.0 + 1 && !script.believes(BOB), || "somebody held in between".into())?;
    script.end(20)
}

/// Bob's connection broke, and he is back when the cancellation is under way: he waits on, as the last.
pub(super) fn and_its_reconnect(script: &mut Script) -> Check {
    let (lease, ann) = script.take_lock(ANN, N1, 20)?;
    let bob = script.wait_in_line(BOB, N1, AcquireWith::NewLease(ttl(2)), 500)?;
    let carol = script.wait_in_line(CAROL, N1, AcquireWith::NewLease(ttl(2)), 10_000)?;
    script.leave(&bob, N1);
    script.advance(400)?;
    for peer in script.others(N1) {
        script.hold_messages(peer, N1, MessageType::MsgAppendResponse);
    }
    let before = script.log_bounds(N1).1;
    script.until("the cancellation is in the log", 200, |script| script.log_bounds(N1).1 > before)?;
    let again = bob.for_longer(10_000);
    script.retry(&again, N1);
    script.advance(60)?;
    script.deliver_messages();
    script.until("Bob is in line again", 100, |script| script.waiters() == ["carol", "bob"])?;
    ensure(!script.is_answered(&again), || format!("Bob was told {:?}", script.answers(&again)))?;
    let request = script.release(ANN, lease, ann);
    script.ask(ANN, N1, request);
    script.until("Carol has it", 50, |script| script.is_answered(&carol))?;
    let (lease, token) = granted(&script.answers(&carol)[0])?;
    let request = script.release(CAROL, lease, token);
    script.ask(CAROL, N1, request);
    script.until("Bob has it", 50, |script| script.is_answered(&again))?;
    granted(&script.answers(&again)[0])?;
    ensure(script.answers(&again).len() == 1 && script.believes(BOB), || "Bob does not believe".into())?;
    script.end(20)
}

/// Bob gives up while the lock is handed to him; Ann's release is in the log first, or his.
pub(super) fn and_given_up(script: &mut Script) -> Check {
    for ann_first in [true, false] {
        let (lease, ann) = script.take_lock(ANN, N1, 20)?;
        let bob = script.wait_in_line(BOB, N1, AcquireWith::NewLease(ttl(2)), 5_000)?;
        let (release, give_up) = (script.release(ANN, lease, ann), script.give_up(&bob));
        let gives_up = if ann_first {
            script.ask(ANN, N1, release);
            script.ask(BOB, N1, give_up)
        } else {
            let gives_up = script.ask(BOB, N1, give_up);
            script.ask(ANN, N1, release);
            gives_up
        };
        script.until("Bob is rid of it", 50, |script| script.is_answered(&gives_up))?;
        let told = script.answers(&gives_up);
        ensure(matches!(told, [Ok(Response::Applied(Reply::Released))]), || {
            format!("Bob was told {told:?}")
        })?;
        // Its answer might have been lost.
        script.send(&gives_up, N1);
        script.until("Bob is told again", 50, |script| script.answers(&gives_up).len() == 2)?;
        let again = &script.answers(&gives_up)[1];
        ensure(matches!(again, Ok(Response::Applied(Reply::Released))), || {
            format!("a release that was done was answered {again:?}")
        })?;
        let (told, was_granted) = (script.answers(&bob), ann_first);
        let as_it_was = match told {
            [Ok(Response::GrantedAfter { .. })] => was_granted,
            [Err(Failure::WaitGivenUp { .. })] => !was_granted,
            _ => false,
        };
        ensure(as_it_was, || format!("the wait was answered {told:?}"))?;
        ensure(script.holder().is_none() && !script.believes(BOB), || "Bob still has it".into())?;
        script.advance(100)?;
    }
    script.end(20)
}

/// Bob asks a node that does not lead, and gives up at the one that does: nothing is there to end. Then the copy that
/// was still under way arrives. Or he gives up while he waits, and a copy of that arrives.
pub(super) fn before_it_came(script: &mut Script) -> Check {
    for waits in [false, true] {
        let (lease, ann) = script.take_lock(ANN, N1, 20)?;
        let with = AcquireWith::Lease(script.take_lease(BOB, N1, 20)?);
        let asked = match waits {
            true => script.wait_in_line(BOB, N1, with, 5_000)?,
            false => {
                let request = script.acquire_waiting(BOB, with, 5_000);
                let follower = script.others(N1)[0];
                script.ask(BOB, follower, request)
            }
        };
        script.advance(20)?;
        let give_up = script.give_up(&asked);
        let gives_up = script.ask(BOB, N1, give_up);
        script.until("Bob is rid of it", 50, |script| script.is_answered(&gives_up))?;
        let told = script.answers(&gives_up);
        ensure(matches!(told, [Ok(Response::Applied(Reply::Released))]), || {
            format!("Bob was told {told:?}")
        })?;
        let answers = script.answers(&asked).len();
        script.send(&asked, N1);
        script.until("the late copy is answered", 50, |script| script.answers(&asked).len() > answers)?;
        let told = script.answers(&asked).last().cloned();
        ensure(matches!(told, Some(Err(Failure::Refused(Refusal::GivenUp { .. })))), || {
            format!("the late copy was told {told:?}")
        })?;
        let release = script.release(ANN, lease, ann);
        script.ask(ANN, N1, release);
        script.advance(100)?;
        ensure(script.holder().is_none() && !script.believes(BOB), || "Bob has it".into())?;
    }
    script.end(20)
}
