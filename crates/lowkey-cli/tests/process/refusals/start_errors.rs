//! Starts that cannot work, and disks without room: each says why in one line.

use std::io::Write;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;

use crate::harness::{Answer, Ended, Node, eventually, http_with, run_to_end, say};

/// The command line was wrong.
const USAGE: Option<i32> = Some(64);
/// The node could not start.
const FAILED: Option<i32> = Some(69);

fn node(folder: &Path, name: &str, flags: &[&str]) -> Node {
    Node::new(folder, name, flags)
}

fn assert_says(ended: &Ended, code: Option<i32>, words: &[&str]) {
    let line = ended.only_line();
    assert_eq!(ended.code, code, "{ended:?}");
    for word in words {
        assert!(line.contains(word), "{word} is not in: {line}");
    }
}

#[test]
fn a_command_line_that_makes_no_sense_is_refused_in_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let long_name = "n".repeat(129);
    for (flags, words) in [
        (&["--max-leases", "many"][..], &["--max-leases", "'many'"][..]),
        (&["--max-leases=-1"], &["--max-leases", "'-1'"]),
        (&["--max-streams", "4294967296"], &["--max-streams"]),
        (&["--nonsense"], &["--nonsense"]),
        (&["--bootstarp"], &["--bootstarp", "--bootstrap"]),
        (&["nonsense"], &["nonsense"]),
        (&["--log", "[[["], &["--log"]),
        (&["--log", "lowkey_server=loud"], &["--log"]),
        (&["--advertise-grpc-addr", "nowhere"], &["--advertise-grpc-addr", "HOST:PORT"]),
        (&["--advertise-raft-addr", "host:0"], &["--advertise-raft-addr", "HOST:PORT"]),
        (&["--advertise-http-addr", "a b:1"], &["--advertise-http-addr", "HOST:PORT"]),
        (&["--http-host", "locks.example:8080"], &["--http-host", "without a port"]),
        (&["--http-host", "10.0.0.1"], &["--http-host", "taken anyway"]),
        (&["--http-origin", "dash.example"], &["--http-origin", "SCHEME://HOST"]),
        (&["--http-origin", "*"], &["--http-origin", "SCHEME://HOST"]),
    ] {
        let flags = [&["--bootstrap"], flags].concat();
        assert_says(&run_to_end(&mut node(folder.path(), "n1", &flags).command()), USAGE, words);
    }
    let bare = |flags: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_lowkey"));
        run_to_end(command.args(["--bootstrap", "--data-dir"]).arg(folder.path().join("bare")).args(flags))
    };
    for (flag, value) in [
        ("--raft-addr", "nonsense"),
        ("--raft-addr", ""),
        ("--grpc-addr", "127.0.0.1"),
        ("--grpc-addr", "127.0.0.1:70000"),
        ("--http-addr", "9000"),
        ("--http-addr", "127.0.0.1:-1"),
    ] {
        assert_says(&bare(&[flag, value]), USAGE, &[flag, "HOST:PORT"]);
    }
    for (name, words) in
        [("", "1 to 128 bytes"), (long_name.as_str(), "1 to 128 bytes"), ("a\tb", "no control characters")]
    {
        assert_says(&bare(&["--node-id", name]), USAGE, &["--node-id", words]);
    }
    for (flag, address) in [("--grpc-addr", ":1"), ("--http-addr", "[::]:1"), ("--http-addr", "192.0.2.1:1")]
    {
        assert_says(&bare(&[flag, address]), USAGE, &[flag, "--insecure", "--tls-cert"]);
    }
    assert!(!folder.path().join("bare").exists(), "nothing was made");
}

/// The nodes' own port is always encrypted, and both ends prove who they are.
#[test]
fn the_nodes_port_may_be_reached_from_elsewhere_and_then_a_node_needs_an_invitation() {
    let folder = tempfile::tempdir().unwrap();
    let mut founder = node(folder.path(), "n1", &["--bootstrap"]);
    let raft = founder.ports.raft;
    let (listen, advertised) = (format!("0.0.0.0:{raft}"), format!("127.0.0.1:{raft}"));
    founder.add_flags(&["--raft-addr", &listen, "--advertise-raft-addr", &advertised]);
    founder.start_ready();
    let member = format!("127.0.0.1:{}", founder.ports.grpc);
    let uninvited = node(folder.path(), "n2", &["--join", &member]);
    let ended = run_to_end(&mut uninvited.command());
    assert_says(&ended, FAILED, &["invitation", "lowkey member invite"]);
    let mut command = Command::new(env!("CARGO_BIN_EXE_lowkey"));
    let invited =
        command.args(["member", "invite", "--endpoints", &format!("http://{member}")]).output().unwrap();
    assert!(invited.status.success(), "{invited:?}");
    let file = folder.path().join("join-token");
    std::fs::write(&file, invited.stdout).unwrap();
    let mut third = node(folder.path(), "n3", &["--join-token-file", file.to_str().unwrap()]);
    third.start_ready();
}

#[test]
fn a_data_directory_that_cannot_be_used_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let mut living = node(path, "n1", &["--bootstrap"]);
    living.start_ready();
    let mut second = node(path, "second", &["--bootstrap"]);
    second.data_dir.clone_from(&living.data_dir);
    let ended = run_to_end(&mut second.command());
    assert_says(
        &ended,
        FAILED,
        &["in use by another lowkey process", "--data-dir", &living.data_dir.display().to_string()],
    );
    assert_eq!(living.http("GET", "/readyz", "").unwrap().0, 200, "the first one does not mind");

    std::fs::write(path.join("file"), "text").unwrap();
    for unusable in [path.join("file"), path.join("file/below"), PathBuf::from("/proc/lowkey")] {
        let mut node = node(path, "unusable", &["--bootstrap"]);
        node.data_dir.clone_from(&unusable);
        let ended = run_to_end(&mut node.command());
        assert_says(&ended, FAILED, &["data directory", &unusable.display().to_string()]);
    }
    assert_eq!(std::fs::read_to_string(path.join("file")).unwrap(), "text");

    // The superuser may write everywhere, but not to what is mounted for reading only.
    let read_only = path.join("read-only");
    if let Some(wrapper) = within_tmpfs(&read_only, "ro") {
        let mut node = node(path, "read-only", &["--bootstrap"]);
        node.wrap(wrapper);
        assert_says(&run_to_end(&mut node.command()), FAILED, &["cannot write", "Read-only file system"]);
    }

    let empty = node(path, "empty", &[]);
    assert_says(
        &run_to_end(&mut empty.command()),
        USAGE,
        &["empty", "--bootstrap", "--join", &empty.data_dir.display().to_string()],
    );
}

#[test]
fn a_port_that_is_taken_is_named_and_a_join_to_nobody_ends_after_its_time() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    // The slow one first: it waits while the others are tried.
    let nobody = "127.0.0.1:1";
    let mut joining = node(path, "joining", &["--join", nobody]).command();
    let joining = std::thread::spawn(move || run_to_end(&mut joining));

    for flag in ["--raft-addr", "--grpc-addr", "--http-addr"] {
        let node = node(path, "taken", &["--bootstrap"]);
        let port = match flag {
            "--raft-addr" => node.ports.raft,
            "--grpc-addr" => node.ports.grpc,
            _ => node.ports.http,
        };
        let _taken = TcpListener::bind(("127.0.0.1", port)).unwrap();
        let ended = run_to_end(&mut node.command());
        assert_says(&ended, FAILED, &[flag, &format!("127.0.0.1:{port}"), "in use", "another address"]);
        assert!(!node.data_dir.exists(), "nothing was made");
    }
    // What is no address is not even tried, nor taken for a node that has no cluster.
    for address in ["not an address", "http://127.0.0.1:1", "127.0.0.1", "", "127.0.0.1:1,"] {
        for flags in [&["--join", address][..], &["--bootstrap", "--join", address]] {
            let node = node(path, "nowhere", flags);
            let scheme = if address.starts_with("http") { "without http://" } else { "" };
            assert_says(&run_to_end(&mut node.command()), USAGE, &["--join", "HOST:PORT", scheme]);
            assert!(!node.data_dir.exists(), "nothing was made");
        }
    }

    let ended = joining.join().unwrap();
    let took = ended.took;
    assert_eq!(ended.code, FAILED);
    for word in [nobody, "30 s", "gRPC addresses"] {
        assert!(ended.complaint().contains(word), "{word}: {ended:?}");
    }
    assert_eq!(ended.stderr.matches("trying again").count(), 1, "it says so once: {ended:?}");
    assert!(took >= Duration::from_secs(29), "it did not give up early: {took:?}");
    println!("a join to nobody ended after {:.1} s", took.as_secs_f64());
}

#[test]
fn a_name_that_is_taken_joins_nothing_and_founds_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let mut first = node(path, "n1", &["--bootstrap"]);
    first.start_ready();
    let join = format!("127.0.0.1:{}", first.ports.grpc);
    for flags in [&["--join", &join][..], &["--bootstrap", "--join", &join]] {
        let mut twin = node(path, "n1", flags);
        twin.data_dir = path.join("twin");
        let ended = run_to_end(&mut twin.command());
        assert_says(&ended, FAILED, &["n1", "member already", "choose another --node-id"]);
        let made: Vec<_> =
            std::fs::read_dir(&twin.data_dir).unwrap().map(|file| file.unwrap().file_name()).collect();
        let is_left = |name: &std::ffi::OsString| name == "lock" || name == "node" || name == "node.key";
        assert!(made.iter().all(is_left), "no cluster was founded: {made:?}");
    }

    // Beside a living cluster, to found means to join.
    let nobody = "127.0.0.1:1";
    let mut second = node(path, "n2", &["--bootstrap", "--join", &format!("{nobody},{join}")]);
    second.start_ready();
    let cluster_of = |node: &Node| node.status().unwrap()["clusterId"].clone();
    assert_eq!(cluster_of(&second), cluster_of(&first));
    eventually("both vote", || (first.status()?["clusterSize"] == 2).then_some(()));

    // Where nobody has one, it founds.
    let mut alone = node(path, "n3", &["--bootstrap", "--join", nobody]);
    alone.start_ready();
    assert_ne!(cluster_of(&alone), cluster_of(&first));
    assert_eq!(alone.status().unwrap()["clusterSize"], 1);
}

/// A command that starts another with a file system of its own at `at`, which only it sees and which
/// is gone when it ends. Nothing, and a word why, where this is not allowed.
fn within_tmpfs(at: &Path, options: &str) -> Option<Vec<String>> {
    std::fs::create_dir_all(at).unwrap();
    let script = format!("mount -t tmpfs -o {options} tmpfs '{}' && exec \"$@\"", at.display());
    for privileges in ["-m", "-rm"] {
        let wrapper = ["unshare", privileges, "sh", "-c", &script, "sh"].map(str::to_owned).to_vec();
        let tried = Command::new(&wrapper[0]).args(&wrapper[1..]).arg("true").output();
        if tried.is_ok_and(|tried| tried.status.success()) {
            return Some(wrapper);
        }
    }
    say("skipped: this environment lets nobody mount a small disk (unshare -m, mount -t tmpfs)");
    None
}

#[test]
fn a_start_on_a_full_disk_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path().join("disk");
    // Room for nothing at all, for the node's own file alone, and for half a segment.
    for size in ["nr_inodes=1", "size=4k", "size=8m"] {
        let Some(wrapper) = within_tmpfs(&at, size) else { return };
        let mut node = node(folder.path(), "disk", &["--bootstrap"]);
        node.wrap(wrapper);
        let ended = run_to_end(&mut node.command());
        let line = ended.only_line().to_lowercase();
        assert!(line.contains("full") || line.contains("no space"), "{size}: {ended:?}");
        assert_eq!(ended.code, FAILED, "{size}");
    }
}

/// Fills the node's disk to the last byte; the file that does it.
fn fill_disk(node: &Node) -> Option<PathBuf> {
    // The file system is the node's own; it can be seen through its process.
    let ballast = PathBuf::from(format!("/proc/{}/root{}/ballast", node.pid(), node.data_dir.display()));
    let mut file = match std::fs::File::create(&ballast) {
        Ok(file) => file,
        Err(error) => {
            say(format!("skipped: the node's disk cannot be filled from outside: {error}"));
            return None;
        }
    };
    let mut filled_bytes = 0;
    while let Ok(written) = file.write(&[1; 64 * 1024]) {
        filled_bytes += written;
    }
    println!("filled the disk with {} KiB", filled_bytes / 1024);
    Some(ballast)
}

#[test]
fn on_a_disk_that_fills_up_grants_stop_and_come_back_by_themselves() {
    let folder = tempfile::tempdir().unwrap();
    // Two segments of 16 MiB, and 24 MiB to spare.
    let Some(wrapper) = within_tmpfs(&folder.path().join("disk"), "size=56m") else { return };
    let mut node = node(folder.path(), "disk", &["--bootstrap"]);
    node.wrap(wrapper);
    node.start_ready();
    let acquire = |lock: &str, owner: &str| {
        let body = format!(r#"{{"lock_name":"{lock}","owner_id":"{owner}","ttl_seconds":600}}"#);
        http_with(node.ports.http, "POST", "/v1/lock/acquire", "", body.as_bytes()).unwrap()
    };
    let first = acquire("held", "o");
    assert_eq!(first.status, 200, "{first:?}");
    let lease = first.json()["leaseId"].as_str().unwrap().to_owned();
    for number in 0..20 {
        let lock = format!(r#"{{"lock_name":"{number}","owner_id":"o","lease_id":{lease}}}"#);
        node.ok("POST", "/v1/lock/acquire", &lock);
    }

    let Some(ballast) = fill_disk(&node) else { return };
    let refused = |answer: &Answer| {
        let reason = answer.json()["reason"].as_str().unwrap_or_default().to_owned();
        assert!(reason.is_empty() || reason == "LIMIT_DISK", "{answer:?}");
        assert_eq!(answer.status, if reason.is_empty() { 200 } else { 429 });
        !reason.is_empty()
    };
    let mut tried = 0;
    let refusal = eventually("new grants are refused", || {
        tried += 1;
        let answer = acquire(&format!("new-{tried}"), "p");
        refused(&answer).then_some(answer)
    });
    assert!(refusal.head.contains("\r\nretry-after: 1"), "{refusal:?}");

    for number in 0..20 {
        node.ok("POST", "/v1/lease/renew", &format!(r#"{{"lease_id":{lease}}}"#));
        assert!(refused(&acquire(&format!("never-{number}"), "p")));
        let create = node.http("POST", "/v1/lease", r#"{"owner_id":"p","ttl_seconds":9}"#).unwrap();
        assert_eq!((create.0, create.1.contains("LIMIT_DISK")), (429, true), "{create:?}");
        node.ok("POST", "/v1/lock/release", &format!(r#"{{"lock_name":"{number}","lease_id":{lease}}}"#));
        assert_eq!(node.ok("GET", &format!("/v1/lock?name={number}"), "")["holders"], Value::Array(vec![]));
    }
    let held = node.ok("GET", "/v1/lock?name=held", "");
    assert_eq!(held["holders"][0]["leaseId"], lease);
    assert_eq!(node.http("GET", "/readyz", "").unwrap().0, 200);

    std::fs::remove_file(&ballast).unwrap();
    eventually("grants are back", || (!refused(&acquire("again", "p"))).then_some(()));
    let revoked = node.ok("POST", "/v1/lease/revoke", &format!(r#"{{"lease_id":{lease},"owner_id":"o"}}"#));
    assert_eq!(revoked["released"], "1");
    let log = node.log_text();
    assert!(log.contains("the disk is full") && log.contains("the disk has room again"), "{log}");
    assert!(!log.contains("panicked"), "{log}");
    println!("refused after {tried} tries");
}
