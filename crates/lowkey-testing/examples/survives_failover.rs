//! A job that must run once, tested against the day when the leader dies.
//!
//! ```sh
//! cargo run -p lowkey-testing --example survives_failover
//! ```

use std::error::Error;
use std::time::Duration;

use lowkey_client::Client;
use lowkey_testing::Cluster;

/// The code under test: it works under a lock, and stops when that is lost.
async fn job(client: &Client, mut step: impl FnMut(u32)) -> Result<bool, Box<dyn Error>> {
    let session = client.session(Duration::from_secs(10)).await?;
    let guard = session.lock("job").acquire().await?;
    for number in 1..=3 {
        if !guard.is_held() {
            return Ok(false);
        }
        step(number);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    guard.release().await?;
    Ok(true)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut cluster = Cluster::start(3)?;
    let client = Client::connect(cluster.endpoints()).await?;
    let leader = cluster.leader()?;
    let is_done = job(&client, |number| {
        if number == 2 {
            cluster.kill(leader).expect("it runs");
            println!("the leader was killed before step 2");
        }
        println!("step {number}");
    });
    assert!(is_done.await?, "a failover takes no lock away");
    println!("done");
    client.close().await?;
    Ok(())
}
