//! Groups side by side: what each has, and what it says to those who are wrong there.
#![allow(clippy::unwrap_used, reason = "a test may")]

use lowkey_core::{
    AcquireWith, ClusterId, Command, GrantRef, GroupId, LeaseId, LockName, Mode, OwnerId, Refusal, Reply,
    RequestId, Requester, Scope, State, Ttl, Value, parse_boundaries,
};

/// The states of several groups, each with entries of its own.
struct Groups {
    states: Vec<State>,
    requests: u32,
}

impl Groups {
    fn founded(boundaries: &str) -> Self {
        let first = State::new(ClusterId([7; 16]));
        let states = first.found_groups(&parse_boundaries(boundaries).unwrap()).unwrap();
        Self { states, requests: 0 }
    }

    fn state(&mut self, group: u32) -> &mut State {
        &mut self.states[group as usize - 1]
    }

    fn apply(&mut self, group: u32, command: &Command) -> Result<Reply, Refusal> {
        let state = self.state(group);
        let checked = state.check(command);
        let reply = state.apply(state.revision() + 1, 1, command).reply;
        match &checked {
            Err(refusal) => assert_eq!(reply.as_ref(), Err(refusal)),
            Ok(Some(known)) => assert_eq!(reply.as_ref(), Ok(known)),
            Ok(None) => assert!(reply.is_ok()),
        }
        assert_eq!(State::decode_snapshot(&state.encode_snapshot()).as_ref(), Ok(&*state));
        reply
    }

    fn request(&mut self) -> RequestId {
        self.requests += 1;
        RequestId::parse(&format!("request-{}", self.requests)).unwrap()
    }

    fn lease(&mut self, group: u32) -> LeaseId {
        let request = self.request();
        let create = Command::CreateLease { owner: owner(), ttl: Ttl::parse(10).unwrap(), request };
        match self.apply(group, &create) {
            Ok(Reply::LeaseCreated { lease, .. }) => lease,
            other => panic!("{other:?}"),
        }
    }

    fn acquire(&mut self, group: u32, lock: &str, lease: LeaseId, scope: Scope) -> Result<Reply, Refusal> {
        let acquire = acquire(lock, AcquireWith::Lease(lease), scope, self.request());
        self.apply(group, &acquire)
    }
}

fn owner() -> OwnerId {
    OwnerId::parse("alice").unwrap()
}

fn name(text: &str) -> LockName {
    LockName::parse(text).unwrap()
}

fn acquire(lock: &str, with: AcquireWith, scope: Scope, request: RequestId) -> Command {
    Command::Acquire {
        lock: name(lock),
        owner: owner(),
        with,
        mode: Mode::Exclusive,
        scope,
        value: Value::default(),
        wait: false,
        max_hold: None,
        since_unix_ms: 0,
        keeps_asked: false,
        request,
    }
}

#[test]
fn one_group_is_written_and_hashed_as_it_always_was() {
    let mut one = State::new(ClusterId([7; 16]));
    let founded = one.clone().found_groups(&[]).unwrap();
    assert_eq!((&founded[0], founded.len()), (&one, 1));
    assert_eq!(founded[0].shard_map().unwrap().group_count(), 1);
    assert!(one.range().is_whole() && one.group() == GroupId::ROOT);
    let create = Command::CreateLease {
        owner: owner(),
        ttl: Ttl::parse(10).unwrap(),
        request: RequestId::parse("r").unwrap(),
    };
    for revision in 1..=3 {
        let request = RequestId::parse(&format!("r{revision}")).unwrap();
        let Command::CreateLease { owner, ttl, .. } = create.clone() else { unreachable!() };
        let reply = one.apply(revision, 1, &Command::CreateLease { owner, ttl, request }).reply;
        // One after the other, without stripes.
        assert!(matches!(reply, Ok(Reply::LeaseCreated { lease, .. }) if lease.0 == revision));
    }
    assert_eq!(one.encode_snapshot()[..2], [0x08, 2]);
}

#[test]
fn a_cluster_of_several_is_founded_with_a_state_for_each() {
    let groups = Groups::founded("g,m/");
    let told: Vec<_> =
        groups.states.iter().map(|state| (state.group().0, state.range().to_string())).collect();
    let expected = [r#"["", "g")"#, r#"["g", "m/")"#, r#"["m/", …)"#].map(str::to_owned);
    assert_eq!(told, (1..).zip(expected).collect::<Vec<_>>());
    for state in &groups.states {
        let bytes = state.encode_snapshot();
        assert_eq!(bytes[..2], [0x08, 7], "older versions must not read it as the only group");
        assert_eq!(State::decode_snapshot(&bytes).as_ref(), Ok(state));
        assert_eq!(state.shard_map().is_some(), state.group() == GroupId::ROOT);
    }
    let map = groups.states[0].shard_map().unwrap();
    assert_eq!(map.group_of(&name("m")), GroupId(2));
    assert_eq!(map.group_of(&name("m/a")), GroupId(3));
    // A replica that is wrong about its range is noticed.
    let digests: std::collections::BTreeSet<u64> = groups.states.iter().map(State::digest).collect();
    assert_eq!(digests.len(), 3);
}

#[test]
fn a_name_of_another_group_is_refused_and_nothing_was_done() {
    let mut groups = Groups::founded("g,m/");
    let lease = groups.lease(2);
    assert!(groups.acquire(2, "h", lease, Scope::Name).is_ok());
    let before = groups.state(2).clone();
    let here = Err(Refusal::NotHere { group: GroupId(2) });
    for lock in ["a", "m/a", "z"] {
        assert_eq!(groups.acquire(2, lock, lease, Scope::Name), here, "{lock}");
        let release = Command::Release {
            lock: name(lock),
            grant: GrantRef::Lease(lease),
            token: None,
            actor: None,
            since_unix_ms: 0,
            request: groups.request(),
        };
        assert_eq!(groups.apply(2, &release), here, "{lock}");
        let value = Command::SetValue {
            lock: name(lock),
            owner: owner(),
            lease,
            token: None,
            value: Value::parse("v").unwrap(),
            since_unix_ms: 0,
            request: groups.request(),
        };
        assert_eq!(groups.apply(2, &value), here, "{lock}");
        let new = AcquireWith::NewLease(Ttl::parse(10).unwrap());
        let new = acquire(lock, new, Scope::Name, groups.request());
        assert_eq!(groups.apply(2, &new), here, "{lock}");
        // Said to be given up: that it is elsewhere must not sound like "it is over".
        let give_up = Command::Release {
            lock: name(lock),
            grant: GrantRef::GivenUp(RequestId::parse("later").unwrap(), Requester::Lease(LeaseId(1))),
            token: None,
            actor: None,
            since_unix_ms: 0,
            request: groups.request(),
        };
        assert_eq!(groups.apply(2, &give_up), here, "{lock}");
    }
    let mut unchanged = before;
    unchanged.advance(groups.state(2).revision());
    assert_eq!(*groups.state(2), unchanged);
}

#[test]
fn a_lease_holds_what_is_in_its_own_group_only() {
    let mut groups = Groups::founded("g,m/");
    let [first, second, third] = [1, 2, 3].map(|group| groups.lease(group));
    assert_eq!([first, second, third].map(|lease| lease.0 % 1024), [0, 1, 2]);
    let refused = groups.acquire(2, "h", third, Scope::Name);
    assert_eq!(refused, Err(Refusal::LeaseElsewhere { lease: third, group: GroupId(3) }));
    let refused = groups.acquire(2, "h", first, Scope::Name);
    assert_eq!(refused, Err(Refusal::LeaseElsewhere { lease: first, group: GroupId(1) }));
    // Where both are wrong the name counts: the next group judges the lease.
    let refused = groups.acquire(2, "z", third, Scope::Name);
    assert_eq!(refused, Err(Refusal::NotHere { group: GroupId(2) }));
    // A lease alone says where to ask.
    let request = groups.request();
    let revoke =
        Command::RevokeLease { lease: third, owner: owner(), actor: None, since_unix_ms: 0, request };
    assert_eq!(groups.apply(2, &revoke), Err(Refusal::NotHere { group: GroupId(2) }));
    assert_eq!(groups.apply(3, &revoke), Ok(Reply::LeaseRevoked { released: 0 }));
    // An id that is nobody's is just not there.
    let nobodys = LeaseId(1024 * 9 + 500);
    assert_eq!(groups.acquire(2, "h", nobodys, Scope::Name), Err(Refusal::LeaseNotFound { lease: nobodys }));
}

#[test]
fn a_subtree_across_a_boundary_is_refused_and_the_boundary_is_named() {
    let mut groups = Groups::founded("a/m,g");
    let lease = groups.lease(1);
    let boundary = parse_boundaries("a/m").unwrap().remove(0);
    let refused = groups.acquire(1, "a", lease, Scope::Subtree);
    assert_eq!(refused, Err(Refusal::SubtreeSplit { lock: name("a"), boundary }));
    assert!(groups.acquire(1, "a", lease, Scope::Name).is_ok());
    assert!(groups.acquire(1, "a/b", lease, Scope::Subtree).is_ok());
    let lease = groups.lease(2);
    assert!(groups.acquire(2, "a/m", lease, Scope::Subtree).is_ok());
    assert!(groups.acquire(2, "f", lease, Scope::Subtree).is_ok(), "up to the next boundary");
}

#[test]
fn a_snapshot_with_what_is_another_groups_is_refused() {
    let mut groups = Groups::founded("g,m/");
    let lease = groups.lease(2);
    groups.acquire(2, "h", lease, Scope::Name).unwrap();
    let bytes = groups.state(2).encode_snapshot();
    let place_of = |group: u32| {
        // The place is the last field: tag 40, length-delimited.
        let bytes = groups.states[group as usize - 1].encode_snapshot();
        let at = bytes.windows(2).rposition(|pair| pair == [0xc2, 0x02]).unwrap();
        bytes[at..].to_vec()
    };
    let own = place_of(2);
    let body = &bytes[..bytes.len() - own.len()];
    assert!(State::decode_snapshot(&[body, &own].concat()).is_ok());
    let refused = State::decode_snapshot(&[body, &place_of(3)].concat()).unwrap_err().to_string();
    assert!(refused.contains("is not of group 3"), "{refused}");
    // Without a place it would be the only group, with leases of a stripe.
    assert!(State::decode_snapshot(body).is_ok_and(|state| state != *groups.state(2)));
}
