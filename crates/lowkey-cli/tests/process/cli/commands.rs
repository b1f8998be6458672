//! Every command beside `run`: what it prints, as text and as JSON, and how it ends.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::Instant;

use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

use crate::cli::{Running, Service, lowkey};
use crate::harness::{Cluster, Node, Ports, eventually};

fn one_node() -> (TempDir, Node, Service) {
    let folder = tempfile::tempdir().unwrap();
    let mut node = Node::new(folder.path(), "n1", &["--bootstrap"]);
    node.start_ready();
    let service = Service::of(std::slice::from_ref(&node));
    (folder, node, service)
}

/// The cells of the only line.
fn cells(text: &str) -> Vec<&str> {
    assert_eq!(text.lines().count(), 1, "{text}");
    text.trim_end_matches('\n').split('\t').collect()
}

#[test]
fn a_script_takes_renews_and_gives_back_a_lock() {
    let (_folder, _node, service) = one_node();
    let grant = service.ok(&["acquire", "deploy", "--ttl", "60s", "--value", "by hand"]);
    assert_eq!(cells(&grant), ["deploy", "1", "1", "60s"]);
    // The process has gone, and the lock is held.
    let lock = service.ok(&["get", "deploy"]);
    let lock = cells(&lock);
    assert_eq!((lock[0], lock[2], lock[3], lock[4], lock[6]), ("holder", "1", "1", "exclusive", "by hand"));
    let listed = service.ok(&["ls", "dep"]);
    assert_eq!(cells(&listed)[..4], ["deploy", lock[1], "1", "1"]);
    assert_eq!(service.ok(&["ls", "other"]), "");
    assert_eq!(service.ok(&["renew", "--lease", "1"]), "1\t60s\n");

    assert_eq!(cells(&service.ok(&["check", "deploy", "--token", "1"]))[0], "current");
    let stale = service.run(&["check", "deploy", "--token", "7"]);
    assert_eq!((stale.code, cells(&stale.stdout)[0]), (Some(1), "not current"));

    let busy = service.run(&["acquire", "deploy", "--ttl", "60s", "--try"]);
    assert!(busy.complaint(75).contains("deploy is held by"), "{busy:?}");
    let late = service.run(&["acquire", "deploy", "--ttl", "60s", "--wait", "50ms"]);
    assert!(late.complaint(124).contains("the time to wait is over"), "{late:?}");
    assert!(late.complaint(124).contains("`lowkey get deploy`"), "{late:?}");
    let wrong = service.run(&["release", "deploy", "--lease", "1", "--token", "7"]);
    wrong.complaint(76);
    assert_eq!(service.ok(&["release", "deploy", "--lease", "1", "--token", "1"]), "");
    service.run(&["release", "deploy", "--lease", "1", "--token", "1"]).complaint(76);
    service.run(&["renew", "--lease", "77"]).complaint(76);
    assert_eq!(service.ok(&["get", "deploy"]), "free\t-\t-\t-\t-\t-\t-\t-\n");
}

#[test]
fn a_lock_for_a_script_is_shared_or_a_subtree_and_ends_by_itself() {
    let (_folder, _node, service) = one_node();
    for _ in 0..2 {
        service.ok(&["acquire", "reports", "--ttl", "1s", "--shared", "--subtree"]);
    }
    let lock = service.json(&["get", "reports"]);
    assert_eq!(
        (&lock["holders"][1]["mode"], &lock["holders"][1]["scope"]),
        (&"SHARED".into(), &"SUBTREE".into())
    );
    service.run(&["acquire", "reports/2026", "--ttl", "1s", "--try"]).complaint(75);
    let waited = service.json(&["acquire", "reports/2026", "--ttl", "1s", "--wait", "20s"]);
    assert_ne!(waited["waitedMs"], "0", "{waited}");
}

#[test]
fn everything_is_told_as_json_where_that_is_wanted() {
    let (_folder, _node, service) = one_node();
    let grant = service.json(&["acquire", "a/b", "--ttl", "60s"]);
    assert_eq!(
        (&grant["lockName"], &grant["fencingToken"], &grant["leaseId"]),
        (&"a/b".into(), &"1".into(), &"1".into())
    );
    assert_eq!(service.json(&["get", "a/b"])["holders"][0]["leaseId"], "1");
    let listed = service.json(&["ls", "a/"]);
    assert_eq!(listed["locks"][0]["lockName"], "a/b");
    assert!(listed["watchFrom"].as_str().unwrap().parse::<u64>().unwrap() > 1, "{listed}");
    assert_eq!(service.json(&["status"])["clusterSize"], 1);
    assert_eq!(service.json(&["check", "a/b", "--token", "1"])["current"], true);
    assert_eq!(service.json(&["renew", "--lease", "1"])["ttlSeconds"], "60");
    assert_eq!(service.json(&["leader", "nobody"]), Value::Null);
    assert_eq!(service.json(&["release", "a/b", "--lease", "1", "--token", "1"])["released"], true);

    service.ok(&["acquire", "a", "--ttl", "60s"]);
    let (held, none) = (Value::from("LOCK_HELD"), Value::Null);
    for (code, reason, words) in [
        (75, &held, &["run", "a", "--try", "--json", "--", "true"][..]),
        (64, &none, &["run", "--json"]),
        (64, &none, &["ls", "--json", "--wiat"]),
        (64, &none, &["--json", "ls"]),
        (64, &none, &["lock", "a", "--json"]),
        (126, &none, &["run", "b", "--json", "--", "/"]),
        (127, &none, &["run", "b", "--json", "--", "no-such-command"]),
    ] {
        let done = service.run(words);
        let error: Value = serde_json::from_str(&done.stderr)
            .unwrap_or_else(|problem| panic!("{words:?}: {problem}: {done:?}"));
        assert!(error["error"].is_string(), "{error}");
        assert_eq!((done.code, &error["exitStatus"], &error["reason"]), (Some(code), &code.into(), reason));
    }
}

#[test]
fn a_watch_tells_every_change_from_where_it_is_told_to_begin() {
    let (_folder, _node, service) = one_node();
    let from = service.json(&["ls"])["watchFrom"].as_str().unwrap().to_owned();
    service.ok(&["run", "jobs/a", "--", "true"]);
    service.ok(&["run", "other", "--", "true"]);
    let mut watching = Running::start(&mut service.command(&["watch", "jobs/", "--from", &from, "--json"]));
    service.ok(&["acquire", "jobs/b", "--ttl", "60s"]);
    watching.wait_for_lines(3);
    assert!(!watching.has_ended());
    watching.signal(Signal::INT);
    let done = watching.done();
    assert_eq!(done.code, Some(130), "{done:?}");
    let events: Vec<Value> = done.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let told: Vec<(&str, &str)> = events
        .iter()
        .map(|event| (event["type"].as_str().unwrap(), event["name"].as_str().unwrap()))
        .collect();
    assert_eq!(told, [("ACQUIRED", "jobs/a"), ("RELEASED", "jobs/a"), ("ACQUIRED", "jobs/b")]);
    let beyond = service.run(&["watch", "--from", "999999"]);
    beyond.complaint(64);
}

#[test]
fn a_leader_leads_while_its_command_runs() {
    let (_folder, _node, service) = one_node();
    assert_eq!(service.ok(&["leader", "scheduler"]), "");
    let observing = service.start(&["leader", "scheduler", "--watch"]);
    observing.wait_for_lines(1);
    let words = ["elect", "scheduler", "--value", "http://10.0.0.1:4000", "--", "sleep", "1000"];
    let leading = service.start(&words);
    service.wait_until_held("scheduler");
    let leader = service.ok(&["leader", "scheduler"]);
    assert_eq!(cells(&leader)[1], "http://10.0.0.1:4000");
    service.run(&["elect", "scheduler", "--try", "--", "true"]).complaint(75);
    leading.signal(Signal::TERM);
    assert_eq!(leading.done().code, Some(143));
    assert_eq!(service.ok(&["leader", "scheduler"]), "");
    observing.wait_for_lines(3);
    observing.signal(Signal::TERM);
    let observed = observing.done().stdout;
    let lines: Vec<&str> = observed.lines().collect();
    assert_eq!(lines.len(), 3, "nobody, somebody, nobody: {observed}");
    assert!(
        lines[0].starts_with("-\t") && lines[1].contains("10.0.0.1:4000") && lines[2].starts_with("-\t"),
        "{observed}"
    );
}

#[test]
fn a_wrong_command_line_is_one_line_and_status_64() {
    let service = Service::at("http://127.0.0.1:1");
    for words in [
        &["run", "a"][..],
        &["run", "a", "--ttl", "5", "--", "true"],
        &["run", "a", "--ttl", "1500ms", "--", "true"],
        &["run", "a", "--ttl", "1h", "--", "true"],
        &["run", "a", "--try", "--wait", "3s", "--", "true"],
        &["run", "a", "--wiat", "3s", "--", "true"],
        &["acquire", "a"],
        &["acquire", "a", "--ttl", "60s", "--wait", "25h"],
        &["release", "a", "--lease", "1"],
        &["renew", "--lease", "many"],
        &["check", "a", "--token", "-1"],
        &["check", "a", "--token", "0"],
        &["release", "a", "--lease", "1", "--token", "0"],
        &["release", "a", "--lease", "0", "--token", "1"],
        &["ls", "--connect-timeout", "0s"],
        &["ls", "--endpoints", "nowhere"],
        &["completions", "tcsh"],
        &["lock", "a"],
        &["--connect-timeout", "3s", "ls"],
    ] {
        let done = service.run(words);
        let line = done.complaint(64);
        assert!(line.len() < 300, "{line}");
    }
    let told = service.run(&["renew", "--lease", "abc"]);
    assert!(told.complaint(64).contains("must be a number from 1, as `lowkey acquire` printed"), "{told:?}");
    let told = service.run(&["check", "a", "--token", "-1"]);
    assert!(
        told.complaint(64).contains("must be a number from 1") && !told.stderr.contains("tip"),
        "{told:?}"
    );
    let (_folder, _node, service) = one_node();
    for words in [&["get", "a//b"][..], &["acquire", "..", "--ttl", "1s"], &["run", "", "--", "true"]] {
        service.run(words).complaint(64);
    }
}

#[test]
fn a_command_without_a_name_before_it_is_refused() {
    let service = Service::at("http://127.0.0.1:1");
    for words in [&["--try", "--", "nice", "true"][..], &["nice", "true"], &["sh", "-c", "true"], &["nice"]] {
        for command in ["run", "elect"] {
            let words: Vec<&str> = [command].iter().chain(words).copied().collect();
            let done = service.run(&words);
            assert!(done.complaint(64).contains(&format!("lowkey {command} NAME -- COMMAND")), "{done:?}");
        }
    }
    assert!(service.ok(&["run", "--help"]).contains("<NAME> -- <COMMAND>..."));
    assert!(!service.run(&["run", "a", "--wiat", "3s", "--", "true"]).complaint(64).contains("NAME"));
}

#[test]
fn no_service_is_one_line_and_status_69_after_the_time_that_was_given() {
    let nowhere = Service::at(format!("http://127.0.0.1:{}", Ports::free().grpc));
    for words in [
        &["ls"][..],
        &["status"],
        &["run", "a", "--try", "--", "true"],
        &["acquire", "a", "--ttl", "5s"],
        &["leader", "a"],
        &["watch"],
    ] {
        let mut words = words.to_vec();
        words.splice(1..1, ["--connect-timeout", "300ms"]);
        let started = Instant::now();
        let done = nowhere.run(&words);
        assert!(done.complaint(69).contains("Connection refused"), "{done:?}");
        assert!(
            (300..5_000).contains(&started.elapsed().as_millis()),
            "{words:?} took {:?}",
            started.elapsed()
        );
    }
}

#[test]
fn a_port_that_is_not_for_grpc_is_told_at_once_and_with_others_beside_it_only_when_time_is_up() {
    let (_folder, node, _) = one_node();
    let http = format!("http://127.0.0.1:{}", node.ports.http);
    let started = Instant::now();
    let done = Service::at(&http).run(&["ls", "--connect-timeout", "60s"]);
    let line = done.complaint(64);
    assert!(
        line.contains(&http) && line.contains(&format!("gRPC is served at 127.0.0.1:{}", node.ports.grpc)),
        "{line}"
    );
    assert!(started.elapsed().as_secs() < 20, "{:?}", started.elapsed());
    let peers = format!("http://127.0.0.1:{}", node.ports.raft);
    let done = Service::at(&peers).run(&["ls", "--connect-timeout", "60s"]);
    let line = done.complaint(64);
    assert!(line.contains("nodes of the cluster among themselves"), "{line}");
    // The other one may yet come.
    let nowhere = format!("http://127.0.0.1:{}", Ports::free().grpc);
    Service::at(format!("{http},{nowhere}")).run(&["ls", "--connect-timeout", "1s"]).complaint(69);
}

#[test]
fn a_port_that_speaks_another_protocol_is_told_in_words_of_ours() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let _ = std::io::Write::write_all(&mut stream.unwrap(), b"220 mail.example ESMTP\r\n");
        }
    });
    let done = Service::at(&endpoint).run(&["ls", "--connect-timeout", "500ms"]);
    let line = done.complaint(69);
    assert!(line.contains(&endpoint) && line.contains("does not answer in gRPC"), "{line}");
    assert!(!line.contains("transport error"), "{line}");
}

#[test]
fn without_a_majority_every_command_says_so_and_does_not_contradict_itself() {
    let mut cluster = Cluster::start(3);
    let service = Service::of_cluster(&cluster);
    service.ok(&["acquire", "a", "--ttl", "600s"]);
    cluster.nodes[0].kill();
    cluster.nodes[1].kill();
    std::thread::scope(|scope| {
        for words in [
            &["run", "z", "--try", "--", "true"][..],
            &["release", "a", "--lease", "1", "--token", "1"],
            &["renew", "--lease", "1"],
            &["acquire", "z", "--ttl", "5s"],
            &["ls"],
            &["get", "a"],
            &["member", "remove", "n1"],
        ] {
            let service = &service;
            scope.spawn(move || {
                let at = if words[0] == "member" { 2 } else { 1 };
                let mut words = words.to_vec();
                words.splice(at..at, ["--connect-timeout", "4s"]);
                let done = service.run(&words);
                let line = done.complaint(69);
                assert!(line.contains("no leader is known: an election is under way"), "{words:?}: {line}");
                assert!(
                    line.contains("a majority of its nodes; look at `lowkey status`"),
                    "{words:?}: {line}"
                );
                assert_eq!(
                    line.contains("`lowkey get z` shows it"),
                    words[0] == "acquire",
                    "{words:?}: {line}"
                );
                let claims = ["nothing was done", "may have been carried out"];
                assert!(
                    claims.iter().filter(|claim| line.contains(**claim)).count() < 2,
                    "{words:?}: {line}"
                );
                assert!(!line.contains("does not answer"), "{words:?}: {line}");
            });
        }
    });
}

#[test]
fn a_server_that_goes_away_in_the_middle_ends_a_command_with_one_line() {
    let (_folder, mut node, service) = one_node();
    service.ok(&["acquire", "a", "--ttl", "60s"]);
    let waiting = service.start(&["acquire", "a", "--ttl", "5s", "--wait", "1h", "--connect-timeout", "1s"]);
    service.wait_for_queue("a", 1);
    node.kill();
    let done = waiting.done();
    done.complaint(69);
}

#[test]
fn where_the_endpoints_are_does_not_start_a_server() {
    for variable in ["LOWKEY_ENDPOINTS", "LOWKEY_LOCK", "LOWKEY_TOKEN"] {
        let mut command = lowkey();
        let done = Running::start(command.env(variable, "http://127.0.0.1:1")).done();
        assert_eq!(done.code, Some(64));
        assert!(done.stderr.contains("Usage: lowkey <COMMAND>"), "{done:?}");
    }
}

#[test]
fn completions_know_the_commands_and_not_what_is_internal() {
    let service = Service::at("http://127.0.0.1:1");
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = service.ok(&["completions", shell]);
        assert!(script.contains("kill-grace") && !script.contains("__exec"), "{shell}");
    }
}

#[test]
fn a_reader_that_stops_reading_is_no_failure() {
    let (_folder, _node, service) = one_node();
    for number in 0..30 {
        service.ok(&["acquire", &format!("lock{number}"), "--ttl", "60s"]);
    }
    let mut command = service.command(&["ls"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stderr.len()), (Some(0), 0), "{output:?}");
}

#[test]
fn a_development_cluster_serves_every_command_and_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let mut command = lowkey();
    command
        .args(["dev", "--json"])
        .env("TMPDIR", folder.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut dev = command.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(dev.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let about: Value = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"));
    let endpoints: Vec<&str> =
        about["endpoints"].as_array().unwrap().iter().map(|url| url.as_str().unwrap()).collect();
    assert_eq!(endpoints.len(), 3);
    let service = Service::at(endpoints.join(","));
    assert_eq!(service.json(&["status"])["clusterSize"], 3);
    assert_eq!(service.ok(&["run", "nightly", "--try", "--", "echo", "mine"]), "mine\n");
    service.ok(&["elect", "scheduler", "--value", "here", "--", "true"]);
    let grant = service.json(&["acquire", "deploy", "--ttl", "60s"]);
    let (lease, token) = (grant["leaseId"].as_str().unwrap(), grant["fencingToken"].as_str().unwrap());
    service.ok(&["renew", "--lease", lease]);
    service.ok(&["check", "deploy", "--token", token]);
    service.ok(&["release", "deploy", "--lease", lease, "--token", token]);
    for words in [&["ls"][..], &["get", "deploy"], &["leader", "scheduler"], &["status"]] {
        service.ok(words);
    }
    assert!(std::fs::read_dir(folder.path()).unwrap().count() == 1, "its folder is where it is told to be");
    rustix::process::kill_process(rustix::process::Pid::from_child(&dev), Signal::INT).unwrap();
    let status = eventually("it ends", || dev.try_wait().unwrap());
    assert_eq!(status.code(), Some(0));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is left");
}

#[test]
fn a_development_cluster_goes_on_without_a_node_that_is_removed() {
    let folder = tempfile::tempdir().unwrap();
    let dev = Running::start(lowkey().args(["dev", "--json"]).env("TMPDIR", folder.path()));
    let about: Value = eventually("it tells where it is", || serde_json::from_str(&dev.printed()).ok());
    let service = Service::at(
        about["endpoints"]
            .as_array()
            .unwrap()
            .iter()
            .map(|url| url.as_str().unwrap())
            .collect::<Vec<_>>()
            .join(","),
    );
    // One that follows, then the one that leads; the last one stays.
    for left in [2, 1] {
        let members = service.json(&["member", "list"])["members"].clone();
        let wanted = left == 1;
        let member = members.as_array().unwrap().iter().find(|member| member["leader"] == wanted).unwrap();
        let name = member["nodeId"].as_str().unwrap().to_owned();
        service.ok(&["member", "remove", &name]);
        eventually("it says so", || {
            let said = dev.complained();
            let line = said.lines().nth(2 - left)?;
            let line: Value = serde_json::from_str(line).ok()?;
            assert_eq!(line["nodeId"], name.as_str(), "{line}");
            assert!(line["message"].as_str()?.contains("the others go on"), "{line}");
            Some(())
        });
        assert_eq!(service.ok(&["run", "nightly", "--", "echo", "mine"]), "mine\n");
        assert_eq!(service.json(&["status"])["clusterSize"], left);
    }
    dev.signal(Signal::INT);
    let done = dev.done();
    assert_eq!(done.code, Some(0), "{done:?}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is left");
}

#[test]
fn a_development_cluster_that_is_ended_early_leaves_nothing_behind() {
    for signal in [Signal::TERM, Signal::HUP, Signal::INT].into_iter().cycle().take(9) {
        let folder = tempfile::tempdir().unwrap();
        let count = || std::fs::read_dir(folder.path()).unwrap().count();
        let dev = Running::start(lowkey().args(["dev", "--json"]).env("TMPDIR", folder.path()));
        // As soon as there is anything to leave.
        while count() == 0 {
            std::hint::spin_loop();
        }
        dev.signal(signal);
        let done = dev.done();
        assert_eq!((done.code, count()), (Some(0), 0), "{signal:?}: {done:?}");
    }
}

#[test]
fn a_lock_whose_numbers_nobody_can_read_is_given_back() {
    let (_folder, _node, service) = one_node();
    let (reader, gone) = std::io::pipe().unwrap();
    drop(reader);
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    for (output, json) in [(Stdio::from(gone), false), (Stdio::from(full), true)] {
        let mut command = service.command(&["acquire", "a", "--ttl", "10m"]);
        let flag: &[&str] = if json { &["--json"] } else { &[] };
        let output = command.args(flag).stdout(output).stderr(Stdio::piped()).output().unwrap();
        let line = String::from_utf8(output.stderr).unwrap();
        assert_eq!((output.status.code(), line.lines().count()), (Some(1), 1), "{line}");
        assert!(line.contains("the lock was given back"), "{line}");
        assert_eq!(service.ok(&["get", "a"]), "free\t-\t-\t-\t-\t-\t-\t-\n");
    }
}

#[test]
fn a_script_that_waits_leaves_the_line_when_its_terminal_goes_away_unless_it_is_told_not_to_care() {
    let (_folder, _node, service) = one_node();
    service.ok(&["acquire", "a", "--ttl", "10m"]);
    let words = ["acquire", "a", "--ttl", "60s"];
    let waiting = service.start(&words);
    service.wait_for_queue("a", 1);
    waiting.signal(Signal::HUP);
    assert_eq!(waiting.done().code, Some(129));
    service.wait_for_queue("a", 0);

    let mut command = Command::new("nohup");
    command.arg(env!("CARGO_BIN_EXE_lowkey")).args(words).stdin(Stdio::null());
    command.envs(service.command(&[]).get_envs().filter_map(|(name, value)| Some((name, value?))));
    let waiting = Running::start(&mut command);
    service.wait_for_queue("a", 1);
    waiting.signal(Signal::HUP);
    waiting.signal(Signal::TERM);
    assert_eq!(waiting.done().code, Some(143), "the first of the two was not heard");
}

#[test]
fn the_table_of_commands_has_every_command_and_no_other() {
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/start/commands.md");
    let page = std::fs::read_to_string(page).unwrap();
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `lowkey "));
    let mut documented: Vec<&str> = rows.filter_map(|row| row.split([' ', '`']).next()).collect();
    documented.sort_unstable();
    let help = Service::at("http://127.0.0.1:1").ok(&["--help"]);
    let commands = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let commands =
        commands.take_while(|line| !line.is_empty()).filter_map(|line| line.split_whitespace().next());
    let mut commands: Vec<&str> = commands.filter(|command| *command != "help").collect();
    commands.sort_unstable();
    assert_eq!(documented, commands);
}
