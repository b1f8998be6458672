//! `health`: whether a node lives, and whether it is ready, for probes that can only run a command.
//!
//! It needs no credential but where TLS demands a certificate, and it asks the node that it is given, not its leader.

use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::Args;
use lowkey_client::NodeHealth;
use serde_json::json;

use super::{ServiceArgs, printed};
use crate::exit::{self, CommandFailure};
use crate::output::print_json;

#[derive(Debug, Args)]
pub(crate) struct HealthArgs {
    /// Ask whether it is ready, too: a node that knows no leader, or has no cluster yet, is status 1
    #[arg(long, help_heading = "Output")]
    ready: bool,

    #[command(flatten)]
    service: ServiceArgs,
}

pub(crate) fn health(args: &HealthArgs) -> ExitCode {
    let service = &args.service;
    service.carry_out(async {
        let health = service.health().await?;
        if args.ready && !health.is_ready {
            return Err(CommandFailure::new(exit::NO, not_ready(&health)));
        }
        if service.json {
            let status = health.status.as_ref();
            return printed(print_json(&json!({
                // Not told to everybody.
                "nodeId": status.map(|status| &status.node_id),
                "leaderId": status.map(|status| &status.leader_id),
                "ready": health.is_ready,
            })));
        }
        let line = match health.is_ready {
            true => format!("ok: {} answers", who(&health)),
            false => format!("ok: {}", not_ready(&health)),
        };
        printed(writeln!(io::stdout(), "{line}"))
    })
}

/// The node's name, if this client may know it.
fn who(health: &NodeHealth) -> &str {
    health.status.as_ref().map_or(&health.endpoint, |status| &status.node_id)
}

fn not_ready(health: &NodeHealth) -> String {
    let who = who(health);
    match (&health.status, &health.problem) {
        (Some(status), _) if status.leader_id.is_empty() => format!("{who} answers, and knows no leader"),
        (_, Some(problem)) => format!("{who} answers, and is not ready: {problem}"),
        _ => format!("{who} answers, and is not ready; its /readyz says why"),
    }
}
