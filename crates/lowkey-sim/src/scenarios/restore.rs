//! A cluster is lost after its last backup, and restored from it: twice in the same minute, and once more from what was
//! restored, by a clock that is a year behind.
//!
//! Attacked: `docs/internals/tokens.md`, epochs. The backup is older than what the cluster granted last; clients still
//! believe in that, and the resource has seen its tokens. Those who restore know nothing of each other but what is
//! claimed in the store.
//! Must be true: nothing is granted before the quarantine is over; each new cluster's first token lies above all that
//! the old one granted, so the resource refuses the old holders from then on; and no two clusters ever grant one token.

use std::collections::BTreeSet;

use lowkey_core::{
    AcquireWith, ClusterId, Command, Epoch, EpochClaim, EpochsKnown, FirstNumbers, Mode, NewBeginning,
    OwnerId, Refusal, Reply, RequestId, Scope, State, Token, Value,
};

use super::script::{ANN, BOB, N1, Script, ensure, granted, lock, ttl};
use crate::invariants::{Check, Violation};
use crate::node::node_info;

/// A minute of the year 2026.
const NOW: u64 = 29_900_000;
const YEAR: u64 = 365 * 24 * 60;

/// Grants that each of the new clusters makes.
const GRANTS: u64 = 50;

/// What the lock protects: it outlives every cluster, and knows the highest token that it has seen.
struct Resource(Token);

impl Resource {
    /// A write with this token reaches it; true if it is accepted.
    fn write(&mut self, script: &mut Script, token: Token) -> bool {
        let accepted = token >= self.0;
        self.0 = self.0.max(token);
        let how = if accepted { "is accepted" } else { "is refused: a higher one was there" };
        script.tell(&format!("a write with token {token} reaches the resource, and {how}"));
        accepted
    }
}

pub(super) fn from_an_older_backup(script: &mut Script) -> Check {
    let (lease, token) = script.take_lock(ANN, N1, 2)?;
    let backup = script.lane(N1).map(|lane| lane.replica.state().encode_snapshot()).unwrap_or_default();
    script.tell("the backup is made");
    let mut resource = Resource(Token(0));
    let release = script.release(ANN, lease, token);
    ensure(script.answer_to(ANN, N1, release)?.is_ok(), || "the lock was not given back".into())?;
    let (_, last) = script.take_lock(BOB, N1, 2)?;
    ensure(script.believes(BOB) && resource.write(script, last), || {
        "the last holder could not write".into()
    })?;
    script.tell("the cluster is lost, and restored twice from the backup");

    // The store: what was claimed there.
    let mut claimed = BTreeSet::new();
    // Both look before either of them claims.
    let seen = BTreeSet::new();
    let mut tokens = BTreeSet::new();
    let mut restored = Vec::new();
    for number in 1..=2 {
        let state = restore(&backup, number, NOW, &seen, &mut claimed)?;
        restored.push(serve(script, state, &mut tokens)?);
    }
    // The later one is the one that goes on.
    let first = Token(restored[1].last_token().0 - GRANTS + 1);
    ensure(resource.write(script, first), || format!("the resource refuses the new holder's token {first}"))?;
    ensure(!resource.write(script, last), || format!("the resource still accepts the old token {last}"))?;

    script.tell("what was restored is restored from its own backup, by a clock that is a year behind");
    let (backup, seen) = (restored[1].encode_snapshot(), claimed.clone());
    let child = serve(script, restore(&backup, 3, NOW - YEAR, &seen, &mut claimed)?, &mut tokens)?;
    ensure(resource.write(script, child.last_token()), || "the resource refuses the child's holder".into())?;
    ensure(!resource.write(script, restored[1].last_token()), || {
        "the resource still accepts the parent's token".into()
    })?;
    script.end(2)
}

/// What a restore does: reads the backup, claims an epoch, and begins anew. What is there was looked up before.
fn restore(
    backup: &[u8],
    number: u8,
    own_minutes: u64,
    seen: &BTreeSet<Epoch>,
    store: &mut BTreeSet<Epoch>,
) -> Result<State, Violation> {
    let failed = |what: String| Violation { invariant: "scenario", what };
    let old = State::decode_snapshot(backup).map_err(|error| failed(error.to_string()))?;
    let highest_counter = old.last_token().0.max(old.revision()).max(old.last_lease().0);
    let claimed = seen.last().copied();
    let mut claim =
        EpochClaim::new(EpochsKnown { own_minutes, claimed, highest_counter, ..EpochsKnown::default() });
    let epoch = loop {
        let wanted = claim.wanted().map_err(|spent| failed(spent.to_string()))?;
        // The conditional create.
        if let Some(epoch) = claim.settle(wanted, store.insert(wanted)) {
            break epoch;
        }
    };
    let beginning = NewBeginning {
        cluster: ClusterId([number; 16]),
        node: node_info(1),
        numbers: FirstNumbers::Claimed(epoch),
        keep_tokens: false,
        quarantine: true,
    };
    let (state, _) = old.begin_anew(beginning).map_err(|spent| failed(format!("{spent:?}")))?;
    Ok(state)
}

/// The new cluster serves: at first nothing, then as ever. No token may be one that was there before.
fn serve(script: &mut Script, mut state: State, tokens: &mut BTreeSet<Token>) -> Result<State, Violation> {
    let acquire = |number: u64| Command::Acquire {
        lock: lock(),
        owner: OwnerId::parse("carol").expect("a short name is an owner"),
        with: AcquireWith::NewLease(ttl(2)),
        mode: Mode::Exclusive,
        scope: Scope::Name,
        value: Value::default(),
        wait: false,
        max_hold: None,
        keeps_asked: false,
        since_unix_ms: 0,
        request: RequestId::parse(&format!("r{number}")).expect("a short id"),
    };
    let mut apply = |command: &Command| state.apply(state.revision() + 1, 9, command).reply;
    ensure(apply(&acquire(0)) == Err(Refusal::Quarantine), || "a lock was granted in quarantine".into())?;
    ensure(apply(&Command::EndQuarantine).is_ok(), || "the quarantine did not end".into())?;
    for number in 1..=GRANTS {
        let (lease, token) = granted(
            &apply(&acquire(number))
                .map(lowkey_replica::Response::Applied)
                .map_err(lowkey_replica::Failure::Refused),
        )?;
        ensure(tokens.insert(token), || format!("token {token} was granted by two clusters"))?;
        let expire =
            Command::Expire { leases: vec![lease], decided_term: 9, since_unix_ms: 0, silences: Vec::new() };
        ensure(apply(&expire) == Ok(Reply::Expired { count: 1 }), || "a lease did not end".into())?;
    }
    script.tell(&format!("a restored cluster has granted up to token {}", state.last_token()));
    Ok(state)
}
