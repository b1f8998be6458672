//! The example of the payment job, as people run it.
#![cfg(feature = "servers")]

use std::process::Command;

use lowkey_fence_proof::Failure;
use lowkey_fence_proof::servers::{may_skip, postgres, redis, s3};

/// Runs the example with the fence and without.
fn play(kind: &str) -> Result<(), Failure> {
    // Cargo builds examples beside the folder of tests.
    let folder =
        std::env::current_exe()?.parent().and_then(|deps| deps.parent()).map(|root| root.join("examples"));
    let example = folder.ok_or("there is a folder of examples")?.join("payment");
    for (arguments, expected) in [(&[kind][..], "charged 1 times"), (&[kind, "unfenced"], "charged 2 times")]
    {
        let output = Command::new(&example).args(arguments).output()?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            output.status.success() && said.contains(expected),
            "{said}{}",
            String::from_utf8_lossy(&output.stderr)
        );
        let refused = "your lock is gone: stop, do not retry";
        assert_eq!(said.contains(refused), expected == "charged 1 times", "{said}");
    }
    Ok(())
}

/// False, with a word, if the server is missing and may be.
fn is_there<T>(server: Result<T, Failure>) -> Result<bool, Failure> {
    match server {
        Err(error) if may_skip(&error) => Ok(false),
        outcome => outcome.map(|_| true),
    }
}

#[tokio::test]
async fn in_postgres_the_customer_is_charged_once_and_twice_without_the_fence() -> Result<(), Failure> {
    if is_there(postgres().await)? { play("postgres") } else { Ok(()) }
}

#[tokio::test]
async fn in_redis_the_customer_is_charged_once_and_twice_without_the_fence() -> Result<(), Failure> {
    if is_there(redis().await)? { play("redis") } else { Ok(()) }
}

#[tokio::test]
async fn in_an_object_store_the_customer_is_charged_once_and_twice_without_the_fence() -> Result<(), Failure>
{
    if is_there(s3().await)? { play("objects") } else { Ok(()) }
}

#[test]
fn behind_a_service_the_customer_is_charged_once_and_twice_without_the_fence() -> Result<(), Failure> {
    play("http")
}
