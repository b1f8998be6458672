//! The guides' Rust is compiled: each block of these pages stands below, word for word.

use std::error::Error;
use std::path::Path;
use std::time::Duration;

use lowkey_client::{Client, Session};
use tokio::time::sleep;

type Outcome = Result<(), Box<dyn Error>>;

/// Pages of `docs/guides`, and how many blocks of Rust they have at least.
const PAGES: [(&str, usize); 6] = [
    ("cron.md", 1),
    ("leader-election.md", 1),
    ("migration.md", 1),
    ("rate-of-one.md", 1),
    ("sharing.md", 1),
    ("watching.md", 1),
];

#[expect(dead_code, reason = "it is compiled, and needs a cluster to run")]
async fn cron(session: &Session) -> Outcome {
    async fn report(_token: u64) {}
    match session.lock("nightly").try_acquire().await {
        Ok(guard) => {
            guard.run(report(guard.token())).await?; // dropped if the lock is lost
            guard.release().await?;
        }
        Err(error) if error.is_busy() => println!("not here: {error}"),
        Err(error) => return Err(error.into()),
    }
    Ok(())
}

#[expect(dead_code, reason = "it is compiled, and needs a cluster to run")]
async fn leader_election(client: &Client) -> Outcome {
    async fn schedule(_token: u64) {}
    let candidate = client.elect("scheduler").value("http://10.0.0.1:4000");
    candidate.run(|lead| async move { schedule(lead.token()).await }).await?;
    Ok(())
}

#[expect(dead_code, reason = "it is compiled, and needs a cluster to run")]
async fn migration(session: &Session) -> Outcome {
    async fn migrate(_token: u64) {}
    let guard = session.lock("shop/migrate").wait(Duration::from_secs(600)).await?;
    guard.run(migrate(guard.token())).await?;
    guard.release().await?;
    Ok(())
}

#[expect(dead_code, reason = "it is compiled, and needs a cluster to run")]
async fn rate_of_one(session: &Session) -> Outcome {
    async fn call(_token: u64) {}
    let guard = session.lock("api/geocoder").acquire().await?;
    let interval = sleep(Duration::from_secs(2)); // counts from here on
    guard.run(call(guard.token())).await?;
    interval.await;
    guard.release().await?;

    for slot in 1..=3 {
        match session.lock(format!("api/slot-{slot}")).try_acquire().await {
            Ok(guard) => {
                guard.run(call(guard.token())).await?;
                return Ok(guard.release().await?);
            }
            Err(error) if error.is_busy() => {} // the next one
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

#[expect(dead_code, reason = "it is compiled, and needs a cluster to run")]
async fn sharing(session: &Session) -> Outcome {
    async fn read() {}
    async fn write(_token: u64) {}
    let reader = session.lock("catalog").shared().acquire().await?;
    reader.run(read()).await?;
    reader.release().await?;

    let writer = session.lock("catalog").acquire().await?; // waits for the readers
    writer.run(write(writer.token())).await?;
    writer.release().await?;
    Ok(())
}

#[expect(dead_code, reason = "it is compiled, and needs a cluster to run")]
async fn watching(client: &Client) -> Outcome {
    use futures::StreamExt as _;

    let mut watch = client.watch_prefix("jobs/");
    while let Some(event) = watch.next().await {
        let event = event?;
        println!("{:?} {} by {}", event.r#type(), event.name, event.owner);
    }
    Ok(())
}

/// Without the space that lines begin with.
fn flat(text: &str) -> String {
    text.lines().map(str::trim).collect::<Vec<_>>().join("\n")
}

#[test]
fn every_block_of_rust_in_these_guides_is_compiled_here() {
    let guides = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/guides");
    let compiled = flat(include_str!("guides.rs"));
    for (page, at_least) in PAGES {
        let text = std::fs::read_to_string(guides.join(page)).expect("a guide");
        let blocks: Vec<&str> =
            text.split("```rust\n").skip(1).filter_map(|rest| rest.split("```").next()).collect();
        assert!(blocks.len() >= at_least, "{page}");
        for block in blocks {
            assert!(
                compiled.contains(&flat(block)),
                "tests/guides.rs does not have this of {page}:\n{block}"
            );
        }
    }
}
