//! Nobody reads what a command says: it ends as it would otherwise, and what it promises is kept.

use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::cli::running::{one_node, written};
use crate::cli::{Service, lives, lowkey};
use crate::harness::{Node, Ports, eventually};

/// A pipe whose other end has gone.
fn nobody() -> Stdio {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    writer.into()
}

/// The status of a command whose standard error nobody reads.
fn status(command: &mut Command) -> Option<i32> {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(nobody()).spawn().unwrap();
    eventually(&format!("it ends: {command:?}"), || child.try_wait().unwrap()).code()
}

/// The worst moment: the lock is lost, and who is to end the command cannot say so.
#[test]
fn a_command_that_lost_its_lock_is_dead_before_its_supervisor_though_nobody_reads_the_message() {
    let (folder, node, service) = one_node();
    let pids = folder.path().join("pids");
    let script = format!(
        "trap '' TERM; (trap '' TERM; while :; do sleep 0.02; done) & echo $$ $! > {}; while :; do sleep 0.02; done",
        pids.display()
    );
    let mut command = service.command(&["run", "a", "--ttl", "2s", "--", "sh", "-c", &script]);
    let mut running = command.stdout(Stdio::null()).stderr(nobody()).spawn().unwrap();
    let pids = written(&pids);
    node.pause();
    let ended = eventually("it ends", || running.try_wait().unwrap());
    let alive: Vec<&str> = pids.split_whitespace().filter(|pid| lives(pid)).collect();
    for pid in alive.iter().filter_map(|pid| Pid::from_raw(pid.parse().ok()?)) {
        let _ = kill_process(pid, Signal::KILL);
    }
    assert!(alive.is_empty(), "{alive:?} of {pids}");
    assert_eq!(ended.code(), Some(76));
}

#[test]
fn the_status_is_the_same_where_nobody_reads_why() {
    let (_folder, _node, service) = one_node();
    service.ok(&["acquire", "taken", "--ttl", "60s"]);
    let nowhere = Service::at(format!("http://127.0.0.1:{}", Ports::free().grpc));
    for (code, words) in [
        (64, &["run", "a"][..]),
        (64, &["run", "a", "--ttl", "many", "--", "true"]),
        (64, &["--json", "ls"]),
        (64, &["--bootstrap", "--log", "=="]),
        (64, &["get", "a//b"]),
        (75, &["run", "taken", "--try", "--", "true"]),
        (75, &["acquire", "taken", "--ttl", "1s", "--try", "--json"]),
        (76, &["renew", "--lease", "77"]),
        (124, &["run", "taken", "--wait", "50ms", "--", "true"]),
        (126, &["run", "a", "--", "/"]),
        (127, &["run", "a", "--", "no-such-command"]),
        (0, &["--help"]),
    ] {
        assert_eq!(status(&mut service.command(words)), Some(code), "{words:?}");
    }
    assert_eq!(status(&mut lowkey()), Some(64), "the help that nobody asked for");
    assert_eq!(status(&mut nowhere.command(&["ls", "--connect-timeout", "200ms"])), Some(69));
}

#[test]
fn a_node_whose_logs_nobody_reads_serves_and_stops_in_good_order() {
    let folder = tempfile::tempdir().unwrap();
    let node = Node::new(folder.path(), "n1", &["--bootstrap", "--log", "debug"]);
    let mut child = node.command().stdout(Stdio::null()).stderr(nobody()).spawn().unwrap();
    let is_ready = || node.http("GET", "/readyz", "").is_some_and(|(status, _)| status == 200);
    let has_ended = eventually("it serves, or has ended", || {
        let has_ended = child.try_wait().unwrap();
        (is_ready() || has_ended.is_some()).then_some(has_ended)
    });
    assert_eq!(has_ended, None);
    // It may have ended by now.
    let _ = kill_process(Pid::from_child(&child), Signal::TERM);
    let ended = eventually("it stops", || child.try_wait().unwrap());
    assert_eq!(ended.code(), Some(0), "{ended:?}");
}
