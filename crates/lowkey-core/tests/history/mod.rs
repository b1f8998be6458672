//! Random histories: logs in which few names, owners, leases and request ids meet one another often.
//!
//! A [`Step`] is random and speaks relatively ("the lease that holds it", "the command five steps
//! ago"); [`log_of`] makes the entries of a log of it.

use std::sync::Arc;

use lowkey_core::{
    AcquireWith, Applied, BackupRule, BackupSchedule, ClusterId, Command, Grant, GrantRef, HoldRef,
    InvitationHash, KeyHash, LeaseId, LockName, MaxHold, MemberId, Mode, NodeIdentity, NodeInfo, NodeName,
    OwnerId, RequestId, Requester, Scope, Silence, State, Ticket, Token, Ttl, Value,
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
    CreateLease {
        owner: u8,
        ttl: i64,
        request: Id,
    },
    Revoke {
        lease: Of,
        owner: Who,
        since: u64,
        request: Id,
    },
    Acquire {
        lock: u8,
        owner: Who,
        lease: Of,
        how: How,
        since: u64,
        request: Id,
    },
    AcquireNew {
        lock: u8,
        owner: u8,
        ttl: i64,
        how: How,
        since: u64,
        request: Id,
    },
    /// A holder asks for what it holds, perhaps in another mode or scope.
    AskAgain {
        held: u8,
        otherwise: Option<How>,
        value: u8,
        since: u64,
        request: Id,
    },
    Release {
        lock: Which,
        grant: Meant,
        token: Option<Named>,
        since: u64,
        request: Id,
    },
    /// A release by the request of one that waits.
    GiveUp {
        wait: u8,
        by_owner: bool,
        since: u64,
        request: Id,
    },
    SetValue {
        lock: Which,
        lease: Named,
        owner: Who,
        token: Option<Named>,
        value: u8,
        request: Id,
    },
    Cancel {
        waits: Vec<Named>,
        since: u64,
    },
    Expire {
        leases: Vec<Of>,
        term_off: i8,
        since: u64,
    },
    EndHolds {
        holds: Vec<(u8, Named)>,
        term_off: i8,
        since: u64,
    },
    RemoveMember {
        name: u8,
        member: Option<u64>,
    },
    UpdateMember {
        member: u64,
        name: u8,
        identity: u8,
        host: u8,
    },
    AddMember {
        name: u8,
        identity: u8,
        host: u8,
        invitation: Option<u8>,
    },
    Invite {
        invitation: u8,
        seconds: u64,
        since: u64,
    },
    /// 0: the flags decide. 1: off.
    SetBackupSchedule(u8),
    Repeat {
        back: usize,
        since: u64,
        wait: bool,
    },
    /// Of one that waits.
    RepeatWait {
        wait: u8,
        since: u64,
        still: bool,
    },
    /// An operation under the request id of one that waits.
    Reuse {
        wait: u8,
        of: Box<Action>,
    },
}

/// How a lock is to be held.
#[derive(Clone, Copy, Debug)]
struct How {
    mode: Mode,
    scope: Scope,
    value: u8,
    wait: bool,
    /// 0 for no limit.
    max_hold: u8,
}

/// A lease: one that exists, or any, counted back from the one that comes next.
#[derive(Clone, Copy, Debug)]
enum Of {
    Live(u8),
    Back(u64),
}

/// A request id: a new one, or one of a few that meet one another.
#[derive(Clone, Copy, Debug)]
enum Id {
    Fresh,
    Any(u8),
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
    prop_oneof![6 => Just(Who::Right), 1 => (0..2u8).prop_map(Who::Any)]
}

fn named() -> impl Strategy<Value = Named> {
    prop_oneof![4 => Just(Named::Right), 1 => (0..6u8).prop_map(Named::Any)]
}

fn which() -> impl Strategy<Value = Which> {
    prop_oneof![4 => (0..6u8).prop_map(Which::Held), 1 => (0..6u8).prop_map(Which::Any)]
}

fn asked() -> impl Strategy<Value = Asked> {
    prop_oneof![2 => Just(Asked::First), 3 => Just(Asked::Latest), 1 => (0..8u8).prop_map(Asked::Any)]
}

fn meant() -> impl Strategy<Value = Meant> {
    prop_oneof![
        2 => named().prop_map(Meant::Lease),
        1 => (asked(), named()).prop_map(|(acquire, lease)| Meant::RequestOnLease(acquire, lease)),
        1 => (asked(), who()).prop_map(|(acquire, owner)| Meant::RequestOfOwner(acquire, owner)),
    ]
}

fn ttl() -> impl Strategy<Value = i64> {
    prop_oneof![Just(1), Just(10), Just(600)]
}

fn of() -> impl Strategy<Value = Of> {
    prop_oneof![12 => (0..5u8).prop_map(Of::Live), 1 => (0..5u64).prop_map(Of::Back)]
}

fn id() -> impl Strategy<Value = Id> {
    prop_oneof![2 => Just(Id::Fresh), 1 => (0..8u8).prop_map(Id::Any)]
}

fn how() -> impl Strategy<Value = How> {
    let mode = prop_oneof![3 => Just(Mode::Exclusive), 2 => Just(Mode::Shared)];
    let scope = prop_oneof![2 => Just(Scope::Name), 1 => Just(Scope::Subtree)];
    let wait = prop_oneof![4 => Just(true), 1 => Just(false)];
    let max_hold = prop_oneof![7 => Just(0), 1 => 1..3u8];
    (mode, scope, 0..4u8, wait, max_hold).prop_map(|(mode, scope, value, wait, max_hold)| How {
        mode,
        scope,
        value,
        wait,
        max_hold,
    })
}

fn action() -> impl Strategy<Value = Action> {
    let reused = (0..6u8, plain_action().prop_map(Box::new));
    prop_oneof![
        24 => plain_action(),
        1 => reused.prop_map(|(wait, of)| Action::Reuse { wait, of }),
    ]
}

fn plain_action() -> impl Strategy<Value = Action> {
    let (lock, since) = (prop_oneof![1 => 0..2u8, 1 => 0..6u8], 0..3u64);
    prop_oneof![
        1 => Just(Action::Nothing),
        3 => (0..2u8, ttl(), id())
            .prop_map(|(owner, ttl, request)| Action::CreateLease { owner, ttl, request }),
        2 => (of(), who(), since.clone(), id())
            .prop_map(|(lease, owner, since, request)| Action::Revoke { lease, owner, since, request }),
        24 => (lock.clone(), who(), of(), how(), since.clone(), id()).prop_map(
            |(lock, owner, lease, how, since, request)| Action::Acquire {
                lock,
                owner,
                lease,
                how,
                since,
                request
            }
        ),
        4 => (lock.clone(), 0..2u8, ttl(), how(), since.clone(), id()).prop_map(
            |(lock, owner, ttl, how, since, request)| Action::AcquireNew {
                lock,
                owner,
                ttl,
                how,
                since,
                request
            }
        ),
        3 => (lock, option::weighted(0.2, how()), 0..4u8, since.clone(), id()).prop_map(
            |(held, otherwise, value, since, request)| Action::AskAgain {
                held,
                otherwise,
                value,
                since,
                request
            }
        ),
        8 => (which(), meant(), option::of(named()), since.clone(), id()).prop_map(
            |(lock, grant, token, since, request)| Action::Release { lock, grant, token, since, request }
        ),
        2 => (0..6u8, any::<bool>(), since.clone(), id())
            .prop_map(|(wait, by_owner, since, request)| Action::GiveUp { wait, by_owner, since, request }),
        2 => (which(), named(), who(), option::of(named()), 0..4u8, id()).prop_map(
            |(lock, lease, owner, token, value, request)| Action::SetValue {
                lock,
                lease,
                owner,
                token,
                value,
                request
            }
        ),
        4 => (collection::vec(named(), 0..3), since.clone())
            .prop_map(|(waits, since)| Action::Cancel { waits, since }),
        2 => (collection::vec(of(), 0..3), prop_oneof![2 => Just(0), 1 => -1..=1i8], since.clone())
            .prop_map(|(leases, term_off, since)| Action::Expire { leases, term_off, since }),
        3 => (
            collection::vec((0..6u8, named()), 0..3),
            prop_oneof![4 => Just(0), 1 => -1..=1i8],
            since.clone()
        )
            .prop_map(|(holds, term_off, since)| Action::EndHolds { holds, term_off, since }),
        12 => (0..3u8, 0..4u8, 0..2u8, option::weighted(0.5, 0..2u8)).prop_map(
            |(name, identity, host, invitation)| Action::AddMember { name, identity, host, invitation }
        ),
        4 => (0..2u8, 1..3u64, since.clone())
            .prop_map(|(invitation, seconds, since)| Action::Invite { invitation, seconds, since }),
        1 => (0..4u8).prop_map(Action::SetBackupSchedule),
        2 => (0..3u8, option::weighted(0.3, 1..4u64))
            .prop_map(|(name, member)| Action::RemoveMember { name, member }),
        2 => (1..4u64, 0..3u8, 0..4u8, 0..2u8).prop_map(|(member, name, identity, host)| {
            Action::UpdateMember { member, name, identity, host }
        }),
        5 => (0..12usize, since.clone(), any::<bool>())
            .prop_map(|(back, since, wait)| Action::Repeat { back, since, wait }),
        1 => (0..6u8, since, any::<bool>())
            .prop_map(|(wait, since, still)| Action::RepeatWait { wait, since, still }),
    ]
}

/// What makes queues long and frees them again, and nothing else: who waits for whom gets involved.
fn busy_action() -> impl Strategy<Value = Action> {
    let lock = prop_oneof![3 => 0..2u8, 1 => 2..6u8];
    let lease = (0..8u8).prop_map(Of::Live);
    prop_oneof![
        5 => (lock, lease, how()).prop_map(|(lock, lease, how)| Action::Acquire {
            lock,
            owner: Who::Right,
            lease,
            how: How { wait: true, ..how },
            since: 0,
            request: Id::Fresh
        }),
        3 => (0..8u8).prop_map(|held| Action::Release {
            lock: Which::Held(held),
            grant: Meant::Lease(Named::Right),
            token: None,
            since: 0,
            request: Id::Fresh
        }),
        1 => collection::vec((0..6u8).prop_map(Named::Any), 1..3)
            .prop_map(|waits| Action::Cancel { waits, since: 0 }),
    ]
}

pub(crate) fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = |action| {
        (action, any::<u8>(), 0..2u64).prop_map(|(action, new_term, skipped_revisions)| Step {
            action,
            new_term: new_term < 16,
            skipped_revisions,
        })
    };
    // Most of what is of interest needs leases.
    let create = (0..2u8, ttl(), id());
    let create = create.prop_map(|(owner, ttl, request)| Action::CreateLease { owner, ttl, request }).boxed();
    let creates = |count| collection::vec(step(create.clone()), count);
    let anything = (creates(0..5), collection::vec(step(action().boxed()), 1..80));
    let busy = (creates(4..9), collection::vec(step(busy_action().boxed()), 1..80));
    prop_oneof![2 => anything, 1 => busy].prop_map(|(creates, rest)| [creates, rest].concat())
}

fn backup_schedule(number: u8) -> Option<BackupSchedule> {
    match number {
        0 => None,
        1 => Some(BackupSchedule::Off),
        number => {
            let rule = BackupRule::parse("s3://backups/lowkey", number.into(), 48);
            Some(BackupSchedule::On(rule.expect("a rule within the limits")))
        }
    }
}

/// The log that the steps stand for.
pub(crate) fn log_of(steps: &[Step]) -> Vec<Entry> {
    let mut log: Vec<Entry> = Vec::new();
    let mut state = new_state();
    let (mut revision, mut term, mut last_lease) = (0, 1, 0);
    for step in steps {
        term += u64::from(step.new_term);
        revision += 1 + step.skipped_revisions;
        let seen = Seen { state: &state, revision, term, last_lease, log: &log };
        let entry = Entry { revision, term, command: seen.command(&step.action) };
        entry.apply(&mut state);
        last_lease = state.leases().map(|(id, _)| id.0).max().unwrap_or(0).max(last_lease);
        log.push(entry);
    }
    log
}

/// What the next step can speak of.
struct Seen<'a> {
    state: &'a State,
    revision: u64,
    term: u64,
    last_lease: u64,
    log: &'a [Entry],
}

impl Seen<'_> {
    fn command(&self, action: &Action) -> Option<Command> {
        Some(match action {
            Action::Nothing => return None,
            Action::CreateLease { owner: number, ttl, request: id } => {
                Command::CreateLease { owner: owner(*number), ttl: seconds(*ttl), request: self.request(*id) }
            }
            Action::Revoke { lease, owner, since, request: id } => {
                let lease = self.lease_of(*lease);
                let owner = self.owner_of(*owner, lease);
                Command::RevokeLease {
                    lease,
                    owner,
                    actor: actor(*since),
                    since_unix_ms: *since,
                    request: self.request(*id),
                }
            }
            Action::Acquire { lock, owner, lease, how, since, request: id } => {
                let lease = self.lease_of(*lease);
                let (owner, with) = (self.owner_of(*owner, lease), AcquireWith::Lease(lease));
                acquire(lock_name(*lock), owner, with, *how, *since, self.request(*id))
            }
            Action::AskAgain { held, otherwise, value, since, request: id } => {
                let (lock, grant) = self.held(*held)?;
                let same =
                    How { mode: grant.mode, scope: grant.scope, value: *value, wait: false, max_hold: 0 };
                let owner = self.owner_of(Who::Right, grant.lease);
                let with = AcquireWith::Lease(grant.lease);
                let how = otherwise.unwrap_or(same);
                acquire(lock.clone(), owner, with, how, *since, self.request(*id))
            }
            Action::AcquireNew { lock, owner: number, ttl, how, since, request: id } => {
                let with = AcquireWith::NewLease(seconds(*ttl));
                acquire(lock_name(*lock), owner(*number), with, *how, *since, self.request(*id))
            }
            Action::Release { lock, grant, token, since, request: id } => {
                let (lock, held) = self.lock(*lock);
                Command::Release {
                    grant: finally(*since, self.grant_ref(*grant, &lock, held)),
                    token: token.map(|named| self.token(named, held)),
                    lock,
                    actor: actor(*since),
                    since_unix_ms: *since,
                    request: self.request(*id),
                }
            }
            Action::GiveUp { wait, by_owner, since, request: id } => {
                let Some(Command::Acquire { lock, owner, with, request, .. }) = self.waiting(*wait) else {
                    return None;
                };
                let requester = match with {
                    AcquireWith::Lease(lease) if !by_owner => Requester::Lease(*lease),
                    _ => Requester::Owner(owner.clone()),
                };
                let grant = finally(*since, GrantRef::Request(request.clone(), requester));
                let (since_unix_ms, request) = (*since, self.request(*id));
                Command::Release {
                    lock: lock.clone(),
                    grant,
                    token: None,
                    actor: actor(*since),
                    since_unix_ms,
                    request,
                }
            }
            Action::SetValue { lock, lease, owner, token, value, request: id } => {
                let (lock, held) = self.lock(*lock);
                let lease = self.lease(*lease, held);
                Command::SetValue {
                    lock,
                    owner: self.owner_of(*owner, lease),
                    lease,
                    token: token.map(|named| self.token(named, held)),
                    value: self::value(*value),
                    since_unix_ms: 0,
                    request: self.request(*id),
                }
            }
            Action::Cancel { waits, since } => {
                let ticket = |(at, named): (usize, &Named)| match named {
                    Named::Right => self.ticket(at as u8).unwrap_or(Ticket(self.revision)),
                    Named::Any(back) => match self.ticket(*back) {
                        Some(ticket) if back.is_multiple_of(2) => ticket,
                        _ => Ticket(self.revision.saturating_sub(u64::from(*back))),
                    },
                };
                let tickets = waits.iter().enumerate().map(ticket).collect();
                Command::CancelWait { tickets, since_unix_ms: *since }
            }
            Action::Expire { leases, term_off, since } => Command::Expire {
                leases: leases.iter().map(|back| self.lease_of(*back)).collect(),
                decided_term: self.term.saturating_add_signed(i64::from(*term_off)),
                since_unix_ms: *since,
                silences: (1..).zip(leases).map(|(number, _)| silence(number + since)).collect(),
            },
            Action::EndHolds { holds, term_off, since } => {
                let hold = |(at, named): &(u8, Named)| {
                    let (lock, grant) = self.held(*at)?;
                    let token = self.token(*named, Some(grant));
                    Some(HoldRef { lock: lock.clone(), lease: grant.lease, token })
                };
                Command::EndHolds {
                    holds: holds.iter().filter_map(hold).collect(),
                    decided_term: self.term.saturating_add_signed(i64::from(*term_off)),
                    since_unix_ms: *since,
                }
            }
            Action::AddMember { name, identity, host, invitation } => Command::AddMember {
                node: Box::new(node(*name, *identity, *host)),
                invitation: invitation.filter(|_| *identity != 0).map(invitation_hash),
            },
            Action::Invite { invitation, seconds, since } => Command::Invite {
                invitation: invitation_hash(*invitation),
                lifetime_seconds: *seconds,
                since_unix_ms: *since,
            },
            Action::UpdateMember { member, name, identity, host } => Command::UpdateMember {
                member: MemberId(*member),
                node: Box::new(node(*name, *identity, *host)),
            },
            Action::RemoveMember { name, member } => {
                Command::RemoveMember { name: node_name(*name), member: member.map(MemberId) }
            }
            Action::SetBackupSchedule(number) => {
                Command::SetBackupSchedule(backup_schedule(*number).map(Arc::new))
            }
            Action::Repeat { back, since, wait: waits } => {
                let mut again = self.log.iter().rev().nth(*back)?.command.clone()?;
                again.stamp(*since);
                if let Command::Acquire { wait, .. } = &mut again {
                    *wait = *waits;
                }
                again
            }
            Action::RepeatWait { wait: number, since, still } => {
                let mut again = self.waiting(*number)?.clone();
                again.stamp(*since);
                if let Command::Acquire { wait, .. } = &mut again {
                    *wait = *still;
                }
                again
            }
            Action::Reuse { wait, of } => {
                let Some(Command::Acquire { request: awaited, .. }) = self.waiting(*wait) else {
                    return None;
                };
                let mut command = self.command(of)?;
                match &mut command {
                    Command::CreateLease { request, .. }
                    | Command::RevokeLease { request, .. }
                    | Command::Acquire { request, .. }
                    | Command::Release { request, .. }
                    | Command::SetValue { request, .. } => *request = awaited.clone(),
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
                    | Command::SetBackupSchedule(_) => {}
                }
                command
            }
        })
    }

    fn lease_of(&self, of: Of) -> LeaseId {
        match of {
            Of::Live(number) => {
                let number = usize::from(number) % self.state.leases().len().max(1);
                self.state.leases().nth(number).map_or(self.lease_back(1), |(id, _)| id)
            }
            Of::Back(back) => self.lease_back(back),
        }
    }

    /// 0 is the lease that comes next: it does not exist yet.
    fn lease_back(&self, back: u64) -> LeaseId {
        LeaseId((self.last_lease + 1).saturating_sub(back).max(1))
    }

    fn owner_of(&self, who: Who, lease: LeaseId) -> OwnerId {
        match (who, self.state.lease(lease)) {
            (Who::Right, Some(lease)) => lease.owner.clone(),
            (Who::Right, None) => owner(0),
            (Who::Any(number), _) => owner(number),
        }
    }

    fn request(&self, id: Id) -> RequestId {
        match id {
            Id::Fresh => RequestId::parse(&format!("fresh{}", self.revision)).expect("a request id"),
            Id::Any(number) => request(number),
        }
    }

    fn held(&self, number: u8) -> Option<(&LockName, &Grant)> {
        self.state.grants().nth(usize::from(number) % self.state.grants().count().max(1))
    }

    fn lock(&self, which: Which) -> (LockName, Option<&Grant>) {
        match which {
            Which::Held(number) => match self.held(number) {
                Some((lock, grant)) => (lock.clone(), Some(grant)),
                None => (lock_name(number), None),
            },
            Which::Any(number) => {
                let lock = lock_name(number);
                let grant = self.state.grants().find(|(name, _)| **name == lock).map(|(_, grant)| grant);
                (lock, grant)
            }
        }
    }

    fn ticket(&self, number: u8) -> Option<Ticket> {
        self.state.waits().nth(usize::from(number) % self.state.waits().len().max(1))
    }

    /// The acquire of one that waits.
    fn waiting(&self, number: u8) -> Option<&Command> {
        let ticket = self.ticket(number)?;
        self.log.iter().find(|entry| entry.revision == ticket.0)?.command.as_ref()
    }

    fn lease(&self, named: Named, grant: Option<&Grant>) -> LeaseId {
        match (named, grant) {
            (Named::Right, Some(grant)) => grant.lease,
            (Named::Right, None) => self.lease_back(1),
            (Named::Any(back), _) => self.lease_back(u64::from(back)),
        }
    }

    fn token(&self, named: Named, grant: Option<&Grant>) -> Token {
        match (named, grant) {
            (Named::Right, Some(grant)) => grant.token,
            (Named::Right, None) => Token(1),
            (Named::Any(back), _) => {
                Token((self.state.last_token().0 + 1).saturating_sub(u64::from(back)).max(1))
            }
        }
    }

    fn grant_ref(&self, meant: Meant, lock: &LockName, grant: Option<&Grant>) -> GrantRef {
        let acquire = |asked: Asked| match (asked, grant) {
            (Asked::First, Some(grant)) => grant.request.clone(),
            (Asked::First | Asked::Latest, None) => request(0),
            (Asked::Latest, Some(grant)) => {
                self.latest_acquire(lock, grant.lease).unwrap_or(grant.request.clone())
            }
            (Asked::Any(number), _) => request(number),
        };
        match meant {
            Meant::Lease(named) => GrantRef::Lease(self.lease(named, grant)),
            Meant::RequestOnLease(asked, named) => {
                GrantRef::Request(acquire(asked), Requester::Lease(self.lease(named, grant)))
            }
            Meant::RequestOfOwner(asked, who) => {
                let owner = self.owner_of(who, self.lease(Named::Right, grant));
                GrantRef::Request(acquire(asked), Requester::Owner(owner))
            }
        }
    }

    /// The request of the last acquire in the log by which this lease asked for this lock, whatever came of
    /// it.
    fn latest_acquire(&self, wanted: &LockName, by: LeaseId) -> Option<RequestId> {
        self.log.iter().rev().find_map(|entry| match &entry.command {
            Some(Command::Acquire { lock, with: AcquireWith::Lease(lease), request, .. })
                if lock == wanted && *lease == by =>
            {
                Some(request.clone())
            }
            _ => None,
        })
    }
}

fn acquire(
    lock: LockName,
    owner: OwnerId,
    with: AcquireWith,
    how: How,
    since_unix_ms: u64,
    request: RequestId,
) -> Command {
    let How { mode, scope, value: number, wait, max_hold } = how;
    let (value, max_hold) = (value(number), MaxHold::parse(max_hold.into()).expect("a limit"));
    // Some ask through a leader of a cluster in which not all keep it.
    let keeps_asked = !since_unix_ms.is_multiple_of(3);
    Command::Acquire {
        lock,
        owner,
        with,
        mode,
        scope,
        value,
        wait,
        max_hold,
        since_unix_ms,
        keeps_asked,
        request,
    }
}

/// What a leader may have known.
fn silence(number: u64) -> Silence {
    Silence { silent_ms: number, stalled_ms: number % 2, leader_changed: number.is_multiple_of(3) }
}

fn owner(number: u8) -> OwnerId {
    OwnerId::parse(&format!("owner{number}")).expect("an owner id")
}

/// Few names, that are above and below one another, or only look so.
fn lock_name(number: u8) -> LockName {
    // Two of them part after paths that are the name of none.
    let names = ["a", "a/b", "a/b/c/d/e/f", "ab", "/a", "a/b/c/x/y"];
    LockName::parse(names[usize::from(number) % names.len()]).expect("a lock name")
}

/// Half of them are empty.
fn value(number: u8) -> Value {
    let text = if number.is_multiple_of(2) { String::new() } else { format!("v{number}") };
    Value::parse(&text).expect("a value")
}

fn request(number: u8) -> RequestId {
    RequestId::parse(&format!("r{number}")).expect("a request id")
}

fn seconds(ttl: i64) -> Ttl {
    Ttl::parse(ttl).expect("a ttl")
}

fn node_name(name: u8) -> NodeName {
    NodeName::parse(&format!("n{name}")).expect("a node name")
}

fn invitation_hash(number: u8) -> InvitationHash {
    InvitationHash([number; 32])
}

/// 0 is the identity of a node that is expected: none.
fn node(name: u8, identity: u8, host: u8) -> NodeInfo {
    NodeInfo {
        name: node_name(name),
        identity: (identity != 0).then_some(NodeIdentity([identity; 16])),
        raft_address: format!("host{host}:7000"),
        grpc_address: format!("host{host}:9000"),
        http_address: format!("host{host}:8080"),
        command_version: 1,
        // One of the two hosts was set up before nodes had keys.
        key_hash: (host == 1 && identity != 0).then_some(KeyHash([identity; 32])),
    }
}

/// Half of the releases that name an acquire are final.
fn finally(since: u64, grant: GrantRef) -> GrantRef {
    match grant {
        GrantRef::Request(acquire, requester) if since.is_multiple_of(2) => {
            GrantRef::GivenUp(acquire, requester)
        }
        other => other,
    }
}

/// Some who ask say who they are.
fn actor(since: u64) -> Option<OwnerId> {
    since.is_multiple_of(3).then(|| owner(7))
}
