//! The answers when there is no good one: every refusal gets its reason here.

use lowkey_api::{ApiError, Reason};
use lowkey_core::limits::{
    IN_FLIGHT_PER_LEASE_MAX, LOCKS_PER_LEASE_MAX, MEMBERS_MAX, TTL_SECONDS_MAX, WAITERS_PER_LOCK_MAX,
};
use lowkey_core::{InTheWay, LockName, Mode, Refusal, Scope};
use lowkey_replica::{CannotLead, Divergence, Failure};

use crate::access::told as denial;

/// A refusal of the replica, as the caller is told it. `None` if the caller should ask another node.
pub(crate) fn failure(failure: Failure, request_id: &str) -> Option<ApiError> {
    Some(match failure {
        Failure::NotLeader { .. } | Failure::Interrupted { .. } => return None,
        Failure::WaitTimeout { lock, in_the_way } => wait_timeout(&lock, in_the_way),
        Failure::WaitGivenUp { lock } => ApiError::new(
            Reason::WaitCancelled,
            format!("the wait for lock {lock} was ended by a release that named its request"),
        )
        .with("lock_name", lock),
        Failure::Refused(refusal) => refused(refusal),
        Failure::OutcomeUnknown => outcome_unknown(request_id),
        Failure::Diverged => diverged(None),
        Failure::Denied(denied) => denial(&denied),
        Failure::Busy => {
            ApiError::new(Reason::LimitBusy, "the leader has more to do than it can take in; try again shortly")
                .retry_after_ms(100)
        }
        Failure::TooManyInFlight { lease } => ApiError::new(
            Reason::LimitInFlight,
            format!("lease {lease} has {IN_FLIGHT_PER_LEASE_MAX} operations under way, as many as a lease may"),
        )
        .retry_after_ms(50),
        Failure::TooManyLeases { leases_max } => {
            ApiError::new(Reason::LimitLeases, format!("there are {leases_max} leases, as many as there may be"))
        }
        Failure::InvitationExpired => ApiError::new(
            Reason::InvitationNotValid,
            "the time of this invitation is over; make a new one: lowkey member invite",
        ),
        Failure::TooManyMembers => ApiError::new(
            Reason::LimitMembers,
            format!(
                "the cluster has {MEMBERS_MAX} nodes, as many as it may, those that are only expected included; remove \
                 one first: lowkey member remove NAME"
            ),
        ),
        Failure::DiskFull => ApiError::new(
            Reason::LimitDisk,
            "the leader's disk is full: no new leases or locks until there is space; renewals and releases go on",
        )
        .retry_after_ms(1000),
        Failure::Quarantine { left_ms } => recovering(left_ms),
        Failure::QuorumAtRisk { voters: 0, .. } => ApiError::new(
            Reason::QuorumAtRisk,
            "no other node votes: the cluster would end with this one; add a node, and wait until it votes",
        ),
        Failure::QuorumAtRisk { answering, voters } => ApiError::new(
            Reason::QuorumAtRisk,
            format!(
                "of the {voters} voters that would be left, only {answering} answer, and that is no majority; bring \
                 the others back, or remove those that do not answer first"
            ),
        )
        .with("voters", voters)
        .with("answering", answering),
        Failure::CannotLead { name, why } => {
            let why = match why {
                CannotLead::NoVoter => "it does not vote; wait until it has caught up".to_owned(),
                CannotLead::Silent => "the leader does not hear from it".to_owned(),
                CannotLead::Behind { entries } => {
                    format!("it lacks {entries} entries of the log; wait until it has caught up")
                }
                CannotLead::NotInTime => "it did not take over in time; look at the status, and ask again".to_owned(),
            };
            ApiError::new(Reason::TransferFailed, format!("node {name} does not lead: {why}")).with("node_id", name)
        }
        Failure::NotUnderstood { by } => ApiError::new(
            Reason::UpgradeUnderWay,
            format!("not every node understands this yet: {by} runs an older version; nothing was done. Upgrade it, then try again"),
        )
        .with("node_id", by)
        .retry_after_ms(1000),
        Failure::NodeTooOld { speaks, needs } => ApiError::new(
            Reason::NodeTooOld,
            format!(
                "the nodes of this cluster understand command set {needs}, this one only {speaks}: start it with a newer version of lowkey"
            ),
        ),
    })
}

/// The states of the replicas differ. A leading replica says so to others without details.
pub(crate) fn diverged(divergence: Option<Divergence>) -> ApiError {
    let what = match divergence {
        Some(Divergence::Minority { index }) => format!(
            "this node's state differs from that of the majority as of entry {index}: it does not serve, and takes a snapshot \
             from the leader"
        ),
        Some(Divergence::NoMajority { index }) => format!(
            "the nodes' states differ as of entry {index}, and no majority has the same: no node serves; see \
             docs/operate/symptoms/node-diverged.md"
        ),
        None => "the leader's state differs from that of other nodes: it does not serve".to_owned(),
    };
    ApiError::new(Reason::NodeDiverged, format!("{what}; nothing was done")).retry_after_ms(500)
}

/// The cluster began anew, and a client that held something before may still believe that it does.
fn recovering(left_ms: u64) -> ApiError {
    let seconds = left_ms.div_ceil(1000).max(1);
    ApiError::new(
        Reason::Recovering,
        format!(
            "this cluster was recovered after it lost its quorum, and clients of before may still believe that they hold \
             locks: none is granted for {seconds} s more at most; nothing was done. Leases, reads and watches work"
        ),
    )
    .with("seconds_left", seconds)
    .retry_after_ms(left_ms.max(100))
}

/// The cluster was split by a later version, and this one does not know how to ask other groups.
fn several_groups() -> ApiError {
    ApiError::new(
        Reason::UpgradeUnderWay,
        "this cluster has several groups, and this version of lowkey serves one only; nothing was done. Start this node \
         with the newer version that the others run",
    )
    .retry_after_ms(1000)
}

/// It may have happened. The request is idempotent: the caller can find out by asking again with the same
/// id.
pub(crate) fn outcome_unknown(request_id: &str) -> ApiError {
    ApiError::new(
        Reason::OutcomeUnknown,
        format!("the outcome is not known: it may have happened, or may yet; ask again with request_id {request_id}"),
    )
    .with("request_id", request_id)
    .retry_after_ms(200)
}

/// The service cut the caller's wait short. Its place may be kept for a while.
pub(crate) fn place_kept(request_id: &str) -> ApiError {
    ApiError::new(
        Reason::OutcomeUnknown,
        format!(
            "the wait was interrupted: ask again within 5 s, here or elsewhere, with request_id {request_id}, and the place in line is kept"
        ),
    )
    .with("request_id", request_id)
    .retry_after_ms(50)
}

fn wait_timeout(lock: &LockName, in_the_way: Option<InTheWay>) -> ApiError {
    match in_the_way {
        Some(in_the_way) => {
            let message = format!("the time to wait is over: {}", held(lock, &in_the_way));
            tell_holder(ApiError::new(Reason::WaitTimeout, message).with("lock_name", lock), in_the_way)
        }
        None => ApiError::new(Reason::WaitTimeout, format!("the time to wait for lock {lock} is over"))
            .with("lock_name", lock),
    }
}

/// Names the holder that is in the way, for a person.
fn held(lock: &LockName, in_the_way: &InTheWay) -> String {
    let InTheWay { held, holder, waiters } = in_the_way;
    let what = match (holder.scope, held == lock) {
        (_, true) => format!("lock {lock} is held"),
        (Scope::Subtree, false) if lock.as_str().starts_with(held.as_str()) => {
            format!("lock {lock} is covered by the subtree {held}, held")
        }
        (_, false) => format!("lock {lock} is not to be had while {held} is held"),
    };
    let line = match waiters {
        0 => String::new(),
        1 => "; 1 waits for it".to_owned(),
        several => format!("; {several} wait for it"),
    };
    format!("{what} by {} with lease {} and token {}{line}", holder.owner, holder.lease, holder.token)
}

fn tell_holder(error: ApiError, in_the_way: InTheWay) -> ApiError {
    let InTheWay { held, holder, waiters } = in_the_way;
    error
        .with("held_name", held)
        .with("owner_id", holder.owner)
        .with("lease_id", holder.lease)
        .with("fencing_token", holder.token)
        .with("mode", mode_word(holder.mode))
        .with("scope", scope_word(holder.scope))
        .with("since_unix_ms", holder.since_unix_ms)
        .with("waiters", waiters)
}

fn mode_word(mode: Mode) -> &'static str {
    super::reads::mode(mode).as_str_name()
}

fn scope_word(scope: Scope) -> &'static str {
    super::reads::scope(scope).as_str_name()
}

fn refused(refusal: Refusal) -> ApiError {
    match refusal {
        Refusal::LeaseNotFound { lease } => {
            ApiError::new(Reason::LeaseNotFound, format!("lease {lease} does not exist: it never did, ran out, or was revoked"))
                .with("lease_id", lease)
        }
        Refusal::LockNotFound { lock } => {
            ApiError::new(Reason::LockNotFound, format!("nobody holds lock {lock}")).with("lock_name", lock)
        }
        Refusal::LockHeld { lock, in_the_way } => {
            let error = ApiError::new(Reason::LockHeld, held(&lock, &in_the_way));
            tell_holder(error.with("lock_name", lock), in_the_way)
        }
        Refusal::AlreadyHeld { lock, lease, mode, scope, max_hold } => ApiError::new(
            Reason::AlreadyHeld,
            format!(
                "lease {lease} holds lock {lock}, or waits for it, as {} {}{}; release that first, or ask for the same \
                 (what is limited by max_hold_seconds is given to one request only)",
                mode_word(mode),
                scope_word(scope),
                max_hold.map(|limit| format!(", for {} s at most", limit.seconds())).unwrap_or_default()
            ),
        )
        .with("lock_name", lock)
        .with("lease_id", lease)
        .with("mode", mode_word(mode))
        .with("scope", scope_word(scope)),
        Refusal::TooManyWaiters { lock } => ApiError::new(
            Reason::LimitWaiters,
            format!("{WAITERS_PER_LOCK_MAX} wait for lock {lock} already, as many as may"),
        )
        .with("lock_name", lock)
        .with("waiters", WAITERS_PER_LOCK_MAX),
        Refusal::NotOwner { what } => ApiError::new(Reason::NotOwner, what),
        Refusal::StaleToken { lock, given, current } => ApiError::new(
            Reason::StaleToken,
            format!("token {given} is not the current one of lock {lock}, which is {current}; the newer grant was not touched"),
        )
        .with("lock_name", lock)
        .with("current_fencing_token", current),
        Refusal::TooManyLocks { lease } => ApiError::new(
            Reason::LimitLocksPerLease,
            format!("lease {lease} holds or awaits {LOCKS_PER_LEASE_MAX} locks, as many as a lease may"),
        ),
        Refusal::GivenUp { request } => ApiError::new(
            Reason::WaitCancelled,
            format!(
                "the acquire {request} was given up before, by a release that named its request id; to try again, \
                 use another request id"
            ),
        ),
        Refusal::RequestReused { request } => ApiError::invalid(
            "request_id",
            format!("{request} was used before, for something else; every operation needs an id of its own"),
        ),
        Refusal::NodeKeyDiffers { name } => ApiError::new(
            Reason::NodeKeyDiffers,
            format!(
                "node {name} is registered with another key, and keys never change; if its `node.key` is lost, remove the \
                 node and let it join anew: lowkey member remove {name}"
            ),
        )
        .with("node_id", name),
        Refusal::InvitationNotFound => ApiError::new(
            Reason::InvitationNotValid,
            "this invitation is not known here: it is of another cluster, or was forgotten when its time was over; make a \
             new one: lowkey member invite",
        ),
        Refusal::InvitationUsed => ApiError::new(
            Reason::InvitationNotValid,
            "this invitation was used already: it lets in one node; make a new one: lowkey member invite",
        ),
        Refusal::NodeNameTaken { name, by: _ } => ApiError::new(
            Reason::NodeNameTaken,
            // The other node's identity is not told: it is what distinguishes members from strangers.
            format!(
                "another node named {name} is a member already; choose another --node-id, or, if that node is lost \
                 for good, remove it first: lowkey member remove {name}"
            ),
        ),
        Refusal::NodeNotFound { name } => {
            ApiError::new(Reason::NodeNotFound, format!("no node named {name} is a member of this cluster"))
                .with("node_id", name)
        }
        Refusal::LastNode { name } => ApiError::new(
            Reason::QuorumAtRisk,
            format!("{name} is the only node: the cluster would end with it; to end it, stop the node"),
        ),
        Refusal::PrincipalNotFound { principal } => {
            ApiError::new(Reason::PrincipalNotFound, format!("there is no principal {principal}"))
                .with("principal", principal)
        }
        Refusal::TokenNotFound { token } => ApiError::new(
            Reason::AccessTokenNotFound,
            format!("there is no token with the id {token}: it never was, or was revoked before"),
        )
        .with("token_id", token),
        Refusal::ProofTaken { what } => ApiError::new(Reason::ProofTaken, what),
        Refusal::AccessLimit { what, max } => {
            ApiError::new(Reason::LimitAccess, format!("there are {max} {what} already, as many as there may be"))
        }
        Refusal::AdminNeeded => ApiError::new(
            Reason::AdminNeeded,
            "no principal would be left that may manage access and can prove it: first give one a token or a name of a \
             certificate, and the verb admin on /",
        ),
        // No group has a range yet, nor can get one: see docs/internals/groups.md.
        Refusal::NotHere { .. }
        | Refusal::LeaseElsewhere { .. }
        | Refusal::SubtreeSplit { .. }
        | Refusal::Draining { .. }
        | Refusal::Split(_) => several_groups(),
        Refusal::Quarantine => recovering(TTL_SECONDS_MAX.unsigned_abs() * 1000),
    }
}
