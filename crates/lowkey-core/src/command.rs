//! What can be asked of the state machine, and what it answers.
//!
//! A [`Command`] is one entry of the replicated log. A refusal is an answer like any other: every
//! replica gives the same one. Commands will grow; a replica that meets a kind it does not know must
//! stop, never skip it (see [`crate::encoding`]).

use crate::name::{LeaseId, LockName, MemberId, NodeIdentity, NodeName, OwnerId, RequestId, Token, Ttl};

/// One change of the replicated state.
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
        /// The operation's id.
        request: RequestId,
    },
    /// Takes a lock if it is free.
    Acquire {
        /// The lock.
        lock: LockName,
        /// Must be the lease's owner.
        owner: OwnerId,
        /// The lease to hold it with.
        with: AcquireWith,
        /// The proposer's wall clock, for display only: nothing is decided by it.
        since_unix_ms: u64,
        /// The operation's id.
        request: RequestId,
    },
    /// Gives a lock back.
    Release {
        /// The lock.
        lock: LockName,
        /// Which grant is meant.
        grant: GrantRef,
        /// If given, the grant must have this token.
        token: Option<Token>,
        /// The operation's id.
        request: RequestId,
    },
    /// R4: ends leases whose time ran out, as decided by the leader of `decided_term`. Takes effect
    /// only if the entry itself is of that term.
    Expire {
        /// The leases whose time ran out.
        leases: Vec<LeaseId>,
        /// The term in which the leader decided so.
        decided_term: u64,
    },
    /// Registers a node, or renews the addresses of one that is registered under the same identity.
    AddMember {
        /// The node as it describes itself.
        node: NodeInfo,
    },
}

/// The lease that an acquire is to hang on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AcquireWith {
    /// One that exists.
    Lease(LeaseId),
    /// A new one, made in the same entry.
    NewLease(Ttl),
}

/// How a release names the grant that it ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GrantRef {
    /// Whatever this lease holds under that name.
    Lease(LeaseId),
    /// What the acquire with this request id was granted; for callers that never saw its reply.
    Request(RequestId, Requester),
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
    /// The identity of its data directory.
    pub identity: NodeIdentity,
    /// Where peers reach it.
    pub raft_address: String,
    /// Where gRPC clients reach it.
    pub grpc_address: String,
    /// Where HTTP clients reach it.
    pub http_address: String,
    /// The highest version of the command set that it understands.
    pub command_version: u32,
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
    /// A lock was given back.
    Released,
    /// Leases were ended because their time ran out.
    Expired {
        /// How many: 0 if the entry was of another term than the decision.
        count: u64,
    },
    /// A node is registered.
    MemberAdded {
        /// Its id in the group.
        member: MemberId,
    },
}

/// Why a command did nothing. The same command in the same state is always refused alike.
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
    /// Another lease holds the lock.
    LockHeld {
        /// The lock that was asked for.
        lock: LockName,
        /// Who holds it.
        holder: Holder,
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
    /// Another node has this name.
    NodeNameTaken {
        /// The name.
        name: NodeName,
        /// The identity of the node that has it.
        by: NodeIdentity,
    },
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
    /// The proposer's wall clock when it was granted, for display only.
    pub since_unix_ms: u64,
}

/// A change that others may want to know of, in the order in which it happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A lease was made.
    LeaseCreated {
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
    /// A lock has a new holder.
    Acquired {
        /// Which.
        lock: LockName,
        /// The holder's lease.
        lease: LeaseId,
        /// The grant's token.
        token: Token,
    },
    /// A lock lost its holder.
    Freed {
        /// Which.
        lock: LockName,
        /// The token of the grant that ended.
        token: Token,
        /// Why.
        cause: Cause,
    },
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
}

/// The outcome of one command: the answer to its caller, and what changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Applied {
    /// The answer.
    pub reply: Result<Reply, Refusal>,
    /// What changed, in order; empty for a refusal and for a repeated request.
    pub events: Vec<Event>,
}
