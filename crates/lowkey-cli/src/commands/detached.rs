//! `acquire`, `release`, `renew`: a lock for a script, held by no process.
//!
//! Nobody renews it but the script: a lock that was taken for 60 s is gone after 60 s.

use std::io;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use lowkey_client::Detached;
use serde_json::json;

use super::interrupts::Interrupts;
use super::{OwnerArgs, Patience, ServiceArgs, WaitArgs, parse_number, printed};
use crate::duration::{parse_limit, parse_ttl};
use crate::exit::{self, CommandFailure};
use crate::output::{TextTable, print_json};

/// How long the place in line may take to be given up when somebody loses patience.
const FAREWELL: Duration = Duration::from_millis(300);

#[derive(Debug, Args)]
pub(crate) struct AcquireArgs {
    /// The lock
    name: String,

    /// How long it is held if nobody renews it
    #[arg(long, value_name = "TIME", value_parser = parse_ttl, help_heading = "The lease")]
    ttl: Duration,

    #[command(flatten)]
    wait: WaitArgs,

    /// Hold it together with others that do the same
    #[arg(long, help_heading = "The lock")]
    shared: bool,

    /// Hold the name and everything below it
    #[arg(long, help_heading = "The lock")]
    subtree: bool,

    /// Hold it for this long at most, counted from the grant, however often its lease is renewed: whole seconds, 7 days
    /// at most
    #[arg(long, value_name = "TIME", value_parser = parse_limit, help_heading = "The lock")]
    at_most: Option<Duration>,

    /// A text to show with it
    #[arg(
        long,
        value_name = "TEXT",
        default_value = "",
        hide_default_value = true,
        help_heading = "The lock"
    )]
    value: String,

    #[command(flatten)]
    owner: OwnerArgs,

    #[command(flatten)]
    service: ServiceArgs,
}

#[derive(Debug, Args)]
pub(crate) struct ReleaseArgs {
    /// The lock
    name: String,

    /// The lease that holds it
    #[arg(long, value_name = "LEASE", value_parser = parse_number, allow_negative_numbers = true, help_heading = "The grant")]
    lease: u64,

    /// The fencing token of the grant: no other is given back
    #[arg(long, value_name = "TOKEN", value_parser = parse_number, allow_negative_numbers = true, help_heading = "The grant")]
    token: u64,

    #[command(flatten)]
    owner: OwnerArgs,

    #[command(flatten)]
    service: ServiceArgs,
}

#[derive(Debug, Args)]
pub(crate) struct RenewArgs {
    /// The lease whose time is to start anew
    #[arg(long, value_name = "LEASE", value_parser = parse_number, allow_negative_numbers = true, help_heading = "The grant")]
    lease: u64,

    #[command(flatten)]
    service: ServiceArgs,
}

pub(crate) fn acquire(args: &AcquireArgs) -> ExitCode {
    let service = &args.service;
    service.carry_out(async {
        let client = service.connect_as(args.owner.name()).await?;
        let mut lock = client.detached(&args.name, args.ttl).value(&args.value);
        if args.shared {
            lock = lock.shared();
        }
        if args.subtree {
            lock = lock.subtree();
        }
        if let Some(limit) = args.at_most {
            lock = lock.at_most(limit);
        }
        let patience = args.wait.patience();
        let asking = async {
            let granted = match patience {
                Patience::None => lock.try_acquire().await,
                Patience::Some(time) => lock.wait(time).await,
                Patience::Endless => lock.acquire().await,
            };
            granted.map_err(|error| service.failure_with(&error, &args.name))
        };
        let mut interrupts = Interrupts::listen()?;
        let grant = tokio::select! {
            outcome = service.wait_for(&client, &args.name, patience.deadline(), asking) => {
                outcome.map_err(|failure| with_doubt(failure, args))?
            }
            code = interrupts.next() => {
                // The SDK gives up the place in line; this is for the message to leave.
                tokio::time::sleep(FAREWELL).await;
                return Ok(code);
            }
        };
        if let Err(error) = tell(&grant, service) {
            // A lock whose numbers nobody has could not be given back by anybody.
            let released = client.release_lock(&grant.name, grant.lease_id, grant.token).await;
            let outcome = match released {
                Ok(()) => "the lock was given back".to_owned(),
                Err(_) => format!("the lock could not be given back, and goes free within {:?}", grant.ttl),
            };
            return Err(CommandFailure::new(
                exit::NO,
                format!("cannot write the lock's numbers: {error}; {outcome}"),
            ));
        }
        Ok(0)
    })
}

/// Says what is to be expected of an acquire that may have been carried out.
fn with_doubt(mut failure: CommandFailure, args: &AcquireArgs) -> CommandFailure {
    if failure.in_doubt {
        let AcquireArgs { name, ttl, .. } = args;
        failure.line += &format!(
            "; {name} may have been taken all the same: if `lowkey get {name}` shows it, give it back by its numbers, or it \
             goes free after its TTL, {ttl:?}"
        );
    }
    failure
}

fn tell(grant: &Detached, service: &ServiceArgs) -> io::Result<()> {
    let (lease, token) = (grant.lease_id.to_string(), grant.token.to_string());
    if service.json {
        return print_json(&json!({
            "lockName": grant.name,
            "leaseId": lease,
            "fencingToken": token,
            "ttlSeconds": grant.ttl.as_secs().to_string(),
            "revision": grant.revision.to_string(),
            "waitedMs": grant.waited.as_millis().to_string(),
        }));
    }
    let mut table = TextTable::new(&["LOCK", "LEASE", "TOKEN", "TTL"]);
    table.row([grant.name.clone(), lease, token, format!("{}s", grant.ttl.as_secs())]);
    table.print(service.wide)
}

pub(crate) fn release(args: &ReleaseArgs) -> ExitCode {
    let service = &args.service;
    service.carry_out(async {
        let client = service.connect_as(args.owner.name()).await?;
        // Only to warn: what cannot be seen is released all the same.
        let seen = client.get(&args.name).await.map(|lock| lock.holders).unwrap_or_default();
        let holder = seen.into_iter().find(|holder| (holder.lease_id, holder.fencing_token) == (args.lease, args.token));
        let released = client.release_lock(&args.name, args.lease, args.token).await;
        released.map_err(|error| service.failure_with(&error, &args.name))?;
        if let Some(holder) = holder.filter(|holder| holder.owner_id != client.owner()) {
            service.remark(&format!(
                "{} was held by {}, which may work on until it hears of it, beside the next holder; `lowkey revoke {}` ends all \
                 that a holder has, and says what",
                args.name, holder.owner_id, args.name
            ));
        }
        if service.json { printed(print_json(&json!({ "released": true }))) } else { Ok(0) }
    })
}

pub(crate) fn renew(args: &RenewArgs) -> ExitCode {
    let service = &args.service;
    service.carry_out(async {
        let client = service.connect().await?;
        let ttl = client.renew_lease(args.lease).await.map_err(|error| service.failure(&error))?;
        if service.json {
            return printed(print_json(&json!({
                "leaseId": args.lease.to_string(),
                "ttlSeconds": ttl.as_secs().to_string(),
            })));
        }
        let mut table = TextTable::new(&["LEASE", "TTL"]);
        table.row([args.lease.to_string(), format!("{}s", ttl.as_secs())]);
        printed(table.print(service.wide))
    })
}
