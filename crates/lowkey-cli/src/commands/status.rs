//! `status`: how the cluster is doing, as the leader sees it if there is one.

use std::process::ExitCode;

use clap::Args;

use super::{ServiceArgs, member, printed};
use crate::output::{TextTable, print_json};

#[derive(Debug, Args)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    service: ServiceArgs,
}

pub(crate) fn status(args: &StatusArgs) -> ExitCode {
    let service = &args.service;
    service.carry_out(async {
        let client = service.connect().await?;
        let status = service.ask(client.status()).await?;
        if service.json {
            return printed(print_json(&status));
        }
        let (stats, members) = (status.stats.unwrap_or_default(), member::table(&status));
        let mut table = TextTable::new(&["WHAT", "VALUE"]);
        let recovering = match status.recovering_seconds {
            0 => None,
            left => Some(("recovering", format!("no lock is granted for {left} s more at most"))),
        };
        // A node of before tells none.
        let tick_ms = status.raft_tick_ms.max(10);
        let epoch = (status.epoch > 0).then(|| ("epoch", status.epoch.to_string()));
        let leader = if status.leader_id.is_empty() { "none".to_owned() } else { status.leader_id };
        for (what, value) in [
            ("cluster", status.cluster_id),
            ("leader", leader),
            ("term", status.term.to_string()),
            ("applied", status.applied_index.to_string()),
            ("voters", status.cluster_size.to_string()),
            ("raft tick", format!("{tick_ms} ms")),
            ("leases", stats.leases.to_string()),
            ("locks", stats.locks.to_string()),
            ("waiting", stats.waiters.to_string()),
            ("highest token", stats.fencing_counter.to_string()),
            ("answered by", format!("{} ({})", status.node_id, status.version)),
        ]
        .into_iter()
        .chain(epoch)
        .chain(recovering)
        {
            table.row([what.to_owned(), value]);
        }
        printed(table.print(service.wide))?;
        printed(println_if_terminal())?;
        printed(members.print(service.wide))
    })
}

/// Sets two tables apart.
fn println_if_terminal() -> std::io::Result<()> {
    use std::io::{IsTerminal, Write};
    let mut out = std::io::stdout().lock();
    if out.is_terminal() { writeln!(out) } else { Ok(()) }
}
