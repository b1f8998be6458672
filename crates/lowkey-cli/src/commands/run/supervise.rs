//! The command from its start to its end.
//!
//! Invariant: all that the command started is dead before this process ends, and before the lock goes back, on every
//! way out:
//! - The command has ended by itself, under the lock. (What it leaves behind is not the command: see docs/reference/cli.md.)
//! - The lock is lost: the leash kills the group, and this kills the rest until nothing is left.
//! - Nobody can say whether the command has ended: it is killed.
//! - An error, or a panic, here: `ProcessGroup` kills when it is dropped, and it is dropped before the lock's guard, which
//!   gives the lock back. A panic of the leash's thread: the leash kills. A panic of a task: nothing is renewed, and
//!   the leash does what it does then.
//! - This process is killed, or stands still: the guardian kills all (`guardian.rs`).
//! - The guardian is killed: this kills all.

use std::io;
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use futures::FutureExt as _;
use lowkey_client::{LockGuard, LossCause};
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::runtime::Runtime;

use super::group::ProcessGroup;
use super::guardian::{End, Guardian, Word, now};
use super::hold::{GivenBack, LockInHand, close, give_back};
use super::kin::{self, Kin, LOOK_INTERVAL};
use super::leash::{Leash, LockValidity};
use super::signals::{ENDING, Signals};
use super::terminal::Terminal;
use super::{Job, launcher};
use crate::exit::{self, CommandFailure};
use crate::output;

/// How often it is looked whether the terminal can be had by a command that waits for it.
const TERMINAL_LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// How often it is looked whether a lock that nobody works under is still held.
const KEEP_LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// How often it is looked whether a command has ended of which the guardian says nothing: somebody may have stopped it.
const COMMAND_LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// What the main thread hears of.
pub(super) enum News {
    /// The lock cannot be kept; SIGTERM was sent, and SIGKILL will be.
    Terminated { kill_in: Duration },
    /// Somebody sent this process a signal.
    Signal(Signal),
    /// The command was stopped.
    Stopped(Signal),
    /// The command has ended; it is not reaped yet, so its number is still its own.
    Ended(End),
    /// The guardian's clock was first: it has killed all.
    Killed,
    /// Nobody guards the command any more.
    GuardianGone,
}

/// The status that stands for an end by a signal.
pub(super) fn status_of_signal(signal: Signal) -> u8 {
    u8::try_from(128 + signal.as_raw()).unwrap_or(u8::MAX)
}

/// Runs the command under the lock; gives the exit status. Must be called on the main thread: see `launcher.rs`.
pub(super) fn supervise(
    job: &Job,
    runtime: &Runtime,
    held: LockInHand,
    signals: Signals,
) -> Result<u8, CommandFailure> {
    let LockInHand { session, guard } = held;
    let granted_at = Instant::now();
    let guard = Arc::new(guard);
    let cannot_start =
        |error: io::Error| CommandFailure::new(exit::NO_SERVICE, format!("cannot start a process: {error}"));
    let group = start(job, &guard).map_err(cannot_start)?;
    let line = group.guardian_line();
    let mut terminal = Terminal::new(group.leader());
    terminal.give();
    let (sender, news) = mpsc::channel();
    let lock: Arc<dyn LockValidity> = guard.clone();
    let leash = Leash::put_on(lock, group.leader(), job.grace, line.clone(), sender.clone());
    let leash = leash.map_err(cannot_start)?;
    listen(group.kin(), sender.clone()).map_err(cannot_start)?;
    forward(runtime, signals, sender);

    let mut running = Running {
        job,
        guard: &guard,
        group: &group,
        terminal: &mut terminal,
        is_told: false,
        is_told_to_end: false,
        is_killed: false,
        on_lost: None,
    };
    let ended = running.until_ended(&news);
    if ended.is_none() {
        kill(job, &group);
    }
    let is_held = leash.is_held_at_end() && !running.is_killed;
    if !is_held {
        // The command may have ended before anybody noticed.
        running.lost(Duration::ZERO);
        end_group(job, &group, &leash);
    }
    let (on_lost, is_told_to_end) = (running.on_lost.take(), running.is_told_to_end);
    leash.take_off();
    group.reap();
    terminal.take_back();

    let is_over = is_told_to_end || ended.and_then(ended_by).is_some_and(|signal| ENDING.contains(&signal));
    let is_kept = is_over || !is_held || keep(&guard, granted_at + job.at_least, &news);

    // R9: belief has ended with the command; now the lock goes back.
    let Some(guard) = Arc::into_inner(guard) else {
        return Err(CommandFailure::new(
            exit::LOST,
            "the lock's guard is still in use: this is a fault of lowkey",
        ));
    };
    let given_back = match is_held && is_kept {
        true => runtime.block_on(give_back(session, guard)),
        // It may be renewed to this day: nothing works under it any more, so nobody else has to wait for its end.
        false => {
            drop(guard);
            runtime.block_on(close(session));
            GivenBack::WasGone
        }
    };
    if !is_held {
        if let Some(on_lost) = on_lost {
            on_lost.wait(job, &news);
        }
        return Ok(exit::LOST);
    }
    let (name, status) = (&job.name, status_of(ended));
    match given_back {
        GivenBack::Done => Ok(status),
        GivenBack::Unknown => {
            let line =
                format!("lock {name} could not be given back in time: it goes free within {:?}", job.ttl);
            say(job, &line);
            Ok(status)
        }
        GivenBack::WasGone => {
            let when = if is_kept {
                "while the command ran"
            } else {
                "after the command, before --at-least was over"
            };
            say(
                job,
                &format!(
                    "lock {name} was lost {when}: somebody else may have held it; look at `lowkey watch`"
                ),
            );
            Ok(if status == 0 { exit::LOST } else { status })
        }
    }
}

/// Holds the lock until a time has come, or somebody wants an end to it; false if it is lost before.
fn keep(lock: &LockGuard, until: Instant, news: &mpsc::Receiver<News>) -> bool {
    while lock.is_held() {
        let left = until.saturating_duration_since(Instant::now());
        match news.recv_timeout(left.min(KEEP_LOOK_INTERVAL)) {
            Ok(News::Signal(signal)) if ENDING.contains(&signal) => return true,
            _ if left.is_zero() => return true,
            _ => {}
        }
    }
    false
}

/// A message of our own, which never goes to the command's output.
fn say(job: &Job, line: &str) {
    if job.service.json {
        output::say(&serde_json::json!({ "message": line, "lockName": job.name }).to_string());
    } else {
        output::say(&format!("lowkey: {line}"));
    }
}

struct Running<'a> {
    job: &'a Job,
    guard: &'a LockGuard,
    group: &'a ProcessGroup,
    terminal: &'a mut Terminal,
    /// That the lock is lost was said, and `--on-lost` started.
    is_told: bool,
    /// Somebody sent a signal to have an end to it.
    is_told_to_end: bool,
    /// The guardian killed it, because the lock's time was over.
    is_killed: bool,
    on_lost: Option<OnLost>,
}

impl Running<'_> {
    /// Nothing if nobody can say how it ended.
    fn until_ended(&mut self, news: &mpsc::Receiver<News>) -> Option<End> {
        loop {
            match self.next(news)? {
                News::Ended(end) => return Some(end),
                News::GuardianGone => return self.end_unguarded(),
                // To stop this process would be to stop renewing.
                News::Signal(Signal::TSTP) => {}
                News::Signal(Signal::CONT) => {
                    self.terminal.give_if_wanted();
                    self.group.signal(Signal::CONT);
                }
                News::Signal(signal) => {
                    self.group.signal(signal);
                    if ENDING.contains(&signal) {
                        self.is_told_to_end = true;
                        // A process that is stopped hears nothing else.
                        self.group.signal(Signal::CONT);
                    }
                }
                News::Stopped(signal) => {
                    if let Some(line) = self.terminal.stopped(signal) {
                        say(self.job, line);
                    }
                }
                News::Terminated { kill_in } => self.lost(kill_in),
                News::Killed => self.is_killed = true,
            }
        }
    }

    /// Waits for news; looks after the terminal meanwhile if the command wants it, and after the command itself.
    fn next(&mut self, news: &mpsc::Receiver<News>) -> Option<News> {
        let mut is_silent = false;
        loop {
            let is_wanted = self.terminal.is_wanted();
            let pause = if is_wanted { TERMINAL_LOOK_INTERVAL } else { COMMAND_LOOK_INTERVAL };
            match news.recv_timeout(pause) {
                Err(RecvTimeoutError::Timeout) => self.terminal.give_if_wanted(),
                heard => return heard.ok(),
            }
            // What has ended is told at once, unless the guardian stands still.
            let has_ended = self.group.kin().leader_has_ended();
            if has_ended && is_silent {
                return self.group.do_without_guardian().map(News::Ended);
            }
            is_silent = has_ended;
        }
    }

    /// The guardian is gone. The kernel has killed the command with it, and nobody guards the rest.
    fn end_unguarded(&self) -> Option<End> {
        kill(self.job, self.group);
        say(
            self.job,
            "the command was killed, because its guardian (a process of `lowkey run`) is gone: did somebody kill it?",
        );
        self.group.do_without_guardian()
    }

    fn lost(&mut self, kill_in: Duration) {
        if std::mem::replace(&mut self.is_told, true) {
            return;
        }
        // If it is not lost yet, it will be when its limit is over, or for want of a renewal.
        // The limit is looked at second: time goes on between the two.
        let left = self.guard.remaining();
        let is_limit = self.guard.limit_remaining().is_some_and(|limit| limit <= left);
        let expected = if is_limit { LossCause::HeldTooLong } else { LossCause::Expired };
        let cause = self.guard.lost().now_or_never().unwrap_or(expected);
        let look = match cause {
            LossCause::HeldTooLong => "the command hangs, or --at-most is too short for it",
            _ => "look at `lowkey status`",
        };
        let line = format!(
            "lock {} cannot be kept: {cause}; sent SIGTERM to the command, SIGKILL follows in {} ms; {look}",
            self.job.name,
            kill_in.as_millis()
        );
        self.start_on_lost();
        // Whoever is to read it may be slow.
        say(self.job, &line);
    }

    fn start_on_lost(&mut self) {
        let Some(line) = &self.job.on_lost else { return };
        match OnLost::start(line, self.guard) {
            Ok(on_lost) => {
                self.group.kin().spare(Pid::from_child(&on_lost.child));
                self.on_lost = Some(on_lost);
            }
            Err(error) => say(self.job, &format!("--on-lost: cannot start sh: {error}")),
        }
    }
}

/// Starts the command under a guardian.
fn start(job: &Job, guard: &LockGuard) -> io::Result<ProcessGroup> {
    // Those that this process had before it was `lowkey`.
    let strangers = kin::children();
    kin::adopt_orphans()?;
    let (environment, until) = (launcher::environment(guard), now() + guard.remaining());
    let (guardian, leader) = Guardian::start(&job.command, environment, job.service.json, job.grace, until)?;
    Ok(ProcessGroup::new(Kin::new(leader, Some(guardian), strangers)))
}

/// Has a thread listen to the guardian.
fn listen(kin: &Arc<Kin>, news: mpsc::Sender<News>) -> io::Result<()> {
    let kin = Arc::clone(kin);
    let listen = move || {
        let Some(guardian) = kin.guardian() else { return };
        loop {
            let heard = match guardian.line().hear() {
                Some(Word::Ended(end)) => News::Ended(end),
                Some(Word::Stopped(signal)) => match Signal::from_named_raw(signal) {
                    Some(signal) => News::Stopped(signal),
                    None => continue,
                },
                Some(Word::Killed) => {
                    guardian.note_killed();
                    News::Killed
                }
                Some(_) => continue,
                None => News::GuardianGone,
            };
            let is_last = matches!(heard, News::GuardianGone);
            if news.send(heard).is_err() || is_last {
                return;
            }
        }
    };
    thread::Builder::new().name("listen".into()).spawn(listen).map(|_| ())
}

fn forward(runtime: &Runtime, mut signals: Signals, news: mpsc::Sender<News>) {
    runtime.spawn(async move {
        loop {
            let signal = signals.next().await;
            if news.send(News::Signal(signal)).is_err() {
                return;
            }
        }
    });
}

/// Waits until nothing is left of a job that is to end, or until its time is over; then kills what is left.
fn end_group(job: &Job, group: &ProcessGroup, leash: &Leash) {
    while !leash.has_killed() && group.kin().lives() {
        thread::sleep(LOOK_INTERVAL);
    }
    kill(job, group);
}

/// Kills the job; does not return before nothing of it lives.
fn kill(job: &Job, group: &ProcessGroup) {
    group.kill(|living| {
        let pids: Vec<String> = living.iter().map(|pid| pid.as_raw_pid().to_string()).collect();
        let line = format!(
            "lock {} is not given back yet: processes that the command started cannot be killed: {}",
            job.name,
            pids.join(", ")
        );
        say(job, &line);
    });
}

/// The signal that ended the command, if one did.
fn ended_by(end: End) -> Option<Signal> {
    match end {
        End::Exit(_) => None,
        End::Signal(signal) => Signal::from_named_raw(signal),
    }
}

fn status_of(ended: Option<End>) -> u8 {
    match ended {
        None => exit::NO,
        Some(End::Exit(code)) => u8::try_from(code).unwrap_or(u8::MAX),
        Some(End::Signal(signal)) => u8::try_from(128 + signal).unwrap_or(u8::MAX),
    }
}

/// What `--on-lost` started. It works without the lock.
struct OnLost {
    child: Child,
    started_at: Instant,
}

impl OnLost {
    fn start(line: &str, guard: &LockGuard) -> io::Result<Self> {
        let mut command = Command::new("sh");
        launcher::without_credentials(&mut command);
        command.args(["-c", line]).envs(launcher::environment(guard)).stdin(Stdio::null()).process_group(0);
        Ok(Self { child: command.spawn()?, started_at: Instant::now() })
    }

    /// Waits for its end, unless somebody sends a signal to have an end to it, or its time is over.
    fn wait(mut self, job: &Job, news: &mpsc::Receiver<News>) {
        while let Ok(None) = self.child.try_wait() {
            if self.started_at.elapsed() >= job.on_lost_limit {
                self.kill();
                let limit = job.on_lost_limit;
                return say(
                    job,
                    &format!("--on-lost was killed: it took longer than {limit:?}; see --on-lost-limit"),
                );
            }
            match news.recv_timeout(LOOK_INTERVAL) {
                Ok(News::Signal(signal)) if ENDING.contains(&signal) => return self.kill(),
                Ok(_) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => thread::sleep(LOOK_INTERVAL),
            }
        }
    }

    fn kill(&mut self) {
        // It may have ended by itself just now.
        let _ = kill_process_group(Pid::from_child(&self.child), Signal::KILL);
        let _ = self.child.wait();
    }
}
