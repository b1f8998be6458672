//! The decision about a caller: may it do this, there?
//!
//! It is a pure function of the table. The node that is asked decides by its own table, and the leader by that
//! of its applied state, which also has the owners of leases: the stricter answer counts.

use std::fmt;
use std::sync::Arc;

use super::{Access, CertificateName, Principal, PrincipalName, TokenHash, TokenId, Verb};
use crate::mutants;
use crate::name::{Invalid, OwnerId};

/// Who asks, as far as the node that was asked knows for certain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Caller {
    /// Nobody who has proven anything.
    Nobody,
    /// A principal.
    Principal(Arc<Identity>),
    /// A person who may read a node's data directory.
    LocalAdmin,
    /// A node of the cluster, for itself.
    Node,
}

/// A principal, and by what it has proven that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Its name.
    pub principal: PrincipalName,
    /// Its proof. When that is taken away, the caller is nobody any more.
    pub proof: Proof,
}

/// What was shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Proof {
    /// A token.
    Token(TokenId),
    /// A certificate with this name.
    Certificate(CertificateName),
}

/// Where something is to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum On<'a> {
    /// At this name. With the names below it, too: a grant covers both.
    Name(&'a str),
    /// At all names that begin with this text.
    Prefix(&'a str),
    /// Everywhere, or at what exists once per cluster.
    Everything,
    /// Somewhere at least: where, is asked later.
    Anywhere,
}

impl fmt::Display for On<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => write!(f, "on {name}"),
            Self::Prefix(prefix) => write!(f, "on all that begins with {prefix:?}"),
            Self::Everything => f.write_str("on / (everything)"),
            Self::Anywhere => f.write_str("on any path"),
        }
    }
}

/// Why a caller may not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Denied {
    /// It has proven nothing, or its proof was taken away.
    Unproven,
    /// It has no grant for this.
    NotGranted {
        /// Who it is.
        principal: PrincipalName,
        /// What it would need.
        verb: Verb,
        /// Where, for a person.
        place: String,
    },
    /// It speaks for an owner that is not its own, or touches what belongs to one.
    NotOwn {
        /// Who it is.
        principal: PrincipalName,
        /// What is another's, for a person.
        what: String,
    },
}

impl Access {
    /// Whose token it is.
    pub fn by_token(&self, token: TokenId, hash: &TokenHash) -> Option<Caller> {
        let principal = self.tokens.get(&token)?;
        let known = self.principals.get(principal)?.tokens.get(&token)?;
        // In the same time wherever they differ. Both are hashes of 256 random bits, so this is for good measure.
        let differ = known.0.iter().zip(hash.0).fold(0, |differ, (one, other)| differ | (one ^ other));
        let is_same = differ == 0 || mutants::A_TOKENS_ID_IS_ENOUGH.is_active();
        is_same.then(|| Caller::of(principal, Proof::Token(token)))
    }

    /// Whose certificate has these names: the first of them that is anybody's.
    pub fn by_names(&self, names: &[String]) -> Option<Caller> {
        let (name, principal) = names.iter().find_map(|name| self.names.get_key_value(name.as_str()))?;
        Some(Caller::of(principal, Proof::Certificate(name.clone())))
    }

    /// Whether a caller may do this there. Everybody may while access is not required.
    pub fn permits(&self, caller: &Caller, verb: Verb, on: On<'_>) -> Result<(), Denied> {
        if self.required { self.judge(caller, verb, on) } else { Ok(()) }
    }

    /// Whether a caller is somebody.
    pub fn knows(&self, caller: &Caller) -> Result<(), Denied> {
        if self.required { self.stands(caller).map(drop) } else { Ok(()) }
    }

    /// Whether a caller may speak for this owner.
    pub fn lets_own(&self, caller: &Caller, owner: &OwnerId) -> Result<(), Denied> {
        if self.required { self.judge_owner(caller, owner) } else { Ok(()) }
    }

    /// [`Access::permits`], as if access were required.
    pub fn judge(&self, caller: &Caller, verb: Verb, on: On<'_>) -> Result<(), Denied> {
        let Some((name, principal)) = self.stands(caller)? else { return Ok(()) };
        if principal.may(verb, on) {
            return Ok(());
        }
        Err(Denied::NotGranted { principal: name.clone(), verb, place: on.to_string() })
    }

    /// [`Access::lets_own`], as if access were required.
    pub fn judge_owner(&self, caller: &Caller, owner: &OwnerId) -> Result<(), Denied> {
        let Some((name, _)) = self.stands(caller)? else { return Ok(()) };
        if name.owns(owner) || mutants::ANYBODYS_LEASES_ARE_TOUCHED.is_active() {
            return Ok(());
        }
        let what = format!("owner {owner} is not {name}, and not below {name}/");
        Err(Denied::NotOwn { principal: name.clone(), what })
    }

    /// The principal that a caller still is, by the proof that it once showed; nothing if it may do everything.
    pub fn stands<'a>(
        &'a self,
        caller: &'a Caller,
    ) -> Result<Option<(&'a PrincipalName, &'a Principal)>, Denied> {
        let identity = match caller {
            Caller::Node | Caller::LocalAdmin => return Ok(None),
            Caller::Nobody => return Err(Denied::Unproven),
            Caller::Principal(identity) => identity,
        };
        let principal = self.principals.get(&identity.principal).ok_or(Denied::Unproven)?;
        let still_proves = match &identity.proof {
            Proof::Token(token) => principal.tokens.contains_key(token),
            Proof::Certificate(name) => principal.names.contains(name),
        };
        if still_proves || mutants::A_REVOKED_TOKEN_GOES_ON.is_active() {
            Ok(Some((&identity.principal, principal)))
        } else {
            Err(Denied::Unproven)
        }
    }
}

impl Principal {
    /// Whether its grants allow this.
    pub fn may(&self, verb: Verb, on: On<'_>) -> bool {
        self.grants.iter().any(|(path, verbs)| {
            let covers = match on {
                On::Name(name) => path.covers_name(name),
                On::Prefix(prefix) => path.covers_prefix(prefix),
                On::Everything => path.is_everything(),
                On::Anywhere => true,
            };
            covers && verbs.has(verb)
        })
    }
}

impl Caller {
    fn of(principal: &PrincipalName, proof: Proof) -> Self {
        Self::Principal(Arc::new(Identity { principal: principal.clone(), proof }))
    }

    /// The principal's name, if it is one.
    pub fn principal(&self) -> Option<&PrincipalName> {
        match self {
            Self::Principal(identity) => Some(&identity.principal),
            _ => None,
        }
    }
}

/// The same in words, as one node tells it to another.
impl Proof {
    /// A proof by token, from the token's id as it is shown.
    pub fn token(id: &str) -> Result<Self, Invalid> {
        TokenId::parse(id).map(Self::Token)
    }

    /// A proof by certificate.
    pub fn certificate(name: &str) -> Result<Self, Invalid> {
        CertificateName::parse(name).map(Self::Certificate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::access::{AccessChange, GrantPath, Outcome, Verbs};

    fn name(text: &str) -> PrincipalName {
        PrincipalName::parse(text).unwrap()
    }

    fn after(changes: &[AccessChange]) -> Access {
        let mut access = Access::default();
        for change in changes {
            match access.outcome(change) {
                Ok(Outcome::Principal(name, principal)) => drop(access.put(&name, principal)),
                Ok(Outcome::Required(required)) => access.require(required),
                Err(refusal) => panic!("{change:?}: {refusal:?}"),
            }
        }
        access
    }

    fn grant(principal: &str, path: &str, verbs: &[Verb]) -> AccessChange {
        let verbs: Verbs = verbs.iter().copied().collect();
        AccessChange::Grant { principal: name(principal), path: GrantPath::parse(path).unwrap(), verbs }
    }

    fn set_up() -> Access {
        let add = |principal: &str, cert: &str| AccessChange::AddPrincipal {
            principal: name(principal),
            names: vec![CertificateName::parse(cert).unwrap()],
        };
        let token = |principal: &str, byte: u8| AccessChange::AddToken {
            principal: name(principal),
            token: TokenId([byte; 8]),
            hash: TokenHash([byte; 32]),
        };
        after(&[
            add("ops", "ops.example"),
            grant("ops", "/", &[Verb::Admin]),
            add("billing", "billing.example"),
            token("billing", 7),
            grant("billing", "billing", &[Verb::Acquire, Verb::Read]),
            AccessChange::Require { required: true },
        ])
    }

    #[test]
    fn a_caller_is_found_by_its_token_or_its_certificate() {
        let access = set_up();
        let caller = access.by_token(TokenId([7; 8]), &TokenHash([7; 32])).unwrap();
        assert_eq!(caller.principal(), Some(&name("billing")));
        assert_eq!(access.by_token(TokenId([7; 8]), &TokenHash([8; 32])), None);
        assert_eq!(access.by_token(TokenId([8; 8]), &TokenHash([7; 32])), None);
        let names = ["unknown".to_owned(), "ops.example".to_owned()];
        assert_eq!(access.by_names(&names).unwrap().principal(), Some(&name("ops")));
        assert_eq!(access.by_names(&names[..1]), None);
    }

    #[test]
    fn only_what_was_granted_is_permitted() {
        let access = set_up();
        let billing = access.by_token(TokenId([7; 8]), &TokenHash([7; 32])).unwrap();
        let may = |verb, on| access.permits(&billing, verb, on).is_ok();
        assert!(may(Verb::Acquire, On::Name("billing/a")) && may(Verb::Acquire, On::Anywhere));
        assert!(may(Verb::Read, On::Prefix("billing/")) && !may(Verb::Read, On::Prefix("billing")));
        assert!(!may(Verb::Acquire, On::Name("billing2")) && !may(Verb::Watch, On::Name("billing")));
        assert!(!may(Verb::Read, On::Everything) && !may(Verb::Admin, On::Anywhere));
        assert_eq!(access.permits(&Caller::Nobody, Verb::Read, On::Anywhere), Err(Denied::Unproven));
        assert!(access.permits(&Caller::LocalAdmin, Verb::Admin, On::Everything).is_ok());
        let own = |owner: &str| access.lets_own(&billing, &OwnerId::parse(owner).unwrap()).is_ok();
        assert!(own("billing/host") && !own("ops"));
    }

    #[test]
    fn a_proof_that_was_taken_away_proves_nothing_any_more() {
        let mut access = set_up();
        let caller = access.by_token(TokenId([7; 8]), &TokenHash([7; 32])).unwrap();
        let other = access.by_names(&["billing.example".to_owned()]).unwrap();
        let Ok(Outcome::Principal(name, principal)) =
            access.outcome(&AccessChange::RevokeToken { token: TokenId([7; 8]) })
        else {
            panic!("a token is revoked")
        };
        access.put(&name, principal);
        assert_eq!(access.knows(&caller), Err(Denied::Unproven));
        assert!(access.knows(&other).is_ok(), "its certificate still proves it");
        access.put(&name, None);
        assert_eq!(access.knows(&other), Err(Denied::Unproven));
    }

    #[test]
    fn nothing_is_asked_for_while_access_is_not_required() {
        let mut access = set_up();
        access.require(false);
        assert!(access.permits(&Caller::Nobody, Verb::Admin, On::Everything).is_ok());
        assert!(access.judge(&Caller::Nobody, Verb::Admin, On::Everything).is_err());
    }
}
