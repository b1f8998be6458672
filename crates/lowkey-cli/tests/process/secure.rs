//! Nodes with encrypted ports: from nothing to mutual TLS, what is refused, and certificates that change.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lowkey_client::{Client, Tls};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use crate::cli::lowkey;
use crate::clients::in_time;
use crate::harness::{Node, eventually, rounds, skip};

/// Never to be seen anywhere.
const SECRET: &str = "lk_7_PLANTEDSECRETPLANTEDSECRETPLANTEDSECRET";
/// A line of every private key.
const KEY_LINE: &str = "PRIVATE KEY";

/// A folder with certificates, and nodes that use them.
struct Secure {
    folder: TempDir,
    nodes: Vec<Node>,
}

impl Secure {
    /// Makes certificates with the three commands, and starts nodes.
    fn start(nodes: usize) -> Self {
        Self::start_with(nodes, &[])
    }

    fn start_with(nodes: usize, more: &[&str]) -> Self {
        let mut secure = Self { folder: tempfile::tempdir().unwrap(), nodes: Vec::new() };
        for words in [&["ca"][..], &["node"], &["client", "billing"]] {
            secure.cert(words);
        }
        for number in 1..=nodes {
            let (certificate, key, ca) =
                (secure.file("node.pem"), secure.file("node-key.pem"), secure.file("ca.pem"));
            let mut flags = vec!["--tls-cert", &certificate, "--tls-key", &key, "--tls-client-ca", &ca];
            let join = secure.nodes.first().map(|node| format!("127.0.0.1:{}", node.ports.grpc));
            flags.extend(more);
            match &join {
                Some(join) => flags.extend(["--join", join]),
                None => flags.push("--bootstrap"),
            }
            let mut node = Node::new(secure.folder.path(), &format!("node-{number}"), &flags);
            node.start();
            secure.nodes.push(node);
        }
        eventually("all nodes are there", || {
            let output = secure.billing(&["status", "--json"]).output().unwrap();
            let status: Value = serde_json::from_slice(&output.stdout).ok()?;
            (status["clusterSize"] == nodes && status["leaderId"] != "").then_some(())
        });
        secure
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join("certs").join(name)
    }

    fn file(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    /// `lowkey cert` in this folder, which must succeed.
    fn cert(&self, words: &[&str]) -> Value {
        let output = self.cert_output(words);
        assert!(output.status.success(), "{words:?}: {output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    fn cert_output(&self, words: &[&str]) -> Output {
        lowkey().arg("cert").args(words).args(["--json", "--dir"]).arg(self.path("")).output().unwrap()
    }

    /// A command without any credentials.
    fn command(&self, words: &[&str]) -> Command {
        let endpoints: Vec<String> =
            self.nodes.iter().map(|node| format!("https://127.0.0.1:{}", node.ports.grpc)).collect();
        let mut command = lowkey();
        command
            .args(words)
            .env("LOWKEY_ENDPOINTS", endpoints.join(","))
            .env("LOWKEY_CA", self.path("ca.pem"));
        command
    }

    /// A command as the client `billing`.
    fn billing(&self, words: &[&str]) -> Command {
        let mut command = self.command(words);
        command.env("LOWKEY_CERT", self.path("billing.pem")).env("LOWKEY_KEY", self.path("billing-key.pem"));
        command
    }

    fn tls(&self) -> Tls {
        Tls::new().ca(self.path("ca.pem")).identity(self.path("billing.pem"), self.path("billing-key.pem"))
    }
}

/// The one line of a command that failed with this status.
fn refused(command: &mut Command, code: i32) -> String {
    let output = command.output().unwrap();
    let line = String::from_utf8(output.stderr).unwrap();
    assert_eq!((output.status.code(), line.lines().count()), (Some(code), 1), "{line}");
    line
}

fn printed(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn three_commands_make_mutual_tls_and_commands_work_with_it() {
    let secure = Secure::start(3);
    for key in ["ca-key.pem", "node-key.pem", "billing-key.pem"] {
        assert_eq!(std::fs::metadata(secure.path(key)).unwrap().permissions().mode() & 0o777, 0o600);
    }
    let token = printed(&mut secure.billing(&["acquire", "deploy", "--ttl", "60s", "--json"]));
    assert!(token.contains("fencingToken"), "{token}");
    assert!(printed(&mut secure.billing(&["ls"])).contains("deploy"));
    // The command under the lock learns about the lock, and nothing of the credentials.
    let seen = printed(&mut secure.billing(&["run", "nightly", "--", "env"]));
    assert!(seen.contains("LOWKEY_TOKEN=") && seen.contains("LOWKEY_ENDPOINTS="), "{seen}");
    for variable in ["LOWKEY_CA", "LOWKEY_CERT", "LOWKEY_KEY", "LOWKEY_AUTH_FILE"] {
        assert!(!seen.contains(&format!("{variable}=")), "{seen}");
    }
    // A probe asks the node that it names, not the leader, with the same.
    for node in &secure.nodes {
        let mut probe = secure.billing(&["health", "--ready"]);
        let probe = probe.env("LOWKEY_ENDPOINTS", format!("https://127.0.0.1:{}", node.ports.grpc));
        assert_eq!(printed(probe), format!("ok: {} answers\n", node.name));
    }
    let no_certificate = refused(&mut secure.command(&["health"]), 64);
    assert!(no_certificate.contains("--cert and --key"), "{no_certificate}");
    // The same by flags.
    let flags = ["--ca", &secure.file("ca.pem"), "--cert", &secure.file("billing.pem"), "--key"];
    let mut by_flags = secure.command(&["status"]);
    by_flags.env_remove("LOWKEY_CA").args(flags).arg(secure.path("billing-key.pem"));
    assert!(printed(&mut by_flags).contains("node-3"));
}

#[test]
fn certificates_are_not_overwritten_unless_that_is_wished() {
    let secure = Secure { folder: tempfile::tempdir().unwrap(), nodes: Vec::new() };
    let without_ca = secure.cert_output(&["node"]);
    assert!(String::from_utf8_lossy(&without_ca.stderr).contains("lowkey cert ca"), "{without_ca:?}");
    secure.cert(&["ca"]);
    let made = secure.cert(&["node", "--host", "node-1.example.com,10.0.0.1"]);
    assert_eq!(
        made["names"],
        serde_json::json!(["node-1.example.com", "10.0.0.1", "localhost", "127.0.0.1", "::1"])
    );
    let before = std::fs::read(secure.path("node-key.pem")).unwrap();
    let again = secure.cert_output(&["node"]);
    assert_eq!(again.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&again.stderr).contains("--force"), "{again:?}");
    assert_eq!(std::fs::read(secure.path("node-key.pem")).unwrap(), before);
    secure.cert(&["node", "--force"]);
    assert_ne!(std::fs::read(secure.path("node-key.pem")).unwrap(), before);
    let files = std::fs::read_dir(secure.path("")).unwrap().count();
    assert_eq!(files, 4, "nothing else is left there");
}

#[test]
fn who_connects_wrongly_is_told_in_one_sentence_what_to_do() {
    let secure = Secure::start(1);
    let endpoint = format!("127.0.0.1:{}", secure.nodes[0].ports.grpc);
    // Another CA, by which nobody here goes.
    let other = Secure { folder: tempfile::tempdir().unwrap(), nodes: Vec::new() };
    for words in [&["ca"][..], &["client", "billing"]] {
        other.cert(words);
    }
    let no_certificate = refused(&mut secure.command(&["status"]), 64);
    assert!(no_certificate.contains("--cert and --key"), "{no_certificate}");
    let mut foreign = secure.command(&["status"]);
    foreign.env("LOWKEY_CERT", other.path("billing.pem")).env("LOWKEY_KEY", other.path("billing-key.pem"));
    let foreign = refused(&mut foreign, 64);
    assert!(foreign.contains("--tls-client-ca"), "{foreign}");
    let untrusting = refused(secure.billing(&["status"]).env("LOWKEY_CA", other.path("ca.pem")), 64);
    assert!(untrusting.contains("not signed by the CA in") && untrusting.contains("--ca"), "{untrusting}");
    let plain = refused(&mut secure.billing(&["status", "--endpoints", &format!("http://{endpoint}")]), 64);
    assert!(plain.contains(&format!("https://{endpoint}")), "{plain}");
    let not_a_pair = refused(secure.billing(&["status"]).env("LOWKEY_KEY", secure.path("ca-key.pem")), 64);
    assert!(not_a_pair.contains("is not the key of"), "{not_a_pair}");
    let half = refused(secure.command(&["status"]).env("LOWKEY_CERT", secure.path("billing.pem")), 64);
    assert!(half.contains("--key"), "{half}");

    // The other way round: TLS to a port without it.
    let folder = tempfile::tempdir().unwrap();
    let mut bare = Node::new(folder.path(), "bare", &["--bootstrap"]);
    bare.start_ready();
    let to_plain = format!("https://127.0.0.1:{}", bare.ports.grpc);
    let to_plain = refused(&mut secure.billing(&["status", "--endpoints", &to_plain]), 64);
    assert!(to_plain.contains("does not speak TLS") && to_plain.contains("http://"), "{to_plain}");
    eventually("its log says so", || bare.log_text().contains("give the node --tls-cert").then_some(()));
    eventually("the log tells about the others", || {
        let log = secure.nodes[0].log_text();
        let told = [
            "demands one",
            "no CA of --tls-client-ca",
            "does not trust the certificate",
            "must use https://",
        ];
        told.iter().all(|words| log.contains(words)).then_some(())
    });
}

/// How often the node has taken in new files.
fn reloads(node: &Node) -> usize {
    node.log_text().matches("new TLS files are in use").count()
}

#[test]
fn a_bad_pair_keeps_the_old_one_and_the_log_says_what_to_do() {
    let secure = Secure::start(1);
    let node = &secure.nodes[0];
    std::fs::copy(secure.path("ca-key.pem"), secure.path("node-key.pem")).unwrap();
    node.signal(Signal::HUP);
    eventually("the log says so", || {
        let log = node.log_text();
        (log.contains("is not the key of the certificate") && log.contains("SIGHUP")).then_some(())
    });
    assert!(printed(&mut secure.billing(&["status"])).contains("node-1"));
    secure.cert(&["node", "--force"]);
    node.signal(Signal::HUP);
    eventually("the good one is taken", || (reloads(node) == 1).then_some(()));
    assert!(printed(&mut secure.billing(&["status"])).contains("node-1"));
}

/// Takes and releases a lock until it is over; the number of pairs.
async fn load(secure: &Secure, name: &str, is_over: &AtomicBool, reconnects: bool) -> usize {
    let connect = || async {
        let endpoints = secure.nodes.iter().map(|node| format!("https://127.0.0.1:{}", node.ports.grpc));
        let client = Client::builder(endpoints).tls(secure.tls()).connect();
        in_time("a connection", client).await.unwrap()
    };
    let (mut client, mut pairs) = (connect().await, 0);
    let mut session = client.session(Duration::from_secs(30)).await.unwrap();
    while !is_over.load(Ordering::Relaxed) {
        let guard = in_time("a lock", session.lock(name).acquire()).await.unwrap();
        in_time("its release", guard.release()).await.unwrap();
        pairs += 1;
        if reconnects {
            session.close().await.unwrap();
            client = connect().await;
            session = client.session(Duration::from_secs(30)).await.unwrap();
        }
    }
    drop(client);
    pairs
}

#[test]
fn certificates_are_replaced_under_load_ten_times_and_no_call_fails() {
    let secure = Arc::new(Secure::start(3));
    let is_over = Arc::new(AtomicBool::new(false));
    let worker = |name: &'static str, reconnects| {
        let (secure, is_over) = (Arc::clone(&secure), Arc::clone(&is_over));
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(load(&secure, name, &is_over, reconnects))
        })
    };
    let workers = [worker("steady", false), worker("anew", true)];
    for round in 1..=10 {
        secure.cert(&["node", "--force"]);
        secure.cert(&["client", "billing", "--force"]);
        for node in &secure.nodes {
            node.signal(Signal::HUP);
            eventually("the new certificate is in use", || (reloads(node) >= round).then_some(()));
        }
    }
    is_over.store(true, Ordering::Relaxed);
    let pairs = workers.map(|worker| worker.join().expect("no call failed"));
    println!("ten new certificates: {} pairs on one connection, {} on a new one each", pairs[0], pairs[1]);
    assert!(pairs.iter().all(|pairs| *pairs > 0));
}

#[test]
fn lowkey_dev_shows_it_in_one_command_and_leaves_nothing_behind() {
    let mut dev = lowkey().args(["dev", "--secure", "--json"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(dev.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let told: Value = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"));
    let text = |field: &str| told[field].as_str().unwrap().to_owned();
    let endpoints: Vec<&str> =
        told["endpoints"].as_array().unwrap().iter().map(|url| url.as_str().unwrap()).collect();
    assert!(endpoints.len() == 3 && endpoints.iter().all(|url| url.starts_with("https://")), "{line}");
    let mut status = lowkey();
    status
        .args(["status", "--json"])
        .env("LOWKEY_ENDPOINTS", endpoints.join(","))
        .env("LOWKEY_CA", text("ca"));
    let line = String::from_utf8(status.output().unwrap().stderr).unwrap();
    let refused_without: Value = serde_json::from_str(&line).unwrap();
    let refused_without = refused_without["error"].as_str().unwrap();
    assert!(refused_without.contains("--cert and --key"), "{refused_without}");
    let status = printed(status.env("LOWKEY_CERT", text("cert")).env("LOWKEY_KEY", text("key")));
    assert_eq!(serde_json::from_str::<Value>(&status).unwrap()["clusterSize"], 3);
    kill_process(Pid::from_child(&dev), Signal::TERM).unwrap();
    eventually("it ends", || dev.try_wait().unwrap());
    assert!(!Path::new(&text("folder")).exists(), "keys are left behind");
}

#[test]
fn half_open_handshakes_lock_nobody_out() {
    let count = rounds("LOWKEY_HALF_OPEN", 1000);
    let secure = Secure::start_with(1, &["--max-connections", "200"]);
    let ports = secure.nodes[0].ports;
    let half_open = |number: usize| {
        let port = if number.is_multiple_of(2) { ports.grpc } else { ports.http };
        let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
        // The beginning of a hello; or of a record that never comes; or nothing.
        let beginnings: [&[u8]; 3] = [&[22, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3], &[22], &[]];
        // A node that was faster has closed it by now.
        let _ = stream.write_all(beginnings[number % 3]);
        stream
    };
    let mut crowd = Vec::new();
    for number in 0..count {
        crowd.push(half_open(number));
        if number.is_multiple_of(count / 4) {
            printed(&mut secure.billing(&["acquire", &format!("lock-{number}"), "--ttl", "60s"]));
        }
    }
    printed(&mut secure.billing(&["run", "nightly", "--", "true"]));
    drop(crowd);
}

/// All text that is left behind: the logs of nodes, and command lines of processes.
fn left_behind(secure: &Secure) -> String {
    let logs = secure.nodes.iter().map(Node::log_text);
    let lines = secure.nodes.iter().map(|node| {
        let text = |file: &str| std::fs::read(format!("/proc/{}/{file}", node.pid())).unwrap();
        String::from_utf8_lossy(&[text("cmdline"), text("environ")].concat()).into_owned()
    });
    logs.chain(lines).collect()
}

#[test]
fn no_secret_is_in_a_log_an_error_or_a_process_list() {
    let secure = Secure::start(1);
    let token = secure.folder.path().join("token");
    std::fs::write(&token, SECRET).unwrap();
    let key = std::fs::read_to_string(secure.path("billing-key.pem")).unwrap();
    let key_text = key.lines().nth(1).unwrap().to_owned();
    let shown = |path: &Path, endpoint: Option<&str>, words: &[&str]| {
        let mut command = secure.billing(words);
        command.env("LOWKEY_AUTH_FILE", path).env("RUST_LOG", "trace");
        if let Some(endpoint) = endpoint {
            command.env("LOWKEY_ENDPOINTS", endpoint);
        }
        let output = command.output().unwrap();
        String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
    };
    let mut seen = String::new();
    for words in
        [&["status"][..], &["acquire", "a", "--ttl", "5s"], &["run", "b", "--", "env"], &["ls", "--json"]]
    {
        seen += &shown(&token, None, words);
    }
    // Files in each other's place, a token to another machine without TLS, and one that is none.
    seen += &shown(&secure.path("billing-key.pem"), None, &["status"]);
    seen += &shown(&token, Some("http://10.255.255.1:9000"), &["status"]);
    let broken = secure.folder.path().join("broken");
    std::fs::write(&broken, format!("{SECRET} {SECRET}")).unwrap();
    seen += &shown(&broken, None, &["status"]);
    let mut swapped = secure.billing(&["status"]);
    swapped.env("LOWKEY_CERT", secure.path("billing-key.pem"));
    seen += &refused(&mut swapped, 64);
    assert!(seen.contains("over https:// only") && seen.contains("has no token"), "{seen}");
    std::fs::copy(&token, secure.path("node-key.pem")).unwrap();
    secure.nodes[0].signal(Signal::HUP);
    eventually("the log says so", || secure.nodes[0].log_text().contains("has no private key").then_some(()));
    seen += &left_behind(&secure);
    for secret in [SECRET, "PLANTEDSECRET", &key_text, KEY_LINE] {
        let told = seen.lines().find(|line| line.contains(secret) && !line.contains("PEM with BEGIN"));
        assert_eq!(told, None, "a secret is told");
    }
}

#[test]
fn a_node_counts_failed_handshakes_and_tells_when_its_certificate_ends() {
    let secure = Secure::start(1);
    let node = &secure.nodes[0];
    refused(&mut secure.command(&["status"]), 64);
    let metrics = || {
        let url = format!("https://127.0.0.1:{}/metrics", node.ports.http);
        let mut curl = Command::new("curl");
        curl.args(["-s", "--cacert", &secure.file("ca.pem"), "--cert", &secure.file("billing.pem")]);
        curl.args(["--key", &secure.file("billing-key.pem"), &url]).output().ok()
    };
    let Some(output) = metrics() else {
        return skip("metrics over TLS: curl is not installed");
    };
    let text = String::from_utf8(output.stdout).unwrap();
    let sample = |name: &str| -> f64 {
        let line = text.lines().find_map(|line| line.strip_prefix(&format!("{name} ")));
        line.unwrap_or_else(|| panic!("no {name} in {text}")).parse().unwrap()
    };
    assert!(sample("lowkey_tls_handshakes_failed_total") >= 1.0);
    let ends = sample("lowkey_tls_certificate_expires_timestamp_seconds");
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs_f64();
    assert!((364.0..366.0).contains(&((ends - now) / 86_400.0)), "{ends}");
}
