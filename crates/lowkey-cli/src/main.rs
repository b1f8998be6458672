//! The `lowkey` binary.
//!
//! Flags without a command mean `server`, so that `lowkey --bootstrap --data-dir ./data` is all it
//! takes to start a node.

mod address;
mod server;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Parser, Subcommand};

/// A distributed lock service: at most one holder per lock, and a fencing token that proves it.
#[derive(Debug, Parser)]
#[command(name = "lowkey", version, propagate_version = true, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a node (the default: flags without a command mean this)
    Server(server::ServerArgs),
}

fn main() -> ExitCode {
    let environment_has_flags =
        std::env::vars_os().any(|(name, _)| name.to_str().is_some_and(|name| name.starts_with("LOWKEY_")));
    let args = with_default_command(std::env::args_os().collect(), environment_has_flags);
    match Cli::try_parse_from(args) {
        Ok(Cli { command: Command::Server(args) }) => server::run(args),
        Err(error) if error.exit_code() == 0 => error.exit(), // help or version
        Err(error) if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            eprint!("{error}");
            ExitCode::from(server::EXIT_USAGE)
        }
        Err(error) => server::complain(&one_line(&error), server::EXIT_USAGE),
    }
}

/// What is wrong with the command line, and a tip if there is one, without the usage behind it.
fn one_line(error: &clap::Error) -> String {
    let text = error.to_string();
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let about_this = lines.take_while(|line| !line.starts_with("Usage:") && !line.starts_with("For more"));
    let said: Vec<&str> = about_this.map(|line| line.strip_prefix("error: ").unwrap_or(line)).collect();
    format!("{}; try --help", said.join("; "))
}

/// Puts `server` in front of flags that stand alone, and where the flags are all in the environment.
fn with_default_command(mut args: Vec<OsString>, environment_has_flags: bool) -> Vec<OsString> {
    let first = args.get(1).and_then(|arg| arg.to_str());
    let means_server = match first {
        Some("-h" | "--help" | "-V" | "--version") => false,
        Some(flag) => flag.starts_with('-'),
        None => args.len() == 1 && environment_has_flags,
    };
    if means_server {
        args.insert(1, "server".into());
    }
    args
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn args(words: &[&str]) -> Vec<OsString> {
        words.iter().map(Into::into).collect()
    }

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_wrong_command_line_is_told_in_one_line() {
        let problem = |words: &[&str]| {
            one_line(&Cli::try_parse_from(with_default_command(args(words), false)).expect_err("it is wrong"))
        };
        assert_eq!(
            problem(&["lowkey", "--max-leases", "many"]),
            "invalid value 'many' for '--max-leases <N>': must be a whole number above 0; try --help"
        );
        assert_eq!(
            problem(&["lowkey", "--bootstarp"]),
            "unexpected argument '--bootstarp' found; tip: a similar argument exists: '--bootstrap'; try --help"
        );
    }

    #[test]
    fn flags_without_a_command_mean_server() {
        assert_eq!(
            with_default_command(args(&["lowkey", "--bootstrap"]), false),
            args(&["lowkey", "server", "--bootstrap"])
        );
    }

    #[test]
    fn flags_in_the_environment_alone_mean_server() {
        assert_eq!(with_default_command(args(&["lowkey"]), true), args(&["lowkey", "server"]));
        assert_eq!(with_default_command(args(&["lowkey", "--help"]), true), args(&["lowkey", "--help"]));
    }

    #[test]
    fn commands_and_calls_for_help_are_left_alone() {
        for words in
            [&["lowkey", "server", "--bootstrap"][..], &["lowkey", "--help"], &["lowkey", "-V"], &["lowkey"]]
        {
            assert_eq!(with_default_command(args(words), false), args(words));
        }
    }
}
