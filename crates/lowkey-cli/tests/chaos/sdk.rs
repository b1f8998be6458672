//! Programs that use the SDK, through proxies that may stall and cut: some take locks, some stand for
//! election. What a guard says is what they believe. Patient ones keep a session and its locks for long, and
//! give acquires up: they notice when a lock was taken from them, and hold nothing that they gave up.

use std::sync::Arc;
use std::time::Duration;

use lowkey_api::{ApiError, Reason};
use lowkey_client::{Client, ErrorKind, LockGuard, LossCause, Session, SessionStatus};
use lowkey_core::{LeaseId, Mode, Scope, Token};
use lowkey_sim::judge::{PlainClaim, Random};
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::history::{Answer, Asked, Belief, Call, LetGo, MILLISECOND, Outcome, Renewal, lock_name, now};
use crate::stage::{ELECTION, NAMES, Stage};

/// What patient programs contend for and hold for long.
const HELD_LONG: &[&str] = &["long/1", "long/2"];
/// What they give up. It is mostly free, so that a late copy would be granted.
const HELD_BRIEFLY: &[&str] = &["brief/1", "brief/2", "brief/3", "brief/4"];
/// How long a session of theirs lives without renewal: long enough to tell a renewal from an end.
const PATIENT_TTL: Duration = Duration::from_secs(6);

/// What a program is for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    Locker,
    Candidate,
    Patient,
}

/// A client that reaches the nodes by their proxies.
pub(crate) async fn connect(stage: &Stage, owner: &str, call_timeout: Duration) -> Client {
    let endpoints: Vec<String> =
        stage.proxied.iter().map(|port| format!("http://127.0.0.1:{port}")).collect();
    let builder = Client::builder(endpoints).owner(owner).call_timeout(call_timeout);
    loop {
        match builder.clone().connect().await {
            Ok(client) => return client,
            Err(_) => sleep(Duration::from_millis(100)).await,
        }
    }
}

/// One program: its name, and how many things it has asked for.
struct Program {
    stage: Arc<Stage>,
    random: Random,
    owner: String,
    asked: u64,
    /// Of the session that it has.
    ttl: Duration,
    /// One of how many locks a patient program holds for long.
    long_one_in: u64,
}

/// Sessions one after the other until the run is over; with each, locks or offices.
pub(crate) async fn run(stage: Arc<Stage>, number: usize, role: Role, seed: u64) {
    let owner = format!("sdk{number}");
    // A patient program gives a call up while a copy of it may still be on its way.
    let call_timeout = Duration::from_millis(if role == Role::Patient { 800 } else { 4_000 });
    let client = connect(&stage, &owner, call_timeout).await;
    let long_one_in = if number.is_multiple_of(2) { 2 } else { 12 };
    let random = Random::new(seed);
    let mut program = Program { stage, random, owner, asked: 0, ttl: PATIENT_TTL, long_one_in };
    while !program.stage.is_over() {
        let (ttl, rounds) = match role {
            Role::Patient => (PATIENT_TTL, program.random.between(10, 40)),
            _ => (Duration::from_secs(program.random.between(1, 4)), program.random.between(1, 6)),
        };
        let Ok(session) = client.session(ttl).await else { continue };
        program.ttl = ttl;
        let watching = program.watch_renewals(&session);
        for _ in 0..rounds {
            let is_over = match role {
                // What is in jeopardy may yet be saved.
                Role::Patient => matches!(session.status(), SessionStatus::Lost(_)),
                _ => session.status() != SessionStatus::Held,
            };
            if program.stage.is_over() || is_over {
                break;
            }
            match role {
                Role::Locker => program.lock(&session).await,
                Role::Candidate => program.lead(&session).await,
                Role::Patient => program.hold_long_or_give_up(&session).await,
            }
        }
        watching.abort();
        program.is_not_lost_early(&session);
        match program.random.one_in(2) {
            true => drop(session.close().await),
            false => drop(session),
        }
    }
}

impl Program {
    fn tag(&mut self) -> String {
        self.asked += 1;
        format!("{}-{}", self.owner, self.asked)
    }

    /// Records the session's renewals. Each moves the end of validity to 90 % of the TTL after it was sent.
    fn watch_renewals(&self, session: &Session) -> JoinHandle<()> {
        const STEP_NANOS: u64 = 20 * MILLISECOND;
        let (stage, session) = (Arc::clone(&self.stage), session.clone());
        let valid_nanos = session.ttl().as_nanos() as u64 / 10 * 9;
        tokio::spawn(async move {
            let mut last = now();
            while !matches!(session.status(), SessionStatus::Lost(_)) {
                // The clock is read before: this is never later than it was sent.
                let sent = (now() + session.remaining().as_nanos() as u64).saturating_sub(valid_nanos);
                if sent > last + STEP_NANOS {
                    stage.renewed(LeaseId(session.lease_id()), Renewal { sent, acknowledged: now() });
                    last = sent;
                }
                sleep(Duration::from_millis(10)).await;
            }
        })
    }

    /// The service must not say that a lease is gone before the client's own clock does.
    fn is_not_lost_early(&self, session: &Session) {
        if session.status() == SessionStatus::Lost(LossCause::Gone) {
            let gone = ApiError::new(Reason::LeaseNotFound, "the SDK says that the session is gone");
            let asked = Asked::Renew { lease: LeaseId(session.lease_id()) };
            let call = Call::ended_now(self.owner.clone(), "", asked, now(), Outcome::No(gone));
            self.stage.record(Call { counted_on_until: Some(u64::MAX), ..call });
        }
    }

    /// There is no guard any more for what this was granted, or may still be granted.
    fn let_go(&self, session: &Session, tag: &str) {
        let (owner, lease) = (self.owner.clone(), LeaseId(session.lease_id()));
        self.stage.let_go(LetGo { owner, lease, request: tag.to_owned(), at: now() });
    }

    fn told(&self, request: &str, asked: Asked, invoked: u64, outcome: Outcome) {
        self.stage.record(Call::ended_now(self.owner.clone(), request, asked, invoked, outcome));
    }

    async fn lock(&mut self, session: &Session) {
        let name = *self.random.pick(NAMES);
        let tag = self.tag();
        let mut lock = session.lock(name).value(tag.clone());
        let mut claim = PlainClaim {
            lock: lock_name(name),
            lease: Some(LeaseId(session.lease_id())),
            mode: Mode::Exclusive,
            scope: Scope::Name,
        };
        if self.random.one_in(4) {
            (lock, claim.mode) = (lock.shared(), Mode::Shared);
        }
        if self.random.one_in(4) {
            (lock, claim.scope) = (lock.subtree(), Scope::Subtree);
        }
        let invoked = now();
        let acquired = match self.random.one_in(3) {
            true => lock.try_acquire().await,
            false => lock.wait(Duration::from_millis(self.random.between(10, 3_000))).await,
        };
        let asked = Asked::Acquire { claim: claim.clone() };
        match acquired {
            Ok(guard) => {
                self.told(&tag, asked, invoked, Outcome::Yes(granted(&guard)));
                self.work(&guard, &claim, 1_500).await;
                if self.random.one_in(5) {
                    // Dropping releases, too.
                    drop(guard);
                } else {
                    let token = Token(guard.token());
                    let invoked = now();
                    let outcome = match guard.release().await {
                        Ok(()) => Outcome::Yes(Answer::Done),
                        Err(error) => Outcome::Unknown(name_of(error.kind()).to_owned()),
                    };
                    // What the SDK could not release it lets expire, and says that all is well.
                    let is_certain = session.status() == SessionStatus::Held;
                    if is_certain {
                        self.told("", Asked::Release { lock: claim.lock, token }, invoked, outcome);
                    }
                }
            }
            Err(error) => self.told(&tag, asked, invoked, Outcome::Unknown(name_of(error.kind()).to_owned())),
        }
        self.let_go(session, &tag);
        sleep(Duration::from_millis(self.random.between(1, 100))).await;
    }

    /// Holds a lock for long; or asks for one, and mostly does not wait for the answer.
    async fn hold_long_or_give_up(&mut self, session: &Session) {
        let holds_long = self.random.one_in(self.long_one_in);
        let name = *self.random.pick(if holds_long { HELD_LONG } else { HELD_BRIEFLY });
        let tag = self.tag();
        let lock = session.lock(name).value(tag.clone());
        let lease = Some(LeaseId(session.lease_id()));
        let claim = PlainClaim { lock: lock_name(name), lease, mode: Mode::Exclusive, scope: Scope::Name };
        let invoked = now();
        let (patience_ms, longest_ms) = match holds_long {
            true => (6_000, 9_000),
            false => (self.random.between(1, 2_000), 300),
        };
        let asked = Asked::Acquire { claim: claim.clone() };
        let wait = Duration::from_millis(*self.random.pick(&[0, 0, 5_000]));
        let acquired = timeout(Duration::from_millis(patience_ms), async {
            match wait.is_zero() {
                true => lock.try_acquire().await,
                false => lock.wait(wait).await,
            }
        });
        match acquired.await {
            Ok(Ok(guard)) => {
                self.told(&tag, asked, invoked, Outcome::Yes(granted(&guard)));
                self.work(&guard, &claim, longest_ms).await;
                match self.random.one_in(2) {
                    true => drop(guard),
                    false => drop(guard.release().await),
                }
            }
            Ok(Err(error)) => {
                let why = name_of(error.kind()).to_owned();
                self.told(&tag, asked, invoked, Outcome::Unknown(why));
            }
            Err(_) => self.told(&tag, asked, invoked, Outcome::Unknown("GIVEN UP".to_owned())),
        }
        self.let_go(session, &tag);
        sleep(Duration::from_millis(self.random.between(1, 300))).await;
    }

    async fn lead(&mut self, session: &Session) {
        let tag = self.tag();
        let claim = PlainClaim {
            lock: lock_name(ELECTION),
            lease: Some(LeaseId(session.lease_id())),
            mode: Mode::Exclusive,
            scope: Scope::Name,
        };
        let invoked = now();
        let patience = Duration::from_millis(self.random.between(100, 8_000));
        let asked = Asked::Acquire { claim: claim.clone() };
        let leadership = match session.election(ELECTION).campaign_for(tag.clone(), patience).await {
            Ok(leadership) => leadership,
            Err(error) => {
                return self.told(&tag, asked, invoked, Outcome::Unknown(name_of(error.kind()).to_owned()));
            }
        };
        self.told(&tag, asked, invoked, Outcome::Yes(granted(leadership.guard())));
        self.work(leadership.guard(), &claim, 1_500).await;
        if self.random.one_in(2) {
            let words = self.tag();
            let _ = leadership.proclaim(words).await;
            self.work(leadership.guard(), &claim, 1_500).await;
        }
        let _ = leadership.resign().await;
        self.let_go(session, &tag);
    }

    /// Acts for as long as it is wanted and the guard says that it may.
    async fn work(&mut self, guard: &LockGuard, claim: &PlainClaim, longest_ms: u64) {
        let (from, token) = (now(), Token(guard.token()));
        let wanted_until = from + self.random.between(5, longest_ms) * MILLISECOND;
        let mut held_at = None;
        loop {
            let time = now();
            if !guard.is_held() {
                break;
            }
            held_at = Some(time);
            if time >= wanted_until {
                break;
            }
            self.stage.write(claim, token, &mut self.random, || guard.is_held());
            sleep(Duration::from_millis(self.random.between(5, 50))).await;
        }
        // A guard that says no at once was never acted on.
        if let Some(until) = held_at {
            let (owner, claim) = (self.owner.clone(), claim.clone());
            let renews_every = Some(self.ttl.as_nanos() as u64 / 3);
            self.stage.believed(Belief { owner, claim, token, from, until, renews_every });
        }
    }
}

fn granted(guard: &LockGuard) -> Answer {
    let (token, lease) = (Token(guard.token()), LeaseId(guard.lease_id()));
    let waited_ms = guard.waited().as_millis() as u64;
    Answer::Granted { token, lease, revision: guard.revision(), waited_ms }
}

/// For the table.
fn name_of(kind: &ErrorKind) -> &'static str {
    match kind {
        ErrorKind::LockHeld(_) => "LOCK_HELD",
        ErrorKind::WaitTimeout(_) => "WAIT_TIMEOUT",
        ErrorKind::SessionLost(_) => "SESSION_LOST",
        ErrorKind::Refused(error) => error.reason.as_str(),
        ErrorKind::Unavailable { .. } => "UNAVAILABLE",
        _ => "OTHER",
    }
}
