//! Waiting for a lock: everyone in turn, nobody for ever, and no place lost by accident.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::net::TcpStream;
use std::time::{Duration, Instant};

use lowkey_api::v1::lock_service_client::LockServiceClient;
use lowkey_api::v1::{
    AcquireLockRequest, AcquireLockResponse, CreateLeaseRequest, EventType, ReleaseLockRequest,
    RevokeLeaseRequest,
};
use rustix::process::Signal;
use serde_json::json;
use tokio::task::JoinHandle;

use crate::clients::{Crowd, Links, Setback, Watching, in_time, long_wait, percentiles};
use crate::harness::{Cluster, long_acquire, rounds};

/// How long a place is kept for a caller that is gone.
const PLACE_KEPT: Duration = Duration::from_secs(5);

/// A client's turn with the lock.
struct Turn {
    owner: String,
    grant: AcquireLockResponse,
    granted: Instant,
    /// When it began to give the lock back.
    released: Instant,
    setbacks: Vec<Setback>,
}

/// Clients that wait for a lock, hold it for a moment each, and give it back. If they have to ask again,
/// every other one takes its time.
fn wait_in_line(crowd: &Crowd, lock: &str, clients: usize) -> Vec<JoinHandle<Turn>> {
    let client = |number: usize| {
        let (links, lock) = (crowd.links(number), lock.to_owned());
        let slow_if_odd =
            if number % 2 == 1 { links.clone().with_pause(PLACE_KEPT / 2) } else { links.clone() };
        async move {
            let request = long_wait(&lock, &format!("client-{number}"));
            let told = in_time("the lock", slow_if_odd.acquire(&request)).await;
            let (granted, setbacks) = (told.at, told.setbacks.clone());
            let grant = told.answer();
            tokio::time::sleep(Duration::from_millis(1)).await;
            let released = Instant::now();
            links.release(&lock, &grant).await;
            Turn { owner: request.owner_id, grant, granted, released, setbacks }
        }
    };
    (0..clients).map(|number| tokio::spawn(client(number))).collect()
}

/// All turns, in the order of the grants.
async fn all_turns(clients: Vec<JoinHandle<Turn>>) -> Vec<Turn> {
    let mut turns = Vec::new();
    for client in clients {
        turns.push(client.await.unwrap());
    }
    turns.sort_by_key(|turn| turn.grant.fencing_token);
    turns
}

fn owners(turns: &[Turn]) -> Vec<String> {
    turns.iter().map(|turn| turn.owner.clone()).collect()
}

/// Asserts that the lock was handed from the holder to everyone in line, each time in one log entry, and
/// that nothing else happened.
async fn assert_handed_over(watching: &mut Watching, line: &[String]) {
    for next in line {
        let freed = watching.change().await;
        let taken = watching.change().await;
        assert_eq!((freed.r#type(), taken.r#type()), (EventType::Released, EventType::Acquired));
        assert_eq!(&taken.owner, next, "in the order of enqueueing");
        assert_eq!(freed.revision, taken.revision, "{next} was granted the lock by the entry that freed it");
        assert!(freed.fencing_token < taken.fencing_token);
    }
    assert_eq!(watching.change().await.r#type(), EventType::Released);
}

#[tokio::test(flavor = "multi_thread")]
async fn everyone_has_the_lock_once_in_the_order_of_asking_and_each_hand_over_is_one_log_entry() {
    let clients = rounds("LOWKEY_WAITERS", 100);
    let cluster = Cluster::start(3);
    let leader = &cluster.nodes[cluster.wait_whole()];
    let crowd = Crowd::new(&cluster, clients);
    let links = Links::to(&cluster.nodes);
    let mut watching = links.watch("queue").await;
    let holder = links.acquire(&long_acquire("queue", "holder", "first")).await.answer();
    assert_eq!(watching.owners(EventType::Acquired, 1).await, ["holder"]);

    let (term, before) = leader.log_position();
    let waiting = wait_in_line(&crowd, "queue", clients);
    let line = watching.owners(EventType::Waiting, clients).await;
    assert_eq!(line.iter().collect::<BTreeSet<_>>().len(), clients, "everyone has one place");
    let queued = before + clients as u64;
    if leader.log_position().0 == term {
        leader.assert_applied(queued, "one entry for every place");
    }
    let shown = links.get("queue").await;
    assert_eq!(shown.waiter_count as usize, clients);
    let shown: Vec<_> = shown.waiters.into_iter().map(|waiter| waiter.owner_id).collect();
    assert_eq!(shown, line[..line.len().min(1000)], "the line as it is shown");

    let released = Instant::now();
    links.release("queue", &holder).await;
    let turns = all_turns(waiting).await;
    assert_eq!(owners(&turns), line);
    assert!(turns[0].grant.fencing_token > holder.fencing_token);
    assert!(turns.is_sorted_by(|one, next| one.grant.fencing_token < next.grant.fencing_token));
    assert_handed_over(&mut watching, &line).await;
    assert!(links.get("queue").await.holders.is_empty());

    // A loaded machine may have changed its leader meanwhile, and that takes entries of its own.
    let setbacks: usize = turns.iter().map(|turn| turn.setbacks.len()).sum();
    if leader.log_position().0 == term {
        assert_eq!(setbacks, 0, "everyone has asked once");
        leader.assert_applied(
            queued + 1 + clients as u64,
            "one entry for every release, and none for the grants",
        );
    }
    let begun = std::iter::once(released).chain(turns.iter().map(|turn| turn.released));
    let taken = begun.zip(&turns).map(|(released, next)| next.granted - released).collect();
    println!("{clients} waiters; from a release to the next holder's reply: {}", percentiles(taken));
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_waited_in_vain_is_told_who_holds_the_lock_since_when_and_how_many_wait() {
    let cluster = Cluster::start(3);
    let links = Links::to(&cluster.nodes);
    let mut watching = links.watch("taken").await;
    let holder = links.acquire(&long_acquire("taken", "the holder", "first")).await.answer();
    let since = links.get("taken").await.holders[0].since_unix_ms;
    assert_eq!(watching.owners(EventType::Acquired, 1).await, ["the holder"]);
    let patient = wait_in_line(&Crowd::new(&cluster, 2), "taken", 2);
    watching.owners(EventType::Waiting, 2).await;

    for node in &cluster.nodes {
        let asked = Instant::now();
        let body = json!({"lock_name": "taken", "owner_id": "hasty", "ttl_seconds": 9, "wait_ms": 1000});
        let (status, text) = node.http("POST", "/v1/lock/acquire", &body.to_string()).unwrap();
        assert!(asked.elapsed() >= Duration::from_secs(1), "told after {:?}", asked.elapsed());
        let answer: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!((status, &answer["reason"]), (409, &json!("WAIT_TIMEOUT")), "{text}");
        let told = &answer["details"][0]["metadata"];
        assert_eq!(told["owner_id"], "the holder");
        assert_eq!(told["lease_id"], holder.lease_id.to_string());
        assert_eq!(told["fencing_token"], holder.fencing_token.to_string());
        assert_eq!(told["since_unix_ms"], since.to_string());
        assert_eq!((&told["mode"], &told["scope"]), (&json!("EXCLUSIVE"), &json!("NAME")));
        assert_eq!(told["waiters"], "2", "those who still wait: {text}");
        assert_eq!(watching.owners(EventType::Waiting, 1).await, ["hasty"]);
        assert_eq!(watching.owners(EventType::Cancelled, 1).await, ["hasty"]);
    }

    links.release("taken", &holder).await;
    all_turns(patient).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_closed_connection_gives_its_place_up_after_five_seconds_and_not_before() {
    let cluster = Cluster::start(3);
    let leader = cluster.wait_whole();
    let (direct, follower) = (&cluster.nodes[leader], &cluster.nodes[(leader + 1) % 3]);
    let links = Links::to(&cluster.nodes);
    let mut watching = links.watch("door").await;
    let holder = links.acquire(&long_acquire("door", "holder", "first")).await.answer();
    assert_eq!(watching.owners(EventType::Acquired, 1).await, ["holder"]);

    let mut leaving = Vec::new();
    for (node, owner) in [(direct, "by gRPC, of the leader"), (follower, "by gRPC, of a follower")] {
        let links = Links::to([node]);
        leaving.push(tokio::spawn(async move { links.acquire(&long_wait("door", owner)).await.answer() }));
        assert_eq!(watching.owners(EventType::Waiting, 1).await, [owner]);
    }
    let body =
        json!({"lock_name": "door", "owner_id": "by HTTP", "ttl_seconds": 9, "wait_ms": 600_000}).to_string();
    let mut stream = TcpStream::connect(("127.0.0.1", follower.ports.http)).unwrap();
    let length = body.len();
    write!(
        stream,
        "POST /v1/lock/acquire HTTP/1.1\r\nhost: localhost\r\ncontent-length: {length}\r\n\r\n{body}"
    )
    .unwrap();
    assert_eq!(watching.owners(EventType::Waiting, 1).await, ["by HTTP"]);
    let staying = wait_in_line(&Crowd::new(&cluster, 1), "door", 1);
    watching.owners(EventType::Waiting, 1).await;

    let closed = Instant::now();
    leaving.iter().for_each(JoinHandle::abort);
    drop(stream);
    let mut gone = Vec::new();
    for _ in 0..3 {
        gone.extend(watching.owners(EventType::Cancelled, 1).await);
        assert!(closed.elapsed() >= PLACE_KEPT, "{gone:?} had {:?}", closed.elapsed());
    }
    gone.sort();
    assert_eq!(gone, ["by HTTP", "by gRPC, of a follower", "by gRPC, of the leader"]);
    let all_gone = closed.elapsed();
    assert!(all_gone < 3 * PLACE_KEPT, "places were kept for {all_gone:?}");
    println!("places were given up within {} ms", all_gone.as_millis());

    links.release("door", &holder).await;
    assert_eq!(owners(&all_turns(staying).await), ["client-0"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_asks_again_with_the_same_request_id_within_that_time_keeps_its_place() {
    let cluster = Cluster::start(3);
    let links = Links::to(&cluster.nodes);
    let mut watching = links.watch("door").await;
    let holder = links.acquire(&long_acquire("door", "holder", "first")).await.answer();
    assert_eq!(watching.owners(EventType::Acquired, 1).await, ["holder"]);
    let mut waiting = Vec::new();
    for (node, owner) in cluster.nodes.iter().zip(["one", "two", "three"]) {
        let links = Links::to([node]);
        waiting.push(tokio::spawn(async move { links.acquire(&long_wait("door", owner)).await.answer() }));
        assert_eq!(watching.owners(EventType::Waiting, 1).await, [owner]);
    }

    waiting.iter().for_each(JoinHandle::abort);
    tokio::time::sleep(PLACE_KEPT / 2).await;
    // Everyone comes back at another node, and the last one first.
    let back: Vec<_> = (0..3)
        .rev()
        .map(|number| {
            let (links, owner) =
                (Links::to([&cluster.nodes[(number + 1) % 3]]), ["one", "two", "three"][number]);
            tokio::spawn(async move {
                let grant = links.acquire(&long_wait("door", owner)).await.answer();
                links.release("door", &grant).await;
            })
        })
        .collect();
    tokio::time::sleep(PLACE_KEPT + Duration::from_secs(1)).await;
    links.release("door", &holder).await;
    for client in back {
        in_time("a turn", client).await.unwrap();
    }
    // No place was taken anew, and none given up.
    assert_handed_over(&mut watching, &["one", "two", "three"].map(str::to_owned)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiter_whose_lease_is_gone_is_told_at_once_and_is_never_granted_anything() {
    let cluster = Cluster::start(3);
    let links = Links::to(&cluster.nodes);
    let mut client = LockServiceClient::new(links.first());
    let mut watching = links.watch("door-1").await;
    let holders = [
        links.acquire(&long_acquire("door-0", "holder", "first")).await.answer(),
        links.acquire(&long_acquire("door-1", "holder", "second")).await.answer(),
    ];
    assert_eq!(watching.owners(EventType::Acquired, 1).await, ["holder"]);
    for (ttl_seconds, revoked) in [(600, true), (1, false)] {
        let sent = Instant::now();
        let request = CreateLeaseRequest { owner_id: "mortal".into(), ttl_seconds, ..Default::default() };
        let lease_id = client.create_lease(request).await.unwrap().into_inner().lease_id;
        let waiting = [0, 1].map(|number| {
            let links = Links::to([&cluster.nodes[number]]);
            let request = AcquireLockRequest {
                lease_id,
                ttl_seconds: 0,
                request_id: format!("{lease_id}-{number}"),
                ..long_wait(&format!("door-{number}"), "mortal")
            };
            tokio::spawn(async move { links.acquire(&request).await })
        });
        assert_eq!(watching.owners(EventType::Waiting, 1).await, ["mortal"]);
        let ends = if revoked {
            let request = RevokeLeaseRequest { lease_id, owner_id: "mortal".into(), ..Default::default() };
            let sent = Instant::now();
            client.revoke_lease(request).await.unwrap();
            sent
        } else {
            sent + Duration::from_secs(1)
        };
        for waiter in waiting {
            let told = in_time("the end of a lease", waiter).await.unwrap();
            assert!(told.at >= ends, "it was told before its lease was gone");
            assert_eq!(told.outcome.unwrap_err().reason.as_str(), "LEASE_NOT_FOUND");
            println!("revoked: {revoked}; told {} ms after the end", (told.at - ends).as_millis());
        }
        assert_eq!(watching.owners(EventType::Cancelled, 1).await, ["mortal"]);
    }
    for (number, holder) in holders.iter().enumerate() {
        links.release(&format!("door-{number}"), holder).await;
        let free = links.get(&format!("door-{number}")).await;
        assert!(free.holders.is_empty() && free.waiters.is_empty(), "{free:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_of_a_day_is_taken_and_whoever_gives_up_ends_it_by_its_request_id() {
    let cluster = Cluster::start(3);
    let links = Links::to(&cluster.nodes);
    let mut watching = links.watch("door").await;
    let holder = links.acquire(&long_acquire("door", "holder", "first")).await.answer();
    assert_eq!(watching.owners(EventType::Acquired, 1).await, ["holder"]);
    let mut waiting = Vec::new();
    for (node, owner) in cluster.nodes.iter().zip(["fickle", "constant"]) {
        let links = Links::to([node]);
        let request = AcquireLockRequest { wait_ms: 86_400_000, ..long_wait("door", owner) };
        waiting.push(tokio::spawn(async move { links.acquire(&request).await }));
        assert_eq!(watching.owners(EventType::Waiting, 1).await, [owner]);
    }

    let give_up = ReleaseLockRequest {
        lock_name: "door".into(),
        owner_id: "fickle".into(),
        acquire_request_id: long_wait("door", "fickle").request_id,
        ..ReleaseLockRequest::default()
    };
    LockServiceClient::new(links.first()).release_lock(give_up).await.unwrap();
    let told = in_time("the end of a wait", waiting.remove(0)).await.unwrap();
    assert_eq!(told.outcome.unwrap_err().reason.as_str(), "WAIT_CANCELLED");
    assert_eq!(watching.owners(EventType::Cancelled, 1).await, ["fickle"]);
    links.release("door", &holder).await;
    in_time("the lock", waiting.remove(0)).await.unwrap().answer();
}

/// What happens to a node while clients wait.
#[derive(Clone, Copy, PartialEq)]
enum Blow {
    LeaderKilled,
    FollowerKilled,
    LeaderStopped,
}

/// Clients wait at every node, one node is struck, and the lock is handed to them in the order in which
/// they had first asked.
async fn assert_places_survive(blow: Blow) {
    let clients = rounds("LOWKEY_STRUCK_WAITERS", 60);
    let mut cluster = Cluster::start(3);
    let leader = cluster.wait_whole();
    let victim = if blow == Blow::FollowerKilled { (leader + 1) % 3 } else { leader };
    let crowd = Crowd::new(&cluster, clients);
    let survivors = Links::to([&cluster.nodes[(leader + 2) % 3]]);
    let mut watching = survivors.watch("queue").await;
    let holder = survivors.acquire(&long_acquire("queue", "holder", "first")).await.answer();
    assert_eq!(watching.owners(EventType::Acquired, 1).await, ["holder"]);
    let waiting = wait_in_line(&crowd, "queue", clients);
    let line = watching.owners(EventType::Waiting, clients).await;

    let struck = Instant::now();
    match blow {
        Blow::LeaderStopped => {
            cluster.nodes[victim].signal(Signal::TERM);
            assert_eq!(cluster.nodes[victim].wait_exit().code(), Some(0));
        }
        Blow::LeaderKilled | Blow::FollowerKilled => cluster.nodes[victim].kill(),
    }
    cluster.wait_leader(Some(victim));
    // Longer than a place is kept for those who do not come back.
    tokio::time::sleep(PLACE_KEPT + Duration::from_secs(1)).await;
    let shown = survivors.get("queue").await;
    assert_eq!(shown.waiter_count as usize, clients);
    survivors.release("queue", &holder).await;
    let turns = all_turns(waiting).await;
    assert_eq!(owners(&turns), line);
    // No place was taken anew, and none given up.
    assert_handed_over(&mut watching, &line).await;

    let at_victim = |turn: &&Turn| {
        let number: usize = turn.owner["client-".len()..].parse().unwrap();
        number % 3 == victim
    };
    let mut told_last = Duration::ZERO;
    for turn in turns.iter().filter(at_victim) {
        let setback = turn.setbacks.first().expect("whoever waited at that node had to ask again");
        told_last = told_last.max(setback.at - struck);
        if blow == Blow::LeaderStopped {
            let told = setback.error.as_ref().map(|error| error.reason.as_str());
            assert_eq!(told, Some("OUTCOME_UNKNOWN"), "it is told, and not cut off: {setback:?}");
        }
    }
    let asked_again = turns.iter().filter(|turn| !turn.setbacks.is_empty()).count();
    println!(
        "{clients} waiters, {asked_again} had to ask again; at the struck node they knew within {} ms",
        told_last.as_millis()
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn everyone_keeps_its_place_when_the_leader_is_killed() {
    assert_places_survive(Blow::LeaderKilled).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn everyone_keeps_its_place_when_a_follower_is_killed() {
    assert_places_survive(Blow::FollowerKilled).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn everyone_is_told_and_keeps_its_place_when_the_leader_is_stopped() {
    assert_places_survive(Blow::LeaderStopped).await;
}
