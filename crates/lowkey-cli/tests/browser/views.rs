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

/// More rows than the audit view shows at once.
const ENDED: usize = 600;

#[test]
fn the_audit_view_shows_the_last_that_ended_and_finds_what_is_asked_for() {
    let Some(stage) = Stage::set(1) else { return };
    let browser = &stage.browser;
    stage.show("audit");
    browser.wait_text(".empty", "Nothing was found.");
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let endpoint = format!("http://127.0.0.1:{}", stage.node().ports.grpc);
    runtime.block_on(async {
        let client = lowkey_client::Client::connect([endpoint]).await.unwrap();
        let guards = crate::many::hold_many(&client, ENDED).await;
        for guard in guards {
            guard.release().await.unwrap();
        }
    });
    let lease = stage.lease("worker-1");
    let token = stage.hold("billing/nightly", "worker-1", lease, "");
    stage.release("billing/nightly", lease);
    let first = "return document.querySelector('tbody tr')?.textContent.includes(arguments[0]) && \
                 document.querySelectorAll('tbody tr').length";
    // Asked for anew: nothing tells a search that there is more by now.
    stage.show("audit?");
    assert_eq!(browser.wait("the last that ended is the first", first, json!(["billing/nightly"])), 500);
    browser.wait_text("main", "The last 500: there are more.");
    for (search, rows) in [
        ("lock=billing%2Fnightly".to_owned(), 1),
        ("owner=worker-1".to_owned(), 1),
        (format!("token={token}"), 1),
        ("lock=billing%2F&cause=released&since=3600".to_owned(), 1),
        ("lock=shop%2F".to_owned(), 500),
        ("lock=shop%2Forders%2F000007".to_owned(), 1),
    ] {
        let told = if search.contains("shop") { "shop/orders/" } else { "billing/nightly" };
        stage.show(&format!("audit?{search}"));
        assert_eq!(browser.wait(&search, first, json!([told])), rows, "{search}");
    }
    stage.show("audit?owner=nobody");
    browser.wait_text(".empty", "Nothing was found.");
    stage.show("audit?token=x");
    browser.wait_text(".empty", "That cannot be searched for.");
    stage.assert_no_complaints();
}

#[test]
fn numbers_above_what_a_browser_can_count_with_are_told_exactly() {
    let Some(stage) = Stage::formed(3) else { return };
    let browser = &stage.browser;
    let lease = stage.lease("worker-1");
    let mut tokens = Vec::new();
    for _ in 0..3 {
        tokens.push(stage.hold("billing/nightly", "worker-1", lease, ""));
        stage.release("billing/nightly", lease);
    }
    tokens.push(stage.hold("billing/nightly", "worker-1", lease, ""));
    assert!(tokens[0] > 1 << 53, "this is about large numbers: {tokens:?}");

    stage.show("locks");
    browser.wait("the lock", ROW, json!(["nightly", "worker-1", tokens[3].to_string()]));
    // Revisions that differ by less than a double tells apart. Nothing is read anew meanwhile.
    let script = "const { open } = await import('/ui/locks.js');
        const [store] = open('');
        const lock = store.locks.get('billing/nightly');
        const told = { lockName: 'other', holders: [{ fencingToken: '1' }], waiters: [], holderCount: 1, waiterCount: 0, coveredBy: '', revision: args[0] };
        store.put(told, true);
        store.apply({ type: 'RELEASED', name: 'other', fencingToken: '1', revision: args[1], inTouch: true });
        return [lock.holders.length, store.locks.has('other')];";
    let revision = 1_u64 << 57;
    let seen = browser.run_async(script, json!([revision.to_string(), (revision + 1).to_string()]));
    assert_eq!(seen, json!([1, false]), "a release one revision later counts");

    stage.show("lock/billing%2Fnightly");
    let order = "const told = [...document.querySelectorAll('.story .number')].map((it) => it.textContent); \
                 return told.length >= arguments[0].length && told.join() === arguments[0].join()";
    // Each grant tells its token and its lease.
    let told: Vec<String> =
        tokens.iter().rev().flat_map(|token| [token.to_string(), lease.to_string()]).collect();
    browser.wait("its story, the last grant first", order, json!([told]));
    std::thread::sleep(Duration::from_secs(2));
    let asked = "return performance.getEntriesByType('resource').filter((it) => it.name.includes('/v1/watch')).length";
    let asked = browser.run(asked, json!([])).as_u64().unwrap();
    assert!(asked < 10, "it asked {asked} times where to begin");
    stage.show(&format!("audit?token={}", tokens[0]));
    browser.wait("the grant", ROW, json!(["billing/nightly", tokens[0].to_string()]));
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
