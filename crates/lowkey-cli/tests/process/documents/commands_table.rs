//! The table of commands, row by row: each command does what is said beside it.

use serde_json::Value;

use super::typing::page::{Page, Row, filled, variants};
use super::typing::playground::Playground;
use super::typing::terminal::{Curl, Terminal, listen_elsewhere, wait_ready};
use crate::harness::Ports;

#[test]
fn every_command_of_the_table_works_as_printed() {
    let playground = Playground::start().with_endpoints();
    let rows = Page::read("docs/start/commands.md").rows();
    assert!(rows.len() > 10, "{rows:?}");
    for (number, row) in rows.iter().enumerate() {
        for (variant, command) in variants(&row.command).iter().enumerate() {
            run_row(&playground.terminal, row, command, &format!("page/{number}.{variant}"));
        }
    }
    playground.end();
}

/// Runs one command of the table on a lock of its own.
fn run_row(terminal: &Terminal, row: &Row, command: &str, name: &str) {
    const URL: &str = "http://10.0.0.1:4000";
    let begun = terminal.ok("lowkey ls --json");
    let begun: Value = serde_json::from_str(&begun).unwrap();
    let mut fillings = vec![
        ("NAME", name),
        ("COMMAND…", "echo done"),
        ("URL", URL),
        ("PREFIX", "page/"),
        ("REVISION", begun["watchFrom"].as_str().unwrap()),
    ];
    let verb = command.split(' ').nth(1).unwrap();
    // Some are about a lock that is held already.
    let is_held_before = ["release", "renew", "revoke", "lease", "ls", "get", "check"].contains(&verb);
    let grant =
        if is_held_before { terminal.ok(&format!("lowkey acquire {name} --ttl 60s")) } else { String::new() };
    if let [_, lease, token, _] = grant.trim().split('\t').collect::<Vec<_>>()[..] {
        fillings.extend([("L", lease), ("T", token)]);
    }
    let leading = (verb == "leader").then(|| {
        let leading = terminal.start(&format!("lowkey elect {name} --value {URL} -- sleep 1000"));
        terminal.wait_until_held(name);
        leading
    });
    match verb {
        "completions" => {
            let shells = row.what.split_once(" for ").expect("it names the shells").1;
            for shell in shells.split(", ") {
                let script = terminal.ok(&filled(command, &[("SHELL", shell)]));
                assert!(script.contains("lowkey") && script.contains("kill-grace"), "{shell}: {script}");
            }
        }
        "server" => run_server(&filled(command, &fillings)),
        // What it does to a node that is left is told in `recover.rs`.
        "recover" => {
            let done = terminal.run(&filled(command, &[("DIR", "./nowhere")]));
            assert!(done.complaint(1).contains("there is no data directory at ./nowhere"), "{done:?}");
        }
        "backup" => {
            let folder = tempfile::tempdir().unwrap();
            let url = format!("file://{}", folder.path().display());
            let printed = terminal.ok(&filled(command, &[("URL", &url)]));
            assert!(printed.ends_with(" ms\n"), "{printed}");
        }
        "dev" => Playground::typed(&filled(command, &fillings)).end(),
        _ => run_client(terminal, &filled(command, &fillings), name),
    }
    if let Some(leading) = leading {
        leading.ctrl_c();
    }
}

/// Runs a command that talks to the cluster, and looks at what it prints.
fn run_client(terminal: &Terminal, command: &str, name: &str) {
    let goes_on = command.starts_with("lowkey watch") || command.ends_with(" --watch");
    if goes_on {
        let following = terminal.start(command);
        let part =
            if command.starts_with("lowkey watch") { "\tACQUIRED\tpage/" } else { "http://10.0.0.1:4000\t" };
        following.wait_until_printed(part, || drop(terminal.ok("lowkey run page/poke -- true")));
        following.ctrl_c();
        return;
    }
    let printed = terminal.ok(command);
    let line = |start: &str| printed.lines().any(|line| line.starts_with(start));
    let is_right = match command.split(' ').nth(1).unwrap() {
        "run" | "elect" => printed == "done\n",
        "acquire" => line(&format!("{name}\t")) && printed.ends_with("\t60s\n"),
        "release" => printed.is_empty() && terminal.ok(&format!("lowkey get {name}")).starts_with("free\t"),
        "revoke" => {
            line("revoked lease ") && terminal.ok(&format!("lowkey get {name}")).starts_with("free\t")
        }
        "lease" => printed.lines().any(|line| line.split('\t').nth(2) == Some("60s")),
        "renew" => printed.ends_with("\t60s\n"),
        "ls" => line(&format!("{name}\t")),
        "get" => line("holder\t"),
        "check" => line("current\t"),
        "explain" => line(&format!("Nobody holds {name}.")),
        "audit" => printed.contains("\treleased\t"),
        "access" => line("-\t-\t"),
        "health" => line("ok: dev-"),
        "errors" => line("NO_QUORUM") && line("HTTP 503"),
        "leader" => printed.contains("\thttp://10.0.0.1:4000\t"),
        "cert" => line("certs/ca.pem is for lowkey CA "),
        "fence" => printed.contains("CREATE TABLE IF NOT EXISTS lowkey_fence"),
        "bench" => line("lowkey\tseq\t3\t1\tacquire\t"),
        "status" | "member" => ["dev-1", "dev-2", "dev-3"].iter().all(|node| printed.contains(node)),
        _ => panic!("nobody knows what this should do: {command}"),
    };
    assert!(is_right, "{command}\n{printed}");
}

/// Runs a command that starts a node, at ports of its own.
fn run_server(command: &str) {
    let (mut terminal, ports) = (Terminal::new(Curl::best()), Ports::free());
    listen_elsewhere(&mut terminal, ports);
    let server = terminal.start(command);
    wait_ready(ports);
    assert_eq!(server.ctrl_c().code, Some(0));
}
