//! A renewal in the very step in which its lease runs out.
//!
//! The leader takes a renewal from its inbox and ticks in one step, and in this tick the lease's
//! deadline has passed. Either may come first.
//!
//! Attacked: R4 (from the decision on only its entry speaks) and R2 (check and new deadline in one
//! step). Must be true: the renewal and the end never both happen. A renewal that was not confirmed
//! before the tick learns that the lease is gone, once, and not before it is; one that was confirmed
//! moves the deadline, and the lease lives its whole time from there.

use lowkey_core::Refusal;
use lowkey_replica::{Failure, Input, MessageType};

use super::script::{ANN, BOB, N1, Script, ensure};
use crate::invariants::Check;
use crate::plan::{MILLISECOND, SECOND};

/// How long after its deadline a lease is ended.
const GRACE: u64 = 20 * MILLISECOND;

/// The inbox holds the renewal, then the step ticks.
pub(super) fn before_the_tick(script: &mut Script) -> Check {
    in_one_step(script, false)
}

/// The inbox holds a tick, then the renewal.
pub(super) fn after_the_tick(script: &mut Script) -> Check {
    in_one_step(script, true)
}

fn in_one_step(script: &mut Script, tick_first: bool) -> Check {
    let (lease, ann) = script.take_lock(ANN, N1, 1)?;
    let due = script.began_at(lease) + SECOND + GRACE;
    // Too short a pause for R8, which would give the time back.
    script.advance_to(due - 100 * MILLISECOND)?;
    script.pause(N1, 110);
    script.advance(50)?;
    if tick_first {
        script.input(N1, Input::Tick);
    }
    let renewal = script.renew(ANN, N1, lease);
    // The round is confirmed long before the entry that ends the lease is.
    for peer in script.others(N1) {
        script.hold_messages(peer, N1, MessageType::MsgAppendResponse);
    }
    script.advance(120)?;
    ensure(!script.is_answered(&renewal), || {
        format!("before the lease had ended it was said: {:?}", script.answers(&renewal))
    })?;
    script.deliver_messages();
    script.until("the renewal is answered", 100, |script| script.is_answered(&renewal))?;
    let answers = script.answers(&renewal);
    ensure(
        matches!(answers, [Err(Failure::Refused(Refusal::LeaseNotFound { lease: gone }))] if *gone == lease),
        || format!("the renewal of a lease that ran out was answered {answers:?}"),
    )?;
    ensure(script.is_gone(lease), || "it was said to be gone before it was".into())?;
    let (_, bob) = script.take_lock(BOB, N1, 1)?;
    ensure(bob > ann, || format!("Bob's token {bob} is not above Ann's {ann}"))?;
    script.end(1)
}

/// The round is confirmed a few milliseconds before the tick: the lease lives on.
pub(super) fn confirmed_in_time(script: &mut Script) -> Check {
    let (lease, _) = script.take_lock(ANN, N1, 1)?;
    let due = script.began_at(lease) + SECOND + GRACE;
    script.advance_to(due - 10 * MILLISECOND)?;
    let sent = script.world.now;
    let renewal = script.renew(ANN, N1, lease);
    script.until("the renewal is answered", 50, |script| script.is_answered(&renewal))?;
    ensure(script.was_renewed(&renewal), || {
        format!("a lease in its last moment could not be renewed: {:?}", script.answers(&renewal))
    })?;
    let lived = script.end_of(lease, sent, 1_200)?;
    let window = SECOND..SECOND + 100 * MILLISECOND;
    ensure(window.contains(&lived), || {
        format!("the lease ended {} ms after its renewal", lived / MILLISECOND)
    })?;
    script.end(1)
}
