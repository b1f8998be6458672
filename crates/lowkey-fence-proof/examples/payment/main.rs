//! The payment job: two instances, one of which is paused past its lease, and the customer is charged once.
//!
//! It starts a server and a lowkey cluster, and itself twice. The first instance reads what is owed and is
//! stopped (SIGSTOP) before it charges. Its lease ends, and the second instance charges. Then the first goes on,
//! in the belief that it still holds the lock.
//!
//! ```sh
//! cargo run -p lowkey-fence-proof --features servers --example payment
//! cargo run -p lowkey-fence-proof --features servers --example payment -- redis
//! cargo run -p lowkey-fence-proof --features servers --example payment -- objects
//! cargo run -p lowkey-fence-proof --features servers --example payment -- http
//! cargo run -p lowkey-fence-proof --features servers --example payment -- postgres unfenced
//! ```

mod tills;

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use lowkey_client::Client;
use lowkey_fence_proof::{Failure, servers};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::tills::{Charged, House, Till};

const TTL: Duration = Duration::from_secs(1);

#[tokio::main]
async fn main() -> Result<(), Failure> {
    servers::choose_crypto();
    let words: Vec<String> = std::env::args().skip(1).collect();
    match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["job", name, endpoints, kind, address, manner] => {
            job(name, endpoints, Till::open(kind, address).await?, manner == "fenced").await
        }
        [] => story("postgres", "fenced").await,
        [kind] => story(kind, "fenced").await,
        [kind, "unfenced"] => story(kind, "unfenced").await,
        _ => Err("say where (postgres, redis, objects or http), and perhaps unfenced".into()),
    }
}

/// The job that runs twice. Under a pause of the whole process nothing in here notices that time has passed.
async fn job(name: &str, endpoints: &str, mut till: Till, is_fenced: bool) -> Result<(), Failure> {
    let service = Client::connect(endpoints.split(',')).await?;
    let session = service.session(TTL).await?;
    let guard = session.lock("billing/invoice-812").acquire().await?;
    let fence = guard.fence();
    if is_fenced {
        till.claim(&fence).await?;
    }
    let is_paid = till.charges().await? > 0;
    let state = if is_paid { "paid" } else { "owed" };
    println!("{name} has token {}, and finds that it is {state}", guard.token());
    std::io::stdout().flush()?;
    if is_paid {
        return Ok(());
    }
    // Here the first instance is stopped.
    let mut goes_on = String::new();
    std::io::stdin().read_line(&mut goes_on)?;

    match till.charge(is_fenced.then_some(&fence)).await? {
        Charged::Yes => println!("{name} has charged the customer"),
        Charged::Refused(why) => println!("{name} does not charge: {}", why.trim()),
    }
    Ok(())
}

/// Starts everything, and plays the pause.
async fn story(kind: &str, manner: &str) -> Result<(), Failure> {
    let (house, service) = (House::open(kind).await?, servers::lowkey()?);
    let mut till = Till::open(kind, house.address()).await?;
    till.prepare().await?;

    let start = |name: &str| -> Result<Child, Failure> {
        let mut job = Command::new(std::env::current_exe()?);
        job.args(["job", name, &service.endpoints.join(","), kind, house.address(), manner]);
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
    let charges = till.charges().await?;
    println!("the customer was charged {charges} times");
    match (manner, charges) {
        ("fenced", 1) | ("unfenced", 2) => Ok(()),
        _ => Err(format!("{charges} charges were not expected").into()),
    }
}
