//! An election has at most one leader at a time, by the log and by belief, and what is told of it is what it
//! said itself (`docs/internals/watching.md`: an election is a lock with a value).

use std::collections::{BTreeMap, BTreeSet};

use lowkey_core::{ChangeKind, Command, Event, Holder, LockName, OwnerId};
use lowkey_replica::{Request, Response};

use super::{Check, Committed, Ledger, broken};
use crate::client::{SimClient, command_of};
use crate::plan::WorldPlan;

const NAME: &str = "elections";

#[derive(Default)]
pub(crate) struct Elections {
    /// What each client ever wanted to be told of itself, by lock.
    said: BTreeMap<(OwnerId, LockName), BTreeSet<String>>,
}

impl Elections {
    /// A client asks for something.
    pub(crate) fn asked(&mut self, request: &Request) {
        if let Some(
            Command::Acquire { lock, owner, value, .. } | Command::SetValue { lock, owner, value, .. },
        ) = command_of(request)
        {
            let said = self.said.entry((owner.clone(), lock.clone())).or_default();
            said.insert(value.as_str().to_owned());
        }
    }

    pub(crate) fn committed(&self, committed: &Committed, ledger: &Ledger, plan: &WorldPlan) -> Check {
        for event in &committed.applied.events {
            let Event::Changed(change) = event else { continue };
            if matches!(change.kind, ChangeKind::Acquired | ChangeKind::ValueSet) {
                self.was_said(&change.lock, &change.owner, change.value.as_str())?;
            }
            let leaders = || ledger.holders.iter().filter(|held| held.lock == change.lock).count();
            if plan.is_election(&change.lock) && leaders() > 1 {
                return broken(NAME, format!("{} has {} leaders", change.lock, leaders()));
            }
        }
        Ok(())
    }

    /// A client was told something.
    pub(crate) fn told(&self, response: &Response) -> Check {
        let holder =
            |lock: &LockName, holder: &Holder| self.was_said(lock, &holder.owner, holder.value.as_str());
        match response {
            Response::Lock { lock, .. } => lock.holders.iter().try_for_each(|each| holder(&lock.lock, each)),
            Response::Locks { locks, .. } => locks
                .iter()
                .try_for_each(|lock| lock.holders.iter().try_for_each(|each| holder(&lock.lock, each))),
            _ => Ok(()),
        }
    }

    fn was_said(&self, lock: &LockName, owner: &OwnerId, value: &str) -> Check {
        match self.said.get(&(owner.clone(), lock.clone())) {
            Some(said) if said.contains(value) => Ok(()),
            _ => broken(NAME, format!("{owner} never said {value:?} of {lock}")),
        }
    }
}

/// A client has just begun to believe: of an election nobody else is the leader.
pub(crate) fn one_leader<'a>(
    clients: impl Iterator<Item = &'a SimClient>,
    plan: &WorldPlan,
    now: u64,
) -> Check {
    let mut leaders: BTreeMap<&LockName, &OwnerId> = BTreeMap::new();
    for client in clients {
        for (hold, _) in client.beliefs_at(now).filter(|(hold, _)| plan.is_election(&hold.lock)) {
            if let Some(other) = leaders.insert(&hold.lock, &client.owner) {
                return broken(NAME, format!("{other} and {} both lead {}", client.owner, hold.lock));
            }
        }
    }
    Ok(())
}
