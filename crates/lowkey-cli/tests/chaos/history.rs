//! What the clients of a run asked, were told, believed and saw, by one clock.
//!
//! Nothing here judges. Times are readings of the clock that validity is counted by, in nanoseconds:
//! one process plays all clients, so that their beliefs can be compared.

use std::collections::BTreeMap;

use lowkey_api::v1::{AcquireLockResponse, GetLockResponse, LockHolder, WatchEvent};
use lowkey_api::{ApiError, Position};
use lowkey_core::{Holder, LeaseId, LockName, LockView, Mode, OwnerId, Scope, Token, Value, Waiter};
use lowkey_sim::judge::{PlainClaim, Violation};
use rustix::time::{ClockId, clock_gettime};

pub(crate) const MILLISECOND: u64 = 1_000_000;
pub(crate) const SECOND: u64 = 1_000 * MILLISECOND;
/// How late a single path is at most.
pub(crate) const PATH_DELAY_MAX_MS: u64 = 3_000;

/// Now, on the clock that also runs during suspend (R6).
pub(crate) fn now() -> u64 {
    let time = clock_gettime(ClockId::Boottime);
    u64::try_from(time.tv_sec).unwrap() * SECOND + u64::try_from(time.tv_nsec).unwrap()
}

/// What a client asked for.
#[derive(Clone, Debug)]
pub(crate) enum Asked {
    Lease,
    Acquire {
        claim: PlainClaim,
    },
    Release {
        lock: LockName,
        token: Token,
    },
    /// A release that names the acquire.
    GiveUp {
        lock: LockName,
        acquire: String,
    },
    Revoke {
        lease: LeaseId,
    },
    Renew {
        lease: LeaseId,
    },
    /// What a lease holds, after a renewal said that it is something else.
    Look {
        lease: LeaseId,
    },
    /// A release by somebody else than the holder.
    ForceRelease {
        lock: LockName,
        token: Token,
    },
    /// The end of a lease by somebody else than its owner.
    ForceRevoke {
        lease: LeaseId,
    },
    /// A command under `lowkey run`.
    Run {
        lock: LockName,
    },
    Get {
        lock: LockName,
        stale: bool,
    },
    List {
        prefix: String,
        stale: bool,
    },
}

impl Asked {
    /// What the table calls it.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::Lease => "create lease",
            Self::Acquire { .. } => "acquire",
            Self::Release { .. } => "release",
            Self::GiveUp { .. } => "give up",
            Self::Revoke { .. } => "revoke",
            Self::Renew { .. } => "renew",
            Self::Look { .. } => "look at a lease",
            Self::ForceRelease { .. } => "release by force",
            Self::ForceRevoke { .. } => "revoke by force",
            Self::Run { .. } => "lowkey run",
            Self::Get { stale: false, .. } => "get",
            Self::Get { stale: true, .. } => "get, stale",
            Self::List { stale: false, .. } => "list",
            Self::List { stale: true, .. } => "list, stale",
        }
    }

    pub(crate) fn lock(&self) -> Option<&LockName> {
        match self {
            Self::Acquire { claim } => Some(&claim.lock),
            Self::Release { lock, .. }
            | Self::GiveUp { lock, .. }
            | Self::ForceRelease { lock, .. }
            | Self::Run { lock }
            | Self::Get { lock, .. } => Some(lock),
            _ => None,
        }
    }
}

/// A good answer.
#[derive(Clone, Debug)]
pub(crate) enum Answer {
    Granted {
        token: Token,
        lease: LeaseId,
        revision: u64,
        waited_ms: u64,
    },
    Lock {
        view: LockView,
        revision: u64,
    },
    Locks {
        views: Vec<LockView>,
        revision: u64,
    },
    /// It was done, and there is nothing more to say.
    Done,
}

/// What came of a call.
#[derive(Clone, Debug)]
pub(crate) enum Outcome {
    Yes(Answer),
    No(ApiError),
    /// No answer that says what was done, for as long as the client cared.
    Unknown(String),
}

/// One call, with all its attempts.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) owner: String,
    /// Empty for what takes none.
    pub(crate) request: String,
    pub(crate) asked: Asked,
    /// Before the first attempt was sent.
    pub(crate) invoked: u64,
    pub(crate) ended: u64,
    pub(crate) outcome: Outcome,
    /// A request that had been answered was sent once more.
    pub(crate) again: bool,
    /// Until when the client counted on its lease when the answer came.
    pub(crate) counted_on_until: Option<u64>,
}

impl Call {
    /// A call that ended just now, of a client that counts on no lease.
    pub(crate) fn ended_now(
        owner: impl Into<String>,
        request: impl Into<String>,
        asked: Asked,
        invoked: u64,
        outcome: Outcome,
    ) -> Self {
        let (owner, request, ended) = (owner.into(), request.into(), now());
        Self { owner, request, asked, invoked, ended, outcome, again: false, counted_on_until: None }
    }
}

/// A time in which a client could act as holder.
#[derive(Clone, Debug)]
pub(crate) struct Belief {
    pub(crate) owner: String,
    pub(crate) claim: PlainClaim,
    pub(crate) token: Token,
    pub(crate) from: u64,
    pub(crate) until: u64,
    /// How often it renewed and said what it holds, if it did so all the time: such a client must notice
    /// a release by force.
    pub(crate) renews_every: Option<u64>,
}

/// An acknowledged renewal that said what the client holds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Renewal {
    pub(crate) sent: u64,
    /// Not later than this.
    pub(crate) acknowledged: u64,
}

/// A client has no guard any more for what a request was, or will be, granted; its session lives on.
#[derive(Clone, Debug)]
pub(crate) struct LetGo {
    pub(crate) owner: String,
    pub(crate) lease: LeaseId,
    pub(crate) request: String,
    pub(crate) at: u64,
}

/// A write that was refused though the writer believed.
#[derive(Clone, Debug)]
pub(crate) struct Refused {
    pub(crate) at: u64,
    pub(crate) token: Token,
    pub(crate) violation: Violation,
}

/// A line that something below `lowkey run` wrote to a file, where every line is added to the end.
#[derive(Clone, Debug)]
pub(crate) struct Line {
    pub(crate) token: Token,
    /// Just before it was written.
    pub(crate) at: u64,
}

/// What was written under a lock of `lowkey run`, in the order of the file.
#[derive(Clone, Debug)]
pub(crate) struct Written {
    pub(crate) lock: LockName,
    pub(crate) ttl_nanos: u64,
    pub(crate) lines: Vec<Line>,
}

/// What one watcher saw, over all its streams.
#[derive(Clone, Debug, Default)]
pub(crate) struct Watched {
    pub(crate) prefix: String,
    /// When, and what; signs of life are left out.
    pub(crate) events: Vec<(u64, WatchEvent)>,
    /// Streams that it had.
    pub(crate) streams: u64,
    pub(crate) compacted: u64,
}

/// What an observer of the election was told.
#[derive(Clone, Debug)]
pub(crate) struct Observed {
    pub(crate) observer: usize,
    pub(crate) leader: Option<(OwnerId, Token, Value)>,
    pub(crate) revision: u64,
}

/// A node's state when all was quiet.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Final {
    pub(crate) node: String,
    pub(crate) revision: u64,
    pub(crate) locks: Vec<LockView>,
    /// Leases, locks, waiters and the token counter, as the node counts them.
    pub(crate) counts: (i32, i32, i32, u64),
}

#[derive(Clone, Debug, Default)]
pub(crate) struct History {
    pub(crate) calls: Vec<Call>,
    pub(crate) beliefs: Vec<Belief>,
    pub(crate) watched: Vec<Watched>,
    pub(crate) observed: Vec<Observed>,
    pub(crate) finals: Vec<Final>,
    /// The election's name: what the observers watch.
    pub(crate) election: Option<LockName>,
    /// What was found while it happened, and when.
    pub(crate) found: Vec<(u64, Violation)>,
    pub(crate) writes: BTreeMap<&'static str, u64>,
    /// By lease, in the order of time.
    pub(crate) renewals: BTreeMap<LeaseId, Vec<Renewal>>,
    pub(crate) let_go: Vec<LetGo>,
    pub(crate) refused: Vec<Refused>,
    pub(crate) written: Vec<Written>,
    /// When a `lowkey run` of a lock stood still.
    pub(crate) stopped: Vec<(LockName, u64, u64)>,
    /// What was done to `lowkey run`.
    pub(crate) harmed: BTreeMap<&'static str, u64>,
    /// Neither nodes nor paths were broken: what is due at a time is done by then.
    pub(crate) is_calm: bool,
}

pub(crate) fn lock_name(text: &str) -> LockName {
    LockName::parse(text).unwrap_or_else(|_| panic!("{text:?} is a lock name"))
}

pub(crate) fn mode(number: i32) -> Mode {
    if number == lowkey_api::v1::Mode::Shared as i32 { Mode::Shared } else { Mode::Exclusive }
}

pub(crate) fn scope(number: i32) -> Scope {
    if number == lowkey_api::v1::Scope::Subtree as i32 { Scope::Subtree } else { Scope::Name }
}

pub(crate) fn owner(text: &str) -> OwnerId {
    OwnerId::parse(text).unwrap_or_else(|_| panic!("{text:?} is an owner"))
}

pub(crate) fn value(text: &str) -> Value {
    Value::parse(text).unwrap_or_else(|_| panic!("{text:?} is a value"))
}

pub(crate) fn position(event: &WatchEvent) -> Position {
    Position { revision: event.revision, ordinal: event.ordinal }
}

pub(crate) fn granted(response: &AcquireLockResponse) -> Answer {
    Answer::Granted {
        token: Token(response.fencing_token),
        lease: LeaseId(response.lease_id),
        revision: response.revision,
        waited_ms: u64::try_from(response.waited_ms).unwrap_or(u64::MAX),
    }
}

fn holder(told: &LockHolder) -> Holder {
    Holder {
        owner: owner(&told.owner_id),
        lease: LeaseId(told.lease_id),
        token: Token(told.fencing_token),
        mode: mode(told.mode),
        scope: scope(told.scope),
        value: value(&told.value),
        since_unix_ms: 0,
        max_hold: None,
    }
}

/// What a read says of a lock, without what is for display only.
pub(crate) fn view(told: &GetLockResponse) -> LockView {
    let waiters = told.waiters.iter().map(|waiter| Waiter {
        owner: owner(&waiter.owner_id),
        lease: LeaseId(waiter.lease_id),
        mode: mode(waiter.mode),
        scope: scope(waiter.scope),
        asked_unix_ms: 0,
    });
    LockView {
        lock: lock_name(&told.lock_name),
        holders: told.holders.iter().map(holder).collect(),
        holder_count: told.holder_count as usize,
        waiters: waiters.collect(),
        waiter_count: told.waiter_count as usize,
        covered_by: None,
    }
}
