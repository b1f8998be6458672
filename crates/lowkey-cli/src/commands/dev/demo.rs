//! `dev --demo`: a small company at work, so that there is something to look at from the first second.
//!
//! Everything here is an ordinary client. What fails, for example because somebody revokes a lease to see what
//! happens, is begun again: that is what there is to see.

use std::time::Duration;

use lowkey_client::{Client, Error, Tls};
use tokio::task::JoinSet;
use tokio::time::sleep;

/// How long sessions live that are renewed.
const TTL: Duration = Duration::from_secs(10);
/// How long a client waits after a failure.
const RETRY_PAUSE: Duration = Duration::from_secs(1);

/// What workers compete for, and how long the work takes, in seconds.
const JOBS: [(&str, u64); 4] =
    [("billing/nightly", 4), ("billing/invoices/eu", 3), ("reports/daily", 6), ("deploy/web", 2)];
const WORKERS: [&str; 4] = ["worker-1", "worker-2", "worker-3", "worker-4"];
/// Who stands for election, and where it can be reached.
const SCHEDULERS: [(&str, &str); 3] = [
    ("scheduler-1", "http://10.0.0.1:4000"),
    ("scheduler-2", "http://10.0.0.2:4000"),
    ("scheduler-3", "http://10.0.0.3:4000"),
];
/// How long one of them leads.
const LEADS: Duration = Duration::from_secs(9);
/// What somebody takes and forgets, again and again.
const FORGOTTEN: &str = "maintenance/cleanup";
const FORGOTTEN_TTL: Duration = Duration::from_secs(5);
/// Who reads something together.
const READERS: [&str; 2] = ["reader-1", "reader-2"];

/// Where the cluster is.
#[derive(Clone)]
struct Cluster {
    endpoints: Vec<String>,
    tls: Tls,
}

/// Begins. It ends when what is returned is dropped.
pub(super) fn start(endpoints: &[String], tls: Tls) -> JoinSet<()> {
    let cluster = Cluster { endpoints: endpoints.to_vec(), tls };
    let mut people = JoinSet::new();
    for (number, owner) in WORKERS.into_iter().enumerate() {
        people.spawn(again(cluster.clone(), owner, async move |client: &Client| work(client, number).await));
    }
    for (owner, address) in SCHEDULERS {
        people.spawn(again(cluster.clone(), owner, async move |client: &Client| lead(client, address).await));
    }
    for owner in READERS {
        people.spawn(again(cluster.clone(), owner, read));
    }
    people.spawn(again(cluster.clone(), "forgetful", forget));
    people.spawn(again(cluster, "cleaner", clean));
    people
}

/// Connects as this owner, and does something for ever.
async fn again(cluster: Cluster, owner: &'static str, what: impl AsyncFn(&Client) -> Result<(), Error>) {
    loop {
        let builder = Client::builder(cluster.endpoints.clone()).owner(owner).tls(cluster.tls.clone());
        if let Ok(client) = builder.connect().await {
            while what(&client).await.is_ok() {}
        }
        sleep(RETRY_PAUSE).await;
    }
}

/// Does one job after the other.
async fn work(client: &Client, number: usize) -> Result<(), Error> {
    let session = client.session(TTL).await?;
    for (job, seconds) in JOBS.into_iter().cycle().skip(number).take(JOBS.len() * 5) {
        let guard = session.lock(job).acquire().await?;
        // A lock that is lost ends the work, and nothing is left to release.
        if guard.run(sleep(Duration::from_secs(seconds))).await.is_ok() {
            guard.release().await?;
        }
        sleep(Duration::from_millis(700)).await;
    }
    session.close().await
}

/// Leads for a while, and resigns: another follows.
async fn lead(client: &Client, address: &str) -> Result<(), Error> {
    let session = client.session(TTL).await?;
    let leadership = session.election("scheduler").campaign(address).await?;
    if leadership.run(sleep(LEADS)).await.is_ok() {
        leadership.resign().await?;
    }
    session.close().await
}

/// Reads what others read too.
async fn read(client: &Client) -> Result<(), Error> {
    let session = client.session(TTL).await?;
    let guard = session.lock("config/shop").shared().acquire().await?;
    let _ = guard.run(sleep(Duration::from_secs(20))).await;
    session.close().await
}

/// Takes a lock, never renews its lease, and comes back when that has run out.
async fn forget(client: &Client) -> Result<(), Error> {
    client.detached(FORGOTTEN, FORGOTTEN_TTL).acquire().await?;
    sleep(FORGOTTEN_TTL * 2).await;
    Ok(())
}

/// Waits for the one that forgets.
async fn clean(client: &Client) -> Result<(), Error> {
    let session = client.session(TTL).await?;
    let guard = session.lock(FORGOTTEN).acquire().await?;
    if guard.run(sleep(Duration::from_secs(2))).await.is_ok() {
        guard.release().await?;
    }
    session.close().await
}
