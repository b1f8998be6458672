//! `recover`: a new cluster out of the one node that is left of one that lost its quorum for good.
//!
//! Says what it found and what it would do, and does it only if somebody says that the others are lost.

use std::io::{self, IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use lowkey_backup::{BackupError, Store, StoreUrl};
use lowkey_core::limits::TTL_SECONDS_MAX;
use lowkey_server::{Anew, Inspected, Lost, LostCluster, Recovered, StartError, inspect};

use super::backup::{self, Claimant};
use crate::exit::{self, CommandFailure};
use crate::output::say;

const YES: &str = "--yes-the-other-nodes-are-lost-for-good";
pub(super) const AT_ONCE: &str = "--grant-at-once-although-old-holders-may-still-believe";

#[derive(Debug, Args)]
pub(crate) struct RecoverArgs {
    /// The data directory of the stopped node that is left
    #[arg(long, value_name = "DIR", env = "LOWKEY_DATA_DIR", help_heading = "The node that is left")]
    data_dir: PathBuf,

    /// The store of the cluster's backups: there the new cluster claims where its tokens begin
    #[arg(long, value_name = "URL", env = "LOWKEY_BACKUP_TO", help_heading = "The node that is left")]
    backup_to: Option<StoreUrl>,

    /// Do it: no other node of this cluster will ever run again with the data that it has
    #[arg(long, help_heading = "What to do")]
    yes_the_other_nodes_are_lost_for_good: bool,

    /// Do not wait for the longest TTL: a client of before may still believe that it holds what another is granted
    #[arg(long, help_heading = "What to do")]
    grant_at_once_although_old_holders_may_still_believe: bool,
}

pub(crate) fn recover(args: &RecoverArgs) -> ExitCode {
    match carry_out(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(false),
    }
}

fn carry_out(args: &RecoverArgs) -> Result<(), CommandFailure> {
    let path = &args.data_dir;
    match inspect(path).map_err(failed)? {
        Inspected::Unfinished(unfinished) => {
            tell(
                "A recovery of this directory was decided, and interrupted. What is left of it changes nothing any more.",
            );
            if !args.yes_the_other_nodes_are_lost_for_good {
                let line = format!("nothing was changed; {YES} finishes it, and so does starting the node");
                return Err(CommandFailure::new(exit::NO, line));
            }
            let recovered = unfinished.finish().map_err(failed)?;
            tell(&what_now(path, &recovered, None));
            Ok(())
        }
        Inspected::Lost(lost) => begin_anew(args, *lost),
    }
}

fn begin_anew(args: &RecoverArgs, lost: LostCluster) -> Result<(), CommandFailure> {
    let at_once = args.grant_at_once_although_old_holders_may_still_believe;
    let about = lost.about().clone();
    let what_follows =
        if args.yes_the_other_nodes_are_lost_for_good { "What is done now" } else { "What would be done" };
    tell(&what_is_found(args, &about, what_follows));
    if !args.yes_the_other_nodes_are_lost_for_good && !is_confirmed(&about) {
        let line = format!(
            "nothing was changed; if no other node of this cluster will ever run again with the data that it has, add {YES}"
        );
        return Err(CommandFailure::new(exit::NO, line));
    }
    let anew = anew(args, &lost)?;
    let recovered = lost.begin_anew(anew).map_err(failed)?;
    tell(&what_now(&args.data_dir, &recovered, Some((&about, at_once))));
    Ok(())
}

/// The new cluster: with an epoch of its own, if there is a place to claim one.
fn anew(args: &RecoverArgs, lost: &LostCluster) -> Result<Anew, CommandFailure> {
    let quarantine = !args.grant_at_once_although_old_holders_may_still_believe;
    let Some(url) = &args.backup_to else { return Anew::unclaimed(quarantine).map_err(failed) };
    let claimant =
        Claimant { parent: lost.cluster(), what: "recover", highest_counter: lost.about().highest_counter };
    let (anew, claimed) = backup::block_on(async {
        let in_words = |error: BackupError| {
            let failure = backup::failed(&error);
            let line = format!("{}; nothing was changed", failure.line);
            CommandFailure { line, ..failure }
        };
        let store = Store::open(url).map_err(in_words)?;
        let catalog = store.catalog().await.map_err(in_words)?;
        backup::claim(&store, &catalog, &claimant, true, quarantine).await
    })?;
    tell(&format!(
        "Claimed at {url}: epoch {}. The first token is {}.\n",
        claimed.epoch,
        claimed.epoch.first_counter() + 1
    ));
    Ok(anew)
}

/// What is left to whoever cannot recover a directory.
const ANOTHER: &str =
    "this one cannot be recovered: take the data directory of another survivor, if there is one";

fn failed(error: StartError) -> CommandFailure {
    let line = match error {
        StartError::InUse { path } => format!(
            "the data directory {} is in use by a lowkey process; a node must be stopped before it can be recovered, and one \
             that runs may still find its majority",
            path.display()
        ),
        StartError::IdentityLost { path } => format!(
            "the data directory {} no longer has its `node` file, and cannot prove whose it is; {ANOTHER}",
            path.display()
        ),
        StartError::Directory { path, problem, .. } if problem.is_loss() => {
            format!("the data directory {}: {problem}; {ANOTHER}", path.display())
        }
        other => other.to_string(),
    };
    CommandFailure::new(exit::NO, line)
}

/// On a terminal somebody may type it.
fn is_confirmed(about: &Lost) -> bool {
    if !io::stdin().is_terminal() || !io::stderr().is_terminal() {
        return false;
    }
    say(&format!("Type the name of the node, {}, to do it:", about.node_name));
    let mut typed = String::new();
    io::stdin().read_line(&mut typed).is_ok() && typed.trim() == about.node_name
}

/// For a person; if nobody can read it, that changes nothing.
fn tell(text: &str) {
    let _ = io::stdout().lock().write_all(format!("{}\n", text.trim_end()).as_bytes());
}

fn what_is_found(args: &RecoverArgs, about: &Lost, what_follows: &str) -> String {
    let (path, at_once) = (&args.data_dir, args.grant_at_once_although_old_holders_may_still_believe);
    let elsewhere = match &args.backup_to {
        Some(url) => format!(
            "Its epoch is claimed at {url}: the tokens of two clusters that\nclaim theirs there are never the same, \
             and those of the later one are the higher ones."
        ),
        None => "Their tokens differ, almost certainly; which are the higher\nones is not defined if both were recovered in \
                 the same minute, or by clocks that disagree. With --backup-to, the\nstore of the cluster's backups, they \
                 claim them there, and the later cluster's are the higher ones."
            .to_owned(),
    };
    let Lost {
        node_name,
        cluster_id,
        term,
        last_index,
        committed_index,
        members,
        leases,
        locks,
        last_token,
        ..
    } = about;
    let others: Vec<&str> = members.iter().filter(|name| *name != node_name).map(String::as_str).collect();
    let granting = if at_once {
        format!(
            "It grants AT ONCE ({AT_ONCE}):\n  a client of before may still believe that it holds what another is granted. \
             Only fencing tokens that are\n  checked keep the two apart."
        )
    } else {
        format!(
            "For {TTL_SECONDS_MAX} s after its first start it grants no lock (RECOVERING), until no client of before can \
             believe\n  any more that it holds one."
        )
    };
    format!(
        "Found in {path}:
  node       {node_name}
  cluster    {cluster_id}, of {members}
  log        up to {last_index} (known to be committed: {committed_index}), term {term}
  holds      {leases} leases, {locks} locks; highest token {last_token}

WARNING: this gives the cluster up. It is for one case only: most of its nodes are lost for good, so that it will
never have a majority again. If {others} can be started again, start them instead.

Do this on ONE survivor only. It asks nobody, and cannot know of a recovery elsewhere: two survivors that are recovered
separately are two clusters, and both grant the same locks. {elsewhere}

{what_follows}:
  {node_name} begins a NEW cluster, alone, with a new id. All leases, locks and places in line are dropped.
  Fencing tokens go on far above every one that was ever granted.
  {granting}
  The files of before are kept in {path}/before-recover-….
",
        path = path.display(),
        members = members.join(", "),
        others = if others.is_empty() { "the other nodes".to_owned() } else { others.join(", ") },
    )
}

fn what_now(path: &Path, recovered: &Recovered, about: Option<(&Lost, bool)>) -> String {
    let waiting = match about {
        Some((_, true)) => String::new(),
        _ => format!(
            "     For {TTL_SECONDS_MAX} s it grants no lock, and says RECOVERING; `lowkey status` tells how long. A restart begins \
             that time anew.\n"
        ),
    };
    format!(
        "Done: {path} is the first node of cluster {cluster} now.
The files of before are in {kept}; remove them when you are sure.

What to do next:
  1. Start the node, with the same flags as before.
{waiting}  2. Never start another node of the old cluster with the data that it has: it would look for its old peers,
     in vain. Never recover another one either: that would be a second cluster, which grants the same locks. Empty its data directory, then start it with --join and this node's gRPC address.
  3. Restart all clients: they stay with the cluster that they began with, and refuse this one.
  4. What your locks protect sees higher fencing tokens from now on, and refuses the old ones.",
        path = path.display(),
        cluster = recovered.cluster_id,
        kept = recovered.kept.display(),
    )
}
