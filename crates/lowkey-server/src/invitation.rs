//! Invitations, as they are handed from an operator to a new node.
//!
//! An invitation is one line of text: the cluster, where its members are and which keys they have, and a secret. With it
//! the new node knows whom to believe, and the members know that somebody wanted it: both sides are sure of each other
//! before the first message. The cluster keeps a hash of the secret only. The text lets one node in, once, within its
//! time: whoever has it can use it, so it is given in a file and is never logged.

use std::fmt;
use std::path::Path;

use lowkey_core::{ClusterId, InvitationHash};
use prost::Message as _;

use crate::error::StartError;
use crate::node_key::sha256;
use crate::peers::known::KnownMember;
use crate::peers::proto::PeerMember;

/// What every invitation begins with; the number is the version of its form.
const PREFIX: &str = "lowkey-join-1-";
const FLAG: &str = "--join-token-file";
const CHECKSUM_BYTES: usize = 4;

/// For how long an invitation is good, unless somebody says otherwise.
pub(crate) const LIFETIME_SECONDS: u64 = 3600;

/// A secret that lets a node in.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Secret(pub(crate) [u8; 32]);

impl Secret {
    pub(crate) fn hash(&self) -> InvitationHash {
        InvitationHash(sha256(&self.0))
    }
}

/// An invitation.
#[derive(Clone, PartialEq, Eq)]
pub struct JoinToken {
    pub(crate) cluster: ClusterId,
    pub(crate) secret: Secret,
    /// Each with its key.
    pub(crate) members: Vec<KnownMember>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct TokenProto {
    #[prost(bytes = "vec", tag = "1")]
    cluster: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    secret: Vec<u8>,
    #[prost(message, repeated, tag = "3")]
    members: Vec<PeerMember>,
}

impl JoinToken {
    /// Reads an invitation from a file.
    pub fn read(path: &Path) -> Result<Self, StartError> {
        let refused = |problem: String| StartError::Flag { flag: FLAG, problem };
        let text = std::fs::read_to_string(path)
            .map_err(|error| refused(format!("cannot read {}: {error}", path.display())))?;
        Self::parse(text.trim()).ok_or_else(|| {
            refused(format!(
                "{} holds no invitation: it must be one line as `lowkey member invite` prints it",
                path.display()
            ))
        })
    }

    fn parse(text: &str) -> Option<Self> {
        let mut bytes = hex_decode(text.strip_prefix(PREFIX)?)?;
        let checksum = bytes.split_off(bytes.len().checked_sub(CHECKSUM_BYTES)?);
        if crc32c::crc32c(&bytes).to_be_bytes() != checksum.as_slice() {
            return None;
        }
        let TokenProto { cluster, secret, members } = TokenProto::decode(bytes.as_slice()).ok()?;
        let members: Vec<KnownMember> =
            members.into_iter().map(TryInto::try_into).collect::<Result<_, _>>().ok()?;
        let has_keys = members.iter().all(|member| member.key.is_some());
        (has_keys && !members.is_empty()).then_some(Self {
            cluster: ClusterId(cluster.try_into().ok()?),
            secret: Secret(secret.try_into().ok()?),
            members,
        })
    }

    /// The text that is handed on.
    pub(crate) fn reveal(&self) -> String {
        let proto = TokenProto {
            cluster: self.cluster.0.to_vec(),
            secret: self.secret.0.to_vec(),
            members: self.members.iter().cloned().map(Into::into).collect(),
        };
        let mut bytes = proto.encode_to_vec();
        bytes.extend(crc32c::crc32c(&bytes).to_be_bytes());
        let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{PREFIX}{digits}")
    }
}

/// Without the secret.
impl fmt::Debug for JoinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "JoinToken(cluster {})", self.cluster)
    }
}

fn hex_decode(text: &str) -> Option<Vec<u8>> {
    if !text.len().is_multiple_of(2) || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return None;
    }
    let pairs = text.as_bytes().chunks(2);
    pairs.map(|digits| u8::from_str_radix(str::from_utf8(digits).ok()?, 16).ok()).collect()
}

#[cfg(test)]
mod tests {
    use lowkey_core::{KeyHash, MemberId};

    use super::*;

    fn token() -> JoinToken {
        let member = |number: u64| KnownMember {
            member: MemberId(number),
            key: Some(KeyHash([number as u8; 32])),
            raft_address: format!("10.0.0.{number}:7000"),
        };
        JoinToken {
            cluster: ClusterId([7; 16]),
            secret: Secret([9; 32]),
            members: (1..4).map(member).collect(),
        }
    }

    #[test]
    fn an_invitation_is_read_as_it_was_written_and_shows_its_secret_to_nobody_else() {
        let text = token().reveal();
        assert!(JoinToken::parse(&text) == Some(token()));
        assert!(text.contains(&"09".repeat(32)));
        assert!(!format!("{:?}", token()).contains(&"09".repeat(4)));
    }

    #[test]
    fn what_was_cut_or_changed_is_no_invitation() {
        let text = token().reveal();
        for at in 0..text.len() {
            assert!(JoinToken::parse(&text[..at]).is_none(), "cut at {at}");
            let mut changed = text.clone().into_bytes();
            changed[at] ^= 1;
            if let Ok(changed) = String::from_utf8(changed) {
                assert!(JoinToken::parse(&changed).is_none(), "changed at {at}");
            }
        }
        let nobody = JoinToken { members: vec![], ..token() };
        assert!(JoinToken::parse(&nobody.reveal()).is_none());
    }
}
