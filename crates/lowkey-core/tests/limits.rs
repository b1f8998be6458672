//! Limits that are too high for a script.

use lowkey_core::limits::{LEASE_REQUESTS_KEPT, LOCKS_PER_LEASE_MAX};
use lowkey_core::{
    AcquireWith, Applied, ClusterId, Command, GrantRef, LeaseId, LockName, OwnerId, Refusal, Reply,
    RequestId, State, Token, Ttl,
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
    let release = Command::Release {
        lock: LockName::parse("17").unwrap(),
        grant: GrantRef::Lease(LeaseId(1)),
        token: None,
        request: request("release"),
    };
    assert_eq!(fed.apply(&release).reply, Ok(Reply::Released));
    assert!(fed.apply(&acquire("one-more", with, "one-more")).reply.is_ok());
    assert!(fed.apply(&acquire("two-more", with, "two-more")).reply.is_err());

    let revoke =
        Command::RevokeLease { lease: LeaseId(1), owner: owner("alice"), request: request("revoke") };
    assert_eq!(fed.apply(&revoke).reply, Ok(Reply::LeaseRevoked { released: 10_000 }));
    assert_eq!(fed.0.lock_count(), 1);
}

#[test]
fn the_last_hundred_thousand_requests_that_made_or_ended_leases_are_remembered() {
    assert_eq!(LEASE_REQUESTS_KEPT, 100_000);
    let mut fed = Fed::new();
    let first = create_lease("alice", "first");
    let second = acquire("a", AcquireWith::NewLease(ttl()), "second");
    let third = Command::RevokeLease { lease: LeaseId(1), owner: owner("alice"), request: request("third") };
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
