//! Clusters, node by node, as the pages start them: on one machine, and on three.

use serde_json::Value;

use super::typing::page::{Page, Typed};
use super::typing::terminal::{Curl, Terminal, listen_elsewhere, replaced, shown, wait_ready};
use crate::harness::{Ports, eventually, http};

/// How a node sees the cluster; nothing while it does not answer.
fn status(ports: Ports) -> Option<Value> {
    Some(serde_json::from_str(&http(ports.http, "GET", "/v1/status", "")?.1).unwrap())
}

fn wait_for_size(ports: &[Ports], size: usize) {
    eventually(&format!("{size} nodes vote"), || {
        let sizes = ports.iter().map(|ports| Some(status(*ports)?["clusterSize"] == size));
        sizes.collect::<Option<Vec<bool>>>()?.into_iter().all(|is_whole| is_whole).then_some(())
    });
}

#[test]
fn three_nodes_on_one_machine_come_together() {
    let page = Page::read("docs/start/three-nodes.md");
    let [first, second, third, calls] = page.section("Three nodes on one machine");
    let ports = [Ports::free(), Ports::free(), Ports::free()];
    let mut terminal = Terminal::new(Curl::best());
    listen_elsewhere(&mut terminal, ports[0]);
    std::fs::create_dir_all(terminal.path("work/target/release")).unwrap();
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_lowkey"), terminal.path("work/target/release/lowkey"))
        .unwrap();
    let mut addresses = Vec::new();
    for (number, ports) in (0..).zip(ports) {
        let here = [(7000, ports.raft), (9000, ports.grpc), (8080, ports.http)];
        addresses.extend(
            here.map(|(port, here)| (format!("127.0.0.1:{}", port + number), format!("127.0.0.1:{here}"))),
        );
        terminal.redirect(8080 + number, ports.http);
    }
    let typed = [first, second, third].map(|block| replaced(&block.text, &addresses));
    let [founder, _second, _third] = typed.each_ref().map(|command| terminal.start(command));
    wait_for_size(&ports, 3);

    let calls = calls.lines();
    assert_eq!(calls.len(), 2, "{calls:?}");
    for Typed { command, .. } in calls {
        // On a machine that is very busy the lead may change just now.
        let answer = eventually("somebody leads", || {
            Some(terminal.ok(&command)).filter(|answer| !answer.contains("\"NO_"))
        });
        assert!(!answer.contains("\"reason\""), "{command}: {answer}");
        if let Some((_, expected)) = command.split_once("    # ") {
            assert!(answer.contains(expected), "{command}: {answer}");
        }
    }

    // Stopped, and started again with the same flags: it does not found a second cluster.
    let cluster = status(ports[1]).unwrap()["clusterId"].clone();
    assert_eq!(founder.ctrl_c().code, Some(0));
    let _founder = terminal.start(&typed[0]);
    wait_ready(ports[0]);
    wait_for_size(&ports, 3);
    assert_eq!(status(ports[0]).unwrap()["clusterId"], cluster);
}

/// Three machines, all of them this one.
pub(super) struct Machines {
    pub(super) terminal: Terminal,
    pub(super) ports: [Ports; 3],
}

impl Machines {
    pub(super) fn new() -> Self {
        Self { terminal: Terminal::new(Curl::best()), ports: [Ports::free(), Ports::free(), Ports::free()] }
    }

    /// What is typed at one of the machines, with addresses and a folder that a test can have.
    pub(super) fn at(&self, machine: usize, text: &str) -> String {
        let mut parts = Vec::new();
        for (number, ports) in (1..).zip(self.ports) {
            for (port, here) in [(7000, ports.raft), (9000, ports.grpc), (8080, ports.http)] {
                parts.push((format!("10.0.0.{number}:{port}"), format!("127.0.0.1:{here}")));
                if number == machine {
                    parts.push((format!(" :{port}"), format!(" :{here}")));
                    parts.push((format!("=:{port}"), format!("=:{here}")));
                }
            }
        }
        let data = self.terminal.path(&format!("machine-{machine}"));
        parts.push(("/var/lib/lowkey".into(), shown(&data)));
        replaced(text, &parts)
    }
}

#[test]
fn three_machines_come_together_by_flags() {
    let page = Page::read("docs/operate/three-machines.md");
    let (first, second) =
        (page.block_with("lowkey --bootstrap"), page.block_with("lowkey --join-token-file"));
    let invite = page.block_with("lowkey member invite");
    let third = second.text.replace("node-2", "node-3").replace("10.0.0.2", "10.0.0.3");
    let machines = Machines::new();
    let typed = [machines.at(1, &first.text), machines.at(2, &second.text), machines.at(3, &third)];
    let mut nodes = vec![machines.terminal.start(&typed[0])];
    for (number, command) in (1..).zip(&typed[1..]) {
        wait_for_size(&machines.ports[..number], number);
        machines.terminal.ok(&machines.at(1, &invite.text));
        nodes.push(machines.terminal.start(command));
    }
    wait_for_size(&machines.ports, 3);
}

#[test]
fn three_machines_come_together_by_the_unit_and_its_settings() {
    let page = Page::read("docs/operate/systemd.md");
    let (unit, settings) = (page.block_with("[Unit]"), page.block_with("LOWKEY_NODE_ID"));
    let setting = |name: &str| {
        let lines = unit.text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
        lines.unwrap_or_else(|| panic!("the unit has no {name}"))
    };
    let file = setting("EnvironmentFile");
    assert_eq!(settings.first_line(), format!("# {file} on 10.0.0.1"));
    let exec = setting("ExecStart").strip_prefix("/usr/local/bin/").expect("where it is installed");
    let machines = Machines::new();
    let secret = machines.terminal.path("work/form-secret");
    std::fs::write(&secret, "0123456789abcdef".repeat(4)).unwrap();
    let start = |machine: usize| {
        // What is each machine's own.
        let lines = settings.text.lines().map(|line| match line.split_once("_ADDR=10.0.0.1:") {
            Some((name, port)) => format!("{name}_ADDR=10.0.0.{machine}:{port}\n"),
            None => format!("{line}\n").replace("=node-1", &format!("=node-{machine}")),
        });
        let text =
            replaced(&lines.collect::<String>(), &[("/etc/lowkey/form-secret".into(), shown(&secret))]);
        let file = format!("node-{machine}.env");
        std::fs::write(machines.terminal.path("work").join(&file), machines.at(machine, &text)).unwrap();
        machines.terminal.start(&format!("set -a; . ./{file}; exec {exec}"))
    };
    let [_third, first, _second] = [3, 1, 2].map(start);
    wait_for_size(&machines.ports, 3);
    let cluster = status(machines.ports[1]).unwrap()["clusterId"].clone();
    assert_eq!(first.ctrl_c().code, Some(0));
    let _first = start(1);
    wait_ready(machines.ports[0]);
    wait_for_size(&machines.ports, 3);
    assert_eq!(status(machines.ports[0]).unwrap()["clusterId"], cluster);
}
