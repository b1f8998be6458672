//! `health`: whether a node answers, for probes that can only run a command.

use std::process::ExitCode;

use clap::Args;

use super::{ServiceArgs, printed};
use crate::exit::{self, CommandFailure};
use crate::output::print_json;

#[derive(Debug, Args)]
pub(crate) struct HealthArgs {
    /// Ask for a leader, too: without one the answer is status 1
    #[arg(long, help_heading = "Output")]
    ready: bool,

    #[command(flatten)]
    service: ServiceArgs,
}

pub(crate) fn health(args: &HealthArgs) -> ExitCode {
    let service = &args.service;
    service.carry_out(async {
        let client = service.connect().await?;
        let status = service.ask(client.status()).await?;
        if args.ready && status.leader_id.is_empty() {
            let line = format!("node {} answers, and knows no leader", status.node_id);
            return Err(CommandFailure::new(exit::NO, line));
        }
        if service.json {
            let (node, leader) = (&status.node_id, &status.leader_id);
            return printed(print_json(&serde_json::json!({ "nodeId": node, "leaderId": leader })));
        }
        let line = format!("ok: {} answers", status.node_id);
        printed(std::io::Write::write_all(&mut std::io::stdout().lock(), format!("{line}\n").as_bytes()))
    })
}
