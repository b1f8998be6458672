//! What only a leader has, as one value.
//!
//! A leader remembers what no other replica does: until when leases live, who waits for a lock and how long, which rounds
//! are under way, what is still to be proposed. All of it is a [`Lead`]:
//!
//! - **R1** A lead begins when a leader that votes in its applied configuration has applied an entry of its own
//!   term. Nothing else may touch leases, so nothing else has deadlines.
//! - **R3** A change of term or role ends it, and all of its memory with it. The next one begins anew.
//! - Every caller that a lead holds is answered when it ends. A lead cannot be lost in another way: only this module can
//!   take it out of its [`Leadership`], and takes it apart field by field there, so that the compiler asks about a new field.
//!
//! What comes before a lead is in `arrivals.rs`. What outlives it stands in the replica: proposals, which may be committed
//! by the next leader, and the transfer that ended it.
//!
//! Where to look: `lease_table.rs` for when leases end, `hold_table.rs` for when grants do that have a limit, `wait_table.rs` for who waits until when, `rounds.rs` for how a
//! quorum is asked once for many.

mod arrivals;
mod hold_table;
mod lease_table;
mod quarantine;
mod rounds;
mod wait_table;

use std::collections::{BTreeMap, BTreeSet};

use lowkey_core::limits::{HOLDS_PER_END_MAX, IN_FLIGHT_PER_LEASE_MAX, WAITS_PER_CANCEL_MAX};
use lowkey_core::{
    HoldRef, Holds, LeaseId, MaxHold, MemberId, Refusal, Reply, State, Ticket, Token, Ttl, WaitEnd, mutants,
};

pub(crate) use self::arrivals::{Arrivals, PendingCommand};
use self::hold_table::HoldTable;
pub(crate) use self::lease_table::LeaseTable;
pub(crate) use self::quarantine::{QUARANTINE_NANOS, refused};
pub(crate) use self::rounds::{Participant, Rounds, Wish};
use self::wait_table::{EndedWait, WaitTable};
use crate::config::Config;
use crate::input::CallId;
use crate::output::{Failure, Output, Renewal, Response};
use crate::reads;
use crate::replica::Proposals;
use crate::time::{MILLISECOND, Nanos};

/// Flush patient commands at this many: one lease may own them all, and must keep half of its in-flight budget.
const PATIENT_MAX: usize = 64;
const _: () = assert!(PATIENT_MAX <= IN_FLIGHT_PER_LEASE_MAX / 2);

/// R3: so many leases are armed in one tick, and so many of an earlier lead are forgotten. A million take 1.2 s, and
/// nothing waits for a portion longer than some milliseconds.
const LEASES_A_TICK: usize = 8_192;

/// So much is done in one turn for those whose round is over: a renewal is one unit, and so is each holder, waiter or
/// lease that an answer tells of. The rest is left to the next turn, so that heartbeats do not wait for it.
pub(crate) const UNITS_A_TURN: usize = 16_384;

/// Renewals that may wait for the outcome of their leases' ends, which a full disk can keep from coming.
const IN_DOUBT_MAX: usize = 65_536;

/// The lead of a replica, if it has one.
#[derive(Debug, Default)]
pub(crate) struct Leadership {
    lead: Option<Lead>,
    /// Deadlines of leads that are over. Nobody reads them; to free a million at once would take long.
    over: Vec<(LeaseTable, HoldTable)>,
}

impl Leadership {
    pub(crate) fn is_some(&self) -> bool {
        self.lead.is_some()
    }

    pub(crate) fn get(&self) -> Option<&Lead> {
        self.lead.as_ref()
    }

    pub(crate) fn get_mut(&mut self) -> Option<&mut Lead> {
        self.lead.as_mut()
    }

    /// R1 is the caller's duty.
    pub(crate) fn begin(&mut self, lead: Lead) {
        assert!(self.lead.is_none(), "a lead begins when there is none");
        self.lead = Some(lead);
    }

    /// R3: the lead is over, if there was one. Tells all that it held that `leader` is to be asked.
    pub(crate) fn end(&mut self, leader: Option<MemberId>, output: &mut Output) {
        if let Some(lead) = self.lead.take() {
            self.over.push(lead.end(leader, output));
        }
    }

    /// Frees some of what is left of earlier leads.
    pub(crate) fn free_some(&mut self) {
        self.over.pop_if(|(leases, holds)| leases.free_some(LEASES_A_TICK) && holds.free_some(LEASES_A_TICK));
    }
}

/// What a leader remembers from R1 on.
#[derive(Debug)]
pub(crate) struct Lead {
    leases: LeaseTable,
    holds: HoldTable,
    waits: WaitTable,
    rounds: Rounds,
    /// R4: renewals of leases whose end is proposed; they learn its outcome.
    renewals_in_doubt: BTreeMap<LeaseId, BTreeSet<CallId>>,
    /// The same, by caller; at most [`IN_DOUBT_MAX`].
    callers_in_doubt: BTreeMap<CallId, LeaseId>,
    /// R4: `Expiring` leases whose `Expire` has not been accepted into the log yet.
    unproposed_ends: Vec<LeaseId>,
    /// R4: `Ending` grants whose `EndHolds` has not been accepted into the log yet.
    unproposed_hold_ends: Vec<HoldRef>,
    /// R10: `Cancelling` waits whose `CancelWait` has not been accepted into the log yet.
    unproposed_cancels: Vec<Ticket>,
    /// When the end of the quarantine is proposed; nothing if there is none, or it is proposed.
    quarantine_ends: Option<Nanos>,
    /// Commands that a round showed to be feasible after all; proposed at the end of the turn.
    feasible: Vec<PendingCommand>,
    /// Commands that can only take a place in a queue. Nothing becomes of them before the holder lets go, so they have
    /// time: they go into the log with the next thing that comes, in front of it, or with the next tick. An entry of their
    /// own would be under way when the release comes that they wait for, and that would have to wait for it.
    patient: Vec<PendingCommand>,
}

impl Lead {
    /// R3: every lease has its whole time to live, every wait time for its callers to come back.
    pub(crate) fn new(now: Nanos, config: &Config, state: &State) -> Self {
        let mut leases = LeaseTable::begin(config.expiry_grace_nanos, state.last_lease());
        leases.arm(now, LEASES_A_TICK, state);
        let mut holds = HoldTable::begin(config.expiry_grace_nanos, state.last_token());
        holds.arm(now, LEASES_A_TICK, state);
        Self {
            leases,
            holds,
            waits: WaitTable::begin(now, state.waits()),
            rounds: Rounds::default(),
            renewals_in_doubt: BTreeMap::new(),
            callers_in_doubt: BTreeMap::new(),
            unproposed_ends: Vec::new(),
            unproposed_hold_ends: Vec::new(),
            unproposed_cancels: Vec::new(),
            quarantine_ends: quarantine::end(now, config, state),
            feasible: Vec::new(),
            patient: Vec::new(),
        }
    }

    /// Every field is named here, so that none that holds callers can be forgotten.
    fn end(self, leader: Option<MemberId>, output: &mut Output) -> (LeaseTable, HoldTable) {
        let Self {
            leases,
            holds,
            waits,
            rounds,
            renewals_in_doubt: _,
            callers_in_doubt,
            unproposed_ends: _,
            unproposed_hold_ends: _,
            unproposed_cancels: _,
            quarantine_ends: _,
            feasible,
            patient,
        } = self;
        if !mutants::A_CHANGE_OF_LEAD_IS_NOT_TOLD_TO_WAITERS.is_active() {
            waits.into_calls().for_each(|call| output.reply(call, Err(Failure::Interrupted { leader })));
        }
        // Nothing was done for any of these: they may ask the new leader.
        let in_doubt = callers_in_doubt.into_keys();
        let unproposed = patient.into_iter().chain(feasible).map(|pending| pending.call);
        for call in rounds.into_calls().chain(in_doubt).chain(unproposed) {
            output.reply(call, Err(Failure::NotLeader { leader }));
        }
        (leases, holds)
    }

    /// R3: arms the next leases and grants, if there are such that are not armed.
    pub(crate) fn arm_some(&mut self, now: Nanos, state: &State) {
        self.leases.arm(now, LEASES_A_TICK, state);
        self.holds.arm(now, LEASES_A_TICK, state);
    }

    /// R8: the leader itself was stalled for so long.
    pub(crate) fn forgive(&mut self, gap_nanos: u64) {
        self.leases.forgive(gap_nanos);
        self.holds.forgive(gap_nanos);
    }

    /// The time of a grant begins that has a limit.
    pub(crate) fn hold_started(&mut self, now: Nanos, hold: HoldRef, max_hold: MaxHold) {
        self.holds.insert(now, hold, max_hold);
    }

    /// A grant is over that had a limit.
    pub(crate) fn hold_ended(&mut self, token: Token) {
        self.holds.remove(token);
    }

    /// A lease's time begins.
    pub(crate) fn lease_started(&mut self, now: Nanos, lease: LeaseId, ttl: Ttl) {
        self.leases.insert(now, lease, ttl);
    }

    /// A lease is gone, and those who wanted to renew it are told.
    pub(crate) fn lease_ended(&mut self, lease: LeaseId, output: &mut Output) {
        self.leases.remove(lease);
        for call in self.renewals_in_doubt.remove(&lease).unwrap_or_default() {
            self.callers_in_doubt.remove(&call);
            output.reply(call, Err(Failure::Refused(Refusal::LeaseNotFound { lease })));
        }
    }

    /// R4: leases whose end is to be proposed, at most so many. What is refused comes back with
    /// [`Lead::ends_refused`].
    pub(crate) fn take_ends(&mut self, now: Nanos, count_max: usize) -> Vec<LeaseId> {
        match std::mem::take(&mut self.unproposed_ends) {
            none if none.is_empty() => self.leases.take_due(now, count_max),
            refused => refused,
        }
    }

    pub(crate) fn ends_refused(&mut self, leases: Vec<LeaseId>) {
        self.unproposed_ends = leases;
    }

    /// R4: grants whose end is to be proposed because they were held for as long as they may be. What is refused comes
    /// back with [`Lead::hold_ends_refused`].
    pub(crate) fn take_hold_ends(&mut self, now: Nanos) -> Vec<HoldRef> {
        match std::mem::take(&mut self.unproposed_hold_ends) {
            none if none.is_empty() => self.holds.take_due(now, HOLDS_PER_END_MAX),
            refused => refused,
        }
    }

    pub(crate) fn hold_ends_refused(&mut self, holds: Vec<HoldRef>) {
        self.unproposed_hold_ends = holds;
    }

    /// R10: waits whose end is to be proposed. What is refused comes back with [`Lead::cancels_refused`].
    pub(crate) fn take_cancels(&mut self, now: Nanos) -> Vec<Ticket> {
        match std::mem::take(&mut self.unproposed_cancels) {
            none if none.is_empty() => self.waits.take_due(now, WAITS_PER_CANCEL_MAX),
            refused => refused,
        }
    }

    pub(crate) fn cancels_refused(&mut self, tickets: Vec<Ticket>) {
        self.unproposed_cancels = tickets;
    }

    /// True if someone waits for a round that could begin now.
    pub(crate) fn is_round_due(&self, arrivals: &Arrivals) -> bool {
        !self.rounds.is_running() && arrivals.wait_for_a_round()
    }

    /// Begins a round for all that gathered, unless one is under way; gives its context.
    pub(crate) fn begin_round(&mut self, arrivals: &mut Arrivals, member: u64, term: u64) -> Option<Vec<u8>> {
        self.is_round_due(arrivals).then(|| self.rounds.begin(member, term, arrivals.take_gathered()))
    }

    /// `raft` confirmed a round.
    pub(crate) fn confirm_round(&mut self, context: &[u8], index: u64) {
        self.rounds.confirm(context, index);
    }

    /// Answers those whose round is confirmed and applied, each in one step with its check.
    pub(crate) fn serve_rounds(
        &mut self,
        now: Nanos,
        state: &State,
        proposals: &Proposals,
        arrivals: &mut Arrivals,
        output: &mut Output,
    ) {
        let mut units = 0;
        while units < UNITS_A_TURN
            && let Some(Participant { call, wish }) = self.rounds.next_served(state.revision())
        {
            units += 1;
            match wish {
                Wish::Renew { lease, holds, arrival } => {
                    match self.renew(now, state, lease, holds, arrival) {
                        (Renewal::Renewed(ttl), holds_differ) => {
                            output.reply(call, Ok(Response::Renewed { ttl, holds_differ }));
                        }
                        (Renewal::Expiring, _) => self.doubt(call, lease, output),
                        (Renewal::Gone, _) => {
                            output.reply(call, Err(Failure::Refused(Refusal::LeaseNotFound { lease })));
                        }
                    }
                }
                Wish::RenewMany { leases, arrival } => {
                    units += leases.len();
                    let renew = |(lease, holds)| self.renew(now, state, lease, holds, arrival);
                    output.reply(call, Ok(Response::RenewedMany(leases.into_iter().map(renew).collect())));
                }
                Wish::Read(query) => {
                    let answer = reads::answer(state, Some(&self.leases), now, &query);
                    units += reads::units(&query, &answer);
                    output.reply(call, answer);
                }
                Wish::Check { command, wait } => match state.check(&command) {
                    // What it names may have been taken in after it.
                    Err(_) if proposals.may_name_later(&command, Some(&*self)) => {
                        self.feasible.push(PendingCommand { call, command, wait });
                    }
                    Err(refusal) => output.reply(call, Err(refused(now, refusal, self.quarantine_ends))),
                    // R10: the same request id, the same place.
                    Ok(Some(Reply::Waiting { ticket })) => {
                        self.park(now, ticket, PendingCommand { call, command, wait }, arrivals);
                    }
                    Ok(Some(reply)) => output.reply(call, Ok(Response::Applied(reply))),
                    Ok(None) => self.feasible.push(PendingCommand { call, command, wait }),
                },
            }
        }
    }

    /// Renews a lease as of `arrival`, and says whether it holds something else than its client believes.
    fn renew(
        &mut self,
        now: Nanos,
        state: &State,
        lease: LeaseId,
        holds: Option<Holds>,
        arrival: Nanos,
    ) -> (Renewal, bool) {
        self.leases.arm_early(now, lease, state);
        // As of the round: what was granted or ended since the client asked counts too, and the client knows what
        // it had under way.
        let differ = || holds.is_some_and(|told| state.holds_of(lease) != Some(told));
        match self.leases.renew(lease, arrival) {
            renewed @ Renewal::Renewed(_) => (renewed, differ()),
            other => (other, false),
        }
    }

    /// R4: a renewal of a lease whose end is proposed waits for the outcome. Where that does not come, not all can wait.
    fn doubt(&mut self, call: CallId, lease: LeaseId, output: &mut Output) {
        if self.callers_in_doubt.len() >= IN_DOUBT_MAX {
            return output.reply(call, Err(Failure::Busy));
        }
        self.callers_in_doubt.insert(call, lease);
        self.renewals_in_doubt.entry(lease).or_default().insert(call);
    }

    /// True if somebody's round is over and nothing was done for it yet.
    pub(crate) fn has_served(&self, state: &State) -> bool {
        self.rounds.has_served(state.revision())
    }

    /// True if there are commands that are not proposed yet.
    pub(crate) fn has_some_to_propose(&self) -> bool {
        !self.patient.is_empty() || !self.feasible.is_empty()
    }

    /// True if a command that would only take a place in a queue need not go into the log at once.
    pub(crate) fn has_room_for_patient(&self) -> bool {
        self.patient.len() < PATIENT_MAX
    }

    pub(crate) fn be_patient(&mut self, pending: PendingCommand) {
        self.patient.push(pending);
    }

    pub(crate) fn take_patient(&mut self) -> Vec<PendingCommand> {
        std::mem::take(&mut self.patient)
    }

    pub(crate) fn take_feasible(&mut self) -> Vec<PendingCommand> {
        std::mem::take(&mut self.feasible)
    }

    /// A wait's entry was applied. Its caller is parked in the same step, unless it has gone.
    pub(crate) fn wait_began(&mut self, now: Nanos, ticket: Ticket) {
        self.waits.enqueued(now, ticket);
    }

    /// Keeps a caller until its wait is over.
    pub(crate) fn park(
        &mut self,
        now: Nanos,
        ticket: Ticket,
        caller: PendingCommand,
        arrivals: &mut Arrivals,
    ) {
        let call = caller.call;
        self.waits.attach(now, ticket, caller);
        if arrivals.has_arrived(call) {
            self.waits.leave(now, call);
        }
    }

    /// A caller is gone.
    pub(crate) fn caller_gone(&mut self, now: Nanos, call: CallId) {
        if let Some(lease) = self.callers_in_doubt.remove(&call)
            && let Some(calls) = self.renewals_in_doubt.get_mut(&lease)
        {
            calls.remove(&call);
        }
        self.waits.leave(now, call);
    }

    /// A wait is over: tells its callers how.
    pub(crate) fn wait_ended(
        &mut self,
        now: Nanos,
        ticket: Ticket,
        end: WaitEnd,
        arrivals: &mut Arrivals,
        output: &mut Output,
    ) {
        let EndedWait { calls, returned, waited_nanos } = self.waits.end(now, ticket);
        let answer = match end {
            WaitEnd::Granted(reply) => {
                Ok(Response::GrantedAfter { reply, waited_ms: waited_nanos / MILLISECOND })
            }
            WaitEnd::Cancelled { lock, in_the_way } => {
                // R10: who came back meanwhile wants to wait, not to hear of a timeout.
                for pending in returned {
                    arrivals.expect(pending.call);
                    self.feasible.push(pending);
                }
                let answer = Err(Failure::WaitTimeout { lock, in_the_way });
                return calls.into_iter().for_each(|call| output.reply(call, answer.clone()));
            }
            WaitEnd::GivenUp { lock } => Err(Failure::WaitGivenUp { lock }),
            WaitEnd::LeaseGone { lease }
                if !mutants::A_WAITER_IS_NOT_TOLD_THAT_ITS_LEASE_IS_GONE.is_active() =>
            {
                Err(Failure::Refused(Refusal::LeaseNotFound { lease }))
            }
            WaitEnd::LeaseGone { .. } => return,
        };
        for call in calls.into_iter().chain(returned.into_iter().map(|returned| returned.call)) {
            output.reply(call, answer.clone());
        }
    }
}

#[cfg(test)]
impl Lead {
    /// The invariants.
    pub(crate) fn check(&self, state: &State) {
        self.waits.check(state.waits());
    }

    /// Nobody waits, and nothing is to be proposed.
    pub(crate) fn has_nothing_to_do(&self) -> bool {
        self.waits.has_no_callers() && self.feasible.is_empty() && self.unproposed_cancels.is_empty()
    }
}

/// What only mutants do: see `mutants.rs`.
impl Lead {
    /// Who waits for it now.
    pub(crate) fn waiting_for(&self, ticket: Ticket) -> impl Iterator<Item = CallId> {
        self.waits.callers(ticket)
    }

    pub(crate) fn rounds_mut(&mut self) -> &mut Rounds {
        &mut self.rounds
    }
}
