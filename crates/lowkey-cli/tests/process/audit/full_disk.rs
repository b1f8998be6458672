//! A disk that is full to the last byte stops no lock, and what ended meanwhile is written when there is room.

use std::fs;

use crate::audit::{acquire, audit, release};
use crate::equipment::SmallDisk;
use crate::harness::{Node, eventually};

#[test]
fn a_full_disk_of_the_audit_stops_no_lock_and_loses_no_row() {
    let folder = tempfile::tempdir().unwrap();
    let mut node = Node::new(folder.path(), "n1", &["--bootstrap"]);
    // The audit has a disk of its own; the log's has room.
    let disk = match SmallDisk::mount(&node.data_dir.join("audit"), "2m") {
        Ok(disk) => disk,
        Err(why) => return println!("SKIPPED: {why}"),
    };
    node.wrap(disk.wrapper());
    node.start_ready();
    let pair = |lock: &str| {
        let grant = acquire(&node, lock, "worker", 60);
        release(&node, lock, &grant);
        grant["fencingToken"].as_str().unwrap().to_owned()
    };
    let mut ended = vec![pair("before")];
    assert!(audit(&node).0.contains_key(&ended[0]));
    disk.fill();
    // What room its files have already is used up first.
    let mut number = 0;
    eventually("it says so", || {
        number += 1;
        ended.push(pair(&format!("full/{number}")));
        node.log_text().contains("the audit cannot be written").then_some(())
    });
    for number in 0..20 {
        ended.push(pair(&format!("still/{number}")));
    }
    let metrics = node.http("GET", "/metrics", "").unwrap().1;
    assert!(metrics.contains("\nlowkey_audit_writable 0\n"), "{metrics}");
    let (status, text) = node.http("GET", "/v1/audit", "").unwrap();
    assert!(status == 503 && text.contains("AUDIT_BEHIND"), "{text}");
    let files = || fs::read_dir(disk.inside("")).unwrap().count();
    let files_when_full = files();

    disk.make_room();
    eventually("it is written again", || {
        node.log_text().contains("the audit is written again").then_some(())
    });
    assert!(files() <= files_when_full + 3, "it begins one file, and not one with every try: {}", files());
    ended.push(pair("after"));
    let (rows, gaps) = audit(&node);
    assert_eq!(gaps, [] as [serde_json::Value; 0], "nothing is missing");
    for token in &ended {
        assert!(rows.contains_key(token), "token {token} is on record");
    }
    assert!(!node.log_text().contains("panicked"), "{}", node.log_text());
    println!("{} grants ended, {number} until the disk was full", ended.len());
}
