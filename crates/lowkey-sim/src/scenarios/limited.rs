//! A job that hangs, and renews its lease well.
//!
//! Ann's grant has a limit. Attacked: R3 (a new leader gives the grant its whole time anew, and does not forget it), R4
//! (the end names one grant: what was given back and granted anew between decision and entry is not touched). Must be
//! true: the lock goes to Bob when the limit is over, not before; Ann has stopped believing by then, and her lease
//! lives on.

use lowkey_core::{AcquireWith, LeaseId, Token};
use lowkey_replica::{DiskRoom, Input};

use super::script::{ANN, BOB, N1, Script, ensure, granted, ttl};
use crate::invariants::{Check, Violation};
use crate::plan::{MILLISECOND, SECOND};

/// How long after its deadline a grant is ended.
const GRACE: u64 = 20 * MILLISECOND;

/// Ann takes the lock for so long at most, with a lease of 5 s.
fn take(script: &mut Script, seconds: i64) -> Result<(LeaseId, Token), Violation> {
    let request = script.acquire_limited(ANN, AcquireWith::NewLease(ttl(5)), seconds);
    granted(&script.answer_to(ANN, N1, request)?)
}

/// Renews Ann's lease again and again, until the lock has another holder.
fn until_taken(script: &mut Script, lease: LeaseId, ms_max: u64) -> Check {
    let end = script.world.now + ms_max * MILLISECOND;
    while script.holder().is_none_or(|(owner, ..)| owner == "ann") {
        ensure(script.world.now < end, || format!("Ann still holds after {ms_max} ms"))?;
        if let Some(leader) = script.leader() {
            script.renew(ANN, leader, lease);
        }
        script.advance(50)?;
    }
    Ok(())
}

/// The leader ends it in its time.
pub(super) fn ends_in_time(script: &mut Script) -> Check {
    let (lease, _) = take(script, 2)?;
    let due = script.began_at(lease) + 2 * SECOND + GRACE;
    script.wait_in_line(BOB, N1, AcquireWith::NewLease(ttl(5)), 20_000)?;
    until_taken(script, lease, 2_200)?;
    ensure(script.world.now >= due, || "it was taken before its time".into())?;
    ensure(!script.believes(ANN), || "Ann believes in what Bob holds".into())?;
    ensure(script.counts_on(ANN, lease) && !script.is_gone(lease), || "her lease ended with it".into())?;
    script.end(5)
}

/// The leader loses power in the middle: the next one begins anew, and ends it too.
pub(super) fn under_two_leaders(script: &mut Script) -> Check {
    let (lease, _) = take(script, 2)?;
    script.wait_in_line(BOB, N1, AcquireWith::NewLease(ttl(5)), 20_000)?;
    script.advance(1_500)?;
    script.crash(N1, true);
    script.leader_other_than(N1, 3_000)?;
    let served = script.world.now;
    until_taken(script, lease, 2_300)?;
    // The look for a new leader is not as fine as its clock.
    ensure(script.world.now + MILLISECOND >= served + 2 * SECOND, || {
        "the new leader did not give it its whole time".into()
    })?;
    script.end(5)
}

/// The end is decided, and the disk has no room for it. When there is room, Ann gives the lock back and takes it once
/// more, perhaps before the leader's next tick.
pub(super) fn given_back_before_its_end(script: &mut Script) -> Check {
    let lease = script.take_lease(ANN, N1, 5)?;
    for offset in 0..10 {
        let request = script.acquire_limited(ANN, AcquireWith::Lease(lease), 1);
        let (_, first) = granted(&script.answer_to(ANN, N1, request)?)?;
        script.advance(990)?;
        script.input(N1, Input::Disk(DiskRoom::Exhausted));
        script.advance(100 + offset)?;
        script.renew(ANN, N1, lease);
        script.input(N1, Input::Disk(DiskRoom::Ample));
        let request = script.release(ANN, lease, first);
        // One or the other ended it.
        let _ = script.answer_to(ANN, N1, request)?;
        let request = script.acquire_limited(ANN, AcquireWith::Lease(lease), 1);
        let (_, second) = granted(&script.answer_to(ANN, N1, request)?)?;
        script.advance(100)?;
        let holder = script.holder().map(|(.., token)| token);
        ensure(holder == Some(second) && script.believes(ANN), || "a later grant was taken".into())?;
        let request = script.release(ANN, lease, second);
        let _ = script.answer_to(ANN, N1, request)?;
        script.renew(ANN, N1, lease);
        script.advance(50)?;
    }
    ensure(script.stage().hold_entries > 0, || "no end was ever decided".into())?;
    script.end(5)
}
