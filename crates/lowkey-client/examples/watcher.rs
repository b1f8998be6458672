//! Tells of every change of all locks whose names begin with a prefix, also across lost connections.
//!
//! ```sh
//! cargo run -p lowkey-client --example watcher -- billing/
//! ```

use std::error::Error;

use futures::StreamExt as _;
use lowkey_client::Client;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let prefix = std::env::args().nth(1).unwrap_or_default();
    let endpoints = std::env::var("LOWKEY_ENDPOINTS").unwrap_or_else(|_| "http://127.0.0.1:9000".to_owned());
    let client = Client::connect(endpoints.split(',')).await?;

    // What is there, and everything that happens after it: nothing falls in between.
    let (locks, watch_from) = client.locks(&prefix).await?;
    for lock in locks {
        let holders: Vec<&str> = lock.holders.iter().map(|holder| holder.owner_id.as_str()).collect();
        println!("{} is held by {holders:?}, {} waiting", lock.lock_name, lock.waiter_count);
    }
    let mut events = client.watch_prefix(&prefix).from(watch_from);
    while let Some(event) = events.next().await {
        let event = event?;
        println!("{}.{} {:?} {} {}", event.revision, event.ordinal, event.r#type(), event.name, event.owner);
    }
    Ok(())
}
