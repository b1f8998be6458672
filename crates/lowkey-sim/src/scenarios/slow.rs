//! A machine is busy, and the leader on it is late again and again.
//!
//! Attacked: the timing factor (how patient all are with a leader that is silent), and R8, which must not be stretched
//! with it. Must be true: a leader that is late keeps its lead, and what clients lost by its stalls is given back; once it
//! is in time again, all are as impatient as before, and a leader that dies is missed as soon.

use super::script::{ANN, N1, Script, ensure};
use crate::invariants::Check;
use crate::plan::{MILLISECOND, SECOND};

const TTL_SECONDS: i64 = 2;
/// Stalls that get longer: each makes all patient enough for the next.
const STALLS_MS: [u64; 3] = [100, 160, 220];
/// Without the factor, another would lead after this.
const LONG_STALL_MS: u64 = 500;

/// The leader stalls for longer than any election would take without the factor.
pub(super) fn keeps_its_lead(script: &mut Script) -> Check {
    all_become_patient(script)?;
    let term = script.term(N1);
    let lease = script.take_lease(ANN, N1, TTL_SECONDS)?;
    let begun = script.world.now;
    script.advance(200)?;
    script.pause(N1, LONG_STALL_MS);
    script.advance(LONG_STALL_MS + 300)?;
    ensure(script.serves(N1), || "n1 lost the lead, though all know that it is slow".into())?;
    for node in 0..script.world.nodes.len() {
        ensure(script.term(node) == term, || format!("n{} stood for election", node + 1))?;
    }
    // R8 counts in true milliseconds: 500 of them are a stall, however patient all are.
    let lived = script.end_of(lease, begun, 3_000)?;
    let (ttl, given) = (TTL_SECONDS as u64 * SECOND, (LONG_STALL_MS - 20) * MILLISECOND);
    ensure(lived >= ttl + given, || {
        format!("a lease of 2 s lived for {} ms through a stall of its leader", lived / MILLISECOND)
    })?;
    script.end(TTL_SECONDS as u64)
}

/// The leader is in time again for a while, and then it dies.
pub(super) fn over(script: &mut Script) -> Check {
    all_become_patient(script)?;
    script.advance(16_000)?;
    for node in 0..script.world.nodes.len() {
        let factor = factor(script, node);
        ensure(factor == 1, || format!("n{} is still patient, by a factor of {factor}", node + 1))?;
    }
    script.crash(N1, true);
    script.leader_other_than(N1, 400)?;
    script.end(1)
}

/// Not the leader is late but what it hears: the answers of both others take their time.
pub(super) fn late_answers(script: &mut Script) -> Check {
    let term = script.term(N1);
    for stall in [140, 190, 300, 500] {
        script.others(N1).into_iter().for_each(|other| script.pause(other, stall));
        script.advance(stall + 100)?;
    }
    for node in 0..script.world.nodes.len() {
        let (factor, now) = (factor(script, node), script.term(node));
        ensure((factor, now) == (4, term), || format!("n{}: factor {factor}, term {now}", node + 1))?;
    }
    script.end(1)
}

fn all_become_patient(script: &mut Script) -> Check {
    for stall in STALLS_MS {
        script.pause(N1, stall);
        script.advance(stall + 100)?;
    }
    ensure(factor(script, N1) == 4, || "the leader does not notice how late it is".into())
}

fn factor(script: &Script, node: usize) -> u32 {
    script.lane(node).map_or(0, |lane| lane.replica.status().timing_factor)
}
