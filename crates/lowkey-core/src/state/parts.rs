//! How leases, grants, waits and members come, change and go. Only here, so that the digest is in step.

use std::sync::Arc;

use prost::Message as _;

use super::{Lease, State, Wait};
use crate::command::NodeInfo;
use crate::digest::{DigestPart, Mix};
use crate::groups::PlaceProto;
use crate::holders::Grant;
use crate::name::{LeaseId, LockName, MemberId, Ticket};

impl State {
    /// One number for the whole state, at no cost: replicas that applied the same entries have the same. Of
    /// requests that are remembered the order is left out; it shows once one of them is forgotten.
    pub fn digest(&self) -> u64 {
        let mut mix = Mix::new();
        mix.bytes(&self.cluster.0);
        mix.numbers(&[self.revision, self.last_token.0, self.last_lease.0, self.last_member.0]);
        mix.numbers(&[u64::from(self.quarantine)]);
        // Nothing where there is none: nodes that know of no epochs come to the same.
        if let Some(epoch) = self.epoch {
            mix.numbers(&[55, epoch.number()]);
        }
        // As above: nothing while there is one group.
        if let Some(place) = &self.place {
            mix.numbers(&[40]);
            mix.bytes(&PlaceProto::from(&**place).encode_to_vec());
        }
        mix.digest(self.digest);
        mix.digest(self.lease_requests.digest());
        mix.finish()
    }

    /// Gives back what had the id before, which is an error of the caller's.
    pub(crate) fn put_lease(&mut self, id: LeaseId, lease: Lease) -> Option<Box<Lease>> {
        self.digest.add(DigestPart::Lease(id, &lease));
        self.leases.insert(id, Box::new(lease))
    }

    pub(super) fn take_lease(&mut self, id: LeaseId) -> Option<Box<Lease>> {
        let lease = self.leases.remove(&id)?;
        self.digest.take(DigestPart::Lease(id, &lease));
        Some(lease)
    }

    /// Changes what a lease is or remembers. What it holds and waits for is no part of it.
    pub(super) fn change_lease<T>(&mut self, id: LeaseId, change: impl FnOnce(&mut Lease) -> T) -> T {
        let lease = self.leases.get_mut(&id).expect("a lease that changes exists");
        self.digest.take(DigestPart::Lease(id, lease));
        let outcome = change(lease);
        self.digest.add(DigestPart::Lease(id, lease));
        outcome
    }

    pub(crate) fn put_grant(&mut self, name: &LockName, grant: Grant) {
        self.digest.add(DigestPart::Grant(name, &grant));
        if grant.max_hold.is_some() {
            self.limited.insert(grant.token, (name.clone(), grant.lease));
        }
        self.locks.entry(name.clone()).or_default().holders.insert(grant);
    }

    pub(super) fn take_grant(&mut self, name: &LockName, lease: LeaseId) -> Option<Grant> {
        let grant = self.locks.get_mut(name)?.holders.remove(lease)?;
        self.digest.take(DigestPart::Grant(name, &grant));
        self.limited.remove(&grant.token);
        Some(grant)
    }

    pub(super) fn change_grant(
        &mut self,
        name: &LockName,
        lease: LeaseId,
        change: impl FnOnce(&mut Grant),
    ) -> Option<&Grant> {
        let grant = self.locks.get_mut(name)?.holders.get_mut(lease)?;
        self.digest.take(DigestPart::Grant(name, grant));
        change(grant);
        self.digest.add(DigestPart::Grant(name, grant));
        Some(grant)
    }

    pub(super) fn put_wait(&mut self, ticket: Ticket, wait: Wait) -> Option<Wait> {
        self.digest.add(DigestPart::Wait(ticket, &wait));
        self.waits.insert(ticket, wait)
    }

    pub(super) fn take_wait(&mut self, ticket: Ticket) -> Option<Wait> {
        let wait = self.waits.remove(&ticket)?;
        self.digest.take(DigestPart::Wait(ticket, &wait));
        Some(wait)
    }

    /// Replaces what is registered under the id, if anything is, and gives it back.
    pub(crate) fn put_member(&mut self, id: MemberId, node: NodeInfo) -> Option<Arc<NodeInfo>> {
        let before = self.take_member(id);
        self.digest.add(DigestPart::Member(id, &node));
        self.members.insert(id, Arc::new(node));
        before
    }

    pub(super) fn take_member(&mut self, id: MemberId) -> Option<Arc<NodeInfo>> {
        let node = self.members.remove(&id)?;
        self.digest.take(DigestPart::Member(id, &node));
        Some(node)
    }
}
