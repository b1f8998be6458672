//! The terminal: the command, in a process group of its own, must be able to read it.

use std::fs::File;
use std::io::IsTerminal as _;
use std::os::unix::fs::FileTypeExt as _;

use nix::sys::signal::{SigSet, Signal as NixSignal};
use rustix::process::{Pid, Signal, getpgrp, kill_process_group};
use rustix::termios::{tcgetpgrp, tcsetpgrp};

/// Lets this process hand the terminal on, and write to it, while another group has it. Holds for threads that
/// are made later, but not for the command: see `launcher::exec`.
pub(super) fn tolerate_background() {
    let mut signals = SigSet::empty();
    signals.add(NixSignal::SIGTTOU);
    // It is refused for signals that do not exist.
    let _ = signals.thread_block();
}

/// The terminal of the session that this process belongs to, wherever its input and output go.
pub(super) struct Terminal {
    /// Nothing if the session has none.
    tty: Option<File>,
    own_group: Pid,
    command_group: Pid,
    /// The command was stopped because it wants the terminal, and the terminal was not ours to give.
    is_wanted: bool,
}

impl Terminal {
    pub(super) fn new(command_group: Pid) -> Self {
        let tty = File::options().read(true).write(true).open("/dev/tty").ok();
        Self { tty, own_group: getpgrp(), command_group, is_wanted: false }
    }

    /// Gives the terminal to the command, if it is ours to give. Others of a pipeline (`lowkey run … | less`,
    /// `cat | lowkey run …`) may need it more: then the command gets it when it asks.
    pub(super) fn give(&self) {
        if std::io::stdin().is_terminal() && !is_pipe("/proc/self/fd/1") {
            self.give_now();
        }
    }

    fn give_now(&self) -> bool {
        let ours = self.tty.as_ref().filter(|tty| tcgetpgrp(tty) == Ok(self.own_group));
        ours.is_some_and(|tty| tcsetpgrp(tty, self.command_group).is_ok())
    }

    fn has_command(&self) -> bool {
        self.tty.as_ref().is_some_and(|tty| tcgetpgrp(tty) == Ok(self.command_group))
    }

    /// The command was stopped by a signal; what is said about it, if anything.
    pub(super) fn stopped(&mut self, signal: Signal) -> Option<&'static str> {
        match signal {
            // It reads or sets up the terminal, and may, or may when this job comes to the foreground.
            Signal::TTIN | Signal::TTOU => {
                self.is_wanted = true;
                self.give_if_wanted();
                self.is_wanted.then_some(
                    "the command waits for the terminal, and holds the lock meanwhile: bring it to the foreground, \
                     or end it",
                )
            }
            // Ctrl-Z: a shell would wait for this process, not for the command.
            Signal::TSTP if self.tty.is_some() => {
                self.resume();
                Some("a command that runs under a lock cannot be suspended: it goes on")
            }
            _ => None,
        }
    }

    /// True while the command waits for the terminal. A shell that brings a job to the foreground does not tell the
    /// job so if it was not stopped, and this process never is: it has to look.
    pub(super) fn is_wanted(&self) -> bool {
        self.is_wanted
    }

    /// Gives the terminal to a command that waits for it, if that is possible now.
    pub(super) fn give_if_wanted(&mut self) {
        if self.is_wanted && (self.has_command() || self.give_now()) {
            self.is_wanted = false;
            self.resume();
        }
    }

    fn resume(&self) {
        // A group that has ended needs no signal.
        let _ = kill_process_group(self.command_group, Signal::CONT);
    }

    /// Takes the terminal back, if the command has it.
    pub(super) fn take_back(&self) {
        if let Some(tty) = self.tty.as_ref().filter(|_| self.has_command()) {
            // If it cannot be had, the shell takes it.
            let _ = tcsetpgrp(tty, self.own_group);
        }
    }
}

fn is_pipe(path: &str) -> bool {
    std::fs::metadata(path).is_ok_and(|file| file.file_type().is_fifo() || file.file_type().is_socket())
}
