//! What is kept of a grant that is over, and what is not known.

use lowkey_core::{EndedGrant, Mode, Scope, Silence};

/// Where a grant ended: the entry of the log, and which of the grants that it ended, from 0. Equal on all nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Position {
    /// The entry of the log.
    pub revision: u64,
    /// Which of the grants that it ended.
    pub ordinal: u32,
}

impl Position {
    /// Behind everything that ended at a revision.
    pub const fn end_of(revision: u64) -> Self {
        Self { revision, ordinal: u32::MAX }
    }
}

/// Why a grant ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Cause {
    /// The holder gave it back.
    Released,
    /// The holder's lease ran out.
    Expired,
    /// The holder's lease was revoked.
    Revoked,
    /// The holder held it for longer than it had asked to.
    HeldTooLong,
    /// The cluster was recovered after it lost its quorum, and nothing of what was held was carried over.
    ClusterRecovered,
}

impl Cause {
    /// Every cause.
    pub const ALL: [Self; 5] =
        [Self::Released, Self::Expired, Self::Revoked, Self::HeldTooLong, Self::ClusterRecovered];

    /// Its name in files, in the API and in output.
    pub fn name(self) -> &'static str {
        match self {
            Self::Released => "released",
            Self::Expired => "expired",
            Self::Revoked => "revoked",
            Self::HeldTooLong => "held_too_long",
            Self::ClusterRecovered => "cluster_recovered",
        }
    }

    /// The cause of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|cause| cause.name() == name)
    }
}

impl From<lowkey_core::Cause> for Cause {
    fn from(cause: lowkey_core::Cause) -> Self {
        match cause {
            lowkey_core::Cause::Released => Self::Released,
            lowkey_core::Cause::Revoked => Self::Revoked,
            lowkey_core::Cause::Expired => Self::Expired,
            lowkey_core::Cause::HeldTooLong => Self::HeldTooLong,
        }
    }
}

/// One grant that is over. Times are wall clocks of the leaders that proposed: shown as they were told, and nothing is
/// ordered by them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The cluster, as an id.
    pub cluster: String,
    /// What was held.
    pub lock: String,
    /// The fencing token.
    pub token: u64,
    /// The holder's name for itself.
    pub owner: String,
    /// The lease that it hung on.
    pub lease: u64,
    /// It was held together with others.
    pub is_shared: bool,
    /// It covered all names below, too.
    pub is_subtree: bool,
    /// The lease's time to live.
    pub ttl_seconds: i64,
    /// When it was asked for, if that is known.
    pub asked_unix_ms: Option<u64>,
    /// When it was granted.
    pub granted_unix_ms: u64,
    /// The revision at which it was granted.
    pub granted_revision: u64,
    /// When it ended; nothing if that is not known.
    pub ended_unix_ms: Option<u64>,
    /// Where it ended.
    pub ended: Position,
    /// The term of the entry that ended it.
    pub term: u64,
    /// Why it ended.
    pub cause: Cause,
    /// Who ended it, if somebody else than its owner said that it did.
    pub actor: Option<String>,
    /// What the leader knew of the lease that ran out.
    pub silence: Option<Silence>,
    /// It was written when the cluster was recovered, from a log whose end may never have been committed.
    pub is_perhaps_uncommitted: bool,
}

impl Row {
    /// The row of a grant that ended.
    pub fn new(cluster: &str, ended: EndedGrant, position: Position, term: u64) -> Self {
        let known = |unix_ms: u64| (unix_ms != 0).then_some(unix_ms);
        Self {
            cluster: cluster.to_owned(),
            lock: ended.lock.as_str().to_owned(),
            token: ended.token.0,
            owner: ended.owner.as_str().to_owned(),
            lease: ended.lease.0,
            is_shared: ended.mode == Mode::Shared,
            is_subtree: ended.scope == Scope::Subtree,
            ttl_seconds: ended.ttl.seconds(),
            asked_unix_ms: known(ended.asked_unix_ms),
            granted_unix_ms: ended.granted_unix_ms,
            granted_revision: ended.granted_revision,
            ended_unix_ms: known(ended.ended_unix_ms),
            ended: position,
            term,
            cause: ended.cause.into(),
            actor: ended.actor.map(|actor| actor.as_str().to_owned()),
            silence: ended.silence,
            is_perhaps_uncommitted: false,
        }
    }

    /// How long it was waited for, by the clocks that were told.
    pub fn waited_ms(&self) -> Option<u64> {
        self.asked_unix_ms.map(|asked| self.granted_unix_ms.saturating_sub(asked))
    }

    /// What a person wants to know of how it ended.
    pub fn detail(&self) -> String {
        let mut parts = Vec::new();
        if let Some(Silence { silent_ms, stalled_ms, leader_changed }) = self.silence {
            parts.push(match leader_changed {
                false => format!("last renewal {} s before, no leader change", seconds(silent_ms)),
                true => format!("not renewed for {} s since the leader changed", seconds(silent_ms)),
            });
            if stalled_ms > 0 {
                parts.push(format!("{} s were given back for the leader's own stall", seconds(stalled_ms)));
            }
        }
        if let Some(actor) = &self.actor {
            parts.push(format!("by {actor}"));
        }
        if self.is_perhaps_uncommitted {
            parts.push("perhaps uncommitted: from the log of the one node that was left".into());
        }
        parts.join("; ")
    }
}

/// Milliseconds as seconds, with two digits behind the point.
fn seconds(ms: u64) -> String {
    format!("{}.{:02}", ms / 1000, ms % 1000 / 10)
}

/// What is not known: nothing was recorded of what ended in these revisions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gap {
    /// It begins behind this revision.
    pub after: u64,
    /// And goes through this one.
    pub through: u64,
    /// Why.
    pub cause: GapCause,
}

/// Why something is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GapCause {
    /// A snapshot of the leader took the place of what happened.
    Snapshot,
    /// The recorder could not keep up, or could not write.
    Lost,
    /// The node ran without recording, or a snapshot was saved before its rows were.
    Unrecorded,
    /// Files were deleted by somebody, or are damaged.
    Deleted,
    /// The files were too old, or too many.
    Retention,
}

impl GapCause {
    const ALL: [Self; 5] = [Self::Snapshot, Self::Lost, Self::Unrecorded, Self::Deleted, Self::Retention];

    /// Its name in files and in the API.
    pub fn name(self) -> &'static str {
        match self {
            Self::Snapshot => "snapshot",
            Self::Lost => "lost",
            Self::Unrecorded => "unrecorded",
            Self::Deleted => "deleted",
            Self::Retention => "retention",
        }
    }

    /// The cause of this name; what a later version wrote counts as lost.
    pub fn named(name: &str) -> Self {
        Self::ALL.into_iter().find(|cause| cause.name() == name).unwrap_or(Self::Lost)
    }
}

/// Something that happened to the cluster, as this node saw it: no two nodes need to have the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Happening {
    /// This node's wall clock.
    pub unix_ms: u64,
    /// What it was.
    pub kind: HappeningKind,
    /// The term then.
    pub term: u64,
    /// In words: the node that leads, that joined, that left; or what was refused.
    pub what: String,
    /// How often, where many are one.
    pub count: u64,
}

/// What happened to a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HappeningKind {
    /// A node leads.
    Leader,
    /// A node joined.
    Joined,
    /// A node was removed.
    Removed,
    /// Calls were refused because their callers may not do that.
    Refused,
}

impl HappeningKind {
    const ALL: [Self; 4] = [Self::Leader, Self::Joined, Self::Removed, Self::Refused];

    /// Its name in files and in the API.
    pub fn name(self) -> &'static str {
        match self {
            Self::Leader => "leader",
            Self::Joined => "joined",
            Self::Removed => "removed",
            Self::Refused => "refused",
        }
    }

    /// The kind of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}
