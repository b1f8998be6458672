//! Limits that are too high for a script.

use lowkey_core::limits::{
    LEASE_REQUESTS_KEPT, LOCK_NAME_SEGMENTS_MAX, LOCKS_PER_LEASE_MAX, WAITERS_PER_LOCK_MAX,
};
use lowkey_core::{
    AcquireWith, Applied, ClusterId, Command, GrantRef, LeaseId, LockName, Mode, OwnerId, Refusal, Reply,
    RequestId, Scope, State, Token, Ttl, Value,
};

/// A state machine that is fed one command after the other.
struct Fed(State);

impl Fed {
    fn new() -> Self {
        Self(State::new(ClusterId([7; 16])))
    }

    fn apply(&mut self, command: &Command) -> Applied {
        self.0.apply(self.0.revision() + 1, 1, command)
    }
}

fn request(id: impl ToString) -> RequestId {
    RequestId::parse(&id.to_string()).expect("a request id")
}

fn owner(id: impl ToString) -> OwnerId {
    OwnerId::parse(&id.to_string()).expect("an owner id")
}

fn create_lease(owner_id: &str, id: impl ToString) -> Command {
    Command::CreateLease { owner: owner(owner_id), ttl: ttl(), request: request(id) }
}

fn ttl() -> Ttl {
    Ttl::parse(10).expect("a ttl")
}

fn acquire(lock: impl ToString, with: AcquireWith, id: impl ToString) -> Command {
    Command::Acquire {
        lock: LockName::parse(&lock.to_string()).expect("a lock name"),
        owner: owner("alice"),
        with,
        mode: Mode::Exclusive,
        scope: Scope::Name,
        value: Value::default(),
        wait: false,
        max_hold: None,
        since_unix_ms: 0,
        request: request(id),
    }
}

/// The same, in line if need be.
fn wait_for(lock: impl ToString, with: AcquireWith, id: impl ToString) -> Command {
    let mut command = acquire(lock, with, id);
    if let Command::Acquire { wait, .. } = &mut command {
        *wait = true;
    }
    command
}

fn release(lock: impl ToString, lease: LeaseId, id: impl ToString) -> Command {
    Command::Release {
        lock: LockName::parse(&lock.to_string()).expect("a lock name"),
        grant: GrantRef::Lease(lease),
        token: None,
        actor: None,
        since_unix_ms: 0,
        request: request(id),
    }
}

#[test]
fn a_lease_holds_ten_thousand_locks_and_no_more() {
    assert_eq!(LOCKS_PER_LEASE_MAX, 10_000);
    let mut fed = Fed::new();
    fed.apply(&create_lease("alice", "lease"));
    let with = AcquireWith::Lease(LeaseId(1));
    for lock in 0..LOCKS_PER_LEASE_MAX {
        assert!(fed.apply(&acquire(lock, with, lock)).reply.is_ok(), "lock {lock}");
    }

    let before = fed.0.clone();
    let refused = fed.apply(&acquire("one-more", with, "one-more"));
    assert_eq!(refused.reply, Err(Refusal::TooManyLocks { lease: LeaseId(1) }));
    assert_eq!(refused.events, []);
    let mut unchanged = before;
    unchanged.advance(fed.0.revision());
    assert_eq!(fed.0, unchanged);

    // What it holds already it may ask for again, and another lease is not concerned.
    let again = fed.apply(&acquire("0", with, "again")).reply;
    assert!(matches!(again, Ok(Reply::Granted { token: Token(1), .. })), "{again:?}");
    assert_eq!(fed.0.check(&acquire("0", with, "again")), again.map(Some));
    let other = fed.apply(&acquire("other", AcquireWith::NewLease(ttl()), "other")).reply;
    assert!(matches!(other, Ok(Reply::Granted { lease: LeaseId(2), .. })), "{other:?}");

    // A full lease comes back whole from a snapshot, and is full there too.
    fed.0 = State::decode_snapshot(&fed.0.encode_snapshot()).unwrap();
    assert!(fed.apply(&acquire("one-more", with, "one-more")).reply.is_err());

    // One given back makes room for one.
    assert_eq!(fed.apply(&release("17", LeaseId(1), "release")).reply, Ok(Reply::Released));
    assert!(fed.apply(&acquire("one-more", with, "one-more")).reply.is_ok());
    assert!(fed.apply(&acquire("two-more", with, "two-more")).reply.is_err());

    let revoke = Command::RevokeLease {
        lease: LeaseId(1),
        owner: owner("alice"),
        actor: None,
        since_unix_ms: 0,
        request: request("revoke"),
    };
    assert_eq!(fed.apply(&revoke).reply, Ok(Reply::LeaseRevoked { released: 10_000 }));
    assert_eq!(fed.0.lock_count(), 1);
}

#[test]
fn the_last_hundred_thousand_requests_that_made_or_ended_leases_are_remembered() {
    assert_eq!(LEASE_REQUESTS_KEPT, 100_000);
    let mut fed = Fed::new();
    let first = create_lease("alice", "first");
    let second = acquire("a", AcquireWith::NewLease(ttl()), "second");
    let third = Command::RevokeLease {
        lease: LeaseId(1),
        owner: owner("alice"),
        actor: None,
        since_unix_ms: 0,
        request: request("third"),
    };
    let answers: Vec<_> = [&first, &second, &third].map(|command| fed.apply(command).reply).into();
    for id in 3..LEASE_REQUESTS_KEPT {
        fed.apply(&create_lease("bob", id));
    }

    // All are known, and stay so over a snapshot.
    fed.0 = State::decode_snapshot(&fed.0.encode_snapshot()).unwrap();
    for (command, answer) in [&first, &second, &third].into_iter().zip(&answers) {
        assert_eq!(fed.0.check(command), answer.clone().map(Some));
    }

    // One more, and the oldest alone is forgotten.
    fed.apply(&create_lease("bob", "one-more"));
    assert_eq!(fed.0.check(&first), Ok(None));
    assert_eq!(fed.0.check(&second), answers[1].clone().map(Some));
    fed.apply(&create_lease("bob", "two-more"));
    assert!(matches!(fed.0.check(&second), Err(Refusal::LockHeld { .. })));
    assert_eq!(fed.0.check(&third), answers[2].clone().map(Some));
}

#[test]
fn what_a_lease_waits_for_counts_as_what_it_holds() {
    let mut fed = Fed::new();
    fed.apply(&create_lease("alice", "lease"));
    fed.apply(&acquire("held", AcquireWith::NewLease(ttl()), "other"));
    let with = AcquireWith::Lease(LeaseId(1));
    for lock in 0..LOCKS_PER_LEASE_MAX - 2 {
        assert!(fed.apply(&acquire(lock, with, lock)).reply.is_ok(), "lock {lock}");
    }
    // Each wait counts, also for the same name.
    for id in ["one", "two"] {
        assert!(matches!(fed.apply(&wait_for("held", with, id)).reply, Ok(Reply::Waiting { .. })), "{id}");
    }
    let too_many = Err(Refusal::TooManyLocks { lease: LeaseId(1) });
    assert_eq!(fed.apply(&wait_for("held", with, "three")).reply, too_many);
    assert_eq!(fed.apply(&acquire("free", with, "four")).reply, too_many);
    // A place that it has it may ask for again.
    assert!(matches!(fed.apply(&wait_for("held", with, "one")).reply, Ok(Reply::Waiting { .. })));

    // The two share one grant: one lock less.
    assert_eq!(fed.apply(&release("held", LeaseId(2), "release")).reply, Ok(Reply::Released));
    assert!(fed.apply(&acquire("free", with, "four")).reply.is_ok());
    assert_eq!(fed.apply(&acquire("free-too", with, "five")).reply, too_many);
}

#[test]
fn ten_thousand_wait_for_a_lock_and_no_more() {
    assert_eq!(WAITERS_PER_LOCK_MAX, 10_000);
    let mut fed = Fed::new();
    let with = AcquireWith::NewLease(ttl());
    fed.apply(&acquire("a", with, "holder"));
    for id in 0..WAITERS_PER_LOCK_MAX {
        assert!(matches!(fed.apply(&wait_for("a", with, id)).reply, Ok(Reply::Waiting { .. })), "{id}");
    }

    let mut unchanged = fed.0.clone();
    let lock = LockName::parse("a").unwrap();
    let too_many = Err(Refusal::TooManyWaiters { lock: lock.clone() });
    assert_eq!(fed.apply(&wait_for("a", with, "one-more")).reply, too_many);
    unchanged.advance(fed.0.revision());
    assert_eq!(fed.0, unchanged);
    assert_eq!(fed.0.lock(&lock, 3).waiter_count, 10_000);
    assert_eq!(fed.0.lock(&lock, 3).waiters.len(), 3);

    // Who has a place keeps it, another lock is not concerned, and who does not want to wait is told why.
    assert!(matches!(fed.apply(&wait_for("a", with, 17)).reply, Ok(Reply::Waiting { .. })));
    fed.apply(&acquire("b", with, "holder-of-b"));
    assert!(matches!(fed.apply(&wait_for("b", with, "b")).reply, Ok(Reply::Waiting { .. })));
    assert!(matches!(fed.apply(&acquire("a", with, "try")).reply, Err(Refusal::LockHeld { .. })));

    // A full queue comes back whole from a snapshot, and one that is served makes room for one.
    fed.0 = State::decode_snapshot(&fed.0.encode_snapshot()).unwrap();
    assert_eq!(fed.apply(&wait_for("a", with, "one-more")).reply, too_many);
    assert_eq!(fed.apply(&release("a", LeaseId(1), "release")).reply, Ok(Reply::Released));
    assert!(matches!(fed.apply(&wait_for("a", with, "one-more")).reply, Ok(Reply::Waiting { .. })));
    assert_eq!(fed.apply(&wait_for("a", with, "two-more")).reply, too_many);

    // All of them are served, one after the other, in their order.
    for lease in 2..=10_001 {
        assert_eq!(fed.0.lock(&lock, 1).holders[0].lease, LeaseId(lease));
        assert!(fed.apply(&release("a", LeaseId(lease), "release")).reply.is_ok());
    }
}

/// The edge refuses new ones. Those in logs and snapshots of before go on.
#[test]
fn a_name_deeper_than_new_ones_may_be_is_decoded_applied_read_and_released() {
    let deep = vec!["a"; LOCK_NAME_SEGMENTS_MAX + 1].join("/");
    LockName::parse_wanted(&deep).expect_err("too deep to be asked for");
    let mut fed = Fed::new();
    fed.apply(&create_lease("alice", "lease"));
    let entry = acquire(&deep, AcquireWith::Lease(LeaseId(1)), "acquire").encode();
    let command = Command::decode(&entry).expect("an entry of before");
    assert!(matches!(fed.apply(&command).reply, Ok(Reply::Granted { .. })));

    let mut restored = Fed(State::decode_snapshot(&fed.0.encode_snapshot()).expect("a snapshot of before"));
    assert_eq!(restored.0, fed.0);
    let name = LockName::parse(&deep).expect("a lock name");
    assert_eq!(restored.0.lock(&name, 10).holders.len(), 1);
    let release = Command::decode(&release(&deep, LeaseId(1), "release").encode()).expect("an entry");
    assert_eq!(restored.apply(&release).reply, Ok(Reply::Released));
}
