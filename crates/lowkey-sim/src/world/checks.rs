//! What a world knows of one group, and what must be true of it.
//!
//! Groups do not interact: each has its own log, state and counters, so each is judged by itself. Locks, leases and
//! tokens of different groups may have the same names and numbers, and mean different things.

use lowkey_core::State;

use super::WorldSummary;
use crate::invariants::{
    Acknowledged, Agreement, Elections, Expiry, Fencing, Ledger, LimitedHolds, Requests, Tokens, WaitRecords,
    Watches,
};

pub(crate) struct Checks {
    pub(crate) agreement: Agreement,
    pub(crate) ledger: Ledger,
    pub(crate) waits: WaitRecords,
    pub(crate) elections: Elections,
    pub(crate) watches: Watches,
    pub(crate) tokens: Tokens,
    pub(crate) acknowledged: Acknowledged,
    pub(crate) expiry: Expiry,
    pub(crate) holds: LimitedHolds,
    pub(crate) requests: Requests,
    pub(crate) fencing: Fencing,
}

impl Checks {
    /// Of a group that was founded with this state.
    pub(crate) fn new(founded: State) -> Self {
        Self {
            agreement: Agreement::new(founded),
            ledger: Ledger::default(),
            waits: WaitRecords::default(),
            elections: Elections::default(),
            watches: Watches::default(),
            tokens: Tokens::default(),
            acknowledged: Acknowledged::default(),
            expiry: Expiry::default(),
            holds: LimitedHolds::default(),
            requests: Requests::default(),
            fencing: Fencing::default(),
        }
    }

    /// Adds what this group has to show.
    pub(super) fn count(&self, summary: &mut WorldSummary) {
        summary.operations += self.acknowledged.count;
        summary.elections += self.agreement.elections();
        summary.expiries += self.expiry.count;
        summary.holds_ended += self.holds.ended;
        summary.waits_granted += self.waits.granted;
        summary.wait_timeouts += self.waits.timeouts;
        summary.watched += self.watches.seen;
        summary.compacted += self.watches.compacted;
        summary.refused_writes += self.fencing.refused;
    }
}
