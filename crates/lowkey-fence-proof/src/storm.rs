//! A storm: many writers with random tokens and modes on one resource, some of which crash between check and write.
//!
//! Afterwards the log of the resource must obey the rule from its beginning to its end, hold every write that was
//! acknowledged once, and none that was refused or crashed; and the marks must be what the log says, so that no
//! crash has left one raised.

use std::collections::HashSet;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures::future::try_join_all;
use lowkey_fence::{Fence, Marks, Mode, Token};
use tokio::sync::oneshot;

use crate::Failure;
use crate::stores::{Entry, Holder, Store, Way, no_stop};

/// Tokens lie so far around the one that is current.
const SPREAD: u64 = 16;
/// One of so many writes crashes.
const CRASHES: u64 = 50;

/// What the writers were told.
#[derive(Debug, Default)]
struct Told {
    accepted: Vec<u64>,
    refused: Vec<u64>,
    crashed: Vec<u64>,
    /// Errors of the store: it may or may not have been written.
    unknown: u64,
    last_error: Option<String>,
}

/// What came of it.
#[derive(Debug)]
pub struct Verdict {
    /// Writes by outcome.
    pub accepted: usize,
    /// Writes that were refused.
    pub refused: usize,
    /// Writers that crashed.
    pub crashed: usize,
    /// Writes that ended with an error of the store, such as a deadlock.
    pub unknown: u64,
    /// What such an error said.
    pub last_error: Option<String>,
    /// What must not be: nothing, if the rule held.
    pub violations: Vec<String>,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { accepted, refused, crashed, unknown, violations, .. } = self;
        write!(f, "{accepted} accepted, {refused} refused, {crashed} crashed, {unknown} unknown: ")?;
        match violations.as_slice() {
            [] => write!(f, "the history obeys the rule"),
            [first, ..] => write!(f, "{} VIOLATIONS, first: {first}", violations.len()),
        }
    }
}

/// Lets so many writers write for so long.
pub async fn storm(store: &dyn Store, way: Way, writers: u64, time: Duration) -> Result<Verdict, Failure> {
    let resource = format!("storm-{:x}", getrandom::u64()?);
    let (current, deadline) = (AtomicU64::new(SPREAD), Instant::now() + time);
    // The row, key or object is there before the storm: a database may deadlock over who creates it.
    let mut judge = store.connect(&resource).await?;
    judge.claim(&Fence::new("storm", Token(1), Mode::Shared)).await?;
    let all = (0..writers).map(|number| write(store, &resource, way, number, &current, deadline));
    let told = try_join_all(all).await?;
    let (log, marks) = (judge.log().await?, judge.marks().await?);
    Ok(verdict(&log, marks, told))
}

async fn write(
    store: &dyn Store,
    resource: &str,
    way: Way,
    number: u64,
    current: &AtomicU64,
    deadline: Instant,
) -> Result<Told, Failure> {
    let (mut told, mut id) = (Told::default(), number * 1_000_000_000);
    let mut holder = store.connect(resource).await?;
    while Instant::now() < deadline {
        id += 1;
        let chance = getrandom::u64()?;
        let now = current.fetch_add(chance & 1, Ordering::Relaxed);
        let mode = if chance & 2 == 0 { Mode::Exclusive } else { Mode::Shared };
        let token = now + (chance >> 8) % SPREAD - (SPREAD / 2);
        let fence = Fence::new("storm", Token(token), mode);
        if (chance >> 32).is_multiple_of(CRASHES) {
            let doomed = std::mem::replace(&mut holder, store.connect(resource).await?);
            told.crash(doomed, fence, id, way).await?;
            continue;
        }
        let outcome = holder.write(&fence, id, way, no_stop()).await;
        told.note(id, outcome);
    }
    Ok(told)
}

impl Told {
    /// Lets a writer crash where it stops, unless it is refused before.
    async fn crash(
        &mut self,
        mut doomed: Box<dyn Holder>,
        fence: Fence,
        id: u64,
        way: Way,
    ) -> Result<(), Failure> {
        let (stops, has_stopped) = oneshot::channel();
        let (goes_on, may_go_on) = oneshot::channel::<()>();
        let stop = Box::pin(async move {
            let _ = stops.send(());
            may_go_on.await.is_ok()
        });
        let writer = tokio::spawn(async move { doomed.write(&fence, id, way, stop).await });
        if has_stopped.await.is_err() {
            self.note(id, writer.await?);
            return Ok(());
        }
        // The connection goes with the task, in the middle of what it does.
        writer.abort();
        drop(goes_on);
        self.crashed.push(id);
        Ok(())
    }

    fn note(&mut self, id: u64, outcome: Result<bool, Failure>) {
        match outcome {
            Ok(true) => self.accepted.push(id),
            Ok(false) => self.refused.push(id),
            Err(error) => {
                self.unknown += 1;
                self.last_error = Some(error.to_string());
            }
        }
    }
}

fn verdict(log: &[Entry], marks: Marks, told: Vec<Told>) -> Verdict {
    let mut violations = Vec::new();
    let (highest_exclusive, highest_shared) = judge(log, &mut violations);
    let expected = Marks { exclusive: Token(highest_exclusive), shared: Token(highest_shared.max(1)) };
    if marks != expected {
        violations.push(format!("the marks are {marks:?}, and the log says {expected:?}"));
    }
    let mut logged = HashSet::new();
    for entry in log {
        if !logged.insert(entry.id) {
            violations.push(format!("{entry} was written twice"));
        }
    }
    let (mut accepted, mut refused, mut crashed, mut unknown, mut last_error) = (0, 0, 0, 0, None);
    for told in told {
        let lost = told.accepted.iter().filter(|id| !logged.contains(id));
        violations.extend(lost.map(|id| format!("{id} was acknowledged, and is lost")));
        let ghosts = told.refused.iter().chain(&told.crashed).filter(|id| logged.contains(id));
        violations.extend(ghosts.map(|id| format!("{id} was refused or crashed, and is there")));
        accepted += told.accepted.len();
        refused += told.refused.len();
        crashed += told.crashed.len();
        unknown += told.unknown;
        last_error = last_error.or(told.last_error);
    }
    Verdict { accepted, refused, crashed, unknown, last_error, violations }
}

/// The model: no token is accepted below one that excludes it.
fn judge(log: &[Entry], violations: &mut Vec<String>) -> (u64, u64) {
    let (mut exclusive, mut shared) = (0, 0);
    for entry in log {
        match entry.mode {
            Mode::Exclusive if entry.token >= exclusive && entry.token >= shared => exclusive = entry.token,
            Mode::Shared if entry.token >= exclusive => shared = shared.max(entry.token),
            _ => violations.push(format!("{entry} came after exclusive {exclusive} and shared {shared}")),
        }
    }
    (exclusive, shared)
}
