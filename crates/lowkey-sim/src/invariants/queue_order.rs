//! Grants follow the queue; nobody overtakes; whoever could be granted is; cancelled and dead waiters
//! vanish (`docs/internals/waiting.md`; `docs/internals/invariants.md`, points 3 and 5; R10).
//!
//! Judged by the ledger's plain lists and by the words of `docs/internals/waiting.md`, after every change and after every
//! entry, with nothing of the state machine's own code.

use lowkey_core::{Command, Mode, Reply, Scope};

use super::chronicle::{Chronicle, HoldSeen, WaitSeen};
use super::{Check, Committed, Ledger, broken};

pub(crate) const NAME: &str = "queue order";

/// A lock is granted: nobody who holds excludes it, and nobody who has waited for longer.
pub(super) fn may_be_granted(ledger: &Chronicle, granted: &HoldSeen) -> Check {
    let claim = granted.claim();
    if let Some(rival) = ledger.holders.iter().find(|held| held.claim().excludes(&claim)) {
        return broken(
            NAME,
            format!(
                "{} is granted to {} while {} holds {}",
                claim.lock, granted.owner, rival.owner, rival.lock
            ),
        );
    }
    // Who did not wait comes after all who do.
    let is_place = |waiting: &&WaitSeen| waiting.lease == granted.lease && waiting.lock == granted.lock;
    let place = ledger.waiters.iter().find(is_place).map(|waiting| waiting.ticket);
    let earlier = ledger.waiters.iter().take_while(|waiting| Some(waiting.ticket) != place);
    // What a lease's own subtree covers keeps nobody waiting who would not wait for that lease anyway.
    let is_own = |held: &HoldSeen| {
        let is_strong = held.mode == Mode::Exclusive || granted.mode == Mode::Shared;
        let below = granted.lock.as_str().strip_prefix(held.lock.as_str());
        held.lease == granted.lease
            && held.scope == Scope::Subtree
            && is_strong
            && below.is_some_and(|below| below.starts_with('/'))
    };
    let is_covered = ledger.holders.iter().any(is_own);
    if !is_covered && let Some(rival) = earlier.into_iter().find(|waiting| waiting.claim().excludes(&claim)) {
        return broken(
            NAME,
            format!(
                "{} is granted to {} before {}, who was there first",
                claim.lock, granted.owner, rival.owner
            ),
        );
    }
    Ok(())
}

/// A lock is granted to a lease that lives.
pub(super) fn has_lease(ledger: &Ledger, granted: &HoldSeen) -> Check {
    let HoldSeen { lock, lease, .. } = granted;
    match ledger.leases.get(lease).is_none_or(|(_, ended)| ended.is_some()) {
        true => broken(NAME, format!("{lock} is granted to lease {lease}, which is gone")),
        false => Ok(()),
    }
}

/// A grant ends. R10: never because a wait was cancelled.
pub(super) fn may_be_freed(committed: &Committed, held: &HoldSeen) -> Check {
    match &committed.command {
        Command::Release { .. } | Command::RevokeLease { .. } | Command::Expire { .. } => Ok(()),
        Command::EndHolds { holds, .. } if holds.iter().any(|hold| hold.token == held.token) => Ok(()),
        _ => broken(NAME, format!("entry {} takes {} from {}", committed.index, held.lock, held.owner)),
    }
}

/// A wait ends: with the lock, or because somebody or its lease's end said so.
pub(super) fn may_end(ledger: &Ledger, committed: &Committed, ended: &WaitSeen, granted: bool) -> Check {
    let holds = |held: &HoldSeen| held.lease == ended.lease && held.lock == ended.lock;
    if granted {
        return match ledger.holders.iter().any(holds) {
            true => Ok(()),
            false => broken(NAME, format!("{} was told to have {}, and has not", ended.owner, ended.lock)),
        };
    }
    let has_reason = match &committed.command {
        Command::CancelWait { tickets, .. } => tickets.contains(&ended.ticket),
        Command::Release { .. } => true,
        Command::RevokeLease { lease, .. } => *lease == ended.lease,
        Command::Expire { leases, .. } => leases.contains(&ended.lease),
        _ => false,
    };
    match has_reason {
        true => Ok(()),
        false => broken(NAME, format!("entry {} ends the wait of {}", committed.index, ended.owner)),
    }
}

/// After an entry: whoever still waits has to.
pub(super) fn is_settled(ledger: &Chronicle, revision: u64) -> Check {
    for (at, waiting) in ledger.waiters.iter().enumerate() {
        let claim = waiting.claim();
        let by_holder = ledger.holders.iter().any(|held| held.claim().excludes(&claim));
        let by_waiter = || ledger.waiters[..at].iter().any(|earlier| earlier.claim().excludes(&claim));
        if !by_holder && !by_waiter() {
            return broken(
                NAME,
                format!("after entry {revision} {} waits for {} in vain", waiting.owner, claim.lock),
            );
        }
    }
    Ok(())
}

/// After an entry: whoever holds or waits has a lease to do so with.
pub(super) fn has_leases(ledger: &Ledger) -> Check {
    let leases = ledger.holders.iter().map(|held| held.lease);
    let mut leases = leases.chain(ledger.waiters.iter().map(|waiting| waiting.lease));
    match leases.find(|lease| ledger.leases.get(lease).is_none_or(|(_, ended)| ended.is_some())) {
        Some(lease) => broken(NAME, format!("lease {lease} is gone, and still holds or waits")),
        None => Ok(()),
    }
}

/// After an entry: what it was to end is gone.
pub(super) fn has_done(ledger: &Ledger, committed: &Committed) -> Check {
    match (&committed.command, &committed.applied.reply) {
        (Command::CancelWait { tickets, .. }, _) => {
            match ledger.waiters.iter().find(|waiting| tickets.contains(&waiting.ticket)) {
                Some(waiting) => broken(NAME, format!("{} still waits for {}", waiting.owner, waiting.lock)),
                None => Ok(()),
            }
        }
        (Command::EndHolds { holds, .. }, Ok(Reply::HoldsEnded { count: 1.. })) => {
            let is_named = |held: &&HoldSeen| holds.iter().any(|hold| hold.token == held.token);
            match ledger.holders.iter().find(is_named) {
                Some(held) => broken(NAME, format!("{} still holds {}", held.owner, held.lock)),
                None => Ok(()),
            }
        }
        (Command::Expire { leases, .. }, Ok(Reply::Expired { count: 1.. })) => {
            match leases
                .iter()
                .find(|lease| ledger.leases.get(lease).is_none_or(|(_, ended)| ended.is_none()))
            {
                Some(lease) => broken(NAME, format!("lease {lease} lives on after its end")),
                None => Ok(()),
            }
        }
        _ => Ok(()),
    }
}
