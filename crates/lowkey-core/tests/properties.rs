//! What must hold for every history (design, section 8), tried on random ones.

use std::collections::{BTreeMap, BTreeSet};

use lowkey_core::{
    AcquireWith, Applied, Cause, Command, Event, GrantRef, LeaseId, LockName, OwnerId, Refusal, Reply,
    RequestId, Requester, State, Token,
};
use proptest::prelude::{ProptestConfig, Strategy, prop_assert, prop_assert_eq, prop_assert_ne, proptest};
use proptest::sample::Index;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::{FileFailurePersistence, TestRunner};
use prost::Message as _;

mod history;
mod model;
mod wire;

use history::{log_of, new_state, steps};
use model::{Model, without_clock};

/// More cases: `PROPTEST_CASES=10000 cargo test -p lowkey-core --test properties`.
fn config() -> ProptestConfig {
    ProptestConfig {
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        ..ProptestConfig::default()
    }
}

/// The words of a refusal are for people: what counts is that it is one.
fn without_words(mut applied: Applied) -> Applied {
    if let Err(Refusal::NotOwner { what }) = &mut applied.reply {
        what.clear();
    }
    applied
}

/// Counters that the state keeps to itself: token, lease, member.
fn counters(state: &State) -> [u64; 3] {
    let wire = wire::StateWire::decode(state.encode_snapshot().as_slice()).expect("a snapshot");
    [wire.last_token, wire.last_lease, wire.last_member]
}

/// The snapshot without the requests that leases remember.
fn without_memory(state: &State) -> wire::StateWire {
    let mut wire = wire::StateWire::decode(state.encode_snapshot().as_slice()).expect("a snapshot");
    wire.leases.iter_mut().for_each(|lease| lease.requests.clear());
    wire
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn the_state_machine_does_what_the_plain_rules_say(steps in steps()) {
        let (mut state, mut model) = (new_state(), Model::default());
        for entry in log_of(&steps) {
            let applied = entry.apply(&mut state);
            if let (Some(command), Some(applied)) = (&entry.command, applied) {
                let expected = model.apply(entry.revision, entry.term, command);
                prop_assert_eq!(without_words(applied), expected, "{:?}", entry);
            }
            prop_assert_eq!(state.revision(), entry.revision);
            prop_assert_eq!(counters(&state), [model.last_token, model.last_lease, model.last_member]);

            let leases: Vec<_> =
                state.leases().map(|(id, lease)| (id, lease.owner.clone(), lease.ttl)).collect();
            prop_assert_eq!(&leases, &model.leases);
            model.grants.sort_by(|a, b| a.lock.cmp(&b.lock));
            let grants: Vec<_> = state
                .locks()
                .map(|(lock, grant)| model::ModelGrant {
                    lock: lock.clone(),
                    lease: grant.lease,
                    token: grant.token,
                    revision: grant.revision,
                    since_unix_ms: grant.since_unix_ms,
                    request: grant.request.clone(),
                })
                .collect();
            prop_assert_eq!(&grants, &model.grants);
            let members: Vec<_> = state.members().map(|(id, node)| (id, node.clone())).collect();
            prop_assert_eq!(&members, &model.members);
        }
    }

    #[test]
    fn a_lock_has_one_holder_whose_lease_exists(steps in steps()) {
        let mut state = new_state();
        for entry in log_of(&steps) {
            entry.apply(&mut state);
            let mut tokens = BTreeSet::new();
            for (lock, grant) in state.locks() {
                prop_assert!(state.lease(grant.lease).is_some(), "{lock} hangs on no lease");
                prop_assert!(tokens.insert(grant.token), "token {} was given twice", grant.token);
                prop_assert!(grant.token <= state.last_token());
                prop_assert!(grant.revision <= state.revision());
                let holder = state.holder(lock).unwrap();
                prop_assert_eq!((holder.lease, holder.token), (grant.lease, grant.token));
                prop_assert_eq!(&holder.owner, &state.lease(grant.lease).unwrap().owner);
            }
            prop_assert_eq!(state.lock_count(), tokens.len());
        }
    }

    #[test]
    fn tokens_and_ids_rise_with_what_is_new_and_with_nothing_else(steps in steps()) {
        let mut state = new_state();
        let mut before = counters(&state);
        for entry in log_of(&steps) {
            let known_members = state.members().len() as u64;
            let events = entry.apply(&mut state).map(|applied| applied.events).unwrap_or_default();
            let [mut token, mut lease, mut member] = before;
            for event in &events {
                match event {
                    Event::Acquired { token: new, .. } => {
                        token += 1;
                        prop_assert_eq!(*new, Token(token));
                    }
                    Event::LeaseCreated { lease: new, .. } => {
                        lease += 1;
                        prop_assert_eq!(*new, LeaseId(lease));
                    }
                    Event::LeaseEnded { .. } | Event::Freed { .. } => {}
                }
            }
            member += state.members().len() as u64 - known_members;
            before = [token, lease, member];
            prop_assert_eq!(counters(&state), before);
            prop_assert_eq!(state.last_token(), Token(token));
        }
    }

    #[test]
    fn what_is_refused_or_known_changes_nothing_but_the_revision(steps in steps()) {
        let mut state = new_state();
        for entry in log_of(&steps) {
            let mut unchanged = state.clone();
            unchanged.advance(entry.revision);
            let check = entry.command.as_ref().map(|command| state.check(command));
            let applied = entry.apply(&mut state);
            let (Some(check), Some(applied)) = (check, applied) else {
                prop_assert_eq!(&state, &unchanged);
                continue;
            };
            match check {
                Err(refusal) => prop_assert_eq!(applied.reply, Err(refusal)),
                Ok(Some(reply)) => prop_assert_eq!(applied.reply, Ok(reply)),
                Ok(None) => {
                    let reply = applied.reply.clone();
                    prop_assert!(reply.is_ok(), "{entry:?} passed the check and was refused: {reply:?}");
                    match reply {
                        // R4, and leases that are gone.
                        Ok(Reply::Expired { count: 0 }) => prop_assert_eq!(&state, &unchanged),
                        Ok(Reply::MemberAdded { .. }) => prop_assert_eq!(&applied.events, &[]),
                        // The holder asked again: nothing changed but what its lease remembers.
                        Ok(Reply::Granted { token, revision, .. }) if revision < entry.revision => {
                            prop_assert_eq!(&applied.events, &[]);
                            prop_assert!(token <= unchanged.last_token());
                            prop_assert_ne!(&state, &unchanged);
                            prop_assert_eq!(without_memory(&state), without_memory(&unchanged));
                        }
                        _ => {
                            prop_assert!(!applied.events.is_empty(), "{:?} was carried out silently", entry);
                            prop_assert_ne!(&state, &unchanged);
                        }
                    }
                    continue;
                }
            }
            prop_assert_eq!(&applied.events, &[]);
            prop_assert_eq!(&state, &unchanged);
            prop_assert_eq!(state.hash(), unchanged.hash());
        }
    }

    #[test]
    fn an_expiry_of_another_term_ends_nothing(steps in steps()) {
        let mut state = new_state();
        for entry in log_of(&steps) {
            let before: Vec<_> = state.leases().map(|(id, _)| id).collect();
            let applied = entry.apply(&mut state);
            let Some(Command::Expire { leases, decided_term }) = &entry.command else { continue };
            let ended: BTreeSet<_> = before.iter().filter(|id| state.lease(**id).is_none()).collect();
            let named: BTreeSet<_> = leases.iter().filter(|id| before.contains(id)).collect();
            let expected = if *decided_term == entry.term { named } else { BTreeSet::new() };
            prop_assert_eq!(&ended, &expected);
            let count = ended.len() as u64;
            prop_assert_eq!(applied.map(|applied| applied.reply), Some(Ok(Reply::Expired { count })));
        }
    }

    #[test]
    fn the_events_tell_the_whole_story(steps in steps()) {
        let mut state = new_state();
        let mut leases = BTreeMap::new();
        let mut locks: BTreeMap<LockName, (LeaseId, Token)> = BTreeMap::new();
        for entry in log_of(&steps) {
            for event in entry.apply(&mut state).map(|applied| applied.events).unwrap_or_default() {
                match event {
                    Event::LeaseCreated { lease, ttl } => {
                        prop_assert!(leases.insert(lease, ttl).is_none(), "lease {lease} was made twice");
                    }
                    Event::LeaseEnded { lease } => {
                        prop_assert!(leases.remove(&lease).is_some(), "lease {lease} ended twice");
                        prop_assert!(locks.values().all(|(holder, _)| *holder != lease), "freed too late");
                    }
                    Event::Acquired { lock, lease, token } => {
                        prop_assert!(leases.contains_key(&lease), "lease {lease} acquired, and is gone");
                        let before = locks.insert(lock, (lease, token));
                        prop_assert_eq!(before, None, "a held lock was granted");
                    }
                    Event::Freed { lock, token, cause } => {
                        let held = locks.remove(&lock).map(|(_, token)| token);
                        prop_assert_eq!(held, Some(token), "a grant ended that never was");
                        let expected = match &entry.command {
                            Some(Command::Release { .. }) => Cause::Released,
                            Some(Command::RevokeLease { .. }) => Cause::Revoked,
                            _ => Cause::Expired,
                        };
                        prop_assert_eq!(cause, expected);
                    }
                }
            }
            let real: BTreeMap<_, _> = state.leases().map(|(id, lease)| (id, lease.ttl)).collect();
            prop_assert_eq!(&leases, &real);
            let real: BTreeMap<_, _> =
                state.locks().map(|(lock, grant)| (lock.clone(), (grant.lease, grant.token))).collect();
            prop_assert_eq!(&locks, &real);
        }
    }

    #[test]
    fn one_request_id_has_one_effect_and_one_reply(steps in steps()) {
        let mut state = new_state();
        let mut done: BTreeMap<(Scope, RequestId), (Command, Reply)> = BTreeMap::new();
        for entry in log_of(&steps) {
            let Some(command) = &entry.command else {
                entry.apply(&mut state);
                continue;
            };
            let meant = scope(command, &state);
            let carried_out = state.check(command) == Ok(None);
            let applied = entry.apply(&mut state).unwrap();
            let Some((key, lease_was_named)) = meant else { continue };
            match done.get(&key) {
                Some((before, reply)) => {
                    prop_assert_eq!(&applied.events, &[], "{:?} had a second effect", entry);
                    // A lease that ended takes its memory along.
                    let alive = match &key.0 {
                        Scope::Owner(_) => true,
                        Scope::Lease(lease) => state.lease(*lease).is_some(),
                    };
                    if *before == without_clock(command) && alive && lease_was_named {
                        prop_assert_eq!(applied.reply, Ok(reply.clone()));
                    } else if *before != without_clock(command) {
                        prop_assert!(applied.reply.is_err(), "{entry:?} was taken for {before:?}");
                    }
                }
                None if carried_out => {
                    done.insert(key, (without_clock(command), applied.reply.unwrap()));
                }
                None => {}
            }
        }
    }

    /// An acquire that was answered may come once more, at any time: also when the lock is free again.
    #[test]
    fn a_late_copy_of_an_acquire_takes_nothing(steps in steps()) {
        let mut state = new_state();
        let mut granted: Vec<(Command, Reply)> = Vec::new();
        for entry in log_of(&steps) {
            let applied = entry.apply(&mut state);
            if let (Some(command @ Command::Acquire { .. }), Some(Ok(reply))) =
                (&entry.command, applied.map(|applied| applied.reply))
            {
                granted.push((command.clone(), reply));
            }
            for (command, reply) in &granted {
                let answer = match command {
                    Command::Acquire { with: AcquireWith::Lease(lease), .. } if state.lease(*lease).is_none() => {
                        Err(Refusal::LeaseNotFound { lease: *lease })
                    }
                    _ => Ok(Some(reply.clone())),
                };
                prop_assert_eq!(state.check(command), answer, "{:?} after {:?}", command, entry);
            }
        }
    }

    /// Whoever was answered with a grant can give it back by its request, and nobody else can.
    #[test]
    fn a_grant_is_released_by_the_requests_that_it_answered(steps in steps()) {
        let mut state = new_state();
        let mut answered: BTreeSet<(Token, RequestId)> = BTreeSet::new();
        let mut made_for: BTreeSet<(Token, RequestId, OwnerId)> = BTreeSet::new();
        let ids: Vec<_> = (0..8).map(|id| RequestId::parse(&format!("r{id}")).unwrap()).collect();
        for entry in log_of(&steps) {
            let applied = entry.apply(&mut state);
            if let (Some(Command::Acquire { request, owner, with, .. }), Some(Ok(Reply::Granted { token, .. }))) =
                (&entry.command, applied.map(|applied| applied.reply))
            {
                answered.insert((token, request.clone()));
                if matches!(with, AcquireWith::NewLease(_)) {
                    made_for.insert((token, request.clone(), owner.clone()));
                }
            }
            for (lock, grant) in state.locks() {
                let owners = ["owner0", "owner1"].map(|id| OwnerId::parse(id).unwrap());
                let leases = state.leases().map(|(id, _)| Requester::Lease(id));
                for requester in leases.chain(owners.into_iter().map(Requester::Owner)) {
                    for acquire in &ids {
                        let release = Command::Release {
                            lock: lock.clone(),
                            grant: GrantRef::Request(acquire.clone(), requester.clone()),
                            token: None,
                            request: RequestId::parse("release").unwrap(),
                        };
                        let meant = match &requester {
                            Requester::Lease(lease) => {
                                *lease == grant.lease && answered.contains(&(grant.token, acquire.clone()))
                            }
                            Requester::Owner(owner) => {
                                made_for.contains(&(grant.token, acquire.clone(), owner.clone()))
                            }
                        };
                        let check = state.check(&release);
                        prop_assert_eq!(check == Ok(None), meant, "{:?}: {:?}", release, check);
                        if !meant {
                            prop_assert!(matches!(check, Err(Refusal::NotOwner { .. })), "{:?}", check);
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn the_same_log_gives_the_same_state_and_the_same_answers(steps in steps()) {
        let (mut one, mut other) = (new_state(), new_state());
        for entry in log_of(&steps) {
            prop_assert_eq!(entry.apply(&mut one), entry.apply(&mut other));
            prop_assert_eq!(one.hash(), other.hash());
        }
        prop_assert_eq!(one.encode_snapshot(), other.encode_snapshot());
        prop_assert_eq!(one, other);
    }

    #[test]
    fn every_entry_moves_the_hash(steps in steps()) {
        let mut state = new_state();
        let mut seen = BTreeSet::from([state.hash()]);
        for entry in log_of(&steps) {
            entry.apply(&mut state);
            prop_assert!(seen.insert(state.hash()), "the hash is as it was at an earlier entry");
        }
    }

    #[test]
    fn a_snapshot_and_the_tail_are_as_good_as_the_whole_log(steps in steps(), cut in proptest::prelude::any::<Index>()) {
        let log = log_of(&steps);
        let (head, tail) = log.split_at(cut.index(log.len() + 1));
        let mut whole = new_state();
        for entry in head {
            entry.apply(&mut whole);
        }
        let bytes = whole.encode_snapshot();
        let mut restored = State::decode_snapshot(&bytes).unwrap();
        prop_assert_eq!(&restored, &whole);
        prop_assert_eq!(restored.encode_snapshot(), bytes);
        for entry in tail {
            prop_assert_eq!(entry.apply(&mut restored), entry.apply(&mut whole), "{:?}", entry);
        }
        prop_assert_eq!(restored.hash(), whole.hash());
        prop_assert_eq!(restored, whole);
    }

    #[test]
    fn commands_of_a_history_come_back_from_their_bytes(steps in steps()) {
        for entry in log_of(&steps) {
            let Some(command) = entry.command else { continue };
            let bytes = command.encode();
            prop_assert!(!bytes.is_empty(), "an empty entry is Raft's own");
            prop_assert_eq!(Command::decode(&bytes), Ok(command));
        }
    }
}

/// Within what a request id means one request.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Scope {
    Owner(OwnerId),
    Lease(LeaseId),
}

/// Where a command's request would be remembered, and whether the command itself says so: a release
/// may leave the lease to the grant that it finds.
fn scope(command: &Command, state: &State) -> Option<((Scope, RequestId), bool)> {
    match command {
        Command::CreateLease { owner, request, .. }
        | Command::RevokeLease { owner, request, .. }
        | Command::Acquire { owner, with: AcquireWith::NewLease(_), request, .. } => {
            Some(((Scope::Owner(owner.clone()), request.clone()), true))
        }
        Command::Acquire { with: AcquireWith::Lease(lease), request, .. }
        | Command::Release {
            grant: GrantRef::Lease(lease) | GrantRef::Request(_, Requester::Lease(lease)),
            request,
            ..
        } => Some(((Scope::Lease(*lease), request.clone()), true)),
        Command::Release { lock, grant: GrantRef::Request(_, Requester::Owner(_)), request, .. } => {
            let lease = state.holder(lock)?.lease;
            Some(((Scope::Lease(lease), request.clone()), false))
        }
        Command::Expire { .. } | Command::AddMember { .. } => None,
    }
}

/// Random histories prove nothing about what they never meet.
#[test]
fn the_random_histories_meet_every_outcome() {
    let mut runner = TestRunner::deterministic();
    let mut met: BTreeMap<&str, usize> = BTreeMap::new();
    for _ in 0..200 {
        let mut state = new_state();
        for entry in log_of(&steps().new_tree(&mut runner).unwrap().current()) {
            let before = state.clone();
            let reply = entry.apply(&mut state).map(|applied| applied.reply);
            *met.entry(outcome(entry.command.as_ref(), &before, reply.as_ref())).or_default() += 1;
        }
    }
    let all = [
        "a release of a grant by a later request",
        "a release of a grant by its request and lease",
        "a release of a grant by its request and owner",
        "a release of a grant by its lease",
        "a second use of a request id: refused",
        "a second use of a request id: known",
        "empty entry",
        "expired nothing",
        "expired",
        "granted",
        "granted again",
        "granted with a new lease",
        "lease created",
        "lease not found",
        "lease revoked",
        "lock held",
        "lock not found",
        "member added",
        "node name taken",
        "not owner",
        "stale token",
    ];
    for outcome in all {
        let count = met.get(outcome).copied().unwrap_or(0);
        assert!(count >= 20, "{outcome}: met {count} times of {met:#?}");
    }
}

fn outcome(
    command: Option<&Command>,
    before: &State,
    reply: Option<&Result<Reply, Refusal>>,
) -> &'static str {
    if let Some(Ok(Some(_))) = command.map(|command| before.check(command)) {
        return "a second use of a request id: known";
    }
    match reply {
        None => "empty entry",
        Some(Ok(Reply::LeaseCreated { .. })) => "lease created",
        Some(Ok(Reply::LeaseRevoked { .. })) => "lease revoked",
        Some(Ok(Reply::Granted { .. })) => match command {
            Some(Command::Acquire { with: AcquireWith::NewLease(_), .. }) => "granted with a new lease",
            Some(Command::Acquire { lock, .. }) if before.holder(lock).is_some() => "granted again",
            _ => "granted",
        },
        Some(Ok(Reply::Released)) => match command {
            Some(Command::Release { lock, grant: GrantRef::Request(acquire, _), .. })
                if before.locks().any(|(name, grant)| name == lock && grant.request != *acquire) =>
            {
                "a release of a grant by a later request"
            }
            Some(Command::Release { grant: GrantRef::Request(_, Requester::Lease(_)), .. }) => {
                "a release of a grant by its request and lease"
            }
            Some(Command::Release { grant: GrantRef::Request(_, Requester::Owner(_)), .. }) => {
                "a release of a grant by its request and owner"
            }
            _ => "a release of a grant by its lease",
        },
        Some(Ok(Reply::Expired { count: 0 })) => "expired nothing",
        Some(Ok(Reply::Expired { .. })) => "expired",
        Some(Ok(Reply::MemberAdded { .. })) => "member added",
        Some(Err(Refusal::LeaseNotFound { .. })) => "lease not found",
        Some(Err(Refusal::LockNotFound { .. })) => "lock not found",
        Some(Err(Refusal::LockHeld { .. })) => "lock held",
        Some(Err(Refusal::NotOwner { .. })) => "not owner",
        Some(Err(Refusal::StaleToken { .. })) => "stale token",
        Some(Err(Refusal::TooManyLocks { .. })) => "too many locks",
        Some(Err(Refusal::RequestReused { .. })) => "a second use of a request id: refused",
        Some(Err(Refusal::NodeNameTaken { .. })) => "node name taken",
    }
}
