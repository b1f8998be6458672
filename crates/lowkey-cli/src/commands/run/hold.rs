//! How the lock is taken, and given back.

use std::cell::Cell;
use std::convert::Infallible;
use std::io::IsTerminal as _;
use std::time::Duration;

use lowkey_client::api::GetLockResponse;
use lowkey_client::{Client, Error, ErrorKind, LockGuard, Reason, Session};
use rustix::process::Signal;
use tokio::time::{Instant, sleep, timeout};

use super::Job;
use super::backoff::RestartPause;
use super::signals::Signals;
use crate::commands::{Patience, SILENCE};
use crate::exit::CommandFailure;
use crate::output::utc;

/// How long giving the lock back may take. Whatever is not done by then happens when the lease ends.
const FAREWELL: Duration = Duration::from_secs(2);

/// A lock that is held.
pub(super) struct LockInHand {
    pub(super) session: Session,
    pub(super) guard: LockGuard,
}

/// What came of the attempt.
pub(super) enum TakeOutcome {
    Held(Box<LockInHand>),
    /// Somebody lost patience.
    Interrupted(Signal),
}

/// Takes the lock, or says why not.
pub(super) async fn take(job: &Job, signals: &mut Signals) -> Result<TakeOutcome, CommandFailure> {
    let mut session = None;
    let outcome = tokio::select! {
        outcome = attempt(job, &mut session) => outcome.map(|held| TakeOutcome::Held(Box::new(held))),
        signal = signals.told_to_end() => Ok(TakeOutcome::Interrupted(signal)),
    };
    if !matches!(outcome, Ok(TakeOutcome::Held(_)))
        && let Some(session) = session
    {
        close(session).await;
    }
    outcome
}

/// The session is left where the caller finds it, whatever becomes of the attempt.
async fn attempt(job: &Job, kept: &mut Option<Session>) -> Result<LockInHand, CommandFailure> {
    let client = job.service.connect_as(job.owner.clone()).await?;
    let deadline = job.patience.deadline();
    let lease = Cell::new(0);
    let in_line = get_in_line(job, &client, kept, &lease, deadline);
    let guard = tokio::select! {
        guard = job.service.wait_for(&client, &job.name, deadline, in_line) => guard?,
        never = tell_who_is_first(job, &client, &lease) => match never {},
    };
    let session = kept.take().expect("the session that the lock was taken with");
    Ok(LockInHand { session, guard })
}

/// Says on a terminal who holds the lock and how many are first, and again when that changes.
async fn tell_who_is_first(job: &Job, client: &Client, lease: &Cell<u64>) -> Infallible {
    let is_wanted = !job.service.json && std::io::stderr().is_terminal();
    if !is_wanted || matches!(job.patience, Patience::None) {
        return std::future::pending().await;
    }
    let mut told = String::new();
    loop {
        sleep(SILENCE).await;
        // If nobody answers, that is told elsewhere.
        let Ok(lock) = client.get(&job.name).await else { continue };
        let line = who_is_first(&lock, lease.get());
        if line != told {
            job.service.remark(&format!("waiting for {}: {line}", job.name));
            told = line;
        }
    }
}

fn who_is_first(lock: &GetLockResponse, lease: u64) -> String {
    let holder = match lock.holders.as_slice() {
        [] => "nobody holds it itself, but something above or below it, or the service grants nothing yet"
            .to_owned(),
        [holder] => {
            format!(
                "held by {} (lease {}) since {}",
                holder.owner_id,
                holder.lease_id,
                utc(holder.since_unix_ms)
            )
        }
        [holder, ..] => {
            format!("held by {} and {} more", holder.owner_id, lock.holder_count.saturating_sub(1))
        }
    };
    let place = lock.waiters.iter().find(|waiter| waiter.lease_id == lease).map(|waiter| waiter.position);
    match place {
        Some(1) => format!("{holder}; first in line"),
        Some(place) => format!("{holder}; number {place} of {} in line", lock.waiter_count),
        None => holder,
    }
}

/// Waits with one session after the other, should one be lost.
async fn get_in_line(
    job: &Job,
    client: &Client,
    kept: &mut Option<Session>,
    lease: &Cell<u64>,
    deadline: Option<Instant>,
) -> Result<LockGuard, CommandFailure> {
    let mut backoff = RestartPause::new();
    loop {
        let began = Instant::now();
        let outcome = match client.session(job.ttl).await {
            Ok(session) => {
                lease.set(session.lease_id());
                attempt_once(job, kept.insert(session), deadline).await
            }
            Err(error) => Err(error),
        };
        match outcome {
            Ok(guard) => return Ok(guard),
            // The service was away for longer than a lease lives. It is asked again, and says so if it is still away.
            Err(error)
                if matches!(error.kind(), ErrorKind::SessionLost(_))
                    && !matches!(job.patience, Patience::None) =>
            {
                // The place in line is lost; whoever waits for as long as it takes goes to its end. After a pause:
                // where an answer takes longer than a lease lives, the next session is lost as soon as it is made.
                tracing::debug!(%error, "getting in line again");
                if began.elapsed() > 2 * job.ttl {
                    backoff = RestartPause::new();
                }
                sleep(backoff.pause()).await;
            }
            Err(error) => return Err(job.service.failure_with(&error, &job.name)),
        }
    }
}

async fn attempt_once(job: &Job, session: &Session, deadline: Option<Instant>) -> Result<LockGuard, Error> {
    let mut lock = session.lock(&job.name).value(&job.value);
    if job.shared {
        lock = lock.shared();
    }
    if job.subtree {
        lock = lock.subtree();
    }
    if let Some(limit) = job.at_most {
        lock = lock.at_most(limit);
    }
    match (job.patience, deadline) {
        (Patience::None, _) => lock.try_acquire().await,
        (_, Some(deadline)) => lock.wait(deadline.saturating_duration_since(Instant::now())).await,
        (_, None) => lock.acquire().await,
    }
}

/// Ends a session, if that can be done soon.
pub(super) async fn close(session: Session) {
    // Otherwise the lease ends by itself.
    let _ = timeout(FAREWELL, session.close()).await;
}

/// What came of giving the lock back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GivenBack {
    Done,
    /// Somebody else had ended it before.
    WasGone,
    /// It goes free by itself.
    Unknown,
}

/// Gives the lock back.
pub(super) async fn give_back(session: Session, guard: LockGuard) -> GivenBack {
    let given_back = match timeout(FAREWELL, guard.release()).await {
        Ok(Ok(())) => GivenBack::Done,
        Ok(Err(error)) => match (error.kind(), error.reason()) {
            (ErrorKind::SessionLost(_), _)
            | (_, Some(Reason::LockNotFound | Reason::NotOwner | Reason::StaleToken)) => GivenBack::WasGone,
            _ => GivenBack::Unknown,
        },
        Err(_) => GivenBack::Unknown,
    };
    if given_back != GivenBack::Unknown {
        close(session).await;
    }
    given_back
}
