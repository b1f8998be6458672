//! Machines that are removed, the leader among them.
//!
//! Attacked: what `raft` would do by itself. A leader that removed itself would lead on without a vote, and
//! answer rounds alone; a voter that is told of its removal too early takes the quorum with it; and of those
//! that are left a majority must answer. And whoever is on its way out can still be elected, with its end
//! decided in its own log.
//! Must be true: a leader hands over first, also if nobody hears it; two become one; the removal that would
//! cost the quorum is refused, and the one that helps is not.

use lowkey_core::{AcquireWith, Command, MemberId, Reply};
use lowkey_replica::{Failure, MessageType, Response};

use super::script::{ANN, BOB, N1, N2, N3, Script, ScriptAnswer, ensure, ttl};
use crate::invariants::{Check, Violation};
use crate::node::{Lane, node_info};

impl Script {
    /// Asks one machine to remove another, and waits for the answer.
    fn remove(&mut self, node: usize, gone: usize) -> Result<ScriptAnswer, Violation> {
        let member = gone as u64 + 1;
        let command = Command::RemoveMember { name: node_info(member).name, member: Some(MemberId(member)) };
        self.command(node, &format!("remove n{member}"), command)
    }

    fn has_ended(&self, node: usize) -> bool {
        self.world.nodes[node].removed && self.lane(node).is_none()
    }
}

fn is_removed(answer: &ScriptAnswer) -> bool {
    matches!(answer, Ok(Response::Applied(Reply::MemberRemoved { .. })))
}

/// The leader is asked to remove itself, in a moment in which nobody hears it any more.
pub(super) fn of_a_leader_that_is_cut_off(script: &mut Script) -> Check {
    let (lease, ann) = script.take_lock(ANN, N1, 2)?;
    script.isolate(N1);
    let answer = script.remove(N1, N1)?;
    ensure(matches!(answer, Err(Failure::NotLeader { .. })), || {
        format!("a leader answered to its own removal: {answer:?}")
    })?;
    for asked in &script.talk_to_the_cut_off(N1, lease)? {
        let answers = script.answers(asked);
        ensure(answers.iter().all(Result::is_err), || format!("alone it answered {answers:?}"))?;
    }
    let leader = script.leader_other_than(N1, 100)?;
    let (_, bob) = script.take_lock(BOB, leader, 2)?;
    ensure(bob > ann, || format!("Bob's token {bob} is not above Ann's {ann}"))?;
    // The others let it go, and it learns of it when it is back.
    let answer = script.remove(leader, N1)?;
    ensure(is_removed(&answer), || format!("the next leader answered {answer:?}"))?;
    script.advance(100)?;
    script.heal();
    script.until("n1 has ended", 3_000, |script| script.has_ended(N1))?;
    script.end(2)
}

/// Three become two become one, and the one that is left is not who led in the beginning.
pub(super) fn of_all_but_one(script: &mut Script) -> Check {
    let answer = script.remove(N1, N1)?;
    ensure(matches!(answer, Err(Failure::NotLeader { .. })), || format!("n1 answered {answer:?}"))?;
    let second = script.leader_other_than(N1, 500)?;
    let answer = script.remove(second, N1)?;
    ensure(is_removed(&answer), || format!("the second leader answered {answer:?}"))?;
    script.until("n1 has ended", 3_000, |script| script.has_ended(N1))?;
    let answer = script.remove(second, second)?;
    ensure(matches!(answer, Err(Failure::NotLeader { .. })), || format!("it answered {answer:?}"))?;
    let last = script.leader_other_than(second, 500)?;
    let answer = script.remove(last, second)?;
    ensure(is_removed(&answer), || format!("the last leader answered {answer:?}"))?;
    script.until("the second has ended", 3_000, |script| script.has_ended(second))?;
    let answer = script.remove(last, last)?;
    ensure(matches!(answer, Err(Failure::Refused(_))), || format!("the last one answered {answer:?}"))?;
    script.take_lock(ANN, last, 2)?;
    script.end(2)
}

/// Between the two configurations the leader dies, and the machine that goes wins the election: in its log
/// stands already that it is gone. It must not be gone before somebody else leads.
pub(super) fn of_a_leader_elected_on_its_way_out(script: &mut Script) -> Check {
    let answer = script.remove(N1, N2)?;
    ensure(is_removed(&answer), || format!("n1 answered {answer:?}"))?;
    let is_joint = |script: &Script, node| {
        script.lane(node).is_some_and(|lane: &Lane| !lane.replica.voters().contains(&2))
    };
    script.until("n1 is between the two configurations", 200, |script| is_joint(script, N1))?;
    let entered = script.log_bounds(N1).1;
    let peers = script.others(N1);
    for peer in &peers {
        script.hold_messages(*peer, N1, MessageType::MsgAppendResponse);
    }
    script.until("all know that the way out is proposed", 200, |script| {
        peers.iter().all(|peer| script.log_bounds(*peer).1 > entered && is_joint(script, *peer))
    })?;
    script.crash(N1, false);
    for peer in peers.iter().filter(|peer| **peer != N2) {
        for other in script.others(*peer) {
            script.hold_messages(*peer, other, MessageType::MsgRequestPreVote);
        }
    }
    script.until("n2 is elected", 2_000, |script| script.leads(N2))?;
    // Entries that are committed after the one that drops it.
    for _ in 0..8 {
        let acquire = script.acquire(BOB, AcquireWith::NewLease(ttl(2)));
        script.ask(BOB, N2, acquire);
        script.advance(1)?;
    }
    script.deliver_messages();
    let leader = script.leader_other_than(N2, 2_000)?;
    script.until("n2 has ended", 3_000, |script| script.has_ended(N2))?;
    script.restart(N1)?;
    // What Bob was given by an entry of that lead ends in its time.
    script.advance(3_000)?;
    script.take_lock(ANN, leader, 2)?;
    script.end(2)
}

/// With one machine down, the other that answers is needed; the one that does not is not.
pub(super) fn that_would_cost_the_quorum(script: &mut Script) -> Check {
    script.crash(N3, true);
    script.advance(500)?;
    let answer = script.remove(N1, N2)?;
    ensure(matches!(answer, Err(Failure::QuorumAtRisk { answering: 1, voters: 2 })), || {
        format!("a removal that costs the quorum was answered {answer:?}")
    })?;
    let answer = script.remove(N1, N3)?;
    ensure(is_removed(&answer), || format!("a removal that helps was answered {answer:?}"))?;
    script.advance(100)?;
    script.take_lock(ANN, N1, 2)?;
    // It comes back from its disk, and is told.
    script.restart(N3)?;
    script.until("n3 has ended", 3_000, |script| script.has_ended(N3))?;
    script.end(2)
}
