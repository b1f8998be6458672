//! As much as there may be of something, and one more.

use std::time::{Duration, Instant};

use lowkey_api::ApiError;
use lowkey_api::v1::lock_service_client::LockServiceClient;
use lowkey_api::v1::session_answer::Answer;
use lowkey_api::v1::session_call::Call;
use lowkey_api::v1::{AcquireLockRequest, ReleaseLockRequest, SessionCall, WatchRequest};
use lowkey_client::Client;
use serde_json::json;
use tokio::task::JoinSet;

use crate::cli::Service;
use crate::clients::in_time;
use crate::harness::eventually;
use crate::refusals::bad_input::Target;

/// Waiters that one lock may have.
const WAITERS_MAX: usize = 10_000;

fn one_more_waiter(number: usize) -> AcquireLockRequest {
    AcquireLockRequest {
        lock_name: "popular".into(),
        owner_id: format!("waiter-{number}"),
        ttl_seconds: 600,
        wait_ms: 86_400_000,
        request_id: "the only one".into(),
        ..AcquireLockRequest::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_ten_thousand_and_first_waiter_of_a_lock_is_refused() {
    let mut target = Target::start_with(&["--max-streams", "10100"]);
    let lease = target.lease("holder").await;
    let hold = json!({"lock_name": "popular", "owner_id": "holder", "lease_id": lease});
    target.assert_ok("/v1/lock/acquire", hold).await;
    let waiters =
        |target: &Target| target.node.status().unwrap()["stats"]["waiters"].as_u64().unwrap() as usize;
    let started = Instant::now();
    let endpoint = target.node.endpoint();
    let mut crowd = LockServiceClient::new(endpoint.connect_lazy());
    let mut waiting = JoinSet::new();
    while waiting.len() < WAITERS_MAX {
        // As many at a time as the node takes in without complaint.
        for _ in 0..1000 {
            let (mut client, number) = (crowd.clone(), waiting.len());
            waiting.spawn(async move { client.acquire_lock(one_more_waiter(number)).await });
        }
        eventually("they wait", || (waiters(&target) == waiting.len()).then_some(()));
    }
    println!("10,000 waiters came within {} ms", started.elapsed().as_millis());

    let beyond = serde_json::to_value(one_more_waiter(WAITERS_MAX)).unwrap();
    target.assert_refused("/v1/lock/acquire", beyond.clone(), 429, "LIMIT_WAITERS").await;
    let shown = target.node.ok("GET", "/v1/lock?name=popular", "");
    assert_eq!((&shown["waiterCount"], shown["waiters"].as_array().unwrap().len()), (&json!(10_000), 1000));
    // Whoever gives up makes room.
    let give_up = ReleaseLockRequest {
        lock_name: "popular".into(),
        owner_id: "waiter-17".into(),
        acquire_request_id: "the only one".into(),
        ..ReleaseLockRequest::default()
    };
    crowd.release_lock(give_up).await.unwrap();
    let told = in_time("the end of that wait", waiting.join_next()).await.unwrap().unwrap();
    assert_eq!(ApiError::from_status(&told.unwrap_err()).unwrap().reason.as_str(), "WAIT_CANCELLED");
    waiting.spawn({
        let mut client = crowd.clone();
        async move { client.acquire_lock(one_more_waiter(WAITERS_MAX)).await }
    });
    eventually("there was room", || (waiters(&target) == WAITERS_MAX).then_some(()));
    assert!(waiting.try_join_next().is_none(), "nobody else was told anything");

    // All of them go away at once.
    waiting.shutdown().await;
    drop(crowd);
    eventually("all places were given up", || (waiters(&target) == 0).then_some(()));
    target.assert_unharmed().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_has_as_many_streams_as_it_may_and_room_again_when_one_ends() {
    let mut target = Target::start_with(&["--max-watch-streams", "2"]);
    let mut open = Vec::new();
    for _ in 0..2 {
        open.push(target.client.watch(WatchRequest::default()).await.unwrap());
    }
    let status = target.client.watch(WatchRequest::default()).await.err().unwrap();
    assert_eq!(ApiError::from_status(&status).unwrap().reason.as_str(), "LIMIT_STREAMS");
    for path in ["/v1/watch", "/v1/election/observe?election=e"] {
        let (status, text) = target.node.http("GET", path, "").unwrap();
        assert!(status == 429 && text.contains("LIMIT_STREAMS"), "{status} {text}");
    }
    open.pop();
    let room = async {
        while target.client.watch(WatchRequest::default()).await.is_err() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    in_time("the end of a stream", room).await;
    target.assert_unharmed().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_ten_thousand_and_first_lock_of_a_lease_is_refused() {
    let mut target = Target::start();
    let lease = target.lease("collector").await;
    let started = Instant::now();
    // As many at a time as one connection may have.
    let workers = (0..100).map(|worker| {
        let mut client = target.client.clone();
        tokio::spawn(async move {
            for number in (worker..10_000).step_by(100) {
                client.acquire_lock(one_more(lease, number)).await.unwrap();
            }
        })
    });
    for worker in workers.collect::<Vec<_>>() {
        worker.await.unwrap();
    }
    let took = started.elapsed();
    let beyond = json!({"lock_name": "lock-10000", "owner_id": "collector", "lease_id": lease});
    target.assert_refused("/v1/lock/acquire", beyond.clone(), 429, "LIMIT_LOCKS_PER_LEASE").await;
    // What it has, it has; and what it gives back makes room.
    target.client.acquire_lock(one_more(lease, 17)).await.unwrap();
    target.node.ok("POST", "/v1/lock/release", &format!(r#"{{"lock_name":"lock-17","lease_id":{lease}}}"#));
    target.assert_ok("/v1/lock/acquire", beyond).await;
    let revoke = format!(r#"{{"lease_id":{lease},"owner_id":"collector"}}"#);
    assert_eq!(target.node.ok("POST", "/v1/lease/revoke", &revoke)["released"], "10000");
    target.assert_unharmed().await;
    println!("10,000 locks of one lease took {} ms", took.as_millis());
}

fn one_more(lease_id: u64, number: u64) -> AcquireLockRequest {
    AcquireLockRequest {
        lock_name: format!("lock-{number}"),
        owner_id: "collector".into(),
        lease_id,
        ..AcquireLockRequest::default()
    }
}

/// A name of so many segments.
fn deep(segments: usize) -> String {
    vec!["a"; segments].join("/")
}

const TOO_DEEP: &str = "must have at most 32 segments, and has 33";

#[tokio::test(flavor = "multi_thread")]
async fn a_name_of_33_segments_cannot_be_locked_and_can_be_asked_about() {
    let mut target = Target::start();
    let lease_id = target.lease("o").await;
    let acquire = |name: String| json!({"lock_name": name, "owner_id": "o", "lease_id": lease_id});
    target.assert_ok("/v1/lock/acquire", acquire(deep(32))).await;
    target.assert_ok("/v1/lock/acquire", acquire(format!("/{}", deep(32)))).await;
    target.assert_refused("/v1/lock/acquire", acquire(deep(33)), 400, "INVALID_LOCK_NAME").await;
    target
        .assert_refused("/v1/lock/acquire", acquire(format!("/{}", deep(33))), 400, "INVALID_LOCK_NAME")
        .await;
    let campaign = json!({"election": deep(33), "owner_id": "o", "lease_id": lease_id});
    target.assert_refused("/v1/election/campaign", campaign, 400, "INVALID_ELECTION").await;

    // It may be held since the time when it could be.
    let release = json!({"lock_name": deep(33), "lease_id": lease_id});
    target.assert_refused("/v1/lock/release", release, 404, "LOCK_NOT_FOUND").await;
    let resign = json!({"election": deep(33), "lease_id": lease_id});
    target.assert_refused("/v1/election/resign", resign, 404, "LOCK_NOT_FOUND").await;
    let check = json!({"lock_name": deep(33), "fencing_token": 1});
    target.assert_ok("/v1/lock/check", check).await;
    let name = deep(33).replace('/', "%2F");
    target.node.ok("GET", &format!("/v1/lock?name={name}"), "");
    target.node.ok("GET", &format!("/v1/election/leader?election={name}"), "");
    target.client.watch(WatchRequest { name: deep(33), ..WatchRequest::default() }).await.unwrap();
    target.assert_unharmed().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_name_that_is_too_deep_is_refused_in_the_same_words_everywhere() {
    let mut target = Target::start();
    let lease_id = target.lease("o").await;
    let request = AcquireLockRequest {
        lock_name: deep(33),
        owner_id: "o".into(),
        lease_id,
        ..AcquireLockRequest::default()
    };
    let words = format!("lock_name: {TOO_DEEP}");
    let status = target.client.acquire_lock(request.clone()).await.unwrap_err();
    assert_eq!((status.code(), status.message()), (tonic::Code::InvalidArgument, words.as_str()));
    let acquire = json!({"lock_name": deep(33), "owner_id": "o", "lease_id": lease_id}).to_string();
    let (_, body) = target.node.http("POST", "/v1/lock/acquire", &acquire).unwrap();
    assert!(body.contains(&words), "{body}");
    let campaign = json!({"election": deep(33), "owner_id": "o", "lease_id": lease_id}).to_string();
    let (_, body) = target.node.http("POST", "/v1/election/campaign", &campaign).unwrap();
    assert!(body.contains(&format!("election: {TOO_DEEP}")), "{body}");

    let calls = tokio_stream::once(SessionCall { seq: 1, call: Some(Call::AcquireLock(request)) });
    let mut answers = target.client.session(calls).await.unwrap().into_inner();
    let answer = in_time("an answer", answers.message()).await.unwrap().unwrap().answer;
    assert!(matches!(&answer, Some(Answer::Error(error)) if error.message == words), "{answer:?}");

    let client = Client::connect([format!("http://127.0.0.1:{}", target.node.ports.grpc)]).await.unwrap();
    let session = client.session(Duration::from_secs(30)).await.unwrap();
    let refused = in_time("a refusal", session.lock(deep(33)).acquire()).await.unwrap_err();
    assert!(refused.to_string().contains(&words), "{refused}");
    let refused = in_time("a refusal", session.election(deep(33)).campaign("v")).await.unwrap_err();
    assert!(refused.to_string().contains(TOO_DEEP), "{refused}");

    let done = Service::of(std::slice::from_ref(&target.node)).run(&["run", &deep(33), "--", "true"]);
    assert!(done.stderr.contains(&words), "{done:?}");
    target.assert_unharmed().await;
}
