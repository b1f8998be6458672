//! A machine whose state is not what the log says.
//!
//! Its snapshot is changed while it is down, and every checksum with it: what a bug, a bad memory or a hand in
//! the wrong file can do, and what nothing but the others can notice. Attacked: invariant 10. Must be true: it
//! stops serving within two seconds of the first entry, a leader too, whose lead goes to one that is right; it
//! takes a snapshot and serves again; where nobody can tell who is right, nobody serves.

use lowkey_core::{AcquireWith, GroupId};
use lowkey_replica::{Divergence, Failure, MessageType, Query, Request};

use super::script::{ANN, BOB, N1, N2, N3, Script, ensure, lock, ttl};
use crate::invariants::Check;
use crate::tamper::tamper;

/// So long that no lease ends before the story does.
const TTL_SECONDS: i64 = 30;

impl Script {
    /// Ann holds the lock, and all machines have a snapshot that says so.
    fn ann_is_in_every_snapshot(&mut self) -> Check {
        self.take_lock(ANN, N1, TTL_SECONDS)?;
        let begun = self.log_bounds(N1).1;
        for _ in 0..25 {
            self.take_lease(BOB, N1, TTL_SECONDS)?;
        }
        self.until("all have a snapshot", 2_000, |script| {
            [N1, N2, N3].into_iter().all(|node| script.newest_snapshot(node) > begun)
        })
    }

    /// While the machine is down, the lock's owner is made another in its snapshot, and the hash made to fit.
    fn tamper(&mut self, node: usize, from: &str, to: &str) -> Check {
        self.tell(&format!("in the snapshot of n{} {from} becomes {to}", node + 1));
        let disk = self.world.nodes[node].disk.as_disk();
        let newest = lowkey_wal::snapshots::load_newest(&*disk, GroupId::ROOT).ok().flatten();
        let (index, payload) = newest.expect("a machine that has run has a snapshot");
        let payload = tamper(&payload, from, to).expect("the text is in the state");
        let saved = lowkey_wal::snapshots::save(&*disk, GroupId::ROOT, index, &payload);
        self.world.nodes[node].drifted = true;
        ensure(saved.is_ok(), || format!("the snapshot cannot be written: {saved:?}"))
    }

    fn tamper_and_restart(&mut self, node: usize, from: &str, to: &str) -> Check {
        self.crash(node, false);
        self.tamper(node, from, to)?;
        self.restart(node)
    }

    fn divergence(&self, node: usize) -> Option<Divergence> {
        self.lane(node).and_then(|lane| lane.replica.divergence())
    }

    fn is_right(&self, node: usize) -> bool {
        !self.world.nodes[node].drifted && self.divergence(node).is_none() && self.lane(node).is_some()
    }

    fn reads_nothing(&mut self, node: usize) -> Check {
        let asked = self.ask(BOB, node, Request::ReadStale(Query::Lock { lock: lock() }));
        self.until("the read is answered", 500, |script| script.is_answered(&asked))?;
        let answers = self.answers(&asked);
        ensure(answers == [Err(Failure::Diverged)], || format!("a state in doubt answered {answers:?}"))
    }
}

pub(super) fn of_a_follower(script: &mut Script) -> Check {
    script.ann_is_in_every_snapshot()?;
    script.tamper_and_restart(N3, "ann", "amy")?;
    script.take_lease(BOB, N1, TTL_SECONDS)?;
    script.until("n3 stops", 2_000, |script| script.divergence(N3).is_some())?;
    script.reads_nothing(N3)?;
    script.until("n3 has the state of the others", 3_000, |script| script.is_right(N3))?;
    ensure(script.serves(N1), || "n1 does not lead any more".into())?;
    script.end(TTL_SECONDS as u64)
}

pub(super) fn of_a_leader(script: &mut Script) -> Check {
    script.ann_is_in_every_snapshot()?;
    for peer in [N2, N3] {
        for other in script.others(peer) {
            script.hold_messages(peer, other, MessageType::MsgRequestPreVote);
        }
    }
    script.tamper_and_restart(N1, "ann", "amy")?;
    script.until("n1 leads again", 3_000, |script| script.leads(N1))?;
    script.deliver_messages();
    let leader = script.leader_other_than(N1, 2_000)?;
    ensure(script.divergence(leader).is_none(), || "one leads whose state is in doubt".into())?;
    script.until("n1 has the state of the others", 3_000, |script| script.is_right(N1))?;
    script.end(TTL_SECONDS as u64)
}

/// Three machines, three states.
pub(super) fn of_two(script: &mut Script) -> Check {
    script.ann_is_in_every_snapshot()?;
    script.tamper_and_restart(N2, "ann", "amy")?;
    script.tamper_and_restart(N3, "ann", "ada")?;
    script.advance(100)?;
    script.take_lease(BOB, N1, TTL_SECONDS)?;
    script.until("all stop", 3_000, |script| {
        [N1, N2, N3].iter().all(|node| script.divergence(*node).is_some())
    })?;
    for node in [N1, N2, N3] {
        script.reads_nothing(node)?;
    }
    let acquire = script.acquire(BOB, AcquireWith::NewLease(ttl(2)));
    let answer = script.answer_to(BOB, N1, acquire)?;
    ensure(answer == Err(Failure::Diverged), || format!("nobody can know, and n1 answered {answer:?}"))?;
    // One of them is made what it was: those two are enough.
    script.crash(N2, false);
    script.tamper(N2, "amy", "ann")?;
    script.restart(N2)?;
    script.until("all are right", 5_000, |script| [N1, N2, N3].iter().all(|node| script.is_right(*node)))?;
    script.end(TTL_SECONDS as u64)
}
