//! The commands that talk to a cluster, all by way of the SDK.
//!
//! - `run/`: a command under a lock (`run`), or as leader (`elect`)
//! - `detached.rs`: `acquire`, `release`, `renew`, for scripts
//! - `locks.rs`: `ls`, `get`, `check`
//! - `leases.rs`: `lease list`, `lease get`, `revoke`
//! - `changes.rs`: `leader`, `watch`
//! - `audit.rs`: `explain`, and `audit query`, `export`, `follow`: what is over
//! - `fence.rs`: `fence sql`, `fence reset`, which talk to nobody
//! - `interrupts.rs`: how somebody ends one that goes on
//! - `cert.rs`: certificates, which concern no cluster
//! - `backup.rs`: backups, which but for making one need no node
//! - `recover.rs`: the one that works on a data directory, with the server's help
//! - `errors.rs`: the reference of errors, for those who have nothing but the program
//! - `status.rs`, `health.rs`, `member.rs`, `dev.rs`, `bench.rs`, `completions.rs`, `manual.rs`: what they say
//!
//! Deliberately absent: retries, leases, leaders. Those are the SDK's.

pub(crate) mod access;
pub(crate) mod audit;
pub(crate) mod backup;
pub(crate) mod bench;
pub(crate) mod cert;
pub(crate) mod changes;
pub(crate) mod completions;
pub(crate) mod detached;
pub(crate) mod dev;
pub(crate) mod errors;
pub(crate) mod fence;
pub(crate) mod health;
mod interrupts;
pub(crate) mod leases;
pub(crate) mod locks;
pub(crate) mod manual;
pub(crate) mod member;
pub(crate) mod recover;
pub(crate) mod run;
pub(crate) mod status;

use std::io::{self, IsTerminal as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use lowkey_client::{Client, ClientBuilder, Error, NodeHealth, Reason, Tls};
use nix::unistd::{Uid, User};
use tokio::time::{Instant, sleep, sleep_until, timeout};

use crate::duration::{parse_timeout, parse_wait};
use crate::exit::{self, CommandFailure};
use crate::output::say;

/// A wait may be over so much later than it should: the service says by itself that the time is over, and who holds
/// the lock.
const WAIT_SLACK: Duration = Duration::from_millis(500);

/// Nobody is left without a word for longer than this.
pub(crate) const SILENCE: Duration = Duration::from_secs(1);

/// Where the service is, and how to talk about it.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "The service")]
pub(crate) struct ServiceArgs {
    /// gRPC URLs of some nodes of the cluster
    #[arg(long, value_name = "URL,…", value_delimiter = ',', env = "LOWKEY_ENDPOINTS", value_parser = parse_endpoint, default_value = "http://127.0.0.1:9000")]
    pub(crate) endpoints: Vec<String>,

    /// The CA that signed the nodes' certificates, as PEM, for URLs with https:// [default: the system's CAs]
    #[arg(long, value_name = "FILE", env = "LOWKEY_CA")]
    pub(crate) ca: Option<PathBuf>,

    /// The certificate to show to nodes that want one, as PEM
    #[arg(long, value_name = "FILE", env = "LOWKEY_CERT", requires = "key")]
    pub(crate) cert: Option<PathBuf>,

    /// Its private key, as PEM
    #[arg(long, value_name = "FILE", env = "LOWKEY_KEY", requires = "cert")]
    pub(crate) key: Option<PathBuf>,

    /// A file with the token to show to nodes: lk_…
    #[arg(long, value_name = "FILE", env = "LOWKEY_AUTH_FILE")]
    pub(crate) auth_file: Option<PathBuf>,

    /// How long to try before giving up with status 69
    #[arg(long, value_name = "TIME", value_parser = parse_timeout, default_value = "10s")]
    pub(crate) connect_timeout: Duration,

    /// Print JSON: one object, or one a line where there may be many; errors, too
    #[arg(long)]
    pub(crate) json: bool,

    /// Show tables in full, also where they are wider than the terminal
    #[arg(long)]
    pub(crate) wide: bool,

    /// Standard error is also that of another command, which a script may read.
    #[arg(skip)]
    pub(crate) shares_stderr: bool,
}

/// Who asks.
#[derive(Clone, Debug, Args)]
pub(crate) struct OwnerArgs {
    /// What the owner is called where locks, leases and events are shown; by default user@host, and PRINCIPAL/user@host with a credential
    #[arg(long, value_name = "OWNER", env = "LOWKEY_OWNER", help_heading = "Who asks")]
    owner: Option<String>,
}

impl OwnerArgs {
    /// What it is called.
    pub(crate) fn name(&self) -> Owner {
        self.owner.clone().map_or(Owner::Here, Owner::Named)
    }
}

/// What somebody is called.
#[derive(Clone, Debug)]
pub(crate) enum Owner {
    /// As was said.
    Named(String),
    /// user@host; below the name of the principal, if a credential proves one.
    Here,
}

fn user_at_host() -> String {
    let user = User::from_uid(Uid::current()).ok().flatten().map(|user| user.name);
    let user = user.unwrap_or_else(|| Uid::current().to_string());
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    format!("{user}@{host}")
}

/// How long to wait for a lock.
#[derive(Clone, Debug, Args)]
#[group(multiple = false)]
pub(crate) struct WaitArgs {
    /// Do not wait: status 75 if somebody else has it
    #[arg(long = "try", help_heading = "Waiting")]
    try_once: bool,

    /// Wait for this long at most: then status 124 [default: as long as it takes]
    #[arg(long, value_name = "TIME", value_parser = parse_wait, help_heading = "Waiting")]
    wait: Option<Duration>,
}

/// How long somebody is ready to wait.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Patience {
    None,
    Some(Duration),
    Endless,
}

impl Patience {
    /// When a wait that begins now is over.
    pub(crate) fn deadline(self) -> Option<Instant> {
        match self {
            Self::Some(time) => Some(Instant::now() + time),
            Self::None | Self::Endless => None,
        }
    }
}

impl WaitArgs {
    pub(crate) fn patience(&self) -> Patience {
        match (self.try_once, self.wait) {
            (true, _) => Patience::None,
            (false, Some(time)) => Patience::Some(time),
            (false, None) => Patience::Endless,
        }
    }
}

/// The number of a lease, or a token. Both start at 1, and on the wire 0 means that none was given.
pub(crate) fn parse_number(text: &str) -> Result<u64, String> {
    let number = text.parse().ok().filter(|number| *number > 0);
    number.ok_or_else(|| "must be a number from 1, as `lowkey acquire` printed it".to_owned())
}

fn parse_endpoint(text: &str) -> Result<String, String> {
    let allowed = || "must be a URL such as http://127.0.0.1:9000 or https://127.0.0.1:9000".to_owned();
    let (scheme, rest) = match text.split_once("://") {
        Some(("unix", path)) if path.starts_with('/') => return Ok(text.to_owned()),
        Some((scheme @ ("http" | "https"), rest)) => (scheme, rest),
        Some(_) => return Err(allowed()),
        None => ("http", text),
    };
    let authority = rest.trim_end_matches('/');
    let port = authority.rsplit_once(':').filter(|(host, _)| !host.is_empty());
    let is_right = port.is_some_and(|(_, port)| port.parse::<u16>().is_ok())
        && !authority.contains(|c: char| c == '/' || c.is_whitespace());
    is_right.then(|| format!("{scheme}://{authority}")).ok_or_else(allowed)
}

impl ServiceArgs {
    /// Connects, for a command that only looks.
    pub(crate) async fn connect(&self) -> Result<Client, CommandFailure> {
        self.connect_as(Owner::Here).await
    }

    /// Connects, for a command that does something in somebody's name.
    pub(crate) async fn connect_as(&self, owner: Owner) -> Result<Client, CommandFailure> {
        let builder = match owner {
            Owner::Named(owner) => self.builder().owner(owner),
            Owner::Here => self.builder().local_owner(user_at_host()),
        };
        self.with_a_word("reach", builder.connect()).await.map_err(|error| self.failure(&error))
    }

    /// Asks the nodes themselves how they are.
    pub(crate) async fn health(&self) -> Result<NodeHealth, CommandFailure> {
        self.with_a_word("reach", self.builder().health()).await.map_err(|error| self.failure(&error))
    }

    fn builder(&self) -> ClientBuilder {
        let builder = Client::builder(self.endpoints.clone())
            .connect_timeout(self.connect_timeout)
            .call_timeout(self.connect_timeout)
            .tls(self.tls());
        match &self.auth_file {
            Some(file) => builder.token_file(file),
            None => builder,
        }
    }

    fn tls(&self) -> Tls {
        let mut tls = Tls::new();
        if let Some(ca) = &self.ca {
            tls = tls.ca(ca);
        }
        match (&self.cert, &self.key) {
            (Some(certificate), Some(key)) => tls.identity(certificate, key),
            _ => tls,
        }
    }

    /// Asks the service, and says on standard error that it takes long, if it does.
    pub(crate) async fn ask<T>(
        &self,
        asking: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, CommandFailure> {
        self.with_a_word("get an answer of", asking).await.map_err(|error| self.failure(&error))
    }

    /// Says something on the way, on standard error.
    pub(crate) fn remark(&self, line: &str) {
        if self.json {
            say(&serde_json::json!({ "message": line }).to_string());
        } else {
            say(&format!("lowkey: {line}"));
        }
    }

    async fn with_a_word<T>(&self, what: &str, work: impl Future<Output = T>) -> T {
        let mut work = std::pin::pin!(work);
        if let Ok(done) = timeout(SILENCE, &mut work).await {
            return done;
        }
        // A program wants one object, and only if it came to nothing.
        if !self.json && (!self.shares_stderr || io::stderr().is_terminal()) {
            let (endpoints, limit) = (self.endpoints.join(","), self.connect_timeout);
            self.remark(&format!(
                "still trying to {what} {endpoints}, for {limit:?} at most (--connect-timeout)"
            ));
        }
        work.await
    }

    /// Waits for a lock: until the deadline, if there is one, and for as long as there is a service.
    pub(crate) async fn wait_for<T>(
        &self,
        client: &Client,
        lock: &str,
        deadline: Option<Instant>,
        waiting: impl Future<Output = Result<T, CommandFailure>>,
    ) -> Result<T, CommandFailure> {
        let too_late = async {
            match deadline {
                Some(deadline) => sleep_until(deadline + WAIT_SLACK).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            biased;
            outcome = waiting => outcome,
            () = too_late => Err(CommandFailure { in_doubt: true, ..waited_in_vain(client).await }),
            failure = self.away(client, lock) => Err(CommandFailure { in_doubt: true, ..failure }),
        }
    }

    /// Resolves when the service has been away for too long. Whoever only waits would never notice.
    async fn away(&self, client: &Client, lock: &str) -> CommandFailure {
        let pause = (self.connect_timeout / 2).clamp(Duration::from_secs(1), Duration::from_secs(5));
        let mut is_second_chance = false;
        loop {
            if !is_second_chance {
                sleep(pause).await;
            }
            // It is tried for as long as any call. A node that lets that time pass is left for another, which may
            // know better: hence the second chance.
            let failure = client.get(lock).await.map_err(|error| self.failure(&error)).err();
            match failure {
                Some(failure) if failure.code == exit::NO_SERVICE && is_second_chance => return failure,
                Some(failure) => is_second_chance = failure.code == exit::NO_SERVICE,
                None => is_second_chance = false,
            }
        }
    }

    /// What an error of the SDK means for whoever typed the command.
    pub(crate) fn failure(&self, error: &Error) -> CommandFailure {
        self.failure_with(error, "NAME")
    }

    /// The same, of a command that is about a lock.
    pub(crate) fn failure_with(&self, error: &Error, lock: &str) -> CommandFailure {
        CommandFailure::of(error, &self.endpoints, lock)
    }

    /// Does what a command is to do, and tells how it ended.
    pub(crate) fn carry_out(&self, work: impl Future<Output = Result<u8, CommandFailure>>) -> ExitCode {
        let outcome = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| {
                CommandFailure::new(exit::NO_SERVICE, format!("cannot start the runtime: {error}"))
            })
            .and_then(|runtime| {
                let outcome = runtime.block_on(work);
                runtime.shutdown_background();
                outcome
            });
        match outcome {
            Ok(code) => ExitCode::from(code),
            Err(failure) => failure.report(self.json),
        }
    }
}

/// The time to wait is over, and the service has not said so by itself: nobody may hold the lock at all.
async fn waited_in_vain(client: &Client) -> CommandFailure {
    let status = timeout(WAIT_SLACK, client.status()).await;
    let recovering_seconds = status.ok().and_then(Result::ok).map_or(0, |status| status.recovering_seconds);
    let (why, reason) = match recovering_seconds {
        0 => ("the service has not said who holds the lock".to_owned(), None),
        seconds => (
            format!(
                "the cluster was recovered after it lost its quorum, and grants no lock for {seconds} s more at most \
                 (RECOVERING)"
            ),
            Some(Reason::Recovering),
        ),
    };
    let line = format!("the time to wait is over, and {why}; look at `lowkey status`");
    CommandFailure { reason, ..CommandFailure::new(exit::TIMED_OUT, line) }
}

/// Whoever reads the output may stop reading: that is no failure.
pub(crate) fn printed(outcome: io::Result<()>) -> Result<u8, CommandFailure> {
    match outcome {
        Ok(()) => Ok(0),
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(0),
        Err(error) => Err(CommandFailure::new(exit::NO, format!("cannot write the output: {error}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_are_urls_and_the_scheme_may_be_left_out() {
        for text in ["http://127.0.0.1:9000", "127.0.0.1:9000", "http://127.0.0.1:9000/"] {
            assert_eq!(parse_endpoint(text), Ok("http://127.0.0.1:9000".into()));
        }
        assert!(parse_endpoint("http://[::1]:9000").is_ok());
        for text in [
            "",
            "localhost",
            "http://localhost",
            "http://:9000",
            "http://a:b",
            "http://a:1/x",
            "ftp://a:1",
            "a b:1",
        ] {
            assert!(parse_endpoint(text).is_err(), "{text}");
        }
        assert_eq!(parse_endpoint("https://a:1/"), Ok("https://a:1".into()));
    }
}
