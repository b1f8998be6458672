//! Splits: groups behave for their names as the one group before did, wherever and whenever it was split.
//!
//! A history runs twice: in one group, and in a cluster that splits on the way. There each session has a lease in every
//! group that it uses, as clients do. Who holds what, who waits and in which order must be the same after every step.
#![allow(clippy::unwrap_used, reason = "a test may")]

use std::collections::BTreeMap;

use lowkey_core::{
    AcquireWith, Applied, Boundary, Change, ChangeKind, ClusterId, Command, Event, GrantRef, GroupChange,
    GroupId, LeaseId, LockName, Mode, OwnerId, Refusal, Reply, RequestId, Requester, Scope, SplitRefusal,
    State, Token, Ttl, Value,
};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::TestRunner;

const NAMES: [&str; 8] = ["a", "a-b", "a/b", "a/b/c", "b", "m", "m/x", "z"];
const BOUNDARIES: [&str; 7] = ["a-", "a/", "a/b", "b", "m/", "n", "z"];

#[derive(Clone, Debug)]
enum Step {
    Acquire { session: u8, name: usize, shared: bool, subtree: bool, wait: bool, stale: bool },
    Release { session: u8, name: usize },
    GiveUp { session: u8, name: usize },
    End { session: u8, expires: bool },
    Split { at: usize },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let (session, name) = (|| 0..4_u8, || 0..NAMES.len());
    let acquire = (session(), name(), any::<(bool, bool, bool)>(), prop::bool::weighted(0.2)).prop_map(
        |(session, name, (shared, subtree, wait), stale)| Step::Acquire {
            session,
            name,
            shared,
            subtree,
            wait,
            stale,
        },
    );
    let step = prop_oneof![
        8 => acquire,
        5 => (session(), name()).prop_map(|(session, name)| Step::Release { session, name }),
        1 => (session(), name()).prop_map(|(session, name)| Step::GiveUp { session, name }),
        2 => (session(), any::<bool>()).prop_map(|(session, expires)| Step::End { session, expires }),
        2 => (0..BOUNDARIES.len()).prop_map(|at| Step::Split { at }),
    ];
    vec(step, 1..60)
}

fn name(text: &str) -> LockName {
    LockName::parse(text).unwrap()
}

fn boundary(text: &str) -> Boundary {
    Boundary::parse(text).unwrap()
}

fn request(text: &str) -> RequestId {
    RequestId::parse(text).unwrap()
}

fn owner(session: u8) -> OwnerId {
    OwnerId::parse(&format!("session-{session}")).unwrap()
}

fn create(session: u8, request: RequestId) -> Command {
    Command::CreateLease { owner: owner(session), ttl: Ttl::parse(10).unwrap(), request }
}

fn revoke(session: u8, lease: LeaseId, request: RequestId) -> Command {
    Command::RevokeLease { lease, owner: owner(session), actor: None, since_unix_ms: 0, request }
}

fn release(lock: &LockName, grant: GrantRef, request: RequestId) -> Command {
    Command::Release { lock: lock.clone(), grant, token: None, actor: None, since_unix_ms: 0, request }
}

/// The next entry of a group's log.
fn apply(state: &mut State, command: &Command) -> Applied {
    state.apply(state.revision() + 1, 1, command)
}

/// A cluster of one group or more, and the leases that sessions have there.
struct Cluster {
    groups: BTreeMap<u32, State>,
    leases: BTreeMap<(u8, u32), LeaseId>,
    /// Of each lock: its last token, and the revision of its last event.
    last: BTreeMap<LockName, (Token, u64)>,
    requests: u32,
}

impl Cluster {
    fn new() -> Self {
        let groups = BTreeMap::from([(1, State::new(ClusterId([7; 16])))]);
        Self { groups, leases: BTreeMap::new(), last: BTreeMap::new(), requests: 0 }
    }

    fn request(&mut self) -> RequestId {
        self.requests += 1;
        request(&format!("request-{}", self.requests))
    }

    fn group_of(&self, lock: &LockName) -> u32 {
        let mut owners = self.groups.iter().filter(|(_, state)| state.range().contains(lock));
        let (group, _) = owners.next().expect("every name belongs to a group");
        assert!(owners.next().is_none(), "{lock} belongs to two groups");
        *group
    }

    /// Applies an entry, and looks at what it says of tokens and positions.
    fn apply(&mut self, group: u32, command: &Command) -> Applied {
        let state = self.groups.get_mut(&group).unwrap();
        let applied = apply(state, command);
        for event in &applied.events {
            let Event::Changed(Change { kind, lock, token, .. }) = event else { continue };
            let (last_token, position) = self.last.entry(lock.clone()).or_insert((Token(0), 0));
            assert!(state.revision() >= *position, "{lock}: a position went back");
            *position = state.revision();
            if *kind == ChangeKind::Acquired {
                let token = token.unwrap();
                assert!(token > *last_token, "{lock}: token {token} after {last_token}");
                *last_token = token;
            }
        }
        applied
    }

    fn lease(&mut self, session: u8, group: u32) -> LeaseId {
        if let Some(lease) = self.leases.get(&(session, group)) {
            return *lease;
        }
        let request = self.request();
        let Ok(Reply::LeaseCreated { lease, .. }) = self.apply(group, &create(session, request)).reply else {
            panic!("a lease is made anywhere");
        };
        assert_eq!(self.groups[&group].group_of_lease(lease), Some(GroupId(group)));
        self.leases.insert((session, group), lease);
        lease
    }

    fn acquire(&mut self, session: u8, lock: &LockName, how: (Mode, Scope, bool), id: &RequestId) -> Applied {
        let group = self.group_of(lock);
        self.acquire_at(group, session, lock, how, id)
    }

    fn acquire_at(
        &mut self,
        group: u32,
        session: u8,
        lock: &LockName,
        (mode, scope, wait): (Mode, Scope, bool),
        id: &RequestId,
    ) -> Applied {
        let acquire = Command::Acquire {
            lock: lock.clone(),
            owner: owner(session),
            with: AcquireWith::Lease(self.lease(session, group)),
            mode,
            scope,
            value: Value::default(),
            wait,
            max_hold: None,
            since_unix_ms: 0,
            keeps_asked: false,
            request: id.clone(),
        };
        self.apply(group, &acquire)
    }

    /// What everybody can see of a lock.
    fn view(&self, lock: &LockName) -> String {
        let view = self.groups[&self.group_of(lock)].lock(lock, usize::MAX);
        let holders = view.holders.into_iter().map(|it| (it.owner, it.mode, it.scope));
        let mut holders: Vec<_> = holders.collect();
        holders.sort();
        let waiters = view.waiters.into_iter().map(|it| (it.owner, it.mode, it.scope));
        format!("{holders:?}, {:?}", waiters.collect::<Vec<_>>())
    }

    /// Gives the names from a boundary on to a new group, if nothing is in use there.
    fn split(&mut self, at: &Boundary) -> &'static str {
        let Some((&parent, _)) = self.groups.iter().find(|(_, it)| it.range().split_at(at).is_some()) else {
            return "a split at a boundary that is there";
        };
        let plan = Command::groups(GroupChange::Plan { parent: GroupId(parent) });
        let Ok(Reply::GroupPlanned { group: child }) = self.apply(1, &plan).reply else {
            panic!("not planned")
        };
        assert_eq!(self.apply(1, &plan).reply, Ok(Reply::GroupPlanned { group: child }), "the same id again");
        let before = self.groups[&parent].clone();
        let split = Command::groups(GroupChange::Split { at: at.clone(), child });
        let applied = self.apply(parent, &split);
        let claims = before.grants().map(|(lock, grant)| (lock.clone(), grant.scope));
        let waits = before.leases().flat_map(|(lease, _)| before.waits_of(lease));
        let mut claims = claims.chain(waits.map(|wait| (wait.lock, wait.scope)));
        let in_use = claims.any(|(lock, scope)| {
            let end = format!("{lock}0");
            !at.is_behind(&lock) || scope == Scope::Subtree && at.as_str() < end.as_str()
        });
        if in_use {
            assert!(matches!(applied.reply, Err(Refusal::Split(SplitRefusal::InUse { .. }))), "{applied:?}");
            assert_eq!(applied.born, None);
            return "a split of what is in use";
        }
        assert_eq!(applied.reply, Ok(Reply::GroupSplit { child }));
        let born = *applied.born.unwrap();
        let state = &self.groups[&parent];
        assert_eq!(born.revision(), state.revision());
        assert!(born.last_token() >= state.last_token());
        assert_eq!((born.leases().len(), born.lock_count(), born.waits().len()), (0, 0, 0));
        // A replay makes the very same one. Asked again, the group makes none.
        let replayed = apply(&mut before.clone(), &split).born.unwrap();
        assert_eq!(replayed.encode_snapshot(), born.encode_snapshot());
        let mut again = state.clone();
        let answer = apply(&mut again, &split);
        assert_eq!((answer.reply, answer.born), (Ok(Reply::GroupSplit { child }), None));
        let record = Command::groups(state.last_split().unwrap());
        assert!(self.groups.insert(child.0, born).is_none());
        for _ in 0..2 {
            assert_eq!(self.apply(1, &record).reply, Ok(Reply::GroupsChanged));
        }
        match parent {
            1 => "a split of the root",
            _ => "a split of another group",
        }
    }

    /// What must hold of groups side by side.
    fn check(&self) {
        let map = self.groups[&1].shard_map().unwrap();
        assert_eq!(map.group_count(), self.groups.len());
        for (group, state) in &self.groups {
            assert_eq!(map.range_of(GroupId(*group)), Some(state.range()));
            assert_eq!(state.group(), GroupId(*group));
            assert_eq!(State::decode_snapshot(&state.encode_snapshot()).as_ref(), Ok(state));
            for (lock, grant) in state.grants() {
                assert_eq!(self.group_of(lock), *group);
                assert_eq!(state.group_of_lease(grant.lease), Some(GroupId(*group)));
                assert!(grant.scope == Scope::Name || state.range().contains_subtree(lock));
            }
        }
    }
}

/// What a client is told, without what differs from group to group.
fn told(reply: &Result<Reply, Refusal>) -> String {
    match reply {
        Ok(Reply::Granted { .. }) => "granted".into(),
        Ok(Reply::Waiting { .. }) => "waiting".into(),
        Ok(Reply::Released) => "released".into(),
        Ok(other) => format!("{other:?}"),
        Err(Refusal::LockHeld { .. }) => "held".into(),
        Err(Refusal::AlreadyHeld { mode, scope, .. }) => format!("already held as {mode:?} {scope:?}"),
        Err(Refusal::LockNotFound { .. }) => "not found".into(),
        Err(Refusal::NotOwner { .. }) => "not the owner".into(),
        Err(other) => format!("{other:?}"),
    }
}

/// Runs a history in one group and in many, and says what it met.
fn compare(steps: &[Step]) -> Vec<&'static str> {
    let (mut one, mut many) = (Cluster::new(), Cluster::new());
    let mut acquires: BTreeMap<(u8, usize), RequestId> = BTreeMap::new();
    let mut met = Vec::new();
    for step in steps {
        match *step {
            Step::Acquire { session, name: at, shared, subtree, wait, stale } => {
                let lock = name(NAMES[at]);
                let id = request(&format!("acquire-{}", met.len()));
                let mode = if shared { Mode::Shared } else { Mode::Exclusive };
                let scope = if subtree { Scope::Subtree } else { Scope::Name };
                let how = (mode, scope, wait);
                let group = many.group_of(&lock);
                if let Some(other) = many.groups.keys().copied().find(|other| stale && *other != group) {
                    let refused = many.acquire_at(other, session, &lock, how, &id);
                    assert_eq!(refused.reply, Err(Refusal::NotHere { group: GroupId(other) }));
                    met.push("a stale map");
                }
                let reply = many.acquire(session, &lock, how, &id).reply;
                if let Err(Refusal::SubtreeSplit { boundary, .. }) = &reply {
                    let inside =
                        lock.as_str() < boundary.as_str() && boundary.as_str() < format!("{lock}0").as_str();
                    assert!(inside && scope == Scope::Subtree, "{boundary} in {lock}");
                    met.push("a subtree across a boundary");
                    continue;
                }
                let expected = told(&one.acquire(session, &lock, how, &id).reply);
                assert_eq!(told(&reply), expected);
                acquires.insert((session, at), id);
                met.push(match expected.as_str() {
                    "granted" => "granted",
                    "waiting" => "waiting",
                    _ => "not granted",
                });
            }
            Step::Release { session, name: at } => {
                let lock = name(NAMES[at]);
                let [expected, reply] = [&mut one, &mut many].map(|cluster| {
                    let (group, id) = (cluster.group_of(&lock), cluster.request());
                    let lease = cluster.lease(session, group);
                    told(&cluster.apply(group, &release(&lock, GrantRef::Lease(lease), id)).reply)
                });
                assert_eq!(reply, expected);
                met.push("a release");
            }
            Step::GiveUp { session, name: at } => {
                let Some(acquire) = acquires.get(&(session, at)) else { continue };
                let lock = name(NAMES[at]);
                let [expected, reply] = [&mut one, &mut many].map(|cluster| {
                    let (group, id) = (cluster.group_of(&lock), cluster.request());
                    let lease = cluster.lease(session, group);
                    let meant = GrantRef::GivenUp(acquire.clone(), Requester::Lease(lease));
                    told(&cluster.apply(group, &release(&lock, meant, id)).reply)
                });
                assert_eq!(reply, expected);
                met.push("given up");
            }
            Step::End { session, expires } => {
                for cluster in [&mut one, &mut many] {
                    let groups: Vec<u32> = cluster.groups.keys().copied().collect();
                    for group in groups {
                        let Some(lease) = cluster.leases.remove(&(session, group)) else { continue };
                        let command = match expires {
                            false => revoke(session, lease, cluster.request()),
                            true => Command::Expire {
                                leases: vec![lease],
                                decided_term: 1,
                                since_unix_ms: 0,
                                silences: Vec::new(),
                            },
                        };
                        assert!(cluster.apply(group, &command).reply.is_ok());
                    }
                }
                acquires.retain(|(of, _), _| *of != session);
                met.push("the end of a session");
            }
            Step::Split { at } => met.push(many.split(&boundary(BOUNDARIES[at]))),
        }
        for lock in NAMES.map(name) {
            assert_eq!(many.view(&lock), one.view(&lock), "{lock} after {step:?}");
        }
        many.check();
    }
    met
}

proptest! {
    #[test]
    fn groups_behave_for_their_names_as_one_group_did(steps in steps()) {
        compare(&steps);
    }
}

/// Random histories prove nothing about what they never meet.
#[test]
fn the_random_splits_meet_every_outcome() {
    let mut runner = TestRunner::deterministic();
    let mut met: BTreeMap<&str, usize> = BTreeMap::new();
    for _ in 0..400 {
        let steps = steps().new_tree(&mut runner).unwrap().current();
        compare(&steps).into_iter().for_each(|outcome| *met.entry(outcome).or_default() += 1);
    }
    for outcome in [
        "granted",
        "waiting",
        "not granted",
        "a release",
        "given up",
        "the end of a session",
        "a stale map",
        "a subtree across a boundary",
        "a split of the root",
        "a split of another group",
        "a split of what is in use",
        "a split at a boundary that is there",
    ] {
        let count = met.get(outcome).copied().unwrap_or(0);
        assert!(count >= 20, "{outcome}: met {count} times of {met:#?}");
    }
}

/// A group with one lock of each name, taken and given back by requests that made their leases.
fn used() -> (State, Vec<(Command, Reply)>) {
    let mut state = State::new(ClusterId([7; 16]));
    let mut answered = Vec::new();
    for (at, text) in NAMES.into_iter().enumerate() {
        let acquire = Command::Acquire {
            lock: name(text),
            owner: owner(0),
            with: AcquireWith::NewLease(Ttl::parse(10).unwrap()),
            mode: Mode::Exclusive,
            scope: Scope::Name,
            value: Value::default(),
            wait: false,
            max_hold: None,
            since_unix_ms: 0,
            keeps_asked: false,
            request: request(&format!("first-{at}")),
        };
        let reply = apply(&mut state, &acquire).reply.unwrap();
        let Reply::Granted { lease, .. } = reply else { panic!("{reply:?}") };
        let given_back = release(&name(text), GrantRef::Lease(lease), request("back"));
        apply(&mut state, &given_back).reply.unwrap();
        answered.push((acquire, reply));
    }
    (state, answered)
}

fn split(state: &mut State, at: &str) -> State {
    let plan = Command::groups(GroupChange::Plan { parent: GroupId::ROOT });
    let Ok(Reply::GroupPlanned { group: child }) = apply(state, &plan).reply else { panic!("not planned") };
    let split = GroupChange::Split { at: boundary(at), child };
    *apply(state, &Command::groups(split)).born.unwrap()
}

#[test]
fn a_request_that_made_a_lease_is_answered_again_on_both_sides_of_a_split() {
    let (mut parent, answered) = used();
    let mut child = split(&mut parent, "b");
    for state in [&mut parent, &mut child] {
        let before = state.lock_count();
        for (acquire, reply) in &answered {
            assert_eq!(apply(state, acquire).reply.as_ref(), Ok(reply), "{acquire:?}");
        }
        assert_eq!((state.lock_count(), before), (0, 0), "nothing is granted a second time");
    }
}

#[test]
fn a_request_of_a_lease_is_answered_again_when_its_name_has_moved() {
    let (mut parent, _) = used();
    let lease = LeaseId(1);
    let acquire = |id: &str| Command::Acquire {
        lock: name("m"),
        owner: owner(0),
        with: AcquireWith::Lease(lease),
        mode: Mode::Exclusive,
        scope: Scope::Name,
        value: Value::default(),
        wait: false,
        max_hold: None,
        since_unix_ms: 0,
        keeps_asked: false,
        request: request(id),
    };
    let reply = apply(&mut parent, &acquire("early")).reply;
    assert!(reply.is_ok());
    apply(&mut parent, &release(&name("m"), GrantRef::Lease(lease), request("early-back"))).reply.unwrap();
    let mut child = split(&mut parent, "b");
    assert_eq!(apply(&mut parent, &acquire("early")).reply, reply);
    assert_eq!(apply(&mut parent, &acquire("late")).reply, Err(Refusal::NotHere { group: GroupId(1) }));
    // A lease from before is the root's, and holds nothing of the new group.
    let elsewhere = Refusal::LeaseElsewhere { lease, group: GroupId(1) };
    assert_eq!(apply(&mut child, &acquire("late")).reply, Err(elsewhere));
}

#[test]
fn a_cluster_has_64_groups_at_most_and_no_id_is_given_twice() {
    let mut root = State::new(ClusterId([7; 16]));
    for number in (2..=64_u32).rev() {
        let child = split(&mut root, &format!("{number:02}"));
        assert_eq!(child.group(), GroupId(66 - number));
    }
    let plan = |parent: u32| Command::groups(GroupChange::Plan { parent: GroupId(parent) });
    for parent in [1, 7, 64] {
        assert_eq!(apply(&mut root, &plan(parent)).reply, Err(Refusal::Split(SplitRefusal::TooManyGroups)));
    }
    let nowhere = Refusal::Split(SplitRefusal::NoSuchGroup { group: GroupId(65) });
    assert_eq!(apply(&mut root, &plan(65)).reply, Err(nowhere));
    assert_eq!(State::decode_snapshot(&root.encode_snapshot()).as_ref(), Ok(&root));
}

#[test]
fn a_late_copy_of_an_old_split_makes_no_second_group() {
    let (mut root, _) = used();
    let child = split(&mut root, "n");
    assert_eq!(child.group(), GroupId(2));
    split(&mut root, "m");
    // The id was used, with this boundary or another.
    for at in ["n", "c"] {
        let late = Command::groups(GroupChange::Split { at: boundary(at), child: GroupId(2) });
        let applied = apply(&mut root, &late);
        assert_eq!(applied.reply, Err(Refusal::Split(SplitRefusal::NoSuchPlan { child: GroupId(2) })));
        assert_eq!(applied.born, None);
    }
}
