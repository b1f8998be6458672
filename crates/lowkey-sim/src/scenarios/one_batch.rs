//! A lock comes free at the very moment at which the lease of its first waiter runs out.
//!
//! Ann holds, Bob waits on a lease of his own, Carol waits behind him. Attacked: the order of what one entry
//! does, and of entries in one batch (invariant 3: no grant to a lease that is gone, and its waiter is told at
//! once; 8.5: dead waiters vanish). Must be true: a waiter whose lease ends in the entry that frees the lock
//! gets nothing and learns why; one whose lease ends an entry later had the lock for nothing, does not believe
//! it, and the next in line has it in the same batch.

use lowkey_core::{AcquireWith, LeaseId, Refusal, Token};
use lowkey_replica::{Failure, Response};

use super::script::{ANN, BOB, CAROL, N1, Script, ScriptRequest, ensure, granted, ttl};
use crate::invariants::{Check, Violation};
use crate::plan::{MILLISECOND, SECOND};

/// How long after its deadline a lease is ended.
const GRACE: u64 = 20 * MILLISECOND;

struct Line {
    anns: LeaseId,
    ann: Token,
    bobs: LeaseId,
    bob: ScriptRequest,
    carol: ScriptRequest,
}

fn stand_in_line(script: &mut Script, anns_ttl: i64) -> Result<Line, Violation> {
    let bobs = script.take_lease(BOB, N1, 2)?;
    let (anns, ann) = script.take_lock(ANN, N1, anns_ttl)?;
    let bob = script.wait_in_line(BOB, N1, AcquireWith::Lease(bobs), 10_000)?;
    let carol = script.wait_in_line(CAROL, N1, AcquireWith::NewLease(ttl(2)), 10_000)?;
    Ok(Line { anns, ann, bobs, bob, carol })
}

/// The leases of Ann and Bob end in one entry.
pub(super) fn both_expire(script: &mut Script) -> Check {
    let Line { anns, ann, bobs, bob, carol } = stand_in_line(script, 2)?;
    let due = script.began_at(anns) + 2 * SECOND + GRACE;
    // Too short a pause for R8, which would give the time back; both are due when it is over.
    script.advance_to(due - 100 * MILLISECOND)?;
    script.pause(N1, 120);
    script.advance(200)?;
    ensure(script.is_gone(anns) && script.is_gone(bobs) && script.stage().expire_entries == 1, || {
        "the story needs one entry that ends both leases".into()
    })?;
    let told = script.answers(&bob);
    ensure(
        matches!(told, [Err(Failure::Refused(Refusal::LeaseNotFound { lease }))] if *lease == bobs),
        || format!("Bob's lease is gone, and he was told {told:?}"),
    )?;
    let (_, token) = granted(script.answers(&carol).first().unwrap_or(&Err(Failure::Busy)))?;
    ensure(token.0 == ann.0 + 1, || format!("between Ann's token {ann} and Carol's {token} was another"))?;
    ensure(script.believes(CAROL) && !script.believes(BOB), || "the wrong one believes".into())?;
    script.end(2)
}

/// Ann's release grants to Bob, and the next entry of the same batch ends his lease.
pub(super) fn granted_and_expired(script: &mut Script) -> Check {
    let Line { anns, ann, bobs, bob, carol } = stand_in_line(script, 20)?;
    let due = script.began_at(bobs) + 2 * SECOND + GRACE;
    script.advance_to(due - 100 * MILLISECOND)?;
    script.pause(N1, 120);
    script.advance(50)?;
    let request = script.release(ANN, anns, ann);
    script.ask(ANN, N1, request);
    script.advance(150)?;
    ensure(script.is_gone(bobs), || "the story needs the end of Bob's lease".into())?;
    let told = script.answers(&bob);
    ensure(matches!(told, [Ok(Response::GrantedAfter { .. })]), || format!("Bob was told {told:?}"))?;
    let (_, bobs_token) = granted(&told[0])?;
    ensure(!script.believes(BOB), || "Bob believes a grant on a lease that he no longer counts on".into())?;
    let (_, carols) = granted(script.answers(&carol).first().unwrap_or(&Err(Failure::Busy)))?;
    ensure(ann < bobs_token && bobs_token < carols, || "tokens do not rise".into())?;
    ensure(script.believes(CAROL) && script.write(carols)? && !script.write(bobs_token)?, || {
        "the resource took the wrong write".into()
    })?;
    script.end(20)
}
