//! When the next request is due.
//!
//! In a *closed* loop each client sends the next request when the last is answered: a service that slows down is asked
//! less, and its worst moments are met by few. In an *open* loop requests are due at a fixed rate, whatever becomes of
//! them, and their time counts from when they were due: whoever would have come in a bad moment is counted, too.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use tokio::sync::Semaphore;

/// Requests that are overdue when the time is over are still sent for so long.
const DRAIN: Duration = Duration::from_secs(3);

/// More than anybody has clients.
const EVERYBODY: usize = 1 << 20;

/// Shared by the clients that send the requests.
#[derive(Debug)]
pub(crate) struct Pace {
    stopped: OnceLock<Instant>,
    open: Option<Open>,
}

/// Invariant: as many permits were given as requests were due, and each that is taken stands for the next of them.
#[derive(Debug)]
struct Open {
    per_second: f64,
    start: Instant,
    due: Semaphore,
    next: AtomicU64,
}

impl Open {
    fn due_at(&self, request: u64) -> Instant {
        self.start + Duration::from_secs_f64(request as f64 / self.per_second)
    }
}

impl Pace {
    /// With a rate, requests are due from now on.
    pub(crate) fn new(per_second: Option<f64>) -> Arc<Self> {
        let open = per_second.map(|per_second| Open {
            per_second,
            start: Instant::now(),
            due: Semaphore::new(0),
            next: AtomicU64::new(0),
        });
        let pace = Arc::new(Self { stopped: OnceLock::new(), open });
        if pace.open.is_some() {
            let pace = Arc::clone(&pace);
            // The timers of the runtime count whole milliseconds; a thread's sleep is finer.
            thread::spawn(move || pace.call_out());
        }
        pace
    }

    fn call_out(&self) {
        let Some(open) = &self.open else { return };
        let mut called = 0;
        while self.stopped.get().is_none() {
            let next = open.due_at(called);
            thread::sleep(next.saturating_duration_since(Instant::now()).min(Duration::from_millis(100)));
            let now = Instant::now();
            let mut permits = 0;
            while open.due_at(called) <= now {
                called += 1;
                permits += 1;
            }
            open.due.add_permits(permits);
        }
        // Whoever waits for a turn that will not come finds out.
        open.due.add_permits(EVERYBODY);
    }

    /// Nothing is due any more after now.
    pub(crate) fn stop(&self) {
        let _ = self.stopped.set(Instant::now());
    }

    /// Waits for a turn, and gives the moment from which its time counts; nothing when it is over.
    pub(crate) async fn turn(&self) -> Option<Instant> {
        let stopped = self.stopped.get();
        let Some(open) = &self.open else {
            return stopped.is_none().then(Instant::now);
        };
        if stopped.is_some_and(|stopped| stopped.elapsed() > DRAIN) {
            return None;
        }
        open.due.acquire().await.ok()?.forget();
        let due = open.due_at(open.next.fetch_add(1, Ordering::Relaxed));
        match self.stopped.get() {
            Some(stopped) if due > *stopped => None,
            _ => Some(due),
        }
    }

    /// How long requests have been due for which there was no turn to the end.
    pub(crate) fn never_sent(&self) -> impl Iterator<Item = Duration> {
        let now = Instant::now();
        let stopped_open = self.open.as_ref().zip(self.stopped.get());
        stopped_open.into_iter().flat_map(move |(open, stopped)| {
            let rest = open.next.load(Ordering::Relaxed)..;
            let due = rest.map(|request| open.due_at(request)).take_while(move |due| due <= stopped);
            due.map(move |due| now.saturating_duration_since(due))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_closed_loop_is_always_ready_until_it_is_stopped() {
        let pace = Pace::new(None);
        assert!(pace.turn().await.is_some());
        pace.stop();
        assert!(pace.turn().await.is_none());
    }

    #[tokio::test]
    async fn time_counts_from_when_a_request_was_due() {
        let pace = Pace::new(Some(1000.0));
        let first = pace.turn().await.unwrap();
        let second = pace.turn().await.unwrap();
        assert_eq!(second - first, Duration::from_millis(1));
    }

    #[tokio::test]
    async fn what_was_due_before_the_end_is_sent_and_nothing_after_it() {
        let pace = Pace::new(Some(10_000.0));
        let first = pace.turn().await.unwrap();
        tokio::time::sleep(Duration::from_millis(20)).await;
        pace.stop();
        let mut turns = 1;
        while pace.turn().await.is_some() {
            turns += 1;
        }
        let stopped = *pace.stopped.get().unwrap();
        let due = ((stopped - first).as_secs_f64() * 10_000.0) as u64 + 1;
        assert_eq!(turns, due);
        assert_eq!(pace.never_sent().count(), 0);
    }
}
