//! How messages and answers read in a script.

use lowkey_core::{Command, Refusal, Reply};
use lowkey_replica::{Failure, Message, MessageType, Response, Role, Status};

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
        Ok(Command::Expire { leases, .. }) => format!("expire({leases:?})"),
        Ok(Command::AddMember { node }) => format!("add_member({})", node.name),
        Err(_) => "members".to_owned(),
    }
}

pub(crate) fn answer_words(answer: &Result<Response, Failure>) -> String {
    match answer {
        Ok(Response::Applied(reply)) => reply_words(reply),
        Ok(Response::Renewed { ttl }) => format!("renewed, ttl {} s", ttl.seconds()),
        Ok(Response::Lock { holder: None, revision }) => format!("free as of {revision}"),
        Ok(Response::Lock { holder: Some(holder), revision }) => format!(
            "held by {} with lease {}, token {}, as of {revision}",
            holder.owner, holder.lease, holder.token
        ),
        Err(Failure::Refused(refusal)) => format!("refused: {}", refusal_words(refusal)),
        Err(Failure::NotLeader { leader: None }) => "NOT_LEADER, leader unknown".to_owned(),
        Err(Failure::NotLeader { leader: Some(leader) }) => format!("NOT_LEADER, n{leader} is"),
        Err(Failure::OutcomeUnknown) => "OUTCOME_UNKNOWN".to_owned(),
        Err(Failure::Busy) => "BUSY".to_owned(),
        Err(Failure::TooManyInFlight { lease }) => format!("TOO_MANY_IN_FLIGHT lease {lease}"),
        Err(Failure::TooManyLeases { leases_max }) => format!("TOO_MANY_LEASES max {leases_max}"),
        Err(Failure::DiskFull) => "DISK_FULL".to_owned(),
    }
}

fn reply_words(reply: &Reply) -> String {
    match reply {
        Reply::LeaseCreated { lease, ttl } => format!("lease {lease}, ttl {} s", ttl.seconds()),
        Reply::LeaseRevoked { released } => format!("revoked, {released} locks released"),
        Reply::Granted { token, lease, revision, .. } => {
            format!("granted: token {token}, lease {lease}, since {revision}")
        }
        Reply::Released => "released".to_owned(),
        Reply::Expired { count } => format!("{count} leases expired"),
        Reply::MemberAdded { member } => format!("member {member}"),
    }
}

fn refusal_words(refusal: &Refusal) -> String {
    match refusal {
        Refusal::LeaseNotFound { lease } => format!("LEASE_NOT_FOUND {lease}"),
        Refusal::LockNotFound { lock } => format!("LOCK_NOT_FOUND {lock}"),
        Refusal::LockHeld { holder, .. } => {
            format!("LOCK_HELD by {} with lease {}, token {}", holder.owner, holder.lease, holder.token)
        }
        Refusal::NotOwner { .. } => "NOT_OWNER".to_owned(),
        Refusal::StaleToken { given, current, .. } => {
            format!("STALE_TOKEN given {given}, current {current}")
        }
        Refusal::TooManyLocks { lease } => format!("TOO_MANY_LOCKS lease {lease}"),
        Refusal::RequestReused { request } => format!("REQUEST_REUSED {request}"),
        Refusal::NodeNameTaken { name, .. } => format!("NODE_NAME_TAKEN {name}"),
    }
}

/// `leads term 2, serving` or `follows n1 in term 2`.
pub(crate) fn standing_words(status: &Status) -> String {
    match (status.role, status.leader) {
        (Role::Leader, _) if status.serving => format!("leads term {}, serving", status.term),
        (Role::Leader, _) => format!("leads term {}", status.term),
        (Role::Candidate, _) => format!("stands for election in term {}", status.term),
        (Role::Follower, Some(leader)) => format!("follows n{leader} in term {}", status.term),
        (Role::Follower, None) => format!("follows nobody in term {}", status.term),
    }
}

pub(crate) fn voters_words(status: &Status) -> String {
    let voters: Vec<String> = status
        .members
        .iter()
        .filter(|member| member.voter)
        .map(|member| format!("n{}", member.member))
        .collect();
    if voters.is_empty() { "nobody".to_owned() } else { voters.join(" ") }
}
