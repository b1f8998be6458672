//! Whether people can use it: with a keyboard, with a screen reader, in the dark, on a telephone. And how it looks.

use std::path::PathBuf;

use serde_json::json;

use crate::stage::Stage;

/// What is wrong for people who see little or nothing: see the script.
const CHECKS: &str = include_str!("checks.js");

const VIEWS: [(&str, &str); 8] = [
    ("overview", ""),
    ("locks", "locks"),
    ("longest-queue", "locks?sort=queue"),
    ("lock", "lock/billing%2Fnightly"),
    ("elections", "elections"),
    ("sessions", "sessions"),
    ("audit", "audit"),
    ("cluster", "cluster"),
];

/// A cluster in which something is held by everybody.
fn furnished(nodes: usize) -> Option<(Stage, Vec<std::net::TcpStream>)> {
    let stage = Stage::set(nodes)?;
    let leases: Vec<u64> = (1..=3).map(|number| stage.lease(&format!("worker-{number}"))).collect();
    for (at, lock) in
        ["billing/nightly", "billing/invoices/eu", "billing/invoices/us", "reports/daily"].iter().enumerate()
    {
        stage.hold(lock, &format!("worker-{}", at % 3 + 1), leases[at % 3], "");
    }
    stage.release("billing/nightly", leases[0]);
    stage.hold("billing/nightly", "worker-2", leases[1], "");
    stage.hold("scheduler", "worker-1", leases[0], "http://10.0.0.1:4000");
    let waits = ["worker-4", "worker-5"].map(|owner| stage.queue("billing/nightly", owner));
    Some((stage, waits.into()))
}

/// Waits until the view has what it is going to have.
fn wait_loaded(stage: &Stage) {
    let script = "const main = document.querySelector('main').innerText; \
                  return main.length > 20 && !/Loading…|Asking|Searching…|so far…/.test(main)";
    stage.browser.wait("the view has loaded", script, json!([]));
}

#[test]
fn labels_contrast_and_order_are_good_in_every_view() {
    let Some((stage, _waits)) = furnished(1) else { return };
    for scheme in ["light", "dark"] {
        stage.browser.scheme(scheme);
        for width in [1280, 360] {
            stage.browser.size(width, 800);
            for (name, view) in VIEWS {
                stage.show(view);
                wait_loaded(&stage);
                let found = stage.browser.run(CHECKS, json!([]));
                assert_eq!(found, json!([]), "{name}, {scheme}, {width} pixels wide");
            }
        }
    }
    stage.assert_no_complaints();
}

#[test]
fn a_keyboard_is_enough() {
    let Some((stage, _waits)) = furnished(1) else { return };
    let browser = &stage.browser;
    stage.show("locks");
    browser.wait_text(".row", "nightly");
    // The search: a slash leads to it, and it filters while one types.
    browser.press(&["/"]);
    browser.type_text("billing/in");
    browser.wait_text(".summary", "2 locks under “billing/in”");
    assert!(browser.run("return location.hash", json!([])).as_str().unwrap().contains("billing"));
    // From there to the list: the button, the order, the rows.
    browser.press(&["\u{e004}", "\u{e004}", "\u{e004}"]);
    let focused = "return document.activeElement.className";
    assert_eq!(browser.run(focused, json!([])), "rows-scroller");
    let arrow_down = "\u{e015}";
    browser.press(&[arrow_down, arrow_down]);
    let marked = "const row = document.getElementById(document.activeElement.getAttribute('aria-activedescendant')); \
                  return Boolean(row) && row.textContent.includes('eu')";
    browser.wait("the row is marked", marked, json!([]));
    browser.press(&["\u{e007}"]);
    browser.wait_text("h1", "billing/invoices/eu");
    // A number leads to a view.
    browser.press(&["4"]);
    browser.wait_text("h1", "Sessions");
}

/// Until the overview has something to tell.
fn do_something(stage: &Stage) {
    let lease = stage.lease("deployer");
    let has_much = "return document.querySelectorAll('.news .badge').length >= 8 && \
                    [...document.querySelectorAll('polyline')].every((line) => line.points.length > 4)";
    crate::harness::eventually("the overview has much to tell", || {
        stage.hold("deploy/web", "deployer", lease, "");
        stage.release("deploy/web", lease);
        (stage.browser.run(has_much, json!([])) == true).then_some(())
    });
}

/// The pictures of the documents, and of every view for a person who looks at them.
#[test]
fn pictures_of_every_view() {
    let Some((stage, _waits)) = furnished(3) else { return };
    let folder = std::env::var_os("LOWKEY_SCREENSHOTS").map(PathBuf::from);
    for (scheme, width, height) in [("light", 1280, 800), ("dark", 1280, 800), ("light", 360, 740)] {
        stage.browser.scheme(scheme);
        stage.browser.size(width, height);
        for (name, view) in VIEWS {
            stage.show(view);
            wait_loaded(&stage);
            if name == "overview" {
                do_something(&stage);
            }
            let overflow =
                "return document.documentElement.scrollWidth - document.documentElement.clientWidth";
            assert!(
                stage.browser.run(overflow, json!([])).as_i64().unwrap() <= 0,
                "{name} is wider than {width}"
            );
            let picture = stage.browser.picture();
            assert!(picture.starts_with(b"\x89PNG"), "{name}");
            let kind = if width == 360 { "narrow" } else { scheme };
            if let Some(folder) = &folder {
                std::fs::write(folder.join(format!("dashboard-{name}-{kind}.png")), &picture).unwrap();
            }
        }
    }
}

/// How soon something is to be seen, as the browser itself measures it.
#[test]
fn the_first_paint_is_quick() {
    let Some(stage) = Stage::set(1) else { return };
    stage.show("");
    stage.browser.wait_text("#where", "leads");
    let script = "return performance.getEntriesByType('paint').find((it) => it.name === 'first-contentful-paint')?.startTime ?? false";
    let paint = stage.browser.wait("the first paint", script, json!([]));
    let script = "return performance.getEntriesByType('resource').map((it) => new URL(it.name).origin)";
    let origins = stage.browser.run(script, json!([]));
    let own = format!("http://127.0.0.1:{}", stage.node().ports.http);
    assert!(
        origins.as_array().unwrap().iter().all(|origin| origin.as_str() == Some(own.as_str())),
        "{origins}"
    );
    println!("first contentful paint after {paint} ms");
    assert!(paint.as_f64().unwrap() < 5_000.0, "{paint}");
}
