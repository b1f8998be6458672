//! The book, typed: what its pages for users tell to type is typed, and answers as they say.

use std::fs;

use super::typing::page::Page;
use super::typing::player::play;
use super::typing::playground::Playground;
use crate::harness::http;

/// Pages that are typed from top to bottom, each by a test below.
const PLAYED: [&str; 12] = [
    "docs/start/five-minutes.md",
    "docs/guides/choosing-a-ttl.md",
    "docs/guides/cron.md",
    "docs/guides/fencing.md",
    "docs/guides/force-unlock.md",
    "docs/guides/from-other-languages.md",
    "docs/guides/incident.md",
    "docs/guides/leader-election.md",
    "docs/guides/migration.md",
    "docs/guides/rate-of-one.md",
    "docs/guides/sharing.md",
    "docs/guides/watching.md",
];

/// Pages whose commands have tests of their own.
const TYPED_ELSEWHERE: [&str; 2] = ["docs/start/commands.md", "docs/start/three-nodes.md"];

#[test]
fn every_page_for_users_with_commands_is_typed() {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../../");
    for folder in ["docs/start/", "docs/guides/"] {
        for file in fs::read_dir(format!("{root}{folder}")).unwrap() {
            let path = format!("{folder}{}", file.unwrap().file_name().to_string_lossy());
            let text = fs::read_to_string(format!("{root}{path}")).unwrap();
            let is_typed = PLAYED.contains(&path.as_str()) || TYPED_ELSEWHERE.contains(&path.as_str());
            assert!(is_typed || !text.contains("```sh"), "nobody types what {path} tells to type");
        }
    }
}

macro_rules! played {
    ($($test:ident: $page:literal, at least $commands:literal;)*) => {
        $(
            #[test]
            fn $test() {
                assert!(PLAYED.contains(&$page));
                let typed = play($page);
                assert!(typed >= $commands, "{typed} commands of {} were typed", $page);
            }
        )*
    };
}

played! {
    five_minutes_are_as_told: "docs/start/five-minutes.md", at least 12;
    the_guide_to_a_ttl_is_as_told: "docs/guides/choosing-a-ttl.md", at least 1;
    the_guide_to_cron_is_as_told: "docs/guides/cron.md", at least 5;
    the_guide_to_fencing_is_as_told: "docs/guides/fencing.md", at least 3;
    the_guide_to_force_unlock_is_as_told: "docs/guides/force-unlock.md", at least 6;
    the_guide_for_other_languages_is_as_told: "docs/guides/from-other-languages.md", at least 7;
    the_guide_to_an_incident_is_as_told: "docs/guides/incident.md", at least 9;
    the_guide_to_leader_election_is_as_told: "docs/guides/leader-election.md", at least 5;
    the_guide_to_migrations_is_as_told: "docs/guides/migration.md", at least 1;
    the_guide_to_a_rate_of_one_is_as_told: "docs/guides/rate-of-one.md", at least 4;
    the_guide_to_sharing_is_as_told: "docs/guides/sharing.md", at least 8;
    the_guide_to_watching_is_as_told: "docs/guides/watching.md", at least 4;
}

#[test]
fn a_lease_of_a_former_life_is_ended_as_the_guide_says() {
    let playground = Playground::start().with_endpoints();
    let revoke = Page::read("docs/guides/force-unlock.md").block_with(r#""lease_id":7"#);
    // It speaks of lease 7.
    for _ in 1..=6 {
        playground.post("/v1/lease", r#"{"owner_id":"others","ttl_seconds":600}"#);
    }
    let mine = r#"{"lock_name":"mine","owner_id":"worker-1","ttl_seconds":600}"#;
    assert_eq!(playground.post("/v1/lock/acquire", mine)["leaseId"], "7");
    let (refused, _) = http(playground.http_port(), "POST", "/v1/lock/acquire", mine).unwrap();
    assert_eq!(refused, 409, "the owner is the same, the lease is not");
    assert_eq!(playground.terminal.ok(&revoke.text).trim(), r#"{"released":"1"}"#);
    playground.post("/v1/lock/acquire", mine);
    playground.end();
}

#[test]
fn the_script_that_takes_a_lock_works_only_while_it_has_it() {
    let playground = Playground::start().with_endpoints();
    let terminal = &playground.terminal;
    let script = Page::read("docs/guides/migration.md").block_with("lowkey acquire");
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
