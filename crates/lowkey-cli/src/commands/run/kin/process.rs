//! A process, as `/proc` has it.

use std::path::{Path, PathBuf};

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// What is known of a process.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Process {
    pub(super) pid: Pid,
    pub(super) parent: Option<Pid>,
    pub(super) group: Option<Pid>,
    /// It only waits to be reaped.
    pub(super) is_dead: bool,
    /// Together with the number, this names a process for good.
    pub(super) started_at: u64,
}

impl Process {
    pub(super) fn read(pid: Pid) -> Option<Self> {
        Self::parse(pid, &std::fs::read_to_string(folder(pid).join("stat")).ok()?)
    }

    fn parse(pid: Pid, stat: &str) -> Option<Self> {
        // The name, in parentheses, may contain anything.
        let (_, fields) = stat.rsplit_once(") ")?;
        let fields: Vec<&str> = fields.split(' ').collect();
        // -1 is what the kernel tells of a process that is reaped just now.
        let number = |index: usize| Pid::from_raw(fields.get(index)?.parse().ok().filter(|raw| *raw > 0)?);
        Some(Self {
            pid,
            parent: number(1),
            group: number(2),
            is_dead: matches!(fields.first(), Some(&("Z" | "X"))),
            started_at: fields.get(19)?.parse().ok()?,
        })
    }

    /// All that there are; nothing if `/proc` cannot be read. That takes a while: one that starts meanwhile may be
    /// missing, and with it all that it starts.
    pub(super) fn all() -> Option<Vec<Self>> {
        let entries = std::fs::read_dir("/proc").ok()?;
        let pids =
            entries.flatten().filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?));
        Some(pids.filter_map(Self::read).collect())
    }
}

/// Kills the process with this number, if it is the one that is meant.
pub(super) fn kill_if(pid: Pid, is_meant: impl FnOnce(&Process) -> bool) {
    // By a descriptor, so that no other process with the same number is hit. If it cannot be had, it has ended.
    let Ok(process) = pidfd_open(pid, PidfdFlags::empty()) else { return };
    if Process::read(pid).is_some_and(|process| is_meant(&process)) {
        let _ = pidfd_send_signal(process, Signal::KILL);
    }
}

/// What a process has started or adopted. Nothing if it is gone, or if the kernel keeps no such lists.
///
/// A child is in the list as soon as it exists, new ones come at the end, and one leaves it when it is reaped or adopted
/// by another. So if none leaves meanwhile, all are told that there were at the beginning.
pub(super) fn children_of(parent: Pid) -> Option<Vec<Pid>> {
    let tasks = folder(parent).join("task");
    let list = |task: &Path| std::fs::read_to_string(task.join("children"));
    let first = tasks.join(parent.as_raw_pid().to_string());
    let mut lists = list(&first).ok()?;
    for task in std::fs::read_dir(tasks).ok()?.flatten() {
        if task.path() != first {
            lists.push(' ');
            lists.push_str(&list(&task.path()).unwrap_or_default());
        }
    }
    Some(lists.split_whitespace().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)).collect())
}

fn folder(pid: Pid) -> PathBuf {
    Path::new("/proc").join(pid.as_raw_pid().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_is_just_being_reaped_is_in_no_group() {
        let pid = Pid::from_raw(4711).unwrap();
        // As the kernel tells it of one that is reaped while it looks: no parent, group and session -1.
        let rest = "-1 -1 0 -1 4194560 0 0 0 0 0 0 0 0 20 0 0 0 99 0 0";
        let process = Process::parse(pid, &format!("4711 (a) b) X 0 {rest}")).unwrap();
        assert_eq!((process.parent, process.group), (None, None));
        assert_eq!((process.is_dead, process.started_at), (true, 99));
    }
}
