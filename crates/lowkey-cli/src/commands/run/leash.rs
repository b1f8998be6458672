//! The leash: ends the command in time if the lock cannot be kept (R6).
//!
//! A thread of its own looks at the lock's validity and at the clock that also runs during suspend, and sends
//! the signals by itself. It waits for nobody: not for the network, not for the runtime, not for the main thread.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use lowkey_client::LockGuard;
use rustix::process::{Pid, Signal, kill_process_group};
use rustix::time::{ClockId, clock_gettime};

use super::supervise::News;

/// SIGKILL is sent so much before validity ends: waking up takes a moment, too.
const MARGIN: Duration = Duration::from_millis(20);
/// The clock is looked at so often at least: it may have gone on while this thread's timer stood still.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// What is held on to the command's process group.
pub(super) struct Leash {
    shared: Arc<Shared>,
    thread: JoinHandle<()>,
}

struct Shared {
    guard: Arc<LockGuard>,
    group: Pid,
    grace: Duration,
    state: Mutex<State>,
    changed: Condvar,
}

/// Only ever goes on, from the first to the last. Signals are sent under its mutex, so that none is sent after
/// `Over`, when the group's number may be somebody else's.
#[derive(Clone, Copy)]
enum State {
    Watching,
    /// SIGTERM was sent. What is acknowledged from now on changes nothing: the command was told to end.
    Terminating {
        kill_at: Duration,
    },
    Killed,
    Over,
}

/// A clock that also runs while the machine is suspended.
fn now() -> Duration {
    let time = clock_gettime(ClockId::Boottime);
    Duration::new(
        u64::try_from(time.tv_sec).unwrap_or_default(),
        u32::try_from(time.tv_nsec).unwrap_or_default(),
    )
}

impl Leash {
    /// Puts a process group on a leash; `news` hears when SIGTERM is sent.
    pub(super) fn put_on(
        guard: Arc<LockGuard>,
        group: Pid,
        grace: Duration,
        news: mpsc::Sender<News>,
    ) -> std::io::Result<Self> {
        let state = Mutex::new(State::Watching);
        let shared = Arc::new(Shared { guard, group, grace, state, changed: Condvar::new() });
        let watched = Arc::clone(&shared);
        let thread = thread::Builder::new().name("leash".into()).spawn(move || watched.watch(&news))?;
        Ok(Self { shared, thread })
    }

    /// The command has ended: true if it did so under a lock that was held all the time. If not, signals are
    /// still sent to what is left of its group.
    pub(super) fn is_held_at_end(&self) -> bool {
        let mut state = self.shared.lock();
        // The clock counts, not who has noticed.
        let is_held = matches!(*state, State::Watching) && self.shared.guard.is_held();
        if is_held {
            *state = State::Over;
        }
        is_held
    }

    pub(super) fn has_killed(&self) -> bool {
        matches!(*self.shared.lock(), State::Killed)
    }

    /// Takes it off: no signal is sent any more. Gives back the share of the guard that it had.
    pub(super) fn take_off(self) {
        *self.shared.lock() = State::Over;
        self.shared.changed.notify_all();
        // A thread that panicked has told so.
        let _ = self.thread.join();
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn watch(&self, news: &mpsc::Sender<News>) {
        let mut state = self.lock();
        loop {
            let pause = match *state {
                State::Watching => {
                    let remaining = self.guard.remaining().saturating_sub(MARGIN);
                    if remaining <= self.grace {
                        *state = self.terminate(remaining, news);
                        continue;
                    }
                    remaining - self.grace
                }
                State::Terminating { kill_at } => {
                    // It may be over sooner than it was thought: when the service says so.
                    let left = kill_at.saturating_sub(now());
                    if left.is_zero() || self.guard.remaining() <= MARGIN {
                        self.signal(Signal::KILL);
                        *state = State::Killed;
                        return;
                    }
                    left
                }
                State::Killed | State::Over => return,
            };
            let waited = self.changed.wait_timeout(state, pause.min(LOOK_INTERVAL));
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn terminate(&self, remaining: Duration, news: &mpsc::Sender<News>) -> State {
        self.signal(Signal::TERM);
        // A process that is stopped hears nothing else.
        self.signal(Signal::CONT);
        // Whoever would hear it has gone only with the whole process.
        let _ = news.send(News::Terminated { kill_in: remaining });
        State::Terminating { kill_at: now() + remaining }
    }

    fn signal(&self, signal: Signal) {
        // A group that has ended needs no signal.
        let _ = kill_process_group(self.group, signal);
    }
}
