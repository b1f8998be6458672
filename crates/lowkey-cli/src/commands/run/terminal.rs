//! The terminal: the command, in a process group of its own, must be able to read it.

use std::io::IsTerminal as _;
use std::os::unix::fs::FileTypeExt as _;

use nix::sys::signal::{SigSet, Signal as NixSignal};
use rustix::process::{Pid, Signal, getpgrp, kill_process_group};
use rustix::stdio::stdin;
use rustix::termios::{tcgetpgrp, tcsetpgrp};

/// Lets this process hand the terminal on, and write to it, while another group has it. Holds for threads that
/// are made later; a command that is started does not inherit it.
pub(super) fn tolerate_background() {
    let mut signals = SigSet::empty();
    signals.add(NixSignal::SIGTTOU);
    // It is refused for signals that do not exist.
    let _ = signals.thread_block();
}

/// The terminal that this process was started on, if there is one.
pub(super) struct Terminal {
    own_group: Pid,
    command_group: Pid,
}

impl Terminal {
    pub(super) fn new(command_group: Pid) -> Self {
        Self { own_group: getpgrp(), command_group }
    }

    /// Gives the terminal to the command, if it is ours to give. Others of a pipeline (`lowkey run … | less`)
    /// may need it more: then the command gets it when it asks.
    pub(super) fn give(&self) {
        if !is_pipe("/proc/self/fd/1") {
            self.give_now();
        }
    }

    fn give_now(&self) -> bool {
        let is_ours = std::io::stdin().is_terminal() && tcgetpgrp(stdin()) == Ok(self.own_group);
        is_ours && tcsetpgrp(stdin(), self.command_group).is_ok()
    }

    fn has_command(&self) -> bool {
        std::io::stdin().is_terminal() && tcgetpgrp(stdin()) == Ok(self.command_group)
    }

    /// The command was stopped by a signal; what is said about it, if anything.
    pub(super) fn stopped(&self, signal: Signal) -> Option<&'static str> {
        match signal {
            // It reads or sets up the terminal, and may.
            Signal::TTIN | Signal::TTOU if self.has_command() || self.give_now() => {
                self.resume();
                None
            }
            // Ctrl-Z: a shell would wait for this process, not for the command.
            Signal::TSTP if self.has_command() => {
                self.resume();
                Some("a command that runs under a lock cannot be suspended: it goes on")
            }
            _ => None,
        }
    }

    fn resume(&self) {
        // A group that has ended needs no signal.
        let _ = kill_process_group(self.command_group, Signal::CONT);
    }

    /// Takes the terminal back, if the command has it.
    pub(super) fn take_back(&self) {
        if self.has_command() {
            // If it cannot be had, the shell takes it.
            let _ = tcsetpgrp(stdin(), self.own_group);
        }
    }
}

fn is_pipe(path: &str) -> bool {
    std::fs::metadata(path).is_ok_and(|file| file.file_type().is_fifo() || file.file_type().is_socket())
}
