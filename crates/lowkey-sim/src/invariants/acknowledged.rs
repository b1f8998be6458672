//! What was acknowledged is in the committed log, and in an order that all clients could have seen:
//! linearizability with the log as the witness (`docs/internals/invariants.md`, points 3, 4 and 8; Herlihy and
//! Wing for the definition).
//!
//! An operation's place is its revision. It must lie behind everything that was acknowledged before
//! the operation was invoked, and what was answered must be what the log says at that place. A refusal
//! has no revision of its own: it must have been true at one between what was acknowledged before and
//! what is committed now. An operation that was never answered may take effect at any time or never.
//! How reads are judged stands in `reads.rs`.

use std::collections::{BTreeMap, BTreeSet};

use lowkey_core::{Command, GrantRef, InTheWay, LockName, Refusal, Reply, RequestId, Requester, Token};
use lowkey_replica::{Failure, Request, Response};

use super::chronicle::HoldSeen;
use super::{Check, Committed, Ledger, Violation, reads};
use crate::claim::PlainClaim;
use crate::client::{ClientOperation, command_of};

pub(super) const NAME: &str = "acknowledged";

#[derive(Default)]
pub(crate) struct Acknowledged {
    /// The highest revision that anyone had been told of, by the true time of the telling.
    told: BTreeMap<u64, u64>,
    /// Where each request that was answered with yes had its effect.
    effects: BTreeMap<RequestId, u64>,
    /// The revisions at which grants ended, by token.
    freed: BTreeMap<Token, u64>,
    /// The revisions at which waits were cancelled, by request.
    cancelled: BTreeMap<RequestId, Vec<u64>>,
    /// R10: acquires that a committed release gave up.
    given_up: BTreeSet<RequestId>,
    /// Acquires that were granted.
    granted: BTreeSet<RequestId>,
    pub(crate) count: u64,
}

fn wrong(what: String) -> Violation {
    Violation { invariant: NAME, what }
}

/// What is judged, and what may be presumed.
struct Case<'a> {
    ledger: &'a Ledger,
    /// The last revision that was known when the operation was invoked.
    before: u64,
}

impl Acknowledged {
    /// Called before the ledger has followed the entry.
    pub(crate) fn committed(&mut self, committed: &Committed, ledger: &Ledger) {
        use lowkey_core::{Change, ChangeKind, Event, WaitEnd};
        for event in &committed.applied.events {
            match event {
                Event::Changed(Change { kind: ChangeKind::Freed(_), token: Some(token), .. }) => {
                    self.freed.insert(*token, committed.index);
                }
                Event::WaitEnded { ticket, end: WaitEnd::Granted(_) } => {
                    self.granted.extend(ledger.place(*ticket).map(|place| place.request.clone()));
                }
                Event::WaitEnded { ticket, end: WaitEnd::Cancelled { .. } } => {
                    if let Some(place) = ledger.place(*ticket) {
                        self.cancelled.entry(place.request.clone()).or_default().push(committed.index);
                    }
                }
                _ => {}
            }
        }
        if let (Command::Acquire { request, .. }, Ok(Reply::Granted { .. })) =
            (&committed.command, &committed.applied.reply)
        {
            self.granted.insert(request.clone());
        }
        if let Command::Release { request, .. } | Command::SetValue { request, .. } = &committed.command
            && committed.applied.reply.is_ok()
        {
            self.effects.entry(request.clone()).or_insert(committed.index);
            if let Command::Release { grant: GrantRef::GivenUp(acquire, _), .. } = &committed.command {
                self.given_up.insert(acquire.clone());
            }
        }
    }

    /// An operation was answered at this true time.
    pub(crate) fn answered(
        &mut self,
        operation: &ClientOperation,
        answer: &Result<Response, Failure>,
        ledger: &Ledger,
        now: u64,
    ) -> Check {
        let before = self.told.range(..operation.invoked_at).next_back().map_or(0, |(_, revision)| *revision);
        self.count += 1;
        let case = Case { ledger, before };
        let revision = match (answer, &operation.request) {
            (Ok(response), Request::Read(query)) => {
                let revision = reads::check(ledger, query, response).map_err(wrong)?;
                if revision < before {
                    return Err(wrong(format!(
                        "{query:?} was read as of {revision}, though {before} was known"
                    )));
                }
                revision
            }
            (Ok(response), Request::ReadStale(query)) => {
                reads::check(ledger, query, response).map_err(wrong)?;
                return Ok(());
            }
            // To give up again, or what no lease is left for, needs no entry.
            (
                Ok(Response::Applied(Reply::Released)),
                Request::Command(Command::Release {
                    grant: GrantRef::GivenUp(acquire, requester),
                    request,
                    ..
                }),
            ) if !self.effects.contains_key(request) => {
                let is_gone = match requester {
                    Requester::Lease(lease) => {
                        ledger.leases.get(lease).is_none_or(|(_, ended)| ended.is_some())
                    }
                    Requester::Owner(_) => false,
                };
                return match is_gone || self.given_up.contains(acquire) || self.granted.contains(acquire) {
                    true => Ok(()),
                    false => Err(wrong(format!("{acquire} was said to be given up, and never was"))),
                };
            }
            (Err(Failure::Refused(Refusal::GivenUp { request })), _) => {
                return match self.given_up.contains(request) {
                    true => Ok(()),
                    false => Err(wrong(format!("{request} was refused as given up, and never was"))),
                };
            }
            (Ok(Response::Applied(reply) | Response::GrantedAfter { reply, .. }), request) => {
                let Some(command) = command_of(request) else { return Ok(()) };
                let revision = self.place_of(&case, reply, command)?;
                if revision <= before {
                    return Err(wrong(format!(
                        "an answer took its place at {revision}, though {before} was known before it was asked"
                    )));
                }
                revision
            }
            (Err(Failure::WaitTimeout { in_the_way, .. }), Request::Wait { command, .. }) => {
                self.timed_out(&case, command, in_the_way.as_ref())?
            }
            (Err(Failure::Refused(refusal)), request) => {
                return match case.was_true(refusal, command_of(request)) {
                    true => Ok(()),
                    false => Err(wrong(format!("{refusal:?} was said to {request:?}, and never was so"))),
                };
            }
            _ => return Ok(()),
        };
        self.tell(now, revision);
        Ok(())
    }

    /// The revision at which what was answered became true.
    fn place_of(&self, case: &Case, reply: &Reply, command: &Command) -> Result<u64, Violation> {
        let ledger = case.ledger;
        let not_so = || wrong(format!("{reply:?} says the answer to {command:?}; the log does not"));
        match (reply, command) {
            (
                Reply::Granted { token, lease, revision, .. },
                Command::Acquire { lock, owner, mode, scope, .. },
            ) => {
                let holders = &ledger.at(lock, *revision).holders;
                let is_it = |held: &HoldSeen| {
                    (held.token, held.lease, &held.owner, held.mode, held.scope)
                        == (*token, *lease, owner, *mode, *scope)
                };
                if !holders.iter().any(is_it) || !ledger.leases.contains_key(lease) {
                    return Err(not_so());
                }
                // Asking again is answered with the grant that is there, older than the question.
                Ok((*revision).max(case.before + 1).min(ledger.committed))
            }
            (Reply::LeaseCreated { lease, .. }, Command::CreateLease { .. }) => {
                ledger.leases.get(lease).map(|(begun, _)| *begun).ok_or_else(not_so)
            }
            (Reply::Released, Command::Release { token, request, .. }) => {
                let effect = self.effects.get(request).copied().ok_or_else(not_so)?;
                match token {
                    Some(token) => self.freed.get(token).copied().ok_or_else(not_so),
                    None => Ok(effect),
                }
            }
            (Reply::ValueSet { revision }, Command::SetValue { lock, lease, value, request, .. }) => {
                let holders = &ledger.at(lock, *revision).holders;
                let shown = holders.iter().any(|held| held.lease == *lease && held.value == *value);
                match shown && self.effects.get(request) == Some(revision) {
                    true => Ok(*revision),
                    false => Err(not_so()),
                }
            }
            (Reply::LeaseRevoked { .. }, Command::RevokeLease { lease, .. }) => {
                ledger.leases.get(lease).and_then(|(_, ended)| *ended).ok_or_else(not_so)
            }
            _ => Err(not_so()),
        }
    }

    /// The revision at which the wait was cancelled; whoever was in the way held until then.
    fn timed_out(
        &self,
        case: &Case,
        command: &Command,
        in_the_way: Option<&InTheWay>,
    ) -> Result<u64, Violation> {
        let Command::Acquire { request, .. } = command else { return Ok(case.before) };
        let is_it = |revision: &&u64| match in_the_way {
            Some(InTheWay { held, holder, .. }) => case.holds(held, holder.token, **revision - 1),
            None => true,
        };
        // A late copy of the request may have been cancelled once more.
        let cancelled = self.cancelled.get(request).into_iter().flatten().find(is_it);
        cancelled.copied().ok_or_else(|| {
            wrong(format!("{request} was told of a timeout because of {in_the_way:?}, and it never was so"))
        })
    }

    fn tell(&mut self, now: u64, revision: u64) {
        let highest = self.told.last_key_value().map_or(0, |(_, revision)| *revision);
        self.told.insert(now, revision.max(highest));
    }
}

impl Case<'_> {
    fn holds(&self, lock: &LockName, token: Token, revision: u64) -> bool {
        self.ledger.at(lock, revision).holders.iter().any(|held| held.token == token)
    }

    /// True if the refusal was right at some time since the operation was invoked.
    fn was_true(&self, refusal: &Refusal, command: Option<&Command>) -> bool {
        let ledger = self.ledger;
        let ever = |so: &dyn Fn(u64) -> bool| ledger.was_ever(self.before, so);
        match (refusal, command) {
            (Refusal::LockHeld { lock, in_the_way }, Some(Command::Acquire { with, mode, scope, .. })) => {
                let claim =
                    PlainClaim { lock: lock.clone(), lease: with.lease(), mode: *mode, scope: *scope };
                ever(&|revision| {
                    self.holds(&in_the_way.held, in_the_way.holder.token, revision)
                        && ledger.at(lock, revision).waiters.len() == in_the_way.waiters
                        && ledger.is_blocked(&claim, revision)
                })
            }
            (Refusal::LockHeld { .. }, _) => false,
            (Refusal::AlreadyHeld { lock, lease, mode, scope, .. }, _) => ever(&|revision| {
                let at = ledger.at(lock, revision);
                let held = at.holders.iter().map(|held| (held.lease, held.mode, held.scope));
                let awaited = at.waiters.iter().map(|waiting| (waiting.lease, waiting.mode, waiting.scope));
                held.chain(awaited).any(|claimed| claimed == (*lease, *mode, *scope))
            }),
            (Refusal::LockNotFound { lock }, _) => {
                ever(&|revision| ledger.at(lock, revision).holders.is_empty())
            }
            (Refusal::StaleToken { lock, given, current }, _) => {
                given != current && ever(&|revision| self.holds(lock, *current, revision))
            }
            (Refusal::LeaseNotFound { lease }, _) => {
                ledger.leases.get(lease).is_none_or(|(_, ended)| ended.is_some())
            }
            (
                Refusal::NotOwner { .. },
                Some(Command::Release { lock, .. } | Command::SetValue { lock, .. }),
            ) => ever(&|revision| !ledger.at(lock, revision).holders.is_empty()),
            // No client does what these refuse.
            (
                Refusal::NotOwner { .. }
                | Refusal::TooManyWaiters { .. }
                | Refusal::TooManyLocks { .. }
                | Refusal::RequestReused { .. }
                | Refusal::GivenUp { .. }
                | Refusal::NodeNameTaken { .. }
                | Refusal::NodeNotFound { .. }
                | Refusal::NodeKeyDiffers { .. }
                | Refusal::InvitationNotFound
                | Refusal::InvitationUsed
                | Refusal::LastNode { .. }
                | Refusal::PrincipalNotFound { .. }
                | Refusal::TokenNotFound { .. }
                | Refusal::ProofTaken { .. }
                | Refusal::AccessLimit { .. }
                | Refusal::AdminNeeded
                | Refusal::NotHere { .. }
                | Refusal::Draining { .. }
                | Refusal::Split(_)
                | Refusal::LeaseElsewhere { .. }
                | Refusal::SubtreeSplit { .. }
                | Refusal::Quarantine,
                _,
            ) => false,
        }
    }
}
