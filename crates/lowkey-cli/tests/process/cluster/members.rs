//! Nodes come, go and hand over, under load: nobody's call fails for good, and nobody's lease is lost.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use lowkey_client::{Client, ErrorKind, Reason, SessionStatus};
use rustix::process::Signal;
use serde_json::Value;

use crate::cli::Service;
use crate::clients::in_time;
use crate::disks::damage::identity_in;
use crate::harness::{Cluster, Node, eventually, rounds, run_to_end};

/// Sessions of the load; each holds a lock all the time, and takes another again and again.
const WORKERS: usize = 6;
/// Short enough that a lease which is not renewed for a few seconds is lost.
const TTL: Duration = Duration::from_secs(4);

fn endpoints(nodes: &[Node]) -> Vec<String> {
    nodes.iter().map(|node| format!("http://127.0.0.1:{}", node.ports.grpc)).collect()
}

/// Programs that use the SDK, all the time.
struct Load {
    stop: Arc<AtomicBool>,
    done: Arc<AtomicU64>,
    workers: Vec<tokio::task::JoinHandle<()>>,
}

impl Load {
    async fn start(nodes: &[Node]) -> Self {
        let (stop, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let workers = (0..WORKERS).map(|number| {
            let (stop, done) = (Arc::clone(&stop), Arc::clone(&done));
            tokio::spawn(work(number, endpoints(nodes), stop, done))
        });
        let mut load = Self { workers: workers.collect(), stop, done };
        load.progresses().await;
        load
    }

    /// Waits until all that is under way now is done, and more; whoever failed is found out.
    async fn progresses(&mut self) {
        let seen = self.done.load(Ordering::Relaxed);
        while self.done.load(Ordering::Relaxed) < seen + 10 * WORKERS as u64 {
            if let Some(failed) = self.workers.iter().position(tokio::task::JoinHandle::is_finished) {
                self.workers.remove(failed).await.unwrap();
                panic!("a worker ended before its time");
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    async fn finish(self, what: &str) {
        self.stop.store(true, Ordering::Relaxed);
        for worker in self.workers {
            in_time("the end of a worker", worker).await.unwrap();
        }
        println!("{what}: {} operations, none failed", self.done.load(Ordering::Relaxed));
    }
}

async fn work(number: usize, endpoints: Vec<String>, stop: Arc<AtomicBool>, done: Arc<AtomicU64>) {
    let client = Client::builder(endpoints).call_timeout(Duration::from_secs(30)).connect().await.unwrap();
    let session = client.session(TTL).await.unwrap();
    let kept = session.lock(format!("kept/{number}")).acquire().await.unwrap();
    let mut last = kept.token();
    while !stop.load(Ordering::Relaxed) {
        let guard = session.lock(format!("busy/{}", number / 2)).acquire().await.expect("an acquire");
        assert!(guard.token() > last, "tokens rise");
        last = guard.token();
        guard.release().await.expect("a release");
        assert!(kept.is_held(), "the lease is lost: {:?}", session.status());
        done.fetch_add(1, Ordering::Relaxed);
    }
    assert_eq!(session.status(), SessionStatus::Held);
    assert!(client.check_token(kept.name(), kept.token()).await.expect("a check").current);
    kept.release().await.expect("the last release");
}

/// Waits until exactly these nodes vote, as all of them see it, and one of them leads.
fn wait_voters(nodes: &[&Node]) -> usize {
    eventually("the voters are as wanted", || {
        let statuses: Option<Vec<Value>> = nodes.iter().map(|node| node.status()).collect();
        let statuses = statuses?;
        let agreed = statuses.iter().all(|status| {
            let members = status["members"].as_array().unwrap();
            let votes = |node: &&Node| {
                members.iter().any(|member| member["nodeId"] == node.name.as_str() && member["voter"] == true)
            };
            let leaving = status["leaving"].as_array().unwrap();
            status["clusterSize"] == nodes.len() as u64 && leaving.is_empty() && nodes.iter().all(votes)
        });
        statuses.iter().position(|status| status["isLeader"] == true).filter(|_| agreed)
    })
}

/// A removed node says so and ends well.
fn assert_ends_removed(node: &mut Node) {
    assert_eq!(node.wait_exit().code(), Some(0), "{}", node.log_text());
    assert!(node.log_text().contains("this node was removed from its cluster"), "{}", node.log_text());
}

fn joining(cluster: &Cluster, name: &str, through: &Node) -> Node {
    let join = format!("127.0.0.1:{}", through.ports.grpc);
    Node::new(cluster.folder(), name, &["--join", &join])
}

#[tokio::test(flavor = "multi_thread")]
async fn three_become_five_become_three_others_under_load() {
    let mut cluster = Cluster::start(3);
    let mut load = Load::start(&cluster.nodes).await;
    let mut nodes: Vec<Node> = std::mem::take(&mut cluster.nodes);
    for name in ["n4", "n5"] {
        let mut node = joining(&cluster, name, nodes.last().unwrap());
        node.start_ready();
        nodes.push(node);
        wait_voters(&nodes.iter().collect::<Vec<_>>());
        load.progresses().await;
    }
    for (gone, comes) in [("n1", Some("n6")), ("n2", None), ("n3", None)] {
        let service = Service::of(&nodes);
        let removed = service.json(&["member", "remove", gone]);
        assert_eq!(removed["nodeId"], gone);
        let at = nodes.iter().position(|node| node.name == gone).unwrap();
        let mut removed = nodes.remove(at);
        assert_ends_removed(&mut removed);
        wait_voters(&nodes.iter().collect::<Vec<_>>());
        load.progresses().await;
        if let Some(name) = comes {
            let mut node = joining(&cluster, name, nodes.last().unwrap());
            node.start_ready();
            nodes.push(node);
            wait_voters(&nodes.iter().collect::<Vec<_>>());
            load.progresses().await;
        }
    }
    let names: Vec<&str> = nodes.iter().map(|node| node.name.as_str()).collect();
    assert_eq!(names, ["n4", "n5", "n6"]);
    load.finish("3 → 5 → 3").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rolling_restart_under_load_costs_nothing() {
    let mut cluster = Cluster::start(3);
    let mut load = Load::start(&cluster.nodes).await;
    for _ in 0..rounds("LOWKEY_ROLLING_RESTARTS", 1) {
        for number in 0..cluster.nodes.len() {
            cluster.nodes[number].signal(Signal::TERM);
            assert_eq!(cluster.nodes[number].wait_exit().code(), Some(0));
            load.progresses().await;
            cluster.nodes[number].start_ready();
            cluster.wait_whole();
            load.progresses().await;
        }
    }
    load.finish("rolling restart").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_lead_goes_to_the_node_that_is_named_and_writes_pause_for_a_moment_only() {
    let cluster = Cluster::start(3);
    let client = Client::connect(endpoints(&cluster.nodes)).await.unwrap();
    let load = Load::start(&cluster.nodes).await;
    // A writer that notes how long the longest of its writes took.
    let stop = Arc::new(AtomicBool::new(false));
    let longest_ms = Arc::new(AtomicU64::new(0));
    let writer = tokio::spawn({
        let (session, stop, longest_ms) =
            (client.session(TTL).await.unwrap(), Arc::clone(&stop), Arc::clone(&longest_ms));
        async move {
            while !stop.load(Ordering::Relaxed) {
                let started = Instant::now();
                session.lock("written").acquire().await.unwrap().release().await.unwrap();
                longest_ms.fetch_max(started.elapsed().as_millis() as u64, Ordering::Relaxed);
            }
        }
    });
    let mut pauses_ms = Vec::new();
    for round in 0..rounds("LOWKEY_TRANSFERS", 6) {
        let leader = cluster.wait_whole();
        let heir = &cluster.nodes[(leader + 1) % 3].name;
        longest_ms.store(0, Ordering::Relaxed);
        let now = in_time("a transfer", client.transfer_leader(heir)).await.unwrap();
        assert_eq!(&now.leader_id, heir, "in round {round}");
        assert_eq!(cluster.nodes[cluster.wait_whole()].name, *heir);
        // The write that the transfer interrupted is done when the next two are.
        session_writes(&client).await;
        pauses_ms.push(longest_ms.load(Ordering::Relaxed));
    }
    stop.store(true, Ordering::Relaxed);
    in_time("the writer", writer).await.unwrap();
    load.finish("transfers").await;
    println!("longest write of each transfer, in ms: {pauses_ms:?}");
    // On a machine with nothing else to do it is some tens of milliseconds; far below an election in any case.
    let best = pauses_ms.iter().min().copied().unwrap();
    assert!(best <= 1_000, "writes pause for {pauses_ms:?} ms");
}

async fn session_writes(client: &Client) {
    let session = client.session(TTL).await.unwrap();
    for _ in 0..2 {
        session.lock("written").acquire().await.unwrap().release().await.unwrap();
    }
}

#[test]
fn who_cannot_lead_is_told_why_and_nothing_is_interrupted() {
    let cluster = Cluster::start(3);
    let service = Service::of(&cluster.nodes);
    let leader = cluster.wait_whole();
    let leads = cluster.nodes[leader].name.clone();
    let (term, _) = cluster.nodes[leader].log_position();
    // Who leads already is given nothing.
    assert_eq!(service.json(&["member", "transfer", &leads])["leaderId"], leads.as_str());
    service.ok(&["member", "add", "n9", "--raft-addr", "127.0.0.1:1"]);
    let unknown = service.run(&["member", "transfer", "nobody"]);
    assert!(unknown.complaint(1).contains("no node named nobody"), "{unknown:?}");
    let learner = service.run(&["member", "transfer", "n9"]);
    assert!(learner.complaint(1).contains("n9 does not lead: it does not vote"), "{learner:?}");
    let other = (leader + 1) % 3;
    cluster.nodes[other].pause();
    eventually("the leader misses it", || {
        let members = cluster.nodes[leader].status()?["members"].clone();
        let missed = members.as_array()?.iter().any(|member| {
            member["nodeId"] == cluster.nodes[other].name.as_str() && member["reachable"] == false
        });
        missed.then_some(())
    });
    let body = format!(r#"{{"nodeId":"{}"}}"#, cluster.nodes[other].name);
    let (status, answer) = cluster.nodes[leader].http("POST", "/v1/cluster/transfer", &body).unwrap();
    assert_eq!(status, 409, "{answer}");
    assert!(answer.contains("TRANSFER_FAILED") && answer.contains("does not hear from it"), "{answer}");
    cluster.nodes[other].signal(Signal::CONT);
    assert_eq!(cluster.nodes[leader].log_position().0, term, "nobody else came to lead");
}

#[test]
fn a_leader_that_is_removed_hands_over_first_and_one_call_does_it() {
    let mut cluster = Cluster::start(3);
    let leader = cluster.wait_whole();
    let follower = (leader + 1) % 3;
    let name = cluster.nodes[leader].name.clone();
    // It says for a moment only what became of it, so it is asked all the time.
    let (answered, is_over) = (AtomicBool::new(false), AtomicBool::new(false));
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) && !answered.load(Ordering::Relaxed) {
                    let body = r#"{"owner_id":"o","ttl_seconds":10}"#;
                    let answer = cluster.nodes[leader].http("POST", "/v1/lease", body);
                    if answer.is_some_and(|(status, body)| status == 503 && body.contains("NODE_REMOVED")) {
                        answered.store(true, Ordering::Relaxed);
                    }
                    std::thread::sleep(Duration::from_millis(10));
                }
            });
        }
        let removed = cluster.nodes[follower].ok("DELETE", &format!("/v1/cluster/peers/{name}"), "");
        assert_eq!(removed["memberId"], (leader + 1).to_string());
        eventually("it stops", || cluster.nodes[leader].log_text().contains("stopping").then_some(()));
        is_over.store(true, Ordering::Relaxed);
    });
    assert!(answered.into_inner(), "it answered NODE_REMOVED");
    let mut gone = cluster.nodes.remove(leader);
    assert_ends_removed(&mut gone);
    wait_voters(&cluster.nodes.iter().collect::<Vec<_>>());
    // Started again it is told again, and its number is nobody's any more.
    gone.start();
    assert_ends_removed(&mut gone);
    let unknown = cluster.nodes[0].http("DELETE", &format!("/v1/cluster/peers/{name}"), "").unwrap();
    assert_eq!(unknown.0, 404, "{unknown:?}");
    assert!(unknown.1.contains("NODE_NOT_FOUND"), "{unknown:?}");
}

#[test]
fn two_become_one_and_the_last_one_stays() {
    let mut cluster = Cluster::start(2);
    let leader = cluster.wait_whole();
    let service = Service::of(&cluster.nodes);
    // The leader itself: the other takes over, and is alone then.
    let name = cluster.nodes[leader].name.clone();
    service.ok(&["member", "remove", &name]);
    let mut gone = cluster.nodes.remove(leader);
    assert_ends_removed(&mut gone);
    wait_voters(&[&cluster.nodes[0]]);
    let service = Service::of(&cluster.nodes);
    service.ok(&["acquire", "a", "--ttl", "60s"]);
    let last = service.run(&["member", "remove", &cluster.nodes[0].name]);
    assert!(last.complaint(1).contains("is the only node"), "{last:?}");
}

#[test]
fn a_removal_that_would_cost_the_quorum_is_refused() {
    let mut cluster = Cluster::start(3);
    let leader = cluster.wait_whole();
    let (dead, alive) = ((leader + 1) % 3, (leader + 2) % 3);
    cluster.nodes[dead].kill();
    let service = Service::of(&cluster.nodes);
    let dead_name = cluster.nodes[dead].name.clone();
    eventually("the leader misses it", || {
        let listed = service.json(&["member", "list"]);
        let missed = listed["members"]
            .as_array()?
            .iter()
            .any(|member| member["nodeId"] == dead_name.as_str() && member["reachable"] == false);
        missed.then_some(())
    });
    let refused = service.run(&["member", "remove", &cluster.nodes[alive].name]);
    assert!(refused.complaint(1).contains("remove those that do not answer first"), "{refused:?}");
    service.ok(&["member", "remove", &dead_name]);
    service.ok(&["acquire", "a", "--ttl", "60s"]);
}

#[test]
fn a_node_that_never_comes_costs_nothing_and_one_that_comes_takes_its_place() {
    let mut cluster = Cluster::start(3);
    let service = Service::of(&cluster.nodes);
    let added = service.json(&["member", "add", "n4", "--raft-addr", "127.0.0.1:1"]);
    assert_eq!((&added["nodeId"], &added["memberId"]), (&"n4".into(), &"4".into()));
    let late = service.run(&["member", "promote", "n4", "--wait", "100ms"]);
    assert!(late.complaint(124).contains("no node has joined under this name yet"), "{late:?}");
    let listed = service.ok(&["member", "list"]);
    let row = listed.lines().find(|line| line.starts_with("n4\t")).unwrap();
    assert_eq!(
        row,
        "n4\texpected\t-\t-\t127.0.0.1:1\t4\tno".replace("\t4\t", &format!("\t{}\t", behind(row)))
    );
    // Two of three are still a majority.
    let leader = cluster.wait_leader(None);
    cluster.nodes[(leader + 1) % 3].kill();
    service.ok(&["acquire", "a", "--ttl", "60s"]);
    cluster.nodes[(leader + 1) % 3].start_ready();

    let mut fourth = joining(&cluster, "n4", &cluster.nodes[0]);
    fourth.start_ready();
    let promoted = service.json(&["member", "promote", "n4"]);
    assert_eq!((&promoted["memberId"], &promoted["voter"]), (&"4".into(), &true.into()));
    cluster.nodes.push(fourth);
    cluster.wait_whole();
    let taken = service.run(&["member", "add", "n4", "--raft-addr", "127.0.0.1:1"]);
    assert!(taken.complaint(1).contains("another node named n4 is a member already"), "{taken:?}");
}

#[test]
fn a_node_that_was_expected_and_never_started_can_be_removed_and_its_name_is_free_again() {
    let mut cluster = Cluster::start(3);
    let service = Service::of(&cluster.nodes);
    service.ok(&["member", "add", "n4", "--raft-addr", "127.0.0.1:1"]);
    let removed = service.json(&["member", "remove", "n4"]);
    assert_eq!((&removed["nodeId"], &removed["memberId"]), (&"n4".into(), &"4".into()));
    wait_voters(&cluster.nodes.iter().collect::<Vec<_>>());
    assert!(!service.ok(&["member", "list"]).contains("n4"), "nothing is left of it");
    let again = service.run(&["member", "remove", "n4"]);
    assert!(again.complaint(1).contains("no node named n4"), "{again:?}");
    // Whoever comes under that name later is another.
    let mut fourth = joining(&cluster, "n4", &cluster.nodes[0]);
    fourth.start_ready();
    let promoted = service.json(&["member", "promote", "n4"]);
    assert_eq!((&promoted["memberId"], &promoted["voter"]), (&"5".into(), &true.into()));
    cluster.nodes.push(fourth);
    cluster.wait_whole();
}

#[test]
fn a_node_that_is_removed_while_it_is_down_learns_of_it_and_disturbs_nobody() {
    let mut cluster = Cluster::start(3);
    let leader = cluster.wait_whole();
    let mut gone = cluster.nodes.remove((leader + 1) % 3);
    // As after a power cut: its own log says that it is a voter.
    gone.kill();
    let service = Service::of(&cluster.nodes);
    service.ok(&["member", "remove", &gone.name]);
    let leader = wait_voters(&cluster.nodes.iter().collect::<Vec<_>>());
    let (term, _) = cluster.nodes[leader].log_position();
    for _ in 0..2 {
        let started = Instant::now();
        gone.start();
        assert_ends_removed(&mut gone);
        println!("removed while it was down: it ended {} ms after its start", started.elapsed().as_millis());
    }
    assert_eq!(cluster.nodes[leader].log_position().0, term, "nobody had to be elected");
    wait_voters(&cluster.nodes.iter().collect::<Vec<_>>());
    service.ok(&["acquire", "a", "--ttl", "60s"]);
}

#[test]
fn a_voter_that_slept_through_a_change_of_members_hears_who_came_meanwhile_when_one_it_knows_vouches() {
    let mut cluster = Cluster::start(3);
    cluster.wait_whole();
    let mut sleeper = cluster.nodes.remove(2);
    sleeper.kill();
    cluster.wait_leader(None);
    let service = Service::of(&cluster.nodes);
    let mut newcomer = joining(&cluster, "n4", &cluster.nodes[0]);
    newcomer.start_ready();
    service.ok(&["member", "promote", "n4"]);
    service.ok(&["member", "remove", "n1"]);
    assert_ends_removed(&mut cluster.nodes[0]);
    // Two of the three voters are left: one that has never heard of the other, and that one. Whoever knows both is down.
    cluster.nodes[1].kill();
    newcomer.kill();
    sleeper.start();
    newcomer.start();
    eventually("the sleeper believes no stranger", || {
        sleeper.log_text().contains("member 4 is not known here; asking those that are").then_some(())
    });
    // It is back, and vouches.
    cluster.nodes[1].start();
    eventually("one leads all", || {
        let leader = |node: &Node| Some(node.status()?["leaderId"].as_str()?.to_owned());
        let leaders = [leader(&sleeper)?, leader(&newcomer)?, leader(&cluster.nodes[1])?];
        leaders.iter().all(|leader| !leader.is_empty() && *leader == leaders[0]).then_some(())
    });
    service.ok(&["member", "transfer", "n4"]);
    eventually("the newcomer leads the sleeper", || (sleeper.status()?["leaderId"] == "n4").then_some(()));
}

/// A node that joined, and to which nobody gets through: it has a number, and knows no other node.
fn join_unreachable(cluster: &Cluster, name: &str) -> Node {
    let mut node = joining(cluster, name, &cluster.nodes[0]);
    let join = format!("127.0.0.1:{}", cluster.nodes[0].ports.grpc);
    node.set_flags(&["--join", &join, "--advertise-raft-addr", "127.0.0.1:1"]);
    node.start();
    eventually("it has joined, and knows nobody", || {
        let status = node.status()?;
        let listed = cluster.nodes[0].status()?["members"].as_array()?.len() == cluster.nodes.len() + 1;
        (listed && status["members"].as_array()?.is_empty()).then_some(())
    });
    node
}

#[test]
fn a_node_that_is_removed_before_it_ever_knew_the_others_learns_of_it() {
    let cluster = Cluster::start(3);
    let service = Service::of(&cluster.nodes);
    let mut running = join_unreachable(&cluster, "n4");
    service.ok(&["member", "remove", "n4"]);
    assert_ends_removed(&mut running);
    // And if it is down meanwhile.
    let mut down = join_unreachable(&cluster, "n5");
    down.kill();
    service.ok(&["member", "remove", "n5"]);
    // With nobody to ask it can only wait, and says so.
    down.set_flags(&[]);
    down.start();
    eventually("it says what it lacks", || down.log_text().contains("give it --join").then_some(()));
    down.kill();
    down.set_flags(&["--join", &format!("127.0.0.1:{}", cluster.nodes[1].ports.grpc)]);
    down.start();
    assert_ends_removed(&mut down);
    wait_voters(&cluster.nodes.iter().collect::<Vec<_>>());
    assert_eq!(service.ok(&["member", "list"]).lines().count(), 3);
}

#[test]
fn a_node_that_is_older_than_its_cluster_says_so_and_serves() {
    let folder = tempfile::tempdir().unwrap();
    let mut node = Node::new(folder.path(), "n1", &["--bootstrap"]);
    node.start_ready();
    // As if it had been started with a newer version once.
    let identity = identity_in(&std::fs::read(node.data_dir.join("node")).unwrap());
    let identity: String = identity.iter().map(|byte| format!("{byte:02x}")).collect();
    let own = node.status().unwrap()["members"][0].clone();
    let newer = serde_json::json!({
        "node_id": "n1", "member_id": 1, "identity": identity, "command_version": 1_000,
        "raft_address": own["raftAddress"], "grpc_address": own["grpcAddress"], "http_address": own["httpAddress"],
        "key_hash": own["keyHash"],
    });
    node.ok("POST", "/v1/cluster/peers", &newer.to_string());
    node.signal(Signal::TERM);
    assert_eq!(node.wait_exit().code(), Some(0));
    node.start_ready();
    eventually("it says so", || {
        let log = node.log_text();
        let line = log.lines().find(|line| line.contains("the cluster does not take this node"))?.to_owned();
        assert!(line.contains("start it with a newer version"), "{line}");
        Some(())
    });
    node.ok("POST", "/v1/lock/acquire", r#"{"lock_name":"a","owner_id":"o","ttl_seconds":60}"#);
}

fn behind(row: &str) -> &str {
    row.split('\t').nth(5).unwrap()
}

#[test]
fn a_wiped_node_is_told_what_to_do_and_comes_back_as_another() {
    let mut cluster = Cluster::start(3);
    let mut wiped = cluster.nodes.pop().unwrap();
    wiped.kill();
    std::fs::remove_dir_all(&wiped.data_dir).unwrap();
    let join = format!("127.0.0.1:{}", cluster.nodes[0].ports.grpc);
    wiped.set_flags(&["--bootstrap", "--join", &join]);
    let ended = run_to_end(&mut wiped.command());
    assert!(ended.complaint().contains("lowkey member remove n3"), "{ended:?}");

    let service = Service::of(&cluster.nodes);
    service.ok(&["member", "remove", "n3"]);
    wiped.start_ready();
    cluster.nodes.push(wiped);
    cluster.wait_whole();
    let members = service.json(&["member", "list"])["members"].clone();
    let third = members.as_array().unwrap().iter().find(|member| member["nodeId"] == "n3").unwrap();
    assert_eq!(third["memberId"], "4", "a number is never given again");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wiped_node_that_founds_a_cluster_is_refused_by_the_old_one_and_its_clients() {
    let mut cluster = Cluster::start(3);
    let client = Client::builder(endpoints(&cluster.nodes))
        .call_timeout(Duration::from_secs(3))
        .connect()
        .await
        .unwrap();
    client.get("a").await.unwrap();
    let old = cluster.nodes[0].status().unwrap()["clusterId"].clone();
    cluster.nodes[2].kill();
    std::fs::remove_dir_all(&cluster.nodes[2].data_dir).unwrap();
    cluster.nodes[2].set_flags(&["--bootstrap"]);
    cluster.nodes[2].start_ready();
    let new = cluster.nodes[2].status().unwrap()["clusterId"].clone();
    assert_ne!(old, new);
    eventually("the old peers do not take it for the node that it was, and say so", || {
        let is_told = |line: &str| line.contains("cannot reach a member") && line.contains("another key");
        let told = cluster.nodes[..2].iter().any(|node| node.log_text().lines().any(is_told));
        told.then_some(())
    });
    // With the others gone, the new cluster is all that the client could turn to.
    cluster.nodes[0].kill();
    cluster.nodes[1].kill();
    let refused = loop {
        match client.get("a").await {
            Err(error) if matches!(error.kind(), ErrorKind::WrongCluster { .. }) => break error,
            Err(error) if error.is_retryable() => {}
            other => panic!("{other:?}"),
        }
    };
    assert!(refused.to_string().contains(new.as_str().unwrap()), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_sdk_tells_reasons() {
    let cluster = Cluster::start(1);
    let client = Client::connect(endpoints(&cluster.nodes)).await.unwrap();
    assert_eq!(client.members().await.unwrap()[0].node_id, "n1");
    let reason = |error: lowkey_client::Error| error.reason().unwrap();
    assert_eq!(reason(client.remove_member("n2").await.unwrap_err()), Reason::NodeNotFound);
    assert_eq!(reason(client.remove_member("n1").await.unwrap_err()), Reason::QuorumAtRisk);
    assert_eq!(client.add_member("n2", "127.0.0.1:1").await.unwrap(), 2);
    assert_eq!(client.add_member("n2", "127.0.0.1:2").await.unwrap(), 2, "expected once");
    assert_eq!(reason(client.transfer_leader("n2").await.unwrap_err()), Reason::TransferFailed);
    // Nobody else votes: the cluster would end with it.
    assert_eq!(reason(client.remove_member("n1").await.unwrap_err()), Reason::QuorumAtRisk);
    assert_eq!(client.remove_member("n2").await.unwrap(), 2);
    assert_eq!(client.transfer_leader("n1").await.unwrap().leader_id, "n1");
}

#[test]
fn the_command_without_a_verb_says_what_there_is() {
    let ended = run_to_end(Command::new(env!("CARGO_BIN_EXE_lowkey")).arg("member"));
    assert_eq!(ended.code, Some(64), "{ended:?}");
    assert!(ended.stderr.contains("promote"), "{ended:?}");
}
