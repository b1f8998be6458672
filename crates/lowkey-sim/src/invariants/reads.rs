//! What a read says is what the log says at its revision (design, section 8, point 8).

use lowkey_core::{Holder, LockName, LockView};
use lowkey_replica::{Query, Response};

use super::Ledger;
use super::ledger::{Held, LockAt};

/// Holders and waiters that a read of one lock tells, and of each lock in a list.
const SHOWN_OF_ONE: usize = 1_000;
const SHOWN_OF_MANY: usize = 10;

/// The revision as of which the answer is true; or why it is not.
pub(super) fn check(ledger: &Ledger, query: &Query, response: &Response) -> Result<u64, String> {
    let (so, revision) = match (query, response) {
        (Query::Lock { lock }, Response::Lock { lock: view, revision }) => {
            (*lock == view.lock && is_view(view, ledger.at(lock, *revision), SHOWN_OF_ONE), revision)
        }
        (Query::Locks { prefix, after, count_max }, Response::Locks { locks, more, revision }) => {
            let wanted = |lock: &LockName| {
                lock.as_str().starts_with(prefix.as_str()) && after.as_ref().is_none_or(|after| lock > after)
            };
            let all: Vec<_> = ledger.all_at(*revision).filter(|(lock, _)| wanted(lock)).collect();
            let same = locks.len() == all.len().min(*count_max)
                && locks
                    .iter()
                    .zip(&all)
                    .all(|(view, (lock, at))| view.lock == **lock && is_view(view, at, SHOWN_OF_MANY));
            (same && *more == (all.len() > *count_max), revision)
        }
        (Query::Token { lock, token }, Response::Token { current, other, revision }) => {
            let holders = &ledger.at(lock, *revision).holders;
            let known = holders.iter().find(|held| held.token == *token);
            let other_known = holders.first().filter(|_| known.is_none());
            let same = |told: &Option<Holder>, known: Option<&Held>| match (told, known) {
                (Some(told), Some(known)) => is_holder(told, known),
                (told, known) => told.is_none() && known.is_none(),
            };
            (same(current, known) && same(other, other_known), revision)
        }
        (Query::Revision, Response::Revision(revision)) => (true, revision),
        _ => return Err(format!("{query:?} was answered with {response:?}")),
    };
    match so && *revision <= ledger.committed {
        true => Ok(*revision),
        false => Err(format!("{query:?} was read as {response:?}; the log does not say so")),
    }
}

fn is_view(view: &LockView, at: &LockAt, shown_max: usize) -> bool {
    let holders = view.holders.len() == at.holders.len().min(shown_max)
        && view.holders.iter().zip(&at.holders).all(|(told, known)| is_holder(told, known));
    let waiters = view.waiters.len() == at.waiters.len().min(shown_max)
        && view.waiters.iter().zip(&at.waiters).all(|(told, known)| {
            (&told.owner, told.lease, told.mode, told.scope)
                == (&known.owner, known.lease, known.mode, known.scope)
        });
    holders && waiters && view.holder_count == at.holders.len() && view.waiter_count == at.waiters.len()
}

fn is_holder(told: &Holder, known: &Held) -> bool {
    (&told.owner, told.lease, told.token, told.mode, told.scope, &told.value)
        == (&known.owner, known.lease, known.token, known.mode, known.scope, &known.value)
}
