//! A resource that checks tokens never accepts one below the highest it has seen (design, section 8,
//! point 1), and never sees a token that was not granted for it.

use std::collections::BTreeMap;

use lowkey_core::{LockName, Token};

use super::{Check, Tokens, broken};

/// The protected resource: one register a lock.
#[derive(Default)]
pub(crate) struct Fencing {
    highest: BTreeMap<LockName, Token>,
    pub(crate) accepted: u64,
    pub(crate) refused: u64,
}

impl Fencing {
    /// A write arrives, however late; true if it is accepted.
    pub(crate) fn write(
        &mut self,
        lock: &LockName,
        token: Token,
        tokens: &Tokens,
    ) -> Result<bool, super::Violation> {
        tokens.told(lock, token)?;
        let highest = self.highest.entry(lock.clone()).or_insert(token);
        if token < *highest {
            self.refused += 1;
            return Ok(false);
        }
        *highest = token;
        self.accepted += 1;
        Ok(true)
    }

    /// A client that believes to hold a lock writes at once: then its write must not be refused.
    pub(crate) fn write_in_belief(&mut self, lock: &LockName, token: Token, tokens: &Tokens) -> Check {
        match self.write(lock, token, tokens)? {
            true => Ok(()),
            false => {
                broken("fencing", format!("{lock}: token {token} of a believing holder is below the highest"))
            }
        }
    }
}
