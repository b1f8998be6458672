//! The reference of commands and flags: its tables in `docs/reference` are written from the command line's own
//! declaration, and a test compares them.

use std::fmt::Write as _;
use std::path::PathBuf;

use clap::{Arg, ArgAction, Command, CommandFactory as _};

use crate::Cli;

/// What is between these lines is written by the test below.
const BEGIN: &str = "<!-- generated: the next lines are written by a test -->";
const END: &str = "<!-- end of what is generated -->";

const UPDATE: &str = "UPDATE_GOLDENFILES=1 cargo test -p lowkey-cli --bin lowkey reference";

#[test]
fn the_reference_of_commands_is_what_the_program_takes() {
    let mut cli = Cli::command();
    cli.build();
    let mut text = String::new();
    commands(&cli, "lowkey", &mut text);
    compare("cli.md", &text);
}

#[test]
fn the_reference_of_the_servers_flags_is_what_the_program_takes() {
    let mut cli = Cli::command();
    cli.build();
    let server = cli.find_subcommand("server").unwrap();
    compare("flags.md", &arguments(server));
}

/// Compares the part of a page that is written from here, or writes it.
#[track_caller]
fn compare(page: &str, text: &str) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference").join(page);
    let old = std::fs::read_to_string(&path).unwrap();
    let (before, rest) = old.split_once(BEGIN).expect("the page says where the generated part begins");
    let (_, after) = rest.split_once(END).expect("the page says where the generated part ends");
    let new = format!("{before}{BEGIN}\n\n{}\n\n{END}{after}", text.trim());
    if std::env::var_os("UPDATE_GOLDENFILES").is_some() {
        std::fs::write(&path, &new).unwrap();
    }
    let is_same = std::fs::read_to_string(&path).unwrap() == new;
    assert!(is_same, "docs/reference/{page} is not what `lowkey --help` says; write it anew with: {UPDATE}");
}

/// Every command below this one: what it does, how it is called, and what it takes.
fn commands(parent: &Command, path: &str, text: &mut String) {
    for command in parent.get_subcommands().filter(|command| !command.is_hide_set()) {
        if command.get_name() == "help" {
            continue;
        }
        let name = format!("{path} {}", command.get_name());
        let about = command.get_about().map(ToString::to_string).unwrap_or_default();
        write!(text, "### Flags of `{name}`\n\n{about}\n\n").unwrap();
        if command.has_subcommands() {
            commands(command, &name, text);
        } else if name == "lowkey server" {
            text.push_str("Its flags are on a page of their own: [flags.md](flags.md).\n\n");
        } else {
            let usage = command.clone().render_usage().to_string();
            let usage = usage.trim_start_matches("Usage:").trim();
            write!(text, "Usage: `{usage}`\n\n{}\n", arguments(command)).unwrap();
        }
    }
}

/// A table of all that a command takes.
fn arguments(command: &Command) -> String {
    let shown = command.get_arguments().filter(|arg| !arg.is_hide_set());
    let shown: Vec<&Arg> = shown.filter(|arg| !matches!(arg.get_id().as_str(), "help" | "version")).collect();
    if shown.is_empty() {
        return "It takes nothing.\n".to_owned();
    }
    let mut text = "| flag | environment | default | |\n|---|---|---|---|\n".to_owned();
    for arg in shown {
        let variable = arg.get_env().map(|name| format!("`{}`", name.display())).unwrap_or_default();
        let default = match arg.get_action() {
            ArgAction::SetTrue => "off".to_owned(),
            _ => {
                let values = arg.get_default_values().iter().filter(|value| !value.is_empty());
                values.map(|value| format!("`{}`", value.display())).collect::<Vec<_>>().join(", ")
            }
        };
        let help = arg.get_help().map(ToString::to_string).unwrap_or_default();
        let help = help.replace('|', "\\|").replace('\n', " ");
        writeln!(text, "| `{}` | {variable} | {default} | {help} |", name_of(arg)).unwrap();
    }
    text
}

/// How an argument is written.
fn name_of(arg: &Arg) -> String {
    let values = arg.get_value_names().unwrap_or_default();
    let values = values.iter().map(|name| name.to_string()).collect::<Vec<_>>().join(" ");
    match (arg.get_long(), arg.get_action()) {
        (Some(long), ArgAction::SetTrue) => format!("--{long}"),
        (Some(long), _) => format!("--{long} {values}"),
        (None, _) => values,
    }
}
