//! The guardian's own process.

use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::SigSet;
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, waitid};

use super::super::kin::{self, Kin};
use super::super::launcher;
use super::{End, GuardianLine, LOOK_INTERVAL, MARGIN, Word, now};
use crate::exit;

/// SIGTERM is for `lowkey run` to send. If it has not done so after this time, it stands still.
const TERM_LAG: Duration = Duration::from_millis(100);
/// How long it is tried to kill all before it is looked whether `lowkey run` wants something.
const KILL_WAIT: Duration = Duration::from_secs(1);
/// The pause before it is tried again.
const KILL_PAUSE: Duration = Duration::from_millis(1);
/// How often orphans that have ended are reaped.
const REAP_INTERVAL: Duration = Duration::from_secs(1);

/// What the guardian hears.
enum Event {
    /// From `lowkey run`; nothing if it is gone.
    Word(Option<Word>),
    /// Of the command.
    Stopped(i32),
    Ended(Option<End>),
}

/// Becomes a guardian. The arguments are how errors are told, the grace in milliseconds, and the command.
pub(crate) fn guard(mut args: impl Iterator<Item = OsString>) -> ExitCode {
    // Blocked and not ignored: what is ignored, the command would ignore, too. The mask is undone for it (`launcher::exec`).
    let _ = SigSet::all().thread_block();
    let as_json = args.next().is_some_and(|arg| launcher::is_json(&arg));
    let grace = args.next().and_then(|arg| arg.to_str()?.parse().ok()).map(Duration::from_millis);
    let (Some(grace), Ok(socket)) = (grace, io::stdin().as_fd().try_clone_to_owned()) else {
        return ExitCode::from(exit::USAGE);
    };
    let line = Arc::new(GuardianLine { socket });
    match start(&line, args, as_json) {
        Ok((until, command)) => {
            line.say(&Word::Started(command.as_raw_pid()));
            match Watch::start(line, until, grace, command) {
                Ok(watch) => watch.until_over(),
                // The kernel kills the command with this process, before it could do anything.
                Err(_) => return ExitCode::from(exit::NO_SERVICE),
            }
            ExitCode::SUCCESS
        }
        Err(error) => {
            line.say(&Word::Failed(error.to_string()));
            ExitCode::from(exit::NO_SERVICE)
        }
    }
}

/// Starts the command, if there is time for it.
fn start(
    line: &GuardianLine,
    command: impl Iterator<Item = OsString>,
    as_json: bool,
) -> io::Result<(Duration, Pid)> {
    let Some((Word::Hold(until), Some(stdin))) = line.hear_with()? else {
        return Err(io::Error::other("the guardian was told nothing of the lock"));
    };
    kin::adopt_orphans()?;
    let mut launcher = Command::new("/proc/self/exe");
    launcher
        .arg0("lowkey")
        .args(launcher::args(as_json))
        .args(command)
        .stdin(Stdio::from(stdin))
        .process_group(0);
    if now() + MARGIN >= until {
        return Err(io::Error::other("the lock was lost before the command could start"));
    }
    // Reaped in the end by its number.
    Ok((until, Pid::from_child(&launcher.spawn()?)))
}

/// A command under guard. Stays on the main thread: the kernel kills the command when that ends.
struct Watch {
    line: Arc<GuardianLine>,
    events: mpsc::Receiver<Event>,
    kin: Kin,
    grace: Duration,
    /// When validity ends, by the last that was heard.
    until: Duration,
    /// The command was told to end.
    is_told: bool,
    is_killed: bool,
    /// What `lowkey run` must hear, and could not yet: it stands still.
    unsaid: Option<Word>,
    reap_at: Instant,
}

impl Watch {
    fn start(line: Arc<GuardianLine>, until: Duration, grace: Duration, command: Pid) -> io::Result<Self> {
        let (sender, events) = mpsc::channel();
        let (hears, words) = (Arc::clone(&line), sender.clone());
        thread::Builder::new().name("hear".into()).spawn(move || {
            loop {
                let word = hears.hear();
                let is_last = word.is_none();
                if words.send(Event::Word(word)).is_err() || is_last {
                    return;
                }
            }
        })?;
        thread::Builder::new().name("wait".into()).spawn(move || wait_for(command, &sender))?;
        Ok(Self {
            line,
            events,
            kin: Kin::new(command, None, Vec::new()),
            grace,
            until,
            is_told: false,
            is_killed: false,
            unsaid: None,
            reap_at: Instant::now(),
        })
    }

    fn until_over(mut self) {
        loop {
            let pause = self.look_at_clock();
            match self.events.recv_timeout(pause) {
                Ok(Event::Word(Some(Word::Hold(_)))) if self.until.is_zero() => {}
                Ok(Event::Word(Some(Word::Hold(until)))) => self.until = until,
                Ok(Event::Word(Some(Word::Told))) => self.is_told = true,
                Ok(Event::Word(Some(Word::Dismissed))) => return self.reap(self.kin.leader()),
                Ok(Event::Word(Some(_))) => {}
                // `lowkey run` is gone, and with it whoever could renew.
                Ok(Event::Word(None)) | Err(RecvTimeoutError::Disconnected) => return self.kill_for_good(),
                Ok(Event::Stopped(signal)) => _ = self.line.say(&Word::Stopped(signal)),
                Ok(Event::Ended(Some(end))) => self.unsaid = Some(Word::Ended(end)),
                // Nobody can say whether it has ended: so it is made certain.
                Ok(Event::Ended(None)) => {
                    self.kill_for_good();
                    self.unsaid = Some(Word::Ended(End::Signal(Signal::KILL.as_raw())));
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
            self.unsaid = self.unsaid.take().filter(|word| !self.line.say(word));
            self.reap_orphans();
        }
    }

    /// Does what is to be done by now; gives how long nothing else is.
    fn look_at_clock(&mut self) -> Duration {
        if self.is_killed {
            return LOOK_INTERVAL;
        }
        let left = self.until.saturating_sub(now() + MARGIN);
        if left.is_zero() {
            self.is_killed = self.kin.kill(KILL_WAIT);
            if self.is_killed {
                self.line.say(&Word::Killed);
            }
            return KILL_PAUSE;
        }
        let until_told = (left + TERM_LAG).saturating_sub(self.grace);
        if !self.is_told && until_told.is_zero() {
            self.kin.signal_group(Signal::TERM);
            // A process that is stopped hears nothing else.
            self.kin.signal_group(Signal::CONT);
            self.is_told = true;
        }
        let next = if self.is_told { left } else { until_told.min(left) };
        next.min(LOOK_INTERVAL)
    }

    fn kill_for_good(&self) {
        while !self.kin.kill(KILL_WAIT) {}
    }

    fn reap_orphans(&mut self) {
        if self.reap_at > Instant::now() {
            return;
        }
        self.reap_at = Instant::now() + REAP_INTERVAL;
        // The command itself stays: as long as it does, no other group can get its number.
        let leader = self.kin.leader();
        kin::children().into_iter().filter(|child| *child != leader).for_each(|child| self.reap(child));
    }

    fn reap(&self, child: Pid) {
        // One that lives is left alone.
        let _ = waitid(WaitId::Pid(child), WaitIdOptions::EXITED | WaitIdOptions::NOHANG);
    }
}

/// Tells how the command fares, until it has ended. It is not reaped here.
fn wait_for(command: Pid, events: &mpsc::Sender<Event>) {
    loop {
        let options = WaitIdOptions::EXITED | WaitIdOptions::STOPPED | WaitIdOptions::NOWAIT;
        let event = match waitid(WaitId::Pid(command), options) {
            Err(Errno::INTR) => continue,
            Ok(Some(status)) if status.stopped() => {
                // This takes note of the stop, so that it is not told again.
                let _ = waitid(WaitId::Pid(command), WaitIdOptions::STOPPED | WaitIdOptions::NOHANG);
                match status.stopping_signal() {
                    Some(signal) => Event::Stopped(signal),
                    None => continue,
                }
            }
            Ok(status) => Event::Ended(status.as_ref().and_then(End::of)),
            Err(_) => Event::Ended(None),
        };
        let is_last = matches!(event, Event::Ended(_));
        if events.send(event).is_err() || is_last {
            return;
        }
    }
}
