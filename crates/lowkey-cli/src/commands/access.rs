//! `access`: who may do what.

use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Subcommand};
use lowkey_client::Client;
use lowkey_client::api::{AccessGrant, Principal};

use super::{ServiceArgs, printed};
use crate::exit::{self, CommandFailure};
use crate::output::{TextTable, print_json, print_token};

/// The socket of an admin in a node's data directory.
const SOCKET_NAME: &str = "admin.sock";
/// Where a node's data is, for the node and for this.
const DATA_DIR_VARIABLE: &str = "LOWKEY_DATA_DIR";
const DATA_DIR_DEFAULT: &str = "./data";

#[derive(Debug, Args)]
pub(crate) struct AccessArgs {
    #[command(subcommand)]
    command: AccessCommand,
}

#[derive(Debug, Subcommand)]
enum AccessCommand {
    /// Make, list and remove principals: who a client can prove to be
    #[command(subcommand)]
    Principal(PrincipalCommand),
    /// Make and revoke tokens, by which a client proves who it is
    #[command(subcommand)]
    Token(TokenCommand),
    /// Allow a principal more on a path: the name itself, and all below it
    Grant(GrantArgs),
    /// Allow a principal less, of what was granted on exactly this path
    Revoke(GrantArgs),
    /// Refuse everybody without a proof and a grant, from now on
    Require(RequireArgs),
    /// Tell whether a principal may do something, and why: status 0 if so, 1 if not
    Check(CheckArgs),
    /// Show who you are to the cluster
    Whoami(WhoamiArgs),
}

#[derive(Debug, Subcommand)]
enum PrincipalCommand {
    /// Make a principal, or give one that exists more names of certificates
    Add(AddArgs),
    /// List all principals, with their proofs and grants
    List(ListArgs),
    /// Show one principal
    Show(ShowArgs),
    /// Remove a principal, or one name of its certificates
    Remove(RemoveArgs),
}

#[derive(Debug, Subcommand)]
enum TokenCommand {
    /// Make a token and print it; nobody can be told it again
    New(NewTokenArgs),
    /// Make a token worthless; what it opened ends within a second
    Revoke(RevokeTokenArgs),
}

/// How to be an admin.
#[derive(Clone, Debug, Args)]
struct Admin {
    /// Ask the node whose data is here, by the socket in it: who may read the directory is an admin. Without it, --endpoints and a credential; then LOWKEY_DATA_DIR, LOWKEY_ENDPOINTS and ./data, the first that there is
    #[arg(long, value_name = "DIR", help_heading = "The service", conflicts_with = "admin_socket")]
    data_dir: Option<PathBuf>,

    /// The same, by the socket itself
    #[arg(long, value_name = "FILE", help_heading = "The service")]
    admin_socket: Option<PathBuf>,

    #[command(flatten)]
    service: ServiceArgs,
}

#[derive(Debug, Args)]
struct AddArgs {
    /// Its name: 1 to 128 bytes, without '/'; owners of its leases begin with it
    principal: String,

    /// A name in a certificate (subject alternative name) that proves it; may be given again
    #[arg(long = "cert-name", value_name = "NAME", help_heading = "Proofs")]
    cert_names: Vec<String>,

    #[command(flatten)]
    admin: Admin,
}

#[derive(Debug, Args)]
struct ListArgs {
    #[command(flatten)]
    admin: Admin,
}

#[derive(Debug, Args)]
struct ShowArgs {
    /// Its name
    principal: String,

    #[command(flatten)]
    admin: Admin,
}

#[derive(Debug, Args)]
struct RemoveArgs {
    /// Its name
    principal: String,

    /// Take away only this name of its certificates
    #[arg(long = "cert-name", value_name = "NAME", help_heading = "Proofs")]
    cert_name: Option<String>,

    #[command(flatten)]
    admin: Admin,
}

#[derive(Debug, Args)]
struct NewTokenArgs {
    /// Whose it is to be
    principal: String,

    #[command(flatten)]
    admin: Admin,
}

#[derive(Debug, Args)]
struct RevokeTokenArgs {
    /// Its id: what stands between lk_ and the next _
    #[arg(value_name = "ID")]
    token_id: String,

    #[command(flatten)]
    admin: Admin,
}

#[derive(Debug, Args)]
struct GrantArgs {
    /// Whom
    principal: String,

    /// A name, which stands for all below it too, or / for everything
    path: String,

    /// Of acquire, read, watch, audit, admin
    #[arg(value_name = "VERBS", value_delimiter = ',', required = true)]
    verbs: Vec<String>,

    #[command(flatten)]
    admin: Admin,
}

#[derive(Debug, Args)]
struct RequireArgs {
    /// Change nothing: tell which clients of the last hour the nodes would have refused
    #[arg(long, help_heading = "What to do", conflicts_with = "off")]
    dry_run: bool,

    /// Let everybody do everything again
    #[arg(long, help_heading = "What to do")]
    off: bool,

    #[command(flatten)]
    admin: Admin,
}

#[derive(Debug, Args)]
struct CheckArgs {
    /// Who
    principal: String,

    /// What: acquire, read, watch, audit or admin
    verb: String,

    /// Where: a name, or / for everything
    name: String,

    #[command(flatten)]
    admin: Admin,
}

#[derive(Debug, Args)]
struct WhoamiArgs {
    #[command(flatten)]
    service: ServiceArgs,
}

impl Admin {
    /// The service as this admin reaches it.
    fn service(&self) -> Result<ServiceArgs, CommandFailure> {
        let mut service = self.service.clone();
        if let Some(socket) = self.socket()? {
            service.endpoints = vec![format!("unix://{}", socket.display())];
            service.auth_file = None;
        }
        Ok(service)
    }

    /// The socket to ask; nothing if nodes are to be asked by their ports.
    ///
    /// Nobody changes access without being an admin, so what was said last and most clearly decides: a flag, then what
    /// proves somebody, then the environment, then what lies here.
    fn socket(&self) -> Result<Option<PathBuf>, CommandFailure> {
        let of = |directory: &Path| directory.join(SOCKET_NAME);
        let named = self.admin_socket.clone().or_else(|| self.data_dir.as_deref().map(of));
        let has_credential = self.service.auth_file.is_some() || self.service.cert.is_some();
        if named.is_some() || has_credential || is_given("--endpoints") {
            return Ok(named);
        }
        if let Some(directory) = std::env::var_os(DATA_DIR_VARIABLE).filter(|text| !text.is_empty()) {
            return Ok(Some(of(Path::new(&directory))));
        }
        if std::env::var_os("LOWKEY_ENDPOINTS").is_some() {
            return Ok(None);
        }
        let here = of(Path::new(DATA_DIR_DEFAULT));
        if here.exists() {
            return Ok(Some(here));
        }
        let line = format!(
            "this is for admins, and nothing says that you are one: on the machine of a node name its data directory \
             (--data-dir DIR or {DATA_DIR_VARIABLE}; there is no {} here), elsewhere --endpoints and a credential \
             (LOWKEY_AUTH_FILE, or LOWKEY_CERT and LOWKEY_KEY)",
            here.display()
        );
        Err(CommandFailure::new(exit::USAGE, line))
    }

    /// Asks for one thing.
    fn ask<F: Future<Output = Result<u8, CommandFailure>>>(
        &self,
        asking: impl FnOnce(Client, ServiceArgs) -> F,
    ) -> ExitCode {
        let service = match self.service() {
            Ok(service) => service,
            Err(failure) => return failure.report(self.service.json),
        };
        service.carry_out(async {
            let client = service.connect().await?;
            asking(client, service.clone()).await
        })
    }
}

/// Whether a flag stands on the command line: its value may as well be the default, or from the environment.
fn is_given(flag: &str) -> bool {
    std::env::args_os().any(|argument| {
        let text = argument.to_string_lossy();
        text == flag || text.strip_prefix(flag).is_some_and(|rest| rest.starts_with('='))
    })
}

pub(crate) fn access(args: &AccessArgs) -> ExitCode {
    match &args.command {
        AccessCommand::Principal(PrincipalCommand::Add(args)) => {
            args.admin.ask(|client, service| async move {
                done(&service, client.add_principal(&args.principal, args.cert_names.clone()).await)
            })
        }
        AccessCommand::Principal(PrincipalCommand::List(args)) => {
            args.admin.ask(|client, service| list(client, service, None))
        }
        AccessCommand::Principal(PrincipalCommand::Show(args)) => {
            args.admin.ask(|client, service| list(client, service, Some(args.principal.clone())))
        }
        AccessCommand::Principal(PrincipalCommand::Remove(args)) => {
            args.admin.ask(|client, service| async move {
                done(&service, client.remove_principal(&args.principal, args.cert_name.clone()).await)
            })
        }
        AccessCommand::Token(TokenCommand::New(args)) => args.admin.ask(|client, service| async move {
            let made = client.new_token(&args.principal).await.map_err(|error| service.failure(&error))?;
            match service.json {
                true => printed(print_json(&made)),
                false => printed(print_token(&made.token)),
            }
        }),
        AccessCommand::Token(TokenCommand::Revoke(args)) => args
            .admin
            .ask(|client, service| async move { done(&service, client.revoke_token(&args.token_id).await) }),
        AccessCommand::Grant(args) => args.admin.ask(|client, service| async move {
            done(&service, client.grant_access(&args.principal, &args.path, args.verbs.clone()).await)
        }),
        AccessCommand::Revoke(args) => args.admin.ask(|client, service| async move {
            done(&service, client.revoke_access(&args.principal, &args.path, args.verbs.clone()).await)
        }),
        AccessCommand::Require(args) => args.admin.ask(|client, service| require(client, service, args)),
        AccessCommand::Check(args) => args.admin.ask(|client, service| check(client, service, args)),
        AccessCommand::Whoami(args) => args.service.carry_out(whoami(&args.service)),
    }
}

/// Nothing is printed where it worked, but an empty object for programs.
fn done(service: &ServiceArgs, outcome: Result<(), lowkey_client::Error>) -> Result<u8, CommandFailure> {
    outcome.map_err(|error| service.failure(&error))?;
    match service.json {
        true => printed(print_json(&serde_json::json!({}))),
        false => Ok(0),
    }
}

async fn list(client: Client, service: ServiceArgs, only: Option<String>) -> Result<u8, CommandFailure> {
    let listed = client.principals(only).await.map_err(|error| service.failure(&error))?;
    if service.json {
        return printed(print_json(&listed));
    }
    let mut table = TextTable::new(&["PRINCIPAL", "CERTIFICATES", "TOKENS", "GRANTS"]);
    for Principal { principal, certificate_names, token_ids, grants } in listed.principals {
        table.row([principal, or_dash(&certificate_names), or_dash(&token_ids), grants_in_words(&grants)]);
    }
    printed(table.print(service.wide))
}

fn or_dash(items: &[String]) -> String {
    if items.is_empty() { "-".to_owned() } else { items.join(" ") }
}

fn grants_in_words(grants: &[AccessGrant]) -> String {
    or_dash(
        &grants.iter().map(|grant| format!("{}:{}", grant.path, grant.verbs.join(","))).collect::<Vec<_>>(),
    )
}

async fn require(client: Client, service: ServiceArgs, args: &RequireArgs) -> Result<u8, CommandFailure> {
    if !args.dry_run {
        return done(&service, client.require_access(!args.off).await);
    }
    let refused = client.would_be_refused().await.map_err(|error| service.failure(&error))?;
    if service.json {
        return printed(print_json(&serde_json::json!({ "wouldBeRefused": refused })));
    }
    if refused.is_empty() {
        let line = "nobody would be refused of those who asked a node in the last hour";
        return printed(writeln!(io::stdout(), "{line}"));
    }
    let mut table = TextTable::new(&["CLIENT", "TIMES", "WHY"]);
    for one in refused {
        table.row([one.client, one.count.to_string(), one.why]);
    }
    printed(table.print(service.wide))
}

async fn check(client: Client, service: ServiceArgs, args: &CheckArgs) -> Result<u8, CommandFailure> {
    let CheckArgs { principal, verb, name, .. } = args;
    let checked =
        client.check_access(principal, verb, name).await.map_err(|error| service.failure(&error))?;
    let status = if checked.permitted { 0 } else { exit::NO };
    if service.json {
        printed(print_json(&checked))?;
        return Ok(status);
    }
    let mut table = TextTable::new(&["PERMITTED", "WHY"]);
    table.row([if checked.permitted { "yes" } else { "no" }.to_owned(), checked.why]);
    printed(table.print(service.wide))?;
    Ok(status)
}

async fn whoami(service: &ServiceArgs) -> Result<u8, CommandFailure> {
    let client = service.connect().await?;
    let who = client.who_am_i().await.map_err(|error| service.failure(&error))?;
    if service.json {
        return printed(print_json(&who));
    }
    let mut table = TextTable::new(&["PRINCIPAL", "PROOF", "GRANTS", "REQUIRED"]);
    let or_dash = |text: String| if text.is_empty() { "-".to_owned() } else { text };
    let required = if who.required { "yes" } else { "no" };
    table.row([
        or_dash(who.principal),
        or_dash(who.proof),
        grants_in_words(&who.grants),
        required.to_owned(),
    ]);
    printed(table.print(service.wide))
}
