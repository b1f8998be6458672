//! A resource that checks tokens never accepts one below the highest *exclusive* one that it has seen
//! (design, section 5, and section 8, point 1), refuses nobody who rightly believes, and never sees a token
//! that was not granted for it.
//!
//! Every name protects a resource of its own; whoever holds a subtree may write to all of them.

use std::collections::BTreeMap;

use lowkey_core::{LeaseId, LockName, Mode, Token};

use super::{Check, Tokens, broken};

/// A write to a protected resource.
#[derive(Clone, Debug)]
pub(crate) struct Write {
    /// The resource, by the name that protects it.
    pub(crate) to: LockName,
    /// The lock whose token comes with it.
    pub(crate) lock: LockName,
    pub(crate) lease: LeaseId,
    pub(crate) token: Token,
    pub(crate) mode: Mode,
}

/// The protected resources: one register a name.
#[derive(Default)]
pub(crate) struct Fencing {
    /// The highest exclusive token, and the lease that it came with.
    highest: BTreeMap<LockName, (Token, LeaseId)>,
    pub(crate) accepted: u64,
    pub(crate) refused: u64,
}

impl Fencing {
    /// A write arrives, however late; true if it is accepted.
    pub(crate) fn write(&mut self, write: &Write, tokens: &Tokens) -> Result<bool, super::Violation> {
        tokens.told(&write.lock, write.token)?;
        let highest = self.highest.get(&write.to).map(|(token, _)| *token);
        if highest.is_some_and(|highest| write.token < highest) {
            self.refused += 1;
            return Ok(false);
        }
        if write.mode == Mode::Exclusive {
            self.highest.insert(write.to.clone(), (write.token, write.lease));
        }
        self.accepted += 1;
        Ok(true)
    }

    /// A client that believes to hold a lock writes at once: then its write must not be refused, unless
    /// it was the same lease that came with a later grant of its own.
    pub(crate) fn write_in_belief(&mut self, write: &Write, tokens: &Tokens) -> Check {
        let by = self.highest.get(&write.to).map(|(_, lease)| *lease);
        if self.write(write, tokens)? || by == Some(write.lease) {
            return Ok(());
        }
        let Write { to, token, .. } = write;
        broken("fencing", format!("{to}: token {token} of a believing holder is below the highest"))
    }
}
