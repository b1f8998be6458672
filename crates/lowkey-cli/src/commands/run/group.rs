//! The processes of the command, and their guardian.
//!
//! Invariant: a [`ProcessGroup`] that is dropped in any way but [`ProcessGroup::reap`], by an error, a panic or an early return, has
//! been killed.

use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, waitid};

use super::guardian::{End, GuardianLine};
use super::kin::Kin;

/// How long it may take until nothing is left after SIGKILL, without a word about it.
const KILL_WAIT: Duration = Duration::from_secs(1);

/// A command that was started here, with all that it started.
pub(super) struct ProcessGroup {
    kin: Arc<Kin>,
    is_over: bool,
}

impl ProcessGroup {
    pub(super) fn new(kin: Kin) -> Self {
        Self { kin: Arc::new(kin), is_over: false }
    }

    pub(super) fn kin(&self) -> &Arc<Kin> {
        &self.kin
    }

    /// How to talk to the guardian, if there is one.
    pub(super) fn guardian_line(&self) -> Option<Arc<GuardianLine>> {
        self.kin.guardian().map(|guardian| Arc::clone(guardian.line()))
    }

    pub(super) fn leader(&self) -> Pid {
        self.kin.leader()
    }

    pub(super) fn signal(&self, signal: Signal) {
        self.kin.signal_group(signal);
    }

    /// Kills it, and does not return before nothing is left of it: until then the lock must not go back. If that takes
    /// long, `tell` is told of those that live.
    pub(super) fn kill(&self, tell: impl FnOnce(&[Pid])) {
        if self.kin.kill(KILL_WAIT) {
            return;
        }
        tell(&self.kin.seen());
        while !self.kin.kill(KILL_WAIT) {}
    }

    /// Kills the guardian, which does not answer any more; tells how the command ended, if it has.
    pub(super) fn do_without_guardian(&self) -> Option<End> {
        self.kin.guardian()?.kill();
        self.end_of_leader()
    }

    /// How the command ended, if it has, and if the guardian is gone: only then the command is a child of this process.
    pub(super) fn end_of_leader(&self) -> Option<End> {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT | WaitIdOptions::NOHANG;
        waitid(WaitId::Pid(self.leader()), options).ok()?.and_then(|status| End::of(&status))
    }

    /// The command has ended. What it left behind is its own business.
    pub(super) fn reap(mut self) {
        if let Some(guardian) = self.kin.guardian() {
            guardian.dismiss();
        }
        // Without a guardian it is a child of this process; otherwise the guardian has reaped it.
        while let Err(Errno::INTR) = waitid(WaitId::Pid(self.leader()), WaitIdOptions::EXITED) {}
        self.is_over = true;
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        if !self.is_over {
            self.kill(|_| {});
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::os::unix::process::CommandExt as _;
    use std::process::Command;

    use super::*;

    /// Two processes that nobody but SIGKILL can end.
    pub(in crate::commands::run) fn stubborn() -> ProcessGroup {
        let script = "trap '' TERM; sleep 1000 & sleep 1000";
        let started = Command::new("sh").args(["-c", script]).process_group(0).spawn();
        ProcessGroup::new(Kin::of_group(Pid::from_child(&started.unwrap())))
    }

    #[test]
    fn a_group_that_is_dropped_is_killed() {
        let group = stubborn();
        let kin = Arc::clone(group.kin());
        assert!(kin.lives());
        let unwound = std::panic::catch_unwind(std::panic::AssertUnwindSafe(move || {
            let _group = group;
            panic!("a fault on purpose");
        }));
        assert!(unwound.is_err());
        let left = kin.leader();
        assert!(kin.leader_has_ended());
        while let Err(Errno::INTR) = waitid(WaitId::Pid(left), WaitIdOptions::EXITED) {}
    }
}
