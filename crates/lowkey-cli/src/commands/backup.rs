//! `backup`: copies of the cluster's state in object storage, and a new cluster made of one.
//!
//! `create` has a node make one, and `schedule` tells the cluster when to. The others talk to the store alone: they are for the day on which no node runs.

mod claiming;
mod old_members;
mod progress;
mod schedule;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};
use lowkey_backup::{Backup, BackupError, Fetched, Manifest, Store, StoreUrl};
use lowkey_core::NodeName;
use lowkey_core::limits::TTL_SECONDS_MAX;
use serde_json::{Value, json};

pub(crate) use self::claiming::{Claimant, claim};
use self::progress::Bar;
use self::schedule::ScheduleArgs;
use super::recover::AT_ONCE;
use super::{ServiceArgs, printed};
use crate::duration::parse_duration;
use crate::exit::{self, CommandFailure};
use crate::output::{TextTable, print_json, say, utc};

#[derive(Debug, Args)]
pub(crate) struct BackupArgs {
    #[command(subcommand)]
    command: BackupCommand,
}

#[derive(Debug, Subcommand)]
enum BackupCommand {
    /// Have a node make a backup now, and read it back
    Create(CreateArgs),
    /// List the backups in a store, newest first
    List(ListArgs),
    /// Read all of a backup and check it, as a restore would: status 1 if it is damaged
    Verify(VerifyArgs),
    /// Show by which schedule the cluster makes backups, or set it for all nodes at once
    Schedule(ScheduleArgs),
    /// Make a new cluster of a backup, in an empty data directory, when all nodes are lost
    Restore(RestoreArgs),
}

#[derive(Debug, Args)]
struct CreateArgs {
    /// Where to: s3://BUCKET/FOLDER, gs://…, az://… or file:///FOLDER [default: where the cluster keeps its backups]
    #[arg(long, value_name = "URL", help_heading = "The backup")]
    to: Option<StoreUrl>,

    /// How long it may take
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "10m", help_heading = "The backup")]
    within: Duration,

    #[command(flatten)]
    service: ServiceArgs,
}

/// Where backups are, for commands that talk to no node.
#[derive(Debug, Args)]
#[command(next_help_heading = "The store")]
struct FromArgs {
    /// The store: s3://BUCKET/FOLDER, gs://…, az://… or file:///FOLDER; credentials come from the environment
    #[arg(long, value_name = "URL", env = "LOWKEY_BACKUP_TO", help_heading = "The backup")]
    from: StoreUrl,

    /// Print JSON; errors, too
    #[arg(long, help_heading = "The backup")]
    json: bool,
}

#[derive(Debug, Args)]
struct ListArgs {
    #[command(flatten)]
    from: FromArgs,

    /// Show tables in full, also where they are wider than the terminal
    #[arg(long, help_heading = "The store")]
    wide: bool,
}

#[derive(Debug, Args)]
struct VerifyArgs {
    /// Which backup, as `lowkey backup list` names it [default: the newest]
    #[arg(long, value_name = "ID", help_heading = "The backup")]
    backup: Option<String>,

    #[command(flatten)]
    from: FromArgs,
}

#[derive(Debug, Args)]
struct RestoreArgs {
    /// Which backup, as `lowkey backup list` names it [default: the newest]
    #[arg(long, value_name = "ID", help_heading = "The backup")]
    backup: Option<String>,

    /// The data directory of the first node of the new cluster: empty, or not there yet
    #[arg(long, value_name = "DIR", env = "LOWKEY_DATA_DIR", help_heading = "The new node")]
    data_dir: PathBuf,

    /// Its name in the new cluster [default: made up, and kept in the data directory]
    #[arg(long, value_name = "NAME", env = "LOWKEY_NODE_ID", value_parser = parse_node_name, help_heading = "The new node")]
    node_id: Option<NodeName>,

    /// Keep bearer tokens: those that were revoked after the backup was made are good again
    #[arg(long, help_heading = "What to do")]
    keep_tokens: bool,

    /// Do it although a node of the old cluster answers: both clusters then grant the same locks
    #[arg(long, help_heading = "What to do")]
    although_nodes_of_the_old_cluster_answer: bool,

    /// Do not wait for the longest TTL: a client of before may still believe that it holds what another is granted
    #[arg(long, help_heading = "What to do")]
    grant_at_once_although_old_holders_may_still_believe: bool,

    #[command(flatten)]
    from: FromArgs,
}

fn parse_node_name(text: &str) -> Result<NodeName, String> {
    NodeName::parse(text).map_err(|invalid| invalid.problem)
}

pub(crate) fn backup(args: &BackupArgs) -> ExitCode {
    match &args.command {
        BackupCommand::Create(args) => args.service.carry_out(create(args)),
        BackupCommand::List(args) => args.from.carry_out(list(args)),
        BackupCommand::Schedule(args) => args.service.carry_out(schedule::schedule(args)),
        BackupCommand::Verify(args) => args.from.carry_out(verify(args)),
        BackupCommand::Restore(args) => args.from.carry_out(restore(args)),
    }
}

impl FromArgs {
    fn carry_out(&self, work: impl Future<Output = Result<u8, CommandFailure>>) -> ExitCode {
        match block_on(work) {
            Ok(code) => ExitCode::from(code),
            Err(failure) => failure.report(self.json),
        }
    }

    fn store(&self) -> Result<Store, CommandFailure> {
        Store::open(&self.from).map_err(|error| failed(&error))
    }

    /// Reads and checks a backup, and shows how far it is.
    async fn fetch(&self, store: &Store, wanted: &Backup) -> Result<Fetched, CommandFailure> {
        let bar = Bar::start("reading", self.json);
        let fetched = store.fetch(&wanted.id, &|done, all| bar.show(done, all)).await;
        bar.clear();
        fetched.map_err(|error| failed(&error))
    }
}

/// Runs what talks to a store.
pub(crate) fn block_on<T>(
    work: impl Future<Output = Result<T, CommandFailure>>,
) -> Result<T, CommandFailure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| {
        CommandFailure::new(exit::NO_SERVICE, format!("cannot start the runtime: {error}"))
    })?;
    let outcome = runtime.block_on(work);
    runtime.shutdown_background();
    outcome
}

/// What an error of a store means for who typed the command.
pub(crate) fn failed(error: &BackupError) -> CommandFailure {
    let code = match error {
        BackupError::Url { .. } => exit::USAGE,
        BackupError::Store { .. } => exit::NO_SERVICE,
        _ => exit::NO,
    };
    CommandFailure::new(code, error.to_string())
}

async fn create(args: &CreateArgs) -> Result<u8, CommandFailure> {
    let CreateArgs { to, within, service } = args;
    let client = service.connect().await?;
    let to = to.as_ref().map(ToString::to_string).unwrap_or_default();
    let made = client.create_backup(to, *within).await.map_err(|error| service.failure(&error))?;
    if service.json {
        return printed(print_json(&made));
    }
    let mut table = TextTable::new(&["BACKUP", "REVISION", "TOKEN", "SIZE", "TOOK"]);
    table.row([
        made.backup_id,
        made.revision.to_string(),
        made.fencing_counter.to_string(),
        size(made.size_bytes),
        format!("{} ms", made.took_ms),
    ]);
    printed(table.print(service.wide))
}

async fn list(args: &ListArgs) -> Result<u8, CommandFailure> {
    let catalog = args.from.store()?.catalog().await.map_err(|error| failed(&error))?;
    if args.from.json {
        let backups: Vec<Value> = catalog.backups.iter().map(as_json).collect();
        return printed(print_json(&json!({ "backups": backups })));
    }
    let mut table = TextTable::new(&["BACKUP", "MADE", "BY", "LEASES", "LOCKS", "TOKEN", "SIZE"]);
    for Backup { id, manifest } in &catalog.backups {
        let made = utc(id.made_seconds().saturating_mul(1000));
        let cells = match manifest {
            Ok(manifest) => described(manifest),
            Err(_) => std::array::from_fn(|_| "damaged".to_owned()),
        };
        table.row([id.to_string(), made].into_iter().chain(cells));
    }
    printed(table.print(args.wide))
}

fn as_json(backup: &Backup) -> Value {
    let id = backup.id.to_string();
    match &backup.manifest {
        Ok(manifest) => json!({ "backup": id, "manifest": manifest }),
        Err(problem) => json!({ "backup": id, "damaged": problem }),
    }
}

/// What a manifest says, for one row: by whom it was made, leases, locks, token, size.
fn described(manifest: &Manifest) -> [String; 5] {
    let sum = |of: fn(&lowkey_backup::GroupFile) -> usize| {
        manifest.groups.iter().map(of).sum::<usize>().to_string()
    };
    let token = manifest.groups.iter().map(|group| group.last_token).max().unwrap_or(0);
    [
        manifest.made_by.clone(),
        sum(|group| group.leases),
        sum(|group| group.locks),
        token.to_string(),
        size(manifest.size_bytes()),
    ]
}

fn size(bytes: u64) -> String {
    match bytes {
        0..10_240 => format!("{bytes} B"),
        10_240..10_485_760 => format!("{} KiB", bytes / 1024),
        _ => format!("{} MiB", bytes / 1024 / 1024),
    }
}

async fn verify(args: &VerifyArgs) -> Result<u8, CommandFailure> {
    let store = args.from.store()?;
    let catalog = store.catalog().await.map_err(|error| failed(&error))?;
    let wanted = catalog.find(args.backup.as_deref()).map_err(|error| failed(&error))?;
    let fetched = args.from.fetch(&store, wanted).await?;
    if args.from.json {
        let told =
            json!({ "backup": fetched.id.to_string(), "verified": true, "manifest": fetched.manifest });
        return printed(print_json(&told));
    }
    let mut table = TextTable::new(&["BACKUP", "VERIFIED", "LEASES", "LOCKS", "TOKEN", "SIZE"]);
    let [_, leases, locks, token, size] = described(&fetched.manifest);
    table.row([fetched.id.to_string(), "yes".to_owned(), leases, locks, token, size]);
    printed(table.print(true))
}

async fn restore(args: &RestoreArgs) -> Result<u8, CommandFailure> {
    let refused = |error: lowkey_server::StartError| CommandFailure::new(exit::NO, error.to_string());
    lowkey_server::check_empty(&args.data_dir).map_err(refused)?;
    let store = args.from.store()?;
    let catalog = store.catalog().await.map_err(|error| failed(&error))?;
    let wanted = catalog.find(args.backup.as_deref()).map_err(|error| failed(&error))?;
    let fetched = args.from.fetch(&store, wanted).await?;
    if !args.although_nodes_of_the_old_cluster_answer {
        old_members::ask(&fetched.manifest).await?;
    }
    let quarantine = !args.grant_at_once_although_old_holders_may_still_believe;
    let claimant = Claimant {
        parent: fetched.root.state.cluster(),
        what: "restore",
        highest_counter: fetched.manifest.highest_counter(),
    };
    let (anew, claimed) = claim(&store, &catalog, &claimant, args.keep_tokens, quarantine).await?;
    let name = args.node_id.as_ref();
    let restored = lowkey_server::restore(&args.data_dir, name, &fetched.root, anew).map_err(refused)?;
    if args.from.json {
        return printed(print_json(&json!({
            "backup": fetched.id.to_string(),
            "clusterId": restored.cluster_id,
            "nodeId": restored.node_name,
            "epoch": claimed.epoch.to_string(),
            "firstToken": (claimed.epoch.first_counter() + 1).to_string(),
            "quarantineSeconds": if quarantine { TTL_SECONDS_MAX } else { 0 },
        })));
    }
    say(&what_now(args, &fetched, &restored, claimed.epoch.first_counter() + 1));
    Ok(0)
}

fn what_now(
    args: &RestoreArgs,
    fetched: &Fetched,
    restored: &lowkey_server::Restored,
    first_token: u64,
) -> String {
    let waiting = match args.grant_at_once_although_old_holders_may_still_believe {
        true => format!(
            "It grants AT ONCE ({AT_ONCE}):\n  a client of before may still believe that it holds what another is granted."
        ),
        false => format!(
            "For {TTL_SECONDS_MAX} s after its first start it grants no lock (RECOVERING), until no client of before can \
             believe\n  any more that it holds one. A restart begins that time anew."
        ),
    };
    let has_access = !fetched.root.state.access().is_empty();
    let access = if has_access && !args.keep_tokens {
        "  Who may do what is as it was; bearer tokens are not: make new ones with `lowkey access token new`, by way of\n  \
         admin.sock in the data directory.\n\n"
    } else {
        ""
    };
    format!(
        "Done: {path} is the first node, {node}, of the new cluster {cluster}.
It is made of backup {id}, made {made}.

  Leases, locks and places in line are not carried over. The first token is {first_token}: above every one that was
  ever granted, and what your locks protect refuses the old ones from then on.
  {waiting}

{access}What to do next:
  1. Start the node: lowkey server --data-dir {path}, with the flags of before.
  2. Never start a node of the old cluster again. Empty the data directories of the others, and let them join this one.
  3. Restart all clients: they stay with the cluster that they began with, and refuse this one.",
        path = args.data_dir.display(),
        node = restored.node_name,
        cluster = restored.cluster_id,
        id = fetched.id,
        made = utc(fetched.id.made_seconds().saturating_mul(1000)),
    )
}
