//! Every resource on its real server: a short version of each experiment, and what only some of them have.
#![cfg(feature = "servers")]

use std::time::Duration;

use lowkey_fence_proof::Failure;
use lowkey_fence_proof::rounds::{Tokens, rounds};
use lowkey_fence_proof::servers::lowkey;
use lowkey_fence_proof::stores::{Kind, Way};
use lowkey_fence_proof::storm::storm;

/// Late writes stay out, with made-up tokens and with those of the service; the rule holds in a storm; and a naive
/// version is caught, so that all this can fail.
async fn prove(kind: Kind) -> Result<(), Failure> {
    let Some(store) = kind.start_or_skip().await else { return Ok(()) };
    let store = store.as_ref();

    let fenced = rounds(store, &Tokens::Played, Way::Fenced, 60).await?;
    assert_eq!((fenced.rounds, fenced.late), (60, 0), "{fenced}");
    assert!(fenced.refused > 0, "some first holders come too late: {fenced}");

    let verdict = storm(store, Way::Fenced, 16, Duration::from_secs(2)).await?;
    assert!(verdict.violations.is_empty(), "{verdict}: {:#?}", verdict.violations);
    assert!(verdict.accepted > 0 && verdict.refused > 0, "{verdict}, {:?}", verdict.last_error);

    if kind.can_be_naive() {
        let naive = rounds(store, &Tokens::Played, Way::Naive, 60).await?;
        assert!(naive.late > 0, "a check in one step and a write in the next must lose: {naive}");
    }

    let service = lowkey()?;
    let real = Tokens::Service(service.client().await?);
    let served = rounds(store, &real, Way::Fenced, 8).await?;
    assert_eq!((served.rounds, served.late), (8, 0), "{served}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn postgres_keeps_late_writes_out() -> Result<(), Failure> {
    prove(Kind::Postgres).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn mariadb_keeps_late_writes_out() -> Result<(), Failure> {
    prove(Kind::Mysql).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn sqlite_keeps_late_writes_out() -> Result<(), Failure> {
    prove(Kind::Sqlite).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn redis_keeps_late_writes_out() -> Result<(), Failure> {
    prove(Kind::Redis).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 70)]
async fn an_s3_server_keeps_late_writes_out() -> Result<(), Failure> {
    prove(Kind::S3).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_service_behind_the_layer_keeps_late_writes_out() -> Result<(), Failure> {
    prove(Kind::Http).await
}
