//! What nodes say: every line of their logs is in the guide for operators, and no line is said without end.

use std::collections::BTreeSet;
use std::net::TcpStream;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::harness::{Cluster, Node, eventually};

const REPOSITORY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../");

/// All of the program's own text, in which a line that goes on in the next one is one line.
fn source(folder: &str) -> String {
    fn gather(folder: &Path, text: &mut String) {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                gather(&path, text);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                text.push_str(&std::fs::read_to_string(&path).unwrap());
            }
        }
    }
    let mut text = String::new();
    gather(&Path::new(REPOSITORY).join(folder), &mut text);
    let mut joined = String::new();
    for line in text.lines() {
        match line.strip_suffix('\\') {
            Some(begun) => joined.push_str(if joined.ends_with('\n') { begun } else { begun.trim_start() }),
            None if joined.ends_with('\n') || joined.is_empty() => {
                joined.push_str(line);
                joined.push('\n');
            }
            None => {
                joined.push_str(line.trim_start());
                joined.push('\n');
            }
        }
    }
    joined
}

/// The text of a message as it is printed, but for what differs from time to time.
fn generalised(message: &str) -> String {
    let mut text = String::new();
    let mut depth = 0;
    for letter in message.chars() {
        match letter {
            '{' => depth += 1,
            '}' => {
                depth -= 1;
                text.push('…');
            }
            _ if depth == 0 => text.push(letter),
            _ => {}
        }
    }
    text
}

/// The level and the message of every line that a node may log without being asked for details.
fn logged(source: &str) -> BTreeSet<(String, String)> {
    let mut lines = BTreeSet::new();
    for (macro_name, level) in [("info!(", "INFO"), ("warn!(", "WARN"), ("error!(", "ERROR")] {
        for (at, _) in source.match_indices(&format!("tracing::{macro_name}")) {
            // The message is the first text that is not a field's value.
            let arguments = &source[at..];
            let message = arguments.split('"').skip(1).step_by(2).next().expect("a line has a message");
            lines.insert((level.to_owned(), generalised(message)));
        }
    }
    lines
}

/// The first two columns of a table of the guide, in the section of that name.
fn rows(guide: &str, section: &str) -> BTreeSet<(String, String)> {
    let (_, section) = guide.split_once(&format!("\n## {section}\n")).expect("the guide has that section");
    let section = section.split("\n## ").next().unwrap();
    let rows = section.lines().filter_map(|line| {
        let (message, rest) = line.strip_prefix("| `")?.split_once("` | ")?;
        Some((rest.split(" |").next()?.to_owned(), message.to_owned()))
    });
    rows.collect()
}

#[test]
fn the_guide_for_operators_has_every_line_of_the_log() {
    let guide = std::fs::read_to_string(format!("{REPOSITORY}docs/reference/log-lines.md")).unwrap();
    let (server, binary) = (source("crates/lowkey-server/src"), source("crates/lowkey-cli/src"));
    let mut logged: BTreeSet<_> = logged(&server).union(&logged(&binary)).cloned().collect();
    // What a start did is said by one line with one of four texts.
    assert!(logged.remove(&("INFO".to_owned(), "…".to_owned())));
    for how in [
        "founded a new cluster",
        "founded a new cluster with the others",
        "founded a new cluster after a total loss",
        "joined the cluster",
        "came back",
    ] {
        assert!(server.contains(&format!("Ok(\"{how}\")")), "{how}");
        logged.insert(("INFO".to_owned(), how.to_owned()));
    }
    let documented = rows(&guide, "Every log line");
    let missing: Vec<_> = logged.difference(&documented).collect();
    let invented: Vec<_> = documented.difference(&logged).collect();
    assert!(
        missing.is_empty() && invented.is_empty(),
        "missing: {missing:#?}\nnot in the source: {invented:#?}"
    );
}

/// The line with which a node ends is put together from several places; the guide's must consist of their words.
#[test]
fn the_guide_for_operators_quotes_the_lines_with_which_nodes_end() {
    let guide = std::fs::read_to_string(format!("{REPOSITORY}docs/reference/log-lines.md")).unwrap();
    let crates = ["lowkey-server", "lowkey-wal", "lowkey-replica", "lowkey-core", "lowkey-cli"];
    let source: String = crates.iter().map(|name| source(&format!("crates/{name}/src"))).collect();
    let quoted = rows(&guide, "When a node does not start, or ends");
    assert!(quoted.len() > 10, "{quoted:?}");
    for (_, line) in quoted {
        for words in line.split('…').map(str::trim).filter(|words| !words.is_empty()) {
            assert!(source.contains(words), "no node says {words:?}, of {line:?}");
        }
    }
}

#[test]
fn a_member_that_is_away_is_complained_about_once() {
    let mut cluster = Cluster::start(3);
    let leader = cluster.wait_whole();
    let away = (leader + 1) % 3;
    cluster.nodes[away].kill();
    let killed = Instant::now();
    let others = [leader, (leader + 2) % 3];
    let complaints =
        |number: usize| cluster.nodes[number].log_text().matches("cannot reach a member").count();
    let named = format!("node={}", cluster.nodes[away].name);
    for number in others {
        eventually("it says that a member is away", || (complaints(number) > 0).then_some(()));
        let log = cluster.nodes[number].log_text();
        let line = log.lines().find(|line| line.contains("cannot reach a member")).unwrap();
        assert!(line.contains(&named), "by its name, {named}: {line}");
    }
    // Many attempts later it has not been said again: another cause would be, but only now and then.
    let attempts = Duration::from_secs(2);
    while killed.elapsed() < attempts {
        let lock = format!(r#"{{"lock_name":"{:?}","owner_id":"o","ttl_seconds":600}}"#, killed.elapsed());
        cluster.nodes[leader].ok("POST", "/v1/lock/acquire", &lock);
    }
    let allowed = 1 + killed.elapsed().as_secs() as usize / 30;
    for number in others {
        assert!(complaints(number) <= allowed, "{}", cluster.nodes[number].log_text());
    }
}

#[test]
fn a_node_with_few_file_descriptors_takes_fewer_connections_and_keeps_the_rest_for_itself() {
    const DESCRIPTORS: usize = 120;
    let folder = tempfile::tempdir().unwrap();
    let mut node = Node::new(folder.path(), "n1", &["--bootstrap"]);
    let limit = format!("ulimit -n {DESCRIPTORS}; exec \"$@\"");
    node.wrap(["sh", "-c", &limit, "sh"].map(str::to_owned).to_vec());
    node.start_ready();
    let said = "allows fewer connections of each port than --max-connections";
    assert_eq!(node.log_text().matches(said).count(), 1, "{}", node.log_text());
    let open_files = || std::fs::read_dir(format!("/proc/{}/fd", node.pid())).unwrap().count();
    let connect = |port| (0..150).map(move |_| TcpStream::connect(("127.0.0.1", port)).unwrap());
    let crowd: Vec<TcpStream> = connect(node.ports.http).chain(connect(node.ports.grpc)).collect();
    // Who does nothing makes room for those who do.
    eventually("it serves in the crowd", || node.status().is_some().then_some(()));
    for number in 0..20 {
        let lock = format!(r#"{{"lock_name":"{number}","owner_id":"o","ttl_seconds":600}}"#);
        node.ok("POST", "/v1/lock/acquire", &lock);
    }
    assert!(open_files() < DESCRIPTORS - 20, "{} files are open", open_files());
    drop(crowd);
    eventually("they have gone", || (open_files() < DESCRIPTORS / 2).then_some(()));
    let log = node.log_text();
    assert!(!log.contains("cannot accept") && !log.contains("disk"), "{log}");
}
