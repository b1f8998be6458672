//! `leader`, `watch`: who leads, and what happens.

use std::convert::Infallible;
use std::io;
use std::pin::pin;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use futures::{Stream, StreamExt as _};
use lowkey_client::api::{LockHolder, WatchEvent};
use lowkey_client::{Client, Error, Observation};
use tokio::time::sleep;

use super::interrupts::Interrupts;
use super::locks::how;
use super::{SILENCE, ServiceArgs, printed};
use crate::exit::CommandFailure;
use crate::output::{Feed, TextTable, print_json, utc};

/// How often it is looked whether a node is reached.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

#[derive(Debug, Args)]
pub(crate) struct LeaderArgs {
    /// The election
    name: String,

    /// Go on: one line now, and one at every change
    #[arg(long, help_heading = "What to tell")]
    watch: bool,

    #[command(flatten)]
    service: ServiceArgs,
}

#[derive(Debug, Args)]
pub(crate) struct WatchArgs {
    /// What the names begin with
    #[arg(default_value = "")]
    prefix: String,

    /// The first revision to tell of, such as `watchFrom` of `lowkey ls --json` [default: from now on]
    #[arg(long, value_name = "REVISION", value_parser = clap::value_parser!(u64).range(1..), help_heading = "What to tell")]
    from: Option<u64>,

    #[command(flatten)]
    service: ServiceArgs,
}

pub(crate) fn leader(args: &LeaderArgs) -> ExitCode {
    let service = &args.service;
    service.carry_out(async {
        let client = service.connect().await?;
        if args.watch {
            return follow_leader(service, &client, client.observe(&args.name)).await;
        }
        // An election is a lock; its holder leads.
        let lock = service.ask(client.get(&args.name)).await?;
        let leader = lock.holders.first();
        if service.json {
            return printed(print_json(&leader));
        }
        let mut table = TextTable::new(&["LEADER", "VALUE", "LEASE", "TOKEN", "SINCE"]);
        if let Some(leader) = leader {
            table.row(leader_cells(leader));
        }
        printed(table.print(service.wide))
    })
}

fn leader_cells(leader: &LockHolder) -> [String; 5] {
    [
        leader.owner_id.clone(),
        leader.value.clone(),
        leader.lease_id.to_string(),
        leader.fencing_token.to_string(),
        utc(leader.since_unix_ms),
    ]
}

async fn follow_leader(
    service: &ServiceArgs,
    client: &Client,
    observations: impl Stream<Item = Result<Observation, Error>>,
) -> Result<u8, CommandFailure> {
    let columns = &[("LEADER", 32), ("VALUE", 32), ("LEASE", 6), ("TOKEN", 6), ("SINCE", 20)];
    follow(service, client, columns, observations, |observation, feed| match (feed, &observation.leader) {
        (None, leader) => print_json(leader),
        (Some(feed), Some(leader)) => feed.row(leader_cells(leader)),
        // Nobody leads: that is a change, too.
        (Some(feed), None) => feed.row(["-"; 5].map(str::to_owned)),
    })
    .await
}

pub(crate) fn watch(args: &WatchArgs) -> ExitCode {
    let service = &args.service;
    service.carry_out(async {
        let client = service.connect().await?;
        let mut watch = client.watch_prefix(&args.prefix);
        if let Some(revision) = args.from {
            watch = watch.from(revision);
        }
        let columns = &[
            ("POSITION", 10),
            ("EVENT", 9),
            ("NAME", 24),
            ("OWNER", 32),
            ("LEASE", 6),
            ("TOKEN", 6),
            ("HOW", 9),
            ("VALUE", 5),
            ("TIME", 10),
            ("BY", 12),
        ];
        follow(service, &client, columns, watch, |event, feed| match feed {
            None => print_json(&event),
            Some(feed) => feed.row(event_cells(&event)),
        })
        .await
    })
}

fn event_cells(event: &WatchEvent) -> [String; 10] {
    let or_dash = |text: String| if text.is_empty() { "-".to_owned() } else { text };
    [
        format!("{}.{}", event.revision, event.ordinal),
        event.r#type().as_str_name().to_owned(),
        event.name.clone(),
        event.owner.clone(),
        event.lease_id.to_string(),
        event.fencing_token.to_string(),
        how(event.mode(), event.scope()),
        event.value.clone(),
        if event.at_unix_ms == 0 { "-".to_owned() } else { utc(event.at_unix_ms) },
        // Who released or revoked it.
        or_dash(event.actor.clone()),
    ]
}

/// Says on standard error when no node has been reached for a while, and when one is again: otherwise nobody could tell
/// that from a time in which nothing happens.
async fn tell_of_silence(service: &ServiceArgs, client: &Client) -> Infallible {
    loop {
        let mut silent_for = Duration::ZERO;
        while silent_for < SILENCE {
            sleep(LOOK_INTERVAL).await;
            silent_for =
                if client.endpoint().is_empty() { silent_for + LOOK_INTERVAL } else { Duration::ZERO };
        }
        let endpoints = service.endpoints.join(",");
        service.remark(&format!("still trying to reach {endpoints}; changes of the meantime are told then"));
        while client.endpoint().is_empty() {
            sleep(LOOK_INTERVAL).await;
        }
        service.remark(&format!("{} answers", client.endpoint()));
    }
}

/// Tells of everything that a stream brings, as JSON (without a feed) or in lines, until somebody has had enough.
async fn follow<T>(
    service: &ServiceArgs,
    client: &Client,
    columns: &'static [(&'static str, usize)],
    stream: impl Stream<Item = Result<T, Error>>,
    tell: impl Fn(T, Option<&Feed>) -> io::Result<()>,
) -> Result<u8, CommandFailure> {
    let feed = match service.json {
        true => None,
        false => match Feed::start(columns, service.wide) {
            Ok(feed) => Some(feed),
            Err(error) => return printed(Err(error)),
        },
    };
    let mut stream = pin!(stream);
    let mut interrupts = Interrupts::listen()?;
    let mut silence = pin!(tell_of_silence(service, client));
    loop {
        let item = tokio::select! {
            item = stream.next() => item,
            code = interrupts.next() => return Ok(code),
            never = &mut silence => match never {},
        };
        let Some(item) = item else { return Ok(0) };
        let item = item.map_err(|error| service.failure(&error))?;
        if let Err(error) = tell(item, feed.as_ref()) {
            return printed(Err(error));
        }
    }
}
