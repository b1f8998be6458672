//! Locks that are held for a limited time.

use std::time::Duration;

use futures::StreamExt as _;
use lowkey_client::api::EventType;
use lowkey_client::{ErrorKind, LossCause, SessionStatus};

use super::guards::{connect, hold};
use crate::clients::in_time;
use crate::harness::Cluster;

/// A job that hangs, and renews its lease well.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_with_a_limit_is_lost_in_time_although_its_lease_is_renewed() {
    let cluster = Cluster::start(3);
    let (session, other) = hold(&cluster, "other", 2).await;
    let lock = session.lock("a").at_most(Duration::from_secs(4));
    let asked = std::time::Instant::now();
    let guard = in_time("the lock", lock.acquire()).await.unwrap();
    assert!(guard.limit_remaining().is_some_and(|limit| limit <= Duration::from_millis(3_600)));
    let (_next_session, next) = {
        let client = connect(&cluster).await;
        let session = in_time("a session", client.session(Duration::from_secs(10))).await.unwrap();
        let waiting = session.clone();
        let next = async move { waiting.lock("a").acquire().await };
        (session, tokio::spawn(next))
    };
    let mut watch = connect(&cluster).await.watch("a");
    let ended = tokio::spawn(async move {
        loop {
            let event = watch.next().await.unwrap().unwrap();
            if event.r#type() == EventType::Expired {
                return event;
            }
        }
    });
    // It never ends by itself; nobody drops its guard.
    let lost = in_time("the loss", guard.run(std::future::pending::<()>())).await.unwrap_err();
    let lost_after = asked.elapsed();
    assert_eq!(lost.cause, LossCause::HeldTooLong);
    assert!(lost_after >= Duration::from_millis(3_600), "{lost_after:?}");
    assert!(!guard.is_held() && guard.remaining().is_zero());
    let next = in_time("the next holder", next).await.unwrap().unwrap();
    let next_after = asked.elapsed();
    println!("lost after {lost_after:?}, the next holder's after {next_after:?}");
    assert!(next.token() > guard.token() && next_after >= Duration::from_secs(4), "{next_after:?}");
    // The session goes on, with all else that it holds.
    assert!(other.is_held() && session.status() == SessionStatus::Held);
    let ended = in_time("the event", ended).await.unwrap();
    assert_eq!(ended.fencing_token, guard.token());
    assert_eq!(ended.cause.as_deref(), Some("HELD_TOO_LONG"));
    drop(next);
    // Its guard may still be there: the name can be had anew when the service has told of the end.
    let again = in_time("the lock", session.lock("a").acquire()).await.unwrap();
    assert!(again.limit_remaining().is_none() && again.is_held());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_that_the_service_does_not_take_is_refused_and_never_left_out() {
    let cluster = Cluster::start(1);
    let (session, _other) = hold(&cluster, "other", 10).await;
    for limit in [Duration::ZERO, Duration::from_millis(1_500), Duration::from_secs(604_801)] {
        let refused = session.lock("a").at_most(limit).try_acquire().await.unwrap_err();
        assert!(matches!(refused.kind(), ErrorKind::Invalid(_)), "{refused}");
    }
    assert_eq!(
        cluster.nodes[0]
            .client()
            .get_lock(lowkey_api::v1::GetLockRequest { lock_name: "a".into(), stale: false })
            .await
            .unwrap()
            .into_inner()
            .holder_count,
        0
    );
}
