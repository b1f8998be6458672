//! `backup schedule`: when the cluster makes backups, by what, and whether it does.

use std::time::Duration;

use clap::Args;
use lowkey_backup::StoreUrl;
use lowkey_client::Client;
use lowkey_client::api::{GetBackupScheduleResponse, SetBackupScheduleRequest};

use crate::commands::{ServiceArgs, printed};
use crate::exit::{self, CommandFailure};
use crate::output::{TextTable, print_json, utc};
use crate::server::parse_backup_every;

#[derive(Debug, Args)]
pub(super) struct ScheduleArgs {
    /// Where backups go: s3://BUCKET/FOLDER, gs://…, az://… or file:///FOLDER
    #[arg(long, value_name = "URL", help_heading = "The schedule")]
    to: Option<StoreUrl>,

    /// How often, in whole seconds, minutes or hours, 31 days at most [default: as before, or 10m]
    #[arg(long, value_name = "TIME", value_parser = parse_every, help_heading = "The schedule")]
    every: Option<Duration>,

    /// How many of the cluster are kept, 100000 at most [default: as before, or 48]
    #[arg(long, value_name = "N", value_parser = parse_keep, help_heading = "The schedule")]
    keep: Option<i32>,

    /// Make none, whatever the flags of nodes say
    #[arg(long, conflicts_with_all = ["to", "every", "keep", "from_flags"], help_heading = "The schedule")]
    off: bool,

    /// Forget the schedule of the cluster: the flags of each node decide
    #[arg(long, conflicts_with_all = ["to", "every", "keep"], help_heading = "The schedule")]
    from_flags: bool,

    #[command(flatten)]
    pub(super) service: ServiceArgs,
}

fn parse_every(text: &str) -> Result<Duration, String> {
    let every = parse_backup_every(text)?;
    let max = u64::from(lowkey_core::limits::BACKUP_EVERY_SECONDS_MAX);
    let is_allowed = every.subsec_nanos() == 0 && every.as_secs() <= max;
    is_allowed
        .then_some(every)
        .ok_or_else(|| "must be whole seconds, 1s to 744h, which is 31 days".to_owned())
}

fn parse_keep(text: &str) -> Result<i32, String> {
    let max = lowkey_core::limits::BACKUP_KEEP_MAX;
    let keep = text.parse().ok().filter(|keep| (1..=max).contains(keep));
    let keep = keep.and_then(|keep| i32::try_from(keep).ok());
    keep.ok_or_else(|| format!("must be a whole number from 1 to {max}"))
}

pub(super) async fn schedule(args: &ScheduleArgs) -> Result<u8, CommandFailure> {
    let service = &args.service;
    let client = service.connect().await?;
    if let Some(wanted) = wanted(args, &client).await? {
        client.set_backup_schedule(wanted).await.map_err(|error| service.failure(&error))?;
    }
    let told = service.ask(client.backup_schedule()).await?;
    if service.json {
        return printed(print_json(&told));
    }
    printed(table(told).print(service.wide))
}

/// What is to be set; nothing if it is only to be shown. What is not named stays as it is.
async fn wanted(
    args: &ScheduleArgs,
    client: &Client,
) -> Result<Option<SetBackupScheduleRequest>, CommandFailure> {
    let ScheduleArgs { to, every, keep, off, from_flags, service } = args;
    let nothing = SetBackupScheduleRequest { off: *off, from_flags: *from_flags, ..Default::default() };
    if *off || *from_flags {
        return Ok(Some(nothing));
    }
    if to.is_none() && every.is_none() && keep.is_none() {
        return Ok(None);
    }
    let before = service.ask(client.backup_schedule()).await?;
    let to = to.as_ref().map_or(before.to, ToString::to_string);
    if to.is_empty() {
        let problem = "the cluster makes no backups yet: name a store with --to URL";
        return Err(CommandFailure::new(exit::USAGE, problem));
    }
    Ok(Some(SetBackupScheduleRequest {
        to,
        every_seconds: every
            .map_or(before.every_seconds, |every| i64::try_from(every.as_secs()).unwrap_or(i64::MAX)),
        keep: keep.unwrap_or(before.keep),
        ..nothing
    }))
}

fn table(told: GetBackupScheduleResponse) -> TextTable {
    let GetBackupScheduleResponse {
        to,
        every_seconds,
        keep,
        off,
        from_flags,
        leader_id,
        newest_unix_ms,
        problem,
    } = told;
    let is_on = !to.is_empty();
    let leader = if leader_id.is_empty() { "unknown".to_owned() } else { leader_id };
    let set_by = match (from_flags, off) {
        (true, _) => format!("the flags of the leader, {leader}"),
        (false, true) => "the cluster: off".to_owned(),
        (false, false) => "the cluster".to_owned(),
    };
    let newest = match i64::try_from(newest_unix_ms) {
        Ok(0) | Err(_) => "none is known".to_owned(),
        Ok(newest) => utc(newest),
    };
    let mut table = TextTable::new(&["WHAT", "VALUE"]);
    let mut row = |what: &str, value: String| table.row([what.to_owned(), value]);
    row("backups", if is_on { "on" } else { "off" }.to_owned());
    row("set by", set_by);
    if is_on {
        row("to", to);
        row("every", time(every_seconds));
        row("keep", keep.to_string());
        row("made by", leader);
        row("newest", newest);
    }
    if !problem.is_empty() {
        row("problem", problem);
    }
    table
}

/// As it is typed.
fn time(seconds: i64) -> String {
    match seconds {
        hours if hours % 3600 == 0 => format!("{}h", hours / 3600),
        minutes if minutes % 60 == 0 => format!("{}m", minutes / 60),
        seconds => format!("{seconds}s"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_shown_as_they_are_typed() {
        assert_eq!([1, 90, 600, 7_200].map(time), ["1s", "90s", "10m", "2h"]);
        for typed in ["1s", "90s", "10m", "2h", "744h"] {
            let every = parse_every(typed).unwrap();
            assert_eq!(time(i64::try_from(every.as_secs()).unwrap()), typed);
        }
        for bad in ["0s", "1500ms", "745h", "10"] {
            assert!(parse_every(bad).is_err(), "{bad}");
        }
        assert!(parse_keep("0").is_err() && parse_keep("100001").is_err() && parse_keep("48") == Ok(48));
    }
}
