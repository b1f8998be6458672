//! What a machine keeps of grants that are over: a model of the server's recorder.
//!
//! As there: what is applied goes into a queue that a crash empties. Every few ticks it is written, which a kill does not
//! undo. Only a sync has it survive a loss of power. Each file knows through which revision it has everything; what comes
//! behind a hole declares it. The rule by which a snapshot waits is the real one, `may_save_snapshot`.

use std::collections::BTreeMap;

use lowkey_core::EndedGrant;

/// It writes every so many ticks.
const TICKS_PER_WRITE: u32 = 5;

/// Where a grant ended: the revision, and which of the grants that it ended.
pub(crate) type EndedAt = (u64, u32);

/// A grant that is over, and the term in which it ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AuditRow {
    pub(crate) term: u64,
    pub(crate) ended: EndedGrant,
}

/// What was applied and is not written yet.
#[derive(Debug, Default)]
pub(crate) struct AuditQueue {
    batches: Vec<Batch>,
    pub(crate) wants_sync: bool,
    ticks: u32,
}

#[derive(Debug)]
struct Batch {
    after: u64,
    through: u64,
    ended: Vec<(u64, u64, Box<EndedGrant>)>,
}

impl AuditQueue {
    pub(crate) fn applied(&mut self, after: u64, through: u64, ended: Vec<(u64, u64, Box<EndedGrant>)>) {
        self.batches.push(Batch { after, through, ended });
    }

    /// A snapshot took the place of what led to it.
    pub(crate) fn reset(&mut self, index: u64) {
        self.applied(index, index, Vec::new());
    }

    /// Counts a tick; true if it is time to write.
    pub(crate) fn ticks(&mut self) -> bool {
        self.ticks += 1;
        self.ticks.is_multiple_of(TICKS_PER_WRITE)
    }
}

/// What is in the files of a machine.
#[derive(Debug, Default)]
pub(crate) struct SimAudit {
    rows: BTreeMap<EndedAt, AuditRow>,
    /// Behind the first revision, through the second.
    gaps: Vec<(u64, u64)>,
    /// Everything through this revision is here, or in a gap.
    through: u64,
    /// Everything through this revision survives a loss of power.
    durable: u64,
    /// Where the first file begins, once there is one.
    first: Option<u64>,
    /// Snapshots of the leader that were put on disk: what led to them is rightly not here.
    installed: u64,
    /// The machine's state was tampered with: what it recorded since is worth nothing.
    pub(crate) is_tainted: bool,
}

impl SimAudit {
    /// A process starts with a state of this revision. Gives what would be a hole that nothing explains.
    pub(crate) fn begin(&mut self, revision: u64) -> Option<(u64, u64)> {
        let first = *self.first.get_or_insert(revision);
        self.through = self.through.max(first);
        let hole = (self.through, revision);
        if self.through >= revision {
            return None;
        }
        self.gaps.push(hole);
        self.through = revision;
        (revision > self.installed).then_some(hole)
    }

    /// A snapshot of the leader is on disk.
    pub(crate) fn installed(&mut self, index: u64) {
        self.installed = self.installed.max(index);
    }

    /// Writes what is in the queue, and syncs if somebody waits for that.
    pub(crate) fn write(&mut self, queue: &mut AuditQueue) {
        for Batch { after, through, ended } in queue.batches.drain(..) {
            if self.through < after {
                self.gaps.push((self.through, after));
                self.through = after;
            }
            let mut at = (0, 0);
            for (revision, term, ended) in ended {
                at = if at.0 == revision { (revision, at.1 + 1) } else { (revision, 0) };
                if revision > self.through {
                    self.rows.insert(at, AuditRow { term, ended: *ended });
                }
            }
            self.through = self.through.max(through);
        }
        if std::mem::take(&mut queue.wants_sync) {
            self.durable = self.through;
        }
    }

    pub(crate) fn durable(&self) -> u64 {
        self.durable
    }

    /// What a loss of power leaves.
    pub(crate) fn lose_power(&mut self) {
        let durable = self.durable;
        self.rows.retain(|at, _| at.0 <= durable);
        self.gaps.retain(|gap| gap.1 <= durable);
        self.through = self.through.min(durable);
    }

    pub(crate) fn rows(&self) -> &BTreeMap<EndedAt, AuditRow> {
        &self.rows
    }

    /// True if it says itself that it does not know what ended at this revision.
    pub(crate) fn is_in_gap(&self, revision: u64) -> bool {
        self.gaps.iter().any(|(after, through)| (after + 1..=*through).contains(&revision))
    }

    pub(crate) fn through(&self) -> u64 {
        self.through
    }
}
