//! The README, typed: every block of it is run, or there is a reason why not.

use lowkey_client::Client;

use super::typing::page::{Block, Page, Typed, is_like};
use super::typing::playground::Playground;
use super::typing::terminal::{Curl, Job, Terminal, listen_elsewhere, replaced, shown, wait_ready};
use crate::cli::{Done, lives};
use crate::harness::{Ports, eventually};

/// Sections whose blocks are run, each by a test below.
const RUN: [&str; 5] =
    ["Start", "A cron job that runs once", "With curl", "From Rust", "Three nodes in one command"];

/// The first lines of blocks that are not run, and why.
const NOT_RUN: [(&str, &str); 3] = [
    ("  cron job, service, script            three nodes, Raft between them", "a drawing"),
    ("cargo install --path crates/lowkey-cli", "the binary under test is there already"),
    ("cargo test --workspace", "this test is a part of it"),
];

fn readme() -> Page {
    Page::read("README.md")
}

fn is_not_run(block: &Block) -> bool {
    NOT_RUN.iter().any(|(first_line, _)| *first_line == block.first_line())
}

#[test]
fn every_block_is_run_or_there_is_a_reason_why_not() {
    let blocks = readme().blocks();
    for block in &blocks {
        assert!(
            RUN.contains(&block.section.as_str()) || is_not_run(block),
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

/// The node that the README has a reader start, at ports of its own.
struct FirstNode {
    terminal: Terminal,
    ports: Ports,
    job: Job,
}

impl FirstNode {
    fn start(curl: Curl) -> Self {
        let block = readme().block_with("--bootstrap");
        let typed =
            block.text.strip_prefix("cargo run --release -- ").expect("that is how a node is started");
        let (mut terminal, ports) = (Terminal::new(curl), Ports::free());
        listen_elsewhere(&mut terminal, ports);
        terminal.redirect(8080, ports.http);
        let job = terminal.start(&format!("lowkey {typed}"));
        wait_ready(ports);
        Self { terminal, ports, job }
    }

    /// Types a line that answers, and compares to the letter.
    fn ask(&self, Typed { command, answer: expected }: &Typed) {
        let expected = expected.as_ref().unwrap_or_else(|| panic!("the answer is printed: {command}"));
        let answer = self.terminal.ok(command);
        assert!(is_like(answer.trim_end(), expected), "{command}\nanswers  {answer}\ninstead of {expected}");
    }
}

#[test]
fn the_calls_are_answered_as_printed() {
    for curl in Curl::all() {
        let node = FirstNode::start(curl);
        let [calls] = readme().section("With curl");
        let lines = calls.lines();
        assert!(lines.len() >= 4, "{lines:?}");
        lines.iter().for_each(|line| node.ask(line));
        assert_eq!(node.job.ctrl_c().code, Some(0));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_rust_code_is_compiled_and_does_what_it_says() {
    let node = FirstNode::start(Curl::best());
    let endpoint = format!("http://127.0.0.1:{}", node.ports.grpc);
    let client = from_rust(&endpoint).await.unwrap();
    assert!(client.get("billing/nightly").await.unwrap().holders.is_empty(), "it was given back");

    let here = include_str!("readme.rs").split_once("// As printed:\n").unwrap().1;
    let here: Vec<&str> = here.lines().map(str::trim).take_while(|line| *line != "// So far.").collect();
    let [block] = readme().section("From Rust");
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
    let [block] = readme().section("Three nodes in one command");
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
fn the_cron_job_runs_on_one_machine_only() {
    let playground = Playground::start();
    let terminal = &playground.terminal;
    let [block] = readme().section("A cron job that runs once");
    let guide = Page::read("docs/guides/cron.md").block_with("0 3 * * *");
    assert_eq!(block.text, guide.text, "the README and the guide have the same line");
    let command = block.text.trim().strip_prefix("0 3 * * *  ").expect("five fields, and a command");
    // The job is quick, and the lock is not free when it has ended.
    let (job, pid) = (terminal.path("nightly-report"), terminal.path("pid"));
    terminal.write_program("nightly-report", &format!("#!/bin/sh\necho $$ > {}\necho runs\n", pid.display()));
    let command = replaced(
        command,
        &[
            ("http://10.0.0.1:9000,http://10.0.0.2:9000,http://10.0.0.3:9000".into(), playground.endpoints()),
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
