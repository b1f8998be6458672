//! What may be asked of the applied state, and how it is answered: in bounded pieces, since the replica
//! thread does it.

use lowkey_core::{Holder, LockName, LockView, NamePrefix, State, Token, Waiter};

use crate::output::Response;

/// Holders and waiters of one lock that are told, if it alone was asked for.
const SHOWN_OF_ONE: usize = 1_000;
/// Holders and waiters of each lock that are told in a list.
const SHOWN_OF_MANY: usize = 10;
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
    /// Whether a token is current.
    Token {
        /// The lock that it is of.
        lock: LockName,
        /// The token.
        token: Token,
    },
    /// How far the log has been applied.
    Revision,
}

/// The answer as of the state.
pub(crate) fn answer(state: &State, query: &Query) -> Response {
    let revision = state.revision();
    match query {
        Query::Lock { lock } => {
            let mut lock = state.lock(lock, SHOWN_OF_ONE);
            shorten(&mut lock);
            Response::Lock { lock, revision }
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
            Response::Locks { more: found.next().is_some(), locks, revision }
        }
        Query::Token { lock, token } => {
            let current = state.holder_with(lock, *token);
            let other = match current {
                Some(_) => None,
                None => state.lock(lock, 1).holders.pop(),
            };
            Response::Token { current, other, revision }
        }
        Query::Revision => Response::Revision(revision),
    }
}

/// Leaves out whoever would make the answer too long; the counts still tell of them.
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
                since_unix_ms: 0,
                request: RequestId::parse(&format!("request-{index}")).unwrap(),
            };
            state.apply(index, 1, &command).reply.unwrap();
        }
        let Response::Lock { lock, .. } = answer(&state, &Query::Lock { lock }) else { unreachable!() };
        assert_eq!(lock.holder_count, 400);
        assert!(size(&lock) <= ANSWER_BYTES + 1 && lock.holders.len() > 200, "{}", lock.holders.len());
    }
}
