//! Clients that contend for locks over plain gRPC. They count their validity as R6 and R7 say, write to
//! the protected resources while they believe, renew, and end in every way that a client can end: by a
//! release, by revoking the lease, by silence, or by letting the lease lapse. A renewal says what they hold,
//! so that they hear of a release by force; and a lease goes on in use after an acquire was given up.

use std::sync::Arc;
use std::time::Duration;

use lowkey_api::Reason;
use lowkey_api::v1::lock_service_client::LockServiceClient;
use lowkey_api::v1::{
    AcquireLockRequest, AcquireLockResponse, CreateLeaseRequest, GetLeaseRequest, Holds, ReleaseLockRequest,
    RenewLeaseRequest, RevokeLeaseRequest,
};
use lowkey_api::validity::Validity;
use lowkey_core::{LeaseId, LockName, Mode, Scope, Token};
use lowkey_sim::judge::{PlainClaim, Random};
use tokio::time::sleep;
use tonic::transport::Channel;

use crate::history::{
    Answer, Asked, Belief, Call, LetGo, MILLISECOND, Outcome, Renewal, SECOND, granted, lock_name, now,
};
use crate::stage::{ATTEMPT, Links, NAMES, Stage, Told};

/// How long one attempt of a call that waits may take: then another node is asked, with the same id.
const WAITING_ATTEMPT: Duration = Duration::from_millis(1_500);
const RENEWAL_ATTEMPT: Duration = Duration::from_millis(300);

struct Lease {
    id: u64,
    ttl_seconds: i64,
    validity: Validity,
}

/// One life of a client, under a name of its own.
struct Holder {
    stage: Arc<Stage>,
    random: Random,
    links: Links,
    owner: String,
    requests: u64,
    /// Nothing if every acquire makes its own.
    lease: Option<Lease>,
    /// The acquires that it gave up.
    given_up: Vec<String>,
    /// Its paths may be late.
    is_proxied: bool,
}

/// What a client wants to hold.
#[derive(Clone)]
struct Wish {
    lock: LockName,
    mode: Mode,
    scope: Scope,
    wait_ms: i64,
}

/// How a hold ended.
enum End {
    /// It was held for as long as it was wanted.
    Wanted,
    /// The client's own count ran out.
    Lost,
    /// It was told that the grant, or the lease, is gone.
    Gone,
}

/// What came of a renewal.
#[derive(PartialEq, Eq)]
enum Renewed {
    Yes,
    /// Nobody answered: it can be tried again.
    Unknown,
    /// The grant, or the lease, is gone.
    Gone,
}

/// One life after another until the run is over.
pub(crate) async fn hold_and_release(stage: Arc<Stage>, number: usize, seed: u64) {
    let mut random = Random::new(seed);
    for life in 0.. {
        if stage.is_over() {
            return;
        }
        let is_proxied = number % 2 == 1;
        let mut links = if is_proxied { stage.proxied_links(number) } else { stage.links(number) };
        links.move_anywhere(&mut random);
        let owner = format!("h{number}-{life}");
        let seed = random.between(0, u64::MAX);
        let stage = Arc::clone(&stage);
        let mut holder = Holder::new(stage, Random::new(seed), links, owner);
        holder.is_proxied = is_proxied;
        holder.live().await;
        sleep(Duration::from_millis(random.between(5, 150))).await;
    }
}

/// Takes one lock after the other with one long lease, and keeps them all: what was acknowledged must be
/// there at the end.
pub(crate) async fn keep(stage: Arc<Stage>) {
    let links = stage.links(0);
    let owner = "keeper".to_owned();
    let mut keeper = Holder::new(stage, Random::new(0), links, owner);
    while keeper.lease.is_none() && !keeper.stage.is_over() {
        keeper.make_lease(600).await;
    }
    let mut beliefs = Vec::new();
    for number in 0.. {
        if keeper.stage.is_over() || keeper.lease.is_none() {
            break;
        }
        let lock = lock_name(&format!("kept/{number}"));
        let wish = Wish { lock, mode: Mode::Exclusive, scope: Scope::Name, wait_ms: 0 };
        let request = keeper.request(&wish);
        if let Some((grant, claim)) = keeper.acquire(&wish, &request, Duration::from_secs(60)).await {
            beliefs.push((claim, grant.fencing_token, now()));
        }
        sleep(Duration::from_millis(700)).await;
    }
    for (claim, token, from) in beliefs {
        let until = now();
        let (owner, token) = (keeper.owner.clone(), Token(token));
        keeper.stage.believed(Belief { owner, claim, token, from, until, renews_every: None });
    }
}

impl Holder {
    fn new(stage: Arc<Stage>, random: Random, links: Links, owner: String) -> Self {
        Self {
            stage,
            random,
            links,
            owner,
            requests: 0,
            lease: None,
            given_up: Vec::new(),
            is_proxied: false,
        }
    }

    fn next_request(&mut self) -> String {
        self.requests += 1;
        format!("{}-{}", self.owner, self.requests)
    }

    fn told(&self, request: &str, asked: Asked, invoked: u64, outcome: Outcome) {
        let counted_on_until = self.lease.as_ref().map(|lease| lease.validity.until_nanos());
        self.record(request, asked, invoked, outcome, false, counted_on_until);
    }

    fn record(
        &self,
        request: &str,
        asked: Asked,
        invoked: u64,
        outcome: Outcome,
        again: bool,
        counted_on_until: Option<u64>,
    ) {
        let (owner, request, ended) = (self.owner.clone(), request.to_owned(), now());
        self.stage.record(Call { owner, request, asked, invoked, ended, outcome, again, counted_on_until });
    }

    async fn live(&mut self) {
        // Half of them make a lease first, and hold several locks with it one after the other.
        let rounds = self.random.between(1, 5);
        if self.random.one_in(2) {
            let ttl_seconds = self.random.between(1, 4) as i64;
            self.make_lease(ttl_seconds).await;
            if self.lease.is_none() {
                return;
            }
        }
        for _ in 0..rounds {
            if self.stage.is_over() || !self.round().await {
                return;
            }
        }
    }

    async fn make_lease(&mut self, ttl_seconds: i64) {
        let request_id = self.next_request();
        let owner_id = self.owner.clone();
        let request = CreateLeaseRequest { owner_id, ttl_seconds, request_id: request_id.clone() };
        let invoked = now();
        let call = |mut client: LockServiceClient<Channel>| {
            let request = request.clone();
            async move { client.create_lease(request).await }
        };
        let told = self.links.insist(Duration::from_secs(3), ATTEMPT, call).await;
        let outcome = told.outcome(|made| {
            let validity = Validity::made(invoked, made.ttl_seconds);
            self.lease = Some(Lease { id: made.lease_id, ttl_seconds, validity });
            Answer::Done
        });
        self.told(&request_id, Asked::Lease, invoked, outcome);
    }

    fn wish(&mut self) -> Wish {
        let name = *self.random.pick(NAMES);
        let is_shared = if name == "shared" { !self.random.one_in(3) } else { self.random.one_in(5) };
        let is_subtree = name.starts_with("tree") && self.random.one_in(3);
        Wish {
            lock: lock_name(name),
            mode: if is_shared { Mode::Shared } else { Mode::Exclusive },
            scope: if is_subtree { Scope::Subtree } else { Scope::Name },
            wait_ms: *self.random.pick(&[0, 0, 200, 2_000, 2_000, 6_000]),
        }
    }

    fn request(&mut self, wish: &Wish) -> AcquireLockRequest {
        let request_id = self.next_request();
        AcquireLockRequest {
            lock_name: wish.lock.as_str().to_owned(),
            owner_id: self.owner.clone(),
            lease_id: self.lease.as_ref().map_or(0, |lease| lease.id),
            ttl_seconds: if self.lease.is_some() { 0 } else { self.random.between(1, 4) as i64 },
            wait_ms: wish.wait_ms,
            mode: match wish.mode {
                Mode::Exclusive => lowkey_api::v1::Mode::Exclusive,
                Mode::Shared => lowkey_api::v1::Mode::Shared,
            }
            .into(),
            scope: match wish.scope {
                Scope::Name => lowkey_api::v1::Scope::Name,
                Scope::Subtree => lowkey_api::v1::Scope::Subtree,
            }
            .into(),
            // What a grant shows tells which request it answers.
            value: request_id.clone(),
            request_id,
            max_hold_seconds: 0,
        }
    }

    /// Acquires, holds, ends; false if this was the life's last.
    async fn round(&mut self) -> bool {
        let wish = self.wish();
        let request = self.request(&wish);
        let makes_lease = self.lease.is_none();
        // Some lose patience before their wait ends, more of them where a copy may be held back.
        let patience_ms = match self.random.one_in(if self.is_proxied { 2 } else { 5 }) {
            true => self.random.between(50, 1_500),
            false => wish.wait_ms as u64 + 4_000,
        };
        let first_sent = now();
        let patience = Duration::from_millis(patience_ms);
        let Some((grant, claim)) = self.acquire(&wish, &request, patience).await else {
            return !makes_lease && self.lease.as_ref().is_some_and(|lease| lease.validity.holds_at(now()));
        };
        if makes_lease {
            let waited = u64::try_from(grant.waited_ms).unwrap_or(0) * MILLISECOND;
            let validity = Validity::made(first_sent + waited / 10 * 9, grant.lease_ttl_seconds);
            self.lease = Some(Lease { id: grant.lease_id, ttl_seconds: grant.lease_ttl_seconds, validity });
        }
        let goes_on = self.hold(&grant, &claim).await;
        if self.random.one_in(4) {
            self.repeat(&request, &claim).await;
        }
        if makes_lease {
            self.lease = None;
        }
        goes_on
    }

    /// Asks until it is granted or refused. Who loses patience says so, or leaves without a word.
    async fn acquire(
        &mut self,
        wish: &Wish,
        request: &AcquireLockRequest,
        patience: Duration,
    ) -> Option<(AcquireLockResponse, PlainClaim)> {
        let lease = self.lease.as_ref().map(|lease| LeaseId(lease.id));
        let mut claim = PlainClaim { lock: wish.lock.clone(), lease, mode: wish.mode, scope: wish.scope };
        let invoked = now();
        let attempt = if wish.wait_ms > 0 { WAITING_ATTEMPT } else { ATTEMPT };
        let call = |mut client: LockServiceClient<Channel>| {
            let request = request.clone();
            async move { client.acquire_lock(request).await }
        };
        // Now and then the same request is on its way to two nodes at once.
        let twin = self.random.one_in(8).then(|| {
            let mut links = self.links.clone();
            links.move_on();
            let request = request.clone();
            tokio::spawn(async move {
                let call = |mut client: LockServiceClient<Channel>| {
                    let request = request.clone();
                    async move { client.acquire_lock(request).await }
                };
                links.insist(patience, attempt, call).await
            })
        });
        let told = self.links.insist(patience, attempt, call).await;
        // A copy that somebody holds back may still have an effect after a refusal.
        let has_copies = twin.is_some() || self.links.attempts > 1 || wish.wait_ms > 0;
        let asked = Asked::Acquire { claim: claim.clone() };
        if let Some(twin) = twin
            && let Ok(Told::Yes(second)) = twin.await
        {
            // Both must have been told of the same grant: a request has one.
            let outcome = Outcome::Yes(granted(&second));
            self.told(&request.request_id, asked.clone(), invoked, outcome);
        }
        match told {
            Told::Yes(grant) => {
                self.told(&request.request_id, asked, invoked, Outcome::Yes(granted(&grant)));
                claim.lease = Some(LeaseId(grant.lease_id));
                return Some((grant, claim));
            }
            Told::No(error) => {
                let is_gone = error.reason == Reason::LeaseNotFound;
                self.told(&request.request_id, asked, invoked, Outcome::No(error));
                if is_gone || has_copies {
                    self.lease = None;
                }
            }
            Told::Nothing(why) => {
                self.told(&request.request_id, asked, invoked, Outcome::Unknown(why));
                let is_over = !self.random.one_in(3) && self.give_up(wish, request).await;
                // Unless it is certain that nothing comes of it, the holder goes on with another lease.
                if !is_over {
                    self.lease = None;
                }
            }
        }
        None
    }

    /// R10: ends the wait, or the grant, whichever there is; true if that is certain.
    async fn give_up(&mut self, wish: &Wish, acquire: &AcquireLockRequest) -> bool {
        let request_id = self.next_request();
        let request = ReleaseLockRequest {
            lock_name: acquire.lock_name.clone(),
            lease_id: acquire.lease_id,
            acquire_request_id: acquire.request_id.clone(),
            owner_id: self.owner.clone(),
            request_id: request_id.clone(),
            ..ReleaseLockRequest::default()
        };
        let invoked = now();
        let call = |mut client: LockServiceClient<Channel>| {
            let request = request.clone();
            async move { client.release_lock(request).await }
        };
        let told = self.links.insist(Duration::from_secs(3), ATTEMPT, call).await;
        let outcome = told.outcome(|_| Answer::Done);
        let is_over = matches!(outcome, Outcome::Yes(_));
        let acquire = acquire.request_id.clone();
        if let Some(lease) = self.lease.as_ref().filter(|_| is_over) {
            let (owner, lease) = (self.owner.clone(), LeaseId(lease.id));
            self.stage.let_go(LetGo { owner, lease, request: acquire.clone(), at: now() });
        }
        self.given_up.push(acquire.clone());
        self.told(&request_id, Asked::GiveUp { lock: wish.lock.clone(), acquire }, invoked, outcome);
        is_over
    }

    fn valid_until(&self) -> u64 {
        self.lease.as_ref().map_or(0, |lease| lease.validity.until_nanos())
    }

    /// Acts as holder for a while, then ends in one way or another; false if the life is over.
    async fn hold(&mut self, grant: &AcquireLockResponse, claim: &PlainClaim) -> bool {
        // R7: an answer that is old by now is worth nothing before a renewal.
        let token = Token(grant.fencing_token);
        if now() >= self.valid_until() && self.renew(token).await != Renewed::Yes {
            return false;
        }
        let from = now();
        if from >= self.valid_until() {
            return false;
        }
        let neglects = self.random.one_in(8);
        let longest = if self.random.one_in(8) { 4_000 } else { 700 };
        let wanted_until = from + self.random.between(5, longest) * MILLISECOND;
        let ttl_nanos = self.ttl_nanos();
        let end = self.work(claim, token, wanted_until, neglects).await;
        let dies = self.random.one_in(8);
        let until = match end {
            // Who dies without a word could have acted for as long as its count runs.
            End::Lost => self.valid_until(),
            End::Gone => now(),
            End::Wanted if dies => self.valid_until(),
            // R9: belief ends before the release is sent.
            End::Wanted => now().min(self.valid_until()),
        };
        let (owner, claim) = (self.owner.clone(), claim.clone());
        let (lock, late) = (claim.lock.clone(), claim.clone());
        let renews_every = (!neglects && !dies).then_some(ttl_nanos / 3);
        self.stage.believed(Belief { owner, claim, token, from, until, renews_every });
        if !matches!(end, End::Wanted) || dies {
            // As a process that was paused writes late; the token decides.
            sleep(Duration::from_millis(self.random.between(1, 3_000))).await;
            self.stage.write(&late, token, &mut self.random, || now() < until);
            return false;
        }
        match self.random.one_in(7) {
            true => {
                self.revoke().await;
                false
            }
            false => {
                self.release(&lock, token).await;
                true
            }
        }
    }

    async fn work(&mut self, claim: &PlainClaim, token: Token, until: u64, neglects: bool) -> End {
        let ttl_nanos = self.ttl_nanos();
        let mut renew_at = now() + ttl_nanos / 3;
        loop {
            let time = now();
            if time >= self.valid_until() {
                return End::Lost;
            }
            if time >= until && !neglects {
                return End::Wanted;
            }
            let valid_until = self.valid_until();
            self.stage.write(claim, token, &mut self.random, || now() < valid_until);
            if time >= renew_at && !neglects {
                match self.renew(token).await {
                    Renewed::Yes => renew_at = now() + ttl_nanos / 3,
                    Renewed::Gone => return End::Gone,
                    Renewed::Unknown => {}
                }
            }
            sleep(Duration::from_millis(self.random.between(10, 60))).await;
        }
    }

    fn ttl_nanos(&self) -> u64 {
        self.lease.as_ref().map_or(1, |lease| lease.ttl_seconds) as u64 * SECOND
    }

    /// Renews once, and says that this is all it holds.
    async fn renew(&mut self, holding: Token) -> Renewed {
        let Some(id) = self.lease.as_ref().map(|lease| lease.id) else { return Renewed::Gone };
        let invoked = now();
        let mut client = self.links.client();
        let holds = lowkey_core::Holds::of([holding]);
        let holds = Some(Holds { count: holds.count, digest: holds.digest });
        let request = RenewLeaseRequest { lease_id: id, holds };
        let told = self.links.once(RENEWAL_ATTEMPT, client.renew_lease(request)).await;
        let asked = Asked::Renew { lease: LeaseId(id) };
        match told {
            Told::Yes(answer) => {
                if let Some(lease) = &mut self.lease {
                    lease.validity.renewed(invoked);
                }
                self.told("", asked, invoked, Outcome::Yes(Answer::Done));
                self.stage.renewed(LeaseId(id), Renewal { sent: invoked, acknowledged: now() });
                match answer.holds_differ {
                    true => self.look(id, holding).await,
                    false => Renewed::Yes,
                }
            }
            Told::No(error) => {
                let is_gone = error.reason == Reason::LeaseNotFound;
                self.told("", asked, invoked, Outcome::No(error));
                if !is_gone {
                    return Renewed::Unknown;
                }
                self.lease = None;
                Renewed::Gone
            }
            Told::Nothing(why) => {
                self.told("", asked, invoked, Outcome::Unknown(why));
                Renewed::Unknown
            }
        }
    }

    /// What the lease holds instead. A grant of an acquire that was given up is released.
    async fn look(&mut self, lease_id: u64, holding: Token) -> Renewed {
        let invoked = now();
        let request = GetLeaseRequest { lease_id, ..GetLeaseRequest::default() };
        let call = |mut client: LockServiceClient<Channel>| {
            let request = request.clone();
            async move { client.get_lease(request).await }
        };
        let asked = Asked::Look { lease: LeaseId(lease_id) };
        let grants = match self.links.insist(Duration::from_secs(1), RENEWAL_ATTEMPT, call).await {
            Told::Yes(answer) => {
                self.told("", asked, invoked, Outcome::Yes(Answer::Done));
                answer.grants
            }
            Told::No(error) => {
                let is_gone = error.reason == Reason::LeaseNotFound;
                self.told("", asked, invoked, Outcome::No(error));
                return if is_gone { Renewed::Gone } else { Renewed::Unknown };
            }
            Told::Nothing(why) => {
                self.told("", asked, invoked, Outcome::Unknown(why));
                return Renewed::Unknown;
            }
        };
        let orphans = grants.iter().filter(|grant| self.given_up.contains(&grant.acquire_request_id));
        for orphan in orphans.cloned().collect::<Vec<_>>() {
            self.release(&lock_name(&orphan.lock_name), Token(orphan.fencing_token)).await;
        }
        match grants.iter().any(|grant| grant.fencing_token == holding.0) {
            true => Renewed::Yes,
            false => Renewed::Gone,
        }
    }

    async fn release(&mut self, lock: &LockName, token: Token) {
        let Some(lease_id) = self.lease.as_ref().map(|lease| lease.id) else { return };
        let request_id = self.next_request();
        let request = ReleaseLockRequest {
            lock_name: lock.as_str().to_owned(),
            lease_id,
            fencing_token: token.0,
            request_id: request_id.clone(),
            ..ReleaseLockRequest::default()
        };
        let call = |mut client: LockServiceClient<Channel>| {
            let request = request.clone();
            async move { client.release_lock(request).await }
        };
        let times = if self.random.one_in(5) { 2 } else { 1 };
        for time in 0..times {
            let invoked = now();
            let told = self.links.insist(Duration::from_secs(4), ATTEMPT, call).await;
            let outcome = told.outcome(|_| Answer::Done);
            let is_done = matches!(outcome, Outcome::Yes(_));
            let asked = Asked::Release { lock: lock.clone(), token };
            let counted_on_until = self.lease.as_ref().map(|lease| lease.validity.until_nanos());
            self.record(&request_id, asked, invoked, outcome, time > 0, counted_on_until);
            if !is_done {
                // Whether it still holds is not certain.
                self.lease = None;
                return;
            }
            self.links.move_anywhere(&mut self.random);
        }
    }

    async fn revoke(&mut self) {
        let Some(lease_id) = self.lease.take().map(|lease| lease.id) else { return };
        let request_id = self.next_request();
        let owner_id = self.owner.clone();
        let request = RevokeLeaseRequest {
            lease_id,
            owner_id,
            request_id: request_id.clone(),
            ..RevokeLeaseRequest::default()
        };
        let invoked = now();
        let call = |mut client: LockServiceClient<Channel>| {
            let request = request.clone();
            async move { client.revoke_lease(request).await }
        };
        let told = self.links.insist(Duration::from_secs(4), ATTEMPT, call).await;
        let outcome = told.outcome(|_| Answer::Done);
        self.told(&request_id, Asked::Revoke { lease: LeaseId(lease_id) }, invoked, outcome);
    }

    /// Sends an acquire that was granted once more, at any node: one effect, the same answer.
    async fn repeat(&mut self, request: &AcquireLockRequest, claim: &PlainClaim) {
        self.links.move_anywhere(&mut self.random);
        let invoked = now();
        let mut client = self.links.client();
        let told = self.links.once(ATTEMPT, client.acquire_lock(request.clone())).await;
        let outcome = told.outcome(|grant| granted(&grant));
        // The lease may well be gone by now.
        let asked = Asked::Acquire { claim: claim.clone() };
        self.record(&request.request_id, asked, invoked, outcome, true, None);
    }
}
