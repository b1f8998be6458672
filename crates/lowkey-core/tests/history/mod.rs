//! Random histories: logs in which few names, owners, leases and request ids meet one another often.
//!
//! A [`Step`] is random and speaks relatively ("the lease that holds it", "the command five steps
//! ago"); [`log_of`] makes the entries of a log of it.

use lowkey_core::{
    AcquireWith, Applied, ClusterId, Command, Event, GrantRef, LeaseId, LockName, NodeIdentity, NodeInfo,
    NodeName, OwnerId, RequestId, Requester, State, Token, Ttl,
};
use proptest::prelude::{Just, Strategy, any};
use proptest::{collection, option, prop_oneof};

/// One entry of a log. No command: one of Raft's own.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Entry {
    pub(crate) revision: u64,
    pub(crate) term: u64,
    pub(crate) command: Option<Command>,
}

impl Entry {
    pub(crate) fn apply(&self, state: &mut State) -> Option<Applied> {
        match &self.command {
            Some(command) => Some(state.apply(self.revision, self.term, command)),
            None => {
                state.advance(self.revision);
                None
            }
        }
    }
}

pub(crate) fn new_state() -> State {
    State::new(ClusterId([7; 16]))
}

#[derive(Clone, Debug)]
pub(crate) struct Step {
    action: Action,
    new_term: bool,
    skipped_revisions: u64,
}

#[derive(Clone, Debug)]
enum Action {
    Nothing,
    CreateLease { owner: u8, ttl: i64, request: u8 },
    Revoke { lease: u64, owner: Who, request: u8 },
    Acquire { lock: u8, owner: Who, lease: u64, since: u64, request: u8 },
    AcquireNew { lock: u8, owner: u8, ttl: i64, since: u64, request: u8 },
    AskAgain { held: u8, since: u64, request: u8 },
    Release { lock: Which, grant: Meant, token: Option<Named>, request: u8 },
    Expire { leases: Vec<u64>, term_off: i8 },
    AddMember { name: u8, identity: u8, host: u8 },
    Repeat { back: usize, since: u64 },
}

/// An owner: that of the lease in question, or any.
#[derive(Clone, Copy, Debug)]
enum Who {
    Right,
    Any(u8),
}

/// A part of the present grant: as it is, or any other.
#[derive(Clone, Copy, Debug)]
enum Named {
    Right,
    Any(u8),
}

/// A lock: one of those that are held, or any.
#[derive(Clone, Copy, Debug)]
enum Which {
    Held(u8),
    Any(u8),
}

/// How a release says which grant it means.
#[derive(Clone, Copy, Debug)]
enum Meant {
    Lease(Named),
    RequestOnLease(Asked, Named),
    RequestOfOwner(Asked, Who),
}

/// The request of an acquire: the one that the present grant answered first, the latest of the holder,
/// or any.
#[derive(Clone, Copy, Debug)]
enum Asked {
    First,
    Latest,
    Any(u8),
}

fn who() -> impl Strategy<Value = Who> {
    prop_oneof![4 => Just(Who::Right), 1 => (0..2u8).prop_map(Who::Any)]
}

fn named() -> impl Strategy<Value = Named> {
    prop_oneof![3 => Just(Named::Right), 1 => (0..6u8).prop_map(Named::Any)]
}

fn which() -> impl Strategy<Value = Which> {
    prop_oneof![3 => (0..4u8).prop_map(Which::Held), 1 => (0..4u8).prop_map(Which::Any)]
}

fn asked() -> impl Strategy<Value = Asked> {
    prop_oneof![2 => Just(Asked::First), 3 => Just(Asked::Latest), 1 => (0..8u8).prop_map(Asked::Any)]
}

fn meant() -> impl Strategy<Value = Meant> {
    prop_oneof![
        named().prop_map(Meant::Lease),
        (asked(), named()).prop_map(|(acquire, lease)| Meant::RequestOnLease(acquire, lease)),
        (asked(), who()).prop_map(|(acquire, owner)| Meant::RequestOfOwner(acquire, owner)),
    ]
}

fn ttl() -> impl Strategy<Value = i64> {
    prop_oneof![Just(1), Just(10), Just(600)]
}

fn action() -> impl Strategy<Value = Action> {
    let (lock, lease, request, since) = (0..4u8, 0..5u64, 0..8u8, 0..3u64);
    prop_oneof![
        1 => Just(Action::Nothing),
        3 => (0..2u8, ttl(), request.clone())
            .prop_map(|(owner, ttl, request)| Action::CreateLease { owner, ttl, request }),
        1 => (lease.clone(), who(), request.clone())
            .prop_map(|(lease, owner, request)| Action::Revoke { lease, owner, request }),
        8 => (lock.clone(), who(), lease.clone(), since.clone(), request.clone()).prop_map(
            |(lock, owner, lease, since, request)| Action::Acquire { lock, owner, lease, since, request }
        ),
        2 => (lock.clone(), 0..2u8, ttl(), since.clone(), request.clone()).prop_map(
            |(lock, owner, ttl, since, request)| Action::AcquireNew { lock, owner, ttl, since, request }
        ),
        2 => (lock, since.clone(), request.clone())
            .prop_map(|(held, since, request)| Action::AskAgain { held, since, request }),
        8 => (which(), meant(), option::of(named()), request)
            .prop_map(|(lock, grant, token, request)| Action::Release { lock, grant, token, request }),
        1 => (collection::vec(lease, 0..4), prop_oneof![2 => Just(0), 1 => -1..=1i8])
            .prop_map(|(leases, term_off)| Action::Expire { leases, term_off }),
        1 => (0..3u8, 0..3u8, 0..2u8)
            .prop_map(|(name, identity, host)| Action::AddMember { name, identity, host }),
        6 => (0..12usize, since).prop_map(|(back, since)| Action::Repeat { back, since }),
    ]
}

pub(crate) fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = (action(), any::<u8>(), 0..2u64).prop_map(|(action, new_term, skipped_revisions)| Step {
        action,
        new_term: new_term < 16,
        skipped_revisions,
    });
    collection::vec(step, 1..60)
}

/// The log that the steps stand for.
pub(crate) fn log_of(steps: &[Step]) -> Vec<Entry> {
    let mut log: Vec<Entry> = Vec::new();
    let mut state = new_state();
    let (mut revision, mut term, mut last_lease) = (0, 1, 0);
    for step in steps {
        term += u64::from(step.new_term);
        revision += 1 + step.skipped_revisions;
        let entry = Entry { revision, term, command: command(&step.action, &state, term, last_lease, &log) };
        let applied = entry.apply(&mut state);
        for event in applied.iter().flat_map(|applied| &applied.events) {
            if let Event::LeaseCreated { lease, .. } = event {
                last_lease = lease.0;
            }
        }
        log.push(entry);
    }
    log
}

fn command(action: &Action, state: &State, term: u64, last_lease: u64, log: &[Entry]) -> Option<Command> {
    // 0 is the lease that comes next: it does not exist yet.
    let lease_back = |back: u64| LeaseId((last_lease + 1).saturating_sub(back).max(1));
    let owner_of = |who: Who, lease: LeaseId| match (who, state.lease(lease)) {
        (Who::Right, Some(lease)) => lease.owner.clone(),
        (Who::Right, None) => owner(0),
        (Who::Any(number), _) => owner(number),
    };
    let held = |number: u8| state.locks().nth(usize::from(number) % state.lock_count().max(1));
    Some(match action {
        Action::Nothing => return None,
        Action::CreateLease { owner: number, ttl, request: id } => {
            Command::CreateLease { owner: owner(*number), ttl: seconds(*ttl), request: request(*id) }
        }
        Action::Revoke { lease, owner, request: id } => {
            let lease = lease_back(*lease);
            Command::RevokeLease { lease, owner: owner_of(*owner, lease), request: request(*id) }
        }
        Action::Acquire { lock, owner, lease, since, request: id } => {
            let lease = lease_back(*lease);
            Command::Acquire {
                lock: lock_name(*lock),
                owner: owner_of(*owner, lease),
                with: AcquireWith::Lease(lease),
                since_unix_ms: *since,
                request: request(*id),
            }
        }
        Action::AskAgain { held: number, since, request: id } => {
            let (lock, grant) = held(*number)?;
            Command::Acquire {
                lock: lock.clone(),
                owner: owner_of(Who::Right, grant.lease),
                with: AcquireWith::Lease(grant.lease),
                since_unix_ms: *since,
                request: request(*id),
            }
        }
        Action::AcquireNew { lock, owner: number, ttl, since, request: id } => Command::Acquire {
            lock: lock_name(*lock),
            owner: owner(*number),
            with: AcquireWith::NewLease(seconds(*ttl)),
            since_unix_ms: *since,
            request: request(*id),
        },
        Action::Release { lock, grant: meant, token, request: id } => {
            let lock = match *lock {
                Which::Held(number) => held(number).map_or(lock_name(number), |(lock, _)| lock.clone()),
                Which::Any(number) => lock_name(number),
            };
            let grant = state.locks().find(|(name, _)| **name == lock).map(|(_, grant)| grant);
            let lease = |named: Named| match (named, grant) {
                (Named::Right, Some(grant)) => grant.lease,
                (Named::Right, None) => lease_back(1),
                (Named::Any(back), _) => lease_back(u64::from(back)),
            };
            let acquire = |asked: Asked| match (asked, grant) {
                (Asked::First, Some(grant)) => grant.request.clone(),
                (Asked::First | Asked::Latest, None) => request(0),
                (Asked::Latest, Some(grant)) => {
                    latest_acquire(&lock, grant.lease, log).unwrap_or(grant.request.clone())
                }
                (Asked::Any(number), _) => request(number),
            };
            let token = token.map(|named| match (named, grant) {
                (Named::Right, Some(grant)) => grant.token,
                (Named::Right, None) => Token(1),
                (Named::Any(back), _) => {
                    Token((state.last_token().0 + 1).saturating_sub(u64::from(back)).max(1))
                }
            });
            let grant = match *meant {
                Meant::Lease(named) => GrantRef::Lease(lease(named)),
                Meant::RequestOnLease(asked, named) => {
                    GrantRef::Request(acquire(asked), Requester::Lease(lease(named)))
                }
                Meant::RequestOfOwner(asked, who) => {
                    let owner = owner_of(who, lease(Named::Right));
                    GrantRef::Request(acquire(asked), Requester::Owner(owner))
                }
            };
            Command::Release { lock, grant, token, request: request(*id) }
        }
        Action::Expire { leases, term_off } => Command::Expire {
            leases: leases.iter().map(|back| lease_back(*back)).collect(),
            decided_term: term.saturating_add_signed(i64::from(*term_off)),
        },
        Action::AddMember { name, identity, host } => Command::AddMember {
            node: NodeInfo {
                name: NodeName::parse(&format!("n{name}")).expect("a node name"),
                identity: NodeIdentity([*identity; 16]),
                raft_address: format!("host{host}:7000"),
                grpc_address: format!("host{host}:9000"),
                http_address: format!("host{host}:8080"),
                command_version: 1,
            },
        },
        Action::Repeat { back, since } => {
            let mut again = log.iter().rev().nth(*back)?.command.clone()?;
            if let Command::Acquire { since_unix_ms, .. } = &mut again {
                *since_unix_ms = *since;
            }
            again
        }
    })
}

/// The request of the last acquire in the log by which this lease asked for this lock, whatever came of it.
fn latest_acquire(wanted: &LockName, by: LeaseId, log: &[Entry]) -> Option<RequestId> {
    log.iter().rev().find_map(|entry| match &entry.command {
        Some(Command::Acquire { lock, with: AcquireWith::Lease(lease), request, .. })
            if lock == wanted && *lease == by =>
        {
            Some(request.clone())
        }
        _ => None,
    })
}

fn owner(number: u8) -> OwnerId {
    OwnerId::parse(&format!("owner{number}")).expect("an owner id")
}

fn lock_name(number: u8) -> LockName {
    LockName::parse(&format!("lock{number}")).expect("a lock name")
}

fn request(number: u8) -> RequestId {
    RequestId::parse(&format!("r{number}")).expect("a request id")
}

fn seconds(ttl: i64) -> Ttl {
    Ttl::parse(ttl).expect("a ttl")
}
