//! Who may do what: principals, how they prove themselves, and what they were granted.
//!
//! The table is part of the replicated state, so it is the same on every node, and in every snapshot. It
//! decides nothing until access is *required*. From then on:
//!
//! - A *principal* is who a client has proven to be, by a bearer token or by a name in its certificate. The
//!   table has hashes of tokens only: nobody can read a token out of the log or of a snapshot.
//! - A *grant* is some verbs on a path. It covers the name itself and all names below it, by segment:
//!   `billing` covers `billing/a`, and not `billing2`.
//! - Owners are names that principals give themselves, below their own: `billing`, or `billing/host-7`.
//!
//! Invariants:
//!
//! - A token, or a name of a certificate, is the proof of one principal.
//! - While access is required, some principal is an admin who can prove it. (Whoever may read the data
//!   directory of a node always is one: see `docs/operate/secure.md`.)
//!
//! - `names.rs`: the types
//! - `change.rs`: how the table changes, and what is refused
//! - `permit.rs`: the decision about a caller
//! - `format.rs`: bytes, in the log and in snapshots

mod change;
mod format;
mod names;
mod permit;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

pub use self::change::AccessChange;
pub(crate) use self::change::Outcome;
pub(crate) use self::format::{
    ACCESS_KINDS, AccessKind, AccessProto, PrincipalProto, principal_proto, restored,
};
pub use self::names::{CertificateName, GrantPath, PrincipalName, TokenHash, TokenId, Verb, Verbs};
pub use self::permit::{Caller, Denied, Identity, On, Proof};
use crate::limits::{GRANTS_PER_PRINCIPAL_MAX, NAMES_PER_PRINCIPAL_MAX, TOKENS_PER_PRINCIPAL_MAX};

/// Who may do what.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Access {
    required: bool,
    // Shared: every change of the table makes a new one for those who read it.
    principals: BTreeMap<PrincipalName, Arc<Principal>>,
    /// Whose token it is; follows from `principals`.
    tokens: BTreeMap<TokenId, PrincipalName>,
    /// Whose certificate has this name; follows from `principals`.
    names: BTreeMap<CertificateName, PrincipalName>,
}

/// How a principal proves itself, and what it may do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Principal {
    /// Names in certificates that are its.
    pub names: BTreeSet<CertificateName>,
    /// Its tokens, by id.
    pub tokens: BTreeMap<TokenId, TokenHash>,
    /// What it may do where. No entry is without a verb.
    pub grants: BTreeMap<GrantPath, Verbs>,
}

impl Principal {
    /// True if it may manage the cluster, and can prove that it is who it is.
    pub fn is_admin(&self) -> bool {
        let can_prove_it = !self.names.is_empty() || !self.tokens.is_empty();
        can_prove_it && self.grants.get(&GrantPath::everything()).is_some_and(|verbs| verbs.has(Verb::Admin))
    }

    /// The limit that it is beyond, if it is.
    fn beyond_limit(&self) -> Option<(&'static str, usize)> {
        [
            ("certificate names", self.names.len(), NAMES_PER_PRINCIPAL_MAX),
            ("tokens", self.tokens.len(), TOKENS_PER_PRINCIPAL_MAX),
            ("grants", self.grants.len(), GRANTS_PER_PRINCIPAL_MAX),
        ]
        .into_iter()
        .find(|(_, count, max)| count > max)
        .map(|(what, _, max)| (what, max))
    }
}

impl Access {
    /// True if nobody may do anything without a proof and a grant.
    pub fn is_required(&self) -> bool {
        self.required
    }

    /// True if nothing was ever set up here.
    pub fn is_empty(&self) -> bool {
        !self.required && self.principals.is_empty()
    }

    /// Every principal, by name.
    pub fn principals(&self) -> impl ExactSizeIterator<Item = (&PrincipalName, &Principal)> {
        self.principals.iter().map(|(name, principal)| (name, &**principal))
    }

    /// A principal.
    pub fn principal(&self, name: &PrincipalName) -> Option<&Principal> {
        self.principals.get(name).map(Arc::as_ref)
    }

    /// True if some proof of this principal is somebody's.
    pub(crate) fn shares_a_proof(&self, principal: &Principal) -> bool {
        principal.tokens.keys().any(|token| self.tokens.contains_key(token))
            || principal.names.iter().any(|name| self.names.contains_key(name))
    }

    /// Replaces a principal, or takes it away; gives back what it was.
    pub(crate) fn put(
        &mut self,
        name: &PrincipalName,
        principal: Option<Principal>,
    ) -> Option<Arc<Principal>> {
        let before = self.principals.remove(name);
        if let Some(before) = &before {
            before.tokens.keys().for_each(|token| drop(self.tokens.remove(token)));
            before.names.iter().for_each(|one| drop(self.names.remove(one)));
        }
        if let Some(principal) = principal {
            self.tokens.extend(principal.tokens.keys().map(|token| (*token, name.clone())));
            self.names.extend(principal.names.iter().map(|one| (one.clone(), name.clone())));
            self.principals.insert(name.clone(), Arc::new(principal));
        }
        before
    }

    pub(crate) fn require(&mut self, required: bool) {
        self.required = required;
    }
}

/// What the state does with the table. Only here, so that the digest is in step.
impl crate::State {
    /// Who may do what. Shared: it is read beside the state, and hardly ever changes.
    pub fn access(&self) -> &Arc<Access> {
        &self.access
    }

    /// Carries out a change that passed the check.
    pub(crate) fn change_access(&mut self, change: &AccessChange) {
        match self.access.outcome(change) {
            Ok(Outcome::Principal(name, principal)) => self.put_principal(&name, principal),
            Ok(Outcome::Required(required)) => self.require_access(required),
            Err(refusal) => unreachable!("a change that passed the check is refused: {refusal:?}"),
        }
    }

    pub(crate) fn put_principal(&mut self, name: &PrincipalName, principal: Option<Principal>) {
        if let Some(principal) = &principal {
            self.digest.add(crate::digest::DigestPart::Principal(name, principal));
        }
        if let Some(before) = Arc::make_mut(&mut self.access).put(name, principal) {
            self.digest.take(crate::digest::DigestPart::Principal(name, &before));
        }
    }

    pub(crate) fn require_access(&mut self, required: bool) {
        match (self.access.is_required(), required) {
            (false, true) => self.digest.add(crate::digest::DigestPart::AccessRequired),
            (true, false) => self.digest.take(crate::digest::DigestPart::AccessRequired),
            _ => return,
        }
        Arc::make_mut(&mut self.access).require(required);
    }
}
