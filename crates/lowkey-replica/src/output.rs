//! What a replica wants done: messages to send, records to persist, answers to give.

use std::sync::Arc;

use lowkey_core::{
    Access, BackupSchedule, Change, Denied, EndedGrant, GrantView, Holder, InTheWay, LeaseId, LeaseView,
    LockName, LockView, MemberId, NodeName, Refusal, Reply, Ttl, WaitView,
};
use lowkey_record::Record;
use raft::eraftpb;

use crate::guard::Report;
use crate::input::CallId;
use crate::reads::Remaining;
use crate::snapshots::SnapshotJob;

/// The first half of a turn.
#[derive(Debug)]
pub struct Turn {
    /// To be carried out now, before anything is persisted.
    pub output: Output,
    /// To be on disk before [`crate::Replica::end_turn`] is called.
    pub persist: Persist,
}

/// What may be carried out as it stands.
#[derive(Debug, Default)]
pub struct Output {
    /// Messages for other replicas, in order. One that names a snapshot is for the sender to complete
    /// with the file of that index; then [`crate::Input::SnapshotSent`], once for each.
    pub messages: Vec<eraftpb::Message>,
    /// What this replica says of its state; a report that is lost is no harm.
    pub reports: Vec<Report>,
    /// Answers to callers; each caller gets one.
    pub replies: Vec<(CallId, Result<Response, Failure>)>,
    /// A snapshot to make and to write, at leisure; then [`crate::Input::SnapshotSaved`] or
    /// [`crate::Input::SnapshotFailed`].
    pub snapshot: Option<SnapshotJob>,
    /// What was applied, in order: for watches. Every revision is here, most with no change.
    pub changes: Vec<(u64, Vec<Change>)>,
    /// Grants that are over, in order: the revision and the term in which each ended. For those who ask later.
    pub ended: Vec<(u64, u64, Box<EndedGrant>)>,
    /// So many renewals came late: more than two thirds of the time to live after the one before.
    pub late_renewals: u64,
    /// A snapshot of this index came from the leader: what happened up to it will never be known here.
    pub history_lost: Option<u64>,
}

impl Output {
    pub(crate) fn reply(&mut self, call: CallId, answer: Result<Response, Failure>) {
        self.replies.push((call, answer));
    }

    /// True if there is nothing to carry out.
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
            && self.reports.is_empty()
            && self.replies.is_empty()
            && self.snapshot.is_none()
            && self.changes.is_empty()
            && self.ended.is_empty()
            && self.late_renewals == 0
            && self.history_lost.is_none()
    }
}

/// What must be on disk before the turn ends, in this order: the snapshot, then the records, in one
/// batch, synced.
#[derive(Debug, Default)]
pub struct Persist {
    /// A snapshot that came from the leader and replaces the log before it.
    pub snapshot: Option<SnapshotFile>,
    /// Records for the log.
    pub records: Vec<Record>,
}

impl Persist {
    /// True if nothing has to reach the disk.
    pub fn is_empty(&self) -> bool {
        self.snapshot.is_none() && self.records.is_empty()
    }
}

/// A snapshot and its index.
#[derive(Clone, Debug, PartialEq)]
pub struct SnapshotFile {
    /// The index of the last entry that it covers.
    pub index: u64,
    /// The file's payload.
    pub payload: Vec<u8>,
}

/// What became of a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewal {
    /// The lease lives on.
    Renewed(Ttl),
    /// R4: its end was proposed. Who asks for this lease alone learns the outcome when the entry is applied.
    Expiring,
    /// There is no such lease.
    Gone,
}

/// A good answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Response {
    /// The command was applied, or had been before under the same request id.
    Applied(Reply),
    /// The lease lives on.
    Renewed {
        /// Its time to live.
        ttl: Ttl,
        /// It holds something else than its client believes.
        holds_differ: bool,
    },
    /// What came of each of many renewals, and whether its lease holds something else than its client believes.
    RenewedMany(Vec<(Renewal, bool)>),
    /// A wait was granted.
    GrantedAfter {
        /// The grant.
        reply: Reply,
        /// R7: how long it waited, as far as this leader knows; never too long.
        waited_ms: u64,
    },
    /// A lock.
    Lock {
        /// Who holds it, and who waits for it.
        lock: LockView,
        /// The time left of its holders' leases.
        remaining: Remaining,
        /// The revision as of which this is true.
        revision: u64,
    },
    /// Some locks, by name.
    Locks {
        /// The locks.
        locks: Vec<LockView>,
        /// There are more behind the last.
        more: bool,
        /// The time left of their holders' leases.
        remaining: Remaining,
        /// The revision as of which this is true.
        revision: u64,
    },
    /// A lease.
    Lease {
        /// Which.
        lease: LeaseView,
        /// What it holds, by name.
        grants: Vec<GrantView>,
        /// There are more grants behind the last.
        more: bool,
        /// What it waits for, by name.
        waits: Vec<WaitView>,
        /// Its time left.
        remaining: Remaining,
        /// The revision as of which this is true.
        revision: u64,
    },
    /// Some leases, by id.
    Leases {
        /// The leases.
        leases: Vec<LeaseView>,
        /// Where to go on, if there may be more.
        next: Option<LeaseId>,
        /// Their time left.
        remaining: Remaining,
        /// The revision as of which this is true.
        revision: u64,
    },
    /// Whether a token is current.
    Token {
        /// Who holds the lock with it.
        current: Option<Holder>,
        /// Who else holds the lock.
        other: Option<Holder>,
        /// The time left of that holder's lease.
        remaining: Remaining,
        /// The revision as of which this is true.
        revision: u64,
    },
    /// How far the log has been applied.
    Revision(u64),
    /// Who may do what.
    Access(Arc<Access>),
    /// What the cluster says of its backups; nothing if the flags of its nodes decide.
    BackupSchedule(Option<Arc<BackupSchedule>>),
    /// This member leads.
    Leads {
        /// Which.
        member: MemberId,
    },
}

/// Why there is no good answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Failure {
    /// The state machine refused.
    Refused(Refusal),
    /// This replica does not lead, or not any more; nothing was done.
    NotLeader {
        /// Who does, if that is known.
        leader: Option<MemberId>,
    },
    /// This replica does not lead any more, and the caller's place in a queue is for the new leader to
    /// keep: ask there, with the same request id.
    Interrupted {
        /// Who leads, if that is known.
        leader: Option<MemberId>,
    },
    /// R10: the wait's time ran out, and its place is gone.
    WaitTimeout {
        /// The lock that was waited for.
        lock: LockName,
        /// Who was in the way.
        in_the_way: Option<InTheWay>,
    },
    /// The wait was given up by a release that named its request.
    WaitGivenUp {
        /// The lock that was waited for.
        lock: LockName,
    },
    /// It was proposed, and what became of it is not known here: it may happen yet.
    OutcomeUnknown,
    /// Too much is waiting to be committed; nothing was done.
    Busy,
    /// The lease has as many operations under way as it may; nothing was done.
    TooManyInFlight {
        /// Which.
        lease: LeaseId,
    },
    /// There are as many leases as there may be; nothing was done.
    TooManyLeases {
        /// How many that is.
        leases_max: usize,
    },
    /// The leader's disk is full; nothing was done.
    DiskFull,
    /// The cluster began anew and grants nothing for a while; nothing was done.
    Quarantine {
        /// For how much longer at most, if this leader stays; 0 if it is about to end.
        left_ms: u64,
    },
    /// Not every member understands the command yet: an upgrade is under way. Nothing was done.
    NotUnderstood {
        /// A member that does not.
        by: NodeName,
    },
    /// The node understands less than all members do, who may use that already. Nothing was done.
    NodeTooOld {
        /// The command set that it understands.
        speaks: u32,
        /// The one that it has to.
        needs: u32,
    },
    /// The invitation's time is over, by this leader's wall clock; nothing was done.
    InvitationExpired,
    /// The cluster has as many members as it may; nothing was done.
    TooManyMembers,
    /// Of the voters that a removal would leave behind no majority answers; nothing was done.
    QuorumAtRisk {
        /// How many of them answer.
        answering: usize,
        /// How many there would be.
        voters: usize,
    },
    /// The states of the replicas differ, and this one does not serve; nothing was done.
    Diverged,
    /// The caller may not; nothing was done.
    Denied(Denied),
    /// The node did not take over the lead, or could not.
    CannotLead {
        /// Its name.
        name: NodeName,
        /// Why.
        why: CannotLead,
    },
}

/// Why a node does not take over the lead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CannotLead {
    /// It does not vote (yet).
    NoVoter,
    /// It does not answer.
    Silent,
    /// It lacks too many entries.
    Behind {
        /// How many.
        entries: u64,
    },
    /// It was asked, and did not take over in time; it may yet.
    NotInTime,
}
