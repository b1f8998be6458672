//! A job that runs in one place at a time, however many copies of it are started: a copy that finds it running says who
//! does it, and ends. It does not wait.
//!
//! A copy that is started after the job was done does it again: a lock says who works now, not what was done. What must
//! happen once a day needs a note of that in its own data, written under the lock (or `lowkey run --at-least`).
//!
//! ```sh
//! cargo run -p lowkey-client --example singleton_job -- nightly-report
//! ```

use std::error::Error;
use std::time::Duration;

use lowkey_client::Client;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let name = std::env::args().nth(1).unwrap_or_else(|| "nightly-report".to_owned());
    let endpoints = std::env::var("LOWKEY_ENDPOINTS").unwrap_or_else(|_| "http://127.0.0.1:9000".to_owned());
    let client = Client::connect(endpoints.split(',')).await?;
    let session = client.session(Duration::from_secs(10)).await?;

    // Somebody else does the job: leave.
    let guard = match session.lock(&name).try_acquire().await {
        Ok(guard) => guard,
        Err(busy) if busy.is_busy() => {
            println!("not me: {busy}");
            return Ok(());
        }
        Err(error) => return Err(error.into()),
    };
    println!("doing {name} with token {}", guard.token());
    // Ends where it waits if the lock is lost.
    guard.run(work()).await?;
    guard.release().await?;
    client.close().await?;
    println!("done");
    Ok(())
}

async fn work() {
    for step in 1..=3 {
        tokio::time::sleep(Duration::from_millis(300)).await;
        println!("step {step}");
    }
}
