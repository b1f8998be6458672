//! Tokens rise strictly, per lock and per group, across restarts, leader changes and snapshots
//! (`docs/internals/invariants.md`, point 2); and one that is old touches no newer grant (`docs/internals/tokens.md`).

use std::collections::{BTreeMap, BTreeSet};

use lowkey_core::{Change, ChangeKind, Command, Event, LockName, Token};

use super::{Agreement, Check, Committed, broken};

const NAME: &str = "tokens";

/// Every token that was ever granted.
#[derive(Default)]
pub struct Tokens {
    highest: u64,
    granted: BTreeMap<u64, LockName>,
}

impl Tokens {
    /// A new grant was committed.
    pub(crate) fn committed(&mut self, committed: &Committed) -> Check {
        for event in &committed.applied.events {
            let Event::Changed(Change { kind, lock, token: Some(token), .. }) = event else { continue };
            if let (ChangeKind::Freed(_), Command::Release { token: Some(named), .. }) =
                (kind, &committed.command)
                && token != named
            {
                return broken(
                    NAME,
                    format!("a release that named token {named} of {lock} freed token {token}"),
                );
            }
            if *kind != ChangeKind::Acquired {
                continue;
            }
            self.granted(lock, *token)?;
        }
        Ok(())
    }

    /// There is a new grant, later than all that were told before.
    pub fn granted(&mut self, lock: &LockName, token: Token) -> Check {
        if token.0 <= self.highest {
            return broken(NAME, format!("token {token} of {lock} was granted after {}", self.highest));
        }
        self.highest = token.0;
        self.granted.insert(token.0, lock.clone());
        Ok(())
    }

    /// All that were granted.
    pub(crate) fn all(&self) -> BTreeSet<u64> {
        self.granted.keys().copied().collect()
    }

    /// A client was told of a grant.
    pub fn told(&self, lock: &LockName, token: Token) -> Check {
        match self.granted.get(&token.0) {
            Some(known) if known == lock => Ok(()),
            Some(known) => broken(NAME, format!("token {token} was told for {lock}, but is of {known}")),
            None => broken(NAME, format!("token {token} was told for {lock}, but never granted")),
        }
    }

    /// No replica's counter may be behind what was granted up to where it is.
    pub(crate) fn compare(&self, member: u64, agreement: &Agreement, last: Token, revision: u64) -> Check {
        if revision == agreement.state().revision() && last != agreement.state().last_token() {
            return broken(NAME, format!("n{member} counts {last}, but {} was granted", self.highest));
        }
        Ok(())
    }
}
