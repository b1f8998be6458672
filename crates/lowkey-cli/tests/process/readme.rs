//! The README, typed: its blocks and its table are read from the file itself and really run.
//!
//! Commands go to a shell as they are printed. What is different from a reader's machine is around them: `lowkey`
//! is the binary under test, and ports that a test cannot have are led elsewhere, by the environment where that is
//! possible and by another number where it is printed in a flag.
//!
//! What the README gains is run, too, or makes a test fail: a block in a section that no test knows, a line that
//! fails, a row with a new command or placeholder. Blocks that cannot be run are in [`NOT_RUN`], with the reason.

mod printed;
mod terminal;

use lowkey_client::Client;
use serde_json::Value;

use self::printed::{Block, Row, Typed, blocks, blocks_of_the_commands, filled, is_like, rows, variants};
use self::terminal::{Curl, Job, Terminal, replaced, shown};
use crate::cli::{Done, lives};
use crate::harness::{Ports, eventually, http};

/// Sections whose blocks are run, each by a test below.
const RUN: [&str; 9] = [
    "lowkey",
    "Start it",
    "Take a lock",
    "Wait, share, watch, lead",
    "From Rust",
    "The commands",
    "Three nodes",
    "Three machines",
    "Recipes",
];

/// The first lines of blocks that are not run, and why.
const NOT_RUN: [(&str, &str); 5] = [
    ("cargo test --workspace", "this test is a part of it"),
    ("     clients: curl, gRPC                          any node takes any call", "a drawing"),
    (
        "worker-1   acquire ─► token 33    ~ ~ ~ paused, its lease runs out ~ ~ ~    write with 33 ─► refused",
        "a drawing",
    ),
    (
        "-- 0, not NULL: nothing is <= compared with NULL, and the first write would find no row.",
        "there is no database here",
    ),
    (
        "cargo run --release -p lowkey-sim -- --minutes 10        # new seeds, on all cores",
        "it takes ten minutes, and the simulator has tests of its own",
    ),
];

fn is_not_run(block: &Block) -> bool {
    NOT_RUN.iter().any(|(first_line, _)| *first_line == block.first_line())
}

/// The blocks of a section that are to be run; there must be so many.
fn section<const COUNT: usize>(name: &str) -> [Block; COUNT] {
    assert!(RUN.contains(&name), "{name} is not in the list");
    let blocks: Vec<Block> =
        blocks().into_iter().filter(|block| block.section == name && !is_not_run(block)).collect();
    let found = blocks.len();
    blocks
        .try_into()
        .unwrap_or_else(|_| panic!("{COUNT} blocks of {name:?} are known here, and it has {found}"))
}

#[test]
fn every_block_is_run_or_there_is_a_reason_why_not() {
    let blocks = blocks();
    for block in &blocks {
        assert!(
            RUN.contains(&block.section) || is_not_run(block),
            "nobody runs what is under {:?}:\n{}",
            block.section,
            block.text
        );
    }
    for (first_line, reason) in NOT_RUN {
        let count = blocks.iter().filter(|block| block.first_line() == first_line).count();
        assert_eq!(count, 1, "one block begins with {first_line:?} ({reason})");
    }
}

// One node, and plain HTTP.

/// The node that the README has a reader start, at ports of its own.
struct FirstNode {
    terminal: Terminal,
    ports: Ports,
    job: Job,
}

impl FirstNode {
    fn start(curl: Curl) -> Self {
        let [block] = section("Start it");
        let typed =
            block.text.strip_prefix("cargo run --release -- ").expect("that is how a node is started");
        let (mut terminal, ports) = (Terminal::new(curl), Ports::free());
        listen_elsewhere(&mut terminal, ports);
        terminal.redirect(8080, ports.http);
        let job = terminal.start(&format!("lowkey {typed}"));
        wait_ready(ports);
        Self { terminal, ports, job }
    }

    /// Types a line that answers, and compares.
    fn ask(&self, line: &Typed) {
        let answer = self.terminal.ok(&line.command);
        self.compare(line, &answer);
    }

    fn compare(&self, line: &Typed, answer: &str) {
        let Typed { command, answer: expected } = line;
        let answer = answer.trim_end().replace(&format!("127.0.0.1:{}", self.ports.grpc), "127.0.0.1:9000");
        match expected {
            Some(expected) => {
                assert!(is_like(&answer, expected), "{command}\nanswers  {answer}\ninstead of {expected}");
            }
            None => {
                let answer: Value =
                    serde_json::from_str(&answer).unwrap_or_else(|_| panic!("{command}: {answer}"));
                assert!(answer.get("reason").is_none(), "{command}\nis refused: {answer}");
            }
        }
    }

    fn post(&self, path: &str, body: &str) -> Value {
        let (status, text) = http(self.ports.http, "POST", path, body).expect("an answer");
        assert_eq!(status, 200, "{path} {body}: {text}");
        serde_json::from_str(&text).unwrap()
    }

    /// Types a line that waits for a lock, while it is held.
    fn wait_in_line(&self, line: &Typed) {
        let holder = r#"{"lock_name":"jobs/nightly","owner_id":"holder","ttl_seconds":600}"#;
        let grant = self.post("/v1/lock/acquire", holder);
        let waiting = self.terminal.start(&line.command);
        eventually("it waits in line", || {
            let (_, lock) = http(self.ports.http, "GET", "/v1/lock?name=jobs/nightly", "")?;
            lock.contains(r#""ownerId":"worker-3""#).then_some(())
        });
        assert_eq!(waiting.printed(), "", "it is not its turn");
        self.post(
            "/v1/lock/release",
            &format!(r#"{{"lock_name":"jobs/nightly","lease_id":{}}}"#, grant["leaseId"]),
        );
        self.compare(line, &waiting.done().stdout);
    }

    /// Types a line that goes on, and ends it when it has told something.
    fn follow(&self, line: &Typed) {
        let following = self.terminal.start(&line.command);
        following.wait_until_printed("data: {", || {
            let change = r#"{"lock_name":"jobs/other","owner_id":"other","ttl_seconds":600}"#;
            let grant = self.post("/v1/lock/acquire", change);
            self.post(
                "/v1/lease/revoke",
                &format!(r#"{{"lease_id":{},"owner_id":"other"}}"#, grant["leaseId"]),
            );
        });
        following.ctrl_c();
    }
}

/// Has nodes that are started here listen at these ports, unless a flag says otherwise.
fn listen_elsewhere(terminal: &mut Terminal, ports: Ports) {
    terminal.set("LOWKEY_RAFT_ADDR", format!("127.0.0.1:{}", ports.raft));
    terminal.set("LOWKEY_GRPC_ADDR", format!("127.0.0.1:{}", ports.grpc));
    terminal.set("LOWKEY_HTTP_ADDR", format!("127.0.0.1:{}", ports.http));
}

fn wait_ready(ports: Ports) {
    eventually("the node is ready", || (http(ports.http, "GET", "/readyz", "")?.0 == 200).then_some(()));
}

/// How a node sees the cluster; nothing while it does not answer.
fn status(ports: Ports) -> Option<Value> {
    Some(serde_json::from_str(&http(ports.http, "GET", "/v1/status", "")?.1).unwrap())
}

fn wait_for_size(ports: &[Ports], size: usize) {
    eventually(&format!("{size} nodes vote"), || {
        let sizes = ports.iter().map(|ports| Some(status(*ports)?["clusterSize"] == size));
        sizes.collect::<Option<Vec<bool>>>()?.into_iter().all(|is_whole| is_whole).then_some(())
    });
}

#[test]
fn the_calls_are_answered_as_printed() {
    for curl in Curl::all() {
        let node = FirstNode::start(curl);
        let [lease_first, in_one_call] = section("Take a lock");
        for line in lease_first.lines().iter().chain(&in_one_call.lines()) {
            assert!(line.answer.is_some(), "the answer is printed: {line:?}");
            node.ask(line);
        }
        let [more] = section("Wait, share, watch, lead");
        for line in more.lines() {
            match &line.command {
                command if command.starts_with("curl -N ") => node.follow(&line),
                command if command.contains("\"wait_ms\"") => node.wait_in_line(&line),
                _ => node.ask(&line),
            }
        }
        assert_eq!(node.job.ctrl_c().code, Some(0));
    }
}

#[test]
fn a_lease_of_a_former_life_is_ended_as_the_recipe_says() {
    let node = FirstNode::start(Curl::best());
    let [recipe] = section("Recipes");
    let [revoke] = &recipe.lines()[..] else { panic!("one line: {recipe:?}") };
    // It speaks of lease 7.
    for _ in 1..=6 {
        node.post("/v1/lease", r#"{"owner_id":"others","ttl_seconds":600}"#);
    }
    let mine = r#"{"lock_name":"mine","owner_id":"worker-1","ttl_seconds":600}"#;
    assert_eq!(node.post("/v1/lock/acquire", mine)["leaseId"], "7");
    let (refused, _) = http(node.ports.http, "POST", "/v1/lock/acquire", mine).unwrap();
    assert_eq!(refused, 409, "the owner is the same, the lease is not");
    node.ask(revoke);
    node.post("/v1/lock/acquire", mine);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_rust_code_is_compiled_and_does_what_it_says() {
    let node = FirstNode::start(Curl::best());
    let endpoint = format!("http://127.0.0.1:{}", node.ports.grpc);
    let client = from_rust(&endpoint).await.unwrap();
    assert!(client.get("billing/nightly").await.unwrap().holders.is_empty(), "it was given back");

    let here = include_str!("readme.rs").split_once("// As printed:\n").unwrap().1;
    let here: Vec<&str> = here.lines().map(str::trim).take_while(|line| *line != "// So far.").collect();
    let [block] = section("From Rust");
    let code = block.text.replace("\"http://127.0.0.1:9000\"", "endpoint");
    let code = code.lines().map(|line| line.split("   // ").next().unwrap().trim());
    assert_eq!(code.collect::<Vec<_>>(), here, "the README, and what is compiled here");
}

async fn from_rust(endpoint: &str) -> Result<Client, Box<dyn std::error::Error>> {
    async fn do_the_work(token: u64) {
        assert_eq!(token, 1);
    }
    // As printed:
    use std::time::Duration;

    use lowkey_client::Client;

    let client = Client::connect([endpoint]).await?;
    let session = client.session(Duration::from_secs(10)).await?;

    let guard = session.lock("billing/nightly").acquire().await?;
    guard.run(do_the_work(guard.token())).await?;
    guard.release().await?;
    // So far.
    Ok(client)
}

// Three nodes to play with, and the commands.

/// `lowkey dev`, and a terminal beside it.
struct Playground {
    terminal: Terminal,
    dev: Job,
    text: String,
}

impl Playground {
    fn start() -> Self {
        Self::typed("lowkey dev")
    }

    fn typed(command: &str) -> Self {
        let terminal = Terminal::new(Curl::best());
        let dev = terminal.start(command);
        let text = dev.wait_until_printed("/v1/locks\n", || {});
        Self { terminal, dev, text }
    }

    /// Tells commands by the environment where the nodes are: they may not have the usual ports.
    fn with_endpoints(mut self) -> Self {
        self.terminal.set("LOWKEY_ENDPOINTS", self.endpoints());
        self
    }

    fn endpoints(&self) -> String {
        let line = self.text.lines().find_map(|line| line.trim().strip_prefix("gRPC "));
        line.expect("it says where it is").trim().to_owned()
    }

    /// What it says to try.
    fn to_try(&self) -> Vec<String> {
        let lines = self.text.lines().skip_while(|line| !line.contains("Try, in another terminal:")).skip(1);
        lines.map(|line| line.trim().to_owned()).filter(|line| !line.is_empty()).collect()
    }

    fn end(self) {
        let done = self.dev.ctrl_c();
        assert_eq!(done.code, Some(0), "{done:?}");
        assert_eq!(
            std::fs::read_dir(self.terminal.path("tmp")).unwrap().count(),
            0,
            "nothing is left behind"
        );
    }
}

#[test]
fn what_the_development_cluster_says_to_try_works() {
    let playground = Playground::start();
    let terminal = &playground.terminal;
    let (mut go_on, mut watches) = (Vec::new(), Vec::new());
    let lines = playground.to_try();
    assert!(lines.len() > 5, "{lines:?}");
    for line in &lines {
        let words: Vec<&str> = line.split(' ').collect();
        match words[1] {
            "run" | "elect" if line.ends_with(" -- sleep 30") => {
                go_on.push(terminal.start(line));
                let endpoints = playground.endpoints();
                terminal.wait_until_held(&format!("{} --endpoints {endpoints}", words[2]));
            }
            // The line above it holds the lock.
            "run" => assert!(terminal.run(line).complaint(75).contains("nightly is held by")),
            "watch" => watches.push(terminal.start(line)),
            _ => assert_ne!(terminal.ok(line), "", "{line}"),
        }
    }
    for watch in watches {
        watch.wait_until_printed("\tACQUIRED\tpoke", || {
            terminal.ok(&format!("lowkey run poke --endpoints {} -- true", playground.endpoints()));
        });
        watch.ctrl_c();
    }
    go_on.into_iter().for_each(|job| drop(job.ctrl_c()));
    let again =
        lines.iter().find(|line| line.ends_with(" -- echo mine")).expect("one line wants the lock, too");
    assert_eq!(terminal.ok(again), "mine\n");
    playground.end();
}

#[test]
fn the_commands_to_begin_with_do_what_is_said() {
    let playground = Playground::start().with_endpoints();
    let terminal = &playground.terminal;
    let [block] = section("The commands");
    let printed = terminal.ok(&block.text);
    let [token, deploy, listed] = &printed.lines().collect::<Vec<_>>()[..] else { panic!("{printed}") };
    assert_eq!(*token, "2", "the second of two runs");
    assert!(
        deploy.starts_with("deploy\t") && deploy.ends_with("\t3\t60s"),
        "lock, lease, token and TTL: {deploy}"
    );
    assert!(listed.starts_with("deploy\t"), "{listed}");

    // And what is said beside the first line.
    terminal.ok("lowkey acquire nightly --ttl 60s");
    terminal.run(&block.lines()[0].command).complaint(75);
    playground.end();
}

#[test]
fn every_command_of_the_table_works_as_printed() {
    let playground = Playground::start().with_endpoints();
    let rows = rows();
    assert!(rows.len() > 10, "{rows:?}");
    for (number, row) in rows.iter().enumerate() {
        for (variant, command) in variants(row.command).iter().enumerate() {
            run_row(&playground.terminal, row, command, &format!("readme/{number}.{variant}"));
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
        ("PREFIX", "readme/"),
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
        let part = if command.starts_with("lowkey watch") {
            "\tACQUIRED\treadme/"
        } else {
            "http://10.0.0.1:4000\t"
        };
        following.wait_until_printed(part, || drop(terminal.ok("lowkey run readme/poke -- true")));
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
        "leader" => printed.contains("\thttp://10.0.0.1:4000\t"),
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

#[test]
fn the_cron_job_runs_on_one_machine_only() {
    let playground = Playground::start();
    let terminal = &playground.terminal;
    let [block] = section("lowkey");
    let command = block.text.trim().strip_prefix("0 3 * * *  ").expect("five fields, and a command");
    // The job is quick, and the lock is not free when it has ended.
    let (job, pid) = (terminal.path("nightly-report"), terminal.path("pid"));
    terminal.write_program("nightly-report", &format!("#!/bin/sh\necho $$ > {}\necho runs\n", pid.display()));
    let command = replaced(
        command,
        &[
            ("http://10.0.0.1:9000,http://10.0.0.2:9000".into(), playground.endpoints()),
            ("/usr/local/bin/nightly-report".into(), shown(&job)),
        ],
    );
    assert!(!command.contains("10.0.0.") && command.ends_with(&shown(&job)), "{command}");
    let first = terminal.start(&command);
    first.wait_until_printed("runs\n", || {});
    let pid = std::fs::read_to_string(pid).unwrap();
    eventually("the job has ended", || (!lives(&pid)).then_some(()));
    terminal.run(&command).complaint(75);
    let Done { code, stdout, stderr } = first.ctrl_c();
    assert_eq!((code, stdout.as_str(), stderr.as_str()), (Some(0), "runs\n", ""));
    playground.end();
}

#[test]
fn the_script_that_takes_a_lock_works_only_while_it_has_it() {
    let playground = Playground::start().with_endpoints();
    let terminal = &playground.terminal;
    let scripts: Vec<Block> =
        blocks_of_the_commands().into_iter().filter(|block| block.text.contains("lowkey acquire")).collect();
    let [script] = &scripts[..] else { panic!("one script: {scripts:?}") };
    for half in ["first-half", "second-half"] {
        let look = format!("#!/bin/sh\necho {half} $(lowkey get deploy | cut -f 1)\n");
        terminal.write_program(&format!("work/{half}"), &look);
    }
    terminal.write_program("work/script", &script.text);
    assert_eq!(terminal.ok("sh ./script"), "first-half holder\nsecond-half holder\n");
    assert!(terminal.ok("lowkey get deploy").starts_with("free\t"), "it was given back");

    // Somebody else has it.
    terminal.ok("lowkey acquire deploy --ttl 10m");
    let impatient = script.text.replace("--wait 5m", "--try");
    assert_ne!(impatient, script.text);
    terminal.write_program("work/script", &impatient);
    let done = terminal.run("sh ./script");
    done.complaint(75);
    assert_eq!(done.stdout, "", "nothing is done without the lock");
    playground.end();
}

// Clusters, node by node.

#[test]
fn three_nodes_on_one_machine_come_together() {
    let [first, second, third, calls] = section("Three nodes");
    let ports = [Ports::free(), Ports::free(), Ports::free()];
    let mut terminal = Terminal::new(Curl::best());
    listen_elsewhere(&mut terminal, ports[0]);
    std::fs::create_dir_all(terminal.path("work/target/release")).unwrap();
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_lowkey"), terminal.path("work/target/release/lowkey"))
        .unwrap();
    let mut addresses = Vec::new();
    for (number, ports) in (0..).zip(ports) {
        let here = [(7000, ports.raft), (9000, ports.grpc), (8080, ports.http)];
        addresses.extend(
            here.map(|(port, here)| (format!("127.0.0.1:{}", port + number), format!("127.0.0.1:{here}"))),
        );
        terminal.redirect(8080 + number, ports.http);
    }
    let typed = [first, second, third].map(|block| replaced(&block.text, &addresses));
    let [founder, _second, _third] = typed.each_ref().map(|command| terminal.start(command));
    wait_for_size(&ports, 3);

    let calls = calls.lines();
    assert_eq!(calls.len(), 2, "{calls:?}");
    for Typed { command, .. } in calls {
        // On a machine that is very busy the lead may change just now.
        let answer = eventually("somebody leads", || {
            Some(terminal.ok(&command)).filter(|answer| !answer.contains("\"NO_"))
        });
        assert!(!answer.contains("\"reason\""), "{command}: {answer}");
        if let Some((_, expected)) = command.split_once("    # ") {
            assert!(answer.contains(expected), "{command}: {answer}");
        }
    }

    // Stopped, and started again with the same flags: it does not found a second cluster.
    let cluster = status(ports[1]).unwrap()["clusterId"].clone();
    assert_eq!(founder.ctrl_c().code, Some(0));
    let _founder = terminal.start(&typed[0]);
    wait_ready(ports[0]);
    wait_for_size(&ports, 3);
    assert_eq!(status(ports[0]).unwrap()["clusterId"], cluster);
}

/// Three machines, all of them this one.
struct Machines {
    terminal: Terminal,
    ports: [Ports; 3],
}

impl Machines {
    fn new() -> Self {
        Self { terminal: Terminal::new(Curl::best()), ports: [Ports::free(), Ports::free(), Ports::free()] }
    }

    /// What is typed at one of the machines, with addresses and a folder that a test can have.
    fn at(&self, machine: usize, text: &str) -> String {
        let mut parts = Vec::new();
        for (number, ports) in (1..).zip(self.ports) {
            for (port, here) in [(7000, ports.raft), (9000, ports.grpc), (8080, ports.http)] {
                parts.push((format!("10.0.0.{number}:{port}"), format!("127.0.0.1:{here}")));
                if number == machine {
                    parts.push((format!(" :{port}"), format!(" :{here}")));
                    parts.push((format!("=:{port}"), format!("=:{here}")));
                }
            }
        }
        let data = self.terminal.path(&format!("machine-{machine}"));
        parts.push(("/var/lib/lowkey".into(), shown(&data)));
        replaced(text, &parts)
    }
}

#[test]
fn three_machines_come_together_by_flags() {
    let [first, second, ..]: [Block; 4] = section("Three machines");
    let third = second.text.replace("node-2", "node-3").replace("10.0.0.2", "10.0.0.3");
    let machines = Machines::new();
    let typed = [machines.at(1, &first.text), machines.at(2, &second.text), machines.at(3, &third)];
    let _nodes = typed.each_ref().map(|command| machines.terminal.start(command));
    wait_for_size(&machines.ports, 3);
}

#[test]
fn three_machines_come_together_by_the_unit_and_its_settings() {
    let [_, second, unit, settings] = section("Three machines");
    let setting = |name: &str| {
        let lines = unit.text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
        lines.unwrap_or_else(|| panic!("the unit has no {name}"))
    };
    let file = setting("EnvironmentFile");
    assert_eq!(settings.first_line(), format!("# {file} on 10.0.0.1"));
    let exec = setting("ExecStart").strip_prefix("/usr/local/bin/").expect("where it is installed");
    // The line that only the very first start has.
    let founding = settings.text.replace("# LOWKEY_BOOTSTRAP=", "LOWKEY_BOOTSTRAP=");
    assert_ne!(founding, settings.text);

    let machines = Machines::new();
    let start = |settings: &str| {
        std::fs::write(machines.terminal.path("work/lowkey.env"), machines.at(1, settings)).unwrap();
        machines.terminal.start(&format!("set -a; . ./lowkey.env; exec {exec}"))
    };
    let founder = start(&founding);
    wait_ready(machines.ports[0]);
    let _second = machines.terminal.start(&machines.at(2, &second.text));
    wait_for_size(&machines.ports[..2], 2);
    assert_eq!(founder.ctrl_c().code, Some(0));
    let _founder = start(&settings.text);
    wait_ready(machines.ports[0]);
    wait_for_size(&machines.ports[..2], 2);
}
