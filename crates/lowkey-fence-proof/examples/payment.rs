//! The payment job: two instances, one of which is paused past its lease, and the customer is charged once.
//!
//! It starts PostgreSQL and a lowkey cluster, and itself twice. The first instance reads what is owed and is
//! stopped (SIGSTOP) before it charges. Its lease ends, and the second instance charges. Then the first goes on,
//! in the belief that it still holds the lock.
//!
//! ```sh
//! cargo run -p lowkey-fence-proof --features servers --example payment
//! cargo run -p lowkey-fence-proof --features servers --example payment -- unfenced
//! ```

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use lowkey_client::Client;
use lowkey_fence::{PostgresFence, Resource};
use lowkey_fence_proof::{Failure, servers};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio_postgres::NoTls;

const TTL: Duration = Duration::from_secs(1);

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["job", name, endpoints, database, manner] => {
            job(name, endpoints, database, manner == "fenced").await
        }
        [] => story("fenced").await,
        ["unfenced"] => story("unfenced").await,
        _ => Err("say nothing, or unfenced".into()),
    }
}

/// The job that runs twice. Under a pause of the whole process nothing in here notices that time has passed.
async fn job(name: &str, endpoints: &str, database: &str, is_fenced: bool) -> Result<(), Failure> {
    let service = Client::connect(endpoints.split(',')).await?;
    let session = service.session(TTL).await?;
    let guard = session.lock("billing/invoice-812").acquire().await?;
    let (mut database, connection) = tokio_postgres::connect(database, NoTls).await?;
    tokio::spawn(connection);

    let invoices = PostgresFence::new(Resource::parse("invoices")?);
    if is_fenced {
        invoices.claim(&database, &guard.fence()).await?;
    }
    let is_paid: bool = database.query_one("SELECT is_paid FROM invoice", &[]).await?.get(0);
    println!(
        "{name} has token {}, and finds that it is {}",
        guard.token(),
        if is_paid { "paid" } else { "owed" }
    );
    std::io::stdout().flush()?;
    if is_paid {
        return Ok(());
    }
    // Here the first instance is stopped.
    let mut goes_on = String::new();
    std::io::stdin().read_line(&mut goes_on)?;

    let charge = "WITH paid AS (UPDATE invoice SET is_paid = true) INSERT INTO charge VALUES (10)";
    if is_fenced {
        match invoices.begin(&mut database, &guard.fence()).await {
            Ok(transaction) => {
                transaction.execute(charge, &[]).await?;
                transaction.commit().await?;
            }
            Err(refused) => {
                println!("{name} does not charge: {refused}");
                return Ok(());
            }
        }
    } else {
        database.execute(charge, &[]).await?;
    }
    println!("{name} has charged the customer");
    Ok(())
}

/// Starts everything, and plays the pause.
async fn story(manner: &str) -> Result<(), Failure> {
    let (server, service) = (servers::postgres().await?, servers::lowkey()?);
    let (mut database, connection) = tokio_postgres::connect(&server.address, NoTls).await?;
    tokio::spawn(connection);
    PostgresFence::install(&mut database).await?;
    let tables = "CREATE TABLE invoice (is_paid boolean NOT NULL); INSERT INTO invoice VALUES (false);
                  CREATE TABLE charge (amount bigint NOT NULL)";
    database.batch_execute(tables).await?;

    let start = |name: &str| -> Result<Child, Failure> {
        let mut job = Command::new(std::env::current_exe()?);
        job.args(["job", name, &service.endpoints.join(","), &server.address, manner]);
        Ok(job.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?)
    };
    let mut first = start("the first instance")?;
    let mut first_output = BufReader::new(first.stdout.take().ok_or("it has no output")?);
    let mut line = String::new();
    first_output.read_line(&mut line)?;
    print!("{line}");
    let first_id = Pid::from_raw(first.id().cast_signed());
    kill(first_id, Signal::SIGSTOP)?;
    println!("… the first instance is stopped for longer than its lease lives");

    // It waits for the lock, gets it when that lease has ended, and charges at once: its input is empty.
    let mut second = start("the second instance")?;
    drop(second.stdin.take());
    print!("{}", String::from_utf8(second.wait_with_output()?.stdout)?);

    println!("… the first instance goes on");
    drop(first.stdin.take());
    kill(first_id, Signal::SIGCONT)?;
    for line in first_output.lines() {
        println!("{}", line?);
    }
    first.wait()?;
    let charges: i64 = database.query_one("SELECT count(*) FROM charge", &[]).await?.get(0);
    println!("the customer was charged {charges} times");
    match (manner, charges) {
        ("fenced", 1) | ("unfenced", 2) => Ok(()),
        _ => Err(format!("{charges} charges were not expected").into()),
    }
}
