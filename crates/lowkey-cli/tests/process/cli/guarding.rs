//! What `lowkey run` starts is dead before the next holder begins, whatever happens to `lowkey run` itself.

use std::path::Path;

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::cli::running::{one_node, written};
use crate::cli::{Running, Service, lives};
use crate::harness::{Node, eventually};

/// How the command starts those that write.
const SHAPES: [(&str, &str); 4] = [
    ("a shell that has more to do", "sh ./writer; true"),
    ("in the background", "sh ./writer & wait; true"),
    ("in a session of its own", "setsid sh ./writer & wait; true"),
    ("a daemon, in a session of its own, left by its parent", "(setsid sh ./writer &); sleep 1000; true"),
];

/// A job whose grandchild writes the time to a file, again and again, and is deaf to SIGTERM.
struct Job {
    folder: TempDir,
    running: Running,
    service: Service,
    _node: Node,
}

impl Job {
    fn start(shape: &str) -> Self {
        let (folder, node, service) = one_node();
        let writer = "trap '' TERM HUP INT; echo $$ > pid; while :; do date +%s%N >> log; sleep 0.005; done";
        std::fs::write(folder.path().join("writer"), writer).unwrap();
        let mut command = service.command(&["run", "a", "--ttl", "2s", "--", "sh", "-c", shape]);
        let running = Running::start(command.current_dir(folder.path()));
        written(&folder.path().join("log"));
        Self { folder, running, service, _node: node }
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.folder.path().join(name)
    }

    /// Has another take the lock, and checks that nobody of the job wrote since.
    fn next_holder_is_alone(&self) {
        let granted = self.path("granted");
        let script = format!("date +%s%N > {}", granted.display());
        let next = self.service.start(&["run", "a", "--", "sh", "-c", &script]);
        let granted: u64 = written(&granted).trim().parse().unwrap();
        assert!(!lives(&written(&self.path("pid"))), "the writer lives beside the next holder");
        assert_eq!(next.done().code, Some(0));
        let log = std::fs::read_to_string(self.path("log")).unwrap();
        let last: u64 = log.lines().last().unwrap().parse().unwrap();
        assert!(last < granted, "written {} ms after the next grant", (last - granted) / 1_000_000);
    }
}

#[test]
fn all_that_the_command_started_is_dead_before_the_next_grant_when_run_is_killed() {
    for (name, shape) in SHAPES {
        println!("{name}");
        let mut job = Job::start(shape);
        job.running.signal(Signal::KILL);
        eventually("it is killed", || job.running.has_ended().then_some(()));
        // At once, and not when the time is over.
        let writer = written(&job.path("pid"));
        eventually("the writer is killed", || (!lives(&writer)).then_some(()));
        job.next_holder_is_alone();
    }
}

#[test]
fn all_that_the_command_started_is_dead_before_the_next_grant_when_run_is_stopped() {
    for (name, shape) in SHAPES {
        println!("{name}");
        let job = Job::start(shape);
        job.running.signal(Signal::STOP);
        job.next_holder_is_alone();
        job.running.signal(Signal::CONT);
        let done = job.running.done();
        assert_eq!(done.code, Some(76), "{done:?}");
        assert!(done.stderr.contains("cannot be kept"), "{done:?}");
    }
}

/// A chain of processes: each writes, starts the next one, and ends. All are in a session of their own, deaf to
/// SIGTERM, and each lives for a moment only, so nobody who looks at all processes one by one may meet any.
const COMET: &str = "trap '' TERM HUP INT
comet() { echo >> log || exit; i=0; while [ $i -lt $1 ]; do i=$((i + 1)); done; comet $1 & exit; }
comet $1";

/// Each lives for so many turns of a loop: less than a millisecond, and a few of them.
const COMETS: &str = "for turns in 1 500 3000; do (setsid sh ./comet $turns &); done; sleep 1000; true";

/// What befalls `lowkey run` or its guardian.
#[derive(Clone, Copy, Debug)]
enum Blow {
    RunIsKilled,
    RunIsStopped,
    GuardianIsKilled,
    GuardianIsStopped,
    LockIsRevoked,
}

#[test]
fn a_chain_of_processes_that_start_each_other_is_dead_before_the_next_grant() {
    use Blow::{GuardianIsKilled, GuardianIsStopped, LockIsRevoked, RunIsKilled, RunIsStopped};
    for blow in [RunIsKilled, RunIsStopped, GuardianIsKilled, GuardianIsStopped, LockIsRevoked] {
        println!("{blow:?}");
        let (folder, node, service) = one_node();
        let path = |name: &str| folder.path().join(name);
        std::fs::write(path("comet"), COMET).unwrap();
        let mut command = service.command(&["run", "a", "--ttl", "2s", "--", "sh", "-c", COMETS]);
        let running = Running::start(command.current_dir(folder.path()));
        written(&path("log"));
        let [guardian] = children(running.pid())[..] else { panic!("one guardian") };
        match blow {
            RunIsKilled => running.signal(Signal::KILL),
            RunIsStopped => running.signal(Signal::STOP),
            GuardianIsKilled => kill_process(guardian, Signal::KILL).unwrap(),
            GuardianIsStopped => {
                kill_process(guardian, Signal::STOP).unwrap();
                // No renewal gets through until the lock's time is over.
                node.pause();
                eventually("run kills the guardian", || children(running.pid()).is_empty().then_some(()));
                node.signal(Signal::CONT);
            }
            // The next holder may begin before this one hears of it, but not when this one has ended.
            LockIsRevoked => {
                service.ok(&["revoke", "a", "--yes"]);
                eventually("run ends", || children(running.pid()).is_empty().then_some(()));
            }
        }
        let script = "wc -c < log > granted; sleep 0.3; wc -c < log > later";
        let mut next = service.command(&["run", "a", "--", "sh", "-c", script]);
        assert_eq!(Running::start(next.current_dir(folder.path())).done().code, Some(0));
        let [granted, later] = ["granted", "later"].map(|name| written(&path(name)));
        assert_eq!(granted, later, "it writes beside the next holder");
        running.signal(Signal::CONT);
        running.done();
    }
}

/// A job that is told to end because the service did not answer, and that goes on until it may end. The service answers
/// again, so its lock is renewed.
fn told_to_end_in_vain(on_lost: &[&str]) -> (TempDir, Node, Service, Running) {
    let (folder, node, service) = one_node();
    let script = "trap 'echo told' TERM; echo runs; until [ -e go ]; do sleep 0.02; done";
    let words = ["run", "a", "--ttl", "8s", "--kill-grace", "2s"];
    let mut command = service.command(&[&words, on_lost, &["--", "sh", "-c", script]].concat());
    let running = Running::start(command.current_dir(folder.path()));
    running.wait_for_lines(1);
    node.pause();
    running.wait_for_lines(2);
    node.signal(Signal::CONT);
    (folder, node, service, running)
}

#[test]
fn after_a_loss_the_lock_is_given_back_as_soon_as_the_command_is_dead() {
    let (folder, _node, service, running) = told_to_end_in_vain(&[]);
    std::fs::write(folder.path().join("go"), "").unwrap();
    let done = running.done();
    assert_eq!(done.code, Some(76), "{done:?}");
    assert!(done.stderr.contains("cannot be kept"), "{done:?}");
    service.ok(&["run", "a", "--try", "--", "true"]);
}

#[test]
fn a_lock_whose_time_is_over_is_given_back_to_a_service_that_stood_still() {
    let (folder, node, service) = one_node();
    let script = "trap '' TERM; echo $$ > pid; while :; do sleep 0.02; done";
    let mut command = service.command(&["run", "a", "--ttl", "5s", "--", "sh", "-c", script]);
    let running = Running::start(command.current_dir(folder.path()));
    let pid = written(&folder.path().join("pid"));
    node.pause();
    eventually("the command is killed", || (!lives(&pid)).then_some(()));
    // The service gives leases the time back in which it stood still.
    node.signal(Signal::CONT);
    let done = running.done();
    assert_eq!(done.code, Some(76), "{done:?}");
    service.ok(&["run", "a", "--try", "--", "true"]);
}

/// The first renewal would come after 200 s.
#[test]
fn a_command_whose_lock_is_taken_by_force_is_ended_at_once() {
    for force in ["release", "revoke"] {
        let (folder, _node, service) = one_node();
        let script = "echo $$ > pid; sleep 1000; true";
        let mut command = service.command(&["run", "a", "--ttl", "600s", "--", "sh", "-c", script]);
        let running = Running::start(command.current_dir(folder.path()));
        let pid = written(&folder.path().join("pid"));
        let holder = &service.json(&["get", "a"])["holders"][0];
        let [lease, token] =
            ["leaseId", "fencingToken"].map(|number| holder[number].as_str().unwrap().to_owned());
        match force {
            "release" => service.ok(&["release", "a", "--lease", &lease, "--token", &token]),
            _ => service.ok(&["revoke", "a", "--yes"]),
        };
        let done = running.done();
        assert_eq!(done.code, Some(76), "{force}: {done:?}");
        assert!(!lives(&pid), "{force}");
    }
}

#[test]
fn what_is_done_on_a_loss_does_not_have_the_lock_and_ends_in_time() {
    let on_lost = "echo $$ > on-lost; sleep 1000; true";
    let (folder, _node, service, running) =
        told_to_end_in_vain(&["--on-lost", on_lost, "--on-lost-limit", "6s"]);
    let pid = written(&folder.path().join("on-lost"));
    std::fs::write(folder.path().join("go"), "").unwrap();
    service.ok(&["run", "a", "--wait", "3s", "--", "true"]);
    assert!(lives(&pid), "it goes on without the lock");
    let done = running.done();
    assert_eq!(done.code, Some(76), "{done:?}");
    assert!(done.stderr.contains("--on-lost was killed"), "{done:?}");
    assert!(!lives(&pid));
}

/// The processes that a process has started, and that live.
fn children(of: Pid) -> Vec<Pid> {
    let of = of.as_raw_pid();
    let text = std::fs::read_to_string(format!("/proc/{of}/task/{of}/children")).unwrap_or_default();
    text.split_whitespace().map(|pid| Pid::from_raw(pid.parse().unwrap()).unwrap()).collect()
}

#[test]
fn a_guardian_that_is_killed_takes_the_command_and_all_it_started_with_it() {
    for (name, shape) in SHAPES {
        println!("{name}");
        let job = Job::start(shape);
        let [guardian] = children(job.running.pid())[..] else { panic!("one guardian") };
        kill_process(guardian, Signal::KILL).unwrap();
        let writer = written(&job.path("pid"));
        eventually("the writer is killed", || (!lives(&writer)).then_some(()));
        let done = job.running.done();
        assert!(done.complaint(137).contains("its guardian"), "{done:?}");
        // The lock was given back.
        assert_eq!(job.service.json(&["get", "a"])["holderCount"], 0);
    }
}

#[test]
fn a_guardian_that_is_stopped_keeps_nobody_from_ending() {
    // By itself, and because the lock is lost.
    for (script, code) in [("echo runs; sleep 0.5; exit 5", 5), ("echo runs; exec sleep 1000", 76)] {
        let (_folder, node, service) = one_node();
        let running = service.start(&["run", "a", "--ttl", "2s", "--", "sh", "-c", script]);
        running.wait_for_lines(1);
        let [guardian] = children(running.pid())[..] else { panic!("one guardian") };
        kill_process(guardian, Signal::STOP).unwrap();
        if code == 76 {
            node.pause();
        }
        let done = running.done();
        assert_eq!(done.code, Some(code), "{done:?}");
        assert!(!lives(&guardian.as_raw_pid().to_string()));
    }
}

#[test]
fn the_guardian_is_gone_with_the_command_and_leaves_alone_what_the_command_left_behind() {
    let (folder, _node, service) = one_node();
    let script = format!("(setsid sh -c 'echo $$ > {}; exec sleep 1000' >&- 2>&- &)", path(&folder, "pid"));
    let script = format!("{script}; until [ -s {} ]; do sleep 0.01; done; exit 3", path(&folder, "pid"));
    let done = service.run(&["run", "a", "--", "sh", "-c", &script]);
    assert_eq!((done.code, done.stderr.as_str()), (Some(3), ""), "{done:?}");
    let daemon = written(&folder.path().join("pid"));
    assert!(lives(&daemon));
    kill_process(Pid::from_raw(daemon.trim().parse().unwrap()).unwrap(), Signal::KILL).unwrap();
}

fn path(folder: &TempDir, name: &str) -> String {
    Path::new(folder.path()).join(name).display().to_string()
}
