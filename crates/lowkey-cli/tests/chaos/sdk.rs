//! Programs that use the SDK, through proxies that may stall and cut: some take locks, some stand for
//! election. What a guard says is what they believe.

use std::sync::Arc;
use std::time::Duration;

use lowkey_client::{Client, ErrorKind, LockGuard, LossCause, Session, SessionStatus};
use lowkey_core::{LeaseId, Mode, Scope, Token};
use lowkey_sim::judge::{Claim, Random, Violation};
use tokio::time::sleep;

use crate::history::{Answer, Asked, Belief, Call, MILLISECOND, Outcome, lock_name, now};
use crate::stage::{ELECTION, NAMES, Stage};

/// A client that reaches the nodes by their proxies.
pub(crate) async fn connect(stage: &Stage, owner: &str) -> Client {
    let endpoints: Vec<String> =
        stage.proxied.iter().map(|port| format!("http://127.0.0.1:{port}")).collect();
    let builder = Client::builder(endpoints).owner(owner).call_timeout(Duration::from_secs(4));
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
}

/// Sessions one after the other until the run is over; with each, locks or offices.
pub(crate) async fn run(stage: Arc<Stage>, number: usize, stands_for_election: bool, seed: u64) {
    let owner = format!("sdk{number}");
    let client = connect(&stage, &owner).await;
    let mut program = Program { stage, random: Random::new(seed), owner, asked: 0 };
    while !program.stage.is_over() {
        let ttl = Duration::from_secs(program.random.between(1, 4));
        let Ok(session) = client.session(ttl).await else { continue };
        for _ in 0..program.random.between(1, 6) {
            if program.stage.is_over() || session.status() != SessionStatus::Held {
                break;
            }
            match stands_for_election {
                true => program.lead(&session).await,
                false => program.lock(&session).await,
            }
        }
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

    /// The service must not say that a lease is gone before the client's own clock does.
    fn is_not_lost_early(&self, session: &Session) {
        if session.status() == SessionStatus::Lost(LossCause::Gone) {
            let what =
                format!("the session {} of {} is gone before its time", session.lease_id(), self.owner);
            self.stage.history().found.push((now(), Violation { invariant: "expiry", what }));
        }
    }

    fn told(&self, request: &str, asked: Asked, invoked: u64, outcome: Outcome) {
        let (owner, request, ended) = (self.owner.clone(), request.to_owned(), now());
        let (again, counted_on_until) = (false, None);
        self.stage.record(Call { owner, request, asked, invoked, ended, outcome, again, counted_on_until });
    }

    async fn lock(&mut self, session: &Session) {
        let name = *self.random.pick(NAMES);
        let tag = self.tag();
        let mut lock = session.lock(name).value(tag.clone());
        let mut claim = Claim {
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
                self.work(&guard, &claim).await;
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
        sleep(Duration::from_millis(self.random.between(1, 100))).await;
    }

    async fn lead(&mut self, session: &Session) {
        let tag = self.tag();
        let claim = Claim {
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
        self.work(leadership.guard(), &claim).await;
        if self.random.one_in(2) {
            let words = self.tag();
            let _ = leadership.proclaim(words).await;
            self.work(leadership.guard(), &claim).await;
        }
        let _ = leadership.resign().await;
    }

    /// Acts for as long as it is wanted and the guard says that it may.
    async fn work(&mut self, guard: &LockGuard, claim: &Claim) {
        let (from, token) = (now(), Token(guard.token()));
        let wanted_until = from + self.random.between(5, 1_500) * MILLISECOND;
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
            self.stage.believed(Belief { owner, claim, token, from, until });
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
