//! The keeper: one task, on the client's own thread, that renews every lease of a client and updates the
//! status of each session.
//!
//! A lease is renewed when a third of its time to live has passed, many leases in one message. Only the
//! client's own clock counts (R6). Each acknowledgement is credited to the moment before its request was
//! first sent. A session whose validity has run out is lost at that moment, whether or not any server
//! answers.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures::future::BoxFuture;
use futures::stream::FuturesUnordered;
use futures::{FutureExt as _, StreamExt as _};
use lowkey_api::Reason;
use lowkey_api::v1::session_answer::Answer;
use lowkey_api::v1::session_call::Call;
use lowkey_api::v1::{GetLeaseResponse, HeartbeatResponse, Holds, LeasesRenewed, RenewLeases};
use lowkey_api::validity::valid_until;
use tokio::sync::{mpsc, watch};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::beliefs::{Beliefs, Verdict};
use crate::clock::now_nanos;
use crate::door::Doors;
use crate::error::Error;
use crate::event::{ClientEvent, Hook};
use crate::grant::{GrantBelief, GuardedGrant, release_by_token};
use crate::leases::read_lease;
use crate::link::{LeaseNotice, Link};
use crate::random;
use crate::session::{LossCause, SessionStatus};

/// The most leases that one message renews.
const LEASES_A_MESSAGE: usize = 2_500;
/// Leases that are due within this time are renewed together: many leases cost few messages.
const TOGETHER_NANOS: u64 = 50_000_000;
/// The clock is read at least this often, because it may have gone on while timers stood still.
const LOOK_INTERVAL: Duration = Duration::from_millis(200);
/// How soon a failed renewal is tried again.
const AGAIN_NANOS: u64 = 100_000_000;
/// After a new stream was opened, all leases are renewed within this time.
const NEW_STREAM: Duration = Duration::from_millis(500);
const MILLISECOND: u64 = 1_000_000;

/// What is known of one lease, shared by its session, its guards and the keeper.
pub(crate) struct Presence {
    pub(crate) lease_id: u64,
    pub(crate) ttl_seconds: i64,
    /// R6: by this client's own clock. It only ever grows.
    valid_until: AtomicU64,
    status: watch::Sender<SessionStatus>,
    lost: CancellationToken,
    hook: Hook,
    /// The grants that this client believes the lease holds.
    pub(crate) beliefs: Beliefs,
    /// Lets in one task at a time for each name, except tasks that share.
    pub(crate) doors: Doors<GuardedGrant>,
}

impl Presence {
    /// A lease that was created or granted by a request whose validity is known.
    pub(crate) fn new(lease_id: u64, ttl_seconds: i64, valid_until: u64, hook: Hook) -> Arc<Self> {
        Arc::new(Self {
            lease_id,
            ttl_seconds,
            valid_until: AtomicU64::new(valid_until),
            status: watch::Sender::new(SessionStatus::Held),
            lost: CancellationToken::new(),
            hook,
            beliefs: Beliefs::default(),
            doors: Doors::default(),
        })
    }

    fn ttl_nanos(&self) -> u64 {
        u64::try_from(self.ttl_seconds).unwrap_or_default() * 1_000_000_000
    }

    /// True if its holder may act on it now. Reads the clock, so it is right even before the keeper has
    /// noticed a loss.
    pub(crate) fn is_valid(&self) -> bool {
        !self.lost.is_cancelled() && now_nanos() < self.valid_until.load(Ordering::Acquire)
    }

    /// How long it stays valid if nothing more is heard.
    pub(crate) fn remaining(&self) -> Duration {
        if self.lost.is_cancelled() {
            return Duration::ZERO;
        }
        Duration::from_nanos(self.valid_until.load(Ordering::Acquire).saturating_sub(now_nanos()))
    }

    /// A renewal that was first sent at this time was acknowledged.
    fn renewed(&self, first_sent_nanos: u64) {
        self.valid_until.fetch_max(valid_until(first_sent_nanos, self.ttl_seconds), Ordering::AcqRel);
    }

    /// Marks the lease as lost. Only the first cause counts.
    pub(crate) fn lose(&self, cause: LossCause) {
        let is_news = self.status.send_if_modified(|status| {
            let is_news = !matches!(status, SessionStatus::Lost(_));
            if is_news {
                *status = SessionStatus::Lost(cause);
            }
            is_news
        });
        self.lost.cancel();
        if is_news && cause != LossCause::Closed {
            self.hook.tell(&ClientEvent::SessionLost { lease_id: self.lease_id, cause });
        }
    }

    fn set(&self, now: SessionStatus) {
        self.status.send_if_modified(|status| {
            let is_news = *status != now && !matches!(status, SessionStatus::Lost(_));
            if is_news {
                *status = now;
            }
            is_news
        });
    }

    /// The status. A lease whose time has run out is lost, even if nothing has noticed it before.
    pub(crate) fn status(&self) -> SessionStatus {
        if !self.is_valid() {
            self.lose(LossCause::Expired);
        }
        *self.status.borrow()
    }

    pub(crate) fn cause(&self) -> LossCause {
        match self.status() {
            SessionStatus::Lost(cause) => cause,
            SessionStatus::Held | SessionStatus::InJeopardy => LossCause::Expired,
        }
    }

    pub(crate) fn watch(&self) -> watch::Receiver<SessionStatus> {
        self.status.subscribe()
    }

    pub(crate) fn lost(&self) -> &CancellationToken {
        &self.lost
    }
}

/// Where sessions register.
#[derive(Clone)]
pub(crate) struct Keeper {
    orders: mpsc::UnboundedSender<Order>,
}

enum Order {
    Keep(Arc<Presence>),
    Forget(u64),
    Limit(u64, Weak<GrantBelief>),
}

impl Keeper {
    /// A keeper, and the task that does its work. The task ends when the keeper is gone and no lease is
    /// left.
    pub(crate) fn new(
        link: Link,
        news: mpsc::UnboundedReceiver<LeaseNotice>,
        hook: Hook,
    ) -> (Self, impl Future<Output = ()> + Send + use<>) {
        let (orders, receiver) = mpsc::unbounded_channel();
        (Self { orders }, Task::new(link, receiver, news, hook).run())
    }

    /// Keeps a lease alive until it is lost.
    pub(crate) fn keep(&self, presence: Arc<Presence>) {
        // The task lives as long as any handle that could register a lease.
        let _ = self.orders.send(Order::Keep(presence));
    }

    /// Ends belief in a grant at this time, whatever becomes of its lease.
    pub(crate) fn limit(&self, until: u64, held: &Arc<GrantBelief>) {
        let _ = self.orders.send(Order::Limit(until, Arc::downgrade(held)));
    }

    /// Stops keeping a lease.
    pub(crate) fn forget(&self, lease_id: u64) {
        let _ = self.orders.send(Order::Forget(lease_id));
    }
}

/// Invariant: `by_renewal` and `by_end` contain exactly the leases, under the times of their `Kept`.
struct Task {
    link: Link,
    orders: mpsc::UnboundedReceiver<Order>,
    /// What the link hears about leases.
    news: mpsc::UnboundedReceiver<LeaseNotice>,
    hook: Hook,
    leases: BTreeMap<u64, Kept>,
    by_renewal: BTreeSet<(u64, u64)>,
    by_end: BTreeSet<(u64, u64)>,
    /// Grants that are held for a limited time, by when that is over. Those that were released before are let go then.
    limits: BTreeMap<u64, Vec<Weak<GrantBelief>>>,
    under_way: FuturesUnordered<BoxFuture<'static, Sent>>,
    reading: FuturesUnordered<BoxFuture<'static, Read>>,
}

struct Kept {
    presence: Arc<Presence>,
    next_renewal: u64,
    end: u64,
    reading: Reading,
}

/// Whether a lease is being read, because the service holds something else than is believed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reading {
    No,
    UnderWay,
    /// A read is under way, and something has changed since it began.
    Again,
}

/// A lease that was read, because it differs from what is believed.
struct Read {
    lease_id: u64,
    /// The tokens that were believed in before the read.
    believed: Vec<u64>,
    outcome: Result<GetLeaseResponse, Error>,
}

/// A message of renewals, and its outcome.
struct Sent {
    first_sent: u64,
    lease_ids: Vec<u64>,
    outcome: Result<Answer, Error>,
}

impl Task {
    fn new(
        link: Link,
        orders: mpsc::UnboundedReceiver<Order>,
        news: mpsc::UnboundedReceiver<LeaseNotice>,
        hook: Hook,
    ) -> Self {
        Self {
            link,
            orders,
            news,
            hook,
            leases: BTreeMap::new(),
            by_renewal: BTreeSet::new(),
            by_end: BTreeSet::new(),
            limits: BTreeMap::new(),
            under_way: FuturesUnordered::new(),
            reading: FuturesUnordered::new(),
        }
    }

    async fn run(mut self) {
        let mut is_open = true;
        while is_open || !self.leases.is_empty() {
            let pause = self.pause();
            tokio::select! {
                order = self.orders.recv(), if is_open => match order {
                    Some(Order::Keep(presence)) => self.add(presence),
                    Some(Order::Forget(lease_id)) => _ = self.remove(lease_id),
                    Some(Order::Limit(until, held)) => self.limits.entry(until).or_default().push(held),
                    None => is_open = false,
                },
                Some(news) = self.news.recv() => match news {
                    LeaseNotice::Changed(lease_id) => self.changed(lease_id),
                    LeaseNotice::NewStream => self.renew_all_soon(),
                },
                Some(sent) = self.under_way.next() => self.take_in(sent),
                Some(read) = self.reading.next() => self.compare(read),
                () = sleep(pause) => {}
            }
            let now = now_nanos();
            self.end_overdue(now);
            self.renew_due(now);
        }
    }

    fn pause(&self) -> Duration {
        let Some((end, _)) = self.by_end.first() else { return Duration::from_secs(3600) };
        let renewal = self.by_renewal.first().map_or(u64::MAX, |(at, _)| *at);
        let limit = self.limits.first_key_value().map_or(u64::MAX, |(at, _)| *at);
        let next = (*end).min(renewal).min(limit);
        Duration::from_nanos(next.saturating_sub(now_nanos())).min(LOOK_INTERVAL)
    }

    fn add(&mut self, presence: Arc<Presence>) {
        let end = presence.valid_until.load(Ordering::Acquire);
        // Validity is 90 % of the time to live, which gives the time of creation. The lease is renewed a
        // third of its time to live after that.
        let made = end.saturating_sub(presence.ttl_nanos() / 10 * 9);
        let next_renewal = made + presence.ttl_nanos() / 3;
        let lease_id = presence.lease_id;
        self.by_end.insert((end, lease_id));
        self.by_renewal.insert((next_renewal, lease_id));
        self.leases.insert(lease_id, Kept { presence, next_renewal, end, reading: Reading::No });
    }

    fn remove(&mut self, lease_id: u64) -> Option<Kept> {
        let kept = self.leases.remove(&lease_id)?;
        self.by_end.remove(&(kept.end, lease_id));
        self.by_renewal.remove(&(kept.next_renewal, lease_id));
        Some(kept)
    }

    fn plan(&mut self, lease_id: u64, next_renewal: u64) {
        let Some(kept) = self.leases.get_mut(&lease_id) else { return };
        self.by_renewal.remove(&(kept.next_renewal, lease_id));
        kept.next_renewal = next_renewal;
        self.by_renewal.insert((next_renewal, lease_id));
        let end = kept.presence.valid_until.load(Ordering::Acquire);
        self.by_end.remove(&(kept.end, lease_id));
        kept.end = end;
        self.by_end.insert((end, lease_id));
    }

    /// R6: a lease that is no longer valid is lost, no matter what the servers would say. So is a grant whose own time is
    /// over.
    fn end_overdue(&mut self, now: u64) {
        while let Some(limit) = self.limits.first_entry()
            && *limit.key() <= now
        {
            limit.remove().iter().filter_map(Weak::upgrade).for_each(|held| held.outlive());
        }
        while let Some((end, lease_id)) = self.by_end.first().copied()
            && end <= now
        {
            if let Some(kept) = self.remove(lease_id) {
                kept.presence.lose(LossCause::Expired);
            }
        }
    }

    fn renew_due(&mut self, now: u64) {
        loop {
            let (mut lease_ids, mut holds) = (Vec::new(), Vec::new());
            let mut shortest_ttl = u64::MAX;
            while lease_ids.len() < LEASES_A_MESSAGE
                && let Some((at, lease_id)) = self.by_renewal.first().copied()
                && (at <= now || (!lease_ids.is_empty() && at <= now + TOGETHER_NANOS))
            {
                let presence = Arc::clone(&self.leases[&lease_id].presence);
                if presence.lost.is_cancelled() {
                    self.remove(lease_id);
                    continue;
                }
                let ttl = presence.ttl_nanos();
                // In jeopardy: by now a renewal should have been acknowledged, and a second one tried.
                if presence.remaining() < Duration::from_nanos(ttl / 10 * 4) {
                    presence.set(SessionStatus::InJeopardy);
                }
                shortest_ttl = shortest_ttl.min(ttl);
                lease_ids.push(lease_id);
                let lowkey_token::Holds { count, digest } = presence.beliefs.holds();
                holds.push(Holds { count, digest });
                // The answer changes this plan. If none comes, this is the time of the next attempt.
                self.plan(lease_id, now + ttl / 6);
            }
            if lease_ids.is_empty() {
                return;
            }
            // An answer may come while the next attempt is under way. Silence is noticed sooner.
            let patience =
                Duration::from_nanos((shortest_ttl / 6).clamp(150 * MILLISECOND, 1_000 * MILLISECOND));
            let time = Duration::from_nanos(shortest_ttl / 2);
            let renewal = RenewLeases { lease_ids, holds };
            self.under_way.push(send(self.link.clone(), renewal, now, time, patience).boxed());
        }
    }

    fn take_in(&mut self, sent: Sent) {
        let Sent { first_sent, lease_ids, outcome } = sent;
        match outcome {
            Ok(Answer::RenewLeases(LeasesRenewed { renewals })) => {
                let took = Duration::from_nanos(now_nanos().saturating_sub(first_sent));
                self.hook.tell(&ClientEvent::Renewed { leases: lease_ids.len(), took });
                for renewal in renewals {
                    self.take_in_one(first_sent, &renewal);
                }
            }
            // No node answered: try again very soon.
            _ => {
                self.hook.tell(&ClientEvent::NotRenewed { leases: lease_ids.len() });
                let again = now_nanos() + AGAIN_NANOS;
                for lease_id in lease_ids {
                    self.plan(lease_id, again);
                }
            }
        }
    }

    fn take_in_one(&mut self, first_sent: u64, renewal: &HeartbeatResponse) {
        let lease_id = renewal.lease_id;
        let Some(kept) = self.leases.get(&lease_id) else { return };
        let presence = Arc::clone(&kept.presence);
        if renewal.error_reason.is_empty() {
            presence.renewed(first_sent);
            if presence.is_valid() {
                presence.set(SessionStatus::Held);
            }
            self.plan(lease_id, first_sent + presence.ttl_nanos() / 3);
            if renewal.holds_differ {
                self.read(lease_id);
            }
        } else if renewal.error_reason == Reason::LeaseNotFound.as_str() {
            self.gone(lease_id);
        } else {
            self.plan(lease_id, now_nanos() + AGAIN_NANOS);
        }
    }

    /// Renews all leases soon after a new stream was opened. A node tells a stream what others do to the
    /// leases that were renewed on it. Many clients may come to a node at the same time, so the pause is
    /// random.
    fn renew_all_soon(&mut self) {
        let pause = random::up_to(NEW_STREAM);
        let soon = now_nanos() + u64::from(pause.subsec_nanos());
        let later: Vec<u64> =
            self.leases.iter().filter(|(_, kept)| kept.next_renewal > soon).map(|(id, _)| *id).collect();
        for lease_id in later {
            self.plan(lease_id, soon);
        }
    }

    fn gone(&mut self, lease_id: u64) {
        if let Some(kept) = self.remove(lease_id) {
            kept.presence.lose(LossCause::Gone);
        }
    }

    /// Another client has ended a grant of the lease.
    fn changed(&mut self, lease_id: u64) {
        match self.leases.get_mut(&lease_id) {
            Some(kept) if kept.reading != Reading::No => kept.reading = Reading::Again,
            _ => self.read(lease_id),
        }
    }

    /// Reads what a lease holds, one read at a time.
    fn read(&mut self, lease_id: u64) {
        let is_idle = |kept: &&mut Kept| kept.reading == Reading::No;
        let Some(kept) = self.leases.get_mut(&lease_id).filter(is_idle) else { return };
        kept.reading = Reading::UnderWay;
        let believed = kept.presence.beliefs.tokens();
        let time = Duration::from_nanos(kept.presence.ttl_nanos() / 2);
        let link = self.link.clone();
        let read = async move {
            let outcome = read_lease(&link, lease_id, time).await;
            Read { lease_id, believed, outcome }
        };
        self.reading.push(read.boxed());
    }

    /// Ends belief in grants that are gone, and releases grants that nobody wants: see `beliefs.rs`.
    fn compare(&mut self, read: Read) {
        let Read { lease_id, believed, outcome } = read;
        let Some(kept) = self.leases.get_mut(&lease_id) else { return };
        let has_changed = std::mem::replace(&mut kept.reading, Reading::No) == Reading::Again;
        let presence = Arc::clone(&kept.presence);
        let lease = match outcome {
            Ok(lease) => lease,
            Err(error) if error.reason() == Some(Reason::LeaseNotFound) => return self.gone(lease_id),
            // The lease could not be read. The next renewal reports the difference again.
            Err(_) => return,
        };
        let Verdict { lost, orphans } = presence.beliefs.judge(&believed, lease.grants);
        for (token, held) in lost {
            let cause = LossCause::ReleasedElsewhere;
            held.lose(cause);
            self.hook.tell(&ClientEvent::LockLost { lease_id, token, cause });
        }
        for (name, token) in orphans {
            // While a task asks for the name it may be given this very grant, and that answer may be under
            // way.
            if let Some(turn) = presence.doors.of(&name).try_enter() {
                tracing::debug!(name, token, "releasing what was granted to an acquire that was given up");
                self.link.tell(release_by_token(name, lease_id, token), turn);
            }
        }
        if has_changed {
            self.read(lease_id);
        }
    }
}

async fn send(link: Link, renewal: RenewLeases, first_sent: u64, time: Duration, patience: Duration) -> Sent {
    let lease_ids = renewal.lease_ids.clone();
    let outcome = link.call_patiently(Call::RenewLeases(renewal), time, patience).await;
    Sent { first_sent, lease_ids, outcome }
}

#[cfg(test)]
mod tests {
    use lowkey_api::v1::{LeaseGrant, Mode, ReleaseLockRequest, Scope};

    use super::*;
    use crate::door::Way;

    /// What the keeper of a lease that gave up acquire `gone` releases when the lease holds these.
    fn released(
        grants: &[(&str, u64, &str)],
        prepare: impl FnOnce(&Arc<Presence>),
    ) -> Option<ReleaseLockRequest> {
        let (link, mut next_call) = Link::to_nowhere();
        let (_orders, receiver) = mpsc::unbounded_channel();
        let (_news, news) = mpsc::unbounded_channel();
        let mut task = Task::new(link, receiver, news, Hook::default());
        let presence = Presence::new(1, 10, u64::MAX, Hook::default());
        presence.beliefs.give_up("gone".to_owned());
        prepare(&presence);
        task.add(Arc::clone(&presence));
        let grants = grants.iter().map(|(name, fencing_token, id)| LeaseGrant {
            lock_name: (*name).to_owned(),
            fencing_token: *fencing_token,
            acquire_request_id: (*id).to_owned(),
            ..LeaseGrant::default()
        });
        let lease = GetLeaseResponse { grants: grants.collect(), ..GetLeaseResponse::default() };
        task.compare(Read { lease_id: 1, believed: Vec::new(), outcome: Ok(lease) });
        next_call().map(|call| match call {
            Call::ReleaseLock(release) => release,
            other => panic!("{other:?}"),
        })
    }

    #[test]
    fn a_grant_to_an_acquire_that_was_given_up_is_released_by_its_token() {
        let release = released(&[("a", 7, "gone")], |_| ()).unwrap();
        assert_eq!((release.lock_name.as_str(), release.lease_id, release.fencing_token), ("a", 1, 7));
    }

    #[test]
    fn a_grant_whose_answer_is_under_way_is_left_alone() {
        assert_eq!(released(&[("a", 7, "under way"), ("b", 8, "")], |_| ()), None);
        // If the same lease asks again it gets the same grant, under the id of the first acquire.
        let asking = |presence: &Arc<Presence>| {
            let way = Way { mode: Mode::Exclusive, scope: Scope::Name, is_limited: false };
            let door = presence.doors.of("a");
            std::mem::forget(door.enter(way, false));
        };
        assert_eq!(released(&[("a", 7, "gone")], asking), None);
    }

    #[test]
    fn a_new_stream_is_soon_told_which_leases_are_used_on_it() {
        let (link, _) = Link::to_nowhere();
        let ((_orders, receiver), (_news, news)) = (mpsc::unbounded_channel(), mpsc::unbounded_channel());
        let mut task = Task::new(link, receiver, news, Hook::default());
        let now = now_nanos();
        for (lease_id, ttl_seconds) in [(1, 600), (2, 1)] {
            let until = valid_until(now, ttl_seconds);
            task.add(Presence::new(lease_id, ttl_seconds, until, Hook::default()));
        }
        let before = task.leases[&2].next_renewal;
        task.renew_all_soon();
        assert!(task.leases.values().all(|kept| kept.next_renewal <= now_nanos() + 500 * MILLISECOND));
        assert!(task.leases[&2].next_renewal <= before, "no renewal is put off");
        assert_eq!(task.by_renewal.len(), 2);
    }

    #[test]
    fn as_many_leases_as_are_renewed_together_fit_into_a_request() {
        let holds = Holds { count: 10_000, digest: u64::MAX };
        let renewal = RenewLeases {
            lease_ids: vec![i64::MAX as u64; LEASES_A_MESSAGE],
            holds: vec![holds; LEASES_A_MESSAGE],
        };
        assert!(Call::RenewLeases(renewal).encoded_len() <= crate::link::CALL_BYTES_MAX);
    }
}
