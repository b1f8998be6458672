//! What every SDK has to live through. Each story is one fault or one promise, with a cluster of its own.

use std::time::Duration;

use rustix::process::Signal;
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};

use crate::access::{PRINCIPAL, Pass};
use crate::driver::{Driver, number};
use crate::harness::{Cluster, Node, PATIENCE, eventually};
use crate::languages::{Language, Transport};
use crate::papers::Papers;
use crate::proxy::Proxy;

/// A story, and its title in the table.
pub(crate) struct Story {
    pub(crate) name: &'static str,
    /// It waits for no time to pass: it is played in the gate where the others were played before, on other stages.
    pub(crate) is_quick: bool,
    pub(crate) play: fn(&Stage<'_>),
}

pub(crate) const STORIES: &[Story] = &[
    Story { name: "a lock is taken, kept and given back", is_quick: false, play: taken_kept_given_back },
    Story { name: "three refusals", is_quick: true, play: three_refusals },
    Story { name: "a reply is lost", is_quick: true, play: lost_reply },
    Story { name: "a copy comes late, after it was given up", is_quick: false, play: late_copy },
    Story { name: "acquires are cancelled half-way", is_quick: false, play: cancelled_half_way },
    Story { name: "the leader is killed", is_quick: true, play: leader_killed },
    Story { name: "a node hangs", is_quick: false, play: node_hangs },
    Story { name: "an endpoint is of another cluster", is_quick: false, play: foreign_cluster },
    Story { name: "the process is stopped and goes on", is_quick: false, play: stopped_and_continued },
    Story { name: "a lock is released by force", is_quick: true, play: released_by_force },
    Story { name: "the service is gone past the TTL", is_quick: false, play: service_gone },
    Story { name: "a watch tells all, in order", is_quick: true, play: watched },
    Story { name: "leaders follow one another", is_quick: true, play: elected },
];

/// Where a story is played.
pub(crate) struct Stage<'a> {
    pub(crate) language: &'a Language,
    pub(crate) start: &'a [String],
    /// Everything is encrypted, and each side shows a certificate.
    pub(crate) papers: Option<&'a Papers>,
    /// Access is required.
    pub(crate) pass: Option<&'a Pass>,
}

impl Stage<'_> {
    pub(crate) fn driver(&self) -> Driver {
        let mut credentials = self.papers.map(Papers::of_client).unwrap_or_default();
        if let Some(pass) = self.pass {
            credentials.insert("token_file".to_owned(), json!(pass.file()));
        }
        let mut driver = Driver::start(self.start, credentials);
        if self.pass.is_some() {
            driver.owners_below = format!("{PRINCIPAL}/");
        }
        driver
    }

    /// Nodes of one cluster.
    pub(crate) fn cluster(&self, size: usize) -> Cluster {
        self.closed(Cluster::start_equipped(size, |_, node| self.equip(node)))
    }

    /// The cluster, closed if this is a stage where access is required.
    fn closed(&self, mut cluster: Cluster) -> Cluster {
        if let Some(pass) = self.pass {
            pass.close(&mut cluster);
        }
        cluster
    }

    fn equip(&self, node: &mut Node) {
        if let Some(papers) = self.papers {
            papers.equip(node);
        }
    }

    fn url(&self, port: u16) -> String {
        let scheme = if self.papers.is_some() { "https" } else { "http" };
        format!("{scheme}://127.0.0.1:{port}")
    }

    /// The port of a node that the SDK uses.
    fn port(&self, node: &Node) -> u16 {
        match self.language.transport {
            Transport::Grpc => node.ports.grpc,
            Transport::Http => node.ports.http,
        }
    }

    pub(crate) fn endpoints(&self, cluster: &Cluster) -> Vec<String> {
        cluster.nodes.iter().map(|node| self.url(self.port(node))).collect()
    }

    /// A node behind a proxy. It says of itself that it is there: SDKs follow the leader to where it says.
    fn proxied(&self) -> (Cluster, Proxy) {
        let mut proxy = None;
        let cluster = Cluster::start_equipped(1, |_, node| {
            let made = Proxy::start(self.port(node));
            let flag = match self.language.transport {
                Transport::Grpc => "--advertise-grpc-addr",
                Transport::Http => "--advertise-http-addr",
            };
            node.flags.extend([flag.to_owned(), format!("127.0.0.1:{}", made.port)]);
            self.equip(node);
            proxy = Some(made);
        });
        (self.closed(cluster), proxy.unwrap())
    }

    /// A driver with a client and a session.
    pub(crate) fn at_work(&self, endpoints: &[String], owner: &str, ttl_seconds: u64) -> Driver {
        let mut driver = self.driver();
        driver.client(endpoints, owner);
        driver.session(ttl_seconds);
        driver
    }
}

pub(crate) fn boot_ns() -> u64 {
    let time = clock_gettime(ClockId::Boottime);
    u64::try_from(time.tv_sec).unwrap() * 1_000_000_000 + u64::try_from(time.tv_nsec).unwrap()
}

/// The tokens with which a lock is held, as a node says.
fn tokens(node: &Node, name: &str) -> Vec<u64> {
    let lock = node.ok("GET", &format!("/v1/lock?name={name}"), "");
    lock["holders"].as_array().unwrap().iter().map(|holder| number(&holder["fencingToken"])).collect()
}

fn is_free(node: &Node, name: &str) -> bool {
    tokens(node, name).is_empty()
}

fn taken_kept_given_back(stage: &Stage<'_>) {
    let cluster = stage.cluster(1);
    let endpoints = stage.endpoints(&cluster);
    let mut first = stage.at_work(&endpoints, "first", 5);
    let mut second = stage.at_work(&endpoints, "second", 5);
    let granted = first.does(Driver::acquire("jobs/a", Some(0)));
    assert_eq!(tokens(&cluster.nodes[0], "jobs/a"), [number(&granted["token"])]);
    let waiting = second.send(Driver::acquire("jobs/a", None));
    // Kept by renewals, for more than its time to live.
    let until = boot_ns() + 8_000_000_000;
    while boot_ns() < until {
        assert!(first.is_held("jobs/a"));
        std::thread::sleep(Duration::from_millis(50));
    }
    first.does(json!({"op": "lock.release", "lock": "jobs/a"}));
    let next = second.answer(waiting).unwrap();
    assert!(number(&next["token"]) > number(&granted["token"]));
    second.does(json!({"op": "session.close", "session": "s"}));
    eventually("a closed session holds nothing", || is_free(&cluster.nodes[0], "jobs/a").then_some(()));
    assert!(!first.has_event(|event| event["event"] == "lost"));
}

fn three_refusals(stage: &Stage<'_>) {
    let cluster = stage.cluster(1);
    let endpoints = stage.endpoints(&cluster);
    let mut first = stage.at_work(&endpoints, "first", 30);
    let mut second = stage.at_work(&endpoints, "second", 30);
    first.does(Driver::acquire("a", Some(0)));
    let held = second.fails(Driver::acquire("a", Some(0)), "held");
    assert_eq!((&held["reason"], &held["outcome_unknown"]), (&json!("LOCK_HELD"), &json!(false)));
    second.fails(Driver::acquire("a", Some(300)), "wait_timeout");
    let asked = Driver::acquire("a//b", Some(0));
    let wrong = second.ask(asked).unwrap_err();
    assert!(wrong["kind"] == "invalid" || wrong["kind"] == "refused", "{wrong}");
    assert!(first.is_held("a"));
}

/// The service grants, and the client never hears of it.
fn lost_reply(stage: &Stage<'_>) {
    let (cluster, proxy) = stage.proxied();
    let node = &cluster.nodes[0];
    let mut driver = stage.at_work(&[stage.url(proxy.port)], "first", 20);
    proxy.mute(true);
    let asked = driver.send(Driver::acquire("a", Some(10_000)));
    let granted = eventually("it is granted", || tokens(node, "a").first().copied());
    proxy.reset();
    proxy.mute(false);
    let answer = driver.answer(asked).unwrap();
    assert_eq!(number(&answer["token"]), granted, "asked again, it gets what it has");
    assert_eq!(tokens(node, "a"), [granted]);
    driver.does(json!({"op": "lock.release", "lock": "a"}));
    assert!(is_free(node, "a"));
}

/// A copy of an acquire arrives when its client has given it up: nothing may be left held.
fn late_copy(stage: &Stage<'_>) {
    let (cluster, proxy) = stage.proxied();
    let node = &cluster.nodes[0];
    // The second way is a good one: by it the SDK can say that it gave up.
    let endpoints = [stage.url(proxy.port), stage.url(stage.port(node))];
    let mut driver = stage.at_work(&endpoints, "first", 15);
    proxy.delay(Duration::from_millis(1_500));
    let asked = driver.send(Driver::acquire("a", Some(8_000)));
    std::thread::sleep(Duration::from_millis(300));
    driver.does(json!({"op": "cancel", "target": asked}));
    let _ = driver.answer(asked);
    std::thread::sleep(Duration::from_millis(2_000));
    proxy.delay(Duration::ZERO);
    // Whether the copy came before or after: the session lives on, and holds nothing that nobody has.
    eventually("nothing is left held", || is_free(node, "a").then_some(()));
    std::thread::sleep(Duration::from_millis(500));
    assert!(is_free(node, "a"));
    let status = driver.does(json!({"op": "session.status", "session": "s"}));
    assert_eq!(status["held"], true, "the session itself is well: {status}");
}

fn cancelled_half_way(stage: &Stage<'_>) {
    const COUNT: usize = 200;
    let cluster = stage.cluster(1);
    let node = &cluster.nodes[0];
    let mut driver = stage.at_work(&stage.endpoints(&cluster), "first", 30);
    let name = |number: usize| format!("cancelled/{number}");
    let asked: Vec<u64> =
        (0..COUNT).map(|number| driver.send(Driver::acquire(&name(number), Some(5_000)))).collect();
    for id in &asked {
        driver.send(json!({"op": "cancel", "target": id}));
    }
    let mut held = Vec::new();
    for (number, id) in asked.into_iter().enumerate() {
        match driver.answer(id) {
            Ok(_) => held.push(name(number)),
            Err(error) => assert_eq!(error["kind"], "cancelled", "{error}"),
        }
    }
    eventually("only what the client has is held", || {
        // All of them on one page: on a busy machine most are granted before they are cancelled.
        let (status, text) = node.http("GET", "/v1/locks?prefix=cancelled/&page_size=1000", "")?;
        assert_eq!(status, 200);
        let listed: Value = serde_json::from_str(&text).unwrap();
        (listed["locks"].as_array().unwrap().len() == held.len()).then_some(())
    });
    assert!(held.iter().all(|name| !is_free(node, name)), "what was granted in time is held: {held:?}");
}

fn leader_killed(stage: &Stage<'_>) {
    let mut cluster = stage.cluster(3);
    let mut driver = stage.at_work(&stage.endpoints(&cluster), "first", 30);
    let granted = driver.does(Driver::acquire("a", Some(0)));
    let leader = cluster.wait_whole();
    cluster.nodes[leader].kill();
    // What is asked meanwhile is answered by the next leader.
    driver.does(Driver::acquire("b", Some(10_000)));
    assert!(driver.is_held("a"), "no failover takes a lock away");
    let alive = &cluster.nodes[(leader + 1) % 3];
    eventually("a node tells", || {
        let (status, _) = alive.http("GET", "/v1/lock?name=a", "")?;
        (status == 200).then_some(())
    });
    assert_eq!(tokens(alive, "a"), [number(&granted["token"])]);
    assert!(!driver.has_event(|event| event["event"] == "lost"));
    driver.does(json!({"op": "lock.release", "lock": "a"}));
    driver.does(json!({"op": "lock.release", "lock": "b"}));
}

fn node_hangs(stage: &Stage<'_>) {
    let cluster = stage.cluster(1);
    let proxy = Proxy::start(stage.port(&cluster.nodes[0]));
    proxy.hang(true);
    let endpoints = [stage.url(proxy.port), stage.url(stage.port(&cluster.nodes[0]))];
    let mut driver = stage.at_work(&endpoints, "first", 30);
    driver.does(Driver::acquire("a", Some(0)));
    assert!(driver.is_held("a"));
}

fn foreign_cluster(stage: &Stage<'_>) {
    let (_own, proxy) = stage.proxied();
    let foreign = stage.cluster(1);
    let mut driver = stage.at_work(&[stage.url(proxy.port)], "first", 30);
    driver.does(Driver::acquire("a", Some(0)));
    proxy.turn_to(stage.port(&foreign.nodes[0]));
    proxy.reset();
    let error = driver.ask(Driver::acquire("b", Some(0))).unwrap_err();
    let kind = error["kind"].as_str().unwrap();
    // Where access is required it is a stranger there, and is told so again and again.
    let strange = [json!("UNAUTHENTICATED"), json!("LIMIT_LOGINS")];
    let is_stranger = stage.pass.is_some() && kind == "refused" && strange.contains(&error["reason"]);
    let is_told = is_stranger || ["wrong_cluster", "unavailable", "session_lost"].contains(&kind);
    assert!(is_told, "{error}");
    assert!(is_free(&foreign.nodes[0], "b"), "nothing was taken there");
}

/// R6: a process that was stopped past its time believes nothing when it wakes.
fn stopped_and_continued(stage: &Stage<'_>) {
    let cluster = stage.cluster(1);
    let endpoints = stage.endpoints(&cluster);
    let mut first = stage.at_work(&endpoints, "first", 4);
    let mut second = stage.at_work(&endpoints, "second", 30);
    first.does(Driver::acquire("a", Some(0)));
    first.does(json!({"op": "lock.probe", "lock": "a"}));
    let waiting = second.send(Driver::acquire("a", Some(20_000)));
    first.signal(Signal::STOP);
    let granted = second.answer(waiting).unwrap();
    let woken_ns = boot_ns();
    first.signal(Signal::CONT);
    let probe = first.event("the probe has ended", |event| event["event"] == "probe");
    let last_true_ns = probe["last_true_ns"].as_str().map_or(0, |text| text.parse().unwrap());
    assert!(last_true_ns < number(&granted["at_ns"]), "it believed beside another: {probe} {granted}");
    assert!(last_true_ns < woken_ns, "it believed after it woke: {probe}, woken at {woken_ns}");
    let lost = first.event("the loss is told", |event| event["event"] == "lost" && event["lock"] == "a");
    assert!(number(&lost["at_ns"]) >= woken_ns);
    assert!(second.is_held("a"));
}

fn released_by_force(stage: &Stage<'_>) {
    let cluster = stage.cluster(1);
    let node = &cluster.nodes[0];
    let mut driver = stage.at_work(&stage.endpoints(&cluster), "first", 9);
    let granted = driver.does(Driver::acquire("a", Some(0)));
    driver.does(Driver::acquire("b", Some(0)));
    let body = json!({"lock_name": "a", "lease_id": granted["lease_id"], "fencing_token": granted["token"]});
    node.ok("POST", "/v1/lock/release", &body.to_string());
    let lost = driver.event("the loss is told", |event| event["event"] == "lost" && event["lock"] == "a");
    assert_eq!(lost["cause"], "released_elsewhere", "{lost}");
    assert!(!driver.is_held("a"));
    assert!(driver.is_held("b"), "the session and its other locks are well");
}

/// Without any answer from the network, the loss is told when its time has come.
fn service_gone(stage: &Stage<'_>) {
    let mut cluster = stage.cluster(1);
    let mut driver = stage.at_work(&stage.endpoints(&cluster), "first", 4);
    driver.does(Driver::acquire("a", Some(0)));
    driver.does(json!({"op": "lock.probe", "lock": "a"}));
    cluster.nodes[0].kill();
    let gone_ns = boot_ns();
    let probe = driver.event("the probe has ended", |event| event["event"] == "probe");
    let lost = driver.event("the loss is told", |event| event["event"] == "lost" && event["lock"] == "a");
    assert_eq!(lost["cause"], "expired", "{lost}");
    let first_false_ns = number(&probe["first_false_ns"]);
    // 0.9 of 4 s since a renewal that was sent before the end, and what a busy machine adds.
    let patience_ns = u64::try_from(PATIENCE.as_nanos()).unwrap();
    assert!(first_false_ns < gone_ns + 3_600_000_000 + patience_ns / 30, "{probe}, gone at {gone_ns}");
    assert!(!driver.is_held("a"));
}

fn watched(stage: &Stage<'_>) {
    const COUNT: usize = 20;
    let cluster = stage.cluster(1);
    let endpoints = stage.endpoints(&cluster);
    let mut driver = stage.at_work(&endpoints, "first", 30);
    driver.does(json!({"op": "watch.new", "client": "c", "watch": "w", "prefix": "seen/"}));
    for round in 0..COUNT {
        // A handle is used once.
        let mut acquire = Driver::acquire("seen/a", Some(0));
        acquire["lock"] = round.to_string().into();
        driver.does(acquire);
        driver.does(json!({"op": "lock.release", "lock": round.to_string()}));
    }
    let mut last_token = 0;
    for _ in 0..COUNT {
        let acquired = driver.event("an acquire is told", |event| event["event"] == "watch");
        assert_eq!(
            (&acquired["type"], &acquired["name"]),
            (&json!("ACQUIRED"), &json!("seen/a")),
            "{acquired}"
        );
        let token = number(&acquired["token"]);
        assert!(token > last_token, "{acquired}");
        last_token = token;
        let released = driver.event("a release is told", |event| event["event"] == "watch");
        assert_eq!(released["type"], "RELEASED", "{released}");
    }
    driver.does(json!({"op": "watch.close", "watch": "w"}));
}

fn elected(stage: &Stage<'_>) {
    let cluster = stage.cluster(1);
    let endpoints = stage.endpoints(&cluster);
    let campaign = |value: &str| {
        let mut driver = stage.driver();
        driver.client(&endpoints, value);
        driver.does(json!({
            "op": "elect.new", "client": "c", "elect": "e", "name": "chief", "value": value, "ttl_seconds": 6
        }));
        driver
    };
    let is_elected = |event: &Value| event["event"] == "elected";
    let mut first = campaign("first");
    let lead = first.event("it leads", is_elected);
    let mut second = campaign("second");
    std::thread::sleep(Duration::from_millis(300));
    assert!(!second.has_event(is_elected), "there is one leader");
    first.does(json!({"op": "elect.stop", "elect": "e"}));
    let next = second.event("the next leads", is_elected);
    assert!(number(&next["token"]) > number(&lead["token"]));
    let leader = cluster.nodes[0].ok("GET", "/v1/election/leader?election=chief", "");
    assert_eq!(leader["leader"]["value"].as_str().or(leader["value"].as_str()), Some("second"), "{leader}");
    second.does(json!({"op": "elect.stop", "elect": "e"}));
}
