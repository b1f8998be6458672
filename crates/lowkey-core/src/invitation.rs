//! Invitations: what lets a new node in, once.
//!
//! The state knows the hash of an invitation's secret, until when it is good, and who used it. A node that comes with the
//! secret is registered, and the same entry binds the invitation to the node's identity. So it lets in one node, however
//! often it is shown and whoever leads. Whether its time is over is judged by the leader, before it proposes (R5): here
//! the time is a number that is kept. An invitation that was used stays until its time is over, so that a second use can
//! be told from an invitation that never was.

use std::collections::BTreeMap;

use crate::digest::DigestPart;
use crate::limits::INVITATIONS_MAX;
use crate::mutants;
use crate::name::{InvitationHash, NodeIdentity};
use crate::state::State;
use crate::{NodeInfo, Refusal};

/// What is known of an invitation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Invitation {
    /// Until when it is good, by the wall clock of the leader that made it.
    pub expires_unix_ms: u64,
    /// The node that came with it.
    pub used_by: Option<NodeIdentity>,
}

pub(crate) type Invitations = BTreeMap<InvitationHash, Invitation>;

impl State {
    /// An invitation, if it was made and has not been forgotten.
    pub fn invitation(&self, hash: InvitationHash) -> Option<&Invitation> {
        self.invitations.get(&hash)
    }

    /// Every invitation that is kept, by hash.
    pub fn invitations(&self) -> impl Iterator<Item = (InvitationHash, &Invitation)> {
        self.invitations.iter().map(|(hash, invitation)| (*hash, invitation))
    }

    /// Whether a node may come in with an invitation. One that is registered already merely asks again.
    pub(crate) fn check_invitation(&self, hash: InvitationHash, node: &NodeInfo) -> Result<(), Refusal> {
        if self.is_registered(node) {
            return Ok(());
        }
        match self.invitation(hash) {
            None => Err(Refusal::InvitationNotFound),
            Some(Invitation { used_by: Some(_), .. }) if !mutants::AN_INVITATION_WORKS_TWICE.is_active() => {
                Err(Refusal::InvitationUsed)
            }
            Some(_) => Ok(()),
        }
    }

    /// True if a node of this identity is a member.
    pub fn is_registered(&self, node: &NodeInfo) -> bool {
        node.identity.is_some() && self.members.values().any(|known| known.identity == node.identity)
    }

    /// Keeps a new invitation, and forgets those whose time was over when it was made. There are never many: beyond the
    /// limit those that end first go.
    pub(crate) fn invite(&mut self, hash: InvitationHash, expires_unix_ms: u64, now_unix_ms: u64) {
        let over = |(_, known): &(&InvitationHash, &Invitation)| known.expires_unix_ms <= now_unix_ms;
        for hash in self.invitations.iter().filter(over).map(|(hash, _)| *hash).collect::<Vec<_>>() {
            self.forget_invitation(hash);
        }
        while self.invitations.len() >= INVITATIONS_MAX {
            let first = self.invitations.iter().min_by_key(|(_, known)| known.expires_unix_ms);
            let first = first.map(|(hash, _)| *hash).expect("there is at least one");
            self.forget_invitation(first);
        }
        self.put_invitation(hash, Invitation { expires_unix_ms, used_by: None });
    }

    /// Binds an invitation to the node that came with it.
    pub(crate) fn use_invitation(&mut self, hash: InvitationHash, node: &NodeInfo) {
        if let Some(known) = self.invitations.get(&hash).copied().filter(|known| known.used_by.is_none()) {
            self.forget_invitation(hash);
            self.put_invitation(hash, Invitation { used_by: node.identity, ..known });
        }
    }

    pub(crate) fn put_invitation(&mut self, hash: InvitationHash, invitation: Invitation) {
        self.digest.add(DigestPart::Invitation(hash, &invitation));
        self.invitations.insert(hash, invitation);
    }

    fn forget_invitation(&mut self, hash: InvitationHash) {
        if let Some(invitation) = self.invitations.remove(&hash) {
            self.digest.take(DigestPart::Invitation(hash, &invitation));
        }
    }
}
