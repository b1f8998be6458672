//! What commands do, once they have passed the check.

use super::check::Released;
use super::waiting::Freed;
use super::{Lease, State, Wait};
use crate::claim::Claim;
use crate::command::{
    AcquireWith, Cause, Change, ChangeKind, Command, EndedGrant, Event, GrantRef, HoldRef, InTheWay,
    NodeInfo, Reply, Requester, Silence, WaitEnd,
};
use crate::holders::Grant;
use crate::mutants;
use crate::name::{LeaseId, LockName, MaxHold, MemberId, OwnerId, RequestId, Ticket, Token, Ttl, Value};
use crate::recent::Remembered;

/// What a grant has of its request, beside the claim.
pub(super) struct Shown {
    pub(super) value: Value,
    pub(super) since_unix_ms: u64,
    /// 0 if it is not known.
    pub(super) asked_unix_ms: u64,
    pub(super) max_hold: Option<MaxHold>,
}

impl State {
    /// Carries out what passed the check and is not a repetition.
    pub(super) fn carry_out(&mut self, term: u64, command: &Command, events: &mut Vec<Event>) -> Reply {
        match command {
            Command::CreateLease { owner, ttl, request } => {
                let lease = self.create_lease(owner, *ttl);
                events.push(Event::LeaseStarted { lease, ttl: *ttl });
                let reply = Reply::LeaseCreated { lease, ttl: *ttl };
                self.remember_lease_request(owner, request, command.fingerprint(), &reply);
                reply
            }
            Command::RevokeLease { lease, owner, since_unix_ms, request, .. } => {
                let mut freed = Freed::default();
                let released = self.end_lease(*lease, Cause::Revoked, &mut freed, events);
                self.hand_over(freed, *since_unix_ms, events);
                let reply = Reply::LeaseRevoked { released };
                self.remember_lease_request(owner, request, command.fingerprint(), &reply);
                reply
            }
            Command::Acquire { .. } => self.acquire(command, events),
            Command::Release { lock, grant, token, since_unix_ms, request, .. } => {
                self.release(lock, grant, *token, *since_unix_ms, (request, command.fingerprint()), events)
            }
            Command::SetValue { lock, lease, value, request, .. } => {
                self.set_value(lock, *lease, value, events);
                let reply = Reply::ValueSet { revision: self.revision };
                self.remember(*lease, request, command.fingerprint(), &reply);
                reply
            }
            Command::CancelWait { tickets, since_unix_ms } => {
                self.cancel_waits(tickets, *since_unix_ms, events)
            }
            Command::Expire { leases, decided_term, since_unix_ms, silences } => {
                // R4: a decision counts only in the term in which it was made. A later leader may
                // have re-armed the lease (R3) and acknowledged renewals since.
                if *decided_term != term && !mutants::EXPIRY_WITHOUT_THE_TERM_CHECK.is_active() {
                    return Reply::Expired { count: 0 };
                }
                self.expire(leases, silences, *since_unix_ms, events)
            }
            Command::EndHolds { holds, decided_term, since_unix_ms } => {
                // R4, as above: a later leader gave each of them its whole time anew (R3).
                if *decided_term != term && !mutants::A_HOLD_IS_ENDED_BY_AN_OLD_TERM.is_active() {
                    return Reply::HoldsEnded { count: 0 };
                }
                self.end_holds(holds, *since_unix_ms, events)
            }
            Command::AddMember { node, invitation } => {
                if let Some(invitation) = invitation.filter(|_| !self.is_registered(node)) {
                    self.use_invitation(invitation, node);
                }
                Reply::MemberAdded { member: self.add_member(node) }
            }
            Command::UpdateMember { member, node } => {
                self.put_member(*member, NodeInfo::clone(node));
                Reply::MemberAdded { member: *member }
            }
            Command::RemoveMember { name, .. } => {
                let member = self.member_named(name).expect("a node that is removed is registered");
                self.take_member(member);
                Reply::MemberRemoved { member }
            }
            Command::EndQuarantine => {
                self.quarantine = false;
                Reply::QuarantineEnded
            }
            Command::Access(change) => {
                self.change_access(change);
                Reply::AccessChanged
            }
            Command::Groups(_) => unreachable!("a change of groups is carried out where its outcome is told"),
            Command::SetBackupSchedule(schedule) => {
                self.set_backup_schedule(schedule.clone());
                Reply::BackupScheduleSet
            }
            Command::Invite { invitation, lifetime_seconds, since_unix_ms } => {
                let expires_unix_ms = since_unix_ms.saturating_add(lifetime_seconds.saturating_mul(1000));
                self.invite(*invitation, expires_unix_ms, *since_unix_ms);
                Reply::Invited { expires_unix_ms }
            }
        }
    }

    fn acquire(&mut self, command: &Command, events: &mut Vec<Event>) -> Reply {
        let Command::Acquire {
            lock,
            owner,
            with,
            mode,
            scope,
            value,
            wait: _,
            max_hold,
            since_unix_ms,
            keeps_asked,
            request,
        } = command
        else {
            unreachable!("only an acquire is carried out as one")
        };
        let asked_unix_ms = if *keeps_asked { *since_unix_ms } else { 0 };
        let max_hold = *max_hold;
        let fingerprint = command.fingerprint();
        let known_lease = with.lease();
        let claim = Claim { lock: lock.clone(), lease: known_lease, mode: *mode, scope: *scope };
        if let Some(lease) = known_lease
            && let Some(reply) = self.ask_again(lock, lease, value, events)
        {
            self.remember(lease, request, fingerprint, &reply);
            return reply;
        }
        let must_wait = self.is_blocked(&claim);
        let makes_lease = known_lease.is_none();
        let lease = match *with {
            AcquireWith::Lease(lease) => lease,
            AcquireWith::NewLease(ttl) => {
                let lease = self.create_lease(owner, ttl);
                match must_wait && !mutants::THE_TIME_OF_A_WAITING_LEASE_RUNS.is_active() {
                    // R7: its time begins when it is granted.
                    true => self.change_lease(lease, |lease| lease.is_waiting = true),
                    false => events.push(Event::LeaseStarted { lease, ttl }),
                }
                lease
            }
        };
        if must_wait {
            let ticket = Ticket(self.revision);
            let wait = Wait {
                lock: lock.clone(),
                lease,
                mode: *mode,
                scope: *scope,
                value: value.clone(),
                request: request.clone(),
                asked_unix_ms,
                fingerprint,
                makes_lease,
                max_hold,
            };
            self.enqueue(ticket, wait, events);
            return Reply::Waiting { ticket };
        }
        let claim = Claim { lease: Some(lease), ..claim };
        let shown = Shown { value: value.clone(), since_unix_ms: *since_unix_ms, asked_unix_ms, max_hold };
        let reply = self.grant(&claim, shown, request, events);
        match makes_lease {
            false => self.remember(lease, request, fingerprint, &reply),
            true => self.remember_lease_request(owner, request, fingerprint, &reply),
        }
        reply
    }

    /// What a lease is answered that asks for what it holds: the same grant. Only a value, if there is
    /// one, is new.
    pub(super) fn ask_again(
        &mut self,
        lock: &LockName,
        lease: LeaseId,
        value: &Value,
        events: &mut Vec<Event>,
    ) -> Option<Reply> {
        // A lease has few locks, and there are many: its own are looked through first.
        if !self.leases.get(&lease)?.held.contains(lock) {
            return None;
        }
        if !value.is_empty() {
            self.set_value(lock, lease, value, events);
        }
        self.locks[lock].holders.get(lease).map(|grant| self.granted(grant))
    }

    pub(super) fn grant(
        &mut self,
        claim: &Claim,
        Shown { value, since_unix_ms, asked_unix_ms, max_hold }: Shown,
        request: &RequestId,
        events: &mut Vec<Event>,
    ) -> Reply {
        let token = self.next_token();
        let lease_id = claim.lease.expect("a grant hangs on a lease");
        let lease = self.leases.get_mut(&lease_id).expect("a grant hangs on a lease that exists");
        lease.held.insert(claim.lock.clone(), token);
        let owner = lease.owner.clone();
        let grant = Grant {
            lease: lease_id,
            token,
            mode: claim.mode,
            scope: claim.scope,
            value,
            revision: self.revision,
            since_unix_ms,
            asked_unix_ms,
            request: request.clone(),
            max_hold,
        };
        let reply = self.granted(&grant);
        events.push(Event::Changed(change_of_grant(ChangeKind::Acquired, &claim.lock, owner, &grant)));
        if let Some(max_hold) = max_hold {
            let hold = HoldRef { lock: claim.lock.clone(), lease: lease_id, token };
            events.push(Event::HoldStarted { hold, max_hold });
        }
        self.paths.hold(&claim.lock, lease_id, claim.mode, claim.scope);
        self.put_grant(&claim.lock, grant);
        reply
    }

    fn set_value(&mut self, lock: &LockName, lease: LeaseId, value: &Value, events: &mut Vec<Event>) {
        let grant = self.locks[lock].holders.get(lease).expect("whoever sets a value holds the lock");
        if grant.value != *value {
            let owner = self.leases[&lease].owner.clone();
            let changed = self.change_grant(lock, lease, |grant| grant.value = value.clone());
            let grant = changed.expect("it was there just now");
            events.push(Event::Changed(change_of_grant(ChangeKind::ValueSet, lock, owner, grant)));
        }
    }

    fn release(
        &mut self,
        lock: &LockName,
        grant: &GrantRef,
        token: Option<Token>,
        since_unix_ms: u64,
        (request, fingerprint): (&RequestId, u64),
        events: &mut Vec<Event>,
    ) -> Reply {
        let mut freed = Freed::default();
        match self.released(lock, grant, token) {
            Ok(Released::Grant(lease_id)) => {
                let token = self.free(lock, lease_id, Cause::Released, &mut freed, events);
                self.leases.get_mut(&lease_id).expect("a holder's lease exists").held.remove(lock, token);
            }
            Ok(Released::Wait(ticket)) => {
                self.end_wait(ticket, WaitEnd::GivenUp { lock: lock.clone() }, &mut freed, events);
            }
            // R10: an acquire that may still come; below it is remembered that it was given up.
            Err(_) => assert!(matches!(grant, GrantRef::GivenUp(..)), "a release passed the check"),
        }
        match grant {
            // The acquire's id alone: to ask again finds it. A key for each would fill the window of a lease that
            // gives up many at once.
            GrantRef::GivenUp(acquire, requester) if token.is_none() => self.give_up(acquire, requester),
            GrantRef::Request(_, Requester::Owner(owner)) | GrantRef::GivenUp(_, Requester::Owner(owner)) => {
                self.remember_lease_request(owner, request, fingerprint, &Reply::Released);
            }
            // A lease that ended with its wait remembers nothing.
            GrantRef::Lease(lease)
            | GrantRef::Request(_, Requester::Lease(lease))
            | GrantRef::GivenUp(_, Requester::Lease(lease)) => {
                if self.leases.contains_key(lease) {
                    self.remember(*lease, request, fingerprint, &Reply::Released);
                }
            }
        }
        self.hand_over(freed, since_unix_ms, events);
        Reply::Released
    }

    /// R10: an acquire that had no effect yet has none any more. What was granted and is over stays as it is.
    fn give_up(&mut self, acquire: &RequestId, requester: &Requester) {
        if !self.can_give_up(acquire, requester) || mutants::A_GIVEN_UP_ACQUIRE_IS_GRANTED_LATER.is_active() {
            return;
        }
        // No fingerprint: it is refused for any lock.
        match requester {
            Requester::Lease(lease) => self.remember(*lease, acquire, 0, &Reply::GivenUp),
            Requester::Owner(owner) => self.remember_lease_request(owner, acquire, 0, &Reply::GivenUp),
        }
    }

    /// R10: ends what still waits of these.
    fn cancel_waits(&mut self, tickets: &[Ticket], since_unix_ms: u64, events: &mut Vec<Event>) -> Reply {
        let mut freed = Freed::default();
        let mut count = 0;
        for ticket in tickets {
            // It may have been granted or given up between decision and entry.
            let Some(wait) = self.waits.get(ticket) else {
                if mutants::A_CANCELLATION_ENDS_A_GRANT.is_active() {
                    self.free_since(*ticket, &mut freed, events);
                }
                continue;
            };
            let (lock, claim) = (wait.lock.clone(), wait.claim());
            // Of those who wait, it is one itself.
            let in_the_way = self.in_the_way(&claim, *ticket);
            let in_the_way = in_the_way.map(|it| InTheWay { waiters: it.waiters - 1, ..it });
            self.end_wait(*ticket, WaitEnd::Cancelled { lock, in_the_way }, &mut freed, events);
            count += 1;
        }
        self.hand_over(freed, since_unix_ms, events);
        Reply::WaitsCancelled { count }
    }

    fn expire(
        &mut self,
        leases: &[LeaseId],
        silences: &[Silence],
        since_unix_ms: u64,
        events: &mut Vec<Event>,
    ) -> Reply {
        let mut freed = Freed::default();
        let mut count = 0;
        for (place, lease) in leases.iter().enumerate() {
            // It may have been revoked between decision and entry.
            if self.leases.contains_key(lease) {
                let before = events.len();
                self.end_lease(*lease, Cause::Expired, &mut freed, events);
                for event in &mut events[before..] {
                    if let Event::GrantEnded(ended) = event {
                        ended.silence = silences.get(place).copied();
                    }
                }
                count += 1;
                if mutants::A_LOCK_IS_HANDED_TO_WHO_ENDS_IN_THE_SAME_ENTRY.is_active() {
                    self.hand_over(std::mem::take(&mut freed), since_unix_ms, events);
                }
            }
        }
        // Only now: a waiter whose lease ends in the same entry gets nothing.
        self.hand_over(freed, since_unix_ms, events);
        Reply::Expired { count }
    }

    /// Ends these grants, and nothing else: their leases live on.
    fn end_holds(&mut self, holds: &[HoldRef], since_unix_ms: u64, events: &mut Vec<Event>) -> Reply {
        let mut freed = Freed::default();
        let mut count = 0;
        for HoldRef { lock, lease, token } in holds {
            // It may have been given back between decision and entry, and the lock be granted anew.
            let held = self.locks.get(lock).and_then(|held| held.holders.get(*lease));
            let is_meant = |grant: &&Grant| {
                grant.token == *token || mutants::THE_END_OF_A_HOLD_TAKES_A_LATER_GRANT.is_active()
            };
            let Some(token) = held.filter(is_meant).map(|grant| grant.token) else { continue };
            self.free(lock, *lease, Cause::HeldTooLong, &mut freed, events);
            self.leases.get_mut(lease).expect("a holder's lease exists").held.remove(lock, token);
            count += 1;
        }
        self.hand_over(freed, since_unix_ms, events);
        Reply::HoldsEnded { count }
    }

    fn create_lease(&mut self, owner: &OwnerId, ttl: Ttl) -> LeaseId {
        self.last_lease = match &self.place {
            None => LeaseId(self.last_lease.0 + 1),
            Some(place) => place.next_lease(self.last_lease),
        };
        self.put_lease(self.last_lease, Lease::new(owner.clone(), ttl));
        self.last_lease
    }

    /// Ends a lease with all that hangs on it, and says how many locks it held.
    fn end_lease(
        &mut self,
        lease_id: LeaseId,
        cause: Cause,
        freed: &mut Freed,
        events: &mut Vec<Event>,
    ) -> u64 {
        let gone = WaitEnd::LeaseGone { lease: lease_id };
        let lease = &self.leases[&lease_id];
        let held: Vec<LockName> = lease.held.iter().cloned().collect();
        let waits: Vec<Ticket> =
            lease.waits.iter().flat_map(|waits| &waits.by_lock).map(|(_, ticket)| *ticket).collect();
        let was_waiting = lease.is_waiting;
        for lock in &held {
            self.free(lock, lease_id, cause, freed, events);
        }
        for ticket in waits.into_iter().filter(|_| !mutants::WAITERS_OUTLIVE_THEIR_LEASE.is_active()) {
            self.end_wait(ticket, gone.clone(), freed, events);
        }
        // A lease that its wait had made has ended with it.
        if !was_waiting {
            self.take_lease(lease_id).expect("a lease that ends exists");
            events.push(Event::LeaseEnded { lease: lease_id });
        }
        held.len() as u64
    }

    /// Takes a lock from a holder, and says with which token it was held.
    pub(super) fn free(
        &mut self,
        name: &LockName,
        lease: LeaseId,
        cause: Cause,
        freed: &mut Freed,
        events: &mut Vec<Event>,
    ) -> Token {
        let grant = self.take_grant(name, lease).expect("a lock that is freed was held by that lease");
        self.paths.free(name, lease, grant.mode, grant.scope);
        self.forget_if_unused(name);
        self.note_freed(freed, name, grant.scope);
        let Lease { owner, ttl, .. } = self.leases[&lease].as_ref();
        let change = change_of_grant(ChangeKind::Freed(cause), name, owner.clone(), &grant);
        events.push(Event::Changed(Change { value: Value::default(), ..change }));
        if grant.max_hold.is_some() {
            events.push(Event::HoldEnded { token: grant.token });
        }
        events.push(Event::GrantEnded(Box::new(EndedGrant {
            lock: name.clone(),
            token: grant.token,
            owner: owner.clone(),
            lease,
            mode: grant.mode,
            scope: grant.scope,
            ttl: *ttl,
            asked_unix_ms: grant.asked_unix_ms,
            granted_unix_ms: grant.since_unix_ms,
            granted_revision: grant.revision,
            ended_unix_ms: 0,
            cause,
            actor: None,
            silence: None,
        })));
        grant.token
    }

    fn add_member(&mut self, node: &NodeInfo) -> MemberId {
        let member = self.place_of(node).unwrap_or_else(|| {
            self.last_member = MemberId(self.last_member.0 + 1);
            self.last_member
        });
        self.put_member(member, node.clone());
        member
    }

    pub(super) fn remember(&mut self, lease: LeaseId, request: &RequestId, fingerprint: u64, reply: &Reply) {
        let remembered = Remembered { fingerprint, reply: reply.clone() };
        if !mutants::REQUESTS_OF_A_LEASE_ARE_NOT_REMEMBERED.is_active() {
            self.change_lease(lease, |lease| lease.requests.insert(request.clone(), remembered));
        }
    }

    pub(super) fn remember_lease_request(
        &mut self,
        owner: &OwnerId,
        request: &RequestId,
        fingerprint: u64,
        reply: &Reply,
    ) {
        let remembered = Remembered { fingerprint, reply: reply.clone() };
        if !mutants::REQUESTS_THAT_MAKE_LEASES_ARE_NOT_REMEMBERED.is_active() {
            self.lease_requests.insert((owner.clone(), request.clone()), remembered);
        }
    }
}

fn change_of_grant(kind: ChangeKind, lock: &LockName, owner: OwnerId, grant: &Grant) -> Change {
    Change {
        kind,
        lock: lock.clone(),
        owner,
        lease: grant.lease,
        token: Some(grant.token),
        mode: grant.mode,
        scope: grant.scope,
        value: grant.value.clone(),
        since_unix_ms: grant.since_unix_ms,
        at_unix_ms: 0,
        actor: None,
    }
}
