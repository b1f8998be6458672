//! Several copies of a service, one of which leads. Start it a few times; end the leader, and see the next take over.
//!
//! ```sh
//! cargo run -p lowkey-client --example leader_election -- scheduler http://10.0.0.1:4000
//! ```

use std::error::Error;
use std::time::Duration;

use futures::StreamExt as _;
use lowkey_client::Client;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let election = arguments.next().unwrap_or_else(|| "scheduler".to_owned());
    let address = arguments.next().unwrap_or_else(|| format!("http://127.0.0.1:{}", std::process::id()));
    let endpoints = std::env::var("LOWKEY_ENDPOINTS").unwrap_or_else(|_| "http://127.0.0.1:9000".to_owned());
    let client = Client::connect(endpoints.split(',')).await?;

    // Everybody learns who leads, and when there is nobody.
    let mut observations = client.observe(&election);
    tokio::spawn(async move {
        while let Some(Ok(seen)) = observations.next().await {
            match seen.leader {
                Some(leader) => println!("{} leads, at {}", leader.owner_id, leader.value),
                None => println!("nobody leads"),
            }
        }
    });

    loop {
        let session = client.session(Duration::from_secs(5)).await?;
        let leadership = session.election(&election).campaign(&address).await?;
        println!("elected, with token {}", leadership.token());
        // What only the leader does; it ends with the lead.
        let ended = leadership.run(lead()).await;
        println!("no longer the leader: {ended:?}");
    }
}

async fn lead() {
    loop {
        tokio::time::sleep(Duration::from_secs(1)).await;
        println!("leading");
    }
}
