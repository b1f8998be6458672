//! One node's copy of a group: `raft`, the state machine, the lease table and the callers that wait.
//!
//! A replica decides and does nothing. Inputs go in through [`Replica::step`], each with its own
//! reading of the clock; then one *turn* is taken:
//!
//! ```text
//!   begin_turn ─► messages that may leave at once, replies, and what must be persisted
//!      caller writes and syncs
//!   end_turn   ─► messages that had to wait for the disk, replies to what was applied
//! ```
//!
//! How commands come into the log is in `proposing.rs`, what becomes of them in `applying.rs`.
//!
//! What holds it together:
//! - An entry is applied only when it is committed *and* on this node's disk.
//! - A caller gets an answer exactly once, and a good one only after its entry was applied here or
//!   its round was confirmed in the present term.
//! - Every change of term or role fails all rounds and forgets all deadlines, in the same step.

use std::collections::{BTreeMap, VecDeque};

use lowkey_core::{Command, LeaseId, MemberId, Refusal, Reply, State, Ticket, Ttl, WaitTime, mutants};
use raft::eraftpb;
use raft::{RawNode, Ready, StateRole};

use crate::appends::split_append;
use crate::config::Config;
use crate::elections::{ticks_after_split, ticks_behind_the_line, ticks_in_line};
use crate::input::{CallId, DiskRoom, Input, Request};
use crate::lease_table::{LeaseTable, Renewal};
use crate::log_store::LogStore;
use crate::output::{Failure, LogRecord, Output, Persist, Response, Turn};
use crate::proposals::Proposals;
use crate::reads;
use crate::rounds::{Rounds, Waiter, Wish};
use crate::time::{MILLISECOND, Nanos};
use crate::wait_table::{Returned, WaitTable};

/// R8: two ticks further apart than this, and the leader knows that it was stalled.
const STALL_NANOS: u64 = 250 * MILLISECOND;
/// How long a caller whose proposal is in doubt is kept waiting for the true outcome.
const DOUBT_NANOS: u64 = 300 * MILLISECOND;
/// Ticks between a leader's heartbeats.
pub(crate) const HEARTBEAT_TICKS: usize = 5;
/// A term that is further ahead than this is not the work of elections, however long this node slept. Who followed it
/// would have all others follow.
const TERM_LEAP_MAX: u64 = 1 << 32;

/// One node's copy of a group. See the module for how to drive it.
pub struct Replica {
    pub(crate) config: Config,
    pub(crate) node: RawNode<LogStore>,
    pub(crate) state: State,
    /// The members as of `state`.
    pub(crate) conf_state: eraftpb::ConfState,
    pub(crate) leases: LeaseTable,
    /// Armed and disarmed with `leases`.
    pub(crate) waits: WaitTable,
    pub(crate) rounds: Rounds,
    pub(crate) proposals: Proposals,
    /// R4: renewals of leases whose end is proposed; they learn its outcome.
    pub(crate) renewals_in_doubt: BTreeMap<LeaseId, Vec<CallId>>,
    /// R4: `Expiring` leases whose `Expire` has not been accepted into the log yet.
    pub(crate) unproposed_ends: Vec<LeaseId>,
    /// When this leader proposes the end of the quarantine; nothing if there is none, or it is proposed.
    pub(crate) quarantine_ends: Option<Nanos>,
    /// R10: `Cancelling` waits whose `CancelWait` has not been accepted into the log yet.
    pub(crate) unproposed_cancels: Vec<Ticket>,
    /// Term and role as of the last step; a change of either is acted on at once.
    standing: (u64, StateRole),
    pub(crate) expired_leases: u64,
    /// When that last changed.
    pub(crate) standing_since: Nanos,
    pub(crate) last_tick: Option<Nanos>,
    /// When members were last heard from.
    pub(crate) heard: BTreeMap<MemberId, Nanos>,
    /// The lead is to be handed over, and nobody could take it yet.
    pub(crate) hand_over_wanted: bool,
    /// A hand-over that somebody waits for.
    pub(crate) transfer: Option<crate::transfer::Transfer>,
    /// Where the last removal that this leader proposed stands in the log.
    pub(crate) last_removal: u64,
    pub(crate) disk: DiskRoom,
    /// Commands that a round showed to be feasible after all; proposed at the end of the turn.
    pub(crate) feasible: Vec<(CallId, Command, WaitTime)>,
    /// Commands that can only take a place in a queue: they go into the log with whatever comes next.
    pub(crate) patient: Vec<(CallId, Command, WaitTime)>,
    /// Committed and on disk, not applied yet; mostly empty.
    pub(crate) unapplied: VecDeque<eraftpb::Entry>,
    /// The commit index that is on disk. A change of members takes effect only at or below it: a
    /// node that restarted with the members of before could win an election among too few.
    pub(crate) durable_commit: u64,
    /// The term that is on disk. A lone voter leads in the very step in which it votes for itself; if
    /// its messages left before that vote is on disk, a crash would let it lead the same term twice.
    durable_term: u64,
    /// The highest commit index that this node has told others in an append.
    told_commit: u64,
    /// What term and commit on disk will be once this turn's records are there.
    saving: Option<(u64, u64)>,
    /// Records that bring the disk in step with what recovery made of it; written in the first turn.
    pub(crate) repairs: Vec<LogRecord>,
    /// A leader's messages of a term that is not on disk yet.
    held_messages: Vec<eraftpb::Message>,
    pub(crate) snapshots: crate::snapshots::Snapshots,
    pub(crate) guard: crate::guard::Guard,
    /// The index of the snapshot that the state began from.
    pub(crate) began_at: u64,
    /// The term of the last applied entry.
    pub(crate) applied_term: u64,
    /// Taken from `raft` in this turn, to be handed back at its end.
    ready: Option<Ready>,
    pub(crate) output: Output,
}

impl Replica {
    pub(crate) fn assemble(
        config: Config,
        node: RawNode<LogStore>,
        state: State,
        saved: eraftpb::SnapshotMetadata,
        saved_bytes: u64,
    ) -> Self {
        let grace_nanos = config.expiry_grace_nanos;
        let (durable_term, durable_commit) = (node.raft.term, node.raft.raft_log.committed);
        let mut replica = Self {
            standing: (node.raft.term, node.raft.state),
            snapshots: crate::snapshots::Snapshots::new(saved.index, saved_bytes),
            config,
            node,
            state,
            conf_state: saved.get_conf_state().clone(),
            leases: LeaseTable::new(grace_nanos),
            waits: WaitTable::default(),
            rounds: Rounds::default(),
            proposals: Proposals::default(),
            renewals_in_doubt: BTreeMap::new(),
            unproposed_ends: Vec::new(),
            unproposed_cancels: Vec::new(),
            quarantine_ends: None,
            expired_leases: 0,
            last_tick: None,
            standing_since: Nanos(0),
            heard: BTreeMap::new(),
            hand_over_wanted: false,
            transfer: None,
            last_removal: 0,
            disk: DiskRoom::Ample,
            feasible: Vec::new(),
            patient: Vec::new(),
            unapplied: VecDeque::new(),
            durable_commit,
            durable_term,
            told_commit: 0,
            saving: None,
            repairs: Vec::new(),
            held_messages: Vec::new(),
            guard: crate::guard::Guard::default(),
            began_at: saved.index,
            applied_term: saved.term,
            ready: None,
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
        replica
    }

    /// Takes in one thing that happened, at the clock's reading `now`, taken for this input alone.
    pub fn step(&mut self, now: Nanos, input: Input) {
        assert!(self.ready.is_none(), "a step in the middle of a turn");
        match input {
            Input::Tick => self.tick(now),
            Input::Message(message) => self.receive(now, *message),
            Input::Report(report) => self.receive_report(now, report),
            Input::Snapshot(received) => self.receive_snapshot(*received),
            Input::Request(call, request) => self.request(now, call, request),
            // Who takes part in no round that has begun has had no effect, and is forgotten.
            Input::CallerGone(call) if self.rounds.leave(call) => self.waits.answered(call),
            Input::CallerGone(call) => self.waits.leave(now, call),
            Input::Unreachable(member) => self.node.report_unreachable(member.0),
            Input::SnapshotSent { to, delivered } => self.snapshot_sent(to, delivered),
            Input::SnapshotSaved { index, size_bytes } => self.snapshot_saved(index, size_bytes),
            Input::SnapshotFailed { index } => self.snapshots.failed(index),
            Input::Disk(room) => self.disk = room,
            Input::HandOver => self.hand_over(),
        }
        self.settle(now);
    }

    fn tick(&mut self, now: Nanos) {
        let gap = self.last_tick.replace(now).map(|last| now.since(last)).unwrap_or_default();
        self.fix_election_timeout();
        self.node.tick();
        self.node.mut_store().free_some();
        self.snapshots.tick();
        self.tell_commit();
        self.settle(now);
        if self.leases.is_armed() {
            // R8: clients are not punished for the service's own pause.
            if gap > STALL_NANOS && !mutants::is_active("a stall is not given back") {
                self.leases.forgive(gap);
            }
            self.propose_patient(now);
            self.expire_due(now);
            self.cancel_due(now);
            self.end_quarantine_if_due(now);
            self.reconcile_members();
            if self.hand_over_wanted {
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

    /// Followers learn what is committed from the next entries; where none follow, a tick tells them. A message of its
    /// own for every commit would cost each node a turn, and its answer the leader another. A driver that has nothing else
    /// to do may tell them earlier.
    pub fn tell_commit(&mut self) {
        let raft = &mut self.node.raft;
        if raft.state == StateRole::Leader && raft.raft_log.committed > self.told_commit {
            raft.bcast_append();
        }
    }

    fn receive(&mut self, now: Nanos, message: eraftpb::Message) {
        use eraftpb::MessageType;
        if !self.is_for_this(&message) {
            return;
        }
        self.heard_from(message.from, now);
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
            MessageType::MsgAppend if self.disk == DiskRoom::Exhausted => return,
            // A snapshot comes with its state: see `receive_snapshot`.
            MessageType::MsgSnapshot => return,
            _ => {}
        }
        // A message that `raft` refuses (from a node that left, say) changes nothing.
        let _ = self.node.step(message);
    }

    /// True if a message is for this node, and from one that may speak to it.
    pub(crate) fn is_for_this(&self, message: &eraftpb::Message) -> bool {
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

    fn request(&mut self, now: Nanos, call: CallId, request: Request) {
        if self.divergence().is_some() {
            return self.output.reply(call, Err(Failure::Diverged));
        }
        if let Request::ReadStale(query) = request {
            // Only a round says that the deadlines are those of the leader.
            let answer = reads::answer(&self.state, &LeaseTable::new(0), now, &query);
            return self.output.reply(call, answer);
        }
        if self.node.raft.state != StateRole::Leader {
            let leader = self.leader();
            return self.output.reply(call, Err(Failure::NotLeader { leader }));
        }
        match request {
            // R2: the arrival is this input's own reading of the clock.
            Request::Renew { lease, holds } => {
                let arrival = match self.last_tick {
                    Some(last_tick) if mutants::is_active("arrival taken from the tick") => last_tick,
                    _ => now,
                };
                self.join_round(call, Wish::Renew { lease, holds, arrival });
            }
            Request::Read(query) | Request::ReadStale(query) => self.join_round(call, Wish::Read(query)),
            Request::Command(command) => self.command(now, call, command, WaitTime::NONE),
            Request::Wait { command, wait } => {
                self.waits.expect(call);
                self.command(now, call, command, wait);
            }
            Request::Transfer { to } => self.transfer(now, call, &to),
        }
    }

    /// Acts on what the last call into `raft` may have changed.
    fn settle(&mut self, now: Nanos) {
        let standing = (self.node.raft.term, self.node.raft.state);
        if standing != self.standing {
            self.standing = standing;
            self.standing_since = now;
            self.standing_changed(now);
        }
        self.settle_transfer(now);
        if self.node.store().take_snapshot_wanted() {
            self.make_snapshot();
        }
    }

    /// A new term or role: what was certain before is not any more.
    pub(crate) fn standing_changed(&mut self, now: Nanos) {
        self.restart_marks(now);
        // R3: deadlines of an earlier lead are forgotten, whoever leads now.
        self.leases.disarm();
        let interrupted = self.waits.disarm();
        if mutants::is_active("re-arm before the no-op") {
            self.arm_if_leading(now, self.node.raft.term);
        }
        if !mutants::is_active("ends of an earlier lead are proposed") {
            self.unproposed_ends.clear();
        }
        self.unproposed_cancels.clear();
        self.quarantine_ends = None;
        self.hand_over_wanted = false;
        // What an earlier lead proposed is applied before this node touches anything again (R1), or gone.
        self.last_removal = 0;
        let leader = self.leader();
        for call in interrupted {
            if mutants::is_active("a change of lead is not told to waiters") {
                continue;
            }
            self.output.reply(call, Err(Failure::Interrupted { leader }));
        }
        let in_doubt = std::mem::take(&mut self.renewals_in_doubt).into_values().flatten();
        let in_rounds = match mutants::is_active("rounds survive a change of lead") {
            false => self.rounds.fail_all(),
            true => Vec::new(),
        };
        let patient = std::mem::take(&mut self.patient).into_iter().map(|(call, ..)| call);
        // Nothing was done for any of these: they may ask the new leader.
        for call in in_rounds.into_iter().chain(in_doubt).chain(patient) {
            self.output.reply(call, Err(Failure::NotLeader { leader }));
        }
        // These may yet be committed by whoever leads now.
        self.proposals.limit_wait(now.after(DOUBT_NANOS));
    }

    /// `raft` draws election timeouts from its thread's generator, and looks at them when it ticks. They are replaced, so
    /// that the same inputs always give the same elections.
    fn fix_election_timeout(&mut self) {
        let (member, raft) = (self.config.member.0, &mut self.node.raft);
        let stood_in_vain = raft.vote == member && raft.leader_id == raft::INVALID_ID;
        let ticks = if stood_in_vain {
            ticks_after_split(member, raft.term, self.config.seed)
        } else {
            let voters = raft.prs().conf().voters().ids();
            let ticks = ticks_in_line(member, raft.term, raft.leader_id, voters.iter());
            // A leader without room refuses new grants for everybody. Not so one whose disk takes nothing at all: if another led,
            // it could not even take what makes that one a leader.
            if self.disk == DiskRoom::Reserve { ticks_behind_the_line(ticks) } else { ticks }
        };
        raft.set_randomized_election_timeout(ticks);
    }

    /// True while entries that this leader has on disk wait for the others. What is asked meanwhile does well to wait
    /// for them and go into the log together.
    pub fn is_committing(&self) -> bool {
        let raft = &self.node.raft;
        raft.state == StateRole::Leader && raft.raft_log.last_index() > raft.raft_log.committed
    }

    /// True if a turn would do something.
    pub fn has_work(&self) -> bool {
        self.node.has_ready()
            || !self.output.is_empty()
            || !self.repairs.is_empty()
            || (!self.unapplied.is_empty() && !self.must_hand_over_to_leave())
            || self.snapshots.compaction_due().is_some()
            || (self.leases.is_armed() && self.rounds.is_due())
    }

    /// Begins a turn: what may be sent and answered now, and what must reach the disk before
    /// [`Replica::end_turn`].
    pub fn begin_turn(&mut self, now: Nanos) -> Result<Turn, Fatal> {
        assert!(self.ready.is_none(), "a turn in the middle of a turn");
        // R1: a round before an entry of this term is applied would prove nothing, and `raft` would
        // drop it without a word.
        if self.leases.is_armed()
            && let Some(context) = self.rounds.begin(self.config.member.0, self.node.raft.term)
        {
            self.node.read_index(context);
        }
        let mut persist = Persist { snapshot: None, records: std::mem::take(&mut self.repairs) };
        let mut must_save_hard_state = false;
        if self.node.has_ready() {
            let mut ready = self.node.ready();
            let messages = self.in_parts(ready.take_messages());
            if self.node.raft.term == self.durable_term
                || mutants::is_active("a lone voter speaks before its vote is on disk")
            {
                self.output.messages.extend(messages);
            } else {
                self.held_messages = messages;
            }
            for confirmed in ready.take_read_states() {
                self.rounds.confirm(&confirmed.request_ctx, confirmed.index);
            }
            self.install(ready.snapshot(), &mut persist);
            self.unapplied.extend(ready.take_committed_entries());
            self.node.mut_store().append(ready.entries());
            persist.records.extend(ready.entries().iter().map(LogRecord::entry));
            self.snapshots.count_logged(ready.entries());
            must_save_hard_state = ready.must_sync();
            self.ready = Some(ready);
        }
        if !self.applies_later() {
            self.apply(now)?;
        }
        self.compact(&mut persist);
        // What is left unapplied waits for the commit index to reach the disk.
        if must_save_hard_state || !self.unapplied.is_empty() || !persist.is_empty() {
            let mut hard_state = self.node.raft.hard_state();
            if mutants::is_active("vote not persisted") {
                hard_state.vote = raft::INVALID_ID;
            }
            self.saving = Some((hard_state.term, hard_state.commit));
            persist.records.push(LogRecord::hard_state(&hard_state));
        }
        self.serve_rounds(now);
        Ok(Turn { output: self.take_output(), persist })
    }

    /// Ends a turn whose records are on disk.
    pub fn end_turn(&mut self, now: Nanos) -> Result<Output, Fatal> {
        if let Some((term, commit)) = self.saving.take() {
            self.durable_term = term;
            self.durable_commit = commit;
        }
        self.output.messages.append(&mut self.held_messages);
        let applies_later = self.applies_later();
        if let Some(mut ready) = self.ready.take() {
            let messages = self.in_parts(ready.take_persisted_messages());
            self.output.messages.extend(messages);
            let mut light = self.node.advance_append(ready);
            let messages = self.in_parts(light.take_messages());
            self.output.messages.extend(messages);
            self.unapplied.extend(light.take_committed_entries());
        }
        if !applies_later {
            self.apply(now)?;
        }
        self.node.advance_apply_to(self.state.revision());
        self.serve_rounds(now);
        for (call, command, wait) in std::mem::take(&mut self.feasible) {
            self.propose(now, call, command, wait);
        }
        self.settle(now);
        self.snapshot_if_due();
        Ok(self.take_output())
    }

    /// True if what is committed is applied in the next turn, not in this one: what a follower has to write the leader
    /// waits for, and what it has to apply can wait until it has told of that.
    fn applies_later(&self) -> bool {
        let has_entries = self.ready.as_ref().is_some_and(|ready| !ready.entries().is_empty());
        has_entries && self.node.raft.state == StateRole::Follower
    }

    /// `raft` puts all entries for a peer into one message, however many they are; it leaves as several that are not too
    /// large for anybody. Notes also what they tell of commits.
    fn in_parts(&mut self, messages: Vec<eraftpb::Message>) -> Vec<eraftpb::Message> {
        let mut parts = Vec::with_capacity(messages.len());
        for message in messages {
            if message.get_msg_type() != eraftpb::MessageType::MsgAppend {
                parts.push(message);
                continue;
            }
            self.told_commit = self.told_commit.max(message.commit);
            split_append(message, &mut parts);
        }
        parts
    }

    fn take_output(&mut self) -> Output {
        for (call, _) in &self.output.replies {
            self.waits.answered(*call);
        }
        std::mem::take(&mut self.output)
    }

    /// R1, R3: from the first applied entry of its own term on, a leader that votes times leases.
    pub(crate) fn arm_if_leading(&mut self, now: Nanos, applied_term: u64) {
        let raft = &self.node.raft;
        if !self.leases.is_armed()
            && raft.state == StateRole::Leader
            && applied_term == raft.term
            && raft.prs().conf().voters().contains(self.config.member.0)
            && self.divergence().is_none()
        {
            // R7: the time of a lease that waits for its grant has not begun.
            let running = self.state.leases().filter(|(_, lease)| !lease.is_waiting);
            let leases: Vec<(LeaseId, Ttl)> = running.map(|(id, lease)| (id, lease.ttl)).collect();
            self.leases.arm(now, leases.into_iter());
            self.waits.arm(now, self.state.waits());
            self.begin_quarantine(now);
            // R8: a stall before the first tick is one too.
            self.last_tick.get_or_insert(now);
        }
    }

    pub(crate) fn join_round(&mut self, call: CallId, wish: Wish) {
        if !self.rounds.join(call, wish) {
            self.output.reply(call, Err(Failure::Busy));
        }
    }

    /// Answers those whose round is confirmed and applied, each in one step with its check.
    fn serve_rounds(&mut self, now: Nanos) {
        for Waiter { call, wish } in self.rounds.take_served(self.state.revision()) {
            match wish {
                Wish::Renew { lease, holds, arrival } => match self.leases.renew(lease, arrival) {
                    Renewal::Renewed(ttl) => {
                        // As of the round: what was granted or ended since the client asked counts too, and
                        // the client knows what it had under way.
                        let holds_differ = holds.is_some_and(|told| self.state.holds_of(lease) != Some(told));
                        self.output.reply(call, Ok(Response::Renewed { ttl, holds_differ }));
                    }
                    Renewal::Expiring => self.renewals_in_doubt.entry(lease).or_default().push(call),
                    Renewal::Gone => {
                        self.output.reply(call, Err(Failure::Refused(Refusal::LeaseNotFound { lease })));
                    }
                },
                Wish::Read(query) => {
                    let answer = reads::answer(&self.state, &self.leases, now, &query);
                    self.output.reply(call, answer);
                }
                Wish::Check { command, wait } => match self.state.check(&command) {
                    // What it names may have been taken in after it.
                    Err(_) if self.may_name_later(&command) => self.feasible.push((call, command, wait)),
                    Err(refusal) => {
                        let failure = self.refused(now, refusal);
                        self.output.reply(call, Err(failure));
                    }
                    // R10: the same request id, the same place.
                    Ok(Some(Reply::Waiting { ticket })) => {
                        self.park(now, ticket, Returned { call, command, wait });
                    }
                    Ok(Some(reply)) => self.output.reply(call, Ok(Response::Applied(reply))),
                    Ok(None) => self.feasible.push((call, command, wait)),
                },
            }
        }
    }

    /// Who leads, as far as this replica knows.
    pub(crate) fn leader(&self) -> Option<MemberId> {
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
