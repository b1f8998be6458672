//! The SDK against real nodes: what a program that uses it lives through.

mod conveniences;
mod crowds;
mod guards;
mod limits;

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use lowkey_client::{Client, LossCause, SessionStatus};
use rustix::process::{Pid, Signal, kill_process};

use crate::clients::in_time;
use crate::harness::{Cluster, Node, Ports, eventually, rounds};

fn endpoints(cluster: &Cluster) -> Vec<String> {
    cluster.nodes.iter().map(|node| format!("http://127.0.0.1:{}", node.ports.grpc)).collect()
}

async fn connect(cluster: &Cluster) -> Client {
    in_time("a connection", Client::connect(endpoints(cluster))).await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_lives_through_kills_of_the_leader() {
    let mut cluster = Cluster::start(3);
    let client = connect(&cluster).await;
    let session = client.session(Duration::from_secs(3)).await.unwrap();
    let guard = session.lock("held/for/long").acquire().await.unwrap();
    let token = guard.token();
    for round in 0..rounds("LOWKEY_SDK_KILLS", 3) {
        let leader = cluster.wait_whole();
        cluster.nodes[leader].kill();
        // Meanwhile others come and go.
        let other = in_time("another lock", session.lock(format!("other-{round}")).acquire()).await.unwrap();
        assert!(other.token() > token);
        in_time("its release", other.release()).await.unwrap();
        cluster.nodes[leader].start_ready();
        cluster.wait_whole();
        assert!(guard.is_held(), "lost after {round} kills: {:?}", session.status());
    }
    assert_eq!(session.status(), SessionStatus::Held);
    let check = in_time("a check", client.check_token("held/for/long", token)).await.unwrap();
    assert!(check.current);
    in_time("the release", guard.release()).await.unwrap();
}

/// Its connections stay open, and nothing comes back: only silence tells.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_lives_through_a_leader_that_stands_still() {
    let cluster = Cluster::start(3);
    let client = connect(&cluster).await;
    let session = client.session(Duration::from_secs(3)).await.unwrap();
    let guard = session.lock("held/for/long").acquire().await.unwrap();
    for round in 0..rounds("LOWKEY_SDK_PAUSES", 2) {
        let leader = cluster.wait_whole();
        cluster.nodes[leader].pause();
        // Longer than the lease would live by itself: another one has come and gone since.
        let brief = client.clone().detached(format!("brief-{round}"), Duration::from_secs(3));
        in_time("another lock", brief.acquire()).await.unwrap();
        in_time("its end", brief.acquire()).await.unwrap();
        assert!(guard.is_held(), "lost after {round} pauses: {:?}", session.status());
        cluster.nodes[leader].signal(Signal::CONT);
    }
    assert_eq!(session.status(), SessionStatus::Held);
    in_time("the release", guard.release()).await.unwrap();
}

/// What others reach a node through, until it is shut.
struct Door {
    port: u16,
    is_open: tokio::sync::watch::Sender<bool>,
}

impl Door {
    async fn to(port: u16) -> Self {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let door = Self {
            port: listener.local_addr().unwrap().port(),
            is_open: tokio::sync::watch::Sender::new(true),
        };
        let is_open = door.is_open.subscribe();
        tokio::spawn(async move {
            while let Ok((mut visitor, _)) = listener.accept().await {
                let mut is_open = is_open.clone();
                tokio::spawn(async move {
                    let Ok(mut host) = tokio::net::TcpStream::connect(("127.0.0.1", port)).await else {
                        return;
                    };
                    tokio::select! {
                        _ = is_open.wait_for(|is_open| !*is_open) => {}
                        _ = tokio::io::copy_bidirectional(&mut visitor, &mut host) => {}
                    }
                });
            }
        });
        door
    }
}

/// It can be reached, and answers; but it hears nothing of the others, who have a leader.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_without_a_leader_is_left_for_one_that_has_one() {
    let folder = tempfile::tempdir().unwrap();
    let mut founder = Node::new(folder.path(), "n1", &["--bootstrap"]);
    founder.start_ready();
    let join = format!("127.0.0.1:{}", founder.ports.grpc);
    let mut second = Node::new(folder.path(), "n2", &["--join", &join]);
    second.start_ready();
    let ports = Ports::free();
    let door = Door::to(ports.raft).await;
    let advertised = format!("127.0.0.1:{}", door.port);
    let mut third = Node::new(folder.path(), "n3", &["--join", &join, "--advertise-raft-addr", &advertised]);
    third.ports = ports;
    third.start_ready();
    eventually("all vote", || (third.status()?["clusterSize"] == 3).then_some(()));
    let endpoint = |node: &Node| format!("http://127.0.0.1:{}", node.ports.grpc);

    door.is_open.send_replace(false);
    eventually("the third has no leader", || (third.status()?["leaderAddress"] == "").then_some(()));
    // Whoever comes to it is sent on, since others do better.
    let all = [endpoint(&third), endpoint(&founder), endpoint(&second)];
    let client = in_time("a connection", Client::connect(all)).await.unwrap();
    assert_ne!(client.endpoint(), endpoint(&third));
    in_time("an answer", client.get("a")).await.unwrap();

    // Whoever is there already leaves it.
    door.is_open.send_replace(true);
    eventually("the third has a leader", || (third.status()?["leaderAddress"] != "").then_some(()));
    founder.signal(Signal::STOP);
    second.signal(Signal::STOP);
    let client = in_time("a connection", Client::connect([endpoint(&third)])).await.unwrap();
    assert_eq!(client.endpoint(), endpoint(&third));
    door.is_open.send_replace(false);
    eventually("the third has no leader", || (third.status()?["leaderAddress"] == "").then_some(()));
    founder.signal(Signal::CONT);
    second.signal(Signal::CONT);
    let session = in_time("a session", client.session(Duration::from_secs(10))).await.unwrap();
    assert_ne!(client.endpoint(), endpoint(&third));
    in_time("its end", session.close()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_too_large_is_refused_and_harms_nothing_else() {
    let cluster = Cluster::start(1);
    let client = connect(&cluster).await;
    let session = client.session(Duration::from_secs(5)).await.unwrap();
    let guard = session.lock("a").acquire().await.unwrap();
    for length in [5_000, 60_000, 70_000, 10_000_000] {
        let value = "x".repeat(length);
        let refused = session.lock("b").value(value.clone()).try_acquire().await.unwrap_err();
        assert!(!refused.is_retryable() && !refused.outcome_unknown(), "{length}: {refused}");
        let refused = client.detached(value, Duration::from_secs(5)).try_acquire().await.unwrap_err();
        assert!(!refused.is_retryable() && !refused.outcome_unknown(), "{length}: {refused}");
    }
    assert!(guard.is_held());
    in_time("the release", guard.release()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_release_says_that_the_lock_was_not_held_any_more() {
    let cluster = Cluster::start(1);
    let client = connect(&cluster).await;
    let session = client.session(Duration::from_secs(5)).await.unwrap();
    let guard = session.lock("a").acquire().await.unwrap();
    in_time("a release by its numbers", client.release_lock("a", guard.lease_id(), guard.token()))
        .await
        .unwrap();
    let told = in_time("the release", guard.release()).await.unwrap_err();
    assert_eq!(told.reason(), Some(lowkey_api::Reason::LockNotFound));
    // Of a session that was closed on purpose nobody expects that it still holds something.
    let guard = session.lock("a").acquire().await.unwrap();
    in_time("the end", session.close()).await.unwrap();
    in_time("the release", guard.release()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_nobody_waits_for_is_done_all_the_same() {
    let mut cluster = Cluster::start(1);
    let client = connect(&cluster).await;
    let holder = client.session(Duration::from_secs(30)).await.unwrap();
    let (one, other) = (holder.lock("a").acquire().await.unwrap(), holder.lock("b").acquire().await.unwrap());
    let closing = client.session(Duration::from_secs(600)).await.unwrap();
    let third = closing.lock("c").acquire().await.unwrap();
    cluster.nodes[0].kill();
    // Whoever waits for these gives up; the locks are free as soon as there is somebody to tell.
    let brief = Duration::from_millis(50);
    assert!(tokio::time::timeout(brief, one.release()).await.is_err());
    assert!(tokio::time::timeout(brief, closing.close()).await.is_err());
    drop(other);
    cluster.nodes[0].start_ready();
    for lock in ["a", "b", "c"] {
        let taken = in_time(lock, client.detached(lock, Duration::from_secs(5)).acquire()).await;
        taken.unwrap();
    }
    drop(third);
    assert_eq!(holder.status(), SessionStatus::Held);
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_waits_for_another_task_is_told_when_the_session_is_lost() {
    let cluster = Cluster::start(1);
    let client = connect(&cluster).await;
    let session = client.session(Duration::from_secs(2)).await.unwrap();
    let guard = session.lock("a").acquire().await.unwrap();
    let waiting = tokio::spawn({
        let session = session.clone();
        async move { session.lock("a").acquire().await.map(|_| ()) }
    });
    cluster.nodes[0].pause();
    // The name is not free before the release is certain, which it never is.
    drop(guard);
    let told = in_time("the loss", waiting).await.unwrap().unwrap_err();
    assert!(matches!(told.kind(), lowkey_client::ErrorKind::SessionLost(LossCause::Expired)), "{told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_no_node_answers_is_lost_by_its_own_clock() {
    let cluster = Cluster::start(1);
    let client = connect(&cluster).await;
    let started = Instant::now();
    let session = client.session(Duration::from_secs(2)).await.unwrap();
    let guard = session.lock("a").acquire().await.unwrap();
    let mut status = session.watch_status();
    cluster.nodes[0].pause();
    let work = guard.run(std::future::pending::<()>());
    let lost = in_time("the loss", work).await.unwrap_err();
    let held_for = started.elapsed();
    println!("lost after {held_for:?} of silence");
    assert_eq!(lost.cause, LossCause::Expired);
    // The node was asked for a lease after `started`, and no renewal can have counted for more.
    assert!(held_for < Duration::from_millis(1800 + 1500), "lost only after {held_for:?}");
    assert!(!guard.is_held());
    assert_eq!(*status.borrow_and_update(), SessionStatus::Lost(LossCause::Expired));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_is_revoked_elsewhere_is_told() {
    let cluster = Cluster::start(1);
    let client = connect(&cluster).await;
    let session = client.session(Duration::from_secs(5)).await.unwrap();
    let guard = session.lock("a").acquire().await.unwrap();
    let body = format!(r#"{{"leaseId":"{}","ownerId":"{}"}}"#, session.lease_id(), client.owner());
    cluster.nodes[0].ok("POST", "/v1/lease/revoke", &body);
    assert_eq!(in_time("the loss", guard.lost()).await, LossCause::Gone);
    let refused = session.lock("b").try_acquire().await.unwrap_err();
    assert!(!refused.is_retryable(), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn tasks_of_one_session_wait_for_each_other() {
    let cluster = Cluster::start(1);
    let client = connect(&cluster).await;
    let session = client.session(Duration::from_secs(10)).await.unwrap();
    let inside = Arc::new(tokio::sync::Mutex::new(()));
    let mut tasks = Vec::new();
    for _ in 0..20 {
        let (session, inside) = (session.clone(), Arc::clone(&inside));
        tasks.push(tokio::spawn(async move {
            let guard = session.lock("one").acquire().await.unwrap();
            let _alone = inside.try_lock().expect("two tasks of a session are in at the same time");
            tokio::task::yield_now().await;
            let token = guard.token();
            // Some release, some just drop.
            if token % 2 == 0 {
                guard.release().await.unwrap();
            }
            token
        }));
    }
    let mut tokens = Vec::new();
    for task in tasks {
        tokens.push(in_time("a task", task).await.unwrap());
    }
    tokens.sort_unstable();
    tokens.dedup();
    assert_eq!(tokens.len(), 20, "two guards shared one grant");
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_gives_up_leaves_nothing_behind() {
    let cluster = Cluster::start(3);
    let client = connect(&cluster).await;
    let holder = client.session(Duration::from_secs(20)).await.unwrap();
    let other = client.session(Duration::from_secs(20)).await.unwrap();
    let guard = holder.lock("a").acquire().await.unwrap();
    let refused = other.lock("a").try_acquire().await.unwrap_err();
    assert_eq!(refused.held_by().unwrap().fencing_token, guard.token());
    // A wait that is dropped, and one that times out.
    let dropped = tokio::time::timeout(Duration::from_millis(300), other.lock("a").acquire()).await;
    assert!(dropped.is_err());
    assert!(other.lock("a").wait(Duration::from_millis(50)).await.unwrap_err().is_busy());
    eventually("an empty queue", || {
        let lock = cluster.nodes[0].http("GET", "/v1/lock?name=a", "")?.1;
        lock.contains(r#""waiterCount":0"#).then_some(())
    });
    guard.release().await.unwrap();
    let guard = in_time("the lock", other.lock("a").acquire()).await.unwrap();
    drop(guard);
    drop((holder, other));
    eventually("no leases", || {
        let status = cluster.nodes[0].status()?;
        (status["stats"]["leases"] == 0 && status["stats"]["locks"] == 0).then_some(())
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn watches_and_observers_go_on_after_their_node_is_killed() {
    let mut cluster = Cluster::start(3);
    let client = connect(&cluster).await;
    let (_, from) = client.locks("w/").await.unwrap();
    let mut watch = client.watch_prefix("w/").from(from);
    let mut observer = client.observe("w/election");
    assert_eq!(in_time("the present", observer.next()).await.unwrap().unwrap().leader, None);
    let session = client.session(Duration::from_secs(5)).await.unwrap();
    let mut tokens = Vec::new();
    for round in 0..3 {
        let leader = cluster.wait_whole();
        cluster.nodes[leader].kill();
        let guard = in_time("a lock", session.lock(format!("w/{round}")).acquire()).await.unwrap();
        tokens.push(guard.token());
        in_time("its release", guard.release()).await.unwrap();
        cluster.nodes[leader].start_ready();
    }
    let mut seen = Vec::new();
    while seen.len() < tokens.len() {
        let event = in_time("an event", watch.next()).await.unwrap().unwrap();
        if event.r#type() == lowkey_client::api::EventType::Acquired {
            seen.push(event.fencing_token);
        }
    }
    assert_eq!(seen, tokens);
    let leadership = session.election("w/election").campaign("here").await.unwrap();
    let told = in_time("the leader", observer.next()).await.unwrap().unwrap();
    assert_eq!(told.leader.unwrap().value, "here");
    leadership.proclaim("there").await.unwrap();
    assert_eq!(in_time("the value", observer.next()).await.unwrap().unwrap().leader.unwrap().value, "there");
    leadership.resign().await.unwrap();
    assert_eq!(in_time("nobody", observer.next()).await.unwrap().unwrap().leader, None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_of_another_cluster_is_refused() {
    let (mut one, other) = (Cluster::start(1), Cluster::start(1));
    let endpoints = [endpoints(&one), endpoints(&other)].concat();
    let builder = Client::builder(endpoints).call_timeout(Duration::from_secs(2));
    let client = in_time("a connection", builder.connect()).await.unwrap();
    let cluster_id = client.cluster_id();
    one.nodes[0].kill();
    let refused = client.session(Duration::from_secs(5)).await.unwrap_err();
    assert!(refused.to_string().contains(&cluster_id), "{refused}");
}

/// A program of its own, which the tests below pause: it holds a lock, and writes with its token whatever it is told.
#[test]
#[ignore = "a program for other tests"]
fn program_that_holds_a_lock() {
    let endpoints = std::env::var("SDK_PROGRAM_ENDPOINTS").unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let client = Client::connect(endpoints.split(',')).await.unwrap();
        let session = client.session(Duration::from_secs(1)).await.unwrap();
        let guard = session.lock("paused").acquire().await.unwrap();
        println!("token {}", guard.token());
        let mut uses_after_its_time = 0;
        // As fast as it can, so that the first thing after a pause is a use.
        let lost = guard
            .run(async {
                loop {
                    if guard.remaining().is_zero() {
                        uses_after_its_time += 1;
                    }
                    tokio::task::yield_now().await;
                }
            })
            .await
            .map(|never: std::convert::Infallible| match never {})
            .unwrap_err();
        println!("lost {:?} used {uses_after_its_time} times after its time", lost.cause);
        std::io::stdout().flush().unwrap();
    });
}

fn start_program(cluster: &Cluster) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "sdk::program_that_holds_a_lock", "--ignored", "--nocapture"])
        .env("SDK_PROGRAM_ENDPOINTS", endpoints(cluster).join(","))
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_program_that_was_paused_for_too_long_knows_before_it_does_anything() {
    let cluster = Cluster::start(3);
    let client = connect(&cluster).await;
    let session = client.session(Duration::from_secs(10)).await.unwrap();
    let mut program = start_program(&cluster);
    let mut lines = BufReader::new(program.stdout.take().unwrap()).lines();
    let mut line_with = |word: &str| loop {
        let line = lines.next().expect("the program says more").unwrap();
        if let Some(rest) = line.split_once(word).map(|(_, rest)| rest.to_owned()) {
            return rest;
        }
    };
    let old: u64 = line_with("token ").trim().parse().unwrap();
    let pid = Pid::from_child(&program);
    kill_process(pid, Signal::STOP).unwrap();
    // Its lease runs out; somebody else has the lock, and writes.
    let guard = in_time("the lock", session.lock("paused").acquire()).await.unwrap();
    let mut highest = guard.token();
    assert!(highest > old);
    kill_process(pid, Signal::CONT).unwrap();
    let told = line_with("lost ");
    assert!(told.starts_with("Expired"), "{told}");
    // One use at most: the one that was under way when the pause struck. That one only a token can stop.
    assert!(
        told.contains("used 0 times") || told.contains("used 1 times"),
        "it went on after its time: {told}"
    );
    // A write that it had sent before the pause arrives now, and is refused.
    let accepted = old >= highest;
    highest = highest.max(old);
    assert!(!accepted && highest == guard.token());
    program.wait().unwrap();
}

/// CPU time that this process has used so far.
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn many_sessions_on_one_connection_are_all_kept() {
    let cluster = Cluster::start(1);
    let client = connect(&cluster).await;
    let count = rounds("LOWKEY_SDK_SESSIONS", 500);
    let mut sessions = Vec::new();
    let made =
        futures::stream::iter(0..count).map(|_| client.session(Duration::from_secs(10))).buffer_unordered(64);
    let mut made = std::pin::pin!(made);
    while let Some(session) = made.next().await {
        sessions.push(session.unwrap());
    }
    let seconds = if count > 1000 { 20 } else { 12 };
    let (before, started) = (cpu_time(), Instant::now());
    tokio::time::sleep(Duration::from_secs(seconds)).await;
    let share = (cpu_time() - before).as_secs_f64() / started.elapsed().as_secs_f64();
    println!("{count} sessions kept for {seconds} s: {:.1} % of a core", share * 100.0);
    let lost = sessions.iter().filter(|session| session.status() != SessionStatus::Held).count();
    assert_eq!(lost, 0, "sessions were lost, or are in jeopardy");
    client.clone().status().await.unwrap();
}
