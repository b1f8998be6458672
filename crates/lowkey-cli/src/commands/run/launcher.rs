//! How the command is started so that it cannot outlive the process that started it.
//!
//! The kernel can kill a process when its parent ends (PR_SET_PDEATHSIG), but only the process itself can ask
//! for that, between its start and the command's. So `lowkey` starts itself once more, under a name that no
//! help mentions; that process asks for it, and then becomes the command.
//!
//! What that covers: the command itself, if its parent, the guardian, is killed. The rest is the guardian's, or in its
//! place `lowkey run`'s (`guardian.rs`). What it does not cover: a command that changes its credentials when it starts
//! (setuid, file capabilities), for which the kernel forgets about it.

use std::ffi::{OsStr, OsString};
use std::io::{self, ErrorKind};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, ExitCode};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use lowkey_client::LockGuard;
use nix::sys::signal::{SigSet, Signal as NixSignal};
use rustix::process::{Pid, Signal, getpid, getppid, kill_process, set_parent_process_death_signal};

use super::kin::children;
use crate::exit::CommandFailure;

/// The name under which `lowkey` becomes a command.
pub(crate) const EXEC: &str = "__exec";

/// How often it is looked after a process that is being started.
const WAKE_INTERVAL: Duration = Duration::from_millis(20);

/// How errors are told.
const AS_JSON: &str = "json";
const AS_TEXT: &str = "text";

/// As shells have it.
const EXIT_NOT_FOUND: u8 = 127;
const EXIT_NOT_EXECUTABLE: u8 = 126;

/// What a command may know of the lock that it runs under.
pub(super) fn environment(guard: &LockGuard) -> [(&'static str, String); 4] {
    [
        ("LOWKEY_LOCK", guard.name().to_owned()),
        ("LOWKEY_TOKEN", guard.token().to_string()),
        ("LOWKEY_MODE", guard.fence().mode().to_string()),
        ("LOWKEY_LEASE", guard.lease_id().to_string()),
    ]
}

/// Who may do what is the business of `lowkey run`, not of its command.
const CREDENTIALS: [&str; 4] = ["LOWKEY_CA", "LOWKEY_CERT", "LOWKEY_KEY", "LOWKEY_AUTH_FILE"];

/// Keeps from a command by which credentials this process talks to the service.
pub(super) fn without_credentials(command: &mut Command) -> &mut Command {
    CREDENTIALS.iter().fold(command, |command, name| command.env_remove(name))
}

/// What stands in front of a command so that it dies with this process, behind `/proc/self/exe`.
///
/// To be used on a thread that lives as long as the command is to: the kernel takes that thread for the parent.
pub(crate) fn args(as_json: bool) -> [String; 3] {
    [EXEC.to_owned(), std::process::id().to_string(), how(as_json).to_owned()]
}

/// How errors are told, as one word.
pub(super) fn how(as_json: bool) -> &'static str {
    if as_json { AS_JSON } else { AS_TEXT }
}

/// The other way round.
pub(super) fn is_json(how: &OsStr) -> bool {
    how == AS_JSON
}

/// Starts a process, and sees to it that it does start.
///
/// For a moment it belongs to the group of this process, and a ctrl-Z that comes then stops it, while this thread
/// waits for it in the kernel. So another one wakes it.
pub(super) fn spawn_awake(command: &mut Command) -> io::Result<Child> {
    let is_started = AtomicBool::new(false);
    thread::scope(|scope| {
        let waker = thread::Builder::new().name("waker".into()).spawn_scoped(scope, || {
            while !is_started.load(Ordering::Acquire) {
                thread::park_timeout(WAKE_INTERVAL);
                let children = children();
                // Once it has started, it may be stopped by whoever wants that.
                if !is_started.load(Ordering::Acquire) {
                    children.into_iter().for_each(wake);
                }
            }
        })?;
        let child = command.spawn();
        is_started.store(true, Ordering::Release);
        waker.thread().unpark();
        child
    })
}

fn wake(child: Pid) {
    // It may have failed to start just now.
    let _ = kill_process(child, Signal::CONT);
}

/// The other side: becomes the command. The arguments are the parent's number, how errors are told, and the command.
pub(crate) fn exec(mut args: impl Iterator<Item = OsString>) -> ExitCode {
    let parent = args.next().and_then(|arg| arg.to_str()?.parse().ok()).and_then(Pid::from_raw);
    let as_json = args.next().is_some_and(|arg| is_json(&arg));
    let Some(command) = args.next() else {
        return ExitCode::from(crate::exit::USAGE);
    };
    // The guardian blocks all signals, and `lowkey run` one of the terminal. A command inherits that, and is to have none of it.
    let _ = SigSet::empty().thread_set_mask();
    if let Err(error) = set_parent_process_death_signal(Some(Signal::KILL)) {
        let line = format!("the command could not be bound to this process: {error}");
        return CommandFailure::new(EXIT_NOT_EXECUTABLE, line).report(as_json);
    }
    // The parent may have ended before that was asked for.
    if getppid() != parent {
        // It cannot fail: a process may always end itself.
        let _ = kill_process(getpid(), Signal::KILL);
    }
    let error = Command::new(&command).args(args).exec();
    // For the command this signal was made to end whoever writes where nobody reads. There is no command.
    let mut signals = SigSet::empty();
    signals.add(NixSignal::SIGPIPE);
    let _ = signals.thread_block();
    let is_missing = error.kind() == ErrorKind::NotFound;
    let code = if is_missing { EXIT_NOT_FOUND } else { EXIT_NOT_EXECUTABLE };
    CommandFailure::new(code, format!("cannot run {}: {error}", command.display())).report(as_json)
}
