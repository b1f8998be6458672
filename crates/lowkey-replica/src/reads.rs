//! What may be asked of the applied state, and how it is answered: in bounded pieces, since the replica
//! thread does it.

use std::collections::BTreeMap;
use std::sync::Arc;

use lowkey_core::{
    Holder, LeaseId, LeaseView, LockName, LockView, NamePrefix, OwnerId, Refusal, State, Token, Waiter,
};

use crate::lead::LeaseTable;
use crate::output::{Failure, Response};
use crate::time::Nanos;

/// Holders and waiters of one lock that are told, if it alone was asked for.
const SHOWN_OF_ONE: usize = 1_000;
/// Holders and waiters of each lock that are told in a list.
const SHOWN_OF_MANY: usize = 10;
/// What one lease waits for that is told.
const WAITS_SHOWN: usize = 1_000;
/// Leases that are looked through for those of one owner before an answer ends early.
const LEASES_SEEN_MAX: usize = 10_000;
/// About how many bytes an answer may have before it ends early.
const ANSWER_BYTES: usize = 1024 * 1024;

/// A question about the applied state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Query {
    /// Who holds a lock, and who waits for it.
    Lock {
        /// Which.
        lock: LockName,
    },
    /// Which locks there are.
    Locks {
        /// What their names begin with.
        prefix: NamePrefix,
        /// The name behind which to begin.
        after: Option<LockName>,
        /// How many are wanted.
        count_max: usize,
    },
    /// What a lease holds, and what it waits for.
    Lease {
        /// Which.
        lease: LeaseId,
        /// The name behind which to begin.
        after: Option<LockName>,
        /// How many grants are wanted.
        count_max: usize,
    },
    /// Which leases there are.
    Leases {
        /// Whose; everybody's if it is not said.
        owner: Option<OwnerId>,
        /// The lease behind which to begin.
        after: Option<LeaseId>,
        /// How many are wanted.
        count_max: usize,
    },
    /// Whether a token is current.
    Token {
        /// The lock that it is of.
        lock: LockName,
        /// The token.
        token: Token,
    },
    /// How far the log has been applied.
    Revision,
    /// Who may do what.
    Access,
    /// What the cluster says of its backups.
    BackupSchedule,
}

/// How long leases live if they are not renewed, in ms, by lease. Only a leader knows, so an answer that may be
/// old has none; and a lease has none whose time has not begun, or is over.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Remaining(BTreeMap<LeaseId, u64>);

impl Remaining {
    fn of(
        state: &State,
        table: Option<&LeaseTable>,
        now: Nanos,
        leases: impl Iterator<Item = LeaseId>,
    ) -> Self {
        let Some(table) = table else { return Self::default() };
        Self(leases.filter_map(|lease| Some((lease, table.remaining_ms(now, lease, state)?))).collect())
    }

    /// The time left of a lease.
    pub fn ms(&self, lease: LeaseId) -> Option<u64> {
        self.0.get(&lease).copied()
    }
}

/// The answer as of the state, and as of the deadlines, if it is a leader's answer.
pub(crate) fn answer(
    state: &State,
    table: Option<&LeaseTable>,
    now: Nanos,
    query: &Query,
) -> Result<Response, Failure> {
    let revision = state.revision();
    let holders =
        |holders: &[Holder]| Remaining::of(state, table, now, holders.iter().map(|holder| holder.lease));
    Ok(match query {
        Query::Lock { lock } => {
            let mut lock = state.lock(lock, SHOWN_OF_ONE);
            shorten(&mut lock);
            Response::Lock { remaining: holders(&lock.holders), lock, revision }
        }
        Query::Locks { prefix, after, count_max } => {
            let mut found = state.locks_with(prefix, after.as_ref(), SHOWN_OF_MANY);
            let mut locks: Vec<LockView> = Vec::new();
            let mut bytes = 0;
            while locks.len() < *count_max
                && bytes < ANSWER_BYTES
                && let Some(lock) = found.next()
            {
                bytes += size(&lock);
                locks.push(lock);
            }
            let all = locks.iter().flat_map(|lock| &lock.holders).map(|holder| holder.lease);
            let remaining = Remaining::of(state, table, now, all);
            Response::Locks { more: found.next().is_some(), locks, remaining, revision }
        }
        Query::Lease { lease, after, count_max } => {
            let Some(view) = state.lease_view(*lease) else {
                return Err(Failure::Refused(Refusal::LeaseNotFound { lease: *lease }));
            };
            let mut found = state.grants_of(*lease, after.as_ref());
            let grants = found.by_ref().take(*count_max).collect();
            let waits = match after {
                Some(_) => Vec::new(),
                None => state.waits_of(*lease).take(WAITS_SHOWN).collect(),
            };
            let remaining = Remaining::of(state, table, now, std::iter::once(*lease));
            Response::Lease { lease: view, grants, more: found.next().is_some(), waits, remaining, revision }
        }
        Query::Leases { owner, after, count_max } => {
            let mut leases: Vec<LeaseView> = Vec::new();
            let mut next = *after;
            let mut found = state.leases_after(*after).take(LEASES_SEEN_MAX);
            while leases.len() < *count_max {
                let Some(view) = found.next() else { break };
                next = Some(view.lease);
                if owner.as_ref().is_none_or(|owner| *owner == view.owner) {
                    leases.push(view);
                }
            }
            let next = next.filter(|last| state.leases_after(Some(*last)).next().is_some());
            let remaining = Remaining::of(state, table, now, leases.iter().map(|view| view.lease));
            Response::Leases { leases, next, remaining, revision }
        }
        Query::Token { lock, token } => {
            let current = state.holder_with(lock, *token);
            let other = match current {
                Some(_) => None,
                None => state.lock(lock, 1).holders.pop(),
            };
            let told = current.iter().chain(&other).map(|holder| holder.lease);
            Response::Token { remaining: Remaining::of(state, table, now, told), current, other, revision }
        }
        Query::Revision => Response::Revision(revision),
        Query::Access => Response::Access(Arc::clone(state.access())),
        Query::BackupSchedule => Response::BackupSchedule(state.backup_schedule().cloned()),
    })
}

/// How much work an answer was: what it tells of, and what was looked through for it.
pub(crate) fn units(query: &Query, answer: &Result<Response, Failure>) -> usize {
    let of_lock = |lock: &LockView| lock.holders.len() + lock.waiters.len();
    match (query, answer) {
        (Query::Leases { owner: Some(_), .. }, _) => LEASES_SEEN_MAX,
        (_, Ok(Response::Lock { lock, .. })) => of_lock(lock),
        (_, Ok(Response::Locks { locks, .. })) => locks.iter().map(|lock| 1 + of_lock(lock)).sum(),
        (_, Ok(Response::Lease { grants, waits, .. })) => grants.len() + waits.len(),
        (_, Ok(Response::Leases { leases, .. })) => leases.len(),
        _ => 0,
    }
}

/// Leaves out holders and waiters that would make the answer too long; the counts still tell of them.
fn shorten(lock: &mut LockView) {
    let mut bytes = 0;
    let mut fits = |more: usize| {
        bytes += more;
        bytes <= ANSWER_BYTES
    };
    let holders = lock.holders.iter().take_while(|holder| fits(holder_size(holder))).count();
    let waiters = lock.waiters.iter().take_while(|waiter| fits(waiter_size(waiter))).count();
    lock.holders.truncate(holders);
    lock.waiters.truncate(waiters);
}

/// About how many bytes it takes to tell of a lock.
fn size(lock: &LockView) -> usize {
    let (holders, waiters) = (lock.holders.iter().map(holder_size), lock.waiters.iter().map(waiter_size));
    lock.lock.as_str().len() + holders.chain(waiters).sum::<usize>()
}

fn holder_size(holder: &Holder) -> usize {
    holder.owner.as_str().len() + holder.value.as_str().len() + 64
}

fn waiter_size(waiter: &Waiter) -> usize {
    waiter.owner.as_str().len() + 64
}

#[cfg(test)]
mod tests {
    use lowkey_core::{AcquireWith, ClusterId, Command, Mode, OwnerId, RequestId, Scope, Ttl, Value};

    use super::*;

    #[test]
    fn many_holders_with_long_values_are_told_in_part_and_counted_in_full() {
        let mut state = State::new(ClusterId([7; 16]));
        let lock = LockName::parse("a").unwrap();
        for index in 1..=400 {
            let command = Command::Acquire {
                lock: lock.clone(),
                owner: OwnerId::parse("alice").unwrap(),
                with: AcquireWith::NewLease(Ttl::parse(10).unwrap()),
                mode: Mode::Shared,
                scope: Scope::Name,
                value: Value::parse(&"v".repeat(4096)).unwrap(),
                wait: false,
                max_hold: None,
                since_unix_ms: 0,
                keeps_asked: false,
                request: RequestId::parse(&format!("request-{index}")).unwrap(),
            };
            state.apply(index, 1, &command).reply.unwrap();
        }
        let answer = answer(&state, None, Nanos(0), &Query::Lock { lock });
        let Ok(Response::Lock { lock, .. }) = answer else { unreachable!() };
        assert_eq!(lock.holder_count, 400);
        assert!(size(&lock) <= ANSWER_BYTES + 1 && lock.holders.len() > 200, "{}", lock.holders.len());
    }
}
