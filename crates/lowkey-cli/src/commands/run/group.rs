//! The command's process group, whose number is the command's own.
//!
//! Invariant: whoever has a [`Group`] and lets go of it in any way but [`Group::reap`], by an error, a panic or an
//! early return, has killed it.

use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

/// How often it is looked whether anything is left of a group that is to end.
pub(super) const LOOK_INTERVAL: Duration = Duration::from_millis(20);
/// How long it may take until nothing is left after SIGKILL: only the kernel, at work for it, can hold it up.
const KILL_WAIT: Duration = Duration::from_secs(1);

/// A process group that was started here.
pub(super) struct Group {
    /// Not reaped while this exists: until then no other group can get the number.
    leader: Pid,
    is_over: bool,
}

impl Group {
    pub(super) fn new(leader: Pid) -> Self {
        Self { leader, is_over: false }
    }

    pub(super) fn leader(&self) -> Pid {
        self.leader
    }

    pub(super) fn signal(&self, signal: Signal) {
        // A group that has ended needs no signal.
        let _ = kill_process_group(self.leader, signal);
    }

    /// Ends it, whatever it thinks of that, and waits until nothing is left of it.
    pub(super) fn kill(&self) {
        self.signal(Signal::KILL);
        self.wait_until_dead();
    }

    /// After SIGKILL: waits until nothing is left.
    pub(super) fn wait_until_dead(&self) {
        let deadline = Instant::now() + KILL_WAIT;
        while self.lives() && Instant::now() < deadline {
            thread::sleep(LOOK_INTERVAL);
        }
    }

    /// Whether any process of it lives: one that only waits to be reaped does not.
    pub(super) fn lives(&self) -> bool {
        let Ok(processes) = std::fs::read_dir("/proc") else { return true };
        processes.flatten().any(|process| {
            let stat = std::fs::read_to_string(process.path().join("stat")).unwrap_or_default();
            // The name, in parentheses, may contain anything.
            let Some((_, fields)) = stat.rsplit_once(") ") else { return false };
            let mut fields = fields.split(' ');
            let (state, _parent, its_group) = (fields.next(), fields.next(), fields.next());
            let is_dead = matches!(state, Some("Z" | "X"));
            !is_dead && its_group.and_then(|text| text.parse().ok()) == Some(self.leader.as_raw_pid())
        })
    }

    /// The command has ended. What it left behind in its group is its own business.
    pub(super) fn reap(mut self) {
        while let Err(Errno::INTR) = waitid(WaitId::Pid(self.leader), WaitIdOptions::EXITED) {}
        self.is_over = true;
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if !self.is_over {
            self.kill();
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::os::unix::process::CommandExt as _;
    use std::process::Command;

    use super::*;

    /// Two processes that nobody but SIGKILL can end.
    pub(in crate::commands::run) fn stubborn() -> Group {
        let script = "trap '' TERM; sleep 1000 & sleep 1000";
        let started = Command::new("sh").args(["-c", script]).process_group(0).spawn();
        Group::new(Pid::from_child(&started.unwrap()))
    }

    #[test]
    fn whoever_lets_go_of_a_group_has_killed_it() {
        let group = stubborn();
        let observer = Group { leader: group.leader, is_over: true };
        assert!(observer.lives());
        let unwound = std::panic::catch_unwind(move || {
            let _group = group;
            panic!("a fault on purpose");
        });
        assert!(unwound.is_err());
        assert!(!observer.lives());
        observer.reap();
    }
}
