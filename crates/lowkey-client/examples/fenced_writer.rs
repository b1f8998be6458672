//! Writes that a resource can refuse when they come too late: the token goes along with each of them.
//!
//! Pause it for longer than its session lives (Ctrl-Z, then `fg`), start a second copy meanwhile, and see that the
//! first knows at once, and that what it would still write is refused.
//!
//! ```sh
//! cargo run -p lowkey-client --example fenced_writer
//! ```

use std::error::Error;
use std::path::Path;
use std::time::Duration;

use lowkey_client::Client;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let endpoints = std::env::var("LOWKEY_ENDPOINTS").unwrap_or_else(|_| "http://127.0.0.1:9000".to_owned());
    let client = Client::connect(endpoints.split(',')).await?;
    let session = client.session(Duration::from_secs(5)).await?;
    let guard = session.lock("the-file").acquire().await?;
    let file = std::env::temp_dir().join("lowkey-fenced-writer");
    println!("writing with token {}", guard.token());
    while guard.is_held() {
        write(&file, guard.token(), "something important")?;
        tokio::time::sleep(Duration::from_millis(500)).await;
    }
    println!("lost: {}", guard.lost().await);
    match write(&file, guard.token(), "something that comes too late") {
        Ok(()) => println!("nobody else has written yet, so no harm was done"),
        Err(refused) => println!("{refused}"),
    }
    Ok(())
}

/// The protected resource: it keeps the highest token that it has seen, and refuses lower ones. A real one does both in
/// one step, such as an SQL UPDATE with the token in its WHERE clause.
fn write(file: &Path, token: u64, text: &str) -> Result<(), Box<dyn Error>> {
    let highest = std::fs::read_to_string(file)
        .ok()
        .and_then(|written| written.split_once(' ').and_then(|(token, _)| token.parse::<u64>().ok()));
    match highest {
        Some(highest) if highest > token => Err(format!("refused: token {token} is below {highest}").into()),
        _ => Ok(std::fs::write(file, format!("{token} {text}"))?),
    }
}
