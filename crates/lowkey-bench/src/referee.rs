//! Watches over one lock from outside: whoever is granted it says so, and says when it is about to give it back.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::system::BenchProblem;

/// Invariant: `is_held` from when a grant was heard of until its release is about to be sent. In that time nobody
/// else may hear of a grant, whatever the clocks say: one process sees both.
#[derive(Debug, Default)]
pub(crate) struct Referee {
    lock: String,
    is_held: AtomicBool,
    last_token: AtomicU64,
}

impl Referee {
    pub(crate) fn new(lock: impl Into<String>) -> Self {
        Self { lock: lock.into(), ..Self::default() }
    }

    pub(crate) fn lock(&self) -> &str {
        &self.lock
    }

    /// Somebody was granted the lock.
    pub(crate) fn granted(&self, token: Option<u64>) -> Result<(), BenchProblem> {
        if self.is_held.swap(true, Ordering::SeqCst) {
            return Err(BenchProblem::wrong(format!("{} has two holders at once", self.lock)));
        }
        let Some(token) = token else { return Ok(()) };
        let last = self.last_token.fetch_max(token, Ordering::SeqCst);
        if token <= last {
            let problem =
                format!("{} was granted with token {token}, and before that with {last}", self.lock);
            return Err(BenchProblem::wrong(problem));
        }
        Ok(())
    }

    /// Its holder is about to give it back.
    pub(crate) fn releasing(&self) {
        self.is_held.store(false, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_rise_and_holders_take_turns() {
        let referee = Referee::new("a");
        referee.granted(Some(7)).unwrap();
        referee.releasing();
        referee.granted(Some(9)).unwrap();
    }

    #[test]
    fn a_token_that_does_not_rise_is_wrong() {
        let referee = Referee::new("a");
        referee.granted(Some(7)).unwrap();
        referee.releasing();
        let problem = referee.granted(Some(7)).unwrap_err();
        assert_eq!(problem.to_string(), "wrong result: a was granted with token 7, and before that with 7");
    }

    #[test]
    fn two_holders_at_once_are_wrong() {
        let referee = Referee::new("a");
        referee.granted(None).unwrap();
        assert_eq!(referee.granted(None).unwrap_err().to_string(), "wrong result: a has two holders at once");
    }
}
