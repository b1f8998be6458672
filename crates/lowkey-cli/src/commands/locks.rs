//! `ls`, `get`, `check`: who holds what.

use std::io::{self, IsTerminal as _, Write as _};
use std::process::ExitCode;

use clap::Args;
use lowkey_client::api::{GetLockResponse, LockHolder, Mode, Scope};
use lowkey_client::{Client, Reason};
use serde::Serialize;

use super::{ServiceArgs, parse_number, printed};
use crate::exit::{self, CommandFailure};
use crate::output::{TextTable, one_line, print_json, time_left, utc};

#[derive(Debug, Args)]
pub(crate) struct LsArgs {
    /// What the names begin with
    #[arg(default_value = "")]
    prefix: String,

    #[command(flatten)]
    service: ServiceArgs,
}

#[derive(Debug, Args)]
pub(crate) struct GetArgs {
    /// The lock
    name: String,

    #[command(flatten)]
    service: ServiceArgs,
}

#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    /// The lock
    name: String,

    /// The fencing token to check
    #[arg(long, value_name = "TOKEN", value_parser = parse_number, allow_negative_numbers = true, help_heading = "The grant")]
    token: u64,

    #[command(flatten)]
    service: ServiceArgs,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Listed {
    locks: Vec<GetLockResponse>,
    /// As a string, like every 64-bit number of the API.
    watch_from: String,
}

pub(crate) fn ls(args: &LsArgs) -> ExitCode {
    let service = &args.service;
    service.carry_out(async {
        let client = service.connect().await?;
        let (locks, watch_from) = match service.ask(client.locks(&args.prefix)).await {
            Ok(listed) => listed,
            Err(failure) => return Err(with_what_may_be_listed(failure, &client, &args.prefix).await),
        };
        if service.json {
            return printed(print_json(&Listed { locks, watch_from: watch_from.to_string() }));
        }
        let mut table =
            TextTable::new(&["NAME", "OWNER", "LEASE", "TOKEN", "HOW", "SINCE", "WAITING", "VALUE", "LEFT"]);
        for lock in &locks {
            let holders: Vec<Option<&LockHolder>> = match lock.holders.as_slice() {
                // Waited for, and held by nobody: something above or below it is in the way.
                [] => vec![None],
                holders => holders.iter().map(Some).collect(),
            };
            for holder in holders {
                let mut cells = vec![lock.lock_name.clone()];
                cells.extend(holder_cells(holder));
                cells.insert(6, lock.waiter_count.to_string());
                table.row(cells);
            }
        }
        printed(table.print(service.wide))
    })
}

/// A grant is on a path, and a prefix means more than that: `billing` begins `billing2`, too. Who may read some of the
/// names that were asked for is told how to ask for those.
async fn with_what_may_be_listed(failure: CommandFailure, client: &Client, prefix: &str) -> CommandFailure {
    if failure.reason != Some(Reason::PermissionDenied) {
        return failure;
    }
    let grants = client.who_am_i().await.map(|who| who.grants).unwrap_or_default();
    let readable = grants.iter().filter(|grant| grant.verbs.iter().any(|verb| verb == "read"));
    let paths = readable.map(|grant| format!("{}/", grant.path)).filter(|path| path.starts_with(prefix));
    let commands: Vec<String> = paths.map(|path| format!("`lowkey ls {path}`")).collect();
    if commands.is_empty() {
        return failure;
    }
    let line = format!(
        "you may not read all names that begin with \"{prefix}\"; ask for {}, or for one name with `lowkey get`",
        commands.join(" or ")
    );
    CommandFailure { line, ..failure }
}

/// Owner, lease, token, how, since, value, and how long the lease lives if it is not renewed again.
fn holder_cells(holder: Option<&LockHolder>) -> [String; 7] {
    holder.map_or_else(
        || ["-"; 7].map(str::to_owned),
        |holder| {
            [
                holder.owner_id.clone(),
                holder.lease_id.to_string(),
                holder.fencing_token.to_string(),
                how(holder.mode(), holder.scope()),
                utc(holder.since_unix_ms),
                holder.value.clone(),
                time_left(holder.remaining()),
            ]
        },
    )
}

/// How something is held or wanted, in one word.
pub(crate) fn how(mode: Mode, scope: Scope) -> String {
    let mode = if mode == Mode::Shared { "shared" } else { "exclusive" };
    let scope = if scope == Scope::Subtree { "-subtree" } else { "" };
    format!("{mode}{scope}")
}

pub(crate) fn get(args: &GetArgs) -> ExitCode {
    let service = &args.service;
    service.carry_out(async {
        let client = service.connect().await?;
        let lock = service.ask(client.get(&args.name)).await?;
        if service.json {
            return printed(print_json(&lock));
        }
        let mut table =
            TextTable::new(&["PLACE", "OWNER", "LEASE", "TOKEN", "HOW", "SINCE", "VALUE", "LEFT"]);
        for holder in &lock.holders {
            table.row(std::iter::once("holder".to_owned()).chain(holder_cells(Some(holder))));
        }
        if !lock.covered_by.is_empty() {
            covered_rows(&mut table, service, &client, &lock.covered_by).await?;
        }
        for waiter in &lock.waiters {
            let empty = || "-".to_owned();
            table.row([
                format!("waiting {}", waiter.position),
                waiter.owner_id.clone(),
                waiter.lease_id.to_string(),
                empty(),
                how(waiter.mode(), waiter.scope()),
                empty(),
                empty(),
                empty(),
            ]);
        }
        if lock.holders.is_empty() && lock.waiters.is_empty() && lock.covered_by.is_empty() {
            if io::stdout().is_terminal() {
                return printed(writeln!(io::stdout(), "{} is free", one_line(&args.name)));
            }
            table.row(std::iter::once("free".to_owned()).chain(holder_cells(None)));
        }
        printed(table.print(service.wide))
    })
}

/// Nobody holds the name that was asked for, but somebody holds one above it with its subtree.
async fn covered_rows(
    table: &mut TextTable,
    service: &ServiceArgs,
    client: &Client,
    subtree: &str,
) -> Result<(), CommandFailure> {
    let above = service.ask(client.get(subtree)).await?;
    let of_subtree = above.holders.iter().filter(|holder| holder.scope() == Scope::Subtree).map(Some);
    // It may have been given back in between.
    let holders: Vec<Option<&LockHolder>> = of_subtree.collect();
    let holders = if holders.is_empty() { vec![None] } else { holders };
    for holder in holders {
        table.row(std::iter::once(format!("covered by {subtree}")).chain(holder_cells(holder)));
    }
    Ok(())
}

pub(crate) fn check(args: &CheckArgs) -> ExitCode {
    let service = &args.service;
    service.carry_out(async {
        let client = service.connect().await?;
        let checked = service.ask(client.check_token(&args.name, args.token)).await?;
        if service.json {
            printed(print_json(&checked))?;
        } else {
            let mut table = TextTable::new(&["TOKEN", "HOLDER", "HOLDER'S TOKEN"]);
            let verdict = if checked.current { "current" } else { "not current" };
            let [owner, _, token, ..] = holder_cells(checked.holder.as_ref());
            table.row([verdict.to_owned(), owner, token]);
            printed(table.print(service.wide))?;
        }
        Ok(if checked.current { 0 } else { exit::NO })
    })
}
