//! What saves a program from writing loops of its own: leading again and again, several locks at once, and
//! calls that block.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lowkey_client::{Client, ClientEvent, LossCause, blocking};

use super::{connect, endpoints};
use crate::clients::in_time;
use crate::harness::{Cluster, eventually};

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_whose_lease_is_ended_leads_again_and_resigns_when_its_work_is_done() {
    let cluster = Cluster::start(1);
    let client = connect(&cluster).await;
    let candidate = client.elect("chief").value("here").ttl(Duration::from_secs(5));
    let (started, first_token) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let (seen, first) = (Arc::clone(&started), Arc::clone(&first_token));
    let work = tokio::spawn(async move {
        candidate
            .run(|lead| {
                let is_first = seen.fetch_add(1, Ordering::SeqCst) == 0;
                first.fetch_max(if is_first { lead.token() } else { 0 }, Ordering::SeqCst);
                async move {
                    if is_first {
                        std::future::pending::<()>().await;
                    }
                    lead.token()
                }
            })
            .await
    });
    let lead = eventually("it leads", || {
        let leader = cluster.nodes[0].ok("GET", "/v1/election/leader?election=chief", "");
        leader["leader"]["leaseId"].as_str().map(str::to_owned)
    });
    in_time("its lease is ended", client.revoke_lease(lead.parse().unwrap(), client.owner())).await.unwrap();
    let second = in_time("it leads again", work).await.unwrap().unwrap();
    assert!(second > first_token.load(Ordering::SeqCst), "a new term of office has a higher token");
    assert_eq!(started.load(Ordering::SeqCst), 2);
    let after = in_time("who leads", client.get("chief")).await.unwrap();
    assert!(after.holders.is_empty(), "it resigned: {after:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn several_locks_are_taken_all_or_none_and_two_who_want_them_crosswise_both_get_them() {
    let cluster = Cluster::start(1);
    let client = connect(&cluster).await;
    let session = client.session(Duration::from_secs(5)).await.unwrap();
    let other = client.session(Duration::from_secs(5)).await.unwrap();
    let held = in_time("one of them", other.lock("b").acquire()).await.unwrap();
    let refused = in_time("all", session.lock_all(["c", "b", "a"]).try_acquire()).await.unwrap_err();
    assert!(refused.is_busy(), "{refused}");
    let all = session.lock_all(["c", "b", "a"]);
    assert!(in_time("all", all.wait(Duration::from_millis(50))).await.unwrap_err().is_busy());
    for name in ["a", "c"] {
        let lock = in_time("who has it", client.get(name)).await.unwrap();
        assert!(lock.holders.is_empty(), "nothing is kept of what was not had as a whole: {lock:?}");
    }
    in_time("its release", held.release()).await.unwrap();

    let crosswise = |session: lowkey_client::Session, names: [&'static str; 2]| async move {
        for _ in 0..20 {
            let both = session.lock_all(names).acquire().await.unwrap();
            assert!(both.is_held() && both.get("a").is_some());
            both.release().await.unwrap();
        }
    };
    let both = async { tokio::join!(crosswise(session, ["a", "b"]), crosswise(other, ["b", "a"])) };
    in_time("nobody waits in a circle", both).await;
}

#[test]
fn a_program_without_a_runtime_has_the_same_locks() {
    let mut cluster = Cluster::start(1);
    let client = blocking::Client::connect(endpoints(&cluster)).unwrap();
    let session = client.session(Duration::from_secs(2)).unwrap();
    let guard = session.lock("a").value("here").wait(Duration::from_secs(10)).unwrap();
    assert!(guard.is_held());
    let holders = client.get("a").unwrap().holders;
    assert_eq!((holders[0].fencing_token, holders[0].value.as_str()), (guard.token(), "here"));
    let other = client.session(Duration::from_secs(2)).unwrap();
    assert!(other.lock("a").try_acquire().unwrap_err().is_busy());
    guard.release().unwrap();
    let guard = other.lock("a").acquire().unwrap();
    // Nobody polls anything now, and the loss is told all the same.
    cluster.nodes[0].kill();
    let cause = guard.lost();
    assert!(!guard.is_held(), "{cause}");
}

/// What a program's metrics would count.
#[tokio::test(flavor = "multi_thread")]
async fn a_hook_is_told_what_the_client_does_and_notices() {
    let program = env!("CARGO_BIN_EXE_lowkey");
    let mut cluster = lowkey_testing::Cluster::builder().binary(program).start(1).unwrap();
    let told: Arc<Mutex<Vec<String>>> = Arc::default();
    let telling = Arc::clone(&told);
    let client = Client::builder(cluster.endpoints()).on_event(move |event| {
        telling.lock().unwrap().push(match event {
            ClientEvent::Connected { .. } => "connected".to_owned(),
            ClientEvent::Disconnected { .. } => "disconnected".to_owned(),
            ClientEvent::Acquired { name, .. } => format!("acquired {name}"),
            ClientEvent::NotAcquired { name, error, .. } => format!("busy {} {name}", error.is_busy()),
            ClientEvent::GivenUp { name, .. } => format!("given up {name}"),
            ClientEvent::Released { name, .. } => format!("released {name}"),
            ClientEvent::Renewed { leases, .. } => format!("renewed {leases}"),
            ClientEvent::SessionLost { cause, .. } => format!("session lost: {cause}"),
            ClientEvent::LockLost { token, .. } => format!("lock lost: {token}"),
            _ => return,
        });
    });
    let client = in_time("a connection", client.connect()).await.unwrap();
    let is_told =
        |what: &str| eventually(what, || told.lock().unwrap().iter().any(|told| told == what).then_some(()));
    let session = client.session(Duration::from_secs(3)).await.unwrap();
    let other = client.session(Duration::from_secs(60)).await.unwrap();
    let guard = session.lock("a").acquire().await.unwrap();
    other.lock("a").try_acquire().await.unwrap_err();
    tokio::time::timeout(Duration::from_millis(50), other.lock("a").acquire()).await.unwrap_err();
    other.lock("b").acquire().await.unwrap().release().await.unwrap();
    for what in
        ["connected", "acquired a", "busy true a", "given up a", "acquired b", "released b", "renewed 1"]
    {
        is_told(what);
    }
    let token = guard.token();
    cluster.release_by_force("a").unwrap();
    is_told(&format!("lock lost: {token}"));
    cluster.kill(0).unwrap();
    is_told("disconnected");
    is_told(&format!("session lost: {}", LossCause::Expired));
    cluster.restart(0).unwrap();
    eventually("it connects again", || {
        let told = told.lock().unwrap();
        (told.iter().filter(|told| *told == "connected").count() >= 2).then_some(())
    });
    assert!(!told.lock().unwrap().iter().any(|told| told.ends_with(&LossCause::Closed.to_string())));
}
