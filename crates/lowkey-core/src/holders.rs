//! Who holds one lock: nobody, one lease, or several that share it.
//!
//! Nearly every lock that exists is held by one lease, so that case takes no more room than the grant.

use std::collections::BTreeMap;

use crate::claim::{Claim, Mode, Scope};
use crate::name::{LeaseId, MaxHold, RequestId, Token, Value};

/// One lease holding one lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The holder.
    pub lease: LeaseId,
    /// The proof.
    pub token: Token,
    /// How it is held.
    pub mode: Mode,
    /// What it covers.
    pub scope: Scope,
    /// What its holder shows with it.
    pub value: Value,
    /// The revision at which it was granted.
    pub revision: u64,
    /// The proposer's wall clock then, for display only.
    pub since_unix_ms: u64,
    /// The request that it answered.
    pub request: RequestId,
    /// For how long it is held at most.
    pub max_hold: Option<MaxHold>,
}

/// The grants of one lock, by lease.
///
/// Invariant: `Several` has more than one, and all of them share the lock.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Holders {
    #[default]
    Nobody,
    One(Grant),
    Several(BTreeMap<LeaseId, Grant>),
}

impl Holders {
    pub(crate) fn get(&self, lease: LeaseId) -> Option<&Grant> {
        match self {
            Self::One(grant) if grant.lease == lease => Some(grant),
            Self::Several(grants) => grants.get(&lease),
            Self::Nobody | Self::One(_) => None,
        }
    }

    pub(crate) fn get_mut(&mut self, lease: LeaseId) -> Option<&mut Grant> {
        match self {
            Self::One(grant) if grant.lease == lease => Some(grant),
            Self::Several(grants) => grants.get_mut(&lease),
            Self::Nobody | Self::One(_) => None,
        }
    }

    /// Adds a grant of a lease that has none here yet.
    pub(crate) fn insert(&mut self, grant: Grant) {
        let before = match self {
            Self::Nobody => {
                *self = Self::One(grant);
                None
            }
            Self::One(_) => {
                let Self::One(first) = std::mem::take(self) else { unreachable!("it was one just now") };
                let mut grants = BTreeMap::from([(first.lease, first)]);
                let before = grants.insert(grant.lease, grant);
                *self = Self::Several(grants);
                before
            }
            Self::Several(grants) => grants.insert(grant.lease, grant),
        };
        assert!(before.is_none(), "a lease was granted a name that it holds");
    }

    pub(crate) fn remove(&mut self, lease: LeaseId) -> Option<Grant> {
        match self {
            Self::One(grant) if grant.lease == lease => match std::mem::take(self) {
                Self::One(grant) => Some(grant),
                _ => unreachable!("it was one just now"),
            },
            Self::Several(grants) => {
                let removed = grants.remove(&lease);
                if grants.len() == 1
                    && let Some((_, last)) = grants.pop_first()
                {
                    *self = Self::One(last);
                }
                removed
            }
            Self::Nobody | Self::One(_) => None,
        }
    }

    /// A grant that conflicts with the claim, found without a walk through all who share the lock.
    pub(crate) fn rival(&self, claim: &Claim) -> Option<&Grant> {
        let first = match self {
            Self::Nobody => None,
            Self::One(grant) => Some(grant),
            // One stands for all, but for the claim's own.
            Self::Several(grants) => grants.values().find(|grant| claim.lease != Some(grant.lease)),
        };
        first.filter(|grant| claim.conflicts_with(grant.lease, grant.mode))
    }

    /// By lease.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Grant> {
        let (one, several) = match self {
            Self::Nobody => (None, None),
            Self::One(grant) => (Some(grant), None),
            Self::Several(grants) => (None, Some(grants.values())),
        };
        one.into_iter().chain(several.into_iter().flatten())
    }

    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Nobody => 0,
            Self::One(_) => 1,
            Self::Several(grants) => grants.len(),
        }
    }
}
