//! A browser, by the WebDriver protocol: requests with JSON over HTTP to chromedriver, and nothing else.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::{PATIENCE, skip};

const CHROMIUM: &str = "/usr/bin/chromium";
const CHROMEDRIVER: &str = "/usr/bin/chromedriver";

/// So that it needs no screen, no sandbox of the kernel's, and no network beyond this machine.
const FLAGS: [&str; 8] = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
];

/// A browser with one window, and the driver that it is driven by.
pub(crate) struct Browser {
    driver: Child,
    port: u16,
    session: String,
    _profile: TempDir,
}

impl Browser {
    /// Starts one; nothing, and a word, where there is none.
    pub(crate) fn start() -> Option<Self> {
        for program in [CHROMIUM, CHROMEDRIVER] {
            if !Path::new(program).exists() {
                skip(format!("the dashboard in a browser: there is no {program}; .ci/browser installs it"));
                return None;
            }
        }
        let mut driver = Command::new(CHROMEDRIVER)
            .arg("--port=0")
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let port = told_port(&mut driver);
        let profile = tempfile::tempdir().unwrap();
        let folder = format!("--user-data-dir={}", profile.path().display());
        let flags: Vec<&str> = FLAGS.into_iter().chain([folder.as_str()]).collect();
        let mut browser = Self { driver, port, session: String::new(), _profile: profile };
        let wanted = json!({ "capabilities": { "alwaysMatch": {
            "browserName": "chrome",
            "goog:chromeOptions": { "binary": CHROMIUM, "args": flags },
            "goog:loggingPrefs": { "browser": "ALL" },
            "timeouts": { "script": 60_000 },
        } } });
        let told = browser.ask("POST", "/session", &wanted);
        browser.session = format!("/session/{}", told["sessionId"].as_str().unwrap());
        browser.size(1280, 900);
        Some(browser)
    }

    /// Sends a command about the session.
    fn command(&self, path: &str, body: &Value) -> Value {
        self.ask("POST", &format!("{}{path}", self.session), body)
    }

    fn ask(&self, method: &str, path: &str, body: &Value) -> Value {
        let body = if method == "POST" { body.to_string() } else { String::new() };
        let (status, answer) = request(self.port, method, path, &body);
        let answer: Value = serde_json::from_str(&answer).unwrap_or_else(|error| panic!("{error}: {answer}"));
        assert_eq!(status, 200, "{method} {path} {body}: {answer}");
        answer["value"].clone()
    }

    /// Goes to an address.
    pub(crate) fn go(&self, url: &str) {
        self.command("/url", &json!({ "url": url }));
    }

    /// Runs the body of a function in the page, and gives what it returns.
    pub(crate) fn run(&self, script: &str, arguments: Value) -> Value {
        self.command("/execute/sync", &json!({ "script": script, "args": arguments }))
    }

    /// The same with a function that is asynchronous.
    pub(crate) fn run_async(&self, script: &str, arguments: Value) -> Value {
        let script = format!(
            "const done = arguments[arguments.length - 1];
             (async (...args) => {{ {script} }})(...arguments).then(done, (error) => done(`failed: ${{error}}`));"
        );
        self.command("/execute/async", &json!({ "script": script, "args": arguments }))
    }

    /// Waits until a script returns something that is true, and gives that.
    pub(crate) fn wait(&self, what: &str, script: &str, arguments: Value) -> Value {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let found = self.run(script, arguments.clone());
            if !matches!(found, Value::Null | Value::Bool(false)) {
                return found;
            }
            assert!(
                Instant::now() < deadline,
                "waited in vain: {what}; the page says:\n{}",
                self.text("body")
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Waits until an element has this text in it.
    pub(crate) fn wait_text(&self, selector: &str, text: &str) {
        let script = "return [...document.querySelectorAll(arguments[0])].some((it) => \
                      (it.textContent ?? '').includes(arguments[1]))";
        self.wait(&format!("{selector} has “{text}”"), script, json!([selector, text]));
    }

    /// The visible text of the first such element; empty if there is none.
    pub(crate) fn text(&self, selector: &str) -> String {
        let script = "return document.querySelector(arguments[0])?.innerText ?? ''";
        self.run(script, json!([selector])).as_str().unwrap_or_default().to_owned()
    }

    /// Clicks on an element with the mouse, as a person would: it must be there, and nothing above it.
    pub(crate) fn click(&self, selector: &str) {
        let element = self.command("/element", &json!({ "using": "css selector", "value": selector }));
        let id = element.as_object().and_then(|found| found.values().next()).and_then(Value::as_str).unwrap();
        self.command(&format!("/element/{id}/click"), &json!({}));
    }

    /// Presses keys, in the element that has the focus.
    pub(crate) fn press(&self, keys: &[&str]) {
        let presses =
            |key: &&str| [json!({"type": "keyDown", "value": key}), json!({"type": "keyUp", "value": key})];
        let actions: Vec<Value> = keys.iter().flat_map(presses).collect();
        self.command(
            "/actions",
            &json!({ "actions": [{ "type": "key", "id": "keyboard", "actions": actions }] }),
        );
    }

    /// Types a text, letter by letter.
    pub(crate) fn type_text(&self, text: &str) {
        let letters: Vec<String> = text.chars().map(String::from).collect();
        self.press(&letters.iter().map(String::as_str).collect::<Vec<_>>());
    }

    /// What the DevTools protocol has and WebDriver has not.
    pub(crate) fn devtools(&self, command: &str, parameters: Value) -> Value {
        self.command("/goog/cdp/execute", &json!({ "cmd": command, "params": parameters }))
    }

    /// Makes the page this large, narrower than any window may be.
    pub(crate) fn size(&self, width: u32, height: u32) {
        let metrics = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": false });
        self.devtools("Emulation.setDeviceMetricsOverride", metrics);
    }

    /// As a user who likes it `dark`, or `light`.
    pub(crate) fn scheme(&self, scheme: &str) {
        let features = json!([{ "name": "prefers-color-scheme", "value": scheme }]);
        self.devtools("Emulation.setEmulatedMedia", json!({ "features": features }));
    }

    /// What the window shows, as a PNG file.
    pub(crate) fn picture(&self) -> Vec<u8> {
        let told = self.ask("GET", &format!("{}/screenshot", self.session), &Value::Null);
        from_base64(told.as_str().unwrap())
    }

    /// What the browser complained about since the last look, violations of the policy among it. That a request
    /// found no node, or was refused, is no fault of the page.
    pub(crate) fn complaints(&self) -> Vec<String> {
        let told = self.command("/se/log", &json!({ "type": "browser" }));
        let about = |entry: &Value| format!("{}: {}", entry["source"], entry["message"]);
        told.as_array().unwrap().iter().filter(|entry| entry["source"] != "network").map(about).collect()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        if std::thread::panicking() && !self.session.is_empty() {
            // What a person would look at first.
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                eprintln!("--- the page\n{}\n--- complaints\n{:#?}", self.text("body"), self.complaints());
            }));
        }
        if !self.session.is_empty() {
            // Ends the browser, which the driver's own end would not.
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                request(self.port, "DELETE", &self.session, "")
            }));
        }
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}

/// The port that the driver says it has found.
fn told_port(driver: &mut Child) -> u16 {
    let mut out = BufReader::new(driver.stdout.take().unwrap());
    let mut line = String::new();
    loop {
        line.clear();
        assert!(out.read_line(&mut line).unwrap() > 0, "chromedriver has ended");
        let told = line.split_once("started successfully on port ");
        if let Some(port) = told.and_then(|(_, port)| port.trim_end().trim_end_matches('.').parse().ok()) {
            // Nobody reads on: it must not stop at a pipe that is full.
            std::thread::spawn(move || std::io::copy(&mut out, &mut std::io::sink()));
            return port;
        }
    }
}

fn request(port: u16, method: &str, path: &str, body: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(90))).unwrap();
    let length = body.len();
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\ncontent-type: application/json\r\n\
         connection: close\r\ncontent-length: {length}\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(body.as_bytes()).unwrap();
    let mut answer = BufReader::new(stream);
    let (mut status, mut length) = (0, 0);
    loop {
        let mut line = String::new();
        answer.read_line(&mut line).unwrap();
        let line = line.trim_end().to_ascii_lowercase();
        if line.starts_with("http/") {
            status = line.split(' ').nth(1).unwrap().parse().unwrap();
        } else if let Some(given) = line.strip_prefix("content-length:") {
            length = given.trim().parse().unwrap();
        } else if line.is_empty() {
            break;
        }
    }
    let mut body = vec![0; length];
    answer.read_exact(&mut body).unwrap();
    (status, String::from_utf8(body).unwrap())
}

fn from_base64(text: &str) -> Vec<u8> {
    const LETTERS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let value = |letter: u8| LETTERS.iter().position(|known| *known == letter).map(|at| at as u32);
    let values: Vec<u32> = text.bytes().filter_map(value).collect();
    let mut bytes = Vec::with_capacity(values.len() * 3 / 4);
    for four in values.chunks(4) {
        let bits = four.iter().fold(0, |bits, value| bits << 6 | value) << (6 * (4 - four.len()));
        bytes.extend_from_slice(&bits.to_be_bytes()[1..four.len()]);
    }
    bytes
}

#[test]
fn base64_is_understood() {
    assert_eq!(from_base64("bG93a2V5"), b"lowkey");
    assert_eq!(from_base64("bG93a2U="), b"lowke");
    assert_eq!(from_base64("bG93aw=="), b"lowk");
}
