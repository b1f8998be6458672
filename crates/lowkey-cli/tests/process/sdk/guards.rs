//! What a guard promises, and what is left behind when its program ends.

use std::process::{Command, Stdio};
use std::time::Duration;

use futures::StreamExt as _;
use lowkey_client::api::EventType;
use lowkey_client::{Client, ErrorKind, LockGuard, LossCause, Session, SessionStatus};
use rustix::process::Signal;
use tokio::runtime::Runtime;

use crate::clients::in_time;
use crate::harness::{Cluster, eventually};

fn endpoints(cluster: &Cluster) -> Vec<String> {
    cluster.nodes.iter().map(|node| format!("http://127.0.0.1:{}", node.ports.grpc)).collect()
}

pub(super) async fn connect(cluster: &Cluster) -> Client {
    in_time("a connection", Client::connect(endpoints(cluster))).await.unwrap()
}

pub(super) async fn hold(cluster: &Cluster, name: &str, ttl_seconds: u64) -> (Session, LockGuard) {
    let client = connect(cluster).await;
    let session = in_time("a session", client.session(Duration::from_secs(ttl_seconds))).await.unwrap();
    let guard = in_time("a lock", session.lock(name).acquire()).await.unwrap();
    (session, guard)
}

/// Somebody who knows the lease asks by it.
async fn acquire_with(cluster: &Cluster, session: &Session, name: &str, request_id: &str) {
    let client = connect(cluster).await;
    let lease = in_time("the lease", client.get_lease(session.lease_id())).await.unwrap().lease.unwrap();
    let (lease_id, owner) = (lease.lease_id, lease.owner_id);
    let body = format!(
        r#"{{"lockName":"{name}","leaseId":"{lease_id}","ownerId":"{owner}","requestId":"{request_id}"}}"#
    );
    cluster.nodes[0].ok("POST", "/v1/lock/acquire", &body);
}

fn one_thread() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn work_that_was_delegated_ends_before_its_guard_is_released() {
    let cluster = Cluster::start(1);
    let (session, guard) = hold(&cluster, "a", 30).await;
    let delegated = guard.cancellation_token();
    assert!(!delegated.is_cancelled());
    drop(guard);
    assert!(delegated.is_cancelled(), "the work goes on after the guard was dropped");
    let guard = in_time("the lock", session.lock("a").acquire()).await.unwrap();
    let delegated = guard.cancellation_token();
    // The service does not hear of the release; the work has ended all the same.
    cluster.nodes[0].pause();
    let release = tokio::spawn(guard.release());
    in_time("the end of the work", delegated.cancelled()).await;
    assert!(!release.is_finished());
    cluster.nodes[0].signal(Signal::CONT);
    in_time("the release", release).await.unwrap().unwrap();
    assert_eq!(session.status(), SessionStatus::Held);
}

#[tokio::test(flavor = "multi_thread")]
async fn work_that_blocked_its_thread_past_the_validity_is_told_that_the_lock_is_lost() {
    let cluster = Cluster::start(1);
    let (_session, guard) = hold(&cluster, "a", 1).await;
    cluster.nodes[0].pause();
    let outcome = guard.run(async {
        while !guard.remaining().is_zero() {
            std::thread::sleep(Duration::from_millis(10));
        }
        "done"
    });
    assert_eq!(outcome.await.unwrap_err().cause, LossCause::Expired);
}

/// The runtime that made the client has one thread, and blocking work takes it for several times the life of a lease.
#[test]
fn leases_are_renewed_while_the_programs_own_runtime_is_blocked() {
    let cluster = Cluster::start(1);
    let runtime = one_thread();
    let (session, guard) = runtime.block_on(hold(&cluster, "a", 1));
    let token = guard.token();
    std::thread::sleep(Duration::from_secs(4));
    assert!(guard.is_held(), "{:?}", session.status());
    let holders = cluster.nodes[0].ok("GET", "/v1/lock?name=a", "")["holders"].clone();
    assert_eq!(holders[0]["fencingToken"], token.to_string());
    runtime.block_on(guard.release()).unwrap();
}

#[test]
fn a_loss_is_told_although_the_runtime_that_made_the_client_is_gone() {
    let cluster = Cluster::start(1);
    let runtime = one_thread();
    let (session, guard) = runtime.block_on(hold(&cluster, "a", 1));
    drop(runtime);
    let delegated = guard.cancellation_token();
    std::thread::sleep(Duration::from_secs(2));
    assert!(guard.is_held(), "it is renewed all the same: {:?}", session.status());
    cluster.nodes[0].pause();
    // Nobody looks at the guard.
    eventually("the end of the delegated work", || delegated.is_cancelled().then_some(()));
    let cause = one_thread().block_on(in_time("the loss", guard.lost()));
    assert_eq!(cause, LossCause::Expired);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_expired_is_revoked_when_it_is_closed_or_dropped() {
    let cluster = Cluster::start(1);
    // With the pause of the node, the leases live for many seconds more in the service.
    let (closed, first) = hold(&cluster, "closed", 6).await;
    let (dropped, second) = hold(&cluster, "dropped", 6).await;
    cluster.nodes[0].pause();
    assert_eq!(in_time("the loss", first.lost()).await, LossCause::Expired);
    assert_eq!(in_time("the loss", second.lost()).await, LossCause::Expired);
    cluster.nodes[0].signal(Signal::CONT);
    let client = connect(&cluster).await;
    assert_eq!(client.get("closed").await.unwrap().holders.len(), 1, "the service has not noticed");
    assert_eq!(client.get("dropped").await.unwrap().holders.len(), 1, "the service has not noticed");
    in_time("the end", closed.close()).await.unwrap();
    assert!(client.get("closed").await.unwrap().holders.is_empty(), "its own ghost");
    drop((dropped, second));
    let began = std::time::Instant::now();
    eventually("nobody holds it", || {
        let lock = cluster.nodes[0].ok("GET", "/v1/lock?name=dropped", "");
        lock["holders"].as_array().is_some_and(Vec::is_empty).then_some(())
    });
    assert!(began.elapsed() < Duration::from_secs(2), "it only ran out");
    drop(first);
}

/// A program of its own, which ends in the way that it is told.
#[test]
#[ignore = "a program for other tests"]
fn program_that_ends() {
    let endpoints = std::env::var("SDK_PROGRAM_ENDPOINTS").unwrap();
    let way = std::env::var("SDK_PROGRAM_ENDS").unwrap();
    // What #[tokio::main] is made of.
    let runtime = Runtime::new().unwrap();
    runtime.block_on(async {
        let client = Client::connect(endpoints.split(',')).await.unwrap();
        let session = client.session(Duration::from_secs(30)).await.unwrap();
        let guard = session.lock("a").acquire().await.unwrap();
        match way.as_str() {
            "with its guard dropped" => drop(guard),
            "with everything in scope" => {}
            "with its guard in a task" => {
                tokio::spawn(async move {
                    let _guards = (guard, client);
                    std::future::pending::<()>().await;
                });
                drop(session);
            }
            "with a thousand guards" => {
                let others = futures::future::join_all((0..1000).map(|number| {
                    let session = session.clone();
                    async move { session.lock(format!("many/{number}")).acquire().await.unwrap() }
                }));
                drop((guard, others.await));
            }
            _ => panic!("{way}?"),
        }
    });
    drop(runtime);
    std::process::exit(0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_ends_leaves_no_lock_behind() {
    let cluster = Cluster::start(1);
    let client = connect(&cluster).await;
    let session = client.session(Duration::from_secs(10)).await.unwrap();
    for way in [
        "with its guard dropped",
        "with everything in scope",
        "with its guard in a task",
        "with a thousand guards",
    ] {
        let ended = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "sdk::guards::program_that_ends", "--ignored", "--nocapture"])
            .env("SDK_PROGRAM_ENDPOINTS", endpoints(&cluster).join(","))
            .env("SDK_PROGRAM_ENDS", way)
            .stdout(Stdio::null())
            .status()
            .unwrap();
        assert!(ended.success(), "{way}: {ended}");
        let guard = session.lock("a").try_acquire().await;
        let guard = guard.unwrap_or_else(|busy| panic!("a program that ended {way} left this: {busy}"));
        guard.release().await.unwrap();
    }
    let left = client.locks("many/").await.unwrap().0;
    assert!(left.is_empty(), "{} locks are left", left.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_was_closed_holds_nothing_and_the_service_knows() {
    let cluster = Cluster::start(1);
    let client = connect(&cluster).await;
    let one = client.session(Duration::from_secs(30)).await.unwrap();
    let other = client.session(Duration::from_secs(30)).await.unwrap();
    let kept = one.lock("kept").acquire().await.unwrap();
    drop(other.lock("dropped").acquire().await.unwrap());
    let delegated = kept.cancellation_token();
    in_time("the end", client.close()).await.unwrap();
    assert!(!kept.is_held() && delegated.is_cancelled());
    assert_eq!(one.status(), SessionStatus::Lost(LossCause::Closed));
    let stats = cluster.nodes[0].status().unwrap()["stats"].clone();
    assert_eq!((&stats["leases"], &stats["locks"]), (&0.into(), &0.into()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_guard_that_was_dropped_is_not_met_again_by_its_own_session() {
    let cluster = Cluster::start(3);
    let (session, mut guard) = hold(&cluster, "a", 30).await;
    for _ in 0..50 {
        let before = guard.token();
        drop(guard);
        guard = session.lock("a").try_acquire().await.unwrap();
        assert!(guard.token() > before);
    }
    // One that is held is met at once, and says so.
    let busy = session.lock("a").try_acquire().await.unwrap_err();
    assert_eq!(busy.held_by().unwrap().fencing_token, guard.token());
}

#[tokio::test(flavor = "multi_thread")]
async fn shared_guards_of_one_session_share_one_grant_until_the_last_is_gone() {
    let cluster = Cluster::start(1);
    let (session, elsewhere) = hold(&cluster, "elsewhere", 30).await;
    let tried = async || session.lock("a").shared().try_acquire().await.unwrap();
    // Also if they ask at the same time.
    let (first, second) = tokio::join!(tried(), tried());
    let third = tried().await;
    assert_eq!((first.token(), second.token()), (third.token(), third.token()));
    let other = connect(&cluster).await.session(Duration::from_secs(30)).await.unwrap();
    let delegated = [first.cancellation_token(), second.cancellation_token()];
    in_time("the first release", first.release()).await.unwrap();
    drop(third);
    assert!(delegated[0].is_cancelled() && !delegated[1].is_cancelled() && second.is_held());
    assert!(other.lock("a").try_acquire().await.unwrap_err().is_busy());
    in_time("the last release", second.release()).await.unwrap();
    drop(in_time("the lock", other.lock("a").try_acquire()).await.unwrap());
    drop(elsewhere);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_is_given_up_while_it_is_made_leaves_no_lease() {
    let cluster = Cluster::start(1);
    let client = connect(&cluster).await;
    for micros in (0..5000).step_by(100) {
        let given_up = client.session(Duration::from_secs(600));
        drop(tokio::time::timeout(Duration::from_micros(micros), given_up).await);
    }
    cluster.nodes[0].pause();
    let given_up = tokio::time::timeout(Duration::from_millis(20), client.session(Duration::from_secs(600)));
    assert!(given_up.await.is_err());
    cluster.nodes[0].signal(Signal::CONT);
    eventually("no lease", || (cluster.nodes[0].status()?["stats"]["leases"] == 0).then_some(()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_may_take_for_ever() {
    let cluster = Cluster::start(1);
    let builder =
        Client::builder(endpoints(&cluster)).call_timeout(Duration::MAX).connect_timeout(Duration::MAX);
    let client = in_time("a connection", builder.connect()).await.unwrap();
    let session = in_time("a session", client.session(Duration::from_secs(10))).await.unwrap();
    let guard = in_time("a lock", session.lock("a").wait(Duration::MAX)).await.unwrap();
    assert!(in_time("its state", client.locks("")).await.unwrap().0.len() == 1);
    let detached = client.detached("b", Duration::from_secs(10));
    let detached = in_time("another", detached.wait(Duration::MAX)).await.unwrap();
    in_time("a renewal", client.renew_lease(detached.lease_id)).await.unwrap();
    in_time("the release", guard.release()).await.unwrap();
    in_time("the end", session.close()).await.unwrap();
    in_time("the end", client.close()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watch_begins_when_it_is_made() {
    let cluster = Cluster::start(3);
    let client = connect(&cluster).await;
    let session = client.session(Duration::from_secs(30)).await.unwrap();
    for round in 0..20 {
        let name = format!("w/{round}");
        let mut watch = client.watch(&name);
        // Nobody reads it yet.
        let guard = in_time("the lock", session.lock(&name).try_acquire()).await.unwrap();
        let event = in_time("its event", watch.next()).await.unwrap().unwrap();
        assert_eq!((event.r#type(), event.fencing_token), (EventType::Acquired, guard.token()));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_is_told_its_cluster_refuses_every_other() {
    let (one, other) = (Cluster::start(1), Cluster::start(1));
    let cluster_id = connect(&one).await.cluster_id();
    let all = [endpoints(&other), endpoints(&one)].concat();
    let client =
        in_time("a connection", Client::builder(all).cluster_id(&cluster_id).connect()).await.unwrap();
    assert_eq!(client.cluster_id(), cluster_id);
    let began = std::time::Instant::now();
    let builder = Client::builder(endpoints(&other)).cluster_id(&cluster_id);
    let refused = in_time("a refusal", builder.connect()).await.unwrap_err();
    assert!(matches!(refused.kind(), ErrorKind::WrongCluster { .. }), "{refused}");
    assert!(began.elapsed() < Duration::from_secs(5), "time does not make it another cluster");
}

#[tokio::test(flavor = "multi_thread")]
async fn leases_can_be_looked_at_and_ended_from_elsewhere() {
    let cluster = Cluster::start(1);
    let (session, guard) = hold(&cluster, "a", 3).await;
    let client = connect(&cluster).await;
    let found = in_time("the lease", client.get_lease(session.lease_id())).await.unwrap();
    let lease = found.lease.unwrap();
    assert_eq!((lease.ttl_seconds, lease.grant_count), (3, 1));
    assert!(lease.remaining().is_some_and(|left| left <= Duration::from_secs(3)), "{lease:?}");
    assert_eq!((found.grants[0].lock_name.as_str(), found.grants[0].fencing_token), ("a", guard.token()));
    let mine = in_time("the leases", client.list_leases_of(&lease.owner_id)).await.unwrap();
    assert_eq!(mine.iter().map(|lease| lease.lease_id).collect::<Vec<_>>(), [session.lease_id()]);
    assert_eq!(in_time("all leases", client.list_leases()).await.unwrap().len(), 1);
    assert!(client.get("a").await.unwrap().holders[0].remaining().is_some());
    in_time("its end", client.revoke_lease(session.lease_id(), lease.owner_id)).await.unwrap();
    assert_eq!(in_time("the loss", guard.lost()).await, LossCause::Gone);
    // More than fit on a page.
    let many = client.session(Duration::from_secs(30)).await.unwrap();
    let guards = (0..1500).map(|number| {
        let many = many.clone();
        async move { many.lock(format!("many/{number}")).acquire().await.unwrap() }
    });
    let guards: Vec<LockGuard> = futures::stream::iter(guards).buffer_unordered(50).collect().await;
    let found = in_time("the lease", client.get_lease(many.lease_id())).await.unwrap();
    let mut tokens: Vec<u64> = found.grants.iter().map(|grant| grant.fencing_token).collect();
    let mut held: Vec<u64> = guards.iter().map(LockGuard::token).collect();
    tokens.sort_unstable();
    held.sort_unstable();
    assert_eq!(tokens, held);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_somebody_else_released_is_lost_within_one_renewal() {
    let cluster = Cluster::start(3);
    let (session, guard) = hold(&cluster, "a", 6).await;
    let other = in_time("another lock", session.lock("b").acquire()).await.unwrap();
    let delegated = guard.cancellation_token();
    let elsewhere = connect(&cluster).await;
    in_time("the release", elsewhere.release_lock("a", guard.lease_id(), guard.token())).await.unwrap();
    let began = std::time::Instant::now();
    let lost = in_time("the loss", guard.run(std::future::pending::<()>())).await.unwrap_err();
    println!("told after {:?}", began.elapsed());
    assert_eq!(lost.cause, LossCause::ReleasedElsewhere);
    assert!(began.elapsed() < Duration::from_secs(4), "more than one renewal: {:?}", began.elapsed());
    assert!(!guard.is_held() && guard.remaining().is_zero() && delegated.is_cancelled());
    // The session goes on, and so does what else it holds; the name can be had anew.
    assert!(other.is_held() && session.status() == SessionStatus::Held);
    let again = in_time("the lock", session.lock("a").try_acquire()).await.unwrap();
    assert!(again.token() > guard.token());
    let told = in_time("a release that comes too late", guard.release()).await.unwrap_err();
    assert_eq!(told.reason(), Some(lowkey_api::Reason::StaleToken));
    assert!(again.is_held());
    in_time("the release", again.release()).await.unwrap();
}

/// With a TTL of ten minutes the first renewal comes after 200 s: what is known in time was pushed.
#[tokio::test(flavor = "multi_thread")]
async fn a_release_or_revocation_by_somebody_else_is_told_on_the_stream_at_once() {
    let cluster = Cluster::start(3);
    let elsewhere = connect(&cluster).await;
    // Also where the holder's stream begins at a follower.
    for endpoint in endpoints(&cluster) {
        let client = in_time("a connection", Client::connect([endpoint])).await.unwrap();
        let session = in_time("a session", client.session(Duration::from_secs(600))).await.unwrap();
        let [released, revoked] = ["released", "revoked"].map(|name| session.lock(name));
        let released = in_time("a lock", released.acquire()).await.unwrap();
        let revoked = in_time("a lock", revoked.acquire()).await.unwrap();
        let release = elsewhere.release_lock("released", released.lease_id(), released.token());
        in_time("the release", release).await.unwrap();
        let lost = in_time("the loss", released.run(std::future::pending::<()>())).await.unwrap_err();
        assert_eq!(lost.cause, LossCause::ReleasedElsewhere);
        assert!(revoked.is_held());
        let revocation = elsewhere.revoke_lease(session.lease_id(), client.owner());
        in_time("the revocation", revocation).await.unwrap();
        let lost = in_time("the loss", revoked.run(std::future::pending::<()>())).await.unwrap_err();
        assert_eq!((lost.cause, session.status()), (LossCause::Gone, SessionStatus::Lost(LossCause::Gone)));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_or_revocation_over_http_by_nobody_in_particular_is_told_at_once_too() {
    let cluster = Cluster::start(3);
    let leader = cluster.wait_leader(None);
    let endpoint = format!("http://127.0.0.1:{}", cluster.nodes[leader].ports.grpc);
    let client = in_time("a connection", Client::connect([endpoint])).await.unwrap();
    for node in &cluster.nodes {
        let session = in_time("a session", client.session(Duration::from_secs(600))).await.unwrap();
        let [released, revoked] = ["released", "revoked"].map(|name| session.lock(name));
        let released = in_time("a lock", released.acquire()).await.unwrap();
        let revoked = in_time("a lock", revoked.acquire()).await.unwrap();
        let (lease_id, token, owner) = (released.lease_id(), released.token(), client.owner());
        let body = format!(r#"{{"lockName":"released","leaseId":"{lease_id}","fencingToken":"{token}"}}"#);
        node.ok("POST", "/v1/lock/release", &body);
        let lost = in_time("the loss", released.run(std::future::pending::<()>())).await.unwrap_err();
        assert_eq!(lost.cause, LossCause::ReleasedElsewhere);
        assert!(revoked.is_held());
        let body = format!(r#"{{"leaseId":"{lease_id}","ownerId":"{owner}"}}"#);
        node.ok("POST", "/v1/lease/revoke", &body);
        let lost = in_time("the loss", revoked.run(std::future::pending::<()>())).await.unwrap_err();
        assert_eq!(lost.cause, LossCause::Gone);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_comes_and_goes_while_leases_are_compared_is_never_taken_for_lost() {
    let cluster = Cluster::start(1);
    let (session, kept) = hold(&cluster, "kept", 1).await;
    // Somebody else was given the lease, as a child of `lowkey run` is.
    acquire_with(&cluster, &session, "childs", "of a child").await;
    let until = std::time::Instant::now() + Duration::from_secs(4);
    let tasks = (0..16).map(|number| {
        let session = session.clone();
        tokio::spawn(async move {
            while std::time::Instant::now() < until {
                let guard = session.lock(format!("busy/{number}")).try_acquire().await.unwrap();
                tokio::task::yield_now().await;
                assert!(guard.is_held());
                guard.release().await.unwrap();
            }
        })
    });
    for task in tasks.collect::<Vec<_>>() {
        in_time("a task", task).await.unwrap();
    }
    assert!(kept.is_held());
    let client = connect(&cluster).await;
    let lease = in_time("the lease", client.get_lease(session.lease_id())).await.unwrap();
    let names: Vec<&str> = lease.grants.iter().map(|grant| grant.lock_name.as_str()).collect();
    assert_eq!(names, ["childs", "kept"]);
}

/// The service has forgotten that the acquire was given up when a copy of it arrives.
#[tokio::test(flavor = "multi_thread")]
async fn a_grant_to_an_acquire_that_was_given_up_long_ago_is_found_and_released() {
    let cluster = Cluster::start(1);
    let (_session, guard) = hold(&cluster, "a", 30).await;
    let client = connect(&cluster).await;
    let session = client.session(Duration::from_secs(3)).await.unwrap();
    let lock = session.lock("a");
    let waiting = tokio::time::timeout(Duration::from_millis(300), lock.acquire());
    let seen = async {
        loop {
            let lease = client.get_lease(session.lease_id()).await.unwrap();
            if let Some(wait) = lease.waits.first() {
                return wait.acquire_request_id.clone();
            }
        }
    };
    let (given_up, request_id) = tokio::join!(waiting, seen);
    assert!(given_up.is_err());
    // More than the service remembers of one lease.
    for _ in 0..300 {
        session.lock("b").try_acquire().await.unwrap().release().await.unwrap();
    }
    acquire_with(&cluster, &session, "orphan", &request_id).await;
    eventually("the orphan is released", || {
        let lock = cluster.nodes[0].ok("GET", "/v1/lock?name=orphan", "");
        lock["holders"].as_array().is_some_and(Vec::is_empty).then_some(())
    });
    assert_eq!(session.status(), SessionStatus::Held);
    drop(guard);
}

#[test]
fn a_guard_that_is_dropped_after_its_runtime_is_released_all_the_same() {
    let cluster = Cluster::start(1);
    let runtime = one_thread();
    let (session, guard) = runtime.block_on(hold(&cluster, "a", 30));
    drop(runtime);
    drop(guard);
    eventually("the release", || {
        let lock = cluster.nodes[0].ok("GET", "/v1/lock?name=a", "");
        lock["holders"].as_array().is_some_and(Vec::is_empty).then_some(())
    });
    drop(session);
    eventually("no lease", || (cluster.nodes[0].status()?["stats"]["leases"] == 0).then_some(()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_is_dropped_while_no_node_answers_does_not_hold_up_its_program() {
    let cluster = Cluster::start(1);
    let (session, guard) = hold(&cluster, "a", 30).await;
    cluster.nodes[0].pause();
    let began = std::time::Instant::now();
    drop((session, guard));
    println!("dropped within {:?}", began.elapsed());
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    // It is told all the same, since the program lives on.
    cluster.nodes[0].signal(Signal::CONT);
    eventually("no lease", || (cluster.nodes[0].status()?["stats"]["leases"] == 0).then_some(()));
}

/// Threads of clients in this process.
fn client_threads() -> usize {
    let names = std::fs::read_dir("/proc/self/task")
        .unwrap()
        .filter_map(|thread| std::fs::read_to_string(thread.ok()?.path().join("comm")).ok());
    names.filter(|name| name.trim() == "lowkey-client").count()
}

/// A program of its own, since it counts its threads.
#[test]
#[ignore = "a program for other tests"]
fn program_that_makes_many_clients() {
    let endpoint = std::env::var("SDK_PROGRAM_ENDPOINTS").unwrap();
    let endpoint = endpoint.split(',').next().unwrap();
    let runtime = Runtime::new().unwrap();
    runtime.block_on(async {
        let mut kept = Vec::new();
        for number in 0..20 {
            let client = Client::connect([endpoint]).await.unwrap();
            let session = client.session(Duration::from_secs(30)).await.unwrap();
            let guard = session.lock(format!("of/{number}")).acquire().await.unwrap();
            // Whoever only watches keeps the client, too.
            kept.push((guard, client.watch("of/0"), client.observe("of/1")));
        }
        assert_eq!(client_threads(), 20);
        drop(kept);
        // Those that never come about, or are given up.
        let nobody = Client::builder(["http://127.0.0.1:1"]).connect_timeout(Duration::from_millis(50));
        nobody.connect().await.unwrap_err();
        drop(tokio::time::timeout(Duration::from_millis(1), Client::connect(["http://127.0.0.1:1"])).await);
    });
    eventually("all threads have ended", || (client_threads() == 0).then_some(()));
}

#[test]
fn the_thread_of_a_client_ends_with_it() {
    let cluster = Cluster::start(1);
    let ended = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "sdk::guards::program_that_makes_many_clients", "--ignored", "--nocapture"])
        .env("SDK_PROGRAM_ENDPOINTS", endpoints(&cluster).join(","))
        .stdout(Stdio::null())
        .status()
        .unwrap();
    assert!(ended.success(), "{ended}");
    eventually("no lease", || (cluster.nodes[0].status()?["stats"]["leases"] == 0).then_some(()));
}
