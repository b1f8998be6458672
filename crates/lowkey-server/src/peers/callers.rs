//! Who asked for a forwarded request, as one node tells it to another.
//!
//! A member is believed about who asked it: it has proven its key, and could do worse. But it may be behind, so
//! the leader looks up what it names once more.

use std::sync::Arc;

use lowkey_core::{Caller, Identity, PrincipalName, Proof};

use super::proto;
use super::proto::caller::Who;

impl From<&Caller> for proto::Caller {
    fn from(caller: &Caller) -> Self {
        let who = match caller {
            Caller::Nobody => Who::Nobody(true),
            Caller::LocalAdmin => Who::LocalAdmin(true),
            Caller::Node => Who::Node(true),
            Caller::Principal(identity) => {
                let (token_id, certificate_name) = match &identity.proof {
                    Proof::Token(token) => (token.to_string(), String::new()),
                    Proof::Certificate(name) => (String::new(), name.to_string()),
                };
                let name = identity.principal.to_string();
                Who::Principal(proto::CallerPrincipal { name, token_id, certificate_name })
            }
        };
        Self { who: Some(who) }
    }
}

/// Who a node says that asked it. A node of before says nothing, and what cannot be read is nobody.
pub(super) fn heard(caller: Option<proto::Caller>) -> Caller {
    let principal = |told: &proto::CallerPrincipal| {
        let proof = match told.token_id.as_str() {
            "" => Proof::certificate(&told.certificate_name),
            token => Proof::token(token),
        };
        let identity = Identity { principal: PrincipalName::parse(&told.name).ok()?, proof: proof.ok()? };
        Some(Caller::Principal(Arc::new(identity)))
    };
    match caller.and_then(|caller| caller.who) {
        Some(Who::LocalAdmin(true)) => Caller::LocalAdmin,
        Some(Who::Node(true)) => Caller::Node,
        Some(Who::Principal(told)) => principal(&told).unwrap_or(Caller::Nobody),
        Some(Who::Nobody(_) | Who::LocalAdmin(false) | Who::Node(false)) | None => Caller::Nobody,
    }
}

#[cfg(test)]
mod tests {
    use lowkey_core::{CertificateName, TokenId};

    use super::*;

    #[test]
    fn callers_are_heard_as_they_are_told_and_who_is_not_told_of_is_nobody() {
        let principal = |proof| {
            let principal = PrincipalName::parse("billing").unwrap();
            Caller::Principal(Arc::new(Identity { principal, proof }))
        };
        for caller in [
            Caller::Nobody,
            Caller::LocalAdmin,
            Caller::Node,
            principal(Proof::Token(TokenId([7; 8]))),
            principal(Proof::Certificate(CertificateName::parse("a.example").unwrap())),
        ] {
            assert_eq!(heard(Some((&caller).into())), caller);
        }
        assert_eq!(heard(None), Caller::Nobody);
        assert_eq!(heard(Some(proto::Caller { who: None })), Caller::Nobody);
        let unknown = proto::CallerPrincipal { name: "a/b".into(), ..Default::default() };
        assert_eq!(heard(Some(proto::Caller { who: Some(Who::Principal(unknown)) })), Caller::Nobody);
    }
}
