//! All processes of a job: the command's process group, and every descendant, in whatever group or session.
//!
//! A process that was left by its parent becomes the child of the nearest ancestor that asked for that
//! (PR_SET_CHILD_SUBREAPER). Both the guardian and `lowkey run` ask, so no descendant gets lost while one of them lives.
//!
//! **When nothing lives.** To look at all processes one by one proves nothing: a process may start another, behind the
//! place that is being looked at, and end before it is met itself. But a living process has a living parent, up to the
//! ancestor here. So nothing lives if no child of the ancestor does, and that the kernel answers at once
//! ([`no_child_lives`]).
//!
//! **Why the killing ends.** A process that SIGKILL was sent to starts nothing any more, even if it has not ended yet.
//! So each is killed first, and then its children are looked up, which are final or, if it has ended, children of the
//! ancestor. This goes on without a pause as long as any new one is met. One that starts the next escapes only if it
//! does so between its adoption and the next look at one short list; a chain must win that race every time, and it is
//! run thousands of times a second. There is no use for SIGSTOP: it would come no sooner than SIGKILL.
//!
//! Invariant: [`Kin::kill`] says true only if nothing lives.

mod process;

use std::collections::{BTreeMap, HashSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, getpid, kill_process, kill_process_group, set_child_subreaper, waitid,
};

use self::process::{Process, children_of, kill_if};
use super::guardian::Guardian;

/// How often it is looked whether anything is left of a job that is to end.
pub(super) const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// How long the guardian may take to kill all; then it is done without it.
const GUARDIAN_PATIENCE: Duration = Duration::from_millis(200);
/// The pause after a look that met nobody new: those that were killed need a moment to end.
const FIRST_PAUSE: Duration = Duration::from_micros(200);
/// The same after many looks: some cannot be killed.
const LAST_PAUSE: Duration = Duration::from_millis(20);

/// The processes of one job, as seen by an ancestor of them all: the process that this is made in.
pub(super) struct Kin {
    /// The command, which leads the group. Not reaped while this is used: until then no other group gets the number.
    leader: Pid,
    /// The ancestor; nothing if only the group counts.
    root: Option<Pid>,
    /// A child of the ancestor that is not one of the job, although what it has started is. Nothing in the guardian itself.
    guardian: Option<Guardian>,
    /// Children that have nothing to do with the job. Locked while others are killed and reaped.
    spared: Mutex<Vec<Pid>>,
}

/// What came of one look at all.
struct Look {
    nothing_lives: bool,
    /// Somebody was met for the first time.
    is_news: bool,
}

/// Has every descendant that its parent left become a child of this process.
pub(super) fn adopt_orphans() -> std::io::Result<()> {
    Ok(set_child_subreaper(Some(getpid()))?)
}

/// What this process has started, or adopted.
pub(super) fn children() -> Vec<Pid> {
    children_of(getpid()).unwrap_or_default()
}

/// The kernel's word that all children of this process have ended, reaped or not.
fn no_child_lives() -> bool {
    // If it is not asked for those that have ended, it says that there is nobody to wait for.
    let alive = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    matches!(waitid(WaitId::All, alive), Err(Errno::CHILD))
}

impl Kin {
    pub(super) fn new(leader: Pid, guardian: Option<Guardian>, spared: Vec<Pid>) -> Self {
        Self { leader, root: Some(getpid()), guardian, spared: Mutex::new(spared) }
    }

    /// The group alone: tests of one process have many children.
    #[cfg(test)]
    pub(super) fn of_group(leader: Pid) -> Self {
        Self { root: None, ..Self::new(leader, None, Vec::new()) }
    }

    pub(super) fn leader(&self) -> Pid {
        self.leader
    }

    pub(super) fn guardian(&self) -> Option<&Guardian> {
        self.guardian.as_ref()
    }

    /// Leaves a process, and what it will start, alone.
    pub(super) fn spare(&self, stranger: Pid) {
        self.spared().push(stranger);
    }

    fn spared(&self) -> MutexGuard<'_, Vec<Pid>> {
        self.spared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn signal_group(&self, signal: Signal) {
        // A group that has ended needs no signal.
        let _ = kill_process_group(self.leader, signal);
    }

    /// Whether the command has ended, and waits to be reaped.
    pub(super) fn leader_has_ended(&self) -> bool {
        Process::read(self.leader).is_none_or(|leader| leader.is_dead)
    }

    /// Whether any process of the job is seen to live: one that only waits to be reaped does not. That none is seen
    /// proves nothing.
    pub(super) fn lives(&self) -> bool {
        self.living(&self.spared()).is_none_or(|living| !living.is_empty())
    }

    /// Those that are seen to live.
    pub(super) fn seen(&self) -> Vec<Pid> {
        self.living(&self.spared()).into_iter().flatten().map(|process| process.pid).collect()
    }

    /// Kills all, again and again until nothing lives; false if that could not be had in time. Only the kernel, at work for
    /// one of them, or one that this user may not kill, can hold it up.
    pub(super) fn kill(&self, patience: Duration) -> bool {
        let deadline = Instant::now() + patience;
        let (mut met, mut pause) = (HashSet::new(), FIRST_PAUSE);
        if self.guardian.as_ref().is_some_and(|guardian| self.guardian_kills(guardian)) {
            return true;
        }
        loop {
            let look = self.look(&mut met);
            if look.nothing_lives || Instant::now() >= deadline {
                return look.nothing_lives;
            }
            if look.is_news {
                pause = FIRST_PAUSE;
            } else {
                thread::sleep(pause);
                pause = (pause * 2).min(LAST_PAUSE);
            }
        }
    }

    /// Has the guardian kill all: it goes on with that should this process be killed or stopped. If it does not say soon
    /// that nothing lives it is killed itself, and what it guarded are children of this process.
    fn guardian_kills(&self, guardian: &Guardian) -> bool {
        guardian.order_kill();
        let deadline = Instant::now() + GUARDIAN_PATIENCE;
        while !guardian.has_killed() {
            if guardian.has_ended() || Instant::now() >= deadline {
                guardian.kill();
                return false;
            }
            // It may stand still, so this does not wait for it.
            self.look(&mut HashSet::new());
            thread::sleep(FIRST_PAUSE);
        }
        true
    }

    /// Kills all that are met, from the top, and reaps; `met` are those of earlier looks.
    fn look(&self, met: &mut HashSet<Pid>) -> Look {
        let spared = self.spared();
        self.signal_group(Signal::KILL);
        let guardian = self.guardian.as_ref().filter(|guardian| !guardian.has_ended()).map(Guardian::pid);
        let Some((root, children)) = self.root.and_then(|root| Some((root, children_of(root)?))) else {
            return self.look_at_all(&spared);
        };
        let mut is_news = false;
        let is_kin = |pid: &Pid| !spared.contains(pid) && Some(*pid) != guardian;
        let mut below: Vec<Pid> = Vec::from_iter(guardian);
        for child in children.into_iter().filter(is_kin) {
            // Its number is its own until it is reaped, which is done below and nowhere else.
            let _ = kill_process(child, Signal::KILL);
            is_news |= met.insert(child);
            below.push(child);
        }
        while let Some(parent) = below.pop() {
            for child in children_of(parent).unwrap_or_default() {
                kill_if(child, |now| now.parent == Some(parent) || now.parent == Some(root));
                is_news |= met.insert(child);
                below.push(child);
            }
        }
        let nothing_lives = guardian.is_none() && self.nothing_lives(root, &spared, met);
        Look { nothing_lives, is_news }
    }

    /// Whether no child of the ancestor lives but those that are spared; reaps those that have ended.
    fn nothing_lives(&self, root: Pid, spared: &[Pid], met: &mut HashSet<Pid>) -> bool {
        if no_child_lives() {
            return true;
        }
        // If others are spared, their list is proof as well: nobody leaves it while it is read, for only this reaps. All
        // that had ended before are gone from it, but for the command.
        let ended = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
        let leader = waitid(WaitId::Pid(self.leader), ended | WaitIdOptions::NOWAIT);
        let leader_has_ended = matches!(leader, Ok(Some(_)) | Err(Errno::CHILD));
        let Some(children) = children_of(root) else { return false };
        let mut is_alone = true;
        for child in children.into_iter().filter(|child| !spared.contains(child)) {
            if child == self.leader {
                is_alone &= leader_has_ended;
                continue;
            }
            is_alone = false;
            if let Ok(Some(_)) = waitid(WaitId::Pid(child), ended) {
                met.remove(&child);
            }
        }
        is_alone
    }

    /// The same, where the kernel keeps no lists of children.
    fn look_at_all(&self, spared: &[Pid]) -> Look {
        let living = self.living(spared);
        for process in living.iter().flatten() {
            kill_if(process.pid, |now| now.started_at == process.started_at);
        }
        // Without lists there is no proof if others are spared: then this must do.
        let is_empty = living.is_some_and(|living| living.is_empty());
        let is_proven = self.root.is_none() || !spared.is_empty() || no_child_lives();
        Look { nothing_lives: is_empty && is_proven, is_news: false }
    }

    /// Those that are seen to live; nothing if nobody can say.
    fn living(&self, spared: &[Pid]) -> Option<Vec<Process>> {
        let all = Process::all()?;
        let mut by_parent: BTreeMap<Option<i32>, Vec<Process>> = BTreeMap::new();
        for process in &all {
            by_parent.entry(process.parent.map(Pid::as_raw_pid)).or_default().push(*process);
        }
        let (mut kin, mut parents) = (Vec::new(), Vec::from_iter(self.root));
        while let Some(parent) = parents.pop() {
            for child in by_parent.remove(&Some(parent.as_raw_pid())).unwrap_or_default() {
                if spared.contains(&child.pid) {
                    continue;
                }
                parents.push(child.pid);
                kin.push(child);
            }
        }
        let in_group = all.into_iter().filter(|process| process.group == Some(self.leader));
        let strays: Vec<Process> = in_group.filter(|process| !kin.contains(process)).collect();
        kin.extend(strays);
        let guardian = self.guardian.as_ref().map(Guardian::pid);
        kin.retain(|process| !process.is_dead && Some(process.pid) != guardian);
        Some(kin)
    }
}
