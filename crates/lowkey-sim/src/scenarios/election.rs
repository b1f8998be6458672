//! An election's leader dies, with many candidates in line, and the cluster's leader dies with it.
//!
//! Ann leads and has something to say; five others campaign. Ann falls silent as `n1` loses power; the
//! candidates ask the next leader, in another order than they came in. Then each that is elected falls silent
//! in its turn. Attacked: the queue across a change of leader (R10, invariant 5), values, R7. Must be
//! true: they lead in the order in which they came, one at a time, each with its own words; each change takes
//! the dead leader's time to live and hardly more; what each is told of its wait is never too long.

use lowkey_core::AcquireWith;
use lowkey_replica::{Query, Request, Response};

use super::script::{ANN, BOB, N1, N2, Script, ensure, granted, lock, ttl};
use crate::invariants::Check;
use crate::plan::{MILLISECOND, SECOND};

const CANDIDATES: [&str; 5] = ["bob", "carol", "dave", "erin", "frank"];

pub(super) fn leader_killed(script: &mut Script) -> Check {
    let request = script.acquire_waiting(ANN, AcquireWith::NewLease(ttl(2)), 1_000);
    granted(&script.answer_to(ANN, N1, request)?)?;
    let mut campaigns = Vec::new();
    for candidate in BOB..BOB + CANDIDATES.len() {
        campaigns.push(script.wait_in_line(candidate, N1, AcquireWith::NewLease(ttl(2)), 30_000)?);
    }
    script.tell("ann falls silent");
    script.crash(N1, true);
    let leader = script.leader_other_than(N1, 1_500)?;
    for campaign in campaigns.iter().rev() {
        script.advance(100)?;
        script.retry(campaign, leader);
    }
    let mut last = script.holder().map(|(_, _, token)| token);
    for (at, name) in CANDIDATES.into_iter().enumerate() {
        let before = script.world.now;
        script.until("the next one leads", 3_000, |script| script.is_answered(&campaigns[at]))?;
        let (_, token) = granted(&script.answers(&campaigns[at])[0])?;
        ensure(Some(token) > last, || format!("{name}'s token {token} is not above {last:?}"))?;
        last = Some(token);
        let took = script.world.now - before;
        ensure(took < 2 * SECOND + 200 * MILLISECOND, || format!("it took {} ms", took / MILLISECOND))?;
        // Any node says so; here one that follows, as far as it knows.
        let asked = if leader == N2 { N2 + 1 } else { N2 };
        script.advance(60)?;
        let read = script.answer_to(ANN, asked, Request::ReadStale(Query::Lock { lock: lock() }))?;
        let Ok(Response::Lock { lock: view, .. }) = &read else {
            return ensure(false, || format!("{read:?}"));
        };
        let (led_by, left) = (format!("{name} leads"), CANDIDATES.len() - 1 - at);
        let as_it_should = matches!(view.holders.as_slice(), [one] if one.value.as_str() == led_by);
        ensure(as_it_should && view.waiter_count == left, || format!("the election reads {view:?}"))?;
    }
    script.end(2)
}
