//! The last node of three begins a new cluster: what it refuses, what it keeps, and what the old one's clients see.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use lowkey_client::{Client, ErrorKind};
use rustix::process::Signal;
use serde_json::Value;

use crate::cli::Service;
use crate::harness::{Cluster, Node, eventually, rounds};

const YES: &str = "--yes-the-other-nodes-are-lost-for-good";
const AT_ONCE: &str = "--grant-at-once-although-old-holders-may-still-believe";

fn recover(data_dir: &Path, flags: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lowkey"));
    command.args(["recover", "--data-dir"]).arg(data_dir).args(flags).stdin(Stdio::null());
    command
}

fn run(data_dir: &Path, flags: &[&str]) -> Output {
    recover(data_dir, flags).output().unwrap()
}

/// What it said on standard output, after it ended well.
fn done(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// The one line that says why it did nothing.
fn refused(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let stderr = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    assert!(stderr.starts_with("lowkey: "), "{stderr}");
    stderr
}

/// Every file below a directory, byte by byte.
fn files(directory: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut open = vec![directory.to_owned()];
    while let Some(next) = open.pop() {
        for entry in std::fs::read_dir(&next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                open.push(path);
            } else if path.is_file() {
                let name = path.strip_prefix(directory).unwrap().to_owned();
                found.insert(name, std::fs::read(&path).unwrap());
            }
        }
    }
    found
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir(to).unwrap();
    for name in files(from).keys() {
        std::fs::create_dir_all(to.join(name).parent().unwrap()).unwrap();
        std::fs::copy(from.join(name), to.join(name)).unwrap();
    }
}

fn number(value: &Value) -> u64 {
    value.as_str().unwrap().parse().unwrap()
}

fn acquire(node: &Node, lock: &str) -> Value {
    let body = format!(r#"{{"lockName":"{lock}","ownerId":"o","ttlSeconds":60}}"#);
    node.ok("POST", "/v1/lock/acquire", &body)
}

/// Three nodes that have done some work, and all of it is known to the last; none of them runs any more. Also the
/// answers to the acquires.
fn lost_cluster() -> (Cluster, Vec<Value>) {
    let mut cluster = Cluster::start(3);
    let grants: Vec<Value> = (0..5).map(|lock| acquire(&cluster.nodes[0], &format!("lock-{lock}"))).collect();
    let revision = number(&grants[4]["revision"]);
    eventually("the last node knows all of it", || {
        (cluster.nodes[2].log_position().1 >= revision).then_some(())
    });
    cluster.nodes.iter_mut().for_each(Node::kill);
    (cluster, grants)
}

#[tokio::test(flavor = "multi_thread")]
async fn the_last_of_three_begins_a_new_cluster() {
    let mut cluster = Cluster::start(3);
    let endpoints: Vec<String> =
        cluster.nodes.iter().map(|node| format!("http://127.0.0.1:{}", node.ports.grpc)).collect();
    let client = Client::builder(endpoints).call_timeout(Duration::from_secs(3)).connect().await.unwrap();
    client.get("lock-0").await.unwrap();
    let grants: Vec<Value> = (0..5).map(|lock| acquire(&cluster.nodes[0], &format!("lock-{lock}"))).collect();
    let (highest, revision) = (number(&grants[4]["fencingToken"]), number(&grants[4]["revision"]));
    let old = cluster.nodes[2].status().unwrap()["clusterId"].as_str().unwrap().to_owned();
    eventually("the last node knows all of it", || {
        (cluster.nodes[2].log_position().1 >= revision).then_some(())
    });

    // Not while it runs, and not by the way.
    let directory = cluster.nodes[2].data_dir.clone();
    assert!(refused(&run(&directory, &[YES])).contains("must be stopped"));
    cluster.nodes.iter_mut().for_each(Node::kill);
    let before = files(&directory);
    let dry = run(&directory, &[]);
    assert!(refused(&dry).contains(YES), "{dry:?}");
    let told = String::from_utf8(dry.stdout).unwrap();
    for word in [old.as_str(), "n1, n2, n3", "WARNING", "5 leases, 5 locks"] {
        assert!(told.contains(word), "{word}: {told}");
    }
    assert!(files(&directory) == before, "a look changes nothing");

    let told = done(&run(&directory, &[YES, AT_ONCE]));
    assert!(told.contains("Restart all clients") && told.contains("--join"), "{told}");
    assert!(told.contains("What is done now:") && !told.contains("What would be done"), "{told}");
    let kept = std::fs::read_dir(&directory)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .find(|path| path.file_name().unwrap().to_str().unwrap().starts_with("before-recover-"))
        .unwrap();
    let mut expected = before;
    // The new node has the old one's key: it is the same machine.
    for stays in ["lock", "node.key"] {
        expected.remove(Path::new(stays));
    }
    // The audit stays where it is, and goes on.
    expected.retain(|path, _| !path.starts_with("audit"));
    assert!(files(&kept) == expected, "what was there is kept, byte by byte");
    // A second time there is nothing to be done.
    assert!(refused(&run(&directory, &[YES])).contains("has lost no quorum"));

    let unix_minutes = unix_minutes();
    let mut survivor = cluster.nodes.pop().unwrap();
    survivor.start_ready();
    let status = survivor.status().unwrap();
    assert_ne!(status["clusterId"], old.as_str());
    assert_eq!((&status["clusterSize"], &status["stats"]["locks"]), (&1.into(), &0.into()));
    assert_eq!(status["recoveringSeconds"], "0");
    let held = survivor.ok("GET", "/v1/audit?cause=cluster_recovered", "");
    let held = held["grants"].as_array().unwrap();
    assert_eq!(held.len(), 5, "{held:?}");
    assert!(held.iter().all(|row| row["perhapsUncommitted"] == true && row["clusterId"] == old.as_str()));
    let grant = acquire(&survivor, "lock-0");
    let token = number(&grant["fencingToken"]);
    assert!(token > highest && token >= (unix_minutes - 1) << 32, "{grant}");
    assert!(number(&grant["leaseId"]) > number(&grants[4]["leaseId"]), "{grant}");
    // Whatever a watcher of before may have seen is gone: never the future, never other events.
    for from in
        [format!("from={revision}"), format!("from={}", revision + 100), format!("after={revision}.0")]
    {
        let (status, answer) = survivor.http("GET", &format!("/v1/watch?prefix=&{from}"), "").unwrap();
        assert!(status == 410 && answer.contains("COMPACTED"), "{from}: {answer}");
    }
    // Clients of before refuse it.
    let refused = loop {
        match client.get("lock-0").await {
            Err(error) if matches!(error.kind(), ErrorKind::WrongCluster { .. }) => break error,
            Err(error) if error.is_retryable() => {}
            other => panic!("{other:?}"),
        }
    };
    assert!(refused.to_string().contains(&old), "{refused}");

    // Two old nodes that live after all are a majority of the old cluster, and strangers to the new one.
    let term = survivor.log_position().0;
    for node in &mut cluster.nodes {
        node.start();
    }
    cluster.wait_leader(None);
    eventually("the old ones are told", || {
        cluster.nodes.iter().any(|node| node.log_text().contains("belongs to cluster")).then_some(())
    });
    let (status, answer) = survivor.http("GET", "/v1/lock?name=lock-0", "").unwrap();
    assert!(status == 200 && answer.contains(&token.to_string()), "{answer}");
    assert_eq!(survivor.log_position().0, term, "nobody disturbs the new cluster");
    for node in &mut cluster.nodes {
        node.kill();
        std::fs::remove_dir_all(&node.data_dir).unwrap();
    }

    // Wiped, they join; and the three of them live through the loss of one.
    let join = format!("127.0.0.1:{}", survivor.ports.grpc);
    for node in &mut cluster.nodes {
        node.set_flags(&["--join", &join]);
        node.start_ready();
    }
    cluster.nodes.push(survivor);
    cluster.wait_whole();
    cluster.nodes[2].kill();
    let leader = cluster.wait_leader(None);
    let next = acquire(&cluster.nodes[leader], "another");
    assert!(number(&next["fencingToken"]) > token, "{next}");
    cluster.nodes[2].start_ready();
    cluster.wait_whole();
}

fn unix_minutes() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() / 60
}

/// A mistake that is easily made: each of two survivors is made a cluster of its own, in the same minute.
#[test]
fn two_survivors_recovered_in_the_same_minute_give_different_tokens() {
    let (mut cluster, grants) = lost_cluster();
    let highest = number(&grants[4]["fencingToken"]);
    let mut survivors = cluster.nodes.split_off(1);
    let untouched: Vec<PathBuf> =
        survivors.iter().map(|node| node.data_dir.with_extension("untouched")).collect();
    for (node, kept) in survivors.iter().zip(&untouched) {
        copy(&node.data_dir, kept);
    }
    // Again if a minute ends in between.
    loop {
        let minute = unix_minutes();
        for node in &survivors {
            done(&run(&node.data_dir, &[YES, AT_ONCE]));
        }
        if unix_minutes() == minute {
            break;
        }
        for (node, kept) in survivors.iter().zip(&untouched) {
            std::fs::remove_dir_all(&node.data_dir).unwrap();
            copy(kept, &node.data_dir);
        }
    }
    let begun: Vec<(Value, Value)> = survivors
        .iter_mut()
        .map(|node| {
            node.start_ready();
            (node.status().unwrap()["clusterId"].clone(), acquire(node, "lock-0"))
        })
        .collect();
    let [(one_id, one), (other_id, other)] = &begun[..] else { panic!("{begun:?}") };
    assert_ne!(one_id, other_id);
    for field in ["fencingToken", "leaseId", "revision"] {
        assert_ne!(one[field], other[field], "{field}: {one} {other}");
        assert!(number(&one[field]) > highest && number(&other[field]) > highest, "{field}: {one} {other}");
    }
}

#[test]
fn nothing_is_granted_after_a_recovery_until_old_holders_cannot_believe() {
    let (mut cluster, _) = lost_cluster();
    let mut survivor = cluster.nodes.pop().unwrap();
    let told = done(&run(&survivor.data_dir, &[YES]));
    assert!(told.contains("RECOVERING"), "{told}");
    survivor.start_ready();
    let is_refused = |node: &Node, path: &str, body: &str| {
        let (status, answer) = node.http("POST", path, body).unwrap();
        let answer: Value = serde_json::from_str(&answer).unwrap();
        assert_eq!((status, &answer["reason"]), (503, &"RECOVERING".into()), "{answer}");
        let message = answer["message"].as_str().unwrap();
        assert!(message.contains("s more at most") && message.contains("lost its quorum"), "{message}");
    };
    let one_call = r#"{"lockName":"a","ownerId":"o","ttlSeconds":60}"#;
    is_refused(&survivor, "/v1/lock/acquire", one_call);
    is_refused(
        &survivor,
        "/v1/lock/acquire",
        r#"{"lockName":"a","ownerId":"o","ttlSeconds":60,"waitMs":60000}"#,
    );
    is_refused(&survivor, "/v1/election/campaign", r#"{"election":"e","ownerId":"o","ttlSeconds":60}"#);
    // All else works.
    let lease = survivor.ok("POST", "/v1/lease", r#"{"ownerId":"o","ttlSeconds":600}"#)["leaseId"].clone();
    survivor.ok("POST", "/v1/lease/renew", &format!(r#"{{"leaseId":{lease}}}"#));
    let with_lease = format!(r#"{{"lockName":"a","ownerId":"o","leaseId":{lease}}}"#);
    is_refused(&survivor, "/v1/lock/acquire", &with_lease);
    assert_eq!(survivor.ok("GET", "/v1/lock?name=lock-0", "")["holders"], Value::Array(Vec::new()));
    // And everybody says so.
    let left = number(&survivor.status().unwrap()["recoveringSeconds"]);
    assert!((500..=600).contains(&left), "{left}");
    let ready = survivor.http("GET", "/readyz", "").unwrap();
    assert!(ready.0 == 200 && ready.1.contains("recovering: no lock is granted for"), "{ready:?}");
    assert!(survivor.log_text().contains("this cluster was recovered after it lost its quorum"));
    let service = Service::of(std::slice::from_ref(&survivor));
    for words in [
        &["acquire", "a", "--ttl", "5s", "--wait", "300ms"][..],
        &["run", "a", "--wait", "300ms", "--", "true"],
    ] {
        let waited = service.run(words);
        assert!(waited.complaint(124).contains("(RECOVERING)"), "{waited:?}");
    }
    assert!(service.ok(&["status"]).contains("recovering\tno lock is granted for"));

    // A node that joins knows it too, and a restart does not end it.
    let join = format!("127.0.0.1:{}", survivor.ports.grpc);
    let mut second = Node::new(cluster.folder(), "n4", &["--join", &join]);
    second.start_ready();
    eventually("the second one knows", || (number(&second.status()?["recoveringSeconds"]) > 0).then_some(()));
    is_refused(&second, "/v1/lock/acquire", one_call);
    eventually("both vote", || (survivor.status()?["clusterSize"] == 2).then_some(()));
    survivor.signal(Signal::TERM);
    assert_eq!(survivor.wait_exit().code(), Some(0));
    survivor.start_ready();
    second.wait_ready();
    eventually("it is refused again", || {
        let (status, answer) = survivor.http("POST", "/v1/lock/acquire", one_call)?;
        assert_ne!(status, 200, "{answer}");
        answer.contains("RECOVERING").then_some(())
    });
}

#[test]
fn what_cannot_or_need_not_be_recovered_is_left_alone() {
    let (cluster, _) = lost_cluster();
    let nowhere = cluster.folder().join("nowhere");
    assert!(refused(&run(&nowhere, &[YES])).contains("no data directory"));
    assert!(!nowhere.exists());
    let empty = cluster.folder().join("empty");
    std::fs::create_dir(&empty).unwrap();
    assert!(refused(&run(&empty, &[YES])).contains("is not the data directory of a node"));
    assert!(files(&empty).is_empty());

    // Damage is found as it is at a start, and named.
    let directory = &cluster.nodes[2].data_dir;
    let names: Vec<PathBuf> = files(directory).into_keys().collect();
    let snapshot = names.iter().rfind(|name| name.to_str().unwrap().ends_with(".snap")).unwrap();
    let segment = names.iter().find(|name| name.to_str().unwrap().ends_with(".log")).unwrap();
    for (name, at) in [(snapshot, 40), (segment, 80), (&PathBuf::from("node"), 30)] {
        let damaged = cluster.folder().join("damaged");
        copy(directory, &damaged);
        let mut bytes = std::fs::read(damaged.join(name)).unwrap();
        bytes[at] ^= 1;
        std::fs::write(damaged.join(name), bytes).unwrap();
        let before = files(&damaged);
        let line = refused(&run(&damaged, &[YES]));
        assert!(line.contains(name.to_str().unwrap()) && line.contains(damaged.to_str().unwrap()), "{line}");
        assert!(line.contains("another survivor") && !line.contains("--join"), "{line}");
        assert!(files(&damaged) == before, "{name:?} is left as it was");
        std::fs::remove_dir_all(&damaged).unwrap();
    }

    let folder = tempfile::tempdir().unwrap();
    let mut alone = Node::new(folder.path(), "n1", &["--bootstrap"]);
    alone.start_ready();
    alone.kill();
    assert!(refused(&run(&alone.data_dir, &[YES])).contains("has lost no quorum"));
}

#[test]
fn killed_at_any_moment_it_leaves_the_old_node_or_the_new_one() {
    let (cluster, grants) = lost_cluster();
    let (highest, directory) = (number(&grants[4]["fencingToken"]), &cluster.nodes[2].data_dir);
    let mut original = files(directory);
    let old = {
        let told = String::from_utf8(run(directory, &[]).stdout).unwrap();
        let line = told.lines().find(|line| line.contains("cluster  ")).unwrap().to_owned();
        line.split_whitespace().nth(1).unwrap().trim_end_matches(',').to_owned()
    };
    let measured = cluster.folder().join("measured");
    copy(directory, &measured);
    let started = Instant::now();
    done(&run(&measured, &[YES, AT_ONCE]));
    let whole = started.elapsed();
    original.remove(Path::new("lock"));

    let times = rounds("LOWKEY_RECOVER_KILLS", 12);
    let (mut untouched, mut by_start) = (0, 0);
    for round in 0..times {
        let mut node = Node::new(cluster.folder(), &format!("killed-{round}"), &[]);
        copy(directory, &node.data_dir);
        let mut child = recover(&node.data_dir, &[YES, AT_ONCE])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // The first half of the kills is spread over all of the time. Most of that is spent on writing the new node: the
        // others come as soon as that is decided on, or a little later.
        if round < times / 2 {
            std::thread::sleep(whole * (round as u32 * 2 + 1) / times as u32);
        } else {
            let is_decided =
                || ["recover.ready", "recover.moving"].iter().any(|name| node.data_dir.join(name).exists());
            while !is_decided() && child.try_wait().unwrap().is_none() {
                std::hint::spin_loop();
            }
            std::thread::sleep(Duration::from_micros(200) * (round - times / 2) as u32);
        }
        child.kill().unwrap();
        child.wait().unwrap();
        // Before it was decided, all is as it was; afterwards a start finishes it, and so does another try.
        let is_untouched = !node.data_dir.join("recover.ready").exists()
            && !node.data_dir.join("recover.moving").exists()
            && files(&node.data_dir)
                .iter()
                .filter(|(name, _)| name.parent() == Some(Path::new("")))
                .all(|(name, bytes)| name == Path::new("lock") || original.get(name) == Some(bytes));
        if is_untouched {
            untouched += 1;
            done(&run(&node.data_dir, &[YES, AT_ONCE]));
        } else if round % 2 == 0 {
            let again = run(&node.data_dir, &[YES, AT_ONCE]);
            let stderr = String::from_utf8_lossy(&again.stderr);
            assert!(again.status.success() || stderr.contains("has lost no quorum"), "{again:?}");
        } else {
            by_start += 1;
        }
        node.start_ready();
        let status = node.status().unwrap();
        assert_ne!(status["clusterId"], old.as_str());
        assert_eq!(status["clusterSize"], 1);
        assert!(number(&acquire(&node, "lock-0")["fencingToken"]) > highest);
        node.kill();
        let kept: BTreeMap<PathBuf, Vec<u8>> = files(&node.data_dir)
            .into_iter()
            .filter(|(name, _)| name.to_str().unwrap().starts_with("before-recover-"))
            .map(|(name, bytes)| (name.file_name().unwrap().into(), bytes))
            .collect();
        let mut expected = original.clone();
        expected.remove(Path::new("node.key"));
        // The audit stays where it is.
        expected.retain(|name, _| name.parent() == Some(Path::new("")));
        assert!(kept == expected, "round {round}: what was there is kept, byte by byte");
        std::fs::remove_dir_all(&node.data_dir).unwrap();
    }
    println!(
        "of {times} kills within {whole:?}, {untouched} left the old node, {by_start} were finished by a start"
    );
}
