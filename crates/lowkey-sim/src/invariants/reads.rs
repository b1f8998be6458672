//! What a read says is what the log says at its revision (`docs/internals/invariants.md`, point 8).

use lowkey_core::{Holder, LockName};
use lowkey_replica::{Query, Response};

use super::Ledger;
use super::chronicle::{HoldSeen, is_holder};

/// Holders and waiters that a read of one lock tells, and of each lock in a list.
const SHOWN_OF_ONE: usize = 1_000;
const SHOWN_OF_MANY: usize = 10;

/// The revision as of which the answer is true; or why it is not.
pub(super) fn check(ledger: &Ledger, query: &Query, response: &Response) -> Result<u64, String> {
    let (so, revision) = match (query, response) {
        (Query::Lock { lock }, Response::Lock { lock: view, revision, .. }) => {
            (*lock == view.lock && ledger.at(lock, *revision).is_told_as(view, SHOWN_OF_ONE), revision)
        }
        (Query::Locks { prefix, after, count_max }, Response::Locks { locks, more, revision, .. }) => {
            let wanted = |lock: &LockName| {
                lock.as_str().starts_with(prefix.as_str()) && after.as_ref().is_none_or(|after| lock > after)
            };
            let all: Vec<_> = ledger.all_at(*revision).filter(|(lock, _)| wanted(lock)).collect();
            let same = locks.len() == all.len().min(*count_max)
                && locks
                    .iter()
                    .zip(&all)
                    .all(|(view, (lock, at))| view.lock == **lock && at.is_told_as(view, SHOWN_OF_MANY));
            (same && *more == (all.len() > *count_max), revision)
        }
        (Query::Token { lock, token }, Response::Token { current, other, revision, .. }) => {
            let holders = &ledger.at(lock, *revision).holders;
            let known = holders.iter().find(|held| held.token == *token);
            let other_known = holders.first().filter(|_| known.is_none());
            let same = |told: &Option<Holder>, known: Option<&HoldSeen>| match (told, known) {
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
