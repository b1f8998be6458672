//! The bytes of changes in the log, and of principals in snapshots. Numbers are never reused.

use super::{AccessChange, CertificateName, GrantPath, Principal, PrincipalName, TokenHash, TokenId, Verbs};
use crate::encoding::{DecodeError, decode_hash};
use crate::fields::{Fields, MessagePart, Sink};
use crate::name::Invalid;

/// The kinds of command that are a change of the access table.
pub(crate) const ACCESS_KINDS: std::ops::RangeInclusive<u32> = 24..=31;

/// All of them have the same fields. What a kind has no use for is empty.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct AccessProto {
    #[prost(string, tag = "1")]
    principal: String,
    #[prost(string, repeated, tag = "2")]
    names: Vec<String>,
    /// 8 bytes.
    #[prost(bytes = "vec", tag = "3")]
    token: Vec<u8>,
    /// 32 bytes.
    #[prost(bytes = "vec", tag = "4")]
    hash: Vec<u8>,
    #[prost(string, tag = "5")]
    path: String,
    /// A bit for each verb.
    #[prost(uint32, tag = "6")]
    verbs: u32,
    #[prost(bool, tag = "7")]
    required: bool,
}

/// A change with the number of its kind.
pub(crate) struct AccessKind(pub(crate) u32, pub(crate) AccessProto);

fn token_id(bytes: &[u8]) -> Result<TokenId, DecodeError> {
    let bytes = <[u8; 8]>::try_from(bytes);
    bytes.map(TokenId).map_err(|_| DecodeError::Malformed("a token's id that is not 8 bytes".into()))
}

fn token_hash(bytes: &[u8]) -> Result<TokenHash, DecodeError> {
    let hash = decode_hash(bytes)?.map(TokenHash);
    hash.ok_or_else(|| DecodeError::Malformed("a token without its hash".into()))
}

fn verbs(bits: u32) -> Result<Verbs, DecodeError> {
    match Verbs::from_bits(bits).ok_or(DecodeError::UnknownKind)? {
        none if none.is_empty() => Err(DecodeError::Malformed("a grant of nothing".into())),
        verbs => Ok(verbs),
    }
}

fn names(names: &[String]) -> Result<Vec<CertificateName>, Invalid> {
    names.iter().map(|name| CertificateName::parse(name)).collect()
}

impl AccessChange {
    /// The number of its kind.
    pub(crate) fn number(&self) -> u32 {
        match self {
            Self::AddPrincipal { .. } => 24,
            Self::RemovePrincipal { .. } => 25,
            Self::RemoveName { .. } => 26,
            Self::AddToken { .. } => 27,
            Self::RevokeToken { .. } => 28,
            Self::Grant { .. } => 29,
            Self::Revoke { .. } => 30,
            Self::Require { .. } => 31,
        }
    }
}

impl TryFrom<AccessKind> for AccessChange {
    type Error = DecodeError;

    fn try_from(AccessKind(kind, proto): AccessKind) -> Result<Self, DecodeError> {
        let principal = || PrincipalName::parse(&proto.principal);
        Ok(match kind {
            24 => Self::AddPrincipal { principal: principal()?, names: names(&proto.names)? },
            25 => Self::RemovePrincipal { principal: principal()? },
            26 => {
                let name = proto.names.first().map(String::as_str).unwrap_or_default();
                Self::RemoveName { principal: principal()?, name: CertificateName::parse(name)? }
            }
            27 => Self::AddToken {
                principal: principal()?,
                token: token_id(&proto.token)?,
                hash: token_hash(&proto.hash)?,
            },
            28 => Self::RevokeToken { token: token_id(&proto.token)? },
            29 => Self::Grant {
                principal: principal()?,
                path: GrantPath::parse(&proto.path)?,
                verbs: verbs(proto.verbs)?,
            },
            30 => Self::Revoke {
                principal: principal()?,
                path: GrantPath::parse(&proto.path)?,
                verbs: verbs(proto.verbs)?,
            },
            31 => Self::Require { required: proto.required },
            _ => return Err(DecodeError::UnknownKind),
        })
    }
}

impl MessagePart for AccessChange {
    fn write<S: Sink>(&self, fields: &mut Fields<'_, S>) {
        match self {
            Self::AddPrincipal { principal, names } => {
                fields.text(1, principal.as_str());
                names.iter().for_each(|name| fields.text(2, name.as_str()));
            }
            Self::RemovePrincipal { principal } => fields.text(1, principal.as_str()),
            Self::RemoveName { principal, name } => {
                fields.text(1, principal.as_str());
                fields.text(2, name.as_str());
            }
            Self::AddToken { principal, token, hash } => {
                fields.text(1, principal.as_str());
                fields.bytes(3, &token.0);
                fields.bytes(4, &hash.0);
            }
            Self::RevokeToken { token } => fields.bytes(3, &token.0),
            Self::Grant { principal, path, verbs } | Self::Revoke { principal, path, verbs } => {
                fields.text(1, principal.as_str());
                fields.text(5, path.as_str());
                fields.number(6, verbs.bits().into());
            }
            Self::Require { required } => fields.number(7, u64::from(*required)),
        }
    }
}

/// A principal in a snapshot.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct PrincipalProto {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, repeated, tag = "2")]
    names: Vec<String>,
    #[prost(message, repeated, tag = "3")]
    tokens: Vec<TokenProto>,
    #[prost(message, repeated, tag = "4")]
    grants: Vec<GrantProto>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct TokenProto {
    #[prost(bytes = "vec", tag = "1")]
    id: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    hash: Vec<u8>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct GrantProto {
    #[prost(string, tag = "1")]
    path: String,
    #[prost(uint32, tag = "2")]
    verbs: u32,
}

pub(crate) fn principal_proto(name: &PrincipalName, principal: &Principal) -> PrincipalProto {
    let Principal { names, tokens, grants } = principal;
    let token = |(id, hash): (&TokenId, &TokenHash)| TokenProto { id: id.0.to_vec(), hash: hash.0.to_vec() };
    let grant = |(path, verbs): (&GrantPath, &Verbs)| GrantProto {
        path: path.to_string(),
        verbs: verbs.bits().into(),
    };
    PrincipalProto {
        name: name.to_string(),
        names: names.iter().map(ToString::to_string).collect(),
        tokens: tokens.iter().map(token).collect(),
        grants: grants.iter().map(grant).collect(),
    }
}

/// The principal of a snapshot. That it is there once, and its proofs are nobody else's, is the caller's to check.
pub(crate) fn restored(proto: &PrincipalProto) -> Result<(PrincipalName, Principal), DecodeError> {
    let name = PrincipalName::parse(&proto.name)?;
    let mut principal =
        Principal { names: names(&proto.names)?.into_iter().collect(), ..Principal::default() };
    for token in &proto.tokens {
        principal.tokens.insert(token_id(&token.id)?, token_hash(&token.hash)?);
    }
    for grant in &proto.grants {
        principal.grants.insert(GrantPath::parse(&grant.path)?, verbs(grant.verbs)?);
    }
    let count = (principal.names.len(), principal.tokens.len(), principal.grants.len());
    if count != (proto.names.len(), proto.tokens.len(), proto.grants.len()) {
        return Err(DecodeError::Malformed(format!("principal {name} has something twice")));
    }
    if let Some((what, max)) = principal.beyond_limit() {
        return Err(DecodeError::Malformed(format!("principal {name} has more than {max} {what}")));
    }
    Ok((name, principal))
}
