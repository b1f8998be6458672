//! What was acknowledged is in the committed log, and in an order that all clients could have seen:
//! linearizability with the log as the witness (design, section 8, points 3, 4 and 8; Herlihy and
//! Wing for the definition).
//!
//! An operation's place is its revision. It must lie behind everything that was acknowledged before
//! the operation was invoked, and what was answered must be what the log says at that place. A refusal
//! has no revision of its own: it must have been true at one between what was acknowledged before and
//! what is committed now. An operation that was never answered may take effect at any time or never.

use std::collections::BTreeMap;

use lowkey_core::{Command, Event, LeaseId, LockName, Refusal, Reply, Token};
use lowkey_replica::{Failure, Request, Response};

use super::{Check, Committed, broken};
use crate::client::Operation;

const NAME: &str = "acknowledged";

#[derive(Default)]
pub(crate) struct Acknowledged {
    /// The highest revision that anyone had been told of, by the true time of the telling.
    told: BTreeMap<u64, u64>,
    /// Who held a lock from which revision on.
    holders: BTreeMap<LockName, Vec<(u64, Option<Token>)>>,
    /// At which revision a lease began and ended.
    leases: BTreeMap<LeaseId, (u64, Option<u64>)>,
    /// The last revision that is known to be committed.
    committed: u64,
    pub(crate) count: u64,
}

impl Acknowledged {
    pub(crate) fn committed(&mut self, committed: &Committed) {
        self.committed = committed.index;
        for event in &committed.applied.events {
            match event {
                Event::Acquired { lock, token, .. } => {
                    self.holders.entry(lock.clone()).or_default().push((committed.index, Some(*token)));
                }
                Event::Freed { lock, .. } => {
                    self.holders.entry(lock.clone()).or_default().push((committed.index, None));
                }
                Event::LeaseCreated { lease, .. } => {
                    self.leases.insert(*lease, (committed.index, None));
                }
                Event::LeaseEnded { lease } => {
                    if let Some((_, ended)) = self.leases.get_mut(lease) {
                        *ended = Some(committed.index);
                    }
                }
            }
        }
    }

    /// An operation was answered at this true time.
    pub(crate) fn answered(
        &mut self,
        operation: &Operation,
        answer: &Result<Response, Failure>,
        now: u64,
    ) -> Check {
        let before = self.told.range(..operation.invoked_at).next_back().map_or(0, |(_, revision)| *revision);
        self.count += 1;
        match (answer, &operation.request) {
            (Ok(Response::Applied(reply)), Request::Command(command)) => {
                let revision = self.place_of(reply, command, before)?;
                self.tell(now, revision);
            }
            (Ok(Response::Lock { holder, revision }), Request::GetLock { lock }) => {
                let told = holder.as_ref().map(|holder| holder.token);
                let known = self.holder_at(lock, *revision);
                if *revision < before {
                    return broken(
                        NAME,
                        format!("{lock} was read as of {revision}, though {before} was known"),
                    );
                }
                if told != known {
                    return broken(
                        NAME,
                        format!("{lock} was read as {told:?} at {revision}, and was {known:?}"),
                    );
                }
                self.tell(now, *revision);
            }
            (Err(Failure::Refused(Refusal::LockHeld { lock, holder })), _) => {
                let was_true = self.held_between(lock, holder.token, before);
                if !was_true {
                    return broken(
                        NAME,
                        format!("{lock} was said to be held with token {}, and was not", holder.token),
                    );
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// The revision at which what was answered became true.
    fn place_of(&self, reply: &Reply, command: &Command, before: u64) -> Result<u64, super::Violation> {
        let wrong = |what: String| super::Violation { invariant: NAME, what };
        let revision = match (reply, command) {
            (Reply::Granted { token, lease, revision, .. }, Command::Acquire { lock, .. }) => {
                if self.holder_at(lock, *revision) != Some(*token) {
                    return Err(wrong(format!(
                        "{lock} was granted with token {token} at {revision}, says the answer; the log does not"
                    )));
                }
                if !self.leases.contains_key(lease) {
                    return Err(wrong(format!("{lock} was granted to lease {lease}, which never was")));
                }
                // Asking again is answered with the grant that is there, older than the question.
                (*revision).max(before + 1).min(self.committed)
            }
            (Reply::LeaseCreated { lease, .. }, _) => match self.leases.get(lease) {
                Some((begun, _)) => *begun,
                None => {
                    return Err(wrong(format!("lease {lease} was made, says the answer; the log does not")));
                }
            },
            (Reply::Released, Command::Release { lock, token, .. }) => {
                let held = token.and_then(|token| self.freed_after(lock, token));
                held.ok_or_else(|| wrong(format!("{lock} was released, says the answer; the log does not")))?
            }
            (Reply::LeaseRevoked { .. }, Command::RevokeLease { lease, .. }) => {
                match self.leases.get(lease) {
                    Some((_, Some(ended))) => *ended,
                    _ => {
                        return Err(wrong(format!(
                            "lease {lease} was revoked, says the answer; the log does not"
                        )));
                    }
                }
            }
            _ => return Ok(before),
        };
        if revision <= before {
            return Err(wrong(format!(
                "an answer took its place at {revision}, though {before} was known before it was asked"
            )));
        }
        Ok(revision)
    }

    /// The revision at which the grant with this token ended.
    fn freed_after(&self, lock: &LockName, token: Token) -> Option<u64> {
        let holders = self.holders.get(lock)?;
        let granted = holders.iter().position(|(_, holder)| *holder == Some(token))?;
        holders.get(granted + 1).map(|(revision, _)| *revision)
    }

    fn holder_at(&self, lock: &LockName, revision: u64) -> Option<Token> {
        let holders = self.holders.get(lock)?;
        let later = holders.partition_point(|(from, _)| *from <= revision);
        later.checked_sub(1).and_then(|at| holders[at].1)
    }

    fn held_between(&self, lock: &LockName, token: Token, from: u64) -> bool {
        let Some(holders) = self.holders.get(lock) else { return false };
        holders.iter().enumerate().any(|(at, (_, holder))| {
            let until = holders.get(at + 1).map_or(u64::MAX, |(until, _)| *until);
            *holder == Some(token) && until > from
        })
    }

    fn tell(&mut self, now: u64, revision: u64) {
        let highest = self.told.last_key_value().map_or(0, |(_, revision)| *revision);
        self.told.insert(now, revision.max(highest));
    }
}
