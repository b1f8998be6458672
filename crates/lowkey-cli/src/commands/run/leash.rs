//! The leash: ends the command in time if the lock cannot be kept (R6).
//!
//! A thread of its own looks at the lock's validity and at the clock that also runs during suspend, and sends
//! the signals by itself. It waits for nobody: not for the network, not for the runtime, not for the main thread.
//! If the thread itself fails, nobody is left to keep the promise, and the command is killed. It also tells the guardian,
//! which does the same should this process stand still (`guardian.rs`).

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use lowkey_client::LockGuard;
use rustix::process::{Pid, Signal, kill_process_group};

use super::guardian::{GuardianLine, LOOK_INTERVAL, MARGIN, Word, now};
use super::supervise::News;

/// The guardian hears of a validity that differs by more than this: less is how long it takes to look at two clocks.
const WORTH_TELLING: Duration = Duration::from_millis(5);

/// What the leash has to know of a lock.
pub(super) trait LockValidity: Send + Sync {
    /// Whether the command may run now.
    fn is_held(&self) -> bool;
    /// How long it may run if nothing more is heard of the service.
    fn remaining(&self) -> Duration;
}

impl LockValidity for LockGuard {
    fn is_held(&self) -> bool {
        LockGuard::is_held(self)
    }

    fn remaining(&self) -> Duration {
        LockGuard::remaining(self)
    }
}

/// What is held on to the command's process group.
pub(super) struct Leash {
    shared: Arc<Shared>,
    thread: JoinHandle<()>,
}

struct Shared {
    lock: Arc<dyn LockValidity>,
    group: Pid,
    grace: Duration,
    /// Nothing in tests.
    guardian: Option<Arc<GuardianLine>>,
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

impl Leash {
    /// Puts a process group on a leash; `news` hears when SIGTERM is sent.
    pub(super) fn put_on(
        lock: Arc<dyn LockValidity>,
        group: Pid,
        grace: Duration,
        guardian: Option<Arc<GuardianLine>>,
        news: mpsc::Sender<News>,
    ) -> std::io::Result<Self> {
        let state = Mutex::new(State::Watching);
        let shared = Arc::new(Shared { lock, group, grace, guardian, state, changed: Condvar::new() });
        let watched = Arc::clone(&shared);
        let thread = thread::Builder::new().name("leash".into()).spawn(move || {
            let _kill = KillOnPanic(&watched);
            watched.watch(&news);
        })?;
        Ok(Self { shared, thread })
    }

    /// The command has ended: true if it did so under a lock that was held all the time. If not, signals are
    /// still sent to what is left of its group.
    pub(super) fn is_held_at_end(&self) -> bool {
        let mut state = self.shared.state();
        // The clock counts, not who has noticed.
        let is_held = matches!(*state, State::Watching) && self.shared.lock.is_held();
        if is_held {
            *state = State::Over;
        }
        is_held
    }

    pub(super) fn has_killed(&self) -> bool {
        matches!(*self.shared.state(), State::Killed)
    }

    /// Takes it off: no signal is sent any more. Gives back the share of the lock that it had.
    pub(super) fn take_off(self) {
        *self.shared.state() = State::Over;
        self.shared.changed.notify_all();
        // A thread that panicked has told so, and killed the group.
        let _ = self.thread.join();
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn watch(&self, news: &mpsc::Sender<News>) {
        let mut state = self.state();
        let mut told_until = Duration::ZERO;
        loop {
            let pause = match *state {
                State::Watching => {
                    let remaining = self.lock.remaining();
                    let until = now() + remaining;
                    if until.abs_diff(told_until) > WORTH_TELLING && self.tell_guardian(&Word::Hold(until)) {
                        told_until = until;
                    }
                    let remaining = remaining.saturating_sub(MARGIN);
                    if remaining <= self.grace {
                        *state = self.terminate(remaining, news);
                        continue;
                    }
                    remaining - self.grace
                }
                State::Terminating { kill_at } => {
                    // It may be over sooner than it was thought: when the service says so.
                    let left = kill_at.saturating_sub(now());
                    if left.is_zero() || self.lock.remaining() <= MARGIN {
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

    /// False if it does not listen: then it is told next time.
    fn tell_guardian(&self, word: &Word) -> bool {
        self.guardian.as_ref().is_none_or(|guardian| guardian.say(word))
    }

    fn terminate(&self, remaining: Duration, news: &mpsc::Sender<News>) -> State {
        self.tell_guardian(&Word::Told);
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

/// Kills the group if the thread that watches the clock fails.
struct KillOnPanic<'a>(&'a Shared);

impl Drop for KillOnPanic<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        if thread::panicking() && !matches!(*state, State::Over) {
            self.0.signal(Signal::KILL);
            *state = State::Killed;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::group::tests::stubborn;
    use super::*;

    /// A lock that is held, and cannot say for how long.
    struct Faulty;

    impl LockValidity for Faulty {
        fn is_held(&self) -> bool {
            true
        }

        fn remaining(&self) -> Duration {
            panic!("a fault on purpose");
        }
    }

    #[test]
    fn a_leash_that_fails_kills_the_command_and_says_that_the_lock_was_not_held() {
        let group = stubborn();
        let (news, _hears) = mpsc::channel();
        let leash = Leash::put_on(Arc::new(Faulty), group.leader(), Duration::ZERO, None, news).unwrap();
        while !leash.has_killed() {
            thread::sleep(Duration::from_millis(1));
        }
        group.kill(|_| {});
        assert!(!leash.is_held_at_end());
        leash.take_off();
        group.reap();
    }
}
