//! How a world's story reads: plans, requests and answers as sentences, for someone who has never seen
//! the code.

use std::collections::BTreeSet;

use lowkey_core::{
    AcquireWith, Command, GrantRef, Holder, InTheWay, LeaseId, LockName, LockView, Mode, Refusal, Reply,
    Scope, WaitEnd,
};
use lowkey_replica::{Failure, Query, Request, Response, Role};

use crate::invariants::Committed;
use crate::plan::{Faults, MILLISECOND, SECOND, WorldPlan};

/// What a world is like.
pub(crate) fn plan_words(plan: &WorldPlan) -> String {
    format!(
        "a world of {}{}, {} and {}; for {} s there are {}; then all is quiet",
        counted(plan.replicas, "machine"),
        if plan.groups > 1 { format!(" with {}", counted(plan.groups, "group")) } else { String::new() },
        counted(plan.clients, "client"),
        counted(plan.names.len(), "lock"),
        plan.active_nanos / SECOND,
        fault_words(&plan.faults),
    )
}

fn fault_words(faults: &Faults) -> String {
    let kinds = [
        (faults.loss_one_in, "lost messages"),
        (faults.duplicate_one_in, "messages that arrive twice"),
        (faults.late_one_in, "late messages"),
        (faults.partition_nanos, "partitions"),
        (faults.crash_nanos, "crashes of machines"),
        (faults.crash_all_nanos, "crashes of all machines at once"),
        (faults.pause_nanos, "pauses of machines"),
        (faults.client_pause_nanos, "pauses of clients"),
        (faults.client_crash_nanos, "crashes of clients"),
        (faults.stall_nanos, "disks that stall"),
        (faults.starve_nanos, "starved machines"),
        (faults.sync_failure_nanos, "syncs that fail"),
        (faults.transfer_nanos, "wishes that the lead move"),
        (faults.clock_skew_permille, "clocks that run at different rates"),
        (u64::from(faults.damage), "damaged logs"),
    ];
    let present: Vec<&str> = kinds.into_iter().filter(|(rate, _)| *rate > 0).map(|(_, name)| name).collect();
    if present.is_empty() { "no faults".to_owned() } else { listed(&present) }
}

/// Who was granted what by an entry that somebody else asked for, or that ended waits.
pub(crate) fn handed_over(committed: &Committed) -> impl Iterator<Item = String> {
    committed.applied.events.iter().filter_map(move |event| {
        let lowkey_core::Event::WaitEnded { ticket, end } = event else { return None };
        let how = match end {
            WaitEnd::Granted(reply) => reply_words(reply),
            WaitEnd::Cancelled { .. } => "its time is over".to_owned(),
            WaitEnd::GivenUp { .. } => "it was given up".to_owned(),
            WaitEnd::LeaseGone { lease } => format!("lease {lease} is gone"),
        };
        Some(format!("with entry {} the wait of entry {ticket} ends: {how}", committed.index))
    })
}

/// What somebody asks for: "… to take lock-1".
pub(crate) fn request_words(request: &Request) -> String {
    match request {
        Request::Command(command) => command_words(command),
        Request::Renew { lease, .. } => format!("renew lease {lease}"),
        Request::RenewMany(leases) => format!("renew {} leases", leases.len()),
        Request::Wait { command, wait } => {
            format!("{}, waiting for up to {} ms", command_words(command), wait.milliseconds())
        }
        Request::Read(query) => query_words(query),
        Request::ReadStale(query) => format!("{}, as far as it knows", query_words(query)),
        Request::Transfer { to } => format!("give the lead to {to}"),
    }
}

fn query_words(query: &Query) -> String {
    match query {
        Query::Lock { lock } => format!("say who holds {lock}"),
        Query::Locks { prefix, .. } if prefix.as_str().is_empty() => "list the locks".to_owned(),
        Query::Locks { prefix, .. } => format!("list the locks that begin with {prefix}"),
        Query::Token { lock, token } => format!("say whether token {token} of {lock} is current"),
        Query::Lease { lease, .. } => format!("say what lease {lease} holds"),
        Query::Leases { .. } => "list the leases".to_owned(),
        Query::Revision => "say how far the log goes".to_owned(),
        Query::Access => "say who may do what".to_owned(),
        Query::BackupSchedule => "say how backups are made".to_owned(),
    }
}

/// What an entry of the log says is to be done.
pub(crate) fn command_words(command: &Command) -> String {
    match command {
        Command::CreateLease { owner, ttl, .. } => {
            format!("make a lease of {} s for {owner}", ttl.seconds())
        }
        Command::RevokeLease { lease, owner, .. } => {
            format!("end lease {lease}, as its owner {owner} wishes")
        }
        Command::Acquire { lock, owner, with, mode, scope, max_hold, .. } => {
            let lease = match with {
                AcquireWith::Lease(lease) => format!("lease {lease}"),
                AcquireWith::NewLease(ttl) => format!("a new lease of {} s", ttl.seconds()),
            };
            let limit = max_hold.map(|limit| format!(", for {} s at most", limit.seconds()));
            let claim = claim_words(lock, *mode, *scope);
            format!("give {claim} to {owner}, with {lease}{}", limit.unwrap_or_default())
        }
        Command::Release { lock, grant, token, .. } => {
            let with = match grant {
                GrantRef::Lease(lease) => format!("lease {lease}"),
                GrantRef::Request(request, _) => format!("request {request}"),
                GrantRef::GivenUp(request, _) => format!("request {request}, for good"),
            };
            match token {
                Some(token) => format!("free {lock}, held with {with} and token {token}"),
                None => format!("free {lock}, held with {with}"),
            }
        }
        Command::SetValue { lock, lease, value, .. } => {
            format!("show {value:?} with {lock}, held with lease {lease}")
        }
        Command::CancelWait { tickets, .. } => {
            let numbers: Vec<String> = tickets.iter().map(|ticket| format!("of entry {ticket}")).collect();
            format!("end the wait {}", listed(&numbers.iter().map(String::as_str).collect::<Vec<_>>()))
        }
        Command::Expire { leases, decided_term, .. } => {
            format!("end {}, whose time ran out in term {decided_term}", leases_words(leases))
        }
        Command::EndHolds { holds, decided_term, .. } => {
            let locks: Vec<&str> = holds.iter().map(|hold| hold.lock.as_str()).collect();
            format!("take {}, held for as long as may be, says term {decided_term}", listed(&locks))
        }
        Command::AddMember { node, .. } => format!("let {} join", node.name),
        Command::UpdateMember { node, .. } => format!("note where {} is", node.name),
        Command::RemoveMember { name, .. } => format!("remove {name}"),
        Command::Groups(change) => format!("change the groups: {change:?}"),
        Command::Access(change) => format!("change who may do what: {change:?}"),
        Command::Invite { invitation, .. } => format!("make invitation {}", invitation.0[0]),
        Command::SetBackupSchedule(schedule) => format!("set how backups are made: {schedule:?}"),
        Command::EndQuarantine => "grant locks again".to_owned(),
    }
}

/// "lock-1", "lock-1 and all below it, shared".
fn claim_words(lock: &LockName, mode: Mode, scope: Scope) -> String {
    let below = if scope == Scope::Subtree { " and all below it" } else { "" };
    let shared = if mode == Mode::Shared { ", shared," } else { "" };
    format!("{lock}{below}{shared}")
}

fn leases_words(leases: &[LeaseId]) -> String {
    match leases {
        [lease] => format!("lease {lease}"),
        [_, ..] if leases.len() <= 5 => {
            let numbers: Vec<String> = leases.iter().map(LeaseId::to_string).collect();
            format!("leases {}", listed(&numbers.iter().map(String::as_str).collect::<Vec<_>>()))
        }
        _ => counted(leases.len(), "lease"),
    }
}

/// What came of an entry.
pub(crate) fn outcome_words(reply: &Result<Reply, Refusal>) -> String {
    match reply {
        Ok(reply) => reply_words(reply),
        Err(refusal) => refusal_words(refusal),
    }
}

/// What a client was told.
pub(crate) fn answer_words(answer: &Result<Response, Failure>) -> String {
    match answer {
        Ok(Response::Applied(reply)) => reply_words(reply),
        Ok(Response::Renewed { ttl, .. }) => format!("it lives for {} s more", ttl.seconds()),
        Ok(Response::RenewedMany(renewed)) => format!("{} renewals are answered", renewed.len()),
        Ok(Response::GrantedAfter { reply, waited_ms }) => {
            format!("{} after {waited_ms} ms", reply_words(reply))
        }
        Ok(Response::Lock { lock, revision, .. }) => format!("{}, as of entry {revision}", lock_words(lock)),
        Ok(Response::Locks { locks, more, revision, .. }) => {
            let held = counted(locks.len(), "lock");
            let more = if *more { " and more" } else { "" };
            format!("there are {held}{more}, as of entry {revision}")
        }
        Ok(Response::Lease { lease, grants, revision, .. }) => {
            format!("lease {} holds {} locks, as of entry {revision}", lease.lease, grants.len())
        }
        Ok(Response::Leases { leases, revision, .. }) => {
            format!("{} leases, as of entry {revision}", leases.len())
        }
        Ok(Response::Token { current, other, revision, .. }) => {
            let who = match (current, other) {
                (Some(holder), _) => format!("it is, {} has it", holder.owner),
                (None, Some(other)) => format!("it is not, {}", holder_words(other)),
                (None, None) => "it is not, nobody has one".to_owned(),
            };
            format!("{who}, as of entry {revision}")
        }
        Ok(Response::Access(_)) => "who may do what".to_owned(),
        Ok(Response::BackupSchedule(_)) => "how backups are made".to_owned(),
        Ok(Response::Revision(revision)) => format!("up to entry {revision}"),
        Ok(Response::Leads { member }) => format!("n{member} leads"),
        Err(Failure::Refused(refusal)) => refusal_words(refusal),
        Err(Failure::NotLeader { leader: None }) => "not done, I do not lead".to_owned(),
        Err(Failure::NotLeader { leader: Some(leader) }) => format!("not done, n{leader} leads"),
        Err(Failure::Interrupted { leader: None }) => "wait elsewhere, I no longer lead".to_owned(),
        Err(Failure::Interrupted { leader: Some(leader) }) => format!("wait elsewhere, n{leader} leads"),
        Err(Failure::WaitTimeout { lock, in_the_way: None }) => format!("too late, {lock} was not to be had"),
        Err(Failure::WaitTimeout { in_the_way: Some(in_the_way), .. }) => {
            format!("too late, {}", in_the_way_words(in_the_way))
        }
        Err(Failure::WaitGivenUp { lock }) => format!("the wait for {lock} was given up"),
        Err(Failure::OutcomeUnknown) => "I cannot tell whether that will be done".to_owned(),
        Err(Failure::Busy) => "not done, too much is waiting".to_owned(),
        Err(Failure::TooManyInFlight { lease }) => format!("not done, lease {lease} has too much under way"),
        Err(Failure::TooManyLeases { .. }) => "not done, there are too many leases".to_owned(),
        Err(Failure::InvitationExpired) => "not done, the invitation's time is over".to_owned(),
        Err(Failure::TooManyMembers) => "not done, there are too many members".to_owned(),
        Err(Failure::DiskFull) => "not done, the disk is full".to_owned(),
        Err(Failure::QuorumAtRisk { answering, voters }) => {
            format!("not done, of the {voters} that would be left only {answering} answer")
        }
        Err(Failure::CannotLead { name, .. }) => format!("not done, {name} does not lead"),
        Err(Failure::Denied(denied)) => format!("not permitted: {denied:?}"),
        Err(Failure::Diverged) => "not done, my state is in doubt".to_owned(),
        Err(Failure::Quarantine { .. }) => "not done, the cluster began anew".to_owned(),
        Err(Failure::NotUnderstood { by }) => format!("not done, {by} does not understand it"),
        Err(Failure::NodeTooOld { .. }) => "not done, the machine's version is too old".to_owned(),
    }
}

fn lock_words(lock: &LockView) -> String {
    let holders: Vec<String> = lock.holders.iter().map(holder_words).collect();
    let holders = match holders.as_slice() {
        [] => "nobody does".to_owned(),
        holders => listed(&holders.iter().map(String::as_str).collect::<Vec<_>>()),
    };
    match lock.waiter_count {
        0 => holders,
        count => format!("{holders}, and {count} wait"),
    }
}

fn holder_words(holder: &Holder) -> String {
    format!("{} does, with token {}", holder.owner, holder.token)
}

fn in_the_way_words(InTheWay { held, holder, .. }: &InTheWay) -> String {
    format!("{} holds {held} with token {}", holder.owner, holder.token)
}

fn reply_words(reply: &Reply) -> String {
    match reply {
        Reply::LeaseCreated { lease, ttl } => format!("done, it is lease {lease}, of {} s", ttl.seconds()),
        Reply::LeaseRevoked { released } => {
            format!("done, and {} came free", counted(*released as usize, "lock"))
        }
        Reply::Granted { token, lease, .. } => format!("granted to lease {lease}, with token {token}"),
        Reply::Waiting { .. } => "it has to wait".to_owned(),
        Reply::ValueSet { .. } => "done".to_owned(),
        Reply::WaitsCancelled { count: 0 } => "nothing ended".to_owned(),
        Reply::WaitsCancelled { count } => format!("{} ended", counted(*count as usize, "wait")),
        Reply::Released => "done".to_owned(),
        Reply::GivenUp => "it is given up".to_owned(),
        Reply::Expired { count: 0 } => "nothing ended".to_owned(),
        Reply::Expired { count } => format!("{} ended", counted(*count as usize, "lease")),
        Reply::HoldsEnded { count: 0 } => "nothing ended".to_owned(),
        Reply::HoldsEnded { count } => format!("{} ended", counted(*count as usize, "grant")),
        Reply::MemberAdded { member } => format!("done, it is member {member}"),
        Reply::MemberRemoved { member } => format!("done, it was member {member}"),
        Reply::GroupPlanned { group } => format!("done, it may be group {group}"),
        Reply::GroupSplit { child } => format!("done, the rest is group {child}"),
        Reply::GroupsChanged => "done, it is so".to_owned(),
        Reply::AccessChanged | Reply::BackupScheduleSet => "done, it is so".to_owned(),
        Reply::Invited { expires_unix_ms } => format!("done, until {expires_unix_ms} ms"),
        Reply::QuarantineEnded => "done".to_owned(),
    }
}

fn refusal_words(refusal: &Refusal) -> String {
    match refusal {
        Refusal::LeaseNotFound { lease } => format!("refused, lease {lease} is gone"),
        Refusal::LockNotFound { lock } => format!("refused, nobody holds {lock}"),
        Refusal::LockHeld { in_the_way, .. } => format!("refused, {}", in_the_way_words(in_the_way)),
        Refusal::AlreadyHeld { lock, lease, .. } => {
            format!("refused, lease {lease} has {lock} or waits for it, in another way")
        }
        Refusal::TooManyWaiters { lock } => format!("refused, too many wait for {lock}"),
        Refusal::NotOwner { what } => format!("refused, {what}"),
        Refusal::StaleToken { given, current, .. } => {
            format!("refused, token {given} is old, the present one is {current}")
        }
        Refusal::TooManyLocks { lease } => format!("refused, lease {lease} holds too many locks"),
        Refusal::RequestReused { request } => format!("refused, {request} was the id of another request"),
        Refusal::GivenUp { request } => format!("refused, {request} was given up"),
        Refusal::NodeNameTaken { name, .. } => format!("refused, another machine is named {name}"),
        Refusal::NodeKeyDiffers { name } => format!("refused, {name} has another key"),
        Refusal::InvitationNotFound => "refused, there is no such invitation".to_owned(),
        Refusal::InvitationUsed => "refused, another machine came with that invitation".to_owned(),
        Refusal::NodeNotFound { name } => format!("refused, there is no machine {name}"),
        Refusal::LastNode { name } => format!("refused, {name} is the last machine"),
        Refusal::PrincipalNotFound { principal } => format!("refused, there is no principal {principal}"),
        Refusal::TokenNotFound { token } => format!("refused, there is no token {token}"),
        Refusal::ProofTaken { what } => format!("refused, {what}"),
        Refusal::AccessLimit { what, max } => format!("refused, there are {max} {what} already"),
        Refusal::AdminNeeded => "refused, there would be no admin".to_owned(),
        Refusal::Draining { from, .. } => format!("refused, names from {from} on are to move"),
        Refusal::Split(refusal) => format!("refused, {refusal:?}"),
        Refusal::NotHere { group } => format!("refused, that is not of group {group}"),
        Refusal::LeaseElsewhere { lease, group } => format!("refused, lease {lease} is of group {group}"),
        Refusal::SubtreeSplit { boundary, .. } => format!("refused, {boundary} lies inside"),
        Refusal::Quarantine => "refused, the cluster began anew".to_owned(),
    }
}

/// What changed in a machine's standing (term, role, and whether it may touch leases), if a reader
/// wants to know.
pub(crate) fn standing_words(before: (u64, Role, bool), now: (u64, Role, bool)) -> Option<String> {
    match (before, now) {
        ((led, Role::Leader, _), (term, Role::Leader, _)) if led != term => {
            Some(format!("is elected again and leads term {term}"))
        }
        ((_, Role::Leader, false), (_, Role::Leader, true)) => {
            Some("serves: every lease has its whole time from now on".to_owned())
        }
        ((_, Role::Leader, _), (_, Role::Leader, _)) => None,
        (_, (term, Role::Leader, false)) => Some(format!("is elected and leads term {term}")),
        (_, (term, Role::Leader, true)) => Some(format!(
            "is elected, leads term {term} and serves: every lease has its whole time from now on"
        )),
        ((_, Role::Leader, _), _) => Some("no longer leads".to_owned()),
        ((_, Role::Follower, _), (_, Role::Candidate, _)) => Some("stands for election".to_owned()),
        _ => None,
    }
}

/// Links that are cut: "n1 to n2".
pub(crate) fn cut_words(cut: &BTreeSet<(usize, usize)>) -> String {
    let links: Vec<String> = cut.iter().map(|(from, to)| format!("n{} to n{}", from + 1, to + 1)).collect();
    match links.as_slice() {
        [] => "no messages between machines are lost".to_owned(),
        links => {
            format!("lost is all from {}", listed(&links.iter().map(String::as_str).collect::<Vec<_>>()))
        }
    }
}

/// A span in words.
pub(crate) fn span_words(nanos: u64) -> String {
    format!("{} ms", nanos / MILLISECOND)
}

fn counted(count: usize, what: &str) -> String {
    if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") }
}

/// "a", "a and b", "a, b and c".
fn listed(words: &[&str]) -> String {
    match words {
        [] => "nothing".to_owned(),
        [only] => (*only).to_owned(),
        [most @ .., last] => format!("{} and {last}", most.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_read_as_in_a_sentence() {
        assert_eq!(listed(&["a"]), "a");
        assert_eq!(listed(&["a", "b", "c"]), "a, b and c");
        assert_eq!(counted(1, "lock"), "1 lock");
        assert_eq!(leases_words(&[LeaseId(1), LeaseId(7)]), "leases 1 and 7");
    }
}
