//! Do all replicas have the same state? The guard against their drifting apart.
//!
//! Every thousand entries, or every second in which there are any, the leader marks an entry as a
//! *checkpoint*: whoever applies it takes the digest of its state right then, and tells the others. The mark
//! rides on an ordinary entry, and costs none. It also carries the leader's digest of the checkpoint before, so
//! that the log itself bears witness, also to a replica that hears nobody.
//!
//! When nothing is applied for a second, where a replica stands is a checkpoint as well, without a mark: in a
//! cluster that is at rest all stand at the same index. So the last entries are compared, too, and so is a
//! replica that has just started.
//!
//! Each replica counts for itself, of the newest checkpoint that it has applied:
//! - A majority of the voters has its digest: all is well.
//! - A majority has another: this replica is the one that is wrong. It stops serving at once; a leader hands
//!   over; then it asks the leader for a snapshot, and begins anew from that.
//! - Digests differ, and none has a majority for half a second: nobody can tell who is right. Whoever sees that
//!   stops serving, until a majority for its digest is found.
//!
//! A digest that is missing where it should be known counts as another one. What lies below the snapshot that
//! a replica began from it cannot know, and need not.
//!
//! What *stops serving* means: nothing is answered, neither reads nor what was proposed; leases are not timed;
//! watches end. The log goes on: what is in it is agreed upon by other means, and the entries and votes of
//! this replica count as before.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use lowkey_core::{MemberId, mutants};
use raft::eraftpb::ConfState;
use raft::{INVALID_INDEX, StateRole};

use crate::mix::mix;
use crate::replica::Replica;
use crate::time::{MILLISECOND, Nanos};
use crate::wire::{self, Mark};

/// The first command version whose nodes know of checkpoints: others are told nothing.
const GUARD_VERSION: u32 = 4;
/// How long digests may differ without a majority for one of them.
const DOUBT_NANOS: u64 = 500 * MILLISECOND;
/// Between two questions to voters that have not said what their state comes to.
const ASK_NANOS: u64 = 250 * MILLISECOND;
/// The same when they have not said so for long.
const ASK_RARELY_NANOS: u64 = 5000 * MILLISECOND;
/// After which it is long.
const ASK_OFTEN_FOR_NANOS: u64 = 2000 * MILLISECOND;
/// How many checkpoints a replica can be asked about: a million entries.
const KEPT: usize = 1024;
/// How long a replica waits for a snapshot that it asked for. Meanwhile it takes no entries, and may be the
/// one that is missing for them to be committed.
const SNAPSHOT_WAIT_NANOS: u64 = 10_000 * MILLISECOND;
/// How long it takes entries again before it asks once more.
const SNAPSHOT_PAUSE_NANOS: u64 = 1000 * MILLISECOND;

/// What a replica says of its state at a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// Whose state.
    pub from: MemberId,
    /// To whom it is said.
    pub to: MemberId,
    /// The checkpoint's index.
    pub index: u64,
    /// What the state came to there.
    pub digest: u64,
    /// The other is asked for the same.
    pub wants_answer: bool,
}

/// Why a replica does not serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Divergence {
    /// A majority of the voters has another state than this one.
    Minority {
        /// The checkpoint at which that was seen.
        index: u64,
    },
    /// States differ, and no majority has the same.
    NoMajority {
        /// The checkpoint at which that was seen.
        index: u64,
    },
}

/// Invariant: `own` and every member's reports are in order of their indices, the newest last.
#[derive(Debug, Default)]
pub(crate) struct Guard {
    /// This replica's digests at the last checkpoints.
    own: VecDeque<(u64, u64)>,
    /// The last of them that an entry was marked for: whoever replays the log takes it again.
    last_marked: Option<(u64, u64)>,
    /// What others said.
    reports: BTreeMap<MemberId, BTreeMap<u64, u64>>,
    /// Since when there have been different digests, and no majority for this replica's.
    doubt_since: Option<Nanos>,
    /// A majority has this replica's newest digest.
    settled: bool,
    asked_at: Nanos,
    /// When the newest checkpoint was applied.
    since: Nanos,
    /// The last index that was applied, and since when.
    rests: (u64, Nanos),
    divergence: Option<Divergence>,
    /// When a snapshot was asked for, or given up.
    snapshot_asked: Option<Nanos>,
    snapshot_given_up: Option<Nanos>,
    /// Where and when this leader set its last mark, in whatever entry.
    marked: (u64, Nanos),
}

/// How the voters' digests at one checkpoint compare to this replica's.
enum Tally {
    Same,
    Other,
    Differ,
    Open,
}

impl Guard {
    fn newest(&self) -> Option<(u64, u64)> {
        self.own.back().copied()
    }

    fn own_at(&self, index: u64) -> Option<u64> {
        let place = self.own.binary_search_by_key(&index, |(at, _)| *at).ok()?;
        Some(self.own[place].1)
    }

    /// It was compared, or could have been, so long ago that nobody is asked about it any more.
    fn has_forgotten(&self, index: u64) -> bool {
        self.own.len() >= KEPT && self.own.front().is_some_and(|(oldest, _)| index < *oldest)
    }

    fn reported(&self, member: MemberId, index: u64) -> Option<u64> {
        self.reports.get(&member)?.get(&index).copied()
    }

    fn note_own(&mut self, now: Nanos, index: u64, digest: u64) {
        self.own.push_back((index, digest));
        self.since = now;
        if self.own.len() > KEPT {
            self.own.pop_front();
        }
        self.settled = false;
        // Only the newest is counted: who is wrong at one is wrong at the next.
        for reports in self.reports.values_mut() {
            *reports = reports.split_off(&index);
        }
    }

    fn note_report(&mut self, from: MemberId, index: u64, digest: u64) {
        if self.newest().is_some_and(|(newest, _)| index < newest) {
            return;
        }
        let reports = self.reports.entry(from).or_default();
        reports.insert(index, digest);
        if reports.len() > KEPT {
            reports.pop_first();
        }
    }

    fn tally(&self, member: MemberId, voters: &[u64]) -> Tally {
        let Some((index, own)) = self.newest() else { return Tally::Open };
        let said = |voter: u64| match MemberId(voter) {
            voter if voter == member => Some(own),
            voter => self.reported(voter, index),
        };
        let mut counts: BTreeMap<u64, usize> = BTreeMap::new();
        for digest in voters.iter().filter_map(|voter| said(*voter)) {
            *counts.entry(digest).or_default() += 1;
        }
        let needed = match mutants::is_active("one other digest is a majority") {
            false => voters.len() / 2 + 1,
            true => 1,
        };
        let others = counts.iter().filter(|(digest, _)| **digest != own);
        match counts.get(&own) {
            _ if others.clone().any(|(_, count)| *count >= needed) => Tally::Other,
            Some(count) if *count >= needed => Tally::Same,
            _ if others.count() > 0 => Tally::Differ,
            _ => Tally::Open,
        }
    }
}

impl Replica {
    /// Nothing while it serves, or may.
    pub fn divergence(&self) -> Option<Divergence> {
        self.guard.divergence
    }

    /// What the next proposal carries, if a checkpoint is due.
    pub(crate) fn mark_if_due(&mut self, now: Nanos) -> Vec<u8> {
        let (index, at) = self.guard.marked;
        let next = self.node.raft.raft_log.last_index() + 1;
        let is_due = next.saturating_sub(index) >= self.config.checkpoint_entries
            || now.since(at) >= self.config.checkpoint_nanos;
        match is_due && self.has_whom_to_compare_with() {
            true => wire::encode_mark(Mark { previous: self.guard.last_marked }),
            false => Vec::new(),
        }
    }

    /// A proposal was taken into the log.
    pub(crate) fn marked(&mut self, now: Nanos, mark: &[u8]) {
        if !mark.is_empty() {
            self.guard.marked = (self.node.raft.raft_log.last_index(), now);
        }
    }

    /// A new lead begins its own count.
    pub(crate) fn restart_marks(&mut self, now: Nanos) {
        self.guard.marked = (0, now);
    }

    fn has_whom_to_compare_with(&self) -> bool {
        let members = self.conf_state.voters.len() + self.conf_state.learners.len();
        let understood =
            self.state.oldest_member().is_some_and(|oldest| oldest.command_version >= GUARD_VERSION);
        members > 1 && understood
    }

    /// An entry was applied: if it is a checkpoint, this is the state to compare.
    pub(crate) fn checkpoint(&mut self, now: Nanos, index: u64, context: &[u8]) {
        let Some(Mark { previous }) = wire::decode_mark(context) else { return };
        // The log's own witness.
        if let Some((previous, digest)) = previous
            && previous > self.began_at
            && !self.guard.has_forgotten(previous)
            && self.guard.own_at(previous) != Some(digest)
        {
            self.guard.doubt_since.get_or_insert(now);
        }
        self.take_checkpoint(now, index, false);
        self.guard.last_marked = self.guard.newest();
    }

    fn take_checkpoint(&mut self, now: Nanos, index: u64, wants_answer: bool) {
        let digest = self.comparable();
        self.guard.note_own(now, index, digest);
        for to in self.others() {
            self.report(to, index, digest, wants_answer);
        }
        self.judge(now);
    }

    /// Where this replica rests is a checkpoint too, and where another does that stands at the same index.
    fn checkpoint_at_rest(&mut self, now: Nanos) {
        let index = self.state.revision();
        if self.guard.rests.0 != index {
            self.guard.rests = (index, now);
        }
        if self.guard.newest().is_some_and(|(newest, _)| newest >= index) || !self.has_whom_to_compare_with()
        {
            return;
        }
        let rests = now.since(self.guard.rests.1) >= self.config.checkpoint_nanos;
        let is_asked = self.guard.reports.values().any(|reports| reports.contains_key(&index));
        if rests || is_asked {
            self.take_checkpoint(now, index, rests);
        }
    }

    /// The state, and who belongs to the group: what replicas at the same index have in common.
    fn comparable(&self) -> u64 {
        let ConfState { voters, learners, voters_outgoing, learners_next, .. } = &self.conf_state;
        let mut digest = self.state.digest();
        for members in [voters, learners, voters_outgoing, learners_next] {
            let mut members = members.clone();
            members.sort_unstable();
            // No member has this id: it ends the list.
            digest = members.into_iter().chain([u64::MAX]).fold(digest, mix);
        }
        digest
    }

    fn others(&self) -> Vec<MemberId> {
        let ConfState { voters, learners, voters_outgoing, .. } = &self.conf_state;
        let all = voters.iter().chain(learners).chain(voters_outgoing).copied().map(MemberId);
        let others: BTreeSet<MemberId> = all.filter(|member| *member != self.config.member).collect();
        others.into_iter().collect()
    }

    fn report(&mut self, to: MemberId, index: u64, digest: u64, wants_answer: bool) {
        let understands = self.state.member(to).is_some_and(|node| node.command_version >= GUARD_VERSION);
        if understands {
            self.output.reports.push(Report { from: self.config.member, to, index, digest, wants_answer });
        }
    }

    /// Another replica says what its state came to.
    pub(crate) fn receive_report(&mut self, now: Nanos, report: Report) {
        let Report { from, to, index, digest, wants_answer } = report;
        if to != self.config.member || !self.others().contains(&from) {
            return;
        }
        self.guard.note_report(from, index, digest);
        self.checkpoint_at_rest(now);
        if wants_answer && let Some(own) = self.guard.own_at(index) {
            self.report(from, index, own, false);
        }
        self.judge(now);
    }

    fn judge(&mut self, now: Nanos) {
        let Some((index, _)) = self.guard.newest() else { return };
        let verdict = match self.guard.tally(self.config.member, &self.conf_state.voters) {
            Tally::Same => {
                self.guard.settled = true;
                self.guard.doubt_since = None;
                None
            }
            Tally::Other => Some(Divergence::Minority { index }),
            Tally::Differ => {
                self.guard.doubt_since.get_or_insert(now);
                self.lasting_doubt(now, index)
            }
            Tally::Open => self.lasting_doubt(now, index),
        };
        match (self.guard.divergence, verdict) {
            // Only a snapshot helps against that.
            (Some(Divergence::Minority { .. }), _) => {}
            (Some(Divergence::NoMajority { .. }), Some(Divergence::NoMajority { .. })) => {}
            (before, after) if before != after => self.diverged(now, after),
            _ => {}
        }
    }

    fn lasting_doubt(&self, now: Nanos, index: u64) -> Option<Divergence> {
        let lasts = self.guard.doubt_since.is_some_and(|since| now.since(since) >= DOUBT_NANOS)
            && !mutants::is_active("without a majority all go on");
        lasts.then_some(Divergence::NoMajority { index })
    }

    /// It stops serving, or begins to again.
    fn diverged(&mut self, now: Nanos, divergence: Option<Divergence>) {
        if mutants::is_active("a minority goes on") {
            return;
        }
        self.guard.divergence = divergence;
        // What was certain is not any more; and what watchers were shown, or were not, is in doubt.
        self.standing_changed(now);
        self.output.changes.clear();
        self.output.history_lost = Some(self.state.revision());
        let applied_term = self.applied_term;
        self.arm_if_leading(now, applied_term);
    }

    /// Asks those that were not heard, and sees to it that a replica that is wrong becomes right.
    pub(crate) fn tick_guard(&mut self, now: Nanos) {
        self.checkpoint_at_rest(now);
        let pause =
            match now.since(self.guard.since) < ASK_OFTEN_FOR_NANOS || self.guard.doubt_since.is_some() {
                true => ASK_NANOS,
                false => ASK_RARELY_NANOS,
            };
        if let Some((index, digest)) = self.guard.newest()
            && !self.guard.settled
            && now.since(self.guard.asked_at) >= pause
        {
            self.guard.asked_at = now;
            let voters: Vec<MemberId> = self.conf_state.voters.iter().copied().map(MemberId).collect();
            for to in voters {
                if to != self.config.member && self.guard.reported(to, index).is_none() {
                    self.report(to, index, digest, true);
                }
            }
        }
        self.judge(now);
        if let Some(Divergence::Minority { .. }) = self.guard.divergence {
            match self.node.raft.state {
                StateRole::Leader => self.hand_over(),
                _ => self.ask_for_snapshot(now),
            }
        }
    }

    fn ask_for_snapshot(&mut self, now: Nanos) {
        if mutants::is_active("a minority takes no snapshot") {
            return;
        }
        // Its file would come after that of the leader's, in the same place.
        if self.snapshots.is_being_made() {
            return;
        }
        let (asked, given_up) = (self.guard.snapshot_asked, self.guard.snapshot_given_up);
        let raft = &mut self.node.raft;
        match asked {
            Some(asked) if raft.pending_request_snapshot != INVALID_INDEX => {
                if now.since(asked) >= SNAPSHOT_WAIT_NANOS {
                    raft.pending_request_snapshot = INVALID_INDEX;
                    self.guard.snapshot_given_up = Some(now);
                }
            }
            _ if given_up.is_some_and(|at| now.since(at) < SNAPSHOT_PAUSE_NANOS) => {}
            // What `raft` refuses now (there is no leader, or it has not spoken yet) is asked again.
            _ => {
                if self.node.request_snapshot().is_ok() {
                    self.guard.snapshot_asked = Some(now);
                }
            }
        }
    }

    /// A snapshot replaced the state: what was known of the one before does not matter any more.
    pub(crate) fn begin_anew(&mut self, index: u64) {
        self.guard = Guard::default();
        self.began_at = index;
    }

    /// A voter that is known to have another state than the majority.
    pub(crate) fn is_suspect(&self, voter: MemberId) -> bool {
        let Some((index, own)) = self.guard.newest() else { return false };
        let Some(said) = self.guard.reported(voter, index) else { return false };
        match self.guard.divergence {
            // This leader is wrong itself: whoever agrees with it is too.
            Some(Divergence::Minority { .. }) => said == own,
            _ => said != own,
        }
    }
}
