//! Types a page from top to bottom, beside `lowkey dev`, and compares what is answered.
//!
//! What a page may print:
//!
//! - a command, and below it as a comment what it answers; `…` stands for anything, and white space is not compared
//! - `# status 75` behind a command that fails, four spaces away; what it complains of is part of its answer
//! - ` &` behind a command that holds a lock until the page ends
//! - commands that go on (`lowkey watch`, `curl -N`): they are ended when they have told what the page says
//! - a script, with its name as a comment in the first line below `#!/bin/sh`; another file, with it in the first line

use std::process::{Command, Stdio};

use super::page::{Block, Page, Typed, says};
use super::playground::Playground;
use super::terminal::Job;
use crate::harness::eventually;

/// What commands begin with that are not typed, and why.
const NOT_TYPED: [(&str, &str); 3] = [
    ("cargo install ", "the binary under test is there already"),
    ("cargo run -p ", "the examples of the SDK are compiled by its own tests"),
    ("lowkey dev", "everything else is typed beside it"),
];

/// Types all shell blocks of a page; gives how many commands that were.
pub(crate) fn play(path: &'static str) -> usize {
    let mut player = Player { playground: Playground::start().with_endpoints(), held: Vec::new(), typed: 0 };
    for block in Page::read(path).blocks() {
        player.play(&block);
    }
    for job in player.held {
        job.ctrl_c();
    }
    player.playground.end();
    player.typed
}

struct Player {
    playground: Playground,
    /// What holds locks in the background.
    held: Vec<Job>,
    typed: usize,
}

impl Player {
    fn play(&mut self, block: &Block) {
        if let Some(name) = block.file_name() {
            self.playground.terminal.write_program(&format!("work/{name}"), &block.text);
        } else if block.language == "sh" {
            for line in block.lines().iter().filter(|line| is_typed(line)) {
                self.type_line(line);
                self.typed += 1;
            }
        }
    }

    fn type_line(&mut self, line: &Typed) {
        let command = line.bare();
        if let Some(holding) = command.strip_suffix(" &") {
            let name = holding.split(' ').nth(2).expect("the name of a lock").to_owned();
            self.held.push(self.playground.terminal.start(holding));
            self.playground.terminal.wait_until_held(&name);
        } else if goes_on(command) {
            self.follow(line);
        } else {
            let done = self.playground.terminal.run(command);
            let answer = format!("{}{}", done.stdout, done.stderr);
            assert_eq!(done.code, Some(line.status()), "{command}\n{answer}");
            match &line.answer {
                Some(expected) => {
                    assert!(says(&answer, expected), "{command}\nanswers  {answer}\ninstead of {expected}");
                }
                None => assert!(!answer.contains("\"reason\""), "{command}\nis refused: {answer}"),
            }
        }
    }

    /// Types a line that goes on, and ends it when it has told what the page says.
    fn follow(&self, line: &Typed) {
        let expected = line.answer.as_deref().unwrap_or_else(|| panic!("the answer is printed: {line:?}"));
        let following = self.playground.terminal.start(line.bare());
        eventually(&format!("{} tells {expected}", line.command), || {
            self.change();
            says(&following.printed(), &format!("{expected}…")).then_some(())
        });
        following.ctrl_c();
    }

    /// Something to tell of.
    fn change(&self) {
        let change = r#"{"lock_name":"jobs/other","owner_id":"other","ttl_seconds":600}"#;
        let grant = self.playground.post("/v1/lock/acquire", change);
        let end = format!(r#"{{"lease_id":{},"owner_id":"other"}}"#, grant["leaseId"]);
        self.playground.post("/v1/lease/revoke", &end);
    }
}

/// Whether a reader types it here, on this machine.
fn is_typed(line: &Typed) -> bool {
    let is_excused = NOT_TYPED.iter().any(|(start, _)| line.command.starts_with(start));
    let is_missing = line.command.starts_with("python3 ") && !is_installed("python3");
    !is_excused && !is_missing
}

fn goes_on(command: &str) -> bool {
    command.starts_with("lowkey watch") || command.starts_with("curl -N ") || command.ends_with(" --watch")
}

fn is_installed(program: &str) -> bool {
    let look = Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    look.is_ok_and(|status| status.success())
}
