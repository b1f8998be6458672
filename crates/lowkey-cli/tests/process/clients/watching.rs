//! Watching: everybody is told of everything, once, in order, whatever happens to the node that tells it.

use std::collections::BTreeSet;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use lowkey_api::ApiError;
use lowkey_api::v1::lock_service_client::LockServiceClient;
use lowkey_api::v1::{
    AcquireLockRequest, EventType, ListLocksRequest, ReleaseLockRequest, WatchEvent, WatchRequest,
};
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::task::JoinSet;
use tonic::Code;
use tonic::transport::Channel;

use crate::clients::{Crowd, Links, Watching, in_time, percentiles};
use crate::harness::{Cluster, Node, http_with, lease, long_acquire, rounds};

/// A watch of all locks whose names begin so, from a revision on.
fn from(prefix: &str, from: u64) -> WatchRequest {
    WatchRequest { prefix: prefix.to_owned(), from, ..WatchRequest::default() }
}

/// The same, after the last position that was seen.
fn after(prefix: &str, after: &str) -> WatchRequest {
    WatchRequest { prefix: prefix.to_owned(), after: after.to_owned(), ..WatchRequest::default() }
}

/// A change, without what depends on the node that tells it.
fn bare(event: WatchEvent) -> WatchEvent {
    WatchEvent { in_touch: true, ..event }
}

/// The changes from one revision through another, as a node tells them in one go.
async fn replay(node: &Node, prefix: &str, first: u64, last: u64) -> Vec<WatchEvent> {
    let mut watching = Watching::start(&node.channel(), from(prefix, first)).await.unwrap();
    let mut changes = Vec::new();
    loop {
        let event = watching.event().await.expect("the stream goes on");
        match event.r#type() {
            EventType::Heartbeat if event.revision >= last => return changes,
            EventType::Heartbeat => {}
            _ => changes.push(bare(event)),
        }
    }
}

/// Where to watch from to see all that comes.
async fn watch_from(channel: Channel) -> u64 {
    let list = LockServiceClient::new(channel).list_locks(ListLocksRequest::default()).await.unwrap();
    list.into_inner().watch_from
}

#[tokio::test(flavor = "multi_thread")]
async fn one_change_reaches_every_stream_at_every_node() {
    let streams = rounds("LOWKEY_STREAMS", 200);
    let cluster = Cluster::start(3);
    let crowd = Crowd::new(&cluster, streams);
    let links = Links::to(&cluster.nodes);
    let (told, mut hears) = mpsc::unbounded_channel();
    let mut watchers = JoinSet::new();
    for number in 0..streams {
        let (links, told) = (crowd.links(number), told.clone());
        watchers.spawn(async move {
            let mut watching = links.watch("hot").await;
            let alive = watching.event().await.unwrap();
            assert_eq!(alive.r#type(), EventType::Heartbeat, "it says when it has begun");
            told.send((Instant::now(), number, alive)).unwrap();
            loop {
                let change = bare(watching.change().await);
                told.send((Instant::now(), number, change)).unwrap();
            }
        });
    }
    for _ in 0..streams {
        in_time("all streams to begin", hears.recv()).await.unwrap();
    }

    for round in 0..rounds("LOWKEY_WATCH_CHANGES", 3) {
        let sent = Instant::now();
        let request = long_acquire("hot", "holder", &format!("round-{round}"));
        let grant = links.acquire(&request).await.answer();
        let answered = Instant::now();
        let (mut who, mut delays, mut changes) = (BTreeSet::new(), Vec::new(), Vec::new());
        while who.len() < streams {
            let (at, number, change) = in_time("the change", hears.recv()).await.unwrap();
            assert!(who.insert(number), "stream {number} was told of {change:?}");
            delays.push(at - sent);
            changes.push(change);
        }
        assert_eq!((changes[0].r#type(), changes[0].revision), (EventType::Acquired, grant.revision));
        assert!(changes.iter().all(|change| *change == changes[0]), "all were told the same");
        let last = delays.iter().max().unwrap().saturating_sub(answered - sent);
        println!(
            "{streams} streams, from the request to the event: {}; the last one had it {:.2} ms after the answer",
            percentiles(delays),
            last.as_secs_f64() * 1000.0
        );
        links.release("hot", &grant).await;
        for _ in 0..streams {
            let (_, _, change) = in_time("the release", hears.recv()).await.unwrap();
            assert_eq!(change.r#type(), EventType::Released);
        }
    }
    watchers.shutdown().await;
}

/// A client that sees on at another node when its own is gone.
struct Restless {
    /// The last node is the one that it watches, or is about to.
    at: Arc<AtomicUsize>,
    seen: watch::Sender<Vec<WatchEvent>>,
    resumed: usize,
}

impl Restless {
    /// Watches until it has seen a lock of that name.
    async fn run(mut self, channels: Vec<Channel>, prefix: String, first: u64, last: &str) -> usize {
        let mut request = from(&prefix, first);
        for turn in (0..channels.len()).cycle() {
            self.at.store(turn, Ordering::SeqCst);
            match Watching::start(&channels[turn], request.clone()).await {
                Ok(mut watching) => {
                    while let Some(event) = watching.event().await {
                        if !matches!(event.r#type(), EventType::Heartbeat | EventType::End) {
                            let is_last = event.name == last;
                            self.seen.send_modify(|seen| seen.push(bare(event)));
                            if is_last {
                                return self.resumed;
                            }
                        }
                    }
                    self.resumed += 1;
                    if let Some(position) = watching.position {
                        request = after(&prefix, &position.to_string());
                    }
                }
                Err(status) => {
                    let error = ApiError::from_status(&status);
                    assert!(error.is_none_or(|error| error.is_retryable()), "{status}");
                    tokio::time::sleep(Duration::from_millis(10)).await;
                }
            }
        }
        unreachable!("there are nodes to ask");
    }
}

/// Changes that come together: so many locks are taken one by one, and lost in one entry.
const BATCH: usize = 10;

/// Makes changes, as many as it is allowed to. When there is nothing more to come, a last lock is taken.
async fn change_on_and_on(links: Links, allowed: Arc<Semaphore>, last: String) -> u64 {
    for number in 0.. {
        let Ok(permits) = allowed.acquire_many(BATCH as u32).await else { break };
        permits.forget();
        let lease_id = links.lease("writer", &format!("lease-{number}")).await;
        for lock in 0..BATCH / 2 {
            let request = AcquireLockRequest {
                lease_id,
                ttl_seconds: 0,
                ..long_acquire(&format!("w/{lock}"), "writer", &format!("acquire-{lock}"))
            };
            links.acquire(&request).await.answer();
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        links.revoke("writer", lease_id).await;
    }
    links.acquire(&long_acquire(&last, "writer", "the last one")).await.answer().revision
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watcher_whose_node_is_killed_again_and_again_misses_nothing_and_sees_nothing_twice() {
    let kills = rounds("LOWKEY_WATCH_KILLS", 5);
    let mut cluster = Cluster::start(3);
    let links = Links::to(&cluster.nodes);
    let first = watch_from(links.first()).await;
    let at = Arc::new(AtomicUsize::new(0));
    let (seen, mut sees) = watch::channel(Vec::new());
    let restless = Restless { at: Arc::clone(&at), seen, resumed: 0 };
    let channels = cluster.nodes.iter().map(Node::channel).collect();
    let watcher = tokio::spawn(restless.run(channels, "w/".into(), first, "w/last"));
    let allowed = Arc::new(Semaphore::new(0));
    let writer = tokio::spawn(change_on_and_on(links, Arc::clone(&allowed), "w/last".into()));

    let mut expected = 0;
    let mut leaders = 0;
    for _ in 0..kills {
        allowed.add_permits(2 * BATCH);
        expected += 2 * BATCH;
        // Some of these are under way when the node is killed.
        in_time("changes", sees.wait_for(|seen| seen.len() + BATCH >= expected)).await.unwrap();
        let victim = at.load(Ordering::SeqCst);
        leaders += usize::from(cluster.nodes[victim].status().unwrap()["isLeader"] == true);
        cluster.nodes[victim].kill();
        allowed.add_permits(2 * BATCH);
        expected += 2 * BATCH;
        in_time("changes", sees.wait_for(|seen| seen.len() >= expected)).await.unwrap();
        cluster.nodes[victim].start();
        cluster.wait_whole();
    }
    allowed.close();
    let last = in_time("the last change", writer).await.unwrap();
    let resumed = in_time("the watcher", watcher).await.unwrap();
    let seen = sees.borrow_and_update().clone();

    assert_eq!(seen.len(), expected + 1, "as many as there were");
    assert!(resumed >= kills, "it had to go on elsewhere {resumed} times");
    // What the nodes tell that were restarted is the log itself, read anew.
    for node in &cluster.nodes {
        let history = replay(node, "w/", first, last).await;
        assert!(seen == history, "{} tells another story:\n{seen:#?}\n{history:#?}", node.name);
    }
    assert!(seen.is_sorted_by(|one, next| (one.revision, one.ordinal) < (next.revision, next.ordinal)));
    // From anywhere, also from within an entry, the story goes on with what comes next.
    for pair in seen[seen.len() - 3 * BATCH..].windows(2) {
        let position = format!("{}.{}", pair[0].revision, pair[0].ordinal);
        let node = &cluster.nodes[pair[0].ordinal as usize % 3];
        let mut watching = Watching::start(&node.channel(), after("w/", &position)).await.unwrap();
        assert_eq!(bare(watching.change().await), pair[1], "after {position}");
    }
    println!("{kills} kills, {leaders} of leaders; {} changes, each seen once", seen.len());
}

/// A stream of server-sent events.
struct SentEvents {
    lines: std::io::Lines<BufReader<TcpStream>>,
}

#[derive(Debug, PartialEq)]
struct SentEvent {
    /// Empty for a change.
    event: String,
    id: String,
    data: Value,
}

impl SentEvents {
    fn open(node: &Node, path: &str, last_event_id: Option<&str>) -> Self {
        let mut stream = TcpStream::connect(("127.0.0.1", node.ports.http)).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let resume = last_event_id.map(|id| format!("last-event-id: {id}\r\n")).unwrap_or_default();
        // Of this old version, because its answers come as they are and not in chunks.
        write!(stream, "GET {path} HTTP/1.0\r\nhost: localhost\r\n{resume}\r\n").unwrap();
        let mut lines = BufReader::new(stream).lines();
        let head: Vec<String> =
            lines.by_ref().map(Result::unwrap).take_while(|line| !line.is_empty()).collect();
        assert!(head[0].ends_with(" 200 OK"), "{head:?}");
        assert!(head.contains(&"content-type: text/event-stream".to_owned()), "{head:?}");
        Self { lines }
    }

    /// The next event of any kind; nothing if the stream is over or broken.
    fn event(&mut self) -> Option<SentEvent> {
        let mut sent = SentEvent { event: String::new(), id: String::new(), data: Value::Null };
        for line in self.lines.by_ref() {
            let line = line.ok()?;
            match line.split_once(": ") {
                Some(("event", event)) => sent.event = event.to_owned(),
                Some(("id", id)) => sent.id = id.to_owned(),
                Some(("data", data)) => sent.data = serde_json::from_str(data).unwrap(),
                Some(other) => panic!("what is {other:?}?"),
                None => return Some(sent),
            }
        }
        None
    }

    fn change(&mut self) -> Option<SentEvent> {
        loop {
            let event = self.event()?;
            if event.event.is_empty() {
                return Some(event);
            }
            assert_eq!(event.event, "heartbeat", "{event:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_browser_whose_node_is_killed_goes_on_elsewhere_by_its_last_event_id() {
    let mut cluster = Cluster::start(3);
    let first = watch_from(cluster.nodes[0].channel()).await;
    let survivors = Links::to(&cluster.nodes[1..]);
    let mut at_first = SentEvents::open(&cluster.nodes[0], "/v1/watch?prefix=w/", None);
    assert_eq!(at_first.event().unwrap().event, "heartbeat");
    let mut seen = Vec::new();
    for number in 0..6 {
        let lock = format!("w/{number}");
        let grant = survivors.acquire(&long_acquire(&lock, "ü", &lock)).await.answer();
        survivors.release(&lock, &grant).await;
        // The second half happens after the node's end.
        if number < 3 {
            seen.push(at_first.change().unwrap());
        }
        if number == 2 {
            cluster.nodes[0].kill();
        }
    }
    // What was sent before the end, and not read yet.
    while let Some(change) = at_first.change() {
        seen.push(change);
    }
    let last_seen = seen.last().unwrap().id.clone();
    let mut elsewhere = SentEvents::open(&cluster.nodes[2], "/v1/watch?prefix=w/", Some(&last_seen));
    while seen.len() < 12 {
        seen.push(elsewhere.change().unwrap());
    }

    let last = watch_from(cluster.nodes[1].channel()).await - 1;
    let history = replay(&cluster.nodes[1], "w/", first, last).await;
    let mut as_sent = history.iter().map(|change| SentEvent {
        event: String::new(),
        id: format!("{}.{}", change.revision, change.ordinal),
        data: serde_json::to_value(change).unwrap(),
    });
    for event in seen {
        assert_eq!(Some(event), as_sent.next());
    }
    assert_eq!(as_sent.next(), None);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_position_that_a_node_does_not_know_is_refused_and_a_list_tells_where_to_go_on() {
    let mut cluster = Cluster::start(1);
    let before = long_acquire("before", "early", "early");
    let early = Links::to(&cluster.nodes).acquire(&before).await.answer().revision;
    // Whoever joins is given the state as it is, and not what led to it.
    cluster.join();
    let (founder, newcomer) = (&cluster.nodes[0], &cluster.nodes[1]);
    assert_eq!(replay(founder, "", early, early).await.len(), 1);

    let status = Watching::start(&newcomer.channel(), from("", early)).await.err().unwrap();
    assert_eq!(status.code(), Code::OutOfRange);
    let error = ApiError::from_status(&status).unwrap();
    assert_eq!(error.reason.as_str(), "COMPACTED");
    assert!(error.metadata["floor"].parse::<u64>().unwrap() >= early, "{error:?}");
    let status = Watching::start(&newcomer.channel(), after("", &format!("{early}.0"))).await.err().unwrap();
    assert_eq!(ApiError::from_status(&status).unwrap().reason.as_str(), "COMPACTED");
    let path = format!("/v1/watch?from={early}");
    let answer = http_with(newcomer.ports.http, "GET", &path, "", b"").unwrap();
    assert_eq!((answer.status, &answer.json()["reason"]), (410, &json!("COMPACTED")));

    let list = newcomer.ok("GET", "/v1/locks", "");
    assert_eq!(list["locks"][0]["holders"][0]["ownerId"], "early");
    let go_on: u64 = list["watchFrom"].as_str().unwrap().parse().unwrap();
    let mut watching = Watching::start(&newcomer.channel(), from("", go_on)).await.unwrap();
    let later = Links::to([newcomer]).acquire(&long_acquire("after", "late", "late")).await.answer().revision;
    let change = watching.change().await;
    assert_eq!((change.name.as_str(), change.revision), ("after", later));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_position_that_has_not_come_yet_is_refused_at_every_node() {
    let cluster = Cluster::start(3);
    let links = Links::to(&cluster.nodes);
    let next = links.acquire(&long_acquire("l", "o", "one")).await.answer().revision + 1;
    for node in &cluster.nodes {
        let channel = node.channel();
        for (request, reason) in [
            (from("", next + 1000), "INVALID_FROM"),
            (from("", u64::MAX), "INVALID_FROM"),
            (after("", &format!("{}.0", next + 1000)), "INVALID_AFTER"),
            (after("", &(next + 1000).to_string()), "INVALID_AFTER"),
        ] {
            let status = Watching::start(&channel, request.clone()).await.err().unwrap();
            let error = ApiError::from_status(&status).unwrap();
            assert_eq!(error.reason.as_str(), reason, "{request:?}: {error}");
        }
        // The next one may be waited for.
        let mut watching = Watching::start(&channel, from("", next)).await.unwrap();
        assert_eq!(watching.event().await.unwrap().r#type(), EventType::Heartbeat);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_loses_the_leader_says_so_in_its_streams_and_says_when_it_is_back() {
    let cluster = Cluster::start(3);
    let leader = cluster.wait_whole();
    for alone in [leader, (leader + 1) % 3] {
        let lock = format!("lock-{alone}");
        let mut watching = Links::to([&cluster.nodes[alone]]).watch(&lock).await;
        assert!(watching.event().await.unwrap().in_touch);
        let others = cluster.nodes.iter().filter(|node| node.name != cluster.nodes[alone].name);
        others.clone().for_each(Node::pause);
        let paused = Instant::now();
        let lost = in_touch_becomes(&mut watching, false).await;
        println!("out of touch after {} ms", paused.elapsed().as_millis());
        others.for_each(|node| node.signal(Signal::CONT));
        let found = in_touch_becomes(&mut watching, true).await;
        assert!(found.revision >= lost.revision);
        cluster.wait_whole();
        let links = Links::to(&cluster.nodes);
        let grant = links.acquire(&long_acquire(&lock, "o", &lock)).await.answer();
        assert_eq!(watching.change().await.fencing_token, grant.fencing_token, "the same stream goes on");
    }
}

/// Reads until the node says so, without any change in between.
async fn in_touch_becomes(watching: &mut Watching, in_touch: bool) -> WatchEvent {
    let said = async {
        loop {
            let event = watching.event().await.expect("the stream goes on");
            assert_eq!(event.r#type(), EventType::Heartbeat, "{event:?}");
            if event.in_touch == in_touch {
                return event;
            }
        }
    };
    in_time("a word of the leader", said).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_stops_ends_its_streams_with_the_position_to_go_on_from() {
    let mut cluster = Cluster::start(3);
    let leader = cluster.wait_whole();
    let links = Links::to(&cluster.nodes);
    let mut watching = Links::to([&cluster.nodes[leader]]).watch("l").await;
    let path = "/v1/watch?name=l";
    let mut browser = SentEvents::open(&cluster.nodes[leader], path, None);
    let grant = links.acquire(&long_acquire("l", "o", "one")).await.answer();
    assert_eq!(watching.change().await.revision, grant.revision);
    let seen = browser.change().unwrap();

    cluster.nodes[leader].signal(Signal::TERM);
    let end = watching.event().await.unwrap();
    assert_eq!((end.r#type(), end.end_reason.as_str()), (EventType::End, "NODE_STOPPING"));
    assert!(end.revision >= grant.revision);
    assert!(watching.event().await.is_none(), "and nothing comes after it");
    let browser_end = browser.event().unwrap();
    assert_eq!(
        (browser_end.event.as_str(), &browser_end.data["endReason"]),
        ("end", &json!("NODE_STOPPING"))
    );
    assert!(!browser_end.id.is_empty() && browser_end.id >= seen.id);
    assert!(browser.event().is_none());
    assert_eq!(cluster.nodes[leader].wait_exit().code(), Some(0));

    let survivor = &cluster.nodes[(leader + 1) % 3];
    let position = watching.position.unwrap().to_string();
    let mut watching = Watching::start(&survivor.channel(), after("", &position)).await.unwrap();
    Links::to([survivor]).release("l", &grant).await;
    assert_eq!(watching.change().await.r#type(), EventType::Released);
}

/// Makes about so many changes of locks below `h/`, as fast as a few connections can.
async fn change_a_lot(node: &Node, changes: usize) {
    let workers = 320;
    let channels: Vec<Channel> = (0..4).map(|_| node.channel()).collect();
    let mut working = JoinSet::new();
    for worker in 0..workers {
        let mut client = LockServiceClient::new(channels[worker % channels.len()].clone());
        working.spawn(async move {
            let lock = format!("h/{worker}");
            let lease_id = lease(std::slice::from_mut(&mut client), "writer", 600).await;
            for _ in 0..changes.div_ceil(2 * workers) {
                let acquire = AcquireLockRequest {
                    lock_name: lock.clone(),
                    owner_id: "writer".into(),
                    lease_id,
                    // Much, so that not many events fit into the buffers on the way to a reader.
                    value: "v".repeat(2048),
                    ..AcquireLockRequest::default()
                };
                client.acquire_lock(acquire).await.unwrap();
                let release =
                    ReleaseLockRequest { lock_name: lock.clone(), lease_id, ..ReleaseLockRequest::default() };
                client.release_lock(release).await.unwrap();
            }
        });
    }
    while let Some(worked) = working.join_next().await {
        worked.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "makes 53,000 changes: a minute or so"]
async fn a_reader_that_falls_far_behind_is_told_and_a_restart_after_a_snapshot_forgets_what_was_before() {
    let changes = rounds("LOWKEY_LONG_HISTORY", 53_000);
    let mut cluster = Cluster::start(1);
    let first = watch_from(cluster.nodes[0].channel()).await;
    let mut slow = Watching::start(&cluster.nodes[0].channel(), from("h/", first)).await.unwrap();
    assert_eq!(slow.event().await.unwrap().r#type(), EventType::Heartbeat);
    // It reads nothing of this while it happens.
    change_a_lot(&cluster.nodes[0], changes).await;
    let last = watch_from(cluster.nodes[0].channel()).await - 1;

    let mut seen = Vec::new();
    let end = loop {
        let event = slow.event().await.expect("it is told why it ends");
        match event.r#type() {
            EventType::End => break event,
            EventType::Heartbeat => assert!(event.revision < last, "it has caught up"),
            _ => seen.push(bare(event)),
        }
    };
    assert_eq!(end.end_reason, "SLOW_READER");
    let told = seen.len();
    let position = slow.position.unwrap().to_string();
    let mut rest = Watching::start(&cluster.nodes[0].channel(), after("h/", &position)).await.unwrap();
    loop {
        let event = rest.event().await.expect("the stream goes on");
        match event.r#type() {
            EventType::Heartbeat if event.revision >= last => break,
            EventType::Heartbeat => {}
            _ => seen.push(bare(event)),
        }
    }
    assert!(seen == replay(&cluster.nodes[0], "h/", first, last).await, "nothing was lost or repeated");
    assert!(seen.len() >= changes);
    println!("{} changes; the slow reader was ended after {told}", seen.len());

    cluster.nodes[0].kill();
    cluster.nodes[0].start_ready();
    let status = Watching::start(&cluster.nodes[0].channel(), from("h/", first)).await.err().unwrap();
    assert_eq!(ApiError::from_status(&status).unwrap().reason.as_str(), "COMPACTED");
    // What is left is still told from anywhere in it.
    let floor: u64 = ApiError::from_status(&status).unwrap().metadata["floor"].parse().unwrap();
    let kept: Vec<_> = seen.into_iter().filter(|change| change.revision > floor).collect();
    assert!(!kept.is_empty() && floor >= 10_000, "the history begins after {floor}");
    assert!(kept == replay(&cluster.nodes[0], "h/", floor + 1, last).await);
}
