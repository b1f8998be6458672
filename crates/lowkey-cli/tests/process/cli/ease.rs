//! What a person at a terminal needs, and would miss.

use std::process::Stdio;

use rustix::process::Signal;
use serde_json::Value;

use crate::cli::running::{one_node, written};
use crate::cli::{Done, Running, Service, lives, lowkey, with_default_signals};
use crate::harness::{Ports, eventually};

/// A command on a terminal of 80 columns. What it writes to either output is in `stdout`.
fn at_a_terminal(service: &Service, typed: &str) -> Running {
    let bin = std::path::Path::new(env!("CARGO_BIN_EXE_lowkey")).parent().unwrap();
    let mut command = with_default_signals("script");
    command.args(["-qec", &format!("stty cols 80; {typed}"), "/dev/null"]);
    command.env("PATH", format!("{}:{}", bin.display(), std::env::var("PATH").unwrap()));
    command.envs(service.command(&[]).get_envs().filter_map(|(name, value)| Some((name, value?))));
    Running::start(command.stdin(Stdio::piped()))
}

#[test]
fn a_free_lock_is_said_to_be_free() {
    let (_folder, _node, service) = one_node();
    assert!(service.ok(&["get", "a"]).starts_with("free\t"));
    let done = at_a_terminal(&service, "lowkey get a").done();
    assert_eq!(done.stdout.trim(), "a is free");
}

#[test]
fn nobody_is_left_without_a_word_at_a_dead_port() {
    let service = Service::at(format!("http://127.0.0.1:{}", Ports::free().grpc));
    for typed in ["ls", "get a", "status", "acquire a --ttl 5s", "lease list", "watch", "run a"] {
        let command = if typed == "run a" { "-- true" } else { "" };
        let done =
            at_a_terminal(&service, &format!("lowkey {typed} --connect-timeout 1500ms {command}")).done();
        assert!(done.stdout.contains("lowkey: still trying to reach http://127.0.0.1:"), "{typed}: {done:?}");
    }
    // So does a script: a log is read, too.
    let done = service.run(&["ls", "--connect-timeout", "1500ms"]);
    done.complaint(69);
    assert!(done.stderr.starts_with("lowkey: still trying to reach http://127.0.0.1:"), "{done:?}");
    // Not where a command writes to the same, nor to a program.
    for words in [
        &["run", "a", "--connect-timeout", "1500ms", "--", "true"][..],
        &["elect", "a", "--connect-timeout", "1500ms", "--", "true"],
        &["ls", "--json", "--connect-timeout", "1500ms"],
    ] {
        let done = service.run(words);
        assert_eq!((done.code, done.stderr.lines().count()), (Some(69), 1), "{words:?}: {done:?}");
    }
}

#[test]
fn a_watch_tells_when_it_was_and_who_ended_the_hold_of_another() {
    let (_folder, _node, service) = one_node();
    let watching = service.start(&["watch"]);
    // It has begun when it tells of something.
    eventually("it watches", || {
        service.ok(&["run", "first", "--", "true"]);
        watching.printed().contains("\tfirst\t").then_some(())
    });
    service.ok(&["acquire", "a", "--ttl", "60s", "--owner", "alice"]);
    service.ok(&["revoke", "a", "--yes", "--owner", "bob"]);
    let line = |event: &str| {
        eventually(event, || {
            let text = watching.printed();
            let line = text.lines().find(|line| line.contains(&format!("\t{event}\ta\t")))?;
            Some(line.split('\t').map(str::to_owned).collect::<Vec<String>>())
        })
    };
    for (event, actor) in [("ACQUIRED", "-"), ("REVOKED", "bob")] {
        let cells = line(event);
        assert_eq!((cells.len(), cells[3].as_str(), cells[9].as_str()), (10, "alice", actor), "{cells:?}");
        assert!(cells[8].len() == 20 && cells[8].starts_with("20") && cells[8].ends_with('Z'), "{cells:?}");
    }
}

#[test]
fn a_node_that_wants_to_know_who_asks_tells_its_health_to_anybody() {
    let (_folder, node, service) = one_node();
    assert_eq!(service.ok(&["health", "--ready"]).trim(), format!("ok: {} answers", node.name));
    let told = service.json(&["health"]);
    assert_eq!(
        (&told["nodeId"], &told["leaderId"], &told["ready"]),
        (&node.name.as_str().into(), &node.name.as_str().into(), &true.into())
    );
    let access = |words: &[&str]| {
        let done = lowkey().arg("access").args(words).arg("--data-dir").arg(&node.data_dir).output().unwrap();
        assert!(done.status.success(), "{done:?}");
        String::from_utf8(done.stdout).unwrap()
    };
    access(&["principal", "add", "ops"]);
    access(&["grant", "ops", "/", "admin"]);
    access(&["token", "new", "ops"]);
    // Also in a pipe: no word at all would look like a failure.
    assert!(access(&["require", "--dry-run"]).starts_with("nobody would be refused"));
    assert_eq!(access(&["require", "--dry-run", "--json"]).trim(), "{\"wouldBeRefused\":[]}");
    access(&["require"]);
    eventually("access is required", || (service.run(&["status"]).code != Some(0)).then_some(()));
    let answers = format!("ok: {} answers", service.endpoints());
    assert_eq!(service.ok(&["health", "--ready"]).trim(), answers);
    let told = service.json(&["health", "--ready"]);
    assert_eq!((&told["nodeId"], &told["ready"]), (&Value::Null, &true.into()));
    // A token that cannot be read is nothing to a probe.
    let mut with_token = service.command(&["health"]);
    let done = Running::start(with_token.env("LOWKEY_AUTH_FILE", "/nowhere")).done();
    assert_eq!((done.code, done.stdout.trim()), (Some(0), answers.as_str()));
    // The HTTP port is the wrong one.
    let wrong = Service::at(format!("http://127.0.0.1:{}", node.ports.http));
    assert!(wrong.run(&["health"]).complaint(64).contains("gRPC"));
}

#[test]
fn whoever_watches_hears_that_no_node_is_reached_and_that_one_is_again() {
    let (_folder, mut node, service) = one_node();
    let watching = service.start(&["watch"]);
    service.ok(&["run", "a", "--", "true"]);
    watching.wait_for_lines(1);
    node.kill();
    eventually("it says so", || watching.complained().contains("still trying to reach").then_some(()));
    node.start_ready();
    eventually("it says so", || watching.complained().contains("answers").then_some(()));
    service.ok(&["run", "b", "--", "true"]);
    eventually("it goes on", || watching.printed().contains("\tb\t").then_some(()));
}

#[test]
fn on_a_terminal_run_says_behind_whom_it_waits() {
    let (_folder, _node, service) = one_node();
    service.ok(&["acquire", "a", "--ttl", "60s", "--owner", "alice@here"]);
    let waiting = service.start(&["run", "a", "--owner", "bob@there", "--", "true"]);
    service.wait_for_queue("a", 1);
    let second = at_a_terminal(&service, "lowkey run a -- true");
    eventually("it says whom it waits for", || {
        let printed = second.printed();
        let is_right = printed.contains("waiting for a: held by alice@here (lease 1) since 2");
        (is_right && printed.contains("number 2 of 2 in line")).then_some(())
    });
    // In a script nothing is said.
    assert_eq!(waiting.complained(), "");
    assert_eq!(service.json(&["get", "a"])["waiters"][0]["ownerId"], "bob@there");
    waiting.signal(Signal::TERM);
    eventually("it moves up", || second.printed().contains("first in line").then_some(()));
}

#[test]
fn tables_fit_a_terminal_unless_they_are_to_be_wide() {
    let (_folder, _node, service) = one_node();
    let name = format!("jobs/{}/nightly", "very-long-".repeat(10));
    let value = "http://10.0.0.1:4000/".repeat(5);
    service.ok(&["acquire", &name, "--ttl", "60s", "--value", &value]);
    service.ok(&["acquire", "仕事", "--ttl", "60s", "--subtree", "--owner", "利用者"]);
    let widest = |done: &Done| done.stdout.lines().map(|line| line.trim_end().chars().count()).max().unwrap();
    for typed in [
        "ls".to_owned(),
        format!("get {name}"),
        format!("leader {name}"),
        "lease list".into(),
        "status".into(),
    ] {
        let done = at_a_terminal(&service, &format!("NO_COLOR=1 lowkey {typed}")).done();
        assert!(widest(&done) <= 80, "{typed}: {done:?}");
    }
    let done = at_a_terminal(&service, "NO_COLOR=1 lowkey ls").done();
    assert!(done.stdout.contains("jobs/…") && done.stdout.contains("tly  "), "{done:?}");
    let done = at_a_terminal(&service, "NO_COLOR=1 lowkey ls --wide").done();
    assert!(done.stdout.contains(&name) && done.stdout.contains(&value), "{done:?}");
    // In a pipe all is told.
    assert!(service.ok(&["ls"]).contains(&value));
}

#[test]
fn an_owner_is_user_at_host_unless_it_is_named() {
    let (_folder, _node, service) = one_node();
    service.ok(&["acquire", "a", "--ttl", "60s"]);
    let owner = service.json(&["get", "a"])["holders"][0]["ownerId"].as_str().unwrap().to_owned();
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let user =
        String::from_utf8(std::process::Command::new("id").arg("-un").output().unwrap().stdout).unwrap();
    assert_eq!(owner, format!("{}@{host}", user.trim()));
    for words in [&["run", "b", "--owner", "me", "--"][..], &["elect", "b", "--owner", "me", "--"]] {
        let words = [words, &["sh", "-c", "lowkey get b --json"]].concat();
        let mut command = service.command(&words);
        let bin = std::path::Path::new(env!("CARGO_BIN_EXE_lowkey")).parent().unwrap();
        command.env("PATH", format!("{}:{}", bin.display(), std::env::var("PATH").unwrap()));
        let done = Running::start(&mut command).done();
        let lock: Value =
            serde_json::from_str(&done.stdout).unwrap_or_else(|error| panic!("{error}: {done:?}"));
        assert_eq!(lock["holders"][0]["ownerId"], "me");
    }
}

#[test]
fn a_command_runs_under_a_lock_on_everything_below_a_name() {
    let (_folder, _node, service) = one_node();
    let running = service.start(&["run", "a", "--subtree", "--", "sh", "-c", "echo runs; sleep 1000"]);
    running.wait_for_lines(1);
    service.run(&["acquire", "a/b", "--ttl", "5s", "--try"]).complaint(75);
    assert_eq!(service.json(&["get", "a"])["holders"][0]["scope"], "SUBTREE");
}

#[test]
fn leases_are_seen_with_their_owner_what_they_hold_and_the_time_left() {
    let (_folder, _node, service) = one_node();
    service.ok(&["acquire", "a", "--ttl", "60s", "--owner", "alice"]);
    service.ok(&["acquire", "b", "--ttl", "600s", "--owner", "bob"]);
    let listed = service.ok(&["lease", "list"]);
    let rows: Vec<Vec<&str>> = listed.lines().map(|line| line.split('\t').collect()).collect();
    assert_eq!(
        (rows.len(), &rows[0][..3], &rows[1][..3]),
        (2, &["1", "alice", "60s"][..], &["2", "bob", "600s"][..])
    );
    let left: f64 = rows[0][3].trim_end_matches('s').parse().unwrap();
    assert!((1.0..=60.5).contains(&left), "{left}");
    assert_eq!(service.json(&["lease", "list", "--owner", "bob"])["leases"].as_array().unwrap().len(), 1);
    let lease = service.ok(&["lease", "get", "1"]);
    let rows: Vec<Vec<&str>> = lease.lines().map(|line| line.split('\t').collect()).collect();
    assert_eq!(
        (rows[0][..2].to_vec(), rows[1][..4].to_vec()),
        (vec!["owner", "alice"], vec!["holds", "a", "1", "exclusive"])
    );
    assert_eq!(service.json(&["lease", "get", "1"])["grants"][0]["lockName"], "a");
    service.run(&["lease", "get", "77"]).complaint(76);
    // In the tables of locks, too.
    for words in [&["ls", "a"][..], &["get", "a"]] {
        let line = service.ok(words);
        assert!(line.trim_end().rsplit('\t').next().unwrap().ends_with('s'), "{line}");
    }
}

#[test]
fn the_hold_of_another_is_revoked_by_its_lock_or_lease_and_its_command_ends() {
    let (folder, _node, service) = one_node();
    let pid = folder.path().join("pid");
    let script = format!("echo $$ > {}; exec sleep 1000", pid.display());
    let running =
        service.start(&["run", "a", "--ttl", "3s", "--owner", "alice@here", "--", "sh", "-c", &script]);
    let pid = written(&pid);
    // Nobody can be asked here.
    let refused = service.run(&["revoke", "a"]);
    assert!(refused.complaint(64).contains("alice@here") && refused.stderr.contains("--yes"), "{refused:?}");
    assert_eq!(service.json(&["get", "a"])["holderCount"], 1);
    let revoked = service.ok(&["revoke", "a", "--yes"]);
    assert!(revoked.contains("lease 1 of alice@here") && revoked.contains("a (token 1)"), "{revoked}");
    let done = running.done();
    assert!(done.complaint(76).contains("the lease is gone"), "{done:?}");
    assert!(!lives(&pid));
    assert!(service.run(&["revoke", "a", "--yes"]).complaint(1).contains("nobody holds a"));

    let grant = service.json(&["acquire", "a", "--ttl", "60s"]);
    assert_eq!(
        service.json(&["revoke", "--lease", grant["leaseId"].as_str().unwrap(), "--yes"])["revoked"]["grants"]
            [0]["lockName"],
        "a"
    );
    service.run(&["revoke", "--lease", "77", "--yes"]).complaint(76);
}

#[test]
fn on_a_terminal_it_is_asked_whether_to_revoke() {
    use std::io::Write as _;
    let (_folder, _node, service) = one_node();
    service.ok(&["acquire", "a", "--ttl", "60s", "--owner", "alice@here"]);
    for (answer, holders) in [("n", 1), ("", 1), ("y", 0)] {
        let mut asked = at_a_terminal(&service, "lowkey revoke a; echo status $?");
        let mut keys = asked.child.stdin.take().unwrap();
        eventually("it asks", || asked.printed().contains("Revoke? [y/N]").then_some(()));
        writeln!(keys, "{answer}").unwrap();
        let done = asked.done();
        let status = if holders == 0 { "status 0" } else { "status 1" };
        assert!(done.stdout.contains("alice@here") && done.stdout.contains(status), "{done:?}");
        assert_eq!(service.json(&["get", "a"])["holderCount"], holders);
    }
}

#[test]
fn a_release_of_anothers_grant_warns_and_points_to_revoke() {
    let (_folder, _node, service) = one_node();
    let release = ["release", "a", "--lease", "1", "--token", "1"];
    service.ok(&["acquire", "a", "--ttl", "60s", "--owner", "alice@here"]);
    let done = service.run(&release);
    assert_eq!(done.code, Some(0), "{done:?}");
    assert!(
        done.stderr.contains("held by alice@here") && done.stderr.contains("`lowkey revoke a`"),
        "{done:?}"
    );
}

#[test]
fn recover_is_not_offered_to_those_who_mean_revoke() {
    for typed in ["revok", "revoce", "revove", "rvoke", "rekove", "rover"] {
        let done = Running::start(lowkey().arg(typed).stdin(Stdio::null())).done();
        assert!(!done.complaint(64).contains("recover"), "{done:?}");
    }
    let done = Running::start(lowkey().arg("revok").stdin(Stdio::null())).done();
    assert!(done.complaint(64).contains("'revoke'"), "{done:?}");
    let done = Running::start(lowkey().arg("recovr").stdin(Stdio::null())).done();
    assert!(done.complaint(64).contains("'recover'"), "{done:?}");
}

#[test]
fn a_wrong_value_of_the_environment_is_told_with_its_variable() {
    let mut command = lowkey();
    command.args(["server", "--data-dir", "/nowhere"]).env("LOWKEY_BOOTSTRAP", "maybe").stdin(Stdio::null());
    let done = Running::start(&mut command).done();
    assert!(done.complaint(64).contains("LOWKEY_BOOTSTRAP"), "{done:?}");
}

/// As flags.md says of all flags without a value.
#[test]
fn flags_without_a_value_take_every_usual_word_from_the_environment() {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/flags.md"));
    let page = page.unwrap();
    let variables: Vec<&str> = page
        .lines()
        .filter_map(|line| {
            let cells: Vec<&str> = line.split('|').map(str::trim).collect();
            let (flag, variable, usual) = (cells.get(1)?, cells.get(2)?, cells.get(3)?);
            let has_no_value = flag.starts_with("`--") && !flag.contains(' ') && *usual == "off";
            has_no_value.then(|| variable.trim_matches('`'))
        })
        .filter(|variable| variable.starts_with("LOWKEY_"))
        .collect();
    assert!(variables.len() >= 5 && variables.contains(&"LOWKEY_METRICS_OPEN"), "{variables:?}");
    for variable in variables {
        for word in ["true", "1", "yes", "false", "0", "no"] {
            // A flag that there is none of: the words are read before that is said.
            let mut command = lowkey();
            command.args(["server", "--raft-addr", "nonsense"]).env(variable, word).stdin(Stdio::null());
            let done = Running::start(&mut command).done();
            let complaint = done.complaint(64);
            assert!(complaint.contains("nonsense"), "{variable}={word}: {complaint}");
        }
    }
}

#[test]
fn a_name_below_a_held_subtree_is_not_said_to_be_free() {
    let (_folder, _node, service) = one_node();
    service.ok(&["acquire", "tree", "--ttl", "60s", "--subtree", "--owner", "gardener"]);
    let told = service.ok(&["get", "tree/branch/leaf"]);
    assert!(told.starts_with("covered by tree\tgardener\t1\t1\texclusive-subtree\t"), "{told}");
    assert_eq!(told.lines().count(), 1, "{told}");
    assert_eq!(service.json(&["get", "tree/branch/leaf"])["coveredBy"], "tree");
    let at_terminal = at_a_terminal(&service, "lowkey get tree/branch").done();
    assert!(at_terminal.stdout.contains("covered by tree"), "{at_terminal:?}");
    let refused = service.run(&["revoke", "tree/branch", "--yes"]);
    let line = refused.complaint(1);
    assert!(
        line.contains("tree is held with its subtree") && line.contains("`lowkey revoke tree`"),
        "{line}"
    );
    let waiting = service.start(&["run", "tree/branch", "--owner", "bird", "--", "true"]);
    service.wait_for_queue("tree/branch", 1);
    let told = service.ok(&["get", "tree/branch"]);
    let places: Vec<_> = told.lines().map(|line| line.split('\t').next().unwrap()).collect();
    assert_eq!(places, ["covered by tree", "waiting 1"]);
    service.ok(&["revoke", "tree", "--yes"]);
    assert_eq!(waiting.done().code, Some(0));
    assert!(service.ok(&["get", "tree/branch"]).starts_with("free\t"));
}
