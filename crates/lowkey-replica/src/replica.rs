//! One node's copy of a group: `raft`, the state machine, the lease table and the callers that wait.
//!
//! A replica decides, and does no I/O. Inputs go in through [`Replica::step`], each with its own
//! reading of the clock; then one *turn* is taken:
//!
//! ```text
//!   begin_turn ─► messages that may leave at once, replies, and what must be persisted
//!      caller writes and syncs
//!   end_turn   ─► messages that had to wait for the disk, replies to what was applied
//! ```
//!
//! Here is the turn. How commands come into the log is in `proposing.rs`, what becomes of them in `applying.rs`; who
//! belongs to the group in `members.rs`, who leads it next in `transfer.rs`, whether all have the same state in
//! `guarding.rs`, who may have what it asks for in `permitting.rs`.
//!
//! What holds it together:
//! - An entry is applied only when it is committed *and* on this node's disk.
//! - A caller gets an answer exactly once, and a good one only after its entry was applied here or
//!   its round was confirmed in the present term.
//! - Every change of term or role fails all rounds and forgets all deadlines, in the same step.

mod applying;
mod contact;
mod durability;
mod elections;
mod guarding;
mod members;
mod mix;
mod permitting;
mod proposals;
mod proposing;
mod standing;
mod status;
mod timing;
mod transfer;

#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use lowkey_core::{Caller, ClusterId, MemberId, State, WaitTime, mutants};
use raft::eraftpb;
use raft::{ProgressState, RawNode, Ready, SnapshotStatus, StateRole};

use self::applying::Applying;
use self::contact::Contact;
use self::durability::Durability;
pub(crate) use self::elections::ELECTION_TICKS;
use self::elections::election_ticks;
use self::permitting::Vetted;
pub(crate) use self::proposals::Proposals;
use self::standing::Standing;
pub use self::status::{MemberStatus, Role, Status};
pub(crate) use self::timing::FACTOR_MAX;
use self::timing::Timing;
use self::transfer::Transfer;
use crate::config::Config;
use crate::guard::Guard;
use crate::input::{CallId, DiskRoom, Input, Request};
use crate::lead::{Arrivals, Lead, Leadership, UNITS_A_TURN, Wish};
use crate::log::{Appends, LogStore, records};
use crate::output::{Failure, Output, Persist, Turn};
use crate::reads::{self, Query};
use crate::recovery::{self, Found, RecoverError, Started};
use crate::snapshots::{Pace, ReceivedSnapshot, Snapshots};
use crate::time::{MILLISECOND, Nanos};
use crate::wire;

/// R8: two ticks further apart than this, and the leader knows that it was stalled.
const STALL_NANOS: u64 = 250 * MILLISECOND;
/// How long a caller whose proposal is in doubt is kept waiting for the true outcome.
const DOUBT_NANOS: u64 = 300 * MILLISECOND;
/// Ticks that `raft` sees between a leader's heartbeats; where it sees fewer, `timing.rs` sends them.
pub(crate) const HEARTBEAT_TICKS: usize = 5;
/// A term that is further ahead than this is not the work of elections, however long this node slept. A node that
/// followed it would make all others follow.
const TERM_LEAP_MAX: u64 = 1 << 32;

/// One node's copy of a group. See the module for how to drive it.
pub struct Replica {
    config: Config,
    node: RawNode<LogStore>,
    state: State,
    /// The members as of `state`.
    conf_state: eraftpb::ConfState,
    applying: Applying,
    durability: Durability,
    appends: Appends,
    /// Taken from `raft` in this turn, to be handed back at its end.
    ready: Option<Ready>,
    standing: Standing,
    contact: Contact,
    timing: Timing,
    /// R1, R3: what only a leader has, while it may touch leases.
    lead: Leadership,
    /// What is asked of a leader, also before it may touch leases.
    arrivals: Arrivals,
    /// Those who are content with what this replica knows; answered in the next turns.
    stale_reads: VecDeque<(CallId, Query)>,
    /// They outlive a lead: the next leader may commit them.
    proposals: Proposals,
    /// A hand-over that somebody waits for; it outlives the lead that it ends.
    transfer: Option<Transfer>,
    snapshots: Snapshots,
    guard: Guard,
    /// Whose leases hold only what their owners may have.
    vetted: Vetted,
    output: Output,
}

impl Replica {
    /// Brings a replica to life from what its disk holds.
    pub fn recover(config: Config, cluster: ClusterId, found: Found) -> Result<Self, RecoverError> {
        let started = recovery::check(cluster, &found)?.start(&config)?;
        let Started { node, state, saved, saved_bytes, repairs } = started;
        let mut replica = Self {
            durability: Durability::new(node.raft.term, node.raft.raft_log.committed, repairs),
            standing: Standing::new(Nanos(0), node.raft.term, node.raft.state),
            timing: Timing::new(config.raft_tick),
            config,
            node,
            state,
            conf_state: saved.get_conf_state().clone(),
            applying: Applying { term: saved.term, ..Applying::default() },
            appends: Appends::default(),
            ready: None,
            contact: Contact::default(),
            lead: Leadership::default(),
            arrivals: Arrivals::default(),
            stale_reads: VecDeque::new(),
            proposals: Proposals::default(),
            transfer: None,
            snapshots: Snapshots::new(saved.index, saved_bytes),
            guard: Guard::new(saved.index),
            vetted: Vetted::default(),
            output: Output::default(),
        };
        // A lone voter has nobody to wait for.
        if replica.conf_state.voters == [replica.config.member.0]
            && replica.conf_state.voters_outgoing.is_empty()
        {
            // `raft` declines, rightly, while a committed change of members is not applied yet: this
            // node may not be alone any more. Then it stands for election in due course.
            let _ = replica.node.campaign();
            replica.settle(Nanos(0));
        }
        Ok(replica)
    }

    /// Takes in one thing that happened, at the clock's reading `now`, taken for this input alone.
    pub fn step(&mut self, now: Nanos, input: Input) {
        assert!(self.ready.is_none(), "a step in the middle of a turn");
        match input {
            Input::Tick => self.tick(now),
            Input::Message(message) => self.receive(now, *message),
            Input::Report(report) => self.receive_report(now, report),
            Input::Snapshot(received) => self.receive_snapshot(*received),
            Input::Request(call, caller, request) => self.request(now, call, &caller, request),
            Input::CallerGone(call) => {
                if !self.arrivals.leave(call)
                    && let Some(lead) = self.lead.get_mut()
                {
                    lead.caller_gone(now, call);
                }
            }
            Input::Unreachable(member) => self.node.report_unreachable(member.0),
            Input::SnapshotSent { to, delivered } => {
                let status = if delivered { SnapshotStatus::Finish } else { SnapshotStatus::Failure };
                // `raft` pauses a peer until it hears of this.
                self.node.report_snapshot(to.0, status);
            }
            Input::SnapshotSaved { index, size_bytes } => {
                self.snapshots.saved(index, size_bytes, self.node.mut_store());
            }
            Input::SnapshotFailed { index } => self.snapshots.failed(index),
            Input::SnapshotLost { index } => {
                if self.snapshots.lost(index) {
                    self.make_snapshot(Pace::AtOnce);
                }
            }
            Input::MakeSnapshot => self.make_snapshot(Pace::Beside),
            Input::Disk(room) => self.durability.room = room,
            Input::HandOver => self.hand_over(),
        }
        self.settle(now);
    }

    fn tick(&mut self, now: Nanos) {
        let gap = self.contact.tick(now);
        self.tick_raft(now, gap);
        self.node.mut_store().free_some();
        self.lead.free_some();
        self.snapshots.tick();
        self.tell_commit();
        self.settle(now);
        if let Some(lead) = self.lead.get_mut() {
            // R8: clients are not punished for the service's own pause. Neither timing factor nor tick has a say in it.
            let mut stall_nanos = STALL_NANOS;
            if mutants::R8_IS_STRETCHED.is_active() {
                stall_nanos *= u64::from(self.timing.factor());
            }
            if mutants::THE_TICK_STRETCHES_R8.is_active() {
                stall_nanos *= u64::from(self.config.raft_tick.steps());
            }
            if gap > stall_nanos && !mutants::A_STALL_IS_NOT_GIVEN_BACK.is_active() {
                lead.forgive(gap);
            }
            lead.arm_some(now, &self.state);
            self.propose_patient(now);
            self.expire_due(now);
            self.end_holds_due(now);
            self.cancel_due(now);
            self.end_quarantine_if_due(now);
            self.reconcile_members();
            if self.standing.hand_over_wanted {
                self.hand_over();
            }
        }
        self.tick_guard(now);
        if self.must_hand_over_to_leave() {
            self.hand_over();
        }
        for proposal in self.proposals.take_overdue(now) {
            self.output.reply(proposal.call, Err(Failure::OutcomeUnknown));
        }
    }

    /// A tick of the driver's, so long after the last: what of it `raft` sees, and heartbeats.
    fn tick_raft(&mut self, now: Nanos, gap_nanos: u64) {
        self.timing.tick(now, gap_nanos);
        let leads = self.node.raft.state == StateRole::Leader;
        if leads {
            let quorum_heard = self.quorum_heard();
            self.timing.adapt(now, gap_nanos, quorum_heard);
            self.look_at_progress(now);
        }
        // `raft` draws election timeouts from its thread's generator, and looks at them when it ticks. They are replaced,
        // so that the same inputs always give the same elections.
        let ticks = election_ticks(&self.node.raft, &self.config, self.durability.room);
        self.node.raft.set_randomized_election_timeout(ticks);
        let would_stand = !leads && self.node.raft.election_elapsed + 1 >= ticks;
        let ticks = self.timing.passes_on(now) && !self.timing.must_listen(now, would_stand);
        if ticks {
            self.node.tick();
        }
        if self.node.raft.state == StateRole::Leader {
            let has_just_sent = ticks && self.node.raft.heartbeat_elapsed() == 0;
            if self.timing.is_heartbeat_due(now, has_just_sent) {
                self.node.ping();
            }
        }
    }

    /// Followers learn what is committed from the next entries; where none follow, a tick tells them. A message of its
    /// own for every commit would cost each node a turn, and its answer the leader another. A driver that has nothing else
    /// to do may tell them earlier.
    pub fn tell_commit(&mut self) {
        let raft = &mut self.node.raft;
        if raft.state == StateRole::Leader && raft.raft_log.committed > self.appends.told_commit() {
            raft.bcast_append();
        }
    }

    fn receive(&mut self, now: Nanos, message: eraftpb::Message) {
        use eraftpb::MessageType;
        if !self.is_for_this(&message) {
            return;
        }
        if self.node.raft.prs().get(message.from).is_some() {
            self.contact.heard_from(MemberId(message.from), now);
        }
        match message.get_msg_type() {
            // A leader never tells a follower of more than the follower has; `raft` would panic.
            MessageType::MsgHeartbeat if message.commit > self.node.raft.raft_log.last_index() => return,
            // Nor has a follower what its leader has not; `raft` would take all that comes later for acknowledged.
            MessageType::MsgAppendResponse
                if !message.reject && message.index > self.node.raft.raft_log.last_index() =>
            {
                return;
            }
            // Who has never heard of a term is no voter yet: it gets the state before it may vote. `raft` could not even
            // say no.
            MessageType::MsgRequestVote | MessageType::MsgRequestPreVote if self.node.raft.term == 0 => {
                return;
            }
            // A disk without room cannot take entries; the leader will send them again.
            MessageType::MsgAppend if self.durability.room == DiskRoom::Exhausted => return,
            // A snapshot comes with its state: see `receive_snapshot`.
            MessageType::MsgSnapshot => return,
            _ => {}
        }
        // A member that answers a heartbeat asks for no snapshot, or not any more: it would ask for it instead. `raft`
        // would go on waiting for one, and send it nothing, though this leader may never be able to make one.
        if message.get_msg_type() == MessageType::MsgHeartbeatResponse
            && let Some(progress) = self.node.raft.mut_prs().get_mut(message.from)
            && progress.state != ProgressState::Snapshot
        {
            progress.pending_request_snapshot = raft::INVALID_INDEX;
        }
        let told = (message.get_msg_type() == MessageType::MsgHeartbeat)
            .then(|| (message.from, message.term, wire::timing_factor(&message)));
        // A message that `raft` refuses (from a node that left, say) changes nothing.
        let _ = self.node.step(message);
        if let Some((from, term, factor)) = told
            && (self.node.raft.leader_id, self.node.raft.term) == (from, term)
        {
            self.timing.hear(factor);
        }
    }

    /// Takes in a snapshot from the leader, unless `raft` has no use for it.
    fn receive_snapshot(&mut self, received: ReceivedSnapshot) {
        let ReceivedSnapshot { message, payload, state } = received;
        // A disk without room cannot take it; the leader will send it again.
        if !self.is_for_this(&message)
            || self.durability.room == DiskRoom::Exhausted
            || state.cluster() != self.state.cluster()
        {
            return;
        }
        let position =
            |snapshot: &eraftpb::Snapshot| (snapshot.get_metadata().index, snapshot.get_metadata().term);
        let offered = position(message.get_snapshot());
        let _ = self.node.step(message);
        if self.node.raft.snap().map(position) == Some(offered) {
            self.snapshots.receive(payload, state);
        }
    }

    /// True if a message is for this node, and from one that may speak to it.
    fn is_for_this(&self, message: &eraftpb::Message) -> bool {
        message.to == self.config.member.0
            && message.term.saturating_sub(self.node.raft.term) <= TERM_LEAP_MAX
            && !self.is_strange(message)
    }

    /// From a node that this one has not heard of, while there is a leader. It may be newer than what is
    /// applied here, and then it must be heard: but only in an election, or by a node that knows nobody.
    fn is_strange(&self, message: &eraftpb::Message) -> bool {
        let raft = &self.node.raft;
        let knows_members = !self.conf_state.voters.is_empty();
        let leader = raft.leader_id;
        knows_members
            && raft.prs().get(message.from).is_none()
            && leader != raft::INVALID_ID
            && leader != message.from
    }

    fn request(&mut self, now: Nanos, call: CallId, caller: &Caller, request: Request) {
        if self.divergence().is_some() {
            return self.output.reply(call, Err(Failure::Diverged));
        }
        if matches!(request, Request::ReadStale(_))
            && let Err(failure) = self.vetted.permit(&self.state, self.lead.is_some(), caller, &request)
        {
            return self.output.reply(call, Err(failure));
        }
        if let Request::ReadStale(query) = request {
            return self.stale_reads.push_back((call, query));
        }
        if self.node.raft.state != StateRole::Leader {
            let leader = self.leader();
            return self.output.reply(call, Err(Failure::NotLeader { leader }));
        }
        if let Err(failure) = self.vetted.permit(&self.state, self.lead.is_some(), caller, &request) {
            return self.output.reply(call, Err(failure));
        }
        match request {
            // R2: the arrival is this input's own reading of the clock.
            Request::Renew { lease, holds } => {
                let arrival = self.arrival(now);
                self.join_round(call, Wish::Renew { lease, holds, arrival });
            }
            Request::RenewMany(leases) => {
                let arrival = self.arrival(now);
                self.join_round(call, Wish::RenewMany { leases, arrival });
            }
            Request::Read(query) | Request::ReadStale(query) => self.join_round(call, Wish::Read(query)),
            Request::Command(command) => self.command(now, call, command, WaitTime::NONE),
            Request::Wait { command, wait } => {
                self.arrivals.expect(call);
                self.command(now, call, command, wait);
            }
            Request::Transfer { to } => self.transfer(now, call, &to),
        }
    }

    /// R2: when an input that came now has arrived.
    fn arrival(&self, now: Nanos) -> Nanos {
        match mutants::ARRIVAL_TAKEN_FROM_THE_TICK.is_active() {
            false => now,
            true => self.contact.last_tick().unwrap_or(now),
        }
    }

    /// Acts on what the last call into `raft` may have changed.
    fn settle(&mut self, now: Nanos) {
        let (term, role) = (self.node.raft.term, self.node.raft.state);
        if !self.standing.is(term, role) {
            self.standing = Standing::new(now, term, role);
            self.timing.begin(now);
            self.contact.forget_what_was_taken();
            self.lose_certainty(now);
        }
        self.settle_transfer(now);
        if self.node.store().take_snapshot_wanted() {
            self.make_snapshot(Pace::AtOnce);
        }
    }

    /// Has a snapshot of the applied state made. Nobody is to begin from a state that is in doubt.
    fn make_snapshot(&mut self, pace: Pace) {
        if self.divergence().is_some() {
            return;
        }
        let job = self.snapshots.make(&self.config, self.node.store(), &self.state, &self.conf_state, pace);
        if let Some(job) = job {
            self.output.snapshot = Some(job);
        }
    }

    /// A new term or role, or a state in doubt: what was certain before is not any more.
    fn lose_certainty(&mut self, now: Nanos) {
        if mutants::ROUNDS_SURVIVE_A_CHANGE_OF_LEAD.is_active()
            && let Some(lead) = self.lead.get_mut()
        {
            lead.rounds_mut().take_all_for_confirmed();
            self.serve_rounds(now);
        }
        let leader = self.leader();
        // R3: the memory of an earlier lead ends with it.
        self.lead.end(leader, &mut self.output);
        for call in self.arrivals.fail_all() {
            self.output.reply(call, Err(Failure::NotLeader { leader }));
        }
        if mutants::RE_ARM_BEFORE_THE_NO_OP.is_active() {
            self.begin_to_lead(now, self.node.raft.term);
        }
        // The next leader may yet commit these.
        self.proposals.limit_wait(now.after(DOUBT_NANOS));
    }

    /// True while entries that this leader has on disk wait for the others. Requests that come meanwhile should wait for
    /// them, and go into the log together (group commit).
    pub fn is_committing(&self) -> bool {
        let raft = &self.node.raft;
        raft.state == StateRole::Leader && raft.raft_log.last_index() > raft.raft_log.committed
    }

    /// True if a turn would do something.
    pub fn has_work(&self) -> bool {
        self.node.has_ready()
            || !self.output.is_empty()
            || self.durability.has_repairs()
            || (!self.applying.unapplied.is_empty() && !self.must_hand_over_to_leave())
            || self.snapshots.compaction_due().is_some()
            || !self.stale_reads.is_empty()
            || self
                .lead
                .get()
                .is_some_and(|lead| lead.is_round_due(&self.arrivals) || lead.has_served(&self.state))
    }

    /// Begins a turn: what may be sent and answered now, and what must reach the disk before
    /// [`Replica::end_turn`].
    pub fn begin_turn(&mut self, now: Nanos) -> Result<Turn, Fatal> {
        assert!(self.ready.is_none(), "a turn in the middle of a turn");
        // R1: a round before an entry of this term is applied would prove nothing, and `raft` would
        // drop it without a word.
        if let Some(lead) = self.lead.get_mut()
            && let Some(context) =
                lead.begin_round(&mut self.arrivals, self.config.member.0, self.node.raft.term)
        {
            self.node.read_index(context);
        }
        let mut persist = Persist { snapshot: None, records: self.durability.take_repairs() };
        let mut must_save_hard_state = false;
        if self.node.has_ready() {
            let mut ready = self.node.ready();
            let messages = self.appends.in_parts(ready.take_messages());
            self.durability.send(self.node.raft.term, messages, &mut self.output.messages);
            for confirmed in ready.take_read_states() {
                if let Some(lead) = self.lead.get_mut() {
                    lead.confirm_round(&confirmed.request_ctx, confirmed.index);
                }
            }
            self.install(ready.snapshot(), &mut persist);
            self.applying.unapplied.extend(ready.take_committed_entries());
            self.node.mut_store().append(ready.entries());
            let group = self.config.group;
            persist.records.extend(ready.entries().iter().map(|entry| records::entry(group, entry)));
            self.snapshots.count_logged(ready.entries());
            must_save_hard_state = ready.must_sync();
            self.ready = Some(ready);
        }
        if !self.applies_later() {
            self.apply(now)?;
        }
        persist.records.extend(self.snapshots.compact(&self.config, &mut self.node));
        // What is left unapplied waits for the commit index to reach the disk.
        if must_save_hard_state || !self.applying.unapplied.is_empty() || !persist.is_empty() {
            let mut hard_state = self.node.raft.hard_state();
            if mutants::VOTE_NOT_PERSISTED.is_active() {
                hard_state.vote = raft::INVALID_ID;
            }
            self.durability.save(&hard_state);
            persist.records.push(records::hard_state(self.config.group, &hard_state));
        }
        self.serve_rounds(now);
        self.serve_stale_reads(now);
        Ok(Turn { output: self.take_output(), persist })
    }

    /// Ends a turn whose records are on disk.
    pub fn end_turn(&mut self, now: Nanos) -> Result<Output, Fatal> {
        self.durability.saved(&mut self.output.messages);
        let applies_later = self.applies_later();
        if let Some(mut ready) = self.ready.take() {
            let messages = self.appends.in_parts(ready.take_persisted_messages());
            self.output.messages.extend(messages);
            let mut light = self.node.advance_append(ready);
            let messages = self.appends.in_parts(light.take_messages());
            self.output.messages.extend(messages);
            self.applying.unapplied.extend(light.take_committed_entries());
        }
        if !applies_later {
            self.apply(now)?;
        }
        self.node.advance_apply_to(self.state.revision());
        self.serve_rounds(now);
        self.propose_feasible(now);
        self.settle(now);
        if self.snapshots.is_due(self.state.revision(), &self.config) {
            self.make_snapshot(Pace::AtOnce);
        }
        Ok(self.take_output())
    }

    /// True if what is committed is applied in the next turn, not in this one. The leader waits for what a follower
    /// writes; what the follower applies can wait until it has acknowledged that.
    fn applies_later(&self) -> bool {
        let has_entries = self.ready.as_ref().is_some_and(|ready| !ready.entries().is_empty());
        has_entries && self.node.raft.state == StateRole::Follower
    }

    fn take_output(&mut self) -> Output {
        for (call, _) in &self.output.replies {
            self.arrivals.answered(*call);
        }
        let factor = self.timing.factor();
        if factor > 1 && !mutants::THE_TIMING_FACTOR_IS_NEVER_TOLD.is_active() {
            for message in &mut self.output.messages {
                wire::tell_timing_factor(message, factor);
            }
        }
        std::mem::take(&mut self.output)
    }

    /// R1: from the first applied entry of its own term on, a leader that votes leads, and times leases.
    fn begin_to_lead(&mut self, now: Nanos, applied_term: u64) {
        let raft = &self.node.raft;
        if !self.lead.is_some()
            && raft.state == StateRole::Leader
            && applied_term == raft.term
            && raft.prs().conf().voters().contains(self.config.member.0)
            && self.divergence().is_none()
        {
            self.lead.begin(Lead::new(now, &self.config, &self.state));
            self.contact.begin(now);
        }
    }

    fn join_round(&mut self, call: CallId, wish: Wish) {
        let has_joined = match crate::mutants::hastens(&wish) {
            false => self.arrivals.join(call, wish),
            true => crate::mutants::hasten(&mut self.lead, &mut self.arrivals, call, wish),
        };
        if !has_joined {
            self.output.reply(call, Err(Failure::Busy));
        }
    }

    /// Answers those whose round is confirmed and applied.
    fn serve_rounds(&mut self, now: Nanos) {
        if let Some(lead) = self.lead.get_mut() {
            lead.serve_rounds(now, &self.state, &self.proposals, &mut self.arrivals, &mut self.output);
        }
    }

    /// Answers those who are content with what this replica knows, as many as a turn has time for.
    fn serve_stale_reads(&mut self, now: Nanos) {
        let mut units = 0;
        while units < UNITS_A_TURN
            && let Some((call, query)) = self.stale_reads.pop_front()
        {
            let answer = match self.divergence() {
                // Only a round says that the deadlines are those of the leader.
                None => reads::answer(&self.state, None, now, &query),
                Some(_) => Err(Failure::Diverged),
            };
            units += 1 + reads::units(&query, &answer);
            self.output.reply(call, answer);
        }
    }

    /// Its standing now.
    pub fn status(&self) -> Status {
        status::status(self)
    }

    /// [`Status::has_removed`] without the rest.
    pub fn has_removed(&self, member: MemberId) -> bool {
        status::is_removed(member, &self.state, &self.conf_state)
    }

    /// The members of the applied configuration that vote in the one that is to be: while two are joint, in
    /// the later.
    pub fn voters(&self) -> &[u64] {
        &self.conf_state.voters
    }

    /// Term, role, and whether it may touch leases (R1): the short form of [`Replica::status`].
    pub fn standing(&self) -> (u64, Role, bool) {
        (self.node.raft.term, status::role(self.node.raft.state), self.lead.is_some())
    }

    /// The applied state.
    pub fn state(&self) -> &State {
        &self.state
    }

    /// Who leads, as far as this replica knows.
    fn leader(&self) -> Option<MemberId> {
        let leader = self.node.raft.leader_id;
        (leader != raft::INVALID_ID).then_some(MemberId(leader))
    }
}

/// A replica that cannot go on: to guess would be worse than to stop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fatal {
    /// The entry that it cannot apply.
    pub index: u64,
    /// Why.
    pub problem: String,
}

impl std::fmt::Display for Fatal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "entry {} cannot be applied: {}", self.index, self.problem)
    }
}

impl std::error::Error for Fatal {}
