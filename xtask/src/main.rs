//! What a release needs.
//!
//! ```text
//! cargo xtask dist                 build, package, check: everything in target/dist
//! cargo xtask dist --binary FILE   the same with a binary that is there already
//! cargo xtask version 1.2.3        say this version everywhere: Rust, Python, npm, Go, the chart
//! ```

mod dist;
mod sbom;
mod version;

use std::path::PathBuf;
use std::process::{Command, ExitCode};

/// What went wrong, for a person.
type Outcome<T = ()> = Result<T, String>;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let outcome = match words[..] {
        ["dist"] => dist::dist(None),
        ["dist", "--binary", file] => dist::dist(Some(PathBuf::from(file))),
        ["version", version] => version::set(version),
        _ => Err("usage: cargo xtask dist [--binary FILE] | version X.Y.Z".to_owned()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("xtask: {problem}");
            ExitCode::FAILURE
        }
    }
}

/// The repository.
fn root() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/.."))
}

/// Runs a command that must succeed, and returns what it printed.
fn run(command: &mut Command) -> Outcome<String> {
    let output = command.output().map_err(|error| format!("cannot run {command:?}: {error}"))?;
    if !output.status.success() {
        return Err(format!("{command:?} failed: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    String::from_utf8(output.stdout).map_err(|_| format!("{command:?} printed what is no text"))
}

fn read(path: &std::path::Path) -> Outcome<String> {
    std::fs::read_to_string(path).map_err(|error| format!("cannot read {}: {error}", path.display()))
}

fn write(path: &std::path::Path, text: impl AsRef<[u8]>) -> Outcome {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)
            .map_err(|error| format!("cannot create {}: {error}", folder.display()))?;
    }
    std::fs::write(path, text).map_err(|error| format!("cannot write {}: {error}", path.display()))
}
