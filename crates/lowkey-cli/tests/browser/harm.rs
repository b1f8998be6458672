//! Names that want to be markup, pages that want to be this one, and the policy that keeps both out.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;

use serde_json::json;

use crate::stage::Stage;

/// What runs if any view takes a text for markup. It is a valid name, owner and value.
const HOSTILE: &str = "<img src=x onerror='window.harmed=1'>";
/// The same behind a quote, for whoever puts a name into an attribute.
const QUOTED: &str = "\"><script>window.harmed=1<";

/// What a name has done, if anything: a global, or an element that is not the page's own.
const HARM: &str = "return window.harmed === undefined && document.querySelector('img:not(.brand img), script:not([src]), [onerror]') === null";

#[test]
fn hostile_names_owners_and_values_stay_text_in_every_view() {
    let Some(stage) = Stage::set(1) else { return };
    let browser = &stage.browser;
    let lease = stage.lease(HOSTILE);
    stage.hold(HOSTILE, HOSTILE, lease, HOSTILE);
    stage.hold(QUOTED, HOSTILE, lease, QUOTED);
    stage.hold("javascript:window.harmed=1", HOSTILE, lease, "javascript:window.harmed=1");
    let _waits = stage.queue(HOSTILE, QUOTED);
    let subject = |name: &str| name.bytes().fold(String::new(), |text, byte| format!("{text}%{byte:02X}"));
    let views = [
        String::new(),
        "locks".to_owned(),
        "locks?sort=queue".to_owned(),
        format!("locks?prefix={}", subject(HOSTILE)),
        format!("lock/{}", subject(HOSTILE)),
        format!("lock/{}", subject(QUOTED)),
        "elections".to_owned(),
        "sessions".to_owned(),
        format!("sessions?owner={}", subject(HOSTILE)),
        format!("session/{lease}"),
        format!("session/{}", subject(HOSTILE)),
        format!("audit?lock={}", subject(HOSTILE)),
        "cluster".to_owned(),
        subject(HOSTILE),
    ];
    for view in &views {
        stage.show(view);
        let shows_names = ["locks", "locks?sort=queue", "elections", "sessions"].contains(&view.as_str());
        if shows_names {
            browser.wait_text("main", HOSTILE);
        }
        // The overview tells what happens from now on.
        if view.is_empty() {
            browser.wait_text("#where", "leads");
            stage.hold(&format!("{HOSTILE}{QUOTED}"), HOSTILE, lease, "");
            browser.wait_text(".news", HOSTILE);
        }
        browser.wait(
            "the view has something",
            "return document.querySelector('main').innerText.length > 10",
            json!([]),
        );
        assert_eq!(browser.run(HARM, json!([])), true, "{view}: {}", browser.text("main"));
    }
    // What asks before it acts tells names too.
    stage.show(&format!("session/{lease}"));
    browser.wait_text("h2", "Holds");
    browser.click("#revoke");
    browser.wait_text("dialog", HOSTILE);
    assert_eq!(browser.run(HARM, json!([])), true);
    stage.assert_no_complaints();
}

#[test]
fn the_policy_lets_no_text_become_code() {
    let Some(stage) = Stage::set(1) else { return };
    stage.show("");
    stage.browser.wait_text("#where", "leads");
    // What a mistake of ours could look like. The browser refuses each, whoever asks for it.
    let refused = stage.browser.run_async(
        "let tried = 0;
         const fails = (what) => { try { what(); } catch { tried += 1; } };
         fails(() => { document.body['inner' + 'HTML'] = '<b>x</b>'; });
         fails(() => { document.createElement('script').text = 'window.harmed = 1'; });
         const style = document.createElement('p');
         style.setAttribute('style', 'color: red');
         document.body.append(style);
         const isPlain = getComputedStyle(style).color !== 'rgb(255, 0, 0)';
         let elsewhere = 'let in';
         await fetch('http://127.0.0.1:9/').catch((error) => { elsewhere = 'refused'; });
         return [tried, isPlain, elsewhere];",
        json!([]),
    );
    assert_eq!(refused, json!([2, true, "refused"]));
    assert!(!stage.browser.complaints().is_empty(), "and the browser says so: what the other tests look for");
}

/// Serves one page to everybody, at another port: another origin, though of the same site.
fn elsewhere(page: &'static str) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let Ok(mut stream) = stream else { return };
            let _ = stream.read(&mut [0; 4096]);
            let length = page.len();
            let _ = write!(
                stream,
                "HTTP/1.1 200 OK\r\ncontent-type: text/html\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{page}"
            );
        }
    });
    port
}

#[test]
fn a_page_of_another_origin_can_neither_read_nor_write_nor_frame() {
    let Some(stage) = Stage::set(1) else { return };
    let browser = &stage.browser;
    let lease = stage.lease("worker-1");
    let node = format!("http://127.0.0.1:{}", stage.node().ports.http);
    browser.go(&format!("http://127.0.0.1:{}/", elsewhere("<!doctype html><title>elsewhere</title>")));
    let read = "return fetch(args[0] + '/v1/locks').then((answer) => answer.text(), () => 'refused')";
    assert_eq!(browser.run_async(read, json!([node])), "refused");
    // A request that the browser sends without asking first, as forms do: the node itself must refuse it.
    let write = "return fetch(args[0] + '/v1/lease/revoke', { method: 'POST', mode: 'no-cors', body: args[1] }).then((answer) => answer.type, () => 'refused')";
    let body = json!({ "leaseId": lease, "ownerId": "worker-1" }).to_string();
    browser.run_async(write, json!([node, body]));
    assert_eq!(
        stage.node().http("GET", &format!("/v1/lease?lease_id={lease}"), "").unwrap().0,
        200,
        "it lives"
    );
    let frame = "const frame = document.createElement('iframe');
                 frame.src = args[0] + '/ui/';
                 const loaded = new Promise((resolve) => { frame.onload = resolve; });
                 document.body.append(frame);
                 await loaded;
                 try { return frame.contentDocument === null ? 'foreign' : 'own'; } catch { return 'foreign'; }";
    browser.run_async(frame, json!([node]));
    let complaints = browser.complaints();
    let framing = |told: &String| told.contains("frame-ancestors") || told.contains("X-Frame-Options");
    assert!(complaints.iter().any(framing), "the browser says that it did not frame it: {complaints:?}");
    // A link from there leads here: that is how people share views.
    let link = "const link = document.createElement('a'); link.href = arguments[0]; link.textContent = 'there'; \
                link.id = 'there'; document.body.replaceChildren(link)";
    browser.run(link, json!([format!("{node}/ui#/locks")]));
    browser.click("#there");
    browser.wait_text("h1", "Locks");
    assert!(browser.run("return location.href", json!([])).as_str().unwrap().ends_with("/ui/#/locks"));
}
