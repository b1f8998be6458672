//! The disasters, page by page: what was lost is lost on real processes, and the page's commands are typed.
//!
//! Around them is what a reader's machine has: the store, under another URL, and free ports, by the environment.

use crate::backups::stores::Place;
use crate::harness::{Cluster, Node, Ports, eventually, http};

use super::typing::page::Page;
use super::typing::terminal::{Curl, Job, Terminal, listen_elsewhere};

/// A binary that was built for tests waits only so long.
const QUARANTINE_MS: &str = "1500";

/// The machine on which the drill is typed.
struct Machine<'a> {
    terminal: Terminal,
    place: &'a Place,
    ports: Ports,
    nodes: Vec<Job>,
}

impl<'a> Machine<'a> {
    fn new(place: &'a Place) -> Self {
        let mut terminal = Terminal::new(Curl::best());
        let ports = Ports::free();
        listen_elsewhere(&mut terminal, ports);
        terminal.set("LOWKEY_ENDPOINTS", format!("http://127.0.0.1:{}", ports.grpc));
        terminal.set("LOWKEY_TEST_QUARANTINE_MS", QUARANTINE_MS);
        for (name, value) in &place.environment {
            terminal.set(name, value.clone());
        }
        Self { terminal, place, ports, nodes: Vec::new() }
    }

    /// Types all of a page; gives how many commands that were.
    fn drill(&mut self, page: &'static str, backup: &str) -> usize {
        let mut typed = 0;
        for block in Page::read(page).blocks().iter().filter(|block| block.language == "sh") {
            for line in block.lines() {
                let command = line.bare().replace("s3://backups/lowkey", &self.place.url);
                let command = command.replace("--backup ID", &format!("--backup {backup}"));
                match command.strip_suffix(" &") {
                    Some(node) => {
                        let job = self.terminal.start(node);
                        self.nodes.push(job);
                        let ports = self.ports;
                        eventually("the node is ready", || {
                            http(ports.http, "GET", "/readyz", "").filter(|answer| answer.0 == 200)
                        });
                    }
                    None => {
                        let done = self.terminal.run(&command);
                        assert_eq!(done.code, Some(line.status()), "{page}: {command}: {done:?}");
                    }
                }
                typed += 1;
            }
        }
        typed
    }

    fn token_of(&self, lock: &str) -> u64 {
        let told = self.terminal.ok(&format!("lowkey get {lock} --json"));
        let told: serde_json::Value = serde_json::from_str(&told).unwrap();
        told["holders"][0]["fencingToken"].as_str().unwrap().parse().unwrap()
    }

    fn epoch(&self) -> u64 {
        let told = self.terminal.ok("lowkey status --json");
        let told: serde_json::Value = serde_json::from_str(&told).unwrap();
        told["epoch"].as_str().unwrap().parse().unwrap()
    }

    fn end(self) {
        for node in self.nodes {
            node.ctrl_c();
        }
    }
}

/// A cluster that has granted something, before and after its backup. Gives the highest token.
fn cluster(place: &Place, size: usize) -> (Cluster, String, u64) {
    let cluster = Cluster::start_equipped(size, |_, node| node.wrap(place.wrapper(&[])));
    let leader = &cluster.nodes[cluster.wait_whole()];
    let grant = |lock: &str| {
        let body = format!(r#"{{"lockName":"{lock}","ownerId":"o","ttlSeconds":60}}"#);
        let granted = leader.ok("POST", "/v1/lock/acquire", &body);
        granted["fencingToken"].as_str().unwrap().parse::<u64>().unwrap()
    };
    grant("nightly");
    let made = leader.ok("POST", "/v1/cluster/backups", &format!(r#"{{"to":"{}"}}"#, place.url));
    let highest = grant("hourly");
    (cluster, made["backupId"].as_str().unwrap().to_owned(), highest)
}

/// Everything of it is gone.
fn lose(mut cluster: Cluster) {
    cluster.nodes.iter_mut().for_each(Node::kill);
    cluster.nodes.iter().for_each(|node| std::fs::remove_dir_all(&node.data_dir).unwrap());
}

#[test]
fn one_node_is_lost() {
    let place = Place::folder();
    let (mut cluster, ..) = cluster(&place, 3);
    cluster.nodes[2].kill();
    let leader = cluster.wait_leader(Some(2));
    let mut machine = Machine::new(&place);
    machine
        .terminal
        .set("LOWKEY_ENDPOINTS", format!("http://127.0.0.1:{}", cluster.nodes[leader].ports.grpc));
    assert_eq!(machine.drill("docs/operate/disasters/one-node.md", ""), 2);
    eventually("two are left", || (cluster.nodes[leader].status()?["clusterSize"] == 2).then_some(()));
}

#[test]
fn the_majority_is_lost() {
    for place in Place::all() {
        let (mut cluster, _, highest) = cluster(&place, 3);
        let at = cluster.nodes.iter().map(|node| node.log_position().1).max().unwrap();
        eventually("the survivor knows all of it", || {
            (cluster.nodes[2].log_position().1 >= at).then_some(())
        });
        cluster.nodes.iter_mut().for_each(Node::kill);
        let mut machine = Machine::new(&place);
        std::os::unix::fs::symlink(&cluster.nodes[2].data_dir, machine.terminal.path("work/data")).unwrap();
        assert_eq!(machine.drill("docs/operate/disasters/majority.md", ""), 4);
        machine.terminal.ok("lowkey acquire nightly --ttl 60s --wait 15m");
        assert!(machine.token_of("nightly") > highest && machine.epoch() > 0);
        machine.end();
    }
}

#[test]
fn all_nodes_are_lost_and_there_is_a_backup() {
    for place in Place::all() {
        let (cluster, _, highest) = cluster(&place, 3);
        lose(cluster);
        let mut machine = Machine::new(&place);
        assert_eq!(machine.drill("docs/operate/disasters/all-nodes-with-backup.md", ""), 6);
        assert!(machine.token_of("nightly") > highest && machine.epoch() > 0);
        machine.end();
    }
}

#[test]
fn all_nodes_are_lost_and_there_is_no_backup() {
    let place = Place::folder();
    let mut machine = Machine::new(&place);
    assert_eq!(machine.drill("docs/operate/disasters/all-nodes-without-backup.md", ""), 3);
    assert_eq!(machine.token_of("nightly"), (machine.epoch() << 32) + 1);
    machine.end();
}

#[test]
fn the_wrong_backup_was_restored() {
    for place in Place::all() {
        let (right, id, highest) = cluster(&place, 1);
        lose(right);
        let (wrong, ..) = cluster(&place, 1);
        lose(wrong);
        let mut first = Machine::new(&place);
        first.drill("docs/operate/disasters/all-nodes-with-backup.md", "");
        let before = (first.token_of("nightly"), first.epoch());
        first.end();
        let mut second = Machine::new(&place);
        assert_eq!(second.drill("docs/operate/disasters/wrong-backup.md", &id), 5);
        second.terminal.ok("lowkey acquire nightly --ttl 60s --wait 15m");
        assert!(second.token_of("nightly") > before.0.max(highest) && second.epoch() > before.1);
        second.end();
    }
}

#[test]
fn two_restore_at_once() {
    let place = Place::folder();
    let (cluster, _, highest) = cluster(&place, 1);
    lose(cluster);
    let mut machines = [Machine::new(&place), Machine::new(&place)];
    let tokens = machines.each_mut().map(|machine| {
        let url = &place.url;
        machine.terminal.run(&format!(
            "lowkey backup restore --from {url} --data-dir ./data --although-nodes-of-the-old-cluster-answer"
        ));
        machine.nodes.push(machine.terminal.start("lowkey server --data-dir ./data"));
        machine.terminal.ok("lowkey acquire nightly --ttl 60s --wait 15m --connect-timeout 30s");
        assert_eq!(machine.drill("docs/operate/disasters/two-restores.md", ""), 1);
        machine.token_of("nightly")
    });
    let epochs = machines.each_ref().map(Machine::epoch);
    assert!(epochs[0] < epochs[1] && highest < tokens[0] && tokens[0] < tokens[1], "{epochs:?} {tokens:?}");
    machines.into_iter().for_each(Machine::end);
}
