//! `member`: the nodes of the cluster, and which of them leads.

use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};
use lowkey_client::Client;
use lowkey_client::api::{GetStatusResponse, Member};
use serde::Serialize;
use tokio::time::{Instant, sleep};

use super::{ServiceArgs, printed};
use crate::duration::parse_duration;
use crate::exit::{self, CommandFailure};
use crate::output::{TextTable, print_json, print_token};

/// How often the cluster is looked at while something is waited for.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

#[derive(Debug, Args)]
pub(crate) struct MemberArgs {
    #[command(subcommand)]
    command: MemberCommand,
}

#[derive(Debug, Subcommand)]
enum MemberCommand {
    /// List the nodes: who votes, who leads, who is behind
    List(ListArgs),
    /// Say that a node is expected, before it is started with --join
    Add(AddArgs),
    /// Print an invitation, with which one node may join, once: its --join-token-file
    Invite(InviteArgs),
    /// Remove a node for good; it ends by itself, and a leader hands over first
    Remove(WaitingArgs),
    /// Wait until a node votes; it does by itself, as soon as it has caught up
    Promote(WaitingArgs),
    /// Make a node the leader
    Transfer(TransferArgs),
}

#[derive(Debug, Args)]
struct ListArgs {
    #[command(flatten)]
    service: ServiceArgs,
}

#[derive(Debug, Args)]
struct AddArgs {
    /// The node's name: its --node-id
    node: String,

    /// Where the other nodes will reach it: its --raft-addr, or --advertise-raft-addr
    #[arg(long, value_name = "HOST:PORT", help_heading = "The node")]
    raft_addr: String,

    #[command(flatten)]
    service: ServiceArgs,
}

#[derive(Debug, Args)]
struct InviteArgs {
    /// For how long it is good: up to 24h
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "1h", help_heading = "The invitation")]
    ttl: Duration,

    #[command(flatten)]
    service: ServiceArgs,
}

#[derive(Debug, Args)]
struct WaitingArgs {
    /// The node's name
    node: String,

    /// Wait for this long at most: then status 124
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "30s", help_heading = "Waiting")]
    wait: Duration,

    #[command(flatten)]
    service: ServiceArgs,
}

#[derive(Debug, Args)]
struct TransferArgs {
    /// The node's name
    node: String,

    #[command(flatten)]
    service: ServiceArgs,
}

#[derive(Serialize)]
struct Listed {
    members: Vec<Member>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Named<'a> {
    node_id: &'a str,
    /// As a string, like every 64-bit number of the API.
    member_id: String,
}

pub(crate) fn member(args: &MemberArgs) -> ExitCode {
    match &args.command {
        MemberCommand::List(args) => args.service.carry_out(list(&args.service)),
        MemberCommand::Add(args) => args.service.carry_out(add(args)),
        MemberCommand::Invite(args) => args.service.carry_out(invite(args)),
        MemberCommand::Remove(args) => args.service.carry_out(remove(args)),
        MemberCommand::Promote(args) => args.service.carry_out(promote(args)),
        MemberCommand::Transfer(args) => args.service.carry_out(transfer(args)),
    }
}

async fn list(service: &ServiceArgs) -> Result<u8, CommandFailure> {
    let client = service.connect().await?;
    let status = client.status().await.map_err(|error| service.failure(&error))?;
    if service.json {
        return printed(print_json(&Listed { members: status.members }));
    }
    printed(table(&status).print(service.wide))
}

/// The members of a cluster as a table.
pub(crate) fn table(status: &GetStatusResponse) -> TextTable {
    let mut members = TextTable::new(&["MEMBER", "ROLE", "GRPC", "HTTP", "RAFT", "BEHIND", "REACHABLE"]);
    for member in &status.members {
        // Only the leader knows these.
        let known = |text: String| if status.is_leader { text } else { "-".to_owned() };
        let told = |address: &str| if address.is_empty() { "-" } else { address }.to_owned();
        let reachable = if member.reachable || member.leader { "yes" } else { "no" };
        members.row([
            member.node_id.clone(),
            role(member).to_owned(),
            told(&member.grpc_address),
            told(&member.http_address),
            told(&member.raft_address),
            known(member.lag.to_string()),
            known(reachable.to_owned()),
        ]);
    }
    members
}

fn role(member: &Member) -> &'static str {
    match member {
        Member { leader: true, .. } => "leader",
        Member { voter: true, .. } => "voter",
        Member { expected: true, .. } => "expected",
        _ => "learner",
    }
}

async fn add(args: &AddArgs) -> Result<u8, CommandFailure> {
    let AddArgs { node, raft_addr, service } = args;
    let client = service.connect().await?;
    let member = client.add_member(node, raft_addr).await.map_err(|error| service.failure(&error))?;
    if service.json {
        return printed(print_json(&Named { node_id: node, member_id: member.to_string() }));
    }
    let mut table = TextTable::new(&["MEMBER", "ROLE", "RAFT"]);
    table.row([node.clone(), "expected".to_owned(), raft_addr.clone()]);
    printed(table.print(service.wide))
}

/// The token alone, so that it can be written into a file.
async fn invite(args: &InviteArgs) -> Result<u8, CommandFailure> {
    let InviteArgs { ttl, service } = args;
    let client = service.connect().await?;
    let invited = client.invite_member(*ttl).await.map_err(|error| service.failure(&error))?;
    if service.json {
        return printed(print_json(&invited));
    }
    printed(print_token(&invited.token))
}

async fn remove(args: &WaitingArgs) -> Result<u8, CommandFailure> {
    let WaitingArgs { node, wait, service } = args;
    let client = service.connect().await?;
    let member = client.remove_member(node).await.map_err(|error| service.failure(&error))?;
    let still = format!(
        "{node} is removed, but still has a part in the quorum: a majority must agree to let it go; look at \
         `lowkey member list`"
    );
    let left = |status: &GetStatusResponse| match status.leaving.contains(&member) {
        true => Err(still.clone()),
        false => Ok(()),
    };
    look_until(&client, service, *wait, left).await?;
    if service.json {
        return printed(print_json(&Named { node_id: node, member_id: member.to_string() }));
    }
    let mut table = TextTable::new(&["MEMBER", "ROLE"]);
    table.row([node.clone(), "removed".to_owned()]);
    printed(table.print(service.wide))
}

async fn promote(args: &WaitingArgs) -> Result<u8, CommandFailure> {
    let WaitingArgs { node, wait, service } = args;
    let client = service.connect().await?;
    let votes = |status: &GetStatusResponse| {
        let member = status.members.iter().find(|member| member.node_id == *node);
        match member {
            None => Err(format!("no node named {node} is a member of this cluster; start it with --join")),
            Some(member) if member.voter => Ok(member.clone()),
            Some(member) => Err(format!("{node} does not vote: {}", why_not(member, status.is_leader))),
        }
    };
    let member = look_until(&client, service, *wait, votes).await?;
    if service.json {
        return printed(print_json(&member));
    }
    let mut table = TextTable::new(&["MEMBER", "ROLE"]);
    table.row([node.clone(), role(&member).to_owned()]);
    printed(table.print(service.wide))
}

fn why_not(member: &Member, told_by_leader: bool) -> String {
    match member {
        Member { expected: true, .. } => {
            format!(
                "no node has joined under this name yet; start it with --join and --node-id {}",
                member.node_id
            )
        }
        _ if !told_by_leader => "the leader, who knows why, cannot be reached".to_owned(),
        Member { reachable: false, .. } => {
            format!("the leader does not hear from it at {}; is it up?", member.raft_address)
        }
        Member { lag, .. } => format!("it lacks {lag} entries of the log, and is catching up"),
    }
}

/// Looks at the cluster until it is as wanted, or the time is up.
async fn look_until<T>(
    client: &Client,
    service: &ServiceArgs,
    wait: Duration,
    look: impl Fn(&GetStatusResponse) -> Result<T, String>,
) -> Result<T, CommandFailure> {
    let deadline = Instant::now() + wait;
    loop {
        let status = client.status().await.map_err(|error| service.failure(&error))?;
        match look(&status) {
            Ok(found) => return Ok(found),
            Err(problem) if Instant::now() >= deadline => {
                return Err(CommandFailure::new(exit::TIMED_OUT, problem));
            }
            Err(_) => sleep(LOOK_INTERVAL).await,
        }
    }
}

async fn transfer(args: &TransferArgs) -> Result<u8, CommandFailure> {
    let TransferArgs { node, service } = args;
    let client = service.connect().await?;
    let now = client.transfer_leader(node).await.map_err(|error| service.failure(&error))?;
    if service.json {
        return printed(print_json(&now));
    }
    let mut table = TextTable::new(&["MEMBER", "ROLE", "GRPC"]);
    table.row([now.leader_id, "leader".to_owned(), now.leader_address]);
    printed(table.print(service.wide))
}
