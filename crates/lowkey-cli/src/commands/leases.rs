//! `lease list`, `lease get`, `revoke`: whose leases there are, what they hold, and how to end one.

use std::io::{self, BufRead as _, IsTerminal as _, Write as _};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};
use lowkey_client::Client;
use lowkey_client::api::{GetLeaseResponse, Lease, LockHolder};
use serde_json::json;

use super::locks::how;
use super::{OwnerArgs, ServiceArgs, parse_number, printed};
use crate::exit::{self, CommandFailure};
use crate::output::{TextTable, one_line, print_json, time_left, utc};

#[derive(Debug, Args)]
pub(crate) struct LeaseArgs {
    #[command(subcommand)]
    command: LeaseCommand,
}

#[derive(Debug, Subcommand)]
enum LeaseCommand {
    /// List leases: whose they are, and how long they live if nobody renews them
    List(ListArgs),
    /// Show a lease, what it holds, and what it waits for
    Get(GetArgs),
}

#[derive(Debug, Args)]
struct ListArgs {
    /// Only those of this owner
    #[arg(long, value_name = "OWNER", help_heading = "Which leases")]
    owner: Option<String>,

    #[command(flatten)]
    service: ServiceArgs,
}

#[derive(Debug, Args)]
struct GetArgs {
    /// The lease
    #[arg(value_parser = parse_number, allow_negative_numbers = true)]
    lease: u64,

    #[command(flatten)]
    service: ServiceArgs,
}

#[derive(Debug, Args)]
pub(crate) struct RevokeArgs {
    /// The lock whose holder is to be ended
    #[arg(required_unless_present = "lease", conflicts_with = "lease")]
    name: Option<String>,

    /// The lease to end
    #[arg(long, value_name = "LEASE", value_parser = parse_number, allow_negative_numbers = true, help_heading = "What to end")]
    lease: Option<u64>,

    /// Do not ask; needed where nobody can be asked, because the input is no terminal
    #[arg(long, help_heading = "What to end")]
    yes: bool,

    #[command(flatten)]
    owner: OwnerArgs,

    #[command(flatten)]
    service: ServiceArgs,
}

pub(crate) fn lease(args: &LeaseArgs) -> ExitCode {
    match &args.command {
        LeaseCommand::List(args) => list(args),
        LeaseCommand::Get(args) => get(args),
    }
}

fn list(args: &ListArgs) -> ExitCode {
    let service = &args.service;
    service.carry_out(async {
        let client = service.connect().await?;
        let leases = match &args.owner {
            Some(owner) => service.ask(client.list_leases_of(owner)).await?,
            None => service.ask(client.list_leases()).await?,
        };
        if service.json {
            return printed(print_json(&json!({ "leases": leases })));
        }
        let mut table = TextTable::new(&["LEASE", "OWNER", "TTL", "LEFT", "HOLDS", "WAITS"]);
        for lease in &leases {
            table.row(lease_cells(lease));
        }
        printed(table.print(service.wide))
    })
}

fn lease_cells(lease: &Lease) -> [String; 6] {
    [
        lease.lease_id.to_string(),
        lease.owner_id.clone(),
        format!("{}s", lease.ttl_seconds),
        time_left(lease.remaining()),
        lease.grant_count.to_string(),
        lease.wait_count.to_string(),
    ]
}

fn get(args: &GetArgs) -> ExitCode {
    let service = &args.service;
    service.carry_out(async {
        let client = service.connect().await?;
        let found = service.ask(client.get_lease(args.lease)).await?;
        if service.json {
            return printed(print_json(&found));
        }
        let mut table = TextTable::new(&["WHAT", "NAME", "TOKEN", "HOW", "SINCE", "LEFT"]);
        let lease = found.lease.clone().unwrap_or_default();
        let empty = || "-".to_owned();
        let left = time_left(lease.remaining());
        table.row(["owner".to_owned(), lease.owner_id, empty(), empty(), empty(), left]);
        for grant in &found.grants {
            let (token, since) = (grant.fencing_token.to_string(), utc(grant.since_unix_ms));
            let how = how(grant.mode(), grant.scope());
            table.row(["holds".to_owned(), grant.lock_name.clone(), token, how, since, empty()]);
        }
        for wait in &found.waits {
            let how = how(wait.mode(), wait.scope());
            table.row(["waits for".to_owned(), wait.lock_name.clone(), empty(), how, empty(), empty()]);
        }
        printed(table.print(service.wide))
    })
}

pub(crate) fn revoke(args: &RevokeArgs) -> ExitCode {
    let service = &args.service;
    service.carry_out(async {
        let client = service.connect_as(args.owner.name()).await?;
        let mut leases = Vec::new();
        for lease_id in lease_ids(args, &client).await? {
            leases.push(service.ask(client.get_lease(lease_id)).await?);
        }
        if !args.yes && !is_wanted(&leases)? {
            return Err(CommandFailure::new(exit::NO, "nothing was revoked"));
        }
        for found in &leases {
            let lease = found.lease.clone().unwrap_or_default();
            service.ask(client.revoke_lease(lease.lease_id, &lease.owner_id)).await?;
            if service.json {
                printed(print_json(&json!({ "revoked": found })))?;
            } else {
                let (what, ttl) = (description(found), lease.ttl_seconds);
                let heard = Duration::from_secs(ttl.unsigned_abs()) / 3;
                let line = format!(
                    "revoked {what}\nIts holder hears of it at once if it is connected, or with its next renewal (after \
                     {heard:.1?} at most with the SDK), and may work until then: only a check of the fencing token \
                     keeps its writes out."
                );
                printed(writeln!(io::stdout(), "{line}"))?;
            }
        }
        Ok(0)
    })
}

/// The leases that are meant: the one, or those that hold the lock.
async fn lease_ids(args: &RevokeArgs, client: &Client) -> Result<Vec<u64>, CommandFailure> {
    let Some(name) = args.name.as_ref().filter(|_| args.lease.is_none()) else {
        return Ok(args.lease.into_iter().collect());
    };
    let lock = args.service.ask(client.get(name)).await?;
    if lock.holders.is_empty() {
        let line = match lock.covered_by.as_str() {
            "" => format!("nobody holds {name}: there is nothing to revoke; `lowkey ls` shows what is held"),
            subtree => format!(
                "nobody holds {name} itself, but {subtree} is held with its subtree, which covers it; `lowkey revoke \
                 {subtree}` ends that hold"
            ),
        };
        return Err(CommandFailure::new(exit::NO, line));
    }
    let mut leases: Vec<u64> = lock.holders.iter().map(|holder: &LockHolder| holder.lease_id).collect();
    leases.dedup();
    Ok(leases)
}

/// Whose it is, and what it holds, in one line.
fn description(found: &GetLeaseResponse) -> String {
    let lease = found.lease.clone().unwrap_or_default();
    let names: Vec<String> = found
        .grants
        .iter()
        .take(10)
        .map(|grant| format!("{} (token {})", one_line(&grant.lock_name), grant.fencing_token))
        .collect();
    let more = found.grants.len().saturating_sub(names.len());
    let holds = match (names.is_empty(), more) {
        (true, _) => "nothing".to_owned(),
        (false, 0) => names.join(", "),
        (false, more) => format!("{}, and {more} more", names.join(", ")),
    };
    format!(
        "lease {} of {} (TTL {}s), which held {holds}",
        lease.lease_id,
        one_line(&lease.owner_id),
        lease.ttl_seconds
    )
}

/// Asks the person at the terminal.
fn is_wanted(leases: &[GetLeaseResponse]) -> Result<bool, CommandFailure> {
    let all: Vec<String> =
        leases.iter().map(|found| description(found).replace("which held", "which holds")).collect();
    let all = all.join("; ");
    if !io::stdin().is_terminal() {
        let line = format!("{all} would be revoked: say --yes, since nobody can be asked here");
        return Err(CommandFailure::new(exit::USAGE, line));
    }
    let mut answer = String::new();
    let asked = write!(io::stderr(), "This ends {all}.\nRevoke? [y/N] ")
        .and_then(|()| io::stdin().lock().read_line(&mut answer));
    asked.map_err(|error| CommandFailure::new(exit::NO, format!("cannot ask: {error}; say --yes")))?;
    Ok(matches!(answer.trim().to_lowercase().as_str(), "y" | "yes"))
}
