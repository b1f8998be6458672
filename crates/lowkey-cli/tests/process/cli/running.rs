//! `lowkey run`: one at a time, and never without the lock.

use std::io::Write;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use lowkey_api::v1::AcquireLockRequest;
use rustix::process::Signal;
use tempfile::TempDir;

use crate::cli::{Running, Service, lives, with_default_signals};
use crate::harness::{Cluster, Node, eventually, rounds};

pub(crate) fn one_node() -> (TempDir, Node, Service) {
    let folder = tempfile::tempdir().unwrap();
    let mut node = Node::new(folder.path(), "n1", &["--bootstrap"]);
    node.start_ready();
    let service = Service::of(std::slice::from_ref(&node));
    (folder, node, service)
}

fn text(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

/// Waits until a file has something in it.
pub(crate) fn written(path: &Path) -> String {
    eventually(&format!("{} is written", path.display()), || {
        Some(text(path)).filter(|text| text.ends_with('\n'))
    })
}

#[test]
fn of_five_that_try_one_runs_and_four_find_it_busy() {
    let (folder, _node, service) = one_node();
    let (started, go) = (folder.path().join("started"), folder.path().join("go"));
    let script = format!(
        "echo $LOWKEY_LOCK $LOWKEY_TOKEN >> {}; while [ ! -e {} ]; do sleep 0.01; done",
        started.display(),
        go.display()
    );
    let mut copies: Vec<Running> =
        (0..5).map(|_| service.start(&["run", "nightly", "--try", "--", "sh", "-c", &script])).collect();
    eventually("four have ended", || {
        (copies.iter_mut().filter_map(|copy| copy.has_ended().then_some(())).count() == 4).then_some(())
    });
    std::fs::write(go, "").unwrap();
    let done: Vec<_> = copies.into_iter().map(Running::done).collect();
    for busy in done.iter().filter(|done| done.code != Some(0)) {
        assert!(busy.complaint(75).contains("nightly is held by"), "{busy:?}");
    }
    assert_eq!(done.iter().filter(|done| done.code == Some(0)).count(), 1);
    assert_eq!(text(&started), "nightly 1\n");
}

#[test]
fn those_who_wait_run_one_after_another_in_order() {
    let (folder, _node, service) = one_node();
    let (log, go) = (folder.path().join("log"), folder.path().join("go"));
    let script = |number: usize| {
        format!(
            "echo start {number} >> {log}; while [ ! -e {go} ]; do sleep 0.01; done; echo end {number} >> {log}",
            log = log.display(),
            go = go.display()
        )
    };
    let mut copies = Vec::new();
    for number in 0..5 {
        // With a limit or without one: the line is the same.
        let wait: &[&str] = if number % 2 == 0 { &["--wait", "30s"] } else { &[] };
        let script = script(number);
        let words: Vec<&str> =
            ["run", "nightly"].iter().chain(wait).chain(&["--", "sh", "-c", &script]).copied().collect();
        copies.push(service.start(&words));
        if number == 0 {
            written(&log);
        } else {
            service.wait_for_queue("nightly", number as u64);
        }
    }
    std::fs::write(go, "").unwrap();
    for copy in copies {
        let done = copy.done();
        assert_eq!((done.code, done.stderr.as_str()), (Some(0), ""), "{done:?}");
    }
    let expected: String = (0..5).map(|number| format!("start {number}\nend {number}\n")).collect();
    assert_eq!(text(&log), expected);
}

#[test]
fn status_input_and_output_pass_unchanged() {
    let (_folder, _node, service) = one_node();
    let run = |script: &str| service.run(&["run", "a", "--", "sh", "-c", script]);
    for code in [0, 1, 7, 75, 255] {
        let done = run(&format!("exit {code}"));
        assert_eq!((done.code, done.stdout.as_str(), done.stderr.as_str()), (Some(code), "", ""), "{done:?}");
    }
    for (name, code) in [("KILL", 137), ("TERM", 143), ("INT", 130)] {
        assert_eq!(run(&format!("kill -{name} $$")).code, Some(code));
    }
    let done = run("echo out; echo err >&2");
    assert_eq!((done.stdout.as_str(), done.stderr.as_str()), ("out\n", "err\n"));
    // Words arrive as they are, without a shell; so does `--`.
    assert_eq!(
        service.ok(&["run", "a", "--", "printf", "%s|", "a b", "$HOME", "--", "--try"]),
        "a b|$HOME|--|--try|"
    );
    assert_eq!(service.ok(&["run", "a", "--", "sh", "-c", "echo $LOWKEY_LOCK"]), "a\n");

    let bytes: Vec<u8> = (0..=255).cycle().take(300_000).collect();
    let mut command = service.command(&["run", "a", "--", "cksum"]);
    command.stdin(Stdio::piped());
    let mut running = Running::start(&mut command);
    running.child.stdin.take().unwrap().write_all(&bytes).unwrap();
    let mut plain = Command::new("cksum").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    plain.stdin.take().unwrap().write_all(&bytes).unwrap();
    let plain = plain.wait_with_output().unwrap();
    assert_eq!(running.done().stdout.as_bytes(), plain.stdout);
}

#[test]
fn signals_reach_the_command_and_what_it_started() {
    let (folder, _node, service) = one_node();
    let log = folder.path().join("log");
    let script = format!(
        "exec >> {log}; for s in HUP INT QUIT USR1 USR2 WINCH; do trap \"echo $s\" $s; done; trap 'echo TERM; exit 5' TERM; \
         sh -c 'trap \"echo below; exit\" USR1; echo set; while :; do sleep 0.01; done' & echo ready; while :; do sleep 0.01; done",
        log = log.display()
    );
    let running = service.start(&["run", "a", "--", "sh", "-c", &script]);
    eventually("both are ready", || {
        (text(&log).contains("ready") && text(&log).contains("set")).then_some(())
    });
    // It hears all that come, and has nothing to say to the others: they would end it.
    running.signal(Signal::USR1);
    eventually("what it started hears it, too", || text(&log).contains("below").then_some(()));
    eventually("USR1 arrives", || text(&log).lines().any(|line| line == "USR1").then_some(()));
    for (signal, name) in [
        (Signal::HUP, "HUP"),
        (Signal::USR2, "USR2"),
        (Signal::WINCH, "WINCH"),
        (Signal::INT, "INT"),
        (Signal::QUIT, "QUIT"),
    ] {
        running.signal(signal);
        eventually(&format!("{name} arrives"), || text(&log).lines().any(|line| line == name).then_some(()));
    }
    running.signal(Signal::TERM);
    let done = running.done();
    assert_eq!(done.code, Some(5), "{done:?}");
    let left = service.json(&["get", "a"]);
    assert_eq!(left["holderCount"], 0, "the lock was given back: {left}");
}

#[test]
fn whoever_is_told_to_end_while_waiting_leaves_the_line() {
    let (_folder, _node, service) = one_node();
    let grant = service.json(&["acquire", "a", "--ttl", "60s"]);
    for (signal, code) in [(Signal::INT, 130), (Signal::TERM, 143)] {
        let waiting = service.start(&["run", "a", "--", "true"]);
        service.wait_for_queue("a", 1);
        waiting.signal(signal);
        assert_eq!(waiting.done().code, Some(code));
        service.wait_for_queue("a", 0);
    }
    assert_eq!(service.json(&["get", "a"])["holders"][0]["fencingToken"], grant["fencingToken"]);
}

#[test]
fn killed_it_takes_the_command_with_it_and_leaves_the_lock_for_its_ttl() {
    let (folder, _node, service) = one_node();
    let pid = folder.path().join("pid");
    let script = format!("echo $$ > {}; exec sleep 1000", pid.display());
    let mut running = service.start(&["run", "a", "--ttl", "2s", "--", "sh", "-c", &script]);
    let pid = written(&pid);
    assert!(lives(&pid));
    running.signal(Signal::KILL);
    let killed = Instant::now();
    let status = running.child.wait().unwrap();
    assert_eq!(status.signal(), Some(9));
    eventually("the command is dead", || (!lives(&pid)).then_some(()));
    println!("dead after {} ms", killed.elapsed().as_millis());
    let next = service.run(&["run", "a", "--wait", "20s", "--", "true"]);
    assert_eq!(next.code, Some(0), "{next:?}");
    let free_after = killed.elapsed();
    println!("the lock was free after {} ms", free_after.as_millis());
    assert!(free_after < Duration::from_secs(5), "{free_after:?}");
}

#[test]
fn whoever_waits_while_the_service_goes_away_for_good_is_told_in_one_line() {
    let (_folder, mut node, service) = one_node();
    service.ok(&["acquire", "a", "--ttl", "60s"]);
    let waiting = service.start(&["run", "a", "--ttl", "1s", "--connect-timeout", "1s", "--", "true"]);
    service.wait_for_queue("a", 1);
    node.kill();
    assert!(waiting.done().complaint(69).contains("Connection refused"));
}

#[test]
fn whoever_waits_for_as_long_as_it_takes_gets_in_line_again_after_an_outage() {
    let (_folder, node, service) = one_node();
    let grant = service.json(&["acquire", "a", "--ttl", "60s"]);
    let waiting = service.start(&["run", "a", "--ttl", "1s", "--", "echo", "done"]);
    service.wait_for_queue("a", 1);
    let lease = || service.json(&["get", "a"])["waiters"][0]["leaseId"].clone();
    let before = lease();
    node.pause();
    std::thread::sleep(Duration::from_millis(3_000));
    node.signal(Signal::CONT);
    eventually("it waits with a new lease", || (lease().is_string() && lease() != before).then_some(()));
    let (lease, token) = (grant["leaseId"].as_str().unwrap(), grant["fencingToken"].as_str().unwrap());
    service.ok(&["release", "a", "--lease", lease, "--token", token]);
    let done = waiting.done();
    assert_eq!((done.code, done.stdout.as_str(), done.stderr.as_str()), (Some(0), "done\n", ""), "{done:?}");
}

#[test]
fn a_wait_is_over_when_it_is_said_to_be_whatever_becomes_of_the_session() {
    let (_folder, node, service) = one_node();
    service.ok(&["acquire", "a", "--ttl", "60s"]);
    let started = Instant::now();
    let times = ["--ttl", "1s", "--wait", "4s", "--connect-timeout", "10m"];
    let waiting = service.start(&[&["run", "a"][..], &times, &["--", "true"]].concat());
    service.wait_for_queue("a", 1);
    // Its session is lost after a second, and nobody gives it another.
    node.pause();
    let done = waiting.done();
    assert!(done.complaint(124).contains("the time to wait is over"), "{done:?}");
    println!("with a wait of 4 s it took {:?}", started.elapsed());
}

#[test]
fn whoever_waits_ends_when_the_service_does_not_answer_for_too_long_whatever_the_lease() {
    let (_folder, node, service) = one_node();
    service.ok(&["acquire", "a", "--ttl", "10m"]);
    let times = ["--connect-timeout", "1s", "--ttl", "10m"];
    let mut waiting = Vec::new();
    for words in [&["acquire", "a"][..], &["acquire", "a", "--wait", "1h"], &["run", "a"]] {
        let command: &[&str] = if words[0] == "run" { &["--", "true"] } else { &[] };
        let words: Vec<&str> = words.iter().chain(&times).chain(command).copied().collect();
        waiting.push(service.start(&words));
        service.wait_for_queue("a", waiting.len() as u64);
    }
    node.pause();
    for waiting in waiting {
        waiting.done().complaint(69);
    }
}

/// The news and the command's end come at the same time, and either may be seen first.
#[test]
fn a_lock_that_somebody_else_gave_back_is_noticed_also_as_the_command_ends() {
    let (folder, _node, service) = one_node();
    for (round, (own, expected)) in [(0, 76), (5, 5)].into_iter().enumerate() {
        let (numbers, go) =
            (folder.path().join(format!("numbers{round}")), folder.path().join(format!("go{round}")));
        let script = format!(
            "echo $LOWKEY_LEASE $LOWKEY_TOKEN > {}; until [ -e {} ]; do sleep 0.02; done; exit {own}",
            numbers.display(),
            go.display()
        );
        let running = service.start(&["run", "a", "--", "sh", "-c", &script]);
        let numbers = written(&numbers);
        let [lease, token] = numbers.split_whitespace().collect::<Vec<_>>()[..] else { panic!("{numbers}") };
        service.ok(&["release", "a", "--lease", lease, "--token", token]);
        std::fs::write(go, "").unwrap();
        let done = running.done();
        if done.stderr.contains("was lost while the command ran") {
            done.complaint(expected);
        } else {
            assert!(done.complaint(76).contains("cannot be kept: somebody else released it"), "{done:?}");
        }
    }
}

#[test]
fn a_lock_is_held_for_the_least_time_although_the_command_is_quick() {
    let (_folder, _node, service) = one_node();
    let started = Instant::now();
    let done = service.run(&["run", "a", "--try", "--at-least", "2s", "--", "sh", "-c", "exit 3"]);
    assert_eq!((done.code, done.stderr.as_str()), (Some(3), ""), "{done:?}");
    assert!(started.elapsed() >= Duration::from_secs(2), "{:?}", started.elapsed());
    assert_eq!(service.ok(&["run", "a", "--try", "--", "echo", "ran"]), "ran\n");
}

#[test]
fn a_command_that_hangs_loses_its_lock_and_its_life() {
    let (_folder, _node, service) = one_node();
    let started = Instant::now();
    // Its lease is renewed all the time, and it does not heed SIGTERM.
    let hangs = "trap '' TERM; echo hangs; while :; do sleep 1; done";
    let words = ["run", "a", "--ttl", "6s", "--at-most", "3s", "--", "sh", "-c", hangs];
    let done = service.start(&words).done();
    assert!(done.complaint(76).contains("held for as long as it may be"), "{done:?}");
    let lived = started.elapsed();
    assert!(lived >= Duration::from_secs(2), "it was to have nine tenths of its time: {lived:?}");
    assert_eq!(done.stdout, "hangs\n");
    assert_eq!(service.ok(&["run", "a", "--try", "--", "echo", "ran"]), "ran\n");
    // Who wants both gets no riddle.
    let both = service.run(&["run", "a", "--at-least", "3s", "--at-most", "3s", "--", "true"]);
    assert!(both.complaint(64).contains("--at-least"), "{both:?}");
}

/// Waits until the command has ended, and `lowkey run` goes on without it.
fn wait_until_alone(running: &Running) {
    let children = format!("/proc/{0}/task/{0}/children", running.pid());
    eventually("the command has ended", || text(Path::new(&children)).is_empty().then_some(()));
}

#[test]
fn the_least_time_is_over_when_somebody_wants_an_end_to_it() {
    let (_folder, _node, service) = one_node();
    let words = ["run", "a", "--at-least", "1h", "--", "sh", "-c"];
    let started = |script| service.start(&[&words[..], &[script]].concat());
    // While only the lock is held.
    let running = started("echo ran");
    running.wait_for_lines(1);
    wait_until_alone(&running);
    // Whoever comes later finds it taken.
    service.run(&["run", "a", "--try", "--", "true"]).complaint(75);
    running.signal(Signal::TERM);
    let done = running.done();
    assert_eq!((done.code, done.stderr.as_str()), (Some(0), ""), "{done:?}");
    // While the command runs, and when something else ends it in this way.
    let running = started("echo runs; exec sleep 1000");
    running.wait_for_lines(1);
    running.signal(Signal::INT);
    assert_eq!(running.done().code, Some(130));
    assert_eq!(started("kill -TERM $$").done().code, Some(143));
    service.wait_for_free("a");
}

#[test]
fn a_lock_that_is_lost_before_the_least_time_is_over_is_told() {
    let (_folder, node, service) = one_node();
    let running = service.start(&["run", "a", "--ttl", "1s", "--at-least", "1h", "--", "echo", "ran"]);
    running.wait_for_lines(1);
    wait_until_alone(&running);
    node.pause();
    let done = running.done();
    assert!(done.complaint(76).contains("before --at-least was over"), "{done:?}");
}

/// The promise: when the service stands still for so long that the lock is lost, the command is dead before
/// anybody else gets the lock, whatever it does about SIGTERM.
#[tokio::test(flavor = "multi_thread")]
async fn all_servers_stand_still_and_the_command_is_dead_before_anybody_gets_the_lock() {
    let cluster = Cluster::start(3);
    let service = Service::of_cluster(&cluster);
    let folder = tempfile::tempdir().unwrap();
    for round in 0..rounds("LOWKEY_STOP_ROUNDS", 3) {
        let (pids, lost) =
            (folder.path().join(format!("pids{round}")), folder.path().join(format!("lost{round}")));
        // Of three kinds: deaf to SIGTERM, of good will, and with a child that is deaf.
        let script = match round % 3 {
            0 => format!("trap '' TERM; echo $$ > {}; while :; do sleep 0.02; done", pids.display()),
            1 => format!("trap 'exit 0' TERM; echo $$ > {}; while :; do sleep 0.02; done", pids.display()),
            _ => format!(
                "sh -c 'trap \"\" TERM; while :; do sleep 0.02; done' & echo $$ $! > {}; wait",
                pids.display()
            ),
        };
        // A shell says on its standard error what became of its children.
        let script = format!("exec 2>/dev/null; {script}");
        let on_lost = format!("echo $LOWKEY_LOCK $LOWKEY_TOKEN > {}", lost.display());
        let name = format!("stop{round}");
        let running =
            service.start(&["run", &name, "--ttl", "2s", "--on-lost", &on_lost, "--", "sh", "-c", &script]);
        let pids = written(&pids);
        let token = service.json(&["get", &name])["holders"][0]["fencingToken"].as_str().unwrap().to_owned();

        let leader = cluster.wait_whole();
        let mut rival =
            lowkey_api::v1::lock_service_client::LockServiceClient::new(cluster.nodes[leader].channel());
        let request = AcquireLockRequest {
            lock_name: name.clone(),
            owner_id: "rival".into(),
            ttl_seconds: 10,
            wait_ms: 60_000,
            request_id: name.clone(),
            ..AcquireLockRequest::default()
        };
        let watched = pids.clone();
        let rival = tokio::spawn(async move {
            loop {
                // A leader may change while all stand still: the same request keeps its place.
                if let Ok(granted) = rival.acquire_lock(request.clone()).await {
                    let alive: Vec<&str> = watched.split_whitespace().filter(|pid| lives(pid)).collect();
                    return (granted.into_inner().fencing_token, alive.join(" "));
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        });
        service.wait_for_queue(&name, 1);
        cluster.nodes.iter().for_each(Node::pause);
        // Long enough that it is lost; now and then so long that even the service's own deadline has passed.
        tokio::time::sleep(Duration::from_millis(1_850 + (round as u64 * 370) % 1_500)).await;
        cluster.nodes.iter().for_each(|node| node.signal(Signal::CONT));
        let (rivals_token, alive) = rival.await.unwrap();
        assert_eq!(
            alive, "",
            "round {round}: alive while somebody else holds the lock with token {rivals_token}"
        );
        let done = tokio::task::spawn_blocking(move || running.done()).await.unwrap();
        assert!(done.complaint(76).contains("cannot be kept"), "round {round}: {done:?}");
        assert_eq!(written(&lost), format!("{name} {token}\n"), "round {round}");
    }
}

#[test]
fn a_lease_that_is_revoked_ends_the_command_at_once() {
    let (folder, node, service) = one_node();
    let pid = folder.path().join("pid");
    let script = format!("echo $$ > {}; exec sleep 1000", pid.display());
    let running = service.start(&["run", "a", "--ttl", "3s", "--", "sh", "-c", &script]);
    let pid = written(&pid);
    let holder = service.json(&["get", "a"])["holders"][0].clone();
    let body = format!(r#"{{"lease_id":{},"owner_id":{}}}"#, holder["leaseId"], holder["ownerId"]);
    node.ok("POST", "/v1/lease/revoke", &body);
    let done = running.done();
    assert!(done.complaint(76).contains("the lease is gone"), "{done:?}");
    assert!(!lives(&pid));
}

#[test]
fn a_command_that_cannot_be_run_is_told_as_a_shell_does() {
    let (folder, _node, service) = one_node();
    let missing = service.run(&["run", "a", "--", "no-such-command"]);
    assert!(missing.complaint(127).contains("cannot run no-such-command"), "{missing:?}");
    let plain = folder.path().join("plain.txt");
    std::fs::write(&plain, "no program").unwrap();
    let refused = service.run(&["run", "a", "--", plain.to_str().unwrap()]);
    assert!(refused.complaint(126).contains("cannot run"), "{refused:?}");
}

/// Types something at a terminal: `script` gives one, and the shell under it has job control, as a person's has.
fn on_a_terminal(folder: &Path, service: &Service, typed: &str) -> (Running, ChildStdin) {
    let shell = folder.join("typed");
    std::fs::write(&shell, typed).unwrap();
    let bin = Path::new(env!("CARGO_BIN_EXE_lowkey")).parent().unwrap();
    let mut command = with_default_signals("script");
    command.args(["-qec", "bash --norc -i ./typed", "/dev/null"]);
    command.env("PATH", format!("{}:{}", bin.display(), std::env::var("PATH").unwrap()));
    command.envs(service.command(&[]).get_envs().filter_map(|(name, value)| Some((name, value?))));
    command.current_dir(folder).stdin(Stdio::piped());
    let mut running = Running::start(&mut command);
    let terminal = running.child.stdin.take().unwrap();
    (running, terminal)
}

/// Waits until a process, of which the number is in a file, is stopped.
fn stopped(file: &Path) -> String {
    let pid = written(file);
    let stat = || text(Path::new(&format!("/proc/{}/stat", pid.trim())));
    eventually("it is stopped", || stat().rsplit_once(") ")?.1.starts_with('T').then_some(()));
    pid
}

#[test]
fn a_command_reads_the_terminal_wherever_its_input_comes_from() {
    let (folder, _node, service) = one_node();
    let job = "lowkey run a -- sh -c 'read line </dev/tty; echo got $line' </dev/null; echo status $?";
    let (running, mut terminal) = on_a_terminal(folder.path(), &service, job);
    service.wait_until_held("a");
    terminal.write_all(b"hello\n").unwrap();
    let done = running.done();
    assert!(done.stdout.contains("got hello") && done.stdout.contains("status 0"), "{done:?}");
}

#[test]
fn a_command_behind_a_pipe_writes_to_a_terminal_that_stops_who_is_not_in_its_foreground() {
    let (folder, _node, service) = one_node();
    let job = "stty tostop; echo data | lowkey run a -- sh -c 'echo writes; cat'; echo status $?";
    let (running, _terminal) = on_a_terminal(folder.path(), &service, job);
    let done = running.done();
    for expected in ["writes", "data", "status 0"] {
        assert!(done.stdout.contains(expected), "{expected}: {done:?}");
    }
}

#[test]
fn a_command_that_waits_for_the_terminal_in_the_background_gets_it_in_the_foreground() {
    let (folder, _node, service) = one_node();
    // `wait` is what a shell does that has nothing else to do; the file is when a person types `fg`.
    let job = "set -m; lowkey run a -- sh -c 'echo $$ > pid; read line; echo got $line' & \
               until [ -e go ]; do sleep 0.02; done; fg; echo status $?";
    let (running, mut terminal) = on_a_terminal(folder.path(), &service, job);
    stopped(&folder.path().join("pid"));
    eventually("it says so", || running.printed().contains("waits for the terminal").then_some(()));
    std::fs::write(folder.path().join("go"), "").unwrap();
    terminal.write_all(b"hello\n").unwrap();
    let done = running.done();
    assert!(done.stdout.contains("got hello") && done.stdout.contains("status 0"), "{done:?}");
}

#[test]
fn a_command_that_is_stopped_hears_that_it_is_to_end() {
    let (folder, _node, service) = one_node();
    let pid = folder.path().join("pid");
    let script = format!("echo $$ > {}; kill -STOP $$", pid.display());
    for (signal, code) in [(Signal::TERM, 143), (Signal::INT, 130)] {
        let _ = std::fs::remove_file(&pid);
        let running = service.start(&["run", "a", "--", "sh", "-c", &script]);
        stopped(&pid);
        running.signal(signal);
        let done = running.done();
        assert_eq!((done.code, done.stderr.as_str()), (Some(code), ""), "{done:?}");
    }
    // And that it is to go on.
    let _ = std::fs::remove_file(&pid);
    let running = service.start(&["run", "a", "--", "sh", "-c", &script]);
    stopped(&pid);
    running.signal(Signal::CONT);
    assert_eq!(running.done().code, Some(0));
}

#[test]
fn the_status_is_known_although_whoever_started_it_ignores_how_children_end() {
    let (_folder, _node, service) = one_node();
    let mut command = Command::new("env");
    command.args(["--ignore-signal=CHLD", env!("CARGO_BIN_EXE_lowkey"), "run", "a", "--", "sh", "-c"]);
    command.arg("sh -c 'exit 7'; exit $?").stdin(Stdio::null());
    command.envs(service.command(&[]).get_envs().filter_map(|(name, value)| Some((name, value?))));
    let done = Running::start(&mut command).done();
    assert_eq!((done.code, done.stderr.as_str()), (Some(7), ""), "{done:?}");
}

#[test]
fn on_a_terminal_the_command_can_read_it_and_ctrl_z_does_not_stop_it() {
    let (folder, _node, service) = one_node();
    let job = "lowkey run a -- sh -c 'echo ready; read line; echo got $line'; echo status $?; read after; echo $after";
    let (running, mut terminal) = on_a_terminal(folder.path(), &service, job);
    service.wait_until_held("a");
    // Also while the command is only about to start.
    eventually("it reads", || {
        terminal.write_all(b"\x1a").unwrap();
        running.printed().contains("ready").then_some(())
    });
    terminal.write_all(b"\x1a").unwrap();
    eventually("it goes on", || running.printed().contains("cannot be suspended").then_some(()));
    terminal.write_all(b"hello\n").unwrap();
    service.wait_for_free("a");
    terminal.write_all(b"goodbye\n\x04").unwrap();
    let done = running.done();
    for expected in ["cannot be suspended", "got hello", "status 0", "goodbye"] {
        assert!(done.stdout.contains(expected), "{expected}: {done:?}");
    }
}
