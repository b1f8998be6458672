//! Ten thousand leases run out in one tick, and are ended over several.
//!
//! A change of leader gives every lease its whole time from one moment on (R3), so that leases made at
//! different times run out together. Attacked: R4 (many leases in one entry, and no entry without
//! bound) and the promise that a lease is gone 100 ms after its time. Must be true: all of them are
//! gone in time, with a few entries; a client that renews in the midst of it is answered at once and
//! keeps its lock.

use lowkey_core::LeaseId;

use super::script::{ANN, BOB, N1, Script, ensure};
use crate::invariants::Check;
use crate::plan::{MILLISECOND, SECOND};

const LEASES: usize = 10_000;
const TTL_SECONDS: i64 = 5;

pub(super) fn expire_in_one_tick(script: &mut Script) -> Check {
    let (bobs, bob) = script.take_lock(BOB, N1, TTL_SECONDS)?;
    for made in 1..=LEASES {
        let request = script.create_lease(ANN, TTL_SECONDS);
        script.ask(ANN, N1, request);
        if made % 200 == 0 {
            script.advance(5)?;
        }
    }
    script.advance(50)?;
    let leader = script.hand_over(N1)?;
    let served_at = script.world.now;
    script.advance(3_000)?;
    let stage = script.stage();
    let leases: Vec<LeaseId> = stage.begun.keys().copied().filter(|lease| *lease != bobs).collect();
    ensure(leases.len() == LEASES && stage.ended.is_empty(), || {
        format!("{} leases were made, and {} have ended", leases.len(), stage.ended.len())
    })?;
    let renewal = script.renew(BOB, leader, bobs);
    script.advance_to(served_at + 5 * SECOND + 15 * MILLISECOND)?;
    ensure(script.was_renewed(&renewal), || "Bob's first renewal was not acknowledged".into())?;
    let renewal = script.renew(BOB, leader, bobs);
    script.advance_to(served_at + 5 * SECOND + 100 * MILLISECOND)?;
    ensure(script.was_renewed(&renewal), || "a renewal was held up by ten thousand ends".into())?;
    let left = leases.iter().filter(|lease| !script.is_gone(**lease)).count();
    ensure(left == 0, || format!("{left} leases live 100 ms after their time"))?;
    let entries = script.stage().expire_entries;
    ensure((7..=8).contains(&entries), || format!("it took {entries} entries"))?;
    ensure(script.believes(BOB) && script.write(bob)?, || "Bob lost his lock".into())?;
    script.end(5)
}
