//! A cluster is what its methods say, as a client sees it.

use std::io::Write as _;
use std::time::Duration;

use lowkey_client::{Client, LossCause};
use lowkey_testing::{Cluster, Error};

/// A cluster, or nothing with a word where there is no program and it may be missing.
fn cluster(size: usize) -> Option<Cluster> {
    match Cluster::start(size) {
        Err(error) if error.is_missing() && std::env::var_os("LOWKEY_REQUIRE_ALL").is_none() => {
            // Past `println!`, of which nobody sees anything in a test that passes.
            std::io::stderr().write_all(format!("skipped: {error}\n").as_bytes()).expect("stderr");
            None
        }
        outcome => Some(outcome.expect("a cluster")),
    }
}

async fn client(cluster: &Cluster) -> Client {
    Client::builder(cluster.endpoints())
        .call_timeout(Duration::from_secs(60))
        .connect()
        .await
        .expect("a client")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_lives_through_whatever_befalls_the_leader() -> Result<(), Error> {
    let Some(mut cluster) = cluster(3) else { return Ok(()) };
    let client = client(&cluster).await;
    let session = client.session(Duration::from_secs(60)).await.expect("a session");
    let guard = session.lock("kept").acquire().await.expect("it is free");

    let leader = cluster.leader()?;
    cluster.kill(leader)?;
    session
        .lock("after a kill")
        .acquire()
        .await
        .expect("the others go on")
        .release()
        .await
        .expect("it is held");
    cluster.restart(leader)?;

    let leader = cluster.leader()?;
    cluster.pause(leader)?;
    session
        .lock("after a pause")
        .acquire()
        .await
        .expect("the others go on")
        .release()
        .await
        .expect("it is held");
    cluster.resume(leader)?;

    let leader = cluster.leader()?;
    cluster.isolate(leader)?;
    session
        .lock("after a cut")
        .acquire()
        .await
        .expect("the others go on")
        .release()
        .await
        .expect("it is held");
    assert_ne!(cluster.leader()?, leader, "whoever is alone does not lead");
    cluster.heal();
    cluster.leader()?;
    assert!(guard.is_held());
    guard.release().await.expect("it was held all the time");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_taken_away_is_lost() -> Result<(), Error> {
    let Some(cluster) = cluster(1) else { return Ok(()) };
    let client = client(&cluster).await;
    let session = client.session(Duration::from_secs(10)).await.expect("a session");
    let guard = session.lock("a lock & more").acquire().await.expect("it is free");
    cluster.release_by_force("a lock & more")?;
    assert_eq!(guard.lost().await, LossCause::ReleasedElsewhere);

    cluster.revoke(session.lease_id())?;
    assert_eq!(session.lost().await, LossCause::Gone);

    // Without any answer, by the client's own clock.
    let session = client.session(Duration::from_secs(2)).await.expect("a session");
    cluster.cut_clients(0)?;
    assert_eq!(session.lost().await, LossCause::Expired);
    cluster.heal();
    client.session(Duration::from_secs(2)).await.expect("it is back");
    Ok(())
}

#[test]
fn what_cannot_be_is_refused_with_a_reason() -> Result<(), Error> {
    let nothing = Cluster::start(0).expect_err("no nodes");
    assert!(nothing.to_string().contains("1 to 7"), "{nothing}");
    let Some(mut cluster) = cluster(1) else { return Ok(()) };
    assert!(cluster.kill(1).is_err_and(|error| error.to_string().contains("no node 1")));
    assert!(cluster.restart(0).is_err_and(|error| error.to_string().contains("runs already")));
    cluster.kill(0)?;
    assert!(cluster.pause(0).is_err_and(|error| error.to_string().contains("does not run")));
    Ok(())
}
