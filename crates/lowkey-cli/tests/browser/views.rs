//! Each view shows what the API says, and changes show soon.

use std::time::Duration;

use serde_json::json;

use crate::harness::eventually;
use crate::stage::{Stage, number};

/// Half a second is what is promised; a machine may be busy with much else.
const SOON: Duration = Duration::from_secs(5);

/// True once some row of the list has all these texts.
const ROW: &str = "return [...document.querySelectorAll('.row, tbody tr, .card, .news li, .story li')].some((row) => \
                   !row.hidden && [...arguments].every((text) => row.textContent.includes(text)))";

#[test]
fn every_view_shows_what_the_api_says() {
    let Some(stage) = Stage::set(3) else { return };
    let (browser, node) = (&stage.browser, stage.node());
    let lease = stage.lease("worker-1");
    let token = stage.hold("billing/nightly", "worker-1", lease, "");
    stage.hold("scheduler", "worker-1", lease, "http://10.0.0.1:4000");
    let _waits = stage.queue("billing/nightly", "worker-2");
    eventually("worker-2 waits", || {
        let lock = node.ok("GET", "/v1/lock?name=billing/nightly", "");
        (lock["waiterCount"] == 1).then_some(())
    });

    stage.show("");
    browser.wait_text("#where", "3/3 nodes");
    browser.wait("the numbers are there", "return [...document.querySelectorAll('.tile strong')].slice(0, 3).map((it) => it.textContent).join() === '2,1,2'", json!([]));
    let leader = node.status().unwrap()["leaderId"].as_str().unwrap().to_owned();
    browser.wait_text(".card", &leader);

    stage.show("locks");
    let told = node.ok("GET", "/v1/lock?name=billing/nightly", "");
    assert_eq!(told["holders"][0]["fencingToken"], token.to_string());
    browser.wait("the lock in the tree", ROW, json!(["nightly", "worker-1", token.to_string()]));
    browser.wait("the branch above it", ROW, json!(["billing/", "1 waiting"]));
    stage.show("locks?prefix=sched&sort=queue");
    browser.wait_text(".summary", "1 lock under “sched”");

    stage.show("lock/billing%2Fnightly");
    browser.wait("its holder", ROW, json!(["worker-1", token.to_string(), lease.to_string()]));
    browser.wait("its queue", ROW, json!(["1", "worker-2", "alone"]));
    browser.wait("its story", ROW, json!(["worker-1", "holds it"]));

    stage.show("elections");
    browser.wait("the election", ROW, json!(["scheduler", "worker-1", "http://10.0.0.1:4000"]));

    stage.show("sessions");
    browser.wait("the session", ROW, json!(["worker-1", lease.to_string(), "600 s"]));
    stage.show(&format!("session/{lease}"));
    browser.wait_text("h2", "Holds 2 locks");

    stage.show("cluster");
    let member = node.ok("GET", "/v1/cluster/status", "")["nodes"][2]["member"].clone();
    browser.wait("the nodes", ROW, json!([member["nodeId"], member["grpcAddress"]]));
    stage.assert_no_complaints();
}

#[test]
fn changes_show_soon_and_a_way_back_leads_back() {
    let Some(stage) = Stage::set(1) else { return };
    let browser = &stage.browser;
    let lease = stage.lease("worker-1");
    stage.show("locks");
    browser.wait_text(".empty", "No lock is held.");
    let hold = || _ = stage.hold("jobs/a", "worker-1", lease, "");
    let held = stage.delay("a lock is held", hold, ROW, json!(["a", "worker-1"]));
    let mut waiting = None;
    let queue = || waiting = Some(stage.queue("jobs/a", "worker-2"));
    let queued = stage.delay("somebody waits", queue, ROW, json!(["a", "worker-1", "1"]));
    let handed =
        stage.delay("it is handed over", || stage.release("jobs/a", lease), ROW, json!(["a", "worker-2"]));
    assert!([held, queued, handed].iter().all(|delay| *delay < SOON), "{held:?} {queued:?} {handed:?}");

    browser.click(".c-name a[href]");
    browser.wait_text("h1", "jobs/a");
    browser.wait("the story of both", ROW, json!(["worker-1", "released", "after"]));
    browser.run("history.back()", json!([]));
    browser.wait("the list again", ROW, json!(["a", "worker-2"]));
    let next = stage.lease_of("jobs/a");
    let shown = "return document.querySelector('.empty') !== null";
    stage.delay("nothing is held", || stage.release("jobs/a", next), shown, json!([]));
    stage.assert_no_complaints();
}

impl Stage {
    fn lease_of(&self, lock: &str) -> u64 {
        let lock = self.node().ok("GET", &format!("/v1/lock?name={lock}"), "");
        number(&lock["holders"][0]["leaseId"])
    }
}

#[test]
fn a_killed_leader_shows_and_so_does_a_page_without_its_node() {
    let Some(mut stage) = Stage::set(3) else { return };
    let leader = stage.cluster.wait_leader(None);
    let here = (leader + 1) % 3;
    let names: Vec<String> = stage.cluster.nodes.iter().map(|node| node.name.clone()).collect();
    stage.browser.go(&stage.url_at(here, ""));
    stage.browser.wait_text("#where", "3/3 nodes");
    let dead = names[leader].clone();
    stage.cluster.nodes[leader].kill();
    let script = "return [...document.querySelectorAll('.card.gone')].some((card) => card.textContent.includes(arguments[0]))";
    let gone = stage.delay("the leader is gone", || {}, script, json!([dead]));
    assert!(gone < SOON, "{gone:?}");
    let next = stage.cluster.wait_leader(Some(leader));
    stage.browser.wait_text("#where", &format!("{} leads", names[next]));
    stage.browser.wait_text(".problems", "the loss of one more stops the cluster");

    stage.cluster.nodes[here].kill();
    stage.browser.wait_text("#banner", "Connection lost, retrying.");
    assert_eq!(
        stage.browser.run("return document.body.className", json!([])),
        "old",
        "no number looks as if it were of now"
    );
    stage.browser.wait_text("#banner a", &names[3 - leader - here]);
    stage.cluster.nodes[here].start_ready();
    stage.browser.wait(
        "the connection is back",
        "return document.getElementById('banner').hidden",
        json!([]),
    );
    stage.browser.wait_text(".problems", &dead);
    stage.assert_no_complaints();
}

#[test]
fn an_admin_revokes_and_transfers_behind_a_question() {
    let Some(stage) = Stage::set(3) else { return };
    let (browser, node) = (&stage.browser, stage.node());
    let lease = stage.lease("worker-1");
    stage.hold("jobs/a", "worker-1", lease, "");
    let lease_path = format!("/v1/lease?lease_id={lease}");

    stage.show(&format!("session/{lease}"));
    browser.wait_text("h2", "Holds 1 lock");
    browser.click("#revoke");
    browser.wait_text("dialog", "go to whoever waits next");
    // Who presses Enter at once has done nothing.
    browser.press(&["\u{e007}"]);
    browser.wait("the question is gone", "return document.querySelector('dialog') === null", json!([]));
    assert_eq!(node.http("GET", &lease_path, "").unwrap().0, 200);
    browser.click("#revoke");
    browser.wait_text("dialog", "Revoke lease");
    browser.click("dialog .danger");
    browser.wait_text(".empty", "This lease is over.");
    browser.wait_text("#spoken", "1 lock released");
    assert_eq!(node.http("GET", &lease_path, "").unwrap().0, 404);

    stage.show("cluster");
    let status = node.ok("GET", "/v1/cluster/status", "");
    let next = status["nodes"].as_array().unwrap().iter().find(|node| node["state"] == "follower").unwrap();
    let (number, name) = (number(&next["member"]["memberId"]), next["member"]["nodeId"].as_str().unwrap());
    let button = format!("#lead-{number}");
    browser.wait("the button", "return document.querySelector(arguments[0]) !== null", json!([button]));
    browser.click(&button);
    browser.wait_text("dialog", "No lock and no lease ends by this.");
    browser.click("dialog .danger");
    browser.wait_text("#where", &format!("{name} leads"));
    stage.assert_no_complaints();
}

#[test]
fn the_audit_view_says_what_there_is() {
    let Some(stage) = Stage::set(1) else { return };
    stage.show("audit");
    if stage.node().http("GET", "/v1/audit", "").unwrap().0 == 404 {
        stage.browser.wait_text(".empty", "This node keeps no audit trail.");
    } else {
        stage.browser.wait_text(".empty", "Nothing was found.");
    }
    stage.assert_no_complaints();
}

#[test]
fn the_cluster_status_is_told_in_any_state() {
    let mut cluster = crate::harness::Cluster::start(3);
    let leader = cluster.wait_leader(None);
    let told = cluster.nodes[(leader + 1) % 3].ok("GET", "/v1/cluster/status", "");
    assert_eq!(told["leaderId"], cluster.nodes[leader].name);
    let nodes = told["nodes"].as_array().unwrap();
    assert!(nodes.iter().all(|node| node["problem"] == "" && number(&node["term"]) > 0), "{told}");
    assert_eq!(
        nodes.iter().filter(|node| node["member"]["reachable"] == true).count(),
        3,
        "as the leader says: {told}"
    );
    assert!(nodes.iter().all(|node| number(&node["counters"]["upMs"]) > 0), "{told}");
    eventually("the disk was looked at", || {
        let told = cluster.nodes[leader].ok("GET", "/v1/cluster/status", "");
        let nodes = told["nodes"].as_array().unwrap();
        nodes.iter().all(|node| number(&node["diskSizeBytes"]) > 0).then_some(())
    });
    // One stands still, one is dead: the third tells so, and does not wait for either.
    cluster.nodes[(leader + 1) % 3].pause();
    cluster.nodes[leader].kill();
    let asked = std::time::Instant::now();
    let told = cluster.nodes[(leader + 2) % 3].ok("GET", "/v1/cluster/status", "");
    let problems = told["nodes"].as_array().unwrap().iter().filter(|node| node["problem"] != "").count();
    assert_eq!(problems, 2, "{told}");
    assert!(asked.elapsed() < SOON, "{:?}", asked.elapsed());
    cluster.nodes[(leader + 1) % 3].signal(rustix::process::Signal::CONT);
}
