//! What can be asked of the state machine, and what it answers.
//!
//! A [`Command`] is one entry of the replicated log. A refusal is an answer like any other: every
//! replica gives the same one. Commands will grow; a replica that meets a kind it does not know must
//! stop, never skip it (see [`crate::encoding`]).

use std::sync::Arc;

use lowkey_record::GroupId;

use crate::access::{AccessChange, PrincipalName, TokenId};
use crate::claim::{Mode, Scope};
use crate::groups::{Boundary, GroupChange, SplitRefusal};
use crate::name::{
    InvitationHash, KeyHash, LeaseId, LockName, MaxHold, MemberId, NodeIdentity, NodeName, OwnerId,
    RequestId, Ticket, Token, Ttl, Value,
};
use crate::schedule::BackupSchedule;
use crate::state::State;

/// One change of the replicated state.
///
/// `since_unix_ms` is the proposer's wall clock: shown as the time since which a lock that the entry grants
/// is held. Nothing is decided by it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Makes a lease.
    CreateLease {
        /// Whom it belongs to.
        owner: OwnerId,
        /// How long it lives without renewal; the state machine only stores it.
        ttl: Ttl,
        /// The operation's id.
        request: RequestId,
    },
    /// Ends a lease and all that hangs on it, at its owner's wish.
    RevokeLease {
        /// The lease to end.
        lease: LeaseId,
        /// Must be the lease's owner.
        owner: OwnerId,
        /// Who asks for it, if that is somebody else; for display only.
        actor: Option<OwnerId>,
        /// The proposer's wall clock, for display only.
        since_unix_ms: u64,
        /// The operation's id.
        request: RequestId,
    },
    /// Takes a lock if it is free, or gets in line for it.
    Acquire {
        /// The lock.
        lock: LockName,
        /// Must be the lease's owner.
        owner: OwnerId,
        /// The lease to hold it with.
        with: AcquireWith,
        /// How to hold it.
        mode: Mode,
        /// What to cover.
        scope: Scope,
        /// What to show with it.
        value: Value,
        /// Get in line if it is not free. How long is the leader's to count, not the state's.
        wait: bool,
        /// For how long it is held at most. The leader counts that from the grant.
        max_hold: Option<MaxHold>,
        /// The proposer's wall clock, for display only.
        since_unix_ms: u64,
        /// That clock is kept as the time at which the lock was asked for, for display only. False while some member
        /// would not keep it.
        keeps_asked: bool,
        /// The operation's id.
        request: RequestId,
    },
    /// Gives a lock back, or a place in its queue.
    Release {
        /// The lock.
        lock: LockName,
        /// Which grant is meant.
        grant: GrantRef,
        /// If given, the grant must have this token.
        token: Option<Token>,
        /// Who asks for it, if that is somebody else; for display only.
        actor: Option<OwnerId>,
        /// The proposer's wall clock, for display only.
        since_unix_ms: u64,
        /// The operation's id.
        request: RequestId,
    },
    /// Changes what a holder shows with its grant.
    SetValue {
        /// The lock.
        lock: LockName,
        /// Must be the lease's owner.
        owner: OwnerId,
        /// The lease that holds it.
        lease: LeaseId,
        /// If given, the grant must have this token.
        token: Option<Token>,
        /// What to show from now on.
        value: Value,
        /// The proposer's wall clock, for display only; 0 while some member does not know of it.
        since_unix_ms: u64,
        /// The operation's id.
        request: RequestId,
    },
    /// R10: ends waits whose time ran out, or whose callers are gone. Never touches a grant: a wait that
    /// was granted before has no such place any more.
    CancelWait {
        /// The waits to end.
        tickets: Vec<Ticket>,
        /// The proposer's wall clock, for display only.
        since_unix_ms: u64,
    },
    /// R4: ends leases whose time ran out, as decided by the leader of `decided_term`. Takes effect
    /// only if the entry itself is of that term.
    Expire {
        /// The leases whose time ran out.
        leases: Vec<LeaseId>,
        /// The term in which the leader decided so.
        decided_term: u64,
        /// The proposer's wall clock, for display only.
        since_unix_ms: u64,
        /// What the leader knew of each, in the same order, for display only. Nothing while some member does not know of
        /// it.
        silences: Vec<Silence>,
    },
    /// R4: ends grants that were held for as long as they may be, as decided by the leader of `decided_term`. Takes effect
    /// only if the entry itself is of that term. Their leases live on.
    EndHolds {
        /// The grants to end.
        holds: Vec<HoldRef>,
        /// The term in which the leader decided so.
        decided_term: u64,
        /// The proposer's wall clock, for display only.
        since_unix_ms: u64,
    },
    /// Registers a node, or renews what is known of one that is registered under the same identity. A node
    /// that is expected under this name, and has no identity yet, is who comes.
    AddMember {
        /// The node as it describes itself.
        node: Box<NodeInfo>,
        /// The invitation that it came with, which is used up by this entry.
        invitation: Option<InvitationHash>,
    },
    /// Renews what is known of a registered node. Other than [`Command::AddMember`] it never registers one: a
    /// node that was removed and does not know it must not come in again by telling its addresses.
    UpdateMember {
        /// The node's id in the group.
        member: MemberId,
        /// The node as it describes itself.
        node: Box<NodeInfo>,
    },
    /// Takes a node off the register. Its id is never given again.
    RemoveMember {
        /// The node's name.
        name: NodeName,
        /// If given, the node must have this id: another may have come under the same name meanwhile.
        member: Option<MemberId>,
    },
    /// Ends the quarantine of a new beginning: see [`crate::NewBeginning`]. A leader proposes it when it has
    /// waited for as long as anybody may still believe; that stays true in every later term.
    EndQuarantine,
    /// Makes an invitation: with its secret a node may join, once.
    Invite {
        /// The hash of its secret.
        invitation: InvitationHash,
        /// For how long it is good.
        lifetime_seconds: u64,
        /// The proposer's wall clock, from which that counts. Other than elsewhere it is more than shown: the leader
        /// that is asked to let a node in compares it with its own.
        since_unix_ms: u64,
    },
    /// Changes who may do what.
    Access(Box<AccessChange>),
    /// Changes which group has which names.
    Groups(Box<GroupChange>),
    /// Sets what the cluster says of its backups; without a schedule the flags of its nodes decide.
    SetBackupSchedule(Option<Arc<BackupSchedule>>),
}

/// Where a command has the proposer's wall clock, borrowed as the command is.
macro_rules! since_of {
    ($command:expr) => {
        match $command {
            Self::RevokeLease { since_unix_ms, .. }
            | Self::Acquire { since_unix_ms, .. }
            | Self::Release { since_unix_ms, .. }
            | Self::SetValue { since_unix_ms, .. }
            | Self::CancelWait { since_unix_ms, .. }
            | Self::Expire { since_unix_ms, .. }
            | Self::EndHolds { since_unix_ms, .. }
            | Self::Invite { since_unix_ms, .. } => Some(since_unix_ms),
            Self::CreateLease { .. }
            | Self::AddMember { .. }
            | Self::UpdateMember { .. }
            | Self::RemoveMember { .. }
            | Self::EndQuarantine
            | Self::Access(_)
            | Self::Groups(_)
            | Self::SetBackupSchedule(_) => None,
        }
    };
}

impl Command {
    /// Puts the proposer's wall clock into it, where it has a place. [`Command::limit_to`] takes out again what not all
    /// members know of.
    pub fn stamp(&mut self, unix_ms: u64) {
        if let Some(since_unix_ms) = since_of!(self) {
            *since_unix_ms = unix_ms;
        }
        if let Self::Acquire { keeps_asked, .. } = self {
            *keeps_asked = true;
        }
    }

    /// The proposer's wall clock, where it has one.
    pub(crate) fn since_unix_ms(&self) -> u64 {
        since_of!(self).copied().unwrap_or(0)
    }

    /// True if it asks for more than there is: what is refused first when room is short. What ends something
    /// goes on.
    pub fn grows(&self) -> bool {
        match self {
            Self::CreateLease { .. }
            | Self::Acquire { .. }
            | Self::SetValue { .. }
            | Self::AddMember { .. }
            | Self::Invite { .. } => true,
            Self::Access(change) => change.grows(),
            Self::Groups(change) => matches!(**change, GroupChange::Plan { .. } | GroupChange::Split { .. }),
            Self::SetBackupSchedule(schedule) => matches!(schedule.as_deref(), Some(BackupSchedule::On(_))),
            Self::RevokeLease { .. }
            | Self::Release { .. }
            | Self::CancelWait { .. }
            | Self::Expire { .. }
            | Self::EndHolds { .. }
            | Self::UpdateMember { .. }
            | Self::RemoveMember { .. }
            | Self::EndQuarantine => false,
        }
    }

    /// The lease that this operation counts against, if that is one.
    pub fn lease(&self) -> Option<LeaseId> {
        match self {
            Self::RevokeLease { lease, .. } | Self::SetValue { lease, .. } => Some(*lease),
            Self::Acquire { with, .. } => with.lease(),
            Self::Release { grant, .. } => match grant {
                GrantRef::Lease(lease)
                | GrantRef::Request(_, Requester::Lease(lease))
                | GrantRef::GivenUp(_, Requester::Lease(lease)) => Some(*lease),
                GrantRef::Request(_, Requester::Owner(_)) | GrantRef::GivenUp(_, Requester::Owner(_)) => None,
            },
            Self::CreateLease { .. }
            | Self::CancelWait { .. }
            | Self::Expire { .. }
            | Self::EndHolds { .. }
            | Self::AddMember { .. }
            | Self::UpdateMember { .. }
            | Self::RemoveMember { .. }
            | Self::EndQuarantine
            | Self::Invite { .. }
            | Self::Access(_)
            | Self::Groups(_)
            | Self::SetBackupSchedule(_) => None,
        }
    }

    /// Who asked for it, where that was said.
    pub(crate) fn actor(&self) -> Option<&OwnerId> {
        match self {
            Self::RevokeLease { actor, .. } | Self::Release { actor, .. } => actor.as_ref(),
            _ => None,
        }
    }

    /// Leaves out what a command set of that version does not know and can do without: what is only shown,
    /// that giving up is final, and the keys of nodes. The rest is understood as it always was.
    pub fn limit_to(&mut self, version: u32) {
        if let Self::AddMember { node, .. } | Self::UpdateMember { node, .. } = self
            && version < 6
        {
            node.key_hash = None;
        }
        if version < 7 {
            match self {
                Self::Acquire { keeps_asked, .. } => *keeps_asked = false,
                Self::Expire { silences, .. } => silences.clear(),
                _ => {}
            }
        }
        if version >= 5 {
            return;
        }
        match self {
            Self::RevokeLease { actor, .. } => *actor = None,
            Self::SetValue { since_unix_ms, .. } => *since_unix_ms = 0,
            Self::Release { actor, grant, .. } => {
                *actor = None;
                if let GrantRef::GivenUp(acquire, requester) = grant {
                    *grant = GrantRef::Request(acquire.clone(), requester.clone());
                }
            }
            _ => {}
        }
    }
}

/// What a leader knew of a lease when its time had run out. For display only.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Silence {
    /// How long it had not been renewed, as far as this leader knows.
    pub silent_ms: u64,
    /// R8: how much time it was given back for the leader's own stalls.
    pub stalled_ms: u64,
    /// It was never renewed at this leader: its time began anew when the leader was elected (R3).
    pub leader_changed: bool,
}

/// The lease that an acquire is to hang on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AcquireWith {
    /// One that exists.
    Lease(LeaseId),
    /// A new one, made in the same entry.
    NewLease(Ttl),
}

impl AcquireWith {
    /// The lease, if it exists already.
    pub fn lease(self) -> Option<LeaseId> {
        match self {
            Self::Lease(lease) => Some(lease),
            Self::NewLease(_) => None,
        }
    }
}

/// One grant: found by its lock and lease, and by its token never mistaken for a later one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HoldRef {
    /// The lock.
    pub lock: LockName,
    /// The lease that holds it.
    pub lease: LeaseId,
    /// The grant's token.
    pub token: Token,
}

/// How a release names the grant that it ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GrantRef {
    /// What this lease holds under that name.
    Lease(LeaseId),
    /// What the acquire with this request id was granted; for callers that never saw its reply. What nodes
    /// before command set 5 proposed: an acquire that comes later is granted all the same.
    Request(RequestId, Requester),
    /// The same, and it is final (R10): an acquire with this id that comes later is refused, on any path and
    /// for any lock, as long as the id is remembered.
    GivenUp(RequestId, Requester),
}

/// Within what a request id means one request: two clients may both count 1, 2, 3.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Requester {
    /// The request was made on this lease.
    Lease(LeaseId),
    /// The request was made by this owner, who may not know the lease that was made for it.
    Owner(OwnerId),
}

/// A node as it describes itself when it joins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeInfo {
    /// Its name, unique in the cluster.
    pub name: NodeName,
    /// The identity of its data directory; none while the node is expected and has not come.
    pub identity: Option<NodeIdentity>,
    /// Where peers reach it.
    pub raft_address: String,
    /// Where gRPC clients reach it.
    pub grpc_address: String,
    /// Where HTTP clients reach it.
    pub http_address: String,
    /// The highest version of the command set that it understands.
    pub command_version: u32,
    /// The hash of the key that it proves its identity with. None for a node that has not come, and for one that
    /// was registered before nodes had keys.
    pub key_hash: Option<KeyHash>,
}

/// What a command did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// A lease was made.
    LeaseCreated {
        /// Its id.
        lease: LeaseId,
        /// Its time to live.
        ttl: Ttl,
    },
    /// A lease was ended by its owner.
    LeaseRevoked {
        /// How many locks it had held.
        released: u64,
    },
    /// A lock is held.
    Granted {
        /// The grant's fencing token.
        token: Token,
        /// The lease it hangs on.
        lease: LeaseId,
        /// That lease's time to live.
        ttl: Ttl,
        /// The revision at which it was granted.
        revision: u64,
    },
    /// A place in a lock's queue was taken, or is still there.
    Waiting {
        /// Which.
        ticket: Ticket,
    },
    /// A lock, or a place in its queue, was given back.
    Released,
    /// Not an answer, only what is remembered of an acquire that was given up.
    GivenUp,
    /// What is shown with a grant was changed.
    ValueSet {
        /// The revision at which it was.
        revision: u64,
    },
    /// Waits were ended.
    WaitsCancelled {
        /// How many: those that were granted or ended before are not counted.
        count: u64,
    },
    /// Leases were ended because their time ran out.
    Expired {
        /// How many: 0 if the entry was of another term than the decision.
        count: u64,
    },
    /// Grants were ended because they were held for as long as they may be.
    HoldsEnded {
        /// How many: those that were over before are not counted, and 0 if the entry was of another term than the
        /// decision.
        count: u64,
    },
    /// A node is registered.
    MemberAdded {
        /// Its id in the group.
        member: MemberId,
    },
    /// A node is registered no longer.
    MemberRemoved {
        /// The id in the group that it had.
        member: MemberId,
    },
    /// Locks are granted again, or were all along.
    QuarantineEnded,
    /// A node may join with an invitation.
    Invited {
        /// Until when, by the wall clock of the leader that made it.
        expires_unix_ms: u64,
    },
    /// It is so now who may do what, or was before.
    AccessChanged,
    /// An id for a new group was given, now or before.
    GroupPlanned {
        /// The id.
        group: GroupId,
    },
    /// Names belong to a new group, since now or before.
    GroupSplit {
        /// The new group.
        child: GroupId,
    },
    /// It is so now with the groups, or was before.
    GroupsChanged,
    /// This is now what the cluster says of its backups, or was before.
    BackupScheduleSet,
}

/// Why a command did nothing. Refusals are deterministic: the same command in the same state gets the same one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// There is no such lease, or no longer.
    LeaseNotFound {
        /// The lease that was named.
        lease: LeaseId,
    },
    /// Nobody holds the lock.
    LockNotFound {
        /// The lock that was named.
        lock: LockName,
    },
    /// Another lease holds the lock, or waits for it in front of the caller.
    LockHeld {
        /// The lock that was asked for.
        lock: LockName,
        /// Who is in the way.
        in_the_way: InTheWay,
    },
    /// The lease holds this name, or waits for it, in another mode or scope; or one of the two has a limit of how long it
    /// is held. Such a grant is given once: who was given it again would count its time from the wrong moment.
    AlreadyHeld {
        /// The lock that was asked for.
        lock: LockName,
        /// The lease that was named.
        lease: LeaseId,
        /// How the lease holds it, or is to.
        mode: Mode,
        /// What it covers, or is to.
        scope: Scope,
        /// For how long it is held at most, or is to be.
        max_hold: Option<MaxHold>,
    },
    /// The lock has as many waiters as a lock may.
    TooManyWaiters {
        /// The lock that was asked for.
        lock: LockName,
    },
    /// The caller is not who it would have to be.
    NotOwner {
        /// What belongs to somebody else, for a person.
        what: String,
    },
    /// The token that was given is not the current one.
    StaleToken {
        /// The lock that was named.
        lock: LockName,
        /// The token that was given.
        given: Token,
        /// The token of the current grant.
        current: Token,
    },
    /// The lease holds as many locks as a lease may.
    TooManyLocks {
        /// The lease that was named.
        lease: LeaseId,
    },
    /// The request id was used before, for something else.
    RequestReused {
        /// The id.
        request: RequestId,
    },
    /// R10: the acquire was given up, by a release that named its request id.
    GivenUp {
        /// The acquire's id.
        request: RequestId,
    },
    /// Another node has this name.
    NodeNameTaken {
        /// The name.
        name: NodeName,
        /// The identity of the node that has it; none if that one is expected.
        by: Option<NodeIdentity>,
    },
    /// No such node is registered.
    NodeNotFound {
        /// The name that was given.
        name: NodeName,
    },
    /// The node is registered with another key. A key is never changed: who can do that has stolen an identity.
    NodeKeyDiffers {
        /// The node's name.
        name: NodeName,
    },
    /// No such invitation was made, or it was forgotten when its time was over.
    InvitationNotFound,
    /// Another node came with the invitation.
    InvitationUsed,
    /// There is no such principal.
    PrincipalNotFound {
        /// The name that was given.
        principal: PrincipalName,
    },
    /// There is no such token, or no longer.
    TokenNotFound {
        /// The id that was given.
        token: TokenId,
    },
    /// A token or a certificate's name proves one principal only.
    ProofTaken {
        /// What is taken, for a person.
        what: String,
    },
    /// There is as much of something in the access table as there may be.
    AccessLimit {
        /// Of what.
        what: &'static str,
        /// How many there may be.
        max: usize,
    },
    /// Access is required, or is to be, and no principal would be an admin.
    AdminNeeded,
    /// The node is the only one: without it there is no cluster.
    LastNode {
        /// Its name.
        name: NodeName,
    },
    /// The name, or the lease, is another group's, or is so by now. Nothing was done: ask that group.
    NotHere {
        /// The group that was asked.
        group: GroupId,
    },
    /// The name is this group's, and the lease is not: a lease holds only what is in its own group.
    LeaseElsewhere {
        /// The lease that was named.
        lease: LeaseId,
        /// The group that it belongs to.
        group: GroupId,
    },
    /// No new claims are taken on this name for a while: it is about to move to another group. Ask again soon.
    Draining {
        /// The lock that was asked for.
        lock: LockName,
        /// The first of the names that are to move.
        from: Boundary,
    },
    /// The groups stay as they are.
    Split(SplitRefusal),
    /// What the claim would cover belongs to two groups.
    SubtreeSplit {
        /// The lock that was asked for.
        lock: LockName,
        /// The boundary that lies inside.
        boundary: Boundary,
    },
    /// The cluster was recovered after it lost its quorum. It grants nothing until the holders of before have
    /// stopped believing that they hold something.
    Quarantine,
}

/// Who holds a lock, as told to others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holder {
    /// The holder's name for itself.
    pub owner: OwnerId,
    /// The lease that it holds the lock with.
    pub lease: LeaseId,
    /// The fencing token of its grant.
    pub token: Token,
    /// How it holds it.
    pub mode: Mode,
    /// What it covers.
    pub scope: Scope,
    /// What it shows.
    pub value: Value,
    /// The proposer's wall clock when it was granted, for display only.
    pub since_unix_ms: u64,
    /// For how long it is held at most.
    pub max_hold: Option<MaxHold>,
}

/// Who waits for a lock, as told to others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiter {
    /// The waiter's name for itself.
    pub owner: OwnerId,
    /// The lease that is to hold the lock.
    pub lease: LeaseId,
    /// How it is to be held.
    pub mode: Mode,
    /// What is to be covered.
    pub scope: Scope,
    /// The proposer's wall clock when it was asked for, for display only; 0 if it is not known.
    pub asked_unix_ms: u64,
}

/// Why somebody does not get a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InTheWay {
    /// What is held: the lock itself, a subtree above it, or something below it.
    pub held: LockName,
    /// Who holds it.
    pub holder: Holder,
    /// How many wait for the lock that was asked for.
    pub waiters: usize,
}

/// What happened while an entry was applied, in that order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The time of a lease begins: it was made, or its wait was granted (R7).
    LeaseStarted {
        /// Which.
        lease: LeaseId,
        /// Its time to live.
        ttl: Ttl,
    },
    /// A lease is gone.
    LeaseEnded {
        /// Which.
        lease: LeaseId,
    },
    /// The time of a grant begins that has a limit of its own.
    HoldStarted {
        /// Which.
        hold: HoldRef,
        /// The limit.
        max_hold: MaxHold,
    },
    /// A grant that had a limit of its own is over, in whatever way.
    HoldEnded {
        /// Its token.
        token: Token,
    },
    /// A lock changed hands, or its queue did: what watchers are told.
    Changed(Change),
    /// A grant is over: what is kept of it for those who ask later.
    GrantEnded(Box<EndedGrant>),
    /// A wait is over.
    WaitEnded {
        /// Which.
        ticket: Ticket,
        /// How.
        end: WaitEnd,
    },
}

/// A change of a lock that others may want to know of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// What happened.
    pub kind: ChangeKind,
    /// To which lock.
    pub lock: LockName,
    /// The holder's or waiter's name for itself.
    pub owner: OwnerId,
    /// Its lease.
    pub lease: LeaseId,
    /// The grant's token; none for a waiter.
    pub token: Option<Token>,
    /// How it is held, or to be held.
    pub mode: Mode,
    /// What is covered, or to be covered.
    pub scope: Scope,
    /// What is shown; only where somebody acquired the lock or changed the value.
    pub value: Value,
    /// The proposer's wall clock when the grant was made; 0 for a waiter.
    pub since_unix_ms: u64,
    /// The proposer's wall clock when this happened, for display only; 0 if it is not known.
    pub at_unix_ms: u64,
    /// Who ended the grant, if somebody else than its owner said that it did.
    pub actor: Option<OwnerId>,
}

/// All that there is to know of a grant once it is over. Times are wall clocks of the leaders that proposed, for
/// display only, and 0 where they are not known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndedGrant {
    /// What was held.
    pub lock: LockName,
    /// Its fencing token.
    pub token: Token,
    /// The holder's name for itself.
    pub owner: OwnerId,
    /// The lease that it hung on.
    pub lease: LeaseId,
    /// How it was held.
    pub mode: Mode,
    /// What was covered.
    pub scope: Scope,
    /// The lease's time to live.
    pub ttl: Ttl,
    /// When it was asked for.
    pub asked_unix_ms: u64,
    /// When it was granted.
    pub granted_unix_ms: u64,
    /// The revision at which it was granted.
    pub granted_revision: u64,
    /// When it ended.
    pub ended_unix_ms: u64,
    /// Why it ended.
    pub cause: Cause,
    /// Who ended it, if somebody else than its owner said that it did.
    pub actor: Option<OwnerId>,
    /// What the leader knew of its lease, if that ran out.
    pub silence: Option<Silence>,
}

/// What happened to a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeKind {
    /// It has a new holder.
    Acquired,
    /// A holder is gone.
    Freed(Cause),
    /// Somebody waits for it.
    Waiting,
    /// A waiter left without it.
    Cancelled,
    /// A holder changed its value.
    ValueSet,
}

/// Why a grant ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The holder gave it back.
    Released,
    /// The holder's lease was revoked.
    Revoked,
    /// The holder's lease ran out.
    Expired,
    /// It was held for as long as it may be, and its lease lives on.
    HeldTooLong,
}

/// How a wait ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WaitEnd {
    /// With the lock.
    Granted(Reply),
    /// R10: its time ran out, or its callers were gone.
    Cancelled {
        /// The lock that it waited for.
        lock: LockName,
        /// The holder that was in the way; none if it ended in the same entry.
        in_the_way: Option<InTheWay>,
    },
    /// A release named its request.
    GivenUp {
        /// The lock that it waited for.
        lock: LockName,
    },
    /// Its lease is gone.
    LeaseGone {
        /// Which.
        lease: LeaseId,
    },
}

/// The outcome of one command: the answer to its caller, and what changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Applied {
    /// The answer.
    pub reply: Result<Reply, Refusal>,
    /// What changed, in order; empty for a refusal and for a repeated request.
    pub events: Vec<Event>,
    /// The first state of a group that was split off. Whoever applies the entry sees to it that the group is there before
    /// anything forgets the entry; that it may be there already, and have gone on, is for them to know.
    pub born: Option<Box<State>>,
}
