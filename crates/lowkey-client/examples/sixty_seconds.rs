//! The shortest way to a lock.
//!
//! ```sh
//! cargo run -p lowkey-client --example sixty_seconds
//! ```

use std::error::Error;
use std::time::Duration;

use lowkey_client::Client;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let endpoints = std::env::var("LOWKEY_ENDPOINTS").unwrap_or_else(|_| "http://127.0.0.1:9000".to_owned());
    let client = Client::connect(endpoints.split(',')).await?;

    // A session is your presence. It renews itself.
    let session = client.session(Duration::from_secs(10)).await?;
    let guard = session.lock("billing/nightly").acquire().await?;
    println!("held with token {}", guard.token());

    // The work ends where it waits if the lock is lost. Its writes carry the token.
    guard.run(async { println!("working") }).await?;
    guard.release().await?;
    client.close().await?;
    Ok(())
}
