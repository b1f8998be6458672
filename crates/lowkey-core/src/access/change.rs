//! How the access table changes. A change is judged by what would come of it, so that the check and the deed
//! are the same code.
//!
//! Each change names its outcome, not its way: carried out twice it is carried out once.

use std::sync::Arc;

use super::{Access, CertificateName, GrantPath, Principal, PrincipalName, TokenHash, TokenId, Verbs};
use crate::command::Refusal;
use crate::limits::PRINCIPALS_MAX;
use crate::mutants;

/// One change of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AccessChange {
    /// Makes a principal, or gives more names to one that exists.
    AddPrincipal {
        /// Its name.
        principal: PrincipalName,
        /// Names in certificates that prove it.
        names: Vec<CertificateName>,
    },
    /// Takes a principal away, with its proofs and grants.
    RemovePrincipal {
        /// Its name.
        principal: PrincipalName,
    },
    /// Takes a certificate's name away from a principal.
    RemoveName {
        /// Whose.
        principal: PrincipalName,
        /// Which.
        name: CertificateName,
    },
    /// Gives a principal a token.
    AddToken {
        /// Whose it is.
        principal: PrincipalName,
        /// Its public part.
        token: TokenId,
        /// The hash of its secret.
        hash: TokenHash,
    },
    /// Makes a token worthless.
    RevokeToken {
        /// Which.
        token: TokenId,
    },
    /// Allows a principal more.
    Grant {
        /// Whom.
        principal: PrincipalName,
        /// Where.
        path: GrantPath,
        /// What.
        verbs: Verbs,
    },
    /// Allows it less: of what was granted on exactly this path.
    Revoke {
        /// Whom.
        principal: PrincipalName,
        /// Where.
        path: GrantPath,
        /// What.
        verbs: Verbs,
    },
    /// From now on nobody may do anything without a proof and a grant; or anybody may do everything again.
    Require {
        /// Which of these.
        required: bool,
    },
}

impl AccessChange {
    /// True if it asks for more than there is. Taking away goes on when room is short.
    pub(crate) fn grows(&self) -> bool {
        match self {
            Self::AddPrincipal { .. } | Self::AddToken { .. } | Self::Grant { .. } => true,
            Self::RemovePrincipal { .. }
            | Self::RemoveName { .. }
            | Self::RevokeToken { .. }
            | Self::Revoke { .. }
            | Self::Require { .. } => false,
        }
    }
}

/// What comes of a change.
pub(crate) enum Outcome {
    /// A principal is as it says; none: it is gone.
    Principal(PrincipalName, Option<Principal>),
    Required(bool),
}

impl Access {
    /// What would come of a change, or why it is refused.
    pub(crate) fn outcome(&self, change: &AccessChange) -> Result<Outcome, Refusal> {
        let (name, principal) = match change {
            AccessChange::Require { required } => {
                if *required && !self.has_admin_but(None) {
                    return Err(Refusal::AdminNeeded);
                }
                return Ok(Outcome::Required(*required));
            }
            AccessChange::RemovePrincipal { principal } => {
                self.known(principal)?;
                (principal.clone(), None)
            }
            AccessChange::RevokeToken { token } => {
                let name = self.tokens.get(token).ok_or(Refusal::TokenNotFound { token: *token })?;
                let mut changed = self.known(name)?;
                changed.tokens.remove(token);
                (name.clone(), Some(changed))
            }
            AccessChange::AddPrincipal { principal, names } => {
                if !self.principals.contains_key(principal) && self.principals.len() >= PRINCIPALS_MAX {
                    return Err(Refusal::AccessLimit { what: "principals", max: PRINCIPALS_MAX });
                }
                let mut changed = self.known(principal).unwrap_or_default();
                for name in names {
                    if let Some(other) = self.names.get(name).filter(|other| *other != principal) {
                        let what = format!("the name {name} of a certificate is that of principal {other}");
                        return Err(Refusal::ProofTaken { what });
                    }
                    changed.names.insert(name.clone());
                }
                (principal.clone(), Some(changed))
            }
            AccessChange::RemoveName { principal, name } => {
                let mut changed = self.known(principal)?;
                changed.names.remove(name);
                (principal.clone(), Some(changed))
            }
            AccessChange::AddToken { principal, token, hash } => {
                let mut changed = self.known(principal)?;
                let is_taken = match self.tokens.get(token) {
                    Some(other) => other != principal || changed.tokens.get(token) != Some(hash),
                    None => false,
                };
                if is_taken {
                    let what = format!("there is a token {token} already; make another one");
                    return Err(Refusal::ProofTaken { what });
                }
                changed.tokens.insert(*token, *hash);
                (principal.clone(), Some(changed))
            }
            AccessChange::Grant { principal, path, verbs } => {
                let mut changed = self.known(principal)?;
                let known = changed.grants.entry(path.clone()).or_default();
                *known = known.with(*verbs);
                (principal.clone(), Some(changed))
            }
            AccessChange::Revoke { principal, path, verbs } => {
                let mut changed = self.known(principal)?;
                let left = changed.grants.get(path).copied().unwrap_or_default().without(*verbs);
                match left.is_empty() {
                    true => drop(changed.grants.remove(path)),
                    false => drop(changed.grants.insert(path.clone(), left)),
                }
                (principal.clone(), Some(changed))
            }
        };
        if let Some((what, max)) = principal.as_ref().and_then(Principal::beyond_limit) {
            return Err(Refusal::AccessLimit { what, max });
        }
        // Only a change by which the last admin goes is refused. After a restore there is none to begin with (no token is
        // in a backup), and who may read a node's directory puts things in order, step by step.
        let had_admin = self.has_admin_but(None);
        let leaves_admin =
            principal.as_ref().is_some_and(Principal::is_admin) || self.has_admin_but(Some(&name));
        if self.required && had_admin && !leaves_admin && !mutants::THE_LAST_ADMIN_CAN_GO.is_active() {
            return Err(Refusal::AdminNeeded);
        }
        Ok(Outcome::Principal(name, principal))
    }

    fn known(&self, name: &PrincipalName) -> Result<Principal, Refusal> {
        let known = self.principals.get(name).map(Arc::as_ref);
        known.cloned().ok_or_else(|| Refusal::PrincipalNotFound { principal: name.clone() })
    }

    /// True if somebody else than this one is an admin.
    pub(super) fn has_admin_but(&self, but: Option<&PrincipalName>) -> bool {
        self.principals.iter().any(|(name, principal)| Some(name) != but && principal.is_admin())
    }
}
