//! The examples of the SDK, as people run them: each against a real node.
#![cfg(unix)]

use std::io::{BufRead as _, BufReader, Lines, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use lowkey_client::Client;
use lowkey_testing::Cluster;

type Outcome = Result<(), Box<dyn std::error::Error>>;

/// An example that runs, and what it says. It ends with the test.
struct Example {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
    said: Vec<String>,
}

impl Example {
    fn start(name: &str, arguments: &[&str], cluster: &Cluster) -> Self {
        Self::start_in(name, arguments, cluster, &std::env::temp_dir())
    }

    fn start_in(name: &str, arguments: &[&str], cluster: &Cluster, folder: &Path) -> Self {
        let mut child = Command::new(program(name))
            .args(arguments)
            .env("LOWKEY_ENDPOINTS", cluster.endpoints().join(","))
            .env("TMPDIR", folder)
            .stdout(Stdio::piped())
            .spawn()
            .expect("the example starts");
        let lines = BufReader::new(child.stdout.take().expect("it has a standard output")).lines();
        Self { child, lines, said: Vec::new() }
    }

    /// Reads on until a line has this in it.
    fn says(&mut self, what: &str) -> String {
        for line in self.lines.by_ref() {
            let line = line.expect("the example prints text");
            self.said.push(line.clone());
            if line.contains(what) {
                return line;
            }
        }
        panic!("it ended without saying {what:?}, after {:?}", self.said);
    }

    fn ends_well(mut self) {
        self.said.extend(self.lines.by_ref().map_while(Result::ok));
        let status = self.child.wait().expect("it ends");
        assert!(status.success(), "{status}, after {:?}", self.said);
    }
}

impl Drop for Example {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Cargo builds examples beside the folder of tests, when it tests the whole workspace.
fn program(name: &str) -> PathBuf {
    let test = std::env::current_exe().expect("a test is a program");
    let beside = test.parent().and_then(Path::parent).expect("it is in target/debug/deps");
    let program = beside.join("examples").join(name);
    assert!(
        program.exists(),
        "there is no {}: run `cargo build -p lowkey-client --examples` first",
        program.display()
    );
    program
}

/// One node, or nothing with a word where there is no program and it may be missing.
fn cluster() -> Option<Cluster> {
    match Cluster::start(1) {
        Err(error) if error.is_missing() && std::env::var_os("LOWKEY_REQUIRE_ALL").is_none() => {
            // Past `println!`, of which nobody sees anything in a test that passes.
            std::io::stderr().write_all(format!("skipped: {error}\n").as_bytes()).expect("stderr");
            None
        }
        outcome => Some(outcome.expect("a cluster")),
    }
}

#[test]
fn the_readme_shows_the_shortest_example() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../lowkey-client");
    let text = |name: &str| std::fs::read_to_string(folder.join(name)).expect("it is there");
    let readme = text("README.md");
    let shown = readme.split("```rust\n").nth(1).and_then(|rest| rest.split("```").next());
    let example = text("examples/sixty_seconds.rs");
    let code = example.find("use std::").map(|from| &example[from..]);
    assert!(code.is_some());
    assert_eq!(shown, code);
}

#[test]
fn the_shortest_example_takes_a_lock() {
    let Some(cluster) = cluster() else { return };
    let mut example = Example::start("sixty_seconds", &[], &cluster);
    let line = example.says("held with token ");
    assert!(line["held with token ".len()..].parse::<u64>().is_ok_and(|token| token > 0), "{line}");
    example.says("working");
    example.ends_well();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_singleton_job_runs_where_nobody_else_does_it() -> Outcome {
    let Some(cluster) = cluster() else { return Ok(()) };
    let client = Client::connect(cluster.endpoints()).await?;
    let session = client.session(Duration::from_secs(60)).await?;
    let guard = session.lock("report").acquire().await?;
    let mut second = Example::start("singleton_job", &["report"], &cluster);
    second.says("not me: ");
    second.ends_well();
    guard.release().await?;
    let mut alone = Example::start("singleton_job", &["report"], &cluster);
    alone.says("doing report with token ");
    alone.says("done");
    alone.ends_well();
    Ok(())
}

#[test]
fn a_fenced_writer_learns_that_its_lock_is_gone() -> Outcome {
    let Some(cluster) = cluster() else { return Ok(()) };
    let folder = tempfile::tempdir()?;
    let mut writer = Example::start_in("fenced_writer", &[], &cluster, folder.path());
    let line = writer.says("writing with token ");
    let token: u64 = line["writing with token ".len()..].parse()?;
    // It writes before it looks at its lock again.
    let file = folder.path().join("lowkey-fenced-writer");
    while !file.exists() {
        std::thread::sleep(Duration::from_millis(20));
    }
    cluster.release_by_force("the-file")?;
    writer.says("lost: ");
    // Another one has written since: what comes late is refused, or nobody has, and no harm was done.
    writer.says("nobody else has written yet");
    writer.ends_well();

    std::fs::write(&file, format!("{} by somebody else", token + 1_000))?;
    let mut late = Example::start_in("fenced_writer", &[], &cluster, folder.path());
    late.says("writing with token ");
    late.lines.by_ref().for_each(drop);
    assert!(!late.child.wait()?.success(), "a write with a lower token is refused");
    Ok(())
}

#[test]
fn the_next_leader_is_elected_when_one_ends() {
    let Some(cluster) = cluster() else { return };
    let mut first = Example::start("leader_election", &["scheduler", "http://first"], &cluster);
    first.says("elected, with token ");
    let mut second = Example::start("leader_election", &["scheduler", "http://second"], &cluster);
    second.says("leads, at http://first");
    drop(first);
    second.says("elected, with token ");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watcher_tells_what_happens() -> Outcome {
    let Some(cluster) = cluster() else { return Ok(()) };
    let client = Client::connect(cluster.endpoints()).await?;
    let session = client.session(Duration::from_secs(60)).await?;
    let _held = session.lock("billing/held").acquire().await?;
    let mut watcher = Example::start("watcher", &["billing/"], &cluster);
    watcher.says("billing/held is held by");
    let guard = session.lock("billing/next").acquire().await?;
    watcher.says("Acquired billing/next");
    guard.release().await?;
    watcher.says("Released billing/next");
    Ok(())
}
