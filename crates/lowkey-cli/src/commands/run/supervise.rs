//! The command from its start to its end.

use std::io;
use std::process::{Command, Stdio};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

use lowkey_client::{LockGuard, LossCause, Session, SessionStatus};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, WaitIdStatus, kill_process_group, waitid};
use tokio::runtime::Runtime;

use super::hold::{Held, give_back};
use super::leash::Leash;
use super::signals::Signals;
use super::terminal::Terminal;
use super::{Job, launcher};
use crate::exit::{self, Failure};

/// How often it is looked whether anything is left of a group that was told to end.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// What the main thread hears of.
pub(super) enum News {
    /// The lock cannot be kept; SIGTERM was sent, and SIGKILL will be.
    Terminated { kill_in: Duration },
    /// Somebody sent this process a signal.
    Signal(Signal),
    /// The command was stopped.
    Stopped(Signal),
    /// The command has ended; it is not reaped yet, so its number is still its own.
    Ended(Option<WaitIdStatus>),
}

/// The status that stands for an end by a signal.
pub(super) fn status_of_signal(signal: Signal) -> u8 {
    u8::try_from(128 + signal.as_raw()).unwrap_or(u8::MAX)
}

/// Runs the command under the lock; gives the exit status. Must be called on the main thread: see `launcher.rs`.
pub(super) fn supervise(job: &Job, runtime: &Runtime, held: Held, signals: Signals) -> Result<u8, Failure> {
    let Held { session, guard } = held;
    let guard = Arc::new(guard);
    let cannot_start =
        |error: io::Error| Failure::new(exit::NO_SERVICE, format!("cannot start a process: {error}"));
    let command = launcher::start(&job.command, &guard).map_err(cannot_start)?;
    let terminal = Terminal::new(command);
    terminal.give();
    let (sender, news) = mpsc::channel();
    let leash = Leash::put_on(Arc::clone(&guard), command, job.grace, sender.clone());
    let leash = leash.inspect_err(|_| kill(command)).map_err(cannot_start)?;
    watch(command, sender.clone()).inspect_err(|_| kill(command)).map_err(cannot_start)?;
    forward(runtime, signals, sender);

    let mut running = Running {
        job,
        session: &session,
        guard: &guard,
        command,
        terminal: &terminal,
        is_told: false,
        on_lost: None,
    };
    let ended = running.until_ended(&news);
    let is_held = leash.is_held_at_end();
    if !is_held {
        // The command may have ended before anybody noticed.
        running.lost(Duration::ZERO);
        end_group(command, &leash);
    }
    let on_lost = running.on_lost.take();
    leash.take_off();
    reap(command);
    terminal.take_back();

    // R9: belief has ended with the command; now the lock goes back.
    let Some(guard) = Arc::into_inner(guard) else {
        return Err(Failure::new(exit::LOST, "the lock's guard is still in use: this is a fault of lowkey"));
    };
    let is_given_back = !guard.is_held() || runtime.block_on(give_back(session, guard));
    if !is_held {
        wait_for(on_lost, &news);
        return Ok(exit::LOST);
    }
    if !is_given_back {
        say(
            job,
            &format!("lock {} could not be given back in time: it goes free within {:?}", job.name, job.ttl),
        );
    }
    Ok(status_of(ended))
}

/// A message of our own, which never goes to the command's output.
fn say(job: &Job, line: &str) {
    if job.service.json {
        eprintln!("{}", serde_json::json!({ "message": line, "lockName": job.name }));
    } else {
        eprintln!("lowkey: {line}");
    }
}

struct Running<'a> {
    job: &'a Job,
    session: &'a Session,
    guard: &'a LockGuard,
    command: Pid,
    terminal: &'a Terminal,
    /// That the lock is lost was said, and `--on-lost` started.
    is_told: bool,
    on_lost: Option<std::process::Child>,
}

impl Running<'_> {
    /// Nothing if nobody can say how it ended.
    fn until_ended(&mut self, news: &mpsc::Receiver<News>) -> Option<WaitIdStatus> {
        loop {
            match news.recv().ok()? {
                News::Ended(status) => return status,
                // To stop this process would be to stop renewing.
                News::Signal(Signal::TSTP) => {}
                News::Signal(signal) => {
                    // The command may have ended by itself just now.
                    let _ = kill_process_group(self.command, signal);
                }
                News::Stopped(signal) => {
                    if let Some(line) = self.terminal.stopped(signal) {
                        say(self.job, line);
                    }
                }
                News::Terminated { kill_in } => self.lost(kill_in),
            }
        }
    }

    fn lost(&mut self, kill_in: Duration) {
        if std::mem::replace(&mut self.is_told, true) {
            return;
        }
        let cause = match self.session.status() {
            SessionStatus::Lost(cause) => cause,
            SessionStatus::Held | SessionStatus::InJeopardy => LossCause::Expired,
        };
        let line = format!(
            "lock {} cannot be kept: {cause}; sent SIGTERM to the command, SIGKILL follows in {} ms; look at `lowkey status`",
            self.job.name,
            kill_in.as_millis()
        );
        say(self.job, &line);
        let Some(line) = &self.job.on_lost else { return };
        let started = Command::new("sh")
            .args(["-c", line])
            .envs(launcher::environment(self.guard))
            .stdin(Stdio::null())
            .spawn();
        match started {
            Ok(child) => self.on_lost = Some(child),
            Err(error) => say(self.job, &format!("--on-lost: cannot start sh: {error}")),
        }
    }
}

fn kill(command: Pid) {
    // It may have ended already.
    let _ = kill_process_group(command, Signal::KILL);
}

/// Has a thread wait for the command.
fn watch(command: Pid, news: mpsc::Sender<News>) -> io::Result<()> {
    let wait = move || {
        loop {
            // Not reaped here: as long as it is not, no other group can get its number, and it can be signalled.
            let options = WaitIdOptions::EXITED | WaitIdOptions::STOPPED | WaitIdOptions::NOWAIT;
            let happened = match waitid(WaitId::Pid(command), options) {
                Err(Errno::INTR) => continue,
                Ok(Some(status)) if status.stopped() => {
                    // This takes note of the stop, so that it is not told again.
                    let _ = waitid(WaitId::Pid(command), WaitIdOptions::STOPPED | WaitIdOptions::NOHANG);
                    match status.stopping_signal().and_then(Signal::from_named_raw) {
                        Some(signal) => News::Stopped(signal),
                        None => continue,
                    }
                }
                Ok(status) => News::Ended(status),
                Err(_) => News::Ended(None),
            };
            let is_last = matches!(happened, News::Ended(_));
            if news.send(happened).is_err() || is_last {
                return;
            }
        }
    };
    thread::Builder::new().name("wait".into()).spawn(wait).map(|_| ())
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

/// Waits until nothing is left of a group that is to end, or was killed.
fn end_group(command: Pid, leash: &Leash) {
    while !leash.has_killed() && others_in_group(command) {
        thread::sleep(LOOK_INTERVAL);
    }
}

/// Whether the group has a living process beside the command itself.
fn others_in_group(group: Pid) -> bool {
    let Ok(processes) = std::fs::read_dir("/proc") else { return true };
    processes.flatten().any(|process| {
        let stat = std::fs::read_to_string(process.path().join("stat")).unwrap_or_default();
        // The name, in parentheses, may contain anything.
        let Some((_, fields)) = stat.rsplit_once(") ") else { return false };
        let mut fields = fields.split(' ');
        let (state, _parent, its_group) = (fields.next(), fields.next(), fields.next());
        state != Some("Z") && its_group.and_then(|text| text.parse().ok()) == Some(group.as_raw_pid())
    })
}

fn reap(command: Pid) {
    while let Err(Errno::INTR) = waitid(WaitId::Pid(command), WaitIdOptions::EXITED) {}
}

fn status_of(ended: Option<WaitIdStatus>) -> u8 {
    let Some(ended) = ended else { return exit::NO };
    if let Some(code) = ended.exit_status() {
        return u8::try_from(code).unwrap_or(u8::MAX);
    }
    let signal = ended.terminating_signal().unwrap_or_default();
    u8::try_from(128 + signal).unwrap_or(u8::MAX)
}

/// Waits for what `--on-lost` started, unless somebody sends a signal to have an end to it.
fn wait_for(on_lost: Option<std::process::Child>, news: &mpsc::Receiver<News>) {
    let Some(mut child) = on_lost else { return };
    while let Ok(None) = child.try_wait() {
        if let Ok(News::Signal(Signal::INT | Signal::TERM | Signal::HUP | Signal::QUIT)) =
            news.recv_timeout(LOOK_INTERVAL)
        {
            // It may have ended by itself just now.
            let _ = child.kill();
            let _ = child.wait();
            return;
        }
    }
}
