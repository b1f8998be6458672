//! How messages and answers read in a script.

use lowkey_core::{
    Cause, Change, ChangeKind, Command, Holder, InTheWay, LockView, Mode, Refusal, Reply, Scope, Value,
};
use lowkey_replica::{Failure, Message, MessageType, Renewal, Response, Role, Status, wire};

/// `n1→n2 Append term 2, after 5@2: 6@2 expire(1), commit 5`
pub(crate) fn message_words(message: &Message) -> String {
    let kind = format!("{:?}", message.get_msg_type());
    let kind = kind.strip_prefix("Msg").unwrap_or(&kind);
    let mut words = format!("n{}→n{} {kind} term {}", message.from, message.to, message.term);
    let at = || format!("{}@{}", message.index, message.log_term);
    match message.get_msg_type() {
        MessageType::MsgAppend => {
            words += &format!(", after {}:", at());
            for entry in message.get_entries() {
                words += &format!(" {}@{} {}", entry.index, entry.term, entry_words(entry.get_data()));
            }
            words += &format!(", commit {}", message.commit);
        }
        MessageType::MsgAppendResponse | MessageType::MsgRequestVoteResponse => {
            words += if message.reject { ", refused" } else { "" };
            words += &format!(", index {}", message.index);
        }
        MessageType::MsgRequestPreVoteResponse => words += if message.reject { ", refused" } else { "" },
        MessageType::MsgRequestVote | MessageType::MsgRequestPreVote => words += &format!(", last {}", at()),
        MessageType::MsgHeartbeat => {
            words += &format!(", commit {}{}", message.commit, round_words(&message.context));
            match wire::timing_factor(message) {
                1 => {}
                factor => words += &format!(", factor {factor}"),
            }
        }
        MessageType::MsgHeartbeatResponse => words += &round_words(&message.context),
        MessageType::MsgSnapshot => {
            words += &format!(", index {}", message.get_snapshot().get_metadata().index);
        }
        _ => {}
    }
    words
}

/// The sequence number in a round's context.
fn round_words(context: &[u8]) -> String {
    match context.last_chunk::<8>() {
        Some(sequence) => format!(", round {}", u64::from_be_bytes(*sequence)),
        None => String::new(),
    }
}

fn entry_words(data: &[u8]) -> String {
    if data.is_empty() {
        return "empty".to_owned();
    }
    match Command::decode(data) {
        Ok(Command::CreateLease { owner, .. }) => format!("create_lease({owner})"),
        Ok(Command::RevokeLease { lease, .. }) => format!("revoke({lease})"),
        Ok(Command::Acquire { lock, owner, .. }) => format!("acquire({lock} {owner})"),
        Ok(Command::Release { lock, .. }) => format!("release({lock})"),
        Ok(Command::SetValue { lock, .. }) => format!("set_value({lock})"),
        Ok(Command::CancelWait { tickets, .. }) => format!("cancel_wait({tickets:?})"),
        Ok(Command::Expire { leases, .. }) => format!("expire({leases:?})"),
        Ok(Command::EndHolds { holds, .. }) => {
            let tokens: Vec<_> = holds.iter().map(|hold| hold.token).collect();
            format!("end_holds({tokens:?})")
        }
        Ok(Command::AddMember { node, .. }) => format!("add_member({})", node.name),
        Ok(Command::UpdateMember { node, .. }) => format!("update_member({})", node.name),
        Ok(Command::RemoveMember { name, .. }) => format!("remove_member({name})"),
        Ok(Command::Groups(change)) => format!("groups({change:?})"),
        Ok(Command::Access(change)) => format!("access({change:?})"),
        Ok(Command::Invite { invitation, .. }) => format!("invite({})", invitation.0[0]),
        Ok(Command::SetBackupSchedule(None)) => "set_backups(flags)".to_owned(),
        Ok(Command::SetBackupSchedule(Some(_))) => "set_backups".to_owned(),
        Ok(Command::EndQuarantine) => "end_quarantine".to_owned(),
        Err(_) => "members".to_owned(),
    }
}

pub(crate) fn answer_words(answer: &Result<Response, Failure>) -> String {
    match answer {
        Ok(Response::Applied(reply)) => reply_words(reply),
        Ok(Response::Renewed { ttl, holds_differ: false }) => format!("renewed, ttl {} s", ttl.seconds()),
        Ok(Response::Renewed { ttl, holds_differ: true }) => {
            format!("renewed, ttl {} s, holds something else", ttl.seconds())
        }
        Ok(Response::RenewedMany(renewed)) => {
            let word = |(renewal, holds_differ): &(Renewal, bool)| match renewal {
                Renewal::Renewed(ttl) if *holds_differ => {
                    format!("renewed, ttl {} s, holds something else", ttl.seconds())
                }
                Renewal::Renewed(ttl) => format!("renewed, ttl {} s", ttl.seconds()),
                Renewal::Expiring => "expiring".to_owned(),
                Renewal::Gone => "gone".to_owned(),
            };
            renewed.iter().map(word).collect::<Vec<_>>().join("; ")
        }
        Ok(Response::GrantedAfter { reply, waited_ms }) => {
            format!("{}, waited {waited_ms} ms", reply_words(reply))
        }
        Ok(Response::Lock { lock, revision, .. }) => format!("{}as of {revision}", lock_words(lock)),
        Ok(Response::Locks { locks, more, revision, .. }) => {
            let locks = locks.iter().map(|lock| format!("{}: {}", lock.lock, lock_words(lock)));
            let more = if *more { "and more, " } else { "" };
            format!("{}{more}as of {revision}", locks.collect::<String>())
        }
        Ok(Response::Lease { lease, grants, more, waits, remaining, revision }) => {
            let left = remaining.ms(lease.lease).map(|ms| format!("{ms} ms left, ")).unwrap_or_default();
            let grants = grants.iter().map(|grant| format!("{} token {}, ", grant.lock, grant.token));
            let waits = waits.iter().map(|wait| format!("waits for {}, ", wait.lock));
            let more = if *more { "and more, " } else { "" };
            let told: String = grants.chain(waits).collect();
            format!("lease {} of {}, {left}{told}{more}as of {revision}", lease.lease, lease.owner)
        }
        Ok(Response::Leases { leases, next, remaining, revision }) => {
            let leases = leases.iter().map(|it| {
                let left = remaining.ms(it.lease).map(|ms| format!(" {ms} ms left")).unwrap_or_default();
                format!(
                    "{} of {}: {} held, {} waited for{left}; ",
                    it.lease, it.owner, it.grant_count, it.wait_count
                )
            });
            let more = next.map(|next| format!("more after {next}, ")).unwrap_or_default();
            format!("{}{more}as of {revision}", leases.collect::<String>())
        }
        Ok(Response::Token { current: Some(holder), revision, .. }) => {
            format!("current, {} as of {revision}", holder_words(holder))
        }
        Ok(Response::Token { current: None, other, revision, .. }) => {
            let other = other.as_ref().map(|holder| holder_words(holder) + " ").unwrap_or_default();
            format!("not current, {other}as of {revision}")
        }
        Ok(Response::Access(_)) => "access".to_owned(),
        Ok(Response::BackupSchedule(_)) => "how backups are made".to_owned(),
        Ok(Response::Revision(revision)) => format!("revision {revision}"),
        Ok(Response::Leads { member }) => format!("n{member} leads"),
        Err(Failure::QuorumAtRisk { answering, voters }) => {
            format!("QUORUM_AT_RISK, {answering} of {voters} voters answer")
        }
        Err(Failure::CannotLead { name, why }) => format!("CANNOT_LEAD {name}, {why:?}"),
        Err(Failure::Refused(refusal)) => format!("refused: {}", refusal_words(refusal)),
        Err(Failure::NotLeader { leader: None }) => "NOT_LEADER, leader unknown".to_owned(),
        Err(Failure::NotLeader { leader: Some(leader) }) => format!("NOT_LEADER, n{leader} is"),
        Err(Failure::Interrupted { leader: None }) => "INTERRUPTED, leader unknown".to_owned(),
        Err(Failure::Interrupted { leader: Some(leader) }) => format!("INTERRUPTED, n{leader} leads"),
        Err(Failure::WaitTimeout { lock, in_the_way }) => {
            let in_the_way = in_the_way.as_ref().map(|way| ", ".to_owned() + &in_the_way_words(way));
            format!("WAIT_TIMEOUT {lock}{}", in_the_way.unwrap_or_default())
        }
        Err(Failure::WaitGivenUp { lock }) => format!("WAIT_GIVEN_UP {lock}"),
        Err(Failure::OutcomeUnknown) => "OUTCOME_UNKNOWN".to_owned(),
        Err(Failure::Denied(denied)) => format!("DENIED {denied:?}"),
        Err(Failure::Diverged) => "DIVERGED".to_owned(),
        Err(Failure::Busy) => "BUSY".to_owned(),
        Err(Failure::TooManyInFlight { lease }) => format!("TOO_MANY_IN_FLIGHT lease {lease}"),
        Err(Failure::InvitationExpired) => "INVITATION_EXPIRED".to_owned(),
        Err(Failure::TooManyMembers) => "TOO_MANY_MEMBERS".to_owned(),
        Err(Failure::TooManyLeases { leases_max }) => format!("TOO_MANY_LEASES max {leases_max}"),
        Err(Failure::DiskFull) => "DISK_FULL".to_owned(),
        Err(Failure::Quarantine { left_ms }) => format!("QUARANTINE for {left_ms} ms more"),
        Err(Failure::NotUnderstood { by }) => format!("NOT_UNDERSTOOD by {by}"),
        Err(Failure::NodeTooOld { speaks, needs }) => format!("NODE_TOO_OLD speaks {speaks}, needs {needs}"),
    }
}

fn reply_words(reply: &Reply) -> String {
    match reply {
        Reply::LeaseCreated { lease, ttl } => format!("lease {lease}, ttl {} s", ttl.seconds()),
        Reply::LeaseRevoked { released } => format!("revoked, {released} locks released"),
        Reply::Granted { token, lease, revision, .. } => {
            format!("granted: token {token}, lease {lease}, since {revision}")
        }
        Reply::Waiting { ticket } => format!("waiting in place {ticket}"),
        Reply::Released => "released".to_owned(),
        Reply::GivenUp => "given up".to_owned(),
        Reply::ValueSet { revision } => format!("value set at {revision}"),
        Reply::WaitsCancelled { count } => format!("{count} waits cancelled"),
        Reply::Expired { count } => format!("{count} leases expired"),
        Reply::HoldsEnded { count } => format!("{count} grants ended"),
        Reply::MemberAdded { member } => format!("member {member}"),
        Reply::MemberRemoved { member } => format!("member {member} is registered no longer"),
        Reply::GroupPlanned { group } => format!("group {group} planned"),
        Reply::GroupSplit { child } => format!("group {child} split off"),
        Reply::GroupsChanged => "groups changed".to_owned(),
        Reply::AccessChanged => "access changed".to_owned(),
        Reply::BackupScheduleSet => "backups are set".to_owned(),
        Reply::Invited { expires_unix_ms } => format!("invited until {expires_unix_ms} ms"),
        Reply::QuarantineEnded => "quarantine ended".to_owned(),
    }
}

fn refusal_words(refusal: &Refusal) -> String {
    match refusal {
        Refusal::LeaseNotFound { lease } => format!("LEASE_NOT_FOUND {lease}"),
        Refusal::LockNotFound { lock } => format!("LOCK_NOT_FOUND {lock}"),
        Refusal::LockHeld { in_the_way, .. } => format!("LOCK_HELD {}", in_the_way_words(in_the_way)),
        Refusal::AlreadyHeld { lease, mode, scope, .. } => {
            format!("ALREADY_HELD lease {lease}{}", claim_words(*mode, *scope))
        }
        Refusal::TooManyWaiters { lock } => format!("TOO_MANY_WAITERS {lock}"),
        Refusal::NotOwner { .. } => "NOT_OWNER".to_owned(),
        Refusal::StaleToken { given, current, .. } => {
            format!("STALE_TOKEN given {given}, current {current}")
        }
        Refusal::TooManyLocks { lease } => format!("TOO_MANY_LOCKS lease {lease}"),
        Refusal::RequestReused { request } => format!("REQUEST_REUSED {request}"),
        Refusal::GivenUp { request } => format!("GIVEN_UP {request}"),
        Refusal::NodeNameTaken { name, .. } => format!("NODE_NAME_TAKEN {name}"),
        Refusal::NodeKeyDiffers { name } => format!("NODE_KEY_DIFFERS {name}"),
        Refusal::InvitationNotFound => "INVITATION_NOT_FOUND".to_owned(),
        Refusal::InvitationUsed => "INVITATION_USED".to_owned(),
        Refusal::NodeNotFound { name } => format!("NODE_NOT_FOUND {name}"),
        Refusal::LastNode { name } => format!("LAST_NODE {name}"),
        Refusal::PrincipalNotFound { principal } => format!("PRINCIPAL_NOT_FOUND {principal}"),
        Refusal::TokenNotFound { token } => format!("TOKEN_NOT_FOUND {token}"),
        Refusal::ProofTaken { what } => format!("PROOF_TAKEN {what}"),
        Refusal::AccessLimit { what, max } => format!("ACCESS_LIMIT {max} {what}"),
        Refusal::AdminNeeded => "ADMIN_NEEDED".to_owned(),
        Refusal::Draining { lock, from } => format!("DRAINING {lock}, from {from}"),
        Refusal::Split(refusal) => format!("SPLIT {refusal:?}"),
        Refusal::NotHere { group } => format!("NOT_HERE group {group}"),
        Refusal::LeaseElsewhere { lease, group } => format!("LEASE_ELSEWHERE lease {lease}, group {group}"),
        Refusal::SubtreeSplit { lock, boundary } => format!("SUBTREE_SPLIT {lock}, at {boundary}"),
        Refusal::Quarantine => "QUARANTINE".to_owned(),
    }
}

/// `by alice with lease 1, token 1`, and whatever else is out of the ordinary.
fn in_the_way_words(in_the_way: &InTheWay) -> String {
    let InTheWay { holder, waiters, .. } = in_the_way;
    let held = grant_words(holder);
    if *waiters > 0 { format!("{held}, waiters {waiters}") } else { held }
}

fn holder_words(holder: &Holder) -> String {
    format!("held {},", grant_words(holder))
}

fn grant_words(holder: &Holder) -> String {
    let Holder { owner, lease, token, mode, scope, value, .. } = holder;
    format!(
        "by {owner} with lease {lease}, token {token}{}{}",
        claim_words(*mode, *scope),
        value_words(value)
    )
}

/// Nothing for an exclusive claim on a name.
fn claim_words(mode: Mode, scope: Scope) -> &'static str {
    match (mode, scope) {
        (Mode::Exclusive, Scope::Name) => "",
        (Mode::Shared, Scope::Name) => ", shared",
        (Mode::Exclusive, Scope::Subtree) => ", subtree",
        (Mode::Shared, Scope::Subtree) => ", shared, subtree",
    }
}

fn value_words(value: &Value) -> String {
    if value.is_empty() { String::new() } else { format!(", value {}", value.as_str()) }
}

fn lock_words(lock: &LockView) -> String {
    let holders = lock.holders.iter().map(|holder| holder_words(holder) + " ");
    let waiters = lock.waiters.iter().map(|waiter| {
        let claim = claim_words(waiter.mode, waiter.scope);
        format!("{} waits with lease {}{claim}, ", waiter.owner, waiter.lease)
    });
    let free = match (lock.holder_count, lock.waiter_count) {
        (0, 0) => "free ",
        (0, _) => "free, ",
        _ => "",
    };
    [free.to_owned()].into_iter().chain(holders).chain(waiters).collect()
}

/// `a acquired by bob with lease 2, token 2`
pub(crate) fn change_words(change: &Change) -> String {
    let Change { kind, lock, owner, lease, token, mode, scope, value, .. } = change;
    let what = match kind {
        ChangeKind::Acquired => "acquired by",
        ChangeKind::Freed(Cause::Released) => "released by",
        ChangeKind::Freed(Cause::Revoked) => "revoked from",
        ChangeKind::Freed(Cause::Expired) => "expired from",
        ChangeKind::Freed(Cause::HeldTooLong) => "held too long by",
        ChangeKind::Waiting => "awaited by",
        ChangeKind::Cancelled => "no longer awaited by",
        ChangeKind::ValueSet => "value set by",
    };
    let token = token.map(|token| format!(", token {token}")).unwrap_or_default();
    let claim = claim_words(*mode, *scope);
    format!("{lock} {what} {owner} with lease {lease}{token}{claim}{}", value_words(value))
}

/// `leads term 2, serving` or `follows n1 in term 2`.
pub(crate) fn standing_words(status: &Status) -> String {
    let standing = match (status.role, status.leader) {
        (Role::Leader, _) if status.serving => format!("leads term {}, serving", status.term),
        (Role::Leader, _) => format!("leads term {}", status.term),
        (Role::Candidate, _) => format!("stands for election in term {}", status.term),
        (Role::Follower, Some(leader)) => format!("follows n{leader} in term {}", status.term),
        (Role::Follower, None) => format!("follows nobody in term {}", status.term),
    };
    match status.divergence {
        None => standing,
        Some(divergence) => format!("{standing}, and stopped: {divergence:?}"),
    }
}

pub(crate) fn voters_words(status: &Status) -> String {
    let voters: Vec<String> = status
        .members
        .iter()
        .filter(|member| member.voter)
        .map(|member| format!("n{}", member.member))
        .collect();
    let voters = if voters.is_empty() { "nobody".to_owned() } else { voters.join(" ") };
    let leaving: Vec<String> = status.leaving.iter().map(|member| format!("n{member}")).collect();
    match leaving.as_slice() {
        [] if status.has_removed(status.member) => voters + ", and itself removed",
        [] => voters,
        _ => format!("{voters}, leaving {}", leaving.join(" ")),
    }
}
