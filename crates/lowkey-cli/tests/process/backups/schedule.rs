//! The schedule of backups, as a setting of the cluster: set by a command, kept to by each leader.

use std::collections::BTreeSet;
use std::process::Output;
use std::time::Duration;

use serde_json::Value;

use super::stores::Place;
use super::{AT_ONCE, cluster_at, json, metric, new_node, number, restore, run};
use crate::harness::{Node, eventually};

fn schedule(place: &Place, node: &Node, flags: &[&str]) -> Output {
    let endpoint = format!("http://127.0.0.1:{}", node.ports.grpc);
    run(place, &[&["backup", "schedule", "--endpoints", &endpoint, "--json"], flags].concat())
}

fn listed(place: &Place) -> Vec<String> {
    let listed = json(&run(place, &["backup", "list", "--from", &place.url, "--json"]));
    let backups = listed["backups"].as_array().unwrap();
    backups.iter().map(|backup| backup["backup"].as_str().unwrap().to_owned()).collect()
}

/// What the command told, without what changes by itself.
fn told(output: &Output) -> [Value; 5] {
    let told = json(output);
    ["to", "everySeconds", "keep", "off", "fromFlags"].map(|field| told[field].clone())
}

fn on(place: &Place, every_seconds: &str, keep: u32) -> [Value; 5] {
    [place.url.as_str().into(), every_seconds.into(), keep.into(), false.into(), false.into()]
}

#[test]
fn a_schedule_that_a_command_sets_is_kept_to_by_each_leader_until_a_command_ends_it() {
    let place = Place::folder();
    let mut cluster = cluster_at(&place, 3, &[]);
    let leader = cluster.wait_whole();
    let follower = (leader + 1) % 3;
    let nothing: [Value; 5] = ["".into(), "0".into(), 0.into(), false.into(), true.into()];
    assert_eq!(told(&schedule(&place, &cluster.nodes[follower], &[])), nothing);

    let flags = ["--to", &place.url, "--every", "1s", "--keep", "3"];
    assert_eq!(told(&schedule(&place, &cluster.nodes[follower], &flags)), on(&place, "1", 3));
    let first = eventually("three backups are there", || Some(listed(&place)).filter(|ids| ids.len() >= 3));
    eventually("old ones go", || {
        let ids = listed(&place);
        (ids.len() <= 4 && !ids.contains(first.last().unwrap())).then_some(())
    });
    let node = &cluster.nodes[leader];
    assert!(metric(node, "lowkey_backup_age_seconds").is_some(), "the leader tells how old the newest is");
    assert_eq!(metric(node, "lowkey_backup_every_seconds"), Some(1.0));
    assert_eq!(metric(&cluster.nodes[follower], "lowkey_backup_every_seconds"), None, "nobody else does");
    let shown = json(&schedule(&place, &cluster.nodes[follower], &[]));
    assert_eq!(shown["leaderId"], format!("n{}", leader + 1), "{shown}");
    assert!(number(&shown["newestUnixMs"]) > 0 && shown["problem"] == "", "{shown}");

    // The next leader keeps to it, and knows it of no flag.
    cluster.nodes[leader].kill();
    let known: BTreeSet<String> = listed(&place).into_iter().collect();
    let next = cluster.wait_leader(Some(leader));
    eventually("the next leader makes one", || {
        listed(&place).iter().any(|id| !known.contains(id)).then_some(())
    });
    eventually("it tells so", || metric(&cluster.nodes[next], "lowkey_backup_age_seconds"));

    // And so does who leads after all of them were away.
    cluster.nodes.iter_mut().filter(|node| node.runs()).for_each(Node::kill);
    let known: BTreeSet<String> = listed(&place).into_iter().collect();
    cluster.nodes.iter_mut().for_each(Node::start);
    let leader = cluster.wait_whole();
    eventually("one is made after the restart", || {
        listed(&place).iter().any(|id| !known.contains(id)).then_some(())
    });
    let node = &cluster.nodes[leader];
    // What is not named stays as it is.
    assert_eq!(told(&schedule(&place, node, &["--keep", "1"])), on(&place, "1", 1));
    eventually("the newest alone is kept", || {
        let ids = listed(&place);
        assert!(!ids.is_empty(), "the newest that could be read back is never deleted");
        (ids.len() == 1).then_some(())
    });

    let off: [Value; 5] = ["".into(), "0".into(), 0.into(), true.into(), false.into()];
    assert_eq!(told(&schedule(&place, node, &["--off"])), off);
    eventually("the leader keeps to no plan", || {
        metric(node, "lowkey_backup_every_seconds").is_none().then_some(())
    });
    assert_eq!(metric(node, "lowkey_backup_age_seconds"), None);
    let made = metric(node, "lowkey_backups_made_total");
    std::thread::sleep(Duration::from_millis(2_500));
    assert_eq!(metric(node, "lowkey_backups_made_total"), made, "none is made any more");
    assert_eq!(told(&schedule(&place, node, &["--from-flags"])), nothing);
}

#[test]
fn the_schedule_of_the_cluster_is_in_place_of_the_flags_and_follows_a_change_at_once() {
    let (place, other) = (Place::folder(), Place::folder());
    let flags = ["--backup-to", &place.url, "--backup-every", "1h"];
    let cluster = cluster_at(&place, 1, &flags);
    let node = &cluster.nodes[0];
    eventually("the flags make one", || (listed(&place).len() == 1).then_some(()));
    let shown = json(&schedule(&place, node, &[]));
    assert_eq!((&shown["to"], &shown["everySeconds"]), (&place.url.as_str().into(), &"3600".into()));
    assert_eq!((&shown["fromFlags"], &shown["keep"]), (&true.into(), &48.into()));

    // A place that cannot be written to is told, and does not hold up the change to a good one.
    let file = other.folder.with_extension("txt");
    std::fs::write(&file, "no folder").unwrap();
    let bad = format!("file://{}", file.display());
    json(&schedule(&place, node, &["--to", &bad, "--every", "1h"]));
    eventually("the leader tells why it makes none", || {
        let shown = json(&schedule(&place, node, &[]));
        (shown["problem"] != "").then_some(())
    });
    assert!(metric(node, "lowkey_backups_failed_total").unwrap() > 0.0);
    assert_eq!(metric(node, "lowkey_backup_age_seconds"), None, "none is good there");
    json(&schedule(&place, node, &["--to", &other.url]));
    eventually("it is made elsewhere", || (listed(&other).len() == 1).then_some(()));
    eventually("nothing is wrong any more", || {
        let shown = json(&schedule(&place, node, &[]));
        (shown["problem"] == "" && number(&shown["newestUnixMs"]) > 0).then_some(())
    });
    assert_eq!(listed(&place).len(), 1, "what is elsewhere stays");
    let create = format!("http://127.0.0.1:{}", node.ports.grpc);
    let made = json(&run(&place, &["backup", "create", "--endpoints", &create, "--json"]));
    assert_eq!(made["url"], other.url, "without --to it goes where the cluster keeps them");
}

#[test]
fn a_restore_and_a_recovery_keep_the_schedule() {
    let place = Place::folder();
    let mut cluster = cluster_at(&place, 3, &[]);
    let leader = cluster.wait_whole();
    let flags = ["--to", &place.url, "--every", "1h", "--keep", "5"];
    json(&schedule(&place, &cluster.nodes[leader], &flags));
    eventually("a backup is made at once", || (listed(&place).len() == 1).then_some(()));
    cluster.nodes.iter_mut().for_each(Node::kill);

    let folder = tempfile::tempdir().unwrap();
    let mut restored = new_node(&place, folder.path(), "n9");
    let answer = json(&restore(&place, &restored.data_dir, &["--node-id", "n9"]));
    restored.start_ready();
    assert_eq!(told(&schedule(&place, &restored, &[])), on(&place, "3600", 5));
    let cluster_id = answer["clusterId"].as_str().unwrap();
    eventually("the new cluster makes its own", || {
        listed(&place).iter().any(|id| id.starts_with(cluster_id)).then_some(())
    });

    let node = &mut cluster.nodes[leader];
    let directory = node.data_dir.display().to_string();
    let yes = "--yes-the-other-nodes-are-lost-for-good";
    let output = run(&place, &["recover", "--data-dir", &directory, yes, AT_ONCE]);
    assert!(output.status.success(), "{output:?}");
    node.start_ready();
    assert_eq!(told(&schedule(&place, node, &[])), on(&place, "3600", 5));
}

#[test]
fn a_schedule_that_cannot_be_is_refused_and_nothing_is_changed() {
    let place = Place::folder();
    let cluster = cluster_at(&place, 1, &[]);
    let node = &cluster.nodes[0];
    for (flags, why) in [
        (&["--to", "s3://key:secret@bucket"][..], "credentials"),
        (&["--to", "http://example.com"], "none of them"),
        (&["--to", &place.url, "--every", "1500ms"], "whole seconds"),
        (&["--to", &place.url, "--keep", "0"], "from 1 to"),
        (&["--off", "--from-flags"], "cannot be used with"),
        (&["--off", "--to", &place.url], "cannot be used with"),
        (&["--every", "5m"], "name a store with --to"),
    ] {
        let output = schedule(&place, node, flags);
        let stderr = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(64) && stderr.contains(why), "{flags:?}: {output:?}");
    }
    let ask = |body: &str| node.http("POST", "/v1/cluster/backups/schedule", body).unwrap();
    for (body, reason) in [
        ("{}", "INVALID_TO"),
        (r#"{"to":"s3://key:secret@bucket"}"#, "INVALID_TO"),
        (r#"{"to":"s3://bucket","off":true}"#, "INVALID_OFF"),
        (r#"{"off":true,"fromFlags":true}"#, "INVALID_FROM_FLAGS"),
        (r#"{"off":true,"keep":3}"#, "INVALID_KEEP"),
        (r#"{"to":"s3://bucket","everySeconds":-1}"#, "INVALID_EVERY_SECONDS"),
        (r#"{"to":"s3://bucket","everySeconds":2678401}"#, "INVALID_EVERY_SECONDS"),
        (r#"{"to":"s3://bucket","keep":100001}"#, "INVALID_KEEP"),
    ] {
        let (status, answer) = ask(body);
        assert!(status == 400 && answer.contains(reason) && !answer.contains("secret"), "{body}: {answer}");
    }
    assert_eq!(json(&schedule(&place, node, &[]))["fromFlags"], true, "nothing was set");
}
