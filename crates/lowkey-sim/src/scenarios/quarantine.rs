//! A cluster that lost its quorum and began anew.
//!
//! Attacked: `docs/internals/tokens.md`, recovery. Clients of the old cluster may believe for the longest time to live that they hold something;
//! nobody here knows of them. The lead changes in the middle, and the next leader does not know how long the last one
//! waited.
//! Must be true: nothing is granted before one leader has waited for all of that time, leases can be made and renewed
//! meanwhile, and then all is as ever, with tokens above all that were.

use lowkey_core::AcquireWith;
use lowkey_replica::{Failure, Request};

use super::script::{ANN, BOB, N1, Script, ensure};
use crate::invariants::{Check, Violation};
use crate::node::QUARANTINE_NANOS;
use crate::plan::MILLISECOND;

/// Shorter than in earnest, as all times to live in these stories are.
const QUARANTINE_MS: u64 = QUARANTINE_NANOS / MILLISECOND;

/// Ann asks at once, in the middle, and just before the end; Bob when it is over.
pub(super) fn under_two_leaders(script: &mut Script) -> Check {
    is_refused(script, N1)?;
    let lease = script.take_lease(ANN, N1, 2)?;
    let answer = script.answer_to(ANN, N1, Request::Renew { lease, holds: None })?;
    ensure(answer.is_ok(), || format!("a renewal was answered {answer:?}"))?;
    script.advance(QUARANTINE_MS / 2)?;
    is_refused(script, N1)?;
    let second = script.hand_over(N1)?;
    let begun = script.world.now;
    script.advance(QUARANTINE_MS / 2)?;
    is_refused(script, second)?;
    // It began to wait a little before it was seen to serve.
    script.advance(QUARANTINE_MS / 2 - 200)?;
    is_refused(script, second)?;
    script.advance(300)?;
    let (_, token) = script.take_lock(BOB, second, 2)?;
    ensure(token.0 > 1_000 << 32, || format!("the first token is only {token}"))?;
    ensure(script.world.now - begun < QUARANTINE_NANOS + 1_000 * MILLISECOND, || {
        "the quarantine took too long".into()
    })?;
    script.end(2)
}

fn is_refused(script: &mut Script, node: usize) -> Result<(), Violation> {
    let lease = lowkey_core::Ttl::parse(2).expect("a short time");
    let request = script.acquire(ANN, AcquireWith::NewLease(lease));
    let answer = script.answer_to(ANN, node, request)?;
    ensure(matches!(answer, Err(Failure::Quarantine { .. })), || {
        format!("in quarantine an acquire was answered {answer:?}")
    })
}
