//! A set that is read and written back under a lock, by clients that are paused for longer than their leases live.
//!
//! Five clients add numbers: acquire the lock, read the whole set, think for up to 2 s, write it back with one
//! number more, release. Leases live 2 s. Every 5 s one client is stopped for 3 s (SIGSTOP). A number that a
//! client saw written, and that is not in the set at the end, was taken away by a late write.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::io::Write as _;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use clap::{Args, ValueEnum};
use futures::future::try_join_all;
use lowkey_client::{Client, LockGuard};
use lowkey_fence::{PostgresFence, Resource};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::time::{Instant, sleep};

use crate::Failure;
use crate::servers::{self, Server};
use crate::stores::{Connected, connect_postgres};

const CLIENTS: usize = 5;
const TTL: Duration = Duration::from_secs(2);
/// The longest that a client thinks between reading and writing.
const THINK_MS: u64 = 2000;
const PAUSE_EVERY: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_secs(3);

/// How a client writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Manner {
    /// It trusts its lock.
    Trusting,
    /// It looks whether it still holds the lock, and then writes.
    Looking,
    /// It claims, reads, and presents its token with the write.
    Fenced,
}

/// What one client process needs to know.
#[derive(Args)]
pub struct ClientArgs {
    #[arg(long)]
    endpoints: String,
    #[arg(long)]
    database: String,
    #[arg(long)]
    manner: Manner,
    #[arg(long)]
    number: i64,
}

/// What came of one manner.
#[derive(Debug)]
pub struct Outcome {
    /// Which.
    pub manner: Manner,
    /// Numbers that clients saw written.
    pub acknowledged: usize,
    /// Those of them that are not in the set.
    pub lost: usize,
    /// Writes that a client gave up: it noticed, or was refused.
    pub given_up: usize,
    /// How often a client was stopped.
    pub pauses: usize,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { manner, acknowledged, lost, given_up, pauses } = self;
        write!(
            f,
            "{manner:?}: {acknowledged} acknowledged, {lost} lost, {given_up} given up, {pauses} pauses"
        )
    }
}

/// Runs all three manners side by side, for so long.
pub async fn lockset(time: Duration) -> Result<Vec<Outcome>, Failure> {
    let (database, service) = (servers::postgres().await?, servers::lowkey()?);
    let mut admin = connect_postgres(&database.address).await?;
    PostgresFence::install(&mut admin.client).await?;
    let table = "CREATE TABLE sets (name text PRIMARY KEY, members bigint[] NOT NULL);
                 INSERT INTO sets VALUES ('Trusting', '{}'), ('Looking', '{}'), ('Fenced', '{}')";
    admin.client.batch_execute(table).await?;
    let endpoints = service.endpoints.join(",");
    try_join_all(Manner::value_variants().iter().map(|manner| one(*manner, &endpoints, &database, time)))
        .await
}

async fn one(manner: Manner, endpoints: &str, database: &Server, time: Duration) -> Result<Outcome, Failure> {
    let mut clients = (0..CLIENTS)
        .map(|number| start(manner, endpoints, &database.address, number))
        .collect::<Result<Vec<_>, _>>()?;
    let (end, mut pauses) = (Instant::now() + time, 0);
    while Instant::now() + PAUSE_EVERY < end {
        sleep(PAUSE_EVERY - PAUSE).await;
        let chosen = clients[usize::try_from(getrandom::u64()? % CLIENTS as u64)?].id();
        kill(Pid::from_raw(chosen.cast_signed()), Signal::SIGSTOP)?;
        sleep(PAUSE).await;
        kill(Pid::from_raw(chosen.cast_signed()), Signal::SIGCONT)?;
        pauses += 1;
    }
    sleep(end - Instant::now()).await;
    let mut said = BTreeMap::from([("written", Vec::new()), ("given", Vec::new())]);
    for client in &mut clients {
        client.kill()?;
    }
    for client in clients {
        let output = client.wait_with_output()?;
        for line in String::from_utf8(output.stdout)?.lines() {
            let (word, number) = line.split_once(' ').ok_or("a line without a number")?;
            said.get_mut(word).ok_or("an unknown word")?.push(number.parse::<i64>()?);
        }
    }
    let judge = connect_postgres(&database.address).await?;
    let members: HashSet<i64> = read(&judge, manner).await?.into_iter().collect();
    let lost = said["written"].iter().filter(|number| !members.contains(number)).count();
    Ok(Outcome { manner, acknowledged: said["written"].len(), lost, given_up: said["given"].len(), pauses })
}

fn start(manner: Manner, endpoints: &str, database: &str, number: usize) -> Result<Child, Failure> {
    let mut client = Command::new(program()?);
    client.args(["lockset-client", "--endpoints", endpoints, "--database", database]);
    client.args(["--manner", &format!("{manner:?}").to_lowercase(), "--number", &number.to_string()]);
    Ok(client.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?)
}

/// This program; or, in a test, the one that is built with it.
fn program() -> Result<std::path::PathBuf, Failure> {
    Ok(match std::env::var_os("LOWKEY_FENCE_PROOF") {
        Some(named) => named.into(),
        None => std::env::current_exe()?,
    })
}

/// One client, until it is killed. It prints the numbers that it saw written.
pub async fn client(args: ClientArgs) -> Result<(), Failure> {
    // A busy machine may answer late: a client that ends would pause no more.
    let service = Client::builder(args.endpoints.split(',')).connect_timeout(Duration::from_secs(60));
    let service = service.connect().await?;
    let mut database = connect_postgres(&args.database).await?;
    let mut number = args.number * 1_000_000;
    loop {
        // On a busy machine no node may answer in time: then it tries again.
        let Ok(session) = service.session(TTL).await else { continue };
        let name = format!("sets/{:?}", args.manner);
        // Whatever happens to the session, the next one begins anew.
        while let Ok(guard) = session.lock(&name).acquire().await {
            number += 1;
            let is_written = add(&mut database, &guard, args.manner, number).await?;
            let word = if is_written { "written" } else { "given" };
            writeln!(std::io::stdout().lock(), "{word} {number}")?;
            let _ = guard.release().await;
        }
    }
}

async fn add(
    database: &mut Connected,
    guard: &LockGuard,
    manner: Manner,
    number: i64,
) -> Result<bool, Failure> {
    let set = PostgresFence::new(Resource::parse(format!("sets/{manner:?}"))?);
    if manner == Manner::Fenced {
        match set.claim(&database.client, &guard.fence()).await {
            Err(error) if error.refusal().is_some() => return Ok(false),
            outcome => outcome?,
        }
    }
    let mut members = read(database, manner).await?;
    sleep(Duration::from_millis(getrandom::u64()? % THINK_MS)).await;
    members.push(number);
    let update = "UPDATE sets SET members = $2 WHERE name = $1";
    let name = format!("{manner:?}");
    match manner {
        Manner::Looking if !guard.is_held() => Ok(false),
        Manner::Trusting | Manner::Looking => {
            database.client.execute(update, &[&name, &members]).await?;
            Ok(true)
        }
        Manner::Fenced => match set.begin(&mut database.client, &guard.fence()).await {
            Err(error) if error.refusal().is_some() => Ok(false),
            begun => {
                let transaction = begun?;
                transaction.execute(update, &[&name, &members]).await?;
                transaction.commit().await?;
                Ok(true)
            }
        },
    }
}

async fn read(database: &Connected, manner: Manner) -> Result<Vec<i64>, Failure> {
    let select = "SELECT members FROM sets WHERE name = $1";
    Ok(database.client.query_one(select, &[&format!("{manner:?}")]).await?.get(0))
}
