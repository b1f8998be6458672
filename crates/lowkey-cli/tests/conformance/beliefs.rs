//! Programs in all languages contend for the same locks, while they are stopped past their TTL and leaders are killed
//! and stand still. What each SDK said that it holds is a belief. A watcher sees what was granted, and the judge of the
//! chaos tests holds the two against each other.
//!
//! Longer: `LOWKEY_CONFORMANCE_BELIEFS_SECONDS=60`.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use lowkey_api::Position;
use lowkey_api::v1::lock_service_client::LockServiceClient;
use lowkey_api::v1::{EventType, WatchEvent, WatchRequest};
use lowkey_core::{LeaseId, Mode, Scope, Token};
use lowkey_sim::judge::{PlainClaim, Random};
use rustix::process::Signal;
use serde_json::json;
use tonic::Streaming;
use tonic::transport::Channel;

use crate::driver::{Driver, number};
use crate::harness::{Cluster, Node, PATIENCE, eventually, rounds};
use crate::history::{Answer, Asked, Belief, Call, History, Outcome, Watched, lock_name, now, position};
use crate::judge::{around, judge};
use crate::languages::Transport;
use crate::stories::Stage;

const PREFIX: &str = "shared/";
const LOCKS: &[&str] = &["shared/1", "shared/2"];
/// The lock whose grant is the last event that is watched for.
const LAST: &str = "shared/last";
const PROGRAMS_OF_A_LANGUAGE: usize = 2;
const TTL_SECONDS: u64 = 3;
/// Longer than a lease lives from its last renewal on.
const STOP: Duration = Duration::from_millis(3_500);
/// Long enough for the other nodes to elect somebody else.
const FAULT: Duration = Duration::from_secs(2);

/// What one program was told, and said that it believes.
#[derive(Default)]
struct Said {
    calls: Vec<Call>,
    beliefs: Vec<Belief>,
    stops: usize,
}

struct Program {
    driver: Driver,
    owner: String,
    random: Random,
    /// Sessions and locks that it has asked for: their handles are used once.
    asked: u64,
    said: Said,
}

impl Program {
    fn run(mut self, is_over: &AtomicBool) -> Said {
        let mut session = None;
        while !is_over.load(Ordering::Relaxed) {
            session = match session {
                None => self.begin_session(),
                Some(session) => self.hold(&session).then_some(session),
            };
        }
        self.said
    }

    fn handle(&mut self) -> String {
        self.asked += 1;
        format!("{}-{}", self.owner, self.asked)
    }

    fn begin_session(&mut self) -> Option<String> {
        let session = self.handle();
        let command =
            json!({"op": "session.new", "client": "c", "session": session, "ttl_seconds": TTL_SECONDS});
        self.driver.ask(command).ok().map(|_| session)
    }

    /// Takes a lock, believes for a while, and gives it back or is stopped. False if the session is of no use any more.
    fn hold(&mut self, session: &str) -> bool {
        let (lock, name) = (self.handle(), *self.random.pick(LOCKS));
        let invoked = now();
        // The value tells the judge which request was granted.
        let granted = self.driver.ask(json!({
            "op": "lock.acquire", "session": session, "lock": lock, "name": name, "value": lock, "wait_ms": 1_000
        }));
        let claim = |lease: Option<u64>| PlainClaim {
            lock: lock_name(name),
            lease: lease.map(LeaseId),
            mode: Mode::Exclusive,
            scope: Scope::Name,
        };
        let granted = match granted {
            Ok(granted) => granted,
            Err(error) => {
                let outcome = Outcome::Unknown(error["kind"].to_string());
                let asked = Asked::Acquire { claim: claim(None) };
                self.said.calls.push(Call::ended_now(&self.owner, lock, asked, invoked, outcome));
                return error["kind"] == "held" || error["kind"] == "wait_timeout";
            }
        };
        let (token, lease) = (Token(number(&granted["token"])), number(&granted["lease_id"]));
        let claim = claim(Some(lease));
        // A driver does not say at which revision. The watcher knows, and fills it in.
        let answer = Answer::Granted { token, lease: LeaseId(lease), revision: 0, waited_ms: 0 };
        let asked = Asked::Acquire { claim: claim.clone() };
        self.said.calls.push(Call::ended_now(&self.owner, &*lock, asked, invoked, Outcome::Yes(answer)));
        self.driver.does(json!({"op": "lock.probe", "lock": lock}));
        thread::sleep(Duration::from_millis(self.random.between(20, 300)));
        let is_stopped = self.random.one_in(8);
        let mut until = u64::MAX;
        if is_stopped {
            self.driver.signal(Signal::STOP);
            thread::sleep(STOP);
            self.driver.signal(Signal::CONT);
            self.said.stops += 1;
        } else if let Ok(released) = self.driver.ask(json!({"op": "lock.release", "lock": lock})) {
            until = number(&released["at_ns"]);
        }
        // It says no for the first time: the release, the loss, or the end of what it could count on.
        let probe = self.driver.event("the probe has ended", |event| {
            event["event"] == "probe" && event["lock"] == lock.as_str()
        });
        if let Some(last_true) = probe["last_true_ns"].as_str() {
            let (from, last_true) = (number(&granted["at_ns"]), last_true.parse().unwrap());
            let (owner, until) = (self.owner.clone(), until.min(last_true));
            self.said.beliefs.push(Belief { owner, claim, token, from, until, renews_every: None });
        }
        !is_stopped
    }
}

/// All that happens to the locks behind a revision, at whatever node is there to tell, up to the grant of the last one.
async fn watch(nodes: Vec<LockServiceClient<Channel>>, revision: u64) -> Watched {
    let mut watched = Watched { prefix: PREFIX.to_owned(), ..Watched::default() };
    let mut after = Position::whole(revision);
    let deadline = Instant::now() + PATIENCE + longest();
    for turn in (0..nodes.len()).cycle() {
        let request =
            WatchRequest { prefix: PREFIX.to_owned(), after: after.to_string(), ..WatchRequest::default() };
        let mut client = nodes[turn].clone();
        let refusal = match client.watch(request).await {
            Ok(stream) => match follow(stream.into_inner(), &mut watched, &mut after).await {
                true => return watched,
                false => None,
            },
            Err(status) => Some(status),
        };
        assert!(
            Instant::now() < deadline,
            "the last grant was never told of, only up to {after}: {refusal:?}"
        );
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    unreachable!("there are nodes");
}

/// One stream. True if it told of the last grant.
async fn follow(mut stream: Streaming<WatchEvent>, watched: &mut Watched, after: &mut Position) -> bool {
    watched.streams += 1;
    // A node that stands still says nothing, and does not end the stream.
    while let Ok(Ok(Some(event))) = tokio::time::timeout(FAULT, stream.message()).await {
        match event.r#type() {
            EventType::Heartbeat => *after = Position::whole(event.revision),
            EventType::End => return false,
            _ => {
                *after = position(&event);
                let is_last = event.name == LAST;
                watched.events.push((now(), event));
                if is_last {
                    return true;
                }
            }
        }
    }
    false
}

fn longest() -> Duration {
    Duration::from_secs(rounds("LOWKEY_CONFORMANCE_BELIEFS_SECONDS", 10) as u64)
}

/// Kills the leader, and has the next one stand still.
fn break_nodes(cluster: &mut Cluster, end: Instant) -> usize {
    let mut faults = 0;
    while Instant::now() < end || faults < 2 {
        let leader = cluster.wait_whole();
        if faults % 2 == 0 {
            cluster.nodes[leader].kill();
            cluster.nodes[leader].start_ready();
        } else {
            cluster.nodes[leader].pause();
            thread::sleep(FAULT);
            cluster.nodes[leader].signal(Signal::CONT);
        }
        faults += 1;
        thread::sleep(FAULT);
    }
    cluster.wait_whole();
    faults
}

/// The revision of each grant that a program was told of, from the watcher. What that one never saw stays at 0, and is
/// judged as a grant that is nowhere.
fn fill_in_revisions(history: &mut History) {
    let events = history.watched.iter().flat_map(|watched| &watched.events);
    let acquired = events.filter(|(_, event)| event.r#type() == EventType::Acquired);
    let by_token: BTreeMap<u64, u64> =
        acquired.map(|(_, event)| (event.fencing_token, event.revision)).collect();
    for call in &mut history.calls {
        if let Outcome::Yes(Answer::Granted { token, revision, .. }) = &mut call.outcome {
            *revision = by_token.get(&token.0).copied().unwrap_or(0);
        }
    }
}

fn grant_last(node: &Node) {
    let body = json!({"lock_name": LAST, "owner_id": "harness", "ttl_seconds": 60}).to_string();
    eventually("the last lock is granted", || {
        (node.http("POST", "/v1/lock/acquire", &body)?.0 == 200).then_some(())
    });
}

#[test]
fn programs_in_all_languages_never_believe_beside_each_other() {
    let languages = crate::languages();
    if languages.is_empty() {
        return;
    }
    let mut cluster = Cluster::start(3);
    let revision = cluster.nodes.iter().map(|node| node.log_position().1).max().unwrap();
    let url = |port: u16| format!("http://127.0.0.1:{port}");
    let mut programs = Vec::new();
    for (language, start) in languages.iter() {
        let stage = Stage { language, start, papers: None, pass: None };
        let endpoints: Vec<String> = cluster
            .nodes
            .iter()
            .map(|node| match language.transport {
                Transport::Grpc => url(node.ports.grpc),
                Transport::Http => url(node.ports.http),
            })
            .collect();
        for place in 0..PROGRAMS_OF_A_LANGUAGE {
            let owner = format!("{}-{place}", language.name);
            let mut driver = stage.driver();
            driver.client(&endpoints, &owner);
            let random = Random::new(programs.len() as u64 + 1);
            programs.push(Program { driver, owner, random, asked: 0, said: Said::default() });
        }
    }
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let clients = runtime.block_on(async { cluster.nodes.iter().map(Node::channel).collect::<Vec<_>>() });
    let clients = clients.into_iter().map(LockServiceClient::new).collect();
    let watching = runtime.spawn(watch(clients, revision));
    let is_over = AtomicBool::new(false);
    let end = Instant::now() + longest();
    let (said, faults) = thread::scope(|scope| {
        let is_over = &is_over;
        let running: Vec<_> =
            programs.into_iter().map(|program| scope.spawn(move || program.run(is_over))).collect();
        let faults = break_nodes(&mut cluster, end);
        is_over.store(true, Ordering::Relaxed);
        let said: Vec<Said> = running.into_iter().map(|running| running.join().unwrap()).collect();
        (said, faults)
    });
    grant_last(&cluster.nodes[0]);
    let mut history = History { watched: vec![runtime.block_on(watching).unwrap()], ..History::default() };
    let stops: usize = said.iter().map(|said| said.stops).sum();
    for one in said {
        history.calls.extend(one.calls);
        history.beliefs.extend(one.beliefs);
    }
    fill_in_revisions(&mut history);
    let found = judge(&history);
    for finding in &found {
        println!("{}: {}", finding.violation.invariant, finding.violation.what);
        around(&history, finding).iter().for_each(|line| println!("    {line}"));
    }
    assert!(found.is_empty(), "{} promises were broken: see above", found.len());
    for (language, _) in languages.iter() {
        let believed =
            history.beliefs.iter().filter(|belief| belief.owner.starts_with(language.name)).count();
        println!("{}: {believed} times a lock was believed to be held", language.name);
        assert!(believed > 0, "{} held something", language.name);
    }
    println!("{faults} leaders were killed or stopped, and {stops} programs stopped");
    condemns_a_belief_that_lasts_too_long(history);
}

/// The judge sees these histories: one belief that goes on into that of the next holder is found.
fn condemns_a_belief_that_lasts_too_long(mut history: History) {
    history.beliefs.sort_by_key(|belief| belief.from);
    let next = |place: usize| {
        let one = &history.beliefs[place];
        let of_others = |other: &&Belief| other.claim.excludes(&one.claim) && other.from < other.until;
        history.beliefs[place + 1..].iter().find(of_others).map(|other| (place, other.until))
    };
    let (place, until) = (0..history.beliefs.len()).find_map(next).expect("a lock was held twice");
    history.beliefs[place].until = until;
    let found = judge(&history);
    let is_it = |invariant| found.iter().any(|finding| finding.violation.invariant == invariant);
    assert!(is_it("mutual exclusion") && is_it("expiry"), "{found:?}");
}
