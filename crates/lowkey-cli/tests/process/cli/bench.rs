//! `lowkey bench`: what it prints, and that it leaves nothing behind. The gate does a little of everything
//! (`lowkey bench --smoke`); here is what that does not show. No figure is compared with anything.

#[cfg(feature = "rivals")]
use std::fs::Permissions;
#[cfg(feature = "rivals")]
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
#[cfg(feature = "rivals")]
use std::process::Command;

use rustix::process::Signal;
use serde_json::Value;
use tempfile::TempDir;

use crate::cli::{Running, Service, lives, lowkey};
use crate::harness::{Node, eventually};
use crate::papers::Papers;

/// A process whose command line mentions this folder.
fn process_of(folder: &Path) -> Option<u32> {
    let folder = folder.to_str().unwrap();
    std::fs::read_dir("/proc").unwrap().find_map(|entry| {
        let path: PathBuf = entry.ok()?.path();
        let id = path.file_name()?.to_str()?.parse().ok()?;
        let command = std::fs::read(path.join("cmdline")).ok()?;
        String::from_utf8_lossy(&command).contains(folder).then_some(id)
    })
}

fn is_empty(folder: &TempDir) -> bool {
    std::fs::read_dir(folder.path()).unwrap().next().is_none()
}

#[test]
fn a_cluster_that_is_running_is_measured_and_keeps_no_lock_of_it() {
    let folder = tempfile::tempdir().unwrap();
    let mut node = Node::new(folder.path(), "n1", &["--bootstrap"]);
    node.start_ready();
    let service = Service::of(std::slice::from_ref(&node));
    let url = format!("http://127.0.0.1:{}", node.ports.grpc);
    let plot = folder.path().join("plot.svg");
    let words = ["bench", "seq", "holders", "outage", "--smoke", "--through", "unary,session"];
    let mut command = service.command(&words);
    let done = Running::start(command.args(["--json", "--server", &url, "--plot"]).arg(&plot)).done();
    assert_eq!(done.code, Some(0), "{done:?}");
    assert!(done.stderr.contains("outage: lowkey sits out: it kills a node"), "{done:?}");
    let reports: Vec<Value> = done.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let told: Vec<(&str, &str, u64)> = reports
        .iter()
        .map(|report| {
            let text = |key: &str| report[key].as_str().unwrap();
            (text("system"), text("workload"), report["nodes"].as_u64().unwrap())
        })
        .collect();
    assert_eq!(
        told,
        [
            ("lowkey", "seq", 1),
            ("lowkey session", "seq", 1),
            ("lowkey", "holders", 1),
            ("lowkey session", "holders", 1)
        ]
    );
    assert!(reports.iter().all(|report| report["operations"][0]["count"].as_u64() > Some(0)), "{reports:?}");
    assert!(std::fs::read_to_string(plot).unwrap().contains("seq 1: acquire"));
    assert_eq!(service.ok(&["ls"]), "");
}

#[test]
fn a_closed_cluster_is_measured_by_who_may_do_that() {
    let (folder, papers) = (tempfile::tempdir().unwrap(), Papers::new());
    let mut node = Node::new(folder.path(), "n1", &["--bootstrap"]);
    papers.equip(&mut node);
    node.start_ready();
    let admin = |words: &[&str]| {
        let mut command = lowkey();
        let done =
            Running::start(command.arg("access").args(words).arg("--data-dir").arg(&node.data_dir)).done();
        assert_eq!(done.code, Some(0), "{done:?}");
        done.stdout
    };
    for principal in ["ops", "bench"] {
        admin(&["principal", "add", principal]);
    }
    admin(&["grant", "ops", "/", "admin"]);
    admin(&["token", "new", "ops"]);
    admin(&["grant", "bench", "bench", "acquire,read,watch"]);
    let token = folder.path().join("token");
    std::fs::write(&token, admin(&["token", "new", "bench"])).unwrap();
    admin(&["require"]);

    let url = format!("https://127.0.0.1:{}", node.ports.grpc);
    let files = papers.of_client();
    let bench = |words: &[&str], token: Option<&Path>| {
        let mut command = lowkey();
        command.arg("bench").args(words).args(["--smoke", "--json", "--server", &url]);
        for (flag, file) in ["--ca", "--cert", "--key"].iter().zip(["ca", "cert", "key"]) {
            command.arg(flag).arg(files[file].as_str().unwrap());
        }
        command.args(token.map(|file| format!("--auth-file={}", file.display())));
        Running::start(&mut command).done()
    };
    let words = ["seq", "holders", "expire", "watch", "capacity", "--through", "unary,session"];
    let done = bench(&words, Some(&token));
    assert_eq!(done.code, Some(0), "{done:?}");
    assert_eq!(done.stdout.lines().count(), 7, "{done:?}");
    let nobody = bench(&["seq"], None);
    assert!(nobody.code == Some(69) && nobody.stderr.contains("show a token"), "{nobody:?}");
}

#[test]
fn nodes_that_are_set_up_in_other_ways_are_measured_beside_and_compared() {
    let words = ["bench", "seq", "expire", "--smoke", "--nodes", "1", "--json", "--access"];
    let done = Running::start(lowkey().args(words)).done();
    assert_eq!(done.code, Some(0), "{done:?}");
    let told: Vec<Value> = done.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let systems = |workload: &str| -> Vec<&str> {
        let reports = told.iter().filter(|line| line["workload"] == workload && line["against"].is_null());
        reports.map(|report| report["system"].as_str().unwrap()).collect()
    };
    assert_eq!(systems("seq"), ["lowkey", "lowkey access", "lowkey tls", "lowkey no audit"]);
    assert_eq!(systems("expire"), ["lowkey", "lowkey access"]);
    let ratios = told.iter().filter(|line| line["what"] == "acquire p50");
    let pairs = ratios.map(|ratio| (ratio["system"].as_str().unwrap(), ratio["against"].as_str().unwrap()));
    let pairs: Vec<_> = pairs.collect();
    assert_eq!(pairs, [("lowkey", "lowkey no audit"), ("lowkey access", "lowkey"), ("lowkey tls", "lowkey")]);
}

#[test]
fn its_own_nodes_end_with_it_however_it_ends() {
    for signal in [Signal::INT, Signal::TERM, Signal::KILL] {
        let folder = tempfile::tempdir().unwrap();
        let bench =
            Running::start(lowkey().args(["bench", "seq", "--nodes", "1", "--dir"]).arg(folder.path()));
        let node = eventually("a node runs", || process_of(&folder.path().join("lowkey-bench-lowkey-")));
        bench.signal(signal);
        let done = bench.done();
        eventually("the node is gone", || (!lives(&node.to_string())).then_some(()));
        if signal != Signal::KILL {
            assert_eq!(done.code, Some(128 + signal.as_raw()), "{done:?}");
            assert!(is_empty(&folder), "{signal:?}");
        }
    }
}

#[test]
fn what_cannot_be_measured_is_told_in_one_line() {
    let run = |words: &[&str]| Running::start(lowkey().arg("bench").args(words)).done();
    assert!(run(&["fast"]).complaint(64).contains("must be one of seq, par, hot"));
    assert!(run(&["--nodes", "2"]).complaint(64).contains("must be 1 or 3"));
    assert!(
        run(&["--server", "http://127.0.0.1:9000", "--nodes", "1"]).complaint(64).contains("cannot be used")
    );
    let nowhere = run(&["seq", "--nodes", "1", "--dir", "/does/not/exist"]);
    assert!(nowhere.complaint(69).contains("cannot make a folder in /does/not/exist"), "{nowhere:?}");
}

#[cfg(feature = "rivals")]
#[test]
fn whom_to_measure_against_is_told_if_it_is_somebody_else() {
    let done = Running::start(lowkey().args(["bench", "--against", "etcd,consul"])).done();
    assert!(done.complaint(64).contains("must be one of etcd, zookeeper, redis, postgres"), "{done:?}");
}

/// The binary where programs are looked for in this folder alone.
#[cfg(feature = "rivals")]
fn lowkey_among(programs: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lowkey"));
    command.env("PATH", programs);
    command
}

#[cfg(feature = "rivals")]
#[test]
fn who_is_not_installed_sits_out_and_is_told_with_its_package() {
    let programs = tempfile::tempdir().unwrap();
    let words = ["bench", "seq", "--smoke", "--nodes", "1", "--against", "etcd,zookeeper,redis"];
    let done = Running::start(lowkey_among(programs.path()).args(words)).done();
    assert_eq!(done.code, Some(0), "{done:?}");
    for (name, package) in [("etcd", "etcd-server"), ("zookeeper", "zookeeper"), ("redis", "redis-server")] {
        let line = format!("{name} sits out: it is not installed; Debian's package is {package}\n");
        assert!(done.stderr.contains(&line), "{done:?}");
    }
    assert!(done.stdout.starts_with("lowkey\tseq\t1\t1\tacquire\t"), "{done:?}");
}

#[cfg(feature = "rivals")]
#[test]
fn who_does_not_start_is_told_with_its_last_words() {
    let programs = tempfile::tempdir().unwrap();
    let etcd = programs.path().join("etcd");
    std::fs::write(&etcd, "#!/bin/sh\necho the disk is gone >&2\nexit 3\n").unwrap();
    std::fs::set_permissions(&etcd, Permissions::from_mode(0o755)).unwrap();
    let words = ["bench", "seq", "--smoke", "--nodes", "1", "--against", "etcd"];
    let done = Running::start(lowkey_among(programs.path()).args(words)).done();
    let complaint = done.complaint(69);
    assert!(complaint.contains("etcd-1 ended by itself (exit status: 3): the disk is gone"), "{done:?}");
}

#[test]
fn what_very_many_locks_leases_and_watches_cost_is_told_and_drawn() {
    let folder = tempfile::tempdir().unwrap();
    let plot = folder.path().join("plot.svg");
    let words = ["bench", "capacity", "scale", "churn", "--smoke", "--nodes", "1", "--json", "--plot"];
    let done = Running::start(lowkey().args(words).arg(&plot)).done();
    assert_eq!(done.code, Some(0), "{done:?}");
    let reports: Vec<Value> = done.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let told: Vec<(&str, u64)> = reports
        .iter()
        .map(|report| (report["workload"].as_str().unwrap(), report["size"].as_u64().unwrap()))
        .collect();
    assert_eq!(told, [("capacity", 200), ("scale", 500), ("scale", 2500), ("churn", 2000)]);
    for (report, figure) in
        reports.iter().zip(["leases lost", "memory a held lock", "memory, all released", "memory at the end"])
    {
        let figures = report["figures"].as_array().unwrap();
        assert!(figures.iter().any(|told| told["name"] == figure), "{report}");
    }
    assert!(std::fs::read_to_string(plot).unwrap().contains("scale: leader's time a pair"));
}
