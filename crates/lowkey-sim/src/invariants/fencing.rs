//! A resource that checks tokens never accepts one below the highest *exclusive* one that it has seen
//! (`docs/internals/tokens.md`; `docs/internals/invariants.md`, point 1), refuses nobody who rightly believes, and never sees a token
//! that was not granted for it.
//!
//! Every name protects a resource of its own; whoever holds a subtree may write to all of them.

use std::collections::BTreeMap;

use lowkey_core::{LeaseId, LockName, Mode, Token};

use super::{Check, broken};

/// A write to a protected resource.
#[derive(Clone, Debug)]
pub struct Write {
    /// The resource, by the name that protects it.
    pub to: LockName,
    /// The lock whose token comes with it.
    pub lock: LockName,
    /// The lease that holds it.
    pub lease: LeaseId,
    /// That token.
    pub token: Token,
    /// How the lock is held.
    pub mode: Mode,
}

/// The protected resources: one register a name.
#[derive(Default)]
pub struct Fencing {
    /// The highest exclusive token, and the lease that it came with.
    highest: BTreeMap<LockName, (Token, LeaseId)>,
    /// Writes that were accepted.
    pub accepted: u64,
    /// Writes that were refused.
    pub refused: u64,
}

impl Fencing {
    /// A write arrives, however late; true if it is accepted.
    pub fn write(&mut self, write: &Write) -> bool {
        let highest = self.highest.get(&write.to).map(|(token, _)| *token);
        if highest.is_some_and(|highest| write.token < highest) {
            self.refused += 1;
            return false;
        }
        if write.mode == Mode::Exclusive {
            self.highest.insert(write.to.clone(), (write.token, write.lease));
        }
        self.accepted += 1;
        true
    }

    /// A client that believes to hold a lock writes at once: then its write must not be refused, unless
    /// it was the same lease that came with a later grant of its own.
    pub fn write_in_belief(&mut self, write: &Write) -> Check {
        let by = self.highest.get(&write.to).map(|(_, lease)| *lease);
        if self.write(write) || by == Some(write.lease) {
            return Ok(());
        }
        let Write { to, token, .. } = write;
        broken("fencing", format!("{to}: token {token} of a believing holder is below the highest"))
    }
}
