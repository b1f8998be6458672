//! The whole way of Operate › Secure it: from empty machines to a closed cluster with a job that may do its own work only.
//!
//! All of the page's machines are this one. Each block is typed where the page says.

use serde_json::Value;

use super::clusters::Machines;
use super::typing::page::{Block, Page};
use super::typing::terminal::{replaced, shown};
use crate::harness::eventually;

const PAGE: &str = "docs/operate/secure.md";
const SECTION: &str = "The whole way";
/// What `export` and the crontab set on this page.
const VARIABLES: [&str; 4] = ["LOWKEY_ENDPOINTS", "LOWKEY_CA", "LOWKEY_CERT", "LOWKEY_KEY"];

impl Machines {
    fn set(&mut self, assignment: &str) {
        let (name, value) = assignment.split_once('=').expect("NAME=VALUE");
        let name = VARIABLES.into_iter().find(|known| *known == name);
        let value = self.at(1, value);
        self.terminal.set(name.unwrap_or_else(|| panic!("not known here: {assignment}")), value);
    }

    /// Types a block's commands at one of the machines; gives how many they were.
    fn type_at(&mut self, machine: usize, block: &Block) -> usize {
        let lines = block.lines();
        for line in &lines {
            match line.bare().strip_prefix("export ") {
                Some(assignments) => {
                    assignments.split(' ').for_each(|assignment| self.set(assignment));
                }
                None => {
                    let command = self.at(machine, line.bare());
                    let done = self.terminal.run(&command);
                    assert_eq!(done.code, Some(line.status()), "{command}: {done:?}");
                }
            }
        }
        lines.len()
    }

    fn wait_for_size(&self, size: usize) {
        eventually(&format!("{size} nodes vote"), || {
            let done = self.terminal.run("lowkey status --json");
            let status: Value = serde_json::from_str(&done.stdout).ok()?;
            (status["clusterSize"] == size && status["leaderId"] != "").then_some(())
        });
    }
}

#[test]
fn from_empty_machines_to_a_job_that_may_do_its_own_work_only() {
    let [certificates, founder, invite, second, close, let_in, crontab] = Page::read(PAGE).section(SECTION);
    let mut machines = Machines::new();
    let mut typed = machines.type_at(1, &certificates);
    let mut nodes = vec![machines.terminal.start(&machines.at(1, &founder.text))];
    // Who types the invitation looks first whether the node is there.
    let (exports, invitation) = invite.text.rsplit_once("lowkey member invite").expect("an invitation");
    let part = |text: String| Block { text, ..invite.clone() };
    typed += machines.type_at(1, &part(exports.to_owned()));
    let invitation = part(format!("lowkey member invite{invitation}"));
    let third = second.text.replace("node-2", "node-3").replace("10.0.0.2", "10.0.0.3");
    for (size, node) in [(1, &second.text), (2, &third)] {
        machines.wait_for_size(size);
        typed += machines.type_at(1, &invitation);
        nodes.push(machines.terminal.start(&machines.at(size + 1, node)));
    }
    machines.wait_for_size(3);
    typed += machines.type_at(1, &close);
    typed += machines.type_at(1, &let_in);
    assert!(typed >= 14, "{typed} commands were typed");

    // The job's machine has what the crontab says, and nothing of what was exported before. What is in `/etc/lowkey`
    // there was made here, and the job may keep its lock for less than minutes.
    let certificates = format!("{}/", shown(&machines.terminal.path("work/certs")));
    let program = machines.terminal.path("work/nightly-report");
    let parts = [
        ("/etc/lowkey/".to_owned(), certificates),
        ("/usr/local/bin/nightly-report".to_owned(), shown(&program)),
        ("--at-least 5m".to_owned(), "--at-least 1s".to_owned()),
    ];
    let mut command = None;
    for line in replaced(&crontab.text, &parts).lines() {
        match line.strip_prefix("0 3 * * * ") {
            Some(job) => command = Some(job.to_owned()),
            // Where programs are is each machine's own.
            None if line.starts_with("PATH=") => {}
            None => machines.set(line),
        }
    }
    let command = command.expect("the crontab has a job");
    assert!(command.contains("--at-least 1s"), "{command}");
    machines.terminal.write_program("work/nightly-report", "#!/bin/sh\necho $LOWKEY_TOKEN\n");
    let told = machines.terminal.ok(&command);
    assert!(told.trim().parse::<u64>().is_ok(), "{told}");
    let who = machines.terminal.ok("lowkey access whoami --json");
    assert!(who.contains("nightly-report"), "{who}");
    let other = command.replace("billing/nightly", "payroll");
    let refused = machines.terminal.run(&other);
    assert!(refused.code != Some(0) && refused.stderr.contains("may not acquire on payroll"), "{refused:?}");
    assert_eq!(refused.stdout, "", "nothing is done without the lock");
    let admin = machines.terminal.run("lowkey access principal list");
    assert!(admin.code != Some(0), "{admin:?}");
    // Without a certificate nobody gets in at all.
    machines.terminal.set("LOWKEY_KEY", "certs/missing.pem");
    assert_ne!(machines.terminal.run("lowkey status").code, Some(0));
    for node in nodes {
        assert_eq!(node.ctrl_c().code, Some(0));
    }
}
