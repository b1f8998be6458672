//! The example of the payment job, as people run it.
#![cfg(feature = "servers")]

use std::process::Command;

use lowkey_fence_proof::Failure;
use lowkey_fence_proof::servers::{Missing, postgres};

#[tokio::test]
async fn the_customer_is_charged_once_and_twice_without_the_fence() -> Result<(), Failure> {
    match postgres().await {
        Err(error) if error.is::<Missing>() && std::env::var_os("LOWKEY_REQUIRE_ALL").is_none() => {
            println!("skipped: {error}");
            return Ok(());
        }
        outcome => drop(outcome?),
    }
    // Cargo builds examples beside the folder of tests.
    let folder =
        std::env::current_exe()?.parent().and_then(|deps| deps.parent()).map(|root| root.join("examples"));
    let example = folder.ok_or("there is a folder of examples")?.join("payment");
    for (arguments, expected) in [(&[][..], "charged 1 times"), (&["unfenced"][..], "charged 2 times")] {
        let output = Command::new(&example).args(arguments).output()?;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(
            output.status.success() && said.contains(expected),
            "{said}{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(())
}
