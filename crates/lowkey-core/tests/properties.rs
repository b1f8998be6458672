//! What must hold for every history (`docs/internals/invariants.md`), tried on random ones.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use lowkey_core::{
    AcquireWith, Applied, Cause, Change, ChangeKind, Command, Event, GrantRef, InTheWay, LeaseId, LockName,
    Mode, OwnerId, Refusal, Reply, RequestId, Requester, Scope, State, Ticket, Token, Value, WaitEnd,
};
use proptest::prelude::{ProptestConfig, Strategy, prop_assert, prop_assert_eq, prop_assert_ne, proptest};
use proptest::sample::Index;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::{FileFailurePersistence, TestRunner};
use prost::Message as _;

mod history;
mod model;
mod wire;

use history::{Entry, log_of, new_state, steps};
use model::{Model, ModelClaim, ModelGrant, ModelLease, as_retried};

/// More cases: `PROPTEST_CASES=10000 cargo test -p lowkey-core --test properties`. The model says nearly all
/// that the other properties say, so that they are tried less often.
fn config(share: u32) -> ProptestConfig {
    let config = ProptestConfig::default();
    ProptestConfig {
        cases: config.cases / share,
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource("regressions"))),
        ..config
    }
}

/// The words of a refusal are for people: what counts is that it is one. What is kept of grants that are over, the
/// model does not know: a property of its own compares it with what watches are told.
fn without_words(mut applied: Applied) -> Applied {
    applied.events.retain(|event| !matches!(event, Event::GrantEnded(_)));
    if let Err(Refusal::NotOwner { what }) = &mut applied.reply {
        what.clear();
    }
    applied
}

/// Whom it told of as being in somebody's way, one after the other.
fn told(applied: &Applied) -> VecDeque<Option<InTheWay>> {
    let refused = match &applied.reply {
        Err(Refusal::LockHeld { in_the_way, .. }) => Some(Some(in_the_way.clone())),
        _ => None,
    };
    let cancelled = applied.events.iter().filter_map(|event| match event {
        Event::WaitEnded { end: WaitEnd::Cancelled { in_the_way, .. }, .. } => Some(in_the_way.clone()),
        _ => None,
    });
    refused.into_iter().chain(cancelled).collect()
}

/// The holders, by name and lease.
fn grants(state: &State) -> Vec<ModelGrant> {
    let grant = |(lock, grant): (&LockName, &lowkey_core::Grant)| ModelGrant {
        claim: ModelClaim {
            lock: lock.clone(),
            lease: Some(grant.lease),
            mode: grant.mode,
            scope: grant.scope,
        },
        token: grant.token,
        value: grant.value.clone(),
        revision: grant.revision,
        since_unix_ms: grant.since_unix_ms,
        request: grant.request.clone(),
        max_hold: grant.max_hold,
    };
    state.grants().map(grant).collect()
}

/// Counters that the state keeps to itself: token, lease, member.
fn counters(state: &State) -> [u64; 3] {
    let wire = wire::StateWire::decode(state.encode_snapshot().as_slice()).expect("a snapshot");
    [wire.last_token, wire.last_lease, wire.last_member]
}

/// The snapshot without what asking again may change: the requests that leases remember, and values.
fn without_memory(state: &State) -> wire::StateWire {
    let mut wire = wire::StateWire::decode(state.encode_snapshot().as_slice()).expect("a snapshot");
    wire.leases.iter_mut().for_each(|lease| lease.requests.clear());
    wire.locks.iter_mut().for_each(|lock| lock.value.clear());
    wire
}

/// What an entry carried out later: waits that it granted, each with the acquire that made it.
fn granted_waits<'a>(applied: &Applied, log: &'a [Entry]) -> Vec<(Ticket, &'a Command, Reply)> {
    let granted = |event: &Event| match event {
        Event::WaitEnded { ticket, end: WaitEnd::Granted(reply) } => {
            let entry = log.iter().find(|entry| entry.revision == ticket.0)?;
            Some((*ticket, entry.command.as_ref()?, reply.clone()))
        }
        _ => None,
    };
    applied.events.iter().filter_map(granted).collect()
}

proptest! {
    #![proptest_config(config(1))]

    #[test]
    fn the_state_machine_does_what_the_plain_rules_say(steps in steps()) {
        let (mut state, mut model) = (new_state(), Model::default());
        for entry in log_of(&steps) {
            let applied = entry.apply(&mut state);
            if let (Some(command), Some(applied)) = (&entry.command, applied) {
                let expected = model.apply(entry.revision, entry.term, command, told(&applied));
                prop_assert_eq!(without_words(applied), expected, "{:?}", entry);
            }
            prop_assert_eq!(state.revision(), entry.revision);
            prop_assert_eq!(counters(&state), [model.last_token, model.last_lease, model.last_member]);

            let lease = |(id, lease): (LeaseId, &lowkey_core::Lease)| {
                ModelLease { id, owner: lease.owner.clone(), ttl: lease.ttl, is_waiting: lease.is_waiting }
            };
            prop_assert_eq!(&state.leases().map(lease).collect::<Vec<_>>(), &model.leases);
            model.grants.sort_by(|a, b| (&a.claim.lock, a.claim.lease).cmp(&(&b.claim.lock, b.claim.lease)));
            prop_assert_eq!(&grants(&state), &model.grants);
            prop_assert!(state.waits().eq(model.waits.iter().map(|wait| wait.ticket)));
            for name in model.waits.iter().map(|wait| &wait.claim.lock) {
                let queue = model.waits.iter().filter(|wait| wait.claim.lock == *name);
                let queue: Vec<_> = queue
                    .map(|wait| (wait.owner.clone(), wait.claim.lease, wait.claim.mode, wait.claim.scope))
                    .collect();
                let view = state.lock(name, usize::MAX);
                let real: Vec<_> = view
                    .waiters
                    .into_iter()
                    .map(|waiter| (waiter.owner, Some(waiter.lease), waiter.mode, waiter.scope))
                    .collect();
                prop_assert_eq!(real, queue);
            }
            let members: Vec<_> = state.members().map(|(id, node)| (id, node.as_ref().clone())).collect();
            prop_assert_eq!(&members, &model.members);
            let invitations: Vec<_> = state
                .invitations()
                .map(|(hash, known)| (hash, known.expires_unix_ms, known.used_by))
                .collect();
            prop_assert_eq!(&invitations, &model.invitations);
            prop_assert_eq!(state.backup_schedule(), model.backup_schedule.as_ref());

            // Reading also finds two holders in each other's way, and somebody who waits for nothing.
            prop_assert_eq!(State::decode_snapshot(&state.encode_snapshot()), Ok(state.clone()));
        }
    }

}

proptest! {
    #![proptest_config(config(4))]

    #[test]
    fn no_two_holders_conflict_and_their_leases_exist(steps in steps()) {
        let mut state = new_state();
        for entry in log_of(&steps) {
            entry.apply(&mut state);
            let grants = grants(&state);
            for (at, grant) in grants.iter().enumerate() {
                let conflicts = |other: &&ModelGrant| other.claim.conflicts_with(&grant.claim);
                prop_assert_eq!(grants[..at].iter().find(conflicts), None, "beside {:?}", grant);
                let lease = state.lease(grant.claim.lease.unwrap());
                prop_assert!(lease.is_some_and(|lease| !lease.is_waiting), "{grant:?} hangs on no lease");
                prop_assert!(grant.token <= state.last_token());
                prop_assert!(grant.revision <= state.revision());
                let holder = state.holder_with(&grant.claim.lock, grant.token).unwrap();
                prop_assert_eq!((Some(holder.lease), &holder.owner), (grant.claim.lease, &lease.unwrap().owner));
            }
            let tokens: BTreeSet<_> = grants.iter().map(|grant| grant.token).collect();
            prop_assert_eq!(tokens.len(), grants.len(), "a token was given twice");
        }
    }

    #[test]
    fn tokens_and_ids_rise_with_what_is_new_and_with_nothing_else(steps in steps()) {
        let mut state = new_state();
        let mut before = counters(&state);
        for entry in log_of(&steps) {
            let known_members = state.members().len() as u64;
            let is_new = entry.command.as_ref().is_some_and(|command| state.check(command) == Ok(None));
            let events = entry.apply(&mut state).map(|applied| applied.events).unwrap_or_default();
            let [mut token, mut lease, mut member] = before;
            for event in &events {
                if let Event::Changed(Change { kind: ChangeKind::Acquired, token: new, .. }) = event {
                    token += 1;
                    prop_assert_eq!(*new, Some(Token(token)));
                }
            }
            let makes_lease = matches!(
                entry.command,
                Some(Command::CreateLease { .. } | Command::Acquire { with: AcquireWith::NewLease(_), .. })
            );
            lease += u64::from(is_new && makes_lease);
            member += (state.members().len() as u64).saturating_sub(known_members);
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
                        Ok(Reply::HoldsEnded { count: 0 }) => prop_assert_eq!(&state, &unchanged),
                        // R10: granted or ended before.
                        Ok(Reply::WaitsCancelled { count: 0 }) => prop_assert_eq!(&state, &unchanged),
                        Ok(
                            Reply::MemberAdded { .. }
                            | Reply::MemberRemoved { .. }
                            | Reply::QuarantineEnded
                            | Reply::Invited { .. }
                            | Reply::AccessChanged
                            | Reply::GroupPlanned { .. }
                            | Reply::GroupSplit { .. }
                            | Reply::GroupsChanged
                            | Reply::BackupScheduleSet,
                        ) => {
                            prop_assert_eq!(&applied.events, &[]);
                        }
                        // The holder asked again, or set a value: nothing changed but that value, and
                        // what its lease remembers.
                        Ok(Reply::Granted { revision: granted, .. } | Reply::ValueSet { revision: granted })
                            if granted < entry.revision || reply == Ok(Reply::ValueSet { revision: granted }) =>
                        {
                            let is_value = |event: &Event| {
                                matches!(event, Event::Changed(Change { kind: ChangeKind::ValueSet, .. }))
                            };
                            prop_assert!(applied.events.iter().all(is_value), "{:?}", applied.events);
                            prop_assert_ne!(&state, &unchanged);
                            prop_assert_eq!(without_memory(&state), without_memory(&unchanged));
                        }
                        // R10: nothing was there to end, and nothing will be.
                        Ok(Reply::Released) if entry.command.as_ref().is_some_and(|it| unchanged.would_only_give_up(it)) => {
                            prop_assert_eq!(&applied.events, &[]);
                            prop_assert_ne!(&state, &unchanged);
                            let all_but_requests = |state: &State| {
                                let mut wire = without_memory(state);
                                wire.lease_requests.clear();
                                wire
                            };
                            prop_assert_eq!(all_but_requests(&state), all_but_requests(&unchanged));
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
            let Some(Command::Expire { leases, decided_term, .. }) = &entry.command else { continue };
            let ended: BTreeSet<_> = before.iter().filter(|id| state.lease(**id).is_none()).collect();
            let named: BTreeSet<_> = leases.iter().filter(|id| before.contains(id)).collect();
            let expected = if *decided_term == entry.term { named } else { BTreeSet::new() };
            prop_assert_eq!(&ended, &expected);
            let count = ended.len() as u64;
            prop_assert_eq!(applied.map(|applied| applied.reply), Some(Ok(Reply::Expired { count })));
        }
    }

    /// Each grant ends once, and what is kept of it then is what was granted, and when.
    #[test]
    fn what_is_kept_of_a_grant_is_what_it_was(steps in steps()) {
        let mut state = new_state();
        let mut ended_tokens = BTreeSet::new();
        for entry in log_of(&steps) {
            let before = state.clone();
            let events = entry.apply(&mut state).map(|applied| applied.events).unwrap_or_default();
            let mut told = events.iter().filter_map(|event| match event {
                Event::Changed(change @ Change { kind: ChangeKind::Freed(_), .. }) => Some(change),
                _ => None,
            });
            for event in &events {
                let Event::GrantEnded(ended) = event else { continue };
                prop_assert!(ended_tokens.insert(ended.token), "token {} ended twice", ended.token);
                let grants = before.grants();
                let grant = grants.filter(|(_, grant)| grant.token == ended.token).map(|(_, grant)| grant).next();
                let grant = grant.expect("what ends was held before the entry");
                prop_assert_eq!(
                    (ended.lease, ended.mode, ended.scope, ended.granted_revision),
                    (grant.lease, grant.mode, grant.scope, grant.revision)
                );
                prop_assert_eq!(
                    (ended.granted_unix_ms, ended.asked_unix_ms),
                    (grant.since_unix_ms, grant.asked_unix_ms)
                );
                let lease = before.lease(ended.lease).expect("a holder's lease exists");
                prop_assert_eq!((&ended.owner, ended.ttl), (&lease.owner, lease.ttl));
                let change = told.next().expect("watchers are told first");
                prop_assert_eq!(
                    (ChangeKind::Freed(ended.cause), &ended.lock, Some(ended.token), ended.ended_unix_ms),
                    (change.kind, &change.lock, change.token, change.at_unix_ms)
                );
                prop_assert_eq!(&ended.actor, &change.actor);
            }
            prop_assert_eq!(told.next(), None, "a grant that ended was not kept");
        }
        let held: BTreeSet<_> = state.grants().map(|(_, grant)| grant.token).collect();
        prop_assert!(held.is_disjoint(&ended_tokens));
        prop_assert_eq!(held.len() + ended_tokens.len(), state.last_token().0 as usize);
    }

    /// What watchers are told is enough to know at any time who holds, who waits, and what is shown.
    #[test]
    fn the_events_tell_the_whole_story(steps in steps()) {
        let mut state = new_state();
        let mut leases = BTreeMap::new();
        let mut limited = BTreeMap::new();
        let mut held: BTreeMap<Token, (LockName, LeaseId, Mode, Scope, Value)> = BTreeMap::new();
        let mut awaited: Vec<(Ticket, LockName, LeaseId, Mode, Scope)> = Vec::new();
        for entry in log_of(&steps) {
            for event in entry.apply(&mut state).map(|applied| applied.events).unwrap_or_default() {
                match event {
                    Event::LeaseStarted { lease, ttl } => {
                        prop_assert!(leases.insert(lease, ttl).is_none(), "lease {lease} began twice");
                    }
                    Event::LeaseEnded { lease } => {
                        leases.remove(&lease);
                        prop_assert!(held.values().all(|(_, holder, ..)| *holder != lease), "freed too late");
                    }
                    Event::HoldStarted { hold, max_hold } => {
                        prop_assert!(held.contains_key(&hold.token), "its grant was told before");
                        prop_assert!(limited.insert(hold.token, (hold, max_hold)).is_none());
                    }
                    Event::HoldEnded { token } => {
                        prop_assert!(!held.contains_key(&token), "its end was told before");
                        prop_assert!(limited.remove(&token).is_some());
                    }
                    Event::Changed(change) => {
                        let Change { kind, lock, owner: _, lease, token, mode, scope, value, since_unix_ms: _, at_unix_ms: _, actor: _ } = change;
                        match (kind, token) {
                            (ChangeKind::Acquired, Some(token)) => {
                                prop_assert!(leases.contains_key(&lease), "lease {lease} has not begun, or ended");
                                let before = held.insert(token, (lock, lease, mode, scope, value));
                                prop_assert_eq!(before, None, "a token was given twice");
                            }
                            (ChangeKind::Freed(cause), Some(token)) => {
                                let before = held.remove(&token);
                                let before = before.map(|(lock, lease, mode, scope, _)| (lock, lease, mode, scope));
                                prop_assert_eq!(before, Some((lock, lease, mode, scope)), "a grant that never was");
                                let expected = match &entry.command {
                                    Some(Command::Release { .. }) => Cause::Released,
                                    Some(Command::RevokeLease { .. }) => Cause::Revoked,
                                    Some(Command::EndHolds { .. }) => Cause::HeldTooLong,
                                    _ => Cause::Expired,
                                };
                                prop_assert_eq!(cause, expected);
                            }
                            (ChangeKind::ValueSet, Some(token)) => {
                                let shown = &mut held.get_mut(&token).unwrap().4;
                                prop_assert_ne!(&*shown, &value, "nothing changed");
                                *shown = value;
                            }
                            (ChangeKind::Waiting, None) => {
                                awaited.push((Ticket(entry.revision), lock, lease, mode, scope));
                            }
                            // Told twice: to watchers, who know no tickets, and to whoever waits.
                            (ChangeKind::Cancelled, None) => {}
                            other => prop_assert!(false, "{:?} makes no sense", other),
                        }
                    }
                    Event::GrantEnded(_) => {}
                    Event::WaitEnded { ticket, end } => {
                        let at = awaited.iter().position(|wait| wait.0 == ticket).unwrap();
                        let (_, lock, lease, mode, scope) = awaited.remove(at);
                        if let WaitEnd::Granted(reply) = end {
                            let Reply::Granted { token, lease: holder, .. } = reply else { panic!("{reply:?}") };
                            let (held, by, as_mode, as_scope, _) = held[&token].clone();
                            prop_assert_eq!((held, by, as_mode, as_scope), (lock, lease, mode, scope));
                            prop_assert_eq!(holder, lease);
                        }
                    }
                }
            }
            prop_assert!(limited.values().cloned().eq(state.limited_from(Token(0))), "{limited:?}");
            let running = state.leases().filter(|(_, lease)| !lease.is_waiting);
            prop_assert_eq!(&leases, &running.map(|(id, lease)| (id, lease.ttl)).collect());
            let real: BTreeMap<_, _> = state
                .grants()
                .map(|(lock, g)| (g.token, (lock.clone(), g.lease, g.mode, g.scope, g.value.clone())))
                .collect();
            prop_assert_eq!(&held, &real);
            prop_assert!(awaited.iter().map(|wait| wait.0).eq(state.waits()), "{awaited:?}");
        }
    }

    #[test]
    fn one_request_id_has_one_effect_and_one_reply(steps in steps()) {
        let mut state = new_state();
        let mut done: BTreeMap<(Within, RequestId), (Command, Reply)> = BTreeMap::new();
        let mut waiting: BTreeMap<Ticket, (Within, RequestId)> = BTreeMap::new();
        for entry in log_of(&steps) {
            let Some(command) = &entry.command else {
                entry.apply(&mut state);
                continue;
            };
            let meant = within(command, &state);
            let carried_out = state.check(command) == Ok(None);
            let applied = entry.apply(&mut state).unwrap();
            if let Some((key, lease_was_named)) = meant {
                match done.get(&key) {
                    Some((before, reply)) => {
                        prop_assert_eq!(&applied.events, &[], "{:?} had a second effect", entry);
                        // A lease that ended takes its memory along.
                        let alive = match &key.0 {
                            Within::Owner(_) => true,
                            Within::Lease(lease) => state.lease(*lease).is_some(),
                        };
                        if *before == as_retried(command) && alive && lease_was_named {
                            prop_assert_eq!(&applied.reply, &Ok(reply.clone()));
                        } else if *before != as_retried(command) {
                            prop_assert!(applied.reply.is_err(), "{entry:?} was taken for {before:?}");
                        }
                    }
                    None if carried_out => {
                        let reply = applied.reply.clone().unwrap();
                        if let Reply::Waiting { ticket } = &reply {
                            waiting.insert(*ticket, key.clone());
                        }
                        done.insert(key, (as_retried(command), reply));
                    }
                    None => {}
                }
            }
            // While it waits the reply is its place, then the grant; a wait that came to nothing had no effect.
            for event in applied.events {
                let Event::WaitEnded { ticket, end } = event else { continue };
                let Some(key) = waiting.remove(&ticket) else { continue };
                match end {
                    WaitEnd::Granted(reply) => done.get_mut(&key).unwrap().1 = reply,
                    _ => _ = done.remove(&key),
                }
            }
        }
    }

    /// An acquire that was answered may come once more, at any time: also when the lock is free again.
    #[test]
    fn a_late_copy_of_an_acquire_takes_nothing(steps in steps()) {
        let mut state = new_state();
        let mut granted: Vec<(Command, Reply)> = Vec::new();
        let log = log_of(&steps);
        for entry in &log {
            let Some(applied) = entry.apply(&mut state) else { continue };
            let later = granted_waits(&applied, &log);
            granted.extend(later.into_iter().map(|(_, command, reply)| (command.clone(), reply)));
            if let (Some(command @ Command::Acquire { .. }), Ok(reply @ Reply::Granted { .. })) =
                (&entry.command, applied.reply)
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
        let log = log_of(&steps);
        let few: BTreeSet<_> = (0..8).map(|id| RequestId::parse(&format!("r{id}")).unwrap()).collect();
        for entry in &log {
            let Some(applied) = entry.apply(&mut state) else { continue };
            let now = entry.command.iter().zip(applied.reply.clone());
            let later = granted_waits(&applied, &log).into_iter().map(|(_, command, reply)| (command, reply));
            for (command, reply) in now.chain(later) {
                let Command::Acquire { request, owner, with, .. } = command else { continue };
                let Reply::Granted { token, .. } = reply else { continue };
                answered.insert((token, request.clone()));
                if matches!(with, AcquireWith::NewLease(_)) {
                    made_for.insert((token, request.clone(), owner.clone()));
                }
            }
            // A place in a queue has a request too, and is given back in the same way: see the scripts.
            let awaited: BTreeSet<_> = state.waits().filter_map(|ticket| {
                match log.iter().find(|entry| entry.revision == ticket.0)?.command.as_ref()? {
                    Command::Acquire { lock, request, .. } => Some((lock, request)),
                    _ => None,
                }
            }).collect();
            // Those that may be meant, and a few that meet one another.
            let is_held = |token: &Token| state.grants().any(|(_, grant)| grant.token == *token);
            let ids: BTreeSet<_> =
                answered.iter().filter(|(token, _)| is_held(token)).map(|(_, id)| id).chain(&few).collect();
            let holders: BTreeSet<_> = state.grants().map(|(lock, _)| lock).collect();
            for lock in holders {
                let owners = ["owner0", "owner1"].map(|id| OwnerId::parse(id).unwrap());
                let leases = state.leases().map(|(id, _)| Requester::Lease(id));
                for requester in leases.chain(owners.into_iter().map(Requester::Owner)) {
                    for acquire in ids.iter().copied().filter(|acquire| !awaited.contains(&(lock, *acquire))) {
                        let release = Command::Release {
                            lock: lock.clone(),
                            grant: GrantRef::Request(acquire.clone(), requester.clone()),
                            token: None,
                            actor: None, since_unix_ms: 0,
                            request: RequestId::parse("release").unwrap(),
                        };
                        let mut of_lock = state.grants().filter(|(name, _)| *name == lock);
                        let meant = of_lock.any(|(_, grant)| match &requester {
                            Requester::Lease(lease) => {
                                *lease == grant.lease && answered.contains(&(grant.token, acquire.clone()))
                            }
                            Requester::Owner(owner) => {
                                made_for.contains(&(grant.token, acquire.clone(), owner.clone()))
                            }
                        });
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
enum Within {
    Owner(OwnerId),
    Lease(LeaseId),
}

/// Where a command's request would be remembered, and whether the command itself says so: a release
/// may leave the lease to the grant that it finds.
fn within(command: &Command, state: &State) -> Option<((Within, RequestId), bool)> {
    match command {
        Command::CreateLease { owner, request, .. }
        | Command::RevokeLease { owner, request, .. }
        | Command::Acquire { owner, with: AcquireWith::NewLease(_), request, .. }
        | Command::Release {
            grant:
                GrantRef::Request(_, Requester::Owner(owner)) | GrantRef::GivenUp(_, Requester::Owner(owner)),
            token: Some(_),
            request,
            ..
        }
        | Command::Release { grant: GrantRef::Request(_, Requester::Owner(owner)), request, .. } => {
            Some(((Within::Owner(owner.clone()), request.clone()), true))
        }
        // What was given up is remembered by the acquire's id.
        Command::Release { grant: GrantRef::GivenUp(..), token: None, .. } => None,
        // The end of a wait that was to make its lease is remembered nowhere: the lease ends with it.
        Command::Release { grant: GrantRef::Request(_, Requester::Lease(lease)), .. }
            if state.lease(*lease).is_some_and(|lease| lease.is_waiting) =>
        {
            None
        }
        Command::Acquire { with: AcquireWith::Lease(lease), request, .. }
        | Command::SetValue { lease, request, .. }
        | Command::Release {
            grant:
                GrantRef::Lease(lease)
                | GrantRef::Request(_, Requester::Lease(lease))
                | GrantRef::GivenUp(_, Requester::Lease(lease)),
            request,
            ..
        } => Some(((Within::Lease(*lease), request.clone()), true)),
        Command::CancelWait { .. }
        | Command::Expire { .. }
        | Command::EndHolds { .. }
        | Command::AddMember { .. }
        | Command::UpdateMember { .. }
        | Command::RemoveMember { .. }
        | Command::EndQuarantine
        | Command::Invite { .. }
        | Command::Access(_)
        | Command::Groups(_)
        | Command::SetBackupSchedule(_) => None,
    }
}

/// Random histories prove nothing about what they never meet.
#[test]
fn the_random_histories_meet_every_outcome() {
    let mut runner = TestRunner::deterministic();
    let mut met: BTreeMap<&str, usize> = BTreeMap::new();
    for _ in 0..400 {
        let mut state = new_state();
        for entry in log_of(&steps().new_tree(&mut runner).unwrap().current()) {
            let before = state.clone();
            let applied = entry.apply(&mut state);
            let reply = applied.as_ref().map(|applied| &applied.reply);
            *met.entry(outcome(entry.command.as_ref(), &before, reply)).or_default() += 1;
            for event in applied.iter().flat_map(|applied| &applied.events) {
                *met.entry(happening(event, entry.command.as_ref())).or_default() += 1;
            }
        }
    }
    let all = [
        "a cancel that came too late",
        "a release of a grant by a later request",
        "a release of a grant by its request and lease",
        "a release of a grant by its request and owner",
        "a release of a grant by its lease",
        "a release of a wait",
        "a second use of a request id: refused",
        "a second use of a request id: known",
        "a second use of a request id: still waiting",
        "a value was changed",
        "a wait ended with its lease",
        "a wait was cancelled",
        "a wait was granted by a cancel",
        "a wait was granted by an expiry",
        "a wait was granted by a release",
        "a wait was granted by a revoke",
        "a wait was granted by the end of a hold",
        "already held",
        "already held, with a limit",
        "an acquire was given up before it came",
        "given up",
        "cancelled",
        "empty entry",
        "expired nothing",
        "expired",
        "held too long",
        "held too long, for nothing",
        "granted",
        "granted again",
        "granted with a new lease",
        "lease created",
        "lease not found",
        "lease revoked",
        "lock held",
        "lock not found",
        "an expected node came",
        "a node came with an invitation",
        "invitation not found",
        "invitation used",
        "invited",
        "last node",
        "member added",
        "member removed",
        "member updated",
        "node key differs",
        "node name taken",
        "node not found",
        "not owner",
        "schedule of backups set",
        "stale token",
        "value set",
        "waiting",
    ];
    for outcome in all {
        let count = met.get(outcome).copied().unwrap_or(0);
        // An acquire must come after it was given up, a node with an invitation that another one used, and an update with
        // the key that the node is registered with: few do.
        let is_rare = [
            "given up",
            "invitation used",
            "member updated",
            "a release of a grant by its request and owner",
            "a wait was granted by an expiry",
        ]
        .contains(&outcome);
        let least = if is_rare { 5 } else { 20 };
        assert!(count >= least, "{outcome}: met {count} times of {met:#?}");
    }
}

fn happening(event: &Event, command: Option<&Command>) -> &'static str {
    match event {
        Event::Changed(Change { kind: ChangeKind::ValueSet, .. }) => "a value was changed",
        Event::WaitEnded { end: WaitEnd::Granted(_), .. } => match command {
            Some(Command::Release { .. }) => "a wait was granted by a release",
            Some(Command::RevokeLease { .. }) => "a wait was granted by a revoke",
            Some(Command::Expire { .. }) => "a wait was granted by an expiry",
            Some(Command::CancelWait { .. }) => "a wait was granted by a cancel",
            Some(Command::EndHolds { .. }) => "a wait was granted by the end of a hold",
            other => panic!("a wait was granted by {other:?}"),
        },
        Event::WaitEnded { end: WaitEnd::Cancelled { .. }, .. } => "a wait was cancelled",
        Event::WaitEnded { end: WaitEnd::LeaseGone { .. }, .. } => "a wait ended with its lease",
        Event::WaitEnded { end: WaitEnd::GivenUp { .. }, .. } => "a release of a wait",
        Event::LeaseStarted { .. }
        | Event::LeaseEnded { .. }
        | Event::HoldStarted { .. }
        | Event::HoldEnded { .. }
        | Event::Changed(_)
        | Event::GrantEnded(_) => "other events",
    }
}

fn outcome(
    command: Option<&Command>,
    before: &State,
    reply: Option<&Result<Reply, Refusal>>,
) -> &'static str {
    match command.map(|command| before.check(command)) {
        Some(Ok(Some(Reply::Waiting { .. }))) => return "a second use of a request id: still waiting",
        Some(Ok(Some(_))) => return "a second use of a request id: known",
        _ => {}
    }
    match reply {
        None => "empty entry",
        Some(Ok(Reply::LeaseCreated { .. })) => "lease created",
        Some(Ok(Reply::LeaseRevoked { .. })) => "lease revoked",
        Some(Ok(Reply::Granted { token, .. })) => match command {
            Some(Command::Acquire { with: AcquireWith::NewLease(_), .. }) => "granted with a new lease",
            _ if *token <= before.last_token() => "granted again",
            _ => "granted",
        },
        Some(Ok(Reply::Waiting { .. })) => "waiting",
        Some(Ok(Reply::ValueSet { .. })) => "value set",
        Some(Ok(Reply::WaitsCancelled { count: 0 })) => "a cancel that came too late",
        Some(Ok(Reply::WaitsCancelled { .. })) => "cancelled",
        Some(Ok(Reply::GivenUp)) => "remembered, never answered",
        Some(Ok(Reply::Released)) => match command {
            Some(command) if before.would_only_give_up(command) => "an acquire was given up before it came",
            Some(Command::Release {
                lock,
                grant: GrantRef::Request(acquire, _) | GrantRef::GivenUp(acquire, _),
                ..
            }) if before.grants().any(|(name, grant)| name == lock && grant.request != *acquire) => {
                "a release of a grant by a later request"
            }
            Some(Command::Release {
                grant: GrantRef::Request(_, Requester::Lease(_)) | GrantRef::GivenUp(_, Requester::Lease(_)),
                ..
            }) => "a release of a grant by its request and lease",
            Some(Command::Release {
                grant: GrantRef::Request(_, Requester::Owner(_)) | GrantRef::GivenUp(_, Requester::Owner(_)),
                ..
            }) => "a release of a grant by its request and owner",
            _ => "a release of a grant by its lease",
        },
        Some(Ok(Reply::Expired { count: 0 })) => "expired nothing",
        Some(Ok(Reply::Expired { .. })) => "expired",
        Some(Ok(Reply::HoldsEnded { count: 0 })) => "held too long, for nothing",
        Some(Ok(Reply::HoldsEnded { .. })) => "held too long",
        Some(Ok(Reply::MemberAdded { member })) => match command {
            Some(Command::UpdateMember { .. }) => "member updated",
            Some(Command::AddMember { node, .. })
                if node.identity.is_some()
                    && before.member(*member).is_some_and(|known| known.identity.is_none()) =>
            {
                "an expected node came"
            }
            Some(Command::AddMember { invitation: Some(_), node }) if !before.is_registered(node) => {
                "a node came with an invitation"
            }
            _ => "member added",
        },
        Some(Ok(Reply::MemberRemoved { .. })) => "member removed",
        Some(Ok(Reply::QuarantineEnded)) => "quarantine ended",
        Some(Err(Refusal::LeaseNotFound { .. })) => "lease not found",
        Some(Err(Refusal::LockNotFound { .. })) => "lock not found",
        Some(Err(Refusal::LockHeld { .. })) => "lock held",
        Some(Err(Refusal::AlreadyHeld { max_hold: Some(_), .. })) => "already held, with a limit",
        Some(Err(Refusal::AlreadyHeld { .. })) => "already held",
        Some(Err(Refusal::NotOwner { .. })) => "not owner",
        Some(Err(Refusal::StaleToken { .. })) => "stale token",
        Some(Err(Refusal::TooManyLocks { .. })) => "too many locks",
        Some(Err(Refusal::TooManyWaiters { .. })) => "too many waiters",
        Some(Err(Refusal::RequestReused { .. })) => "a second use of a request id: refused",
        Some(Err(Refusal::GivenUp { .. })) => "given up",
        Some(Err(Refusal::NodeNameTaken { .. })) => "node name taken",
        Some(Err(Refusal::NodeNotFound { .. })) => "node not found",
        Some(Ok(Reply::Invited { .. })) => "invited",
        Some(Ok(Reply::GroupPlanned { .. } | Reply::GroupSplit { .. } | Reply::GroupsChanged)) => {
            "groups changed"
        }
        Some(Err(Refusal::Split(_) | Refusal::Draining { .. })) => "groups not changed",
        Some(Ok(Reply::AccessChanged)) => "access changed",
        Some(Ok(Reply::BackupScheduleSet)) => "schedule of backups set",
        Some(Err(
            Refusal::PrincipalNotFound { .. }
            | Refusal::TokenNotFound { .. }
            | Refusal::ProofTaken { .. }
            | Refusal::AccessLimit { .. }
            | Refusal::AdminNeeded,
        )) => "access not changed",
        Some(Err(Refusal::NodeKeyDiffers { .. })) => "node key differs",
        Some(Err(Refusal::InvitationNotFound)) => "invitation not found",
        Some(Err(Refusal::InvitationUsed)) => "invitation used",
        Some(Err(Refusal::LastNode { .. })) => "last node",
        Some(Err(
            Refusal::NotHere { .. } | Refusal::LeaseElsewhere { .. } | Refusal::SubtreeSplit { .. },
        )) => "another group's",
        Some(Err(Refusal::Quarantine)) => "quarantine",
    }
}
