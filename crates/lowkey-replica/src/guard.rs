//! Do all replicas have the same state? The guard against their drifting apart.
//!
//! Every thousand entries, or every second in which there are any, the leader marks an entry as a
//! *checkpoint*: each replica that applies it takes the digest of its state right then, and tells the others. The mark
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
//! - Digests differ, and none has a majority for half a second: nobody can tell who is right. A replica that
//!   sees this stops serving, until a majority for its digest is found.
//!
//! A digest that is missing where it should be known counts as another one. What lies below the snapshot that
//! a replica began from it cannot know, and need not.
//!
//! What *stops serving* means: nothing is answered, neither reads nor what was proposed; leases are not timed;
//! watches end. The log goes on: what is in it is agreed upon by other means, and the entries and votes of
//! this replica count as before.
//!
//! Here is what is known and how it is judged; `replica/guarding.rs` takes the digests and acts on the verdict.

use std::collections::{BTreeMap, VecDeque};

use lowkey_core::{MemberId, mutants};
use raft::{INVALID_INDEX, RawNode};

use crate::log::LogStore;
use crate::time::{MILLISECOND, Nanos};

/// The first command version whose nodes know of checkpoints: others are told nothing.
pub(crate) const GUARD_VERSION: u32 = 4;
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
    /// The last of them that an entry was marked for: a replay of the log takes it again.
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
    /// The index of the snapshot that the state began from.
    began_at: u64,
}

/// How the voters' digests at one checkpoint compare to this replica's.
enum Tally {
    Same,
    Other,
    Differ,
    Open,
}

impl Guard {
    /// Of a state that begins with the snapshot of this index.
    pub(crate) fn new(began_at: u64) -> Self {
        Self { began_at, ..Self::default() }
    }

    pub(crate) fn divergence(&self) -> Option<Divergence> {
        self.divergence
    }

    pub(crate) fn set_divergence(&mut self, divergence: Option<Divergence>) {
        self.divergence = divergence;
    }

    /// The last checkpoint that an entry was marked for.
    pub(crate) fn last_marked(&self) -> Option<(u64, u64)> {
        self.last_marked
    }

    /// The newest checkpoint is one that an entry was marked for.
    pub(crate) fn newest_is_marked(&mut self) {
        self.last_marked = self.newest();
    }

    fn newest(&self) -> Option<(u64, u64)> {
        self.own.back().copied()
    }

    pub(crate) fn own_at(&self, index: u64) -> Option<u64> {
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

    pub(crate) fn note_own(&mut self, now: Nanos, index: u64, digest: u64) {
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

    pub(crate) fn note_report(&mut self, from: MemberId, index: u64, digest: u64) {
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
        let needed = match mutants::ONE_OTHER_DIGEST_IS_A_MAJORITY.is_active() {
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
    /// What the log itself says of an earlier checkpoint.
    pub(crate) fn hear_witness(&mut self, now: Nanos, (index, digest): (u64, u64)) {
        if index > self.began_at && !self.has_forgotten(index) && self.own_at(index) != Some(digest) {
            self.doubt_since.get_or_insert(now);
        }
    }

    /// True if nothing was applied for a while, as of the state at this index.
    pub(crate) fn rests(&mut self, now: Nanos, index: u64, rest_nanos: u64) -> bool {
        if self.rests.0 != index {
            self.rests = (index, now);
        }
        now.since(self.rests.1) >= rest_nanos
    }

    pub(crate) fn has_own_at_or_behind(&self, index: u64) -> bool {
        self.newest().is_some_and(|(newest, _)| newest >= index)
    }

    /// True if another replica spoke of this index.
    pub(crate) fn is_asked_about(&self, index: u64) -> bool {
        self.reports.values().any(|reports| reports.contains_key(&index))
    }

    /// The verdict, if it is another than before. Only a snapshot helps a replica that is in a minority.
    pub(crate) fn judge(
        &mut self,
        now: Nanos,
        member: MemberId,
        voters: &[u64],
    ) -> Option<Option<Divergence>> {
        let (index, _) = self.newest()?;
        let verdict = match self.tally(member, voters) {
            Tally::Same => {
                self.settled = true;
                self.doubt_since = None;
                None
            }
            Tally::Other => Some(Divergence::Minority { index }),
            Tally::Differ => {
                self.doubt_since.get_or_insert(now);
                self.lasting_doubt(now, index)
            }
            Tally::Open => self.lasting_doubt(now, index),
        };
        match (self.divergence, verdict) {
            (Some(Divergence::Minority { .. }), _) => None,
            (Some(Divergence::NoMajority { .. }), Some(Divergence::NoMajority { .. })) => None,
            (before, after) => (before != after).then_some(after),
        }
    }

    fn lasting_doubt(&self, now: Nanos, index: u64) -> Option<Divergence> {
        let lasts = self.doubt_since.is_some_and(|since| now.since(since) >= DOUBT_NANOS)
            && !mutants::WITHOUT_A_MAJORITY_ALL_GO_ON.is_active();
        lasts.then_some(Divergence::NoMajority { index })
    }

    /// The checkpoint that others are to be asked about now, and this replica's digest there.
    pub(crate) fn take_question(&mut self, now: Nanos) -> Option<(u64, u64)> {
        let is_urgent = now.since(self.since) < ASK_OFTEN_FOR_NANOS || self.doubt_since.is_some();
        let pause_nanos = if is_urgent { ASK_NANOS } else { ASK_RARELY_NANOS };
        let newest = self.newest().filter(|_| !self.settled && now.since(self.asked_at) >= pause_nanos)?;
        self.asked_at = now;
        Some(newest)
    }

    /// True if a voter has not said what its state comes to there.
    pub(crate) fn has_not_heard(&self, voter: MemberId, index: u64) -> bool {
        self.reported(voter, index).is_none()
    }

    /// Asks the leader for a snapshot, and gives up for a while if none comes.
    pub(crate) fn ask_for_snapshot(&mut self, now: Nanos, node: &mut RawNode<LogStore>) {
        let pending = &mut node.raft.pending_request_snapshot;
        match self.snapshot_asked {
            Some(asked) if *pending != INVALID_INDEX => {
                if now.since(asked) >= SNAPSHOT_WAIT_NANOS {
                    *pending = INVALID_INDEX;
                    self.snapshot_given_up = Some(now);
                }
            }
            _ if self.snapshot_given_up.is_some_and(|at| now.since(at) < SNAPSHOT_PAUSE_NANOS) => {}
            // What `raft` refuses now (there is no leader, or it has not spoken yet) is asked again.
            _ => {
                if node.request_snapshot().is_ok() {
                    self.snapshot_asked = Some(now);
                }
            }
        }
    }

    /// A voter that is known to have another state than the majority.
    pub(crate) fn is_suspect(&self, voter: MemberId) -> bool {
        let Some((index, own)) = self.newest() else { return false };
        let Some(said) = self.reported(voter, index) else { return false };
        match self.divergence {
            // This replica is wrong itself, and so are those that agree with it.
            Some(Divergence::Minority { .. }) => said == own,
            _ => said != own,
        }
    }
}
