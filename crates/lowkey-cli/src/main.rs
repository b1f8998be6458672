//! The `lowkey` binary.
//!
//! Flags without a command mean `server`, so that `lowkey --bootstrap --data-dir ./data` is all it
//! takes to start a node.

mod address;
mod server;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// A distributed lock and leader-election service: at most one holder per lock, and a fencing token
/// that proves it.
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
    let cli = Cli::parse_from(with_default_command(std::env::args_os().collect()));
    match cli.command {
        Command::Server(args) => server::run(args),
    }
}

/// Puts `server` in front of flags that stand alone.
fn with_default_command(mut args: Vec<OsString>) -> Vec<OsString> {
    let first = args.get(1).and_then(|arg| arg.to_str()).unwrap_or_default();
    let is_about_lowkey = matches!(first, "-h" | "--help" | "-V" | "--version");
    if first.starts_with('-') && !is_about_lowkey {
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
    fn flags_without_a_command_mean_server() {
        assert_eq!(
            with_default_command(args(&["lowkey", "--bootstrap"])),
            args(&["lowkey", "server", "--bootstrap"])
        );
    }

    #[test]
    fn commands_and_calls_for_help_are_left_alone() {
        for words in
            [&["lowkey", "server", "--bootstrap"][..], &["lowkey", "--help"], &["lowkey", "-V"], &["lowkey"]]
        {
            assert_eq!(with_default_command(args(words)), args(words));
        }
    }
}
