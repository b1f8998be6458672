//! All processes of a job: the command's process group, and every descendant, in whatever group or session.
//!
//! A process that was left by its parent becomes the child of the nearest ancestor that asked for that
//! (PR_SET_CHILD_SUBREAPER). Both the guardian and `lowkey run` ask, so no descendant gets lost while one of them lives.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{
    Pid, PidfdFlags, Signal, getpid, kill_process_group, pidfd_open, pidfd_send_signal, set_child_subreaper,
};

/// How often it is looked whether anything is left of a job that is to end.
pub(super) const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// A process, as `/proc` has it.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Process {
    pid: Pid,
    parent: Option<Pid>,
    group: Option<Pid>,
    /// It only waits to be reaped.
    is_dead: bool,
    /// Together with the number, this names a process for good.
    started_at: u64,
}

impl Process {
    fn read(pid: Pid) -> Option<Self> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_pid())).ok()?;
        // The name, in parentheses, may contain anything.
        let (_, fields) = stat.rsplit_once(") ")?;
        let fields: Vec<&str> = fields.split(' ').collect();
        let number = |index: usize| Pid::from_raw(fields.get(index)?.parse().ok()?);
        Some(Self {
            pid,
            parent: number(1),
            group: number(2),
            is_dead: matches!(fields.first(), Some(&("Z" | "X"))),
            started_at: fields.get(19)?.parse().ok()?,
        })
    }

    /// All that there are; nothing if `/proc` cannot be read.
    fn all() -> Option<Vec<Self>> {
        let entries = std::fs::read_dir("/proc").ok()?;
        let pids =
            entries.flatten().filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?));
        Some(pids.filter_map(Self::read).collect())
    }

    fn kill(&self) {
        // By a descriptor, so that no other process with the same number is hit. If it cannot be had, it has ended.
        let Ok(process) = pidfd_open(self.pid, PidfdFlags::empty()) else { return };
        if Self::read(self.pid).is_some_and(|now| now.started_at == self.started_at) {
            let _ = pidfd_send_signal(process, Signal::KILL);
        }
    }
}

/// The processes of one job, as seen by an ancestor of them all: the process that this is made in.
pub(super) struct Kin {
    /// The command, which leads the group. Not reaped while this is used: until then no other group gets the number.
    leader: Pid,
    /// The ancestor; nothing if only the group counts.
    root: Option<Pid>,
    /// A descendant that is not one of the job, although what it has started is.
    guardian: Option<Pid>,
    /// Descendants that have nothing to do with the job.
    strangers: Mutex<Vec<Pid>>,
}

/// Has every descendant that its parent left become a child of this process.
pub(super) fn adopt_orphans() -> std::io::Result<()> {
    Ok(set_child_subreaper(Some(getpid()))?)
}

/// What this process has started, or adopted.
pub(super) fn children() -> Vec<Pid> {
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let lists = tasks.map(|task| std::fs::read_to_string(task.path().join("children")).unwrap_or_default());
    let pids = |list: String| -> Vec<Pid> {
        list.split_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)).collect()
    };
    lists.flat_map(pids).collect()
}

impl Kin {
    pub(super) fn new(leader: Pid, guardian: Option<Pid>, strangers: Vec<Pid>) -> Self {
        Self { leader, root: Some(getpid()), guardian, strangers: Mutex::new(strangers) }
    }

    /// The group alone: tests of one process have many children.
    #[cfg(test)]
    pub(super) fn of_group(leader: Pid) -> Self {
        Self { root: None, ..Self::new(leader, None, Vec::new()) }
    }

    pub(super) fn leader(&self) -> Pid {
        self.leader
    }

    /// Leaves a process, and what it will start, alone.
    pub(super) fn spare(&self, stranger: Pid) {
        self.strangers.lock().unwrap_or_else(PoisonError::into_inner).push(stranger);
    }

    pub(super) fn signal_group(&self, signal: Signal) {
        // A group that has ended needs no signal.
        let _ = kill_process_group(self.leader, signal);
    }

    /// Whether the command has ended, and waits to be reaped.
    pub(super) fn leader_has_ended(&self) -> bool {
        Process::read(self.leader).is_none_or(|leader| leader.is_dead)
    }

    /// Whether any process of the job lives: one that only waits to be reaped does not.
    pub(super) fn lives(&self) -> bool {
        self.living().is_none_or(|living| !living.is_empty())
    }

    /// Kills all, again and again until nothing lives; gives up when the time is over. Only the kernel, at work for one
    /// of them, or one that makes new ones very fast, can hold that up.
    pub(super) fn kill(&self, patience: Duration) {
        let deadline = Instant::now() + patience;
        // Reading `/proc` takes a moment, in which a process may pass its place on to a new one: so it is read twice.
        let mut is_second = false;
        loop {
            self.signal_group(Signal::KILL);
            let living = self.living();
            let is_empty = living.as_ref().is_some_and(Vec::is_empty);
            living.iter().flatten().for_each(Process::kill);
            if is_empty && is_second || Instant::now() >= deadline {
                return;
            }
            is_second = is_empty;
            if !is_empty {
                thread::sleep(Duration::from_millis(2));
            }
        }
    }

    /// Those that live; nothing if nobody can say.
    fn living(&self) -> Option<Vec<Process>> {
        let all = Process::all()?;
        let mut by_parent: BTreeMap<Option<i32>, Vec<Process>> = BTreeMap::new();
        for process in &all {
            by_parent.entry(process.parent.map(Pid::as_raw_pid)).or_default().push(*process);
        }
        let strangers = self.strangers.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let (mut kin, mut parents) = (Vec::new(), Vec::from_iter(self.root));
        while let Some(parent) = parents.pop() {
            for child in by_parent.remove(&Some(parent.as_raw_pid())).unwrap_or_default() {
                if strangers.contains(&child.pid) {
                    continue;
                }
                parents.push(child.pid);
                kin.push(child);
            }
        }
        let in_group = all.into_iter().filter(|process| process.group == Some(self.leader));
        let strays: Vec<Process> = in_group.filter(|process| !kin.contains(process)).collect();
        kin.extend(strays);
        kin.retain(|process| !process.is_dead && Some(process.pid) != self.guardian);
        Some(kin)
    }
}
