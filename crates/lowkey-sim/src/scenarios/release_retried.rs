//! A release comes again after its client has taken the lock again.
//!
//! Ann releases, the reply is lost, and she acquires anew with the same lease. Then a late copy of the
//! release arrives, at the old leader and at a new one. Attacked: request ids (invariant 9) and tokens
//! (section 5: a release that names an old token never touches a newer grant). Must be true: the copy
//! is answered as the first was and frees nothing; a release under a new id that names the old token
//! is refused; Ann holds with her second token all the while.

use lowkey_core::{AcquireWith, LeaseId, Refusal, Reply, Token};
use lowkey_replica::{Failure, Query, Request, Response};

use super::script::{ANN, BOB, N1, Script, ScriptRequest, ensure, granted, lock};
use crate::invariants::Check;

pub(super) fn after_reacquiring(script: &mut Script) -> Check {
    let lease = script.take_lease(ANN, N1, 5)?;
    let request = script.acquire(ANN, AcquireWith::Lease(lease));
    let (_, first) = granted(&script.answer_to(ANN, N1, request)?)?;
    script.hold_answers(ANN);
    let request = script.release(ANN, lease, first);
    let release = script.ask(ANN, N1, request);
    script.advance(10)?;
    ensure(script.held_answers() == 1, || "the release was not answered".into())?;
    script.lose_answers();
    let request = script.acquire(ANN, AcquireWith::Lease(lease));
    let (_, second) = granted(&script.answer_to(ANN, N1, request)?)?;
    ensure(second > first, || format!("the second grant has token {second} after {first}"))?;

    late_copy_frees_nothing(script, &release, N1, second)?;
    stale_release_is_refused(script, lease, first, N1)?;
    let leader = script.hand_over(N1)?;
    late_copy_frees_nothing(script, &release, leader, second)?;
    stale_release_is_refused(script, lease, first, leader)?;
    ensure(script.believes(ANN) && script.write(second)?, || "Ann lost her second grant".into())?;
    script.end(5)
}

fn late_copy_frees_nothing(
    script: &mut Script,
    release: &ScriptRequest,
    node: usize,
    second: Token,
) -> Check {
    let before = script.answers(release).len();
    script.send(release, node);
    script.until("the copy is answered", 50, |script| script.answers(release).len() > before)?;
    let answer = script.answers(release).last().cloned();
    ensure(matches!(answer, Some(Ok(Response::Applied(Reply::Released)))), || {
        format!("the late copy was answered {answer:?}")
    })?;
    let holder = script.answer_to(BOB, node, Request::Read(Query::Lock { lock: lock() }))?;
    let held = matches!(&holder, Ok(Response::Lock { lock, .. }) if lock.holders.iter().any(|holder| holder.token == second));
    ensure(held, || format!("after the late copy the lock reads {holder:?}"))
}

/// Somebody retries under a new id, with the token of the first grant.
fn stale_release_is_refused(script: &mut Script, lease: LeaseId, first: Token, node: usize) -> Check {
    let request = script.release(BOB, lease, first);
    let answer = script.answer_to(BOB, node, request)?;
    ensure(
        matches!(&answer, Err(Failure::Refused(Refusal::StaleToken { given, .. })) if *given == first),
        || format!("a release with an old token was answered {answer:?}"),
    )
}
