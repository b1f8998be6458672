//! The nodes run with a longer tick of Raft, as for zones that are far apart.
//!
//! Attacked: everything that must grow with the tick, and R8, which must not. Must be true: a pause that would have cost
//! the lead with the usual tick costs nothing, not even a higher timing factor; R8 gives it back all the same, since it
//! counts true time; and a leader that dies is missed so many times later, and not more.

use super::script::{ANN, N1, Script, ensure};
use crate::invariants::Check;
use crate::plan::{MILLISECOND, SECOND};

/// Five times the shortest.
pub(super) const RAFT_TICK_MS: u64 = 50;

const TTL_SECONDS: i64 = 2;
/// With the shortest tick others would stand after 220 ms.
const PAUSE_MS: u64 = 400;
/// The first to stand waits for 22 ticks since the last heartbeat, which came up to 250 ms before.
const NOBODY_STANDS_MS: u64 = 800;
const REPLACED_MS: u64 = 1_300;

pub(super) fn bears_a_pause_and_replaces_the_dead_later(script: &mut Script) -> Check {
    let term = script.term(N1);
    let lease = script.take_lease(ANN, N1, TTL_SECONDS)?;
    let begun = script.world.now;
    script.advance(200)?;
    script.pause(N1, PAUSE_MS);
    script.advance(PAUSE_MS + 300)?;
    ensure(script.serves(N1), || "n1 lost the lead by a pause that is short for this tick".into())?;
    for node in 0..script.world.nodes.len() {
        let factor = script.lane(node).map_or(0, |lane| lane.replica.status().timing_factor);
        let seen = (script.term(node), factor);
        ensure(seen == (term, 1), || format!("n{}: term and factor are {seen:?}", node + 1))?;
    }
    let lived = script.end_of(lease, begun, 3_000)?;
    let (ttl, given) = (TTL_SECONDS as u64 * SECOND, (PAUSE_MS - 20) * MILLISECOND);
    ensure(lived >= ttl + given, || {
        format!("a lease of 2 s lived for {} ms through a stall of its leader", lived / MILLISECOND)
    })?;
    script.crash(N1, true);
    script.advance(NOBODY_STANDS_MS)?;
    ensure(script.leader().is_none(), || "n1 is replaced before this tick allows it".into())?;
    script.leader_other_than(N1, REPLACED_MS - NOBODY_STANDS_MS)?;
    script.end(TTL_SECONDS as u64)
}
