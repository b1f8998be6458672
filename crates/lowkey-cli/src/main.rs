//! The `lowkey` binary.
//!
//! Flags without a command mean `server`, so that `lowkey --bootstrap --data-dir ./data` is all it
//! takes to start a node.
// They panic where nobody reads: see `output::say`.
#![deny(clippy::print_stderr, clippy::print_stdout)]

mod address;
mod certificates;
mod commands;
mod duration;
mod exit;
mod help;
mod names;
mod output;
#[cfg(test)]
mod reference;
mod server;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory as _, FromArgMatches as _, Parser, Subcommand};

use commands::{
    access, audit, backup, bench, cert, changes, completions, detached, dev, fence, health, leases, locks,
    manual, member, recover, run, status,
};
use exit::CommandFailure;

/// Requests are made on one thread and dropped on another, and memory that a burst needed is to go back afterwards:
/// both are what this allocator is good at. Without huge pages: they were an eighth of a node's memory with 50,000 leases,
/// and made nothing faster.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// A distributed lock service: at most one holder per lock, and a fencing token that proves it
#[derive(Debug, Parser)]
#[command(name = "lowkey", version, propagate_version = true, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a command while holding a lock
    Run(run::RunArgs),
    /// Run a command while leading an election
    Elect(run::ElectArgs),
    /// Take a lock for a script, held by no process, and print lock, lease, token and TTL
    Acquire(detached::AcquireArgs),
    /// Give back a lock that `acquire` took
    Release(detached::ReleaseArgs),
    /// Start the time of a lease again
    Renew(detached::RenewArgs),
    /// Force-unlock: end the lease that holds a lock, with all that it holds
    Revoke(leases::RevokeArgs),
    /// Show leases: their owners, what they hold, how long they live
    Lease(leases::LeaseArgs),
    /// List locks that are held or waited for
    Ls(locks::LsArgs),
    /// Show who holds a lock, and who waits for it
    Get(locks::GetArgs),
    /// Tell whether a fencing token is current: status 0 if so, 1 if not
    Check(locks::CheckArgs),
    /// Tell in sentences what happened to a lock, and why
    Explain(audit::ExplainArgs),
    /// Show grants that are over, export them, or follow them as they end
    Audit(audit::AuditArgs),
    /// Show who leads an election; nothing (JSON: null) if nobody does
    Leader(changes::LeaderArgs),
    /// Print every change of locks as it happens
    Watch(changes::WatchArgs),
    /// Show how the cluster is doing
    Status(status::StatusArgs),
    /// Tell whether a node answers, for probes: status 0 if so
    Health(health::HealthArgs),
    /// Show and change the nodes of the cluster, and which of them leads
    Member(member::MemberArgs),
    /// Say who may do what: principals, their tokens and grants
    Access(access::AccessArgs),
    /// Print the SQL by which a database refuses late writes, and how to reset it
    Fence(fence::FenceArgs),
    /// Run a node (the default: flags without a command mean this)
    Server(Box<server::ServerArgs>),
    /// Make a new cluster from one node, when the majority is lost for good
    Recover(recover::RecoverArgs),
    /// Copy the cluster's state into object storage, and make a new cluster of a copy
    Backup(Box<backup::BackupArgs>),
    /// Make certificates for encrypted ports: a CA, and those of nodes and clients
    Cert(cert::CertArgs),
    /// Run three nodes in one process, for trying things out
    Dev(dev::DevArgs),
    /// Measure a cluster under load, and check what it answers
    Bench(Box<bench::BenchArgs>),
    /// Write completions for a shell
    Completions(completions::CompletionsArgs),
    /// Write the manual pages
    #[command(hide = true)]
    Man(manual::ManArgs),
}

fn main() -> ExitCode {
    names::ask_built_in_sources();
    let args: Vec<OsString> = std::env::args_os().collect();
    if args.get(1).is_some_and(|arg| arg == run::EXEC) {
        return run::exec(args.into_iter().skip(2));
    }
    if args.get(1).is_some_and(|arg| arg == run::GUARD) {
        return run::guard(args.into_iter().skip(2));
    }
    let as_json = wants_json(&args);
    if let Some(flag) = misplaced_flag(&args) {
        let problem = format!("{flag} goes behind a command, as in: lowkey ls {flag}; try --help");
        return CommandFailure::new(exit::USAGE, problem).report(as_json);
    }
    let shape = shape_with_command(&args);
    let args = with_default_command(args, server_flag_in_environment());
    match parsed(&args).map_err(without_dangerous_tip) {
        Ok(cli) => carry_out(cli.command),
        Err(error) if error.exit_code() == 0 => error.exit(), // help or version
        Err(error) if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            output::say(&error.to_string());
            ExitCode::from(exit::USAGE)
        }
        Err(error) => {
            let advice = shape.filter(|_| is_out_of_place(&error)).unwrap_or("try --help");
            let variable = variable_of(&error, &args);
            let variable = variable.map(|name| format!("; it comes from the environment variable {name}"));
            let problem = format!("{}{}; {advice}", one_line(&error), variable.unwrap_or_default());
            CommandFailure::new(exit::USAGE, problem).report(as_json)
        }
    }
}

fn parsed(args: &[OsString]) -> Result<Cli, clap::Error> {
    let mut command = help::dressed(Cli::command());
    let matches = command.try_get_matches_from_mut(args)?;
    Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut command))
}

/// `recover` makes a new cluster, and is not what anybody means who mistyped `revoke`.
fn without_dangerous_tip(mut error: clap::Error) -> clap::Error {
    let tips = match error.remove(ContextKind::SuggestedSubcommand) {
        Some(ContextValue::String(tip)) => vec![tip],
        Some(ContextValue::Strings(tips)) => tips,
        _ => return error,
    };
    let typed = match error.get(ContextKind::InvalidSubcommand) {
        Some(ContextValue::String(typed)) => typed.clone(),
        _ => String::new(),
    };
    let tips: Vec<String> =
        tips.into_iter().filter(|tip| tip != "recover" || typed.starts_with("rec")).collect();
    if !tips.is_empty() {
        error.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(tips));
    }
    error
}

/// The environment variable that a wrong value came from.
fn variable_of(error: &clap::Error, args: &[OsString]) -> Option<String> {
    let context = |kind: ContextKind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.clone()),
        _ => None,
    };
    let (arg, value) = (context(ContextKind::InvalidArg)?, context(ContextKind::InvalidValue)?);
    let flag = arg.split([' ', '=']).next()?;
    let is_typed = args.iter().filter_map(|arg| arg.to_str()).any(|arg| arg.split('=').next() == Some(flag));
    let cli = Cli::command();
    let command = cli.find_subcommand(args.get(1)?)?;
    let named = command
        .get_arguments()
        .find(|arg| arg.get_long().map(|long| format!("--{long}")).as_deref() == Some(flag))?;
    let variable = named.get_env()?.to_str()?;
    (!is_typed && std::env::var(variable) == Ok(value)).then(|| variable.to_owned())
}

/// Whether a word is missing, or stands where none belongs: no flag that is spelled wrong.
fn is_out_of_place(error: &clap::Error) -> bool {
    match error.kind() {
        ErrorKind::MissingRequiredArgument => true,
        ErrorKind::UnknownArgument => error
            .get(ContextKind::InvalidArg)
            .is_some_and(|word| matches!(word, ContextValue::String(word) if !word.starts_with("--"))),
        _ => false,
    }
}

/// How the words are to stand, for a command that has another behind it.
fn shape_with_command(args: &[OsString]) -> Option<&'static str> {
    match args.get(1)?.to_str()? {
        "run" => Some("the lock's name goes before --, as in: lowkey run NAME -- COMMAND"),
        "elect" => Some("the election's name goes before --, as in: lowkey elect NAME -- COMMAND"),
        _ => None,
    }
}

fn carry_out(command: Command) -> ExitCode {
    match command {
        Command::Run(args) => run::run(args),
        Command::Elect(args) => run::elect(args),
        Command::Acquire(args) => detached::acquire(&args),
        Command::Release(args) => detached::release(&args),
        Command::Renew(args) => detached::renew(&args),
        Command::Revoke(args) => leases::revoke(&args),
        Command::Lease(args) => leases::lease(&args),
        Command::Ls(args) => locks::ls(&args),
        Command::Get(args) => locks::get(&args),
        Command::Check(args) => locks::check(&args),
        Command::Explain(args) => audit::explain(&args),
        Command::Audit(args) => audit::audit(&args),
        Command::Leader(args) => changes::leader(&args),
        Command::Watch(args) => changes::watch(&args),
        Command::Status(args) => status::status(&args),
        Command::Member(args) => member::member(&args),
        Command::Access(args) => access::access(&args),
        Command::Fence(args) => fence::fence(&args),
        Command::Server(args) => server::run(*args),
        Command::Recover(args) => recover::recover(&args),
        Command::Backup(args) => backup::backup(&args),
        Command::Cert(args) => cert::cert(&args),
        Command::Dev(args) => dev::dev(&args),
        Command::Bench(args) => bench::bench(&args),
        Command::Health(args) => health::health(&args),
        Command::Man(args) => manual::manual(&args, Cli::command()),
        Command::Completions(args) => completions::completions(&args, Cli::command()),
    }
}

/// A flag of the commands in front of them, where the server's stand.
fn misplaced_flag(args: &[OsString]) -> Option<&'static str> {
    let first = args.get(1)?.to_str()?;
    let name = first.split_once('=').map_or(first, |(name, _)| name);
    ["--endpoints", "--connect-timeout", "--json", "--wide", "--ca", "--cert", "--key", "--auth-file"]
        .into_iter()
        .find(|flag| *flag == name)
}

/// Whether errors are to be told as JSON, as far as can be said of a command line that may be wrong: what stands behind
/// `--` is for another command.
fn wants_json(args: &[OsString]) -> bool {
    args.iter().skip(1).take_while(|arg| *arg != "--").any(|arg| arg == "--json")
}

/// Whether the environment has a flag of the server. Other variables of ours say nothing about that: where
/// the endpoints are, or which lock a command runs under.
fn server_flag_in_environment() -> bool {
    let cli = Cli::command();
    let server = cli.find_subcommand("server").expect("the server is a command");
    server.get_arguments().filter_map(clap::Arg::get_env).any(|name| std::env::var_os(name).is_some())
}

/// What is wrong with the command line, and a tip if there is one, without the usage behind it.
fn one_line(error: &clap::Error) -> String {
    let text = error.to_string();
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    let about_this = lines.take_while(|line| !line.starts_with("Usage:") && !line.starts_with("For more"));
    let mut said = String::new();
    let mut is_list = false;
    for line in about_this.map(|line| line.strip_prefix("error: ").unwrap_or(line)) {
        is_list = !line.starts_with("tip:") && (is_list || said.ends_with(':'));
        said.push_str(match is_list {
            _ if said.is_empty() => "",
            _ if said.ends_with(':') => " ",
            true => ", ",
            false => "; ",
        });
        said.push_str(line);
    }
    said
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
            one_line(&parsed(&with_default_command(args(words), false)).expect_err("it is wrong"))
        };
        assert_eq!(
            problem(&["lowkey", "--max-leases", "many"]),
            "invalid value 'many' for '--max-leases <N>': must be a whole number above 0"
        );
        assert_eq!(
            problem(&["lowkey", "--bootstarp"]),
            "unexpected argument '--bootstarp' found; tip: a similar argument exists: '--bootstrap'"
        );
        assert_eq!(
            problem(&["lowkey", "release", "deploy"]),
            "the following required arguments were not provided: --lease <LEASE>, --token <TOKEN>"
        );
    }

    #[test]
    fn a_flag_of_the_commands_in_front_of_them_is_noticed() {
        assert_eq!(misplaced_flag(&args(&["lowkey", "--endpoints=http://a:1", "ls"])), Some("--endpoints"));
        assert_eq!(misplaced_flag(&args(&["lowkey", "--bootstrap"])), None);
        assert_eq!(misplaced_flag(&args(&["lowkey", "ls", "--json"])), None);
    }

    #[test]
    fn what_is_behind_the_dashes_is_for_another_command() {
        assert!(wants_json(&args(&["lowkey", "run", "a", "--json", "--", "curl"])));
        assert!(!wants_json(&args(&["lowkey", "run", "a", "--", "curl", "--json"])));
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
