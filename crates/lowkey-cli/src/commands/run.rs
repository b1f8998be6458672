//! `run` and `elect`: a command that runs only while a lock is held.
//!
//! Invariants:
//! - The command starts after the lock is granted, and no earlier.
//! - If the lock cannot be kept, the command's process group gets SIGTERM a grace before this client's validity
//!   ends, and SIGKILL by its end (R6): before the service can give the lock to anybody else. That is decided
//!   and done by a thread of its own, which needs no network, no disk and no runtime (`leash.rs`).
//! - The lock is given back after the command has ended, and no earlier; with `--at-least`, not before that time
//!   has passed since it was granted.
//! - If `lowkey run` itself is killed or stopped, its guardian does the same in its place (`guardian.rs`).
//!
//! - `hold.rs`: takes the lock
//! - `supervise.rs`: from the command's start to its end; `group.rs`, `kin.rs`: its processes
//! - `guardian.rs`: the process that stands between, with a clock of its own; `launcher.rs`: how it starts the command
//! - `signals.rs`, `terminal.rs`: what passes between the command and whoever started it

mod backoff;
mod group;
mod guardian;
mod hold;
mod kin;
mod launcher;
mod leash;
mod signals;
mod supervise;
mod terminal;

use std::ffi::OsString;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;

pub(crate) use self::guardian::{GUARD, guard};
pub(crate) use self::launcher::{EXEC, args as launcher_args, exec};
use super::{OwnerArgs, Patience, ServiceArgs, WaitArgs};
use crate::duration::{parse_duration, parse_limit, parse_timeout, parse_ttl};
use crate::exit::{self, CommandFailure};

/// What `run` and `elect` have in common.
#[derive(Debug, Args)]
struct CommandArgs {
    #[command(flatten)]
    wait: WaitArgs,

    /// How long NAME stays taken when this process is gone; it is renewed at a third of this
    #[arg(long, value_name = "TIME", value_parser = parse_ttl, default_value = "15s", help_heading = "The lease")]
    ttl: Duration,

    /// Hold NAME for this long at most, counted from the grant, however well it is renewed: it ends a command that hangs.
    /// Whole seconds, 7 days at most; the command is ended at 90 % of it
    #[arg(long, value_name = "TIME", value_parser = parse_limit, help_heading = "The lock")]
    at_most: Option<Duration>,

    /// If NAME cannot be kept: how long before its end the command is told so by SIGTERM; a quarter of
    /// the TTL at most. SIGKILL comes at the end
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "5s", help_heading = "If the lock is lost")]
    kill_grace: Duration,

    /// A command line for `sh -c`, run when NAME is lost, after SIGTERM was sent; it does not have NAME
    #[arg(long, value_name = "COMMAND", help_heading = "If the lock is lost")]
    on_lost: Option<String>,

    /// How long that may take before it is killed
    #[arg(long, value_name = "TIME", value_parser = parse_timeout, default_value = "30s", help_heading = "If the lock is lost")]
    on_lost_limit: Duration,

    #[command(flatten)]
    owner: OwnerArgs,

    #[command(flatten)]
    service: ServiceArgs,

    /// What to run, without a shell
    // Behind `--` and nowhere else: if NAME is forgotten, the first word of the command must not become it.
    #[arg(required = true, last = true, value_name = "COMMAND", help_heading = None)]
    command: Vec<OsString>,
}

#[derive(Debug, Args)]
pub(crate) struct RunArgs {
    /// The lock
    name: String,

    /// Hold it together with others that do the same
    #[arg(long, help_heading = "The lock")]
    shared: bool,

    /// Hold the name and everything below it
    #[arg(long, help_heading = "The lock")]
    subtree: bool,

    /// Hold it for this long at least, counted from the grant, even if the command ends sooner: a machine whose
    /// clock is late must not find it free again
    #[arg(long, value_name = "TIME", value_parser = parse_duration, help_heading = "The lock")]
    at_least: Option<Duration>,

    #[command(flatten)]
    common: CommandArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ElectArgs {
    /// The election
    name: String,

    /// What the others should know of the leader, such as its address
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "",
        hide_default_value = true,
        help_heading = "The lock"
    )]
    value: String,

    #[command(flatten)]
    common: CommandArgs,
}

/// A command, and the lock that it is to run under.
#[derive(Debug)]
struct Job {
    name: String,
    shared: bool,
    subtree: bool,
    value: String,
    owner: super::Owner,
    patience: Patience,
    ttl: Duration,
    /// How long it is held at least.
    at_least: Duration,
    /// How long it is held at most.
    at_most: Option<Duration>,
    /// How long before the end of validity SIGTERM is sent.
    grace: Duration,
    on_lost: Option<String>,
    on_lost_limit: Duration,
    service: ServiceArgs,
    command: Vec<OsString>,
}

impl Job {
    fn new(name: String, shared: bool, value: String, common: CommandArgs) -> Self {
        let CommandArgs { wait, ttl, at_most, kill_grace, on_lost, on_lost_limit, owner, service, command } =
            common;
        let (subtree, owner) = (false, owner.name());
        let service = ServiceArgs { shares_stderr: true, ..service };
        // No longer than makes sense within the shorter of the two times.
        let shortest = at_most.map_or(ttl, |limit| limit.min(ttl));
        let (patience, grace) = (wait.patience(), kill_grace.min(shortest / 4));
        let at_least = Duration::ZERO;
        Self {
            name,
            shared,
            subtree,
            value,
            owner,
            patience,
            ttl,
            at_least,
            at_most,
            grace,
            on_lost,
            on_lost_limit,
            service,
            command,
        }
    }
}

pub(crate) fn run(args: RunArgs) -> ExitCode {
    // The client believes in nine tenths of the limit.
    if let (Some(least), Some(most)) = (args.at_least, args.common.at_most)
        && least >= most / 10 * 9
    {
        let line = format!(
            "--at-least must be shorter than 90 % of --at-most, and is {least:?} where that is {most:?}"
        );
        return CommandFailure::new(exit::USAGE, line).report(args.common.service.json);
    }
    let job = Job::new(args.name, args.shared, String::new(), args.common);
    carry_out(&Job { subtree: args.subtree, at_least: args.at_least.unwrap_or_default(), ..job })
}

pub(crate) fn elect(args: ElectArgs) -> ExitCode {
    carry_out(&Job::new(args.name, false, args.value, args.common))
}

/// Stays on the main thread throughout: the kernel ends the command when the thread that started it ends.
fn carry_out(job: &Job) -> ExitCode {
    // Whoever does not have the terminal may still take it back, and write to it. Before any thread is made.
    terminal::tolerate_background();
    let runtime = match tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => {
            let line = format!("cannot start the runtime: {error}");
            return CommandFailure::new(exit::NO_SERVICE, line).report(job.service.json);
        }
    };
    let outcome = runtime.block_on(async { signals::listen() }).and_then(|mut signals| {
        match runtime.block_on(hold::take(job, &mut signals))? {
            hold::TakeOutcome::Held(held) => supervise::supervise(job, &runtime, *held, signals),
            hold::TakeOutcome::Interrupted(signal) => Ok(supervise::status_of_signal(signal)),
        }
    });
    runtime.shutdown_background();
    match outcome {
        Ok(code) => ExitCode::from(code),
        Err(failure) => failure.report(job.service.json),
    }
}
