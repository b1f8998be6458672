//! The replicated state, and the one function that changes it.
//!
//! Every command is first *checked*: [`State::check`] says what would be refused, and reads only. A
//! leader uses it to refuse without a log entry; `apply` uses the same check, so that the two can
//! never disagree. What passes the check cannot fail any more: it is carried out.
//!
//! Time is absent (R5). A lease exists until an entry ends it; that its time ran out, or that of a wait,
//! is decided by the leader and comes in as [`Command::Expire`] or [`Command::CancelWait`].
//!
//! - `check.rs`: what is refused, and what is known already
//! - `parts.rs`: how leases, grants, waits and members come, change and go, with the digest of them all
//! - `effects.rs`: what commands do
//! - `beginning.rs`: the first state of a cluster that is recovered after it lost its quorum for good
//! - `waiting.rs`: conflicts, queues, and how a freed lock is handed over

mod beginning;
mod check;
mod effects;
mod mutated;
mod parts;
mod read;
mod waiting;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::access::Access;
use crate::claim::{Claim, Mode, Scope, WaitClaims};
use crate::command::{Applied, ChangeKind, Command, Event, NodeInfo};
use crate::digest::Digest;
use crate::epoch::Epoch;
use crate::groups::Place;
use crate::held::HeldLocks;
use crate::holders::Holders;
use crate::invitation::Invitations;
use crate::mutants;
use crate::name::{
    ClusterId, LeaseId, LockName, MaxHold, MemberId, OwnerId, RequestId, Ticket, Token, Ttl, Value,
};
use crate::paths::Paths;
use crate::recent::Recent;
use crate::schedule::BackupSchedule;

pub(crate) use self::check::Claimed;

pub use self::beginning::{CountersSpent, FirstMembers, FirstNumbers, NewBeginning};
pub use self::read::{GrantView, LeaseView, LockView, WaitView};

/// Everything that the replicas of a group agree on.
///
/// Invariants:
/// - A lock is in `locks` exactly while it is held or waited for, by leases in `leases` that list it.
/// - A waiter has a rival: a holder, or an earlier waiter. Nobody waits for nothing.
/// - No two holders are rivals.
/// - A lease has, or awaits, a name in one mode and scope only; where it has a limit, once only.
/// - `limited` has exactly the grants that have a limit.
/// - The request of a wait is remembered nowhere yet.
/// - No two grants ever have the same token; a later grant has the higher one.
/// - `digest` is that of all leases, grants, waits, members, invitations and principals, and of the schedule of backups.
/// - The key of a member never changes, and an invitation lets in one node.
/// - No lease id and no member id is ever given twice.
/// - In quarantine nothing is held or waited for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    pub(crate) cluster: ClusterId,
    /// The index of the last entry that was applied; the revision of the state.
    pub(crate) revision: u64,
    pub(crate) last_token: Token,     // >= every token ever granted
    pub(crate) last_lease: LeaseId,   // >= every lease ever made
    pub(crate) last_member: MemberId, // >= every member ever registered
    // Boxed, both: a tree is little more than half full where keys rise, and an empty place should not cost much.
    pub(crate) leases: BTreeMap<LeaseId, Box<Lease>>,
    pub(crate) locks: BTreeMap<LockName, Box<LockState>>,
    /// Every wait, first come first.
    pub(crate) waits: BTreeMap<Ticket, Wait>,
    /// Grants that are held for a limited time.
    pub(crate) limited: BTreeMap<Token, (LockName, LeaseId)>,
    /// Waits whose requests make their own lease, by request: they are the owner's, not a lease's.
    pub(crate) lease_making_waits: BTreeMap<(OwnerId, RequestId), Ticket>,
    /// Locks that somebody waits for.
    pub(crate) queued: BTreeSet<LockName>,
    /// All holds and waits, by path.
    pub(crate) paths: Paths,
    // Shared: members are told in many places all the time, and hardly ever change.
    pub(crate) members: BTreeMap<MemberId, Arc<NodeInfo>>,
    /// Requests that made or ended a lease, or released what they know by its owner alone, and so cannot be
    /// remembered by one.
    pub(crate) lease_requests: Recent<(OwnerId, RequestId)>,
    /// How new nodes come in: see `invitation.rs`.
    pub(crate) invitations: Invitations,
    /// Who may do what: see `access.rs`.
    pub(crate) access: Arc<Access>,
    pub(crate) digest: Digest,
    /// Nothing is granted: the cluster began anew, and holders of before may still believe.
    pub(crate) quarantine: bool,
    /// Where the counters began, if an epoch was claimed for that. It never changes.
    pub(crate) epoch: Option<Epoch>,
    /// Where the group stands among others; nothing if it is the only one. See `groups.rs`.
    pub(crate) place: Option<Box<Place>>,
    /// What the cluster says of its backups: see `schedule.rs`.
    pub(crate) backup_schedule: Option<Arc<BackupSchedule>>,
}

/// A client's presence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lease {
    /// Whom it belongs to.
    pub owner: OwnerId,
    /// How long it lives without renewal.
    pub ttl: Ttl,
    /// R7: made by a wait that is not granted yet; its time has not begun.
    pub is_waiting: bool,
    pub(crate) held: HeldLocks,
    /// Nothing for most leases.
    pub(crate) waits: Option<Box<LeaseWaits>>,
    pub(crate) requests: Recent<RequestId>,
}

/// What one lease waits for.
///
/// Invariant: both have the same tickets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LeaseWaits {
    pub(crate) by_lock: BTreeSet<(LockName, Ticket)>,
    pub(crate) by_request: BTreeMap<RequestId, Ticket>,
}

impl Lease {
    pub(crate) fn new(owner: OwnerId, ttl: Ttl) -> Self {
        Self {
            owner,
            ttl,
            is_waiting: false,
            held: HeldLocks::default(),
            waits: None,
            requests: Recent::default(),
        }
    }

    /// How many locks hang on it, or are to.
    pub(crate) fn lock_count(&self) -> usize {
        self.held.len() + self.waits.as_ref().map_or(0, |waits| waits.by_lock.len())
    }

    /// Its waits for one lock, first come first.
    pub(crate) fn waits_for(&self, lock: &LockName) -> impl Iterator<Item = Ticket> {
        let from = (lock.clone(), Ticket(0));
        let by_lock = self.waits.as_ref().map(|waits| &waits.by_lock);
        let of_lock = move |(name, _): &&(LockName, Ticket)| *name == from.0;
        let lock = lock.clone();
        by_lock
            .into_iter()
            .flat_map(move |waits| waits.range((lock.clone(), Ticket(0))..))
            .take_while(of_lock)
            .map(|(_, ticket)| *ticket)
    }
}

/// A name that is held or waited for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LockState {
    pub(crate) holders: Holders,
    /// Nothing for most locks.
    pub(crate) queue: Option<Box<WaitClaims>>,
}

/// A place in a lock's queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Wait {
    pub(crate) lock: LockName,
    pub(crate) lease: LeaseId,
    pub(crate) mode: Mode,
    pub(crate) scope: Scope,
    pub(crate) value: Value,
    pub(crate) request: RequestId,
    /// The proposer's wall clock when it began, for display only; 0 if it is not known.
    pub(crate) asked_unix_ms: u64,
    /// Tells a retry from another operation under the same id.
    pub(crate) fingerprint: u64,
    /// The request makes its own lease.
    pub(crate) makes_lease: bool,
    /// For how long the lock is to be held at most.
    pub(crate) max_hold: Option<MaxHold>,
}

impl Wait {
    pub(crate) fn claim(&self) -> Claim {
        Claim { lock: self.lock.clone(), lease: Some(self.lease), mode: self.mode, scope: self.scope }
    }
}

impl State {
    /// The state of a cluster in which nothing has happened yet.
    pub fn new(cluster: ClusterId) -> Self {
        Self {
            cluster,
            revision: 0,
            last_token: Token(0),
            last_lease: LeaseId(0),
            last_member: MemberId(0),
            leases: BTreeMap::new(),
            locks: BTreeMap::new(),
            waits: BTreeMap::new(),
            limited: BTreeMap::new(),
            lease_making_waits: BTreeMap::new(),
            queued: BTreeSet::new(),
            paths: Paths::default(),
            members: BTreeMap::new(),
            lease_requests: Recent::default(),
            invitations: Invitations::new(),
            access: Arc::default(),
            digest: Digest::default(),
            quarantine: false,
            epoch: None,
            place: None,
            backup_schedule: None,
        }
    }

    /// Carries out one committed entry of the log, at its index and in its term.
    ///
    /// # Panics
    /// If the entry is not later than all that were applied: a replica that replays out of order
    /// must stop.
    pub fn apply(&mut self, revision: u64, term: u64, command: &Command) -> Applied {
        self.advance(revision);
        match self.check(command) {
            Err(refusal) => Applied { reply: Err(refusal), events: Vec::new(), born: None },
            Ok(Some(reply)) => Applied { reply: Ok(reply), events: Vec::new(), born: None },
            Ok(None) => {
                if let Command::Groups(change) = command {
                    let (reply, born) = self.change_groups(change);
                    return Applied { reply: Ok(reply), events: Vec::new(), born };
                }
                let mut events = Vec::new();
                let reply = self.carry_out(term, command, &mut events);
                sign(&mut events, command);
                Applied { reply: Ok(reply), events, born: None }
            }
        }
    }

    /// Passes over an entry that holds no command: Raft's own entries have revisions too.
    ///
    /// # Panics
    /// If the entry is not later than all that were applied.
    pub fn advance(&mut self, revision: u64) {
        assert!(
            revision > self.revision,
            "entry {revision} was applied after entry {}: the log is out of order",
            self.revision
        );
        self.revision = revision;
    }
}

/// Says of all that an entry changed when it was proposed, and of what it ended at somebody's wish, at whose.
fn sign(events: &mut [Event], command: &Command) {
    for event in events {
        match event {
            Event::Changed(change) => {
                change.at_unix_ms = command.since_unix_ms();
                if matches!(change.kind, ChangeKind::Freed(_)) {
                    change.actor = command.actor().cloned();
                }
            }
            Event::GrantEnded(ended) => {
                ended.actor = command.actor().cloned();
                ended.ended_unix_ms = match mutants::AN_END_IS_STAMPED_WITH_ITS_GRANTS_TIME.is_active() {
                    false => command.since_unix_ms(),
                    true => ended.granted_unix_ms,
                };
            }
            Event::LeaseStarted { .. }
            | Event::LeaseEnded { .. }
            | Event::HoldStarted { .. }
            | Event::HoldEnded { .. }
            | Event::WaitEnded { .. } => {}
        }
    }
}
