//! A follower whose files were damaged while it was down: refused, named, never served; then removed, wiped
//! and back as another node.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;

use crate::cli::Service;
use crate::disks::snapshots::hold_large;
use crate::harness::{Cluster, Ended, Node, eventually, http, rounds, run_to_end};

/// Starts a node that must not live, and asks it all the while: nobody may be answered.
fn refused(node: &Node) -> Ended {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let asking = scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                let answer = http(node.ports.http, "GET", "/v1/status", "");
                assert_eq!(answer, None, "a node that is refused serves nobody");
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        let ended = run_to_end(&mut node.command());
        over.store(true, Ordering::Relaxed);
        asking.join().unwrap();
        assert_eq!(ended.code, Some(69), "{ended:?}");
        ended
    })
}

fn hold_small(node: &Node, locks: usize) {
    for number in 0..locks {
        let body = format!(
            r#"{{"lock_name":"small/{number}","owner_id":"o","ttl_seconds":600,"value":"{number}"}}"#
        );
        node.ok("POST", "/v1/lock/acquire", &body);
    }
}

fn names(directory: &Path, prefix: &str) -> Vec<String> {
    let files = std::fs::read_dir(directory).unwrap();
    let mut names: Vec<String> = files.map(|file| file.unwrap().file_name().into_string().unwrap()).collect();
    names.retain(|name| name.starts_with(prefix));
    names.sort();
    names
}

/// Takes each segment of the log away in turn; gives how many there are.
fn miss_each_segment(node: &Node) -> usize {
    let directory = &node.data_dir;
    let mut missing = 0;
    for name in names(directory, "segment-") {
        let (path, aside) = (directory.join(&name), directory.with_file_name(&name));
        // One that was made ahead of need holds nothing.
        if !std::fs::read(&path).unwrap().starts_with(b"LKWB") {
            continue;
        }
        std::fs::rename(&path, &aside).unwrap();
        let ended = refused(node);
        std::fs::rename(&aside, &path).unwrap();
        assert!(ended.only_line().contains(&name), "{name} is missing: {ended:?}");
        missing += 1;
    }
    missing
}

/// Changes each byte of the newest snapshot in turn, or a sample of them, and leaves the last one changed; gives
/// how many were changed, and of how many.
fn change_each_byte_of_the_snapshot(node: &Node) -> (usize, usize) {
    let newest = names(&node.data_dir, "snapshot-").pop().unwrap();
    let path = node.data_dir.join(&newest);
    let whole = std::fs::read(&path).unwrap();
    let stride = rounds("LOWKEY_DAMAGE_STRIDE", 67);
    let places = (0..whole.len()).step_by(stride);
    let changed = places.len();
    for at in places {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x10;
        std::fs::write(&path, &bytes).unwrap();
        let ended = refused(node);
        let line = ended.only_line();
        assert!(line.contains(&newest) && line.contains("offset"), "changed at {at}: {line}");
        assert!(line.contains(node.data_dir.to_str().unwrap()), "{line}");
        assert!(line.contains(&format!("`lowkey member remove {}`", node.name)), "{line}");
    }
    (changed, whole.len())
}

#[test]
fn a_follower_whose_files_are_damaged_is_refused_then_replaced() {
    let mut cluster = Cluster::start(1);
    // Those who join are sent a snapshot with something in it.
    let held = 20;
    cluster.nodes[0].wait_ready();
    hold_small(&cluster.nodes[0], held);
    cluster.join();
    cluster.join();
    let leader = cluster.wait_whole();
    // Several segments of 16 MiB, and not yet a snapshot that lets them go.
    let locks = rounds("LOWKEY_DAMAGE_LOCKS", 9_000);
    hold_large(&cluster.nodes[leader], locks);
    let (_, applied) = cluster.nodes[leader].log_position();
    let mut node = cluster.nodes.remove((leader + 1) % 3);
    eventually("the follower has all", || (node.log_position().1 >= applied).then_some(()));
    node.signal(Signal::TERM);
    assert_eq!(node.wait_exit().code(), Some(0));
    let leader = cluster.wait_leader(None);
    let (term, _) = cluster.nodes[leader].log_position();

    let missing = miss_each_segment(&node);
    assert!(missing >= 2, "the log has several segments");
    let (changed, bytes) = change_each_byte_of_the_snapshot(&node);
    println!(
        "a stopped follower: {missing} segments missing in turn, {changed} of {bytes} bytes of its snapshot changed \
         in turn, each refused"
    );
    assert_eq!(cluster.nodes[leader].log_position().0, term, "the others did not mind");

    // What the line advises: removed, then an empty directory, and to come back as a new node.
    let service = Service::of(&cluster.nodes);
    let replacing = Instant::now();
    service.ok(&["member", "remove", &node.name]);
    std::fs::remove_dir_all(&node.data_dir).unwrap();
    node.set_flags(&["--join", &format!("127.0.0.1:{}", cluster.nodes[leader].ports.grpc)]);
    let starting = Instant::now();
    node.start();
    eventually("the new node votes, has all, and answers", || is_healthy(&node, held + locks));
    let (replaced, joined) = (replacing.elapsed(), starting.elapsed());
    println!(
        "removed, wiped, joined anew with {locks} locks of 4 kB: healthy {} ms after its start, {} ms after the removal",
        joined.as_millis(),
        replaced.as_millis()
    );
    let members = node.status().unwrap()["members"].clone();
    let own = members.as_array().unwrap().iter().find(|member| member["nodeId"] == node.name.as_str());
    assert_eq!(own.unwrap()["memberId"], "4", "it is a new node: a number is never given again");
    cluster.nodes.push(node);
    cluster.wait_whole();
}

/// A voter that has all, and through which a lock is granted.
fn is_healthy(node: &Node, locks: usize) -> Option<()> {
    let status = node.status()?;
    let members = status["members"].as_array()?;
    let votes =
        members.iter().any(|member| member["nodeId"] == node.name.as_str() && member["voter"] == true);
    let whole = status["clusterSize"] == 3 && status["stats"]["locks"].as_u64()? >= locks as u64;
    if !votes || !whole || node.http("GET", "/readyz", "")?.0 != 200 {
        return None;
    }
    let acquire = r#"{"lock_name":"back","owner_id":"o","ttl_seconds":600,"request_id":"the only one"}"#;
    let (code, grant) = node.http("POST", "/v1/lock/acquire", acquire)?;
    let grant: Value = serde_json::from_str(&grant).ok()?;
    (code == 200 && grant["fencingToken"].is_string()).then_some(())
}
