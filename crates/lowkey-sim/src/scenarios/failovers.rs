//! Leaders come and go, and a holder that does its duty keeps its lock.
//!
//! Attacked: R3 (a new leader gives every lease its whole time) and what it costs: a dead client's
//! lease lives on for as long as leaders change faster than it runs out. Must be true: no change of
//! leader ends a lease whose client renews, tokens and holders survive all of them, every renewal gets
//! one answer, and once leaders stop changing a dead lease is gone one time to live later.

use lowkey_core::{AcquireWith, LeaseId, Refusal, Token};
use lowkey_replica::{Failure, Input, MessageType, Request};

use super::script::{ANN, BOB, CAROL, N1, N2, N3, Script, ensure, granted, ttl};
use crate::invariants::{Check, Violation};
use crate::plan::{MILLISECOND, SECOND};

const TTL_SECONDS: i64 = 2;
const FAILOVERS: u64 = 200;

/// The plainest of all, which `docs/internals/simulator.md` tells: the leader loses power, its clients look for
/// the next one, Ann keeps her lock; then she falls silent, and it goes to Bob.
pub(super) fn told(script: &mut Script) -> Check {
    let (lease, ann) = script.take_lock(ANN, N1, TTL_SECONDS)?;
    script.advance(600)?;
    renew_and_try(script, lease, ann)?;
    script.advance(200)?;
    script.crash(N1, true);
    script.advance(100)?;
    script.tell("ann asks n1 to renew lease 1, and nobody is there to hear it");
    script.renew(ANN, N1, lease);
    let leader = script.leader_other_than(N1, 900)?;
    let follower = if leader == N2 { N3 } else { N2 };
    let answer = script.answer_to(ANN, follower, Request::Renew { lease, holds: None })?;
    ensure(matches!(answer, Err(Failure::NotLeader { leader: Some(_) })), || {
        format!("a follower answered {answer:?}")
    })?;
    renew_and_try(script, lease, ann)?;
    script.restart(N1)?;
    script.advance(500)?;
    ensure(script.believes(ANN), || "Ann lost her lock to a change of leader".into())?;
    script.tell("ann falls silent");
    script.until("Ann's belief ends", 1_800, |script| !script.believes(ANN))?;
    ensure(!script.is_gone(lease), || "the lease ended before the belief".into())?;
    script.until("Ann's lease ends", 300, |script| script.is_gone(lease))?;
    let (_, bob) = script.take_lock(BOB, leader, TTL_SECONDS)?;
    ensure(bob > ann, || format!("Bob's token {bob} is not above Ann's {ann}"))?;
    ensure(script.write(bob)? && !script.write(ann)?, || "the resource took the wrong write".into())?;
    script.end(2)
}

/// By turns the lead is handed over, the leader loses power, or it is paused.
pub(super) fn every_half_ttl(script: &mut Script) -> Check {
    let (lease, ann) = script.take_lock(ANN, N1, TTL_SECONDS)?;
    // Carol makes a lease and is never heard of again.
    let carols = script.take_lease(CAROL, N1, TTL_SECONDS)?;
    let mut served_at = 0;
    for failover in 0..FAILOVERS {
        let next_at = script.world.now + SECOND;
        served_at = change_leader(script, failover)?;
        renew_and_try(script, lease, ann)?;
        script.advance_to((next_at - 50 * MILLISECOND).max(script.world.now))?;
        renew_and_try(script, lease, ann)?;
        script.advance_to(next_at.max(script.world.now))?;
    }
    // The documented price of R3.
    ensure(!script.is_gone(carols), || "a lease ended though every leader was new".into())?;
    let lived = script.end_of(carols, served_at, 2_200)?;
    ensure(lived <= 2 * SECOND + 100 * MILLISECOND, || {
        format!("a dead lease lived for {} ms under the last leader", lived / MILLISECOND)
    })?;
    script.end(2)
}

fn change_leader(script: &mut Script, failover: u64) -> Result<u64, Violation> {
    let old = script.leader().unwrap_or(N1);
    let new = match failover % 3 {
        0 => script.hand_over(old)?,
        1 => {
            script.crash(old, true);
            let new = script.leader_other_than(old, 900)?;
            script.restart(old)?;
            new
        }
        _ => {
            script.pause(old, 700);
            script.leader_other_than(old, 900)?
        }
    };
    ensure(script.leader() == Some(new), || "the lead went on at once".into())?;
    Ok(script.world.now)
}

/// Ann renews, and Bob is refused.
fn renew_and_try(script: &mut Script, lease: LeaseId, ann: Token) -> Check {
    let leader = script.leader().unwrap_or(N1);
    ensure(script.believes(ANN), || "Ann's belief ended between two renewals".into())?;
    let answer = script.answer_to(ANN, leader, Request::Renew { lease, holds: None })?;
    ensure(answer.is_ok(), || format!("n{} answered {answer:?} to a renewal", leader + 1))?;
    let request = script.acquire(BOB, AcquireWith::NewLease(ttl(TTL_SECONDS)));
    let answer = script.answer_to(BOB, leader, request)?;
    ensure(
        matches!(&answer, Err(Failure::Refused(Refusal::LockHeld { in_the_way, .. })) if in_the_way.holder.token == ann),
        || format!("Ann holds with token {ann}, but Bob was told {answer:?}"),
    )
}

/// The lead is handed over while renewals of all clients wait for their round.
pub(super) fn renewals_in_flight(script: &mut Script) -> Check {
    let clients = 0..script.world.clients.len();
    let mut leases = Vec::new();
    for client in clients {
        leases.push((client, script.take_lease(client, N1, TTL_SECONDS)?));
    }
    for peer in script.others(N1) {
        script.hold_messages(peer, N1, MessageType::MsgHeartbeatResponse);
    }
    let renewals: Vec<_> = leases.iter().map(|(client, lease)| script.renew(*client, N1, *lease)).collect();
    script.advance(5)?;
    script.input(N1, Input::HandOver);
    // A command that arrives during the transfer is not even tried.
    let request = script.acquire(BOB, AcquireWith::Lease(leases[BOB].1));
    let command = script.ask(BOB, N1, request);
    let second = script.leader_other_than(N1, 1_000)?;
    script.deliver_messages();
    script.advance(20)?;
    for asked in renewals.iter().chain([&command]) {
        let answers = script.answers(asked);
        ensure(matches!(answers, [Err(Failure::NotLeader { .. })]), || {
            format!("a leader that hands over answered {answers:?}")
        })?;
    }
    for (client, lease) in &leases {
        ensure(script.counts_on(*client, *lease), || "the transfer took too long".into())?;
        let answer = script.answer_to(*client, second, Request::Renew { lease: *lease, holds: None })?;
        ensure(answer.is_ok(), || format!("the new leader answered {answer:?}"))?;
    }
    script.retry(&command, second);
    script.until("the command is answered", 50, |script| script.answers(&command).len() == 2)?;
    granted(&script.answers(&command)[1])?;
    ensure(leases.iter().all(|(_, lease)| !script.is_gone(*lease)), || "a lease ended".into())?;
    script.end(2)
}
