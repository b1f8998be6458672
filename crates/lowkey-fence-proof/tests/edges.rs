//! What could go wrong at the edges: huge tokens, missing values, rolled-back savepoints, equal ETags.
#![cfg(feature = "servers")]

use std::sync::Arc;

use lowkey_fence::sql::Dialect;
use lowkey_fence::{Fence, Mode, ObjectFence, PostgresFence, Resource, Token};
use lowkey_fence_proof::Failure;
use lowkey_fence_proof::servers::{Server, may_skip, postgres};
use lowkey_fence_proof::stores::{Kind, Way, no_stop};
use object_store::memory::InMemory;
use tokio_postgres::{Client, NoTls};

fn exclusive(token: u64) -> Fence {
    Fence::new("edge", Token(token), Mode::Exclusive)
}

/// Every store keeps tokens exactly: also beyond what a floating-point number can hold, up to the highest.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn neighbours_among_huge_tokens_are_told_apart() -> Result<(), Failure> {
    const HIGHEST: u64 = i64::MAX.unsigned_abs();
    for kind in Kind::ALL {
        let Some(store) = kind.start_or_skip().await else { continue };
        for token in [10, 1 << 53, HIGHEST] {
            let mut holder = store.connect(&format!("huge-{token}")).await?;
            assert!(holder.claim(&exclusive(token - 1)).await?, "{kind:?} {token}");
            assert!(holder.claim(&exclusive(token)).await?, "{kind:?} {token}");
            assert!(!holder.claim(&exclusive(token - 1)).await?, "{kind:?} {token}");
            assert!(
                !holder.write(&exclusive(token - 1), 1, Way::Fenced, no_stop()).await?,
                "{kind:?} {token}"
            );
            assert!(holder.write(&exclusive(token), 2, Way::Fenced, no_stop()).await?, "{kind:?} {token}");
            assert_eq!(holder.log().await?.len(), 1, "{kind:?} {token}");
        }
        let mut holder = store.connect("invalid").await?;
        for token in [0, HIGHEST + 1] {
            let outcome = holder.claim(&exclusive(token)).await;
            assert!(outcome.is_err(), "{kind:?} {token}: {outcome:?}");
        }
    }
    Ok(())
}

async fn database() -> Result<Option<(Server, Client)>, Failure> {
    match postgres().await {
        Ok(server) => {
            let (mut client, connection) = tokio_postgres::connect(&server.address, NoTls).await?;
            tokio::spawn(connection);
            PostgresFence::install(&mut client).await?;
            PostgresFence::install(&mut client).await?;
            Ok(Some((server, client)))
        }
        Err(error) if may_skip(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The SQLSTATE that statements end with; nothing if they succeed. What they did is rolled back.
async fn state(client: &Client, statements: &str) -> Result<String, Failure> {
    let outcome = client.batch_execute(statements).await;
    client.batch_execute("ROLLBACK").await?;
    Ok(match outcome {
        Ok(()) => String::new(),
        Err(error) => error.code().map(|code| code.code().to_owned()).ok_or(error)?,
    })
}

#[tokio::test]
async fn a_table_with_the_trigger_takes_no_transaction_without_a_token() -> Result<(), Failure> {
    let Some((_server, client)) = database().await? else { return Ok(()) };
    let accounts = Resource::parse("it's \\ accounts")?;
    let trigger = Dialect::Postgres.require("public.accounts", &accounts).ok_or("there is a trigger")?;
    client.batch_execute("CREATE TABLE accounts (balance bigint)").await?;
    client.batch_execute(&trigger).await?;
    client.batch_execute(&trigger).await?;

    let present = r"SELECT lowkey_fence(E'it''s \\ accounts', 7);";
    let insert = "INSERT INTO accounts VALUES (1);";
    for (statements, expected) in [
        (format!("BEGIN; {present} {insert}"), ""),
        (format!("BEGIN; {insert}"), "LK003"),
        (format!("BEGIN; SELECT lowkey_fence('other', 7); {insert}"), "LK003"),
        (format!("BEGIN; SAVEPOINT a; {present} ROLLBACK TO a; {insert}"), "LK003"),
        (format!("BEGIN; SAVEPOINT a; {present} RELEASE a; {insert}"), ""),
        (format!("BEGIN; {present} COMMIT; BEGIN; {insert}"), "LK003"),
        ("BEGIN; TRUNCATE accounts".to_owned(), "LK003"),
        ("BEGIN; DELETE FROM accounts".to_owned(), "LK003"),
        (r"BEGIN; SELECT lowkey_fence(E'it''s \\ accounts', 6)".to_owned(), "LK001"),
    ] {
        assert_eq!(state(&client, &statements).await?, expected, "{statements}");
    }
    Ok(())
}

#[tokio::test]
async fn what_is_no_token_does_not_pass_in_sql() -> Result<(), Failure> {
    let Some((_server, client)) = database().await? else { return Ok(()) };
    for arguments in
        ["NULL, 1, false", "'a', NULL, false", "'a', 1, NULL", "'a', 0, false", "'a', -1, true", "'', 1"]
    {
        let statements = format!("BEGIN; SELECT lowkey_fence({arguments})");
        assert_eq!(state(&client, &statements).await?, "LK002", "{arguments}");
    }
    client.batch_execute(&Dialect::Postgres.reset(&Resource::parse("a")?)).await?;
    Ok(())
}

/// A claim that leaves the content as it is changes the object all the same, or a put of before would pass.
#[tokio::test]
async fn an_update_is_refused_if_somebody_claims_between_its_read_and_its_put() -> Result<(), Failure> {
    let object = ObjectFence::new(Arc::new(InMemory::new()), "report".into())?;
    object.put(&exclusive(33), "the same").await?;
    let mut is_first = true;
    let mut runs = 0;
    let late = object
        .update(&exclusive(33), |content| {
            runs += 1;
            if std::mem::take(&mut is_first) {
                // Between the late holder's read and its put.
                futures::executor::block_on(object.claim(&exclusive(34))).expect("34 is above 33");
            }
            Some([content.unwrap_or_default().as_ref(), b", late"].concat().into())
        })
        .await;
    assert_eq!(runs, 1, "the second time it is refused before it is asked");
    assert!(late.is_err_and(|error| error.refusal().is_some()));
    object.delete(&exclusive(35)).await?;
    assert_eq!(object.read().await?, None);
    assert!(object.put(&exclusive(34), "late").await.is_err(), "a deleted object keeps its marks");
    object.reset().await?;
    object.put(&exclusive(1), "anew").await?;
    Ok(())
}
