//! Very many locks: the page stays usable.

use std::time::Instant;

use futures::future::join_all;
use lowkey_client::Client;
use serde_json::json;
use std::time::Duration;

use crate::stage::Stage;

/// How many, unless `LOWKEY_BROWSER_LOCKS` says so. The aim is 100,000; a debug build makes these in some seconds.
const USUAL: usize = 20_000;
const LEASES: usize = 20;
/// A lease is told its end long after the test.
const TTL: Duration = Duration::from_secs(600);
/// What a busy machine may do to a task that takes a tenth of that.
const TASK_MS_MAX: f64 = 2_000.0;

#[test]
fn very_many_locks_scroll_and_change() {
    let Some(stage) = Stage::set(1) else { return };
    let count =
        std::env::var("LOWKEY_BROWSER_LOCKS").ok().and_then(|text| text.parse().ok()).unwrap_or(USUAL);
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let endpoint = format!("http://127.0.0.1:{}", stage.node().ports.grpc);
    let client = runtime.block_on(Client::connect([endpoint])).unwrap();
    let guards = runtime.block_on(hold_many(&client, count));
    println!("{count} locks are held");
    assert_eq!(guards.len(), count);

    let browser = &stage.browser;
    stage.show("audit");
    browser.wait_text("h1", "Audit");
    browser.run(
        "window.tasks = []; new PerformanceObserver((list) => window.tasks.push(...list.getEntries().map((it) => it.duration))).observe({ entryTypes: ['longtask'] })",
        json!([]),
    );
    let longest = |what: &str| {
        let longest = browser
            .run("const most = Math.max(0, ...window.tasks); window.tasks = []; return most", json!([]));
        println!("{count} locks, {what}: the longest task took {longest} ms");
        assert!(longest.as_f64().unwrap() < TASK_MS_MAX, "{what}: {longest}");
    };
    let asked = Instant::now();
    browser.run("location.hash = '#/locks'", json!([]));
    let told = format!("{} locks, ", with_commas(count));
    browser.wait_text(".summary", &told);
    println!("{count} locks are listed after {} ms", asked.elapsed().as_millis());
    longest("listing");
    let rows = "return [...document.querySelectorAll('.row')].filter((row) => !row.hidden).length";
    assert!(browser.run(rows, json!([])).as_u64().unwrap() < 60, "only what is seen exists");

    let scroll = "const list = document.querySelector('.rows-scroller');
                  const frame = () => new Promise((done) => requestAnimationFrame(done));
                  for (let at = 0; at <= 100; at += 1) { list.scrollTop = (list.scrollHeight * at) / 100; await frame(); }
                  await frame();
                  await frame();
                  return [...document.querySelectorAll('.row')].some((row) => !row.hidden && row.textContent.includes(args[0]))";
    let last = format!("{:06}", count - 1);
    assert_eq!(browser.run_async(scroll, json!([last])), true, "the last one is at the end");
    longest("scrolling");

    // A thousand changes a second, as far as the machine makes them, in the view that sorts.
    browser.run("location.hash = '#/locks?sort=queue'", json!([]));
    browser.wait_text(".summary", &told);
    let started = Instant::now();
    let changed = runtime.block_on(change_much(&client));
    println!("{changed} changes in {} ms", started.elapsed().as_millis());
    longest("many changes");
    let heap = "return performance.memory.usedJSHeapSize / 1048576";
    println!("the page's heap: {} MiB", browser.run(heap, json!([])));
    drop(guards);
}

fn with_commas(count: usize) -> String {
    if count < 1000 { count.to_string() } else { format!("{},{:03}", count / 1000, count % 1000) }
}

pub(crate) async fn hold_many(client: &Client, count: usize) -> Vec<lowkey_client::LockGuard> {
    let mut guards = Vec::with_capacity(count);
    for lease in 0..LEASES {
        let session = client.session(TTL).await.unwrap();
        let numbers: Vec<usize> = (0..count).filter(|number| number % LEASES == lease).collect();
        for some in numbers.chunks(100) {
            let acquires = some.iter().map(|number| {
                let lock = session.lock(format!("shop/orders/{number:06}"));
                async move { lock.acquire().await.unwrap() }
            });
            guards.extend(join_all(acquires).await);
        }
    }
    guards
}

/// Takes locks and gives them back for some seconds; how many changes that were.
async fn change_much(client: &Client) -> usize {
    let session = client.session(TTL).await.unwrap();
    let until = Instant::now() + Duration::from_secs(5);
    let work = (0..16).map(|worker| {
        let session = session.clone();
        async move {
            let mut changes = 0;
            while Instant::now() < until {
                let guard = session.lock(format!("shop/carts/{worker}")).acquire().await.unwrap();
                guard.release().await.unwrap();
                changes += 2;
                tokio::time::sleep(Duration::from_millis(30)).await;
            }
            changes
        }
    });
    join_all(work).await.into_iter().sum()
}
