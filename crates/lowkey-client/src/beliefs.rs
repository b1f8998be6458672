//! What a client believes that its lease holds, and how it compares that with what the service says.
//!
//! Every renewal carries a count and a digest of the tokens that the client believes in. If the leader's
//! differ, the client reads the lease. Then:
//!
//! - A token is lost if it was believed in before the lease was read, and is not there: another client
//!   released it. Its guard is told at once. A token that this client is releasing is not believed in any
//!   more.
//! - A grant that this client does not believe in may be one whose answer is under way. It may also belong
//!   to another program that was given the lease. It is left alone, unless it was granted to an acquire
//!   that this client made and gave up. Such an orphan would be renewed for ever, so it is released by its
//!   token.
//!
//! So a difference that comes from acquires and releases under way costs one read, and has no other effect.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lowkey_api::v1::LeaseGrant;
use lowkey_token::{Holds, Token};

use crate::grant::GrantBelief;

/// How many given-up acquires are remembered: far more than can be under way (128), or are remembered by
/// the service (256).
const GIVEN_UP_MAX: usize = 1024;

#[derive(Default)]
pub(crate) struct Beliefs {
    inside: Mutex<Inside>,
}

/// Invariant: `holds` describes exactly the tokens in `held`.
#[derive(Default)]
struct Inside {
    holds: Holds,
    held: BTreeMap<u64, Arc<GrantBelief>>,
    /// Request ids of acquires, the oldest first.
    given_up: VecDeque<String>,
}

/// What follows from what a lease holds.
#[derive(Default)]
pub(crate) struct Verdict {
    /// Believed in until now, and gone, by their tokens.
    pub(crate) lost: Vec<(u64, Arc<GrantBelief>)>,
    /// Names and tokens of grants that nobody wants.
    pub(crate) orphans: Vec<(String, u64)>,
}

impl Beliefs {
    pub(crate) fn add(&self, token: u64, held: Arc<GrantBelief>) {
        let mut inside = self.lock();
        if inside.held.insert(token, held).is_none() {
            inside.holds.add(Token(token));
        }
    }

    /// Ends belief in a token, for any reason.
    pub(crate) fn remove(&self, token: u64) {
        self.lock().remove(token);
    }

    /// Notes that nobody waits for this acquire any more.
    pub(crate) fn give_up(&self, acquire_request_id: String) {
        let mut inside = self.lock();
        inside.given_up.push_back(acquire_request_id);
        if inside.given_up.len() > GIVEN_UP_MAX {
            inside.given_up.pop_front();
        }
    }

    pub(crate) fn holds(&self) -> Holds {
        self.lock().holds
    }

    pub(crate) fn tokens(&self) -> Vec<u64> {
        self.lock().held.keys().copied().collect()
    }

    /// Judges what the lease holds. It was read after `believed` was believed in. Lost tokens are not
    /// believed in any more.
    pub(crate) fn judge(&self, believed: &[u64], grants: Vec<LeaseGrant>) -> Verdict {
        let there: BTreeSet<u64> = grants.iter().map(|grant| grant.fencing_token).collect();
        let mut inside = self.lock();
        let gone = believed.iter().filter(|token| !there.contains(token));
        let lost = gone.filter_map(|token| Some((*token, inside.remove(*token)?))).collect();
        let orphans = grants.into_iter().filter(|grant| {
            inside.given_up.contains(&grant.acquire_request_id)
                && !inside.held.contains_key(&grant.fencing_token)
        });
        let orphans = orphans.map(|grant| (grant.lock_name, grant.fencing_token)).collect();
        Verdict { lost, orphans }
    }

    fn lock(&self) -> MutexGuard<'_, Inside> {
        self.inside.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inside {
    fn remove(&mut self, token: u64) -> Option<Arc<GrantBelief>> {
        let held = self.held.remove(&token)?;
        self.holds.remove(Token(token));
        Some(held)
    }
}

#[cfg(test)]
mod tests {
    use tokio_util::sync::CancellationToken;

    use super::*;

    fn beliefs(tokens: &[u64]) -> Beliefs {
        let beliefs = Beliefs::default();
        for token in tokens {
            beliefs.add(*token, Arc::new(GrantBelief::new(CancellationToken::new(), None)));
        }
        beliefs
    }

    fn grant(fencing_token: u64, acquire_request_id: &str) -> LeaseGrant {
        let acquire_request_id = acquire_request_id.to_owned();
        let lock_name = format!("lock-{fencing_token}");
        LeaseGrant { lock_name, fencing_token, acquire_request_id, ..LeaseGrant::default() }
    }

    #[test]
    fn what_is_told_is_what_is_believed() {
        let beliefs = beliefs(&[5, 7, 9]);
        beliefs.remove(7);
        beliefs.remove(7);
        assert_eq!(beliefs.holds(), Holds::of([Token(5), Token(9)]));
    }

    #[test]
    fn what_was_believed_in_and_is_gone_is_lost_and_nothing_else_is() {
        let beliefs = beliefs(&[5, 7, 9]);
        let before = beliefs.tokens();
        // During the read one grant was released, and another was granted, which the answer does not have
        // yet.
        beliefs.remove(9);
        beliefs.add(11, Arc::new(GrantBelief::new(CancellationToken::new(), None)));
        let verdict = beliefs.judge(&before, vec![grant(5, "a")]);
        assert_eq!((verdict.lost.len(), verdict.orphans.len()), (1, 0));
        assert_eq!(beliefs.holds(), Holds::of([Token(5), Token(11)]));
        assert!(beliefs.judge(&before, vec![grant(5, "a")]).lost.is_empty(), "told once");
    }

    #[test]
    fn only_what_was_given_up_is_an_orphan_and_not_if_somebody_has_it() {
        let beliefs = beliefs(&[5]);
        beliefs.give_up("given up".to_owned());
        beliefs.give_up("given up, and then asked for again".to_owned());
        let grants = vec![
            grant(5, "given up, and then asked for again"),
            grant(6, "given up"),
            grant(7, "its answer is under way"),
            grant(8, ""),
        ];
        let verdict = beliefs.judge(&[5], grants);
        assert_eq!(verdict.orphans, [("lock-6".to_owned(), 6)]);
        assert!(verdict.lost.is_empty());
    }
}
