//! A machine loses power between its snapshot and the cut of its log.
//!
//! A snapshot is written first, and only then is the log before it given up: two files, and a crash
//! may leave them out of step. Attacked: recovery (invariant 10: log replay = snapshot + tail). Must be
//! true: the machine starts again from what it finds, a leader and a follower alike; it comes to the
//! state of the others; and the next snapshot cuts the log as if nothing had been.

use lowkey_core::AcquireWith;

use super::script::{BOB, N1, N2, Script, ensure, granted};
use crate::invariants::Check;
use crate::plan::{MILLISECOND, SECOND};

/// So long that no lease ends, which would busy the disk, before the story does.
const TTL_SECONDS: i64 = 60;

/// The snapshot is on disk; the replica is not told before the power goes.
pub(super) fn before_compaction(script: &mut Script) -> Check {
    for node in [N1, N2] {
        work_until_a_snapshot_is_written(script, node)?;
        let (saved, first) = (script.newest_snapshot(node), script.log_bounds(node).0);
        script.pause(node, 1_000);
        script.until("the snapshot is on disk", 500, |script| script.newest_snapshot(node) > saved)?;
        ensure(script.log_bounds(node).0 == first, || "the log was cut before the crash".into())?;
        come_back(script, node, first)?;
    }
    script.end(TTL_SECONDS as u64)
}

/// The record that cuts the log is written, and not yet synced.
pub(super) fn during_compaction(script: &mut Script) -> Check {
    for node in [N1, N2] {
        work_until_a_snapshot_is_written(script, node)?;
        let first = script.log_bounds(node).0;
        script.world.nodes[node].stalled_until = script.world.now + 2 * SECOND;
        script.until("the log is being cut", 500, |script| script.log_bounds(node).0 > first)?;
        let process = script.world.nodes[node].process.as_ref();
        ensure(process.is_some_and(|process| process.syncing), || "the cut is on disk already".into())?;
        come_back(script, node, first)?;
    }
    script.end(TTL_SECONDS as u64)
}

fn work(script: &mut Script) -> Check {
    script.until("a leader", 2_000, |script| script.leader().is_some())?;
    let leader = script.leader().unwrap_or(N1);
    let lease = script.take_lease(BOB, leader, TTL_SECONDS)?;
    let request = script.acquire(BOB, AcquireWith::Lease(lease));
    let (_, token) = granted(&script.answer_to(BOB, leader, request)?)?;
    let request = script.release(BOB, lease, token);
    let answer = script.answer_to(BOB, leader, request)?;
    ensure(answer.is_ok(), || format!("the lock was not given back: {answer:?}"))
}

fn work_until_a_snapshot_is_written(script: &mut Script, node: usize) -> Check {
    for _ in 0..100 {
        if script.world.is_writing_snapshot(node) {
            return Ok(());
        }
        work(script)?;
    }
    ensure(false, || format!("n{} takes no snapshot", node + 1))
}

fn come_back(script: &mut Script, node: usize, first: u64) -> Check {
    script.crash(node, true);
    script.world.nodes[node].stalled_until = 0;
    script.restart(node)?;
    let snapshot = script.newest_snapshot(node);
    let lane = script.lane(node).expect("it has just started");
    let revision = lane.replica.state().revision();
    ensure(revision >= snapshot, || format!("it started at {revision}, with a snapshot of {snapshot}"))?;
    script.advance_to(script.world.now + 500 * MILLISECOND)?;
    for _ in 0..30 {
        work(script)?;
    }
    script.advance(500)?;
    ensure(script.log_bounds(node).0 > first, || "the log is never cut again".into())
}
