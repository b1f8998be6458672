//! A cluster splits twice, and whoever carries a split out may crash at every step of it.
//!
//! Attacked: `docs/internals/groups.md`, a split. The states of the groups are real, and so are their entries; the births
//! are not yet, so the script carries them out itself: what a group was, is what its snapshot and the entries behind it
//! say, and a crash leaves no more than that.
//! Must be true: a name is granted by one group at a time; tokens of one lock rise, whichever groups it was granted in;
//! what was held is held by the same holder after a crash at any step; a replayed split makes the very same group; and no
//! claim covers names of two groups.

use std::collections::{BTreeMap, BTreeSet};

use lowkey_core::{
    AcquireWith, Boundary, Change, ChangeKind, Command, Event, GroupChange, GroupId, LeaseId, LockName, Mode,
    OwnerId, Refusal, Reply, RequestId, Scope, State, Token, Value,
};

use super::script::{ANN, N1, Script, ensure, ttl};
use crate::invariants::{Check, Violation};

/// All come after the name that the cluster holds already, so that splits between them do not move that one.
const NAMES: [&str; 6] = ["orders", "orders/a", "orders/z", "paint", "stock", "stock/7"];

/// One group: what is on its disk.
#[derive(Clone)]
struct Group {
    snapshot: Vec<u8>,
    /// The entries behind it.
    log: Vec<Command>,
}

impl Group {
    fn new(first: &State) -> Self {
        Self { snapshot: first.encode_snapshot(), log: Vec::new() }
    }

    /// What a replica is after a crash, with the groups that were born on the way.
    fn replay(&self) -> Result<(State, Vec<State>), Violation> {
        let mut state = State::decode_snapshot(&self.snapshot).map_err(|error| failed(error.to_string()))?;
        let born = self.log.iter().filter_map(|entry| next(&mut state, entry).born);
        let born = born.map(|born| *born).collect();
        Ok((state, born))
    }
}

fn next(state: &mut State, entry: &Command) -> lowkey_core::Applied {
    state.apply(state.revision() + 1, 9, entry)
}

fn failed(what: String) -> Violation {
    Violation { invariant: "scenario", what }
}

fn name(text: &str) -> LockName {
    LockName::parse(text).expect("a name")
}

fn boundary(text: &str) -> Boundary {
    Boundary::parse(text).expect("a boundary")
}

/// All groups, and what was seen of their grants.
#[derive(Clone)]
struct Groups {
    groups: BTreeMap<GroupId, Group>,
    tokens: BTreeMap<LockName, Token>,
    leases: BTreeSet<LeaseId>,
    requests: u64,
}

impl Groups {
    /// A replica of the group crashes and comes back, and then applies one more entry.
    fn entry(&mut self, group: GroupId, command: &Command) -> Result<lowkey_core::Applied, Violation> {
        let on_disk =
            self.groups.get_mut(&group).ok_or_else(|| failed(format!("group {group} is not there")))?;
        let (mut state, _) = on_disk.replay()?;
        let applied = next(&mut state, command);
        on_disk.log.push(command.clone());
        for event in &applied.events {
            let Event::Changed(Change { kind: ChangeKind::Acquired, lock, token: Some(token), .. }) = event
            else {
                continue;
            };
            let last = self.tokens.insert(lock.clone(), *token).unwrap_or(Token(0));
            ensure(*token > last, || format!("{lock} was granted with token {token} after {last}"))?;
        }
        Ok(applied)
    }

    fn state(&self, group: GroupId) -> Result<State, Violation> {
        let on_disk = self.groups.get(&group).ok_or_else(|| failed(format!("group {group} is not there")))?;
        Ok(on_disk.replay()?.0)
    }

    fn acquire(
        &mut self,
        group: GroupId,
        lock: &str,
        scope: Scope,
    ) -> Result<Result<Reply, Refusal>, Violation> {
        self.requests += 1;
        let request = format!("split-{}", self.requests);
        let reply = self.acquire_as(group, lock, scope, &request)?;
        if let Ok(Reply::Granted { lease, .. }) = reply {
            ensure(self.leases.insert(lease), || format!("lease {lease} was made by two groups"))?;
        }
        Ok(reply)
    }

    /// The acquire with this request id, perhaps once more.
    fn acquire_as(
        &mut self,
        group: GroupId,
        lock: &str,
        scope: Scope,
        request: &str,
    ) -> Result<Result<Reply, Refusal>, Violation> {
        let acquire = Command::Acquire {
            lock: name(lock),
            owner: OwnerId::parse("carol").expect("an owner"),
            with: AcquireWith::NewLease(ttl(2)),
            mode: Mode::Exclusive,
            scope,
            value: Value::default(),
            wait: false,
            max_hold: None,
            keeps_asked: false,
            since_unix_ms: 0,
            request: RequestId::parse(request).expect("an id"),
        };
        Ok(self.entry(group, &acquire)?.reply)
    }

    /// Clients with maps of every age ask all groups for every name: one grants it, and it ends again.
    fn ask_all(&mut self) -> Check {
        let groups: Vec<GroupId> = self.groups.keys().copied().collect();
        for lock in NAMES {
            let held = groups.iter().filter(|group| self.is_held(**group, lock)).count();
            let mut granted = Vec::new();
            for group in &groups {
                let reply = self.acquire(*group, lock, Scope::Name)?;
                match reply {
                    Ok(Reply::Granted { lease, .. }) => granted.push((*group, lease)),
                    Err(Refusal::NotHere { .. } | Refusal::LockHeld { .. }) => {}
                    other => return Err(failed(format!("{lock} at group {group}: {other:?}"))),
                }
            }
            ensure(granted.len() + held == 1, || {
                format!("{lock} was granted by {} groups, and held in {held}", granted.len())
            })?;
            for (group, lease) in granted {
                self.end(group, lease)?;
            }
        }
        Ok(())
    }

    fn end(&mut self, group: GroupId, lease: LeaseId) -> Check {
        let silences = Vec::new();
        let end = Command::Expire { leases: vec![lease], decided_term: 9, since_unix_ms: 0, silences };
        let reply = self.entry(group, &end)?.reply;
        ensure(reply == Ok(Reply::Expired { count: 1 }), || "a lease did not end".into())
    }

    fn is_held(&self, group: GroupId, lock: &str) -> bool {
        self.state(group).is_ok_and(|state| state.lock(&name(lock), 1).holder_count > 0)
    }

    /// A group gives the names from a boundary on to a new one, which is born of the entry.
    fn split(&mut self, parent: GroupId, at: &str) -> Result<GroupId, Violation> {
        let plan = Command::groups(GroupChange::Plan { parent });
        let Ok(Reply::GroupPlanned { group: child }) = self.entry(GroupId::ROOT, &plan)?.reply else {
            return Err(failed("no id was given for a split".into()));
        };
        let split = Command::groups(GroupChange::Split { at: boundary(at), child });
        let applied = self.entry(parent, &split)?;
        ensure(applied.reply == Ok(Reply::GroupSplit { child }), || {
            format!("no split: {:?}", applied.reply)
        })?;
        let born = applied.born.ok_or_else(|| failed("a split made no group".into()))?;
        // A replica that crashed before it had the child on its disk applies the entry again, however often.
        for _ in 0..2 {
            let (_, again) = self.groups[&parent].replay()?;
            let last = again.last().ok_or_else(|| failed("a replayed split made no group".into()))?;
            ensure(last.encode_snapshot() == born.encode_snapshot(), || {
                "a replayed split made another group".into()
            })?;
        }
        // A late copy of it comes after all.
        let late = self.entry(parent, &split)?;
        ensure(late.born.is_none(), || "a split that was asked for twice made two groups".into())?;
        self.groups.insert(child, Group::new(&born));
        let record = self.state(parent)?.last_split().ok_or_else(|| failed("a split is not known".into()))?;
        let record = self.entry(GroupId::ROOT, &Command::groups(record))?;
        ensure(record.reply.is_ok(), || format!("not recorded: {:?}", record.reply))?;
        Ok(child)
    }
}

pub(super) fn with_a_crash_at_every_step(script: &mut Script) -> Check {
    let (_, held) = script.take_lock(ANN, N1, 2)?;
    let state = script.lane(N1).map(|lane| lane.replica.state().clone());
    let root = state.ok_or_else(|| failed("the leader is not there".into()))?;
    let locks: BTreeSet<LockName> = root.grants().map(|(lock, _)| lock.clone()).collect();
    script.tell(&format!("the cluster has granted up to token {held}, and splits"));
    let mut groups = Groups {
        groups: BTreeMap::from([(GroupId::ROOT, Group::new(&root))]),
        tokens: BTreeMap::new(),
        leases: root.leases().map(|(lease, _)| lease).collect(),
        requests: 0,
    };
    groups.ask_all()?;
    let early = groups.acquire_as(GroupId::ROOT, "stock", Scope::Name, "early")?;
    let Ok(Reply::Granted { lease: made, .. }) = early else { return Err(failed(format!("{early:?}"))) };
    groups.end(GroupId::ROOT, made)?;
    groups.leases.insert(made);
    // Something is held that would move: nothing does.
    let paint = groups.acquire(GroupId::ROOT, "paint", Scope::Subtree)?;
    let Ok(Reply::Granted { lease, .. }) = paint else { return Err(failed(format!("{paint:?}"))) };
    let refused = groups.clone().split(GroupId::ROOT, "paint/b");
    ensure(refused.is_err(), || "a subtree that is held was cut".into())?;
    let refused = groups.clone().split(GroupId::ROOT, "p");
    ensure(refused.is_err(), || "a lock moved while it was held".into())?;
    let second = groups.split(GroupId::ROOT, "stock")?;
    script.tell("the names from stock on are a new group's");
    let late = groups.acquire_as(second, "stock", Scope::Name, "early")?;
    ensure(late == early, || {
        format!("a late copy of an acquire was answered {late:?}, and first {early:?}")
    })?;
    groups.ask_all()?;
    ensure(groups.is_held(GroupId::ROOT, "paint"), || "a split ended a grant".into())?;
    groups.end(GroupId::ROOT, lease)?;
    let third = groups.split(second, "stock/")?;
    let fourth = groups.split(GroupId::ROOT, "orders/m")?;
    script.tell("it is four groups by now");
    groups.ask_all()?;
    // Each group saves a snapshot, and forgets its entries.
    for group in [GroupId::ROOT, second, third, fourth] {
        let state = groups.state(group)?;
        groups.groups.insert(group, Group::new(&state));
    }
    groups.ask_all()?;
    for (group, lock) in [(GroupId::ROOT, "orders"), (second, "stock")] {
        let reply = groups.acquire(group, lock, Scope::Subtree)?;
        ensure(matches!(reply, Err(Refusal::SubtreeSplit { .. })), || {
            format!("a claim covers names of two groups: {lock}, {reply:?}")
        })?;
    }
    ensure(locks.iter().all(|lock| groups.is_held(GroupId::ROOT, lock.as_str())), || {
        "a grant of before is gone".into()
    })?;
    script.end(2)
}
