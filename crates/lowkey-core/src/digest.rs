//! One number for all that the state holds, kept in step as it changes.
//!
//! Every part (a lease, a grant, a wait, a member, a remembered request) has a hash of its own, and their
//! sum is kept: a part that comes is added, one that goes is taken off, one that changes is taken off as it
//! was and added as it is. So the number costs the same whether there are ten leases or a million, and
//! replicas can compare it as often as they like. A state that is read from a snapshot adds up its parts
//! anew, and must come to the same sum.
//!
//! The function is fixed and written down here: replicas of different builds must agree. It guards against
//! drift, not against an adversary.

use crate::access::{Principal, PrincipalName};
use crate::command::{NodeInfo, Reply};
use crate::encoding::{encode_mode, encode_scope};
use crate::holders::Grant;
use crate::invitation::Invitation;
use crate::name::{InvitationHash, LeaseId, LockName, MaxHold, MemberId, OwnerId, RequestId, Ticket};
use crate::recent::Remembered;
use crate::schedule::BackupSchedule;
use crate::state::{Lease, Wait};

/// Raised when the same state would give another number.
pub const DIGEST_VERSION: u32 = 1;

/// The sum of the hashes of all parts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Digest(u64);

impl Digest {
    pub(crate) fn add(&mut self, part: DigestPart<'_>) {
        self.0 = self.0.wrapping_add(part.hash());
    }

    pub(crate) fn take(&mut self, part: DigestPart<'_>) {
        self.0 = self.0.wrapping_sub(part.hash());
    }
}

/// Something that the state holds.
#[derive(Clone, Copy)]
pub(crate) enum DigestPart<'a> {
    /// With the requests that it remembers. Its locks and waits are parts of their own.
    Lease(LeaseId, &'a Lease),
    Grant(&'a LockName, &'a Grant),
    Wait(Ticket, &'a Wait),
    Member(MemberId, &'a NodeInfo),
    Invitation(InvitationHash, &'a Invitation),
    Principal(&'a PrincipalName, &'a Principal),
    /// Only while it is.
    AccessRequired,
    /// Only if there is one.
    BackupSchedule(&'a BackupSchedule),
    /// Remembered by its owner, or by the lease that it is counted with.
    Request(Option<&'a OwnerId>, &'a RequestId, &'a Remembered),
}

impl DigestPart<'_> {
    fn hash(self) -> u64 {
        let mut mix = Mix::new();
        match self {
            Self::Lease(id, Lease { owner, ttl, is_waiting, held: _, waits: _, requests }) => {
                mix.numbers(&[1, id.0, ttl.seconds().unsigned_abs(), u64::from(*is_waiting)]);
                mix.text(owner.as_str());
                mix.digest(requests.digest());
            }
            Self::Grant(name, grant) => {
                let Grant {
                    lease,
                    token,
                    mode,
                    scope,
                    value,
                    revision,
                    since_unix_ms,
                    asked_unix_ms,
                    request,
                    max_hold,
                } = grant;
                let (mode, scope) = (encode_mode(*mode), encode_scope(*scope));
                mix.numbers(&[2, lease.0, token.0, mode.into(), scope.into(), *revision, *since_unix_ms]);
                mix.text(name.as_str());
                mix.text(value.as_str());
                mix.text(request.as_str());
                mix.limit(*max_hold);
                mix.asked(*asked_unix_ms);
            }
            Self::Wait(ticket, wait) => {
                let Wait {
                    lock,
                    lease,
                    mode,
                    scope,
                    value,
                    request,
                    asked_unix_ms,
                    fingerprint,
                    makes_lease,
                    max_hold,
                } = wait;
                let (mode, scope) = (encode_mode(*mode), encode_scope(*scope));
                mix.numbers(&[3, ticket.0, lease.0, mode.into(), scope.into()]);
                mix.numbers(&[*fingerprint, u64::from(*makes_lease)]);
                mix.text(lock.as_str());
                mix.text(value.as_str());
                mix.text(request.as_str());
                mix.limit(*max_hold);
                mix.asked(*asked_unix_ms);
            }
            Self::Member(id, node) => {
                let NodeInfo {
                    name,
                    identity,
                    raft_address,
                    grpc_address,
                    http_address,
                    command_version,
                    key_hash,
                } = node;
                mix.numbers(&[4, id.0, u64::from(*command_version)]);
                mix.text(name.as_str());
                mix.bytes(identity.as_ref().map_or(&[], |identity| identity.0.as_slice()));
                [raft_address, grpc_address, http_address].into_iter().for_each(|address| mix.text(address));
                // Nothing where there is none: a node of before, which knows of no keys, comes to the same.
                if let Some(key_hash) = key_hash {
                    mix.bytes(&key_hash.0);
                }
            }
            Self::Invitation(hash, Invitation { expires_unix_ms, used_by }) => {
                mix.numbers(&[20, *expires_unix_ms]);
                mix.bytes(&hash.0);
                mix.bytes(used_by.as_ref().map_or(&[], |identity| identity.0.as_slice()));
            }
            Self::Principal(name, Principal { names, tokens, grants }) => {
                mix.numbers(&[24, names.len() as u64, tokens.len() as u64, grants.len() as u64]);
                mix.text(name.as_str());
                names.iter().for_each(|name| mix.text(name.as_str()));
                for (id, hash) in tokens {
                    mix.bytes(&id.0);
                    mix.bytes(&hash.0);
                }
                for (path, verbs) in grants {
                    mix.text(path.as_str());
                    mix.numbers(&[verbs.bits().into()]);
                }
            }
            Self::AccessRequired => mix.numbers(&[25]),
            Self::BackupSchedule(BackupSchedule::Off) => mix.numbers(&[56]),
            Self::BackupSchedule(BackupSchedule::On(rule)) => {
                mix.numbers(&[57, rule.every_seconds().into(), rule.keep().into()]);
                mix.text(rule.to());
            }
            Self::Request(owner, request, Remembered { fingerprint, reply }) => {
                mix.numbers(&[5, *fingerprint]);
                mix.text(owner.map_or("", OwnerId::as_str));
                mix.text(request.as_str());
                mix.reply(reply);
            }
        }
        mix.finish()
    }
}

/// Mixes numbers and texts into one number, in their order.
pub(crate) struct Mix(u64);

impl Mix {
    pub(crate) fn new() -> Self {
        Self(0x6c6f_776b_6579_2121)
    }

    fn number(&mut self, number: u64) {
        // Two odd constants with no pattern in their bits; every step can be undone, so nothing is lost.
        let mixed = (self.0 ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = (mixed ^ (mixed >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    }

    pub(crate) fn numbers(&mut self, numbers: &[u64]) {
        numbers.iter().for_each(|number| self.number(*number));
    }

    pub(crate) fn digest(&mut self, digest: Digest) {
        self.number(digest.0);
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) {
        // With the length, so that two texts never run into each other.
        self.number(bytes.len() as u64);
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.number(u64::from_le_bytes(word));
        }
    }

    /// Nothing where it is not known: a node of before, which does not keep it, comes to the same.
    fn asked(&mut self, asked_unix_ms: u64) {
        if asked_unix_ms != 0 {
            self.numbers(&[20, asked_unix_ms]);
        }
    }

    fn text(&mut self, text: &str) {
        self.bytes(text.as_bytes());
    }

    /// Nothing where there is none: a node of before, which knows of no limits, comes to the same.
    fn limit(&mut self, max_hold: Option<MaxHold>) {
        if let Some(max_hold) = max_hold {
            self.number(max_hold.seconds().into());
        }
    }

    fn reply(&mut self, reply: &Reply) {
        match reply {
            Reply::LeaseCreated { lease, ttl } => {
                self.numbers(&[1, lease.0, ttl.seconds().unsigned_abs()]);
            }
            Reply::LeaseRevoked { released } => self.numbers(&[2, *released]),
            Reply::Granted { token, lease, ttl, revision } => {
                self.numbers(&[3, token.0, lease.0, ttl.seconds().unsigned_abs(), *revision]);
            }
            Reply::Released => self.numbers(&[4]),
            Reply::ValueSet { revision } => self.numbers(&[5, *revision]),
            Reply::GivenUp => self.numbers(&[6]),
            Reply::Waiting { .. }
            | Reply::WaitsCancelled { .. }
            | Reply::Expired { .. }
            | Reply::HoldsEnded { .. }
            | Reply::MemberAdded { .. }
            | Reply::MemberRemoved { .. }
            | Reply::QuarantineEnded
            | Reply::Invited { .. }
            | Reply::AccessChanged
            | Reply::GroupPlanned { .. }
            | Reply::GroupSplit { .. }
            | Reply::GroupsChanged
            | Reply::BackupScheduleSet => {
                unreachable!("only requests of clients that had their effect are remembered")
            }
        }
    }

    pub(crate) fn finish(self) -> u64 {
        let mixed = (self.0 ^ (self.0 >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed ^ (mixed >> 32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mixed(texts: &[&str]) -> u64 {
        let mut mix = Mix::new();
        texts.iter().for_each(|text| mix.text(text));
        mix.finish()
    }

    /// Replicas of different builds must agree: a change of the function needs a new version.
    #[test]
    fn the_function_is_fixed() {
        assert_eq!(DIGEST_VERSION, 1);
        assert_eq!(mixed(&[]), 3_715_072_449_632_948_895);
        assert_eq!(mixed(&["billing/batch-job", ""]), 14_985_495_656_039_889_176);
    }

    #[test]
    fn texts_do_not_run_into_each_other() {
        let hashes = [&["ab", "c"][..], &["a", "bc"], &["abc"], &["abc", ""], &["", "abc"]].map(mixed);
        let different: std::collections::BTreeSet<u64> = hashes.into_iter().collect();
        assert_eq!(different.len(), hashes.len());
    }
}
