//! The end of a lease is in the logs of a minority when its leader dies.
//!
//! Of five machines only `n1`, the leader, and `n2` have the `Expire` entry; it is not committed. Then
//! `n1` loses power. Either `n2` is elected and the entry with it, or one of the others is, and the
//! entry never was.
//!
//! Attacked: R4 (the entry counts only in the term of its decision: it keeps that term in the log of
//! whoever leads next) and R3 (who leads next forgets that it was decided). Must be true: where the
//! entry survives nobody was told "renewed" after the decision; where it does not, the lease lives on,
//! can be renewed, and its holder is still the holder when the losers come back.

use lowkey_core::{AcquireWith, LeaseId, Refusal, Token};
use lowkey_replica::{Failure, Request};

use super::script::{ANN, BOB, N1, N2, N3, Script, ensure, ttl};
use crate::invariants::{Check, Violation};
use crate::plan::{MILLISECOND, SECOND};

const N4: usize = 3;
const N5: usize = 4;

fn expire_on_a_minority(script: &mut Script) -> Result<(LeaseId, Token), Violation> {
    let (lease, ann) = script.take_lock(ANN, N1, 2)?;
    let due = script.began_at(lease) + 2 * SECOND;
    script.advance_to(due - 20 * MILLISECOND)?;
    [N3, N4, N5].into_iter().for_each(|far| script.cut(N1, far));
    let before = script.log_bounds(N2).1;
    script.until("n2 has the entry", 120, |script| script.log_bounds(N2).1 > before)?;
    script.advance(2)?;
    ensure(!script.is_gone(lease), || "two of five were enough to end a lease".into())?;
    script.crash(N1, true);
    Ok((lease, ann))
}

/// `n2` wins: nobody else could, since the others do not reach one another.
pub(super) fn that_wins(script: &mut Script) -> Check {
    let (lease, ann) = expire_on_a_minority(script)?;
    for (one, other) in [(N3, N4), (N3, N5), (N4, N5)] {
        script.cut_both(one, other);
    }
    let mut renewals = Vec::new();
    while script.leader() != Some(N2) {
        renewals.push(script.renew(ANN, N2, lease));
        script.advance(10)?;
        ensure(renewals.len() < 500, || "n2 is not elected".into())?;
    }
    script.advance(10)?;
    ensure(script.is_gone(lease), || "the decision of the last term was lost".into())?;
    ensure(!renewals.iter().any(|renewal| script.was_renewed(renewal)), || {
        "a lease was renewed while its end was in the log".into()
    })?;
    let (_, bob) = script.take_lock(BOB, N2, 2)?;
    ensure(bob > ann, || format!("Bob's token {bob} is not above Ann's {ann}"))?;
    script.end(2)
}

/// `n2` is cut off, one of the others wins, and the entry is overwritten.
pub(super) fn that_loses(script: &mut Script) -> Check {
    let (lease, ann) = expire_on_a_minority(script)?;
    script.isolate(N2);
    let leader = script.leader_other_than(N1, 3_000)?;
    ensure(leader != N2, || "a machine without peers leads".into())?;
    renew(script, leader, lease)?;
    // The two that still have the entry come back.
    script.restart(N1)?;
    script.heal();
    script.advance(1_000)?;
    let leader = script.leader_other_than(N2, 1_000)?;
    renew(script, leader, lease)?;
    script.advance(500)?;
    let expired = script.stage().expire_entries;
    ensure(expired == 0 && !script.is_gone(lease), || "an entry that lost was carried out".into())?;
    let request = script.acquire(BOB, AcquireWith::NewLease(ttl(2)));
    let answer = script.answer_to(BOB, leader, request)?;
    ensure(
        matches!(&answer, Err(Failure::Refused(Refusal::LockHeld { in_the_way, .. })) if in_the_way.holder.token == ann),
        || format!("Ann still holds, but Bob was told {answer:?}"),
    )?;
    script.end(2)
}

fn renew(script: &mut Script, leader: usize, lease: LeaseId) -> Check {
    let answer = script.answer_to(ANN, leader, Request::Renew { lease, holds: None })?;
    ensure(answer.is_ok(), || format!("the lease lives, but its renewal was answered {answer:?}"))
}
