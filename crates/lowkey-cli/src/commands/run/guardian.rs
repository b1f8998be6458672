//! The guardian: a process between `lowkey run` and the command, with a clock of its own.
//!
//! It ends the command, and all that the command started, when the lock's validity ends and `lowkey run` has not said
//! that it goes on; and at once when `lowkey run` is gone. So neither `kill -9` nor SIGSTOP of `lowkey run` leaves
//! anything running under a lock that somebody else may have.
//!
//! - `process.rs` is the guardian itself: `lowkey` once more, under a name that no help mentions.
//! - This file is the side of `lowkey run`, and the words that go between them.
//!
//! Why it stands between: as an ancestor it adopts what the command's children leave behind (see `kin.rs`), also
//! daemons in sessions of their own. It is in a process group of its own, so no key of the terminal reaches it, and it
//! blocks all signals. What it cannot help: being killed or stopped itself. If it is killed, the kernel kills the command
//! (`launcher.rs`), and `lowkey run` kills the rest. If it is stopped, `lowkey run` does all that it would do. Only if
//! both are killed at the same time do grandchildren live on.

mod process;

use std::ffi::OsString;
use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, send, sendmsg, socketpair,
};
use rustix::process::{Pid, WaitIdStatus};
use rustix::time::{ClockId, clock_gettime};

pub(crate) use self::process::guard;
use super::launcher;

/// The name under which `lowkey` becomes a guardian.
pub(crate) const GUARD: &str = "__guard";

/// SIGKILL is sent so much before validity ends: waking up takes a moment, too.
pub(super) const MARGIN: Duration = Duration::from_millis(20);
/// The clock is looked at so often at least: it may have gone on while a thread's timer stood still.
pub(super) const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// How long a guardian that is dismissed may take to go.
const DISMISSAL: Duration = Duration::from_secs(1);
/// Longer than any word.
const WORD_BYTES: usize = 512;

/// A clock that also runs while the machine is suspended. All processes of a machine share it.
pub(super) fn now() -> Duration {
    let time = clock_gettime(ClockId::Boottime);
    Duration::new(
        u64::try_from(time.tv_sec).unwrap_or_default(),
        u32::try_from(time.tv_nsec).unwrap_or_default(),
    )
}

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    Exit(i32),
    Signal(i32),
}

impl End {
    pub(super) fn of(status: &WaitIdStatus) -> Option<Self> {
        status.exit_status().map(Self::Exit).or_else(|| status.terminating_signal().map(Self::Signal))
    }
}

/// What goes between `lowkey run` and the guardian. Each is one message of a few bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Word {
    /// To the guardian: the lock is valid until then, by [`now`]. The first one brings the command's standard input.
    /// Zero is the last one: kill all, now.
    Hold(Duration),
    /// To the guardian: the command was told to end.
    Told,
    /// To the guardian: the command has ended; leave what it left behind alone, and go.
    Dismissed,
    /// From the guardian: the command runs.
    Started(i32),
    /// From the guardian: there is no command, and why.
    Failed(String),
    /// From the guardian: the command was stopped by a signal.
    Stopped(i32),
    /// From the guardian: time was over, all were killed, and nothing of the job lives.
    Killed,
    /// From the guardian: the command has ended. It is not reaped before the guardian goes.
    Ended(End),
}

impl Word {
    fn write(&self) -> String {
        match self {
            Self::Hold(until) => format!("hold {}", until.as_nanos()),
            Self::Told => "told".to_owned(),
            Self::Dismissed => "dismissed".to_owned(),
            Self::Started(pid) => format!("started {pid}"),
            Self::Failed(why) => format!("failed {why}").chars().take(WORD_BYTES / 4).collect(),
            Self::Stopped(signal) => format!("stopped {signal}"),
            Self::Killed => "killed".to_owned(),
            Self::Ended(End::Exit(code)) => format!("exited {code}"),
            Self::Ended(End::Signal(signal)) => format!("signaled {signal}"),
        }
    }

    fn read(text: &str) -> Option<Self> {
        let (word, rest) = text.split_once(' ').unwrap_or((text, ""));
        Some(match word {
            "hold" => Self::Hold(Duration::from_nanos(rest.parse().ok()?)),
            "told" => Self::Told,
            "dismissed" => Self::Dismissed,
            "started" => Self::Started(rest.parse().ok()?),
            "failed" => Self::Failed(rest.to_owned()),
            "stopped" => Self::Stopped(rest.parse().ok()?),
            "killed" => Self::Killed,
            "exited" => Self::Ended(End::Exit(rest.parse().ok()?)),
            "signaled" => Self::Ended(End::Signal(rest.parse().ok()?)),
            _ => return None,
        })
    }
}

/// One end of what they talk over: a socket that keeps messages apart.
pub(super) struct GuardianLine {
    socket: OwnedFd,
}

impl GuardianLine {
    /// Says a word, without waiting: false if the other side is gone, or does not listen.
    pub(super) fn say(&self, word: &Word) -> bool {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        retried(|| send(&self.socket, word.write().as_bytes(), flags)).is_ok()
    }

    fn say_with(&self, word: &Word, descriptor: BorrowedFd<'_>) -> io::Result<()> {
        let descriptors = [descriptor];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = SendAncillaryBuffer::new(&mut space);
        control.push(SendAncillaryMessage::ScmRights(&descriptors));
        let text = word.write();
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        sendmsg(&self.socket, &[IoSlice::new(text.as_bytes())], &mut control, flags)?;
        Ok(())
    }

    /// Waits for the next word; nothing if the other side is gone.
    pub(super) fn hear(&self) -> Option<Word> {
        self.hear_with().ok()?.map(|(word, _)| word)
    }

    /// The same, with a descriptor that came along.
    fn hear_with(&self) -> io::Result<Option<(Word, Option<OwnedFd>)>> {
        let mut bytes = [0; WORD_BYTES];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let received = retried(|| {
            let mut slices = [IoSliceMut::new(&mut bytes)];
            recvmsg(&self.socket, &mut slices, &mut control, RecvFlags::CMSG_CLOEXEC)
        })?;
        if received.bytes == 0 {
            return Ok(None);
        }
        let mut descriptors = control.drain().filter_map(|message| match message {
            RecvAncillaryMessage::ScmRights(descriptors) => Some(descriptors),
            _ => None,
        });
        let descriptor = descriptors.next().and_then(|mut descriptors| descriptors.next());
        let text = std::str::from_utf8(&bytes[..received.bytes]).ok();
        Ok(text.and_then(Word::read).map(|word| (word, descriptor)))
    }
}

/// Asks again if a signal came between.
fn retried<T>(mut call: impl FnMut() -> rustix::io::Result<T>) -> rustix::io::Result<T> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            outcome => return outcome,
        }
    }
}

/// A guardian that was started here.
pub(super) struct Guardian {
    child: Mutex<Child>,
    line: Arc<GuardianLine>,
    /// It has said that nothing of the job lives.
    has_killed: AtomicBool,
}

impl Guardian {
    /// Starts a guardian, and the command under it. The lock is valid until then, by [`now`].
    ///
    /// To be called on a thread that lives as long as the process: see `launcher.rs`.
    pub(super) fn start(
        command: &[OsString],
        environment: impl IntoIterator<Item = (&'static str, String)>,
        as_json: bool,
        grace: Duration,
        until: Duration,
    ) -> io::Result<(Self, Pid)> {
        let (ours, theirs) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        // Not by its path: the file may have been replaced since this process began.
        let mut process = Command::new("/proc/self/exe");
        process.arg0("lowkey").args([GUARD, launcher::how(as_json), &grace.as_millis().to_string()]);
        launcher::without_credentials(&mut process);
        process.args(command).envs(environment).stdin(Stdio::from(theirs)).process_group(0);
        let child = launcher::spawn_awake(&mut process)?;
        // With it goes our copy of their end: only so it is noticed that they are gone.
        drop(process);
        let line = Arc::new(GuardianLine { socket: ours });
        let guardian = Self { child: Mutex::new(child), line, has_killed: AtomicBool::new(false) };
        let line = &guardian.line;
        line.say_with(&Word::Hold(until), io::stdin().as_fd())?;
        // Nothing of the command is left to be killed if this fails: a guardian without us kills.
        let patience = until.saturating_sub(now()).max(MARGIN);
        set_socket_timeout(&line.socket, Timeout::Recv, Some(patience))?;
        let leader = match line.hear() {
            Some(Word::Started(pid)) => Pid::from_raw(pid).ok_or_else(|| io::Error::other("no process"))?,
            Some(Word::Failed(why)) => return Err(io::Error::other(why)),
            _ => return Err(io::Error::other("the command's guardian does not answer")),
        };
        set_socket_timeout(&line.socket, Timeout::Recv, None)?;
        Ok((guardian, leader))
    }

    pub(super) fn pid(&self) -> Pid {
        Pid::from_child(&self.child())
    }

    pub(super) fn line(&self) -> &Arc<GuardianLine> {
        &self.line
    }

    fn child(&self) -> std::sync::MutexGuard<'_, Child> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells it to kill all, whatever it knows of the lock.
    pub(super) fn order_kill(&self) {
        // If it does not hear it, it is killed itself.
        self.line.say(&Word::Hold(Duration::ZERO));
    }

    /// It was heard to say [`Word::Killed`].
    pub(super) fn note_killed(&self) {
        self.has_killed.store(true, Ordering::Release);
    }

    /// Whether it has said that nothing of the job lives.
    pub(super) fn has_killed(&self) -> bool {
        self.has_killed.load(Ordering::Acquire)
    }

    pub(super) fn has_ended(&self) -> bool {
        !matches!(self.child().try_wait(), Ok(None))
    }

    /// Kills it. What it guarded are children of this process then.
    pub(super) fn kill(&self) {
        let mut child = self.child();
        // It may have ended just now.
        let _ = child.kill();
        let _ = child.wait();
    }

    /// The command has ended, and nobody needs a guardian.
    pub(super) fn dismiss(&self) {
        self.line.say(&Word::Dismissed);
        let deadline = Instant::now() + DISMISSAL;
        while !self.has_ended() {
            if Instant::now() >= deadline {
                return self.kill();
            }
            thread::sleep(Duration::from_millis(1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_read_as_they_were_written() {
        for word in [
            Word::Hold(Duration::from_nanos(12_345_678_901)),
            Word::Told,
            Word::Dismissed,
            Word::Started(7),
            Word::Failed("no such file: 'a b'".into()),
            Word::Stopped(20),
            Word::Killed,
            Word::Ended(End::Exit(255)),
            Word::Ended(End::Signal(64)),
        ] {
            assert_eq!(Word::read(&word.write()), Some(word));
        }
        assert_eq!(Word::read("hold soon"), None);
    }
}
