//! A cluster is closed, and callers try what they may not.
//!
//! Attacked: a machine that passes a request on may be behind, so the leader must judge it by its own table, and by whose
//! lease it is.
//! Must be true: without a grant, without a proof, beside a path that only begins alike, with another's lease, and after
//! a token was revoked, nothing happens; this stays so under the next leader and out of a snapshot; and somebody is left
//! who can manage it.

use std::sync::Arc;

use lowkey_core::{
    AccessChange, AcquireWith, Caller, Command, Denied, GrantPath, GrantRef, Identity, LeaseId, LockName,
    Mode, OwnerId, PrincipalName, Proof, Refusal, Reply, RequestId, Scope, State, TokenHash, TokenId, Ttl,
    Value, Verb,
};
use lowkey_replica::{Failure, Request, Response};

use super::script::{ANN, N1, Script, ScriptAnswer, ensure};
use crate::invariants::{Check, Violation};

fn name(text: &str) -> PrincipalName {
    PrincipalName::parse(text).expect("a principal's name")
}

/// Each principal has one token, with this number.
fn caller(principal: &str, token: u8) -> Caller {
    let proof = Proof::Token(TokenId([token; 8]));
    Caller::Principal(Arc::new(Identity { principal: name(principal), proof }))
}

fn acquire(lock: &str, owner: &str, request: &str) -> Request {
    Request::Command(Command::Acquire {
        lock: LockName::parse(lock).expect("a lock's name"),
        owner: OwnerId::parse(owner).expect("an owner"),
        with: AcquireWith::NewLease(Ttl::parse(60).expect("a time to live")),
        mode: Mode::Exclusive,
        scope: Scope::Name,
        value: Value::default(),
        wait: false,
        max_hold: None,
        since_unix_ms: 0,
        keeps_asked: false,
        request: RequestId::parse(request).expect("a request's id"),
    })
}

fn is_denied(what: &str, answer: &ScriptAnswer) -> Check {
    ensure(matches!(answer, Err(Failure::Denied(_))), || format!("{what} is answered {answer:?}"))
}

impl Script {
    fn ask_by(&mut self, node: usize, caller: Caller, request: Request) -> Result<ScriptAnswer, Violation> {
        self.tell(&format!("n{} is asked by {caller:?}", node + 1));
        let heard = self.world.operator_heard.len();
        self.world.ask_by(node, 0, caller, request);
        self.until("the caller is answered", 2_000, |script| script.world.operator_heard.len() > heard)?;
        Ok(self.world.operator_heard[heard].1.clone())
    }

    fn change(&mut self, node: usize, change: AccessChange) -> Result<ScriptAnswer, Violation> {
        self.command(node, "change who may do what", Command::Access(Box::new(change)))
    }

    /// An admin, and two tenants with a path each; then it is required.
    fn close(&mut self) -> Check {
        let mut changes = Vec::new();
        for (principal, token, path, verb) in [
            ("ops", 1, "/", Verb::Admin),
            ("billing", 2, "billing", Verb::Acquire),
            ("web", 3, "web", Verb::Acquire),
        ] {
            let path = GrantPath::parse(path).expect("a path");
            changes.extend([
                AccessChange::AddPrincipal { principal: name(principal), names: vec![] },
                AccessChange::AddToken {
                    principal: name(principal),
                    token: TokenId([token; 8]),
                    hash: TokenHash([token; 32]),
                },
                AccessChange::Grant { principal: name(principal), path, verbs: [verb].into_iter().collect() },
            ]);
        }
        changes.push(AccessChange::Require { required: true });
        for change in changes {
            let answer = self.change(N1, change)?;
            ensure(answer == Ok(Response::Applied(Reply::AccessChanged)), || {
                format!("the change is answered {answer:?}")
            })?;
        }
        Ok(())
    }
}

/// Callers try what they may not, under two leaders.
pub(super) fn is_required(script: &mut Script) -> Check {
    script.close()?;
    let (billing, web) = (caller("billing", 2), caller("web", 3));
    let held = script.ask_by(N1, billing.clone(), acquire("billing/a", "billing/host", "one"))?;
    let Ok(Response::Applied(Reply::Granted { lease, .. })) = held else {
        return ensure(false, || format!("what was granted is answered {held:?}"));
    };
    tries(script, N1, &web, lease)?;
    let second = script.hand_over(N1)?;
    tries(script, second, &web, lease)?;
    let renewed = script.ask_by(second, billing.clone(), Request::Renew { lease, holds: None })?;
    ensure(matches!(renewed, Ok(Response::Renewed { .. })), || format!("its owner is answered {renewed:?}"))?;
    let revoked = script.change(second, AccessChange::RevokeToken { token: TokenId([2; 8]) })?;
    ensure(revoked.is_ok(), || format!("the revocation is answered {revoked:?}"))?;
    let renewed = script.ask_by(second, billing, Request::Renew { lease, holds: None })?;
    ensure(renewed == Err(Failure::Denied(Denied::Unproven)), || {
        format!("a revoked token goes on: {renewed:?}")
    })?;
    script.take_lock(ANN, second, 2)?;
    script.end(60)
}

fn tries(script: &mut Script, node: usize, web: &Caller, lease: LeaseId) -> Check {
    let nobody = script.ask_by(node, Caller::Nobody, acquire("web", "web", "nobody"))?;
    is_denied("nobody", &nobody)?;
    let beside = script.ask_by(node, web.clone(), acquire("web2", "web", "beside"))?;
    is_denied("a path that only begins alike", &beside)?;
    let owner = script.ask_by(node, web.clone(), acquire("web/a", "billing/host", "owner"))?;
    is_denied("another's owner", &owner)?;
    let renewed = script.ask_by(node, web.clone(), Request::Renew { lease, holds: None })?;
    is_denied("another's lease", &renewed)?;
    let release = Request::Command(Command::Release {
        lock: LockName::parse("billing/a").expect("a lock's name"),
        grant: GrantRef::Lease(lease),
        token: None,
        actor: None,
        since_unix_ms: 0,
        request: RequestId::parse("release").expect("a request's id"),
    });
    let released = script.ask_by(node, web.clone(), release)?;
    is_denied("another's lock", &released)
}

/// The last admin is to go, a token is shown without its secret, and the state is read out of a snapshot.
pub(super) fn must_stay_so(script: &mut Script) -> Check {
    script.close()?;
    let gone = script.change(N1, AccessChange::RemovePrincipal { principal: name("ops") })?;
    ensure(gone == Err(Failure::Refused(Refusal::AdminNeeded)), || {
        format!("the last admin can go: {gone:?}")
    })?;
    let Some(lane) = script.lane(N1) else { return ensure(false, || "n1 is gone".to_owned()) };
    let state = lane.replica.state();
    let guessed = state.access().by_token(TokenId([2; 8]), &TokenHash([9; 32]));
    ensure(guessed.is_none(), || format!("without its secret a token proves {guessed:?}"))?;
    let read = State::decode_snapshot(&state.encode_snapshot());
    let is_required = read.as_ref().is_ok_and(|read| read.access().is_required());
    ensure(is_required, || "out of a snapshot the cluster is open".to_owned())?;
    script.take_lock(ANN, N1, 2)?;
    script.end(1)
}
