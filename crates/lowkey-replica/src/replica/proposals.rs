//! Commands that were proposed and whose callers wait for the outcome.
//!
//! A proposal is known by its place in the log. If an entry of the same term is applied there, it is
//! ours, under any leader; if one of another term is, ours was overwritten and never happened.
//! Until one of the two is seen nothing is known, and a caller that cannot wait is told exactly that.

use std::collections::BTreeMap;

use lowkey_core::{Command, LeaseId, WaitTime};

use super::proposing::{lease_of, names_request};
use crate::input::CallId;
use crate::lead::Lead;
use crate::time::Nanos;

/// Invariant: `in_flight` counts the proposals of each lease, and has no zeros.
#[derive(Debug, Default)]
pub(crate) struct Proposals {
    by_index: BTreeMap<u64, Proposal>,
    in_flight: BTreeMap<LeaseId, usize>,
}

#[derive(Debug)]
pub(crate) struct Proposal {
    pub(crate) term: u64,
    pub(crate) call: CallId,
    /// The lease that it belongs to, if it names one.
    pub(crate) lease: Option<LeaseId>,
    /// How long its caller would wait for a lock.
    pub(crate) wait: WaitTime,
    /// Set when the lead was lost: how long the caller is kept waiting for the true outcome.
    deadline: Option<Nanos>,
}

impl Proposals {
    pub(crate) fn insert(
        &mut self,
        index: u64,
        term: u64,
        call: CallId,
        lease: Option<LeaseId>,
        wait: WaitTime,
    ) -> Option<Proposal> {
        if let Some(lease) = lease {
            *self.in_flight.entry(lease).or_default() += 1;
        }
        // A proposal of an earlier lead at the same place was overwritten by this one.
        let overwritten = self.by_index.insert(index, Proposal { term, call, lease, wait, deadline: None });
        overwritten.inspect(|proposal| self.landed(proposal))
    }

    /// The proposal whose place in the log was just applied.
    pub(crate) fn take(&mut self, index: u64) -> Option<Proposal> {
        let proposal = self.by_index.remove(&index)?;
        self.landed(&proposal);
        Some(proposal)
    }

    /// How many operations of a lease are under way.
    pub(crate) fn in_flight(&self, lease: LeaseId) -> usize {
        self.in_flight.get(&lease).copied().unwrap_or_default()
    }

    /// True if an operation of a lease, or of an owner whose lease is not known, may be under way.
    fn may_hold(&self, lease: Option<LeaseId>) -> bool {
        match lease {
            Some(lease) => self.in_flight(lease) > 0,
            None => !self.by_index.is_empty(),
        }
    }

    /// True if what a command names may be on its way into the state.
    pub(crate) fn may_name_later(&self, command: &Command, lead: Option<&Lead>) -> bool {
        names_request(command)
            && (lead.is_some_and(Lead::has_some_to_propose) || self.may_hold(lease_of(command)))
    }

    /// The lead was lost: from now on the callers are kept waiting until `deadline` only.
    pub(crate) fn limit_wait(&mut self, deadline: Nanos) {
        for proposal in self.by_index.values_mut() {
            proposal.deadline.get_or_insert(deadline);
        }
    }

    /// Those that have waited long enough for an outcome that may never be seen here.
    pub(crate) fn take_overdue(&mut self, now: Nanos) -> Vec<Proposal> {
        self.take_where(|_, proposal| proposal.deadline.is_some_and(|deadline| deadline <= now))
    }

    /// Those whose place a snapshot jumped over: what became of them will never be seen here.
    pub(crate) fn take_through(&mut self, index: u64) -> Vec<Proposal> {
        self.take_where(|at, _| at <= index)
    }

    fn take_where(&mut self, wanted: impl Fn(u64, &Proposal) -> bool) -> Vec<Proposal> {
        let taken: Vec<Proposal> = self
            .by_index
            .extract_if(.., |index, proposal| wanted(*index, proposal))
            .map(|(_, p)| p)
            .collect();
        taken.iter().for_each(|proposal| self.landed(proposal));
        taken
    }

    fn landed(&mut self, proposal: &Proposal) {
        let Some(lease) = proposal.lease else { return };
        let count = self.in_flight.get_mut(&lease).expect("a proposal under way is counted");
        *count -= 1;
        if *count == 0 {
            self.in_flight.remove(&lease);
        }
    }
}
