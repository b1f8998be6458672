//! Backups and restores on real processes: in a folder, and on an S3 server that is not ours.

mod proxy;
mod schedule;
pub(crate) mod stores;

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use proxy::Trouble;
use serde_json::Value;
use stores::Place;

use crate::harness::{Cluster, Node, eventually};

const AT_ONCE: &str = "--grant-at-once-although-old-holders-may-still-believe";
/// A binary that was built for tests waits only so long.
const QUARANTINE: (&str, &str) = ("LOWKEY_TEST_QUARANTINE_MS", "1500");
const YEAR_BEHIND: (&str, &str) = ("LOWKEY_TEST_CLOCK_BEHIND_MS", "31536000000");

fn lowkey(place: &Place, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lowkey"));
    command
        .args(arguments)
        .envs(place.environment.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::null());
    command
}

fn run(place: &Place, arguments: &[&str]) -> Output {
    lowkey(place, arguments).output().unwrap()
}

/// What it printed as JSON, after it ended well.
fn json(output: &Output) -> Value {
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output:?}"))
}

/// The one line that says why it did nothing.
fn refused(output: &Output, status: i32) -> String {
    assert_eq!(output.status.code(), Some(status), "{output:?}");
    let stderr = String::from_utf8(output.stderr.clone()).unwrap();
    assert_eq!(stderr.lines().count(), 1, "{stderr}");
    stderr
}

fn restore(place: &Place, data_dir: &Path, more: &[&str]) -> Output {
    let directory = data_dir.display().to_string();
    let arguments = ["backup", "restore", "--from", &place.url, "--data-dir", &directory, "--json"];
    run(place, &[&arguments, more].concat())
}

fn create(place: &Place, node: &Node) -> Value {
    let endpoint = format!("http://127.0.0.1:{}", node.ports.grpc);
    json(&run(place, &["backup", "create", "--to", &place.url, "--endpoints", &endpoint, "--json"]))
}

fn number(value: &Value) -> u64 {
    value.as_str().unwrap_or_else(|| panic!("no number: {value}")).parse().unwrap()
}

fn acquire(node: &Node, lock: &str) -> Value {
    let body = format!(r#"{{"lockName":"{lock}","ownerId":"o","ttlSeconds":60}}"#);
    node.ok("POST", "/v1/lock/acquire", &body)
}

/// Takes so many locks; gives the highest token.
fn grants(node: &Node, prefix: &str, count: usize) -> u64 {
    (0..count).map(|lock| number(&acquire(node, &format!("{prefix}-{lock}"))["fencingToken"])).max().unwrap()
}

/// A cluster whose nodes know the place.
fn cluster_at(place: &Place, size: usize, flags: &[&str]) -> Cluster {
    Cluster::start_equipped(size, |_, node| {
        node.wrap(place.wrapper(&[QUARANTINE]));
        node.add_flags(flags);
    })
}

/// A node that has not run yet, in a folder of its own.
fn new_node(place: &Place, folder: &Path, name: &str) -> Node {
    let mut node = Node::new(folder, name, &[]);
    node.wrap(place.wrapper(&[QUARANTINE]));
    node
}

fn metric(node: &Node, name: &str) -> Option<f64> {
    let (_, text) = node.http("GET", "/metrics", "")?;
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?.to_owned();
    line.trim().parse().ok()
}

/// How many grants come before the backup, and after it.
fn grant_count() -> usize {
    std::env::var("LOWKEY_BACKUP_GRANTS").ok().and_then(|count| count.parse().ok()).unwrap_or(200)
}

#[test]
fn all_nodes_are_lost_and_the_first_token_after_the_restore_is_above_all_that_were_granted() {
    for place in Place::all() {
        let mut cluster = cluster_at(&place, 3, &[]);
        let leader = cluster.wait_whole();
        let before = grants(&cluster.nodes[leader], "before", grant_count());
        let made = create(&place, &cluster.nodes[(leader + 1) % 3]);
        assert_eq!(
            number(&made["fencingCounter"]),
            before,
            "made at a follower, and nothing is missing: {made}"
        );
        assert_eq!(made["url"], place.url);
        let highest = grants(&cluster.nodes[leader], "after", grant_count());
        let old = cluster.nodes[0].status().unwrap()["clusterId"].as_str().unwrap().to_owned();

        let folder = tempfile::tempdir().unwrap();
        let mut node = new_node(&place, folder.path(), "n9");
        let line = refused(&restore(&place, &node.data_dir, &[]), 1);
        assert!(line.contains("answers") && line.contains("n1 at 127.0.0.1"), "{line}");
        assert!(!node.data_dir.exists(), "nothing was changed");
        cluster.nodes.iter_mut().for_each(Node::kill);
        cluster.nodes.iter().for_each(|node| std::fs::remove_dir_all(&node.data_dir).unwrap());

        let listed = json(&run(&place, &["backup", "list", "--from", &place.url, "--json"]));
        assert_eq!(listed["backups"][0]["backup"], made["backupId"]);
        let verified = json(&run(&place, &["backup", "verify", "--from", &place.url, "--json"]));
        assert_eq!(
            (&verified["verified"], &verified["manifest"]["cluster"]),
            (&true.into(), &old.as_str().into())
        );
        let restored = json(&restore(&place, &node.data_dir, &["--node-id", "n9"]));
        let line = refused(&restore(&place, &node.data_dir, &[]), 1);
        assert!(line.contains("belongs to a cluster already"), "{line}");

        let started = Instant::now();
        node.start_ready();
        let status = node.status().unwrap();
        assert_eq!(status["clusterId"], restored["clusterId"]);
        assert_ne!(status["clusterId"], old.as_str());
        assert_eq!(status["epoch"], restored["epoch"]);
        assert_eq!(status["stats"]["locks"], 0);
        let asked = r#"{"lockName":"before-0","ownerId":"o","ttlSeconds":60}"#;
        let (code, answer) = node.http("POST", "/v1/lock/acquire", asked).unwrap();
        assert!(code == 503 && answer.contains("RECOVERING"), "{answer}");
        assert!(node.http("GET", "/readyz", "").unwrap().1.contains("recovering"));
        assert!(metric(&node, "lowkey_recovering_seconds").unwrap() > 0.0);
        assert_eq!(metric(&node, "lowkey_epoch"), Some(number(&restored["epoch"]) as f64));
        let grant = eventually("the quarantine is over", || {
            let (code, answer) = node.http("POST", "/v1/lock/acquire", asked)?;
            (code == 200).then(|| serde_json::from_str::<Value>(&answer).unwrap())
        });
        assert!(started.elapsed() >= Duration::from_millis(1_500), "nothing was granted before");
        let token = number(&grant["fencingToken"]);
        assert!(token > highest && token == number(&restored["firstToken"]), "{grant}");
        assert_eq!(grant["epoch"], restored["epoch"]);
        assert_eq!(metric(&node, "lowkey_recovering_seconds"), Some(0.0));
        // The others join it, with empty directories.
        let join = format!("127.0.0.1:{}", node.ports.grpc);
        let mut second = Node::new(folder.path(), "n10", &["--join", &join]);
        second.start_ready();
        eventually("both vote, and both know the epoch", || {
            let status = second.status()?;
            (status["clusterSize"] == 2 && status["epoch"] == restored["epoch"]).then_some(())
        });
    }
}

/// No token is in a backup. So nobody can prove to be an admin after the restore but by the socket, and what that one does is
/// done in any order: a client may be let in before the admin has a token.
#[test]
fn a_closed_cluster_is_closed_after_the_restore_and_is_put_in_order_by_its_socket() {
    let place = Place::folder();
    let mut cluster = cluster_at(&place, 1, &[]);
    let access = |node: &Node, words: &[&str]| {
        let mut command = lowkey(&place, &["access"]);
        command.args(words).arg("--data-dir").arg(&node.data_dir).output().unwrap()
    };
    let admin = |node: &Node, words: &[&str]| {
        let output = access(node, words);
        assert!(output.status.success(), "{words:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    };
    let node = &cluster.nodes[0];
    admin(node, &["principal", "add", "ops"]);
    admin(node, &["grant", "ops", "/", "admin"]);
    let token = cluster.folder().join("ops.token");
    std::fs::write(&token, admin(node, &["token", "new", "ops"])).unwrap();
    admin(node, &["principal", "add", "billing"]);
    admin(node, &["require"]);
    let endpoint = format!("http://127.0.0.1:{}", node.ports.grpc);
    let made = lowkey(&place, &["backup", "create", "--to", &place.url, "--endpoints", &endpoint, "--json"])
        .env("LOWKEY_AUTH_FILE", &token)
        .output()
        .unwrap();
    json(&made);
    cluster.nodes[0].kill();
    std::fs::remove_dir_all(&cluster.nodes[0].data_dir).unwrap();

    let folder = tempfile::tempdir().unwrap();
    let mut node = new_node(&place, folder.path(), "n9");
    json(&restore(&place, &node.data_dir, &["--node-id", "n9"]));
    node.start_ready();
    assert_eq!(node.http("GET", "/v1/locks", "").unwrap().0, 401, "it is closed");
    admin(&node, &["grant", "billing", "billing", "acquire,read"]);
    admin(&node, &["token", "new", "billing"]);
    admin(&node, &["principal", "add", "web"]);
    admin(&node, &["principal", "remove", "web"]);
    admin(&node, &["token", "new", "ops"]);
    // There is an admin again, and from here on the last one stays.
    let line = refused(&access(&node, &["principal", "remove", "ops"]), 1);
    assert!(line.contains("no principal would be left"), "{line}");
}

#[test]
fn two_restores_of_one_backup_in_the_same_second_have_epochs_of_their_own() {
    for place in Place::all() {
        let mut cluster = cluster_at(&place, 1, &[]);
        let highest = grants(&cluster.nodes[0], "lock", 5);
        create(&place, &cluster.nodes[0]);
        cluster.nodes[0].kill();
        let folder = tempfile::tempdir().unwrap();
        let nodes: Vec<Node> = (0..4).map(|n| new_node(&place, folder.path(), &format!("r{n}"))).collect();
        // At once; and two of them by clocks that are a year behind.
        let running: Vec<_> = nodes
            .iter()
            .enumerate()
            .map(|(number, node)| {
                let directory = node.data_dir.display().to_string();
                let arguments =
                    ["backup", "restore", "--from", &place.url, "--data-dir", &directory, "--json", AT_ONCE];
                let mut command = lowkey(&place, &arguments);
                if number >= 2 {
                    command.env(YEAR_BEHIND.0, YEAR_BEHIND.1);
                }
                command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
            })
            .collect();
        let told: Vec<Value> =
            running.into_iter().map(|child| json(&child.wait_with_output().unwrap())).collect();
        let epochs: BTreeSet<u64> = told.iter().map(|told| number(&told["epoch"])).collect();
        assert_eq!(epochs.len(), 4, "{told:?}");
        let mut tokens = BTreeSet::new();
        for mut node in nodes {
            node.start_ready();
            let token = number(&acquire(&node, "lock-0")["fencingToken"]);
            assert!(token > highest && tokens.insert(token), "{token}");
        }
    }
}

#[test]
fn a_store_that_is_slow_or_loses_answers_gives_epochs_and_one_that_ignores_conditions_gives_none() {
    let Some(place) = Place::s3() else { return };
    let mut cluster = cluster_at(&place, 1, &[]);
    grants(&cluster.nodes[0], "lock", 5);
    create(&place, &cluster.nodes[0]);
    cluster.nodes[0].kill();
    let folder = tempfile::tempdir().unwrap();
    let mut epochs = BTreeSet::new();
    let troubles = [
        Trouble::Delays(Duration::from_millis(150)),
        Trouble::LosesOneAnswerIn(4),
        Trouble::LosesOneAnswerIn(3),
    ];
    for (number_of, trouble) in troubles.into_iter().enumerate() {
        let behind = place.behind(proxy::between(place.port, trouble));
        let told = json(&restore(&behind, &folder.path().join(format!("r{number_of}")), &[]));
        assert!(epochs.insert(number(&told["epoch"])), "{trouble:?}: {told}");
    }
    let behind = place.behind(proxy::between(place.port, Trouble::IgnoresConditions));
    let directory = folder.path().join("unfit");
    let output = restore(&behind, &directory, &[]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let told: Value = serde_json::from_slice(&output.stderr).unwrap();
    assert!(told["error"].as_str().unwrap().contains("does not heed the condition"), "{told}");
    assert!(!directory.exists(), "nothing was changed");
}

#[test]
fn a_damaged_backup_is_refused_and_the_file_is_named() {
    let place = Place::folder();
    let mut cluster = cluster_at(&place, 1, &[]);
    grants(&cluster.nodes[0], "lock", 5);
    let made = create(&place, &cluster.nodes[0])["backupId"].as_str().unwrap().to_owned();
    cluster.nodes[0].kill();
    let folder = tempfile::tempdir().unwrap();
    for name in ["g1.snap", "manifest.json"] {
        let file = place.folder.join(&made).join(name);
        let good = std::fs::read(&file).unwrap();
        let mut bad = good.clone();
        bad[good.len() / 2] ^= 1;
        std::fs::write(&file, bad).unwrap();
        let verified = run(&place, &["backup", "verify", "--from", &place.url]);
        for output in [verified, restore(&place, &folder.path().join("data"), &[])] {
            let line = refused(&output, 1);
            assert!(line.contains(&format!("{made}/{name}")) && line.contains("damaged"), "{line}");
        }
        std::fs::write(&file, good).unwrap();
    }
    assert!(
        !folder.path().join("data").exists() && !place.folder.join("epochs").exists(),
        "nothing was changed"
    );
}

#[test]
fn a_leader_keeps_to_its_plan_and_so_does_the_next() {
    for place in Place::all() {
        let flags = ["--backup-to", &place.url, "--backup-every", "1s", "--backup-keep", "3"];
        let mut cluster = cluster_at(&place, 3, &flags);
        let listed = || {
            let listed = json(&run(&place, &["backup", "list", "--from", &place.url, "--json"]));
            let backups = listed["backups"].as_array().unwrap().clone();
            backups.iter().map(|backup| backup["backup"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        let leader = cluster.wait_whole();
        grants(&cluster.nodes[leader], "lock", 20);
        let first =
            eventually("three backups are there", || Some(listed()).filter(|listed| listed.len() >= 3));
        eventually("old ones go", || {
            let listed = listed();
            (listed.len() <= 4 && !listed.contains(first.last().unwrap())).then_some(())
        });
        let node = &cluster.nodes[leader];
        assert!(metric(node, "lowkey_backups_made_total").unwrap() >= 3.0);
        assert!(
            metric(node, "lowkey_backup_age_seconds").is_some(),
            "the leader tells how old the newest is"
        );
        assert!(node.log_text().contains("a backup was made, and read back"), "{}", node.log_text());

        // In the middle of it the leader is gone, with a signal that nobody hears.
        cluster.nodes[leader].kill();
        let known: BTreeSet<String> = listed().into_iter().collect();
        let next = cluster.wait_leader(Some(leader));
        eventually("the next leader makes one", || {
            listed().iter().any(|id| !known.contains(id)).then_some(())
        });
        eventually("it tells so", || metric(&cluster.nodes[next], "lowkey_backup_age_seconds"));
        // What is listed is whole: a backup that was not finished is none.
        let ids = listed();
        let verified = ids.iter().filter(|id| {
            let output = run(&place, &["backup", "verify", "--from", &place.url, "--backup", id]);
            // It may have been deleted meanwhile, in its turn.
            output.status.success() || listed().contains(id) && panic!("{output:?}")
        });
        assert!(verified.count() >= 1);
    }
}

#[test]
fn a_restore_that_is_killed_leaves_a_directory_that_can_be_restored_into() {
    let place = Place::folder();
    let mut cluster = cluster_at(&place, 1, &[]);
    let highest = grants(&cluster.nodes[0], "lock", 50);
    create(&place, &cluster.nodes[0]);
    cluster.nodes[0].kill();
    let folder = tempfile::tempdir().unwrap();
    let mut node = new_node(&place, folder.path(), "r");
    let mut has_finished = false;
    // Later and later, until one is through.
    for attempt in 0..200 {
        let directory = node.data_dir.display().to_string();
        let arguments = ["backup", "restore", "--from", &place.url, "--data-dir", &directory, AT_ONCE];
        let mut child =
            lowkey(&place, &arguments).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(4 * attempt));
        let _ = child.kill();
        if child.wait().unwrap().success() {
            has_finished = true;
            break;
        }
        if belongs(&node.data_dir) {
            // It was killed behind the point from which on it holds.
            break;
        }
    }
    assert!(has_finished || belongs(&node.data_dir), "no attempt came to its end");
    node.start_ready();
    let grant = acquire(&node, "lock-0");
    assert!(number(&grant["fencingToken"]) > highest && grant["epoch"] != "0", "{grant}");
}

fn belongs(data_dir: &Path) -> bool {
    lowkey_server::belongs_to_cluster(data_dir)
}

#[test]
fn two_survivors_that_are_recovered_claim_epochs_of_their_own() {
    let place = Place::folder();
    let mut cluster = cluster_at(&place, 3, &[]);
    let leader = cluster.wait_whole();
    let highest = grants(&cluster.nodes[leader], "lock", 5);
    let at = cluster.nodes[leader].log_position().1;
    eventually("all know of it", || {
        cluster.nodes.iter().all(|node| node.log_position().1 >= at).then_some(())
    });
    cluster.nodes.iter_mut().for_each(Node::kill);
    let mut tokens = BTreeSet::new();
    for node in &mut cluster.nodes[..2] {
        let directory = node.data_dir.display().to_string();
        let yes = "--yes-the-other-nodes-are-lost-for-good";
        let arguments = ["recover", "--data-dir", &directory, "--backup-to", &place.url, yes, AT_ONCE];
        let output = run(&place, &arguments);
        assert!(output.status.success(), "{output:?}");
        let told = String::from_utf8(output.stdout).unwrap();
        assert!(told.contains("Claimed at file://"), "{told}");
        node.start_ready();
        let token = number(&acquire(node, "lock-0")["fencingToken"]);
        assert!(token > highest && tokens.insert(token >> 32), "{token}: each has an epoch of its own");
    }
}

#[test]
fn after_a_total_loss_tokens_begin_far_above_and_nothing_is_granted_at_first() {
    let place = Place::folder();
    let folder = tempfile::tempdir().unwrap();
    let mut node = new_node(&place, folder.path(), "n1");
    node.add_flags(&["--bootstrap", "--after-total-loss"]);
    node.start_ready();
    let status = node.status().unwrap();
    let minutes = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs() / 60;
    assert!(number(&status["epoch"]) > minutes, "{status}");
    assert!(node.log_text().contains("begins after a total loss"), "{}", node.log_text());
    let grant = eventually("the quarantine is over", || {
        let (code, answer) =
            node.http("POST", "/v1/lock/acquire", r#"{"lockName":"a","ownerId":"o","ttlSeconds":60}"#)?;
        assert!(code == 200 || answer.contains("RECOVERING"), "{answer}");
        (code == 200).then(|| serde_json::from_str::<Value>(&answer).unwrap())
    });
    assert_eq!(number(&grant["fencingToken"]), (number(&status["epoch"]) << 32) + 1);
    // Started again with the same flags it is the same cluster.
    node.kill();
    node.start_ready();
    assert_eq!(node.status().unwrap()["clusterId"], status["clusterId"]);
}

#[test]
fn what_a_node_may_not_do_or_cannot_do_it_says() {
    let place = Place::folder();
    let cluster = cluster_at(&place, 1, &[]);
    let node = &cluster.nodes[0];
    let ask = |body: &str| node.http("POST", "/v1/cluster/backups", body).unwrap();
    let (status, answer) = ask("{}");
    assert!(status == 400 && answer.contains("INVALID_TO") && answer.contains("--backup-to"), "{answer}");
    let (status, answer) = ask(r#"{"to":"http://example.com"}"#);
    assert!(status == 400 && answer.contains("none of them"), "{answer}");
    let file = place.folder.with_extension("txt");
    std::fs::write(&file, "no folder").unwrap();
    let (status, answer) = ask(&format!(r#"{{"to":"file://{}"}}"#, file.display()));
    assert!(status == 409 && answer.contains("BACKUP_FAILED"), "{answer}");
    assert!(number(&acquire(node, "still")["fencingToken"]) > 0, "it serves all the same");
    let output = run(&place, &["backup", "verify", "--from", &place.url]);
    assert!(refused(&output, 1).contains("there is no backup at"), "{output:?}");
}
